//! The load tool as a program, for the tests that look at it from outside.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};

/// The program, built once: cargo builds no other package's binaries for a test.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // …/target/debug/deps/it-0123456789
        let test = std::env::current_exe().expect("a test is a program");
        let folder = test.ancestors().nth(2).expect("cargo's folders");
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "-p", "leasehold-bench", "--target-dir"])
            .arg(folder.parent().expect("cargo's folders"))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let built = build.status().expect("cargo runs this test");
        assert!(built.success(), "lockbench does not build");
        folder.join("lockbench")
    })
}

/// All processes below one: workers, guardian, server.
#[track_caller]
pub fn descendants(root: u32) -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .expect("processes have a folder each")
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = BTreeSet::from([root]);
    loop {
        let more: Vec<_> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .collect();
        if more.is_empty() {
            break;
        }
        found.extend(more.into_iter().map(|(pid, _)| *pid));
    }
    found.remove(&root);
    assert!(found.len() >= 3, "two workers and a server, not {found:?}");
    found
}

/// Whether a process still runs.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended; whoever adopted it has only not looked yet.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Whether a process has been stopped.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Sends a signal.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process of ours has a number");
    kill_process(pid, signal).expect("a process of ours takes signals");
}

/// A folder for one run, empty at first and removed in the end.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
}

impl Folder {
    /// A new folder; the name tells the runs of one test process apart.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockbench-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the folder for temporary files can be written");
        Self { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
