//! The life of one hold as its renewal sees it: a pure state machine. It is told what happened and what time it is, and
//! says what to do; it reads no clock, sends nothing and draws no random number.
//!
//! ```text
//!  Held ──first failure──► AtRisk ──yes──► Held
//!   │                        │ effort exhausted ─► Lost(GaveUp), or Unattended until the deadline
//!   └──── no, clobbered ─────┴─ deadline ─► Lost, for good
//! ```
//! Every moment counts from before the request was sent, so a lease is never trusted longer than Redis keeps it.

mod messages;

use std::time::Duration;

pub(crate) use messages::{Action, Answer, Attempt, Event};

use crate::clock::Moment;
use crate::lease::{FailureCause, LeaseState, LostReason};
use crate::policy::{Effort, Timings};

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Not renewed: the lease time was given, or renewal ended silently.
    Watched,
    /// Renewed; the next one is due in time.
    Resting,
    /// An attempt is on its way.
    Trying,
    /// The next attempt begins then.
    Pausing { until: Moment },
    /// Out of effort; the deadline decides.
    Unattended,
    /// Lost, and told.
    Lost,
    /// The holder let go.
    Ended,
}

/// The state of one hold's renewal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Renewal {
    timings: Timings,
    phase: Phase,
    /// When the newest renewal is or was due.
    due: Moment,
    /// The lease can be trusted until then.
    trusted_until: Moment,
    /// When the longest hold is over, on the server and here; `NEVER` without a limit.
    ends: Moment,
    cap: Moment,
    /// No renewal sent so far can keep the lock alive longer than this, unless the server stood still.
    longest_life: Moment,
    failures: u32,
    pause: Duration,
    at_risk: bool,
    attempts: Vec<Attempt>,
    next_number: u64,
    /// A smoothed round trip, for the shortest attempt that still makes sense.
    round_trip: Duration,
}

impl Renewal {
    /// A hold that was granted by a request sent at `sent`, and ends at `ends` however well its renewal goes.
    pub(crate) fn new(timings: Timings, renewed: bool, sent: Moment, ends: Moment, draw: f64) -> Self {
        let cap = match ends {
            Moment::NEVER => Moment::NEVER,
            ends => ends.minus(timings.margin),
        };
        let trusted_until = sent.plus(timings.lease).minus(timings.margin).min(cap);
        let due = sent.plus(timings.next_period(draw));
        let phase = if renewed && trusted_until < cap {
            Phase::Resting
        } else {
            Phase::Watched
        };
        Renewal {
            phase,
            due,
            trusted_until,
            ends,
            cap,
            longest_life: sent.plus(timings.lease),
            failures: 0,
            pause: Duration::ZERO,
            at_risk: false,
            attempts: Vec::new(),
            next_number: 1,
            // Learned from renewals only: the acquire may have waited for a link, or for a server that stood still.
            round_trip: Duration::ZERO,
            timings,
        }
    }

    /// Until when the lease can be trusted.
    pub(crate) fn trusted_until(&self) -> Moment {
        self.trusted_until
    }

    /// When the state machine wants to be told [`Event::Due`].
    pub(crate) fn wakes(&self) -> Moment {
        let timer = match &self.phase {
            Phase::Resting => self.due,
            Phase::Pausing { until } => *until,
            Phase::Trying => self.attempts.last().map_or(Moment::NEVER, |attempt| attempt.until),
            Phase::Watched | Phase::Unattended => Moment::NEVER,
            Phase::Lost => return self.longest_life,
            Phase::Ended => return Moment::NEVER,
        };
        let timer = timer.min(self.cap);
        if self.deadline_is_told() {
            timer.min(self.trusted_until)
        } else {
            timer
        }
    }

    /// When it tries again after a failure, if others may join in.
    pub(crate) fn tries_again(&self) -> Option<Moment> {
        match self.phase {
            Phase::Pausing { until } if self.is_tried_until_the_deadline() && until != Moment::NEVER => Some(until),
            _ => None,
        }
    }

    /// Whether an answer to that attempt still counts.
    #[cfg(feature = "simulation")]
    pub(crate) fn listens_to(&self, number: u64) -> bool {
        !matches!(self.phase, Phase::Lost | Phase::Ended)
            && self.attempts.iter().any(|attempt| attempt.number == number)
    }

    /// How many attempts are listened to.
    #[cfg(feature = "simulation")]
    pub(crate) fn in_flight(&self) -> usize {
        self.attempts.len()
    }

    /// The next state and what to do. `draw` is uniform in 0..1, for whatever is drawn at random.
    pub(crate) fn step(&mut self, event: Event, now: Moment, draw: f64, actions: &mut Vec<Action>) {
        if self.phase == Phase::Ended {
            return;
        }
        match event {
            Event::LetGo => {
                // The one who let go gives back what is left, also after a loss.
                self.phase = Phase::Ended;
                actions.push(Action::Forget);
            }
            Event::End(reason) => self.lose(reason, actions),
            Event::Answered { number, answer } => self.answered(number, answer, now, draw, actions),
            Event::Extended { sent, timings } => self.extended(sent, timings, now, draw, actions),
            Event::Attend(timings) => {
                if self.phase == Phase::Watched && self.trusted_until < self.cap {
                    self.timings = timings;
                    self.calm(actions);
                    self.due = now;
                    self.phase = Phase::Resting;
                }
            }
            Event::Unattend => {
                if !matches!(self.phase, Phase::Lost) {
                    self.phase = Phase::Watched;
                    self.attempts.clear();
                }
            }
            Event::TryTogether(at) => self.try_together(at, now),
            Event::Due => self.due(now, draw, actions),
        }
    }

    fn due(&mut self, now: Moment, draw: f64, actions: &mut Vec<Action>) {
        if self.phase == Phase::Lost {
            if now >= self.longest_life {
                self.phase = Phase::Ended;
                actions.push(Action::CleanUp);
                actions.push(Action::Forget);
            }
            return;
        }
        if let Some(reason) = self.is_over(now) {
            return self.lose(reason, actions);
        }
        match self.phase {
            Phase::Resting if now >= self.due => self.attempt(now, actions),
            Phase::Pausing { until } if now >= until => self.attempt(now, actions),
            Phase::Trying => {
                let late = self.attempts.last().filter(|attempt| now >= attempt.until).copied();
                if let Some(attempt) = late {
                    self.failed(attempt.number, FailureCause::Unanswered, now, draw, actions);
                }
            }
            _ => {}
        }
    }

    fn attempt(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let full = self.timings.attempt_timeout;
        let timeout = if self.timings.is_capped() {
            // Many short attempts near the end beat one long one: the one in flight at the heal may be lost.
            let half = self.trusted_until.since(now) / 2;
            let timeout = full.min(half).max(self.shortest_attempt());
            // None reaches into the time of the last one.
            match self.last_start().since(now) {
                Duration::ZERO => timeout,
                until_the_last => timeout.min(until_the_last),
            }
        } else {
            full
        };
        let attempt = Attempt {
            number: self.next_number,
            sent: now,
            until: now.plus(timeout),
            lease: self.timings.lease.min(self.ends.since(now)),
            waits: self.is_tried_until_the_deadline(),
            failed: false,
        };
        self.next_number += 1;
        // Two at most are listened to: the one that timed out may yet be answered.
        if self.attempts.len() == MOST_ATTEMPTS_IN_FLIGHT {
            self.attempts.remove(0);
        }
        self.attempts.push(attempt);
        self.longest_life = self.longest_life.max(now.plus(attempt.lease));
        self.phase = Phase::Trying;
        actions.push(Action::Send(attempt));
    }

    fn answered(&mut self, number: u64, answer: Answer, now: Moment, draw: f64, actions: &mut Vec<Action>) {
        let Some(attempt) = self.attempts.iter().find(|attempt| attempt.number == number).copied() else {
            return;
        };
        if self.phase == Phase::Lost {
            return;
        }
        match answer {
            Answer::Yes => {
                // An answer that comes after the deadline revives nothing, whoever was quicker to notice.
                if let Some(reason) = self.is_over(now) {
                    return self.lose(reason, actions);
                }
                self.attempts.retain(|other| other.number > number);
                self.round_trip = (self.round_trip * 7 + now.since(attempt.sent)) / 8;
                let left = self.trusted_until.since(now);
                let until = attempt.sent.plus(attempt.lease).minus(self.timings.margin);
                self.trust(until, actions);
                actions.push(Action::Renewed { sent: attempt.sent });
                if now.since(self.due) > left {
                    actions.push(Action::RenewedLate { left });
                }
                self.rest(attempt.sent, draw, actions);
            }
            Answer::No => self.lose_or_stop(LostReason::NotOwner, actions),
            Answer::Clobbered => self.lose_or_stop(LostReason::KeyClobbered, actions),
            Answer::Failed(cause) => {
                if !attempt.failed {
                    self.failed(number, cause, now, draw, actions);
                }
                self.attempts.retain(|other| other.number != number);
            }
        }
    }

    /// One attempt had no result. Its answer may still come, so it stays listed.
    fn failed(&mut self, number: u64, cause: FailureCause, now: Moment, draw: f64, actions: &mut Vec<Action>) {
        let newest = self.attempts.last().map(|attempt| attempt.number);
        let Some(attempt) = self.attempts.iter_mut().find(|attempt| attempt.number == number) else {
            return;
        };
        attempt.failed = true;
        let sent = attempt.sent;
        actions.push(Action::Failed {
            sent,
            cause: cause.clone(),
        });
        // Whoever tells nobody anything does not listen to late answers either.
        if !self.timings.is_told() {
            self.attempts.retain(|attempt| attempt.number != number);
        }
        // An older attempt that fails at last changes nothing: it was counted when its time ran out.
        if newest != Some(number) || self.phase != Phase::Trying {
            return;
        }
        self.failures += 1;
        if !self.at_risk && self.timings.is_told() {
            self.at_risk = true;
            actions.push(Action::Tell(LeaseState::AtRisk { since: now, cause }));
        }
        let is_over = self.is_tried_until_the_deadline() && now >= self.trusted_until;
        match self.timings.pause(self.failures, self.pause, draw).filter(|_| !is_over) {
            Some(pause) => {
                self.pause = pause;
                self.phase = Phase::Pausing {
                    until: self.next_start(sent, pause, now),
                };
            }
            None => self.exhausted(actions),
        }
    }

    /// The pause of a hold that is tried until its deadline may end with that of another, within the policy's longest pause.
    fn try_together(&mut self, at: Moment, now: Moment) {
        let in_reach = at > now && at <= now.plus(self.timings.longest_pause());
        let leaves_the_last = !self.timings.is_capped() || at.plus(self.shortest_attempt()) <= self.last_start();
        if self.tries_again().is_some() && in_reach && leaves_the_last {
            self.phase = Phase::Pausing { until: at };
        }
    }

    fn is_tried_until_the_deadline(&self) -> bool {
        matches!(self.timings.effort, Effort::UntilDeadline { .. })
    }

    /// When the attempt after this one, which failed, begins. The last one begins at [`Self::last_start`], whatever was drawn:
    /// no later, so that it can be answered, and not much earlier, so that it covers all the time there is.
    fn next_start(&self, failed: Moment, pause: Duration, now: Moment) -> Moment {
        let next = now.plus(pause);
        if !self.is_tried_until_the_deadline() || !self.timings.is_capped() {
            return next;
        }
        let last = self.last_start();
        if failed >= last {
            Moment::NEVER
        } else if next.plus(self.shortest_attempt()) <= last {
            next
        } else {
            last.max(now)
        }
    }

    /// When the last attempt before the deadline begins: it is listened to until then, twice as long as the shortest
    /// attempt.
    fn last_start(&self) -> Moment {
        self.trusted_until.minus(self.shortest_attempt() * 2)
    }

    fn exhausted(&mut self, actions: &mut Vec<Action>) {
        use crate::policy::Signal;
        match self.timings.signal {
            Signal::OnGiveUp => self.lose(LostReason::GaveUp, actions),
            Signal::AtDeadline => self.phase = Phase::Unattended,
            #[cfg(feature = "legacy-policies")]
            Signal::Never => {
                self.phase = Phase::Watched;
                self.attempts.clear();
            }
        }
    }

    fn extended(&mut self, sent: Moment, timings: Timings, now: Moment, draw: f64, actions: &mut Vec<Action>) {
        if self.phase == Phase::Lost {
            return;
        }
        self.longest_life = self.longest_life.max(sent.plus(timings.lease).min(self.ends));
        // As with a renewal: what comes after the deadline revives nothing.
        if let Some(reason) = self.is_over(now) {
            return self.lose(reason, actions);
        }
        self.trust(sent.plus(timings.lease).minus(timings.margin), actions);
        // Redis answers again, so whatever was failing begins anew; at once if this lease is shorter than a renewed one.
        if matches!(self.phase, Phase::Trying | Phase::Pausing { .. } | Phase::Unattended) {
            self.rest(sent, draw, actions);
            if timings.lease < self.timings.lease {
                self.due = now;
            }
        }
    }

    /// The lock was renewed by a request sent then: the next renewal is a period later, if the hold may last so long.
    fn rest(&mut self, sent: Moment, draw: f64, actions: &mut Vec<Action>) {
        self.calm(actions);
        self.phase = if self.trusted_until < self.cap {
            self.due = sent.plus(self.timings.next_period(draw));
            Phase::Resting
        } else {
            self.attempts.clear();
            Phase::Watched
        };
    }

    /// No failure counts any more.
    fn calm(&mut self, actions: &mut Vec<Action>) {
        self.failures = 0;
        self.pause = Duration::ZERO;
        if std::mem::take(&mut self.at_risk) {
            actions.push(Action::Tell(LeaseState::Held));
            actions.push(Action::Recovered);
        }
    }

    fn trust(&mut self, until: Moment, actions: &mut Vec<Action>) {
        let until = until.min(self.cap);
        if until > self.trusted_until {
            self.trusted_until = until;
            actions.push(Action::Trust(until));
        }
    }

    /// Redis says that the hold is gone: the holder is told at once, unless the policy tells nobody anything.
    fn lose_or_stop(&mut self, reason: LostReason, actions: &mut Vec<Action>) {
        if self.timings.is_told() {
            self.lose(reason, actions);
        } else {
            self.phase = Phase::Watched;
            self.attempts.clear();
        }
    }

    fn lose(&mut self, reason: LostReason, actions: &mut Vec<Action>) {
        if self.phase == Phase::Lost {
            return;
        }
        self.phase = Phase::Lost;
        actions.push(Action::Tell(LeaseState::Lost(reason)));
    }

    /// Why the lease cannot be trusted any more, if the time for it is over.
    fn is_over(&self, now: Moment) -> Option<LostReason> {
        if now >= self.cap {
            Some(LostReason::MaxHold)
        } else if self.deadline_is_told() && now >= self.trusted_until {
            Some(LostReason::DeadlinePassed)
        } else {
            None
        }
    }

    fn deadline_is_told(&self) -> bool {
        match self.phase {
            Phase::Watched => self.timings.is_told(),
            Phase::Lost | Phase::Ended => false,
            _ => self.timings.is_capped(),
        }
    }

    /// How long the shortest attempt is: as long as an answer may well take.
    fn shortest_attempt(&self) -> Duration {
        (self.round_trip * 4)
            .max(self.timings.lease / 1000)
            .min(self.timings.attempt_timeout)
    }
}

/// After a timeout one more attempt may run beside it, on another connection; never more.
const MOST_ATTEMPTS_IN_FLIGHT: usize = 2;

#[cfg(test)]
mod tests;
