//! When holders were told of a loss, and the line after which that is too late.

use plotters::prelude::*;

use super::{Axis, Ink, Shade, WIDE, draw, lanes_beside_names, legend, text};
use crate::measure::{Cell, Grid, Told};

/// A lane for each policy and fault in which somebody was told; a bar from the first to the last notice for each length.
pub(in crate::report) fn notice(grid: &Grid) -> Option<String> {
    let lanes = lanes(grid);
    if lanes.is_empty() {
        return None;
    }
    let times = |told: fn(&Told) -> f64| {
        let all = lanes.iter().flat_map(|(_, cells)| cells.iter());
        all.flat_map(|cell| [&cell.told, &cell.predicted_told])
            .flatten()
            .map(told)
            .collect::<Vec<_>>()
    };
    let first = times(|told| told.min_ms).into_iter().fold(-100.0, f64::min);
    let last = times(|told| told.max_ms).into_iter().fold(100.0, f64::max);
    let (left, right) = (first * 1.05 / 1e3, last * 1.05 / 1e3);
    let height = 66 + lanes.len().max(1) as u32 * LANE;
    Some(draw("When holders were told of a loss", (WIDE, height), |area| {
        let too_late = Shade {
            from: 0.0,
            to: right,
            colour: Ink::Bad.colour().mix(0.08),
        };
        let axis = Axis {
            span: left..right,
            what: "seconds from the end of the lease at the server",
        };
        let mut chart = lanes_beside_names(area, 220, lanes.len().max(1), axis, Some(too_late))?;
        for (index, (name, cells)) in lanes.iter().enumerate() {
            let step = 0.7 / cells.len().max(1) as f64;
            for (place, cell) in cells.iter().enumerate() {
                let top = index as f64 + 0.15 + place as f64 * step;
                let bar = |told: &Told, from: f64, to: f64, ink: Ink| {
                    // A single instant would not be seen.
                    let least = (right - left) / 400.0;
                    let (from_s, to_s) = (told.min_ms / 1e3, (told.max_ms / 1e3).max(told.min_ms / 1e3 + least));
                    Rectangle::new(
                        [(from_s, top + from * step), (to_s, top + to * step)],
                        ink.colour().filled(),
                    )
                };
                let model = cell.predicted_told.as_ref();
                chart.draw_series(model.map(|told| bar(told, 0.55, 0.9, Ink::Server)))?;
                let measured = cell.told.as_ref();
                chart.draw_series(measured.map(|told| {
                    let is_late = told.max_ms > 0.0;
                    bar(told, 0.1, 0.5, if is_late { Ink::Bad } else { Ink::Main })
                }))?;
            }
            let middle = 26 + (index as u32 * LANE + LANE / 2) as i32 - 6;
            area.draw(&Text::new(name.clone(), (14, middle), text(12)))?;
        }
        chart.draw_series([PathElement::new(
            [(0.0, 0.0), (0.0, lanes.len().max(1) as f64)],
            Ink::Text.colour().stroke_width(2),
        )])?;
        let names = [
            ("told in time", Ink::Main),
            ("told too late", Ink::Bad),
            ("the model", Ink::Server),
            ("the lease ends", Ink::Text),
        ];
        for (index, (name, ink)) in names.into_iter().enumerate() {
            legend(area, index, name, ink)?;
        }
        Ok(())
    }))
}

/// The cells in which somebody was told, by policy and fault.
fn lanes(grid: &Grid) -> Vec<(String, Vec<&Cell>)> {
    let mut cells: Vec<&Cell> = grid.cells.iter().filter(|cell| cell.told.is_some()).collect();
    // Stable: faults and lengths keep their order.
    cells.sort_by(|one, other| one.policy.cmp(&other.policy));
    cells
        .chunk_by(|one, other| one.policy == other.policy && one.fault() == other.fault())
        .filter_map(|alike| {
            Some((
                format!("{}, {}", alike.first()?.policy, alike.first()?.fault()),
                alike.to_vec(),
            ))
        })
        .collect()
}

const LANE: u32 = 34;
