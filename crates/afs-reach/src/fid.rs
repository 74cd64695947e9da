//! The client's names of things: a vnode of one of several cells, and the local user who asks for it.

use std::fmt;

use afs_wire::ids::{AfsFid, LocalFid, Uniquifier, VnodeNumber, VolumeId};

/// A cell by its place in the client's table, which only grows: a number stays a cell's as long as the client runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellIndex(pub u32);

impl CellIndex {
    /// No cell: where the dynamic root lives, whose vnodes the client makes up.
    pub const DYNROOT: Self = Self(0);

    /// The bit that turns a cell's index into that of the directories of snapshots which the client makes up in the cell's directories. The table
    /// of cells has far fewer.
    const SNAPSHOTS: u32 = 1 << 31;

    /// True if volumes can be in it.
    #[must_use]
    pub const fn has_volumes(self) -> bool {
        self.0 != Self::DYNROOT.0 && self.0 & Self::SNAPSHOTS == 0
    }
}

/// A file, directory or symbolic link of a cell.
///
/// The fid of a mount point stands for the directory that is mounted there in everything that is asked of directories: so each
/// place at which a volume is mounted is a directory of its own, with one parent, as kernels want it.
/// `Client::target` of `afs-client` says what is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fid {
    /// The cell.
    pub cell: CellIndex,
    /// The volume.
    pub volume: VolumeId,
    /// The vnode's number.
    pub vnode: VnodeNumber,
    /// The use of the number.
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

    /// The id as servers of its cell call it.
    #[must_use]
    pub const fn in_cell(self) -> AfsFid {
        AfsFid { volume: self.volume, vnode: self.vnode, unique: self.unique }
    }

    /// The id as its volume's directories call it.
    #[must_use]
    pub const fn in_volume(self) -> LocalFid {
        LocalFid { vnode: self.vnode, unique: self.unique }
    }

    /// Another vnode of the same volume.
    #[must_use]
    pub const fn sibling(self, fid: LocalFid) -> Self {
        Self { vnode: fid.vnode, unique: fid.unique, ..self }
    }

    /// True if this is the root directory of its volume.
    #[must_use]
    pub const fn is_root(self) -> bool {
        self.vnode.0 == VnodeNumber::ROOT.0
    }

    /// True if the client makes it up: it is of the dynamic root, or a directory of snapshots.
    #[must_use]
    pub const fn is_made_up(self) -> bool {
        !self.cell.has_volumes()
    }

    /// The directory, made up by the client, that has this directory as it was in each snapshot of its volume.
    #[must_use]
    pub const fn snapshots(self) -> Self {
        Self { cell: CellIndex(self.cell.0 | CellIndex::SNAPSHOTS), ..self }
    }

    /// True if this is such a directory of snapshots.
    #[must_use]
    pub const fn is_snapshots(self) -> bool {
        self.cell.0 & CellIndex::SNAPSHOTS != 0
    }

    /// The directory that a directory of snapshots is in; any other vnode itself.
    #[must_use]
    pub const fn without_snapshots(self) -> Self {
        Self { cell: CellIndex(self.cell.0 & !CellIndex::SNAPSHOTS), ..self }
    }

    /// An entry of a directory, as its pages call it. Those of a directory of snapshots have the snapshot's volume in place of the uniquifier.
    #[must_use]
    pub const fn entry(self, fid: LocalFid) -> Self {
        match self.is_snapshots() {
            true => Self { volume: VolumeId(fid.unique.0), ..self.without_snapshots() },
            false => self.sibling(fid),
        }
    }

    /// The reverse, for the pages of a directory of snapshots.
    #[must_use]
    pub const fn entry_of_snapshot(self, snapshot: VolumeId) -> LocalFid {
        LocalFid { vnode: self.vnode, unique: Uniquifier(snapshot.0) }
    }
}

impl fmt::Display for Fid {
    /// `cell.volume.vnode.unique`, in decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.cell.0, self.in_cell())
    }
}

/// A PAG (process authentication group): a set of processes that share tokens, by the number of the supplementary group that they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pag(u32);

impl Pag {
    /// The first of the numbers, which are OpenAFS's: the letter A and 24 bits (docs/decisions/0007-pags.md).
    const FIRST: u32 = 0x4100_0000;
    const BITS: u32 = 0x00ff_ffff;

    /// That of a process whose groups cannot be told. No process has its group, so it never has a token.
    pub const UNKNOWN: Self = Self(0);

    /// The PAG of a group, if it is one.
    #[must_use]
    pub const fn of_group(group: u32) -> Option<Self> {
        if group & !Self::BITS == Self::FIRST { Some(Self(group)) } else { None }
    }

    /// The PAG that a random number chooses.
    #[must_use]
    pub const fn chosen_by(random: u32) -> Self {
        Self(Self::FIRST | random & Self::BITS)
    }

    /// The number of its group.
    #[must_use]
    pub const fn group(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Pag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The user who asks on this machine: a local user, as the kernel names the caller, in one of the user's PAGs or in none. Tokens say
/// who that is to a cell: see [`crate::users`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User {
    /// The number of the user.
    pub uid: u32,
    /// The PAG that the process is in. Then the tokens of the PAG count, and those of the user do not.
    pub pag: Option<Pag>,
}

impl User {
    /// The superuser of the machine, in no PAG. Without a token, cells see root as an anonymous user.
    pub const ROOT: Self = Self::of(0);

    /// A user in no PAG.
    #[must_use]
    pub const fn of(uid: u32) -> Self {
        Self { uid, pag: None }
    }

    /// True if it is the superuser of the machine, in whichever PAG.
    #[must_use]
    pub const fn is_superuser(self) -> bool {
        self.uid == 0
    }
}
