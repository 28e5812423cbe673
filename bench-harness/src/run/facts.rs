//! From the evidence of a round to what became of each lock, beside what the model says of it.

use std::time::Duration;

use crate::check::{self, Orphan, Overlap, Owned, Turn, Work};
use crate::evidence::{Kind, Record};
use crate::faults::Observed;
use crate::job::{first_key, policy_of};
use crate::measure::{Fencing, LockRow, Orphans, Overlaps, PolicyRow, Timeline, Told, Turns, Wrong};
use crate::predict::{Family, Prediction, Range, Timings};
use crate::scenario::{FaultSpec, Scenario, nanos};

use super::seen::Seen;
use super::server_side::ServerFacts;
use super::{millis_between, phase};

/// All that is known of a round.
pub(super) struct RoundFacts<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) spec: &'a FaultSpec,
    pub(super) observed: Observed,
    /// What the server's append-only file says, if it was read.
    pub(super) server: Option<&'a ServerFacts>,
    pub(super) stall: Duration,
    /// For how long after the fault the server worked off what had waited.
    pub(super) busy: Duration,
    pub(super) evidence: &'a [Vec<Record>],
    pub(super) seen: Seen,
}

/// What happened to one lock, in nanoseconds of the boot-time clock.
#[derive(Clone, Copy, Debug)]
struct LockFacts {
    key: u64,
    /// The holder at work.
    holder: Work,
    /// The last renewal that was executed before the fault: sent, answered.
    before: (u64, u64),
    /// When one was sent that the fault caught on its way: nobody knows whether it was executed.
    caught: Option<u64>,
    /// The last renewal that was executed at all.
    last_sent: u64,
    told: Option<u64>,
    /// When a rival got the lock, if that was before the holder gave it back.
    taken: Option<u64>,
}

impl RoundFacts<'_> {
    /// A row for each policy, in the order of the scenario.
    pub(super) fn policies(&self) -> Vec<PolicyRow> {
        let policies = self.scenario.policies();
        policies
            .iter()
            .enumerate()
            .map(|(index, policy)| self.row(index, policy))
            .collect()
    }

    /// Ownership over time, for that many keys of each policy: the first that overlap, else the first that were lost.
    pub(super) fn timelines(&self, keys: usize) -> Vec<Timeline> {
        let mut timelines = Vec::new();
        for (index, policy) in self.scenario.policies().iter().enumerate() {
            let mut locks = self.locks(index);
            let overlaps = |lock: &LockFacts| self.seen.overlaps.iter().any(|overlap| overlap.key == lock.key);
            locks.sort_by_key(|lock| (!overlaps(lock), lock.told.is_none(), lock.key));
            timelines.extend(locks.iter().take(keys).map(|lock| self.timeline(policy, lock)));
        }
        timelines
    }

    /// The same for one lock of the policy at that index, if it was held when the fault struck.
    pub(super) fn timeline_of(&self, index: usize, policy: &str, key: u64) -> Option<Timeline> {
        let lock = self.lock(key, self.evidence.get(index)?)?;
        Some(self.timeline(policy, &lock))
    }

    fn row(&self, index: usize, policy: &str) -> PolicyRow {
        let mut locks = Vec::new();
        let mut row = PolicyRow {
            policy: policy.to_owned(),
            held: 0,
            lost: 0,
            needless: 0,
            predicted_lost: 0,
            mismatches: 0,
            in_band: 0,
            told: None,
            predicted_told: None,
            overlaps: Overlaps::default(),
            predicted_overlaps: (0, 0),
            exposure: self.server.map(|server| server.exposure(index)),
            orphan: self.server.map(|server| server.orphan(index)),
            fencing: fencing(&self.work_of(index)),
            commands_in_fault: self.commands_in_fault(index),
            locks: Vec::new(),
        };
        // The scenario was checked: its policies all have timings, and its faults are of a family.
        let (Some(timings), Some(family)) = (Timings::of(policy, self.scenario.lease()), self.spec.kind.family())
        else {
            return row;
        };
        let length = signed(self.observed.from_ns, self.observed.to_ns);
        let timings = timings.under_a_fault_of(policy, length);
        // The same for all its locks, and found by reading all that its worker wrote.
        let late = self.late(index);
        for lock in self.locks(index) {
            let (prediction, overlap) = self.prediction(&timings, family, &lock, late);
            // A round trip and a wake-up either way: within the band it may go either way.
            let is_overlap = |length: i64| u64::from(prediction.lost && length > prediction.band);
            row.predicted_overlaps.0 += is_overlap(overlap.0);
            row.predicted_overlaps.1 += is_overlap(overlap.1);
            row.in_band += u64::from(prediction.in_band());
            let ended = timings.ended(family, signed(lock.before.0, self.observed.to_ns));
            let lock = self.lock_row(&timings, &lock, &prediction, (overlap, ended));
            row.held += 1;
            row.lost += u64::from(lock.lost);
            row.needless += u64::from(lock.lost && lock.renewal_to_heal_ms < timings.lease as f64 / 1e6);
            row.predicted_lost += u64::from(prediction.lost);
            row.mismatches += u64::from(lock.contradicts());
            locks.push(lock);
        }
        row.told = Told::of(locks.iter().filter_map(|lock| lock.told_ms).collect());
        row.predicted_told = Told::of(locks.iter().filter_map(|lock| lock.predicted_told_ms).collect());
        row.overlaps = sum(&self
            .seen
            .overlaps
            .iter()
            .filter(|o| policy_of(o.key) == index)
            .copied()
            .collect::<Vec<_>>());
        row.locks = locks;
        row
    }

    /// What the model says of a lock, and for how long it has two at work under it: at the least, at the most.
    fn prediction(&self, timings: &Timings, family: Family, lock: &LockFacts, late: u64) -> (Prediction, Range) {
        // A fault that no holder can notice is none for its lock.
        let renewal_to_heal = match self.spec.scope.reaches_holders() {
            true => signed(lock.before.0, self.observed.to_ns),
            false => 0,
        };
        let (sent, answered) = lock.before;
        let late = late + nanos(self.stall) + nanos(self.busy);
        let caught = lock.caught.map_or(0, |caught| caught.saturating_sub(sent));
        let uncertainty = late + answered.saturating_sub(sent) + caught + self.end_not_seen();
        let reaction = nanos(self.scenario.workload.reaction.0) as i64;
        (
            timings.predict(family, renewal_to_heal, uncertainty as i64),
            timings.overlap(family, self.spec.scope, renewal_to_heal, reaction),
        )
    }

    /// How much sooner than observed the fault may have ended. A pause ends by itself, and who watches for it is answered when its turn
    /// comes.
    fn end_not_seen(&self) -> u64 {
        if !self.spec.kind.ends_by_itself() {
            return 0;
        }
        let asked = self.scenario.scaled(self.spec.length);
        nanos(self.observed.duration().saturating_sub(asked))
    }

    /// `predicted`: for how long two are at work, and when the server's ownership ends.
    fn lock_row(
        &self,
        timings: &Timings,
        lock: &LockFacts,
        prediction: &Prediction,
        predicted: (Range, Range),
    ) -> LockRow {
        let lost = lock.told.is_some() || lock.taken.is_some();
        let of_key = self.seen.overlaps.iter().filter(|overlap| overlap.key == lock.key);
        let at_work: u64 = of_key.map(|overlap| overlap.to - overlap.from).sum();
        let told = lock.told.map(|told| signed(lock.before.0, told));
        let checks = [
            (prediction.contradicts(lost), Wrong::Fate),
            (prediction.contradicts_told(told), Wrong::Told),
            (
                prediction.contradicts_overlap(predicted.0, at_work as i64),
                Wrong::Overlap,
            ),
            (self.contradicts_end(lock, prediction, predicted.1), Wrong::End),
        ];
        let ms = |ns: i64| ns as f64 / 1e6;
        let expiry = lock.last_sent + nanos(self.scenario.lease());
        LockRow {
            key: lock.key,
            renewal_to_heal_ms: ms(signed(lock.before.0, self.observed.to_ns)),
            lost,
            predicted_lost: prediction.lost,
            distance_ms: ms(prediction.distance),
            band_ms: ms(prediction.band),
            told_ms: lock.told.map(|told| millis_between(expiry, told)),
            predicted_told_ms: prediction.told.map(|(from, to)| ms((from + to) / 2 - timings.lease)),
            overlap_ms: ms(at_work as i64),
            ended_ms: self.hold(lock).map(|hold| millis_between(expiry, hold.to)),
            wrong: checks
                .into_iter()
                .filter_map(|(is_wrong, what)| is_wrong.then_some(what))
                .collect(),
        }
    }

    /// The hold of its holder, by the server.
    fn hold(&self, lock: &LockFacts) -> Option<&Owned> {
        self.server?.hold(&lock.holder)
    }

    /// Whether the server's ownership ended at a time that the model excludes, or was never seen.
    fn contradicts_end(&self, lock: &LockFacts, prediction: &Prediction, ended: Range) -> bool {
        let since = |at: u64| signed(lock.before.0, at);
        match self.hold(lock) {
            Some(hold) => prediction.contradicts_end(ended, since(hold.to), since(lock.holder.to)),
            None => self.server.is_some(),
        }
    }

    /// For how long at most the worker at that index ran late, from just before the fault until the round was over; to be stopped by
    /// the fault is not to be late.
    fn late(&self, index: usize) -> u64 {
        let from = self.observed.from_ns.saturating_sub(nanos(self.scenario.lease()) / 3);
        let records = self.evidence.get(index).into_iter().flatten();
        let late = records.filter(|record| record.kind == Kind::Late && record.second_clock > from);
        let still = || self.seen.still.iter().filter(|still| still.member == index as u64);
        late.map(|record| {
            let (due, ran) = (record.clock, record.second_clock);
            let woke = still().filter(|still| still.to > due && still.from < ran);
            let due = woke.map(|still| still.to).max().unwrap_or(due);
            ran.saturating_sub(due)
        })
        .max()
        .unwrap_or(0)
    }

    /// The same for the worker that ran latest.
    pub(super) fn latest(&self) -> Duration {
        let late = (0..self.evidence.len()).map(|index| self.late(index)).max();
        Duration::from_nanos(late.unwrap_or(0))
    }

    /// How many locks the fault met in another phase of their renewals than was asked for.
    pub(super) fn out_of_phase(&self) -> u64 {
        let period = self.scenario.lease() / 3;
        let policies = 0..self.scenario.policies().len();
        let locks = policies.flat_map(|index| self.locks(index));
        let since = |lock: &LockFacts| Duration::from_nanos(self.observed.from_ns.saturating_sub(lock.before.0));
        let is_out = |lock: &LockFacts| !phase::is_met(self.spec.phase, since(lock), period);
        locks.filter(is_out).count() as u64
    }

    /// All work under the locks of a policy, that of their rivals included.
    fn work_of(&self, index: usize) -> Vec<Work> {
        let of_policy = self.seen.work.iter().filter(|work| policy_of(work.key) == index);
        of_policy.copied().collect()
    }

    /// The locks that a policy held when the fault struck.
    fn locks(&self, index: usize) -> Vec<LockFacts> {
        let Some(records) = self.evidence.get(index) else {
            return Vec::new();
        };
        let first = first_key(index);
        (first..first + u64::from(self.scenario.workload.keys.count))
            .filter_map(|key| self.lock(key, records))
            .collect()
    }

    fn lock(&self, key: u64, records: &[Record]) -> Option<LockFacts> {
        let of_key = || records.iter().filter(|record| record.key == key);
        let owner = of_key().find(|record| record.kind == Kind::Acquired)?.owner;
        let holder = *self
            .seen
            .work
            .iter()
            .find(|work| work.key == key && work.owner == owner)?;
        if holder.from > self.observed.from_ns || holder.to < self.observed.from_ns {
            return None;
        }
        let executed = || {
            of_key().filter_map(|record| match record.kind {
                Kind::Acquired => Some((record.second_clock, record.clock)),
                Kind::Renewed => Some((record.clock, record.second_clock)),
                _ => None,
            })
        };
        // One that was on its way when the fault struck was executed if its answer still came through. A fault takes some time to be
        // everywhere.
        let struck = self.observed.from_ns + nanos(self.scenario.lease()) / 100;
        // Who was stopped before it heard the answer hears it when it wakes: the server had executed it long before.
        let is_frozen = self.spec.kind.family() == Some(Family::Frozen);
        let heard = |(sent, answered): (u64, u64)| match is_frozen && sent <= struck {
            true => (sent, answered.min(struck)),
            false => (sent, answered),
        };
        let before = executed()
            .map(heard)
            .filter(|(_, answered)| *answered <= struck)
            .max_by_key(|(sent, _)| *sent)?;
        let caught = of_key()
            .filter(|record| record.kind == Kind::RenewalFailed && record.second_clock > self.observed.from_ns)
            .map(|record| record.clock)
            .find(|sent| (before.0..struck).contains(sent));
        let last_sent = executed().map(|(sent, _)| sent).max()?;
        let told = of_key()
            .find(|record| record.kind == Kind::Told)
            .map(|record| record.clock);
        let rival = self
            .seen
            .work
            .iter()
            .filter(|work| work.key == key && work.owner != owner);
        let taken = rival.map(|work| work.from).min().filter(|from| *from < holder.to);
        Some(LockFacts {
            key,
            holder,
            before,
            caught,
            last_sent,
            told,
            taken,
        })
    }

    fn timeline(&self, policy: &str, lock: &LockFacts) -> Timeline {
        let at = |clock: u64| millis_between(self.observed.from_ns, clock);
        let expiry = lock.last_sent + nanos(self.scenario.lease());
        // A lock that was given back ended then; one that was lost with its lease, or when the next one got it.
        let kept = lock.told.is_none() && lock.taken.is_none();
        let rivals: Vec<_> = self
            .seen
            .work
            .iter()
            .filter(|work| work.key == lock.key && work.owner != lock.holder.owner)
            .collect();
        let next = rivals.iter().map(|work| work.from).min();
        let server_end = if kept {
            lock.holder.to
        } else {
            next.map_or(expiry, |next| next.min(expiry))
        };
        let span = |work: &Work| (at(work.from), at(work.to));
        let server = match self.hold(lock) {
            Some(hold) => (hold.from, hold.to),
            None => (lock.holder.from, server_end),
        };
        let of_server = |spans: &dyn Fn(&ServerFacts) -> Vec<(f64, f64)>| self.server.map_or_else(Vec::new, spans);
        Timeline {
            policy: policy.to_owned(),
            key: lock.key,
            server: (at(server.0), at(server.1)),
            owned: of_server(&|server| {
                server
                    .holds_of(lock.key)
                    .map(|hold| (at(hold.from), at(hold.to)))
                    .collect()
            }),
            exposed: of_server(&|server| {
                server
                    .exposures_of(lock.key)
                    .map(|gap| (at(gap.from), at(gap.to)))
                    .collect()
            }),
            holder: span(&lock.holder),
            told: lock.told.map(at),
            rivals: rivals.into_iter().map(span).collect(),
            overlaps: self
                .seen
                .overlaps
                .iter()
                .filter(|overlap| overlap.key == lock.key)
                .map(|overlap| (at(overlap.from), at(overlap.to)))
                .collect(),
        }
    }

    /// Renewals sent together were one command.
    fn commands_in_fault(&self, index: usize) -> u64 {
        let Some(records) = self.evidence.get(index) else {
            return 0;
        };
        let during = self.observed.from_ns..=self.observed.to_ns;
        let mut sent: Vec<u64> = records
            .iter()
            .filter(|record| matches!(record.kind, Kind::Renewed | Kind::RenewalFailed))
            .map(|record| record.clock)
            .filter(|clock| during.contains(clock))
            .collect();
        sent.sort_unstable();
        sent.dedup();
        sent.len() as u64
    }
}

/// How often and how long.
pub(super) fn sum(overlaps: &[Overlap]) -> Overlaps {
    let lengths = overlaps.iter().map(|overlap| millis_between(overlap.from, overlap.to));
    Overlaps::of(lengths)
}

/// How many, and for how long at most.
pub(super) fn orphans(orphans: &[Orphan]) -> Orphans {
    let lengths = orphans
        .iter()
        .filter_map(|orphan| Some(millis_between(orphan.from, orphan.to?)));
    Orphans {
        count: orphans.len() as u64,
        taken: lengths.clone().count() as u64,
        max_ms: lengths.reduce(f64::max),
    }
}

/// What fencing tokens were worth.
pub(super) fn fencing(work: &[Work]) -> Fencing {
    let stale = check::stale(work);
    Fencing {
        stale_accepted: stale.without_token,
        stale_rejected: stale.with_older_token,
        disorder: check::disorder(work),
    }
}

/// In which order those who waited were served, in few numbers.
pub(super) fn turns(mut turns: Vec<Turn>) -> Turns {
    let mut overtakes: Vec<u64> = turns.iter().map(|turn| turn.overtaken_by).collect();
    overtakes.sort_unstable();
    let rank = (overtakes.len() * 99).div_ceil(100).saturating_sub(1);
    turns.sort_unstable_by_key(|turn| (turn.key, turn.waited));
    let starved = |of_key: &[Turn]| {
        let limit = (of_key[of_key.len() / 2].waited * 10).max(nanos(SHORTEST_STARVATION));
        of_key.iter().filter(|turn| turn.waited > limit).count() as u64
    };
    Turns {
        served: turns.len() as u64,
        overtakes_max: overtakes.last().copied().unwrap_or(0),
        overtakes_p99: overtakes.get(rank).copied().unwrap_or(0),
        starved: turns.chunk_by(|a, b| a.key == b.key).map(starved).sum(),
    }
}

fn signed(from_ns: u64, to_ns: u64) -> i64 {
    to_ns as i64 - from_ns as i64
}

/// A shorter wait is no starvation, however short the others are.
const SHORTEST_STARVATION: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::server_side::Kept;

    const MS: u64 = 1_000_000;

    #[test]
    fn one_that_waits_ten_times_as_long_as_the_median_of_its_key_is_starved() {
        let turn = |key, ms: u64, overtaken_by| Turn {
            key,
            waited: ms * MS,
            overtaken_by,
        };
        let mut all: Vec<_> = (0..99).map(|ms| turn(1, 20 + ms % 3, 0)).collect();
        all.push(turn(1, 250, 7));
        all.extend([
            turn(2, 300, 0),
            turn(2, 300, 0),
            turn(3, 1, 0),
            turn(3, 1, 0),
            turn(3, 90, 0),
        ]);
        let found = turns(all);
        assert_eq!((found.served, found.starved), (105, 1));
        assert_eq!((found.overtakes_max, found.overtakes_p99), (7, 0));
        assert_eq!(turns(Vec::new()), Turns::default());
    }

    #[test]
    fn of_a_renewal_that_the_fault_caught_on_its_way_nobody_knows_whether_it_was_executed() {
        let scenario = Scenario::read("pause-demo", &["scale=0.1".to_owned()]).unwrap();
        let record = |kind, clock: u64, second: u64| Record {
            key: 0,
            owner: 7,
            fence: 0,
            kind,
            clock: clock * MS,
            second_clock: second * MS,
        };
        let sent_and_failed = |sent, failed| {
            let holder = vec![
                record(Kind::Acquired, 9_001, 9_000),
                record(Kind::RenewalFailed, sent, failed),
                record(Kind::WorkEnd, 15_000, 0),
            ];
            let evidence = [holder];
            let facts = RoundFacts {
                scenario: &scenario,
                spec: &scenario.faults[0],
                observed: Observed {
                    from_ns: 10_000 * MS,
                    to_ns: 11_900 * MS,
                },
                server: None,
                stall: Duration::ZERO,
                busy: Duration::ZERO,
                seen: Seen::of(&evidence, &[]),
                evidence: &evidence,
            };
            facts.lock(0, &evidence[0]).unwrap().caught.map(|sent| sent / MS)
        };
        assert_eq!(sent_and_failed(9_990, 10_290), Some(9_990));
        assert_eq!(sent_and_failed(9_690, 9_990), None, "given up before");
        assert_eq!(sent_and_failed(10_040, 10_340), None, "sent into the fault");
    }

    /// A file in which both locks of the test below are granted, renewed and ended; the second one at the given time.
    fn append_only(second_ends: u64) -> Vec<u8> {
        let lock = |key: u64| format!("lockbench:t:0.0:{key}");
        let expires = |key: u64, at: u64| format!("PEXPIREAT {} {}", lock(key), at + 3_000);
        let tick = |at: u64| format!("SET lockbench:t:tick {}", at * 1_000);
        let mut lines = vec![
            format!("HSET {} one 1", lock(0)),
            expires(0, 5_000),
            format!("HSET {} two 1", lock(1)),
            expires(1, 5_300),
        ];
        lines.extend([7_000, 9_050].map(|at| expires(0, at)));
        lines.extend([7_500, 9_900, 11_950].map(|at| expires(1, at)));
        lines.extend([tick(12_049), format!("DEL {}", lock(0)), tick(12_051)]);
        lines.extend([format!("HSET {} rival 1", lock(0)), expires(0, 12_051)]);
        lines.extend((second_ends > 14_000).then(|| expires(1, 13_500)));
        lines.extend([tick(second_ends - 1), format!("DEL {}", lock(1)), tick(second_ends + 1)]);
        let words = |line: &String| -> Vec<u8> {
            let words: Vec<_> = line.split(' ').collect();
            let each = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
            format!("*{}\r\n{}", words.len(), each.collect::<String>()).into_bytes()
        };
        lines.iter().flat_map(words).collect()
    }

    #[test]
    fn an_end_at_the_server_that_no_renewal_explains_contradicts_the_model_and_exposes_the_work() {
        let set = [
            "scale=0.1",
            "workload.keys.count=2",
            "matrix.lock.policy=[\"deadline\", \"naive-cancel\"]",
        ]
        .map(str::to_owned);
        let scenario = Scenario::read("pause-demo", &set).unwrap();
        let evidence = held_through_a_fault();
        let seen = Seen::of(&evidence, &[]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.aof");
        let row = |second_ends: u64| {
            std::fs::write(&path, append_only(second_ends)).unwrap();
            let kept = Kept {
                path: &path,
                prefix: "lockbench:t:0.0:",
                offset_ns: 0,
                finish_ns: 15_000 * MS,
            };
            let server = ServerFacts::read(&kept, &scenario, &seen).unwrap();
            let facts = RoundFacts {
                scenario: &scenario,
                spec: &scenario.faults[1],
                observed: Observed {
                    from_ns: 10_000 * MS,
                    to_ns: 11_900 * MS,
                },
                server: Some(&server),
                stall: Duration::ZERO,
                busy: Duration::ZERO,
                evidence: &evidence,
                seen: Seen::of(&evidence, &[]),
            };
            facts.policies().remove(0)
        };
        let agrees = row(15_000);
        assert_eq!(
            (agrees.mismatches, agrees.exposure.unwrap().count),
            (0, 0),
            "{agrees:?}"
        );
        assert_eq!(
            agrees.locks[0].ended_ms,
            Some(1.0),
            "with the last millisecond of its lease"
        );
        // Told 299 ms before its lease ended, and stopped 5 ms later. Its rival worked only until 12 252.
        let orphan = agrees.orphan.unwrap();
        assert_eq!((orphan.count, orphan.total_ms), (2, 293.0 + 2_748.0));
        // The model says kept, all renewals were answered, and yet the server ended it.
        let planted = row(12_500);
        assert_eq!(planted.locks[1].wrong, [Wrong::End], "{planted:?}");
        assert_eq!((planted.mismatches, planted.exposure.unwrap().max_ms), (1, 2_499.0));
        // Granted to nobody at all.
        std::fs::write(&path, b"").unwrap();
        let nothing = ServerFacts::read(
            &Kept {
                path: &path,
                prefix: "lockbench:t:0.0:",
                offset_ns: 0,
                finish_ns: 15_000 * MS,
            },
            &scenario,
            &seen,
        );
        let nothing = nothing.unwrap();
        assert_eq!((nothing.side.work_without_grant, nothing.exposure(0).count), (3, 3));
    }

    /// The fault lasts from 10 000 to 11 900; key 0 was renewed early (lost), key 1 late (kept).
    fn held_through_a_fault() -> [Vec<Record>; 3] {
        let record = |key, owner, kind, clock: u64, second: u64| Record {
            key,
            owner,
            fence: 0,
            kind,
            clock: clock * MS,
            second_clock: second * MS,
        };
        let holder = vec![
            record(0, 100, Kind::Acquired, 5_001, 5_000),
            record(1, 101, Kind::Acquired, 5_301, 5_300),
            record(0, 0, Kind::Renewed, 9_050, 9_051),
            record(1, 0, Kind::Renewed, 9_900, 9_901),
            record(0, 0, Kind::RenewalFailed, 10_050, 10_051),
            record(0, 100, Kind::Told, 11_751, 0),
            record(0, 100, Kind::WorkEnd, 11_756, 0),
            record(1, 0, Kind::Renewed, 11_950, 11_951),
            record(1, 101, Kind::WorkEnd, 15_000, 0),
        ];
        let rival = vec![
            record(0, 900, Kind::Acquired, 12_052, 9_500),
            record(0, 900, Kind::WorkEnd, 12_252, 0),
        ];
        [holder, vec![], rival]
    }

    #[test]
    fn each_lock_is_predicted_from_its_own_last_renewal() {
        let set = [
            "scale=0.1",
            "workload.keys.count=2",
            "matrix.lock.policy=[\"deadline\", \"naive-cancel\"]",
        ]
        .map(str::to_owned);
        let scenario = Scenario::read("pause-demo", &set).unwrap();
        let evidence = held_through_a_fault();
        let facts = RoundFacts {
            scenario: &scenario,
            spec: &scenario.faults[1],
            observed: Observed {
                from_ns: 10_000 * MS,
                to_ns: 11_900 * MS,
            },
            server: None,
            stall: Duration::ZERO,
            busy: Duration::ZERO,
            evidence: &evidence,
            seen: Seen::of(&evidence, &[]),
        };
        let rows = facts.policies();
        let row = &rows[0];
        assert_eq!((row.held, row.lost, row.predicted_lost, row.mismatches), (2, 1, 1, 0));
        assert_eq!((row.overlaps.count, row.commands_in_fault, row.needless), (0, 1, 1));
        assert_eq!(row.told.as_ref().unwrap().median_ms, -299.0);
        assert_eq!(row.locks[1].renewal_to_heal_ms, 2_000.0);
        let timelines = facts.timelines(4);
        assert_eq!(timelines[0].told, Some(1_751.0));
        assert_eq!(timelines[1].server.1, 5_000.0);
    }
}
