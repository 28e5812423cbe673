//! The client's own renewal, in virtual time, against the closed forms: exactly the same without jitter, within their bounds with it.
//!
//! A seed that fails is printed; `SIMULATION_SEED=<seed> cargo test -p leasehold-bench --test simulation` replays it alone, and
//! `SIMULATION_SEEDS=<number>` tries more of them.

use std::time::Duration;

use leasehold::simulation::{self, Jitter, World, run};
use leasehold::{Effort, RenewalPolicy};
use leasehold_bench::predict::{Family, Fault, POLICIES, Timings};
use leasehold_bench::scenario::Scope;

#[test]
fn without_jitter_the_client_does_exactly_what_the_closed_forms_say() {
    let mut compared = 0;
    for policy in POLICIES {
        let timings = Timings::of(policy, LEASE).unwrap().without_jitter();
        for family in Family::ALL {
            for scope in SCOPES {
                for heals in ends_of_faults(policy, family, &timings) {
                    for phase in [0, 1, timings.period.1 / 2, timings.period.1 - 1] {
                        let length = heals - phase;
                        if length > 0 {
                            compare(
                                policy,
                                &timings,
                                Fault {
                                    family,
                                    scope,
                                    phase,
                                    length,
                                },
                            );
                            compared += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn with_jitter_the_client_stays_within_the_bounds_and_never_does_what_must_not_be() {
    let one = std::env::var("SIMULATION_SEED").ok().map(|seed| seed.parse().unwrap());
    let many = std::env::var("SIMULATION_SEEDS").map_or(5_000, |seeds| seeds.parse().unwrap());
    let seeds = one.map_or(0..many, |seed: u64| seed..seed + 1);
    let mut tally = Tally::default();
    for seed in seeds {
        tally.add(&play(seed));
    }
    if one.is_none() && many >= 5_000 {
        tally.is_complete();
    }
}

/// One lock without jitter: its fate, when it was told, when another had it, and how long both were at work.
fn compare(policy: &str, timings: &Timings, fault: Fault) {
    let work_ends = fault.heals() + 4 * timings.lease;
    let world = World {
        policy: policy_of(policy),
        lease: LEASE,
        fault: simulated(fault.family, fault.scope, fault.phase, fault.heals()),
        work_ends: work_ends as u64,
        reaction: REACTION as u64,
        jitter: None,
    };
    let story = run(&world);
    let fate = timings.fate(&fault);
    assert!(
        story.violations.is_empty(),
        "{policy} {fault:?}: {:?}",
        story.violations
    );
    let told = story.told.map(|at| at as i64);
    assert_eq!(told, fate.told, "told: {policy} {fault:?}");
    let taken = story.taken.filter(|at| *at < story.stopped).map(|at| at as i64);
    assert_eq!(told.is_some() || taken.is_some(), fate.lost, "lost: {policy} {fault:?}");
    let overlap = taken.map_or(0, |taken| story.stopped as i64 - taken);
    assert_eq!(
        overlap,
        fate.overlap(REACTION, work_ends),
        "overlap: {policy} {fault:?}"
    );
    if fate.lost && told.is_none() {
        assert_eq!(taken, fate.taken, "taken: {policy} {fault:?}");
    }
}

/// Every quarter of a second, and each moment at which something is decided, with its neighbours.
fn ends_of_faults(policy: &str, family: Family, timings: &Timings) -> Vec<i64> {
    let for_good = World {
        policy: policy_of(policy),
        lease: LEASE,
        fault: simulated(family, Scope::Holders, 0, 10 * timings.lease),
        work_ends: 2 * timings.lease as u64,
        reaction: 0,
        jitter: None,
    };
    let sends = run(&for_good).sends.into_iter().map(|at| at as i64);
    let sends: Vec<i64> = sends.filter(|at| *at < timings.lease * 5 / 4).collect();
    let chance = timings.last_chance(family);
    let decided = [timings.period.1, chance.latest, timings.deadline(), timings.lease];
    let answers: Vec<i64> = sends.iter().map(|at| at + timings.attempt).collect();
    let decided = decided.iter().chain(&sends).chain(&answers);
    let mut ends: Vec<i64> = decided.flat_map(|at| [at - 1, *at, at + 1]).collect();
    ends.extend((1..200).map(|quarter| quarter * 250_000_000));
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// What a seed came to.
struct Played {
    family: Family,
    lost: bool,
    told: bool,
    overlapped: bool,
    compared: bool,
}

/// A policy, a fault and a machine of the seed's own.
fn play(seed: u64) -> Played {
    let mut random = fastrand::Rng::with_seed(seed);
    let policy = POLICIES[random.usize(0..POLICIES.len())];
    let family = Family::ALL[random.usize(0..4)];
    let scope = SCOPES[random.usize(0..2)];
    let lease = Duration::from_millis(random.u64(3_000..60_000));
    let timings = Timings::of(policy, lease).unwrap();
    let jitter = Jitter {
        seed: random.u64(..),
        round_trip: random.u64(2..=timings.lease as u64 / 5_000),
        lateness: random.u64(0..=timings.lease as u64 / 5_000),
    };
    let from = random.i64(0..5 * timings.lease);
    let to = from + random.i64(1..timings.lease * 3 / 2);
    let world = World {
        policy: policy_of(policy),
        lease,
        fault: simulated(family, scope, from, to),
        work_ends: (to + 4 * timings.lease) as u64,
        reaction: 0,
        jitter: Some(jitter),
    };
    let story = run(&world);
    let replay = || format!("seed {seed} (SIMULATION_SEED={seed} replays it): {world:#?} {story:#?} {timings:?}");
    assert!(story.violations.is_empty(), "{}", replay());

    let heals = to - story.last_renewal as i64;
    let chance = timings.last_chance(family);
    // Each of some attempts is late by as much, and the last one of a deadline policy leaves eight round trips before the end.
    let slack = 20 * (jitter.round_trip + jitter.lateness) as i64;
    let taken = story.taken.filter(|at| *at < story.stopped);
    let lost = story.told.is_some() || taken.is_some();
    // Where the answer of the last renewal is lost, the client counts from the one before.
    let compared = !story.unheard;
    if compared {
        if heals > chance.latest + slack || heals >= chance.before + slack {
            assert!(lost, "kept beyond its last chance: {}", replay());
        }
        if heals + slack < chance.earliest {
            assert!(!lost, "lost before its last chance: {}", replay());
        }
        if let (true, Some((earliest, latest))) = (lost, timings.told(family, heals)) {
            let told = story.told.expect("a policy that tells") as i64 - story.last_renewal as i64;
            assert!(
                told + slack >= earliest && told <= latest + slack,
                "told {told}, not {earliest}..{latest}: {}",
                replay()
            );
        }
    }
    if policy.starts_with("deadline") {
        assert!(taken.is_none(), "two at work at once: {}", replay());
    }
    Played {
        family,
        lost,
        told: story.told.is_some(),
        overlapped: taken.is_some(),
        compared,
    }
}

/// What the seeds came to: a simulation in which nothing happens shows nothing.
#[derive(Default)]
struct Tally {
    kept: usize,
    lost: usize,
    told: usize,
    overlapped: usize,
    compared: usize,
    families: [usize; 4],
}

impl Tally {
    fn add(&mut self, played: &Played) {
        let count = |happened: bool| usize::from(happened);
        self.kept += count(!played.lost);
        self.lost += count(played.lost);
        self.told += count(played.told);
        self.overlapped += count(played.overlapped);
        self.compared += count(played.compared);
        self.families[played.family as usize] += 1;
    }

    fn is_complete(&self) {
        let Tally {
            kept,
            lost,
            told,
            overlapped,
            compared,
            families,
        } = *self;
        println!(
            "{kept} kept, {lost} lost, {told} told, {overlapped} with two at work, {compared} compared with the forms"
        );
        assert!(kept > 1_000 && lost > 1_000 && told > 500 && overlapped > 100);
        assert!(compared > 4_000 && families.iter().all(|runs| *runs > 1_000));
    }
}

fn policy_of(name: &str) -> RenewalPolicy {
    if name == "next-tick" {
        let mut policy = RenewalPolicy::naive_cancel();
        policy.effort = Effort::NextTick;
        return policy;
    }
    name.parse().unwrap()
}

fn simulated(family: Family, scope: Scope, from: i64, to: i64) -> simulation::Fault {
    simulation::Fault {
        family: match family {
            Family::Refuse => simulation::Family::Refuse,
            Family::Swallow => simulation::Family::Swallow,
            Family::Pending => simulation::Family::Pending,
            Family::Delivered => simulation::Family::Delivered,
            Family::Frozen => panic!("the simulation stops no process"),
        },
        holder_only: scope == Scope::Holders,
        from: from as u64,
        to: to as u64,
    }
}

const LEASE: Duration = Duration::from_secs(30);
const SCOPES: [Scope; 2] = [Scope::All, Scope::Holders];
/// How long a holder takes to stop in the exact comparison.
const REACTION: i64 = 250_000_000;
