//! Little's law: whether the times a run tells of are those of all requests that were there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests in the system, from the call until the lock was given back or refused: counted twice, as they came and went, and from the
/// times they took. Both must be the same.
///
/// The law (J. D. C. Little, A Proof for the Queuing Formula L = λW, 1961) needs no assumption about arrivals or service. Over a time
/// that ends it is exact when those are reckoned with that were in the system at its beginning and at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Little {
    /// Requests in the system, on the mean over the measured time, as they came and went.
    pub mean_in_system: f64,
    /// Requests a second that the times are of.
    pub rate_per_s: f64,
    /// How long each of them was in the system, on the mean.
    pub mean_time_ms: f64,
    /// What those add that were in the system when the measured time began, less what those did after it that were when it ended:
    /// in requests on the mean.
    pub edges: f64,
}

impl Little {
    /// Requests in the system on the mean, by the law.
    pub fn by_the_law(&self) -> f64 {
        self.rate_per_s * self.mean_time_ms / 1e3 + self.edges
    }

    /// How far the two are apart: 0 if they are the same, 1 if one of them has nothing of the other.
    pub fn deviation(&self) -> f64 {
        let most = self.mean_in_system.max(self.by_the_law());
        if most > 0.0 {
            ((self.mean_in_system - self.by_the_law()).abs() / most).min(1.0)
        } else {
            0.0
        }
    }

    /// Why the latencies cannot be trusted, if so.
    pub(crate) fn flaw(&self) -> Option<String> {
        (self.deviation() > TOLERANCE).then(|| {
            format!(
                "the latencies leave requests out or tell of some that were not there: {:.2} were in the system on the mean, but {:.1}/s \
                 of {:.2} ms each make {:.2} (Little's law, tolerance {:.0} %): let requests end before the run does, with a shorter \
                 hold or wait, or report it as an error of lockbench",
                self.mean_in_system,
                self.rate_per_s,
                self.mean_time_ms,
                self.by_the_law(),
                TOLERANCE * 100.0
            )
        })
    }
}

/// Both are counted on one clock, so that they differ by less than a hundredth where nothing is left out.
const TOLERANCE: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    fn little(mean_in_system: f64) -> Little {
        Little {
            mean_in_system,
            rate_per_s: 200.0,
            mean_time_ms: 30.0,
            edges: -1.0,
        }
    }

    #[test]
    fn the_law_is_held_to_within_its_tolerance() {
        assert_eq!(little(5.0).by_the_law(), 5.0);
        for (mean_in_system, holds) in [
            (5.0, true),
            (5.2, true),
            (4.8, true),
            (5.3, false),
            (4.7, false),
            (0.0, false),
        ] {
            let flaw = little(mean_in_system).flaw();
            assert_eq!(flaw.is_none(), holds, "{mean_in_system}: {flaw:?}");
        }
        assert_eq!(Little::default().flaw(), None, "nobody came");
    }

    #[test]
    fn a_flaw_tells_both_counts_and_what_to_do() {
        let flaw = little(9.0).flaw().unwrap();
        for part in ["9.00 were", "200.0/s", "30.00 ms", "make 5.00", "5 %", "shorter hold"] {
            assert!(flaw.contains(part), "{part}: {flaw}");
        }
    }
}
