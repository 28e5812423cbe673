//! How one kind of lock speaks to Redis: it builds calls, others send them. Pure, no I/O.

mod fair;
mod fenced;
mod multi;
mod read_write;
mod reentrant;
mod spin;

pub use fair::Fair;
pub use fenced::Fenced;
pub use multi::Multi;
pub use read_write::{Read, Write};
pub use reentrant::Reentrant;
pub use spin::Spin;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::CallError;
use crate::keys::{Channel, LockName};
use crate::kind::LockKind;
use crate::owner::{HolderId, HolderIds};
use crate::script::Call;

/// One kind of lock over one name: its keys, scripts and channel.
pub(crate) trait Mode: fmt::Debug + Send + Sync + 'static {
    /// Which kind it is.
    fn kind(&self) -> LockKind;
    /// Which part of it, where a name has several.
    fn part(&self) -> Part {
        Part::Whole
    }
    /// The name, which is also the key of the lock hash.
    fn name(&self) -> &LockName;
    /// Every name that it is of.
    fn names(&self) -> Vec<LockName> {
        vec![self.name().clone()]
    }
    /// A new id for an outermost acquire that waits at most so long.
    fn holder(&self, ids: &HolderIds, _wait_limit: Option<Duration>) -> HolderId {
        ids.next()
    }
    /// Takes the lock, or raises the hold to the count asked for. Harmless when run twice.
    fn acquire(&self, ask: &Ask<'_>) -> Call;
    /// Lowers the hold to this count; 0 gives the lock back, and the place in the queue if it stands in one.
    /// Harmless when run twice.
    fn release(&self, holder: &HolderId, count: u32) -> Call;
    /// Gives the lock back and takes it for another holder of this client, in one step. `None` if the other has to ask for itself.
    /// Harmless when run twice.
    fn hand_over(&self, _from: &HolderId, _to: &HolderId, _lease: Duration) -> Option<Call> {
        None
    }
    /// How this holder learns of a release while it waits; `busy` is what its last attempt was told.
    fn wake(&self, holder: &HolderId, busy: usize) -> Wake;
    /// What keeps a hold with this count alive.
    fn renewal(&self, holder: &HolderId, _count: u32) -> Vec<Renewable> {
        vec![Renewable::hash(self.name(), holder.as_bytes().to_vec())]
    }
    /// Whether the waiters of this process ask one after the other.
    fn queues_locally(&self) -> bool {
        true
    }
    /// The part whose hold by the same owner lets this one in.
    fn stands_beside(&self) -> Option<Part> {
        None
    }
    /// The part whose hold by the same owner this one would wait for, for ever.
    fn waits_for(&self) -> Option<Part> {
        None
    }
    /// The part that this one can be given back to, so that its owner stays in.
    fn downgraded(&self) -> Option<Arc<dyn Mode>> {
        None
    }
    /// Whether waiters stand in a queue in Redis, which decides whose turn it is.
    fn queues(&self) -> bool {
        false
    }
    /// Whether a waiter that listens leaves word of itself in Redis, and has to take it back when it leaves.
    fn gives_notice(&self) -> bool {
        self.queues()
    }
}

/// What an attempt asks for.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) holder: &'a HolderId,
    /// The hold count to leave behind.
    pub(crate) count: u32,
    pub(crate) lease: Duration,
    /// The hold of the same owner on the part that this one may stand beside.
    pub(crate) beside: Option<&'a HolderId>,
    /// Whether a busy answer may leave word of the caller in Redis. It listens already, so it hears when its turn comes.
    pub(crate) may_queue: bool,
}

/// The parts of a lock that are acquired apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub(crate) enum Part {
    Whole,
    Read,
    Write,
}

/// What a renewal of a hold names; a hold of several locks has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewable {
    /// The lock hash.
    pub(crate) key: LockName,
    /// Its field that is this hold's.
    pub(crate) field: Vec<u8>,
    /// The keys beside the hash that live as long as the hold.
    pub(crate) hold_keys: Vec<Vec<u8>>,
}

impl Renewable {
    /// A hold that is a field of a hash, and nothing beside it.
    pub(crate) fn hash(key: &LockName, field: Vec<u8>) -> Self {
        Renewable {
            key: key.clone(),
            field,
            hold_keys: Vec::new(),
        }
    }
}

/// How a waiter learns of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// By a message there.
    Channel(Channel),
    /// By asking again and again.
    Poll,
}

/// What an acquire script answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The lock is held.
    Granted(Grant),
    /// Another holds it; asking again makes sense after this time, if no wake-up comes first.
    Busy {
        retry_after: Duration,
        /// Which of several locks it is; of a fair lock the place in the queue, from 1, 0 for none.
        busy: usize,
    },
    /// The key has no time to live, so no lock of ours or of Redisson's.
    NoTimeToLive,
    /// A re-entry whose hold is gone. Nothing was created.
    Gone,
    /// Granted, again and again, by answers that came when the lease could not be trusted any more.
    TooLate { took: Duration },
}

/// A hold as Redis has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) count: u32,
    /// Of the kind that has one.
    pub(crate) fencing_token: Option<u64>,
}

/// What a release script answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// This count is left; 0: the lock is free, and so many subscribers have heard of it.
    Left { count: u32, heard: u32 },
    /// The holder held nothing.
    Missing,
}

/// Reads the answer of an acquire script; all kinds answer in one shape, of which a plain 1 is short for a first hold.
pub(crate) fn attempt(script: &'static str, answer: Value) -> Result<Attempt, CallError> {
    if let Some(grant) = grant(&answer) {
        return Ok(Attempt::Granted(grant));
    }
    let (refusal, busy) = refusal(&answer);
    match refusal {
        Some((0, -1)) => Ok(Attempt::NoTimeToLive),
        // 0 or -2: it ends this very moment, so ask again.
        Some((0, ttl)) => Ok(Attempt::Busy {
            retry_after: Duration::from_millis(ttl.max(1) as u64),
            busy,
        }),
        Some((-1, _)) => Ok(Attempt::Gone),
        _ => Err(nonsense(script, &answer)),
    }
}

/// Reads the answer of a release script; all kinds answer in one shape, of which a plain 0 is short for a lock that is free and that
/// nobody waits for.
pub(crate) fn given(script: &'static str, answer: Value) -> Result<Given, CallError> {
    let answered = match answer {
        Value::Int(0) => Some((0, 0)),
        _ => pair(&answer),
    };
    match answered {
        Some((-1, _)) => Ok(Given::Missing),
        Some((left, heard)) if left >= 0 => {
            if heard < 0 {
                warn_of_silence();
            }
            Ok(Given::Left {
                count: left as u32,
                heard: heard.max(0) as u32,
            })
        }
        _ => Err(nonsense(script, &answer)),
    }
}

fn warn_of_silence() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            "Redis does not let this user publish wake-ups, so waiters learn of a release late; allow its channels"
        )
    });
}

/// The error for an answer of another shape.
pub(crate) fn nonsense(script: &'static str, answer: &Value) -> CallError {
    let mut answer = format!("{answer:?}");
    if let Some((cut, _)) = answer.char_indices().nth(120) {
        answer.truncate(cut);
    }
    CallError::Nonsense { script, answer }
}

fn grant(answer: &Value) -> Option<Grant> {
    let parts = match answer {
        Value::Int(1) => &[Value::Int(1), Value::Int(1)],
        Value::Array(parts) => parts.as_slice(),
        _ => return None,
    };
    let (count, fencing_token) = match parts {
        [Value::Int(1), Value::Int(count)] => (count, None),
        [Value::Int(1), Value::Int(count), Value::Int(token)] => (count, Some(u64::try_from(*token).ok()?)),
        _ => return None,
    };
    let count = u32::try_from(*count).ok().filter(|count| *count > 0)?;
    Some(Grant { count, fencing_token })
}

/// A refusal, and which of several locks it is about.
fn refusal(answer: &Value) -> (Option<(i64, i64)>, usize) {
    match answer {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(first), Value::Int(second), Value::Int(busy)] => {
                (Some((*first, *second)), usize::try_from(*busy).unwrap_or_default())
            }
            _ => (pair(answer), 0),
        },
        _ => (None, 0),
    }
}

fn pair(answer: &Value) -> Option<(i64, i64)> {
    match answer {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(first), Value::Int(second)] => Some((*first, *second)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(first: i64, second: i64) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(second)])
    }

    #[test]
    fn every_answer_of_an_acquire_is_read() {
        let read = |first, second| attempt("s", answer(first, second)).unwrap();
        let granted = |count, fencing_token| Attempt::Granted(Grant { count, fencing_token });
        assert_eq!(read(1, 2), granted(2, None));
        assert_eq!(attempt("s", Value::Int(1)).unwrap(), granted(1, None));
        assert!(attempt("s", Value::Int(0)).is_err() && attempt("s", Value::Int(-1)).is_err());
        let with_token = Value::Array(vec![Value::Int(1), Value::Int(1), Value::Int(33)]);
        assert_eq!(attempt("s", with_token).unwrap(), granted(1, Some(33)));
        let busy = |ms| Attempt::Busy {
            retry_after: Duration::from_millis(ms),
            busy: 0,
        };
        let second = Value::Array(vec![Value::Int(0), Value::Int(9), Value::Int(1)]);
        assert!(matches!(attempt("s", second).unwrap(), Attempt::Busy { busy: 1, .. }));
        assert_eq!(read(0, 250), busy(250));
        assert_eq!(read(0, 0), busy(1), "a TTL of 0 means: ask again");
        assert_eq!(read(0, -2), busy(1));
        assert_eq!(read(0, -1), Attempt::NoTimeToLive);
        assert_eq!(read(-1, 0), Attempt::Gone);
        assert!(attempt("s", answer(1, 0)).is_err());
        assert!(attempt("s", Value::Okay).is_err());
    }

    #[test]
    fn every_answer_of_a_release_is_read() {
        let read = |first, second| given("s", answer(first, second)).unwrap();
        assert_eq!(read(0, 3), Given::Left { count: 0, heard: 3 });
        assert_eq!(given("s", Value::Int(0)).unwrap(), Given::Left { count: 0, heard: 0 });
        assert!(given("s", Value::Int(1)).is_err());
        assert_eq!(read(0, -1), Given::Left { count: 0, heard: 0 });
        assert_eq!(read(2, 0), Given::Left { count: 2, heard: 0 });
        assert_eq!(read(-1, 0), Given::Missing);
        assert!(given("s", Value::Nil).is_err());
    }
}
