//! Why a lock was not acquired.

use std::time::Duration;

use super::{CallError, InvalidTimes, Lost};
use crate::lease::LostReason;

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The lock was busy until the wait limit. Nothing is held and nothing is left in Redis.
    #[error("{name} was busy for all of the wait limit ({waited:?})")]
    WaitLimit {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Redis could not be reached, gave no answer or refused for the time being, to the end of the wait limit (without a limit:
    /// for one watchdog time). If an attempt was sent, what it may have taken is given back in the background.
    #[error("{name} could not be acquired: Redis was not to be had for {waited:?}")]
    Unavailable {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
        /// Whether an attempt was sent that Redis may have granted, or may yet.
        outcome_unknown: bool,
        /// What the last attempt ended with.
        #[source]
        source: CallError,
    },
    /// Redis answered that it will not do it: the user may not, or the key holds something that is no such lock.
    /// Nothing is held and nothing was changed.
    #[error("{name} could not be acquired")]
    Refused {
        /// The lock's name.
        name: String,
        /// What Redis said.
        #[source]
        source: CallError,
    },
    /// The key is a hash without a time to live, so no lock of ours or of Redisson's. It was left as it is.
    #[error("{name} is a hash without a time to live, so no lock: look at it and delete it by hand")]
    NoTimeToLive {
        /// The lock's name.
        name: String,
    },
    /// The answers of Redis took longer than the lease can be trusted. What they granted is given back in the background:
    /// ask for a longer lease time.
    #[error("{name} was granted too late to be of use: the answer took {took:?}, longer than its lease can be trusted")]
    TooLate {
        /// The lock's name.
        name: String,
        /// How long the last answer took.
        took: Duration,
    },
    /// The owner holds the read lock and asks for the write lock: it would wait for itself. Nothing was sent. Release the read
    /// lock first, or acquire the write lock and the read lock beside it.
    #[error("{name} is held for reading by the same owner, which would wait for itself; release the read lock first")]
    WouldDeadlock {
        /// The lock's name.
        name: String,
    },
    /// The owner holds the lock already, and [`no_reentry`](crate::AcquireOptions::no_reentry) was asked for. Nothing was sent.
    #[error("{name} is held by the same owner already, and re-entry was ruled out")]
    AlreadyHeld {
        /// The lock's name.
        name: String,
    },
    /// No majority of the masters of a quorum lock answered by the end of the wait. What a minority had granted was given back.
    #[error(
        "{name} was not to be had on {needed} masters within {waited:?}: {}",
        reasons(masters)
    )]
    NoQuorum {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
        /// How many masters have to grant it.
        needed: usize,
        /// Whether an attempt was sent that a master may have granted, or may yet. It is given back in the background.
        outcome_unknown: bool,
        /// Why each master did not grant it in the last round; `None` if it did.
        masters: Vec<Option<String>>,
    },
    /// A re-entry of a hold that has ended. Nothing was created: release what is left of it and acquire anew.
    #[error("{name} cannot be re-entered: its hold is lost ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// The lock's name is empty. Nothing was sent.
    #[error("a lock needs a name")]
    EmptyName,
    /// Times that make no sense, alone or together. Nothing was sent.
    #[error(transparent)]
    Times(#[from] InvalidTimes),
    /// The client was shut down. Nothing was sent.
    #[error("{name} could not be acquired: the client was shut down")]
    Closed {
        /// The lock's name.
        name: String,
    },
}

/// Why each master did not do what was asked.
pub(super) fn reasons(masters: &[Option<String>]) -> String {
    let reason = |(index, reason): (usize, &Option<String>)| {
        format!("master {}: {}", index + 1, reason.as_deref().unwrap_or("granted"))
    };
    masters.iter().enumerate().map(reason).collect::<Vec<_>>().join("; ")
}

impl AcquireError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            AcquireError::WaitLimit { .. } | AcquireError::Unavailable { .. } | AcquireError::NoQuorum { .. }
        )
    }

    /// Whether an attempt was sent that Redis may have granted, or may yet. It is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            AcquireError::Unavailable {
                outcome_unknown: true,
                ..
            } | AcquireError::NoQuorum {
                outcome_unknown: true,
                ..
            }
        )
    }
}

/// Why work under a lock was not done, or not under the lock to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WithError {
    /// The lock was not acquired. The work was not begun.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the work ran, which was dropped; or before it was given back, when the work was done.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl WithError {
    /// Whether the same call may succeed later without anything being changed. Not after a loss: the work may be half done.
    pub fn is_retryable(&self) -> bool {
        matches!(self, WithError::Acquire(error) if error.is_retryable())
    }

    /// Whether an attempt was sent that Redis may have granted, or may yet. It is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, WithError::Acquire(error) if error.outcome_unknown())
    }
}
