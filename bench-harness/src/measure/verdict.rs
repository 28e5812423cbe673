//! Verdict: from what was measured to metrics, thresholds, findings and the exit code.

use std::collections::BTreeMap;

use super::{
    FaultRun, Finding, Lengths, LockRow, Outcome, PolicyRow, Round, ServerSide, Severity, ThresholdRun, Wrong, grid,
    struck,
};
use crate::exit;
use crate::scenario::Model;

/// Fills in what follows from the measurements: metrics, thresholds, findings, verdict and exit code.
pub fn judge(outcome: &mut Outcome) {
    outcome.metrics = metrics(outcome);
    outcome.thresholds = thresholds(outcome);
    let mut findings = std::mem::take(&mut outcome.findings);
    findings.extend(flaws(outcome));
    findings.extend(generator_too_late(outcome));
    findings.extend(law_broken(outcome));
    findings.extend(contradictions(outcome));
    findings.extend(struck::without_effect(outcome));
    findings.extend(struck::notes(outcome));
    outcome.findings = findings;
    outcome.exit = exit_code(outcome);
    outcome.verdict = verdict(outcome);
}

fn metrics(outcome: &Outcome) -> BTreeMap<String, Option<f64>> {
    let mut metrics = BTreeMap::new();
    let mut set = |name: &str, value: Option<f64>| metrics.insert(name.to_owned(), value);
    let overlaps = &outcome.checked.overlaps;
    set("overlap.count", Some(overlaps.count as f64));
    set("overlap.max", Some(overlaps.max_ms));
    set("frozen.count", Some(outcome.checked.frozen.count as f64));
    set("frozen.max", Some(outcome.checked.frozen.max_ms));
    let fencing = &outcome.checked.fencing;
    set("stale.accepted", Some(fencing.stale_accepted as f64));
    set("stale.rejected", Some(fencing.stale_rejected as f64));
    set("fence.disorder", Some(fencing.disorder as f64));
    if let Some(load) = &outcome.load {
        set("acquire.p50", load.acquire.p50_ms);
        set("acquire.p90", load.acquire.p90_ms);
        set("acquire.p99", load.acquire.p99_ms);
        set("acquire.p999", load.acquire.p999_ms);
        set("acquire.max", load.acquire.max_ms);
        set("service.p99", load.service.p99_ms);
        set("throughput", Some(load.throughput_per_s));
        set("attempts", load.attempts_per_success);
        set("commands", load.commands_per_lock);
        set("acquired", Some(load.successes as f64));
        set("hold.mean", load.hold.mean_ms);
        set("hold.max", load.hold.max_ms);
        set("hand_over.mean", load.hand_over.mean_ms);
        set("read.share", load.read_share);
        set("contended.share", load.contended_share);
        set("timeouts", Some(load.timeouts as f64));
        set("errors", Some(load.errors.values().sum::<u64>() as f64));
        set("dropped", Some(load.dropped as f64));
        set("cancelled", Some(load.cancelled as f64));
        set("orphan.count", Some(outcome.checked.orphans.count as f64));
        set("orphan.max", outcome.checked.orphans.max_ms);
        set("fairness.jain", load.fairness());
        let turns = &outcome.checked.turns;
        let served = |count: u64| (turns.served > 0).then_some(count as f64);
        set("fairness.overtakes.max", served(turns.overtakes_max));
        set("fairness.overtakes.p99", served(turns.overtakes_p99));
        set("fairness.starved", served(turns.starved));
        set("lost_updates", load.lost_updates.map(|lost| lost as f64));
        set("gen.lag.p99", load.generator_lag.p99_ms);
        let little = load.little.as_ref();
        set("in_system", little.map(|little| little.mean_in_system));
    }
    let rows = || outcome.rounds.iter().flat_map(|round| &round.policies);
    if !outcome.rounds.is_empty() {
        set("server.owned_twice", of_server(outcome, |side| side.owned_twice));
        set(
            "server.tokens_that_fell",
            of_server(outcome, |side| side.tokens_that_fell),
        );
        set(
            "server.grants_without_work",
            of_server(outcome, |side| side.grants_without_work),
        );
        policy_metrics(&mut metrics, "", &rows().collect::<Vec<_>>());
        for policy in outcome.scenario.policies() {
            let of_policy: Vec<_> = rows().filter(|row| row.policy == policy).collect();
            policy_metrics(&mut metrics, &format!("@{policy}"), &of_policy);
        }
    }
    metrics
}

/// Sums up what the append-only files say; nothing if they were not all read.
fn of_server(outcome: &Outcome, count: fn(&ServerSide) -> u64) -> Option<f64> {
    let sides = outcome.rounds.iter().map(|round| round.server.as_ref().map(count));
    sides.sum::<Option<u64>>().map(|sum| sum as f64)
}

fn policy_metrics(metrics: &mut BTreeMap<String, Option<f64>>, suffix: &str, rows: &[&PolicyRow]) {
    let sum = |count: fn(&PolicyRow) -> u64| Some(rows.iter().map(|row| count(row)).sum::<u64>() as f64);
    let told = rows
        .iter()
        .filter_map(|row| Some(row.told.as_ref()?.max_ms))
        .reduce(f64::max);
    let longest = rows.iter().map(|row| row.overlaps.max_ms).fold(0.0, f64::max);
    let exposure = Lengths::sum(rows.iter().map(|row| row.exposure));
    let orphan = Lengths::sum(rows.iter().map(|row| row.orphan));
    let values = [
        ("exposure.count", exposure.map(|exposure| exposure.count as f64)),
        ("exposure.max", exposure.map(|exposure| exposure.max_ms)),
        ("orphan.count", orphan.map(|orphan| orphan.count as f64)),
        ("orphan.max", orphan.map(|orphan| orphan.max_ms)),
        ("held", sum(|row| row.held)),
        ("lost.total", sum(|row| row.lost)),
        ("lost.needless", sum(|row| row.needless)),
        ("told.max", told),
        ("prediction.mismatches", sum(|row| row.mismatches)),
        ("overlap.count", sum(|row| row.overlaps.count)),
        ("overlap.max", Some(longest)),
        ("stale.accepted", sum(|row| row.fencing.stale_accepted)),
        ("stale.rejected", sum(|row| row.fencing.stale_rejected)),
    ];
    metrics.extend(values.map(|(name, value)| (format!("{name}{suffix}"), value)));
}

fn thresholds(outcome: &Outcome) -> Vec<ThresholdRun> {
    let limits = &outcome.scenario.thresholds;
    limits
        .iter()
        .map(|(metric, limit)| {
            let measured = outcome.metrics.get(metric).copied().flatten();
            ThresholdRun {
                metric: metric.clone(),
                limit: limit.to_string(),
                measured,
                holds: limit.holds(measured),
            }
        })
        .collect()
}

/// Faults that were not as asked, and rounds in which the machine stood still.
fn flaws(outcome: &Outcome) -> Vec<Finding> {
    let of_rounds = outcome.rounds.iter().filter_map(Round::flaw);
    let of_load = outcome.faults.iter().filter_map(FaultRun::flaw);
    let invalid = |text| Finding {
        severity: Severity::Invalid,
        text,
    };
    if outcome.rounds.is_empty() {
        of_load.map(invalid).collect()
    } else {
        of_rounds.map(invalid).collect()
    }
}

fn generator_too_late(outcome: &Outcome) -> Option<Finding> {
    let load = outcome.load.as_ref()?;
    let lag = load.generator_lag.p99_ms.or(load.generator_lag.max_ms)?;
    (lag > MOST_LAG_MS).then(|| Finding {
        severity: Severity::Invalid,
        text: format!(
            "the generator was {lag:.1} ms late at p99, more than {MOST_LAG_MS} ms: lower the rate, or give it more cores"
        ),
    })
}

/// The latencies are not of all requests that were there.
fn law_broken(outcome: &Outcome) -> Option<Finding> {
    let text = outcome.load.as_ref()?.little.as_ref()?.flaw()?;
    Some(Finding {
        severity: Severity::Invalid,
        text,
    })
}

fn contradictions(outcome: &Outcome) -> Vec<Finding> {
    let mut findings = Vec::new();
    for round in &outcome.rounds {
        for row in &round.policies {
            let contradicting = row.locks.iter().filter(|lock| lock.contradicts());
            findings.extend(contradicting.take(MOST_NAMED).map(|lock| Finding {
                severity: Severity::Note,
                text: format!(
                    "{} under {}: lock {} {}",
                    row.policy,
                    round.fault.kind.name(),
                    lock.key,
                    contradiction(lock)
                ),
            }));
        }
    }
    findings
}

/// What became of a lock beside what the model says of it.
fn contradiction(lock: &LockRow) -> String {
    let told = |ms: Option<f64>| {
        ms.map_or("never".to_owned(), |ms| {
            format!("{ms:+.0} ms from the end of its lease")
        })
    };
    let said = |wrong: &Wrong| match wrong {
        Wrong::Fate => format!(
            "was {}, the model says {} ({:.0} ms from the boundary, tolerance {:.0} ms)",
            fate(lock.lost),
            fate(lock.predicted_lost),
            lock.distance_ms.abs(),
            lock.band_ms
        ),
        Wrong::Told => format!(
            "was told {}, the model says {}",
            told(lock.told_ms),
            told(lock.predicted_told_ms)
        ),
        Wrong::Overlap => format!(
            "had two at work for {:.0} ms, which the model excludes",
            lock.overlap_ms
        ),
        Wrong::End => format!(
            "was owned at the server until {}, which the model excludes",
            told(lock.ended_ms)
        ),
    };
    lock.wrong.iter().map(said).collect::<Vec<_>>().join("; ")
}

fn fate(lost: bool) -> &'static str {
    if lost { "lost" } else { "kept" }
}

/// Interrupted first, then 4 before 7 before 5.
fn exit_code(outcome: &Outcome) -> u8 {
    let failed = |safety: bool| {
        outcome
            .thresholds
            .iter()
            .any(|threshold| !threshold.holds && is_safety(threshold) == safety)
    };
    let invalid = outcome
        .findings
        .iter()
        .any(|finding| finding.severity == Severity::Invalid);
    if outcome.interrupted {
        exit::INTERRUPTED
    } else if failed(true) {
        exit::SAFETY
    } else if invalid {
        exit::INVALID
    } else if failed(false) {
        exit::THRESHOLD
    } else {
        exit::GOOD
    }
}

/// Whether a threshold forbids overlaps, what they do, or what lets them happen: to fail it is a matter of safety.
fn is_safety(threshold: &ThresholdRun) -> bool {
    let bounds_above = threshold.limit.starts_with(['=', '<']);
    let of_safety = [
        "overlap.",
        "stale.",
        "lost_updates",
        "exposure.",
        "server.owned_twice",
        "server.tokens_that_fell",
    ];
    of_safety.iter().any(|name| threshold.metric.starts_with(name)) && bounds_above
}

fn verdict(outcome: &Outcome) -> String {
    let failed: Vec<_> = outcome.thresholds.iter().filter(|threshold| !threshold.holds).collect();
    let named = |list: &[&ThresholdRun]| {
        list.iter()
            .map(|t| format!("{} {}", t.metric, t.limit))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match outcome.exit {
        exit::INTERRUPTED => "Interrupted: what follows is what was measured until then.".to_owned(),
        exit::SAFETY => {
            let of = |name: &str| {
                let mut grave = failed.iter().filter(|threshold| is_safety(threshold));
                grave.any(|threshold| threshold.metric.starts_with(name))
            };
            let what = [
                ("server.owned_twice", "the server granted a lock that was not free"),
                (
                    "server.tokens",
                    "the server gave out a fencing token that does not grow",
                ),
                ("overlap.", AT_ONCE),
                (
                    "exposure.",
                    "somebody worked under a lock that the server did not let it own",
                ),
            ];
            let what = what
                .into_iter()
                .find(|(name, _)| of(name))
                .map_or(AT_ONCE, |(_, what)| what);
            format!("Unsafe: {what} ({} failed).", named(&failed))
        }
        exit::INVALID => {
            let why = outcome
                .findings
                .iter()
                .find(|finding| finding.severity == Severity::Invalid);
            format!(
                "Not a measurement: {}.",
                why.map_or("", |finding| finding.text.as_str())
            )
        }
        exit::THRESHOLD => format!("Failed: {}.", named(&failed)),
        _ => grid::verdict(outcome)
            .or_else(|| held_verdict(outcome))
            .or_else(|| load_verdict(outcome))
            .unwrap_or_default(),
    }
}

fn held_verdict(outcome: &Outcome) -> Option<String> {
    if outcome.rounds.is_empty() {
        return None;
    }
    let told = outcome.scenario.policies().into_iter().map(|policy| {
        let of = |metric: &str| {
            outcome
                .metrics
                .get(&format!("{metric}@{policy}"))
                .copied()
                .flatten()
                .unwrap_or(0.0)
        };
        let overlaps = of("overlap.count");
        let worked = if overlaps > 0.0 {
            format!("{overlaps} times with two workers at once")
        } else {
            "never with two workers at once".to_owned()
        };
        format!("{policy} lost {} of {} locks, {worked}", of("lost.total"), of("held"))
    });
    Some(format!("{}.", told.collect::<Vec<_>>().join("; ")))
}

fn load_verdict(outcome: &Outcome) -> Option<String> {
    let load = outcome.load.as_ref()?;
    let quantile = match (load.acquire.p99_ms, load.acquire.max_ms) {
        (Some(p99), _) => format!("99 of 100 within {p99:.2} ms"),
        (None, Some(max)) => format!("all within {max:.2} ms"),
        (None, None) => "none served".to_owned(),
    };
    let failures = load.errors.values().sum::<u64>();
    let dropped = match outcome.scenario.workload.model {
        Model::Open => format!("{} dropped, ", load.dropped),
        Model::Closed | Model::Held => String::new(),
    };
    Some(format!(
        "{} locks taken, {:.0} a second, {quantile}; {dropped}{} timeouts, {failures} errors, {} overlaps.",
        load.successes, load.throughput_per_s, load.timeouts, outcome.checked.overlaps.count
    ))
}

/// A generator this late at p99 measures itself.
const MOST_LAG_MS: f64 = 10.0;

const AT_ONCE: &str = "two workers were at work under one lock";

/// More contradictions of one policy in one round are only counted.
const MOST_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Little;
    use crate::measure::samples::{held_outcome, load_outcome, server_side};

    #[test]
    fn safety_goes_before_invalid_and_invalid_before_a_threshold() {
        let mut outcome = load_outcome();
        outcome
            .scenario
            .thresholds
            .insert("throughput".to_owned(), "> 1000000/s".parse().unwrap());
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::THRESHOLD);
        outcome.findings.push(Finding {
            severity: Severity::Invalid,
            text: "frozen".to_owned(),
        });
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INVALID);
        outcome.checked.overlaps.count = 1;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::SAFETY);
        outcome.interrupted = true;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INTERRUPTED);
    }

    #[test]
    fn a_held_run_is_judged_by_policy() {
        let mut outcome = held_outcome();
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::GOOD, "{:?}", outcome.thresholds);
        assert!(outcome.verdict.contains("deadline lost"), "{}", outcome.verdict);
        assert!(outcome.metrics["overlap.count@naive-cancel"].unwrap() > 0.0);
        assert_eq!(outcome.metrics["overlap.count@deadline"], Some(0.0));
    }

    #[test]
    fn work_that_the_server_no_longer_covered_is_unsafe_and_without_its_side_nothing_is_known() {
        let mut outcome = held_outcome();
        let limit = "== 0ms".parse().unwrap();
        outcome
            .scenario
            .thresholds
            .insert("exposure.max@deadline".to_owned(), limit);
        judge(&mut outcome);
        assert_eq!(
            (outcome.metrics["exposure.max@deadline"], outcome.exit),
            (None, exit::SAFETY)
        );
        let mut judged = |exposed: f64| {
            for row in outcome.rounds.iter_mut().flat_map(|round| &mut round.policies) {
                row.exposure = Some(Lengths::of([exposed].into_iter().filter(|exposed| *exposed > 0.0)));
                row.orphan = row.exposure;
            }
            judge(&mut outcome);
            (outcome.exit, outcome.verdict.clone())
        };
        assert_eq!(judged(0.0).0, exit::GOOD);
        let (code, verdict) = judged(30.0);
        assert!(
            code == exit::SAFETY && verdict.contains("did not let it own"),
            "{code} {verdict}"
        );
        assert_eq!(outcome.metrics["exposure.count@deadline"], Some(3.0));
        assert_eq!(outcome.metrics["orphan.max"], Some(30.0));
    }

    #[test]
    fn a_server_that_grants_what_is_not_free_is_unsafe_whatever_the_work_shows() {
        let mut outcome = held_outcome();
        for name in ["server.owned_twice", "server.tokens_that_fell"] {
            let limit = "== 0".parse().unwrap();
            outcome.scenario.thresholds.insert(name.to_owned(), limit);
        }
        for round in &mut outcome.rounds {
            round.server = Some(server_side());
        }
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::GOOD, "{}", outcome.verdict);
        outcome.rounds[1].server.as_mut().unwrap().tokens_that_fell = 1;
        judge(&mut outcome);
        assert!(outcome.exit == exit::SAFETY && outcome.verdict.contains("token that does not grow"));
        outcome.rounds[2].server.as_mut().unwrap().owned_twice = 2;
        judge(&mut outcome);
        assert!(outcome.exit == exit::SAFETY && outcome.verdict.contains("was not free"));
    }

    #[test]
    fn a_machine_that_stood_still_or_a_worker_that_ran_late_makes_the_run_invalid() {
        let mut outcome = held_outcome();
        outcome.rounds[1].stall_ms = 301.0;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INVALID);
        let mut outcome = held_outcome();
        outcome.rounds[1].late_ms = outcome.rounds[1].lease_ms / 10.0 + 1.0;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INVALID);
    }

    #[test]
    fn latencies_that_leave_requests_out_make_the_run_invalid() {
        let mut outcome = load_outcome();
        let little = |mean_in_system| Little {
            mean_in_system,
            rate_per_s: 240.0,
            mean_time_ms: 50.0,
            edges: 0.0,
        };
        outcome.load.as_mut().unwrap().little = Some(little(12.1));
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::GOOD, "{}", outcome.verdict);
        assert_eq!(outcome.metrics["in_system"], Some(12.1));
        outcome.load.as_mut().unwrap().little = Some(little(15.0));
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INVALID);
        assert!(outcome.verdict.contains("Little's law"), "{}", outcome.verdict);
    }

    #[test]
    fn a_fault_that_was_not_as_asked_makes_the_run_invalid() {
        let mut outcome = held_outcome();
        outcome.rounds[0].fault.observed_ms *= 2.0;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INVALID);
    }
}
