//! The rounds of the model `held`: all policies hold locks side by side, rivals wait, one fault strikes.

use std::path::PathBuf;
use std::time::Duration;

use crate::clock;
use crate::evidence::Record;
use crate::job::{Note, Order, Role, first_key};
use crate::measure::{Checked, Outcome, Overhead, Round};
use crate::predict::Family;
use crate::proxy::Leg;
use crate::scenario::{FaultSpec, Scenario, nanos};
use crate::servers::RedisServer;

use super::facts::{self, RoundFacts};
use super::seen::{Seen, write_down};
use super::server_side::{self, Kept, ServerFacts};
use super::strike::Struck;
use super::team::Team;
use super::ticker::{ServerClock, Ticker};
use super::traces::Traces;
use super::{RunError, RunOptions, StallWatch, Target, fault_run, millis, phase, soon, strike};

/// Runs a round for each fault and puts what they measured into the outcome.
pub(crate) fn run_rounds(
    outcome: &mut Outcome,
    target: &Target,
    options: &RunOptions,
    stalls: &StallWatch,
) -> Result<(), RunError> {
    let scenario = outcome.scenario.clone();
    // Nobody else's server is asked for more than the workload asks.
    let ticker = match target.own() {
        Some([server, ..]) => Some(Ticker::start(&server.url(), format!("lockbench:{}:tick", outcome.run))?),
        _ => None,
    };
    for (index, spec) in scenario.faults.iter().enumerate() {
        for attempt in 0.. {
            if options.interrupt.is_set() {
                return Ok(());
            }
            let round = RoundRun {
                scenario: &scenario,
                spec,
                index,
                attempt,
                target,
                ticker: ticker.as_ref(),
                options,
                run: outcome.run.clone(),
            };
            let measured = round.run(stalls);
            options.progress.end();
            let measured = measured?;
            if let Some(grid) = &mut outcome.grid {
                if attempt < MOST_REPEATS
                    && let Some(flaw) = measured.round.flaw()
                {
                    grid.repeated += 1;
                    options.progress.line(&format!("repeated, since {flaw}"));
                    continue;
                }
                round.forget(&measured.round)?;
            }
            outcome.stall_max_ms = outcome.stall_max_ms.max(measured.round.stall_ms);
            outcome.checked.add(&measured.checked);
            outcome.faults.push(measured.round.fault.clone());
            outcome.rounds.push(measured.round);
            break;
        }
    }
    Ok(())
}

struct RoundRun<'a> {
    scenario: &'a Scenario,
    spec: &'a FaultSpec,
    index: usize,
    /// How often this round was run before.
    attempt: u32,
    target: &'a Target,
    ticker: Option<&'a Ticker>,
    options: &'a RunOptions,
    run: String,
}

/// What one round measured.
struct Measured {
    round: Round,
    checked: Checked,
}

/// How a round ended.
struct Ending {
    stall: Duration,
    origin_ns: u64,
    /// When all were told to give their locks back.
    finish_ns: u64,
    /// How the server's clock lies to ours, if its file is evidence and if it told.
    server: Option<Option<ServerClock>>,
}

impl RoundRun<'_> {
    fn run(&self, stalls: &StallWatch) -> Result<Measured, RunError> {
        let (scenario, options) = (self.scenario, self.options);
        let prefix = prefix(&self.run, self.index, self.attempt);
        let count = u64::from(scenario.workload.keys.count);
        let keys = (0..scenario.policies().len())
            .map(first_key)
            .flat_map(|first| first..first + count);
        let _traces = Traces::of(self.target, keys.map(|key| format!("{prefix}{key}")))?;
        let mut team = Team::new(self.target, &self.folder(), prefix)?;
        self.assemble(&mut team)?;
        if let Some((server, ticker)) = self.recording() {
            server_side::begin(server, ticker)?;
        }
        options.progress.begin(
            &format!(
                "round {} of {}: {}",
                self.index + 1,
                scenario.faults.len(),
                self.spec.kind.name()
            ),
            self.length(),
        );

        let origin_ns = soon();
        team.order(is_holder, Order::Start { at_ns: origin_ns });
        team.wait_for(
            "holding their locks",
            is_holder,
            |note| matches!(note, Note::Holding),
            &options.interrupt,
        )?;
        self.wait(origin_ns, scenario.scaled(scenario.workload.warm_up), "locks are held");
        let overhead = match self.ticker {
            Some(ticker) => ticker.rest(|| self.quiet(&team, origin_ns)),
            None => self.quiet(&team, origin_ns),
        }?;

        team.order(|role| !is_holder(role), Order::Start { at_ns: clock::now_ns() });
        self.wait(origin_ns, scenario.scaled(self.spec.at), "rivals wait");
        let scope = self.spec.scope;
        let struck = team.reach(|role| match role {
            Role::Holder { .. } => scope.reaches_holders(),
            Role::Rival { .. } | Role::Load => scope.reaches_rivals(),
        });
        if options.interrupt.is_set() {
            return Err(RunError::Interrupted);
        }
        self.wait_for_phase(&team)?;
        stalls.take();
        let struck = strike(scenario, self.spec, self.target, &struck, options)?;
        self.wait(origin_ns, self.after(), "the fault is over; leases run out");
        let stall = stalls.take();
        let finish_ns = clock::now_ns();
        team.finish()?;
        if options.interrupt.is_set() {
            return Err(RunError::Interrupted);
        }
        let evidence = team.evidence()?;
        drop(team);
        write_down(&self.folder(), &struck.records)?;
        let recorded = self.recording();
        let clock = recorded.map(|(server, ticker)| server_side::keep(server, ticker, &self.folder()));
        let ending = Ending {
            stall,
            origin_ns,
            finish_ns,
            server: clock.transpose()?,
        };
        self.judge(&evidence, &struck, ending, overhead)
    }

    /// The server whose append-only file is evidence, and what writes the time into it.
    fn recording(&self) -> Option<(&RedisServer, &Ticker)> {
        let server = self.target.own()?.first()?;
        let is_recorded = |_: &&Ticker| self.scenario.reads_append_only();
        self.ticker.filter(is_recorded).map(|ticker| (server, ticker))
    }

    fn folder(&self) -> PathBuf {
        self.options.folder.join(round_folder(self.index, self.attempt))
    }

    /// Removes the evidence of a round that nobody will want to look at again: a grid has hundreds of them.
    fn forget(&self, round: &Round) -> Result<(), RunError> {
        let folder = self.folder();
        if self.options.keep_evidence || round.policies.iter().any(|row| row.mismatches > 0) {
            return Ok(());
        }
        std::fs::remove_dir_all(&folder).map_err(|source| RunError::System {
            what: format!("remove the folder {}", folder.display()),
            source,
        })
    }

    /// How long the round goes on after its fault: until every lock that was lost has been taken by its rival.
    fn after(&self) -> Duration {
        let (lease, length) = (self.scenario.lease(), self.scenario.scaled(self.spec.length));
        let rest = match self.spec.kind.family() {
            // A renewal that was given up may have kept a lost lock alive for one more lease.
            Some(Family::Pending | Family::Delivered) | None => lease,
            // Told at the next attempt, or at the latest when the lease from before the fault is over.
            Some(Family::Refuse | Family::Swallow | Family::Frozen) => lease.saturating_sub(length).max(lease / 3),
        };
        rest + lease / 3
    }

    fn assemble(&self, team: &mut Team) -> Result<(), RunError> {
        let policies = self.scenario.policies();
        for (index, policy) in policies.iter().enumerate() {
            let role = Role::Holder {
                policy: policy.clone(),
                first_key: first_key(index),
                moments: self.spec.phase.moments(self.scenario.workload.keys.count),
            };
            team.add(self.scenario, self.target, role, (index as u32, policies.len() as u32))?;
        }
        let rivals = Role::Rival {
            first_keys: (0..policies.len()).map(first_key).collect(),
        };
        team.add(self.scenario, self.target, rivals, (0, 1))?;
        team.wait_for(
            "ready",
            |_| true,
            |note| matches!(note, Note::Ready),
            &self.options.interrupt,
        )
    }

    /// The quiet window, in which nothing happens but renewals: what they cost is what is spent in it.
    fn quiet(&self, team: &Team, origin_ns: u64) -> Result<Overhead, RunError> {
        let bytes = || {
            let holders = team.members().iter().filter(|member| is_holder(&member.role));
            holders
                .flat_map(|member| &member.legs)
                .map(Leg::bytes)
                .map(|bytes| bytes.to_server + bytes.to_client)
                .sum::<u64>()
        };
        let held = u64::from(self.scenario.workload.keys.count) * self.scenario.policies().len() as u64;
        let (from_ns, from, bytes_from) = (clock::now_ns(), self.target.executed()?, bytes());
        self.wait(
            origin_ns,
            self.scenario.scaled(self.scenario.workload.duration),
            "quiet: only renewals",
        );
        let (to, bytes_to) = (self.target.executed()?, bytes());
        let window = clock::since(from_ns);
        // A scaled lease is renewed more often by its scale: per minute of the lease as written.
        let minutes = window.as_secs_f64() / 60.0 / self.scenario.scale;
        let each = |count: u64| count as f64 / (held as f64 * minutes);
        Ok(Overhead {
            held,
            window_s: window.as_secs_f64(),
            commands: each(to.scripts.saturating_sub(from.scripts)),
            bytes: Some(each(bytes_to.saturating_sub(bytes_from))),
            server_us: each(to.script_us.saturating_sub(from.script_us)),
        })
    }

    fn judge(
        &self,
        evidence: &[Vec<Record>],
        struck: &Struck,
        ending: Ending,
        overhead: Overhead,
    ) -> Result<Measured, RunError> {
        let Ending {
            stall,
            origin_ns,
            finish_ns,
            server,
        } = ending;
        let (observed, seen) = (struck.observed, Seen::of(evidence, &struck.records));
        let intervals = seen.work.len() as u64;
        let fencing = facts::fencing(&seen.work);
        let frozen = facts::sum(&seen.frozen);
        let server = server
            .map(|clock| self.read_server_side(clock, finish_ns, &seen))
            .transpose()?;
        let facts = RoundFacts {
            scenario: self.scenario,
            spec: self.spec,
            observed,
            server: server.as_ref(),
            stall,
            busy: self
                .ticker
                .map_or(Duration::ZERO, |ticker| ticker.busy_after(observed.to_ns)),
            evidence,
            seen,
        };
        let checked = Checked {
            records: evidence.iter().map(|records| records.len() as u64).sum(),
            intervals,
            overlaps: facts::sum(&facts.seen.overlaps),
            frozen,
            fencing,
            ..Checked::default()
        };
        let round = Round {
            fault: fault_run(self.scenario, self.spec, observed, origin_ns),
            lease_ms: millis(self.scenario.lease()),
            stall_ms: millis(stall),
            late_ms: millis(facts.latest()),
            busy_ms: millis(facts.busy),
            out_of_phase: facts.out_of_phase(),
            server: server.as_ref().map(|server| server.side.clone()),
            overhead,
            policies: facts.policies(),
            timelines: facts.timelines(if self.options.grid { 1 } else { KEYS_SHOWN }),
        };
        Ok(Measured { round, checked })
    }

    fn read_server_side(
        &self,
        clock: Option<ServerClock>,
        finish_ns: u64,
        seen: &Seen,
    ) -> Result<ServerFacts, RunError> {
        let prefix = prefix(&self.run, self.index, self.attempt);
        let kept = Kept {
            path: &server_side::file(&self.folder()),
            prefix: &prefix,
            offset_ns: clock.map_or(0, ServerClock::offset_ns),
            finish_ns,
        };
        let mut facts = ServerFacts::read(&kept, self.scenario, seen)?;
        facts.side.offset_bound_us = clock.map(|clock| clock.bound() as f64 / 1e3);
        Ok(facts)
    }

    /// Waits for the phase of renewals in which the fault is to strike; if it never comes, the locks that are met tell.
    fn wait_for_phase(&self, team: &Team) -> Result<(), RunError> {
        let period = self.scenario.lease() / 3;
        let until_ns = clock::now_ns() + nanos(MOST_PERIODS * period);
        if self.spec.phase.is_spread() {
            return Ok(());
        }
        while !phase::is_now(self.spec.phase, &team.evidence()?, period, clock::now_ns())
            && clock::now_ns() < until_ns
            && self.options.interrupt.sleep(LOOK)
        {}
        Ok(())
    }

    fn wait(&self, origin_ns: u64, time: Duration, what: &str) {
        let until_ns = clock::now_ns() + nanos(time);
        while clock::now_ns() < until_ns {
            self.options.progress.at(clock::since(origin_ns), what);
            let rest = Duration::from_nanos(until_ns.saturating_sub(clock::now_ns()));
            if !self.options.interrupt.sleep(rest.min(TICK)) {
                return;
            }
        }
    }

    /// How long the round takes, to within its acquisitions.
    fn length(&self) -> Duration {
        let (scenario, lease) = (self.scenario, self.scenario.lease());
        let parts = [
            scenario.workload.warm_up,
            scenario.workload.duration,
            self.spec.at,
            self.spec.length,
        ];
        parts.into_iter().map(|time| scenario.scaled(time)).sum::<Duration>() + lease / 3 + self.after()
    }
}

/// Where the evidence of a round lies, by its index and how often it was run before.
pub(super) fn round_folder(index: usize, attempt: u32) -> String {
    match attempt {
        0 => format!("round-{}", index + 1),
        again => format!("round-{}-again-{again}", index + 1),
    }
}

/// What the names of its locks begin with.
pub(super) fn prefix(run: &str, index: usize, attempt: u32) -> String {
    format!("lockbench:{run}:{index}.{attempt}:")
}

fn is_holder(role: &Role) -> bool {
    matches!(role, Role::Holder { .. })
}

const TICK: Duration = Duration::from_millis(100);

/// How often it is looked at what phase the renewals are in.
const LOOK: Duration = Duration::from_millis(4);

/// For so long the phase is waited for: later the locks are further apart, not nearer.
const MOST_PERIODS: u32 = 3;

/// A picture of more keys says no more.
const KEYS_SHOWN: usize = 4;

/// A machine that is never quiet does not keep a grid going for ever.
const MOST_REPEATS: u32 = 2;
