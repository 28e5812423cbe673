//! For operators: look at a lock, take it away from its holder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value as Reply;

use crate::error::{AdminError, CallError};
use crate::keys::{LockName, fair_queue, fair_scores, fair_stem, hold_stem, read_write_channel, wake_channel};
use crate::locks::Client;
use crate::mode::nonsense;
use crate::owner::HolderId;
use crate::script::{Call, FAIR_WAKE, FORCE_RELEASE, INSPECT, SCAN, Value, WAITERS};

/// The operator's view of a Redis with locks.
#[derive(Clone)]
pub struct Admin {
    client: Arc<Client>,
}

/// What is known of a lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Who holds it, and how often each.
    pub holders: Vec<Holder>,
    /// How long Redis keeps it without renewal; `None`: for ever, which no lock of ours or of Redisson's does.
    pub time_left: Option<Duration>,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Redis' name for the hold.
    pub id: String,
    /// How many times it is held.
    pub count: u32,
}

/// One that waits for a fair lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Redis' name for the acquire that waits; the hold will have the same.
    pub id: String,
    /// How long it keeps its place without asking again; `None` if nothing says so. Redisson's waiters do not ask: theirs says how
    /// long they may wait.
    pub place_left: Option<Duration>,
}

impl LockInfo {
    fn read(ttl: i64, fields: &[Reply]) -> Self {
        // The mode of a read-write lock is no holder.
        let holders = fields.chunks_exact(2).filter_map(|pair| {
            Some(Holder {
                id: text(&pair[0]),
                count: text(&pair[1]).parse().ok()?,
            })
        });
        LockInfo {
            holders: holders.collect(),
            time_left: u64::try_from(ttl).ok().map(Duration::from_millis),
        }
    }
}

impl Admin {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Admin { client }
    }

    /// Who holds the lock; `None` if it is free. Changes nothing.
    ///
    /// # Errors
    /// [`AdminError`].
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<Option<LockInfo>, AdminError> {
        let name = self.client.named(name);
        let reply = self.run(&name, "inspected", INSPECT.call([name.key()], [])).await?;
        let Reply::Array(parts) = &reply else {
            return Err(unreadable(&name, "inspected", &reply));
        };
        let [kind, Reply::Int(ttl), Reply::Array(fields)] = parts.as_slice() else {
            return Err(unreadable(&name, "inspected", &reply));
        };
        match text(kind).as_str() {
            "none" => return Ok(None),
            "hash" => {}
            other => return Err(not_a_lock(&name, other)),
        }
        Ok(Some(LockInfo::read(*ttl, fields)))
    }

    /// Who waits for a fair lock, the first in the queue first; empty if nobody does. Changes nothing, so it may name waiters that
    /// are dead.
    ///
    /// # Errors
    /// [`AdminError`].
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn waiters(&self, name: impl Into<LockName>) -> Result<Vec<Waiter>, AdminError> {
        let name = self.client.named(name);
        let call = WAITERS.call([&fair_queue(&name), &fair_scores(&name)], []);
        let reply = self.run(&name, "inspected", call).await?;
        let Reply::Array(parts) = &reply else {
            return Err(unreadable(&name, "inspected", &reply));
        };
        let waiters = parts.chunks_exact(2).map(|pair| Waiter {
            id: text(&pair[0]),
            place_left: match pair[1] {
                Reply::Int(left) => u64::try_from(left).ok().map(Duration::from_millis),
                _ => None,
            },
        });
        Ok(waiters.collect())
    }

    /// Takes the lock away from whoever holds it and wakes a waiter; says whether it was held.
    ///
    /// The holder is told at its next renewal, so two workers can be at work until then. Be sure that the holder is dead, or
    /// that what it does is guarded otherwise.
    ///
    /// # Errors
    /// [`AdminError`].
    ///
    /// # Cancel safety
    /// The lock may have been released.
    pub async fn force_release(&self, name: impl Into<LockName>) -> Result<bool, AdminError> {
        self.take_away(self.client.named(name), false).await
    }

    /// Every lock that is held and whose key matches the pattern, as Redis' `SCAN` has patterns: `*`, `order:*`, `stock:[ab]?`.
    /// Changes nothing. It walks through all keys of the server in steps of some hundred, so it is no tool for a program's normal
    /// work; what is taken or given back meanwhile may or may not be in it.
    ///
    /// A lock is told by its form: a hash whose fields are holder ids. The names are keys, whatever the client's name mapper says.
    ///
    /// # Errors
    /// [`AdminError`]. The user needs `+scan +type +hlen +hgetall +pttl`.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn list(&self, pattern: &str) -> Result<Vec<(LockName, LockInfo)>, AdminError> {
        let subject = LockName::from(pattern);
        let mut found = Vec::new();
        let mut cursor = b"0".to_vec();
        loop {
            let args = [
                Value::Bytes(&cursor),
                Value::Bytes(pattern.as_bytes()),
                Value::Number(MOST_FIELDS),
            ];
            let reply = self.run(&subject, "listed", SCAN.call([], args)).await?;
            let Reply::Array(parts) = &reply else {
                return Err(unreadable(&subject, "listed", &reply));
            };
            let Some((Reply::BulkString(next), keys)) = parts.split_first() else {
                return Err(unreadable(&subject, "listed", &reply));
            };
            found.extend(keys.iter().filter_map(scanned));
            cursor = next.clone();
            if cursor == b"0" {
                // A key that moved within the server during the walk can come twice.
                found.sort_by(|(one, _): &(LockName, LockInfo), (other, _)| one.cmp(other));
                found.dedup_by(|(one, _), (other, _)| one == other);
                return Ok(found);
            }
        }
    }

    /// The locks among those of the pattern that nothing will ever end: they have no time to live. No lock of ours or of Redisson's
    /// is like that; they are left over from a tool that broke off in the middle. Changes nothing: it tells what
    /// [`sweep`](Self::sweep) would remove.
    ///
    /// A lock with a time to live is none of them, whoever its holder is: Redis cannot tell whether a holder lives, and its lease
    /// ends by itself.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn leftovers(&self, pattern: &str) -> Result<Vec<LockName>, AdminError> {
        let listed = self.list(pattern).await?.into_iter();
        let endless = listed.filter(|(_, info)| info.time_left.is_none());
        Ok(endless.map(|(name, _)| name).collect())
    }

    /// Removes the [`leftovers`](Self::leftovers) of the pattern, wakes their waiters, and tells which they were. Each is looked
    /// at again in the same step that removes it.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    ///
    /// # Cancel safety
    /// Some may be removed.
    pub async fn sweep(&self, pattern: &str) -> Result<Vec<LockName>, AdminError> {
        let mut removed = Vec::new();
        for name in self.leftovers(pattern).await? {
            if self.take_away(name.clone(), true).await? {
                removed.push(name);
            }
        }
        Ok(removed)
    }

    async fn take_away(&self, name: LockName, only_endless: bool) -> Result<bool, AdminError> {
        let (channel, read_write) = (wake_channel(&name), read_write_channel(&name));
        let [channel, read_write] = [&channel, &read_write].map(|channel| Value::Bytes(channel.as_bytes()));
        let args = [channel, read_write, Value::Number(only_endless.into())];
        let call = FORCE_RELEASE.call([name.key(), &hold_stem(&name)], args);
        let reply = self.run(&name, "force-released", call).await?;
        let Reply::Array(parts) = &reply else {
            return Err(unreadable(&name, "force-released", &reply));
        };
        let was_held = match parts.first().map(text).as_deref() {
            Some("none") => false,
            Some("hash") => true,
            other => return Err(not_a_lock(&name, other.unwrap_or_default())),
        };
        // In a fair lock's queue it is the first one's turn.
        let wake = FAIR_WAKE.call(
            [name.key(), &fair_queue(&name), &fair_scores(&name)],
            [Value::Bytes(&fair_stem(&name))],
        );
        match self.run(&name, "force-released", wake).await {
            // Who may not touch the queue has no fair locks.
            Ok(_)
            | Err(AdminError::Call {
                source: CallError::Denied { .. },
                ..
            }) => Ok(was_held),
            Err(error) => Err(error),
        }
    }

    async fn run(&self, name: &LockName, what: &'static str, call: Call) -> Result<Reply, AdminError> {
        if name.is_empty() {
            return Err(AdminError::EmptyName);
        }
        let result = self.client.connection.run(&call, None).await;
        result.map_err(|source| failed(name, what, source))
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

/// A hash that was scanned, if it has the form of a lock.
fn scanned(reply: &Reply) -> Option<(LockName, LockInfo)> {
    let Reply::Array(parts) = reply else { return None };
    let [Reply::BulkString(key), Reply::Int(ttl), Reply::Array(fields)] = parts.as_slice() else {
        return None;
    };
    let info = LockInfo::read(*ttl, fields);
    // Besides its holders a lock has a mode at most.
    let others = fields.len() / 2 - info.holders.len();
    let is_lock = !info.holders.is_empty()
        && others <= 1
        && info.holders.iter().all(|holder| HolderId::is_one(&holder.id))
        && fields
            .chunks_exact(2)
            .all(|pair| text(&pair[1]).parse::<u32>().is_ok() || text(&pair[0]) == "mode");
    is_lock.then(|| (LockName::from(key.as_slice()), info))
}

fn failed(name: &LockName, what: &'static str, source: CallError) -> AdminError {
    AdminError::Call {
        name: name.to_string(),
        what,
        source,
    }
}

fn unreadable(name: &LockName, what: &'static str, reply: &Reply) -> AdminError {
    failed(name, what, nonsense("inspect", reply))
}

fn not_a_lock(name: &LockName, found: &str) -> AdminError {
    AdminError::NotALock {
        name: name.to_string(),
        found: format!("a {found}"),
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::SimpleString(text) => text.clone(),
        other => format!("{other:?}"),
    }
}

/// A lock has a field a holder. No more than this are looked at: a hash of millions is somebody's data.
const MOST_FIELDS: u64 = 10_000;
