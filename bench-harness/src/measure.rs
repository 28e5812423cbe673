//! Outcome: what a run measured; plain data, and all that a report sees.

pub(crate) mod grid;
mod latency;
mod little;
mod machine;
pub mod metrics;
mod round;
#[cfg(test)]
pub(crate) mod samples;
mod server_side;
mod struck;
mod verdict;
pub(crate) mod words;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;

pub use grid::{Cell, Grid};
pub use latency::{Latency, Second, decode, encode, histogram, record};
pub use little::Little;
pub use machine::{Machine, Versions};
pub use round::{FaultRun, Lengths, LockRow, Overhead, Overlaps, PolicyRow, Round, Timeline, Told, Wrong};
pub use server_side::ServerSide;
pub use verdict::judge;

/// Everything a run found out. Written as `result.json`; the report is made from it alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Version of this format: 1.
    pub schema: u32,
    /// Names the run: scenario, start and seed.
    pub run: String,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// How long it took.
    pub took_s: f64,
    /// What was run, all defaults and overrides in place.
    pub scenario: Scenario,
    /// The command that runs it again: same arrivals, keys, holds and faults; the timings will differ.
    pub repeat: String,
    /// Of what.
    pub versions: Versions,
    /// Where.
    pub machine: Machine,
    /// Whether it was ended by Ctrl-C: then it holds what was there until then.
    pub interrupted: bool,
    /// What the models `closed` and `open` measure.
    pub load: Option<Load>,
    /// What the model `held` measures: a round for each fault.
    pub rounds: Vec<Round>,
    /// The rounds of `lockbench policies` in one: a cell for each policy, fault and length.
    #[serde(default)]
    pub grid: Option<Grid>,
    /// The faults, as asked and as observed.
    pub faults: Vec<FaultRun>,
    /// What the checker saw.
    pub checked: Checked,
    /// Longest time for which the machine did not run a thread that wanted to run.
    pub stall_max_ms: f64,
    /// Metrics by name; `metric@policy` for one policy. Null: not measurable.
    pub metrics: BTreeMap<String, Option<f64>>,
    /// The thresholds of the scenario and how they fared.
    pub thresholds: Vec<ThresholdRun>,
    /// What deserves attention.
    pub findings: Vec<Finding>,
    /// The answer in one sentence.
    pub verdict: String,
    /// The exit code.
    pub exit: u8,
}

/// What requests for locks experienced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// Seconds that were measured.
    pub window_s: f64,
    /// From the intended start (open) or the call (closed) to the lock; a timeout counts with its full wait.
    pub acquire: Latency,
    /// From the call to the lock.
    pub service: Latency,
    /// From the lock to its release, as it came out.
    pub hold: Latency,
    /// How late the generator started requests.
    pub generator_lag: Latency,
    /// From the call to the lock, of holders that took it again; of workloads that re-enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reentry: Option<Latency>,
    /// From the end of work to the lock, for the next one that waited for it.
    #[serde(default)]
    pub hand_over: Latency,
    /// How much of one core the server under test was busy.
    #[serde(default)]
    pub redis_cpu: Option<f64>,
    /// One entry for each second.
    pub series: Vec<Second>,
    /// Requests that got their lock.
    pub successes: u64,
    /// Critical sections completed per second.
    pub throughput_per_s: f64,
    /// Acquire scripts sent per success.
    pub attempts_per_success: Option<f64>,
    /// Commands that clients sent for each lock got: scripts and subscriptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands_per_lock: Option<f64>,
    /// The part of the locks got that readers shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_share: Option<f64>,
    /// The part of the locks got that were handed over: somebody else was at work when they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contended_share: Option<f64>,
    /// Requests that waited in vain.
    pub timeouts: u64,
    /// Failures by their text.
    pub errors: BTreeMap<String, u64>,
    /// Arrivals that found no free slot.
    pub dropped: u64,
    /// Requests that were dropped before they had an answer, as a fault wanted it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancelled: u64,
    /// Leases whose holder was told of a loss.
    pub lost: u64,
    /// Requests that got their lock, for each worker process: their demand is equal.
    pub per_process: Vec<u64>,
    /// How evenly the clients of a closed workload were served: the least even full window of 10 s.
    #[serde(default)]
    pub fairness_of_clients: Option<f64>,
    /// Updates of unprotected counters that were acknowledged and are not there; of workloads that count.
    #[serde(default)]
    pub lost_updates: Option<u64>,
    /// Whether these times are those of all requests that were there; not of a run that was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub little: Option<Little>,
}

/// What the checker saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    /// Records read.
    pub records: u64,
    /// Intervals of protected work.
    pub intervals: u64,
    /// Two workers at once under one lock.
    pub overlaps: Overlaps,
    /// One worker under a lock whose holder stood still: nothing was done by two, so these are no overlaps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub frozen: Overlaps,
    /// Locks whose holder was killed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub orphans: Orphans,
    /// In which order those who waited were served.
    #[serde(default)]
    pub turns: Turns,
    /// What fencing tokens were worth.
    #[serde(default)]
    pub fencing: Fencing,
}

/// Locks whose holder was killed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Orphans {
    /// How many.
    pub count: u64,
    /// Those that somebody else had before the end of the run.
    pub taken: u64,
    /// The longest time from the death of a holder until the next one had its lock.
    pub max_ms: Option<f64>,
}

/// In which order those who waited for one lock were served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Turns {
    /// Locks that were got.
    pub served: u64,
    /// The most that came later and were served sooner, for one of them.
    pub overtakes_max: u64,
    /// The same at p99.
    pub overtakes_p99: u64,
    /// Those who waited more than ten times as long as the median of their key, and more than 100 ms.
    pub starved: u64,
}

/// What holders of an older right did at the end of their work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fencing {
    /// Writes of a holder that was overtaken, with nothing to tell by: whatever is guarded took them.
    pub stale_accepted: u64,
    /// Writes with a token below the newest: a guarded resource refuses them.
    pub stale_rejected: u64,
    /// Locks got with a token that is not above that of every holder before.
    pub disorder: u64,
}

/// A threshold and how it fared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdRun {
    /// The metric.
    pub metric: String,
    /// What was demanded.
    pub limit: String,
    /// What was measured, in the metric's unit.
    pub measured: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}

/// Something that deserves attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// How grave it is.
    pub severity: Severity,
    /// What it is.
    pub text: String,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Note,
    /// The measurement cannot be trusted.
    Invalid,
    /// Two workers at once where the scenario says there must be none.
    Safety,
}

impl Checked {
    /// Adds what was seen in another round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.intervals += other.intervals;
        self.overlaps = self.overlaps.and(&other.overlaps);
        self.frozen = self.frozen.and(&other.frozen);
        self.fencing.add(&other.fencing);
    }
}

impl Fencing {
    /// Adds those of another round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.stale_accepted += other.stale_accepted;
        self.stale_rejected += other.stale_rejected;
        self.disorder += other.disorder;
    }
}

impl Load {
    /// How evenly the clients of a closed workload were served, or else the processes: 1 if all the same, 1/n if one of n got all.
    pub fn fairness(&self) -> Option<f64> {
        self.fairness_of_clients.or_else(|| jain(&self.per_process))
    }
}

/// What did not happen is left out of the result.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How even these counts are: 1 if all are the same, 1/n if one of n has all.
///
/// The index of Jain, Chiu and Hawe (A Quantitative Measure of Fairness, 1984).
pub(crate) fn jain(counts: &[u64]) -> Option<f64> {
    let sum = counts.iter().sum::<u64>() as f64;
    let squares = counts.iter().map(|&count| (count as f64).powi(2)).sum::<f64>();
    (sum > 0.0).then(|| sum * sum / (counts.len() as f64 * squares))
}

/// Fairness over longer times says little: what evens out in minutes is felt in seconds.
pub(crate) const FAIRNESS_WINDOW: std::time::Duration = std::time::Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use samples::{grid_outcome, held_outcome, load_outcome};

    #[test]
    fn an_outcome_reads_back_from_its_json_the_same() {
        for outcome in [load_outcome(), held_outcome(), grid_outcome()] {
            let json = serde_json::to_string_pretty(&outcome).unwrap();
            assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
        }
    }

    #[test]
    fn fairness_is_one_if_all_are_served_alike() {
        let fairness = |per_process| {
            Load {
                per_process,
                ..Load::default()
            }
            .fairness()
        };
        assert_eq!(fairness(vec![5, 5]), Some(1.0));
        assert_eq!(fairness(vec![10, 0]), Some(0.5));
        assert_eq!(fairness(vec![0, 0]), None);
    }
}
