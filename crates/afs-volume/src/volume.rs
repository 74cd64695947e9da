//! A volume: its header and state, and what can be asked and set of its vnodes. Names are in `namespace`, bytes of
//! files in `data`.

use crate::group::{self, Edit, GroupHandle};
use crate::keys::{self, Key, Part, Snapshot, VnodeKey};
use crate::records::MESSAGE_MAX;
use crate::records::{Counters, GroupRecord, VnodeRecord, VolumeRecord};
use crate::shared::Shared;
use crate::{
    Kind, NAME_MAX, SetStatus, SnapshotKind, Stamp, VnodeId, VnodeStatus, VolumeError, VolumeHeader,
    VolumeInfo, VolumeKind, VolumeState,
};
use afs_store::{Batch, lock};
use afs_wire::acl::{Acl, ENTRIES_MAX};
use afs_wire::ids::{AfsTime, SecurityLevel, VnodeNumber, VolumeId};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Seconds of a day, by which uses are counted.
const DAY: u32 = 86_400;

/// A volume of a partition. All methods may be called by many threads; each is done at once or not at all, in some
/// order for the whole volume. Those that change something return when it cannot be lost with the process.
///
/// A volume's [`VolumeState`] binds its servers, not these methods: volume operations work on volumes that are
/// offline. What serves clients asks [`Volume::check_online`] first. Ask the partition for the volume in each
/// request: one that was deleted, cloned anew or opened again is another one, and this one answers
/// [`VolumeError::NoVolume`] or the error of the disk.
#[derive(Debug)]
pub struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: Arc<GroupHandle>,
    /// The snapshot that it shows, if it is a clone.
    pub(crate) snapshot: Option<Snapshot>,
    /// True if that is because it is being filled from a dump.
    pub(crate) is_restoring: bool,
    /// True if it has what came of a restore that did not end, which may be gone on with.
    pub(crate) rests: AtomicBool,
    /// The time since which, by the clock of the caller that first asked; 0 if nobody has. Is not on the disk.
    pub(crate) rests_since: AtomicU32,
    /// True if a restore has filled it, and nobody has been shown it since. Is not on the disk.
    pub(crate) is_filled: AtomicBool,
    pub(crate) counters: Mutex<Counters>,
    info: Mutex<VolumeInfo>,
    /// True if `info` has uses that its row does not.
    has_unwritten_uses: AtomicBool,
    state: Mutex<VolumeState>,
    is_gone: AtomicBool,
}

impl Volume {
    pub(crate) fn new(
        id: VolumeId,
        shared: Arc<Shared>,
        group: Arc<GroupHandle>,
        record: VolumeRecord,
        counters: Counters,
    ) -> Self {
        let state = if record.info.in_service {
            VolumeState::Online
        } else {
            VolumeState::Offline("it is out of service".into())
        };
        Self {
            id,
            shared,
            group,
            snapshot: record.snapshot,
            is_restoring: record.is_restoring,
            rests: AtomicBool::new(false),
            rests_since: AtomicU32::new(0),
            is_filled: AtomicBool::new(false),
            counters: Mutex::new(counters),
            info: Mutex::new(record.info),
            has_unwritten_uses: AtomicBool::new(false),
            state: Mutex::new(state),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// True if vnodes of it can be changed: it is no clone.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.snapshot.is_none()
    }

    /// The versions of vnodes that it shows.
    pub(crate) fn view(&self) -> Snapshot {
        self.snapshot.unwrap_or(Snapshot::NEWEST)
    }

    pub(crate) fn record(&self) -> VolumeRecord {
        VolumeRecord {
            group: self.group.id,
            snapshot: self.snapshot,
            is_restoring: self.is_restoring,
            info: lock(&self.info).clone(),
        }
    }

    /// Its header now.
    #[must_use]
    pub fn header(&self) -> VolumeHeader {
        // Taken first, so that no more than one lock is held.
        let GroupRecord { next_unique, current, .. } = lock(&self.group.state).record;
        let counters = *lock(&self.counters);
        let mut info = lock(&self.info).clone();
        info.update_counter = info.update_counter.wrapping_add(counters.updates);
        info.update_date = info.update_date.max(AfsTime(counters.update_date));
        VolumeHeader {
            id: self.id,
            info,
            used_kib: counters.used_kib,
            vnode_count: counters.files,
            file_count: if current == Snapshot::FIRST {
                counters.files.saturating_sub(1)
            } else {
                counters.files
            },
            next_unique: u32::try_from(next_unique).unwrap_or(u32::MAX),
        }
    }

    /// Its name now.
    #[must_use]
    pub fn name(&self) -> String {
        lock(&self.info).name.clone()
    }

    /// The volume that it is a snapshot of ([`Partition::make_snapshot`](crate::Partition::make_snapshot)), if it is one.
    #[must_use]
    pub fn snapshot_of(&self) -> Option<VolumeId> {
        self.snapshot?;
        let info = lock(&self.info);
        matches!(info.kind, VolumeKind::Snapshot { .. }).then_some(info.parent)
    }

    /// True if it is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.snapshot_kind().is_some()
    }

    /// The kind of snapshot, if it is one.
    #[must_use]
    pub fn snapshot_kind(&self) -> Option<SnapshotKind> {
        self.snapshot?;
        match lock(&self.info).kind {
            VolumeKind::Snapshot(kind) => Some(kind),
            VolumeKind::ReadWrite | VolumeKind::ReadOnly | VolumeKind::Backup => None,
        }
    }

    /// The least level with which its contents are served.
    #[must_use]
    pub fn level(&self) -> SecurityLevel {
        lock(&self.info).level
    }

    /// Checks that its contents may be told over a connection of this level. The least level of a whole server is checked when a connection
    /// begins, so a call has the higher one of the two.
    ///
    /// # Errors
    ///
    /// [`VolumeError::LevelTooLow`].
    pub fn check_level(&self, level: SecurityLevel) -> Result<(), VolumeError> {
        let least = self.level();
        if level < least { Err(VolumeError::LevelTooLow { volume: self.id, least }) } else { Ok(()) }
    }

    /// Its creation date for `AFSVolSync` in every reply. Another one in a volume that can be changed tells clients that what they know of
    /// its vnodes may not be so any more: so it changes with each power loss (File service notes 3).
    #[must_use]
    pub fn sync_date(&self) -> AfsTime {
        let created = lock(&self.info).creation_date;
        if self.is_writable() { AfsTime(created.0.wrapping_add(self.shared.epoch())) } else { created }
    }

    /// Changes its header. A new state follows for a volume that is online or out of service: `in_service` makes it
    /// the one or the other.
    ///
    /// # Errors
    ///
    /// A name or message is too long ([`VolumeError::BadName`]); the volume is gone; the disk failed.
    pub fn change_info(&self, change: impl FnOnce(&mut VolumeInfo)) -> Result<(), VolumeError> {
        let _one_at_a_time = lock(&self.group.state);
        self.check_whole()?;
        let counters = *lock(&self.counters);
        let mut record = self.record();
        // Shown are the sums; what is set is kept as what is to be added.
        let shown = record.info.update_counter.wrapping_add(counters.updates);
        record.info.update_counter = shown;
        let before = record.info.in_service;
        change(&mut record.info);
        record.info.update_counter = record.info.update_counter.wrapping_sub(counters.updates);
        let info = &record.info;
        if info.name.is_empty()
            || info.name.len() > NAME_MAX
            || info.offline_message.len() > MESSAGE_MAX
            || info.motd.len() > MESSAGE_MAX
        {
            return Err(VolumeError::BadName);
        }
        let mut batch = Batch::default();
        batch.put(keys::volume(self.id), record.encode());
        let seq = self.shared.store.submit(batch)?;
        if before != record.info.in_service {
            let offline = VolumeState::Offline("it is out of service".into());
            *lock(&self.state) = if before { offline } else { VolumeState::Online };
        }
        if !record.info.destroy_me {
            self.is_filled.store(false, Ordering::Release);
        }
        *lock(&self.info) = record.info;
        self.shared.settle(seq)
    }

    /// Notes that a client used it, for `day_use` and the access date. Written to disk some time later.
    pub fn note_use(&self, now: AfsTime) {
        let mut info = lock(&self.info);
        let midnight = now.0 - now.0 % DAY;
        if info.day_use_date.0 != midnight {
            let days = (midnight.saturating_sub(info.day_use_date.0) / DAY).clamp(1, 7) as usize;
            let uses = info.day_use;
            info.week_use.rotate_right(days);
            info.week_use[..days].fill(0);
            info.week_use[days - 1] = uses;
            info.day_use = 0;
            info.day_use_date = AfsTime(midnight);
        }
        info.day_use = info.day_use.saturating_add(1);
        info.access_date = now;
        drop(info);
        self.has_unwritten_uses.store(true, Ordering::Relaxed);
    }

    /// Writes down what [`Volume::note_use`] noted.
    pub(crate) fn write_uses(&self) -> Result<(), VolumeError> {
        if self.has_unwritten_uses.swap(false, Ordering::Relaxed) && !self.is_gone.load(Ordering::Acquire) {
            let _one_at_a_time = lock(&self.group.state);
            if !self.is_gone.load(Ordering::Acquire) {
                let mut batch = Batch::default();
                batch.put(keys::volume(self.id), self.record().encode());
                self.shared.store.submit(batch)?;
            }
        }
        Ok(())
    }

    /// The state: whether clients are served from it.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match self.shared.store.failure() {
            Some(error) => VolumeState::Offline(error.to_string()),
            None => lock(&self.state).clone(),
        }
    }

    /// Sets that. While the disk is failed it is offline all the same.
    pub fn set_state(&self, state: VolumeState) {
        *lock(&self.state) = state;
    }

    /// Checks that clients may be served from it now.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Busy`], [`VolumeError::Moved`] or [`VolumeError::Offline`]; [`VolumeError::NoVolume`] if it was deleted.
    pub fn check_online(&self) -> Result<(), VolumeError> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(VolumeError::NoVolume(self.id));
        }
        match self.state() {
            VolumeState::Online => Ok(()),
            VolumeState::Busy => Err(VolumeError::Busy(self.id)),
            VolumeState::Moved => Err(VolumeError::Moved(self.id)),
            VolumeState::Offline(reason) => Err(VolumeError::Offline { volume: self.id, reason }),
        }
    }

    /// Checks that it can be changed at all.
    pub(crate) fn check_whole(&self) -> Result<(), VolumeError> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(VolumeError::NoVolume(self.id));
        }
        self.shared.store.failure().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Marks it as gone from now on. Under the group's lock.
    pub(crate) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Checks that so many KiB are allowed.
    pub(crate) fn check_quota(&self, used_kib: u64) -> Result<(), VolumeError> {
        let quota = u64::from(lock(&self.info).max_quota_kib);
        if quota != 0 && used_kib > quota { Err(VolumeError::OverQuota(self.id)) } else { Ok(()) }
    }

    /// Keeps what is read in several rows together, where it could change.
    pub(crate) fn steady(&self) -> Option<MutexGuard<'_, group::GroupState>> {
        self.is_writable().then(|| lock(&self.group.state))
    }

    pub(crate) fn read_vnode(&self, id: VnodeId) -> Result<VnodeRecord, VolumeError> {
        self.check_whole()?;
        let found = self.group.vnode(&self.shared.store, id.vnode, self.view())?;
        // Whoever is told of a version keeps what he has of it, so it must not be one that the process can take with it.
        self.shared.store.written(self.shared.store.last())?;
        match found {
            Some((_, record)) if record.status.id == id => Ok(record),
            _ => Err(VolumeError::NoVnode(id.vnode)),
        }
    }

    /// The status of a vnode.
    ///
    /// # Errors
    ///
    /// There is none; the disk failed.
    pub fn status(&self, id: VnodeId) -> Result<VnodeStatus, VolumeError> {
        Ok(self.read_vnode(id)?.status)
    }

    /// The status of a vnode, and the access list that governs it: a directory's own, else that of its directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::status`].
    pub fn status_and_acl(&self, id: VnodeId) -> Result<(VnodeStatus, Acl), VolumeError> {
        // A file may be moved between one look and the other: then look again.
        loop {
            let record = self.read_vnode(id)?;
            if record.status.kind == Kind::Directory {
                return Ok((record.status, record.acl));
            }
            match self.read_vnode(record.status.parent) {
                Ok(parent) => return Ok((record.status, parent.acl)),
                Err(VolumeError::NoVnode(parent)) => {
                    let _nothing_moves = self.steady();
                    if self.read_vnode(id)?.status.parent == record.status.parent {
                        let why = format!("its directory {parent} is not there");
                        return Err(VolumeError::damaged(
                            format!("vnode {} of volume {}", id.vnode, self.id),
                            why,
                        ));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sets what is told of a vnode. Its data version stays. The owner of the root directory becomes the volume's.
    ///
    /// # Errors
    ///
    /// No such vnode; read-only; the disk failed.
    pub fn set_status(&self, id: VnodeId, set: &SetStatus, stamp: Stamp) -> Result<VnodeStatus, VolumeError> {
        let mut edit = Edit::begin(self, stamp)?;
        let (snapshot, mut record) = edit.vnode(id)?;
        record.status.apply(set);
        record.status.server_mod_time = stamp.now;
        let kib = record.blocks_kib();
        edit.put_vnode(&record, Some((snapshot, kib)));
        let owner = set.owner.filter(|_| id.vnode == VnodeNumber::ROOT);
        if let Some(owner) = owner {
            let mut header = self.record();
            header.info.owner = owner;
            edit.put_header(&header);
        }
        edit.commit()?;
        if let Some(owner) = owner {
            lock(&self.info).owner = owner;
        }
        Ok(record.status)
    }

    /// Replaces a directory's access list.
    ///
    /// # Errors
    ///
    /// No such vnode, or no directory; too many entries; read-only; the disk failed.
    pub fn set_acl(&self, id: VnodeId, acl: &Acl, stamp: Stamp) -> Result<VnodeStatus, VolumeError> {
        if acl.len() > ENTRIES_MAX {
            return Err(VolumeError::AccessListTooLong);
        }
        let mut edit = Edit::begin(self, stamp)?;
        let (snapshot, mut record) = edit.vnode(id)?;
        if record.status.kind != Kind::Directory {
            return Err(VolumeError::NotDirectory(id.vnode));
        }
        record.acl = acl.clone();
        record.status.server_mod_time = stamp.now;
        let kib = record.blocks_kib();
        edit.put_vnode(&record, Some((snapshot, kib)));
        edit.commit()?;
        Ok(record.status)
    }

    /// Vnodes in the order of their numbers, from a number on, at most `limit`: for dumps and checks. An empty answer
    /// is the end.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn vnodes(&self, from: VnodeNumber, limit: usize) -> Result<Vec<VnodeStatus>, VolumeError> {
        let records = self.vnode_records(from, limit)?;
        Ok(records.into_iter().map(|record| record.status).collect())
    }

    pub(crate) fn vnode_records(
        &self,
        from: VnodeNumber,
        limit: usize,
    ) -> Result<Vec<VnodeRecord>, VolumeError> {
        self.some_vnode_records(from, limit, |_| true)
    }

    /// The same of the vnodes whose numbers are wanted.
    pub(crate) fn some_vnode_records(
        &self,
        from: VnodeNumber,
        limit: usize,
        is_wanted: impl Fn(VnodeNumber) -> bool,
    ) -> Result<Vec<VnodeRecord>, VolumeError> {
        let (group, view) = (self.group.id, self.view());
        let all = keys::group_prefix(group);
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        // A vnode's status comes before all else of it, and the newest version of that first.
        let mut decided = None;
        let mut next = Some(Key(keys::vnode_prefix(group, from)));
        while let Some(start) = next {
            let (rows, after) = self.shared.store.page(&start, &all)?;
            let mut last = None;
            for (key, row) in &rows {
                // A key that is none belongs to nothing: fsck finds it.
                let Some(VnodeKey { vnode, part, snapshot, .. }) = VnodeKey::parse(key) else { continue };
                last = Some((vnode, part));
                if part != Part::Status || snapshot > view || decided == Some(vnode) || !is_wanted(vnode) {
                    continue;
                }
                decided = Some(vnode);
                found.extend(self.group.decode(vnode, row, view)?);
                if found.len() == limit {
                    return Ok(found);
                }
            }
            // What is left of a vnode of which more than its status was seen is of no use here, be it the chunks of a terabyte.
            next = match last {
                Some((vnode, part)) if part != Part::Status => {
                    after.map(|after| after.max(afs_store::after(&keys::vnode_prefix(group, vnode))))
                }
                _ => after,
            };
        }
        Ok(found)
    }

    /// The version of a part that this volume shows.
    pub(crate) fn part(
        &self,
        vnode: VnodeNumber,
        part: Part,
    ) -> Result<Option<afs_store::Bytes>, VolumeError> {
        Ok(group::part(&self.shared.store, self.group.id, vnode, part, self.view())?.map(|(_, row)| row))
    }
}

impl VnodeStatus {
    /// Sets what is to be set.
    pub(crate) fn apply(&mut self, set: &SetStatus) {
        self.client_mod_time = set.client_mod_time.unwrap_or(self.client_mod_time);
        self.owner = set.owner.unwrap_or(self.owner);
        self.group = set.group.unwrap_or(self.group);
        self.mode = set.mode.map_or(self.mode, |mode| mode & 0o7777);
    }
}
