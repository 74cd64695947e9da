//! Names: what changes directories. Each is one operation on a volume, whole or not at all. Rights are checked by the
//! caller; that a name is allowed, a directory not full and the quota kept, here.

use crate::{InDirectory, Removed, Renamed, SetStatus, Stamp, VnodeId, Volume, VolumeError};

#[expect(clippy::unused_self, unused_variables, reason = "signatures first")]
impl Volume {
    /// What a name stands for.
    ///
    /// # Errors
    ///
    /// No such directory, or entry.
    pub fn lookup(&self, directory: VnodeId, name: &[u8]) -> Result<VnodeId, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// The names of a directory with their vnodes, "." and ".." too, in the order of the pages.
    ///
    /// # Errors
    ///
    /// No such directory.
    pub fn entries(&self, directory: VnodeId) -> Result<Vec<(Vec<u8>, VnodeId)>, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Makes an empty file. Mode 0777 unless `set` has one (File service notes 6.2); group of the directory.
    ///
    /// # Errors
    ///
    /// The name is taken or not allowed; no directory, or full; read-only; quota or disk full; the disk failed.
    pub fn create_file(
        &self,
        directory: VnodeId,
        name: &[u8],
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Makes a directory with a copy of its parent's access list.
    ///
    /// # Errors
    ///
    /// As [`Volume::create_file`].
    pub fn make_dir(
        &self,
        parent: VnodeId,
        name: &[u8],
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Makes a symbolic link, or a mount point.
    ///
    /// # Errors
    ///
    /// As [`Volume::create_file`]; a target longer than 1024 bytes is [`VolumeError::TooBig`].
    pub fn symlink(
        &self,
        directory: VnodeId,
        name: &[u8],
        target: &[u8],
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Gives a file another name in its directory.
    ///
    /// # Errors
    ///
    /// The file is in another directory, or no file; as [`Volume::create_file`].
    pub fn link(
        &self,
        directory: VnodeId,
        name: &[u8],
        file: VnodeId,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Takes away a name of a file or symbolic link, and what it is with its last name.
    ///
    /// # Errors
    ///
    /// No such name, or a directory's; read-only; the disk failed.
    pub fn remove_file(&self, directory: VnodeId, name: &[u8], stamp: Stamp) -> Result<Removed, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Takes away an empty directory.
    ///
    /// # Errors
    ///
    /// No such name, or no directory's; not empty; "." or ".."; read-only; the disk failed.
    pub fn remove_dir(&self, parent: VnodeId, name: &[u8], stamp: Stamp) -> Result<Removed, VolumeError> {
        Err(VolumeError::NoEntry)
    }

    /// Gives what has a name another name, in the same directory or another, in place of what has that name there.
    ///
    /// # Errors
    ///
    /// File service notes 6.2 have the cases: the target is of another kind, a directory that is not empty, the same
    /// file; a directory below itself; a file with several names to another directory.
    pub fn rename(
        &self,
        old_directory: VnodeId,
        old_name: &[u8],
        new_directory: VnodeId,
        new_name: &[u8],
        stamp: Stamp,
    ) -> Result<Renamed, VolumeError> {
        Err(VolumeError::NoEntry)
    }
}
