//! How much a workload bears: the highest rate of arrivals that keeps a promise, what limits it, and what a sale would do.
//!
//! Only with an open loop: requests come when they come, so a server that falls behind cannot slow down whoever measures it.
//! A rate at which the backlog grows is too much, whatever the percentile says.

mod search;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use search::{Borne, Found, search};
pub(crate) use words::number;
pub use words::text;

use crate::measure::{Load, Machine, Outcome, Versions};
use crate::scenario::{Arrival, Length, Limit, LockType, Model, Rate, Scenario, ScenarioError, Stage, Time};
use crate::workload;
use crate::{RunError, RunOptions};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The workload; its own rate, stages and faults do not count.
    pub scenario: Scenario,
    /// What must hold, by metric: `acquire.p99` `< 50ms`.
    pub promises: BTreeMap<String, Limit>,
    /// Where the search begins and ends, in arrivals a second.
    pub rates: (f64, f64),
    /// How near the answer shall be: 0.05 for 5 %.
    pub resolution: f64,
    /// How long each rate is tried.
    pub step: Duration,
    /// The command that asks it again.
    pub repeat: String,
}

/// What one rate did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Arrivals a second.
    pub rate_per_s: f64,
    /// Whether all that was promised was kept, and nothing was left waiting more and more.
    pub borne: bool,
    /// Why not, if not.
    pub broke: Vec<String>,
    /// Critical sections completed a second.
    pub throughput_per_s: f64,
    /// By how many a second the requests in progress grew over the second half.
    pub backlog_per_s: f64,
    /// From the intended start to the lock.
    pub acquire_p50_ms: Option<f64>,
    /// The same; needs 1,000 samples.
    pub acquire_p99_ms: Option<f64>,
    /// The longest.
    pub acquire_max_ms: Option<f64>,
    /// Share of requests that got no lock in their time, found no place or failed.
    pub failed: f64,
    /// How long a lock was worked under, on the mean.
    pub hold_ms: Option<f64>,
    /// From the end of work to the next one's lock, on the mean.
    pub hand_over_ms: Option<f64>,
    /// How much of a core Redis was busy.
    pub redis_cpu: Option<f64>,
    /// How late the generator started requests.
    pub generator_lag_p99_ms: Option<f64>,
    /// Two at work at once under one lock.
    pub overlaps: u64,
    /// Updates of an unprotected counter that are not there, where the workload counts.
    pub lost_updates: u64,
    /// Fencing tokens that did not grow.
    pub fence_disorder: u64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// The workload.
    pub scenario: Scenario,
    /// What had to hold.
    pub promises: BTreeMap<String, Limit>,
    /// The highest rate that was borne, also for three times as long.
    pub capacity_per_s: Option<f64>,
    /// The lowest that was not.
    pub too_much_per_s: Option<f64>,
    /// Every rate that was tried, in order.
    pub steps: Vec<Step>,
    /// At 95 % of the answer, for three times as long.
    pub confirmed: Option<Step>,
    /// Far beyond: what the workload does when it cannot keep up.
    pub saturated: Option<Step>,
    /// The key that most want.
    pub hot_key: HotKey,
    /// What limits it.
    pub limit: Bound,
    /// Half of it, three times as much for a while, half of it again.
    pub sale: Option<Sale>,
    /// The generator alone, at five times the rush of the sale.
    pub generator: Option<Step>,
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

/// The key that most want, and how much it can bear.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotKey {
    /// Its share of all arrivals.
    pub share: f64,
    /// All arrivals at which it would never be free: 1 / ((hold + hand-over) * share).
    pub bound_per_s: Option<f64>,
    /// What was completed far beyond the capacity, as a part of that bound: near 1 where it is what limits.
    pub explained: Option<f64>,
}

/// What limits a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// One lock is never free.
    HotKey,
    /// Redis has no time left.
    Redis,
    /// The generator cannot keep up: nothing is known of the rest.
    Generator,
    /// The promise is broken long before anything is full: requests wait for one another.
    Waiting,
    /// All rates that were asked for were borne.
    NotReached,
    /// None of these explains it.
    NotExplained,
}

/// What a sale does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sale {
    /// Before and after.
    pub base_per_s: f64,
    /// At the height of it.
    pub peak_per_s: f64,
    /// For how long; the rate rises to it and falls from it for a third of that.
    pub peak_s: f64,
    /// All in all.
    pub step: Step,
    /// From the end of the rush until no second had a request that broke the promise; nothing if that was not seen.
    pub recovered_after_s: Option<f64>,
}

/// Finds the answer; takes some minutes.
///
/// # Errors
/// [`RunError`], as a run has it; interrupted, there is no answer.
pub fn find(question: &Question, options: &RunOptions) -> Result<Capacity, RunError> {
    let mut measured = Measured::default();
    let mut versions = None;
    let mut run = |rate: f64, length: Duration, change: &dyn Fn(&mut Scenario)| {
        let mut scenario = question.at(rate, length);
        change(&mut scenario);
        let outcome = crate::run_of_many(scenario, options)?;
        versions.get_or_insert_with(|| outcome.versions.clone());
        let step = judge(&outcome, rate);
        options.progress.line(&words::line(&step));
        Ok::<_, RunError>((step, outcome))
    };
    let same = |_: &mut Scenario| {};
    let (from, to) = question.rates;
    let least = question.least_rate();
    let found = search((least, from.max(least), to), question.resolution, |rate| {
        let (step, _) = run(rate, question.step_at(rate), &same)?;
        let borne = if step.borne { Borne::Yes } else { Borne::No };
        measured.steps.push(step);
        Ok::<_, RunError>(borne)
    })?;
    let (mut capacity, mut too_much) = (found.borne, found.too_much);
    // Longer, and a little below: what was borne for a moment only is not the answer.
    while let Some(rate) = capacity {
        let (step, _) = run(rate * 0.95, question.step_at(rate) * 3, &same)?;
        let borne = step.borne;
        measured.confirmed = Some(step);
        if borne {
            break;
        }
        too_much = Some(rate * 0.95);
        capacity = Some(rate * CONFIRMED_AGAIN).filter(|lower| *lower > least);
    }
    if let Some(too_much) = too_much {
        measured.saturated = Some(run(too_much * 2.0, question.step_at(too_much), &same)?.0);
    }
    if let Some(rate) = capacity {
        let (base, peak) = (rate * 0.5, rate * 3.0);
        let part = question.step_at(base);
        let (step, outcome) = run(base, part * 2, &|scenario| sale(scenario, base, peak, part))?;
        measured.sale = Some(Sale {
            base_per_s: base,
            peak_per_s: peak,
            peak_s: part.as_secs_f64() / 2.0,
            step,
            recovered_after_s: question.recovery(&outcome, part),
        });
        measured.generator = Some(run(peak * GENERATOR_MARGIN, question.step, &generator_alone)?.0);
    }
    let mut answer = question.answer(capacity, too_much, measured);
    answer.versions = versions.unwrap_or_default();
    Ok(answer)
}

/// The same requests, which lock nothing and do nothing.
pub(crate) fn generator_alone(scenario: &mut Scenario) {
    scenario.lock.kind = LockType::None;
    scenario.workload.hold = Length::fixed(Duration::ZERO);
    scenario.workload.counter = false;
}

/// What has been measured so far.
#[derive(Default)]
struct Measured {
    steps: Vec<Step>,
    confirmed: Option<Step>,
    saturated: Option<Step>,
    sale: Option<Sale>,
    generator: Option<Step>,
}

impl Question {
    /// Refuses what cannot be answered.
    ///
    /// # Errors
    /// [`ScenarioError`], for a scenario that holds locks through faults, and for promises about nothing.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |place: &str, message: String| ScenarioError {
            place: place.to_owned(),
            message,
        };
        if self.scenario.workload.model == Model::Held {
            let message = "the model \"held\" has no arrivals: ask for the capacity of an open or closed workload";
            return Err(wrong("workload.model", message.to_owned()));
        }
        for metric in self.promises.keys() {
            if !PROMISES.contains(&metric.as_str()) {
                let message = format!(
                    "{metric} cannot be promised of a rate: use one of {}",
                    PROMISES.join(", ")
                );
                return Err(wrong("--slo", message));
            }
        }
        Ok(())
    }

    /// The scenario at a rate.
    fn at(&self, rate: f64, length: Duration) -> Scenario {
        let mut scenario = self.scenario.clone();
        let workload = &mut scenario.workload;
        let rate_of_it = Rate(rate);
        workload.arrival = Some(match workload.arrival {
            Some(Arrival::Constant { .. }) => Arrival::Constant { rate: rate_of_it },
            _ => Arrival::Poisson { rate: rate_of_it },
        });
        workload.model = Model::Open;
        workload.think = None;
        workload.warm_up = Time(WARM_UP);
        workload.duration = Time(length);
        workload.clients = places(workload.wait, rate);
        scenario.scale = 1.0;
        scenario.stages.clear();
        scenario.faults.clear();
        scenario.thresholds = self.promises.clone();
        scenario
    }

    /// How many arrivals a step needs before it can say what was promised.
    fn samples(&self) -> f64 {
        let of = |metric: &String| match metric.as_str() {
            "acquire.p999" => 11_000.0,
            "acquire.p99" | "service.p99" => 1_100.0,
            "acquire.p90" => 110.0,
            _ => 1.0,
        };
        self.promises.keys().map(of).fold(1.0, f64::max)
    }

    /// At a lower rate a step would take too long.
    fn least_rate(&self) -> f64 {
        (self.samples() / LONGEST_STEP.as_secs_f64()).max(1.0)
    }

    fn step_at(&self, rate: f64) -> Duration {
        self.step
            .max(Duration::from_secs_f64(self.samples() / rate).min(LONGEST_STEP))
    }

    /// From the end of the rush to the first second after which every one kept the promise.
    fn recovery(&self, outcome: &Outcome, part: Duration) -> Option<f64> {
        let load = outcome.load.as_ref()?;
        let of_latency = ["acquire.p99", "acquire.p999", "acquire.max", "service.p99"];
        let limit = of_latency.iter().find_map(|metric| self.promises.get(*metric))?.value;
        let last = load.series.last()?.second;
        // A second in which nobody was answered is no good one.
        let is_bad = |second: &u32| {
            let row = load.series.iter().find(|row| row.second == *second);
            row.is_none_or(|row| row.p99_ms > limit)
        };
        match (0..=last).filter(is_bad).max() {
            None => Some(0.0),
            Some(bad) if bad < last => Some((f64::from(bad) + 1.0 - part.as_secs_f64()).max(0.0)),
            Some(_) => None,
        }
    }

    fn answer(&self, capacity: Option<f64>, too_much: Option<f64>, measured: Measured) -> Capacity {
        let plan = workload::arrivals(&self.at(capacity.or(too_much).unwrap_or(1.0), self.step));
        let share = workload::busiest_share(&plan);
        // From where it is borne: far beyond, hold and hand-over would follow from what they are to explain.
        let best = measured.confirmed.as_ref().or(measured.saturated.as_ref());
        let busy = best.and_then(|step| Some((step.hold_ms? + step.hand_over_ms?) / 1e3));
        let bound_per_s = busy.filter(|_| share > 0.0).map(|busy| 1.0 / (busy * share));
        let throughput = measured.saturated.as_ref().map(|step| step.throughput_per_s);
        let hot_key = HotKey {
            share,
            bound_per_s,
            explained: throughput
                .zip(bound_per_s)
                .map(|(throughput, bound)| throughput / bound),
        };
        let mut invalid = flaws(&measured);
        let limit = limit(&measured, &hot_key, capacity.or(too_much));
        if limit == Bound::Generator {
            invalid.push("the generator cannot keep up, so nothing is known of what it drives".to_owned());
        }
        let of_sale = measured.sale.as_ref().map(|sale| &sale.step);
        let mut under_locks = (measured.steps.iter())
            .chain(&measured.confirmed)
            .chain(&measured.saturated)
            .chain(of_sale);
        let exit = match () {
            // The generator alone has no locks, so there two are at work all the time.
            () if self.scenario.lock.kind != LockType::None && under_locks.any(Step::is_unsafe) => crate::exit::SAFETY,
            () if !invalid.is_empty() => crate::exit::INVALID,
            () if capacity.is_none() => crate::exit::THRESHOLD,
            () => crate::exit::GOOD,
        };
        Capacity {
            scenario: self.scenario.clone(),
            promises: self.promises.clone(),
            capacity_per_s: capacity,
            too_much_per_s: too_much,
            steps: measured.steps,
            confirmed: measured.confirmed,
            saturated: measured.saturated,
            hot_key,
            limit,
            sale: measured.sale,
            generator: measured.generator,
            invalid,
            versions: Versions::default(),
            machine: Machine::read(),
            repeat: self.repeat.clone(),
            exit,
        }
    }
}

/// What one run says of its rate.
fn judge(outcome: &Outcome, rate: f64) -> Step {
    let empty = Load::default();
    let load = outcome.load.as_ref().unwrap_or(&empty);
    let broken = outcome.thresholds.iter().filter(|threshold| !threshold.holds);
    let mut broke: Vec<String> = broken
        .map(|threshold| match threshold.measured {
            Some(measured) => format!("{} {}: {}", threshold.metric, threshold.limit, words::number(measured)),
            None => format!("{} was not measured: too few samples", threshold.metric),
        })
        .collect();
    let (grown, backlog_per_s) = backlog(load, &workload::arrivals(&outcome.scenario));
    if grown > (rate * load.window_s / 2.0 * BACKLOG).max(LEAST_BACKLOG) {
        broke.push(format!("the backlog grew by {} a second", words::number(backlog_per_s)));
    }
    let failures = load.timeouts + load.dropped + load.errors.values().sum::<u64>();
    let failed = failures as f64 / (load.successes + failures).max(1) as f64;
    if failed > MOST_FAILED {
        broke.push(format!("{} % got no lock", words::number(failed * 100.0)));
    }
    Step {
        rate_per_s: rate,
        borne: broke.is_empty(),
        broke,
        throughput_per_s: load.throughput_per_s,
        backlog_per_s,
        acquire_p50_ms: load.acquire.p50_ms,
        acquire_p99_ms: load.acquire.p99_ms,
        acquire_max_ms: load.acquire.max_ms,
        failed,
        hold_ms: load.hold.mean_ms,
        hand_over_ms: load.hand_over.mean_ms,
        redis_cpu: load.redis_cpu,
        generator_lag_p99_ms: load.generator_lag.p99_ms.or(load.generator_lag.max_ms),
        overlaps: outcome.checked.overlaps.count,
        lost_updates: load.lost_updates.unwrap_or(0),
        fence_disorder: outcome.checked.fencing.disorder,
    }
}

impl Step {
    fn is_unsafe(&self) -> bool {
        self.overlaps > 0 || self.lost_updates > 0 || self.fence_disorder > 0
    }
}

/// By how many the requests in progress grew over the second half of a run, and how many a second that is.
fn backlog(load: &Load, plan: &[workload::Arrival]) -> (f64, f64) {
    let seconds = load.window_s.floor() as u64;
    let half = seconds / 2..seconds;
    let second_of = |arrival: &workload::Arrival| {
        Duration::from_nanos(arrival.at_ns)
            .checked_sub(WARM_UP)
            .map(|at| at.as_secs())
    };
    let came = plan
        .iter()
        .filter_map(second_of)
        .filter(|second| half.contains(second))
        .count();
    let answered = load
        .series
        .iter()
        .filter(|second| half.contains(&u64::from(second.second)));
    let answered: u64 = answered.map(|second| second.count).sum();
    // What was dropped or failed waits no more; it is counted elsewhere.
    let gone = load.dropped + load.errors.values().sum::<u64>();
    let grown = (came as f64 - answered as f64 - gone as f64).max(0.0);
    (grown, grown / (half.end - half.start).max(1) as f64)
}

/// Why the answer is none: the generator was the slowest of all.
fn flaws(measured: &Measured) -> Vec<String> {
    let mut flaws = Vec::new();
    let late = |step: &Step| step.generator_lag_p99_ms.filter(|lag| *lag > MOST_LAG_MS);
    let confirmed = measured.confirmed.as_ref();
    if let Some((step, lag)) = confirmed.and_then(|step| Some((step, late(step)?))) {
        flaws.push(format!(
            "at {} a second the generator was {} ms late at p99, more than {MOST_LAG_MS} ms",
            words::number(step.rate_per_s),
            words::number(lag)
        ));
    }
    let (Some(sale), Some(alone)) = (&measured.sale, &measured.generator) else {
        return flaws;
    };
    // The highest rate that is printed beside the answer.
    if alone.throughput_per_s < sale.peak_per_s * GENERATOR_MARGIN * 0.95 {
        flaws.push(format!(
            "alone, without locks, the generator does {} a second, less than {GENERATOR_MARGIN} times {}",
            words::number(alone.throughput_per_s),
            words::number(sale.peak_per_s)
        ));
    }
    flaws
}

fn limit(measured: &Measured, hot_key: &HotKey, rate: Option<f64>) -> Bound {
    let Some(saturated) = &measured.saturated else {
        return Bound::NotReached;
    };
    let (Some(bound), Some(explained)) = (hot_key.bound_per_s, hot_key.explained) else {
        return Bound::NotExplained;
    };
    let full_redis = saturated.redis_cpu.is_some_and(|cpu| cpu > FULL);
    let late = saturated
        .generator_lag_p99_ms
        .is_some_and(|lag| lag > 10.0 * MOST_LAG_MS);
    match rate {
        _ if late => Bound::Generator,
        _ if full_redis => Bound::Redis,
        Some(rate) if rate < bound * (1.0 - EXPLAINED) => Bound::Waiting,
        _ if (explained - 1.0).abs() <= EXPLAINED => Bound::HotKey,
        _ => Bound::NotExplained,
    }
}

/// A quiet time, a rush, a quiet time: half a part, half a part, a part.
fn sale(scenario: &mut Scenario, base: f64, peak: f64, part: Duration) {
    let rush = Arrival::Flash {
        base: Rate(base),
        peak: Rate(peak),
        rise: Time(part / 10),
        hold: Time(part * 3 / 10),
        decay: Time(part / 10),
    };
    scenario.stages = vec![Stage {
        at: Time(part / 2),
        arrival: rush,
    }];
    scenario.workload.clients = places(scenario.workload.wait, peak);
}

/// Whoever waits as long as it may has a place; what finds none is counted.
fn places(wait: Time, rate: f64) -> u32 {
    ((rate * (wait.0.as_secs_f64() + 1.0)) as u32).clamp(100, MOST_PLACES)
}

/// What can be promised of a rate.
const PROMISES: [&str; 9] = [
    "acquire.p50",
    "acquire.p90",
    "acquire.p99",
    "acquire.p999",
    "acquire.max",
    "service.p99",
    "timeouts",
    "errors",
    "dropped",
];

const WARM_UP: Duration = Duration::from_secs(1);

/// No step takes longer.
const LONGEST_STEP: Duration = Duration::from_secs(60);

/// Where a rate is not borne for long, the next one to try.
const CONFIRMED_AGAIN: f64 = 0.8;

/// The generator alone has to do so many times the rate that it is the measure of.
pub(crate) const GENERATOR_MARGIN: f64 = 5.0;

/// Later than that at p99, and the generator measures itself.
pub(crate) const MOST_LAG_MS: f64 = 1.0;

/// A backlog that grows by this part of what came is no accident,
const BACKLOG: f64 = 0.02;

/// but one of fewer requests is: they come at random.
const LEAST_BACKLOG: f64 = 20.0;

/// One in a thousand may fail.
const MOST_FAILED: f64 = 0.001;

/// A bound this near to what was measured explains it.
const EXPLAINED: f64 = 0.2;

/// Redis works on one core.
const FULL: f64 = 0.85;

/// More requests in progress are no workload any more.
const MOST_PLACES: u32 = 200_000;
