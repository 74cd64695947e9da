//! What the client calls things: a vnode of one of several cells, and the local user who asks for it.

use std::fmt;

use afs_wire::ids::{AfsFid, LocalFid, Uniquifier, VnodeNumber, VolumeId};

/// A cell by its place in the client's table, which only grows: a number stays a cell's as long as the client runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellIndex(pub u32);

impl CellIndex {
    /// No cell: where the dynamic root lives, whose vnodes the client makes up.
    pub const DYNROOT: Self = Self(0);
}

/// A file, directory or symbolic link of a cell.
///
/// The fid of a mount point stands for the directory that is mounted there in everything that is asked of directories: so each
/// place at which a volume is mounted is a directory of its own, with one parent, as kernels want it.
/// [`Client::target`](crate::Client::target) says what is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fid {
    /// The cell.
    pub cell: CellIndex,
    /// The volume.
    pub volume: VolumeId,
    /// The vnode's number.
    pub vnode: VnodeNumber,
    /// Which use of the number.
    pub unique: Uniquifier,
}

impl Fid {
    /// A fid of a cell.
    #[must_use]
    pub const fn new(cell: CellIndex, fid: AfsFid) -> Self {
        Self { cell, volume: fid.volume, vnode: fid.vnode, unique: fid.unique }
    }

    /// The root directory of a volume.
    #[must_use]
    pub const fn root_of(cell: CellIndex, volume: VolumeId) -> Self {
        Self::new(cell, AfsFid::root_of(volume))
    }

    /// As servers of its cell call it.
    #[must_use]
    pub const fn in_cell(self) -> AfsFid {
        AfsFid { volume: self.volume, vnode: self.vnode, unique: self.unique }
    }

    /// As its volume's directories call it.
    #[must_use]
    pub const fn in_volume(self) -> LocalFid {
        LocalFid { vnode: self.vnode, unique: self.unique }
    }

    /// Another vnode of the same volume.
    #[must_use]
    pub const fn sibling(self, fid: LocalFid) -> Self {
        Self { vnode: fid.vnode, unique: fid.unique, ..self }
    }

    /// Whether this is the root directory of its volume.
    #[must_use]
    pub const fn is_root(self) -> bool {
        self.vnode.0 == VnodeNumber::ROOT.0
    }

    /// Whether the client makes it up: it is of the dynamic root.
    #[must_use]
    pub const fn is_made_up(self) -> bool {
        self.cell.0 == CellIndex::DYNROOT.0
    }
}

impl fmt::Display for Fid {
    /// `cell.volume.vnode.unique`, in decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.cell.0, self.in_cell())
    }
}

/// A local user by number, as the kernel names the caller. Tokens say who that is to a cell: see [`crate::users`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User(pub u32);

impl User {
    /// The superuser of the machine. Without a token, cells see root as an anonymous user.
    pub const ROOT: Self = Self(0);
}
