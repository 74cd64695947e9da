//! Open files: what a handle of the kernel stands for. Which files are open is in `open_files`, how data are read and written in `read`
//! and `write`.

use std::any::Any;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use afs_cache::CacheFile;

use crate::data::fetch::prefetch::Prefetch;
use crate::data::fetch::readahead::Readahead;
use crate::data::files::{FileData, Files};
use crate::vnodes::status::{Kind, Status};
use crate::vnodes::vnode::Vnode;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_wire::rights::Rights;

/// The mode in which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// True if it is to be read.
    pub read: bool,
    /// True if it is to be written.
    pub write: bool,
    /// True if it is to be emptied first.
    pub truncate: bool,
}

/// An open file. It is let go when it is dropped; what was written and not flushed is stored nevertheless, in the background.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) prefetch: Arc<Prefetch>,
    /// Servers are answered for as long as a file is open: this keeps all of the client.
    _client: Arc<dyn Any + Send + Sync>,
    user: User,
    fid: Fid,
    flags: OpenFlags,
    is_in_read_only_volume: bool,
    /// It was counted as one that a program has closed.
    is_closing: AtomicBool,
    pub(crate) data: Arc<FileData>,
    /// The state of its readahead.
    pub(crate) readahead: Mutex<Readahead>,
    /// The data that were lent to the kernel, to be written.
    pub(crate) lent: Mutex<Option<Arc<CacheFile>>>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.files().close(self.user, &self.data, self.is_closing.load(Ordering::Relaxed));
    }
}

impl OpenFlags {
    /// Checks that a user to whom this status was told may open the file so.
    pub fn check(self, status: &Status) -> Result<(), Error> {
        let fid = status.fid;
        match status.kind {
            Kind::Directory => return Err(Error::IsADirectory { fid }),
            Kind::Symlink => return Err(Error::Invalid { what: format!("{fid} is a symbolic link") }),
            Kind::File => {}
        }
        if self.read && !status.may_read() {
            return Err(Error::NoAccess { fid, needed: Rights::READ });
        }
        if self.write || self.truncate {
            if status.is_read_only {
                return Err(Error::ReadOnly { fid });
            }
            if !status.may_write() {
                return Err(Error::NoAccess { fid, needed: Rights::WRITE });
            }
        }
        Ok(())
    }
}

impl Files {
    /// Opens the data of a file once more.
    ///
    /// # Errors
    ///
    /// The cache's; [`Error::Gone`] when the file is losing its last name just now, or will as far as programs see.
    fn open(
        self: &Arc<Self>,
        user: User,
        vnode: &Arc<Vnode>,
        flags: OpenFlags,
    ) -> Result<Arc<FileData>, Error> {
        let data = self.of(vnode)?;
        // Who only reads may find all of it in the kernel's pages: what the cache has is opened by the first read that comes here,
        // which costs as much as all the rest of an open does.
        if flags.write {
            data.adopt_known(self, user)?;
        }
        // A change that waits is to remove it, or has given its name to another file.
        let is_going = self.journal.removes(vnode.fid) && !self.open_files.is_hidden(vnode.fid);
        if is_going || !self.open_files.note_open(vnode.fid) {
            return Err(Error::Gone { fid: vnode.fid });
        }
        data.handles.fetch_add(1, Ordering::AcqRel);
        Ok(data)
    }

    /// The same data are closed. After the last time, what is dirty is stored, unless the file has lost its name and goes now.
    fn close(&self, user: User, data: &Arc<FileData>, is_closing: bool) {
        let fid = data.vnode.fid;
        if data.handles.fetch_sub(1, Ordering::AcqRel) == 1
            && data.is_dirty()
            && !data.is_behind.load(Ordering::Acquire)
            && !self.open_files.is_hidden(fid)
        {
            data.end_writing(user);
        }
        self.open_files.close(user, fid, is_closing);
    }
}

impl OpenFile {
    /// Opens a file whose status allows it. `client` lives for as long as the file is open.
    ///
    /// # Errors
    ///
    /// As [`Files::open`].
    pub fn new(
        prefetch: &Arc<Prefetch>,
        client: Arc<dyn Any + Send + Sync>,
        user: User,
        fid: Fid,
        flags: OpenFlags,
    ) -> Result<Self, Error> {
        let vnode = prefetch.vnodes.get_or_add(fid);
        let data = prefetch.files.open(user, &vnode, flags)?;
        if flags.read {
            prefetch.note_opened(user, &vnode);
        }
        Ok(Self {
            prefetch: Arc::clone(prefetch),
            _client: client,
            user,
            fid,
            flags,
            is_in_read_only_volume: vnode.volume.is_read_only(),
            is_closing: AtomicBool::new(false),
            data,
            readahead: Mutex::default(),
            lent: Mutex::default(),
        })
    }

    /// The file.
    pub fn fid(&self) -> Fid {
        self.fid
    }

    /// The user who has opened it, whose rights count until it is closed.
    pub fn user(&self) -> User {
        self.user
    }

    /// The mode in which it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// True if it is in a volume that nobody can change: a read-only one or a backup.
    pub fn is_in_read_only_volume(&self) -> bool {
        self.is_in_read_only_volume
    }

    /// A program has closed it, or a copy of its descriptor.
    pub fn note_closing(&self) {
        if !self.is_closing.swap(true, Ordering::Relaxed) {
            self.files().open_files.note_closing(self.fid);
        }
    }

    /// The code by which its data are fetched and stored.
    pub(super) fn files(&self) -> &Arc<Files> {
        &self.prefetch.files
    }

    /// The file of the cache that has all of the data, open for reading and writing, if there is one: for passthrough. Always
    /// the same for the same data as long as one open file of them is there.
    pub fn backing(&self) -> Option<Arc<File>> {
        if self.data.current().is_none()
            && let Err(error) = self.data.adopt_known(self.files(), self.user)
        {
            tracing::debug!(fid = %self.fid, %error, "what the cache has of a file cannot be opened");
        }
        self.data.backing().filter(|_| self.has_current())
    }
}
