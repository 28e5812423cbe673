//! The client: joins connection, wake-ups and watchdog, and hands out locks by name.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::admin::Admin;
use crate::builder::LocksBuilder;
use crate::connection::Connection;
use crate::error::{AdoptError, BuildError};
use crate::events::{Events, Telling};
use crate::hand_off::{self, HandedOff};
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Lease;
use crate::local_queue::LocalQueues;
use crate::lock::{FairLock, FencedLock, Lock, MultiLock, ReentrantLock, SpinLock};
use crate::lockable::Lockable;
use crate::mode::{Fair, Fenced, Mode, Multi, Reentrant, Spin};
use crate::owner::{HolderIds, Owner};
use crate::policy::RenewalPolicy;
use crate::quorum::Quorum;
use crate::read_write::ReadWriteLock;
use crate::release::Releases;
use crate::target::{Node, Target};
use crate::wakeup::Wakeups;
use crate::watchdog::Watchdog;

/// Everything that the locks of one client share.
pub(crate) struct Client {
    pub(crate) connection: Connection,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) queues: LocalQueues,
    pub(crate) watchdog: Watchdog,
    /// One for all masters of a client.
    pub(crate) telling: Arc<Telling>,
    pub(crate) releases: Releases,
    pub(crate) ids: HolderIds,
    pub(crate) watchdog_time: Duration,
    pub(crate) policy: RenewalPolicy,
    pub(crate) fair_wait_time: Duration,
    pub(crate) mapper: Option<NameMapper>,
    pub(crate) closed: AtomicBool,
}

/// From the name that the user gives to the one that is the key.
pub(crate) type NameMapper = Arc<dyn Fn(&LockName) -> LockName + Send + Sync>;

impl Client {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A name as the user gave it, with the key that this client makes of it.
    pub(crate) fn named(&self, name: impl Into<LockName>) -> LockName {
        let name = name.into();
        let key = self.mapper.as_ref().map(|map| map(&name.with_key(None)));
        name.with_key(key)
    }
}

/// A client for locks on one Redis. Cheap to clone; clones share everything.
///
/// It owns one connection for commands and wake-ups, and one thread that renews what is held. The connection's I/O runs on the
/// runtime that opened it; if that runtime ends, the next call opens a new one on its own.
#[derive(Clone)]
pub struct Locks {
    pub(crate) client: Arc<Client>,
    /// The independent masters beside it.
    pub(crate) beside: Arc<[Arc<Client>]>,
}

impl Locks {
    /// Connects with the default settings.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/").await?;
    /// let lease = locks.reentrant("order:7").acquire().await?;
    /// // what only one may do at a time
    /// lease.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BuildError`].
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn connect(url: &str) -> Result<Locks, BuildError> {
        Locks::builder().standalone(url).build().await
    }

    /// A client with settings of its own.
    pub fn builder() -> LocksBuilder {
        LocksBuilder::default()
    }

    /// A lock that its owner can acquire again while holding it; what Redisson calls `RLock`.
    pub fn reentrant(&self, name: impl Into<LockName>) -> ReentrantLock {
        Lock::new(self.target(Reentrant::new(self.client.named(name))))
    }

    /// As [`reentrant`](Self::reentrant), and whoever has waited longest comes first, over all processes; what Redisson calls
    /// `RFairLock`, in one queue with its waiters.
    ///
    /// An acquire that has to wait queues in Redis once it listens for its turn. From then on its order is kept, however long it
    /// waits. One that is dropped or reaches its wait limit leaves at once; a `try_acquire` never queues.
    ///
    /// **Dead waiters.** One whose process was killed is passed over at the next release or the end of the lock, since nobody
    /// listens on its channel. One whose connection seems to live (a frozen process, a machine without power) holds the others
    /// up until what was left of the lock and its [wait time](LocksBuilder::fair_wait_time) have gone by, once for all waiters of
    /// that client. A dead waiter of Redisson's costs its own wait time, each. A future that is kept and not polled counts as
    /// frozen.
    ///
    /// **Lost places.** A waiter whose connection breaks as its turn comes queues anew, as the last. So does one whose process
    /// stood still for half its wait time. A user who may not subscribe has no place: it gets the lock when nobody waits.
    ///
    /// **Clocks.** Scores are the server's time. A Redisson client goes by its own clock: one that is ahead by more than half the
    /// wait time (2.5 min by default) takes living waiters of ours out, and they queue anew; one that is ahead by less does no
    /// harm, and one that is behind leaves dead waiters in the queue for longer, by as much.
    ///
    /// **Cost.** An acquire that has to wait is three script calls, a subscription of its own and one call a second at most; a
    /// hand-over moves the scores of all waiters, as Redisson's does, so its work in Redis grows with the queue.
    ///
    /// Beside what other kinds need, the user needs `+lindex +lpop +lpos +lrange +lrem +rpush +zadd +zrange +zrem +zscore
    /// +exists`, the keys `redisson_lock_queue:*` and `redisson_lock_timeout:*`, and should have `+pubsub|numsub`: without it a
    /// listener by pattern makes dead waiters seem alive.
    pub fn fair(&self, name: impl Into<LockName>) -> FairLock {
        Lock::new(self.target(Fair::new(self.client.named(name), self.client.fair_wait_time)))
    }

    /// Many readers or one writer; what Redisson calls `RReadWriteLock`.
    pub fn read_write(&self, name: impl Into<LockName>) -> ReadWriteLock {
        ReadWriteLock::new(self.client.clone(), self.client.named(name))
    }

    /// As [`reentrant`](Self::reentrant), for waiters that ask at intervals (1 ms doubling to 128 ms, with jitter) instead of
    /// subscribing: for very short holds, or where pub/sub is not allowed. Shares names with reentrant locks.
    pub fn spin(&self, name: impl Into<LockName>) -> SpinLock {
        Lock::new(self.target(Spin::new(self.client.named(name))))
    }

    /// As [`reentrant`](Self::reentrant), with a fencing token that grows with every acquire; what Redisson calls `RFencedLock`.
    ///
    /// The token also grows over a Redis that lost its data or its last writes, as long as the server's clock is not set back.
    /// Counters are never deleted: one small key a name stays in Redis.
    pub fn fenced(&self, name: impl Into<LockName>) -> FencedLock {
        Lock::new(self.target(Fenced::new(self.client.named(name))))
    }

    /// A lock of the kind that configuration names. Of a read-write lock it is the half for those who write; of the kind `multi`
    /// it is one over this name alone; of the kind `quorum` it is a reentrant one of [`quorum`](Self::quorum).
    pub fn lock(&self, kind: LockKind, name: impl Into<LockName>) -> Box<dyn Lockable> {
        match kind {
            LockKind::Reentrant => Box::new(self.reentrant(name)),
            LockKind::Fair => Box::new(self.fair(name)),
            LockKind::ReadWrite => Box::new(self.read_write(name).write()),
            LockKind::Spin => Box::new(self.spin(name)),
            LockKind::Fenced => Box::new(self.fenced(name)),
            LockKind::Multi => Box::new(self.multi([name])),
            LockKind::Quorum => Box::new(self.quorum().reentrant(name)),
        }
    }

    /// As [`lock`](Self::lock) for those who only read: they share a read-write lock, and take every other kind as it is.
    pub fn lock_for_reading(&self, kind: LockKind, name: impl Into<LockName>) -> Box<dyn Lockable> {
        match kind {
            LockKind::ReadWrite => Box::new(self.read_write(name).read()),
            other => self.lock(other, name),
        }
    }

    /// Several reentrant locks held as one, all or none; what Redisson calls `RMultiLock`. To everybody else each of them is an
    /// ordinary lock.
    ///
    /// They are taken in one step, so none is held while another is waited for, and callers that name them in different order
    /// cannot block each other for ever. Under much contention for single names a caller that needs many may wait long.
    pub fn multi<N: Into<LockName>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let names = names.into_iter().map(|name| self.client.named(name));
        Lock::new(self.target(Multi::new(names)))
    }

    /// This client's master and those that were given [beside it](LocksBuilder::masters_beside), which are asked together. Without
    /// any, the one master is its own majority: that is a lock like any other, with a quorum's costs.
    pub fn quorum(&self) -> Quorum {
        Quorum::of(self.clients().cloned().collect())
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = &Arc<Client>> {
        std::iter::once(&self.client).chain(self.beside.iter())
    }

    fn target(&self, mode: impl Mode) -> Target {
        Target::One(Node {
            client: self.client.clone(),
            mode: Arc::new(mode),
        })
    }

    /// Takes over a lock that [`Lease::hand_off`] let go of, in this process or another: Redis is asked whether the hold is still
    /// there, and gives it to this client in the same step. The lease has the kind, names and fencing token of the one before, an owner
    /// and a holder id of its own, and this client's renewal policy. It is renewed if that one was, and ends when that one would have
    /// if not. A longest hold goes on; on another machine the time on the way is not counted, at most a lease time.
    ///
    /// Only the first who adopts finds the hold. What is never adopted ends with its lease time.
    ///
    /// # Errors
    /// [`AdoptError::Gone`]: it has ended, or was adopted by another; and what else [`AdoptError`] names.
    ///
    /// # Cancel safety
    /// What may have been adopted is given back in the background.
    pub async fn adopt(&self, handed_off: &HandedOff) -> Result<Lease, AdoptError> {
        match (handed_off.masters(), handed_off.holders()) {
            (Some(_), _) => self.quorum().adopt(handed_off).await,
            (None, [(_, holder)]) => {
                let node = handed_off.node(&self.client)?;
                let adopted = hand_off::adopt(node, handed_off, holder, None).await?;
                Ok(adopted.into())
            }
            (None, _) => Err(AdoptError::Malformed),
        }
    }

    /// A new owner: pass it to several acquires to make them re-entrant to each other.
    pub fn owner(&self) -> Owner {
        Owner::new()
    }

    /// What operators need: look at a lock, take it away from its holder. It sees the one master of this client; those beside it are
    /// seen by clients of their own.
    pub fn admin(&self) -> Admin {
        Admin::new(self.client.clone())
    }

    /// The first part of every holder id of this client.
    pub fn id(&self) -> &str {
        self.client.ids.client()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// What happens to the leases of this client from now on: each renewal, and each change, on each of its masters. A slow reader
    /// holds nothing up; it is told how many events it has missed. The events end when the client is gone.
    ///
    /// It costs nothing before it is called for the first time, and little while nobody reads.
    pub fn events(&self) -> Events {
        self.client.telling.listen()
    }

    /// How much this client keeps at present, on all its masters.
    pub fn stats(&self) -> Stats {
        let sum = |of: fn(&Client) -> usize| self.clients().map(|client| of(client)).sum();
        Stats {
            holds: sum(|client| client.watchdog.len()),
            queues: sum(|client| client.queues.len()),
            subscriptions: sum(|client| client.wakeups.len()),
            releases: sum(|client| *client.releases.pending().borrow()),
        }
    }

    /// Ends the client: nothing more is acquired or renewed, and leases that are still held are lost. Releases under way in
    /// the background get until `limit` to be answered.
    ///
    /// The locks of leases that are still held end when their lease time has passed, or when the leases are dropped.
    ///
    /// # Errors
    /// [`StillPending`]: the limit came first. The releases go on.
    ///
    /// # Cancel safety
    /// The client is closed; only the waiting ends.
    pub async fn shutdown(&self, limit: Duration) -> Result<(), StillPending> {
        self.close(limit, false).await
    }

    /// As [`shutdown`](Self::shutdown), and gives back at once what is still held, so that others need not wait for the leases to
    /// end. Holders are told first, but get no time to stop: for a process that ends, when nothing works under its locks any more.
    ///
    /// # Errors
    /// [`StillPending`]: the limit came first. The releases go on.
    ///
    /// # Cancel safety
    /// The client is closed; only the waiting ends.
    pub async fn shutdown_releasing(&self, limit: Duration) -> Result<(), StillPending> {
        self.close(limit, true).await
    }

    async fn close(&self, limit: Duration, releasing: bool) -> Result<(), StillPending> {
        for client in self.clients() {
            client.closed.store(true, Ordering::Release);
            client.wakeups.wake_everybody();
        }
        let closing: Vec<_> = self.clients().map(|client| client.watchdog.close(releasing)).collect();
        let drained = tokio::time::timeout(limit, async {
            for closed in closing {
                closed.await;
            }
            for client in self.clients() {
                // The sender lives in the client.
                let _ = client.releases.pending().wait_for(|pending| *pending == 0).await;
            }
        });
        match drained.await {
            Ok(_) => Ok(()),
            Err(_) => Err(StillPending {
                releases: self.stats().releases,
            }),
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("id", &self.id()).finish()
    }
}

/// How much a client keeps: all zero when nothing is held, waited for or being given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holds that the watchdog renews or watches.
    pub holds: usize,
    /// Names that acquires of this client wait for.
    pub queues: usize,
    /// Channels that it listens to.
    pub subscriptions: usize,
    /// Releases in the background that have no answer yet.
    pub releases: usize,
}

/// A shutdown that could not wait for every release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{releases} releases are not confirmed yet; they go on in the background")]
pub struct StillPending {
    /// How many.
    pub releases: usize,
}
