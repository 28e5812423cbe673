//! What the guarded side and the tools of operators could not do.

use super::CallError;

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
