//! The watchdog's links to Redis: one in use, and beside it those that fell silent not long ago.
//!
//! A renewal may run twice or late without harm, so no fence is needed here: an attempt that got no answer in time is still
//! listened to while the next one goes out on another link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::clock::{self, Moment};
use crate::error::CallError;
use crate::lease::FailureCause;
use crate::link::{Address, Link};
use crate::mode::nonsense;
use crate::owner::HolderId;
use crate::renewal::Answer;
use crate::renewal_batch::{Batch, Due, answers, renewal_of};

/// Where a link is, or is being opened.
#[derive(Default)]
struct Place {
    link: Mutex<Option<Link>>,
    /// How often its opening was begun.
    begun: AtomicU64,
    /// Which of these opened it.
    opened: AtomicU64,
}

/// What a batch came to: one answer an attempt.
#[derive(Debug)]
pub(crate) struct Outcome {
    link: u64,
    answered: bool,
    pub(crate) attempts: Vec<(HolderId, u64)>,
    pub(crate) answers: Vec<Answer>,
}

/// The links.
pub(crate) struct Links {
    address: Address,
    current: Slot,
    /// Those that fell silent, the oldest first. Nothing is sent on them, but what was sent may yet be answered.
    silent: VecDeque<Slot>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    minds_slots: Arc<AtomicBool>,
}

#[derive(Default)]
struct Slot {
    number: u64,
    place: Arc<Place>,
    /// An attempt on it got no answer in time.
    suspect: bool,
    /// When the first attempt left since it was heard last.
    asked: Option<Moment>,
    under_way: Vec<AbortHandle>,
}

impl Links {
    pub(crate) fn new(address: Address, outcomes: mpsc::UnboundedSender<Outcome>) -> Self {
        Links {
            address,
            current: Slot::default(),
            silent: VecDeque::new(),
            outcomes,
            minds_slots: Arc::default(),
        }
    }

    /// Whether the server has refused locks of several slots in one script, as a node of a cluster does.
    pub(crate) fn minds_slots(&self) -> bool {
        self.minds_slots.load(Ordering::Relaxed)
    }

    /// Opens the link in use ahead of the first renewal.
    pub(crate) fn warm_up(&mut self) {
        // Locked: it is being opened already.
        let is_open = self.current.place.link.try_lock().map_or(true, |link| link.is_some());
        if !is_open {
            let (place, address) = (self.current.place.clone(), self.address.clone());
            tokio::spawn(async move { open(&place, &address, Patience::WARM_UP, true).await.map(|_| ()) });
        }
    }

    /// The link for the next attempts, of leases of this length or longer: a new one if the one in use has been silent for long
    /// enough.
    ///
    /// With many locks some attempt runs out at every moment, near a deadline after milliseconds. If each of them ended a link,
    /// what others have on their way would never be answered, even if Redis answers at last.
    pub(crate) fn pick(&mut self, lease: Duration) -> u64 {
        self.silent.retain_mut(|slot| {
            slot.under_way.retain(|task| !task.is_finished());
            !slot.under_way.is_empty()
        });
        let since = self
            .current
            .asked
            .map_or(Duration::ZERO, |asked| clock::now().since(asked));
        if self.current.suspect && since >= lease / SILENCES {
            let next = Slot {
                number: self.current.number + 1,
                ..Slot::default()
            };
            self.silent.push_back(std::mem::replace(&mut self.current, next));
            if self.silent.len() > MOST_SILENT
                && let Some(oldest) = self.silent.pop_front()
            {
                for task in oldest.under_way {
                    task.abort();
                }
            }
        }
        self.current.number
    }

    /// An attempt on this link got no answer in time.
    pub(crate) fn suspect(&mut self, link: u64) {
        if link == self.current.number {
            self.current.suspect = true;
        }
    }

    /// An answer, or the end, of a batch.
    pub(crate) fn heard(&mut self, outcome: &Outcome) {
        if outcome.answered && outcome.link == self.current.number {
            self.current.suspect = false;
            self.current.asked = None;
        }
    }

    /// Sends a batch on the link in use.
    pub(crate) fn send(&mut self, batch: Batch) {
        let slot = &mut self.current;
        let link = slot.number;
        slot.asked.get_or_insert_with(clock::now);
        let (place, address, outcomes) = (slot.place.clone(), self.address.clone(), self.outcomes.clone());
        let minds_slots = self.minds_slots.clone();
        let task = tokio::spawn(async move {
            // Later than that an answer is of no use.
            let result = match timeout(batch.lease, run(&place, &address, &batch, &minds_slots)).await {
                Ok(result) => result,
                Err(_) => Err(FailureCause::Unanswered),
            };
            let answered = matches!(result, Ok(_) | Err(FailureCause::Refused(_)));
            let answers = result.unwrap_or_else(|cause| vec![Answer::Failed(cause); batch.due.len()]);
            // The watchdog may have ended; then nobody wants to know.
            let _ = outcomes.send(Outcome {
                link,
                answered,
                attempts: batch
                    .due
                    .into_iter()
                    .map(|(holder, number, _)| (holder, number))
                    .collect(),
                answers,
            });
        });
        slot.under_way.retain(|task| !task.is_finished());
        slot.under_way.push(task.abort_handle());
    }
}

async fn run(
    place: &Place,
    address: &Address,
    batch: &Batch,
    minds_slots: &AtomicBool,
) -> Result<Vec<Answer>, FailureCause> {
    let patience = Patience {
        again: batch.lease / OPENINGS,
        most: batch.lease,
    };
    let Some(link) = open(place, address, patience, batch.waits).await.map_err(cause)? else {
        // Nobody hears of the loss before its time is out.
        tokio::time::sleep(batch.until.since(clock::now())).await;
        return Err(FailureCause::Unanswered);
    };
    // Given up while the link was being opened.
    if clock::now() > batch.until {
        return Err(FailureCause::Unanswered);
    }
    let together = renew(&link, &batch.due, batch.lease).await;
    if batch.due.len() == 1 || !matches!(together, Err(CallError::KeysApart { .. })) {
        return together.map_err(cause);
    }
    // Each by itself, within the same attempt; from now on they leave so.
    minds_slots.store(true, Ordering::Relaxed);
    let mut answers = Vec::new();
    for one in batch.due.chunks(1) {
        match renew(&link, one, batch.lease).await {
            Ok(answer) => answers.extend(answer),
            Err(error) => answers.push(Answer::Failed(cause(error))),
        }
    }
    Ok(answers)
}

async fn renew(link: &Link, due: &[Due], lease: Duration) -> Result<Vec<Answer>, CallError> {
    let call = renewal_of(due, lease);
    let reply = link.run(&call).await?;
    let unreadable = nonsense(call.text.name, &reply);
    answers(reply, due.iter().map(|(.., named)| named.len())).ok_or(unreadable)
}

/// How long the opening of a link is waited for.
#[derive(Clone, Copy)]
struct Patience {
    /// Before another is begun beside it.
    again: Duration,
    /// Before it has failed. Not sooner than any attempt that waits for it: it would fail with it, before its time is out.
    most: Duration,
}

impl Patience {
    const WARM_UP: Self = Self {
        again: OPEN_LIMIT,
        most: OPEN_LIMIT,
    };
}

/// The link of a place, opened anew if there is none or it was closed.
///
/// Who `waits` takes it whenever it is open. Others share the fate of the opening during which they came, as if they had been sent on
/// it: what a policy calls an attempt is lost with the bytes that were to carry it. Nothing is what they get.
async fn open(place: &Place, address: &Address, patience: Patience, waits: bool) -> Result<Option<Link>, CallError> {
    let mut came = place.begun.load(Ordering::Relaxed);
    let (mut slot, waited) = match place.link.try_lock() {
        Ok(slot) => (slot, false),
        Err(_) => (place.link.lock().await, true),
    };
    let link = match slot.as_ref().filter(|link| link.is_alive()) {
        Some(link) => link.clone(),
        None => {
            let first = place.begun.fetch_add(1, Ordering::Relaxed) + 1;
            if !waited {
                came = first;
            }
            let mut slow = std::pin::pin!(Link::open(address, patience.most));
            let (mut number, link) = tokio::select! {
                link = &mut slow => (first, link),
                again = open_again(place, address, patience.again) => again,
            };
            let link = link?;
            if !waits && number > first {
                // If the first comes through as well, nothing was lost: it was only kept back.
                let came_through = timeout(patience.again / 5, slow).await;
                number = if matches!(came_through, Ok(Ok(_))) {
                    first
                } else {
                    number
                };
            }
            place.opened.store(number, Ordering::Relaxed);
            slot.insert(link).clone()
        }
    };
    let is_lost = !waits && place.opened.load(Ordering::Relaxed) > came;
    Ok((!is_lost).then_some(link))
}

/// Opens a link beside one that is taking its time, and begins again whenever patience ends: when Redis can be reached again, what was
/// lost before is not waited for. Patience grows to twice what it was, since a server that is frozen keeps every one of them. Tells which
/// opening it was.
async fn open_again(place: &Place, address: &Address, mut patience: Duration) -> (u64, Result<Link, CallError>) {
    let longest = patience * 2;
    loop {
        tokio::time::sleep(patience).await;
        patience = (patience + patience / 4).min(longest);
        let number = place.begun.fetch_add(1, Ordering::Relaxed) + 1;
        // Its own limit lies behind the patience, or its end would pass for a refusal.
        if let Ok(opened) = timeout(patience, Link::open(address, patience * 2)).await {
            return (number, opened);
        }
    }
}

fn cause(error: CallError) -> FailureCause {
    match error {
        CallError::Unreachable { .. } => FailureCause::Unreachable,
        CallError::Refused { code, .. } => FailureCause::Refused(code),
        CallError::Denied { code, script, .. } => {
            tracing::error!(script, %code, "Redis does not let this user renew locks; check the user name, password and ACL");
            FailureCause::Refused(code)
        }
        // The script reports such a key by itself; an error for all of a batch says nothing of one lock.
        CallError::WrongKeyType { .. } => FailureCause::Refused("WRONGTYPE".into()),
        CallError::KeysApart { .. } => FailureCause::Refused("CROSSSLOT".into()),
        CallError::Nonsense { .. } => FailureCause::Refused("an answer that makes no sense".into()),
        CallError::Unanswered { .. } => FailureCause::Unanswered,
    }
}

/// How long opening a link may take while nobody needs it yet.
const OPEN_LIMIT: Duration = Duration::from_secs(3);

/// The lease divided by how long a link may be silent before a new one takes its place.
const SILENCES: u32 = 20;

/// So many silent links are listened to: with the one in use that is for a tenth of the lease at least, the longest attempt.
const MOST_SILENT: usize = 2;

/// The lease divided by how long one opening of a link is waited for before another begins.
const OPENINGS: u32 = 60;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::answer::{classify, tests::of};
    use crate::clock::Moment;
    use crate::lease::{LeaseState, LostReason};
    use crate::policy::{RenewalPolicy, Timings};
    use crate::renewal::{Action, Event, Renewal};

    const LEASE: Duration = Duration::from_secs(30);
    const START: Moment = Moment::PAST;

    /// What the holder is told last when its first renewal is answered so, and when the next attempt leaves.
    fn after(policy: RenewalPolicy, answer: Answer) -> (Option<LeaseState>, Option<Duration>) {
        let timings = Timings::renewed(&policy, LEASE).unwrap();
        let mut renewal = Renewal::new(timings, true, START, Moment::NEVER, 0.0);
        let now = START.plus(LEASE / 3);
        let mut actions = Vec::new();
        renewal.step(Event::Due, now, 0.0, &mut actions);
        let number = 1;
        renewal.step(Event::Answered { number, answer }, now, 0.0, &mut actions);
        let told = actions.into_iter().rev().find_map(|action| match action {
            Action::Tell(state) => Some(state),
            _ => None,
        });
        let is_lost = matches!(told, Some(LeaseState::Lost(_)));
        (told, (!is_lost).then(|| renewal.wakes().since(now)))
    }

    /// Links to a server that takes connections and says nothing, and a batch of one attempt.
    async fn silent_server() -> (tokio::net::TcpListener, Links, mpsc::UnboundedReceiver<Outcome>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let (sender, outcomes) = mpsc::unbounded_channel();
        (listener, Links::new(Address::parse(&url).unwrap(), sender), outcomes)
    }

    fn ask(links: &mut Links, lease: Duration) -> u64 {
        let link = links.pick(lease);
        links.send(Batch {
            due: Vec::new(),
            lease,
            until: Moment::NEVER,
            waits: true,
        });
        link
    }

    #[tokio::test]
    async fn attempts_that_run_out_at_every_moment_do_not_end_a_link_on_which_others_wait() {
        let (_listener, mut links, mut outcomes) = silent_server().await;
        for _ in 0..1_000 {
            let link = ask(&mut links, LEASE);
            assert_eq!(link, 0);
            links.suspect(link);
        }
        assert!(outcomes.try_recv().is_err(), "all are waited for");
    }

    #[tokio::test]
    async fn no_attempt_fails_with_an_opening_that_is_begun_anew() {
        let (_listener, mut links, mut outcomes) = silent_server().await;
        // Begun anew after 50 ms, 112 ms and so on.
        ask(&mut links, Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(outcomes.try_recv().is_err(), "its time is not out");
    }

    #[tokio::test]
    async fn a_link_that_stays_silent_is_left_and_listened_to_until_two_more_have_been() {
        let (_listener, mut links, _outcomes) = silent_server().await;
        let first = {
            ask(&mut links, LEASE);
            links.current.under_way[0].clone()
        };
        let mut used = 0;
        for silent in 1..=3 {
            links.suspect(used);
            // Longer than a twentieth of this lease.
            let lease = Duration::from_millis(20);
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(!first.is_finished(), "{silent}");
            used = links.pick(lease);
            assert_eq!(used, silent, "a new one");
            ask(&mut links, LEASE);
        }
        while !first.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(links.silent.len(), MOST_SILENT);
    }

    /// What such a batch sends on a link that can only be opened at the second time, and whether it was answered.
    async fn sent_when_opened_anew(until: Moment, waits: bool) -> (String, Option<bool>) {
        let (listener, mut links, mut outcomes) = silent_server().await;
        // Opened anew after a hundred milliseconds.
        let lease = Duration::from_secs(6);
        links.pick(lease);
        links.send(Batch {
            due: Vec::new(),
            lease,
            until,
            waits,
        });
        let (_lost, _) = listener.accept().await.unwrap();
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut heard = [0; 1024];
        let length = connection.read(&mut heard).await.unwrap();
        assert!(String::from_utf8_lossy(&heard[..length]).contains("HELLO"));
        let hello = "%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n";
        connection.write_all(hello.as_bytes()).await.unwrap();
        let sent = timeout(Duration::from_millis(300), connection.read(&mut heard)).await;
        let sent = sent.map_or(0, |length| length.unwrap());
        let outcome = timeout(Duration::from_millis(1), outcomes.recv()).await.ok().flatten();
        let text = String::from_utf8_lossy(&heard[..sent]).into_owned();
        (text, outcome.map(|outcome| outcome.answered))
    }

    #[tokio::test]
    async fn an_attempt_that_waits_leaves_on_whichever_link_can_be_opened_in_its_time() {
        let (sent, _) = sent_when_opened_anew(Moment::NEVER, true).await;
        assert!(sent.contains("EVALSHA"), "{sent:?}");
        let (sent, answered) = sent_when_opened_anew(Moment::PAST, true).await;
        assert_eq!((&*sent, answered), ("", Some(false)), "given up meanwhile");
    }

    #[tokio::test]
    async fn an_attempt_that_does_not_wait_is_lost_with_the_bytes_that_were_to_open_its_link() {
        let (sent, answered) = sent_when_opened_anew(Moment::NEVER, false).await;
        assert_eq!(
            (&*sent, answered),
            ("", None),
            "and nobody hears of it before its time is out"
        );
    }

    #[test]
    fn every_error_code_is_a_failed_attempt_that_is_tried_again_and_never_a_loss() {
        let refused = [
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Errors writing to the AOF file: No space left on device",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOSCRIPT No matching script. Please use EVAL.",
            "ERR max number of clients reached",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "SOMETHING that no version has said yet",
        ];
        let refused = refused.map(|line| {
            let code = line.split(' ').next().unwrap();
            (of(line), FailureCause::Refused(code.into()))
        });
        let broken = [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::UnexpectedEof].map(|kind| {
            let error = redis::RedisError::from(std::io::Error::from(kind));
            (classify("renew", error), FailureCause::Unanswered)
        });
        let unreachable = CallError::Unreachable { source: None };
        let silent = CallError::Unanswered {
            script: "renew",
            source: None,
        };
        let others = [
            (unreachable, FailureCause::Unreachable),
            (silent, FailureCause::Unanswered),
        ];
        for (error, expected) in refused.into_iter().chain(broken).chain(others) {
            let found = cause(error.clone());
            assert_eq!(found, expected, "{error:?}");
            let failed = || Answer::Failed(found.clone());
            let (told, next) = after(RenewalPolicy::deadline(), failed());
            assert!(
                matches!(&told, Some(LeaseState::AtRisk { cause, .. }) if *cause == expected),
                "{error:?}: {told:?}"
            );
            assert_eq!(next, Some(LEASE / 300), "tried again after the shortest pause");
            let (told, _) = after(RenewalPolicy::cancel_told(), failed());
            assert_eq!(told, Some(LeaseState::Lost(LostReason::GaveUp)), "{error:?}");
        }
    }

    #[test]
    fn every_result_of_the_script_is_what_it_says_whatever_the_policy() {
        for policy in [
            RenewalPolicy::deadline(),
            RenewalPolicy::cancel_told(),
            RenewalPolicy::retry(3),
        ] {
            let told = |code| {
                let reply = redis::Value::Array(vec![redis::Value::Int(code)]);
                let answer = answers(reply, std::iter::once(1)).unwrap().remove(0);
                after(policy.clone(), answer).0
            };
            assert_eq!(told(1), None, "renewed");
            assert_eq!(told(0), Some(LeaseState::Lost(LostReason::NotOwner)));
            assert_eq!(told(2), Some(LeaseState::Lost(LostReason::KeyClobbered)));
            assert!(!matches!(
                told(3),
                Some(LeaseState::Lost(LostReason::NotOwner | LostReason::KeyClobbered))
            ));
        }
    }
}
