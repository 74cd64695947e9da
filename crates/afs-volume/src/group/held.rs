//! What clones hold: the bytes of versions that were replaced and that they still show. The notes of what was replaced tell them, so nobody looks at
//! all vnodes. The sums are in memory only: who notes something or removes it adds or subtracts, and after a start, or after a sweep of all
//! vnodes, all notes are counted in the background.

use super::{GroupHandle, GroupState};
use crate::VolumeError;
use crate::keys::{Key, Part, Replaced, Snapshot};
use crate::records::ChunkRecord;
use crate::shared::Shared;
use afs_store::{Batch, Store, StoreError, lock};
use std::collections::BTreeMap;

/// What the views of a group hold.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The bytes of which a view is the newest one that shows them. Under [`Snapshot::NOTHING`] is what no view shows any more.
    bytes: BTreeMap<Snapshot, u64>,
    /// The notes from this key on are still to be counted.
    next: Option<Key>,
}

/// The bytes that a version of a part takes: data in a file, or else its row.
pub(crate) fn bytes_of(part: Part, row: &[u8]) -> u64 {
    match part {
        Part::Chunk(_) => ChunkRecord::decode(row).ok().flatten().map_or(0, |chunk| u64::from(chunk.length)),
        Part::Status | Part::Inline | Part::Page(_) => row.len() as u64,
    }
}

/// The bytes of a version that was replaced. One that cannot be read takes none that anybody could give back.
fn replaced_bytes(store: &Store, note: &Replaced) -> u64 {
    let row = store.get(&note.version.key()).ok().flatten();
    row.map_or(0, |row| bytes_of(note.version.part, &row))
}

/// The versions that a batch notes as replaced, and their bytes.
pub(crate) fn noted(store: &Store, batch: &Batch) -> Vec<(Replaced, u64)> {
    let put = batch.rows.iter().filter(|(_, row)| row.is_some());
    let notes = put.filter_map(|(key, _)| Replaced::parse(key));
    notes.map(|note| (note, replaced_bytes(store, &note))).collect()
}

impl GroupState {
    /// The bytes of which a view is the newest one that shows them, if they are known.
    pub(crate) fn held_by(&self, view: Snapshot) -> Option<u64> {
        let is_known = self.held.next.is_none() && !self.wants_full_sweep && !self.keeps_all;
        is_known.then(|| self.held.bytes.get(&view).copied().unwrap_or(0))
    }

    /// Has all be counted anew.
    pub(crate) fn recount(&mut self) {
        self.held = Held { bytes: BTreeMap::new(), next: Some(Key(Vec::new())) };
    }

    /// Counts a version that is noted as replaced from now on.
    pub(crate) fn hold(&mut self, note: &Replaced, bytes: u64) {
        if self.is_counted(note) {
            self.add(note, bytes);
        }
    }

    /// Counts a version no more, which goes.
    pub(crate) fn let_go(&mut self, note: &Replaced, bytes: u64) {
        let view = self.newest_before(note.at);
        if self.is_counted(note)
            && let Some(held) = self.held.bytes.get_mut(&view)
        {
            *held = held.saturating_sub(bytes);
        }
    }

    /// What a view has held that goes is held by the one before it, or goes too.
    pub(super) fn pass_on(&mut self, gone: Snapshot) {
        if let Some(bytes) = self.held.bytes.remove(&gone) {
            *self.held.bytes.entry(self.newest_before(gone)).or_default() += bytes;
        }
    }

    fn add(&mut self, note: &Replaced, bytes: u64) {
        *self.held.bytes.entry(self.newest_before(note.at)).or_default() += bytes;
    }

    fn is_counted(&self, note: &Replaced) -> bool {
        self.held.next.as_ref().is_none_or(|next| note.key() < *next)
    }

    fn newest_before(&self, snapshot: Snapshot) -> Snapshot {
        self.views.range(..snapshot).next_back().map_or(Snapshot::NOTHING, |(view, _)| *view)
    }
}

/// Counts what is still to be counted, with others between one page of notes and the next. Says whether there was something.
pub(crate) fn count(
    shared: &Shared,
    group: &GroupHandle,
    is_ended: &dyn Fn() -> bool,
) -> Result<bool, VolumeError> {
    let prefix = Replaced::prefix(group.id);
    let mut has_done = false;
    while !is_ended() {
        let mut state = lock(&group.state);
        if state.wants_full_sweep || state.views.is_empty() {
            break;
        }
        let Some(from) = state.held.next.take() else { break };
        let from = from.max(Key(prefix.clone()));
        match shared.store.page(&from, &prefix) {
            Ok((rows, next)) => {
                for note in rows.iter().filter_map(|(key, _)| Replaced::parse(key)) {
                    let bytes = replaced_bytes(&shared.store, &note);
                    state.add(&note, bytes);
                }
                state.held.next = next;
            }
            Err(error) => {
                state.held.next = Some(from);
                // It stays unknown until the damage is repaired.
                return if matches!(error, StoreError::Damaged { .. }) {
                    Ok(false)
                } else {
                    Err(error.into())
                };
            }
        }
        has_done = true;
    }
    Ok(has_done)
}
