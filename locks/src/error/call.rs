//! Why a client was not built, or one command to Redis had no result.

use std::sync::Arc;

use crate::quorum::InvalidQuorum;

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
    /// Masters beside this one that are no quorum together with it. Nothing was sent.
    #[error(transparent)]
    Quorum(#[from] InvalidQuorum),
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
    /// The server is part of a cluster, and the script's keys are not in one slot of it. Give names that are used together one tag
    /// in braces: `{shop}a`, `{shop}b`. A name whose own braces are empty or stay open cannot have keys beside it there.
    #[error("{script} needs keys of several slots, which a cluster refuses; use one {{tag}} in the names")]
    KeysApart {
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
