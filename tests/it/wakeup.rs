//! Waiters: they hear a release that comes at any moment, one at a time, and never take a message for the lock.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::Locks;
use leasehold_bench::proxy::{Mode, Proxy};
use tests::{LONG, channels, client, eventually_async, fresh_server, holders, is_idle, pttl, query, script_calls};

const MINUTE: Duration = Duration::from_secs(60);

/// A lock that another client got by message, not by the end of its lease: two thirds of it are still left when it is given back.
async fn hand_over([a, b]: &[Locks; 2], server: &leasehold_bench::servers::RedisServer, name: &str) {
    let held = a.reentrant(name).acquire().lease_time(MINUTE).await.unwrap();
    let before = script_calls(server);
    let waiting = tokio::spawn({
        let lock = b.reentrant(name);
        async move { lock.acquire().lease_time(MINUTE).await.unwrap() }
    });
    // An attempt, the subscription, and the attempt after it.
    eventually_async(LONG, || script_calls(server) >= before + 2).await;
    assert!(pttl(server, name) > 40_000);
    held.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by message")
        .unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_release_wakes_a_waiter_by_message() {
    let server = fresh_server();
    let both = [client(&server).await, client(&server).await];
    for round in 0..20 {
        hand_over(&both, &server, &format!("n{}", round % 3)).await;
    }
    eventually_async(LONG, || both.iter().all(is_idle)).await;
}

#[tokio::test]
async fn a_release_while_the_subscription_is_on_its_way_is_not_missed() {
    // G13
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let a = client(&server).await;
    let b = Locks::connect(&leg.url()).await.unwrap();
    for _ in 0..10 {
        let held = a.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
        // Slow both ways: the release falls between the busy answer and the confirmed subscription.
        leg.switch(Mode::Delay(Duration::from_millis(40))).unwrap();
        let before = script_calls(&server);
        let waiting = tokio::spawn({
            let lock = b.reentrant("n");
            async move { lock.acquire().wait_limit(MINUTE).lease_time(MINUTE).await.unwrap() }
        });
        eventually_async(LONG, || script_calls(&server) > before).await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..120))).await;
        held.release().await.unwrap();
        let lease = tokio::time::timeout(LONG, waiting)
            .await
            .expect("the second attempt finds it free")
            .unwrap();
        leg.switch(Mode::Pass).unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holder_at_a_time_under_contention_from_several_clients() {
    // G16, first half; the counter is the evidence, not the lock.
    let server = fresh_server();
    let inside = Arc::new(AtomicU32::new(0));
    let passed = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = client(&server).await;
        for _ in 0..4 {
            let (lock, inside, passed) = (locks.reentrant("n"), inside.clone(), passed.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..50 {
                    let lease = lock.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    tokio::task::yield_now().await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    lease.release().await.unwrap();
                    passed.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(LONG * 2, task)
            .await
            .expect("everybody gets in")
            .unwrap();
    }
    assert_eq!(passed.load(Ordering::Relaxed), 600);
}

#[tokio::test]
async fn a_forged_message_lets_nobody_in() {
    // G16, second half
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let held = a.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let waiting = tokio::spawn({
        let lock = b.reentrant("n");
        async move { lock.acquire().await.unwrap() }
    });
    for payload in ["0", "1", "0", "nonsense"] {
        let before = script_calls(&server);
        let is_wake_up = payload != "nonsense";
        eventually_async(LONG, || {
            let heard: i64 = query(
                &server,
                redis::cmd("PUBLISH").arg("redisson_lock__channel:{n}").arg(payload),
            );
            heard > 0 && (!is_wake_up || script_calls(&server) > before)
        })
        .await;
        assert!(!waiting.is_finished());
    }
    assert_eq!(holders(&server, "n"), [(held.holder().to_string(), "1".to_owned())]);
    held.release().await.unwrap();
    drop(
        tokio::time::timeout(LONG, waiting)
            .await
            .expect("the real message")
            .unwrap(),
    );
}

#[tokio::test]
async fn a_woken_waiter_that_is_cancelled_passes_the_wake_up_on() {
    let server = fresh_server();
    let (holding, locks) = (client(&server).await, client(&server).await);
    for _ in 0..20 {
        let held = holding.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
        let wait = |lock: leasehold::ReentrantLock| async move { lock.acquire().lease_time(MINUTE).await.unwrap() };
        let first = tokio::spawn(wait(locks.reentrant("n")));
        eventually_async(LONG, || locks.stats().subscriptions == 1).await;
        let second = tokio::spawn(wait(locks.reentrant("n")));
        tokio::task::yield_now().await;
        let released = tokio::spawn(held.release());
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..600))).await;
        first.abort();
        released.await.unwrap().unwrap();
        // A lease that was granted before the abort is given back here.
        drop(first.await);
        // Whether the first was aborted before or after it was granted: the second gets it, and by message.
        let lease = tokio::time::timeout(LONG, second)
            .await
            .expect("not at the end of the lease")
            .unwrap();
        lease.release().await.unwrap();
        eventually_async(LONG, || is_idle(&locks)).await;
    }
}

#[tokio::test]
async fn many_waiters_of_one_process_share_one_subscription_and_one_attempt() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let held = a.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let before = script_calls(&server);
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let lock = b.reentrant("n");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    eventually_async(LONG, || {
        let heard: Vec<(String, i64)> = query(
            &server,
            redis::cmd("PUBSUB").arg("NUMSUB").arg("redisson_lock__channel:{n}"),
        );
        heard[0].1 == 1
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = script_calls(&server) - before;
    assert!(asked <= 2, "only the front asks: {asked}");
    held.release().await.unwrap();
    for waiter in waiters {
        tokio::time::timeout(LONG, waiter)
            .await
            .expect("all get their turn")
            .unwrap();
    }
    eventually_async(LONG, || is_idle(&b)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_time_out_or_are_cancelled_leave_no_subscription_behind() {
    // G17
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let mut tasks = Vec::new();
    for task in 0..30 {
        let locks = if task % 2 == 0 { a.clone() } else { b.clone() };
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let lock = locks.reentrant(format!("n{}", fastrand::u32(..10)));
                let brief = Duration::from_micros(fastrand::u64(..3_000));
                match fastrand::u8(..3) {
                    0 => drop(lock.acquire().wait_limit(brief).await),
                    1 => drop(tokio::time::timeout(brief, lock.acquire().into_future()).await),
                    _ => {
                        let lease = lock.acquire().await.unwrap();
                        tokio::time::sleep(brief).await;
                        lease.release().await.unwrap();
                    }
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(2 * LONG, task).await.unwrap().unwrap();
    }
    eventually_async(LONG, || is_idle(&a) && is_idle(&b) && channels(&server).is_empty()).await;
}

#[tokio::test]
async fn waiting_for_many_names_at_once_takes_one_connection_and_blocks_nothing_else() {
    // G18
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let clients = || {
        query::<String>(&server, redis::cmd("CLIENT").arg("LIST"))
            .lines()
            .count()
    };
    let mut held = Vec::new();
    for number in 0..200 {
        let lock = b.reentrant(format!("n{number}"));
        held.push(lock.acquire().lease_time(MINUTE).await.unwrap());
    }
    let before = clients();
    let waiters: Vec<_> = (0..200)
        .map(|number| tokio::spawn(a.reentrant(format!("n{number}")).acquire().into_future()))
        .collect();
    eventually_async(LONG, || channels(&server).len() == 200).await;
    assert_eq!(clients(), before, "all of them share the connection that was there");
    let other = a.reentrant("free").acquire().await.unwrap();
    other.release().await.unwrap();
    for lease in held {
        lease.release().await.unwrap();
    }
    for waiter in waiters {
        let lease = tokio::time::timeout(LONG, waiter).await.unwrap().unwrap().unwrap();
        lease.release().await.unwrap();
    }
    eventually_async(LONG, || is_idle(&a) && channels(&server).is_empty()).await;
}
