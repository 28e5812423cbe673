//! What the page shows of a grid: a heat map for each fault, when holders were told, and the worst window of each fault.

use minijinja::{Value, context};

use super::chart;
use crate::measure::words::{longest, longest_known, notice, number};
use crate::measure::{Cell, Outcome, Round, ServerSide};

/// The grid as the page lays it out; nothing if the outcome has none.
pub(super) fn view(outcome: &Outcome) -> Option<Value> {
    let grid = outcome.grid.as_ref()?;
    let faults: Vec<Value> = grid
        .cells
        .chunk_by(|one, other| one.fault() == other.fault())
        .map(|cells| fault_view(cells, outcome))
        .collect();
    let mut silent = outcome.scenario.policies();
    silent.retain(|policy| {
        let cells = || grid.of_policy(policy);
        cells().all(|cell| cell.told.is_none()) && cells().any(|cell| cell.lost > 0)
    });
    let held: u64 = grid.cells.iter().map(|cell| cell.held).sum();
    let sum = |count: fn(&Cell) -> u64| grid.cells.iter().map(count).sum::<u64>();
    Some(context! {
        windows => grid.windows,
        repeated => grid.repeated,
        held,
        mismatches => sum(|cell| cell.mismatches),
        near => format!("{:.1}", sum(|cell| cell.in_band) as f64 * 100.0 / held.max(1) as f64),
        outside => grid.cells.iter().filter(|cell| !cell.is_as_expected()).count(),
        cells => grid.cells.len(),
        server => server_view(outcome),
        faults,
        notice => chart::notice(grid),
        silent => silent.join(", "),
        lease => number(outcome.scenario.lock.lease.0.as_secs_f64()),
        ran => number(outcome.scenario.lease().as_secs_f64()),
        scaled => outcome.scenario.scale != 1.0,
    })
}

/// What the server's append-only files say of all windows together; nothing if there are none, or not all were read.
fn server_view(outcome: &Outcome) -> Option<Value> {
    let sides: Vec<_> = outcome
        .rounds
        .iter()
        .map(|round| round.server.as_ref())
        .collect::<Option<_>>()?;
    if sides.is_empty() {
        return None;
    }
    let sum = |count: fn(&ServerSide) -> u64| sides.iter().map(|side| count(side)).sum::<u64>();
    let bounds = sides.iter().filter_map(|side| side.offset_bound_us);
    Some(context! {
        holds => sum(|side| side.holds),
        bound => format!("{:.0}", bounds.fold(0.0, f64::max)),
        wasted => sum(|side| side.grants_without_work),
        twice => sum(|side| side.owned_twice),
        fell => sum(|side| side.tokens_that_fell),
    })
}

fn fault_view(cells: &[Cell], outcome: &Outcome) -> Value {
    let columns: Vec<&[Cell]> = cells
        .chunk_by(|one, other| one.length_s.to_bits() == other.length_s.to_bits())
        .collect();
    let first = columns.first().and_then(|column| column.first());
    let rows = columns.first().map_or(0, |column| column.len());
    let heat: Vec<Value> = (0..rows)
        .map(|row| {
            let of_row: Vec<&Cell> = columns.iter().filter_map(|column| column.get(row)).collect();
            context! {
                policy => of_row.first().map(|cell| cell.policy.clone()),
                cells => of_row.iter().map(|cell| heat_view(cell)).collect::<Vec<_>>(),
            }
        })
        .collect();
    context! {
        name => first.map(Cell::fault),
        what => first.map(|cell| cell.kind.what()),
        lengths => columns.iter().filter_map(|column| column.first()).map(|cell| context! {
            s => number(cell.length_s),
            leases => format!("{:.2}", cell.leases),
        }).collect::<Vec<_>>(),
        heat,
        rows => cells.iter().map(cell_view).collect::<Vec<_>>(),
        worst => worst(cells, outcome).map(|round| context! {
            observed => format!("{:.2}", round.fault.observed_ms / 1e3),
            ownership => chart::ownership(round),
            server => round.server.is_some(),
        }),
    }
}

fn heat_view(cell: &Cell) -> Value {
    let percent = |part: u64| part as f64 * 100.0 / cell.held.max(1) as f64;
    context! {
        lost => format!("{:.0}", percent(cell.lost)),
        predicted => format!("{:.0}", percent(cell.predicted_lost)),
        overlaps => cell.overlaps.count,
        longest => longest(&cell.overlaps),
        wrong => cell.mismatches,
    }
}

fn cell_view(cell: &Cell) -> Value {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    context! {
        policy => cell.policy.clone(),
        length => number(cell.length_s),
        held => cell.held,
        lost => cell.lost,
        predicted => cell.predicted_lost,
        expected => format!("{}–{} %", percent(cell.expected_99.from), percent(cell.expected_99.to)),
        outside => !cell.is_as_expected(),
        near => cell.in_band,
        wrong => cell.mismatches,
        needless => cell.needless,
        told => notice(cell.told.as_ref(), cell.lost),
        told_by_model => notice(cell.predicted_told.as_ref(), cell.predicted_lost),
        overlaps => cell.overlaps.count,
        overlaps_by_model => match cell.predicted_overlaps {
            (sure, possible) if sure == possible => sure.to_string(),
            (sure, possible) => format!("{sure}–{possible}"),
        },
        longest => longest(&cell.overlaps),
        exposed => cell.exposure.map(|exposure| exposure.count),
        exposed_for => longest_known(cell.exposure.as_ref()),
        orphaned_for => longest_known(cell.orphan.as_ref()),
        refused => cell.fencing.stale_rejected,
        accepted => cell.fencing.stale_accepted,
        commands => cell.commands_in_fault,
    }
}

/// The window of a fault in which two were at work for the longest, all policies together.
fn worst<'a>(cells: &[Cell], outcome: &'a Outcome) -> Option<&'a Round> {
    let first = cells.first()?;
    let of_fault = |round: &&Round| (round.fault.kind, round.fault.scope) == (first.kind, first.scope);
    let total = |round: &Round| round.policies.iter().map(|row| row.overlaps.total_ms).sum::<f64>();
    let rounds = outcome.rounds.iter().filter(of_fault);
    rounds.max_by(|one, other| total(one).total_cmp(&total(other)))
}

#[cfg(test)]
mod tests {
    use crate::measure::judge;
    use crate::measure::samples::{grid_outcome, of_both_sides};
    use crate::report::page;

    #[test]
    fn the_page_of_a_grid_has_a_heat_map_a_fault_and_no_list_of_rounds() {
        let mut outcome = grid_outcome();
        judge(&mut outcome);
        let page = page(&outcome).unwrap();
        assert_eq!(page.matches("class=\"heat\"").count(), 3, "three faults");
        assert!(page.contains("When holders were told of a loss") && page.contains("Who owned and who worked"));
        assert!(!page.contains("Round 1:"));
        assert!(page.contains("Nobody was told by naive-cancel."), "silence is said");
        assert!(page.contains("as far as renewals were answered") && !page.contains("append-only"));
    }

    #[test]
    fn the_page_shows_the_server_s_side_where_it_is_known() {
        let page = page(&of_both_sides(grid_outcome())).unwrap();
        assert!(page.contains("by its append-only file, ± 1 ms") && !page.contains("as far as renewals"));
        assert!(
            page.contains("tells of <strong>1080</strong> holds"),
            "of three windows"
        );
        assert!(page.contains("<th scope=\"col\">exposed</th>") && page.contains("<td>1.50 s</td><td>–</td>"));
    }
}
