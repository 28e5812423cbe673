//! Whole recorded histories, clean and with one violation planted: what is there is found, and nothing else.

use super::{Overlap, Work, disorder, overlaps, stale, work_of};
use crate::evidence::{Kind, Record};

/// A clean history: on each key one holder after the other, each of some worker and with a newer token.
struct History {
    holds: Vec<Hold>,
}

#[derive(Clone, Copy)]
struct Hold {
    worker: u64,
    work: Work,
}

impl History {
    fn clean(rng: &mut fastrand::Rng, tokens: bool) -> Self {
        let mut holds = Vec::new();
        for key in 0..KEYS {
            let (mut clock, mut fence) = (rng.u64(1_000..1_000_000), 0);
            for number in 0..HOLDS {
                let to = clock + LONGEST + rng.u64(1..1_000_000);
                fence += rng.u64(1..1_000);
                holds.push(Hold {
                    worker: rng.u64(0..WORKERS),
                    work: Work {
                        key,
                        owner: key << 32 | number,
                        from: clock,
                        to,
                        reads: false,
                        fence: if tokens { fence } else { 0 },
                    },
                });
                // Some take over in the very nanosecond in which the one before ended.
                clock = to + rng.u64(0..3) * rng.u64(0..1_000_000);
            }
        }
        Self { holds }
    }

    /// A hold that is not the last one of its key, and the one after it.
    fn pair(&self, rng: &mut fastrand::Rng) -> (usize, usize) {
        let first = (rng.u64(0..KEYS) * HOLDS + rng.u64(0..HOLDS - 1)) as usize;
        (first, first + 1)
    }

    /// The work as the checker reads it: from the file of each worker, beside renewals and releases.
    fn read(&self) -> Vec<Work> {
        let mut files = vec![Vec::new(); WORKERS as usize];
        for Hold { worker, work } in &self.holds {
            let record = |kind, clock, second_clock| Record {
                key: work.key,
                owner: work.owner,
                fence: work.fence,
                kind,
                clock,
                second_clock,
            };
            files[*worker as usize].extend([
                record(Kind::Acquired, work.from, work.from - 500),
                record(Kind::Renewed, work.from + 1, work.from + 2),
                record(Kind::WorkEnd, work.to, 0),
                record(Kind::Released, work.to + 700, 1),
            ]);
        }
        for file in &mut files {
            // As it was written: by time; what one owner wrote stays in its order.
            file.sort_by_key(|record| record.clock);
        }
        files.iter().flat_map(|file| work_of(file)).collect()
    }
}

#[test]
fn clean_histories_give_no_alarm() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let tokens = rng.bool();
        let work = History::clean(&mut rng, tokens).read();
        assert_eq!(work.len() as u64, KEYS * HOLDS, "seed {seed}");
        assert_eq!(overlaps(work.clone()), [], "seed {seed}");
        assert_eq!(stale(&work), Default::default(), "seed {seed}");
        assert_eq!(disorder(&work), 0, "seed {seed}");
    }
}

#[test]
fn a_planted_overlap_is_found_with_its_length_and_so_is_its_stale_write() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let tokens = rng.bool();
        let mut history = History::clean(&mut rng, tokens);
        let (first, second) = history.pair(&mut rng);
        // From a microsecond to a second.
        let length = MICROSECOND << (seed % 20);
        let next = history.holds[second].work;
        history.holds[first].work.to = next.from + length;
        let work = history.read();
        let planted = Overlap {
            key: next.key,
            first: history.holds[first].work.owner,
            second: next.owner,
            from: next.from,
            to: next.from + length,
        };
        assert_eq!(overlaps(work.clone()), [planted], "seed {seed}");
        let stale = stale(&work);
        let expected = if tokens { (0, 1) } else { (1, 0) };
        assert_eq!((stale.without_token, stale.with_older_token), expected, "seed {seed}");
        assert_eq!(disorder(&work), 0, "seed {seed}: the tokens are in order all the same");
    }
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = History::clean(&mut rng, true);
        let (first, second) = history.pair(&mut rng);
        // The same once more, or one that fell back a little.
        history.holds[second].work.fence = history.holds[first].work.fence - rng.u64(0..2).min(1);
        assert_eq!(disorder(&history.read()), 1, "seed {seed}");
    }
}

const SEEDS: u64 = 400;
const WORKERS: u64 = 4;
const KEYS: u64 = 5;
const HOLDS: u64 = 20;
const MICROSECOND: u64 = 1_000;

/// Longer than the longest overlap that is planted, so that it meets one holder only.
const LONGEST: u64 = MICROSECOND << 20;
