//! The terminal: progress on stderr while a run goes on, the result as a table on stdout.

mod grid;

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::measure::words::{longest, longest_known, number, told, told_by_model};
use crate::measure::{Load, Outcome, Round, Severity};
use crate::scenario::nanos;

/// Tells people how a run goes: a bar on a terminal, a line every few seconds elsewhere, or nothing.
#[derive(Debug)]
pub struct Progress {
    look: Look,
    stage: Mutex<Stage>,
}

#[derive(Debug)]
enum Look {
    Bars,
    Lines,
    Nothing,
}

#[derive(Debug, Default)]
struct Stage {
    bar: Option<ProgressBar>,
    name: String,
    length: Duration,
    next_line: Duration,
}

impl Progress {
    /// Bars if stderr is a terminal and `plain` is not asked for, else lines.
    pub fn new(plain: bool) -> Self {
        let bars = !plain && std::io::stderr().is_terminal();
        Self {
            look: if bars { Look::Bars } else { Look::Lines },
            stage: Mutex::default(),
        }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self {
            look: Look::Nothing,
            stage: Mutex::default(),
        }
    }

    /// A stage of known length begins.
    pub(crate) fn begin(&self, name: &str, length: Duration) {
        let mut stage = self.stage();
        *stage = Stage {
            name: name.to_owned(),
            length,
            next_line: LINE_EVERY,
            bar: None,
        };
        match self.look {
            Look::Bars => {
                let bar = ProgressBar::new(nanos(length) / 1_000_000).with_message(name.to_owned());
                // The template is a constant; were it wrong, the default look would do.
                if let Ok(style) = ProgressStyle::with_template(BAR) {
                    bar.set_style(style.progress_chars("━╸─"));
                }
                stage.bar = Some(bar);
            }
            Look::Lines => eprintln!("{name}, about {:.0} s", length.as_secs_f64().ceil()),
            Look::Nothing => {}
        }
    }

    /// The stage has come so far.
    pub(crate) fn at(&self, done: Duration, what: &str) {
        let mut stage = self.stage();
        match &stage.bar {
            Some(bar) => {
                bar.set_position(nanos(done.min(stage.length)) / 1_000_000);
                bar.set_message(format!("{}: {what}", stage.name));
            }
            None if matches!(self.look, Look::Lines) && done >= stage.next_line => {
                eprintln!("  {:>5.1} s  {what}", done.as_secs_f64());
                stage.next_line = done + LINE_EVERY;
            }
            None => {}
        }
    }

    /// Something happened.
    pub(crate) fn line(&self, text: &str) {
        let stage = self.stage();
        match (&stage.bar, &self.look) {
            (Some(bar), _) => bar.suspend(|| eprintln!("  {text}")),
            (None, Look::Lines | Look::Bars) => eprintln!("  {text}"),
            (None, Look::Nothing) => {}
        }
    }

    /// The stage is over.
    pub(crate) fn end(&self) {
        if let Some(bar) = self.stage().bar.take() {
            bar.finish_and_clear();
        }
    }

    fn stage(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The result as people read it on a terminal. With `colour`, good is green and bad is red.
pub fn summary(outcome: &Outcome, colour: bool) -> String {
    let paint = Paint { colour };
    let mut text = String::new();
    let mut line = |part: String| {
        text.push_str(&part);
        text.push('\n');
    };
    line(format!(
        "\n{}   seed {}   {}",
        outcome.scenario.name, outcome.scenario.seed, outcome.scenario.question
    ));
    if let Some(load) = &outcome.load {
        line(load_table(load, outcome.scenario.workload.arrival.is_some()));
    }
    let scale = outcome.scenario.scale;
    match &outcome.grid {
        Some(grid) => {
            let lease_ms = outcome.scenario.lease().as_secs_f64() * 1e3;
            line(grid::table(grid, scale, lease_ms, &paint));
        }
        None => outcome
            .rounds
            .iter()
            .for_each(|round| line(round_table(round, scale, &paint))),
    }
    for threshold in &outcome.thresholds {
        let measured = threshold.measured.map_or("not measured".to_owned(), number);
        let mark = if threshold.holds {
            paint.good("✓")
        } else {
            paint.bad("✗")
        };
        line(format!(
            " {mark} {} {}   measured {measured}",
            threshold.metric, threshold.limit
        ));
    }
    for finding in &outcome.findings {
        let mark = match finding.severity {
            Severity::Note => "·".to_owned(),
            Severity::Invalid | Severity::Safety => paint.bad("!"),
        };
        line(format!(" {mark} {}", finding.text));
    }
    let verdict = if outcome.exit == 0 {
        paint.good(&outcome.verdict)
    } else {
        paint.bad(&outcome.verdict)
    };
    line(format!("\n {verdict}"));
    line(format!(" again: {}", outcome.repeat));
    text
}

fn load_table(load: &Load, open: bool) -> String {
    let ms = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2} ms"));
    let mut text = format!(
        " {:<18}{:>13}{:>13}{:>13}{:>13}{:>13}\n",
        "", "p50", "p90", "p99", "p99.9", "max"
    );
    let mut rows = vec![("acquire", &load.acquire), ("hold", &load.hold)];
    if open {
        // In a closed loop it is the same.
        rows.insert(1, ("from the call", &load.service));
    }
    if let Some(reentry) = &load.reentry {
        rows.push(("re-entry", reentry));
    }
    for (name, of) in rows {
        let cells = [of.p50_ms, of.p90_ms, of.p99_ms, of.p999_ms, of.max_ms].map(ms);
        let _ = writeln!(
            text,
            " {name:<18}{:>13}{:>13}{:>13}{:>13}{:>13}",
            cells[0], cells[1], cells[2], cells[3], cells[4]
        );
    }
    let attempts = load
        .attempts_per_success
        .map_or("–".to_owned(), |attempts| format!("{attempts:.2}"));
    let _ = write!(
        text,
        " {} locks taken in {:.1} s, {:.0}/s; {attempts} attempts each; {} timeouts, {} errors, {} dropped",
        load.successes,
        load.window_s,
        load.throughput_per_s,
        load.timeouts,
        load.errors.values().sum::<u64>(),
        load.dropped
    );
    if let Some(little) = &load.little {
        let _ = write!(
            text,
            "; {:.2} at once on the mean (Little's law: {:.2})",
            little.mean_in_system,
            little.by_the_law()
        );
    }
    if let Some(fairness) = load.fairness() {
        let _ = write!(text, "; fairness {fairness:.3}");
    }
    for (error, count) in load.errors.iter().take(ERRORS_SHOWN) {
        let _ = write!(text, "\n   {count} × {error}");
    }
    text
}

fn round_table(round: &Round, scale: f64, paint: &Paint) -> String {
    let fault = &round.fault;
    let mut text = format!(
        "\n fault: {}, scope {}, asked {:.2} s, observed {:.2} s      lease {:.1} s{}\n",
        fault.kind.name(),
        fault.scope,
        fault.asked_ms / 1e3,
        fault.observed_ms / 1e3,
        round.lease_ms / 1e3,
        if scale == 1.0 {
            String::new()
        } else {
            format!(" (scale {scale})")
        },
    );
    let _ = writeln!(
        text,
        " {:<16}{:>5}{:>6}{:>7}{:>6}{:>10}{:>20}{:>20}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "policy",
        "held",
        "lost",
        "model",
        "near",
        "needless",
        "told",
        "told, model",
        "overlaps",
        "longest",
        "exposed",
        "orphaned",
        "commands"
    );
    for row in &round.policies {
        let overlaps = format!("{:>9}{:>9}", row.overlaps.count, longest(&row.overlaps));
        let overlaps = if row.overlaps.count == 0 {
            overlaps
        } else {
            paint.bad(&overlaps)
        };
        let _ = writeln!(
            text,
            " {:<16}{:>5}{:>6}{:>7}{:>6}{:>10}{:>20}{:>20}{overlaps}{:>9}{:>9}{:>10}",
            row.policy,
            row.held,
            row.lost,
            row.predicted_lost,
            row.in_band,
            row.needless,
            told(row),
            told_by_model(row),
            longest_known(row.exposure.as_ref()),
            longest_known(row.orphan.as_ref()),
            row.commands_in_fault
        );
    }
    let overhead = &round.overhead;
    let bytes = overhead.bytes.map_or("–".to_owned(), |bytes| format!("{bytes:.0}"));
    let _ = write!(
        text,
        " renewal, per held lock and minute: {:.2} commands, {bytes} bytes, {:.0} µs of the server",
        overhead.commands, overhead.server_us
    );
    text
}

struct Paint {
    colour: bool,
}

impl Paint {
    fn good(&self, text: &str) -> String {
        self.paint(text, "32")
    }

    fn bad(&self, text: &str) -> String {
        self.paint(text, "31")
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

const BAR: &str = "{elapsed_precise} {bar:32.cyan/black.bright} {percent:>3}%  {msg}";

/// Without a terminal: a line this often.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// More kinds of errors are in the report.
const ERRORS_SHOWN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::judge;
    use crate::measure::samples::{held_outcome, load_outcome};

    #[test]
    fn the_tables_name_every_policy_and_show_no_colour_unless_asked() {
        let mut outcome = held_outcome();
        judge(&mut outcome);
        let plain = summary(&outcome, false);
        for policy in outcome.scenario.policies() {
            assert!(plain.contains(&policy));
        }
        assert!(plain.contains("never") && !plain.contains('\x1b'));
        assert!(summary(&outcome, true).contains('\x1b'));
    }

    #[test]
    fn a_percentile_without_samples_is_a_dash() {
        let mut outcome = load_outcome();
        judge(&mut outcome);
        assert!(summary(&outcome, false).contains("–"), "p99.9 of 5 000 samples");
    }
}
