//! The watchdog's links to Redis: one in use, and a second for when the first falls silent.
//!
//! A renewal may run twice or late without harm, so no fence is needed here: an attempt that got no answer in time is still
//! listened to while the next one goes out on the other link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

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
    /// Links that could not be opened.
    failed: AtomicU64,
}

/// What a batch came to: one answer an attempt.
#[derive(Debug)]
pub(crate) struct Outcome {
    link: usize,
    answered: bool,
    pub(crate) attempts: Vec<(HolderId, u64)>,
    pub(crate) answers: Vec<Answer>,
}

/// The two links.
pub(crate) struct Links {
    address: Address,
    slots: [Slot; 2],
    current: usize,
    outcomes: mpsc::UnboundedSender<Outcome>,
    minds_slots: Arc<AtomicBool>,
}

#[derive(Default)]
struct Slot {
    place: Arc<Place>,
    /// An attempt on it got no answer in time.
    suspect: bool,
    under_way: Vec<AbortHandle>,
}

impl Links {
    pub(crate) fn new(address: Address, outcomes: mpsc::UnboundedSender<Outcome>) -> Self {
        Links {
            address,
            slots: Default::default(),
            current: 0,
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
        let slot = &self.slots[self.current];
        // Locked: it is being opened already.
        let is_open = slot.place.link.try_lock().map_or(true, |link| link.is_some());
        if !is_open {
            let (place, address) = (slot.place.clone(), self.address.clone());
            tokio::spawn(async move { open(&place, &address).await.map(|_| ()) });
        }
    }

    /// The link for the next attempts: not one that has fallen silent. If both have, the older one is given up for a new one.
    pub(crate) fn pick(&mut self) -> usize {
        if self.slots[self.current].suspect {
            self.current = 1 - self.current;
            let slot = &mut self.slots[self.current];
            if slot.suspect {
                for task in slot.under_way.drain(..) {
                    task.abort();
                }
                *slot = Slot::default();
            }
        }
        self.current
    }

    /// An attempt on this link got no answer in time.
    pub(crate) fn suspect(&mut self, link: usize) {
        self.slots[link].suspect = true;
    }

    /// An answer, or the end, of a batch.
    pub(crate) fn heard(&mut self, outcome: &Outcome) {
        if outcome.answered {
            self.slots[outcome.link].suspect = false;
        }
    }

    /// Sends a batch on the link in use.
    pub(crate) fn send(&mut self, batch: Batch) {
        let index = self.current;
        let slot = &mut self.slots[index];
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
                link: index,
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
    let link = open(place, address).await.map_err(cause)?;
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

/// The link of a place, opened anew if there is none or it was closed.
///
/// Whoever waits while it is opened shares its fate, as if it had been sent on it. Otherwise what was given up long ago would leave
/// when a link that lost bytes is replaced.
async fn open(place: &Place, address: &Address) -> Result<Link, CallError> {
    let failed = place.failed.load(Ordering::Relaxed);
    let mut slot = place.link.lock().await;
    if let Some(link) = slot.as_ref().filter(|link| link.is_alive()) {
        return Ok(link.clone());
    }
    if place.failed.load(Ordering::Relaxed) != failed {
        return Err(CallError::Unreachable { source: None });
    }
    // The attempt's own time limit ends earlier; this one only frees the slot.
    let opened = Link::open(address, OPEN_LIMIT).await;
    if opened.is_err() {
        place.failed.fetch_add(1, Ordering::Relaxed);
    }
    let link = opened?;
    *slot = Some(link.clone());
    Ok(link)
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

/// How long opening a link may take before the next attempt starts afresh.
const OPEN_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
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
