//! Writes go into the cache at once. From there, the client stores what was written, and nothing else: at `close` and
//! `fsync`, and for large files while they are still being written. At its start it stores what the last run left.
//!
//! A store is a call for each range that is dirty, in order; each raises the version by one. If the version rises by
//! more, others have changed the file too. Then the last one to close wins, as always in AFS, and the client fetches
//! the rest of the file again.
//!
//! What cannot be stored now (no server, a busy one) stays in the cache and is tried again. What cannot be stored at
//! all (over quota, no right, the file is gone) is an error of `close` or `fsync`, and is put aside when nobody has the
//! file open any more.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afs_cache::{CacheError, CacheFile, Dirty, SentStore, Writer};
use afs_wire::Errno;
use afs_wire::ids::{AfsTime, Uniquifier, VnodeNumber, VolumeId};
use afs_wire::status::AfsFetchStatus;
use bytes::{Bytes, BytesMut};

use crate::client::{Client, Inner};
use crate::data::files::{FileData, local, lock};
use crate::data::open_file::OpenFile;
use crate::error::Error;
use crate::events::Change;
use crate::fid::{CellIndex, Fid, User};
use crate::servers::remote::{StoreRange, StoreSource};
use crate::servers::users::{NoToken, Who};
use crate::vnodes::status::{SetStatus, Status};
use crate::wait::either;

/// From so many dirty bytes on a file is stored while it is still being written: below, one call at close is cheaper.
const STORE_AHEAD_BYTES: u64 = 16 << 20;

/// Dirty bytes of a file beyond which its writer waits: half a minute's worth at 40 MB/s, that a close does not take longer.
const DIRTY_MAX: u64 = 1 << 30;

/// Bytes of one call of a store: what has to be sent again when a call breaks.
const STORE_CALL_BYTES: u64 = 64 << 20;

/// How long to wait before a store is tried again, at first and at most; a server that answers again cuts it short.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How often the end of a file is looked for that others change meanwhile, before something is appended where it was last.
const APPEND_LOOKS_MAX: u32 = 8;

/// Files of the last run that are stored at a time at the start.
const RECOVERED_AT_ONCE: usize = 8;

/// How long after the DNS was silent about a cell it is asked again, for a file of that cell which is to be stored.
const DNS_AGAIN: Duration = Duration::from_secs(30);

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
            if let Some(turn) = data.make_way(self.user()).await?
                && let Some(done) = self.write_now(pos, &bytes, may_store, Some(&turn))
            {
                return done;
            }
            if data.current().is_none() || data.is_unsettled.load(Ordering::Acquire) {
                data.refresh(self.user()).await?;
                if data.current().is_none() || data.is_unsettled.load(Ordering::Acquire) {
                    return Err(Error::Gone { fid: self.fid() });
                }
                continue;
            }
            // What is not stored is too much, or has filled the disk: once it is stored, it may go.
            may_store =
                data.change(|file| file.dirty_bytes()).unwrap_or(0) >= self.client().inner.dirty_max();
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
        turn: Option<&Turn<'_>>,
    ) -> Option<Result<(), Error>> {
        self.put(bytes, (may_store, turn), |_| Some(pos), |file, writer| file.write(pos, bytes, writer))
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
            if let Some(turn) = self.data.make_way(self.user()).await?
                && let Some(done) =
                    self.append_to(&bytes, (may_store, Some(&turn)), |file| self.is_current(file))
            {
                return done;
            }
            if self.has_current() {
                // What is not stored is too much, or has filled the disk.
                may_store = self.data.change(|file| file.dirty_bytes()).unwrap_or(0)
                    >= self.client().inner.dirty_max();
                self.data.store(self.user(), false).await?;
            } else {
                self.data.refresh(self.user()).await?;
            }
        }
        // No server promises anything, or others change it all the time: the last look has to do.
        let turn = self.data.make_way(self.user()).await?;
        self.append_to(&bytes, (false, turn.as_ref()), |_| true)
            .unwrap_or(Err(Error::Gone { fid: self.fid() }))
    }

    /// The same at once, where the end is known; `None` where [`Self::append`] would wait.
    pub fn cached_append(&self, bytes: &[u8]) -> Option<Result<u64, Error>> {
        self.append_to(bytes, (true, None), |file| self.is_current(file))
    }

    fn append_to(
        &self,
        bytes: &[u8],
        (may_store, turn): (bool, Option<&Turn<'_>>),
        may: impl Fn(&CacheFile) -> bool,
    ) -> Option<Result<u64, Error>> {
        let end = |file: &CacheFile| may(file).then(|| file.length());
        self.put(bytes, (may_store, turn), end, |file, writer| file.append(bytes, writer))
    }

    /// Puts bytes by `write` into the file as it is now, where `place` says; where that says nothing, not now. A full disk is an error only
    /// where storing does not help: if nothing is dirty, or `may_store` is false. Where it is somebody's turn, it is not now for others.
    fn put<T>(
        &self,
        bytes: &[u8],
        (may_store, turn): (bool, Option<&Turn<'_>>),
        place: impl FnOnce(&CacheFile) -> Option<u64>,
        write: impl FnOnce(&CacheFile, &Writer) -> Result<T, CacheError>,
    ) -> Option<Result<T, Error>> {
        let data = &self.data;
        if data.is_unsettled.load(Ordering::Acquire) {
            return None;
        }
        let inner = &self.client().inner;
        let most = inner.dirty_max();
        let writer = inner.users.writer(self.user(), self.fid().cell);
        let written = data.change(|file| {
            if turn.is_none() && data.has_turn.load(Ordering::Acquire) {
                return None;
            }
            let pos = place(file)?;
            if pos.checked_add(bytes.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
                return Some(Err(Error::TooLarge { fid: self.fid() }));
            }
            if file.dirty_bytes() >= most
                || inner.in_the_way(file, (self.user(), self.fid().cell), &writer).is_some()
            {
                return None;
            }
            match write(file, &writer) {
                Ok(done) => {
                    data.note_written(inner.time());
                    Some(Ok((done, file.dirty_bytes())))
                }
                Err(CacheError::Full { .. }) if may_store && file.is_dirty() => None,
                Err(error) => Some(Err(inner.files.failed(inner.now(), error))),
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
        self.client().status(self.user(), self.fid()).await
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

    /// The same, and the server has it on its disk.
    ///
    /// # Errors
    ///
    /// As [`Self::flush`].
    pub async fn fsync(&self) -> Result<(), Error> {
        if self.data.is_dirty() {
            self.data.store(self.user(), true).await?;
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
            let writer = self.client().inner.users.writer(self.user(), self.fid().cell);
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
        let noted = self.data.change(|file| {
            Arc::ptr_eq(file, &lent).then(|| {
                file.take_back(has_changed, is_over).map_err(local)?;
                if has_changed {
                    self.data.note_written(self.client().time());
                }
                Ok(())
            })
        });
        if let Some(noted) = noted.flatten() {
            return noted;
        }
        lent.take_back(has_changed, is_over).map_err(local)?;
        if has_changed && !self.data.is_removed() {
            let why = "the file was changed by others while it was mapped to be written".to_owned();
            self.data.put_one_aside(self.client(), &lent, &Error::Invalid { what: why });
        }
        Ok(())
    }
}

impl Inner {
    fn dirty_max(&self) -> u64 {
        DIRTY_MAX.min(self.files.cache.usage().limit_bytes / 2).max(STORE_AHEAD_BYTES * 2)
    }

    /// What in a file is another's, before a user writes as `writer`: it is not to be stored as somebody else's.
    fn in_the_way(
        &self,
        file: &CacheFile,
        (user, cell): (User, CellIndex),
        writer: &Writer,
    ) -> Option<InTheWay> {
        let other = file.is_dirty_of_another(writer)?;
        match self.users.who_wrote(&other, cell) {
            Err(NoToken) => Some(InTheWay::Unstorable),
            Ok(who) if self.users.has_ended(who) => Some(InTheWay::Unstorable),
            // Two anonymous users, for one, are the same to the cell.
            Ok(who) => (who != self.users.who(user, cell)).then_some(InTheWay::Unstored),
        }
    }

    /// Stores what is dirty of a file, if something is: before what concerns the file as the server has it.
    pub(crate) async fn store_dirty(&self, user: User, fid: Fid) -> Result<(), Error> {
        match self.files.opened(fid) {
            Some(data) if data.is_dirty() => data.store(user, false).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Cuts or extends a file, at the server too.
    pub(crate) async fn set_length(&self, user: User, fid: Fid, length: u64) -> Result<(), Error> {
        let client = Client { inner: self.me.upgrade().ok_or(Error::Closing)? };
        let vnode = self.vnodes.get_or_add(fid);
        let data = self.files.of(&client, &vnode)?;
        data.truncate(user, length).await?;
        data.store(user, false).await
    }

    /// A file was removed by us: what is dirty of it goes with it.
    pub(crate) fn note_removed(&self, fid: Fid) {
        let gone = match self.files.opened(fid) {
            Some(data) => {
                data.set_removed();
                data.change(|file| file.discard_dirty().map_err(local)).unwrap_or(Ok(()))
            }
            None => self.files.key(self, fid).and_then(|key| self.files.cache.forget(key).map_err(local)),
        };
        if let Err(error) = gone {
            tracing::warn!(%fid, %error, "a removed file stays in the cache");
        }
    }

    /// Stores what the last run left, in the background.
    pub(crate) fn store_left(&self) {
        let left = self.files.cache.dirty_files();
        if left.is_empty() {
            return;
        }
        tracing::info!(
            files = left.len(),
            "there are files that were written and not stored; they are stored now"
        );
        let queue = Arc::new(std::sync::Mutex::new(left));
        for _ in 0..RECOVERED_AT_ONCE {
            let (queue, me) = (Arc::clone(&queue), self.me.clone());
            self.runtime.spawn(Box::pin(async move {
                loop {
                    let Some(file) = lock(&queue).pop() else { return };
                    let Some(inner) = me.upgrade() else { return };
                    Client { inner }.store_one_left(file).await;
                }
            }));
        }
    }

    /// Stores what the last run left of a cell that only the DNS knows, once that answers.
    fn store_left_later(&self, file: Arc<CacheFile>) {
        let (me, runtime) = (self.me.clone(), Arc::clone(&self.runtime));
        self.runtime.spawn(Box::pin(async move {
            runtime.sleep_until(runtime.now() + DNS_AGAIN).await;
            match me.upgrade() {
                Some(inner) if !inner.is_closing() => Client { inner }.store_one_left(file).await,
                Some(_) | None => {}
            }
        }));
    }

    /// Stores all that is dirty, as the client ends. What takes too long is for the caller to give up.
    pub(crate) async fn store_all(&self) {
        let mut seen = HashSet::new();
        for data in self.files.all_opened() {
            if data.is_dirty() && seen.insert(data.vnode.fid) {
                let user = User::of(data.change(|file| file.writer().user).unwrap_or(0));
                if let Err(error) = data.store(user, false).await {
                    tracing::warn!(fid = %data.vnode.fid, %error, "not stored; kept for the next start");
                }
            }
        }
    }
}

impl Client {
    async fn store_one_left(&self, file: Arc<CacheFile>) {
        let inner = &self.inner;
        let key = file.key();
        let Some(name) = inner.files.cache.cell_name(key.cell) else { return };
        let cell = match inner.cell_named(&name).await {
            Ok(cell) => cell.index,
            Err(Error::DnsSilent { .. }) => return inner.store_left_later(file),
            Err(_) => {
                tracing::warn!(cell = %name, "a file of an unknown cell is not stored: see CellServDB");
                return;
            }
        };
        let fid = Fid {
            cell,
            volume: VolumeId(key.volume),
            vnode: VnodeNumber(key.vnode),
            unique: Uniquifier(key.unique),
        };
        let vnode = inner.vnodes.get_or_add(fid);
        let Ok(data) = inner.files.of(self, &vnode) else { return };
        let user = User::of(file.writer().user);
        let outcome = match data.settle(user).await {
            Ok(()) => data.store(user, false).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%fid, %error, "what was written is not stored yet; it is kept and tried again");
                data.retry(user);
            }
        }
    }
}

/// What somebody has written who is another person to the cell than the one who writes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InTheWay {
    /// They have no token to store it with.
    Unstorable,
    /// It is to be stored first.
    Unstored,
}

/// It is one user's turn to write into a file, after what another has written is stored. Others wait, and nothing is stored meanwhile: somebody
/// who writes all the time would keep them out for ever.
pub(crate) struct Turn<'a> {
    data: &'a FileData,
    _one: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.data.has_turn.store(false, Ordering::Release);
    }
}

/// Ends a store however it ends: also when its caller is interrupted.
struct Storing<'a> {
    file: &'a CacheFile,
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.file.end_store();
    }
}

/// The bytes of a store.
struct Source<'a>(&'a CacheFile);

impl StoreSource for Source<'_> {
    async fn read(&self, pos: u64, length: usize) -> io::Result<Bytes> {
        let mut bytes = BytesMut::zeroed(length);
        self.0.read_for_store(pos, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes.freeze())
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
        let client = self.client()?;
        let cell = self.vnode.fid.cell;
        let modified = client.time();
        let is_dirty = loop {
            if self.make_way(user).await?.is_some() || self.current().is_none() || !self.is_dirty() {
                self.refresh(user).await?;
            }
            let writer = client.inner.users.writer(user, cell);
            let cut = self.change(|file| {
                if client.inner.in_the_way(file, (user, cell), &writer).is_some() {
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
        if is_dirty || self.is_removed() {
            return Ok(());
        }
        // It is as the server has it, but was changed, which its time is to say.
        let set = SetStatus { modified: Some(modified), ..SetStatus::default() };
        match client.inner.store_status(user, &self.vnode, set).await {
            // Who may write data need not be one who may set times.
            Err(error) if matches!(error.errno(), Errno::EACCES | Errno::EPERM) => {
                tracing::debug!(fid = %self.vnode.fid, %error, "the time of a file that was cut stays");
                Ok(())
            }
            set => set,
        }
    }

    /// Stores in the background while the file is written on.
    fn store_ahead(self: &Arc<Self>, user: User) {
        if self.is_storing_ahead.swap(true, Ordering::AcqRel) {
            return;
        }
        let Ok(client) = self.client() else { return };
        let data = Arc::clone(self);
        client.inner.runtime.spawn(Box::pin(async move {
            // An error is kept for close; the writer's next store meets it again.
            let outcome = data.store(user, false).await;
            data.is_storing_ahead.store(false, Ordering::Release);
            if let Err(error) = outcome {
                tracing::debug!(fid = %data.vnode.fid, %error, "storing while it is written");
            }
        }));
    }

    /// Before a user changes the file: stores what another has written into it, as the other, and puts it aside if they have no token to store
    /// it with. As one file, it would be stored as the last one's who wrote. Returns the user's turn to write, if there was such or somebody
    /// else's turn; while that is held, nothing can be stored.
    ///
    /// # Errors
    ///
    /// Those of storing, as [`Self::store`].
    pub(crate) async fn make_way(self: &Arc<Self>, user: User) -> Result<Option<Turn<'_>>, Error> {
        let client = self.client()?;
        if !self.has_turn.load(Ordering::Acquire) && !self.has_in_the_way(&client.inner, user) {
            return Ok(None);
        }
        let one = self.storing.lock().await;
        self.has_turn.store(true, Ordering::Release);
        let turn = Turn { data: self, _one: one };
        match self.in_the_way(&client.inner, user) {
            Some(InTheWay::Unstorable) => self.put_aside(&client, &self.no_token(&client)),
            Some(InTheWay::Unstored) => self.store_locked(&client, user, false).await?,
            None => {}
        }
        Ok(Some(turn))
    }

    /// Whether [`Self::make_way`] has something to do.
    pub(crate) fn has_in_the_way(&self, inner: &Inner, user: User) -> bool {
        self.in_the_way(inner, user).is_some()
    }

    fn in_the_way(&self, inner: &Inner, user: User) -> Option<InTheWay> {
        let cell = self.vnode.fid.cell;
        let writer = inner.users.writer(user, cell);
        self.change(|file| inner.in_the_way(file, (user, cell), &writer)).flatten()
    }

    fn no_token(&self, client: &Client) -> Error {
        Error::NoToken { cell: client.inner.cells.name_of(self.vnode.fid.cell) }
    }

    /// Stores what is dirty, as the one who wrote last. Returns when all that was dirty at the beginning is at the server. `user` is
    /// whoever wants it.
    ///
    /// # Errors
    ///
    /// The server's, the cache's; [`Error::NoToken`] when the writer has become somebody else since, or nobody.
    pub(crate) async fn store(self: &Arc<Self>, user: User, sync: bool) -> Result<(), Error> {
        let client = self.client()?;
        let _one = self.storing.lock().await;
        self.store_locked(&client, user, sync).await
    }

    /// The same with `storing` held.
    async fn store_locked(self: &Arc<Self>, client: &Client, user: User, sync: bool) -> Result<(), Error> {
        if self.is_unsettled.load(Ordering::Acquire) {
            self.settle_locked(client, user).await?;
        }
        let Some(file) = self.current() else { return Ok(()) };
        if self.is_removed() {
            file.discard_dirty().map_err(local)?;
            return Ok(());
        }
        let outcome = self.store_file(client, &file, sync).await;
        outcome.inspect_err(|error| self.note_failure(client, user, error))
    }

    /// One store of a file, with all its calls.
    async fn store_file(&self, client: &Client, file: &Arc<CacheFile>, sync: bool) -> Result<(), Error> {
        let Some(dirty) = file.begin_store() else { return Ok(()) };
        let _storing = Storing { file };
        let who = client.inner.users.who_wrote(&dirty.writer, self.vnode.fid.cell);
        let who = who.map_err(|NoToken| self.no_token(client))?;
        let modified = self.written_at();
        let mut is_alone = true;
        let mut length_there = dirty.server_length;
        let calls = calls_of(&dirty);
        let last = calls.len().saturating_sub(1);
        for (n, (range, file_length)) in calls.into_iter().enumerate() {
            let sync = sync && n == last;
            let status =
                self.store_range(client, who, file, (range.clone(), file_length), modified, sync).await?;
            is_alone &= file.note_stored(range, status.data_version.0, status.length).map_err(local)?;
            length_there = status.length;
        }
        if length_there < dirty.length {
            // Zeros at the end are stored by their length alone.
            let end = dirty.length..dirty.length;
            let status =
                self.store_range(client, who, file, (end.clone(), dirty.length), modified, sync).await?;
            is_alone &= file.note_stored(end, status.data_version.0, status.length).map_err(local)?;
        }
        if !is_alone {
            tracing::debug!(fid = %self.vnode.fid, "others have changed the file too");
            client.inner.invalidations.mention(self.vnode.fid, Change::Data);
        }
        Ok(())
    }

    async fn store_range(
        &self,
        client: &Client,
        who: Who,
        file: &Arc<CacheFile>,
        (range, file_length): (Range<u64>, u64),
        modified: AfsTime,
        sync: bool,
    ) -> Result<AfsFetchStatus, Error> {
        // So that a crash leaves who can tell this store from others': see `settle`.
        let sent = SentStore { length: file_length.max(range.end), modified: modified.0 };
        file.note_sent(sent).map_err(local)?;
        let store = StoreRange {
            pos: range.start,
            length: range.end - range.start,
            file_length,
            modified: Some(modified),
            sync,
        };
        let _changing = self.vnode.changing.lock().await;
        let status = client.store_as(who, self.vnode.fid, store, &Source(file)).await;
        status.map_err(|error| client.inner.note_gone(self.vnode.fid, error))
    }

    /// A store has failed.
    fn note_failure(self: &Arc<Self>, client: &Client, user: User, error: &Error) {
        if self.may_pass(client, error) {
            self.retry(user);
            return;
        }
        if self.handles.load(Ordering::Acquire) == 0 {
            self.put_aside(client, error);
        }
    }

    /// Whether a store that has failed may succeed later: when servers are back, or when the writer has a token again whose last one has
    /// ended. What was written is kept until then.
    fn may_pass(&self, client: &Client, error: &Error) -> bool {
        let (users, cell) = (&client.inner.users, self.vnode.fid.cell);
        let writer = self.change(|file| file.writer()).unwrap_or_default();
        match error {
            // There may be another token by now; who has thrown it away waits for none.
            Error::NoToken { .. } => users.waits_for_login(&writer, cell),
            _ => {
                let is_refused = matches!(error.errno(), Errno::EACCES | Errno::EPERM);
                let waits = || users.is_without_token(&writer, cell) && users.waits_for_login(&writer, cell);
                error.is_passing() || is_refused && waits()
            }
        }
    }

    /// The last open file is closed, with something dirty: it is stored now, or put aside if it cannot be.
    pub(crate) fn end_writing(self: &Arc<Self>, user: User) {
        let Ok(client) = self.client() else { return };
        let data = Arc::clone(self);
        client.inner.runtime.spawn(Box::pin(async move {
            if data.is_dirty() {
                // What becomes of it is noted there.
                let _ = data.store(user, false).await;
            }
        }));
    }

    /// Tries to store again, until it succeeds or there is no hope.
    fn retry(self: &Arc<Self>, user: User) {
        if self.retries_asked.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let Ok(client) = self.client() else { return };
        let runtime = Arc::clone(&client.inner.runtime);
        let data = Arc::clone(self);
        drop(client);
        let task_runtime = Arc::clone(&runtime);
        runtime.spawn(Box::pin(async move {
            let mut pause = RETRY_FIRST;
            loop {
                let Ok(client) = data.client() else { return };
                if client.inner.is_closing() {
                    return;
                }
                let until = task_runtime.now() + pause;
                let back = client.inner.servers.back.notified();
                let waits = either(back, data.can_be_stored(&client.inner));
                either(task_runtime.sleep_until(until), waits).await;
                pause = (pause * 2).min(RETRY_MAX);
                let asked = data.retries_asked.load(Ordering::Acquire);
                let outcome = data.store(user, false).await;
                if outcome.is_err_and(|error| data.may_pass(&client, &error)) {
                    continue;
                }
                // Stored, or told and put aside; but another store may have failed since, and counts on this.
                let ends = data.retries_asked.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire);
                if ends.is_ok() {
                    return;
                }
            }
        }));
    }

    /// Waits until somebody logs in as the one who wrote last, if that is what a store waits for.
    async fn can_be_stored(&self, inner: &Inner) {
        let waits = || {
            let writer = self.change(|file| file.writer()).unwrap_or_default();
            inner.users.is_without_token(&writer, self.vnode.fid.cell)
        };
        if !waits() {
            return std::future::pending().await;
        }
        loop {
            let mut changed = std::pin::pin!(inner.users.changed.notified());
            changed.as_mut().enable();
            if !waits() {
                return;
            }
            changed.await;
        }
    }

    fn put_aside(&self, client: &Client, error: &Error) {
        let Some(file) = self.current().filter(|file| file.is_dirty()) else { return };
        let fid = self.vnode.fid;
        // A store may learn from the server that the file is gone before the answer to our own removal of it is here.
        let is_removed = self.is_removed() || client.inner.open_files.is_going(fid);
        if matches!(error, Error::Gone { .. }) && is_removed {
            return;
        }
        self.put_one_aside(client, &file, error);
        self.drop_current();
        client.inner.invalidations.mention(fid, Change::Data);
    }

    fn put_one_aside(&self, client: &Client, file: &Arc<CacheFile>, error: &Error) {
        let fid = self.vnode.fid;
        match client.inner.files.cache.put_aside(file, &error.to_string()) {
            Ok(conflict) => {
                tracing::error!(%fid, user = conflict.writer, kept = %conflict.data_name(), why = %error,
                    "what was written could not be stored and was put aside in the cache's folder");
            }
            Err(failed) => {
                tracing::error!(%fid, %error, %failed, "what was written could neither be stored nor put aside")
            }
        }
    }

    /// Finds out what has become at the server of a file that the last run left dirty: whether what was written may be stored
    /// on top of it. If others have changed it meanwhile, it is put aside.
    ///
    /// # Errors
    ///
    /// Those of the status.
    pub(crate) async fn settle(self: &Arc<Self>, user: User) -> Result<(), Error> {
        let client = self.client()?;
        let _one = self.storing.lock().await;
        self.settle_locked(&client, user).await
    }

    async fn settle_locked(self: &Arc<Self>, client: &Client, user: User) -> Result<(), Error> {
        if !self.is_unsettled.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(file) = self.current().filter(|file| file.is_dirty()) else {
            self.is_unsettled.store(false, Ordering::Release);
            return Ok(());
        };
        let inner = &client.inner;
        let fid = self.vnode.fid;
        // The writer may know, whoever asks now.
        let writer = inner.users.who_wrote(&file.writer(), fid.cell).unwrap_or(Who::NOBODY);
        let asker = inner.users.who(user, fid.cell);
        let mut status = inner.fetch_status(writer, &self.vnode).await;
        if status.is_err() && writer != asker {
            status = inner.fetch_status(asker, &self.vnode).await;
        }
        match status {
            Ok(status) => {
                let version = status.data_version.0;
                let is_ours = file.sent().is_some_and(|sent| {
                    file.version().checked_add(1) == Some(version)
                        && sent.length == status.length
                        && sent.modified == status.client_mod_time.0
                });
                if is_ours {
                    file.adopt(version, status.length).map_err(local)?;
                } else if version != file.version() {
                    let why = format!(
                        "the file was changed by others meanwhile: it is of version {version} at the server"
                    );
                    self.put_aside(client, &Error::Invalid { what: why });
                }
            }
            Err(error @ Error::Gone { .. }) => self.put_aside(client, &error),
            Err(error) => return Err(error),
        }
        self.is_unsettled.store(false, Ordering::Release);
        Ok(())
    }
}

/// The calls that a store takes: each a range, and the length that the file is to have then.
fn calls_of(dirty: &Dirty) -> Vec<(Range<u64>, u64)> {
    let mut calls = Vec::new();
    if let Some(cut) = dirty.cut_first {
        calls.push((cut.min(dirty.length)..cut.min(dirty.length), cut.min(dirty.length)));
    }
    for range in &dirty.ranges {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + STORE_CALL_BYTES);
            calls.push((at..end, dirty.length));
            at = end;
        }
    }
    if calls.is_empty() {
        // It is but of another length, or may be.
        calls.push((dirty.length..dirty.length, dirty.length));
    }
    calls
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges are meant, some of one")]
mod tests {
    use super::*;

    fn calls(
        server_length: u64,
        length: u64,
        cut_first: Option<u64>,
        ranges: &[Range<u64>],
    ) -> Vec<(Range<u64>, u64)> {
        let ranges = ranges.to_vec();
        calls_of(&Dirty { version: 1, server_length, length, cut_first, ranges, writer: Writer::default() })
    }

    #[test]
    fn a_range_is_a_call_with_the_length_that_the_file_is_to_have() {
        assert_eq!(calls(100, 100, None, &[5..10, 20..30]), [(5..10, 100), (20..30, 100)]);
        // Shorter than before: the first call cuts it.
        assert_eq!(calls(100, 50, None, &[5..10]), [(5..10, 50)]);
    }

    #[test]
    fn a_cut_alone_is_a_call_without_bytes() {
        assert_eq!(calls(100, 50, None, &[]), [(50..50, 50)]);
        // A store that was not answered may have left it longer.
        assert_eq!(calls(50, 50, None, &[]), [(50..50, 50)]);
    }

    #[test]
    fn a_file_that_was_cut_and_has_grown_again_is_cut_first() {
        assert_eq!(calls(100, 60, Some(10), &[50..60]), [(10..10, 10), (50..60, 60)]);
    }

    #[test]
    fn what_is_long_is_several_calls() {
        let long = 3 * STORE_CALL_BYTES / 2;
        assert_eq!(
            calls(0, long, None, &[0..long]),
            [(0..STORE_CALL_BYTES, long), (STORE_CALL_BYTES..long, long)]
        );
    }
}
