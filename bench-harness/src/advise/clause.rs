//! What was measured of one lock, and sentences that hold nothing but that.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capacity::number;
use crate::measure::metrics;
use crate::scenario::Unit;

/// What one run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The kind of lock; or [`WRITERS_FIRST`](super::WRITERS_FIRST), [`SCRIPT`](super::SCRIPT), [`FREE`](super::FREE), [`GENERATOR`](super::GENERATOR).
    pub name: String,
    /// Metrics by name, as thresholds know them. Null: not measurable.
    pub metrics: BTreeMap<String, Option<f64>>,
    /// Why this is no measurement, if it is none.
    pub flaws: Vec<String>,
}

/// One number of this run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// The row it stands in.
    pub row: String,
    /// Of what.
    pub metric: String,
    /// In the unit of the metric.
    pub value: f64,
}

/// A reason, with the numbers it stands on: there is none without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clause {
    /// The sentence; every number measured is in it.
    pub text: String,
    /// Where the numbers come from, in the order in which they stand there.
    pub measured: Vec<Measured>,
}

impl Row {
    /// A number of it, if it was measured.
    pub fn get(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).copied().flatten()
    }

    /// The number, to be put into a sentence.
    pub fn cite(&self, metric: &str) -> Option<Measured> {
        self.get(metric).map(|value| Measured {
            row: self.name.clone(),
            metric: metric.to_owned(),
            value,
        })
    }
}

impl Clause {
    /// The sentence, with the numbers in place of its `{}`; none if one of them was not measured.
    pub(super) fn new(sentence: &str, numbers: impl IntoIterator<Item = Option<Measured>>) -> Option<Self> {
        let measured: Vec<Measured> = numbers.into_iter().collect::<Option<_>>()?;
        let mut parts = sentence.split("{}");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (number, part) in measured.iter().zip(parts) {
            text += &number.to_string();
            text += part;
        }
        (!measured.is_empty()).then_some(Clause { text, measured })
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = number(self.value);
        match metrics::find(&self.metric).map(|metric| metric.unit) {
            Some(Unit::Millis) => write!(f, "{value} ms"),
            Some(Unit::PerSecond) => write!(f, "{value}/s"),
            Some(Unit::Count) | None => f.write_str(&value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_holds_its_numbers_with_their_units_and_is_none_without_them() {
        let row = Row {
            name: "fair".to_owned(),
            metrics: BTreeMap::from([
                ("acquire.p99".to_owned(), Some(12.345)),
                ("throughput".to_owned(), Some(480.4)),
                ("acquire.p999".to_owned(), None),
            ]),
            flaws: Vec::new(),
        };
        let clause = Clause::new("{} within {}.", [row.cite("throughput"), row.cite("acquire.p99")]).unwrap();
        assert_eq!(clause.text, "480/s within 12.3 ms.");
        assert_eq!(
            (clause.measured[0].value, clause.measured[1].row.as_str()),
            (480.4, "fair")
        );
        assert_eq!(Clause::new("{}", [row.cite("acquire.p999")]), None);
        assert_eq!(Clause::new("It is so.", []), None);
    }
}
