//! Sets of byte ranges: what is there of a file, what was changed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of bytes, none empty, none touching the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Makes an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: BTreeMap::new(), total: 0 }
    }

    /// True if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of bytes.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The number of ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, from the lowest up.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// The byte after the last one; 0 if there is none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// The range that has this byte.
    #[must_use]
    pub fn around(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// True if it has all of a range; of an empty one it does.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.around(range.start).is_some_and(|found| range.end <= found.end)
    }

    /// Adds a range. Says by how many bytes the set has grown.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.total;
        let (mut start, mut end) = (range.start, range.end);
        // Those that overlap or touch, from the last one that begins within or just behind.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back()
            && e >= start
        {
            self.ranges.remove(&s);
            self.total -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.total += end - start;
        self.total - before
    }

    /// Takes a range away. Says how many bytes have gone.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.total;
        while let Some((&s, &e)) = self.ranges.range(..range.end).next_back()
            && e > range.start
        {
            self.ranges.remove(&s);
            self.total -= e - s;
            if e > range.end {
                self.ranges.insert(range.end, e);
                self.total += e - range.end;
            }
            if s < range.start {
                self.ranges.insert(s, range.start);
                self.total += range.start - s;
            }
        }
        before - self.total
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        for range in other.iter() {
            self.insert(range);
        }
    }

    /// The parts of a range that it has.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.around(range.start).map_or(range.start, |found| found.start);
        let upto = range.end.max(first);
        self.ranges
            .range(first..upto)
            .map(move |(&start, &end)| start.max(range.start)..end.min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// Its ranges that overlap a range or touch it, whole.
    #[must_use]
    pub fn touching(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let below = self.ranges.range(..=range.end).rev();
        let mut found: Vec<_> =
            below.map(|(&s, &e)| s..e).take_while(|found| found.end >= range.start).collect();
        found.reverse();
        found
    }

    /// The parts of a range that it does not have.
    #[must_use]
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        let mut at = range.start;
        for part in self.within(range.clone()) {
            if at < part.start {
                out.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            out.push(at..range.end);
        }
        out
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const BYTES: u64 = 48;

    fn check(set: &RangeSet, model: &[bool], when: &str) {
        for at in 0..BYTES {
            assert_eq!(set.around(at).is_some(), model[at as usize], "{when}: byte {at}");
        }
        assert_eq!(set.total(), model.iter().filter(|&&has| has).count() as u64, "{when}");
        let mut last = None;
        for range in set.iter() {
            assert!(range.start < range.end && last.is_none_or(|last| last < range.start), "{when}: {set:?}");
            last = Some(range.end);
        }
        assert_eq!(set.end(), last.unwrap_or(0), "{when}");
    }

    #[test]
    fn a_set_of_ranges_is_a_set_of_bytes() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut set, mut model) = (RangeSet::new(), vec![false; BYTES as usize]);
            for step in 0..60 {
                let a = random.random_range(0..=BYTES);
                let b = random.random_range(0..=BYTES);
                let range = a.min(b)..a.max(b);
                let when = format!("seed {seed}, step {step}, {range:?}");
                let bytes = range.start as usize..range.end as usize;
                let has = model[bytes.clone()].iter().filter(|&&has| has).count() as u64;
                assert_eq!(set.contains(&range), has == range.end - range.start, "{when}");
                assert_eq!(set.within(range.clone()).map(|r| r.end - r.start).sum::<u64>(), has, "{when}");
                let missing: u64 = set.missing(range.clone()).iter().map(|r| r.end - r.start).sum();
                assert_eq!(missing, range.end - range.start - has, "{when}");
                if random.random_bool(0.5) {
                    assert_eq!(set.insert(range), missing, "{when}");
                    model[bytes].fill(true);
                } else {
                    assert_eq!(set.remove(range), has, "{when}");
                    model[bytes].fill(false);
                }
                check(&set, &model, &when);
            }
        }
    }
}
