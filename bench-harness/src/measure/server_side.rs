//! What the server's append-only file says of a round.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the server's append-only file says of a round.
///
/// A grant and an expiry are known to the millisecond, a release lies between two ticks, some two milliseconds apart. Each counts in
/// favour of what is examined, and what is shorter than a millisecond then counts for nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerSide {
    /// Bytes that were read.
    pub bytes: u64,
    /// How long that took.
    pub read_ms: f64,
    /// Holds that it tells of.
    pub holds: u64,
    /// Nanoseconds to be added to the server's clock, which counts from 1970, to have the boot-time clock of the other evidence.
    pub offset_ns: i64,
    /// How far it may be from that, either way; negative if the clock was set while the round ran, nothing if the server did not tell.
    pub offset_bound_us: Option<f64>,
    /// Bytes that are no commands.
    pub unread_bytes: u64,
    /// Grants to one while another still held the lock: the lock is broken.
    pub owned_twice: u64,
    /// Grants whose fencing token is not above the one before: the tokens are broken.
    pub tokens_that_fell: u64,
    /// Holds that were ended when nothing told the time any more.
    pub ends_without_time: u64,
    /// Grants that nobody worked under: their answer was lost.
    pub grants_without_work: u64,
    /// Work that no grant is known for.
    pub work_without_grant: u64,
}

impl ServerSide {
    /// Why it is no evidence, if so.
    pub(crate) fn flaw(&self) -> Option<String> {
        let again = "repeat the run";
        match self.offset_bound_us {
            None => return Some(format!("the server's clock was not heard of: {again}")),
            Some(bound) if bound < 0.0 => {
                return Some(format!(
                    "the system's clock was set while a round ran, by at least {:.1} ms: {again}",
                    bound * -2e-3
                ));
            }
            Some(bound) if bound > WIDEST_BOUND_US => {
                return Some(format!(
                    "the server's clock is known only to {bound:.0} µs, more than {WIDEST_BOUND_US:.0} µs: {again} on a quieter machine"
                ));
            }
            Some(_) => {}
        }
        let unknown = [
            (self.unread_bytes, "bytes that are no commands"),
            (self.ends_without_time, "holds of which nobody knows when they ended"),
        ];
        let (count, what) = unknown.into_iter().find(|(count, _)| *count > 0)?;
        Some(format!("the server's append-only file has {count} {what}: {again}"))
    }
}

/// Half of what the evidence is good to.
const WIDEST_BOUND_US: f64 = 500.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::samples::server_side;

    #[test]
    fn a_clock_that_was_set_and_a_file_that_is_not_whole_are_flaws_but_not_what_a_whole_one_shows() {
        assert_eq!(server_side().flaw(), None);
        let flaw = |change: fn(&mut ServerSide)| {
            let mut side = server_side();
            change(&mut side);
            side.flaw().unwrap_or_default()
        };
        assert!(flaw(|side| side.offset_bound_us = Some(-5_000.0)).contains("at least 10.0 ms"));
        assert!(flaw(|side| side.offset_bound_us = Some(900.0)).contains("only to 900 µs"));
        assert!(flaw(|side| side.offset_bound_us = None).contains("not heard of"));
        assert!(flaw(|side| side.unread_bytes = 7).contains("7 bytes"));
        assert!(flaw(|side| side.ends_without_time = 1).contains("when they ended"));
        // A broken lock is no reason to look away.
        assert_eq!(flaw(|side| (side.owned_twice, side.tokens_that_fell) = (1, 1)), "");
    }
}
