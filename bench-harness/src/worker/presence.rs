//! How many requests of a worker are in the system, over time.

use std::ops::Range;

/// Counts who comes and goes, and adds up how long how many were there within a window of time.
///
/// It knows nothing of how long any request took: that is what it is held against.
pub(super) struct Presence {
    window: Range<u64>,
    there: u64,
    since_ns: u64,
    area_ns: u64,
}

impl Presence {
    pub(super) fn within(window: Range<u64>) -> Self {
        Self {
            since_ns: window.start,
            window,
            there: 0,
            area_ns: 0,
        }
    }

    pub(super) fn came(&mut self, at_ns: u64) {
        self.until(at_ns);
        self.there += 1;
    }

    pub(super) fn went(&mut self, at_ns: u64) {
        self.until(at_ns);
        // One that came before this count began may still go.
        self.there = self.there.saturating_sub(1);
    }

    /// Nanoseconds times requests, within the window.
    pub(super) fn area_ns(mut self) -> u64 {
        self.until(self.window.end);
        self.area_ns
    }

    /// Stamps of two requests may come in the wrong order; they are then off by the time that it took to note them.
    fn until(&mut self, at_ns: u64) {
        self.area_ns += self.there * overlap(&(self.since_ns..at_ns), &self.window);
        self.since_ns = self.since_ns.max(at_ns);
    }
}

/// How much of a time lies in another.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_who_is_there_and_only_within_its_window() {
        let mut presence = Presence::within(100..200);
        presence.came(50);
        presence.came(120);
        presence.went(130);
        presence.came(190);
        presence.went(210);
        assert_eq!(presence.area_ns(), 100 + 10 + 10);
    }

    #[test]
    fn stamps_in_the_wrong_order_do_no_harm() {
        let mut presence = Presence::within(0..100);
        presence.came(40);
        presence.came(39);
        presence.went(60);
        presence.went(59);
        presence.went(70);
        assert_eq!(presence.area_ns(), 20 + 20);
    }
}
