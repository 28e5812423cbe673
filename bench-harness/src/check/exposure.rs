//! Ownership against work: work that the server no longer covered, and locks that stayed owned when nobody worked.

use std::collections::BTreeMap;

use super::{Owned, Work};

/// A time in which ownership and work differ, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The lock.
    pub key: u64,
    /// Who worked in it; of an orphan nobody.
    pub owner: Option<u64>,
    /// First instant.
    pub from: u64,
    /// Last instant.
    pub to: u64,
}

/// The hold under which each worker worked, by its place in `owned`, in the order of the work.
///
/// A fencing token names it. Without one it is the newest grant before the work began.
pub fn holds_of(owned: &[Owned], work: &[Work]) -> Vec<Option<usize>> {
    let mut of_key: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (place, hold) in owned.iter().enumerate() {
        of_key.entry(hold.key).or_default().push(place);
    }
    let find = |work: &Work| {
        let grants = of_key.get(&work.key)?.iter().rev().copied();
        let is_it = |place: &usize| match work.fence {
            0 => owned[*place].from <= work.from.saturating_add(LEAST),
            fence => owned[*place].fence == fence,
        };
        grants.into_iter().find(is_it)
    };
    work.iter().map(find).collect()
}

/// Work outside the worker's own hold; all of it if it has none. `holds` are those of [`holds_of`].
pub fn exposures(owned: &[Owned], work: &[Work], holds: &[Option<usize>]) -> Vec<Gap> {
    let mut found = Vec::new();
    for (work, hold) in work.iter().zip(holds) {
        let outside = match hold.map(|place| &owned[place]) {
            Some(hold) => vec![(work.from, hold.from.min(work.to)), (hold.to.max(work.from), work.to)],
            None => vec![(work.from, work.to)],
        };
        found.extend(outside.into_iter().filter(counts).map(|(from, to)| Gap {
            key: work.key,
            owner: Some(work.owner),
            from,
            to,
        }));
    }
    found
}

/// Ownership with nobody at work, from the end of the work under it on, or from the grant if nobody worked under it; until the
/// instant `until`, at which all were told to give their locks back.
///
/// The time before the work is none: who waits for the answer lives.
pub fn unattended(owned: &[Owned], work: &[Work], holds: &[Option<usize>], until: u64) -> Vec<Gap> {
    let mut of_key: BTreeMap<u64, Vec<&Work>> = BTreeMap::new();
    let mut begun = BTreeMap::new();
    for (work, hold) in work.iter().zip(holds) {
        of_key.entry(work.key).or_default().push(work);
        if let Some(place) = hold {
            begun.insert(*place, work.from);
        }
    }
    of_key
        .values_mut()
        .for_each(|works| works.sort_by_key(|work| work.from));
    let mut found = Vec::new();
    for (place, hold) in owned.iter().enumerate() {
        let to = hold.surely_to.min(until);
        let mut idle_from = begun.get(&place).copied().unwrap_or(hold.from);
        let mut idle = Vec::new();
        for work in of_key.get(&hold.key).into_iter().flatten() {
            if work.to > idle_from && work.from < to {
                idle.push((idle_from, work.from));
                idle_from = work.to;
            }
        }
        idle.push((idle_from, to));
        found.extend(idle.into_iter().filter(counts).map(|(from, to)| Gap {
            key: hold.key,
            owner: None,
            from,
            to,
        }));
    }
    found
}

/// What is shorter may be nothing: the two clocks are not known any better.
fn counts((from, to): &(u64, u64)) -> bool {
    to.saturating_sub(*from) >= LEAST
}

/// A millisecond.
const LEAST: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn hold(fence: u64, from: u64, to: u64) -> Owned {
        Owned {
            key: 1,
            holder: fence.to_string().into_bytes(),
            fence,
            from: from * MS,
            to: to * MS,
            surely_to: to * MS,
        }
    }

    fn work(fence: u64, from: u64, to: u64) -> Work {
        Work {
            key: 1,
            owner: 100 + fence,
            from: from * MS,
            to: to * MS,
            reads: false,
            fence,
        }
    }

    /// Exposures, then orphans, each with who was at work and its length in milliseconds.
    fn gaps(owned: &[Owned], work: &[Work]) -> [Vec<(Option<u64>, u64)>; 2] {
        let holds = holds_of(owned, work);
        let lengths = |gaps: Vec<Gap>| gaps.iter().map(|gap| (gap.owner, (gap.to - gap.from) / MS)).collect();
        [
            lengths(exposures(owned, work, &holds)),
            lengths(unattended(owned, work, &holds, 2_000 * MS)),
        ]
    }

    #[test]
    fn a_clean_history_has_neither_exposure_nor_orphan() {
        let owned = [hold(5, 1_000, 1_050), hold(6, 1_060, 1_160)];
        for tokens in [true, false] {
            let mut works = [work(5, 1_040, 1_050), work(6, 1_061, 1_160)];
            if !tokens {
                works.iter_mut().for_each(|work| work.fence = 0);
            }
            assert_eq!(gaps(&owned, &works), [vec![], vec![]]);
        }
    }

    #[test]
    fn work_a_millisecond_beyond_its_hold_is_exposed_and_less_is_not_with_a_token_or_without() {
        let owned = [hold(5, 1_000, 1_050), hold(6, 1_060, 1_160)];
        for fence in [5, 0] {
            let exposed = |from, to_us: u64| {
                let mut work = work(5, from, 0);
                (work.fence, work.to) = (fence, to_us * 1_000);
                gaps(&owned, &[work])[0].clone()
            };
            assert_eq!(exposed(1_000, 1_050_999), []);
            assert_eq!(exposed(1_000, 1_051_000), [(Some(105), 1)]);
            // Into the next one's hold.
            assert_eq!(exposed(1_000, 1_090_000), [(Some(105), 40)]);
        }
        assert_eq!(
            gaps(&owned, &[work(6, 1_050, 1_160)])[0],
            [(Some(106), 10)],
            "before the grant"
        );
        assert_eq!(
            gaps(&owned, &[work(7, 1_060, 1_160)])[0],
            [(Some(107), 100)],
            "no grant at all"
        );
    }

    #[test]
    fn a_hold_that_outlives_its_worker_is_an_orphan_until_all_are_told_to_stop() {
        let owned = [hold(5, 1_000, 1_050), hold(6, 1_060, 2_500)];
        let orphaned = |works: &[Work]| gaps(&owned, works)[1].clone();
        assert_eq!(orphaned(&[work(5, 1_000, 1_050), work(6, 1_070, 1_900)]), [(None, 100)]);
        // Nobody heard of the second grant.
        assert_eq!(orphaned(&[work(5, 1_000, 1_050)]), [(None, 940)]);
        // Somebody who had lost the lock still worked.
        assert_eq!(orphaned(&[work(5, 1_000, 1_200), work(6, 1_300, 2_100)]), []);
        assert_eq!(orphaned(&[work(5, 1_000, 1_200)]), [(None, 800)]);
    }
}
