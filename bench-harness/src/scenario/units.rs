//! The units a scenario is written in: durations (`500ms`), rates (`200/s`) and limits (`< 50ms`).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration written as `500ms`, `5s` or `2m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// Events per second, written as `200/s` or `90/m`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

/// What a threshold demands of a metric: `== 0`, `< 50ms`, `> 100/s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// How the measured value is compared with [`Limit::value`].
    pub comparison: Comparison,
    /// The bound, in the unit of the metric: times in milliseconds, rates per second.
    pub value: f64,
    /// The unit as it was written: the metric must have the same.
    pub unit: Unit,
    text: String,
}

/// The comparisons a threshold may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `==`
    Equal,
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Count,
    /// Milliseconds.
    Millis,
    /// Events per second.
    PerSecond,
}

impl Time {
    /// A time of so many milliseconds.
    pub const fn millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// The time in nanoseconds, as the clock counts.
    pub fn nanos(self) -> u64 {
        nanos(self.0)
    }
}

impl Limit {
    /// Whether the measured value is within the limit. A value that could not be measured is not.
    pub fn holds(&self, measured: Option<f64>) -> bool {
        measured.is_some_and(|measured| match self.comparison {
            Comparison::Less => measured < self.value,
            Comparison::AtMost => measured <= self.value,
            Comparison::More => measured > self.value,
            Comparison::AtLeast => measured >= self.value,
            Comparison::Equal => measured == self.value,
        })
    }
}

/// A duration in nanoseconds, at most what 64 bits hold.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|_| format!("{text:?} is not a duration: write 500ms, 5s or 2m"))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a rate: write 200/s or 90/m");
        let (number, per) = text.split_once('/').ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        match per.trim() {
            "s" => Ok(Self(number)),
            "m" => Ok(Self(number / 60.0)),
            _ => Err(wrong()),
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a limit: write a comparison and a value, as \"< 50ms\" or \"== 0\"");
        let written = text.trim();
        let (comparison, rest) = COMPARISONS
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, written.strip_prefix(sign)?)))
            .ok_or_else(wrong)?;
        let rest = rest.trim();
        let (value, unit) = if let Ok(number) = rest.parse() {
            (number, Unit::Count)
        } else if let Some(negative) = rest.strip_prefix('-') {
            let time: Time = negative.trim().parse().map_err(|_| wrong())?;
            (-time.0.as_secs_f64() * 1e3, Unit::Millis)
        } else if let Ok(time) = rest.parse::<Time>() {
            (time.0.as_secs_f64() * 1e3, Unit::Millis)
        } else {
            let rate: Rate = rest.parse().map_err(|_| wrong())?;
            (rate.0, Unit::PerSecond)
        };
        Ok(Self {
            comparison,
            value,
            unit,
            text: written.to_owned(),
        })
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = humantime::format_duration(self.0).to_string();
        f.write_str(&text.replace(' ', ""))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                String::json_schema(generator)
            }
        }
    )*};
}
as_text!(Time, Rate, Limit);

/// Longer signs first, so that `<=` is not read as `<`.
const COMPARISONS: [(&str, Comparison); 5] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("==", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::More),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_as_people_write_them() {
        assert_eq!("500ms".parse::<Time>().unwrap(), Time::millis(500));
        assert_eq!("2m".parse::<Time>().unwrap(), Time::millis(120_000));
        assert_eq!("90/m".parse::<Rate>().unwrap(), Rate(1.5));
        let limit: Limit = "<= 50ms".parse().unwrap();
        assert_eq!(
            (limit.comparison, limit.value, limit.unit),
            (Comparison::AtMost, 50.0, Unit::Millis)
        );
        let told: Limit = "< -100ms".parse().unwrap();
        assert_eq!((told.value, told.unit), (-100.0, Unit::Millis));
    }

    #[test]
    fn a_wrong_unit_says_how_to_write_it() {
        assert!("5 parsecs".parse::<Time>().unwrap_err().contains("500ms"));
        assert!("200".parse::<Rate>().unwrap_err().contains("200/s"));
        assert!("about 5".parse::<Limit>().unwrap_err().contains("< 50ms"));
    }

    #[test]
    fn a_unit_printed_reads_back_the_same() {
        for text in ["1ms", "90s", "1m30s", "250us"] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.to_string().parse::<Time>().unwrap(), time);
        }
    }

    #[test]
    fn a_value_that_was_not_measured_holds_no_limit() {
        let limit: Limit = "== 0".parse().unwrap();
        assert!(limit.holds(Some(0.0)));
        assert!(!limit.holds(None));
    }
}
