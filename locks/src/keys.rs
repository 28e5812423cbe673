//! Every key and channel name, with its hash tag. Nothing else formats a key.
//!
//! The rules are Redisson's, read off what its jar writes: the test is only whether the name contains `{`.
//!
//! | rule | name without `{` | name with `{` |
//! |---|---|---|
//! | prefix(p) | `p:{name}` | `p:name` |

use std::fmt;
use std::sync::Arc;

use crate::owner::HolderId;

/// A lock's name: any bytes but none at all.
///
/// It is also the lock's main key, unless the client has a [name mapper](crate::LocksBuilder::name_mapper): then the mapped name
/// is the key, and this one is what leases, errors and events show. All other keys of the lock are made of the key and share its
/// hash tag.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName {
    name: Arc<[u8]>,
    /// If it is another than the name.
    key: Option<Arc<[u8]>>,
}

impl LockName {
    fn new(name: Arc<[u8]>) -> Self {
        LockName { name, key: None }
    }

    /// The bytes of the name, as the user gave it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.name
    }

    /// The lock's main key.
    pub(crate) fn key(&self) -> &[u8] {
        self.key.as_ref().unwrap_or(&self.name)
    }

    /// The same name with this key.
    pub(crate) fn with_key(&self, key: Option<LockName>) -> Self {
        LockName {
            name: self.name.clone(),
            key: key.map(|key| key.name),
        }
    }

    /// Neither an empty name nor an empty key names a lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.name.is_empty() || self.key().is_empty()
    }

    /// `prefix:{name}`, or `prefix:name` if the name brings braces of its own.
    fn prefixed(&self, prefix: &str) -> Vec<u8> {
        let own = self.key();
        let braces = !own.contains(&b'{');
        let mut key = Vec::with_capacity(prefix.len() + own.len() + 3);
        key.extend_from_slice(prefix.as_bytes());
        key.push(b':');
        if braces {
            key.push(b'{');
        }
        key.extend_from_slice(own);
        if braces {
            key.push(b'}');
        }
        key
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name.escape_ascii())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&str> for LockName {
    fn from(name: &str) -> Self {
        LockName::new(name.as_bytes().into())
    }
}

impl From<String> for LockName {
    fn from(name: String) -> Self {
        LockName::new(name.into_bytes().into())
    }
}

impl From<&String> for LockName {
    fn from(name: &String) -> Self {
        LockName::new(name.as_bytes().into())
    }
}

impl From<&[u8]> for LockName {
    fn from(name: &[u8]) -> Self {
        LockName::new(name.into())
    }
}

impl From<Vec<u8>> for LockName {
    fn from(name: Vec<u8>) -> Self {
        LockName::new(name.into())
    }
}

impl From<&LockName> for LockName {
    fn from(name: &LockName) -> Self {
        name.clone()
    }
}

/// A pub/sub channel.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Channel(Arc<[u8]>);

impl Channel {
    pub(crate) fn new(name: &[u8]) -> Self {
        Channel(name.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The channel on which a release of this lock wakes its waiters.
pub(crate) fn wake_channel(name: &LockName) -> Channel {
    Channel::new(&name.prefixed("redisson_lock__channel"))
}

/// What the wake channel of every waiter of a fair lock begins with; its holder id follows.
pub(crate) fn fair_stem(name: &LockName) -> Vec<u8> {
    [&name.prefixed("redisson_lock__channel")[..], b":"].concat()
}

/// The channel on which one waiter of a fair lock is woken.
pub(crate) fn fair_channel(stem: &[u8], holder: &HolderId) -> Channel {
    Channel::new(&[stem, holder.as_bytes()].concat())
}

/// The queue of a fair lock: the list of its waiters.
pub(crate) fn fair_queue(name: &LockName) -> Vec<u8> {
    name.prefixed("redisson_lock_queue")
}

/// The sorted set that says when each waiter of a fair lock counts as dead.
pub(crate) fn fair_scores(name: &LockName) -> Vec<u8> {
    name.prefixed("redisson_lock_timeout")
}

/// The counter of a fenced lock: the newest token.
pub(crate) fn fencing_token(name: &LockName) -> Vec<u8> {
    name.prefixed("redisson_lock_token")
}

/// The channel on which a release of either half of a read-write lock wakes its waiters.
pub(crate) fn read_write_channel(name: &LockName) -> Channel {
    Channel::new(&name.prefixed("redisson_rwlock"))
}

/// The field of a writer in the hash of a read-write lock.
pub(crate) fn writer_field(holder: &HolderId) -> Vec<u8> {
    [holder.as_bytes(), b":write"].concat()
}

/// What the hold keys of all readers of a name begin with.
pub(crate) fn hold_stem(name: &LockName) -> Vec<u8> {
    let key = name.key();
    match key.contains(&b'{') {
        true => key.to_vec(),
        false => [b"{", key, b"}"].concat(),
    }
}

/// The key of a reader's n-th hold.
pub(crate) fn hold_key(stem: &[u8], holder: &HolderId, n: u32) -> Vec<u8> {
    [stem, b":", holder.as_bytes(), format!(":rwlock_timeout:{n}").as_bytes()].concat()
}

/// The newest fencing token that a gate of that name has admitted.
pub(crate) fn fence_gate(name: &LockName) -> Vec<u8> {
    name.prefixed("leasehold_gate")
}

/// The writers that wait for a lock whose readers let them come first; ours alone.
pub(crate) fn waiting_writers(name: &LockName) -> Vec<u8> {
    name.prefixed("leasehold_writers")
}

/// Says, for a while, that a holder id takes nothing any more; ours alone.
pub(crate) fn tombstone(name: &LockName, holder: &HolderId) -> Vec<u8> {
    let mut key = name.prefixed("leasehold_gone");
    key.push(b':');
    key.extend_from_slice(holder.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &[u8]) -> String {
        wake_channel(&LockName::from(name)).0.escape_ascii().to_string()
    }

    #[test]
    fn a_name_without_braces_becomes_the_hash_tag() {
        assert_eq!(channel(b"order:7"), "redisson_lock__channel:{order:7}");
        assert_eq!(channel(b"v}only"), "redisson_lock__channel:{v}only}");
    }

    #[test]
    fn a_name_with_an_opening_brace_is_left_alone() {
        assert_eq!(channel(b"v{open"), "redisson_lock__channel:v{open");
        assert_eq!(channel(b"x{a}y"), "redisson_lock__channel:x{a}y");
    }

    #[test]
    fn the_keys_of_a_fair_lock_share_its_hash_tag() {
        let name = LockName::from("n");
        let holder = crate::owner::HolderIds::new().next();
        assert_eq!(fair_queue(&name), b"redisson_lock_queue:{n}");
        assert_eq!(fair_scores(&name), b"redisson_lock_timeout:{n}");
        let channel = fair_channel(&fair_stem(&name), &holder);
        let expected = format!("redisson_lock__channel:{{n}}:{holder}");
        assert_eq!(channel.as_bytes(), expected.as_bytes());
    }

    #[test]
    fn a_mapped_name_is_the_key_and_the_given_one_is_shown() {
        let name = LockName::from("order:7").with_key(Some("shop:{a}:order:7".into()));
        assert_eq!(name.to_string(), "order:7");
        assert_eq!(name.as_bytes(), b"order:7");
        assert_eq!(name.key(), b"shop:{a}:order:7");
        assert_eq!(hold_stem(&name), b"shop:{a}:order:7");
        assert!(LockName::from("n").with_key(Some("".into())).is_empty());
    }

    #[test]
    fn names_are_bytes_and_print_readably() {
        let name = LockName::from(&b"a\xff\r\n"[..]);
        assert_eq!(name.to_string(), "a\\xff\\r\\n");
    }
}
