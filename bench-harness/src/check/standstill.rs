//! Workers that stood still: what is work is cut where nothing was done.

use std::collections::BTreeMap;

use crate::evidence::{Kind, Record, member_of};

use super::{Overlap, Work};

/// A time in which no part of a worker process ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// The member of the team.
    pub member: u64,
    /// First instant, in nanoseconds of the boot-time clock.
    pub from: u64,
    /// Last instant.
    pub to: u64,
}

/// Every standstill that the coordinator brought about, from its own records.
pub fn standstills(records: &[Record]) -> Vec<Standstill> {
    let frozen = records.iter().filter(|record| record.kind == Kind::Frozen);
    let mut still: Vec<_> = frozen
        .map(|record| Standstill {
            member: record.owner,
            from: record.clock,
            to: record.second_clock,
        })
        .collect();
    still.sort_by_key(|still| (still.member, still.from));
    still
}

/// The same work until its holder knew that it was over: one that stood still believed in its lock until it woke and was told, whenever
/// it had acted last.
pub fn believed(work: &[Work], records: &[Record]) -> Vec<Work> {
    let told = records.iter().filter(|record| record.kind == Kind::Told);
    let told: BTreeMap<_, _> = told.map(|record| ((record.key, record.owner), record.clock)).collect();
    let until = |work: &Work| told.get(&(work.key, work.owner)).copied().unwrap_or(0).max(work.to);
    work.iter()
        .map(|work| Work {
            to: until(work),
            ..*work
        })
        .collect()
}

/// Work without and with nothing done in it: each piece in which its worker could run, and each in which it stood still.
pub fn cut(work: &[Work], still: &[Standstill]) -> (Vec<Work>, Vec<Work>) {
    let (mut awake, mut frozen) = (Vec::with_capacity(work.len()), Vec::new());
    for whole in work {
        let mut rest = *whole;
        let of_worker = still.iter().filter(|still| still.member == member_of(whole.owner));
        for still in of_worker.filter(|still| still.from.max(whole.from) < still.to.min(whole.to)) {
            let (from, to) = (still.from.max(rest.from), still.to.min(rest.to));
            awake.extend((rest.from < from).then_some(Work { to: from, ..rest }));
            frozen.push(Work { from, to, ..rest });
            rest.from = to;
        }
        // Who never acted was never at work.
        awake.extend((rest.from < rest.to).then_some(rest));
    }
    (awake, frozen)
}

/// When somebody was at work under a lock whose holder stood still: nothing was done by two, but a lock did not keep them apart.
///
/// Readers beside a reader are left out.
pub fn beside_frozen(awake: &[Work], frozen: &[Work]) -> Vec<Overlap> {
    let mut others = awake.to_vec();
    others.sort_by_key(|work| (work.key, work.from));
    let mut found = Vec::new();
    for still in frozen {
        let first = others.partition_point(|work| work.key < still.key);
        let of_key = others[first..].iter().take_while(|work| work.key == still.key);
        let met = of_key.take_while(|work| work.from < still.to).filter(|work| {
            work.owner != still.owner && still.from < work.to && work.from < work.to && !(work.reads && still.reads)
        });
        found.extend(met.map(|work| Overlap {
            key: still.key,
            first: still.owner,
            second: work.owner,
            from: work.from.max(still.from),
            to: work.to.min(still.to),
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::overlaps;
    use super::*;
    use crate::evidence::owner;

    fn work(member: u64, from: u64, to: u64) -> Work {
        Work {
            key: 5,
            owner: owner(member, 1),
            from,
            to,
            reads: false,
            fence: 0,
        }
    }

    const STILL: [Standstill; 1] = [Standstill {
        member: 1,
        from: 100,
        to: 200,
    }];

    #[test]
    fn frozen_time_alone_is_no_overlap_and_is_listed_apart() {
        // The rival had its whole turn while the holder stood still.
        let (awake, frozen) = cut(&[work(1, 50, 200), work(2, 150, 180)], &STILL);
        assert_eq!(overlaps(awake.clone()), []);
        let beside = beside_frozen(&awake, &frozen);
        assert_eq!(beside.iter().map(|o| (o.from, o.to)).collect::<Vec<_>>(), [(150, 180)]);
    }

    #[test]
    fn work_after_the_standstill_is_an_overlap_of_just_its_length() {
        let (awake, frozen) = cut(&[work(1, 50, 230), work(2, 150, 300)], &STILL);
        let found = overlaps(awake.clone());
        assert_eq!(found.iter().map(|o| (o.from, o.to)).collect::<Vec<_>>(), [(200, 230)]);
        assert_eq!(beside_frozen(&awake, &frozen).len(), 1);
    }

    #[test]
    fn one_that_asks_when_it_wakes_did_nothing_and_yet_had_company_while_it_stood_still() {
        let record = |kind, clock| Record {
            key: 5,
            owner: owner(1, 1),
            fence: 0,
            kind,
            clock,
            second_clock: 0,
        };
        // Its last act was before it was stopped.
        let records = [
            record(Kind::Acquired, 50),
            record(Kind::Told, 203),
            record(Kind::WorkEnd, 90),
        ];
        let (own, rival) = (super::super::work_of(&records), work(2, 150, 300));
        let believed = believed(&own, &records);
        assert_eq!((own[0].to, believed[0].to), (90, 203));
        let awake = cut(&[own[0], rival], &STILL).0;
        assert_eq!(overlaps(awake.clone()), []);
        let beside = beside_frozen(&awake, &cut(&believed, &STILL).1);
        assert_eq!(beside.iter().map(|o| (o.from, o.to)).collect::<Vec<_>>(), [(150, 200)]);
    }

    #[test]
    fn a_worker_that_ran_is_not_cut_and_neither_is_work_elsewhere_in_time() {
        let whole = [work(2, 50, 250), work(1, 200, 250), work(1, 20, 100)];
        let (awake, frozen) = cut(&whole, &STILL);
        assert_eq!((awake, frozen), (whole.to_vec(), vec![]));
    }

    #[test]
    fn who_never_acted_was_never_at_work() {
        let (awake, frozen) = cut(&[work(1, 150, 150), work(2, 170, 170), work(3, 100, 300)], &STILL);
        assert_eq!((awake, frozen), (vec![work(3, 100, 300)], vec![]));
    }

    #[test]
    fn planted_work_after_a_standstill_is_found_and_clean_histories_have_none() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            // Turns of many members, one after the other.
            let (mut all, mut at) = (Vec::new(), 0);
            for turn in 0..40 {
                let to = at + rng.u64(10..1_000);
                all.push(Work {
                    owner: owner(turn % 4, turn),
                    ..work(0, at, to)
                });
                at = to + rng.u64(0..50);
            }
            // The holder stands still through the turns of others, who may be at work when it wakes.
            let (from, to) = (at + 100, at + 100 + rng.u64(1_000..5_000));
            let still = [Standstill { member: 9, from, to }];
            let rival = work(2, from + 500, to + rng.u64(1..100));
            let stops = Work {
                to: from,
                ..work(9, at, 0)
            };
            all.extend([rival, stops]);
            assert_eq!(overlaps(cut(&all, &still).0), [], "seed {seed}");
            // Or it goes on for so long after it.
            let planted = rng.u64(1..=rival.to - to);
            all.pop();
            all.push(work(9, at, to + planted));
            let found = overlaps(cut(&all, &still).0);
            assert_eq!(
                found.iter().map(|o| o.to - o.from).collect::<Vec<_>>(),
                [planted],
                "seed {seed}"
            );
        }
    }
}
