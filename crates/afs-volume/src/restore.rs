//! Fills a volume from a dump. While that goes on, the volume shows the snapshot that it had, and what comes is written into the next one,
//! which nobody shows; the last row makes it the volume's. A restore that is given up, or whose process ends, is rolled back: what was
//! written is removed, and the volume is as it was (Volume format 10). Of a volume that was made to be filled, what came is kept, for a
//! restore that goes on with it (see `half`).
//!
//! What a stream says and whether it may be true is its reader's matter. Here is checked what the volume needs: that directories can be
//! read, that everything is in a directory that is there, and that there is a root.

use crate::group::{self};
use crate::keys::{self, FileId, GroupId, Key, Part, Snapshot, VnodeKey};
use crate::pages::{Directory, PAGE};
use crate::records::{self, Counters, GroupRecord, Layout, VnodeRecord, VolumeRecord};
use crate::records::{CHUNK, INLINE_MAX, MESSAGE_MAX};
use crate::shared::Shared;
use crate::vnode_set::VnodeSet;
use crate::{Kind, NAME_MAX, Partition, VnodeId, VnodeStatus, Volume, VolumeError, VolumeInfo, VolumeKind};
use afs_store::{Batch, lock};
use afs_wire::acl::Acl;
use afs_wire::ids::{VnodeNumber, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::disk::DiskFile;

mod undo;
mod written;

pub(crate) use undo::remove_newer;
use undo::{remove_rows, roll_back};

/// Bytes of rows that are written at once. As many are in memory, and a data file is named soon after it was written.
const BATCH_BYTES: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// Vnodes looked at together.
const AT_ONCE: usize = 256;
/// Chunks that are named by rows at once: what came of a large file is kept when the process ends, but for so much.
const CHUNKS_AT_ONCE: usize = 64;
/// Data versions reserved at once; each block costs a sync of the log.
const BLOCK: u64 = 4096;
/// Highest vnode number, so that there is always a next one.
const VNODE_MAX: u32 = i32::MAX as u32;

/// A restore that is going on. Dropped without [`Restore::commit`], it is rolled back, or what came is kept if nobody has seen the volume yet.
#[derive(Debug)]
pub struct Restore {
    partition: Partition,
    shared: Arc<Shared>,
    /// Shows what the volume had.
    volume: Arc<Volume>,
    /// Into which snapshot all is written.
    target: Snapshot,
    batch: Batch,
    batch_bytes: usize,
    /// Files that the batch names.
    files: Vec<FileId>,
    named: VnodeSet,
    counters: Counters,
    next_file: u32,
    next_directory: u32,
    next_unique: u64,
    open: Option<Open>,
    /// True if there are directories in the batch, which are not found yet.
    has_directories: bool,
    /// The directory that was looked for last.
    parent: Option<VnodeId>,
    /// The vnodes that an earlier restore has brought, if this one goes on with them.
    pub(crate) arrived: Option<VnodeSet>,
    pub(crate) partial: Option<Partial>,
    /// True if what came is kept if this one does not end.
    keeps: bool,
    is_done: bool,
}

/// A vnode whose first chunks an earlier restore has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partial {
    pub(crate) record: VnodeRecord,
    pub(crate) chunks: u32,
}

/// A vnode whose data come.
#[derive(Debug)]
struct Open {
    record: VnodeRecord,
    received: u64,
    /// Short data, a directory's pages, or what is to go into the chunk.
    bytes: Vec<u8>,
    chunk: Option<OpenChunk>,
    /// Chunks whose rows are in the batch, or in one before.
    chunks: u32,
}

#[derive(Debug)]
struct OpenChunk {
    file: FileId,
    name: String,
    disk: Arc<dyn DiskFile>,
    length: u32,
}

impl Partition {
    /// Begins to fill a volume from a dump. The volume stays as it was until [`Restore::commit`], and cannot be changed meanwhile; ask for
    /// it again.
    ///
    /// # Errors
    ///
    /// It is not here; it is a clone of a volume that is here too, or being restored already ([`VolumeError::ReadOnly`]); the disk failed.
    pub fn begin_restore(&self, id: VolumeId) -> Result<Restore, VolumeError> {
        let one_at_a_time = self.changing();
        let shared = self.shared();
        let mut old = self.without_half(id)?;
        if !old.is_writable() && !old.is_restoring && old.header().info.kind == VolumeKind::ReadOnly {
            // A replica that stayed when its read-write volume moved away.
            old = self.own_group(&old).map_err(|error| match error {
                VolumeError::VolumeExists(_) => VolumeError::ReadOnly(id),
                error => error,
            })?;
        }
        if !old.is_writable() {
            return Err(VolumeError::ReadOnly(id));
        }
        let mut state = lock(&old.group.state);
        old.check_whole()?;
        let counters = *lock(&old.counters);
        let snapshot = state.record.current;
        let mut group = state.record;
        group.current = snapshot.next()?;
        group.needs_sweep = true;
        let record = VolumeRecord { snapshot: Some(snapshot), is_restoring: true, ..old.record() };
        let mut batch = Batch::default();
        batch.put(keys::group(old.group.id), group.encode());
        batch.put(keys::volume(id), record.encode());
        let seq = shared.store.submit(batch)?;
        state.record = group;
        // It counts as the one that can be changed, so that nothing of what comes is swept.
        state.add_view(snapshot);
        state.filling += 1;
        // What it hides is not noted as replaced.
        state.wants_full_sweep = true;
        old.set_gone();
        drop(state);
        let volume = Arc::new(Volume::new(id, shared.clone(), old.group.clone(), record, counters));
        volume.set_state(old.state());
        volume.is_filled.store(old.is_filled.load(Ordering::Acquire), Ordering::Release);
        self.put_volume(volume.clone());
        let restore = Restore::new(self, volume, group, counters);
        // A restore that is dropped takes the lock itself.
        drop(one_at_a_time);
        shared.settle(seq)?;
        Ok(restore)
    }

    /// Forgets what a restore that did not end has brought, so that the volume can be used as it was. Does nothing if there is none.
    ///
    /// # Errors
    ///
    /// It is not here; the disk failed.
    pub fn forget_half(&self, id: VolumeId) -> Result<(), VolumeError> {
        if !self.volume(id)?.is_half() {
            return Ok(());
        }
        let _one_at_a_time = self.changing();
        self.without_half(id).map(drop)
    }

    /// The volume, as it was before a restore that did not end. Expects that nobody else makes volumes.
    pub(crate) fn without_half(&self, id: VolumeId) -> Result<Arc<Volume>, VolumeError> {
        let volume = self.volume(id)?;
        if !volume.is_half() {
            return Ok(volume);
        }
        roll_back(self, &volume)?;
        self.volume(id)
    }

    /// Rolls back what the last run has left. Expects that nobody else makes volumes.
    pub(crate) fn roll_back_restores(&self) -> Result<(), VolumeError> {
        for volume in self.volumes() {
            // What was to be destroyed is put aside with what came, and a replica keeps what came of its next release.
            let info = volume.header().info;
            if volume.is_restoring && !info.destroy_me && !may_rest_in_place(&info) {
                roll_back(self, &volume)?;
            }
        }
        Ok(())
    }
}

impl Restore {
    /// Into the newest snapshot of the group of a volume that shows an older one.
    pub(crate) fn new(
        partition: &Partition,
        volume: Arc<Volume>,
        group: GroupRecord,
        counters: Counters,
    ) -> Self {
        let keeps = match volume.record().info {
            // What comes into a volume that has contents would be beside an older status of the same vnode.
            VolumeInfo { destroy_me: true, .. } => {
                counters.is_empty() && !volume.is_filled.load(Ordering::Acquire)
            }
            info => may_rest_in_place(&info),
        };
        Self {
            partition: partition.clone(),
            shared: volume.shared.clone(),
            volume,
            target: group.current,
            batch: Batch::default(),
            batch_bytes: 0,
            files: Vec::new(),
            named: VnodeSet::default(),
            counters,
            next_file: group.next_file,
            next_directory: group.next_directory,
            next_unique: group.next_unique,
            open: None,
            has_directories: false,
            parent: None,
            arrived: None,
            partial: None,
            keeps,
            is_done: false,
        }
    }

    /// Ends it, and keeps nothing: what came was wrong, or does not fit on the disk.
    pub fn give_up(mut self) {
        self.keeps = false;
    }

    /// The volume, as it was.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn damaged(&self, id: VnodeId, why: impl Into<String>) -> VolumeError {
        let what = format!("vnode {}.{} of the dump for volume {}", id.vnode, id.unique, self.volume.id);
        VolumeError::damaged(what, why)
    }

    /// A vnode that has not changed: it stays, if it is there.
    ///
    /// # Errors
    ///
    /// As of [`Restore::vnode`], for the one before.
    pub fn unchanged(&mut self, vnode: VnodeNumber) -> Result<(), VolumeError> {
        self.end_vnode()?;
        self.named.insert(vnode);
        if self.arrived.is_none() { Ok(()) } else { self.keep_arrived(vnode) }
    }

    /// A vnode that an earlier restore has brought stays, in the directory that is there now.
    fn keep_arrived(&mut self, vnode: VnodeNumber) -> Result<(), VolumeError> {
        let group = self.volume.group.id;
        if !self.has_arrived(vnode) && self.volume.view() != Snapshot::NOTHING {
            // It has not changed since what the volume shows.
            return Ok(());
        }
        let found = group::vnode(&self.shared.store, group, vnode, Snapshot::NEWEST)?;
        let Some((_, mut record)) = found.filter(|_| self.has_arrived(vnode)) else {
            let what = format!("vnode {vnode} of the dump for volume {}", self.volume.id);
            return Err(VolumeError::damaged(what, "has not come before"));
        };
        let before = group::vnode(&self.shared.store, group, vnode, self.volume.view())?;
        self.count(before.map(|(_, before)| before).as_ref(), &record);
        self.note_numbers(&record.status);
        if record.status.kind != Kind::Directory {
            let parent = self.directory_of(&record.status)?;
            if parent != record.status.parent {
                record.status.parent = parent;
                self.put(vnode, Part::Status, record.encode())?;
            }
        }
        Ok(())
    }

    fn has_arrived(&self, vnode: VnodeNumber) -> bool {
        self.arrived.as_ref().is_some_and(|arrived| arrived.contains(vnode))
    }

    /// Numbers that are in use are not given out again.
    fn note_numbers(&mut self, status: &VnodeStatus) {
        let id = status.id;
        let next = if id.vnode.is_directory() { &mut self.next_directory } else { &mut self.next_file };
        *next = (*next).max(id.vnode.0 + 2);
        self.next_unique = self.next_unique.max(u64::from(id.unique.0) + 1);
    }

    /// Removes rows of a vnode that came before, with the files that they name. What the volume shows stays.
    pub(crate) fn forget(
        &mut self,
        vnode: VnodeNumber,
        stays: impl Fn(Part) -> bool,
    ) -> Result<(), VolumeError> {
        let shown = self.volume.view();
        let prefix = keys::vnode_prefix(self.volume.group.id, vnode);
        remove_rows(&self.shared, &prefix, |key| key.snapshot > shown && !stays(key.part))
    }

    /// A vnode as it is to be, in place of what the volume shows.
    fn count(&mut self, before: Option<&VnodeRecord>, record: &VnodeRecord) {
        match before {
            Some(before) => {
                self.counters.used_kib = self.counters.used_kib.saturating_sub(before.blocks_kib());
            }
            None => self.counters.files += 1,
        }
        self.counters.used_kib += record.blocks_kib();
    }

    /// Begins a vnode whose first bytes an earlier restore has brought, as many as [`crate::Arrived::partial`] said; the others are to
    /// follow.
    ///
    /// # Errors
    ///
    /// As of [`Restore::vnode`]; it is another one, or so much has not come.
    pub fn rest_of_vnode(&mut self, status: VnodeStatus, bytes: u64) -> Result<(), VolumeError> {
        let partial = self.partial.take().filter(|partial| {
            let before = &partial.record.status;
            (before.id, before.length, before.data_version) == (status.id, status.length, status.data_version)
                && u64::from(partial.chunks) * CHUNK == bytes
        });
        let Some(Partial { chunks, .. }) = partial else {
            return Err(self.damaged(status.id, "has not come so far before"));
        };
        self.forget(status.id.vnode, |part| matches!(part, Part::Chunk(n) if n < chunks))?;
        self.begin_vnode(status, Acl::default())?;
        if let Some(open) = &mut self.open {
            (open.received, open.chunks) = (bytes, chunks);
        }
        Ok(())
    }

    /// A vnode, in place of the one of its number. So many bytes as its status says are to follow. Of its parent the number counts alone.
    ///
    /// # Errors
    ///
    /// The one before cannot be read, or is in no directory; a number or length that cannot be; disk full; the disk failed.
    pub fn vnode(&mut self, status: VnodeStatus, acl: Acl) -> Result<(), VolumeError> {
        let is_partial = |partial: &mut Partial| partial.record.status.id.vnode == status.id.vnode;
        if self.partial.take_if(is_partial).is_some() || self.has_arrived(status.id.vnode) {
            self.end_vnode()?;
            self.forget(status.id.vnode, |_| false)?;
        }
        self.begin_vnode(status, acl)
    }

    fn begin_vnode(&mut self, mut status: VnodeStatus, acl: Acl) -> Result<(), VolumeError> {
        self.end_vnode()?;
        let id = status.id;
        if id.vnode.0 == 0 || id.vnode.0 > VNODE_MAX || id.unique.0 == u32::MAX {
            return Err(VolumeError::TooMany);
        }
        if status.length > crate::MAX_FILE_BYTES {
            return Err(VolumeError::TooBig);
        }
        if id.vnode == VnodeNumber::ROOT && id != VnodeId::ROOT {
            return Err(self.damaged(id, "is no root directory"));
        }
        let (layout, acl) = match status.kind {
            Kind::Directory => (Layout::Pages, acl),
            Kind::File if status.length > INLINE_MAX => (Layout::Chunks, Acl::default()),
            Kind::File | Kind::Symlink => (Layout::Inline, Acl::default()),
        };
        if id == VnodeId::ROOT {
            status.parent = id;
        } else if status.kind != Kind::Directory {
            status.parent = self.directory_of(&status)?;
        }
        self.named.insert(id.vnode);
        self.note_numbers(&status);
        self.reserve(status.data_version.0)?;
        let record = VnodeRecord { status, layout, acl };
        self.open = Some(Open { record, received: 0, bytes: Vec::new(), chunk: None, chunks: 0 });
        Ok(())
    }

    /// Numbers that may have been given out are on the disk before.
    fn reserve(&mut self, version: u64) -> Result<(), VolumeError> {
        let mut state = lock(&self.volume.group.state);
        if version < state.reserved[1] {
            return Ok(());
        }
        let reserved = [state.reserved[0].max(BLOCK), version + BLOCK];
        let mut batch = Batch::default();
        batch.put(keys::group_reservation(self.volume.group.id), records::encode_reservation(reserved));
        self.shared.store.submit(batch)?;
        self.shared.store.sync_log()?;
        state.reserved = reserved;
        Ok(())
    }

    /// The directory that something is in, with its uniquifier.
    fn directory_of(&mut self, status: &VnodeStatus) -> Result<VnodeId, VolumeError> {
        let number = status.parent.vnode;
        if let Some(parent) = self.parent.filter(|parent| parent.vnode == number) {
            return Ok(parent);
        }
        if self.has_directories {
            self.flush()?;
        }
        let found = group::vnode(&self.shared.store, self.volume.group.id, number, Snapshot::NEWEST)?;
        let found = found.map(|(_, record)| record.status).filter(|found| found.kind == Kind::Directory);
        // One that the dump does not name goes. Directories come first in every dump.
        let found = found.filter(|_| self.named.contains(number));
        let Some(found) = found else {
            return Err(self.damaged(status.id, format!("is in directory {number}, which is not there")));
        };
        self.parent = Some(found.id);
        Ok(found.id)
    }

    /// Ends a vnode: all its data have come.
    fn end_vnode(&mut self) -> Result<(), VolumeError> {
        self.end_chunk()?;
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let id = open.record.status.id;
        if open.received != open.record.status.length {
            return Err(self.damaged(id, "has less data than its length"));
        }
        let before = self.hide_old_parts(&open)?;
        match open.record.layout {
            Layout::Chunks => {}
            Layout::Inline if open.bytes.is_empty() => {}
            Layout::Inline => self.put(id.vnode, Part::Inline, std::mem::take(&mut open.bytes))?,
            Layout::Pages => {
                open.record.status.parent = self.check_directory(&open)?;
                for (n, page) in open.bytes.chunks(PAGE).enumerate() {
                    self.put(id.vnode, Part::Page(n as u32), page.to_vec())?;
                }
            }
        }
        self.count(before.as_ref(), &open.record);
        self.has_directories |= open.record.layout == Layout::Pages;
        self.put(id.vnode, Part::Status, open.record.encode())
    }

    /// Parts that rows of older snapshots have, and this vnode has not, are not to be seen in it. Says what the volume showed before.
    fn hide_old_parts(&mut self, open: &Open) -> Result<Option<VnodeRecord>, VolumeError> {
        let (group, vnode) = (self.volume.group.id, open.record.status.id.vnode);
        let prefix = keys::vnode_prefix(group, vnode);
        let pages = open.record.status.length / PAGE as u64;
        let is_written = |part: Part| match (open.record.layout, part) {
            (_, Part::Status) => true,
            (Layout::Inline, Part::Inline) => open.received > 0,
            (Layout::Pages, Part::Page(n)) => u64::from(n) < pages,
            (Layout::Chunks, Part::Chunk(n)) => n < open.chunks,
            _ => false,
        };
        let mut from = Some(Key(prefix.clone()));
        let mut last = None;
        while let Some(start) = from {
            let (rows, next) = self.shared.store.page(&start, &prefix)?;
            for (row_key, row) in rows {
                let Some(VnodeKey { part, .. }) = VnodeKey::parse(&row_key) else { continue };
                // The first row of a part is its newest.
                if last.replace(part) == Some(part) || row.is_empty() || is_written(part) {
                    continue;
                }
                self.put(vnode, part, Vec::new())?;
            }
            from = next;
        }
        Ok(group::vnode(&self.shared.store, group, vnode, self.volume.view())?.map(|(_, record)| record))
    }

    /// A directory can be read; says which one it is in.
    fn check_directory(&mut self, open: &Open) -> Result<VnodeId, VolumeError> {
        let VnodeStatus { id, length, parent, .. } = open.record.status;
        let load = |n: u32| Ok(open.bytes[n as usize * PAGE..][..PAGE].to_vec());
        let mut directory = Directory::open(id.vnode, length, load)?;
        let strange = directory.entries()?.into_iter().find(|(name, _)| name.contains(&b'/'));
        let found = (directory.lookup(b".")?, directory.lookup(b"..")?);
        if let Some((name, _)) = strange {
            let name = String::from_utf8_lossy(&name).into_owned();
            return Err(self.damaged(
                id,
                format!("is a directory with the name {name:?}, by which nobody can reach a file"),
            ));
        }
        let expected = if id == VnodeId::ROOT { id.vnode } else { parent.vnode };
        match found {
            (Some(this), Some(parent)) if this == id && parent.vnode == expected => Ok(parent),
            _ => Err(self.damaged(id, "is a directory whose '.' or '..' is wrong")),
        }
    }

    /// Makes what came the volume's contents, with this header, whose counter of updates is as [`Volume::header`] tells it. Vnodes that were
    /// not named go.
    ///
    /// # Errors
    ///
    /// There is no root directory, or a vnode cannot be read; disk full; the disk failed. Then the volume is as it was.
    pub fn commit(mut self, mut info: VolumeInfo, next_unique: u32) -> Result<Arc<Volume>, VolumeError> {
        if info.name.is_empty()
            || info.name.len() > NAME_MAX
            || info.offline_message.len() > MESSAGE_MAX
            || info.motd.len() > MESSAGE_MAX
        {
            return Err(VolumeError::BadName);
        }
        // Kept is what is to be added.
        info.update_counter = info.update_counter.wrapping_sub(self.counters.updates);
        self.end_vnode()?;
        // In this order: what came of a vnode goes, and then it is hidden that the volume has shown it.
        self.remove_unnamed_arrivals()?;
        self.remove_unnamed()?;
        self.flush()?;
        let group = self.volume.group.id;
        let root = group::vnode(&self.shared.store, group, VnodeNumber::ROOT, Snapshot::NEWEST)?;
        if root.is_none_or(|(_, root)| root.status.id != VnodeId::ROOT) {
            return Err(self.damaged(VnodeId::ROOT, "is not there: a dump begins with the root directory"));
        }
        let partition = self.partition.clone();
        let _one_at_a_time = partition.changing();
        self.volume.check_whole()?;
        let mut state = lock(&self.volume.group.state);
        let mut record = state.record;
        record.next_file = record.next_file.max(self.next_file);
        record.next_directory = record.next_directory.max(self.next_directory);
        record.next_unique = record.next_unique.max(self.next_unique).max(next_unique.into());
        record.needs_sweep = true;
        let counters = Counters { update_date: 0, ..self.counters };
        let volume = VolumeRecord { group, snapshot: None, is_restoring: false, info };
        let mut batch = Batch::default();
        batch.put(keys::group(group), record.encode());
        batch.put(keys::volume(self.volume.id), volume.encode());
        batch.put(keys::counters(self.volume.id), counters.encode());
        batch.delete(keys::partial(group));
        let seq = self.shared.store.submit(batch)?;
        self.is_done = true;
        state.record = record;
        self.volume.leave_snapshot(&mut state);
        drop(state);
        let handle = self.volume.group.clone();
        let new = Arc::new(Volume::new(self.volume.id, self.shared.clone(), handle, volume, counters));
        new.set_state(self.volume.state());
        new.is_filled.store(new.record().info.destroy_me, Ordering::Release);
        partition.put_volume(new.clone());
        self.shared.settle(seq)?;
        Ok(new)
    }

    /// Removes vnodes that an earlier restore has brought, and that this one has not named.
    fn remove_unnamed_arrivals(&mut self) -> Result<(), VolumeError> {
        let Some(arrived) = self.arrived.take() else { return Ok(()) };
        for vnode in arrived.iter().filter(|vnode| !self.named.contains(*vnode)).collect::<Vec<_>>() {
            self.forget(vnode, |_| false)?;
        }
        match self.partial.take() {
            Some(partial) => self.forget(partial.record.status.id.vnode, |_| false),
            None => Ok(()),
        }
    }

    fn remove_unnamed(&mut self) -> Result<(), VolumeError> {
        let mut from = VnodeNumber(0);
        loop {
            let found = self.volume.vnode_records(from, AT_ONCE)?;
            let Some(last) = found.last() else { return Ok(()) };
            from = VnodeNumber(last.status.id.vnode.0 + 1);
            for record in found {
                let vnode = record.status.id.vnode;
                if !self.named.contains(vnode) {
                    self.counters.files = self.counters.files.saturating_sub(1);
                    self.counters.used_kib = self.counters.used_kib.saturating_sub(record.blocks_kib());
                    self.put(vnode, Part::Status, Vec::new())?;
                }
            }
        }
    }
}

/// True if what came of a restore that breaks off may stay where it is, unseen: nobody changes the volume meanwhile, so that it can be gone
/// on with. Whether something does stay, also once the volume is out of service, is for [`Volume::rests_in_place`] to say.
pub(crate) fn may_rest_in_place(info: &VolumeInfo) -> bool {
    info.kind == VolumeKind::ReadOnly && info.in_service && !info.destroy_me
}

fn key(group: GroupId, vnode: VnodeNumber, part: Part, snapshot: Snapshot) -> VnodeKey {
    VnodeKey { group, vnode, part, snapshot }
}
