//! The acquire loop: attempt, subscribe, attempt again, sleep until woken or until the holder's lease is over.

mod attempts;
mod patience;

use std::sync::Arc;
use std::time::Duration;

use attempts::{Attempting, Joining};
use patience::{Backoff, Patience};

use crate::clock;
use crate::error::{AcquireError, CallError};
use crate::hold::Hold;
use crate::lease::{LeaseState, LostReason, Single};
use crate::local_queue::Trouble;
use crate::locks::Client;
use crate::mode::{Attempt, Mode, Part, Wake};
use crate::options::{AcquireOptions, Terms};
use crate::owner::Place;
use crate::renewal::Event;
use crate::wakeup::Wakeup;

/// Acquires, waiting for the lock if need be.
pub(crate) async fn acquire(
    client: Arc<Client>,
    mode: Arc<dyn Mode>,
    options: AcquireOptions,
) -> Result<Single, AcquireError> {
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
    let queued = client.queues.enter(mode.name(), mode.part());
    let mut attempting = Attempting::new(&client, &mode, &terms);
    let handed_over = |attempting: Attempting<'_>, grant| {
        queued.granted();
        attempting.into_lease(grant, place.as_deref())
    };
    // Only the front of this process' queue asks Redis; a release of this process needs nobody to ask.
    let mut front = None;
    if mode.queues_locally() {
        front = queued.front_now();
    }
    if mode.queues_locally() && front.is_none() {
        let wait = async {
            front = tokio::time::timeout(patience.left(), queued.front())
                .await
                .ok()
                .flatten();
            queued.while_held_here(patience.left()).await;
        };
        if let Some(grant) = attempting.or_handed_over(&queued, wait, patience.attempt_until()).await {
            return handed_over(attempting, grant);
        }
        // One that was perhaps given the lock finds out at once, whoever is in front.
        if front.is_none() && !attempting.is_unsettled() {
            return Err(patience.over_in_queue(&queued));
        }
    }
    patience.failing_since = queued.trouble().map(|trouble| trouble.since);
    let mut wakeup: Option<Wakeup> = None;
    // Who reads may have to let a writer of this process come first, and must not be the only one to hear that the lock is free.
    let aside = mode.part() == Part::Read;
    let mut spin = Backoff::new(FIRST_SPIN, LONGEST_SPIN);
    loop {
        if !mode.queues() && queued.others_come_first() {
            let _ = tokio::time::timeout(patience.left(), queued.let_others_come_first()).await;
        }
        // Only who hears may queue: a waiter that nobody hears counts as dead.
        attempting.may_queue = mode.gives_notice() && wakeup.as_ref().is_some_and(Wakeup::hears);
        if let Some(wakeup) = &mut wakeup {
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
            Ok(Attempt::Granted(grant)) => {
                if let Some(wakeup) = &mut wakeup {
                    wakeup.answered();
                }
                return handed_over(attempting, grant);
            }
            Ok(Attempt::Busy { retry_after, busy }) => (retry_after, busy),
            Ok(other) => return Err(refusal(&*mode, other)),
            Err(error) => {
                patience.bear(error, attempting.is_unsettled()).await?;
                continue;
            }
        };
        patience.answered();
        if let Some(position) = &terms.queue_position {
            // Where a queue has the say, the answer tells the place in it; 0 is none.
            let place = Some(busy).filter(|place| mode.queues() && *place > 0);
            position.send_if_modified(|old| std::mem::replace(old, place) != place);
        }
        if patience.is_over() {
            attempting.leave().await;
            return Err(patience.over());
        }
        let wake = mode.wake(attempting.holder(), busy);
        if let (Wake::Channel(channel), Some(wakeup)) = (&wake, &mut wakeup)
            && wakeup.is_on(channel)
        {
            wakeup.answered();
        }
        let wait = async {
            match wake {
                Wake::Channel(channel) => match &mut wakeup {
                    // A link was lost: hear again before relying on it.
                    Some(wakeup) if wakeup.is_on(&channel) && wakeup.is_pending() => {
                        wakeup.ready(patience.subscribing()).await;
                    }
                    Some(wakeup) if wakeup.is_on(&channel) => wakeup.wait(retry_after.min(patience.asleep())).await,
                    // Subscribe, then attempt again: a release between the two would otherwise go unheard. Of several locks
                    // another one may be busy now.
                    _ => {
                        let joined = wakeup.insert(client.wakeups.join(channel, aside));
                        joined.ready(patience.subscribing()).await;
                    }
                },
                Wake::Poll => {
                    let pause = spin.next().min(retry_after).min(patience.left());
                    tokio::time::sleep(pause).await;
                }
            }
        };
        if let Some(grant) = attempting.or_handed_over(&queued, wait, patience.attempt_until()).await {
            return handed_over(attempting, grant);
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
) -> Result<Option<Single>, AcquireError> {
    let terms = check(&client, &*mode, options)?;
    try_acquire_on(client, mode, terms).await
}

/// The same on terms that were checked.
pub(crate) async fn try_acquire_on(
    client: Arc<Client>,
    mode: Arc<dyn Mode>,
    terms: Terms,
) -> Result<Option<Single>, AcquireError> {
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
async fn reenter(hold: Arc<Hold>, terms: &Terms, patience: &mut Patience<'_>) -> Result<Option<Single>, AcquireError> {
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
/// Between the attempts of a spin lock's waiter; the longest is Redisson's.
const FIRST_SPIN: Duration = Duration::from_millis(1);
const LONGEST_SPIN: Duration = Duration::from_millis(128);
