//! Faults of worker processes: they are stopped and go on, die at work, or drop what they wait for.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::{FaultError, WorkerProcess};
use crate::clock;
use crate::job::Order;

/// Workers that were stopped.
#[derive(Debug)]
pub(super) struct Stopped {
    workers: Vec<WorkerProcess>,
    waker: Waker,
}

impl Stopped {
    /// Stops all of them; if one cannot be stopped, all go on.
    pub(super) fn all(workers: &[WorkerProcess]) -> Result<Self, FaultError> {
        let stopped = Self {
            workers: workers.to_vec(),
            waker: Waker::of(workers)?,
        };
        // One thread each: all stop at about one moment.
        match each(&stopped.workers, WorkerProcess::stop) {
            Ok(()) => Ok(stopped),
            Err(error) => {
                // The error that matters is the first.
                let _ = stopped.heal();
                Err(error)
            }
        }
    }

    /// Tells when all go on.
    pub(super) fn heal(self) -> Result<u64, FaultError> {
        let going_on = each(&self.workers, WorkerProcess::go_on);
        let over_ns = clock::now_ns();
        drop(self.waker);
        going_on.map(|()| over_ns)
    }
}

/// Workers that were killed.
#[derive(Debug)]
pub(super) struct Killed {
    dead_ns: u64,
}

impl Killed {
    /// Kills each while it holds a lock.
    pub(super) fn all(workers: &[WorkerProcess]) -> Result<Self, FaultError> {
        let _waker = Waker::of(workers)?;
        each(workers, WorkerProcess::kill_at_work)?;
        Ok(Self {
            dead_ns: clock::now_ns(),
        })
    }

    /// When all were dead.
    pub(super) fn dead_ns(&self) -> u64 {
        self.dead_ns
    }
}

/// Workers that were told to behave in some way.
#[derive(Debug)]
pub(super) struct Told {
    workers: Vec<WorkerProcess>,
    end: Order,
}

impl Told {
    /// Gives them this order, and in the end that one.
    pub(super) fn all(workers: &[WorkerProcess], order: Order, end: Order) -> Self {
        workers.iter().for_each(|worker| worker.tell(order));
        Self {
            workers: workers.to_vec(),
            end,
        }
    }

    /// Tells when the last order was given.
    pub(super) fn heal(self) -> u64 {
        self.workers.iter().for_each(|worker| worker.tell(self.end));
        clock::now_ns()
    }
}

/// Lets stopped workers go on if we are killed: a stopped process does not see that its coordinator is gone.
#[derive(Debug)]
struct Waker(Child);

impl Waker {
    fn of(workers: &[WorkerProcess]) -> Result<Self, FaultError> {
        let mut waker = Command::new("sh");
        waker
            .args(["-c", WAKER, "waker"])
            .args(workers.iter().map(|worker| worker.id().to_string()))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the group of the terminal: the waker must outlive us.
            .process_group(0);
        waker.spawn().map(Self).map_err(FaultError::Watch)
    }
}

impl Drop for Waker {
    /// Nobody is stopped any more, so it is not needed; and it must not signal who has another's number by now.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does something to each on a thread of its own. Every one is tried, and the first error told.
fn each(workers: &[WorkerProcess], act: impl Fn(&WorkerProcess) -> io::Result<()> + Sync) -> Result<(), FaultError> {
    std::thread::scope(|scope| {
        let acting: Vec<_> = workers.iter().map(|worker| scope.spawn(|| act(worker))).collect();
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

/// Started with the numbers of the workers; waits for the end of its input, which is ours.
const WAKER: &str = r#"
trap '' INT TERM HUP QUIT
read -r _
kill -CONT "$@"
"#;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn sleeper() -> WorkerProcess {
        WorkerProcess::new(Command::new("sleep").arg("60").spawn().unwrap(), PathBuf::new())
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
