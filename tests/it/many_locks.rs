//! Many held locks of mixed kinds on one watchdog: none is lost, none waits long for its renewal, and what that costs.
//!
//! Scaled here; `scripts/soak` holds 20,000.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{AcquireOptions, Event, EventKind, Lease, LeaseState, LockKind, Locks, Moment, Observer};
use leasehold_bench::proxy::{Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use tests::{fresh_server, query, script_calls};
use tokio::task::JoinSet;

#[tokio::test]
async fn many_held_locks_of_mixed_kinds_are_renewed_in_time() {
    let many: usize = std::env::var("SOAK_LOCKS").map_or(2_000, |many| many.parse().unwrap());
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    leg.switch(Mode::Delay(Duration::from_millis(1))).unwrap();
    let gaps = Gaps::default();
    let builder = Locks::builder().standalone(&leg.url()).watchdog_time(LEASE);
    let locks = builder.observer(Arc::new(gaps.clone())).build().await.unwrap();
    let leases = hold(&locks, many).await;
    println!("{many} locks held, {} lost while others were acquired", lost(&leases));

    let before = Cost::so_far(&server, leg.bytes().to_server + leg.bytes().to_client);
    let begin = Moment::now();
    tokio::time::sleep(LEASE * 3).await;
    let took = Moment::now().since(begin);
    let cost = Cost::so_far(&server, leg.bytes().to_server + leg.bytes().to_client).less(&before);
    let (renewals, longest) = gaps.since(begin, many);
    println!(
        "in {took:.1?}: {renewals} renewals in {} calls, {} kB, {:.2} s of CPU in the watchdog, {:.2} s in Redis; longest gap {longest:.2?}",
        cost.calls,
        cost.bytes / 1_000,
        cost.watchdog_s,
        cost.server_s
    );
    assert_eq!(lost(&leases), 0);
    assert!(leases.iter().all(Lease::is_valid));
    // Nine in three leases; a busy machine may still owe one.
    assert!(renewals >= many * 8, "{renewals}");
    assert!(longest < LEASE.mul_f64(0.6), "{longest:?}");
    assert!(cost.calls < renewals as u64, "what is due goes out together");
}

/// So many locks, of each kind as many as of the others.
async fn hold(locks: &Locks, many: usize) -> Vec<Lease> {
    let mut acquiring = JoinSet::new();
    let mut leases = Vec::new();
    for n in 0..many {
        let name = format!("n:{n}");
        let lock = match LockKind::ALL.get(n % (LockKind::ALL.len() + 1)) {
            Some(kind) => locks.lock(*kind, name),
            None => locks.lock_for_reading(LockKind::ReadWrite, name),
        };
        acquiring.spawn(async move { lock.acquire_with(AcquireOptions::new()).await.unwrap() });
        if acquiring.len() == AT_ONCE {
            leases.extend(acquiring.join_next().await.map(Result::unwrap));
        }
    }
    leases.extend(acquiring.join_all().await);
    leases
}

fn lost(leases: &[Lease]) -> usize {
    let lost = leases
        .iter()
        .filter(|lease| matches!(*lease.state().borrow(), LeaseState::Lost(_)));
    lost.count()
}

/// When each lock was renewed.
#[derive(Clone, Default)]
struct Gaps(Arc<Mutex<HashMap<String, Vec<Moment>>>>);

impl Observer for Gaps {
    fn event(&self, event: &Event) {
        if let EventKind::Renewed { sent } = event.kind {
            let mut renewed = self.0.lock().expect("never poisoned");
            renewed.entry(event.holder.to_string()).or_default().push(sent);
        }
    }
}

impl Gaps {
    /// How many renewals there were, and the longest time between two of one lock, or from its last one until now.
    fn since(&self, begin: Moment, many: usize) -> (usize, Duration) {
        let mut renewed = self.0.lock().expect("never poisoned");
        assert_eq!(renewed.len(), many, "each was renewed");
        let now = Moment::now();
        let all = renewed.values().flatten().filter(|at| **at >= begin).count();
        renewed.values_mut().for_each(|at| at.push(now));
        let gaps = renewed
            .values()
            .flat_map(|at| at.windows(2))
            .map(|pair| pair[1].since(pair[0]));
        (all, gaps.max().unwrap_or_default())
    }
}

/// What renewing costs.
struct Cost {
    calls: u64,
    bytes: u64,
    watchdog_s: f64,
    server_s: f64,
}

impl Cost {
    fn so_far(server: &RedisServer, bytes: u64) -> Self {
        let info: String = query(server, redis::cmd("INFO").arg("cpu"));
        let of = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<f64>().ok())
                .expect("every version has it")
        };
        Cost {
            calls: script_calls(server),
            bytes,
            watchdog_s: watchdog_cpu_s(),
            server_s: of("used_cpu_user:") + of("used_cpu_sys:"),
        }
    }

    fn less(&self, earlier: &Cost) -> Cost {
        Cost {
            calls: self.calls - earlier.calls,
            bytes: self.bytes - earlier.bytes,
            watchdog_s: self.watchdog_s - earlier.watchdog_s,
            server_s: self.server_s - earlier.server_s,
        }
    }
}

/// The CPU time of all watchdog threads of this process; 0 where there is no /proc.
fn watchdog_cpu_s() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let time = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let is_ours = name.starts_with("leasehold-watch");
        is_ours.then(|| time.split(' ').next()?.parse::<u64>().ok())?
    });
    nanos.sum::<u64>() as f64 / 1e9
}

const LEASE: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 128;
