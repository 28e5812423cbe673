//! Faults of worker processes: they are stopped and go on.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use super::FaultError;
use crate::clock;
use crate::servers::wait_until_stopped;

/// A worker process that we started. Clones share it.
///
/// It is signalled only while nobody has seen it end: until then its number is that of no other process.
#[derive(Clone, Debug)]
pub struct WorkerProcess(Arc<Mutex<Child>>);

impl WorkerProcess {
    /// This child of ours.
    pub fn new(child: Child) -> Self {
        Self(Arc::new(Mutex::new(child)))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        // What cannot be waited for is gone.
        !matches!(self.child().try_wait(), Ok(None))
    }

    /// Kills it (SIGKILL), stopped or not, and returns when it is gone; harmless when it has ended.
    ///
    /// # Errors
    /// What the system says.
    pub fn kill(&self) -> io::Result<()> {
        let mut child = self.child();
        child.kill()?;
        child.wait().map(drop)
    }

    /// Stops it in its tracks (SIGSTOP) and returns when it has stopped.
    fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP).map(wait_until_stopped)
    }

    /// Lets it go on (SIGCONT); harmless when it is not stopped.
    fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    fn signal(&self, signal: Signal) -> io::Result<Pid> {
        let mut child = self.child();
        if child.try_wait()?.is_some() {
            return Err(io::Error::other("the worker process has ended"));
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        kill_process(pid, signal)?;
        Ok(pid)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Workers that were stopped.
#[derive(Debug)]
pub(super) struct Stopped {
    workers: Vec<WorkerProcess>,
    /// Lets them go on if we are killed: a stopped process does not see that its coordinator is gone.
    waker: Child,
}

impl Stopped {
    /// Stops all of them; if one cannot be stopped, all go on.
    pub(super) fn all(workers: &[WorkerProcess]) -> Result<Self, FaultError> {
        let waker = Command::new("sh")
            .args(["-c", WAKER, "waker"])
            .args(workers.iter().map(|worker| worker.id().to_string()))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the group of the terminal: the waker must outlive us.
            .process_group(0)
            .spawn()
            .map_err(FaultError::Watch)?;
        let stopped = Self {
            workers: workers.to_vec(),
            waker,
        };
        // One thread each: all stop at about one moment.
        match stopped.each(WorkerProcess::stop) {
            Ok(()) => Ok(stopped),
            Err(error) => {
                // The error that matters is the first.
                let _ = stopped.heal();
                Err(error)
            }
        }
    }

    /// Tells when all go on.
    pub(super) fn heal(mut self) -> Result<u64, FaultError> {
        let going_on = self.each(WorkerProcess::go_on);
        let over_ns = clock::now_ns();
        drop(self.waker.stdin.take());
        // It does what has been done already.
        let _ = self.waker.wait();
        going_on.map(|()| over_ns)
    }

    /// Every one is tried, and the first error told.
    fn each(&self, act: impl Fn(&WorkerProcess) -> io::Result<()> + Sync) -> Result<(), FaultError> {
        std::thread::scope(|scope| {
            let acting: Vec<_> = self.workers.iter().map(|worker| scope.spawn(|| act(worker))).collect();
            let mut all = Ok(());
            for one in acting {
                match one.join() {
                    Ok(done) => all = all.and(done.map_err(FaultError::Worker)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        })
    }
}

/// Started with the numbers of the workers; waits for the end of its input, which is ours.
const WAKER: &str = r#"
trap '' INT TERM HUP QUIT
read -r _
kill -CONT "$@"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> WorkerProcess {
        WorkerProcess::new(Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn state(worker: &WorkerProcess) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", worker.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    #[test]
    fn stopped_workers_go_on_when_healed() {
        let workers = [sleeper(), sleeper()];
        let stopped = Stopped::all(&workers).unwrap();
        assert!(workers.iter().all(|worker| state(worker) == 'T'));
        let over_ns = stopped.heal().unwrap();
        assert!(over_ns <= clock::now_ns());
        assert!(workers.iter().all(|worker| state(worker) != 'T'));
        for worker in &workers {
            worker.kill().unwrap();
        }
    }

    #[test]
    fn one_that_has_ended_is_an_error_and_no_other_stays_stopped() {
        let (one, other) = (sleeper(), sleeper());
        other.kill().unwrap();
        assert!(other.has_ended() && !one.has_ended());
        let refused = Stopped::all(&[one.clone(), other]);
        assert!(matches!(refused, Err(FaultError::Worker(_))), "{refused:?}");
        assert_ne!(state(&one), 'T');
        one.kill().unwrap();
    }
}
