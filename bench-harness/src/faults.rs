//! Faults and the guards that heal them: injecting returns a guard, dropping it heals.

use std::error::Error;
use std::io;
use std::thread;
use std::time::Duration;

use crate::clock;
use crate::proxy::{Leg, Mode, ProxyError};
use crate::servers::{self, RedisServer, ServerError};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `CLIENT PAUSE … WRITE`: the whole server keeps writes waiting, reads pass. Needs a server or an admin URL.
    PauseWrite {
        /// When Redis ends the pause by itself, up to 100 ms late; in whole milliseconds, rounded up.
        limit: Duration,
    },
    /// SIGSTOP: the whole server stops in its tracks. Needs a server of our own.
    FreezeServer,
    /// The legs refuse and reset connections.
    Refuse,
    /// The legs swallow all bytes.
    Swallow,
    /// The legs hold all bytes back until the fault heals.
    Hold {
        /// Whether requests of clients that left meanwhile are still delivered; see [`Mode::Hold`].
        deliver_after_close: bool,
    },
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
    /// The admin connection failed, so the fault may or may not be in effect; `CLIENT PAUSE` ends by itself.
    #[error("the admin connection to Redis failed")]
    Redis(#[from] redis::RedisError),
    /// The server process could not be stopped or continued.
    #[error("the redis-server could not be stopped or continued")]
    Server(#[from] ServerError),
    /// A leg could not be switched.
    #[error("a leg of the proxy could not be switched")]
    Proxy(#[from] ProxyError),
    /// The thread that watches for the end of a pause could not be started. The pause has been ended.
    #[error("the thread that watches a pause could not be started")]
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
    let effect = match *fault {
        Fault::PauseWrite { limit } => {
            let url = targets
                .admin_url()
                .ok_or_else(|| no_target("a server or an admin URL"))?;
            Effect::Pause(Pause::begin(url, limit)?)
        }
        Fault::FreezeServer => {
            let server = targets.server.ok_or_else(|| no_target("a server of our own"))?;
            server.freeze()?;
            Effect::Frozen(server)
        }
        Fault::Refuse => switch(targets, Mode::Refuse, no_target)?,
        Fault::Swallow => switch(targets, Mode::Swallow, no_target)?,
        Fault::Hold { deliver_after_close } => switch(targets, Mode::Hold { deliver_after_close }, no_target)?,
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

    /// Waits until the fault is over by itself, which only a [`Fault::PauseWrite`] ever is; heals any other now.
    ///
    /// # Errors
    /// As [`heal`](Self::heal).
    pub fn outlast(mut self) -> Result<Observed, FaultError> {
        let over = self.effect.take().map(|effect| match effect {
            Effect::Pause(pause) => pause.outlast(),
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
    Pause(Pause),
    Frozen(&'a RedisServer),
    Legs(Vec<(Leg, Mode)>),
}

impl Effect<'_> {
    /// Tells when everything worked again.
    fn heal(self) -> Result<u64, FaultError> {
        match self {
            Effect::Pause(pause) => pause.heal(),
            Effect::Frozen(server) => {
                server.thaw()?;
                servers::ping(&server.url(), LIMIT)?;
                Ok(clock::now_ns())
            }
            Effect::Legs(legs) => {
                at_once(&legs)?;
                Ok(clock::now_ns())
            }
        }
    }
}

/// Switches all legs at one moment; every one is tried, and the first error told.
fn at_once(legs: &[(Leg, Mode)]) -> Result<(), ProxyError> {
    thread::scope(|scope| {
        let switching: Vec<_> = legs
            .iter()
            .map(|(leg, mode)| scope.spawn(|| leg.switch(*mode)))
            .collect();
        let mut all = Ok(());
        for one in switching {
            match one.join() {
                Ok(switched) => all = all.and(switched),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

fn switch<'a>(
    targets: &Targets<'_>,
    mode: Mode,
    no_target: impl FnOnce(&'static str) -> FaultError,
) -> Result<Effect<'a>, FaultError> {
    if targets.legs.is_empty() {
        return Err(no_target("legs of a proxy"));
    }
    let with = |mode: &dyn Fn(&Leg) -> Mode| targets.legs.iter().map(|leg| (leg.clone(), mode(leg))).collect();
    let (before, struck): (Vec<_>, Vec<_>) = (with(&Leg::mode), with(&|_| mode));
    if let Err(error) = at_once(&struck) {
        // The error that matters is the first.
        let _ = Effect::Legs(before).heal();
        return Err(error.into());
    }
    Ok(Effect::Legs(before))
}

/// A `CLIENT PAUSE … WRITE` in effect, and a write that waits for its end.
#[derive(Debug)]
struct Pause {
    admin_url: String,
    probe: thread::JoinHandle<Result<u64, redis::RedisError>>,
}

impl Pause {
    fn begin(admin_url: String, limit: Duration) -> Result<Self, FaultError> {
        let limit_ms = limit.as_nanos().div_ceil(1_000_000);
        let mut admin = servers::connect(&admin_url, LIMIT)?;
        // Connected before the pause, and silent until it is in effect.
        let mut probing = servers::connect(&admin_url, LIMIT)?;
        probing.set_read_timeout(Some(limit + LIMIT))?;
        redis::cmd("CLIENT")
            .arg("PAUSE")
            .arg(limit_ms.to_string())
            .arg("WRITE")
            .exec(&mut admin)?;
        // For Redis a write, so it waits; it changes nothing, as the key does not exist. Sent here and not by the
        // thread, so that it waits already when this returns.
        probing.send_packed_command(&redis::cmd("DEL").arg(PROBE_KEY).get_packed_command())?;
        let probe = thread::Builder::new().name("lockbench-pause".into()).spawn(move || {
            probing.recv_response()?;
            Ok(clock::now_ns())
        });
        match probe {
            Ok(probe) => Ok(Self { admin_url, probe }),
            Err(error) => {
                unpause(&admin_url)?;
                Err(FaultError::Watch(error))
            }
        }
    }

    fn heal(self) -> Result<u64, FaultError> {
        unpause(&self.admin_url)?;
        self.outlast()
    }

    fn outlast(self) -> Result<u64, FaultError> {
        match self.probe.join() {
            Ok(to_ns) => Ok(to_ns?),
            // The thread above cannot panic; if it does, so do we.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// On a connection of its own: the one that began the pause may be long dead.
fn unpause(admin_url: &str) -> Result<(), FaultError> {
    let mut admin = servers::connect(admin_url, LIMIT)?;
    Ok(redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut admin)?)
}

/// Longest wait for one answer of a server that should answer at once; a busy machine must not reach it.
const LIMIT: Duration = Duration::from_secs(10);
const PROBE_KEY: &str = "lockbench:pause-probe";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_without_its_target_is_refused() {
        for fault in [
            Fault::FreezeServer,
            Fault::Refuse,
            Fault::PauseWrite {
                limit: Duration::from_secs(1),
            },
        ] {
            let refused = inject(&fault, &Targets::default());
            assert!(matches!(refused, Err(FaultError::NoTarget { .. })), "{fault:?}");
        }
    }
}
