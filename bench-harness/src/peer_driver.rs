//! `lockbench driver`: leasehold under the line protocol by which lock libraries of other languages are measured beside each
//! other. It only takes locks, counts and times; the server, the CPU and the memory are read by whoever started it.
//!
//! It prints `READY`, then for each line `GO` on standard input runs once and prints one line of JSON; it ends with its input.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use leasehold::{AcquireOptions, Lease, LockKind, Lockable, Locks};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::clock;

/// What to measure. The names are the line protocol's.
#[derive(Debug, clap::Args)]
pub struct PeerDriver {
    /// The kind of lock, as `lockbench list locks` names them.
    #[arg(long, default_value = "reentrant")]
    kind: LockKind,
    /// Take read locks.
    #[arg(long)]
    read: bool,
    /// The server.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    #[arg(long, default_value_t = 6379)]
    port: u16,
    /// Lock and unlock in a loop, or take locks and keep them.
    #[arg(long, value_enum, default_value_t = Mode::Cycle)]
    mode: Mode,
    /// Concurrent tasks.
    #[arg(long, default_value_t = 1)]
    tasks: usize,
    /// A key for each task, or one for all.
    #[arg(long, value_enum, default_value_t = Keys::Own)]
    keys: Keys,
    /// Length of the measured part, in seconds.
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    /// The same loop before READY, in milliseconds.
    #[arg(long, default_value_t = 0)]
    warmup_ms: u64,
    /// How long each lock is held, in microseconds.
    #[arg(long, default_value_t = 0)]
    hold_us: u64,
    /// How many locks are kept.
    #[arg(long, default_value_t = 0)]
    held: usize,
    /// 1: kept locks are renewed; 0: they have a fixed lease.
    #[arg(long, default_value_t = 0)]
    watchdog: u8,
    /// The lease, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    lease_ms: u64,
    /// Of all keys.
    #[arg(long, default_value = "driver")]
    prefix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Cycle,
    Hold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keys {
    Own,
    One,
}

/// One line of results.
#[derive(Debug, Serialize)]
struct Line {
    ops: u64,
    secs: f64,
    errors: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    per_task: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lat_us: Option<Latencies>,
    switches: u64,
    violations: u64,
}

#[derive(Debug, Serialize)]
struct Latencies {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// Runs until its input ends.
///
/// # Errors
/// What went wrong with Redis or with the pipes.
pub fn drive(arguments: PeerDriver) -> Result<(), Box<dyn std::error::Error>> {
    // One thread, as the other Rust drivers beside it have: a task and its connection on two threads cost two changes of thread a
    // command. Renewal has a thread of its own in any case.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = format!("redis://{}:{}/", arguments.host, arguments.port);
    let mut settings = Locks::builder().standalone(&url);
    if arguments.mode == Mode::Hold && arguments.watchdog == 1 {
        settings = settings.watchdog_time(Duration::from_millis(arguments.lease_ms));
    }
    let locks = runtime.block_on(settings.build())?;
    if arguments.warmup_ms > 0 && arguments.mode == Mode::Cycle {
        let time = Duration::from_millis(arguments.warmup_ms);
        runtime.block_on(cycle(&locks, &arguments, &format!("{}:warm", arguments.prefix), time));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "READY")?;
    out.flush()?;
    let mut kept = Vec::new();
    for line in std::io::stdin().lock().lines() {
        if line?.trim() != "GO" {
            continue;
        }
        kept.clear();
        let line = match arguments.mode {
            Mode::Cycle => {
                let time = Duration::from_secs_f64(arguments.secs);
                runtime.block_on(cycle(&locks, &arguments, &arguments.prefix, time))
            }
            Mode::Hold => {
                let (line, leases) = runtime.block_on(hold(&locks, &arguments));
                kept = leases;
                line
            }
        };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
        out.flush()?;
    }
    Ok(())
}

fn lock_of(locks: &Locks, arguments: &PeerDriver, name: String) -> Box<dyn Lockable> {
    match arguments.read {
        true => locks.lock_for_reading(arguments.kind, name),
        false => locks.lock(arguments.kind, name),
    }
}

/// What all tasks of one measurement share.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    errors: AtomicU64,
    switches: AtomicU64,
    violations: AtomicU64,
    /// Holders at this moment, and the last task that was one.
    inside: AtomicU32,
    last: AtomicU64,
}

async fn cycle(locks: &Locks, arguments: &PeerDriver, prefix: &str, time: Duration) -> Line {
    let shared = Arc::new(Shared::default());
    let one = arguments.keys == Keys::One;
    let exclusive = one && !arguments.read;
    let begin_ns = clock::now_ns();
    let mut tasks = JoinSet::new();
    for task in 0..arguments.tasks {
        let name = match one {
            true => format!("{prefix}:one"),
            false => format!("{prefix}:own:{task}"),
        };
        let lock = lock_of(locks, arguments, name);
        let hold = Duration::from_micros(arguments.hold_us);
        tasks.spawn(cycles(task, lock, shared.clone(), hold, exclusive));
    }
    tokio::time::sleep(time.saturating_sub(clock::since(begin_ns))).await;
    shared.over.store(true, Ordering::Relaxed);
    let secs = clock::since(begin_ns).as_secs_f64();
    let mut per_task = vec![0; arguments.tasks];
    let mut waits = Vec::new();
    while let Some(done) = tasks.join_next().await {
        if let Ok((task, task_waits)) = done {
            per_task[task] = task_waits.len() as u64;
            waits.extend(task_waits);
        }
    }
    waits.sort_unstable();
    let at = |share: f64| {
        let index = ((waits.len() as f64 * share) as usize).min(waits.len().saturating_sub(1));
        waits.get(index).copied().unwrap_or_default() as f64 / 1e3
    };
    Line {
        ops: per_task.iter().sum(),
        secs,
        errors: shared.errors.load(Ordering::Relaxed),
        per_task,
        lat_us: Some(Latencies {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }),
        switches: shared.switches.load(Ordering::Relaxed),
        violations: shared.violations.load(Ordering::Relaxed),
    }
}

/// The cycles of one task: how long each acquire took, in nanoseconds.
async fn cycles(
    task: usize,
    lock: Box<dyn Lockable>,
    shared: Arc<Shared>,
    hold: Duration,
    exclusive: bool,
) -> (usize, Vec<u64>) {
    let mut waits = Vec::new();
    while !shared.over.load(Ordering::Relaxed) {
        let begin_ns = clock::now_ns();
        let Ok(lease) = lock.acquire_with(AcquireOptions::new()).await else {
            shared.errors.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        waits.push(clock::now_ns() - begin_ns);
        if exclusive {
            let others = shared.inside.fetch_add(1, Ordering::SeqCst);
            shared.violations.fetch_add(u64::from(others > 0), Ordering::Relaxed);
            let before = shared.last.swap(task as u64, Ordering::Relaxed);
            shared
                .switches
                .fetch_add(u64::from(before != task as u64), Ordering::Relaxed);
        }
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        if exclusive {
            shared.inside.fetch_sub(1, Ordering::SeqCst);
        }
        if lease.release().await.is_err() {
            shared.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
    (task, waits)
}

async fn hold(locks: &Locks, arguments: &PeerDriver) -> (Line, Vec<Lease>) {
    let begin_ns = clock::now_ns();
    let mut errors = 0;
    let mut leases = Vec::with_capacity(arguments.held);
    for first in (0..arguments.held).step_by(TAKEN_AT_ONCE) {
        let mut taking = JoinSet::new();
        for number in first..(first + TAKEN_AT_ONCE).min(arguments.held) {
            let lock = lock_of(locks, arguments, format!("{}:held:{number}", arguments.prefix));
            let options = match arguments.watchdog {
                1 => AcquireOptions::new(),
                _ => AcquireOptions::new().lease_time(Duration::from_millis(arguments.lease_ms)),
            };
            taking.spawn(lock.acquire_with(options));
        }
        while let Some(taken) = taking.join_next().await {
            match taken {
                Ok(Ok(lease)) => leases.push(lease),
                _ => errors += 1,
            }
        }
    }
    let line = Line {
        ops: leases.len() as u64,
        secs: clock::since(begin_ns).as_secs_f64(),
        errors,
        per_task: Vec::new(),
        lat_us: None,
        switches: 0,
        violations: 0,
    };
    (line, leases)
}

/// Enough to fill the link.
const TAKEN_AT_ONCE: usize = 64;
