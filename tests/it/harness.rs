//! The load tool from the outside: its program, its exit codes, its report.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use leasehold_bench::evidence::Kind;
use leasehold_bench::measure::Outcome;
use leasehold_bench::results;
use rustix::process::Signal;
use tests::lockbench::{self, Folder, descendants, is_alive, signal};
use tests::{LONG, direct, eventually, fresh_server, keys};

#[test]
fn a_tiny_scenario_runs_from_end_to_end() {
    let folder = Folder::new("end-to-end");
    let output = run(&folder, TINY, &[]);
    let outcome = outcome(&output, &folder, 0);
    let load = outcome.load.expect("a closed run measures load");
    assert!(load.successes > 0 && load.errors.is_empty(), "{load:?}");
    assert_eq!(outcome.checked.overlaps.count, 0);
    assert!(outcome.checked.intervals >= load.successes);
    let little = load.little.expect("nobody interrupted it");
    // Six clients; a busy machine lets them begin late.
    assert!((0.1..6.01).contains(&little.mean_in_system), "{little:?}");
    assert!(little.deviation() < 0.01, "{little:?}");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table.contains("locks taken") && table.contains("again: lockbench run"),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no colour without a terminal");
}

#[test]
fn a_report_made_again_is_the_same_to_the_byte() {
    let folder = Folder::new("again");
    outcome(&run(&folder, TINY, &[]), &folder, 0);
    let pages = || [results::PAGE, results::SUMMARY].map(|name| std::fs::read(folder.path.join(name)).unwrap());
    let first = pages();
    let again = Command::new(lockbench::program())
        .arg("report")
        .arg(&folder.path)
        .output()
        .unwrap();
    assert!(again.status.success(), "{again:?}");
    assert_eq!(first, pages());
}

#[test]
fn the_same_seed_asks_for_the_same_locks_in_the_same_order() {
    let owners = |name| {
        let folder = Folder::new(name);
        // On a busy machine the generator may be late (exit code 7), the plan is the same all the same.
        let output = run(&folder, OPEN, &["--seed", "7"]);
        assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
        assert_eq!(results::read(&folder.path).unwrap().metrics["dropped"], Some(0.0));
        let records = leasehold_bench::evidence::read(&folder.path.join("evidence-0.bin")).unwrap();
        // A worker also writes down when it ran late.
        let taken = records.iter().filter(|record| record.kind == Kind::Acquired);
        let mut asked: Vec<_> = taken.map(|record| (record.owner, record.key)).collect();
        asked.sort_unstable();
        asked
    };
    assert_eq!(owners("seed-one"), owners("seed-two"));
}

#[test]
fn littles_law_holds_where_requests_are_dropped_time_out_and_outlast_the_measured_time() {
    let folder = Folder::new("little");
    let overrides = [
        "workload.arrival={ kind = \"flash\", base = \"20/s\", peak = \"300/s\", rise = \"100ms\", hold = \"500ms\", decay = \"100ms\" }",
        "workload.keys={ count = 1, dist = \"single\" }",
        "workload.hold={ kind = \"fixed\", mean = \"40ms\" }",
        "workload.wait=500ms",
        "workload.clients=30",
    ];
    let arguments: Vec<_> = overrides.iter().flat_map(|line| ["--set", *line]).collect();
    let output = run(&folder, OPEN, &arguments);
    // On a busy machine the generator may be late (exit code 7).
    assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
    let outcome = results::read(&folder.path).unwrap();
    let load = outcome.load.expect("an open run measures load");
    assert!(load.dropped > 0 && load.timeouts > 0 && load.successes > 0, "{load:?}");
    let little = load.little.expect("nobody interrupted it");
    assert!(little.deviation() < 0.01, "{little:?}");
    assert!(
        little.edges < 0.0,
        "some were there when the measured time ended: {little:?}"
    );
    let asked = load.successes + load.timeouts + load.errors.values().sum::<u64>();
    assert_eq!((little.rate_per_s * load.window_s).round() as u64, asked, "{little:?}");
}

#[test]
fn without_a_lock_the_checker_finds_overlaps_and_the_run_is_unsafe() {
    let folder = Folder::new("no-lock");
    let output = run(
        &folder,
        TINY,
        &["--set", "lock.type=none", "--set", "workload.keys.count=1"],
    );
    let outcome = outcome(&output, &folder, 4);
    assert!(outcome.checked.overlaps.count > 0);
    assert!(outcome.verdict.starts_with("Unsafe"), "{}", outcome.verdict);
}

#[test]
fn the_demo_shows_overlaps_under_naive_cancel_and_none_under_deadline() {
    let folder = Folder::new("demo");
    let output = lockbench_run(&folder, "pause-demo", &["--quick"]).output().unwrap();
    let outcome = results::read(&folder.path).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let metric = |name: &str| outcome.metrics.get(name).copied().flatten();
    assert_eq!(metric("overlap.count@deadline"), Some(0.0), "{output:?}");
    assert!(metric("overlap.count@naive-cancel") > Some(0.0), "{output:?}");
    let row = &outcome.rounds[0].policies[0];
    assert_eq!((row.policy.as_str(), row.lost), ("naive-cancel", row.held));
    assert!(outcome.rounds[0].overhead.commands > 0.0, "renewals cost something");
}

#[test]
fn a_fault_under_load_is_seen_and_work_goes_on_after_it() {
    let folder = Folder::new("fault");
    let scenario = format!("{TINY}\n[[fault]]\nat = \"500ms\"\nfor = \"400ms\"\nkind = \"pause_write\"\n");
    let scenario = scenario.replace("duration = \"500ms\"", "duration = \"2500ms\"");
    let output = run(&folder, &scenario, &[]);
    let outcome = results::read(&folder.path).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(outcome.faults.len(), 1);
    assert!(outcome.faults[0].observed_ms >= 390.0, "{:?}", outcome.faults);
    let load = outcome.load.unwrap();
    assert!(
        load.acquire.max_ms > Some(300.0),
        "some request waited for the fault's end"
    );
    assert!(
        load.series.iter().any(|second| second.second >= 1 && second.count > 0),
        "work goes on"
    );
    assert_eq!(outcome.checked.overlaps.count, 0);
}

#[test]
fn a_wrong_scenario_is_refused_with_line_and_column() {
    let folder = Folder::new("wrong");
    let output = run(&folder, &TINY.replace("duration", "durration"), &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("scenario.toml:12:1: unknown key \"durration\"; did you mean \"duration\"?"),
        "{said}"
    );
    let output = lockbench_run(&folder, "hotkey", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("hot-key"),
        "{output:?}"
    );
}

#[test]
fn a_redis_that_is_not_there_is_an_error_of_the_environment() {
    let folder = Folder::new("unreachable");
    let output = run(&folder, TINY, &["--redis", "unix:///nowhere/redis.sock"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("cannot be reached") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_redis_of_the_user_keeps_its_keys_and_gets_no_fault_unasked() {
    let folder = Folder::new("theirs");
    let server = fresh_server();
    let _: () = redis::cmd("SET")
        .arg("theirs")
        .arg("precious")
        .query(&mut direct(&server))
        .unwrap();
    let url = server.url();
    let with_fault = format!("{TINY}\n[[fault]]\nat = \"100ms\"\nfor = \"100ms\"\nkind = \"pause_write\"\n");
    let output = run(&folder, &with_fault, &["--redis", &url]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--allow-faults"),
        "{output:?}"
    );
    outcome(&run(&folder, TINY, &["--redis", &url]), &folder, 0);
    assert_eq!(keys(&server), ["theirs"]);
}

#[test]
fn ctrl_c_writes_a_partial_report_and_leaves_no_process() {
    let folder = Folder::new("ctrl-c");
    let mut tool = start_long(&folder);
    let started = descendants(tool.id());
    signal(tool.id(), Signal::INT);
    let mut status = None;
    eventually(LONG, || {
        status = tool.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
    let outcome = results::read(&folder.path).unwrap();
    assert!(outcome.interrupted && outcome.load.unwrap().successes > 0);
    eventually(LONG, || started.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn ctrl_c_in_a_pause_leaves_no_server_paused() {
    let folder = Folder::new("ctrl-c-pause");
    let server = fresh_server();
    let fault = "\n[[fault]]\nat = \"200ms\"\nfor = \"2m\"\nkind = \"pause_write\"\n";
    let scenario = TINY.replace("duration = \"500ms\"", "duration = \"5m\"") + fault;
    let mut tool = start(&folder, &scenario, &["--redis", &server.url(), "--allow-faults"]);
    let evidence = folder.path.join("evidence-0.bin");
    let length = || std::fs::metadata(&evidence).map_or(0, |file| file.len());
    let mut last = 0;
    // Paused: nobody writes evidence any more, though all work goes on to be wanted.
    eventually(LONG, || {
        std::thread::sleep(Duration::from_millis(300));
        let before = std::mem::replace(&mut last, length());
        last > 0 && last == before
    });
    signal(tool.id(), Signal::INT);
    assert_eq!(tool.wait().unwrap().code(), Some(130));
    let mut connection = direct(&server);
    connection.set_read_timeout(Some(LONG)).unwrap();
    let _: () = redis::cmd("SET")
        .arg("open")
        .arg("again")
        .query(&mut connection)
        .unwrap();
}

#[test]
fn a_killed_coordinator_leaves_no_worker_and_no_server() {
    let folder = Folder::new("killed");
    let mut tool = start_long(&folder);
    let started = descendants(tool.id());
    signal(tool.id(), Signal::KILL);
    tool.wait().unwrap();
    eventually(LONG, || started.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_report_opens_in_a_browser_without_errors() {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .find(|name| is_installed(name))
    else {
        eprintln!("no chromium here: the report was not opened");
        return;
    };
    let folder = Folder::new("browser");
    outcome(&run(&folder, TINY, &[]), &folder, 0);
    let page = std::fs::canonicalize(folder.path.join(results::PAGE)).unwrap();
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args(["--enable-logging=stderr", "--timeout=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path.join("browser").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains("</svg>") && dom.contains("How to repeat it"), "{output:?}");
    let console = String::from_utf8_lossy(&output.stderr);
    assert!(!console.contains(":CONSOLE"), "{console}");
}

fn lockbench_run(folder: &Folder, scenario: &str, options: &[&str]) -> Command {
    let mut command = Command::new(lockbench::program());
    command
        .arg("run")
        .arg(scenario)
        .arg("-o")
        .arg(&folder.path)
        .args(options);
    command
}

fn run(folder: &Folder, scenario: &str, options: &[&str]) -> Output {
    let file = folder.path.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    lockbench_run(folder, &file.display().to_string(), options)
        .output()
        .unwrap()
}

#[track_caller]
fn outcome(output: &Output, folder: &Folder, code: i32) -> Outcome {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    results::read(&folder.path).unwrap()
}

fn start(folder: &Folder, scenario: &str, options: &[&str]) -> Child {
    let file = folder.path.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let mut command = lockbench_run(folder, &file.display().to_string(), options);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A run far longer than the test, at the point where its workers work.
fn start_long(folder: &Folder) -> Child {
    let tool = start(folder, &TINY.replace("duration = \"500ms\"", "duration = \"5m\""), &[]);
    let evidence = || std::fs::metadata(folder.path.join("evidence-0.bin")).map_or(0, |file| file.len());
    eventually(LONG, || evidence() > 48 * 100);
    tool
}

fn is_installed(program: &str) -> bool {
    let probe = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

const TINY: &str = r#"schema = 1
name = "tiny"
question = "Does it run?"
seed = 1
[lock]
type = "reentrant"
lease = "5s"
[workload]
model = "closed"
hold = { kind = "fixed", mean = "1ms" }
keys = { count = 5, dist = "uniform" }
duration = "500ms"
processes = 2
clients = 6
wait = "10s"
[thresholds]
"overlap.count" = "== 0"
"errors" = "== 0"
"#;

const OPEN: &str = r#"schema = 1
name = "open"
question = "Is the plan the same?"
[lock]
type = "reentrant"
[workload]
model = "open"
arrival = { kind = "constant", rate = "200/s" }
hold = { kind = "exp", mean = "1ms" }
keys = { count = 50 }
duration = "1s"
processes = 1
# As many as arrive in all: a busy machine drops none.
clients = 1000
"#;
