//! The kinds of lock the harness can drive: those of the library by their names there, and what does without one.

use leasehold::LockKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The lock under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum LockType {
    /// A kind of `leasehold`.
    Kind(LockKind),
    /// No lock: one atomic script does all of the work.
    Script,
    /// No lock: what the generator does alone. The checker must find overlaps here.
    None,
}

impl LockType {
    /// Every lock that a scenario may name.
    pub fn all() -> impl Iterator<Item = LockType> {
        let kinds = LockKind::ALL.iter().copied().map(LockType::Kind);
        kinds.chain([LockType::Script, LockType::None])
    }

    /// How many independent masters a run of it starts.
    pub fn masters(self) -> usize {
        match self {
            LockType::Kind(LockKind::Quorum) => 3,
            LockType::Kind(_) | LockType::Script | LockType::None => 1,
        }
    }

    /// Whether those who only read share it.
    pub fn is_shared_by_readers(self) -> bool {
        self == LockType::Kind(LockKind::ReadWrite)
    }

    /// Every name that a scenario may write.
    pub fn names() -> impl Iterator<Item = &'static str> {
        LockKind::ALL.iter().map(|kind| kind.name()).chain([SCRIPT, NONE])
    }

    /// What it is, in a line.
    pub fn what(self) -> &'static str {
        match self {
            LockType::Kind(kind) => kind.what(),
            LockType::Script => {
                "no lock: one atomic script takes one from a stock, and that is all the work; hold does not count"
            }
            LockType::None => "no lock at all: shows what the generator does alone; the checker must find overlaps",
        }
    }
}

impl TryFrom<String> for LockType {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match &name[..] {
            SCRIPT => return Ok(LockType::Script),
            NONE => return Ok(LockType::None),
            _ => {}
        }
        // Worded as serde words it, so that a suggestion can be made of it.
        let unknown = |_| {
            let names: Vec<_> = Self::names().map(|name| format!("`{name}`")).collect();
            format!("unknown variant `{name}`, expected one of {}", names.join(", "))
        };
        name.parse().map(LockType::Kind).map_err(unknown)
    }
}

impl From<LockType> for String {
    fn from(lock: LockType) -> String {
        match lock {
            LockType::Kind(kind) => kind.name().to_owned(),
            LockType::Script => SCRIPT.to_owned(),
            LockType::None => NONE.to_owned(),
        }
    }
}

const SCRIPT: &str = "script";

const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_an_unknown_one_is_refused_with_the_known() {
        for name in LockType::names() {
            let lock = LockType::try_from(name.to_owned()).unwrap();
            assert_eq!(String::from(lock), name);
        }
        let refusal = LockType::try_from("fare".to_owned()).unwrap_err();
        assert!(
            refusal.starts_with("unknown variant") && refusal.contains("`reentrant`"),
            "{refusal}"
        );
    }
}
