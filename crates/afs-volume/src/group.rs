//! A volume group: a volume that can be changed and its clones, which share rows: who changes it, one at a time, what a view shows of the
//! rows, and which rows nobody sees any more. What is common to all changes is in `edit`, and what clones hold in `held`.

mod edit;
mod held;
mod sweep;

use crate::VolumeError;
use crate::keys::{self, GroupId, Key, Part, Snapshot, VnodeKey};
use crate::pages::Directory;
use crate::records::{ChunkRecord, GroupRecord, VnodeRecord};
use crate::shared::raise;
use afs_store::{Bytes, Store, StoreError};
use afs_wire::ids::{VnodeNumber, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

pub(crate) use edit::Edit;
pub(crate) use held::{Held, count};
pub(crate) use sweep::sweep;

/// Chunks that are looked up one by one if rows near them cannot be read: a gibibyte.
const ONE_BY_ONE: u32 = 1024;

/// A volume group in memory.
#[derive(Debug)]
pub(crate) struct GroupHandle {
    pub(crate) id: GroupId,
    /// Held while something is changed; and by readers of more than one row, so that they fit together.
    pub(crate) state: Mutex<GroupState>,
    /// Files that somebody stores into.
    pub(crate) storing: Mutex<BTreeSet<VnodeNumber>>,
    /// The floor of data versions, and the oldest snapshot that shows it: neither changes while the partition is open.
    floor: (u64, Snapshot),
}

impl GroupHandle {
    pub(crate) fn new(id: GroupId, state: GroupState) -> Self {
        let floor = (state.record.version_floor, state.record.floor_since);
        Self { id, state: Mutex::new(state), storing: Mutex::default(), floor }
    }

    /// A vnode as a view shows it, if the number is in use. Its data version is not below the floor, so that a client
    /// that was told it finds one more after its own store.
    pub(crate) fn vnode(
        &self,
        store: &Store,
        number: VnodeNumber,
        view: Snapshot,
    ) -> Result<Option<(Snapshot, VnodeRecord)>, VolumeError> {
        match part(store, self.id, number, Part::Status, view)? {
            Some((snapshot, row)) => Ok(self.decode(number, &row, view)?.map(|record| (snapshot, record))),
            None => Ok(None),
        }
    }

    /// Decodes the row of a vnode's status in a view, likewise.
    pub(crate) fn decode(
        &self,
        number: VnodeNumber,
        row: &[u8],
        view: Snapshot,
    ) -> Result<Option<VnodeRecord>, VolumeError> {
        let mut found = VnodeRecord::decode(number, row)?;
        let (floor, since) = self.floor;
        if let Some(record) = &mut found
            && view >= since
        {
            record.status.data_version.0 = record.status.data_version.0.max(floor);
        }
        Ok(found)
    }
}

#[derive(Debug)]
pub(crate) struct GroupState {
    pub(crate) record: GroupRecord,
    /// The numbers up to which uniquifiers and data versions may be given out.
    pub(crate) reserved: [u64; 2],
    /// Snapshots that clones show, with their number.
    pub(crate) views: BTreeMap<Snapshot, u32>,
    /// The volume that can be changed.
    pub(crate) writable: Option<VolumeId>,
    /// How many of those are of no volume, and end with the process.
    pub(crate) frozen: u32,
    /// How many restores and others write or remove what nobody is shown. Nothing is swept meanwhile.
    pub(crate) filling: u32,
    /// Views that have gone, and whose rows are still to go.
    pub(crate) gone: BTreeSet<Snapshot>,
    /// True if rows may be unseen for another reason, or may lack the note that they were replaced: then a sweep looks at all vnodes.
    pub(crate) wants_full_sweep: bool,
    /// True if it has what came of a restore that did not end. Nothing is swept, and its numbers are not looked after yet.
    pub(crate) is_half: bool,
    /// True if a volume of it may be there whose row cannot be read: nobody knows what that shows, so nothing goes.
    pub(crate) keeps_all: bool,
    /// What the views hold.
    pub(crate) held: Held,
}

impl GroupState {
    /// The state of a group that is new.
    pub(crate) fn new(epoch: u32) -> Self {
        Self {
            record: GroupRecord {
                current: Snapshot::FIRST,
                epoch,
                version_floor: 0,
                floor_since: Snapshot::FIRST,
                next_file: 2,
                next_directory: 1,
                next_unique: 1,
                needs_sweep: false,
            },
            reserved: [0, 0],
            views: BTreeMap::new(),
            writable: None,
            frozen: 0,
            filling: 0,
            gone: BTreeSet::new(),
            wants_full_sweep: false,
            is_half: false,
            keeps_all: false,
            held: Held::default(),
        }
    }

    /// Catches up after a power loss: reserved numbers may have been given out, and be forgotten. Returns whether anything had to be
    /// done.
    pub(crate) fn catch_up(&mut self, epoch: u32) -> bool {
        if self.record.epoch == epoch {
            return false;
        }
        self.record.epoch = epoch;
        if self.is_half {
            // No client has been told of any of these.
            return true;
        }
        self.record.next_unique = self.record.next_unique.max(self.reserved[0]);
        self.record.version_floor = self.record.version_floor.max(self.reserved[1]);
        // Clones that are there show what they showed: one that is made anew has other data under a version of its own.
        self.record.floor_since = self.record.current;
        true
    }

    /// Raises all numbers over what so many changes, which are lost, can have given out. Each makes one vnode at most.
    pub(crate) fn make_up_for(&mut self, lost: u64) {
        raise(&mut self.reserved, lost);
        let vnodes = u32::try_from(lost.saturating_mul(2)).unwrap_or(u32::MAX);
        let record = &mut self.record;
        // Even numbers are of files, odd ones of directories.
        record.next_file = record.next_file.saturating_add(vnodes);
        record.next_directory = record.next_directory.saturating_add(vnodes);
    }

    /// True if a clone shows what was written in a snapshot and overwritten in the current one.
    fn is_shown(&self, written: Snapshot) -> bool {
        self.keeps_all || self.views.range(written..self.record.current).next().is_some()
    }

    /// True if what is there is shown, or unseen: not while a restore fills it, whose chunks have no status yet.
    pub(crate) fn may_be_swept(&self) -> bool {
        self.filling == 0 && !self.is_half
    }

    /// True if there is something for a sweep to do now. What a view shows that ends with the process is still marked to be swept when the
    /// rest is done.
    pub(crate) fn is_to_be_swept(&self) -> bool {
        let is_due = self.wants_full_sweep || !self.gone.is_empty() || self.frozen == 0;
        self.record.needs_sweep && is_due && self.may_be_swept() && !self.keeps_all
    }

    /// All that its volumes show.
    pub(crate) fn all_views(&self) -> Vec<Snapshot> {
        self.views.keys().copied().chain(self.writable.map(|_| Snapshot::NEWEST)).collect()
    }

    /// Adds or removes a clone's view.
    pub(crate) fn add_view(&mut self, snapshot: Snapshot) {
        *self.views.entry(snapshot).or_default() += 1;
    }

    /// See [`GroupState::add_view`].
    pub(crate) fn remove_view(&mut self, snapshot: Snapshot) {
        if let Some(count) = self.views.get_mut(&snapshot) {
            *count -= 1;
            if *count == 0 {
                self.views.remove(&snapshot);
                self.gone.insert(snapshot);
                self.pass_on(snapshot);
                // What is the newest is not noted as replaced, and without the volume only the last view shows that.
                let is_last = self.writable.is_none() && self.views.range(snapshot..).next().is_none();
                self.wants_full_sweep |= is_last;
            }
        }
    }

    /// The volume that could be changed is there no more.
    pub(crate) fn remove_writable(&mut self) {
        self.writable = None;
        self.wants_full_sweep = true;
    }
}

/// The version of a part that a view shows, with the snapshot it was written in.
pub(crate) fn part(
    store: &Store,
    group: GroupId,
    vnode: VnodeNumber,
    part: Part,
    view: Snapshot,
) -> Result<Option<(Snapshot, Bytes)>, VolumeError> {
    let from = VnodeKey { group, vnode, part, snapshot: view }.key();
    let found = store.first(&from, &afs_store::after(&keys::part_prefix(group, vnode, part)))?;
    Ok(found.and_then(|(key, value)| Some((VnodeKey::parse(&key)?.snapshot, value))))
}

/// A vnode as its row has it, if the number is in use in a view.
pub(crate) fn vnode(
    store: &Store,
    group: GroupId,
    number: VnodeNumber,
    view: Snapshot,
) -> Result<Option<(Snapshot, VnodeRecord)>, VolumeError> {
    match part(store, group, number, Part::Status, view)? {
        Some((snapshot, row)) => Ok(VnodeRecord::decode(number, &row)?.map(|record| (snapshot, record))),
        None => Ok(None),
    }
}

/// The pages of a directory as a view shows it.
pub(crate) fn directory<'a>(
    store: &'a Store,
    group: GroupId,
    record: &VnodeRecord,
    view: Snapshot,
) -> Result<Directory<'a>, VolumeError> {
    let number = record.status.id.vnode;
    Directory::open(number, record.status.length, move |page| {
        match part(store, group, number, Part::Page(page), view)? {
            Some((_, row)) if !row.is_empty() => Ok(row.to_vec()),
            _ => Err(VolumeError::damaged(format!("directory {number}"), format!("page {page} is missing"))),
        }
    })
}

/// The chunks of a file, from one on, as a view shows them: number, snapshot of writing, row. `None` rows are holes.
pub(crate) fn chunks(
    store: &Store,
    group: GroupId,
    vnode: VnodeNumber,
    view: Snapshot,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Vec<(u32, Snapshot, Option<ChunkRecord>)>, VolumeError> {
    let mut found: Vec<(u32, Snapshot, Option<ChunkRecord>)> = Vec::new();
    let mut prefix = keys::part_prefix(group, vnode, Part::Chunk(0));
    prefix.truncate(prefix.len() - 4);
    let mut from = Some(Key(keys::part_prefix(group, vnode, Part::Chunk(*range.start()))));
    while let Some(start) = from {
        let (rows, next) = match store.page(&start, &prefix) {
            // What was asked for may be next to what cannot be read, and not among it.
            Err(StoreError::Damaged { .. }) if range.end() - range.start() <= ONE_BY_ONE => {
                return each_chunk(store, group, vnode, view, range);
            }
            page => page?,
        };
        for (key, row) in rows {
            let Some(VnodeKey { part: Part::Chunk(n), snapshot, .. }) = VnodeKey::parse(&key) else {
                continue;
            };
            if n > *range.end() {
                return Ok(found);
            }
            if snapshot <= view && found.last().is_none_or(|last| last.0 != n) {
                found.push((n, snapshot, ChunkRecord::decode(&row)?));
            }
        }
        from = next;
    }
    Ok(found)
}

/// The same, with a look-up for each chunk.
fn each_chunk(
    store: &Store,
    group: GroupId,
    vnode: VnodeNumber,
    view: Snapshot,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Vec<(u32, Snapshot, Option<ChunkRecord>)>, VolumeError> {
    let chunk = |n| match part(store, group, vnode, Part::Chunk(n), view)? {
        Some((snapshot, row)) => Ok(Some((n, snapshot, ChunkRecord::decode(&row)?))),
        None => Ok(None),
    };
    range.filter_map(|n| chunk(n).transpose()).collect()
}

/// The rows of a vnode: of each part its versions, the newest first.
pub(crate) type Versions = BTreeMap<Part, Vec<(Snapshot, Bytes)>>;

/// The rows of a vnode that none of the views shows.
pub(crate) fn unseen(rows: &Versions, views: &[Snapshot]) -> Vec<(Part, Snapshot)> {
    let shown =
        |versions: &[(Snapshot, Bytes)], view: Snapshot| versions.iter().position(|(s, _)| *s <= view);
    let status = rows.get(&Part::Status).map_or(&[][..], |versions| versions);
    let alive: Vec<Snapshot> = views
        .iter()
        .copied()
        .filter(|&view| shown(status, view).is_some_and(|i| !status[i].1.is_empty()))
        .collect();
    let mut unseen = Vec::new();
    for (part, versions) in rows {
        let viewers = if *part == Part::Status { views } else { &alive };
        let mut keep: BTreeSet<usize> = viewers.iter().filter_map(|&view| shown(versions, view)).collect();
        // What says that nothing is there is needed only above something.
        while let Some(&oldest) = keep.last()
            && versions[oldest].1.is_empty()
        {
            keep.remove(&oldest);
        }
        let gone = versions.iter().enumerate().filter(|(i, _)| !keep.contains(i));
        unseen.extend(gone.map(|(_, (snapshot, _))| (*part, *snapshot)));
    }
    unseen
}

/// The rows of a vnode that views show, and that are not the newest or are of a vnode that was removed: in which snapshot each was replaced, as
/// far as views can tell, its part, and the snapshot in which it was written.
pub(crate) fn replaced(rows: &Versions, unseen: &[(Part, Snapshot)]) -> Vec<(Snapshot, Part, Snapshot)> {
    let unseen: BTreeSet<_> = unseen.iter().copied().collect();
    let is_kept = |part: Part, snapshot: Snapshot| !unseen.contains(&(part, snapshot));
    let status = rows.get(&Part::Status).map_or(&[][..], |versions| versions);
    let removals: Vec<Snapshot> = status
        .iter()
        .filter(|(snapshot, row)| row.is_empty() && is_kept(Part::Status, *snapshot))
        .map(|(snapshot, _)| *snapshot)
        .collect();
    let mut replaced = Vec::new();
    for (&part, versions) in rows {
        let mut newer = None;
        for &(snapshot, _) in versions.iter().filter(|(snapshot, _)| is_kept(part, *snapshot)) {
            let removed = removals.iter().rev().find(|removed| **removed > snapshot).copied();
            let at = match part {
                Part::Status => newer,
                _ => [newer, removed].into_iter().flatten().min(),
            };
            replaced.extend(at.map(|at| (at, part, snapshot)));
            newer = Some(snapshot);
        }
    }
    replaced
}
