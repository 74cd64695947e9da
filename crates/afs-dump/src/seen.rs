//! The vnode numbers that a stream has named, in bounded memory: a bit each, in blocks. Writers name the vnodes of a class in rising
//! order, so the blocks with the lowest numbers may be forgotten when there are too many: a number that comes after that is out of
//! order.

use std::collections::BTreeMap;

/// Numbers of a block.
const BLOCK: u32 = 256;
/// Blocks that are kept. 64 Ki blocks of 32 bytes are a few MiB, for 16 million vnodes without gaps; a dump in which a vnode comes later
/// than that is made by no known program.
const BLOCKS_MAX: usize = 1 << 16;

/// Numbers that were seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    blocks: BTreeMap<u32, [u64; BLOCK as usize / 64]>,
    /// Blocks below this are forgotten.
    forgotten: u32,
}

/// The knowledge of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sighting {
    New,
    Again,
    /// It belongs to a block that is forgotten.
    Unknown,
}

impl Seen {
    /// Notes a number, and says whether it was noted before.
    pub(crate) fn note(&mut self, number: u32) -> Sighting {
        let (block, bit) = (number / BLOCK, number % BLOCK);
        if block < self.forgotten {
            return Sighting::Unknown;
        }
        let word = &mut self.blocks.entry(block).or_default()[bit as usize / 64];
        let mask = 1 << (bit % 64);
        if *word & mask != 0 {
            return Sighting::Again;
        }
        *word |= mask;
        if self.blocks.len() > BLOCKS_MAX
            && let Some((lowest, _)) = self.blocks.pop_first()
        {
            self.forgotten = lowest + 1;
        }
        Sighting::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_any_order_is_noticed_the_second_time() {
        let mut seen = Seen::default();
        for number in [5, 1, 3, 70_000, 2, u32::MAX, 0] {
            assert_eq!(seen.note(number), Sighting::New);
        }
        for number in [0, 1, 5, 70_000, u32::MAX] {
            assert_eq!(seen.note(number), Sighting::Again);
        }
    }

    #[test]
    fn numbers_far_apart_cost_bounded_memory() {
        let mut seen = Seen::default();
        for n in 0..=BLOCKS_MAX as u32 {
            assert_eq!(seen.note(n * BLOCK), Sighting::New);
        }
        assert_eq!(seen.blocks.len(), BLOCKS_MAX);
        assert_eq!(seen.note(0), Sighting::Unknown);
        assert_eq!(seen.note(BLOCK), Sighting::Again);
    }
}
