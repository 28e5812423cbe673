//! What a client tells about its leases: each change once, in order, and a slow reader holds nothing up.

use std::time::Duration;

use leasehold::{Event, EventKind, Events, Locks, LostReason, Missed};
use leasehold_bench::proxy::{Mode, Proxy};
use tests::{LONG, WATCHDOG, client, eventually_async, fresh_server, pttl, query, renewed_or_lost};

/// The next event of this sort; others are read over.
async fn next(events: &mut Events, wanted: impl Fn(&EventKind) -> bool) -> Event {
    let reading = async {
        loop {
            let event = events
                .next()
                .await
                .expect("the client lives")
                .expect("nothing was missed");
            if wanted(&event.kind) {
                return event;
            }
        }
    };
    tokio::time::timeout(LONG, reading).await.expect("it happens")
}

#[tokio::test]
async fn a_risk_a_late_renewal_and_the_recovery_are_told_in_order() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let watchdog = Duration::from_secs(9);
    let locks = Locks::builder()
        .standalone(&leg.url())
        .watchdog_time(watchdog)
        .build()
        .await
        .unwrap();
    let mut events = locks.events();
    let lease = locks.reentrant("n").acquire().await.unwrap();
    leg.switch(Mode::Refuse).unwrap();
    let risk = next(&mut events, |kind| matches!(kind, EventKind::AtRisk { .. })).await;
    assert_eq!((risk.name.as_bytes(), &risk.holder), (&b"n"[..], lease.holder()));
    // Due after a third, trusted for nine tenths: now more than half of the time between is gone.
    let soon = watchdog * 5 / 18;
    eventually_async(LONG, || lease.remaining() < soon).await;
    leg.switch(Mode::Pass).unwrap();
    let late = next(&mut events, |kind| matches!(kind, EventKind::RenewedLate { .. })).await;
    assert!(
        matches!(late.kind, EventKind::RenewedLate { left } if left < soon),
        "{late:?}"
    );
    next(&mut events, |kind| *kind == EventKind::Recovered).await;
    // And a renewal in time is not late.
    next(&mut events, |kind| matches!(kind, EventKind::Renewed { .. })).await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_loss_and_the_end_of_the_longest_hold_are_told_with_their_reasons() {
    let server = fresh_server();
    let locks = client(&server).await;
    let mut events = locks.events();
    let lease = locks.reentrant("deleted").acquire().await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("deleted"));
    let lost = next(&mut events, |kind| matches!(kind, EventKind::Lost { .. })).await;
    let reason = LostReason::NotOwner;
    assert_eq!(
        (lost.name.to_string().as_str(), lost.kind),
        ("deleted", EventKind::Lost { reason })
    );
    drop(lease);

    let lease = locks.reentrant("long").acquire().max_hold(WATCHDOG / 2).await.unwrap();
    let lost = next(&mut events, |kind| matches!(kind, EventKind::Lost { .. })).await;
    let reason = LostReason::MaxHold;
    assert_eq!(
        (lost.name.to_string().as_str(), lost.kind),
        ("long", EventKind::Lost { reason })
    );
    drop(lease);
}

#[tokio::test]
async fn a_lease_that_is_dropped_is_told_and_one_that_is_released_or_lost_is_not() {
    let server = fresh_server();
    let locks = client(&server).await;
    let mut events = locks.events();
    locks
        .reentrant("released")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let lost = locks.reentrant("lost").acquire().await.unwrap();
    let _: i64 = query(&server, redis::cmd("DEL").arg("lost"));
    lost.lost().await;
    drop(lost);
    drop(locks.reentrant("dropped").acquire().await.unwrap());
    let dropped = next(&mut events, |kind| *kind == EventKind::Dropped).await;
    assert_eq!(dropped.name.to_string(), "dropped");
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_nothing_up_and_is_told_what_it_missed() {
    let server = fresh_server();
    let locks = client(&server).await;
    let mut events = locks.events();
    let held = locks.reentrant("held").acquire().await.unwrap();
    let lock = locks.reentrant("n");
    for _ in 0..KEPT + 200 {
        drop(lock.acquire().await.unwrap());
    }
    renewed_or_lost(&held).await;
    assert!(held.is_valid() && pttl(&server, "held") > 0, "the watchdog goes on");
    eventually_async(LONG, || locks.stats().releases == 0).await;
    let Some(Err(Missed { events: missed })) = events.next().await else {
        panic!("more has happened than is kept")
    };
    assert!(missed >= 200, "{missed}");
    next(&mut events, |kind| *kind == EventKind::Dropped).await;
    drop((held, lock));
    drop(locks);
    let rest = async { while events.next().await.is_some() {} };
    tokio::time::timeout(LONG, rest)
        .await
        .expect("the events end with the client");
}

/// How many events a client keeps for a slow reader.
const KEPT: usize = 1024;
