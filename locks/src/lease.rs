//! A lease: proof of holding, and all that its holder can ask of it.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;

use crate::acquire;
use crate::clock::{self, Moment};
use crate::error::{CallError, DowngradeError, ExtendError, Lost, ReleaseError};
use crate::hold::Hold;
use crate::keys::LockName;
use crate::lock::Acquire;
use crate::mode::nonsense;
use crate::options::{Terms, whole_millis};
use crate::owner::{HolderId, Owner};
use crate::release::{Outcome, Release};
use crate::renewal::{Answer, Event};
use crate::watchdog;

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
    /// The lock was given back.
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
/// A process that is frozen, or a Redis that loses its data, can still lead to two holders at once: what must not happen twice
/// has to be guarded where it happens.
#[must_use = "a lease that is dropped gives the lock back at once"]
pub struct Lease {
    hold: Arc<Hold>,
    renewed: bool,
    attempts: u32,
    given_back: bool,
}

impl Lease {
    pub(crate) fn new(hold: Arc<Hold>, renewed: bool, attempts: u32) -> Self {
        Lease {
            hold,
            renewed,
            attempts,
            given_back: false,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.hold.mode.name()
    }

    /// Redis' name for this hold.
    pub fn holder(&self) -> &HolderId {
        &self.hold.holder
    }

    /// Who holds: pass it to another acquire of the same lock to re-enter.
    pub fn owner(&self) -> Owner {
        self.hold.owner().clone()
    }

    /// Acquires the same lock once more for the same owner.
    pub fn reenter(&self) -> Acquire {
        Acquire::new(self.hold.client.clone(), self.hold.mode.clone()).owner(self.hold.owner())
    }

    /// How many leases of this hold are alive, re-entries under way included.
    pub fn hold_count(&self) -> u32 {
        self.hold.leases()
    }

    /// How often Redis was asked until this lease was granted.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The number of this hold, larger than that of every hold of this name before: pass it to what the lock guards, and let
    /// that refuse smaller ones. Only the `fenced` kind has one; it stays the same through re-entry.
    pub fn fencing_token(&self) -> Option<u64> {
        self.hold.fencing_token()
    }

    /// Whether the lease can be trusted: read from the clock and one number, with no round trip.
    ///
    /// Ask it right before each step that must not happen twice. It is right even when the signal has not arrived yet: after
    /// the process was frozen, or while its runtime is blocked.
    pub fn is_valid(&self) -> bool {
        clock::now() < self.hold.trusted_until()
    }

    /// How long the lease can still be trusted if no further renewal succeeds. Counted from before the last successful
    /// request left, less the policy's margin; zero when it is not valid.
    pub fn remaining(&self) -> Duration {
        self.hold.trusted_until().since(clock::now())
    }

    /// The state as it changes.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.hold.watch()
    }

    /// Resolves when the lease can no longer be trusted. Never resolves if it is released first.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let mut states = self.hold.watch();
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
        let mut lost = pin!(self.lost());
        let mut work = pin!(work);
        let result = poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(reason));
            }
            // The clock knows before the signal does.
            if self.hold.is_told && !self.is_valid() {
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
        let hold = &self.hold;
        let timings = hold.timings.with_lease(whole_millis(time)?)?;
        let name = || self.name().to_string();
        let lost = |reason| ExtendError::Lost { name: name(), reason };
        let turn = hold.turn.lock().await;
        if let Some(reason) = hold.lost_reason() {
            return Err(lost(reason));
        }
        if turn.ended.is_some() {
            return Err(lost(LostReason::NotOwner));
        }
        let sent = clock::now();
        let lease = hold.within_limit(timings.lease, sent);
        hold.outlasts(lease);
        let named = hold.mode.renewal(&hold.holder, hold.leases());
        let call = watchdog::renewal(named.iter(), lease);
        let result = hold.client.connection.run(&call, None).await;
        let answer = result.and_then(|reply| {
            let unreadable = nonsense(call.text.name, &reply);
            let answers = watchdog::answers(reply, std::iter::once(named.len())).unwrap_or_default();
            answers.into_iter().next().ok_or(unreadable)
        });
        let gone = |reason| {
            hold.tell(LeaseState::Lost(reason));
            hold.client.watchdog.tell(&hold.holder, Event::End(reason));
            Err(lost(reason))
        };
        match answer {
            Ok(Answer::Yes) => {
                if hold.is_told && !self.is_valid() {
                    return Err(lost(hold.lost_reason().unwrap_or(LostReason::DeadlinePassed)));
                }
                let until = sent.plus(timings.lease).minus(timings.margin);
                hold.trust(until.min(hold.trusted_at_most()));
                hold.client
                    .watchdog
                    .tell(&hold.holder, Event::Extended { sent, timings });
                Ok(())
            }
            Ok(Answer::No) => gone(LostReason::NotOwner),
            Ok(Answer::Clobbered) => gone(LostReason::KeyClobbered),
            Ok(Answer::Failed(_)) => Err(ExtendError::Call {
                name: name(),
                source: CallError::denied(call.text.name),
            }),
            Err(source) => Err(ExtendError::Call { name: name(), source }),
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
        let hold = self.hold.clone();
        let name = || hold.mode.name().to_string();
        let lost = |reason| DowngradeError::Lost { name: name(), reason };
        let Some(read) = hold.mode.downgraded() else {
            return Err(DowngradeError::NotAWriteLock { lease: Box::new(self) });
        };
        if let Some(reason) = hold.lost_reason() {
            return Err(lost(reason));
        }
        let acquired = match self.terms_of_the_rest() {
            Ok(terms) => acquire::try_acquire_on(hold.client.clone(), read, terms).await,
            Err(refusal) => Err(refusal.into()),
        };
        match acquired {
            Ok(Some(read)) => match self.release().await {
                Err(ReleaseError::Lost { reason, .. }) => Err(lost(reason)),
                // What is not confirmed goes on in the background.
                Ok(_) | Err(_) => Ok(read),
            },
            // Somebody else has the lock, so this one has lost it.
            Ok(None) => Err(lost(LostReason::NotOwner)),
            Err(source) => Err(DowngradeError::Acquire {
                lease: Box::new(self),
                source,
            }),
        }
    }

    /// The terms of an acquire that lasts as long as this lease would.
    fn terms_of_the_rest(&self) -> Result<Terms, crate::error::InvalidTimes> {
        let (hold, now) = (&self.hold, clock::now());
        let lease = match self.renewed {
            true => hold.within_limit(hold.timings.lease, now),
            false => self.remaining(),
        };
        let ends = hold.ends();
        Ok(Terms {
            wait_limit: None,
            timings: hold.timings.with_lease(whole_millis(lease)?)?,
            renewed: self.renewed,
            max_hold: (ends != Moment::NEVER).then(|| ends.since(now)),
            owner: Some(self.owner()),
            reentry: true,
            queue_position: None,
        })
    }

    /// Gives the lock back and tells what came of it.
    ///
    /// # Errors
    /// [`ReleaseError::Lost`] if the lease was lost before, [`ReleaseError::Unanswered`] if Redis does not answer within
    /// two command timeouts (the release then goes on in the background), [`ReleaseError::Refused`] if Redis will not do it.
    ///
    /// # Cancel safety
    /// Renewal has ended and the lock is given back in the background.
    pub async fn release(mut self) -> Result<Released, ReleaseError> {
        let lost = self.hold.lost_reason();
        let trusted_until = self.hold.trusted_until();
        let mut release = self.give_back();
        let name = || self.name().to_string();
        if let Some(reason) = lost {
            return Err(ReleaseError::Lost { name: name(), reason });
        }
        let first = release.attempt().await;
        let outcome_unknown = first.as_ref().is_err_and(CallError::outcome_unknown);
        let result = if outcome_unknown {
            release.attempt().await
        } else {
            first
        };
        match result {
            Ok(Outcome::Left(0)) => Ok(Released::Fully),
            Ok(Outcome::Left(left)) => Ok(Released::StillHeld(left)),
            // Told before without an answer: until the deadline nobody but that send can have released it.
            Ok(Outcome::MissingAfterRepeat) if clock::now() < trusted_until => Ok(Released::Fully),
            Ok(Outcome::MissingAfterRepeat) => Ok(Released::Unconfirmed),
            Ok(Outcome::Missing) => Err(ReleaseError::Lost {
                name: name(),
                reason: LostReason::NotOwner,
            }),
            Err(source) if source.is_retryable() => Err(ReleaseError::Unanswered {
                name: name(),
                outcome_unknown,
                source,
            }),
            Err(source) => Err(ReleaseError::Refused { name: name(), source }),
        }
    }

    /// Ends this lease here and leaves the rest to the [`Release`], which goes on in the background if it is dropped.
    fn give_back(&mut self) -> Release {
        self.given_back = true;
        self.hold.leave(self.renewed);
        Release::new(self.hold.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.given_back {
            drop(self.give_back());
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("holder", self.holder())
            .field("state", &self.hold.state())
            .finish()
    }
}
