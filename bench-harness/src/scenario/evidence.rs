//! What is recorded besides what workers write down.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is recorded besides what workers write down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evidence {
    /// How the server's side is known, in the model `held`.
    pub server: ServerEvidence,
}

/// How it is known who owned which lock at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ServerEvidence {
    /// From its append-only file, good to a millisecond; of a server that lockbench starts.
    Aof,
    /// It is not: only what workers wrote down counts.
    #[default]
    None,
}

impl Evidence {
    /// Whether nothing else is recorded.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Lines of the configuration that `server = "aof"` needs as they are.
pub(super) const SET_BY_AOF: [&str; 4] = [
    "appendonly",
    "appendfilename",
    "appenddirname",
    "auto-aof-rewrite-percentage",
];
