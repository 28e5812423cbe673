//! A Redis of the mind: one key with an expiry, a fault, and a rival that takes the key as soon as it can.

use super::{Family, Fault};

/// What the server does with one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was executed, and this is the answer.
    Executed(Reply),
    /// It was refused.
    Refused,
    /// It vanished.
    Swallowed,
    /// It waits for the end of the fault.
    Queued,
}

/// What a renewal that was executed comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Renewed,
    NotHeld,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Holder { expires: u64 },
    Rival,
    Free,
}

pub(super) struct Server {
    fault: Fault,
    key: Key,
    /// Renewals that wait: their number and the lease they ask for.
    queue: Vec<(u64, u64)>,
    /// The holder's release waits.
    release: bool,
    /// When the rival got the key.
    pub(super) taken: Option<u64>,
    /// When the last renewal was executed before the fault.
    pub(super) last_renewal: u64,
}

impl Server {
    pub(super) fn new(fault: Fault, lease: u64) -> Self {
        Server {
            fault,
            key: Key::Holder { expires: lease },
            queue: Vec::new(),
            release: false,
            taken: None,
            last_renewal: 0,
        }
    }

    pub(super) fn is_faulty(&self, now: u64) -> bool {
        (self.fault.from..self.fault.to).contains(&now)
    }

    /// Until when the key is the holder's; nothing if it is not.
    pub(super) fn holder_until(&self, now: u64) -> Option<u64> {
        match self.key {
            Key::Holder { expires } if now < expires => Some(expires),
            _ => None,
        }
    }

    /// A renewal arrives.
    pub(super) fn renew(&mut self, number: u64, lease: u64, now: u64) -> Taken {
        if !self.is_faulty(now) {
            return Taken::Executed(self.execute(lease, now));
        }
        match self.fault.family {
            Family::Refuse => Taken::Refused,
            Family::Swallow => Taken::Swallowed,
            Family::Pending | Family::Delivered => {
                self.queue.push((number, lease));
                Taken::Queued
            }
        }
    }

    /// The fault ends: what waits is executed, in the pending family only what the client still listens to.
    pub(super) fn heal(&mut self, now: u64, listens_to: impl Fn(u64) -> bool) -> Vec<(u64, Reply)> {
        let queue = std::mem::take(&mut self.queue);
        let alive = |number| self.fault.family == Family::Delivered || listens_to(number);
        let queue: Vec<_> = queue.into_iter().filter(|(number, _)| alive(*number)).collect();
        let replies = queue
            .into_iter()
            .map(|(number, lease)| (number, self.execute(lease, now)));
        let replies = replies.collect();
        if std::mem::take(&mut self.release) {
            self.release(now);
        }
        replies
    }

    /// The holder gives the lock back.
    pub(super) fn release(&mut self, now: u64) {
        if self.is_faulty(now) {
            self.release = true;
        } else if self.holder_until(now).is_some() {
            self.key = Key::Free;
        }
    }

    /// When the rival can have the key at the earliest, if nothing changes before.
    pub(super) fn rival_tries(&self, now: u64) -> Option<u64> {
        let free = match self.key {
            Key::Holder { expires } => expires.max(now),
            Key::Free => now,
            Key::Rival => return None,
        };
        let is_struck = !self.fault.holder_only && self.is_faulty(free);
        Some(if is_struck { self.fault.to } else { free })
    }

    /// The rival takes the key, if it can.
    pub(super) fn rival_takes(&mut self, now: u64) {
        if self.key != Key::Rival && self.rival_tries(now) == Some(now) {
            self.key = Key::Rival;
            self.taken = Some(now);
        }
    }

    fn execute(&mut self, lease: u64, now: u64) -> Reply {
        let Some(expires) = self.holder_until(now) else {
            return Reply::NotHeld;
        };
        self.key = Key::Holder {
            expires: expires.max(now + lease),
        };
        if now < self.fault.from {
            self.last_renewal = now;
        }
        Reply::Renewed
    }
}
