//! A worker process: `lockbench worker`. It reads its job from stdin and lives as long as stdin does.

mod counter;
mod cut_short;
mod held;
mod load;
mod presence;
mod pulse;
mod steps;
mod tallying;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::LockKind;
use tokio::sync::watch;

use crate::clock;
use crate::driver::{
    Access, Driver, DriverOptions, LeaseholdDriver, NoLock, RedissonDriver, RedissonOptions, RenewalSeen, ScriptDriver,
    Watcher,
};
use crate::evidence::{self, EvidenceFile, Kind, Record};
use crate::job::{Job, Note, Order, Role, Tally};
use crate::real::RealClient;
use crate::scenario::LockType;

/// Runs the worker until its job is done or its coordinator is gone.
pub fn work() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match (runtime, read_job()) {
        (Ok(runtime), Ok(job)) => runtime.block_on(work_on(job)),
        (Err(error), _) => Err(format!("cannot start a runtime: {error}")),
        (_, Err(error)) => Err(error),
    };
    let (note, code) = match result {
        Ok(tally) => (Note::Done(Box::new(tally)), ExitCode::SUCCESS),
        Err(message) => (Note::Failed(message), ExitCode::from(crate::exit::ENVIRONMENT)),
    };
    say(&note);
    code
}

pub(crate) use counter::{PREFIX as COUNTER, sum as counters};
pub(crate) use tallying::of_the_dead;

/// A lock that was taken.
struct Acquired {
    key: u64,
    owner: u64,
    access: Access,
    fence: u64,
    called_ns: u64,
    got_ns: u64,
}

/// What all parts of a worker share.
struct Post {
    job: Job,
    evidence: Arc<EvidenceFile>,
    finish: watch::Receiver<bool>,
    /// Whether acquires that begin now are dropped.
    drops: Arc<AtomicBool>,
    start_ns: u64,
}

async fn work_on(job: Job) -> Result<Tally, String> {
    let orders = listen();
    let evidence = EvidenceFile::create(&job.evidence)
        .map_err(|error| format!("cannot write evidence to {}: {error}", job.evidence.display()))?;
    let evidence = Arc::new(evidence);
    let real = match &job.role {
        Role::Holder { policy, .. } => RealClient::of(policy),
        Role::Load | Role::Rival { .. } => None,
    };
    if let Some(client) = real {
        let options = RedissonOptions {
            client,
            url: job.urls.first().cloned().unwrap_or_default(),
            observe: job.observe.clone(),
            lease: job.scenario.lease(),
            locks: u64::from(job.scenario.workload.keys.count),
            watcher: watcher(&job, &evidence),
            stood_still: {
                let evidence = Arc::clone(&evidence);
                Arc::new(move |from_ns, to_ns| pulse::note_late(&evidence, from_ns, to_ns))
            },
        };
        let driver = RedissonDriver::connect(options).await?;
        return start(job, evidence, orders).await?.take(driver).await;
    }
    match job.scenario.lock.kind {
        LockType::Kind(kind) => {
            let driver = LeaseholdDriver::connect(&driver_options(kind, &job, &evidence)).await?;
            start(job, evidence, orders).await?.take(driver).await
        }
        LockType::Script => {
            let url = job.urls.first().map_or("", String::as_str);
            let timeout = job.scenario.scaled(job.scenario.lock.command.timeout);
            let driver = ScriptDriver::connect(url, timeout).await?;
            start(job, evidence, orders).await?.take(driver).await
        }
        LockType::None => start(job, evidence, orders).await?.take(NoLock).await,
    }
}

/// Says that all is ready, and waits for the order to start.
async fn start(job: Job, evidence: Arc<EvidenceFile>, mut orders: Orders) -> Result<Post, String> {
    say(&Note::Ready);
    let start_ns = loop {
        orders
            .start
            .changed()
            .await
            .map_err(|_| "the coordinator is gone".to_owned())?;
        if let Some(at_ns) = *orders.start.borrow_and_update() {
            break at_ns;
        }
    };
    // Ends with the runtime.
    tokio::spawn(pulse::beat(Arc::clone(&evidence)));
    Ok(Post {
        job,
        evidence,
        finish: orders.finish,
        drops: orders.drops,
        start_ns,
    })
}

/// What the coordinator wants.
struct Orders {
    /// When to start.
    start: watch::Receiver<Option<u64>>,
    finish: watch::Receiver<bool>,
    drops: Arc<AtomicBool>,
}

impl Post {
    async fn take<D: Driver>(self, driver: D) -> Result<Tally, String> {
        let tally = match self.job.role.clone() {
            Role::Load => load::run(self, driver.clone()).await,
            Role::Holder { first_key, moments, .. } => held::hold(self, driver.clone(), first_key, moments).await,
            Role::Rival { first_keys } => Ok(held::rival(self, driver.clone(), first_keys).await),
        };
        driver.close().await;
        tally
    }

    fn name(&self, key: u64) -> String {
        format!("{}{key}", self.job.prefix)
    }

    /// A number for each time a lock is acquired, unique among all workers.
    fn owner(&self, number: u64) -> u64 {
        evidence::owner(u64::from(self.job.member), number)
    }

    fn note(&self, key: u64, owner: u64, kind: Kind, clock: u64, second_clock: u64) {
        self.evidence.write(&Record {
            key,
            owner,
            fence: 0,
            kind,
            clock,
            second_clock,
        });
    }

    fn note_acquired(&self, acquired: &Acquired) {
        self.evidence.write(&Record {
            key: acquired.key,
            owner: acquired.owner,
            fence: acquired.fence,
            kind: match acquired.access {
                Access::Write => Kind::Acquired,
                Access::Read => Kind::AcquiredToRead,
            },
            clock: acquired.got_ns,
            second_clock: acquired.called_ns,
        });
    }

    /// Completes when the coordinator wants an end.
    async fn finished(&self) {
        // A coordinator that is gone ends the process elsewhere; here it counts as the wish to end.
        let _ = self.finish.clone().wait_for(|finish| *finish).await;
    }
}

/// Sleeps until an instant of the boot-time clock; tokio's timer is about a millisecond late.
async fn sleep_until(at_ns: u64) {
    tokio::time::sleep(Duration::from_nanos(at_ns.saturating_sub(clock::now_ns()))).await;
}

fn driver_options(kind: LockKind, job: &Job, evidence: &Arc<EvidenceFile>) -> DriverOptions {
    let scenario = &job.scenario;
    let policy = match &job.role {
        Role::Holder { policy, .. } => policy.clone(),
        Role::Load | Role::Rival { .. } => scenario.lock.policy.clone(),
    };
    let watched = matches!(job.role, Role::Holder { .. });
    DriverOptions {
        kind,
        urls: job.urls.clone(),
        writers_first: scenario.lock.writers_first,
        together: scenario.guards.keys_together,
        lease: scenario.lease(),
        policy,
        command_timeout: scenario.scaled(scenario.lock.command.timeout),
        watcher: watched.then(|| watcher(job, evidence)),
    }
}

/// Writes every renewal into the evidence.
fn watcher(job: &Job, evidence: &Arc<EvidenceFile>) -> Watcher {
    let (prefix, member) = (job.prefix.clone(), u64::from(job.member));
    let evidence = Arc::clone(evidence);
    Arc::new(move |seen: &RenewalSeen| {
        let Some(key) = seen.name.strip_prefix(&prefix).and_then(|key| key.parse().ok()) else {
            return;
        };
        let kind = if seen.renewed {
            Kind::Renewed
        } else {
            Kind::RenewalFailed
        };
        let (clock, second_clock) = (seen.sent_ns, seen.ended_ns);
        evidence.write(&Record {
            key,
            owner: member,
            fence: 0,
            kind,
            clock,
            second_clock,
        });
    })
}

fn read_job() -> Result<Job, String> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| format!("cannot read the job: {error}"))?;
    serde_json::from_str(&line)
        .map_err(|error| format!("this is no job ({error}): workers are started by `lockbench run`, not by hand"))
}

/// Listens to the coordinator on a thread of its own; ends the process when stdin ends.
fn listen() -> Orders {
    let (start, started) = watch::channel(None);
    let (finish, finished) = watch::channel(false);
    let drops = Arc::new(AtomicBool::new(false));
    let dropping = Arc::clone(&drops);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::Finish) => {
                    finish.send_replace(true);
                }
                Ok(Order::Start { at_ns }) => {
                    start.send_replace(Some(at_ns));
                }
                Ok(Order::DropAcquires(begin)) => dropping.store(begin, Ordering::Relaxed),
                Err(error) => eprintln!("lockbench worker: an order that is none: {error}"),
            }
        }
        std::process::exit(i32::from(crate::exit::ENVIRONMENT));
    });
    Orders {
        start: started,
        finish: finished,
        drops,
    }
}

fn say(note: &Note) {
    let mut stdout = io::stdout().lock();
    // Notes are plain data, so they can be written as JSON; a coordinator that hears nothing is gone.
    if let Ok(line) = serde_json::to_string(note) {
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    }
}
