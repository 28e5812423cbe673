//! The boot-time clock: the only place in the crate that reads a clock.
//!
//! Leases end by the server's wall clock, which goes on while this machine sleeps. Linux's monotonic clock (and so
//! `std::time::Instant`) stops during suspend; its boot-time clock does not, so every deadline counts on that one.
//! On other systems `Instant` has to do: there a lease can look valid for as long as the machine was suspended.

use std::time::Duration;

/// A point on the boot-time clock of this machine, in nanoseconds since boot.
///
/// Moments of different processes on one machine can be compared; those of different machines or boots cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);
    /// A moment that has always passed.
    pub(crate) const PAST: Moment = Moment(0);

    /// The present moment.
    pub fn now() -> Self {
        now()
    }

    /// Nanoseconds since boot.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `nanos` nanoseconds after boot.
    pub fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// How long after `earlier` this moment is; zero if it is not.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn plus(self, time: Duration) -> Moment {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }

    pub(crate) fn minus(self, time: Duration) -> Moment {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }
}

/// The present moment.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Moment((time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64)
}

/// The present moment.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    // One second in, so that a deadline a little before the start still has a place.
    Moment(1_000_000_000 + start.elapsed().as_nanos() as u64)
}

/// Which boot of which machine this is; moments of the same one compare. Not known everywhere.
pub(crate) fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// What is left until the deadline that an `Instant` of the caller names.
#[allow(clippy::disallowed_methods)]
pub(crate) fn until(deadline: std::time::Instant) -> Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward() {
        let first = now();
        let second = now();
        assert!(second >= first);
        assert!(first > Moment::PAST);
    }

    #[test]
    fn sums_saturate_instead_of_wrapping() {
        assert_eq!(now().plus(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment(5).minus(Duration::MAX), Moment::PAST);
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
    }
}
