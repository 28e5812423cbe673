//! What the state machine of a renewal is told, and what it says to do.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::{FailureCause, LeaseState, LostReason};
use crate::policy::Timings;

/// One attempt to renew; numbered within its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) number: u64,
    /// Taken before the command was handed to the socket.
    pub(crate) sent: Moment,
    /// When the attempt counts as unanswered.
    pub(crate) until: Moment,
    /// How long Redis is asked to keep the lock.
    pub(crate) lease: Duration,
    /// Whether it leaves on whichever link can be opened in its time; if not, it is lost with the bytes that were to open the first.
    pub(crate) waits: bool,
    /// It was counted as failed; its answer may still come.
    pub(super) failed: bool,
}

/// What Redis said of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Renewed.
    Yes,
    /// The hold is not there.
    No,
    /// The key holds something that is no lock.
    Clobbered,
    /// The attempt had no result.
    Failed(FailureCause),
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The time that [`Renewal::wakes`](super::Renewal::wakes) named has come.
    Due,
    /// An attempt was answered, or failed on the way.
    Answered { number: u64, answer: Answer },
    /// The hold got a new lease by other means than renewal: a re-entry or an extension with these times, whose request was
    /// sent then.
    Extended { sent: Moment, timings: Timings },
    /// From now on the hold is to be renewed, with these times.
    Attend(Timings),
    /// From now on the hold is not to be renewed, only watched to its deadline.
    Unattend,
    /// The hold ends for a reason that lies outside its renewal.
    End(LostReason),
    /// Another hold tries again then: this one may do so too, so that both share a batch.
    TryTogether(Moment),
    /// The holder let go: the last lease was released or dropped.
    LetGo,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a renewal.
    Send(Attempt),
    /// The hold is to be trusted until then.
    Trust(Moment),
    /// Tell the holder.
    Tell(LeaseState),
    /// The holder is told of trouble that is over.
    Recovered,
    /// An attempt failed.
    Failed { sent: Moment, cause: FailureCause },
    /// An attempt succeeded.
    Renewed { sent: Moment },
    /// It came late: of the time between when it was due and the deadline more than half was gone.
    RenewedLate { left: Duration },
    /// The holder was told of a loss and has not let go: give back in the background what an abandoned renewal may have kept alive.
    CleanUp,
    /// Nothing is left to do for this hold: forget it.
    Forget,
}
