//! A run of the models `closed` and `open`: workers take and release locks, faults strike meanwhile.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::check;
use crate::clock;
use crate::evidence::Record;
use crate::job::{Going, Note, Order, Role, Tally};
use crate::measure::{
    Checked, FAIRNESS_WINDOW, FaultRun, Finding, Latency, Little, Load, Outcome, Second, Severity, decode, histogram,
    jain, record,
};
use crate::scenario::{FaultSpec, LockType, Model, Scenario, nanos};
use crate::worker::{counters, of_the_dead};

use super::schedule::Schedule;
use super::seen::{Seen, write_down};
use super::team::{Reach, Team};
use super::traces::Traces;
use super::{RunError, RunOptions, Target, facts, fault_run, soon, strike};

/// Runs the workload and puts what it measured into the outcome.
pub(crate) fn run_load(outcome: &mut Outcome, target: &Target, options: &RunOptions) -> Result<(), RunError> {
    let scenario = outcome.scenario.clone();
    let prefix = format!("lockbench:{}:", outcome.run);
    let names: Vec<_> = (0..scenario.workload.keys.count)
        .map(|key| format!("{prefix}{key}"))
        .collect();
    let _traces = Traces::of(target, names.iter().cloned())?;
    let mut team = Team::new(target, &options.folder, prefix)?;
    let processes = scenario.workload.processes;
    for index in 0..processes {
        team.add(&scenario, target, Role::Load, (index, processes))?;
    }
    team.wait_for(
        "ready",
        |_| true,
        |note| matches!(note, Note::Ready),
        &options.interrupt,
    )?;

    let cpu_before_s = target.cpu_s()?;
    let sent_before = target.executed()?.sent;
    let start_ns = soon();
    let origin_ns = start_ns + nanos(scenario.scaled(scenario.workload.warm_up));
    let end_ns = origin_ns + nanos(scenario.scaled(scenario.workload.duration));
    team.order(|_| true, Order::Start { at_ns: start_ns });
    options.progress.begin("load", Duration::from_nanos(end_ns - start_ns));
    // The last requests may wait as long as they are allowed to, and then hold their lock.
    let work = scenario.workload.hold.mostly_within();
    let patience = scenario
        .workload
        .wait
        .0
        .saturating_add(work)
        .saturating_add(AFTER_THE_END);
    let patience_ns = end_ns.saturating_add(nanos(patience));
    let now = Mutex::new(Going::default());
    let workers = team.reach(|_| true);
    let (all_done, faults) = std::thread::scope(|scope| {
        let faults = scope.spawn(|| strike_all(&scenario, target, &workers, options, origin_ns, &now));
        let all_done = team.listen_until(patience_ns, &options.interrupt, |going| {
            *now.lock().unwrap_or_else(PoisonError::into_inner) = going;
            let text = format!(
                "{} answered, {} waiting, {} held",
                going.answered, going.waiting, going.held
            );
            options
                .progress
                .at(Duration::from_nanos(clock::now_ns().saturating_sub(start_ns)), &text);
        });
        let faults = faults
            .join()
            .unwrap_or_else(|_| Err(RunError::Worker("the fault thread panicked".to_owned())));
        (all_done, faults)
    });
    options.progress.end();
    // Of the whole run: the server is not asked while it is measured.
    let run_s = clock::now_ns().saturating_sub(start_ns) as f64 / 1e9;
    let cpu_s = target.cpu_s()? - cpu_before_s;
    // A server that was started anew counts anew.
    let sent = target.executed()?.sent.checked_sub(sent_before);
    let measured_until = clock::now_ns().min(end_ns);
    let (_all_done, struck) = (all_done?, faults?);
    if !options.interrupt.is_set() {
        outcome.findings.extend(struck.never);
    }
    let mut tallies = team.finish()?;
    let evidence = team.evidence()?;
    let dead: Vec<usize> = workers
        .iter()
        .filter(|worker| worker.process.struck_dead().is_some())
        .map(|worker| worker.member as usize)
        .collect();
    for &member in &dead {
        tallies[member] = of_the_dead(&scenario, start_ns, &evidence[member]);
    }

    write_down(&options.folder, &struck.records)?;
    let seen = Seen::of(&evidence, &struck.records);
    let intervals = seen.work.len() as u64;
    let reads = seen.work.iter().filter(|work| work.reads).count() as u64;
    let turns = facts::turns(check::turns(&evidence, origin_ns..end_ns));
    outcome.checked = Checked {
        records: evidence.iter().map(|records| records.len() as u64).sum(),
        intervals,
        overlaps: facts::sum(&seen.overlaps),
        frozen: facts::sum(&seen.frozen),
        orphans: facts::orphans(&check::orphans(&evidence, &struck.records)),
        turns,
        fencing: facts::fencing(&seen.work),
    };
    outcome.faults = struck.faults;
    let window_s = measured_until.saturating_sub(origin_ns) as f64 / 1e9;
    let mut load = merge(&tallies, window_s);
    let measured_s = scenario.scaled(scenario.workload.duration).as_secs_f64();
    load.little = (!options.interrupt.is_set()).then(|| little(&tallies, measured_s));
    let mut hand_overs = histogram();
    for nanos in check::hand_overs(&evidence) {
        record(&mut hand_overs, nanos);
    }
    load.hand_over = Latency::of(&hand_overs);
    let per_lock = |count: u64| (intervals > 0).then(|| count as f64 / intervals as f64);
    load.commands_per_lock = sent.and_then(per_lock);
    load.read_share = per_lock(reads);
    load.contended_share = per_lock(load.hand_over.count);
    load.redis_cpu = (run_s > 0.0 && cpu_s >= 0.0).then(|| cpu_s / run_s);
    // Of the clients of a dead worker nobody knows who was served.
    load.fairness_of_clients = fairness_of_clients(&scenario, &tallies).filter(|_| dead.is_empty());
    let taken = match scenario.lock.kind {
        LockType::Script => Some(target.taken(&names)?),
        LockType::Kind(_) | LockType::None => None,
    };
    if scenario.workload.counter {
        let counted = || {
            counters(&options.folder).map_err(|source| RunError::System {
                what: "read the counters".to_owned(),
                source,
            })
        };
        let found = taken.map_or_else(counted, Ok)?;
        let increments: u64 = tallies.iter().map(|tally| tally.increments).sum();
        load.lost_updates = Some(increments.saturating_sub(found));
    }
    outcome.load = Some(load);
    Ok(())
}

/// The faults of a load, when it is over.
struct StruckAll {
    faults: Vec<FaultRun>,
    /// What workers could not write down themselves.
    records: Vec<Record>,
    /// Those that never struck: the run is no measurement then.
    never: Vec<Finding>,
}

/// Brings the faults about, each when it is due; stops at an interrupt.
fn strike_all(
    scenario: &Scenario,
    target: &Target,
    workers: &[Reach],
    options: &RunOptions,
    origin_ns: u64,
    now: &Mutex<Going>,
) -> Result<StruckAll, RunError> {
    let mut schedule = Schedule::new(scenario, origin_ns);
    let end_ns = origin_ns + nanos(scenario.scaled(scenario.workload.duration));
    let (mut faults, mut records) = (Vec::new(), Vec::new());
    while options.interrupt.sleep(LOOK) && clock::now_ns() < end_ns && !schedule.left().is_empty() {
        let Some(spec) = schedule.due(clock::now_ns(), *now.lock().unwrap_or_else(PoisonError::into_inner)) else {
            continue;
        };
        let living: Vec<Reach> = workers
            .iter()
            .filter(|worker| worker.process.struck_dead().is_none())
            .cloned()
            .collect();
        let concerned = &living[..spec.scope.of_processes(living.len())];
        let struck = strike(scenario, spec, target, concerned, options)?;
        schedule.over(spec, struck.observed.to_ns);
        faults.push(fault_run(scenario, spec, struck.observed, origin_ns));
        records.extend(struck.records);
    }
    let never = |spec: &FaultSpec| Finding {
        severity: Severity::Invalid,
        text: match &spec.when {
            Some(when) => format!(
                "the fault {} never struck: {when} did not come about within the measured time",
                spec.kind.name()
            ),
            None => format!(
                "the fault {} never struck: another lasted until the measured time was over",
                spec.kind.name()
            ),
        },
    };
    Ok(StruckAll {
        faults,
        records,
        never: schedule.left().into_iter().map(never).collect(),
    })
}

/// The least even full window; the whole measured time if it is shorter than one.
fn fairness_of_clients(scenario: &Scenario, tallies: &[Tally]) -> Option<f64> {
    if scenario.workload.model != Model::Closed {
        return None;
    }
    let measured = scenario.scaled(scenario.workload.duration);
    let full = (measured.as_nanos() / FAIRNESS_WINDOW.as_nanos()).max(1) as u32;
    let least = (0..full).filter_map(|window| {
        let mut served = vec![0; scenario.workload.clients as usize];
        let of_window = tallies.iter().filter_map(|tally| tally.served.get(&window));
        for (client, count) in of_window.flatten() {
            if let Some(served) = served.get_mut(*client as usize) {
                *served += count;
            }
        }
        jain(&served)
    });
    least.reduce(f64::min)
}

/// Adds up what the workers counted: histograms are merged, never averaged.
fn merge(tallies: &[Tally], window_s: f64) -> Load {
    let merged = |of: fn(&Tally) -> &String| {
        let mut all = histogram();
        for part in tallies.iter().filter_map(|tally| decode(of(tally))) {
            // All have the same bounds, so one takes what the other holds.
            let _ = all.add(part);
        }
        Latency::of(&all)
    };
    let mut seconds = BTreeMap::new();
    for (second, text) in tallies.iter().flat_map(|tally| &tally.series) {
        if let Some(part) = decode(text) {
            let _ = seconds.entry(*second).or_insert_with(histogram).add(part);
        }
    }
    let mut errors: BTreeMap<String, u64> = BTreeMap::new();
    for (text, count) in tallies.iter().flat_map(|tally| &tally.errors) {
        *errors.entry(text.clone()).or_default() += count;
    }
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let successes = sum(|tally| tally.successes);
    // Of a dead worker it is not known how many attempts it made.
    let asked = tallies.iter().filter(|tally| tally.attempts > 0);
    let asked = asked.map(|tally| tally.successes).sum::<u64>();
    Load {
        window_s,
        acquire: merged(|tally| &tally.acquire),
        service: merged(|tally| &tally.service),
        hold: merged(|tally| &tally.hold),
        generator_lag: merged(|tally| &tally.generator_lag),
        reentry: Some(merged(|tally| &tally.reentry)).filter(|reentry| reentry.count > 0),
        hand_over: Latency::default(),
        redis_cpu: None,
        series: seconds.iter().map(|(second, each)| Second::of(*second, each)).collect(),
        successes,
        throughput_per_s: if window_s > 0.0 {
            sum(|tally| tally.completed) as f64 / window_s
        } else {
            0.0
        },
        attempts_per_success: (asked > 0).then(|| sum(|tally| tally.attempts) as f64 / asked as f64),
        commands_per_lock: None,
        read_share: None,
        contended_share: None,
        timeouts: sum(|tally| tally.timeouts),
        errors,
        dropped: sum(|tally| tally.dropped),
        cancelled: sum(|tally| tally.cancelled),
        lost: sum(|tally| tally.lost),
        fairness_of_clients: None,
        lost_updates: None,
        little: None,
        per_process: tallies.iter().map(|tally| tally.successes).collect(),
    }
}

/// Those in the system, as they came and went and by the times they took.
fn little(tallies: &[Tally], measured_s: f64) -> Little {
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>() as f64;
    let ended = sum(|tally| tally.ended);
    Little {
        mean_in_system: sum(|tally| tally.present_ns) / 1e9 / measured_s,
        rate_per_s: ended / measured_s,
        mean_time_ms: if ended > 0.0 {
            sum(|tally| tally.in_system_ns) / 1e6 / ended
        } else {
            0.0
        },
        edges: tallies.iter().map(|tally| tally.edges_ns).sum::<i64>() as f64 / 1e9 / measured_s,
    }
}

/// How often it is looked whether a fault is due.
const LOOK: Duration = Duration::from_millis(2);

/// Beyond the longest wait and the work under the last locks.
const AFTER_THE_END: Duration = Duration::from_secs(10);
