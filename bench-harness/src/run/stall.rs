//! The stall watch: notices when the machine stood still, so that nobody blames a lock for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock;

/// A thread that wants to run every few milliseconds and notes how much later it ran.
pub(crate) struct StallWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    end: AtomicBool,
    longest_ns: AtomicU64,
}

impl StallWatch {
    /// Starts watching.
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut last = clock::now_ns();
            while !watched.end.load(Ordering::Relaxed) {
                std::thread::sleep(PERIOD);
                let now = clock::now_ns();
                let late = (now - last).saturating_sub(PERIOD.as_nanos() as u64);
                watched.longest_ns.fetch_max(late, Ordering::Relaxed);
                last = now;
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// The longest stall since the last call.
    pub(crate) fn take(&self) -> Duration {
        Duration::from_nanos(self.shared.longest_ns.swap(0, Ordering::Relaxed))
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const PERIOD: Duration = Duration::from_millis(5);
