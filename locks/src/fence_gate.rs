//! The guarded side of fencing: what is behind a fenced lock refuses a holder that is no longer the newest.

use std::fmt;
use std::sync::Arc;

use redis::Value as Reply;

use crate::error::FenceError;
use crate::keys::{LockName, fence_gate};
use crate::locks::{Client, Locks};
use crate::mode::nonsense;
use crate::script::{FENCE_ADMIT, Value};

/// Refuses an older fencing token once a newer one was seen: stands in front of what a [`fenced`](Locks::fenced) lock guards.
///
/// A holder that was frozen past the end of its lease cannot know that the next one is at work. It passes its token with every
/// write, and the gate, which has seen the newer token, turns it away.
///
/// ```no_run
/// use leasehold::{FenceGate, Locks};
///
/// # async fn write() {}
/// # async fn example(locks: Locks) -> Result<(), Box<dyn std::error::Error>> {
/// let lease = locks.fenced("report").acquire().await?;
/// let token = lease.fencing_token().expect("the fenced kind has one");
/// let gate = FenceGate::new(&locks, "report");
/// gate.admit(token).await?; // Err(Stale) for one that was overtaken
/// write().await;
/// # Ok(()) }
/// ```
///
/// # Where the check belongs
/// Between being admitted and the write itself a newer holder may still come. That moment is gone only where the resource checks
/// the token *in the same step* as it writes. In SQL that is a column for the newest token and a clause:
///
/// ```sql
/// UPDATE account SET balance = :balance, fence = :token
///  WHERE id = :id AND fence <= :token        -- no row changed: the token is stale
/// ```
///
/// Use the gate for resources that have no such clause (a file store, a mail server, another service), asked by whoever writes
/// right before each write; or by the resource itself.
///
/// The newest token is a key without an end, `leasehold_gate:{name}`, deleted by nobody: a Redis that loses it admits an old
/// token until a new one was seen.
#[derive(Clone)]
pub struct FenceGate {
    client: Arc<Client>,
    name: LockName,
    key: Vec<u8>,
}

impl FenceGate {
    /// The gate of that name; it may be the lock's, and has a key of its own. Nothing is sent.
    pub fn new(locks: &Locks, name: impl Into<LockName>) -> Self {
        let client = locks.client().clone();
        let name = client.named(name);
        FenceGate {
            key: fence_gate(&name),
            client,
            name,
        }
    }

    /// The gate's name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Admits the token, unless a newer one was admitted before. The same token is admitted again.
    ///
    /// # Errors
    /// [`FenceError::Stale`]: a newer holder has been here, so do not write. [`FenceError::Call`]: Redis gave no answer or refused, so it is not known.
    ///
    /// # Cancel safety
    /// The token may have been admitted.
    pub async fn admit(&self, token: u64) -> Result<(), FenceError> {
        let name = || self.name.to_string();
        if self.name.is_empty() {
            return Err(FenceError::EmptyName);
        }
        let call = FENCE_ADMIT.call([&self.key], [Value::Number(token)]);
        let result = self.client.connection.run(&call, None).await;
        let reply = result.map_err(|source| FenceError::Call { name: name(), source })?;
        match admitted(&reply) {
            Some((true, _)) => Ok(()),
            Some((false, newest)) => Err(FenceError::Stale {
                name: name(),
                token,
                newest,
            }),
            None => Err(FenceError::Call {
                name: name(),
                source: nonsense(call.text.name, &reply),
            }),
        }
    }
}

impl fmt::Debug for FenceGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FenceGate").field(&self.name).finish()
    }
}

/// Whether the token was admitted, and the newest one.
fn admitted(reply: &Reply) -> Option<(bool, u64)> {
    let Reply::Array(parts) = reply else {
        return None;
    };
    let [Reply::Int(admitted), Reply::BulkString(newest)] = parts.as_slice() else {
        return None;
    };
    let newest = std::str::from_utf8(newest).ok()?.parse().ok()?;
    Some((*admitted == 1, newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_the_gate_is_read() {
        let answer = |admitted, newest: &str| {
            let parts = vec![Reply::Int(admitted), Reply::BulkString(newest.into())];
            super::admitted(&Reply::Array(parts))
        };
        assert_eq!(answer(1, "7"), Some((true, 7)));
        assert_eq!(answer(0, "18446744073709551615"), Some((false, u64::MAX)));
        assert_eq!(answer(0, "x"), None);
        assert_eq!(super::admitted(&Reply::Nil), None);
    }
}
