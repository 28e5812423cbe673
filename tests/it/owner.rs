//! Who is who: owners are explicit, a stale owner harms nobody, and a lease ends with whoever had it.

use std::time::Duration;

use leasehold::{AcquireError, LostReason, ReleaseError};
use tests::{LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query};

const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn two_tasks_of_one_thread_are_never_re_entrant_to_each_other() {
    // G41: this runtime has one thread. The first task overruns its lease, the second takes the lock.
    let server = fresh_server();
    let locks = client(&server).await;
    let late = locks.reentrant("n").acquire().lease_time(SHORT).await.unwrap();
    let second = tokio::spawn({
        let lock = locks.reentrant("n");
        async move { lock.acquire().lease_time(MINUTE).await.unwrap() }
    });
    let second = tokio::time::timeout(LONG, second).await.unwrap().unwrap();
    assert_ne!(late.holder(), second.holder());
    let error = late.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Lost { .. }), "{error:?}");
    eventually_async(LONG, || locks.stats().releases == 0).await;
    assert_eq!(holders(&server, "n"), [(second.holder().to_string(), "1".into())]);
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lease_moves_between_threads_and_a_child_task_re_enters_with_the_owner() {
    // G42
    let server = fresh_server();
    let locks = client(&server).await;
    for _ in 0..50 {
        let owner = locks.owner();
        let lease = locks.reentrant("n").acquire().owner(&owner).await.unwrap();
        tokio::task::yield_now().await;
        let child = tokio::spawn({
            let (lock, owner) = (locks.reentrant("n"), owner.clone());
            async move {
                let inner = lock.acquire().owner(&owner).await.unwrap();
                let count = inner.hold_count();
                inner.release().await.unwrap();
                count
            }
        });
        assert_eq!(child.await.unwrap(), 2);
        std::thread::spawn(move || drop(lease)).join().unwrap();
        eventually_async(LONG, || is_idle(&locks)).await;
        assert!(keys(&server).is_empty());
    }
}

#[tokio::test]
async fn two_acquires_of_one_owner_at_once_are_one_hold() {
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    let lock = locks.reentrant("n");
    let (first, second) = tokio::join!(
        lock.acquire().owner(&owner).into_future(),
        lock.acquire().owner(&owner).into_future()
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.holder(), second.holder());
    assert_eq!(holders(&server, "n"), [(first.holder().to_string(), "2".into())]);
    drop((first, second));
}

#[tokio::test]
async fn a_holder_that_overran_its_lease_cannot_harm_the_next_one() {
    // G44, G45
    let server = fresh_server();
    let (a, b, c) = (client(&server).await, client(&server).await, client(&server).await);
    let late = a.reentrant("n").acquire().lease_time(SHORT).await.unwrap();
    let next = b.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let ttl = pttl(&server, "n");
    assert!(!late.is_valid());
    assert!(matches!(late.release().await, Err(ReleaseError::Lost { .. })));
    eventually_async(LONG, || is_idle(&a)).await;
    assert_eq!(holders(&server, "n"), [(next.holder().to_string(), "1".into())]);
    assert!(pttl(&server, "n") <= ttl && pttl(&server, "n") > 30_000);
    assert!(c.reentrant("n").try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
    // Nothing local is left of the late holder: its own client gets in.
    let again = a.reentrant("n").acquire().wait_limit(LONG).await.unwrap();
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_re_entry_of_a_hold_that_is_gone_is_refused_and_creates_nothing() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    let error = lease.reenter().await.unwrap_err();
    assert!(
        matches!(
            &error,
            AcquireError::Lost {
                reason: LostReason::NotOwner,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(keys(&server).is_empty());
    assert!(!lease.is_valid(), "and the first lease knows at once");
    drop(lease);
    let fresh = locks.reentrant("n").acquire().await.unwrap();
    fresh.release().await.unwrap();
}

#[tokio::test]
async fn a_dropped_lease_is_given_back_before_the_next_acquire_of_the_same_task() {
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    for _ in 0..100 {
        let lease = locks.reentrant("n").acquire().owner(&owner).await.unwrap();
        let id = lease.holder().clone();
        drop(lease);
        let next = locks.reentrant("n").acquire().owner(&owner).await.unwrap();
        assert_ne!(&id, next.holder(), "its old hold is not taken for a re-entry");
        assert_eq!(next.hold_count(), 1);
    }
    eventually_async(WATCHDOG * 20, || is_idle(&locks)).await;
}
