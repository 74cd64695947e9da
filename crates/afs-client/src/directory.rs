//! Directories as the client keeps them: the pages that the server sent, with what changed here since.

use std::sync::Arc;

use afs_wire::directory::{Directory, Slot};

use crate::fid::Fid;
use crate::status::Kind;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its name: no NUL, no slash.
    pub name: &'a [u8],
    /// What it names: of a mount point, its own fid.
    pub fid: Fid,
    /// What that is, as far as the directory tells: directories, or `None` for what is a file, a link or a mount point.
    pub kind: Option<Kind>,
    /// Where to go on reading after it.
    pub next: u64,
}

/// The names in a directory as they were at one moment.
#[derive(Debug, Clone)]
pub struct Listing {
    pub(crate) dir: Fid,
    /// The directory that it is in; its own for the root of the client.
    pub(crate) parent: Fid,
    pub(crate) pages: Arc<Directory>,
}

impl Listing {
    /// The directory. Of one that was asked for by its mount point, the mount point.
    pub fn dir(&self) -> Fid {
        self.dir
    }

    /// Its entries from a position on, `.` and `..` among them. 0 is the beginning, other positions are an entry's `next`,
    /// good for later listings of the directory too: names that stay are met exactly once.
    pub fn entries_from(&self, position: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let slot = u16::try_from(position).map_or(Slot(u16::MAX), Slot);
        self.pages.entries_from(slot).map(|entry| {
            let fid = match entry.name {
                b"." => self.dir,
                b".." => self.parent,
                _ => self.dir.sibling(entry.fid),
            };
            let kind = entry.fid.vnode.is_directory().then_some(Kind::Directory);
            DirEntry { name: entry.name, fid, kind, next: u64::from(entry.next().0) }
        })
    }
}
