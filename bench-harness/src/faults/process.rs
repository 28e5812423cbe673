//! A worker process, as a fault and its team see it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::check;
use crate::clock;
use crate::evidence;
use crate::job::Order;
use crate::servers::wait_until_stopped;

/// A worker process that we started. Clones share it.
///
/// It is signalled only while nobody has seen it end: until then its number is that of no other process.
#[derive(Clone, Debug)]
pub struct WorkerProcess(Arc<Mutex<Process>>);

#[derive(Debug)]
struct Process {
    child: Child,
    // Dropping it ends the worker.
    orders: Option<ChildStdin>,
    evidence: PathBuf,
    struck_dead: Option<Death>,
}

/// When a worker was killed on purpose, in nanoseconds of the boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Until then it was alive.
    pub from_ns: u64,
    /// From this on it was dead.
    pub to_ns: u64,
}

impl WorkerProcess {
    /// This child of ours, which takes orders on its stdin and writes its evidence to this file.
    pub fn new(mut child: Child, evidence: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(Process {
            orders: child.stdin.take(),
            child,
            evidence,
            struck_dead: None,
        })))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process().child.id()
    }

    /// Gives it an order. One that cannot hear it is heard to have ended.
    pub fn tell(&self, order: Order) {
        if let (Ok(line), Some(orders)) = (serde_json::to_string(&order), &mut self.process().orders) {
            let _ = writeln!(orders, "{line}").and_then(|()| orders.flush());
        }
    }

    /// Gives no more orders, which is for the worker to end.
    pub fn dismiss(&self) {
        self.process().orders = None;
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        // What cannot be waited for is gone.
        !matches!(self.process().child.try_wait(), Ok(None))
    }

    /// When a fault killed it, if one did.
    pub fn struck_dead(&self) -> Option<Death> {
        self.process().struck_dead
    }

    /// Kills it (SIGKILL), stopped or not, and returns when it is gone; harmless when it has ended.
    ///
    /// # Errors
    /// What the system says.
    pub fn kill(&self) -> io::Result<()> {
        let child = &mut self.process().child;
        child.kill()?;
        child.wait().map(drop)
    }

    /// Kills it while it holds a lock, as soon as it does: it is stopped, its evidence is looked at, and it goes on or dies as it
    /// stands.
    pub(super) fn kill_at_work(&self) -> io::Result<()> {
        let start_ns = clock::now_ns();
        loop {
            let from_ns = clock::now_ns();
            self.stop()?;
            let holds = evidence::read(&self.process().evidence).map(|records| !check::unfinished(&records).is_empty());
            if !matches!(holds, Ok(true)) {
                self.go_on()?;
            }
            if holds? {
                let mut process = self.process();
                process.child.kill()?;
                process.child.wait()?;
                // Before anybody else can ask: one that was killed on purpose has not died.
                process.struck_dead = Some(Death {
                    from_ns,
                    to_ns: clock::now_ns(),
                });
                return Ok(());
            }
            if clock::since(start_ns) > PATIENCE {
                return Err(io::Error::other(format!(
                    "the worker held no lock in {PATIENCE:?}, so there was none to kill it under: let it hold locks for longer"
                )));
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Stops it in its tracks (SIGSTOP) and returns when it has stopped.
    pub(super) fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP).map(wait_until_stopped)
    }

    /// Lets it go on (SIGCONT); harmless when it is not stopped.
    pub(super) fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    fn signal(&self, signal: Signal) -> io::Result<Pid> {
        let child = &mut self.process().child;
        if child.try_wait()?.is_some() {
            return Err(io::Error::other("the worker process has ended"));
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        kill_process(pid, signal)?;
        Ok(pid)
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a worker may take to hold a lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a worker that held none goes on before it is looked at again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::evidence::{EvidenceFile, Kind, Record};

    fn sleeper(evidence: PathBuf) -> WorkerProcess {
        WorkerProcess::new(Command::new("sleep").arg("60").spawn().unwrap(), evidence)
    }

    #[test]
    fn a_worker_dies_while_it_holds_a_lock_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evidence-0.bin");
        let file = EvidenceFile::create(&path).unwrap();
        let record = |key, kind| Record {
            key,
            owner: 1,
            fence: 0,
            kind,
            clock: clock::now_ns(),
            second_clock: 0,
        };
        file.write(&record(1, Kind::Acquired));
        file.write(&record(1, Kind::WorkEnd));
        let worker = sleeper(path);
        let killing = std::thread::spawn({
            let worker = worker.clone();
            move || worker.kill_at_work().unwrap()
        });
        std::thread::sleep(BETWEEN_LOOKS * 4);
        assert!(!worker.has_ended() && worker.struck_dead().is_none());
        let held_ns = clock::now_ns();
        file.write(&record(2, Kind::Acquired));
        killing.join().unwrap();
        let death = worker.struck_dead().unwrap();
        assert!(
            worker.has_ended() && death.to_ns > held_ns && death.from_ns < death.to_ns,
            "{death:?}"
        );
    }

    #[test]
    fn a_worker_that_was_only_ended_was_not_struck_dead() {
        let worker = sleeper(PathBuf::new());
        worker.kill().unwrap();
        assert_eq!((worker.has_ended(), worker.struck_dead()), (true, None));
    }
}
