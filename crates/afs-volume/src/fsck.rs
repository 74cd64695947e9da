//! Checks whether all that is on a partition fits together, and if not, says what is wrong where. Changes nothing,
//! but for what opening a partition does. Expects that nobody else uses it meanwhile.

pub(crate) mod links;
pub(crate) mod notes;
pub(crate) mod rows;

use crate::damage::Damage;
use crate::group::{self, GroupHandle, Versions};
use crate::keys::{self, Key, Part, Replaced, Snapshot, VnodeKey};
use crate::pages::PAGE;
use crate::records::CHUNK;
use crate::records::{self, ChunkRecord, Layout, VnodeRecord};
use crate::shared::Shared;
use crate::{Partition, VnodeId, Volume, VolumeError};
use afs_store::{Bytes, lock};
use afs_wire::directory::Directory;
use afs_wire::directory::check::Fault;
use afs_wire::ids::VolumeId;
use links::{Known, Unreadable, Vnodes, check_links};
use rows::{each_record, each_row};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

/// Findings that are kept, so that a partition full of errors costs bounded memory; the others are counted.
pub const FINDINGS_MAX: usize = 10_000;
/// A volume that could not be frozen is looked at so often before something is said to be wrong with it. A change between two readings looks
/// like damage; two looks may both meet one if a program makes and removes the same thing again and again.
const LOOKS: u32 = 4;
/// Vnodes looked at together.
const AT_ONCE: usize = 1024;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    /// The volume with the problem, if it is one volume's.
    pub volume: Option<VolumeId>,
    /// The damaged thing.
    pub what: String,
    /// The problem with it.
    pub why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume {
            Some(volume) => write!(f, "volume {volume}: {}: {}", self.what, self.why),
            None => write!(f, "{}: {}", self.what, self.why),
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The problems found, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// The number of further problems.
    pub more_findings: u64,
    /// Volumes.
    pub volumes: u64,
    /// Vnodes, those of clones too.
    pub vnodes: u64,
    /// Files with chunks of data.
    pub data_files: u64,
}

impl Report {
    /// True if nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Leaves out what another check of the same has not found too: it came of a change that was under way.
    pub fn keep_common(&mut self, other: &Self) {
        let found: HashSet<&Finding> = other.findings.iter().collect();
        self.findings.retain(|finding| found.contains(finding));
        self.more_findings = self.more_findings.min(other.more_findings);
    }

    fn find(&mut self, volume: Option<VolumeId>, what: impl Into<String>, why: impl Into<String>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { volume, what: what.into(), why: why.into() });
        } else {
            self.more_findings += 1;
        }
    }

    /// Notes damage as a finding; an error of reading ends the check.
    fn take<T>(
        &mut self,
        volume: Option<VolumeId>,
        result: Result<T, VolumeError>,
    ) -> Result<Option<T>, VolumeError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(VolumeError::Damaged { what, why }) => {
                self.find(volume, what, why);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Checks a volume by itself, as it is now: it and the others on its partition may be in use. Writes down that it shows this moment for a
/// while, if the disk takes that.
///
/// # Errors
///
/// It is not there, or cannot be read at all.
pub fn check_one(partition: &Partition, id: VolumeId) -> Result<Report, VolumeError> {
    let mut report = Report { volumes: 1, ..Report::default() };
    if let Some(damaged) = partition.damage().volumes.get(&id) {
        report.find(Some(id), damaged.what.clone(), damaged.why.clone());
        return Ok(report);
    }
    let volume = partition.volume(id)?;
    match volume.freeze() {
        Ok(frozen) => check_volume(&frozen, &mut report)?,
        // A check is wanted most when the disk is full or has failed. Few changes are made then, if any.
        Err(VolumeError::DiskFull | VolumeError::Io { .. }) => {
            let empty = report.clone();
            check_volume(&volume, &mut report)?;
            for _ in 1..LOOKS {
                if report.is_clean() {
                    break;
                }
                let mut again = empty.clone();
                check_volume(&volume, &mut again)?;
                report.keep_common(&again);
            }
        }
        Err(error) => return Err(error),
    }
    Ok(report)
}

/// Checks a partition.
///
/// # Errors
///
/// It cannot be read at all.
pub fn check(partition: &Partition) -> Result<Report, VolumeError> {
    let mut report = Report::default();
    let shared = partition.shared();
    let damage = partition.damage();
    for loss in partition.losses() {
        report.find(None, loss.file, loss.why);
    }
    let read = check_rows(&shared, &damage, &mut report);
    report.take(None, read)?;
    for (&id, damaged) in &damage.volumes {
        report.volumes += 1;
        report.find(Some(id), damaged.what.clone(), damaged.why.clone());
    }
    for volume in partition.volumes() {
        report.volumes += 1;
        check_volume(&volume, &mut report)?;
    }
    let read = check_data_files(&shared, &mut report);
    report.take(None, read)?;
    Ok(report)
}

/// Each row: that it can be read, belongs to something, and is shown by a volume; numbers against reservations.
fn check_rows(shared: &Arc<Shared>, damage: &Damage, report: &mut Report) -> Result<(), VolumeError> {
    let groups: BTreeMap<keys::GroupId, Arc<GroupHandle>> = lock(&shared.groups).clone();
    let mut versions: Vec<(VnodeKey, Bytes)> = Vec::new();
    let mut hidden: Vec<(String, String)> = Vec::new();
    let look = |key: &Key, row: &Bytes| {
        let Some(vnode) = VnodeKey::parse(key) else {
            if let Some(note) = Replaced::parse(key) {
                if !damage.groups.contains_key(&note.version.group) {
                    notes::check(&shared.store, &groups, note, report)?;
                }
            } else if !keys::is_key(key) {
                report.find(None, format!("row {:02x?}", key.0), "has a key that is none");
            } else if keys::garbage_of(key).is_some() && !row.starts_with(b"data/") {
                report.find(None, format!("row {:02x?}", key.0), "is of garbage, and names no file of data");
            }
            return Ok(());
        };
        // Nobody knows what is shown of those.
        if damage.groups.contains_key(&vnode.group) {
            return Ok(());
        }
        if versions.last().is_some_and(|(last, _)| (last.group, last.vnode) != (vnode.group, vnode.vnode)) {
            check_vnode_rows(shared, &groups, &std::mem::take(&mut versions), report)?;
        }
        versions.push((vnode, row.clone()));
        Ok(())
    };
    each_row(&shared.store, &[], look, |what, why| hidden.push((what, why)))?;
    hidden.into_iter().for_each(|(what, why)| report.find(None, what, why));
    check_vnode_rows(shared, &groups, &versions, report)?;
    for (group, (what, why)) in &damage.groups {
        report.find(None, format!("volume group {}", group.0), format!("{what} {why}"));
    }
    Ok(())
}

/// Checks all rows of one vnode.
fn check_vnode_rows(
    shared: &Arc<Shared>,
    groups: &BTreeMap<keys::GroupId, Arc<GroupHandle>>,
    rows: &[(VnodeKey, Bytes)],
    report: &mut Report,
) -> Result<(), VolumeError> {
    let Some(((first, _), _)) = rows.split_first() else { return Ok(()) };
    let what = format!("vnode {} of volume group {}", first.vnode, first.group.0);
    let Some(group) = groups.get(&first.group) else {
        report.find(None, what, "its group is not there");
        return Ok(());
    };
    let state = lock(&group.state);
    // What came of a volume that is half-made, or waits to be swept: nothing is given out of its numbers.
    let is_unused = state.is_half || (state.views.is_empty() && state.writable.is_none());
    let next = if first.vnode.is_directory() { state.record.next_directory } else { state.record.next_file };
    if first.vnode.0 >= next && !is_unused {
        report.find(None, what.clone(), format!("its number is to be given out, as the next is {next}"));
    }
    let mut versions = Versions::new();
    for (key, row) in rows {
        versions.entry(key.part).or_default().push((key.snapshot, row.clone()));
        if key.snapshot > state.record.current {
            report.find(
                None,
                what.clone(),
                format!("{:?} is of snapshot {}, which is to come", key.part, key.snapshot.0),
            );
        }
        let decoded = match key.part {
            Part::Status => VnodeRecord::decode(key.vnode, row).map(|record| {
                if let Some(VnodeRecord { status, .. }) = record {
                    if u64::from(status.id.unique.0) >= state.record.next_unique && !is_unused {
                        report.find(
                            None,
                            what.clone(),
                            format!("its uniquifier {} is to be given out", status.id.unique.0),
                        );
                    }
                    if status.data_version.0 > state.reserved[1] {
                        report.find(
                            None,
                            what.clone(),
                            format!("its data version {} is not reserved", status.data_version),
                        );
                    }
                }
            }),
            Part::Chunk(_) => ChunkRecord::decode(row).map(|_| ()),
            Part::Page(_) | Part::Inline => Ok(()),
        };
        match decoded {
            Err(VolumeError::Damaged { what: row, why }) => {
                report.find(None, what.clone(), format!("{row} {why}"))
            }
            Err(error) => report.find(None, what.clone(), error.to_string()),
            Ok(()) => {}
        }
    }
    if !state.record.needs_sweep && !state.is_half {
        let views = state.all_views();
        let unseen = group::unseen(&versions, &views);
        for (part, Snapshot(snapshot)) in &unseen {
            report.find(None, what.clone(), format!("{part:?} of snapshot {snapshot} is shown by no volume"));
        }
        for (at, part, snapshot) in group::replaced(&versions, &unseen) {
            let note = Replaced { at, version: VnodeKey { part, snapshot, ..*first } };
            let is_noted = notes::is_noted(&shared.store, &views, note);
            if report.take(None, is_noted)? == Some(false) {
                let why = format!("it is not noted that {part:?} of snapshot {} was replaced", snapshot.0);
                report.find(None, what.clone(), why);
            }
        }
    }
    Ok(())
}

fn check_volume(volume: &Volume, report: &mut Report) -> Result<(), VolumeError> {
    let id = Some(volume.id());
    let mut vnodes = Vnodes::default();
    let mut used = 0;
    let look = |record: &VnodeRecord| {
        vnodes.push(Known::new(&record.status));
        used += record.blocks_kib();
        Ok(())
    };
    // Those whose rows cannot be read were told with their rows, or are told here if only this volume is looked at.
    let mut unreadable = Unreadable::default();
    let read = each_record(volume, look, |vnodes, what, why| {
        report.find(id, vnodes.to_string(), format!("{what}: {why}"));
        unreadable.insert(vnodes);
    });
    vnodes.unreadable = unreadable;
    if report.take(id, read)?.is_none() {
        return Ok(());
    }
    report.vnodes += vnodes.known.len() as u64;
    let look = |record: &VnodeRecord| {
        // One that is damaged keeps none of the others from being looked at.
        match record.layout {
            Layout::Pages => {
                let read = check_directory(volume, record, &mut vnodes, report);
                if report.take(id, read)?.is_none() {
                    vnodes.unread.push(record.status.id.vnode);
                }
            }
            Layout::Inline => {
                let read = check_inline(volume, record, report);
                report.take(id, read)?;
            }
            Layout::Chunks => {
                let read = check_chunks(volume, record, report);
                report.take(id, read)?;
            }
        }
        Ok(())
    };
    let read = each_record(volume, look, |_, _, _| {});
    if report.take(id, read)?.is_some() {
        check_links(volume, &vnodes, report);
    }
    let header = volume.header();
    if !vnodes.unreadable.is_empty() {
        // Nobody knows what those use.
        return Ok(());
    }
    if header.used_kib != used {
        report.find(
            id,
            "header",
            format!("says {} KiB are used, and its vnodes use {used}", header.used_kib),
        );
    }
    if header.vnode_count as usize != vnodes.known.len() {
        report.find(
            id,
            "header",
            format!("says {} vnodes, and there are {}", header.vnode_count, vnodes.known.len()),
        );
    }
    Ok(())
}

/// An error says that its names were not counted.
fn check_directory(
    volume: &Volume,
    record: &VnodeRecord,
    vnodes: &mut Vnodes,
    report: &mut Report,
) -> Result<(), VolumeError> {
    let id = Some(volume.id());
    let status = &record.status;
    let what = format!("directory {}", status.id.vnode);
    check_pages(volume, record, report)?;
    let entries = || {
        let mut pages = group::directory(&volume.shared.store, volume.group.id, record, volume.view())?;
        pages.entries()
    };
    let entries = entries()?;
    let mut names = BTreeSet::new();
    for (name, target) in entries {
        // As it is shown on terminals: it may not end a line, or do what a terminal is told.
        let shown = String::from_utf8_lossy(&name).escape_debug().to_string();
        let expected = match name.as_slice() {
            b"." => Some(status.id),
            b".." => Some(if status.id == VnodeId::ROOT { status.id } else { status.parent }),
            _ => None,
        };
        if !names.insert(name) {
            report.find(id, what.clone(), format!("has two entries '{shown}'"));
        }
        if let Some(expected) = expected {
            if expected != target {
                let why = format!("'{shown}' is {}, and should be {}", target.vnode, expected.vnode);
                report.find(id, what.clone(), why);
            }
            continue;
        }
        let is_unreadable = vnodes.unreadable.contains(target.vnode);
        match vnodes.get_mut(target.vnode) {
            Some(found) if found.id == target => {
                if found.parent != status.id {
                    let why =
                        format!("'{shown}' is vnode {}, which is in {}", target.vnode, found.parent.vnode);
                    report.find(id, what.clone(), why);
                }
                found.names += 1;
                if target.vnode.is_directory()
                    && let Some(this) = vnodes.get_mut(status.id.vnode)
                {
                    this.subdirectories += 1;
                }
            }
            None if is_unreadable => {
                if target.vnode.is_directory()
                    && let Some(this) = vnodes.get_mut(status.id.vnode)
                {
                    this.subdirectories += 1;
                }
            }
            _ => report.find(
                id,
                what.clone(),
                format!("'{shown}' is vnode {}, which is not there", target.vnode),
            ),
        }
    }
    for dots in [&b"."[..], b".."] {
        if !names.contains(dots) {
            report.find(id, what.clone(), format!("has no '{}'", String::from_utf8_lossy(dots)));
        }
    }
    let behind = volume.part(status.id.vnode, Part::Page((status.length / PAGE as u64) as u32));
    if report.take(id, behind)?.flatten().is_some_and(|page| !page.is_empty()) {
        report.find(id, what, "has a page behind its end");
    }
    Ok(())
}

/// The pages of a directory, by the rules that all readers of directories have in common. That its names are whole, and what
/// they stand for, is looked at elsewhere.
fn check_pages(volume: &Volume, record: &VnodeRecord, report: &mut Report) -> Result<(), VolumeError> {
    let id = Some(volume.id());
    let status = &record.status;
    let what = format!("directory {}", status.id.vnode);
    let mut bytes = Vec::new();
    for page in 0..(status.length / PAGE as u64) as u32 {
        match volume.part(status.id.vnode, Part::Page(page))? {
            Some(row) if row.len() == PAGE => bytes.extend_from_slice(&row),
            // Whoever reads its entries says so.
            _ => return Ok(()),
        }
    }
    let directory = match Directory::parse(&bytes[..]) {
        Ok(directory) => directory,
        Err(error) => {
            report.find(id, what, error.to_string());
            return Ok(());
        }
    };
    let is_told_elsewhere =
        |fault: &Fault| matches!(fault, Fault::NoDot | Fault::NoDotDot | Fault::Duplicate(_));
    for fault in directory.check().iter().filter(|fault| !is_told_elsewhere(fault)) {
        report.find(id, what.clone(), fault.to_string());
    }
    Ok(())
}

fn check_inline(volume: &Volume, record: &VnodeRecord, report: &mut Report) -> Result<(), VolumeError> {
    let status = &record.status;
    let length = volume.part(status.id.vnode, Part::Inline)?.map_or(0, |bytes| bytes.len() as u64);
    if length != status.length {
        let why = format!("has {length} bytes of data, and says {}", status.length);
        report.find(Some(volume.id()), format!("vnode {}", status.id.vnode), why);
    }
    Ok(())
}

fn check_chunks(volume: &Volume, record: &VnodeRecord, report: &mut Report) -> Result<(), VolumeError> {
    let id = Some(volume.id());
    let VnodeRecord { status, .. } = record;
    let number = status.id.vnode;
    let what = format!("vnode {number}");
    let found = group::chunks(&volume.shared.store, volume.group.id, number, volume.view(), 0..=u32::MAX)?;
    for (n, snapshot, chunk) in found {
        let Some(chunk) = chunk else { continue };
        if u64::from(n) * CHUNK + u64::from(chunk.length) > status.length {
            report.find(id, what.clone(), format!("chunk {n} goes beyond its {} bytes", status.length));
        }
        let key = VnodeKey { group: volume.group.id, vnode: number, part: Part::Chunk(n), snapshot };
        let name = records::file_name(chunk.file, &key, n);
        match volume.shared.store.disk().open(&name).and_then(|file| file.length()) {
            Ok(length) if length < u64::from(chunk.length) => {
                report.find(
                    id,
                    what.clone(),
                    format!("{name} has {length} bytes, and should have {}", chunk.length),
                );
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                report.find(id, what.clone(), format!("{name} is not there"));
            }
            Err(error) => return Err(VolumeError::io(format!("cannot open {name}"))(error)),
        }
    }
    Ok(())
}

/// Each file of data: that a row names it.
fn check_data_files(shared: &Arc<Shared>, report: &mut Report) -> Result<(), VolumeError> {
    let disk = shared.store.disk();
    let list = |folder: &str| disk.list(folder).map_err(VolumeError::io(format!("cannot list {folder}")));
    for folder in list("data")? {
        let folder = format!("data/{folder}");
        for name in list(&folder)? {
            report.data_files += 1;
            let path = format!("{folder}/{name}");
            let Some((file, key)) = records::parse_file_name(&name) else {
                report.find(None, path, "is no file of ours");
                continue;
            };
            let row: Option<Bytes> = shared.store.get(&Key(key.key().0))?;
            let chunk = row.map(|row| ChunkRecord::decode(&row)).transpose();
            let is_named =
                report.take(None, chunk)?.flatten().flatten().is_some_and(|chunk| chunk.file == file);
            let is_garbage = shared.store.get(&keys::garbage(file))?.is_some();
            if is_named && is_garbage {
                report.find(None, path, "is among the garbage, and a row names it");
            } else if !is_named && !is_garbage && !shared.is_begun(file) {
                report.find(None, path, "is an orphan: no row names it");
            }
        }
    }
    Ok(())
}
