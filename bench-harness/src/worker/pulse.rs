//! The pulse: notices when the worker itself ran late, so that nobody blames a lock for it.
//!
//! The coordinator's stall watch sees a machine that stands still. A worker whose one thread has more to do than it can
//! do in time sees nothing of that: its timers, its answers and its renewals are late all the same.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::evidence::{EvidenceFile, Kind, Record};
use crate::scenario::nanos;

/// Wants to run every few milliseconds, and writes down whenever it ran much later.
pub(super) async fn beat(evidence: Arc<EvidenceFile>) {
    loop {
        let due = clock::now_ns() + nanos(PERIOD);
        tokio::time::sleep(PERIOD).await;
        let now = clock::now_ns();
        if now > due + nanos(WORTH_NOTING) {
            note_late(&evidence, due, now);
        }
    }
}

/// Writes down that whatever was due at the first instant happened at the second.
pub(super) fn note_late(evidence: &EvidenceFile, due_ns: u64, now_ns: u64) {
    evidence.write(&Record {
        key: u64::MAX,
        owner: 0,
        fence: 0,
        kind: Kind::Late,
        clock: due_ns,
        second_clock: now_ns,
    });
}

const PERIOD: Duration = Duration::from_millis(5);

/// Timers count whole milliseconds and come a little late; that much is in every tolerance.
const WORTH_NOTING: Duration = Duration::from_millis(5);
