//! Charts as SVG, in colours that the page sets: they follow its light or dark look.
//!
//! Plotters knows no CSS variables, so it draws in sentinel colours, which are replaced afterwards.

mod notice;

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::measure::{FaultRun, Load, PolicyRow, Round, Timeline};

pub(super) use notice::notice;

type Drawing<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// The colours of the page, by what they mean.
#[derive(Clone, Copy)]
enum Ink {
    Text,
    Soft,
    Grid,
    Main,
    Second,
    Third,
    Fault,
    Bad,
    Server,
}

impl Ink {
    /// A colour that nothing else draws in.
    fn colour(self) -> RGBColor {
        RGBColor(1, 2, self as u8)
    }

    fn sentinel(self) -> String {
        let RGBColor(red, green, blue) = self.colour();
        format!("#{red:02X}{green:02X}{blue:02X}")
    }
}

/// Latency over percentiles: the rarer, the further to the right. In a closed loop the intended start is the call.
pub(super) fn spectrum(load: &Load, open: bool) -> String {
    let mut series = vec![("from the call", load.service.spectrum(), Ink::Second)];
    if open {
        series.insert(0, ("from the intended start", load.acquire.spectrum(), Ink::Main));
    }
    let points = || series.iter().flat_map(|(_, points, _)| points);
    let right = points().map(|point| point.0).fold(10.0, f64::max);
    let bottom = points()
        .map(|point| point.1)
        .fold(f64::INFINITY, f64::min)
        .clamp(0.001, 1e6);
    let top = points().map(|point| point.1).fold(bottom * 10.0, f64::max) * 1.2;
    draw("Latency by percentile", (WIDE, 320), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(38)
            .y_label_area_size(66)
            .build_cartesian_2d((1.0..right).log_scale(), (bottom * 0.8..top).log_scale())?;
        chart
            .configure_mesh()
            .axis_style(Ink::Grid.colour())
            .bold_line_style(Ink::Grid.colour())
            .light_line_style(TRANSPARENT)
            .label_style(text(12))
            .axis_desc_style(text(12))
            .x_desc("percentile")
            .y_desc("time to get the lock")
            .x_label_formatter(&|nines| percentile(*nines))
            .y_label_formatter(&|ms| milliseconds(*ms))
            .draw()?;
        for (index, (name, points, ink)) in series.iter().enumerate() {
            chart.draw_series(LineSeries::new(points.iter().copied(), ink.colour().stroke_width(2)))?;
            legend(area, index, name, *ink)?;
        }
        Ok(())
    })
}

/// Requests answered each second, with the faults as bands.
pub(super) fn rate(load: &Load, faults: &[FaultRun]) -> String {
    let top = load.series.iter().map(|second| second.count as f64).fold(1.0, f64::max) * 1.15;
    draw("Requests answered per second", (WIDE, 200), |area| {
        let mut chart = over_time(area, load, 0.0..top)?;
        chart.draw_series(bands(faults, 0.0, top))?;
        chart
            .configure_mesh()
            .axis_style(Ink::Grid.colour())
            .bold_line_style(Ink::Grid.colour())
            .light_line_style(TRANSPARENT)
            .label_style(text(12))
            .axis_desc_style(text(12))
            .y_desc("answers / s")
            .x_desc("seconds")
            .draw()?;
        chart.draw_series(load.series.iter().map(|second| {
            let from = f64::from(second.second);
            Rectangle::new(
                [(from + 0.08, 0.0), (from + 0.92, second.count as f64)],
                Ink::Main.colour().filled(),
            )
        }))?;
        Ok(())
    })
}

/// Latency of the answers of each second, with the faults as bands.
pub(super) fn latency(load: &Load, faults: &[FaultRun]) -> String {
    let top = load.series.iter().map(|second| second.max_ms).fold(0.01, f64::max) * 1.3;
    let bottom = load
        .series
        .iter()
        .map(|second| second.p50_ms)
        .fold(top, f64::min)
        .max(0.001)
        * 0.7;
    draw("Latency of each second", (WIDE, 240), |area| {
        let right = seconds_shown(load);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(38)
            .y_label_area_size(66)
            .build_cartesian_2d(0.0..right, (bottom..top).log_scale())?;
        chart.draw_series(bands(faults, bottom, top))?;
        chart
            .configure_mesh()
            .axis_style(Ink::Grid.colour())
            .bold_line_style(Ink::Grid.colour())
            .light_line_style(TRANSPARENT)
            .label_style(text(12))
            .axis_desc_style(text(12))
            .x_desc("seconds")
            .y_desc("time to get the lock")
            .y_label_formatter(&|ms| milliseconds(*ms))
            .draw()?;
        type Pick = fn(&crate::measure::Second) -> f64;
        let lines: [(&str, Pick, Ink); 3] = [
            ("p50", |second| second.p50_ms, Ink::Main),
            ("p99", |second| second.p99_ms, Ink::Second),
            ("max", |second| second.max_ms, Ink::Third),
        ];
        for (index, (name, pick, ink)) in lines.into_iter().enumerate() {
            // A second without answers is a gap, not a straight line across it.
            for run in load.series.chunk_by(|one, next| one.second + 1 == next.second) {
                let points = run
                    .iter()
                    .map(|second| (f64::from(second.second) + 0.5, pick(second).max(bottom)));
                chart.draw_series(LineSeries::new(points, ink.colour().stroke_width(2)).point_size(2))?;
            }
            legend(area, index, name, ink)?;
        }
        Ok(())
    })
}

/// Who owned and who worked, for a few keys of each policy; seconds from the start of the fault.
pub(super) fn ownership(round: &Round) -> String {
    let lanes = &round.timelines;
    let end_of = |lane: &Timeline| {
        lane.rivals
            .iter()
            .map(|rival| rival.1)
            .fold(lane.server.1.max(lane.holder.1), f64::max)
    };
    let last = lanes.iter().map(end_of).fold(round.fault.observed_ms, f64::max);
    let (left, right) = (-round.lease_ms / 2.0 / 1e3, last / 1e3 + 0.15);
    let height = 66 + lanes.len() as u32 * LANE;
    draw("Who owned and who worked under a lock", (WIDE, height), |area| {
        let fault = Shade {
            from: 0.0,
            to: round.fault.observed_ms / 1e3,
            colour: Ink::Fault.colour().mix(0.22),
        };
        let axis = Axis {
            span: left..right,
            what: "seconds from the start of the fault",
        };
        let mut chart = lanes_beside_names(area, 140, lanes.len(), axis, Some(fault))?;
        let bar = |span: (f64, f64), from: f64, to: f64, ink: Ink| {
            let start = (span.0 / 1e3).clamp(left, right);
            Rectangle::new(
                [(start, from), ((span.1 / 1e3).clamp(start, right), to)],
                ink.colour().filled(),
            )
        };
        for (index, lane) in lanes.iter().enumerate() {
            let top = index as f64;
            let owned = if lane.owned.is_empty() {
                std::slice::from_ref(&lane.server)
            } else {
                &lane.owned[..]
            };
            let owned = owned.iter().map(|hold| bar(*hold, top + 0.14, top + 0.28, Ink::Server));
            let mut bars: Vec<_> = owned.collect();
            bars.push(bar(lane.holder, top + 0.34, top + 0.60, Ink::Main));
            bars.extend(
                lane.exposed
                    .iter()
                    .map(|gap| bar(*gap, top + 0.28, top + 0.33, Ink::Third)),
            );
            bars.extend(
                lane.rivals
                    .iter()
                    .map(|rival| bar(*rival, top + 0.64, top + 0.90, Ink::Second)),
            );
            bars.extend(
                lane.overlaps
                    .iter()
                    .map(|overlap| bar(*overlap, top + 0.34, top + 0.90, Ink::Bad)),
            );
            chart.draw_series(bars)?;
            if let Some(told) = lane.told {
                let at = told / 1e3;
                chart.draw_series([PathElement::new(
                    [(at, top + 0.08), (at, top + 0.66)],
                    Ink::Text.colour().stroke_width(2),
                )])?;
            }
            let label = format!("{} #{}", lane.policy, lane.key % 1_000_000);
            area.draw(&Text::new(
                label,
                (14, 26 + (index as u32 * LANE + LANE / 2) as i32 - 6),
                text(12),
            ))?;
        }
        let names = [
            ("owned at the server", Ink::Server),
            ("holder at work", Ink::Main),
            ("rival at work", Ink::Second),
            ("both at work", Ink::Bad),
            ("told of the loss", Ink::Text),
        ];
        for (index, (name, ink)) in names.into_iter().enumerate() {
            legend(area, index, name, ink)?;
        }
        Ok(())
    })
}

/// The fate of each lock over the time from its last renewal to the end of the fault, beside the model's boundary.
pub(super) fn fates(round: &Round) -> String {
    let rows = &round.policies;
    let all = || rows.iter().flat_map(|row| &row.locks);
    let boundaries = || all().map(|lock| lock.renewal_to_heal_ms - lock.distance_ms);
    let first = all()
        .map(|lock| lock.renewal_to_heal_ms)
        .chain(boundaries())
        .fold(f64::INFINITY, f64::min);
    let last = all()
        .map(|lock| lock.renewal_to_heal_ms)
        .chain(boundaries())
        .fold(0.0, f64::max);
    let (left, right) = (first.min(last) / 1e3 - 0.1, last / 1e3 + 0.1);
    draw(
        "Fate of each lock and the boundary of the model",
        (WIDE, 66 + rows.len() as u32 * FATE_LANE),
        |area| {
            let axis = Axis {
                span: left..right,
                what: "seconds from the last renewal of the lock to the end of the fault",
            };
            let mut chart = lanes_beside_names(area, 140, rows.len(), axis, None)?;
            for (index, row) in rows.iter().enumerate() {
                draw_fates(&mut chart, row, index as f64)?;
                area.draw(&Text::new(
                    row.policy.clone(),
                    (14, 26 + (index as u32 * FATE_LANE + FATE_LANE / 2) as i32 - 6),
                    text(12),
                ))?;
            }
            let names = [
                ("kept", Ink::Main),
                ("lost", Ink::Second),
                ("against the model", Ink::Bad),
                ("boundary", Ink::Text),
            ];
            for (index, (name, ink)) in names.into_iter().enumerate() {
                legend(area, index, name, ink)?;
            }
            Ok(())
        },
    )
}

/// What lies across a chart of lanes.
struct Axis {
    span: std::ops::Range<f64>,
    what: &'static str,
}

/// A stretch of the axis that stands out over all lanes.
struct Shade {
    from: f64,
    to: f64,
    colour: RGBAColor,
}

/// A chart with a lane for each name; the names themselves are drawn into the room of `names` on the left.
fn lanes_beside_names<'a, 'b>(
    area: &'a Drawing<'b>,
    names: u32,
    lanes: usize,
    axis: Axis,
    shade: Option<Shade>,
) -> Result<Plane<'a, 'b>, Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(24)
        .margin_top(26)
        .x_label_area_size(34)
        .y_label_area_size(names)
        .build_cartesian_2d(axis.span, lanes as f64..0.0)?;
    if let Some(shade) = shade {
        chart.draw_series([Rectangle::new(
            [(shade.from, 0.0), (shade.to, lanes as f64)],
            shade.colour.filled(),
        )])?;
    }
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .axis_style(Ink::Grid.colour())
        .bold_line_style(Ink::Grid.colour())
        .light_line_style(TRANSPARENT)
        .label_style(text(12))
        .axis_desc_style(text(12))
        .x_desc(axis.what)
        .draw()?;
    Ok(chart)
}

type Plane<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn draw_fates(chart: &mut Plane<'_, '_>, row: &PolicyRow, top: f64) -> Drawn {
    if let Some(lock) = row.locks.first() {
        let at = (lock.renewal_to_heal_ms - lock.distance_ms) / 1e3;
        let band = lock.band_ms / 1e3;
        chart.draw_series([Rectangle::new(
            [(at - band, top + 0.1), (at + band, top + 0.9)],
            Ink::Soft.colour().mix(0.25).filled(),
        )])?;
        chart.draw_series([PathElement::new(
            [(at, top + 0.1), (at, top + 0.9)],
            Ink::Text.colour().stroke_width(2),
        )])?;
    }
    chart.draw_series(row.locks.iter().enumerate().map(|(index, lock)| {
        let wrong = lock.lost != lock.predicted_lost && lock.distance_ms.abs() > lock.band_ms;
        let ink = match (wrong, lock.lost) {
            (true, _) => Ink::Bad,
            (false, true) => Ink::Second,
            (false, false) => Ink::Main,
        };
        // Spread over the height of the lane, or they would hide one another.
        let height = top + 0.22 + 0.56 * ((index * 7) % 10) as f64 / 9.0;
        Circle::new((lock.renewal_to_heal_ms / 1e3, height), 3, ink.colour().filled())
    }))?;
    Ok(())
}

fn over_time<'a, 'b>(
    area: &'a Drawing<'b>,
    load: &Load,
    height: std::ops::Range<f64>,
) -> Result<Plane<'a, 'b>, Box<dyn Error>> {
    Ok(ChartBuilder::on(area)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(38)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..seconds_shown(load), height)?)
}

fn seconds_shown(load: &Load) -> f64 {
    load.series
        .last()
        .map_or(1.0, |second| f64::from(second.second) + 1.0)
        .max(1.0)
}

fn bands(faults: &[FaultRun], bottom: f64, top: f64) -> Vec<Rectangle<(f64, f64)>> {
    faults
        .iter()
        .map(|fault| {
            let from = fault.from_ms / 1e3;
            let to = from + fault.observed_ms / 1e3;
            Rectangle::new([(from, bottom), (to, top)], Ink::Fault.colour().mix(0.22).filled())
        })
        .collect()
}

/// Draws into a string; a chart that cannot be drawn says so instead.
fn draw(label: &str, size: (u32, u32), chart: impl FnOnce(&Drawing<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        chart(&area).and_then(|()| Ok(area.present()?))
    };
    match drawn {
        Ok(()) => in_page_colours(&svg, label, size),
        Err(error) => format!(
            "<p>This chart could not be drawn: {}.</p>",
            error.to_string().replace('<', "&lt;")
        ),
    }
}

fn in_page_colours(svg: &str, label: &str, (width, height): (u32, u32)) -> String {
    let mut svg = svg.replacen(
        &format!("<svg width=\"{width}\" height=\"{height}\""),
        &format!("<svg role=\"img\" aria-label=\"{label}\" style=\"max-width:{width}px\""),
        1,
    );
    for (ink, variable) in VARIABLES {
        svg = svg.replace(&ink.sentinel(), &format!("var(--{variable})"));
    }
    svg
}

fn legend(area: &Drawing<'_>, index: usize, name: &str, ink: Ink) -> Drawn {
    let left = 150 + index as i32 * 150;
    area.draw(&Rectangle::new([(left, 6), (left + 14, 14)], ink.colour().filled()))?;
    area.draw(&Text::new(name.to_owned(), (left + 20, 5), text(12)))?;
    Ok(())
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&Ink::Soft.colour())
}

/// 1 / (1 − quantile) as a percentile: 100 is "99 %".
fn percentile(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 1.0 / nines);
    let digits = (nines.log10().round() as i32 - 2).clamp(0, 6) as usize;
    format!("{percent:.digits$} %")
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms >= 1_000.0 => format!("{} s", crate::measure::words::number(ms / 1e3)),
        ms if ms >= 1.0 => format!("{} ms", crate::measure::words::number(ms)),
        ms => format!("{:.0} µs", ms * 1e3),
    }
}

const VARIABLES: [(Ink, &str); 9] = [
    (Ink::Text, "ink"),
    (Ink::Soft, "soft"),
    (Ink::Grid, "grid"),
    (Ink::Main, "main"),
    (Ink::Second, "second"),
    (Ink::Third, "third"),
    (Ink::Fault, "fault"),
    (Ink::Bad, "bad"),
    (Ink::Server, "server"),
];

const WIDE: u32 = 940;
const LANE: u32 = 34;
const FATE_LANE: u32 = 70;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::samples::{held_outcome, load_outcome};

    #[test]
    fn no_chart_keeps_a_sentinel_colour_or_fails() {
        let (load, held) = (load_outcome(), held_outcome());
        let of_load = load.load.as_ref().unwrap();
        let charts = [
            spectrum(of_load, true),
            rate(of_load, &load.faults),
            latency(of_load, &load.faults),
            ownership(&held.rounds[0]),
            fates(&held.rounds[0]),
        ];
        for chart in charts {
            assert!(chart.starts_with("<svg role="), "{}", &chart[..chart.len().min(200)]);
            assert!(!chart.contains("#0102"));
            assert!(chart.contains("var(--"));
        }
    }

    #[test]
    fn an_empty_run_draws_empty_charts() {
        let load = Load::default();
        assert!(spectrum(&load, false).contains("<svg") && rate(&load, &[]).contains("<svg"));
        assert!(latency(&load, &[]).contains("<svg"));
    }

    #[test]
    fn percentiles_have_the_digits_they_need() {
        let text: Vec<_> = [1.0, 10.0, 100.0, 1_000.0, 10_000.0].map(percentile).into();
        assert_eq!(text, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }
}
