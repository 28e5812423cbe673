//! Segments: which part of a plan falls to whom, so that all parts together are the plan, however often it is split.

use super::Arrival;

/// Every `of`-th of something numbered, beginning with `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    index: u32,
    of: u32,
}

impl Segment {
    /// All of it.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Part `index`, counted from 0, of `of` equal parts of this one.
    #[must_use]
    pub fn part(self, index: u32, of: u32) -> Self {
        Self {
            index: self.index + self.of * index,
            of: self.of * of.max(1),
        }
    }

    /// Whether what bears this number belongs to it.
    pub fn has(self, number: usize) -> bool {
        number % self.of as usize == self.index as usize
    }

    /// The clients in it, of so many.
    pub fn clients(self, count: u32) -> impl Iterator<Item = u32> {
        (self.index..count).step_by(self.of as usize)
    }

    /// The arrivals in it.
    pub fn arrivals(self, all: Vec<Arrival>) -> impl Iterator<Item = Arrival> {
        let numbered = all.into_iter().enumerate();
        numbered
            .filter(move |(number, _)| self.has(*number))
            .map(|(_, arrival)| arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_parts_are_parts_of_the_whole_and_each_number_is_in_one() {
        let parts: Vec<_> = (0..4)
            .flat_map(|machine| (0..3).map(move |process| Segment::WHOLE.part(machine, 4).part(process, 3)))
            .collect();
        for number in 0..1_000 {
            assert_eq!(parts.iter().filter(|part| part.has(number)).count(), 1, "{number}");
        }
        let mut clients: Vec<_> = parts.iter().flat_map(|part| part.clients(1_000)).collect();
        clients.sort_unstable();
        assert!(clients.into_iter().eq(0..1_000));
        let sizes: Vec<_> = parts.iter().map(|part| part.clients(1_000).count()).collect();
        assert!(sizes.iter().all(|size| (83..=84).contains(size)), "{sizes:?}");
    }
}
