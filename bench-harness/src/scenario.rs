//! Scenario: lock, workload, faults, limits; read and checked in one step.
//!
//! ```
//! let text = r#"
//! schema = 1
//! name = "orders"
//! question = "How long do orders wait while Redis pauses for a second?"
//! [lock]
//! type = "reentrant"                 # or another kind, or "none"
//! lease = "30s"
//! policy = "deadline"
//! [workload]
//! model = "open"                     # closed: clients ask in turn; held: locks are held through a fault
//! arrival = { kind = "poisson", rate = "200/s" }     # see `lockbench list workloads` for the others
//! keys = { count = 1000, dist = "zipf", s = 0.99 }
//! hold = { kind = "exp", mean = "5ms" }
//! wait = "5s"
//! clients = 500                      # most requests at once; what finds no place is counted as dropped
//! duration = "20s"
//! [[fault]]
//! at = "10s"
//! for = "1s"
//! kind = "pause_write"
//! [thresholds]
//! "acquire.p99" = "< 1500ms"
//! "overlap.count" = "== 0"
//! "#;
//! let scenario = leasehold_bench::Scenario::parse("orders.toml", text, &[]).unwrap();
//! assert_eq!(scenario.workload.processes, 2);
//! ```

mod arrival;
mod checks;
mod demand;
mod evidence;
mod fault;
mod guards;
mod length;
mod lock_type;
mod moment;
mod overrides;
mod scope;
mod stock;
mod trace;
mod units;
mod workloads;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use arrival::Arrival;
pub use checks::{POLICIES, SHORTEST_LEASE};
pub use demand::{KeyDist, Keys, Model, Reentry, Stage, Workload};
pub use evidence::{Evidence, ServerEvidence};
pub use fault::{FaultKind, FaultSpec, NOT_HERE, Place};
pub use guards::Guards;
pub use length::Length;
pub use lock_type::LockType;
pub use moment::{Phase, When};
pub use scope::Scope;
pub use stock::Stock;
pub use trace::Trace;
pub use units::{Comparison, Limit, Rate, Time, Unit, nanos};
pub use workloads::WORKLOADS;

/// What one run does, as it is written in a scenario file.
///
/// Durations stand here as written; [`Scenario::scaled`] gives them as they run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Version of the file format: 1.
    pub schema: u32,
    /// Short name, used in file names and titles.
    pub name: String,
    /// The question the run answers, in one sentence.
    pub question: String,
    /// Everything random comes from this number.
    #[serde(default)]
    pub seed: u64,
    /// Multiplies lease, command timeout, faults, warm-up and duration: 0.1 runs a 30 s lease as 3 s.
    #[serde(default = "one")]
    pub scale: f64,
    /// The server under test.
    #[serde(default)]
    pub redis: Redis,
    /// The lock under test.
    pub lock: LockSpec,
    /// Who wants which locks, how often and for how long.
    pub workload: Workload,
    /// What the lock guards: says which lock fits.
    #[serde(default, skip_serializing_if = "Guards::is_unsaid")]
    pub guards: Guards,
    /// Changes of the rate while an open workload runs.
    #[serde(default, rename = "stage", skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// What goes wrong. In the model `held` each fault is a round of its own.
    #[serde(default, rename = "fault", skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultSpec>,
    /// What is recorded besides what workers write down.
    #[serde(default, skip_serializing_if = "Evidence::is_default")]
    pub evidence: Evidence,
    /// Metric to limit; `metric@policy` asks for one policy of the matrix.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub thresholds: BTreeMap<String, Limit>,
    /// Values that run side by side.
    #[serde(default)]
    pub matrix: Matrix,
}

/// The server under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Redis {
    /// Start one, or use the one at `url`.
    pub mode: RedisMode,
    /// Where the server is, for mode `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Most requests and renewals a second that the server is asked for. Default for mode `url`: 1000/s; otherwise none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<Rate>,
    /// Further lines of the configuration of a server we start.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

/// Where the server comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RedisMode {
    /// The harness starts a server and ends it.
    #[default]
    Spawn,
    /// The server is the user's: nothing destructive is sent to it.
    Url,
}

/// The lock under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockSpec {
    /// The kind of lock.
    #[serde(rename = "type")]
    pub kind: LockType,
    /// A reader goes behind a writer that waits; of read_write alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writers_first: bool,
    /// How long Redis keeps a lock that is not renewed.
    #[serde(default = "thirty_seconds")]
    pub lease: Time,
    /// What a holder does when a renewal fails.
    #[serde(default = "deadline")]
    pub policy: String,
    /// Limits of one command.
    #[serde(default)]
    pub command: CommandSpec,
}

/// Limits of one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// How long a command may take.
    pub timeout: Time,
}

/// Values that run side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Policies, for the model `held`.
    #[serde(default, rename = "lock.policy", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
}

/// A scenario that cannot run: where it is wrong and what to do.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{place}: {message}")]
pub struct ScenarioError {
    /// File, line and column, or the option at fault.
    pub place: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl ScenarioError {
    /// Whether the scenario is right and only asks for a fault that cannot be brought about here.
    pub fn is_of_a_fault_that_is_not_here(&self) -> bool {
        NOT_HERE
            .iter()
            .any(|(name, _)| fault::not_here(name).is_some_and(|reason| reason == self.message))
    }
}

impl Scenario {
    /// Reads the stock scenario of that name, or the file at that path; then applies `key=value` overrides and checks it all.
    ///
    /// # Errors
    /// [`ScenarioError`] with file, line and column, or with the override at fault.
    pub fn read(name_or_path: &str, overrides: &[String]) -> Result<Self, ScenarioError> {
        let stock = Stock::all().find(|stock| stock.name == name_or_path);
        let (file, text) = match stock {
            Some(stock) => (format!("scenarios/{}.toml", stock.name), stock.text.to_owned()),
            None => (name_or_path.to_owned(), read_file(name_or_path)?),
        };
        Self::parse(&file, &text, overrides)
    }

    /// Reads a scenario from its text; `file` is the name its errors bear.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn parse(file: &str, text: &str, overrides: &[String]) -> Result<Self, ScenarioError> {
        let source = checks::Source { file, text, overrides };
        let mut scenario: Self = toml::from_str(text).map_err(|error| source.of_toml(&error))?;
        if !overrides.is_empty() {
            scenario = overrides::apply(text, overrides)?;
        }
        let folder = Path::new(file).parent().unwrap_or(Path::new(""));
        scenario
            .read_traces(folder)
            .map_err(|wrong| source.of_value(&wrong.path, wrong.message))?;
        checks::check(&scenario).map_err(|wrong| source.of_value(&wrong.path, wrong.message))?;
        Ok(scenario)
    }

    /// Reads the files that it names.
    fn read_traces(&mut self, folder: &Path) -> Result<(), checks::Wrong> {
        let work = &mut self.workload;
        let mut arrivals: Vec<_> = work
            .arrival
            .iter_mut()
            .map(|arrival| ("workload.arrival".to_owned(), arrival))
            .collect();
        for (index, stage) in self.stages.iter_mut().enumerate() {
            arrivals.push((format!("stage.{index}.arrival"), &mut stage.arrival));
        }
        let holds = ("workload.hold", Some(&mut work.hold));
        let lengths = [holds, ("workload.think", work.think.as_mut())];
        let wrong = |path: &str, message| checks::Wrong {
            path: format!("{path}.file"),
            message,
        };
        for (path, arrival) in arrivals {
            if let Arrival::Trace(trace) = arrival {
                trace.read(folder, true).map_err(|message| wrong(&path, message))?;
            }
        }
        for (path, length) in lengths {
            if let Some(Length::Trace(trace)) = length {
                trace.read(folder, false).map_err(|message| wrong(path, message))?;
            }
        }
        Ok(())
    }

    /// The scenario, if its values fit together; `place` is what its errors bear.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn checked(self, place: &str) -> Result<Self, ScenarioError> {
        match checks::check(&self) {
            Ok(()) => Ok(self),
            Err(wrong) => Err(ScenarioError {
                place: format!("{place}, {}", wrong.path),
                message: wrong.message,
            }),
        }
    }

    /// A time of the scenario as it runs, after `scale`.
    pub fn scaled(&self, time: Time) -> Duration {
        time.0.mul_f64(self.scale)
    }

    /// The lease as it runs.
    pub fn lease(&self) -> Duration {
        self.scaled(self.lock.lease)
    }

    /// Most requests and renewals a second that the server may be asked for. None without a lock: then it is asked for nothing.
    pub fn max_rate(&self) -> Option<Rate> {
        if self.lock.kind == LockType::None {
            return None;
        }
        match self.redis.mode {
            RedisMode::Spawn => self.redis.max_rate,
            RedisMode::Url => Some(self.redis.max_rate.unwrap_or(MAX_RATE)),
        }
    }

    /// The policies that run side by side: those of the matrix, else the one of the lock.
    pub fn policies(&self) -> Vec<String> {
        if self.matrix.policies.is_empty() {
            vec![self.lock.policy.clone()]
        } else {
            self.matrix.policies.clone()
        }
    }

    /// The scenario as people wrote it: without the times of its traces, which are many.
    #[must_use]
    pub fn without_times(&self) -> Self {
        let mut scenario = self.clone();
        let work = &mut scenario.workload;
        let stages = scenario.stages.iter_mut().map(|stage| &mut stage.arrival);
        for arrival in work.arrival.iter_mut().chain(stages) {
            if let Arrival::Trace(trace) = arrival {
                trace.times.clear();
            }
        }
        for length in [Some(&mut work.hold), work.think.as_mut()].into_iter().flatten() {
            if let Length::Trace(trace) = length {
                trace.times.clear();
            }
        }
        scenario
    }

    /// Makes the run short, to see whether a scenario works at all: its numbers say little.
    pub fn quicken(&mut self) {
        let shorter = |time: &mut Time, most: Duration| time.0 = time.0.min(most);
        shorter(
            &mut self.workload.warm_up,
            Duration::from_millis(500).div_f64(self.scale),
        );
        shorter(&mut self.workload.duration, Duration::from_secs(3).div_f64(self.scale));
        if self.workload.model == Model::Held {
            self.workload.keys.count = self.workload.keys.count.min(20);
            self.faults.truncate(1);
        }
        let end = self.workload.duration;
        if self.workload.model != Model::Held {
            self.faults.retain(|fault| fault.at < end);
            let names: Vec<_> = self.faults.iter().filter_map(|fault| fault.name.clone()).collect();
            // What would follow a fault that is left out would never come.
            self.faults.retain(|fault| match &fault.when {
                Some(When::After { fault, .. }) => names.contains(fault),
                _ => true,
            });
            self.stages.retain(|stage| stage.at < end);
        }
    }
}

impl Default for CommandSpec {
    fn default() -> Self {
        Self {
            timeout: Time::millis(3_000),
        }
    }
}

/// A server with other users hardly notices it.
const MAX_RATE: Rate = Rate(1_000.0);

fn read_file(path: &str) -> Result<String, ScenarioError> {
    std::fs::read_to_string(Path::new(path)).map_err(|error| {
        let names: Vec<_> = Stock::all().map(|stock| stock.name).collect();
        let meant = checks::nearest(path, &names).map_or_else(String::new, |name| {
            format!("; did you mean the stock scenario {name:?}?")
        });
        ScenarioError {
            place: path.to_owned(),
            message: format!(
                "neither a stock scenario nor a file that can be read ({error}){meant}; see lockbench list scenarios"
            ),
        }
    })
}

fn one() -> f64 {
    1.0
}
fn thirty_seconds() -> Time {
    Time::millis(30_000)
}
fn deadline() -> String {
    "deadline".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_shortens_what_it_says() {
        let mut scenario = Scenario::read("pause-demo", &[]).unwrap();
        scenario.scale = 0.1;
        assert_eq!(scenario.lease(), Duration::from_secs(3));
    }

    #[test]
    fn a_scenario_stored_as_json_reads_back_the_same() {
        for stock in Stock::all() {
            let scenario = Scenario::read(stock.name, &[]).unwrap();
            let json = serde_json::to_string(&scenario).unwrap();
            assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), scenario);
        }
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let error = Scenario::read("hotkey", &[]).unwrap_err();
        assert!(error.message.contains("\"hot-key\""), "{error}");
    }
}
