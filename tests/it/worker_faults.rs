//! Faults of the load tool's own workers: what the checker finds of them, and that nothing stays behind.

use std::process::{Child, Command, Output, Stdio};

use leasehold_bench::measure::{Outcome, Second};
use leasehold_bench::results;
use rustix::process::Signal;
use tests::lockbench::{self, Folder, descendants, is_alive, is_stopped, signal};
use tests::{LONG, eventually, fresh_server, keys};

#[test]
fn a_holder_that_acts_when_it_wakes_overlaps_and_one_that_asks_first_does_not() {
    for asks in [false, true] {
        let folder = Folder::new(if asks { "frozen-asks" } else { "frozen-acts" });
        let (output, outcome) = run(&folder, FROZEN, &["--set", &format!("workload.honours_lost={asks}")]);
        assert!(outcome.faults[0].observed_ms >= 2_499.0, "{:?}", outcome.faults);
        let (checked, load) = (&outcome.checked, outcome.load.as_ref().unwrap());
        let harm = [
            checked.overlaps.count,
            checked.fencing.stale_rejected,
            load.lost_updates.unwrap(),
        ];
        if asks {
            // A busy machine may let the fault last longer than asked (exit code 7).
            assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
            assert_eq!(harm, [0; 3], "{output:?}");
            assert!(load.lost > 0, "it held locks, and was told: {output:?}");
        } else {
            assert_eq!(output.status.code(), Some(4), "{output:?}");
            assert!(harm.iter().all(|count| *count > 0), "{harm:?}: {output:?}");
        }
        assert!(
            checked.frozen.count > 0,
            "its rivals worked while it stood still: {output:?}"
        );
        assert!(checked.frozen.max_ms <= outcome.faults[0].observed_ms);
        let after_s = ((outcome.faults[0].from_ms + outcome.faults[0].observed_ms) / 1e3) as u32;
        assert!(
            load.series
                .iter()
                .any(|second| second.second > after_s && second.count > 0),
            "work goes on: {:?}",
            load.series
        );
    }
}

#[test]
fn a_frozen_holder_loses_its_lease_and_is_told_when_it_wakes_as_the_model_says() {
    let folder = Folder::new("frozen-held");
    let (output, outcome) = run(&folder, HELD, &[]);
    assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
    let metric = |name: &str| outcome.metrics.get(name).copied().flatten();
    assert_eq!(metric("prediction.mismatches"), Some(0.0), "{output:?}");
    let [holders, short, rivals] = &outcome.rounds[..] else {
        panic!("a round for each fault: {output:?}");
    };
    for row in &holders.policies {
        assert_eq!((row.lost, row.predicted_lost), (row.held, row.held), "{row:?}");
    }
    // From 20 ms after the end of the lease, when this one wakes at the earliest, since it is frozen for half a second longer.
    let told = holders.policies[1].told.as_ref().unwrap();
    assert!(told.count == holders.policies[1].held && told.min_ms > 20.0, "{told:?}");
    assert_eq!(holders.policies[0].told, None, "nobody tells this one");
    assert!(holders.policies[0].overlaps.count > 0, "{output:?}");
    for row in short.policies.iter().chain(&rivals.policies) {
        assert_eq!((row.lost, row.overlaps.count), (0, 0), "{row:?}");
    }
}

#[test]
fn ctrl_c_while_a_worker_is_frozen_leaves_no_process() {
    let folder = Folder::new("frozen-ctrl-c");
    let mut tool = start_frozen(&folder);
    let started = descendants(tool.id());
    signal(tool.id(), Signal::INT);
    assert_eq!(tool.wait().unwrap().code(), Some(130));
    assert!(results::read(&folder.path).unwrap().interrupted);
    eventually(LONG, || started.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_coordinator_that_is_killed_while_a_worker_is_frozen_leaves_no_process() {
    let folder = Folder::new("frozen-killed");
    let mut tool = start_frozen(&folder);
    let started = descendants(tool.id());
    signal(tool.id(), Signal::KILL);
    tool.wait().unwrap();
    eventually(LONG, || started.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_worker_that_cannot_be_struck_is_refused_where_it_stands() {
    let folder = Folder::new("no-such-worker");
    for (set, message) in [
        ("fault.0.scope=holders", "use scope = \"all\""),
        ("fault.0.kind=oom", "or of workers (freeze_client"),
        ("fault.0.kind=kill_client9", "who is killed stays dead"),
    ] {
        let output = command(&folder, FROZEN, &["--set", set]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{set}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(message), "{set}: {said}");
    }
    let arrival = "model = \"open\"\narrival = { kind = \"constant\", rate = \"50/s\" }";
    let open = FROZEN.replace("model = \"closed\"", arrival);
    let output = command(&folder, &open, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("would strike the generator"),
        "{output:?}"
    );
}

#[test]
fn a_killed_worker_ends_no_run_and_others_have_its_locks_when_their_leases_are_over() {
    let folder = Folder::new("killed");
    let (output, outcome) = run(&folder, KILLED, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (checked, load) = (&outcome.checked, outcome.load.as_ref().unwrap());
    assert!(checked.orphans.count > 0, "{checked:?}");
    assert_eq!(
        checked.orphans.taken, checked.orphans.count,
        "others wait for each of them"
    );
    let longest = checked.orphans.max_ms.unwrap();
    // Work lasts for a tenth of a second, so most of the lease was left; and nobody has a lock before it is over.
    assert!(longest > 500.0, "{checked:?}");
    assert_eq!((load.lost_updates, load.timeouts), (Some(0), 0), "{load:?}");
    assert!(load.per_process[0] > 0, "what the dead one did before counts: {load:?}");
    assert!(load.per_process[1] > load.per_process[0], "the other went on: {load:?}");
    assert!(checked.intervals >= load.successes, "{checked:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("were held by workers that were killed"), "{said}");
}

#[test]
fn a_worker_that_ends_on_its_own_is_still_an_error() {
    let folder = Folder::new("died");
    let options = ["--set", "fault.0.at=4s"];
    let mut command = command(&folder, KILLED, &options);
    let tool = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let evidence = || std::fs::metadata(folder.path.join("evidence-0.bin")).map_or(0, |file| file.len());
    eventually(LONG, || evidence() > 0);
    let started = descendants(tool.id());
    let worker = started.iter().find(|pid| is_worker(**pid)).unwrap();
    signal(*worker, Signal::KILL);
    let output = tool.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("ended early"),
        "{output:?}"
    );
    eventually(LONG, || started.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn acquires_that_are_dropped_leave_no_lock_and_keep_nobody_waiting() {
    let server = fresh_server();
    for kind in ["reentrant", "fair", "read_write", "fenced", "spin"] {
        let folder = Folder::new(&format!("dropped-{kind}"));
        let lock = format!("lock.type={kind}");
        let options = ["--set", &lock, "--redis", &server.url()];
        let (output, outcome) = run(&folder, DROPPED, &options);
        // A lock left behind would last for 30 s, and others wait for no more than 10.
        assert_eq!(output.status.code(), Some(0), "{kind}: {output:?}");
        let load = outcome.load.as_ref().unwrap();
        assert!(load.cancelled > 10, "{kind}: {load:?}");
        assert_eq!(load.timeouts, 0, "{kind}: {load:?}");
        let after_s = ((outcome.faults[0].from_ms + outcome.faults[0].observed_ms) / 1e3) as u32;
        let goes_on = |second: &Second| second.second > after_s && second.count > 0;
        assert!(load.series.iter().any(goes_on), "{kind}: {:?}", load.series);
        // A withdrawal may still be on its way when its process ends.
        assert_eq!(keys(&server), Vec::<String>::new(), "{kind}");
    }
}

fn is_worker(pid: u32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).nth(1) == Some(b"worker")
}

/// A run with a worker that stands still for far longer than the test, at the point where it does.
fn start_frozen(folder: &Folder) -> Child {
    let options = ["--set", "workload.duration=5m", "--set", "fault.0.for=4m"];
    let mut command = command(folder, FROZEN, &options);
    let tool = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let evidence = || std::fs::metadata(folder.path.join("evidence-0.bin")).map_or(0, |file| file.len());
    eventually(LONG, || evidence() > 0);
    let workers = descendants(tool.id());
    eventually(LONG, || workers.iter().any(|pid| is_stopped(*pid)));
    tool
}

fn run(folder: &Folder, scenario: &str, options: &[&str]) -> (Output, Outcome) {
    let output = command(folder, scenario, options).output().unwrap();
    let outcome = results::read(&folder.path).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, outcome)
}

fn command(folder: &Folder, scenario: &str, options: &[&str]) -> Command {
    let file = folder.path.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let mut command = Command::new(lockbench::program());
    command.arg("run").arg(&file).arg("-o").arg(&folder.path).args(options);
    command
}

const FROZEN: &str = r#"schema = 1
name = "frozen"
question = "Who acts after standing still?"
seed = 1
[lock]
type = "fenced"
lease = "1s"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "300ms" }
step = "5ms"
counter = true
keys = { count = 8, dist = "uniform" }
duration = "6s"
processes = 2
clients = 48
wait = "20s"
[[fault]]
at = "1s"
for = "2500ms"
kind = "freeze_client"
scope = "share:0.5"
[thresholds]
"overlap.count" = "== 0"
"lost_updates" = "== 0"
"stale.rejected" = "== 0"
"#;

const KILLED: &str = r#"schema = 1
name = "killed"
question = "Who has the locks of the dead?"
seed = 1
[lock]
type = "fenced"
lease = "1500ms"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "100ms" }
counter = true
keys = { count = 6, dist = "uniform" }
duration = "6s"
processes = 2
clients = 40
wait = "20s"
[[fault]]
at = "1s"
kind = "kill_client9"
scope = "share:0.5"
[thresholds]
"overlap.count" = "== 0"
"lost_updates" = "== 0"
"fence.disorder" = "== 0"
"orphan.count" = "> 0"
"errors" = "== 0"
"#;

const DROPPED: &str = r#"schema = 1
name = "dropped"
question = "What does an acquire leave behind that is dropped?"
seed = 1
[lock]
type = "reentrant"
lease = "30s"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "2ms" }
keys = { count = 4, dist = "uniform" }
duration = "4s"
processes = 2
clients = 16
wait = "10s"
[[fault]]
at = "500ms"
for = "2s"
kind = "drop_future"
[thresholds]
"overlap.count" = "== 0"
"errors" = "== 0"
"#;

/// At a tenth of its times: frozen for longer than the lease; for less than a period; the rivals instead.
const HELD: &str = r#"schema = 1
name = "frozen-held"
question = "What does a frozen holder lose?"
seed = 1
scale = 0.1
[lock]
type = "fenced"
lease = "30s"
[workload]
model = "held"
hold = { kind = "fixed", mean = "3s" }
keys = { count = 20 }
duration = "2s"
[[fault]]
at = "5s"
for = "35s"
kind = "freeze_client"
scope = "holders"
[[fault]]
at = "5s"
for = "8s"
kind = "freeze_client"
scope = "holders"
[[fault]]
at = "5s"
for = "35s"
kind = "freeze_client"
scope = "rivals"
[thresholds]
"prediction.mismatches" = "== 0"
"stale.accepted" = "== 0"
[matrix]
"lock.policy" = ["naive-cancel", "deadline"]
"#;
