//! What fencing tokens are worth: whether they grow from holder to holder, and what a resource that checks them refuses.
//!
//! Each holder is taken to write to what the lock guards at the first and at the last instant of its work; one that never acted wrote
//! nothing.

use super::Work;

/// Writes at the end of work whose holder was overtaken: a later one had written before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// Without a token: nobody can tell, so they are accepted.
    pub without_token: u64,
    /// With a token below the newest: a resource that checks refuses them.
    pub with_older_token: u64,
}

/// How many holders wrote after one that came later. Readers write nothing.
pub fn stale(work: &[Work]) -> Stale {
    let mut found = Stale::default();
    let writers = writers(work);
    for of_key in writers.chunk_by(|a, b| a.key == b.key) {
        // The newest token among those who have begun, in the order in which they did.
        let mut newest = Vec::with_capacity(of_key.len());
        for work in of_key {
            newest.push(work.fence.max(newest.last().copied().unwrap_or(0)));
        }
        for (index, work) in of_key.iter().enumerate() {
            let begun = of_key.partition_point(|other| other.from < work.to);
            if work.fence == 0 {
                found.without_token += u64::from(begun > index + 1);
            } else {
                let seen = begun.checked_sub(1).map_or(0, |last| newest[last]);
                found.with_older_token += u64::from(seen > work.fence);
            }
        }
    }
    found
}

/// How many holders got a token that is not above that of every holder that had ended before. Work without a token is left out.
pub fn disorder(work: &[Work]) -> u64 {
    let mut found = 0;
    let writers: Vec<Work> = writers(work).into_iter().filter(|work| work.fence > 0).collect();
    for begun in writers.chunk_by(|a, b| a.key == b.key) {
        let mut ended = begun.to_vec();
        ended.sort_by_key(|work| work.to);
        let (mut newest, mut next) = (0, 0);
        for work in begun {
            while ended[next].to <= work.from && ended[next].owner != work.owner {
                newest = newest.max(ended[next].fence);
                next += 1;
            }
            found += u64::from(work.fence <= newest);
        }
    }
    found
}

fn writers(work: &[Work]) -> Vec<Work> {
    let mut writers: Vec<Work> = work
        .iter()
        .filter(|work| !work.reads && work.from < work.to)
        .copied()
        .collect();
    writers.sort_by_key(|work| (work.key, work.from, work.to));
    writers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(owner: u64, from: u64, to: u64, fence: u64) -> Work {
        Work {
            key: 1,
            owner,
            from,
            to,
            reads: false,
            fence,
        }
    }

    #[test]
    fn holders_one_after_the_other_are_in_order_and_nothing_is_stale() {
        for tokens in [[0, 0, 0], [5, 6, 90]] {
            let clean: Vec<_> = (0..3)
                .map(|n| work(n, n * 10, n * 10 + 10, tokens[n as usize]))
                .collect();
            assert_eq!(stale(&clean), Stale::default());
            assert_eq!(disorder(&clean), 0);
        }
        assert_eq!((stale(&[]), disorder(&[])), (Stale::default(), 0));
    }

    #[test]
    fn an_overtaken_holder_is_refused_by_its_token_and_accepted_without_one() {
        let with = [work(1, 0, 100, 5), work(2, 50, 60, 6), work(3, 200, 210, 7)];
        let without = with.map(|work| Work { fence: 0, ..work });
        assert_eq!(
            stale(&with),
            Stale {
                with_older_token: 1,
                ..Stale::default()
            }
        );
        assert_eq!(
            stale(&without),
            Stale {
                without_token: 1,
                ..Stale::default()
            }
        );
        assert_eq!(disorder(&with), 0);
        let readers = without.map(|work| Work { reads: true, ..work });
        assert_eq!(stale(&readers), Stale::default());
    }

    #[test]
    fn a_token_that_fell_back_or_came_twice_is_found() {
        assert_eq!(disorder(&[work(1, 0, 10, 5), work(2, 20, 30, 5)]), 1);
        assert_eq!(
            disorder(&[work(1, 0, 10, 9), work(2, 20, 30, 5), work(3, 40, 50, 6)]),
            2
        );
    }
}
