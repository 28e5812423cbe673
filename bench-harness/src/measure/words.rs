//! Measured values in the words and digits in which people read them.

use super::{Lengths, PolicyRow, Told};

/// The longest, or a dash.
pub(crate) fn longest(lengths: &Lengths) -> String {
    if lengths.count == 0 {
        "–".to_owned()
    } else {
        format!("{:.2} s", lengths.max_ms / 1e3)
    }
}

/// The longest of times that may not be known: then a question mark.
pub(crate) fn longest_known(lengths: Option<&Lengths>) -> String {
    lengths.map_or("?".to_owned(), longest)
}

/// When the holders of a row were told, in words.
pub(crate) fn told(row: &PolicyRow) -> String {
    notice(row.told.as_ref(), row.lost)
}

/// When the model says that the holders of a row are told, in words.
pub(crate) fn told_by_model(row: &PolicyRow) -> String {
    notice(row.predicted_told.as_ref(), row.predicted_lost)
}

/// When the holders of so many lost locks were told, in words.
pub(crate) fn notice(told: Option<&Told>, lost: u64) -> String {
    match told {
        None if lost == 0 => "–".to_owned(),
        None => "never".to_owned(),
        Some(told) if (told.max_ms - told.min_ms).abs() < 10.0 => format!("{:+.2} s", told.median_ms / 1e3),
        Some(told) => format!("{:+.2} … {:+.2} s", told.min_ms / 1e3, told.max_ms / 1e3),
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
