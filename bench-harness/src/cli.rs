//! The command line: arguments to a scenario, a run and an exit code.

mod advise;
mod capacity;
mod policies;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::measure::Outcome;
use crate::measure::metrics::METRICS;
use crate::peer_driver::PeerDriver;
use crate::predict::{self, Family};
use crate::real::REAL_CLIENTS;
use crate::run::{RunError, RunOptions};
use crate::scenario::{
    FaultKind, LockType, NOT_HERE, POLICIES, RedisMode, SHORTEST_LEASE, Scenario, ScenarioError, Stock, Time, WORKLOADS,
};
use crate::terminal::{self, Progress};
use crate::{exit, peer_driver, results, worker};

/// Load and faults for Redis locks, with a checker that no lock can talk out of anything.
#[derive(Debug, Parser)]
#[command(name = "lockbench", version, about, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scenario and write a report.
    Run(Box<RunArguments>),
    /// Give up at once, or try N times? Every renewal policy through the same faults, measured beside predicted.
    Policies(Box<policies::PoliciesArguments>),
    /// List what there is to choose from.
    List {
        /// Of what.
        what: List,
    },
    /// What each renewal policy must lose, by the design's closed forms: needs no Redis.
    Predict(PredictArguments),
    /// How much a workload bears: the highest rate that keeps a promise, what limits it, and what a sale would do. Some minutes.
    Capacity(capacity::CapacityArguments),
    /// Which lock for a workload: the same requests against each kind, and an answer with a number behind each clause; may be "no lock".
    Advise(advise::AdviseArguments),
    /// Make the report again, from the result.json in a folder; or the advice, from what its advice.json says was measured.
    Report(ReportArguments),
    /// Print the JSON Schema of result.json, or of advice.json.
    Schema {
        /// Of which.
        #[arg(default_value = "result")]
        of: Document,
    },
    /// Be a worker process; started by `run`.
    #[command(hide = true)]
    Worker,
    /// Be measured by a runner that measures lock libraries beside each other.
    #[command(hide = true)]
    Driver(PeerDriver),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Document {
    /// What `run` and `policies` write.
    Result,
    /// What `advise` writes.
    Advice,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum List {
    /// Scenarios that come with lockbench.
    Scenarios,
    /// What a holder can do when a renewal fails.
    Policies,
    /// What can go wrong.
    Faults,
    /// Kinds of lock.
    Locks,
    /// What thresholds can ask for.
    Metrics,
    /// When requests come, which keys they want and how long they work, as a scenario writes it.
    Workloads,
}

#[derive(Debug, clap::Args)]
struct RunArguments {
    /// A stock scenario (see `lockbench list scenarios`) or the path of a file.
    #[arg(env = "LOCKBENCH_SCENARIO")]
    scenario: String,
    /// Where to write result.json, report.html, summary.md and the evidence [default: reports/local/NAME].
    #[arg(short, long, env = "LOCKBENCH_OUT")]
    out: Option<PathBuf>,
    /// Take this seed instead of the scenario's.
    #[arg(long, env = "LOCKBENCH_SEED")]
    seed: Option<u64>,
    /// Change a value of the scenario, as lock.lease=10s or fault.0.for=5s; may be given several times.
    #[arg(long, value_name = "PATH=VALUE", env = "LOCKBENCH_SET", value_delimiter = ';')]
    set: Vec<String>,
    /// Use this Redis, as redis://host:port or unix:///path; without it one is started and ended.
    #[arg(long, value_name = "URL", env = "LOCKBENCH_REDIS")]
    redis: Option<String>,
    /// Allow faults that disturb everybody on the Redis given by --redis.
    #[arg(long, env = "LOCKBENCH_ALLOW_FAULTS")]
    allow_faults: bool,
    /// A few seconds only, to see whether a scenario works; its numbers say little.
    #[arg(long, env = "LOCKBENCH_QUICK")]
    quick: bool,
    /// Plain lines instead of bars, also on a terminal.
    #[arg(long, env = "LOCKBENCH_NO_TUI")]
    no_tui: bool,
    /// With `-`: print result.json on stdout, and nothing else there.
    #[arg(long, value_name = "-", value_parser = ["-"], env = "LOCKBENCH_JSON")]
    json: Option<String>,
}

#[derive(Debug, clap::Args)]
struct PredictArguments {
    /// Only these policies (see `lockbench list policies`, and next-tick: one attempt a period).
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(predict::POLICIES), env = "LOCKBENCH_POLICY")]
    policy: Vec<String>,
    /// How long Redis keeps a lock that is not renewed.
    #[arg(long, default_value = "30s", value_parser = lease, env = "LOCKBENCH_LEASE")]
    lease: Time,
    /// Only faults of these families.
    #[arg(long, value_delimiter = ',', env = "LOCKBENCH_FAULT")]
    fault: Vec<Family>,
    /// How long the faults last.
    #[arg(long, value_delimiter = ',', default_value = "1s,5s,10s,15s,20s,25s,30s", value_parser = pause,
        env = "LOCKBENCH_PAUSE")]
    pause: Vec<Time>,
    /// Print JSON instead of the table; `--json -` is the same.
    #[arg(long, value_name = "-", num_args = 0..=1, default_missing_value = "-", value_parser = ["-"], env = "LOCKBENCH_JSON")]
    json: Option<String>,
}

/// Does what the arguments say; the code is one of [`exit`].
pub fn main(arguments: Cli) -> ExitCode {
    let code = match arguments.command {
        Command::Worker => return worker::work(),
        Command::Driver(arguments) => {
            return match peer_driver::drive(arguments) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("lockbench: {error}");
                    ExitCode::from(exit::ENVIRONMENT)
                }
            };
        }
        Command::List { what } => Ok(list(what)),
        Command::Predict(arguments) => Ok(predict(&arguments)),
        Command::Schema { of } => {
            let schema = match of {
                Document::Result => results::json_schema(),
                Document::Advice => results::advice_schema(),
            };
            print!("{schema}");
            Ok(exit::GOOD)
        }
        Command::Report(arguments) => report_again(&arguments).map_err(Failure::Run),
        Command::Run(arguments) => run(&arguments),
        Command::Policies(arguments) => run_policies(&arguments),
        Command::Capacity(arguments) => run_capacity(&arguments),
        Command::Advise(arguments) => run_advise(&arguments),
    };
    ExitCode::from(code.unwrap_or_else(|failure| {
        eprintln!("lockbench: {failure}");
        failure.code()
    }))
}

/// What is asked of a report that is made again.
#[derive(Debug, clap::Args)]
struct ReportArguments {
    /// The folder.
    folder: PathBuf,
    /// Show single locks of this round of the model `held`, counted from one.
    #[arg(long, requires = "lock", env = "LOCKBENCH_ROUND")]
    round: Option<usize>,
    /// Which ones, by policy and number, like `deadline#17`. Needs the evidence: `policies` keeps it with --keep-evidence, `run` always.
    #[arg(long, requires = "round", value_delimiter = ',', value_parser = looked_up, env = "LOCKBENCH_LOCK")]
    lock: Vec<(String, u64)>,
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Scenario(error) if error.is_of_a_fault_that_is_not_here() => exit::ENVIRONMENT,
            Self::Scenario(_) => exit::USAGE,
            Self::Run(RunError::Interrupted) => exit::INTERRUPTED,
            Self::Run(RunError::Url { .. }) => exit::USAGE,
            Self::Run(_) => exit::ENVIRONMENT,
        }
    }
}

fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    measure(Order {
        scenario: scenario(arguments)?,
        repeat: repeat(arguments),
        out: arguments.out.as_deref(),
        allow_faults: arguments.allow_faults,
        grid: false,
        keep_evidence: true,
        no_tui: arguments.no_tui,
        json: arguments.json.is_some(),
    })
}

fn run_policies(arguments: &policies::PoliciesArguments) -> Result<u8, Failure> {
    measure(Order {
        scenario: arguments.experiment().scenario()?,
        repeat: arguments.repeat(),
        out: arguments.out.as_deref(),
        allow_faults: false,
        grid: true,
        keep_evidence: arguments.keep_evidence,
        no_tui: arguments.no_tui,
        json: arguments.json.is_some(),
    })
}

fn run_capacity(arguments: &capacity::CapacityArguments) -> Result<u8, Failure> {
    let question = arguments.question()?;
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => Path::new("reports/local").join(format!("capacity-{}", question.scenario.name)),
    };
    let json = arguments.json.is_some();
    let answer = crate::capacity::find(&question, &quiet_options(&folder, json, arguments.no_tui)?)?;
    let text = crate::capacity::text(&answer);
    tell_answer(results::ANSWER, &answer, &text, &folder, json)?;
    Ok(answer.exit)
}

fn run_advise(arguments: &advise::AdviseArguments) -> Result<u8, Failure> {
    let question = arguments.question()?;
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => Path::new("reports/local").join(format!("advise-{}", question.scenario.name)),
    };
    let json = arguments.json.is_some();
    let answer = crate::advise::find(&question, &quiet_options(&folder, json, arguments.no_tui)?)?;
    let text = crate::advise::text(&answer);
    tell_answer(results::ADVICE, &answer, &text, &folder, json)?;
    Ok(answer.exit)
}

/// How the runs of a question are made: without faults, and of each only its numbers stay.
fn quiet_options(folder: &Path, json: bool, no_tui: bool) -> Result<RunOptions, RunError> {
    Ok(RunOptions {
        folder: folder.to_owned(),
        allow_faults: false,
        grid: false,
        keep_evidence: false,
        progress: progress(json, no_tui),
        interrupt: interrupt()?,
    })
}

/// Writes an answer, and prints it as data or as text.
fn tell_answer(name: &str, answer: &impl Serialize, text: &str, folder: &Path, json: bool) -> Result<(), RunError> {
    let written = results::write_answer(name, answer, text, folder)?;
    if json {
        println!("{written}");
    } else {
        print!("{text}");
        println!(" answer: {}", folder.join(name).display());
    }
    Ok(())
}

/// What is run, and how its outcome is told.
struct Order<'a> {
    scenario: Scenario,
    repeat: String,
    out: Option<&'a Path>,
    allow_faults: bool,
    grid: bool,
    keep_evidence: bool,
    no_tui: bool,
    json: bool,
}

/// Ctrl-C asks for an end from now on.
fn interrupt() -> Result<Interrupt, RunError> {
    Interrupt::listen().map_err(|source| RunError::System {
        what: "listen for Ctrl-C".to_owned(),
        source,
    })
}

/// Who asks for data on stdout wants nothing told meanwhile.
fn progress(json: bool, plain: bool) -> Progress {
    if json { Progress::silent() } else { Progress::new(plain) }
}

fn measure(order: Order<'_>) -> Result<u8, Failure> {
    let folder = match order.out {
        Some(folder) => folder.to_owned(),
        None => Path::new("reports/local").join(&order.scenario.name),
    };
    let options = RunOptions {
        folder: folder.clone(),
        allow_faults: order.allow_faults,
        grid: order.grid,
        keep_evidence: order.keep_evidence,
        progress: progress(order.json, order.no_tui),
        interrupt: interrupt()?,
    };
    let outcome = crate::run(order.scenario, order.repeat, &options)?;
    let outcome = results::write(&outcome, &folder)?;
    if order.json {
        println!("{}", results::to_json(&outcome)?);
    } else {
        let colour =
            std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        print!("{}", terminal::summary(&outcome, colour));
        println!(" report: {}", folder.join(results::PAGE).display());
    }
    Ok(outcome.exit)
}

fn scenario(arguments: &RunArguments) -> Result<Scenario, ScenarioError> {
    let mut scenario = Scenario::read(&arguments.scenario, &arguments.set)?;
    if let Some(seed) = arguments.seed {
        scenario.seed = seed;
    }
    use_redis(&mut scenario, arguments.redis.as_ref());
    // It may be asked for less than a server of ours.
    scenario = scenario.checked("--redis")?;
    if arguments.quick {
        scenario.quicken();
    }
    Ok(scenario)
}

/// Runs it on this Redis, if one is given.
fn use_redis(scenario: &mut Scenario, url: Option<&String>) {
    if let Some(url) = url {
        scenario.redis.mode = RedisMode::Url;
        scenario.redis.url = Some(url.clone());
        scenario.redis.config.clear();
    }
}

/// The command that runs this again. A URL may hold a password, so it is left to the reader.
fn repeat(arguments: &RunArguments) -> String {
    let mut words = vec!["lockbench run".to_owned(), quoted(&arguments.scenario)];
    words.extend(arguments.seed.map(|seed| format!("--seed {seed}")));
    words.extend(arguments.set.iter().map(|set| format!("--set {}", quoted(set))));
    words.extend(arguments.redis.as_ref().map(|_| "--redis URL".to_owned()));
    words.extend(arguments.allow_faults.then(|| "--allow-faults".to_owned()));
    words.extend(arguments.quick.then(|| "--quick".to_owned()));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = word
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_./=:%+,".contains(c));
    if plain {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn report_again(arguments: &ReportArguments) -> Result<u8, RunError> {
    let folder = &arguments.folder;
    if !folder.join(results::RESULT).exists() && folder.join(results::ADVICE).exists() {
        let mut answer = results::read_advice(folder)?;
        answer.judge();
        results::write_answer(results::ADVICE, &answer, &crate::advise::text(&answer), folder)?;
        println!("{}", folder.join(results::SUMMARY).display());
        return Ok(exit::GOOD);
    }
    let outcome: Outcome = results::read(folder)?;
    let looked_up = match arguments.round {
        Some(round) => Some((round, crate::run::look_up(&outcome, folder, round, &arguments.lock)?)),
        None => None,
    };
    results::write_pages(
        &outcome,
        looked_up.as_ref().map(|(number, round)| (*number, round)),
        folder,
    )?;
    println!("{}", folder.join(results::PAGE).display());
    Ok(exit::GOOD)
}

fn looked_up(text: &str) -> Result<(String, u64), String> {
    let lock = text
        .rsplit_once('#')
        .and_then(|(policy, number)| Some((policy.to_owned(), number.parse().ok()?)));
    lock.ok_or_else(|| format!("{text:?} names no lock: write a policy and a number, like deadline#17"))
}

fn predict(arguments: &PredictArguments) -> u8 {
    let policies: Vec<&str> = match &arguments.policy[..] {
        [] => predict::POLICIES.to_vec(),
        chosen => chosen.iter().map(String::as_str).collect(),
    };
    let families = match &arguments.fault[..] {
        [] => Family::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    let faults: Vec<_> = arguments.pause.iter().map(|pause| pause.0).collect();
    // The arguments were checked: there is a model of each policy.
    let Some(table) = predict::Table::of(&policies, &families, &faults, arguments.lease.0) else {
        return exit::USAGE;
    };
    match serde_json::to_string_pretty(&table) {
        Ok(json) if arguments.json.is_some() => println!("{json}"),
        _ => print!("{table}"),
    }
    exit::GOOD
}

fn lease(text: &str) -> Result<Time, String> {
    let lease: Time = text.parse()?;
    if (SHORTEST_LEASE..=LONGEST).contains(&lease.0) {
        Ok(lease)
    } else {
        Err(format!(
            "a lease is from {SHORTEST_LEASE:?} to {LONGEST:?} long; write 30s"
        ))
    }
}

fn pause(text: &str) -> Result<Time, String> {
    let pause: Time = text.parse()?;
    if pause.0 <= LONGEST {
        Ok(pause)
    } else {
        Err(format!("a fault lasts {LONGEST:?} at most; write 5s"))
    }
}

fn list(what: List) -> u8 {
    let rows: Vec<(String, String)> = match what {
        List::Scenarios => Stock::all()
            .map(|stock| {
                let question = Scenario::read(stock.name, &[]).map(|scenario| scenario.question);
                (
                    stock.name.to_owned(),
                    question.unwrap_or_else(|error| error.to_string()),
                )
            })
            .collect(),
        List::Policies => POLICIES
            .iter()
            .map(|(name, what)| (*name, *what))
            .chain(REAL_CLIENTS.iter().map(|client| (client.name, client.what)))
            .map(|(name, what)| (name.to_owned(), what.to_owned()))
            .collect(),
        List::Faults => FaultKind::ALL
            .iter()
            .map(|kind| (kind.name().to_owned(), kind.what().to_owned()))
            .chain(NOT_HERE.map(|(name, reason)| (name.to_owned(), format!("not here: {reason}"))))
            .collect(),
        List::Locks => LockType::all()
            .map(|lock| (String::from(lock), lock.what().to_owned()))
            .collect(),
        List::Metrics => METRICS
            .iter()
            .map(|metric| (metric.name.to_owned(), metric.what.to_owned()))
            .collect(),
        List::Workloads => WORKLOADS
            .iter()
            .map(|(line, what)| ((*line).to_owned(), (*what).to_owned()))
            .collect(),
    };
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, what) in rows {
        println!("{name:<width$}  {what}");
    }
    exit::GOOD
}

/// Longer ones say nothing more.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

const EXIT_CODES: &str = "Exit codes: 0 all held; 2 wrong usage or scenario; 3 environment; 4 two workers under one lock; \
5 a threshold failed; 7 not a valid measurement; 130 interrupted.
Every option is also read from LOCKBENCH_… (LOCKBENCH_SEED, LOCKBENCH_REDIS; LOCKBENCH_SET takes several, separated by ;).";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_repeat_line_holds_all_that_matters_but_no_url() {
        let words =
            "lockbench run hot-key --seed 7 --set lock.lease=5s --set a.b=[1] --redis redis://u:secret@h --quick";
        let Command::Run(arguments) = Cli::parse_from(words.split(' ')).command else {
            panic!("no run")
        };
        assert_eq!(
            repeat(&arguments),
            "lockbench run hot-key --seed 7 --set lock.lease=5s --set 'a.b=[1]' --redis URL --quick"
        );
    }

    #[test]
    fn what_to_predict_is_checked_when_it_is_read() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        assert!(
            parse("lockbench predict --policy deadline,next-tick --fault refuse,pending --pause 1s,5s --json").is_ok()
        );
        for (words, tip) in [
            ("lockbench predict --policy hope", "redisson-3.44"),
            ("lockbench predict --fault pause", "delivered"),
            ("lockbench predict --pause 3", "write 500ms"),
            ("lockbench predict --lease 1ms", "write 30s"),
        ] {
            let refusal = parse(words).unwrap_err().to_string();
            assert!(refusal.contains(tip), "{refusal}");
        }
    }

    #[test]
    fn options_change_the_scenario() {
        let words = "lockbench run pause-demo --seed 9 --redis redis://host --set workload.keys.count=8";
        let Command::Run(arguments) = Cli::parse_from(words.split(' ')).command else {
            panic!("no run")
        };
        let scenario = scenario(&arguments).unwrap();
        assert_eq!((scenario.seed, scenario.workload.keys.count), (9, 8));
        assert_eq!(scenario.redis.url.as_deref(), Some("redis://host"));
    }
}
