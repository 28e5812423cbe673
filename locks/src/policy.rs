//! What to do when a renewal fails: how long to keep trying (effort), when the holder is told (signal), and how early
//! (margin). Pure data and arithmetic: no clock, no I/O, no random source.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::InvalidTimes;

/// What a failed renewal leads to.
///
/// "Give up at once or retry N times" hides two questions: how long do we keep trying, and when is the holder told.
/// [`RenewalPolicy::deadline`] answers both with one moment: try until the lease can no longer be trusted, counted from
/// before the last successful renewal left, and tell the holder then at the latest.
///
/// Start from a named policy and change a field if you must; times that cannot nest are refused when the client or the
/// acquire is built.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RenewalPolicy {
    /// How long a failed renewal is tried again.
    pub effort: Effort,
    /// When the holder is told.
    pub signal: Signal,
    /// How long before the earliest expiry on the server a lease stops being trusted.
    pub margin: Margin,
    /// The longest time one attempt may take. `None`: a tenth of the lease, at most 3 s.
    pub attempt_timeout: Option<Duration>,
    /// How often a held lock is renewed.
    pub period: Period,
}

/// How long a failed renewal is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effort {
    /// The first failed attempt ends renewal.
    CancelOnError,
    /// That many further attempts.
    Retry {
        /// Attempts after the first.
        n: u32,
        /// The pauses between them.
        backoff: Backoff,
    },
    /// Until the lease can no longer be trusted.
    UntilDeadline {
        /// The pauses between attempts.
        backoff: Backoff,
    },
}

/// The pauses between attempts, as shares of the lease so that they scale with it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Backoff {
    /// `lease / first`, then twice as long each time, at most `lease / cap`.
    Doubling {
        /// Divisor of the lease that gives the first pause.
        first: u32,
        /// Divisor of the lease that gives the longest pause.
        cap: u32,
    },
    /// Between `lease / first` and three times the pause before, drawn at random, at most `lease / cap`
    /// (decorrelated jitter, from the AWS Architecture Blog's "Exponential Backoff And Jitter").
    Decorrelated {
        /// Divisor of the lease that gives the shortest pause.
        first: u32,
        /// Divisor of the lease that gives the longest pause.
        cap: u32,
    },
}

/// When the holder is told that its lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// Never, not even when Redis says that the lock is another's. What most Redis locks do; for comparison only.
    #[cfg(feature = "legacy-policies")]
    Never,
    /// When the effort is exhausted, which may be before or after the expiry.
    OnGiveUp,
    /// When the lease can no longer be trusted, or earlier if Redis says that it is lost.
    AtDeadline,
}

/// How long before the earliest expiry on the server a lease stops being trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Margin {
    /// A share of the lease from 0 to 1, at least 50 ms and at most a third of the lease.
    Ratio(f64),
    /// A fixed time.
    Fixed(Duration),
}

/// How often a held lock is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Period {
    /// A third of the lease, shortened at random by up to a tenth so that clients do not stay in step after a pause.
    LeaseThird,
    /// This time exactly.
    Fixed(Duration),
}

impl RenewalPolicy {
    /// Tries until the deadline and tells the holder then at the latest, a tenth of the lease before the expiry. The default.
    pub fn deadline() -> Self {
        RenewalPolicy {
            effort: Effort::UntilDeadline {
                backoff: Backoff::Decorrelated { first: 300, cap: 30 },
            },
            signal: Signal::AtDeadline,
            margin: Margin::Ratio(0.1),
            attempt_timeout: None,
            period: Period::LeaseThird,
        }
    }

    /// As [`deadline`](Self::deadline) with a margin of a third of the lease, the ratio that Kubernetes' leader election uses.
    pub fn deadline_strict() -> Self {
        RenewalPolicy {
            margin: Margin::Ratio(1.0 / 3.0),
            ..Self::deadline()
        }
    }

    /// Gives up at the first failed attempt and tells the holder at once: safest and least available, for work that is
    /// cheap to redo.
    pub fn cancel_told() -> Self {
        RenewalPolicy {
            effort: Effort::CancelOnError,
            signal: Signal::OnGiveUp,
            ..Self::deadline()
        }
    }

    /// Tries `n` more times, then gives up and tells the holder. With slow failures that can be *after* the expiry.
    pub fn retry(n: u32) -> Self {
        let cap = if n > 3 { 30 } else { 15 };
        RenewalPolicy {
            effort: Effort::Retry {
                n,
                backoff: Backoff::Doubling { first: 60, cap },
            },
            signal: Signal::OnGiveUp,
            ..Self::deadline()
        }
    }

    /// Gives up at the first failed attempt and tells nobody: what people write by hand. For comparison only.
    #[cfg(feature = "legacy-policies")]
    pub fn naive_cancel() -> Self {
        RenewalPolicy {
            effort: Effort::CancelOnError,
            signal: Signal::Never,
            ..Self::deadline()
        }
    }
}

impl Default for RenewalPolicy {
    /// [`RenewalPolicy::deadline`].
    fn default() -> Self {
        Self::deadline()
    }
}

/// The named policies, as configuration spells them.
fn named() -> Vec<(&'static str, RenewalPolicy)> {
    vec![
        ("deadline", RenewalPolicy::deadline()),
        ("deadline-strict", RenewalPolicy::deadline_strict()),
        ("cancel-told", RenewalPolicy::cancel_told()),
        ("retry-3", RenewalPolicy::retry(3)),
        ("retry-10", RenewalPolicy::retry(10)),
        #[cfg(feature = "legacy-policies")]
        ("naive-cancel", RenewalPolicy::naive_cancel()),
    ]
}

impl FromStr for RenewalPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = named().into_iter().find(|(known, _)| *known == name);
        found.map(|(_, policy)| policy).ok_or_else(|| UnknownPolicy {
            name: name.to_owned(),
            known: named().iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "),
        })
    }
}

/// No policy has that name.
#[derive(Debug, thiserror::Error)]
#[error("no renewal policy is called {name:?}; use one of {known}")]
pub struct UnknownPolicy {
    name: String,
    known: String,
}

impl fmt::Display for RenewalPolicy {
    /// The name of a named policy, else `custom`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = named().into_iter().find(|(_, policy)| policy == self);
        f.write_str(found.map_or("custom", |(name, _)| name))
    }
}

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
}

impl Timings {
    /// The times of a lock that is renewed: refused if no renewal could be answered before the deadline.
    pub(crate) fn renewed(policy: &RenewalPolicy, lease: Duration) -> Result<Self, InvalidTimes> {
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
        let attempt_timeout = policy
            .attempt_timeout
            .unwrap_or_else(|| LONGEST_ATTEMPT.min(lease / 10));
        Ok(Timings {
            lease,
            period,
            jitter,
            margin: margin(policy.margin, lease)?,
            margin_rule: policy.margin,
            attempt_timeout,
            effort: policy.effort,
            signal: policy.signal,
        })
    }

    /// The time until the next renewal; `draw` is uniform in 0..1.
    pub(crate) fn next_period(&self, draw: f64) -> Duration {
        self.period.mul_f64(1.0 - self.jitter * draw)
    }

    /// The pause after the `failures`-th failed attempt in a row, `None` when the effort is exhausted.
    /// `last` is the pause before, `draw` is uniform in 0..1.
    pub(crate) fn pause(&self, failures: u32, last: Duration, draw: f64) -> Option<Duration> {
        let backoff = match self.effort {
            Effort::CancelOnError => return None,
            Effort::Retry { n, .. } if failures > n => return None,
            Effort::Retry { backoff, .. } | Effort::UntilDeadline { backoff } => backoff,
        };
        Some(match backoff {
            Backoff::Doubling { first, cap } => {
                let doubled = (self.lease / first.max(1)).saturating_mul(1 << (failures - 1).min(30));
                doubled.min(self.lease / cap.max(1))
            }
            Backoff::Decorrelated { first, cap } => {
                let shortest = self.lease / first.max(1);
                let longest = last.saturating_mul(3).max(shortest);
                let drawn = shortest + (longest - shortest).mul_f64(draw);
                drawn.min(self.lease / cap.max(1))
            }
        })
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
/// One reply should take milliseconds; 3 s is what Redis clients commonly wait (Redisson, redis-rs' manager).
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);
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
        policy.attempt_timeout = Some(Duration::MAX);
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
    fn every_named_policy_reads_its_own_name() {
        for (name, policy) in named() {
            assert_eq!(name.parse::<RenewalPolicy>().unwrap(), policy);
            assert_eq!(policy.to_string(), name);
        }
        let unknown = "retry-4".parse::<RenewalPolicy>().unwrap_err().to_string();
        assert!(unknown.contains("retry-3"), "{unknown}");
    }
}
