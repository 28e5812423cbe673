//! One direction of a connection: a queue of chunks, each with the time from which it may leave.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What the reader of a lane leaves for its writer.
#[derive(Debug, Default)]
pub(super) struct Lane {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    closed: bool,
}

#[derive(Debug)]
struct Chunk {
    due_ns: u64,
    bytes: Vec<u8>,
}

/// What a writer has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Write these.
    Bytes(Vec<u8>),
    /// The source has closed, and all it sent is written.
    Close,
    /// Look again at this time, or on a change.
    At(u64),
    /// Look again on a change.
    Wait,
}

impl Lane {
    pub(super) fn push(&self, bytes: &[u8], due_ns: u64) {
        self.queue().chunks.push_back(Chunk {
            due_ns,
            bytes: bytes.to_vec(),
        });
        self.look_again();
    }

    /// The source has closed: what is queued goes first.
    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.look_again();
    }

    /// Throws away what is queued, a close too; tells whether there was anything.
    pub(super) fn discard(&self) -> bool {
        let lost = std::mem::take(&mut *self.queue());
        !lost.chunks.is_empty() || lost.closed
    }

    /// Takes what may leave at `now_ns`; a closed gate lets nothing leave.
    pub(super) fn next(&self, gate_open: bool, now_ns: u64) -> Next {
        let mut queue = self.queue();
        match queue.chunks.front() {
            _ if !gate_open => Next::Wait,
            Some(first) if first.due_ns > now_ns => Next::At(first.due_ns),
            Some(_) => queue
                .chunks
                .pop_front()
                .map_or(Next::Wait, |first| Next::Bytes(first.bytes)),
            None if queue.closed => Next::Close,
            None => Next::Wait,
        }
    }

    /// Wakes the writer. One that is not waiting yet finds the call when it does.
    pub(super) fn look_again(&self) {
        self.changed.notify_one();
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code panics while it holds this lock; if it ever does, the queue is still whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_leave_in_order_and_not_before_they_are_due() {
        let lane = Lane::default();
        lane.push(b"late", 20);
        lane.push(b"early", 10);
        lane.close();
        assert_eq!(lane.next(true, 19), Next::At(20));
        assert_eq!(lane.next(true, 20), Next::Bytes(b"late".into()));
        assert_eq!(lane.next(true, 20), Next::Bytes(b"early".into()));
        assert_eq!(lane.next(true, 20), Next::Close);
    }

    #[test]
    fn a_closed_gate_holds_chunks_and_the_close() {
        let lane = Lane::default();
        lane.push(b"held", 0);
        assert_eq!(lane.next(false, 1), Next::Wait);
        assert_eq!(lane.next(true, 1), Next::Bytes(b"held".into()));
        lane.close();
        assert_eq!(lane.next(false, 1), Next::Wait);
    }

    #[test]
    fn discarding_says_whether_something_was_lost() {
        let lane = Lane::default();
        assert!(!lane.discard());
        lane.push(b"lost", 0);
        assert!(lane.discard());
        assert_eq!(lane.next(true, 1), Next::Wait);
        lane.close();
        assert!(lane.discard());
    }
}
