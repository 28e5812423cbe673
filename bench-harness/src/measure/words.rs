//! Measured values in the words and digits in which people read them.

use super::PolicyRow;

/// The longest overlap of a row, or a dash.
pub(crate) fn longest(row: &PolicyRow) -> String {
    if row.overlaps.count == 0 {
        "–".to_owned()
    } else {
        format!("{:.2} s", row.overlaps.max_ms / 1e3)
    }
}

/// When the holders of a row were told, in words.
pub(crate) fn told(row: &PolicyRow) -> String {
    match &row.told {
        None if row.lost == 0 => "–".to_owned(),
        None => "never".to_owned(),
        Some(told) if (told.max_ms - told.min_ms).abs() < 10.0 => format!("{:+.2} s", told.median_ms / 1e3),
        Some(told) => format!("{:+.2} … {:+.2} s", told.min_ms / 1e3, told.max_ms / 1e3),
    }
}

/// When the model says that the holders of a row are told, in words.
pub(crate) fn told_by_model(row: &PolicyRow) -> String {
    let lost: Vec<_> = row.locks.iter().filter(|lock| lock.predicted_lost).collect();
    let mut told: Vec<f64> = lost.iter().filter_map(|lock| lock.predicted_told_ms).collect();
    told.sort_by(f64::total_cmp);
    match told.get(told.len() / 2) {
        Some(median) => format!("{:+.2} s", median / 1e3),
        None if lost.is_empty() => "–".to_owned(),
        None => "never".to_owned(),
    }
}

/// A number without digits that say nothing.
pub(crate) fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value}")
    } else {
        format!("{value:.2}")
    }
}
