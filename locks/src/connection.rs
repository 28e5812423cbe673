//! The only file that speaks to Redis: opens connections, runs calls on them with a time limit, and passes messages on.
//!
//! A [`Connection`] replaces its link when it breaks or falls silent. The new link first kills the old one on the server
//! (`CLIENT KILL ID`), so that whatever was in flight there has run or never will: no command of ours runs late.
//! A frozen server would otherwise execute what lies in a socket long after we closed it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::answer;
use crate::clock::{self, Moment};
use crate::error::{BuildError, CallError};
use crate::keys::Channel;
use crate::owner::lock;
use crate::script::Call;
use crate::wakeup::{Request, Wakeups};

/// Where Redis is.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    client: redis::Client,
}

impl Address {
    /// Reads an address: `redis://host:port/db`, `rediss://`, `unix:///path`.
    pub(crate) fn parse(url: &str) -> Result<Self, BuildError> {
        let wrong = |source| BuildError::Address {
            url: without_password(url),
            source,
        };
        let info = url.into_connection_info().map_err(wrong)?;
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let client = redis::Client::open(info).map_err(wrong)?;
        Ok(Address { client })
    }
}

/// The address for an error message.
pub(crate) fn without_password(url: &str) -> String {
    // The query can hold one too.
    let url = url.split('?').next().unwrap_or_default();
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => format!("{}{}", &url[..scheme + 3], &url[at + 1..]),
        _ => url.to_owned(),
    }
}

/// One open link to a server. Its driver lives on the runtime that opened it.
#[derive(Clone)]
pub(crate) struct Link {
    redis: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    /// `None` if nobody asked for it, or this user may not.
    identity: Option<Identity>,
}

/// By which the server knows a link. A restarted server counts its clients anew, so the run belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    run: String,
    client: i64,
}

impl Link {
    /// Opens a link that listens to no channel.
    pub(crate) async fn open(address: &Address, limit: Duration) -> Result<Link, CallError> {
        within(limit, Self::connect(address, |_| ())).await
    }

    /// Opens a link; `hear` is told of every push that comes.
    async fn connect(address: &Address, hear: impl Fn(&PushInfo) + Send + Sync + 'static) -> Result<Link, RedisError> {
        let alive = Arc::new(AtomicBool::new(true));
        let flag = Flag(alive.clone());
        let pushes = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                flag.lower();
            }
            hear(&info);
            Ok::<(), std::convert::Infallible>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_push_sender(pushes)
            .set_response_timeout(None)
            .set_connection_timeout(None);
        let redis = address
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Link {
            redis,
            alive,
            identity: None,
        })
    }

    async fn identify(&self) -> Result<Option<Identity>, RedisError> {
        let mut id = redis::cmd("CLIENT");
        id.arg("ID");
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let answers = tokio::join!(self.send(&id), self.send(&info));
        let (id, info) = match answers {
            (Ok(id), Ok(info)) => (id, info),
            // The link works, it just cannot be named.
            (Err(error), _) | (_, Err(error)) if answer::is_forbidden(&error) => return Ok(None),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let info: String = redis::from_redis_value(info)?;
        let Some(run) = info.lines().find_map(|line| line.strip_prefix("run_id:")) else {
            return Ok(None);
        };
        Ok(Some(Identity {
            run: run.to_owned(),
            client: redis::from_redis_value(id)?,
        }))
    }

    /// Whether the link has not been closed yet, as far as is known.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Runs a call; a script that the server does not know is sent along within it.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value, CallError> {
        match self.send(&call.command).await {
            Err(error) if answer::is_unknown_script(&error) => self.send(&call.with_body()).await,
            other => other,
        }
        .map_err(|error| {
            if error.is_unrecoverable_error() {
                self.alive.store(false, Ordering::Release);
            }
            answer::classify(call.text.name, error)
        })
    }

    async fn send(&self, command: &redis::Cmd) -> Result<Value, RedisError> {
        let mut redis = self.redis.clone();
        redis.send_packed_command(command).await?.extract_error()
    }

    /// Ends links on the server. What was in flight on them has run, or never will. A restarted server has ended them itself.
    async fn fence(&self, doomed: &[Option<Identity>]) -> Result<(), RedisError> {
        for old in doomed {
            let (Some(old), Some(own)) = (old, &self.identity) else {
                return Err((
                    redis::ErrorKind::AuthenticationFailed,
                    "this user may not run CLIENT ID and INFO",
                )
                    .into());
            };
            if old.run != own.run {
                continue;
            }
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(old.client);
            self.send(&kill).await?;
        }
        Ok(())
    }
}

/// A connection that replaces its link when it breaks or falls silent.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    address: Address,
    /// The longest time one command may take before its link counts as silent.
    command_timeout: Duration,
    wakeups: Arc<Wakeups>,
    state: Mutex<State>,
    /// How the newest opening ended.
    news: watch::Sender<News>,
}

#[derive(Default)]
struct State {
    link: Option<(u64, Link)>,
    /// The number of the newest link, or of the one being opened.
    generation: u64,
    /// Since when a link is being opened.
    opening: Option<Moment>,
    /// Links that were given up and are not fenced yet.
    doomed: Vec<Option<Identity>>,
    warned: bool,
}

#[derive(Clone, Default)]
struct News {
    generation: u64,
    error: Option<CallError>,
}

impl Connection {
    pub(crate) fn new(address: Address, command_timeout: Duration, wakeups: Arc<Wakeups>) -> Self {
        Connection {
            shared: Arc::new(Shared {
                address,
                command_timeout,
                wakeups,
                state: Mutex::default(),
                news: watch::Sender::default(),
            }),
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.shared.command_timeout
    }

    /// Runs a call within the command timeout, and `until` at the latest if it is given.
    ///
    /// A call that got no answer within the command timeout gives the link up: the next one runs on a new link, behind the
    /// fence. One that only `until` cut short leaves the link alone.
    pub(crate) async fn run(&self, call: &Call, until: Option<Moment>) -> Result<Value, CallError> {
        let (generation, link) = self.link(until).await?;
        let full = self.shared.command_timeout;
        let limit = until.map_or(full, |until| until.since(clock::now()).min(full));
        match timeout(limit, link.run(call)).await {
            Ok(Err(error)) if error.outcome_unknown() => {
                self.shared.give_up(generation);
                Err(error)
            }
            Ok(result) => result,
            Err(_) => {
                if limit == full {
                    self.shared.give_up(generation);
                }
                Err(CallError::Unanswered {
                    script: call.text.name,
                    source: None,
                })
            }
        }
    }

    /// Opens the link if there is none.
    pub(crate) async fn open(&self) -> Result<(), CallError> {
        self.link(None).await.map(|_| ())
    }

    async fn link(&self, until: Option<Moment>) -> Result<(u64, Link), CallError> {
        if let Some(link) = lock(&self.shared.state).link.clone() {
            return Ok(link);
        }
        let full = self.shared.command_timeout;
        let limit = until.map_or(full, |until| until.since(clock::now()).min(full));
        let opened = async {
            let mut news = self.shared.news.subscribe();
            loop {
                let awaited = match self.shared.link_or_opening() {
                    Ok(link) => return Ok(link),
                    Err(generation) => generation,
                };
                let heard = news.wait_for(|news| news.generation >= awaited).await;
                // The sender lives in `shared`.
                let heard = heard.map(|news| news.clone()).unwrap_or_default();
                if let (true, Some(error)) = (heard.generation == awaited, heard.error) {
                    return Err(error);
                }
            }
        };
        timeout(limit, opened)
            .await
            .unwrap_or(Err(CallError::Unreachable { source: None }))
    }
}

impl Shared {
    /// The link, or the number of the opening to wait for. One that is under way for longer than it may take, on a runtime that
    /// stands still perhaps, is not waited for: another is begun.
    fn link_or_opening(self: &Arc<Self>) -> Result<(u64, Link), u64> {
        let mut state = lock(&self.state);
        if let Some(link) = state.link.clone() {
            return Ok(link);
        }
        let now = clock::now();
        let under_way = state
            .opening
            .is_some_and(|since| now.since(since) < self.command_timeout);
        if !under_way {
            state.generation += 1;
            state.opening = Some(now);
            // A task of its own: a caller that leaves must not make the next one start again.
            tokio::spawn(self.clone().reopen(state.generation, state.doomed.clone()));
        }
        Err(state.generation)
    }

    async fn reopen(self: Arc<Self>, generation: u64, doomed: Vec<Option<Identity>>) {
        let opened = self.open_behind_fence(generation, &doomed).await;
        let mut state = lock(&self.state);
        if state.generation != generation {
            // Overtaken by a later opening.
            return;
        }
        state.opening = None;
        let error = match opened {
            Ok(link) => {
                let requests = serve_subscriptions(link.clone(), &self, generation);
                state.doomed.retain(|old| !doomed.contains(old));
                state.link = Some((generation, link));
                // Under the same lock: a link that breaks right now must be known to the waiters before it is given up.
                self.wakeups.connected(generation, requests);
                None
            }
            Err(error) => Some(error),
        };
        drop(state);
        self.news.send_replace(News { generation, error });
    }

    async fn open_behind_fence(
        self: &Arc<Self>,
        generation: u64,
        doomed: &[Option<Identity>],
    ) -> Result<Link, CallError> {
        let ears = Ears {
            connection: Arc::downgrade(self),
            generation,
        };
        within(self.command_timeout, async {
            let mut link = Link::connect(&self.address, move |info| ears.hear(info)).await?;
            link.identity = link.identify().await?;
            match link.fence(doomed).await {
                Err(error) if answer::is_forbidden(&error) => self.warn_of_missing_fence(&error),
                other => other?,
            }
            Ok(link)
        })
        .await
    }

    /// Gives a link up. Everybody who waits on a wake-up from it is woken to try again.
    fn give_up(&self, generation: u64) {
        let mut state = lock(&self.state);
        if let Some((_, link)) = state.link.take_if(|(current, _)| *current == generation) {
            state.doomed.push(link.identity.clone());
            // Under the same lock: the waiters must know before the next link is there.
            self.wakeups.disconnected(generation);
        }
    }

    fn warn_of_missing_fence(&self, error: &RedisError) {
        if !std::mem::replace(&mut lock(&self.state).warned, true) {
            tracing::warn!(
                %error,
                "a lost connection cannot be ended on the server, so a late command of it can take a lock until its lease \
                 time has passed; allow this user +client|id +client|kill +info"
            );
        }
    }
}

/// Lowered when the link's driver says that it is closed, or ends itself.
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn lower(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.lower();
    }
}

/// What a link's driver tells us. Dropped with the driver, so a runtime that ends gives its link up too.
struct Ears {
    connection: Weak<Shared>,
    generation: u64,
}

impl Ears {
    fn hear(&self, info: &PushInfo) {
        let Some(connection) = self.connection.upgrade() else {
            return;
        };
        match (&info.kind, info.data.as_slice()) {
            (PushKind::Disconnection, _) => connection.give_up(self.generation),
            (PushKind::Message, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                connection.wakeups.message(&Channel::new(channel), payload);
            }
            _ => {}
        }
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.give_up(self.generation);
        }
    }
}

/// Subscribes and unsubscribes in the order asked, on the link's own runtime, so that no caller's departure can leave it half done.
/// Ends when the link is given up, and gives it up itself if it falls silent.
fn serve_subscriptions(link: Link, shared: &Arc<Shared>, generation: u64) -> mpsc::UnboundedSender<Request> {
    let (sender, mut requests) = mpsc::unbounded_channel::<Request>();
    // The table holds the sender that keeps this task alive, so the task must not hold the table.
    let (wakeups, limit, shared) = (
        Arc::downgrade(&shared.wakeups),
        shared.command_timeout,
        Arc::downgrade(shared),
    );
    tokio::spawn(async move {
        let mut redis = link.redis;
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(request) => request,
                None => match requests.recv().await {
                    Some(request) => request,
                    None => return,
                },
            };
            let subscribes = first.is_subscribe();
            let mut batch = vec![first];
            while let Ok(request) = requests.try_recv() {
                if request.is_subscribe() != subscribes {
                    next = Some(request);
                    break;
                }
                batch.push(request);
            }
            let channels: Vec<&[u8]> = batch.iter().map(Request::channel).collect();
            let work = async {
                match subscribes {
                    true => redis.subscribe(&channels).await,
                    false => redis.unsubscribe(&channels).await,
                }
            };
            let Ok(result) = timeout(limit, work).await else {
                if let Some(shared) = shared.upgrade() {
                    shared.give_up(generation);
                }
                return;
            };
            let Some(wakeups) = wakeups.upgrade() else {
                return;
            };
            match &result {
                Err(error) if answer::is_forbidden(error) => warn_of_deafness(error),
                Err(error) => tracing::debug!(%error, subscribes, "waiters ask at intervals until the next link"),
                Ok(()) => {}
            }
            for request in &batch {
                wakeups.subscribed(request, result.is_ok());
            }
        }
    });
    sender
}

fn warn_of_deafness(error: &RedisError) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::warn!(%error, "this user may not subscribe to wake-ups, so waiters ask at intervals; allow its channels");
    });
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, CallError> {
    match timeout(limit, work).await {
        Ok(result) => result.map_err(|error| {
            let forbidden = answer::is_forbidden(&error);
            let code = error.code().unwrap_or("AUTH").into();
            let source = Arc::new(error);
            match forbidden {
                true => CallError::Denied {
                    script: "connect",
                    code,
                    source,
                },
                false => CallError::Unreachable { source: Some(source) },
            }
        }),
        Err(_) => Err(CallError::Unreachable { source: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        assert_eq!(without_password("redis://user:se:cr@t@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://host/"), "redis://host/");
        assert_eq!(
            without_password("unix:///run/r.sock?user=me&pass=secret"),
            "unix:///run/r.sock"
        );
        assert_eq!(without_password("nonsense"), "nonsense");
    }

    #[test]
    fn a_wrong_address_says_what_to_write() {
        let error = Address::parse("htp:/nowhere").unwrap_err();
        assert!(error.to_string().contains("redis://host:port/"), "{error}");
        assert!(Address::parse("unix:///tmp/redis.sock").is_ok());
    }
}
