//! What a client tells an observer: each renewal, and each change of a lease.

use std::time::Duration;

use crate::clock::Moment;
use crate::keys::LockName;
use crate::lease::{FailureCause, LostReason};
use crate::owner::HolderId;

/// Hears what happens to the leases of a client.
///
/// It is called on the watchdog's thread: what takes long delays renewals. A panic in it is caught and logged.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, event: &Event);
}

/// Something that happened to a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The lock's name.
    pub name: LockName,
    /// Redis' name for the hold.
    pub holder: HolderId,
    /// When it was known.
    pub at: Moment,
    /// What it was.
    pub kind: EventKind,
}

/// What happened to a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// Redis renewed the lock for a request that left then.
    Renewed {
        /// Taken before the request was handed to the socket.
        sent: Moment,
    },
    /// That renewal came late: of the time between when it was due and when the lease stops being trusted, more than half was
    /// gone. The server, the way to it or this machine is slow; nothing is lost.
    RenewedLate {
        /// How long the lease would have been trusted without it.
        left: Duration,
    },
    /// An attempt to renew had no result.
    RenewalFailed {
        /// Taken before the request was handed to the socket.
        sent: Moment,
        /// Why.
        cause: FailureCause,
    },
    /// The first of a row of failures: the lock may be lost soon.
    AtRisk {
        /// Why.
        cause: FailureCause,
    },
    /// A renewal succeeded after a failure.
    Recovered,
    /// The lease can no longer be trusted.
    Lost {
        /// Why.
        reason: LostReason,
    },
}
