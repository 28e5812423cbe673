//! The state machine, event by event.

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

#[cfg(feature = "legacy-policies")]
#[test]
fn the_redisson_policies_fail_after_their_command_retries_and_differ_in_what_follows() {
    let sent = |policy, is_refused: bool| {
        let mut hold = Hold::new(policy);
        while hold.renewal.wakes() <= START.plus(Duration::from_secs(60)) {
            let next = hold.renewal.wakes().since(START).as_millis() as u64;
            hold.run_until(next);
            if is_refused && let Some(newest) = hold.sent.last().filter(|attempt| attempt.sent == hold.now) {
                hold.answer(next, newest.number, refused());
            }
        }
        assert!(hold.told.is_empty(), "nobody is told");
        let ms = hold.sent.iter().map(|attempt| attempt.sent.since(START).as_millis());
        ms.collect::<Vec<_>>()
    };
    // p + 4.5 s and p + 3 T + 4.5 s ; then never again.
    assert_eq!(
        sent(RenewalPolicy::redisson_3_27(), true),
        [10_000, 11_500, 13_000, 14_500]
    );
    assert_eq!(
        sent(RenewalPolicy::redisson_3_27(), false),
        [10_000, 14_500, 19_000, 23_500]
    );
    // The shortest pauses; the next tick is a period after the attempt has failed.
    let ticks = sent(RenewalPolicy::redisson_3_44(), true);
    assert_eq!(ticks[..7], [10_000, 10_500, 11_500, 12_500, 13_500, 23_500, 24_000]);
    let ticks = sent(RenewalPolicy::redisson_3_44(), false);
    assert_eq!(ticks[..6], [10_000, 13_500, 17_500, 21_500, 25_500, 38_500]);
    assert!(ticks.last().unwrap() > &50_000, "it never ends");
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
