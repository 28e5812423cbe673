//! What befell the renewals and the tables of other libraries, tried with every kind of lock.

mod links;

use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{AcquireOptions, Lease, LockKind, Lockable, Locks, LostReason, Moment, ReleaseError, Released};
use leasehold_bench::servers::RedisServer;
use tests::heard::Heard;
use tests::{
    LONG, WATCHDOG, channels, client, direct, eventually_async, fresh_server, is_idle, keys, pttl, script_calls,
    settings,
};

/// Every kind, and the read half beside the write half.
fn locks_of(locks: &Locks, prefix: &str) -> Vec<Box<dyn Lockable>> {
    let kinds = LockKind::ALL.iter();
    let mut all: Vec<_> = kinds.map(|kind| locks.lock(*kind, format!("{prefix}{kind}"))).collect();
    all.push(locks.lock_for_reading(LockKind::ReadWrite, format!("{prefix}read")));
    all
}

async fn hold(lock: &dyn Lockable) -> Lease {
    lock.acquire_with(AcquireOptions::new()).await.unwrap()
}

/// Keys that are no counters of fencing tokens.
fn lock_keys(server: &RedisServer) -> Vec<String> {
    let all = keys(server).into_iter();
    all.filter(|key| !key.starts_with("redisson_lock_token:")).collect()
}

#[tokio::test]
async fn a_holder_that_was_frozen_past_its_lease_knows_when_it_wakes_and_harms_nobody() {
    // G10
    let server = fresh_server();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "every_kind::a_process_that_is_frozen",
            "--ignored",
            "--nocapture",
        ])
        .env(URL, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(lines.any(|line| line == "all held"));
    let signal = |name: &str| {
        Command::new("kill")
            .arg(name)
            .arg(process.id().to_string())
            .status()
            .unwrap()
    };
    assert!(signal("-STOP").success());
    let other = client(&server).await;
    let mut next = Vec::new();
    // Of a read lock the writer is the one to be kept out.
    let mut taken = locks_of(&other, "");
    taken.pop();
    taken.push(other.lock(LockKind::ReadWrite, "read"));
    for lock in &taken {
        next.push(
            tokio::time::timeout(LONG, hold(&**lock))
                .await
                .expect("its lease has ended"),
        );
    }
    assert!(signal("-CONT").success());
    let told: Vec<String> = lines
        .take_while(|line| line != "done")
        .filter(|line| line.contains("awake"))
        .collect();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(told.len(), next.len());
    for line in told {
        assert!(
            line.ends_with("awake: valid false, lost true, given back false"),
            "{line}"
        );
    }
    for lease in next {
        assert!(lease.is_valid());
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    }
    eventually_async(LONG, || lock_keys(&server).is_empty()).await;
}

/// Not a test: the other process of the one above.
#[tokio::test]
#[ignore = "run by another test"]
async fn a_process_that_is_frozen() {
    let Ok(url) = std::env::var(URL) else { return };
    let locks = Locks::builder().standalone(&url).watchdog_time(WATCHDOG);
    let locks = locks.build().await.unwrap();
    let mut leases = Vec::new();
    for lock in locks_of(&locks, "") {
        leases.push(hold(&*lock).await);
    }
    println!("\nall held");
    // Ends with the test at the latest, which holds the other end.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut last = Moment::now();
    while Moment::now().since(last) < WATCHDOG / 2 {
        last = Moment::now();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Before anything is asked of Redis.
    let valid: Vec<bool> = leases.iter().map(Lease::is_valid).collect();
    for (lease, valid) in leases.into_iter().zip(valid) {
        let name = lease.name().to_string();
        let lost = tokio::time::timeout(LONG, lease.lost()).await.is_ok();
        let given_back = lease.release().await.is_ok();
        println!("{name} awake: valid {valid}, lost {lost}, given back {given_back}");
    }
    println!("done");
}

#[tokio::test]
async fn renewal_lives_no_longer_than_the_lease_however_its_task_ends() {
    // G43
    let server = fresh_server();
    let (locks, other) = (client(&server).await, client(&server).await);
    for way in ["panic", "return", "abort"] {
        for (lock, again) in locks_of(&locks, "").into_iter().zip(locks_of(&other, "")) {
            let held = Arc::new(AtomicBool::new(false));
            let task = tokio::spawn({
                let held = held.clone();
                async move {
                    let lease = hold(&*lock).await;
                    held.store(true, Ordering::SeqCst);
                    match way {
                        "panic" => panic!("the holder's own fault"),
                        "return" => drop(lease),
                        _ => std::future::pending().await,
                    }
                }
            });
            eventually_async(LONG, || held.load(Ordering::SeqCst)).await;
            if way == "abort" {
                task.abort();
            }
            let _ = task.await;
            let next = tokio::time::timeout(LONG, hold(&*again)).await.expect("given back");
            next.release().await.unwrap();
        }
    }
    eventually_async(LONG, || is_idle(&locks) && lock_keys(&server).is_empty()).await;
}

#[tokio::test]
async fn a_lease_that_is_leaked_ends_with_its_longest_hold() {
    // G43
    let server = fresh_server();
    let heard = Heard::default();
    let locks = settings(&server)
        .observer(Arc::new(heard.clone()))
        .build()
        .await
        .unwrap();
    let mut leaked = Vec::new();
    for lock in locks_of(&locks, "") {
        let lease = lock
            .acquire_with(AcquireOptions::new().max_hold(2 * WATCHDOG))
            .await
            .unwrap();
        leaked.push(lease.holder().clone());
        std::mem::forget(lease);
    }
    eventually_async(LONG, || lock_keys(&server).is_empty()).await;
    for holder in leaked {
        let reasons: Vec<_> = heard
            .of(&holder)
            .into_iter()
            .filter_map(|event| match event.kind {
                leasehold::EventKind::Lost { reason } => Some(reason),
                _ => None,
            })
            .collect();
        assert_eq!(reasons, [LostReason::MaxHold]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_hold_only_names_that_are_held_or_waited_for() {
    // G70
    let server = fresh_server();
    let (locks, other) = (client(&server).await, client(&server).await);
    let owner = locks.owner();
    for number in 0..400 {
        let prefix = format!("{number}:");
        for (lock, theirs) in locks_of(&locks, &prefix).into_iter().zip(locks_of(&other, &prefix)) {
            let options = || AcquireOptions::new().owner(&owner);
            // One in a hundred is contended.
            let held = match number % 100 {
                0 => Some(hold(&*theirs).await),
                _ => None,
            };
            let acquire = tokio::spawn(lock.acquire_with(options()).into_future());
            if let Some(held) = held {
                held.release().await.unwrap();
            }
            acquire.await.unwrap().unwrap().release().await.unwrap();
        }
    }
    eventually_async(LONG, || is_idle(&locks) && is_idle(&other)).await;
    let places = format!("{owner:?}");
    let places: usize = places
        .chars()
        .filter(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap();
    assert!(places <= 64, "an owner forgets what it does not hold: {places}");
    assert_eq!(lock_keys(&server), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_wake_ups_cost_one_question_each_and_nobody_the_lock() {
    // G71
    let server = fresh_server();
    let (holding, waiting) = (client(&server).await, client(&server).await);
    for (held, waited) in locks_of(&holding, "").into_iter().zip(locks_of(&waiting, "")) {
        let kind = waited.kind();
        if waited.name().to_string() == "read" || kind == LockKind::Quorum {
            // Readers wait for a writer, and waiters of a quorum for no message.
            continue;
        }
        let lease = hold(&*held).await;
        let served = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..WAITERS)
            .map(|_| {
                let (acquire, served) = (waited.acquire_with(AcquireOptions::new()), served.clone());
                tokio::spawn(async move {
                    let lease = acquire.await.unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                    lease.release().await.unwrap();
                })
            })
            .collect();
        eventually_async(LONG, || kind == LockKind::Spin || !channels(&server).is_empty()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (before, begin) = (script_calls(&server), Moment::now());
        let mut connection = direct(&server);
        let mut forged = 0;
        while Moment::now().since(begin) < Duration::from_secs(1) {
            for channel in channels(&server).iter().take(1) {
                redis::cmd("PUBLISH")
                    .arg(channel)
                    .arg("0")
                    .exec(&mut connection)
                    .unwrap();
                forged += 1;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (asked, seconds) = (script_calls(&server) - before, Moment::now().since(begin).as_secs() + 1);
        // Beside that each asks at most twice a second by itself: once when it stands in a queue, or the front of a spin lock with its
        // pauses. One more a lock is the holder's renewal.
        let by_themselves = 2 * WAITERS * seconds + 100 * seconds;
        assert!(asked <= forged + by_themselves, "{kind}: {asked} for {forged} messages");
        assert_eq!(served.load(Ordering::Relaxed), 0, "{kind}");
        assert!(lease.is_valid());
        lease.release().await.unwrap();
        for task in tasks {
            tokio::time::timeout(LONG, task).await.expect("served").unwrap();
        }
    }
    eventually_async(LONG, || is_idle(&holding) && is_idle(&waiting)).await;
}

#[tokio::test]
async fn a_client_that_is_shut_down_renews_nothing_more_and_its_holders_are_told() {
    // G76
    let server = fresh_server();
    let locks = client(&server).await;
    let mut leases = Vec::new();
    for lock in locks_of(&locks, "") {
        leases.push(hold(&*lock).await);
    }
    locks.shutdown(LONG).await.unwrap();
    let before: Vec<i64> = lock_keys(&server).iter().map(|key| pttl(&server, key)).collect();
    tokio::time::sleep(WATCHDOG / 2).await;
    let after: Vec<i64> = lock_keys(&server).iter().map(|key| pttl(&server, key)).collect();
    assert!(
        before.iter().zip(&after).all(|(before, after)| after < before),
        "{before:?} {after:?}"
    );
    for lease in &leases {
        assert!(!lease.is_valid());
        let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
        assert_eq!(reason, LostReason::ClientClosed, "{}", lease.name());
    }
    eventually_async(LONG, || lock_keys(&server).is_empty()).await;
    for lease in leases {
        assert!(matches!(lease.release().await, Err(ReleaseError::Lost { .. })));
    }
}

#[tokio::test]
async fn a_client_that_is_shut_down_and_gives_back_lets_others_in_at_once() {
    // G76
    let server = fresh_server();
    let lasting = |settings: leasehold::LocksBuilder| settings.watchdog_time(Duration::from_secs(60)).build();
    let (locks, other) = (lasting(settings(&server)).await.unwrap(), client(&server).await);
    let mut leases = Vec::new();
    for lock in locks_of(&locks, "") {
        leases.push(hold(&*lock).await);
    }
    leases.push(leases[0].reenter().await.unwrap());
    locks.shutdown_releasing(LONG).await.unwrap();
    for lock in locks_of(&other, "") {
        let next = lock.try_acquire_with(AcquireOptions::new()).await.unwrap();
        next.expect("free, a minute before its lease would have ended")
            .release()
            .await
            .unwrap();
    }
    for lease in leases {
        assert!(!lease.is_valid());
        assert_eq!(lease.lost().await, LostReason::ClientClosed);
        assert!(matches!(lease.release().await, Err(ReleaseError::Lost { .. })));
    }
    eventually_async(LONG, || is_idle(&locks) && lock_keys(&server).is_empty()).await;
}

const WAITERS: u64 = 100;
const URL: &str = "TESTS_EVERY_KIND_URL";
