//! A table from 32-bit tags to the places of entries: ids as they are, names by a hash. A cell of it is eight bytes, and
//! no memory of an entry is touched before its tag is the wanted one; with a million entries a look-up is one or two
//! misses of the cache.
//!
//! Open addressing with linear probing, at most three quarters full. What is removed is closed up at once, so that
//! nothing of it stays.

/// Smallest number of cells; a power of two as all are.
const MIN_CELLS: usize = 16;

/// Places of entries by their tags. The same tag may be there for several entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Tag in the upper half, place + 1 in the lower; 0 is an empty cell.
    cells: Vec<u64>,
    used: usize,
}

fn tag_of(cell: u64) -> u32 {
    (cell >> 32) as u32
}

fn slot_of(cell: u64) -> u32 {
    cell as u32 - 1
}

impl Index {
    /// Adds an entry.
    pub(crate) fn insert(&mut self, tag: u32, slot: u32) {
        if (self.used + 1) * 4 > self.cells.len() * 3 {
            self.grow();
        }
        self.put(u64::from(tag) << 32 | u64::from(slot + 1));
        self.used += 1;
    }

    /// Takes an entry away, which must be there.
    pub(crate) fn remove(&mut self, tag: u32, slot: u32) {
        let wanted = u64::from(tag) << 32 | u64::from(slot + 1);
        let mut hole = self.probe(tag).find(|at| self.cells[*at] == wanted).expect("entries are indexed");
        self.used -= 1;
        let mask = self.cells.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            // A cell may move to the hole unless its home lies behind the hole.
            let home = self.home(tag_of(cell));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = 0;
    }

    /// The first place with this tag of which `is_it` holds.
    pub(crate) fn find(&self, tag: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let cells = self.probe(tag).map(|at| self.cells[at]).take_while(|cell| *cell != 0);
        cells.filter(|cell| tag_of(*cell) == tag).map(slot_of).find(|slot| is_it(*slot))
    }

    /// All tags, in no order.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u32> {
        self.cells.iter().filter(|cell| **cell != 0).map(|cell| tag_of(*cell))
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    fn home(&self, tag: u32) -> usize {
        // Fibonacci hashing: ids that follow each other come apart. The upper bits are the well mixed ones.
        let hash = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize & (self.cells.len() - 1)
    }

    /// Cells from a tag's home on, once round.
    fn probe(&self, tag: u32) -> impl Iterator<Item = usize> + use<> {
        let (length, home) = (self.cells.len(), if self.cells.is_empty() { 0 } else { self.home(tag) });
        (0..length).map(move |step| (home + step) & (length - 1))
    }

    fn put(&mut self, cell: u64) {
        let at = self.probe(tag_of(cell)).find(|at| self.cells[*at] == 0).expect("a quarter is empty");
        self.cells[at] = cell;
    }

    fn grow(&mut self) {
        let cells = vec![0; (self.cells.len() * 2).max(MIN_CELLS)];
        for cell in std::mem::replace(&mut self.cells, cells) {
            if cell != 0 {
                self.put(cell);
            }
        }
    }
}

/// The tag of a name: FNV-1a. Only superusers make names, so nobody else can make them meet.
pub(crate) fn name_tag(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Against a map, with tags from so few that they often meet.
    #[test]
    fn it_finds_what_a_map_finds() {
        for (seed, tags) in (1..=20).flat_map(|seed| [(seed, 20), (seed, 1 << 20)]) {
            let mut random = 0x2545_f491_4f6c_dd1d_u64.wrapping_mul(seed);
            let mut next = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random >> 32) as u32
            };
            let (mut index, mut map) = (Index::default(), BTreeMap::new());
            for step in 0..3000 {
                let slot = next() % 200;
                if let Some(tag) = map.remove(&slot) {
                    index.remove(tag, slot);
                } else {
                    let tag = next() % tags;
                    map.insert(slot, tag);
                    index.insert(tag, slot);
                }
                let wanted = next() % 200;
                let tag = map.get(&wanted).copied();
                let found = index.find(tag.unwrap_or(next() % tags), |slot| slot == wanted);
                assert_eq!(found, tag.map(|_| wanted), "seed {seed}, step {step}");
                assert_eq!(index.len(), map.len());
            }
            let mut tags: Vec<u32> = index.tags().collect();
            tags.sort_unstable();
            let mut expected: Vec<u32> = map.into_values().collect();
            expected.sort_unstable();
            assert_eq!(tags, expected, "seed {seed}");
        }
    }

    #[test]
    fn an_index_without_entries_finds_nothing() {
        assert_eq!(Index::default().find(5, |_| true), None);
    }
}
