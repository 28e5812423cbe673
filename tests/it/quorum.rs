//! The quorum lock over independent masters: a majority decides, a minority is given back, nobody waits for a node that hangs.

use std::time::Duration;

use leasehold::{
    AcquireError, AcquireOptions, BuildError, DowngradeError, ExtendError, LeaseState, LockKind, Locks, LostReason,
    Quorum, Released, RenewalPolicy,
};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::{LONG, WATCHDOG, client, direct, eventually_async, fresh_server, holders, is_idle, keys, pttl, query};

const MINUTE: Duration = Duration::from_secs(60);

/// Independent masters, each behind a leg of a proxy of its own.
struct Nodes {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
    legs: Vec<Leg>,
}

impl Nodes {
    fn start(count: usize) -> Self {
        let servers: Vec<RedisServer> = (0..count).map(|_| fresh_server()).collect();
        let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server).unwrap()).collect();
        let legs = proxies.iter().map(|proxy| proxy.leg().unwrap()).collect();
        Nodes { servers, proxies, legs }
    }

    /// The clients of one caller, straight to the servers.
    async fn clients(&self) -> Vec<Locks> {
        let mut clients = Vec::new();
        for server in &self.servers {
            clients.push(client(server).await);
        }
        clients
    }

    /// The clients of one caller, through the legs.
    async fn clients_on_legs(&self) -> Vec<Locks> {
        let mut clients = Vec::new();
        for leg in &self.legs {
            let locks = Locks::builder().standalone(&leg.url()).watchdog_time(WATCHDOG);
            clients.push(locks.build().await.unwrap());
        }
        clients
    }

    /// One client for all of them, straight to the servers.
    async fn client(&self) -> Locks {
        let urls: Vec<String> = self.servers.iter().map(RedisServer::url).collect();
        let builder = Locks::builder().standalone(&urls[0]).watchdog_time(WATCHDOG);
        let beside = urls[1..].iter().map(String::as_str);
        builder.masters_beside(beside).build().await.unwrap()
    }

    fn held_on(&self, name: &str) -> usize {
        self.servers
            .iter()
            .filter(|server| !holders(server, name).is_empty())
            .count()
    }
}

#[tokio::test]
async fn it_is_held_on_every_node_renewed_and_given_back_everywhere() {
    let nodes = Nodes::start(3);
    let clients = nodes.clients().await;
    let quorum = Quorum::over(clients.clone()).unwrap();
    let lease = quorum.reentrant("n").acquire().await.unwrap();
    assert!(lease.is_valid() && lease.remaining() > Duration::ZERO);
    eventually_async(LONG, || lease.masters_held() == 3).await;
    assert_eq!(nodes.held_on("n"), 3);
    tokio::time::sleep(WATCHDOG * 2).await;
    assert!(lease.is_valid() && nodes.held_on("n") == 3);
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || nodes.held_on("n") == 0 && clients.iter().all(is_idle)).await;
}

#[tokio::test]
async fn a_second_caller_waits_and_gets_it_after_the_first() {
    let nodes = Nodes::start(3);
    let (first, second) = (nodes.clients().await, nodes.clients().await);
    let lease = Quorum::over(first).unwrap().reentrant("n").acquire().await.unwrap();
    let lock = Quorum::over(second.clone()).unwrap().reentrant("n");
    let error = lock.acquire().wait_limit(Duration::from_millis(200)).await.unwrap_err();
    // A majority answers, so it is busy and no master is to blame.
    assert!(matches!(error, AcquireError::WaitLimit { .. }), "{error:?}");
    assert!(lock.try_acquire().await.unwrap().is_none());
    eventually_async(LONG, || second.iter().all(is_idle)).await;
    let waiting = tokio::spawn(lock.acquire().into_future());
    lease.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    assert!(lease.is_valid());
    drop(lease);
    eventually_async(LONG, || nodes.held_on("n") == 0).await;
}

#[tokio::test]
async fn a_node_that_hangs_or_is_taken_does_not_use_up_the_wait() {
    // G62, G65
    let nodes = Nodes::start(3);
    let clients = nodes.clients_on_legs().await;
    let lock = Quorum::over(clients).unwrap().reentrant("n");
    for index in 0..3 {
        let _: () = query(
            &nodes.servers[index],
            redis::cmd("HSET").arg("n").arg("stranger:1").arg(1),
        );
        let _: () = query(&nodes.servers[index], redis::cmd("PEXPIRE").arg("n").arg(60_000));
        let lease = lock
            .acquire()
            .wait_limit(LONG)
            .lease_time(MINUTE)
            .await
            .expect("two of three are free");
        assert!(lease.is_valid());
        lease.release().await.unwrap();
        let _: i64 = query(&nodes.servers[index], redis::cmd("DEL").arg("n"));
        eventually_async(LONG, || nodes.held_on("n") == 0).await;

        for mode in [Mode::Swallow, Mode::Refuse] {
            nodes.legs[index].switch(mode).unwrap();
            let lease = lock
                .acquire()
                .wait_limit(LONG)
                .lease_time(MINUTE)
                .await
                .expect("two of three answer");
            // The certain outcome is not kept waiting for the node that hangs: hardly any of the lease is used up.
            assert!(lease.remaining() > MINUTE * 2 / 3);
            assert_eq!(lease.release().await.unwrap(), Released::Fully);
            nodes.legs[index].switch(Mode::Pass).unwrap();
            eventually_async(LONG, || nodes.held_on("n") == 0).await;
        }
    }
    assert_eq!(nodes.proxies.len(), 3);
}

#[tokio::test]
async fn two_nodes_down_is_no_quorum_with_a_reason_for_each() {
    // G65
    let nodes = Nodes::start(3);
    let clients = nodes.clients_on_legs().await;
    let lock = Quorum::over(clients).unwrap().reentrant("n");
    nodes.legs[0].switch(Mode::Refuse).unwrap();
    nodes.legs[2].switch(Mode::Swallow).unwrap();
    let error = lock.acquire().wait_limit(Duration::from_millis(500)).await.unwrap_err();
    let AcquireError::NoQuorum {
        masters: reasons,
        needed,
        outcome_unknown,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((*needed, *outcome_unknown), (2, true));
    assert!(reasons[0].is_some() && reasons[2].is_some(), "{error}");
    assert!(error.to_string().contains("master 3"), "{error}");
    eventually_async(LONG, || nodes.held_on("n") == 0).await;
}

#[tokio::test]
async fn answers_that_take_longer_than_the_lease_never_make_a_lease() {
    // G61, G64
    let nodes = Nodes::start(3);
    let clients = nodes.clients_on_legs().await;
    let lock = Quorum::over(clients.clone()).unwrap().reentrant("n");
    for leg in &nodes.legs {
        leg.switch(Mode::Delay(Duration::from_millis(200))).unwrap();
    }
    let acquire = lock
        .acquire()
        .wait_limit(Duration::from_secs(2))
        .lease_time(Duration::from_millis(300));
    assert!(matches!(acquire.await, Err(AcquireError::NoQuorum { .. })));
    for leg in &nodes.legs {
        leg.switch(Mode::Pass).unwrap();
    }
    eventually_async(LONG, || nodes.held_on("n") == 0 && clients.iter().all(is_idle)).await;
    let lease = lock
        .acquire()
        .wait_limit(LONG)
        .await
        .expect("its own leftovers are not in the way");
    drop(lease);
}

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
    let lock = Quorum::over(nodes.clients().await).unwrap().reentrant("n");
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
    // G75: one round trip, and the truth.
    assert!(lease.release().await.is_err());
}

#[tokio::test]
async fn a_dropped_acquire_and_a_dropped_lease_leave_nothing_on_any_node() {
    let nodes = Nodes::start(3);
    let clients = nodes.clients().await;
    let lock = Quorum::over(clients.clone()).unwrap().reentrant("n");
    for micros in (0..4_000).step_by(100) {
        let acquire = lock.acquire().into_future();
        let _ = tokio::time::timeout(Duration::from_micros(micros), acquire).await;
    }
    eventually_async(LONG, || nodes.held_on("n") == 0 && clients.iter().all(is_idle)).await;
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
async fn a_majority_that_is_renewed_by_luck_alone_is_at_risk_and_one_lost_stays_lost() {
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
async fn many_readers_or_one_writer_over_a_majority() {
    let nodes = Nodes::start(3);
    let (here, there) = (nodes.client().await, nodes.client().await);
    let (ours, theirs) = (here.quorum().read_write("n"), there.quorum().read_write("n"));
    let readers = [
        ours.read().acquire().await.unwrap(),
        theirs.read().acquire().await.unwrap(),
    ];
    assert!(theirs.write().try_acquire().await.unwrap().is_none());
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = ours.write().acquire().await.unwrap();
    assert!(theirs.read().try_acquire().await.unwrap().is_none());
    // The owner of the write lock may read beside it.
    let beside = ours.read().acquire().owner(&writer.owner()).await.unwrap();
    writer.release().await.unwrap();
    assert!(theirs.write().try_acquire().await.unwrap().is_none());
    let refused = ours.write().acquire().owner(&beside.owner()).await.unwrap_err();
    assert!(matches!(refused, AcquireError::WouldDeadlock { .. }), "{refused}");
    beside.release().await.unwrap();
}

#[tokio::test]
async fn a_writer_over_a_majority_becomes_a_reader_and_nobody_writes_in_between() {
    let nodes = Nodes::start(3);
    let (here, there) = (nodes.client().await, nodes.client().await);
    let (ours, theirs) = (here.quorum().read_write("n"), there.quorum().read_write("n"));
    let writer = ours.write().acquire().await.unwrap();
    let waiting = tokio::spawn(theirs.write().acquire().into_future());
    let reader = writer.downgrade().await.unwrap();
    let beside = theirs.read().acquire().wait_limit(LONG).await.unwrap();
    assert!(reader.is_valid() && !waiting.is_finished());
    beside.release().await.unwrap();
    reader.release().await.unwrap();
    let next = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    for server in &nodes.servers {
        let _: i64 = query(server, redis::cmd("DEL").arg("n"));
    }
    tokio::time::timeout(LONG, next.lost()).await.unwrap();
    let refused = next.downgrade().await.unwrap_err();
    assert!(matches!(refused, DowngradeError::Lost { .. }), "{refused}");
    eventually_async(LONG, || nodes.held_on("n") == 0).await;
}

#[tokio::test]
async fn every_kind_but_two_is_held_by_a_majority() {
    let nodes = Nodes::start(3);
    let (here, there) = (nodes.client().await, nodes.client().await);
    for kind in LockKind::ALL {
        let lock = match here.quorum().lock(*kind, "n") {
            Ok(lock) => lock,
            Err(refused) => {
                assert!(matches!(kind, LockKind::Fair | LockKind::Fenced), "{refused}");
                assert!(
                    refused.to_string().starts_with(&format!("there is no {kind} lock")),
                    "{refused}"
                );
                continue;
            }
        };
        assert_eq!(lock.kind(), LockKind::Quorum);
        let lease = lock.acquire_with(AcquireOptions::new()).await.unwrap();
        eventually_async(LONG, || lease.masters_held() == 3).await;
        assert_eq!((nodes.held_on("n"), lease.fencing_token()), (3, None));
        let rival = there.quorum().lock_for_reading(*kind, "n").unwrap();
        assert!(rival.try_acquire_with(AcquireOptions::new()).await.unwrap().is_none());
        lease.release().await.unwrap();
        eventually_async(LONG, || nodes.held_on("n") == 0).await;
    }
    let both = here.quorum().multi(["n", "m"]).acquire().await.unwrap();
    eventually_async(LONG, || nodes.held_on("m") == 3).await;
    assert!(there.quorum().reentrant("m").try_acquire().await.unwrap().is_none());
    both.release().await.unwrap();
    eventually_async(LONG, || nodes.held_on("m") == 0 && is_idle(&here)).await;
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

#[tokio::test]
async fn a_minority_out_of_reach_keeps_no_client_from_being_built() {
    let mut nodes = Nodes::start(3);
    let urls: Vec<String> = nodes.servers.iter().map(RedisServer::url).collect();
    let build = |count: usize| {
        let builder = Locks::builder().standalone(&urls[0]).watchdog_time(WATCHDOG);
        builder
            .masters_beside(urls[1..count].iter().map(String::as_str))
            .build()
    };
    let even = build(2).await.unwrap_err();
    assert!(matches!(even, BuildError::Quorum(_)), "{even}");
    nodes.servers.remove(0);
    let locks = build(3).await.expect("two of three are there");
    let lock = locks.lock(LockKind::Quorum, "n");
    let lease = lock.acquire_with(AcquireOptions::new()).await.unwrap();
    assert_eq!((lease.masters_held(), nodes.held_on("n")), (2, 2));
    lease.release().await.unwrap();
    assert!(
        locks.reentrant("n").try_acquire().await.is_err(),
        "every other kind is on the first alone"
    );
    nodes.servers.remove(0);
    let error = build(3).await.unwrap_err();
    assert!(matches!(error, BuildError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_shutdown_ends_the_holds_on_all_masters() {
    let nodes = Nodes::start(3);
    let locks = nodes.client().await;
    let lock = locks.quorum().reentrant("n");
    let lease = lock.acquire().renewal(RenewalPolicy::deadline()).await.unwrap();
    let waiting = tokio::spawn(lock.acquire().into_future());
    locks.shutdown(LONG).await.unwrap();
    let lost = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(lost, LostReason::ClientClosed);
    let error = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::Closed { .. }), "{error}");
    drop(lease);
    eventually_async(LONG, || nodes.held_on("n") == 0 && is_idle(&locks)).await;
}

#[tokio::test]
async fn a_number_of_nodes_without_use_is_refused() {
    let nodes = Nodes::start(2);
    let error = Quorum::over(nodes.clients().await).unwrap_err();
    assert!(error.to_string().contains("odd number"), "{error}");
    assert!(Quorum::over([]).is_err());
}
