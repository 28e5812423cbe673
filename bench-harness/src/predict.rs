//! What each policy must lose: the closed forms of the renewal design, for one lock at a time.
//!
//! Written from the policies' descriptions, not from the library: it would be no check otherwise. Everything
//! counts from the last renewal that the server executed before the fault; times are nanoseconds, signed.

use std::time::Duration;

/// How a policy spends its time when renewals fail; all times follow from the lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Timings {
    /// How long Redis keeps a lock that is not renewed.
    pub lease: i64,
    /// Shortest and longest time between two renewals: the jitter is −10 % … 0.
    pub period: (i64, i64),
    /// How long one attempt may take.
    pub attempt: i64,
    /// How long before the lease's end its holder stops to believe in it.
    pub margin: i64,
    /// What follows a failed attempt.
    pub effort: Effort,
    /// Whether the holder is told.
    pub tells: bool,
}

/// What follows a failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Effort {
    /// So many more attempts, after these pauses.
    Retry(Vec<i64>),
    /// Attempts until the margin begins.
    UntilDeadline,
}

/// What a fault does to a renewal that is sent while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// It is refused at once.
    Refuse,
    /// It vanishes, and so does the one on its way when the fault ends.
    Swallow,
    /// The one that waits when the fault ends succeeds; those given up before are executed or not, it does not save them.
    Pending,
}

/// What the model says of one lock.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Whether the lock is lost.
    pub lost: bool,
    /// How far the end of the fault is from the boundary; positive: on the losing side.
    pub distance: i64,
    /// How near to the boundary the model does not commit itself.
    pub band: i64,
    /// When the holder is told, counted from the last renewal, if it is told at all.
    pub told: Option<(i64, i64)>,
}

impl Timings {
    /// The timings of a preset for a lease, or nothing if there is no preset of that name.
    pub fn of(policy: &str, lease: Duration) -> Option<Self> {
        let lease = i64::try_from(lease.as_nanos()).ok()?;
        let period = lease / 3;
        let (effort, tells, margin) = match policy {
            "deadline" => (Effort::UntilDeadline, true, lease / 10),
            "deadline-strict" => (Effort::UntilDeadline, true, lease / 3),
            "cancel-told" => (Effort::Retry(vec![]), true, lease / 10),
            "naive-cancel" => (Effort::Retry(vec![]), false, lease / 10),
            "retry-3" => (
                Effort::Retry(vec![lease / 60, lease / 30, lease / 15]),
                true,
                lease / 10,
            ),
            "retry-10" => {
                let mut pauses = vec![lease / 30; 10];
                pauses[0] = lease / 60;
                (Effort::Retry(pauses), true, lease / 10)
            }
            _ => return None,
        };
        Some(Self {
            lease,
            period: (period - period / 10, period),
            attempt: (lease / 10).min(LONGEST_ATTEMPT),
            margin: margin.max(SHORTEST_MARGIN).min(period),
            effort,
            tells,
        })
    }

    /// The last moments at which a renewal can still succeed: at the shortest and at the longest period.
    pub fn last_chance(&self, family: Family) -> (i64, i64) {
        let (earliest, latest) = match (&self.effort, family) {
            (Effort::UntilDeadline, _) => return (self.lease - self.margin, self.lease - self.margin),
            (Effort::Retry(pauses), family) => {
                let answers = match family {
                    Family::Refuse => 0,
                    Family::Swallow => pauses.len() as i64,
                    Family::Pending => pauses.len() as i64 + 1,
                };
                let spent = answers * self.attempt + pauses.iter().sum::<i64>();
                (self.period.0 + spent, self.period.1 + spent)
            }
        };
        (earliest.min(self.lease), latest.min(self.lease))
    }

    /// When the holder of a lock that is lost is told, counted from its last renewal.
    fn told(&self, family: Family, renewal_to_heal: i64) -> Option<(i64, i64)> {
        let pauses = match &self.effort {
            _ if !self.tells => return None,
            Effort::UntilDeadline => return Some((self.lease - self.margin, self.lease - self.margin)),
            Effort::Retry(pauses) => pauses,
        };
        let failures = match family {
            Family::Refuse => 0,
            Family::Swallow | Family::Pending => pauses.len() as i64 + 1,
        };
        let spent = failures * self.attempt + pauses.iter().sum::<i64>();
        let (earliest, latest) = (self.period.0 + spent, self.period.1 + spent);
        // Whoever still tries when the fault ends hears a definite no at the first attempt that is answered.
        let first_answer = renewal_to_heal + self.attempt + pauses.iter().max().copied().unwrap_or(0);
        Some((
            earliest.min(renewal_to_heal.max(self.lease)),
            latest.min(first_answer.max(self.lease)),
        ))
    }

    /// What becomes of a lock whose fault ends `renewal_to_heal` after its last renewal.
    ///
    /// `uncertainty`: how well the two instants are known, and how long the machine stood still.
    pub fn predict(&self, family: Family, renewal_to_heal: i64, uncertainty: i64) -> Prediction {
        let (earliest, latest) = self.last_chance(family);
        let boundary = (earliest + latest) / 2;
        let distance = renewal_to_heal - boundary;
        let jitter_reach = (latest - earliest) / 2;
        let band = (self.lease / 100).max(jitter_reach) + uncertainty;
        let lost = distance > 0;
        Prediction {
            lost,
            distance,
            band,
            told: if lost { self.told(family, renewal_to_heal) } else { None },
        }
    }
}

impl Prediction {
    /// Whether the lock is so near the boundary that either fate is right.
    pub fn in_band(&self) -> bool {
        self.distance.abs() <= self.band
    }

    /// Whether the fate of the lock contradicts the model.
    pub fn contradicts(&self, lost: bool) -> bool {
        lost != self.lost && !self.in_band()
    }
}

/// The library's limit of one attempt, however long the lease.
const LONGEST_ATTEMPT: i64 = 3_000_000_000;

/// The library's least margin, however short the lease.
const SHORTEST_MARGIN: i64 = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn timings(policy: &str) -> Timings {
        Timings::of(policy, Duration::from_secs(30)).unwrap()
    }

    /// Share of locks lost to a fault of that length, over all phases of a period without jitter.
    fn share(policy: &str, family: Family, fault: f64) -> f64 {
        let mut timings = timings(policy);
        timings.period.0 = timings.period.1;
        let phases = 2_000;
        let lost = (0..phases).filter(|phase| {
            let since_renewal = timings.period.1 * phase / phases;
            timings
                .predict(family, since_renewal + (fault * SECOND as f64) as i64, 0)
                .lost
        });
        lost.count() as f64 / phases as f64
    }

    #[test]
    fn the_table_of_the_design_comes_out() {
        // Lease 30 s; fault length, then the share that is lost (RENEWAL, section 6).
        let table = [
            ("naive-cancel", Family::Refuse, [(1.0, 0.1), (5.0, 0.5), (10.0, 1.0)]),
            ("naive-cancel", Family::Pending, [(1.0, 0.0), (5.0, 0.2), (10.0, 0.7)]),
            ("retry-3", Family::Refuse, [(1.0, 0.0), (5.0, 0.15), (10.0, 0.65)]),
            ("retry-3", Family::Pending, [(15.0, 0.0), (20.0, 0.45), (25.0, 0.95)]),
            ("deadline", Family::Refuse, [(15.0, 0.0), (20.0, 0.3), (25.0, 0.8)]),
            ("deadline", Family::Swallow, [(15.0, 0.0), (20.0, 0.3), (30.0, 1.0)]),
        ];
        for (policy, family, cells) in table {
            for (fault, expected) in cells {
                let share = share(policy, family, fault);
                assert!(
                    (share - expected).abs() < 0.002,
                    "{policy} {family:?} {fault} s: {share}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn the_holder_is_told_in_time_or_not_at_all() {
        let told = |policy, family| timings(policy).predict(family, 40 * SECOND, 0).told;
        assert_eq!(told("naive-cancel", Family::Refuse), None);
        assert_eq!(told("deadline", Family::Swallow), Some((27 * SECOND, 27 * SECOND)));
        // Ten retries against silence: told after the lease has ended.
        assert!(told("retry-10", Family::Swallow).unwrap().0 > 30 * SECOND);
        assert!(told("retry-10", Family::Refuse).unwrap().1 < 30 * SECOND);
        // Unless the fault ends before: then the server says no.
        let answered = timings("retry-10").predict(Family::Swallow, 35 * SECOND, 0).told;
        assert_eq!(answered, Some((35 * SECOND, 39 * SECOND)));
    }

    #[test]
    fn near_the_boundary_the_model_does_not_commit_itself() {
        let timings = timings("deadline");
        let near = timings.predict(Family::Refuse, 27 * SECOND + SECOND / 5, 0);
        assert!(near.lost && near.in_band() && !near.contradicts(false));
        let far = timings.predict(Family::Refuse, 28 * SECOND, 0);
        assert!(far.contradicts(false) && !far.contradicts(true));
    }

    #[test]
    fn a_policy_without_a_model_is_none() {
        assert_eq!(Timings::of("hope", Duration::from_secs(30)), None);
        for (policy, _) in crate::scenario::POLICIES {
            assert!(Timings::of(policy, Duration::from_secs(30)).is_some(), "{policy}");
        }
    }
}
