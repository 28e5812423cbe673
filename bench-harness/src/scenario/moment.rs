//! When a fault strikes: in which phase of renewal, or what has to happen first.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::units::Time;

/// How far the holders are in their renewal period when a fault strikes, in the model `held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Phase {
    /// Each lock elsewhere: they are taken evenly spread over a period.
    #[default]
    Uniform,
    /// At so many places, evenly spread; written `sweep(10)`.
    Sweep(u32),
    /// All are about to renew.
    JustBefore,
    /// All have just renewed.
    JustAfter,
}

/// What has to happen before a fault strikes, in the models `closed` and `open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum When {
    /// At least so many locks are held at once; written `held>=100`.
    Held(u64),
    /// At least so many requests wait for a lock at once; written `waiters>=50`.
    Waiters(u64),
    /// The fault of that name is over, and then this long; written `after(NAME)+2s`.
    After {
        /// Name of the other fault.
        fault: String,
        /// How long after its end.
        later: Time,
    },
}

impl Phase {
    /// Whether it is the default.
    pub fn is_uniform(&self) -> bool {
        *self == Self::Uniform
    }

    /// Whether it asks for locks that are in different phases, so that any moment is right.
    pub fn is_spread(self) -> bool {
        matches!(self, Self::Uniform | Self::Sweep(_))
    }

    /// At how many different moments of a period so many locks are taken.
    pub fn moments(self, locks: u32) -> u32 {
        match self {
            Self::Uniform => locks,
            Self::Sweep(places) => places.min(locks),
            Self::JustBefore | Self::JustAfter => 1,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Sweep(places) => write!(f, "sweep({places})"),
            Self::JustBefore => f.write_str("just_before"),
            Self::JustAfter => f.write_str("just_after"),
        }
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no phase: write uniform, just_before, just_after or sweep(10)");
        match text {
            "uniform" => Ok(Self::Uniform),
            "just_before" => Ok(Self::JustBefore),
            "just_after" => Ok(Self::JustAfter),
            _ => {
                let places = text.strip_prefix("sweep(").and_then(|rest| rest.strip_suffix(')'));
                match places.ok_or_else(wrong)?.trim().parse() {
                    Ok(places) if places > 0 => Ok(Self::Sweep(places)),
                    _ => Err(wrong()),
                }
            }
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(count) => write!(f, "held>={count}"),
            Self::Waiters(count) => write!(f, "waiters>={count}"),
            Self::After { fault, later } => write!(f, "after({fault})+{later}"),
        }
    }
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is nothing to wait for: write held>=100, waiters>=50 or after(NAME)+2s");
        if let Some(rest) = text.strip_prefix("after(") {
            let (fault, later) = rest.split_once(')').ok_or_else(wrong)?;
            let later = match later.trim() {
                "" => Time::millis(0),
                some => some.strip_prefix('+').ok_or_else(wrong)?.trim().parse()?,
            };
            let fault = fault.trim().to_owned();
            return if fault.is_empty() {
                Err(wrong())
            } else {
                Ok(Self::After { fault, later })
            };
        }
        let (what, count) = text.split_once(">=").ok_or_else(wrong)?;
        let count = count.trim().parse().map_err(|_| wrong())?;
        match what.trim() {
            _ if count == 0 => Err(wrong()),
            "held" => Ok(Self::Held(count)),
            "waiters" => Ok(Self::Waiters(count)),
            _ => Err(wrong()),
        }
    }
}

/// Both are written as text.
macro_rules! as_text {
    ($type:ident, $what:literal, $pattern:literal) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "description": $what, "type": "string", "pattern": $pattern })
            }
        }
    };
}

as_text!(
    Phase,
    "How far the holders are in their renewal period when a fault strikes.",
    r"^(uniform|just_before|just_after|sweep\([0-9]+\))$"
);
as_text!(
    When,
    "What has to happen before a fault strikes.",
    r"^(held>=[0-9]+|waiters>=[0-9]+|after\(.+\)\+.+)$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_predicates_read_as_they_are_written() {
        for text in ["uniform", "just_before", "just_after", "sweep(10)"] {
            assert_eq!(text.parse::<Phase>().unwrap().to_string(), text);
        }
        for text in ["held>=100", "waiters>=1", "after(first)+2s"] {
            assert_eq!(text.parse::<When>().unwrap().to_string(), text);
        }
        assert_eq!("after(a)".parse::<When>().unwrap().to_string(), "after(a)+0s");
    }

    #[test]
    fn anything_else_is_told_what_to_write() {
        for text in ["", "before", "sweep", "sweep()", "sweep(0)", "sweep(x)"] {
            assert!(text.parse::<Phase>().unwrap_err().contains("write"), "{text}");
        }
        for text in [
            "",
            "held",
            "held>=0",
            "held>=x",
            "lost>=3",
            "after()",
            "after(a",
            "after(a)2s",
            "after(a)+2",
        ] {
            assert!(text.parse::<When>().unwrap_err().contains("write"), "{text}");
        }
    }

    #[test]
    fn a_phase_says_at_how_many_moments_locks_are_taken() {
        assert_eq!(Phase::Uniform.moments(7), 7);
        assert_eq!(Phase::Sweep(3).moments(7), 3);
        assert_eq!(Phase::Sweep(30).moments(7), 7);
        assert_eq!(Phase::JustAfter.moments(7), 1);
    }
}
