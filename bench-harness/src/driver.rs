//! Driver: acquire and release as a worker sees them, whatever lock lies behind.

mod leasehold;
mod redisson;
mod script;

use std::fmt;
use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::time::Duration;

use ::leasehold::LockKind;

pub use self::leasehold::LeaseholdDriver;
pub use self::redisson::{RedissonDriver, RedissonHold, RedissonOptions};
pub use self::script::{Done, ScriptDriver, taken};

/// A lock as a worker uses it.
pub trait Driver: Clone + Send + Sync + 'static {
    /// Proof of holding a lock.
    type Hold: Hold;

    /// Takes the lock of that name, waiting no longer than `wait`.
    fn acquire(
        &self,
        name: &str,
        access: Access,
        wait: Duration,
    ) -> impl Future<Output = Result<Self::Hold, Refusal>> + Send;

    /// Gives back what is still being given back in the background; takes a second at most.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// What a lock is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// To change what it guards: alone.
    #[default]
    Write,
    /// Only to read: beside others who read, if the kind of lock lets them.
    Read,
}

/// Proof of holding a lock.
pub trait Hold: Sized + Send + Sync + 'static {
    /// Whether it is held until it is released; if not, all work was done when it was got.
    fn is_held(&self) -> bool {
        true
    }

    /// Acquire scripts that were sent to get it.
    fn attempts(&self) -> u64;

    /// The fencing token, 0 if the lock has none.
    fn fence(&self) -> u64;

    /// Whether the lock is held for all that can be known without asking the server.
    fn is_valid(&self) -> bool;

    /// Completes when the holder is told that the lock is lost.
    fn lost(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Takes the lock once more for the same holder.
    fn reenter(&self, wait: Duration) -> impl Future<Output = Result<Self, Refusal>> + Send;

    /// Gives the lock back; says whether it was still held.
    fn release(self) -> impl Future<Output = Result<bool, Refusal>> + Send;
}

/// Why a lock was not taken or not given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It was busy until the wait was over.
    Busy,
    /// Something failed.
    Failed(String),
}

impl Refusal {
    /// The same without the name of the lock, so that like failures can be counted together.
    #[must_use]
    pub fn of_any(self, name: &str) -> Self {
        match self {
            Self::Busy => Self::Busy,
            Self::Failed(text) => Self::Failed(text.replace(name, "a lock")),
        }
    }
}

/// What a lock does behind its holder's back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalSeen {
    /// The lock.
    pub name: String,
    /// Taken before the command left; nanoseconds of the boot-time clock.
    pub sent_ns: u64,
    /// When the answer came, or the attempt was given up.
    pub ended_ns: u64,
    /// Whether the server said yes.
    pub renewed: bool,
}

/// Told of every renewal.
pub type Watcher = Arc<dyn Fn(&RenewalSeen) + Send + Sync>;

/// What a driver of renewed locks is made with.
#[derive(Clone)]
pub struct DriverOptions {
    /// The kind of lock.
    pub kind: LockKind,
    /// The server, or a leg of the proxy; for a lock over several masters one of each.
    pub urls: Vec<String>,
    /// A reader goes behind a writer that waits, of a kind that has both.
    pub writers_first: bool,
    /// How many names are taken together, by a kind that can.
    pub together: u32,
    /// How long Redis keeps a lock that is not renewed.
    pub lease: Duration,
    /// What follows when a renewal fails.
    pub policy: String,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// Told of every renewal.
    pub watcher: Option<Watcher>,
}

/// No lock at all: everybody gets it at once. Shows what the generator does alone, and feeds the checker overlaps.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLock;

impl Driver for NoLock {
    type Hold = Self;

    fn acquire(
        &self,
        _name: &str,
        _access: Access,
        _wait: Duration,
    ) -> impl Future<Output = Result<Self, Refusal>> + Send {
        ready(Ok(Self))
    }

    fn close(self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

impl Hold for NoLock {
    fn attempts(&self) -> u64 {
        1
    }

    fn fence(&self) -> u64 {
        0
    }

    fn is_valid(&self) -> bool {
        true
    }

    fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        pending()
    }

    fn reenter(&self, _wait: Duration) -> impl Future<Output = Result<Self, Refusal>> + Send {
        ready(Ok(Self))
    }

    fn release(self) -> impl Future<Output = Result<bool, Refusal>> + Send {
        ready(Ok(true))
    }
}

impl fmt::Debug for DriverOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverOptions")
            .field("kind", &self.kind)
            .field("urls", &self.urls)
            .field("lease", &self.lease)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
