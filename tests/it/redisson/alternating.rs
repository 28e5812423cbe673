//! Both sides in turns, many times, over what nothing else protects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_bench::clock;
use tokio::sync::watch;

use super::PAIRS;
use super::stage::{Stage, ours};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_alternating_hand_overs_of_each_kind_keep_an_unprotected_counter_right() {
    let Some(stage) = Stage::new().await else { return };
    for (our_kind, their_kind) in PAIRS {
        let name = format!("{our_kind}-{their_kind}");
        let lock = stage.peer.open(their_kind, &name);
        let guarded = Arc::new(Guarded::default());
        // How many grants each side had: the other one asks when it is this one's turn, so it always has to wait.
        let (our_grants, mut seen_by_them) = watch::channel(0);
        let (their_grants, mut seen_by_us) = watch::channel(0);
        let start_ns = clock::now_ns();
        let ours = tokio::spawn({
            let (locks, guarded, name) = (stage.locks.clone(), guarded.clone(), name.clone());
            async move {
                let mut waited = 0;
                for turn in 1..=HAND_OVERS / 2 {
                    seen_by_us.wait_for(|theirs| *theirs >= turn - 1).await.unwrap();
                    let lease = ours(&locks, our_kind, &name).await.unwrap();
                    our_grants.send_replace(turn);
                    guarded.work();
                    waited += u32::from(lease.attempts() > 1);
                    // Theirs comes at every moment of its way to sleep, and when it sleeps.
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
                    lease.release().await.unwrap();
                }
                waited
            }
        });
        let runtime = tokio::runtime::Handle::current();
        let peer = &stage.peer;
        tokio::task::block_in_place(|| {
            for turn in 1..=HAND_OVERS / 2 {
                runtime.block_on(seen_by_them.wait_for(|ours| *ours >= turn)).unwrap();
                peer.call("lock", &lock).unwrap();
                their_grants.send_replace(turn);
                guarded.work();
                peer.call("unlock", &lock).unwrap();
            }
        });
        let waited = ours.await.unwrap();
        let seconds = clock::since(start_ns).as_secs_f64();
        assert_eq!(guarded.counter.load(Ordering::Relaxed), u64::from(HAND_OVERS), "{name}");
        let rate = f64::from(HAND_OVERS) / seconds;
        println!(
            "{name}: {rate:.0} hand-overs/s; ours found it busy {waited} times of {}",
            HAND_OVERS / 2
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_ours_with_many_waiters_lets_redisson_have_its_turn() {
    let Some(stage) = Stage::new().await else { return };
    let lock = stage.peer.open("reentrant", "n");
    let guarded = Arc::new(Guarded::default());
    let (over, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (locks, guarded, over, grants) = (stage.locks.clone(), guarded.clone(), over.clone(), grants.clone());
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let lease = ours(&locks, "reentrant", "n").await.unwrap();
                guarded.work();
                grants.fetch_add(1, Ordering::Relaxed);
                lease.release().await.unwrap();
            }
        }));
    }
    let peer = &stage.peer;
    let mut waits: Vec<u64> = tokio::task::block_in_place(|| {
        let turn = |_| {
            let before = grants.load(Ordering::Relaxed);
            peer.call("lock", &lock).unwrap();
            guarded.work();
            let waited = grants.load(Ordering::Relaxed) - before;
            peer.call("unlock", &lock).unwrap();
            waited
        };
        (0..50).map(turn).collect()
    });
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    waits.sort_unstable();
    println!(
        "while Redisson waited, ours had {} grants in half of its turns, and {} at most",
        waits[25], waits[49]
    );
    let all = grants.load(Ordering::Relaxed) + 50;
    assert_eq!(guarded.counter.load(Ordering::Relaxed), all, "nobody was in at once");
}

/// What only one side at a time may touch.
#[derive(Default)]
struct Guarded {
    counter: AtomicU64,
    inside: AtomicBool,
}

impl Guarded {
    fn work(&self) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two holders at once");
        // Read and write apart: a second holder in between would be lost.
        let count = self.counter.load(Ordering::Relaxed);
        std::thread::yield_now();
        self.counter.store(count + 1, Ordering::Relaxed);
        self.inside.store(false, Ordering::SeqCst);
    }
}

const HAND_OVERS: u32 = 1_000;
