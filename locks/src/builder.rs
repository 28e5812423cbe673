//! The settings of a client, checked when it is built.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::error::{BuildError, CallError, InvalidTimes};
use crate::events::{Observer, Telling};
use crate::keys::LockName;
use crate::link::{Address, without_password};
use crate::local_queue::LocalQueues;
use crate::locks::{Client, Locks, NameMapper};
use crate::owner::HolderIds;
use crate::policy::{RenewalPolicy, Timings};
use crate::quorum::InvalidQuorum;
use crate::release::Releases;
use crate::wakeup::Wakeups;
use crate::watchdog::Watchdog;

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
