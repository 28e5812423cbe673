//! Who may hold a lock and re-enter it, and the ids by which Redis knows a hold.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::hold::Hold;
use crate::keys::LockName;
use crate::kind::LockKind;
use crate::mode::{Mode, Part};

/// Redis' name for one hold: `<client uuid>:<n>`, as Redisson writes it; of a fair lock `<client uuid>:g<wait in ms>:<n>`.
///
/// It is new for every outermost acquire and never used again, so a command of an earlier hold that runs late can touch
/// nothing of a later one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(Arc<str>);

impl HolderId {
    /// Whether a field of a hash has the form of a holder id, ours or Redisson's, or of a writer's field made of it.
    pub(crate) fn is_one(field: &str) -> bool {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let field = field.strip_suffix(":write").unwrap_or(field);
        let Some((client, rest)) = field.split_once(':') else {
            return false;
        };
        let (marker, last) = rest.split_once(':').unwrap_or(("g0", rest));
        uuid::Uuid::try_parse(client).is_ok() && marker.strip_prefix('g').is_some_and(number) && number(last)
    }

    /// The id of a hold that another process has begun.
    pub(crate) fn of(text: &str) -> Self {
        HolderId(text.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The holder ids of one client.
#[derive(Debug)]
pub(crate) struct HolderIds {
    client: String,
    /// Tells the clients of this process apart.
    number: u64,
    next: AtomicU64,
}

impl HolderIds {
    pub(crate) fn new() -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        HolderIds {
            client: uuid::Uuid::new_v4().to_string(),
            number: CLIENTS.fetch_add(1, Ordering::Relaxed),
            next: AtomicU64::new(1),
        }
    }

    pub(crate) fn next(&self) -> HolderId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        HolderId(format!("{}:{number}", self.client).into())
    }

    /// An id that says how long its waiter may be silent before it counts as dead. Only scripts of ours read it; for Redisson an
    /// id is one word.
    pub(crate) fn next_with_wait(&self, wait_ms: u64) -> HolderId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        HolderId(format!("{}:g{wait_ms}:{number}", self.client).into())
    }

    pub(crate) fn client(&self) -> &str {
        &self.client
    }
}

/// Who may hold a lock, and re-enter it: an explicit handle of the application.
///
/// Every plain acquire has an owner of its own, so two tasks are never re-entrant to each other by accident. To re-enter,
/// pass one owner to both acquires, or use [`Lease::reenter`](crate::Lease::reenter). Clones are the same owner.
#[derive(Clone, Default)]
pub struct Owner {
    places: Arc<Mutex<HashMap<PlaceKey, Arc<Place>>>>,
}

/// Which lock: the same name on another client's Redis, or of another kind, is another lock.
type PlaceKey = (u64, LockKind, Part, LockName);

/// An owner's place at one lock. Its acquires there go one after the other, so that the second finds the hold of the first.
pub(crate) struct Place {
    turn: tokio::sync::Mutex<()>,
    hold: Mutex<Weak<Hold>>,
}

impl Place {
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(crate) fn try_turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.turn.try_lock().ok()
    }

    /// The hold that a further acquire re-enters.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        lock(&self.hold).upgrade().filter(|hold| hold.is_open())
    }

    pub(crate) fn set(&self, hold: &Arc<Hold>) {
        *lock(&self.hold) = Arc::downgrade(hold);
    }
}

impl Owner {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The owner's place at a lock; places whose hold has ended are swept on the way.
    pub(crate) fn place(&self, ids: &HolderIds, mode: &dyn Mode) -> Arc<Place> {
        self.place_of(ids, mode.kind(), mode.part(), mode.name())
    }

    /// The owner's hold on another part of the same lock.
    pub(crate) fn hold_of_part(&self, ids: &HolderIds, mode: &dyn Mode, part: Part) -> Option<Arc<Hold>> {
        let key = (ids.number, mode.kind(), part, mode.name().clone());
        lock(&self.places).get(&key)?.hold()
    }

    fn place_of(&self, ids: &HolderIds, kind: LockKind, part: Part, name: &LockName) -> Arc<Place> {
        let mut places = lock(&self.places);
        if places.len() >= 32 && places.len().is_power_of_two() {
            places.retain(|_, place| Arc::strong_count(place) > 1 || place.hold().is_some());
        }
        let place = places.entry((ids.number, kind, part, name.clone())).or_insert_with(|| {
            Arc::new(Place {
                turn: tokio::sync::Mutex::new(()),
                hold: Mutex::new(Weak::new()),
            })
        });
        place.clone()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = lock(&self.places);
        f.debug_struct("Owner").field("locks", &places.len()).finish()
    }
}

impl PartialEq for Owner {
    /// Whether both are the same owner.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.places, &other.places)
    }
}

impl Eq for Owner {}

/// A lock that is never poisoned: nothing that can panic runs under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_ids_are_never_the_same_twice() {
        let ids = HolderIds::new();
        let (first, second) = (ids.next(), ids.next());
        assert_ne!(first, second);
        let text = first.to_string();
        let (client, number) = text.rsplit_once(':').unwrap();
        assert_eq!((client.len(), number), (36, "1"));
        assert_eq!(client, ids.client());
    }

    #[test]
    fn a_holder_id_is_told_from_what_an_application_may_write() {
        let ids = HolderIds::new();
        for id in [ids.next(), ids.next_with_wait(300_000)] {
            assert!(HolderId::is_one(&id.to_string()));
            assert!(HolderId::is_one(&format!("{id}:write")));
        }
        for other in [
            "",
            "mode",
            "name",
            "user:7",
            "b2ad3fcd-74a9-4d5c-8a24-dc1b6f6c0c4e",
            "b2ad3fcd-74a9-4d5c-8a24-dc1b6f6c0c4e:x",
        ] {
            assert!(!HolderId::is_one(other), "{other}");
        }
    }

    #[test]
    fn one_name_is_another_lock_on_another_client_and_of_another_kind() {
        let (owner, here, there) = (Owner::new(), HolderIds::new(), HolderIds::new());
        let name = LockName::from("n");
        let place = owner.place_of(&here, LockKind::Reentrant, Part::Whole, &name);
        assert!(Arc::ptr_eq(
            &place,
            &owner.place_of(&here, LockKind::Reentrant, Part::Whole, &name)
        ));
        assert!(!Arc::ptr_eq(
            &place,
            &owner.place_of(&there, LockKind::Reentrant, Part::Whole, &name)
        ));
        assert!(!Arc::ptr_eq(
            &place,
            &owner.place_of(&here, LockKind::Fenced, Part::Whole, &name)
        ));
    }

    #[test]
    fn two_owners_are_two_and_a_clone_is_the_same() {
        let owner = Owner::new();
        assert_eq!(owner, owner.clone());
        assert_ne!(owner, Owner::new());
    }

    #[test]
    fn an_owner_forgets_places_it_does_not_hold() {
        let (owner, ids) = (Owner::new(), HolderIds::new());
        for n in 0..10_000 {
            owner.place_of(&ids, LockKind::Reentrant, Part::Whole, &format!("name:{n}").into());
        }
        assert!(lock(&owner.places).len() <= 64);
    }
}
