//! The same for a user who may not end links on the server: tombstones keep what comes late from taking anything.

use leasehold::{AcquireOptions, LockKind};
use tests::{LONG, eventually_async, is_idle, keys, pttl, query};

use super::{BRIEFLY, TwoWays};

#[tokio::test]
async fn an_acquire_that_arrives_after_its_caller_has_left_takes_nothing() {
    let ways = TwoWays::without_fence().await;
    let kinds = LockKind::ALL.iter().filter(|kind| **kind != LockKind::Quorum);
    let mut locks: Vec<_> = kinds.map(|kind| ways.locks.lock(*kind, kind.name())).collect();
    locks.push(ways.locks.lock_for_reading(LockKind::ReadWrite, "read"));
    // The server knows the scripts, also those behind a look at a tombstone.
    for lock in &locks {
        let lease = lock.acquire_with(AcquireOptions::new()).await.unwrap();
        lease.release().await.unwrap();
    }
    ways.hold_back_what_is_sent();
    let attempts: Vec<_> = locks
        .iter()
        .map(|lock| tokio::spawn(lock.acquire_with(AcquireOptions::new().wait_limit(BRIEFLY / 4))))
        .collect();
    for attempt in attempts {
        assert!(attempt.await.unwrap().unwrap_err().outcome_unknown());
    }
    eventually_async(LONG, || is_idle(&ways.locks)).await;
    let words = |keys: Vec<String>| {
        keys.into_iter()
            .filter(|key| key.starts_with("leasehold_gone:"))
            .count()
    };
    assert_eq!(words(keys(&ways.server)), locks.len(), "each has left word");
    ways.deliver_late().await;
    let left = keys(&ways.server).into_iter().filter(|key| {
        let is_word = key.starts_with("leasehold_gone:");
        assert!(!is_word || pttl(&ways.server, key) > 0, "a word has an end");
        !is_word && !key.starts_with("redisson_lock_token:")
    });
    assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_lock_was_released_takes_nothing() {
    let ways = TwoWays::without_fence().await;
    ways.locks
        .reentrant("n")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    ways.hold_back_what_is_sent();
    let lease = ways.locks.reentrant("n").acquire().await.unwrap();
    assert!(lease.attempts() > 1, "the first one is on its way");
    drop(lease);
    eventually_async(LONG, || is_idle(&ways.locks)).await;
    ways.deliver_late().await;
    assert!(
        keys(&ways.server)
            .iter()
            .all(|key| key.starts_with("leasehold_gone:{n}:"))
    );
    // What is not in doubt leaves no word.
    query::<()>(&ways.server, &redis::cmd("FLUSHALL"));
    ways.locks
        .reentrant("n")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(keys(&ways.server), [""; 0]);
}
