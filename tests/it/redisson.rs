//! Our library and a real Redisson take turns on the same keys, in both directions.
//!
//! Where a JDK and Maven are missing these tests say that they did not run; with `CI` set they fail instead.

mod alternating;
mod fair;
mod grid;
mod killed;
mod peer;
mod stage;

use std::time::Duration;

use leasehold::{AcquireError, LostReason, ReleaseError, Released};
use serde_json::{Value, json};
use tests::{LONG, channels, eventually_async, holders, keys, pttl, query};

use stage::{MINUTE, Stage};

/// The kind that holds, and the kind that waits for it.
const PAIRS: [(&str, &str); 9] = [
    ("reentrant", "reentrant"),
    ("fenced", "fenced"),
    ("write", "write"),
    ("write", "read"),
    ("read", "write"),
    ("multi", "multi"),
    ("multi", "reentrant"),
    ("spin", "spin"),
    // Its waiters ask once a second, so it is the last wherever calls of scripts are counted.
    ("fair", "fair"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hand_over_comes_by_message_and_that_of_a_spin_lock_by_asking() {
    let Some(stage) = Stage::new().await else { return };
    for (holding, waiting) in PAIRS {
        let name = format!("{holding}-{waiting}");
        let lease = stage.ours(holding, &name).lease_time(MINUTE).await.unwrap();
        let lock = stage.peer.open(waiting, &name);
        let theirs = stage.they_wait(1, &lock, &name).await;
        assert!(pttl(&stage.server, &name) > TWO_THIRDS && theirs.is_blocked());
        assert_eq!(channels(&stage.server).is_empty(), waiting == "spin", "{name}");
        lease.release().await.unwrap();
        let granted = theirs.within(LONG).unwrap_or_else(|| panic!("ours to theirs, {name}"));
        assert_eq!(granted, Ok(Value::Null), "{name}");
        stage.peer.call("unlock", &lock).unwrap();

        let lock = stage.peer.open(holding, &name);
        stage
            .peer
            .begin(1, "lock", &lock, json!({"lease_ms": 60_000}))
            .wait()
            .unwrap();
        let ours = stage.waits(waiting, &name).await;
        assert!(pttl(&stage.server, &name) > TWO_THIRDS && !ours.is_finished());
        assert_eq!(channels(&stage.server).is_empty(), waiting == "spin", "{name}");
        stage.peer.call("unlock", &lock).unwrap();
        let lease = tokio::time::timeout(LONG, ours).await;
        let lease = lease.unwrap_or_else(|_| panic!("theirs to ours, {name}")).unwrap();
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        eventually_async(LONG, || channels(&stage.server).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_re_entered_ends_with_its_last_release() {
    let Some(stage) = Stage::new().await else { return };
    for (holding, waiting) in PAIRS {
        let name = format!("{holding}-{waiting}");
        let lease = stage.ours(holding, &name).await.unwrap();
        let again = lease.reenter().await.unwrap();
        let lock = stage.peer.open(waiting, &name);
        assert_eq!(stage.peer.call("tryLock", &lock), Ok(json!(false)), "{name}");
        assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
        assert_eq!(stage.peer.call("tryLock", &lock), Ok(json!(false)), "{name}");
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        assert_eq!(stage.peer.call("tryLock", &lock), Ok(json!(true)), "{name}");
        stage.peer.call("unlock", &lock).unwrap();

        let lock = stage.peer.open(holding, &name);
        stage.peer.call("lock", &lock).unwrap();
        stage.peer.call("lock", &lock).unwrap();
        assert!(stage.is_busy(waiting, &name).await, "{name}");
        stage.peer.call("unlock", &lock).unwrap();
        assert!(stage.is_busy(waiting, &name).await, "{name}");
        stage.peer.call("unlock", &lock).unwrap();
        assert!(!stage.is_busy(waiting, &name).await, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_sides_hold_together() {
    let Some(stage) = Stage::new().await else { return };
    let ours = stage.ours("read", "n").await.unwrap();
    let (read, write) = (stage.peer.open("read", "n"), stage.peer.open("write", "n"));
    assert_eq!(stage.peer.call("tryLock", &read), Ok(json!(true)));
    assert_eq!(holders(&stage.server, "n").len(), 3, "the mode and two readers");
    assert_eq!(ours.release().await.unwrap(), Released::Fully);
    assert!(stage.is_busy("write", "n").await);
    let ours = stage.ours("read", "n").await.unwrap();
    stage.peer.call("unlock", &read).unwrap();
    assert_eq!(stage.peer.call("tryLock", &write), Ok(json!(false)));
    assert_eq!(ours.release().await.unwrap(), Released::Fully);
    assert_eq!(stage.peer.call("tryLock", &write), Ok(json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_what_the_other_side_holds_is_refused_and_changes_nothing() {
    let Some(stage) = Stage::new().await else { return };
    for kind in ["reentrant", "fenced", "write", "read", "spin", "fair"] {
        let lock = stage.peer.open(kind, kind);
        let lease = stage.ours(kind, kind).lease_time(MINUTE).await.unwrap();
        let before = holders(&stage.server, kind);
        assert_eq!(
            stage.peer.call("unlock", &lock),
            Err("IllegalMonitorStateException".into()),
            "{kind}"
        );
        assert_eq!(holders(&stage.server, kind), before);
        // Taken away from outside, and theirs meanwhile.
        let _: i64 = query(&stage.server, redis::cmd("DEL").arg(kind));
        stage.peer.call("lock", &lock).unwrap();
        let theirs = holders(&stage.server, kind);
        let refused = lease.release().await.unwrap_err();
        assert!(matches!(refused, ReleaseError::Lost { .. }), "{kind}: {refused}");
        assert_eq!(holders(&stage.server, kind), theirs);
        stage.peer.call("unlock", &lock).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_takes_the_lock_away_and_wakes_the_waiter_of_either_side() {
    let Some(stage) = Stage::new().await else { return };
    // Redisson cannot force a multi lock.
    for (holding, waiting) in PAIRS.into_iter().filter(|(holding, _)| *holding != "multi") {
        let name = format!("{holding}-{waiting}");
        let (held, waited) = (stage.peer.open(holding, &name), stage.peer.open(waiting, &name));
        let lease = stage.ours(holding, &name).await.unwrap();
        let lost = lease.lost();
        let theirs = stage.they_wait(1, &waited, &name).await;
        assert_eq!(
            stage.peer.begin(2, "forceUnlock", &held, json!({})).wait(),
            Ok(json!(true)),
            "{name}"
        );
        assert_eq!(theirs.wait(), Ok(Value::Null));
        let reason = tokio::time::timeout(LONG, lost).await.unwrap();
        assert_eq!(reason, LostReason::NotOwner);
        drop(lease);
        stage.peer.call("unlock", &waited).unwrap();

        stage
            .peer
            .begin(1, "lock", &held, json!({"lease_ms": 60_000}))
            .wait()
            .unwrap();
        let ours = stage.waits(waiting, &name).await;
        assert!(stage.locks.admin().force_release(&name).await.unwrap());
        let lease = tokio::time::timeout(LONG, ours).await.unwrap().unwrap();
        assert_eq!(stage.peer.call("heldByMe", &held), Ok(json!(false)), "{name}");
        assert_eq!(
            stage.peer.call("unlock", &held),
            Err("IllegalMonitorStateException".into())
        );
        assert_eq!(lease.release().await.unwrap(), Released::Fully);

        stage
            .peer
            .begin(1, "lock", &held, json!({"lease_ms": 60_000}))
            .wait()
            .unwrap();
        let theirs = stage.they_wait(2, &waited, &name).await;
        assert!(stage.locks.admin().force_release(&name).await.unwrap());
        assert_eq!(theirs.within(LONG), Some(Ok(Value::Null)), "{name}");
        stage.peer.begin(2, "unlock", &waited, json!({})).wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_of_readers_reaches_a_writer_of_redisson_that_is_about_to_sleep() {
    let Some(stage) = Stage::new().await else { return };
    let (read, write) = (stage.peer.open("read", "n"), stage.peer.open("write", "n"));
    let lease = || json!({"lease_ms": 60_000});
    for round in 0..ROUNDS {
        stage.peer.begin(1, "lock", &read, lease()).wait().unwrap();
        let theirs = stage.peer.begin(2, "lock", &write, lease());
        stage.hears("write", "n").await;
        // It attempts once more and goes to sleep; this comes before, between or after.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..1_500))).await;
        assert!(stage.locks.admin().force_release("n").await.unwrap());
        assert_eq!(theirs.within(LONG), Some(Ok(Value::Null)), "round {round}");
        stage.peer.begin(2, "unlock", &write, json!({})).wait().unwrap();
        eventually_async(LONG, || {
            !channels(&stage.server).iter().any(|channel| channel.contains("{n}"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_limit_is_over_leaves_the_other_side_alone() {
    let Some(stage) = Stage::new().await else { return };
    for (holding, waiting) in PAIRS {
        let name = format!("{holding}-{waiting}");
        let lock = stage.peer.open(waiting, &name);
        let lease = stage.ours(holding, &name).lease_time(MINUTE).await.unwrap();
        let before = (holders(&stage.server, &name), keys(&stage.server));
        let theirs = stage
            .peer
            .begin(1, "tryLock", &lock, json!({"wait_ms": 300, "lease_ms": 10_000}));
        assert_eq!(theirs.wait(), Ok(json!(false)), "{name}");
        assert_eq!((holders(&stage.server, &name), keys(&stage.server)), before);
        lease.release().await.unwrap();

        let lock = stage.peer.open(holding, &name);
        stage
            .peer
            .begin(1, "lock", &lock, json!({"lease_ms": 60_000}))
            .wait()
            .unwrap();
        let before = (holders(&stage.server, &name), keys(&stage.server));
        let limit = Duration::from_millis(300);
        let refused = stage.ours(waiting, &name).wait_limit(limit).await.unwrap_err();
        assert!(matches!(refused, AcquireError::WaitLimit { .. }), "{name}: {refused}");
        assert_eq!((holders(&stage.server, &name), keys(&stage.server)), before);
        stage.peer.call("unlock", &lock).unwrap();
        eventually_async(LONG, || {
            !channels(&stage.server).iter().any(|channel| channel.contains(&name))
        })
        .await;
    }
}

/// Of a minute, in milliseconds: an expiry is further away than any wait of a test.
const TWO_THIRDS: i64 = 40_000;
const ROUNDS: u32 = 60;
