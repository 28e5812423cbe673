//! The program `lockbench`.

use std::process::ExitCode;

use clap::Parser;
use leasehold_bench::cli::{self, Cli};

fn main() -> ExitCode {
    cli::main(Cli::parse())
}
