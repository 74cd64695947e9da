//! A partition: a folder, `/vicepXX` or any other, with volumes in it; and what has to be done for it from time to time.

use crate::damage::Damage;
use crate::disk::{Disk, FolderDisk};
use crate::group::{GroupHandle, GroupState};
use crate::keys;
use crate::records::{Counters, GroupRecord, HalfRecord, VolumeRecord};
use crate::shared::Shared;
use crate::{
    Config, NAME_MAX, NewClone, NewVolume, Stamp, SyncPolicy, Volume, VolumeError, VolumeInfo, VolumeKind,
};
use afs_store::{Batch, Loss, lock, read, write};
use afs_wire::ids::{AfsTime, SecurityLevel, ViceId, VolumeId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

mod opening;
mod volumes;

use opening::{maintain, maintenance};
use volumes::Volumes;

/// KiB that a new volume may use, unless told otherwise (Volume service notes 4).
pub const DEFAULT_QUOTA_KIB: u32 = 5000;

/// Space of the file system that a partition is on, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total_kib: u64,
    /// The space that may still be used for volumes.
    pub free_kib: u64,
}

/// A volume that was put aside, in memory.
#[derive(Debug, Clone)]
pub(crate) struct Aside {
    pub(crate) group: Arc<GroupHandle>,
    pub(crate) half: HalfRecord,
}

/// An open partition. Clones are the same one; with the last it closes.
#[derive(Debug, Clone)]
pub struct Partition {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    config: Config,
    /// Another one after [`Partition::reopen`].
    open: Arc<RwLock<Open>>,
    /// One thread at a time makes or removes volumes, or reopens.
    changing: Mutex<()>,
    /// Wakes the thread, to end.
    ended: Arc<(Mutex<bool>, Condvar)>,
    /// The thread, if there is one.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Clone)]
struct Open {
    shared: Arc<Shared>,
    volumes: Volumes,
    /// The volumes that were put aside half-made, by their ids.
    halves: BTreeMap<VolumeId, Aside>,
    damage: Damage,
}

impl Drop for Inner {
    fn drop(&mut self) {
        *lock(&self.ended.0) = true;
        self.ended.1.notify_all();
        // What the thread is doing needs the store, and the folder that is free for others afterwards.
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        // What fails here is found at the next start, like the end of a process.
        let open = read(&self.open);
        let uses = open.volumes.iter().try_for_each(|volume| volume.write_uses());
        let _ = uses.and_then(|()| open.shared.note_begun()).and_then(|()| Ok(open.shared.store.close()?));
    }
}

impl Partition {
    /// Opens the partition in a folder; makes one of the folder if it has none of our files. Takes a lock on it.
    /// After a crash it takes the time to read the log, well below a second.
    ///
    /// # Errors
    ///
    /// The folder is not there or may not be written; another process has it open; its format is of a newer version.
    pub fn open(folder: &Path, config: Config) -> Result<Self, VolumeError> {
        let disk = FolderDisk::open(folder);
        let disk =
            disk.map_err(VolumeError::io(format!("cannot open the partition {}", folder.display())))?;
        Self::open_on(Arc::new(disk), folder, config)
    }

    /// Opens a partition on a disk; `folder` is its name only.
    ///
    /// # Errors
    ///
    /// As [`Partition::open`].
    pub fn open_on(disk: Arc<dyn Disk>, folder: &Path, config: Config) -> Result<Self, VolumeError> {
        let open = Open::new(disk.clone(), &config)?;
        let inner = Arc::new(Inner {
            folder: folder.to_owned(),
            disk,
            open: Arc::new(RwLock::new(open)),
            changing: Mutex::new(()),
            ended: Arc::default(),
            thread: Mutex::default(),
            config,
        });
        let this = Self { inner };
        this.roll_back_restores()?;
        this.remove_unfinished()?;
        if this.inner.config.has_thread {
            let (open, ended) = (this.inner.open.clone(), this.inner.ended.clone());
            let every = match this.inner.config.sync {
                SyncPolicy::Always => Duration::from_secs(1),
                SyncPolicy::Every(time) => time,
            };
            let thread = thread::Builder::new()
                .name("volumes".into())
                .spawn(move || maintenance(&open, &ended, every));
            let thread = thread.map_err(VolumeError::io("cannot start a thread"))?;
            *lock(&this.inner.thread) = Some(thread);
        }
        Ok(this)
    }

    /// Volumes that were half-made when the last run ended go (`VTDeleteOnSalvage`); what a restore has brought is put aside.
    fn remove_unfinished(&self) -> Result<(), VolumeError> {
        let mut unfinished = self.volumes();
        unfinished.retain(|volume| volume.header().info.destroy_me);
        // Snapshots that came along first: what came of a volume is kept only if nobody shares it.
        unfinished.sort_by_key(|volume| !volume.is_snapshot());
        for volume in unfinished {
            if !self.put_aside(volume.id(), AfsTime(0))? {
                self.delete_volume(volume.id())?;
            }
        }
        Ok(())
    }

    /// The folder, as it was given.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        read(&self.inner.open).shared.clone()
    }

    /// Space, by the file system's account of just now.
    ///
    /// # Errors
    ///
    /// The file system does not say.
    pub fn space(&self) -> Result<Space, VolumeError> {
        let (total, free) = self.inner.disk.space().map_err(VolumeError::io("cannot ask for free space"))?;
        Ok(Space {
            total_kib: total / 1024,
            free_kib: (free / 1024).saturating_sub(self.inner.config.reserve_kib),
        })
    }

    /// The reason why nothing can be written any more, if so: then all volumes are offline, until
    /// [`Partition::reopen`].
    #[must_use]
    pub fn failure(&self) -> Option<VolumeError> {
        self.shared().store.failure().map(VolumeError::from)
    }

    /// All volumes, by their ids.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        read(&self.inner.open).volumes.iter().cloned().collect()
    }

    /// The snapshots of a volume, by their ids.
    pub(crate) fn snapshots_by_id(&self, of: VolumeId) -> Vec<Arc<Volume>> {
        read(&self.inner.open).volumes.snapshots_of(of).cloned().collect()
    }

    /// A volume.
    ///
    /// # Errors
    ///
    /// It is not here; or [`VolumeError::Offline`]: it is, and its rows are damaged.
    pub fn volume(&self, id: VolumeId) -> Result<Arc<Volume>, VolumeError> {
        let open = read(&self.inner.open);
        match (open.volumes.get(id), open.damage.volumes.get(&id)) {
            (Some(volume), _) => Ok(volume.clone()),
            (None, Some(damaged)) => Err(VolumeError::Offline { volume: id, reason: damaged.to_string() }),
            (None, None) => Err(VolumeError::NoVolume(id)),
        }
    }

    /// Volumes that are here and are not served, as their rows are damaged, and what is wrong with those. They can be removed;
    /// otherwise they stay as they are.
    #[must_use]
    pub fn damaged_volumes(&self) -> Vec<(VolumeId, String)> {
        let open = read(&self.inner.open);
        open.damage.volumes.iter().map(|(&id, damaged)| (id, damaged.to_string())).collect()
    }

    /// What was acknowledged and could not be read any more when it was opened, since its log is damaged, and what earlier starts have
    /// lost so: the file, the place in it, and what is lost. All else is served.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.shared().store.losses().to_vec()
    }

    /// The damage that was found when it was opened.
    pub(crate) fn damage(&self) -> Damage {
        read(&self.inner.open).damage.clone()
    }

    /// Makes a volume: not in service, and to be destroyed if nobody says otherwise ([`Volume::change_info`]).
    ///
    /// # Errors
    ///
    /// Its id is taken; the disk is full or failed.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn create_volume(&self, new: &NewVolume, stamp: Stamp) -> Result<Arc<Volume>, VolumeError> {
        let _one_at_a_time = lock(&self.inner.changing);
        let shared = self.shared();
        self.check_new(new.id, &new.name)?;
        shared.check_space(1)?;
        let mut state = GroupState::new(shared.epoch());
        state.writable = Some(new.id);
        let group = shared.new_group()?;
        let mut info = new_info(new.name.clone(), new.kind, stamp);
        info.parent = if new.parent == VolumeId(0) { new.id } else { new.parent };
        info.max_quota_kib = new.max_quota_kib;
        let record = VolumeRecord { group, snapshot: None, is_restoring: false, info };
        let mut batch = Batch::default();
        batch.put(keys::group(group), state.record.encode());
        batch.put(keys::volume(new.id), record.encode());
        batch.put(keys::counters(new.id), Counters::default().encode());
        let seq = shared.store.submit(batch)?;
        let handle = Arc::new(GroupHandle::new(group, state));
        lock(&shared.groups).insert(group, handle.clone());
        let volume = Arc::new(Volume::new(new.id, shared.clone(), handle, record, Counters::default()));
        if new.with_root {
            volume.make_root(stamp)?;
        }
        write(&self.inner.open).volumes.insert(volume.clone());
        shared.settle(seq)?;
        Ok(volume)
    }

    pub(crate) fn check_new(&self, id: VolumeId, name: &str) -> Result<(), VolumeError> {
        assert_ne!(id, VolumeId(0), "the caller refuses volume id 0");
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(VolumeError::BadName);
        }
        let open = read(&self.inner.open);
        let is_there = open.volumes.get(id).is_some() || open.damage.volumes.contains_key(&id);
        if is_there { Err(VolumeError::VolumeExists(id)) } else { Ok(()) }
    }

    /// Makes a clone of a volume as it is now, in a time that does not depend on its size: not in service, like a
    /// new volume. Dates of original and clone are set as Volume service notes 4 have it.
    ///
    /// # Errors
    ///
    /// No such volume; the id is taken; the disk failed.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn clone_volume(
        &self,
        from: VolumeId,
        new: &NewClone,
        stamp: Stamp,
    ) -> Result<Arc<Volume>, VolumeError> {
        let _one_at_a_time = lock(&self.inner.changing);
        self.check_new(new.id, &new.name)?;
        self.make_clone(from, new, None, stamp)
    }

    /// Makes an existing clone show its original as it is now; keeps its id, name, kind and statistics, and whether it
    /// is in service. Takes the same short time; the space of what only the old clone had comes back in the background. The clone may be of
    /// another group: the original has been away, or the clone came from elsewhere.
    ///
    /// # Errors
    ///
    /// One of them is not there; the clone is a read-write volume or a snapshot ([`VolumeError::ReadOnly`]), or is being filled ([`VolumeError::Busy`]);
    /// the disk failed.
    pub fn reclone_volume(
        &self,
        from: VolumeId,
        clone: VolumeId,
        stamp: Stamp,
    ) -> Result<Arc<Volume>, VolumeError> {
        let _one_at_a_time = lock(&self.inner.changing);
        let old = self.without_half(clone)?;
        let info = old.header().info;
        // A snapshot stays what it is.
        if clone == from || !matches!(info.kind, VolumeKind::ReadOnly | VolumeKind::Backup) {
            return Err(VolumeError::ReadOnly(clone));
        }
        if old.is_restoring {
            return Err(VolumeError::Busy(clone));
        }
        let new = NewClone { id: clone, name: info.name.clone(), kind: info.kind };
        self.make_clone(from, &new, Some(&old), stamp)
    }

    /// Makes a clone, perhaps in place of an old one. Expects that nobody else makes volumes.
    pub(crate) fn make_clone(
        &self,
        from: VolumeId,
        new: &NewClone,
        old: Option<&Arc<Volume>>,
        stamp: Stamp,
    ) -> Result<Arc<Volume>, VolumeError> {
        let shared = self.shared();
        let from = self.volume(from)?;
        let header = from.header();
        let mut state = lock(&from.group.state);
        from.check_whole()?;
        let mut group = state.record;
        let snapshot = match from.snapshot {
            Some(snapshot) => snapshot,
            None => {
                let snapshot = group.current;
                group.current = snapshot.next()?;
                snapshot
            }
        };
        let info = clone_info(&header.info, new, old.map(|old| old.record().info), stamp);
        let counters = Counters { updates: 0, ..*lock(&from.counters) };
        let record =
            VolumeRecord { group: from.group.id, snapshot: Some(snapshot), is_restoring: false, info };
        let in_other = old.filter(|old| old.group.id != from.group.id);
        // Nobody else holds the states of two groups.
        let mut other = in_other.map(|old| lock(&old.group.state));
        group.needs_sweep |= old.is_some() && other.is_none();
        let mut batch = Batch::default();
        batch.put(keys::group(from.group.id), group.encode());
        if let (Some(old), Some(other)) = (in_other, &mut other) {
            let record = GroupRecord { needs_sweep: true, ..other.record };
            batch.put(keys::group(old.group.id), record.encode());
        }
        batch.put(keys::volume(new.id), record.encode());
        batch.put(keys::counters(new.id), counters.encode());
        let seq = shared.store.submit(batch)?;
        state.record = group;
        state.add_view(snapshot);
        if let Some(old) = old {
            let state = match &mut other {
                Some(other) => {
                    other.record.needs_sweep = true;
                    other
                }
                None => &mut state,
            };
            old.set_gone();
            match old.snapshot {
                Some(snapshot) => state.remove_view(snapshot),
                None => state.remove_writable(),
            }
        }
        drop((other, state));
        let volume = Arc::new(Volume::new(new.id, shared.clone(), from.group.clone(), record, counters));
        write(&self.inner.open).volumes.insert(volume.clone());
        shared.settle(seq)?;
        if from.is_writable() && !volume.is_snapshot() {
            from.change_info(|info| match new.kind {
                VolumeKind::Backup => (info.backup, info.backup_date) = (new.id, stamp.now),
                VolumeKind::ReadOnly if old.is_none() => info.clone = new.id,
                VolumeKind::ReadOnly | VolumeKind::ReadWrite | VolumeKind::Snapshot { .. } => {}
            })?;
        }
        Ok(volume)
    }

    /// Removes a volume. What others of its group share stays; the rest of its space comes back in the background.
    ///
    /// # Errors
    ///
    /// It is not here; the disk failed.
    pub fn delete_volume(&self, id: VolumeId) -> Result<(), VolumeError> {
        let _one_at_a_time = lock(&self.inner.changing);
        let shared = self.shared();
        let volume = match self.volume(id) {
            Err(VolumeError::Offline { .. }) => return self.delete_damaged(id, &shared),
            found => found?,
        };
        let mut state = lock(&volume.group.state);
        volume.check_whole()?;
        let record = GroupRecord { needs_sweep: true, ..state.record };
        let mut batch = Batch::default();
        batch.put(keys::group(volume.group.id), record.encode());
        batch.delete(keys::volume(id));
        batch.delete(keys::counters(id));
        let seq = shared.store.submit(batch)?;
        state.record = record;
        volume.set_gone();
        match volume.snapshot {
            Some(snapshot) => state.remove_view(snapshot),
            None => state.remove_writable(),
        }
        if volume.rests.load(Ordering::Acquire) {
            state.filling = state.filling.saturating_sub(1);
            state.is_half = false;
            state.remove_writable();
        }
        drop(state);
        write(&self.inner.open).volumes.remove(id);
        shared.settle(seq)
    }

    /// Removes what is left of a volume whose rows are damaged. What only it has shown goes in the background, where its group
    /// is known.
    fn delete_damaged(&self, id: VolumeId, shared: &Shared) -> Result<(), VolumeError> {
        let view = self.damage().volumes.get(&id).and_then(|damaged| damaged.view);
        let handle = view.and_then(|(group, _)| lock(&shared.groups).get(&group).cloned());
        let mut batch = Batch::default();
        batch.delete(keys::volume(id));
        batch.delete(keys::counters(id));
        let seq = match (handle, view) {
            (Some(handle), Some((_, snapshot))) => {
                let mut state = lock(&handle.state);
                let record = GroupRecord { needs_sweep: true, ..state.record };
                batch.put(keys::group(handle.id), record.encode());
                let seq = shared.store.submit(batch)?;
                state.record = record;
                match snapshot {
                    Some(snapshot) => state.remove_view(snapshot),
                    None => state.remove_writable(),
                }
                // All that was kept for it is looked at.
                state.wants_full_sweep = true;
                seq
            }
            _ => shared.store.submit(batch)?,
        };
        let hides_a_view = {
            let mut open = write(&self.inner.open);
            open.damage.volumes.remove(&id);
            open.damage.hides_a_view()
        };
        if !hides_a_view {
            // Nothing is kept for it any more.
            let handles: Vec<Arc<GroupHandle>> = lock(&shared.groups).values().cloned().collect();
            handles.iter().for_each(|handle| lock(&handle.state).keeps_all = false);
        }
        shared.settle(seq)
    }

    /// Forces everything onto the disk that was done before.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn sync(&self) -> Result<(), VolumeError> {
        let shared = self.shared();
        Ok(shared.store.sync(shared.store.last())?)
    }

    /// Does the work that is due from time to time: syncs, moves rows from the log into the store, and gives back the space of what was
    /// removed. Returns whether there was something to do. The partition's thread calls it; without one, call it yourself.
    ///
    /// # Errors
    ///
    /// The disk is full or failed.
    pub fn maintain(&self) -> Result<bool, VolumeError> {
        let Open { shared, volumes, .. } = read(&self.inner.open).clone();
        maintain(&shared, volumes.iter(), &|| false)
    }

    /// Reads everything anew, after [`Partition::failure`], and when the disk works again. Its volumes are then as they are on disk, online
    /// or not, as after a start; those got before are of no use any more.
    ///
    /// # Errors
    ///
    /// The disk still fails.
    pub fn reopen(&self) -> Result<(), VolumeError> {
        let _one_at_a_time = lock(&self.inner.changing);
        let old = self.shared();
        old.store.shut();
        let open = Open::new(self.inner.disk.clone(), &self.inner.config)?;
        *write(&self.inner.open) = open;
        self.roll_back_restores()
    }

    /// One at a time makes, removes or replaces volumes.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.inner.changing)
    }

    /// A volume in place of the one of its id.
    pub(crate) fn put_volume(&self, volume: Arc<Volume>) {
        write(&self.inner.open).volumes.insert(volume);
    }

    /// The volumes that were put aside half-made.
    pub(crate) fn asides(&self) -> BTreeMap<VolumeId, Aside> {
        read(&self.inner.open).halves.clone()
    }

    /// Changes that, and which volumes there are, at once.
    pub(crate) fn change_asides(&self, change: impl FnOnce(&mut BTreeMap<VolumeId, Aside>, &mut Volumes)) {
        let open = &mut *write(&self.inner.open);
        change(&mut open.halves, &mut open.volumes);
    }

    /// A volume in place of one of another id.
    pub(crate) fn replace_volume(&self, old: VolumeId, new: Arc<Volume>) {
        let mut open = write(&self.inner.open);
        open.volumes.remove(old);
        open.volumes.insert(new);
    }
}

pub(crate) fn new_info(name: String, kind: VolumeKind, stamp: Stamp) -> VolumeInfo {
    VolumeInfo {
        name,
        kind,
        parent: VolumeId(0),
        clone: VolumeId(0),
        backup: VolumeId(0),
        restored_from: VolumeId(0),
        owner: ViceId(0),
        account: 0,
        max_quota_kib: DEFAULT_QUOTA_KIB,
        min_quota_kib: 0,
        creation_date: stamp.now,
        copy_date: stamp.now,
        backup_date: AfsTime(0),
        expiration_date: AfsTime(0),
        access_date: AfsTime(0),
        update_date: stamp.now,
        day_use: 0,
        day_use_date: AfsTime(0),
        week_use: [0; 7],
        in_service: false,
        destroy_me: true,
        offline_message: String::new(),
        motd: String::new(),
        update_counter: 0,
        level: SecurityLevel::CLEAR,
        schedule: None,
        snapshot_limit_kib: None,
    }
}

/// The header of a clone: that of its original, but for what says which copy it is (Volume service notes 4). One that is
/// cloned anew keeps of its own what people know it by.
fn clone_info(original: &VolumeInfo, new: &NewClone, old: Option<VolumeInfo>, stamp: Stamp) -> VolumeInfo {
    let mut old = old.unwrap_or_else(|| new_info(new.name.clone(), new.kind, stamp));
    if matches!(new.kind, VolumeKind::Snapshot { .. }) {
        // It is whole at once, if its volume is.
        (old.in_service, old.destroy_me) = (!original.destroy_me, original.destroy_me);
    }
    VolumeInfo {
        name: old.name,
        kind: old.kind,
        clone: if new.kind == VolumeKind::ReadOnly { new.id } else { original.clone },
        // Clients of a released volume look at this date for whether it was released anew.
        creation_date: stamp.now,
        copy_date: old.copy_date,
        backup_date: if new.kind == VolumeKind::Backup { stamp.now } else { original.backup_date },
        day_use: old.day_use,
        day_use_date: old.day_use_date,
        week_use: old.week_use,
        in_service: old.in_service,
        destroy_me: old.destroy_me,
        schedule: None,
        snapshot_limit_kib: None,
        ..original.clone()
    }
}
