//! Which server binary there is, and whether it will do.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ServerError, Version, system};

/// Finds a server that will do, and its version.
pub(super) fn find() -> Result<(PathBuf, Version), ServerError> {
    let binary = on_path()?;
    let version = version_of(&binary)?;
    if version < OLDEST {
        return Err(ServerError::TooOld { binary, version });
    }
    Ok((binary, version))
}

fn on_path() -> Result<PathBuf, ServerError> {
    if let Some(given) = std::env::var_os("REDIS_SERVER").filter(|given| !given.is_empty()) {
        return runnable(Path::new(&given)).ok_or(ServerError::NotFound);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    BINARIES
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find_map(|candidate| runnable(&candidate))
        .ok_or(ServerError::NotFound)
}

/// The absolute path of a file. Links stay: Debian's redis-server is one to redis-check-rdb, and its name decides what
/// it does.
fn runnable(binary: &Path) -> Option<PathBuf> {
    let binary = std::path::absolute(binary).ok()?;
    binary.is_file().then_some(binary)
}

fn version_of(binary: &Path) -> Result<Version, ServerError> {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .map_err(system("run --version"))?;
    parse_version(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| ServerError::NoVersion(binary.to_owned()))
}

/// Reads `Redis server v=7.0.15 sha=…`; Valkey writes the same with its own name.
fn parse_version(line: &str) -> Option<Version> {
    let version = line.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((
        numbers.next()??,
        numbers.next()??,
        numbers.next().flatten().unwrap_or(0),
    ))
}

const BINARIES: [&str; 2] = ["redis-server", "valkey-server"];
/// CLIENT PAUSE with a mode and CLIENT UNPAUSE came with 6.2.
const OLDEST: Version = (6, 2, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_redis_and_valkey_are_read() {
        assert_eq!(
            parse_version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc"),
            Some((7, 0, 15))
        );
        assert_eq!(parse_version("Valkey server v=8.1 sha=0"), Some((8, 1, 0)));
        assert_eq!(parse_version("Redis server v=255.255.255"), Some((255, 255, 255)));
        assert_eq!(parse_version("nginx version: nginx/1.22"), None);
    }

    #[test]
    fn a_link_to_a_server_is_run_by_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("redis-server");
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
        assert_eq!(runnable(&link), Some(link));
        assert_eq!(runnable(dir.path()), None);
    }
}
