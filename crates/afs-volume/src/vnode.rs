//! A vnode for its users: its id, its kind, its status, and what may be set of it.

use afs_wire::ids::{AfsTime, DataVersion, Uniquifier, ViceId, VnodeNumber};

/// Longest file, in bytes: what fits into a signed 64-bit position and keeps chunk numbers below 2^32.
pub const MAX_FILE_BYTES: u64 = 1 << 50;
/// Most names of one file, or subdirectories of one directory and 2: link counts are 16 bits wide in dumps.
pub const MAX_LINKS: u32 = 65_534;

/// A vnode of a volume, and which use of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnodeId {
    /// Odd for directories.
    pub vnode: VnodeNumber,
    /// The use.
    pub unique: Uniquifier,
}

impl VnodeId {
    /// A volume's root directory.
    pub const ROOT: Self = Self { vnode: VnodeNumber::ROOT, unique: Uniquifier::ROOT };
}

impl From<&afs_wire::ids::AfsFid> for VnodeId {
    fn from(fid: &afs_wire::ids::AfsFid) -> Self {
        Self { vnode: fid.vnode, unique: fid.unique }
    }
}

/// The kind of a vnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, or a mount point.
    Symlink,
}

/// All that a vnode says of itself, but for its access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VnodeStatus {
    /// The vnode.
    pub id: VnodeId,
    /// Its kind.
    pub kind: Kind,
    /// Names of a file; of a directory 2 and its subdirectories.
    pub link_count: u32,
    /// Bytes of data; of a directory's pages; of a symbolic link's target.
    pub length: u64,
    /// Grows with each change of the data; never the same for two contents, also not after a power loss.
    pub data_version: DataVersion,
    /// The last writer.
    pub author: ViceId,
    /// The owner.
    pub owner: ViceId,
    /// Its group.
    pub group: ViceId,
    /// The 12 low bits of a Unix mode.
    pub mode: u16,
    /// The directory it is in; the root is in itself.
    pub parent: VnodeId,
    /// The time when it was changed, as clients set it.
    pub client_mod_time: AfsTime,
    /// The time when it was changed, by the server's clock.
    pub server_mod_time: AfsTime,
}

/// The author and time of a change, by the server's clock. Kept with what is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Becomes the author of what is written, and the owner of what is made.
    pub who: ViceId,
    /// Becomes the server's time of the change.
    pub now: AfsTime,
}

/// The fields of a vnode to set; those that are `None` stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetStatus {
    /// Time of change, as clients see it.
    pub client_mod_time: Option<AfsTime>,
    /// Owner.
    pub owner: Option<ViceId>,
    /// Group.
    pub group: Option<ViceId>,
    /// The 12 low bits of a Unix mode; others are cut off.
    pub mode: Option<u16>,
}

/// A vnode that was made or found under a name, and the directory after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InDirectory {
    /// The vnode.
    pub vnode: VnodeStatus,
    /// The directory.
    pub directory: VnodeStatus,
}

/// The remains of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The vnode that had the name; `None` where the vnode went with it.
    pub left: Option<VnodeStatus>,
    /// Its id.
    pub id: VnodeId,
    /// The directory.
    pub directory: VnodeStatus,
}

/// The effect of a rename, for replies and for callbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renamed {
    /// The directory that the name was in.
    pub old_directory: VnodeStatus,
    /// The directory that it is in now; the same as the old one's where it is the same.
    pub new_directory: VnodeStatus,
    /// The vnode that was renamed. Its data changed (its ".."), if it is a directory and came to another one.
    pub moved: VnodeStatus,
    /// The vnode that had the new name before, and its status if it has other names.
    pub replaced: Option<(VnodeId, Option<VnodeStatus>)>,
}
