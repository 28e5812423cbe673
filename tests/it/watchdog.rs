//! Renewal on a real server: it ends with the lease, never outlives ownership, and tells the holder in time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{
    AcquireOptions, Event, EventKind, Lease, LeaseState, LockKind, Lockable, Locks, LostReason, Moment, Observer,
    ReleaseError, RenewalPolicy,
};
use leasehold_bench::proxy::{Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::heard::Heard;
use tests::{
    LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, script_calls, settings,
};

const PERIOD: Duration = Duration::from_secs(WATCHDOG.as_secs() / 3);

#[tokio::test]
async fn thousands_of_quick_cycles_leave_no_renewal_behind() {
    // G01: the lock is given back right after it was taken, from another task.
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.reentrant("n");
    for _ in 0..2_000 {
        let lease = lock.acquire().await.unwrap();
        tokio::spawn(lease.release()).await.unwrap().unwrap();
    }
    eventually_async(LONG, || is_idle(&locks)).await;
    assert!(keys(&server).is_empty());
    let before = script_calls(&server);
    tokio::time::sleep(PERIOD * 3).await;
    assert_eq!(script_calls(&server), before, "nothing is renewed");
}

/// Linux only: where the watchdog's thread shows how often it was switched to.
#[tokio::test]
async fn a_hold_that_ends_long_before_its_renewal_does_not_wake_the_watchdog() {
    struct Where(Mutex<Option<PathBuf>>);
    impl Observer for Where {
        fn event(&self, _: &Event) {
            *self.0.lock().unwrap() = std::fs::read_link("/proc/thread-self").ok();
        }
    }
    let server = fresh_server();
    let thread = Arc::new(Where(Mutex::default()));
    let locks = Locks::builder()
        .standalone(&server.url())
        .observer(thread.clone())
        .build()
        .await
        .unwrap();
    // Whoever drops a lease is told of it, on the watchdog's thread.
    drop(locks.reentrant("dropped").acquire().await.unwrap());
    eventually_async(LONG, || thread.0.lock().unwrap().is_some()).await;
    let thread = Path::new("/proc").join(thread.0.lock().unwrap().clone().unwrap());
    let slept = || {
        let status = std::fs::read_to_string(thread.join("status")).unwrap();
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = slept();
    const CYCLES: u64 = 2_000;
    for _ in 0..CYCLES {
        let lease = locks.reentrant("n").acquire().await.unwrap();
        lease.release().await.unwrap();
    }
    // It looks by itself once a second, and may find one that is held just then.
    let wakes = slept() - before;
    assert!(wakes < CYCLES / 4, "{wakes} wakes for {CYCLES} holds");
    // One that lasts is seen all the same.
    let lease = locks.reentrant("n").acquire().await.unwrap();
    assert_eq!(locks.stats().holds, 1);
    locks.shutdown(LONG).await.unwrap();
    assert_eq!(lease.lost().await, LostReason::ClientClosed);
}

/// Due after a second and a third: later than an idle watchdog sleeps, so nobody wakes it.
#[tokio::test]
async fn a_hold_that_did_not_wake_the_watchdog_is_renewed_in_time() {
    let server = fresh_server();
    let heard = Heard::default();
    let locks = settings(&server)
        .watchdog_time(Duration::from_secs(4))
        .observer(Arc::new(heard.clone()))
        .build()
        .await
        .unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let others: Vec<_> = (0..9).map(|_| locks.reentrant("other")).collect();
    for lock in &others {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    eventually_async(LONG, || heard.renewals() > 0).await;
    assert!(lease.is_valid() && lease.remaining() > Duration::from_secs(1));
    assert_eq!(heard.renewals(), 1, "those that were let go are not renewed");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_deleted_key_is_told_once_and_ends_the_renewal() {
    // G04
    let server = fresh_server();
    let heard = Heard::default();
    let locks = settings(&server)
        .observer(Arc::new(heard.clone()))
        .build()
        .await
        .unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let mut states = lease.state();
    assert_eq!(*states.borrow_and_update(), LeaseState::Held);
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(reason, LostReason::NotOwner);
    assert!(!lease.is_valid() && lease.remaining().is_zero());
    assert_eq!(*states.borrow_and_update(), LeaseState::Lost(LostReason::NotOwner));
    let before = script_calls(&server);
    tokio::time::sleep(PERIOD * 2).await;
    assert_eq!(script_calls(&server), before);
    assert_eq!(heard.losses(), 1, "once");
    assert!(matches!(
        lease.release().await,
        Err(ReleaseError::Lost {
            reason: LostReason::NotOwner,
            ..
        })
    ));
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn a_key_of_another_type_is_a_loss_at_once() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let neighbour = locks.reentrant("neighbour").acquire().await.unwrap();
    let _: () = query(&server, redis::cmd("SET").arg("n").arg("something else"));
    let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(reason, LostReason::KeyClobbered);
    drop(lease);
    eventually_async(LONG, || locks.stats().releases == 0).await;
    assert_eq!(query::<String>(&server, redis::cmd("GET").arg("n")), "something else");
    tokio::time::sleep(WATCHDOG).await;
    assert!(
        neighbour.is_valid() && pttl(&server, "neighbour") > 0,
        "its neighbours are renewed all the same"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frequent_renewals_and_releases_of_one_name_never_trip_over_each_other() {
    // G05
    let server = fresh_server();
    let heard = Heard::default();
    let watchdog = Duration::from_millis(300);
    let locks = settings(&server)
        .watchdog_time(watchdog)
        .observer(Arc::new(heard.clone()))
        .build()
        .await
        .unwrap();
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (lock, inside) = (locks.reentrant("n"), inside.clone());
            tokio::spawn(async move {
                for _ in 0..30 {
                    let lease = lock.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..12))).await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    // A machine that stands still for a lease loses the lock, and says so.
                    if lease.release().await.is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    eventually_async(LONG, || is_idle(&locks)).await;
    // A machine that stands still for a lease of 300 ms loses one; a dead watchdog loses them all.
    let mut alive = false;
    for _ in 0..20 {
        let lease = locks.reentrant("n").acquire().await.unwrap();
        let before = heard.renewals();
        eventually_async(LONG, || heard.renewals() > before + 9 || !lease.is_valid()).await;
        alive = lease.is_valid();
        drop(lease);
        if alive {
            break;
        }
    }
    assert!(
        alive,
        "the watchdog is still alive: a lease lives for three of its times"
    );
}

#[tokio::test]
async fn the_tables_are_empty_after_any_number_of_re_entries_and_names() {
    // G06
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    let lock = locks.reentrant("n");
    for _ in 0..3 {
        let mut leases = Vec::new();
        for _ in 0..300 {
            leases.push(lock.acquire().owner(&owner).await.unwrap());
        }
        assert_eq!(leases[0].hold_count(), 300);
        for lease in leases {
            lease.release().await.unwrap();
        }
        eventually_async(LONG, || is_idle(&locks)).await;
    }
    for n in 0..2_000 {
        let lease = locks.reentrant(format!("n:{n}")).acquire().owner(&owner).await.unwrap();
        lease.release().await.unwrap();
    }
    eventually_async(LONG, || is_idle(&locks)).await;
    assert!(keys(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_never_takes_the_next_owners_renewal_with_it() {
    // G08: one owner gives back while the next, of the same client, takes over.
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.reentrant("n");
    let mut lease = lock.acquire().await.unwrap();
    for round in 0..1_000 {
        let next = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        if round % 2 == 0 {
            lease.release().await.unwrap();
        } else {
            drop(lease);
        }
        lease = tokio::time::timeout(LONG, next).await.unwrap().unwrap();
    }
    tokio::time::sleep(WATCHDOG * 3).await;
    assert!(lease.is_valid());
    let ttl = pttl(&server, "n");
    assert!(ttl > WATCHDOG.as_millis() as i64 / 2, "{ttl}");
    drop(lease);
}

#[tokio::test]
async fn a_server_frozen_past_the_lease_is_told_before_the_end_and_the_loss_is_final() {
    // SIGSTOP: what was sent meanwhile runs when the server goes on.
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let mut states = lease.state();
    let holder = lease.holder().to_string();
    server.freeze().unwrap();
    let valid_for = lease.remaining();
    let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(reason, LostReason::DeadlinePassed);
    assert!(!lease.is_valid());
    assert!(valid_for < WATCHDOG, "{valid_for:?}");
    assert!(
        lease
            .run(async { panic!("no work is done after the loss") })
            .await
            .is_err()
    );
    tokio::time::sleep(WATCHDOG / 2).await;
    server.thaw().unwrap();
    // Renewals that lay in the socket may have kept the lock alive: letting go gives it back at once.
    drop(lease);
    eventually_async(LONG, || holders(&server, "n").iter().all(|(id, _)| *id != holder)).await;
    assert!(
        matches!(
            *states.borrow_and_update(),
            LeaseState::Lost(LostReason::DeadlinePassed)
        ),
        "latched"
    );
    let next = locks.reentrant("n").acquire().await.unwrap();
    drop(next);
}

#[tokio::test]
async fn a_fault_shorter_than_the_lease_loses_nothing_and_is_told_as_a_risk() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let heard = Heard::default();
    let locks = Locks::builder()
        .standalone(&leg.url())
        .watchdog_time(Duration::from_secs(6))
        .observer(Arc::new(heard.clone()))
        .build()
        .await
        .unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let mut states = lease.state();
    leg.switch(Mode::Refuse).unwrap();
    let at_risk = states.wait_for(|state| matches!(state, LeaseState::AtRisk { .. }));
    drop(
        tokio::time::timeout(LONG, at_risk)
            .await
            .expect("the first failed renewal")
            .unwrap(),
    );
    leg.switch(Mode::Pass).unwrap();
    let recovered = states.wait_for(|state| *state == LeaseState::Held);
    drop(
        tokio::time::timeout(LONG, recovered)
            .await
            .expect("the next attempt")
            .unwrap(),
    );
    assert!(lease.is_valid());
    // The observer hears of it right after the holder does.
    eventually_async(LONG, || heard.count(|kind| *kind == EventKind::Recovered) == 1).await;
    assert_eq!(heard.losses(), 0);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn policies_tell_a_cut_off_holder_at_their_own_time() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let watchdog = Duration::from_secs(3);
    let locks = Locks::builder()
        .standalone(&leg.url())
        .watchdog_time(watchdog)
        .build()
        .await
        .unwrap();
    let mut leases = Vec::new();
    for name in ["cancel-told", "retry-3", "deadline", "naive-cancel"] {
        let policy: RenewalPolicy = name.parse().unwrap();
        leases.push(locks.reentrant(name).acquire().renewal(policy).await.unwrap());
    }
    leg.switch(Mode::Refuse).unwrap();
    let [cancel, retry, deadline, naive] = &leases[..] else {
        unreachable!()
    };
    assert_eq!(cancel.lost().await, LostReason::GaveUp);
    assert!(
        retry.is_valid() && deadline.is_valid(),
        "retrying takes longer than giving up"
    );
    assert_eq!(retry.lost().await, LostReason::GaveUp);
    assert!(deadline.is_valid(), "three quick refusals are weaker than the deadline");
    assert!(deadline.remaining() > Duration::ZERO && pttl(&server, "deadline") > 0);
    assert_eq!(deadline.lost().await, LostReason::DeadlinePassed);
    // Told before the end: the server still has it, with some of the margin left.
    assert!(pttl(&server, "deadline") > 0, "told before the expiry");
    eventually_async(LONG, || pttl(&server, "naive-cancel") == -2).await;
    assert_eq!(*naive.state().borrow(), LeaseState::Held, "nobody tells the holder");
    assert!(!naive.is_valid(), "but asking does");
    leg.switch(Mode::Pass).unwrap();
    for lease in leases {
        assert!(lease.release().await.is_err());
    }
}

#[tokio::test]
async fn scripts_flushed_under_load_cost_nobody_anything() {
    let server = fresh_server();
    let heard = Heard::default();
    let locks = settings(&server)
        .observer(Arc::new(heard.clone()))
        .build()
        .await
        .unwrap();
    let held = locks.reentrant("held").acquire().await.unwrap();
    let flushing = std::thread::spawn({
        let mut connection = tests::direct(&server);
        move || {
            for _ in 0..100 {
                let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
    while !flushing.is_finished() {
        let lease = locks.reentrant("n").acquire().await.unwrap();
        let again = lease.reenter().await.unwrap();
        again.release().await.unwrap();
        lease.release().await.unwrap();
    }
    flushing.join().unwrap();
    assert!(held.is_valid());
    assert_eq!(heard.count(|kind| matches!(kind, EventKind::RenewalFailed { .. })), 0);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_neither_stops_renewal_nor_hides_a_loss() {
    let server = fresh_server();
    let locks = client(&server).await;
    let kept = locks.reentrant("kept").acquire().await.unwrap();
    let taken = locks.reentrant("taken").acquire().await.unwrap();
    let states = taken.state();
    let _: i64 = query(&server, redis::cmd("DEL").arg("taken"));
    // Both workers of this runtime sleep for two leases, and so does the thread of the test.
    for _ in 0..2 {
        tokio::spawn(async { std::thread::sleep(WATCHDOG * 2) });
    }
    std::thread::sleep(WATCHDOG * 2);
    assert!(kept.is_valid(), "renewed from the watchdog's own thread");
    assert!(!taken.is_valid());
    assert_eq!(*states.borrow(), LeaseState::Lost(LostReason::NotOwner));
    kept.release().await.unwrap();
    drop(taken);
}

#[tokio::test]
async fn a_hold_is_renewed_while_any_of_its_leases_wants_it() {
    let server = fresh_server();
    let locks = client(&server).await;
    let fixed = locks.reentrant("n").acquire().lease_time(WATCHDOG).await.unwrap();
    let renewed = fixed.reenter().await.unwrap();
    tokio::time::sleep(WATCHDOG * 2).await;
    assert!(renewed.is_valid() && fixed.is_valid() && pttl(&server, "n") > 0);
    renewed.release().await.unwrap();
    let reason = tokio::time::timeout(LONG, fixed.lost())
        .await
        .expect("nobody renews it any more");
    assert_eq!(reason, LostReason::DeadlinePassed);
    drop(fixed);
}

#[tokio::test]
async fn a_panicking_observer_costs_no_renewal() {
    struct Panics;
    impl Observer for Panics {
        fn event(&self, _: &Event) {
            panic!("an observer's own fault");
        }
    }
    let server = fresh_server();
    let locks = settings(&server).observer(Arc::new(Panics)).build().await.unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    tokio::time::sleep(WATCHDOG * 2).await;
    assert!(lease.is_valid() && pttl(&server, "n") > 0);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_shut_down_renews_nothing_more_and_its_holders_are_told() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    drop(locks.reentrant("m").acquire().await.unwrap());
    locks.shutdown(LONG).await.unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, lease.lost()).await.unwrap(),
        LostReason::ClientClosed
    );
    assert!(matches!(
        locks.reentrant("n").acquire().await,
        Err(leasehold::AcquireError::Closed { .. })
    ));
    assert_eq!(
        keys(&server),
        ["n"],
        "what was dropped is given back, what is held is left to end"
    );
    eventually_async(LONG, || pttl(&server, "n") == -2).await;
    drop(lease);
}

#[tokio::test]
async fn a_server_that_refuses_hears_no_more_of_many_locks_than_of_one() {
    let server = fresh_server();
    let watchdog = Duration::from_secs(6);
    let locks = settings(&server).watchdog_time(watchdog).build().await.unwrap();
    let mut leases = Vec::new();
    for n in 0..MANY {
        leases.push(locks.reentrant(format!("n:{n}")).acquire().await.unwrap());
        // Spread over a period, so that no two are due at once.
        tokio::time::sleep(watchdog / 3 / MANY).await;
    }
    let before = script_calls(&server);
    let began = Moment::now();
    require_replicas(&server, 1);
    let at_risk = |lease: &Lease| matches!(*lease.state().borrow(), LeaseState::AtRisk { .. });
    eventually_async(LONG, || leases.iter().all(at_risk)).await;
    tokio::time::sleep(watchdog / 6).await;
    let calls = script_calls(&server) - before;
    let lasted = Moment::now().since(began);
    require_replicas(&server, 0);
    let healthy = |lease: &Lease| *lease.state().borrow() == LeaseState::Held;
    eventually_async(LONG, || leases.iter().all(healthy)).await;
    // The first attempt of each, and then one call a pause, of which the shortest is a 300th of the lease.
    let pauses = lasted.as_secs_f64() / (watchdog / 300).as_secs_f64();
    println!("{calls} calls of {MANY} locks in {lasted:?}");
    assert!(calls >= u64::from(MANY) / 2, "each has tried: {calls}");
    assert!((calls as f64) < f64::from(MANY) + pauses, "{calls} calls in {lasted:?}");
    for lease in leases {
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_batch_renews_every_kind_and_each_lock_hears_its_own_answer() {
    let server = fresh_server();
    let locks = settings(&server).watchdog_time(WATCHDOG * 2).build().await.unwrap();
    let mut leases = Vec::new();
    for kind in LockKind::ALL {
        leases.push(hold(locks.lock(*kind, kind.name())).await);
    }
    leases.push(hold(locks.lock_for_reading(LockKind::ReadWrite, "read")).await);
    let deleted = locks.reentrant("deleted").acquire().await.unwrap();
    let clobbered = locks.reentrant("clobbered").acquire().await.unwrap();
    require_replicas(&server, 1);
    let at_risk = |lease: &Lease| matches!(*lease.state().borrow(), LeaseState::AtRisk { .. });
    let all = || leases.iter().chain([&deleted, &clobbered]);
    eventually_async(LONG, || all().all(at_risk)).await;
    // In one go, so that no renewal comes between: the server writes again, and two of the keys are no locks any more.
    let mut step = redis::pipe();
    step.cmd("CONFIG").arg("SET").arg("min-replicas-to-write").arg(0);
    step.cmd("DEL").arg("deleted").cmd("SET").arg("clobbered").arg("a text");
    let before = script_calls(&server);
    let _: redis::Value = step.query(&mut tests::direct(&server)).unwrap();
    eventually_async(LONG, || all().all(|lease| !at_risk(lease))).await;
    let calls = script_calls(&server) - before;
    assert!(
        calls < leases.len() as u64,
        "{calls} calls for {} locks",
        leases.len() + 2
    );
    assert_eq!(deleted.lost().await, LostReason::NotOwner);
    assert_eq!(clobbered.lost().await, LostReason::KeyClobbered);
    for lease in leases {
        assert_eq!(*lease.state().borrow(), LeaseState::Held, "{}", lease.name());
        lease.release().await.unwrap();
    }
}

async fn hold(lock: Box<dyn Lockable>) -> Lease {
    lock.acquire_with(AcquireOptions::new()).await.unwrap()
}

/// Lets the server write only if it has so many replicas.
fn require_replicas(server: &RedisServer, replicas: u32) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg("min-replicas-to-write").arg(replicas);
    let _: () = query(server, &command);
}

const MANY: u32 = 60;
