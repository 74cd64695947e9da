//! A read-only volume that becomes the read-write volume of its group, after that was lost: in its place, without copying anything. Whether
//! the read-write volume is gone everywhere is for those to know who ask for it.

use crate::keys;
use crate::records::VolumeRecord;
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
        assert_ne!(to, VolumeId(0), "whoever asks has refused that");
        let _one_at_a_time = self.changing();
        let shared = self.shared();
        let old = self.volume(from)?;
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
        if let Some(snapshot) = old.snapshot {
            let mut state = lock(&old.family.state);
            if let Some(writable) = state.writable {
                return Err(VolumeError::VolumeExists(writable));
            }
            if state.frozen > 0 || state.keeps_all {
                return Err(VolumeError::Busy(from));
            }
            if state.views.keys().any(|view| *view > snapshot) {
                drop(state);
                return Err(self.later_clone(&old));
            }
            // Nothing is swept while what the removed volume had written is taken away.
            state.frozen += 1;
            state.removals += 1;
            drop(state);
            let removed = remove_newer(&shared, old.family.id, snapshot);
            let mut state = lock(&old.family.state);
            state.frozen = state.frozen.saturating_sub(1);
            drop(state);
            removed?;
        }
        let counters = *lock(&old.counters);
        let mut record = VolumeRecord { snapshot: None, ..old.record() };
        let info = &mut record.info;
        name.clone_into(&mut info.name);
        (info.kind, info.parent) = (VolumeKind::ReadWrite, to);
        (info.clone, info.backup) = (VolumeId(0), VolumeId(0));
        let mut state = lock(&old.family.state);
        old.check_whole()?;
        let mut batch = Batch::default();
        batch.put(keys::volume(to), record.encode());
        batch.put(keys::counters(to), counters.encode());
        batch.delete(keys::volume(from));
        batch.delete(keys::counters(from));
        let seq = shared.store.submit(batch)?;
        old.set_gone();
        state.removals += 1;
        state.writable = Some(to);
        old.snapshot.into_iter().for_each(|snapshot| state.remove_view(snapshot));
        drop(state);
        let new = Arc::new(Volume::new(to, shared.clone(), old.family.clone(), record, counters));
        new.set_state(old.state());
        self.replace_volume(from, new.clone());
        shared.settle(seq)?;
        Ok(new)
    }

    /// The volume whose snapshot is in the way.
    fn later_clone(&self, old: &Volume) -> VolumeError {
        let is_later =
            |volume: &Arc<Volume>| volume.family.id == old.family.id && volume.snapshot > old.snapshot;
        let found = self.volumes().into_iter().find(is_later).map(|volume| volume.id());
        found.map_or(VolumeError::Busy(old.id()), VolumeError::VolumeExists)
    }
}
