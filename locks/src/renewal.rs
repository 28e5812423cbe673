//! The life of one hold as its renewal sees it: a pure state machine. It is told what happened and what time it is, and
//! says what to do; it reads no clock, sends nothing and draws no random number.
//!
//! ```text
//!  Held ──first failure──► AtRisk ──yes──► Held
//!   │                        │ effort exhausted ─► Lost(GaveUp), or Unattended until the deadline
//!   └──── no, clobbered ─────┴─ deadline ─► Lost, for good
//! ```
//! Every moment counts from before the request was sent, so a lease is never trusted longer than Redis keeps it.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::{FailureCause, LeaseState, LostReason};
use crate::policy::{Effort, Timings};

/// One attempt to renew; numbered within its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) number: u64,
    /// Taken before the command was handed to the socket.
    pub(crate) sent: Moment,
    /// When the attempt counts as unanswered.
    pub(crate) until: Moment,
    /// How long Redis is asked to keep the lock.
    pub(crate) lease: Duration,
    failed: bool,
}

/// What Redis said of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Renewed.
    Yes,
    /// The hold is not there.
    No,
    /// The key holds something that is no lock.
    Clobbered,
    /// The attempt had no result.
    Failed(FailureCause),
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The time that [`Renewal::wakes`] named has come.
    Due,
    /// An attempt was answered, or failed on the way.
    Answered { number: u64, answer: Answer },
    /// The hold got a new lease by other means than renewal: a re-entry or an extension with these times, whose request was
    /// sent then.
    Extended { sent: Moment, timings: Timings },
    /// From now on the hold is to be renewed, with these times.
    Attend(Timings),
    /// From now on the hold is not to be renewed, only watched to its deadline.
    Unattend,
    /// The hold ends for a reason that lies outside its renewal.
    End(LostReason),
    /// The holder let go: the last lease was released or dropped.
    LetGo,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a renewal.
    Send(Attempt),
    /// The hold is to be trusted until then.
    Trust(Moment),
    /// Tell the holder.
    Tell(LeaseState),
    /// The holder is told of trouble that is over.
    Recovered,
    /// An attempt failed.
    Failed { sent: Moment, cause: FailureCause },
    /// An attempt succeeded.
    Renewed { sent: Moment },
    /// The holder was told of a loss and has not let go: give back in the background what an abandoned renewal may have kept alive.
    CleanUp,
    /// Nothing is left to do for this hold: forget it.
    Forget,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Not renewed: the lease time was given, or renewal ended silently.
    Watched,
    /// The next renewal is due then.
    Resting { due: Moment },
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
        let phase = if renewed && trusted_until < cap {
            Phase::Resting {
                due: sent.plus(timings.next_period(draw)),
            }
        } else {
            Phase::Watched
        };
        Renewal {
            phase,
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
            Phase::Resting { due } => *due,
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
                    self.phase = Phase::Resting { due: now };
                }
            }
            Event::Unattend => {
                if !matches!(self.phase, Phase::Lost) {
                    self.phase = Phase::Watched;
                    self.attempts.clear();
                }
            }
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
            Phase::Resting { due } if now >= due => self.attempt(now, actions),
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
            full.min(half).max(self.shortest_attempt())
        } else {
            full
        };
        let attempt = Attempt {
            number: self.next_number,
            sent: now,
            until: now.plus(timeout),
            lease: self.timings.lease.min(self.ends.since(now)),
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
                let until = attempt.sent.plus(attempt.lease).minus(self.timings.margin);
                self.trust(until, actions);
                actions.push(Action::Renewed { sent: attempt.sent });
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
        // An older attempt that fails at last changes nothing: it was counted when its time ran out.
        if newest != Some(number) || self.phase != Phase::Trying {
            return;
        }
        self.failures += 1;
        if !self.at_risk && self.timings.is_told() {
            self.at_risk = true;
            actions.push(Action::Tell(LeaseState::AtRisk { since: now, cause }));
        }
        let is_over = matches!(self.timings.effort, Effort::UntilDeadline { .. }) && now >= self.trusted_until;
        match self.timings.pause(self.failures, self.pause, draw).filter(|_| !is_over) {
            Some(pause) => {
                self.pause = pause;
                self.phase = Phase::Pausing {
                    until: self.shortened(now.plus(pause), now),
                };
            }
            None => self.exhausted(actions),
        }
    }

    /// The last pause before the deadline is cut short, so that one more attempt ends just before it.
    fn shortened(&self, next: Moment, now: Moment) -> Moment {
        if !matches!(self.timings.effort, Effort::UntilDeadline { .. }) || !self.timings.is_capped() {
            return next;
        }
        let last_start = self.trusted_until.minus(self.shortest_attempt() * 2);
        if next <= last_start {
            next
        } else if now < last_start {
            last_start
        } else {
            Moment::NEVER
        }
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
            if timings.lease < self.timings.lease
                && let Phase::Resting { due } = &mut self.phase
            {
                *due = now;
            }
        }
    }

    /// The lock was renewed by a request sent then: the next renewal is a period later, if the hold may last so long.
    fn rest(&mut self, sent: Moment, draw: f64, actions: &mut Vec<Action>) {
        self.calm(actions);
        self.phase = if self.trusted_until < self.cap {
            Phase::Resting {
                due: sent.plus(self.timings.next_period(draw)),
            }
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

    fn shortest_attempt(&self) -> Duration {
        (self.round_trip * 4)
            .max(self.timings.lease / 1000)
            .min(self.timings.attempt_timeout)
    }
}

/// After a timeout one more attempt may run beside it, on another connection; never more.
const MOST_ATTEMPTS_IN_FLIGHT: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::RenewalPolicy;

    const LEASE: Duration = Duration::from_secs(30);
    /// A round trip that takes no time keeps the sums exact.
    const START: Moment = Moment::PAST;

    /// One hold under a policy, driven by hand.
    struct Hold {
        renewal: Renewal,
        now: Moment,
        told: Vec<(u64, LeaseState)>,
        sent: Vec<Attempt>,
        others: Vec<Action>,
    }

    impl Hold {
        fn new(policy: RenewalPolicy) -> Self {
            let timings = Timings::renewed(&policy, LEASE).unwrap();
            Hold {
                renewal: Renewal::new(timings, true, START, Moment::NEVER, 0.0),
                now: START,
                told: Vec::new(),
                sent: Vec::new(),
                others: Vec::new(),
            }
        }

        fn at(&mut self, ms: u64, event: Event) {
            self.now = START.plus(Duration::from_millis(ms));
            let mut actions = Vec::new();
            self.renewal.step(event, self.now, 0.0, &mut actions);
            for action in actions {
                match action {
                    Action::Tell(state) => self.told.push((ms, state)),
                    Action::Send(attempt) => self.sent.push(attempt),
                    other => self.others.push(other),
                }
            }
        }

        fn answer(&mut self, ms: u64, number: u64, answer: Answer) {
            self.at(ms, Event::Answered { number, answer });
        }

        /// Lets the timers run until then.
        fn run_until(&mut self, ms: u64) {
            while self.renewal.wakes() <= START.plus(Duration::from_millis(ms)) {
                let due = self.renewal.wakes().since(START).as_nanos().div_ceil(1_000_000) as u64;
                self.at(due, Event::Due);
            }
        }

        fn lost(&self) -> Option<(u64, LostReason)> {
            self.told.iter().find_map(|(ms, state)| match state {
                LeaseState::Lost(reason) => Some((*ms, *reason)),
                _ => None,
            })
        }
    }

    fn refused() -> Answer {
        Answer::Failed(FailureCause::Refused("READONLY".into()))
    }

    #[test]
    fn a_held_lock_is_renewed_each_third_and_trusted_from_before_the_send() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_secs(27)));
        hold.run_until(10_000);
        assert_eq!(hold.sent.len(), 1);
        // The answer takes 2 s; the lease counts from the send all the same.
        hold.answer(12_000, 1, Answer::Yes);
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_secs(37)));
        hold.run_until(20_000);
        assert_eq!(hold.sent.len(), 2);
        assert!(hold.told.is_empty());
    }

    #[test]
    fn the_deadline_policy_tells_the_holder_a_margin_before_the_end_and_not_earlier() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(60_000);
        assert_eq!(hold.lost(), Some((27_000, LostReason::DeadlinePassed)));
        assert!(hold.sent.len() > 5, "it tries to the end: {}", hold.sent.len());
        let deadline = START.plus(Duration::from_secs(27));
        assert!(hold.sent.iter().all(|attempt| attempt.until <= deadline));
        let last = hold.sent.last().unwrap();
        assert!(
            deadline.since(last.sent) <= Duration::from_millis(200),
            "a last attempt ends just before the deadline"
        );
    }

    #[test]
    fn a_definite_no_is_a_loss_at_once_whatever_the_policy() {
        for policy in [
            RenewalPolicy::deadline(),
            RenewalPolicy::cancel_told(),
            RenewalPolicy::retry(3),
        ] {
            let mut hold = Hold::new(policy);
            hold.run_until(10_000);
            hold.answer(10_001, 1, Answer::No);
            assert_eq!(hold.lost(), Some((10_001, LostReason::NotOwner)));
        }
    }

    #[test]
    fn cancel_gives_up_at_the_first_failure_and_retry_after_its_number() {
        let mut hold = Hold::new(RenewalPolicy::cancel_told());
        hold.run_until(10_000);
        hold.answer(10_001, 1, refused());
        assert_eq!(hold.lost(), Some((10_001, LostReason::GaveUp)));

        let mut hold = Hold::new(RenewalPolicy::retry(3));
        hold.run_until(10_000);
        let mut number = 1;
        while hold.lost().is_none() {
            let now = hold.now.since(START).as_millis() as u64;
            hold.answer(now, number, refused());
            number += 1;
            let next = hold.renewal.wakes().since(START).as_millis() as u64;
            hold.run_until(next);
        }
        // p + 0.5 + 1 + 2 s (RENEWAL §6, refuse).
        assert_eq!(hold.lost(), Some((13_500, LostReason::GaveUp)));
        assert_eq!(hold.sent.len(), 4);
    }

    #[test]
    fn retry_with_slow_failures_tells_the_holder_after_the_expiry() {
        let mut hold = Hold::new(RenewalPolicy::retry(10));
        hold.run_until(60_000);
        // p + 11 T + (0.5 + 9 x 1) s: the reason why the bound must be time.
        assert_eq!(hold.lost(), Some((52_500, LostReason::GaveUp)));
    }

    #[cfg(feature = "legacy-policies")]
    #[test]
    fn naive_cancel_tells_nobody_anything() {
        for answer in [Answer::No, refused(), Answer::Clobbered] {
            let mut hold = Hold::new(RenewalPolicy::naive_cancel());
            hold.run_until(10_000);
            hold.answer(10_001, 1, answer);
            hold.run_until(90_000);
            assert!(hold.told.is_empty());
            assert_eq!(hold.sent.len(), 1, "and it never renews again");
        }
    }

    #[test]
    fn a_late_success_counts_with_its_own_send_and_ends_the_risk() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(13_100);
        assert!(matches!(hold.told[..], [(13_000, LeaseState::AtRisk { .. })]));
        assert_eq!(hold.sent.len(), 2, "a second attempt runs beside the first");
        hold.answer(13_200, 1, Answer::Yes);
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_secs(37)));
        assert_eq!(hold.told.last(), Some(&(13_200, LeaseState::Held)));
        assert!(hold.others.contains(&Action::Recovered));
        hold.answer(13_300, 2, Answer::Yes);
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_millis(40_100)));
    }

    #[test]
    fn a_success_after_the_deadline_revives_nothing() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(26_000);
        let newest = hold.sent.last().unwrap().number;
        // The timer is late, and the answer comes before it.
        hold.answer(27_001, newest, Answer::Yes);
        assert_eq!(hold.lost(), Some((27_001, LostReason::DeadlinePassed)));
        hold.answer(27_002, newest, Answer::Yes);
        hold.run_until(40_000);
        assert_eq!(
            hold.told.iter().filter(|(_, state)| *state == LeaseState::Held).count(),
            0
        );
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_secs(27)));
    }

    #[test]
    fn what_an_abandoned_renewal_kept_alive_is_given_back_when_its_life_is_over_and_never_earlier() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(27_000);
        let last_sent = hold.sent.last().unwrap().sent;
        assert!(
            !hold.others.contains(&Action::CleanUp),
            "a holder that was just told needs its margin to stop"
        );
        assert_eq!(hold.renewal.wakes(), last_sent.plus(LEASE));
        hold.run_until(60_000);
        assert!(hold.others.ends_with(&[Action::CleanUp, Action::Forget]));
    }

    #[test]
    fn after_letting_go_nothing_is_sent_and_nobody_is_told() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(10_000);
        hold.at(10_001, Event::LetGo);
        hold.answer(10_002, 1, Answer::No);
        hold.run_until(100_000);
        assert_eq!(hold.renewal.wakes(), Moment::NEVER);
        assert_eq!((hold.sent.len(), hold.told.len()), (1, 0));
        assert_eq!(hold.others, [Action::Forget]);
    }

    #[test]
    fn a_given_lease_time_is_watched_and_not_renewed() {
        let timings = Timings::fixed(&RenewalPolicy::deadline(), Duration::from_secs(5)).unwrap();
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.renewal = Renewal::new(timings, false, START, Moment::NEVER, 0.0);
        hold.run_until(4_000);
        assert!(hold.sent.is_empty());
        hold.run_until(10_000);
        assert_eq!(hold.lost(), Some((4_500, LostReason::DeadlinePassed)));
    }

    #[test]
    fn a_re_entry_prolongs_a_watched_hold_and_never_shortens_it() {
        let timings = Timings::fixed(&RenewalPolicy::deadline(), Duration::from_secs(5)).unwrap();
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.renewal = Renewal::new(timings, false, START, Moment::NEVER, 0.0);
        let extended = |ms, lease| Event::Extended {
            sent: START.plus(Duration::from_millis(ms)),
            timings: Timings::fixed(&RenewalPolicy::deadline(), Duration::from_secs(lease)).unwrap(),
        };
        hold.at(1_000, extended(1_000, 2));
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_millis(4_500)));
        hold.at(2_000, extended(2_000, 10));
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_millis(11_000)));
    }

    #[test]
    fn a_re_entry_in_the_last_moments_starts_renewal_again() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(26_990);
        let timings = Timings::renewed(&RenewalPolicy::deadline(), LEASE).unwrap();
        let sent = START.plus(Duration::from_millis(26_980));
        hold.at(26_995, Event::Extended { sent, timings });
        assert_eq!(hold.told.last(), Some(&(26_995, LeaseState::Held)));
        let before = hold.sent.len();
        hold.run_until(36_980);
        assert_eq!(hold.sent.len(), before + 1);
    }

    #[test]
    fn trying_until_the_deadline_and_telling_on_giving_up_tells_at_the_deadline() {
        let mut policy = RenewalPolicy::deadline();
        policy.signal = crate::policy::Signal::OnGiveUp;
        let mut hold = Hold::new(policy);
        hold.run_until(100_000);
        let (told, reason) = hold.lost().expect("it is told");
        assert_eq!(reason, LostReason::GaveUp);
        assert!((27_000..=30_000).contains(&told), "{told}");
    }

    #[test]
    fn a_slow_renewal_does_not_end_the_tries_after_the_next_failure() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(10_000);
        hold.answer(12_500, 1, Answer::Yes);
        hold.run_until(20_000);
        hold.answer(20_000, 2, refused());
        hold.run_until(30_000);
        assert!(hold.sent.len() > 4, "{}", hold.sent.len());
    }

    #[test]
    fn at_most_two_attempts_are_listened_to() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(20_000);
        assert!(hold.sent.len() > 2);
        assert_eq!(hold.renewal.attempts.len(), 2);
        hold.answer(20_001, 1, Answer::Yes);
        assert_eq!(
            hold.renewal.trusted_until(),
            START.plus(Duration::from_secs(27)),
            "the first is given up"
        );
    }
    /// A hold of 30 s leases that may be held for 45 s.
    fn capped(policy: RenewalPolicy) -> Hold {
        let timings = Timings::renewed(&policy, LEASE).unwrap();
        let mut hold = Hold::new(policy);
        hold.renewal = Renewal::new(timings, true, START, START.plus(Duration::from_secs(45)), 0.0);
        hold
    }

    #[test]
    fn a_hold_with_a_limit_is_renewed_up_to_it_and_told_a_margin_before_whatever_the_policy() {
        for policy in [
            RenewalPolicy::deadline(),
            RenewalPolicy::cancel_told(),
            RenewalPolicy::retry(3),
        ] {
            let mut hold = capped(policy);
            for (ms, number) in [(10_000, 1), (20_000, 2)] {
                hold.run_until(ms);
                hold.answer(ms, number, Answer::Yes);
            }
            let leases: Vec<_> = hold.sent.iter().map(|attempt| attempt.lease.as_secs()).collect();
            assert_eq!(leases, [30, 25], "the last one asks for no more than the limit");
            let end = START.plus(Duration::from_secs(42));
            assert_eq!(hold.renewal.trusted_until(), end);
            hold.run_until(41_999);
            assert_eq!((hold.sent.len(), hold.lost()), (2, None), "nothing is left to renew");
            hold.run_until(90_000);
            assert_eq!(hold.lost(), Some((42_000, LostReason::MaxHold)));
            assert!(hold.others.ends_with(&[Action::CleanUp, Action::Forget]));
        }
    }

    #[test]
    fn neither_re_entry_nor_extension_nor_a_late_answer_outlives_the_limit_of_a_hold() {
        let mut hold = capped(RenewalPolicy::deadline());
        let timings = Timings::fixed(&RenewalPolicy::deadline(), Duration::from_secs(600)).unwrap();
        hold.at(5_000, Event::Extended { sent: START, timings });
        assert_eq!(hold.renewal.trusted_until(), START.plus(Duration::from_secs(42)));
        hold.run_until(10_000);
        hold.answer(42_000, 1, Answer::Yes);
        assert_eq!(hold.lost(), Some((42_000, LostReason::MaxHold)));
    }

    #[test]
    fn an_extension_that_is_answered_after_the_deadline_revives_nothing() {
        let fixed = |lease| Timings::fixed(&RenewalPolicy::deadline(), Duration::from_secs(lease)).unwrap();
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.renewal = Renewal::new(fixed(5), false, START, Moment::NEVER, 0.0);
        let sent = START.plus(Duration::from_millis(4_400));
        let timings = fixed(60);
        hold.at(4_500, Event::Extended { sent, timings });
        assert_eq!(hold.lost(), Some((4_500, LostReason::DeadlinePassed)));
    }

    #[test]
    fn a_short_extension_while_renewals_fail_is_renewed_at_once() {
        let mut hold = Hold::new(RenewalPolicy::deadline());
        hold.run_until(24_000);
        let timings = Timings::fixed(&RenewalPolicy::deadline(), Duration::from_secs(1)).unwrap();
        let sent = START.plus(Duration::from_millis(24_000));
        let before = hold.sent.len();
        hold.at(24_001, Event::Extended { sent, timings });
        hold.run_until(24_001);
        assert_eq!(hold.sent.len(), before + 1, "its deadline is still the one from before");
    }
}
