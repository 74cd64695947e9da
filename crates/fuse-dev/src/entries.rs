//! Listings of directories as the kernel takes them, in as much room as it gives.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::answer::{Entry, Kind, Words};

/// Bytes in front of the name: `struct fuse_dirent`.
const HEAD: usize = 24;
/// Bytes in front of that, in listings with attributes: `struct fuse_entry_out`.
const ENTRY: usize = 128;

/// The place of the next entry: each is padded to eight bytes.
const fn padded(length: usize) -> usize {
    length.next_multiple_of(8)
}

fn put_head(bytes: &mut Vec<u8>, inode: u64, next: u64, kind: Option<Kind>, name: &OsStr) {
    let name = name.as_bytes();
    let length = u32::try_from(name.len()).expect("names are short");
    let head = Words::<HEAD>::new().u64(inode).u64(next).u32(length).u32(Kind::in_directory(kind));
    bytes.extend_from_slice(head.bytes());
    bytes.extend_from_slice(name);
    bytes.resize(padded(bytes.len()), 0);
}

/// Entries of a directory.
#[derive(Debug)]
pub struct Entries {
    bytes: Vec<u8>,
    room: usize,
}

impl Entries {
    /// Makes the list for a READDIR with this much room.
    pub fn new(room: u32) -> Self {
        Self { bytes: Vec::new(), room: room as usize }
    }

    /// Adds one; `next` is the position behind it, which is not 0, and the kind may be unknown. False: there is no room for it.
    pub fn add(&mut self, inode: u64, next: u64, kind: Option<Kind>, name: &OsStr) -> bool {
        if self.bytes.len() + padded(HEAD + name.len()) > self.room {
            return false;
        }
        put_head(&mut self.bytes, inode, next, kind, name);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// True if none was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Entries of a directory, with the node of each. Each that was added counts as one look-up of its node, but for `.` and `..`
/// and those without a node.
#[derive(Debug)]
pub struct PlusEntries {
    bytes: Vec<u8>,
    room: usize,
}

impl PlusEntries {
    /// Makes the list for a READDIRPLUS with this much room.
    pub fn new(room: u32) -> Self {
        Self { bytes: Vec::new(), room: room as usize }
    }

    /// True if one of this name would find room.
    pub fn has_room(&self, name: &OsStr) -> bool {
        self.bytes.len() + padded(ENTRY + HEAD + name.len()) <= self.room
    }

    /// Adds one with its node. False: there is no room for it.
    pub fn add(&mut self, entry: &Entry, next: u64, name: &OsStr) -> bool {
        if !self.has_room(name) {
            return false;
        }
        self.bytes.extend_from_slice(Words::<ENTRY>::new().entry(entry).bytes());
        put_head(&mut self.bytes, entry.attributes.inode, next, Some(entry.attributes.kind), name);
        true
    }

    /// Adds a name without its node: the kernel looks it up when it has to. Returns false if there is no room for it.
    pub fn add_name(&mut self, inode: u64, next: u64, kind: Option<Kind>, name: &OsStr) -> bool {
        if !self.has_room(name) {
            return false;
        }
        self.bytes.extend_from_slice(&[0; ENTRY]);
        put_head(&mut self.bytes, inode, next, kind, name);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// True if none was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_stop_where_the_room_ends() {
        let mut entries = Entries::new(64);
        assert!(entries.add(7, 1, Some(Kind::Directory), OsStr::new("a")));
        assert_eq!(entries.bytes().len(), 32);
        assert_eq!(entries.bytes()[16..28], [1, 0, 0, 0, 4, 0, 0, 0, b'a', 0, 0, 0]);
        assert!(!entries.add(8, 2, Some(Kind::File), OsStr::new("a name that is too long")));
        assert!(entries.add(8, 2, Some(Kind::File), OsStr::new("eight by")));
        assert_eq!(entries.bytes().len(), 64);
        let mut plus = PlusEntries::new(128 + 24 + 8);
        assert!(plus.add_name(7, 1, None, OsStr::new("a")));
        assert!(!plus.has_room(OsStr::new("")));
    }
}
