//! The grid: many fault windows folded into one cell for each policy, fault and length, measured beside predicted.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::number;
use super::{FaultRun, Fencing, Lengths, LockRow, Outcome, Overlaps, PolicyRow, Round, Told};
use crate::predict::{Family, Share, Timings};
use crate::scenario::{FaultKind, Scope};

/// What many fault windows say of each policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Grid {
    /// A cell for each fault, length and policy, in this order.
    pub cells: Vec<Cell>,
    /// Fault windows that count.
    pub windows: u64,
    /// Windows that were repeated, because the machine stood still or the fault was not as asked.
    pub repeated: u64,
}

/// One policy in one kind of fault of one length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// The policy.
    pub policy: String,
    /// What the fault does to renewals.
    pub family: Family,
    /// The fault.
    pub kind: FaultKind,
    /// Whom it struck.
    pub scope: Scope,
    /// How long it was to last, as written: before the scale.
    pub length_s: f64,
    /// How long it lasted, on the mean of its windows.
    pub observed_ms: f64,
    /// The same in leases.
    pub leases: f64,
    /// Locks held when the fault struck.
    pub held: u64,
    /// Locks that ended before their holder released them.
    pub lost: u64,
    /// Of these, those that a renewal right after the fault would have saved.
    pub needless: u64,
    /// How many the model says are lost, each lock predicted from its own last renewal and the observed fault.
    pub predicted_lost: u64,
    /// The share that the closed form says is lost, over all phases.
    pub expected: Share,
    /// Where 99 of 100 measured shares must lie if the closed form is right.
    pub expected_99: Share,
    /// Locks whose fate the model got wrong although they are outside the tolerance.
    pub mismatches: u64,
    /// Locks so near the boundary that the model does not commit itself.
    pub in_band: u64,
    /// When holders were told, relative to the end of the lease at the server; negative: in time.
    pub told: Option<Told>,
    /// When the model says that they are told.
    pub predicted_told: Option<Told>,
    /// Two workers at once under one lock.
    pub overlaps: Overlaps,
    /// How many of these the model is sure of, and how many it finds possible.
    pub predicted_overlaps: (u64, u64),
    /// Work under a lock that the server did not, or no longer, let its worker own; if the server's side is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Lengths>,
    /// Ownership at the server when its holder had stopped to work, and nobody else had begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan: Option<Lengths>,
    /// What fencing tokens were worth.
    pub fencing: Fencing,
    /// Renewal commands sent while the fault lasted.
    pub commands_in_fault: u64,
}

impl Grid {
    /// Folds rounds into cells; `scale` is that of the scenario.
    pub(crate) fn of(rounds: &[Round], scale: f64) -> Self {
        let mut order: Vec<&Round> = rounds.iter().collect();
        order.sort_by(|one, other| place(&one.fault).total_cmp_with(&place(&other.fault)));
        let mut cells = Vec::new();
        for alike in order.chunk_by(|one, other| place(&one.fault) == place(&other.fault)) {
            let policies = alike.first().map(|round| round.policies.len()).unwrap_or(0);
            cells.extend((0..policies).filter_map(|index| cell(alike, index, scale)));
        }
        Self {
            cells,
            windows: rounds.len() as u64,
            repeated: 0,
        }
    }

    /// The windows of one fault and length, each with a cell for each policy, in order.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunk_by(|one, other| {
            (one.kind, one.scope, one.length_s.to_bits()) == (other.kind, other.scope, other.length_s.to_bits())
        })
    }

    /// All cells of one policy.
    pub(crate) fn of_policy<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.policy == policy)
    }
}

impl Cell {
    /// The share of held locks that was lost.
    pub(crate) fn share_lost(&self) -> f64 {
        self.lost as f64 / self.held.max(1) as f64
    }

    /// Whether the share that was lost lies where the closed form has it.
    pub(crate) fn is_as_expected(&self) -> bool {
        let (from, to) = (self.expected_99.from, self.expected_99.to);
        (from..=to).contains(&self.share_lost())
    }

    /// Fault and scope, as the command line names them.
    pub(crate) fn fault(&self) -> String {
        format!("{}/{}", self.family, self.scope)
    }
}

/// Where a fault stands in the grid.
#[derive(Clone, Copy, PartialEq)]
struct Place {
    fault: (usize, bool, bool),
    asked_ms: f64,
}

impl Place {
    fn total_cmp_with(&self, other: &Self) -> std::cmp::Ordering {
        self.fault
            .cmp(&other.fault)
            .then(self.asked_ms.total_cmp(&other.asked_ms))
    }
}

fn place(fault: &FaultRun) -> Place {
    let family = fault.kind.family();
    let index = Family::ALL.iter().position(|one| Some(*one) == family).unwrap_or(0);
    Place {
        fault: (index, !fault.scope.reaches_rivals(), !fault.scope.reaches_holders()),
        asked_ms: fault.asked_ms,
    }
}

/// What the rounds say of the policy at that index.
fn cell(rounds: &[&Round], index: usize, scale: f64) -> Option<Cell> {
    let first = rounds.first()?;
    let rows: Vec<&PolicyRow> = rounds.iter().filter_map(|round| round.policies.get(index)).collect();
    let policy = rows.first()?.policy.clone();
    let family = first.fault.kind.family()?;
    let observed_ms = rounds.iter().map(|round| round.fault.observed_ms).sum::<f64>() / rounds.len() as f64;
    let timings = Timings::of(&policy, Duration::from_secs_f64(first.lease_ms / 1e3))?;
    let reached_ms = if first.fault.scope.reaches_holders() {
        observed_ms
    } else {
        0.0
    };
    let reached = (reached_ms * 1e6) as i64;
    let expected = timings
        .under_a_fault_of(&policy, reached)
        .share_lost_on_the_wire(family, reached);
    let sum = |count: fn(&PolicyRow) -> u64| rows.iter().map(|row| count(row)).sum::<u64>();
    let held = sum(|row| row.held);
    let times = |of: fn(&LockRow) -> Option<f64>| rows.iter().flat_map(|row| &row.locks).filter_map(of).collect();
    let mut fencing = Fencing::default();
    let mut overlaps = Overlaps::default();
    let mut predicted_overlaps = (0, 0);
    for row in &rows {
        fencing.add(&row.fencing);
        overlaps = overlaps.and(&row.overlaps);
        predicted_overlaps.0 += row.predicted_overlaps.0;
        predicted_overlaps.1 += row.predicted_overlaps.1;
    }
    Some(Cell {
        family,
        kind: first.fault.kind,
        scope: first.fault.scope,
        length_s: (first.fault.asked_ms / scale).round() / 1e3,
        observed_ms,
        leases: observed_ms / first.lease_ms,
        held,
        lost: sum(|row| row.lost),
        needless: sum(|row| row.needless),
        predicted_lost: sum(|row| row.predicted_lost),
        expected,
        expected_99: interval(expected, held),
        mismatches: sum(|row| row.mismatches),
        in_band: sum(|row| row.in_band),
        told: Told::of(times(|lock| lock.told_ms)),
        predicted_told: Told::of(times(|lock| lock.predicted_told_ms)),
        overlaps,
        predicted_overlaps,
        exposure: Lengths::sum(rows.iter().map(|row| row.exposure)),
        orphan: Lengths::sum(rows.iter().map(|row| row.orphan)),
        fencing,
        commands_in_fault: sum(|row| row.commands_in_fault),
        policy,
    })
}

/// The answer in three sentences; nothing if no window was measured.
pub(crate) fn verdict(outcome: &Outcome) -> Option<String> {
    let grid = outcome.grid.as_ref().filter(|grid| grid.windows > 0)?;
    let policies = outcome.scenario.policies();
    let sums: Vec<Sum> = policies.iter().map(|policy| Sum::of(grid, policy)).collect();
    let find = |name: &str| sums.iter().find(|sum| sum.policy == name);
    let mut sentences = Vec::new();
    let best = find("deadline").or_else(|| sums.iter().find(|sum| sum.overlaps.count == 0));
    sentences.extend(best.map(Sum::sentence));
    let gives_up = find("naive-cancel").or_else(|| find("cancel-told"));
    sentences.extend(
        gives_up
            .filter(|sum| Some(sum.policy) != best.map(|best| best.policy))
            .map(Sum::sentence),
    );
    let late = sums
        .iter()
        .filter(|sum| sum.overlaps.count > 0 && sum.latest_ms.is_some());
    let late = late.max_by(|one, other| one.overlaps.max_ms.total_cmp(&other.overlaps.max_ms));
    let retries = late.or_else(|| find("retry-3"));
    sentences.extend(retries.map(Sum::sentence));
    if sentences.is_empty() {
        sentences.extend(sums.iter().map(Sum::sentence));
    }
    Some(sentences.join(" "))
}

/// A policy over all windows.
struct Sum<'a> {
    policy: &'a str,
    held: u64,
    lost: u64,
    needless: u64,
    overlaps: Overlaps,
    latest_ms: Option<f64>,
    /// The fault with the longest overlap.
    worst: Option<&'a Cell>,
}

impl<'a> Sum<'a> {
    fn of(grid: &'a Grid, policy: &'a str) -> Self {
        let mut sum = Self {
            policy,
            held: 0,
            lost: 0,
            needless: 0,
            overlaps: Overlaps::default(),
            latest_ms: None,
            worst: None,
        };
        for cell in grid.of_policy(policy) {
            sum.held += cell.held;
            sum.lost += cell.lost;
            sum.needless += cell.needless;
            if cell.overlaps.max_ms > sum.overlaps.max_ms {
                sum.worst = Some(cell);
            }
            sum.overlaps = sum.overlaps.and(&cell.overlaps);
            let latest = cell.told.as_ref().map(|told| told.max_ms);
            sum.latest_ms = sum.latest_ms.into_iter().chain(latest).reduce(f64::max);
        }
        sum
    }

    fn sentence(&self) -> String {
        let told = match self.latest_ms {
            None if self.lost == 0 => String::new(),
            None => ", told nobody".to_owned(),
            Some(ms) if ms < 0.0 => format!(", told every holder at least {:.2} s before its lease ended", -ms / 1e3),
            Some(ms) => format!(", told holders up to {:.2} s after their lease had ended", ms / 1e3),
        };
        let overlaps = match self.worst {
            None => "never had two at work under one lock".to_owned(),
            Some(worst) => format!(
                "had two at work under one lock {} times, for up to {:.2} s ({}, {} s)",
                self.overlaps.count,
                self.overlaps.max_ms / 1e3,
                worst.fault(),
                number(worst.length_s)
            ),
        };
        format!(
            "{} lost {} of {} locks ({} needlessly){told}, and {overlaps}.",
            self.policy, self.lost, self.held, self.needless
        )
    }
}

/// Where the measured share of `count` locks lies in 99 of 100 cases; half a lock more, since locks are whole.
fn interval(expected: Share, count: u64) -> Share {
    let reach = |share: f64| {
        let count = count.max(1) as f64;
        Z_99 * (share * (1.0 - share) / count).sqrt() + 0.5 / count
    };
    Share {
        from: (expected.from - reach(expected.from)).max(0.0),
        to: (expected.to + reach(expected.to)).min(1.0),
    }
}

/// 99 of 100 draws of a normal distribution lie within so many standard deviations.
const Z_99: f64 = 2.576;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::samples::held_outcome;

    #[test]
    fn windows_of_one_fault_and_length_make_one_cell_a_policy() {
        let rounds = held_outcome().rounds;
        let twice: Vec<_> = rounds.iter().chain(&rounds).cloned().collect();
        let grid = Grid::of(&twice, 0.2);
        assert_eq!((grid.windows, grid.cells.len()), (6, 9));
        // refuse/holders, swallow/holders, pending/all: the order of the families.
        let faults: Vec<_> = grid.lengths().map(|cells| cells[0].fault()).collect();
        assert_eq!(faults, ["refuse/holders", "swallow/holders", "pending/all"]);
        let deadline = &grid.cells[2];
        assert_eq!(
            (deadline.policy.as_str(), deadline.held, deadline.lost),
            ("deadline", 120, 28)
        );
        assert_eq!(deadline.length_s, 19.0);
        assert_eq!(deadline.told.as_ref().map(|told| told.count), Some(28));
        assert!(deadline.expected_99.from <= deadline.expected.from && deadline.expected.to <= deadline.expected_99.to);
    }

    #[test]
    fn more_locks_make_a_narrower_interval() {
        let half = Share { from: 0.5, to: 0.5 };
        let reach = |count| interval(half, count).to - 0.5;
        assert!(reach(1_000) < reach(100) && reach(100) < 0.15);
        let none = interval(Share { from: 0.0, to: 0.0 }, 100);
        assert_eq!((none.from, none.to), (0.0, 0.005));
    }
}
