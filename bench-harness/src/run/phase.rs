//! The moment at which a fault strikes, where the scenario wants it in a certain phase of the renewals.
//!
//! The locks are taken at one moment. Each renewal comes up to a tenth of the period early, at random, so that locks which were
//! taken together are not renewed together for ever: after a few periods they are spread, and what is just before the renewal of
//! one is no longer just before that of another.

use std::collections::HashMap;
use std::time::Duration;

use crate::evidence::{Kind, Record};
use crate::scenario::{Phase, nanos};

/// Whether now is the moment: just before the first of the locks can be renewed, or just after the last one was.
pub(super) fn is_now(phase: Phase, evidence: &[Vec<Record>], period: Duration, now_ns: u64) -> bool {
    let renewed = last_renewed(evidence);
    let (Some(oldest), Some(newest)) = (renewed.iter().min(), renewed.iter().max()) else {
        return true;
    };
    let period = nanos(period);
    match phase {
        Phase::Uniform | Phase::Sweep(_) => true,
        Phase::JustBefore => {
            let first_due = oldest + period - period / EARLY;
            let lead = period / 20;
            (first_due - lead..first_due).contains(&now_ns) && now_ns > newest + period / 2
        }
        Phase::JustAfter => now_ns < oldest + period / 2,
    }
}

/// Whether a fault met a lock that was last renewed so long before in the phase that was asked for.
pub(super) fn is_met(phase: Phase, since: Duration, period: Duration) -> bool {
    match phase {
        Phase::Uniform | Phase::Sweep(_) => true,
        Phase::JustBefore => since > period / 2 && since <= period,
        Phase::JustAfter => since < period / 2,
    }
}

/// When the last renewal of each lock was sent that the server said yes to, or when it was acquired.
fn last_renewed(evidence: &[Vec<Record>]) -> Vec<u64> {
    let mut last = HashMap::new();
    for record in evidence.iter().flatten() {
        if matches!(record.kind, Kind::Acquired | Kind::Renewed) {
            last.insert(record.key, record.clock);
        }
    }
    last.into_values().collect()
}

/// A renewal comes by at most this part of the period early.
const EARLY: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PERIOD: Duration = Duration::from_millis(1_000);

    /// The milliseconds in which it is the moment, of those from 5,000 on.
    fn moments(phase: Phase, renewed_ms: &[u64]) -> Vec<u64> {
        let record = |(key, ms): (usize, &u64)| Record {
            key: key as u64,
            owner: 0,
            fence: 0,
            kind: Kind::Renewed,
            clock: ms * MS,
            second_clock: 0,
        };
        let evidence: Vec<Vec<Record>> = vec![renewed_ms.iter().enumerate().map(record).collect()];
        (5_000..6_500)
            .filter(|ms| is_now(phase, &evidence, PERIOD, ms * MS))
            .collect()
    }

    #[test]
    fn just_before_is_short_before_the_first_can_be_renewed() {
        let found = moments(Phase::JustBefore, &[5_000, 5_100]);
        assert_eq!((found[0], found[found.len() - 1]), (5_850, 5_899));
        assert_eq!(
            moments(Phase::JustBefore, &[4_200, 5_000]),
            [0; 0],
            "one has been renewed already"
        );
    }

    #[test]
    fn just_after_is_when_all_have_been_renewed() {
        let found = moments(Phase::JustAfter, &[5_000, 5_100]);
        assert_eq!((found[0], found[found.len() - 1]), (5_000, 5_499));
        assert_eq!(
            moments(Phase::JustAfter, &[4_200, 5_000]),
            [0; 0],
            "one has not been renewed yet"
        );
    }

    #[test]
    fn without_a_wish_any_moment_is_right() {
        assert_eq!(moments(Phase::Uniform, &[5_000]).len(), 1_500);
        assert_eq!(moments(Phase::Sweep(3), &[5_000]).len(), 1_500);
    }

    #[test]
    fn a_lock_that_was_met_elsewhere_is_told() {
        let met = |phase, ms| is_met(phase, Duration::from_millis(ms), PERIOD);
        assert!(met(Phase::JustBefore, 950) && !met(Phase::JustBefore, 400) && !met(Phase::JustBefore, 1_001));
        assert!(met(Phase::JustAfter, 50) && !met(Phase::JustAfter, 600));
        assert!(met(Phase::Uniform, 500) && met(Phase::Sweep(2), 500));
    }
}
