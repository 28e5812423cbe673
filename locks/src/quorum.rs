//! The quorum lock: one lock over several independent masters, held while a majority of them holds it (the RedLock algorithm of the
//! Redis documentation).
//!
//! Each node is an ordinary client with an ordinary lock and its own watchdog. What is added here: all nodes are asked at once, a
//! round is over as soon as its outcome is certain, a minority is given back, and nodes that were missing or lost the lock are
//! asked again while the majority stands.

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::acquire;
use crate::clock;
use crate::error::{AcquireError, Lost, ReleaseError};
use crate::keys::LockName;
use crate::lease::{Lease, LostReason, Released};
use crate::locks::{Client, Locks};
use crate::mode::{Mode, Reentrant};
use crate::options::AcquireOptions;
use crate::owner::lock;
use crate::policy::RenewalPolicy;

/// Several independent masters that are asked together.
#[derive(Clone)]
pub struct Quorum {
    nodes: Vec<Arc<Client>>,
}

impl Quorum {
    /// Joins the clients of three, five or any larger odd number of independent masters. Replicas of one another are not
    /// independent, and an even number is no safer than one less.
    ///
    /// # Errors
    /// [`InvalidQuorum`]: less than three, or an even number.
    pub fn over(nodes: impl IntoIterator<Item = Locks>) -> Result<Quorum, InvalidQuorum> {
        let nodes: Vec<_> = nodes.into_iter().map(|locks| locks.client().clone()).collect();
        if nodes.len() < 3 || nodes.len().is_multiple_of(2) {
            return Err(InvalidQuorum { nodes: nodes.len() });
        }
        Ok(Quorum { nodes })
    }

    /// A lock that is held while a majority of the nodes holds it.
    pub fn reentrant(&self, name: impl Into<LockName>) -> QuorumLock {
        let name = name.into();
        let nodes = self.nodes.iter().map(|client| Node {
            client: client.clone(),
            mode: Arc::new(Reentrant::new(client.named(&name))),
        });
        QuorumLock {
            nodes: nodes.collect(),
            name,
        }
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.nodes.len()).finish()
    }
}

/// A number of nodes that has no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a quorum needs an odd number of independent masters from 3 on, not {nodes}")]
pub struct InvalidQuorum {
    nodes: usize,
}

/// A lock over several masters. Cheap to clone; nothing is sent before it is acquired.
#[derive(Clone)]
pub struct QuorumLock {
    nodes: Vec<Node>,
    name: LockName,
}

#[derive(Clone)]
struct Node {
    client: Arc<Client>,
    mode: Arc<dyn Mode>,
}

impl QuorumLock {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Acquires the lock on a majority, waiting for it if need be. Await it, after setting what is wanted otherwise.
    ///
    /// # Errors
    /// [`AcquireError::NoQuorum`] with a reason for each node, and what a single lock refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: what was taken is given back in the background.
    pub fn acquire(&self) -> QuorumAcquire {
        QuorumAcquire {
            lock: self.clone(),
            wait_limit: None,
            lease_time: None,
            renewal: None,
        }
    }
}

impl fmt::Debug for QuorumLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuorumLock").field(&self.name).finish()
    }
}

/// An acquire on a majority: set what is wanted, then await it.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct QuorumAcquire {
    lock: QuorumLock,
    wait_limit: Option<Duration>,
    lease_time: Option<Duration>,
    renewal: Option<RenewalPolicy>,
}

impl QuorumAcquire {
    /// See [`AcquireOptions::wait_limit`]. Without a limit it waits while a majority answers, and one watchdog time while none
    /// does.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = Some(limit);
        self
    }

    /// See [`AcquireOptions::lease_time`].
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.lease_time = Some(lease_time);
        self
    }

    /// See [`AcquireOptions::renewal`].
    pub fn renewal(mut self, policy: RenewalPolicy) -> Self {
        self.renewal = Some(policy);
        self
    }

    fn options(&self) -> AcquireOptions {
        let mut options = AcquireOptions::new();
        if let Some(lease_time) = self.lease_time {
            options = options.lease_time(lease_time);
        }
        if let Some(policy) = &self.renewal {
            options = options.renewal(policy.clone());
        }
        options
    }

    async fn run(self) -> Result<QuorumLease, AcquireError> {
        let start = clock::now();
        let end = self.wait_limit.map(|limit| start.plus(limit));
        let quorum = self.lock.nodes.len() / 2 + 1;
        let mut answered = start;
        let mut pause = FIRST_PAUSE;
        loop {
            let round = self.round(quorum).await?;
            let refusals = match round {
                Ok(lease) => return Ok(lease),
                Err(refusals) => refusals,
            };
            let now = clock::now();
            let silent = refusals.iter().flatten().filter(|refusal| refusal.silent).count();
            if silent <= self.lock.nodes.len() - quorum {
                answered = now;
            }
            let watchdog_time = self.lock.nodes[0].client.watchdog_time;
            let is_over = end.map_or(now.since(answered) >= watchdog_time, |end| now >= end);
            if is_over {
                return Err(AcquireError::NoQuorum {
                    name: self.lock.name.to_string(),
                    waited: now.since(start),
                    needed: quorum,
                    nodes: refusals
                        .into_iter()
                        .map(|refusal| refusal.map(|refusal| refusal.reason))
                        .collect(),
                });
            }
            // At random, so that callers who split the nodes among them do not do so again.
            let drawn = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            tokio::time::sleep(end.map_or(drawn, |end| drawn.min(end.since(now)))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Asks every node once: a lease, or why each node did not grant one (`None`: it did, and was given back).
    async fn round(&self, quorum: usize) -> Result<Result<QuorumLease, Vec<Option<Refusal>>>, AcquireError> {
        let nodes = &self.lock.nodes;
        let mut asked = JoinSet::new();
        for (index, node) in nodes.iter().enumerate() {
            asked.spawn(ask(index, node.clone(), self.options(), self.budget(node)));
        }
        let mut members = Vec::new();
        let mut refusals: Vec<Option<Refusal>> = nodes.iter().map(|_| None).collect();
        let mut refused = 0;
        while let Some(answer) = asked.join_next().await {
            let Ok((index, answer)) = answer else { continue };
            match answer {
                Ok(lease) => members.push((index, lease)),
                // The options make no sense on any node.
                Err(Failure::Invalid(error)) => return Err(error),
                Err(Failure::Refused(refusal)) => {
                    refused += 1;
                    refusals[index] = Some(refusal);
                }
            }
            let valid = members.iter().filter(|(_, lease)| lease.is_valid()).count();
            if valid >= quorum {
                return Ok(Ok(QuorumLease::new(self, members, asked, quorum)));
            }
            if refused > nodes.len() - quorum {
                break;
            }
        }
        // All of it is given back before the next try, so that what is left does not stand in our own way.
        while let Some(answer) = asked.join_next().await {
            if let Ok((index, Ok(lease))) = answer {
                members.push((index, lease));
            }
        }
        let mut releases = JoinSet::new();
        for (index, lease) in members {
            releases.spawn(timeout(self.budget(&nodes[index]), lease.release()));
        }
        while releases.join_next().await.is_some() {}
        Ok(Err(refusals))
    }

    /// How long one node may take: a node that hangs must not use up the lease of the others.
    fn budget(&self, node: &Node) -> Duration {
        let lease = self.lease_time.unwrap_or(node.client.watchdog_time);
        (lease / 10).clamp(SHORTEST_BUDGET, LONGEST_BUDGET)
    }
}

impl IntoFuture for QuorumAcquire {
    type Output = Result<QuorumLease, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

struct Refusal {
    reason: String,
    /// The node gave no answer.
    silent: bool,
}

enum Failure {
    Refused(Refusal),
    Invalid(AcquireError),
}

async fn ask(index: usize, node: Node, options: AcquireOptions, budget: Duration) -> (usize, Result<Lease, Failure>) {
    let asked = timeout(budget, acquire::try_acquire(node.client, node.mode, options)).await;
    let refused = |reason: String, silent| Err(Failure::Refused(Refusal { reason, silent }));
    let answer = match asked {
        Ok(Ok(Some(lease))) => Ok(lease),
        Ok(Ok(None)) => refused("busy".into(), false),
        Ok(Err(error @ (AcquireError::Times(_) | AcquireError::EmptyName))) => Err(Failure::Invalid(error)),
        Ok(Err(error)) => refused(with_source(&error), error.is_retryable()),
        Err(_) => refused(format!("no answer within {budget:?}"), true),
    };
    (index, answer)
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Proof of holding a lock on a majority of masters.
///
/// It is valid while the leases of a majority are. Each of them counts from before its own request and ends a margin early, which
/// covers the drift of 1 % and 2 ms that RedLock allows for.
#[must_use = "a lease that is dropped gives the lock back at once"]
pub struct QuorumLease {
    shared: Arc<Shared>,
}

struct Shared {
    lock: QuorumLock,
    quorum: usize,
    members: Mutex<Vec<(usize, Lease)>>,
    /// Raised whenever a member is added.
    changes: watch::Sender<u64>,
}

impl QuorumLease {
    fn new(
        acquire: &QuorumAcquire,
        members: Vec<(usize, Lease)>,
        asked: JoinSet<(usize, Result<Lease, Failure>)>,
        quorum: usize,
    ) -> Self {
        let shared = Arc::new(Shared {
            lock: acquire.lock.clone(),
            quorum,
            members: Mutex::new(members),
            changes: watch::Sender::new(0),
        });
        // A lease with a time of its own is not made longer.
        let again = acquire.lease_time.is_none().then(|| acquire.options());
        // Ends with the lease.
        tokio::spawn(complete(Arc::downgrade(&shared), asked, again));
        QuorumLease { shared }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.shared.lock.name
    }

    /// On how many nodes it is held at present.
    pub fn nodes_held(&self) -> usize {
        self.shared.valid()
    }

    /// Whether the lease can be trusted: a majority is held. Read from the clock, with no round trip.
    pub fn is_valid(&self) -> bool {
        self.shared.valid() >= self.shared.quorum
    }

    /// How long a majority can still be trusted if no further renewal succeeds; zero when it is not valid.
    pub fn remaining(&self) -> Duration {
        let members = lock(&self.shared.members);
        let mut left: Vec<Duration> = members.iter().map(|(_, lease)| lease.remaining()).collect();
        left.sort_by(|one, other| other.cmp(one));
        left.get(self.shared.quorum - 1).copied().unwrap_or_default()
    }

    /// Resolves when a majority can no longer be trusted. Never resolves if it is released first.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let shared = Arc::downgrade(&self.shared);
        let mut changes = self.shared.changes.subscribe();
        async move {
            loop {
                changes.mark_unchanged();
                let Some((mut losses, bearable)) = shared.upgrade().map(|shared| shared.losses()) else {
                    return std::future::pending().await;
                };
                let mut lost = 0;
                let majority_lost = poll_fn(|context| {
                    for loss in &mut losses {
                        let ended = loss.as_mut().map(|loss| loss.as_mut().poll(context));
                        if let Some(Poll::Ready(reason)) = ended {
                            *loss = None;
                            lost += 1;
                            if lost > bearable {
                                return Poll::Ready(reason);
                            }
                        }
                    }
                    Poll::Pending
                });
                tokio::select! {
                    reason = majority_lost => return reason,
                    changed = changes.changed() => if changed.is_err() {
                        return std::future::pending().await;
                    },
                }
            }
        }
    }

    /// Runs the work for as long as a majority can be trusted; drops it at the moment when it cannot.
    ///
    /// # Errors
    /// [`Lost`]: the work was dropped before it was done.
    ///
    /// # Cancel safety
    /// The work is dropped; the lease stays.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Lost> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(Lost { name: self.name().to_string(), reason }),
            output = work => Ok(output),
        }
    }

    /// Gives the lock back on every node and tells what came of it: confirmed by a majority or not.
    ///
    /// # Errors
    /// What the first node answered, if no majority confirmed. The other releases go on in the background.
    ///
    /// # Cancel safety
    /// Renewal has ended and the lock is given back in the background.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        let members = std::mem::take(&mut *lock(&self.shared.members));
        let mut releases = JoinSet::new();
        for (_, lease) in members {
            releases.spawn(lease.release());
        }
        let mut confirmed = 0;
        let mut failure = None;
        while let Some(released) = releases.join_next().await {
            match released {
                Ok(Ok(_)) => confirmed += 1,
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(_) => {}
            }
            if confirmed >= self.shared.quorum {
                // The rest goes on in tasks of its own.
                releases.detach_all();
                return Ok(Released::Fully);
            }
        }
        Err(failure.unwrap_or_else(|| ReleaseError::Lost {
            name: self.name().to_string(),
            reason: LostReason::NotOwner,
        }))
    }
}

impl fmt::Debug for QuorumLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumLease")
            .field("name", self.name())
            .field("nodes_held", &self.nodes_held())
            .finish()
    }
}

type Loss = Pin<Box<dyn Future<Output = LostReason> + Send>>;

impl Shared {
    fn valid(&self) -> usize {
        lock(&self.members).iter().filter(|(_, lease)| lease.is_valid()).count()
    }

    /// The loss of each member, and how many of them leave a majority.
    fn losses(&self) -> (Vec<Option<Loss>>, usize) {
        let members = lock(&self.members);
        let losses = members.iter().map(|(_, lease)| Some(Box::pin(lease.lost()) as Loss));
        (losses.collect(), members.len().saturating_sub(self.quorum))
    }

    /// One more node holds the lock; a lease that it had before and lost makes place.
    fn add(&self, index: usize, lease: Lease) {
        let mut members = lock(&self.members);
        members.retain(|(member, _)| *member != index);
        members.push((index, lease));
        drop(members);
        self.changes.send_modify(|version| *version += 1);
    }

    /// The nodes on which it is not held, as long as it is held on a majority.
    fn missing(&self) -> Vec<usize> {
        let members = lock(&self.members);
        let valid: Vec<usize> = members
            .iter()
            .filter(|(_, lease)| lease.is_valid())
            .map(|(index, _)| *index)
            .collect();
        match valid.len() >= self.quorum {
            true => (0..self.lock.nodes.len())
                .filter(|index| !valid.contains(index))
                .collect(),
            false => Vec::new(),
        }
    }
}

/// Takes in the nodes that answer later; then, for a renewed lease, asks those that are missing again, each third of the lease,
/// while a majority stands: a node that came back empty would otherwise be one on which somebody else can begin.
async fn complete(
    shared: Weak<Shared>,
    mut asked: JoinSet<(usize, Result<Lease, Failure>)>,
    again: Option<AcquireOptions>,
) {
    loop {
        while let Some(answer) = asked.join_next().await {
            match (answer, shared.upgrade()) {
                (Ok((index, Ok(lease))), Some(shared)) => shared.add(index, lease),
                (_, None) => return,
                _ => {}
            }
        }
        let Some(options) = &again else { return };
        let Some(period) = shared
            .upgrade()
            .map(|shared| shared.lock.nodes[0].client.watchdog_time / 3)
        else {
            return;
        };
        tokio::time::sleep(period).await;
        let Some(shared) = shared.upgrade() else { return };
        for index in shared.missing() {
            let node = shared.lock.nodes[index].clone();
            asked.spawn(ask(index, node, options.clone(), period));
        }
    }
}

/// One node's answer should take milliseconds; RedLock asks for a small part of the lease.
const SHORTEST_BUDGET: Duration = Duration::from_millis(20);
const LONGEST_BUDGET: Duration = Duration::from_millis(500);
/// Between rounds.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
