//! What a request is drawn from: which key, and how long.

use std::fmt::Debug;
use std::sync::Arc;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, LogNormal, Pareto, Zipf};

use crate::scenario::{self, KeyDist};

/// The keys, and how requests spread over them. Made once: all clients share it.
#[derive(Debug)]
pub(super) enum Keys {
    Single,
    Uniform(u64),
    Zipf {
        ranks: Zipf<f64>,
        /// Which key has which rank; empty where the first key has the first rank.
        scrambled: Box<[u32]>,
    },
    Hotspot {
        hot: u64,
        count: u64,
        share: f64,
    },
}

impl Keys {
    pub(super) fn new(keys: &scenario::Keys, seed: u64) -> Self {
        let count = u64::from(keys.count);
        match keys.dist {
            KeyDist::Single => Self::Single,
            KeyDist::Uniform => Self::Uniform(count),
            KeyDist::Zipf => {
                let mut scrambled: Box<[u32]> = if keys.scramble {
                    (0..keys.count).collect()
                } else {
                    Box::default()
                };
                scrambled.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
                Self::Zipf {
                    ranks: sound(Zipf::new(f64::from(keys.count), keys.s.unwrap_or(ZIPF))),
                    scrambled,
                }
            }
            KeyDist::Hotspot => Self::Hotspot {
                hot: u64::from(keys.hot_count()),
                count,
                share: keys.hot_requests.unwrap_or(0.0),
            },
        }
    }

    pub(super) fn draw(&self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        match self {
            Self::Single => 0,
            Self::Uniform(count) => rng.random_range(0..*count),
            Self::Zipf { ranks, scrambled } => {
                let rank = ranks.sample(rng) as u64 - 1;
                scrambled.get(rank as usize).map_or(rank, |key| u64::from(*key))
            }
            Self::Hotspot { hot, count, share } => {
                if rng.random::<f64>() < *share {
                    rng.random_range(0..*hot)
                } else {
                    rng.random_range(*hot..*count)
                }
            }
        }
    }
}

/// A length of time that may vary, in nanoseconds. Made once: all clients share it.
#[derive(Clone, Debug)]
pub(super) enum Length {
    Fixed(u64),
    Exp(f64),
    Lognormal(LogNormal<f64>),
    Pareto(Pareto<f64>),
    Bimodal { short: u64, long: u64, long_share: f64 },
    Trace(Arc<[u64]>),
}

impl Length {
    pub(super) fn new(length: &scenario::Length) -> Self {
        match length {
            scenario::Length::Fixed { mean } => Self::Fixed(mean.nanos()),
            scenario::Length::Exp { mean } => Self::Exp(mean.nanos() as f64),
            scenario::Length::Lognormal { p50, p99 } => {
                let (p50, p99) = (p50.nanos() as f64, p99.nanos() as f64);
                let deviation = (p99 / p50).ln() / NORMAL_P99;
                Self::Lognormal(sound(LogNormal::new(p50.ln(), deviation)))
            }
            scenario::Length::Pareto { p50, p99 } => {
                // The share above x is (least / x) to the power of `shape`: a half at the p50, a hundredth at the p99.
                let (p50, p99) = (p50.nanos() as f64, p99.nanos() as f64);
                let shape = 50_f64.ln() / (p99 / p50).ln();
                let least = p50 * 0.5_f64.powf(1.0 / shape);
                Self::Pareto(sound(Pareto::new(least, shape)))
            }
            scenario::Length::Bimodal {
                short,
                long,
                long_share,
            } => Self::Bimodal {
                short: short.nanos(),
                long: long.nanos(),
                long_share: *long_share,
            },
            scenario::Length::Trace(trace) => Self::Trace(trace.times.iter().map(|time| time.nanos()).collect()),
        }
    }

    pub(super) fn draw(&self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        match self {
            Self::Fixed(length) => *length,
            Self::Exp(mean) => {
                let times: f64 = Exp1.sample(rng);
                (times * mean) as u64
            }
            Self::Lognormal(lengths) => lengths.sample(rng) as u64,
            Self::Pareto(lengths) => lengths.sample(rng) as u64,
            Self::Bimodal {
                short,
                long,
                long_share,
            } => {
                if rng.random::<f64>() < *long_share {
                    *long
                } else {
                    *short
                }
            }
            Self::Trace(lengths) => match lengths.len() {
                0 => 0,
                count => lengths.get(rng.random_range(0..count)).copied().unwrap_or(0),
            },
        }
    }
}

/// A distribution of parameters that the scenario's checks let through: each of them refuses what the library would.
fn sound<T, E: Debug>(made: Result<T, E>) -> T {
    made.expect("the scenario was checked")
}

/// The exponent that is used most: YCSB's.
const ZIPF: f64 = 0.99;

/// 99 of 100 of a normal distribution are less than so many standard deviations above its mean.
const NORMAL_P99: f64 = 2.326_347_874_040_841;

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::{Time, Trace};
    use std::collections::BTreeSet;

    const DRAWS: usize = 100_000;

    fn lengths(length: &scenario::Length) -> Vec<f64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(11);
        let length = Length::new(length);
        let mut all: Vec<_> = (0..DRAWS).map(|_| length.draw(&mut rng) as f64 / 1e6).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// Holds the share of draws at most so long, in milliseconds, against the closed form: within four standard deviations.
    #[track_caller]
    fn at_most(sorted: &[f64], ms: f64, expected: f64) {
        let share = sorted.partition_point(|length| *length <= ms) as f64 / DRAWS as f64;
        let deviation = (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        assert!(
            (share - expected).abs() <= 4.0 * deviation,
            "{share} up to {ms} ms, not {expected}"
        );
    }

    fn mean(all: &[f64]) -> f64 {
        all.iter().sum::<f64>() / all.len() as f64
    }

    #[test]
    fn an_exponential_length_has_its_mean_and_its_quantiles() {
        let all = lengths(&scenario::Length::Exp { mean: Time::millis(20) });
        assert!((mean(&all) / 20.0 - 1.0).abs() < 4.0 / (DRAWS as f64).sqrt());
        for times in [0.1, 1.0, 3.0] {
            at_most(&all, 20.0 * times, 1.0 - f64::exp(-times));
        }
    }

    #[test]
    fn a_lognormal_length_has_its_median_its_p99_and_its_mean() {
        let all = lengths(&scenario::Length::Lognormal {
            p50: Time::millis(20),
            p99: Time::millis(200),
        });
        at_most(&all, 20.0, 0.5);
        at_most(&all, 200.0, 0.99);
        let deviation = 10_f64.ln() / NORMAL_P99;
        // One standard deviation above, of the logarithm.
        at_most(&all, 20.0 * deviation.exp(), 0.841_344_7);
        let expected = 20.0 * (deviation * deviation / 2.0).exp();
        assert!((mean(&all) / expected - 1.0).abs() < 0.02, "{}", mean(&all));
    }

    #[test]
    fn a_pareto_length_has_its_median_its_p99_and_a_longer_tail() {
        let all = lengths(&scenario::Length::Pareto {
            p50: Time::millis(20),
            p99: Time::millis(200),
        });
        at_most(&all, 20.0, 0.5);
        at_most(&all, 200.0, 0.99);
        // As many times the p99 as that is the median, for one of fifty of the rest.
        at_most(&all, 2_000.0, 0.9998);
        let least = 20.0 * 0.5_f64.powf(10_f64.ln() / 50_f64.ln());
        assert!(all[0] >= least - 1e-6 && all[0] < least * 1.01, "{}", all[0]);
    }

    #[test]
    fn a_bimodal_length_is_long_as_often_as_it_says() {
        let all = lengths(&scenario::Length::Bimodal {
            short: Time::millis(1),
            long: Time::millis(500),
            long_share: 0.03,
        });
        at_most(&all, 1.0, 0.97);
        assert!(all.iter().all(|length| [1.0, 500.0].contains(length)));
    }

    #[test]
    fn a_traced_length_is_one_of_those_recorded_each_as_often() {
        let all = lengths(&scenario::Length::Trace(Trace {
            file: "t".to_owned(),
            times: [5, 5, 7, 9].map(Time::millis).to_vec(),
        }));
        at_most(&all, 5.0, 0.5);
        at_most(&all, 7.0, 0.75);
        assert_eq!((all[0], all[DRAWS - 1]), (5.0, 9.0));
    }

    fn counts(keys: &scenario::Keys) -> Vec<f64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let drawn = Keys::new(keys, 99);
        let mut counts = vec![0.0; keys.count as usize];
        for _ in 0..DRAWS {
            counts[drawn.draw(&mut rng) as usize] += 1.0;
        }
        counts
    }

    #[track_caller]
    fn share(count: f64, expected: f64) {
        let deviation = (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        let share = count / DRAWS as f64;
        assert!((share - expected).abs() <= 4.5 * deviation, "{share}, not {expected}");
    }

    #[test]
    fn keys_of_a_zipf_distribution_have_its_shares() {
        for s in [0.0, 0.5, 0.99, 1.0, 2.0] {
            let keys = scenario::Keys {
                dist: KeyDist::Zipf,
                s: Some(s),
                ..scenario::Keys::uniform(50)
            };
            let total: f64 = (1..=50).map(|rank| f64::from(rank).powf(-s)).sum();
            for (index, count) in counts(&keys).into_iter().enumerate() {
                share(count, (index as f64 + 1.0).powf(-s) / total);
            }
        }
    }

    #[test]
    fn scrambling_deals_the_same_shares_to_other_keys() {
        let zipf = scenario::Keys {
            dist: KeyDist::Zipf,
            ..scenario::Keys::uniform(50)
        };
        let scrambled = scenario::Keys { scramble: true, ..zipf };
        let (plain, dealt) = (counts(&zipf), counts(&scrambled));
        assert_ne!(plain, dealt);
        let sorted = |mut counts: Vec<f64>| {
            counts.sort_by(f64::total_cmp);
            counts
        };
        assert_eq!(sorted(plain), sorted(dealt), "no rank is lost, and none is dealt twice");
    }

    #[test]
    fn hot_keys_get_their_share_and_each_of_them_as_much() {
        let keys = scenario::Keys {
            dist: KeyDist::Hotspot,
            hot_keys: Some(0.1),
            hot_requests: Some(0.8),
            ..scenario::Keys::uniform(40)
        };
        let counts = counts(&keys);
        share(counts[..4].iter().sum(), 0.8);
        for hot in &counts[..4] {
            share(*hot, 0.2);
        }
        for cold in &counts[4..] {
            share(*cold, 0.2 / 36.0);
        }
    }

    #[test]
    fn single_and_uniform_keys_are_what_they_say() {
        let single = scenario::Keys {
            dist: KeyDist::Single,
            ..scenario::Keys::uniform(5)
        };
        assert_eq!(counts(&single)[0], DRAWS as f64);
        for count in counts(&scenario::Keys::uniform(5)) {
            share(count, 0.2);
        }
    }

    #[test]
    fn every_key_of_a_scrambled_zipf_exists() {
        let keys = scenario::Keys {
            dist: KeyDist::Zipf,
            s: Some(0.0),
            scramble: true,
            ..scenario::Keys::uniform(1_000)
        };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let drawn = Keys::new(&keys, 3);
        let seen: BTreeSet<_> = (0..DRAWS).map(|_| drawn.draw(&mut rng)).collect();
        assert!(seen.into_iter().eq(0..1_000));
    }
}
