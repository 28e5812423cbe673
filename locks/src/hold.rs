//! One hold: what the leases of one outermost acquire share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Moment;
use crate::lease::{LeaseState, LostReason};
use crate::locks::Client;
use crate::mode::{Mode, Wake};
use crate::options::{Terms, lease_millis};
use crate::owner::{HolderId, Owner, lock};
use crate::policy::Timings;
use crate::release::Outcome;
use crate::renewal::Event;

/// One hold: from the outermost acquire of an owner to its last release. Its leases share it.
pub(crate) struct Hold {
    pub(crate) client: Arc<Client>,
    pub(crate) mode: Arc<dyn Mode>,
    pub(crate) holder: HolderId,
    /// Whether the policy ever tells the holder anything.
    pub(crate) is_told: bool,
    /// The policy's times for it.
    pub(crate) timings: Timings,
    /// The longest lease that Redis was asked for, in milliseconds.
    longest_lease_ms: AtomicU64,
    /// When its longest hold is over.
    ends: OnceLock<Moment>,
    /// The operations of one holder id go one after the other, and know how the last one ended.
    pub(crate) turn: tokio::sync::Mutex<Turn>,
    trusted_until: AtomicU64,
    /// Of the first acquire; kept through re-entry.
    fencing_token: OnceLock<u64>,
    owner: OnceLock<Owner>,
    /// An attempt of it may still be on its way when it has been given back.
    in_doubt: AtomicBool,
    /// What the leases are called of which this is one master's part.
    known_as: OnceLock<HolderId>,
    inner: Mutex<Inner>,
}

/// What the operations of one hold need to know of each other.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// How the hold ended in Redis; nothing of it is sent any more.
    pub(crate) ended: Option<Outcome>,
    /// Redis was told to give the lock back, and has not answered.
    pub(crate) told_to_free: bool,
}

struct Inner {
    state: LeaseState,
    leases: u32,
    /// There were several at once, so Redis may know of more than there are.
    reentered: bool,
    /// The last lease is gone: no further acquire joins this hold.
    closed: bool,
    /// Its leases count no more.
    abandoned: bool,
    /// Of these, how many want renewal.
    renewed: u32,
    /// Made when somebody asks for it.
    states: Option<watch::Sender<LeaseState>>,
}

impl Hold {
    pub(crate) fn new(client: Arc<Client>, mode: Arc<dyn Mode>, terms: &Terms) -> Self {
        let timings = terms.timings;
        Hold {
            holder: mode.holder(&client.ids, terms.wait_limit),
            client,
            mode,
            is_told: timings.is_told(),
            timings,
            longest_lease_ms: AtomicU64::new(lease_millis(timings.lease)),
            ends: OnceLock::new(),
            turn: tokio::sync::Mutex::default(),
            trusted_until: AtomicU64::new(0),
            fencing_token: OnceLock::new(),
            owner: terms.owner.clone().map_or_else(OnceLock::new, OnceLock::from),
            in_doubt: AtomicBool::new(false),
            known_as: OnceLock::new(),
            inner: Mutex::new(Inner {
                state: LeaseState::Held,
                leases: 0,
                reentered: false,
                closed: false,
                abandoned: false,
                renewed: 0,
                states: None,
            }),
        }
    }

    pub(crate) fn set_fencing_token(&self, token: Option<u64>) {
        if let Some(token) = token {
            // Set once: only the outermost acquire brings one.
            let _ = self.fencing_token.set(token);
        }
    }

    pub(crate) fn fencing_token(&self) -> Option<u64> {
        self.fencing_token.get().copied()
    }

    /// The name of the whole of which this is one master's part, if it has one.
    pub(crate) fn known_as(&self) -> Option<&HolderId> {
        self.known_as.get()
    }

    pub(crate) fn set_known_as(&self, whole: &HolderId) {
        // Set once: whoever enters again keeps the name.
        let _ = self.known_as.set(whole.clone());
    }

    pub(crate) fn state(&self) -> LeaseState {
        lock(&self.inner).state.clone()
    }

    /// An attempt got no answer: where lost links cannot be ended, it may run late.
    pub(crate) fn doubt(&self) {
        if !self.client.connection.is_fenced() {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// The hold ends then, however well its renewal goes.
    pub(crate) fn set_ends(&self, ends: Moment) {
        // Set once: only the outermost acquire has a limit.
        let _ = self.ends.set(ends);
    }

    /// When its longest hold is over; `NEVER` without a limit.
    pub(crate) fn ends(&self) -> Moment {
        self.ends.get().copied().unwrap_or(Moment::NEVER)
    }

    /// No lease is trusted longer than this.
    pub(crate) fn trusted_at_most(&self) -> Moment {
        match self.ends() {
            Moment::NEVER => Moment::NEVER,
            ends => ends.minus(self.timings.margin),
        }
    }

    /// A lease asked for now, cut at the longest hold.
    pub(crate) fn within_limit(&self, lease: Duration, now: Moment) -> Duration {
        lease.min(self.ends().since(now))
    }

    /// Redis may keep the hold for this long without renewal.
    pub(crate) fn outlasts(&self, lease: Duration) {
        self.longest_lease_ms.fetch_max(lease_millis(lease), Ordering::Relaxed);
    }

    /// How long Redis may keep the hold without renewal.
    pub(crate) fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease_ms.load(Ordering::Relaxed))
    }

    /// How many leases are alive: the count that belongs in Redis.
    pub(crate) fn leases(&self) -> u32 {
        let inner = lock(&self.inner);
        if inner.abandoned { 0 } else { inner.leases }
    }

    /// Whether its owner has more of this lock than one lease: another of this hold, or the half that may stand beside it.
    pub(crate) fn has_company(&self) -> bool {
        let other = self.mode.stands_beside().or(self.mode.waits_for());
        let beside = other.and_then(|part| self.owner.get()?.hold_of_part(&self.client.ids, &*self.mode, part));
        self.leases() > 1 || beside.is_some()
    }

    /// The hold is given back whatever leases are alive.
    pub(crate) fn abandon(&self) {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        inner.abandoned = true;
    }

    /// Whether Redis may count more leases than there are.
    pub(crate) fn was_reentered(&self) -> bool {
        lock(&self.inner).reentered
    }

    /// One lease more, renewed if it comes with no lease time of its own. Not once the last one has gone: `false`.
    pub(crate) fn join(&self, renewed: bool, timings: Timings) -> bool {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return false;
        }
        inner.leases += 1;
        inner.reentered |= inner.leases > 1;
        inner.renewed += u32::from(renewed);
        if renewed && inner.renewed == 1 && inner.leases > 1 {
            self.client.watchdog.tell(&self.holder, Event::Attend(timings));
        }
        true
    }

    /// One lease less; the last one ends the hold here, before Redis is told.
    pub(crate) fn leave(&self, renewed: bool) {
        let mut inner = lock(&self.inner);
        inner.leases -= 1;
        inner.renewed -= u32::from(renewed);
        if inner.leases == 0 {
            inner.closed = true;
            self.trusted_until.store(0, Ordering::Release);
            if !matches!(inner.state, LeaseState::Lost(_)) {
                inner.change(LeaseState::Released);
            }
            self.client.watchdog.tell(&self.holder, Event::LetGo);
        } else if renewed && inner.renewed == 0 {
            self.client.watchdog.tell(&self.holder, Event::Unattend);
        }
    }

    /// Whether a further acquire of the owner belongs to this hold.
    pub(crate) fn is_open(&self) -> bool {
        !lock(&self.inner).closed
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match lock(&self.inner).state {
            LeaseState::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn trusted_until(&self) -> Moment {
        Moment::from_nanos(self.trusted_until.load(Ordering::Acquire))
    }

    /// The lease is to be trusted until then; says nothing once it was lost or released.
    pub(crate) fn trust(&self, until: Moment) {
        let inner = lock(&self.inner);
        if matches!(inner.state, LeaseState::Held | LeaseState::AtRisk { .. }) && inner.leases > 0 {
            self.trusted_until.fetch_max(until.as_nanos(), Ordering::AcqRel);
        }
    }

    /// The state changes, unless it is Lost or Released: those are final. Says whether it is what it was told to be.
    pub(crate) fn tell(&self, state: LeaseState) -> bool {
        let mut inner = lock(&self.inner);
        if matches!(inner.state, LeaseState::Lost(_) | LeaseState::Released) {
            return inner.state == state;
        }
        if matches!(state, LeaseState::Lost(_)) {
            self.trusted_until.store(0, Ordering::Release);
        }
        inner.change(state);
        true
    }

    /// A release was heard by so many subscribers. If some are not of this client, they come first.
    pub(crate) fn let_others_know(&self, heard: u32) {
        let Wake::Channel(channel) = self.mode.wake(&self.holder, 0) else {
            return;
        };
        if self.mode.queues() {
            return;
        };
        let own = u32::from(self.client.wakeups.hears(&channel));
        if heard > own {
            self.client.queues.hold_back(self.mode.name(), self.mode.part());
        }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<LeaseState> {
        let mut inner = lock(&self.inner);
        let state = inner.state.clone();
        inner
            .states
            .get_or_insert_with(|| watch::Sender::new(state))
            .subscribe()
    }

    pub(crate) fn owner(self: &Arc<Self>) -> &Owner {
        self.owner.get_or_init(|| {
            let owner = Owner::new();
            owner.place(&self.client.ids, &*self.mode).set(self);
            owner
        })
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", self.mode.name())
            .field("holder", &self.holder)
            .field("state", &self.state())
            .finish()
    }
}

impl Inner {
    fn change(&mut self, state: LeaseState) {
        if let Some(states) = &self.states {
            states.send_replace(state.clone());
        }
        self.state = state;
    }
}
