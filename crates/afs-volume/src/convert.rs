//! A read-only volume that becomes the read-write volume of its group, after that was lost: in its place, without copying anything. Whether
//! the read-write volume is gone everywhere is for those to know who ask for it.

use crate::keys;
use crate::records::{GroupRecord, VolumeRecord};
use crate::restore::remove_newer;
use crate::{NAME_MAX, Partition, Volume, VolumeError, VolumeKind};
use afs_store::{Batch, lock};
use afs_wire::ids::VolumeId;
use std::sync::Arc;

impl Partition {
    /// Makes of a volume the read-write volume `to`, which may not be here yet: with this name, without clones that it knows of. The old id
    /// is gone then. Takes a short time, unless a read-write volume of the group was removed whose changes are still being cleaned up.
    ///
    /// # Errors
    ///
    /// It is not here; `to`, or another volume that was cloned from the group later, is ([`VolumeError::VolumeExists`]); the volume is being
    /// read or filled ([`VolumeError::Busy`]); the disk failed. Then the volume is as it was.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn convert_to_read_write(
        &self,
        from: VolumeId,
        to: VolumeId,
        name: &str,
    ) -> Result<Arc<Volume>, VolumeError> {
        assert_ne!(to, VolumeId(0), "the caller refuses volume id 0");
        let _one_at_a_time = self.changing();
        let old = self.without_half(from)?;
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(VolumeError::BadName);
        }
        match self.volume(to) {
            Err(VolumeError::NoVolume(_)) => {}
            Ok(_) | Err(_) => return Err(VolumeError::VolumeExists(to)),
        }
        if old.is_restoring {
            return Err(VolumeError::Busy(from));
        }
        self.take_group(&old)?;
        let mut record = VolumeRecord { snapshot: None, ..old.record() };
        let info = &mut record.info;
        name.clone_into(&mut info.name);
        (info.kind, info.parent) = (VolumeKind::ReadWrite, to);
        (info.clone, info.backup) = (VolumeId(0), VolumeId(0));
        self.become_newest(&old, to, record)
    }

    /// Has a read-only clone whose original has gone show the newest of its group, so that it can be filled. Expects that nobody else makes
    /// volumes.
    pub(crate) fn own_group(&self, old: &Arc<Volume>) -> Result<Arc<Volume>, VolumeError> {
        self.take_group(old)?;
        let record = VolumeRecord { snapshot: None, ..old.record() };
        self.become_newest(old, old.id(), record)
    }

    /// Removes what is newer than a clone. Nobody may show it.
    fn take_group(&self, old: &Arc<Volume>) -> Result<(), VolumeError> {
        let Some(snapshot) = old.snapshot else { return Ok(()) };
        let mut state = lock(&old.group.state);
        if let Some(writable) = state.writable {
            return Err(VolumeError::VolumeExists(writable));
        }
        if state.frozen > 0 || state.filling > 0 || state.keeps_all {
            return Err(VolumeError::Busy(old.id()));
        }
        if state.views.keys().any(|view| *view > snapshot) {
            drop(state);
            return Err(self.later_clone(old));
        }
        // Nothing is swept while what the removed volume had written is taken away.
        state.filling += 1;
        drop(state);
        let removed = remove_newer(&self.shared(), old.group.id, snapshot);
        let mut state = lock(&old.group.state);
        state.filling = state.filling.saturating_sub(1);
        state.recount();
        drop(state);
        removed
    }

    /// Makes a volume the one of its group that can be changed, with this id and header.
    pub(crate) fn become_newest(
        &self,
        old: &Arc<Volume>,
        to: VolumeId,
        record: VolumeRecord,
    ) -> Result<Arc<Volume>, VolumeError> {
        let (shared, from) = (self.shared(), old.id());
        let counters = *lock(&old.counters);
        let mut state = lock(&old.group.state);
        old.check_whole()?;
        // What a dump of it still shows is shown by nobody afterwards, if it is changed meanwhile.
        let group = GroupRecord { needs_sweep: state.record.needs_sweep || state.frozen > 0, ..state.record };
        let mut batch = Batch::default();
        batch.put(keys::group(old.group.id), group.encode());
        if from != to {
            batch.delete(keys::volume(from));
            batch.delete(keys::counters(from));
        }
        batch.put(keys::volume(to), record.encode());
        batch.put(keys::counters(to), counters.encode());
        let seq = shared.store.submit(batch)?;
        old.set_gone();
        state.record = group;
        state.writable = Some(to);
        old.snapshot.into_iter().for_each(|snapshot| state.remove_view(snapshot));
        drop(state);
        let new = Arc::new(Volume::new(to, shared.clone(), old.group.clone(), record, counters));
        new.set_state(old.state());
        self.replace_volume(from, new.clone());
        shared.settle(seq)?;
        Ok(new)
    }

    /// The volume whose snapshot is in the way.
    fn later_clone(&self, old: &Volume) -> VolumeError {
        let is_later =
            |volume: &Arc<Volume>| volume.group.id == old.group.id && volume.snapshot > old.snapshot;
        let found = self.volumes().into_iter().find(is_later).map(|volume| volume.id());
        found.map_or(VolumeError::Busy(old.id()), VolumeError::VolumeExists)
    }
}
