//! What a run is made of: the server under test, the team of workers, the rounds.

mod facts;
mod held;
mod load;
mod look_up;
mod phase;
mod schedule;
mod seen;
mod server_side;
mod stall;
mod strike;
mod target;
mod team;
mod ticker;
mod traces;

use std::path::PathBuf;
use std::time::Duration;

use crate::clock;
use crate::faults::FaultError;
use crate::interrupt::Interrupt;
use crate::proxy::ProxyError;
use crate::real::RealClientError;
use crate::servers::ServerError;
use crate::terminal::Progress;

pub(crate) use held::run_rounds;
pub(crate) use load::run_load;
pub(crate) use look_up::look_up;
pub(crate) use stall::StallWatch;
pub(crate) use strike::check_allowed;
use strike::{fault_run, strike};
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
