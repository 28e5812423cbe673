//! What goes wrong in a scenario, and for whom.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::moment::{Phase, When};
use super::scope::Scope;
use super::units::Time;
use crate::predict::Family;

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// By what other faults call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When: from the start of the measured time; in the model `held` from when the rivals wait. With `when` not before.
    #[serde(default)]
    pub at: Time,
    /// Again and again, from `at` on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Time>,
    /// With `every`: up to so much later each time, at random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_jitter: Option<Time>,
    /// With `every`: so often. Default: until the measured time is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// What has to happen first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// In which phase of their renewals it meets the locks, in the model `held`.
    #[serde(default, skip_serializing_if = "Phase::is_uniform")]
    pub phase: Phase,
    /// How long; not for `kill_client9`, which happens at one moment.
    #[serde(rename = "for", default)]
    pub length: Time,
    /// What.
    pub kind: FaultKind,
    /// To whom.
    #[serde(default)]
    pub scope: Scope,
    /// On how many of the masters of a quorum lock, the first ones. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masters: Option<usize>,
    /// For `latency`: how much later everything arrives, in each direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Time>,
    /// For `latency`: how much more that may be, at random for each piece. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Time>,
    /// For `restart`: whether the server comes back with what its append-only file holds. Default: yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persist: Option<bool>,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// `CLIENT PAUSE … WRITE`: the server holds every write back, then executes it.
    PauseWrite,
    /// `CLIENT PAUSE … ALL`: the server holds everything back, then executes it.
    PauseAll,
    /// The server is stopped with SIGSTOP.
    FreezeServer,
    /// `DEBUG SLEEP`: the server does nothing, then goes on.
    Sleep,
    /// A script spins, and the server does nothing else.
    SlowLua,
    /// The server is killed with SIGKILL and, in the end, started again.
    Restart,
    /// The server becomes a replica of nobody and refuses writes.
    Readonly,
    /// The server refuses writes for want of replicas.
    Noreplicas,
    /// The server refuses writes for want of memory.
    Oom,
    /// The connections of all clients are ended, once and then every 100 ms.
    KillClients,
    /// The server forgets all scripts, once and then every 100 ms.
    ScriptFlush,
    /// The proxy refuses connections and resets the open ones.
    Refuse,
    /// The proxy takes bytes and loses them.
    Swallow,
    /// The proxy keeps bytes back and passes them on in the end; what a client that left has asked is dropped, as by `CLIENT PAUSE`.
    Hold,
    /// The same, only that everything asked is passed on in the end, as by a stopped server.
    Deliver,
    /// The proxy passes everything on, only later.
    Latency,
    /// Worker processes are stopped with SIGSTOP, holders as they are.
    FreezeClient,
    /// Worker processes are killed with SIGKILL, each while it holds a lock, and stay dead.
    #[serde(rename = "kill_client9")]
    KillClient9,
    /// Workers drop acquires that begin meanwhile, each at a random await.
    DropFuture,
}

/// Where a fault acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the server, so on everybody; and on somebody else's server, if that is allowed.
    Server,
    /// The same, but only on a server that lockbench started: what it leaves behind is not for others to clear away.
    OwnServer,
    /// In the proxy, so on any of the workers.
    Proxy,
    /// In the worker processes themselves; no server notices more than that they are silent.
    Worker,
}

impl Place {
    /// Whether it can strike some of the workers and leave the others alone.
    pub fn is_of_workers(self) -> bool {
        matches!(self, Self::Proxy | Self::Worker)
    }
}

/// Faults that people may look for, and why there are none such here.
pub const NOT_HERE: [(&str, &str); 18] = [
    (
        "failover",
        "it needs a master with replicas, and lockbench starts single masters",
    ),
    (
        "partition_replica",
        "it needs a master with replicas, and lockbench starts single masters",
    ),
    ("reshard", "it needs a cluster, and lockbench starts single masters"),
    (
        "clock",
        "it needs a library that shifts the time of a process, preloaded into the server",
    ),
    (
        "fsync_stall",
        "it needs a slow device below the server: freeze_server shows the same to clients",
    ),
    (
        "corrupt",
        "a stream of Redis with a wrong byte is a broken client, not a fault that locks meet: use refuse",
    ),
    ("kill9", "restart kills with SIGKILL: use it"),
    (
        "reset",
        "refuse resets connections as well as refusing new ones: use it, or kill_clients",
    ),
    (
        "blackhole",
        "swallow loses everything as well, only without filling the windows of TCP: use it",
    ),
    (
        "half_close",
        "no client of Redis goes on with half a connection: use refuse",
    ),
    (
        "bandwidth",
        "what locks send is too small to fill a narrow link: use latency",
    ),
    (
        "misconf",
        "it needs a folder that cannot be written, and root can write any: use noreplicas",
    ),
    (
        "loading",
        "not built: a restart with an append-only file loads it, if only for a moment",
    ),
    (
        "evict",
        "not built: restart with persist = false takes keys away as well",
    ),
    (
        "drop_pubsub",
        "not built: the proxy does not read what it passes on; kill_clients ends subscriptions",
    ),
    ("slice", "not built: use latency"),
    ("limit_data", "not built: use kill_clients"),
    ("slow_close", "not built: use hold"),
];

impl FaultSpec {
    /// A fault that strikes once, at its time.
    pub fn once(kind: FaultKind, scope: Scope, at: Time, length: Time) -> Self {
        Self {
            name: None,
            at,
            every: None,
            every_jitter: None,
            count: None,
            when: None,
            phase: Phase::Uniform,
            length,
            kind,
            scope,
            masters: None,
            delay: None,
            jitter: None,
            persist: None,
        }
    }
}

impl FaultKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 19] = [
        Self::PauseWrite,
        Self::PauseAll,
        Self::FreezeServer,
        Self::Sleep,
        Self::SlowLua,
        Self::Restart,
        Self::Readonly,
        Self::Noreplicas,
        Self::Oom,
        Self::KillClients,
        Self::ScriptFlush,
        Self::Refuse,
        Self::Swallow,
        Self::Hold,
        Self::Deliver,
        Self::Latency,
        Self::FreezeClient,
        Self::KillClient9,
        Self::DropFuture,
    ];

    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            Self::PauseWrite => "pause_write",
            Self::PauseAll => "pause_all",
            Self::FreezeServer => "freeze_server",
            Self::Sleep => "sleep",
            Self::SlowLua => "slow_lua",
            Self::Restart => "restart",
            Self::Readonly => "readonly",
            Self::Noreplicas => "noreplicas",
            Self::Oom => "oom",
            Self::KillClients => "kill_clients",
            Self::ScriptFlush => "script_flush",
            Self::Refuse => "refuse",
            Self::Swallow => "swallow",
            Self::Hold => "hold",
            Self::Deliver => "deliver",
            Self::Latency => "latency",
            Self::FreezeClient => "freeze_client",
            Self::KillClient9 => "kill_client9",
            Self::DropFuture => "drop_future",
        }
    }

    /// What it does, in a few words.
    pub fn what(self) -> &'static str {
        match self {
            Self::PauseWrite => "CLIENT PAUSE … WRITE: writes wait, then execute; the whole server",
            Self::PauseAll => "CLIENT PAUSE … ALL: everything waits, then executes; the whole server",
            Self::FreezeServer => "SIGSTOP: nothing is answered, all is executed later; a server we started",
            Self::Sleep => "DEBUG SLEEP: nothing is answered, all is executed later; a server we started",
            Self::SlowLua => "A script spins: nothing is answered, after 5 s everything with BUSY; the whole server",
            Self::Restart => {
                "SIGKILL, and a new start in the end, with its append-only file or (persist = false) empty; a server we started"
            }
            Self::Readonly => "REPLICAOF nobody: writes are refused with READONLY; a server we started",
            Self::Noreplicas => "min-replicas-to-write: writes are refused with NOREPLICAS; a server we started",
            Self::Oom => "maxmemory: writes are refused with OOM; a server we started",
            Self::KillClients => "CLIENT KILL for everybody, once and then every 100 ms; the whole server",
            Self::ScriptFlush => "SCRIPT FLUSH, once and then every 100 ms; the whole server",
            Self::Refuse => "Connections are reset and refused; in the proxy",
            Self::Swallow => "Bytes vanish in both directions; in the proxy",
            Self::Hold => "Bytes wait, then go on unless their client has left; in the proxy",
            Self::Deliver => "Bytes wait, then all go on; in the proxy",
            Self::Latency => "Bytes arrive later, by delay and up to jitter more; in the proxy",
            Self::FreezeClient => {
                "SIGSTOP: workers stand still, their leases run out, and they go on as if nothing had been"
            }
            Self::KillClient9 => "SIGKILL: workers die, each while it holds a lock, and stay dead; without for",
            Self::DropFuture => "Acquires are cancelled, each at a random await; in the workers",
        }
    }

    /// What the fault does to a renewal that is sent while it lasts, where there is a model of that.
    ///
    /// A pause and a freeze execute what waits when they end. Whether they execute what was given up before does not
    /// decide who keeps a lock, only when a lost one expires.
    pub fn family(self) -> Option<Family> {
        match self {
            Self::PauseWrite | Self::PauseAll | Self::Hold => Some(Family::Pending),
            Self::FreezeServer | Self::Sleep | Self::Deliver => Some(Family::Delivered),
            Self::Refuse => Some(Family::Refuse),
            Self::Swallow => Some(Family::Swallow),
            Self::FreezeClient => Some(Family::Frozen),
            Self::SlowLua
            | Self::Restart
            | Self::KillClient9
            | Self::DropFuture
            | Self::Readonly
            | Self::Noreplicas
            | Self::Oom
            | Self::KillClients
            | Self::ScriptFlush
            | Self::Latency => None,
        }
    }

    /// Where it acts.
    pub fn place(self) -> Place {
        match self {
            Self::PauseWrite | Self::PauseAll | Self::SlowLua | Self::KillClients | Self::ScriptFlush => Place::Server,
            Self::FreezeServer | Self::Sleep | Self::Restart | Self::Readonly | Self::Noreplicas | Self::Oom => {
                Place::OwnServer
            }
            Self::Refuse | Self::Swallow | Self::Hold | Self::Deliver | Self::Latency => Place::Proxy,
            Self::FreezeClient | Self::KillClient9 | Self::DropFuture => Place::Worker,
        }
    }

    /// Whether the server itself ends it, some time after it was to end.
    pub fn ends_by_itself(self) -> bool {
        matches!(self, Self::PauseWrite | Self::PauseAll | Self::Sleep | Self::SlowLua)
    }
}

/// Why a fault of that name cannot be brought about here, in a sentence, if it is one of [`NOT_HERE`].
pub(super) fn not_here(name: &str) -> Option<String> {
    let (name, reason) = NOT_HERE.iter().find(|(known, _)| *known == name)?;
    Some(format!("the fault {name} cannot be brought about here: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_fault_is_both_here_and_not_here() {
        for kind in FaultKind::ALL {
            assert_eq!(not_here(kind.name()), None);
        }
        assert!(not_here("failover").unwrap().contains("single masters"));
    }

    #[test]
    fn every_fault_is_read_by_its_name() {
        for kind in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
