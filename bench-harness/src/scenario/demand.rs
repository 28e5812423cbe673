//! Who wants which locks, how often and for how long.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Rate, Time};

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

/// When requests of an open workload come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// The pattern.
    pub kind: ArrivalKind,
    /// How many a second.
    pub rate: Rate,
}

/// The patterns of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalKind {
    /// Evenly spaced.
    Constant,
    /// At random: what many independent users do.
    Poisson,
}

/// A change of the rate while an open workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// For `zipf`: how much more often the first keys are wanted. Default: 0.99.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s: Option<f64>,
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
}

/// A length of time that may vary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// How it varies.
    pub kind: LengthKind,
    /// Its mean.
    pub mean: Time,
}

/// How a length of time varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LengthKind {
    /// Always the mean.
    Fixed,
    /// Exponentially distributed.
    Exp,
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
