//! The quorum lock: one lock over several independent masters, held while a majority of them holds it (the RedLock algorithm of the
//! Redis documentation).
//!
//! Each node is an ordinary client with an ordinary lock and its own watchdog. What is added here: all nodes are asked at once, a
//! round is over as soon as its outcome is certain, a minority is given back, and nodes that were missing or lost the lock are
//! asked again while the majority stands.

mod majority;
mod round;

use std::fmt;
use std::sync::Arc;

pub(crate) use majority::Majority;
pub(crate) use round::{acquire, try_acquire};

use crate::error::AdoptError;
use crate::hand_off::HandedOff;
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Lease;
use crate::lock::{Lock, MultiLock, ReentrantLock, SpinLock};
use crate::lockable::Lockable;
use crate::locks::{Client, Locks};
use crate::mode::{Mode, Multi, Reentrant, Spin};
use crate::read_write::ReadWriteLock;
use crate::target::{Node, Target};

/// Several independent masters that are asked together.
///
/// Its locks are the ordinary types, and their leases are ordinary leases, held while a majority of the masters holds them. A
/// master that cannot be reached, or is slow, costs nothing while the others are a majority; one that comes back empty is asked
/// again by a renewed lease, as soon as a majority has confirmed that it still has the hold. A majority that comes back empty at once,
/// before the next renewal, can let a second holder in: let a master that lost its data stay away for the longest lease. Waiters ask at intervals with jitter, each for itself, whatever the kind: several masters give no common signal.
///
/// The repair, and the signal of a loss, run on the runtime that acquired the lease; `is_valid` and the renewals need none.
///
/// # What there is no majority of
/// Two kinds cannot keep their promise over several masters, so a quorum has none of them:
/// - **fair**: each master has a queue of its own, and they differ. Who is first on one and second on the others would keep the rest
///   waiting, and there is no order that all masters agree on.
/// - **fenced**: the counters of several masters do not compare. The largest token of one majority can be smaller than that of an
///   earlier one, since the two need to share no more than one master. A token that grows needs a second round which writes the
///   largest back to a majority before the work begins; take a store that counts by consensus instead.
#[derive(Clone)]
pub struct Quorum {
    masters: Arc<[Arc<Client>]>,
}

impl Quorum {
    /// Joins the clients of three, five or any larger odd number of independent masters. Replicas of one another are not
    /// independent, and an even number is no safer than one less.
    ///
    /// Where the settings are the same for all, [`masters_beside`](crate::LocksBuilder::masters_beside) is less to write.
    ///
    /// # Errors
    /// [`InvalidQuorum`]: less than three, or an even number.
    pub fn over(nodes: impl IntoIterator<Item = Locks>) -> Result<Quorum, InvalidQuorum> {
        let masters: Vec<_> = nodes.into_iter().map(|locks| locks.client().clone()).collect();
        InvalidQuorum::check(masters.len())?;
        Ok(Quorum::of(masters))
    }

    /// Joins these masters; one alone is its own majority.
    pub(crate) fn of(masters: Vec<Arc<Client>>) -> Self {
        Quorum {
            masters: masters.into(),
        }
    }

    /// A lock that its owner can acquire again while holding it.
    pub fn reentrant(&self, name: impl Into<LockName>) -> ReentrantLock {
        let name = name.into();
        Lock::new(self.target(|client| Arc::new(Reentrant::new(client.named(&name)))))
    }

    /// Many readers or one writer: any majority with a writer shares a master with any majority of a reader.
    pub fn read_write(&self, name: impl Into<LockName>) -> ReadWriteLock {
        let name = name.into();
        let masters = self.masters.iter().map(|client| (client.clone(), client.named(&name)));
        ReadWriteLock::by_majority(masters.collect())
    }

    /// The same as [`reentrant`](Self::reentrant), whose waiters ask at intervals here as well.
    pub fn spin(&self, name: impl Into<LockName>) -> SpinLock {
        let name = name.into();
        Lock::new(self.target(|client| Arc::new(Spin::new(client.named(&name)))))
    }

    /// Several locks held as one: on each master all or none.
    pub fn multi<N: Into<LockName>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let names: Vec<LockName> = names.into_iter().map(Into::into).collect();
        let mode = |client: &Client| Arc::new(Multi::new(names.iter().map(|name| client.named(name)))) as Arc<dyn Mode>;
        Lock::new(self.target(mode))
    }

    /// A lock of the kind that configuration names, as [`Locks::lock`]; `quorum` is a reentrant one.
    ///
    /// # Errors
    /// [`NoMajority`] for the kinds that several masters cannot keep.
    pub fn lock(&self, kind: LockKind, name: impl Into<LockName>) -> Result<Box<dyn Lockable>, NoMajority> {
        match kind {
            LockKind::Reentrant | LockKind::Quorum => Ok(Box::new(self.reentrant(name))),
            LockKind::ReadWrite => Ok(Box::new(self.read_write(name).write())),
            LockKind::Spin => Ok(Box::new(self.spin(name))),
            LockKind::Multi => Ok(Box::new(self.multi([name]))),
            LockKind::Fair | LockKind::Fenced => Err(NoMajority { kind }),
        }
    }

    /// As [`lock`](Self::lock) for those who only read: they share a read-write lock, and take every other kind as it is.
    ///
    /// # Errors
    /// [`NoMajority`] for the kinds that several masters cannot keep.
    pub fn lock_for_reading(&self, kind: LockKind, name: impl Into<LockName>) -> Result<Box<dyn Lockable>, NoMajority> {
        match kind {
            LockKind::ReadWrite => Ok(Box::new(self.read_write(name).read())),
            other => self.lock(other, name),
        }
    }

    /// Takes over what [`Lease::hand_off`](crate::Lease::hand_off) returned in this process or another, on a majority; otherwise as
    /// [`Locks::adopt`]. The masters have to be the same ones in the same order.
    ///
    /// Each of them is adopted from in one step of its own. Two who adopt the same at once can split the masters so that neither has
    /// a majority; then both are told, and the lock is given back.
    ///
    /// # Errors
    /// [`AdoptError`].
    ///
    /// # Cancel safety
    /// What may have been adopted is given back in the background.
    pub async fn adopt(&self, handed_off: &HandedOff) -> Result<Lease, AdoptError> {
        let (here, masters) = (self.masters.len(), handed_off.masters().unwrap_or(1));
        if here != masters {
            return Err(AdoptError::OtherMasters {
                name: handed_off.name(),
                handed_off: masters,
                here,
            });
        }
        let nodes = self.masters.iter().map(|client| handed_off.node(client));
        let members = Members {
            nodes: nodes.collect::<Result<_, _>>()?,
        };
        round::adopt(members, handed_off).await.map(Lease::from)
    }

    fn target(&self, mode: impl Fn(&Client) -> Arc<dyn Mode>) -> Target {
        let nodes = self.masters.iter().map(|client| Node {
            client: client.clone(),
            mode: mode(client),
        });
        Target::Several(Members::new(nodes))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("masters", &self.masters.len()).finish()
    }
}

/// One lock on each of several masters.
#[derive(Clone)]
pub(crate) struct Members {
    nodes: Arc<[Node]>,
}

impl Members {
    /// There has to be at least one.
    pub(crate) fn new(nodes: impl Iterator<Item = Node>) -> Self {
        Members { nodes: nodes.collect() }
    }

    pub(crate) fn name(&self) -> &LockName {
        // There is at least one, and each shows the name that was given.
        self.nodes[0].mode.name()
    }

    /// How many of them are a majority.
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// The lock that this one can be given back to; see [`Mode::downgraded`].
    fn downgraded(&self) -> Option<Members> {
        let nodes = self.nodes.iter().map(|node| {
            Some(Node {
                client: node.client.clone(),
                mode: node.mode.downgraded()?,
            })
        });
        Some(Members {
            nodes: nodes.collect::<Option<_>>()?,
        })
    }
}

/// A number of masters that has no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a quorum needs an odd number of independent masters from 3 on, not {masters}")]
pub struct InvalidQuorum {
    masters: usize,
}

impl InvalidQuorum {
    pub(crate) fn check(masters: usize) -> Result<(), InvalidQuorum> {
        match masters < 3 || masters.is_multiple_of(2) {
            true => Err(InvalidQuorum { masters }),
            false => Ok(()),
        }
    }
}

/// A kind of lock that several masters cannot keep; [`Quorum`] says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no {kind} lock over several masters: {}",
    match kind {
        LockKind::Fair => "each has a queue of its own, and no order is the same on all of them",
        _ => "the tokens of several masters do not compare",
    }
)]
pub struct NoMajority {
    kind: LockKind,
}
