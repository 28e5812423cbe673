//! What the model `held` measures: what became of the locks that were held when a fault struck.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fencing, ServerSide};
use crate::scenario::{FaultKind, Scope};

/// A fault as asked for and as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultRun {
    /// What.
    pub kind: FaultKind,
    /// To whom.
    pub scope: Scope,
    /// How long it was to last.
    pub asked_ms: f64,
    /// When it began: from the start of the measured time, or in the model `held` of the round.
    pub from_ms: f64,
    /// How long it lasted, as observed.
    pub observed_ms: f64,
    /// When it began, on the boot-time clock that evidence is stamped with.
    #[serde(default)]
    pub struck_ns: u64,
}

/// One fault, and what became of the locks that were held when it struck.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// The fault.
    pub fault: FaultRun,
    /// The lease as it ran.
    pub lease_ms: f64,
    /// Longest time, while the fault lasted and after, for which the machine did not run a thread that wanted to run.
    #[serde(default)]
    pub stall_ms: f64,
    /// Longest time, from just before the fault on, for which a worker process had too much to do to keep its own timers.
    #[serde(default)]
    pub late_ms: f64,
    /// For how long after the fault the server was busy with what had waited.
    #[serde(default)]
    pub busy_ms: f64,
    /// Locks that the fault met in another phase of their renewals than was asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub out_of_phase: u64,
    /// What the server's append-only file says, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerSide>,
    /// What renewing cost while nothing went wrong.
    pub overhead: Overhead,
    /// A row for each policy.
    pub policies: Vec<PolicyRow>,
    /// Ownership over time, for a few keys of each policy.
    pub timelines: Vec<Timeline>,
}

/// What renewing costs, per held lock and minute of the unscaled lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// Locks that were held.
    pub held: u64,
    /// Seconds that were watched.
    pub window_s: f64,
    /// Scripts sent.
    pub commands: f64,
    /// Bytes both ways.
    pub bytes: Option<f64>,
    /// Microseconds the server spent.
    pub server_us: f64,
}

/// What became of the locks of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyRow {
    /// The policy.
    pub policy: String,
    /// Locks held when the fault struck.
    pub held: u64,
    /// Locks that ended before their holder released them.
    pub lost: u64,
    /// Of these, those that a renewal right after the fault would have saved.
    pub needless: u64,
    /// How many the model says are lost.
    pub predicted_lost: u64,
    /// Locks of which the model got anything wrong, outside its tolerance: lost or kept, told when, two at work or not.
    pub mismatches: u64,
    /// Locks so near the boundary that the model does not commit itself.
    pub in_band: u64,
    /// When holders were told, relative to the end of the lease at the server; negative: in time.
    pub told: Option<Told>,
    /// When the model says that they are told.
    #[serde(default)]
    pub predicted_told: Option<Told>,
    /// Two workers at once under one lock.
    pub overlaps: Overlaps,
    /// Under how many locks the model is sure of that, and under how many it finds it possible.
    #[serde(default)]
    pub predicted_overlaps: (u64, u64),
    /// Work under a lock that the server did not, or no longer, let its worker own; if the server's side is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Lengths>,
    /// Ownership at the server when its holder had stopped to work, and nobody else had begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan: Option<Lengths>,
    /// What fencing tokens were worth.
    #[serde(default)]
    pub fencing: Fencing,
    /// Renewal commands sent while the fault lasted.
    pub commands_in_fault: u64,
    /// Each lock; of a grid only those that contradict the model.
    pub locks: Vec<LockRow>,
}

/// When holders were told of a loss, relative to the end of the lease at the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Told {
    /// How many were told.
    pub count: u64,
    /// The earliest.
    pub min_ms: f64,
    /// The median.
    pub median_ms: f64,
    /// The latest.
    pub max_ms: f64,
}

/// Times of one sort, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lengths {
    /// How many.
    pub count: u64,
    /// How long in all.
    pub total_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// Two workers at once under one lock.
pub type Overlaps = Lengths;

/// What became of one lock, and what the model said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LockRow {
    /// The key.
    pub key: u64,
    /// From the last renewal before the fault to its observed end.
    pub renewal_to_heal_ms: f64,
    /// Whether it was lost.
    pub lost: bool,
    /// Whether the model says so.
    pub predicted_lost: bool,
    /// How far it is from the boundary between kept and lost; positive: on the losing side.
    pub distance_ms: f64,
    /// How near to the boundary the model does not commit itself.
    pub band_ms: f64,
    /// When the holder was told, relative to the end of the lease at the server.
    pub told_ms: Option<f64>,
    /// When the model says that it is told.
    pub predicted_told_ms: Option<f64>,
    /// How long two workers were at work under it.
    pub overlap_ms: f64,
    /// When the server's ownership ended, relative to the end of the lease; if its side is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<f64>,
    /// What the model got wrong, outside its tolerance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<Wrong>,
}

/// What the model can get wrong of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// Whether it was lost.
    Fate,
    /// Whether and when its holder was told.
    Told,
    /// Whether and for how long two were at work under it.
    Overlap,
    /// When the server's ownership ended.
    End,
}

/// Who owned one key when, and who worked. Times in milliseconds from the start of the fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// The policy of the holder.
    pub policy: String,
    /// The key.
    pub key: u64,
    /// Owned by the holder at the server: by its append-only file, or else to the end of the last lease that the holder knew of.
    pub server: (f64, f64),
    /// Every hold that its append-only file tells of, that of the holder and those of rivals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<(f64, f64)>,
    /// At work without owning the lock, by that file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<(f64, f64)>,
    /// The holder at work.
    pub holder: (f64, f64),
    /// When it was told that the lock is lost.
    pub told: Option<f64>,
    /// A rival at work.
    pub rivals: Vec<(f64, f64)>,
    /// Both at work.
    pub overlaps: Vec<(f64, f64)>,
}

impl Round {
    /// Why the round says nothing about any policy, if so.
    pub(crate) fn flaw(&self) -> Option<String> {
        // A machine that stands still for as long as the holders' margin proves nothing.
        let margin_ms = self.lease_ms / 10.0;
        if self.stall_ms > margin_ms {
            return Some(format!(
                "the machine stood still for {:.0} ms while a fault lasted, longer than the margin of {margin_ms:.0} ms: \
                 repeat the run on a quieter machine, or with a larger scale",
                self.stall_ms
            ));
        }
        if self.late_ms > margin_ms {
            return Some(format!(
                "a worker ran {:.0} ms late while a fault lasted or after it, longer than the margin of {margin_ms:.0} ms: \
                 repeat the run with fewer locks, with a release build, on a quieter machine, or with a larger scale",
                self.late_ms
            ));
        }
        if self.busy_ms > margin_ms {
            return Some(format!(
                "the server was busy for {:.0} ms with what had waited for the end of the fault, longer than the margin of \
                 {margin_ms:.0} ms: repeat the run with fewer locks, on a quieter machine, or with a larger scale",
                self.busy_ms
            ));
        }
        if self.out_of_phase > 0 {
            return Some(format!(
                "the fault met {} locks in another phase of their renewals than was asked for: repeat the run with fewer locks, \
                 on a quieter machine, or with a larger scale",
                self.out_of_phase
            ));
        }
        let of_server = self.server.as_ref().and_then(ServerSide::flaw);
        of_server.or_else(|| self.fault.flaw())
    }

    /// Keeps of each lock only what contradicts the model; the rest has been counted.
    pub(crate) fn thin(&mut self) {
        for row in &mut self.policies {
            row.locks.retain(LockRow::contradicts);
        }
    }
}

impl FaultRun {
    /// Why the fault was not the one asked for, if so.
    pub(crate) fn flaw(&self) -> Option<String> {
        let differs = (self.observed_ms - self.asked_ms).abs() > (self.asked_ms * 0.1).max(LATE_PAUSE_MS);
        // What happens at one moment was asked for no length.
        (differs && self.asked_ms > 0.0).then(|| {
            format!(
                "the fault {} was to last {:.0} ms and lasted {:.0} ms: repeat the run on a quieter machine",
                self.kind.name(),
                self.asked_ms,
                self.observed_ms
            )
        })
    }
}

impl LockRow {
    /// Whether the model got anything of it wrong, outside the tolerance.
    pub(crate) fn contradicts(&self) -> bool {
        !self.wrong.is_empty()
    }
}

impl Told {
    /// Of these times; nothing if there are none.
    pub(crate) fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let (first, last) = (times.first()?, times.last()?);
        Some(Self {
            count: times.len() as u64,
            min_ms: *first,
            median_ms: times[times.len() / 2],
            max_ms: *last,
        })
    }
}

impl Lengths {
    /// Of these, in milliseconds.
    pub(crate) fn of(lengths: impl Iterator<Item = f64>) -> Self {
        let each = lengths.map(|length| Self {
            count: 1,
            total_ms: length,
            max_ms: length,
        });
        each.fold(Self::default(), |sum, length| sum.and(&length))
    }

    /// Both together.
    #[must_use]
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            total_ms: self.total_ms + other.total_ms,
            max_ms: self.max_ms.max(other.max_ms),
        }
    }

    /// All together; nothing if one of them is not known, or if there are none.
    pub(crate) fn sum(all: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let known: Option<Vec<Self>> = all.into_iter().collect();
        known?.into_iter().reduce(|sum, next| sum.and(&next))
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The end of CLIENT PAUSE comes up to one cron tick late (measured: 0 … 102 ms at hz 10), and is seen when whoever waited before has been
/// answered. The tolerance of a prediction knows how late it was.
const LATE_PAUSE_MS: f64 = 300.0;
