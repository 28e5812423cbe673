//! Whom a fault strikes and when: scopes, phases of renewal, schedules, and what has to happen first.

use std::process::{Command, Output};

use leasehold_bench::measure::{Outcome, PolicyRow};
use leasehold_bench::results;
use tests::lockbench::{self, Folder};

#[test]
fn rivals_cut_off_cost_no_holder_its_lock() {
    let outcome = held("rivals", "for = \"28s\"\nscope = \"rivals\"");
    for row in &outcome.rounds[0].policies {
        assert_eq!((row.lost, row.predicted_lost, row.mismatches), (0, 0, 0), "{row:?}");
        assert!(row.commands_in_fault >= row.held * 2, "they renew on: {row:?}");
    }
    assert_eq!(outcome.checked.overlaps.count, 0);
    // Watched for one period: at most two renewals of a lock, of six a minute, and nothing else.
    let overhead = &outcome.rounds[0].overhead;
    assert!(overhead.commands > 0.0 && overhead.commands <= 12.0, "{overhead:?}");
}

#[test]
fn a_fault_just_before_renewals_meets_all_of_them_and_just_after_none() {
    // Shorter than a period by far: only who wants to renew meanwhile notices.
    let before = held(
        "just-before",
        "for = \"3s\"\nphase = \"just_before\"\nscope = \"holders\"",
    );
    let after = held(
        "just-after",
        "for = \"3s\"\nphase = \"just_after\"\nscope = \"holders\"",
    );
    let lost = |outcome: &Outcome, policy| {
        let row: &PolicyRow = outcome.rounds[0]
            .policies
            .iter()
            .find(|row| row.policy == policy)
            .unwrap();
        assert_eq!((row.mismatches, row.predicted_lost), (0, row.lost), "{row:?}");
        row.lost
    };
    assert_eq!((lost(&before, "naive-cancel"), lost(&after, "naive-cancel")), (20, 0));
    assert_eq!((lost(&before, "deadline"), lost(&after, "deadline")), (0, 0));
}

#[test]
fn a_share_of_the_processes_is_struck_and_the_others_work_on() {
    let folder = Folder::new("share");
    // From the start on: so that those who are cut off hold nothing.
    let fault = "[[fault]]\nkind = \"refuse\"\nscope = \"share:0.5\"\nfor = \"3s\"\nat = \"0s\"\n";
    let (output, outcome) = run(&folder, &format!("{LOAD}{fault}"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let load = outcome.load.unwrap();
    let (struck, spared) = load.per_process.split_at(2);
    assert!(
        struck.iter().max() < spared.iter().min(),
        "of four processes the first two are cut off for most of the time: {:?}",
        load.per_process
    );
    assert_eq!(outcome.faults[0].scope.to_string(), "share:0.5");
}

#[test]
fn a_fault_strikes_again_and_another_follows_when_something_has_happened() {
    let folder = Folder::new("schedule");
    let faults = "[[fault]]\nname = \"full\"\nkind = \"pause_write\"\nfor = \"200ms\"\nwhen = \"held>=2\"\n\
                  [[fault]]\nkind = \"script_flush\"\nfor = \"100ms\"\nwhen = \"after(full)+300ms\"\n\
                  [[fault]]\nkind = \"latency\"\ndelay = \"5ms\"\nat = \"2s\"\nfor = \"100ms\"\nevery = \"300ms\"\ncount = 3\n";
    let (output, outcome) = run(&folder, &format!("{LOAD}{faults}"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let kinds: Vec<_> = outcome.faults.iter().map(|fault| fault.kind.name()).collect();
    assert_eq!(kinds, ["pause_write", "script_flush", "latency", "latency", "latency"]);
    let [pause, flush, first, second, third] = &outcome.faults[..] else {
        panic!("five");
    };
    assert!(flush.from_ms >= pause.from_ms + pause.observed_ms + 300.0);
    assert!(first.from_ms >= 2_000.0 && second.from_ms >= 2_300.0 && third.from_ms >= 2_600.0);
}

#[test]
fn a_fault_that_waits_in_vain_makes_it_no_measurement() {
    let folder = Folder::new("in-vain");
    let fault = "[[fault]]\nkind = \"refuse\"\nfor = \"1s\"\nwhen = \"held>=100\"\n";
    let (output, outcome) = run(&folder, &format!("{LOAD}{fault}"));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(outcome.faults.is_empty());
    let said = &outcome.findings[0].text;
    assert!(
        said.contains("refuse never struck: held>=100 did not come about"),
        "{said}"
    );
}

/// One round with 20 locks of each policy; repeated where the machine did not let it be one.
fn held(name: &str, fault: &str) -> Outcome {
    let folder = Folder::new(name);
    let scenario = format!("{HELD}[[fault]]\nat = \"1s\"\nkind = \"refuse\"\n{fault}\n");
    let mut said = Vec::new();
    for _ in 0..4 {
        let (output, outcome) = run(&folder, &scenario);
        match output.status.code() {
            Some(0) => return outcome,
            Some(7) => said.extend(outcome.findings),
            _ => panic!("{output:?}"),
        }
    }
    panic!("the machine is never quiet: {said:?}");
}

fn run(folder: &Folder, scenario: &str) -> (Output, Outcome) {
    let file = folder.path.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let output = Command::new(lockbench::program())
        .arg("run")
        .arg(&file)
        .arg("-o")
        .arg(&folder.path)
        .output()
        .unwrap();
    let outcome = results::read(&folder.path).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, outcome)
}

const HELD: &str = r#"schema = 1
name = "held"
question = "Whom does it cost a lock?"
scale = 0.1
[lock]
type = "fenced"
lease = "30s"
[workload]
model = "held"
hold = { kind = "fixed", mean = "500ms" }
keys = { count = 20 }
warm_up = "2s"
duration = "10s"
[matrix]
"lock.policy" = ["naive-cancel", "deadline"]
[thresholds]
"prediction.mismatches" = "== 0"
"#;

const LOAD: &str = r#"schema = 1
name = "load"
question = "When does it strike, and whom?"
[lock]
type = "reentrant"
lease = "30s"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "2ms" }
keys = { count = 500 }
duration = "4s"
processes = 4
clients = 8
wait = "10s"
"#;
