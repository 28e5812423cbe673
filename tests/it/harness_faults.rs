//! The load tool and its faults from the outside: each strikes under load, and what may not or cannot be is refused.

use std::process::{Command, Output, Stdio};

use leasehold_bench::measure::Outcome;
use leasehold_bench::results;
use leasehold_bench::scenario::{FaultKind, NOT_HERE, Place};
use tests::lockbench::{self, Folder};
use tests::{fresh_server, keys, pttl};

#[test]
fn every_fault_strikes_under_load_and_work_goes_on_after_it_with_no_overlap() {
    let folder = Folder::new("every-fault");
    let mut scenario = LOAD.to_owned();
    // Who is killed stays dead, and a test of its own looks at that.
    let kinds = || {
        FaultKind::ALL
            .into_iter()
            .filter(|kind| *kind != FaultKind::KillClient9)
    };
    for (index, kind) in kinds().enumerate() {
        let at = 500 + 700 * index;
        let more = match kind {
            FaultKind::Latency => "delay = \"20ms\"\njitter = \"20ms\"\n",
            _ => "",
        };
        let name = kind.name();
        scenario += &format!("[[fault]]\nat = \"{at}ms\"\nfor = \"300ms\"\nkind = \"{name}\"\n{more}");
    }
    let (output, outcome) = run(&folder, &scenario, &[]);
    assert_ne!(output.status.code(), Some(4), "{output:?}");
    let struck: Vec<_> = outcome.faults.iter().map(|fault| fault.kind).collect();
    assert_eq!(struck, kinds().collect::<Vec<_>>());
    for fault in &outcome.faults {
        // Redis counts a pause in whole milliseconds.
        assert!(fault.observed_ms >= 299.0, "{fault:?}");
    }
    assert_eq!(outcome.checked.overlaps.count, 0);
    let load = outcome.load.unwrap();
    let last = outcome.faults.last().unwrap();
    let healed_s = ((last.from_ms + last.observed_ms) / 1e3) as u32;
    assert!(
        load.series
            .iter()
            .any(|second| second.second > healed_s && second.count > 0),
        "work goes on after {healed_s} s: {:?}",
        load.series
    );
}

#[test]
fn a_fault_that_is_not_here_is_refused_by_name_with_its_reason() {
    let folder = Folder::new("not-here");
    let listed = Command::new(lockbench::program())
        .args(["list", "faults"])
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for (name, reason) in NOT_HERE {
        assert!(listed.contains(name) && listed.contains(reason), "{name}: {listed}");
    }
    let scenario = format!("{LOAD}[[fault]]\nat = \"1s\"\nfor = \"1s\"\nkind = \"failover\"\n");
    let output = start(&folder, &scenario, &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("failover") && said.contains("single masters"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn somebody_elses_server_is_touched_by_no_fault_that_was_not_allowed() {
    let folder = Folder::new("guard-rails");
    let server = fresh_server();
    for kind in FaultKind::ALL {
        let more = match kind {
            FaultKind::Latency => "delay = \"20ms\"\n",
            FaultKind::Restart => "persist = false\n",
            _ => "",
        };
        let name = kind.name();
        let scenario = LOAD.replace("[redis]\nconfig = { appendonly = \"yes\" }\n", "");
        let scenario = format!("{scenario}[[fault]]\nat = \"1s\"\nfor = \"1s\"\nkind = \"{name}\"\n{more}");
        let options: &[&[&str]] = match kind.place() {
            Place::Proxy | Place::Worker => &[],
            Place::Server => &[&[]],
            Place::OwnServer => &[&[], &["--allow-faults"]],
        };
        for options in options {
            let url = server.url();
            let output = start(&folder, &scenario, &[&["--redis", &url], *options].concat());
            assert_eq!(output.status.code(), Some(3), "{name} {options:?}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(name) && said.lines().count() == 1, "{said}");
        }
    }
    assert_eq!(keys(&server), [""; 0]);
}

#[test]
fn somebody_elses_server_is_asked_for_no_more_than_allowed_and_keeps_no_key() {
    let server = fresh_server();
    let url = server.url();
    for lock in ["fenced", "fair", "read_write"] {
        let folder = Folder::new(&format!("theirs-{lock}"));
        let scenario = LOAD.replace("[redis]\nconfig = { appendonly = \"yes\" }\n", "");
        let file = folder.path.join("scenario.toml");
        std::fs::write(&file, scenario).unwrap();
        let mut running = Command::new(lockbench::program())
            .arg("run")
            .arg(&file)
            .args(["--set", "workload.duration=2s", "--set", &format!("lock.type={lock}")])
            .args(["--set", "workload.hold.mean=0ms", "--redis", &url, "-o"])
            .arg(&folder.path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut looked_at = 0;
        while running.try_wait().unwrap().is_none() {
            for key in keys(&server) {
                // The table of a waiter ends with it, and that of a fair lock with its run.
                let left = pttl(&server, &key);
                assert!(
                    left != -1 || key.contains("queue") || key.contains("timeout"),
                    "{key} has no end"
                );
                assert!(key.contains("lockbench:"), "{key}");
                looked_at += 1;
            }
        }
        assert!(looked_at > 0);
        assert_eq!(keys(&server), [""; 0], "{lock}");
        let load = results::read(&folder.path).unwrap().load.unwrap();
        assert!(
            load.throughput_per_s > 50.0 && load.throughput_per_s < 1_010.0,
            "{load:?}"
        );
    }
    let folder = Folder::new("theirs-too-fast");
    let open = LOAD
        .replace("[redis]\nconfig = { appendonly = \"yes\" }\n", "")
        .replace(
            "model = \"closed\"",
            "model = \"open\"\narrival = { kind = \"constant\", rate = \"1500/s\" }",
        );
    let output = start(&folder, &open, &["--redis", &url]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("redis.max_rate = \"1500/s\""), "{said}");
}

#[test]
fn the_stock_scenarios_of_faults_hold_what_they_promise() {
    for (name, length) in [
        ("script-flush", "2s"),
        ("oom-convoy", "3s"),
        ("client-freeze", "4500ms"),
        ("crash-orphan", "0s"),
    ] {
        let folder = Folder::new(name);
        let output = Command::new(lockbench::program())
            .args([
                "run",
                name,
                "--set",
                "workload.duration=7s",
                "--set",
                "fault.0.at=500ms",
            ])
            .args(["--set", &format!("fault.0.for={length}"), "-o"])
            .arg(&folder.path)
            .output()
            .unwrap();
        // On a busy machine a fault may last longer than asked (exit code 7).
        assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
        let outcome = results::read(&folder.path).unwrap();
        assert!(outcome.thresholds.iter().all(|threshold| threshold.holds), "{output:?}");
    }
}

fn run(folder: &Folder, scenario: &str, options: &[&str]) -> (Output, Outcome) {
    let output = start(folder, scenario, options);
    let outcome = results::read(&folder.path).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, outcome)
}

fn start(folder: &Folder, scenario: &str, options: &[&str]) -> Output {
    let file = folder.path.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    Command::new(lockbench::program())
        .arg("run")
        .arg(&file)
        .arg("-o")
        .arg(&folder.path)
        .args(options)
        .output()
        .unwrap()
}

const LOAD: &str = r#"schema = 1
name = "faults"
question = "Does work go on after each fault?"
seed = 1
[redis]
config = { appendonly = "yes" }
[lock]
type = "reentrant"
lease = "30s"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "2ms" }
keys = { count = 3, dist = "uniform" }
duration = "15s"
processes = 2
clients = 6
wait = "10s"
[thresholds]
"overlap.count" = "== 0"
"#;
