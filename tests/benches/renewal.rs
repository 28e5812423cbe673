//! What holding a lock costs its holder and the watchdog: `is_valid()` of a real lease, and the steps of a renewal.

// The macros of criterion make a function without a comment.
#![allow(missing_docs)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use leasehold::RenewalPolicy;
use leasehold::simulation::{Family, Fault, World, run};
use tests::{client, fresh_server};

fn is_valid(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a thread can be started");
    let server = fresh_server();
    let lease = runtime.block_on(async { client(&server).await.reentrant("n").acquire().await });
    let lease = lease.expect("a server of our own");
    criterion.bench_function("is_valid", |bench| bench.iter(|| lease.is_valid()));
    assert!(lease.is_valid(), "what was measured is a lease that is held");
    runtime.block_on(lease.release()).expect("a server of our own");
}

/// A thousand renewals in virtual time, each of a timer and an answer; the simulation around them is part of the time.
fn step(criterion: &mut Criterion) {
    let period = LEASE.as_nanos() as u64 / 3;
    let never = u64::MAX / 2;
    let world = World {
        policy: RenewalPolicy::deadline(),
        lease: LEASE,
        fault: Fault {
            family: Family::Refuse,
            holder_only: false,
            from: never,
            to: never,
        },
        work_ends: 1_000 * period + 1,
        reaction: 0,
        jitter: None,
    };
    let steps = 2 * run(&world).sends.len() as u64;
    assert_eq!(steps, 2_000);
    let mut group = criterion.benchmark_group("renewal");
    group.throughput(Throughput::Elements(steps));
    group.bench_function("steps", |bench| bench.iter(|| run(&world)));
    group.finish();
}

const LEASE: Duration = Duration::from_secs(30);

criterion_group!(benches, is_valid, step);
criterion_main!(benches);
