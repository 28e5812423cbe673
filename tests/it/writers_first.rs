//! Writers and a steady stream of readers: what starves, and the option that lets writers come first.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{AcquireError, Lease, Locks, ReadWriteLock, Released};
use leasehold_bench::clock;
use leasehold_bench::servers::RedisServer;
use tests::{LONG, channels, client, eventually_async, fresh_server, is_idle, keys, pttl, query};
use tokio::task::JoinHandle;

const WRITERS: &str = "leasehold_writers:{n}";

fn lock(locks: &Locks) -> ReadWriteLock {
    locks.read_write("n").writers_first()
}

/// How many writers have given notice.
fn notices(server: &RedisServer) -> usize {
    query(server, redis::cmd("ZCARD").arg(WRITERS))
}

/// A writer that waits and has given notice of it.
async fn writer_waits(server: &RedisServer, locks: &Locks) -> JoinHandle<Lease> {
    let before = notices(server);
    let acquire = lock(locks).write().acquire().into_future();
    let waiting = tokio::spawn(async move { acquire.await.unwrap() });
    eventually_async(LONG, || notices(server) > before).await;
    waiting
}

#[tokio::test]
async fn a_new_reader_lets_a_writer_that_waits_come_first_and_has_its_turn_after_it() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let reading = lock(&a).read().acquire().await.unwrap();
    let beside = lock(&b).read().try_acquire().await.unwrap();
    assert!(beside.is_some(), "nobody waits to write yet");
    drop(beside);
    let writing = writer_waits(&server, &b).await;
    assert!(lock(&a).read().try_acquire().await.unwrap().is_none());
    let again = reading.reenter().await.expect("who reads already may re-enter");
    assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
    let behind = tokio::spawn(lock(&a).read().acquire().into_future());
    eventually_async(LONG, || a.stats().queues == 1).await;
    assert!(!writing.is_finished());

    reading.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, writing).await.unwrap().unwrap();
    assert_eq!(notices(&server), 0);
    assert!(!behind.is_finished());
    lease.release().await.unwrap();
    let reading = tokio::time::timeout(LONG, behind).await.unwrap().unwrap().unwrap();
    reading.release().await.unwrap();
    eventually_async(LONG, || is_idle(&a) && is_idle(&b) && channels(&server).is_empty()).await;
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn a_writer_that_leaves_lets_the_readers_in_at_once() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    for leaves_by_limit in [true, false] {
        let reading = lock(&a).read().acquire().await.unwrap();
        let writing = if leaves_by_limit {
            let limit = Duration::from_millis(300);
            let acquire = lock(&b).write().acquire().wait_limit(limit).into_future();
            tokio::spawn(async move {
                let error = acquire.await.unwrap_err();
                assert!(matches!(error, AcquireError::WaitLimit { .. }), "{error:?}");
            })
        } else {
            let acquire = lock(&b).write().acquire().into_future();
            tokio::spawn(async move { drop(acquire.await) })
        };
        eventually_async(LONG, || notices(&server) == 1).await;
        let asked_ns = clock::now_ns();
        let behind = tokio::spawn(lock(&a).read().acquire().into_future());
        if !leaves_by_limit {
            writing.abort();
        }
        let second = tokio::time::timeout(LONG, behind).await.unwrap().unwrap().unwrap();
        // Its notice would have counted for three seconds from the newest question on, so a reader that was not woken waits for two at
        // least; who reads still is not in the way.
        println!("a reader was let in {:?} after it had asked", clock::since(asked_ns));
        assert!(reading.is_valid());
        let _ = writing.await;
        reading.release().await.unwrap();
        second.release().await.unwrap();
        eventually_async(LONG, || is_idle(&a) && is_idle(&b) && keys(&server).is_empty()).await;
    }
}

#[tokio::test]
async fn a_writer_that_died_keeps_readers_out_no_longer_than_its_notice_counts() {
    let server = fresh_server();
    let locks = client(&server).await;
    let reading = lock(&locks).read().acquire().await.unwrap();
    let now: (i64, i64) = query(&server, &redis::cmd("TIME"));
    let until = now.0 * 1_000 + now.1 / 1_000 + 3_000;
    query::<()>(&server, redis::cmd("ZADD").arg(WRITERS).arg(until).arg("dead:1:write"));
    query::<()>(&server, redis::cmd("PEXPIRE").arg(WRITERS).arg(3_000));
    assert!(lock(&locks).read().try_acquire().await.unwrap().is_none());
    let second = tokio::time::timeout(LONG, lock(&locks).read().acquire().into_future());
    let second = second.await.unwrap().unwrap();
    assert!(pttl(&server, WRITERS) <= 0);
    assert!(reading.is_valid());
    drop((reading, second));
    eventually_async(LONG, || is_idle(&locks) && keys(&server).is_empty()).await;
}

#[tokio::test]
async fn a_reader_beside_its_own_write_lock_is_let_in_and_may_keep_reading() {
    let server = fresh_server();
    let (a, b) = (client(&server).await, client(&server).await);
    let me = a.owner();
    let writing = lock(&a).write().acquire().owner(&me).await.unwrap();
    let other = writer_waits(&server, &b).await;
    let reading = lock(&a).read().acquire().owner(&me).await.unwrap();
    reading.release().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    assert!(!other.is_finished());
    reading.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, other).await.unwrap().unwrap();
    lease.release().await.unwrap();
    eventually_async(LONG, || is_idle(&a) && is_idle(&b) && keys(&server).is_empty()).await;
}

#[tokio::test]
async fn writers_of_one_process_pass_the_lock_on_and_leave_no_notice() {
    let server = fresh_server();
    let locks = client(&server).await;
    let held = lock(&locks).write().acquire().await.unwrap();
    let mut writers = Vec::new();
    for _ in 0..20 {
        let acquire = lock(&locks).write().acquire().into_future();
        writers.push(tokio::spawn(
            async move { acquire.await.unwrap().release().await.unwrap() },
        ));
    }
    eventually_async(LONG, || notices(&server) == 1).await;
    held.release().await.unwrap();
    for writer in writers {
        assert_eq!(
            tokio::time::timeout(LONG, writer).await.unwrap().unwrap(),
            Released::Fully
        );
    }
    eventually_async(LONG, || is_idle(&locks) && keys(&server).is_empty()).await;
}

/// How a writer fares among fifty readers that overlap; each holds for 50 ms and comes again at once.
async fn among_readers(lock: ReadWriteLock, limit: Duration) -> Vec<Option<Duration>> {
    let (over, reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut readers = Vec::new();
    for _ in 0..50 {
        let (lock, over, reading) = (lock.read(), over.clone(), reading.clone());
        readers.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let lease = lock.acquire().await.unwrap();
                reading.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                reading.fetch_sub(1, Ordering::SeqCst);
                lease.release().await.unwrap();
            }
        }));
    }
    eventually_async(LONG, || reading.load(Ordering::SeqCst) > 10).await;
    let mut waits = Vec::new();
    for _ in 0..3 {
        let begin_ns = clock::now_ns();
        match lock.write().acquire().wait_limit(limit).await {
            Ok(lease) => {
                assert_eq!(reading.load(Ordering::SeqCst), 0, "a writer among readers");
                waits.push(Some(clock::since(begin_ns)));
                lease.release().await.unwrap();
            }
            Err(AcquireError::WaitLimit { waited, .. }) => {
                assert!(waited >= limit);
                waits.push(None);
            }
            Err(error) => panic!("{error}"),
        }
    }
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    waits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn among_overlapping_readers_a_writers_wait_ends_in_any_case_and_soon_if_writers_come_first() {
    // G36
    let server = fresh_server();
    let locks = client(&server).await;
    let limit = Duration::from_secs(2);
    let shared = among_readers(locks.read_write("n"), limit).await;
    println!("on the shared wire a writer waited {shared:?} (None: in vain)");
    let first = among_readers(lock(&locks), LONG).await;
    println!("with writers first it waited {first:?}");
    assert!(first.iter().all(Option::is_some));
    eventually_async(LONG, || is_idle(&locks) && keys(&server).is_empty()).await;
}
