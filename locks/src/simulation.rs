//! The renewal of one hold in virtual time: the client's own state machine against a server of the mind.
//!
//! For tests alone, and no part of the interface. Two events of one instant come in the order in which the watchdog takes them:
//! answers first, then timers. Times are nanoseconds since the grant.

mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::lease::{FailureCause, LeaseState};
use crate::policy::{Effort, RenewalPolicy, Signal, Timings};
use crate::renewal::{Action, Answer, Event, Renewal};
use server::{Reply, Server, Taken};

/// What a fault does to a renewal that is sent while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// It is refused at once.
    Refuse,
    /// It vanishes, and so does the one on its way when the fault ends.
    Swallow,
    /// It is executed when the fault ends, if the client still listens to it.
    Pending,
    /// It is executed when the fault ends, whatever the client has done meanwhile.
    Delivered,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it does to renewals.
    pub family: Family,
    /// Whether the holder alone is struck, or the rival too.
    pub holder_only: bool,
    /// When it begins.
    pub from: u64,
    /// When it has ended.
    pub to: u64,
}

/// Whatever is random, from one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// The seed.
    pub seed: u64,
    /// The longest way to the server and back.
    pub round_trip: u64,
    /// How late timers are at most.
    pub lateness: u64,
}

/// One hold and what happens to it.
#[derive(Clone, Debug)]
pub struct World {
    /// The policy under which it is renewed.
    pub policy: RenewalPolicy,
    /// How long Redis keeps it.
    pub lease: Duration,
    /// What goes wrong.
    pub fault: Fault,
    /// When its holder's work ends, unless it is told of a loss before.
    pub work_ends: u64,
    /// How long the holder takes to stop when it is told.
    pub reaction: u64,
    /// What is random: nothing without it, and everything takes no time.
    pub jitter: Option<Jitter>,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// When the last renewal before the fault was executed; 0 is the acquire.
    pub last_renewal: u64,
    /// The fault took the answer of one that was executed.
    pub unheard: bool,
    /// When the holder was told of the loss.
    pub told: Option<u64>,
    /// When the rival got the lock.
    pub taken: Option<u64>,
    /// When the holder stopped, told or done.
    pub stopped: u64,
    /// When each renewal left.
    pub sends: Vec<u64>,
    /// What must never happen and did, in words.
    pub violations: Vec<String>,
}

/// Plays it out to the end of the work.
///
/// # Panics
/// If the policy and the lease make no sense.
pub fn run(world: &World) -> Story {
    let timings = Timings::renewed(&world.policy, world.lease).expect("times that nest");
    Player::new(world, timings).play()
}

/// What comes when; those of one instant in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Heal,
    Arrives { number: u64, lease: u64 },
    Answered { number: u64, heard: Heard },
    Rival,
    Due,
    AlignedTo(u64),
    Stops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    Yes,
    No,
    Refused,
    Broken,
}

struct Player<'a> {
    world: &'a World,
    timings: Timings,
    server: Server,
    renewal: Renewal,
    now: u64,
    /// What the state machine waits for, and when it is woken.
    timer: Option<(Moment, u64)>,
    agenda: BTreeMap<(u64, Next), ()>,
    random: fastrand::Rng,
    stopped: bool,
    /// When the newest renewal that succeeded left, or the acquire.
    renewed: u64,
    story: Story,
}

impl<'a> Player<'a> {
    fn new(world: &'a World, timings: Timings) -> Self {
        let mut random = fastrand::Rng::with_seed(world.jitter.map_or(0, |jitter| jitter.seed));
        let draw = if world.jitter.is_some() { random.f64() } else { 0.0 };
        let lease = nanos(timings.lease);
        let mut player = Player {
            world,
            renewal: Renewal::new(timings, true, moment(0), Moment::NEVER, draw),
            timings,
            server: Server::new(world.fault, lease),
            now: 0,
            timer: None,
            agenda: BTreeMap::new(),
            random,
            stopped: false,
            renewed: 0,
            story: Story {
                last_renewal: 0,
                unheard: false,
                told: None,
                taken: None,
                stopped: 0,
                sends: Vec::new(),
                violations: Vec::new(),
            },
        };
        player.plan(world.fault.to, Next::Heal);
        player.plan(world.work_ends, Next::Stops);
        player.plan(lease, Next::Rival);
        player.plan_timer();
        player
    }

    fn play(mut self) -> Story {
        // Answers under way when the holder stops come as well: nothing may follow from them.
        let end = self.world.work_ends + nanos(self.timings.lease) * 2;
        while let Some(((at, next), ())) = self.agenda.pop_first()
            && at <= end
        {
            self.now = at;
            self.happens(next);
            self.check();
            if let Some(tries) = self.server.rival_tries(self.now) {
                self.plan(tries, Next::Rival);
            }
        }
        self.story.last_renewal = self.server.last_renewal;
        self.story.taken = self.server.taken;
        self.story
    }

    fn happens(&mut self, next: Next) {
        match next {
            Next::Heal => {
                let replies = self.server.heal(self.now, |number| self.renewal.listens_to(number));
                for (number, reply) in replies {
                    let heard = heard(reply);
                    let way = self.way();
                    self.plan(self.now + way, Next::Answered { number, heard });
                }
            }
            Next::Arrives { number, lease } => match self.server.renew(number, lease, self.now) {
                Taken::Executed(reply) => {
                    let back = self.now + self.way();
                    // A connection that breaks loses what is on its way.
                    let is_faulty = self.server.is_faulty(back);
                    self.story.unheard |= is_faulty;
                    let heard = match self.world.fault.family {
                        Family::Swallow if is_faulty => return,
                        Family::Refuse if is_faulty => Heard::Broken,
                        _ => heard(reply),
                    };
                    self.plan(back, Next::Answered { number, heard });
                }
                Taken::Refused => {
                    let heard = Heard::Refused;
                    self.plan(self.now, Next::Answered { number, heard });
                }
                Taken::Swallowed | Taken::Queued => {}
            },
            Next::Answered { number, heard } => {
                let answer = match heard {
                    Heard::Yes => Answer::Yes,
                    Heard::No => Answer::No,
                    Heard::Refused => Answer::Failed(FailureCause::Refused("READONLY".into())),
                    Heard::Broken => Answer::Failed(FailureCause::Unanswered),
                };
                self.step(Event::Answered { number, answer });
            }
            Next::Rival => self.server.rival_takes(self.now),
            Next::Due if self.timer.is_some_and(|(_, at)| at == self.now) => {
                self.timer = None;
                self.step(Event::Due);
            }
            // Another timer has taken its place.
            Next::Due => {}
            Next::AlignedTo(at) => self.step(Event::TryTogether(moment(at))),
            Next::Stops => self.stop(),
        }
    }

    fn step(&mut self, event: Event) {
        let draw = self.draw();
        let mut actions = Vec::new();
        self.renewal.step(event, moment(self.now), draw, &mut actions);
        for action in actions {
            self.act(action);
        }
        // Another lock of the same client has failed, and tells when it tries again.
        if self.renewal.tries_again().is_some() && self.world.jitter.is_some() && self.random.bool() {
            let at = self.now + self.random.u64(0..nanos(self.timings.lease) / 20);
            self.plan(self.now, Next::AlignedTo(at));
        }
        self.plan_timer();
    }

    fn act(&mut self, action: Action) {
        let lost = self.story.told.is_some();
        match action {
            Action::Send(attempt) => {
                if self.stopped {
                    self.violation("a renewal after the holder let go");
                }
                let last = self.story.sends.last().copied().unwrap_or(0).max(self.renewed);
                let longest = self.longest_silence();
                if self.now > last + longest {
                    self.violation("more than a period without a renewal");
                }
                self.story.sends.push(self.now);
                let next = Next::Arrives {
                    number: attempt.number,
                    lease: nanos(attempt.lease),
                };
                let way = self.way();
                self.plan(self.now + way, next);
            }
            Action::Tell(state) => {
                if lost || self.stopped {
                    self.violation(&format!("told {state:?} after the end"));
                }
                if let LeaseState::Lost(_) = state {
                    self.story.told = Some(self.now);
                    let stops = self.now + self.world.reaction;
                    if stops < self.world.work_ends {
                        self.plan(stops, Next::Stops);
                    }
                }
            }
            Action::Trust(_) if lost || self.stopped => self.violation("trusted again after the end"),
            Action::Renewed { sent, .. } => self.renewed = sent.as_nanos() - START,
            Action::CleanUp => self.server.release(self.now),
            Action::Trust(_)
            | Action::RenewedLate { .. }
            | Action::Recovered
            | Action::Failed { .. }
            | Action::Forget => {}
        }
    }

    fn stop(&mut self) {
        if !std::mem::replace(&mut self.stopped, true) {
            self.story.stopped = self.now;
            self.step(Event::LetGo);
            self.server.release(self.now);
        }
    }

    /// What must hold at every moment.
    fn check(&mut self) {
        if self.renewal.in_flight() > 2 {
            self.violation("more than two attempts in flight");
        }
        if self.stopped || self.story.told.is_some() {
            return;
        }
        let trusted_until = self.renewal.trusted_until();
        let is_trusted = moment(self.now) < trusted_until;
        let expires = self.server.holder_until(self.now);
        let with_margin = trusted_until.plus(self.timings.margin);
        if is_trusted && expires.is_none_or(|expires| with_margin > moment(expires)) {
            self.violation(&format!(
                "trusted until {trusted_until:?}, and Redis keeps it until {expires:?}"
            ));
        }
        let lateness = self.world.jitter.map_or(0, |jitter| jitter.lateness);
        let told_by = trusted_until.plus(Duration::from_nanos(lateness));
        let is_told_in_time = self.timings.signal == Signal::AtDeadline;
        if is_told_in_time && moment(self.now) > told_by {
            self.violation("not told at the deadline");
        }
    }

    /// How long no renewal leaves at most, as long as the policy goes on.
    fn longest_silence(&self) -> u64 {
        let lateness = self.world.jitter.map_or(0, |jitter| 2 * jitter.lateness);
        let period = nanos(self.timings.period);
        match self.timings.effort {
            Effort::NextTick => period + nanos(self.timings.attempt_timeout) + lateness,
            _ => period + lateness,
        }
    }

    fn violation(&mut self, what: &str) {
        let at = self.now as f64 / 1e9;
        self.story.violations.push(format!("{at:.9} s: {what}"));
    }

    fn plan(&mut self, at: u64, next: Next) {
        self.agenda.insert((at, next), ());
    }

    fn plan_timer(&mut self) {
        let wakes = self.renewal.wakes();
        if self.timer.is_some_and(|(wanted, _)| wanted == wakes) {
            return;
        }
        self.timer = None;
        if wakes != Moment::NEVER {
            let lateness = self.world.jitter.map_or(0, |jitter| jitter.lateness);
            let at = wakes.as_nanos().saturating_sub(START).max(self.now) + self.random.u64(0..=lateness);
            self.timer = Some((wakes, at));
            self.plan(at, Next::Due);
        }
    }

    /// Half a round trip.
    fn way(&mut self) -> u64 {
        match self.world.jitter {
            Some(jitter) if jitter.round_trip > 1 => self.random.u64(0..jitter.round_trip / 2),
            _ => 0,
        }
    }

    fn draw(&mut self) -> f64 {
        match self.world.jitter {
            Some(_) => self.random.f64(),
            None => 0.0,
        }
    }
}

fn heard(reply: Reply) -> Heard {
    match reply {
        Reply::Renewed => Heard::Yes,
        Reply::NotHeld => Heard::No,
    }
}

fn moment(at: u64) -> Moment {
    Moment::from_nanos(START + at)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The grant is not at the beginning of time: a deadline may lie before it.
const START: u64 = 1_000_000_000_000;
