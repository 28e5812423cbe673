//! `lockbench advise`: arguments to a question.

use std::path::PathBuf;

use leasehold::LockKind;

use crate::advise::Question;
use crate::scenario::{Scenario, ScenarioError, Time};

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct AdviseArguments {
    /// A stock scenario (see `lockbench list scenarios`) or the path of a file; what its [guards] say counts.
    #[arg(env = "LOCKBENCH_SCENARIO")]
    scenario: String,
    /// The kinds of lock to compare with reentrant, and with those that [guards] demand [default: all that make sense].
    #[arg(long, value_delimiter = ',', value_parser = kind, env = "LOCKBENCH_KINDS")]
    kinds: Vec<LockKind>,
    /// How long each kind is measured [default: as the scenario says].
    #[arg(long = "for", value_name = "TIME", env = "LOCKBENCH_FOR")]
    length: Option<Time>,
    /// Change a value of the scenario, as guards.tokens=true; may be given several times.
    #[arg(long, value_name = "PATH=VALUE", env = "LOCKBENCH_SET", value_delimiter = ';')]
    set: Vec<String>,
    /// Take this seed instead of the scenario's.
    #[arg(long, env = "LOCKBENCH_SEED")]
    seed: Option<u64>,
    /// Use this Redis, as redis://host:port or unix:///path; without it one is started and ended.
    #[arg(long, value_name = "URL", env = "LOCKBENCH_REDIS")]
    redis: Option<String>,
    /// Where to write advice.json and summary.md [default: reports/local/advise-NAME].
    #[arg(short, long, env = "LOCKBENCH_OUT")]
    pub(super) out: Option<PathBuf>,
    /// Plain lines instead of bars, also on a terminal.
    #[arg(long, env = "LOCKBENCH_NO_TUI")]
    pub(super) no_tui: bool,
    /// With `-`: print advice.json on stdout, and nothing else there.
    #[arg(long, value_name = "-", value_parser = ["-"], env = "LOCKBENCH_JSON")]
    pub(super) json: Option<String>,
}

impl AdviseArguments {
    /// The question they ask.
    pub(super) fn question(&self) -> Result<Question, ScenarioError> {
        let mut scenario = Scenario::read(&self.scenario, &self.set)?;
        scenario.seed = self.seed.unwrap_or(scenario.seed);
        super::use_redis(&mut scenario, self.redis.as_ref());
        let scenario = scenario.checked("--redis")?;
        Question::new(scenario, &self.kinds, self.length, self.repeat())
    }

    fn repeat(&self) -> String {
        let mut words = vec![format!("lockbench advise {}", super::quoted(&self.scenario))];
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        words.extend((!kinds.is_empty()).then(|| format!("--kinds {}", kinds.join(","))));
        words.extend(self.length.map(|length| format!("--for {length}")));
        words.extend(self.set.iter().map(|set| format!("--set {}", super::quoted(set))));
        words.extend(self.seed.map(|seed| format!("--seed {seed}")));
        words.extend(self.redis.as_ref().map(|_| "--redis URL".to_owned()));
        words.join(" ")
    }
}

fn kind(name: &str) -> Result<LockKind, String> {
    name.parse().map_err(|error: leasehold::UnknownKind| error.to_string())
}
