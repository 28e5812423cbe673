//! The fenced lock: a reentrant lock whose acquires are numbered, so that the guarded resource can refuse a stale holder.

use std::time::Duration;

use crate::keys::{LockName, fencing_token};
use crate::kind::LockKind;
use crate::mode::{Ask, Mode, Reentrant, Wake};
use crate::options::lease_millis;
use crate::owner::HolderId;
use crate::script::{Call, FENCED_ACQUIRE, FENCED_HAND_OVER, Value};

/// The keys of one fenced lock.
#[derive(Clone, Debug)]
pub struct Fenced {
    lock: Reentrant,
    token: Vec<u8>,
}

impl Fenced {
    pub(crate) fn new(name: LockName) -> Self {
        Fenced {
            token: fencing_token(&name),
            lock: Reentrant::new(name),
        }
    }
}

impl Mode for Fenced {
    fn kind(&self) -> LockKind {
        LockKind::Fenced
    }

    fn name(&self) -> &LockName {
        self.lock.name()
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        FENCED_ACQUIRE.call(
            [self.name().key(), &self.token],
            [
                Value::Bytes(ask.holder.as_bytes()),
                Value::Number(ask.count.into()),
                Value::Number(lease_millis(ask.lease)),
            ],
        )
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        self.lock.release(holder, count)
    }

    fn hand_over(&self, from: &HolderId, to: &HolderId, lease: Duration) -> Option<Call> {
        let args = [
            Value::Bytes(from.as_bytes()),
            Value::Bytes(to.as_bytes()),
            Value::Number(lease_millis(lease)),
        ];
        Some(FENCED_HAND_OVER.call([self.name().key(), &self.token], args))
    }

    fn wake(&self, holder: &HolderId, busy: usize) -> Wake {
        self.lock.wake(holder, busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::HolderIds;

    #[test]
    fn acquire_brings_the_counter_and_release_leaves_it() {
        let lock = Fenced::new("n".into());
        let holder = HolderIds::new().next();
        let id = holder.to_string();
        let ask = Ask {
            holder: &holder,
            count: 1,
            beside: None,
            may_queue: false,
            lease: Duration::from_secs(1),
        };
        assert_eq!(
            lock.acquire(&ask).words(),
            ["2", "n", "redisson_lock_token:{n}", &id, "1", "1000"]
        );
        assert_eq!(lock.release(&holder, 0).words()[..2], ["1", "n"]);
    }
}
