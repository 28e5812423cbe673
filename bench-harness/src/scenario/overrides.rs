//! `--set path=value`: changes of a scenario from the command line.

use serde::Deserialize;
use toml::{Table, Value};

use super::checks::suggestion;
use super::{Scenario, ScenarioError};

/// The scenario of `text`, which is valid, with the overrides applied in order.
pub(super) fn apply(text: &str, overrides: &[String]) -> Result<Scenario, ScenarioError> {
    let mut table: Table = text.parse().map_err(|error| wrong("--set", format!("{error}")))?;
    let mut scenario = None;
    for text in overrides {
        let place = format!("--set {text}");
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| wrong(&place, "write it as path=value, as lock.lease=10s".to_owned()))?;
        set(&mut table, path.trim(), read_value(value.trim())).map_err(|message| wrong(&place, message))?;
        // Read after each one, so that an error bears the name of the override which caused it.
        let read = Scenario::deserialize(Value::Table(table.clone()))
            .map_err(|error| wrong(&place, suggestion(error.message())))?;
        scenario = Some(read);
    }
    scenario.ok_or_else(|| wrong("--set", "nothing to set".to_owned()))
}

/// Splits a path at its dots; thresholds and the matrix have dots in their keys.
pub(super) fn steps(path: &str) -> Vec<&str> {
    match path.split_once('.') {
        Some((table @ ("thresholds" | "matrix"), key)) => vec![table, key.trim_matches('"')],
        _ => path.split('.').collect(),
    }
}

fn set(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    let steps = steps(path);
    let (last, first) = steps.split_last().ok_or("the path is empty")?;
    let mut place = table;
    let mut first = first.iter().peekable();
    while let Some(step) = first.next() {
        let next = place
            .entry((*step).to_owned())
            .or_insert_with(|| Value::Table(Table::new()));
        place = match next {
            Value::Table(table) => table,
            Value::Array(list) => {
                let index = first
                    .next()
                    .ok_or_else(|| format!("{step:?} is a list: say which, as {step}.0"))?;
                let length = list.len();
                list.get_mut(
                    index
                        .parse::<usize>()
                        .map_err(|_| format!("{index:?} is no place in the list {step:?}"))?,
                )
                .and_then(Value::as_table_mut)
                .ok_or_else(|| format!("{step:?} has {length} entries, counted from 0: there is no {index}"))?
            }
            _ => return Err(format!("{step:?} is a value, nothing lies below it")),
        };
    }
    place.insert((*last).to_owned(), value);
    Ok(())
}

/// What stands right of the `=`: TOML where it is TOML, else a string.
fn read_value(text: &str) -> Value {
    let parsed: Option<Table> = format!("value = {text}").parse().ok();
    parsed
        .and_then(|mut table| table.remove("value"))
        .filter(|value| !matches!(value, Value::Datetime(_)))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn wrong(place: &str, message: String) -> ScenarioError {
    ScenarioError {
        place: place.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scenario, Time};

    fn demo(overrides: &[&str]) -> Result<Scenario, super::ScenarioError> {
        let overrides: Vec<_> = overrides.iter().map(|&text| text.to_owned()).collect();
        Scenario::read("pause-demo", &overrides)
    }

    #[test]
    fn an_override_reaches_tables_lists_and_dotted_keys() {
        let scenario = demo(&[
            "lock.lease=20s",
            "workload.keys.count=7",
            "fault.0.for=13s",
            "thresholds.prediction.mismatches=<= 3",
            "matrix.lock.policy=[\"deadline\", \"naive-cancel\"]",
        ])
        .unwrap();
        assert_eq!(scenario.lock.lease, Time::millis(20_000));
        assert_eq!(scenario.workload.keys.count, 7);
        assert_eq!(scenario.faults[0].length, Time::millis(13_000));
        assert_eq!(scenario.thresholds["prediction.mismatches"].value, 3.0);
        assert_eq!(scenario.policies(), ["deadline", "naive-cancel"]);
    }

    #[test]
    fn a_wrong_override_is_named() {
        let error = demo(&["lock.leese=5s"]).unwrap_err();
        assert_eq!(error.place, "--set lock.leese=5s");
        assert!(error.message.contains("did you mean \"lease\"?"), "{error}");
        let error = demo(&["fault.9.for=5s"]).unwrap_err();
        assert!(error.message.contains("there is no 9"), "{error}");
        let error = demo(&["lock.lease=0s"]).unwrap_err();
        assert_eq!(error.place, "--set lock.lease=0s");
    }
}
