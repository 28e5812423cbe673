//! When the arrivals of a stage come: a rate that changes in time, drawn by inversion of its integral.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution, Exp1};

use crate::scenario::{self, Rate, Time, nanos};

/// The instants of one stage, in nanoseconds from its beginning, in order.
///
/// Before what the arrivals say lies a `lead`, in which the rate is the one they begin with.
pub(super) fn instants(
    arrival: &scenario::Arrival,
    (lead, length): (Duration, Duration),
    scaled: impl Fn(Time) -> Duration,
    rng: &mut Xoshiro256PlusPlus,
) -> Vec<u64> {
    let end = nanos(length);
    match arrival {
        scenario::Arrival::Constant { rate } => {
            // Multiplied, not added up: no error grows.
            let all = (0_u32..).map(|step| (f64::from(step) * 1e9 / rate.0) as u64);
            all.take_while(|at| *at < end).collect()
        }
        scenario::Arrival::Trace(trace) => {
            let all = trace.times.iter().map(|time| nanos(lead) + time.nanos());
            all.take_while(|at| *at < end).collect()
        }
        _ => at_random(pieces(arrival, (lead, length), scaled), end, rng),
    }
}

/// A time in which the rate changes steadily.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// How long, in nanoseconds.
    length: f64,
    /// The rate at its beginning and at its end, in arrivals a nanosecond.
    rates: (f64, f64),
}

impl Piece {
    fn new(length: Duration, from: Rate, to: Rate) -> Self {
        Self {
            length: nanos(length) as f64,
            rates: (from.0 / 1e9, to.0 / 1e9),
        }
    }

    /// How many are expected in it.
    fn expected(&self) -> f64 {
        (self.rates.0 + self.rates.1) / 2.0 * self.length
    }

    /// When so many are expected to have come; at most [`Piece::expected`].
    fn when(&self, expected: f64) -> f64 {
        // The root of a quadratic equation, in the form that stays exact where the rate hardly changes.
        let (from, to) = self.rates;
        let slope = (to - from) / self.length;
        2.0 * expected / (from + (from * from + 2.0 * slope * expected).max(0.0).sqrt())
    }
}

/// How the rate changes; the last piece lasts until the end.
fn pieces(
    arrival: &scenario::Arrival,
    (lead, length): (Duration, Duration),
    scaled: impl Fn(Time) -> Duration,
) -> Vec<Piece> {
    let zero = Rate(0.0);
    let level = |length, rate| Piece::new(length, rate, rate);
    let mut pieces = match arrival {
        scenario::Arrival::Poisson { rate } => vec![level(length, *rate)],
        scenario::Arrival::Onoff { rate, on, off } => {
            let (on, off) = (scaled(*on), scaled(*off));
            let cycles = length.as_nanos() / (on + off).as_nanos().max(1) + 1;
            (0..cycles).flat_map(|_| [level(on, *rate), level(off, zero)]).collect()
        }
        scenario::Arrival::Ramp { from, to, over } => vec![Piece::new(scaled(*over), *from, *to), level(length, *to)],
        scenario::Arrival::Steps { rates, each } => {
            let each = scaled(*each);
            let last = rates.last().copied().unwrap_or(zero);
            let steps = rates.iter().map(|rate| level(each, *rate));
            steps.chain([level(length, last)]).collect()
        }
        scenario::Arrival::Flash {
            base,
            peak,
            rise,
            hold,
            decay,
        } => vec![
            Piece::new(scaled(*rise), *base, *peak),
            level(scaled(*hold), *peak),
            Piece::new(scaled(*decay), *peak, *base),
            level(length, *base),
        ],
        // Not at random.
        scenario::Arrival::Constant { .. } | scenario::Arrival::Trace(_) => Vec::new(),
    };
    if let Some(first) = pieces.first().copied() {
        let rate = first.rates.0;
        pieces.insert(
            0,
            Piece {
                length: nanos(lead) as f64,
                rates: (rate, rate),
            },
        );
    }
    pieces
}

/// A Poisson process whose rate changes: where so many are expected to have come as one that has the rate 1 has gone.
///
/// Inversion of the integrated rate (E. Çinlar, Introduction to Stochastic Processes, 1975, chapter 4).
fn at_random(pieces: Vec<Piece>, end: u64, rng: &mut Xoshiro256PlusPlus) -> Vec<u64> {
    let mut gap = || -> f64 { Exp1.sample(rng) };
    let mut instants = Vec::new();
    let (mut begin, mut next) = (0.0, gap());
    for piece in pieces {
        let expected = piece.expected();
        while next < expected {
            let at = (begin + piece.when(next)) as u64;
            if at >= end {
                return instants;
            }
            instants.push(at);
            next += gap();
        }
        next -= expected;
        begin += piece.length;
    }
    instants
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use scenario::{Arrival, Trace};

    /// How many come from one instant to another, in milliseconds of a stage of 100 s with a lead of 10 s.
    fn count(arrival: &Arrival, from_ms: u64, to_ms: u64) -> f64 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let length = (Duration::from_secs(10), Duration::from_secs(100));
        let all = instants(arrival, length, |time| time.0, &mut rng);
        assert!(all.is_sorted() && all.iter().all(|at| *at < 100_000_000_000));
        let within = from_ms * 1_000_000..to_ms * 1_000_000;
        all.into_iter().filter(|at| within.contains(at)).count() as f64
    }

    /// Holds a count against what is expected of a Poisson process: within four standard deviations.
    #[track_caller]
    fn expect(arrival: &Arrival, from_ms: u64, to_ms: u64, expected: f64) {
        let count = count(arrival, from_ms, to_ms);
        assert!(
            (count - expected).abs() <= 4.0 * expected.sqrt(),
            "{count}, not {expected}"
        );
    }

    const S: fn(u64) -> Time = |seconds| Time::millis(seconds * 1_000);

    #[test]
    fn onoff_is_busy_and_quiet_in_turn() {
        let arrival = Arrival::Onoff {
            rate: Rate(200.0),
            on: S(3),
            off: S(7),
        };
        expect(&arrival, 0, 13_000, 13.0 * 200.0);
        assert_eq!(count(&arrival, 13_000, 20_000), 0.0);
        expect(&arrival, 20_000, 23_000, 600.0);
        assert_eq!(count(&arrival, 93_000, 100_000), 0.0);
    }

    #[test]
    fn a_ramp_rises_steadily_and_stays() {
        let arrival = Arrival::Ramp {
            from: Rate(0.0),
            to: Rate(400.0),
            over: S(40),
        };
        assert_eq!(count(&arrival, 0, 10_000), 0.0);
        // The integral of a rate that rises by 10/s each second.
        expect(&arrival, 10_000, 20_000, 500.0);
        expect(&arrival, 20_000, 30_000, 1_500.0);
        expect(&arrival, 40_000, 50_000, 3_500.0);
        expect(&arrival, 50_000, 100_000, 20_000.0);
        let down = Arrival::Ramp {
            from: Rate(400.0),
            to: Rate(0.0),
            over: S(40),
        };
        expect(&down, 0, 10_000, 4_000.0);
        expect(&down, 40_000, 50_000, 500.0);
        assert_eq!(count(&down, 50_000, 100_000), 0.0);
    }

    #[test]
    fn steps_follow_one_another_and_the_last_stays() {
        let arrival = Arrival::Steps {
            rates: vec![Rate(100.0), Rate(0.0), Rate(300.0)],
            each: S(20),
        };
        expect(&arrival, 0, 30_000, 3_000.0);
        assert_eq!(count(&arrival, 30_000, 50_000), 0.0);
        expect(&arrival, 50_000, 100_000, 15_000.0);
    }

    #[test]
    fn a_flash_rises_stays_and_falls_to_where_it_was() {
        let arrival = Arrival::Flash {
            base: Rate(50.0),
            peak: Rate(1_050.0),
            rise: S(10),
            hold: S(20),
            decay: S(20),
        };
        expect(&arrival, 0, 10_000, 500.0);
        expect(&arrival, 10_000, 20_000, 5_500.0);
        expect(&arrival, 15_000, 20_000, 4_000.0);
        expect(&arrival, 20_000, 40_000, 21_000.0);
        expect(&arrival, 40_000, 60_000, 11_000.0);
        expect(&arrival, 55_000, 60_000, 875.0);
        expect(&arrival, 60_000, 100_000, 2_000.0);
    }

    #[test]
    fn gaps_at_random_are_exponential_and_even_ones_are_even() {
        let gaps = |arrival: &Arrival| {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
            let length = (Duration::ZERO, Duration::from_secs(50));
            let all = instants(arrival, length, |time| time.0, &mut rng);
            all.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
        };
        let poisson = gaps(&Arrival::Poisson { rate: Rate(1_000.0) });
        // exp(-x) of them is longer than x times the mean.
        for times in [0.1, 0.5, 1.0, 2.0, 4.0] {
            let longer = poisson.iter().filter(|gap| **gap as f64 > times * 1e6).count() as f64;
            let share = longer / poisson.len() as f64;
            let expected = f64::exp(-times);
            let deviation = (expected * (1.0 - expected) / poisson.len() as f64).sqrt();
            assert!(
                (share - expected).abs() < 4.0 * deviation,
                "{times}: {share}, not {expected}"
            );
        }
        let even = gaps(&Arrival::Constant { rate: Rate(3.0) });
        assert_eq!(even.len(), 149);
        assert!(even.iter().all(|gap| (333_333_333..=333_333_334).contains(gap)));
    }

    #[test]
    fn a_trace_comes_when_it_came_and_its_end_is_cut() {
        let arrival = Arrival::Trace(Trace {
            file: "t".to_owned(),
            times: [0, 1, 1, 89_999, 90_000].map(Time::millis).to_vec(),
        });
        assert_eq!(count(&arrival, 0, 10_000), 0.0);
        assert_eq!(count(&arrival, 10_000, 10_002), 3.0);
        assert_eq!(count(&arrival, 0, 100_000), 4.0);
    }

    #[test]
    fn times_of_a_profile_are_scaled_and_rates_are_not() {
        let arrival = Arrival::Onoff {
            rate: Rate(1_000.0),
            on: S(10),
            off: S(10),
        };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let length = (Duration::ZERO, Duration::from_secs(2));
        let all = instants(&arrival, length, |time| time.0.mul_f64(0.1), &mut rng);
        assert!(all.iter().all(|at| *at < 1_000_000_000));
        assert!((870..1_130).contains(&all.len()), "{}", all.len());
    }
}
