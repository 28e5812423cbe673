//! The load tool as a program, for the tests that look at it from outside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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
