//! What deserves to be told of workers that a fault struck.

use super::{Finding, Outcome, Severity};

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
    beside.into_iter().chain(orphaned).map(note).collect()
}

#[cfg(test)]
mod tests {
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
}
