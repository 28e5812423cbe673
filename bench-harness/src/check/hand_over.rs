//! How long a lock takes from one who gives it back to one who waits for it.

use crate::evidence::{Kind, Record};

use super::work_of;

/// The hand-overs of all keys in nanoseconds: from the end of work to the lock, where the next one had called before.
///
/// Only of those that lock alone: readers come and go beside one another.
pub fn hand_overs(evidence: &[Vec<Record>]) -> Vec<u64> {
    let called = evidence.iter().flatten().filter(|record| record.kind == Kind::Acquired);
    let called: std::collections::HashMap<_, _> = called
        .map(|record| ((record.key, record.owner), record.second_clock))
        .collect();
    let mut work: Vec<_> = evidence.iter().flat_map(|records| work_of(records)).collect();
    work.retain(|work| !work.reads);
    work.sort_unstable_by_key(|work| (work.key, work.from));
    let waited = |work: &super::Work, since: u64| {
        called
            .get(&(work.key, work.owner))
            .is_some_and(|called| *called < since)
    };
    let pairs = work.windows(2).filter(|pair| pair[0].key == pair[1].key);
    pairs
        .filter(|pair| pair[1].from >= pair[0].to && waited(&pair[1], pair[0].to))
        .map(|pair| pair[1].from - pair[0].to)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_waited_when_the_work_ended_is_handed_the_lock() {
        let record = |key, owner, kind, clock, second_clock| Record {
            key,
            owner,
            fence: 0,
            kind,
            clock,
            second_clock,
        };
        let worked = |key, owner, called, got, ended| {
            [
                record(key, owner, Kind::Acquired, got, called),
                record(key, owner, Kind::WorkEnd, ended, 0),
            ]
        };
        let first = [worked(1, 1, 0, 10, 100), worked(2, 2, 0, 10, 500)].concat();
        // The second of key 1 waited; the third came when the lock was free; the second of key 2 waited as well.
        let second = [
            worked(1, 3, 50, 103, 200),
            worked(1, 4, 250, 255, 300),
            worked(2, 5, 20, 507, 600),
        ]
        .concat();
        assert_eq!(hand_overs(&[first, second]), [3, 7]);
    }
}
