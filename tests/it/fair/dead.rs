//! Waiters that are dead, or were taken for dead.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold_bench::clock;
use tests::messages::Messages;
use tests::{LONG, WATCHDOG, client, eventually_async, fresh_server, keys, pttl, query, script_calls, settings};

use super::queue::{Plain, QUEUE, SCORES, channel, granted, now_ms, queue, queued, score};
use super::{MINUTE, hold, nothing_is_left};

const DEAD: &str = "0b8f7a52-dead-4dea-8dea-00000000dead";

#[tokio::test]
async fn a_release_passes_over_dead_waiters_of_our_own_kind() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let _hears_everything = Messages::listen(&server);
    for _ in 0..10 {
        Plain::dead_of_ours(&server, DEAD, 5 * MINUTE);
    }
    let (waiting, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    lease.release().await.unwrap();
    let lease = granted(waiting).await;
    // By message: it did not wait for the end of the lock or of a place.
    assert_eq!(lease.holder().to_string(), id);
    assert!(pttl(&server, "n") > 40_000);
    lease.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn those_behind_a_dead_waiter_keep_the_distances_that_redisson_counts_with() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    Plain::dead_of_ours(&server, DEAD, 5 * MINUTE);
    let plain = Plain::queues(&server, 5 * MINUTE);
    let last = Plain::queues(&server, 2 * MINUTE);
    let before = score(&server, &plain.id);
    lease.release().await.unwrap();
    assert_eq!(queue(&server), [plain.id.clone(), last.id.clone()]);
    assert_eq!(score(&server, &plain.id), before - 300_000.0);
    assert_eq!(score(&server, &last.id) - score(&server, &plain.id), 120_000.0);
    assert!(score(&server, &plain.id) >= now_ms(&server) + 250_000.0);
}

// G25
#[tokio::test]
async fn waiters_that_died_with_the_holder_cost_no_more_than_its_lease() {
    let server = fresh_server();
    let locks = client(&server).await;
    query::<()>(
        &server,
        redis::cmd("HSET").arg("n").arg(format!("{DEAD}:g300000:1")).arg(1),
    );
    query::<()>(&server, redis::cmd("PEXPIRE").arg("n").arg(1_000));
    for _ in 0..10 {
        Plain::dead_of_ours(&server, DEAD, 5 * MINUTE);
    }
    let (waiting, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (second, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    granted(waiting).await.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn of_a_client_that_is_frozen_all_waiters_go_when_the_first_ones_time_is_over() {
    let server = fresh_server();
    let locks = client(&server).await;
    // Ten times this is longer than the test waits.
    let wait = LONG / 8;
    let dead: Vec<_> = (0..10).map(|_| Plain::dead_of_ours(&server, DEAD, wait)).collect();
    // Its connection seems to live: somebody hears.
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut ears = connection.as_pubsub();
    for dead in &dead {
        ears.subscribe(channel(&dead.id)).unwrap();
    }
    let start_ns = clock::now_ns();
    let (waiting, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    assert_eq!(queue(&server).len(), 11);
    let lease = granted(waiting).await;
    assert_eq!(lease.holder().to_string(), id);
    assert!(clock::since(start_ns) >= wait / 2, "it had its time");
    lease.release().await.unwrap();
    eventually_async(LONG, || keys(&server).is_empty()).await;
}

#[tokio::test]
async fn a_dead_waiter_of_redissons_costs_its_time_and_no_busy_loop() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let wait = Duration::from_secs(2);
    let dead = Plain::queues(&server, wait);
    let ends = now_ms(&server) + 2_000.0;
    query::<()>(&server, redis::cmd("ZADD").arg(SCORES).arg(ends).arg(&dead.id));
    let (waiting, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (second, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    lease.release().await.unwrap();
    assert_eq!(queue(&server)[0], dead.id, "it may be about to subscribe");
    let calls = script_calls(&server);
    let lease = granted(waiting).await;
    assert!(now_ms(&server) >= ends, "its place was its own until then");
    assert!(
        script_calls(&server) - calls < 20,
        "{} calls",
        script_calls(&server) - calls
    );
    lease.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

// G24, G07
#[tokio::test]
async fn living_waiters_keep_their_places_far_longer_than_the_wait_time() {
    let server = fresh_server();
    let wait = Duration::from_secs(1);
    let (a, b) = (
        settings(&server)
            .watchdog_time(4 * WATCHDOG)
            .fair_wait_time(wait)
            .build()
            .await
            .unwrap(),
        settings(&server)
            .watchdog_time(4 * WATCHDOG)
            .fair_wait_time(wait)
            .build()
            .await
            .unwrap(),
    );
    let lease = a.fair("n").acquire().await.unwrap();
    let (first, first_id) = queued(&server, b.fair("n").acquire()).await;
    let (second, second_id) = queued(&server, a.fair("n").acquire()).await;
    let until = now_ms(&server) + 9_000.0;
    while now_ms(&server) < until {
        // Each attempt sweeps the queue.
        assert!(b.fair("n").try_acquire().await.unwrap().is_none());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(lease.is_valid());
    assert_eq!(queue(&server), [first_id, second_id]);
    lease.release().await.unwrap();
    granted(first).await.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    nothing_is_left(&server, &a).await;
}

// G29: a Redisson client whose clock is ahead takes others for dead.
#[tokio::test]
async fn a_living_waiter_that_was_taken_out_queues_anew() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let (waiting, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    for command in [
        redis::cmd("LPOP").arg(QUEUE),
        redis::cmd("ZREM").arg(SCORES).arg(&id),
        redis::cmd("DEL").arg(QUEUE).arg(SCORES),
    ] {
        query::<redis::Value>(&server, command);
        eventually_async(LONG, || {
            queue(&server) == [id.clone()] && super::scores(&server).len() == 1
        })
        .await;
    }
    assert!(score(&server, &id) > now_ms(&server) + 300_000.0);
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_waiter_behind_others_that_has_little_time_left_gets_more_and_does_not_ask_in_a_loop() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let (first, first_id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (second, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let last = Plain::queues(&server, MINUTE);
    let by = -600_000;
    for id in [&id, &last.id] {
        query::<()>(&server, redis::cmd("ZINCRBY").arg(SCORES).arg(by).arg(id));
    }
    let calls = script_calls(&server);
    eventually_async(LONG, || score(&server, &id) > now_ms(&server) + 300_000.0).await;
    assert_eq!(score(&server, &last.id) - score(&server, &id), 60_000.0);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(script_calls(&server) - calls < 20);
    assert_eq!(queue(&server), [first_id, id, last.id]);
    lease.release().await.unwrap();
    granted(first).await.release().await.unwrap();
    granted(second).await.release().await.unwrap();
}

// G25, G54
#[tokio::test]
async fn a_process_that_is_killed_as_holder_and_with_ten_waiters_costs_its_lease() {
    let server = fresh_server();
    let locks = client(&server).await;
    let mut crowd = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fair::dead::crowd", "--ignored"])
        .env(CROWD, server.url())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually_async(LONG, || queue(&server).len() == CROWD_SIZE).await;
    let (waiting, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (second, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    crowd.kill().unwrap();
    crowd.wait().unwrap();
    // Each of the dead has a wait time of five minutes.
    granted(waiting).await.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

const CROWD: &str = "LEASEHOLD_TEST_CROWD";
const CROWD_SIZE: usize = 10;

/// Not a test: what the one above runs in a process of its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn crowd() {
    let Ok(url) = std::env::var(CROWD) else {
        return;
    };
    let builder = leasehold::Locks::builder().standalone(&url).watchdog_time(WATCHDOG);
    let locks = builder.build().await.unwrap();
    let lease = locks.fair("n").acquire().await.unwrap();
    for _ in 0..CROWD_SIZE {
        tokio::spawn(locks.fair("n").acquire().into_future());
    }
    // Ends with the server if the test above does not end it.
    lease.lost().await;
}

#[tokio::test]
async fn a_head_without_a_score_gets_one_and_does_not_block_for_ever() {
    let server = fresh_server();
    let locks = settings(&server).fair_wait_time(WATCHDOG).build().await.unwrap();
    query::<()>(&server, redis::cmd("RPUSH").arg(QUEUE).arg("somebody:1"));
    let lease = tokio::time::timeout(LONG, locks.fair("n").acquire().into_future()).await;
    lease.expect("its time passes").unwrap().release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_waiter_whose_connection_breaks_is_still_served() {
    let server = fresh_server();
    let (holding, locks) = (client(&server).await, client(&server).await);
    for _ in 0..10 {
        let lease = hold(&holding).await;
        let (first, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
        let (second, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
        query::<i64>(&server, redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub"));
        lease.release().await.unwrap();
        granted_in_any_order(first, second).await;
        nothing_is_left(&server, &locks).await;
    }
}

async fn granted_in_any_order(
    first: tokio::task::JoinHandle<leasehold::Lease>,
    second: tokio::task::JoinHandle<leasehold::Lease>,
) {
    let release = |waiting| async move {
        granted(waiting).await.release().await.unwrap();
    };
    tokio::join!(release(first), release(second));
}
