//! Holding, waiting, giving back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{AcquireError, Released, WithError};
use tests::{LONG, eventually_async, fresh_server, is_idle, keys, pttl, script_calls};

use super::{Bench, Subject, client, for_a_minute, hold, in_vain, plain, steady};

pub(super) async fn it_is_held_by_one_side_only_and_free_when_given_back(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    assert_eq!(
        (lock.kind(), lock.name().as_bytes()),
        (subject.kind, subject.shown("n").as_bytes())
    );
    let lease = hold(&*lock, plain()).await;
    assert!(lease.is_valid() && bench.is_held().await);
    let rivals = [subject.rival(&bench.here), subject.rival(&bench.there)];
    for rival in &rivals {
        assert!(rival.try_acquire_with(plain()).await.unwrap().is_none());
    }
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));
    for rival in &rivals {
        let lease = rival.try_acquire_with(plain()).await.unwrap().expect("it is free");
        lease.release().await.unwrap();
    }
}

pub(super) async fn a_busy_lock_is_an_answer_and_leaves_nothing(subject: Subject) {
    let bench = Bench::new(subject).await;
    let held = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let fields = bench.fields().await;
    for _ in 0..3 {
        let busy = subject.of(&bench.here).try_acquire_with(plain()).await.unwrap();
        assert!(busy.is_none());
    }
    assert_eq!(bench.fields().await, fields);
    assert!(is_idle(&bench.here));
    held.release().await.unwrap();
    assert!(bench.is_free(subject).await);
}

pub(super) async fn its_owner_enters_again_and_it_is_free_when_all_are_given_back(subject: Subject) {
    let bench = Bench::new(subject).await;
    let (lock, owner) = (subject.of(&bench.here), bench.here.owner());
    let first = hold(&*lock, plain().owner(&owner)).await;
    let second = hold(&*lock, plain().owner(&owner)).await;
    let third = lock
        .try_acquire_with(plain().owner(&owner))
        .await
        .unwrap()
        .expect("its own");
    assert_eq!((first.hold_count(), first.holder()), (3, third.holder()));
    assert_eq!(first.fencing_token(), third.fencing_token());
    assert_eq!(second.release().await.unwrap(), Released::StillHeld(2));
    assert_eq!(first.release().await.unwrap(), Released::StillHeld(1));
    let rival = subject.rival(&bench.there);
    assert!(rival.try_acquire_with(plain()).await.unwrap().is_none());
    assert_eq!(third.release().await.unwrap(), Released::Fully);
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));
}

pub(super) async fn re_entry_is_refused_at_once_where_it_is_ruled_out(subject: Subject) {
    let bench = Bench::new(subject).await;
    let (lock, owner) = (subject.of(&bench.here), bench.here.owner());
    let once = || plain().owner(&owner).no_reentry();
    let lease = hold(&*lock, once()).await;
    let fields = bench.fields().await;
    let refused = lock.acquire_with(once()).await.unwrap_err();
    assert!(matches!(refused, AcquireError::AlreadyHeld { .. }), "{refused}");
    assert!(!refused.is_retryable());
    let refused = lock.try_acquire_with(once()).await.unwrap_err();
    assert!(matches!(refused, AcquireError::AlreadyHeld { .. }), "{refused}");
    assert_eq!(bench.fields().await, fields);
    lease.release().await.unwrap();
    hold(&*lock, once()).await.release().await.unwrap();
}

pub(super) async fn a_wait_ends_at_its_limit_and_leaves_nothing(subject: Subject) {
    let bench = Bench::new(subject).await;
    let held = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let (fields, limit) = (bench.fields().await, Duration::from_millis(60));
    match in_vain(&*subject.of(&bench.here), limit).await {
        AcquireError::WaitLimit { waited, .. } => assert!(waited >= limit, "{waited:?}"),
        other => panic!("{other}"),
    }
    assert_eq!(bench.fields().await, fields);
    eventually_async(LONG, || is_idle(&bench.here)).await;
    assert_eq!(bench.fields().await, fields);
    held.release().await.unwrap();
    assert!(bench.is_free(subject).await);
}

pub(super) async fn a_release_reaches_a_waiter_long_before_the_lease_is_over(subject: Subject) {
    let bench = Bench::new(subject).await;
    let patient = bench.patient().await;
    for _ in 0..3 {
        let held = hold(&*subject.rival(&bench.there), for_a_minute()).await;
        let before = script_calls(bench.server());
        let lock = subject.of(&patient);
        let waiting = tokio::spawn(async move { hold(&*lock, for_a_minute()).await });
        eventually_async(LONG, || script_calls(bench.server()) >= before + 2).await;
        assert!(bench.time_left() > 40_000, "the lease is not what the waiter waits for");
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
    eventually_async(LONG, || is_idle(&patient)).await;
}

pub(super) async fn a_waiter_that_is_cancelled_leaves_nothing(subject: Subject) {
    let bench = Bench::new(subject).await;
    let held = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let fields = bench.fields().await;
    for attempts in 0..6 {
        let before = script_calls(bench.server());
        let lock = subject.of(&bench.here);
        let waiting = tokio::spawn(async move { hold(&*lock, for_a_minute()).await });
        eventually_async(LONG, || script_calls(bench.server()) >= before + attempts % 3).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
    }
    eventually_async(LONG, || is_idle(&bench.here)).await;
    assert_eq!(bench.fields().await, fields);
    held.release().await.unwrap();
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));
}

pub(super) async fn a_lease_that_is_dropped_gives_back(subject: Subject) {
    let bench = Bench::new(subject).await;
    drop(hold(&*subject.of(&bench.here), for_a_minute()).await);
    let next = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    next.release().await.unwrap();
    eventually_async(LONG, || bench.looks_free(subject) && is_idle(&bench.here)).await;
}

/// G73: the body of a scope helper ran although the lock was not got.
pub(super) async fn work_runs_under_the_lock_and_not_without_it(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let counted = lock.with(plain(), async |lease| lease.hold_count() + 1).await;
    assert_eq!(counted.unwrap(), 2);
    let elsewhere = tokio::spawn(async move { lock.with(plain(), async |lease| lease.is_valid()).await });
    assert!(elsewhere.await.unwrap().unwrap());
    let lock = subject.of(&bench.here);
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));

    let held = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let begun = AtomicBool::new(false);
    let options = plain().wait_limit(Duration::from_millis(20));
    let refused = lock.with(options, async |_| begun.store(true, Ordering::Relaxed)).await;
    assert!(matches!(refused, Err(WithError::Acquire(_))), "{refused:?}");
    assert!(!begun.load(Ordering::Relaxed));
    held.release().await.unwrap();

    let lost = lock
        .with(plain().lease_time(Duration::from_millis(500)), async |_| {
            std::future::pending::<()>().await
        })
        .await;
    assert!(matches!(lost, Err(WithError::Lost(_))));
    eventually_async(LONG, || bench.looks_free(subject)).await;
}

/// G54: helper keys stayed without an end after the lock was free.
pub(super) async fn every_helper_key_has_an_end_and_is_gone_with_the_lock(subject: Subject) {
    let bench = Bench::new(subject).await;
    let first = hold(&*subject.of(&bench.here), for_a_minute()).await;
    let again = first.reenter().await.unwrap();
    let other = subject.of(&bench.there).try_acquire_with(for_a_minute()).await.unwrap();
    for key in keys(bench.server()) {
        let stays = subject.keys_that_stay().contains(&key.as_str());
        assert!(stays || pttl(bench.server(), &key) > 0, "{key} has no end");
    }
    // One that nobody gives back goes with its lease.
    let dead = hold(
        &*subject.named(&bench.there, "dead"),
        plain().lease_time(Duration::from_millis(300)),
    )
    .await;
    std::mem::forget(dead);
    for lease in [again, first].into_iter().chain(other) {
        lease.release().await.unwrap();
    }
    eventually_async(LONG, || {
        let left = keys(bench.server());
        left.iter()
            .all(|key| key.starts_with("redisson_lock_token:") && !subject.keys_that_stay().is_empty())
    })
    .await;
}

pub(super) async fn a_mapped_name_is_the_key_and_the_given_one_is_shown(subject: Subject) {
    let server = fresh_server();
    let mapped = steady(&server).name_prefix("shop:").build().await.unwrap();
    let lock = subject.named(&mapped, "7");
    let lease = hold(&*lock, plain()).await;
    assert_eq!(
        (lock.name().to_string(), lease.name().to_string()),
        (subject.shown("7"), subject.shown("7"))
    );
    assert!(keys(&server).contains(&"shop:7".to_owned()));
    for key in keys(&server) {
        assert!(key.contains("shop:7"), "{key}");
    }
    // It is renewed, inspected and given back under its key.
    lease.extend(super::MINUTE).await.unwrap();
    assert!(pttl(&server, "shop:7") > 40_000);
    assert_eq!(mapped.admin().inspect("7").await.unwrap().unwrap().holders.len(), 1);
    let plain_client = client(&server).await;
    let same = plain_client.lock(subject.kind, "shop:7");
    assert!(same.try_acquire_with(plain()).await.unwrap().is_none());
    // A name that was mapped once is mapped afresh, not twice.
    let again = subject.named(&mapped, "7");
    assert_eq!(again.name(), lease.name());
    let reentered = lease.reenter().await.unwrap();
    let refused = subject.named(&mapped, "7");
    let owner = lease.owner();
    let error = refused
        .acquire_with(plain().owner(&owner).no_reentry())
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("{} ", subject.shown("7"))),
        "{error}"
    );
    reentered.release().await.unwrap();
    lease.release().await.unwrap();
    assert!(!keys(&server).contains(&"shop:7".to_owned()));
}
