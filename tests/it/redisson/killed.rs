//! Either side ends by SIGKILL.

use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use leasehold::{Locks, Released};
use serde_json::{Value, json};
use tests::{LONG, WATCHDOG};

use super::PAIRS;
use super::stage::{Stage, ours};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redisson_is_killed_its_locks_are_ours_after_their_lease() {
    let Some(stage) = Stage::new().await else { return };
    let mut waiters = Vec::new();
    for (holding, waiting) in PAIRS {
        let name = format!("{holding}-{waiting}");
        let lock = stage.peer.open(holding, &name);
        stage.peer.call("lock", &lock).unwrap();
        waiters.push((name.clone(), stage.waits(waiting, &name).await));
    }
    // Renewed by its watchdog, so it would be theirs for ever.
    tokio::time::sleep(2 * WATCHDOG).await;
    assert!(waiters.iter().all(|(_, ours)| !ours.is_finished()));
    stage.peer.kill();
    for (name, ours) in waiters {
        let lease = tokio::time::timeout(LONG, ours)
            .await
            .unwrap_or_else(|_| panic!("{name}"));
        assert_eq!(lease.unwrap().release().await.unwrap(), Released::Fully);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_waiting_redisson_is_killed_the_lock_goes_on() {
    let Some(stage) = Stage::new().await else { return };
    let lease = stage.ours("reentrant", "n").await.unwrap();
    let lock = stage.peer.open("reentrant", "n");
    let theirs = stage.they_wait(1, &lock, "n").await;
    stage.peer.kill();
    assert_eq!(theirs.within(LONG), None);
    let ours = tokio::spawn(ours(&stage.locks, "reentrant", "n").into_future());
    lease.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, ours).await.unwrap().unwrap().unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_our_process_is_killed_its_locks_are_redissons_after_their_lease() {
    let Some(stage) = Stage::new().await else { return };
    let mut held = String::new();
    for (holding, waiting) in PAIRS {
        held += &format!("{holding} {holding}-{waiting},");
    }
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "redisson::killed::a_process_that_holds_until_it_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(HELD, held)
        .env(URL, stage.server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "all held"));
    let mut waiters = Vec::new();
    for (n, (holding, waiting)) in (1..).zip(PAIRS) {
        let name = format!("{holding}-{waiting}");
        let lock = stage.peer.open(waiting, &name);
        let theirs = stage.they_wait(n, &lock, &name).await;
        waiters.push((n, lock, theirs));
    }
    tokio::time::sleep(2 * WATCHDOG).await;
    assert!(waiters.iter().all(|(_, _, theirs)| theirs.is_blocked()));
    process.kill().unwrap();
    process.wait().unwrap();
    for (n, lock, theirs) in waiters {
        assert_eq!(theirs.wait(), Ok(Value::Null), "{lock}");
        stage.peer.begin(n, "unlock", &lock, json!({})).wait().unwrap();
    }
}

/// Not a test: the other process of [`when_our_process_is_killed_its_locks_are_redissons_after_their_lease`].
#[tokio::test]
#[ignore = "run by another test"]
async fn a_process_that_holds_until_it_is_killed() {
    let (Ok(url), Ok(held)) = (std::env::var(URL), std::env::var(HELD)) else {
        return;
    };
    let settings = Locks::builder().standalone(&url).watchdog_time(WATCHDOG);
    let locks = settings.build().await.unwrap();
    let mut leases = Vec::new();
    for (kind, name) in held.split(',').filter_map(|lock| lock.split_once(' ')) {
        leases.push(ours(&locks, kind, name).await.unwrap());
    }
    println!("\nall held");
    // Ends with the test at the latest, which holds the other end.
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

const HELD: &str = "TESTS_REDISSON_HELD";
const URL: &str = "TESTS_REDISSON_URL";
