//! A vnode's status as `stat` shows it, and how long the kernel may take it for true.
//!
//! The kernel's caches know no users. So a name may be kept only where everybody may see it, or where the mount serves
//! one user; otherwise the kernel asks each time, and the answer is for that caller (docs/client.md, "What the kernel
//! keeps"). Attributes need no such care: a user who has not found the name does not get at them.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afs_client::{CellIndex, Client, Kind, Status};
use afs_config::CellName;
use afs_wire::ids::{AfsTime, ViceId};
use afs_wire::rights::Rights;
use fuse_dev::Attributes;
use rx_proto::time::Instant;

/// The longest time for which the kernel takes something for true: promises are for hours, and end by notices.
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The size that reads and writes should be multiples of: large enough that `cp` moves data in few requests.
const BLOCK_SIZE: u32 = 128 << 10;

/// The user and group of what has none that the kernel knows: -1 is none there, and nobody may change or remove such a file.
const NOBODY: u32 = 65534;

/// A user of a cell who is shown as a user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The cell.
    pub cell: CellName,
    /// The user's number there.
    pub id: ViceId,
    /// The user's number here.
    pub uid: u32,
}

/// The users' numbers, here and in cells. Where nothing is said, the numbers are the same, as everywhere in AFS.
#[derive(Debug)]
pub(crate) struct Owners {
    owners: Vec<Owner>,
    /// Those of a cell by its place in the client's table, once it has been asked for.
    cells: RwLock<HashMap<CellIndex, Vec<(ViceId, u32)>>>,
}

impl Owners {
    pub(crate) fn new(owners: Vec<Owner>) -> Self {
        Self { owners, cells: RwLock::default() }
    }

    fn with<T>(&self, client: &Client, cell: CellIndex, ask: impl FnOnce(&[(ViceId, u32)]) -> T) -> T {
        if self.owners.is_empty() {
            return ask(&[]);
        }
        if let Some(known) = self.cells.read().unwrap_or_else(PoisonError::into_inner).get(&cell) {
            return ask(known);
        }
        let name = client.cell_name(cell);
        let of_cell = self.owners.iter().filter(|owner| Some(&owner.cell) == name.as_ref());
        let known: Vec<_> = of_cell.map(|owner| (owner.id, owner.uid)).collect();
        let result = ask(&known);
        self.cells.write().unwrap_or_else(PoisonError::into_inner).insert(cell, known);
        result
    }

    /// The number here of a user of a cell.
    pub(crate) fn uid(&self, client: &Client, cell: CellIndex, id: ViceId) -> u32 {
        let found =
            self.with(client, cell, |known| known.iter().find(|known| known.0 == id).map(|known| known.1));
        // Numbers below 0 are groups, which own nothing that a program could use.
        found.unwrap_or_else(|| number(id))
    }

    /// The number in a cell of a user here; `None` for one that cells cannot have.
    pub(crate) fn id(&self, client: &Client, cell: CellIndex, uid: u32) -> Option<ViceId> {
        let found =
            self.with(client, cell, |known| known.iter().find(|known| known.1 == uid).map(|known| known.0));
        found.or_else(|| i32::try_from(uid).ok().map(ViceId))
    }
}

/// The users that a mount serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// One user: others cannot get in.
    One,
    /// All users of the machine.
    All,
}

/// The attributes of a vnode for `stat`.
pub(crate) fn of_status(status: &Status, uid: u32, inode: u64) -> Attributes {
    let modified = time(status.modified);
    Attributes {
        inode,
        size: status.length,
        blocks: status.length.div_ceil(512),
        // AFS keeps no times of access.
        atime: modified,
        mtime: modified,
        ctime: time(status.changed).max(modified),
        kind: kind(status.kind),
        permissions: (status.mode & 0o7777) as u16,
        links: status.links,
        uid,
        gid: number(status.group),
        block_size: BLOCK_SIZE,
    }
}

/// The number that the kernel has for a user or group.
fn number(id: ViceId) -> u32 {
    if id == ViceId(-1) { NOBODY } else { id.0 as u32 }
}

/// Its kind, in the kernel's words.
pub(crate) fn kind(kind: Kind) -> fuse_dev::Kind {
    match kind {
        Kind::File => fuse_dev::Kind::File,
        Kind::Directory => fuse_dev::Kind::Directory,
        Kind::Symlink => fuse_dev::Kind::Symlink,
    }
}

fn time(time: AfsTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::from(time.0))
}

/// A time as AFS has it: whole seconds from 1970 to 2106.
pub(crate) fn afs_time(time: SystemTime) -> AfsTime {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    AfsTime(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// The time for which attributes may be kept.
pub(crate) fn attributes_ttl(now: Instant, status: &Status) -> Duration {
    status.valid_until.since(now).min(TTL_MAX)
}

/// The time for which a name in this directory may be kept.
pub(crate) fn name_ttl(now: Instant, serves: Serves, dir: &Status) -> Duration {
    match serves {
        Serves::All if !dir.anonymous_rights.contains(Rights::LOOKUP) => Duration::ZERO,
        Serves::All | Serves::One => attributes_ttl(now, dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_client::Fid;
    use afs_wire::ids::{DataVersion, VolumeId};

    fn status() -> Status {
        Status {
            fid: Fid::root_of(CellIndex(1), VolumeId(0x2000_0000)),
            kind: Kind::Directory,
            length: 2049,
            data_version: DataVersion(3),
            links: 2,
            mode: 0o40755,
            owner: ViceId(1),
            group: ViceId(-204),
            author: ViceId(1),
            modified: AfsTime(100),
            changed: AfsTime(90),
            rights: Rights::ALL,
            anonymous_rights: Rights::NONE,
            locks: 0,
            is_read_only: false,
            is_volume_root: true,
            valid_until: Instant::ORIGIN + Duration::from_secs(60),
        }
    }

    #[test]
    fn a_status_is_shown_with_its_times_and_numbers() {
        let a = of_status(&status(), 0, 7);
        assert_eq!((a.inode, a.size, a.blocks, a.permissions), (7, 2049, 5, 0o755));
        assert_eq!(a.ctime, a.mtime, "a change is not before the modification");
        // `rm`, `chmod` and `mv` of a file of owner -1 failed with EOVERFLOW.
        let nobodys = of_status(&Status { group: ViceId(-1), ..status() }, number(ViceId(-1)), 7);
        assert_eq!((a.gid, nobodys.uid, nobodys.gid), (4_294_967_092, NOBODY, NOBODY));
        assert_eq!(afs_time(a.mtime), AfsTime(100));
        assert_eq!(afs_time(UNIX_EPOCH - Duration::from_secs(1)), AfsTime(0));
        assert_eq!(afs_time(UNIX_EPOCH + Duration::from_secs(1 << 40)), AfsTime(u32::MAX));
    }

    #[test]
    fn names_that_not_all_may_see_are_asked_for_each_time() {
        let now = Instant::ORIGIN + Duration::from_secs(20);
        let (closed, open) = (status(), Status { anonymous_rights: Rights::LOOKUP, ..status() });
        let left = Duration::from_secs(40);
        assert_eq!(name_ttl(now, Serves::All, &closed), Duration::ZERO);
        assert_eq!(name_ttl(now, Serves::All, &open), left);
        assert_eq!(name_ttl(now, Serves::One, &closed), left);
        assert_eq!(attributes_ttl(now, &closed), left);
        assert_eq!(attributes_ttl(now + Duration::from_secs(100), &closed), Duration::ZERO);
        let forever = Status { valid_until: Instant::MAX, ..status() };
        assert_eq!(attributes_ttl(now, &forever), TTL_MAX);
    }
}
