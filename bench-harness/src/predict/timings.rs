//! How a policy spends its time while renewals fail, and the last moment at which one can still succeed.

use std::time::Duration;

use super::Family;
use crate::real::RealClient;

/// How a policy spends its time when renewals fail; all times follow from the lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Timings {
    /// How long Redis keeps a lock that is not renewed.
    pub lease: i64,
    /// Shortest and longest time between two renewals: the jitter is −10 % … 0.
    pub period: Range,
    /// How long one attempt may take.
    pub attempt: i64,
    /// How long before the lease's end its holder stops to believe in it.
    pub margin: i64,
    /// What follows a failed attempt.
    pub effort: Effort,
    /// Whether the holder is told.
    pub tells: bool,
    /// How late all its timers together may come on a real machine.
    pub late: i64,
    /// How much sooner than refused answers a refused connection can cost a lock, for clients that open one anew after longer and longer
    /// pauses; [`Timings::under_a_fault_of`] says how long they have grown by its end.
    pub reconnects: i64,
}

/// Shortest and longest.
pub type Range = (i64, i64);

/// What follows a failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Effort {
    /// So many more sends, after these pauses; then it gives up.
    Retry(Vec<Range>),
    /// Attempts until the margin begins.
    UntilDeadline,
    /// So many more sends, after these pauses; then the same again a period later, for ever.
    NextTick(Vec<Range>),
}

/// The last moments at which a fault may end without the lock being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChance {
    /// With the least lucky draws of all that is drawn at random.
    pub earliest: i64,
    /// With the luckiest.
    pub latest: i64,
    /// At this moment it is over whatever else: the lease has ended, or the holder has stopped to believe in it.
    pub before: i64,
}

/// One send of a renewal under a fault.
struct Sent {
    at: Range,
    /// From this send to the next, at most; nothing if none follows.
    gap: Option<i64>,
}

impl Timings {
    /// The timings of a preset for a lease, or nothing if there is no preset of that name. A real client has those of its preset.
    ///
    /// `next-tick` is no preset of the library: one attempt a period without the command retries of `redisson-3.44`.
    pub fn of(policy: &str, lease: Duration) -> Option<Self> {
        let real = RealClient::of(policy);
        let policy = real.map_or(policy, |client| client.preset);
        let lease = i64::try_from(lease.as_nanos()).ok()?;
        let period = lease / 3;
        let tenth = lease / 10;
        let exactly = |pauses: &[i64]| pauses.iter().map(|pause| (*pause, *pause)).collect::<Vec<_>>();
        let jittered = |pauses: &[i64]| pauses.iter().map(|pause| (pause / 2, *pause)).collect::<Vec<_>>();
        let (second, two_seconds) = (lease / 30, lease / 15);
        let (effort, tells, margin) = match policy {
            "deadline" => (Effort::UntilDeadline, true, tenth),
            "deadline-strict" => (Effort::UntilDeadline, true, period),
            "cancel-told" => (Effort::Retry(vec![]), true, tenth),
            "retry-3" => {
                let pauses = exactly(&[lease / 60, second, two_seconds]);
                (Effort::Retry(pauses), true, tenth)
            }
            "retry-10" => {
                let mut pauses = vec![second; 10];
                pauses[0] = lease / 60;
                (Effort::Retry(exactly(&pauses)), true, tenth)
            }
            "naive-cancel" => (Effort::Retry(vec![]), false, tenth),
            "next-tick" => (Effort::NextTick(vec![]), false, tenth),
            "redisson-3.27" => (Effort::Retry(exactly(&[lease / 20; 3])), false, tenth),
            "redisson-3.44" => {
                let pauses = jittered(&[second, two_seconds, two_seconds, two_seconds]);
                (Effort::NextTick(pauses), false, tenth)
            }
            _ => return None,
        };
        let attempt = match effort {
            Effort::UntilDeadline => tenth.min(LONGEST_ATTEMPT),
            Effort::Retry(_) | Effort::NextTick(_) => tenth,
        };
        let pauses = match &effort {
            Effort::UntilDeadline => 0,
            Effort::Retry(pauses) | Effort::NextTick(pauses) => pauses.len() as i64,
        };
        Some(Self {
            lease,
            period: (period - period / 10, period),
            attempt,
            late: match real {
                None => LATE_TIMER * (pauses + 1),
                // Of each pause and each answer waited for.
                Some(client) => client.tick_ns() * (2 * pauses + 1),
            },
            reconnects: real.map_or(0, |client| client.longest_reconnect_ns(lease, i64::MAX)),
            margin: margin.max(SHORTEST_MARGIN).min(period),
            effort,
            tells,
        })
    }

    /// The same under a fault of that length, for those whose pauses grow with it.
    #[must_use]
    pub fn under_a_fault_of(self, policy: &str, length: i64) -> Self {
        let reconnects = RealClient::of(policy).map_or(0, |client| client.longest_reconnect_ns(self.lease, length));
        Self { reconnects, ..self }
    }

    /// The same with every period as long as it can be, as the tables of the design have it.
    #[must_use]
    pub fn with_whole_periods(mut self) -> Self {
        self.period.0 = self.period.1;
        self
    }

    /// The same without anything random: periods as long, pauses as short as they can be.
    #[must_use]
    pub fn without_jitter(self) -> Self {
        let mut timings = self.with_whole_periods();
        if let Effort::Retry(pauses) | Effort::NextTick(pauses) = &mut timings.effort {
            for pause in pauses {
                pause.1 = pause.0;
            }
        }
        timings
    }

    /// When the holder stops to believe in a lease that was never renewed.
    pub fn deadline(&self) -> i64 {
        self.lease - self.margin
    }

    /// The last moments at which a fault of this family may end without the lock being lost: the design's G.
    ///
    /// Where an answer of the newest attempt still counts at the end of the fault, it is the end of the last attempt; else it is the
    /// moment when the last attempt leaves. Under the deadline policies that is `lease / 500` before the deadline: the last
    /// attempt is listened to for twice the least time of an attempt, and every attempt before it ends by then.
    pub fn last_chance(&self, family: Family) -> LastChance {
        let answered = matches!(family, Family::Pending | Family::Delivered | Family::Frozen);
        let (earliest, latest) = match &self.effort {
            Effort::UntilDeadline => {
                let last = if answered { 0 } else { self.last_attempt() };
                return LastChance {
                    earliest: self.deadline() - last,
                    latest: self.deadline() - last,
                    before: self.deadline(),
                };
            }
            // Whoever wakes renews at once.
            Effort::Retry(_) | Effort::NextTick(_) if family == Family::Frozen => (self.lease, self.lease),
            // What is executed in the end was renewed, and the next tick finds it.
            Effort::NextTick(_) if family == Family::Delivered => (self.lease, self.lease),
            Effort::Retry(_) | Effort::NextTick(_) => self.last_send(family),
        };
        let wait = if answered { self.attempt } else { 0 };
        LastChance {
            earliest: (earliest + wait).min(self.lease),
            latest: (latest + wait).min(self.lease),
            before: self.lease,
        }
    }

    /// The same for a client with real connections and timers.
    ///
    /// The very last attempt of a deadline policy comes too late where it has to open a connection first; the one before it may
    /// leave as much as the longest pause earlier, and earlier still where what opens the connection was swallowed too. Each pause ends a little late. And what a tick has given up may still be executed
    /// when a pause of the server ends: the next tick finds it.
    pub fn last_chance_on_the_wire(&self, family: Family) -> LastChance {
        let mut chance = self.with_late_timers().last_chance(family);
        match (family, &self.effort) {
            (Family::Refuse, Effort::UntilDeadline) => chance.earliest -= self.lease / LONGEST_PAUSE,
            (Family::Swallow, Effort::UntilDeadline) => {
                chance.earliest -= self.lease / LONGEST_PAUSE + self.lease / OPENINGS;
            }
            (_, Effort::UntilDeadline) => {}
            (Family::Pending, Effort::NextTick(_)) => chance.latest = self.lease,
            // Of what was given up, only what had a connection to leave on is executed in the end.
            (Family::Delivered, Effort::NextTick(_)) => {
                chance.earliest = (self.last_send(family).0 + self.attempt).min(self.lease);
            }
            (_, Effort::Retry(_) | Effort::NextTick(_)) => {}
        }
        if family == Family::Refuse {
            chance.earliest -= self.reconnects;
        }
        // Who pauses when the fault ends tries again after the pause, and then the lease must not have ended.
        if matches!(family, Family::Pending | Family::Delivered) {
            chance.earliest = chance.earliest.min(self.lease - self.longest_pause());
        }
        chance
    }

    /// The same with every period and every pause as late as it may come.
    fn with_late_timers(&self) -> Self {
        let mut timings = self.clone();
        if let Effort::Retry(pauses) | Effort::NextTick(pauses) = &mut timings.effort {
            let each = self.late / (pauses.len() as i64 + 1);
            timings.period.1 += each;
            for pause in pauses {
                pause.1 += each;
            }
        }
        timings
    }

    /// The longest pause between two sends; none for those that are tried until a deadline, whose attempts before it are listened to.
    fn longest_pause(&self) -> i64 {
        match &self.effort {
            Effort::UntilDeadline => 0,
            Effort::Retry(pauses) | Effort::NextTick(pauses) => pauses.iter().map(|pause| pause.1).max().unwrap_or(0),
        }
    }

    /// When the holder of a lock that is lost is told, counted from its last renewal, at the earliest and at the latest; nothing
    /// if it never is. Exact without jitter.
    pub fn told(&self, family: Family, renewal_to_heal: i64) -> Option<Range> {
        if !self.tells {
            return None;
        }
        if family == Family::Frozen {
            // Whoever stands still hears nothing; who wakes sees at once that it is late, or asks and is told.
            return Some((renewal_to_heal, renewal_to_heal));
        }
        if self.effort == Effort::UntilDeadline {
            return Some((self.deadline(), self.deadline()));
        }
        let sends = self.sends(family);
        let last = sends.last()?;
        let wait = self.fails_after(family);
        let given_up = (last.at.0 + wait, last.at.1 + wait);
        if renewal_to_heal > given_up.1 {
            return Some(given_up);
        }
        // Whoever still tries when the fault has ended hears a definite no: the attempt under way does, or the next one.
        let is_answered = matches!(family, Family::Pending | Family::Delivered);
        if self.period.0 == self.period.1 {
            let next = sends.iter().find(|sent| sent.at.0 >= renewal_to_heal);
            let heard = match next {
                _ if is_answered => renewal_to_heal,
                Some(next) => next.at.0,
                None => given_up.0,
            };
            return Some((heard, heard));
        }
        let longest_gap = sends.iter().filter_map(|sent| sent.gap).max().unwrap_or(0);
        // Or the next one, for who was just pausing.
        let until_answer = if is_answered {
            self.longest_pause()
        } else {
            longest_gap.max(self.attempt)
        };
        let first_answer = renewal_to_heal + until_answer;
        // What was swallowed broke its connection: that shows when the fault ends, before the attempt's time is out.
        let soonest = match family {
            Family::Swallow => renewal_to_heal,
            _ => renewal_to_heal.max(self.lease),
        };
        Some((given_up.0.min(soonest), given_up.1.min(first_answer.max(self.lease))))
    }

    /// How long before the deadline the last attempt of a deadline policy leaves.
    fn last_attempt(&self) -> i64 {
        2 * (self.lease / 1000).min(self.attempt)
    }

    fn fails_after(&self, family: Family) -> i64 {
        match family {
            Family::Refuse => 0,
            Family::Swallow | Family::Pending | Family::Delivered => self.attempt,
            Family::Frozen => 0,
        }
    }

    /// The renewals that leave during a fault that does not end: all of them, or those up to the end of the lease if they never end.
    fn sends(&self, family: Family) -> Vec<Sent> {
        let (pauses, is_repeated) = match &self.effort {
            Effort::Retry(pauses) => (pauses, false),
            Effort::NextTick(pauses) => (pauses, true),
            Effort::UntilDeadline => return Vec::new(),
        };
        let wait = self.fails_after(family);
        let mut sends = Vec::new();
        let mut at = self.period;
        loop {
            for pause in pauses {
                sends.push(Sent {
                    at,
                    gap: Some(wait + pause.1),
                });
                at = (at.0 + wait + pause.0, at.1 + wait + pause.1);
            }
            let gap = is_repeated.then_some(wait + self.period.1);
            sends.push(Sent { at, gap });
            at = (at.0 + wait + self.period.0, at.1 + wait + self.period.1);
            if !is_repeated || at.0 >= self.lease {
                return sends;
            }
        }
    }

    /// The last send before the lease ends.
    fn last_send(&self, family: Family) -> Range {
        let sends = self.sends(family);
        let mut found: Option<Range> = None;
        for (index, sent) in sends.iter().enumerate() {
            let next = sends.get(index + 1).map_or(i64::MAX, |next| next.at.1);
            if sent.at.0 >= self.lease || next < self.lease {
                continue;
            }
            // It is the last one if the next one comes at the end or later, so it is no earlier than the longest gap before.
            let earliest = sent.gap.map_or(sent.at.0, |gap| sent.at.0.max(self.lease - gap));
            let latest = sent.at.1.min(self.lease);
            found = Some(found.map_or((earliest, latest), |found| (found.0.min(earliest), found.1.max(latest))));
        }
        // The first attempt leaves a period after a renewal, long before the end.
        found.unwrap_or(self.period)
    }
}

/// How long an attempt of the deadline policies takes at most, however long the lease.
const LONGEST_ATTEMPT: i64 = 3_000_000_000;

/// The lease divided by the longest pause between two attempts of the deadline policies.
const LONGEST_PAUSE: i64 = 30;

/// The lease divided by how long the opening of a link that lost its bytes is waited for before another begins.
const OPENINGS: i64 = 30;

/// The library looks at its timers so often.
const LATE_TIMER: i64 = 5_000_000;

/// The library's least margin, however short the lease.
const SHORTEST_MARGIN: i64 = 50_000_000;
