//! Tells the program which compiler built it, so that a report can say so.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let version = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo:rustc-env=LOCKBENCH_RUSTC={}", version.unwrap_or_default().trim());
}
