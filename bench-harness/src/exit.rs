//! Exit codes of the program. If several apply: 4 before 7 before 5.

/// All thresholds held.
pub const GOOD: u8 = 0;
/// Wrong usage or scenario.
pub const USAGE: u8 = 2;
/// The environment: Redis unreachable, a fault not permitted, a worker missing.
pub const ENVIRONMENT: u8 = 3;
/// Two workers at once where the scenario says there must be none.
pub const SAFETY: u8 = 4;
/// A threshold failed.
pub const THRESHOLD: u8 = 5;
/// The measurement cannot be trusted.
pub const INVALID: u8 = 7;
/// Interrupted: a partial report was written.
pub const INTERRUPTED: u8 = 130;
