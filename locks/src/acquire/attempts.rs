//! The attempts of one acquire, each answered, or withdrawn when the acquire is dropped.

use std::sync::Arc;

use tokio::time::timeout;

use super::{GRACE, closed};
use crate::clock::{self, Moment};
use crate::error::{AcquireError, CallError};
use crate::hold::Hold;
use crate::keys::tombstone;
use crate::lease::Single;
use crate::local_queue::{Queued, Wishing};
use crate::locks::Client;
use crate::mode::{self, Ask, Attempt, Grant, Mode};
use crate::options::Terms;
use crate::owner::{HolderId, Place};
use crate::release::Release;
use crate::renewal::Renewal;

/// The attempts of one outermost acquire. Dropped without a lease, it withdraws what an unanswered one may have taken.
pub(super) struct Attempting<'a> {
    hold: Arc<Hold>,
    /// The owner's hold that this one may stand beside.
    beside: Option<Arc<Hold>>,
    terms: &'a Terms,
    /// When the newest attempt was handed over.
    sent: Moment,
    attempts: u32,
    /// An attempt was sent whose outcome is not known.
    unsettled: bool,
    /// Whether the next attempt may leave this acquire in a queue in Redis.
    pub(super) may_queue: bool,
    /// It may stand in one.
    in_queue: bool,
}

impl<'a> Attempting<'a> {
    pub(super) fn new(client: &Arc<Client>, mode: &Arc<dyn Mode>, terms: &'a Terms) -> Self {
        let hold = Hold::new(client.clone(), mode.clone(), terms);
        let beside = mode.stands_beside();
        Attempting {
            beside: beside.and_then(|part| terms.owner.as_ref()?.hold_of_part(&client.ids, &**mode, part)),
            hold: Arc::new(hold),
            terms,
            sent: Moment::PAST,
            attempts: 0,
            unsettled: false,
            may_queue: false,
            in_queue: false,
        }
    }

    pub(super) fn holder(&self) -> &HolderId {
        &self.hold.holder
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Asks Redis. A grant that came too late to be of use is asked for again: the hold is there, so it is prolonged.
    pub(super) async fn attempt(&mut self, until: Moment) -> Result<Attempt, CallError> {
        for _ in 0..TRIES_WHEN_TOO_LATE {
            let result = self.ask(until).await;
            if !matches!(result, Ok(Attempt::Granted(_))) || clock::now() < self.trusted_until() {
                return result;
            }
            self.unsettled = true;
        }
        Ok(Attempt::TooLate {
            took: clock::now().since(self.sent),
        })
    }

    pub(super) async fn ask(&mut self, until: Moment) -> Result<Attempt, CallError> {
        let hold = &self.hold;
        let call = hold.mode.acquire(&Ask {
            holder: &hold.holder,
            count: 1,
            lease: self.terms.timings.lease,
            beside: self.beside.as_ref().map(|beside| &beside.holder),
            may_queue: self.may_queue,
        });
        let call = match hold.client.connection.is_fenced() {
            true => call,
            false => call.unless_withdrawn(&tombstone(hold.mode.name(), &hold.holder)),
        };
        let was_unsettled = std::mem::replace(&mut self.unsettled, true);
        self.in_queue |= self.may_queue;
        self.attempts += 1;
        self.sent = clock::now();
        let result = hold.client.connection.run(&call, Some(until)).await;
        let result = result.and_then(|answer| mode::attempt(call.text.name, answer));
        match &result {
            // An earlier attempt without an answer ran before this one, or never will.
            Ok(_) => self.unsettled = self.in_queue,
            Err(CallError::Unanswered { .. } | CallError::Nonsense { .. }) => hold.doubt(),
            // Not executed, which says nothing of an earlier attempt.
            Err(_) => self.unsettled = was_unsettled,
        }
        result
    }

    /// Waits, and meanwhile wishes to be given the lock by a release of this process.
    ///
    /// # Cancel safety
    /// What was passed on and not received is given back.
    pub(super) async fn or_handed_over(
        &mut self,
        queued: &Queued<'_>,
        wait: impl Future<Output = ()>,
        until: Moment,
    ) -> Option<Grant> {
        if !self.hold.mode.queues_locally() || self.beside.is_some() {
            wait.await;
            return None;
        }
        let mut receiving = Receiving {
            wishing: queued.wish(&self.hold, self.terms.timings.lease),
            unsettled: &mut self.unsettled,
        };
        let told = tokio::select! {
            biased;
            told = receiving.wishing.told() => Some(told),
            () = wait => None,
        };
        let told = match told {
            Some(told) => told,
            None if receiving.wishing.withdraw() => return None,
            // It is being passed on right now.
            None => timeout(until.since(clock::now()), receiving.wishing.told())
                .await
                .ok()
                .flatten(),
        };
        drop(receiving);
        let (grant, sent) = told?;
        self.attempts += 1;
        self.sent = sent;
        // Else it is asked for again: the hold is there, so it is prolonged.
        (clock::now() < self.trusted_until()).then_some(grant)
    }

    /// Leaves the queue, if it may stand in one, so that nothing is left when the caller is told. What takes longer goes on in the
    /// background.
    pub(super) async fn leave(&mut self) {
        if std::mem::take(&mut self.in_queue) {
            self.unsettled = false;
            let mut release = Release::new(self.hold.clone());
            let _ = timeout(GRACE, release.attempt()).await;
        }
    }

    pub(super) fn trusted_until(&self) -> Moment {
        let timings = &self.terms.timings;
        self.sent.plus(timings.lease).minus(timings.margin)
    }

    /// The lease of a grant; a client that was shut down meanwhile gives it back.
    pub(super) fn into_lease(mut self, grant: Grant, place: Option<&Place>) -> Result<Single, AcquireError> {
        if self.hold.client.is_closed() {
            self.unsettled = true;
            return Err(closed(&*self.hold.mode));
        }
        self.unsettled = false;
        self.hold.set_fencing_token(grant.fencing_token);
        let (hold, terms) = (&self.hold, self.terms);
        // The first lease of a new hold: it cannot be closed yet.
        hold.join(terms.renewed, terms.timings);
        let ends = terms.max_hold.map_or(Moment::NEVER, |limit| self.sent.plus(limit));
        if ends != Moment::NEVER {
            hold.set_ends(ends);
        }
        let renewal = Renewal::new(terms.timings, terms.renewed, self.sent, ends, fastrand::f64());
        hold.trust(renewal.trusted_until());
        if let Some(place) = place {
            place.set(hold);
        }
        hold.client.watchdog.watch(hold.clone(), renewal);
        Ok(Single::new(hold.clone(), terms.renewed, self.attempts))
    }
}

impl Drop for Attempting<'_> {
    fn drop(&mut self) {
        if self.unsettled {
            self.hold.doubt();
            drop(Release::new(self.hold.clone()));
        }
    }
}

/// A wish on its way to be fulfilled. Ended in whatever way, the hold may be there unless the wish was taken back.
struct Receiving<'a> {
    wishing: Wishing<'a>,
    unsettled: &'a mut bool,
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        *self.unsettled |= !self.wishing.withdraw();
    }
}

/// A re-entry under way: one lease more than Redis may know of. Dropped without a lease, it brings Redis back to the count.
pub(super) struct Joining<'a> {
    hold: &'a Arc<Hold>,
    terms: &'a Terms,
    joined: bool,
    attempts: u32,
    /// An attempt was sent whose outcome is not known.
    pub(super) unsettled: bool,
}

impl<'a> Joining<'a> {
    pub(super) fn new(hold: &'a Arc<Hold>, terms: &'a Terms) -> Self {
        Joining {
            hold,
            terms,
            joined: false,
            attempts: 0,
            unsettled: false,
        }
    }

    /// Asks Redis, and tells when the request left. `None` if the hold was given back before its turn came.
    pub(super) async fn attempt(&mut self, until: Moment) -> Option<(Result<Attempt, CallError>, Moment)> {
        let hold = self.hold;
        let now = clock::now();
        let Ok(turn) = timeout(until.since(now), hold.turn.lock()).await else {
            return Some((Err(CallError::Unreachable { source: None }), now));
        };
        if !self.joined {
            self.joined = hold.join(self.terms.renewed, self.terms.timings);
        }
        if !self.joined {
            return None;
        }
        if turn.ended.is_some() {
            return Some((Ok(Attempt::Gone), now));
        }
        let sent = clock::now();
        let lease = hold.within_limit(self.terms.timings.lease, sent);
        hold.outlasts(lease);
        let call = hold.mode.acquire(&Ask {
            holder: &hold.holder,
            // At least two: it must never be taken for a first acquire, which would take anew what was lost meanwhile.
            count: hold.leases().max(2),
            lease,
            beside: None,
            may_queue: false,
        });
        self.attempts += 1;
        let result = hold.client.connection.run(&call, Some(until)).await;
        self.unsettled |= result.as_ref().is_err_and(CallError::outcome_unknown);
        Some((result.and_then(|answer| mode::attempt(call.text.name, answer)), sent))
    }

    pub(super) fn into_lease(mut self) -> Single {
        self.joined = false;
        Single::new(self.hold.clone(), self.terms.renewed, self.attempts)
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if self.joined {
            self.hold.leave(self.terms.renewed);
            drop(Release::new(self.hold.clone()));
        }
    }
}

/// A grant whose answer took longer than the lease can be trusted is of no use; after so many the caller is told.
const TRIES_WHEN_TOO_LATE: u32 = 3;
