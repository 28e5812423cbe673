//! `lockbench`: load and faults for Redis locks, and a checker that no lock can talk out of anything.
//!
//! Data flows one way: a [`Scenario`] says what to run; worker processes, each behind its own leg of a proxy,
//! run it and write down what they did; the [`check`]er reads what they wrote; all ends in an [`Outcome`],
//! from which alone the [`report`] is made. The [`results`] lie in one folder.

pub mod advise;
pub mod capacity;
pub mod check;
pub mod cli;
pub mod clock;
pub mod driver;
pub mod evidence;
pub mod exit;
pub mod faults;
pub mod interrupt;
pub mod job;
pub mod measure;
pub mod peer_driver;
pub mod policies;
pub mod predict;
pub mod proxy;
pub mod real;
pub mod report;
pub mod results;
mod run;
pub mod scenario;
pub mod servers;
pub mod terminal;
pub mod worker;
pub mod workload;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

pub use measure::Outcome;
pub use run::{RunError, RunOptions};
pub use scenario::Scenario;

use measure::{Checked, Grid, Machine, Versions};
use real::RealClient;
use run::{StallWatch, Target};
use scenario::Model;

/// Runs a scenario: server, workers, faults, checker, verdict. `repeat` is the command that would run it again.
///
/// Every process it starts has ended when it returns, and every fault is healed, also after an interrupt:
/// then the outcome holds what was measured until then.
///
/// # Errors
/// [`RunError`], when there is nothing to measure: a server, a worker or a permission is missing.
pub fn run(scenario: Scenario, repeat: String, options: &RunOptions) -> Result<Outcome, RunError> {
    let begin_ns = clock::now_ns();
    for client in scenario.policies().iter().filter_map(|policy| RealClient::of(policy)) {
        options.progress.line(&format!("making {} ready", client.name));
        client.prepare()?;
    }
    let target = Target::open(&scenario)?;
    run::check_allowed(&scenario, &target, options)?;
    let mut outcome = empty(scenario, repeat, Versions::read(target.version()));
    outcome.grid = options.grid.then(Grid::default);
    results::clear(&options.folder)?;

    let stalls = StallWatch::start();
    let ran = match outcome.scenario.workload.model {
        Model::Held => run::run_rounds(&mut outcome, &target, options, &stalls),
        Model::Closed | Model::Open => run::run_load(&mut outcome, &target, options),
    };
    match ran {
        // What was measured before stays.
        Ok(()) | Err(RunError::Interrupted) => {}
        Err(error) => return Err(error),
    }
    if let Some(grid) = &mut outcome.grid {
        let repeated = grid.repeated;
        *grid = Grid::of(&outcome.rounds, outcome.scenario.scale);
        grid.repeated = repeated;
        outcome.rounds.iter_mut().for_each(measure::Round::thin);
    }
    if outcome.rounds.is_empty() {
        outcome.stall_max_ms = stalls.take().as_secs_f64() * 1e3;
    }
    outcome.interrupted = options.interrupt.is_set();
    outcome.took_s = clock::since(begin_ns).as_secs_f64();
    measure::judge(&mut outcome);
    Ok(outcome)
}

/// Runs one scenario of several that one question needs: nothing of it stays in the folder.
///
/// # Errors
/// As [`run`]; also when it was interrupted, since then there is no answer.
fn run_of_many(scenario: Scenario, options: &RunOptions) -> Result<Outcome, RunError> {
    let outcome = run(scenario, String::new(), options)?;
    // What its workers wrote down has been read.
    results::clear(&options.folder)?;
    if outcome.interrupted {
        return Err(RunError::Interrupted);
    }
    Ok(outcome)
}

/// An outcome that has measured nothing yet.
fn empty(scenario: Scenario, repeat: String, versions: Versions) -> Outcome {
    // The wall clock only names the run: nothing is measured with it.
    let started_unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    Outcome {
        schema: results::SCHEMA,
        run: format!("{}-{started_unix_s}-{}", scenario.name, scenario.seed),
        started_unix_s,
        took_s: 0.0,
        scenario,
        repeat,
        versions,
        machine: Machine::read(),
        interrupted: false,
        load: None,
        rounds: Vec::new(),
        grid: None,
        faults: Vec::new(),
        checked: Checked::default(),
        stall_max_ms: 0.0,
        metrics: BTreeMap::new(),
        thresholds: Vec::new(),
        findings: Vec::new(),
        verdict: String::new(),
        exit: exit::GOOD,
    }
}
