//! The two files: what the jar wrote, and where our library is meant to differ.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// `vectors.json`: recorded from the real jar, step by step.
#[derive(Deserialize)]
pub(super) struct Vectors {
    /// How many steps all scenarios have together.
    pub(super) step_count: usize,
    pub(super) scenarios: Vec<Scenario>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Scenario {
    #[serde(rename = "scenario")]
    pub(super) name: String,
    pub(super) watchdog_ms: u64,
    pub(super) fair_wait_ms: u64,
    pub(super) locks: BTreeMap<String, LockSpec>,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Deserialize)]
pub(super) struct LockSpec {
    pub(super) kind: String,
    /// Empty for a lock of several others.
    #[serde(default)]
    pub(super) name: String,
    /// The names of those others; in the file, their aliases.
    #[serde(default)]
    pub(super) of: Vec<String>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Step {
    pub(super) step: u32,
    #[serde(rename = "do")]
    pub(super) what: String,
    #[serde(rename = "as")]
    pub(super) who: Option<String>,
    pub(super) lock: Option<String>,
    pub(super) wait_ms: Option<u64>,
    pub(super) lease_ms: Option<u64>,
    #[serde(default)]
    pub(super) start: bool,
    pub(super) took_ms: Option<u64>,
    pub(super) ms: Option<u64>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) result: Value,
    pub(super) messages: Vec<(String, String)>,
    pub(super) state: BTreeMap<String, Entry>,
}

/// One key: what it holds and how long it lives (a number, or a placeholder).
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) pttl_ms: Value,
}

/// `differences.toml`: the rows where our library differs on purpose.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// A reason's name -> why, and why it cannot harm the other side.
    pub(super) reasons: BTreeMap<String, String>,
    #[serde(rename = "difference")]
    pub(super) rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) scenario: String,
    pub(super) steps: Vec<u32>,
    /// `result`, `took`, `messages`, `ttl of <key>` or `value of <key>`.
    pub(super) what: String,
    /// What our library leaves there: milliseconds for a time to live, else the value as JSON.
    pub(super) ours: String,
    pub(super) reason: String,
}

impl Table {
    /// The rows of one step.
    pub(super) fn of(&self, scenario: &str, step: u32) -> Vec<&Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.scenario == scenario && row.steps.contains(&step))
            .collect()
    }
}

pub(super) fn vectors() -> Vectors {
    let text = include_str!("../../data/vectors.json");
    let mut vectors: Vectors = serde_json::from_str(text).expect("the file is as it was recorded");
    for scenario in &mut vectors.scenarios {
        let locks = scenario.locks.clone();
        for alias in scenario.locks.values_mut().flat_map(|spec| &mut spec.of) {
            *alias = locks[alias].name.clone();
        }
    }
    vectors
}

pub(super) fn table() -> Table {
    toml::from_str(include_str!("../../data/differences.toml")).expect("a table of rows")
}
