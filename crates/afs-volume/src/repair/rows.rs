//! Rows that are written for one volume, so that the clones of its group, and what they are clones of, go on to show what they show; and
//! rows that no volume shows, and the notes of what was replaced.

use super::Ledger;
use crate::fsck::notes;
use crate::group::{self, GroupHandle, GroupState, Versions};
use crate::keys::{self, Part, Replaced, Snapshot, VnodeKey};
use crate::shared::Shared;
use crate::{Volume, VolumeError};
use afs_store::{Batch, Bytes, Key, lock};
use afs_wire::ids::VnodeNumber;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that are collected before they are written.
const AT_ONCE: usize = 1 << 20;

/// Rows that are to be written.
pub(super) struct Rows<'a> {
    volume: &'a Volume,
    batch: Batch,
    bytes: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self { volume, batch: Batch::default(), bytes: 0 }
    }

    /// Puts a row that belongs to no vnode.
    pub(super) fn put_other(&mut self, key: Key, value: Vec<u8>) {
        self.batch.put(key, value);
    }

    /// Lets the volume show a value of a part, or that there is none.
    pub(super) fn put(
        &mut self,
        vnode: VnodeNumber,
        part: Part,
        value: Option<Vec<u8>>,
    ) -> Result<(), VolumeError> {
        let (store, group) = (&self.volume.shared.store, self.volume.group.id);
        let state = lock(&self.volume.group.state);
        let at = self.volume.snapshot.unwrap_or(state.record.current);
        let key = |snapshot| VnodeKey { group, vnode, part, snapshot }.key();
        let found = group::part(store, group, vnode, part, self.volume.view())?;
        let before = found.as_ref().map(|(snapshot, _)| *snapshot);
        // Whoever shows the same row as this clone, and is newer, shows it on.
        if let Some(next) = next_view(&state, self.volume) {
            let shown = group::part(store, group, vnode, part, next)?;
            let copied = shown.as_ref().map(|(snapshot, _)| *snapshot);
            if copied == before {
                let to = if next == Snapshot::NEWEST { state.record.current } else { next };
                let is_alive = part == Part::Status
                    || group::part(store, group, vnode, Part::Status, next)?
                        .is_some_and(|(_, row)| !row.is_empty());
                match found {
                    Some((_, row)) if to != at => self.batch.put(key(to), row),
                    None if to != at && is_alive => self.batch.put(key(to), Vec::new()),
                    _ => {}
                }
            }
        }
        let is_shown_before = before.is_some_and(|before| before < at && is_shown(&state, before, at));
        // What is below a row that goes is not to appear again.
        let is_oldest = match before.and_then(|before| before.0.checked_sub(1)) {
            Some(below) => group::part(store, group, vnode, part, Snapshot(below))?.is_none(),
            None => true,
        };
        let stays = is_shown_before || !is_oldest;
        self.bytes += value.as_ref().map_or(0, Vec::len) + 64;
        match value {
            Some(value) => self.batch.put(key(at), value),
            None if stays => self.batch.put(key(at), Vec::new()),
            None => self.batch.delete(key(at)),
        }
        if let Some(before) = before.filter(|&before| before < at && !is_shown_before) {
            self.batch.delete(key(before));
        }
        Ok(())
    }

    /// Writes what was collected, if that is much.
    pub(super) fn flush_some(&mut self, ledger: &mut Ledger<'_>) -> Result<(), VolumeError> {
        if self.bytes > AT_ONCE { self.flush(ledger) } else { Ok(()) }
    }

    /// Writes what was collected.
    pub(super) fn flush(&mut self, ledger: &mut Ledger<'_>) -> Result<(), VolumeError> {
        self.bytes = 0;
        ledger.submit(&self.volume.shared.store, std::mem::take(&mut self.batch))
    }
}

/// The view after a clone's.
fn next_view(state: &GroupState, volume: &Volume) -> Option<Snapshot> {
    let this = volume.snapshot?;
    let newest = state.writable.map(|_| Snapshot::NEWEST);
    state.views.keys().copied().find(|view| *view > this).or(newest)
}

/// True if a clone that is older than `at` shows what was written in a snapshot.
fn is_shown(state: &GroupState, written: Snapshot, at: Snapshot) -> bool {
    state.keeps_all || state.views.range(written..at).next().is_some()
}

/// Removes the rows of vnodes that no volume shows, and notes what was replaced.
pub(super) fn remove_unseen(shared: &Arc<Shared>, ledger: &mut Ledger<'_>) -> Result<(), VolumeError> {
    let groups: Vec<_> = lock(&shared.groups).values().cloned().collect();
    for group in groups {
        let views = {
            let state = lock(&group.state);
            // What is to be swept goes when the server runs; and nothing goes while it is not known what is shown.
            let is_swept = state.record.needs_sweep || !state.may_be_swept() || state.keeps_all;
            if is_swept || (state.views.is_empty() && state.writable.is_none()) {
                continue;
            }
            state.all_views()
        };
        let mut of_vnode: (VnodeNumber, Versions) = (VnodeNumber(0), BTreeMap::new());
        let (mut batch, mut noted) = (Batch::default(), 0);
        let mut finish = |(vnode, versions): (VnodeNumber, Versions), batch: &mut Batch| {
            let unseen = group::unseen(&versions, &views);
            for &(part, snapshot) in &unseen {
                let what = format!("vnode {vnode} of volume group {}", group.id.0);
                ledger.say(
                    None,
                    what,
                    format!("removes {part:?} of snapshot {}, which no volume shows", snapshot.0),
                );
                batch.delete(VnodeKey { group: group.id, vnode, part, snapshot }.key());
            }
            for (at, part, snapshot) in group::replaced(&versions, &unseen) {
                let note = Replaced { at, version: VnodeKey { group: group.id, vnode, part, snapshot } };
                if !notes::is_noted(&shared.store, &views, note)? {
                    batch.put(note.key(), Vec::new());
                    noted += 1;
                }
            }
            Ok::<(), VolumeError>(())
        };
        let scanned = shared.store.scan::<VolumeError>(&keys::group_prefix(group.id), |key, row| {
            let Some(VnodeKey { vnode, part, snapshot, .. }) = VnodeKey::parse(key) else { return Ok(()) };
            if vnode != of_vnode.0 {
                finish(std::mem::replace(&mut of_vnode, (vnode, BTreeMap::new())), &mut batch)?;
            }
            // Of data, only whether there are some matters.
            let row: Bytes = if row.is_empty() { row.clone() } else { Arc::from([0].as_slice()) };
            of_vnode.1.entry(part).or_default().push((snapshot, row));
            Ok(())
        });
        match scanned.and_then(|()| finish(of_vnode, &mut batch)) {
            // Those of the vnode that it was at may not all have been seen.
            Ok(()) | Err(VolumeError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        ledger.submit(&shared.store, batch)?;
        let forgotten = forget_notes(shared, &group, &views, ledger)?;
        if noted + forgotten > 0 {
            let why = format!("notes that {noted} rows were replaced, and removes {forgotten} such notes");
            ledger.say(None, format!("volume group {}", group.id.0), why);
        }
    }
    Ok(())
}

/// Removes notes that are of no use any more. Says how many.
fn forget_notes(
    shared: &Arc<Shared>,
    group: &GroupHandle,
    views: &[Snapshot],
    ledger: &mut Ledger<'_>,
) -> Result<usize, VolumeError> {
    let mut batch = Batch::default();
    let scanned = shared.store.scan::<VolumeError>(&Replaced::prefix(group.id), |key, _| {
        let Some(note) = Replaced::parse(key) else { return Ok(()) };
        let is_left = notes::is_left(views.iter().copied(), note);
        if is_left && shared.store.get(&note.version.key())?.is_none() {
            batch.delete(key.clone());
        }
        Ok(())
    });
    match scanned {
        Ok(()) | Err(VolumeError::Damaged { .. }) => {}
        Err(error) => return Err(error),
    }
    let count = batch.rows.len();
    ledger.submit(&shared.store, batch)?;
    Ok(count)
}
