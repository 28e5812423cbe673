//! Fixtures for the tests that need a real redis-server.

pub mod heard;
pub mod lockbench;
pub mod messages;
pub mod scripts;
pub mod switchboard;

use std::thread;
use std::time::Duration;

use leasehold::{Lease, Locks, LocksBuilder, Stats};
use leasehold_bench::clock;
use leasehold_bench::servers::{RedisServer, ServerOptions};

/// A server for one test alone; it ends when it is dropped.
pub fn fresh_server() -> RedisServer {
    RedisServer::start(&ServerOptions::default()).expect("scripts/redis-up installs a redis-server")
}

/// A blocking connection straight to the server, past every proxy.
pub fn direct(server: &RedisServer) -> redis::Connection {
    let client = redis::Client::open(server.url()).expect("the harness gives valid URLs");
    client
        .get_connection()
        .expect("a server of our own accepts connections")
}

/// Waits until the condition holds, and fails the test when it does not within `limit`.
///
/// The limit only decides how long a broken build takes to fail: be generous, a busy machine must not reach it.
#[track_caller]
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    let start_ns = clock::now_ns();
    while !condition() {
        assert!(clock::since(start_ns) < limit, "not within {limit:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the condition holds, without blocking the runtime; otherwise as [`eventually`].
#[track_caller]
pub fn eventually_async(limit: Duration, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start_ns = clock::now_ns();
        while !condition() {
            assert!(
                clock::since(start_ns) < limit,
                "not within {limit:?}, asked at {caller}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Returns after the next renewal of a lease, or when it is lost.
pub async fn renewed_or_lost(lease: &Lease) {
    let mut before = lease.remaining();
    eventually_async(LONG, || {
        let now = lease.remaining();
        now > std::mem::replace(&mut before, now) || !lease.is_valid()
    })
    .await;
}

/// Far longer than anything takes that a test waits for: only a broken build reaches it.
pub const LONG: Duration = Duration::from_secs(30);

/// The watchdog time of most tests: short, so that a loss shows soon, and long enough for a machine with much else to do: renewals
/// may come a second late.
pub const WATCHDOG: Duration = Duration::from_millis(3_000);

/// A client's settings for a server, with the tests' watchdog time.
pub fn settings(server: &RedisServer) -> LocksBuilder {
    Locks::builder().standalone(&server.url()).watchdog_time(WATCHDOG)
}

/// A client of a server, with the tests' watchdog time.
pub async fn client(server: &RedisServer) -> Locks {
    settings(server).build().await.expect("a server of our own")
}

/// Whether a client keeps nothing: no hold, no waiter, no subscription, no release under way.
pub fn is_idle(locks: &Locks) -> bool {
    let Stats {
        holds,
        queues,
        subscriptions,
        releases,
        ..
    } = locks.stats();
    holds + queues + subscriptions + releases == 0
}

/// The holders of a lock and their counts, as the hash has them; empty if the key is not there.
pub fn holders(server: &RedisServer, name: &str) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = query(server, redis::cmd("HGETALL").arg(name));
    fields.sort();
    fields
}

/// What Redis says is left of a key, in milliseconds: -2 no key, -1 no time to live.
pub fn pttl(server: &RedisServer, key: &str) -> i64 {
    query(server, redis::cmd("PTTL").arg(key))
}

/// All keys of a server.
pub fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = query(server, redis::cmd("KEYS").arg("*"));
    keys.sort();
    keys
}

/// The channels that somebody listens to.
pub fn channels(server: &RedisServer) -> Vec<String> {
    query(server, redis::cmd("PUBSUB").arg("CHANNELS"))
}

/// One command, straight to the server.
pub fn query<T: redis::FromRedisValue>(server: &RedisServer, command: &redis::Cmd) -> T {
    command.query(&mut direct(server)).expect("a server of our own")
}

/// How often scripts were called so far.
pub fn script_calls(server: &RedisServer) -> u64 {
    let stats: String = query(server, redis::cmd("INFO").arg("commandstats"));
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.split_once(":calls=")?;
        matches!(name, "cmdstat_evalsha" | "cmdstat_eval").then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}
