//! The spin lock: the reentrant lock for waiters that ask at intervals instead of subscribing. Its release is announced all the
//! same, since waiters of the reentrant kind may share the name.

use std::time::Duration;

use crate::keys::LockName;
use crate::kind::LockKind;
use crate::mode::{Ask, Mode, Reentrant, Wake};
use crate::owner::HolderId;
use crate::script::Call;

/// The keys of one spin lock.
#[derive(Clone, Debug)]
pub struct Spin {
    lock: Reentrant,
}

impl Spin {
    pub(crate) fn new(name: LockName) -> Self {
        Spin {
            lock: Reentrant::new(name),
        }
    }
}

impl Mode for Spin {
    fn kind(&self) -> LockKind {
        LockKind::Spin
    }

    fn name(&self) -> &LockName {
        self.lock.name()
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        self.lock.acquire(ask)
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        self.lock.release(holder, count)
    }

    fn hand_over(&self, from: &HolderId, to: &HolderId, lease: Duration) -> Option<Call> {
        self.lock.hand_over(from, to, lease)
    }

    fn wake(&self, _holder: &HolderId, _busy: usize) -> Wake {
        Wake::Poll
    }
}
