//! Lease times: what is given is what Redis keeps, nothing leaks from one acquire to the next, nonsense is refused.

use std::time::Duration;

use leasehold::{AcquireError, BuildError, Locks, Margin, RenewalPolicy};
use tests::{WATCHDOG, client, eventually_async, fresh_server, keys, pttl, script_calls, settings};

#[tokio::test]
async fn a_lease_time_is_of_one_acquire_alone() {
    // G48
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.reentrant("n");
    let hour = lock.acquire().lease_time(Duration::from_secs(3_600)).await.unwrap();
    assert!(pttl(&server, "n") > 3_500_000);
    hour.release().await.unwrap();
    let renewed = lock.acquire().await.unwrap();
    assert!(pttl(&server, "n") <= WATCHDOG.as_millis() as i64);
    renewed.release().await.unwrap();

    let other = locks.reentrant("other");
    let (short, long) = tokio::join!(
        lock.acquire().lease_time(Duration::from_secs(20)).into_future(),
        other.acquire().lease_time(Duration::from_secs(2_000)).into_future()
    );
    assert!(pttl(&server, "n") <= 20_000 && pttl(&server, "other") > 1_000_000);
    drop((short, long));
}

#[tokio::test]
async fn nonsense_is_refused_before_anything_is_sent() {
    // G50, G51
    let server = fresh_server();
    let locks = client(&server).await;
    let held = locks
        .reentrant("held")
        .acquire()
        .lease_time(Duration::from_secs(60))
        .await
        .unwrap();
    let before = script_calls(&server);
    let never = [
        Duration::ZERO,
        Duration::MAX,
        Duration::from_millis(u64::MAX),
        Duration::from_millis(i64::MAX as u64),
        Duration::from_secs(292 * 365 * 86_400),
        Duration::from_millis((1 << 53) + 1),
    ];
    for lease_time in never {
        let lock = locks.reentrant("n");
        assert!(
            matches!(lock.acquire().lease_time(lease_time).await, Err(AcquireError::Times(_))),
            "{lease_time:?}"
        );
        assert!(matches!(
            lock.try_acquire().lease_time(lease_time).await,
            Err(AcquireError::Times(_))
        ));
        assert!(matches!(
            held.reenter().lease_time(lease_time).await,
            Err(AcquireError::Times(_))
        ));
    }
    let mut policy = RenewalPolicy::deadline();
    policy.margin = Margin::Fixed(WATCHDOG);
    assert!(matches!(
        locks.reentrant("n").acquire().renewal(policy.clone()).await,
        Err(AcquireError::Times(_))
    ));
    assert_eq!(script_calls(&server), before);
    assert_eq!(held.hold_count(), 1);
    assert_eq!(keys(&server), ["held"]);
    for builder in [
        settings(&server).watchdog_time(Duration::ZERO),
        settings(&server).watchdog_time(Duration::MAX),
        settings(&server).watchdog_time(Duration::from_millis(2)),
        settings(&server).command_timeout(Duration::ZERO),
        settings(&server).renewal(policy),
    ] {
        let error = builder.build().await.unwrap_err();
        assert!(matches!(error, BuildError::Times(_)), "{error:?}");
    }
    drop(held);
}

#[tokio::test]
async fn a_hundred_days_are_kept_to_the_second_and_through_re_entry_and_release() {
    // G51
    let server = fresh_server();
    let locks = client(&server).await;
    let days = Duration::from_secs(100 * 86_400);
    let near = |ttl: i64| (days.as_millis() as i64 - 60_000..=days.as_millis() as i64).contains(&ttl);
    let lease = locks
        .reentrant("n")
        .acquire()
        .lease_time(days)
        .wait_limit(Duration::MAX)
        .await
        .unwrap();
    assert!(near(pttl(&server, "n")));
    let again = lease.reenter().lease_time(days).await.unwrap();
    assert!(near(pttl(&server, "n")));
    again.release().await.unwrap();
    assert!(near(pttl(&server, "n")));
    assert!(lease.remaining() > Duration::from_secs(80 * 86_400));
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_shorter_than_a_millisecond_is_rounded_up() {
    let server = fresh_server();
    let locks = client(&server).await;
    let result = locks
        .reentrant("n")
        .acquire()
        .lease_time(Duration::from_nanos(1))
        .wait_limit(Duration::from_millis(50))
        .await;
    // A millisecond is shorter than a round trip may take, so either is right; that nothing stays is what counts.
    drop(result);
    eventually_async(Duration::from_secs(30), || pttl(&server, "n") == -2).await;
}

#[tokio::test]
async fn a_client_is_not_built_where_no_redis_answers() {
    let error = Locks::connect("redis://127.0.0.1:1/").await.unwrap_err();
    assert!(matches!(error, BuildError::Unreachable { .. }), "{error:?}");
    let error = Locks::connect("redis://user:secret@127.0.0.1:1/").await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    let error = Locks::connect("http://127.0.0.1/").await.unwrap_err();
    assert!(error.to_string().contains("redis://host:port/"), "{error}");
}
