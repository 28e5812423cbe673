//! How a hold ends other than by its release.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Event, EventKind, ExtendError, Lease, LockKind, LostReason, Observer, ReleaseError};
use tests::{LONG, eventually_async, pttl, query};

use super::{Bench, LEASE, MINUTE, PERIOD, Subject, for_a_minute, hold, over_all, plain};

async fn loss(lease: &Lease) -> LostReason {
    let told = tokio::time::timeout(LONG, lease.lost()).await;
    assert!(!lease.is_valid());
    told.expect("the holder is told")
}

pub(super) async fn a_deleted_key_is_told_and_not_created_again(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lease = hold(&*subject.of(&bench.here), plain()).await;
    bench.everywhere(redis::cmd("DEL").arg("n"));
    assert_eq!(loss(&lease).await, LostReason::NotOwner);
    assert!(!bench.is_held().await);
    let released = lease.release().await.unwrap_err();
    assert!(matches!(
        released,
        ReleaseError::Lost {
            reason: LostReason::NotOwner,
            ..
        }
    ));
    assert!(!bench.is_held().await);
}

pub(super) async fn a_held_lock_is_renewed(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lease = hold(&*subject.of(&bench.here), plain()).await;
    // Without renewal less would be left each time.
    let shortly = |key: &str| query::<()>(bench.server(), redis::cmd("PEXPIRE").arg(key).arg(5_000));
    for _ in 0..3 {
        tests::keys(bench.server())
            .iter()
            .filter(|key| pttl(bench.server(), key) > 0)
            .for_each(|key| shortly(key));
        eventually_async(LONG, || bench.time_left() > 10_000).await;
    }
    assert!(lease.is_valid() && lease.remaining() > LEASE / 2);
    let rival = subject.rival(&bench.there);
    assert!(rival.try_acquire_with(plain()).await.unwrap().is_none());
    lease.release().await.unwrap();
    assert!(bench.is_free(subject).await);
}

pub(super) async fn a_given_lease_time_ends_the_hold_and_tells(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lease = hold(
        &*subject.of(&bench.here),
        plain().lease_time(Duration::from_millis(300)),
    )
    .await;
    assert_eq!(loss(&lease).await, LostReason::DeadlinePassed);
    let next = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    drop(lease);
    next.release().await.unwrap();
}

/// G44: the release of a holder that overran its lease freed the lock of the next.
pub(super) async fn a_holder_that_overran_its_lease_harms_not_the_next(subject: Subject) {
    let bench = Bench::new(subject).await;
    let stale = hold(
        &*subject.of(&bench.here),
        plain().lease_time(Duration::from_millis(1_500)),
    )
    .await;
    let stale_too = stale.reenter().lease_time(Duration::from_millis(100)).await.unwrap();
    loss(&stale).await;
    let next = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let fields = bench.fields().await;
    assert!(matches!(stale.release().await, Err(ReleaseError::Lost { .. })));
    drop(stale_too);
    eventually_async(LONG, || tests::is_idle(&bench.here)).await;
    assert_eq!(bench.fields().await, fields);
    assert!(bench.time_left() > 40_000 && next.is_valid());
    next.release().await.unwrap();
}

/// G47: after a forced release waiters slept on, and the holder's renewal went on or revived the key.
pub(super) async fn a_forced_release_wakes_waiters_and_tells_the_holder(subject: Subject) {
    let bench = Bench::new(subject).await;
    let patient = bench.patient().await;
    let held = hold(&*subject.of(&bench.here), plain()).await;
    let long_held = held.reenter().lease_time(MINUTE).await.unwrap();
    let before = tests::script_calls(bench.server());
    let rival = subject.rival(&patient);
    let waiting = tokio::spawn(async move { hold(&*rival, for_a_minute()).await });
    eventually_async(LONG, || tests::channels(bench.server()).len() + waits(subject) > 0).await;
    eventually_async(LONG, || tests::script_calls(bench.server()) >= before + 2).await;
    assert!(bench.force_release().await);
    let next = waiting.await.unwrap();
    assert_eq!(loss(&held).await, LostReason::NotOwner);
    let fields = bench.fields().await;
    drop((held, long_held));
    eventually_async(LONG, || tests::is_idle(&bench.here)).await;
    assert_eq!(bench.fields().await, fields, "neither revived nor freed");
    next.release().await.unwrap();
    assert!(bench.is_free(subject).await, "{:?}", tests::keys(bench.server()));
    assert!(!bench.force_release().await);
}

/// Those that ask at intervals need no channel.
fn waits(subject: Subject) -> usize {
    usize::from(matches!(subject.kind, LockKind::Spin | LockKind::Quorum))
}

/// G69: repeated extensions added up to hours.
pub(super) async fn an_extension_sets_the_time_left_and_neither_adds_nor_shortens(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let given = hold(&*lock, plain().lease_time(Duration::from_secs(20))).await;
    for _ in 0..3 {
        given.extend(MINUTE).await.unwrap();
    }
    let left = bench.time_left();
    assert!((40_000..=60_000).contains(&left), "{left}");
    assert!(given.remaining() > Duration::from_secs(40) && given.remaining() <= MINUTE);
    given.extend(Duration::from_secs(1)).await.unwrap();
    assert!(bench.time_left() > 40_000 && given.remaining() > Duration::from_secs(40));
    given.release().await.unwrap();

    // One that is renewed, and held twice.
    let renewed = hold(&*lock, plain()).await;
    let again = renewed.reenter().await.unwrap();
    renewed.extend(MINUTE).await.unwrap();
    assert!((40_000..=60_000).contains(&bench.time_left()));
    // Of several masters, each lease may count on others; the last learns of it a little later.
    eventually_async(LONG, || again.remaining() > Duration::from_secs(40)).await;
    assert_eq!(again.hold_count(), 2);
    tokio::time::sleep(4 * PERIOD).await;
    assert!(bench.time_left() > 40_000, "a renewal does not shorten it");
    again.release().await.unwrap();
    renewed.release().await.unwrap();
    assert!(bench.is_free(subject).await, "{:?}", tests::keys(bench.server()));
}

/// G68: extending an expired lock revived it, although another could have been in.
pub(super) async fn an_extension_of_what_has_ended_revives_nothing(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let deleted = hold(&*lock, for_a_minute()).await;
    bench.everywhere(redis::cmd("DEL").arg("n"));
    let refused = deleted.extend(MINUTE).await.unwrap_err();
    assert!(
        matches!(
            refused,
            ExtendError::Lost {
                reason: LostReason::NotOwner,
                ..
            }
        ),
        "{refused}"
    );
    assert!(!bench.is_held().await && !deleted.is_valid());
    assert_eq!(loss(&deleted).await, LostReason::NotOwner);
    drop(deleted);

    let expired = hold(&*lock, plain().lease_time(Duration::from_millis(200))).await;
    loss(&expired).await;
    let next = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let fields = bench.fields().await;
    assert!(matches!(expired.extend(MINUTE).await, Err(ExtendError::Lost { .. })));
    assert_eq!(bench.fields().await, fields);
    drop(expired);
    next.release().await.unwrap();

    // Held by another in between, and free again.
    let expired = hold(&*lock, plain().lease_time(Duration::from_millis(200))).await;
    loss(&expired).await;
    hold(&*subject.rival(&bench.there), for_a_minute())
        .await
        .release()
        .await
        .unwrap();
    assert!(matches!(expired.extend(MINUTE).await, Err(ExtendError::Lost { .. })));
    assert!(!bench.is_held().await);
    drop(expired);

    let held = hold(&*lock, plain()).await;
    assert!(matches!(held.extend(Duration::ZERO).await, Err(ExtendError::Times(_))));
    assert!(held.is_valid());
    held.release().await.unwrap();
}

/// Remembers why leases were lost.
#[derive(Default)]
struct Losses(Mutex<Vec<LostReason>>);

impl Observer for Losses {
    fn event(&self, event: &Event) {
        if let EventKind::Lost { reason } = event.kind {
            self.0.lock().unwrap().push(reason);
        }
    }
}

pub(super) async fn a_longest_hold_ends_on_both_sides_and_is_told(subject: Subject) {
    let bench = Bench::new(subject).await;
    let losses = Arc::new(Losses::default());
    let settings = over_all(&bench.servers).watchdog_time(Duration::from_secs(4));
    let here = settings.observer(losses.clone()).build().await.unwrap();
    // Any renewal after the first second covers the rest.
    let limit = Duration::from_secs(5);
    let lease = hold(&*subject.of(&here), plain().max_hold(limit)).await;
    // Neither a re-entry nor an extension goes beyond it.
    let again = lease.reenter().await.unwrap();
    lease.extend(MINUTE).await.unwrap();
    let left = |lease: &Lease| lease.remaining() <= limit;
    assert!(left(&lease) && left(&again));
    assert_eq!(loss(&lease).await, LostReason::MaxHold);
    let next = hold(&*subject.rival(&bench.there), plain()).await;
    next.release().await.unwrap();
    let told = vec![LostReason::MaxHold; subject.masters];
    eventually_async(LONG, || *losses.0.lock().unwrap() == told).await;
    drop((lease, again));
}

pub(super) async fn a_longest_hold_within_one_lease_ends_too(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let lease = hold(&*lock, plain().max_hold(Duration::from_millis(400))).await;
    assert!(bench.time_left() <= 400);
    assert_eq!(loss(&lease).await, LostReason::MaxHold);
    drop(lease);
    let given_back = hold(&*lock, plain().max_hold(MINUTE)).await;
    given_back.release().await.unwrap();
    eventually_async(LONG, || bench.looks_free(subject)).await;
}
