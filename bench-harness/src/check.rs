//! The checker: from recorded evidence alone, whether two workers were ever at work under one lock.
//!
//! It shares no code with the lock library, so no lock can talk it out of anything. A worker stamps the start
//! of its work after the server's reply and the end before it sends the release: if the lock was handed over
//! correctly, two intervals on one clock cannot intersect, however slow the network. Every overlap is real.

mod exposure;
mod fencing;
mod hand_over;
mod orphans;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod planted_files;
mod server;
mod standstill;
mod turns;

use std::collections::BTreeMap;

pub use exposure::{Gap, exposures, holds_of, unattended};
pub use fencing::{Stale, disorder, stale};
pub use hand_over::hand_overs;
pub use orphans::{Orphan, orphans};
pub use server::{Named, Owned, Ownership, commands, ownership};
pub use standstill::{Standstill, believed, beside_frozen, cut, standstills};
pub use turns::{Turn, turns};

use crate::evidence::{Kind, Record};

/// Protected work of one owner under one key, in nanoseconds of the boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The lock.
    pub key: u64,
    /// Who worked.
    pub owner: u64,
    /// First instant.
    pub from: u64,
    /// Last instant.
    pub to: u64,
    /// Only reading: others may read meanwhile.
    pub reads: bool,
    /// The fencing token, 0 if there was none.
    pub fence: u64,
}

/// Two owners at work under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The lock.
    pub key: u64,
    /// Who was there first.
    pub first: u64,
    /// Who came in.
    pub second: u64,
    /// First instant of both.
    pub from: u64,
    /// Last instant of both.
    pub to: u64,
}

/// The work of one worker, from the records of its file in the order of writing.
///
/// Work without a recorded end (the worker died) lasts until the worker's last record: until then it lived.
pub fn work_of(records: &[Record]) -> Vec<Work> {
    let last_sign_of_life = records.iter().map(|record| record.clock).max().unwrap_or(0);
    let (mut work, open) = work_and_open(records);
    work.extend(open.into_iter().map(|begun| Work {
        to: last_sign_of_life.max(begun.from),
        ..begun
    }));
    work
}

/// Work that has not ended, or never did, as if it had just begun.
pub fn unfinished<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Work> {
    work_and_open(records).1
}

fn work_and_open<'a>(records: impl IntoIterator<Item = &'a Record>) -> (Vec<Work>, Vec<Work>) {
    let mut open = BTreeMap::new();
    let mut work = Vec::new();
    for record in records {
        let Record {
            key,
            owner,
            clock,
            fence,
            ..
        } = *record;
        match record.kind {
            Kind::Acquired | Kind::AcquiredToRead => {
                let begun = Work {
                    key,
                    owner,
                    from: clock,
                    to: clock,
                    reads: record.kind == Kind::AcquiredToRead,
                    fence,
                };
                open.insert((key, owner), begun);
            }
            Kind::WorkEnd => {
                let begun = open.remove(&(key, owner));
                work.extend(begun.map(|begun| Work { to: clock, ..begun }));
            }
            Kind::Told
            | Kind::Released
            | Kind::Renewed
            | Kind::RenewalFailed
            | Kind::Late
            | Kind::Frozen
            | Kind::Killed => {}
        }
    }
    (work, open.into_values().collect())
}

/// Every interval that begins while an earlier one of its key has not ended, unless both only read; in the order of key and time.
///
/// One sweep over the sorted intervals: O(n log n). Intervals that only touch do not overlap.
pub fn overlaps(mut work: Vec<Work>) -> Vec<Overlap> {
    work.sort_by_key(|work| (work.key, work.from, work.to));
    let mut found = Vec::new();
    for of_key in work.chunk_by(|a, b| a.key == b.key) {
        // Of those that write and of those that read, the one that lasts longest so far.
        let (mut writer, mut reader): (Option<Work>, Option<Work>) = (None, None);
        for next in of_key {
            let before = if next.reads { None } else { reader };
            let before = later(writer, before).filter(|before| next.from < before.to);
            found.extend(before.map(|before| Overlap {
                key: next.key,
                first: before.owner,
                second: next.owner,
                from: next.from,
                to: before.to.min(next.to),
            }));
            let longest = if next.reads { &mut reader } else { &mut writer };
            *longest = later(*longest, Some(*next));
        }
    }
    found
}

/// The one that ends later; the first if both end at once.
fn later(one: Option<Work>, other: Option<Work>) -> Option<Work> {
    match (one, other) {
        (Some(one), Some(other)) if one.to < other.to => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clean work: each owner begins where the one before ended, or later.
    fn clean(rng: &mut fastrand::Rng, keys: u64, each: u64) -> Vec<Work> {
        let mut work = Vec::new();
        for key in 0..keys {
            let mut clock = rng.u64(0..1_000_000);
            for owner in 0..each {
                let to = clock + rng.u64(1..5_000_000);
                work.push(Work {
                    key,
                    owner: key << 32 | owner,
                    from: clock,
                    to,
                    reads: false,
                    fence: 0,
                });
                clock = to + rng.u64(0..3) * rng.u64(0..1_000_000);
            }
        }
        rng.shuffle(&mut work);
        work
    }

    #[test]
    fn clean_histories_have_no_overlap() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            assert_eq!(overlaps(clean(&mut rng, 20, 50)), []);
        }
    }

    #[test]
    fn every_planted_overlap_is_found_from_one_microsecond_up() {
        let mut rng = fastrand::Rng::with_seed(2);
        for exponent in 0..20 {
            let length = 1_000 << exponent;
            let mut work = clean(&mut rng, 20, 50);
            let victim = work[rng.usize(0..work.len())];
            let end = work.iter().filter(|w| w.key == victim.key).map(|w| w.to).max().unwrap();
            // Two owners of their own after all others, so that the length is exactly the planted one.
            work.push(Work {
                key: victim.key,
                owner: 1,
                from: end + 10,
                to: end + 10 + 2 * length,
                reads: false,
                fence: 0,
            });
            work.push(Work {
                key: victim.key,
                owner: 2,
                from: end + 10 + length,
                to: end + 10 + 3 * length,
                reads: false,
                fence: 0,
            });
            rng.shuffle(&mut work);
            let planted = Overlap {
                key: victim.key,
                first: 1,
                second: 2,
                from: end + 10 + length,
                to: end + 10 + 2 * length,
            };
            assert_eq!(overlaps(work), [planted]);
        }
    }

    #[test]
    fn an_owner_inside_a_long_one_is_found_and_so_is_the_next() {
        let work = |owner, from, to| Work {
            key: 5,
            owner,
            from,
            to,
            reads: false,
            fence: 0,
        };
        let found = overlaps(vec![
            work(1, 0, 100),
            work(2, 10, 20),
            work(3, 50, 200),
            work(4, 150, 160),
        ]);
        let lengths: Vec<_> = found.iter().map(|o| (o.first, o.second, o.to - o.from)).collect();
        assert_eq!(lengths, [(1, 2, 10), (1, 3, 50), (3, 4, 10)]);
    }

    #[test]
    fn readers_may_overlap_readers_and_a_writer_nobody() {
        let work = |owner, from, to, reads| Work {
            key: 5,
            owner,
            from,
            to,
            reads,
            fence: 0,
        };
        let (read, write) = (true, false);
        let shared = vec![work(1, 0, 100, read), work(2, 10, 50, read), work(3, 20, 120, read)];
        assert_eq!(overlaps(shared.clone()), []);
        let met = |late| {
            let found = overlaps(shared.iter().copied().chain([late]).collect());
            found
                .iter()
                .map(|o| (o.first, o.second, o.to - o.from))
                .collect::<Vec<_>>()
        };
        assert_eq!(met(work(4, 110, 130, write)), [(3, 4, 10)]);
        assert_eq!(met(work(4, 120, 130, write)), []);
        // A writer that was there before every reader meets each of them.
        assert_eq!(met(work(0, 0, 15, write)), [(0, 1, 15), (0, 2, 5)]);
    }

    #[test]
    fn every_planted_writer_among_readers_is_found() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let mut work = clean(&mut rng, 5, 40);
            // A crowd of readers after all others, and one writer in the midst of it.
            let end = work.iter().map(|w| w.to).max().unwrap();
            let reader = |owner, from, to| Work {
                key: 1,
                owner,
                from,
                to,
                reads: true,
                fence: 0,
            };
            work.extend((0..30).map(|n| reader(n, end + 10 + n, end + 5_000 + n * 17)));
            assert_eq!(overlaps(work.clone()), []);
            let from = end + 100 + rng.u64(0..4_000);
            work.push(Work {
                owner: 99,
                reads: false,
                ..reader(99, from, from + 1)
            });
            rng.shuffle(&mut work);
            let found = overlaps(work);
            assert_eq!((found.len(), found[0].second, found[0].to - found[0].from), (1, 99, 1));
        }
    }

    #[test]
    fn a_worker_that_died_worked_until_its_last_record() {
        let record = |key, kind, clock| Record {
            key,
            owner: 9,
            fence: 0,
            kind,
            clock,
            second_clock: 0,
        };
        let records = [
            record(1, Kind::Acquired, 10),
            record(2, Kind::Acquired, 20),
            record(2, Kind::WorkEnd, 30),
        ];
        let mut work = work_of(&records);
        work.sort_by_key(|work| work.key);
        assert_eq!(
            work[0],
            Work {
                key: 1,
                owner: 9,
                from: 10,
                to: 30,
                reads: false,
                fence: 0,
            }
        );
        assert_eq!(
            work[1],
            Work {
                key: 2,
                owner: 9,
                from: 20,
                to: 30,
                reads: false,
                fence: 0,
            }
        );
    }

    #[test]
    fn the_checker_shares_no_code_with_the_locks() {
        for text in [
            include_str!("check.rs"),
            include_str!("check/exposure.rs"),
            include_str!("check/fencing.rs"),
            include_str!("check/hand_over.rs"),
            include_str!("check/orphans.rs"),
            include_str!("check/server.rs"),
            include_str!("check/standstill.rs"),
            include_str!("check/turns.rs"),
            include_str!("evidence.rs"),
        ] {
            let imports = text.lines().filter(|line| line.trim_start().starts_with("use "));
            let library = concat!("lease", "hold");
            assert_eq!(imports.filter(|line| line.contains(library)).count(), 0);
            assert!(!text.contains(&format!("{library}::")));
        }
    }
}
