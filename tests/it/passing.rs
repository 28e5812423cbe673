//! A release passes the lock straight on to the next waiter of its process: in one step, in order, and not for ever.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{AcquireOptions, Lease, LockKind, Lockable, Locks, ReleaseError, Released};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::scripts::HAND_OVER;
use tests::{
    LONG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, script_calls, settings,
};
use tokio::task::JoinHandle;

/// The kinds whose release passes them on; the others have a queue in Redis, or let waiters in together.
const KINDS: [LockKind; 5] = [
    LockKind::Reentrant,
    LockKind::ReadWrite,
    LockKind::Spin,
    LockKind::Fenced,
    LockKind::Multi,
];
const MINUTE: Duration = Duration::from_secs(60);

fn acquire(lock: &dyn Lockable) -> JoinHandle<Lease> {
    let acquire = lock.acquire_with(AcquireOptions::new().lease_time(MINUTE));
    tokio::spawn(async move { acquire.await.unwrap() })
}

/// How often a message was published.
fn published(server: &RedisServer) -> u64 {
    let stats: String = query(server, redis::cmd("INFO").arg("commandstats"));
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
    calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// The only holder in Redis.
fn holder(server: &RedisServer, name: &str) -> String {
    let fields = holders(server, name).into_iter().map(|(field, _)| field);
    let mut ids: Vec<_> = fields.filter(|field| field != "mode").collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids.remove(0).trim_end_matches(":write").to_owned()
}

/// A waiter that has asked in vain and sleeps, so a release passes the lock on to it.
async fn waits(locks: &Locks, lock: &dyn Lockable) -> JoinHandle<Lease> {
    let waiting = acquire(lock);
    eventually_async(LONG, || locks.stats().queues == 1).await;
    // In front, and no attempt under way: it has asked at least once, and a short hold is over.
    tokio::time::sleep(Duration::from_millis(50)).await;
    waiting
}

#[tokio::test]
async fn a_waiter_of_the_same_client_is_given_the_lock_without_a_message_and_with_its_own_lease() {
    for kind in KINDS {
        let server = fresh_server();
        let locks = client(&server).await;
        let lock = locks.lock(kind, "n");
        // From here on one hand-over is one script call.
        let held = lock.acquire_with(AcquireOptions::new()).await.unwrap();
        let waiting = waits(&locks, &*lock).await;
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();

        let options = AcquireOptions::new().lease_time(2 * MINUTE);
        let held = lock.acquire_with(options).await.unwrap();
        let waiting = waits(&locks, &*lock).await;
        let (before, said) = (script_calls(&server), published(&server));
        assert_eq!(held.release().await.unwrap(), Released::Fully, "{kind}");
        let lease = waiting.await.unwrap();
        // A waiter of a spin lock may have asked by itself meanwhile.
        if kind != LockKind::Spin {
            assert_eq!(script_calls(&server) - before, 1, "{kind}: one script does both");
        }
        assert_eq!(published(&server), said, "{kind}: nobody else needs to hear of it");
        assert_eq!(holder(&server, "n"), lease.holder().to_string());
        let left = pttl(&server, "n");
        assert!((40_000..=60_000).contains(&left), "{kind}: {left} ms");
        assert!(lease.is_valid());
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        assert!(
            published(&server) > said,
            "{kind}: with nobody waiting here it is free for all"
        );
        eventually_async(LONG, || is_idle(&locks)).await;
    }
}

#[tokio::test]
async fn what_is_passed_on_is_renewed_and_numbered_as_if_it_had_been_asked_for() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.fenced("n");
    let held = lock.acquire().await.unwrap();
    let first = held.fencing_token().unwrap();
    let waiting = tokio::spawn(lock.acquire().into_future());
    eventually_async(LONG, || locks.stats().queues == 1).await;
    held.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert!(lease.fencing_token().unwrap() > first);
    tokio::time::sleep(2 * tests::WATCHDOG).await;
    assert!(lease.is_valid() && pttl(&server, "n") > 0);
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_in_the_order_in_which_they_came() {
    let server = fresh_server();
    let locks = client(&server).await;
    let held = locks.reentrant("n").acquire().await.unwrap();
    let (served, order) = std::sync::mpsc::channel();
    let mut waiters = Vec::new();
    for number in 0..40 {
        let (lock, served) = (locks.reentrant("n"), served.clone());
        let mut acquire = lock.acquire().into_future();
        // Polled here, so that it stands in the queue before the next one comes.
        let first = std::future::poll_fn(|context| std::task::Poll::Ready(acquire.as_mut().poll(context))).await;
        assert!(first.is_pending());
        waiters.push(tokio::spawn(async move {
            let lease = acquire.await.unwrap();
            served.send(number).unwrap();
            lease.release().await.unwrap();
        }));
    }
    held.release().await.unwrap();
    for waiter in waiters {
        tokio::time::timeout(LONG, waiter).await.unwrap().unwrap();
    }
    assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_many_waiters_lets_the_others_have_their_turn() {
    let server = fresh_server();
    let (many, few) = (client(&server).await, client(&server).await);
    let (over, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (lock, over, grants) = (many.reentrant("n"), over.clone(), grants.clone());
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let lease = lock.acquire().await.unwrap();
                grants.fetch_add(1, Ordering::Relaxed);
                lease.release().await.unwrap();
            }
        }));
    }
    let mut longest = 0;
    for _ in 0..30 {
        let before = grants.load(Ordering::Relaxed);
        let lease = tokio::time::timeout(LONG, few.reentrant("n").acquire().into_future())
            .await
            .expect("others have their turn")
            .unwrap();
        longest = longest.max(grants.load(Ordering::Relaxed) - before);
        lease.release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    println!("at most {longest} grants to the process with many while the other waited");
    // Sixteen in a row, then it is free for all; a busy machine makes the other one late a few times.
    assert!(longest < 2_000, "{longest}");
}

#[tokio::test]
async fn a_writer_that_reads_beside_keeps_reading_and_passes_nothing_on() {
    let server = fresh_server();
    let locks = client(&server).await;
    let (me, lock) = (locks.owner(), locks.read_write("n"));
    let writing = lock.write().acquire().owner(&me).await.unwrap();
    let reading = lock.read().acquire().owner(&me).await.unwrap();
    let waiting = waits(&locks, &lock.write()).await;
    writing.release().await.unwrap();
    assert_eq!(holder(&server, "n"), reading.holder().to_string());
    assert!(reading.is_valid() && !waiting.is_finished());
    reading.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_was_lost_is_not_passed_on_and_its_holder_hears_of_it() {
    for kind in KINDS {
        let server = fresh_server();
        let (locks, thief) = (client(&server).await, client(&server).await);
        let lock = locks.lock(kind, "n");
        let held = lock
            .acquire_with(AcquireOptions::new().lease_time(MINUTE))
            .await
            .unwrap();
        let waiting = waits(&locks, &*lock).await;
        let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
        let stolen = thief.lock(kind, "n").acquire_with(AcquireOptions::new()).await.unwrap();
        let error = held.release().await.unwrap_err();
        assert!(matches!(error, ReleaseError::Lost { .. }), "{kind}: {error:?}");
        assert_eq!(holder(&server, "n"), stolen.holder().to_string(), "{kind}");
        assert!(!waiting.is_finished());
        stolen.release().await.unwrap();
        let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
        assert_eq!(holder(&server, "n"), lease.holder().to_string(), "{kind}");
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_full_memory_does_not_keep_a_lock_from_being_passed_on() {
    let server = fresh_server();
    let locks = client(&server).await;
    let held = locks.fenced("n").acquire().await.unwrap();
    let waiting = waits(&locks, &locks.fenced("n")).await;
    query::<()>(&server, redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1"));
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    assert_eq!(holders(&server, "n"), []);
}

/// A client behind a proxy, a lock that it holds, and a waiter of it.
struct Way {
    server: RedisServer,
    _proxy: Proxy,
    leg: Leg,
    locks: Locks,
}

impl Way {
    async fn new() -> Self {
        let server = fresh_server();
        let proxy = Proxy::start(&server).unwrap();
        let leg = proxy.leg().unwrap();
        let locks = settings(&server).standalone(&leg.url()).watchdog_time(MINUTE);
        let locks = locks.command_timeout(Duration::from_secs(2)).build().await.unwrap();
        let way = Way {
            server,
            _proxy: proxy,
            leg,
            locks,
        };
        // From here on one hand-over is one script call.
        let lock = way.locks.reentrant("loading");
        let held = lock.acquire().await.unwrap();
        let waiting = waits(&way.locks, &lock).await;
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        way
    }

    /// A release that has passed the lock on in Redis, and the waiter: neither has heard of it, for replies are held back.
    async fn passes_on(&self) -> (JoinHandle<Result<Released, ReleaseError>>, JoinHandle<Lease>) {
        let lock = self.locks.reentrant("n");
        let held = lock.acquire().await.unwrap();
        let from = held.holder().to_string();
        let waiting = waits(&self.locks, &lock).await;
        self.leg.switch(Mode::HoldReplies).unwrap();
        let released = tokio::spawn(held.release());
        eventually_async(LONG, || holders(&self.server, "n").iter().any(|(id, _)| *id != from)).await;
        (released, waiting)
    }
}

#[tokio::test]
async fn a_hand_over_whose_reply_is_lost_gives_the_lock_to_the_waiter_once() {
    let way = Way::new().await;
    let (released, waiting) = way.passes_on().await;
    way.leg.cut().unwrap();
    way.leg.switch(Mode::Pass).unwrap();
    assert_eq!(released.await.unwrap().unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert_eq!(
        holders(&way.server, "n"),
        [(lease.holder().to_string(), "1".to_owned())]
    );
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || is_idle(&way.locks) && keys(&way.server).is_empty()).await;
}

#[tokio::test]
async fn a_waiter_that_leaves_while_it_is_given_the_lock_gives_it_back() {
    let way = Way::new().await;
    let (released, waiting) = way.passes_on().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    way.leg.switch(Mode::Pass).unwrap();
    assert_eq!(released.await.unwrap().unwrap(), Released::Fully);
    eventually_async(LONG, || is_idle(&way.locks) && keys(&way.server).is_empty()).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_on_the_way_leaves_the_lock_to_the_waiter_or_to_nobody() {
    for waiter_leaves in [false, true] {
        let way = Way::new().await;
        let (released, waiting) = way.passes_on().await;
        released.abort();
        assert!(released.await.unwrap_err().is_cancelled());
        if waiter_leaves {
            waiting.abort();
            way.leg.switch(Mode::Pass).unwrap();
        } else {
            way.leg.switch(Mode::Pass).unwrap();
            let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
            assert_eq!(
                holders(&way.server, "n"),
                [(lease.holder().to_string(), "1".to_owned())]
            );
            lease.release().await.unwrap();
        }
        eventually_async(LONG, || is_idle(&way.locks) && keys(&way.server).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_come_and_leave_at_random_never_meet_and_leave_nothing_behind() {
    let server = fresh_server();
    let locks = [client(&server).await, client(&server).await];
    let (inside, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for number in 0..16 {
        let lock = locks[number % 2].reentrant("n");
        let (inside, grants) = (inside.clone(), grants.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..150 {
                let patience = Duration::from_micros(fastrand::u64(..4_000));
                let Ok(granted) = tokio::time::timeout(patience, lock.acquire().into_future()).await else {
                    continue;
                };
                let lease = granted.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                if fastrand::bool() {
                    tokio::task::yield_now().await;
                }
                inside.store(false, Ordering::SeqCst);
                grants.fetch_add(1, Ordering::Relaxed);
                // Dropped, it is given back in the background.
                match fastrand::u8(..3) {
                    0 => drop(lease),
                    1 => drop(tokio::time::timeout(Duration::ZERO, lease.release()).await),
                    _ => drop(lease.release().await.unwrap()),
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(2 * LONG, task).await.unwrap().unwrap();
    }
    assert!(grants.load(Ordering::Relaxed) > 0);
    eventually_async(LONG, || locks.iter().all(is_idle) && keys(&server).is_empty()).await;
}

#[test]
fn a_hand_over_that_runs_late_or_twice_touches_nothing_of_what_came_later() {
    let server = fresh_server();
    let hand_over = |from: &str, to: &str, lease_ms: u64| -> Vec<i64> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(HAND_OVER);
        query(&server, eval.arg(1).arg("n").arg(from).arg(to).arg(lease_ms))
    };
    let hold = |id: &str| query::<()>(&server, redis::cmd("HSET").arg("n").arg(id).arg(1));
    assert_eq!(hand_over("a:1", "a:2", 60_000), [-1, 0]);
    assert_eq!(keys(&server), [""; 0], "it creates no lock");

    hold("a:1");
    query::<()>(&server, redis::cmd("PEXPIRE").arg("n").arg(120_000));
    assert_eq!(hand_over("a:1", "a:2", 60_000), [1, 1]);
    assert!(
        (50_000..=60_000).contains(&pttl(&server, "n")),
        "the new holder's lease, not the old one's"
    );
    // Twice, and with a shorter lease: nothing is shortened.
    assert_eq!(hand_over("a:1", "a:2", 10_000), [1, 1]);
    assert!(pttl(&server, "n") > 50_000);
    assert_eq!(holders(&server, "n"), [("a:2".to_owned(), "1".to_owned())]);

    // Late: the lock is another's by now.
    query::<()>(&server, redis::cmd("DEL").arg("n"));
    hold("b:1");
    query::<()>(&server, redis::cmd("PEXPIRE").arg("n").arg(10_000));
    assert_eq!(hand_over("a:1", "a:2", 60_000), [-1, 0]);
    assert_eq!(holders(&server, "n"), [("b:1".to_owned(), "1".to_owned())]);
    assert!(pttl(&server, "n") <= 10_000);
}
