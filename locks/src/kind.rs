//! The kinds of lock, as configuration names them.

use std::fmt;
use std::str::FromStr;

/// A kind of lock, for where configuration chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum LockKind {
    /// Its owner can acquire it again while holding it.
    Reentrant,
    /// As reentrant, and its waiters are served in the order in which they came.
    Fair,
    /// Many readers or one writer.
    ReadWrite,
    /// As reentrant, but its waiters ask at intervals instead of subscribing.
    Spin,
    /// As reentrant, with a fencing token that grows with every acquire.
    Fenced,
    /// Several reentrant locks held as one, all or none.
    Multi,
    /// A reentrant lock that is held while a majority of several independent masters holds it.
    Quorum,
}

impl LockKind {
    /// Every kind.
    pub const ALL: &[LockKind] = &[
        LockKind::Reentrant,
        LockKind::Fair,
        LockKind::ReadWrite,
        LockKind::Spin,
        LockKind::Fenced,
        LockKind::Multi,
        LockKind::Quorum,
    ];

    /// The name that configuration uses.
    pub fn name(self) -> &'static str {
        match self {
            LockKind::Reentrant => "reentrant",
            LockKind::Fair => "fair",
            LockKind::ReadWrite => "read_write",
            LockKind::Spin => "spin",
            LockKind::Fenced => "fenced",
            LockKind::Multi => "multi",
            LockKind::Quorum => "quorum",
        }
    }

    /// What it is, in a line.
    pub fn what(self) -> &'static str {
        match self {
            LockKind::Reentrant => "its owner can acquire it again while holding it",
            LockKind::Fair => "as reentrant, its waiters served in the order in which they came, over all processes",
            LockKind::ReadWrite => "many readers or one writer",
            LockKind::Spin => "as reentrant, its waiters ask at intervals instead of subscribing",
            LockKind::Fenced => "as reentrant, with a fencing token that grows with every acquire",
            LockKind::Multi => "several reentrant locks held as one, all or none",
            LockKind::Quorum => "a reentrant lock held while a majority of several independent masters holds it",
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LockKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let found = Self::ALL.iter().find(|kind| kind.name() == name);
        found.copied().ok_or_else(|| UnknownKind { name: name.to_owned() })
    }
}

/// No kind of lock has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kind of lock is called {name:?}; use one of {}", known())]
pub struct UnknownKind {
    name: String,
}

fn known() -> String {
    let names: Vec<_> = LockKind::ALL.iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_its_own_name_and_an_unknown_one_names_the_known() {
        for kind in LockKind::ALL {
            assert_eq!(kind.name().parse(), Ok(*kind));
        }
        let error = "fare".parse::<LockKind>().unwrap_err().to_string();
        assert!(
            error.contains("reentrant, fair, read_write, spin, fenced, multi, quorum"),
            "{error}"
        );
    }
}
