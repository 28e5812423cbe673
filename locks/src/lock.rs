//! A lock by name: written once for every kind.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::error::{AcquireError, WithError};
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Lease;
use crate::mode::{Fair, Fenced, Multi, Reentrant, Spin};
use crate::options::AcquireOptions;
use crate::owner::Owner;
use crate::policy::RenewalPolicy;
use crate::target::Target;

/// A lock by name. Cheap to clone; nothing is sent before it is acquired.
pub struct Lock<K> {
    target: Target,
    kind: PhantomData<fn() -> K>,
}

/// A lock that its owner can acquire again while holding it.
pub type ReentrantLock = Lock<Reentrant>;
/// A reentrant lock whose waiters are served in the order in which they came.
pub type FairLock = Lock<Fair>;
/// A reentrant lock whose waiters ask at intervals instead of subscribing.
pub type SpinLock = Lock<Spin>;
/// A reentrant lock whose leases carry a fencing token.
pub type FencedLock = Lock<Fenced>;
/// Several reentrant locks held as one.
pub type MultiLock = Lock<Multi>;

impl<K> Lock<K> {
    pub(crate) fn new(target: Target) -> Self {
        Lock {
            target,
            kind: PhantomData,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.target.name()
    }

    /// Which kind of lock it is; over several masters `quorum`, whatever it is on each of them.
    pub fn kind(&self) -> LockKind {
        self.target.kind()
    }

    /// Acquires the lock, waiting for it if need be. Await it, after setting what is wanted otherwise.
    ///
    /// # Errors
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves nothing behind: it leaves the queue, and what an attempt on its way may have
    /// taken is given back in the background. A future that is kept and not polled keeps its place, and with it those behind it
    /// in this process.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.target.clone())
    }

    /// Acquires the lock with these options; otherwise as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn acquire_with(&self, options: AcquireOptions) -> Acquire {
        Acquire {
            options,
            ..self.acquire()
        }
    }

    /// Acquires the lock, does the work while it is held, and gives it back. If the lock is not acquired, the work is not begun;
    /// if it is lost, the work is dropped at that moment.
    ///
    /// ```no_run
    /// # async fn example(locks: leasehold::Locks) -> Result<(), leasehold::WithError> {
    /// let left = locks.reentrant("stock:42").with(async |_lease| 41).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`WithError`]. A release that gets no answer is none: the work is done, and the release goes on in the background.
    ///
    /// # Cancel safety
    /// The work is dropped, and the lock is given back in the background.
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, WithError> {
        self.acquire().with(work).await
    }

    /// Acquires the lock if it is free, without waiting for its holder: busy is `None`. Redis gets one command timeout to answer.
    ///
    /// # Errors
    /// See [`AcquireError`]; a lock that is busy is no error.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> TryAcquire {
        TryAcquire(self.acquire())
    }
}

impl<K> Clone for Lock<K> {
    fn clone(&self) -> Self {
        Lock::new(self.target.clone())
    }
}

impl<K> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lock").field(self.name()).finish()
    }
}

/// An acquire that waits: set what is wanted, then await it.
#[must_use = "nothing is acquired before it is awaited"]
pub struct Acquire {
    target: Target,
    options: AcquireOptions,
}

impl Acquire {
    pub(crate) fn new(target: Target) -> Self {
        Acquire {
            target,
            options: AcquireOptions::new(),
        }
    }

    /// See [`AcquireOptions::wait_limit`].
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.options = self.options.wait_limit(limit);
        self
    }

    /// See [`AcquireOptions::deadline`].
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.options = self.options.deadline(deadline);
        self
    }

    /// See [`AcquireOptions::lease_time`].
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.options = self.options.lease_time(lease_time);
        self
    }

    /// See [`AcquireOptions::max_hold`].
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options = self.options.max_hold(limit);
        self
    }

    /// See [`AcquireOptions::no_reentry`].
    pub fn no_reentry(mut self) -> Self {
        self.options = self.options.no_reentry();
        self
    }

    /// See [`AcquireOptions::queue_position`].
    ///
    /// ```no_run
    /// # async fn example(locks: leasehold::Locks) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut acquire = locks.fair("printer").acquire();
    /// let mut place = acquire.queue_position();
    /// tokio::spawn(async move {
    ///     while place.changed().await.is_ok() {
    ///         println!("at place {:?} of the queue", *place.borrow_and_update());
    ///     }
    /// });
    /// let lease = acquire.await?;
    /// # drop(lease); Ok(()) }
    /// ```
    pub fn queue_position(&mut self) -> watch::Receiver<Option<usize>> {
        self.options.queue_position()
    }

    /// Acquires the lock, does the work while it is held, and gives it back; see [`Lock::with`].
    ///
    /// # Errors
    /// [`WithError`].
    ///
    /// # Cancel safety
    /// As [`Lock::with`].
    pub async fn with<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, WithError> {
        Ok(self.await?.through(work).await?)
    }

    /// See [`AcquireOptions::owner`].
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.options = self.options.owner(owner);
        self
    }

    /// See [`AcquireOptions::renewal`].
    pub fn renewal(mut self, policy: RenewalPolicy) -> Self {
        self.options = self.options.renewal(policy);
        self
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.target.acquire(self.options))
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("name", self.target.name())
            .field("options", &self.options)
            .finish()
    }
}

/// An acquire that does not wait: set what is wanted, then await it.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct TryAcquire(Acquire);

impl TryAcquire {
    pub(crate) fn new(acquire: Acquire) -> Self {
        TryAcquire(acquire)
    }

    /// See [`AcquireOptions::lease_time`].
    pub fn lease_time(self, lease_time: Duration) -> Self {
        TryAcquire(self.0.lease_time(lease_time))
    }

    /// See [`AcquireOptions::max_hold`].
    pub fn max_hold(self, limit: Duration) -> Self {
        TryAcquire(self.0.max_hold(limit))
    }

    /// See [`AcquireOptions::no_reentry`].
    pub fn no_reentry(self) -> Self {
        TryAcquire(self.0.no_reentry())
    }

    /// See [`AcquireOptions::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        TryAcquire(self.0.owner(owner))
    }

    /// See [`AcquireOptions::renewal`].
    pub fn renewal(self, policy: RenewalPolicy) -> Self {
        TryAcquire(self.0.renewal(policy))
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Option<Lease>, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.target.try_acquire(self.0.options))
    }
}
