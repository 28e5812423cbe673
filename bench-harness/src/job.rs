//! What the coordinator and its worker processes say to one another: one JSON value a line.
//!
//! Down the worker's stdin: first its [`Job`], then [`Order`]s. The end of stdin means: exit at once, so that
//! a coordinator that was killed leaves no worker. Up its stdout: [`Note`]s.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;
use crate::workload::Segment;

/// All a worker needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The scenario, from whose seed the worker draws its part of the plan.
    pub scenario: Scenario,
    /// What the worker is for.
    pub role: Role,
    /// Which worker it is of those of its role.
    pub index: u32,
    /// How many have its role.
    pub of: u32,
    /// Which worker it is of all: makes its owners unique.
    pub member: u32,
    /// Its leg of the proxy to each master.
    pub urls: Vec<String>,
    /// Where the server can be observed without the proxy in between.
    pub observe: String,
    /// Where it writes its evidence.
    pub evidence: PathBuf,
    /// What all names of locks begin with.
    pub prefix: String,
}

impl Job {
    /// Its part of the plan.
    pub fn segment(&self) -> Segment {
        Segment::WHOLE.part(self.index, self.of)
    }
}

/// What a worker is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Takes and releases locks, as the model `closed` or `open` says.
    Load,
    /// Holds locks under a policy.
    Holder {
        /// The policy.
        policy: String,
        /// Its first key; the others follow.
        first_key: u64,
        /// At how many moments of a renewal period it takes them.
        moments: u32,
    },
    /// Waits for the locks that holders have.
    Rival {
        /// The first key of each policy.
        first_keys: Vec<u64>,
    },
}

/// What a worker is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Begin at this instant of the boot-time clock.
    Start {
        /// In nanoseconds.
        at_ns: u64,
    },
    /// From now on, drop acquires that begin at a random await, or no longer.
    DropAcquires(bool),
    /// Come to an end: stop work, give locks back, hand in the tally.
    Finish,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// It is connected and waits for the start.
    Ready,
    /// How it goes.
    Progress(Going),
    /// A holder has all its locks.
    Holding,
    /// It has ended.
    Done(Box<Tally>),
    /// It cannot go on, and why.
    Failed(String),
}

/// How it goes with the requests of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Going {
    /// Requests answered so far.
    pub answered: u64,
    /// Requests that wait for their lock now.
    pub waiting: u64,
    /// Locks held now.
    pub held: u64,
}

impl std::ops::Add for Going {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            answered: self.answered + other.answered,
            waiting: self.waiting + other.waiting,
            held: self.held + other.held,
        }
    }
}

/// What one worker counted. Histograms travel as text.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// From the intended start or the call to the lock.
    pub acquire: String,
    /// From the call to the lock.
    pub service: String,
    /// From the lock to the end of work.
    pub hold: String,
    /// Actual minus intended start.
    pub generator_lag: String,
    /// From the call to the lock, of a holder that takes it again.
    pub reentry: String,
    /// `acquire` for each second of the measured time.
    pub series: BTreeMap<u32, String>,
    /// Requests that got their lock.
    pub successes: u64,
    /// Acquire scripts sent for them.
    pub attempts: u64,
    /// Successes of each client, for each window of time in which fairness is measured; of closed workloads.
    pub served: BTreeMap<u32, BTreeMap<u32, u64>>,
    /// Times an unprotected counter was raised.
    pub increments: u64,
    /// Critical sections completed.
    pub completed: u64,
    /// Requests that waited in vain.
    pub timeouts: u64,
    /// Acquires that were dropped before they had an answer.
    #[serde(default)]
    pub cancelled: u64,
    /// Failures by their text.
    pub errors: BTreeMap<String, u64>,
    /// Arrivals that found no free slot.
    pub dropped: u64,
    /// Leases whose holder was told of a loss.
    pub lost: u64,
    /// Within the measured time, how long how many requests were in the system, as they came and went: nanoseconds times requests.
    pub present_ns: u64,
    /// Requests of the measured time that have ended, whichever way.
    pub ended: u64,
    /// How long these were in the system, in all.
    pub in_system_ns: u64,
    /// How long others were in it within the measured time, less how long these were after it.
    pub edges_ns: i64,
}

/// The first key of a policy: keys of different policies never meet.
pub fn first_key(policy_index: usize) -> u64 {
    policy_index as u64 * KEYS_OF_A_POLICY
}

/// The index of the policy that a key belongs to.
pub fn policy_of(key: u64) -> usize {
    (key / KEYS_OF_A_POLICY) as usize
}

/// No policy has more keys.
const KEYS_OF_A_POLICY: u64 = 10_000_000;
