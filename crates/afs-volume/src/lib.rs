//! Volumes on disk: vnodes, directories, access lists, file data, quotas, clones; what is left of them after a crash,
//! whether that is whole ([`fsck`]), and what can be mended and saved of what is not ([`repair`]). Knows nothing of the network, of users' rights, of callbacks or locks of
//! clients: those are the file service's; nor of the names of volumes in a cell, which is the VLDB's.
//!
//! A [`Partition`] is a folder with volumes. A [`Volume`] does each operation at once or not at all; what has
//! returned is there after the death of the process, and after a power loss when [`Config::sync`] says so. Everything
//! here blocks, on locks for microseconds and on the disk for longer: call it from threads that may. The format on disk is
//! docs/volume-format.md.
#![forbid(unsafe_code)]

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
pub mod repair;
mod restore;
mod shared;
mod vnode;
mod vnode_set;
mod volume;

pub use afs_store::Loss;
pub use afs_store::disk;
pub use data::{Reader, Store, StoreRange};
pub use error::VolumeError;
pub use frozen::Frozen;
pub use half::{Arrived, Half};
pub use header::{NAME_MAX, NewClone, NewVolume, VolumeHeader, VolumeInfo, VolumeKind, VolumeState};
pub use partition::{Config, DEFAULT_QUOTA_KIB, Partition, Space, SyncPolicy};
pub use restore::Restore;
pub use vnode::{
    InDirectory, Kind, MAX_FILE_BYTES, MAX_LINKS, Removed, Renamed, SetStatus, Stamp, VnodeId, VnodeStatus,
};
pub use volume::Volume;

#[cfg(test)]
mod tests;
