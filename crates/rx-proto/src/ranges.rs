//! A set of sequence numbers, kept as ranges: what has come beyond a hole, as the receiver holds it and as the sender knows
//! it. Cheap where packets come nearly in order: holes are few, and what changes is mostly at the end or at the beginning.

use crate::ids::Seq;
use std::collections::VecDeque;
use std::ops::Range;

/// The set.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// Ascending; none is empty, no two touch.
    ranges: VecDeque<(Seq, Seq)>,
}

impl Ranges {
    pub(crate) fn contains(&self, seq: Seq) -> bool {
        let at = self.ranges.partition_point(|r| r.1 <= seq);
        self.ranges.get(at).is_some_and(|r| r.0 <= seq)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<Seq>> + Clone + '_ {
        self.ranges.iter().map(|r| r.0..r.1)
    }

    /// Adds a range; names to `fresh` the parts of it that were not in the set.
    pub(crate) fn insert(&mut self, range: Range<Seq>, mut fresh: impl FnMut(Range<Seq>)) {
        let Range { start, end } = range;
        if start >= end {
            return;
        }
        // Where the ranges begin that it touches: most often at the last one, or behind it.
        let from = match self.ranges.back() {
            Some(last) if last.1 < start => self.ranges.len(),
            Some(last) if last.0 <= start => self.ranges.len() - 1,
            _ => self.ranges.partition_point(|r| r.1 < start),
        };
        let (mut until, mut covered, mut merged) = (from, start, (start, end));
        while let Some(&(s, e)) = self.ranges.get(until).filter(|r| r.0 <= end) {
            if covered < s {
                fresh(covered..s);
            }
            covered = covered.max(e);
            merged = (merged.0.min(s), merged.1.max(e));
            until += 1;
        }
        if covered < end {
            fresh(covered..end);
        }
        if from == until {
            self.ranges.insert(from, merged);
        } else {
            self.ranges[from] = merged;
            self.ranges.drain(from + 1..until);
        }
    }

    /// Forgets all below `floor`.
    pub(crate) fn remove_below(&mut self, floor: Seq) {
        while let Some(first) = self.ranges.front_mut() {
            if first.1 > floor {
                first.0 = first.0.max(floor);
                return;
            }
            self.ranges.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ranges = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    /// Against a plain set, with random ranges.
    #[test]
    fn it_holds_what_a_plain_set_holds() {
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..200 {
            let (mut ranges, mut plain, mut floor) = (Ranges::default(), BTreeSet::new(), 0);
            for _ in 0..60 {
                let start = rng.random_range(floor..floor + 100);
                let end = start + rng.random_range(0..12);
                let mut fresh = Vec::new();
                ranges.insert(Seq(start)..Seq(end), |r| fresh.push(r));
                let new: Vec<u32> = (start..end).filter(|&s| plain.insert(s)).collect();
                let told: Vec<u32> = fresh.into_iter().flat_map(|r| r.start.0..r.end.0).collect();
                assert_eq!(told, new);
                if rng.random_bool(0.1) {
                    floor += rng.random_range(0..20);
                    ranges.remove_below(Seq(floor));
                    plain.retain(|&s| s >= floor);
                }
                let held: Vec<u32> = ranges.iter().flat_map(|r| r.start.0..r.end.0).collect();
                assert_eq!(held, plain.iter().copied().collect::<Vec<_>>());
                assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.end < b.start));
                assert!((floor..floor + 120).all(|s| ranges.contains(Seq(s)) == plain.contains(&s)));
            }
        }
    }
}
