//! A backup restored into a volume: a full dump is made of it, which the volume's server takes as it takes `vos restore`. Vnodes keep their
//! numbers, owners and access lists; ids in access lists are those of the cell that was backed up.

use crate::cell::{Cell, Target};
use crate::node;
use crate::repository::{Indexed, Store};
use crate::restore;
use crate::source::Volume;
use afs_dump::{
    DumpHeader, DumpRange, Event, Reader, VnodeAttributes, VnodeKind, VnodeRecord, VolumeHeader, Writer,
};
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, LocalFid, VnodeNumber};
use bytes::Bytes;
use rustic_core::LsOptions;
use rustic_core::repofile::{Node, SnapshotFile};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// Bytes of a piece of the dump.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces that wait for the server.
const PIECES: usize = 8;

/// A dump that is made of a backup.
pub(crate) struct MadeDump {
    header: VolumeHeader,
    vnodes: Vnodes,
}

impl MadeDump {
    /// Reads all of a backup but the data of its files.
    pub(crate) fn read(indexed: &Indexed, snapshot: &SnapshotFile) -> Result<Self, String> {
        Ok(Self { header: header(indexed, snapshot)?, vnodes: read(indexed, snapshot)? })
    }

    /// Writes the dump, piece by piece.
    pub(crate) fn write(
        &self,
        indexed: &Indexed,
        give: impl FnMut(Bytes) -> io::Result<()>,
    ) -> io::Result<()> {
        write(indexed, &self.header, &self.vnodes, give)
    }
}

/// The entries of a directory.
type Names = Vec<(Vec<u8>, LocalFid)>;

/// The vnodes of a backup, in the order of a dump.
#[derive(Default)]
struct Vnodes {
    directories: BTreeMap<u32, (LocalFid, VnodeAttributes, Names)>,
    files: BTreeMap<u32, (LocalFid, VnodeAttributes, Node)>,
}

/// Restores a backup into a volume of this name. One that is there is replaced only with `overwrite`.
pub(crate) fn restore(
    cell: &Cell,
    store: &Store,
    snapshot: &SnapshotFile,
    target: &Target<'_>,
    (overwrite, now): (bool, Duration),
) -> Result<(), String> {
    if !overwrite && cell.has(target.name)? {
        return Err(format!(
            "there is a volume {}: give another name, or --overwrite to replace its contents",
            target.name
        ));
    }
    let indexed = store.indexed()?;
    let made = MadeDump::read(&indexed, snapshot)?;
    let now = AfsTime(u32::try_from(now.as_secs()).unwrap_or(u32::MAX));
    let id = thread::scope(|scope| {
        let (send, receive) = sync_channel(PIECES);
        scope.spawn(move || {
            let written = made.write(&indexed, |piece| {
                // The server has said no, and nobody takes the rest.
                send.send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
            });
            if let Err(error) = written {
                let _ = send.send(Err(error));
            }
        });
        cell.restore(target, now, move || receive.recv().unwrap_or_else(|_| Ok(Bytes::new())))
    })?;
    println!("restored the backup of {} as volume {} ({id})", snapshot.label, target.name);
    Ok(())
}

/// The volume's header.
fn header(indexed: &Indexed, snapshot: &SnapshotFile) -> Result<VolumeHeader, String> {
    let name = Volume::header_name(&snapshot.label);
    let mut bytes = Vec::new();
    let mut read = || {
        let node = indexed.node_from_snapshot_and_path(snapshot, &name)?;
        indexed.dump(&node, &mut bytes)
    };
    read().map_err(|error| error.display_log())?;
    let (mut reader, mut input) = (Reader::new(), bytes.as_slice());
    let mut header = None;
    while let Some(event) = reader.next(&mut input).map_err(|error| format!("{name}: {error}"))? {
        if let Event::Volume(found) = event {
            header = Some(found.clone());
        }
    }
    header.ok_or_else(|| format!("{name} has no header of a volume"))
}

/// Reads the tree of a backup.
fn read(indexed: &Indexed, snapshot: &SnapshotFile) -> Result<Vnodes, String> {
    let mut vnodes = Vnodes::default();
    let mut folders: HashMap<PathBuf, u32> = HashMap::new();
    let failed = |error: Box<rustic_core::RusticError>| error.display_log();
    let root = indexed.node_from_snapshot_and_path(snapshot, "").map_err(failed)?;
    let options = LsOptions::default();
    for entry in indexed.ls(&root, &options).map_err(failed)? {
        let (path, node) = entry.map_err(failed)?;
        if !path.starts_with(&snapshot.label) {
            continue;
        }
        let bad = |why: String| format!("{}: {why}", path.display());
        let parent = path.parent().and_then(|parent| folders.get(parent)).copied();
        let (fid, attributes) = node::to_vnode(&node, VnodeNumber(parent.unwrap_or(0))).map_err(&bad)?;
        if parent.is_none() && (path != Path::new(&snapshot.label) || fid.vnode != VnodeNumber::ROOT) {
            return Err(bad("is in no folder of the volume".to_owned()));
        }
        if let Some((_, attributes, entries)) = parent.and_then(|parent| vnodes.directories.get_mut(&parent))
        {
            entries.push((node.name().as_bytes().to_vec(), fid));
            attributes.link_count += u16::from(node.is_dir());
        }
        let other = if node.is_dir() {
            folders.insert(path.clone(), fid.vnode.0);
            let attributes = VnodeAttributes { link_count: 2, ..attributes };
            vnodes.directories.insert(fid.vnode.0, (fid, attributes, Vec::new())).is_some()
        } else {
            let links = match vnodes.files.get(&fid.vnode.0) {
                Some((same, known, _)) if *same == fid => known.link_count.saturating_add(1),
                Some(_) => return Err(bad("has the number of another file".to_owned())),
                None => 1,
            };
            vnodes
                .files
                .insert(fid.vnode.0, (fid, VnodeAttributes { link_count: links, ..attributes }, node));
            false
        };
        if other {
            return Err(bad("has the number of another folder".to_owned()));
        }
    }
    Ok(vnodes)
}

/// Writes a dump of vnodes, piece by piece.
fn write(
    indexed: &Indexed,
    header: &VolumeHeader,
    vnodes: &Vnodes,
    mut give: impl FnMut(Bytes) -> io::Result<()>,
) -> io::Result<()> {
    let range = DumpRange { from: AfsTime(0), to: header.update_date };
    let dump = DumpHeader { volume: header.parent, name: header.name.clone(), ranges: vec![range] };
    let mut out = Vec::with_capacity(2 * PIECE_BYTES);
    let mut writer = Writer::new(&dump, header, &mut out).map_err(io::Error::other)?;
    let mut give_full = |out: &mut Vec<u8>, least: usize| {
        if out.len() < least { Ok(()) } else { give(Bytes::from(std::mem::take(out))) }
    };
    for (fid, attributes, entries) in vnodes.directories.values() {
        let parent = vnodes.directories.get(&attributes.parent.0).map_or(*fid, |(parent, ..)| *parent);
        let names = entries.iter().map(|(name, fid)| (name.as_slice(), *fid));
        let pages = Directory::build(*fid, parent, names);
        let pages =
            pages.map_err(|error| io::Error::other(format!("directory {fid}: {error}")))?.into_bytes();
        let attributes = VnodeAttributes { length: Some(pages.len() as u64), ..attributes.clone() };
        let record = VnodeRecord { fid: *fid, attributes: Some(attributes) };
        writer.vnode(&record, &mut out).map_err(io::Error::other)?;
        writer.data(&pages, &mut out);
        give_full(&mut out, PIECE_BYTES)?;
    }
    for (fid, attributes, node) in vnodes.files.values() {
        let target = match attributes.kind {
            VnodeKind::Symlink => node.node_type.to_link().as_os_str().as_bytes(),
            VnodeKind::File | VnodeKind::Directory => &[],
        };
        let length = if node.is_file() { node.meta.size } else { target.len() as u64 };
        let attributes = VnodeAttributes { length: Some(length), ..attributes.clone() };
        let record = VnodeRecord { fid: *fid, attributes: Some(attributes) };
        writer.vnode(&record, &mut out).map_err(io::Error::other)?;
        writer.data(target, &mut out);
        if node.is_file() {
            let written = restore::read(indexed, node, |data| {
                writer.data(&data, &mut out);
                give_full(&mut out, PIECE_BYTES)
            });
            written.map_err(|error| io::Error::new(error.kind(), format!("vnode {fid}: {error}")))?;
        }
        give_full(&mut out, PIECE_BYTES)?;
    }
    writer.end(&mut out);
    give_full(&mut out, 0)
}
