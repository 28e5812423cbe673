//! The load tool over every kind of lock: what runs clean, and what its checker finds where there is something to find.

use std::process::Command;

use leasehold_bench::measure::Outcome;
use leasehold_bench::results;
use leasehold_bench::scenario::LockType;
use tests::lockbench::{self, Folder};

/// Runs a scenario with these values set, and reads what it found.
fn run(name: &str, scenario: &str, set: &[&str]) -> (Option<i32>, Outcome) {
    let folder = Folder::new(&format!("kinds-{name}"));
    let file = folder.path.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let set = set.iter().flat_map(|value| ["--set", value]);
    let output = Command::new(lockbench::program())
        .args(["run", "--no-tui", "-o"])
        .arg(&folder.path)
        .arg(&file)
        .args(set)
        .output()
        .unwrap();
    let outcome = results::read(&folder.path).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), outcome)
}

fn metric(outcome: &Outcome, name: &str) -> f64 {
    let value = outcome.metrics.get(name).copied().flatten();
    value.unwrap_or_else(|| panic!("{name} is not in {:?}", outcome.metrics))
}

#[test]
fn every_kind_runs_clean_and_loses_no_update_also_where_holders_re_enter() {
    for kind in LockType::names().filter(|name| *name != "none") {
        let reentry = "workload.reentry={ depth = 2, prob = 0.3 }";
        let (code, outcome) = run(kind, COUNTING, &[&format!("lock.type={kind}"), reentry]);
        assert_eq!(code, Some(0), "{kind}: {}", outcome.verdict);
        let load = outcome.load.as_ref().unwrap();
        assert!(load.successes > 0, "{kind}");
        // A script has done its work when it is answered: nobody is inside to take the lock again.
        let has_reentered = load.reentry.as_ref().is_some_and(|reentry| reentry.count > 0);
        assert_eq!(has_reentered, kind != "script", "{kind}");
        for name in [
            "lost_updates",
            "overlap.count",
            "stale.accepted",
            "fence.disorder",
            "errors",
        ] {
            assert_eq!(metric(&outcome, name), 0.0, "{kind}: {name}");
        }
        assert!(metric(&outcome, "fairness.overtakes.max") >= metric(&outcome, "fairness.overtakes.p99"));
    }
}

#[test]
fn a_quorum_works_on_while_a_minority_is_out_and_never_twice_at_once() {
    let on_one =
        |kind: &str| format!("{COUNTING}[[fault]]\nat = \"300ms\"\nfor = \"3s\"\nkind = \"{kind}\"\nmasters = 1\n");
    for kind in ["freeze_server", "swallow", "refuse", "pause_write"] {
        let name = format!("quorum-{kind}");
        let (code, outcome) = run(&name, &on_one(kind), &["lock.type=quorum", "workload.duration=4s"]);
        assert!(is_clean(code), "{kind}: {}", outcome.verdict);
        assert_eq!(outcome.faults.len(), 1, "{kind}");
        for name in ["lost_updates", "overlap.count", "errors"] {
            assert_eq!(metric(&outcome, name), 0.0, "{kind}: {name}");
        }
        let seconds: Vec<u32> = outcome
            .load
            .unwrap()
            .series
            .iter()
            .map(|second| second.second)
            .collect();
        let within = seconds.contains(&1) || seconds.contains(&2);
        assert!(within, "{kind}: work goes on during the fault, not in {seconds:?} only");
    }
}

/// Nothing was found. On a busy machine a fault may last longer than it was asked to, so that the run does not count as a measurement.
fn is_clean(code: Option<i32>) -> bool {
    matches!(code, Some(0 | 7))
}

#[test]
fn a_majority_that_is_out_stops_a_quorum_and_nothing_is_held_twice() {
    let fault = "[[fault]]\nat = \"300ms\"\nfor = \"6s\"\nkind = \"swallow\"\nmasters = 2\n";
    let scenario = COUNTING.replace("\"errors\" = \"== 0\"\n", "");
    let set = ["lock.type=quorum", "lock.lease=2s", "workload.duration=9s"];
    let (code, outcome) = run("quorum-majority", &format!("{scenario}{fault}"), &set);
    assert!(is_clean(code), "{}", outcome.verdict);
    let load = outcome.load.as_ref().unwrap();
    assert_eq!((outcome.checked.overlaps.count, load.lost_updates), (0, Some(0)));
    // It stops, and goes on when the fault is over.
    let seconds: Vec<u32> = load.series.iter().map(|second| second.second).collect();
    let goes_on = seconds.iter().any(|second| *second > 6);
    assert!(!seconds.contains(&3) && goes_on, "{seconds:?}");
}

#[test]
fn what_a_quorum_cannot_have_is_refused_with_what_to_write() {
    let refused = |text: &str, set: &[&str]| {
        let set: Vec<String> = set.iter().map(|value| (*value).to_owned()).collect();
        leasehold_bench::Scenario::parse("bad.toml", text, &set)
            .unwrap_err()
            .message
    };
    let message = refused(HELD, &["lock.type=quorum"]);
    assert!(message.contains("\"closed\" or \"open\""), "{message}");
    let fault = |masters: usize| {
        format!("{COUNTING}[[fault]]\nat = \"100ms\"\nfor = \"1s\"\nkind = \"refuse\"\nmasters = {masters}\n")
    };
    let message = refused(&fault(4), &["lock.type=quorum"]);
    assert!(message.contains("1 to 3 masters"), "{message}");
    let message = refused(&fault(1), &[]);
    assert!(message.contains("only a lock of the type \"quorum\""), "{message}");
}

#[test]
fn without_a_lock_updates_are_lost_and_writes_are_stale() {
    let (code, outcome) = run("none", COUNTING, &["lock.type=none"]);
    assert_eq!(code, Some(4), "{}", outcome.verdict);
    for name in ["lost_updates", "overlap.count", "stale.accepted"] {
        assert!(metric(&outcome, name) > 0.0, "{name}");
    }
}

#[test]
fn readers_at_work_together_are_no_overlap() {
    let reading = ["lock.type=read_write", "workload.read_ratio=1"];
    let (code, outcome) = run("readers", COUNTING, &reading);
    assert_eq!(code, Some(0), "{}", outcome.verdict);
    let (load, checked) = (outcome.load.unwrap(), outcome.checked);
    assert_eq!((checked.overlaps.count, load.lost_updates), (0, Some(0)));
    // One holder at a time could not have held it so often.
    let alone = load.window_s * 1e3 / HOLD_MS;
    assert!(
        load.successes as f64 > 1.2 * alone,
        "{} in {} s",
        load.successes,
        load.window_s
    );
}

#[test]
fn a_share_of_readers_needs_a_lock_that_tells_them() {
    let refused =
        leasehold_bench::Scenario::parse("bad.toml", COUNTING, &["workload.read_ratio=0.5".to_owned()]).unwrap_err();
    assert!(refused.message.contains("read_write"), "{refused}");
    let misspelt = COUNTING.replace("\"fenced\"", "\"fence\"");
    let refused = leasehold_bench::Scenario::parse("bad.toml", &misspelt, &[]).unwrap_err();
    assert!(refused.message.contains("did you mean \"fenced\"?"), "{refused}");
    assert!(refused.place.starts_with("bad.toml:6:"), "{refused}");
}

#[test]
fn a_guard_refuses_by_token_what_an_overtaken_holder_writes() {
    let stale = |kind: &str, name: &str| {
        let (_, outcome) = run(name, HELD, &[&format!("lock.type={kind}")]);
        let both = ["stale.accepted", "stale.rejected"].map(|name| metric(&outcome, name));
        assert_eq!(metric(&outcome, "fence.disorder"), 0.0);
        assert!(metric(&outcome, "overlap.count") > 0.0, "{}", outcome.verdict);
        both
    };
    let [accepted, rejected] = stale("fenced", "held-fenced");
    assert!(accepted == 0.0 && rejected > 0.0, "{accepted} {rejected}");
    let [accepted, rejected] = stale("reentrant", "held-reentrant");
    assert!(accepted > 0.0 && rejected == 0.0, "{accepted} {rejected}");
}

const HOLD_MS: f64 = 5.0;

const COUNTING: &str = r#"schema = 1
name = "counting"
question = "Is every update there?"
seed = 1
[lock]
type = "fenced"
lease = "5s"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "5ms" }
keys = { count = 1, dist = "single" }
duration = "1s"
processes = 2
clients = 8
wait = "30s"
counter = true
[thresholds]
"overlap.count" = "== 0"
"lost_updates" = "== 0"
"errors" = "== 0"
"#;

/// Holders that are told nothing work on while their rivals have the lock.
const HELD: &str = r#"schema = 1
name = "held"
question = "Who writes last?"
seed = 1
scale = 0.1
[lock]
type = "fenced"
lease = "30s"
policy = "naive-cancel"
[workload]
model = "held"
keys = { count = 5 }
hold = { kind = "fixed", mean = "200ms" }
warm_up = "5s"
duration = "3s"
[[fault]]
at = "5s"
for = "15s"
kind = "pause_write"
"#;
