//! `lockbench policies`: arguments to an experiment.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;

use crate::policies::{Choice, Experiment};
use crate::real::REAL_CLIENTS;
use crate::scenario::{LockType, POLICIES, ServerEvidence, Time};

/// What is asked of the experiment.
#[derive(Debug, clap::Args)]
pub(super) struct PoliciesArguments {
    /// Only these policies (see `lockbench list policies`).
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(names()), env = "LOCKBENCH_POLICY")]
    policy: Vec<String>,
    /// Only these faults: refuse, swallow, pending or delivered, with /all or /holders to strike everybody or only the holders.
    #[arg(long, value_delimiter = ',', env = "LOCKBENCH_FAULT")]
    fault: Vec<Choice>,
    /// How long the faults last, for a lease of 30 s: the scale shortens both.
    #[arg(long, value_delimiter = ',', value_parser = super::pause, env = "LOCKBENCH_PAUSE")]
    pause: Vec<Time>,
    /// Windows of each fault and length.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), env = "LOCKBENCH_REPS")]
    reps: Option<u32>,
    /// Locks that each policy holds in each window.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000), env = "LOCKBENCH_LOCKS")]
    locks: Option<u32>,
    /// Multiplies every time: 0.1 runs the lease of 30 s as 3 s, 1 takes ten times as long [default: 0.1].
    #[arg(long, env = "LOCKBENCH_SCALE")]
    scale: Option<f64>,
    /// The kind of lock (see `lockbench list locks`): the fenced one shows what tokens are worth.
    #[arg(long, default_value = "fenced", value_parser = kind, env = "LOCKBENCH_KIND")]
    kind: LockType,
    /// The whole grid: all policies and faults, eleven lengths, a thousand locks a cell; some thirteen minutes.
    #[arg(long, env = "LOCKBENCH_FULL")]
    full: bool,
    /// A part of the grid with the lease as it is, 30 s, to see that the scale changes nothing; some sixteen minutes.
    #[arg(long, conflicts_with_all = ["full", "scale"], env = "LOCKBENCH_UNSCALED")]
    unscaled: bool,
    /// Where to write result.json, report.html and summary.md [default: reports/local/policies].
    #[arg(short, long, env = "LOCKBENCH_OUT")]
    pub(super) out: Option<PathBuf>,
    /// Leaves what workers wrote down in the folder, some 100 MB of a full grid: `lockbench report --key` shows any lock from it.
    #[arg(long, env = "LOCKBENCH_KEEP_EVIDENCE")]
    pub(super) keep_evidence: bool,
    /// Orders the windows.
    #[arg(long, default_value_t = 42, env = "LOCKBENCH_SEED")]
    seed: u64,
    /// How it is known who owned which lock at the server [default: auto].
    #[arg(long, value_enum, value_name = "WHERE", env = "LOCKBENCH_SERVER_EVIDENCE")]
    server_evidence: Option<ServerEvidence>,
    /// Plain lines instead of bars, also on a terminal.
    #[arg(long, env = "LOCKBENCH_NO_TUI")]
    pub(super) no_tui: bool,
    /// With `-`: print result.json on stdout, and nothing else there.
    #[arg(long, value_name = "-", value_parser = ["-"], env = "LOCKBENCH_JSON")]
    pub(super) json: Option<String>,
}

impl PoliciesArguments {
    /// The experiment they ask for.
    pub(super) fn experiment(&self) -> Experiment {
        let mut experiment = if self.full {
            Experiment::full()
        } else if self.unscaled {
            Experiment::unscaled()
        } else {
            Experiment::quick()
        };
        if !self.policy.is_empty() {
            experiment.policies.clone_from(&self.policy);
            unique(&mut experiment.policies);
        }
        if !self.fault.is_empty() {
            experiment.faults = self.fault.iter().flat_map(|choice| choice.windows()).collect();
            unique(&mut experiment.faults);
        }
        if !self.pause.is_empty() {
            experiment.lengths.clone_from(&self.pause);
            unique(&mut experiment.lengths);
        }
        experiment.reps = self.reps.unwrap_or(experiment.reps);
        experiment.locks = self.locks.unwrap_or(experiment.locks);
        experiment.scale = self.scale.unwrap_or(experiment.scale);
        experiment.kind = self.kind;
        experiment.seed = self.seed;
        experiment.server = self.server_evidence.unwrap_or(experiment.server);
        experiment
    }

    /// The command that runs this again.
    pub(super) fn repeat(&self) -> String {
        let mut words = vec!["lockbench policies".to_owned()];
        let list = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join(","));
        let lists = [
            ("--policy", list(self.policy.clone())),
            ("--fault", list(self.fault.iter().map(Choice::to_string).collect())),
            ("--pause", list(self.pause.iter().map(Time::to_string).collect())),
            ("--reps", self.reps.map(|reps| reps.to_string())),
            ("--locks", self.locks.map(|locks| locks.to_string())),
            ("--scale", self.scale.map(|scale| scale.to_string())),
            ("--kind", Some(String::from(self.kind))),
            ("--seed", Some(self.seed.to_string())),
            ("--server-evidence", self.server_evidence.map(evidence_name)),
        ];
        words.extend(
            lists
                .into_iter()
                .filter_map(|(flag, value)| Some(format!("{flag} {}", value?))),
        );
        words.extend(self.full.then(|| "--full".to_owned()));
        words.extend(self.unscaled.then(|| "--unscaled".to_owned()));
        words.join(" ")
    }
}

/// The presets, and the real clients that some of them are named after.
fn names() -> impl Iterator<Item = &'static str> {
    let presets = POLICIES.into_iter().map(|(name, _)| name);
    presets.chain(REAL_CLIENTS.into_iter().map(|client| client.name))
}

/// Leaves out what was named before.
fn unique<T: PartialEq + Clone>(list: &mut Vec<T>) {
    let mut seen: Vec<T> = Vec::new();
    list.retain(|item| {
        let is_new = !seen.contains(item);
        seen.push(item.clone());
        is_new
    });
}

/// As the command line spells it.
fn evidence_name(evidence: ServerEvidence) -> String {
    let value = evidence.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn kind(name: &str) -> Result<LockType, String> {
    LockType::try_from(name.to_owned())
}
