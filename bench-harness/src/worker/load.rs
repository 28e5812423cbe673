//! The workloads `closed` and `open`: requests that take a lock, work under it and give it back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::counter::Counter;
use super::cut_short::cut_short;
use super::tallying::{Counts, Started};
use super::{Acquired, Post, say, sleep_until, steps};
use crate::clock;
use crate::driver::{Access, Driver, Hold};
use crate::evidence::Kind;
use crate::job::{Going, Note, Tally};
use crate::scenario::{Model, nanos};
use crate::workload::{self, Arrival, Plan, Request};

/// Runs this worker's part of the plan, warm-up included.
pub(super) async fn run<D: Driver>(post: Post, driver: D) -> Result<Tally, String> {
    let counts = Mutex::new(Counts::new(&post.job.scenario, post.start_ns));
    let desk = Arc::new(Desk {
        post,
        driver,
        counts,
        owners: AtomicU64::new(0),
        waiting: AtomicU64::new(0),
        held: AtomicU64::new(0),
    });
    let progress = tokio::spawn(Arc::clone(&desk).report_progress());
    let work = async {
        match desk.post.job.scenario.workload.model {
            Model::Open => desk.open().await,
            Model::Closed | Model::Held => desk.closed().await,
        }
    };
    tokio::select! {
        () = work => {}
        () = desk.post.finished() => {}
    }
    progress.abort();
    let scenario = desk.post.job.scenario.clone();
    let empty = Counts::new(&scenario, desk.post.start_ns);
    let counts = std::mem::replace(&mut *desk.counts(), empty);
    Ok(counts.into_tally())
}

/// What all requests of a worker share.
struct Desk<D> {
    post: Post,
    driver: D,
    counts: Mutex<Counts>,
    owners: AtomicU64,
    waiting: AtomicU64,
    held: AtomicU64,
}

impl<D: Driver> Desk<D> {
    /// Each client asks again when its last request is over.
    async fn closed(self: &Arc<Self>) {
        sleep_until(self.post.start_ns).await;
        let end_ns = self.counts().end_ns();
        let job = &self.post.job;
        let plan = Plan::of(&job.scenario);
        let mut running = JoinSet::new();
        let pace = job
            .scenario
            .max_rate()
            .map(|most| Arc::new(Pace::new(most.0 / f64::from(job.of))));
        for client in job.segment().clients(job.scenario.workload.clients) {
            let (desk, pace) = (Arc::clone(self), pace.clone());
            let mut requests = plan.client(client);
            running.spawn(async move {
                loop {
                    if let Some(pace) = &pace {
                        sleep_until(pace.next(clock::now_ns())).await;
                    }
                    let (request, now) = (requests.draw(), clock::now_ns());
                    if now >= end_ns {
                        break;
                    }
                    desk.serve(request, now, Some(client)).await;
                    if request.think_ns > 0 {
                        tokio::time::sleep(Duration::from_nanos(request.think_ns)).await;
                    } else {
                        // A client whose calls never wait would keep all others from their turn.
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        while running.join_next().await.is_some() {}
    }

    /// Requests start when the plan says; a thread paces them, since tokio's timer is up to 3 ms late.
    async fn open(self: &Arc<Self>) {
        let (job, scenario) = (&self.post.job, &self.post.job.scenario);
        let segment = job.segment();
        let mine: Vec<Arrival> = segment.arrivals(workload::arrivals(scenario)).collect();
        let places = segment.clients(scenario.workload.clients).count() as u32;
        let slots = Arc::new(Semaphore::new(places as usize));
        let (desk, free, runtime) = (Arc::clone(self), Arc::clone(&slots), tokio::runtime::Handle::current());
        let pacing = tokio::task::spawn_blocking(move || {
            for arrival in mine {
                let intended_ns = desk.post.start_ns + arrival.at_ns;
                let early = intended_ns.saturating_sub(clock::now_ns());
                if early > 0 {
                    std::thread::sleep(Duration::from_nanos(early));
                }
                if *desk.post.finish.borrow() {
                    return;
                }
                let Ok(slot) = Arc::clone(&free).try_acquire_owned() else {
                    desk.counts().dropped(intended_ns);
                    continue;
                };
                let desk = Arc::clone(&desk);
                runtime.spawn(async move {
                    desk.serve(arrival.request, intended_ns, None).await;
                    drop(slot);
                });
            }
        });
        // A panic of the pacing thread has been printed; the requests it started are counted all the same.
        let _ = pacing.await;
        // All slots are free again when all requests are over.
        let _all = slots.acquire_many(places).await;
    }

    /// One request, from its call until it has left the system.
    async fn serve(&self, request: Request, intended_ns: u64, client: Option<u32>) {
        let started = Started {
            intended_ns,
            called_ns: clock::now_ns(),
        };
        self.counts().came(started);
        self.answer(request, started, client).await;
        self.counts().went(started, clock::now_ns());
    }

    /// Takes the lock, works, gives it back; and writes down when.
    async fn answer(&self, request: Request, started: Started, client: Option<u32>) {
        let wait = self.post.job.scenario.workload.wait.0;
        let owner = self.post.owner(self.owners.fetch_add(1, Ordering::Relaxed));
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let name = self.post.name(request.key);
        let acquiring = self.driver.acquire(&name, request.access, wait);
        let answer = match self.post.drops.load(Ordering::Relaxed) {
            true => cut_short(acquiring, fastrand::Rng::with_seed(self.post.job.scenario.seed ^ owner)).await,
            false => Some(acquiring.await),
        };
        let got_ns = clock::now_ns();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let hold = match answer {
            None => return self.counts().cancelled(started),
            Some(Ok(hold)) => hold,
            Some(Err(refusal)) => return self.counts().refused(started, got_ns, refusal.of_any(&name)),
        };
        self.post.note_acquired(&Acquired {
            key: request.key,
            owner,
            // Who reads under a lock for one holder must meet nobody.
            access: if self.post.job.scenario.lock.kind.is_shared_by_readers() {
                request.access
            } else {
                Access::Write
            },
            fence: hold.fence(),
            called_ns: started.called_ns,
            got_ns,
        });
        self.counts().acquired(started, got_ns, hold.attempts(), client);
        if !hold.is_held() {
            self.post.note(request.key, owner, Kind::WorkEnd, got_ns, 0);
            if self.counts_updates(request) {
                self.counts().raised(Ok(()));
            }
            self.counts().completed(started, got_ns..got_ns, Ok(true));
            return;
        }
        self.held.fetch_add(1, Ordering::Relaxed);
        let inner = self.reenter(&hold, request, started).await;
        let counter = self.counter(request);
        let (told, last_ns) = self.work(&hold, request, (owner, got_ns)).await;
        let mut has_raised = false;
        if let Some(counter) = counter.filter(|_| !told) {
            let raised = counter.and_then(Counter::raise);
            has_raised = raised.is_ok();
            self.counts().raised(raised);
        }
        let end_ns = last_ns.unwrap_or_else(clock::now_ns);
        self.post
            .note(request.key, owner, Kind::WorkEnd, end_ns, u64::from(has_raised));
        for inner in inner.into_iter().rev() {
            if let Err(refusal) = inner.release().await {
                self.counts().not_reentered(started, refusal.of_any(&name));
            }
        }
        let released = hold.release().await.map_err(|refusal| refusal.of_any(&name));
        self.held.fetch_sub(1, Ordering::Relaxed);
        if told {
            // To give back what is lost is no error; that it is lost has been counted.
            self.counts().stopped(started, got_ns..end_ns);
        } else {
            self.counts().completed(started, got_ns..end_ns, released);
        }
    }

    /// Takes the lock as many times more as the request says, or until that fails.
    async fn reenter(&self, hold: &D::Hold, request: Request, started: Started) -> Vec<D::Hold> {
        let wait = self.post.job.scenario.workload.wait.0;
        let mut inner = Vec::new();
        for _ in 0..request.reentries {
            let called_ns = clock::now_ns();
            match hold.reenter(wait).await {
                Ok(hold) => inner.push(hold),
                Err(refusal) => {
                    let refusal = refusal.of_any(&self.post.name(request.key));
                    self.counts().not_reentered(started, refusal);
                    break;
                }
            }
            self.counts().reentered(started, called_ns..clock::now_ns());
        }
        inner
    }

    /// The counter that the request raises, if the workload has any.
    fn counter(&self, request: Request) -> Option<std::io::Result<Counter>> {
        let folder = self
            .post
            .job
            .evidence
            .parent()
            .filter(|_| self.counts_updates(request))?;
        Some(Counter::read(folder, request.key))
    }

    fn counts_updates(&self, request: Request) -> bool {
        self.post.job.scenario.workload.counter && request.access == Access::Write
    }

    /// Works for as long as the request says, or until told that the lock is lost, if the workload honours that.
    /// Says whether it stopped early, and when it acted last if that was not just now.
    async fn work(&self, hold: &D::Hold, request: Request, (owner, got_ns): (u64, u64)) -> (bool, Option<u64>) {
        if request.hold_ns == 0 {
            return (false, None);
        }
        let workload = &self.post.job.scenario.workload;
        let work = tokio::time::sleep(Duration::from_nanos(request.hold_ns));
        if let Some(step) = workload.step {
            let stepped = steps::work(hold, got_ns, workload.honours_lost, step.0, work).await;
            if stepped.told {
                self.told(request.key, owner);
            }
            return (stepped.told, stepped.told.then_some(stepped.last_ns));
        }
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => return (false, None),
            () = hold.lost() => {}
        }
        self.told(request.key, owner);
        if workload.honours_lost {
            sleep_until(clock::now_ns() + nanos(workload.reaction.0)).await;
        } else {
            work.await;
        }
        (workload.honours_lost, None)
    }

    fn told(&self, key: u64, owner: u64) {
        self.post.note(key, owner, Kind::Told, clock::now_ns(), 0);
        self.counts().told_lost();
    }

    async fn report_progress(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PROGRESS).await;
            let answered = self.counts().answered();
            say(&Note::Progress(Going {
                answered,
                waiting: self.waiting.load(Ordering::Relaxed),
                held: self.held.load(Ordering::Relaxed),
            }));
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Keeps all clients of a worker together below a rate.
struct Pace {
    interval_ns: u64,
    next_ns: Mutex<u64>,
}

impl Pace {
    fn new(per_s: f64) -> Self {
        Self {
            interval_ns: (1e9 / per_s) as u64,
            next_ns: Mutex::new(0),
        }
    }

    /// When the next request may start. One that comes late makes up for nothing.
    fn next(&self, now_ns: u64) -> u64 {
        let mut next_ns = self.next_ns.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mine = now_ns.max(*next_ns);
        *next_ns = mine + self.interval_ns;
        mine
    }
}

/// How often a worker says how it goes: faults wait for what it says.
const PROGRESS: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_kept_and_lost_time_is_not_made_up_for() {
        let pace = Pace::new(1_000.0);
        let starts = [5, 5, 5, 9_000_000, 9_000_000].map(|now| pace.next(now));
        assert_eq!(starts, [5, 1_000_005, 2_000_005, 9_000_000, 10_000_000]);
    }
}
