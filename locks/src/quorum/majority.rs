//! A lease that a majority of masters holds.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Members;
use super::round::{Answer, Bid, LONGEST_BUDGET, Refusal, ask, try_acquire};
use crate::clock::{self, Moment};
use crate::error::{DowngradeError, ExtendError, HandOffError, ReleaseError};
use crate::hand_off::HandedOff;
use crate::hold::Hold;
use crate::keys::LockName;
use crate::lease::{Lease, LeaseState, LostReason, Released, Single};
use crate::options::AcquireOptions;
use crate::owner::{HolderId, Owner, lock};
use crate::target::Target;

/// A lease on a majority of masters: valid while the leases of a majority are.
///
/// Each of them counts from before its own request and ends a margin early, which covers the drift of 1 % and 2 ms that RedLock
/// allows for. Dropped, all of them are given back in the background.
pub(crate) struct Majority {
    shared: Arc<Shared>,
}

struct Shared {
    members: Members,
    needed: usize,
    owner: Owner,
    /// What a master is asked that is missing.
    options: AcquireOptions,
    renewed: bool,
    is_told: bool,
    /// When its longest hold is over.
    ends: Moment,
    holder: HolderId,
    attempts: u32,
    held: Mutex<Vec<(usize, Single)>>,
    state: watch::Sender<LeaseState>,
    /// The state of a member has changed, or the lease is gone.
    news: Arc<Notify>,
}

impl Majority {
    /// `granted` are a majority and `asked` the answers that are still to come.
    pub(super) fn new(bid: &Bid, granted: Vec<(usize, Single)>, asked: JoinSet<Answer>) -> Self {
        let first = granted[0].1.hold().clone();
        // Two majorities share a master, so whoever enters again finds the name.
        let known = granted.iter().find_map(|(_, lease)| lease.hold().known_as().cloned());
        let shared = Arc::new(Shared {
            needed: bid.members.majority(),
            members: bid.members.clone(),
            owner: bid.owner.clone(),
            options: bid.options.clone(),
            renewed: bid.renewed,
            is_told: first.is_told,
            ends: granted
                .iter()
                .map(|(_, lease)| lease.hold().ends())
                .min()
                .unwrap_or(Moment::NEVER),
            holder: known.unwrap_or_else(|| first.holder.clone()),
            attempts: bid.asked,
            held: Mutex::new(Vec::new()),
            state: watch::Sender::new(LeaseState::Held),
            news: Arc::default(),
        });
        for (index, lease) in granted {
            shared.put(&mut lock(&shared.held), index, lease);
        }
        // Ends with the lease.
        tokio::spawn(tend(Arc::downgrade(&shared), shared.news.clone(), asked));
        Majority { shared }
    }

    pub(crate) fn name(&self) -> &LockName {
        self.shared.members.name()
    }

    pub(crate) fn holder(&self) -> &HolderId {
        &self.shared.holder
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.shared.owner
    }

    pub(crate) fn target(&self) -> Target {
        Target::Several(self.shared.members.clone())
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.shared.attempts
    }

    pub(crate) fn is_told(&self) -> bool {
        self.shared.is_told
    }

    pub(crate) fn masters_held(&self) -> usize {
        valid(&lock(&self.shared.held))
    }

    /// What a majority agrees on.
    pub(crate) fn hold_count(&self) -> u32 {
        self.by_majority(|lease| lease.hold().leases())
    }

    pub(crate) fn is_valid(&self) -> bool {
        let held = lock(&self.shared.held);
        valid(&held) >= self.shared.needed && !is_final(&self.shared.state.borrow())
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.is_valid() {
            true => self.by_majority(Single::remaining),
            false => Duration::ZERO,
        }
    }

    pub(crate) fn state(&self) -> LeaseState {
        self.shared.look();
        self.shared.state.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<LeaseState> {
        self.shared.look();
        self.shared.state.subscribe()
    }

    /// See `Lease::extend`. The masters that a majority does not need go on in the background.
    pub(crate) async fn extend(&self, time: Duration) -> Result<(), ExtendError> {
        let mut asked = JoinSet::new();
        for hold in self.holds() {
            asked.spawn(async move { hold.extend(time).await });
        }
        let (mut extended, mut failure) = (0, None);
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(())) => extended += 1,
                Ok(Err(error @ ExtendError::Times(_))) => return Err(error),
                // That one may be lost changes nothing while the others are a majority.
                Ok(Err(error @ ExtendError::Call { .. })) => failure = Some(error),
                Ok(Err(_)) | Err(_) => {}
            }
            if extended >= self.shared.needed {
                asked.detach_all();
                return match self.lost_reason() {
                    None => Ok(()),
                    Some(reason) => Err(self.cannot_extend(reason)),
                };
            }
        }
        match (self.lost_reason(), failure) {
            (None, Some(failure)) => Err(failure),
            (reason, _) => Err(self.cannot_extend(reason.unwrap_or(LostReason::NotOwner))),
        }
    }

    fn cannot_extend(&self, reason: LostReason) -> ExtendError {
        ExtendError::Lost {
            name: self.name().to_string(),
            reason,
        }
    }

    /// See `Lease::downgrade`.
    pub(crate) async fn downgrade(self) -> Result<Lease, DowngradeError> {
        let name = self.name().to_string();
        let lost = |reason| DowngradeError::Lost { name, reason };
        let Some(read) = self.shared.members.downgraded() else {
            return Err(DowngradeError::NotAWriteLock {
                lease: Box::new(self.into()),
            });
        };
        if let Some(reason) = self.lost_reason() {
            return Err(lost(reason));
        }
        match try_acquire(read, self.shared.options_of_the_rest(self.remaining())).await {
            Ok(Some(read)) => match self.release().await {
                Err(ReleaseError::Lost { reason, .. }) => Err(lost(reason)),
                // What is not confirmed goes on in the background.
                Ok(_) | Err(_) => Ok(read.into()),
            },
            // Others have a majority, so this one has lost it.
            Ok(None) => Err(lost(LostReason::NotOwner)),
            Err(source) => Err(DowngradeError::Acquire {
                lease: Box::new(self.into()),
                source,
            }),
        }
    }

    /// See `Lease::release`. It is certain when a majority has confirmed; the others go on in the background.
    pub(crate) async fn release(self) -> Result<Released, ReleaseError> {
        let lost = self.lost_reason();
        let mut releases = JoinSet::new();
        for (_, lease) in self.shared.let_go() {
            releases.spawn(lease.release());
        }
        if let Some(reason) = lost {
            releases.detach_all();
            return Err(ReleaseError::Lost {
                name: self.name().to_string(),
                reason,
            });
        }
        let (mut confirmed, mut failures) = (Vec::new(), Vec::new());
        while let Some(released) = releases.join_next().await {
            match released {
                Ok(Ok(released)) => confirmed.push(released),
                Ok(Err(error)) => failures.push(error),
                Err(_) => {}
            }
            if confirmed.len() >= self.shared.needed {
                releases.detach_all();
                return Ok(together(&confirmed));
            }
        }
        // One that is not confirmed may yet be; one that was lost is certain.
        failures.sort_by_key(|failure| matches!(failure, ReleaseError::Lost { .. }));
        Err(failures.into_iter().next().unwrap_or_else(|| ReleaseError::Lost {
            name: self.name().to_string(),
            reason: LostReason::NotOwner,
        }))
    }

    /// See `Lease::hand_off`.
    pub(crate) async fn hand_off(self) -> Result<HandedOff, HandOffError> {
        let parts: Vec<(usize, Arc<Hold>)> = {
            let held = lock(&self.shared.held);
            let valid = held.iter().filter(|(_, lease)| lease.is_valid());
            valid.map(|(index, lease)| (*index, lease.hold().clone())).collect()
        };
        // Nobody enters again meanwhile, on any master.
        let mut turns = Vec::new();
        for (index, hold) in &parts {
            turns.push((*index, hold.turn.lock().await));
        }
        let lost = match self.lost_reason() {
            None if parts.len() < self.shared.needed => Some(LostReason::DeadlinePassed),
            other => other,
        };
        if let Some(reason) = lost {
            return Err(HandOffError::Lost {
                name: self.name().to_string(),
                reason,
            });
        }
        if parts.iter().any(|(_, hold)| hold.has_company()) {
            drop(turns);
            return Err(HandOffError::HeldAgain {
                lease: Box::new(self.into()),
            });
        }
        let mut lowering = JoinSet::new();
        for (_, hold) in parts.iter().filter(|(_, hold)| hold.was_reentered()) {
            let hold = hold.clone();
            lowering.spawn(async move { timeout(LONGEST_BUDGET, hold.lower_to_one()).await });
        }
        while lowering.join_next().await.is_some() {}
        let masters = Some(self.shared.members.nodes.len());
        let handed_off = HandedOff::of(&parts, self.shared.renewed, self.remaining(), masters);
        for (index, lease) in self.shared.let_go() {
            // One that has joined since is not part of it, and is given back.
            if let Some((_, turn)) = turns.iter_mut().find(|(part, _)| *part == index) {
                lease.leave_behind(turn);
            }
        }
        Ok(handed_off)
    }

    fn lost_reason(&self) -> Option<LostReason> {
        match self.state() {
            LeaseState::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    fn holds(&self) -> Vec<Arc<Hold>> {
        lock(&self.shared.held)
            .iter()
            .map(|(_, lease)| lease.hold().clone())
            .collect()
    }

    /// The largest value that a majority reaches.
    fn by_majority<T: Ord + Default>(&self, value: impl Fn(&Single) -> T) -> T {
        let held = lock(&self.shared.held);
        let mut values: Vec<T> = held.iter().map(|(_, lease)| value(lease)).collect();
        values.sort_by(|one, other| other.cmp(one));
        values.into_iter().nth(self.shared.needed - 1).unwrap_or_default()
    }
}

impl Drop for Majority {
    fn drop(&mut self) {
        drop(self.shared.let_go());
    }
}

impl Shared {
    /// Recomputes the state from those of the members, and says whether it can still change.
    fn look(&self) -> bool {
        let held = lock(&self.held);
        let states: Vec<LeaseState> = held.iter().map(|(_, lease)| lease.hold().state()).collect();
        let count = |is: fn(&LeaseState) -> bool| states.iter().filter(|state| is(state)).count();
        let lost = count(|state| matches!(state, LeaseState::Lost(_)));
        let at_risk = count(|state| matches!(state, LeaseState::AtRisk { .. }));
        let worst = |is: fn(&LeaseState) -> bool| states.iter().find(|state| is(state)).cloned();
        let next = if states.len() - lost < self.needed {
            // Those that ended may have been taken out already, to be asked again.
            let ended = || Some(LeaseState::Lost(LostReason::DeadlinePassed));
            worst(|state| matches!(state, LeaseState::Lost(_))).or_else(ended)
        } else if states.len() - lost - at_risk < self.needed {
            worst(|state| matches!(state, LeaseState::AtRisk { .. }))
        } else {
            None
        };
        let next = next.unwrap_or(LeaseState::Held);
        self.state.send_if_modified(|state| {
            let changes = !is_final(state) && *state != next;
            if changes {
                *state = next;
            }
            changes
        });
        !is_final(&self.state.borrow())
    }

    fn put(&self, held: &mut Vec<(usize, Single)>, index: usize, lease: Single) {
        lease.hold().set_known_as(&self.holder);
        let (mut states, news) = (lease.hold().watch(), self.news.clone());
        tokio::spawn(async move {
            // Ends with the hold.
            while states.changed().await.is_ok() {
                news.notify_one();
            }
        });
        held.push((index, lease));
    }

    /// One more master holds the lock. Not once the majority was lost, which is final: then it is given back.
    fn add(&self, index: usize, lease: Single) {
        let mut held = lock(&self.held);
        if valid(&held) < self.needed || is_final(&self.state.borrow()) {
            drop(held);
            return drop(lease);
        }
        self.put(&mut held, index, lease);
    }

    /// Asks one master that is missing, once a majority has confirmed that it still has the hold. Else a master whose loss was noticed
    /// first would be taken anew although the others have lost it too, and nobody would learn that a majority was gone.
    async fn repair(self: Arc<Self>, index: usize, budget: Duration) -> Answer {
        let (needed, node) = (self.needed, self.members.nodes[index].clone());
        let options = self.options_of_the_rest(Duration::ZERO);
        let mut confirming = JoinSet::new();
        for (_, lease) in lock(&self.held).iter().filter(|(_, lease)| lease.is_valid()) {
            let hold = lease.hold().clone();
            confirming.spawn(async move { hold.extend(hold.timings.lease).await.is_ok() });
        }
        // The lease may go meanwhile.
        drop(self);
        let mut confirmed = 0;
        while confirmed < needed {
            match confirming.join_next().await {
                Some(Ok(true)) => confirmed += 1,
                Some(_) => {}
                None => {
                    let reason = "no majority has confirmed the others".to_owned();
                    let outcome_unknown = false;
                    return (
                        index,
                        Err(Refusal::Silent {
                            reason,
                            outcome_unknown,
                        }),
                    );
                }
            }
        }
        confirming.detach_all();
        ask(index, node, options, budget).await
    }

    /// The masters on which it is not held, as long as it is held on a majority. Leases that ended there make place.
    fn missing(&self) -> Vec<usize> {
        let mut held = lock(&self.held);
        if valid(&held) < self.needed {
            return Vec::new();
        }
        let ended: Vec<_> = held.extract_if(.., |(_, lease)| !lease.is_valid()).collect();
        let missing = (0..self.members.nodes.len()).filter(|index| held.iter().all(|(member, _)| member != index));
        let missing = missing.collect();
        drop(held);
        if !ended.is_empty() {
            // It may be less than a majority by now.
            self.news.notify_one();
        }
        drop(ended);
        missing
    }

    /// What an acquire is asked that is to last as long as this lease.
    fn options_of_the_rest(&self, remaining: Duration) -> AcquireOptions {
        let lease_time = (!self.renewed).then_some(remaining);
        let max_hold = (self.ends != Moment::NEVER).then(|| self.ends.since(clock::now()));
        self.options.clone().for_the_rest(lease_time, max_hold)
    }

    /// Ends the lease here: nothing joins it any more. Whoever calls gives back what was held.
    fn let_go(&self) -> Vec<(usize, Single)> {
        let mut held = lock(&self.held);
        self.state.send_if_modified(|state| {
            let changes = !is_final(state);
            if changes {
                *state = LeaseState::Released;
            }
            changes
        });
        self.news.notify_one();
        std::mem::take(&mut *held)
    }
}

/// Takes in the masters that answer later; then, for a renewed lease, asks those that are missing again, each third of the lease,
/// while a majority confirms that it stands: one that came back empty would otherwise be one on which somebody else can begin.
async fn tend(shared: Weak<Shared>, news: Arc<Notify>, mut asked: JoinSet<Answer>) {
    let Some((renewed, period)) = shared
        .upgrade()
        .map(|shared| (shared.renewed, shared.members.nodes[0].client.watchdog_time / 3))
    else {
        return;
    };
    let mut repair = tokio::time::interval(period);
    repair.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    repair.reset();
    loop {
        let answer = tokio::select! {
            answer = asked.join_next(), if !asked.is_empty() => answer,
            () = news.notified() => None,
            _ = repair.tick(), if renewed && asked.is_empty() => {
                let Some(shared) = shared.upgrade() else { return };
                for index in shared.missing() {
                    asked.spawn(shared.clone().repair(index, period));
                }
                None
            }
        };
        let Some(shared) = shared.upgrade() else { return };
        if let Some(Ok((index, Ok(lease)))) = answer {
            shared.add(index, lease);
        }
        if !shared.look() {
            return;
        }
    }
}

fn is_final(state: &LeaseState) -> bool {
    matches!(state, LeaseState::Lost(_) | LeaseState::Released)
}

fn valid(held: &[(usize, Single)]) -> usize {
    held.iter().filter(|(_, lease)| lease.is_valid()).count()
}

/// What the releases of a majority come to.
fn together(confirmed: &[Released]) -> Released {
    let left = confirmed.iter().filter_map(|released| match released {
        Released::StillHeld(left) => Some(*left),
        _ => None,
    });
    match left.max() {
        Some(left) => Released::StillHeld(left),
        None if confirmed.contains(&Released::Unconfirmed) => Released::Unconfirmed,
        None => Released::Fully,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_as_full_as_the_masters_say() {
        assert_eq!(together(&[Released::Fully, Released::Fully]), Released::Fully);
        let left = [Released::StillHeld(1), Released::Fully, Released::StillHeld(2)];
        assert_eq!(together(&left), Released::StillHeld(2));
        assert_eq!(
            together(&[Released::Fully, Released::Unconfirmed]),
            Released::Unconfirmed
        );
    }
}
