//! What a step left behind, ours beside Redisson's, and whether the table explains each difference.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::file::{Row, Step};

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
    /// A time to live.
    fn allows(self, nominal: i64, real: i64) -> bool {
        if nominal < 0 {
            return nominal == real;
        }
        let since_renewal = match self.renewed_ms {
            // Renewed at some moment of the last third: the file shows it as new.
            Some(watchdog) if watchdog == nominal => watchdog / 3,
            _ => 0,
        };
        self.within(nominal, real, since_renewal)
    }

    fn within(self, nominal: i64, real: i64, late_ms: i64) -> bool {
        nominal - 1_500 - late_ms - self.lag_ms < real && real <= nominal + 100
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
                if !same_value(&recorded.value, value, tolerance) {
                    note(format!("value of {key}"), recorded.value.to_string(), value.to_string());
                }
                if !same_ttl(&recorded.pttl_ms, &json!(ttl), tolerance) {
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
            && match (json_of(&row.ours), json_of(&difference.ours)) {
                (Some(nominal), Some(real)) if row.what.starts_with("ttl of ") => same_ttl(&nominal, &real, tolerance),
                (Some(nominal), Some(real)) => same_value(&nominal, &real, tolerance),
                _ => row.ours == difference.ours,
            }
    };
    // On a busy machine a time may fit both columns; then the row is neither needed nor refuted.
    let fits = |row: &Row| {
        let (Some((what, key)), Some(nominal)) = (row.what.split_once(" of "), json_of(&row.ours)) else {
            return false;
        };
        ours.state.get(key).is_some_and(|(value, ttl)| match what {
            "ttl" => same_ttl(&nominal, &json!(ttl), tolerance),
            _ => scores(&nominal).is_some() && same_value(&nominal, value, tolerance),
        })
    };
    let idle = rows
        .iter()
        .filter(|row| !fits(row) && !differences.iter().any(|difference| explains(row, difference)));
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

fn same_ttl(nominal: &Value, real: &Value, tolerance: Tolerance) -> bool {
    let times = nominal.as_i64().zip(real.as_i64());
    times.is_some_and(|(nominal, real)| tolerance.allows(nominal, real))
}

/// Scores are times: the same members in the same order, each with about its score.
fn same_value(nominal: &Value, real: &Value, tolerance: Tolerance) -> bool {
    let (Some(nominal), Some(real)) = (scores(nominal), scores(real)) else {
        return nominal == real;
    };
    nominal.len() == real.len()
        && nominal
            .iter()
            .zip(&real)
            .all(|((member, nominal), (other, real))| member == other && tolerance.within(*nominal, *real, 0))
}

/// The members of a sorted set and their scores, counted from now.
fn scores(value: &Value) -> Option<Vec<(&str, i64)>> {
    let members = value.as_array()?.iter();
    members
        .map(|it| it["member"].as_str().zip(it["score_minus_now_ms"].as_i64()))
        .collect()
}

fn json_of(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}
