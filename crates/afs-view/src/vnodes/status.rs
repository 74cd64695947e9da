//! The status of a vnode for programs, made of what servers tell (File service notes 3), for one user; and what it may ask to
//! be set.

use afs_wire::ids::{AfsTime, DataVersion, ViceId};
use afs_wire::rights::Rights;
use afs_wire::status::{AfsFetchStatus, AfsStoreStatus, FileType, StoreMask};
use rx::Runtime;
use rx_proto::time::Instant;

use afs_reach::fid::Fid;

/// The time in seconds since 1970, as times of files are told.
pub fn unix_time(runtime: &dyn Runtime) -> AfsTime {
    AfsTime(rx_security::UnixTime::of(runtime.wall_clock()).0)
}

/// The kind of a vnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file.
    File,
    /// A directory, or the mount point of one.
    Directory,
    /// A symbolic link.
    Symlink,
}

impl Kind {
    /// Converts the type that a server says; `None` for unknown ones.
    pub(crate) fn of(kind: FileType) -> Option<Self> {
        match kind {
            FileType::FILE => Some(Self::File),
            FileType::DIRECTORY => Some(Self::Directory),
            FileType::SYMLINK => Some(Self::Symlink),
            _ => None,
        }
    }
}

/// The status of a vnode, as one user may know it. Of a mount point it is that of the directory that is mounted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Status {
    /// The fid that was asked for: of a mount point its own fid.
    pub fid: Fid,
    /// Its kind.
    pub kind: Kind,
    /// Bytes of data; with what was written here and is not stored yet.
    pub length: u64,
    /// Version of the data that the server has.
    pub data_version: DataVersion,
    /// Names it has; for directories 2 and the number of subdirectories.
    pub links: u32,
    /// The twelve low mode bits, without the type.
    pub mode: u32,
    /// Its owner, in its cell.
    pub owner: ViceId,
    /// A group number, which has no effect.
    pub group: ViceId,
    /// The user who changed the data last.
    pub author: ViceId,
    /// Modification time, as its writer set it.
    pub modified: AfsTime,
    /// The time of the last change: the server's, but for data that were written here and stored since, the time of writing.
    pub changed: AfsTime,
    /// The user's rights, by the access list; the owner's mode bits count besides (File service notes 6.3).
    pub rights: Rights,
    /// The rights of anybody: they decide what the kernel may keep for all users.
    pub anonymous_rights: Rights,
    /// Read locks on it, or -1 if it is locked for writing.
    pub locks: i32,
    /// True if its volume is a read-only or backup volume.
    pub is_read_only: bool,
    /// True if it is a mount point, or the root directory of a volume: a place where another volume begins.
    pub is_volume_root: bool,
    /// The time until which this is promised to stay so, unless the client tells of a change before. It is not later than now if
    /// the server promised nothing, and for a file with data that are not stored yet. Times are
    /// `Client::now`'s.
    pub valid_until: Instant,
}

impl Status {
    /// True if the user may read the data of a file: by the access list and the owner's mode bit.
    #[must_use]
    pub fn may_read(&self) -> bool {
        match self.kind {
            Kind::File => self.rights.contains(Rights::READ) && self.mode & 0o400 != 0,
            Kind::Directory | Kind::Symlink => self.rights.contains(Rights::LOOKUP),
        }
    }

    /// True if the user may write the data of a file, or make entries in a directory.
    #[must_use]
    pub fn may_write(&self) -> bool {
        match self.kind {
            Kind::File => {
                (self.rights.contains(Rights::WRITE) || self.is_new_in_drop_box()) && self.mode & 0o200 != 0
            }
            Kind::Directory => self.rights.intersects(Rights::INSERT | Rights::DELETE),
            Kind::Symlink => false,
        }
    }

    /// A user who may only insert may fill a file that they have made. Whether any other file is theirs, only the
    /// server knows (File service notes 6.3).
    fn is_new_in_drop_box(&self) -> bool {
        self.rights.contains(Rights::INSERT) && self.length == 0 && self.data_version.0 == 0
    }
}

/// The fields of a vnode to set; those that are `None` stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetStatus {
    /// The twelve low mode bits.
    pub mode: Option<u32>,
    /// Owner; takes an administrator.
    pub owner: Option<ViceId>,
    /// Group number; takes an administrator.
    pub group: Option<ViceId>,
    /// Modification time.
    pub modified: Option<AfsTime>,
    /// Bytes of data, of a file.
    pub length: Option<u64>,
}

impl SetStatus {
    /// The status as it is sent; the length is no part of that.
    pub(crate) fn to_wire(self) -> AfsStoreStatus {
        let mut wire = AfsStoreStatus::default();
        if let Some(mode) = self.mode {
            wire.mask |= StoreMask::MODE;
            wire.unix_mode_bits = mode & 0o7777;
        }
        if let Some(owner) = self.owner {
            wire.mask |= StoreMask::OWNER;
            wire.owner = owner;
        }
        if let Some(group) = self.group {
            wire.mask |= StoreMask::GROUP;
            wire.group = group;
        }
        if let Some(modified) = self.modified {
            wire.mask |= StoreMask::MOD_TIME;
            wire.client_mod_time = modified;
        }
        wire
    }
}

/// True if a vnode of type 3 is a mount point: none of its x bits is set (File service notes 11).
pub(crate) fn is_mount_point(status: &AfsFetchStatus) -> bool {
    status.file_type == FileType::SYMLINK && status.unix_mode_bits & 0o111 == 0
}
