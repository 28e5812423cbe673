//! The driver of a real Redisson: a JVM behind one JSON line an order (`peers/redisson`), built by Maven when it is first used.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use crate::clock;
use crate::real::RealClient;

use super::{Access, Driver, Hold, Refusal, RenewalSeen, Watcher};

/// What a real Redisson is driven with.
pub struct RedissonOptions {
    /// Which release.
    pub client: RealClient,
    /// The server, or a leg of the proxy to it.
    pub url: String,
    /// The server itself: there its renewals are seen, whatever the proxy does.
    pub observe: String,
    /// How long Redis keeps a lock that is not renewed.
    pub lease: Duration,
    /// How many locks will be taken.
    pub locks: u64,
    /// Told of every renewal.
    pub watcher: Watcher,
    /// Told whenever the JVM stood still: from when to when, in nanoseconds of the boot-time clock.
    pub stood_still: Arc<dyn Fn(u64, u64) + Send + Sync>,
}

/// Drives the fenced lock of a real Redisson, under its own watchdog.
#[derive(Clone)]
pub struct RedissonDriver {
    peer: Arc<Peer>,
    locks: u64,
    taken: Arc<AtomicU64>,
}

/// A lock that a thread of the peer holds.
pub struct RedissonHold {
    peer: Arc<Peer>,
    name: String,
    thread: u64,
    fence: u64,
}

struct Peer {
    orders: tokio::sync::Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
    /// Ids of its clients, by their number.
    clients: Vec<String>,
    watched: Watched,
    // Killed when it is dropped.
    _process: Child,
}

/// Told from when to when somebody stood still.
type StoodStill = Arc<dyn Fn(u64, u64) + Send + Sync>;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Value, String>>>>>;

/// The locks that are held, by name: the holder in Redis, and the end of the lease as far as it is known.
type Watched = Arc<Mutex<HashMap<String, (String, u64)>>>;

impl RedissonDriver {
    /// Starts the peer and connects its clients.
    ///
    /// # Errors
    /// What the system or the peer says, in words.
    pub async fn connect(options: RedissonOptions) -> Result<Self, String> {
        let mut process = tokio::process::Command::from(options.client.command(&options.url))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("a JVM cannot be started: {error}"))?;
        let (Some(orders), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("a JVM cannot be spoken to".to_owned());
        };
        let waiting = Waiting::default();
        tokio::spawn(hear(answers, Arc::clone(&waiting), options.stood_still));
        let mut peer = Peer {
            orders: tokio::sync::Mutex::new(orders),
            waiting,
            next: AtomicU64::new(1),
            clients: Vec::new(),
            watched: Watched::default(),
            _process: process,
        };
        for number in 0..CLIENTS {
            let mut order = options.client.settings(options.lease);
            order["op"] = json!("connect");
            order["client"] = json!(number.to_string());
            order["redis"] = json!(options.url);
            let id = peer.order(order).await?;
            peer.clients.push(id.as_str().unwrap_or_default().to_owned());
        }
        // Collecting garbage, compiling: a JVM has pauses of its own.
        peer.order(json!({"op": "pulse", "every_ms": 5})).await?;
        tokio::spawn(observe(
            options.observe,
            options.lease,
            Arc::clone(&peer.watched),
            options.watcher,
        ));
        Ok(Self {
            peer: Arc::new(peer),
            locks: options.locks,
            taken: Arc::default(),
        })
    }
}

impl Driver for RedissonDriver {
    type Hold = RedissonHold;

    async fn acquire(&self, name: &str, _access: Access, wait: Duration) -> Result<RedissonHold, Refusal> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        // Since 3.44 a client renews all its locks at one moment; the next clients take theirs later, so that all phases occur.
        let client = (number * CLIENTS / self.locks.max(1)).min(CLIENTS - 1);
        let failed = Refusal::Failed;
        let peer = &self.peer;
        let open = json!({"op": "open", "client": client.to_string(), "lock": name, "kind": "fenced", "name": name});
        peer.order(open).await.map_err(failed)?;
        let thread = peer
            .order(json!({"op": "thread", "thread": number}))
            .await
            .map_err(failed)?;
        let fence = peer.take(name, number, wait).await?;
        let holder = format!("{}:{thread}", peer.clients[client as usize]);
        lock(&peer.watched).insert(name.to_owned(), (holder, 0));
        Ok(RedissonHold {
            peer: Arc::clone(peer),
            name: name.to_owned(),
            thread: number,
            fence,
        })
    }

    async fn close(self) {
        // Its locks end with their leases.
    }
}

impl Hold for RedissonHold {
    fn attempts(&self) -> u64 {
        1
    }

    fn fence(&self) -> u64 {
        self.fence
    }

    fn is_valid(&self) -> bool {
        // It asks the server, or nobody.
        true
    }

    fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        // Redisson tells nobody.
        pending()
    }

    async fn reenter(&self, wait: Duration) -> Result<Self, Refusal> {
        let fence = self.peer.take(&self.name, self.thread, wait).await?;
        Ok(Self {
            peer: Arc::clone(&self.peer),
            name: self.name.clone(),
            thread: self.thread,
            fence,
        })
    }

    async fn release(self) -> Result<bool, Refusal> {
        lock(&self.peer.watched).remove(&self.name);
        let unlock = json!({"op": "unlock", "lock": self.name, "thread": self.thread});
        match self.peer.order(unlock).await {
            Ok(_) => Ok(true),
            Err(error) if error == "IllegalMonitorStateException" => Ok(false),
            Err(error) => Err(Refusal::Failed(error)),
        }
    }
}

impl Peer {
    /// Takes an opened lock as a thread of the peer; what it gets is the fencing token.
    async fn take(&self, name: &str, thread: u64, wait: Duration) -> Result<u64, Refusal> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let take =
            json!({"op": "tryLockAndGetToken", "lock": name, "thread": thread, "wait_ms": wait_ms, "lease_ms": -1});
        let token = self.order(take).await.map_err(Refusal::Failed)?;
        token.as_u64().ok_or(Refusal::Busy)
    }

    async fn order(&self, mut order: Value) -> Result<Value, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        order["id"] = json!(id);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        let line = format!("{order}\n");
        let written = self.orders.lock().await.write_all(line.as_bytes()).await;
        written.map_err(|error| format!("the JVM takes no orders: {error}"))?;
        answered.await.map_err(|_| "the JVM has ended".to_owned())?
    }
}

async fn hear(answers: ChildStdout, waiting: Waiting, stood_still: StoodStill) {
    let mut lines = BufReader::new(answers).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer: Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(late_ns) = answer["late_ns"].as_u64() {
            let now_ns = clock::now_ns();
            stood_still(now_ns.saturating_sub(late_ns), now_ns);
        }
        let Some(caller) = answer["id"].as_u64().and_then(|id| lock(&waiting).remove(&id)) else {
            continue;
        };
        let result = match answer["ok"].as_bool() {
            Some(true) => Ok(answer["value"].clone()),
            _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        };
        // Whoever asked may have left.
        let _ = caller.send(result);
    }
    lock(&waiting).clear();
}

/// Tells of every renewal, as it shows in Redis: the end of a lease that moved on. Good to two milliseconds, since leases end in whole
/// ones and the answer takes its time. Two renewals within a look would pass for the later one.
async fn observe(url: String, lease: Duration, watched: Watched, watcher: Watcher) {
    let client = redis::Client::open(url);
    let connection = async { client?.get_multiplexed_async_connection().await };
    let Ok(mut connection) = connection.await else {
        eprintln!("lockbench worker: the server cannot be observed");
        return;
    };
    let lease_ns = crate::scenario::nanos(lease);
    loop {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let looked_at: Vec<(String, String)> = lock(&watched)
            .iter()
            .map(|(name, (holder, _))| (name.clone(), holder.clone()))
            .collect();
        if looked_at.is_empty() {
            continue;
        }
        let mut pipe = redis::pipe();
        pipe.atomic();
        for (name, holder) in &looked_at {
            pipe.hexists(name, holder).pttl(name);
        }
        let asked_ns = clock::now_ns();
        let Ok(answers) = pipe.query_async::<Vec<i64>>(&mut connection).await else {
            continue;
        };
        let now_ns = asked_ns.midpoint(clock::now_ns());
        let mut watched = lock(&watched);
        for ((name, _), answer) in looked_at.into_iter().zip(answers.chunks_exact(2)) {
            let (is_ours, left_ms) = (answer[0] == 1, answer[1]);
            if !is_ours || left_ms <= 0 {
                continue;
            }
            let Some((_, end_ns)) = watched.get_mut(&name) else {
                continue;
            };
            let ends_ns = now_ns + left_ms as u64 * 1_000_000;
            if ends_ns < *end_ns + crate::scenario::nanos(MOVED) {
                continue;
            }
            // The first look finds what the acquire gave.
            let is_renewal = *end_ns != 0;
            *end_ns = ends_ns;
            if is_renewal {
                let sent_ns = ends_ns.saturating_sub(lease_ns);
                watcher(&RenewalSeen {
                    name,
                    sent_ns,
                    ended_ns: sent_ns,
                    renewed: true,
                });
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// So many clients in one JVM, each with a moment of its own for its renewals.
const CLIENTS: u64 = 8;

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A lease that ends this much later was renewed: less is the clock's and the answer's doing.
const MOVED: Duration = Duration::from_millis(20);
