//! A fair lock's queue from the outside: looks at it, and plays waiters of Redisson's in it with Redisson's own arithmetic.

use std::collections::HashMap;
use std::time::Duration;

use leasehold::{Acquire, Lease};
use leasehold_bench::servers::RedisServer;
use tests::{LONG, eventually_async, query};
use tokio::task::JoinHandle;

pub(super) const QUEUE: &str = "redisson_lock_queue:{n}";
pub(super) const SCORES: &str = "redisson_lock_timeout:{n}";

/// The ids in the queue of `n`, the first in front.
pub(crate) fn queue(server: &RedisServer) -> Vec<String> {
    query(server, redis::cmd("LRANGE").arg(QUEUE).arg(0).arg(-1))
}

/// The score of each waiter of `n`, in milliseconds since 1970.
pub(crate) fn scores(server: &RedisServer) -> HashMap<String, f64> {
    query(
        server,
        redis::cmd("ZRANGE").arg(SCORES).arg(0).arg(-1).arg("WITHSCORES"),
    )
}

pub(crate) fn score(server: &RedisServer, id: &str) -> f64 {
    scores(server)[id]
}

/// Redis' time in milliseconds since 1970.
pub(crate) fn now_ms(server: &RedisServer) -> f64 {
    let (seconds, micros): (f64, f64) = query(server, &redis::cmd("TIME"));
    seconds * 1e3 + (micros / 1e3).floor()
}

/// Whether a value is what it should be but for the time that the steps took.
#[track_caller]
pub(super) fn about(value: f64, expected: f64) {
    assert!(
        (expected - 15_000.0..=expected + 15_000.0).contains(&value),
        "{value} is not about {expected}"
    );
}

/// Starts an acquire and waits until it stands in the queue, as the last.
pub(crate) async fn queued(server: &RedisServer, acquire: Acquire) -> (JoinHandle<Lease>, String) {
    let before = queue(server);
    let waiting = tokio::spawn(async move { acquire.await.unwrap() });
    eventually_async(LONG, || queue(server).len() > before.len()).await;
    let id = queue(server).pop().expect("it queues");
    assert!(!before.contains(&id));
    (waiting, id)
}

/// The lease of an acquire whose turn has come.
pub(crate) async fn granted(waiting: JoinHandle<Lease>) -> Lease {
    tokio::time::timeout(LONG, waiting)
        .await
        .expect("its turn comes")
        .unwrap()
}

/// A waiter as Redisson's: its id says nothing of its wait, and it moves scores by Redisson's rules.
pub(super) struct Plain {
    pub id: String,
    pub wait: Duration,
}

impl Plain {
    /// Queues as the last.
    pub(super) fn queues(server: &RedisServer, wait: Duration) -> Plain {
        let id = format!(
            "9b2c8a43-1111-4222-8333-{:012x}:{}",
            fastrand::u32(..),
            fastrand::u16(1..)
        );
        let plain = Plain { id, wait };
        plain.stand(server);
        plain
    }

    /// One with an id of our own kind and nobody behind it: what a client of ours leaves that was killed.
    pub(super) fn dead_of_ours(server: &RedisServer, client: &str, wait: Duration) -> Plain {
        let id = format!("{client}:g{}:{}", wait.as_millis(), fastrand::u32(1..));
        let dead = Plain { id, wait };
        dead.stand(server);
        dead
    }

    fn stand(&self, server: &RedisServer) {
        let before = match queue(server).last() {
            Some(last) => score(server, last),
            None => now_ms(server) + tests::pttl(server, "n").max(0) as f64,
        };
        let score = before + self.wait.as_millis() as f64;
        query::<()>(server, redis::cmd("ZADD").arg(SCORES).arg(score).arg(&self.id));
        query::<()>(server, redis::cmd("RPUSH").arg(QUEUE).arg(&self.id));
    }

    /// Takes the lock as the head of the queue.
    pub(super) fn takes(&self, server: &RedisServer, lease: Duration) {
        assert_eq!(queue(server)[0], self.id);
        assert_eq!(tests::pttl(server, "n"), -2);
        query::<()>(server, redis::cmd("LPOP").arg(QUEUE));
        query::<()>(server, redis::cmd("ZREM").arg(SCORES).arg(&self.id));
        for id in scores(server).keys() {
            self.moves_up(server, id);
        }
        query::<()>(server, redis::cmd("HSET").arg("n").arg(&self.id).arg(1));
        query::<()>(server, redis::cmd("PEXPIRE").arg("n").arg(lease.as_millis() as u64));
    }

    /// Gives the lock back and wakes the head; returns how many heard it.
    pub(super) fn releases(&self, server: &RedisServer) -> u32 {
        assert!(query::<bool>(server, redis::cmd("HEXISTS").arg("n").arg(&self.id)));
        query::<()>(server, redis::cmd("DEL").arg("n"));
        let channel = channel(&queue(server)[0]);
        query(server, redis::cmd("PUBLISH").arg(channel).arg("0"))
    }

    fn moves_up(&self, server: &RedisServer, id: &str) {
        let by = -(self.wait.as_millis() as i64);
        query::<()>(server, redis::cmd("ZINCRBY").arg(SCORES).arg(by).arg(id));
    }
}

/// The channel on which a waiter of `n` is woken.
pub(super) fn channel(id: &str) -> String {
    format!("redisson_lock__channel:{{n}}:{id}")
}
