//! What a caller may ask of one acquire. Contradictions are refused when it is built, before anything is sent.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::clock;
use crate::error::InvalidTimes;
use crate::owner::Owner;
use crate::policy::{RenewalPolicy, Timings};

/// What a caller asks of one acquire: how long to wait, how long to hold, who is the owner.
///
/// The default waits without a limit and holds a lease that the watchdog renews until it is released.
#[derive(Clone, Debug, Default)]
pub struct AcquireOptions {
    wait_limit: Option<Duration>,
    deadline: Option<Instant>,
    lease_time: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    no_reentry: bool,
    renewal: Option<RenewalPolicy>,
    queue_position: Option<watch::Sender<Option<usize>>>,
}

impl AcquireOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to wait at most while the lock is busy or Redis cannot be reached. Default: no limit while it is busy, and
    /// one watchdog time while Redis does not answer. Zero: a single attempt.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = Some(limit);
        self
    }

    /// Until when to wait at most; the same as a wait limit counted from now.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long Redis keeps the lock. Default: the client's watchdog time (30 s), renewed each third of it.
    ///
    /// Giving a lease time turns renewal off: the lock ends then even if the work has not.
    /// Redis counts whole milliseconds: the value is rounded up. At most ten years.
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.lease_time = Some(lease_time);
        self
    }

    /// How long the lock may be held at most, however well its renewal goes. Default: for as long as the lease lives.
    ///
    /// Renewal ends so that Redis keeps the lock no longer, and the holder is told [`LostReason::MaxHold`](crate::LostReason)
    /// the policy's margin before the end. Counted from before the request that was granted; a re-entry keeps the limit of its
    /// hold. A lease time is such a limit already, so both together are refused.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Who acquires. Default: an owner of its own, which no other acquire shares.
    ///
    /// If this owner holds the lock already, the acquire re-enters: the hold count rises, and the lock is free when every
    /// lease of it is released.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Refuses to re-enter: if the owner holds the lock already, the acquire ends at once with
    /// [`AcquireError::AlreadyHeld`](crate::AcquireError). Default: re-entry raises the hold count. Without an
    /// [`owner`](Self::owner) it has no effect, since nobody else is the same owner.
    pub fn no_reentry(mut self) -> Self {
        self.no_reentry = true;
        self
    }

    /// What a failed renewal leads to. Default: the client's policy. A re-entry keeps that of its hold.
    pub fn renewal(mut self, policy: RenewalPolicy) -> Self {
        self.renewal = Some(policy);
        self
    }

    /// Tells where the acquire stands in the queue of a fair lock, over all processes, as it changes: 1 comes next, `None` does
    /// not stand in it (yet, or any more). It is as new as its last question to Redis: one a second at place 1, one in `n`
    /// seconds at place `n`. Locks of other kinds have no such queue.
    pub fn queue_position(&mut self) -> watch::Receiver<Option<usize>> {
        let sender = self.queue_position.get_or_insert_with(|| watch::Sender::new(None));
        sender.subscribe()
    }

    /// The same for an acquire beside a hold, or in its stead, that ends when the hold does.
    pub(crate) fn for_the_rest(self, lease_time: Option<Duration>, max_hold: Option<Duration>) -> Self {
        AcquireOptions {
            wait_limit: None,
            deadline: None,
            lease_time,
            max_hold,
            no_reentry: false,
            queue_position: None,
            ..self
        }
    }

    /// Checks the options against the client's defaults.
    pub(crate) fn check(self, watchdog_time: Duration, default_policy: &RenewalPolicy) -> Result<Terms, InvalidTimes> {
        if self.wait_limit.is_some() && self.deadline.is_some() {
            return Err(InvalidTimes::new(
                "a wait limit and a deadline were both given; give one".into(),
            ));
        }
        if self.lease_time.is_some() && self.renewal.is_some() {
            return Err(InvalidTimes::new(
                "a lease time turns renewal off, so a renewal policy beside it would have no effect; give one".into(),
            ));
        }
        if self.lease_time.is_some() && self.max_hold.is_some() {
            return Err(InvalidTimes::new(
                "a lease time ends a hold already, so a longest hold beside it would have no effect; give one".into(),
            ));
        }
        let policy = self.renewal.as_ref().unwrap_or(default_policy);
        let max_hold = self.max_hold.map(whole_millis).transpose()?;
        let timings = match (self.lease_time, max_hold) {
            (Some(lease_time), _) => Timings::fixed(policy, whole_millis(lease_time)?)?,
            // One lease covers it, so there is nothing to renew.
            (None, Some(limit)) if limit <= watchdog_time => Timings::fixed(policy, limit)?,
            (None, _) => Timings::renewed(policy, watchdog_time)?,
        };
        if max_hold.is_some() && !timings.is_told() {
            return Err(InvalidTimes::new(
                "a longest hold ends by telling the holder, and this renewal policy tells nobody anything".into(),
            ));
        }
        Ok(Terms {
            wait_limit: self.wait_limit.or(self.deadline.map(clock::until)),
            timings,
            renewed: self.lease_time.is_none(),
            max_hold,
            owner: self.owner,
            reentry: !self.no_reentry,
            queue_position: self.queue_position,
        })
    }
}

/// Options that were checked.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) wait_limit: Option<Duration>,
    pub(crate) timings: Timings,
    pub(crate) renewed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Owner>,
    /// Whether the owner may hold the lock already.
    pub(crate) reentry: bool,
    /// Who wants to know where it stands in a queue in Redis.
    pub(crate) queue_position: Option<watch::Sender<Option<usize>>>,
}

/// A lease time as Redis counts it, rounded up to whole milliseconds.
pub(crate) fn whole_millis(lease: Duration) -> Result<Duration, InvalidTimes> {
    if lease.is_zero() {
        return Err(InvalidTimes::new(
            "a lease time of zero would end before it began; give at least 1 ms".into(),
        ));
    }
    if lease > LONGEST_LEASE {
        return Err(InvalidTimes::new(format!(
            "a lease time of {lease:?} is above the limit of ten years ({LONGEST_LEASE:?}); leave it out for a lock that is renewed"
        )));
    }
    Ok(Duration::from_millis(lease_millis(lease)))
}

/// A fair wait time as Redis counts it, rounded up to whole milliseconds.
pub(crate) fn fair_wait_time(time: Duration) -> Result<Duration, InvalidTimes> {
    if time.is_zero() || time > LONGEST_LEASE {
        return Err(InvalidTimes::new(format!(
            "a fair wait time of {time:?} makes no sense: give at least 1 ms, at most ten years; 5 min is the default"
        )));
    }
    Ok(Duration::from_millis(lease_millis(time)))
}

/// A lease time in milliseconds for the wire, rounded up.
pub(crate) fn lease_millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Far above any work, and far below where milliseconds since 1970 plus a lease leave the integers that Lua keeps exact.
const LONGEST_LEASE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: AcquireOptions) -> Result<Terms, String> {
        let terms = options.check(Duration::from_secs(30), &RenewalPolicy::default());
        terms.map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn lease_times_are_rounded_up_to_whole_milliseconds() {
        let terms = check(AcquireOptions::new().lease_time(Duration::from_nanos(1))).unwrap();
        assert_eq!(terms.timings.lease, Duration::from_millis(1));
        assert!(!terms.renewed);
        let terms = check(AcquireOptions::new().lease_time(Duration::from_micros(2_001))).unwrap();
        assert_eq!(terms.timings.lease, Duration::from_millis(3));
    }

    #[test]
    fn impossible_lease_times_are_refused_with_what_to_do() {
        let refusal = check(AcquireOptions::new().lease_time(Duration::ZERO)).unwrap_err();
        assert!(refusal.contains("at least 1 ms"), "{refusal}");
        for lease in [
            Duration::MAX,
            Duration::from_millis(u64::MAX),
            Duration::from_secs(292 * 366 * 86_400),
        ] {
            let refusal = check(AcquireOptions::new().lease_time(lease)).unwrap_err();
            assert!(refusal.contains("ten years"), "{refusal}");
        }
        assert!(check(AcquireOptions::new().lease_time(Duration::from_secs(100 * 86_400))).is_ok());
    }

    #[test]
    fn contradictions_are_refused() {
        let limit = Duration::from_secs(1);
        #[allow(clippy::disallowed_methods)]
        let deadline = Instant::now();
        assert!(check(AcquireOptions::new().wait_limit(limit).deadline(deadline)).is_err());
        assert!(
            check(
                AcquireOptions::new()
                    .lease_time(limit)
                    .renewal(RenewalPolicy::deadline())
            )
            .is_err()
        );
        assert!(check(AcquireOptions::new().lease_time(limit).max_hold(limit)).is_err());
        assert!(check(AcquireOptions::new().max_hold(Duration::ZERO)).is_err());
        assert!(check(AcquireOptions::new().wait_limit(Duration::MAX)).is_ok());
    }

    #[test]
    fn a_longest_hold_within_one_lease_is_a_lease_of_that_length() {
        let terms = check(AcquireOptions::new().max_hold(Duration::from_secs(5))).unwrap();
        assert_eq!(terms.timings.lease, Duration::from_secs(5));
        let terms = check(AcquireOptions::new().max_hold(Duration::from_secs(50))).unwrap();
        assert_eq!(terms.timings.lease, Duration::from_secs(30));
        assert_eq!(terms.max_hold, Some(Duration::from_secs(50)));
    }

    #[cfg(feature = "legacy-policies")]
    #[test]
    fn a_longest_hold_under_a_policy_that_tells_nobody_is_refused() {
        let options = AcquireOptions::new().renewal(RenewalPolicy::naive_cancel());
        assert!(check(options.max_hold(Duration::from_secs(50))).is_err());
    }
}
