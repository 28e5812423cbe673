//! The answer in words: a table, what to take, and a number behind each clause.

use std::fmt::Write as _;

use super::{Advice, Answer, FREE, Row, SCRIPT};
use crate::capacity::number;
use crate::scenario::{Model, Scenario};

/// The answer, as it is printed and as it lies in `summary.md`.
pub fn text(answer: &Answer) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        " which lock for {} ({})\n",
        answer.scenario.name,
        load(&answer.scenario)
    );
    let _ = write!(text, " {:<13}", "");
    for (head, _) in COLUMNS {
        let _ = write!(text, "{head:>11}");
    }
    let _ = writeln!(text);
    for row in &answer.rows {
        let _ = write!(text, " {:<13}", if row.name == SCRIPT { "no lock" } else { &row.name });
        for (_, metrics) in COLUMNS {
            let _ = write!(text, "{:>11}", cell(row, metrics));
        }
        let _ = writeln!(text);
    }
    let _ = writeln!(text, "\n{LEGEND}");
    if let Some(free) = answer.beside.iter().find(|row| row.name == FREE) {
        let _ = writeln!(
            text,
            " a lock that nobody else wants: {} ms, a round trip",
            cell(free, &["acquire.p50"])
        );
    }
    let _ = writeln!(text);
    for danger in &answer.dangers {
        let _ = writeln!(text, " Unsafe: {}", danger.text);
    }
    for flaw in &answer.invalid {
        let _ = writeln!(text, " Not a measurement: {flaw}.");
    }
    match &answer.advice {
        Some(advice) => {
            tell(&mut text, "Take", advice);
            if let Some(otherwise) = &advice.otherwise {
                tell(&mut text, "If it must be a lock", otherwise);
            }
        }
        None => {
            let _ = writeln!(text, " So there is no recommendation.");
        }
    }
    let (versions, machine) = (&answer.versions, &answer.machine);
    let _ = writeln!(
        text,
        " measured by lockbench {} ({}), Redis {}, on {} cores ({})",
        versions.lockbench,
        versions.git.as_deref().unwrap_or("outside git"),
        versions.redis,
        machine.cores,
        machine.cpu
    );
    let _ = writeln!(text, " again: {}", answer.repeat);
    text
}

/// One kind, as soon as it was measured.
pub(super) fn line(row: &Row) -> String {
    format!(
        "{}: {} a second, p50 {} ms, p99 {} ms",
        row.name,
        cell(row, &["throughput"]),
        cell(row, &["acquire.p50"]),
        cell(row, &["acquire.p99"])
    )
}

fn tell(text: &mut String, how: &str, advice: &Advice) {
    let _ = writeln!(text, " {how}: {}", advice.take);
    for clause in &advice.because {
        let _ = writeln!(text, "  - {}", clause.text);
    }
}

fn load(scenario: &Scenario) -> String {
    let workload = &scenario.workload;
    let how = match (workload.model, &workload.arrival) {
        (Model::Open, Some(arrival)) => format!("open loop, at most {} a second", number(arrival.peak())),
        _ => format!("closed loop, {} clients", workload.clients),
    };
    let paced = match (workload.model, scenario.max_rate()) {
        (Model::Closed, Some(most)) => format!(" of {} requests a second at most", number(most.0)),
        _ => String::new(),
    };
    format!("{how}{paced}; {} each; seed {}", workload.duration, scenario.seed)
}

/// The sum of these metrics, as far as they were measured.
fn cell(row: &Row, metrics: &[&str]) -> String {
    let values = metrics.iter().filter_map(|metric| row.get(metric));
    values.reduce(|a, b| a + b).map_or("–".to_owned(), number)
}

const LEGEND: &str = " in vain: waited for nothing, or found no slot; starved: waited over ten times the median; passed: so many that \
    came later were\n served sooner; even: Jain's index of the clients, 1 if all got the same; commands: sent a lock; missing: updates \
    that were lost";

const COLUMNS: [(&str, &[&str]); 12] = [
    ("p50 ms", &["acquire.p50"]),
    ("p99 ms", &["acquire.p99"]),
    ("max ms", &["acquire.max"]),
    ("done /s", &["throughput"]),
    ("in vain", &["timeouts", "dropped"]),
    ("starved", &["fairness.starved"]),
    ("passed p99", &["fairness.overtakes.p99"]),
    ("passed max", &["fairness.overtakes.max"]),
    ("even", &["fairness.jain"]),
    ("commands", &["commands"]),
    ("overlaps", &["overlap.count"]),
    ("missing", &["lost_updates"]),
];
