//! The kernel's requests: one enum of operations. `parse` reads it from the bytes of a request, `answer` has the answers.

mod parse;

use std::ffi::OsStr;
use std::time::SystemTime;

use crate::fields::Fields;
pub(crate) use parse::{HEADER_LEN, opcode};

/// The number by which kernel and file system speak of a node, an inode of theirs. 1 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

/// The number of a request, by which it is answered or interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// The file system's number for a file that it has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// The process on whose behalf the kernel asks. Read-ahead, writing back and release come from any process that happens to
/// run: rights are a matter of the operations that name or open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user, as the file system checks rights.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The thread; 0 where the kernel asks for itself.
    pub pid: u32,
}

/// A request.
#[derive(Debug)]
pub struct Request<'a> {
    /// Its number.
    pub unique: Unique,
    /// The node that it is about.
    pub node: NodeId,
    /// The caller.
    pub caller: Caller,
    /// The operation.
    pub operation: Operation<'a>,
}

/// An access to be checked: the bits of `access(2)`, 4 read, 2 write, 1 execute; none is whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(pub u32);

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time now.
    Now,
    /// This.
    To(SystemTime),
}

/// The changes of SETATTR; what is not given stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits, and the type, which stays as it is.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last modification.
    pub mtime: Option<SetTime>,
    /// The open file by which it is done.
    pub handle: Option<Handle>,
    /// A change of the length that takes set-uid and set-gid bits away.
    pub kills_privileges: bool,
}

/// Kinds of locks, by the numbers of `fcntl(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: what is there is given up.
    Unlock,
}

/// The bytes that a lock is for; `end` belongs to it, and `u64::MAX >> 1` is as far as files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

impl LockRange {
    /// True if it is the whole file, as `flock(2)` has it, or `lockf` from the beginning without a length.
    pub fn is_whole(self) -> bool {
        self.start == 0 && self.end >= i64::MAX as u64
    }
}

/// A lock that is asked for or asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The open file.
    pub handle: Handle,
    /// The owner that has or wants it: a number of the kernel's.
    pub owner: u64,
    /// The bytes.
    pub range: LockRange,
    /// The kind.
    pub kind: LockKind,
    /// The process.
    pub pid: u32,
    /// True if it is of `flock(2)`, not of `fcntl(2)`.
    pub is_flock: bool,
}

/// Nodes that the kernel forgets, with how many of its look-ups.
#[derive(Debug, Clone)]
pub struct Forgets<'a>(Fields<'a>);

impl Iterator for Forgets<'_> {
    type Item = (NodeId, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.0.u64().ok()?;
        Some((NodeId(node), self.0.u64().ok()?))
    }
}

/// The operation that is asked for. Names and data are borrowed from the request.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are those of the system calls that the variants name")]
pub enum Operation<'a> {
    /// A name in a directory. Counts as one look-up of the node that is answered.
    Lookup {
        name: &'a OsStr,
    },
    /// The kernel forgets so many look-ups of the node. Not answered.
    Forget {
        lookups: u64,
    },
    /// The same of many nodes. Not answered.
    BatchForget(Forgets<'a>),
    GetAttributes {
        handle: Option<Handle>,
    },
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    MakeNode {
        name: &'a OsStr,
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a OsStr,
    },
    RemoveDirectory {
        name: &'a OsStr,
    },
    /// `flags` are those of `renameat2(2)`.
    Rename {
        name: &'a OsStr,
        to: NodeId,
        new_name: &'a OsStr,
        flags: u32,
    },
    /// The node of the request is the directory that gets the name.
    Link {
        existing: NodeId,
        name: &'a OsStr,
    },
    /// `flags` are those of `open(2)`; `kills_privileges`: set-uid and set-gid bits go with what is cut off.
    Open {
        flags: u32,
        kills_privileges: bool,
    },
    Create {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
        flags: u32,
        kills_privileges: bool,
    },
    /// `is_direct`: opened with `O_DIRECT`, so that what is answered goes to the reader and into no page.
    Read {
        handle: Handle,
        pos: u64,
        length: u32,
        is_direct: bool,
    },
    /// `is_from_cache`: pages of a mapping are written back, on behalf of any process; `kills_privileges`: set-uid and
    /// set-gid bits go; `is_append`: opened with `O_APPEND`, so that `pos` is where the kernel takes the end to be.
    Write {
        handle: Handle,
        pos: u64,
        data: &'a [u8],
        is_from_cache: bool,
        kills_privileges: bool,
        is_append: bool,
    },
    /// A file was closed, by one of perhaps several that have it.
    Flush {
        handle: Handle,
        owner: u64,
    },
    /// The last that had the file open or mapped is gone. `flock_owner`: whose `flock` is to be given up.
    Release {
        handle: Handle,
        flock_owner: Option<u64>,
    },
    Sync {
        handle: Handle,
        is_data_only: bool,
    },
    StatFs,
    SetXattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: u32,
    },
    /// `room` 0 asks how long the value is.
    GetXattr {
        name: &'a OsStr,
        room: u32,
    },
    ListXattr {
        room: u32,
    },
    RemoveXattr {
        name: &'a OsStr,
    },
    OpenDirectory {
        flags: u32,
    },
    ReadDirectory {
        handle: Handle,
        pos: u64,
        room: u32,
    },
    ReadDirectoryPlus {
        handle: Handle,
        pos: u64,
        room: u32,
    },
    ReleaseDirectory {
        handle: Handle,
    },
    SyncDirectory {
        handle: Handle,
    },
    GetLock(Lock),
    /// `waits`: until it can be had.
    SetLock {
        lock: Lock,
        waits: bool,
    },
    Access(Access),
    /// The caller of another request got a signal. Not answered, unless that request is not known (yet): then EAGAIN.
    Interrupt {
        request: Unique,
    },
    Allocate {
        handle: Handle,
        pos: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        handle: Handle,
        pos: u64,
        whence: u32,
    },
    /// The node of the request is that of `from`.
    CopyRange {
        from: (Handle, u64),
        to: (NodeId, Handle, u64),
        length: u64,
    },
    /// `syncfs(2)`.
    SyncFileSystem,
    /// The mount ends.
    Destroy,
    /// Something that this library does not know, or that makes no sense in a file system of this kind.
    Other {
        opcode: u32,
    },
}
