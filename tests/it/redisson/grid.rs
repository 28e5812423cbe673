//! A real Redisson in a grid of faults, beside the presets that are named after it.

use std::process::Command;

use leasehold_bench::results;
use tests::lockbench::{Folder, program};

use super::peer;

#[test]
fn a_real_redisson_fares_in_a_grid_as_the_preset_named_after_it() {
    if peer::is_missing() {
        return;
    }
    let folder = Folder::new("policies-redisson");
    let run = || {
        let output = Command::new(program())
            .args(["policies", "--policy", "redisson@3.27.0,redisson@4.3.0"])
            .args([
                "--fault",
                "refuse/holders,pending/all",
                "--pause",
                "4s,25s",
                "--locks",
                "16",
            ])
            .arg("-o")
            .arg(&folder.path)
            .output()
            .unwrap();
        (output.status.code(), output)
    };
    // A machine that is not quiet makes it no measurement (7).
    let mut ran = run();
    for _ in 0..3 {
        if ran.0 == Some(7) {
            ran = run();
        }
    }
    assert_eq!(ran.0, Some(0), "{:?}", ran.1);
    let outcome = results::read(&folder.path).unwrap();
    for cell in &outcome.grid.unwrap().cells {
        assert_eq!((cell.held, cell.mismatches), (16, 0), "{cell:?}");
        // Nobody is told; whoever takes a lost lock is at work beside its holder.
        assert!(cell.told.is_none() && cell.overlaps.count == cell.lost, "{cell:?}");
        match (cell.policy.as_str(), cell.kind.name(), cell.length_s) {
            // A command that waits is answered in the end, and its retries take half a lease.
            (_, "pause_write", 4.0) => assert_eq!(cell.lost, 0, "{cell:?}"),
            ("redisson@3.27.0", "refuse", 25.0) => assert_eq!(cell.lost, 16, "{cell:?}"),
            _ => {}
        }
    }
}
