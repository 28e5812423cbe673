//! Ctrl-C and SIGTERM: noticed on a thread of its own, obeyed where a run waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::clock;

/// Whether somebody wants the run to end. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and SIGTERM from now on.
    ///
    /// # Errors
    /// What the system says when it does not let us listen.
    pub fn listen() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let interrupt = Self::default();
        let heard = interrupt.clone();
        let (mut ctrl_c, mut term) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = ctrl_c.recv() => {}
                        _ = term.recv() => {}
                    }
                    heard.set();
                }
            });
        });
        Ok(interrupt)
    }

    /// Asks for an end, as Ctrl-C does.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether an end is wanted.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps; says whether nobody interrupted it.
    pub fn sleep(&self, time: Duration) -> bool {
        self.sleep_until(clock::now_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Sleeps until an instant of the boot-time clock; says whether nobody interrupted it.
    pub fn sleep_until(&self, at_ns: u64) -> bool {
        loop {
            if self.is_set() {
                return false;
            }
            let rest = Duration::from_nanos(at_ns.saturating_sub(clock::now_ns()));
            if rest.is_zero() {
                return true;
            }
            std::thread::sleep(rest.min(TICK));
        }
    }
}

/// How long an interrupt may go unnoticed.
const TICK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_a_sleep() {
        let interrupt = Interrupt::default();
        assert!(interrupt.sleep(Duration::from_millis(1)));
        let other = interrupt.clone();
        let sleeper = std::thread::spawn(move || other.sleep(Duration::from_secs(3_600)));
        interrupt.set();
        assert!(!sleeper.join().unwrap());
    }
}
