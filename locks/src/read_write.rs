//! The read-write lock: two locks over one name.

use std::fmt;
use std::sync::Arc;

use crate::keys::LockName;
use crate::lock::Lock;
use crate::locks::Client;
use crate::mode::{Mode, Read, Write};
use crate::quorum::Members;
use crate::target::{Node, Target};

/// Many readers or one writer; what Redisson calls `RReadWriteLock`.
///
/// An owner that holds the write lock may acquire the read lock beside it, and keep it when the write lock is given back
/// (a downgrade). The other way round it would wait for itself, so that is refused at once.
///
/// Readers that overlap without end keep a writer out for as long as they do: the format shared with Redisson has no place for a
/// writer that waits. Give writers a wait limit, or let them come first: [`writers_first`](Self::writers_first).
#[derive(Clone)]
pub struct ReadWriteLock {
    /// On each master, its name there.
    masters: Arc<[(Arc<Client>, LockName)]>,
    by_majority: bool,
    writers_first: bool,
}

/// The read half of a read-write lock.
pub type ReadLock = Lock<Read>;
/// The write half of a read-write lock.
pub type WriteLock = Lock<Write>;

impl ReadWriteLock {
    /// On one master.
    pub(crate) fn new(client: Arc<Client>, name: LockName) -> Self {
        ReadWriteLock {
            masters: [(client, name)].into(),
            by_majority: false,
            writers_first: false,
        }
    }

    /// On a majority of these masters; there is at least one.
    pub(crate) fn by_majority(masters: Arc<[(Arc<Client>, LockName)]>) -> Self {
        ReadWriteLock {
            masters,
            by_majority: true,
            writers_first: false,
        }
    }

    /// The same lock, whose readers let a writer that waits come first. Readers that are in stay; new ones wait until the writer
    /// has had the lock, has left, or has not asked again for 3 s (a writer that died). A re-entry, and a reader beside its own
    /// write lock, are let in.
    ///
    /// Now writers that follow each other without end keep readers out. A waiting writer leaves word in a key of ours beside the
    /// lock, `leasehold_writers:{name}`, so all clients that read have to choose this; Redisson's readers know nothing of it and
    /// enter as before. Costs a reader one look at that key; over a quorum it has no effect, since its waiters leave no word. The user needs `+time +zadd +zrange +zrem` and that key.
    pub fn writers_first(mut self) -> Self {
        self.writers_first = true;
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.masters[0].1
    }

    /// The half for those who read.
    pub fn read(&self) -> ReadLock {
        Lock::new(self.target(|name| Arc::new(Read::new(name, self.writers_first))))
    }

    /// The half for those who write.
    pub fn write(&self) -> WriteLock {
        Lock::new(self.target(|name| Arc::new(Write::new(name, self.writers_first))))
    }

    fn target(&self, mode: impl Fn(LockName) -> Arc<dyn Mode>) -> Target {
        let node = |(client, name): &(Arc<Client>, LockName)| Node {
            client: client.clone(),
            mode: mode(name.clone()),
        };
        match self.by_majority {
            true => Target::Several(Members::new(self.masters.iter().map(node))),
            false => Target::One(node(&self.masters[0])),
        }
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadWriteLock").field(self.name()).finish()
    }
}
