//! `lockbench capacity` from the outside: an answer with a number behind each clause, and what cannot be asked.

use std::process::{Command, Output};

use leasehold_bench::capacity::{Bound, Capacity};
use leasehold_bench::results;
use tests::lockbench::{Folder, program};

#[test]
fn a_lock_that_is_never_free_is_found_to_be_the_limit() {
    let folder = Folder::new("capacity");
    // A hold of 50 ms bears 20 a second at most, on any machine.
    let arguments = "hot-key --slo acquire.max<1s --from 10 --resolution 50 --step 2s --set workload.hold.mean=50ms --set workload.wait=2s";
    let output = capacity(&folder, arguments);
    // 7: a busy machine paces its arrivals too late to call that a measurement.
    assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
    let answer = std::fs::read_to_string(folder.path.join(results::ANSWER)).unwrap();
    let answer: Capacity = serde_json::from_str(&answer).unwrap();
    let borne = answer.capacity_per_s.expect("10 a second are little");
    let too_much = answer.too_much_per_s.expect("20 a second are the limit");
    assert!((2.0..20.5).contains(&borne) && too_much <= 40.0, "{answer:?}");
    assert_eq!(answer.hot_key.share, 1.0);
    // At twice what is too much the lock is never free: what it then does is 1 / (hold + hand-over).
    let saturated = answer.saturated.as_ref().unwrap();
    assert!(!saturated.borne && saturated.throughput_per_s <= 20.0, "{saturated:?}");
    let bound = answer.hot_key.bound_per_s.unwrap();
    assert!((5.0..20.0).contains(&bound), "{bound}");
    assert!(
        matches!(answer.limit, Bound::HotKey | Bound::Waiting | Bound::Generator),
        "{:?}",
        answer.limit
    );
    assert!(answer.sale.is_some() && answer.generator.is_some());
    let said = String::from_utf8_lossy(&output.stdout);
    for part in [
        "capacity of hot-key",
        "the hottest key gets 100 %",
        "A sale of",
        "again: lockbench capacity hot-key",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let summary = std::fs::read_to_string(folder.path.join(results::SUMMARY)).unwrap();
    assert!(summary.contains("capacity of hot-key"));
    let left: Vec<_> = std::fs::read_dir(&folder.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "no evidence is left: {left:?}");
}

#[test]
fn what_cannot_be_answered_is_refused_with_what_to_ask() {
    let folder = Folder::new("capacity-flags");
    for (arguments, tip) in [
        ("hot-key", "--slo"),
        ("hot-key --slo acquire.p99", "write acquire.p99<50ms"),
        ("hot-key --slo lost.total==0", "use one of acquire.p50"),
        ("hot-key --slo acquire.p99<fast", "write a comparison and a value"),
        ("hot-key --slo timeouts==0 --from 0", "arrivals a second"),
        ("pause-demo --slo timeouts==0", "open or closed workload"),
        ("hot-kay --slo timeouts==0", "hot-key"),
    ] {
        let output = capacity(&folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(tip), "{arguments}: {said}");
    }
    let output = capacity(&folder, "hot-key --slo timeouts==0 --redis redis://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

fn capacity(folder: &Folder, arguments: &str) -> Output {
    Command::new(program())
        .arg("capacity")
        .args(arguments.split(' '))
        .arg("-o")
        .arg(&folder.path)
        .output()
        .unwrap()
}
