//! What deserves to be told of workers that a fault struck.

use super::{Finding, Outcome, Severity};
use crate::scenario::FaultKind;

/// A note for each thing that happened to workers and is neither good nor bad by itself.
pub(super) fn notes(outcome: &Outcome) -> Vec<Finding> {
    let note = |text| Finding {
        severity: Severity::Note,
        text,
    };
    let (frozen, orphans) = (&outcome.checked.frozen, &outcome.checked.orphans);
    let beside = (frozen.count > 0).then(|| {
        format!(
            "{} times a worker was at work under a lock whose holder stood still, for {:.0} ms at most: nothing was done by two",
            frozen.count, frozen.max_ms
        )
    });
    let orphaned = (orphans.count > 0).then(|| {
        let lease = outcome.scenario.lease().as_secs_f64();
        let unasked = match orphans.count - orphans.taken {
            0 => String::new(),
            unasked => format!("; {unasked} had no other holder before the end of the run"),
        };
        let longest = orphans.max_ms.map_or_else(String::new, |ms| {
            format!(
                ": others had {} of them, the last {:.2} s after its holder's death",
                orphans.taken,
                ms / 1e3
            )
        });
        format!(
            "{} locks with a lease of {lease} s were held by workers that were killed{longest}{unasked}",
            orphans.count
        )
    });
    let cancelled = outcome.load.as_ref().map_or(0, |load| load.cancelled);
    let dropped = (cancelled > 0).then(|| format!("{cancelled} requests were dropped before they had an answer"));
    beside.into_iter().chain(orphaned).chain(dropped).map(note).collect()
}

/// A fault that was to drop requests and found none is no measurement.
pub(super) fn without_effect(outcome: &Outcome) -> Option<Finding> {
    let dropping = outcome.faults.iter().any(|fault| fault.kind == FaultKind::DropFuture);
    let cancelled = outcome.load.as_ref().map_or(0, |load| load.cancelled);
    (dropping && cancelled == 0).then(|| Finding {
        severity: Severity::Invalid,
        text: "drop_future dropped nothing: no request began while it lasted".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::measure::judge;
    use crate::measure::samples::load_outcome;

    #[test]
    fn what_happened_to_workers_is_told_and_by_itself_fails_nothing() {
        let mut outcome = load_outcome();
        outcome.checked.frozen.count = 3;
        outcome.checked.frozen.max_ms = 2_000.0;
        outcome.checked.orphans = crate::measure::Orphans {
            count: 5,
            taken: 4,
            max_ms: Some(2_900.0),
        };
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::GOOD, "{:?}", outcome.thresholds);
        let told: Vec<_> = outcome.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert!(told.iter().any(|text| text.starts_with("3 times")), "{told:?}");
        let orphans = told.iter().find(|text| text.starts_with("5 locks")).unwrap();
        assert!(orphans.contains("2.90 s") && orphans.ends_with("1 had no other holder before the end of the run"));
    }

    #[test]
    fn a_fault_that_dropped_nothing_makes_the_run_no_measurement() {
        let mut outcome = load_outcome();
        outcome.faults[0].kind = FaultKind::DropFuture;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::INVALID);
        outcome.findings.clear();
        outcome.load.as_mut().unwrap().cancelled = 1;
        judge(&mut outcome);
        assert_eq!(outcome.exit, exit::GOOD);
    }
}
