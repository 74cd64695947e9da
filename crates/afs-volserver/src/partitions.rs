//! The partitions of a server, by their numbers: one list for the file service and the volume service.

use std::collections::BTreeMap;
use std::sync::Arc;

use afs_volume::{Partition, Volume};
use afs_wire::ids::{PartitionId, VolumeId};

/// The partitions of a server. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub struct Partitions(Arc<BTreeMap<PartitionId, Partition>>);

impl Partitions {
    /// These partitions, which stay the same for as long as the server runs.
    pub fn new(partitions: impl IntoIterator<Item = (PartitionId, Partition)>) -> Self {
        Self(Arc::new(partitions.into_iter().collect()))
    }

    /// A partition.
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.0.get(&id)
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PartitionId, &Partition)> {
        self.0.iter().map(|(id, partition)| (*id, partition))
    }

    /// A volume, and where it is.
    pub fn find(&self, id: VolumeId) -> Option<(PartitionId, Arc<Volume>)> {
        self.iter().find_map(|(partition, of)| Some((partition, of.volume(id).ok()?)))
    }
}
