//! Users who may not do everything: what they may not do is told, harms nobody else, and leaves nothing behind.

use std::error::Error;
use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{
    Acquire, AcquireError, BuildError, CallError, FailureCause, Lease, LeaseState, Locks, LocksBuilder, LostReason,
    ReleaseError, Released,
};
use leasehold_bench::proxy::{Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::switchboard::Switchboard;
use tests::{
    LONG, WATCHDOG, channels, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, script_calls,
};
use tokio::task::JoinHandle;

/// All that the library needs, on Redis 7.0: the commands it sends, those of its scripts, and the channels of its wake-ups.
const LEAST_RIGHTS: &str = "+evalsha +eval +client|id +client|kill +info +subscribe +unsubscribe +publish \
     +hset +hget +hdel +hexists +hlen +hgetall +exists +pttl +pexpire +del +type +incr +set +time \
     +lindex +lpop +lpos +lrange +lrem +rpush +zadd +zrange +zrem +zscore +pubsub|numsub \
     &redisson_lock__channel:* &redisson_rwlock:*";

#[tokio::test]
async fn a_user_with_the_least_rights_can_do_everything() {
    everything_works(&format!("~* {LEAST_RIGHTS}")).await;
}

#[tokio::test]
async fn the_least_rights_can_be_narrowed_to_the_keys_of_some_locks() {
    everything_works(&format!(
        "~order:* ~{{order:* ~leasehold_writers:* ~redisson_lock_token:* ~redisson_lock_queue:* ~redisson_lock_timeout:* {LEAST_RIGHTS}"
    ))
    .await;
}

async fn everything_works(rights: &str) {
    let server = fresh_server();
    let user = User::new(&server, rights);
    let locks = user.lasting(&server).await;

    // Acquire, wait, be woken, release.
    let held = locks.fenced("order:7").acquire().await.unwrap();
    let token = held.fencing_token().unwrap();
    let waiting = waiter(&server, locks.fenced("order:7").acquire()).await;
    let inner = held.reenter().await.unwrap();
    assert_eq!(inner.release().await.unwrap(), Released::StillHeld(1));
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by message")
        .unwrap()
        .unwrap();
    assert!(lease.fencing_token().unwrap() > token);
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || channels(&server).is_empty()).await;
    drop(locks.spin("order:7").acquire().await.unwrap());

    // Several at once.
    let held = locks.multi(["order:{7}:a", "order:{7}:b"]).acquire().await.unwrap();
    let waiting = waiter(&server, locks.multi(["order:{7}:a", "order:{7}:b"]).acquire()).await;
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by message")
        .unwrap()
        .unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Fully);

    // In the order of arrival; one leaves the queue.
    let held = locks.fair("order:12").acquire().await.unwrap();
    let waiting = waiter(&server, locks.fair("order:12").acquire()).await;
    let limit = Duration::from_millis(50);
    let result = locks.fair("order:12").acquire().wait_limit(limit).await;
    assert!(matches!(result, Err(AcquireError::WaitLimit { .. })), "{result:?}");
    assert!(locks.admin().waiters("order:12").await.unwrap().len() <= 1);
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by message")
        .unwrap()
        .unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Fully);

    // Read and write: a downgrade, two readers, a writer that waits for them.
    let lock = locks.read_write("order:10");
    let writing = lock.write().acquire().await.unwrap();
    let reading = lock.read().acquire().owner(&writing.owner()).await.unwrap();
    assert_eq!(writing.release().await.unwrap(), Released::Fully);
    let other = lock.read().acquire().await.unwrap();
    let waiting = waiter(&server, lock.write().acquire()).await;
    assert_eq!(other.release().await.unwrap(), Released::Fully);
    assert_eq!(reading.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by message")
        .unwrap()
        .unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Fully);

    // Inspect; a forced release wakes too, and is told to the one who releases later.
    let held = locks.reentrant("order:8").acquire().await.unwrap();
    let seen = locks.admin().inspect("order:8").await.unwrap().unwrap();
    assert_eq!(seen.holders[0].id, held.holder().to_string());
    let waiting = waiter(&server, locks.reentrant("order:8").acquire()).await;
    assert!(locks.admin().force_release("order:8").await.unwrap());
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken by message")
        .unwrap()
        .unwrap();
    let result = held.release().await;
    assert!(matches!(result, Err(ReleaseError::Lost { .. })), "{result:?}");
    assert_eq!(lease.release().await.unwrap(), Released::Fully);
    assert_eq!(locks.admin().inspect("order:8").await.unwrap(), None);

    // Renew, and learn of a loss by it.
    let renewing = user.client(&server).watchdog_time(2 * WATCHDOG);
    let renewing = renewing.build().await.unwrap();
    let lease = renewing.reentrant("order:9").acquire().await.unwrap();
    renewed(&lease).await;
    let reading = renewing.read_write("order:11").read().acquire().await.unwrap();
    renewed(&reading).await;
    drop(reading);
    let _: i64 = query(&server, redis::cmd("DEL").arg("order:9"));
    let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert!(
        matches!(reason, LostReason::NotOwner | LostReason::DeadlinePassed),
        "{reason:?}"
    );
    drop(lease);
    eventually_async(LONG, || is_idle(&renewing) && is_idle(&locks)).await;
    drop((renewing, lock, locks));

    // Be fenced: the server ends a connection that has fallen silent.
    let proxy = Proxy::start(&server).unwrap();
    let (old, new) = (proxy.leg().unwrap(), proxy.leg().unwrap());
    let board = Switchboard::new(&old);
    let url = board.url().replace("redis://", "redis://worker:secret@");
    let locks = Locks::builder()
        .standalone(&url)
        .watchdog_time(10 * LONG)
        .command_timeout(BRIEFLY);
    let locks = locks.build().await.unwrap();
    eventually_async(LONG, || connections(&server).len() == 1).await;
    let silent = connections(&server);
    old.switch(Mode::Swallow).unwrap();
    board.lead_to(&new);
    let lease = locks.reentrant("order:7").acquire().await.unwrap();
    assert!(
        !connections(&server).contains(&silent[0]),
        "what it sent there can still be run"
    );
    drop(lease);
    eventually_async(LONG, || is_idle(&locks)).await;

    let denied: Vec<redis::Value> = query(&server, redis::cmd("ACL").arg("LOG"));
    assert!(denied.is_empty(), "{denied:?}");
}

#[tokio::test]
async fn a_user_who_may_not_expire_keys_leaves_no_lock_without_an_end() {
    nothing_is_left("-pexpire", |locks| locks.reentrant("n").acquire()).await;
    nothing_is_left("-pexpire", |locks| locks.fenced("n").acquire()).await;
    nothing_is_left("-pexpire", |locks| locks.read_write("n").read().acquire()).await;
    nothing_is_left("-pexpire", |locks| locks.read_write("n").write().acquire()).await;
}

#[tokio::test]
async fn a_user_who_may_neither_expire_nor_delete_keys_leaves_no_lock_without_an_end() {
    nothing_is_left("-pexpire -del", |locks| locks.reentrant("n").acquire()).await;
    nothing_is_left("-pexpire -del", |locks| locks.read_write("n").read().acquire()).await;
    nothing_is_left("-pexpire -del", |locks| locks.read_write("n").write().acquire()).await;
}

#[tokio::test]
async fn a_user_who_may_not_count_tokens_leaves_no_lock_behind() {
    for denied in ["-incr", "-set", "-time"] {
        nothing_is_left(denied, |locks| locks.fenced("n").acquire()).await;
    }
}

#[tokio::test]
async fn a_user_who_may_not_make_hold_keys_leaves_no_lock_without_an_end() {
    nothing_is_left("-set", |locks| locks.read_write("n").read().acquire()).await;
    nothing_is_left("-pttl", |locks| locks.read_write("n").read().acquire()).await;
}

async fn nothing_is_left(denied: &str, acquire: impl Fn(&Locks) -> Acquire) {
    let server = fresh_server();
    let locks = User::new(&server, &format!("~* &* +@all {denied}"))
        .lasting(&server)
        .await;
    let error = acquire(&locks).await.unwrap_err();
    assert!(
        matches!(
            &error,
            AcquireError::Refused {
                source: CallError::Denied { .. },
                ..
            }
        ),
        "{denied}: {error:?}"
    );
    eventually_async(LONG, || is_idle(&locks)).await;
    assert_eq!(pttl(&server, "n"), -2, "{denied}: {:?}", holders(&server, "n"));
}

/// Whatever a script may not do in the middle.
#[tokio::test]
async fn no_two_missing_rights_leave_a_lock_without_an_end() {
    let server = fresh_server();
    let user = User::new(&server, "~* &* +@all");
    let locks = user.lasting(&server).await;
    let commands = LEAST_RIGHTS
        .split_whitespace()
        .filter_map(|right| right.strip_prefix('+'));
    let commands: Vec<&str> = commands.collect();
    let lock = locks.read_write("n");
    let several = locks.multi(["n", "m"]);
    let acquires: [&dyn Fn() -> Acquire; 5] = [
        &|| locks.reentrant("n").acquire(),
        &|| locks.fenced("n").acquire(),
        &|| lock.read().acquire(),
        &|| lock.write().acquire(),
        &|| several.acquire(),
    ];
    for (kind, acquire) in acquires.iter().enumerate() {
        for (index, first) in commands.iter().enumerate() {
            for second in &commands[index..] {
                user.change(&server, &format!("+@all -{first} -{second}"));
                let result = acquire().wait_limit(Duration::ZERO).await;
                let told = format!("kind {kind} without {first} and {second}: {result:?}");
                drop(result);
                eventually_async(LONG, || is_idle(&locks)).await;
                assert_ne!(pttl(&server, "n"), -1, "{told}");
                assert_ne!(pttl(&server, "m"), -1, "{told}");
                user.change(&server, "+@all");
                let _: () = query(&server, redis::cmd("FLUSHALL").arg("SYNC"));
            }
        }
    }
}

/// No matter of rights, but refused in the same place.
#[tokio::test]
async fn a_fenced_acquire_whose_counter_is_no_number_leaves_no_lock_behind() {
    let server = fresh_server();
    let locks = User::new(&server, "~* &* +@all").lasting(&server).await;
    let _: i64 = query(
        &server,
        redis::cmd("LPUSH").arg("redisson_lock_token:{n}").arg("no number"),
    );
    let error = locks.fenced("n").acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Refused { .. }), "{error:?}");
    eventually_async(LONG, || is_idle(&locks)).await;
    assert_eq!(keys(&server), ["redisson_lock_token:{n}"]);
}

#[tokio::test]
async fn a_user_without_channels_frees_its_locks_and_its_waiters_get_in() {
    let server = fresh_server();
    let user = User::new(&server, "~* resetchannels +@all");
    let (holding, locks) = (user.lasting(&server).await, user.lasting(&server).await);
    let held = holding.reentrant("n").acquire().await.unwrap();
    let waiting = asking(&server, locks.reentrant("n").acquire()).await;
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("it asks from time to time");
    let lease = lease.unwrap().unwrap();
    let waiting = asking(&server, holding.reentrant("n").acquire()).await;
    assert!(locks.admin().force_release("n").await.unwrap());
    let next = tokio::time::timeout(LONG, waiting)
        .await
        .expect("it asks from time to time");
    let next = next.unwrap().unwrap();
    assert_eq!(holders(&server, "n"), [(next.holder().to_string(), "1".to_owned())]);
    drop((lease, next));
    eventually_async(LONG, || {
        keys(&server).is_empty() && is_idle(&locks) && is_idle(&holding)
    })
    .await;
}

#[tokio::test]
async fn a_user_who_may_not_subscribe_waits_by_asking() {
    let server = fresh_server();
    let user = User::new(&server, "~* &* +@all -subscribe -unsubscribe");
    let locks = user.lasting(&server).await;
    let held = locks.reentrant("n").acquire().await.unwrap();
    let waiting = asking(&server, locks.reentrant("n").acquire()).await;
    assert_eq!(held.release().await.unwrap(), Released::Fully);
    let lease = tokio::time::timeout(LONG, waiting)
        .await
        .expect("it asks from time to time");
    assert_eq!(lease.unwrap().unwrap().release().await.unwrap(), Released::Fully);
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test]
async fn a_refused_renewal_is_not_taken_for_a_clobbered_key_nor_for_a_success() {
    let cases = ["-hexists", "-pexpire", "-evalsha -eval"].map(|denied| [("reentrant", denied), ("read", denied)]);
    for (kind, denied) in cases.concat() {
        let server = fresh_server();
        let user = User::new(&server, "~* &* +@all");
        let locks = user.client(&server).watchdog_time(WATCHDOG).build().await.unwrap();
        let lease = match kind {
            "read" => locks.read_write("n").read().acquire().await.unwrap(),
            _ => locks.reentrant("n").acquire().await.unwrap(),
        };
        let mut states = lease.state();
        user.change(&server, denied);
        let at_risk = states.wait_for(|state| matches!(state, LeaseState::AtRisk { .. }));
        match tokio::time::timeout(LONG, at_risk)
            .await
            .unwrap()
            .map(|state| state.clone())
        {
            // On a busy machine the answer can be late.
            Ok(LeaseState::AtRisk { cause, .. }) => assert!(
                cause == FailureCause::Refused("NOPERM".into()) || cause == FailureCause::Unanswered,
                "{denied}: {cause:?}"
            ),
            other => panic!("{denied}: {other:?}"),
        }
        let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
        assert_eq!(reason, LostReason::DeadlinePassed, "{denied}");
    }
}

#[tokio::test]
async fn a_release_that_is_refused_says_so() {
    for denied in ["-hget", "-del", "-evalsha -eval"] {
        let server = fresh_server();
        let user = User::new(&server, "~* &* +@all");
        let locks = user.lasting(&server).await;
        let lease = locks.reentrant("n").acquire().await.unwrap();
        user.change(&server, denied);
        let result = lease.release().await;
        assert!(
            matches!(
                &result,
                Err(ReleaseError::Refused {
                    source: CallError::Denied { .. },
                    ..
                })
            ),
            "{denied}: {result:?}"
        );
        assert!(pttl(&server, "n") > 0, "{denied}");
        eventually_async(LONG, || is_idle(&locks)).await;
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_and_not_shown() {
    let server = fresh_server();
    User::new(&server, "~* &* +@all");
    let proxy = Proxy::start(&server).unwrap();
    let address = proxy.leg().unwrap().address();
    for url in [
        format!("redis://worker:hunter2@{address}/"),
        format!("redis://nobody:hunter2@{address}/"),
        format!("{}?user=worker&pass=hunter2", server.url()),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert!(matches!(error, BuildError::Denied { .. }), "{error:?}");
        let mut told = format!("{error:?} {error}");
        let mut source = error.source();
        while let Some(error) = source {
            told.push_str(&format!(" {error:?} {error}"));
            source = error.source();
        }
        assert!(told.contains("WRONGPASS"), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
        let settings = format!("{:?}", Locks::builder().standalone(&url));
        assert!(!settings.contains("hunter2"), "{settings}");
    }
}

#[tokio::test]
async fn an_address_in_an_error_shows_no_password() {
    for url in [
        "unix:///nowhere/redis.sock?user=worker&pass=hunter2",
        "redis://worker:hunter2@127.0.0.1:1/",
        "htp://worker:hunter2@127.0.0.1/",
    ] {
        let error = Locks::connect(url).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn a_user_without_a_password_where_one_is_needed_is_denied() {
    let server = fresh_server();
    let mut set = redis::cmd("ACL");
    let _: () = query(&server, set.arg("SETUSER").arg("default").arg("off"));
    let error = Locks::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, BuildError::Denied { .. }), "{error:?}");
}

/// Without these a silent connection cannot be ended on the server. That is warned of, and all else works.
#[tokio::test]
async fn a_user_who_may_not_fence_works_all_the_same() {
    for denied in ["-client|kill", "-client|id", "-info", "-client", "-@dangerous"] {
        let server = fresh_server();
        let user = User::new(&server, &format!("~* &* +@all {denied}"));
        let locks = user.lasting(&server).await;
        let held = locks.reentrant("n").acquire().await.unwrap();
        let waiting = waiter(&server, locks.reentrant("n").acquire()).await;
        // The next connection has this one to end.
        let mut kill = redis::cmd("CLIENT");
        let _: i64 = query(&server, kill.arg("KILL").arg("USER").arg("worker"));
        let inner = held.reenter().await.unwrap();
        assert_eq!(inner.release().await.unwrap(), Released::StillHeld(1), "{denied}");
        assert_eq!(held.release().await.unwrap(), Released::Fully, "{denied}");
        let lease = tokio::time::timeout(LONG, waiting)
            .await
            .expect("it is woken")
            .unwrap()
            .unwrap();
        assert_eq!(lease.release().await.unwrap(), Released::Fully, "{denied}");
        eventually_async(LONG, || is_idle(&locks)).await;
    }
}

/// A user of a server, called `worker`.
struct User;

impl User {
    fn new(server: &RedisServer, rights: &str) -> Self {
        User.change(server, "reset on >secret");
        User.change(server, rights);
        User
    }

    fn change(&self, server: &RedisServer, rights: &str) {
        let mut set = redis::cmd("ACL");
        set.arg("SETUSER").arg("worker");
        let _: () = query(server, set.arg(rights.split_whitespace().collect::<Vec<_>>()));
    }

    fn client(&self, server: &RedisServer) -> LocksBuilder {
        Locks::builder().standalone(&format!("{}?user=worker&pass=secret", server.url()))
    }

    /// A client whose locks outlive the test, and whose waiters sleep longer than it lasts.
    async fn lasting(&self, server: &RedisServer) -> Locks {
        self.client(server).watchdog_time(10 * LONG).build().await.unwrap()
    }
}

/// An acquire that listens and sleeps.
async fn waiter(server: &RedisServer, acquire: Acquire) -> JoinHandle<Result<Lease, AcquireError>> {
    let waiting = asking(server, acquire).await;
    eventually_async(LONG, || channels(server).len() == 1).await;
    waiting
}

/// An acquire that has found the lock busy twice.
async fn asking(server: &RedisServer, acquire: Acquire) -> JoinHandle<Result<Lease, AcquireError>> {
    let calls = script_calls(server);
    let waiting = tokio::spawn(acquire.into_future());
    eventually_async(LONG, || script_calls(server) >= calls + 2).await;
    waiting
}

/// Returns after the next renewal.
async fn renewed(lease: &Lease) {
    let mut before = lease.remaining();
    eventually_async(LONG, || {
        assert!(lease.is_valid(), "lost instead of renewed");
        let now = lease.remaining();
        now > std::mem::replace(&mut before, now)
    })
    .await;
}

/// The ids of the worker's connections.
fn connections(server: &RedisServer) -> Vec<String> {
    let list: String = query(server, redis::cmd("CLIENT").arg("LIST"));
    let workers = list.lines().filter(|line| line.contains(" user=worker "));
    workers
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// A time limit that a test waits for.
const BRIEFLY: Duration = Duration::from_millis(400);
