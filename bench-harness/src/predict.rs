//! What each policy must lose: the closed forms of the renewal design.
//!
//! Written from the policies' descriptions, not from the library: it would be no check otherwise. Everything
//! counts from the last renewal that the server executed before the fault; times are nanoseconds, signed.

mod fate;
mod table;
mod timings;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use fate::{Fate, Fault, Share};
pub use table::{POLICIES, Row, Table};
pub use timings::{Effort, LastChance, Range, Timings};

/// What a fault does to a renewal that is sent while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// It is refused at once.
    Refuse,
    /// It vanishes, and so does the one on its way when the fault ends.
    Swallow,
    /// The one that waits when the fault ends succeeds; those given up before are executed or not, it does not save them.
    Pending,
    /// All are executed when the fault ends, also those that were given up.
    Delivered,
    /// None is sent: the holder itself stands still, and goes on in the end.
    #[value(skip)]
    Frozen,
}

impl Family {
    /// Every family of what happens to a renewal on its way, in the order of the design.
    pub const ALL: [Self; 4] = [Self::Refuse, Self::Swallow, Self::Pending, Self::Delivered];
}

impl fmt::Display for Family {
    /// The name as the command line spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Refuse => "refuse",
            Self::Swallow => "swallow",
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Frozen => "frozen",
        })
    }
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
    /// How much earlier or later it may be told, for the machine's sake.
    pub told_slack: i64,
}

impl Timings {
    /// What becomes of a lock whose fault ends `renewal_to_heal` after its last renewal.
    ///
    /// `uncertainty`: how well the two instants are known, and how long the machine stood still.
    pub fn predict(&self, family: Family, renewal_to_heal: i64, uncertainty: i64) -> Prediction {
        let LastChance { earliest, latest, .. } = self.last_chance_on_the_wire(family);
        let boundary = (earliest + latest) / 2;
        let distance = renewal_to_heal - boundary;
        let jitter_reach = (latest - earliest) / 2;
        let tolerance = self.lease / 100 + uncertainty;
        let band = jitter_reach + tolerance;
        let lost = distance > 0;
        Prediction {
            lost,
            distance,
            band,
            told_slack: tolerance + self.late,
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

    /// Whether a holder that was told at that time, or never, was told at another time than the model says; counted from the last
    /// renewal. Of a lock whose fate is open the model does not say.
    pub fn contradicts_told(&self, told: Option<i64>) -> bool {
        if self.in_band() {
            return false;
        }
        match (self.told, told) {
            (None, None) => false,
            (Some((from, to)), Some(at)) => {
                let allowed = from.saturating_sub(self.told_slack)..=to.saturating_add(self.told_slack);
                !allowed.contains(&at)
            }
            (Some(_), None) | (None, Some(_)) => true,
        }
    }

    /// Whether two were at work at once for a time that the model excludes: at least and at most so long is what it says of a lock
    /// that is lost. Nothing is known of the length but that it is not zero where work ends for other reasons.
    pub fn contradicts_overlap(&self, (least, most): Range, overlap: i64) -> bool {
        if self.in_band() {
            return false;
        }
        let (least, most) = if self.lost { (least, most) } else { (0, 0) };
        let must = least > self.told_slack;
        (must && overlap == 0) || overlap > most.saturating_add(self.told_slack)
    }

    /// Whether the server's ownership ended at another time than the model says, counted from the last renewal: of a lock that is lost
    /// between these two instants, of one that is kept not before its holder stopped to work.
    pub fn contradicts_end(&self, (least, most): Range, ended: i64, work_ended: i64) -> bool {
        if self.in_band() {
            return false;
        }
        let slack = self.told_slack + SERVER_SIDE;
        let (least, most) = if self.lost {
            (least, most)
        } else {
            (work_ended, i64::MAX)
        };
        ended < least.saturating_sub(slack) || ended > most.saturating_add(slack)
    }
}

/// How well it is known when the server's ownership ended.
const SERVER_SIDE: i64 = 2_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scenario::Scope;

    const SECOND: i64 = 1_000_000_000;
    const LEASE: Duration = Duration::from_secs(30);

    fn timings(policy: &str) -> Timings {
        Timings::of(policy, LEASE).unwrap()
    }

    #[test]
    fn the_table_of_the_design_comes_out() {
        // Lease 30 s; the share lost to faults of these lengths. The deadline policy's last attempt leaves 60 ms before its deadline,
        // which the design's table leaves out.
        let faults = [1, 5, 10, 15, 20, 25, 30].map(Duration::from_secs);
        let table = [
            ("naive-cancel", Family::Refuse, [0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
            ("naive-cancel", Family::Pending, [0.0, 0.2, 0.7, 1.0, 1.0, 1.0, 1.0]),
            ("retry-3", Family::Refuse, [0.0, 0.15, 0.65, 1.0, 1.0, 1.0, 1.0]),
            ("retry-3", Family::Pending, [0.0, 0.0, 0.0, 0.0, 0.45, 0.95, 1.0]),
            ("next-tick", Family::Refuse, [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]),
            ("next-tick", Family::Pending, [0.0, 0.0, 0.0, 0.0, 0.4, 0.9, 1.0]),
            ("redisson-3.27", Family::Refuse, [0.0, 0.05, 0.55, 1.0, 1.0, 1.0, 1.0]),
            ("redisson-3.27", Family::Pending, [0.0, 0.0, 0.0, 0.0, 0.35, 0.85, 1.0]),
            ("deadline", Family::Refuse, [0.0, 0.0, 0.0, 0.0, 0.3, 0.8, 1.0]),
            ("deadline", Family::Swallow, [0.0, 0.0, 0.0, 0.0, 0.3, 0.8, 1.0]),
            ("deadline", Family::Pending, [0.0, 0.0, 0.0, 0.0, 0.3, 0.8, 1.0]),
        ];
        for (policy, family, expected) in table {
            let table = Table::of(&[policy], &[family], &faults, LEASE).unwrap();
            assert_eq!(table.forced, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0]);
            for (share, expected) in table.rows[0].lost.iter().zip(expected) {
                assert!(share.from == share.to, "nothing is drawn at random");
                assert!(
                    (share.to - expected).abs() < 0.007,
                    "{policy} {family}: {share:?}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn the_faults_that_cost_nothing_are_those_of_the_design() {
        let survives = |policy, family| timings(policy).with_whole_periods().survives(family);
        for (policy, refuse, pending) in [
            ("cancel-told", 0, 30),
            ("retry-3", 35, 155),
            ("next-tick", 100, 160),
            ("redisson-3.27", 45, 165),
        ] {
            assert_eq!(survives(policy, Family::Refuse), refuse * SECOND / 10, "{policy}");
            assert_eq!(survives(policy, Family::Pending), pending * SECOND / 10, "{policy}");
        }
        assert_eq!(survives("deadline", Family::Pending), 17 * SECOND);
        assert_eq!(survives("deadline", Family::Refuse), 17 * SECOND - SECOND * 6 / 100);
    }

    #[test]
    fn the_last_chances_of_both_redissons_are_those_of_the_design() {
        let chance = |policy, family| {
            let chance = timings(policy).with_whole_periods().last_chance(family);
            [chance.earliest, chance.latest].map(|at| at as f64 / SECOND as f64)
        };
        assert_eq!(chance("redisson-3.27", Family::Refuse), [14.5, 14.5]);
        assert_eq!(chance("redisson-3.27", Family::Swallow), [23.5, 23.5]);
        assert_eq!(chance("redisson-3.27", Family::Pending), [26.5, 26.5]);
        assert_eq!(chance("redisson-3.44", Family::Refuse), [27.0, 30.0]);
        assert_eq!(chance("redisson-3.44", Family::Swallow), [25.5, 29.0]);
        assert_eq!(chance("redisson-3.44", Family::Pending), [28.5, 30.0]);
        assert_eq!(chance("redisson-3.44", Family::Delivered), [30.0, 30.0]);
    }

    #[test]
    fn the_holder_is_told_in_time_or_not_at_all() {
        let told = |policy, family| timings(policy).predict(family, 60 * SECOND, 0).told;
        assert_eq!(told("naive-cancel", Family::Refuse), None);
        assert_eq!(told("redisson-3.44", Family::Refuse), None);
        assert_eq!(told("deadline", Family::Swallow), Some((27 * SECOND, 27 * SECOND)));
        // Ten retries against silence: told after the lease has ended.
        assert!(told("retry-10", Family::Swallow).unwrap().0 > 30 * SECOND);
        assert!(told("retry-10", Family::Refuse).unwrap().1 < 30 * SECOND);
        // Unless the fault ends before: then the server says no.
        let answered = timings("retry-10").predict(Family::Swallow, 35 * SECOND, 0).told;
        assert_eq!(answered, Some((35 * SECOND, 39 * SECOND)));
    }

    #[test]
    fn a_holder_told_at_another_time_and_work_of_two_that_the_model_excludes_contradict_it() {
        // Lost 2 s beyond the boundary: told at 27 s, within .3 s and a late timer.
        let lost = timings("deadline").predict(Family::Pending, 29 * SECOND, 0);
        let told = |ms: i64| lost.contradicts_told(Some(ms * 1_000_000));
        assert!(!told(27_000) && !told(27_304) && told(27_310) && told(26_600));
        assert!(lost.contradicts_told(None));
        let kept = timings("deadline").predict(Family::Pending, 20 * SECOND, 0);
        assert!(kept.contradicts_told(Some(27 * SECOND)) && !kept.contradicts_told(None));
        // Of one near the boundary nothing is said.
        let near = timings("deadline").predict(Family::Pending, 27 * SECOND + 1, 0);
        assert!(!near.contradicts_told(Some(0)) && !near.contradicts_overlap((0, 0), 10 * SECOND));
        let silent = timings("naive-cancel").predict(Family::Refuse, 20 * SECOND, 0);
        assert!(silent.contradicts_told(Some(30 * SECOND)));

        assert!(lost.contradicts_overlap((0, 0), SECOND) && !lost.contradicts_overlap((0, 0), SECOND / 10));
        assert!(lost.contradicts_overlap((SECOND, 2 * SECOND), 0));
        assert!(
            !lost.contradicts_overlap((SECOND, 2 * SECOND), SECOND / 2),
            "work may end for other reasons"
        );
        assert!(lost.contradicts_overlap((SECOND, 2 * SECOND), 3 * SECOND));
        assert!(!silent.contradicts_overlap((i64::MAX, i64::MAX), 90 * SECOND));
        assert!(
            kept.contradicts_overlap((i64::MAX, i64::MAX), SECOND),
            "nobody else may have a lock that is kept"
        );
    }

    #[test]
    fn an_end_at_the_server_that_the_model_excludes_contradicts_it() {
        let contradicts = |policy, family, heals: i64, ended_ms: i64| {
            let timings = timings(policy);
            let prediction = timings.predict(family, heals * SECOND, 0);
            assert!(!prediction.in_band());
            let ended = timings.ended(family, heals * SECOND);
            prediction.contradicts_end(ended, ended_ms * 1_000_000, 60 * SECOND)
        };
        // Nobody is told, so the lease runs out: within .3 s, a late timer and what the evidence is good to.
        let silent = |ended_ms| contradicts("naive-cancel", Family::Refuse, 20, ended_ms);
        assert!(!silent(30_000) && !silent(30_304) && silent(30_310) && silent(29_600));
        // What was given up is executed when the fault ends, or is not.
        let delivered = |ended_ms| contradicts("naive-cancel", Family::Delivered, 20, ended_ms);
        assert!(!delivered(30_000) && !delivered(50_000) && delivered(50_400) && delivered(29_000));
        // Told at 27 s and given back at some time after that.
        let told = |ended_ms| contradicts("deadline", Family::Swallow, 40, ended_ms);
        assert!(told(26_600) && !told(27_000) && !told(30_000) && told(30_400));
        // Kept, and given back when the work ended, at 60 s.
        let kept = |ended_ms| contradicts("deadline", Family::Refuse, 15, ended_ms);
        assert!(!kept(60_001) && !kept(90_000) && kept(59_600));
    }

    #[test]
    fn two_are_at_work_at_once_where_the_design_says_so_and_never_under_the_deadline_policy() {
        let overlap = |policy, family, scope, length: i64| {
            let fault = Fault {
                family,
                scope,
                phase: 0,
                length: length * SECOND,
            };
            let fate = timings(policy).without_jitter().fate(&fault);
            assert!(fate.lost);
            fate.overlap(0, 100 * SECOND) as f64 / SECOND as f64
        };
        // p + (N+1)T + Σb − L for a holder that is cut off.
        assert_eq!(overlap("retry-10", Family::Swallow, Scope::Holders, 60), 22.5);
        assert_eq!(overlap("retry-10", Family::Refuse, Scope::Holders, 60), 0.0);
        // When all are struck, the next one begins at the end of the fault, when the holder hears of it.
        assert_eq!(overlap("retry-10", Family::Pending, Scope::All, 35), 0.0);
        assert_eq!(overlap("retry-10", Family::Swallow, Scope::All, 34), 3.5);
        // Nobody tells this one: two work until its work ends, here from the end of what an abandoned renewal kept alive.
        assert_eq!(overlap("redisson-3.27", Family::Refuse, Scope::Holders, 20), 70.0);
        assert_eq!(overlap("redisson-3.27", Family::Delivered, Scope::Holders, 28), 42.0);
        for family in Family::ALL {
            for scope in [Scope::All, Scope::Holders] {
                assert_eq!(overlap("deadline", family, scope, 40), 0.0);
            }
        }
    }

    #[test]
    fn a_frozen_holder_loses_what_outlasts_its_trust_and_is_told_when_it_wakes() {
        let frozen = |policy, length| timings(policy).predict(Family::Frozen, length * SECOND, 0);
        for policy in ["deadline", "cancel-told", "retry-10"] {
            let lost = frozen(policy, 45);
            assert!(lost.lost && !lost.contradicts_told(Some(45 * SECOND)), "{policy}");
            assert!(
                lost.contradicts_told(Some(30 * SECOND)) && lost.contradicts_told(None),
                "{policy}"
            );
            assert!(!frozen(policy, 26).lost, "{policy}");
        }
        // The one stops to believe in its lease a tenth before its end; the other asks, and has it still.
        assert!(frozen("deadline", 29).lost && !frozen("naive-cancel", 29).lost);
        // Who is told stops when it wakes; nobody tells this one, whether a rival is still there or gone.
        let overlap = |policy| timings(policy).overlap(Family::Frozen, Scope::Holders, 45 * SECOND, SECOND);
        assert_eq!(overlap("deadline"), (0, SECOND));
        assert_eq!(overlap("naive-cancel"), (0, i64::MAX));
        assert!(!frozen("naive-cancel", 45).contradicts_overlap(overlap("naive-cancel"), 0));
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
    fn a_policy_without_a_model_is_none_and_every_policy_has_one() {
        assert_eq!(Timings::of("hope", LEASE), None);
        assert_eq!(Table::of(&["hope"], &Family::ALL, &[LEASE], LEASE), None);
        for (policy, _) in crate::scenario::POLICIES {
            assert!(POLICIES.contains(&policy), "{policy}");
        }
        for policy in POLICIES {
            assert!(Timings::of(policy, LEASE).is_some(), "{policy}");
        }
    }
}
