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
/// writer that waits. Give writers a wait limit, or use a reentrant lock where writes matter more.
#[derive(Clone)]
pub struct ReadWriteLock {
    client: Arc<Client>,
    name: LockName,
}

/// The read half of a read-write lock.
pub type ReadLock = Lock<Read>;
/// The write half of a read-write lock.
pub type WriteLock = Lock<Write>;

impl ReadWriteLock {
    pub(crate) fn new(client: Arc<Client>, name: LockName) -> Self {
        ReadWriteLock { client, name }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The half for those who read.
    pub fn read(&self) -> ReadLock {
        Lock::new(self.client.clone(), Arc::new(Read::new(self.name.clone())))
    }

    /// The half for those who write.
    pub fn write(&self) -> WriteLock {
        Lock::new(self.client.clone(), Arc::new(Write::new(self.name.clone())))
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadWriteLock").field(&self.name).finish()
    }
}
