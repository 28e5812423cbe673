//! In which order those who waited for one lock were served.

use std::ops::Range;

use crate::evidence::{Kind, Record};

/// One who got a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The lock.
    pub key: u64,
    /// From the call to the lock, in nanoseconds.
    pub waited: u64,
    /// How many called later and had it sooner.
    pub overtaken_by: u64,
}

/// Everyone who called within this time and got the lock, in the order of key and call.
pub fn turns(evidence: &[Vec<Record>], within: Range<u64>) -> Vec<Turn> {
    let served = evidence.iter().flatten().filter_map(|record| match record.kind {
        // Key, call, lock.
        Kind::Acquired | Kind::AcquiredToRead => Some((record.key, record.second_clock, record.clock)),
        _ => None,
    });
    let mut served: Vec<_> = served.filter(|(_, called, _)| within.contains(called)).collect();
    served.sort_unstable();
    let mut turns = Vec::with_capacity(served.len());
    for of_key in served.chunk_by(|a, b| a.0 == b.0) {
        let mut order: Vec<u64> = of_key.iter().map(|(.., got)| *got).collect();
        order.sort_unstable();
        // From the last call back: who is counted already has called later.
        let mut sooner = Counted::new(order.len());
        let mut overtaken = Vec::with_capacity(of_key.len());
        for (.., got) in of_key.iter().rev() {
            let rank = order.partition_point(|other| other < got);
            overtaken.push(sooner.below(rank));
            sooner.count(rank);
        }
        let in_order = of_key.iter().zip(overtaken.into_iter().rev());
        turns.extend(in_order.map(|(&(key, called, got), overtaken_by)| Turn {
            key,
            waited: got.saturating_sub(called),
            overtaken_by,
        }));
    }
    turns
}

/// How many of each rank there are, with sums over all lower ranks in O(log n): a binary indexed tree (P. Fenwick, A New Data
/// Structure for Cumulative Frequency Tables, 1994).
struct Counted(Vec<u64>);

impl Counted {
    fn new(ranks: usize) -> Self {
        Counted(vec![0; ranks + 1])
    }

    fn count(&mut self, rank: usize) {
        let mut node = rank + 1;
        while let Some(sum) = self.0.get_mut(node) {
            *sum += 1;
            node += node & node.wrapping_neg();
        }
    }

    fn below(&self, rank: usize) -> u64 {
        let (mut node, mut sum) = (rank, 0);
        while node > 0 {
            sum += self.0[node];
            node &= node - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn got(key: u64, called: u64, clock: u64) -> Record {
        Record {
            key,
            owner: called,
            fence: 0,
            kind: Kind::Acquired,
            clock,
            second_clock: called,
        }
    }

    #[test]
    fn a_strict_queue_overtakes_nobody_and_a_stack_everybody() {
        let queue: Vec<_> = (0..100).map(|n| got(1, n, 1_000 + n)).collect();
        assert!(turns(&[queue], 0..u64::MAX).iter().all(|turn| turn.overtaken_by == 0));
        let stack: Vec<_> = (0..100).map(|n| got(1, n, 1_000 - n)).collect();
        let found = turns(&[stack], 0..u64::MAX);
        let overtaken: Vec<_> = found.iter().map(|turn| turn.overtaken_by).collect();
        assert_eq!(overtaken, (0..100).rev().collect::<Vec<_>>());
        assert_eq!(found[3].waited, 994);
    }

    #[test]
    fn it_agrees_with_counting_each_pair_and_keys_have_nothing_to_do_with_each_other() {
        let mut rng = fastrand::Rng::with_seed(7);
        let records: Vec<_> = (0..400).map(|n| got(rng.u64(0..3), n, n + rng.u64(1..200))).collect();
        let (one, other) = records.split_at(150);
        let found = turns(&[one.to_vec(), other.to_vec()], 50..350);
        let inside = records.iter().filter(|record| (50..350).contains(&record.second_clock));
        let mut expected: Vec<_> = inside
            .clone()
            .map(|mine| {
                let sooner = inside.clone().filter(|other| {
                    other.key == mine.key && other.second_clock > mine.second_clock && other.clock < mine.clock
                });
                (mine.key, mine.second_clock, sooner.count() as u64)
            })
            .collect();
        expected.sort_unstable();
        let counts: Vec<_> = expected.into_iter().map(|(.., count)| count).collect();
        assert_eq!(found.iter().map(|turn| turn.overtaken_by).collect::<Vec<_>>(), counts);
    }
}
