//! The summary in Markdown, for a pull request.

use std::fmt::Write as _;

use crate::exit;
use crate::measure::words::{longest, number, told};
use crate::measure::{Grid, Outcome};

/// The outcome in a screenful of Markdown.
pub fn markdown(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_markdown(&mut text, outcome);
    text
}

fn write_markdown(text: &mut String, outcome: &Outcome) -> std::fmt::Result {
    writeln!(text, "# {}\n", outcome.scenario.name)?;
    writeln!(text, "{}\n", outcome.scenario.question)?;
    writeln!(text, "**{}**\n", outcome.verdict)?;
    if let Some(load) = &outcome.load {
        let ms = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
        writeln!(
            text,
            "| ms | p50 | p90 | p99 | p99.9 | max | samples |\n|---|---|---|---|---|---|---|"
        )?;
        for (name, of) in [("acquire", &load.acquire), ("from the call", &load.service)] {
            let cells = [of.p50_ms, of.p90_ms, of.p99_ms, of.p999_ms, of.max_ms]
                .map(ms)
                .join(" | ");
            writeln!(text, "| {name} | {cells} | {} |", of.count)?;
        }
        writeln!(text)?;
    }
    if let Some(grid) = &outcome.grid {
        write_grid(text, grid, outcome.scenario.scale)?;
    }
    let rounds = outcome.rounds.iter().filter(|_| outcome.grid.is_none());
    for round in rounds {
        let fault = &round.fault;
        writeln!(
            text,
            "## {}, scope {}, observed {:.2} s, lease {:.1} s\n",
            fault.kind.name(),
            fault.scope,
            fault.observed_ms / 1e3,
            round.lease_ms / 1e3
        )?;
        writeln!(
            text,
            "| policy | held | lost | predicted | needless | told vs expiry | overlaps | longest |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|")?;
        for row in &round.policies {
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                row.policy,
                row.held,
                row.lost,
                row.predicted_lost,
                row.needless,
                told(row),
                row.overlaps.count,
                longest(&row.overlaps)
            )?;
        }
        writeln!(text)?;
    }
    for threshold in &outcome.thresholds {
        let mark = if threshold.holds { "✓" } else { "✗" };
        let measured = threshold.measured.map_or("not measured".to_owned(), number);
        writeln!(text, "- {mark} `{} {}`: {measured}", threshold.metric, threshold.limit)?;
    }
    for finding in &outcome.findings {
        writeln!(text, "- {}", finding.text)?;
    }
    writeln!(
        text,
        "\nlockbench {}, Redis {}, {} cores, {}, seed {}, {}. Again: `{}`",
        outcome.versions.lockbench,
        outcome.versions.redis,
        outcome.machine.cores,
        outcome.versions.kernel,
        outcome.scenario.seed,
        date(outcome.started_unix_s),
        outcome.repeat
    )
}

/// A row for each fault and length: of each policy how many of a hundred locks were lost, and under how many two were at work.
fn write_grid(text: &mut String, grid: &Grid, scale: f64) -> std::fmt::Result {
    let Some(first) = grid.lengths().next() else {
        return Ok(());
    };
    writeln!(
        text,
        "Lost of a hundred locks, measured (predicted); two at work at once: ×. Lengths as for a lease of 30 s, run at scale {scale}.\n"
    )?;
    let names: Vec<&str> = first.iter().map(|cell| cell.policy.as_str()).collect();
    writeln!(text, "| fault | {} |", names.join(" | "))?;
    writeln!(text, "|---|{}", "---|".repeat(names.len()))?;
    for cells in grid.lengths() {
        let Some(first) = cells.first() else { continue };
        write!(text, "| {}, {} s |", first.fault(), number(first.length_s))?;
        for cell in cells {
            let percent = |part: u64| format!("{:.0}", part as f64 * 100.0 / cell.held.max(1) as f64);
            let overlaps = match cell.overlaps.count {
                0 => String::new(),
                count => format!(", **{count} ×**"),
            };
            write!(
                text,
                " {} ({}){overlaps} |",
                percent(cell.lost),
                percent(cell.predicted_lost)
            )?;
        }
        writeln!(text)?;
    }
    writeln!(text)
}

/// What an exit code means.
pub(super) fn meaning(code: u8) -> &'static str {
    match code {
        exit::GOOD => "all thresholds held",
        exit::SAFETY => "unsafe",
        exit::THRESHOLD => "a threshold failed",
        exit::INVALID => "not a valid measurement",
        exit::INTERRUPTED => "interrupted",
        _ => "see the exit codes of lockbench --help",
    }
}

/// Seconds since 1970 as `2026-11-30 17:05 UTC`.
pub(super) fn date(unix_s: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_s);
    let text = humantime::format_rfc3339_seconds(time).to_string();
    format!("{} UTC", text.replace('T', " ").chars().take(16).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::judge;
    use crate::measure::samples::held_outcome;

    #[test]
    fn the_summary_has_a_row_for_each_policy_and_the_repeat_line() {
        let mut outcome = held_outcome();
        judge(&mut outcome);
        let text = markdown(&outcome);
        assert_eq!(text.matches("| naive-cancel |").count(), 3);
        assert!(text.contains("--seed 42"));
        assert_eq!(date(1_790_000_000), "2026-09-21 14:13 UTC");
    }
}
