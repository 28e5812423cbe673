//! Real clients of other libraries, beside the presets that are named after them: what they are, and how they come onto this machine.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// A release of Redisson that is driven as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealClient {
    /// Its name among the policies.
    pub name: &'static str,
    /// What it is, in a few words.
    pub what: &'static str,
    /// The preset that stands for it, and whose model predicts it.
    pub preset: &'static str,
    version: &'static str,
    /// Whether it pauses between two sends for a time that it draws, or always for the same.
    draws_pauses: bool,
}

/// All of them.
pub const REAL_CLIENTS: [RealClient; 2] = [
    RealClient {
        name: "redisson@3.27.0",
        what: "a real Redisson 3.27.0 (needs a JDK and Maven), held against the preset redisson-3.27",
        preset: "redisson-3.27",
        version: "3.27.0",
        draws_pauses: false,
    },
    RealClient {
        name: "redisson@4.3.0",
        what: "a real Redisson 4.3.0 (needs a JDK and Maven), held against the preset redisson-3.44",
        preset: "redisson-3.44",
        version: "4.3.0",
        draws_pauses: true,
    },
];

/// Why a real client cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealClientError {
    /// A program is missing.
    #[error("{client} needs {what}, and `{program}` does not run here: install it, or leave the policy out")]
    Missing {
        /// Which client.
        client: &'static str,
        /// What has to be installed.
        what: &'static str,
        /// The program.
        program: &'static str,
    },
    /// Maven failed: most often it cannot reach a repository.
    #[error("{client} could not be built by Maven: {message}")]
    Build {
        /// Which client.
        client: &'static str,
        /// Its first complaint.
        message: String,
    },
    /// The program around it could not be written.
    #[error("the program around {client} could not be written to {}: {source}", folder.display())]
    Write {
        /// Which client.
        client: &'static str,
        /// Where.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl RealClient {
    /// The real client of that name.
    pub fn of(policy: &str) -> Option<Self> {
        REAL_CLIENTS.into_iter().find(|client| client.name == policy)
    }

    /// The steps of its timers, with the settings given here: a wheel that turns so often, as its renewals show (1,020, 1,200, 1,375 and
    /// 1,550 ms after the last one, where 1,000, 1,150, 1,300 and 1,450 were asked for).
    pub(crate) fn tick_ns(self) -> i64 {
        25_000_000
    }

    /// How long after a fault of that length it opens a refused connection anew, at most.
    ///
    /// Either client doubles its pauses, so the one in which the fault ends is no longer than what went before. 3.27 pauses 4 ms first
    /// and 8.2 s at most, whatever the lease (`ConnectionWatchdog` of the jar); 4.x draws between half a pause and a whole one, and was
    /// told to begin with a 300th of the lease and to stop at a third.
    pub(crate) fn longest_reconnect_ns(self, lease: i64, fault: i64) -> i64 {
        let (grown, longest) = match self.draws_pauses {
            true => (fault.saturating_mul(2).saturating_add(lease / 300), lease / 3),
            false => (fault.saturating_add(4_000_000), 8_192_000_000),
        };
        grown.min(longest).saturating_add(self.tick_ns())
    }

    /// Sees to it that it can be started, which takes a while and the network when it is used for the first time.
    ///
    /// # Errors
    /// [`RealClientError`], with what to install.
    pub fn prepare(self) -> Result<(), RealClientError> {
        let client = self.name;
        for (program, argument, what) in [("java", "-version", "a JDK"), ("mvn", "-v", "Maven")] {
            let runs = Command::new(program)
                .arg(argument)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if !runs.is_ok_and(|status| status.success()) {
                return Err(RealClientError::Missing { client, what, program });
            }
        }
        write_program().map_err(|source| RealClientError::Write {
            client,
            folder: folder(),
            source,
        })?;
        let failed = |message| RealClientError::Build { client, message };
        let built = self
            .script("--build")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if built.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&built.stderr);
        let complaint = log
            .lines()
            .find(|line| line.contains("ERROR"))
            .unwrap_or("it says nothing");
        Err(failed(complaint.to_owned()))
    }

    /// The command that starts it, once it is prepared.
    pub(crate) fn command(self, url: &str) -> Command {
        self.script(url.trim_end_matches('/'))
    }

    fn script(self, argument: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .arg(folder().join("run.sh"))
            .arg(argument)
            .env("REDISSON_VERSION", self.version)
            .env("PEER_TARGET", folder().join(format!("target-{}", self.version)));
        command
    }

    /// Its own defaults for a lease of 30 s, in the same proportion to this lease.
    pub(crate) fn settings(self, lease: Duration) -> Value {
        let part = |parts: u32| u64::try_from((lease / parts).as_millis()).unwrap_or(u64::MAX);
        let mut settings = json!({
            "watchdog_ms": part(1),
            // 3 s. Two milliseconds more, since its timers tick in steps that follow from this number: with a whole multiple of
            // 100 ms they are 100 ms long, which would be a second of the unscaled lease.
            "timeout_ms": part(10) + 2,
            "connect_timeout_ms": part(3),
            "retry_attempts": if self.draws_pauses { 4 } else { 3 },
        });
        let own = if self.draws_pauses {
            vec![
                ("retry_base_ms", part(30)),
                ("retry_cap_ms", part(15)),
                ("reconnect_base_ms", part(300)),
                ("reconnect_cap_ms", part(3)),
            ]
        } else {
            vec![("retry_interval_ms", part(20))]
        };
        for (name, value) in own {
            settings[name] = json!(value);
        }
        settings
    }
}

/// Where the program around it lies and is built: the user's cache.
fn folder() -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    cache
        .unwrap_or_else(std::env::temp_dir)
        .join("lockbench")
        .join("redisson-peer")
}

/// Writes what has changed; the build looks at the times of the files.
fn write_program() -> io::Result<()> {
    let folder = folder();
    fs::create_dir_all(folder.join("src/main/java/peer"))?;
    for (name, text) in PROGRAM {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

const PROGRAM: [(&str, &str); 4] = [
    ("run.sh", include_str!("../peers/redisson/run.sh")),
    ("pom.xml", include_str!("../peers/redisson/pom.xml")),
    (
        "src/main/java/peer/Json.java",
        include_str!("../peers/redisson/src/main/java/peer/Json.java"),
    ),
    (
        "src/main/java/peer/Peer.java",
        include_str!("../peers/redisson/src/main/java/peer/Peer.java"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Timings;

    #[test]
    fn a_real_client_is_predicted_by_its_preset() {
        for client in REAL_CLIENTS {
            assert_eq!(RealClient::of(client.name), Some(client));
            let lease = Duration::from_secs(30);
            assert!(Timings::of(client.preset, lease).is_some());
            let what = |name| Timings::of(name, lease).map(|timings| (timings.effort, timings.attempt, timings.tells));
            assert_eq!(what(client.name), what(client.preset));
        }
        assert_eq!(RealClient::of("redisson-3.27"), None);
    }

    #[test]
    fn its_pauses_before_a_connection_grow_with_the_fault() {
        let ms = |ms: i64| ms * 1_000_000;
        let pause = |client: usize, fault| REAL_CLIENTS[client].longest_reconnect_ns(ms(3_000), fault);
        assert_eq!(pause(0, ms(430)), ms(430 + 4 + 25));
        assert_eq!(pause(0, i64::MAX), ms(8_192 + 25));
        assert_eq!(pause(1, ms(100)), ms(200 + 10 + 25));
        assert_eq!(pause(1, ms(2_500)), ms(1_000 + 25));
        let timings = |policy| {
            Timings::of(policy, Duration::from_secs(3))
                .unwrap()
                .under_a_fault_of(policy, ms(430))
        };
        assert_eq!(timings("redisson@3.27.0").reconnects, ms(459));
        assert_eq!(timings("redisson-3.27").reconnects, 0);
    }

    #[test]
    fn its_settings_are_its_defaults_in_proportion_to_the_lease() {
        let lease = Duration::from_secs(30);
        let old = REAL_CLIENTS[0].settings(lease);
        assert_eq!(
            (&old["retry_attempts"], &old["retry_interval_ms"]),
            (&json!(3), &json!(1_500))
        );
        let new = REAL_CLIENTS[1].settings(lease);
        assert_eq!(
            (&new["retry_attempts"], &new["retry_base_ms"], &new["retry_cap_ms"]),
            (&json!(4), &json!(1_000), &json!(2_000))
        );
        assert_eq!(REAL_CLIENTS[1].settings(lease / 10)["timeout_ms"], json!(302));
    }
}
