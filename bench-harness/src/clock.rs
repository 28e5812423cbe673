//! The clock of the harness; the only place in this crate that reads one.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started, counted also while it sleeps.
///
/// All processes of one machine share this clock, so their records can be laid side by side.
pub fn now_ns() -> u64 {
    let now = clock_gettime(BOOT_TIME);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The time that has passed since `start_ns`, a value of [`now_ns`].
pub fn since(start_ns: u64) -> Duration {
    Duration::from_nanos(now_ns().saturating_sub(start_ns))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_TIME: ClockId = ClockId::Boottime;
// Elsewhere the monotonic clock is the nearest there is; on macOS it counts sleep as well.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_TIME: ClockId = ClockId::Monotonic;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        let first = now_ns();
        assert!(now_ns() >= first);
        assert!(since(u64::MAX).is_zero());
    }
}
