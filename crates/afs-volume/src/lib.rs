//! Volumes on disk: vnodes, directories, access lists, file data, quotas, clones; what is left of them after a crash,
//! whether that is whole ([`fsck`]), and what can be mended and saved of what is not ([`repair`]). Knows nothing of the network, of users' rights, of callbacks or locks of
//! clients: those are the file service's; nor of the names of volumes in a cell, which is the VLDB's.
//!
//! A [`Partition`] is a folder with volumes. A [`Volume`] does each operation at once or not at all; what has
//! returned is there after the death of the process, and after a power loss when [`Config::sync`] says so. Everything
//! here blocks, on locks for microseconds and on the disk for longer: call it from threads that may. The format on disk is
//! docs/volume-format.md.
//!
//! # What to open for a change
//!
//! - The format on disk: docs/volume-format.md first, then [`records`] (rows) and [`keys`] (their keys).
//! - A change of a volume, data versions, numbers that are never used twice: `src/group/edit.rs`. What each clone
//!   shows: [`group`]. What goes with a clone: `src/group/sweep.rs`. What clones hold: `src/group/held.rs`.
//! - File data: [`data`], `src/data/reading.rs`. Names and directories: [`namespace`], [`pages`].
//! - What is lost if a row is damaged: [`damage`], which follows section 9 of the format. Tests:
//!   `src/tests/flips.rs`, `src/tests/crash.rs`.
//! - What `afar fsck` checks: [`fsck`]; `src/tests/damage.rs` has each kind of damage.
//! - What `afar fsck -repair` repairs and takes back, and what `-dump` saves: [`repair`], with
//!   `src/repair/numbers.rs`, `src/repair/tree.rs` and `src/repair/undo.rs`. Tests: `src/tests/repair.rs`.
//! - What a dump reads: [`frozen`]. What a restore makes of vnodes: [`mod@restore`], section 10 of the format.
//! - What is kept of a volume whose move, release or restore was interrupted:
//!   docs/decisions/0009-half-made-volumes.md, then [`half`].
//! - Snapshots of a volume, which people keep beside others: [`snapshots`]. (What the format calls a snapshot is a number in a volume group.)
//! - Snapshots that come along with a volume that moves here: [`carried`].
//! - What a removed volume leaves, and how it comes back: [`removed`].
//! - How a replica becomes the read-write volume: [`convert`], section 11 of the format.
#![forbid(unsafe_code)]

mod carried;
mod config;
mod convert;
mod damage;
mod data;
mod error;
mod frozen;
pub mod fsck;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod half;
mod header;
mod keys;
mod namespace;
mod pages;
mod partition;
mod records;
mod removed;
pub mod repair;
mod restore;
mod shared;
mod snapshots;
mod vnode;
mod vnode_set;
mod volume;

pub use afs_store::Loss;
pub use afs_store::disk;
pub use config::{Config, SyncPolicy};
pub use data::{Reader, Store, StoreRange};
pub use error::VolumeError;
pub use frozen::Frozen;
pub use half::{Arrived, Half};
pub use header::{
    NAME_MAX, NewClone, NewVolume, Schedule, SnapshotKind, VolumeHeader, VolumeInfo, VolumeKind, VolumeState,
};
pub use partition::{DEFAULT_QUOTA_KIB, Partition, Space};
pub use restore::Restore;
pub use snapshots::SNAPSHOTS_MAX;
pub use vnode::{
    InDirectory, Kind, MAX_FILE_BYTES, MAX_LINKS, Removed, Renamed, SetStatus, Stamp, VnodeId, VnodeStatus,
};
pub use volume::Volume;

#[cfg(test)]
mod tests;
