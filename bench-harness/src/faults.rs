//! Faults and the guards that heal them: injecting returns a guard, dropping it heals.

mod awaited;
mod legs;
mod process;
mod repeated;
mod settings;
mod workers;

use std::error::Error;
use std::io;
use std::time::Duration;

use crate::clock;
use crate::job::Order;
use crate::proxy::{Leg, Mode, ProxyError};
use crate::servers::{self, RedisServer, ServerError};
use awaited::Awaited;
use legs::Switched;
use repeated::Repeated;
use settings::Settings;
use workers::{Killed, Stopped, Told};

pub use process::{Death, WorkerProcess};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `CLIENT PAUSE … WRITE`: the whole server keeps writes waiting, reads pass. Needs a server or an admin URL.
    PauseWrite {
        /// When Redis ends the pause by itself, up to 100 ms late; in whole milliseconds, rounded up.
        limit: Duration,
    },
    /// `CLIENT PAUSE … ALL`: the whole server keeps everything waiting. Needs a server or an admin URL.
    PauseAll {
        /// When Redis ends the pause by itself, up to 100 ms late; nobody can end it sooner, since `UNPAUSE` waits as well.
        limit: Duration,
    },
    /// `DEBUG SLEEP`: the server does nothing at all and then goes on where it was. Needs a server of our own.
    Sleep {
        /// When it wakes; nobody can wake it sooner.
        length: Duration,
    },
    /// A script that only spins: the server does nothing else, and after five seconds answers `BUSY`. Needs a server or an admin URL.
    SlowScript {
        /// When the script ends; `SCRIPT KILL` ends it sooner, but not before the server answers `BUSY`.
        length: Duration,
    },
    /// SIGSTOP: the whole server stops in its tracks. Needs a server of our own.
    FreezeServer,
    /// SIGKILL; the server is started again when the fault heals. Needs a server of our own.
    Restart {
        /// Whether it comes back with what its append-only file holds, or empty.
        keep_data: bool,
    },
    /// The server becomes a replica of nobody, so that it refuses writes (`READONLY`). Needs a server of our own.
    ReadOnly,
    /// The server wants a replica to confirm each write and has none (`NOREPLICAS`). Needs a server of our own.
    NoReplicas,
    /// The server may use no memory and refuses what could need some (`OOM`). Needs a server of our own.
    OutOfMemory,
    /// `CLIENT KILL` for all clients, pub/sub too, once and then every 100 ms. Needs a server or an admin URL.
    KillClients,
    /// `SCRIPT FLUSH`, once and then every 100 ms. Needs a server or an admin URL.
    FlushScripts,
    /// The legs pass everything on later, in each direction, each piece by a length of its own.
    Latency {
        /// By so much at the least.
        least: Duration,
        /// By so much at the most.
        most: Duration,
    },
    /// The legs refuse and reset connections.
    Refuse,
    /// The legs swallow all bytes.
    Swallow,
    /// The legs hold all bytes back until the fault heals.
    Hold {
        /// Whether requests of clients that left meanwhile are still delivered; see [`Mode::Hold`].
        deliver_after_close: bool,
    },
    /// SIGSTOP: the workers stop in their tracks, holders as they are.
    FreezeClients,
    /// SIGKILL: each of the workers dies while it holds a lock, and stays dead.
    KillWorkers,
    /// The workers drop acquires of theirs at a random await.
    DropFutures,
}

/// Whom a fault may hit.
#[derive(Debug, Clone, Default)]
pub struct Targets<'a> {
    /// A server of our own, for the faults that stop it; also its own admin URL.
    pub server: Option<&'a RedisServer>,
    /// Where to send admin commands when there is no server of our own. Not through a leg: they must pass any fault.
    pub admin_url: Option<String>,
    /// The legs that proxy faults switch; the others keep working.
    pub legs: Vec<Leg>,
    /// The workers that are struck.
    pub workers: Vec<WorkerProcess>,
}

/// When a fault was in effect, on the clock of [`clock::now_ns`].
///
/// Outer bounds: read just before the fault was injected and just after the first sign that it was over, so at most a
/// round trip wider than the truth at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Before this nothing was wrong.
    pub from_ns: u64,
    /// From this on everything works again.
    pub to_ns: u64,
}

/// Why a fault could not be injected or healed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The targets lack what this fault acts on. Nothing was injected.
    #[error("{fault:?} needs {needs}; add it to the targets")]
    NoTarget {
        /// The fault that was asked for.
        fault: Fault,
        /// What it acts on.
        needs: &'static str,
    },
    /// The admin connection failed, so the fault may or may not be in effect; pauses, sleeps and scripts end by themselves.
    #[error("the admin connection to Redis failed")]
    Redis(#[from] redis::RedisError),
    /// The server process could not be stopped or continued.
    #[error("the redis-server could not be stopped or continued")]
    Server(#[from] ServerError),
    /// A leg could not be switched.
    #[error("a leg of the proxy could not be switched")]
    Proxy(#[from] ProxyError),
    /// A worker process could not be stopped or continued.
    #[error("a worker process could not be signalled")]
    Worker(#[source] io::Error),
    /// The thread or process that a fault needs could not be started. The fault has been ended, or ends by itself.
    #[error("the thread of a fault could not be started")]
    Watch(#[source] io::Error),
}

impl Observed {
    /// How long the fault was in effect.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.to_ns.saturating_sub(self.from_ns))
    }
}

impl<'a> Targets<'a> {
    /// A server of our own.
    pub fn server(server: &'a RedisServer) -> Self {
        Self {
            server: Some(server),
            ..Self::default()
        }
    }

    /// A server that was given to us: it gets admin commands, no signals.
    pub fn url(admin_url: impl Into<String>) -> Self {
        Self {
            admin_url: Some(admin_url.into()),
            ..Self::default()
        }
    }

    /// These legs.
    pub fn legs(legs: impl IntoIterator<Item = Leg>) -> Self {
        Self {
            legs: legs.into_iter().collect(),
            ..Self::default()
        }
    }

    /// These workers.
    pub fn workers(workers: impl IntoIterator<Item = WorkerProcess>) -> Self {
        Self {
            workers: workers.into_iter().collect(),
            ..Self::default()
        }
    }

    fn admin_url(&self) -> Option<String> {
        self.admin_url.clone().or_else(|| self.server.map(RedisServer::url))
    }
}

/// Injects a fault; returns when it is in effect.
///
/// # Errors
/// [`FaultError::NoTarget`] when the targets do not suit the fault, the others when injecting fails; what was already
/// injected is healed then.
pub fn inject<'a>(fault: &Fault, targets: &Targets<'a>) -> Result<FaultGuard<'a>, FaultError> {
    let from_ns = clock::now_ns();
    let no_target = |needs| FaultError::NoTarget { fault: *fault, needs };
    let url = || {
        let url = targets.admin_url();
        url.ok_or_else(|| no_target("a server or an admin URL"))
    };
    let server = || targets.server.ok_or_else(|| no_target("a server of our own"));
    let workers = || match &targets.workers[..] {
        [] => Err(no_target("worker processes")),
        workers => Ok(workers),
    };
    let switched = |mode| {
        let legs = (!targets.legs.is_empty()).then_some(&targets.legs);
        let legs = legs.ok_or_else(|| no_target("legs of a proxy"))?;
        Ok::<_, FaultError>(Effect::Legs(Switched::to(mode, legs)?))
    };
    let effect = match *fault {
        Fault::PauseWrite { limit } => Effect::Awaited(Awaited::pause_of_writes(url()?, limit)?),
        Fault::PauseAll { limit } => Effect::Awaited(Awaited::pause_of_all(url()?, limit)?),
        Fault::Sleep { length } => Effect::Awaited(Awaited::sleep(server()?.url(), length)?),
        Fault::SlowScript { length } => Effect::Awaited(Awaited::slow_script(url()?, length)?),
        Fault::FreezeServer => {
            let server = server()?;
            server.freeze()?;
            Effect::Frozen(server)
        }
        Fault::Restart { keep_data } => {
            let server = server()?;
            server.kill()?;
            Effect::Down { server, keep_data }
        }
        Fault::ReadOnly => Effect::Settings(Settings::read_only(server()?.url())?),
        Fault::NoReplicas => Effect::Settings(Settings::no_replicas(server()?.url())?),
        Fault::OutOfMemory => Effect::Settings(Settings::out_of_memory(server()?.url())?),
        Fault::KillClients => Effect::Repeated(Repeated::kill_clients(url()?)?),
        Fault::FlushScripts => Effect::Repeated(Repeated::flush_scripts(url()?)?),
        Fault::Refuse => switched(Mode::Refuse)?,
        Fault::Swallow => switched(Mode::Swallow)?,
        Fault::Hold { deliver_after_close } => switched(Mode::Hold { deliver_after_close })?,
        Fault::Latency { least, most } => switched(Mode::DelayBetween(least, most))?,
        Fault::FreezeClients => Effect::Stopped(Stopped::all(workers()?)?),
        Fault::KillWorkers => Effect::Killed(Killed::all(workers()?)?),
        Fault::DropFutures => Effect::Told(Told::all(
            workers()?,
            Order::DropAcquires(true),
            Order::DropAcquires(false),
        )),
    };
    Ok(FaultGuard {
        from_ns,
        effect: Some(effect),
    })
}

/// A fault in effect. Dropping it heals and waits until that is done.
#[must_use = "dropping the guard heals the fault"]
#[derive(Debug)]
pub struct FaultGuard<'a> {
    from_ns: u64,
    effect: Option<Effect<'a>>,
}

impl FaultGuard<'_> {
    /// When the injection began, on the clock of [`clock::now_ns`].
    pub fn from_ns(&self) -> u64 {
        self.from_ns
    }

    /// Ends the fault now and tells when it was in effect.
    ///
    /// A pause that had already ended by itself is told with its own end. Legs return to the mode they had before.
    ///
    /// # Errors
    /// The one that kept the fault from healing. Everything that could be healed has been.
    pub fn heal(mut self) -> Result<Observed, FaultError> {
        let healed = self.effect.take().map(Effect::heal);
        self.observed(healed)
    }

    /// Waits until the fault is over by itself, which only pauses, sleeps and slow scripts ever are; heals any other now.
    ///
    /// # Errors
    /// As [`heal`](Self::heal).
    pub fn outlast(mut self) -> Result<Observed, FaultError> {
        let over = self.effect.take().map(|effect| match effect {
            Effect::Awaited(awaited) => awaited.outlast(),
            other => other.heal(),
        });
        self.observed(over)
    }

    fn observed(&self, over: Option<Result<u64, FaultError>>) -> Result<Observed, FaultError> {
        // `None` cannot be: the effect is only taken by the two above, which consume the guard.
        let to_ns = over.unwrap_or_else(|| Ok(clock::now_ns()))?;
        Ok(Observed {
            from_ns: self.from_ns,
            to_ns,
        })
    }
}

impl Drop for FaultGuard<'_> {
    fn drop(&mut self) {
        if let Some(effect) = self.effect.take()
            && let Err(error) = effect.heal()
        {
            // A drop has no one to return this to, and a fault that stays must not go unnoticed.
            eprintln!("a fault was not healed: {error}: {:?}", error.source());
        }
    }
}

/// What has to be undone.
#[derive(Debug)]
enum Effect<'a> {
    Awaited(Awaited),
    Settings(Settings),
    Repeated(Repeated),
    Frozen(&'a RedisServer),
    Down { server: &'a RedisServer, keep_data: bool },
    Legs(Switched),
    Stopped(Stopped),
    Killed(Killed),
    Told(Told),
}

impl Effect<'_> {
    /// Tells when everything worked again.
    fn heal(self) -> Result<u64, FaultError> {
        match self {
            Effect::Awaited(awaited) => awaited.heal(),
            Effect::Settings(settings) => settings.heal(),
            Effect::Repeated(repeated) => Ok(repeated.heal()),
            Effect::Frozen(server) => {
                server.thaw()?;
                servers::ping(&server.url(), LIMIT)?;
                Ok(clock::now_ns())
            }
            Effect::Down { server, keep_data } => {
                if keep_data {
                    server.restart()?;
                } else {
                    server.restart_empty()?;
                }
                Ok(clock::now_ns())
            }
            Effect::Legs(legs) => legs.heal(),
            Effect::Stopped(stopped) => stopped.heal(),
            // Nobody can bring them back to life.
            Effect::Killed(killed) => Ok(killed.dead_ns()),
            Effect::Told(told) => Ok(told.heal()),
        }
    }
}

/// Longest wait for one answer of a server that should answer at once; a busy machine must not reach it.
const LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_without_its_target_is_refused() {
        for fault in [
            Fault::FreezeServer,
            Fault::FreezeClients,
            Fault::KillWorkers,
            Fault::DropFutures,
            Fault::Refuse,
            Fault::KillClients,
            Fault::PauseWrite {
                limit: Duration::from_secs(1),
            },
        ] {
            let refused = inject(&fault, &Targets::default());
            assert!(matches!(refused, Err(FaultError::NoTarget { .. })), "{fault:?}");
        }
        // What could leave a server changed is only for servers of our own.
        for fault in [
            Fault::Restart { keep_data: true },
            Fault::Sleep { length: LIMIT },
            Fault::ReadOnly,
            Fault::NoReplicas,
            Fault::OutOfMemory,
        ] {
            let refused = inject(&fault, &Targets::url("redis://127.0.0.1:1/"));
            assert!(matches!(refused, Err(FaultError::NoTarget { .. })), "{fault:?}");
        }
    }
}
