//! The summary in Markdown, for a pull request.

use std::fmt::Write as _;

use crate::exit;
use crate::measure::words::{longest, longest_known, number, told};
use crate::measure::{Cell, Grid, Lengths, Outcome};

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
            "| policy | held | lost | predicted | needless | told vs expiry | overlaps | longest | exposed | orphaned |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|---|---|")?;
        for row in &round.policies {
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                row.policy,
                row.held,
                row.lost,
                row.predicted_lost,
                row.needless,
                told(row),
                row.overlaps.count,
                longest(&row.overlaps),
                longest_known(row.exposure.as_ref()),
                longest_known(row.orphan.as_ref())
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
    writeln!(text)?;
    write_server_side(text, grid, &names)
}

/// A row for each policy: what the server's side adds to that of the workers, over all windows; nothing if it is not known.
fn write_server_side(text: &mut String, grid: &Grid, policies: &[&str]) -> std::fmt::Result {
    let all = |policy: &str, of: fn(&Cell) -> Option<Lengths>| Lengths::sum(grid.of_policy(policy).map(of));
    let sums = policies.iter().map(|policy| {
        let exposure = all(policy, |cell| cell.exposure)?;
        Some((policy, exposure, all(policy, |cell| cell.orphan)?))
    });
    let Some(sums) = sums.collect::<Option<Vec<_>>>() else {
        return Ok(());
    };
    writeln!(
        text,
        "By the server's append-only file, ± 1 ms. Exposed: at work under a lock that the server did not let the worker own. Orphaned: \
         owned when its holder had stopped.\n\n| policy | exposed | longest | orphaned | longest |\n|---|---|---|---|---|"
    )?;
    for (policy, exposure, orphan) in sums {
        let (worked, owned) = (longest(&exposure), longest(&orphan));
        writeln!(
            text,
            "| {policy} | {} | {worked} | {} | {owned} |",
            exposure.count, orphan.count
        )?;
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
    use crate::measure::samples::{grid_outcome, held_outcome, of_both_sides};

    #[test]
    fn the_summary_has_a_row_for_each_policy_and_the_repeat_line() {
        let mut outcome = held_outcome();
        judge(&mut outcome);
        let text = markdown(&outcome);
        assert_eq!(text.matches("| naive-cancel |").count(), 3);
        assert!(text.contains("| ? | ? |"), "nobody knows the server's side");
        assert!(text.contains("--seed 42"));
        let text = markdown(&of_both_sides(outcome));
        assert_eq!(text.matches("| 1.50 s | – |").count(), 3, "{text}");
        assert_eq!(date(1_790_000_000), "2026-09-21 14:13 UTC");
    }

    #[test]
    fn what_the_server_says_of_a_grid_is_summed_up_by_policy_if_it_is_known() {
        let blind = grid_outcome();
        assert!(!markdown(&blind).contains("append-only"));
        let text = markdown(&of_both_sides(blind));
        let mut rows = text.lines().filter(|line| line.starts_with("| naive-cancel |"));
        let row = rows.next_back().unwrap_or_default();
        assert!(row.ends_with("| 1.50 s | 0 | – |"), "{text}");
    }
}
