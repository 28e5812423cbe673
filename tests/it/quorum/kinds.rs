//! Which locks a majority can hold, and the client that has several masters.

use leasehold::{
    AcquireError, AcquireOptions, BuildError, DowngradeError, LockKind, Locks, LostReason, Quorum, RenewalPolicy,
};
use leasehold_bench::servers::RedisServer;
use tests::{LONG, WATCHDOG, eventually_async, is_idle, query};

use super::Nodes;

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
