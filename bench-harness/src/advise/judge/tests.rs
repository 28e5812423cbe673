//! Each rule at its boundary, on numbers made up for it.

use std::collections::BTreeMap;

use super::*;

/// What a change does to the numbers: row, metric, value.
type Change = (&'static str, &'static str, f64);

/// One key that everybody wants, with a lease of 30 s; all kinds fare alike.
fn rows(changes: &[Change]) -> Vec<Row> {
    let lock = [
        ("throughput", 100.0),
        ("acquire.p50", 10.0),
        ("acquire.p99", 50.0),
        ("acquire.max", 80.0),
        ("commands", 2.1),
        ("acquired", 1_000.0),
        ("timeouts", 0.0),
        ("hold.mean", 5.0),
        ("hold.max", 9.0),
        ("hand_over.mean", 0.5),
        ("read.share", 0.0),
        ("contended.share", 0.9),
        ("fairness.starved", 0.0),
        ("fairness.overtakes.p99", 3.0),
        ("fairness.overtakes.max", 9.0),
        ("fence.disorder", 0.0),
        ("overlap.count", 0.0),
        ("lost_updates", 0.0),
    ];
    let names = [
        PLAIN,
        FAIR,
        SPIN,
        FENCED,
        READ_WRITE,
        WRITERS_FIRST,
        MULTI,
        QUORUM,
        SCRIPT,
    ];
    let mut rows: Vec<Row> = names.map(|name| row(name, &lock)).into();
    rows.push(row(FREE, &[("acquire.p50", 0.2)]));
    rows.push(row(GENERATOR, &[("throughput", 100_000.0)]));
    for (name, metric, value) in changes {
        let row = rows.iter_mut().find(|row| row.name == *name).unwrap();
        row.metrics.insert((*metric).to_owned(), Some(*value));
    }
    rows
}

fn row(name: &str, numbers: &[(&str, f64)]) -> Row {
    let numbers = numbers
        .iter()
        .map(|(metric, value)| ((*metric).to_owned(), Some(*value)));
    Row {
        name: name.to_owned(),
        metrics: numbers.collect::<BTreeMap<_, _>>(),
        flaws: Vec::new(),
    }
}

/// The judgement, whose every clause must hold its numbers, and no others than those that were measured.
fn judged(guards: &str, changes: &[Change]) -> Judgement {
    let overrides: Vec<String> = guards.split_whitespace().map(str::to_owned).collect();
    let scenario = Scenario::read("hot-key", &overrides).unwrap();
    let rows = rows(changes);
    let judgement = judge(&scenario, &rows);
    let advice = judgement.advice.iter();
    let all = advice.flat_map(|advice| std::iter::once(advice).chain(advice.otherwise.as_deref()));
    for clause in all.flat_map(|advice| &advice.because).chain(&judgement.dangers) {
        assert!(!clause.measured.is_empty() && !clause.text.contains("{}"), "{clause:?}");
        for number in &clause.measured {
            assert!(
                clause.text.contains(&number.to_string()),
                "{number} is not in {clause:?}"
            );
            let row = rows.iter().find(|row| row.name == number.row).unwrap();
            assert_eq!(row.get(&number.metric), Some(number.value));
        }
    }
    judgement
}

fn advised(guards: &str, changes: &[Change]) -> Advice {
    let judgement = judged(guards, changes);
    assert_eq!(judgement.exit, exit::GOOD, "{judgement:?}");
    judgement.advice.unwrap()
}

fn taken(guards: &str, changes: &[Change]) -> String {
    advised(guards, changes).take
}

fn reasons(advice: &Advice) -> String {
    let texts = advice.because.iter().map(|clause| clause.text.as_str());
    texts.collect::<Vec<_>>().join("\n")
}

#[test]
fn where_nothing_asks_for_more_the_plain_lock_will_do() {
    let advice = advised("", &[]);
    assert_eq!(advice.take, "reentrant");
    assert_eq!(advice.lock, Some(LockType::Kind(LockKind::Reentrant)));
    assert!(
        reasons(&advice).contains("fair 100/s with 10 ms, 0 starved"),
        "{advice:?}"
    );
    assert_eq!(advice.otherwise, None);
}

#[test]
fn readers_share_from_four_of_five_on_if_work_is_no_shorter_than_a_hand_over_and_something_is_gained() {
    let readers = |share, hold, throughput| {
        taken(
            "",
            &[
                (READ_WRITE, "read.share", share),
                (READ_WRITE, "hold.mean", hold),
                (READ_WRITE, "throughput", throughput),
            ],
        )
    };
    assert_eq!(readers(0.8, 0.5, 110.1), "read_write");
    assert_eq!(readers(0.79, 0.5, 110.1), "reentrant", "too few readers");
    assert_eq!(readers(0.8, 0.49, 110.1), "reentrant", "a hand-over is longer");
    assert_eq!(readers(0.8, 0.5, 109.0), "reentrant", "nothing gained");
    let sooner = [(READ_WRITE, "read.share", 0.9), (READ_WRITE, "acquire.p99", 45.0)];
    assert_eq!(taken("", &sooner), "read_write", "an open loop gains time");
}

#[test]
fn writers_come_first_where_they_starve_and_that_cures_it_and_readers_still_gain() {
    let taken = |starved, cured, throughput| {
        let numbers = [
            (READ_WRITE, "read.share", 0.9),
            (READ_WRITE, "throughput", 400.0),
            (READ_WRITE, "fairness.starved", starved),
            (WRITERS_FIRST, "fairness.starved", cured),
            (WRITERS_FIRST, "throughput", throughput),
        ];
        let advice = advised("", &numbers);
        let said = reasons(&advice);
        assert!(
            said.contains(&format!("and {starved} starved (reentrant: 3, 9 and 0)")),
            "{said}"
        );
        assert!(said.contains(&format!("that is 3, 9 and {cured}")), "{said}");
        advice.take
    };
    let first = "read_write, with writers_first()";
    assert_eq!(taken(2.0, 0.0, 111.0), first);
    assert_eq!(taken(0.0, 0.0, 111.0), "read_write", "nobody starves");
    assert_eq!(taken(2.0, 2.0, 111.0), "read_write", "it helps nobody");
    assert_eq!(taken(2.0, 0.0, 109.0), "read_write", "nothing is left of the gain");
}

#[test]
fn whoever_starves_is_helped_by_a_queue_and_hears_its_price() {
    let starved = |plain, fair| {
        let numbers = [
            (PLAIN, "fairness.starved", plain),
            (FAIR, "fairness.starved", fair),
            (FAIR, "acquire.p50", 25.0),
        ];
        advised("", &numbers)
    };
    let advice = starved(1.0, 0.0);
    assert_eq!(advice.take, "fair");
    assert!(reasons(&advice).contains("(×2.50 at p50)"), "{advice:?}");
    assert_eq!(starved(0.0, 0.0).take, "reentrant");
    assert_eq!(starved(4.0, 4.0).take, "reentrant", "it helps nobody");
}

#[test]
fn who_came_first_matters_only_where_the_scenario_says_so() {
    let queue = [(FAIR, "fairness.overtakes.p99", 0.0)];
    assert_eq!(taken("", &queue), "reentrant");
    assert_eq!(taken("guards.order=true", &queue), "fair");
    assert_eq!(taken("guards.order=true", &[]), "fair", "no worse, and promised");
    let worse = [(FAIR, "fairness.overtakes.p99", 4.0)];
    assert_eq!(taken("guards.order=true", &worse), "reentrant");
}

#[test]
fn work_shorter_than_two_round_trips_spins_if_that_is_no_slower() {
    let short = |hold, spin| taken("", &[(PLAIN, "hold.mean", hold), (SPIN, "acquire.p99", spin)]);
    assert_eq!(short(0.39, 50.0), "spin");
    assert_eq!(short(0.4, 50.0), "reentrant");
    assert_eq!(short(0.39, 50.1), "reentrant");
    let slower = [(PLAIN, "hold.mean", 0.39), (SPIN, "throughput", 94.0)];
    let advice = advised("", &slower);
    assert_eq!(advice.take, "reentrant");
    assert!(reasons(&advice).contains("let one script do the work"), "{advice:?}");
}

#[test]
fn accepted_tokens_are_used_and_order_goes_before_them() {
    assert_eq!(taken("guards.tokens=true", &[]), "fenced");
    assert_eq!(taken("guards.tokens=true guards.order=true", &[]), "fair");
}

#[test]
fn work_longer_than_the_lease_or_money_takes_tokens_and_a_deadline() {
    let fenced = "fenced, under the policy deadline";
    let bare = "reentrant, under the policy deadline, with a lease longer than the work";
    let longest = |ms| [(PLAIN, "hold.max", ms), (FENCED, "hold.max", ms)];
    assert_eq!(taken("guards.tokens=true", &longest(30_001.0)), fenced);
    assert_eq!(taken("guards.tokens=true", &longest(30_000.0)), "fenced");
    assert_eq!(taken("", &longest(30_001.0)), bare);
    assert_eq!(taken("", &longest(30_000.0)), "reentrant");
    assert_eq!(
        taken("guards.money=true guards.tokens=true guards.order=true", &[]),
        fenced
    );
    assert_eq!(taken("guards.money=true", &[]), bare);
}

#[test]
fn several_names_are_taken_in_one_step() {
    assert_eq!(taken("guards.keys_together=2", &[]), "multi");
    assert_eq!(taken("guards.keys_together=1", &[]), "reentrant");
    let said = reasons(&advised(
        "guards.keys_together=3 guards.money=true",
        &[(MULTI, "commands", 2.3)],
    ));
    assert!(said.contains("All 3 names") && said.contains("2.30 commands"), "{said}");
}

#[test]
fn no_lock_is_the_answer_where_one_script_does_the_work_no_slower() {
    let advice = advised("guards.script=true guards.tokens=true", &[(SCRIPT, "commands", 1.0)]);
    assert_eq!(
        (advice.take.as_str(), advice.lock),
        ("no lock: one atomic script", None)
    );
    let said = reasons(&advice);
    assert!(
        said.contains("0 of 1000 updates are missing") && said.contains("It is 1 commands"),
        "{said}"
    );
    assert_eq!(advice.otherwise.unwrap().take, "fenced");
    assert_eq!(
        taken("guards.script=true", &[(SCRIPT, "throughput", 95.0)]),
        "no lock: one atomic script"
    );
    assert_eq!(
        taken("guards.script=true", &[(SCRIPT, "throughput", 94.9)]),
        "reentrant"
    );
    assert_eq!(
        taken("guards.script=true", &[(SCRIPT, "acquire.p99", 50.1)]),
        "reentrant"
    );
}

#[test]
fn no_lock_is_the_answer_where_a_unique_key_refuses_the_second() {
    let advice = advised("guards.unique=true guards.money=true", &[]);
    assert_eq!((advice.take.as_str(), advice.lock), ("no lock: a unique key", None));
    assert!(reasons(&advice).contains("a round trip, 0.20 ms"), "{advice:?}");
    assert!(
        advice
            .otherwise
            .unwrap()
            .take
            .starts_with("reentrant, under the policy deadline")
    );
}

#[test]
fn no_lock_is_the_answer_where_few_meet_and_a_version_refuses_the_second() {
    let few = advised("guards.versions=true", &[(PLAIN, "contended.share", 0.05)]);
    assert_eq!((few.take.as_str(), few.lock), ("no lock: an optimistic version", None));
    let many = advised("guards.versions=true", &[(PLAIN, "contended.share", 0.06)]);
    assert_eq!(many.take, "reentrant");
    assert!(reasons(&many).contains("would not do: a share of 0.06"), "{many:?}");
}

#[test]
fn a_lock_that_must_outlive_its_master_is_a_quorum_and_what_it_lacks_is_said() {
    let guards =
        "guards.independent_masters=true guards.keys_together=2 guards.order=true guards.tokens=true guards.money=true";
    let advice = advised(guards, &[(QUORUM, "commands", 6.3), (QUORUM, "fairness.starved", 1.0)]);
    assert_eq!(advice.take, "quorum");
    let said = reasons(&advice);
    for part in [
        "6.30 commands a lock go to three masters",
        "take the 2 in sorted order",
        "It keeps no order: 3 came later",
        "It numbers no holders",
        "Money is at stake",
        "that got quorum, 1 waited",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let bare = reasons(&advised("guards.independent_masters=true", &[]));
    let alike = [(QUORUM, "fairness.starved", 1.0), (FAIR, "fairness.starved", 1.0)];
    assert!(
        !reasons(&advised("guards.independent_masters=true", &alike)).contains("that got fair"),
        "no better off"
    );
    for part in ["sorted order", "no order", "no holders", "Money", "that got quorum"] {
        assert!(!bare.contains(part), "{part:?} in {bare}");
    }
}

#[test]
fn a_key_that_is_never_free_is_said_to_be_the_limit() {
    // 5.5 ms a turn: 181.8 a second, of which four fifths are 145.5.
    let never_free = |done| reasons(&advised("", &[(PLAIN, "throughput", done)])).contains("182 a second in all");
    assert!(never_free(145.6));
    assert!(!never_free(145.4));
}

#[test]
fn whoever_has_nothing_to_wait_for_is_told_to_try_once() {
    let once = |wait: &str, refused| {
        let numbers = [(PLAIN, "timeouts", refused), (PLAIN, "hold.mean", 100.0)];
        reasons(&advised(&format!("workload.wait={wait}"), &numbers)).contains("Try once")
    };
    assert!(once("99ms", 1_001.0));
    assert!(!once("99ms", 1_000.0));
    assert!(!once("100ms", 1_001.0));
    // What is meant to be busy is no limit to be lifted.
    let busy = [
        (PLAIN, "timeouts", 1_001.0),
        (PLAIN, "hold.mean", 100.0),
        (PLAIN, "throughput", 10.0),
    ];
    let said = reasons(&advised("workload.wait=50ms", &busy));
    assert!(
        said.contains("Try once") && !said.contains("hardly ever free"),
        "{said}"
    );
}

#[test]
fn an_overlap_is_dangerous_under_a_lock_and_not_without_one() {
    for (name, count) in [(FAIR, 1), (WRITERS_FIRST, 1), (SCRIPT, 1), (GENERATOR, 0), (FREE, 0)] {
        let numbers = [("overlap.count", 3.0), ("acquired", 9.0)];
        assert_eq!(dangers(&row(name, &numbers)).len(), count, "{name}");
    }
}

#[test]
fn what_is_no_measurement_bears_no_recommendation() {
    let scenario = Scenario::read("hot-key", &[]).unwrap();
    let mut flawed = rows(&[]);
    flawed[2].flaws.push("the machine stood still".to_owned());
    let judgement = judge(&scenario, &flawed);
    assert_eq!((judgement.exit, &judgement.advice), (exit::INVALID, &None));
    assert_eq!(judgement.invalid, ["spin: the machine stood still"]);
    // Five times what a lock or the script did, or nearly.
    assert_eq!(judged("", &[(GENERATOR, "throughput", 475.1)]).exit, exit::GOOD);
    let slow = judged("", &[(GENERATOR, "throughput", 474.9)]);
    assert_eq!((slow.exit, slow.advice), (exit::INVALID, None));
    let nothing = judge(&scenario, &[row(GENERATOR, &[])]);
    assert_eq!((nothing.exit, nothing.advice), (exit::INVALID, None));
}

#[test]
fn two_at_work_at_once_go_before_everything() {
    for change in [
        (FAIR, "overlap.count", 1.0),
        (SPIN, "lost_updates", 2.0),
        (FENCED, "fence.disorder", 3.0),
        (SCRIPT, "lost_updates", 4.0),
    ] {
        let judgement = judged("", &[change, (GENERATOR, "throughput", 1.0)]);
        assert_eq!((judgement.exit, &judgement.advice), (exit::SAFETY, &None), "{change:?}");
        assert!(judgement.dangers[0].text.starts_with(change.0), "{judgement:?}");
        assert!(!judgement.invalid.is_empty(), "which is said all the same");
    }
}
