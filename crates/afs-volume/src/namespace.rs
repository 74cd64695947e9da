//! Names: what changes directories. Each is one operation on a volume, whole or not at all. Rights are checked by the
//! caller; that a name is allowed, a directory not full and the quota kept, here.

use crate::group::{self, Edit};
use crate::keys::Snapshot;
use crate::pages::{Directory, check_name};
use crate::records::{Layout, VnodeRecord};
use crate::vnode::MAX_LINKS;
use crate::{
    InDirectory, Kind, Removed, Renamed, SetStatus, Stamp, VnodeId, VnodeStatus, Volume, VolumeError,
};
use afs_wire::acl::Acl;
use afs_wire::ids::{DataVersion, ViceId};

/// Longest target of a symbolic link, in bytes (`AFSPATHMAX`).
const TARGET_MAX: usize = 1024;
/// Directories above each other at most: beyond this the way to the root is taken for a ring.
const DEPTH_MAX: usize = 100_000;

/// A directory that is being changed, and what it was.
struct Open<'a> {
    before: (Snapshot, u64),
    record: VnodeRecord,
    pages: Directory<'a>,
}

impl<'a> Open<'a> {
    fn new(edit: &Edit<'a>, id: VnodeId) -> Result<Self, VolumeError> {
        let (snapshot, record, pages) = edit.directory(id)?;
        Ok(Self { before: (snapshot, record.blocks_kib()), record, pages })
    }

    fn lookup(&mut self, name: &[u8]) -> Result<VnodeId, VolumeError> {
        self.pages.lookup(name)?.ok_or(VolumeError::NoEntry)
    }

    fn put(self, edit: &mut Edit<'a>) -> Result<VnodeStatus, VolumeError> {
        Ok(edit.put_directory(self.record, Some(self.before), self.pages)?.status)
    }
}

/// "." and ".." are names, but not ones to be made or taken away.
fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

fn more_links(record: &mut VnodeRecord) -> Result<(), VolumeError> {
    record.status.link_count += 1;
    if record.status.link_count > MAX_LINKS { Err(VolumeError::TooMany) } else { Ok(()) }
}

fn new_record(
    edit: &Edit<'_>,
    id: VnodeId,
    kind: Kind,
    parent: &VnodeRecord,
    set: &SetStatus,
) -> VnodeRecord {
    let stamp = edit.stamp;
    let is_directory = kind == Kind::Directory;
    let mut status = VnodeStatus {
        id,
        kind,
        link_count: if is_directory { 2 } else { 1 },
        length: 0,
        data_version: edit.first_version(),
        author: stamp.who,
        owner: stamp.who,
        group: parent.status.group,
        mode: 0o777,
        parent: parent.status.id,
        client_mod_time: stamp.now,
        server_mod_time: stamp.now,
    };
    status.apply(set);
    VnodeRecord {
        status,
        layout: if is_directory { Layout::Pages } else { Layout::Inline },
        acl: if is_directory { parent.acl.clone() } else { Acl::default() },
    }
}

impl Volume {
    /// Returns the vnode for which a name stands.
    ///
    /// # Errors
    ///
    /// No such directory, or entry.
    pub fn lookup(&self, directory: VnodeId, name: &[u8]) -> Result<VnodeId, VolumeError> {
        let _pages_fit_together = self.steady();
        self.read_directory(directory)?.lookup(name)?.ok_or(VolumeError::NoEntry)
    }

    /// The names of a directory with their vnodes, "." and ".." too, in no order that means anything.
    ///
    /// # Errors
    ///
    /// No such directory.
    pub fn entries(&self, directory: VnodeId) -> Result<Vec<(Vec<u8>, VnodeId)>, VolumeError> {
        let _pages_fit_together = self.steady();
        self.read_directory(directory)?.entries()
    }

    fn read_directory(&self, id: VnodeId) -> Result<Directory<'_>, VolumeError> {
        let record = self.read_vnode(id)?;
        if record.status.kind != Kind::Directory {
            return Err(VolumeError::NotDirectory(id.vnode));
        }
        group::directory(&self.shared.store, self.group.id, &record, self.view())
    }

    /// Makes an empty file. Mode 0777 unless `set` has one (File service notes 6.2); group of the directory.
    ///
    /// # Errors
    ///
    /// The name is taken or not allowed; no directory, or full; read-only; quota or disk full; the disk failed.
    pub fn create_file(
        &self,
        directory: VnodeId,
        name: &[u8],
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        self.make(directory, name, Kind::File, None, set, stamp)
    }

    /// Makes a directory with a copy of its parent's access list.
    ///
    /// # Errors
    ///
    /// As [`Volume::create_file`].
    pub fn make_dir(
        &self,
        parent: VnodeId,
        name: &[u8],
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        self.make(parent, name, Kind::Directory, None, set, stamp)
    }

    /// Makes a symbolic link, or a mount point.
    ///
    /// # Errors
    ///
    /// As [`Volume::create_file`]; a target longer than 1024 bytes is [`VolumeError::TooBig`].
    pub fn symlink(
        &self,
        directory: VnodeId,
        name: &[u8],
        target: &[u8],
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        if target.len() > TARGET_MAX {
            return Err(VolumeError::TooBig);
        }
        self.make(directory, name, Kind::Symlink, Some(target), set, stamp)
    }

    fn make(
        &self,
        directory: VnodeId,
        name: &[u8],
        kind: Kind,
        target: Option<&[u8]>,
        set: &SetStatus,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        check_name(name)?;
        let mut edit = Edit::begin(self, stamp)?;
        let mut open = Open::new(&edit, directory)?;
        if open.pages.lookup(name)?.is_some() {
            return Err(VolumeError::Exists);
        }
        let id = edit.new_id(kind)?;
        let mut record = new_record(&edit, id, kind, &open.record, set);
        open.pages.insert(name, id)?;
        if kind == Kind::Directory {
            more_links(&mut open.record)?;
            record = edit.put_directory(record, None, Directory::new(id, directory)?)?;
        } else {
            if let Some(target) = target {
                record.status.length = target.len() as u64;
                edit.put_inline(id.vnode, target.to_vec())?;
            }
            edit.put_vnode(&record, None);
        }
        let directory = open.put(&mut edit)?;
        edit.commit()?;
        Ok(InDirectory { vnode: record.status, directory })
    }

    /// Gives a file another name in its directory.
    ///
    /// # Errors
    ///
    /// The file is in another directory ([`VolumeError::CrossDirectory`]), or no file; as [`Volume::create_file`].
    pub fn link(
        &self,
        directory: VnodeId,
        name: &[u8],
        file: VnodeId,
        stamp: Stamp,
    ) -> Result<InDirectory, VolumeError> {
        check_name(name)?;
        let mut edit = Edit::begin(self, stamp)?;
        let mut open = Open::new(&edit, directory)?;
        let (snapshot, mut record) = edit.vnode(file)?;
        match record.status.kind {
            Kind::File => {}
            Kind::Directory => return Err(VolumeError::IsDirectory(file.vnode)),
            Kind::Symlink => return Err(VolumeError::WrongKind(file.vnode)),
        }
        if record.status.parent != directory {
            return Err(VolumeError::CrossDirectory(file.vnode));
        }
        if open.pages.lookup(name)?.is_some() {
            return Err(VolumeError::Exists);
        }
        more_links(&mut record)?;
        record.status.server_mod_time = stamp.now;
        let kib = record.blocks_kib();
        edit.put_vnode(&record, Some((snapshot, kib)));
        open.pages.insert(name, file)?;
        let directory = open.put(&mut edit)?;
        edit.commit()?;
        Ok(InDirectory { vnode: record.status, directory })
    }

    /// Takes away a name of a file or symbolic link, and what it is with its last name.
    ///
    /// # Errors
    ///
    /// No such name, or a directory's; read-only; the disk failed.
    pub fn remove_file(&self, directory: VnodeId, name: &[u8], stamp: Stamp) -> Result<Removed, VolumeError> {
        if is_dots(name) {
            return Err(VolumeError::BadName);
        }
        let mut edit = Edit::begin(self, stamp)?;
        let mut open = Open::new(&edit, directory)?;
        let id = open.lookup(name)?;
        let (snapshot, record) = edit.named(id)?;
        if record.status.kind == Kind::Directory {
            return Err(VolumeError::IsDirectory(id.vnode));
        }
        open.pages.remove(name)?;
        let left = unlink(&mut edit, snapshot, record)?;
        let directory = open.put(&mut edit)?;
        edit.commit()?;
        Ok(Removed { left, id, directory })
    }

    /// Takes away an empty directory.
    ///
    /// # Errors
    ///
    /// No such name, or no directory's; not empty; "." or ".."; read-only; the disk failed.
    pub fn remove_dir(&self, parent: VnodeId, name: &[u8], stamp: Stamp) -> Result<Removed, VolumeError> {
        if is_dots(name) {
            return Err(VolumeError::BadName);
        }
        let mut edit = Edit::begin(self, stamp)?;
        let mut open = Open::new(&edit, parent)?;
        let id = open.lookup(name)?;
        remove_empty(&mut edit, id)?;
        open.pages.remove(name)?;
        open.record.status.link_count = open.record.status.link_count.saturating_sub(1);
        let directory = open.put(&mut edit)?;
        edit.commit()?;
        Ok(Removed { left: None, id, directory })
    }

    /// Gives what has a name another name, in the same directory or another, in place of what has that name there.
    ///
    /// # Errors
    ///
    /// File service notes 6.2 have the cases: the target is of another kind ([`VolumeError::NotDirectory`],
    /// [`VolumeError::IsDirectory`]), a directory that is not empty, the same file; a directory below itself; a file
    /// with several names to another directory.
    pub fn rename(
        &self,
        old_directory: VnodeId,
        old_name: &[u8],
        new_directory: VnodeId,
        new_name: &[u8],
        stamp: Stamp,
    ) -> Result<Renamed, VolumeError> {
        if is_dots(old_name) || is_dots(new_name) {
            return Err(VolumeError::BadName);
        }
        check_name(new_name)?;
        let mut edit = Edit::begin(self, stamp)?;
        let mut from = Open::new(&edit, old_directory)?;
        let is_move = old_directory != new_directory;
        // In one directory there is one set of pages.
        let mut to = if is_move { Some(Open::new(&edit, new_directory)?) } else { None };
        let id = from.lookup(old_name)?;
        let target = to.as_mut().unwrap_or(&mut from).pages.lookup(new_name)?;
        if target == Some(id) {
            return Err(VolumeError::SameFile(id.vnode));
        }
        let (snapshot, mut record) = edit.named(id)?;
        let is_directory = record.status.kind == Kind::Directory;
        if is_move {
            if is_directory {
                check_not_below(&edit, id, new_directory)?;
            } else if record.status.link_count > 1 {
                return Err(VolumeError::CrossDirectory(id.vnode));
            }
        }
        let mut replaced = None;
        if let Some(target) = target {
            let (snapshot, old) = edit.named(target)?;
            let left = match (is_directory, old.status.kind == Kind::Directory) {
                (true, true) => {
                    // A directory that is replaced by one below itself is not empty.
                    remove_empty(&mut edit, target)?;
                    let parent = &mut to.as_mut().unwrap_or(&mut from).record.status;
                    parent.link_count = parent.link_count.saturating_sub(1);
                    None
                }
                (true, false) => return Err(VolumeError::NotDirectory(target.vnode)),
                (false, true) => return Err(VolumeError::IsDirectory(target.vnode)),
                (false, false) => unlink(&mut edit, snapshot, old)?,
            };
            replaced = Some((target, left));
            to.as_mut().unwrap_or(&mut from).pages.replace(new_name, id)?;
        } else {
            to.as_mut().unwrap_or(&mut from).pages.insert(new_name, id)?;
        }
        from.pages.remove(old_name)?;
        if let Some(to) = &mut to {
            record.status.parent = new_directory;
            let kib = record.blocks_kib();
            if is_directory {
                from.record.status.link_count = from.record.status.link_count.saturating_sub(1);
                more_links(&mut to.record)?;
                let (_, _, mut pages) = edit.directory(id)?;
                pages.replace(b"..", new_directory)?;
                record = edit.put_directory(record, Some((snapshot, kib)), pages)?;
            } else {
                record.status.server_mod_time = stamp.now;
                edit.put_vnode(&record, Some((snapshot, kib)));
            }
        }
        let old_directory = from.put(&mut edit)?;
        let new_directory = match to {
            Some(to) => to.put(&mut edit)?,
            None => old_directory,
        };
        edit.commit()?;
        Ok(Renamed { old_directory, new_directory, moved: record.status, replaced })
    }

    /// Makes the root directory of a new volume.
    pub(crate) fn make_root(&self, stamp: Stamp) -> Result<(), VolumeError> {
        let mut edit = Edit::begin_offline(self, stamp)?;
        let id = edit.new_id(Kind::Directory)?;
        assert_eq!(id, VnodeId::ROOT, "the group is new");
        // A root directory begins with 1, all others with 0.
        let data_version = edit.next_version(DataVersion(0))?;
        let status = VnodeStatus {
            id,
            kind: Kind::Directory,
            link_count: 2,
            length: 0,
            data_version,
            author: ViceId(0),
            owner: ViceId(0),
            group: ViceId(0),
            mode: 0o777,
            parent: id,
            client_mod_time: stamp.now,
            server_mod_time: stamp.now,
        };
        let root = VnodeRecord { status, layout: Layout::Pages, acl: Acl::administrators() };
        edit.put_directory(root, None, Directory::new(id, id)?)?;
        edit.is_making();
        edit.commit()
    }
}

/// Takes one name from a file; what is left of it.
fn unlink(
    edit: &mut Edit<'_>,
    snapshot: Snapshot,
    mut record: VnodeRecord,
) -> Result<Option<VnodeStatus>, VolumeError> {
    if record.status.link_count <= 1 {
        edit.remove_vnode(snapshot, &record)?;
        return Ok(None);
    }
    record.status.link_count -= 1;
    record.status.server_mod_time = edit.stamp.now;
    let kib = record.blocks_kib();
    edit.put_vnode(&record, Some((snapshot, kib)));
    Ok(Some(record.status))
}

fn remove_empty(edit: &mut Edit<'_>, id: VnodeId) -> Result<(), VolumeError> {
    edit.named(id)?;
    let (snapshot, record, mut pages) = edit.directory(id)?;
    if !pages.is_empty()? {
        return Err(VolumeError::NotEmpty(id.vnode));
    }
    edit.remove_vnode(snapshot, &record)
}

/// A directory cannot come below itself.
fn check_not_below(edit: &Edit<'_>, moved: VnodeId, new_parent: VnodeId) -> Result<(), VolumeError> {
    let mut at = new_parent;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(VolumeError::Loop(moved.vnode));
        }
        if at == VnodeId::ROOT {
            return Ok(());
        }
        at = edit.named(at)?.1.status.parent;
    }
    Err(VolumeError::damaged(format!("directory {}", new_parent.vnode), "is in a ring of directories"))
}
