//! Wake-ups: which waiter of this process hears which channel. Pure bookkeeping; the connection subscribes.
//!
//! One subscription a channel, shared by its waiters. A message wakes one of them; one that leaves with a wake-up unused
//! passes it on. A link that is lost wakes everybody: what was published meanwhile went unheard.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::keys::Channel;
use crate::owner::lock;

/// What the connection is asked to do. The number tells one subscription of a channel from the next.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Subscribe(Channel, u64),
    Unsubscribe(Channel),
}

impl Request {
    pub(crate) fn channel(&self) -> &[u8] {
        match self {
            Request::Subscribe(channel, _) | Request::Unsubscribe(channel) => channel.as_bytes(),
        }
    }

    pub(crate) fn is_subscribe(&self) -> bool {
        matches!(self, Request::Subscribe(..))
    }
}

/// The waiters of one client, by channel.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    channels: HashMap<Channel, Subscription>,
    /// The link in use, and how it is asked.
    link: Option<(u64, mpsc::UnboundedSender<Request>)>,
    next_number: u64,
}

#[derive(Debug)]
struct Subscription {
    number: u64,
    state: Hearing,
    waiters: VecDeque<Arc<Waiter>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    /// Not confirmed yet.
    NotYet,
    /// Confirmed: what is published now is heard.
    Hears,
    /// Refused: waiters have to ask at intervals.
    Deaf,
}

#[derive(Debug, Default)]
struct Waiter {
    /// It may be woken in vain, so it keeps no message from the others.
    aside: bool,
    woken: AtomicBool,
    changed: Notify,
}

impl Waiter {
    /// Wakes the waiter unless it has a wake-up already.
    fn wake(&self) -> bool {
        let first = !self.woken.swap(true, Ordering::AcqRel);
        if first {
            self.changed.notify_one();
        }
        first
    }
}

impl Subscription {
    /// Wakes those aside, and one of the others.
    fn wake_one(&self) {
        for waiter in self.waiters.iter().filter(|waiter| waiter.aside) {
            waiter.wake();
        }
        self.pass_on();
    }

    fn pass_on(&self) {
        let _ = self
            .waiters
            .iter()
            .filter(|waiter| !waiter.aside)
            .any(|waiter| waiter.wake());
    }
}

impl Table {
    fn ask(&self, request: Request) {
        if let Some((_, requests)) = &self.link {
            // A link that has just gone is noticed by `disconnected`.
            let _ = requests.send(request);
        }
    }

    fn wake_everybody(&self) {
        let waiters = self.channels.values().flat_map(|subscription| &subscription.waiters);
        for waiter in waiters {
            waiter.wake();
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

impl Wakeups {
    /// Waits on a channel from now on; `aside`, if a message that wakes one waiter must not stop at this one.
    pub(crate) fn join(self: &Arc<Self>, channel: Channel, aside: bool) -> Wakeup {
        let waiter = Arc::new(Waiter {
            aside,
            ..Waiter::default()
        });
        let mut table = lock(&self.table);
        if !table.channels.contains_key(&channel) {
            let number = table.number();
            let subscription = Subscription {
                number,
                state: Hearing::NotYet,
                waiters: VecDeque::new(),
            };
            table.channels.insert(channel.clone(), subscription);
            table.ask(Request::Subscribe(channel.clone(), number));
        }
        if let Some(subscription) = table.channels.get_mut(&channel) {
            subscription.waiters.push_back(waiter.clone());
        }
        drop(table);
        Wakeup {
            wakeups: self.clone(),
            channel,
            waiter,
            taken: false,
        }
    }

    /// A link was opened: every channel is subscribed anew.
    pub(crate) fn connected(&self, generation: u64, requests: mpsc::UnboundedSender<Request>) {
        let mut table = lock(&self.table);
        table.link = Some((generation, requests));
        let channels: Vec<Channel> = table.channels.keys().cloned().collect();
        for channel in channels {
            let number = table.number();
            if let Some(subscription) = table.channels.get_mut(&channel) {
                subscription.number = number;
                subscription.state = Hearing::NotYet;
            }
            table.ask(Request::Subscribe(channel, number));
        }
    }

    /// A link was lost, and with it what was published since: everybody is woken to try again.
    pub(crate) fn disconnected(&self, generation: u64) {
        let mut table = lock(&self.table);
        if table.link.as_ref().is_none_or(|(current, _)| *current != generation) {
            return;
        }
        table.link = None;
        for subscription in table.channels.values_mut() {
            subscription.state = Hearing::NotYet;
        }
        table.wake_everybody();
    }

    /// Every waiter is woken to look again.
    pub(crate) fn wake_everybody(&self) {
        lock(&self.table).wake_everybody();
    }

    /// A subscription was confirmed, or refused.
    pub(crate) fn subscribed(&self, request: &Request, hears: bool) {
        let Request::Subscribe(channel, number) = request else {
            return;
        };
        let mut table = lock(&self.table);
        let Some(subscription) = table.channels.get_mut(channel) else {
            return;
        };
        // A confirmation of an earlier subscription of this channel says nothing about the present one.
        if subscription.number == *number {
            subscription.state = if hears { Hearing::Hears } else { Hearing::Deaf };
            for waiter in &subscription.waiters {
                waiter.changed.notify_one();
            }
        }
    }

    /// A message came: `0` wakes one waiter and those aside, `1` all of them, anything else nobody.
    pub(crate) fn message(&self, channel: &Channel, payload: &[u8]) {
        let table = lock(&self.table);
        let Some(subscription) = table.channels.get(channel) else {
            return;
        };
        match payload {
            b"0" => subscription.wake_one(),
            b"1" => {
                for waiter in &subscription.waiters {
                    waiter.wake();
                }
            }
            _ => {}
        }
    }

    /// Whether this client is one of those that hear the channel.
    pub(crate) fn hears(&self, channel: &Channel) -> bool {
        let table = lock(&self.table);
        table
            .channels
            .get(channel)
            .is_some_and(|subscription| subscription.state == Hearing::Hears)
    }

    /// How many channels have waiters.
    pub(crate) fn len(&self) -> usize {
        lock(&self.table).channels.len()
    }
}

/// One waiter's place on a channel. Dropping it leaves, and passes a wake-up on that was of no use.
#[derive(Debug)]
pub(crate) struct Wakeup {
    wakeups: Arc<Wakeups>,
    channel: Channel,
    waiter: Arc<Waiter>,
    /// A wake-up was taken, and what was asked since has no answer from this lock yet.
    taken: bool,
}

impl Wakeup {
    /// Waits until what is published is heard, or there is reason to try again anyway. At most `limit`.
    pub(crate) async fn ready(&mut self, limit: Duration) {
        // The next attempt opens one.
        if lock(&self.wakeups.table).link.is_none() {
            return;
        }
        let _ = timeout(limit, async {
            while self.hearing() == Hearing::NotYet && !self.waiter.woken.load(Ordering::Acquire) {
                self.waiter.changed.notified().await;
            }
        })
        .await;
    }

    /// Whether it waits on this channel.
    pub(crate) fn is_on(&self, channel: &Channel) -> bool {
        self.channel == *channel
    }

    /// Takes the wake-up: an attempt follows. It is passed on if the waiter leaves before it was of use: other waiters of this
    /// process may wait for the same lock, and one of them heard the message for all.
    pub(crate) fn take(&mut self) {
        self.taken |= self.waiter.woken.swap(false, Ordering::AcqRel);
    }

    /// The attempt has taken this lock, or found it busy.
    pub(crate) fn answered(&mut self) {
        self.taken = false;
    }

    /// Whether the subscription is not confirmed yet, or has to be made anew.
    pub(crate) fn is_pending(&self) -> bool {
        self.hearing() == Hearing::NotYet
    }

    /// Whether what is published now is heard.
    pub(crate) fn hears(&self) -> bool {
        self.hearing() == Hearing::Hears
    }

    /// Waits for a wake-up, at most `limit`.
    pub(crate) async fn wait(&mut self, limit: Duration) {
        let limit = match self.hearing() {
            Hearing::Hears => limit,
            Hearing::NotYet | Hearing::Deaf => limit.min(ASK_AGAIN_WHEN_DEAF),
        };
        let _ = timeout(limit, async {
            while !self.waiter.woken.load(Ordering::Acquire) {
                self.waiter.changed.notified().await;
            }
        })
        .await;
    }

    fn hearing(&self) -> Hearing {
        let table = lock(&self.wakeups.table);
        table
            .channels
            .get(&self.channel)
            .map_or(Hearing::Deaf, |subscription| subscription.state)
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        let mut table = lock(&self.wakeups.table);
        let Some(subscription) = table.channels.get_mut(&self.channel) else {
            return;
        };
        subscription.waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        if subscription.waiters.is_empty() {
            table.channels.remove(&self.channel);
            table.ask(Request::Unsubscribe(self.channel.clone()));
        } else if !self.waiter.aside && (self.taken || self.waiter.woken.load(Ordering::Acquire)) {
            subscription.pass_on();
        }
    }
}

/// Without messages a waiter asks twice a second: often enough to be of use, rare enough for many waiters.
const ASK_AGAIN_WHEN_DEAF: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> Channel {
        Channel::new(b"wake")
    }

    fn woken(wakeup: &Wakeup) -> bool {
        wakeup.waiter.woken.load(Ordering::Acquire)
    }

    fn linked() -> (Arc<Wakeups>, mpsc::UnboundedReceiver<Request>) {
        let wakeups = Arc::new(Wakeups::default());
        let (sender, requests) = mpsc::unbounded_channel();
        wakeups.connected(1, sender);
        (wakeups, requests)
    }

    #[test]
    fn a_message_wakes_one_waiter_and_the_next_message_the_next() {
        let (wakeups, _requests) = linked();
        let (first, second) = (wakeups.join(channel(), false), wakeups.join(channel(), false));
        wakeups.message(&channel(), b"0");
        assert_eq!((woken(&first), woken(&second)), (true, false));
        wakeups.message(&channel(), b"0");
        assert_eq!((woken(&first), woken(&second)), (true, true));
    }

    #[test]
    fn a_waiter_aside_is_woken_and_keeps_no_message_from_the_next() {
        let (wakeups, _requests) = linked();
        let (aside, other) = (wakeups.join(channel(), true), wakeups.join(channel(), false));
        wakeups.message(&channel(), b"0");
        assert!(woken(&aside) && woken(&other));
    }

    #[test]
    fn a_payload_of_one_wakes_all_and_an_unknown_one_nobody() {
        let (wakeups, _requests) = linked();
        let (first, second) = (wakeups.join(channel(), false), wakeups.join(channel(), false));
        wakeups.message(&channel(), b"7");
        assert_eq!((woken(&first), woken(&second)), (false, false));
        wakeups.message(&channel(), b"1");
        assert_eq!((woken(&first), woken(&second)), (true, true));
    }

    #[test]
    fn a_woken_waiter_that_leaves_passes_its_wake_up_on() {
        let (wakeups, _requests) = linked();
        let (first, second) = (wakeups.join(channel(), false), wakeups.join(channel(), false));
        wakeups.message(&channel(), b"0");
        drop(first);
        assert!(woken(&second));
    }

    #[test]
    fn a_waiter_that_leaves_without_an_answer_passes_on_what_it_took() {
        let (wakeups, _requests) = linked();
        for answered in [false, true] {
            let (mut first, second) = (wakeups.join(channel(), false), wakeups.join(channel(), false));
            wakeups.message(&channel(), b"0");
            first.take();
            if answered {
                first.answered();
            }
            drop(first);
            assert_eq!(woken(&second), !answered);
        }
    }

    #[test]
    fn one_subscription_serves_all_waiters_and_ends_with_the_last() {
        let (wakeups, mut requests) = linked();
        let (first, second) = (wakeups.join(channel(), false), wakeups.join(channel(), false));
        assert!(matches!(requests.try_recv(), Ok(Request::Subscribe(..))));
        assert!(requests.try_recv().is_err());
        drop(first);
        assert!(requests.try_recv().is_err());
        drop(second);
        assert!(matches!(requests.try_recv(), Ok(Request::Unsubscribe(_))));
        assert_eq!(wakeups.len(), 0);
    }

    #[test]
    fn a_lost_link_wakes_everybody_and_the_next_one_subscribes_anew() {
        let (wakeups, _old) = linked();
        let (first, second) = (wakeups.join(channel(), false), wakeups.join(channel(), false));
        wakeups.disconnected(1);
        assert!(woken(&first) && woken(&second));
        let (sender, mut requests) = mpsc::unbounded_channel();
        wakeups.connected(2, sender);
        assert!(matches!(requests.try_recv(), Ok(Request::Subscribe(..))));
        wakeups.disconnected(1);
        assert!(lock(&wakeups.table).link.is_some(), "an old link's end is no news");
    }

    #[test]
    fn a_late_confirmation_of_an_earlier_subscription_counts_for_nothing() {
        let (wakeups, mut requests) = linked();
        drop(wakeups.join(channel(), false));
        let early = requests.try_recv().unwrap();
        let second = wakeups.join(channel(), false);
        wakeups.subscribed(&early, true);
        assert_eq!(second.hearing(), Hearing::NotYet);
    }
}
