//! When the requests of an open workload come.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::trace::Trace;
use super::units::{Rate, Time};

/// When the requests of an open workload come. Its times are subject to `scale`, its rates are not.
///
/// All but `constant` and `trace` come at random, as many independent users do: what changes is the rate. They begin with the
/// measured time, or with their stage; in the warm-up the rate is the one they begin with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrival {
    /// Evenly spaced.
    Constant {
        /// How many a second.
        rate: Rate,
    },
    /// At random, always at the same rate.
    Poisson {
        /// How many a second, on the mean.
        rate: Rate,
    },
    /// Busy for a while, then nothing for a while, and so on.
    Onoff {
        /// How many a second while it is on.
        rate: Rate,
        /// How long it is on.
        on: Time,
        /// How long it is off.
        off: Time,
    },
    /// A rate that rises or falls steadily, and then stays.
    Ramp {
        /// At first.
        from: Rate,
        /// In the end.
        to: Rate,
        /// How long it takes from one to the other.
        over: Time,
    },
    /// One rate after another; the last one stays.
    Steps {
        /// The rates, in order.
        rates: Vec<Rate>,
        /// How long each of them lasts.
        each: Time,
    },
    /// A rush: the rate rises steadily, stays there, and falls steadily.
    Flash {
        /// Before and after.
        base: Rate,
        /// During.
        peak: Rate,
        /// How long the rate rises.
        rise: Time,
        /// How long it stays at the peak.
        hold: Time,
        /// How long it falls.
        decay: Time,
    },
    /// When they came once: each time of the file counts from the beginning of the measured time, or of the stage.
    Trace(Trace),
}

impl Arrival {
    /// Every rate in it, by the name of its key.
    pub(super) fn rates(&self) -> Vec<(&'static str, Rate)> {
        match self {
            Self::Constant { rate } | Self::Poisson { rate } | Self::Onoff { rate, .. } => vec![("rate", *rate)],
            Self::Ramp { from, to, .. } => vec![("from", *from), ("to", *to)],
            Self::Steps { rates, .. } => rates.iter().map(|rate| ("rates", *rate)).collect(),
            Self::Flash { base, peak, .. } => vec![("base", *base), ("peak", *peak)],
            Self::Trace(_) => Vec::new(),
        }
    }

    /// The most that are to come in a second.
    pub(crate) fn peak(&self) -> f64 {
        let Self::Trace(trace) = self else {
            return self.rates().iter().map(|(_, rate)| rate.0).fold(0.0, f64::max);
        };
        let from_each = trace.times.iter().enumerate().map(|(first, from)| {
            let after = trace
                .times
                .partition_point(|time| time.0 < from.0 + Duration::from_secs(1));
            after - first
        });
        from_each.max().unwrap_or(0) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_highest_rate_or_the_busiest_second_of_a_trace() {
        let steps = Arrival::Steps {
            rates: vec![Rate(5.0), Rate(50.0), Rate(20.0)],
            each: Time::millis(1_000),
        };
        assert_eq!(steps.peak(), 50.0);
        let trace = |times: &[u64]| {
            let times = times.iter().copied().map(Time::millis).collect();
            let file = "t".to_owned();
            Arrival::Trace(Trace { file, times }).peak()
        };
        assert_eq!(trace(&[0, 900, 1_000, 1_500, 1_899, 1_900, 7_000]), 4.0);
        assert_eq!(trace(&[]), 0.0);
    }
}
