//! One error enum an operation. Each variant tells when it occurs and whether Redis may have applied the operation.

mod acquire;
mod call;
mod hand_off;
mod lease;
mod tools;

pub use acquire::{AcquireError, WithError};
pub use call::{BuildError, CallError, InvalidTimes};
pub use hand_off::{AdoptError, HandOffError};
pub use lease::{DowngradeError, ExtendError, Lost, ReleaseError};
pub use tools::{AdminError, FenceError};
