//! Open handles: files and directories by the numbers that the kernel was given for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afs_client::{Listing, OpenFile, User};
use fuse_dev::Handle;

use crate::nodes::Node;

/// An open file.
#[derive(Debug)]
pub(crate) struct FileHandle {
    pub(crate) node: Arc<Node>,
    pub(crate) file: OpenFile,
    /// True if it may be mapped to be written by passthrough.
    pub(crate) is_lent: bool,
    /// True if the kernel keeps no pages of what is read by it.
    pub(crate) is_direct: bool,
}

/// An open directory: its listing as it was when it was opened, or read again from its beginning.
#[derive(Debug)]
pub(crate) struct DirHandle {
    pub(crate) node: Arc<Node>,
    pub(crate) user: User,
    pub(crate) listing: Mutex<Listing>,
}

impl DirHandle {
    /// The listing as it was last read.
    pub(crate) fn listing(&self) -> Listing {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A newer one.
    pub(crate) fn replace(&self, listing: Listing) {
        *self.listing.lock().unwrap_or_else(PoisonError::into_inner) = listing;
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Open {
    File(Arc<FileHandle>),
    Dir(Arc<DirHandle>),
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<Handle, Open>,
    next: u64,
}

/// All that is open.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    table: Mutex<Table>,
}

impl Handles {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an open file or directory a number.
    pub(crate) fn add(&self, open: Open) -> Handle {
        let mut table = self.lock();
        table.next += 1;
        let handle = Handle(table.next);
        table.open.insert(handle, open);
        handle
    }

    pub(crate) fn file(&self, handle: Handle) -> Option<Arc<FileHandle>> {
        match self.lock().open.get(&handle) {
            Some(Open::File(file)) => Some(Arc::clone(file)),
            Some(Open::Dir(_)) | None => None,
        }
    }

    pub(crate) fn dir(&self, handle: Handle) -> Option<Arc<DirHandle>> {
        match self.lock().open.get(&handle) {
            Some(Open::Dir(dir)) => Some(Arc::clone(dir)),
            Some(Open::File(_)) | None => None,
        }
    }

    /// Takes it back.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Open> {
        self.lock().open.remove(&handle)
    }

    /// Any open file of a node by which it may be written, for what is done to a file without saying by which.
    pub(crate) fn writer_of(&self, node: &Arc<Node>) -> Option<Arc<FileHandle>> {
        let table = self.lock();
        let mut files = table.open.values().filter_map(|open| match open {
            Open::File(file) if Arc::ptr_eq(&file.node, node) && file.file.flags().write => Some(file),
            _ => None,
        });
        files.next().map(Arc::clone)
    }
}
