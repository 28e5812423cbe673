//! What the watchdog has not read yet, and whether it has to be woken for it.
//!
//! Most holds are given back long before their first renewal is due. Waking the watchdog's thread for each of them would cost two
//! changes of thread an acquire and two a release, so a new hold only wakes it if it is due before the thread looks again by itself,
//! and one that is let go before that is taken out as if it had never been there. Only the first of all wakes it in any case: a client
//! that locks gets its link for renewals at once.
//!
//! No wake-up is lost, since both sides decide under one lock: the watchdog says until when it sleeps only where nothing is unread
//! that it must act on sooner, and whoever puts something there sees either that time, or that the watchdog is awake and looks again
//! before it sleeps.
//!
//! It keeps nothing that has ended: a hold lies here only while it has leases, and everything else wakes the watchdog.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use foldhash::HashMap;
use tokio::sync::{Notify, oneshot};

use crate::clock::Moment;
use crate::owner::{HolderId, lock};
use crate::renewal::{Event, Renewal};

/// What the watchdog is told.
pub(super) enum Command<H> {
    Tell(HolderId, Event),
    /// A lease of it was dropped instead of released.
    Dropped(H),
    /// The client is shut down; what is held may be given back at once.
    Close {
        releasing: bool,
        done: oneshot::Sender<()>,
    },
}

/// New holds, in no order: what comes of one does not depend on the others.
pub(super) type New<H> = HashMap<HolderId, (H, Renewal)>;

/// What was unread: the holds first, since the commands may be about them.
pub(super) struct Mail<H> {
    pub(super) new: New<H>,
    pub(super) commands: Vec<Command<H>>,
    /// It is the first: a hold has come, though it may have gone again.
    pub(super) first: bool,
}

/// `H` is a hold.
pub(super) struct Mailbox<H> {
    state: Mutex<State<H>>,
    wake: Notify,
}

#[derive(PartialEq)]
enum First {
    Awaited,
    Unread,
    Read,
}

struct State<H> {
    new: New<H>,
    commands: Vec<Command<H>>,
    /// Until when the watchdog sleeps; `None` while it is awake, and looks here before it sleeps.
    sleeps_until: Option<Moment>,
    /// How many holds are in the watchdog's table.
    in_table: usize,
    /// How far the first hold of all has come.
    first: First,
    /// The client was shut down: what was granted just before ends at once.
    closed: bool,
    /// The client is gone, so nothing more comes.
    ended: bool,
    /// The watchdog is gone, so nothing more is read.
    unread_for_good: bool,
}

impl<H> Mailbox<H> {
    pub(super) fn new() -> Self {
        Mailbox {
            state: Mutex::new(State {
                new: New::default(),
                commands: Vec::new(),
                sleeps_until: None,
                in_table: 0,
                first: First::Awaited,
                closed: false,
                ended: false,
                unread_for_good: false,
            }),
            wake: Notify::new(),
        }
    }

    /// A new hold. The watchdog is woken only if it would look too late.
    pub(super) fn watch(&self, holder: HolderId, hold: H, renewal: Renewal) {
        let mut state = lock(&self.state);
        let too_late = state
            .sleeps_until
            .is_some_and(|until| renewal.wakes() < until.plus(AHEAD));
        let is_first = state.first == First::Awaited;
        if is_first {
            state.first = First::Unread;
        }
        let wakes = too_late || is_first || state.closed;
        if !state.unread_for_good {
            state.new.insert(holder, (hold, renewal));
        }
        self.unlock(state, wakes);
    }

    /// Something happened to a hold.
    pub(super) fn tell(&self, holder: &HolderId, event: Event) {
        if event == Event::LetGo {
            let unread = lock(&self.state).new.remove(holder);
            // Dropped here and not under the lock: with the last hold of a client its mailbox is ended.
            if unread.is_some() {
                return;
            }
        }
        self.push(Command::Tell(holder.clone(), event));
    }

    /// Something to act on at once.
    pub(super) fn push(&self, command: Command<H>) {
        let mut state = lock(&self.state);
        state.closed |= matches!(command, Command::Close { .. });
        if !state.unread_for_good {
            state.commands.push(command);
        }
        self.unlock(state, true);
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        self.unlock(state, true);
    }

    fn unlock(&self, mut state: MutexGuard<'_, State<H>>, wake: bool) {
        // One wake-up is enough until it has looked.
        let wake = wake && state.sleeps_until.take().is_some();
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }

    /// How many holds are watched.
    pub(super) fn len(&self) -> usize {
        let state = lock(&self.state);
        state.in_table + state.new.len()
    }

    /// Takes all that is unread; `None` when nothing more comes.
    pub(super) fn take(&self) -> Option<Mail<H>> {
        let mut state = lock(&self.state);
        state.sleeps_until = None;
        state.in_table += state.new.len();
        let first = state.first == First::Unread;
        if first {
            state.first = First::Read;
        }
        let mail = Mail {
            first,
            new: std::mem::take(&mut state.new),
            commands: std::mem::take(&mut state.commands),
        };
        (!state.ended || !mail.commands.is_empty()).then_some(mail)
    }

    /// The watchdog has read its mail, watches so many holds and goes to sleep until then; `false` if there is more to read.
    pub(super) fn sleeps(&self, until: Moment, in_table: usize) -> bool {
        let mut state = lock(&self.state);
        state.in_table = in_table;
        let may = state.new.is_empty() && state.commands.is_empty() && !state.ended;
        state.sleeps_until = may.then_some(until);
        may
    }

    /// The watchdog is gone. Returns the holds that it has not seen.
    pub(super) fn abandon(&self) -> New<H> {
        let mut state = lock(&self.state);
        state.unread_for_good = true;
        let commands = std::mem::take(&mut state.commands);
        let new = std::mem::take(&mut state.new);
        drop(state);
        drop(commands);
        new
    }

    /// Resolves when something came that cannot wait.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

/// The watchdog sees a hold so long before it has to act on it, to have a link by then.
const AHEAD: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::HolderIds;
    use crate::policy::{RenewalPolicy, Timings};

    /// A renewed hold on this lease, granted at the moment 0.
    fn renewal(lease: Duration) -> Renewal {
        let timings = Timings::renewed(&RenewalPolicy::deadline(), lease).unwrap();
        Renewal::new(timings, true, Moment::PAST, Moment::NEVER, 0.0)
    }

    fn is_woken(mailbox: &Mailbox<u8>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(mailbox.woken()).poll(&mut context).is_ready()
    }

    fn second(n: u64) -> Moment {
        Moment::PAST.plus(Duration::from_secs(n))
    }

    /// The mailbox of a watchdog that sleeps for a second, and has seen a hold before.
    fn warm() -> (Mailbox<u8>, HolderIds) {
        let (mailbox, ids) = (Mailbox::new(), HolderIds::new());
        let first = ids.next();
        assert!(mailbox.sleeps(second(1), 0));
        mailbox.watch(first.clone(), 0, renewal(LEASE));
        mailbox.tell(&first, Event::LetGo);
        assert!(is_woken(&mailbox), "the first hold of all");
        let mail = mailbox.take().unwrap();
        assert!(mail.first && mail.new.is_empty());
        assert!(mailbox.sleeps(second(1), 0));
        (mailbox, ids)
    }

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn a_hold_wakes_a_watchdog_that_would_sleep_through_its_renewal_and_no_other() {
        let (mailbox, ids) = warm();
        mailbox.watch(ids.next(), 1, renewal(LEASE));
        assert!(!is_woken(&mailbox), "due in ten seconds");
        mailbox.watch(ids.next(), 2, renewal(LEASE / 10));
        assert!(is_woken(&mailbox), "due as the watchdog looks, with no link yet");
        let mail = mailbox.take().unwrap();
        assert_eq!(mail.new.len(), 2);
    }

    #[test]
    fn a_hold_that_is_let_go_unread_is_never_seen() {
        let (mailbox, ids) = warm();
        let (kept, left) = (ids.next(), ids.next());
        mailbox.watch(kept.clone(), 1, renewal(LEASE));
        mailbox.watch(left.clone(), 2, renewal(LEASE));
        mailbox.tell(&left, Event::LetGo);
        assert!(!is_woken(&mailbox));
        assert_eq!(mailbox.len(), 1);
        let mail = mailbox.take().unwrap();
        assert!(mail.new.keys().eq([&kept]) && mail.commands.is_empty());
        // Once it was read the watchdog has to hear of it.
        assert!(mailbox.sleeps(second(1), 1));
        mailbox.tell(&kept, Event::LetGo);
        assert!(is_woken(&mailbox));
    }

    #[test]
    fn what_comes_while_the_watchdog_is_awake_keeps_it_awake() {
        let (mailbox, ids) = (Mailbox::new(), HolderIds::new());
        mailbox.watch(ids.next(), 1, renewal(LEASE));
        assert!(!mailbox.sleeps(second(1), 0));
        assert!(mailbox.take().is_some() && mailbox.sleeps(second(1), 1));
        mailbox.end();
        assert!(is_woken(&mailbox) && mailbox.take().is_none());
    }

    #[test]
    fn a_hold_that_was_granted_as_the_client_was_shut_down_wakes_the_watchdog() {
        let (mailbox, ids) = warm();
        let (done, _closed) = oneshot::channel();
        mailbox.push(Command::Close { releasing: false, done });
        assert!(is_woken(&mailbox));
        assert!(mailbox.take().is_some() && mailbox.sleeps(second(1), 0));
        mailbox.watch(ids.next(), 1, renewal(LEASE));
        assert!(is_woken(&mailbox));
    }
}
