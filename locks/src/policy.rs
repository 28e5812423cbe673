//! What to do when a renewal fails: how long to keep trying (effort), when the holder is told (signal), and how early
//! (margin). Pure data and arithmetic: no clock, no I/O, no random source.

mod timings;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub(crate) use timings::Timings;

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
    /// The longest time one attempt may take.
    pub attempt_timeout: AttemptTimeout,
    /// How often a held lock is renewed.
    pub period: Period,
    /// What a client library repeats by itself before an attempt counts as failed. For comparison only: this library sends
    /// each attempt once.
    #[cfg(feature = "legacy-policies")]
    pub command_retries: Option<CommandRetries>,
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
    /// One attempt a period, for ever: a failed one is followed by the next after a whole period. What Redisson does since
    /// 3.44; for comparison only.
    #[cfg(feature = "legacy-policies")]
    NextTick,
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
    /// At least half of what [`Doubling`](Self::Doubling) gives, the other half drawn at random (equal jitter, from the same
    /// article).
    #[cfg(feature = "legacy-policies")]
    EqualJitter {
        /// Divisor of the lease that gives the longest first pause.
        first: u32,
        /// Divisor of the lease that gives the longest pause.
        cap: u32,
    },
}

/// How often a client library sends a failed command again, as part of the same attempt.
#[cfg(feature = "legacy-policies")]
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CommandRetries {
    /// Sends after the first.
    pub n: u32,
    /// The pauses between them.
    pub backoff: Backoff,
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

/// The longest time one attempt may take before it counts as unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptTimeout {
    /// A tenth of the lease, at most 3 s: one reply should take milliseconds, and 3 s is what Redis clients commonly wait
    /// (Redisson, the manager of redis-rs).
    Short,
    /// The lease divided by this, however long that is.
    LeasePart(u32),
    /// This time exactly.
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
            attempt_timeout: AttemptTimeout::Short,
            period: Period::LeaseThird,
            #[cfg(feature = "legacy-policies")]
            command_retries: None,
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
            attempt_timeout: AttemptTimeout::LeasePart(10),
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
            ..Self::cancel_told()
        }
    }

    /// Gives up at the first failed attempt and tells nobody: what people write by hand. For comparison only.
    #[cfg(feature = "legacy-policies")]
    pub fn naive_cancel() -> Self {
        RenewalPolicy {
            signal: Signal::Never,
            ..Self::cancel_told()
        }
    }

    /// What Redisson does from 3.14.0 to 3.43.0: each command is sent up to three more times, a twentieth of the lease apart
    /// (1.5 s of 30 s), then renewal ends and nobody is told. For comparison only.
    ///
    /// From Redisson's history: `RedissonBaseLock`, and the defaults of its command executor.
    #[cfg(feature = "legacy-policies")]
    pub fn redisson_3_27() -> Self {
        RenewalPolicy {
            command_retries: Some(CommandRetries {
                n: 3,
                backoff: Backoff::Doubling { first: 20, cap: 20 },
            }),
            ..Self::naive_cancel()
        }
    }

    /// What Redisson does since 3.44.0: each command is sent up to four more times (after 0.5-1 s, then 1-2 s of a lease of
    /// 30 s), then it is tried again a period later, for ever, and nobody is told. For comparison only.
    ///
    /// From Redisson's history: its package `renewal`, and the defaults of its command executor.
    #[cfg(feature = "legacy-policies")]
    pub fn redisson_3_44() -> Self {
        RenewalPolicy {
            effort: Effort::NextTick,
            command_retries: Some(CommandRetries {
                n: 4,
                backoff: Backoff::EqualJitter { first: 30, cap: 15 },
            }),
            ..Self::naive_cancel()
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
        #[cfg(feature = "legacy-policies")]
        ("redisson-3.27", RenewalPolicy::redisson_3_27()),
        #[cfg(feature = "legacy-policies")]
        ("redisson-3.44", RenewalPolicy::redisson_3_44()),
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

#[cfg(test)]
mod tests {
    use super::*;

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
