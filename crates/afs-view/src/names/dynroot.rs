//! The dynamic root: a directory that the client makes up, with an entry for each cell that it knows, so that nobody needs a volume
//! `root.afs` that lists them (`-dynroot`; Client notes 2).
//!
//! For the cell `one.test` there are `one.test`, a mount point of its volume `root.cell`, and `.one.test`, the same for writing. An
//! alias is a symbolic link, and so is the alias with a dot.
//!
//! `.:mount` is a directory that is not listed, as OpenAFS's clients have it: each name `CELL:VOLUME` in it is a mount point of that
//! volume, and `CELL%VOLUME` one of the read-write volume. Nothing is kept of them: their fids say which volume they are of.
//!
//! Asks nobody and reads no clock; crossing its mount points is left to `mount_point`.

use std::sync::{Arc, PoisonError, RwLock};

use afs_config::{CellAlias, CellName};
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, ViceId, VnodeNumber, VolumeId};
use afs_wire::rights::Rights;
use bytes::Bytes;
use rx_proto::time::Instant;

use crate::names::snapshots;
use crate::vnodes::status::{Kind, Status};
use crate::vnodes::vnode::Pages;
use afs_reach::cells::Cells;
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid};

/// The directory itself.
pub const ROOT: Fid =
    Fid { cell: CellIndex::DYNROOT, volume: VolumeId(1), vnode: VnodeNumber::ROOT, unique: Uniquifier::ROOT };

/// The directory of mount points of all volumes, and its name.
pub(crate) const VOLUMES: Fid = Fid { volume: VolumeId(2), ..ROOT };
const VOLUMES_NAME: &[u8] = b".:mount";

/// The mount point of a volume in [`VOLUMES`].
pub(crate) fn mount_of(cell: CellIndex, volume: VolumeId, is_read_write: bool) -> Fid {
    let vnode = VnodeNumber(Made::Cell(cell, is_read_write).vnode());
    Fid { vnode, unique: Uniquifier(volume.0), ..VOLUMES }
}

/// The kind of an entry. Vnode numbers are counted up by eight for each cell and alias, with the four of one next to each other.
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

/// The kind of an entry of the dynamic root.
pub(crate) fn kind_of(fid: Fid) -> Option<Kind> {
    if fid == ROOT || fid.volume == VOLUMES.volume {
        return Some(Kind::Directory);
    }
    match Made::of(fid.vnode.0)? {
        Made::Cell(..) => Some(Kind::Directory),
        Made::Alias(..) => Some(Kind::Symlink),
    }
}

/// The dynamic root: which entries it has, and what each of them is.
#[derive(Debug)]
pub struct DynamicRoot {
    cells: Arc<Cells>,
    aliases: RwLock<Vec<CellAlias>>,
    /// The time when the client began: the time of all entries.
    started: AfsTime,
}

impl DynamicRoot {
    /// Makes it, with these aliases; `started` is its modification time.
    pub fn new(cells: Arc<Cells>, aliases: Vec<CellAlias>, started: AfsTime) -> Self {
        Self { cells, aliases: RwLock::new(aliases), started }
    }

    /// The other names of cells.
    pub fn aliases(&self) -> Vec<CellAlias> {
        self.aliases.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives a cell another name. A name that is an alias already becomes one of this cell.
    pub fn add_alias(&self, alias: String, cell: CellName) {
        let mut aliases = self.aliases.write().unwrap_or_else(PoisonError::into_inner);
        match aliases.iter_mut().find(|known| known.alias == alias) {
            Some(known) => known.cell = cell,
            None => aliases.push(CellAlias { cell, alias }),
        }
    }

    /// The text of a mount point of the dynamic root; `None` for what is none.
    pub(crate) fn mount_text(&self, fid: Fid) -> Option<String> {
        let Made::Cell(cell, has_dot) = Made::of(fid.vnode.0).filter(|_| fid != ROOT)? else { return None };
        let kind = if has_dot { '%' } else { '#' };
        let cell = &self.cells.get(cell)?.name;
        Some(match fid.volume == VOLUMES.volume {
            true => format!("{kind}{cell}:{}.", fid.unique.0),
            false => format!("{kind}{cell}:root.cell."),
        })
    }

    /// The target of an alias.
    pub(crate) fn link_target(&self, fid: Fid) -> Option<Bytes> {
        let made = Made::of(fid.vnode.0).filter(|_| fid != ROOT && fid.volume == ROOT.volume)?;
        let Made::Alias(place, has_dot) = made else { return None };
        let dot = if has_dot { "." } else { "" };
        let aliases = self.aliases.read().unwrap_or_else(PoisonError::into_inner);
        Some(format!("{dot}{}", aliases.get(place)?.cell).into())
    }

    /// The pages of one of its directories, as a directory of a server has them.
    pub(crate) fn pages_of(&self, dir: Fid) -> Option<Pages> {
        let own = dir.in_volume();
        match dir {
            ROOT => Some(self.pages()),
            VOLUMES => Some(Pages { directory: Arc::new(Directory::new(own, own)), version: DataVersion(1) }),
            _ => None,
        }
    }

    fn pages(&self) -> Pages {
        // First, so that what comes meanwhile is of the next.
        let version = self.data_version();
        let mut names = Vec::new();
        for cell in self.cells.all() {
            names.push((cell.name.to_string(), Made::Cell(cell.index, false)));
            names.push((format!(".{}", cell.name), Made::Cell(cell.index, true)));
        }
        for (place, alias) in self.aliases().iter().enumerate() {
            names.push((alias.alias.clone(), Made::Alias(place, false)));
            names.push((format!(".{}", alias.alias), Made::Alias(place, true)));
        }
        let entries = names.iter().map(|(name, made)| (name.as_bytes(), made.fid()));
        let own = ROOT.in_volume();
        // There are fewer cells than a directory has room for; what is left out is found by its name nevertheless.
        let directory = Directory::build(own, own, entries).unwrap_or_else(|_| Directory::new(own, own));
        Pages { directory: Arc::new(directory), version }
    }

    /// The fid that a name in it names.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`].
    pub(crate) fn entry(&self, name: &[u8]) -> Result<Fid, Error> {
        if name == VOLUMES_NAME {
            return Ok(VOLUMES);
        }
        let none = || Error::NoEntry { dir: ROOT, name: String::from_utf8_lossy(name).into_owned() };
        let text = std::str::from_utf8(name).map_err(|_| none())?;
        let (plain, has_dot) = text.strip_prefix('.').map_or((text, false), |rest| (rest, true));
        let made = match self.cells.named(plain) {
            Some(cell) => Made::Cell(cell.index, has_dot),
            None => {
                let aliases = self.aliases.read().unwrap_or_else(PoisonError::into_inner);
                let place = aliases.iter().position(|alias| alias.alias == plain);
                Made::Alias(place.ok_or_else(none)?, has_dot)
            }
        };
        Ok(ROOT.sibling(made.fid()))
    }

    /// The status of one of its entries, or its own, or that of a directory of snapshots.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for what is no entry.
    pub(crate) fn status(&self, now: Instant, fid: Fid) -> Result<Status, Error> {
        let directory = self.directory_status(now, fid);
        if fid == ROOT {
            // Who changes its names tells of it.
            return Ok(Status { is_volume_root: true, valid_until: Instant::MAX, ..directory });
        }
        if fid.is_snapshots() {
            return Ok(Status { data_version: snapshots::STATUS, ..directory });
        }
        if fid == VOLUMES {
            return Ok(Status { data_version: DataVersion(1), ..directory });
        }
        let target = self.link_target(fid).ok_or(Error::Gone { fid })?;
        Ok(Status { kind: Kind::Symlink, length: target.len() as u64, mode: 0o777, links: 1, ..directory })
    }

    /// The status of a directory that everybody may list and nobody change, for as long as the cells stay.
    pub(crate) fn directory_status(&self, now: Instant, fid: Fid) -> Status {
        let rights = Rights::READ | Rights::LOOKUP;
        Status {
            fid,
            kind: Kind::Directory,
            length: afs_wire::directory::PAGE_SIZE as u64,
            data_version: self.data_version(),
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
            valid_until: now,
        }
    }

    /// Grows with the cells and their other names.
    fn data_version(&self) -> DataVersion {
        let aliases = self.aliases.read().unwrap_or_else(PoisonError::into_inner).len();
        DataVersion((self.cells.all().len() + aliases) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_config::CellServDb;
    use afs_reach::table::Servers;

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
    const NOW: Instant = Instant::from_nanos(7_000_000_000);

    fn dynamic_root(names: &[&str]) -> DynamicRoot {
        let servers = Servers::default();
        let cells = Cells::new(&CellServDb::default(), 7003, &servers);
        for name in names {
            cells.set(&CellName::new(name).unwrap(), None, &[], &servers).unwrap();
        }
        DynamicRoot::new(Arc::new(cells), Vec::new(), AfsTime(77))
    }

    fn names(root: &DynamicRoot) -> Vec<String> {
        let directory = root.pages().directory;
        let mut names: Vec<_> = directory
            .entries()
            .filter(|entry| !entry.is_dot())
            .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn each_cell_and_alias_has_two_entries_and_they_are_found_by_name() {
        let root = dynamic_root(&["one.test", "two.test"]);
        root.add_alias("one".to_owned(), CellName::new("one.test").unwrap());
        assert_eq!(names(&root), [".one", ".one.test", ".two.test", "one", "one.test", "two.test"]);
        let text = |name: &[u8]| root.mount_text(root.entry(name).unwrap());
        assert_eq!(text(b"two.test").as_deref(), Some("#two.test:root.cell."));
        assert_eq!(text(b".two.test").as_deref(), Some("%two.test:root.cell."));
        assert_eq!(text(b"one"), None, "an alias is a link");
        let target = |name: &[u8]| root.link_target(root.entry(name).unwrap());
        assert_eq!(target(b"one").as_deref(), Some(&b"one.test"[..]));
        assert_eq!(target(b".one").as_deref(), Some(&b".one.test"[..]));
        assert!(matches!(root.entry(b"three.test"), Err(Error::NoEntry { .. })));
    }

    #[test]
    fn a_name_that_is_an_alias_becomes_one_of_the_other_cell() {
        let root = dynamic_root(&["one.test", "two.test"]);
        let version = root.pages().version;
        root.add_alias("home".to_owned(), CellName::new("one.test").unwrap());
        assert!(root.pages().version > version, "its names have changed");
        root.add_alias("home".to_owned(), CellName::new("two.test").unwrap());
        assert_eq!(root.aliases().len(), 1);
        let link = root.entry(b"home").unwrap();
        let status = root.status(NOW, link).unwrap();
        assert_eq!((status.kind, status.length, status.valid_until), (Kind::Symlink, 8, NOW));
    }

    #[test]
    fn mount_points_of_all_volumes_are_in_a_directory_that_is_not_listed() {
        let root = dynamic_root(&["one.test"]);
        assert_eq!(root.entry(b".:mount").unwrap(), VOLUMES);
        assert_eq!(names(&root), [".one.test", "one.test"]);
        let status = root.status(NOW, VOLUMES).unwrap();
        assert_eq!(
            (status.kind, status.valid_until),
            (Kind::Directory, NOW),
            "what is not there may be made"
        );
        let cell = root.cells.named("one.test").unwrap().index;
        for (is_read_write, text) in [(false, "#one.test:536870915."), (true, "%one.test:536870915.")] {
            let mount = mount_of(cell, VolumeId(536_870_915), is_read_write);
            assert_eq!(root.mount_text(mount).as_deref(), Some(text));
            assert_eq!((kind_of(mount), root.link_target(mount)), (Some(Kind::Directory), None));
        }
    }

    #[test]
    fn the_root_stays_and_what_is_no_entry_is_gone() {
        let root = dynamic_root(&["one.test"]);
        let status = root.status(NOW, ROOT).unwrap();
        assert_eq!(
            (status.kind, status.valid_until, status.modified),
            (Kind::Directory, Instant::MAX, AfsTime(77))
        );
        let no_entry = Fid { vnode: VnodeNumber(4000), ..ROOT };
        assert!(matches!(root.status(NOW, no_entry), Err(Error::Gone { .. })));
    }
}
