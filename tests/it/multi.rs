//! The multi lock: several locks as one, all or none, each an ordinary lock to everybody else.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{AcquireError, LostReason, ReleaseError, Released};
use tests::messages::Messages;
use tests::{
    LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, script_calls, settings,
};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn free_locks_are_all_taken_at_once_and_given_back_with_a_message_each() {
    // G22
    let server = fresh_server();
    let locks = client(&server).await;
    let messages = Messages::listen(&server);
    let lock = locks.multi(["c", "a", "b", "a"]);
    for lease_time in [Some(Duration::from_secs(10)), None] {
        let acquire = lock.acquire().wait_limit(Duration::ZERO);
        let lease = match lease_time {
            Some(lease_time) => acquire.lease_time(lease_time).await.unwrap(),
            None => acquire.await.unwrap(),
        };
        let longest = lease_time.unwrap_or(WATCHDOG).as_millis() as i64;
        assert_eq!(keys(&server), ["a", "b", "c"]);
        for name in ["a", "b", "c"] {
            assert_eq!(holders(&server, name), [(lease.holder().to_string(), "1".into())]);
            assert!((1..=longest).contains(&pttl(&server, name)));
        }
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        assert!(keys(&server).is_empty());
    }
    let told: Vec<String> = messages.so_far().into_iter().map(|(channel, _)| channel).collect();
    let once = ["a", "b", "c"].map(|name| format!("redisson_lock__channel:{{{name}}}"));
    assert_eq!(told, [once.clone(), once].concat());
}

#[tokio::test]
async fn one_busy_lock_leaves_the_others_free() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let held = a.reentrant("b").acquire().lease_time(MINUTE).await.unwrap();
    assert!(b.multi(["a", "b", "c"]).try_acquire().await.unwrap().is_none());
    assert_eq!(keys(&server), ["b"]);
    let limit = Duration::from_millis(200);
    let error = b.multi(["a", "b", "c"]).acquire().wait_limit(limit).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::WaitLimit { name, .. } if name == "a, b, c"),
        "{error:?}"
    );
    assert_eq!(keys(&server), ["b"]);
    eventually_async(LONG, || is_idle(&b)).await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_woken_by_whichever_lock_it_waits_for() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = a.reentrant("a").acquire().lease_time(MINUTE).await.unwrap();
    let last = a.reentrant("c").acquire().lease_time(MINUTE).await.unwrap();
    let before = script_calls(&server);
    let waiting = tokio::spawn({
        let lock = b.multi(["a", "b", "c"]);
        async move { lock.acquire().lease_time(MINUTE).await.unwrap() }
    });
    eventually_async(LONG, || script_calls(&server) >= before + 2).await;
    let before = script_calls(&server);
    first.release().await.unwrap();
    // Its own release, the attempt that finds the other one busy, and the attempt after subscribing there.
    eventually_async(LONG, || script_calls(&server) >= before + 3).await;
    assert!(!waiting.is_finished());
    last.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, waiting).await.expect("by message").unwrap();
    assert_eq!(keys(&server), ["a", "b", "c"]);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_is_woken_by_one_lock_and_waits_on_for_another_passes_the_wake_up_on() {
    let server = fresh_server();
    let a = client(&server).await;
    // Without a message its waiters ask again when the lease time of the holder is over.
    let b = settings(&server).watchdog_time(10 * MINUTE).build().await.unwrap();
    let first = a.reentrant("a").acquire().lease_time(MINUTE).await.unwrap();
    let last = a.reentrant("b").acquire().lease_time(MINUTE).await.unwrap();
    let before = script_calls(&server);
    let both = tokio::spawn(b.multi(["a", "b"]).acquire().into_future());
    eventually_async(LONG, || script_calls(&server) >= before + 2).await;
    // On the same channel, behind it.
    let single = tokio::spawn(b.reentrant("a").acquire().into_future());
    eventually_async(LONG, || script_calls(&server) >= before + 4).await;
    first.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, single).await.expect("by message").unwrap();
    lease.unwrap().release().await.unwrap();
    assert!(!both.is_finished());
    last.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, both).await.expect("by message").unwrap();
    lease.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_owner_enters_again_by_the_names_and_not_by_how_they_read() {
    let server = fresh_server();
    let locks = client(&server).await;
    let me = locks.owner();
    let held = locks.multi(["a", "b"]).acquire().owner(&me).await.unwrap();
    // Both read "a, b".
    let stranger = locks.reentrant("a, b").acquire().await.unwrap();
    let limit = Duration::from_millis(100);
    let error = locks
        .multi(["a, b"])
        .acquire()
        .owner(&me)
        .wait_limit(limit)
        .await
        .unwrap_err();
    assert!(matches!(error, AcquireError::WaitLimit { .. }), "{error:?}");
    stranger.release().await.unwrap();
    let other = locks.multi(["a, b"]).acquire().owner(&me).await.unwrap();
    assert_ne!(other.holder(), held.holder());
    assert_eq!(holders(&server, "a, b"), [(other.holder().to_string(), "1".into())]);
}

#[tokio::test]
async fn all_of_them_are_renewed_and_losing_one_is_losing_all() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.multi(["a", "b", "c"]).acquire().await.unwrap();
    tokio::time::sleep(WATCHDOG * 2).await;
    assert!(lease.is_valid());
    assert!(["a", "b", "c"].iter().all(|name| pttl(&server, name) > 0));
    let _: i64 = query(&server, redis::cmd("DEL").arg("b"));
    assert_eq!(
        tokio::time::timeout(LONG, lease.lost()).await.unwrap(),
        LostReason::NotOwner
    );
    assert!(matches!(lease.release().await, Err(ReleaseError::Lost { .. })));
    eventually_async(LONG, || keys(&server).is_empty()).await;
}

#[tokio::test]
async fn a_release_goes_on_after_a_lock_that_another_holds() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let lease = a.multi(["a", "b", "c"]).acquire().lease_time(MINUTE).await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("b"));
    let theirs = b.reentrant("b").acquire().lease_time(MINUTE).await.unwrap();
    assert!(matches!(
        lease.release().await,
        Err(ReleaseError::Lost {
            reason: LostReason::NotOwner,
            ..
        })
    ));
    assert_eq!(keys(&server), ["b"], "the others are free");
    assert_eq!(holders(&server, "b"), [(theirs.holder().to_string(), "1".into())]);
    drop(theirs);
}

#[tokio::test]
async fn re_entry_counts_on_all_of_them() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.multi(["a", "b"]).acquire().lease_time(MINUTE).await.unwrap();
    let again = lease.reenter().lease_time(MINUTE).await.unwrap();
    for name in ["a", "b"] {
        assert_eq!(holders(&server, name), [(lease.holder().to_string(), "2".into())]);
    }
    assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
}

#[tokio::test]
async fn no_names_an_empty_name_and_what_is_no_lock_are_refused_and_change_nothing() {
    let server = fresh_server();
    let locks = client(&server).await;
    assert!(matches!(
        locks.multi([] as [&str; 0]).acquire().await,
        Err(AcquireError::EmptyName)
    ));
    assert!(matches!(
        locks.multi(["a", ""]).acquire().await,
        Err(AcquireError::EmptyName)
    ));
    let _: () = query(&server, redis::cmd("SET").arg("b").arg("x"));
    assert!(matches!(
        locks.multi(["a", "b"]).acquire().await,
        Err(AcquireError::Refused { .. })
    ));
    assert_eq!(keys(&server), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_sets_in_any_order_never_block_each_other_for_ever() {
    // G66: pairs and triples of four names in random order, from three clients; one in three has a short wait.
    let server = fresh_server();
    let names = ["a", "b", "c", "d"];
    let inside: Arc<[AtomicU32; 4]> = Arc::default();
    let passed = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = client(&server).await;
        for _ in 0..6 {
            let (locks, inside, passed) = (locks.clone(), inside.clone(), passed.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..20 {
                    let mut picked = [0, 1, 2, 3];
                    fastrand::shuffle(&mut picked);
                    let picked = &picked[..2 + fastrand::usize(..2)];
                    let lock = locks.multi(picked.iter().map(|index| names[*index]));
                    let acquire = match round % 3 {
                        0 => lock.acquire().wait_limit(Duration::from_millis(20)),
                        _ => lock.acquire(),
                    };
                    let Ok(lease) = acquire.await else { continue };
                    for index in picked {
                        assert_eq!(
                            inside[*index].fetch_add(1, Ordering::SeqCst),
                            0,
                            "two holders of {}",
                            names[*index]
                        );
                    }
                    tokio::task::yield_now().await;
                    for index in picked {
                        inside[*index].fetch_sub(1, Ordering::SeqCst);
                    }
                    lease.release().await.unwrap();
                    passed.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        clients.push(locks);
    }
    for task in tasks {
        tokio::time::timeout(LONG * 2, task)
            .await
            .expect("nobody is blocked for ever")
            .unwrap();
    }
    assert!(passed.load(Ordering::Relaxed) > 200);
    eventually_async(LONG, || clients.iter().all(is_idle)).await;
    assert!(keys(&server).is_empty());
}
