//! The checker: from recorded evidence alone, whether two workers were ever at work under one lock.
//!
//! It shares no code with the lock library, so no lock can talk it out of anything. A worker stamps the start
//! of its work after the server's reply and the end before it sends the release: if the lock was handed over
//! correctly, two intervals on one clock cannot intersect, however slow the network. Every overlap is real.

use std::collections::BTreeMap;

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
    let mut open = BTreeMap::new();
    let mut work = Vec::new();
    for record in records {
        let Record { key, owner, clock, .. } = *record;
        match record.kind {
            Kind::Acquired => {
                open.insert((key, owner), clock);
            }
            Kind::WorkEnd => {
                if let Some(from) = open.remove(&(key, owner)) {
                    work.push(Work {
                        key,
                        owner,
                        from,
                        to: clock,
                    });
                }
            }
            Kind::Told | Kind::Released | Kind::Renewed | Kind::RenewalFailed => {}
        }
    }
    let unfinished = open.into_iter().map(|((key, owner), from)| Work {
        key,
        owner,
        from,
        to: last_sign_of_life.max(from),
    });
    work.extend(unfinished);
    work
}

/// Every interval that begins while an earlier one of its key has not ended; in the order of key and time.
///
/// One sweep over the sorted intervals: O(n log n). Intervals that only touch do not overlap.
pub fn overlaps(mut work: Vec<Work>) -> Vec<Overlap> {
    work.sort_by_key(|work| (work.key, work.from, work.to));
    let mut found = Vec::new();
    let mut longest: Option<Work> = None;
    for next in work {
        if let Some(before) = longest.filter(|before| before.key == next.key) {
            if next.from < before.to {
                let to = before.to.min(next.to);
                found.push(Overlap {
                    key: next.key,
                    first: before.owner,
                    second: next.owner,
                    from: next.from,
                    to,
                });
            }
            if next.to <= before.to {
                continue;
            }
        }
        longest = Some(next);
    }
    found
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
            });
            work.push(Work {
                key: victim.key,
                owner: 2,
                from: end + 10 + length,
                to: end + 10 + 3 * length,
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
                to: 30
            }
        );
        assert_eq!(
            work[1],
            Work {
                key: 2,
                owner: 9,
                from: 20,
                to: 30
            }
        );
    }

    #[test]
    fn the_checker_shares_no_code_with_the_locks() {
        for text in [include_str!("check.rs"), include_str!("evidence.rs")] {
            let imports = text.lines().filter(|line| line.trim_start().starts_with("use "));
            let library = concat!("lease", "hold");
            assert_eq!(imports.filter(|line| line.contains(library)).count(), 0);
            assert!(!text.contains(&format!("{library}::")));
        }
    }
}
