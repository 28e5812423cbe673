//! What one fault does to one lock, and to many whose last renewals lie anywhere in the period before it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::timings::Range;
use super::{Family, LastChance, Timings};
use crate::scenario::Scope;

/// A fault as one lock meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it does to renewals.
    pub family: Family,
    /// Whether rivals are struck as well, or the holder alone.
    pub scope: Scope,
    /// How long after the last renewal it begins; less than a period.
    pub phase: i64,
    /// How long it lasts.
    pub length: i64,
}

/// What becomes of one lock, without jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Whether the lock is lost.
    pub lost: bool,
    /// Whether no policy could have kept it: the fault outlasts the lease.
    pub forced: bool,
    /// When its holder is told.
    pub told: Option<i64>,
    /// When a rival that takes the lock as soon as it can has it, if the holder has not given it back before.
    pub taken: Option<i64>,
}

/// The share of locks that a fault costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// With the luckiest draws of all that is drawn at random.
    pub from: f64,
    /// With the least lucky ones.
    pub to: f64,
}

impl Fault {
    /// When it ends, counted from the last renewal.
    pub fn heals(&self) -> i64 {
        self.phase.saturating_add(self.length)
    }
}

impl Timings {
    /// What the fault does to a lock of this policy; exact for [`Timings::without_jitter`], with the luckiest draws otherwise.
    pub fn fate(&self, fault: &Fault) -> Fate {
        let heals = fault.heals();
        let chance = self.last_chance(fault.family);
        // An attempt that leaves as the fault ends succeeds; one that leaves as the lease ends is too late.
        let lost = heals > chance.latest || heals >= chance.before;
        if !lost {
            return Fate {
                lost,
                forced: false,
                told: None,
                taken: None,
            };
        }
        let told = self.told(fault.family, heals);
        Fate {
            lost,
            forced: heals >= self.lease,
            told: told.map(|(_, latest)| latest),
            taken: Some(match fault.family {
                // Executed, for all that is known.
                Family::Delivered => self.taken(fault.family, fault.scope, heals).1,
                _ => self.taken(fault.family, fault.scope, heals).0,
            }),
        }
    }

    /// For how long two are at work at once under a lock that is lost, at the least and at the most, if its holder stops this long
    /// after it is told; without an end if it never is.
    pub fn overlap(&self, family: Family, scope: Scope, renewal_to_heal: i64, reaction: i64) -> Range {
        let (soonest, latest) = self.taken(family, scope, renewal_to_heal);
        let (least, most) = match self.told(family, renewal_to_heal) {
            Some(told) => {
                let length = |told: i64, taken: i64| told.saturating_add(reaction).saturating_sub(taken).max(0);
                (length(told.0, latest), length(told.1, soonest))
            }
            None => (i64::MAX, i64::MAX),
        };
        // A rival may have come and gone while the holder stood still.
        let least = if family == Family::Frozen { 0 } else { least };
        (least, most)
    }

    /// When the server's ownership of a lock that is lost ends, counted from the last renewal, at the earliest and at the latest: with
    /// the lease, but sooner if a holder that was told gives it back.
    pub fn ended(&self, family: Family, renewal_to_heal: i64) -> Range {
        let given_back = self.told(family, renewal_to_heal).map_or(self.lease, |told| told.0);
        (
            given_back.min(self.lease),
            self.kept_alive_until(family, renewal_to_heal),
        )
    }

    /// When a lost lock expires at the latest: a renewal that was given up may have been executed in the end.
    fn kept_alive_until(&self, family: Family, heals: i64) -> i64 {
        let may_be = matches!(family, Family::Pending | Family::Delivered) && heals < self.lease;
        if may_be { heals + self.lease } else { self.lease }
    }

    /// When a rival that takes a lost lock as soon as it can has it: sooner or later, as a renewal that was given up was executed in
    /// the end or not.
    fn taken(&self, family: Family, scope: Scope, heals: i64) -> Range {
        if family == Family::Frozen {
            // Sooner perhaps, but until the holder wakes the rival is alone at work.
            return (self.lease.max(heals), self.lease.max(heals));
        }
        let latest = self.kept_alive_until(family, heals);
        match scope {
            Scope::Holders => (self.lease, latest),
            Scope::All | Scope::Rivals | Scope::Share(_) => (self.lease.max(heals), latest.max(heals)),
        }
    }

    /// The share of locks that are lost to a fault of that length, over all phases of a period.
    pub fn share_lost(&self, family: Family, length: i64) -> Share {
        self.share_after(self.last_chance(family), length)
    }

    /// The same for a client with real connections.
    pub fn share_lost_on_the_wire(&self, family: Family, length: i64) -> Share {
        self.share_after(self.last_chance_on_the_wire(family), length)
    }

    fn share_after(&self, chance: LastChance, length: i64) -> Share {
        Share {
            from: self.share_beyond(chance.latest, length),
            to: self.share_beyond(chance.earliest, length),
        }
    }

    /// The share that no policy could keep.
    pub fn share_forced(&self, length: i64) -> f64 {
        self.share_beyond(self.lease, length)
    }

    /// The share that is lost although the server would have kept it.
    pub fn share_needless(&self, family: Family, length: i64) -> Share {
        let lost = self.share_lost(family, length);
        let forced = self.share_forced(length);
        Share {
            from: lost.from - forced,
            to: lost.to - forced,
        }
    }

    /// The longest fault that costs no lock at any phase, whatever is drawn.
    pub fn survives(&self, family: Family) -> i64 {
        self.last_chance(family).earliest - self.period.1
    }

    fn share_beyond(&self, last: i64, length: i64) -> f64 {
        let period = self.period.1;
        let share = length.saturating_sub(last - period) as f64 / period as f64;
        share.clamp(0.0, 1.0)
    }
}

impl Fate {
    /// For how long the holder may work on when the server's ownership has ended: without an end if nobody tells it.
    pub fn exposure(&self, lease: i64, reaction: i64) -> i64 {
        let stops = self.told.map_or(i64::MAX, |told| told.saturating_add(reaction));
        if self.lost {
            stops.saturating_sub(lease).max(0)
        } else {
            0
        }
    }

    /// How long two are at work at once, if the holder stops this long after it is told and its work would end then.
    pub fn overlap(&self, reaction: i64, end_of_work: i64) -> i64 {
        let Some(taken) = self.taken else {
            return 0;
        };
        let stops = self.told.map_or(end_of_work, |told| (told + reaction).min(end_of_work));
        (stops - taken).max(0)
    }
}
