//! The quorum lock over independent masters: a majority decides, a minority is given back, nobody waits for a node that hangs.

mod held;
mod kinds;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{AcquireError, Locks, Quorum, Released};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::{LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, query};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_master_and_short_leases_never_make_two_holders() {
    // G61: a lease shorter than an answer was given to several callers at once.
    let nodes = Nodes::start(3);
    let mut quorums = Vec::new();
    for _ in 0..3 {
        quorums.push(Quorum::over(nodes.clients_on_legs().await).unwrap());
    }
    nodes.legs[1].switch(Mode::Delay(Duration::from_millis(700))).unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let mut callers = Vec::new();
    for quorum in quorums {
        let (lock, inside) = (quorum.reentrant("n"), inside.clone());
        callers.push(tokio::spawn(async move {
            let mut passed = 0;
            for _ in 0..5 {
                let acquire = lock.acquire().wait_limit(LONG).lease_time(Duration::from_secs(1));
                let Ok(lease) = acquire.await else { continue };
                // Work that ends with the lease at the latest.
                let mut begun = false;
                let work = async {
                    begun = true;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
                passed += u32::from(lease.run(work).await.is_ok());
                inside.fetch_sub(u32::from(begun), Ordering::SeqCst);
                let _ = lease.release().await;
            }
            passed
        }));
    }
    let mut passed = 0;
    for caller in callers {
        passed += tokio::time::timeout(LONG * 2, caller).await.unwrap().unwrap();
    }
    assert!(passed > 0);
    eventually_async(LONG, || nodes.held_on("n") == 0).await;
}
