//! The ticker: asks the server under test for a small write every few milliseconds, directly and not through the proxy.
//!
//! How long it takes to answer shows when the server has worked off what waited while a fault lasted: until then the fault goes on
//! for whoever stands behind that in the queue. The proxy's and the system's part in a fault end earlier.
//!
//! What it writes is the server's time. That tells when the lines around it in the server's append-only file were written, and, since it
//! is known when each was asked for and answered, how the server's clock and that of the evidence lie to one another.

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
    heard: Arc<Mutex<Heard>>,
    resting: Arc<AtomicBool>,
    // Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the answers told.
#[derive(Debug, Default)]
struct Heard {
    slow: Vec<Answer>,
    clock: Option<ServerClock>,
    /// When the last one that was answered was asked for.
    asked_ns: u64,
}

/// What to add to the server's time, which counts from 1970, to have the boot-time clock: at least and at most, in nanoseconds.
///
/// Both clocks of one machine run alike, however much they are slewed. Only a step, when somebody sets the time, makes the least
/// more than the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerClock {
    pub(super) least_ns: i64,
    pub(super) most_ns: i64,
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
        let heard = Arc::new(Mutex::new(Heard::default()));
        let hear = Arc::clone(&heard);
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
                let answer = Answer { asked_ns, came_ns };
                match ticked {
                    Ok(server_us) => lock(&hear).answer(answer, server_us),
                    Err(_) => connection = None,
                }
                if came_ns - asked_ns >= nanos(SLOW) {
                    lock(&hear).slow.push(answer);
                }
            }
        });
        Ok(Self {
            heard,
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
        busy_after(&lock(&self.heard).slow, heal_ns)
    }

    /// Forgets how the clocks lie to one another: what they do from now on counts.
    pub(super) fn forget_clock(&self) {
        lock(&self.heard).clock = None;
    }

    /// Waits until the server's time was written once more, so that all that was executed before stands before a tick in its file. Tells
    /// how the clocks have lain to one another since they were forgotten; nothing if the server does not answer.
    pub(super) fn tick(&self) -> Option<ServerClock> {
        let from_ns = clock::now_ns();
        while clock::since(from_ns) < PATIENCE {
            let heard = lock(&self.heard);
            if heard.asked_ns >= from_ns {
                return heard.clock;
            }
            drop(heard);
            std::thread::sleep(PERIOD);
        }
        None
    }
}

impl Heard {
    fn answer(&mut self, Answer { asked_ns, came_ns }: Answer, server_us: u64) {
        self.asked_ns = asked_ns;
        // The server tells whole microseconds.
        let to = |clock_ns: u64, server_us: u64| clock_ns as i64 - (server_us * 1_000) as i64;
        let (least_ns, most_ns) = (to(asked_ns, server_us + 1), to(came_ns, server_us));
        let before = self.clock.unwrap_or(ServerClock { least_ns, most_ns });
        self.clock = Some(ServerClock {
            least_ns: before.least_ns.max(least_ns),
            most_ns: before.most_ns.min(most_ns),
        });
    }
}

impl ServerClock {
    /// What to add to the server's time.
    pub(super) fn offset_ns(self) -> i64 {
        self.least_ns + (self.most_ns - self.least_ns) / 2
    }

    /// How far it may be from that, either way; negative after a step.
    pub(super) fn bound(self) -> i64 {
        (self.most_ns - self.least_ns) / 2
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
) -> Result<u64, redis::RedisError> {
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

fn lock(heard: &Mutex<Heard>) -> std::sync::MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Writes the server's time in microseconds, and tells it.
const TICK: &str = "local now = redis.call('TIME')
local us = now[1] .. string.format('%06d', now[2])
redis.call('SET', KEYS[1], us, 'PX', 60000)
return us";

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
    fn each_answer_narrows_how_the_clocks_lie_to_one_another_and_a_step_shows() {
        let mut heard = Heard::default();
        let mut answer = |asked_us: u64, came_us: u64, server_us: u64| {
            let answer = Answer {
                asked_ns: asked_us * 1_000,
                came_ns: came_us * 1_000,
            };
            heard.answer(answer, server_us);
            let clock = heard.clock.unwrap();
            (clock.offset_ns() / 1_000, clock.bound() / 1_000)
        };
        // The server's clock is 500 ahead.
        assert_eq!(answer(1_000, 1_101, 1_550), (-500, 51));
        assert_eq!(answer(2_000, 2_401, 2_600), (-500, 51), "a slow answer tells less");
        assert_eq!(answer(3_000, 3_011, 3_505), (-500, 6));
        let (_, bound) = answer(4_000, 4_011, 4_005);
        assert!(bound < 0, "set back by 500: {bound}");
    }

    #[test]
    fn it_ticks_on_a_server_and_sees_it_stand_still() {
        let server = crate::servers::RedisServer::start(&Default::default()).unwrap();
        let ticker = Ticker::start(&server.url(), "lockbench:tick".to_owned()).unwrap();
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let ticked = ticker.tick().unwrap();
        let value: u64 = redis::cmd("GET").arg("lockbench:tick").query(&mut connection).unwrap();
        let behind = clock::now_ns() as i64 - (value as i64 * 1_000 + ticked.offset_ns());
        assert!(ticked.bound() >= 0 && behind >= -ticked.bound(), "{ticked:?} {behind}");
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
