//! The kinds of lock, by the names that the recording gives them. A new kind is added here.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{
    AcquireError, AcquireOptions, Lease, LockInfo, Lockable, Locks, LocksBuilder, Owner, Quorum, ReentrantLock,
    ReleaseError, Released,
};

use super::file::LockSpec;

/// A lock as one of our clients has it.
pub(super) enum OurLock {
    Single(Box<dyn Lockable>),
    Majority(ReentrantLock),
}

/// What proves that it is held.
pub(super) enum Held {
    Single(Lease),
    Majority(Lease),
}

pub(super) type Acquiring = Pin<Box<dyn Future<Output = Result<Option<Held>, AcquireError>> + Send>>;

impl OurLock {
    /// A lock of this client, or, for a majority of several names, of further clients with the same settings.
    pub(super) async fn new(locks: &Locks, settings: &LocksBuilder, spec: &LockSpec) -> OurLock {
        let name = spec.name.as_str();
        OurLock::Single(match spec.kind.as_str() {
            "reentrant" => Box::new(locks.reentrant(name)),
            "fair" => Box::new(locks.fair(name)),
            "spin" => Box::new(locks.spin(name)),
            "fenced" => Box::new(locks.fenced(name)),
            "read" => Box::new(locks.read_write(name).read()),
            "write" => Box::new(locks.read_write(name).write()),
            "multi" => Box::new(locks.multi(&spec.of)),
            "red" => return OurLock::Majority(majority(settings, &spec.of).await),
            other => panic!("{other} is not known"),
        })
    }

    /// An acquire that waits this long, for ever if nothing is given, and not at all if it is zero.
    pub(super) fn acquire(
        &self,
        owner: &Owner,
        wait_limit: Option<Duration>,
        lease_time: Option<Duration>,
    ) -> Acquiring {
        match self {
            OurLock::Single(lock) => {
                let mut options = AcquireOptions::new().owner(owner);
                if let Some(time) = lease_time {
                    options = options.lease_time(time);
                }
                if wait_limit == Some(Duration::ZERO) {
                    let acquire = lock.try_acquire_with(options);
                    return Box::pin(async { Ok(acquire.await?.map(Held::Single)) });
                }
                if let Some(limit) = wait_limit {
                    options = options.wait_limit(limit);
                }
                let acquire = lock.acquire_with(options);
                Box::pin(async { Ok(Some(Held::Single(acquire.await?))) })
            }
            OurLock::Majority(lock) => {
                let mut acquire = lock.acquire();
                if let Some(time) = lease_time {
                    acquire = acquire.lease_time(time);
                }
                if let Some(limit) = wait_limit {
                    acquire = acquire.wait_limit(limit);
                }
                Box::pin(async { Ok(Some(Held::Majority(acquire.await?))) })
            }
        }
    }
}

/// Redisson's red lock is of several names, ours of several masters. So each node is one more client of the one server, which maps
/// the one name to one of the several.
async fn majority(settings: &LocksBuilder, names: &[String]) -> ReentrantLock {
    let mut nodes = Vec::new();
    for name in names {
        let name = name.clone();
        let node = settings.clone().name_mapper(move |_| name.as_str().into());
        nodes.push(node.build().await.expect("a server of our own"));
    }
    Quorum::over(nodes).expect("an odd number").reentrant("red")
}

impl Held {
    pub(super) async fn release(self) -> Result<Released, ReleaseError> {
        match self {
            Held::Single(lease) => lease.release().await,
            Held::Majority(lease) => lease.release().await,
        }
    }

    /// Of a majority there is no single lease.
    pub(super) fn lease(&self) -> Option<&Lease> {
        match self {
            Held::Single(lease) => Some(lease),
            Held::Majority(_) => None,
        }
    }
}

/// Whether the lock, or the half of it that is meant, is held.
pub(super) fn is_held(info: &LockInfo, kind: &str) -> bool {
    let ids = || {
        info.holders
            .iter()
            .map(|holder| holder.id.as_str())
            .filter(|id| *id != "mode")
    };
    let writers = ids().filter(|id| id.ends_with(":write")).count();
    match kind {
        "write" => writers > 0,
        "read" => ids().count() > writers,
        _ => true,
    }
}
