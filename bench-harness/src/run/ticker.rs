//! The ticker: asks the server under test for a small write every few milliseconds, directly and not through the proxy.
//!
//! How long it takes to answer shows when the server has worked off what waited while a fault lasted: until then the fault goes on
//! for whoever stands behind that in the queue. The proxy's and the system's part in a fault end earlier.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock;
use crate::scenario::nanos;

use super::RunError;

/// A thread that writes the server's time over and over.
pub(super) struct Ticker {
    slow: Arc<Mutex<Vec<Answer>>>,
    resting: Arc<AtomicBool>,
    // Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An answer that took long: from when it was asked for to when it came, or was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    asked_ns: u64,
    came_ns: u64,
}

impl Ticker {
    /// Starts ticking on the server at this URL, into this key.
    pub(super) fn start(url: &str, key: String) -> Result<Self, RunError> {
        let client = redis::Client::open(url).map_err(|error| RunError::Unreachable {
            url: url.to_owned(),
            cause: error.to_string(),
        })?;
        let slow = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&slow);
        let resting = Arc::new(AtomicBool::new(false));
        let rests = Arc::clone(&resting);
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let script = redis::Script::new(TICK);
            let mut connection = None;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                if rests.load(Ordering::Relaxed) {
                    continue;
                }
                let asked_ns = clock::now_ns();
                let ticked = tick(&client, &mut connection, &script, &key);
                let came_ns = clock::now_ns();
                if ticked.is_err() {
                    connection = None;
                }
                if came_ns - asked_ns >= nanos(SLOW) {
                    lock(&heard).push(Answer { asked_ns, came_ns });
                }
            }
        });
        Ok(Self {
            slow,
            resting,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Asks for nothing while `what` is done, so that what others ask for can be counted.
    pub(super) fn rest<T>(&self, what: impl FnOnce() -> T) -> T {
        self.resting.store(true, Ordering::Relaxed);
        // What it is asking for at this moment is answered by then.
        std::thread::sleep(2 * PERIOD);
        let done = what();
        self.resting.store(false, Ordering::Relaxed);
        done
    }

    /// For how long after this instant, the end of a fault, the server had still more to do than it could do at once.
    pub(super) fn busy_after(&self, heal_ns: u64) -> Duration {
        busy_after(&lock(&self.slow), heal_ns)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tick(
    client: &redis::Client,
    connection: &mut Option<redis::Connection>,
    script: &redis::Script,
    key: &str,
) -> Result<(), redis::RedisError> {
    let open = match connection {
        Some(open) => open,
        None => {
            let opened = client.get_connection_with_timeout(PATIENCE)?;
            opened.set_read_timeout(Some(PATIENCE))?;
            connection.insert(opened)
        }
    };
    script.key(key).invoke(open)
}

fn busy_after(slow: &[Answer], heal_ns: u64) -> Duration {
    let mut until_ns = heal_ns;
    for answer in slow.iter().filter(|answer| answer.came_ns > heal_ns) {
        if answer.asked_ns > until_ns + nanos(PERIOD + SLOW) {
            break;
        }
        until_ns = until_ns.max(answer.came_ns);
    }
    Duration::from_nanos(until_ns - heal_ns)
}

fn lock(slow: &Mutex<Vec<Answer>>) -> std::sync::MutexGuard<'_, Vec<Answer>> {
    slow.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Writes the server's time in microseconds.
const TICK: &str = "local now = redis.call('TIME')
return redis.call('SET', KEYS[1], now[1] .. string.format('%06d', now[2]), 'PX', 60000)";

const PERIOD: Duration = Duration::from_millis(2);

/// A server with nothing else to do answers within a fraction of this.
const SLOW: Duration = Duration::from_millis(3);

/// A server that was killed does not answer at all.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_server_is_busy_after_a_fault_until_it_answers_at_once_again() {
        let answer = |asked: u64, came: u64| Answer {
            asked_ns: asked * MS,
            came_ns: came * MS,
        };
        let busy = |slow: &[Answer]| busy_after(slow, 1_000 * MS).as_millis();
        assert_eq!(busy(&[]), 0);
        // Asked before the end of the fault, answered with it.
        assert_eq!(busy(&[answer(200, 1_001)]), 1);
        assert_eq!(busy(&[answer(200, 1_030), answer(1_032, 1_050)]), 50);
        assert_eq!(
            busy(&[answer(200, 1_030), answer(1_200, 1_300)]),
            30,
            "of another cause"
        );
        assert_eq!(busy(&[answer(200, 900)]), 0, "before the end");
    }

    #[test]
    fn it_ticks_on_a_server_and_sees_it_stand_still() {
        let server = crate::servers::RedisServer::start(&Default::default()).unwrap();
        let ticker = Ticker::start(&server.url(), "lockbench:tick".to_owned()).unwrap();
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let mut value = || -> Option<u64> { redis::cmd("GET").arg("lockbench:tick").query(&mut connection).unwrap() };
        while value().is_none() {
            std::thread::sleep(PERIOD);
        }
        server.freeze().unwrap();
        // Room for the next tick to be asked: a busy machine may keep the ticker waiting.
        std::thread::sleep(Duration::from_millis(200));
        let ended = clock::now_ns();
        std::thread::sleep(Duration::from_millis(50));
        server.thaw().unwrap();
        let patience = clock::now_ns() + 20_000 * MS;
        while ticker.busy_after(ended) < Duration::from_millis(50) {
            assert!(clock::now_ns() < patience, "busy for {:?}", ticker.busy_after(ended));
            std::thread::sleep(PERIOD);
        }
    }
}
