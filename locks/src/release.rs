//! Giving locks back: at once where the caller waits, in the background where it left, and again until Redis has answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};

use crate::clock::{self, Moment};
use crate::error::CallError;
use crate::hold::Hold;
use crate::keys::tombstone;
use crate::lease::{LeaseState, LostReason};
use crate::local_queue::{Next, Way};
use crate::mode::{self, Attempt, Given, Grant};
use crate::options::lease_millis;
use crate::renewal::Event;
use crate::script::{Value, WITHDRAW};

/// Brings the hold count in Redis down to the number of leases that are alive. Dropped before Redis has answered, it goes on in
/// the background.
///
/// It also withdraws an acquire whose outcome is unknown: that hold has no leases, so all it may have taken is given back.
pub(crate) struct Release {
    hold: Arc<Hold>,
    done: bool,
}

/// What Redis answered to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This count is left; 0: the lock is free.
    Left(u32),
    /// The hold was not there.
    Missing,
    /// The hold was not there, and an earlier release of it had no answer.
    MissingAfterRepeat,
}

impl Release {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Release { hold, done: false }
    }

    /// Asks Redis once. Harmless when repeated: the count is absolute, and the holder id is never used again.
    pub(crate) async fn attempt(&mut self) -> Result<Outcome, CallError> {
        let hold = self.hold.clone();
        let mut turn = hold.turn.lock().await;
        if let Some(ended) = turn.ended {
            // Another lease of this hold, given back at the same time, has found it out for all.
            self.done = true;
            return Ok(ended);
        }
        let count = hold.leases();
        let was_told = turn.told_to_free;
        turn.told_to_free |= count == 0;
        let told = tell(&hold, count, was_told).await;
        if let Err(CallError::Unreachable { .. }) = told {
            turn.told_to_free = was_told;
        }
        // What cannot be repeated with success is over as well: the lock ends with its lease time.
        self.done = !told.as_ref().is_err_and(CallError::is_retryable);
        let outcome = told?;
        // Told to leave something behind, a multi lock that lost one of its names still holds the others.
        if count == 0 {
            turn.ended = Some(outcome);
        }
        if outcome == Outcome::Missing {
            // For the other leases of this hold; says nothing if there are none.
            let reason = LostReason::NotOwner;
            hold.tell(LeaseState::Lost(reason));
            hold.client.watchdog.tell(&hold.holder, Event::End(reason));
        }
        Ok(outcome)
    }
}

/// Tells Redis the count that is left. With nothing left the lock goes to the next waiter of this process, or is free for all.
async fn tell(hold: &Arc<Hold>, count: u32, was_told: bool) -> Result<Outcome, CallError> {
    let connection = &hold.client.connection;
    if count == 0 && hold.is_in_doubt() {
        let call = WITHDRAW.call(
            [&tombstone(hold.mode.name(), &hold.holder)],
            [Value::Number(lease_millis(TOMBSTONE))],
        );
        match connection.run(&call, None).await {
            // Who may not leave one gives back without.
            Ok(_) | Err(CallError::Denied { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut was_told = was_told;
    let queues = &hold.client.queues;
    let _giving_back = match count {
        // What was tried once without an answer is not varied, and who was granted nothing has nothing to pass on.
        0 if was_told || hold.is_open() => queues.release_for_all(hold),
        0 => match queues.release_begins(hold) {
            Way::ForAll(giving_back) => giving_back,
            Way::HandOver(next) => match hand_over(hold, &next).await {
                Ok(Some(HandedOver { grant, sent })) => {
                    if let Err(unreceived) = next.grant(grant, sent) {
                        drop(Release::new(unreceived));
                    }
                    return Ok(Outcome::Left(0));
                }
                Ok(None) => Some(queues.for_all(next)),
                Err(error) if error.is_retryable() => return Err(error),
                // The script may have ended in the middle.
                Err(_) => {
                    was_told = true;
                    Some(queues.for_all(next))
                }
            },
        },
        _ => None,
    };
    let call = hold.mode.release(&hold.holder, count);
    let answer = connection.run(&call, None).await?;
    let given = mode::given(call.text.name, answer)?;
    if let Given::Left { count: 0, heard } = given {
        hold.let_others_know(heard);
    }
    Ok(match given {
        Given::Left { count, .. } => Outcome::Left(count),
        Given::Missing if was_told => Outcome::MissingAfterRepeat,
        Given::Missing => Outcome::Missing,
    })
}

/// A hold that was passed on by a request sent then.
struct HandedOver {
    grant: Grant,
    sent: Moment,
}

/// Passes the lock on to a waiter of this process; `None` if that is not possible, and nothing was changed.
async fn hand_over(hold: &Hold, next: &Next) -> Result<Option<HandedOver>, CallError> {
    let to = next.hold();
    // Its own operations come after this one.
    let turn = to.turn.lock().await;
    let call = to.mode.hand_over(&hold.holder, &to.holder, next.lease());
    let Some(call) = call.filter(|_| turn.ended.is_none() && !next.has_left()) else {
        return Ok(None);
    };
    let sent = clock::now();
    let answer = hold.client.connection.run(&call, None).await?;
    Ok(match mode::attempt(call.text.name, answer)? {
        Attempt::Granted(grant) => Some(HandedOver { grant, sent }),
        _ => None,
    })
}

impl Drop for Release {
    fn drop(&mut self) {
        if !self.done {
            let release = Release {
                hold: self.hold.clone(),
                done: true,
            };
            self.hold.client.releases.push(release);
        }
    }
}

/// The queue of releases that nobody waits for.
#[derive(Debug)]
pub(crate) struct Releases {
    queue: mpsc::UnboundedSender<Release>,
    pending: watch::Sender<usize>,
}

impl Releases {
    /// The queue and the work behind it, which runs on the watchdog's runtime.
    pub(crate) fn new() -> (Self, impl Future<Output = ()>) {
        let (queue, releases) = mpsc::unbounded_channel();
        let pending = watch::Sender::new(0);
        (
            Releases {
                queue,
                pending: pending.clone(),
            },
            work(releases, pending),
        )
    }

    fn push(&self, release: Release) {
        self.pending.send_modify(|pending| *pending += 1);
        if self.queue.send(release).is_err() {
            // The worker ends with the client only, and the release holds the client.
            self.pending.send_modify(|pending| *pending -= 1);
        }
    }

    /// How many releases have no answer yet.
    pub(crate) fn pending(&self) -> watch::Receiver<usize> {
        self.pending.subscribe()
    }
}

async fn work(mut releases: mpsc::UnboundedReceiver<Release>, pending: watch::Sender<usize>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(mut release) = releases.recv().await {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let pending = pending.clone();
        tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            // By then the lock has ended by itself, and a Redis that was silent for so long has other troubles.
            let end = clock::now().plus(release.hold.longest_lease()).plus(AFTER_THE_LEASE);
            while release.attempt().await.is_err_and(|error| error.is_retryable()) && clock::now() < end {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            release.done = true;
            drop((release, place));
            pending.send_modify(|pending| *pending -= 1);
        });
    }
}

/// Longer than a request can be on its way once the server runs.
const TOMBSTONE: Duration = Duration::from_secs(60);
/// How many releases are under way at once: enough to keep a link busy, few enough not to flood a Redis that comes back.
const AT_ONCE: usize = 64;
/// Between tries while Redis does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How much longer than the lease a release is repeated.
const AFTER_THE_LEASE: Duration = Duration::from_secs(60);
