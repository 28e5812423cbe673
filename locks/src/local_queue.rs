//! The waiters of this process: a queue a lock name, first come first served. Only the one in front asks Redis.
//!
//! A process that gives a lock back while others wait for it holds its own next attempt back a moment: its waiters are nearer than
//! a message, and would keep everybody else out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::clock::{self, Moment};
use crate::error::CallError;
use crate::keys::LockName;
use crate::mode::Part;
use crate::owner::lock;

/// The queues of one client.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    lines: Mutex<HashMap<Place, (usize, Arc<Line>)>>,
    /// Until when attempts are held back.
    held_back: Mutex<HashMap<Place, Moment>>,
}

/// What one stands in a queue for.
type Place = (LockName, Part);

#[derive(Debug)]
struct Line {
    /// One permit: whoever has it is in front. Tokio's semaphore is fair and forgets waiters that leave.
    front: Semaphore,
    asking: Mutex<Asking>,
    /// How many releases of this process are on their way.
    giving_back: AtomicUsize,
    given_back: Notify,
}

/// A release of this process on its way. The front waits for its end, which tells whether others wait for the lock too: the
/// message of the release can be quicker than its answer.
#[derive(Debug)]
pub(crate) struct GivingBack(Arc<Line>);

impl Drop for GivingBack {
    fn drop(&mut self) {
        if self.0.giving_back.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.given_back.notify_waiters();
        }
    }
}

/// How the front's asking goes.
#[derive(Debug, Default)]
struct Asking {
    /// Since when its attempt has had no answer.
    since: Option<Moment>,
    trouble: Option<Trouble>,
}

/// Why the front gets no answer, so that those behind it know too.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) since: Moment,
    pub(crate) error: CallError,
}

impl LocalQueues {
    /// Takes a place in the queue of this name.
    pub(crate) fn enter(&self, name: &LockName, part: Part) -> Queued<'_> {
        let mut lines = lock(&self.lines);
        let place = (name.clone(), part);
        let (places, line) = lines.entry(place.clone()).or_insert_with(|| {
            let line = Line {
                front: Semaphore::new(1),
                asking: Mutex::default(),
                giving_back: AtomicUsize::new(0),
                given_back: Notify::new(),
            };
            (0, Arc::new(line))
        });
        *places += 1;
        Queued {
            line: line.clone(),
            queues: self,
            place,
        }
    }

    /// A release is about to be sent; `None` if nobody of this process waits.
    pub(crate) fn giving_back(&self, name: &LockName, part: Part) -> Option<GivingBack> {
        let lines = lock(&self.lines);
        let (_, line) = lines.get(&(name.clone(), part))?;
        line.giving_back.fetch_add(1, Ordering::AcqRel);
        Some(GivingBack(line.clone()))
    }

    /// Others wait for this lock, which was just given back: let one of them come first.
    pub(crate) fn hold_back(&self, name: &LockName, part: Part) {
        let now = clock::now();
        let mut held_back = lock(&self.held_back);
        if held_back.len() >= MOST_HELD_BACK {
            held_back.retain(|_, until| *until > now);
        }
        held_back.insert((name.clone(), part), now.plus(HOLD_BACK));
    }

    /// How many names have waiters.
    pub(crate) fn len(&self) -> usize {
        lock(&self.lines).len()
    }
}

/// A place in a queue. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Queued<'a> {
    line: Arc<Line>,
    queues: &'a LocalQueues,
    place: Place,
}

impl Queued<'_> {
    /// Waits to be in front, and is it until the permit is dropped.
    pub(crate) async fn front(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.line.front.acquire().await.ok()
    }

    /// Waits out a moment that belongs to others.
    pub(crate) async fn let_others_come_first(&self) {
        loop {
            let given_back = self.line.given_back.notified();
            if self.line.giving_back.load(Ordering::Acquire) == 0 {
                break;
            }
            given_back.await;
        }
        let until = lock(&self.queues.held_back).remove(&self.place);
        if let Some(until) = until {
            tokio::time::sleep(until.since(clock::now())).await;
        }
    }

    /// Why the front gets no answer at present, if it gets none.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let asking = lock(&self.line.asking);
        let silence = asking
            .since
            .filter(|since| clock::now().since(*since) > LONG_FOR_AN_ANSWER);
        asking.trouble.clone().or(silence.map(|since| Trouble {
            since,
            error: CallError::Unanswered {
                script: "acquire",
                source: None,
            },
        }))
    }

    /// Told by the front: an attempt of it is about to be sent.
    pub(crate) fn asking(&self) {
        lock(&self.line.asking).since = Some(clock::now());
    }

    /// Told by the front: what its last attempt ended with, `None` if Redis has answered.
    pub(crate) fn asked(&self, trouble: Option<Trouble>) {
        *lock(&self.line.asking) = Asking { since: None, trouble };
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.queues.lines);
        if let Some((places, _)) = lines.get_mut(&self.place) {
            *places -= 1;
            if *places == 0 {
                lines.remove(&self.place);
            }
        }
    }
}

/// Longer than a message takes to reach a waiter and its attempt to come back; tokio's timer makes it about 2 ms.
const HOLD_BACK: Duration = Duration::from_millis(1);
/// A healthy Redis answers in a few milliseconds; after this long those behind the front may call it silent.
const LONG_FOR_AN_ANSWER: Duration = Duration::from_millis(100);
/// When so many are noted, those that are over are forgotten.
const MOST_HELD_BACK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiters_come_to_the_front_in_order_and_those_that_left_cost_no_turn() {
        let queues = LocalQueues::default();
        let name = LockName::from("n");
        let (first, second, third) = (
            queues.enter(&name, Part::Whole),
            queues.enter(&name, Part::Whole),
            queues.enter(&name, Part::Whole),
        );
        let front = first.front().await.unwrap();
        let mut second_front = Box::pin(second.front());
        let mut third_front = Box::pin(third.front());
        assert!(futures_poll(&mut second_front).is_none() && futures_poll(&mut third_front).is_none());
        drop(second_front);
        drop(front);
        assert!(futures_poll(&mut third_front).is_some());
    }

    #[tokio::test]
    async fn a_queue_that_nobody_stands_in_is_forgotten() {
        let queues = LocalQueues::default();
        let place = queues.enter(&"n".into(), Part::Whole);
        assert_eq!(queues.len(), 1);
        drop(place);
        assert_eq!(queues.len(), 0);
    }

    fn futures_poll<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
