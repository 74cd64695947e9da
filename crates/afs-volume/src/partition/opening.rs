//! A partition as it is found on its disk, and the thread that does what has to be done for it.

use super::Aside;
use super::Open;
use super::volumes::Volumes;
use crate::Config;
use crate::damage::Damage;
use crate::disk::Disk;
use crate::group::{self, GroupHandle, GroupState};
use crate::keys;
use crate::records::{self, Counters, GroupRecord, HalfRecord, VolumeRecord};
use crate::restore::may_rest_in_place;
use crate::shared::Shared;
use crate::{Volume, VolumeError};
use afs_store::{Batch, Options, Store, StoreError, lock, read};
use afs_wire::ids::VolumeId;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

impl Open {
    /// Reads what a disk has. Of what is damaged is noted what it is; all else is there.
    pub(super) fn new(disk: Arc<dyn Disk>, config: &Config) -> Result<Self, VolumeError> {
        let options = Options { cache_bytes: config.cache_bytes, log_bytes: config.log_bytes };
        let store = Store::open(disk, options, &records::Rows)?;
        let shared = Arc::new(Shared::new(store, config.clone())?);
        let mut damage = Damage::default();
        let mut states: BTreeMap<keys::GroupId, GroupState> = BTreeMap::new();
        shared.store.scan::<VolumeError>(&keys::groups(), |key, row| {
            // A key that is none belongs to nothing: fsck finds it.
            let Some(group) = keys::group_of(key) else { return Ok(()) };
            let read = || -> Result<GroupState, VolumeError> {
                let mut state = GroupState::new(0);
                state.record = GroupRecord::decode(row)?;
                if let Some(row) = shared.store.get(&keys::group_reservation(group))? {
                    state.reserved = records::decode_reservation(&row)?;
                }
                Ok(state)
            };
            match read() {
                Ok(state) => _ = states.insert(group, state),
                Err(error) => damage.of_group(group, error)?,
            }
            Ok(())
        })?;
        let mut records = Vec::new();
        shared.store.scan::<VolumeError>(&keys::volumes(), |key, row| {
            let Some(id) = keys::volume_of(key) else { return Ok(()) };
            let record = match VolumeRecord::decode(row) {
                Ok(record) => record,
                Err(error) => return damage.of_volume(id, None, error),
            };
            let view = Some((record.group, record.snapshot));
            let Some(state) = states.get_mut(&record.group) else {
                return match damage.groups.get(&record.group).cloned() {
                    Some((what, why)) => damage.of_volume(id, view, VolumeError::Damaged { what, why }),
                    None => damage.of_volume(
                        id,
                        None,
                        VolumeError::damaged("its row", "names a volume group that is not there"),
                    ),
                };
            };
            match record.snapshot {
                Some(snapshot) => state.add_view(snapshot),
                None => state.writable = Some(id),
            }
            if record.is_restoring {
                state.filling += 1;
                state.is_half = record.info.destroy_me;
            }
            records.push((id, record));
            Ok(())
        })?;
        let mut found = BTreeMap::new();
        let mut raised = Batch::default();
        shared.store.scan::<VolumeError>(&keys::halves(), |key, row| {
            let Some(id) = keys::volume_of(key) else { return Ok(()) };
            match HalfRecord::decode(row) {
                Ok(half) if states.contains_key(&half.volume.group) => {
                    if let Some(state) = states.get_mut(&half.volume.group) {
                        (state.writable, state.is_half) = (Some(id), true);
                    }
                    found.insert(id, half);
                }
                // What nobody can go on with goes with its group.
                Ok(_) | Err(VolumeError::Damaged { .. }) => {
                    raised.delete(key.clone());
                    let alone = states.values_mut().filter(|s| s.views.is_empty() && s.writable.is_none());
                    alone.for_each(|state| state.record.needs_sweep = true);
                }
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        if damage.hides_a_view() {
            for state in states.values_mut() {
                state.keeps_all = true;
                // Once it is gone, or can be read, all that was kept for it is looked at.
                state.record.needs_sweep = true;
            }
        }
        for (id, state) in &mut states {
            if shared.lost() > 0 {
                state.make_up_for(shared.lost());
                raised.put(keys::group_reservation(*id), records::encode_reservation(state.reserved));
            }
            // What a clone shows may have been replaced without a note.
            let lacks_notes = (shared.lost() > 0 || shared.lacks_notes) && !state.views.is_empty();
            state.record.needs_sweep |= lacks_notes;
            state.wants_full_sweep = state.record.needs_sweep;
            state.recount();
            if state.catch_up(shared.epoch()) || lacks_notes {
                raised.put(keys::group(*id), state.record.encode());
            }
        }
        shared.note_start(raised)?;
        let handles = states.into_iter().map(|(id, state)| (id, Arc::new(GroupHandle::new(id, state))));
        *lock(&shared.groups) = handles.collect();
        let mut volumes = Volumes::default();
        for (id, record) in records {
            let counters = match shared.store.get(&keys::counters(id))? {
                Some(row) => Counters::decode(&row),
                None => Err(VolumeError::damaged("its counters", "are not there")),
            };
            let counters = match counters {
                Ok(counters) => counters,
                Err(error) => {
                    damage.of_volume(id, Some((record.group, record.snapshot)), error)?;
                    continue;
                }
            };
            let group = lock(&shared.groups)[&record.group].clone();
            let volume = Volume::new(id, shared.clone(), group, record, counters);
            volume.rests.store(volume.is_restoring, Ordering::Release);
            if volume.is_restoring && may_rest_in_place(&volume.record().info) {
                let mut state = lock(&volume.group.state);
                (state.writable, state.is_half) = (Some(id), true);
            }
            volumes.insert(Arc::new(volume));
        }
        let aside = |(id, half): (VolumeId, HalfRecord)| {
            let group = lock(&shared.groups).get(&half.volume.group).cloned()?;
            Some((id, Aside { group, half }))
        };
        let halves = found.into_iter().filter_map(aside).collect();
        Ok(Self { shared, volumes, halves, damage })
    }
}

/// Does the work that is due from time to time, or as much of it as comes before the end: the rest is done after the next start.
/// Returns whether something was done.
pub(super) fn maintain<'a>(
    shared: &Arc<Shared>,
    volumes: impl Iterator<Item = &'a Arc<Volume>>,
    is_ended: &dyn Fn() -> bool,
) -> Result<bool, VolumeError> {
    if let Some(error) = shared.store.failure() {
        return Err(error.into());
    }
    // Each step is taken also if one before it found no room, since the later ones make some.
    let mut first_error = Ok(());
    let mut note = |result: Result<bool, VolumeError>| match result {
        Ok(has_done) => has_done,
        Err(error) => {
            if first_error.is_ok() {
                first_error = Err(error);
            }
            false
        }
    };
    for volume in volumes {
        note(volume.write_uses().map(|()| false));
    }
    note(shared.note_begun().map(|()| false));
    let mut has_done = note(shared.store.sync_all().map_err(VolumeError::from));
    while !is_ended() && note(shared.collect_garbage()) {
        has_done = true;
    }
    let groups: Vec<Arc<GroupHandle>> = lock(&shared.groups).values().cloned().collect();
    for handle in groups {
        let is_to_be_swept = lock(&handle.state).is_to_be_swept();
        if is_to_be_swept {
            has_done |= note(group::sweep(shared, &handle, is_ended).map(|_| true));
        }
        has_done |= note(group::count(shared, &handle, is_ended));
    }
    let has_spare = shared.store.prepare();
    if shared.store.wants_checkpoint() || matches!(has_spare, Err(StoreError::DiskFull)) {
        has_done |= note(shared.store.checkpoint().map(|()| true).map_err(VolumeError::from));
        note(shared.store.prepare().map(|()| false).map_err(VolumeError::from));
    }
    first_error.map(|()| has_done)
}

/// The partition's thread: ends with the partition. What fails is known to the store, and tried again.
pub(super) fn maintenance(open: &RwLock<Open>, ended: &(Mutex<bool>, Condvar), every: Duration) {
    loop {
        let guard = lock(&ended.0);
        let woken = ended.1.wait_timeout_while(guard, every, |ended| !*ended);
        if *woken.unwrap_or_else(std::sync::PoisonError::into_inner).0 {
            return;
        }
        let Open { shared, volumes, .. } = read(open).clone();
        let _ = maintain(&shared, volumes.iter(), &|| *lock(&ended.0));
    }
}
