//! Several reentrant locks of one Redis held as one: all or none, in one script. Each of them is an ordinary lock to everybody else.

use std::time::Duration;

use crate::keys::{Channel, LockName, wake_channel};
use crate::kind::LockKind;
use crate::mode::{Ask, Mode, Renewable, Wake};
use crate::options::lease_millis;
use crate::owner::HolderId;
use crate::script::{Call, MULTI_ACQUIRE, MULTI_HAND_OVER, MULTI_RELEASE, Value};

/// The keys of several locks.
#[derive(Clone, Debug)]
pub struct Multi {
    /// All names, for messages and as the place to wait for all of them and to enter again.
    joined: LockName,
    names: Vec<LockName>,
    channels: Vec<Channel>,
}

impl Multi {
    /// The locks of these names; one that is given twice is taken once.
    pub(crate) fn new(names: impl IntoIterator<Item = LockName>) -> Self {
        let mut names: Vec<LockName> = names.into_iter().collect();
        // A name mapper can give two names one key: that is one lock.
        names.sort_by(|one, other| one.key().cmp(other.key()));
        names.dedup_by(|one, other| one.key() == other.key());
        Multi {
            joined: joined(&names),
            channels: names.iter().map(wake_channel).collect(),
            names,
        }
    }

    fn keys(&self) -> Vec<&[u8]> {
        self.names.iter().map(LockName::key).collect()
    }
}

/// How these names read together. Names may hold a comma of their own, so what is equal must have more in common than that.
fn joined(names: &[LockName]) -> LockName {
    // An empty name among them makes the whole empty, which is refused before anything is sent.
    if names.iter().any(LockName::is_empty) {
        return LockName::from("");
    }
    if let [one] = names {
        return one.clone();
    }
    let all: Vec<&[u8]> = names.iter().map(LockName::as_bytes).collect();
    let mut apart = Vec::new();
    for key in names.iter().map(LockName::key) {
        apart.extend_from_slice(format!("{}:", key.len()).as_bytes());
        apart.extend_from_slice(key);
    }
    LockName::from(all.join(&b", "[..])).with_key(Some(apart.into()))
}

impl Mode for Multi {
    fn kind(&self) -> LockKind {
        LockKind::Multi
    }

    fn name(&self) -> &LockName {
        &self.joined
    }

    fn names(&self) -> Vec<LockName> {
        self.names.clone()
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        let args = [
            Value::Bytes(ask.holder.as_bytes()),
            Value::Number(ask.count.into()),
            Value::Number(lease_millis(ask.lease)),
        ];
        MULTI_ACQUIRE.call([], args, &[(self.keys(), Vec::new())])
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        let args = [Value::Bytes(holder.as_bytes()), Value::Number(count.into())];
        let channels = self
            .channels
            .iter()
            .map(|channel| Value::Bytes(channel.as_bytes()))
            .collect();
        MULTI_RELEASE.call([], args, &[(self.keys(), channels)])
    }

    fn hand_over(&self, from: &HolderId, to: &HolderId, lease: Duration) -> Option<Call> {
        let args = [
            Value::Bytes(from.as_bytes()),
            Value::Bytes(to.as_bytes()),
            Value::Number(lease_millis(lease)),
        ];
        Some(MULTI_HAND_OVER.call([], args, &[(self.keys(), Vec::new())]))
    }

    fn wake(&self, _holder: &HolderId, busy: usize) -> Wake {
        match self.channels.get(busy) {
            Some(channel) => Wake::Channel(channel.clone()),
            None => Wake::Poll,
        }
    }

    fn renewal(&self, holder: &HolderId, _count: u32) -> Vec<Renewable> {
        let hash = |name: &LockName| Renewable::hash(name, holder.as_bytes().to_vec());
        self.names.iter().map(hash).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::HolderIds;

    #[test]
    fn names_are_taken_in_one_order_and_each_once() {
        let lock = Multi::new(["b", "a", "b"].map(LockName::from));
        let holder = HolderIds::new().next();
        let id = holder.to_string();
        let ask = Ask {
            holder: &holder,
            count: 1,
            lease: Duration::from_secs(1),
            beside: None,
            may_queue: false,
        };
        assert_eq!(lock.acquire(&ask).words(), ["2", "a", "b", &id, "1", "1000"]);
        let channels = ["redisson_lock__channel:{a}", "redisson_lock__channel:{b}"];
        assert_eq!(
            lock.release(&holder, 0).words(),
            [&["2", "a", "b", &id, "0"][..], &channels[..]].concat()
        );
        assert_eq!(lock.renewal(&holder, 1).len(), 2);
        assert_eq!(lock.name().to_string(), "a, b");
    }

    #[test]
    fn names_that_read_alike_together_are_told_apart() {
        let of = |names: &[&str]| Multi::new(names.iter().copied().map(LockName::from)).name().clone();
        let alike = [
            of(&["a", "b", "c"]),
            of(&["a, b", "c"]),
            of(&["a", "b, c"]),
            of(&["a, b, c"]),
        ];
        for (i, one) in alike.iter().enumerate() {
            assert_eq!(one.to_string(), "a, b, c");
            assert!(alike[..i].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(of(&["b", "a"]), of(&["a", "b", "a"]));
        assert_eq!(of(&["a"]), LockName::from("a"));
    }

    #[test]
    fn names_with_one_key_are_one_lock() {
        let named = |name: &str, key: &str| LockName::from(name).with_key(Some(key.into()));
        let lock = Multi::new([named("a", "k"), named("b", "j"), named("c", "k")]);
        assert_eq!(lock.keys(), [b"j", b"k"]);
        assert_eq!(lock.name().to_string(), "b, a");
    }

    #[test]
    fn no_names_or_an_empty_one_are_an_empty_name() {
        assert!(Multi::new([]).name().is_empty());
        assert!(Multi::new(["a", ""].map(LockName::from)).name().is_empty());
    }
}
