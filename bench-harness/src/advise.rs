//! Which lock for this workload: the same requests against each kind, one after another, and an answer in which every clause cites a
//! number of this run. It may be "no lock".

mod clause;
mod judge;
mod words;

use std::time::Duration;

use leasehold::LockKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use clause::{Clause, Measured, Row};
pub use judge::{Advice, Judgement, judge};
pub use words::text;

use crate::capacity::{GENERATOR_MARGIN, MOST_LAG_MS, generator_alone, number};
use crate::measure::{Machine, Outcome, Severity, Versions};
use crate::results::SCHEMA;
use crate::scenario::{Arrival, Keys, Length, LockType, Model, Rate, RedisMode, Scenario, ScenarioError, Time};
use crate::{RunError, RunOptions};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The workload; its own kind of lock, faults and thresholds do not count.
    pub scenario: Scenario,
    /// The kinds to compare. `reentrant` is always among them, since it is what the others are compared with, and so is each that
    /// the guards of the scenario demand.
    pub kinds: Vec<LockKind>,
    /// The command that asks it again.
    pub repeat: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The version of this document.
    pub schema: u32,
    /// The workload.
    pub scenario: Scenario,
    /// What each kind of lock did.
    pub rows: Vec<Row>,
    /// A lock that nobody else wants, and the generator without locks.
    pub beside: Vec<Row>,
    /// What to take, and why; null if that cannot be said.
    pub advice: Option<Advice>,
    /// Two at work at once, and what they did.
    pub dangers: Vec<Clause>,
    /// Why this is no measurement, if it is none.
    pub invalid: Vec<String>,
    /// What ran where.
    pub versions: Versions,
    /// On what.
    pub machine: Machine,
    /// The command that asks it again.
    pub repeat: String,
    /// The exit code.
    pub exit: u8,
}

/// Finds the answer; takes as long as the workload, for each kind.
///
/// # Errors
/// [`RunError`], as a run has it; interrupted, there is no answer.
pub fn find(question: &Question, options: &RunOptions) -> Result<Answer, RunError> {
    let mut versions = None;
    let mut run = |name: &str, scenario: Scenario| {
        options.progress.line(&format!("{name} …"));
        let mut tries = 0;
        loop {
            let outcome = crate::run_of_many(scenario.clone(), options)?;
            versions.get_or_insert_with(|| outcome.versions.clone());
            let mut row = Row {
                name: name.to_owned(),
                flaws: flaws(&outcome),
                metrics: outcome.metrics,
            };
            if scenario.lock.kind == LockType::Script {
                // The work is done where the script runs, so its caller has seen nothing that could overlap.
                row.metrics.insert("overlap.count".to_owned(), None);
            }
            tries += 1;
            // A machine that others use has bad moments, which say nothing of a lock. Two at work at once stay, whatever else was wrong.
            if row.flaws.is_empty() || tries == TRIES || !judge::dangers(&row).is_empty() {
                options.progress.line(&words::line(&row));
                return Ok::<_, RunError>(row);
            }
            options
                .progress
                .line(&format!("{name} once more: {}", row.flaws.join("; ")));
        }
    };
    let free = run(FREE, question.free())?;
    let mut rows = Vec::new();
    for kind in &question.kinds {
        let scenario = question.under(LockType::Kind(*kind));
        rows.push(run(kind.name(), scenario.clone())?);
        if *kind == LockKind::ReadWrite && scenario.workload.read_ratio.is_some() {
            let mut scenario = scenario;
            scenario.lock.writers_first = true;
            rows.push(run(WRITERS_FIRST, scenario)?);
        }
    }
    if question.scenario.guards.script {
        rows.push(run(SCRIPT, question.under(LockType::Script))?);
    }
    let beside = vec![free, run(GENERATOR, question.generator())?];
    let mut answer = Answer {
        schema: SCHEMA,
        scenario: question.scenario.clone(),
        rows,
        beside,
        advice: None,
        dangers: Vec::new(),
        invalid: Vec::new(),
        versions: versions.unwrap_or_default(),
        machine: Machine::read(),
        repeat: question.repeat.clone(),
        exit: crate::exit::GOOD,
    };
    answer.judge();
    Ok(answer)
}

impl Answer {
    /// Judges what was measured, by the rules of this version.
    pub fn judge(&mut self) {
        let rows: Vec<Row> = self.rows.iter().chain(&self.beside).cloned().collect();
        Judgement {
            advice: self.advice,
            dangers: self.dangers,
            invalid: self.invalid,
            exit: self.exit,
        } = judge(&self.scenario, &rows);
    }
}

impl Question {
    /// The question about these kinds, or about all that make sense if none are named; `length` is how long each is measured.
    ///
    /// # Errors
    /// [`ScenarioError`], for a scenario that holds locks through faults, and for a length that is none.
    pub fn new(
        mut scenario: Scenario,
        kinds: &[LockKind],
        length: Option<Time>,
        repeat: String,
    ) -> Result<Self, ScenarioError> {
        let workload = &mut scenario.workload;
        if workload.model == Model::Held {
            return Err(ScenarioError {
                place: "workload.model".to_owned(),
                message: "the model \"held\" has no requests: ask for advice on an open or closed workload".to_owned(),
            });
        }
        workload.duration = length.unwrap_or(workload.duration);
        let end = workload.duration;
        scenario.stages.retain(|stage| stage.at < end);
        scenario.faults.clear();
        scenario.thresholds.clear();
        let scenario = scenario.checked("--for")?;
        let mut asked = vec![LockKind::Reentrant];
        match kinds {
            [] => asked.extend(sensible(&scenario)),
            chosen => asked.extend(chosen),
        }
        asked.extend(demanded(&scenario));
        let mut kinds: Vec<LockKind> = Vec::new();
        for kind in asked {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if kinds.contains(&LockKind::Quorum) && scenario.redis.mode == RedisMode::Url {
            return Err(ScenarioError {
                place: "redis.mode".to_owned(),
                message: "one server is no quorum: leave out --redis, then lockbench starts three".to_owned(),
            });
        }
        Ok(Self {
            scenario,
            kinds,
            repeat,
        })
    }

    /// The same requests under another kind of lock.
    fn under(&self, kind: LockType) -> Scenario {
        let mut scenario = self.scenario.clone();
        scenario.lock.kind = kind;
        scenario.lock.writers_first = false;
        scenario
    }

    /// One client and a lock that nobody else wants: a round trip.
    fn free(&self) -> Scenario {
        let mut scenario = self.under(LockType::Kind(LockKind::Reentrant));
        let workload = &mut scenario.workload;
        workload.keys = Keys::uniform(1);
        workload.hold = Length::fixed(Duration::ZERO);
        (workload.processes, workload.clients) = (1, 1);
        workload.read_ratio = None;
        workload.counter = false;
        self.briefly(&mut scenario);
        scenario
    }

    /// The generator without locks; an open one at a multiple of the highest rate.
    fn generator(&self) -> Scenario {
        let mut scenario = self.scenario.clone();
        generator_alone(&mut scenario);
        let arrivals = scenario.workload.arrival.iter();
        let arrivals = arrivals.chain(self.scenario.stages.iter().map(|stage| &stage.arrival));
        let most = arrivals.map(Arrival::peak).reduce(f64::max);
        self.briefly(&mut scenario);
        if let Some(most) = most {
            scenario.workload.model = Model::Open;
            scenario.workload.arrival = Some(Arrival::Constant {
                rate: Rate(most * GENERATOR_MARGIN),
            });
        }
        scenario
    }

    /// In a closed loop, for a second.
    fn briefly(&self, scenario: &mut Scenario) {
        let workload = &mut scenario.workload;
        workload.model = Model::Closed;
        workload.arrival = None;
        workload.think = None;
        workload.warm_up = Time::millis(200);
        workload.duration = Time::millis(1_000);
        scenario.stages.clear();
        scenario.scale = 1.0;
    }
}

/// The kinds that may be the answer.
fn sensible(scenario: &Scenario) -> Vec<LockKind> {
    let mut kinds = vec![LockKind::Fair, LockKind::Spin, LockKind::Fenced];
    kinds.extend(scenario.workload.read_ratio.map(|_| LockKind::ReadWrite));
    kinds
}

/// The kinds without which what is guarded gets no answer.
fn demanded(scenario: &Scenario) -> impl Iterator<Item = LockKind> {
    let guards = &scenario.guards;
    let demands = [
        (guards.independent_masters, LockKind::Quorum),
        (guards.keys_together > 1, LockKind::Multi),
        (guards.tokens, LockKind::Fenced),
        (guards.order, LockKind::Fair),
    ];
    demands.into_iter().filter_map(|(asked, kind)| asked.then_some(kind))
}

/// Why a run says nothing about its lock.
fn flaws(outcome: &Outcome) -> Vec<String> {
    let invalid = outcome
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Invalid);
    let mut flaws: Vec<String> = invalid.map(|finding| finding.text.clone()).collect();
    let get = |metric: &str| outcome.metrics.get(metric).copied().flatten();
    if let Some(lag) = get("gen.lag.p99").filter(|lag| *lag > MOST_LAG_MS) {
        flaws.push(format!(
            "the generator was {} ms late at p99, more than {MOST_LAG_MS} ms",
            number(lag)
        ));
    }
    let stall = Duration::from_secs_f64(outcome.stall_max_ms / 1e3);
    if stall > LONGEST_STALL {
        flaws.push(format!(
            "the machine stood still for {} ms: whoever waited meanwhile would pass for starved",
            number(outcome.stall_max_ms)
        ));
    }
    if get("acquired").is_none_or(|acquired| acquired == 0.0) {
        flaws.push("nobody got the lock".to_owned());
    }
    let errors = outcome.load.iter().flat_map(|load| &load.errors);
    flaws.extend(errors.map(|(text, count)| format!("{count} requests failed: {text}")));
    flaws
}

/// The row of one client and a lock that nobody else wants.
pub const FREE: &str = "free";

/// The row of the generator without locks.
pub const GENERATOR: &str = "generator";

/// The row of a `read_write` whose readers go behind a writer that waits.
pub const WRITERS_FIRST: &str = "writers_first";

/// The row of no lock, and one script that does the work.
pub const SCRIPT: &str = "script";

/// A run that is no measurement is made again, up to so many times in all.
const TRIES: u32 = 3;

/// From there on a wait may count as starved.
const LONGEST_STALL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(scenario: &str, guards: &str, asked: &[LockKind]) -> Vec<LockKind> {
        let set: Vec<String> = guards.split_whitespace().map(str::to_owned).collect();
        let scenario = Scenario::read(scenario, &set).unwrap();
        Question::new(scenario, asked, None, String::new()).unwrap().kinds
    }

    #[test]
    fn what_the_guards_demand_is_measured_whatever_is_asked_for() {
        use LockKind::*;
        assert_eq!(kinds("hot-key", "", &[]), [Reentrant, Fair, Spin, Fenced]);
        assert_eq!(
            kinds("read-mostly", "", &[]),
            [Reentrant, Fair, Spin, Fenced, ReadWrite]
        );
        assert_eq!(kinds("hot-key", "", &[Spin, Reentrant, Spin]), [Reentrant, Spin]);
        assert_eq!(kinds("stock-decrement", "", &[Spin]), [Reentrant, Spin, Fenced]);
        let all = "guards.order=true guards.keys_together=2 guards.independent_masters=true";
        assert_eq!(kinds("hot-key", all, &[Multi]), [Reentrant, Multi, Quorum, Fair]);
    }

    #[test]
    fn each_kind_gets_the_same_requests_and_the_generator_more_of_them() {
        let arrival = [
            "workload.model=open",
            "workload.arrival={ kind = \"poisson\", rate = \"90/s\" }",
        ];
        let set = arrival.map(str::to_owned);
        let question = Question::new(Scenario::read("hot-key", &set).unwrap(), &[], None, String::new()).unwrap();
        let requests = |kind| crate::workload::arrivals(&question.under(LockType::Kind(kind)));
        assert!(!requests(LockKind::Fair).is_empty());
        assert_eq!(requests(LockKind::Fair), requests(LockKind::Spin));
        let generator = question.generator();
        assert_eq!(generator.workload.arrival.as_ref().unwrap().peak(), 450.0);
        assert_eq!((generator.lock.kind, generator.max_rate()), (LockType::None, None));
        let free = question.free();
        assert_eq!((free.workload.model, free.workload.clients), (Model::Closed, 1));
    }
}
