//! The client: joins connection, wake-ups and watchdog, and hands out locks by name.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::connection::Connection;
use crate::error::{AdoptError, BuildError, CallError, InvalidTimes};
use crate::events::{Events, Observer, Telling};
use crate::hand_off::{self, HandedOff};
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Lease;
use crate::link::{Address, without_password};
use crate::local_queue::LocalQueues;
use crate::lock::{FairLock, FencedLock, Lock, MultiLock, ReentrantLock, SpinLock};
use crate::lockable::Lockable;
use crate::mode::{Fair, Fenced, Mode, Multi, Reentrant, Spin};
use crate::owner::{HolderIds, Owner};
use crate::policy::{RenewalPolicy, Timings};
use crate::quorum::{InvalidQuorum, Quorum};
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
    mapper: Option<NameMapper>,
    closed: AtomicBool,
}

/// From the name that the user gives to the one that is the key.
type NameMapper = Arc<dyn Fn(&LockName) -> LockName + Send + Sync>;

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
    client: Arc<Client>,
    /// The independent masters beside it.
    beside: Arc<[Arc<Client>]>,
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

    fn clients(&self) -> impl Iterator<Item = &Arc<Client>> {
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

/// The settings of a client.
#[derive(Clone)]
#[must_use = "nothing is connected before build is awaited"]
pub struct LocksBuilder {
    url: String,
    beside: Vec<String>,
    watchdog_time: Duration,
    policy: RenewalPolicy,
    command_timeout: Duration,
    fair_wait_time: Duration,
    mapper: Option<NameMapper>,
    observer: Option<Arc<dyn Observer>>,
}

impl Default for LocksBuilder {
    fn default() -> Self {
        LocksBuilder {
            url: "redis://127.0.0.1/".into(),
            beside: Vec::new(),
            watchdog_time: DEFAULT_WATCHDOG_TIME,
            policy: RenewalPolicy::default(),
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            fair_wait_time: DEFAULT_FAIR_WAIT_TIME,
            mapper: None,
            observer: None,
        }
    }
}

impl LocksBuilder {
    /// One Redis server: `redis://host:port/db`, `redis://user:password@host/`, `unix:///path`. Default: `redis://127.0.0.1/`.
    pub fn standalone(mut self, url: &str) -> Self {
        self.url = url.to_owned();
        self
    }

    /// Independent masters beside the one of [`standalone`](Self::standalone), for [`Locks::quorum`]: two, four or any larger even
    /// number, so that all together are odd. Default: none.
    ///
    /// All of them have the settings of this client, and its observer hears of each. Each has connections and a renewal thread of its own. Every other kind of lock is on the one master
    /// alone. A minority may be out of reach when the client is built; the lost ones are tried again at each acquire.
    pub fn masters_beside<'a>(mut self, urls: impl IntoIterator<Item = &'a str>) -> Self {
        self.beside = urls.into_iter().map(str::to_owned).collect();
        self
    }

    /// How long Redis keeps a lock that is acquired without a lease time, if nobody renews it. It is renewed each third of it.
    /// Default: 30 s, as in Redisson. A holder that crashes blocks others for up to this long.
    pub fn watchdog_time(mut self, time: Duration) -> Self {
        self.watchdog_time = time;
        self
    }

    /// What a failed renewal leads to, unless an acquire says otherwise. Default: [`RenewalPolicy::deadline`].
    pub fn renewal(mut self, policy: RenewalPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How long one command may take before its connection counts as silent and is replaced. Default: 3 s.
    pub fn command_timeout(mut self, limit: Duration) -> Self {
        self.command_timeout = limit;
        self
    }

    /// How long a waiter of a fair lock may be silent before it counts as dead, beyond what is left of the lock. A shorter wait
    /// limit counts instead. Default: 5 min, as in Redisson.
    ///
    /// Living waiters keep their places whatever it is; it is the time that a frozen one costs the others. Each asks about once a
    /// second, so below some seconds a busy machine makes living ones lose their places.
    pub fn fair_wait_time(mut self, time: Duration) -> Self {
        self.fair_wait_time = time;
        self
    }

    /// What the key of each lock is called, made of its name; what Redisson calls a name mapper. Default: the name itself.
    ///
    /// The mapped name is the lock's key, and channels and further keys are made of it. The user's name is what leases, errors
    /// and events show. Every client of one lock must map alike. Two names that are mapped to one key are one lock in Redis, but
    /// an owner of one of them does not re-enter the other.
    ///
    /// ```
    /// # use leasehold::{Locks, LockName};
    /// let builder = Locks::builder().name_mapper(|name| format!("shop:{name}").into());
    /// ```
    pub fn name_mapper(mut self, mapper: impl Fn(&LockName) -> LockName + Send + Sync + 'static) -> Self {
        self.mapper = Some(Arc::new(mapper));
        self
    }

    /// A [name mapper](Self::name_mapper) that puts this in front of every name.
    pub fn name_prefix(self, prefix: &str) -> Self {
        let prefix = prefix.as_bytes().to_vec();
        self.name_mapper(move |name| [&prefix, name.as_bytes()].concat().into())
    }

    /// Who hears of each renewal and each change of a lease, as it happens; [`Locks::events`] tells the same to whoever has time.
    /// Default: nobody.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Checks the settings, connects and starts the watchdog's thread.
    ///
    /// # Errors
    /// [`BuildError`].
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn build(self) -> Result<Locks, BuildError> {
        let watchdog_time = crate::options::whole_millis(self.watchdog_time)?;
        Timings::renewed(&self.policy, watchdog_time)?;
        if self.command_timeout.is_zero() {
            let refusal = "a command timeout of zero would let no command be answered; 3 s is the default";
            return Err(InvalidTimes::new(refusal.into()).into());
        }
        if !self.beside.is_empty() {
            InvalidQuorum::check(1 + self.beside.len())?;
        }
        let telling = Arc::new(Telling::new(self.observer.clone()));
        let locks = Locks {
            client: self.client(&self.url, &telling)?,
            beside: self
                .beside
                .iter()
                .map(|url| self.client(url, &telling))
                .collect::<Result<_, _>>()?,
        };
        // Side by side: one that is silent takes the whole command timeout.
        let mut opening = JoinSet::new();
        for (client, url) in locks.clients().zip(std::iter::once(&self.url).chain(&self.beside)) {
            let (client, url) = (client.clone(), without_password(url));
            opening.spawn(async move { (client.connection.open().await, url) });
        }
        let (mut open, mut unreachable) = (0, None);
        while let Some(opened) = opening.join_next().await {
            match opened {
                Ok((Ok(()), _)) => open += 1,
                Ok((Err(source @ CallError::Denied { .. }), url)) => return Err(BuildError::Denied { url, source }),
                Ok((Err(source), url)) => unreachable = Some(BuildError::Unreachable { url, source }),
                // It does not panic, and nobody aborts it.
                Err(_) => {}
            }
        }
        match unreachable {
            Some(error) if open <= self.beside.len() / 2 => Err(error),
            _ => Ok(locks),
        }
    }

    /// The client of one master, which is not connected yet.
    fn client(&self, url: &str, telling: &Arc<Telling>) -> Result<Arc<Client>, BuildError> {
        let address = Address::parse(url)?;
        let wakeups = Arc::new(Wakeups::default());
        let (releases, work) = Releases::new();
        let client = Client {
            connection: Connection::new(address.clone(), self.command_timeout, wakeups.clone()),
            wakeups,
            queues: LocalQueues::default(),
            watchdog: Watchdog::start(address, telling.clone(), work).map_err(BuildError::Thread)?,
            telling: telling.clone(),
            releases,
            ids: HolderIds::new(),
            watchdog_time: crate::options::whole_millis(self.watchdog_time)?,
            policy: self.policy.clone(),
            fair_wait_time: crate::options::fair_wait_time(self.fair_wait_time)?,
            mapper: self.mapper.clone(),
            closed: AtomicBool::new(false),
        };
        Ok(Arc::new(client))
    }
}

impl fmt::Debug for LocksBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocksBuilder")
            .field("url", &without_password(&self.url))
            .field("masters_beside", &self.beside.len())
            .field("watchdog_time", &self.watchdog_time)
            .field("policy", &self.policy)
            .field("command_timeout", &self.command_timeout)
            .field("fair_wait_time", &self.fair_wait_time)
            .finish_non_exhaustive()
    }
}

/// As in Redisson, so that both sides of a shared lock behave alike.
const DEFAULT_WATCHDOG_TIME: Duration = Duration::from_secs(30);
/// As in Redisson.
const DEFAULT_FAIR_WAIT_TIME: Duration = Duration::from_secs(5 * 60);
/// As in Redisson.
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
