//! What the reentrant lock writes, reads and publishes: the facts of Redisson's `RLock`, one by one.

use std::time::Duration;

use leasehold::{AcquireError, LostReason, ReleaseError, Released};
use tests::messages::Messages;
use tests::{
    LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, script_calls,
};

const MINUTE: Duration = Duration::from_secs(60);

fn told(channel: &str) -> (String, String) {
    (channel.to_owned(), "0".to_owned())
}

#[tokio::test]
async fn a_held_lock_is_a_hash_with_one_field_and_nothing_else() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("order:7").acquire().lease_time(MINUTE).await.unwrap();
    assert_eq!(holders(&server, "order:7"), [(lease.holder().to_string(), "1".into())]);
    assert_eq!(keys(&server), ["order:7"]);
    let ttl = pttl(&server, "order:7");
    assert!((40_000..=60_000).contains(&ttl), "{ttl}");
    let (client_id, number) = lease
        .holder()
        .to_string()
        .rsplit_once(':')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert_eq!(client_id, locks.id());
    assert!(number.parse::<u64>().is_ok());
    lease.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn without_a_lease_time_the_watchdog_time_is_the_lease() {
    let server = fresh_server();
    let locks = leasehold::Locks::connect(&server.url()).await.unwrap();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let ttl = pttl(&server, "n");
    assert!((20_000..=30_000).contains(&ttl), "{ttl}");
    drop(lease);
}

#[tokio::test]
async fn a_busy_lock_is_none_and_nothing_changes() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let lease = a.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let before = (holders(&server, "n"), pttl(&server, "n"));
    assert!(
        b.reentrant("n")
            .try_acquire()
            .lease_time(MINUTE * 2)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        a.reentrant("n").try_acquire().await.unwrap().is_none(),
        "not even for the same client"
    );
    assert_eq!(holders(&server, "n"), before.0);
    assert!(pttl(&server, "n") <= before.1);
    lease.release().await.unwrap();
    assert!(is_idle(&b));
}

#[tokio::test]
async fn re_entry_raises_the_count_and_the_last_release_frees() {
    let server = fresh_server();
    let locks = client(&server).await;
    let messages = Messages::listen(&server);
    let lock = locks.reentrant("n");
    let owner = locks.owner();
    let first = lock.acquire().owner(&owner).lease_time(MINUTE).await.unwrap();
    let second = lock.acquire().owner(&owner).lease_time(MINUTE).await.unwrap();
    let third = first.reenter().lease_time(MINUTE).await.unwrap();
    assert_eq!(first.holder(), third.holder());
    assert_eq!((first.hold_count(), second.hold_count()), (3, 3));
    assert_eq!(holders(&server, "n"), [(first.holder().to_string(), "3".into())]);
    assert_eq!(
        first.release().await.unwrap(),
        Released::StillHeld(2),
        "in whatever order"
    );
    assert_eq!(third.release().await.unwrap(), Released::StillHeld(1));
    assert!(second.is_valid());
    assert_eq!(holders(&server, "n"), [(second.holder().to_string(), "1".into())]);
    assert!(messages.so_far().is_empty(), "a partial release tells nobody");
    assert_eq!(second.release().await.unwrap(), Released::Fully);
    assert_eq!(messages.so_far(), [told("redisson_lock__channel:{n}")]);
}

#[tokio::test]
async fn a_new_hold_of_the_same_owner_has_a_new_id() {
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    let lock = locks.reentrant("n");
    let first = lock.acquire().owner(&owner).await.unwrap();
    let id = first.holder().clone();
    first.release().await.unwrap();
    let second = lock.acquire().owner(&owner).await.unwrap();
    assert_ne!(&id, second.holder());
    assert_eq!(second.hold_count(), 1);
    drop(second);
}

#[tokio::test]
async fn a_re_entry_never_shortens_the_lease() {
    let server = fresh_server();
    let locks = client(&server).await;
    let long = locks.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let short = long.reenter().lease_time(Duration::from_secs(1)).await.unwrap();
    let ttl = pttl(&server, "n");
    assert!(ttl > 30_000, "{ttl}");
    short.release().await.unwrap();
    assert!(pttl(&server, "n") > 30_000, "nor does a partial release");
    assert!(long.remaining() > Duration::from_secs(30));
    drop(long);
}

#[tokio::test]
async fn a_release_is_published_even_when_nobody_listens_and_on_the_right_channel() {
    let server = fresh_server();
    let locks = client(&server).await;
    let messages = Messages::listen(&server);
    for name in ["plain", "with{tag}inside", "v}only", "v{open"] {
        locks.reentrant(name).acquire().await.unwrap().release().await.unwrap();
    }
    let channels = [
        told("redisson_lock__channel:{plain}"),
        told("redisson_lock__channel:with{tag}inside"),
        told("redisson_lock__channel:{v}only}"),
        told("redisson_lock__channel:v{open"),
    ];
    assert_eq!(messages.so_far(), channels);
}

#[tokio::test]
async fn releasing_what_another_holds_is_an_error_and_changes_nothing() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let messages = Messages::listen(&server);
    let lease = a.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    let other = b.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let before = holders(&server, "n");
    let error = lease.release().await.unwrap_err();
    assert!(
        matches!(
            &error,
            ReleaseError::Lost {
                reason: LostReason::NotOwner,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!error.to_string().contains("acquire"), "{error}");
    assert_eq!(holders(&server, "n"), before);
    assert!(pttl(&server, "n") > 40_000);
    assert!(messages.so_far().is_empty());
    drop(other);
}

#[tokio::test]
async fn a_forced_release_frees_wakes_and_tells_and_of_a_free_lock_does_nothing() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let messages = Messages::listen(&server);
    let admin = b.admin();
    assert!(!admin.force_release("n").await.unwrap());
    assert!(messages.so_far().is_empty());

    let lease = a.reentrant("n").acquire().await.unwrap();
    let lost = lease.lost();
    assert!(admin.force_release("n").await.unwrap());
    assert!(keys(&server).is_empty());
    assert_eq!(messages.so_far(), [told("redisson_lock__channel:{n}")]);
    let reason = tokio::time::timeout(LONG, lost)
        .await
        .expect("told at the next renewal");
    assert_eq!(reason, LostReason::NotOwner);
    assert!(!lease.is_valid());
    assert!(matches!(lease.release().await, Err(ReleaseError::Lost { .. })));
}

#[tokio::test]
async fn inspect_tells_holder_count_and_time_left_and_changes_nothing() {
    let server = fresh_server();
    let locks = client(&server).await;
    assert_eq!(locks.admin().inspect("n").await.unwrap(), None);
    let lease = locks.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let again = lease.reenter().lease_time(MINUTE).await.unwrap();
    let info = locks.admin().inspect("n").await.unwrap().unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(
        (info.holders[0].id.clone(), info.holders[0].count),
        (lease.holder().to_string(), 2)
    );
    assert!(info.time_left.unwrap() > Duration::from_secs(30));
    drop((lease, again));
}

#[tokio::test]
async fn a_foreign_holder_is_respected_and_its_message_or_its_end_lets_us_in() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.reentrant("n");
    // As Redisson leaves it.
    let foreign = |ttl_ms: u64| {
        let _: () = query(
            &server,
            redis::cmd("HSET")
                .arg("n")
                .arg("0b6c9d0e-7a58-4c0e-9a3c-0d9f2f8d6a11:1")
                .arg(1),
        );
        let _: () = query(&server, redis::cmd("PEXPIRE").arg("n").arg(ttl_ms));
    };
    foreign(60_000);
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().lease_time(MINUTE).await.unwrap() }
    });
    eventually_async(LONG, || script_calls(&server) >= 3).await;
    let _: () = query(&server, redis::cmd("DEL").arg("n"));
    let _: () = query(
        &server,
        redis::cmd("PUBLISH").arg("redisson_lock__channel:{n}").arg("0"),
    );
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by the message")
        .unwrap();
    lease.release().await.unwrap();

    foreign(300);
    let lease = tokio::time::timeout(LONG, lock.acquire().into_future())
        .await
        .expect("the holder's lease ends")
        .unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn what_is_no_lock_is_refused_by_name_and_left_alone() {
    let server = fresh_server();
    let locks = client(&server).await;
    let _: () = query(&server, redis::cmd("SET").arg("s").arg("x"));
    let _: i64 = query(&server, redis::cmd("LPUSH").arg("l").arg("m"));
    let _: i64 = query(&server, redis::cmd("HSET").arg("h").arg("f").arg("notanumber"));
    for name in ["s", "l"] {
        for error in [
            locks.reentrant(name).acquire().await.unwrap_err(),
            locks.reentrant(name).try_acquire().await.unwrap_err(),
        ] {
            assert!(matches!(&error, AcquireError::Refused { .. }), "{error:?}");
            assert!(error.to_string().starts_with(name) && !error.is_retryable());
        }
        assert!(locks.admin().force_release(name).await.is_err());
        assert!(
            locks
                .admin()
                .inspect(name)
                .await
                .unwrap_err()
                .to_string()
                .contains("is no lock")
        );
    }
    let error = locks.reentrant("h").acquire().await.unwrap_err();
    assert!(matches!(&error, AcquireError::NoTimeToLive { .. }), "{error:?}");
    assert_eq!(keys(&server), ["h", "l", "s"]);
    assert_eq!(query::<String>(&server, redis::cmd("GET").arg("s")), "x");
    assert!(is_idle(&locks));
}

#[tokio::test]
async fn an_empty_name_is_refused_before_anything_is_sent() {
    let server = fresh_server();
    let locks = client(&server).await;
    let before = script_calls(&server);
    assert!(matches!(
        locks.reentrant("").acquire().await,
        Err(AcquireError::EmptyName)
    ));
    assert!(matches!(
        locks.reentrant("").try_acquire().await,
        Err(AcquireError::EmptyName)
    ));
    assert!(locks.admin().inspect("").await.is_err() && locks.admin().force_release("").await.is_err());
    assert_eq!(script_calls(&server), before);
}

#[tokio::test]
async fn a_busy_lock_ends_the_wait_with_its_limit_and_a_clear_error() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("n").acquire().await.unwrap();
    let limit = Duration::from_millis(300);
    let error = locks.reentrant("n").acquire().wait_limit(limit).await.unwrap_err();
    let AcquireError::WaitLimit { name, waited } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "n");
    assert!(*waited >= limit);
    assert!(error.is_retryable() && !error.outcome_unknown());
    assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".into())]);
    eventually_async(LONG, || locks.stats().subscriptions == 0).await;
    drop(lease);
}

#[tokio::test]
async fn a_wait_limit_of_zero_is_a_single_attempt() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.reentrant("n").acquire().wait_limit(Duration::ZERO).await.unwrap();
    let before = script_calls(&server);
    assert!(locks.reentrant("n").acquire().wait_limit(Duration::ZERO).await.is_err());
    assert_eq!(script_calls(&server), before + 1);
    drop(lease);
}

#[tokio::test]
async fn a_held_lock_is_renewed_and_a_given_lease_time_is_not() {
    let server = fresh_server();
    let locks = client(&server).await;
    let renewed = locks.reentrant("renewed").acquire().await.unwrap();
    let fixed = locks.reentrant("fixed").acquire().lease_time(WATCHDOG).await.unwrap();
    eventually_async(LONG, || pttl(&server, "fixed") == -2).await;
    assert_eq!(fixed.lost().await, LostReason::DeadlinePassed);
    assert!(renewed.is_valid() && pttl(&server, "renewed") > 0);
    renewed.release().await.unwrap();
    assert!(matches!(fixed.release().await, Err(ReleaseError::Lost { .. })));
}
