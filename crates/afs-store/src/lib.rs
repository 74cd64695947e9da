//! An embedded store of rows for what has a folder of its own: the partitions of a file server, the cache of a client.
//! A batch of rows is there as a whole or not at all; it outlasts the process when [`Store::written`] has returned for
//! it, which costs one write and no sync, and a power loss when [`Store::sync`] has (Volume format 3; why it is made so,
//! docs/decisions/0003-embedded-store.md).
//!
//! It also has the disk below, as a trait ([`disk`]): a folder, or one in memory that loses what was not synced. What
//! the rows mean is their owner's to say ([`Schema`]). Everything here blocks on the disk.
//!
//! # What to open for a change
//!
//! - What a store of rows is: [`rows`], with `src/rows/opening.rs`, `src/rows/reading.rs` and
//!   `src/rows/range_cache.rs` (the cache of the B-tree's answers). Decision 3 says why it is redb under a log.
//! - What is valid after a crash, and what a damaged log loses: `src/rows/recovery.rs`, and [`rows::log`] for how a
//!   segment is read.
//! - The checksums below the B-tree: `src/rows/checked.rs`. How rows are read past damage: `src/rows/past_damage.rs`,
//!   `src/rows/copying.rs`. Tests flip bits: `tests/flips.rs`.
//! - The simulated disk that loses power: `src/disk/simulated.rs`. The disk on which `afar fsck -repair` tries
//!   things: `src/disk/scratch.rs`.
#![forbid(unsafe_code)]

pub mod codec;
pub mod disk;
mod error;
mod rows;

pub use error::StoreError;
pub use rows::log;
pub use rows::{
    Backend, Batch, Bytes, CheckedBackend, CheckedFile, Key, Layer, Loss, Options, Row, Schema, Seq, Store,
    after,
};
pub use rows::{lock, read, write};
