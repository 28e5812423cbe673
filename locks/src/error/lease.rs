//! What a lease could not do.

use super::{AcquireError, CallError, InvalidTimes};
use crate::lease::{Lease, LostReason};

/// Why a release could not be confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease was lost before: the lock may be another's, and was left alone.
    #[error("{name} was not held any more: {reason}")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// Redis could not be reached, gave no answer or refused for the time being. Renewal has ended, and the release is repeated
    /// in the background; at the latest the lock ends when its lease time has passed.
    #[error("the release of {name} is not confirmed; it goes on in the background")]
    Unanswered {
        /// The lock's name.
        name: String,
        /// Whether Redis was told and may have released the lock, or may yet.
        outcome_unknown: bool,
        /// What the last attempt ended with.
        #[source]
        source: CallError,
    },
    /// Redis answered that it will not do it. Renewal has ended, so the lock ends when its lease time has passed.
    #[error("{name} could not be released")]
    Refused {
        /// The lock's name.
        name: String,
        /// What Redis said.
        #[source]
        source: CallError,
    },
}

impl ReleaseError {
    /// Always `false`: what can be repeated is repeated in the background.
    pub fn is_retryable(&self) -> bool {
        false
    }

    /// Whether Redis may have released the lock, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            ReleaseError::Unanswered {
                outcome_unknown: true,
                ..
            }
        )
    }
}

/// Why a lease was not extended. What it had before is left as it is, unless it was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lease was lost before. Nothing was revived.
    #[error("{name} cannot be extended: it is not held any more ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// Times that make no sense. Nothing was sent.
    #[error(transparent)]
    Times(#[from] InvalidTimes),
    /// The call had no result; see the source for whether Redis may have run it. The lease is trusted as long as before.
    #[error("{name} could not be extended")]
    Call {
        /// The lock's name.
        name: String,
        /// What went wrong.
        #[source]
        source: CallError,
    },
}

impl ExtendError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ExtendError::Call { source, .. } if source.is_retryable())
    }

    /// Whether Redis may have extended the lock, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, ExtendError::Call { source, .. } if source.outcome_unknown())
    }
}

/// Why a write lock did not become a read lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DowngradeError {
    /// It is no write lock. Nothing was sent.
    #[error("{} is no write lock, so it cannot be downgraded", lease.name())]
    NotAWriteLock {
        /// The lease, as it was.
        lease: Box<Lease>,
    },
    /// The write lock was lost before. Nothing is held.
    #[error("{name} cannot be downgraded: it is not held any more ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// The read lock could not be acquired beside the write lock, which is held as before.
    #[error("{} could not be downgraded", lease.name())]
    Acquire {
        /// The lease of the write lock, as it was.
        lease: Box<Lease>,
        /// Why.
        #[source]
        source: AcquireError,
    },
}

impl DowngradeError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, DowngradeError::Acquire { source, .. } if source.is_retryable())
    }

    /// Whether an attempt was sent that Redis may have granted, or may yet. It is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, DowngradeError::Acquire { source, .. } if source.outcome_unknown())
    }
}

/// The lease was lost while the work ran: [`Lease::run`](crate::Lease::run) has dropped the work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} was lost while the work ran: {reason}")]
pub struct Lost {
    /// The lock's name.
    pub name: String,
    /// Why the hold ended.
    pub reason: LostReason,
}
