//! Links that break and replies that are lost, under every kind of lock.

use std::time::Duration;

use leasehold::{AcquireOptions, Lease, Locks, ReleaseError, Released, RenewalPolicy};
use leasehold_bench::proxy::{Mode, Proxy};
use tests::{LONG, WATCHDOG, client, eventually_async, fresh_server, is_idle};

use super::{hold, lock_keys, locks_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_lost_with_its_link_and_is_taken_anew_is_renewed_again() {
    // G07: after one failed renewal later locks on the same name were never renewed.
    let policies = [
        RenewalPolicy::cancel_told(),
        RenewalPolicy::retry(3),
        RenewalPolicy::deadline(),
    ];
    let tries = policies.map(|policy| tokio::spawn(lost_and_taken_anew(policy)));
    for tried in tries {
        tried.await.unwrap();
    }
}

async fn lost_and_taken_anew(policy: RenewalPolicy) {
    // Who gives up at the first failure must not meet one only because the machine is busy.
    let watchdog = 3 * WATCHDOG;
    let server = fresh_server();
    let other = client(&server).await;
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let locks = Locks::builder().standalone(&leg.url()).watchdog_time(watchdog);
    let locks = locks.renewal(policy.clone()).build().await.unwrap();
    let mut lost = Vec::new();
    for lock in locks_of(&locks, "") {
        lost.push(hold(&*lock).await);
    }
    leg.switch(Mode::Refuse).unwrap();
    eventually_async(LONG, || lock_keys(&server).is_empty()).await;
    leg.switch(Mode::Pass).unwrap();
    for lease in lost {
        assert!(
            matches!(lease.release().await, Err(ReleaseError::Lost { .. })),
            "{policy}"
        );
    }
    let mut again = Vec::new();
    for lock in locks_of(&locks, "") {
        again.push(hold(&*lock).await);
    }
    let mut contenders = locks_of(&other, "");
    // Readers let each other in.
    contenders.pop();
    for _ in 0..12 {
        tokio::time::sleep(watchdog / 10).await;
        for lock in &contenders {
            let taken = lock.try_acquire_with(AcquireOptions::new()).await.unwrap();
            assert!(taken.is_none(), "{policy}: {} was free", lock.kind());
        }
    }
    assert!(again.iter().all(Lease::is_valid), "{policy}");
    for lease in again {
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    }
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_is_lost_is_told_as_done_and_harms_not_the_next_holder() {
    // G38
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let other = client(&server).await;
    let locks = Locks::builder()
        .standalone(&leg.url())
        .watchdog_time(Duration::from_secs(60));
    let locks = locks.build().await.unwrap();
    for (lock, theirs) in locks_of(&locks, "").into_iter().zip(locks_of(&other, "")) {
        let what = format!("{} {}", lock.kind(), lock.name());
        // From here on the server knows the scripts, so a request is one command.
        assert_eq!(hold(&*lock).await.release().await.unwrap(), Released::Fully);
        let lease = hold(&*lock).await;
        leg.switch(Mode::HoldReplies).unwrap();
        let release = tokio::spawn(lease.release());
        let next = tokio::time::timeout(LONG, hold(&*theirs))
            .await
            .expect("the first run has freed it");
        leg.cut().unwrap();
        leg.switch(Mode::Pass).unwrap();
        let released = tokio::time::timeout(LONG, release).await.unwrap().unwrap();
        assert_eq!(released.unwrap(), Released::Fully, "{what}");
        assert!(theirs.try_acquire_with(AcquireOptions::new()).await.unwrap().is_none() || what.ends_with(" read"));
        assert!(next.is_valid(), "{what}");
        assert_eq!(next.release().await.unwrap(), Released::Fully, "{what}");
    }
    eventually_async(LONG, || is_idle(&locks) && lock_keys(&server).is_empty()).await;
}
