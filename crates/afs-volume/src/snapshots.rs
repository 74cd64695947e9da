//! Snapshots of a volume: clones that are kept beside each other, as many as people want, each with an id of its own that is never used for
//! another. A snapshot has its volume's name, and people know it by its creation date. When it is to be made and removed is for others to say.

use crate::group::GroupHandle;
use crate::{NewClone, Partition, SnapshotKind, Stamp, Volume, VolumeError, VolumeKind};
use afs_store::lock;
use afs_wire::ids::VolumeId;
use std::sync::Arc;

/// Most snapshots of a volume on a partition. Each is a volume, which costs a kilobyte of memory.
pub const SNAPSHOTS_MAX: usize = if cfg!(test) { 400 } else { 4096 };

impl Volume {
    /// The bytes of which this clone is the newest that has them, as they were replaced in the volume after it was made: if it and all older
    /// ones go, this space comes back. `None` while that is not known: after a start, after a restore, and if it is no clone.
    #[must_use]
    pub fn held_bytes(&self) -> Option<u64> {
        let view = self.snapshot?;
        let state = lock(&self.group.state);
        let replaced = state.held_by(view)?;
        let is_newest = state.writable.is_none() && state.views.keys().next_back() == Some(&view);
        // It has also what nothing has replaced.
        let rest_kib = if is_newest { lock(&self.counters).used_kib } else { 0 };
        Some(replaced + (rest_kib << 10))
    }

    /// True while the space comes back of what nobody has any more in its volume group.
    #[must_use]
    pub fn gives_space_back(&self) -> bool {
        lock(&self.group.state).is_to_be_swept()
    }
}

impl Partition {
    /// Makes a snapshot of a read-write volume as it is now, in a time that does not depend on the volume's size. It is in service at once.
    ///
    /// # Errors
    ///
    /// The volume is not here, or no read-write volume ([`VolumeError::ReadOnly`]), or half-made ([`VolumeError::Busy`]); the id is taken,
    /// or there is a snapshot of this second ([`VolumeError::VolumeExists`]); there are [`SNAPSHOTS_MAX`]; the disk failed.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn make_snapshot(
        &self,
        of: VolumeId,
        id: VolumeId,
        is_scheduled: bool,
        stamp: Stamp,
    ) -> Result<Arc<Volume>, VolumeError> {
        let _one_at_a_time = self.changing();
        let volume = self.volume(of)?;
        let info = volume.header().info;
        if info.kind != VolumeKind::ReadWrite || !volume.is_writable() {
            return Err(VolumeError::ReadOnly(of));
        }
        if info.destroy_me {
            return Err(VolumeError::Busy(of));
        }
        self.check_new(id, &info.name)?;
        let there = self.snapshots_of(of);
        if let Some(same) = there.iter().find(|other| other.header().info.creation_date == stamp.now) {
            return Err(VolumeError::VolumeExists(same.id()));
        }
        if there.len() >= SNAPSHOTS_MAX {
            return Err(VolumeError::TooMany);
        }
        let kind = if is_scheduled { SnapshotKind::Scheduled } else { SnapshotKind::Manual };
        let kind = VolumeKind::Snapshot(kind);
        self.make_clone(of, &NewClone { id, name: info.name, kind }, None, stamp)
    }

    /// True while the space comes back of what nobody has any more on it.
    #[must_use]
    pub fn gives_space_back(&self) -> bool {
        let groups: Vec<Arc<GroupHandle>> = lock(&self.shared().groups).values().cloned().collect();
        groups.iter().any(|group| lock(&group.state).is_to_be_swept())
    }

    /// The snapshots of a volume that are on this partition, the oldest first. The volume itself may be elsewhere, or removed.
    #[must_use]
    pub fn snapshots_of(&self, volume: VolumeId) -> Vec<Arc<Volume>> {
        let mut found = self.snapshots_by_id(volume);
        found.sort_by_key(|snapshot| (snapshot.sync_date(), snapshot.id()));
        found
    }
}
