//! A lease on one master.

use std::sync::Arc;
use std::time::Duration;

use super::{LeaseState, LostReason, Released};
use crate::acquire;
use crate::clock::{self, Moment};
use crate::error::{CallError, DowngradeError, ExtendError, HandOffError, InvalidTimes, ReleaseError};
use crate::hand_off::HandedOff;
use crate::hold::{Hold, Turn};
use crate::keys::LockName;
use crate::mode::nonsense;
use crate::options::{Terms, whole_millis};
use crate::release::{Outcome, Release};
use crate::renewal::{Answer, Event};
use crate::renewal_batch;

/// A lease on one master: a share of a hold. Dropped, it is given back in the background.
pub(crate) struct Single {
    hold: Arc<Hold>,
    renewed: bool,
    attempts: u32,
    given_back: bool,
}

impl Single {
    pub(crate) fn new(hold: Arc<Hold>, renewed: bool, attempts: u32) -> Self {
        Single {
            hold,
            renewed,
            attempts,
            given_back: false,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn name(&self) -> &LockName {
        self.hold.mode.name()
    }

    /// How often Redis was asked until it was granted.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold.trusted_until().since(clock::now())
    }

    /// See `Lease::downgrade`.
    pub(crate) async fn downgrade(self) -> Result<Single, DowngradeError> {
        let hold = self.hold.clone();
        let name = || hold.mode.name().to_string();
        let lost = |reason| DowngradeError::Lost { name: name(), reason };
        let Some(read) = hold.mode.downgraded() else {
            return Err(DowngradeError::NotAWriteLock {
                lease: Box::new(self.into()),
            });
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
                lease: Box::new(self.into()),
                source,
            }),
        }
    }

    /// The terms of an acquire that lasts as long as this lease would.
    fn terms_of_the_rest(&self) -> Result<Terms, InvalidTimes> {
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
            owner: Some(hold.owner().clone()),
            reentry: true,
            queue_position: None,
        })
    }

    /// See `Lease::release`.
    pub(crate) async fn release(mut self) -> Result<Released, ReleaseError> {
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

    /// See `Lease::hand_off`.
    pub(crate) async fn hand_off(self) -> Result<HandedOff, HandOffError> {
        let hold = self.hold.clone();
        // Nobody enters again meanwhile.
        let mut turn = hold.turn.lock().await;
        if let Some(reason) = hold.lost_reason() {
            let name = self.name().to_string();
            return Err(HandOffError::Lost { name, reason });
        }
        if hold.has_company() {
            return Err(HandOffError::HeldAgain {
                lease: Box::new(self.into()),
            });
        }
        hold.lower_to_one().await;
        let handed_off = HandedOff::of(&[(0, hold.clone())], self.renewed, self.remaining(), None);
        self.leave_behind(&mut turn);
        Ok(handed_off)
    }

    /// Ends this lease here, the last of its hold, and nothing of the hold is sent any more.
    pub(crate) fn leave_behind(mut self, turn: &mut Turn) {
        self.given_back = true;
        self.hold.leave(self.renewed);
        turn.ended = Some(Outcome::Left(0));
        // The waiters of this process have no release of its own to wait for.
        drop(self.hold.client.queues.release_for_all(&self.hold));
    }

    /// Ends this lease here and leaves the rest to the [`Release`], which goes on in the background if it is dropped.
    fn give_back(&mut self) -> Release {
        self.given_back = true;
        self.hold.leave(self.renewed);
        Release::new(self.hold.clone())
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if !self.given_back {
            let client = &self.hold.client;
            if client.telling.is_heard() && self.hold.lost_reason().is_none() {
                client.watchdog.dropped(self.hold.clone());
            }
            drop(self.give_back());
        }
    }
}

impl Hold {
    /// Brings Redis down to the one lease that is left, if there were more: for who holds the turn. What fails does no harm, since
    /// whoever adopts sets the count.
    pub(crate) async fn lower_to_one(&self) {
        if self.was_reentered() {
            let call = self.mode.release(&self.holder, 1);
            let _ = self.client.connection.run(&call, None).await;
        }
    }

    /// Whether the hold can be trusted.
    pub(crate) fn is_valid(&self) -> bool {
        clock::now() < self.trusted_until()
    }

    /// See `Lease::extend`.
    pub(crate) async fn extend(&self, time: Duration) -> Result<(), ExtendError> {
        let timings = self.timings.with_lease(whole_millis(time)?)?;
        let name = || self.mode.name().to_string();
        let lost = |reason| ExtendError::Lost { name: name(), reason };
        let turn = self.turn.lock().await;
        if let Some(reason) = self.lost_reason() {
            return Err(lost(reason));
        }
        if turn.ended.is_some() {
            return Err(lost(LostReason::NotOwner));
        }
        let sent = clock::now();
        let lease = self.within_limit(timings.lease, sent);
        self.outlasts(lease);
        let named = self.mode.renewal(&self.holder, self.leases());
        let call = renewal_batch::renewal(named.iter(), lease);
        let result = self.client.connection.run(&call, None).await;
        let answer = result.and_then(|reply| {
            let unreadable = nonsense(call.text.name, &reply);
            let answers = renewal_batch::answers(reply, std::iter::once(named.len())).unwrap_or_default();
            answers.into_iter().next().ok_or(unreadable)
        });
        let gone = |reason| {
            self.tell(LeaseState::Lost(reason));
            self.client.watchdog.tell(&self.holder, Event::End(reason));
            Err(lost(reason))
        };
        match answer {
            Ok(Answer::Yes) => {
                if self.is_told && !self.is_valid() {
                    return Err(lost(self.lost_reason().unwrap_or(LostReason::DeadlinePassed)));
                }
                let until = sent.plus(timings.lease).minus(timings.margin);
                self.trust(until.min(self.trusted_at_most()));
                self.client
                    .watchdog
                    .tell(&self.holder, Event::Extended { sent, timings });
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
}
