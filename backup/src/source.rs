//! A volume as rustic's backup reads it: all entries of a dump in the order of their names, with what has not changed from the last
//! backup. rustic passes over entries that fail, with a warning; here each failure is noted, and what was given is counted.

use crate::known::KnownFiles;
use crate::node;
use crate::repository::Indexed;
use crate::spool::{Named, Spool};
use afs_dump::VnodeKind;
use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber, VolumeId};
use rustic_core::repofile::{Metadata, Node, NodeType, SnapshotSummary};
use rustic_core::{ErrorKind, ReadSource, ReadSourceEntry, ReadSourceOpen, RusticError, RusticResult};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Cursor, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Failures that are told one by one; with more, their number says enough.
const FAILURES_SHOWN: usize = 20;

/// Bytes that a symbolic link may point with.
const TARGET_MAX: u64 = 4096;

/// A volume that is backed up.
pub(crate) struct Source(pub(crate) Arc<Volume>);

/// Its contents.
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) id: VolumeId,
    /// The volume's header as a dump without vnodes, which becomes a file.
    pub(crate) header: Vec<u8>,
    pub(crate) spool: Spool,
    pub(crate) known: KnownFiles,
    pub(crate) repository: Indexed,
    pub(crate) counts: Mutex<Counts>,
}

/// The entries that were given to rustic, and those that failed.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    files: u64,
    directories: u64,
    failed: u64,
    shown: Vec<String>,
}

impl Volume {
    /// The name of the file with the volume's header, beside the folder of the volume.
    pub(crate) fn header_name(volume: &str) -> String {
        format!("{volume}.header")
    }

    /// Tells whether everything that directories name is in the dump or was in the last backup.
    pub(crate) fn is_whole(&self) -> bool {
        let is_there = |named: &Named| match self.spool.vnode(named) {
            None => false,
            Some(vnode) => vnode.body.is_some() || self.known.has(fid_of(named)),
        };
        let mut directories = self.spool.vnodes.keys().filter(|number| VnodeNumber(**number).is_directory());
        directories
            .all(|number| self.spool.directory(*number).is_some_and(|body| body.entries.iter().all(is_there)))
    }

    /// The bytes of all files, as far as they are known.
    fn size(&self) -> u64 {
        let size_of = |named: &Named| match self.spool.vnode(named).map(|vnode| vnode.body.as_deref()) {
            Some(Some(body)) if body.attributes.kind == VnodeKind::File => {
                body.attributes.length.unwrap_or(0)
            }
            Some(None) => self.known.size(fid_of(named)),
            _ => 0,
        };
        let directories = self.spool.vnodes.keys().filter_map(|number| self.spool.directory(*number));
        self.header.len() as u64 + directories.flat_map(|body| &body.entries).map(size_of).sum::<u64>()
    }

    /// The failures, when all has been saved: those of entries, and those that rustic has passed over, as far as they are not the same.
    pub(crate) fn failures(&self, saved: &SnapshotSummary) -> Vec<String> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = counts.shown.clone();
        if counts.failed > told.len() as u64 {
            told.push(format!("{} more have failed", counts.failed - told.len() as u64));
        }
        // rustic counts the snapshot's own folder too.
        let (files, directories) =
            (saved.total_files_processed, saved.total_dirs_processed.saturating_sub(1));
        if told.is_empty() && (files, directories) != (counts.files, counts.directories) {
            told.push(format!(
                "{} files and {} directories were read, and {files} and {directories} of them saved",
                counts.files, counts.directories
            ));
        }
        told
    }

    fn fail(&self, path: &Path, why: &impl Display) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.failed += 1;
        if counts.shown.len() < FAILURES_SHOWN {
            counts.shown.push(format!("{}: {why}", path.display()));
        }
    }

    fn count(&self, is_directory: bool) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *if is_directory { &mut counts.directories } else { &mut counts.files } += 1;
    }
}

impl ReadSource for Source {
    type Open = Open;
    type Iter = Entries;

    fn size(&self) -> RusticResult<Option<u64>> {
        Ok(Some(self.0.size()))
    }

    fn entries(&self) -> Entries {
        Entries { volume: Arc::clone(&self.0), folders: Vec::new(), seen: HashSet::new(), has_ended: false }
    }
}

/// The entries of a volume, each folder before what is in it.
pub(crate) struct Entries {
    volume: Arc<Volume>,
    /// The folders that are being read: path, vnode, and the number of the next entry.
    folders: Vec<(PathBuf, u32, usize)>,
    /// The directories that were met. A damaged volume may name one twice, or within itself.
    seen: HashSet<u32>,
    has_ended: bool,
}

impl Iterator for Entries {
    type Item = RusticResult<ReadSourceEntry<Open>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (path, made) = self.step()?;
            match made {
                Ok(entry) => {
                    self.volume.count(entry.node.is_dir());
                    return Some(Ok(entry));
                }
                Err(why) => self.volume.fail(&path, &why),
            }
        }
    }
}

impl Entries {
    /// The next entry, or the reason why it cannot be read.
    fn step(&mut self) -> Option<(PathBuf, Result<ReadSourceEntry<Open>, String>)> {
        if self.has_ended {
            return None;
        }
        if self.seen.is_empty() {
            let root = Named { name: self.volume.name.as_bytes().into(), vnode: 1, unique: 1 };
            let path = Path::new("/").join(&self.volume.name);
            // The root's uniquifier is what the dump says.
            let unique = self.volume.spool.vnodes.get(&1).map_or(1, |vnode| vnode.unique);
            let made = self.entry(&path, &Named { unique, ..root });
            return Some((path, made));
        }
        let volume = Arc::clone(&self.volume);
        while let Some((path, vnode, next)) = self.folders.last_mut() {
            let body = volume.spool.directory(*vnode)?;
            if let Some(named) = body.entries.get(*next) {
                *next += 1;
                let path = path.join(OsStr::from_bytes(&named.name));
                let made = self.entry(&path, named);
                return Some((path, made));
            }
            self.folders.pop();
        }
        self.has_ended = true;
        let path = Path::new("/").join(Volume::header_name(&volume.name));
        Some((path.clone(), Ok(header_file(&volume, path))))
    }

    fn entry(&mut self, path: &Path, named: &Named) -> Result<ReadSourceEntry<Open>, String> {
        let volume = Arc::clone(&self.volume);
        // The first is the root, if its number is one that can be.
        self.seen.insert(1);
        let name = OsStr::from_bytes(&named.name);
        if named.name.contains(&b'/') || matches!(&*named.name, b"." | b"..") {
            return Err("no file can have this name".to_owned());
        }
        let missing = || "its directory names it, but it is not in the volume: salvage the volume".to_owned();
        let vnode = volume.spool.vnode(named).ok_or_else(missing)?;
        let Some(body) = vnode.body.as_deref() else {
            let node = volume.known.node(name, volume.id, fid_of(named));
            let mut node = node.ok_or("it is neither in the dump nor in the last backup: run with --full")?;
            let content = node.content.take();
            let open = node.is_file().then(|| Open {
                volume,
                path: path.to_owned(),
                data: Data::Saved(Box::new(Node { content, ..node.clone() })),
            });
            return Ok(ReadSourceEntry { path: path.to_owned(), node, open });
        };
        let length = body.attributes.length.unwrap_or(0);
        let mut target = Vec::new();
        match body.attributes.kind {
            VnodeKind::File => {}
            VnodeKind::Symlink => {
                if length > TARGET_MAX {
                    return Err(format!("it is a symbolic link of {length} bytes"));
                }
                target.resize(length as usize, 0);
                volume.spool.read(body.at, &mut target).map_err(|error| error.to_string())?;
            }
            VnodeKind::Directory => {
                let is_root = self.folders.is_empty() && named.vnode == 1;
                if !is_root && !self.seen.insert(named.vnode) {
                    return Err("this directory has two names: salvage the volume".to_owned());
                }
                self.folders.push((path.to_owned(), named.vnode, 0));
            }
        }
        let node = node::of_vnode(name, volume.id, fid_of(named), &body.attributes, &target);
        let data = Data::Spooled { at: body.at, left: length };
        let open = node.is_file().then(|| Open { volume, path: path.to_owned(), data });
        Ok(ReadSourceEntry { path: path.to_owned(), node, open })
    }
}

fn header_file(volume: &Arc<Volume>, path: PathBuf) -> ReadSourceEntry<Open> {
    let mtime = Some(node::time(volume.spool.header.update_date));
    let size = volume.header.len() as u64;
    let meta = Metadata { mode: Some(0o600), mtime, atime: mtime, size, links: 1, ..Metadata::default() };
    let name = Volume::header_name(&volume.name);
    let node = Node::new_node(OsStr::new(&name), NodeType::File, meta);
    let data = Data::Header;
    ReadSourceEntry { node, open: Some(Open { volume: Arc::clone(volume), path: path.clone(), data }), path }
}

fn fid_of(named: &Named) -> LocalFid {
    LocalFid { vnode: VnodeNumber(named.vnode), unique: Uniquifier(named.unique) }
}

/// A file whose data are to be read.
pub(crate) struct Open {
    volume: Arc<Volume>,
    path: PathBuf,
    data: Data,
}

/// The place of a file's data.
enum Data {
    Header,
    Spooled {
        at: u64,
        left: u64,
    },
    /// The last backup has them.
    Saved(Box<Node>),
}

impl ReadSourceOpen for Open {
    type Reader = Box<dyn Read + Send>;

    fn open(self) -> RusticResult<Self::Reader> {
        let Self { volume, path, data } = self;
        Ok(match data {
            Data::Header => Box::new(Cursor::new(volume.header.clone())),
            Data::Spooled { at, left } => Box::new(Spooled { volume, path, at, left }),
            Data::Saved(node) => match volume.repository.open_file(&node) {
                Ok(file) => Box::new(Saved { volume, path, file, at: 0, size: node.meta.size }),
                Err(error) => {
                    volume.fail(&path, &error.display_log());
                    return Err(RusticError::new(ErrorKind::InputOutput, "the last backup lacks data"));
                }
            },
        })
    }
}

/// A file that is read from the spool.
struct Spooled {
    volume: Arc<Volume>,
    path: PathBuf,
    at: u64,
    left: u64,
}

impl Read for Spooled {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.volume
            .spool
            .read(self.at, &mut buffer[..length])
            .inspect_err(|error| self.volume.fail(&self.path, error))?;
        self.at += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}

/// A file that is read from the last backup: it has not changed, but has another name.
struct Saved {
    volume: Arc<Volume>,
    path: PathBuf,
    file: rustic_core::vfs::OpenFile,
    at: u64,
    size: u64,
}

impl Read for Saved {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let failed = |why: String| {
            self.volume.fail(&self.path, &why);
            io::Error::other(why)
        };
        if self.at >= self.size || buffer.is_empty() {
            return Ok(0);
        }
        let at = usize::try_from(self.at).map_err(|_| failed("it is too large".to_owned()))?;
        let data = self.volume.repository.read_file_at(&self.file, at, buffer.len());
        let data = data.map_err(|error| failed(error.display_log()))?;
        if data.is_empty() {
            return Err(failed("the last backup has less of it than it says".to_owned()));
        }
        buffer[..data.len()].copy_from_slice(&data);
        self.at += data.len() as u64;
        Ok(data.len())
    }
}
