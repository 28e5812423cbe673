//! Who wants which locks, how often and for how long.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arrival::Arrival;
use super::length::Length;
use super::units::Time;

/// Who wants which locks, how often and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// What makes the next request come.
    pub model: Model,
    /// When requests come, for the model `open`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<Arrival>,
    /// Which locks are wanted. In the model `held`: how many a policy holds.
    pub keys: Keys,
    /// How long a lock is worked under. In the model `held`: by the rivals.
    pub hold: Length,
    /// How long a request waits for its lock.
    #[serde(default = "five_seconds")]
    pub wait: Time,
    /// The share of requests that only read, from 0 to 1; for the lock `read_write`. Default: all write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_ratio: Option<f64>,
    /// Whether holders take their lock again while they hold it, and how often. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reentry: Option<Reentry>,
    /// Whether a request raises a counter that nothing but the lock protects: lost updates show overlaps by their effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counter: bool,
    /// Pause of a client between two requests, for the model `closed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think: Option<Length>,
    /// How many worker processes; each has its own leg of the proxy.
    #[serde(default = "two")]
    pub processes: u32,
    /// `closed`: clients in all. `open`: most requests that may be in progress at once.
    #[serde(default = "ten")]
    pub clients: u32,
    /// Time before measuring begins.
    #[serde(default = "zero")]
    pub warm_up: Time,
    /// Time that is measured. In the model `held`: the quiet window in which only renewals happen.
    pub duration: Time,
    /// Whether a holder that is told of its loss stops working.
    #[serde(default = "yes")]
    pub honours_lost: bool,
    /// How long it takes a holder that was told to stop.
    #[serde(default = "zero")]
    pub reaction: Time,
    /// Work goes in steps of this length, each with one act at its end; a holder that honours losses asks before each act whether its
    /// lease is still valid. For the models `closed` and `open`. Default: it acts all the time, and stops when it is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Time>,
}

/// Holders that take their lock again while they hold it, as code does that calls code with the same lock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reentry {
    /// How many times more.
    pub depth: u32,
    /// The share of requests that do, from 0 to 1.
    pub prob: f64,
}

/// What makes the next request come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// A client asks again when its last request is over.
    Closed,
    /// Requests come when they come, however long the others take.
    Open,
    /// Locks are held for a long time while rivals wait and a fault strikes.
    Held,
}

/// A change of the rate while an open workload runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// When, counted from the start of the measured time.
    pub at: Time,
    /// The arrivals from then on.
    pub arrival: Arrival,
}

/// The locks that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// How many there are.
    pub count: u32,
    /// How requests spread over them.
    #[serde(default)]
    pub dist: KeyDist,
    /// For `zipf`: how much more often the first keys are wanted. Default: 0.99, as in YCSB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s: Option<f64>,
    /// For `zipf`: whether the ranks are dealt to the keys at random, so that the keys wanted most do not lie side by side.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scramble: bool,
    /// For `hotspot`: the share of the keys that is hot, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_keys: Option<f64>,
    /// For `hotspot`: the share of the requests that want a hot key, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_requests: Option<f64>,
}

/// How requests spread over the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyDist {
    /// Each key is as likely as any other.
    #[default]
    Uniform,
    /// All want the first key.
    Single,
    /// The first key most, the k-th as often as 1/k to the power of `s`.
    Zipf,
    /// Some keys are hot: `hot_keys` of them get `hot_requests` of the requests; within both parts each key is as likely as any other.
    Hotspot,
}

impl Workload {
    /// In the model `held`: how long a rival works, which is always the same.
    pub fn rival_hold(&self) -> std::time::Duration {
        match self.hold {
            Length::Fixed { mean } => mean.0,
            // Other lengths are refused in this model.
            _ => std::time::Duration::ZERO,
        }
    }
}

impl Keys {
    /// Keys that are as likely as one another.
    pub const fn uniform(count: u32) -> Self {
        Self {
            count,
            dist: KeyDist::Uniform,
            s: None,
            scramble: false,
            hot_keys: None,
            hot_requests: None,
        }
    }

    /// For `hotspot`: how many keys are hot; at least one.
    pub fn hot_count(&self) -> u32 {
        // At most what there is: a share is at most 1.
        (f64::from(self.count) * self.hot_keys.unwrap_or(0.0)).ceil().max(1.0) as u32
    }
}

fn two() -> u32 {
    2
}

fn ten() -> u32 {
    10
}

fn yes() -> bool {
    true
}

fn zero() -> Time {
    Time::millis(0)
}

fn five_seconds() -> Time {
    Time::millis(5_000)
}
