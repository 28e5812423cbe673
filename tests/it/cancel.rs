//! Cancellation: a future that is dropped at any await leaves no lock, no waiter and no subscription behind.

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use leasehold::{AcquireError, Lease, Locks, Released};
use leasehold_bench::proxy::{Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::{
    LONG, channels, client, eventually_async, fresh_server, holders, is_idle, keys, query, renewed_or_lost,
    script_calls,
};

#[tokio::test]
async fn an_acquire_of_a_free_lock_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    at_every_await(
        || locks.reentrant("n").acquire().into_future(),
        async || {
            nothing_is_left(&server, &locks).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_try_acquire_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    at_every_await(
        || locks.reentrant("n").try_acquire().into_future(),
        async || {
            nothing_is_left(&server, &locks).await;
        },
    )
    .await;
}

/// More awaits than usual: the link has to be opened, and the server does not know the scripts.
#[tokio::test]
async fn an_acquire_that_has_to_connect_anew_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let forget_all = || {
        let _: i64 = query(&server, redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal"));
        let _: () = query(&server, redis::cmd("SCRIPT").arg("FLUSH"));
        locks.reentrant("n").acquire().into_future()
    };
    at_every_await(forget_all, async || nothing_is_left(&server, &locks).await).await;
}

#[tokio::test]
async fn an_acquire_of_a_busy_lock_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let (holding, locks) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let lease = holding.reentrant("n").acquire().await.unwrap();
    let held = holders(&server, "n");
    for lateness in LATENESS {
        let mut polls = 0;
        loop {
            let mut acquire = locks.reentrant("n").acquire().into_future();
            let calls = script_calls(&server);
            let asleep = tokio::select! {
                biased;
                granted = polled(&mut acquire, polls) => {
                    assert!(granted.is_none(), "the lock is held");
                    false
                }
                () = sleeps(&server, calls) => true,
            };
            tokio::time::sleep(lateness).await;
            drop(acquire);
            eventually_async(LONG, || is_idle(&locks) && channels(&server).is_empty()).await;
            assert_eq!(holders(&server, "n"), held, "after {polls} polls");
            if asleep {
                break;
            }
            polls += 1;
        }
        assert!(polls > 2, "attempt, subscribe, attempt");
    }
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
}

/// The message of a release wakes one waiter of a client: if that one leaves, the next has to have it.
#[tokio::test]
async fn a_waiter_that_leaves_as_the_lock_becomes_free_costs_the_next_one_no_turn() {
    let server = fresh_server();
    let (holding, locks) = (lasting(&server.url()).await, lasting(&server.url()).await);
    for lateness in LATENESS {
        let mut until_asleep = u32::MAX;
        for polls in 1.. {
            let lease = holding.reentrant("n").acquire().await.unwrap();
            let mut leaving = locks.reentrant("n").acquire().into_future();
            let calls = script_calls(&server);
            assert!(polled(&mut leaving, 1).await.is_none());
            let staying = tokio::spawn(locks.reentrant("n").acquire().into_future());
            tokio::select! {
                biased;
                _ = polled(&mut leaving, polls.min(until_asleep) - 1) => {}
                () = sleeps(&server, calls) => until_asleep = until_asleep.min(polls - 1),
            }
            lease.release().await.unwrap();
            // Those polls that sleep leaves over see the message.
            let granted = polled(&mut leaving, polls.saturating_sub(until_asleep)).await;
            tokio::time::sleep(lateness).await;
            drop(leaving);
            let done = granted.is_some();
            drop(granted);
            // The lease before lasts a minute and was released: whoever waits for its end is caught here.
            let lease = tokio::time::timeout(LONG, staying).await;
            lease
                .expect("the wake-up was passed on")
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
            nothing_is_left(&server, &locks).await;
            if done {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_waiter_that_leaves_from_the_middle_of_the_queue_costs_nobody_a_turn() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| locks.reentrant("n").acquire().into_future()).collect();
    for acquire in &mut waiting {
        assert!(polled(acquire, 1).await.is_none());
    }
    drop(waiting.remove(1));
    lease.release().await.unwrap();
    for acquire in waiting {
        let lease = tokio::time::timeout(LONG, acquire).await.expect("its turn comes");
        lease.unwrap().release().await.unwrap();
    }
    nothing_is_left(&server, &locks).await;
}

#[tokio::test]
async fn a_re_entry_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let held_once = vec![(lease.holder().to_string(), "1".to_owned())];
    at_every_await(
        || lease.reenter().into_future(),
        async || {
            eventually_async(LONG, || locks.stats().releases == 0).await;
            assert_eq!(holders(&server, "n"), held_once);
            assert_eq!(lease.hold_count(), 1);
            assert!(lease.is_valid());
            // The owner's next re-entry finds no trace of the one that was dropped.
            let again = lease.reenter().await.unwrap();
            assert_eq!(holders(&server, "n")[0].1, "2");
            assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
        },
    )
    .await;
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    nothing_is_left(&server, &locks).await;
}

// G39
#[tokio::test]
async fn a_release_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    for lateness in LATENESS {
        for polls in 0.. {
            let lease = locks.reentrant("n").acquire().await.unwrap();
            let mut release = Box::pin(lease.release());
            let done = polled(&mut release, polls).await;
            tokio::time::sleep(lateness).await;
            drop(release);
            nothing_is_left(&server, &locks).await;
            if let Some(released) = done {
                assert_eq!(released.unwrap(), Released::Fully);
                assert!(polls > 1);
                break;
            }
        }
    }
}

// G39
#[tokio::test]
async fn a_release_of_one_lease_of_two_can_be_dropped_at_every_await() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    for polls in 0.. {
        let mut release = Box::pin(lease.reenter().await.unwrap().release());
        let done = polled(&mut release, polls).await;
        drop(release);
        eventually_async(LONG, || locks.stats().releases == 0).await;
        assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".to_owned())]);
        if let Some(released) = done {
            assert_eq!(released.unwrap(), Released::StillHeld(1));
            break;
        }
    }
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_acquires_cancelled_at_any_moment_leave_nothing() {
    let server = fresh_server();
    let (holding, locks) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let busy = holding.reentrant("busy").acquire().await.unwrap();
    let held = holders(&server, "busy");
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut at_once: Vec<tokio::task::JoinHandle<()>> = Vec::new();
    for n in 0..1_000 {
        // Free ones, one that is never free, and one for which all of them compete.
        let name = match n % 3 {
            0 => format!("free:{n}"),
            1 => "busy".to_owned(),
            _ => "hot".to_owned(),
        };
        let acquire = locks.reentrant(&name).acquire().into_future();
        let moment = Duration::from_micros(random.u64(0..3_000));
        at_once.push(tokio::spawn(async move {
            // Whoever is granted drops the lease here.
            let _ = tokio::time::timeout(moment, acquire).await;
        }));
        if at_once.len() == 50 {
            for task in at_once.drain(..) {
                task.await.unwrap();
            }
        }
    }
    eventually_async(LONG, || is_idle(&locks) && channels(&server).is_empty()).await;
    assert_eq!(keys(&server), ["busy"], "seed {SEED}");
    assert_eq!(holders(&server, "busy"), held);
    busy.release().await.unwrap();
}

// G02
#[tokio::test]
async fn acquires_dropped_while_their_reply_is_on_its_way_are_given_back_and_not_renewed() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = lasting(&leg.url()).await;
    // From here on the server knows the script, so that one request is all an acquire needs.
    locks.reentrant("n").acquire().await.unwrap().release().await.unwrap();
    for round in 0..5 {
        leg.switch(Mode::HoldReplies).unwrap();
        let acquires: Vec<_> = (0..100)
            .map(|n| tokio::spawn(locks.reentrant(format!("n:{round}:{n}")).acquire().into_future()))
            .collect();
        eventually_async(LONG, || keys(&server).len() == 100).await;
        for acquire in &acquires {
            acquire.abort();
        }
        leg.switch(Mode::Pass).unwrap();
        // Their lease is a minute: only a release of ours is that quick.
        nothing_is_left(&server, &locks).await;
    }
}

// G21
#[tokio::test]
async fn an_acquire_whose_wait_ends_as_the_lock_becomes_free_says_what_redis_has() {
    let server = fresh_server();
    let holding = lasting(&server.url()).await;
    let tasks: Vec<_> = (-15..15)
        .map(|offset: i64| {
            let (name, url, holding) = (format!("n:{offset}"), server.url(), holding.clone());
            tokio::spawn(async move {
                let locks = lasting(&url).await;
                let lock = locks.reentrant(&name);
                for _ in 0..5 {
                    let lease = holding.reentrant(&name).acquire().await.unwrap();
                    let release = tokio::spawn(async move {
                        let wait = WAIT.as_millis() as i64 + offset;
                        tokio::time::sleep(Duration::from_millis(wait as u64)).await;
                        lease.release().await.unwrap();
                    });
                    let result = lock.acquire().wait_limit(WAIT).lease_time(MINUTE).await;
                    release.await.unwrap();
                    let found = async || locks.admin().inspect(&name).await.unwrap();
                    match result {
                        Ok(lease) => {
                            let holders = found().await.expect("it is held").holders;
                            assert_eq!(holders.len(), 1);
                            assert_eq!(holders[0].id, lease.holder().to_string());
                            lease.release().await.unwrap();
                        }
                        Err(AcquireError::WaitLimit { .. } | AcquireError::Unavailable { .. }) => {
                            eventually_async(LONG, || locks.stats().releases == 0).await;
                            assert!(found().await.is_none());
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(keys(&server), [""; 0]);
}

// G40 (a)
#[tokio::test]
async fn a_dropped_lease_wakes_the_next_waiter() {
    let server = fresh_server();
    let (locks, other) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let waiting = waiter(&server, &other).await;
    drop(lease);
    woken(waiting).await;
}

// G40 (a)
#[tokio::test]
async fn an_acquire_right_after_a_drop_is_no_re_entry() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let me = locks.owner();
    for _ in 0..50 {
        let lease = locks
            .reentrant("n")
            .acquire()
            .owner(&me)
            .wait_limit(LONG)
            .await
            .unwrap();
        let before = lease.holder().to_string();
        drop(lease);
        let lease = locks
            .reentrant("n")
            .acquire()
            .owner(&me)
            .wait_limit(LONG)
            .await
            .unwrap();
        assert_ne!(lease.holder().to_string(), before);
        assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".to_owned())]);
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    }
}

// G40 (b)
#[tokio::test]
async fn a_lease_dropped_by_a_panic_is_given_back() {
    let server = fresh_server();
    let (locks, other) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let waiting = waiter(&server, &other).await;
    let task = tokio::spawn(async move {
        let _lease = lease;
        // Unwinds like a panic, but prints nothing.
        std::panic::resume_unwind(Box::new("the work failed"));
    });
    assert!(task.await.unwrap_err().is_panic());
    woken(waiting).await;
}

/// A runtime that runs only within `block_on` drives no connection between two calls.
// G40 (c)
#[test]
fn a_lease_dropped_while_its_runtime_stands_still_is_given_back() {
    let server = fresh_server();
    let runtime = current_thread();
    let locks = runtime.block_on(async {
        let builder = Locks::builder().standalone(&server.url()).watchdog_time(MINUTE);
        builder.command_timeout(Duration::from_secs(1)).build().await.unwrap()
    });
    let lease = runtime.block_on(locks.reentrant("n").acquire().into_future()).unwrap();
    drop(lease);
    tests::eventually(LONG, || keys(&server).is_empty() && is_idle(&locks));
}

// G40 (d)
#[test]
fn a_lease_dropped_by_the_end_of_its_runtime_is_given_back() {
    for threads in 0..=1 {
        let server = fresh_server();
        let runtime = match threads {
            0 => current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
        };
        let locks = runtime.block_on(lasting(&server.url()));
        let lease = runtime.block_on(locks.reentrant("n").acquire().into_future()).unwrap();
        runtime.spawn(async move {
            let _lease = lease;
            std::future::pending::<()>().await
        });
        drop(runtime);
        tests::eventually(LONG, || keys(&server).is_empty() && is_idle(&locks));
    }
}

/// As the one above, but nothing is left that could keep the client alive.
// G40 (d)
#[test]
fn a_lease_that_is_the_last_of_its_client_is_given_back() {
    let server = fresh_server();
    let runtime = current_thread();
    let lease = runtime.block_on(async {
        let locks = lasting(&server.url()).await;
        locks.reentrant("n").acquire().await.unwrap()
    });
    drop(runtime);
    drop(lease);
    tests::eventually(LONG, || keys(&server).is_empty());
}

// G40 (e)
#[tokio::test]
async fn a_lease_dropped_on_a_thread_without_a_runtime_is_given_back() {
    let server = fresh_server();
    let (locks, other) = (lasting(&server.url()).await, lasting(&server.url()).await);
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let waiting = waiter(&server, &other).await;
    thread::spawn(move || drop(lease)).join().unwrap();
    woken(waiting).await;
}

#[tokio::test]
async fn a_cancelled_acquire_is_not_renewed() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let (leg, way) = (proxy.leg().unwrap(), client(&server).await);
    let locks = Locks::builder()
        .standalone(&leg.url())
        .watchdog_time(tests::WATCHDOG)
        .build()
        .await
        .unwrap();
    // The renewals of a lease that is kept show that the count below would see them.
    let kept = way.reentrant("kept").acquire().await.unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    let acquire = tokio::spawn(locks.reentrant("n").acquire().into_future());
    eventually_async(LONG, || keys(&server).len() == 2).await;
    acquire.abort();
    leg.switch(Mode::Pass).unwrap();
    eventually_async(LONG, || is_idle(&locks) && keys(&server) == ["kept"]).await;
    let calls = script_calls(&server);
    renewed_or_lost(&kept).await;
    assert!(script_calls(&server) > calls);
    drop(kept);
    eventually_async(LONG, || is_idle(&way) && keys(&server).is_empty()).await;
    let calls = script_calls(&server);
    tokio::time::sleep(tests::WATCHDOG * 2 / 3).await;
    assert_eq!(script_calls(&server), calls);
}

/// Runs the future up to its first, second, … await and drops it there: at once, and after what it waits for has come.
async fn at_every_await<F>(mut start: impl FnMut() -> Pin<Box<F>>, check: impl AsyncFn())
where
    F: Future + ?Sized,
{
    for lateness in LATENESS {
        for polls in 0.. {
            let mut future = start();
            let done = polled(&mut future, polls).await.is_some();
            tokio::time::sleep(lateness).await;
            drop(future);
            check().await;
            if done {
                assert!(polls > 1, "it never waited");
                break;
            }
        }
    }
}

/// Polls a future this often, each time when it asks for it.
async fn polled<F: Future + ?Sized>(future: &mut Pin<Box<F>>, polls: u32) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns when somebody waits for a wake-up: has attempted twice since `calls`, and listens.
async fn sleeps(server: &RedisServer, calls: u64) {
    eventually_async(LONG, || {
        channels(server).len() == 1 && script_calls(server) >= calls + 2
    })
    .await;
    // For the answer of the second attempt to arrive; nothing depends on it but which await is seen.
    tokio::time::sleep(Duration::from_millis(10)).await;
}

async fn nothing_is_left(server: &RedisServer, locks: &Locks) {
    eventually_async(LONG, || {
        is_idle(locks) && keys(server).is_empty() && channels(server).is_empty()
    })
    .await;
}

/// An acquire of `n` that sleeps.
async fn waiter(server: &RedisServer, locks: &Locks) -> tokio::task::JoinHandle<Result<Lease, AcquireError>> {
    let calls = script_calls(server);
    let waiting = tokio::spawn(locks.reentrant("n").acquire().into_future());
    sleeps(server, calls).await;
    waiting
}

/// The waiter was woken: the lease before it was to last for a minute.
async fn woken(waiting: tokio::task::JoinHandle<Result<Lease, AcquireError>>) {
    let lease = tokio::time::timeout(LONG, waiting).await.expect("woken by a message");
    lease.unwrap().unwrap().release().await.unwrap();
}

/// A client whose locks outlive every limit of these tests: what is gone was given back.
async fn lasting(url: &str) -> Locks {
    Locks::builder()
        .standalone(url)
        .watchdog_time(2 * MINUTE)
        .build()
        .await
        .unwrap()
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Dropped at once, and when the answer has come that the future waits for.
const LATENESS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(5)];
const MINUTE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(60);
const SEED: u64 = 7;
