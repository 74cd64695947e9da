//! The value that a target returns: a number that is the same whenever the same kind of thing happened. Stands in for
//! the coverage that an instrumented build would measure: an input with a number not seen before is worth keeping.

/// A target's account of an input, built up as it goes. Put in what tells one path through the code from another (which
/// packet type, which error, how many parts), not the values themselves: otherwise every input is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape(u64);

impl Shape {
    /// Nothing has happened yet.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// Adds something out of a small set: an enum's number, a bool, a short count.
    #[must_use]
    pub const fn with(self, value: u64) -> Self {
        let mixed = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        Self(mixed ^ (mixed >> 29))
    }

    /// Adds a count: only the order of magnitude counts.
    #[must_use]
    pub const fn with_count(self, count: usize) -> Self {
        self.with((usize::BITS - count.leading_zeros()) as u64)
    }

    /// The number.
    pub const fn feature(self) -> u64 {
        self.0
    }
}
