//! How long a caller waits for a busy lock, and how long for a silent Redis.

use std::time::Duration;

use super::GRACE;
use crate::clock::{self, Moment};
use crate::error::{AcquireError, CallError};
use crate::local_queue::Queued;
use crate::locks::Client;
use crate::mode::Mode;

/// How long a caller is willing to wait, and how long Redis has been silent.
pub(super) struct Patience<'a> {
    mode: &'a dyn Mode,
    start: Moment,
    limit: Option<Duration>,
    /// The longest silence of Redis that a wait without a limit bears.
    longest_silence: Duration,
    command_timeout: Duration,
    pub(super) failing_since: Option<Moment>,
    pauses: Backoff,
}

impl<'a> Patience<'a> {
    pub(super) fn new(client: &Client, mode: &'a dyn Mode, limit: Option<Duration>) -> Self {
        Patience {
            mode,
            start: clock::now(),
            limit,
            longest_silence: client.watchdog_time,
            command_timeout: client.connection.command_timeout(),
            failing_since: None,
            pauses: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        }
    }

    pub(super) fn end(&self) -> Moment {
        self.limit.map_or(Moment::NEVER, |limit| self.start.plus(limit))
    }

    pub(super) fn left(&self) -> Duration {
        self.end().since(clock::now())
    }

    /// How long to sleep before the lock is asked for again, wake-up or not: a link that fell silent is found out this way.
    pub(super) fn asleep(&self) -> Duration {
        self.left().min(self.longest_silence / 3)
    }

    /// How long a subscription may take before the lock is asked for again without it.
    pub(super) fn subscribing(&self) -> Duration {
        self.left().min(self.command_timeout)
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// When an attempt that begins now has to be answered.
    pub(super) fn attempt_until(&self) -> Moment {
        let single = self.limit == Some(Duration::ZERO);
        let grace = if single {
            self.command_timeout
        } else {
            GRACE.min(self.command_timeout)
        };
        self.end().plus(grace)
    }

    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, AcquireError> {
        tokio::time::timeout(self.left(), work).await.map_err(|_| self.over())
    }

    pub(super) fn answered(&mut self) {
        self.failing_since = None;
        self.pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// Waits a little after a failed attempt, or says why there is no point.
    pub(super) async fn bear(&mut self, error: CallError, outcome_unknown: bool) -> Result<(), AcquireError> {
        if !error.is_retryable() {
            return Err(AcquireError::Refused {
                name: self.mode.name().to_string(),
                source: error,
            });
        }
        let now = clock::now();
        let since = *self.failing_since.get_or_insert(now);
        let silent_for_too_long = self.limit.is_none() && now.since(since) >= self.longest_silence;
        if self.is_over() || silent_for_too_long {
            return Err(self.unavailable(error, outcome_unknown));
        }
        tokio::time::sleep(self.pauses.next().min(self.left())).await;
        if self.is_over() {
            return Err(self.unavailable(error, outcome_unknown));
        }
        Ok(())
    }

    pub(super) fn unavailable(&self, source: CallError, outcome_unknown: bool) -> AcquireError {
        AcquireError::Unavailable {
            name: self.mode.name().to_string(),
            waited: clock::now().since(self.start),
            outcome_unknown,
            source,
        }
    }

    pub(super) fn over(&self) -> AcquireError {
        AcquireError::WaitLimit {
            name: self.mode.name().to_string(),
            waited: clock::now().since(self.start),
        }
    }

    /// The wait ended behind another waiter of this process: what that one met is the reason.
    pub(super) fn over_in_queue(&self, queued: &Queued<'_>) -> AcquireError {
        match queued.trouble() {
            Some(trouble) => self.unavailable(trouble.error, false),
            None => self.over(),
        }
    }
}

/// Pauses that double from `first` to `longest`, each shortened at random by up to a half so that clients do not stay in step.
pub(super) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Backoff { next: first, longest }
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

/// Between attempts while Redis does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_begin_at_one_instant_do_not_ask_at_one_instant() {
        for seed in 0..100 {
            fastrand::seed(seed);
            let mut clients: Vec<(Duration, Backoff)> = (0..50)
                .map(|_| {
                    let pauses = Backoff::new(Duration::from_millis(1), Duration::from_millis(128));
                    (Duration::ZERO, pauses)
                })
                .collect();
            for round in 1..=100 {
                let mut within_5_ms = std::collections::HashMap::new();
                for (now, pauses) in &mut clients {
                    let pause = pauses.next();
                    assert!(!pause.is_zero() && pause <= Duration::from_millis(128), "round {round}");
                    *now += pause;
                    *within_5_ms.entry(now.as_millis() / 5).or_insert(0) += 1;
                }
                let most = *within_5_ms.values().max().unwrap();
                // By then the pauses have reached their length.
                assert!(
                    round < 10 || most <= 20,
                    "seed {seed}, round {round}: {most} of 50 at once"
                );
            }
        }
    }
}
