//! Whom a fault concerns.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Whom a fault concerns.
///
/// One that strikes the server strikes everybody. The proxy has a way of its own for each process, so that it can
/// also strike some: the worst of locks shows when a holder is cut off and its rival is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// Everybody.
    #[default]
    All,
    /// Only the processes that hold locks, in the model `held`.
    Holders,
    /// Only the process that waits for locks others hold, in the model `held`.
    Rivals,
    /// So many thousandths of the processes, in the models `closed` and `open`; written `share:0.3`.
    Share(u16),
}

impl Scope {
    /// Of so many processes those that are struck: the first ones; one at least, and not all unless it is everybody.
    pub fn of_processes(self, processes: usize) -> usize {
        match self {
            Self::Share(thousandths) => {
                let struck = (processes * usize::from(thousandths)).div_ceil(1_000);
                struck.clamp(1, processes.saturating_sub(1).max(1))
            }
            Self::All | Self::Holders | Self::Rivals => processes,
        }
    }

    /// Whether a holder of a lock can notice it.
    pub fn reaches_holders(self) -> bool {
        self != Self::Rivals
    }

    /// Whether somebody who waits for a lock can notice it.
    pub fn reaches_rivals(self) -> bool {
        self != Self::Holders
    }

    /// Whom, in words.
    pub fn whom(self) -> String {
        match self {
            Self::All => "everybody".to_owned(),
            Self::Holders => "only the holders".to_owned(),
            Self::Rivals => "only the rivals".to_owned(),
            Self::Share(thousandths) => format!("{} % of the processes", f64::from(thousandths) / 10.0),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Holders => f.write_str("holders"),
            Self::Rivals => f.write_str("rivals"),
            Self::Share(thousandths) => write!(f, "share:{}", f64::from(*thousandths) / 1_000.0),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::All),
            "holders" => return Ok(Self::Holders),
            "rivals" => return Ok(Self::Rivals),
            _ => {}
        }
        let Some(share) = text.strip_prefix("share:") else {
            return Err(format!("{text:?} is no scope: write all, holders, rivals or share:0.3"));
        };
        match share.trim().parse::<f64>() {
            Ok(share) if (0.001..=0.999).contains(&share) => Ok(Self::Share((share * 1_000.0).round() as u16)),
            _ => Err(format!(
                "{share:?} is no share of the processes: write one from 0.001 to 0.999, as share:0.3"
            )),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl JsonSchema for Scope {
    fn schema_name() -> Cow<'static, str> {
        "Scope".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whom a fault concerns.",
            "type": "string",
            "pattern": "^(all|holders|rivals|share:0\\.[0-9]{1,3})$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_reads_as_it_is_written() {
        for text in ["all", "holders", "rivals", "share:0.3", "share:0.125"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "everyone",
            "share:",
            "share:0",
            "share:1",
            "share:x",
            "share:-1",
            "share:NaN",
        ] {
            assert!(text.parse::<Scope>().unwrap_err().contains("write"), "{text}");
        }
    }

    #[test]
    fn a_share_strikes_some_processes_and_spares_some() {
        assert_eq!(Scope::Share(300).of_processes(10), 3);
        assert_eq!(Scope::Share(300).of_processes(4), 2, "rounded up");
        assert_eq!(Scope::Share(1).of_processes(2), 1);
        assert_eq!(Scope::Share(999).of_processes(4), 3);
        assert_eq!(Scope::All.of_processes(4), 4);
    }
}
