//! Volumes that were being filled when the restore broke off, put aside. Nobody sees them, and they are not among the partition's volumes. A
//! restore of the same volume goes on with what came ([`Partition::resume_restore`]), or they are removed (Volume format 10). When that is,
//! and whether what came is still what is wanted, is for the volume service to say.
//!
//! A read-only volume that is in service keeps what came of its next contents where it is: it shows what it had, and nobody changes it.

use crate::group::{self, GroupHandle};
use crate::keys::{self, Key, Part, Snapshot, VnodeKey};
use crate::partition::Aside;
use crate::records::CHUNK;
use crate::records::{self, ChunkRecord, Counters, GroupRecord, HalfRecord, VolumeRecord};
use crate::restore::Partial;
use crate::shared::Pin;
use crate::vnode_set::VnodeSet;
use crate::{Partition, Reader, Restore, VnodeId, VnodeStatus, Volume, VolumeError, VolumeInfo, VolumeKind};
use afs_store::{Batch, lock};
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, VnodeNumber, VolumeId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// The most vnodes whose arrival in a volume that shows others is told to the sender; beyond it, none is told. If the sender knew only
/// some, it could name a vnode without attributes, although another version of this vnode has come.
const IN_PLACE_MAX: usize = 1 << 20;

/// A volume that was put aside, or into which a part of its next contents has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Half {
    /// Its id.
    pub volume: VolumeId,
    /// The name that it was to have.
    pub name: String,
    /// The kind that it was to be.
    pub kind: VolumeKind,
    /// Its read-write volume.
    pub parent: VolumeId,
    /// The time since which it is aside, by the clock of the caller that first asked.
    pub since: AfsTime,
}

/// The part that came of a volume that was put aside.
#[derive(Debug)]
pub struct Arrived {
    volume: Arc<Volume>,
    partial: Option<Partial>,
    /// The vnodes that have come whole, if the volume shows older contents, and these contents. Without older contents, all that the volume
    /// has came.
    came: Option<(VnodeSet, Snapshot)>,
    _pin: Pin,
}

impl Partition {
    /// Puts a volume aside that was to be destroyed ([`crate::VolumeInfo::destroy_me`]) and that the first restore into it has filled, or has
    /// begun to. Says whether it did; otherwise the volume stays: it may have been seen, nothing of it is worth keeping, or others share it. What
    /// was aside of the same id goes.
    ///
    /// # Errors
    ///
    /// It is not here; the disk failed.
    pub fn put_aside(&self, id: VolumeId, now: AfsTime) -> Result<bool, VolumeError> {
        let _one_at_a_time = self.changing();
        let shared = self.shared();
        let volume = match self.volume(id) {
            Err(VolumeError::Offline { .. }) => return Ok(false),
            found => found?,
        };
        let rests = volume.rests.load(Ordering::Acquire);
        if !is_worth(&volume, rests) {
            return Ok(false);
        }
        self.remove_aside(id)?;
        let mut state = lock(&volume.group.state);
        volume.check_whole()?;
        let half = HalfRecord { since: now, volume: volume.record() };
        let mut batch = Batch::default();
        batch.put(keys::half(id), half.encode());
        batch.delete(keys::volume(id));
        batch.delete(keys::counters(id));
        let seq = shared.store.submit(batch)?;
        volume.set_gone();
        volume.snapshot.into_iter().for_each(|snapshot| state.remove_view(snapshot));
        if rests {
            state.filling = state.filling.saturating_sub(1);
        }
        (state.writable, state.is_half) = (Some(id), true);
        drop(state);
        let aside = Aside { group: volume.group.clone(), half };
        self.change_asides(|asides, volumes| {
            volumes.remove(id);
            asides.insert(id, aside);
        });
        shared.settle(seq)?;
        Ok(true)
    }

    /// Lists what was put aside, and the volumes into which a part of their next contents has come. What a start has found counts from
    /// `now` on.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn halves(&self, now: AfsTime) -> Result<Vec<Half>, VolumeError> {
        let _one_at_a_time = self.changing();
        let mut found = Vec::new();
        for (id, mut aside) in self.asides() {
            if aside.half.since == AfsTime(0) {
                aside.half.since = now;
                let mut batch = Batch::default();
                batch.put(keys::half(id), aside.half.encode());
                let seq = self.shared().store.submit(batch)?;
                self.shared().settle(seq)?;
                self.change_asides(|asides, _| drop(asides.insert(id, aside.clone())));
            }
            let HalfRecord { since, volume: VolumeRecord { info, .. } } = aside.half;
            found.push(Half { volume: id, name: info.name, kind: info.kind, parent: info.parent, since });
        }
        for volume in self.volumes().into_iter().filter(|volume| volume.rests_in_place()) {
            // Who is first says since when it is.
            let _ = volume.rests_since.compare_exchange(0, now.0, Ordering::AcqRel, Ordering::Acquire);
            let since = AfsTime(volume.rests_since.load(Ordering::Acquire));
            let VolumeInfo { name, kind, parent, .. } = volume.record().info;
            found.push(Half { volume: volume.id, name, kind, parent, since });
        }
        Ok(found)
    }

    /// Removes what was put aside; its space comes back in the background. Says whether there was anything.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn remove_half(&self, id: VolumeId) -> Result<bool, VolumeError> {
        if !self.asides().contains_key(&id) {
            let has_rest = self.volume(id).is_ok_and(|volume| volume.has_rest());
            return if has_rest { self.forget_half(id).map(|()| true) } else { Ok(false) };
        }
        let _one_at_a_time = self.changing();
        self.remove_aside(id)
    }

    /// The same, when nobody else makes volumes.
    fn remove_aside(&self, id: VolumeId) -> Result<bool, VolumeError> {
        let Some(Aside { group, .. }) = self.asides().remove(&id) else { return Ok(false) };
        let mut state = lock(&group.state);
        let record = GroupRecord { needs_sweep: true, ..state.record };
        let mut batch = Batch::default();
        batch.delete(keys::half(id));
        batch.put(keys::group(group.id), record.encode());
        let seq = self.shared().store.submit(batch)?;
        state.record = record;
        state.is_half = false;
        state.remove_writable();
        drop(state);
        self.change_asides(|asides, _| drop(asides.remove(&id)));
        self.shared().settle(seq)?;
        Ok(true)
    }

    /// Returns what came of a volume that was put aside, or into a volume that shows what it had, if there is
    /// something.
    ///
    /// # Errors
    ///
    /// The disk failed, or what is there is damaged.
    pub fn arrived(&self, id: VolumeId) -> Result<Option<Arrived>, VolumeError> {
        let shared = self.shared();
        let pin = shared.pin();
        let (group, record, came) = match (self.asides().remove(&id), self.volume(id)) {
            (_, Ok(volume)) if volume.rests_in_place() => {
                let (came, _) = newer(&shared.store, &volume.group, volume.view())?;
                if came.iter().nth(IN_PLACE_MAX).is_some() {
                    return Ok(None);
                }
                (volume.group.clone(), volume.record(), Some((came, volume.view())))
            }
            (Some(Aside { group, half }), _) => (group, half.volume, None),
            (None, _) => return Ok(None),
        };
        let shown = came.as_ref().map_or(Snapshot::NOTHING, |(_, shown)| *shown);
        let partial = partial(&shared.store, &group, shown)?;
        let record = VolumeRecord { snapshot: None, ..record };
        let volume = Arc::new(Volume::new(id, shared, group, record, Counters::default()));
        Ok(Some(Arrived { volume, partial, came, _pin: pin }))
    }

    /// Begins to fill a volume that was just made from a dump, going on with what was put aside of the same id. In the dump, what came is named
    /// without attributes ([`Restore::unchanged`]); what it does not name goes. `None`: nothing was put aside, or the volume is not new.
    ///
    /// It may also be one that shows what it had. What came, as [`Partition::arrived`] tells it, and is not what is wanted has to be sent then; what
    /// else is named without attributes stays as it is shown.
    ///
    /// # Errors
    ///
    /// It is not here; what was put aside is damaged; the disk failed.
    pub fn resume_restore(&self, id: VolumeId) -> Result<Option<Restore>, VolumeError> {
        let one_at_a_time = self.changing();
        let shared = self.shared();
        let new = self.volume(id)?;
        if new.rests_in_place() {
            return self.resume_in_place(new, one_at_a_time).map(Some);
        }
        let info = new.record().info;
        let Some(aside) = self.asides().remove(&id).filter(|_| new.is_writable() && info.destroy_me) else {
            return Ok(None);
        };
        let partial = partial(&shared.store, &aside.group, Snapshot::NOTHING)?;
        let mut arrived = VnodeSet::default();
        let mut strays = VnodeSet::default();
        look_through(&shared.store, &aside.group, |vnode, is_whole| {
            if is_whole { arrived.insert(vnode) } else { strays.insert(vnode) }
        })?;
        let record = VolumeRecord {
            group: aside.group.id,
            snapshot: Some(Snapshot::NOTHING),
            is_restoring: true,
            info,
        };
        let counters = Counters::default();
        let mut left = lock(&new.group.state);
        new.check_whole()?;
        let mut state = lock(&aside.group.state);
        let group = GroupRecord { needs_sweep: true, ..state.record };
        let left_record = GroupRecord { needs_sweep: true, ..left.record };
        let mut batch = Batch::default();
        batch.delete(keys::half(id));
        batch.put(keys::group(aside.group.id), group.encode());
        batch.put(keys::group(new.group.id), left_record.encode());
        batch.put(keys::volume(id), record.encode());
        batch.put(keys::counters(id), counters.encode());
        let seq = shared.store.submit(batch)?;
        new.set_gone();
        left.record = left_record;
        left.remove_writable();
        (state.record, state.is_half) = (group, false);
        state.add_view(Snapshot::NOTHING);
        state.filling += 1;
        state.wants_full_sweep = true;
        drop((state, left));
        let volume = Arc::new(Volume::new(id, shared.clone(), aside.group.clone(), record, counters));
        volume.set_state(new.state());
        self.change_asides(|asides, volumes| {
            asides.remove(&id);
            volumes.insert(volume.clone());
        });
        let restore = Restore::new(self, volume, group, counters);
        // A restore that is dropped takes the lock itself.
        drop(one_at_a_time);
        restore.going_on(arrived, &strays, partial, || shared.settle(seq)).map(Some)
    }

    /// Goes on with what came into a volume that shows what it had. Nobody else makes volumes until it is begun.
    fn resume_in_place(
        &self,
        volume: Arc<Volume>,
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> Result<Restore, VolumeError> {
        let shared = self.shared();
        let partial = partial(&shared.store, &volume.group, volume.view())?;
        let (arrived, strays) = newer(&shared.store, &volume.group, volume.view())?;
        let counters = *lock(&volume.counters);
        let mut state = lock(&volume.group.state);
        volume.check_whole()?;
        let group = state.record;
        state.is_half = false;
        volume.rests.store(false, Ordering::Release);
        drop(state);
        let restore = Restore::new(self, volume, group, counters);
        drop(one_at_a_time);
        restore.going_on(arrived, &strays, partial, || Ok(()))
    }
}

impl Restore {
    /// Continues what came before. Vnodes that are not whole go once the beginning is settled.
    fn going_on(
        mut self,
        arrived: VnodeSet,
        strays: &VnodeSet,
        partial: Option<Partial>,
        settle: impl FnOnce() -> Result<(), VolumeError>,
    ) -> Result<Self, VolumeError> {
        // From here on it is not lost if this fails.
        (self.arrived, self.partial) = (Some(arrived), partial);
        settle()?;
        for stray in strays.iter() {
            let is_partial = |partial: &Partial| partial.record.status.id.vnode == stray;
            if !self.partial.as_ref().is_some_and(is_partial) {
                self.forget(stray, |_| false)?;
            }
        }
        Ok(self)
    }
}

impl Volume {
    /// True if it shows what it had, and has what came of a restore that did not end behind that. This is kept for a restore that goes on
    /// with it, or could not be removed yet when its restore was given up.
    #[must_use]
    pub fn has_rest(&self) -> bool {
        self.is_half() && !self.record().info.destroy_me
    }

    /// The same of a replica, with which a restore can go on. The replica may have been taken out of service since.
    #[must_use]
    pub fn rests_in_place(&self) -> bool {
        self.has_rest() && self.record().info.kind == VolumeKind::ReadOnly
    }

    /// True if it has what came of a restore that did not end ([`Partition::put_aside`], [`Partition::forget_half`]).
    #[must_use]
    pub fn is_half(&self) -> bool {
        self.rests.load(Ordering::Acquire)
    }
}

/// True if anything of a volume is to be kept, that nobody else shares.
fn is_worth(volume: &Volume, rests: bool) -> bool {
    let state = lock(&volume.group.state);
    let views: u32 = state.views.values().sum();
    let is_filled = match volume.is_restoring {
        true => rests && lock(&volume.counters).is_empty(),
        false => volume.is_filled.load(Ordering::Acquire),
    };
    let is_alone = views == u32::from(volume.snapshot.is_some())
        && state.writable.is_none_or(|writable| writable == volume.id)
        && !state.keeps_all;
    volume.record().info.destroy_me && is_filled && is_alone
}

/// Tells of each vnode of a group whether its status is there.
fn look_through(
    store: &afs_store::Store,
    group: &GroupHandle,
    mut tell: impl FnMut(VnodeNumber, bool),
) -> Result<(), VolumeError> {
    let end = afs_store::after(&keys::group_prefix(group.id));
    let mut next = Key(keys::group_prefix(group.id));
    while let Some((key, _)) = store.first(&next, &end)? {
        let Some(VnodeKey { vnode, .. }) = VnodeKey::parse(&key) else {
            return Err(VolumeError::damaged("a row of a vnode", "has a key that is none"));
        };
        tell(vnode, group::vnode(store, group.id, vnode, Snapshot::NEWEST)?.is_some());
        next = afs_store::after(&keys::vnode_prefix(group.id, vnode));
    }
    Ok(())
}

/// Vnodes that were written behind a snapshot: those whose status was, and others.
fn newer(
    store: &afs_store::Store,
    group: &GroupHandle,
    shown: Snapshot,
) -> Result<(VnodeSet, VnodeSet), VolumeError> {
    let prefix = keys::group_prefix(group.id);
    let (mut whole, mut touched, mut strays) =
        (VnodeSet::default(), VnodeSet::default(), VnodeSet::default());
    let mut from = Some(Key(prefix.clone()));
    while let Some(start) = from {
        let (rows, next) = store.page(&start, &prefix)?;
        for (key, row) in rows {
            let Some(VnodeKey { vnode, part, snapshot, .. }) = VnodeKey::parse(&key) else {
                return Err(VolumeError::damaged("a row of a vnode", "has a key that is none"));
            };
            if snapshot > shown {
                touched.insert(vnode);
                if part == Part::Status && !row.is_empty() {
                    whole.insert(vnode);
                }
            }
        }
        from = next;
    }
    touched.iter().filter(|vnode| !whole.contains(*vnode)).for_each(|vnode| strays.insert(vnode));
    Ok((whole, strays))
}

/// The vnode whose data have come in part, behind what is shown.
fn partial(
    store: &afs_store::Store,
    group: &GroupHandle,
    shown: Snapshot,
) -> Result<Option<Partial>, VolumeError> {
    let Some(row) = store.get(&keys::partial(group.id))? else { return Ok(None) };
    let Some(record) = records::decode_partial(&row)? else { return Ok(None) };
    let vnode = record.status.id.vnode;
    if group::vnode(store, group.id, vnode, Snapshot::NEWEST)?.is_some_and(|(snapshot, _)| snapshot > shown) {
        return Ok(None);
    }
    let found = group::chunks(store, group.id, vnode, Snapshot::NEWEST, 0..=u32::MAX)?;
    let is_whole = |chunk: Option<ChunkRecord>| chunk.is_some_and(|chunk| u64::from(chunk.length) == CHUNK);
    let came = found.iter().zip(0..);
    let chunks = came.take_while(|((n, at, chunk), i)| n == i && *at > shown && is_whole(*chunk)).count();
    // What is not there of a whole file is at least one byte.
    let most = record.status.length.saturating_sub(1) / CHUNK;
    let chunks = u32::try_from((chunks as u64).min(most)).unwrap_or(0);
    Ok((chunks > 0).then_some(Partial { record, chunks }))
}

impl Arrived {
    /// Vnodes that have come whole: directories or everything else, from a number on, as [`Volume::vnodes_of_class`] tells them.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn vnodes_of_class(
        &self,
        is_directory: bool,
        from: VnodeNumber,
        limit: usize,
    ) -> Result<Vec<(VnodeStatus, Acl)>, VolumeError> {
        let Some((came, shown)) = &self.came else {
            return self.volume.vnodes_of_class(is_directory, from, limit);
        };
        let (store, group) = (&self.volume.shared.store, self.volume.group.id);
        let mut found = Vec::new();
        for number in came.iter_from(from).filter(|number| number.is_directory() == is_directory) {
            if found.len() >= limit {
                break;
            }
            // As it came: what a view shows after a power loss may have another data version.
            if let Some((snapshot, record)) = group::vnode(store, group, number, Snapshot::NEWEST)?
                && snapshot > *shown
            {
                found.push((record.status, record.acl));
            }
        }
        Ok(found)
    }

    /// The data of one of them.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub fn open(&self, id: VnodeId, position: u64, length: u64) -> Result<Reader, VolumeError> {
        self.volume.open(id, position, length)
    }

    /// The file whose first bytes have come, if there is one, and their number.
    #[must_use]
    pub fn partial(&self) -> Option<(VnodeStatus, u64)> {
        self.partial.as_ref().map(|partial| (partial.record.status, u64::from(partial.chunks) * CHUNK))
    }

    /// Fills `out` from bytes of that file; says how many there were.
    ///
    /// # Errors
    ///
    /// The disk failed, or has less than it should.
    pub fn read_partial(&self, position: u64, out: &mut [u8]) -> Result<usize, VolumeError> {
        let Some(Partial { record, chunks }) = &self.partial else { return Ok(0) };
        let n = (position / CHUNK) as u32;
        if n >= *chunks {
            return Ok(0);
        }
        let (store, group) = (&self.volume.shared.store, self.volume.group.id);
        let vnode = record.status.id.vnode;
        let found = group::chunks(store, group, vnode, Snapshot::NEWEST, n..=n)?;
        let Some(&(_, snapshot, Some(chunk))) = found.first() else { return Ok(0) };
        let key = VnodeKey { group, vnode, part: Part::Chunk(n), snapshot };
        let name = records::file_name(chunk.file, &key, n);
        let within = position % CHUNK;
        let wanted = out.len().min((u64::from(chunk.length).saturating_sub(within)) as usize);
        let failed = VolumeError::io(format!("cannot read {name}"));
        let file = match store.disk().open(&name) {
            Ok(file) => file,
            Err(error) => return Err(failed(error)),
        };
        let read = file.read_at(within, &mut out[..wanted]).map_err(failed)?;
        if read < wanted {
            return Err(VolumeError::damaged(name, "has less data than its row says"));
        }
        Ok(wanted)
    }
}
