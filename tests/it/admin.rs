//! What operators do: a list of locks, and a sweep that never touches one that lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{AcquireOptions, LockKind};
use tests::{LONG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query};

const MINUTE: Duration = Duration::from_secs(60);
/// Of a Redisson client.
const REDISSON: &str = "b2ad3fcd-74a9-4d5c-8a24-dc1b6f6c0c4e:57";

fn hash(server: &leasehold_bench::servers::RedisServer, key: &str, field: &str, value: &str) {
    query::<()>(server, redis::cmd("HSET").arg(key).arg(field).arg(value));
}

#[tokio::test]
async fn a_list_has_the_locks_of_every_kind_and_nothing_else_that_lies_in_redis() {
    let server = fresh_server();
    let locks = client(&server).await;
    let mut leases = Vec::new();
    for kind in LockKind::ALL {
        let name = format!("order:{kind}");
        leases.push(
            locks
                .lock(*kind, name)
                .acquire_with(AcquireOptions::new())
                .await
                .unwrap(),
        );
    }
    leases.push(locks.read_write("order:read").read().acquire().await.unwrap());
    hash(&server, "order:data", "name", "1");
    hash(&server, "order:user", "user:7", "1");
    hash(&server, "order:session", REDISSON, "not a number");
    query::<()>(&server, redis::cmd("SET").arg("order:text").arg("x"));
    // More keys than one step of the walk has.
    for number in 0..2_000 {
        query::<()>(
            &server,
            redis::cmd("SET").arg(format!("order:filler:{number}")).arg("x"),
        );
    }
    let before = keys(&server);

    let listed = locks.admin().list("order:*").await.unwrap();
    let mut expected: Vec<String> = leases.iter().map(|lease| lease.name().to_string()).collect();
    expected.sort();
    let names: Vec<String> = listed.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, expected);
    for (name, info) in &listed {
        let lease = leases.iter().find(|lease| lease.name() == name).unwrap();
        let ids: Vec<&str> = info
            .holders
            .iter()
            .map(|holder| holder.id.trim_end_matches(":write"))
            .collect();
        assert_eq!(ids, [lease.holder().to_string()]);
        assert!(info.time_left.is_some());
    }
    assert_eq!(locks.admin().list("other:*").await.unwrap(), []);
    assert_eq!(keys(&server), before, "a list changes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_under_load_removes_what_would_never_end_and_touches_no_lock_that_lives() {
    // G46: a cleaner of "orphaned" locks removed locks that were in use.
    let server = fresh_server();
    let locks = client(&server).await;
    let (over, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut load = Vec::new();
    for _ in 0..8 {
        let (lock, over, inside) = (locks.reentrant("s:busy"), over.clone(), inside.clone());
        load.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let lease = lock.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                lease.release().await.unwrap();
            }
        }));
    }
    let renewed = locks.fenced("s:renewed").acquire().await.unwrap();
    let leased = locks.reentrant("s:leased").acquire().lease_time(MINUTE).await.unwrap();
    // A holder that died: its lease ends by itself.
    hash(&server, "s:dead", REDISSON, "1");
    query::<()>(&server, redis::cmd("PEXPIRE").arg("s:dead").arg(60_000));
    // Left over without an end, and somebody's data that is none of a sweep's business.
    hash(&server, "s:endless", REDISSON, "1");
    hash(&server, "s:writer", "mode", "write");
    hash(&server, "s:writer", &format!("{REDISSON}:write"), "2");
    hash(&server, "s:data", "name", "1");

    let waiting = tokio::spawn({
        let lock = locks.reentrant("s:busy-later");
        async move { lock.acquire().await.unwrap() }
    });
    let endless = ["s:endless", "s:writer"];
    let names = |found: Vec<leasehold::LockName>| found.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(locks.admin().leftovers("s:*").await.unwrap()), endless);
    assert_eq!(pttl(&server, "s:endless"), -1, "looking changes nothing");
    for round in 0..50 {
        let swept = names(locks.admin().sweep("s:*").await.unwrap());
        assert_eq!(swept, if round == 0 { &endless[..] } else { &[] });
    }
    assert_eq!(pttl(&server, "s:endless"), -2);
    assert!(pttl(&server, "s:dead") > 0 && holders(&server, "s:data").len() == 1);
    assert!(renewed.is_valid() && leased.is_valid());
    renewed.release().await.unwrap();
    leased.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    over.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    eventually_async(LONG, || is_idle(&locks)).await;
}
