//! What the model `held` measures: what became of the locks that were held when a fault struck.

use serde::{Deserialize, Serialize};

use crate::scenario::{FaultKind, Scope};

/// A fault as asked for and as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// One fault, and what became of the locks that were held when it struck.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The fault.
    pub fault: FaultRun,
    /// The lease as it ran.
    pub lease_ms: f64,
    /// What renewing cost while nothing went wrong.
    pub overhead: Overhead,
    /// A row for each policy.
    pub policies: Vec<PolicyRow>,
    /// Ownership over time, for a few keys of each policy.
    pub timelines: Vec<Timeline>,
}

/// What renewing costs, per held lock and minute of the unscaled lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Locks whose fate the model got wrong although they are outside the tolerance.
    pub mismatches: u64,
    /// Locks so near the boundary that the model does not commit itself.
    pub in_band: u64,
    /// When holders were told, relative to the end of the lease at the server; negative: in time.
    pub told: Option<Told>,
    /// Two workers at once under one lock.
    pub overlaps: Overlaps,
    /// Renewal commands sent while the fault lasted.
    pub commands_in_fault: u64,
    /// Each lock.
    pub locks: Vec<LockRow>,
}

/// When holders were told of a loss, relative to the end of the lease at the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// Two workers at once under one lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlaps {
    /// How often.
    pub count: u64,
    /// How long in all.
    pub total_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// What became of one lock, and what the model said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// Who owned one key when, and who worked. Times in milliseconds from the start of the fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The policy of the holder.
    pub policy: String,
    /// The key.
    pub key: u64,
    /// Owned by the holder at the server: from the first to the end of the last lease known.
    pub server: (f64, f64),
    /// The holder at work.
    pub holder: (f64, f64),
    /// When it was told that the lock is lost.
    pub told: Option<f64>,
    /// A rival at work.
    pub rivals: Vec<(f64, f64)>,
    /// Both at work.
    pub overlaps: Vec<(f64, f64)>,
}
