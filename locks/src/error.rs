//! One error enum an operation. Each variant tells when it occurs and whether Redis may have applied the operation.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::{Lease, LostReason};

/// Times that make no sense, alone or together. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct InvalidTimes {
    what: String,
}

impl InvalidTimes {
    pub(crate) fn new(what: String) -> Self {
        InvalidTimes { what }
    }
}

/// Why a client could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The address could not be read. Nothing was sent.
    #[error("the Redis address {url:?} cannot be used; write redis://host:port/ or unix:///path")]
    Address {
        /// The address as given, without a password.
        url: String,
        /// What the client said of it.
        #[source]
        source: redis::RedisError,
    },
    /// Times that make no sense, alone or together. Nothing was sent.
    #[error(transparent)]
    Times(#[from] InvalidTimes),
    /// Redis does not let this user in. Check the user name, the password and the ACL.
    #[error("Redis at {url} does not let this user in; check user name, password and ACL")]
    Denied {
        /// The address as given, without a password.
        url: String,
        /// What Redis said.
        #[source]
        source: CallError,
    },
    /// Redis could not be reached, or refused the connection.
    #[error("Redis at {url} did not answer; check the address, and that the server runs")]
    Unreachable {
        /// The address as given, without a password.
        url: String,
        /// What went wrong on the way.
        #[source]
        source: CallError,
    },
    /// The renewal thread could not be started.
    #[error("the renewal thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// Why one command to Redis had no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There was no connection, so the command was never sent.
    #[error("no connection to Redis")]
    Unreachable {
        /// What connecting ended with; `None` if it took too long.
        #[source]
        source: Option<Arc<redis::RedisError>>,
    },
    /// The command was sent and no answer came, so Redis may have run it, or may yet.
    #[error("{script} got no answer from Redis")]
    Unanswered {
        /// The script that was called.
        script: &'static str,
        /// What the connection ended with; `None` if it was the time that ran out.
        #[source]
        source: Option<Arc<redis::RedisError>>,
    },
    /// Redis refused to run it now (`LOADING`, `BUSY`, `READONLY`, `OOM` and the like). It may go away by itself.
    #[error("Redis refused {script} for now: {code}")]
    Refused {
        /// The script that was called.
        script: &'static str,
        /// The error's first word.
        code: Box<str>,
        /// The whole answer.
        #[source]
        source: Arc<redis::RedisError>,
    },
    /// Redis refused to run it for this user (`NOAUTH`, `WRONGPASS`, `NOPERM`). Check the user name, password and ACL.
    #[error("Redis does not let this user run {script}: {code}")]
    Denied {
        /// The script that was called.
        script: &'static str,
        /// The error's first word.
        code: Box<str>,
        /// The whole answer.
        #[source]
        source: Arc<redis::RedisError>,
    },
    /// The key holds something that is no lock of this kind. It was left as it is.
    #[error("{script} found a key that holds something else than this lock")]
    WrongKeyType {
        /// The script that was called.
        script: &'static str,
        /// The whole answer.
        #[source]
        source: Arc<redis::RedisError>,
    },
    /// An answer that this version does not understand.
    #[error("{script} got an answer that makes no sense: {answer}")]
    Nonsense {
        /// The script that was called.
        script: &'static str,
        /// The answer, cut to a line.
        answer: String,
    },
}

impl CallError {
    /// A script answered that this user may not do it.
    pub(crate) fn denied(script: &'static str) -> Self {
        let refusal = (
            redis::ErrorKind::AuthenticationFailed,
            "this user may not use the lock's key",
        );
        CallError::Denied {
            script,
            code: "NOPERM".into(),
            source: Arc::new(refusal.into()),
        }
    }

    /// Whether Redis may have run the command, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, CallError::Unanswered { .. })
    }

    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            CallError::Unreachable { .. } | CallError::Unanswered { .. } | CallError::Refused { .. }
        )
    }
}

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The lock was busy until the wait limit. Nothing is held and nothing is left in Redis.
    #[error("{name} was busy for all of the wait limit ({waited:?})")]
    WaitLimit {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Redis could not be reached, gave no answer or refused for the time being, to the end of the wait limit (without a limit:
    /// for one watchdog time). If an attempt was sent, what it may have taken is given back in the background.
    #[error("{name} could not be acquired: Redis was not to be had for {waited:?}")]
    Unavailable {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
        /// Whether an attempt was sent that Redis may have granted, or may yet.
        outcome_unknown: bool,
        /// What the last attempt ended with.
        #[source]
        source: CallError,
    },
    /// Redis answered that it will not do it: the user may not, or the key holds something that is no such lock.
    /// Nothing is held and nothing was changed.
    #[error("{name} could not be acquired")]
    Refused {
        /// The lock's name.
        name: String,
        /// What Redis said.
        #[source]
        source: CallError,
    },
    /// The key is a hash without a time to live, so no lock of ours or of Redisson's. It was left as it is.
    #[error("{name} is a hash without a time to live, so no lock: look at it and delete it by hand")]
    NoTimeToLive {
        /// The lock's name.
        name: String,
    },
    /// The answers of Redis took longer than the lease can be trusted. What they granted is given back in the background:
    /// ask for a longer lease time.
    #[error("{name} was granted too late to be of use: the answer took {took:?}, longer than its lease can be trusted")]
    TooLate {
        /// The lock's name.
        name: String,
        /// How long the last answer took.
        took: Duration,
    },
    /// The owner holds the read lock and asks for the write lock: it would wait for itself. Nothing was sent. Release the read
    /// lock first, or acquire the write lock and the read lock beside it.
    #[error("{name} is held for reading by the same owner, which would wait for itself; release the read lock first")]
    WouldDeadlock {
        /// The lock's name.
        name: String,
    },
    /// The owner holds the lock already, and [`no_reentry`](crate::AcquireOptions::no_reentry) was asked for. Nothing was sent.
    #[error("{name} is held by the same owner already, and re-entry was ruled out")]
    AlreadyHeld {
        /// The lock's name.
        name: String,
    },
    /// No majority of the nodes granted the lock by the end of the wait. What a minority had granted was given back.
    #[error("{name} was not to be had on {needed} nodes within {waited:?}: {}", reasons(nodes))]
    NoQuorum {
        /// The lock's name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
        /// How many nodes have to grant it.
        needed: usize,
        /// Why each node did not grant it in the last round; `None` if it did.
        nodes: Vec<Option<String>>,
    },
    /// A re-entry of a hold that has ended. Nothing was created: release what is left of it and acquire anew.
    #[error("{name} cannot be re-entered: its hold is lost ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// The lock's name is empty. Nothing was sent.
    #[error("a lock needs a name")]
    EmptyName,
    /// Times that make no sense, alone or together. Nothing was sent.
    #[error(transparent)]
    Times(#[from] InvalidTimes),
    /// The client was shut down. Nothing was sent.
    #[error("{name} could not be acquired: the client was shut down")]
    Closed {
        /// The lock's name.
        name: String,
    },
}

fn reasons(nodes: &[Option<String>]) -> String {
    let reason = |(index, reason): (usize, &Option<String>)| {
        format!("node {}: {}", index + 1, reason.as_deref().unwrap_or("granted"))
    };
    nodes.iter().enumerate().map(reason).collect::<Vec<_>>().join("; ")
}

impl AcquireError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            AcquireError::WaitLimit { .. } | AcquireError::Unavailable { .. } | AcquireError::NoQuorum { .. }
        )
    }

    /// Whether an attempt was sent that Redis may have granted, or may yet. It is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            AcquireError::Unavailable {
                outcome_unknown: true,
                ..
            }
        )
    }
}

/// Why a release could not be confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease was lost before: the lock may be another's, and was left alone.
    #[error("{name} was not held any more: {reason}")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// Redis could not be reached, gave no answer or refused for the time being. Renewal has ended, and the release is repeated
    /// in the background; at the latest the lock ends when its lease time has passed.
    #[error("the release of {name} is not confirmed; it goes on in the background")]
    Unanswered {
        /// The lock's name.
        name: String,
        /// Whether Redis was told and may have released the lock, or may yet.
        outcome_unknown: bool,
        /// What the last attempt ended with.
        #[source]
        source: CallError,
    },
    /// Redis answered that it will not do it. Renewal has ended, so the lock ends when its lease time has passed.
    #[error("{name} could not be released")]
    Refused {
        /// The lock's name.
        name: String,
        /// What Redis said.
        #[source]
        source: CallError,
    },
}

impl ReleaseError {
    /// Always `false`: what can be repeated is repeated in the background.
    pub fn is_retryable(&self) -> bool {
        false
    }

    /// Whether Redis may have released the lock, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            ReleaseError::Unanswered {
                outcome_unknown: true,
                ..
            }
        )
    }
}

/// Why a lease was not extended. What it had before is left as it is, unless it was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lease was lost before. Nothing was revived.
    #[error("{name} cannot be extended: it is not held any more ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// Times that make no sense. Nothing was sent.
    #[error(transparent)]
    Times(#[from] InvalidTimes),
    /// The call had no result; see the source for whether Redis may have run it. The lease is trusted as long as before.
    #[error("{name} could not be extended")]
    Call {
        /// The lock's name.
        name: String,
        /// What went wrong.
        #[source]
        source: CallError,
    },
}

impl ExtendError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ExtendError::Call { source, .. } if source.is_retryable())
    }

    /// Whether Redis may have extended the lock, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, ExtendError::Call { source, .. } if source.outcome_unknown())
    }
}

/// Why a write lock did not become a read lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DowngradeError {
    /// It is no write lock. Nothing was sent.
    #[error("{} is no write lock, so it cannot be downgraded", lease.name())]
    NotAWriteLock {
        /// The lease, as it was.
        lease: Box<Lease>,
    },
    /// The write lock was lost before. Nothing is held.
    #[error("{name} cannot be downgraded: it is not held any more ({reason})")]
    Lost {
        /// The lock's name.
        name: String,
        /// Why the hold ended.
        reason: LostReason,
    },
    /// The read lock could not be acquired beside the write lock, which is held as before.
    #[error("{} could not be downgraded", lease.name())]
    Acquire {
        /// The lease of the write lock, as it was.
        lease: Box<Lease>,
        /// Why.
        #[source]
        source: AcquireError,
    },
}

impl DowngradeError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, DowngradeError::Acquire { source, .. } if source.is_retryable())
    }

    /// Whether an attempt was sent that Redis may have granted, or may yet. It is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, DowngradeError::Acquire { source, .. } if source.outcome_unknown())
    }
}

/// Why work under a lock was not done, or not under the lock to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WithError {
    /// The lock was not acquired. The work was not begun.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the work ran, which was dropped; or before it was given back, when the work was done.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl WithError {
    /// Whether the same call may succeed later without anything being changed. Not after a loss: the work may be half done.
    pub fn is_retryable(&self) -> bool {
        matches!(self, WithError::Acquire(error) if error.is_retryable())
    }

    /// Whether an attempt was sent that Redis may have granted, or may yet. It is given back in the background.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, WithError::Acquire(error) if error.outcome_unknown())
    }
}

/// The lease was lost while the work ran: [`Lease::run`](crate::Lease::run) has dropped the work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} was lost while the work ran: {reason}")]
pub struct Lost {
    /// The lock's name.
    pub name: String,
    /// Why the hold ended.
    pub reason: LostReason,
}

/// Why a gate did not admit a fencing token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer token was admitted before: its holder has taken over. Do not write.
    #[error("the fencing token {token} is stale at {name}: {newest} was there before")]
    Stale {
        /// The gate's name.
        name: String,
        /// The token that was refused.
        token: u64,
        /// The newest token that was admitted.
        newest: u64,
    },
    /// The gate's name is empty. Nothing was sent.
    #[error("a gate needs a name")]
    EmptyName,
    /// The call had no result, so it is not known whether the token is the newest. Do not write.
    #[error("the gate {name} did not answer")]
    Call {
        /// The gate's name.
        name: String,
        /// What went wrong.
        #[source]
        source: CallError,
    },
}

impl FenceError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, FenceError::Call { source, .. } if source.is_retryable())
    }

    /// Whether Redis may have admitted the token, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, FenceError::Call { source, .. } if source.outcome_unknown())
    }
}

/// Why an operator's command had no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The lock's name is empty. Nothing was sent.
    #[error("a lock needs a name")]
    EmptyName,
    /// The command had no result; see the source for whether Redis may have run it.
    #[error("{name} could not be {what}")]
    Call {
        /// The lock's name.
        name: String,
        /// What was wanted: `inspected`, `force-released`.
        what: &'static str,
        /// What went wrong.
        #[source]
        source: CallError,
    },
    /// The key is no lock of ours or of Redisson's. It was left as it is.
    #[error("{name} is no lock: found {found}")]
    NotALock {
        /// The lock's name.
        name: String,
        /// What was found there.
        found: String,
    },
}

impl AdminError {
    /// Whether the same call may succeed later without anything being changed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, AdminError::Call { source, .. } if source.is_retryable())
    }

    /// Whether Redis may have run the command, or may yet.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, AdminError::Call { source, .. } if source.outcome_unknown())
    }
}
