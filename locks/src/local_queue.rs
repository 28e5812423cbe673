//! The waiters of this process: a queue a lock name, first come first served. Only the one in front asks Redis, and a release of
//! this process passes the lock straight on to the first of them.
//!
//! That cannot go on for ever: other processes hear of a release only when it is made for all. So after some hand-overs, or some
//! milliseconds of them, the lock is given back, and the own next attempt is held back a moment if others heard of it: the waiters
//! of this process are nearer than a message, and would keep everybody else out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::HashMap;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

use crate::clock::{self, Moment};
use crate::error::CallError;
use crate::hold::Hold;
use crate::keys::LockName;
use crate::mode::{Grant, Part};
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
    passing: Mutex<Passing>,
    /// A release of this process has begun or ended.
    changed: Notify,
}

/// How the lock goes from one holder of this process to the next.
#[derive(Debug, Default)]
struct Passing {
    /// Those in the queue, in the order in which they came; each may wish to be given the lock.
    wishes: BTreeMap<u64, Option<Wish>>,
    next_number: u64,
    /// The lock was last granted to one of this queue, and no release of it has begun.
    held_here: bool,
    /// How many releases of this process are on their way.
    giving_back: usize,
    /// How often it was passed on since it was last free for all, and when that began.
    in_a_row: u32,
    since: Option<Moment>,
}

/// A waiter that wishes to be given the lock.
#[derive(Debug)]
struct Wish {
    hold: Arc<Hold>,
    lease: Duration,
    answer: oneshot::Sender<(Grant, Moment)>,
}

/// How a release is to be made.
pub(crate) enum Way {
    /// By passing the lock on.
    HandOver(Next),
    /// For all.
    ForAll(Option<GivingBack>),
}

/// The waiter that a release passes the lock on to. Dropped without a grant, it tells the waiter to ask for itself.
pub(crate) struct Next {
    wish: Wish,
    line: Arc<Line>,
}

impl Next {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.wish.hold
    }

    pub(crate) fn lease(&self) -> Duration {
        self.wish.lease
    }

    /// Whether the waiter waits no more.
    pub(crate) fn has_left(&self) -> bool {
        self.wish.answer.is_closed()
    }

    /// Redis has granted the lock to it, for a request that left then. If it has left meanwhile, its hold comes back.
    pub(crate) fn grant(self, grant: Grant, sent: Moment) -> Result<(), Arc<Hold>> {
        let Next { wish, line, .. } = self;
        lock(&line.passing).held_here = true;
        wish.answer.send((grant, sent)).map_err(|_| wish.hold)
    }
}

/// A release of this process on its way. The front waits for its end, which tells whether others wait for the lock too: the
/// message of the release can be quicker than its answer.
#[derive(Debug)]
pub(crate) struct GivingBack(Arc<Line>);

impl Drop for GivingBack {
    fn drop(&mut self) {
        lock(&self.0.passing).giving_back -= 1;
        self.0.changed.notify_waiters();
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
                passing: Mutex::default(),
                changed: Notify::new(),
            };
            (0, Arc::new(line))
        });
        *places += 1;
        let line = line.clone();
        drop(lines);
        let mut passing = lock(&line.passing);
        passing.next_number += 1;
        let number = passing.next_number;
        passing.wishes.insert(number, None);
        drop(passing);
        Queued {
            line,
            queues: self,
            place,
            number,
        }
    }

    /// The last lease of this hold was given back: how Redis is to be told.
    pub(crate) fn release_begins(&self, hold: &Hold) -> Way {
        let Some(line) = self.line_of(hold) else {
            return Way::ForAll(None);
        };
        let next = lock(&line.passing).next(hold, clock::now());
        match next {
            Some(wish) => Way::HandOver(Next { wish, line }),
            None => Way::ForAll(Some(line.give_back())),
        }
    }

    /// The lock is given back for all, whoever wishes to be given it.
    pub(crate) fn release_for_all(&self, hold: &Hold) -> Option<GivingBack> {
        self.line_of(hold).map(Line::give_back)
    }

    /// The lock could not be passed on, so it is given back for all.
    pub(crate) fn for_all(&self, next: Next) -> GivingBack {
        next.line.give_back()
    }

    /// The queue for this lock, if this process has waiters and no queue in Redis has the say.
    fn line_of(&self, hold: &Hold) -> Option<Arc<Line>> {
        let mode = &hold.mode;
        let lines = lock(&self.lines);
        let (_, line) = lines.get(&(mode.name().clone(), mode.part()))?;
        (!mode.queues()).then(|| line.clone())
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
    number: u64,
}

impl Queued<'_> {
    /// Waits to be in front, and is it until the permit is dropped.
    pub(crate) async fn front(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.line.front.acquire().await.ok()
    }

    /// The same if nobody stands there and this process does not hold the lock, so that there is nothing to wait for.
    pub(crate) fn front_now(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.line.front.try_acquire().ok()?;
        (!lock(&self.line.passing).held_here).then_some(permit)
    }

    /// Whether this moment may belong to others, so that it has to be waited out.
    pub(crate) fn others_come_first(&self) -> bool {
        lock(&self.line.passing).giving_back > 0 || !lock(&self.queues.held_back).is_empty()
    }

    /// Waits out a moment that belongs to others.
    pub(crate) async fn let_others_come_first(&self) {
        self.line.until(|passing| passing.giving_back == 0).await;
        let until = lock(&self.queues.held_back).remove(&self.place);
        if let Some(until) = until {
            tokio::time::sleep(until.since(clock::now())).await;
        }
    }

    /// Waits while this process holds the lock, at most a moment: a short hold's release passes it on, and asking would be in vain.
    pub(crate) async fn while_held_here(&self, limit: Duration) {
        let given_up = self.line.until(|passing| !passing.held_here);
        let _ = tokio::time::timeout(limit.min(SHORT_HOLD), given_up).await;
    }

    /// The lock was granted to this one.
    pub(crate) fn granted(&self) {
        lock(&self.line.passing).held_here = true;
    }

    /// Wishes to be given the lock by a release of this process.
    pub(crate) fn wish(&self, hold: &Arc<Hold>, lease: Duration) -> Wishing<'_> {
        let (sender, answer) = oneshot::channel();
        let wish = Wish {
            hold: hold.clone(),
            lease,
            answer: sender,
        };
        lock(&self.line.passing).wishes.insert(self.number, Some(wish));
        Wishing {
            queued: self,
            answer,
            withdrawn: false,
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
        lock(&self.line.passing).wishes.remove(&self.number);
        let mut lines = lock(&self.queues.lines);
        if let Some((places, _)) = lines.get_mut(&self.place) {
            *places -= 1;
            if *places == 0 {
                lines.remove(&self.place);
            }
        }
    }
}

/// A wish to be given the lock, as its waiter sees it.
pub(crate) struct Wishing<'a> {
    queued: &'a Queued<'a>,
    answer: oneshot::Receiver<(Grant, Moment)>,
    withdrawn: bool,
}

impl Wishing<'_> {
    /// What a release has brought, and when its request left; `None` if it cannot be told whether the lock was passed on.
    pub(crate) async fn told(&mut self) -> Option<(Grant, Moment)> {
        (&mut self.answer).await.ok()
    }

    /// Takes the wish back; `false` if a release is fulfilling it, or has.
    pub(crate) fn withdraw(&mut self) -> bool {
        let mut passing = lock(&self.queued.line.passing);
        let wish = passing.wishes.get_mut(&self.queued.number);
        self.withdrawn |= wish.is_some_and(|wish| wish.take().is_some());
        self.withdrawn
    }
}

impl Line {
    /// A release for all begins.
    fn give_back(self: Arc<Self>) -> GivingBack {
        let mut passing = lock(&self.passing);
        passing.giving_back += 1;
        passing.held_here = false;
        (passing.in_a_row, passing.since) = (0, None);
        drop(passing);
        self.changed.notify_waiters();
        GivingBack(self)
    }

    async fn until(&self, is_so: impl Fn(&Passing) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so(&lock(&self.passing)) {
                return;
            }
            changed.await;
        }
    }
}

impl Passing {
    /// The first of the queue, if it wishes to be given a lock of this kind and it is its turn.
    fn next(&mut self, hold: &Hold, now: Moment) -> Option<Wish> {
        let is_due = self.in_a_row >= MOST_IN_A_ROW || self.since.is_some_and(|since| now.since(since) >= LONGEST_ROW);
        let mut first = self.wishes.first_entry()?;
        let wish = first
            .get_mut()
            .take_if(|wish| !is_due && wish.hold.mode.kind() == hold.mode.kind())?;
        self.in_a_row += 1;
        self.since.get_or_insert(now);
        Some(wish)
    }
}

/// After so many hand-overs in a row, or after this time of them, the lock is free for all.
const MOST_IN_A_ROW: u32 = 16;
const LONGEST_ROW: Duration = Duration::from_millis(5);
/// A hold that lasts longer is worth being asked for and listened for.
const SHORT_HOLD: Duration = Duration::from_millis(2);
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
