//! Lost replies and late duplicates: a request without an answer may have run, and may still run later.

mod unfenced;

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{AcquireError, Locks, LocksBuilder, ReleaseError, Released};
use leasehold_bench::proxy::{CutPoint, Leg, Mode, Proxy};
use leasehold_bench::servers::{RedisServer, ServerOptions};
use tests::messages::Messages;
use tests::switchboard::Switchboard;
use tests::{
    LONG, WATCHDOG, channels, client, direct, eventually_async, fresh_server, holders, is_idle, keys, pttl, query,
    renewed_or_lost, scripts,
};

#[test]
fn every_script_run_twice_in_a_row_does_what_one_run_does() {
    let server = fresh_server();
    let (once, twice) = (Raw::new(&server, "once"), Raw::new(&server, "twice"));
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..1_000 {
        let step = Step {
            holder: random.choice(["a:1", "a:2", "b:1"]).unwrap(),
            operation: random.choice(OPERATIONS).unwrap(),
        };
        let (reply, first, again) = (once.run(step), twice.run(step), twice.run(step));
        assert_eq!(first[0], reply[0], "{step:?}");
        // The second release of a hold finds nothing; every other answer is the same.
        let is_release = step.operation == Operation::Release(0);
        assert!(again[0] == first[0] || (is_release && again == [-1, 0]), "{step:?}");
        assert_eq!(
            holders(&server, "twice"),
            holders(&server, "once"),
            "{step:?}, seed {SEED}"
        );
        assert_ne!(pttl(&server, "twice"), -1);
    }
}

#[test]
fn late_duplicates_of_an_earlier_hold_touch_nothing_of_a_later_one_in_any_order() {
    let server = fresh_server();
    let raw = Raw::new(&server, "n");
    let order = |operation| Step {
        holder: "a:1",
        operation,
    };
    // A life of a hold, all of it over.
    for operation in OPERATIONS {
        raw.run(order(operation));
    }
    assert_eq!(keys(&server), [""; 0]);
    assert_eq!(raw.acquire("a:2", 1, SHORTER_MS), [1, 1]);
    for late in permutations(&OPERATIONS) {
        for operation in late {
            raw.run(order(operation));
            assert_eq!(holders(&server, "n"), [("a:2".to_owned(), "1".to_owned())]);
            // They ask for more than twice as long.
            assert!((1..=SHORTER_MS).contains(&pttl(&server, "n")), "{operation:?}");
        }
    }
}

#[test]
fn no_script_shortens_a_lease() {
    let server = fresh_server();
    let raw = Raw::new(&server, "n");
    raw.acquire("a:1", 1, LEASE_MS);
    raw.acquire("a:1", 2, SHORTER_MS);
    assert!(pttl(&server, "n") > SHORTER_MS);
    assert_eq!(raw.renew("a:1", SHORTER_MS), [1]);
    assert!(pttl(&server, "n") > SHORTER_MS);
    assert_eq!(raw.release("a:1", 1), [1, 0]);
    assert!(pttl(&server, "n") > SHORTER_MS);
}

#[test]
fn a_late_attempt_at_a_lower_count_does_not_lower_it() {
    let server = fresh_server();
    let raw = Raw::new(&server, "n");
    raw.acquire("a:1", 1, LEASE_MS);
    raw.acquire("a:1", 3, LEASE_MS);
    assert_eq!(raw.acquire("a:1", 1, LEASE_MS), [1, 3]);
    assert_eq!(holders(&server, "n")[0].1, "3");
}

#[test]
fn renewals_and_re_entries_of_a_hold_that_is_gone_create_nothing() {
    let server = fresh_server();
    let raw = Raw::new(&server, "n");
    assert_eq!(raw.renew("a:1", LEASE_MS), [0]);
    assert_eq!(raw.acquire("a:1", 2, LEASE_MS), [-1, 0]);
    assert_eq!(keys(&server), [""; 0]);
    raw.acquire("b:1", 1, SHORTER_MS);
    assert_eq!(raw.renew("a:1", LEASE_MS), [0]);
    assert_eq!(raw.acquire("a:1", 2, LEASE_MS), [-1, 0]);
    assert_eq!(holders(&server, "n"), [("b:1".to_owned(), "1".to_owned())]);
    assert!(pttl(&server, "n") <= SHORTER_MS);
}

#[test]
fn a_release_that_runs_twice_wakes_once() {
    let server = fresh_server();
    let (raw, messages) = (Raw::new(&server, "n"), Messages::listen(&server));
    raw.acquire("a:1", 1, LEASE_MS);
    raw.release("a:1", 0);
    raw.release("a:1", 0);
    assert_eq!(
        messages.so_far(),
        [("redisson_lock__channel:{n}".to_owned(), "0".to_owned())]
    );
}

// G37
#[tokio::test]
async fn an_acquire_whose_reply_comes_late_holds_once() {
    let way = Way::new().await;
    way.leg.switch(Mode::HoldReplies).unwrap();
    let connections = way.leg.connections();
    let acquire = tokio::spawn(way.locks.reentrant("n").acquire().into_future());
    eventually_async(LONG, || way.leg.connections() > connections).await;
    assert_eq!(holders(&way.server, "n").len(), 1, "the first request has run");
    way.leg.switch(Mode::Pass).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    assert!(lease.attempts() > 1);
    assert_eq!(lease.hold_count(), 1);
    assert_eq!(
        holders(&way.server, "n"),
        [(lease.holder().to_string(), "1".to_owned())]
    );
    drop(lease);
    way.nothing_is_left().await;
}

// G37
#[tokio::test]
async fn an_acquire_whose_reply_is_lost_holds_once() {
    let way = Way::patient().await;
    let acquire = way.locks.reentrant("n").acquire().into_future();
    let lease = way.reply_lost(acquire, || keys(&way.server).len() == 1).await.unwrap();
    assert!(lease.attempts() > 1);
    assert_eq!(
        holders(&way.server, "n"),
        [(lease.holder().to_string(), "1".to_owned())]
    );
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    way.nothing_is_left().await;
}

#[tokio::test]
async fn a_re_entry_whose_reply_is_lost_counts_once() {
    let way = Way::patient().await;
    let lease = way.locks.reentrant("n").acquire().await.unwrap();
    let held_twice = [(lease.holder().to_string(), "2".to_owned())];
    let reenter = lease.reenter().into_future();
    let again = way
        .reply_lost(reenter, || holders(&way.server, "n") == held_twice)
        .await
        .unwrap();
    assert!(again.attempts() > 1);
    assert_eq!(holders(&way.server, "n"), held_twice);
    assert_eq!(again.release().await.unwrap(), Released::StillHeld(1));
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    way.nothing_is_left().await;
}

#[tokio::test]
async fn an_acquire_that_ends_without_an_answer_says_so_and_is_withdrawn() {
    let way = Way::patient().await;
    way.leg.switch(Mode::HoldReplies).unwrap();
    let error = way
        .locks
        .reentrant("n")
        .acquire()
        .wait_limit(BRIEFLY)
        .await
        .unwrap_err();
    assert!(error.outcome_unknown() && error.is_retryable(), "{error:?}");
    // Redis hears all of it, so the lock is given back although no answer has come yet.
    eventually_async(LONG, || keys(&way.server).is_empty()).await;
    way.leg.switch(Mode::Pass).unwrap();
    way.nothing_is_left().await;
}

#[tokio::test]
async fn a_try_acquire_without_an_answer_is_no_busy() {
    let way = Way::new().await;
    way.leg.switch(Mode::HoldReplies).unwrap();
    let error = way.locks.reentrant("n").try_acquire().await.unwrap_err();
    assert!(
        matches!(
            error,
            AcquireError::Unavailable {
                outcome_unknown: true,
                ..
            }
        ),
        "{error:?}"
    );
    way.leg.switch(Mode::Pass).unwrap();
    way.nothing_is_left().await;
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_lock_was_released_takes_nothing() {
    let ways = TwoWays::new().await;
    ways.hold_back_what_is_sent();
    let lease = ways.locks.reentrant("n").acquire().await.unwrap();
    assert!(lease.attempts() > 1, "the first one is on its way");
    drop(lease);
    eventually_async(LONG, || is_idle(&ways.locks)).await;
    ways.deliver_late().await;
    assert_eq!(keys(&ways.server), [""; 0]);
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_caller_has_left_takes_nothing() {
    let ways = TwoWays::new().await;
    ways.hold_back_what_is_sent();
    let result = ways.locks.reentrant("n").acquire().wait_limit(BRIEFLY / 4).await;
    assert!(result.unwrap_err().outcome_unknown());
    eventually_async(LONG, || is_idle(&ways.locks)).await;
    ways.deliver_late().await;
    assert_eq!(keys(&ways.server), [""; 0]);
}

#[tokio::test]
async fn a_re_entry_that_arrives_after_its_release_does_not_raise_the_count() {
    let ways = TwoWays::new().await;
    let lease = ways.locks.reentrant("n").acquire().await.unwrap();
    ways.hold_back_what_is_sent();
    let again = lease.reenter().await.unwrap();
    assert!(again.attempts() > 1, "the first one is on its way");
    drop(again);
    eventually_async(LONG, || ways.locks.stats().releases == 0).await;
    ways.deliver_late().await;
    assert_eq!(
        holders(&ways.server, "n"),
        [(lease.holder().to_string(), "1".to_owned())]
    );
    drop(lease);
}

#[tokio::test]
async fn a_release_that_arrives_late_does_not_free_the_owners_next_hold() {
    let ways = TwoWays::new().await;
    let me = ways.locks.owner();
    let lease = ways.locks.reentrant("n").acquire().owner(&me).await.unwrap();
    ways.hold_back_what_is_sent();
    drop(lease);
    eventually_async(LONG, || is_idle(&ways.locks)).await;
    let lease = ways.locks.reentrant("n").acquire().owner(&me).await.unwrap();
    ways.deliver_late().await;
    assert_eq!(
        holders(&ways.server, "n"),
        [(lease.holder().to_string(), "1".to_owned())]
    );
    drop(lease);
}

#[tokio::test]
async fn a_renewal_that_arrives_late_brings_nothing_back() {
    let ways = TwoWays::with(|locks| locks.watchdog_time(WATCHDOG)).await;
    let lease = ways.locks.reentrant("n").acquire().await.unwrap();
    ways.hold_back_what_is_sent();
    renewed_or_lost(&lease).await;
    assert!(lease.is_valid(), "renewed on the other way");
    drop(lease);
    eventually_async(LONG, || keys(&ways.server).is_empty() && is_idle(&ways.locks)).await;
    let heard = ways.old.bytes().to_server;
    ways.old.switch(Mode::Pass).unwrap();
    eventually_async(LONG, || ways.old.bytes().to_server > heard).await;
    assert_eq!(keys(&ways.server), [""; 0]);
}

// G38
#[tokio::test]
async fn a_release_whose_reply_is_lost_before_the_deadline_is_told_as_done() {
    let way = Way::patient().await;
    let lease = way.locks.reentrant("n").acquire().await.unwrap();
    let released = way.reply_lost(lease.release(), || keys(&way.server).is_empty()).await;
    assert_eq!(released.unwrap(), Released::Fully);
    way.nothing_is_left().await;
}

// G38
#[tokio::test]
async fn a_release_repeated_after_another_took_the_lock_leaves_that_one_alone() {
    let way = Way::patient().await;
    let other = client(&way.server).await;
    let lease = way.locks.reentrant("n").acquire().await.unwrap();
    way.leg.switch(Mode::HoldReplies).unwrap();
    let release = tokio::spawn(lease.release());
    let theirs = other.reentrant("n").acquire().await.unwrap();
    way.lose_replies();
    assert_eq!(release.await.unwrap().unwrap(), Released::Fully);
    assert_eq!(
        holders(&way.server, "n"),
        [(theirs.holder().to_string(), "1".to_owned())]
    );
    assert_eq!(theirs.release().await.unwrap(), Released::Fully);
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_until_after_the_deadline_is_unconfirmed() {
    let way = Way::patient().await;
    let lease = way
        .locks
        .reentrant("n")
        .acquire()
        .lease_time(5 * BRIEFLY)
        .await
        .unwrap();
    let until_the_deadline = lease.remaining();
    way.leg.switch(Mode::HoldReplies).unwrap();
    let release = tokio::spawn(lease.release());
    eventually_async(LONG, || keys(&way.server).is_empty()).await;
    tokio::time::sleep(until_the_deadline).await;
    way.lose_replies();
    assert_eq!(release.await.unwrap().unwrap(), Released::Unconfirmed);
    way.nothing_is_left().await;
}

#[tokio::test]
async fn a_release_of_one_lease_of_two_whose_reply_is_lost_is_told_as_done() {
    let way = Way::patient().await;
    let lease = way.locks.reentrant("n").acquire().await.unwrap();
    let held_once = [(lease.holder().to_string(), "1".to_owned())];
    let again = lease.reenter().await.unwrap();
    let released = way
        .reply_lost(again.release(), || holders(&way.server, "n") == held_once)
        .await;
    assert_eq!(released.unwrap(), Released::StillHeld(1));
    assert_eq!(holders(&way.server, "n"), held_once);
}

#[tokio::test]
async fn a_release_without_an_answer_says_so_and_goes_on() {
    let way = Way::new().await;
    let lease = way.locks.reentrant("n").acquire().await.unwrap();
    way.leg.switch(Mode::Swallow).unwrap();
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unanswered { .. }), "{error:?}");
    assert_eq!(way.locks.stats().releases, 1);
    assert_eq!(holders(&way.server, "n").len(), 1);
    way.leg.switch(Mode::Pass).unwrap();
    way.nothing_is_left().await;
}

/// A connection that has become a black hole never says that it is dead.
#[tokio::test]
async fn a_release_replaces_a_connection_that_has_fallen_silent() {
    let ways = TwoWays::new().await;
    let lease = ways.locks.reentrant("n").acquire().await.unwrap();
    ways.board.lead_to(&ways.new);
    ways.old.switch(Mode::Swallow).unwrap();
    match lease.release().await {
        Ok(released) => assert_eq!(released, Released::Fully),
        // The second attempt had no time either, on a busy machine.
        Err(error) => assert!(error.outcome_unknown(), "{error:?}"),
    }
    eventually_async(LONG, || keys(&ways.server).is_empty() && is_idle(&ways.locks)).await;
}

/// As the one above, for the releases that nobody waits for.
#[tokio::test]
async fn a_drop_replaces_a_connection_that_has_fallen_silent() {
    let ways = TwoWays::new().await;
    let lease = ways.locks.reentrant("n").acquire().await.unwrap();
    ways.board.lead_to(&ways.new);
    ways.old.switch(Mode::Swallow).unwrap();
    drop(lease);
    eventually_async(LONG, || keys(&ways.server).is_empty() && is_idle(&ways.locks)).await;
}

/// A frozen server runs what lies in its sockets when it goes on, also on connections that were closed meanwhile.
#[tokio::test]
async fn no_acquire_that_a_frozen_server_finds_in_a_socket_outlives_its_caller() {
    let server = fresh_server();
    let locks = impatient(&server.url(), FROZEN).await;
    let mut random = fastrand::Rng::with_seed(SEED);
    for round in 0..30 {
        server.freeze().unwrap();
        let acquire = tokio::spawn(locks.reentrant(format!("n:{round}")).acquire().into_future());
        // From before the first time limit to after the second.
        tokio::time::sleep(Duration::from_millis(random.u64(0..250))).await;
        acquire.abort();
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(random.u64(0..250))).await;
        }
        server.thaw().unwrap();
        if round % 3 == 0 {
            eventually_async(LONG, || is_idle(&locks)).await;
        }
    }
    eventually_async(LONG, || is_idle(&locks) && clients(&server) <= 3).await;
    assert_eq!(keys(&server), [""; 0], "seed {SEED}");
}

#[tokio::test]
async fn a_release_that_a_frozen_server_finds_in_a_socket_is_done_once() {
    let server = fresh_server();
    let locks = impatient(&server.url(), FROZEN).await;
    let me = locks.owner();
    for _ in 0..10 {
        let lease = locks.reentrant("n").acquire().owner(&me).await.unwrap();
        server.freeze().unwrap();
        // Two time limits pass.
        assert!(lease.release().await.unwrap_err().outcome_unknown());
        server.thaw().unwrap();
        let lease = locks.reentrant("n").acquire().owner(&me).await.unwrap();
        eventually_async(LONG, || locks.stats().releases == 0 && clients(&server) <= 3).await;
        assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".to_owned())]);
        drop(lease);
        eventually_async(LONG, || is_idle(&locks) && keys(&server).is_empty()).await;
    }
}

// G03
#[tokio::test]
async fn an_acquire_during_a_pause_of_redis_holds_once_or_not_at_all() {
    let server = fresh_server();
    let url = server.url();
    let locks = Locks::builder().standalone(&url).watchdog_time(WATCHDOG);
    let locks = connected(locks.command_timeout(BRIEFLY)).await;
    let other = client(&server).await;
    let () = query(&server, redis::cmd("CLIENT").arg("PAUSE").arg(1_000).arg("ALL"));
    match locks.reentrant("n").acquire().await {
        Ok(lease) => {
            assert_eq!(holders(&server, "n"), [(lease.holder().to_string(), "1".to_owned())]);
            // Done, or going on in the background: what follows shows that it was given back.
            let _ = lease.release().await;
        }
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
    let theirs = tokio::time::timeout(LONG, other.reentrant("n").acquire().into_future()).await;
    let theirs = theirs.expect("nothing renews the first hold").unwrap();
    eventually_async(LONG, || is_idle(&locks)).await;
    assert_eq!(holders(&server, "n"), [(theirs.holder().to_string(), "1".to_owned())]);
}

// G49
#[tokio::test]
async fn a_cut_at_any_request_never_leaves_a_lock_without_an_end() {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let watch = EndlessKeys::watch(&server);
    let mut tasks = Vec::new();
    for nth in 1..=10 {
        for point in [CutPoint::BeforeRequest, CutPoint::BeforeReply, CutPoint::AfterReply] {
            let leg = proxy.leg().unwrap();
            tasks.push(tokio::spawn(async move {
                let locks = Locks::builder()
                    .standalone(&leg.url())
                    .watchdog_time(WATCHDOG)
                    .build()
                    .await
                    .unwrap();
                leg.cut_after_requests(nth, point);
                let lease = locks.reentrant(format!("n:{nth}:{point:?}")).acquire().await.unwrap();
                renewed_or_lost(&lease).await;
                // Lost, or unconfirmed, on a machine that is too busy.
                let _ = lease.release().await;
                eventually_async(LONG, || is_idle(&locks)).await;
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    eventually_async(LONG, || keys(&server).is_empty() && channels(&server).is_empty()).await;
    assert_eq!(watch.found(), [""; 0]);
}

/// A client behind a leg of the proxy. Redis knows its scripts, so that an operation is one request.
struct Way {
    server: RedisServer,
    _proxy: Proxy,
    leg: Leg,
    locks: Locks,
}

impl Way {
    async fn new() -> Self {
        Self::with_command_timeout(BRIEFLY).await
    }

    /// With a command timeout that no test reaches.
    async fn patient() -> Self {
        Self::with_command_timeout(10 * LONG).await
    }

    async fn with_command_timeout(limit: Duration) -> Self {
        let server = fresh_server();
        let proxy = Proxy::start(&server).unwrap();
        let leg = proxy.leg().unwrap();
        let locks = impatient(&leg.url(), limit).await;
        warm_up(&locks, &leg).await;
        Way {
            server,
            _proxy: proxy,
            leg,
            locks,
        }
    }

    /// Runs an operation whose first reply never arrives, although its request has run.
    async fn reply_lost<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
        has_run: impl FnMut() -> bool,
    ) -> T {
        self.leg.switch(Mode::HoldReplies).unwrap();
        let operation = tokio::spawn(operation);
        eventually_async(LONG, has_run).await;
        self.lose_replies();
        operation.await.unwrap()
    }

    /// The replies that are held back never arrive; from now on everything passes.
    fn lose_replies(&self) {
        self.leg.cut().unwrap();
        self.leg.switch(Mode::Pass).unwrap();
    }

    async fn nothing_is_left(&self) {
        let is_clean = || is_idle(&self.locks) && keys(&self.server).is_empty() && channels(&self.server).is_empty();
        eventually_async(LONG, is_clean).await;
    }
}

/// A client whose connections take the old way, and those that it opens later the new one.
struct TwoWays {
    server: RedisServer,
    _proxy: Proxy,
    old: Leg,
    new: Leg,
    board: Switchboard,
    locks: Locks,
}

impl TwoWays {
    async fn new() -> Self {
        Self::with(|locks| locks.watchdog_time(2 * LONG)).await
    }

    /// For a user who may not end links on the server.
    async fn without_fence() -> Self {
        let options = ServerOptions {
            config: vec!["user worker on >secret ~* &* +@all -client|kill".into()],
            ..ServerOptions::default()
        };
        let server = RedisServer::start(&options).unwrap();
        Self::on(server, "worker:secret@", |locks| locks.watchdog_time(2 * LONG)).await
    }

    async fn with(settings: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        Self::on(fresh_server(), "", settings).await
    }

    async fn on(server: RedisServer, user: &str, settings: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        let proxy = Proxy::start(&server).unwrap();
        let (old, new) = (proxy.leg().unwrap(), proxy.leg().unwrap());
        let board = Switchboard::new(&old);
        let url = board.url().replace("redis://", &format!("redis://{user}"));
        let locks = Locks::builder().standalone(&url).command_timeout(BRIEFLY);
        let locks = connected(settings(locks)).await;
        warm_up(&locks, &old).await;
        TwoWays {
            server,
            _proxy: proxy,
            old,
            new,
            board,
            locks,
        }
    }

    /// What is sent on the connections that exist is kept back; those to come are served.
    fn hold_back_what_is_sent(&self) {
        self.board.lead_to(&self.new);
        self.old.switch(Mode::HoldRequests).unwrap();
    }

    /// What was kept back arrives; returns when the server has done with it.
    async fn deliver_late(&self) {
        self.old.switch(Mode::Pass).unwrap();
        // The watchdog's connection stays. The other was closed by the client, so it ends after what was sent on it.
        eventually_async(LONG, || self.old.open_connections() <= 1 && clients(&self.server) <= 4).await;
    }
}

/// Watches all keys for one that never ends.
struct EndlessKeys {
    over: Arc<AtomicBool>,
    watch: thread::JoinHandle<Vec<String>>,
}

impl EndlessKeys {
    fn watch(server: &RedisServer) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (mut redis, end) = (direct(server), over.clone());
        let watch = thread::spawn(move || {
            let mut found: Vec<String> = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let endless = "return table.concat({unpack(redis.call('KEYS', '*'))}, ' ')";
                let keys: String = redis::cmd("EVAL").arg(endless).arg(0).query(&mut redis).unwrap();
                for key in keys.split_whitespace() {
                    let left: i64 = redis::cmd("PTTL").arg(key).query(&mut redis).unwrap();
                    if left == -1 {
                        found.push(key.to_owned());
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
            found
        });
        EndlessKeys { over, watch }
    }

    /// Those that were seen so far; ends the watch.
    fn found(self) -> Vec<String> {
        self.over.store(true, Ordering::Relaxed);
        self.watch.join().unwrap()
    }
}

/// The scripts of the library as a client calls them, for one lock.
struct Raw<'a> {
    server: &'a RedisServer,
    name: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    holder: &'static str,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Acquire(u32),
    Release(u32),
    Renew,
}

impl<'a> Raw<'a> {
    fn new(server: &'a RedisServer, name: &'static str) -> Self {
        Raw { server, name }
    }

    fn run(&self, step: Step) -> Vec<i64> {
        match step.operation {
            Operation::Acquire(count) => self.acquire(step.holder, count, LEASE_MS),
            Operation::Release(count) => self.release(step.holder, count),
            Operation::Renew => self.renew(step.holder, LEASE_MS),
        }
    }

    fn acquire(&self, holder: &str, count: u32, lease_ms: i64) -> Vec<i64> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(scripts::REENTRANT_ACQUIRE);
        let answer = query(
            self.server,
            eval.arg(1).arg(self.name).arg(holder).arg(count).arg(lease_ms),
        );
        in_full(answer, [1, 1])
    }

    fn release(&self, holder: &str, count: u32) -> Vec<i64> {
        let channel = format!("redisson_lock__channel:{{{}}}", self.name);
        let mut eval = redis::cmd("EVAL");
        eval.arg(scripts::REENTRANT_RELEASE);
        let answer = query(
            self.server,
            eval.arg(1).arg(self.name).arg(holder).arg(count).arg(channel),
        );
        in_full(answer, [0, 0])
    }

    fn renew(&self, holder: &str, lease_ms: i64) -> Vec<i64> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(scripts::RENEW);
        query(self.server, eval.arg(1).arg(self.name).arg(lease_ms).arg(holder).arg(0))
    }
}

/// An answer in full, if its commonest value came as one number.
fn in_full(answer: redis::Value, commonest: [i64; 2]) -> Vec<i64> {
    match answer {
        redis::Value::Int(first) if first == commonest[0] => commonest.into(),
        list => redis::from_redis_value(list).unwrap(),
    }
}

fn permutations<T: Copy>(items: &[T]) -> Vec<Vec<T>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, first) in items.iter().enumerate() {
        let rest: Vec<T> = [&items[..index], &items[index + 1..]].concat();
        for mut tail in permutations(&rest) {
            tail.insert(0, *first);
            all.push(tail);
        }
    }
    all
}

async fn impatient(url: &str, limit: Duration) -> Locks {
    connected(
        Locks::builder()
            .standalone(url)
            .watchdog_time(2 * LONG)
            .command_timeout(limit),
    )
    .await
}

/// Connects; a busy machine may take longer than a short command timeout at first.
async fn connected(settings: LocksBuilder) -> Locks {
    for _ in 0..20 {
        if let Ok(locks) = settings.clone().build().await {
            return locks;
        }
    }
    settings.build().await.unwrap()
}

/// Opens both connections of a client, and makes the scripts known.
async fn warm_up(locks: &Locks, leg: &Leg) {
    drop(locks.reentrant("warm").acquire().await.unwrap());
    eventually_async(LONG, || leg.connections() >= 2 && is_idle(locks)).await;
}

/// How many clients the server has, this question's own included.
fn clients(server: &RedisServer) -> usize {
    let list: String = query(server, redis::cmd("CLIENT").arg("LIST"));
    list.lines().count()
}

/// A life of a hold, in order.
const OPERATIONS: [Operation; 5] = [
    Operation::Acquire(1),
    Operation::Acquire(2),
    Operation::Renew,
    Operation::Release(1),
    Operation::Release(0),
];
const LEASE_MS: i64 = 600_000;
const SHORTER_MS: i64 = 200_000;
/// A command timeout that passes while the server is frozen.
const FROZEN: Duration = Duration::from_millis(120);
/// A time limit that a test waits for.
const BRIEFLY: Duration = Duration::from_millis(200);
const SEED: u64 = 11;
