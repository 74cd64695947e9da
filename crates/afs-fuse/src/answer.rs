//! The answer to a request as a value, so that an operation does not depend on whether its caller still waits.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fuse_dev::{
    Attributes, Backing, Entries, Entry, FileSystemSpace, Handle, NodeId, OpenFlags, PlusEntries, Reply,
};

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Error(i32),
    Ok,
    Entry(Entry),
    /// There is no such name, for so long.
    Absent(Duration),
    Attributes(Attributes, Duration),
    Data(Bytes),
    /// The data that are to be read do not agree with what the kernel was told: it, or the reader, is to ask once more when the
    /// kernel has been told better.
    AskAgain,
    Opened(Handle, OpenFlags, Option<Arc<Backing>>),
    Created(Entry, Handle, OpenFlags),
    Written(u32),
    Sized(Bytes, u32),
    Space(FileSystemSpace),
    Entries(Entries),
    PlusEntries(PlusEntries),
}

/// The things that the kernel did not take, for example because the mount was aborted, and that are therefore to be taken back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) not_looked_up: Option<NodeId>,
    pub(crate) not_opened: Option<Handle>,
}

impl Answer {
    /// Sends it.
    pub(crate) fn send(self, reply: Reply) -> Taken {
        let mut taken = Taken::default();
        match self {
            Self::Error(errno) => reply.error(errno),
            Self::Ok => reply.ok(),
            Self::AskAgain => reply.error(libc::EINTR),
            Self::Entry(entry) => {
                if !reply.entry(&entry) {
                    taken.not_looked_up = Some(entry.node);
                }
            }
            Self::Absent(ttl) => reply.no_entry(ttl),
            Self::Attributes(attributes, ttl) => reply.attributes(&attributes, ttl),
            Self::Data(data) => reply.data(&data),
            Self::Opened(handle, flags, backing) => {
                let is_taken = match backing {
                    Some(backing) => reply.opened_through(handle, flags, &backing),
                    None => reply.opened(handle, flags),
                };
                if !is_taken {
                    taken.not_opened = Some(handle);
                }
            }
            Self::Created(entry, handle, flags) => {
                if !reply.created(&entry, handle, flags) {
                    taken = Taken { not_looked_up: Some(entry.node), not_opened: Some(handle) };
                }
            }
            Self::Written(bytes) => reply.written(bytes),
            Self::Sized(value, room) => reply.sized(&value, room),
            Self::Space(space) => reply.space(&space),
            Self::Entries(entries) => reply.entries(&entries),
            Self::PlusEntries(entries) => reply.plus_entries(&entries),
        }
        taken
    }
}
