//! The end of a restore that is not committed: what came is kept for one that goes on with it, or the volume is rolled back to what it
//! had.

use super::{Restore, may_rest_in_place};
use crate::group;
use crate::keys::{self, GroupId, Key, Part, Replaced, Snapshot, VnodeKey};
use crate::records::{self, ChunkRecord, VolumeRecord};
use crate::shared::Shared;
use crate::{Partition, Volume, VolumeError};
use afs_store::{Batch, lock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Restore {
    /// Keeps what came until now, as far as it is whole.
    fn keep(&mut self) -> Result<(), VolumeError> {
        self.volume.check_whole()?;
        self.flush()?;
        self.rest();
        Ok(())
    }

    /// Leaves what came where it is, unless the volume is another one by now.
    fn rest(&self) {
        let mut state = lock(&self.volume.group.state);
        if !matches!(self.volume.check_whole(), Err(VolumeError::NoVolume(_))) {
            let info = self.volume.record().info;
            state.is_half |= info.destroy_me || may_rest_in_place(&info);
            self.volume.rests_since.store(0, Ordering::Release);
            self.volume.rests.store(true, Ordering::Release);
        }
    }

    /// True if anything is there that is worth keeping, of this restore or of one before.
    fn has_any(&self) -> bool {
        let has_arrived = self.arrived.as_ref().is_some_and(|arrived| !arrived.is_empty());
        has_arrived || self.partial.is_some() || !self.named.is_empty()
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if self.keeps && self.open.as_ref().is_some_and(|open| open.received == open.record.status.length) {
            // What fails here fails again below.
            let _ = self.end_vnode();
        }
        let chunk = self.open.as_mut().and_then(|open| open.chunk.take());
        if let Some(chunk) = chunk {
            self.shared.give_up_file(chunk.file, chunk.name);
        }
        if self.keeps && self.has_any() && self.keep().is_ok() {
            return;
        }
        for (file, name) in self.files.drain(..).zip(std::mem::take(&mut self.batch.files)) {
            self.shared.give_up_file(file, name);
        }
        let _one_at_a_time = self.partition.changing();
        if roll_back(&self.partition, &self.volume).is_err() {
            // The volume cannot be changed until it is tried again ([`Partition::forget_half`]): by whoever makes or removes volumes of it, from
            // time to time, and by the next start.
            self.rest();
        }
    }
}

impl Volume {
    /// A restore has ended: the volume shows the newest again. Under the group's lock.
    pub(super) fn leave_snapshot(&self, state: &mut group::GroupState) {
        self.set_gone();
        state.wants_full_sweep = true;
        state.filling = state.filling.saturating_sub(1);
        (state.writable, state.is_half) = (Some(self.id), false);
        self.snapshot.into_iter().for_each(|snapshot| state.remove_view(snapshot));
    }
}

/// Removes what a restore has written, and lets the volume show the newest again, which is then what it was.
pub(super) fn roll_back(partition: &Partition, volume: &Arc<Volume>) -> Result<(), VolumeError> {
    let shared = partition.shared();
    let Some(snapshot) = volume.snapshot else { return Ok(()) };
    volume.check_whole()?;
    remove_newer(&shared, volume.group.id, snapshot)?;
    let counters = *lock(&volume.counters);
    let record = VolumeRecord { snapshot: None, is_restoring: false, ..volume.record() };
    let mut state = lock(&volume.group.state);
    let mut batch = Batch::default();
    batch.put(keys::volume(volume.id), record.encode());
    batch.delete(keys::partial(volume.group.id));
    let seq = shared.store.submit(batch)?;
    volume.leave_snapshot(&mut state);
    drop(state);
    let new = Arc::new(Volume::new(volume.id, shared.clone(), volume.group.clone(), record, counters));
    new.set_state(volume.state());
    new.is_filled.store(volume.is_filled.load(Ordering::Acquire), Ordering::Release);
    partition.put_volume(new);
    shared.settle(seq)
}

/// Removes all rows of a group that were written behind a snapshot, with the files that they name.
pub(crate) fn remove_newer(
    shared: &Arc<Shared>,
    group: GroupId,
    snapshot: Snapshot,
) -> Result<(), VolumeError> {
    remove_rows(shared, &keys::group_prefix(group), |key| key.snapshot > snapshot)?;
    // What these had replaced is the newest again.
    let prefix = Replaced::prefix(group);
    let mut from = Some(Replaced::from(group, Snapshot(snapshot.0 + 1), Snapshot::NOTHING));
    while let Some(start) = from {
        let (rows, next) = shared.store.page(&start, &prefix)?;
        let mut batch = Batch::default();
        rows.into_iter().for_each(|(key, _)| batch.delete(key));
        shared.store.submit(batch)?;
        from = next;
    }
    Ok(())
}

/// Removes rows of vnodes that begin so, with the files that they name.
pub(super) fn remove_rows(
    shared: &Arc<Shared>,
    prefix: &[u8],
    goes: impl Fn(&VnodeKey) -> bool,
) -> Result<(), VolumeError> {
    let mut from = Some(Key(prefix.to_vec()));
    while let Some(start) = from {
        let (rows, next) = shared.store.page(&start, prefix)?;
        let (mut batch, mut garbage) = (Batch::default(), Vec::new());
        let mut seen = BTreeSet::new();
        for (key, row) in rows {
            let Some(parsed) = VnodeKey::parse(&key).filter(&goes) else {
                continue;
            };
            if let Part::Chunk(n) = parsed.part
                && let Some(chunk) = ChunkRecord::decode(&row)?
                && seen.insert(chunk.file)
            {
                Shared::discard(&mut batch, chunk.file, &parsed, n);
                garbage.push((chunk.file, records::file_name(chunk.file, &parsed, n)));
            }
            batch.delete(key);
        }
        let seq = shared.store.submit(batch)?;
        shared.note_garbage(seq, garbage);
        shared.store.written(seq)?;
        from = next;
    }
    Ok(())
}
