//! Rows that belong to no vnode, and the numbers in them: what may be given out next, what a group counts. They are made anew from the rows
//! of vnodes, on the store itself: with some of them damaged, no partition opens.

use super::Ledger;
use crate::disk::Disk;
use crate::fsck::rows::each_row;
use crate::keys::{self, GroupId, Key, Part, Snapshot, VnodeKey};
use crate::partition::new_info;
use crate::records::{
    self, ChunkRecord, Counters, GroupRecord, PartitionRecord, Rows, VnodeRecord, VolumeRecord,
};
use crate::{Config, Stamp, VolumeError, VolumeInfo, VolumeKind};
use afs_store::{Batch, Bytes, Options, Store, StoreError};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers that are skipped beyond the highest that is known, if the row that says what was given out is lost. A group gives out 4096 between
/// two reservations.
const SKIPPED: u64 = 1 << 20;
/// A number above this is no number that was given out: the row that has it is damaged.
const HIGHEST: u64 = u32::MAX as u64 - 2 * SKIPPED;
/// The same for numbers of files.
const HIGHEST_FILE: u64 = 1 << 60;

/// The highest numbers in the rows of a group's vnodes.
#[derive(Debug, Default, Clone, Copy)]
struct Used {
    snapshot: u32,
    file: u32,
    directory: u32,
    unique: u64,
    version: u64,
}

/// What a pass over all rows has found.
#[derive(Debug, Default)]
struct Found {
    used: BTreeMap<GroupId, Used>,
    file: u64,
    group: u32,
    epoch: u32,
    /// The rows of groups; `None` is one that cannot be read.
    groups: BTreeMap<GroupId, Option<GroupRecord>>,
    reserved: BTreeMap<GroupId, Option<[u64; 2]>>,
    /// The same of volumes.
    volumes: BTreeMap<VolumeId, Option<VolumeRecord>>,
    halves: Vec<GroupId>,
    strays: Vec<(Key, String)>,
}

/// Reads a row: damage is `None`.
fn readable<T>(result: Result<T, VolumeError>) -> Result<Option<T>, VolumeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(VolumeError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn get(store: &Store, key: &Key) -> Result<Option<Bytes>, VolumeError> {
    Ok(readable(store.get(key).map_err(VolumeError::from))?.flatten())
}

fn raise<T: Ord>(number: &mut T, to: T) {
    if *number < to {
        *number = to;
    }
}

/// Mends them on a disk whose partition is not open.
pub(super) fn mend(
    disk: &Arc<dyn Disk>,
    config: &Config,
    ledger: &mut Ledger<'_>,
) -> Result<(), VolumeError> {
    let options = Options { cache_bytes: config.cache_bytes, log_bytes: config.log_bytes };
    let store = Store::open(disk.clone(), options, &Rows)?;
    let result = mend_in(&store, ledger);
    // What was written is in the log. A damaged page may keep it from going further, and ends this as the end of a process would.
    let _ = store.close();
    result
}

fn mend_in(store: &Store, ledger: &mut Ledger<'_>) -> Result<(), VolumeError> {
    let mut found = look(store)?;
    look_at_files(store, &mut found)?;
    let mut batch = Batch::default();
    for (key, why) in std::mem::take(&mut found.strays) {
        ledger.say(None, format!("row {:02x?}", key.0), why);
        batch.delete(key);
    }
    if ledger.is_salvage() {
        find_volumes(&mut found, &mut batch, ledger);
    }
    mend_volumes(store, &found, &mut batch, ledger)?;
    mend_groups(&found, &mut batch, ledger);
    mend_partition(store, &found, &mut batch, ledger)?;
    ledger.submit(store, batch)
}

/// Looks at all rows.
fn look(store: &Store) -> Result<Found, VolumeError> {
    let mut found = Found::default();
    let look = |key: &Key, row: &Bytes| {
        if let Some(vnode) = VnodeKey::parse(key) {
            note_vnode(&mut found, vnode, row);
            return Ok(());
        }
        if !keys::is_key(key) {
            found.strays.push((key.clone(), "removes it: its key is none".into()));
        } else if key.0.starts_with(&keys::groups()) {
            let Some(group) = keys::group_of(key) else { return Ok(()) };
            let record = readable(GroupRecord::decode(row))?;
            raise(&mut found.epoch, record.map_or(0, |record| record.epoch));
            found.groups.insert(group, record);
        } else if key.0.starts_with(&keys::volumes()) {
            let Some(id) = keys::volume_of(key) else { return Ok(()) };
            found.volumes.insert(id, readable(VolumeRecord::decode(row))?);
        } else if key.0.starts_with(&keys::halves()) {
            found.halves.extend(records::HalfRecord::decode(row).ok().map(|half| half.volume.group));
        } else if keys::is_reservation(key) {
            let Some(group) = keys::group_of(key).filter(|group| group.0 != 0) else { return Ok(()) };
            found.reserved.insert(group, readable(records::decode_reservation(row))?);
        } else if key.0.starts_with(&keys::all_garbage())
            && let Some(file) = keys::garbage_of(key)
        {
            let name = std::str::from_utf8(row).ok().filter(|name| name.starts_with("data/"));
            let chunk = name.and_then(|name| records::parse_file_name(name.rsplit('/').next()?));
            let row = chunk.map(|(_, chunk)| get(store, &chunk.key())).transpose()?.flatten();
            let row = row.and_then(|row| ChunkRecord::decode(&row).ok().flatten());
            if name.is_none() {
                found
                    .strays
                    .push((key.clone(), "removes it: it is of garbage, and names no file of data".into()));
            } else if row.is_some_and(|chunk| chunk.file == file) {
                let why = format!(
                    "removes it: it says that {} is garbage, which is in use",
                    name.unwrap_or_default()
                );
                found.strays.push((key.clone(), why));
            }
            raise(&mut found.file, file.0);
        }
        Ok(())
    };
    // What cannot be read is told by the check.
    each_row(store, &[], look, |_, _| {})?;
    Ok(found)
}

fn note_vnode(found: &mut Found, key: VnodeKey, row: &[u8]) {
    raise(&mut found.group, key.group.0);
    let used = found.used.entry(key.group).or_default();
    raise(&mut used.snapshot, key.snapshot.0);
    let number = if key.vnode.is_directory() { &mut used.directory } else { &mut used.file };
    raise(number, key.vnode.0);
    match key.part {
        Part::Status => {
            if let Ok(Some(VnodeRecord { status, .. })) = VnodeRecord::decode(key.vnode, row) {
                // One that is too high is of a damaged row.
                raise(
                    &mut used.unique,
                    Some(status.id.unique.0.into()).filter(|n| *n < HIGHEST).unwrap_or(0),
                );
                raise(&mut used.version, Some(status.data_version.0).filter(|n| *n < HIGHEST).unwrap_or(0));
            }
        }
        Part::Chunk(_) => {
            let chunk = ChunkRecord::decode(row).ok().flatten();
            raise(&mut found.file, chunk.map_or(0, |chunk| chunk.file.0));
        }
        Part::Page(_) | Part::Inline => {}
    }
}

/// Files of data have numbers that are not given out again, whether a row names them or not.
fn look_at_files(store: &Store, found: &mut Found) -> Result<(), VolumeError> {
    let list =
        |folder: &str| store.disk().list(folder).map_err(VolumeError::io(format!("cannot list {folder}")));
    for folder in list("data")? {
        let files = list(&format!("data/{folder}"))?;
        let numbers = files.iter().filter_map(|name| records::parse_file_name(name));
        raise(&mut found.file, numbers.map(|(file, _)| file.0).max().unwrap_or(0));
    }
    Ok(())
}

/// A volume whose row cannot be read shows the only group that no volume shows.
fn find_volumes(found: &mut Found, batch: &mut Batch, ledger: &mut Ledger<'_>) {
    let claimed: Vec<GroupId> = found.volumes.values().flatten().map(|volume| volume.group).collect();
    let is_free = |group: &GroupId| !claimed.contains(group) && !found.halves.contains(group);
    let free: Vec<GroupId> = found.used.keys().copied().filter(is_free).collect();
    let unreadable: Vec<VolumeId> =
        found.volumes.iter().filter(|(_, record)| record.is_none()).map(|(id, _)| *id).collect();
    let ([id], [group]) = (&unreadable[..], &free[..]) else { return };
    let stamp = Stamp { who: ViceId(0), now: AfsTime(0) };
    let info = new_info(format!("salvaged.{id}"), VolumeKind::ReadWrite, stamp);
    // Nothing that was to be encrypted is served without.
    let levels = found.volumes.values().flatten().map(|volume| volume.info.level);
    let level = levels.max_by_key(|level| level.0).unwrap_or_default();
    let info = VolumeInfo { parent: *id, in_service: true, destroy_me: false, level, ..info };
    let record = VolumeRecord { group: *group, snapshot: None, is_restoring: false, info };
    ledger.lose(
        Some(*id),
        "header",
        "its row cannot be read: name, quota, level and dates are not those that it had",
    );
    batch.put(keys::volume(*id), record.encode());
    found.volumes.insert(*id, Some(record));
}

/// Counters that cannot be read are made, and counted with the volume.
fn mend_volumes(
    store: &Store,
    found: &Found,
    batch: &mut Batch,
    ledger: &mut Ledger<'_>,
) -> Result<(), VolumeError> {
    for (&id, record) in &found.volumes {
        let Some(record) = record else { continue };
        let row = get(store, &keys::counters(id))?;
        if row.and_then(|row| Counters::decode(&row).ok()).is_none() {
            ledger.say(Some(id), "counters", "makes them anew: they cannot be read");
            let counters = Counters { update_date: record.info.update_date.0, ..Counters::default() };
            batch.put(keys::counters(id), counters.encode());
        }
    }
    Ok(())
}

fn mend_groups(found: &Found, batch: &mut Batch, ledger: &mut Ledger<'_>) {
    let mut shown: BTreeMap<GroupId, Snapshot> = BTreeMap::new();
    for volume in found.volumes.values().flatten() {
        let newest = shown.entry(volume.group).or_insert(Snapshot(0));
        raise(newest, volume.snapshot.unwrap_or(Snapshot(0)));
    }
    for (&group, &shown) in &shown {
        let Some(used) = found.used.get(&group) else { continue };
        if found.halves.contains(&group) {
            continue;
        }
        let what = format!("volume group {}", group.0);
        let old = found.groups.get(&group).copied().flatten();
        let old_reserved = found.reserved.get(&group).copied().flatten();
        let mut record = old.unwrap_or_else(|| {
            ledger.say(None, what.clone(), "makes its row anew from its vnodes: it cannot be read");
            GroupRecord {
                current: Snapshot(shown.0 + 1),
                epoch: 0,
                // Below this, a version may have been told for other data.
                version_floor: used.version + 1,
                floor_since: Snapshot(0),
                next_file: 2,
                next_directory: 1,
                next_unique: 1,
                needs_sweep: false,
            }
        });
        let mut reserved = old_reserved.unwrap_or_else(|| {
            if used.unique > 0 {
                ledger.say(
                    None,
                    what.clone(),
                    "makes its reservation anew from its vnodes: it cannot be read",
                );
            }
            let skip = |number: u64| number.max(1) + SKIPPED;
            [skip(record.next_unique.max(used.unique)), skip(record.version_floor.max(used.version))]
        });
        if old.is_none() || old_reserved.is_none() {
            // Numbers up to the reservation may have been given out.
            raise(&mut record.next_unique, reserved[0]);
            raise(&mut record.version_floor, reserved[1]);
            record.floor_since = record.current;
        }
        let before = (record, reserved);
        if used.snapshot < u32::MAX - 2 {
            raise(&mut record.current, Snapshot(used.snapshot));
        }
        for (next, used) in [(&mut record.next_file, used.file), (&mut record.next_directory, used.directory)]
        {
            if used > 0 && u64::from(used) < HIGHEST {
                raise(next, used + 2);
            }
        }
        raise(&mut record.next_unique, used.unique + 1);
        raise(&mut reserved[0], record.next_unique);
        if used.version > reserved[1] {
            reserved[1] = used.version + 1;
        }
        let is_raised = (record, reserved) != before;
        if is_raised && old.is_some() && old_reserved.is_some() {
            ledger.say(None, what, "raises the numbers that it may give out next above those in use");
        }
        if is_raised || old.is_none() || old_reserved.is_none() {
            batch.put(keys::group(group), record.encode());
            batch.put(keys::group_reservation(group), records::encode_reservation(reserved));
        }
    }
}

/// The partition's own row, and its reservation.
fn mend_partition(
    store: &Store,
    found: &Found,
    batch: &mut Batch,
    ledger: &mut Ledger<'_>,
) -> Result<(), VolumeError> {
    let is_new = found.groups.is_empty() && found.used.is_empty() && found.file == 0;
    let row = get(store, &keys::partition_reservation())?;
    let reserved = row.and_then(|row| records::decode_reservation(&row).ok());
    let file = Some(found.file).filter(|file| *file < HIGHEST_FILE).unwrap_or(0);
    let highest = found.groups.keys().map(|group| group.0).max().unwrap_or(0).max(found.group);
    let needed = [file + u64::from(file > 0), u64::from(highest) + 1];
    match reserved {
        Some(reserved) if reserved[0] >= needed[0] && reserved[1] >= needed[1] => {}
        None if is_new => {}
        _ => {
            let raised = reserved.unwrap_or([SKIPPED, SKIPPED]);
            let raised = [raised[0].max(needed[0] + SKIPPED), raised[1].max(needed[1])];
            ledger.say(None, "partition", "raises the numbers that it may give out next above those in use");
            batch.put(keys::partition_reservation(), records::encode_reservation(raised));
        }
    }
    let row = get(store, &keys::partition())?;
    if row.and_then(|row| PartitionRecord::decode(&row).ok()).is_none() && !is_new {
        ledger.say(None, "partition", "makes its row anew: it cannot be read");
        // As after a power loss: what is shown from now on has a version of its own. No file counts as begun, so none is removed.
        let low_file = reserved.map_or(needed[0] + SKIPPED, |reserved| reserved[0].max(needed[0]));
        let record = PartitionRecord { epoch: found.epoch + 1, low_file, boot: String::new() };
        batch.put(keys::partition(), record.encode());
    }
    Ok(())
}

impl From<StoreError> for super::SalvageError {
    fn from(error: StoreError) -> Self {
        Self::Volume(error.into())
    }
}
