//! Open files: what a handle of the kernel stands for. Which files are open is in `open_files`, how data are read and written in `read`
//! and `write`.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use afs_cache::CacheFile;

use crate::client::{Client, Made};
use crate::data::fetch::readahead::Readahead;
use crate::data::files::{FileData, Files};
use crate::error::Error;
use crate::fid::{Fid, User};
use crate::vnodes::status::{Kind, Status};
use crate::vnodes::vnode::Vnode;
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
    /// Servers are answered for as long as a file is open.
    client: Client,
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
    fn check(self, status: &Status) -> Result<(), Error> {
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
    /// The cache's; [`Error::Gone`] when the file is losing its last name just now.
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
        if !self.open_files.note_open(vnode.fid) {
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
            && !self.open_files.is_hidden(fid)
        {
            data.end_writing(user);
        }
        self.open_files.close(user, fid, is_closing);
    }
}

impl Client {
    fn opened(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let inner = &self.inner;
        let vnode = inner.vnodes.get_or_add(fid);
        let data = inner.files.open(user, &vnode, flags)?;
        if flags.read {
            inner.prefetch.note_opened(user, &vnode);
        }
        Ok(OpenFile {
            client: self.clone(),
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

    /// Opens a file at once, if all that it takes is known.
    pub fn cached_open(&self, user: User, fid: Fid, flags: OpenFlags) -> Option<Result<OpenFile, Error>> {
        if flags.truncate {
            return None;
        }
        if flags.write
            && self.inner.files.opened(fid).is_some_and(|data| data.has_in_the_way(&self.inner.users, user))
        {
            return None;
        }
        let may = self.cached_status(user, fid)?.and_then(|status| flags.check(&status));
        match may {
            // The server may know better, and what is gone may have a successor: see below.
            Err(Error::NoAccess { .. } | Error::Gone { .. }) => None,
            may => Some(may.and_then(|()| self.opened(user, fid, flags))),
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When the user's rights do not allow it; what asking for the status brings; [`Error::Gone`] also when the file is losing its
    /// last name just now: [`Self::lookup`] of the name then tells what has become of it, and that can be opened for a second.
    pub async fn open(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let opened = self.open_now(user, fid, flags).await;
        if let Err(Error::Gone { fid: gone }) = opened
            && gone == fid
        {
            self.inner.open_files.hold_successor(user, fid);
        }
        opened
    }

    async fn open_now(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let status = self.status(user, fid).await?;
        match flags.check(&status) {
            // In a drop box, an owner may read what he has put there; who the owner is the server knows.
            Err(Error::NoAccess { needed: Rights::READ, .. }) if status.rights.contains(Rights::INSERT) => {
                self.fetch(user, fid, 0, 0).await?.end().await?;
                OpenFlags { read: false, ..flags }.check(&status)?;
            }
            checked => checked?,
        }
        if flags.write
            && let Some(data) = self.inner.files.opened(fid)
        {
            drop(data.make_way(user).await?);
        }
        let file = self.opened(user, fid, flags)?;
        if flags.truncate {
            file.truncate(0).await?;
        }
        Ok(file)
    }

    /// Makes a file, or opens it where there is one already, unless `exclusive` says that there must be none.
    ///
    /// # Errors
    ///
    /// Those of [`Self::create`] and [`Self::open`].
    pub async fn create_and_open(
        &self,
        user: User,
        (dir, name): (Fid, &[u8]),
        mode: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Made, OpenFile), Error> {
        match self.create(user, dir, name, mode).await {
            // Who has made a file may write it, whatever its mode says.
            Ok(made) => Ok((made, self.opened(user, made.fid, flags)?)),
            Err(Error::Exists { .. }) if !exclusive => {
                let found = self.lookup(user, dir, name).await?;
                let file = self.open(user, found.fid, flags).await?;
                Ok((found, file))
            }
            Err(error) => Err(error),
        }
    }
}

impl OpenFile {
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

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The code by which its data are fetched and stored.
    pub(super) fn files(&self) -> &Arc<Files> {
        &self.client.inner.files
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
