//! One fault of a scenario: whether it may strike this server, and how it does.

use crate::clock;
use crate::evidence::{Kind, Record};
use crate::faults::{self, Fault, FaultError, FaultGuard, Observed, Targets};
use crate::measure::FaultRun;
use crate::scenario::{FaultKind, FaultSpec, Place, Scenario};

use super::team::Reach;
use super::{RunError, RunOptions, Target, millis, millis_between};

/// Refuses at once what the server under test would not allow later.
pub(crate) fn check_allowed(scenario: &Scenario, target: &Target, options: &RunOptions) -> Result<(), RunError> {
    if target.own().is_some() {
        return Ok(());
    }
    if scenario.lock.kind.masters() > 1 {
        return Err(RunError::NotOurs("a lock over several masters"));
    }
    for kind in scenario.faults.iter().map(|fault| fault.kind) {
        match kind.place() {
            Place::OwnServer => return Err(RunError::NotOurs(kind.name())),
            Place::Server if !options.allow_faults => return Err(RunError::NotAllowed(kind.name())),
            Place::Server | Place::Proxy | Place::Worker => {}
        }
    }
    Ok(())
}

/// A fault that is over: when it was in effect, and what workers could not write down themselves.
pub(super) struct Struck {
    pub(super) observed: Observed,
    pub(super) records: Vec<Record>,
}

/// Brings a fault about, waits, heals it; an interrupt heals it at once.
pub(super) fn strike(
    scenario: &Scenario,
    spec: &FaultSpec,
    target: &Target,
    workers: &[Reach],
    options: &RunOptions,
) -> Result<Struck, RunError> {
    let length = scenario.scaled(spec.length);
    let kind = spec.kind.name();
    let fault = fault(scenario, spec);
    let guards = inject(&fault, spec, target, workers).map_err(|source| RunError::Fault { kind, source })?;
    let in_effect_ns = clock::now_ns();
    let masters = spec
        .masters
        .map_or_else(String::new, |count| format!(", {count} of the masters"));
    let long = match length.is_zero() {
        true => String::new(),
        false => format!(" for {:.2} s", length.as_secs_f64()),
    };
    options
        .progress
        .line(&format!("fault {kind}{long}, scope {}{masters}", spec.scope));
    let whole = options.interrupt.sleep(length);
    let ending_ns = clock::now_ns();
    // All are ended, whatever one of them says.
    let ended: Vec<_> = guards
        .into_iter()
        // A pause ends by itself, some time late; to end it early would be another fault than the one asked for.
        .map(|guard| if whole { guard.outlast() } else { guard.heal() })
        .collect();
    let mut observed: Option<Observed> = None;
    for each in ended {
        let each = each.map_err(|source| RunError::Fault { kind, source })?;
        let so_far = observed.unwrap_or(each);
        observed = Some(Observed {
            from_ns: so_far.from_ns.min(each.from_ns),
            to_ns: so_far.to_ns.max(each.to_ns),
        });
    }
    let observed = observed.ok_or(RunError::NotOurs(kind))?;
    options.progress.line(&format!(
        "fault {kind} is over after {:.2} s",
        observed.duration().as_secs_f64()
    ));
    let records = match spec.kind {
        // Between these two they stood still for certain.
        FaultKind::FreezeClient => workers
            .iter()
            .map(|worker| of_worker(worker, Kind::Frozen, in_effect_ns, ending_ns))
            .collect(),
        FaultKind::KillClient9 => {
            let deaths = workers
                .iter()
                .filter_map(|worker| Some((worker, worker.process.struck_dead()?)));
            deaths
                .map(|(worker, death)| of_worker(worker, Kind::Killed, death.from_ns, death.to_ns))
                .collect()
        }
        _ => Vec::new(),
    };
    Ok(Struck { observed, records })
}

fn of_worker(worker: &Reach, kind: Kind, clock: u64, second_clock: u64) -> Record {
    Record {
        key: u64::MAX,
        owner: u64::from(worker.member),
        fence: 0,
        kind,
        clock,
        second_clock,
    }
}

/// What the scenario asks for, as it runs.
fn fault(scenario: &Scenario, spec: &FaultSpec) -> Fault {
    let length = scenario.scaled(spec.length);
    match spec.kind {
        FaultKind::PauseWrite => Fault::PauseWrite { limit: length },
        FaultKind::PauseAll => Fault::PauseAll { limit: length },
        FaultKind::FreezeServer => Fault::FreezeServer,
        FaultKind::Sleep => Fault::Sleep { length },
        FaultKind::SlowLua => Fault::SlowScript { length },
        FaultKind::Restart => Fault::Restart {
            keep_data: spec.persist.unwrap_or(true),
        },
        FaultKind::Readonly => Fault::ReadOnly,
        FaultKind::Noreplicas => Fault::NoReplicas,
        FaultKind::Oom => Fault::OutOfMemory,
        FaultKind::KillClients => Fault::KillClients,
        FaultKind::ScriptFlush => Fault::FlushScripts,
        FaultKind::Refuse => Fault::Refuse,
        FaultKind::Swallow => Fault::Swallow,
        FaultKind::Hold => Fault::Hold {
            deliver_after_close: false,
        },
        FaultKind::Deliver => Fault::Hold {
            deliver_after_close: true,
        },
        FaultKind::Latency => {
            let scaled = |time: Option<_>| time.map(|time| scenario.scaled(time)).unwrap_or_default();
            let least = scaled(spec.delay);
            Fault::Latency {
                least,
                most: least + scaled(spec.jitter),
            }
        }
        FaultKind::FreezeClient => Fault::FreezeClients,
        FaultKind::KillClient9 => Fault::KillWorkers,
        FaultKind::DropFuture => Fault::DropFutures,
    }
}

/// Brings a fault about on as many masters as the scenario says, or on these workers.
fn inject<'a>(
    fault: &Fault,
    spec: &FaultSpec,
    target: &'a Target,
    workers: &[Reach],
) -> Result<Vec<FaultGuard<'a>>, FaultError> {
    let masters = spec.masters.unwrap_or(usize::MAX);
    let on_workers = match spec.kind.place() {
        Place::Proxy => {
            let legs = workers
                .iter()
                .flat_map(|worker| worker.legs.iter().take(masters).cloned());
            Some(Targets::legs(legs))
        }
        Place::Worker => Some(Targets::workers(workers.iter().map(|worker| worker.process.clone()))),
        Place::Server | Place::OwnServer => None,
    };
    if let Some(targets) = on_workers {
        return Ok(vec![faults::inject(fault, &targets)?]);
    }
    let urls = target.urls().into_iter().enumerate().take(masters);
    let of_master = urls.map(|(index, url)| {
        let targets = Targets {
            server: target.own().map(|servers| &servers[index]),
            admin_url: Some(url),
            ..Targets::default()
        };
        faults::inject(fault, &targets)
    });
    of_master.collect()
}

pub(super) fn fault_run(scenario: &Scenario, spec: &FaultSpec, observed: Observed, origin_ns: u64) -> FaultRun {
    FaultRun {
        kind: spec.kind,
        scope: spec.scope,
        asked_ms: millis(scenario.scaled(spec.length)),
        from_ms: millis_between(origin_ns, observed.from_ns),
        observed_ms: millis(observed.duration()),
        struck_ns: observed.from_ns,
    }
}
