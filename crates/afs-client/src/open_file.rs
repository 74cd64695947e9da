//! Open files: what a handle of the kernel stands for, and which files are open. How data are read and written is in `read` and
//! `write_back`.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afs_cache::CacheFile;

use crate::client::{Client, Made};
use crate::data::FileData;
use crate::error::Error;
use crate::fetch::ahead::Ahead;
use crate::fid::{Fid, User};
use crate::status::{Kind, Status};
use afs_wire::rights::Rights;
use tokio::sync::Notify;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// To be emptied first.
    pub truncate: bool,
}

/// Which files are open, and the hidden names of those that have lost their own. Nobody opens a file between the look whether it is
/// open and the loss of its last name.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    table: Mutex<HashMap<Fid, Open>>,
    hidden: AtomicU64,
    /// Of all files together; most of the time none.
    leaving: AtomicUsize,
}

#[derive(Debug, Default)]
struct Open {
    count: usize,
    hidden: Option<(Fid, String)>,
    /// Operations that are about to take its last name away.
    leaving: usize,
    /// One of those has ended.
    settled: Arc<Notify>,
}

impl Open {
    fn is_of_interest(&self) -> bool {
        self.count > 0 || self.hidden.is_some() || self.leaving > 0
    }
}

/// A file that nobody has open is about to lose its last name. Until this is dropped nobody can open it.
#[derive(Debug)]
pub(crate) struct Leaving<'a> {
    files: &'a OpenFiles,
    fid: Fid,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut table = self.files.lock();
        if let Some(open) = table.get_mut(&self.fid) {
            open.leaving -= 1;
            open.settled.notify_waiters();
            if !open.is_of_interest() {
                table.remove(&self.fid);
            }
        }
        self.files.leaving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<Fid, Open>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more handle. `false`: the file is losing its last name just now, and cannot be opened.
    fn note_open(&self, fid: Fid) -> bool {
        let mut table = self.lock();
        let open = table.entry(fid).or_default();
        let may = open.leaving == 0;
        open.count += usize::from(may);
        may
    }

    /// A file is about to lose its last name. `None`: somebody has it open, so that it has to be kept under another.
    pub(crate) fn leave(&self, fid: Fid) -> Option<Leaving<'_>> {
        let mut table = self.lock();
        let open = table.entry(fid).or_default();
        if open.count > 0 {
            return None;
        }
        open.leaving += 1;
        self.leaving.fetch_add(1, Ordering::AcqRel);
        Some(Leaving { files: self, fid })
    }

    /// Whether a file is losing its last name just now.
    pub(crate) fn is_leaving(&self, fid: Fid) -> bool {
        self.leaving.load(Ordering::Acquire) > 0 && self.lock().get(&fid).is_some_and(|open| open.leaving > 0)
    }

    /// Waits until it is known what has become of a file that is losing its last name.
    pub(crate) async fn settled(&self, fid: Fid) {
        loop {
            let settled = match self.lock().get(&fid).filter(|open| open.leaving > 0) {
                Some(open) => Arc::clone(&open.settled).notified_owned(),
                None => return,
            };
            settled.await;
        }
    }

    /// A handle is closed; whether it was the last.
    fn note_close(&self, fid: Fid) -> bool {
        let mut table = self.lock();
        let Some(open) = table.get_mut(&fid) else { return false };
        open.count = open.count.saturating_sub(1);
        let is_last = open.count == 0;
        if !open.is_of_interest() {
            table.remove(&fid);
        }
        is_last
    }

    /// Whether somebody has the file open.
    pub(crate) fn is_open(&self, fid: Fid) -> bool {
        self.lock().get(&fid).is_some_and(|open| open.count > 0)
    }

    /// How often the file is open.
    pub(crate) fn count(&self, fid: Fid) -> usize {
        self.lock().get(&fid).map_or(0, |open| open.count)
    }

    /// A name for a file that is to live on without one: nobody else in the cell makes the same.
    pub(crate) fn hidden_name(&self, start: &str, fid: Fid) -> String {
        let number = self.hidden.fetch_add(1, Ordering::Relaxed);
        format!("{start}{:x}.{:x}.{number:x}", fid.vnode.0, fid.unique.0)
    }

    pub(crate) fn note_hidden(&self, fid: Fid, dir: Fid, name: String) {
        self.lock().entry(fid).or_default().hidden = Some((dir, name));
    }

    /// Whether the file has a hidden name.
    pub(crate) fn is_hidden(&self, fid: Fid) -> bool {
        self.lock().get(&fid).is_some_and(|open| open.hidden.is_some())
    }

    /// The hidden name of a file that is closed, to be removed by the caller.
    pub(crate) fn take_hidden(&self, fid: Fid) -> Option<(Fid, String)> {
        let mut table = self.lock();
        let open = table.get_mut(&fid).filter(|open| open.count == 0)?;
        let hidden = open.hidden.take();
        if !open.is_of_interest() {
            table.remove(&fid);
        }
        hidden
    }
}

/// An open file. It is let go when it is dropped; what was written and not flushed is stored nevertheless, in the background.
#[derive(Debug)]
pub struct OpenFile {
    client: Client,
    user: User,
    fid: Fid,
    flags: OpenFlags,
    pub(crate) data: Arc<FileData>,
    /// How it is read.
    pub(crate) ahead: Mutex<Ahead>,
    /// The data that were lent to the kernel, to be written.
    pub(crate) lent: Mutex<Option<Arc<CacheFile>>>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let inner = &self.client.inner;
        if self.data.handles.fetch_sub(1, Ordering::AcqRel) == 1
            && self.data.is_dirty()
            && !inner.open_files.is_hidden(self.fid)
        {
            self.data.end_writing(self.user);
        }
        if inner.open_files.note_close(self.fid) && inner.open_files.is_hidden(self.fid) {
            let (client, user, fid) = (self.client.clone(), self.user, self.fid);
            inner.runtime.spawn(Box::pin(async move { client.inner.remove_hidden(user, fid).await }));
        }
    }
}

impl Client {
    /// Whether a user may open a file so.
    fn may_open(status: &Status, flags: OpenFlags) -> Result<(), Error> {
        let fid = status.fid;
        match status.kind {
            Kind::Directory => return Err(Error::IsADirectory { fid }),
            Kind::Symlink => return Err(Error::Invalid { what: format!("{fid} is a symbolic link") }),
            Kind::File => {}
        }
        if flags.read && !status.may_read() {
            return Err(Error::NoAccess { fid, needed: Rights::READ });
        }
        if flags.write || flags.truncate {
            if status.is_read_only {
                return Err(Error::ReadOnly { fid });
            }
            if !status.may_write() {
                return Err(Error::NoAccess { fid, needed: Rights::WRITE });
            }
        }
        Ok(())
    }

    fn opened(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let inner = &self.inner;
        let vnode = inner.vnodes.get_or_add(fid);
        let data = inner.files.of(self, &vnode)?;
        // The version that is promised now, so that what is here of it can be used at once.
        let who = inner.users.who(user, fid.cell);
        let known = vnode.known(inner.now(), who).map(|known| known.status).or_else(|| vnode.last_status());
        if let Some(status) = known.filter(|_| !data.is_unsettled.load(Ordering::Acquire)) {
            data.adopt(inner, &status)?;
        }
        if !inner.open_files.note_open(fid) {
            return Err(Error::Gone { fid });
        }
        data.handles.fetch_add(1, Ordering::AcqRel);
        Ok(OpenFile {
            client: self.clone(),
            user,
            fid,
            flags,
            data,
            ahead: Mutex::default(),
            lent: Mutex::default(),
        })
    }

    /// Opens a file at once, if all that it takes is known.
    pub fn cached_open(&self, user: User, fid: Fid, flags: OpenFlags) -> Option<Result<OpenFile, Error>> {
        if flags.truncate {
            return None;
        }
        let may = self.cached_status(user, fid)?.and_then(|status| Self::may_open(&status, flags));
        match may {
            // The server may know better: see below.
            Err(Error::NoAccess { .. }) => None,
            may => Some(may.and_then(|()| self.opened(user, fid, flags))),
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When the user's rights do not allow it; what asking for the status brings; [`Error::Gone`] also when the file is losing its
    /// last name just now: [`Self::lookup`] of the name then tells what has become of it.
    pub async fn open(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let status = self.status(user, fid).await?;
        match Self::may_open(&status, flags) {
            // In a drop box, an owner may read what he has put there; who the owner is the server knows.
            Err(Error::NoAccess { needed: Rights::READ, .. }) if status.rights.contains(Rights::INSERT) => {
                self.fetch(user, fid, 0, 0).await?.end().await?;
                Self::may_open(&status, OpenFlags { read: false, ..flags })?;
            }
            checked => checked?,
        }
        let file = self.opened(user, fid, flags)?;
        if flags.truncate && status.length > 0 {
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

    /// Who has opened it: whose rights count until it is closed.
    pub fn user(&self) -> User {
        self.user
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The file of the cache that has all of the data, open for reading and writing, if there is one: for passthrough. Always
    /// the same for the same data as long as one open file of them is there.
    pub fn backing(&self) -> Option<Arc<File>> {
        self.data.backing().filter(|_| self.has_current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fid::CellIndex;
    use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};

    #[tokio::test]
    async fn nobody_opens_a_file_that_is_losing_its_last_name() {
        let files = OpenFiles::default();
        let fid =
            Fid { vnode: VnodeNumber(2), unique: Uniquifier(5), ..Fid::root_of(CellIndex(1), VolumeId(9)) };
        assert!(files.note_open(fid));
        assert!(files.leave(fid).is_none(), "it is open: it has to be kept");
        assert!(files.note_close(fid));
        let (one, other) = (files.leave(fid).unwrap(), files.leave(fid).unwrap());
        assert!(!files.note_open(fid) && files.is_leaving(fid));
        drop(one);
        assert!(!files.note_open(fid), "the other operation goes on");
        let mut settled = std::pin::pin!(files.settled(fid));
        assert!(polled(settled.as_mut()).is_none());
        drop(other);
        settled.await;
        assert!(files.note_open(fid) && !files.is_leaving(fid));
        assert!(files.note_close(fid));
        assert!(files.lock().is_empty(), "nothing is kept of files that are closed");
    }

    /// What a future has come to, if it has.
    fn polled<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
