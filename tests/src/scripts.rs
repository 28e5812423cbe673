//! The library's scripts as it sends them, for tests that let a server run one twice or late.

macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!(concat!("../../locks/lua/", $file, ".lua")),)+) };
}

/// Takes a reentrant lock or raises its hold: one key, three arguments.
pub const REENTRANT_ACQUIRE: &str = script!("free", "hold", "take", "reentrant_acquire");
/// Lowers a reentrant lock's hold: one key, three arguments.
pub const REENTRANT_RELEASE: &str = script!("reentrant_release");
/// Passes a reentrant lock on to another holder: one key, three arguments.
pub const HAND_OVER: &str = script!("hold", "take", "pass", "hand_over");
/// Takes a fair lock, raises its hold or queues for it: three keys, five arguments.
pub const FAIR_ACQUIRE: &str = script!("hold", "take", "fair_queue", "fair_acquire");
/// Lowers a fair lock's hold and leaves its queue: three keys, three arguments.
pub const FAIR_RELEASE: &str = script!("hold", "fair_queue", "fair_release");
/// Keeps holds alive: the keys of each hold, the lease time and what each hold is.
pub const RENEW: &str = script!("read_write", "renew");
