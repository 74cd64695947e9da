//! Snapshots that come along with a volume that is being filled here from where it was. Like the volume they are to be destroyed and not in service
//! until it is whole, so that nobody sees a snapshot of a volume that never came.

use crate::{NewClone, Partition, SNAPSHOTS_MAX, SnapshotKind, Stamp, Volume, VolumeError, VolumeKind};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};
use std::sync::Arc;

impl Partition {
    /// Makes a snapshot of a volume that is being filled, as it is now, with the id and the time that the snapshot has where the volume comes from.
    ///
    /// # Errors
    ///
    /// The volume is not here, or not one that is being filled ([`VolumeError::ReadOnly`]); the id is taken, or there is a snapshot of this
    /// second ([`VolumeError::VolumeExists`]); there are [`SNAPSHOTS_MAX`]; the disk failed.
    ///
    /// # Panics
    ///
    /// The id is 0.
    pub fn carry_snapshot(
        &self,
        of: VolumeId,
        id: VolumeId,
        kind: SnapshotKind,
        made: AfsTime,
    ) -> Result<Arc<Volume>, VolumeError> {
        let _one_at_a_time = self.changing();
        let volume = self.volume(of)?;
        let info = volume.header().info;
        if info.kind != VolumeKind::ReadWrite || !volume.is_writable() || !info.destroy_me {
            return Err(VolumeError::ReadOnly(of));
        }
        self.check_new(id, &info.name)?;
        let there = self.snapshots_of(of);
        if let Some(same) = there.iter().find(|other| other.header().info.creation_date == made) {
            return Err(VolumeError::VolumeExists(same.id()));
        }
        if there.len() >= SNAPSHOTS_MAX {
            return Err(VolumeError::TooMany);
        }
        let new = NewClone { id, name: info.name, kind: VolumeKind::Snapshot(kind) };
        self.make_clone(of, &new, None, Stamp { who: ViceId(0), now: made })
    }

    /// Brings the snapshots into service that came along with a volume, which is whole now.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn keep_carried(&self, of: VolumeId) -> Result<(), VolumeError> {
        let keep = |snapshot: Arc<Volume>| {
            snapshot.change_info(|info| (info.in_service, info.destroy_me) = (true, false))
        };
        self.carried(of).into_iter().try_for_each(keep)
    }

    /// Removes the snapshots that came along with a volume which did not become whole.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn remove_carried(&self, of: VolumeId) -> Result<(), VolumeError> {
        self.carried(of).into_iter().try_for_each(|snapshot| self.delete_volume(snapshot.id()))
    }

    fn carried(&self, of: VolumeId) -> Vec<Arc<Volume>> {
        let mut found = self.snapshots_of(of);
        found.retain(|snapshot| snapshot.header().info.destroy_me);
        found
    }
}
