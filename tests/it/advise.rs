//! `lockbench advise` from the outside: an answer that cites what was measured, no answer where nothing was, and what cannot be asked.

use std::process::{Command, Output};

use leasehold::LockKind;
use leasehold_bench::advise::{Advice, Answer, GENERATOR, Row, SCRIPT, WRITERS_FIRST, judge};
use leasehold_bench::results;
use leasehold_bench::scenario::LockType;
use tests::lockbench::{Folder, program};

#[test]
fn a_stock_is_counted_down_by_one_script_without_a_lock() {
    let folder = Folder::new("advise-stock");
    let output = advise(
        &folder,
        "stock-decrement --kinds fenced --for 1s --set workload.warm_up=200ms",
    );
    let answer = answer(&folder, &output);
    let names: Vec<_> = answer.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["reentrant", "fenced", SCRIPT]);
    let script = row(&answer, SCRIPT);
    assert!(script.get("acquired").unwrap() > 0.0);
    // As many are gone from the stock as were sold.
    assert_eq!(script.get("lost_updates"), Some(0.0));
    assert!(script.get("commands").unwrap() < row(&answer, "fenced").get("commands").unwrap());
    let advice = advice_of(&answer);
    assert_eq!(
        (advice.take.as_str(), advice.lock),
        ("no lock: one atomic script", None)
    );
    assert_eq!(advice.otherwise.unwrap().take, "fenced");
}

#[test]
fn readers_that_are_many_are_given_a_lock_that_they_share() {
    let folder = Folder::new("advise-readers");
    let output = advise(
        &folder,
        "read-mostly --kinds read_write --for 2s --set workload.warm_up=200ms",
    );
    let answer = answer(&folder, &output);
    let (shared, plain) = (row(&answer, "read_write"), row(&answer, "reentrant"));
    // Held 20 ms each time, so a lock for one holder bears no more than 50 a second, readers or not.
    assert!(plain.get("throughput").unwrap() <= 50.0, "{plain:?}");
    assert_eq!(plain.get("read.share"), Some(0.0), "nobody shares it");
    assert!((0.7..1.0).contains(&shared.get("read.share").unwrap()), "{shared:?}");
    let advice = advice_of(&answer);
    assert_eq!(advice.lock, Some(LockType::Kind(LockKind::ReadWrite)));
    let first = row(&answer, WRITERS_FIRST).get("fairness.overtakes.max").unwrap();
    let readers = shared.get("fairness.overtakes.max").unwrap();
    assert!(first < readers, "fewer pass a writer: {first}, {readers}");
    let said = String::from_utf8_lossy(&output.stdout);
    for part in [
        "which lock for read-mostly (closed loop, 20 clients; 2s each; seed 42)",
        "a lock that nobody else wants",
        "again: lockbench advise read-mostly --kinds read_write --for 2s",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let summary = std::fs::read_to_string(folder.path.join(results::SUMMARY)).unwrap();
    assert!(summary.contains("which lock for read-mostly"));
    let left = std::fs::read_dir(&folder.path).unwrap().count();
    assert_eq!(left, 2, "no evidence is left");
}

#[test]
fn several_names_cost_one_script() {
    let folder = Folder::new("advise-multi");
    let arguments = "uncontended --kinds multi --for 500ms --set workload.warm_up=200ms --set guards.keys_together=3";
    let answer = answer(&folder, &advise(&folder, arguments));
    assert_eq!(advice_of(&answer).take, "multi");
    // Nobody waits: one command to take all three, one to give them back.
    let commands = row(&answer, "multi").get("commands").unwrap();
    assert!((1.9..2.5).contains(&commands), "{commands}");
}

#[test]
fn advice_is_judged_again_from_what_was_measured() {
    let folder = Folder::new("advise-again");
    let output = advise(
        &folder,
        "uncontended --kinds spin --for 300ms --set workload.warm_up=200ms",
    );
    let mut answer = answer(&folder, &output);
    // The rules are asked again, not what they said.
    for row in answer.rows.iter_mut().chain(&mut answer.beside) {
        row.flaws.clear();
    }
    answer
        .beside
        .last_mut()
        .unwrap()
        .metrics
        .insert("throughput".to_owned(), Some(1e9));
    answer.scenario.guards.money = true;
    let text = serde_json::to_string(&answer).unwrap();
    std::fs::write(folder.path.join(results::ADVICE), text).unwrap();
    let again = Command::new(program())
        .arg("report")
        .arg(&folder.path)
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    let advice = results::read_advice(&folder.path).unwrap().advice.unwrap();
    assert!(advice.take.contains("a lease longer than the work"), "{advice:?}");
    let summary = std::fs::read_to_string(folder.path.join(results::SUMMARY)).unwrap();
    assert!(summary.contains("Money is at stake"), "{summary}");
}

#[test]
fn a_lock_that_must_outlive_its_master_is_granted_by_three() {
    let folder = Folder::new("advise-quorum");
    let arguments =
        "uncontended --kinds spin --for 500ms --set workload.warm_up=200ms --set guards.independent_masters=true";
    let answer = answer(&folder, &advise(&folder, arguments));
    assert_eq!(advice_of(&answer).take, "quorum");
    let commands = |name| row(&answer, name).get("commands").unwrap();
    assert!(commands("quorum") > 2.0 * commands("reentrant"), "{answer:?}");
}

#[test]
fn what_nobody_could_measure_bears_no_recommendation() {
    let folder = Folder::new("advise-nothing");
    // A server without memory refuses every lock.
    let output = advise(
        &folder,
        "hot-key --kinds fair --for 300ms --set workload.warm_up=100ms --set workload.wait=200ms --set redis.config.maxmemory=1kb",
    );
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let answer = answer(&folder, &output);
    assert_eq!(answer.advice, None);
    let said = String::from_utf8_lossy(&output.stdout);
    for part in ["Not a measurement: fair: nobody got the lock.", "no recommendation"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}

#[test]
fn what_cannot_be_answered_is_refused_with_what_to_ask() {
    let folder = Folder::new("advise-flags");
    for (arguments, tip) in [
        ("hot-key --kinds fare", "use one of reentrant, fair, read_write"),
        ("hot-key --for 1ms", "use at least 200ms"),
        ("hot-key --for long", "write 500ms"),
        ("pause-demo", "open or closed workload"),
        ("hot-kay", "hot-key"),
        ("hot-key --set guards.skript=true", "did you mean \"script\"?"),
        ("hot-key --set guards.keys_together=0", "not in 1"),
        ("hot-key --set lock.writers_first=true", "readers that can go behind"),
        (
            "hot-key --set guards.independent_masters=true --redis redis://127.0.0.1:1",
            "one server is no quorum",
        ),
        (
            "hot-key --set lock.type=quorum --redis redis://127.0.0.1:1",
            "one server is no quorum",
        ),
    ] {
        let output = advise(&folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(tip), "{arguments}: {said}");
    }
    let output = advise(&folder, "hot-key --redis redis://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

fn advise(folder: &Folder, arguments: &str) -> Output {
    Command::new(program())
        .arg("advise")
        .args(arguments.split(' '))
        .arg("-o")
        .arg(&folder.path)
        .output()
        .unwrap()
}

/// The answer as it was written. Every reason holds the numbers that it cites, and they are those of the rows.
fn answer(folder: &Folder, output: &Output) -> Answer {
    // 7: a busy machine stands still too long to call that a measurement.
    assert!(matches!(output.status.code(), Some(0 | 7)), "{output:?}");
    let text = std::fs::read_to_string(folder.path.join(results::ADVICE)).unwrap();
    let answer: Answer = serde_json::from_str(&text).unwrap();
    assert_eq!(answer.schema, results::SCHEMA);
    assert_eq!(answer.exit, output.status.code().unwrap() as u8);
    assert_eq!(answer.advice.is_some(), answer.exit == 0);
    answer
}

/// The advice; of a busy machine that which its numbers would bear if it had been a quiet one.
fn advice_of(answer: &Answer) -> Advice {
    let mut rows: Vec<Row> = answer.rows.iter().chain(&answer.beside).cloned().collect();
    for row in &mut rows {
        row.flaws.clear();
        if row.name == GENERATOR {
            row.metrics.insert("throughput".to_owned(), Some(1e9));
        }
    }
    let judgement = judge(&answer.scenario, &rows);
    let advice = judgement.advice.clone().unwrap_or_else(|| panic!("{judgement:?}"));
    assert!(answer.advice.is_none() || answer.advice.as_ref() == Some(&advice));
    for clause in &advice.because {
        assert!(!clause.measured.is_empty(), "{clause:?}");
        for number in &clause.measured {
            assert!(
                clause.text.contains(&number.to_string()),
                "{number} is not in {clause:?}"
            );
            let row = rows.iter().find(|row| row.name == number.row).unwrap();
            assert_eq!(row.get(&number.metric), Some(number.value));
        }
    }
    advice
}

fn row<'a>(answer: &'a Answer, name: &str) -> &'a Row {
    answer.rows.iter().find(|row| row.name == name).unwrap()
}
