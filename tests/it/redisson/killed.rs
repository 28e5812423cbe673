//! Either side ends by SIGKILL.

use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
    let held = PAIRS.map(|(holding, waiting)| (holding, format!("{holding}-{waiting}")));
    let process = OurProcess::start(&stage, &held, &[]);
    let mut waiters = Vec::new();
    for (n, (holding, waiting)) in (1..).zip(PAIRS) {
        let name = format!("{holding}-{waiting}");
        let lock = stage.peer.open(waiting, &name);
        let theirs = stage.they_wait(n, &lock, &name).await;
        waiters.push((n, lock, theirs));
    }
    tokio::time::sleep(2 * WATCHDOG).await;
    assert!(waiters.iter().all(|(_, _, theirs)| theirs.is_blocked()));
    process.kill();
    for (n, lock, theirs) in waiters {
        assert_eq!(theirs.wait(), Ok(Value::Null), "{lock}");
        stage.peer.begin(n, "unlock", &lock, json!({})).wait().unwrap();
    }
}

/// A process of ours that holds some locks and waits for others until it is killed.
pub(super) struct OurProcess(Child);

impl OurProcess {
    /// Starts it; what it is to hold it holds then.
    pub(super) fn start(stage: &Stage, held: &[(&str, String)], waited_for: &[(&str, String)]) -> Self {
        let list = |locks: &[(&str, String)]| {
            let locks = locks.iter().map(|(kind, name)| format!("{kind} {name},"));
            locks.collect::<String>()
        };
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "redisson::killed::a_process_that_holds_and_waits_until_it_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(HELD, list(held))
            .env(WAITED_FOR, list(waited_for))
            .env(URL, stage.server.url())
            .env(FAIR_WAIT, stage.fair_wait.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "all held"));
        OurProcess(process)
    }

    /// Ends it as a crash does (SIGKILL).
    pub(super) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test: what [`OurProcess`] runs.
#[tokio::test]
#[ignore = "run by other tests"]
async fn a_process_that_holds_and_waits_until_it_is_killed() {
    let given = |name| std::env::var(name).ok();
    let (Some(url), Some(held), Some(waited_for)) = (given(URL), given(HELD), given(WAITED_FOR)) else {
        return;
    };
    let fair_wait = given(FAIR_WAIT).unwrap().parse().unwrap();
    let settings = Locks::builder().standalone(&url).watchdog_time(WATCHDOG);
    let settings = settings.fair_wait_time(Duration::from_millis(fair_wait));
    let locks = settings.build().await.unwrap();
    let listed = |list: &str| -> Vec<_> {
        let locks = list.split(',').filter_map(|lock| lock.split_once(' '));
        locks.map(|(kind, name)| (kind.to_owned(), name.to_owned())).collect()
    };
    let mut leases = Vec::new();
    for (kind, name) in listed(&held) {
        leases.push(ours(&locks, &kind, &name).await.unwrap());
    }
    for (kind, name) in listed(&waited_for) {
        tokio::spawn(ours(&locks, &kind, &name).into_future());
    }
    println!("\nall held");
    // Ends with the test at the latest, which holds the other end.
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    let _ = end.await;
    std::process::exit(0);
}

const HELD: &str = "TESTS_REDISSON_HELD";
const WAITED_FOR: &str = "TESTS_REDISSON_WAITED_FOR";
const URL: &str = "TESTS_REDISSON_URL";
const FAIR_WAIT: &str = "TESTS_REDISSON_FAIR_WAIT";
