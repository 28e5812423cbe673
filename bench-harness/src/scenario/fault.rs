//! What goes wrong in a scenario, and for whom.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::Time;
use crate::predict::Family;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// When: from the start of the measured time; in the model `held` from when the rivals wait.
    pub at: Time,
    /// How long.
    #[serde(rename = "for")]
    pub length: Time,
    /// What.
    pub kind: FaultKind,
    /// To whom.
    #[serde(default)]
    pub scope: Scope,
    /// On how many of the masters of a quorum lock, the first ones. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masters: Option<usize>,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// `CLIENT PAUSE … WRITE`: the server holds every write back, then executes it.
    PauseWrite,
    /// The server is stopped with SIGSTOP.
    FreezeServer,
    /// The proxy refuses connections and resets the open ones.
    Refuse,
    /// The proxy takes bytes and loses them.
    Swallow,
    /// The proxy keeps bytes back and passes them on in the end; what a client that left has asked is dropped, as by `CLIENT PAUSE`.
    Hold,
    /// The same, only that everything asked is passed on in the end, as by a stopped server.
    Deliver,
}

/// Whom a fault concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everybody.
    #[default]
    All,
    /// Only the processes that hold locks, in the model `held`.
    Holders,
}

impl FaultKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::PauseWrite,
        Self::FreezeServer,
        Self::Refuse,
        Self::Swallow,
        Self::Hold,
        Self::Deliver,
    ];

    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            Self::PauseWrite => "pause_write",
            Self::FreezeServer => "freeze_server",
            Self::Refuse => "refuse",
            Self::Swallow => "swallow",
            Self::Hold => "hold",
            Self::Deliver => "deliver",
        }
    }

    /// What it does, in a few words.
    pub fn what(self) -> &'static str {
        match self {
            Self::PauseWrite => "CLIENT PAUSE … WRITE: writes wait, then execute; the whole server",
            Self::FreezeServer => "SIGSTOP: nothing is answered, all is executed later; a server we started",
            Self::Refuse => "Connections are reset and refused; in the proxy, for all or only for holders",
            Self::Swallow => "Bytes vanish in both directions; in the proxy, for all or only for holders",
            Self::Hold => {
                "Bytes wait, then go on unless their client has left; in the proxy, for all or only for holders"
            }
            Self::Deliver => "Bytes wait, then all go on; in the proxy, for all or only for holders",
        }
    }

    /// What the fault does to a renewal that is sent while it lasts.
    ///
    /// A pause and a freeze execute what waits when they end. Whether they execute what was given up before does not
    /// decide who keeps a lock, only when a lost one expires.
    pub fn family(self) -> Family {
        match self {
            Self::PauseWrite | Self::Hold => Family::Pending,
            Self::FreezeServer | Self::Deliver => Family::Delivered,
            Self::Refuse => Family::Refuse,
            Self::Swallow => Family::Swallow,
        }
    }

    /// Whether the fault strikes the server, and so everybody.
    pub fn is_of_server(self) -> bool {
        matches!(self, Self::PauseWrite | Self::FreezeServer)
    }
}

impl Scope {
    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Holders => "holders",
        }
    }
}
