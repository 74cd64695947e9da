//! The division of a process's memory among its caches and tables: each has some parts of one number. Which shares there are, and
//! what keeps to them, is the servers' and the client's to say.

/// Parts that a memory is divided into.
pub const PARTS: u64 = 64;

/// The share of a cache or a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Its name in metrics and in docs/administration.md.
    pub name: &'static str,
    /// The number of the [`PARTS`] that it has.
    pub parts: u64,
}

impl Share {
    /// Its bytes of a memory of so many bytes.
    pub const fn of(self, memory_bytes: u64) -> u64 {
        memory_bytes / PARTS * self.parts
    }
}

/// The parts of all of these: [`PARTS`], where nothing was forgotten.
pub const fn total(shares: &[Share]) -> u64 {
    let (mut sum, mut at) = (0, 0);
    while at < shares.len() {
        sum += shares[at].parts;
        at += 1;
    }
    sum
}

/// The use of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// The share.
    pub share: Share,
    /// Its size in bytes: exact for data, by number and usual size for tables; `None` where that is not counted.
    pub bytes: Option<u64>,
    /// Its limit in bytes.
    pub limit_bytes: u64,
}
