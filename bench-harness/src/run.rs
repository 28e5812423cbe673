//! What a run is made of: the server under test, the team of workers, the rounds.

mod facts;
mod held;
mod load;
mod look_up;
mod stall;
mod target;
mod team;
mod ticker;

use std::path::PathBuf;
use std::time::Duration;

use crate::clock;
use crate::faults::{self, Fault, FaultError, FaultGuard, Observed, Targets};
use crate::interrupt::Interrupt;
use crate::measure::FaultRun;
use crate::proxy::{Leg, ProxyError};
use crate::real::RealClientError;
use crate::scenario::{FaultKind, FaultSpec, Scenario};
use crate::servers::ServerError;
use crate::terminal::Progress;

pub(crate) use held::run_rounds;
pub(crate) use load::run_load;
pub(crate) use look_up::look_up;
pub(crate) use stall::StallWatch;
pub(crate) use target::Target;

/// How a run is made, besides its scenario.
#[derive(Debug)]
pub struct RunOptions {
    /// Where the evidence is written; made if it is not there.
    pub folder: PathBuf,
    /// Whether faults may be sent to a server that is not ours.
    pub allow_faults: bool,
    /// Whether the rounds make one grid: then a round that says nothing is repeated, and locks are counted, not listed.
    pub grid: bool,
    /// Whether what workers wrote down stays, also of the rounds of a grid, in which nothing went against the model.
    pub keep_evidence: bool,
    /// Tells people how it goes.
    pub progress: Progress,
    /// Tells us that people want an end.
    pub interrupt: Interrupt,
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The server under test is not there.
    #[error("Redis at {url} cannot be reached ({cause}); start it, or leave --redis out to have one started")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// What the attempt said.
        cause: String,
    },
    /// The URL is none the proxy can pass on.
    #[error("{url:?} cannot be used: {what}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server of our own does not start.
    #[error("a redis-server cannot be started: {0}")]
    Server(#[from] ServerError),
    /// The proxy does not start.
    #[error("the proxy cannot be started: {0}")]
    Proxy(#[from] ProxyError),
    /// A fault that the user's server must not see without leave.
    #[error("{0} would disturb everybody who uses that Redis: give --allow-faults if it is yours to disturb")]
    NotAllowed(&'static str),
    /// A fault that only a server of ours can have.
    #[error("{0} needs a server started by lockbench: leave --redis out")]
    NotOurs(&'static str),
    /// A fault could not be brought about.
    #[error("the fault {kind} could not be brought about: {source}")]
    Fault {
        /// Which.
        kind: &'static str,
        /// Why.
        source: FaultError,
    },
    /// A client of another library that was asked for cannot be had here.
    #[error("{0}")]
    RealClient(#[from] RealClientError),
    /// A worker process failed.
    #[error("a worker failed: {0}")]
    Worker(String),
    /// The system refused a file or a process.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The outcome cannot be shown.
    #[error("the report cannot be made: {0}")]
    Report(String),
    /// A lock cannot be shown that was asked for.
    #[error("{0}")]
    NoSuchLock(String),
    /// Ended by Ctrl-C before there was anything to report.
    #[error("interrupted before anything was measured")]
    Interrupted,
}

/// Refuses at once what the server under test would not allow later.
pub(crate) fn check_allowed(scenario: &Scenario, target: &Target, options: &RunOptions) -> Result<(), RunError> {
    if target.own().is_none() && scenario.lock.kind.masters() > 1 {
        return Err(RunError::NotOurs("a lock over several masters"));
    }
    for fault in &scenario.faults {
        if target.own().is_none() && fault.kind == FaultKind::FreezeServer {
            return Err(RunError::NotOurs(fault.kind.name()));
        }
        if target.own().is_none() && fault.kind.is_of_server() && !options.allow_faults {
            return Err(RunError::NotAllowed(fault.kind.name()));
        }
    }
    Ok(())
}

/// Brings a fault about, waits, heals it; an interrupt heals it at once.
fn strike(
    scenario: &Scenario,
    spec: &FaultSpec,
    target: &Target,
    legs: Vec<Vec<Leg>>,
    options: &RunOptions,
) -> Result<Observed, RunError> {
    let length = scenario.scaled(spec.length);
    let kind = spec.kind.name();
    let fault = match spec.kind {
        FaultKind::PauseWrite => Fault::PauseWrite { limit: length },
        FaultKind::FreezeServer => Fault::FreezeServer,
        FaultKind::Refuse => Fault::Refuse,
        FaultKind::Swallow => Fault::Swallow,
        FaultKind::Hold => Fault::Hold {
            deliver_after_close: false,
        },
        FaultKind::Deliver => Fault::Hold {
            deliver_after_close: true,
        },
    };
    let guards = inject(&fault, spec, target, legs).map_err(|source| RunError::Fault { kind, source })?;
    let masters = spec
        .masters
        .map_or_else(String::new, |count| format!(", {count} of the masters"));
    options.progress.line(&format!(
        "fault {kind} for {:.2} s, scope {}{masters}",
        length.as_secs_f64(),
        spec.scope.name()
    ));
    let whole = options.interrupt.sleep(length);
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
    Ok(observed)
}

/// Brings a fault about on as many masters as the scenario says. `legs` are those of each worker, one to each master.
fn inject<'a>(
    fault: &Fault,
    spec: &FaultSpec,
    target: &'a Target,
    legs: Vec<Vec<Leg>>,
) -> Result<Vec<FaultGuard<'a>>, FaultError> {
    let masters = spec.masters.unwrap_or(usize::MAX);
    if !spec.kind.is_of_server() {
        let legs = legs
            .into_iter()
            .flat_map(|of_worker| of_worker.into_iter().take(masters));
        return Ok(vec![faults::inject(fault, &Targets::legs(legs))?]);
    }
    let urls = target.urls().into_iter().enumerate().take(masters);
    let of_master = urls.map(|(index, url)| {
        let targets = Targets {
            server: target.own().map(|servers| &servers[index]),
            admin_url: Some(url),
            legs: Vec::new(),
        };
        faults::inject(fault, &targets)
    });
    of_master.collect()
}

fn fault_run(scenario: &Scenario, spec: &FaultSpec, observed: Observed, origin_ns: u64) -> FaultRun {
    FaultRun {
        kind: spec.kind,
        scope: spec.scope,
        asked_ms: millis(scenario.scaled(spec.length)),
        from_ms: millis_between(origin_ns, observed.from_ns),
        observed_ms: millis(observed.duration()),
        struck_ns: observed.from_ns,
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Milliseconds from one instant to another; negative if the other is earlier.
fn millis_between(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}

/// An instant a little ahead, so that all workers hear of it before it comes.
fn soon() -> u64 {
    clock::now_ns() + START_DELAY.as_nanos() as u64
}

const START_DELAY: Duration = Duration::from_millis(150);
