//! The reentrant lock: a hash with one field, the holder id, whose value is the hold count.

use std::time::Duration;

use crate::keys::{Channel, LockName, wake_channel};
use crate::kind::LockKind;
use crate::mode::{Ask, Mode, Wake};
use crate::options::lease_millis;
use crate::owner::HolderId;
use crate::script::{Call, HAND_OVER, REENTRANT_ACQUIRE, REENTRANT_RELEASE, Value};

/// The keys of one reentrant lock.
#[derive(Clone, Debug)]
pub struct Reentrant {
    name: LockName,
    channel: Channel,
}

impl Reentrant {
    pub(crate) fn new(name: LockName) -> Self {
        Reentrant {
            channel: wake_channel(&name),
            name,
        }
    }
}

impl Mode for Reentrant {
    fn kind(&self) -> LockKind {
        LockKind::Reentrant
    }

    fn name(&self) -> &LockName {
        &self.name
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        REENTRANT_ACQUIRE.call(
            [self.name.key()],
            [
                Value::Bytes(ask.holder.as_bytes()),
                Value::Number(ask.count.into()),
                Value::Number(lease_millis(ask.lease)),
            ],
        )
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        REENTRANT_RELEASE.call(
            [self.name.key()],
            [
                Value::Bytes(holder.as_bytes()),
                Value::Number(count.into()),
                Value::Bytes(self.channel.as_bytes()),
            ],
        )
    }

    fn hand_over(&self, from: &HolderId, to: &HolderId, lease: Duration) -> Option<Call> {
        let args = [
            Value::Bytes(from.as_bytes()),
            Value::Bytes(to.as_bytes()),
            Value::Number(lease_millis(lease)),
        ];
        Some(HAND_OVER.call([self.name.key()], args))
    }

    fn wake(&self, _holder: &HolderId, _busy: usize) -> Wake {
        Wake::Channel(self.channel.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::HolderIds;

    #[test]
    fn acquire_and_release_name_the_holder_and_the_count_to_leave_behind() {
        let lock = Reentrant::new("order:7".into());
        let holder = HolderIds::new().next();
        let id = holder.to_string();
        let ask = Ask {
            holder: &holder,
            count: 2,
            beside: None,
            may_queue: false,
            lease: Duration::from_micros(1_500),
        };
        assert_eq!(lock.acquire(&ask).words(), ["1", "order:7", &id, "2", "2"]);
        assert_eq!(
            lock.release(&holder, 0).words(),
            ["1", "order:7", &id, "0", "redisson_lock__channel:{order:7}"]
        );
    }
}
