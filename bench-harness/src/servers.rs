//! redis-server processes that we own: each in a directory of its own, on a Unix socket, ended whenever we end.

mod append_only;
mod binary;
mod guardian;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::clock;
pub(crate) use guardian::wait_until_stopped;
use guardian::{Files, Process};

/// What a server is started with.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Keep every write in an append-only file, so that it survives [`RedisServer::restart`]. Default: off.
    pub append_only: bool,
    /// Further lines for `redis.conf`, as `name value`. Default: none.
    ///
    /// A name the installed server does not know keeps it from starting.
    pub config: Vec<String>,
}

/// A redis-server (or valkey-server) of our own, reached over a Unix socket.
///
/// Dropping it kills the server and removes its directory.
#[derive(Debug)]
pub struct RedisServer {
    binary: PathBuf,
    version: Version,
    // Before `dir`: the server has to be gone when its directory is removed.
    process: Mutex<Option<Process>>,
    dir: TempDir,
}

/// Major, minor and patch number of a server.
pub type Version = (u32, u32, u32);

/// Why a server could not be started or handled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Neither `$REDIS_SERVER` nor PATH leads to a server. Nothing was started.
    #[error("no redis-server or valkey-server on PATH; run scripts/redis-up, or set REDIS_SERVER to the path of one")]
    NotFound,
    /// The binary did not answer `--version` as Redis and Valkey do. Nothing was started.
    #[error("`{0} --version` tells no version; is this a redis-server? set REDIS_SERVER to the path of one")]
    NoVersion(PathBuf),
    /// The server lacks commands we need. Nothing was started.
    #[error(
        "{binary} is version {}.{}.{}, but 6.2 or newer is needed; set REDIS_SERVER to what scripts/redis-up prints",
        version.0, version.1, version.2
    )]
    TooOld {
        /// The binary that was found.
        binary: PathBuf,
        /// What it says it is.
        version: Version,
    },
    /// The system refused a file or a process.
    #[error("cannot {what} for a redis-server")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The server was started but did not answer PING. It has been killed.
    #[error("the redis-server does not answer; the end of its log:\n{log}")]
    NotReady {
        /// The last lines the server wrote.
        log: String,
    },
    /// The server was killed before and not started again.
    #[error("the redis-server is not running; call restart() first")]
    NotRunning,
}

impl RedisServer {
    /// Starts a server and waits until it answers PING; blocks for some milliseconds.
    ///
    /// The binary is `$REDIS_SERVER`, else the first redis-server, else valkey-server, on PATH.
    ///
    /// # Errors
    /// [`ServerError::NotFound`], [`ServerError::NoVersion`] and [`ServerError::TooOld`] when there is no usable
    /// binary, [`ServerError::System`] and [`ServerError::NotReady`] when it does not come up.
    pub fn start(options: &ServerOptions) -> Result<Self, ServerError> {
        let (binary, version) = binary::find()?;
        let dir = create_dir().map_err(system("create a directory"))?;
        fs::write(dir.path().join("redis.conf"), config(dir.path(), options, version))
            .map_err(system("write redis.conf"))?;
        let server = Self {
            binary,
            version,
            process: Mutex::new(None),
            dir,
        };
        server.launch()?;
        Ok(server)
    }

    /// The URL to reach the server directly, `unix:///…`, as the redis crate reads it.
    pub fn url(&self) -> String {
        let path = self.socket().display().to_string();
        format!(
            "unix://{}",
            path.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
        )
    }

    /// The path of the Unix socket; the same after a restart.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The process id of the server itself, or `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    /// The version the binary says it has.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the server has at least this major and minor version.
    pub fn is_at_least(&self, (major, minor): (u32, u32)) -> bool {
        self.version >= (major, minor, 0)
    }

    /// Stops the server in its tracks (SIGSTOP): connections stay open, new ones succeed, nothing answers.
    ///
    /// Returns when the server has stopped.
    ///
    /// # Errors
    /// [`ServerError::NotRunning`] and [`ServerError::System`].
    pub fn freeze(&self) -> Result<(), ServerError> {
        let process = self.process();
        let process = process.as_ref().ok_or(ServerError::NotRunning)?;
        process.signal(Signal::STOP, "send SIGSTOP")?;
        process.wait_until_stopped();
        Ok(())
    }

    /// Lets a frozen server go on (SIGCONT); harmless when it is not frozen.
    ///
    /// # Errors
    /// [`ServerError::NotRunning`] and [`ServerError::System`].
    pub fn thaw(&self) -> Result<(), ServerError> {
        let process = self.process();
        let process = process.as_ref().ok_or(ServerError::NotRunning)?;
        process.signal(Signal::CONT, "send SIGCONT")
    }

    /// Kills the server (SIGKILL), frozen or not, and returns when it is gone; its files stay for a restart.
    ///
    /// # Errors
    /// [`ServerError::NotRunning`] when it was killed before.
    pub fn kill(&self) -> Result<(), ServerError> {
        self.process().take().ok_or(ServerError::NotRunning)?.end(Files::Keep);
        Ok(())
    }

    /// Kills the server if it runs and starts it again on the same socket, with the data its append-only file holds.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&self) -> Result<(), ServerError> {
        if self.pid().is_some() {
            self.kill()?;
        }
        self.launch()
    }

    /// Like [`restart`](Self::restart), but all data are gone, also with an append-only file.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart_empty(&self) -> Result<(), ServerError> {
        if self.pid().is_some() {
            self.kill()?;
        }
        let data = self.dir.path().join("data");
        if data.exists() {
            fs::remove_dir_all(&data).map_err(system("remove the data"))?;
        }
        self.launch()
    }

    /// Ends the server and removes its directory, as dropping it does.
    pub fn stop(self) {}

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // No code panics while it holds this lock; if it ever does, the process is still the one it was.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self) -> Result<(), ServerError> {
        let dir = self.dir.path();
        fs::create_dir_all(dir.join("data")).map_err(system("create the data directory"))?;
        *self.process() = Some(Process::spawn(&self.binary, dir).map_err(system("start a process"))?);
        if let Err(not_ready) = self.wait_until_ready() {
            self.kill()?;
            return Err(not_ready);
        }
        Ok(())
    }

    fn wait_until_ready(&self) -> Result<(), ServerError> {
        let start_ns = clock::now_ns();
        loop {
            // While it loads its data the server answers PING with the error LOADING.
            if ping(&self.url(), START_LIMIT).is_ok() {
                return Ok(());
            }
            let log = fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
            // The one failure that is common and final: no need to wait for the limit.
            if log.contains("FATAL CONFIG FILE ERROR") || clock::since(start_ns) > START_LIMIT {
                return Err(ServerError::NotReady {
                    log: last_lines(&log, 12),
                });
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The directory holds the socket, and a socket's path may have about 100 bytes: a long TMPDIR gives way to /tmp.
fn create_dir() -> io::Result<TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("lockbench-");
        builder
    };
    let dir = builder().tempdir()?;
    if dir.path().as_os_str().len() + "/redis.sock".len() < 100 {
        Ok(dir)
    } else {
        builder().tempdir_in("/tmp")
    }
}

fn config(dir: &Path, options: &ServerOptions, version: Version) -> String {
    let dir = dir.display();
    let append_only = if options.append_only { "yes" } else { "no" };
    let mut config = format!(
        "port 0\nunixsocket \"{dir}/redis.sock\"\ndir \"{dir}/data\"\nsave \"\"\nappendonly {append_only}\ndaemonize no\n"
    );
    if version >= (7, 0, 0) {
        // For DEBUG SLEEP, which older ones allow anyway; only over the socket, which is ours.
        config.push_str("enable-debug-command local\n");
    }
    for line in &options.config {
        config.push_str(line);
        config.push('\n');
    }
    config
}

/// One PING over a connection of its own.
pub(crate) fn ping(url: &str, limit: Duration) -> redis::RedisResult<()> {
    let mut connection = connect(url, limit)?;
    redis::cmd("PING").query(&mut connection)
}

/// A blocking connection whose every wait ends after `limit`.
pub(crate) fn connect(url: &str, limit: Duration) -> redis::RedisResult<redis::Connection> {
    let connection = redis::Client::open(url)?.get_connection_with_timeout(limit)?;
    connection.set_read_timeout(Some(limit))?;
    connection.set_write_timeout(Some(limit))?;
    Ok(connection)
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::System { what, source }
}

const LOG: &str = "server.log";
/// Far beyond the 10 ms a start takes: a busy machine must not fail here.
const START_LIMIT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_kept() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }
}
