//! Why a lock was not taken to another process.

use std::time::Duration;

use super::acquire::reasons;
use super::{CallError, InvalidTimes};
use crate::lease::{Lease, LostReason};

/// Why a lease was not handed off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOffError {
    /// The owner has further leases of this hold, which would be left without the lock; or it has the other half of a read-write lock
    /// as well, beside which only the same owner may stand. Release them first. Nothing has changed.
    #[error("the owner of {} has other leases of it, and only the last one can be handed off", lease.name())]
    HeldAgain {
        /// The lease, as it was.
        lease: Box<Lease>,
    },
    /// The lease was lost before: there is nothing to hand off.
    #[error("{name} cannot be handed off: it is not held any more ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
}

impl HandOffError {
    /// Whether the same call may succeed later without anything being changed: when the other leases are gone.
    pub fn is_retryable(&self) -> bool {
        matches!(self, HandOffError::HeldAgain { .. })
    }

    /// Always `false`: what is handed off is known here.
    pub fn outcome_unknown(&self) -> bool {
        false
    }
}

/// Why a lock that was handed off was not adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// Redis does not know the hold: its lease time has passed, it was adopted already, it was taken away, or it is on another
    /// server. Nothing was changed.
    #[error("{name} cannot be adopted: the hold that was handed off is not there (any more)")]
    Gone {
        /// The lock's name.
        name: String,
    },
    /// The answer of Redis took longer than the lease can be trusted. What was adopted is given back in the background.
    #[error("{name} was adopted too late to be of use: the answer took {took:?}")]
    TooLate {
        /// The lock's name.
        name: String,
        /// How long the last answer took.
        took: Duration,
    },
    /// The call had no result. If Redis may have run it, what it adopted is given back in the background, and the next try finds the
    /// hold gone.
    #[error("{name} could not be adopted")]
    Call {
        /// The lock's name.
        name: String,
        /// Whether a request was sent that Redis may have run, or may yet.
        outcome_unknown: bool,
        /// What the last request ended with.
        #[source]
        source: CallError,
    },
    /// A quorum lock that could not be adopted on a majority of its masters. What was adopted is given back.
    #[error("{name} could not be adopted on {needed} masters: {}", reasons(masters))]
    NoQuorum {
        /// The lock's name.
        name: String,
        /// How many masters are a majority.
        needed: usize,
        /// Whether a request was sent that a master may have run, or may yet.
        outcome_unknown: bool,
        /// Why it was not adopted on each master; `None` if it was.
        masters: Vec<Option<String>>,
    },
    /// A quorum lock is adopted through a client of as many masters, given in the same order. Nothing was sent.
    #[error("{name} is held on {handed_off} masters, and this client has {here}")]
    OtherMasters {
        /// The lock's name.
        name: String,
        /// Over how many masters it was handed off.
        handed_off: usize,
        /// How many this client has.
        here: usize,
    },
    /// No lease was ever handed off that way. Nothing was sent.
    #[error("this describes no lock that was handed off")]
    Malformed,
    /// What is left of the lease is less than the margin of this client's policy, or its times make no sense.
    #[error(transparent)]
    Times(#[from] InvalidTimes),
    /// The client was shut down. Nothing was sent.
    #[error("{name} could not be adopted: the client was shut down")]
    Closed {
        /// The lock's name.
        name: String,
    },
}

impl AdoptError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, AdoptError::Call { source, .. } if source.is_retryable())
    }

    /// Whether Redis may have given the hold to this process, or may yet. Then it is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            AdoptError::Call { outcome_unknown, .. } | AdoptError::NoQuorum { outcome_unknown, .. } => *outcome_unknown,
            _ => false,
        }
    }
}
