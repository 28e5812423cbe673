//! Where a lock is: on one master, or on several that are asked together.

use std::fmt;
use std::sync::Arc;

use crate::acquire;
use crate::error::AcquireError;
use crate::hold::Hold;
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::lease::Lease;
use crate::locks::Client;
use crate::mode::Mode;
use crate::options::AcquireOptions;
use crate::quorum::{self, Members};

/// Where a lock is.
#[derive(Clone)]
pub(crate) enum Target {
    One(Node),
    Several(Members),
}

/// A lock on one master.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) client: Arc<Client>,
    pub(crate) mode: Arc<dyn Mode>,
}

impl Node {
    /// The lock of a hold.
    pub(crate) fn of(hold: &Hold) -> Self {
        Node {
            client: hold.client.clone(),
            mode: hold.mode.clone(),
        }
    }
}

impl Target {
    pub(crate) fn name(&self) -> &LockName {
        match self {
            Target::One(node) => node.mode.name(),
            Target::Several(members) => members.name(),
        }
    }

    pub(crate) fn kind(&self) -> LockKind {
        match self {
            Target::One(node) => node.mode.kind(),
            Target::Several(_) => LockKind::Quorum,
        }
    }

    pub(crate) async fn acquire(self, options: AcquireOptions) -> Result<Lease, AcquireError> {
        match self {
            Target::One(node) => acquire::acquire(node.client, node.mode, options).await.map(Lease::from),
            Target::Several(members) => quorum::acquire(members, options).await.map(Lease::from),
        }
    }

    pub(crate) async fn try_acquire(self, options: AcquireOptions) -> Result<Option<Lease>, AcquireError> {
        match self {
            Target::One(node) => {
                let acquired = acquire::try_acquire(node.client, node.mode, options).await?;
                Ok(acquired.map(Lease::from))
            }
            Target::Several(members) => {
                let acquired = quorum::try_acquire(members, options).await?;
                Ok(acquired.map(Lease::from))
            }
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}
