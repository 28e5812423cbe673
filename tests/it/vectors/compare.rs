//! What a step left behind, ours beside Redisson's, and whether the table explains each difference.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::file::{Entry, Row, Step};

/// What our library left behind after a step, with holder ids in the words of the file.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    pub(super) result: Value,
    pub(super) took_ms: u64,
    pub(super) messages: Vec<(String, String)>,
    pub(super) state: BTreeMap<String, (Value, i64)>,
}

/// One thing in which the two differ.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    pub(super) what: String,
    pub(super) recorded: String,
    pub(super) ours: String,
}

/// How exact times can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// How far the test's clock is behind that of the file: the machine was busy.
    pub(super) lag_ms: i64,
    /// Of a scenario that has slept long enough to be renewed: its watchdog time.
    pub(super) renewed_ms: Option<i64>,
}

impl Tolerance {
    fn allows(self, nominal: i64, real: i64) -> bool {
        if nominal < 0 {
            return nominal == real;
        }
        let since_renewal = match self.renewed_ms {
            // Renewed at some moment of the last third: the file shows it as new.
            Some(watchdog) if watchdog == nominal => watchdog / 3,
            _ => 0,
        };
        nominal - 1_500 - since_renewal - self.lag_ms < real && real <= nominal + 100
    }
}

/// All in which the two differ, whether or not it is meant.
pub(super) fn differences(recorded: &Step, ours: &Ours, tolerance: Tolerance) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |what: String, recorded: String, ours: String| found.push(Difference { what, recorded, ours });
    if !same_result(&recorded.result, &ours.result, tolerance) {
        note("result".into(), recorded.result.to_string(), ours.result.to_string());
    }
    if recorded
        .took_ms
        .is_some_and(|took| took > ours.took_ms + 500 + tolerance.lag_ms.unsigned_abs())
    {
        note("took".into(), format!("{:?}", recorded.took_ms), "less".into());
    }
    if recorded.messages != ours.messages {
        note(
            "messages".into(),
            json!(recorded.messages).to_string(),
            json!(ours.messages).to_string(),
        );
    }
    let keys: BTreeSet<&String> = recorded.state.keys().chain(ours.state.keys()).collect();
    for key in keys {
        match (recorded.state.get(key), ours.state.get(key)) {
            (Some(recorded), Some((value, ttl))) => {
                if recorded.value != *value {
                    note(format!("value of {key}"), recorded.value.to_string(), value.to_string());
                }
                if !same_ttl(recorded, *ttl, tolerance) {
                    note(format!("ttl of {key}"), recorded.pttl_ms.to_string(), ttl.to_string());
                }
            }
            (recorded, ours) => {
                let text = |value: Option<&Value>| value.map_or("absent".into(), Value::to_string);
                note(
                    format!("value of {key}"),
                    text(recorded.map(|entry| &entry.value)),
                    text(ours.map(|(value, _)| value)),
                );
            }
        }
    }
    found
}

/// Of all differences those that no row explains, and of the rows those that explain nothing.
pub(super) fn unexplained(
    differences: Vec<Difference>,
    rows: &[&Row],
    ours: &Ours,
    tolerance: Tolerance,
) -> (Vec<Difference>, Vec<Row>) {
    let explains = |row: &Row, difference: &Difference| {
        row.what == difference.what
            && match (
                row.what.starts_with("ttl of "),
                row.ours.parse(),
                difference.ours.parse(),
            ) {
                (true, Ok(nominal), Ok(real)) => tolerance.allows(nominal, real),
                _ => row.ours == difference.ours,
            }
    };
    let idle = rows.iter().filter(|row| {
        // On a busy machine a time may fit both columns; then the row is neither needed nor refuted.
        let fits = row.what.strip_prefix("ttl of ").is_some_and(|key| {
            let real = ours.state.get(key).map(|(_, ttl)| *ttl);
            row.ours
                .parse()
                .is_ok_and(|nominal| real.is_some_and(|real| tolerance.allows(nominal, real)))
        });
        !fits && !differences.iter().any(|difference| explains(row, difference))
    });
    let idle = idle.map(|row| (*row).clone()).collect();
    let open = differences
        .into_iter()
        .filter(|difference| !rows.iter().any(|row| explains(row, difference)));
    (open.collect(), idle)
}

fn same_result(recorded: &Value, ours: &Value, tolerance: Tolerance) -> bool {
    if recorded.get("error").is_some() {
        return ours.get("error").is_some();
    }
    match (recorded["value"]["about_ms"].as_i64(), ours["value"].as_i64()) {
        (Some(nominal), Some(real)) => tolerance.allows(nominal, real),
        _ => recorded == ours,
    }
}

fn same_ttl(recorded: &Entry, ours: i64, tolerance: Tolerance) -> bool {
    recorded
        .pttl_ms
        .as_i64()
        .is_some_and(|nominal| tolerance.allows(nominal, ours))
}
