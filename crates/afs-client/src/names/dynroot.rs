//! The dynamic root: a directory that the client makes up, with an entry for each cell that it knows, so that nobody needs a volume
//! `root.afs` that lists them (`-dynroot`; Client notes 2).
//!
//! For the cell `one.test` there are `one.test`, a mount point of its volume `root.cell`, and `.one.test`, the same for writing. An
//! alias is a symbolic link, and so is the alias with a dot.

use std::sync::Arc;

use afs_config::CellAlias;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, ViceId, VnodeNumber, VolumeId};
use afs_wire::rights::Rights;
use bytes::Bytes;
use rx_proto::time::Instant;

use crate::client::Inner;
use crate::error::Error;
use crate::events::Change;
use crate::fid::{CellIndex, Fid};
use crate::vnodes::status::{Kind, Status};
use crate::vnodes::table::Pages;

/// The directory itself.
pub(crate) const ROOT: Fid =
    Fid { cell: CellIndex::DYNROOT, volume: VolumeId(1), vnode: VnodeNumber::ROOT, unique: Uniquifier::ROOT };

/// What an entry is: vnode numbers are counted up by eight for each cell and alias, with the four of one next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// A cell's mount point; of the read-write volume, with a dot in front.
    Cell(CellIndex, bool),
    /// An alias by its place, with a dot or not.
    Alias(usize, bool),
}

impl Made {
    fn vnode(self) -> u32 {
        match self {
            Self::Cell(cell, has_dot) => 8 * cell.0 + 2 * u32::from(has_dot),
            Self::Alias(place, has_dot) => 8 * (place as u32 + 1) + 4 + 2 * u32::from(has_dot),
        }
    }

    fn of(vnode: u32) -> Option<Self> {
        let (number, kind) = (vnode / 8, vnode % 8);
        let place = || Some(usize::try_from(number).ok()?.saturating_sub(1));
        match kind {
            _ if number == 0 => None,
            0 | 2 => Some(Self::Cell(CellIndex(number), kind == 2)),
            4 | 6 => Some(Self::Alias(place()?, kind == 6)),
            _ => None,
        }
    }

    fn fid(self) -> LocalFid {
        LocalFid { vnode: VnodeNumber(self.vnode()), unique: Uniquifier::ROOT }
    }
}

/// What an entry of the dynamic root is.
pub(crate) fn kind_of(fid: Fid) -> Option<Kind> {
    if fid == ROOT {
        return Some(Kind::Directory);
    }
    match Made::of(fid.vnode.0)? {
        Made::Cell(..) => Some(Kind::Directory),
        Made::Alias(..) => Some(Kind::Symlink),
    }
}

impl Inner {
    fn alias(&self, place: usize) -> Option<CellAlias> {
        self.aliases.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(place).cloned()
    }

    /// The text of a mount point of the dynamic root; `None` for what is none.
    pub(crate) fn dynroot_mount(&self, fid: Fid) -> Option<String> {
        let Made::Cell(cell, has_dot) = Made::of(fid.vnode.0).filter(|_| fid != ROOT)? else { return None };
        let kind = if has_dot { '%' } else { '#' };
        Some(format!("{kind}{}:root.cell.", self.cells.get(cell)?.name))
    }

    /// The target of an alias.
    pub(crate) fn dynroot_link(&self, fid: Fid) -> Option<Bytes> {
        let Made::Alias(place, has_dot) = Made::of(fid.vnode.0).filter(|_| fid != ROOT)? else { return None };
        let dot = if has_dot { "." } else { "" };
        Some(format!("{dot}{}", self.alias(place)?.cell).into())
    }

    /// The pages of the dynamic root.
    pub(crate) fn dynroot_pages(&self) -> Pages {
        // First, so that what comes meanwhile is of the next.
        let version = self.made_up_version();
        let mut names = Vec::new();
        for cell in self.cells.all() {
            names.push((cell.name.to_string(), Made::Cell(cell.index, false)));
            names.push((format!(".{}", cell.name), Made::Cell(cell.index, true)));
        }
        let aliases = self.aliases.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        for (place, alias) in aliases.iter().enumerate() {
            names.push((alias.alias.clone(), Made::Alias(place, false)));
            names.push((format!(".{}", alias.alias), Made::Alias(place, true)));
        }
        let entries = names.iter().map(|(name, made)| (name.as_bytes(), made.fid()));
        let own = ROOT.in_volume();
        // There are fewer cells than a directory has room for; what is left out is found by its name nevertheless.
        let directory = Directory::build(own, own, entries).unwrap_or_else(|_| Directory::new(own, own));
        Pages { directory: Arc::new(directory), version }
    }

    /// What a name of the dynamic root names.
    pub(crate) fn dynroot_entry(&self, name: &[u8]) -> Result<Fid, Error> {
        let none = || Error::NoEntry { dir: ROOT, name: String::from_utf8_lossy(name).into_owned() };
        let text = std::str::from_utf8(name).map_err(|_| none())?;
        let (plain, has_dot) = text.strip_prefix('.').map_or((text, false), |rest| (rest, true));
        let made = match self.cells.named(plain) {
            Some(cell) => Made::Cell(cell.index, has_dot),
            None => {
                let aliases = self.aliases.read().unwrap_or_else(std::sync::PoisonError::into_inner);
                let place = aliases.iter().position(|alias| alias.alias == plain);
                Made::Alias(place.ok_or_else(none)?, has_dot)
            }
        };
        Ok(ROOT.sibling(made.fid()))
    }

    /// The status of what is in the dynamic root, and of it itself.
    pub(crate) fn dynroot_status(&self, fid: Fid) -> Result<Status, Error> {
        let directory = self.made_up_directory(fid);
        if fid == ROOT {
            // Who changes its names tells of it.
            return Ok(Status { is_volume_root: true, valid_until: Instant::MAX, ..directory });
        }
        let target = self.dynroot_link(fid).ok_or(Error::Gone { fid })?;
        Ok(Status { kind: Kind::Symlink, length: target.len() as u64, mode: 0o777, links: 1, ..directory })
    }

    /// The names of cells have changed: whoever looks one up from here on finds what it is now.
    pub(crate) async fn tell_of_cells(&self) {
        self.tell_and_wait(&self.changes(ROOT, Change::Names)).await;
    }

    /// Grows with the cells and their other names.
    fn made_up_version(&self) -> DataVersion {
        let aliases = self.aliases.read().unwrap_or_else(std::sync::PoisonError::into_inner).len();
        DataVersion((self.cells.all().len() + aliases) as u64)
    }

    /// A directory that everybody may list and nobody change, for as long as the cells stay.
    pub(crate) fn made_up_directory(&self, fid: Fid) -> Status {
        let rights = Rights::READ | Rights::LOOKUP;
        Status {
            fid,
            kind: Kind::Directory,
            length: afs_wire::directory::PAGE_SIZE as u64,
            data_version: self.made_up_version(),
            links: 2,
            mode: 0o755,
            owner: ViceId(0),
            group: ViceId(0),
            author: ViceId(0),
            modified: self.started,
            changed: AfsTime(0),
            rights,
            anonymous_rights: rights,
            locks: 0,
            is_read_only: true,
            is_volume_root: false,
            // Never by a kernel: a mount point becomes what is mounted as soon as somebody has been there.
            valid_until: self.now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_made_up_vnodes_come_back_to_what_they_are_of() {
        for made in [
            Made::Cell(CellIndex(1), false),
            Made::Cell(CellIndex(1), true),
            Made::Cell(CellIndex(200), true),
            Made::Alias(0, false),
            Made::Alias(0, true),
            Made::Alias(17, true),
        ] {
            assert_eq!(Made::of(made.vnode()), Some(made));
            assert!(!made.fid().vnode.is_directory(), "a mount point is a link's number");
        }
        for vnode in [0, 2, 4, 6, 9] {
            assert_eq!(Made::of(vnode), None, "{vnode}");
        }
    }
}
