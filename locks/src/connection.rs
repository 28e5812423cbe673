//! The connection that the whole client shares: runs calls with a time limit, and passes messages on.
//!
//! A [`Connection`] replaces its link when it breaks or falls silent. The new link first kills the old one on the server
//! (`CLIENT KILL ID`), so that whatever was in flight there has run or never will: no command of ours runs late.
//! A frozen server would otherwise execute what lies in a socket long after we closed it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::answer;
use crate::clock::{self, Moment};
use crate::error::CallError;
use crate::keys::Channel;
use crate::link::{Address, Identity, Link, within};
use crate::owner::lock;
use crate::script::Call;
use crate::wakeup::{Request, Wakeups};

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
    /// Lost links cannot be ended on the server, so what was sent on them may run late.
    unfenced: AtomicBool,
}

#[derive(Default)]
struct State {
    link: Option<(u64, Arc<Link>)>,
    /// The number of the newest link, or of the one being opened.
    generation: u64,
    /// Since when a link is being opened.
    opening: Option<Moment>,
    /// Links that were given up and are not fenced yet.
    doomed: Vec<Option<Arc<Identity>>>,
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
                unfenced: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.shared.command_timeout
    }

    /// Whether a request that got no answer has run, or never will, when the next one does.
    pub(crate) fn is_fenced(&self) -> bool {
        !self.shared.unfenced.load(Ordering::Relaxed)
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

    async fn link(&self, until: Option<Moment>) -> Result<(u64, Arc<Link>), CallError> {
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
    fn link_or_opening(self: &Arc<Self>) -> Result<(u64, Arc<Link>), u64> {
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

    async fn reopen(self: Arc<Self>, generation: u64, doomed: Vec<Option<Arc<Identity>>>) {
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
                state.link = Some((generation, Arc::new(link)));
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
        doomed: &[Option<Arc<Identity>>],
    ) -> Result<Link, CallError> {
        let ears = Ears {
            connection: Arc::downgrade(self),
            generation,
        };
        within(self.command_timeout, async {
            let mut link = Link::connect(&self.address, move |info| ears.hear(info)).await?;
            link.identity = link.identify().await?;
            self.unfenced.store(link.identity.is_none(), Ordering::Relaxed);
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
                "a lost connection cannot be ended on the server, so what was sent on it may run late; tombstones beside the locks \
                 keep it from taking any. Allow this user +client|id +client|kill +info"
            );
        }
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
