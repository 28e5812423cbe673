//! The guardian of one server: a shell that waits for the end of its standard input, a pipe whose other end only we
//! hold.
//!
//! However we end (return, panic, Ctrl-C, SIGKILL), the kernel closes that pipe, and the guardian kills exactly its own
//! child. A parent-death signal would not do: it fires when the spawning *thread* ends.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::ServerError;
use crate::clock;

/// A running server and the guardian that answers for it.
#[derive(Debug)]
pub(super) struct Process {
    server: Pid,
    guardian: Child,
}

/// What becomes of a server's directory when its process ends.
pub(super) enum Files {
    Keep,
    Remove,
}

impl Process {
    pub(super) fn spawn(binary: &Path, dir: &Path) -> io::Result<Self> {
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(dir)
            .arg(binary)
            .arg(dir.join("redis.conf"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C goes to the group of the terminal: the guardian must outlive us.
            .process_group(0)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = guardian.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim().parse().ok().and_then(Pid::from_raw) {
            Some(server) => Ok(Self { server, guardian }),
            None => {
                drop(guardian.stdin.take());
                guardian.wait()?;
                Err(io::Error::other("the guardian told no process id"))
            }
        }
    }

    /// The process id of the server.
    pub(super) fn id(&self) -> u32 {
        self.server.as_raw_nonzero().get().unsigned_abs()
    }

    pub(super) fn signal(&self, signal: Signal, what: &'static str) -> Result<(), ServerError> {
        kill_process(self.server, signal).map_err(|errno| ServerError::System {
            what,
            source: errno.into(),
        })
    }

    pub(super) fn wait_until_stopped(&self) {
        wait_until_stopped(self.server);
    }

    /// Tells the guardian to kill the server and waits until both are gone.
    pub(super) fn end(mut self, files: Files) {
        self.tell(files);
    }

    fn tell(&mut self, files: Files) {
        if let Some(mut stdin) = self.guardian.stdin.take() {
            if matches!(files, Files::Keep) {
                // If it cannot be written the guardian is gone, which the next line sees as well.
                let _ = stdin.write_all(b"keep\n");
            }
            drop(stdin);
            let _ = self.guardian.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.tell(Files::Remove);
    }
}

/// A signal is only queued when `kill` returns; where there is a /proc we see it take effect.
pub(crate) fn wait_until_stopped(process: Pid) {
    let start_ns = clock::now_ns();
    let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
    while let Ok(stat) = fs::read_to_string(&stat) {
        if is_stopped(&stat) || clock::since(start_ns) > STOP_LIMIT {
            return;
        }
        thread::sleep(Duration::from_micros(200));
    }
}

fn is_stopped(stat: &str) -> bool {
    // `pid (name) state …`, and a name may hold spaces and brackets.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

/// Started with the server's directory and its command line. A word `keep` before the end of the input saves the
/// directory.
const GUARDIAN: &str = r#"
trap '' INT TERM HUP QUIT
dir=$1
shift
(exec "$@" >>"$dir/server.log" 2>&1 </dev/null) &
server=$!
echo "$server"
exec >/dev/null
word=
read -r word
kill -KILL "$server"
wait "$server"
[ "$word" = keep ] || rm -rf -- "$dir"
"#;

const STOP_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_told_from_a_running_one() {
        assert!(is_stopped("71 (redis-server) T 1 71"));
        assert!(!is_stopped("71 (T) T) S 1 71"));
    }
}
