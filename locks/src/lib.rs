//! Locks on Redis that say when they are lost.
//!
//! ```no_run
//! use leasehold::Locks;
//!
//! # async fn charge() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = Locks::connect("redis://127.0.0.1/").await?;
//! let lease = locks.reentrant("order:7").acquire().await?; // waits; renewed until released
//! lease.run(charge()).await?;                              // Err(Lost) when the lease can no longer be trusted
//! lease.release().await?;
//! # Ok(()) }
//! ```
//!
//! A lock here is a *lease*: Redis keeps it for a lease time, and the watchdog renews it for as long as the [`Lease`] lives.
//! When renewals fail, the holder is told before the lease can have ended on the server. The format in Redis is that of
//! Redisson, so Rust and Java services can share a lock.
//!
//! # What is not promised
//! No lock on Redis excludes two holders under all circumstances. A process that is frozen goes on as a holder for the moment
//! after it wakes; a failover, an eviction or a restart without data forgets locks that are held; a step of the server's clock
//! ends leases early. What must never happen twice needs a guard at the place where it happens.

mod acquire;
mod admin;
mod answer;
mod builder;
mod clock;
mod connection;
mod error;
mod events;
mod fence_gate;
mod hand_off;
mod hold;
mod keys;
mod kind;
mod lease;
mod link;
mod local_queue;
mod lock;
mod lockable;
mod locks;
mod mode;
mod options;
mod owner;
mod policy;
mod quorum;
mod read_write;
mod release;
mod renewal;
mod renewal_batch;
mod renewal_links;
mod script;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod target;
mod wakeup;
mod watchdog;

pub use admin::{Admin, Holder, LockInfo, Waiter};
pub use builder::LocksBuilder;
pub use clock::Moment;
pub use error::{
    AcquireError, AdminError, AdoptError, BuildError, CallError, DowngradeError, ExtendError, FenceError, HandOffError,
    InvalidTimes, Lost, ReleaseError, WithError,
};
pub use events::{Event, EventKind, Events, Missed, Observer};
pub use fence_gate::FenceGate;
pub use hand_off::HandedOff;
pub use keys::LockName;
pub use kind::{LockKind, UnknownKind};
pub use lease::{FailureCause, Lease, LeaseState, LostReason, Released};
pub use lock::{Acquire, FairLock, FencedLock, Lock, MultiLock, ReentrantLock, SpinLock, TryAcquire};
pub use lockable::{Acquiring, Lockable};
pub use locks::{Locks, Stats, StillPending};
pub use mode::{Fair, Fenced, Multi, Read, Reentrant, Spin, Write};
pub use options::AcquireOptions;
pub use owner::{HolderId, Owner};
#[cfg(feature = "legacy-policies")]
pub use policy::CommandRetries;
pub use policy::{AttemptTimeout, Backoff, Effort, Margin, Period, RenewalPolicy, Signal, UnknownPolicy};
pub use quorum::{InvalidQuorum, NoMajority, Quorum};
pub use read_write::{ReadLock, ReadWriteLock, WriteLock};
