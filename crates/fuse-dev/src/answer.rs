//! Answers to the kernel. A [`Reply`] belongs to one request and is used once; dropped without an answer it says EIO, so
//! that nobody waits for ever.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::device::{Backing, Device};
use crate::entries::{Entries, PlusEntries};
use crate::operation::{Handle, Lock, LockKind, NodeId, Unique};

/// The kind of file that a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file with contents.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

impl Kind {
    /// The bits of `st_mode`.
    pub const fn mode(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Symlink => libc::S_IFLNK,
        }
    }

    /// The type in a directory's entry; 0 where it is not known.
    pub(crate) fn in_directory(kind: Option<Self>) -> u32 {
        kind.map_or(0, |kind| kind.mode() >> 12)
    }
}

/// The attributes of a node for `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number that programs see; not the node's id.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space that it takes, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: SystemTime,
    /// Last change of the contents.
    pub mtime: SystemTime,
    /// Last change of anything.
    pub ctime: SystemTime,
    /// Its kind.
    pub kind: Kind,
    /// The lower twelve bits of the mode.
    pub permissions: u16,
    /// The number of its names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The size that reads and writes should be multiples of.
    pub block_size: u32,
}

/// A node as the answer to a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Its attributes for `stat`.
    pub attributes: Attributes,
    /// The time for which the name may be taken for the node's without asking.
    pub name_ttl: Duration,
    /// The time for which the attributes may be taken for true without asking.
    pub attributes_ttl: Duration,
}

/// The treatment of an open file by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags(pub(crate) u32);

impl OpenFlags {
    /// The page cache, which is dropped at this open.
    pub const NONE: Self = Self(0);
    /// Reads and writes come here one by one, past the page cache.
    pub const DIRECT_IO: Self = Self(1 << 0);
    /// Pages that are there stay valid.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// The listing of this directory may be kept.
    pub const CACHE_DIRECTORY: Self = Self(1 << 3);
    /// Closing needs no FLUSH.
    pub const NO_FLUSH: Self = Self(1 << 5);
    const PASSTHROUGH: Self = Self(1 << 7);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all of these are among them.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The facts of a file system for `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystemSpace {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free ones.
    pub free: u64,
    /// Those that users may have.
    pub available: u64,
    /// Files there can be; 0 where nobody knows.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
    /// The longest name in bytes.
    pub name_max: u32,
}

/// The answer to one request.
#[derive(Debug)]
pub struct Reply {
    device: Arc<Device>,
    unique: Unique,
    locked: Option<KernelLock>,
    is_due: bool,
}

/// Bytes that are put together on the stack: no answer but data is longer than an entry with an open file.
pub(crate) struct Words<const ROOM: usize> {
    bytes: [u8; ROOM],
    length: usize,
}

impl<const ROOM: usize> Words<ROOM> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; ROOM], length: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    /// Pads the answer with zeros, up to so many bytes in all.
    pub(crate) fn zeros_to(mut self, length: usize) -> Self {
        assert!(length >= self.length && length <= ROOM, "padding makes a message longer");
        self.length = length;
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// `struct fuse_attr`, 88 bytes.
    fn attributes(self, a: &Attributes) -> Self {
        let [atime, mtime, ctime] = [a.atime, a.mtime, a.ctime].map(since_epoch);
        self.u64(a.inode)
            .u64(a.size)
            .u64(a.blocks)
            .u64(atime.0)
            .u64(mtime.0)
            .u64(ctime.0)
            .u32(atime.1)
            .u32(mtime.1)
            .u32(ctime.1)
            .u32(a.kind.mode() | u32::from(a.permissions) & 0o7777)
            .u32(a.links)
            .u32(a.uid)
            .u32(a.gid)
            .u32(0)
            .u32(a.block_size)
            .u32(0)
    }

    /// `struct fuse_entry_out`, 128 bytes. The generation is that of NFS exports, which there are none of.
    pub(crate) fn entry(self, e: &Entry) -> Self {
        self.u64(e.node.0)
            .u64(0)
            .u64(e.name_ttl.as_secs())
            .u64(e.attributes_ttl.as_secs())
            .u32(e.name_ttl.subsec_nanos())
            .u32(e.attributes_ttl.subsec_nanos())
            .attributes(&e.attributes)
    }
}

/// Seconds, negative ones as two's complement, and nanoseconds after them.
fn since_epoch(time: SystemTime) -> (u64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            match before.subsec_nanos() {
                0 => (before.as_secs().wrapping_neg(), 0),
                nanos => ((before.as_secs() + 1).wrapping_neg(), 1_000_000_000 - nanos),
            }
        }
    }
}

/// A lock that the kernel holds while it waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelLock {
    /// Held for pages of a file that it reads or writes: a notice of the file's data waits for it.
    Pages(NodeId),
    /// Held for a directory that it lists or changes, or in which it looks up a name: a notice of a name in it waits.
    Names(NodeId),
}

impl Reply {
    pub(crate) fn new(device: Arc<Device>, unique: Unique) -> Self {
        Self { device, unique, locked: None, is_due: true }
    }

    /// A reply that is not due: to requests that are not answered.
    pub(crate) fn none(device: Arc<Device>, unique: Unique) -> Self {
        Self { device, unique, locked: None, is_due: false }
    }

    /// Notes which lock the kernel holds.
    pub(crate) fn holding(mut self, locked: Option<KernelLock>) -> Self {
        self.locked = locked;
        self
    }

    /// The lock that the kernel holds until this is answered. Those of changes of directories, which lock up to four nodes, are not told here.
    pub fn locked(&self) -> Option<KernelLock> {
        self.locked
    }

    /// The request that is answered.
    pub fn unique(&self) -> Unique {
        self.unique
    }

    /// Returns true if the kernel took it: not if the kernel no longer knows the request.
    fn send(&mut self, error: i32, parts: &[&[u8]]) -> bool {
        self.is_due = false;
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(16 + body).expect("answers are as long as the kernel asked for");
        let header = Words::<16>::new().u32(length).u32(error.wrapping_neg() as u32).u64(self.unique.0);
        let mut slices = [IoSlice::new(&[]); 4];
        slices[0] = IoSlice::new(header.bytes());
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match self.device.send(&slices[..=parts.len()]) {
            // ENOENT: the kernel no longer knows the request, for example because the mount was aborted. ENODEV: the mount is gone.
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                tracing::error!(request = self.unique.0, %error, "an answer was refused by the kernel");
                if body > 0 {
                    // What asked would wait for ever.
                    self.send(libc::EIO, &[]);
                }
                false
            }
            result => result.is_ok(),
        }
    }

    /// Answers that it failed, with this error number.
    pub fn error(mut self, errno: i32) {
        self.send(errno, &[]);
    }

    /// Answers that it is done, and that there is nothing to say about it.
    pub fn ok(mut self) {
        self.send(0, &[]);
    }

    /// Answers nothing at all: FORGET, and INTERRUPT of a request that is known.
    pub fn nothing(mut self) {
        self.is_due = false;
    }

    /// Data of a file, the target of a link, the value of an attribute.
    pub fn data(mut self, data: &[u8]) {
        self.send(0, &[data]);
    }

    /// The target of a symbolic link.
    pub fn target(self, target: &OsStr) {
        self.data(target.as_bytes());
    }

    /// A node, which is looked up once more by this. False: it is not, because the kernel no longer knows the request.
    pub fn entry(mut self, entry: &Entry) -> bool {
        self.send(0, &[Words::<128>::new().entry(entry).bytes()])
    }

    /// The name is not there, and need not be asked for during this time.
    pub fn no_entry(mut self, ttl: Duration) {
        if ttl.is_zero() {
            return self.error(libc::ENOENT);
        }
        let words = Words::<128>::new().u64(0).u64(0).u64(ttl.as_secs()).u64(0).u32(ttl.subsec_nanos());
        self.send(0, &[words.zeros_to(128).bytes()]);
    }

    /// Attributes, and how long they may be taken for true.
    pub fn attributes(mut self, attributes: &Attributes, ttl: Duration) {
        let words = Words::<104>::new().u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0);
        self.send(0, &[words.attributes(attributes).bytes()]);
    }

    /// A file or directory is open. False: nobody will release it, because the kernel no longer knows the request.
    pub fn opened(mut self, handle: Handle, flags: OpenFlags) -> bool {
        self.send(0, &[Words::<16>::new().u64(handle.0).u32(flags.0).u32(0).bytes()])
    }

    /// A file is open, and the kernel reads `backing` in its stead; with [`OpenFlags::DIRECT_IO`] only for mappings.
    /// False as of [`Self::opened`].
    pub fn opened_through(mut self, handle: Handle, flags: OpenFlags, backing: &Backing) -> bool {
        let flags = flags.and(OpenFlags::PASSTHROUGH).0;
        self.send(0, &[Words::<16>::new().u64(handle.0).u32(flags).u32(backing.id).bytes()])
    }

    /// A file was made and is open. False as of [`Self::entry`] and [`Self::opened`].
    pub fn created(mut self, entry: &Entry, handle: Handle, flags: OpenFlags) -> bool {
        self.send(0, &[Words::<144>::new().entry(entry).u64(handle.0).u32(flags.0).u32(0).bytes()])
    }

    /// Answers that so many bytes were written, or copied.
    pub fn written(mut self, bytes: u32) {
        self.send(0, &[Words::<8>::new().u32(bytes).u32(0).bytes()]);
    }

    /// Answers with the length of an attribute's value, or of the list of names.
    pub fn length(mut self, bytes: u32) {
        self.send(0, &[Words::<8>::new().u32(bytes).u32(0).bytes()]);
    }

    /// A value as GETXATTR and LISTXATTR want it: its length if `room` is 0, ERANGE if it is too long for it.
    pub fn sized(self, value: &[u8], room: u32) {
        match (room, u32::try_from(value.len())) {
            (0, Ok(length)) => self.length(length),
            (room, Ok(length)) if length <= room => self.data(value),
            _ => self.error(libc::ERANGE),
        }
    }

    /// Answers with the room that there is.
    pub fn space(mut self, space: &FileSystemSpace) {
        let s = space;
        let words =
            Words::<80>::new().u64(s.blocks).u64(s.free).u64(s.available).u64(s.files).u64(s.files_free);
        let words = words.u32(s.block_size).u32(s.name_max).u32(s.block_size).zeros_to(80);
        self.send(0, &[words.bytes()]);
    }

    /// The lock that is in the way, or [`LockKind::Unlock`].
    pub fn lock(mut self, lock: &Lock) {
        let kind = match lock.kind {
            LockKind::Read => 0,
            LockKind::Write => 1,
            LockKind::Unlock => 2,
        };
        let words = Words::<24>::new().u64(lock.range.start).u64(lock.range.end).u32(kind).u32(lock.pid);
        self.send(0, &[words.bytes()]);
    }

    /// A position in a file.
    pub fn position(mut self, pos: u64) {
        self.send(0, &[&pos.to_ne_bytes()]);
    }

    /// Entries of a directory; none is its end.
    pub fn entries(self, entries: &Entries) {
        self.data(entries.bytes());
    }

    /// Entries with their attributes.
    pub fn plus_entries(self, entries: &PlusEntries) {
        self.data(entries.bytes());
    }

    /// Registers a file for [`Reply::opened_through`].
    ///
    /// # Errors
    ///
    /// As [`Device::open_backing`].
    pub fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        self.device.open_backing(file)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.is_due {
            tracing::error!(request = self.unique.0, "a request was not answered: saying EIO");
            self.send(libc::EIO, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_whole_seconds_before_and_nanoseconds_after() {
        let check = |time, expected: (i64, u32)| {
            let (seconds, nanos) = since_epoch(time);
            assert_eq!((seconds as i64, nanos), expected);
        };
        check(UNIX_EPOCH + Duration::new(5, 7), (5, 7));
        check(UNIX_EPOCH - Duration::from_secs(5), (-5, 0));
        check(UNIX_EPOCH - Duration::from_millis(500), (-1, 500_000_000));
    }

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        let attributes = Attributes {
            inode: 1,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            kind: Kind::File,
            permissions: 0,
            links: 1,
            uid: 0,
            gid: 0,
            block_size: 4096,
        };
        assert_eq!(Words::<200>::new().attributes(&attributes).bytes().len(), 88);
        let entry =
            Entry { node: NodeId(2), attributes, name_ttl: Duration::ZERO, attributes_ttl: Duration::ZERO };
        assert_eq!(Words::<200>::new().entry(&entry).bytes().len(), 128);
    }
}
