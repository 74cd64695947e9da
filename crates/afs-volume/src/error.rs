//! Errors of a volume: one enum, which names the thing. The servers decide what a client is told of it (an abort
//! code, an errno).

use afs_store::StoreError;
use afs_wire::ids::{SecurityLevel, VnodeNumber, VolumeId};
use std::io;
use std::sync::Arc;

/// The reason why an operation on a partition, a volume or a vnode was not done. Nothing of it was done then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    /// There is no such volume on this partition.
    #[error("volume {0} is not on this partition")]
    NoVolume(VolumeId),
    /// A volume with this id, or with this name, is there already.
    #[error("volume {0} is there already: choose another id or name")]
    VolumeExists(VolumeId),
    /// The volume does not serve clients now.
    #[error("volume {volume} is offline: {reason}")]
    Offline {
        /// The volume.
        volume: VolumeId,
        /// The reason, as given by the caller that took it offline.
        reason: String,
    },
    /// The volume is used by a volume operation for a while; the caller is to try again.
    #[error("volume {0} is busy with a volume operation: try again")]
    Busy(VolumeId),
    /// The volume is at another server by now.
    #[error("volume {0} has moved to another server")]
    Moved(VolumeId),
    /// The contents of the volume may not be told over a connection that is protected so little.
    #[error("volume {volume} is served at level {} and above: encrypt the connection", least.word().unwrap_or("unknown"))]
    LevelTooLow {
        /// The volume.
        volume: VolumeId,
        /// Its level.
        least: SecurityLevel,
    },
    /// There is no such vnode, or another use of its number.
    #[error("there is no vnode {0}, or it is another by now")]
    NoVnode(VnodeNumber),
    /// A clone, or a read-only volume, was to be changed.
    #[error("volume {0} is read-only: change the read-write volume")]
    ReadOnly(VolumeId),
    /// The volume's quota does not allow it.
    #[error("volume {0} is over its quota: remove files or raise it")]
    OverQuota(VolumeId),
    /// The partition has no space left.
    #[error("the partition is full: remove or move volumes")]
    DiskFull,
    /// There is no such name in the directory.
    #[error("there is no such name in the directory")]
    NoEntry,
    /// The name is in the directory already.
    #[error("the name is there already")]
    Exists,
    /// The name is empty, too long, "." or "..", or has a '/' or a NUL in it.
    #[error("this can be no name in a directory")]
    BadName,
    /// The vnode is no directory, where one is needed.
    #[error("vnode {0} is no directory")]
    NotDirectory(VnodeNumber),
    /// The vnode is a directory, where none may be.
    #[error("vnode {0} is a directory")]
    IsDirectory(VnodeNumber),
    /// The vnode is a symbolic link, or another kind that the operation is not for.
    #[error("vnode {0} is of a kind that this cannot be done to")]
    WrongKind(VnodeNumber),
    /// The directory to be removed or replaced has entries.
    #[error("directory {0} is not empty")]
    NotEmpty(VnodeNumber),
    /// Source and target are the same file.
    #[error("both names are of vnode {0}")]
    SameFile(VnodeNumber),
    /// A directory was to be moved below itself.
    #[error("directory {0} cannot be moved below itself")]
    Loop(VnodeNumber),
    /// A file with several names was to be given one in another directory, or moved there.
    #[error("vnode {0} can have links in one directory only")]
    CrossDirectory(VnodeNumber),
    /// The directory can take no more names.
    #[error("directory {0} can take no more names")]
    DirectoryFull(VnodeNumber),
    /// The file would become longer than [`crate::MAX_FILE_BYTES`].
    #[error("the file would become too long")]
    TooBig,
    /// The vnode can have no more links, or the volume no more vnodes.
    #[error("a number has no more values: of links, or of vnodes of the volume")]
    TooMany,
    /// An access list with more than [`afs_wire::acl::ENTRIES_MAX`] entries.
    #[error("the access list has too many entries")]
    AccessListTooLong,
    /// Another store into this file is going on; the caller is to put stores of one file in order.
    #[error("another store into vnode {0} is going on")]
    StoreInProgress(VnodeNumber),
    /// The content of the disk contradicts itself: `afar fsck` says more.
    #[error("{what}: {why}; run 'afar fsck' on the partition")]
    Damaged {
        /// The thing that was being read.
        what: String,
        /// The problem with it.
        why: String,
    },
    /// The disk failed. The partition's volumes are offline until it was opened again.
    #[error("{what}: {error}; the partition is offline until it is repaired")]
    Io {
        /// The operation, and the file.
        what: String,
        /// The system's error.
        error: Arc<io::Error>,
    },
}

impl VolumeError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::Io { what, error: Arc::new(error) },
        }
    }

    pub(crate) fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), why: why.into() }
    }

    /// True if an administrator should hear of it, since it says something of the server and not of the request.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Damaged { .. } | Self::DiskFull)
    }
}

impl From<StoreError> for VolumeError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::DiskFull => Self::DiskFull,
            StoreError::Damaged { what, why } => Self::Damaged { what, why },
            StoreError::Io { what, error } => Self::Io { what, error },
        }
    }
}
