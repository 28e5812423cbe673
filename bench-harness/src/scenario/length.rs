//! Lengths of time that may vary.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::trace::Trace;
use super::units::Time;

/// A length of time that may vary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Length {
    /// Always the same.
    Fixed {
        /// How long.
        mean: Time,
    },
    /// Exponentially distributed.
    Exp {
        /// Its mean.
        mean: Time,
    },
    /// Many short ones, a tail of long ones: what services mostly look like.
    Lognormal {
        /// Half of them are shorter.
        p50: Time,
        /// 99 of 100 are shorter.
        p99: Time,
    },
    /// The same two numbers with a longer tail: one of five thousand is as many times the p99 as that is the median.
    Pareto {
        /// Half of them are shorter.
        p50: Time,
        /// 99 of 100 are shorter.
        p99: Time,
    },
    /// Either short or long.
    Bimodal {
        /// The short ones.
        short: Time,
        /// The long ones.
        long: Time,
        /// The share of long ones, from 0 to 1.
        long_share: f64,
    },
    /// One of those that were recorded once, at random.
    Trace(Trace),
}

impl Length {
    /// Always so long.
    pub const fn fixed(length: Duration) -> Self {
        Self::Fixed { mean: Time(length) }
    }

    /// Hardly one of a thousand is longer.
    pub fn mostly_within(&self) -> Duration {
        match self {
            Self::Fixed { mean } => mean.0,
            Self::Exp { mean } => mean.0.saturating_mul(7),
            Self::Lognormal { p50, p99 } | Self::Pareto { p50, p99 } => {
                // Both reach the 999th of 1000 before they have grown from the p99 on as much as from the median to it.
                p99.0.mul_f64((p99.0.as_secs_f64() / p50.0.as_secs_f64()).min(1e3))
            }
            Self::Bimodal { long, .. } => long.0,
            Self::Trace(trace) => trace.times.iter().map(|time| time.0).max().unwrap_or_default(),
        }
    }
}
