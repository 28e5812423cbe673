//! A held lock goes on in other hands.

use std::time::Duration;

use leasehold::{AdoptError, HandOffError, LostReason, Released};
use tests::{LONG, eventually_async, is_idle, keys, pttl, query};

use super::{Bench, LEASE, MINUTE, PERIOD, Subject, for_a_minute, hold, plain};

pub(super) async fn what_is_handed_off_goes_on_elsewhere_and_only_once(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lease = hold(&*subject.of(&bench.here), plain()).await;
    // What a majority does not need may come later.
    eventually_async(LONG, || lease.masters_held() == subject.masters).await;
    let (token, holder) = (lease.fencing_token(), lease.holder().to_string());
    let states = lease.state();
    let handed_off = lease.hand_off().await.unwrap();
    assert_eq!((handed_off.kind(), handed_off.fencing_token()), (subject.kind, token));
    assert!(handed_off.remaining() > Duration::ZERO && handed_off.remaining() <= LEASE);
    assert_eq!(*states.borrow(), leasehold::LeaseState::Released);
    eventually_async(LONG, || is_idle(&bench.here)).await;
    assert!(bench.is_held().await, "nobody gives it back");
    let rivals = [subject.rival(&bench.here), subject.rival(&bench.there)];
    for rival in &rivals {
        assert!(rival.try_acquire_with(plain()).await.unwrap().is_none());
    }

    let adopted = bench.there.adopt(&handed_off).await.unwrap();
    assert_eq!((adopted.hold_count(), adopted.fencing_token()), (1, token));
    assert_ne!(adopted.holder().to_string(), holder);
    let fields = bench.fields().await;
    for late in [&bench.here, &bench.there] {
        let refused = late.adopt(&handed_off).await.unwrap_err();
        assert!(matches!(refused, AdoptError::Gone { .. }), "{refused}");
        assert!(!refused.is_retryable() && !refused.outcome_unknown());
    }
    assert_eq!(bench.fields().await, fields, "who comes late changes nothing");

    // It is renewed, entered again and given back like any other.
    for _ in 0..2 {
        let all = keys(bench.server());
        all.iter()
            .filter(|key| pttl(bench.server(), key) > 0)
            .for_each(|key| query::<()>(bench.server(), redis::cmd("PEXPIRE").arg(key).arg(5_000)));
        eventually_async(LONG, || pttl(bench.server(), "n") > 10_000).await;
    }
    let again = adopted.reenter().await.unwrap();
    for rival in &rivals {
        assert!(rival.try_acquire_with(plain()).await.unwrap().is_none());
    }
    assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
    assert!(adopted.is_valid());
    assert_eq!(adopted.release().await.unwrap(), Released::Fully);
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));
}

pub(super) async fn only_the_last_lease_is_handed_off(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lease = hold(&*subject.of(&bench.here), plain()).await;
    let again = lease.reenter().await.unwrap();
    let lease = match lease.hand_off().await.unwrap_err() {
        HandOffError::HeldAgain { lease } => lease,
        other => panic!("{other}"),
    };
    assert!(lease.is_valid() && lease.hold_count() == 2);
    drop(lease);
    // The release of the other may still be on its way: it must not give back what was handed off.
    let handed_off = again.hand_off().await.unwrap();
    eventually_async(LONG, || is_idle(&bench.here)).await;
    let adopted = bench.here.adopt(&handed_off).await.unwrap();
    assert_eq!(adopted.release().await.unwrap(), Released::Fully);
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));

    let lost = hold(&*subject.of(&bench.here), plain()).await;
    bench.everywhere(redis::cmd("DEL").arg("n"));
    assert_eq!(
        tokio::time::timeout(LONG, lost.lost()).await.unwrap(),
        LostReason::NotOwner
    );
    let refused = lost.hand_off().await.unwrap_err();
    assert!(
        matches!(refused, HandOffError::Lost { .. }) && !refused.is_retryable(),
        "{refused}"
    );
}

pub(super) async fn what_is_handed_off_ends_when_its_lease_does(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let never = hold(&*lock, plain().lease_time(Duration::from_millis(700))).await;
    let handed_off = never.hand_off().await.unwrap();
    let next = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let fields = bench.fields().await;
    let refused = bench.here.adopt(&handed_off).await.unwrap_err();
    assert!(matches!(refused, AdoptError::Gone { .. }), "{refused}");
    assert_eq!(bench.fields().await, fields);
    next.release().await.unwrap();

    // A lease time of one's own is not made longer on the way, and a longest hold goes on.
    let fixed = hold(&*lock, for_a_minute()).await;
    let adopted = bench.there.adopt(&fixed.hand_off().await.unwrap()).await.unwrap();
    assert!(adopted.remaining() <= MINUTE && adopted.remaining() > MINUTE / 2);
    tokio::time::sleep(4 * PERIOD).await;
    assert!(bench.time_left() <= 60_000 && bench.time_left() > 30_000);
    adopted.release().await.unwrap();
    let limited = hold(&*lock, plain().max_hold(LEASE + Duration::from_secs(1))).await;
    let handed_off = limited.hand_off().await.unwrap();
    let adopted = bench.there.adopt(&handed_off).await.unwrap();
    adopted.extend(MINUTE).await.unwrap();
    assert!(adopted.remaining() <= LEASE + Duration::from_secs(1));
    adopted.release().await.unwrap();
}
