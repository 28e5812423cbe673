//! `lockbench policies` from the outside: a small grid, its demands, its refusals, its end in the middle.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use leasehold_bench::measure::{Cell, Outcome};
use leasehold_bench::results;
use rustix::process::Signal;
use tests::lockbench::{self, Folder, descendants, is_alive, signal};
use tests::{LONG, eventually};

#[test]
fn two_policies_in_two_faults_come_out_as_the_model_says() {
    let folder = Folder::new("policies");
    let run = || {
        let output = policies(
            &folder,
            "--policy naive-cancel,deadline --fault refuse/holders,swallow/holders --pause 15s --locks 20 --keep-evidence",
        );
        let outcome = results::read(&folder.path).unwrap();
        let unsafe_ones = cells(&outcome).iter().filter(|cell| cell.policy == "deadline");
        assert_eq!(
            unsafe_ones.map(|cell| cell.overlaps.count).sum::<u64>(),
            0,
            "{output:?}"
        );
        output
    };
    // A machine that is not quiet makes it no measurement (7), and no policy unsafe.
    let mut output = run();
    for _ in 0..4 {
        if output.status.code() == Some(7) {
            output = run();
        }
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let outcome = results::read(&folder.path).unwrap();
    let cells = cells(&outcome);
    let of: Vec<_> = cells
        .iter()
        .map(|cell| (cell.kind.name(), cell.policy.as_str()))
        .collect();
    assert_eq!(
        of,
        [
            ("refuse", "naive-cancel"),
            ("refuse", "deadline"),
            ("swallow", "naive-cancel"),
            ("swallow", "deadline")
        ]
    );
    for cell in cells {
        assert_eq!((cell.held, cell.mismatches), (20, 0), "{output:?}");
        match cell.policy.as_str() {
            // Half a lease: far too long for one attempt, far too short for the deadline.
            "naive-cancel" => assert!(cell.lost == 20 && cell.overlaps.count == 20, "{cell:?}"),
            _ => assert!(cell.lost == 0 && cell.overlaps.count == 0, "{cell:?}"),
        }
        // By the server: nobody told these holders that their leases had run out, and they worked on until the end.
        let exposure = cell.exposure.expect("the server's side is read by default");
        match cell.policy.as_str() {
            "naive-cancel" => assert!(exposure.count == 20 && exposure.max_ms > 300.0, "{cell:?}"),
            _ => assert_eq!(exposure.count, 0, "{cell:?}"),
        }
        assert_eq!(cell.fencing.stale_rejected, cell.overlaps.count, "the token tells");
    }
    for (index, round) in outcome.rounds.iter().enumerate() {
        let server = round.server.as_ref().expect("the server's side is read by default");
        // Forty locks of holders, and those that their rivals got.
        assert!(server.holds >= 60 && server.work_without_grant == 0, "{server:?}");
        assert!(
            server
                .offset_bound_us
                .is_some_and(|bound| (0.0..500.0).contains(&bound)),
            "{server:?}"
        );
        assert!(folder.path.join(format!("round-{}", index + 1)).is_dir());
    }
    let exposure = |policy: &str| outcome.metrics[&format!("exposure.max@{policy}")];
    assert_eq!(exposure("deadline"), Some(0.0));
    for broken in ["server.owned_twice", "server.tokens_that_fell"] {
        assert_eq!(outcome.metrics[broken], Some(0.0), "{broken}");
    }
    let demanded = outcome
        .thresholds
        .iter()
        .find(|threshold| threshold.metric == "exposure.max@deadline");
    assert!(demanded.is_some_and(|threshold| threshold.limit == "== 0ms" && threshold.holds));
    let table = String::from_utf8_lossy(&output.stdout);
    for said in [
        "refuse/holders, 15 s as 1.50 s",
        "at scale 0.1",
        "deadline lost 0 of 40 locks",
        "again: lockbench policies --policy naive-cancel,deadline",
    ] {
        assert!(table.contains(said), "no {said:?} in {table}");
    }
    let look_up = |round: &str, lock: &str| {
        let report = Command::new(lockbench::program())
            .arg("report")
            .arg(&folder.path)
            .args(["--round", round, "--lock", lock])
            .output()
            .unwrap();
        (report.status.code(), String::from_utf8(report.stderr).unwrap())
    };
    assert_eq!(look_up("2", "naive-cancel#7,deadline#7"), (Some(0), String::new()));
    let page = std::fs::read_to_string(folder.path.join(results::PAGE)).unwrap();
    let shown = page.split("looked up in round 2").nth(1).expect("a part of its own");
    let shown = shown.split("Lost locks").next().unwrap();
    assert!(
        shown.contains("naive-cancel #7") && shown.contains("deadline #7"),
        "{shown}"
    );
    for (round, lock, tip) in [
        ("3", "deadline#7", "the result has 2"),
        ("1", "hope#7", "there are naive-cancel, deadline"),
        ("1", "deadline#20", "held no lock 20"),
    ] {
        let (code, said) = look_up(round, lock);
        assert!(code == Some(3) && said.contains(tip), "{round} {lock}: {said}");
    }
}

#[test]
fn flags_that_name_nothing_known_are_refused_with_what_there_is() {
    let folder = Folder::new("policies-flags");
    for (flags, tip) in [
        ("--policy hope", "redisson-3.44"),
        ("--fault pause", "pending"),
        ("--fault refuse/nobody", "refuse/holders"),
        ("--pause 3", "write 500ms"),
        ("--scale 0.001", "after scale 0.001"),
        ("--kind none", "needs a lock that is renewed"),
        ("--reps 0", "1..=100"),
        ("--server-evidence replica", "aof, none"),
    ] {
        let output = policies(&folder, flags);
        assert_eq!(output.status.code(), Some(2), "{flags}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(tip), "{flags}: {said}");
    }
}

#[test]
fn a_real_client_without_what_it_needs_is_refused_with_what_to_install() {
    let folder = Folder::new("policies-no-java");
    let redis = std::env::var_os("REDIS_SERVER").map_or_else(|| which("redis-server"), PathBuf::from);
    let output = command(&folder, "--policy redisson@4.3.0")
        .env("PATH", &folder.path)
        .env("REDIS_SERVER", redis)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("redisson@4.3.0 needs a JDK") && said.contains("install it"),
        "{said}"
    );
}

#[test]
fn ctrl_c_in_the_middle_leaves_what_was_measured_and_no_process() {
    let folder = Folder::new("policies-ctrl-c");
    let mut tool = start(
        &folder,
        "--policy deadline --fault delivered/all --pause 1s --reps 50 --locks 3",
    );
    // The second window has begun, so the first is measured.
    eventually(LONG, || folder.path.join("round-2/evidence-1.bin").exists());
    let started = descendants(tool.id());
    signal(tool.id(), Signal::INT);
    assert_eq!(tool.wait().unwrap().code(), Some(130));
    let outcome = results::read(&folder.path).unwrap();
    assert!(outcome.interrupted && outcome.grid.as_ref().unwrap().windows >= 1);
    assert_eq!(cells(&outcome).len(), 1);
    assert!(folder.path.join(results::PAGE).exists());
    eventually(LONG, || started.iter().all(|pid| !is_alive(*pid)));
}

fn which(program: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.exists());
    found.unwrap()
}

fn command(folder: &Folder, flags: &str) -> Command {
    let mut command = Command::new(lockbench::program());
    command
        .arg("policies")
        .arg("-o")
        .arg(&folder.path)
        .args(flags.split(' '));
    command
}

fn policies(folder: &Folder, flags: &str) -> Output {
    command(folder, flags).output().unwrap()
}

fn start(folder: &Folder, flags: &str) -> Child {
    let mut command = command(folder, flags);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn cells(outcome: &Outcome) -> &[Cell] {
    &outcome.grid.as_ref().unwrap().cells
}
