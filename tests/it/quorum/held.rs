//! What a majority does while it is held: re-entry, extension, repair, loss.

use std::time::Duration;

use leasehold::{AcquireError, ExtendError, LeaseState, LostReason, Quorum, ReleaseError, Released};
use leasehold_bench::proxy::Mode;
use tests::{LONG, WATCHDOG, direct, eventually_async, holders, is_idle, keys, pttl, query, script_calls};

use super::{MINUTE, Nodes};

#[tokio::test]
async fn a_majority_lost_is_told_and_a_minority_is_repaired() {
    // G63: nodes that come back empty, one after the other, and then two at once.
    let nodes = Nodes::start(5);
    let clients = nodes.clients().await;
    let rivals = Quorum::over(nodes.clients().await).unwrap().reentrant("n");
    let lease = Quorum::over(clients).unwrap().reentrant("n").acquire().await.unwrap();
    eventually_async(LONG, || lease.masters_held() == 5).await;
    for index in 0..3 {
        let _: () = query(&nodes.servers[index], redis::cmd("FLUSHALL").arg("SYNC"));
        let rival = rivals.acquire().wait_limit(Duration::ZERO).await;
        assert!(rival.is_err(), "four of five are still held");
        eventually_async(LONG, || nodes.held_on("n") == 5 && lease.masters_held() == 5).await;
        assert!(lease.is_valid());
    }
    // Connected beforehand, so that none is repaired before the last is gone.
    let mut connections: Vec<_> = nodes.servers[..3].iter().map(direct).collect();
    for connection in &mut connections {
        redis::cmd("FLUSHALL").arg("SYNC").exec(connection).unwrap();
    }
    let reason = tokio::time::timeout(LONG, lease.lost())
        .await
        .expect("at the next renewal");
    assert_eq!(reason, LostReason::NotOwner);
    assert!(!lease.is_valid());
    assert!(lease.run(std::future::pending::<()>()).await.is_err());
    assert!(lease.release().await.is_err());
    eventually_async(LONG, || nodes.held_on("n") == 0).await;
}

#[tokio::test]
async fn a_lease_time_of_ones_own_ends_and_is_not_repaired() {
    let nodes = Nodes::start(3);
    let clients = nodes.clients().await;
    let lock = Quorum::over(clients.clone()).unwrap().reentrant("n");
    let lease = lock.acquire().lease_time(WATCHDOG).await.unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, lease.lost()).await.unwrap(),
        LostReason::DeadlinePassed
    );
    eventually_async(LONG, || nodes.held_on("n") == 0).await;
    tokio::time::sleep(WATCHDOG).await;
    assert!(
        nodes
            .servers
            .iter()
            .all(|server| keys(server).is_empty() && pttl(server, "n") == -2)
    );
    // G75: releasing what had expired was tried again for seconds. One call to each master, and the truth.
    let calls = || -> Vec<u64> { nodes.servers.iter().map(script_calls).collect() };
    let before = calls();
    let refused = lease.release().await.unwrap_err();
    assert!(
        matches!(refused, ReleaseError::Lost { .. }) && !refused.is_retryable(),
        "{refused}"
    );
    eventually_async(LONG, || clients.iter().all(is_idle)).await;
    assert!(calls().iter().zip(before).all(|(after, before)| *after <= before + 1));
}

#[tokio::test]
async fn its_owner_enters_again_on_the_same_masters() {
    let nodes = Nodes::start(3);
    let locks = nodes.client().await;
    let (lock, rival) = (
        locks.quorum().reentrant("n"),
        nodes.client().await.quorum().reentrant("n"),
    );
    let owner = locks.owner();
    let first = lock.acquire().owner(&owner).await.unwrap();
    let second = first.reenter().await.unwrap();
    let third = lock
        .try_acquire()
        .owner(&first.owner())
        .await
        .unwrap()
        .expect("its own");
    assert_eq!((first.hold_count(), third.owner()), (3, owner.clone()));
    let refused = lock.acquire().owner(&owner).no_reentry().await.unwrap_err();
    assert!(matches!(refused, AcquireError::AlreadyHeld { .. }), "{refused}");
    assert_eq!(second.release().await.unwrap(), Released::StillHeld(2));
    assert_eq!(first.release().await.unwrap(), Released::StillHeld(1));
    assert!(rival.try_acquire().await.unwrap().is_none());
    assert_eq!(third.release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || nodes.held_on("n") == 0 && is_idle(&locks)).await;
}

#[tokio::test]
async fn an_owner_whose_master_came_back_empty_is_repaired_with_all_its_leases() {
    let nodes = Nodes::start(3);
    let locks = nodes.client().await;
    let first = locks.quorum().reentrant("n").acquire().await.unwrap();
    let second = first.reenter().await.unwrap();
    eventually_async(LONG, || first.masters_held() == 3 && second.masters_held() == 3).await;
    let _: () = query(&nodes.servers[1], redis::cmd("FLUSHALL").arg("SYNC"));
    eventually_async(LONG, || second.masters_held() < 3).await;
    eventually_async(LONG, || first.masters_held() == 3 && second.masters_held() == 3).await;
    assert_eq!(holders(&nodes.servers[1], "n")[0].1, "2");
    assert_eq!(first.release().await.unwrap(), Released::StillHeld(1));
    assert!(second.is_valid());
    assert_eq!(second.release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || nodes.held_on("n") == 0 && is_idle(&locks)).await;
}

/// G65: extending and giving back with one of three masters down raised an error.
#[tokio::test]
async fn it_is_extended_and_given_back_while_a_majority_answers() {
    let nodes = Nodes::start(3);
    let clients = nodes.clients_on_legs().await;
    for mode in [Mode::Refuse, Mode::Swallow] {
        let lock = Quorum::over(clients.clone()).unwrap().reentrant("n");
        let lease = lock.acquire().wait_limit(LONG).await.unwrap();
        eventually_async(LONG, || lease.masters_held() == 3).await;
        nodes.legs[1].switch(mode).unwrap();
        lease.extend(MINUTE).await.expect("a majority answers");
        assert!(lease.remaining() > MINUTE * 2 / 3);
        nodes.legs[2].switch(mode).unwrap();
        let error = lease.extend(MINUTE * 2).await.unwrap_err();
        assert!(
            matches!(error, ExtendError::Call { .. }) && error.is_retryable(),
            "{error}"
        );
        assert!(lease.is_valid() && lease.remaining() < MINUTE);
        nodes.legs[2].switch(Mode::Pass).unwrap();
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
        nodes.legs[1].switch(Mode::Pass).unwrap();
        eventually_async(LONG, || nodes.held_on("n") == 0 && clients.iter().all(is_idle)).await;
    }
}

/// G65: one that answers, but only that it may not do it now.
#[tokio::test]
async fn a_master_that_refuses_all_writes_is_no_hindrance() {
    let nodes = Nodes::start(3);
    let locks = nodes.client().await;
    let _: () = query(&nodes.servers[1], redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1));
    let lease = locks.quorum().reentrant("n").acquire().await.unwrap();
    lease.extend(MINUTE).await.unwrap();
    assert_eq!((lease.masters_held(), nodes.held_on("n")), (2, 2));
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    let _: () = query(&nodes.servers[2], redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1));
    let limit = Duration::from_millis(300);
    let error = locks
        .quorum()
        .reentrant("n")
        .acquire()
        .wait_limit(limit)
        .await
        .unwrap_err();
    let AcquireError::NoQuorum { masters, .. } = &error else {
        panic!("{error:?}");
    };
    let read_only = |reason: &Option<String>| reason.as_ref().is_some_and(|reason| reason.contains("READONLY"));
    assert!(masters[1..].iter().all(read_only), "{error}");
    eventually_async(LONG, || nodes.held_on("n") == 0 && is_idle(&locks)).await;
}

#[tokio::test]
async fn what_no_majority_holds_any_more_is_neither_extended_nor_entered_again() {
    let nodes = Nodes::start(3);
    let locks = nodes.client().await;
    let lease = locks
        .quorum()
        .reentrant("n")
        .acquire()
        .lease_time(MINUTE)
        .await
        .unwrap();
    eventually_async(LONG, || lease.masters_held() == 3).await;
    for server in &nodes.servers[..2] {
        let _: i64 = query(server, redis::cmd("DEL").arg("n"));
    }
    let refused = lease.extend(MINUTE).await.unwrap_err();
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
    assert!(!lease.is_valid() && nodes.held_on("n") == 1);
    assert_eq!(*lease.state().borrow(), LeaseState::Lost(LostReason::NotOwner));
    let refused = lease.reenter().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Lost { .. }), "{refused}");
    assert_eq!(nodes.held_on("n"), 1);
    // The minority is given back with the lease.
    drop(lease);
    eventually_async(LONG, || nodes.held_on("n") == 0 && is_idle(&locks)).await;
}

#[tokio::test]
async fn failing_renewals_of_a_majority_are_told_and_one_that_was_lost_stays_lost() {
    let nodes = Nodes::start(3);
    let clients = nodes.clients_on_legs().await;
    let quorum = Quorum::over(clients).unwrap();
    let lease = quorum.reentrant("n").acquire().await.unwrap();
    eventually_async(LONG, || lease.masters_held() == 3).await;
    let mut states = lease.state();
    for leg in &nodes.legs[..2] {
        leg.switch(Mode::Refuse).unwrap();
    }
    let at_risk = states.wait_for(|state| matches!(state, LeaseState::AtRisk { .. }));
    tokio::time::timeout(LONG, at_risk).await.unwrap().unwrap();
    let lost = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(lost, LostReason::DeadlinePassed);
    for leg in &nodes.legs {
        leg.switch(Mode::Pass).unwrap();
    }
    let rival = Quorum::over(nodes.clients().await).unwrap().reentrant("n");
    let next = tokio::time::timeout(LONG, rival.acquire().into_future())
        .await
        .unwrap()
        .unwrap();
    assert!(!lease.is_valid() && next.is_valid());
    next.release().await.unwrap();
    tokio::time::sleep(WATCHDOG).await;
    assert!(!lease.is_valid(), "free masters do not bring it back");
}

#[tokio::test]
async fn a_longest_hold_ends_on_a_majority_and_on_what_was_repaired() {
    let nodes = Nodes::start(3);
    let (here, there) = (nodes.client().await, nodes.client().await);
    let lease = here
        .quorum()
        .reentrant("n")
        .acquire()
        .max_hold(WATCHDOG * 2)
        .await
        .unwrap();
    eventually_async(LONG, || lease.masters_held() == 3).await;
    let _: () = query(&nodes.servers[2], redis::cmd("FLUSHALL").arg("SYNC"));
    eventually_async(LONG, || nodes.held_on("n") == 3).await;
    assert!(lease.remaining() <= WATCHDOG * 2);
    let lost = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(lost, LostReason::MaxHold);
    let next = there.quorum().reentrant("n").acquire().wait_limit(LONG).await.unwrap();
    assert!(!lease.is_valid());
    next.release().await.unwrap();
}
