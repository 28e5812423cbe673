//! `lockbench capacity`: arguments to a question.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::capacity::Question;
use crate::scenario::{Limit, Scenario, ScenarioError, Time};

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct CapacityArguments {
    /// A stock scenario (see `lockbench list scenarios`) or the path of a file; the clients of a closed one become arrivals.
    #[arg(env = "LOCKBENCH_SCENARIO")]
    scenario: String,
    /// What must hold, as acquire.p99<50ms; may be given several times.
    #[arg(long, required = true, value_delimiter = ',', value_parser = promise, env = "LOCKBENCH_SLO")]
    slo: Vec<(String, Limit)>,
    /// The rate to begin with, in arrivals a second.
    #[arg(long, default_value_t = 100.0, value_parser = rate, env = "LOCKBENCH_FROM")]
    from: f64,
    /// The highest rate to try.
    #[arg(long, default_value_t = 100_000.0, value_parser = rate, env = "LOCKBENCH_TO")]
    to: f64,
    /// How near the answer shall be.
    #[arg(long, default_value = "5%", value_parser = percent, env = "LOCKBENCH_RESOLUTION")]
    resolution: u8,
    /// How long each rate is tried; p99 needs a thousand arrivals in it.
    #[arg(long, default_value = "10s", env = "LOCKBENCH_STEP")]
    step: Time,
    /// Change a value of the scenario, as lock.type=fair; may be given several times.
    #[arg(long, value_name = "PATH=VALUE", env = "LOCKBENCH_SET", value_delimiter = ';')]
    set: Vec<String>,
    /// Take this seed instead of the scenario's.
    #[arg(long, env = "LOCKBENCH_SEED")]
    seed: Option<u64>,
    /// Use this Redis, as redis://host:port or unix:///path; without it one is started and ended.
    #[arg(long, value_name = "URL", env = "LOCKBENCH_REDIS")]
    redis: Option<String>,
    /// Where to write capacity.json and summary.md [default: reports/local/capacity-NAME].
    #[arg(short, long, env = "LOCKBENCH_OUT")]
    pub(super) out: Option<PathBuf>,
    /// Plain lines instead of bars, also on a terminal.
    #[arg(long, env = "LOCKBENCH_NO_TUI")]
    pub(super) no_tui: bool,
    /// With `-`: print capacity.json on stdout, and nothing else there.
    #[arg(long, value_name = "-", value_parser = ["-"], env = "LOCKBENCH_JSON")]
    pub(super) json: Option<String>,
}

impl CapacityArguments {
    /// The question they ask.
    pub(super) fn question(&self) -> Result<Question, ScenarioError> {
        let mut scenario = Scenario::read(&self.scenario, &self.set)?;
        scenario.seed = self.seed.unwrap_or(scenario.seed);
        super::use_redis(&mut scenario, self.redis.as_ref());
        // A server that is not ours is asked for no more than that.
        let most = scenario.max_rate().map_or(f64::INFINITY, |most| most.0);
        let question = Question {
            scenario,
            promises: self.slo.iter().cloned().collect::<BTreeMap<_, _>>(),
            rates: (self.from.min(most), self.to.max(self.from).min(most)),
            resolution: f64::from(self.resolution) / 100.0,
            step: self.step.0,
            repeat: self.repeat(),
        };
        question.check()?;
        Ok(question)
    }

    fn repeat(&self) -> String {
        let mut words = vec![format!("lockbench capacity {}", super::quoted(&self.scenario))];
        words.extend(
            self.slo
                .iter()
                .map(|(metric, limit)| format!("--slo '{metric}{limit}'")),
        );
        words.push(format!(
            "--from {} --to {} --resolution {}% --step {}",
            self.from, self.to, self.resolution, self.step
        ));
        words.extend(self.set.iter().map(|set| format!("--set {}", super::quoted(set))));
        words.extend(self.seed.map(|seed| format!("--seed {seed}")));
        words.extend(self.redis.as_ref().map(|_| "--redis URL".to_owned()));
        words.join(" ")
    }
}

fn promise(text: &str) -> Result<(String, Limit), String> {
    let split = text
        .find(['<', '>', '='])
        .ok_or_else(|| format!("{text:?} promises nothing: write acquire.p99<50ms"))?;
    let (metric, limit) = text.split_at(split);
    Ok((metric.trim().to_owned(), limit.parse()?))
}

fn percent(text: &str) -> Result<u8, String> {
    let number = text
        .trim_end_matches('%')
        .parse()
        .ok()
        .filter(|percent| (1..=50).contains(percent));
    number.ok_or_else(|| format!("{text:?} is no part of a rate: write 1% to 50%"))
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text
        .trim_end_matches("/s")
        .parse::<f64>()
        .ok()
        .filter(|rate| (1.0..=1e7).contains(rate));
    number.ok_or_else(|| format!("{text:?} is no rate: write arrivals a second, from 1 to 10000000"))
}
