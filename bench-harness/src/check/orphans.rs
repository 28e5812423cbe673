//! Locks whose holder was killed: for how long nobody had them.

use crate::evidence::{Kind, Record, member_of};

use super::{Work, unfinished};

/// A lock that outlived its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The lock.
    pub key: u64,
    /// Who held it.
    pub owner: u64,
    /// When its holder was dead, in nanoseconds of the boot-time clock.
    pub from: u64,
    /// When the next one had it; nothing if nobody did.
    pub to: Option<u64>,
}

/// Every lock that a worker held when the coordinator killed it, from the evidence of each member and the coordinator's own records.
///
/// That ownership has ended is seen from who has the lock next, so this is the longest that it can have lasted; somebody who waits
/// makes it exact to a round trip. That others still read under a lock says nothing of a reader that died. A lock whose grant was
/// still on its way to the worker is not among them: nobody wrote down that it had it.
pub fn orphans(evidence: &[Vec<Record>], struck: &[Record]) -> Vec<Orphan> {
    let killed = struck.iter().filter(|record| record.kind == Kind::Killed);
    let mut left: Vec<(Work, u64)> = Vec::new();
    for record in killed {
        let of_member = evidence.get(record.owner as usize).into_iter().flatten();
        let held = unfinished(of_member);
        left.extend(held.into_iter().map(|work| (work, record.second_clock)));
    }
    if left.is_empty() {
        return Vec::new();
    }
    let mut grants: Vec<&Record> = evidence
        .iter()
        .flatten()
        .filter(|record| matches!(record.kind, Kind::Acquired | Kind::AcquiredToRead))
        .collect();
    grants.sort_by_key(|record| (record.key, record.clock));
    let next = |(work, dead): (Work, u64)| {
        let first = grants.partition_point(|grant| (grant.key, grant.clock) <= (work.key, work.from));
        let of_key = grants[first..].iter().take_while(|grant| grant.key == work.key);
        let by_other = of_key
            .filter(|grant| member_of(grant.owner) != member_of(work.owner))
            .find(|grant| !(work.reads && grant.kind == Kind::AcquiredToRead));
        Orphan {
            key: work.key,
            owner: work.owner,
            from: dead,
            to: by_other.map(|grant| grant.clock.max(dead)),
        }
    };
    left.into_iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::owner;

    fn record(kind: Kind, key: u64, member: u64, clock: u64) -> Record {
        Record {
            key,
            owner: owner(member, key),
            fence: 0,
            kind,
            clock,
            second_clock: 0,
        }
    }

    fn killed(member: u64, from: u64, to: u64) -> Record {
        Record {
            owner: member,
            second_clock: to,
            ..record(Kind::Killed, u64::MAX, 0, from)
        }
    }

    #[test]
    fn a_lock_is_orphaned_from_the_death_of_its_holder_until_the_next_one_has_it() {
        let dead = vec![
            record(Kind::Acquired, 1, 0, 10),
            record(Kind::WorkEnd, 1, 0, 20),
            record(Kind::Acquired, 2, 0, 30),
            record(Kind::Acquired, 3, 0, 40),
        ];
        let others = vec![
            record(Kind::Acquired, 2, 1, 5),
            record(Kind::WorkEnd, 2, 1, 25),
            record(Kind::Acquired, 1, 1, 200),
            record(Kind::Acquired, 2, 1, 900),
            record(Kind::Acquired, 2, 1, 950),
        ];
        let evidence = [dead, others];
        let found = orphans(&evidence, &[killed(0, 90, 100)]);
        let spans: Vec<_> = found.iter().map(|o| (o.key, o.from, o.to)).collect();
        assert_eq!(spans, [(2, 100, Some(900)), (3, 100, None)]);
        assert_eq!(
            orphans(&evidence, &[]),
            [],
            "a worker that was not killed orphans nothing"
        );
    }

    #[test]
    fn every_planted_orphan_is_found_with_its_length() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..100 {
            let (mut dying, mut heir, mut planted) = (Vec::new(), Vec::new(), Vec::new());
            for key in 0..20 {
                dying.push(record(Kind::Acquired, key, 0, 10 + key));
                if rng.bool() {
                    dying.push(record(Kind::WorkEnd, key, 0, 50 + key));
                    continue;
                }
                let length = rng.u64(1..10_000);
                heir.push(record(Kind::Acquired, key, 1, 1_000 + length));
                planted.push((key, length));
            }
            rng.shuffle(&mut heir);
            let found = orphans(&[dying, heir], &[killed(0, 990, 1_000)]);
            let lengths: Vec<_> = found.iter().map(|o| (o.key, o.to.unwrap() - o.from)).collect();
            assert_eq!(lengths, planted);
        }
    }

    #[test]
    fn only_a_writer_shows_that_a_dead_reader_is_out() {
        let reads = |member, clock| record(Kind::AcquiredToRead, 7, member, clock);
        let dead = vec![reads(0, 10)];
        let others = vec![reads(1, 150), record(Kind::Acquired, 7, 2, 400)];
        let found = orphans(&[dead, others], &[killed(0, 90, 100)]);
        assert_eq!(found[0].to, Some(400));
    }
}
