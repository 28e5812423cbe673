//! The watchdog: one thread with a runtime and links of its own, which renews the holds of a client and watches their deadlines.
//!
//! It drives the state machine of [`crate::renewal`] and decides nothing itself. Being apart from the user's runtime, it is not
//! held up by blocking code there. The releases that nobody waits for run here too.

mod mailbox;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mailbox::{Command, Mailbox};
use tokio::sync::{mpsc, oneshot};

use crate::clock::{self, Moment};
use crate::events::{EventKind, Telling};
use crate::hold::Hold;
use crate::lease::{LeaseState, LostReason};
use crate::link::Address;
use crate::owner::HolderId;
use crate::release::Release;
use crate::renewal::{Action, Attempt, Event, Renewal};
use crate::renewal_batch::{Batch, MOST_IN_A_BATCH};
use crate::renewal_links::{Links, Outcome};

/// The client's end of the watchdog. The thread ends when it is gone.
pub(crate) struct Watchdog {
    mailbox: Arc<Mailbox<Arc<Hold>>>,
}

impl Watchdog {
    /// Starts the thread; `releases` runs beside the renewals.
    pub(crate) fn start(
        address: Address,
        telling: Arc<Telling>,
        releases: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new());
        let received = mailbox.clone();
        let (started, starting) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("leasehold-watchdog".into())
            .spawn(move || {
                // Built here: a runtime must not be dropped where another one runs.
                let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let _ = started.send(Ok(()));
                runtime.block_on(async move {
                    let releases = tokio::spawn(releases);
                    Loop::new(address, telling, received).run().await;
                    // The client is gone, so nothing new can come; what is under way ends first.
                    let _ = releases.await;
                });
            })?;
        // Sent as the first thing that the thread does.
        starting.recv().map_err(std::io::Error::other)??;
        Ok(Watchdog { mailbox })
    }

    /// How many holds are watched.
    pub(crate) fn len(&self) -> usize {
        self.mailbox.len()
    }

    /// Watches a hold from now on.
    pub(crate) fn watch(&self, hold: Arc<Hold>, renewal: Renewal) {
        self.mailbox.watch(hold.holder.clone(), hold, renewal);
    }

    /// Tells what happened to a hold.
    pub(crate) fn tell(&self, holder: &HolderId, event: Event) {
        self.mailbox.tell(holder, event);
    }

    /// A lease of the hold was dropped instead of released.
    pub(crate) fn dropped(&self, hold: Arc<Hold>) {
        self.mailbox.push(Command::Dropped(hold));
    }

    /// Ends every hold: the client is being shut down. What is held is given back, or left to its lease. Resolves when every
    /// holder was told.
    pub(crate) fn close(&self, releasing: bool) -> impl Future<Output = ()> + use<> {
        let (done, closed) = oneshot::channel();
        self.mailbox.push(Command::Close { releasing, done });
        async move {
            // Ended by a bug of its thread it holds nothing either.
            let _ = closed.await;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.mailbox.end();
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("holds", &self.len()).finish()
    }
}

struct Entry {
    hold: Arc<Hold>,
    renewal: Renewal,
    wakes: Moment,
    /// The link of the newest attempt.
    link: u64,
}

struct Loop {
    entries: HashMap<HolderId, Entry>,
    /// Who wants to be woken when.
    timers: BTreeSet<(Moment, HolderId)>,
    links: Links,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    outbox: Vec<(Arc<Hold>, Attempt)>,
    /// Before that the timers are not looked at again.
    next_look: Moment,
    /// When the holds whose renewal has failed try again, all in one batch.
    together: Moment,
    telling: Arc<Telling>,
    mailbox: Arc<Mailbox<Arc<Hold>>>,
    /// The client was shut down; says whether what is held is given back.
    closed: Option<bool>,
}

impl Loop {
    fn new(address: Address, telling: Arc<Telling>, mailbox: Arc<Mailbox<Arc<Hold>>>) -> Self {
        let (sender, outcomes) = mpsc::unbounded_channel();
        Loop {
            entries: HashMap::new(),
            timers: BTreeSet::new(),
            links: Links::new(address, sender),
            outcomes,
            outbox: Vec::new(),
            next_look: Moment::PAST,
            together: Moment::PAST,
            telling,
            mailbox,
            closed: None,
        }
    }

    async fn run(mut self) {
        let mailbox = self.mailbox.clone();
        loop {
            let wakes = self.next_wake();
            if mailbox.sleeps(wakes, self.entries.len()) {
                tokio::select! {
                    biased;
                    Some(outcome) = self.outcomes.recv() => self.settle(outcome),
                    () = mailbox.woken() => {}
                    () = tokio::time::sleep(wakes.since(clock::now())) => {}
                }
            } else {
                // Renewals under way share this thread.
                tokio::task::yield_now().await;
            }
            // Whatever else has come meanwhile is dealt with before anything is sent, so that it shares a batch.
            while let Ok(outcome) = self.outcomes.try_recv() {
                self.settle(outcome);
            }
            let Some(mail) = mailbox.take() else {
                return;
            };
            if mail.first {
                self.links.warm_up();
            }
            for (hold, renewal) in mail.new.into_values() {
                self.watch(hold, renewal);
            }
            for command in mail.commands {
                self.obey(command);
            }
            self.wake_due();
            self.send();
        }
    }

    fn next_wake(&self) -> Moment {
        let next = self
            .timers
            .first()
            .map_or(Moment::NEVER, |(at, _)| *at)
            .max(self.next_look);
        // Timers stop while the machine sleeps and the boot-time clock does not: look at it now and then.
        next.min(clock::now().plus(LONGEST_SLEEP))
    }

    fn watch(&mut self, hold: Arc<Hold>, renewal: Renewal) {
        let entry = Entry {
            wakes: renewal.wakes(),
            hold: hold.clone(),
            renewal,
            link: 0,
        };
        self.timers.insert((entry.wakes, hold.holder.clone()));
        self.entries.insert(hold.holder.clone(), entry);
        match self.closed {
            None => self.links.warm_up(),
            // It was granted just before.
            Some(releasing) => self.end(hold, releasing),
        }
    }

    fn obey(&mut self, command: Command<Arc<Hold>>) {
        match command {
            Command::Tell(holder, event) => self.step(&holder, event),
            Command::Dropped(hold) => self.telling.tell(&hold, clock::now(), EventKind::Dropped),
            Command::Close { releasing, done } => {
                let held: Vec<Arc<Hold>> = self.entries.values().map(|entry| entry.hold.clone()).collect();
                self.closed = Some(releasing);
                for hold in held {
                    self.end(hold, releasing);
                }
                // Whoever waited for it may have left.
                let _ = done.send(());
            }
        }
    }

    /// The client is shut down.
    fn end(&mut self, hold: Arc<Hold>, releasing: bool) {
        // The holder first.
        self.step(&hold.holder, Event::End(LostReason::ClientClosed));
        if releasing {
            hold.abandon();
            self.step(&hold.holder, Event::LetGo);
            drop(Release::new(hold));
        }
    }

    fn wake_due(&mut self) {
        let now = clock::now();
        if now < self.next_look || self.timers.first().is_none_or(|(at, _)| *at > now) {
            return;
        }
        self.next_look = now.plus(BETWEEN_LOOKS);
        while let Some((at, holder)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            // One moment for all, taken before any of them leaves: a batch is one command, and has one stamp.
            self.step_at(&holder, Event::Due, now);
            // A step that left its timer where it was would be woken for ever.
            if self.timers.first() == Some(&(at, holder)) {
                self.timers.pop_first();
            }
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        self.links.heard(&outcome);
        for ((holder, number), answer) in outcome.attempts.into_iter().zip(outcome.answers) {
            self.step(&holder, Event::Answered { number, answer });
        }
    }

    fn step(&mut self, holder: &HolderId, event: Event) {
        self.step_at(holder, event, clock::now());
    }

    fn step_at(&mut self, holder: &HolderId, event: Event, now: Moment) {
        let Some(entry) = self.entries.get_mut(holder) else {
            return;
        };
        let timed_out = event == Event::Due;
        let mut actions = Vec::new();
        entry.renewal.step(event, now, fastrand::f64(), &mut actions);
        // Whose renewal has just failed tries again with the others: a sick server hears one batch a pause, however many are held.
        if let Some(at) = entry.renewal.tries_again().filter(|at| *at != entry.wakes) {
            if self.together > now {
                let event = Event::TryTogether(self.together);
                entry.renewal.step(event, now, fastrand::f64(), &mut actions);
            } else {
                self.together = at;
            }
        }
        let wakes = entry.renewal.wakes();
        if wakes != entry.wakes {
            self.timers.remove(&(entry.wakes, holder.clone()));
            if wakes != Moment::NEVER {
                self.timers.insert((wakes, holder.clone()));
            }
            entry.wakes = wakes;
        }
        for action in actions {
            self.act(holder, action, now, timed_out);
        }
    }

    fn act(&mut self, holder: &HolderId, action: Action, now: Moment, timed_out: bool) {
        let Some(entry) = self.entries.get_mut(holder) else {
            return;
        };
        let hold = entry.hold.clone();
        match action {
            Action::Send(attempt) => self.outbox.push((hold, attempt)),
            Action::Trust(until) => hold.trust(until),
            Action::Tell(state) => {
                let kind = match &state {
                    LeaseState::AtRisk { cause, .. } => Some(EventKind::AtRisk { cause: cause.clone() }),
                    LeaseState::Lost(reason) => Some(EventKind::Lost { reason: *reason }),
                    _ => None,
                };
                // A loss that a re-entry found out is told already, and reported here all the same.
                if hold.tell(state)
                    && let Some(kind) = kind
                {
                    if let EventKind::Lost { reason } = &kind {
                        tracing::warn!(name = %hold.mode.name(), holder = %hold.holder, %reason, "lease lost");
                    }
                    self.telling.tell(&hold, now, kind);
                }
            }
            Action::Recovered => self.telling.tell(&hold, now, EventKind::Recovered),
            Action::Failed { sent, cause } => {
                if timed_out {
                    self.links.suspect(entry.link);
                }
                tracing::debug!(name = %hold.mode.name(), holder = %hold.holder, ?cause, "renewal failed");
                self.telling.tell(&hold, now, EventKind::RenewalFailed { sent, cause });
            }
            Action::Renewed { sent } => self.telling.tell(&hold, now, EventKind::Renewed { sent }),
            Action::RenewedLate { left } => self.telling.tell(&hold, now, EventKind::RenewedLate { left }),
            Action::CleanUp => drop(Release::new(hold)),
            Action::Forget => {
                self.timers.remove(&(entry.wakes, holder.clone()));
                self.entries.remove(holder);
            }
        }
    }

    /// Sends what is due, in batches of one kind each.
    fn send(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        let mut outbox = std::mem::take(&mut self.outbox);
        let kind = |(_, attempt): &(Arc<Hold>, Attempt)| (attempt.lease, attempt.waits);
        outbox.sort_by_key(kind);
        let link = self.links.pick(outbox[0].1.lease);
        for (hold, _) in &outbox {
            if let Some(entry) = self.entries.get_mut(&hold.holder) {
                entry.link = link;
            }
        }
        for alike in outbox.chunk_by(|one, other| kind(one) == kind(other)) {
            let (lease, waits) = kind(&alike[0]);
            let last = alike.iter().map(|(_, attempt)| attempt.until).max();
            let until = last.unwrap_or(Moment::NEVER);
            let batch_of = |due| Batch {
                due,
                lease,
                until,
                waits,
            };
            let (mut batch, mut weight) = (Vec::new(), 0);
            for (hold, attempt) in alike {
                let named = hold.mode.renewal(&hold.holder, hold.leases());
                let more: usize = named.iter().map(|renewable| 1 + renewable.hold_keys.len()).sum();
                if !batch.is_empty() && (weight + more > MOST_IN_A_BATCH || self.links.minds_slots()) {
                    self.links.send(batch_of(std::mem::take(&mut batch)));
                    weight = 0;
                }
                weight += more;
                batch.push((hold.holder.clone(), attempt.number, named));
            }
            self.links.send(batch_of(batch));
        }
    }
}

impl Drop for Loop {
    /// Empty when the client is gone. If the thread dies of a bug, the holders must not go on believing.
    fn drop(&mut self) {
        let unread = self.mailbox.abandon();
        let seen = self.entries.values().map(|entry| &entry.hold);
        for hold in seen.chain(unread.values().map(|(hold, _)| hold)) {
            tracing::error!(name = %hold.mode.name(), "the watchdog has ended while a lock is held");
            hold.tell(LeaseState::Lost(LostReason::ClientClosed));
        }
    }
}

/// With thousands of holds some are due at every moment; so those of this time share a batch. A tenth of the least margin at most.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// After a suspend the deadlines are looked at again within this time.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
