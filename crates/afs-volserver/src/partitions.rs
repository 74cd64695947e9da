//! The partitions of a server, by their numbers: one list for the file service and the volume service.

use std::collections::BTreeMap;
use std::sync::Arc;

use afs_volume::{Partition, Volume, VolumeError};
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

    /// A volume, and where it is. While it moves from one partition to another there are two of its id: the one that is in service, or was
    /// last, and is not half-made.
    ///
    /// # Errors
    ///
    /// It is on none of them; or it is, and its rows are damaged ([`VolumeError::Offline`]).
    pub fn find(&self, id: VolumeId) -> Result<(PartitionId, Arc<Volume>), VolumeError> {
        let found = self.iter().map(|(at, partition)| partition.volume(id).map(|volume| (at, volume)));
        // One that is here and cannot be served is not elsewhere.
        let mut found = found.filter(|found| !matches!(found, Err(VolumeError::NoVolume(_))));
        let Some(mut best) = found.next() else { return Err(VolumeError::NoVolume(id)) };
        for other in found {
            if rank(&other) < rank(&best) {
                best = other;
            }
        }
        best
    }
}

fn rank(found: &Result<(PartitionId, Arc<Volume>), VolumeError>) -> u8 {
    let Ok((_, volume)) = found else { return 2 };
    let info = volume.header().info;
    match (info.destroy_me, info.in_service) {
        (true, _) => 3,
        (false, false) => 1,
        (false, true) => 0,
    }
}
