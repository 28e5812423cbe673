//! Two steps that cross, and what stays behind when somebody leaves at the wrong moment: what a review found.

use std::future::IntoFuture;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{
    AcquireError, AttemptTimeout, BuildError, Effort, EventKind, Lease, LeaseState, Locks, LostReason, Margin, Period,
    ReleaseError, Released, RenewalPolicy, Signal,
};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use rustix::process::{Resource, Rlimit, setrlimit};
use tests::heard::Heard;
use tests::switchboard::Switchboard;
use tests::{
    LONG, WATCHDOG, channels, client, eventually, eventually_async, fresh_server, holders, is_idle, keys, query,
    script_calls, settings,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_that_crosses_the_last_releases_of_its_hold_holds_the_lock() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let lock = locks.reentrant("n");
    for round in 0..300 {
        let owner = locks.owner();
        let acquire = || lock.acquire().owner(&owner).into_future();
        let (first, second) = (acquire().await.unwrap(), acquire().await.unwrap());
        let third = match round % 3 {
            0 => {
                let (first, third, second) = tokio::join!(first.release(), acquire(), second.release());
                first.unwrap();
                second.unwrap();
                third
            }
            1 => {
                let releases = [tokio::spawn(first.release()), tokio::spawn(second.release())];
                let third = acquire().await;
                for release in releases {
                    release.await.unwrap().unwrap();
                }
                third
            }
            _ => {
                drop(first);
                let third = tokio::spawn(acquire());
                drop(second);
                third.await.unwrap()
            }
        };
        let third = third.unwrap();
        eventually_async(LONG, || locks.stats().releases == 0).await;
        assert_eq!(holders(&server, "n"), [held_once(&third)], "round {round}");
        assert!(third.is_valid());
        assert_eq!(third.release().await.unwrap(), Released::Fully);
    }
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn an_owner_that_holds_at_one_server_holds_nothing_at_another() {
    let (here, there) = (fresh_server(), fresh_server());
    let (locks, other) = (client(&here).await, client(&there).await);
    let owner = locks.owner();
    let first = locks.reentrant("n").acquire().owner(&owner).await.unwrap();
    let second = other.reentrant("n").acquire().owner(&owner).await.unwrap();
    assert_eq!(holders(&here, "n"), [held_once(&first)]);
    assert_eq!(holders(&there, "n"), [held_once(&second)]);
    assert_eq!(first.release().await.unwrap(), Released::Fully);
    assert_eq!(holders(&there, "n"), [held_once(&second)]);
    assert_eq!(second.release().await.unwrap(), Released::Fully);
}

#[tokio::test]
async fn an_owner_that_holds_one_kind_of_lock_does_not_re_enter_it_as_another() {
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    let held = locks.reentrant("n").acquire().owner(&owner).await.unwrap();
    let fenced = locks.fenced("n").try_acquire().owner(&owner).await.unwrap();
    assert!(fenced.is_none(), "a lease without a fencing token");
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let fenced = locks.fenced("n").acquire().owner(&owner).await.unwrap();
    assert!(fenced.fencing_token().is_some());
    assert_eq!(fenced.release().await.unwrap(), Released::Fully);
}

#[tokio::test]
async fn a_re_entry_granted_after_the_loss_was_told_is_refused_and_taken_back() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(WATCHDOG);
    let locks = locks.command_timeout(10 * LONG).build().await.unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    // Longer than this test: what is free in the end was given back.
    let inner = lease.reenter().lease_time(10 * LONG);
    leg.switch(Mode::HoldReplies).unwrap();
    let inner = tokio::spawn(inner.into_future());
    eventually_async(LONG, || {
        holders(&server, "n") == [(lease.holder().to_string(), "2".into())]
    })
    .await;
    let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(reason, LostReason::DeadlinePassed);
    leg.switch(Mode::Pass).unwrap();
    let error = inner.await.unwrap().unwrap_err();
    assert!(
        matches!(
            &error,
            AcquireError::Lost {
                reason: LostReason::DeadlinePassed,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!lease.is_valid());
    drop(lease);
    eventually_async(LONG, || keys(&server).is_empty() && is_idle(&locks)).await;
}

#[tokio::test]
async fn a_loss_that_a_re_entry_finds_is_reported_once() {
    let server = fresh_server();
    let heard = Heard::default();
    let locks = Locks::builder().standalone(&server.url()).watchdog_time(10 * LONG);
    let locks = locks.observer(Arc::new(heard.clone())).build().await.unwrap();
    for round in 1..=20 {
        let lease = locks.reentrant("n").acquire().await.unwrap();
        let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
        let error = lease.reenter().await.unwrap_err();
        assert!(matches!(error, AcquireError::Lost { .. }), "{error:?}");
        eventually_async(LONG, || heard.losses() == round).await;
        drop(lease);
        eventually_async(LONG, || is_idle(&locks)).await;
        assert_eq!(heard.losses(), round);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_releases_of_one_hold_report_no_loss() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    for round in 0..300 {
        let outer = locks.reentrant("n").acquire().await.unwrap();
        let (one, two) = (outer.reenter().await.unwrap(), outer.reenter().await.unwrap());
        let results = if round % 2 == 0 {
            let (two, one, outer) = tokio::join!(two.release(), one.release(), outer.release());
            [two, one, outer]
        } else {
            let [two, one, outer] = [two, one, outer].map(|lease| tokio::spawn(lease.release()));
            [two.await.unwrap(), one.await.unwrap(), outer.await.unwrap()]
        };
        let results = results.map(|result| result.expect("the lock was held to the end"));
        assert!(results.contains(&Released::Fully), "round {round}: {results:?}");
        assert!(keys(&server).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outer_lease_released_after_inner_ones_were_dropped_reports_no_loss() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    for _ in 0..500 {
        let outer = locks.reentrant("n").acquire().await.unwrap();
        drop((outer.reenter().await.unwrap(), outer.reenter().await.unwrap()));
        // Before, while and after the inner ones are given back in the background.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..600))).await;
        assert_eq!(outer.release().await.unwrap(), Released::Fully);
        assert!(keys(&server).is_empty());
    }
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn a_hold_that_was_taken_away_is_reported_as_lost_by_each_of_its_releases() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let outer = locks.reentrant("n").acquire().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    for lease in [inner, outer] {
        let result = lease.release().await;
        assert!(
            matches!(
                result,
                Err(ReleaseError::Lost {
                    reason: LostReason::NotOwner,
                    ..
                })
            ),
            "{result:?}"
        );
    }
}

#[tokio::test]
async fn a_loss_that_a_release_finds_is_told_to_the_other_leases_of_its_hold() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let outer = locks.reentrant("n").acquire().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    assert!(matches!(inner.release().await, Err(ReleaseError::Lost { .. })));
    assert!(!outer.is_valid(), "not only at its next renewal");
    assert_eq!(*outer.state().borrow(), LeaseState::Lost(LostReason::NotOwner));
}

/// A lease is left to it alone, so its second try must not look like a first acquire.
#[tokio::test]
async fn a_re_entry_without_an_answer_does_not_take_anew_what_was_lost_behind_a_release() {
    let server = fresh_server();
    let (way, locks, lease, inner) = re_entry_without_an_answer(&server).await;
    way.board.lead_to(&way.new);
    assert_eq!(lease.release().await.unwrap(), Released::StillHeld(1));
    // At once: on this thread the re-entry does nothing before the next await.
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    let result = inner.await.unwrap();
    assert!(matches!(result, Err(AcquireError::Lost { .. })), "{result:?}");
    eventually_async(LONG, || is_idle(&locks)).await;
    assert_eq!(keys(&server), [""; 0]);
}

/// A lease of a hold that counts as given back could never be given back.
#[tokio::test]
async fn a_re_entry_without_an_answer_does_not_take_anew_what_a_release_found_lost() {
    let server = fresh_server();
    let (way, locks, lease, inner) = re_entry_without_an_answer(&server).await;
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    way.board.lead_to(&way.new);
    let result = lease.release().await;
    assert!(matches!(result, Err(ReleaseError::Lost { .. })), "{result:?}");
    let result = inner.await.unwrap();
    let is_lost = matches!(result, Err(AcquireError::Lost { .. }));
    let told = format!("{result:?}");
    drop(result);
    eventually_async(LONG, || is_idle(&locks)).await;
    assert_eq!(keys(&server), [""; 0], "{told}");
    assert!(is_lost, "{told}");
}

/// A lease, and a re-entry of it that was run and gets no answer. What is sent next waits for its turn behind that.
async fn re_entry_without_an_answer(
    server: &RedisServer,
) -> (Way, Locks, Lease, JoinHandle<Result<Lease, AcquireError>>) {
    let way = Way::new(server);
    let locks = way.client(BRIEFLY).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    way.old.switch(Mode::HoldReplies).unwrap();
    let inner = tokio::spawn(lease.reenter().into_future());
    eventually_async(LONG, || {
        holders(server, "n") == [(lease.holder().to_string(), "2".into())]
    })
    .await;
    (way, locks, lease, inner)
}

#[tokio::test]
async fn a_re_entry_waits_behind_a_release_no_longer_than_its_limit() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(10 * LONG);
    let locks = locks.command_timeout(10 * LONG).build().await.unwrap();
    let outer = locks.reentrant("n").acquire().await.unwrap();
    // Makes the script of a release known: what follows is run without an answer.
    outer.reenter().await.unwrap().release().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    let release = tokio::spawn(inner.release());
    eventually_async(LONG, || holders(&server, "n") == [held_once(&outer)]).await;
    let again = outer.reenter().wait_limit(Duration::from_millis(10)).into_future();
    let result = tokio::time::timeout(LONG, again).await.expect("it has a limit");
    assert!(matches!(result, Err(AcquireError::Unavailable { .. })), "{result:?}");
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(release.await.unwrap().unwrap(), Released::StillHeld(1));
    assert_eq!(outer.release().await.unwrap(), Released::Fully);
}

/// They listen on a channel of their own.
#[tokio::test]
async fn a_forced_release_wakes_the_waiters_of_a_read_write_lock() {
    let server = fresh_server();
    let locks = lasting(&server.url()).await;
    let lock = locks.read_write("n");
    for waits in [lock.write().acquire(), lock.read().acquire()] {
        let held = lock.write().acquire().await.unwrap();
        let calls = script_calls(&server);
        let waiting = tokio::spawn(waits.into_future());
        eventually_async(LONG, || {
            channels(&server).len() == 1 && script_calls(&server) >= calls + 2
        })
        .await;
        assert!(locks.admin().force_release("n").await.unwrap());
        let lease = tokio::time::timeout(LONG, waiting).await.expect("woken by message");
        drop((lease.unwrap().unwrap(), held));
        eventually_async(LONG, || keys(&server).is_empty() && is_idle(&locks)).await;
    }
}

#[tokio::test]
async fn try_acquires_replace_a_connection_that_has_fallen_silent() {
    let server = fresh_server();
    let way = Way::new(&server);
    let locks = way.client(BRIEFLY).await;
    way.fall_silent();
    let lease = loop {
        // Busy: an attempt before it, whose answer was late, is being given back.
        if let Ok(Some(lease)) = locks.reentrant("n").try_acquire().await {
            break lease;
        }
        way.assert_soon();
    };
    drop(lease);
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn waits_shorter_than_a_command_may_take_replace_a_connection_that_has_fallen_silent() {
    let server = fresh_server();
    let way = Way::new(&server);
    let locks = way.client(BRIEFLY).await;
    way.fall_silent();
    let lease = loop {
        let wait = locks.reentrant("n").acquire().wait_limit(Duration::from_millis(20));
        if let Ok(lease) = wait.await {
            break lease;
        }
        way.assert_soon();
    };
    drop(lease);
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn a_release_on_a_connection_that_has_fallen_silent_is_done_over_another() {
    let server = fresh_server();
    let way = Way::new(&server);
    let locks = way.client(BRIEFLY).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    way.fall_silent();
    // On a busy machine both tries can be too late; then it goes on in the background.
    let result = lease.release().await;
    assert!(
        matches!(result, Ok(Released::Fully) | Err(ReleaseError::Unanswered { .. })),
        "{result:?}"
    );
    eventually_async(LONG, || keys(&server).is_empty() && is_idle(&locks)).await;
}

#[tokio::test]
async fn a_waiter_whose_connection_has_fallen_silent_gets_in_before_the_lease_of_the_holder_ends() {
    let server = fresh_server();
    let way = Way::new(&server);
    let locks = Locks::builder().standalone(&way.board.url()).watchdog_time(WATCHDOG);
    let locks = locks.command_timeout(BRIEFLY).build().await.unwrap();
    let held = lasting(&server.url()).await.reentrant("n").acquire().await.unwrap();
    let calls = script_calls(&server);
    let waiting = tokio::spawn(locks.reentrant("n").acquire().into_future());
    eventually_async(LONG, || {
        channels(&server).len() == 1 && script_calls(&server) >= calls + 2
    })
    .await;
    way.fall_silent();
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("it asks from time to time");
    drop(lease.unwrap().unwrap());
}

/// A runtime of one thread that is in no `block_on` moves none of its connections.
#[test]
fn a_lease_dropped_while_its_runtime_stands_still_is_given_back() {
    let server = fresh_server();
    let still = Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, lease) = still.block_on(async {
        let locks = settings(&server).watchdog_time(10 * LONG).command_timeout(BRIEFLY);
        let locks = locks.build().await.unwrap();
        let lease = locks.reentrant("n").acquire().await.unwrap();
        (locks, lease)
    });
    drop(lease);
    eventually(LONG, || keys(&server).is_empty() && is_idle(&locks));
}

#[test]
fn a_lease_dropped_while_its_runtime_stands_still_in_connecting_is_given_back() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let still = Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, lease) = still.block_on(async {
        let locks = Locks::builder().standalone(&leg.url()).watchdog_time(10 * LONG);
        let locks = locks.command_timeout(BRIEFLY).build().await.unwrap();
        let lease = locks.reentrant("n").acquire().await.unwrap();
        leg.switch(Mode::Swallow).unwrap();
        leg.cut().unwrap();
        let connections = leg.connections();
        let acquire = tokio::spawn(locks.reentrant("m").acquire().into_future());
        eventually_async(LONG, || leg.connections() > connections).await;
        acquire.abort();
        (locks, lease)
    });
    leg.switch(Mode::Pass).unwrap();
    drop(lease);
    eventually(LONG, || keys(&server).is_empty() && locks.stats().releases == 0);
    let other = Runtime::new().unwrap();
    let lease = other.block_on(locks.reentrant("o").acquire().wait_limit(LONG).into_future());
    assert_eq!(other.block_on(lease.unwrap().release()).unwrap(), Released::Fully);
}

#[tokio::test]
async fn a_shutdown_ends_every_acquire_that_waits() {
    let server = fresh_server();
    let holding = lasting(&server.url()).await;
    let held = [
        holding.reentrant("n").acquire().await.unwrap(),
        holding.spin("s").acquire().await.unwrap(),
    ];
    let locks = lasting(&server.url()).await;
    let owner = locks.owner();
    let acquires = [
        locks.reentrant("n").acquire().owner(&owner), // in front, listening
        locks.reentrant("n").acquire().owner(&owner), // behind another acquire of its owner
        locks.reentrant("n").acquire(),               // behind another owner of this process
        locks.spin("s").acquire(),                    // asking at intervals
    ];
    let calls = script_calls(&server);
    let waiting = acquires.map(|acquire| tokio::spawn(acquire.into_future()));
    eventually_async(LONG, || {
        channels(&server).len() == 1 && locks.stats().queues == 2 && script_calls(&server) >= calls + 4
    })
    .await;
    locks.shutdown(LONG).await.unwrap();
    for acquire in waiting {
        let result = tokio::time::timeout(LONG, acquire).await.expect("it is told").unwrap();
        assert!(matches!(result, Err(AcquireError::Closed { .. })), "{result:?}");
    }
    eventually_async(LONG, || is_idle(&locks)).await;
    for lease in held {
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    }
    assert!(keys(&server).is_empty());
}

/// The waiter has been woken and lets the other client come first, so it does not sleep when the shutdown wakes everybody.
#[tokio::test]
async fn a_shutdown_right_after_a_release_ends_the_acquires_that_wait() {
    let server = fresh_server();
    for _ in 0..5 {
        let (locks, other) = (lasting(&server.url()).await, lasting(&server.url()).await);
        let held = locks.reentrant("n").acquire().await.unwrap();
        let calls = script_calls(&server);
        let waiting = tokio::spawn(locks.reentrant("n").acquire().into_future());
        let others = tokio::spawn(other.reentrant("n").acquire().into_future());
        eventually_async(LONG, || script_calls(&server) >= calls + 4).await;
        assert_eq!(held.release().await.unwrap(), Released::Fully);
        locks.shutdown(LONG).await.unwrap();
        let result = tokio::time::timeout(LONG, waiting).await.expect("it is told").unwrap();
        assert!(matches!(result, Err(AcquireError::Closed { .. })), "{result:?}");
        let lease = tokio::time::timeout(LONG, others).await.expect("it is woken");
        assert_eq!(lease.unwrap().unwrap().release().await.unwrap(), Released::Fully);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_outlives_a_shutdown_that_comes_as_it_is_granted() {
    let server = fresh_server();
    for round in 0..500 {
        let locks = client(&server).await;
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let lock = locks.reentrant(format!("n:{round}:{number}"));
                tokio::spawn(async move {
                    while let Ok(lease) = lock.acquire().await {
                        if fastrand::bool() {
                            return Some(lease);
                        }
                        let _ = lease.release().await;
                    }
                    None
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
        locks.shutdown(LONG).await.unwrap();
        for task in tasks {
            if let Some(lease) = task.await.unwrap() {
                // Renewed, it would be valid for ever.
                eventually_async(LONG, || !lease.is_valid()).await;
            }
        }
    }
}

#[tokio::test]
async fn an_acquire_that_is_granted_after_a_shutdown_is_given_back() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(10 * LONG);
    let locks = locks.command_timeout(10 * LONG).build().await.unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    // The server knows the script: no answer is needed to take the lock.
    let lease = client(&server).await.reentrant("n").acquire().await.unwrap();
    lease.release().await.unwrap();
    let acquire = tokio::spawn(locks.reentrant("n").acquire().into_future());
    eventually_async(LONG, || !keys(&server).is_empty()).await;
    locks.shutdown(LONG).await.unwrap();
    leg.switch(Mode::Pass).unwrap();
    let result = tokio::time::timeout(LONG, acquire).await.unwrap().unwrap();
    assert!(matches!(result, Err(AcquireError::Closed { .. })), "{result:?}");
    eventually_async(LONG, || keys(&server).is_empty() && is_idle(&locks)).await;
}

#[tokio::test]
async fn clients_that_are_dropped_leave_no_connection() {
    let server = fresh_server();
    let holding = lasting(&server.url()).await;
    let held = holding.reentrant("held").acquire().await.unwrap();
    eventually_async(LONG, || clients(&server) == 3).await;
    for round in 0..20 {
        let locks = client(&server).await;
        let lease = locks.reentrant("n").acquire().await.unwrap();
        match round % 3 {
            0 => drop(lease.release().await.unwrap()),
            1 => drop(lease),
            _ => {
                let waiting = tokio::spawn(locks.reentrant("held").acquire().into_future());
                eventually_async(LONG, || locks.stats().subscriptions == 1).await;
                waiting.abort();
                // The lease goes after its client.
                drop(locks);
                drop(lease);
            }
        }
    }
    // The one that holds has two, and this question one.
    eventually_async(LONG, || clients(&server) == 3).await;
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    drop(holding);
    eventually_async(LONG, || clients(&server) == 1).await;
}

/// How long a round trip takes was learned from the acquire, which may have waited for Redis.
#[tokio::test]
async fn a_slow_acquire_does_not_keep_a_failed_renewal_from_being_tried_again() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let heard = Heard::default();
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(2 * WATCHDOG);
    let locks = locks.observer(Arc::new(heard.clone())).build().await.unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    let acquire = tokio::spawn(locks.reentrant("n").acquire().into_future());
    tokio::time::sleep(Duration::from_millis(500)).await;
    leg.switch(Mode::Pass).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    leg.switch(Mode::Refuse).unwrap();
    tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    let failures = heard.count(|kind| matches!(kind, EventKind::RenewalFailed { .. }));
    assert!(failures > 2, "tried {failures} times in half a lease");
    drop(lease);
    leg.switch(Mode::Pass).unwrap();
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn a_re_entry_takes_up_a_renewal_that_had_given_up() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let heard = Heard::default();
    let mut policy = RenewalPolicy::deadline();
    policy.effort = Effort::CancelOnError;
    policy.signal = Signal::AtDeadline;
    policy.period = Period::Fixed(Duration::from_millis(100));
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(4 * WATCHDOG);
    let locks = locks.renewal(policy).observer(Arc::new(heard.clone()));
    let locks = locks.build().await.unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    leg.switch(Mode::Refuse).unwrap();
    eventually_async(LONG, || {
        heard.count(|kind| matches!(kind, EventKind::RenewalFailed { .. })) > 0
    })
    .await;
    leg.switch(Mode::Pass).unwrap();
    let renewals = heard.count(|kind| matches!(kind, EventKind::Renewed { .. }));
    let inner = lease.reenter().await.unwrap();
    eventually_async(LONG, || {
        heard.count(|kind| matches!(kind, EventKind::Renewed { .. })) > renewals
    })
    .await;
    assert_eq!(*lease.state().borrow(), LeaseState::Held);
    drop((inner, lease));
}

#[tokio::test]
async fn a_lease_time_within_the_margin_is_refused() {
    let server = fresh_server();
    let mut policy = RenewalPolicy::deadline();
    policy.margin = Margin::Fixed(Duration::from_secs(5));
    let locks = settings(&server)
        .watchdog_time(LONG)
        .renewal(policy)
        .build()
        .await
        .unwrap();
    let lock = locks.reentrant("n");
    let acquire = lock.acquire().lease_time(Duration::from_secs(5));
    let result = tokio::time::timeout(LONG, acquire.into_future())
        .await
        .expect("not asked for again and again");
    assert!(matches!(result, Err(AcquireError::Times(_))), "{result:?}");
    let error = lock.try_acquire().lease_time(Duration::from_secs(4)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Times(_)), "{error:?}");
    assert_eq!(script_calls(&server), 0);
}

#[tokio::test]
async fn times_beyond_all_reason_are_refused_and_panic_nowhere() {
    let server = fresh_server();
    let changes: [fn(&mut RenewalPolicy); 6] = [
        |policy| policy.period = Period::Fixed(Duration::MAX),
        |policy| policy.attempt_timeout = AttemptTimeout::Fixed(Duration::MAX),
        |policy| policy.margin = Margin::Fixed(Duration::MAX),
        |policy| policy.margin = Margin::Ratio(f64::NAN),
        |policy| policy.margin = Margin::Ratio(f64::INFINITY),
        |policy| policy.margin = Margin::Ratio(-1.0),
    ];
    for change in changes {
        let mut policy = RenewalPolicy::deadline();
        change(&mut policy);
        let result = settings(&server).renewal(policy.clone()).build().await;
        assert!(matches!(result, Err(BuildError::Times(_))), "{policy:?}: {result:?}");
    }
}

#[tokio::test]
async fn a_lease_time_shorter_than_an_answer_takes_is_told_and_not_asked_for_for_ever() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = lasting(&leg.url()).await;
    leg.switch(Mode::Delay(Duration::from_millis(200))).unwrap();
    let acquire = locks.reentrant("n").acquire().lease_time(Duration::from_millis(150));
    let result = tokio::time::timeout(LONG, acquire.into_future())
        .await
        .expect("it ends");
    assert!(matches!(result, Err(AcquireError::TooLate { .. })), "{result:?}");
    leg.switch(Mode::Pass).unwrap();
    eventually_async(LONG, || keys(&server).is_empty() && is_idle(&locks)).await;
}

/// Dropping the runtime of a thread that was not started, inside another runtime, panics.
#[test]
fn a_watchdog_that_cannot_be_started_is_an_error_and_no_panic() {
    let server = fresh_server();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "races::short_of_memory", "--ignored", "--nocapture"])
        .env(SHORT_OF_MEMORY, server.url())
        .env("RUST_MIN_STACK", STACK.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("not started, as expected"));
}

/// Not a test: what the one above runs in a process of its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn short_of_memory() {
    let Ok(url) = std::env::var(SHORT_OF_MEMORY) else {
        return;
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size_kb: u64 = size.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    // Room for all but the stack of one more thread.
    let limit = size_kb * 1024 + STACK / 2;
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    setrlimit(Resource::As, limit).unwrap();
    match Locks::connect(&url).await {
        Err(BuildError::Thread(_)) => println!("not started, as expected"),
        other => panic!("{other:?}"),
    }
}

/// A client's way to Redis, which falls silent for the connections it has and serves those to come.
struct Way {
    _proxy: Proxy,
    old: Leg,
    new: Leg,
    board: Switchboard,
    start_ns: u64,
}

impl Way {
    fn new(server: &RedisServer) -> Self {
        let proxy = Proxy::start(server).unwrap();
        let (old, new) = (proxy.leg().unwrap(), proxy.leg().unwrap());
        Way {
            board: Switchboard::new(&old),
            old,
            new,
            _proxy: proxy,
            start_ns: leasehold_bench::clock::now_ns(),
        }
    }

    /// A client whose locks outlive the test.
    async fn client(&self, command_timeout: Duration) -> Locks {
        let locks = Locks::builder().standalone(&self.board.url()).watchdog_time(10 * LONG);
        locks.command_timeout(command_timeout).build().await.unwrap()
    }

    fn fall_silent(&self) {
        self.board.lead_to(&self.new);
        self.old.switch(Mode::Swallow).unwrap();
    }

    fn assert_soon(&self) {
        let taken = leasehold_bench::clock::since(self.start_ns);
        assert!(taken < LONG, "still silent after {taken:?}");
    }
}

/// A client whose locks outlive the test, and whose waiters sleep longer than it lasts.
async fn lasting(url: &str) -> Locks {
    let locks = Locks::builder().standalone(url).watchdog_time(10 * LONG);
    locks.build().await.unwrap()
}

/// What the hash of a lock says of a lease that is its hold's only one.
fn held_once(lease: &Lease) -> (String, String) {
    (lease.holder().to_string(), "1".to_owned())
}

/// How many clients the server has, this question's own included.
fn clients(server: &RedisServer) -> usize {
    let list: String = query(server, redis::cmd("CLIENT").arg("LIST"));
    list.lines().count()
}

/// A time limit that tests wait for.
const BRIEFLY: Duration = Duration::from_millis(400);
/// The address of the server, for the process that cannot start a thread.
const SHORT_OF_MEMORY: &str = "TESTS_SHORT_OF_MEMORY";
/// Of every thread of that process.
const STACK: u64 = 256 << 20;
