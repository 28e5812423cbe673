//! What every test of this module begins with, and its words for "they wait" and "ours wait".

use std::time::Duration;

use leasehold::{Acquire, AcquireError, Lease, Locks};
use leasehold_bench::proxy::{Leg, Proxy};
use leasehold_bench::servers::RedisServer;
use serde_json::json;
use tests::{LONG, WATCHDOG, channels, eventually_async, fresh_server, script_calls, settings};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::peer::{self, Peer, Pending};

/// A server, a client of ours and a real Redisson on it.
pub(super) struct Stage {
    pub(super) peer: Peer,
    pub(super) locks: Locks,
    pub(super) fair_wait: Duration,
    _leg: Leg,
    _proxy: Proxy,
    pub(super) server: RedisServer,
    _turn: SemaphorePermit<'static>,
}

impl Stage {
    /// `None` if a Redisson cannot be had here.
    pub(super) async fn new() -> Option<Self> {
        Self::with_fair_wait(5 * MINUTE).await
    }

    /// The same with another wait time for the waiters of fair locks, on both sides.
    pub(super) async fn with_fair_wait(fair_wait: Duration) -> Option<Self> {
        if peer::is_missing() {
            return None;
        }
        let turn = AT_ONCE.acquire().await.expect("never closed");
        let server = fresh_server();
        // Redisson speaks TCP, the server listens on a socket.
        let proxy = Proxy::start(&server).unwrap();
        let leg = proxy.leg().unwrap();
        let url = leg.url();
        let peer = tokio::task::spawn_blocking(move || Peer::start(&url, WATCHDOG, fair_wait));
        Some(Stage {
            peer: peer.await.unwrap(),
            locks: settings(&server).fair_wait_time(fair_wait).build().await.unwrap(),
            fair_wait,
            _leg: leg,
            _proxy: proxy,
            server,
            _turn: turn,
        })
    }

    /// An acquire of ours.
    pub(super) fn ours(&self, kind: &str, name: &str) -> Acquire {
        ours(&self.locks, kind, name)
    }

    /// Whether ours finds the lock busy.
    pub(super) async fn is_busy(&self, kind: &str, name: &str) -> bool {
        match self.ours(kind, name).wait_limit(Duration::ZERO).await {
            Ok(lease) => {
                lease.release().await.unwrap();
                false
            }
            Err(AcquireError::WaitLimit { .. }) => true,
            Err(error) => panic!("{error}"),
        }
    }

    /// A waiter of ours that is subscribed and asleep. Nobody else may be calling scripts.
    pub(super) async fn waits(&self, kind: &str, name: &str) -> tokio::task::JoinHandle<Lease> {
        // The script is known from here on, so an attempt is one call.
        let loading = self.ours(kind, "loading").await.unwrap();
        loading.release().await.unwrap();
        let calls = script_calls(&self.server);
        let acquire = self.ours(kind, name).lease_time(MINUTE);
        let waiting = tokio::spawn(async move { acquire.await.unwrap() });
        self.hears(kind, name).await;
        eventually_async(LONG, || script_calls(&self.server) >= calls + 2).await;
        waiting
    }

    /// A waiter of theirs that is subscribed and asleep.
    pub(super) async fn they_wait(&self, thread: u64, lock: &str, name: &str) -> Pending {
        let calls = script_calls(&self.server);
        let lease = json!({"lease_ms": 60_000});
        let waiting = self.peer.begin(thread, "lock", lock, lease);
        let (kind, _) = lock.split_once(' ').unwrap();
        self.hears(kind, name).await;
        eventually_async(LONG, || script_calls(&self.server) >= calls + 2).await;
        // From its last attempt to its sleep Redisson is deaf to the message `1` of a writer's release, and nothing tells when it
        // sleeps. It would come when the time is over that it was told.
        tokio::time::sleep(Duration::from_millis(300)).await;
        waiting
    }

    /// Waits until somebody listens for a release of this name; who waits for a spin lock never does.
    pub(super) async fn hears(&self, kind: &str, name: &str) {
        eventually_async(LONG, || {
            kind == "spin" || channels(&self.server).iter().any(|channel| channel.contains(name))
        })
        .await;
    }
}

/// An acquire of ours, of the kind with this name.
pub(super) fn ours(locks: &Locks, kind: &str, name: &str) -> Acquire {
    match kind {
        "reentrant" => locks.reentrant(name).acquire(),
        "fenced" => locks.fenced(name).acquire(),
        "fair" => locks.fair(name).acquire(),
        "spin" => locks.spin(name).acquire(),
        "read" => locks.read_write(name).read().acquire(),
        "write" => locks.read_write(name).write().acquire(),
        "multi" => locks.multi([name, &format!("{name}-too")]).acquire(),
        other => panic!("{other} is not known"),
    }
}

pub(super) const MINUTE: Duration = Duration::from_secs(60);
/// Each has a JVM.
static AT_ONCE: Semaphore = Semaphore::const_new(2);
