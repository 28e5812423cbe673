//! What the lock guards: which lock fits is not in the load alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the lock guards, as far as it bears on which lock to take. `lockbench advise` reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Guards {
    /// What it is, in a word or two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// One atomic script in Redis could do all of the work.
    #[serde(skip_serializing_if = "is_not")]
    pub script: bool,
    /// The work ends in an insert that a unique key would refuse to whoever comes second.
    #[serde(skip_serializing_if = "is_not")]
    pub unique: bool,
    /// What is guarded refuses a fencing token older than the newest it has seen.
    #[serde(skip_serializing_if = "is_not")]
    pub tokens: bool,
    /// What is guarded has a version, and refuses a write if that has changed since it was read.
    #[serde(skip_serializing_if = "is_not")]
    pub versions: bool,
    /// Money is at stake, or what is as dear: two at work at once must never be.
    #[serde(skip_serializing_if = "is_not")]
    pub money: bool,
    /// It matters who came first.
    #[serde(skip_serializing_if = "is_not")]
    pub order: bool,
    /// The lock must hold though a master is lost, so masters that know nothing of each other have to grant it.
    #[serde(skip_serializing_if = "is_not")]
    pub independent_masters: bool,
    /// How many names are wanted at once, all or none. The lock `multi` takes them; the other kinds take one.
    #[serde(skip_serializing_if = "is_one")]
    pub keys_together: u32,
}

impl Guards {
    /// Whether nothing is said of it.
    pub(super) fn is_unsaid(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Guards {
    fn default() -> Self {
        Self {
            what: None,
            script: false,
            unique: false,
            tokens: false,
            versions: false,
            money: false,
            order: false,
            independent_masters: false,
            keys_together: 1,
        }
    }
}

fn is_not(flag: &bool) -> bool {
    !*flag
}

fn is_one(count: &u32) -> bool {
    *count == 1
}
