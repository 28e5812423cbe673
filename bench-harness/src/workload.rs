//! Workload: which lock is wanted when and for how long; all drawn from the seed, before anything runs.

mod draw;
mod profile;
mod segment;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

pub use segment::Segment;

use crate::driver::Access;
use crate::scenario::{Reentry, Scenario, nanos};

/// One request: a lock, and how long it is worked under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The lock.
    pub key: u64,
    /// What for.
    pub access: Access,
    /// Length of the work.
    pub hold_ns: u64,
    /// How many times more the lock is taken while it is held.
    pub reentries: u32,
    /// Pause of the client after it; 0 in an open workload.
    pub think_ns: u64,
}

/// A request of an open workload, and when it is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// Nanoseconds since the start of the warm-up.
    pub at_ns: u64,
    /// What is wanted.
    pub request: Request,
}

/// What the requests of a scenario are drawn from. Made once, and shared by all clients of a process.
#[derive(Clone, Debug)]
pub struct Plan(Arc<Distributions>);

#[derive(Debug)]
struct Distributions {
    seed: u64,
    keys: draw::Keys,
    hold: draw::Length,
    think: Option<draw::Length>,
    read_ratio: Option<f64>,
    reentry: Option<Reentry>,
}

impl Plan {
    /// The plan of a scenario, which was checked.
    pub fn of(scenario: &Scenario) -> Self {
        let work = &scenario.workload;
        Self(Arc::new(Distributions {
            seed: scenario.seed,
            keys: draw::Keys::new(&work.keys, stream(scenario.seed, RANKS)),
            hold: draw::Length::new(&work.hold),
            think: work.think.as_ref().map(draw::Length::new),
            read_ratio: work.read_ratio,
            reentry: work.reentry,
        }))
    }

    /// The requests of a client. Each client has a stream of its own, whatever process it lives in.
    pub fn client(&self, client: u32) -> Requests {
        self.stream(u64::from(client) + 1)
    }

    fn stream(&self, number: u64) -> Requests {
        Requests {
            rng: Xoshiro256PlusPlus::seed_from_u64(stream(self.0.seed, number)),
            plan: self.clone(),
        }
    }
}

/// An endless stream of requests: those of one client of a closed workload.
#[derive(Clone, Debug)]
pub struct Requests {
    rng: Xoshiro256PlusPlus,
    plan: Plan,
}

impl Requests {
    /// The next request.
    pub fn draw(&mut self) -> Request {
        let from = &*self.plan.0;
        let key = from.keys.draw(&mut self.rng);
        let hold_ns = from.hold.draw(&mut self.rng);
        let think_ns = from.think.as_ref().map_or(0, |think| think.draw(&mut self.rng));
        // Drawn last, and only where it is asked for: other plans stay as they were.
        let reads = from.read_ratio.is_some_and(|ratio| self.rng.random::<f64>() < ratio);
        let reentry = from.reentry.filter(|reentry| self.rng.random::<f64>() < reentry.prob);
        Request {
            reentries: reentry.map_or(0, |reentry| reentry.depth),
            key,
            access: if reads { Access::Read } else { Access::Write },
            hold_ns,
            think_ns,
        }
    }
}

/// Every arrival of an open workload, warm-up included, in order of time.
///
/// The rate of the first seconds holds in the warm-up too; the stages count from its end.
pub fn arrivals(scenario: &Scenario) -> Vec<Arrival> {
    let Some(first) = &scenario.workload.arrival else {
        return Vec::new();
    };
    let warm_up = scenario.scaled(scenario.workload.warm_up);
    let end = warm_up + scenario.scaled(scenario.workload.duration);
    let later = scenario
        .stages
        .iter()
        .map(|stage| (warm_up + scenario.scaled(stage.at), &stage.arrival));
    let mut stages: Vec<_> = later.collect();
    stages.sort_by_key(|stage| stage.0);
    stages.insert(0, (Default::default(), first));

    let mut requests = Plan::of(scenario).stream(ARRIVALS);
    let mut gaps = Xoshiro256PlusPlus::seed_from_u64(stream(scenario.seed, GAPS));
    let mut arrivals = Vec::new();
    for (index, (from, arrival)) in stages.iter().enumerate() {
        let until = stages.get(index + 1).map_or(end, |next| next.0.min(end));
        let lead = if index == 0 { warm_up } else { Default::default() };
        let length = until.saturating_sub(*from);
        let instants = profile::instants(arrival, (lead, length), |time| scenario.scaled(time), &mut gaps);
        arrivals.extend(instants.into_iter().map(|at| Arrival {
            at_ns: nanos(*from) + at,
            request: requests.draw(),
        }));
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
    let mut requests = Plan::of(scenario).client(0);
    let of_one: Vec<_> = (0..SAMPLE)
        .map(|_| Arrival {
            at_ns: 0,
            request: requests.draw(),
        })
        .collect();
    busiest_share(&of_one)
}

/// A seed of its own for each stream, so that neighbouring streams have nothing in common.
fn stream(seed: u64, number: u64) -> u64 {
    // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): its step and finaliser.
    let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The streams of an open workload lie apart from those of clients,
const ARRIVALS: u64 = 1 << 32;

/// that of the time between two arrivals too,
const GAPS: u64 = 1 << 33;

/// and that which deals the ranks of a scrambled distribution.
const RANKS: u64 = 1 << 34;

/// So many requests of one client show which key most want.
const SAMPLE: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hash, Hasher};

    fn scenario(name: &str, overrides: &[&str]) -> Scenario {
        let overrides: Vec<_> = overrides.iter().map(|&text| text.to_owned()).collect();
        Scenario::read(name, &overrides).unwrap()
    }

    /// A hash of a set of things, whatever their order.
    fn hash<T: Hash>(set: impl IntoIterator<Item = T>) -> u64 {
        let of_one = |one: T| {
            let mut hasher = DefaultHasher::new();
            one.hash(&mut hasher);
            hasher.finish()
        };
        set.into_iter().fold(0, |sum, one| sum.wrapping_add(of_one(one)))
    }

    /// The first requests of those clients of a thousand that are in a segment.
    fn of_clients(scenario: &Scenario, segment: Segment) -> Vec<(u32, usize, Request)> {
        let plan = Plan::of(scenario);
        let of_client = |client| {
            let mut requests = plan.client(client);
            (0..20).map(move |number| (client, number, requests.draw()))
        };
        segment.clients(1_000).flat_map(of_client).collect()
    }

    const ALL_OF_IT: [&str; 4] = [
        "workload.arrival={ kind = \"poisson\", rate = \"300/s\" }",
        "workload.keys={ count = 500, dist = \"zipf\", scramble = true }",
        "workload.hold={ kind = \"lognormal\", p50 = \"5ms\", p99 = \"50ms\" }",
        "seed=7",
    ];

    #[test]
    fn the_same_seed_makes_the_same_load_and_another_seed_another() {
        let open = |last: &str| {
            let overrides: Vec<_> = ALL_OF_IT.into_iter().chain([last]).collect();
            hash(arrivals(&scenario("flash-sale", &overrides)))
        };
        assert_eq!(open("seed=7"), open("seed=7"));
        assert_ne!(open("seed=7"), open("seed=8"));
        let closed = |seed: &str| hash(of_clients(&scenario("read-mostly", &[seed]), Segment::WHOLE));
        assert_eq!(closed("seed=7"), closed("seed=7"));
        assert_ne!(closed("seed=7"), closed("seed=8"));
        let of_client = |client: u32| {
            let mut requests = Plan::of(&scenario("uncontended", &[])).client(client);
            hash((0..500).map(|_| requests.draw()))
        };
        assert_ne!(of_client(3), of_client(4));
    }

    #[test]
    fn one_times_a_thousand_and_four_times_250_make_the_same_load() {
        let quarters: Vec<_> = (0..4).map(|index| Segment::WHOLE.part(index, 4)).collect();
        let closed = scenario("read-mostly", &ALL_OF_IT[1..]);
        let parts: Vec<_> = quarters.iter().map(|part| of_clients(&closed, *part)).collect();
        assert!(parts.iter().all(|part| part.len() == 250 * 20));
        assert_eq!(
            hash(parts.concat()),
            hash(of_clients(&closed, Segment::WHOLE)),
            "of clients"
        );
        let open = scenario("flash-sale", &ALL_OF_IT);
        let all = arrivals(&open);
        let parts: Vec<Vec<_>> = quarters
            .iter()
            .map(|part| part.arrivals(all.clone()).collect())
            .collect();
        let (least, most) = (all.len() / 4, all.len().div_ceil(4));
        assert!(parts.iter().all(|part| (least..=most).contains(&part.len())));
        assert_eq!(hash(parts.concat()), hash(all), "of arrivals");
    }

    #[test]
    fn rates_and_stages_come_out() {
        let even = |path: &str, rate: u32| format!("{path}={{ kind = \"constant\", rate = \"{rate}/s\" }}");
        let stages = "stage=[{ at = \"6s\", arrival = { kind = \"constant\", rate = \"600/s\" } }, \
                      { at = \"12s\", arrival = { kind = \"constant\", rate = \"60/s\" } }]";
        let all = arrivals(&scenario("flash-sale", &[&even("workload.arrival", 60), stages]));
        let second = |from: u64| {
            let range = from * 1_000_000_000..(from + 1) * 1_000_000_000;
            all.iter().filter(|arrival| range.contains(&arrival.at_ns)).count()
        };
        assert_eq!((second(2), second(9), second(15)), (60, 600, 60));
        assert!(all.is_sorted_by_key(|arrival| arrival.at_ns));
    }

    #[test]
    fn the_busiest_key_has_its_share() {
        let overrides = [
            "workload.keys={ count = 50, dist = \"zipf\", s = 1.0 }",
            "workload.arrival={ kind = \"poisson\", rate = \"2000/s\" }",
        ];
        // 1 / sum(1/k) over 50 keys.
        let share = busiest_share(&arrivals(&scenario("flash-sale", &overrides)));
        assert!((share - 0.2223).abs() < 0.02, "{share}");
        assert_eq!(busiest_share(&[]), 0.0);
    }

    #[test]
    fn the_share_of_those_that_re_enter_comes_out() {
        let overrides = ["workload.reentry={ depth = 3, prob = 0.25 }".to_owned()];
        let reentrant = Scenario::read("hot-key", &overrides).unwrap();
        let mut requests = Plan::of(&reentrant).client(1);
        let depths: Vec<_> = (0..10_000).map(|_| requests.draw().reentries).collect();
        let deep = depths.iter().filter(|depth| **depth == 3).count();
        assert!((2_300..2_700).contains(&deep), "{deep}");
        assert_eq!(depths.iter().filter(|depth| **depth == 0).count(), 10_000 - deep);
    }

    #[test]
    fn the_share_of_readers_comes_out_and_changes_nothing_else() {
        let requests = |overrides: &[&str]| {
            let mut requests = Plan::of(&scenario("read-mostly", overrides)).client(1);
            (0..10_000).map(|_| requests.draw()).collect::<Vec<_>>()
        };
        let read = |request: &&Request| request.access == Access::Read;
        let reads = requests(&["workload.read_ratio=0.25"]).iter().filter(read).count();
        assert!((2_300..2_700).contains(&reads), "{reads}");
        assert_eq!(requests(&["workload.read_ratio=0"]).iter().filter(read).count(), 0);
        assert_eq!(requests(&["workload.read_ratio=1"]).iter().filter(read).count(), 10_000);
    }
}
