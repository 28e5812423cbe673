//! A lease: proof of holding, and all that its holder can ask of it.

mod single;

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;

pub(crate) use single::Single;

use crate::clock::Moment;
use crate::error::{DowngradeError, ExtendError, HandOffError, Lost, ReleaseError};
use crate::hand_off::HandedOff;
use crate::keys::LockName;
use crate::lock::Acquire;
use crate::owner::{HolderId, Owner};
use crate::quorum::Majority;
use crate::target::{Node, Target};

/// What a lease is worth at present.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// The lock is held.
    Held,
    /// A renewal failed. The lock is still held, but may be lost soon: take on no new work.
    AtRisk {
        /// When the renewal failed.
        since: Moment,
        /// Why.
        cause: FailureCause,
    },
    /// The lock can no longer be trusted, and never again through this lease.
    Lost(LostReason),
    /// The lock was given back, or handed off.
    Released,
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// Redis says that this hold is not there: it expired, was deleted or evicted, or the data was lost.
    #[error("Redis does not know this hold any more")]
    NotOwner,
    /// No renewal succeeded in time, or the lease time that was given is over.
    #[error("its deadline has passed")]
    DeadlinePassed,
    /// It was held for as long as its longest hold allows ([`max_hold`](crate::AcquireOptions::max_hold)).
    #[error("it was held for as long as it may be")]
    MaxHold,
    /// The renewal policy gave up.
    #[error("its renewal gave up")]
    GaveUp,
    /// The key holds something that is no lock.
    #[error("its key holds something that is no lock")]
    KeyClobbered,
    /// The client was shut down.
    #[error("the client was shut down")]
    ClientClosed,
}

/// Why an attempt to renew failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureCause {
    /// No answer in time, or the connection broke. Redis may have renewed it.
    Unanswered,
    /// No connection, so nothing was sent.
    Unreachable,
    /// Redis refused, with this error code.
    Refused(Box<str>),
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The lock is free.
    Fully,
    /// The owner still holds it that many times.
    StillHeld(u32),
    /// The lock is not held any more, but it cannot be told whether this release or the expiry came first: the first answer was
    /// lost and the deadline has passed.
    Unconfirmed,
}

/// Proof of holding a lock.
///
/// The lock is given back by [`release`](Self::release), or in the background when the lease is dropped. While it lives, the
/// watchdog renews it (unless a lease time was given) and tells [`lost`](Self::lost) when it can no longer be trusted.
///
/// A lease of a [`Quorum`](crate::Quorum) lock is the same over several masters: it is valid while the leases of a majority are.
///
/// A process that is frozen, or a Redis that loses its data, can still lead to two holders at once: what must not happen twice
/// has to be guarded where it happens.
#[must_use = "a lease that is dropped gives the lock back at once"]
pub struct Lease {
    grip: Grip,
}

/// Where it is held.
enum Grip {
    Single(Single),
    Majority(Majority),
}

impl From<Single> for Lease {
    fn from(single: Single) -> Self {
        Lease {
            grip: Grip::Single(single),
        }
    }
}

impl From<Majority> for Lease {
    fn from(majority: Majority) -> Self {
        Lease {
            grip: Grip::Majority(majority),
        }
    }
}

impl Lease {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        match &self.grip {
            Grip::Single(single) => single.name(),
            Grip::Majority(majority) => majority.name(),
        }
    }

    /// Redis' name for this hold; of a quorum lock the first of its names, since each master has one of its own.
    pub fn holder(&self) -> &HolderId {
        match &self.grip {
            Grip::Single(single) => &single.hold().holder,
            Grip::Majority(majority) => majority.holder(),
        }
    }

    /// Who holds: pass it to another acquire of the same lock to re-enter.
    pub fn owner(&self) -> Owner {
        match &self.grip {
            Grip::Single(single) => single.hold().owner().clone(),
            Grip::Majority(majority) => majority.owner().clone(),
        }
    }

    /// Acquires the same lock once more for the same owner.
    pub fn reenter(&self) -> Acquire {
        let target = match &self.grip {
            Grip::Single(single) => Target::One(Node::of(single.hold())),
            Grip::Majority(majority) => majority.target(),
        };
        Acquire::new(target).owner(&self.owner())
    }

    /// How many leases of this hold are alive, re-entries under way included.
    pub fn hold_count(&self) -> u32 {
        match &self.grip {
            Grip::Single(single) => single.hold().leases(),
            Grip::Majority(majority) => majority.hold_count(),
        }
    }

    /// On how many masters it is held at present: of a quorum lock, where it may be more or fewer than a majority; else 1, or 0
    /// when the lease is not valid.
    pub fn masters_held(&self) -> usize {
        match &self.grip {
            Grip::Single(single) => usize::from(single.is_valid()),
            Grip::Majority(majority) => majority.masters_held(),
        }
    }

    /// How often Redis was asked until this lease was granted; of a quorum lock, all masters together.
    pub fn attempts(&self) -> u32 {
        match &self.grip {
            Grip::Single(single) => single.attempts(),
            Grip::Majority(majority) => majority.attempts(),
        }
    }

    /// The number of this hold, larger than that of every hold of this name before: pass it to what the lock guards, and let
    /// that refuse smaller ones. Only the `fenced` kind has one; it stays the same through re-entry.
    pub fn fencing_token(&self) -> Option<u64> {
        match &self.grip {
            Grip::Single(single) => single.hold().fencing_token(),
            Grip::Majority(_) => None,
        }
    }

    /// Whether the lease can be trusted: read from the clock and one number, with no round trip.
    ///
    /// Ask it right before each step that must not happen twice. It is right even when the signal has not arrived yet: after
    /// the process was frozen, or while its runtime is blocked.
    pub fn is_valid(&self) -> bool {
        match &self.grip {
            Grip::Single(single) => single.is_valid(),
            Grip::Majority(majority) => majority.is_valid(),
        }
    }

    /// How long the lease can still be trusted if no further renewal succeeds. Counted from before the last successful
    /// request left, less the policy's margin; zero when it is not valid.
    pub fn remaining(&self) -> Duration {
        match &self.grip {
            Grip::Single(single) => single.remaining(),
            Grip::Majority(majority) => majority.remaining(),
        }
    }

    /// The state as it changes.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        match &self.grip {
            Grip::Single(single) => single.hold().watch(),
            Grip::Majority(majority) => majority.watch(),
        }
    }

    /// Resolves when the lease can no longer be trusted. Never resolves if it is released first.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let mut states = self.state();
        async move {
            loop {
                if let LeaseState::Lost(reason) = *states.borrow_and_update() {
                    return reason;
                }
                if states.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Runs the work for as long as the lease can be trusted; drops it at the moment when it cannot.
    ///
    /// # Errors
    /// [`Lost`]: the work was dropped before it was done.
    ///
    /// # Cancel safety
    /// The work is dropped; the lease stays.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Lost> {
        let is_told = match &self.grip {
            Grip::Single(single) => single.hold().is_told,
            Grip::Majority(majority) => majority.is_told(),
        };
        let mut lost = pin!(self.lost());
        let mut work = pin!(work);
        let result = poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(reason));
            }
            // The clock knows before the signal does.
            if is_told && !self.is_valid() {
                return Poll::Ready(Err(LostReason::DeadlinePassed));
            }
            work.as_mut().poll(context).map(Ok)
        });
        result.await.map_err(|reason| Lost {
            name: self.name().to_string(),
            reason,
        })
    }

    /// Does the work for as long as the lease can be trusted, then gives the lock back.
    pub(crate) async fn through<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Lost> {
        let done = self.run(work(&self)).await?;
        match self.release().await {
            Err(ReleaseError::Lost { name, reason }) => Err(Lost { name, reason }),
            // What is not confirmed goes on in the background; the work is done.
            Ok(_) | Err(_) => Ok(done),
        }
    }

    /// Lets Redis keep the lock for at least this long, counted from now. A lease that lasts longer already is left as it is: no
    /// extension adds to another, and none shortens anything.
    ///
    /// A renewed lease is renewed all the same; if its process dies, the lock ends when the extension does. A longest hold
    /// ([`max_hold`](crate::AcquireOptions::max_hold)) still ends when it would have.
    ///
    /// # Errors
    /// [`ExtendError::Lost`]: the hold is gone, and was not revived. [`ExtendError::Times`] if the policy's margin leaves nothing
    /// of the time, [`ExtendError::Call`] if Redis gave no answer or refused: the lease is trusted as long as before.
    ///
    /// # Cancel safety
    /// Redis may have extended the lock; the lease is trusted as long as before.
    pub async fn extend(&self, time: Duration) -> Result<(), ExtendError> {
        match &self.grip {
            Grip::Single(single) => single.hold().extend(time).await,
            Grip::Majority(majority) => majority.extend(time).await,
        }
    }

    /// Turns a write lock into a read lock without letting anybody in between: the read lock is acquired beside it, then the
    /// write lock is given back. The read lock has the same owner, is renewed if the write lock was, and else lasts as long.
    ///
    /// If the owner has further leases of the write lock, they keep it.
    ///
    /// # Errors
    /// [`DowngradeError`]; unless the lock was lost, it holds the write lock's lease.
    ///
    /// # Cancel safety
    /// Both locks are given back in the background.
    pub async fn downgrade(self) -> Result<Lease, DowngradeError> {
        match self.grip {
            Grip::Single(single) => single.downgrade().await.map(Lease::from),
            Grip::Majority(majority) => majority.downgrade().await,
        }
    }

    /// Ends the lease here without giving the lock back, for another process to go on with: what it needs for
    /// [`adopt`](crate::Locks::adopt) is returned. The fencing token stays the same.
    ///
    /// From here on nobody renews the lock: if it is not adopted, it ends with what is left of its lease.
    /// [`extend`](Self::extend) it first if the way is long. This process never gives it back.
    ///
    /// # Errors
    /// [`HandOffError::HeldAgain`] with the lease, if its owner has others of the same lock; [`HandOffError::Lost`].
    ///
    /// # Cancel safety
    /// The lock is given back in the background, as if the lease had been dropped.
    pub async fn hand_off(self) -> Result<HandedOff, HandOffError> {
        match self.grip {
            Grip::Single(single) => single.hand_off().await,
            Grip::Majority(majority) => majority.hand_off().await,
        }
    }

    /// Gives the lock back and tells what came of it.
    ///
    /// # Errors
    /// [`ReleaseError::Lost`] if the lease was lost before, [`ReleaseError::Unanswered`] if Redis does not answer within
    /// two command timeouts (the release then goes on in the background), [`ReleaseError::Refused`] if Redis will not do it.
    ///
    /// # Cancel safety
    /// Renewal has ended and the lock is given back in the background.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        match self.grip {
            Grip::Single(single) => single.release().await,
            Grip::Majority(majority) => majority.release().await,
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.grip {
            Grip::Single(single) => single.hold().state(),
            Grip::Majority(majority) => majority.state(),
        };
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("holder", self.holder())
            .field("state", &state)
            .finish()
    }
}
