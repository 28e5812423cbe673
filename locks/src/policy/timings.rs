//! A policy's times for one lease, and whether they nest.

use std::time::Duration;

#[cfg(feature = "legacy-policies")]
use super::CommandRetries;
use super::{AttemptTimeout, Backoff, Effort, Margin, Period, RenewalPolicy, Signal};
use crate::error::InvalidTimes;

/// A policy's times for one lease: what the state machine of a renewal works with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timings {
    pub(crate) lease: Duration,
    pub(crate) period: Duration,
    /// The share of the period by which it may be shortened.
    pub(crate) jitter: f64,
    pub(crate) margin: Duration,
    /// The rule behind the margin, for a lease of another length.
    margin_rule: Margin,
    pub(crate) attempt_timeout: Duration,
    pub(crate) effort: Effort,
    pub(crate) signal: Signal,
    #[cfg(feature = "legacy-policies")]
    command_retries: Option<CommandRetries>,
}

impl Timings {
    /// The times of a lock that is renewed: refused if no renewal could be answered before the deadline, or if the policy's
    /// parts contradict each other.
    pub(crate) fn renewed(policy: &RenewalPolicy, lease: Duration) -> Result<Self, InvalidTimes> {
        check_parts(policy)?;
        let timings = Self::of(policy, lease)?;
        if lease < SHORTEST_RENEWED_LEASE {
            return Err(InvalidTimes::new(format!(
                "a renewed lease of {lease:?} is too short to be renewed in time; use {SHORTEST_RENEWED_LEASE:?} or more"
            )));
        }
        if timings.period.is_zero() || timings.attempt_timeout.is_zero() {
            return Err(InvalidTimes::new(
                "the renewal period and the attempt timeout must be above zero".into(),
            ));
        }
        let needed = timings
            .period
            .saturating_add(timings.attempt_timeout)
            .saturating_add(timings.margin);
        if needed >= lease {
            return Err(InvalidTimes::new(format!(
                "renewal period {:?} + attempt timeout {:?} + margin {:?} must be shorter than the lease of {lease:?}, \
                 or no renewal can be answered before the deadline",
                timings.period, timings.attempt_timeout, timings.margin
            )));
        }
        Ok(timings)
    }

    /// The times of a lock with a lease time of its own: it is watched, not renewed.
    pub(crate) fn fixed(policy: &RenewalPolicy, lease: Duration) -> Result<Self, InvalidTimes> {
        Self::of(policy, lease)?.with_lease(lease)
    }

    /// The same with another lease: refused if it could never be trusted.
    pub(crate) fn with_lease(self, lease: Duration) -> Result<Self, InvalidTimes> {
        let margin = margin(self.margin_rule, lease)?;
        if margin >= lease {
            return Err(InvalidTimes::new(format!(
                "a lease time of {lease:?} is not longer than the policy's margin of {margin:?}, so it could never be trusted"
            )));
        }
        Ok(Timings { lease, margin, ..self })
    }

    fn of(policy: &RenewalPolicy, lease: Duration) -> Result<Self, InvalidTimes> {
        let (period, jitter) = match policy.period {
            Period::LeaseThird => (lease / 3, 0.1),
            Period::Fixed(period) => (period, 0.0),
        };
        let attempt_timeout = match policy.attempt_timeout {
            AttemptTimeout::Short => LONGEST_SHORT_ATTEMPT.min(lease / 10),
            AttemptTimeout::LeasePart(0) => {
                return Err(InvalidTimes::new(
                    "an attempt cannot take the lease divided by 0; 10 is the usual part".into(),
                ));
            }
            AttemptTimeout::LeasePart(part) => lease / part,
            AttemptTimeout::Fixed(timeout) => timeout,
        };
        Ok(Timings {
            lease,
            period,
            jitter,
            margin: margin(policy.margin, lease)?,
            margin_rule: policy.margin,
            attempt_timeout,
            effort: policy.effort,
            signal: policy.signal,
            #[cfg(feature = "legacy-policies")]
            command_retries: policy.command_retries,
        })
    }

    /// The time until the next renewal; `draw` is uniform in 0..1.
    pub(crate) fn next_period(&self, draw: f64) -> Duration {
        self.period.mul_f64(1.0 - self.jitter * draw)
    }

    /// The pause after the `failures`-th failure in a row, `None` when the effort is exhausted.
    /// `last` is the pause before, `draw` is uniform in 0..1.
    pub(crate) fn pause(&self, failures: u32, last: Duration, draw: f64) -> Option<Duration> {
        #[cfg(feature = "legacy-policies")]
        let failures = match self.command_retries {
            // A row of failed commands is one failed attempt.
            Some(CommandRetries { n, backoff }) => match failures % n.saturating_add(1) {
                0 => failures / n.saturating_add(1),
                sent => return Some(self.backoff(backoff, sent, last, draw)),
            },
            None => failures,
        };
        match self.effort {
            Effort::CancelOnError => None,
            Effort::Retry { n, .. } if failures > n => None,
            Effort::Retry { backoff, .. } | Effort::UntilDeadline { backoff } => {
                Some(self.backoff(backoff, failures, last, draw))
            }
            #[cfg(feature = "legacy-policies")]
            Effort::NextTick => Some(self.next_period(draw)),
        }
    }

    fn backoff(&self, backoff: Backoff, failures: u32, last: Duration, draw: f64) -> Duration {
        let doubling = |first, cap| {
            let doubled = (self.lease / first).saturating_mul(1 << (failures - 1).min(30));
            doubled.min(self.lease / cap)
        };
        match backoff {
            Backoff::Doubling { first, cap } => doubling(first, cap),
            Backoff::Decorrelated { first, cap } => {
                let shortest = self.lease / first;
                let longest = last.saturating_mul(3).max(shortest);
                let drawn = shortest + (longest - shortest).mul_f64(draw);
                drawn.min(self.lease / cap)
            }
            #[cfg(feature = "legacy-policies")]
            Backoff::EqualJitter { first, cap } => {
                let half = doubling(first, cap) / 2;
                half + half.mul_f64(draw)
            }
        }
    }

    /// The longest pause of a hold that is tried until its deadline.
    pub(crate) fn longest_pause(&self) -> Duration {
        match self.effort {
            Effort::UntilDeadline {
                backoff: Backoff::Doubling { cap, .. } | Backoff::Decorrelated { cap, .. },
            } => self.lease / cap,
            _ => Duration::ZERO,
        }
    }

    /// Whether attempts end at the deadline.
    pub(crate) fn is_capped(&self) -> bool {
        matches!(self.signal, Signal::AtDeadline)
    }

    /// Whether the holder is ever told.
    pub(crate) fn is_told(&self) -> bool {
        match self.signal {
            #[cfg(feature = "legacy-policies")]
            Signal::Never => false,
            Signal::OnGiveUp | Signal::AtDeadline => true,
        }
    }
}

/// Refuses parts that contradict each other, whatever the lease.
fn check_parts(policy: &RenewalPolicy) -> Result<(), InvalidTimes> {
    match policy.effort {
        Effort::CancelOnError => {}
        Effort::Retry { backoff, .. } | Effort::UntilDeadline { backoff } => check_backoff(backoff)?,
        #[cfg(feature = "legacy-policies")]
        Effort::NextTick if policy.signal == Signal::OnGiveUp => {
            return Err(InvalidTimes::new(
                "the effort NextTick never gives up, so the signal OnGiveUp would never come; use AtDeadline, or an effort that ends"
                    .into(),
            ));
        }
        #[cfg(feature = "legacy-policies")]
        Effort::NextTick => {}
    }
    #[cfg(feature = "legacy-policies")]
    if let Some(retries) = policy.command_retries {
        check_backoff(retries.backoff)?;
        if policy.signal != Signal::Never {
            return Err(InvalidTimes::new(
                "command retries copy a client whose holders are never told; use the signal Never, or Effort::Retry without them"
                    .into(),
            ));
        }
    }
    Ok(())
}

fn check_backoff(backoff: Backoff) -> Result<(), InvalidTimes> {
    let (first, cap) = match backoff {
        Backoff::Doubling { first, cap } | Backoff::Decorrelated { first, cap } => (first, cap),
        #[cfg(feature = "legacy-policies")]
        Backoff::EqualJitter { first, cap } => (first, cap),
    };
    if first == 0 || cap == 0 {
        return Err(InvalidTimes::new(
            "a pause cannot be the lease divided by 0; 300 and 30 are the usual divisors".into(),
        ));
    }
    if cap > first {
        return Err(InvalidTimes::new(format!(
            "the longest pause (lease / {cap}) would be shorter than the first (lease / {first}); swap the two divisors"
        )));
    }
    Ok(())
}

/// How long before the end of a lease it is no longer trusted.
fn margin(rule: Margin, lease: Duration) -> Result<Duration, InvalidTimes> {
    match rule {
        Margin::Ratio(ratio) if !(0.0..=1.0).contains(&ratio) => Err(InvalidTimes::new(format!(
            "a margin is a share of the lease from 0 to 1, not {ratio}"
        ))),
        Margin::Ratio(ratio) => Ok(lease.mul_f64(ratio).max(SHORTEST_MARGIN).min(lease / 3)),
        Margin::Fixed(margin) => Ok(margin),
    }
}

/// The margin covers drift and the holder's reaction; below this a busy machine's timers use it up.
const SHORTEST_MARGIN: Duration = Duration::from_millis(50);
/// See [`AttemptTimeout::Short`].
const LONGEST_SHORT_ATTEMPT: Duration = Duration::from_secs(3);
/// A third of it is still several timer ticks.
const SHORTEST_RENEWED_LEASE: Duration = Duration::from_millis(30);

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn the_default_renews_each_third_and_stops_trusting_a_tenth_before_the_end() {
        let timings = Timings::renewed(&RenewalPolicy::default(), LEASE).unwrap();
        assert_eq!(timings.period, Duration::from_secs(10));
        assert_eq!(timings.margin, Duration::from_secs(3));
        assert_eq!(timings.attempt_timeout, Duration::from_secs(3));
        assert_eq!(timings.next_period(0.0), Duration::from_secs(10));
        assert_eq!(timings.next_period(1.0), Duration::from_secs(9));
    }

    #[test]
    fn retry_three_pauses_half_a_second_one_and_two_on_thirty_seconds() {
        let timings = Timings::renewed(&RenewalPolicy::retry(3), LEASE).unwrap();
        let pauses: Vec<_> = (1..=4)
            .map(|failures| timings.pause(failures, Duration::ZERO, 0.0))
            .collect();
        let millis = |ms| Some(Duration::from_millis(ms));
        assert_eq!(pauses, [millis(500), millis(1000), millis(2000), None]);
    }

    #[test]
    fn the_deadline_policy_pauses_between_its_bounds_and_never_gives_up_by_count() {
        let timings = Timings::renewed(&RenewalPolicy::deadline(), LEASE).unwrap();
        let mut last = Duration::ZERO;
        for failures in 1..200 {
            last = timings.pause(failures, last, 0.9).unwrap();
            assert!(last >= Duration::from_millis(100) && last <= Duration::from_secs(1));
        }
        assert_eq!(last, Duration::from_secs(1));
    }

    #[test]
    fn times_that_cannot_nest_are_refused() {
        let mut policy = RenewalPolicy::deadline();
        policy.margin = Margin::Fixed(Duration::from_secs(18));
        let refusal = Timings::renewed(&policy, LEASE).unwrap_err().to_string();
        assert!(refusal.contains("must be shorter than the lease"), "{refusal}");
        policy = RenewalPolicy::deadline();
        policy.period = Period::Fixed(Duration::from_secs(40));
        assert!(Timings::renewed(&policy, LEASE).is_err());
        assert!(Timings::renewed(&RenewalPolicy::deadline(), Duration::from_millis(5)).is_err());
        policy.period = Period::Fixed(Duration::MAX);
        policy.attempt_timeout = AttemptTimeout::Fixed(Duration::MAX);
        assert!(Timings::renewed(&policy, LEASE).is_err());
        for ratio in [f64::NAN, -0.1, 1.5, f64::INFINITY] {
            policy.margin = Margin::Ratio(ratio);
            let refusal = Timings::fixed(&policy, LEASE).unwrap_err().to_string();
            assert!(refusal.contains("from 0 to 1"), "{refusal}");
        }
        policy.margin = Margin::Fixed(Duration::from_secs(5));
        assert!(Timings::fixed(&policy, Duration::from_secs(4)).is_err());
        assert!(Timings::fixed(&policy, Duration::from_secs(6)).is_ok());
    }

    #[test]
    fn attempt_timeouts_follow_the_lease_and_only_the_deadline_policies_stop_at_three_seconds() {
        let minute = Duration::from_secs(60);
        let timeout = |policy| Timings::renewed(&policy, minute).unwrap().attempt_timeout;
        assert_eq!(timeout(RenewalPolicy::deadline()), Duration::from_secs(3));
        assert_eq!(timeout(RenewalPolicy::deadline_strict()), Duration::from_secs(3));
        for policy in [
            RenewalPolicy::cancel_told(),
            RenewalPolicy::retry(3),
            RenewalPolicy::retry(10),
        ] {
            assert_eq!(timeout(policy), Duration::from_secs(6));
        }
    }

    #[test]
    fn parts_that_contradict_each_other_are_refused_with_what_to_change() {
        let refusal = |effort| {
            let policy = RenewalPolicy {
                effort,
                ..RenewalPolicy::deadline()
            };
            Timings::renewed(&policy, LEASE).unwrap_err().to_string()
        };
        let backoff = Backoff::Doubling { first: 30, cap: 60 };
        let swapped = refusal(Effort::Retry { n: 3, backoff });
        assert!(swapped.contains("swap the two divisors"), "{swapped}");
        let backoff = Backoff::Decorrelated { first: 0, cap: 0 };
        let zero = refusal(Effort::UntilDeadline { backoff });
        assert!(zero.contains("divided by 0"), "{zero}");
        let policy = RenewalPolicy {
            attempt_timeout: AttemptTimeout::LeasePart(0),
            ..RenewalPolicy::deadline()
        };
        assert!(Timings::renewed(&policy, LEASE).is_err());
    }

    #[cfg(feature = "legacy-policies")]
    #[test]
    fn parts_of_a_legacy_policy_that_contradict_each_other_are_refused_with_what_to_change() {
        let mut policy = RenewalPolicy::redisson_3_44();
        policy.signal = Signal::OnGiveUp;
        let refusal = Timings::renewed(&policy, LEASE).unwrap_err().to_string();
        assert!(refusal.contains("use AtDeadline"), "{refusal}");
        policy.signal = Signal::AtDeadline;
        let refusal = Timings::renewed(&policy, LEASE).unwrap_err().to_string();
        assert!(refusal.contains("use the signal Never"), "{refusal}");
        policy.command_retries = None;
        assert!(Timings::renewed(&policy, LEASE).is_ok());
    }

    #[cfg(feature = "legacy-policies")]
    #[test]
    fn the_redisson_policies_repeat_commands_before_an_attempt_has_failed() {
        let pauses = |policy: RenewalPolicy, draw| -> Vec<Option<u128>> {
            let timings = Timings::renewed(&policy, LEASE).unwrap();
            let pause = |failures| timings.pause(failures, Duration::ZERO, draw);
            (1..=6)
                .map(|failures| pause(failures).map(|pause| pause.as_millis()))
                .collect()
        };
        let s = |ms| Some(ms);
        let cancelled = pauses(RenewalPolicy::redisson_3_27(), 0.5);
        assert_eq!(cancelled[..4], [s(1_500), s(1_500), s(1_500), None]);
        assert_eq!(
            pauses(RenewalPolicy::redisson_3_44(), 0.0),
            [s(500), s(1_000), s(1_000), s(1_000), s(10_000), s(500)]
        );
        assert_eq!(
            pauses(RenewalPolicy::redisson_3_44(), 1.0),
            [s(1_000), s(2_000), s(2_000), s(2_000), s(9_000), s(1_000)]
        );
        // A tenth of the lease, a tenth of every time.
        let timings = Timings::renewed(&RenewalPolicy::redisson_3_44(), LEASE / 10).unwrap();
        assert_eq!(timings.pause(1, Duration::ZERO, 1.0), Some(Duration::from_millis(100)));
    }
}
