//! Every fault that a renewal can meet on a real server, and what the holders of every kind of lock are told, and when.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{AcquireOptions, Event, EventKind, FailureCause, Lease, LockKind, Locks, LostReason, Moment, Released};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::{RedisServer, ServerOptions};
use tests::heard::Heard;
use tests::{LONG, direct, eventually, eventually_async, fresh_server, pttl, query};

/// Long enough for half its margin to be more than a busy machine delays a thread.
const LEASE: Duration = Duration::from_secs(8);
/// Of the policy `deadline`.
const MARGIN: Duration = Duration::from_millis(800);

/// One lock of every kind, held by one client, so that their renewals share batches.
struct Held {
    locks: Locks,
    heard: Heard,
    leases: Vec<Lease>,
    /// Before the first of them was asked for.
    since: Moment,
}

/// What a holder is told, and in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    AtRisk,
    Recovered,
    Lost(LostReason),
}

impl Held {
    async fn through(url: &str) -> Self {
        let heard = Heard::default();
        let locks = Locks::builder().standalone(url).watchdog_time(LEASE);
        let locks = locks.observer(Arc::new(heard.clone())).build().await.unwrap();
        let since = Moment::now();
        let mut leases = Vec::new();
        for kind in LockKind::ALL {
            let lock = locks.lock(*kind, kind.name());
            leases.push(lock.acquire_with(AcquireOptions::new()).await.unwrap());
        }
        leases.push(locks.read_write("read").read().acquire().await.unwrap());
        Held {
            locks,
            heard,
            leases,
            since,
        }
    }

    async fn on(server: &RedisServer) -> Self {
        Self::through(&server.url()).await
    }

    fn told(&self, lease: &Lease) -> Vec<Told> {
        let told = |event: Event| match event.kind {
            EventKind::AtRisk { .. } => Some(Told::AtRisk),
            EventKind::Recovered => Some(Told::Recovered),
            EventKind::Lost { reason } => Some(Told::Lost(reason)),
            _ => None,
        };
        self.heard.of(lease.holder()).into_iter().filter_map(told).collect()
    }

    async fn all_told(&self, last: Told) {
        for lease in &self.leases {
            eventually_async(LONG, || self.told(lease).last() == Some(&last)).await;
        }
    }

    /// Every holder was told exactly this.
    fn were_told(&self, expected: &[Told]) {
        for lease in &self.leases {
            assert_eq!(self.told(lease), expected, "{}", lease.name());
        }
    }

    /// The risk was told with this reason.
    fn because_of(&self, code: &str) {
        for lease in &self.leases {
            let events = self.heard.of(lease.holder());
            let codes: Vec<_> = events
                .iter()
                .filter_map(|event| match &event.kind {
                    EventKind::RenewalFailed {
                        cause: FailureCause::Refused(code),
                        ..
                    } => Some(&**code),
                    _ => None,
                })
                .collect();
            assert!(codes.contains(&code), "{}: {codes:?}", lease.name());
        }
    }

    /// Nobody may have taken the lock when its holder was told of the loss: half the margin at least was left.
    fn were_told_in_time(&self) {
        for lease in &self.leases {
            let events = self.heard.of(lease.holder());
            let renewed = events.iter().filter_map(|event| match event.kind {
                EventKind::Renewed { sent } => Some(sent),
                _ => None,
            });
            let renewed = renewed.max().unwrap_or(self.since);
            let lost = events.iter().find(|event| matches!(event.kind, EventKind::Lost { .. }));
            let used = lost.expect("it was lost").at.since(renewed);
            assert!(
                used <= LEASE - MARGIN / 2,
                "{}: told {used:?} after its last renewal",
                lease.name()
            );
        }
    }

    fn are_valid(&self) -> bool {
        self.leases.iter().all(Lease::is_valid)
    }

    async fn are_released(self) {
        for lease in self.leases {
            assert_eq!(lease.release().await.unwrap(), Released::Fully);
        }
    }
}

fn set(server: &RedisServer, name: &str, value: &str) {
    query::<()>(server, redis::cmd("CONFIG").arg("SET").arg(name).arg(value));
}

/// Refuses every write until it is undone.
struct Refusal {
    code: &'static str,
    begin: fn(&RedisServer),
    end: fn(&RedisServer),
}

const REFUSALS: [Refusal; 4] = [
    Refusal {
        code: "READONLY",
        begin: |server| query(server, redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1)),
        end: |server| query(server, redis::cmd("REPLICAOF").arg("NO").arg("ONE")),
    },
    Refusal {
        code: "MASTERDOWN",
        begin: |server| {
            set(server, "replica-serve-stale-data", "no");
            query(server, redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1))
        },
        end: |server| query(server, redis::cmd("REPLICAOF").arg("NO").arg("ONE")),
    },
    Refusal {
        code: "NOREPLICAS",
        begin: |server| set(server, "min-replicas-to-write", "1"),
        end: |server| set(server, "min-replicas-to-write", "0"),
    },
    Refusal {
        code: "MISCONF",
        begin: |server| {
            // A snapshot that cannot get its name.
            std::fs::create_dir(server.socket().with_file_name("data").join("dump.rdb")).unwrap();
            set(server, "save", "3600 1");
            query::<()>(server, &redis::cmd("BGSAVE"));
            eventually(LONG, || {
                let info: String = query(server, redis::cmd("INFO").arg("persistence"));
                info.contains("rdb_last_bgsave_status:err")
            });
        },
        end: |server| set(server, "stop-writes-on-bgsave-error", "no"),
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_for_a_while_is_a_risk_and_no_loss() {
    for refusal in &REFUSALS {
        let server = fresh_server();
        let held = Held::on(&server).await;
        (refusal.begin)(&server);
        held.all_told(Told::AtRisk).await;
        (refusal.end)(&server);
        held.all_told(Told::Recovered).await;
        held.were_told(&[Told::AtRisk, Told::Recovered]);
        held.because_of(refusal.code);
        assert!(held.are_valid(), "{}", refusal.code);
        held.are_released().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_for_longer_than_the_lease_is_a_loss_told_before_the_end() {
    let tries = REFUSALS.iter().map(|refusal| async move {
        let server = fresh_server();
        let held = Held::on(&server).await;
        (refusal.begin)(&server);
        held.all_told(Told::Lost(LostReason::DeadlinePassed)).await;
        held.were_told(&[Told::AtRisk, Told::Lost(LostReason::DeadlinePassed)]);
        held.were_told_in_time();
        held.because_of(refusal.code);
        (refusal.end)(&server);
    });
    futures(tries).await;
}

/// All of them at once: they only wait.
async fn futures(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        match all.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

/// A script that keeps the server busy for this long.
fn keep_busy(server: &RedisServer, time: Duration) -> std::thread::JoinHandle<()> {
    set(server, "lua-time-limit", "50");
    let mut connection = direct(server);
    std::thread::spawn(move || {
        let busy = "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
                    local till = now() + ARGV[1] repeat until now() > till";
        let mut eval = redis::cmd("EVAL");
        eval.arg(busy)
            .arg(0)
            .arg(time.as_millis() as u64)
            .exec(&mut connection)
            .unwrap();
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_keeps_the_server_busy_is_a_risk_and_no_loss() {
    // G09
    let server = fresh_server();
    let held = Held::on(&server).await;
    // Across the renewal at a third of the lease, whenever that was drawn.
    let busy = keep_busy(&server, LEASE / 2);
    held.all_told(Told::AtRisk).await;
    held.all_told(Told::Recovered).await;
    busy.join().unwrap();
    held.were_told(&[Told::AtRisk, Told::Recovered]);
    held.because_of("BUSY");
    assert!(held.are_valid());
    held.are_released().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_policy_that_gives_up_at_once_a_busy_server_is_a_loss_told_at_once() {
    let server = fresh_server();
    let locks = Locks::builder().standalone(&server.url()).watchdog_time(LEASE);
    let locks = locks.build().await.unwrap();
    let cancel = "cancel-told".parse().unwrap();
    let lease = locks.reentrant("n").acquire().renewal(cancel).await.unwrap();
    let busy = keep_busy(&server, LEASE / 2);
    let reason = tokio::time::timeout(LONG, lease.lost()).await.unwrap();
    assert_eq!(reason, LostReason::GaveUp);
    busy.join().unwrap();
    assert!(pttl(&server, "n") > 0, "told long before the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_loads_its_data_is_a_risk_and_no_loss() {
    let options = ServerOptions {
        append_only: true,
        config: vec!["appendfsync always".into(), "key-load-delay 200".into()],
    };
    let server = RedisServer::start(&options).unwrap();
    let mut filler = redis::pipe();
    for number in 0..10_000 {
        filler.set(format!("filler:{number}"), number).ignore();
    }
    filler.exec(&mut direct(&server)).unwrap();
    let held = Held::on(&server).await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    eventually_async(LONG, || held.heard.renewals() >= held.leases.len()).await;
    for lease in &held.leases {
        let told = held.told(lease);
        assert!(told.is_empty() || told == [Told::AtRisk, Told::Recovered], "{told:?}");
    }
    assert!(held.are_valid());
    held.are_released().await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_forgotten_before_every_renewal_cost_nothing() {
    let server = fresh_server();
    let held = Held::on(&server).await;
    let flushed = Moment::now();
    while Moment::now().since(flushed) < LEASE * 3 / 2 {
        query::<()>(&server, redis::cmd("SCRIPT").arg("FLUSH"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    held.were_told(&[]);
    assert!(held.heard.renewals() >= 3 * held.leases.len());
    held.are_released().await;
}

/// A server that does not answer, while everybody waits with the holder, or a way to it that is cut off for the holder alone.
enum Silence {
    Frozen,
    /// `CLIENT PAUSE` of writes or of all.
    Paused(&'static str),
    Asleep,
    Leg(Mode),
}

const SILENCES: [Silence; 10] = [
    Silence::Frozen,
    Silence::Paused("WRITE"),
    Silence::Paused("ALL"),
    Silence::Asleep,
    Silence::Leg(Mode::Refuse),
    Silence::Leg(Mode::Swallow),
    Silence::Leg(Mode::Hold {
        deliver_after_close: true,
    }),
    Silence::Leg(Mode::Hold {
        deliver_after_close: false,
    }),
    Silence::Leg(Mode::HoldReplies),
    Silence::Leg(Mode::HoldRequests),
];

/// A server whose `DEBUG` works; before 7.0 it always does.
fn debuggable_server() -> RedisServer {
    let options = ServerOptions {
        config: vec!["enable-debug-command yes".into()],
        ..ServerOptions::default()
    };
    RedisServer::start(&options).unwrap_or_else(|_| fresh_server())
}

impl Silence {
    fn begin(&self, server: &RedisServer, leg: &Leg, time: Duration) {
        match self {
            Silence::Frozen => server.freeze().unwrap(),
            Silence::Paused(what) => {
                let millis = time.as_millis() as u64;
                query::<()>(server, redis::cmd("CLIENT").arg("PAUSE").arg(millis).arg(*what));
            }
            Silence::Asleep => {
                let mut connection = direct(server);
                let sleep = move || {
                    redis::cmd("DEBUG")
                        .arg("SLEEP")
                        .arg(time.as_secs_f64())
                        .exec(&mut connection)
                };
                std::thread::spawn(sleep);
            }
            Silence::Leg(mode) => leg.switch(*mode).unwrap(),
        }
    }

    /// Those that do not end by themselves.
    fn end(&self, server: &RedisServer, leg: &Leg) {
        match self {
            Silence::Frozen => server.thaw().unwrap(),
            Silence::Paused(_) | Silence::Asleep => {}
            Silence::Leg(_) => leg.switch(Mode::Pass).unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silence_within_the_lease_is_a_risk_and_no_loss() {
    let tries = SILENCES.iter().map(|silence| async move {
        let server = debuggable_server();
        let proxy = Proxy::start(&server).unwrap();
        let leg = proxy.leg().unwrap();
        let held = Held::through(&leg.url()).await;
        silence.begin(&server, &leg, LEASE / 2);
        held.all_told(Told::AtRisk).await;
        silence.end(&server, &leg);
        held.all_told(Told::Recovered).await;
        held.were_told(&[Told::AtRisk, Told::Recovered]);
        assert!(held.are_valid());
        held.are_released().await;
    });
    futures(tries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silence_longer_than_the_lease_is_a_loss_told_before_the_end_and_final() {
    let tries = SILENCES.iter().map(|silence| async move {
        let server = debuggable_server();
        let proxy = Proxy::start(&server).unwrap();
        let leg = proxy.leg().unwrap();
        let held = Held::through(&leg.url()).await;
        silence.begin(&server, &leg, LEASE * 3 / 2);
        held.all_told(Told::Lost(LostReason::DeadlinePassed)).await;
        held.were_told_in_time();
        silence.end(&server, &leg);
        // Whatever is delivered now revives nothing; letting go gives back what late renewals kept alive.
        tokio::time::sleep(LEASE / 2).await;
        held.were_told(&[Told::AtRisk, Told::Lost(LostReason::DeadlinePassed)]);
        assert!(held.leases.iter().all(|lease| !lease.is_valid()));
        let Held { leases, locks, .. } = held;
        drop(leases);
        eventually_async(2 * LONG, || {
            let left = tests::keys(&server);
            left.iter().all(|key| key.starts_with("redisson_lock_token:"))
        })
        .await;
        drop(locks);
    });
    futures(tries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_gone_or_no_lock_any_more_is_a_loss_at_the_next_renewal() {
    let server = fresh_server();
    let (gone, clobbered) = (Held::on(&server).await, fresh_server());
    let other = Held::on(&clobbered).await;
    query::<()>(&server, &redis::cmd("FLUSHALL"));
    for key in tests::keys(&clobbered) {
        query::<()>(&clobbered, redis::cmd("SET").arg(&key).arg("no lock"));
    }
    gone.all_told(Told::Lost(LostReason::NotOwner)).await;
    gone.were_told(&[Told::Lost(LostReason::NotOwner)]);
    other.all_told(Told::Lost(LostReason::KeyClobbered)).await;
    other.were_told(&[Told::Lost(LostReason::KeyClobbered)]);
    other.were_told_in_time();
    drop(other);
    for key in tests::keys(&clobbered) {
        let value: String = query(&clobbered, redis::cmd("GET").arg(&key));
        assert_eq!(value, "no lock", "what is not ours is left alone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_data_is_a_loss_at_the_next_renewal() {
    let server = fresh_server();
    let held = Held::on(&server).await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart_empty().unwrap();
        server
    });
    let _server = server.await.unwrap();
    held.all_told(Told::Lost(LostReason::NotOwner)).await;
    for lease in &held.leases {
        // A renewal may have met the moment without a server.
        let told = held.told(lease);
        assert!(
            matches!(told[..], [Told::Lost(_)] | [Told::AtRisk, Told::Lost(_)]),
            "{told:?}"
        );
    }
    held.were_told_in_time();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_without_eviction_costs_no_holder_anything() {
    let server = fresh_server();
    let held = Held::on(&server).await;
    set(&server, "maxmemory", "1");
    tokio::time::sleep(LEASE * 3 / 2).await;
    held.were_told(&[]);
    assert!(held.are_valid());
    held.are_released().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_evict_a_lock_is_a_loss_at_the_next_renewal() {
    let policies = [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ];
    let tries = policies.iter().map(|policy| async move {
        let server = fresh_server();
        let held = Held::on(&server).await;
        set(&server, "maxmemory-policy", policy);
        set(&server, "maxmemory", "1");
        eventually_async(LONG, || {
            // A write that fails itself has others evicted all the same.
            let _ = redis::cmd("SET").arg("filler").arg("x").exec(&mut direct(&server));
            held.leases.iter().all(|lease| {
                let key = lease.name().to_string();
                pttl(&server, key.split(", ").next().unwrap()) == -2
            })
        })
        .await;
        held.all_told(Told::Lost(LostReason::NotOwner)).await;
        held.were_told(&[Told::Lost(LostReason::NotOwner)]);
        held.were_told_in_time();
    });
    futures(tries).await;
}
