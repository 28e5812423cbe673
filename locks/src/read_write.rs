//! The read-write lock: two locks over one name.

use std::fmt;
use std::sync::Arc;

use crate::keys::LockName;
use crate::lock::Lock;
use crate::locks::Client;
use crate::mode::{Read, Write};

/// Many readers or one writer; what Redisson calls `RReadWriteLock`.
///
/// An owner that holds the write lock may acquire the read lock beside it, and keep it when the write lock is given back
/// (a downgrade). The other way round it would wait for itself, so that is refused at once.
///
/// Readers that overlap without end keep a writer out for as long as they do: the format shared with Redisson has no place for a
/// writer that waits. Give writers a wait limit, or let them come first: [`writers_first`](Self::writers_first).
#[derive(Clone)]
pub struct ReadWriteLock {
    client: Arc<Client>,
    name: LockName,
    writers_first: bool,
}

/// The read half of a read-write lock.
pub type ReadLock = Lock<Read>;
/// The write half of a read-write lock.
pub type WriteLock = Lock<Write>;

impl ReadWriteLock {
    pub(crate) fn new(client: Arc<Client>, name: LockName) -> Self {
        ReadWriteLock {
            client,
            name,
            writers_first: false,
        }
    }

    /// The same lock, whose readers let a writer that waits come first. Readers that are in stay; new ones wait until the writer
    /// has had the lock, has left, or has not asked again for 3 s (a writer that died). A re-entry, and a reader beside its own
    /// write lock, are let in.
    ///
    /// Now writers that follow each other without end keep readers out. A waiting writer leaves word in a key of ours beside the
    /// lock, `leasehold_writers:{name}`, so all clients that read have to choose this; Redisson's readers know nothing of it and
    /// enter as before. Costs a reader one look at that key. The user needs `+time +zadd +zrange +zrem` and that key.
    pub fn writers_first(mut self) -> Self {
        self.writers_first = true;
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The half for those who read.
    pub fn read(&self) -> ReadLock {
        Lock::new(
            self.client.clone(),
            Arc::new(Read::new(self.name.clone(), self.writers_first)),
        )
    }

    /// The half for those who write.
    pub fn write(&self) -> WriteLock {
        Lock::new(
            self.client.clone(),
            Arc::new(Write::new(self.name.clone(), self.writers_first)),
        )
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadWriteLock").field(&self.name).finish()
    }
}
