//! A dump as it arrived: its header and vnodes in memory, and the data of files and links in a spool file, which has no name and goes
//! with the program. A dump has its vnodes by number, and a repository's trees need them by name: so the data have to wait, and the spool
//! takes as much room as the changed files have.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use afs_dump::{Event, Reader, VnodeAttributes, VnodeKind, VolumeHeader};
use afs_wire::directory::Directory;
use afs_wire::ids::{LocalFid, VnodeNumber};

/// Names that are tried for the spool file: others may have left files.
const NAMES_MAX: u32 = 100;

/// A vnode of a dump.
#[derive(Debug)]
pub(crate) struct Vnode {
    pub(crate) unique: u32,
    /// All that there is of it. `None`: it has not changed since the time that the dump begins with.
    pub(crate) body: Option<Box<Body>>,
}

/// The contents of a vnode.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) attributes: VnodeAttributes,
    /// The place of its data in the spool.
    pub(crate) at: u64,
    /// A directory's entries, sorted by name.
    pub(crate) entries: Vec<Named>,
}

/// An entry of a directory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    pub(crate) name: Box<[u8]>,
    pub(crate) vnode: u32,
    pub(crate) unique: u32,
}

/// A dump that has arrived.
#[derive(Debug)]
pub(crate) struct Spool {
    pub(crate) header: VolumeHeader,
    pub(crate) vnodes: HashMap<u32, Vnode>,
    /// The length of the dump.
    pub(crate) bytes: u64,
    data: File,
}

/// Takes a dump piece by piece.
pub(crate) struct Spooling {
    reader: Reader,
    header: VolumeHeader,
    vnodes: HashMap<u32, Vnode>,
    data: BufWriter<File>,
    written: u64,
    folder: PathBuf,
    /// The vnode whose data are coming.
    current: u32,
    /// The pages of the directory that is coming.
    pages: Vec<u8>,
}

impl Spooling {
    /// Begins with a spool file in a folder.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            reader: Reader::new(),
            header: VolumeHeader::default(),
            vnodes: HashMap::new(),
            data: BufWriter::with_capacity(1 << 20, nameless(folder)?),
            written: 0,
            folder: folder.to_owned(),
            current: 0,
            pages: Vec::new(),
        })
    }

    /// Takes the next bytes.
    pub(crate) fn take(&mut self, mut input: &[u8]) -> io::Result<()> {
        loop {
            match self.reader.next(&mut input).map_err(io::Error::other)? {
                None => return Ok(()),
                Some(Event::Dump(_) | Event::End) => {}
                Some(Event::Volume(header)) => self.header = header.clone(),
                Some(Event::Vnode(record)) => {
                    let LocalFid { vnode, unique } = record.fid;
                    let (at, entries) = (self.written, Vec::new());
                    let body = record
                        .attributes
                        .clone()
                        .map(|attributes| Box::new(Body { attributes, at, entries }));
                    self.vnodes.insert(vnode.0, Vnode { unique: unique.0, body });
                    self.current = vnode.0;
                }
                Some(Event::Data(data)) if !VnodeNumber(self.current).is_directory() => {
                    self.data.write_all(data).map_err(|error| of_spool(&self.folder, &error))?;
                    self.written += data.len() as u64;
                }
                Some(Event::Data(page)) => {
                    self.pages.extend_from_slice(page);
                    if let Some(Vnode { body: Some(body), .. }) = self.vnodes.get_mut(&self.current)
                        && body.attributes.length == Some(self.pages.len() as u64)
                    {
                        body.entries = entries(self.current, &self.pages)?;
                        self.pages.clear();
                    }
                }
            }
        }
    }

    /// Ends, when all has come.
    pub(crate) fn end(self) -> io::Result<Spool> {
        self.reader.finish().map_err(io::Error::other)?;
        let data = self.data.into_inner();
        let data = data.map_err(|error| of_spool(&self.folder, error.error()))?;
        Ok(Spool { header: self.header, vnodes: self.vnodes, bytes: self.reader.offset(), data })
    }
}

impl Spool {
    /// Reads data of a vnode, of which the first byte is at `at` in the spool.
    pub(crate) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.data.read_exact_at(buffer, at)
    }

    /// The vnode that a directory's entry names, if it is in the dump.
    pub(crate) fn vnode(&self, named: &Named) -> Option<&Vnode> {
        self.vnodes.get(&named.vnode).filter(|vnode| vnode.unique == named.unique)
    }

    /// The contents of a directory that is in the dump.
    pub(crate) fn directory(&self, vnode: u32) -> Option<&Body> {
        let body = self.vnodes.get(&vnode)?.body.as_deref()?;
        (body.attributes.kind == VnodeKind::Directory).then_some(body)
    }
}

/// Makes a file that nobody else can open.
fn nameless(folder: &Path) -> io::Result<File> {
    let mut tries = 0..NAMES_MAX;
    loop {
        let path =
            folder.join(format!("afar-backup.{}.{}", std::process::id(), tries.next().unwrap_or(NAMES_MAX)));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !tries.is_empty() => {}
            Err(error) => return Err(of_spool(folder, &error)),
        }
    }
}

/// An error that names the spool's folder: there is another disk that may be full.
fn of_spool(folder: &Path, error: &io::Error) -> io::Error {
    let what = format!("the spool in {}, which --spool names: {error}", folder.display());
    io::Error::new(error.kind(), what)
}

/// The entries of a directory, sorted by name, without those for itself and its parent.
fn entries(vnode: u32, pages: &[u8]) -> io::Result<Vec<Named>> {
    let bad = |error| io::Error::other(format!("directory {vnode} of the dump is damaged: {error}"));
    let directory = Directory::parse(pages).map_err(|error| bad(error.to_string()))?;
    let mut entries: Vec<Named> = directory
        .entries()
        .filter(|entry| !entry.is_dot())
        .map(|entry| Named { name: entry.name.into(), vnode: entry.fid.vnode.0, unique: entry.fid.unique.0 })
        .collect();
    entries.sort_unstable();
    Ok(entries)
}
