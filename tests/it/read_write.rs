//! The read-write lock: many readers or one writer, each hold with a life of its own.

use std::time::Duration;

use leasehold::{AcquireError, Lease, Locks, LostReason, ReleaseError, Released};
use leasehold_bench::servers::RedisServer;
use tests::messages::Messages;
use tests::scripts::RENEW;
use tests::{
    LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, script_calls,
};

const MINUTE: Duration = Duration::from_secs(60);

fn field(server: &RedisServer, name: &str) -> Option<String> {
    query(server, redis::cmd("HGET").arg("n").arg(name))
}

async fn read(locks: &Locks) -> Lease {
    locks.read_write("n").read().acquire().await.unwrap()
}

async fn write(locks: &Locks) -> Lease {
    locks.read_write("n").write().acquire().await.unwrap()
}

#[tokio::test]
async fn a_read_hold_is_a_mode_a_field_and_a_key_of_its_own() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks.read_write("n").read().acquire().lease_time(MINUTE).await.unwrap();
    let id = lease.holder().to_string();
    let hold_key = format!("{{n}}:{id}:rwlock_timeout:1");
    assert_eq!(
        holders(&server, "n"),
        [(id.clone(), "1".into()), ("mode".into(), "read".into())]
    );
    assert_eq!(keys(&server), ["n".to_owned(), hold_key.clone()].tap_sorted());
    assert_eq!(query::<String>(&server, redis::cmd("GET").arg(&hold_key)), "1");
    assert!(pttl(&server, &hold_key) > 40_000 && pttl(&server, "n") > 40_000);
    let again = lease.reenter().lease_time(MINUTE).await.unwrap();
    assert_eq!(keys(&server).len(), 3);
    assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
    assert_eq!(keys(&server).len(), 2);
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn a_write_hold_is_a_mode_and_a_field_and_re_entry_adds_its_lease() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lease = locks
        .read_write("n")
        .write()
        .acquire()
        .lease_time(MINUTE)
        .await
        .unwrap();
    let id = format!("{}:write", lease.holder());
    assert_eq!(
        holders(&server, "n"),
        [(id, "1".into()), ("mode".into(), "write".into())].tap_sorted()
    );
    let again = lease.reenter().lease_time(MINUTE).await.unwrap();
    assert!(pttl(&server, "n") > 90_000, "Redisson's rule");
    drop((lease, again));
}

#[tokio::test]
async fn readers_share_and_a_writer_is_alone() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let (first, second, third) = (read(&a).await, read(&a).await, read(&b).await);
    assert!(a.read_write("n").write().try_acquire().await.unwrap().is_none());
    assert!(b.read_write("n").write().try_acquire().await.unwrap().is_none());
    for lease in [first, second, third] {
        assert_eq!(lease.release().await.unwrap(), Released::Fully);
    }
    let writer = write(&b).await;
    assert!(a.read_write("n").read().try_acquire().await.unwrap().is_none());
    assert!(b.read_write("n").write().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn every_hand_over_between_readers_and_writers_comes_by_message() {
    // G35
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    for round in 0..40 {
        let (from, to) = match round % 4 {
            0 => ("write", "write"),
            1 => ("write", "read"),
            2 => ("read", "write"),
            _ => ("three readers", "write"),
        };
        let held = match from {
            "write" => vec![a.read_write("n").write().acquire().lease_time(MINUTE).await.unwrap()],
            "read" => vec![a.read_write("n").read().acquire().lease_time(MINUTE).await.unwrap()],
            _ => {
                let mut readers = Vec::new();
                for _ in 0..3 {
                    readers.push(a.read_write("n").read().acquire().lease_time(MINUTE).await.unwrap());
                }
                readers
            }
        };
        let before = script_calls(&server);
        let waiting = tokio::spawn({
            let lock = b.read_write("n");
            async move {
                match to {
                    "read" => lock.read().acquire().lease_time(MINUTE).await.unwrap(),
                    _ => lock.write().acquire().lease_time(MINUTE).await.unwrap(),
                }
            }
        });
        eventually_async(LONG, || script_calls(&server) >= before + 2).await;
        assert!(pttl(&server, "n") > 40_000);
        for lease in held {
            lease.release().await.unwrap();
        }
        let lease = tokio::time::timeout(LONG, waiting)
            .await
            .unwrap_or_else(|_| panic!("{from} to {to}"))
            .unwrap();
        lease.release().await.unwrap();
    }
    assert!(keys(&server).is_empty());
    eventually_async(LONG, || is_idle(&a) && is_idle(&b)).await;
}

#[tokio::test]
async fn a_writers_release_wakes_all_waiting_readers() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let messages = Messages::listen(&server);
    let writer = a.read_write("n").write().acquire().lease_time(MINUTE).await.unwrap();
    let readers: Vec<_> = (0..5)
        .map(|_| {
            let lock = b.read_write("n").read();
            tokio::spawn(async move { lock.acquire().lease_time(MINUTE).await.unwrap() })
        })
        .collect();
    eventually_async(LONG, || script_calls(&server) >= 11).await;
    writer.release().await.unwrap();
    let mut leases = Vec::new();
    for reader in readers {
        leases.push(
            tokio::time::timeout(LONG, reader)
                .await
                .expect("woken together")
                .unwrap(),
        );
    }
    // The second is for a waiter of Redisson that is about to sleep.
    let told = ["1", "0"].map(|payload| ("redisson_rwlock:{n}".to_owned(), payload.to_owned()));
    assert_eq!(messages.so_far(), told);
    drop(leases);
}

#[tokio::test]
async fn renewal_keeps_the_hash_and_every_own_hold_key_alive() {
    // G30
    let server = fresh_server();
    let mut readers = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let locks = client(&server).await;
        for _ in 0..5 {
            readers.push(read(&locks).await);
        }
        clients.push(locks);
    }
    let writer = client(&server).await;
    let hold_keys = keys(&server);
    assert_eq!(hold_keys.len(), 21);
    for _ in 0..12 {
        assert!(writer.read_write("n").write().try_acquire().await.unwrap().is_none());
        tokio::time::sleep(WATCHDOG / 3).await;
    }
    assert!(hold_keys.iter().all(|key| pttl(&server, key) > 0));
    for reader in readers {
        reader.release().await.unwrap();
    }
    assert!(keys(&server).is_empty());
}

#[test]
fn a_late_renewal_makes_no_hold_key_beyond_the_count() {
    let server = fresh_server();
    let set = |key: &str| query::<()>(&server, redis::cmd("SET").arg(key).arg(1).arg("PX").arg(1_000));
    query::<()>(&server, redis::cmd("HSET").arg("n").arg(&["mode", "read", "a:1", "1"]));
    query::<()>(&server, redis::cmd("PEXPIRE").arg("n").arg(1_000));
    set("{n}:a:1:rwlock_timeout:1");
    // It left when there were two leases, and one was released before it came.
    let mut renew = redis::cmd("EVAL");
    renew.arg(RENEW).arg(3).arg("n");
    renew.arg("{n}:a:1:rwlock_timeout:1").arg("{n}:a:1:rwlock_timeout:2");
    let answers: Vec<i64> = query(&server, renew.arg(60_000).arg("a:1").arg(2));
    assert_eq!(answers, [1]);
    assert_eq!(keys(&server), ["n", "{n}:a:1:rwlock_timeout:1"]);
    assert!(pttl(&server, "{n}:a:1:rwlock_timeout:1") > 1_000);
}

#[tokio::test]
async fn holds_are_renewed_while_memory_is_full() {
    let server = fresh_server();
    let locks = client(&server).await;
    let read = locks.read_write("a").read().acquire().await.unwrap();
    let again = read.reenter().await.unwrap();
    let plain = locks.reentrant("b").acquire().await.unwrap();
    let full = |bytes: &str| query::<()>(&server, redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes));
    full("1");
    tokio::time::sleep(2 * WATCHDOG).await;
    assert!(read.is_valid() && again.is_valid() && plain.is_valid());
    assert_eq!(keys(&server).len(), 4, "two hashes and two hold keys");
    full("0");
}

#[tokio::test]
async fn a_reader_that_died_is_kept_alive_by_nobody() {
    // G32: the dead reader is a foreign one whose lease ends; the living one is renewed all the while.
    let server = fresh_server();
    let (a, c) = (client(&server).await, client(&server).await);
    let dead = a.read_write("n").read().acquire().lease_time(WATCHDOG).await.unwrap();
    let dead_key = format!("{{n}}:{}:rwlock_timeout:1", dead.holder());
    std::mem::forget(dead);
    let living = read(&a).await;
    eventually_async(LONG, || pttl(&server, &dead_key) == -2).await;
    assert!(c.read_write("n").write().try_acquire().await.unwrap().is_none());
    assert_eq!(living.release().await.unwrap(), Released::Fully);
    let writer = c
        .read_write("n")
        .write()
        .try_acquire()
        .await
        .unwrap()
        .expect("only the dead reader was left");
    writer.release().await.unwrap();
}

#[tokio::test]
async fn a_short_reader_never_shortens_the_lock_for_a_long_one() {
    // G33
    let server = fresh_server();
    let locks = client(&server).await;
    for long_first in [true, false] {
        let lock = locks.read_write("n").read();
        let (long, short) = (Duration::from_secs(20), Duration::from_millis(200));
        let (first, second) = if long_first { (long, short) } else { (short, long) };
        let first = lock.acquire().lease_time(first).await.unwrap();
        let second = lock.acquire().lease_time(second).await.unwrap();
        assert!(pttl(&server, "n") > 10_000);
        let (keep, end) = if long_first { (first, second) } else { (second, first) };
        assert_eq!(end.lost().await, LostReason::DeadlinePassed);
        drop(end);
        eventually_async(LONG, || locks.stats().releases == 0).await;
        assert!(pttl(&server, "n") > 5_000);
        assert!(locks.read_write("n").write().try_acquire().await.unwrap().is_none());
        keep.release().await.unwrap();
    }
}

#[tokio::test]
async fn the_lock_lives_no_longer_than_its_longest_living_reader() {
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.read_write("n").read();
    let long = lock.acquire().lease_time(MINUTE * 60).await.unwrap();
    let short = lock.acquire().lease_time(Duration::from_secs(20)).await.unwrap();
    long.release().await.unwrap();
    let ttl = pttl(&server, "n");
    assert!((5_000..=20_000).contains(&ttl), "{ttl}");
    drop(short);
}

#[tokio::test]
async fn a_writer_may_read_and_keeps_the_read_lock_when_it_stops_writing() {
    // G31
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let owner = a.owner();
    let lock = a.read_write("n");
    let writer = lock.write().acquire().owner(&owner).await.unwrap();
    let reader = lock.read().acquire().owner(&owner).await.unwrap();
    assert_eq!(field(&server, "mode").as_deref(), Some("write"));
    assert!(b.read_write("n").read().try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let lock = b.read_write("n").read();
        async move { lock.acquire().await.unwrap() }
    });
    eventually_async(LONG, || b.stats().subscriptions == 1).await;
    writer.release().await.unwrap();
    assert_eq!(field(&server, "mode").as_deref(), Some("read"));
    let other = tokio::time::timeout(LONG, waiting)
        .await
        .expect("readers may enter now")
        .unwrap();
    assert!(b.read_write("n").write().try_acquire().await.unwrap().is_none());
    tokio::time::sleep(WATCHDOG * 2).await;
    assert!(reader.is_valid() && other.is_valid(), "both are renewed");
    assert_eq!(reader.release().await.unwrap(), Released::Fully);
    assert_eq!(other.release().await.unwrap(), Released::Fully);
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn a_write_hold_survives_the_release_of_its_owners_read() {
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    let writer = locks
        .read_write("n")
        .write()
        .acquire()
        .owner(&owner)
        .lease_time(MINUTE)
        .await
        .unwrap();
    let reader = locks
        .read_write("n")
        .read()
        .acquire()
        .owner(&owner)
        .lease_time(Duration::from_secs(1))
        .await
        .unwrap();
    reader.release().await.unwrap();
    assert!(pttl(&server, "n") > 40_000, "nor is its time cut short");
    assert!(writer.is_valid());
    writer.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn a_reader_that_wants_to_write_is_told_at_once_and_keeps_reading() {
    // G34
    let server = fresh_server();
    let locks = client(&server).await;
    let owner = locks.owner();
    let reader = locks.read_write("n").read().acquire().owner(&owner).await.unwrap();
    let before = script_calls(&server);
    let write = locks.read_write("n").write();
    assert!(matches!(
        write.acquire().owner(&owner).await,
        Err(AcquireError::WouldDeadlock { .. })
    ));
    assert!(matches!(
        write.try_acquire().owner(&owner).await,
        Err(AcquireError::WouldDeadlock { .. })
    ));
    assert_eq!(script_calls(&server), before);
    let limit = Duration::from_millis(100);
    assert!(
        matches!(
            write.acquire().wait_limit(limit).await,
            Err(AcquireError::WaitLimit { .. })
        ),
        "another owner waits"
    );
    assert!(reader.is_valid());
    reader.release().await.unwrap();
    write.acquire().owner(&owner).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lock_of_another_kind_on_the_key_is_refused_by_name_and_left_alone() {
    let server = fresh_server();
    let locks = client(&server).await;
    let reentrant = locks.reentrant("n").acquire().lease_time(MINUTE).await.unwrap();
    let before = holders(&server, "n");
    for result in [
        locks.read_write("n").read().acquire().await,
        locks.read_write("n").write().acquire().await,
    ] {
        assert!(matches!(result, Err(AcquireError::Refused { .. })), "{result:?}");
    }
    assert_eq!(holders(&server, "n"), before);
    reentrant.release().await.unwrap();
    let reader = locks.read_write("n").read().acquire().lease_time(MINUTE).await.unwrap();
    for result in [locks.reentrant("n").acquire().await, locks.fenced("n").acquire().await] {
        assert!(matches!(result, Err(AcquireError::Refused { .. })), "{result:?}");
    }
    reader.release().await.unwrap();
}

#[tokio::test]
async fn a_deleted_read_write_lock_is_told_to_its_holders() {
    let server = fresh_server();
    let locks = client(&server).await;
    let (first, second) = (read(&locks).await, read(&locks).await);
    let _: i64 = query(&server, redis::cmd("DEL").arg("n"));
    assert_eq!(
        tokio::time::timeout(LONG, first.lost()).await.unwrap(),
        LostReason::NotOwner
    );
    assert_eq!(
        tokio::time::timeout(LONG, second.lost()).await.unwrap(),
        LostReason::NotOwner
    );
    assert!(matches!(first.release().await, Err(ReleaseError::Lost { .. })));
    drop(second);
}

trait Sorted {
    fn tap_sorted(self) -> Self;
}

impl<T: Ord, const N: usize> Sorted for [T; N] {
    fn tap_sorted(mut self) -> Self {
        self.sort();
        self
    }
}
