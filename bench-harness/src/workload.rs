//! Workload: which lock is wanted when and for how long; all drawn from the seed, before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;

use crate::driver::Access;
use crate::scenario::{ArrivalKind, KeyDist, Keys, Length, LengthKind, Scenario, nanos};

/// One request: a lock, and how long it is worked under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The lock.
    pub key: u64,
    /// What for.
    pub access: Access,
    /// Length of the work.
    pub hold_ns: u64,
    /// Pause of the client after it; 0 in an open workload.
    pub think_ns: u64,
}

/// A request of an open workload, and when it is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds since the start of the warm-up.
    pub at_ns: u64,
    /// What is wanted.
    pub request: Request,
}

/// An endless stream of requests: those of one client of a closed workload.
#[derive(Clone, Debug)]
pub struct Requests {
    rng: Rng,
    keys: Keys,
    /// For zipf: the share of all requests that wants this key or one before.
    up_to: Arc<[f64]>,
    hold: Length,
    think: Option<Length>,
    read_ratio: Option<f64>,
}

impl Requests {
    /// The requests of a client. Each client has a stream of its own, whatever process it lives in.
    pub fn of_client(scenario: &Scenario, client: u32) -> Self {
        Self {
            rng: Rng::with_seed(stream(scenario.seed, u64::from(client) + 1)),
            keys: scenario.workload.keys,
            up_to: up_to(scenario.workload.keys),
            hold: scenario.workload.hold,
            think: scenario.workload.think,
            read_ratio: scenario.workload.read_ratio,
        }
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let key = match self.keys.dist {
            KeyDist::Single => 0,
            KeyDist::Uniform => self.rng.u64(0..u64::from(self.keys.count)),
            KeyDist::Zipf => {
                let drawn = self.rng.f64();
                let key = self.up_to.partition_point(|share| *share <= drawn);
                key.min(self.up_to.len().saturating_sub(1)) as u64
            }
        };
        let hold_ns = draw(&mut self.rng, self.hold);
        let think_ns = self.think.map_or(0, |think| draw(&mut self.rng, think));
        // Drawn last, and only where it is asked for: other plans stay as they were.
        let reads = self.read_ratio.is_some_and(|ratio| self.rng.f64() < ratio);
        Some(Request {
            key,
            access: if reads { Access::Read } else { Access::Write },
            hold_ns,
            think_ns,
        })
    }
}

/// Every arrival of an open workload, warm-up included, in order of time.
///
/// The rate of the first seconds holds in the warm-up too; the stages count from its end.
pub fn arrivals(scenario: &Scenario) -> Vec<Arrival> {
    let Some(first) = scenario.workload.arrival else {
        return Vec::new();
    };
    let warm_up = nanos(scenario.scaled(scenario.workload.warm_up));
    let end = warm_up + nanos(scenario.scaled(scenario.workload.duration));
    let mut stages: Vec<_> = scenario
        .stages
        .iter()
        .map(|stage| (warm_up + nanos(scenario.scaled(stage.at)), stage.arrival))
        .collect();
    stages.sort_by_key(|stage| stage.0);
    stages.insert(0, (0, first));

    let mut requests = Requests::of_client(scenario, ARRIVALS);
    let mut gaps = Rng::with_seed(stream(scenario.seed, GAPS));
    let mut arrivals = Vec::new();
    for (index, &(from, arrival)) in stages.iter().enumerate() {
        let until = stages.get(index + 1).map_or(end, |next| next.0.min(end));
        let gap = 1e9 / arrival.rate.0;
        let mut after = match arrival.kind {
            ArrivalKind::Constant => 0.0,
            ArrivalKind::Poisson => exponential(&mut gaps, gap),
        };
        for step in 1.. {
            let at_ns = from + after as u64;
            if at_ns >= until {
                break;
            }
            // The stream of requests never ends.
            let Some(request) = requests.next() else { break };
            arrivals.push(Arrival { at_ns, request });
            after = match arrival.kind {
                // Multiplied, not added up: no error grows.
                ArrivalKind::Constant => f64::from(step) * gap,
                ArrivalKind::Poisson => after + exponential(&mut gaps, gap),
            };
        }
    }
    arrivals
}

/// The share of all arrivals that wants the key that most want; 0 without arrivals.
pub fn busiest_share(arrivals: &[Arrival]) -> f64 {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for arrival in arrivals {
        *counts.entry(arrival.request.key).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0) as f64 / arrivals.len().max(1) as f64
}

/// The same of what a scenario asks for, open or closed.
pub fn hottest_share(scenario: &Scenario) -> f64 {
    let open = arrivals(scenario);
    if !open.is_empty() {
        return busiest_share(&open);
    }
    let requests = Requests::of_client(scenario, 0).take(SAMPLE);
    let of_one: Vec<_> = requests.map(|request| Arrival { at_ns: 0, request }).collect();
    busiest_share(&of_one)
}

fn up_to(keys: Keys) -> Arc<[f64]> {
    if keys.dist != KeyDist::Zipf {
        return Arc::default();
    }
    let exponent = keys.s.unwrap_or(ZIPF);
    let weight = |key: u32| f64::from(key).powf(-exponent);
    let total: f64 = (1..=keys.count).map(weight).sum();
    let mut sum = 0.0;
    let shares = (1..=keys.count).map(|key| {
        sum += weight(key);
        sum / total
    });
    shares.collect()
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.f64()).ln() * mean
}

/// The part of something numbered that falls to worker `index` of `of`.
pub fn is_mine(number: usize, index: u32, of: u32) -> bool {
    number % of as usize == index as usize
}

/// A seed of its own for each stream, so that neighbouring streams have nothing in common.
fn stream(seed: u64, number: u64) -> u64 {
    // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): its step and finaliser.
    let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn draw(rng: &mut Rng, length: Length) -> u64 {
    let mean = length.mean.nanos();
    match length.kind {
        LengthKind::Fixed => mean,
        LengthKind::Exp => exponential(rng, mean as f64) as u64,
    }
}

/// The stream of an open workload lies apart from those of clients.
const ARRIVALS: u32 = u32::MAX;

/// And so does that of the time between two arrivals.
const GAPS: u64 = 1 << 33;

/// So many requests of one client show which key most want.
const SAMPLE: usize = 20_000;

/// The exponent that is used most: YCSB's.
const ZIPF: f64 = 0.99;

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str, overrides: &[&str]) -> Scenario {
        let overrides: Vec<_> = overrides.iter().map(|&text| text.to_owned()).collect();
        Scenario::read(name, &overrides).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_seed_another() {
        let plan = |seed: &str| arrivals(&scenario("flash-sale", &[seed]));
        assert_eq!(plan("seed=7"), plan("seed=7"));
        assert_ne!(plan("seed=7"), plan("seed=8"));
        let client = |seed: &str, client| {
            Requests::of_client(&scenario("uncontended", &[seed]), client)
                .take(500)
                .collect::<Vec<_>>()
        };
        assert_eq!(client("seed=7", 3), client("seed=7", 3));
        assert_ne!(client("seed=7", 3), client("seed=7", 4));
    }

    #[test]
    fn the_split_over_processes_changes_nothing() {
        let all = arrivals(&scenario("flash-sale", &[]));
        let mut joined: Vec<_> = (0..3)
            .flat_map(|worker| all.iter().enumerate().filter(move |(i, _)| is_mine(*i, worker, 3)))
            .collect();
        joined.sort_by_key(|(i, _)| *i);
        assert!(joined.into_iter().map(|(_, arrival)| arrival).eq(all.iter()));
    }

    #[test]
    fn rates_and_stages_come_out() {
        let sale = scenario("flash-sale", &[]);
        let all = arrivals(&sale);
        let second = |from: u64| {
            let range = from * 1_000_000_000..(from + 1) * 1_000_000_000;
            all.iter().filter(|arrival| range.contains(&arrival.at_ns)).count()
        };
        assert_eq!((second(2), second(9), second(15)), (60, 600, 60));
        assert!(all.is_sorted_by_key(|arrival| arrival.at_ns));
    }

    #[test]
    fn random_arrivals_have_their_rate_and_zipf_its_shares() {
        let poisson = scenario(
            "flash-sale",
            &["workload.arrival.kind=poisson", "workload.arrival.rate=2000/s"],
        );
        let first: Vec<_> = arrivals(&poisson)
            .into_iter()
            .filter(|arrival| arrival.at_ns < 6_000_000_000)
            .collect();
        assert!((11_600..12_400).contains(&first.len()), "{}", first.len());
        // A third of the gaps is longer than 1.1 times the mean if they are exponential, none if they are even.
        let long = first
            .windows(2)
            .filter(|pair| pair[1].at_ns - pair[0].at_ns > 550_000)
            .count() as f64;
        assert!((long / first.len() as f64 - 0.333).abs() < 0.03, "{long}");
        let zipf = |s: &str| {
            let all = arrivals(&scenario(
                "flash-sale",
                &["workload.keys.dist=zipf", s, "workload.arrival.rate=2000/s"],
            ));
            busiest_share(&all)
        };
        // 1 / sum(1/k^s) over 50 keys.
        assert!((zipf("workload.keys.s=1") - 0.2223).abs() < 0.02);
        assert!((zipf("workload.keys.s=0") - 0.02).abs() < 0.01);
    }

    #[test]
    fn the_share_of_readers_comes_out_and_changes_nothing_else() {
        let requests = |overrides: &[&str]| {
            let requests = Requests::of_client(&scenario("read-mostly", overrides), 1);
            requests.take(10_000).collect::<Vec<_>>()
        };
        let read = |request: &&Request| request.access == Access::Read;
        let reads = requests(&["workload.read_ratio=0.25"]).iter().filter(read).count();
        assert!((2_300..2_700).contains(&reads), "{reads}");
        assert_eq!(requests(&["workload.read_ratio=0"]).iter().filter(read).count(), 0);
        assert_eq!(requests(&["workload.read_ratio=1"]).iter().filter(read).count(), 10_000);
    }

    #[test]
    fn exponential_holds_have_their_mean() {
        let requests = Requests::of_client(&scenario("flash-sale", &[]), 1);
        let mean = requests.take(20_000).map(|request| request.hold_ns as f64).sum::<f64>() / 20_000.0;
        assert!((mean / 2e7 - 1.0).abs() < 0.05, "{mean} ns");
    }
}
