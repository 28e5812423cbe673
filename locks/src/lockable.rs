//! What all kinds of lock have in common, for where configuration chooses the kind.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;

use crate::error::{AcquireError, WithError};
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Lease;
use crate::lock::{Lock, TryAcquire};
use crate::options::AcquireOptions;

/// A lock of any kind. [`Locks::lock`](crate::Locks::lock) makes one of the kind that configuration names.
///
/// ```no_run
/// use leasehold::{AcquireOptions, Locks};
///
/// # async fn example(locks: Locks, configured: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let lock = locks.lock(configured.parse()?, "order:7");
/// let lease = lock.acquire_with(AcquireOptions::new()).await?;
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub trait Lockable: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// Which kind of lock it is.
    fn kind(&self) -> LockKind;

    /// The lock's name.
    fn name(&self) -> &LockName;

    /// Acquires the lock, waiting for it if need be; as [`Lock::acquire_with`].
    ///
    /// # Errors
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]: nothing is left behind.
    fn acquire_with(&self, options: AcquireOptions) -> Acquiring<Lease>;

    /// Acquires the lock if it is free: busy is `None`; as [`Lock::try_acquire`]. A wait limit has no effect.
    ///
    /// # Errors
    /// See [`AcquireError`]; a lock that is busy is no error.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]: nothing is left behind.
    fn try_acquire_with(&self, options: AcquireOptions) -> Acquiring<Option<Lease>>;
}

impl dyn Lockable {
    /// Acquires the lock with these options, does the work while it is held, and gives it back; as [`Lock::with`].
    ///
    /// # Errors
    /// [`WithError`].
    ///
    /// # Cancel safety
    /// As [`Lock::with`].
    pub async fn with<T>(&self, options: AcquireOptions, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, WithError> {
        Ok(self.acquire_with(options).await?.through(work).await?)
    }
}

/// An acquire of a lock of any kind.
pub type Acquiring<T> = Pin<Box<dyn Future<Output = Result<T, AcquireError>> + Send>>;

impl<K: 'static> Lockable for Lock<K> {
    fn kind(&self) -> LockKind {
        Lock::kind(self)
    }

    fn name(&self) -> &LockName {
        Lock::name(self)
    }

    fn acquire_with(&self, options: AcquireOptions) -> Acquiring<Lease> {
        Lock::acquire_with(self, options).into_future()
    }

    fn try_acquire_with(&self, options: AcquireOptions) -> Acquiring<Option<Lease>> {
        TryAcquire::new(Lock::acquire_with(self, options)).into_future()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<K> Sealed for crate::lock::Lock<K> {}
}
