//! What deserves to be told of workers that a fault struck.

use super::{Finding, Outcome, Severity};

/// A note for each thing that happened to workers and is neither good nor bad by itself.
pub(super) fn notes(outcome: &Outcome) -> Vec<Finding> {
    let note = |text| Finding {
        severity: Severity::Note,
        text,
    };
    let frozen = &outcome.checked.frozen;
    let beside = (frozen.count > 0).then(|| {
        format!(
            "{} times a worker was at work under a lock whose holder stood still, for {:.0} ms at most: nothing was done by two",
            frozen.count, frozen.max_ms
        )
    });
    beside.into_iter().map(note).collect()
}
