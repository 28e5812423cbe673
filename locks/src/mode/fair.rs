//! The fair lock: the reentrant lock's hash, and beside it the queue of its waiters. Each waiter is woken on a channel of its own.
//!
//! A waiter listens before it queues, and its id carries the wait that its place in the queue is counted with: so a release can tell
//! a waiter of ours that is dead, and pass it over with the arithmetic that Redisson's waiters rely on.

use std::time::Duration;

use crate::keys::{LockName, fair_channel, fair_queue, fair_scores, fair_stem};
use crate::kind::LockKind;
use crate::mode::{Ask, Mode, Wake};
use crate::options::lease_millis;
use crate::owner::{HolderId, HolderIds};
use crate::script::{Call, FAIR_ACQUIRE, FAIR_RELEASE, Value};

/// The keys of one fair lock.
#[derive(Clone, Debug)]
pub struct Fair {
    name: LockName,
    queue: Vec<u8>,
    scores: Vec<u8>,
    /// What the channel of each waiter begins with.
    stem: Vec<u8>,
    wait_time: Duration,
}

impl Fair {
    pub(crate) fn new(name: LockName, wait_time: Duration) -> Self {
        Fair {
            queue: fair_queue(&name),
            scores: fair_scores(&name),
            stem: fair_stem(&name),
            name,
            wait_time,
        }
    }

    fn keys(&self) -> [&[u8]; 3] {
        [self.name.key(), &self.queue, &self.scores]
    }
}

impl Mode for Fair {
    fn kind(&self) -> LockKind {
        LockKind::Fair
    }

    fn name(&self) -> &LockName {
        &self.name
    }

    /// A waiter that leaves sooner needs its place no longer than that.
    fn holder(&self, ids: &HolderIds, wait_limit: Option<Duration>) -> HolderId {
        let limit = wait_limit.filter(|limit| !limit.is_zero());
        let wait = limit.map_or(self.wait_time, |limit| limit.min(self.wait_time));
        ids.next_with_wait(lease_millis(wait))
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        FAIR_ACQUIRE.call(
            self.keys(),
            [
                Value::Bytes(ask.holder.as_bytes()),
                Value::Number(ask.count.into()),
                Value::Number(lease_millis(ask.lease)),
                Value::Number(ask.may_queue.into()),
                Value::Bytes(&self.stem),
            ],
        )
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        FAIR_RELEASE.call(
            self.keys(),
            [
                Value::Bytes(holder.as_bytes()),
                Value::Number(count.into()),
                Value::Bytes(&self.stem),
            ],
        )
    }

    fn wake(&self, holder: &HolderId, _busy: usize) -> Wake {
        Wake::Channel(fair_channel(&self.stem, holder))
    }

    /// The queue in Redis has the order, over all processes.
    fn queues_locally(&self) -> bool {
        false
    }

    fn queues(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn acquire_and_release_name_queue_and_scores_and_what_channels_begin_with() {
        let lock = Fair::new("n".into(), MINUTE);
        let holder = lock.holder(&HolderIds::new(), None);
        let id = holder.to_string();
        let keys = ["3", "n", "redisson_lock_queue:{n}", "redisson_lock_timeout:{n}"];
        let stem = "redisson_lock__channel:{n}:";
        for (may_queue, flag) in [(false, "0"), (true, "1")] {
            let ask = Ask {
                holder: &holder,
                count: 1,
                lease: MINUTE,
                beside: None,
                may_queue,
            };
            assert_eq!(
                lock.acquire(&ask).words(),
                [&keys[..], &[&id, "1", "60000", flag, stem]].concat()
            );
        }
        assert_eq!(
            lock.release(&holder, 0).words(),
            [&keys[..], &[&id, "0", stem]].concat()
        );
        let Wake::Channel(channel) = lock.wake(&holder, 0) else {
            panic!("a channel");
        };
        assert_eq!(channel.as_bytes(), format!("{stem}{id}").as_bytes());
    }

    #[test]
    fn an_id_carries_the_wait_that_its_place_is_counted_with() {
        let (lock, ids) = (Fair::new("n".into(), MINUTE), HolderIds::new());
        let marker = |limit| {
            let id = lock.holder(&ids, limit).to_string();
            id.split(':').nth(1).unwrap().to_owned()
        };
        assert_eq!(marker(None), "g60000");
        assert_eq!(marker(Some(Duration::from_secs(2))), "g2000");
        assert_eq!(marker(Some(Duration::from_nanos(1))), "g1");
        assert_eq!(marker(Some(MINUTE * 5)), "g60000", "it asks again before that");
        assert_eq!(marker(Some(Duration::ZERO)), "g60000", "it never queues");
    }
}
