//! Chance that is the same for the same seed on every machine and in every release (splitmix64): a seed printed a year ago
//! still leads to the same inputs. Good enough for mutations, and for nothing else.

/// A generator of numbers from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator for this seed; every seed is as good as another.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `bound` - 1; 0 if `bound` is 0.
    pub const fn below(&mut self, bound: usize) -> usize {
        // The bias of a remainder is about bound / 2^64.
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }
}
