//! What a worker counts while it works.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use hdrhistogram::Histogram;

use super::presence::{Presence, overlap};
use crate::driver::Refusal;
use crate::evidence::{Kind, Record};
use crate::job::Tally;
use crate::measure::{FAIRNESS_WINDOW, encode, histogram, record};
use crate::scenario::{Scenario, nanos};

/// The counts of one worker; only requests that were to start within the measured time count.
pub(super) struct Counts {
    window: Range<u64>,
    acquire: Histogram<u64>,
    service: Histogram<u64>,
    hold: Histogram<u64>,
    lag: Histogram<u64>,
    reentry: Histogram<u64>,
    series: BTreeMap<u32, Histogram<u64>>,
    presence: Presence,
    tally: Tally,
}

/// When a request was to start, and when it did.
#[derive(Clone, Copy)]
pub(super) struct Started {
    pub(super) intended_ns: u64,
    pub(super) called_ns: u64,
}

impl Counts {
    pub(super) fn new(scenario: &Scenario, start_ns: u64) -> Self {
        let from = start_ns + nanos(scenario.scaled(scenario.workload.warm_up));
        let window = from..from + nanos(scenario.scaled(scenario.workload.duration));
        Self {
            presence: Presence::within(window.clone()),
            window,
            acquire: histogram(),
            service: histogram(),
            hold: histogram(),
            lag: histogram(),
            reentry: histogram(),
            series: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// The end of the measured time.
    pub(super) fn end_ns(&self) -> u64 {
        self.window.end
    }

    pub(super) fn answered(&self) -> u64 {
        self.acquire.len()
    }

    /// A request has come into the system.
    pub(super) fn came(&mut self, started: Started) {
        self.presence.came(started.called_ns);
    }

    /// It has left the system, whichever way.
    pub(super) fn went(&mut self, started: Started, now_ns: u64) {
        self.presence.went(now_ns);
        let stay = started.called_ns..now_ns;
        let whole = now_ns.saturating_sub(started.called_ns);
        let of_window = if self.counts(started) { whole } else { 0 };
        self.tally.ended += u64::from(self.counts(started));
        self.tally.in_system_ns += of_window;
        self.tally.edges_ns += overlap(&stay, &self.window) as i64 - of_window as i64;
    }

    pub(super) fn acquired(&mut self, started: Started, got_ns: u64, attempts: u64, client: Option<u32>) {
        if self.answer(started, got_ns) {
            self.tally.successes += 1;
            self.tally.attempts += attempts;
            if let Some(client) = client {
                let window = (started.called_ns.saturating_sub(self.window.start) / nanos(FAIRNESS_WINDOW)) as u32;
                let served = self.tally.served.entry(window).or_default();
                *served.entry(client).or_default() += 1;
            }
            record(&mut self.service, got_ns - started.called_ns);
        }
    }

    pub(super) fn refused(&mut self, started: Started, now_ns: u64, refusal: Refusal) {
        match refusal {
            Refusal::Busy if self.answer(started, now_ns) => self.tally.timeouts += 1,
            Refusal::Failed(text) if self.counts(started) => self.failed(text),
            Refusal::Busy | Refusal::Failed(_) => {}
        }
    }

    /// A holder took its lock once more.
    pub(super) fn reentered(&mut self, started: Started, took: Range<u64>) {
        if self.counts(started) {
            record(&mut self.reentry, took.end - took.start);
        }
    }

    /// A holder could not take its lock once more, or not give that back.
    pub(super) fn not_reentered(&mut self, started: Started, refusal: Refusal) {
        if self.counts(started) {
            self.failed(match refusal {
                Refusal::Busy => "a holder waited in vain for the lock it held".to_owned(),
                Refusal::Failed(text) => text,
            });
        }
    }

    /// Work from one instant to another has ended. It makes throughput if that was in the measured time, whenever it was asked for: of an
    /// open workload that cannot keep up most ends later.
    pub(super) fn completed(&mut self, started: Started, work: Range<u64>, released: Result<bool, Refusal>) {
        if released.is_ok() && self.window.contains(&work.end) {
            self.tally.completed += 1;
        }
        if !self.counts(started) {
            return;
        }
        record(&mut self.hold, work.end - work.start);
        if let Err(Refusal::Failed(text)) = released {
            self.failed(text);
        }
    }

    /// Work ended since its holder was told that the lock is lost: it makes no throughput.
    pub(super) fn stopped(&mut self, started: Started, work: Range<u64>) {
        if self.counts(started) {
            record(&mut self.hold, work.end - work.start);
        }
    }

    /// A counter was raised, or could not be. It counts whenever that was, since the counters begin with the run.
    pub(super) fn raised(&mut self, raised: io::Result<()>) {
        match raised {
            Ok(()) => self.tally.increments += 1,
            Err(error) => self.failed(format!("the counter could not be raised: {error}")),
        }
    }

    pub(super) fn told_lost(&mut self) {
        self.tally.lost += 1;
    }

    pub(super) fn dropped(&mut self, intended_ns: u64) {
        if self.window.contains(&intended_ns) {
            self.tally.dropped += 1;
        }
    }

    pub(super) fn cancelled(&mut self, started: Started) {
        if self.counts(started) {
            self.tally.cancelled += 1;
        }
    }

    pub(super) fn into_tally(self) -> Tally {
        Tally {
            acquire: encode(&self.acquire),
            service: encode(&self.service),
            hold: encode(&self.hold),
            generator_lag: encode(&self.lag),
            reentry: encode(&self.reentry),
            present_ns: self.presence.area_ns(),
            series: self
                .series
                .iter()
                .map(|(second, each)| (*second, encode(each)))
                .collect(),
            ..self.tally
        }
    }

    /// Records an answer from the intended start on; a timeout is one too. Says whether it counts.
    fn answer(&mut self, started: Started, now_ns: u64) -> bool {
        if !self.counts(started) {
            return false;
        }
        let took = now_ns.saturating_sub(started.intended_ns);
        record(&mut self.acquire, took);
        record(&mut self.lag, started.called_ns.saturating_sub(started.intended_ns));
        let second = (now_ns.saturating_sub(self.window.start) / 1_000_000_000) as u32;
        record(self.series.entry(second).or_insert_with(histogram), took);
        true
    }

    fn counts(&self, started: Started) -> bool {
        self.window.contains(&started.intended_ns)
    }

    fn failed(&mut self, text: String) {
        *self.tally.errors.entry(text).or_default() += 1;
    }
}

/// What a worker of a closed workload counted that was killed before it could hand it in, from its evidence. How many attempts its locks
/// took and which of its clients had them is not in there, nor is what it waited for in vain.
pub(crate) fn of_the_dead(scenario: &Scenario, start_ns: u64, records: &[Record]) -> Tally {
    let mut counts = Counts::new(scenario, start_ns);
    let mut open = BTreeMap::new();
    for record in records {
        let lock = (record.key, record.owner);
        match record.kind {
            Kind::Acquired | Kind::AcquiredToRead => {
                let started = Started {
                    intended_ns: record.second_clock,
                    called_ns: record.second_clock,
                };
                counts.acquired(started, record.clock, 0, None);
                open.insert(lock, (started, record.clock));
            }
            Kind::Told => counts.told_lost(),
            Kind::WorkEnd => {
                if record.second_clock > 0 {
                    counts.raised(Ok(()));
                }
                if let Some((started, got_ns)) = open.remove(&lock) {
                    counts.completed(started, got_ns..record.clock, Ok(true));
                }
            }
            _ => {}
        }
    }
    counts.into_tally()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::decode;

    #[test]
    fn latency_counts_from_the_intended_start_and_a_timeout_with_its_full_wait() {
        let scenario = Scenario::read("flash-sale", &[]).unwrap();
        let mut counts = Counts::new(&scenario, 0);
        let start = counts.window.start;
        let late = Started {
            intended_ns: start,
            called_ns: start + 3_000_000,
        };
        counts.acquired(late, start + 4_000_000, 1, Some(3));
        counts.refused(late, start + 2_000_000_000, Refusal::Busy);
        let before = Started {
            intended_ns: start - 1,
            called_ns: start,
        };
        counts.acquired(before, start + 9_000_000_000, 1, Some(3));
        let tally = counts.into_tally();
        let acquire = decode(&tally.acquire).unwrap();
        assert_eq!((tally.successes, tally.timeouts, acquire.len()), (1, 1, 2));
        assert!(
            acquire.min() >= 3_990 && acquire.max() >= 1_999_000,
            "{} {}",
            acquire.min(),
            acquire.max()
        );
        assert_eq!(tally.served, BTreeMap::from([(0, BTreeMap::from([(3, 1)]))]));
        assert!(decode(&tally.service).unwrap().max() < 1_010);
        assert_eq!(tally.series.keys().copied().collect::<Vec<_>>(), [0, 2]);
    }

    /// The two counts of those in the system, which must be the same.
    fn both(counts: Counts) -> (i64, i64) {
        let tally = counts.into_tally();
        (tally.present_ns as i64, tally.in_system_ns as i64 + tally.edges_ns)
    }

    /// Counts of requests at random, before, in and after the measured time; of those that `skipped` says the end is not recorded.
    fn at_random(seed: u64, skipped: fn(usize) -> bool) -> Counts {
        let scenario = Scenario::read("flash-sale", &[]).unwrap();
        let mut counts = Counts::new(&scenario, 0);
        let (mut rng, end) = (fastrand::Rng::with_seed(seed), counts.window.end);
        let mut steps = Vec::new();
        for number in 0..2_000 {
            let intended_ns = rng.u64(0..end + end / 10);
            let called_ns = intended_ns + rng.u64(0..1_000_000);
            let started = Started { intended_ns, called_ns };
            steps.push((called_ns, started, true));
            if !skipped(number) {
                steps.push((called_ns + rng.u64(0..end / 5), started, false));
            }
        }
        steps.sort_by_key(|(at_ns, ..)| *at_ns);
        for (at_ns, started, comes) in steps {
            if comes {
                counts.came(started);
            } else {
                counts.went(started, at_ns);
            }
        }
        counts
    }

    #[test]
    fn littles_law_holds_to_the_nanosecond_where_nothing_is_left_out() {
        for seed in 0..50 {
            let (there, by_the_law) = both(at_random(seed, |_| false));
            assert_eq!(there, by_the_law, "seed {seed}");
            assert!(there > 0);
        }
    }

    #[test]
    fn littles_law_shows_requests_whose_end_nobody_recorded() {
        for seed in 0..50 {
            let (there, by_the_law) = both(at_random(seed, |number| number % 10 == 0));
            assert!(by_the_law * 100 < there * 95, "seed {seed}: {there} {by_the_law}");
        }
    }

    #[test]
    fn throughput_is_what_ended_in_the_measured_time() {
        let scenario = Scenario::read("flash-sale", &[]).unwrap();
        let mut counts = Counts::new(&scenario, 0);
        let (start, end) = (counts.window.start, counts.window.end);
        let at = |intended_ns| Started {
            intended_ns,
            called_ns: intended_ns,
        };
        counts.completed(at(start - 5), start - 4..start + 1, Ok(true));
        counts.completed(at(end - 5), end - 4..end - 1, Ok(true));
        counts.completed(at(end - 5), end - 4..end, Ok(true));
        counts.completed(at(start), start + 1..start + 2, Err(Refusal::Failed("no".to_owned())));
        let tally = counts.into_tally();
        assert_eq!((tally.completed, tally.errors["no"]), (2, 1));
        assert_eq!(
            decode(&tally.hold).unwrap().len(),
            3,
            "of those asked for in the measured time"
        );
    }

    #[test]
    fn what_a_dead_worker_counted_is_in_its_evidence() {
        let scenario = Scenario::read("stock-decrement", &[]).unwrap();
        let start = Counts::new(&scenario, 0).window.start;
        let record = |owner, kind, clock, second_clock| Record {
            key: 1,
            owner,
            fence: 0,
            kind,
            clock,
            second_clock,
        };
        let records = [
            record(1, Kind::Acquired, start - 5, start - 9),
            record(1, Kind::WorkEnd, start + 1_000_000, 1),
            record(2, Kind::Acquired, start + 2_000_000, start + 1_000),
            record(2, Kind::Told, start + 3_000_000, 0),
            record(2, Kind::WorkEnd, start + 4_000_000, 0),
            record(3, Kind::Acquired, start + 9_000_000, start + 8_000_000),
        ];
        let tally = of_the_dead(&scenario, 0, &records);
        assert_eq!(
            (tally.successes, tally.completed, tally.increments, tally.lost),
            (2, 2, 1, 1)
        );
        assert_eq!((tally.attempts, decode(&tally.acquire).unwrap().len()), (0, 2));
    }
}
