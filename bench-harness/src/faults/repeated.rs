//! Faults of the server that are over at once: repeated for as long as they are to last.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{FaultError, LIMIT};
use crate::clock;
use crate::servers;

/// A thread that sends admin commands over and over.
#[derive(Debug)]
pub(super) struct Repeated {
    // Dropping it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Repeated {
    /// `CLIENT KILL` for all but replicas.
    pub(super) fn kill_clients(admin_url: String) -> Result<Self, FaultError> {
        let kill = |of: &str| {
            let mut command = redis::cmd("CLIENT");
            command.arg("KILL").arg("TYPE").arg(of).arg("SKIPME").arg("yes");
            command
        };
        Self::start(admin_url, vec![kill("normal"), kill("pubsub")])
    }

    /// `SCRIPT FLUSH`.
    pub(super) fn flush_scripts(admin_url: String) -> Result<Self, FaultError> {
        let mut flush = redis::cmd("SCRIPT");
        flush.arg("FLUSH");
        Self::start(admin_url, vec![flush])
    }

    /// Returns when the commands have been executed once.
    fn start(admin_url: String, commands: Vec<redis::Cmd>) -> Result<Self, FaultError> {
        let mut admin = servers::connect(&admin_url, LIMIT)?;
        let mut send = move || commands.iter().try_for_each(|command| command.exec(&mut admin));
        send()?;
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("lockbench-fault".into()).spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                // Another fault may keep the server from answering; the next time may succeed.
                let _ = send();
            }
        });
        match thread {
            Ok(thread) => Ok(Self { stop, thread }),
            Err(error) => Err(FaultError::Watch(error)),
        }
    }

    /// Tells when the last command had been answered.
    pub(super) fn heal(self) -> u64 {
        drop(self.stop);
        if let Err(panic) = self.thread.join() {
            // The thread above cannot panic; if it does, so do we.
            std::panic::resume_unwind(panic);
        }
        clock::now_ns()
    }
}

const PERIOD: Duration = Duration::from_millis(100);
