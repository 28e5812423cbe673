//! Faults of the server that end by themselves: a request that is answered when they are over.

use std::thread;
use std::time::Duration;

use super::{FaultError, LIMIT};
use crate::clock;
use crate::servers;

/// A fault in effect, and a request that waits for its end.
#[derive(Debug)]
pub(super) struct Awaited {
    admin_url: String,
    /// What ends the fault before its time, if anything does.
    end: Option<redis::Cmd>,
    answer: thread::JoinHandle<Result<u64, redis::RedisError>>,
}

impl Awaited {
    /// `CLIENT PAUSE … WRITE`.
    pub(super) fn pause_of_writes(admin_url: String, limit: Duration) -> Result<Self, FaultError> {
        let mut end = redis::cmd("CLIENT");
        end.arg("UNPAUSE");
        // For Redis a write, so it waits; it changes nothing, as the key does not exist.
        let mut probe = redis::cmd("DEL");
        probe.arg(PROBE_KEY);
        Self::pause(admin_url, limit, "WRITE", &probe, Some(end))
    }

    /// `CLIENT PAUSE … ALL`.
    pub(super) fn pause_of_all(admin_url: String, limit: Duration) -> Result<Self, FaultError> {
        Self::pause(admin_url, limit, "ALL", &redis::cmd("PING"), None)
    }

    /// `DEBUG SLEEP`.
    pub(super) fn sleep(admin_url: String, length: Duration) -> Result<Self, FaultError> {
        let mut sleep = redis::cmd("DEBUG");
        sleep.arg("SLEEP").arg(length.as_secs_f64());
        let sleeper = servers::connect(&admin_url, LIMIT)?;
        Self::await_answer(admin_url, sleeper, &sleep, length, None)
    }

    /// A script that spins.
    pub(super) fn slow_script(admin_url: String, length: Duration) -> Result<Self, FaultError> {
        let mut script = redis::cmd("EVAL");
        script.arg(SPIN).arg(0).arg(length.as_micros().to_string());
        let mut end = redis::cmd("SCRIPT");
        end.arg("KILL");
        let caller = servers::connect(&admin_url, LIMIT)?;
        Self::await_answer(admin_url, caller, &script, length, Some(end))
    }

    fn pause(
        admin_url: String,
        limit: Duration,
        what: &str,
        probe: &redis::Cmd,
        end: Option<redis::Cmd>,
    ) -> Result<Self, FaultError> {
        let limit_ms = limit.as_nanos().div_ceil(1_000_000);
        let mut admin = servers::connect(&admin_url, LIMIT)?;
        // Connected before the pause, and silent until it is in effect.
        let probing = servers::connect(&admin_url, LIMIT)?;
        redis::cmd("CLIENT")
            .arg("PAUSE")
            .arg(limit_ms.to_string())
            .arg(what)
            .exec(&mut admin)?;
        Self::await_answer(admin_url, probing, probe, limit, end)
    }

    /// Sends the request here and not by the thread, so that it waits already when this returns.
    fn await_answer(
        admin_url: String,
        mut connection: redis::Connection,
        request: &redis::Cmd,
        limit: Duration,
        end: Option<redis::Cmd>,
    ) -> Result<Self, FaultError> {
        connection.set_read_timeout(Some(limit + LIMIT))?;
        connection.send_packed_command(&request.get_packed_command())?;
        let answer = thread::Builder::new().name("lockbench-fault".into()).spawn(move || {
            match connection.recv_response().and_then(redis::Value::extract_error) {
                // A script that was killed ends the fault as one that has ended.
                Err(error) if !error.to_string().contains("SCRIPT KILL") => Err(error),
                _ => Ok(clock::now_ns()),
            }
        });
        match answer {
            Ok(answer) => Ok(Self { admin_url, end, answer }),
            Err(error) => {
                if let Some(end) = end {
                    end.exec(&mut servers::connect(&admin_url, LIMIT)?)?;
                }
                Err(FaultError::Watch(error))
            }
        }
    }

    /// Ends the fault if anything can, and tells when it was over.
    pub(super) fn heal(self) -> Result<u64, FaultError> {
        if let Some(end) = &self.end {
            // On a connection of its own: the one that began the fault may be long dead.
            let ended = end.exec(&mut servers::connect(&self.admin_url, LIMIT)?);
            // `SCRIPT KILL` comes too late where the script has just ended: then it is over as well.
            match ended {
                Err(error) if error.code() != Some("NOTBUSY") => return Err(error.into()),
                _ => {}
            }
        }
        self.outlast()
    }

    /// Waits for the end and tells when it was.
    pub(super) fn outlast(self) -> Result<u64, FaultError> {
        match self.answer.join() {
            Ok(to_ns) => Ok(to_ns?),
            // The thread above cannot panic; if it does, so do we.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

const SPIN: &str = "
    local function now() local time = redis.call('TIME') return time[1] * 1000000 + time[2] end
    local till = now() + ARGV[1]
    while now() < till do end";
const PROBE_KEY: &str = "lockbench:pause-probe";
