//! What one fault does to one lock, and to many whose last renewals lie anywhere in the period before it.

use serde::Serialize;

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
        let expires = match fault.family {
            // An abandoned renewal has kept it alive once more.
            Family::Delivered if heals < self.lease => heals + self.lease,
            _ => self.lease,
        };
        let told = self.told(fault.family, heals);
        Fate {
            lost,
            forced: heals >= self.lease,
            told: told.map(|(_, latest)| latest),
            taken: Some(match fault.scope {
                Scope::All => expires.max(heals),
                Scope::Holders => expires,
            }),
        }
    }

    /// The share of locks that are lost to a fault of that length, over all phases of a period.
    pub fn share_lost(&self, family: Family, length: i64) -> Share {
        let LastChance { earliest, latest, .. } = self.last_chance(family);
        Share {
            from: self.share_beyond(latest, length),
            to: self.share_beyond(earliest, length),
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
    /// How long two are at work at once, if the holder stops this long after it is told and its work would end then.
    pub fn overlap(&self, reaction: i64, end_of_work: i64) -> i64 {
        let Some(taken) = self.taken else {
            return 0;
        };
        let stops = self.told.map_or(end_of_work, |told| (told + reaction).min(end_of_work));
        (stops - taken).max(0)
    }
}
