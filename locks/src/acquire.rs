//! The acquire loop: attempt, subscribe, attempt again, sleep until woken or until the holder's lease is over.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Moment};
use crate::error::{AcquireError, CallError};
use crate::lease::{Hold, Lease, LeaseState, LostReason};
use crate::local_queue::{Queued, Trouble};
use crate::locks::Client;
use crate::mode::{self, Ask, Attempt, Grant, Mode, Wake};
use crate::options::{AcquireOptions, Terms};
use crate::owner::Place;
use crate::release::Release;
use crate::renewal::{Event, Renewal};
use crate::wakeup::Wakeup;

/// Acquires, waiting for the lock if need be.
pub(crate) async fn acquire(
    client: Arc<Client>,
    mode: Arc<dyn Mode>,
    options: AcquireOptions,
) -> Result<Lease, AcquireError> {
    let terms = check(&client, &*mode, options)?;
    let mut patience = Patience::new(&client, &*mode, terms.wait_limit);
    let place = place(&client, &*mode, &terms);
    refuse_reentry(place.as_deref(), &terms)?;
    let _turn = match &place {
        Some(place) => Some(patience.within(place.turn()).await?),
        None => None,
    };
    refuse_reentry(place.as_deref(), &terms)?;
    if let Some(hold) = place.as_ref().and_then(|place| place.hold())
        && let Some(lease) = reenter(hold, &terms, &mut patience).await?
    {
        return Ok(lease);
    }
    // Only the front of this process' queue asks Redis.
    let queued = client.queues.enter(mode.name(), mode.part());
    let _front = match mode.queues_locally() {
        true => tokio::time::timeout(patience.left(), queued.front())
            .await
            .map_err(|_| patience.over_in_queue(&queued))?,
        false => None,
    };
    let mut attempting = Attempting::new(&client, &mode, &terms);
    patience.failing_since = queued.trouble().map(|trouble| trouble.since);
    let mut wakeup: Option<Wakeup> = None;
    let mut spin = Backoff::new(FIRST_SPIN, LONGEST_SPIN);
    loop {
        if !mode.queues() {
            let _ = tokio::time::timeout(patience.left(), queued.let_others_come_first()).await;
        }
        // Only who hears may queue: a waiter that nobody hears counts as dead.
        attempting.may_queue = mode.queues() && wakeup.as_ref().is_some_and(Wakeup::hears);
        if let Some(wakeup) = &wakeup {
            wakeup.take();
        }
        // After the wake-up was taken: a shutdown that comes now wakes again.
        if client.is_closed() {
            return Err(closed(&*mode));
        }
        queued.asking();
        let result = attempting.attempt(patience.attempt_until()).await;
        queued.asked(result.as_ref().err().map(|error| Trouble {
            since: patience.failing_since.unwrap_or_else(clock::now),
            error: error.clone(),
        }));
        let (retry_after, busy) = match result {
            Ok(Attempt::Granted(grant)) => return attempting.into_lease(grant, place.as_deref()),
            Ok(Attempt::Busy { retry_after, busy }) => (retry_after, busy),
            Ok(other) => return Err(refusal(&*mode, other)),
            Err(error) => {
                patience.bear(error, attempting.is_unsettled()).await?;
                continue;
            }
        };
        patience.answered();
        if patience.is_over() {
            attempting.leave().await;
            return Err(patience.over());
        }
        match mode.wake(attempting.holder(), busy) {
            Wake::Channel(channel) => match &mut wakeup {
                // A link was lost: hear again before relying on it.
                Some(wakeup) if wakeup.is_on(&channel) && wakeup.is_pending() => {
                    wakeup.ready(patience.subscribing()).await;
                }
                Some(wakeup) if wakeup.is_on(&channel) => wakeup.wait(retry_after.min(patience.asleep())).await,
                // Subscribe, then attempt again: a release between the two would otherwise go unheard. Of several locks another
                // one may be busy now.
                _ => {
                    let joined = wakeup.insert(client.wakeups.join(channel));
                    joined.ready(patience.subscribing()).await;
                }
            },
            Wake::Poll => {
                let pause = spin.next().min(retry_after).min(patience.left());
                tokio::time::sleep(pause).await;
            }
        }
        if patience.is_over() {
            attempting.leave().await;
            return Err(patience.over());
        }
    }
}

/// Acquires if the lock is free.
pub(crate) async fn try_acquire(
    client: Arc<Client>,
    mode: Arc<dyn Mode>,
    options: AcquireOptions,
) -> Result<Option<Lease>, AcquireError> {
    let terms = check(&client, &*mode, options)?;
    try_acquire_on(client, mode, terms).await
}

/// The same on terms that were checked.
pub(crate) async fn try_acquire_on(
    client: Arc<Client>,
    mode: Arc<dyn Mode>,
    terms: Terms,
) -> Result<Option<Lease>, AcquireError> {
    let mut patience = Patience::new(&client, &*mode, Some(Duration::ZERO));
    let place = place(&client, &*mode, &terms);
    refuse_reentry(place.as_deref(), &terms)?;
    let _turn = match &place {
        // Another acquire of this owner is waiting for the lock, so it is busy.
        Some(place) => match place.try_turn() {
            Some(turn) => Some(turn),
            None => return Ok(None),
        },
        None => None,
    };
    refuse_reentry(place.as_deref(), &terms)?;
    if let Some(hold) = place.as_ref().and_then(|place| place.hold())
        && let Some(lease) = reenter(hold, &terms, &mut patience).await?
    {
        return Ok(Some(lease));
    }
    let mut attempting = Attempting::new(&client, &mode, &terms);
    match attempting.attempt(patience.attempt_until()).await {
        Ok(Attempt::Granted(grant)) => attempting.into_lease(grant, place.as_deref()).map(Some),
        Ok(Attempt::Busy { .. }) => Ok(None),
        Ok(other) => Err(refusal(&*mode, other)),
        Err(error) => {
            patience.bear(error, attempting.is_unsettled()).await?;
            Ok(None)
        }
    }
}

/// The owner's place at this lock.
fn place(client: &Client, mode: &dyn Mode, terms: &Terms) -> Option<Arc<Place>> {
    let owner = terms.owner.as_ref()?;
    Some(owner.place(&client.ids, mode))
}

/// An acquire that rules re-entry out ends where one would begin.
fn refuse_reentry(place: Option<&Place>, terms: &Terms) -> Result<(), AcquireError> {
    let Some(hold) = place.filter(|_| !terms.reentry).and_then(Place::hold) else {
        return Ok(());
    };
    let name = hold.mode.name().to_string();
    Err(match hold.lost_reason() {
        Some(reason) => AcquireError::Lost { name, reason },
        None => AcquireError::AlreadyHeld { name },
    })
}

fn closed(mode: &dyn Mode) -> AcquireError {
    AcquireError::Closed {
        name: mode.name().to_string(),
    }
}

fn check(client: &Client, mode: &dyn Mode, options: AcquireOptions) -> Result<Terms, AcquireError> {
    if mode.name().is_empty() {
        return Err(AcquireError::EmptyName);
    }
    if client.is_closed() {
        return Err(closed(mode));
    }
    let terms = options.check(client.watchdog_time, &client.policy)?;
    if let (Some(owner), Some(part)) = (&terms.owner, mode.waits_for())
        && owner.hold_of_part(&client.ids, mode, part).is_some()
    {
        return Err(AcquireError::WouldDeadlock {
            name: mode.name().to_string(),
        });
    }
    Ok(terms)
}

/// Raises the count of a hold that the owner has already; `None` if its last lease was given back meanwhile.
async fn reenter(hold: Arc<Hold>, terms: &Terms, patience: &mut Patience<'_>) -> Result<Option<Lease>, AcquireError> {
    let lost = |reason| AcquireError::Lost {
        name: hold.mode.name().to_string(),
        reason,
    };
    let mut joining = Joining::new(&hold, terms);
    loop {
        if let Some(reason) = hold.lost_reason() {
            return Err(lost(reason));
        }
        let Some((result, sent)) = joining.attempt(patience.attempt_until()).await else {
            return Ok(None);
        };
        match result {
            Ok(Attempt::Granted(_)) => {
                let timings = terms.timings;
                hold.client
                    .watchdog
                    .tell(&hold.holder, Event::Extended { sent, timings });
                // Told while the answer was on its way: lost stays lost.
                return match hold.lost_reason() {
                    Some(reason) => Err(lost(reason)),
                    None => Ok(Some(joining.into_lease())),
                };
            }
            Ok(Attempt::NoTimeToLive) => return Err(refusal(&*hold.mode, Attempt::NoTimeToLive)),
            Ok(Attempt::Gone | Attempt::Busy { .. } | Attempt::TooLate { .. }) => {
                let reason = LostReason::NotOwner;
                hold.tell(LeaseState::Lost(reason));
                hold.client.watchdog.tell(&hold.holder, Event::End(reason));
                return Err(lost(reason));
            }
            Err(error) => patience.bear(error, joining.unsettled).await?,
        }
    }
}

/// The attempts of one outermost acquire. Dropped without a lease, it withdraws what an unanswered one may have taken.
struct Attempting<'a> {
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
    may_queue: bool,
    /// It may stand in one.
    in_queue: bool,
}

impl<'a> Attempting<'a> {
    fn new(client: &Arc<Client>, mode: &Arc<dyn Mode>, terms: &'a Terms) -> Self {
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

    fn holder(&self) -> &crate::owner::HolderId {
        &self.hold.holder
    }

    fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Asks Redis. A grant that came too late to be of use is asked for again: the hold is there, so it is prolonged.
    async fn attempt(&mut self, until: Moment) -> Result<Attempt, CallError> {
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

    async fn ask(&mut self, until: Moment) -> Result<Attempt, CallError> {
        let hold = &self.hold;
        let call = hold.mode.acquire(&Ask {
            holder: &hold.holder,
            count: 1,
            lease: self.terms.timings.lease,
            beside: self.beside.as_ref().map(|beside| &beside.holder),
            may_queue: self.may_queue,
        });
        let was_unsettled = std::mem::replace(&mut self.unsettled, true);
        self.in_queue |= self.may_queue;
        self.attempts += 1;
        self.sent = clock::now();
        let result = hold.client.connection.run(&call, Some(until)).await;
        let result = result.and_then(|answer| mode::attempt(call.text.name, answer));
        match &result {
            // An earlier attempt without an answer ran before this one, or never will.
            Ok(_) => self.unsettled = self.in_queue,
            Err(CallError::Unanswered { .. } | CallError::Nonsense { .. }) => {}
            // Not executed, which says nothing of an earlier attempt.
            Err(_) => self.unsettled = was_unsettled,
        }
        result
    }

    /// Leaves the queue, if it may stand in one, so that nothing is left when the caller is told. What takes longer goes on in the
    /// background.
    async fn leave(&mut self) {
        if std::mem::take(&mut self.in_queue) {
            self.unsettled = false;
            let mut release = Release::new(self.hold.clone());
            let _ = tokio::time::timeout(GRACE, release.attempt()).await;
        }
    }

    fn trusted_until(&self) -> Moment {
        let timings = &self.terms.timings;
        self.sent.plus(timings.lease).minus(timings.margin)
    }

    /// The lease of a grant; a client that was shut down meanwhile gives it back.
    fn into_lease(mut self, grant: Grant, place: Option<&Place>) -> Result<Lease, AcquireError> {
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
        Ok(Lease::new(hold.clone(), terms.renewed, self.attempts))
    }
}

impl Drop for Attempting<'_> {
    fn drop(&mut self) {
        if self.unsettled {
            drop(Release::new(self.hold.clone()));
        }
    }
}

/// A re-entry under way: one lease more than Redis may know of. Dropped without a lease, it brings Redis back to the count.
struct Joining<'a> {
    hold: &'a Arc<Hold>,
    terms: &'a Terms,
    joined: bool,
    attempts: u32,
    /// An attempt was sent whose outcome is not known.
    unsettled: bool,
}

impl<'a> Joining<'a> {
    fn new(hold: &'a Arc<Hold>, terms: &'a Terms) -> Self {
        Joining {
            hold,
            terms,
            joined: false,
            attempts: 0,
            unsettled: false,
        }
    }

    /// Asks Redis, and tells when the request left. `None` if the hold was given back before its turn came.
    async fn attempt(&mut self, until: Moment) -> Option<(Result<Attempt, CallError>, Moment)> {
        let hold = self.hold;
        let now = clock::now();
        let Ok(turn) = tokio::time::timeout(until.since(now), hold.turn.lock()).await else {
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

    fn into_lease(mut self) -> Lease {
        self.joined = false;
        Lease::new(self.hold.clone(), self.terms.renewed, self.attempts)
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

/// How long a caller is willing to wait, and how long Redis has been silent.
struct Patience<'a> {
    mode: &'a dyn Mode,
    start: Moment,
    limit: Option<Duration>,
    /// The longest silence of Redis that a wait without a limit bears.
    longest_silence: Duration,
    command_timeout: Duration,
    failing_since: Option<Moment>,
    pauses: Backoff,
}

impl<'a> Patience<'a> {
    fn new(client: &Client, mode: &'a dyn Mode, limit: Option<Duration>) -> Self {
        Patience {
            mode,
            start: clock::now(),
            limit,
            longest_silence: client.watchdog_time,
            command_timeout: client.connection.command_timeout(),
            failing_since: None,
            pauses: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        }
    }

    fn end(&self) -> Moment {
        self.limit.map_or(Moment::NEVER, |limit| self.start.plus(limit))
    }

    fn left(&self) -> Duration {
        self.end().since(clock::now())
    }

    /// How long to sleep before the lock is asked for again, wake-up or not: a link that fell silent is found out this way.
    fn asleep(&self) -> Duration {
        self.left().min(self.longest_silence / 3)
    }

    /// How long a subscription may take before the lock is asked for again without it.
    fn subscribing(&self) -> Duration {
        self.left().min(self.command_timeout)
    }

    fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// When an attempt that begins now has to be answered.
    fn attempt_until(&self) -> Moment {
        let single = self.limit == Some(Duration::ZERO);
        let grace = if single {
            self.command_timeout
        } else {
            GRACE.min(self.command_timeout)
        };
        self.end().plus(grace)
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, AcquireError> {
        tokio::time::timeout(self.left(), work).await.map_err(|_| self.over())
    }

    fn answered(&mut self) {
        self.failing_since = None;
        self.pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// Waits a little after a failed attempt, or says why there is no point.
    async fn bear(&mut self, error: CallError, outcome_unknown: bool) -> Result<(), AcquireError> {
        if !error.is_retryable() {
            return Err(AcquireError::Refused {
                name: self.mode.name().to_string(),
                source: error,
            });
        }
        let now = clock::now();
        let since = *self.failing_since.get_or_insert(now);
        let silent_for_too_long = self.limit.is_none() && now.since(since) >= self.longest_silence;
        if self.is_over() || silent_for_too_long {
            return Err(self.unavailable(error, outcome_unknown));
        }
        tokio::time::sleep(self.pauses.next().min(self.left())).await;
        if self.is_over() {
            return Err(self.unavailable(error, outcome_unknown));
        }
        Ok(())
    }

    fn unavailable(&self, source: CallError, outcome_unknown: bool) -> AcquireError {
        AcquireError::Unavailable {
            name: self.mode.name().to_string(),
            waited: clock::now().since(self.start),
            outcome_unknown,
            source,
        }
    }

    fn over(&self) -> AcquireError {
        AcquireError::WaitLimit {
            name: self.mode.name().to_string(),
            waited: clock::now().since(self.start),
        }
    }

    /// The wait ended behind another waiter of this process: what that one met is the reason.
    fn over_in_queue(&self, queued: &Queued<'_>) -> AcquireError {
        match queued.trouble() {
            Some(trouble) => self.unavailable(trouble.error, false),
            None => self.over(),
        }
    }
}

/// Pauses that double from `first` to `longest`, each shortened at random by up to a half so that clients do not stay in step.
struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    fn new(first: Duration, longest: Duration) -> Self {
        Backoff { next: first, longest }
    }

    fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

fn refusal(mode: &dyn Mode, attempt: Attempt) -> AcquireError {
    let name = mode.name().to_string();
    match attempt {
        Attempt::NoTimeToLive => AcquireError::NoTimeToLive { name },
        Attempt::TooLate { took } => AcquireError::TooLate { name, took },
        _ => AcquireError::Refused {
            name,
            source: CallError::Nonsense {
                script: "acquire",
                answer: format!("{attempt:?} for a first hold"),
            },
        },
    }
}

/// An attempt under way at the end of the wait may be answered this much later, so that a short limit on a healthy Redis ends
/// with an answer.
const GRACE: Duration = Duration::from_millis(100);
/// A grant whose answer took longer than the lease can be trusted is of no use; after so many the caller is told.
const TRIES_WHEN_TOO_LATE: u32 = 3;
/// Between attempts while Redis does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Between the attempts of a spin lock's waiter; the longest is Redisson's.
const FIRST_SPIN: Duration = Duration::from_millis(1);
const LONGEST_SPIN: Duration = Duration::from_millis(128);
