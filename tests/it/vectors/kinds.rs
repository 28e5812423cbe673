//! The kinds of lock that the library has, by the names that the recording gives them. A new kind is added here.

use leasehold::{Acquire, LockInfo, Locks, TryAcquire};

use super::file::LockSpec;

/// Whether the library has this kind of lock.
pub(super) fn is_known(kind: &str) -> bool {
    KNOWN.contains(&kind)
}

/// Whether the lock, or the half of it that is meant, is held.
pub(super) fn is_held(info: &LockInfo, kind: &str) -> bool {
    let ids = || {
        info.holders
            .iter()
            .map(|holder| holder.id.as_str())
            .filter(|id| *id != "mode")
    };
    let writers = ids().filter(|id| id.ends_with(":write")).count();
    match kind {
        "write" => writers > 0,
        "read" => ids().count() > writers,
        _ => true,
    }
}

pub(super) fn acquire(locks: &Locks, spec: &LockSpec) -> Acquire {
    let name = spec.name.as_str();
    match spec.kind.as_str() {
        "reentrant" => locks.reentrant(name).acquire(),
        "spin" => locks.spin(name).acquire(),
        "fenced" => locks.fenced(name).acquire(),
        "read" => locks.read_write(name).read().acquire(),
        "write" => locks.read_write(name).write().acquire(),
        "multi" => locks.multi(&spec.of).acquire(),
        other => panic!("{other} is not known"),
    }
}

pub(super) fn try_acquire(locks: &Locks, spec: &LockSpec) -> TryAcquire {
    let name = spec.name.as_str();
    match spec.kind.as_str() {
        "reentrant" => locks.reentrant(name).try_acquire(),
        "spin" => locks.spin(name).try_acquire(),
        "fenced" => locks.fenced(name).try_acquire(),
        "read" => locks.read_write(name).read().try_acquire(),
        "write" => locks.read_write(name).write().try_acquire(),
        "multi" => locks.multi(&spec.of).try_acquire(),
        other => panic!("{other} is not known"),
    }
}

/// From here on one attempt is one script call.
pub(super) async fn load_scripts(locks: &Locks) {
    for kind in KNOWN {
        let name = format!("loading:{kind}");
        let spec = LockSpec {
            kind: (*kind).into(),
            of: vec![name.clone()],
            name,
        };
        acquire(locks, &spec).await.unwrap().release().await.unwrap();
    }
}

const KNOWN: &[&str] = &["reentrant", "read", "write", "fenced", "spin", "multi"];
