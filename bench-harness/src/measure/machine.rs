//! What was run where: versions and machine, read from the system.

use std::path::Path;
use std::process::Command;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What took part in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Versions {
    /// This tool.
    pub lockbench: String,
    /// The commit of the checkout it ran in, if it ran in one of this project.
    pub git: Option<String>,
    /// The compiler that built it.
    pub rustc: String,
    /// The server.
    pub redis: String,
    /// The kernel.
    pub kernel: String,
}

/// Where a run took place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Cores that this process may use. Server, generator and clients share them.
    pub cores: usize,
    /// The processor, as it calls itself.
    pub cpu: String,
    /// Memory.
    pub memory_mib: u64,
}

impl Versions {
    /// The versions at hand; `redis` is what the server says of itself.
    pub fn read(redis: String) -> Self {
        let uname = rustix::system::uname();
        Self {
            lockbench: env!("CARGO_PKG_VERSION").to_owned(),
            git: checkout(),
            rustc: env!("LOCKBENCH_RUSTC").to_owned(),
            redis,
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
        }
    }
}

impl Machine {
    /// The machine at hand.
    pub fn read() -> Self {
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(Path::new(file)).unwrap_or_default();
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
        };
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            memory_mib: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
        }
    }
}

/// The commit of the checkout we are in; a checkout of something else says nothing about us.
fn checkout() -> Option<String> {
    let root = first_line("git", &["rev-parse", "--show-toplevel"])?;
    let ours = Path::new(&root).join("bench-harness/Cargo.toml").is_file();
    if ours {
        first_line("git", &["describe", "--always", "--dirty"])
    } else {
        None
    }
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_knows_its_cores_and_kernel() {
        assert!(Machine::read().cores > 0);
        assert!(!Versions::read(String::new()).kernel.trim().is_empty());
    }
}
