//! The volumes of a partition by their ids, and the snapshots by the volume that they are of: a server may have a hundred thousand snapshots, and
//! is asked for those of one volume whenever somebody looks into them.

use crate::Volume;
use afs_wire::ids::VolumeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// See the module. Clones have the same volumes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volumes {
    all: BTreeMap<VolumeId, Arc<Volume>>,
    /// A volume is of another one for as long as it is there.
    snapshots: BTreeMap<VolumeId, BTreeSet<VolumeId>>,
}

impl Volumes {
    /// Puts a volume in place of the one of its id, if there is one.
    pub(crate) fn insert(&mut self, volume: Arc<Volume>) {
        let id = volume.id();
        self.remove(id);
        if let Some(of) = volume.snapshot_of() {
            self.snapshots.entry(of).or_default().insert(id);
        }
        self.all.insert(id, volume);
    }

    pub(crate) fn remove(&mut self, id: VolumeId) {
        let Some(of) = self.all.remove(&id).and_then(|volume| volume.snapshot_of()) else { return };
        if let Some(snapshots) = self.snapshots.get_mut(&of) {
            snapshots.remove(&id);
            if snapshots.is_empty() {
                self.snapshots.remove(&of);
            }
        }
    }

    pub(crate) fn get(&self, id: VolumeId) -> Option<&Arc<Volume>> {
        self.all.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.all.values()
    }

    /// The snapshots of a volume, by their ids.
    pub(crate) fn snapshots_of(&self, of: VolumeId) -> impl Iterator<Item = &Arc<Volume>> {
        self.snapshots.get(&of).into_iter().flatten().filter_map(|id| self.all.get(id))
    }
}
