//! The client's cache on disk: for each file a sparse backing file (small ones share one) with what is there of one version of its
//! data, an index of what that is, and what was written here and is not stored yet. No network: who fetches and stores is
//! `afs-view`.
//!
//! * A [`CacheFile`] is of one version ([`Cache::file`]); another version is another one, so that what is open goes on
//!   reading what it was. Only our own writes change it, and our own stores raise its version.
//! * A hit ([`CacheFile::read_at`]) takes a short look at what is present, and one `pread`; nothing that waits for a
//!   server or a disk holds what it needs.
//! * What a [`CacheFile::write`] acknowledged outlasts kill -9 of the process: the bytes are in the backing file, the range
//!   in the index's log, both written and not synced. After a power loss what cannot be told to be whole is forgotten
//!   if it was clean, and put aside if it was dirty; `fsync` is at the server.
//! * Over the limit, files that are neither open nor dirty go, the least recently opened first, and those last that somebody has pinned.
//!
//! In the folder: `VERSION`, the index (`rows.redb`, `log.*`), the folder `data`, and `conflicts` with what could not be stored.
//!
//! # What to open for a change
//!
//! - Which data of a file are there, and which of them survive a crash: [`mod@file`]. docs/cache.md describes the
//!   folder.
//! - The read that does not wait: `read_at_once` in `src/file/reading.rs`.
//! - Where a file's data are on the disk, and the slots of small files: [`backing`], `src/backing/file.rs`.
//!   docs/decisions/0005-slots-for-small-files.md has the reasons.
//! - What a loss of power leaves of what was closed with write-behind: `src/file/promise.rs`, `src/cache/logged.rs`.
//! - Changes of names and attributes that no server has yet: `src/changes.rs`. What is set for directories and volumes: `src/settings.rs`.
//!   What users have pinned: `src/pins.rs`. What a start without servers shows: `src/known.rs`.
//! - What a full cache removes: `src/cache/eviction.rs`. What a start finds: `src/cache/start.rs`.
//! - Tests: `src/tests.rs`, and `src/tests/damage.rs` for what damage does.
#![forbid(unsafe_code)]

mod backing;
mod cache;
mod changes;
mod conflict;
mod error;
mod file;
pub mod fuzzing;
mod known;
mod memory;
mod pins;
pub mod ranges;
mod records;
mod settings;

pub use afs_store::disk::Disk;
pub use cache::{Cache, Config, Held, Usage};
pub use changes::{Change, NewKind, Place, RealId, What};
pub use conflict::Conflict;
pub use error::CacheError;
pub use file::{AtOnce, CacheFile, Dirty, EXTENT};
pub use known::{Known, KnownSite, KnownVnode, KnownVolume};
pub use memory::MemoryDisk;
pub use pins::Pin;
pub use records::{SentStore, Writer};

#[cfg(test)]
mod tests;

/// The format of the folder: what we write, and the newest that we read.
pub const FORMAT: u32 = 7;
/// The oldest that we read: it has no slots, each file is by itself.
const READS_FROM: u32 = 2;

/// A cell, as the folder numbers it: see [`Cache::cell`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellNumber(pub u32);

/// A file, directory or symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey {
    /// The cell.
    pub cell: CellNumber,
    /// The volume.
    pub volume: u32,
    /// The vnode's number.
    pub vnode: u32,
    /// The use of it.
    pub unique: u32,
}

impl FileKey {
    /// The key of its volume as a whole, which no file has.
    #[must_use]
    pub const fn of_volume(self) -> Self {
        Self { vnode: 0, unique: 0, ..self }
    }
}
