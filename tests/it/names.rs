//! Names as people give them: all keys of a lock share a slot, whatever the name is.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{AcquireOptions, LockKind, Lockable, Locks, RenewalPolicy};
use leasehold_bench::servers::{RedisServer, ServerOptions};
use tests::{LONG, WATCHDOG, channels, client, eventually_async, is_idle, keys, query};

/// A server that refuses a script whose keys are not in one slot. It has all the slots, so no client needs to be led anywhere.
fn server_with_slots() -> RedisServer {
    // Nobody connects to it, but a cluster's node listens there. Before 7.0 it is always port 10,000.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = |lines: &[String]| ServerOptions {
        config: lines.to_vec(),
        ..ServerOptions::default()
    };
    let cluster = "cluster-enabled yes".to_owned();
    let server = RedisServer::start(&config(&[cluster.clone(), format!("cluster-port {port}")]))
        .or_else(|_| RedisServer::start(&config(&[cluster])))
        .unwrap();
    let mut all = redis::cmd("CLUSTER");
    all.arg("ADDSLOTS");
    for slot in 0..16_384 {
        all.arg(slot);
    }
    query::<()>(&server, &all);
    server
}

fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        "plain",
        "{a}",
        "x{a}y",
        "{}",
        "{}a",
        "a}b{",
        "{{a}}",
        "a{b}{c}",
        " ",
        "line\r\nbreak",
        "nul\0byte",
        "ümlaut 🔒",
    ]
    .map(|name| name.as_bytes().to_vec())
    .to_vec();
    names.push(vec![0xff, 0xfe, b'{', 0x80]);
    names.push(vec![b'k'; 64 * 1024]);
    names
}

/// Whether keys beside the lock share its slot. With braces in the name they are `prefix:name`, on Redisson's wire, and where the
/// first braces are empty or stay open Redis takes the whole key for the tag.
fn has_a_slot(name: &[u8]) -> bool {
    let Some(open) = name.iter().position(|byte| *byte == b'{') else {
        return true;
    };
    let tag = name[open + 1..].iter().position(|byte| *byte == b'}');
    tag.is_some_and(|length| length > 0)
}

/// All that an error says, with what is behind it.
fn said(error: &(dyn std::error::Error + 'static)) -> String {
    let further = std::iter::successors(Some(error), |error| error.source());
    further.map(|error| format!("{error:?} ")).collect()
}

/// Held, waited for, handed over to another client and given back.
async fn goes_round(a: &Locks, b: &Locks, lock_of: impl Fn(&Locks) -> Box<dyn Lockable>) {
    let (first, second) = (lock_of(a), lock_of(b));
    let held = first.acquire_with(AcquireOptions::new()).await.unwrap();
    assert!(second.try_acquire_with(AcquireOptions::new()).await.unwrap().is_none());
    let again = held.reenter().await.unwrap();
    held.extend(Duration::from_secs(60)).await.unwrap();
    let waiting = tokio::spawn(second.acquire_with(AcquireOptions::new()).into_future());
    eventually_async(LONG, || b.stats().queues == 1).await;
    again.release().await.unwrap();
    held.release().await.unwrap();
    let lease = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn every_kind_goes_round_under_every_name_on_a_server_that_minds_slots() {
    // G53
    let server = server_with_slots();
    let (a, b) = (client(&server).await, client(&server).await);
    for name in names().into_iter().filter(|name| has_a_slot(name)) {
        for kind in LockKind::ALL {
            goes_round(&a, &b, |locks| locks.lock(*kind, name.as_slice())).await;
        }
        let reading = a.read_write(name.as_slice()).read().acquire().await.unwrap();
        assert!(
            b.read_write(name.as_slice())
                .write()
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
        reading.release().await.unwrap();
        goes_round(&a, &b, |locks| {
            Box::new(locks.read_write(name.as_slice()).writers_first().write())
        })
        .await;
        assert!(a.admin().inspect(name.as_slice()).await.unwrap().is_none());
    }
    eventually_async(LONG, || is_idle(&a) && is_idle(&b) && channels(&server).is_empty()).await;
    let left = keys(&server);
    assert!(
        left.iter().all(|key| key.starts_with("redisson_lock_token:")),
        "{left:?}"
    );
}

#[tokio::test]
async fn where_the_braces_of_a_name_hold_nothing_only_locks_of_a_single_key_go_and_the_others_say_why() {
    let server = server_with_slots();
    let (a, b) = (client(&server).await, client(&server).await);
    for name in names().into_iter().filter(|name| !has_a_slot(name)) {
        for kind in LockKind::ALL {
            match kind {
                LockKind::Fair | LockKind::Fenced => {
                    let acquire = a.lock(*kind, name.as_slice()).acquire_with(AcquireOptions::new());
                    let error = acquire.await.unwrap_err();
                    assert!(said(&error).contains("KeysApart"), "{error}");
                }
                _ => goes_round(&a, &b, |locks| locks.lock(*kind, name.as_slice())).await,
            }
        }
    }
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn locks_of_many_slots_are_renewed_each_by_itself_within_the_same_attempt() {
    let server = server_with_slots();
    let locks = client(&server).await;
    let at_once = RenewalPolicy::cancel_told();
    let mut leases = Vec::new();
    for number in 0..40 {
        let lock = locks.lock(LockKind::ALL[number % 3], format!("n{number}"));
        // Whoever gives up at the first error shows that there was none.
        let options = AcquireOptions::new().renewal(at_once.clone());
        leases.push(lock.acquire_with(options).await.unwrap());
    }
    tokio::time::sleep(3 * WATCHDOG).await;
    for lease in leases {
        assert!(lease.is_valid(), "{}", lease.name());
        lease.release().await.unwrap();
    }
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn several_locks_in_several_slots_are_refused_with_what_redis_says_and_none_is_taken() {
    let server = server_with_slots();
    let locks = client(&server).await;
    let error = locks.multi(["a", "b"]).acquire().await.unwrap_err();
    assert!(said(&error).contains("KeysApart"), "{error}");
    assert_eq!(keys(&server), [""; 0]);
    // In one slot they are one script's.
    let lease = locks.multi(["{shop}a", "{shop}b"]).acquire().await.unwrap();
    assert_eq!(keys(&server), ["{shop}a", "{shop}b"]);
    lease.release().await.unwrap();
}
