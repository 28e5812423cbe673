//! The driver of our own library.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{
    AcquireError, AcquireOptions, Event, EventKind, Lease, LockKind, Lockable, Locks, Observer, Released, RenewalPolicy,
};

use super::{Access, Driver, DriverOptions, Hold, Refusal, RenewalSeen, Watcher};

/// Drives one kind of lock of `leasehold`.
#[derive(Clone)]
pub struct LeaseholdDriver {
    locks: Locks,
    kind: LockKind,
    writers_first: bool,
    together: u32,
}

impl LeaseholdDriver {
    /// Connects.
    ///
    /// # Errors
    /// What the library says, in words.
    pub async fn connect(options: &DriverOptions) -> Result<Self, String> {
        let policy: RenewalPolicy = options
            .policy
            .parse()
            .map_err(|error| format!("policy {}: {error}", options.policy))?;
        let [url, beside @ ..] = &options.urls[..] else {
            return Err("it was given no server".to_owned());
        };
        let mut builder = Locks::builder()
            .standalone(url)
            .masters_beside(beside.iter().map(String::as_str))
            .watchdog_time(options.lease)
            .renewal(policy)
            .command_timeout(options.command_timeout);
        if let Some(watcher) = &options.watcher {
            builder = builder.observer(Arc::new(Observing(Arc::clone(watcher))));
        }
        let locks = builder.build().await.map_err(|error| chain(&error))?;
        Ok(Self {
            locks,
            kind: options.kind,
            writers_first: options.writers_first,
            together: options.together,
        })
    }

    fn lock(&self, name: &str, access: Access) -> Box<dyn Lockable> {
        match (self.kind, access) {
            (LockKind::Multi, _) => {
                let beside = (1..self.together).map(|number| format!("{name}+{number}"));
                Box::new(self.locks.multi(std::iter::once(name.to_owned()).chain(beside)))
            }
            (LockKind::ReadWrite, access) if self.writers_first => {
                let lock = self.locks.read_write(name).writers_first();
                match access {
                    Access::Write => Box::new(lock.write()),
                    Access::Read => Box::new(lock.read()),
                }
            }
            (kind, Access::Write) => self.locks.lock(kind, name),
            (kind, Access::Read) => self.locks.lock_for_reading(kind, name),
        }
    }
}

impl Driver for LeaseholdDriver {
    type Hold = Lease;

    async fn acquire(&self, name: &str, access: Access, wait: Duration) -> Result<Lease, Refusal> {
        self.lock(name, access)
            .acquire_with(AcquireOptions::new().wait_limit(wait))
            .await
            .map_err(refusal)
    }

    async fn close(self) {
        // What is still pending then ends with its lease.
        let _ = self.locks.shutdown(FAREWELL).await;
    }
}

impl Hold for Lease {
    fn attempts(&self) -> u64 {
        u64::from(Lease::attempts(self))
    }

    fn fence(&self) -> u64 {
        self.fencing_token().unwrap_or(0)
    }

    fn is_valid(&self) -> bool {
        Lease::is_valid(self)
    }

    fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let lost = Lease::lost(self);
        async move {
            lost.await;
        }
    }

    async fn reenter(&self, wait: Duration) -> Result<Self, Refusal> {
        Lease::reenter(self).wait_limit(wait).await.map_err(refusal)
    }

    async fn release(self) -> Result<bool, Refusal> {
        match Lease::release(self).await {
            Ok(released) => Ok(matches!(released, Released::Fully)),
            Err(error) => Err(Refusal::Failed(chain(&error))),
        }
    }
}

/// Passes the library's renewals on.
struct Observing(Watcher);

impl Observer for Observing {
    fn event(&self, event: &Event) {
        let (sent, renewed) = match event.kind {
            EventKind::Renewed { sent } => (sent, true),
            EventKind::RenewalFailed { sent, .. } => (sent, false),
            _ => return,
        };
        (self.0)(&RenewalSeen {
            name: event.name.to_string(),
            sent_ns: sent.as_nanos(),
            ended_ns: event.at.as_nanos(),
            renewed,
        });
    }
}

fn refusal(error: AcquireError) -> Refusal {
    match error {
        AcquireError::WaitLimit { .. } => Refusal::Busy,
        error => Refusal::Failed(chain(&error)),
    }
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How long releases in the background may take when a worker ends.
const FAREWELL: Duration = Duration::from_secs(1);
