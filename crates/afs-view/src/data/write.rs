//! Writes go into the cache at once: those of programs, those of the kernel to what was lent to it, and changes of a file's length. When and as
//! whom it is stored is left to `write_back`; a writer waits for that only if too much is not stored, the disk is full, or somebody
//! else's data are in the way.
//!
//! A file's dirty data are one person's. Before somebody writes who is another person to the cell, they are stored as those of the one who
//! wrote them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afs_cache::{CacheError, CacheFile, Writer};
use afs_wire::Errno;
use afs_wire::status::AfsFetchStatus;
use bytes::Bytes;

use crate::data::files::{FileData, Files, local, lock};
use crate::data::open_file::OpenFile;
use crate::vnodes::status::{SetStatus, Status};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::users::{NoToken, Users};

/// A file with so many dirty bytes is stored while it is still being written: below, one call at close is cheaper.
const STORE_AHEAD_BYTES: u64 = 16 << 20;

/// Dirty bytes of a file beyond which its writer waits: half a minute's worth at 40 MB/s, that a close does not take longer.
const DIRTY_MAX: u64 = 1 << 30;

/// The number of times that the client looks for the end of a file which others change meanwhile, before it appends at the last end.
const APPEND_LOOKS_MAX: u32 = 8;

impl OpenFile {
    /// Writes bytes at a position, all of them. They are in the file for all readers of this client when this returns, and
    /// at the server when [`Self::flush`] has.
    ///
    /// # Errors
    ///
    /// The cache's; an error of an earlier store.
    pub async fn write(&self, pos: u64, bytes: Bytes) -> Result<(), Error> {
        if pos.checked_add(bytes.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Error::TooLarge { fid: self.fid() });
        }
        let data = &self.data;
        let mut may_store = true;
        loop {
            if let Some(done) = self.write_now(pos, &bytes, may_store, None) {
                return done;
            }
            if let Some(guard) = data.make_way(self.user()).await?
                && let Some(done) = self.write_now(pos, &bytes, may_store, Some(&guard))
            {
                return done;
            }
            let is_outdated = data.change(|file| self.is_outdated(file)).unwrap_or(true);
            if is_outdated || data.is_unsettled() {
                data.refresh(self.user()).await?;
                if data.current().is_none() || data.is_unsettled() {
                    return Err(Error::Gone { fid: self.fid() });
                }
                continue;
            }
            // What is not stored is too much, or has filled the disk: once it is stored, it may go.
            may_store = data.change(|file| file.dirty_bytes()).unwrap_or(0) >= self.files().dirty_max();
            // Its error is the writer's too: nothing else would stop the writer.
            data.store(self.user(), false).await?;
        }
    }

    /// The same at once, for threads that do not wait; `None` where [`Self::write`] would.
    pub fn cached_write(&self, pos: u64, bytes: &[u8]) -> Option<Result<(), Error>> {
        self.write_now(pos, bytes, true, None)
    }

    /// Writes at once; `None` where the file has to be asked for first, or stored.
    fn write_now(
        &self,
        pos: u64,
        bytes: &[u8],
        may_store: bool,
        guard: Option<&WriterGuard<'_>>,
    ) -> Option<Result<(), Error>> {
        let place = |file: &CacheFile| (!self.is_outdated(file)).then_some(pos);
        self.put(bytes, (may_store, guard), place, |file, writer| file.write(pos, bytes, writer))
    }

    /// True if nothing was written to the copy, and another version is known: behind the copy's end there may be data of others.
    fn is_outdated(&self, file: &CacheFile) -> bool {
        let is_other = |status: AfsFetchStatus| status.data_version.0 != file.version();
        !file.is_dirty() && !self.data.is_removed() && self.data.vnode.last_status().is_some_and(is_other)
    }

    /// Has reads and writes find the newest version from now on, if they would not.
    ///
    /// # Errors
    ///
    /// Those of asking for the status; those of storing what was written of another version.
    pub async fn refresh(&self) -> Result<(), Error> {
        self.data.refresh(self.user()).await.map(drop)
    }

    /// Writes bytes behind the last one that the file has, here or at the server: what others have closed before is not written over.
    /// Says where that was.
    ///
    /// # Errors
    ///
    /// As [`Self::write`]; those of the status.
    pub async fn append(&self, bytes: Bytes) -> Result<u64, Error> {
        let mut may_store = true;
        for _ in 0..APPEND_LOOKS_MAX {
            if let Some(done) = self.append_to(&bytes, (may_store, None), |file| self.is_current(file)) {
                return done;
            }
            if let Some(guard) = self.data.make_way(self.user()).await?
                && let Some(done) =
                    self.append_to(&bytes, (may_store, Some(&guard)), |file| self.is_current(file))
            {
                return done;
            }
            if self.has_current() {
                // What is not stored is too much, or has filled the disk.
                may_store =
                    self.data.change(|file| file.dirty_bytes()).unwrap_or(0) >= self.files().dirty_max();
                self.data.store(self.user(), false).await?;
            } else {
                self.data.refresh(self.user()).await?;
            }
        }
        // No server promises anything, or others change it all the time: the last look has to do.
        let guard = self.data.make_way(self.user()).await?;
        self.append_to(&bytes, (false, guard.as_ref()), |_| true)
            .unwrap_or(Err(Error::Gone { fid: self.fid() }))
    }

    /// The same at once, where the end is known; `None` where [`Self::append`] would wait.
    pub fn cached_append(&self, bytes: &[u8]) -> Option<Result<u64, Error>> {
        self.append_to(bytes, (true, None), |file| self.is_current(file))
    }

    fn append_to(
        &self,
        bytes: &[u8],
        (may_store, guard): (bool, Option<&WriterGuard<'_>>),
        may: impl Fn(&CacheFile) -> bool,
    ) -> Option<Result<u64, Error>> {
        let end = |file: &CacheFile| may(file).then(|| file.length());
        self.put(bytes, (may_store, guard), end, |file, writer| file.append(bytes, writer))
    }

    /// Puts bytes by `write` into the file as it is now, where `place` says; where that says nothing, not now. A full disk is an error only
    /// where storing does not help: if nothing is dirty, or `may_store` is false. Where it is somebody's turn, it is not now for others.
    fn put<T>(
        &self,
        bytes: &[u8],
        (may_store, guard): (bool, Option<&WriterGuard<'_>>),
        place: impl FnOnce(&CacheFile) -> Option<u64>,
        write: impl FnOnce(&CacheFile, &Writer) -> Result<T, CacheError>,
    ) -> Option<Result<T, Error>> {
        let data = &self.data;
        if data.is_unsettled() {
            return None;
        }
        let files = self.files();
        let most = files.dirty_max();
        let writer = writer_of(&files.users, self.user(), self.fid().cell);
        let written = data.change(|file| {
            if guard.is_none() && data.has_turn.load(Ordering::Acquire) {
                return None;
            }
            let pos = place(file)?;
            if pos.checked_add(bytes.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
                return Some(Err(Error::TooLarge { fid: self.fid() }));
            }
            if file.dirty_bytes() >= most
                || in_the_way(&files.users, file, (self.user(), self.fid().cell), &writer).is_some()
            {
                return None;
            }
            match write(file, &writer) {
                Ok(done) => {
                    data.note_written(files.time());
                    Some(Ok((done, file.dirty_bytes())))
                }
                Err(CacheError::Full { .. }) if may_store && file.is_dirty() => None,
                Err(error) => Some(Err(files.failed(error))),
            }
        });
        Some(written.flatten()?.map(|(done, dirty)| {
            if dirty >= STORE_AHEAD_BYTES {
                data.store_ahead(self.user());
            }
            done
        }))
    }

    /// Cuts or extends the file.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub async fn truncate(&self, length: u64) -> Result<Status, Error> {
        self.data.truncate(self.user(), length).await?;
        self.prefetch.statuses.own_status(self.user(), self.fid(), self.fid()).await
    }

    /// Stores what was written, as at a close: others see it when this returns.
    ///
    /// # Errors
    ///
    /// Those of storing. What failed in the background is still dirty, and tried again: so no error is lost.
    pub async fn flush(&self) -> Result<(), Error> {
        if self.data.is_dirty() {
            self.data.store(self.user(), false).await?;
        }
        Ok(())
    }

    /// Lets the kernel write to [`Self::backing`] by itself: what it has written is found out by [`Self::note_lent`].
    ///
    /// # Errors
    ///
    /// The cache's.
    pub fn lend(&self) -> Result<(), Error> {
        let mut lent = lock(&self.lent);
        if lent.is_none() {
            let writer = writer_of(&self.files().users, self.user(), self.fid().cell);
            let file = self.data.change(|file| file.lend(&writer).map(|()| Arc::clone(file)).map_err(local));
            *lent = file.transpose()?;
        }
        Ok(())
    }

    /// Takes notice of what the kernel may have written to what was lent; with `is_over` it does so no more. If others have
    /// changed the file since it was lent, what the kernel wrote is of a version that is no more, and is put aside.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub fn note_lent(&self, has_changed: bool, is_over: bool) -> Result<(), Error> {
        let lent = {
            let mut slot = lock(&self.lent);
            if is_over { slot.take() } else { slot.clone() }
        };
        let Some(lent) = lent else { return Ok(()) };
        let writer = writer_of(&self.files().users, self.user(), self.fid().cell);
        let noted = self.data.change(|file| {
            Arc::ptr_eq(file, &lent).then(|| {
                file.take_back(has_changed, is_over, &writer).map_err(local)?;
                if has_changed {
                    self.data.note_written(self.files().time());
                }
                Ok(())
            })
        });
        if let Some(noted) = noted.flatten() {
            return noted;
        }
        lent.take_back(has_changed, is_over, &writer).map_err(local)?;
        if has_changed && !self.data.is_removed() {
            let why = "the file was changed by others while it was mapped to be written".to_owned();
            self.data.put_one_aside(self.files(), &lent, &Error::Invalid { what: why });
        }
        Ok(())
    }
}

impl Files {
    /// Bytes of one file that may wait to be stored before a writer has to wait.
    fn dirty_max(&self) -> u64 {
        DIRTY_MAX.min(self.cache.usage().limit_bytes / 2).max(STORE_AHEAD_BYTES * 2)
    }

    /// Cuts or extends a file, at the server too.
    pub async fn set_length(self: &Arc<Self>, user: User, fid: Fid, length: u64) -> Result<(), Error> {
        let data = self.of(&self.vnodes.get_or_add(fid))?;
        data.truncate(user, length).await?;
        data.store(user, false).await
    }
}

/// Finds data that another person has written into a file, before a user writes as `writer`: they must not be stored as somebody else's.
fn in_the_way(
    users: &Users,
    file: &CacheFile,
    (user, cell): (User, CellIndex),
    writer: &Writer,
) -> Option<InTheWay> {
    let other = file.is_dirty_of_another(writer)?;
    match users.who_wrote(noted(&other), cell) {
        Err(NoToken) => Some(InTheWay::Unstorable),
        Ok(who) if users.has_ended(who) => Some(InTheWay::Unstorable),
        // Two anonymous users, for one, are the same to the cell.
        Ok(who) => (who != users.who(user, cell)).then_some(InTheWay::Unstored),
    }
}

/// Data of a writer who is another person to the cell than the one who writes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InTheWay {
    /// They have no token to store it with.
    Unstorable,
    /// It is to be stored first.
    Unstored,
}

/// It is one user's turn to write into a file, after what another has written is stored. Others wait, and nothing is stored meanwhile: somebody
/// who writes all the time would keep them out for ever.
pub struct WriterGuard<'a> {
    data: &'a FileData,
    _one: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        self.data.has_turn.store(false, Ordering::Release);
    }
}

impl FileData {
    /// Cuts or extends the file here; the server hears of it with the next store, or, where nothing is left to be stored, of its time
    /// now.
    ///
    /// # Errors
    ///
    /// The cache's; those of the status.
    pub(crate) async fn truncate(self: &Arc<Self>, user: User, length: u64) -> Result<(), Error> {
        if i64::try_from(length).is_err() {
            return Err(Error::TooLarge { fid: self.vnode.fid });
        }
        let files = self.files()?;
        let cell = self.vnode.fid.cell;
        let modified = files.time();
        let is_dirty = loop {
            let guard = self.make_way(user).await?;
            if guard.is_some() || self.current().is_none() || !self.is_dirty() {
                self.refresh_in_turn(user, guard.as_ref()).await?;
            }
            let writer = writer_of(&files.users, user, cell);
            let cut = self.change(|file| {
                let is_anothers_turn = guard.is_none() && self.has_turn.load(Ordering::Acquire);
                if is_anothers_turn || in_the_way(&files.users, file, (user, cell), &writer).is_some() {
                    return Ok(None);
                }
                file.truncate(length, &writer).map_err(local)?;
                self.note_written(modified);
                Ok(Some(file.is_dirty()))
            });
            if let Some(is_dirty) = cut.unwrap_or(Err(Error::Gone { fid: self.vnode.fid }))? {
                break is_dirty;
            }
        };
        // What is made later gets its time then.
        if is_dirty || self.is_removed() || files.vnodes.local_ids.is_to_be_made(self.vnode.fid) {
            return Ok(());
        }
        // It is as the server has it, but was changed, which its time is to say.
        let set = SetStatus { modified: Some(modified), ..SetStatus::default() };
        match files.statuses.store_status(user, &self.vnode, set).await {
            // Who may write data need not be one who may set times.
            Err(error) if matches!(error.errno(), Errno::EACCES | Errno::EPERM) => {
                tracing::debug!(fid = %self.vnode.fid, %error, "the time of a file that was cut stays");
                Ok(())
            }
            set => set,
        }
    }

    /// Makes way before a user changes the file: stores what another has written into it, as the other, and puts it aside if they have no
    /// token to store it with. As one file, it would be stored as the last one's who wrote. Returns the user's turn to write, if there was
    /// such or somebody else's turn; while that is held, nothing can be stored.
    ///
    /// # Errors
    ///
    /// Those of storing, as [`Self::store`].
    pub async fn make_way(self: &Arc<Self>, user: User) -> Result<Option<WriterGuard<'_>>, Error> {
        let files = self.files()?;
        if !self.has_turn.load(Ordering::Acquire) && !self.has_in_the_way(&files.users, user) {
            return Ok(None);
        }
        let one = self.storing.lock().await;
        self.has_turn.store(true, Ordering::Release);
        let guard = WriterGuard { data: self, _one: one };
        match self.in_the_way(&files.users, user) {
            Some(InTheWay::Unstorable) => self.put_aside(&files, &self.no_token(&files)),
            Some(InTheWay::Unstored) => self.store_locked(&files, user, false).await?,
            None => {}
        }
        Ok(Some(guard))
    }

    /// True if [`Self::make_way`] has something to do.
    pub fn has_in_the_way(&self, users: &Users, user: User) -> bool {
        self.in_the_way(users, user).is_some()
    }

    fn in_the_way(&self, users: &Users, user: User) -> Option<InTheWay> {
        let cell = self.vnode.fid.cell;
        let writer = writer_of(users, user, cell);
        self.change(|file| in_the_way(users, file, (user, cell), &writer)).flatten()
    }
}

/// A user as the cache notes who writes.
pub(crate) fn writer_of(users: &Users, user: User, cell: CellIndex) -> Writer {
    Writer::new(user.uid, users.noted_name(user, cell))
}

/// The number and the name that the cache has noted of who has written.
pub(crate) fn noted(writer: &Writer) -> (u32, Option<&Arc<str>>) {
    (writer.user, writer.holder.as_ref())
}
