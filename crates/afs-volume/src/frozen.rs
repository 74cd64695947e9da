//! A volume as it was at one moment, to be read for as long as that takes while others go on to change it: what a dump is made of. Takes
//! a snapshot like a clone, and no row of a volume names it, so that it ends with the process.

use crate::keys::{self, Snapshot};
use crate::records::VolumeRecord;
use crate::{VnodeStatus, Volume, VolumeError};
use afs_store::{Batch, lock};
use afs_wire::acl::Acl;
use afs_wire::ids::VnodeNumber;
use std::ops::Deref;
use std::sync::Arc;

/// A volume as it was. What only it shows goes some time after it is dropped.
#[derive(Debug)]
pub struct Frozen {
    volume: Arc<Volume>,
    snapshot: Snapshot,
    /// The numbers of the vnodes that it has, if rows between theirs cannot be read.
    known: Option<Vec<VnodeNumber>>,
}

impl Deref for Frozen {
    type Target = Arc<Volume>;

    fn deref(&self) -> &Arc<Volume> {
        &self.volume
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let mut state = lock(&self.volume.group.state);
        state.frozen -= 1;
        state.remove_view(self.snapshot);
    }
}

impl Volume {
    /// The volume as it is now, in a time that does not depend on its size.
    ///
    /// # Errors
    ///
    /// It is gone; the disk failed.
    pub fn freeze(&self) -> Result<Frozen, VolumeError> {
        let mut state = lock(&self.group.state);
        self.check_whole()?;
        let counters = *lock(&self.counters);
        let snapshot = match self.snapshot {
            Some(snapshot) => snapshot,
            None => {
                let snapshot = state.record.current;
                let mut group = state.record;
                group.current = snapshot.next()?;
                // What is written from now on is beside what is frozen; that is swept, also if this process ends before it is let go.
                group.needs_sweep = true;
                let mut batch = Batch::default();
                batch.put(keys::group(self.group.id), group.encode());
                self.shared.store.submit(batch)?;
                state.record = group;
                snapshot
            }
        };
        state.add_view(snapshot);
        state.frozen += 1;
        let record = VolumeRecord { snapshot: Some(snapshot), is_restoring: false, ..self.record() };
        let (shared, group) = (self.shared.clone(), self.group.clone());
        let volume = Arc::new(Volume::new(self.id, shared, group, record, counters));
        Ok(Frozen { volume, snapshot, known: None })
    }

    /// Directories, or everything else, in the order of their numbers and from a number on, at most `limit`: for dumps. A directory comes
    /// with its access list. An empty answer is the end.
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
        let records = self.some_vnode_records(from, limit, |number| number.is_directory() == is_directory)?;
        Ok(records.into_iter().map(|record| (record.status, record.acl)).collect())
    }
}

impl Frozen {
    /// The same with only these vnodes, which are in order.
    pub(crate) fn only(mut self, known: Vec<VnodeNumber>) -> Self {
        self.known = Some(known);
        self
    }

    /// As [`Volume::vnodes_of_class`].
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
        let Some(known) = &self.known else { return self.volume.vnodes_of_class(is_directory, from, limit) };
        let rest = &known[known.partition_point(|number| *number < from)..];
        let wanted = rest.iter().filter(|number| number.is_directory() == is_directory).take(limit);
        let mut found = Vec::new();
        for &number in wanted {
            let record = self.volume.group.vnode(&self.volume.shared.store, number, self.snapshot)?;
            found.extend(record.map(|(_, record)| (record.status, record.acl)));
        }
        Ok(found)
    }
}

impl Snapshot {
    /// The one after it.
    pub(crate) fn next(self) -> Result<Self, VolumeError> {
        Ok(Self(self.0.checked_add(1).filter(|&s| s < u32::MAX - 1).ok_or(VolumeError::TooMany)?))
    }
}
