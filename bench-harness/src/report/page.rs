//! The page: the outcome, laid out by `page.html`.

use minijinja::value::Serde;
use minijinja::{Environment, Value, context};

use super::{ReportError, chart, grid, summary};
use crate::measure::words::{longest, longest_known, number, told, told_by_model};
use crate::measure::{Latency, Load, Outcome, PolicyRow, Round, ServerSide, Severity, Timeline};

/// The report as one HTML file that loads nothing from anywhere.
///
/// # Errors
/// [`ReportError`], which would be a mistake in the template.
pub fn page(outcome: &Outcome) -> Result<String, ReportError> {
    page_with(outcome, None)
}

/// The same, with the timelines of locks that were looked up in one round.
///
/// # Errors
/// As [`page`].
pub fn page_with(outcome: &Outcome, looked_up: Option<(usize, &Round)>) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.add_template("page.html", include_str!("page.html"))?;
    let scenario = toml::to_string(&outcome.scenario.without_times()).unwrap_or_else(|error| error.to_string());
    environment
        .get_template("page.html")?
        .render(context! {
            outcome => Value::from(Serde(outcome)),
            scenario,
            good => outcome.exit == 0,
            meaning => summary::meaning(outcome.exit),
            started => summary::date(outcome.started_unix_s),
            load => outcome.load.as_ref().map(|load| load_view(load, outcome)),
            grid => grid::view(outcome),
            rounds => match &outcome.grid {
                Some(_) => Vec::new(),
                None => outcome.rounds.iter().map(round_view).collect(),
            },
            looked_up => looked_up.map(|(number, round)| context! {
                number,
                fault => round.fault.kind.name(),
                scope => round.fault.scope.to_string(),
                ownership => chart::ownership(round),
                server => round.server.is_some(),
                timelines => round.timelines.iter().map(timeline_view).collect::<Vec<_>>(),
            }),
            thresholds => outcome.thresholds.iter().map(|threshold| context! {
                metric => threshold.metric.clone(),
                limit => threshold.limit.clone(),
                measured => threshold.measured.map_or("not measured".to_owned(), number),
                holds => threshold.holds,
            }).collect::<Vec<_>>(),
            findings => outcome.findings.iter().map(|finding| context! {
                grave => finding.severity != Severity::Note,
                text => finding.text.clone(),
            }).collect::<Vec<_>>(),
        })
        .map_err(ReportError::from)
}

fn load_view(load: &Load, outcome: &Outcome) -> Value {
    let ms = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let row = |name: &str, of: &Latency| {
        context! {
            name,
            count => of.count,
            cells => [of.p50_ms, of.p90_ms, of.p99_ms, of.p999_ms, of.max_ms].map(ms),
        }
    };
    let open = outcome.scenario.workload.arrival.is_some();
    let mut rows = vec![
        row(
            if open {
                "acquire, from the intended start"
            } else {
                "acquire (closed loop)"
            },
            &load.acquire,
        ),
        row("hold, as it came out", &load.hold),
    ];
    if let Some(reentry) = &load.reentry {
        rows.push(row("re-entry", reentry));
    }
    if open {
        rows.insert(1, row("acquire, from the call", &load.service));
        rows.push(row("lateness of the generator", &load.generator_lag));
    }
    context! {
        rows,
        series => load.series.iter().map(|second| context! {
            second => second.second,
            count => second.count,
            cells => [second.p50_ms, second.p99_ms, second.max_ms].map(|value| ms(Some(value))),
        }).collect::<Vec<_>>(),
        throughput => format!("{:.1}", load.throughput_per_s),
        attempts => ms(load.attempts_per_success),
        successes => load.successes,
        timeouts => load.timeouts,
        dropped => load.dropped,
        in_system => load.little.as_ref().map(|little| format!("{:.2}", little.mean_in_system)),
        by_the_law => load.little.as_ref().map(|little| format!("{:.2}", little.by_the_law())),
        errors => load.errors.clone(),
        shares => load.per_process.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
        fairness => load.fairness().map_or("–".to_owned(), |fairness| format!("{fairness:.3}")),
        spectrum => chart::spectrum(load, open),
        rate => chart::rate(load, &outcome.faults),
        latency => chart::latency(load, &outcome.faults),
    }
}

fn timeline_view(lane: &Timeline) -> Value {
    let seconds = |ms: f64| format!("{:.2} s", ms / 1e3);
    context! {
        policy => lane.policy.clone(),
        key => lane.key % 1_000_000,
        server => seconds(lane.server.1),
        told => lane.told.map_or("–".to_owned(), seconds),
        holder => seconds(lane.holder.1),
        rival => lane.rivals.first().map_or("–".to_owned(), |rival| seconds(rival.0)),
        exposed => lane.exposed.first().map_or("–".to_owned(), |gap| seconds(gap.1 - gap.0)),
        overlap => lane.overlaps.first().map_or("–".to_owned(), |overlap| seconds(overlap.1 - overlap.0)),
    }
}

fn round_view(round: &Round) -> Value {
    let seconds = |ms: f64| format!("{:.2} s", ms / 1e3);
    context! {
        fault => round.fault.kind.name(),
        what => round.fault.kind.what(),
        scope => round.fault.scope.to_string(),
        whom => round.fault.scope.whom(),
        asked => seconds(round.fault.asked_ms),
        observed => seconds(round.fault.observed_ms),
        lease => seconds(round.lease_ms),
        rows => round.policies.iter().map(policy_view).collect::<Vec<_>>(),
        ownership => chart::ownership(round),
        server => round.server.as_ref().map(server_view),
        fates => chart::fates(round),
        timelines => round.timelines.iter().map(timeline_view).collect::<Vec<_>>(),
        commands => format!("{:.2}", round.overhead.commands),
        bytes => round.overhead.bytes.map_or("–".to_owned(), |bytes| format!("{bytes:.0}")),
        server_us => format!("{:.0}", round.overhead.server_us),
        held => round.overhead.held,
        quiet => format!("{:.1}", round.overhead.window_s),
    }
}

fn server_view(side: &ServerSide) -> Value {
    context! {
        holds => side.holds,
        bound => side.offset_bound_us.map(|bound| format!("{bound:.0}")),
        wasted => side.grants_without_work,
        twice => side.owned_twice,
        fell => side.tokens_that_fell,
    }
}

fn policy_view(row: &PolicyRow) -> Value {
    context! {
        policy => row.policy.clone(),
        held => row.held,
        lost => row.lost,
        predicted => row.predicted_lost,
        mismatches => row.mismatches,
        in_band => row.in_band,
        needless => row.needless,
        told => told(row),
        told_by_model => told_by_model(row),
        overlaps => row.overlaps.count,
        longest => longest(&row.overlaps),
        exposed => row.exposure.map(|exposure| exposure.count),
        exposed_for => longest_known(row.exposure.as_ref()),
        orphaned_for => longest_known(row.orphan.as_ref()),
        commands => row.commands_in_fault,
    }
}
