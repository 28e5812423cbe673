//! Taking a held lock from one process to another: the lease ends here without giving the lock back, and begins anew there.
//!
//! A token of it is only a description. What makes sure that one process alone goes on is Redis: whoever adopts gives the hold a
//! holder id of its own, in one step, so a second one does not find it any more.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Moment};
use crate::error::{AdoptError, CallError};
use crate::hold::Hold;
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Single;
use crate::locks::Client;
use crate::mode::{Fair, Fenced, Mode, Multi, Part, Read, Reentrant, Spin, Write, nonsense};
use crate::options::{Terms, lease_millis};
use crate::owner::{HolderId, Owner};
use crate::policy::Timings;
use crate::release::Release;
use crate::renewal::Renewal;
use crate::script::{ADOPT, Call, Value};
use crate::target::Node;

/// A held lock on its way to another process: made by [`Lease::hand_off`](crate::Lease::hand_off), taken over by
/// [`Locks::adopt`](crate::Locks::adopt). With the feature `serde` it can be sent there.
///
/// Nobody renews the lock meanwhile: it ends with what was left of its lease. Whoever has the token can adopt, once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HandedOff {
    /// What it is on each master.
    kind: LockKind,
    part: Part,
    /// As they were given; whoever adopts maps them.
    names: Vec<Vec<u8>>,
    /// What each master calls the hold; the first number says which master, the second is 1 for a lock of one master.
    holders: Vec<(usize, String)>,
    /// Over how many masters a quorum lock is.
    masters: Option<usize>,
    fencing_token: Option<u64>,
    /// Whether it was renewed; else it ends when its lease time does.
    renewed: bool,
    lease_ms: u64,
    /// What was left of the lease, and of the longest hold if there is one.
    remaining_ms: u64,
    max_hold_ms: Option<u64>,
    /// When it was handed off, on the clock of this boot of this machine.
    at_ns: u64,
    boot: Option<String>,
}

impl HandedOff {
    /// What becomes of these parts of one lease, which are held on `masters` if it is a quorum lock.
    pub(crate) fn of(parts: &[(usize, Arc<Hold>)], renewed: bool, remaining: Duration, masters: Option<usize>) -> Self {
        let (hold, now) = (&parts[0].1, clock::now());
        let ends = parts.iter().map(|(_, hold)| hold.ends()).min().unwrap_or(Moment::NEVER);
        HandedOff {
            kind: hold.mode.kind(),
            part: hold.mode.part(),
            names: hold.mode.names().iter().map(|name| name.as_bytes().to_vec()).collect(),
            holders: parts
                .iter()
                .map(|(index, hold)| (*index, hold.holder.to_string()))
                .collect(),
            masters,
            fencing_token: hold.fencing_token(),
            renewed,
            lease_ms: lease_millis(hold.timings.lease),
            remaining_ms: remaining.as_millis() as u64,
            max_hold_ms: (ends != Moment::NEVER).then(|| ends.since(now).as_millis() as u64),
            at_ns: now.as_nanos(),
            boot: clock::boot(),
        }
    }

    /// Which kind of lock it is.
    pub fn kind(&self) -> LockKind {
        match self.masters {
            None => self.kind,
            Some(_) => LockKind::Quorum,
        }
    }

    /// The lock's names: one, but for a multi lock.
    pub fn names(&self) -> impl Iterator<Item = LockName> {
        self.names.iter().map(|name| LockName::from(&name[..]))
    }

    /// Redis' name for the hold, by which an operator finds it; whoever adopts it has another.
    pub fn holder(&self) -> &str {
        self.holders.first().map_or("", |(_, holder)| holder)
    }

    /// The fencing token, which stays the same; only the `fenced` kind has one.
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }

    /// How long it can still be adopted, at least. On another machine than the one where it was handed off, less the time on the way:
    /// the clocks of two machines do not compare, so that is not known here.
    pub fn remaining(&self) -> Duration {
        self.rest(self.remaining_ms, clock::now())
    }

    /// How many masters have the hold of a quorum lock.
    pub(crate) fn masters(&self) -> Option<usize> {
        self.masters
    }

    pub(crate) fn holders(&self) -> &[(usize, String)] {
        &self.holders
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self.names().map(|name| name.to_string()).collect();
        names.join(", ")
    }

    /// What is left by now of so much at the hand-off.
    fn rest(&self, at_hand_off_ms: u64, now: Moment) -> Duration {
        let here = self.boot.is_some() && self.boot == clock::boot();
        let gone = now.since(Moment::from_nanos(self.at_ns));
        Duration::from_millis(at_hand_off_ms).saturating_sub(if here { gone } else { Duration::ZERO })
    }

    /// The lock on one of its masters.
    pub(crate) fn node(&self, client: &Arc<Client>) -> Result<Node, AdoptError> {
        let names: Vec<LockName> = self.names().map(|name| client.named(name)).collect();
        let mode: Arc<dyn Mode> = match (self.kind, self.part, &names[..]) {
            (LockKind::Reentrant, Part::Whole, [name]) => Arc::new(Reentrant::new(name.clone())),
            (LockKind::Fair, Part::Whole, [name]) => Arc::new(Fair::new(name.clone(), client.fair_wait_time)),
            (LockKind::ReadWrite, Part::Read, [name]) => Arc::new(Read::new(name.clone(), false)),
            (LockKind::ReadWrite, Part::Write, [name]) => Arc::new(Write::new(name.clone(), false)),
            (LockKind::Spin, Part::Whole, [name]) => Arc::new(Spin::new(name.clone())),
            (LockKind::Fenced, Part::Whole, [name]) => Arc::new(Fenced::new(name.clone())),
            (LockKind::Multi, Part::Whole, _) => Arc::new(Multi::new(names)),
            _ => return Err(AdoptError::Malformed),
        };
        match mode.name().is_empty() {
            true => Err(AdoptError::Malformed),
            false => Ok(Node {
                client: client.clone(),
                mode,
            }),
        }
    }
}

/// Takes a hold over that this master calls `from`.
pub(crate) async fn adopt(
    node: Node,
    handed_off: &HandedOff,
    from: &str,
    owner: Option<&Owner>,
) -> Result<Single, AdoptError> {
    let Node { client, mode } = node;
    let name = || mode.name().to_string();
    if client.is_closed() {
        return Err(AdoptError::Closed { name: name() });
    }
    let timings = match handed_off.renewed {
        true => Timings::renewed(&client.policy, client.watchdog_time)?,
        false => Timings::fixed(&client.policy, handed_off.lease())?,
    };
    let terms = Terms {
        wait_limit: None,
        timings,
        renewed: handed_off.renewed,
        max_hold: None,
        owner: owner.cloned(),
        reentry: true,
        queue_position: None,
    };
    let mut adopting = Adopting {
        hold: Arc::new(Hold::new(client.clone(), mode.clone(), &terms)),
        unsettled: false,
    };
    let from = HolderId::of(from);
    let (sent, left) = match adopting.ask(handed_off, &from).await {
        // Harmless when repeated: if it ran, the hold has our id already.
        (_, Err(error)) if error.outcome_unknown() => adopting.ask(handed_off, &from).await,
        answered => answered,
    };
    let left = left.map_err(|source| AdoptError::Call {
        name: name(),
        outcome_unknown: adopting.unsettled,
        source,
    })?;
    let Some(left) = left else {
        return Err(AdoptError::Gone { name: name() });
    };
    adopting.begin(handed_off, sent, left, owner)
}

/// An adoption under way. Dropped without a lease, it gives back what it may have adopted.
struct Adopting {
    hold: Arc<Hold>,
    /// A request was sent whose outcome is not known, or is of no use.
    unsettled: bool,
}

impl Adopting {
    /// Asks Redis: when the request left, and what is left of the hold; `None` if it is not there.
    async fn ask(&mut self, handed_off: &HandedOff, from: &HolderId) -> (Moment, Result<Option<Duration>, CallError>) {
        let hold = &self.hold;
        let was_unsettled = std::mem::replace(&mut self.unsettled, true);
        let sent = clock::now();
        let lease = match (handed_off.renewed, handed_off.max_hold_ms) {
            (true, Some(max_hold)) => hold.timings.lease.min(handed_off.rest(max_hold, sent)),
            (true, None) => hold.timings.lease,
            (false, _) => Duration::ZERO,
        };
        let call = call(&*hold.mode, from, &hold.holder, lease);
        let result = hold.client.connection.run(&call, None).await;
        let left = result.and_then(|answer| match &answer {
            redis::Value::Array(parts) => match parts.as_slice() {
                [redis::Value::Int(1), redis::Value::Int(left)] => {
                    Ok(Some(Duration::from_millis((*left).max(0) as u64)))
                }
                [redis::Value::Int(-1), redis::Value::Int(_)] => Ok(None),
                _ => Err(nonsense(call.text.name, &answer)),
            },
            _ => Err(nonsense(call.text.name, &answer)),
        });
        match &left {
            Ok(left) => self.unsettled = left.is_some(),
            Err(CallError::Unanswered { .. } | CallError::Nonsense { .. }) => {}
            // Not executed, which says nothing of an earlier request.
            Err(_) => self.unsettled = was_unsettled,
        }
        (sent, left)
    }

    /// The lease of an adopted hold, of which Redis had so much left.
    fn begin(
        mut self,
        handed_off: &HandedOff,
        sent: Moment,
        left: Duration,
        owner: Option<&Owner>,
    ) -> Result<Single, AdoptError> {
        let (hold, renewed) = (&self.hold, handed_off.renewed);
        if hold.client.is_closed() {
            return Err(AdoptError::Closed {
                name: hold.mode.name().to_string(),
            });
        }
        let timings = match renewed {
            true => hold.timings,
            // It ends when it would have.
            false => hold.timings.with_lease(left)?,
        };
        let ends = match handed_off.max_hold_ms {
            // From before the request left, as everything that Redis keeps.
            Some(max_hold) => sent.plus(handed_off.rest(max_hold, sent)),
            None => Moment::NEVER,
        };
        let renewal = Renewal::new(timings, renewed, sent, ends, fastrand::f64());
        if clock::now() >= renewal.trusted_until() {
            return Err(AdoptError::TooLate {
                name: hold.mode.name().to_string(),
                took: clock::now().since(sent),
            });
        }
        self.unsettled = false;
        hold.set_fencing_token(handed_off.fencing_token);
        hold.outlasts(left);
        // The first lease of a new hold: it cannot be closed yet.
        hold.join(renewed, timings);
        if ends != Moment::NEVER {
            hold.set_ends(ends);
        }
        hold.trust(renewal.trusted_until());
        if let Some(owner) = owner {
            owner.place(&hold.client.ids, &*hold.mode).set(hold);
        }
        hold.client.watchdog.watch(hold.clone(), renewal);
        Ok(Single::new(hold.clone(), renewed, 1))
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        if self.unsettled {
            drop(Release::new(self.hold.clone()));
        }
    }
}

/// The call that gives a hold another id, on every lock that it is of.
fn call(mode: &dyn Mode, from: &HolderId, to: &HolderId, lease: Duration) -> Call {
    let (old, new) = (mode.renewal(from, 1), mode.renewal(to, 1));
    let locks: Vec<_> = old
        .iter()
        .zip(&new)
        .map(|(old, new)| {
            let beside = old.hold_keys.iter().chain(&new.hold_keys);
            let keys: Vec<&[u8]> = std::iter::once(old.key.key())
                .chain(beside.map(Vec::as_slice))
                .collect();
            let args = vec![
                Value::Bytes(&old.field),
                Value::Bytes(&new.field),
                Value::Number((old.hold_keys.len() + new.hold_keys.len()) as u64),
            ];
            (keys, args)
        })
        .collect();
    ADOPT.call([], [Value::Number(lease.as_millis() as u64)], &locks)
}
