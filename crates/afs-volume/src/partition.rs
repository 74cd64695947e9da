//! A partition: a folder, `/vicepXX` or any other, with volumes in it.

use crate::{NewClone, NewVolume, Stamp, Volume, VolumeError};
use afs_wire::ids::VolumeId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// When changes are forced onto the disk, so that they outlast a power loss. The death of the process loses nothing
/// in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before an operation returns. Costs each a few milliseconds, shared by those that wait at the same time.
    Always,
    /// So often; a power loss costs at most what was done in that time.
    Every(Duration),
}

/// How a partition is to be run.
#[derive(Debug, Clone)]
pub struct Config {
    /// See [`SyncPolicy`]. Default: every second.
    pub sync: SyncPolicy,
    /// KiB of the file system that are left free: with less, what needs space is [`VolumeError::DiskFull`]. The log
    /// and the store need room to write down removals too. Default: 16 MiB.
    pub reserve_kib: u64,
    /// Bytes of the store that are kept in memory. Default: 64 MiB; less than the metadata in use costs reads.
    pub cache_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { sync: SyncPolicy::Every(Duration::from_secs(1)), reserve_kib: 16 << 10, cache_bytes: 64 << 20 }
    }
}

/// Space of the file system that a partition is on, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total_kib: u64,
    /// What may still be used for volumes.
    pub free_kib: u64,
}

/// An open partition. Clones are the same one; it closes with the last.
#[derive(Debug, Clone)]
pub struct Partition {}

#[expect(clippy::unused_self, unused_variables, clippy::needless_pass_by_value, reason = "signatures first")]
impl Partition {
    /// Opens the partition in a folder; makes one of the folder if it has none of our files. Takes a lock on it.
    ///
    /// # Errors
    ///
    /// The folder is not there or may not be written; another process has it open; its format is of a newer version.
    pub fn open(folder: &Path, config: Config) -> Result<Self, VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// The folder, as it was given.
    #[must_use]
    pub fn folder(&self) -> &Path {
        Path::new("")
    }

    /// Space, by the file system's account of just now.
    ///
    /// # Errors
    ///
    /// The file system does not say.
    pub fn space(&self) -> Result<Space, VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// All volumes, by their ids.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        Vec::new()
    }

    /// A volume.
    ///
    /// # Errors
    ///
    /// It is not here.
    pub fn volume(&self, id: VolumeId) -> Result<Arc<Volume>, VolumeError> {
        Err(VolumeError::NoVolume(id))
    }

    /// Makes a volume: not in service, and to be destroyed if nobody says otherwise ([`Volume::change_info`]).
    ///
    /// # Errors
    ///
    /// Its id is taken; the disk is full or failed.
    pub fn create_volume(&self, new: &NewVolume, stamp: Stamp) -> Result<Arc<Volume>, VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// Makes a clone of a volume as it is now, in a time that does not depend on its size: not in service, like a
    /// new volume. Dates of original and clone are set as Volume service notes 4 have it.
    ///
    /// # Errors
    ///
    /// No such volume; the id is taken; the disk failed.
    pub fn clone_volume(&self, from: VolumeId, new: &NewClone, stamp: Stamp) -> Result<Arc<Volume>, VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// Makes an existing clone show its original as it is now; keeps its id, name and statistics. Takes the same
    /// short time; the space of what only the old clone had comes back in the background.
    ///
    /// # Errors
    ///
    /// One of them is not there, or they are not of one group; the disk failed.
    pub fn reclone_volume(&self, from: VolumeId, clone: VolumeId, stamp: Stamp) -> Result<Arc<Volume>, VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// Removes a volume. What others of its group share stays; the rest of its space comes back in the background.
    ///
    /// # Errors
    ///
    /// It is not here; the disk failed.
    pub fn delete_volume(&self, id: VolumeId) -> Result<(), VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// Forces everything onto the disk that was done before.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn sync(&self) -> Result<(), VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// After [`VolumeError::Io`], and when the disk works again: reads everything anew. Its volumes are then as they
    /// are on disk, online or not, as after a start.
    ///
    /// # Errors
    ///
    /// The disk still fails.
    pub fn reopen(&self) -> Result<(), VolumeError> {
        Err(VolumeError::DiskFull)
    }
}
