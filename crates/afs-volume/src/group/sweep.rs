//! Removes the rows that no view shows any more. Where only views have gone, the notes of what was replaced say which rows these may be, so
//! that nothing else is looked at. Otherwise all vnodes are looked at. What goes is in both cases decided by the rows and the views as they are at
//! that moment: a note that is wrong costs a look and no data.

use super::{GroupHandle, GroupState, Versions, held, part, replaced, unseen};
use crate::VolumeError;
use crate::fsck::notes::is_noted;
use crate::keys::{self, FileId, Key, Part, Replaced, Snapshot, VnodeKey};
use crate::records::{self, ChunkRecord};
use crate::shared::Shared;
use afs_store::{Batch, Bytes, after, lock};
use afs_wire::ids::VnodeNumber;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Notes after which what was removed is written: some ten kilobytes.
const AT_ONCE: u64 = 256;

/// Removes rows that no volume shows, and puts the files they name among the garbage; the group too, when no volume is left. Others change
/// volumes meanwhile, between one note, or vnode, and the next. What is left at the end comes again. Says how many rows were looked at.
pub(crate) fn sweep(
    shared: &Arc<Shared>,
    group: &GroupHandle,
    is_ended: &dyn Fn() -> bool,
) -> Result<u64, VolumeError> {
    let (is_full, gone) = {
        let mut state = lock(&group.state);
        if state.wants_full_sweep {
            state.recount();
        }
        (std::mem::take(&mut state.wants_full_sweep), state.gone.clone())
    };
    let mut sweep = Sweep { shared, group, is_ended, rows: 0 };
    let swept = if is_full { sweep.all() } else { sweep.what_showed(&gone) };
    let mut state = lock(&group.state);
    if !matches!(swept, Ok(true)) {
        state.wants_full_sweep |= is_full;
        return swept.map(|_| sweep.rows);
    }
    state.gone.retain(|view| !gone.contains(view));
    if state.wants_full_sweep || !state.gone.is_empty() || state.frozen > 0 {
        // No row tells of what is frozen: so the next start sweeps if this process ends first.
        return Ok(sweep.rows);
    }
    let mut batch = Batch::default();
    if state.views.is_empty() && state.writable.is_none() {
        batch.delete(keys::group(group.id));
        batch.delete(keys::group_reservation(group.id));
        batch.delete(keys::partial(group.id));
        lock(&shared.groups).remove(&group.id);
    } else {
        state.record.needs_sweep = false;
        batch.put(keys::group(group.id), state.record.encode());
    }
    shared.store.submit(batch)?;
    Ok(sweep.rows)
}

struct Sweep<'a> {
    shared: &'a Arc<Shared>,
    group: &'a GroupHandle,
    is_ended: &'a dyn Fn() -> bool,
    /// Rows that were looked at.
    rows: u64,
}

/// What becomes of a version that was replaced.
enum Fate {
    Stays,
    Goes,
    /// That depends on, or changes, what becomes of other versions: all of the vnode are to be looked at.
    WithOthers,
}

/// Rows that go, with their files.
#[derive(Default)]
struct Gone {
    batch: Batch,
    garbage: Vec<(FileId, String)>,
    /// Those of them that had been replaced, and their bytes.
    replaced: Vec<(Replaced, u64)>,
}

impl Gone {
    fn add(&mut self, version: VnodeKey, row: &[u8]) -> Result<(), VolumeError> {
        if let Part::Chunk(n) = version.part
            && let Some(chunk) = ChunkRecord::decode(row)?
        {
            Shared::discard(&mut self.batch, chunk.file, &version, n);
            self.garbage.push((chunk.file, records::file_name(chunk.file, &version, n)));
        }
        self.batch.delete(version.key());
        Ok(())
    }

    fn submit(self, shared: &Shared, state: &mut GroupState) -> Result<(), VolumeError> {
        let seq = shared.store.submit(self.batch)?;
        self.replaced.iter().for_each(|(note, bytes)| state.let_go(note, *bytes));
        shared.note_garbage(seq, self.garbage);
        Ok(())
    }
}

impl Sweep<'_> {
    /// Looks at what views have shown that have gone. Says whether it came to the end.
    fn what_showed(&mut self, gone: &BTreeSet<Snapshot>) -> Result<bool, VolumeError> {
        let mut next = gone.first().copied();
        while let Some(view) = next {
            let (before, behind) = {
                let state = lock(&self.group.state);
                let before = state.views.range(..view).next_back().map_or(0, |(before, _)| before.0);
                (before, state.views.range(view..).next().map(|(behind, _)| *behind))
            };
            if !self.between(Snapshot(before + 1), Snapshot(view.0 + 1), behind)? {
                return Ok(false);
            }
            // Those between the same two views that are left have been looked at together.
            next = behind.and_then(|behind| gone.range(behind..).next().copied());
        }
        Ok(true)
    }

    /// Looks at what was written in `written` or later and replaced in `from` or later, but not behind the view `behind`.
    fn between(
        &mut self,
        written: Snapshot,
        from: Snapshot,
        behind: Option<Snapshot>,
    ) -> Result<bool, VolumeError> {
        let group = self.group.id;
        let end = match behind {
            Some(behind) => Replaced::from(group, Snapshot(behind.0 + 1), Snapshot::NOTHING),
            None => after(&Replaced::prefix(group)),
        };
        let mut next = Replaced::from(group, from, written);
        let mut notes: u64 = 0;
        while let Some((mut key, _)) = self.shared.store.first(&next, &end)? {
            if (self.is_ended)() {
                return Ok(false);
            }
            self.rows += 1;
            match Replaced::parse(&key) {
                // A view that is left shows it: on to the first of which that is not so.
                Some(note) if note.version.snapshot < written => {
                    next = Replaced::from(group, note.at, written);
                    continue;
                }
                Some(note) if !self.replaced(note)? => return Ok(false),
                _ => {}
            }
            key.0.push(0);
            next = key;
            notes += 1;
            if notes.is_multiple_of(AT_ONCE) {
                self.pace()?;
            }
        }
        Ok(true)
    }

    /// Removes a version that was replaced, and the note of that, if no view shows it. Says whether it could be done.
    fn replaced(&mut self, note: Replaced) -> Result<bool, VolumeError> {
        let group = self.group;
        let mut state = lock(&group.state);
        if !state.may_be_swept() {
            return Ok(false);
        }
        let mut gone = Gone::default();
        let key = note.version.key();
        self.rows += 1;
        // If it is not there, it has gone with others.
        if let Some(row) = self.shared.store.get(&key)? {
            match self.fate(&state, note.version)? {
                Fate::Stays => return Ok(true),
                Fate::Goes => {
                    gone.add(note.version, &row)?;
                    gone.replaced.push((note, held::bytes_of(note.version.part, &row)));
                }
                Fate::WithOthers => {
                    self.vnode(&state, note.version.vnode, &mut gone)?;
                    if !gone.batch.rows.contains_key(&key) {
                        return Ok(true);
                    }
                }
            }
        }
        gone.batch.delete(note.key());
        gone.submit(self.shared, &mut state)?;
        Ok(true)
    }

    /// Decides what becomes of a version, by the first view that may show it: those behind that show it only if this one does.
    fn fate(&mut self, state: &GroupState, version: VnodeKey) -> Result<Fate, VolumeError> {
        let VnodeKey { vnode, part, snapshot, .. } = version;
        let newest = state.writable.map(|_| Snapshot::NEWEST);
        let view = state.views.range(snapshot..).next().map(|(view, _)| *view).or(newest);
        let Some(view) = view else { return Ok(Fate::Goes) };
        let Some((by, row)) = self.part(vnode, part, view)? else { return Ok(Fate::WithOthers) };
        if by != snapshot {
            let below = snapshot.0.checked_sub(1).map(Snapshot);
            let is_above_nothing = match below {
                Some(below) if row.is_empty() => self.part(vnode, part, below)?.is_none(),
                _ => row.is_empty(),
            };
            // What says that nothing is there is needed only above something.
            return Ok(if is_above_nothing { Fate::WithOthers } else { Fate::Goes });
        }
        if part == Part::Status {
            return Ok(Fate::Stays);
        }
        let status = self.part(vnode, Part::Status, view)?;
        if status.as_ref().is_some_and(|(_, row)| !row.is_empty()) {
            return Ok(Fate::Stays);
        }
        // The vnode was removed. Only a restore gives its number to another one, which may need what says that something is not there.
        let last = self.part(vnode, Part::Status, Snapshot::NEWEST)?;
        let is_removed = last.map(|(at, _)| at) == status.map(|(at, _)| at);
        Ok(if is_removed { Fate::Goes } else { Fate::WithOthers })
    }

    fn part(
        &mut self,
        vnode: VnodeNumber,
        of: Part,
        view: Snapshot,
    ) -> Result<Option<(Snapshot, Bytes)>, VolumeError> {
        self.rows += 1;
        part(&self.shared.store, self.group.id, vnode, of, view)
    }

    /// Looks at all vnodes, and notes what was replaced. Says whether it came to the end.
    fn all(&mut self) -> Result<bool, VolumeError> {
        let prefix = keys::group_prefix(self.group.id);
        let mut from = Some(Key(prefix.clone()));
        while let Some(start) = from {
            if (self.is_ended)() {
                return Ok(false);
            }
            let (rows, next) = self.shared.store.page(&start, &prefix)?;
            let numbers: BTreeSet<VnodeNumber> =
                rows.iter().filter_map(|(key, _)| VnodeKey::parse(key)).map(|key| key.vnode).collect();
            for number in numbers {
                if !self.vnode_and_notes(number)? {
                    return Ok(false);
                }
            }
            self.pace()?;
            from = next;
        }
        self.forget_notes()?;
        Ok(true)
    }

    /// Removes what is unseen of a vnode, and notes what was replaced. Says whether it could be done.
    fn vnode_and_notes(&mut self, number: VnodeNumber) -> Result<bool, VolumeError> {
        let group = self.group;
        let mut state = lock(&group.state);
        if !state.may_be_swept() {
            return Ok(false);
        }
        let mut gone = Gone::default();
        let notes = self.vnode(&state, number, &mut gone)?;
        let views: Vec<Snapshot> =
            if notes.is_empty() { Vec::new() } else { state.views.keys().copied().collect() };
        for note in notes {
            // Once each, so that its bytes count once.
            if !is_noted(&self.shared.store, &views, note)? {
                gone.batch.put(note.key(), Vec::new());
            }
        }
        gone.submit(self.shared, &mut state)?;
        Ok(true)
    }

    /// Adds the rows of a vnode that are unseen. Returns the notes that the others need.
    fn vnode(
        &mut self,
        state: &GroupState,
        number: VnodeNumber,
        gone: &mut Gone,
    ) -> Result<Vec<Replaced>, VolumeError> {
        let group = self.group.id;
        let version = |part, snapshot| VnodeKey { group, vnode: number, part, snapshot };
        let mut rows: Versions = BTreeMap::new();
        let mut bytes: BTreeMap<(Part, Snapshot), u64> = BTreeMap::new();
        self.shared.store.scan::<VolumeError>(&keys::vnode_prefix(group, number), |key, row| {
            self.rows += 1;
            let Some(VnodeKey { part, snapshot, .. }) = VnodeKey::parse(key) else { return Ok(()) };
            bytes.insert((part, snapshot), held::bytes_of(part, row));
            // Of data, only whether there are some matters.
            let row = match part {
                Part::Chunk(_) => row.clone(),
                _ if row.is_empty() => row.clone(),
                _ => [0].into(),
            };
            rows.entry(part).or_default().push((snapshot, row));
            Ok(())
        })?;
        let unseen = unseen(&rows, &state.all_views());
        // Each as it was replaced before any of them goes.
        let goes: BTreeSet<_> = unseen.iter().copied().collect();
        for (at, part, snapshot) in replaced(&rows, &[]) {
            if goes.contains(&(part, snapshot)) {
                let note = Replaced { at, version: version(part, snapshot) };
                gone.replaced.push((note, bytes[&(part, snapshot)]));
            }
        }
        for &(part, snapshot) in &unseen {
            if let Some((_, row)) = rows[&part].iter().find(|(written, _)| *written == snapshot) {
                gone.add(version(part, snapshot), row)?;
            }
        }
        let notes = replaced(&rows, &unseen).into_iter();
        Ok(notes.map(|(at, part, snapshot)| Replaced { at, version: version(part, snapshot) }).collect())
    }

    /// Removes the notes of versions that are not there any more.
    fn forget_notes(&self) -> Result<(), VolumeError> {
        let store = &self.shared.store;
        let prefix = Replaced::prefix(self.group.id);
        let mut from = Some(Key(prefix.clone()));
        while let Some(start) = from {
            let (rows, next) = store.page(&start, &prefix)?;
            let mut batch = Batch::default();
            for note in rows.iter().filter_map(|(key, _)| Replaced::parse(key)) {
                if store.get(&note.version.key())?.is_none() {
                    batch.delete(note.key());
                }
            }
            store.submit(batch)?;
            self.pace()?;
            from = next;
        }
        Ok(())
    }

    /// Lets the disk set the pace: what is not written yet, and rows until a checkpoint, are in memory.
    fn pace(&self) -> Result<(), VolumeError> {
        let store = &self.shared.store;
        store.written(store.last())?;
        if store.wants_checkpoint() {
            // What fails here fails again in the maintenance, which says so.
            let _ = store.checkpoint().and_then(|()| store.prepare());
        }
        Ok(())
    }
}
