//! What a removed volume leaves: a snapshot that shows the volume as it was, until a date, and of which the volume is made again if it was not
//! to go. When the snapshot itself is to go is for others to say.

use crate::records::{Counters, VolumeRecord};
use crate::{NAME_MAX, Partition, SnapshotKind, Stamp, Volume, VolumeError, VolumeKind, keys};
use afs_store::{Batch, lock};
use afs_wire::ids::{AfsTime, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Partition {
    /// Removes a read-write volume, and leaves a snapshot of it with this id, both at once and in a time that does not depend on the volume's
    /// size. The snapshot has the volume's own schedule and ids of clones, and this expiration date. Its creation date is the time of the removal,
    /// or the first second after it of which there is no snapshot.
    ///
    /// # Errors
    ///
    /// The volume is not here, or no read-write volume ([`VolumeError::ReadOnly`]), or being filled ([`VolumeError::Busy`]); the id is taken
    /// ([`VolumeError::VolumeExists`]); the disk failed.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn remove_leaving(
        &self,
        of: VolumeId,
        id: VolumeId,
        until: AfsTime,
        stamp: Stamp,
    ) -> Result<Arc<Volume>, VolumeError> {
        let _one_at_a_time = self.changing();
        let volume = self.volume(of)?;
        let mut info = volume.header().info;
        if info.kind != VolumeKind::ReadWrite || !volume.is_writable() {
            return Err(VolumeError::ReadOnly(of));
        }
        if volume.rests.load(Ordering::Acquire) {
            return Err(VolumeError::Busy(of));
        }
        self.check_new(id, &info.name)?;
        let taken: Vec<AfsTime> =
            self.snapshots_of(of).iter().map(|snapshot| snapshot.header().info.creation_date).collect();
        let free = (stamp.now.0..=u32::MAX).map(AfsTime).find(|time| !taken.contains(time));
        info.creation_date = free.ok_or(VolumeError::TooMany)?;
        info.kind = VolumeKind::Snapshot(SnapshotKind::Removed);
        (info.parent, info.expiration_date) = (of, until);
        (info.in_service, info.destroy_me) = (true, false);
        let shared = self.shared();
        let mut state = lock(&volume.group.state);
        volume.check_whole()?;
        let snapshot = state.record.current;
        let mut group = state.record;
        group.current = snapshot.next()?;
        let counters = Counters { updates: 0, ..*lock(&volume.counters) };
        let record =
            VolumeRecord { group: volume.group.id, snapshot: Some(snapshot), is_restoring: false, info };
        let mut batch = Batch::default();
        batch.put(keys::group(volume.group.id), group.encode());
        batch.delete(keys::volume(of));
        batch.delete(keys::counters(of));
        batch.put(keys::volume(id), record.encode());
        batch.put(keys::counters(id), counters.encode());
        let seq = shared.store.submit(batch)?;
        state.record = group;
        state.add_view(snapshot);
        state.writable = None;
        volume.set_gone();
        drop(state);
        let left = Arc::new(Volume::new(id, shared.clone(), volume.group.clone(), record, counters));
        self.replace_volume(of, left.clone());
        shared.settle(seq)?;
        Ok(left)
    }

    /// The volumes of a clone's group that show something later, which keep it from becoming the read-write volume.
    ///
    /// # Errors
    ///
    /// It is not here.
    pub fn later_than(&self, clone: VolumeId) -> Result<Vec<Arc<Volume>>, VolumeError> {
        let old = self.volume(clone)?;
        let mut found = self.volumes();
        found.retain(|volume| volume.group.id == old.group.id && volume.view() > old.view());
        Ok(found)
    }

    /// Makes of the snapshot that a removed volume has left the read-write volume `to` again, with this name. As the volume it was, it has the
    /// clones' ids that it had; as another one, none. The snapshot's id is gone then.
    ///
    /// # Errors
    ///
    /// It is not here, or no such snapshot ([`VolumeError::ReadOnly`]); `to` is here ([`VolumeError::VolumeExists`]); the name is none; the
    /// disk failed. Then all is as it was.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn bring_back(&self, left: VolumeId, to: VolumeId, name: &str) -> Result<Arc<Volume>, VolumeError> {
        assert_ne!(to, VolumeId(0), "the caller refuses volume id 0");
        let _one_at_a_time = self.changing();
        let old = self.volume(left)?;
        if old.snapshot_kind() != Some(SnapshotKind::Removed) {
            return Err(VolumeError::ReadOnly(left));
        }
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(VolumeError::BadName);
        }
        match self.volume(to) {
            Err(VolumeError::NoVolume(_)) => {}
            Ok(_) | Err(_) => return Err(VolumeError::VolumeExists(to)),
        }
        // Nobody has written since: only a volume that can be changed is written to, and the group has none.
        if let Some(writable) = lock(&old.group.state).writable {
            return Err(VolumeError::VolumeExists(writable));
        }
        let mut record = VolumeRecord { snapshot: None, ..old.record() };
        let info = &mut record.info;
        name.clone_into(&mut info.name);
        if info.parent != to {
            (info.clone, info.backup) = (VolumeId(0), VolumeId(0));
        }
        (info.kind, info.parent) = (VolumeKind::ReadWrite, to);
        info.expiration_date = AfsTime(0);
        self.become_newest(&old, to, record)
    }
}
