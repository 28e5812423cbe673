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
}
