//! Errors of a volume: one enum, which names the thing. The servers decide what a client is told of it (an abort
//! code, an errno).

use afs_store::StoreError;
use afs_wire::ids::{VnodeNumber, VolumeId};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The reason why an operation on a partition, a volume or a vnode was not done. Nothing of it was done then.
#[derive(Debug, Clone)]
pub enum VolumeError {
    /// There is no such volume on this partition.
    NoVolume(VolumeId),
    /// A volume with this id, or with this name, is there already.
    VolumeExists(VolumeId),
    /// The volume does not serve clients now.
    Offline {
        /// The volume.
        volume: VolumeId,
        /// The reason, as given by the caller that took it offline.
        reason: String,
    },
    /// The volume is used by a volume operation for a while; the caller is to try again.
    Busy(VolumeId),
    /// The volume is at another server by now.
    Moved(VolumeId),
    /// There is no such vnode, or another use of its number.
    NoVnode(VnodeNumber),
    /// A clone, or a read-only volume, was to be changed.
    ReadOnly(VolumeId),
    /// The volume's quota does not allow it.
    OverQuota(VolumeId),
    /// The partition has no space left.
    DiskFull,
    /// There is no such name in the directory.
    NoEntry,
    /// The name is in the directory already.
    Exists,
    /// The name is empty, too long, "." or "..", or has a '/' or a NUL in it.
    BadName,
    /// The vnode is no directory, where one is needed.
    NotDirectory(VnodeNumber),
    /// The vnode is a directory, where none may be.
    IsDirectory(VnodeNumber),
    /// The vnode is a symbolic link, or another kind that the operation is not for.
    WrongKind(VnodeNumber),
    /// The directory to be removed or replaced has entries.
    NotEmpty(VnodeNumber),
    /// Source and target are the same file.
    SameFile(VnodeNumber),
    /// A directory was to be moved below itself.
    Loop(VnodeNumber),
    /// A file with several names was to be given one in another directory, or moved there.
    CrossDirectory(VnodeNumber),
    /// The directory can take no more names.
    DirectoryFull(VnodeNumber),
    /// The file would become longer than [`crate::MAX_FILE_BYTES`].
    TooBig,
    /// The vnode can have no more links, or the volume no more vnodes.
    TooMany,
    /// An access list with more than [`afs_wire::acl::ENTRIES_MAX`] entries.
    AccessListTooLong,
    /// Another store into this file is going on; the caller is to put stores of one file in order.
    StoreInProgress(VnodeNumber),
    /// The content of the disk contradicts itself: `afar fsck` says more.
    Damaged {
        /// The thing that was being read.
        what: String,
        /// The problem with it.
        why: String,
    },
    /// The disk failed. The partition's volumes are offline until it was opened again.
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

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume(id) => write!(f, "volume {id} is not on this partition"),
            Self::VolumeExists(id) => write!(f, "volume {id} is there already: choose another id or name"),
            Self::Offline { volume, reason } => write!(f, "volume {volume} is offline: {reason}"),
            Self::Busy(id) => write!(f, "volume {id} is busy with a volume operation: try again"),
            Self::Moved(id) => write!(f, "volume {id} has moved to another server"),
            Self::NoVnode(vnode) => write!(f, "there is no vnode {vnode}, or it is another by now"),
            Self::ReadOnly(id) => write!(f, "volume {id} is read-only: change the read-write volume"),
            Self::OverQuota(id) => write!(f, "volume {id} is over its quota: remove files or raise it"),
            Self::DiskFull => f.write_str("the partition is full: remove or move volumes"),
            Self::NoEntry => f.write_str("there is no such name in the directory"),
            Self::Exists => f.write_str("the name is there already"),
            Self::BadName => f.write_str("this can be no name in a directory"),
            Self::NotDirectory(vnode) => write!(f, "vnode {vnode} is no directory"),
            Self::IsDirectory(vnode) => write!(f, "vnode {vnode} is a directory"),
            Self::WrongKind(vnode) => write!(f, "vnode {vnode} is of a kind that this cannot be done to"),
            Self::NotEmpty(vnode) => write!(f, "directory {vnode} is not empty"),
            Self::SameFile(vnode) => write!(f, "both names are of vnode {vnode}"),
            Self::Loop(vnode) => write!(f, "directory {vnode} cannot be moved below itself"),
            Self::CrossDirectory(vnode) => write!(f, "vnode {vnode} can have links in one directory only"),
            Self::DirectoryFull(vnode) => write!(f, "directory {vnode} can take no more names"),
            Self::TooBig => f.write_str("the file would become too long"),
            Self::TooMany => f.write_str("a number has no more values: of links, or of vnodes of the volume"),
            Self::AccessListTooLong => f.write_str("the access list has too many entries"),
            Self::StoreInProgress(vnode) => write!(f, "another store into vnode {vnode} is going on"),
            Self::Damaged { what, why } => write!(f, "{what}: {why}; run 'afar fsck' on the partition"),
            Self::Io { what, error } => {
                write!(f, "{what}: {error}; the partition is offline until it is repaired")
            }
        }
    }
}

impl std::error::Error for VolumeError {}
