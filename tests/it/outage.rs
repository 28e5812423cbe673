//! Outages: Redis dies, falls silent, comes back; a connection is killed; the runtime that opened it ends.

use std::future::{IntoFuture, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use leasehold::{Acquire, AcquireError, Lease, Locks, LostReason, Released};
use leasehold_bench::proxy::{CutPoint, Mode, Proxy};
use leasehold_bench::servers::{RedisServer, ServerOptions};
use tests::switchboard::Switchboard;
use tests::{LONG, WATCHDOG, channels, client, eventually_async, fresh_server, holders, is_idle, query, script_calls};
use tokio::task::JoinHandle;

// G20
#[tokio::test]
async fn acquires_while_redis_is_dead_say_so_and_the_next_one_after_its_return_works() {
    let server = fresh_server();
    let locks = client(&server).await;
    server.kill().unwrap();
    all_unavailable(&locks, || locks.reentrant("n").acquire()).await;
    server.restart().unwrap();
    works(&locks).await;
}

// G20
#[tokio::test]
async fn acquires_while_redis_is_silent_say_so_and_the_next_one_after_its_return_works() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = Locks::connect(&leg.url()).await.unwrap();
    leg.switch(Mode::Swallow).unwrap();
    all_unavailable(&locks, || locks.reentrant("n").acquire()).await;
    leg.switch(Mode::Pass).unwrap();
    works(&locks).await;
}

// G20
#[tokio::test]
async fn waiters_whose_redis_dies_are_told_so_and_not_that_the_lock_was_busy() {
    let server = fresh_server();
    let (holding, locks) = (lasting(&server.url()).await, client(&server).await);
    let lease = holding.reentrant("n").acquire().await.unwrap();
    let calls = script_calls(&server);
    // Long enough to fall asleep on any machine.
    let limit = 5 * WAIT;
    let waiting = start(limit, || locks.reentrant("n").acquire());
    sleeps(&server, calls).await;
    server.kill().unwrap();
    told_unavailable(limit, waiting).await;
    drop(lease);
}

#[tokio::test]
async fn a_try_acquire_while_redis_is_dead_is_no_busy() {
    let server = fresh_server();
    let locks = client(&server).await;
    server.kill().unwrap();
    let error = locks.reentrant("n").try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn an_acquire_without_a_limit_bears_a_dead_redis_for_one_watchdog_time() {
    let server = fresh_server();
    let locks = client(&server).await;
    server.kill().unwrap();
    let acquire = locks.reentrant("n").acquire().into_future();
    match tokio::time::timeout(LONG, acquire).await.expect("it gives up") {
        Err(AcquireError::Unavailable { waited, .. }) => assert!(waited >= WATCHDOG, "{waited:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_acquire_without_a_limit_outlasts_an_outage_shorter_than_the_watchdog_time() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    server.kill().unwrap();
    let acquire = tokio::spawn(locks.reentrant("n").acquire().into_future());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!acquire.is_finished());
    server.restart().unwrap();
    woken(acquire).await;
}

// G14
#[tokio::test]
async fn a_release_while_the_waiters_connection_is_gone_is_not_missed() {
    let server = fresh_server();
    let (holding, locks) = (lasting(&server.url()).await, lasting(&server.url()).await);
    for _ in 0..10 {
        let lease = holding.reentrant("n").acquire().await.unwrap();
        let waiting = waiter(&server, &locks).await;
        let mut kill = redis::cmd("CLIENT");
        let killed: i64 = query(&server, kill.arg("KILL").arg("TYPE").arg("pubsub"));
        assert_eq!(killed, 1);
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        woken(waiting).await;
    }
}

// G14
#[tokio::test]
async fn a_waiter_whose_connection_was_killed_listens_again() {
    let server = fresh_server();
    let (holding, locks) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let lease = holding.reentrant("n").acquire().await.unwrap();
    let waiting = waiter(&server, &locks).await;
    let calls = script_calls(&server);
    let _: i64 = query(&server, redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub"));
    // An attempt that finds the lock busy, then a subscription: what comes now is heard.
    eventually_async(LONG, || channels(&server).len() == 1 && script_calls(&server) > calls).await;
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    woken(waiting).await;
    eventually_async(LONG, || channels(&server).is_empty()).await;
}

// G14
#[tokio::test]
async fn a_restart_that_keeps_the_data_loses_neither_holder_nor_waiter() {
    let options = ServerOptions {
        append_only: true,
        ..ServerOptions::default()
    };
    let server = RedisServer::start(&options).unwrap();
    let (holding, locks) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let lease = holding.reentrant("n").acquire().await.unwrap();
    let waiting = waiter(&server, &locks).await;
    server.restart().unwrap();
    assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".to_owned())]);
    assert!(!waiting.is_finished());
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    woken(waiting).await;
}

#[tokio::test]
async fn after_a_restart_without_data_the_waiter_holds_and_the_holder_is_told() {
    let server = fresh_server();
    let (holding, locks) = (client(&server).await, lasting(&server.url()).await);
    let lease = holding.reentrant("n").acquire().await.unwrap();
    let waiting = waiter(&server, &locks).await;
    server.restart_empty().unwrap();
    let theirs = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by the lost link");
    let theirs = theirs.unwrap().unwrap();
    let reason = tokio::time::timeout(LONG, lease.lost())
        .await
        .expect("told at the deadline at the latest");
    assert!(
        matches!(reason, LostReason::NotOwner | LostReason::DeadlinePassed),
        "{reason:?}"
    );
    drop(lease);
    eventually_async(LONG, || is_idle(&holding)).await;
    assert_eq!(holders(&server, "n"), [(theirs.holder().to_string(), "1".to_owned())]);
    assert_eq!(theirs.release().await.unwrap(), Released::Fully);
}

/// The answer "busy" comes, and the connection ends before the waiter has looked at it.
#[tokio::test]
async fn a_connection_that_ends_between_the_attempt_and_the_subscription_is_opened_again() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let holding = lasting(&server.url()).await;
    // No time limit of a command ends a silence here.
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(2 * LONG);
    let locks = locks.command_timeout(10 * LONG).build().await.unwrap();
    let lease = holding.reentrant("n").acquire().await.unwrap();
    leg.cut_after_requests(1, CutPoint::AfterReply);
    let mut waiting = locks.reentrant("n").acquire().into_future();
    poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    eventually_async(LONG, || leg.open_connections() == 0).await;
    // For the client to notice; if it does not, the test sees less.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let waiting = tokio::spawn(waiting);
    eventually_async(LONG, || channels(&server).len() == 1).await;
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    woken(waiting).await;
}

/// The answer "busy" comes, and the connection becomes a black hole before the waiter has subscribed.
#[tokio::test]
async fn a_subscription_without_an_answer_does_not_keep_a_waiter_for_ever() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let (old, new) = (proxy.leg().unwrap(), proxy.leg().unwrap());
    let board = Switchboard::new(&old);
    let locks = Locks::builder().standalone(&board.url()).watchdog_time(2 * LONG);
    let locks = locks.command_timeout(BRIEFLY).build().await.unwrap();
    let lease = lasting(&server.url()).await.reentrant("n").acquire().await.unwrap();
    let mut waiting = locks.reentrant("n").acquire().into_future();
    board.lead_to(&new);
    // Stops the moment it has joined the channel: nothing of that has been sent yet, as this thread has not let go since.
    poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending());
        match locks.stats().subscriptions {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
    old.switch(Mode::Swallow).unwrap();
    let waiting = tokio::spawn(waiting);
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    woken(waiting).await;
}

#[test]
fn a_client_goes_on_when_the_runtime_that_opened_it_has_ended() {
    let server = fresh_server();
    let first = tokio::runtime::Runtime::new().unwrap();
    let (locks, lease) = first.block_on(async {
        let locks = client(&server).await;
        let lease = locks.reentrant("n").acquire().await.unwrap();
        (locks, lease)
    });
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        let other = locks.reentrant("m").acquire().await.unwrap();
        assert_eq!(other.release().await.unwrap(), Released::Fully);
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    });
}

#[test]
fn a_waiter_goes_on_when_the_runtime_that_opened_its_connection_ends() {
    let server = fresh_server();
    let first = tokio::runtime::Runtime::new().unwrap();
    let locks = first.block_on(lasting(&server.url()));
    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        let lease = lasting(&server.url()).await.reentrant("n").acquire().await.unwrap();
        let waiting = waiter(&server, &locks).await;
        first.shutdown_background();
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        woken(waiting).await;
    });
}

/// A runtime of one thread that is in no `block_on` does not go on with what it has begun.
#[test]
fn a_runtime_that_stands_still_while_it_connects_keeps_nobody_else_from_connecting() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let still = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = still.block_on(async {
        let locks = Locks::builder().standalone(&leg.url()).command_timeout(BRIEFLY);
        let locks = locks.build().await.unwrap();
        leg.switch(Mode::Swallow).unwrap();
        leg.cut().unwrap();
        let connections = leg.connections();
        let acquire = tokio::spawn(locks.reentrant("n").acquire().into_future());
        eventually_async(LONG, || leg.connections() > connections).await;
        acquire.abort();
        locks
    });
    leg.switch(Mode::Pass).unwrap();
    let other = tokio::runtime::Runtime::new().unwrap();
    // Another lock: in the queue for the first one the acquire that stands still is in front.
    let lease = other.block_on(locks.reentrant("m").acquire().wait_limit(LONG).into_future());
    assert_eq!(other.block_on(lease.unwrap().release()).unwrap(), Released::Fully);
}

#[tokio::test]
async fn a_client_that_may_not_kill_its_old_connections_works_and_warns_once() {
    works_and_warns_once("-client +client|id").await;
}

#[tokio::test]
async fn a_client_that_may_not_ask_for_its_id_works_and_warns_once() {
    works_and_warns_once("-client -info").await;
}

async fn works_and_warns_once(denied: &str) {
    let warnings = Warnings::default();
    let _listening = tracing::subscriber::set_default(warnings.clone());
    let options = ServerOptions {
        config: vec![format!("user worker on >secret ~* &* +@all {denied}")],
        ..ServerOptions::default()
    };
    let server = RedisServer::start(&options).unwrap();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = lasting(&format!("redis://worker:secret@{}/", leg.address())).await;
    for _ in 0..3 {
        let lease = locks.reentrant("n").acquire().await.unwrap();
        leg.cut().unwrap();
        let again = lease.reenter().await.unwrap();
        assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    }
    let warnings = warnings.so_far();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("+client|kill"), "{warnings:?}");
}

/// Twenty tasks, each with a limit: every one of them learns that Redis does not answer.
async fn all_unavailable(locks: &Locks, acquire: impl Fn() -> Acquire) {
    told_unavailable(WAIT, start(WAIT, acquire)).await;
    assert_eq!(locks.stats().queues, 0);
}

fn start(limit: Duration, acquire: impl Fn() -> Acquire) -> Vec<JoinHandle<Result<Lease, AcquireError>>> {
    let limited = || acquire().wait_limit(limit).lease_time(2 * LONG).into_future();
    (0..20).map(|_| tokio::spawn(limited())).collect()
}

async fn told_unavailable(limit: Duration, waiting: Vec<JoinHandle<Result<Lease, AcquireError>>>) {
    for acquire in waiting {
        let result = tokio::time::timeout(LONG, acquire)
            .await
            .expect("its limit is far shorter");
        match result.unwrap() {
            Err(AcquireError::Unavailable { waited, .. }) => assert!(waited >= limit, "{waited:?}"),
            other => panic!("{other:?}"),
        }
    }
}

async fn works(locks: &Locks) {
    let lease = locks.reentrant("n").acquire().wait_limit(LONG).await.unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || is_idle(locks)).await;
}

/// An acquire of `n` that sleeps.
async fn waiter(server: &RedisServer, locks: &Locks) -> JoinHandle<Result<Lease, AcquireError>> {
    let calls = script_calls(server);
    let waiting = tokio::spawn(locks.reentrant("n").acquire().into_future());
    sleeps(server, calls).await;
    waiting
}

/// Returns when somebody has attempted twice since `calls`, and listens.
async fn sleeps(server: &RedisServer, calls: u64) {
    eventually_async(LONG, || {
        channels(server).len() == 1 && script_calls(server) >= calls + 2
    })
    .await;
}

/// The waiter was woken: the lease before it was to last longer than this waits.
async fn woken(waiting: JoinHandle<Result<Lease, AcquireError>>) {
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken before the lease ends");
    assert_eq!(lease.unwrap().unwrap().release().await.unwrap(), Released::Fully);
}

/// A client whose locks outlive every limit of these tests: what is free was given back.
async fn lasting(url: &str) -> Locks {
    Locks::builder()
        .standalone(url)
        .watchdog_time(2 * LONG)
        .build()
        .await
        .unwrap()
}

/// What is said at the level of warnings on this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn so_far(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// All fields of an event, one after the other.
struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

/// A time limit that a test waits for.
const BRIEFLY: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(1);
