//! One fair queue with waiters of both sides, living and dead.

use std::time::Duration;

use leasehold_bench::clock;
use serde_json::{Value, json};
use tests::{LONG, eventually_async, holders, keys, pttl, script_calls};

use super::TWO_THIRDS;
use super::killed::OurProcess;
use super::peer::Pending;
use super::stage::{MINUTE, Stage};
use crate::fair::queue::{granted, now_ms, queue, queued, score, scores};

/// A waiter of theirs that stands in the queue of `n`, as the last, and what Redis calls it.
async fn they_queue(stage: &Stage, thread: u64, method: &str, more: Value) -> (Pending, String) {
    let lock = stage.peer.open("fair", "n");
    let before = queue(&stage.server).len();
    let waiting = stage.peer.begin(thread, method, &lock, more);
    eventually_async(LONG, || queue(&stage.server).len() > before).await;
    (waiting, queue(&stage.server).pop().unwrap())
}

/// Waits until this one holds `n`.
async fn holds(stage: &Stage, id: &str) {
    eventually_async(LONG, || {
        holders(&stage.server, "n").iter().any(|(holder, _)| holder == id)
    })
    .await;
}

fn minute() -> Value {
    json!({"lease_ms": 60_000})
}

/// How far the scores of neighbours in the queue are apart.
fn distances(stage: &Stage) -> Vec<f64> {
    let queue = queue(&stage.server);
    let pairs = queue.iter().zip(queue.iter().skip(1));
    pairs
        .map(|(one, next)| score(&stage.server, next) - score(&stage.server, one))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn living_waiters_of_both_sides_are_served_in_the_order_in_which_they_came() {
    let Some(stage) = Stage::new().await else { return };
    let first = stage.ours("fair", "n").lease_time(MINUTE).await.unwrap();
    let lock = stage.peer.open("fair", "n");
    let (mut ours, mut theirs, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for thread in 1..=3 {
        let (waiting, id) = they_queue(&stage, thread, "lock", minute()).await;
        theirs.push((thread, waiting));
        expected.push(id);
        let (waiting, id) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
        ours.push(waiting);
        expected.push(id);
    }
    assert_eq!(distances(&stage), [300_000.0; 5]);
    first.release().await.unwrap();
    let mut left = expected.iter();
    for ((thread, waiting), our_waiter) in theirs.into_iter().zip(ours) {
        holds(&stage, left.next().unwrap()).await;
        assert_eq!(queue(&stage.server), left.as_slice());
        assert!(distances(&stage).iter().all(|distance| *distance == 300_000.0));
        assert_eq!(waiting.within(LONG), Some(Ok(Value::Null)));
        stage.peer.begin(thread, "unlock", &lock, json!({})).wait().unwrap();

        let lease = granted(our_waiter).await;
        assert_eq!(lease.holder().to_string(), *left.next().unwrap());
        assert_eq!(queue(&stage.server), left.as_slice());
        assert!(distances(&stage).iter().all(|distance| *distance == 300_000.0));
        lease.release().await.unwrap();
    }
    // Redisson removes its unlock latch in a command of its own.
    eventually_async(LONG, || keys(&stage.server).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_redissons_wakes_ours_before_it_asks_by_itself() {
    let Some(stage) = Stage::new().await else { return };
    let lock = stage.peer.open("fair", "n");
    // In front it asks once a second, so without messages so many rounds would take longer than this waits.
    let rounds = u32::try_from(LONG.as_secs() + 10).unwrap();
    let start_ns = clock::now_ns();
    for round in 0..rounds {
        stage.peer.begin(1, "lock", &lock, minute()).wait().unwrap();
        let (waiting, _) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
        stage.peer.call("unlock", &lock).unwrap();
        granted(waiting).await.release().await.unwrap();
        assert!(clock::since(start_ns) < LONG, "round {round} of {rounds}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_in_the_middle_moves_those_behind_it_by_its_own_wait() {
    let Some(stage) = Stage::new().await else { return };
    let lease = stage.ours("fair", "n").lease_time(MINUTE).await.unwrap();
    let lock = stage.peer.open("fair", "n");
    let (first, a) = they_queue(&stage, 1, "lock", minute()).await;
    let limit = Duration::from_secs(3);
    let leaving = stage.ours("fair", "n").wait_limit(limit);
    let leaving = tokio::spawn(async move { leaving.await.is_err() });
    eventually_async(LONG, || queue(&stage.server).len() == 2).await;
    let (second, b) = they_queue(&stage, 2, "lock", minute()).await;
    assert!(leaving.await.unwrap());
    assert_eq!(queue(&stage.server), [a.as_str(), b.as_str()]);
    assert_eq!(distances(&stage), [300_000.0]);

    let leaving = json!({"wait_ms": 3_000, "lease_ms": 10_000});
    let (leaving, _) = they_queue(&stage, 3, "tryLock", leaving).await;
    let (third, c) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
    assert_eq!(leaving.wait(), Ok(json!(false)));
    assert_eq!(queue(&stage.server), [a.as_str(), b.as_str(), c.as_str()]);
    assert_eq!(distances(&stage), [300_000.0; 2]);

    lease.release().await.unwrap();
    for (thread, waiting) in [(1, first), (2, second)] {
        assert_eq!(waiting.within(LONG), Some(Ok(Value::Null)));
        stage.peer.begin(thread, "unlock", &lock, json!({})).wait().unwrap();
    }
    granted(third).await.release().await.unwrap();
    // Redisson removes its unlock latch in a command of its own.
    eventually_async(LONG, || keys(&stage.server).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_as_its_turn_comes_passes_the_turn_to_redisson() {
    let Some(stage) = Stage::new().await else { return };
    let lock = stage.peer.open("fair", "n");
    for round in 0..super::ROUNDS {
        let lease = stage.ours("fair", "n").lease_time(MINUTE).await.unwrap();
        let (leaving, _) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
        let (theirs, id) = they_queue(&stage, 1, "lock", minute()).await;
        let release = tokio::spawn(lease.release());
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..1_500))).await;
        leaving.abort();
        release.await.unwrap().unwrap();
        drop(leaving.await);
        // It was told that the lock is held for a minute.
        assert_eq!(theirs.within(LONG), Some(Ok(Value::Null)), "round {round}");
        assert_eq!(holders(&stage.server, "n"), [(id, "1".to_owned())]);
        stage.peer.call("unlock", &lock).unwrap();
        eventually_async(LONG, || keys(&stage.server).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_head_of_redissons_costs_its_time_and_no_busy_loop() {
    let Some(stage) = Stage::with_fair_wait(FAIR_WAIT).await else {
        return;
    };
    let lease = stage.ours("fair", "n").lease_time(LEASE).await.unwrap();
    let (_theirs, dead) = they_queue(&stage, 1, "lock", minute()).await;
    let (waiting, _) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
    let (second, _) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
    let ends = score(&stage.server, &dead);
    let Stage { peer, server, .. } = stage;
    peer.kill();
    lease.release().await.unwrap();
    assert_eq!(queue(&server)[0], dead, "Redisson's waiters queue before they listen");
    let calls = script_calls(&server);
    let lease = granted(waiting).await;
    assert!(now_ms(&server) >= ends, "its place was its own until then");
    let calls = script_calls(&server) - calls;
    assert!(calls < 30, "{calls} calls");
    lease.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_ours_passes_over_our_dead_waiters_and_wakes_redisson() {
    let Some(stage) = Stage::new().await else { return };
    let lease = stage.ours("fair", "n").lease_time(MINUTE).await.unwrap();
    let process = our_waiters(&stage, 2).await;
    let lock = stage.peer.open("fair", "n");
    let (theirs, _) = they_queue(&stage, 1, "lock", json!({"lease_ms": 120_000})).await;
    process.kill();
    assert_eq!(queue(&stage.server).len(), 3);
    assert!(pttl(&stage.server, "n") > TWO_THIRDS);
    lease.release().await.unwrap();
    // The dead have five minutes each.
    assert_eq!(theirs.within(LONG), Some(Ok(Value::Null)));
    assert!(queue(&stage.server).is_empty() && scores(&stage.server).is_empty());
    stage.peer.call("unlock", &lock).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_waiter_of_ours_passes_over_our_dead_whom_redisson_would_wait_for() {
    let Some(stage) = Stage::new().await else { return };
    let lock = stage.peer.open("fair", "n");
    stage.peer.begin(1, "lock", &lock, minute()).wait().unwrap();
    let process = our_waiters(&stage, 2).await;
    let (theirs, _) = they_queue(&stage, 2, "lock", minute()).await;
    let (ours, _) = queued(&stage.server, stage.ours("fair", "n").lease_time(MINUTE)).await;
    process.kill();
    // Redisson's release tells the dead one, and nobody else.
    stage.peer.call("unlock", &lock).unwrap();
    assert_eq!(theirs.within(LONG), Some(Ok(Value::Null)));
    stage.peer.begin(2, "unlock", &lock, json!({})).wait().unwrap();
    granted(ours).await.release().await.unwrap();
    // Redisson removes its unlock latch in a command of its own.
    eventually_async(LONG, || keys(&stage.server).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_redisson_passes_over_our_dead_waiter_when_its_time_is_over() {
    let Some(stage) = Stage::with_fair_wait(FAIR_WAIT).await else {
        return;
    };
    let lock = stage.peer.open("fair", "n");
    let lease = json!({"lease_ms": u64::try_from(LEASE.as_millis()).unwrap()});
    stage.peer.begin(1, "lock", &lock, lease).wait().unwrap();
    let process = our_waiters(&stage, 1).await;
    let (theirs, _) = they_queue(&stage, 2, "lock", minute()).await;
    process.kill();
    let dead = queue(&stage.server).remove(0);
    let ends = score(&stage.server, &dead);
    stage.peer.call("unlock", &lock).unwrap();
    assert_eq!(theirs.within(LONG), Some(Ok(Value::Null)));
    assert!(now_ms(&stage.server) >= ends);
    assert!(queue(&stage.server).is_empty() && scores(&stage.server).is_empty());
}

/// A process of ours with so many waiters in the queue of `n`.
async fn our_waiters(stage: &Stage, count: usize) -> OurProcess {
    let before = queue(&stage.server).len();
    let process = OurProcess::start(stage, &[], &vec![("fair", "n".to_owned()); count]);
    eventually_async(LONG, || queue(&stage.server).len() == before + count).await;
    process
}

/// Of a holder and of the waiters behind it: long enough for the steps until somebody is killed, short enough to be waited for.
const LEASE: Duration = Duration::from_secs(6);
const FAIR_WAIT: Duration = Duration::from_secs(4);
