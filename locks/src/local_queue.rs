//! The waiters of this process: a queue a lock name, first come first served. Only the one in front asks Redis.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::Moment;
use crate::error::CallError;
use crate::keys::LockName;
use crate::mode::Part;
use crate::owner::lock;

/// The queues of one client.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    lines: Mutex<HashMap<Place, (usize, Arc<Line>)>>,
}

/// What one stands in a queue for.
type Place = (LockName, Part);

#[derive(Debug)]
struct Line {
    /// One permit: whoever has it is in front. Tokio's semaphore is fair and forgets waiters that leave.
    front: Semaphore,
    trouble: Mutex<Option<Trouble>>,
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
                trouble: Mutex::new(None),
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

    /// Why the front gets no answer at present.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        lock(&self.line.trouble).clone()
    }

    /// Told by the front: what its last attempt ended with, `None` if Redis has answered.
    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) {
        *lock(&self.line.trouble) = trouble;
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
