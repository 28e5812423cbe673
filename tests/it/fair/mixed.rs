//! One queue with waiters of Redisson's, and scripts that run twice or late.

use std::time::Duration;

use leasehold_bench::servers::RedisServer;
use tests::messages::Messages;
use tests::scripts::{FAIR_ACQUIRE, FAIR_RELEASE};
use tests::{client, eventually_async, fresh_server, holders, keys, query};

use super::queue::{Plain, QUEUE, SCORES, about, channel, granted, now_ms, queue, queued, score, scores};
use super::{LONG, MINUTE, hold, nothing_is_left};

#[tokio::test]
async fn ours_and_redissons_take_turns_in_one_queue() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let plain = Plain::queues(&server, 5 * MINUTE);
    let (ours, our_id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let last = Plain::queues(&server, MINUTE);
    about(score(&server, &our_id) - now_ms(&server), 660_000.0);

    let messages = Messages::listen(&server);
    lease.release().await.unwrap();
    assert_eq!(messages.so_far(), [(channel(&plain.id), "0".to_owned())]);
    assert_eq!(
        queue(&server)[0],
        plain.id,
        "the lock is free, and it is Redisson's turn"
    );
    assert!(locks.fair("n").try_acquire().await.unwrap().is_none());
    plain.takes(&server, MINUTE);
    about(score(&server, &our_id) - now_ms(&server), 360_000.0);
    assert_eq!(
        plain.releases(&server),
        2,
        "the listener of this test, and the waiter of ours"
    );
    let lease = granted(ours).await;
    assert_eq!(lease.holder().to_string(), our_id);
    about(score(&server, &last.id) - now_ms(&server), 120_000.0);
    lease.release().await.unwrap();
    last.takes(&server, MINUTE);
    query::<()>(&server, redis::cmd("DEL").arg("n"));
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_waiter_of_ours_that_gives_up_moves_those_behind_it_up_by_its_wait() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let first = Plain::queues(&server, 5 * MINUTE);
    let (leaving, _) = queued(&server, locks.fair("n").acquire().wait_limit(2 * MINUTE)).await;
    let last = Plain::queues(&server, MINUTE);
    let before = scores(&server);
    leaving.abort();
    eventually_async(LONG, || queue(&server) == [first.id.clone(), last.id.clone()]).await;
    let after = scores(&server);
    assert_eq!(after.len(), 2);
    assert_eq!(after[&first.id], before[&first.id]);
    assert_eq!(after[&last.id], before[&last.id] - 120_000.0);
    drop(lease);
}

#[tokio::test]
async fn a_waiter_of_redissons_that_gives_up_on_a_free_lock_is_noticed() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let plain = Plain::queues(&server, 5 * MINUTE);
    let (ours, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    lease.release().await.unwrap();
    // Redisson publishes nothing when a waiter leaves.
    query::<()>(&server, redis::cmd("LREM").arg(QUEUE).arg(0).arg(&plain.id));
    query::<()>(&server, redis::cmd("ZREM").arg(SCORES).arg(&plain.id));
    granted(ours).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_living_head_of_ours_takes_those_behind_it_along_when_it_keeps_its_place() {
    let server = fresh_server();
    let locks = tests::settings(&server)
        .fair_wait_time(Duration::from_secs(2))
        .build()
        .await
        .unwrap();
    let lease = hold(&locks).await;
    let (ours, our_id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let plain = Plain::queues(&server, 5 * MINUTE);
    let distance = score(&server, &plain.id) - score(&server, &our_id);
    let before = score(&server, &our_id);
    query::<()>(&server, redis::cmd("PEXPIRE").arg("n").arg(120_000));
    eventually_async(LONG, || score(&server, &our_id) > before + 30_000.0).await;
    assert_eq!(score(&server, &plain.id) - score(&server, &our_id), distance);
    lease.release().await.unwrap();
    let lease = granted(ours).await;
    assert!(score(&server, &plain.id) > now_ms(&server) + 300_000.0);
    drop(lease);
}

/// Scripts of ours as a server would run them late, long after their callers are gone.
fn late(server: &RedisServer, script: &str, args: &[&str]) -> Vec<i64> {
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(3).arg("n").arg(QUEUE).arg(SCORES).arg(args);
    query(server, &eval)
}

const STEM: &str = "redisson_lock__channel:{n}:";

// G38
#[tokio::test]
async fn a_release_that_runs_again_harms_neither_the_next_holder_nor_the_queue() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let first_id = lease.holder().to_string();
    let (second, second_id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (third, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    lease.release().await.unwrap();
    let lease = granted(second).await;
    let (before, messages) = (scores(&server), Messages::listen(&server));
    for count in ["0", "1"] {
        assert_eq!(late(&server, FAIR_RELEASE, &[&first_id, count, STEM]), [-1, 0]);
    }
    assert_eq!(holders(&server, "n"), [(second_id, "1".to_owned())]);
    assert_eq!(scores(&server), before);
    assert!(messages.so_far().is_empty());
    lease.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn an_acquire_that_runs_again_changes_nothing() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let holder = lease.holder().to_string();
    assert_eq!(late(&server, FAIR_ACQUIRE, &[&holder, "1", "1000", "1", STEM]), [1, 1]);
    assert!(tests::pttl(&server, "n") > 40_000, "nothing is shortened");
    assert_eq!(keys(&server), ["n"]);
    let (waiting, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let before = scores(&server);
    for _ in 0..3 {
        let reply = late(&server, FAIR_ACQUIRE, &[&id, "1", "60000", "1", STEM]);
        let [0, 1..=1_000, 1] = reply[..] else {
            panic!("busy, asked again within a second, first in the queue: {reply:?}");
        };
    }
    assert_eq!(scores(&server), before);
    assert_eq!(queue(&server), std::slice::from_ref(&id));
    // A re-entry whose hold is gone creates nothing, and takes no place.
    assert_eq!(
        late(&server, FAIR_ACQUIRE, &["x:g1000:9", "2", "60000", "1", STEM]),
        [-1, 0]
    );
    assert_eq!(queue(&server), [id]);
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}
