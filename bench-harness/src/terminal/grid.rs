//! The grid of `lockbench policies` as a table: a block for each fault and length, a row for each policy.

use std::fmt::Write as _;

use super::Paint;
use crate::measure::words::{longest, longest_known, notice, number};
use crate::measure::{Cell, Grid};

/// The table, with a line above it that says how to read it.
pub(super) fn table(grid: &Grid, scale: f64, lease_ms: f64, paint: &Paint) -> String {
    let mut text = format!(
        "\n {} fault windows, all policies side by side in each{}. Lease {:.1} s{}.\n \
         lost, told, overlaps: measured, and beside it the model's. told: from the end of the lease at the server, negative is in time.\n \
         exposed, orphaned: by the server's append-only file, longest work without owning, longest ownership without its worker.\n \
         stale: writes of overtaken holders, refused by their fencing token / accepted.\n",
        grid.windows,
        match grid.repeated {
            0 => String::new(),
            repeated => format!(", {repeated} more repeated"),
        },
        lease_ms / 1e3,
        if scale == 1.0 {
            String::new()
        } else {
            format!(
                ": everything runs at scale {scale}, a lease of {} s as {:.1} s",
                lease_ms / scale / 1e3,
                lease_ms / 1e3
            )
        }
    );
    for cells in grid.lengths() {
        let Some(first) = cells.first() else { continue };
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "\n {}, {} s{}, {:.2} leases\n {:<16}{:>6}{:>6}{:>7}{:>13}{:>9}{:>18}{:>18}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>7}\n",
            first.fault(),
            number(first.length_s),
            if scale == 1.0 {
                format!(", observed {:.2} s", first.observed_ms / 1e3)
            } else {
                format!(
                    " as {:.2} s, observed {:.2} s",
                    first.length_s * scale,
                    first.observed_ms / 1e3
                )
            },
            first.leases,
            "policy",
            "held",
            "lost",
            "model",
            "of 99 in 100",
            "needless",
            "told",
            "model",
            "overlaps",
            "model",
            "longest",
            "exposed",
            "orphaned",
            "stale",
            "commands",
            "wrong"
        );
        for cell in cells {
            let _ = writeln!(text, "{}", row(cell, paint));
        }
    }
    text
}

fn row(cell: &Cell, paint: &Paint) -> String {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let expected = format!(
        "{}–{} %{}",
        percent(cell.expected_99.from),
        percent(cell.expected_99.to),
        if cell.is_as_expected() { " " } else { "!" }
    );
    let model = match cell.predicted_overlaps {
        (sure, possible) if sure == possible => format!("{sure}"),
        (sure, possible) => format!("{sure}–{possible}"),
    };
    let overlaps = format!("{:>9}", cell.overlaps.count);
    let overlaps = if cell.overlaps.count == 0 {
        overlaps
    } else {
        paint.bad(&overlaps)
    };
    let exposed = format!("{:>9}", longest_known(cell.exposure.as_ref()));
    let exposed = match cell.exposure {
        Some(exposure) if exposure.count > 0 => paint.bad(&exposed),
        _ => exposed,
    };
    let wrong = format!("{:>7}", cell.mismatches);
    let wrong = if cell.mismatches == 0 { wrong } else { paint.bad(&wrong) };
    format!(
        " {:<16}{:>6}{:>6}{:>7}{expected:>13}{:>9}{:>18}{:>18}{overlaps}{model:>9}{:>9}{exposed}{:>9}{:>9}{:>9}{wrong}",
        cell.policy,
        cell.held,
        cell.lost,
        cell.predicted_lost,
        cell.needless,
        notice(cell.told.as_ref(), cell.lost),
        notice(cell.predicted_told.as_ref(), cell.predicted_lost),
        longest(&cell.overlaps),
        longest_known(cell.orphan.as_ref()),
        format!("{}/{}", cell.fencing.stale_rejected, cell.fencing.stale_accepted),
        cell.commands_in_fault,
    )
}
