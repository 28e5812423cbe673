//! What the real jar wrote, step by step, and that our library writes the same: `tests/data/vectors.json` is the recording,
//! `tests/data/differences.toml` the one list of where ours differs, and why that cannot harm the other side.

mod clients;
mod compare;
mod file;
mod kinds;
mod leases;
mod replay;
mod seen;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use file::{Scenario, Table};
use replay::{Replayed, replay};

#[test]
fn every_recorded_step_leaves_the_same_in_redis_or_is_in_the_table() {
    let (vectors, table) = (file::vectors(), file::table());
    let mut scenarios: Vec<Scenario> = vectors.scenarios.clone();
    // The longest first, so that the last ones are short.
    scenarios.sort_by_key(slept_ms);
    let (todo, done) = (Mutex::new(scenarios), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(scenario) = todo.lock().unwrap().pop() else {
                        return;
                    };
                    let replayed = patiently(&scenario, &table);
                    done.lock().unwrap().push((scenario.name, replayed));
                }
            });
        }
    });
    let mut report = String::new();
    let mut steps = 0;
    for (scenario, replayed) in done.into_inner().unwrap() {
        steps += replayed.steps;
        for (step, it) in &replayed.open {
            report += &format!(
                "not in the table (Redisson: {}, {} ms behind):\n[[difference]]\nscenario = \"{scenario}\"\nsteps = [{step}]\n\
                 what = '{}'\nours = '{}'\n",
                it.recorded, replayed.stalled_ms, it.what, it.ours
            );
        }
        for (step, row) in &replayed.idle {
            report += &format!("differs no more at step {step}: {row:?}\n");
        }
    }
    println!("replayed {steps} steps; {} rows", table.rows.len());
    assert!(report.is_empty(), "{report}");
    assert_eq!(steps, vectors.step_count, "every recorded step");
}

#[test]
fn every_row_of_the_table_names_a_step_and_a_reason() {
    let (vectors, table) = (file::vectors(), file::table());
    let mut used = BTreeSet::new();
    for row in &table.rows {
        let scenario = vectors.scenarios.iter().find(|scenario| scenario.name == row.scenario);
        let scenario = scenario.unwrap_or_else(|| panic!("{row:?}"));
        for step in &row.steps {
            assert!(scenario.steps.iter().any(|it| it.step == *step), "{row:?}");
        }
        assert!(table.reasons.contains_key(&row.reason), "{row:?}");
        used.insert(&row.reason);
    }
    assert_eq!(used, table.reasons.keys().collect(), "reasons that no row gives");
}

/// A replay that differs while the machine was stalled proves nothing: its times were not those of the file.
fn patiently(scenario: &Scenario, table: &Table) -> Replayed {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a thread can be started");
    for _ in 1..TRIES {
        let replayed = runtime.block_on(replay(scenario, table));
        let agrees = replayed.open.is_empty() && replayed.idle.is_empty();
        if agrees || replayed.stalled_ms < STALLED_MS {
            return replayed;
        }
    }
    runtime.block_on(replay(scenario, table))
}

fn slept_ms(scenario: &Scenario) -> u64 {
    let slept = scenario.steps.iter().map(|step| step.ms.or(step.took_ms).unwrap_or(0));
    slept.sum()
}

/// Most of them sleep most of the time.
const AT_ONCE: usize = 12;
const TRIES: usize = 5;
const STALLED_MS: i64 = 500;
