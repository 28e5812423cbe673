//! What is recorded besides what workers write down.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Model, RedisMode, Scenario};

/// What is recorded besides what workers write down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evidence {
    /// How the server's side is known.
    pub server: ServerEvidence,
}

/// How it is known who owned which lock at the server, in the model `held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ServerEvidence {
    /// From its append-only file, if lockbench starts the server and nothing in its configuration speaks against it.
    #[default]
    Auto,
    /// From its append-only file, good to a millisecond.
    Aof,
    /// It is not: only what workers wrote down counts.
    None,
}

impl Evidence {
    /// Whether nothing in particular is asked for.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Scenario {
    /// Whether the append-only file of the server under test is evidence.
    pub fn reads_append_only(&self) -> bool {
        match self.evidence.server {
            ServerEvidence::None => false,
            ServerEvidence::Aof => true,
            ServerEvidence::Auto => {
                let is_ours = self.redis.mode == RedisMode::Spawn && self.workload.model == Model::Held;
                is_ours && !SET_BY_AOF.iter().any(|name| self.redis.config.contains_key(*name))
            }
        }
    }
}

/// Lines of the configuration that `server = "aof"` needs as they are.
pub(super) const SET_BY_AOF: [&str; 4] = [
    "appendonly",
    "appendfilename",
    "appenddirname",
    "auto-aof-rewrite-percentage",
];
