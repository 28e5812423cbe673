//! What a client tells its observer and whoever listens to [`Locks::events`](crate::Locks::events): each renewal, and each change
//! of a lease.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::clock::Moment;
use crate::hold::Hold;
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
    /// The lease can no longer be trusted; with [`LostReason::MaxHold`] it was held for as long as it may be.
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// A lease that was not lost was dropped instead of released: the lock is given back in the background, and nobody hears
    /// whether that succeeds. Often a forgotten `release()`, or an error that was returned early.
    Dropped,
}

/// The events of a client as they happen: [`Locks::events`](crate::Locks::events).
///
/// ```no_run
/// # async fn example(locks: leasehold::Locks) {
/// let mut events = locks.events();
/// while let Some(event) = events.next().await {
///     match event {
///         Ok(event) => println!("{}: {:?}", event.name, event.kind),
///         Err(missed) => println!("{missed}"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

/// A reader was so slow that events were thrown away before it came to them. The next one is the oldest that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{events} events were missed; read faster, or keep only what matters")]
pub struct Missed {
    /// How many.
    pub events: u64,
}

impl Events {
    /// The next event, or how many were missed before it; `None` when the client is gone.
    ///
    /// # Errors
    /// [`Missed`]: this reader was too slow. It does not hold up the client, which keeps the last 1,024 events.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Result<Event, Missed>> {
        match self.receiver.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(RecvError::Lagged(events)) => Some(Err(Missed { events })),
            Err(RecvError::Closed) => None,
        }
    }
}

/// Where the events of a client go. Costs nothing while nobody listens.
#[derive(Default)]
pub(crate) struct Telling {
    observer: Option<Arc<dyn Observer>>,
    /// Made when somebody listens for the first time.
    listeners: OnceLock<broadcast::Sender<Event>>,
}

impl Telling {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Telling {
            observer,
            listeners: OnceLock::new(),
        }
    }

    pub(crate) fn listen(&self) -> Events {
        let listeners = self
            .listeners
            .get_or_init(|| broadcast::Sender::new(KEPT_FOR_A_SLOW_READER));
        Events {
            receiver: listeners.subscribe(),
        }
    }

    /// Whether anybody hears of events.
    pub(crate) fn is_heard(&self) -> bool {
        self.observer.is_some() || self.listeners().is_some()
    }

    /// Tells what happened. To be called on the watchdog's thread, as the observer was promised.
    pub(crate) fn tell(&self, hold: &Hold, at: Moment, kind: EventKind) {
        if !self.is_heard() {
            return;
        }
        let event = Event {
            name: hold.mode.name().clone(),
            holder: hold.holder.clone(),
            at,
            kind,
        };
        if let Some(observer) = &self.observer
            && catch_unwind(AssertUnwindSafe(|| observer.event(&event))).is_err()
        {
            tracing::error!("the observer of a client has panicked; renewal goes on");
        }
        if let Some(listeners) = self.listeners() {
            // It overwrites what a slow reader has not read, and never waits. Nobody listens any more: nothing is lost.
            let _ = listeners.send(event);
        }
    }

    fn listeners(&self) -> Option<&broadcast::Sender<Event>> {
        self.listeners.get().filter(|listeners| listeners.receiver_count() > 0)
    }
}

/// Some seconds of a client with hundreds of locks, in a hundred kilobytes that exist once somebody listens.
const KEPT_FOR_A_SLOW_READER: usize = 1024;
