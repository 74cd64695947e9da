//! A change of a volume: what it reads, what it puts and takes, and the one batch that it ends in. Numbers that it gives out are never
//! given out twice. What a view shows of the rows is left to the parent.

use super::{GroupState, directory, held, part};
use crate::keys::{self, FileId, GroupId, Part, Replaced, Snapshot, VnodeKey};
use crate::pages::Directory;
use crate::records::{self, ChunkRecord, Counters, GroupRecord, VnodeRecord};
use crate::shared::Shared;
use crate::{Kind, Stamp, VnodeId, Volume, VolumeError};
use afs_store::{Batch, Seq, lock};
use afs_wire::ids::{DataVersion, Uniquifier, VnodeNumber};
use std::sync::MutexGuard;

/// Uniquifiers, and data versions, of a group that are reserved at once. After a power loss this many are skipped;
/// each block costs a sync of the log.
const BLOCK: u64 = 4096;

/// A change of a volume, from the lock to the batch. Dropped without [`Edit::commit`], nothing has happened.
pub(crate) struct Edit<'a> {
    pub(crate) volume: &'a Volume,
    shared: &'a Shared,
    state: MutexGuard<'a, GroupState>,
    record: GroupRecord,
    counters: Counters,
    before_kib: u64,
    /// Vnodes that it makes, removes, or changes the data of: what a volume's counter of updates counts (Volume service notes 4).
    changed: u32,
    batch: Batch,
    garbage: Vec<(FileId, String)>,
    pub(crate) stamp: Stamp,
}

impl<'a> Edit<'a> {
    /// Begins to change a volume, which has to be online: what is frozen or cloned while it is busy has all that was ever acknowledged.
    pub(crate) fn begin(volume: &'a Volume, stamp: Stamp) -> Result<Self, VolumeError> {
        let edit = Self::begin_offline(volume, stamp)?;
        volume.check_online()?;
        Ok(edit)
    }

    /// The same for a volume that is being made.
    pub(crate) fn begin_offline(volume: &'a Volume, stamp: Stamp) -> Result<Self, VolumeError> {
        if !volume.is_writable() {
            return Err(VolumeError::ReadOnly(volume.id));
        }
        let shared = &*volume.shared;
        let state = lock(&volume.group.state);
        volume.check_whole()?;
        let record = state.record;
        let counters = *lock(&volume.counters);
        let before_kib = counters.used_kib;
        let (batch, garbage) = Default::default();
        Ok(Self { volume, shared, state, record, counters, before_kib, changed: 0, batch, garbage, stamp })
    }

    /// The snapshot to which writes go now.
    pub(crate) fn current(&self) -> Snapshot {
        self.record.current
    }

    fn group(&self) -> GroupId {
        self.volume.group.id
    }

    fn reserve(&mut self, which: usize, number: u64) -> Result<(), VolumeError> {
        if number < self.state.reserved[which] {
            return Ok(());
        }
        let mut reserved = self.state.reserved;
        reserved[which] = number + BLOCK;
        if reserved[1 - which] == 0 {
            // A new group needs both at once, for its root directory.
            reserved[1 - which] = BLOCK;
        }
        let mut batch = Batch::default();
        batch.put(keys::group_reservation(self.group()), records::encode_reservation(reserved));
        self.shared.store.submit(batch)?;
        self.shared.store.sync_log()?;
        self.state.reserved = reserved;
        Ok(())
    }

    /// A vnode that must be there, with the snapshot of its row.
    pub(crate) fn vnode(&self, id: VnodeId) -> Result<(Snapshot, VnodeRecord), VolumeError> {
        let group = &self.volume.group;
        group
            .vnode(&self.shared.store, id.vnode, Snapshot::NEWEST)?
            .filter(|(_, record)| record.status.id == id)
            .ok_or(VolumeError::NoVnode(id.vnode))
    }

    /// A vnode that a directory names, and that must be there.
    pub(crate) fn named(&self, id: VnodeId) -> Result<(Snapshot, VnodeRecord), VolumeError> {
        self.vnode(id).map_err(|error| match error {
            VolumeError::NoVnode(vnode) => VolumeError::damaged(
                format!("volume {}", self.volume.id),
                format!("an entry names vnode {vnode}, which is not there"),
            ),
            other => other,
        })
    }

    /// A directory that must be there, with its pages.
    pub(crate) fn directory(
        &self,
        id: VnodeId,
    ) -> Result<(Snapshot, VnodeRecord, Directory<'a>), VolumeError> {
        let (snapshot, record) = self.vnode(id)?;
        if record.status.kind != Kind::Directory {
            return Err(VolumeError::NotDirectory(id.vnode));
        }
        let volume = self.volume;
        let pages = directory(&volume.shared.store, self.group(), &record, Snapshot::NEWEST)?;
        Ok((snapshot, record, pages))
    }

    /// The version that a new vnode begins with: no client has it, and its first store has the next.
    pub(crate) fn first_version(&self) -> DataVersion {
        DataVersion(self.record.version_floor)
    }

    /// The next version of a vnode's data.
    pub(crate) fn next_version(&mut self, version: DataVersion) -> Result<DataVersion, VolumeError> {
        let next = version.0.max(self.record.version_floor) + 1;
        self.reserve(1, next)?;
        Ok(DataVersion(next))
    }

    /// A number that no vnode has, for a kind.
    pub(crate) fn new_id(&mut self, kind: Kind) -> Result<VnodeId, VolumeError> {
        self.reserve(0, self.record.next_unique)?;
        let unique = u32::try_from(self.record.next_unique).map_err(|_| VolumeError::TooMany)?;
        let next = if kind == Kind::Directory {
            &mut self.record.next_directory
        } else {
            &mut self.record.next_file
        };
        let vnode = VnodeNumber(*next);
        *next = next.checked_add(2).ok_or(VolumeError::TooMany)?;
        self.record.next_unique += 1;
        self.counters.files += 1;
        Ok(VnodeId { vnode, unique: Uniquifier(unique) })
    }

    /// Writes a part, in place of the version before.
    fn put(&mut self, vnode: VnodeNumber, part: Part, value: Vec<u8>, previous: Option<Snapshot>) {
        let key = VnodeKey { group: self.group(), vnode, part, snapshot: self.current() };
        self.batch.put(key.key(), value);
        self.forget(vnode, part, previous.filter(|&p| p < self.current()));
    }

    /// Takes away the older row of a part, or notes that it has been replaced, if a clone shows it.
    fn forget(&mut self, vnode: VnodeNumber, part: Part, previous: Option<Snapshot>) {
        let Some(snapshot) = previous else { return };
        let version = VnodeKey { group: self.group(), vnode, part, snapshot };
        match self.state.is_shown(snapshot) {
            true => self.replace(version),
            false => self.batch.delete(version.key()),
        }
    }

    fn replace(&mut self, version: VnodeKey) {
        self.batch.put(Replaced { at: self.current(), version }.key(), Vec::new());
    }

    /// Takes away a part as the newest view shows it.
    fn take(&mut self, vnode: VnodeNumber, part_: Part, previous: Snapshot) -> Result<(), VolumeError> {
        let stays = previous < self.current() && self.state.is_shown(previous);
        let is_oldest = match previous.0.checked_sub(1) {
            Some(older) => part(&self.shared.store, self.group(), vnode, part_, Snapshot(older))?.is_none(),
            None => true,
        };
        if stays || !is_oldest {
            // What is below is not to appear again.
            self.put(vnode, part_, Vec::new(), Some(previous));
        } else {
            self.batch.delete(VnodeKey { group: self.group(), vnode, part: part_, snapshot: previous }.key());
        }
        Ok(())
    }

    /// Writes a vnode's row. `before` is the row that it had, with its snapshot; `None` for a new vnode.
    pub(crate) fn put_vnode(&mut self, record: &VnodeRecord, before: Option<(Snapshot, u64)>) {
        self.changed += u32::from(before.is_none());
        self.counters.used_kib += record.blocks_kib();
        self.counters.used_kib -= before.map_or(0, |(_, kib)| kib.min(self.counters.used_kib));
        self.put(record.status.id.vnode, Part::Status, record.encode(), before.map(|(snapshot, _)| snapshot));
    }

    /// Writes the changed pages of a directory; its status gets the new length, version and dates.
    pub(crate) fn put_directory(
        &mut self,
        mut record: VnodeRecord,
        before: Option<(Snapshot, u64)>,
        pages: Directory<'_>,
    ) -> Result<VnodeRecord, VolumeError> {
        record.status.length = pages.length();
        if before.is_some() {
            self.touch(&mut record)?;
        }
        let number = record.status.id.vnode;
        for (n, page) in pages.into_changed() {
            let previous = match before {
                Some(_) => part(&self.shared.store, self.group(), number, Part::Page(n), Snapshot::NEWEST)?
                    .map(|(s, _)| s),
                None => None,
            };
            self.put(number, Part::Page(n), page, previous);
        }
        self.put_vnode(&record, before);
        Ok(record)
    }

    /// A change of a vnode's data: version, author, times.
    pub(crate) fn touch(&mut self, record: &mut VnodeRecord) -> Result<(), VolumeError> {
        record.status.data_version = self.next_version(record.status.data_version)?;
        record.status.author = self.stamp.who;
        record.status.server_mod_time = self.stamp.now;
        record.status.client_mod_time = self.stamp.now;
        Ok(())
    }

    /// Data in a row.
    pub(crate) fn put_inline(&mut self, vnode: VnodeNumber, data: Vec<u8>) -> Result<(), VolumeError> {
        let previous =
            part(&self.shared.store, self.group(), vnode, Part::Inline, Snapshot::NEWEST)?.map(|(s, _)| s);
        self.put(vnode, Part::Inline, data, previous);
        Ok(())
    }

    /// Takes away data that are in a row.
    pub(crate) fn take_inline(&mut self, vnode: VnodeNumber) -> Result<(), VolumeError> {
        if let Some((previous, _)) =
            part(&self.shared.store, self.group(), vnode, Part::Inline, Snapshot::NEWEST)?
        {
            self.take(vnode, Part::Inline, previous)?;
        }
        Ok(())
    }

    /// A chunk in a file, in place of the one before.
    pub(crate) fn put_chunk(
        &mut self,
        vnode: VnodeNumber,
        n: u32,
        chunk: ChunkRecord,
        before: Option<(Snapshot, Option<ChunkRecord>)>,
    ) {
        self.discard_chunk(vnode, n, before.filter(|(_, old)| old.is_some_and(|old| old.file != chunk.file)));
        self.put(vnode, Part::Chunk(n), chunk.encode(), before.map(|(snapshot, _)| snapshot));
        let key = VnodeKey { group: self.group(), vnode, part: Part::Chunk(n), snapshot: self.current() };
        self.batch.files.push(records::file_name(chunk.file, &key, n));
    }

    /// Makes a hole of a chunk.
    pub(crate) fn take_chunk(
        &mut self,
        vnode: VnodeNumber,
        n: u32,
        before: (Snapshot, Option<ChunkRecord>),
    ) -> Result<(), VolumeError> {
        self.discard_chunk(vnode, n, Some(before));
        self.take(vnode, Part::Chunk(n), before.0)
    }

    /// The file of a row that goes, goes; of one that a clone shows, stays.
    fn discard_chunk(&mut self, vnode: VnodeNumber, n: u32, before: Option<(Snapshot, Option<ChunkRecord>)>) {
        let Some((snapshot, Some(old))) = before else { return };
        if snapshot == self.current() || !self.state.is_shown(snapshot) {
            let key = VnodeKey { group: self.group(), vnode, part: Part::Chunk(n), snapshot };
            Shared::discard(&mut self.batch, old.file, &key, n);
            self.garbage.push((old.file, records::file_name(old.file, &key, n)));
        }
    }

    /// Removes a vnode with all that it has.
    pub(crate) fn remove_vnode(
        &mut self,
        snapshot: Snapshot,
        record: &VnodeRecord,
    ) -> Result<(), VolumeError> {
        let number = record.status.id.vnode;
        self.changed += 1;
        self.counters.files = self.counters.files.saturating_sub(1);
        self.counters.used_kib = self.counters.used_kib.saturating_sub(record.blocks_kib());
        let volume = self.volume;
        let mut part_before = None;
        volume.shared.store.scan::<VolumeError>(&keys::vnode_prefix(self.group(), number), |key, row| {
            let Some(key) = VnodeKey::parse(key) else { return Ok(()) };
            let is_newest = part_before.replace(key.part) != Some(key.part);
            // Rows that a clone shows stay; others below them wait for the sweep. No one asks for them, as the vnode's
            // number is not given out again.
            let goes = key.snapshot == self.current() || !self.state.is_shown(key.snapshot);
            if key.part != Part::Status && goes {
                if let Part::Chunk(n) = key.part {
                    self.discard_chunk(number, n, Some((key.snapshot, ChunkRecord::decode(row)?)));
                }
                self.batch.delete(key.key());
            } else if key.part != Part::Status && is_newest {
                self.replace(key);
            }
            Ok(())
        })?;
        self.take(number, Part::Status, snapshot)
    }

    /// Writes the volume's row.
    pub(crate) fn put_header(&mut self, record: &records::VolumeRecord) {
        self.batch.put(keys::volume(self.volume.id), record.encode());
    }

    /// Notes that a file's data change. Names in directories, and what is told of a file, are not counted.
    pub(crate) fn has_new_data(&mut self) {
        self.changed += 1;
    }

    /// Notes that what was done so far makes the volume, and is no change of it.
    pub(crate) fn is_making(&mut self) {
        self.changed = 0;
    }

    /// The growth since the beginning, in KiB.
    pub(crate) fn growth_kib(&self) -> u64 {
        self.counters.used_kib.saturating_sub(self.before_kib)
    }

    /// Checks quota and space, and does it all; returns when it will stay.
    pub(crate) fn commit(self) -> Result<(), VolumeError> {
        let shared = self.shared;
        // The lock is free again while the disk is waited for.
        let seq = self.submit()?;
        shared.settle(seq)
    }

    /// Checks quota and space, and lets everybody see it; it stays when [`Shared::settle`] has returned.
    pub(crate) fn submit(mut self) -> Result<Seq, VolumeError> {
        let growth = self.growth_kib();
        if growth > 0 {
            self.volume.check_quota(self.counters.used_kib)?;
            // Holes need no room, and the bytes of large files are on the disk already, or were announced to `begin_store`: what
            // is yet to come is in rows.
            self.shared.check_space(growth.min(crate::records::INLINE_MAX / 1024))?;
        }
        self.counters.updates = self.counters.updates.wrapping_add(self.changed);
        self.counters.update_date = self.stamp.now.0;
        if self.record != self.state.record {
            self.batch.put(keys::group(self.group()), self.record.encode());
        }
        self.batch.put(keys::counters(self.volume.id), self.counters.encode());
        let replaced = held::noted(&self.shared.store, &self.batch);
        let seq = self.shared.store.submit(self.batch)?;
        replaced.iter().for_each(|(note, bytes)| self.state.hold(note, *bytes));
        self.state.record = self.record;
        *lock(&self.volume.counters) = self.counters;
        self.shared.note_garbage(seq, self.garbage);
        Ok(seq)
    }
}
