//! The fair lock: whoever has waited longest comes first, over all clients.

mod dead;
mod mixed;
pub(crate) mod queue;

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{AcquireError, CallError, Lease, LockKind, Locks, LostReason, ReleaseError, Released};
use leasehold_bench::servers::RedisServer;
use queue::{QUEUE, SCORES, about, channel, granted, now_ms, queue, queued, score, scores};
use tests::messages::Messages;
use tests::{
    LONG, WATCHDOG, channels, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query,
    script_calls, settings,
};

const MINUTE: Duration = Duration::from_secs(60);

async fn hold(locks: &Locks) -> Lease {
    locks.fair("n").acquire().lease_time(MINUTE).await.unwrap()
}

async fn nothing_is_left(server: &RedisServer, locks: &Locks) {
    eventually_async(LONG, || is_idle(locks) && channels(server).is_empty()).await;
    assert!(keys(server).is_empty(), "{:?}", keys(server));
}

#[tokio::test]
async fn a_free_fair_lock_is_taken_as_a_hash_and_nothing_else() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.fair("n");
    assert_eq!(lock.kind(), LockKind::Fair);
    let lease = hold(&locks).await;
    assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".into())]);
    assert_eq!(keys(&server), ["n"]);
    let again = lease.reenter().lease_time(Duration::from_secs(1)).await.unwrap();
    assert_eq!(holders(&server, "n")[0].1, "2");
    assert!(pttl(&server, "n") > 40_000, "a re-entry shortens nothing");
    assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn each_waiter_has_a_place_a_score_and_a_channel_of_its_own() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let (first, first_id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (second, second_id) = queued(&server, locks.fair("n").acquire().wait_limit(MINUTE)).await;
    assert!(first_id.contains(":g300000:") && second_id.contains(":g60000:"));
    assert_eq!(queue(&server), [first_id.clone(), second_id.clone()]);
    let now = now_ms(&server);
    about(score(&server, &first_id) - now, 60_000.0 + 300_000.0);
    about(score(&server, &second_id) - now, 60_000.0 + 300_000.0 + 60_000.0);
    let listening = channels(&server);
    assert!(listening.contains(&channel(&first_id)) && listening.contains(&channel(&second_id)));

    // The one in front takes the lock: the other's score moves up by the taker's wait.
    let messages = Messages::listen(&server);
    lease.release().await.unwrap();
    let lease = granted(first).await;
    assert_eq!(messages.so_far(), [(channel(&first_id), "0".to_owned())]);
    assert_eq!(
        lease.holder().to_string(),
        first_id,
        "a waiter holds with the id it waited with"
    );
    assert_eq!(queue(&server), std::slice::from_ref(&second_id));
    about(score(&server, &second_id) - now_ms(&server), 60_000.0 + 60_000.0);
    lease.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn waiters_of_all_clients_are_served_in_the_order_in_which_they_came() {
    let server = fresh_server();
    let clients = [client(&server).await, client(&server).await, client(&server).await];
    let lease = hold(&clients[0]).await;
    let (mut waiting, mut expected) = (Vec::new(), Vec::new());
    let served = Arc::new(Mutex::new(Vec::new()));
    for n in 0..9 {
        let served = served.clone();
        let (task, id) = queued(&server, clients[n % 3].fair("n").acquire().lease_time(MINUTE)).await;
        expected.push(id);
        waiting.push(tokio::spawn(async move {
            let lease = task.await.unwrap();
            served.lock().unwrap().push(lease.holder().to_string());
            lease.release().await.unwrap();
        }));
    }
    lease.release().await.unwrap();
    for task in waiting {
        tokio::time::timeout(LONG, task)
            .await
            .expect("each has its turn")
            .unwrap();
    }
    assert_eq!(*served.lock().unwrap(), expected);
    assert!(keys(&server).is_empty());
}

// G28
#[tokio::test]
async fn a_waiter_is_told_its_place_in_the_queue() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let lease = hold(&a).await;
    let (mut first, mut second) = (a.fair("n").acquire(), b.fair("n").acquire().lease_time(MINUTE));
    let (at_first, mut at_second) = (first.queue_position(), second.queue_position());
    assert_eq!(*at_first.borrow(), None);
    let (first, _) = queued(&server, first).await;
    let (second, _) = queued(&server, second).await;
    eventually_async(LONG, || (*at_first.borrow(), *at_second.borrow()) == (Some(1), Some(2))).await;
    lease.release().await.unwrap();
    let lease = granted(first).await;
    let moved = tokio::time::timeout(LONG, at_second.wait_for(|place| *place == Some(1))).await;
    assert!(moved.unwrap().is_ok());
    lease.release().await.unwrap();
    drop(granted(second).await);
    assert!(
        at_second.changed().await.is_err(),
        "an acquire that has ended stands nowhere"
    );

    // Others have no such queue.
    let lease = a.reentrant("m").acquire().await.unwrap();
    let mut waiting = b.reentrant("m").acquire();
    let mut place = waiting.queue_position();
    let waiting = tokio::spawn(waiting.into_future());
    lease.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(place.changed().await.is_err() && place.borrow().is_none());
}

#[tokio::test]
async fn an_attempt_that_does_not_wait_never_queues() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    for _ in 0..30 {
        assert!(locks.fair("n").try_acquire().await.unwrap().is_none());
        let result = locks.fair("n").acquire().wait_limit(Duration::ZERO).await;
        assert!(matches!(result, Err(AcquireError::WaitLimit { .. })), "{result:?}");
        assert_eq!(keys(&server), ["n"]);
    }
    assert_eq!(locks.stats().releases, 0, "nothing to withdraw");
    lease.release().await.unwrap();
    let other = client(&server).await;
    let lease = other.fair("n").try_acquire().await.unwrap().expect("it is free");
    lease.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn nobody_passes_a_waiter_by() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let (waiting, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    // Free, with a waiter that was not woken: who comes now does not take it, but wakes that one.
    query::<()>(&server, redis::cmd("DEL").arg("n"));
    assert!(locks.fair("n").try_acquire().await.unwrap().is_none());
    let next = granted(waiting).await;
    assert_eq!(next.holder().to_string(), id);
    assert!(matches!(lease.release().await, Err(ReleaseError::Lost { .. })));
    assert_eq!(holders(&server, "n"), [(id, "1".to_owned())]);
    next.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_re_entry_does_not_stand_in_the_queue() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let (waiting, id) = queued(&server, locks.fair("n").acquire()).await;
    let again = locks
        .fair("n")
        .acquire()
        .owner(&lease.owner())
        .lease_time(MINUTE)
        .await
        .unwrap();
    assert_eq!(holders(&server, "n")[0].1, "2");
    assert_eq!(queue(&server), [id]);
    again.release().await.unwrap();
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_waiter_whose_limit_is_over_has_left_when_it_is_told() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    for _ in 0..5 {
        let result = locks.fair("n").acquire().wait_limit(Duration::from_millis(60)).await;
        assert!(matches!(result, Err(AcquireError::WaitLimit { .. })), "{result:?}");
        eventually_async(LONG, || keys(&server) == ["n"]).await;
    }
    lease.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn an_acquire_that_is_dropped_leaves_the_queue_whenever_that_happens() {
    let server = fresh_server();
    let (holding, locks) = (client(&server).await, client(&server).await);
    let lease = hold(&holding).await;
    for round in 0..60 {
        let acquire = locks.fair("n").acquire().into_future();
        let result = tokio::time::timeout(Duration::from_micros(round * 100), acquire).await;
        assert!(result.is_err(), "the lock is held");
        eventually_async(LONG, || is_idle(&locks) && channels(&server).is_empty()).await;
        assert_eq!(keys(&server), ["n"], "round {round}");
    }
    lease.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_waiter_that_leaves_as_its_turn_comes_passes_the_turn_on() {
    let server = fresh_server();
    let (holding, locks) = (client(&server).await, client(&server).await);
    for round in 0..40 {
        let lease = hold(&holding).await;
        let (leaving, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
        let (staying, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
        let release = tokio::spawn(lease.release());
        tokio::time::sleep(Duration::from_micros(round * 50)).await;
        leaving.abort();
        release.await.unwrap().unwrap();
        drop(leaving.await);
        // The holder's lease lasts a minute: whoever waits for its end is caught here.
        let lease = granted(staying).await;
        assert_eq!(lease.holder().to_string(), id);
        lease.release().await.unwrap();
        nothing_is_left(&server, &locks).await;
    }
}

// G26
#[tokio::test]
async fn when_leases_end_without_a_release_the_next_ones_come_in_order() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease_time = Duration::from_millis(400);
    let first = locks.fair("n").acquire().lease_time(lease_time).await.unwrap();
    let (mut waiting, mut expected) = (Vec::new(), vec![first.holder().to_string()]);
    for _ in 0..5 {
        let (task, id) = queued(&server, locks.fair("n").acquire().lease_time(lease_time)).await;
        waiting.push(task);
        expected.push(id);
    }
    let mut leases = vec![first];
    for task in waiting {
        leases.push(granted(task).await);
    }
    let served: Vec<_> = leases.iter().map(|lease| lease.holder().to_string()).collect();
    assert_eq!(served, expected);
    drop(leases);
    eventually_async(LONG, || keys(&server).is_empty()).await;
}

// G27
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_of_many_clients_exclude_each_other_and_leave_nothing() {
    let server = fresh_server();
    let mut tasks = Vec::new();
    let inside = Arc::new(Mutex::new((0_u32, 0_u32)));
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(&server).await);
    }
    for n in 0..60 {
        let (lock, inside) = (clients[n % 4].fair("n"), inside.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let lease = lock.acquire().await.unwrap();
                {
                    let mut inside = inside.lock().unwrap();
                    inside.0 += 1;
                    assert_eq!(inside.0, 1);
                }
                tokio::task::yield_now().await;
                {
                    let mut inside = inside.lock().unwrap();
                    inside.0 -= 1;
                    inside.1 += 1;
                }
                lease.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(2 * LONG, task).await.expect("no freeze").unwrap();
    }
    assert_eq!(inside.lock().unwrap().1, 300);
    for locks in &clients {
        nothing_is_left(&server, locks).await;
    }
}

// G23
#[tokio::test]
async fn scores_do_not_drift_when_most_waiters_give_up() {
    let server = fresh_server();
    let locks = settings(&server)
        .fair_wait_time(Duration::from_secs(2))
        .build()
        .await
        .unwrap();
    let lease = hold(&locks).await;
    let mut waiting = Vec::new();
    for round in 0..120_u64 {
        let (lock, limit) = (locks.fair("n"), Duration::from_millis(30 + round % 7 * 40));
        waiting.push(tokio::spawn(
            async move { lock.acquire().wait_limit(limit).await.is_err() },
        ));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (now, scores) = (now_ms(&server), scores(&server));
        let latest = scores.values().fold(0.0, |a: f64, b| a.max(*b));
        let bound = now + 60_000.0 + (scores.len() as f64) * 2_000.0 + 500.0;
        assert!(latest <= bound, "round {round}: {scores:?} at {now}");
    }
    for task in waiting {
        assert!(task.await.unwrap());
    }
    eventually_async(LONG, || keys(&server) == ["n"]).await;
    lease.release().await.unwrap();
    nothing_is_left(&server, &locks).await;
}

// G47
#[tokio::test]
async fn a_forced_release_wakes_the_first_waiter_and_is_told_to_the_holder() {
    let server = fresh_server();
    let locks = settings(&server).watchdog_time(2 * WATCHDOG).build().await.unwrap();
    let lease = locks.fair("n").acquire().await.unwrap();
    let (waiting, id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let waiters = locks.admin().waiters("n").await.unwrap();
    assert_eq!(waiters.len(), 1);
    assert_eq!(waiters[0].id, id);
    assert!(waiters[0].place_left.unwrap() > 4 * MINUTE);
    assert!(locks.admin().force_release("n").await.unwrap());
    let next = granted(waiting).await;
    assert_eq!(next.holder().to_string(), id);
    let reason = tokio::time::timeout(LONG, lease.lost()).await.expect("it is told");
    // On a busy machine the deadline can be quicker than the renewal.
    assert!(
        matches!(reason, LostReason::NotOwner | LostReason::DeadlinePassed),
        "{reason:?}"
    );
    assert!(matches!(lease.release().await, Err(ReleaseError::Lost { .. })));
    next.release().await.unwrap();
    let messages = Messages::listen(&server);
    assert!(!locks.admin().force_release("n").await.unwrap());
    assert!(locks.admin().waiters("n").await.unwrap().is_empty());
    assert!(messages.so_far().is_empty());
    assert!(keys(&server).is_empty());
}

// G52
#[tokio::test]
async fn what_is_no_fair_lock_is_told_and_left_alone() {
    let server = fresh_server();
    let locks = client(&server).await;
    let things: [(&str, &[&str]); 4] = [
        ("n", &["SET", "n", "x"]),
        (QUEUE, &["SET", QUEUE, "x"]),
        (SCORES, &["RPUSH", SCORES, "x"]),
        ("n", &["HSET", "n", "mode", "read", "a", "1"]),
    ];
    for (key, words) in things {
        let mut make = redis::Cmd::new();
        for word in words {
            make.arg(word);
        }
        query::<redis::Value>(&server, &make);
        query::<()>(&server, redis::cmd("PEXPIRE").arg(key).arg(60_000));
        let held = redis::cmd("HSET").arg("n").arg("somebody:1").arg(1).clone();
        if key != "n" {
            query::<()>(&server, &held);
            query::<()>(&server, redis::cmd("PEXPIRE").arg("n").arg(60_000));
        }
        let before = keys(&server);
        let dump: Vec<u8> = query(&server, redis::cmd("DUMP").arg(key));
        let result = tokio::time::timeout(LONG, locks.fair("n").acquire().into_future()).await;
        let Err(AcquireError::Refused {
            source: CallError::WrongKeyType { .. },
            ..
        }) = result.expect("at once")
        else {
            panic!("{words:?}");
        };
        eventually_async(LONG, || is_idle(&locks)).await;
        assert_eq!(
            query::<Vec<u8>>(&server, redis::cmd("DUMP").arg(key)),
            dump,
            "{words:?}"
        );
        assert_eq!(keys(&server), before);
        query::<()>(&server, &redis::cmd("FLUSHALL"));
    }
    query::<()>(&server, redis::cmd("HSET").arg("n").arg("f").arg("notanumber"));
    let result = locks.fair("n").acquire().await;
    assert!(matches!(result, Err(AcquireError::NoTimeToLive { .. })), "{result:?}");
    assert_eq!(keys(&server), ["n"]);
}

#[tokio::test]
async fn locks_are_given_back_and_queues_left_when_memory_is_full() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let (first, _) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let (leaving, _) = queued(&server, locks.fair("n").acquire()).await;
    let (third, third_id) = queued(&server, locks.fair("n").acquire().lease_time(MINUTE)).await;
    let full = |bytes: &str| query::<()>(&server, redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes));
    full("1");
    leaving.abort();
    eventually_async(LONG, || queue(&server).len() == 2).await;
    lease.release().await.unwrap();
    let lease = granted(first).await;
    assert_eq!(queue(&server), [third_id]);
    lease.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    full("0");
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn who_may_not_listen_does_not_queue_and_gets_what_is_free() {
    let server = fresh_server();
    let rights = ["SETUSER", "deaf", "on", ">p", "~*", "+@all", "-subscribe", "&*"];
    query::<()>(&server, redis::cmd("ACL").arg(&rights));
    let url = server.url() + "?user=deaf&pass=p";
    let deaf = Locks::builder()
        .standalone(&url)
        .watchdog_time(WATCHDOG)
        .build()
        .await
        .unwrap();
    let locks = client(&server).await;
    let lease = hold(&locks).await;
    let calls = script_calls(&server);
    let waiting = tokio::spawn(deaf.fair("n").acquire().into_future());
    eventually_async(LONG, || script_calls(&server) >= calls + 3).await;
    assert_eq!(keys(&server), ["n"]);
    lease.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("it asks")
        .unwrap()
        .unwrap();
    lease.release().await.unwrap();
    assert!(keys(&server).is_empty());
}
