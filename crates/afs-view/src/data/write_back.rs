//! Write-back: stores in the servers what was written into the cache, and nothing else: at `close` and `fsync`, and for large files while
//! they are still being written. At its start the client stores what the last run left. How it comes into the cache is in `write`.
//!
//! A store is a call for each range that is dirty, in order; each raises the version by one. If the version rises by
//! more, others have changed the file too. Then the last one to close wins, as always in AFS, and the client fetches
//! the rest of the file again.
//!
//! What cannot be stored now (no server, a busy one) stays in the cache and is tried again. What cannot be stored at
//! all (over quota, no right, the file is gone) is an error of `close` or `fsync`, and is put aside when nobody has the
//! file open any more.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afs_cache::{CacheFile, Dirty, SentStore};
use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};
use afs_wire::status::AfsFetchStatus;
use bytes::{Bytes, BytesMut};

use crate::data::files::{FileData, Files, local, lock};
use crate::data::streams::{StoreRange, StoreSource};
use crate::data::write::noted;
use crate::events::Change;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::users::{IdentityIndex, NoToken, Users};
use afs_reach::wait::either;

/// Bytes of one call of a store, at least and at most: what has to be sent again when a call breaks.
const STORE_CALL_MIN: u64 = 64 << 20;
const STORE_CALL_MAX: u64 = 1 << 30;

/// A call takes about so long, if its bytes allow: between two calls nothing is sent for a round trip.
const STORE_CALL_TIME: Duration = Duration::from_secs(5);

/// The pause before a store is tried again, at first and at most; a server that answers again cuts it short.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Files of the last run that are stored at a time at the start.
const RECOVERED_AT_ONCE: usize = 8;

/// The time after which the client asks the DNS again about a cell of files that are to be stored, if the DNS did not answer.
const DNS_AGAIN: Duration = Duration::from_secs(30);

/// Operations on data that are not stored yet, for the rest of the client.
impl Files {
    /// Stores what is dirty of a file, if something is: before what concerns the file as the server has it.
    pub async fn store_dirty(&self, user: User, fid: Fid) -> Result<(), Error> {
        match self.opened(fid) {
            Some(data) if data.is_dirty() => data.store(user, false).await,
            Some(_) | None => Ok(()),
        }
    }

    /// A file is removed by a change that waits: what is dirty of it is not stored meanwhile. With the change it goes ([`Self::note_removed`]) or
    /// stays ([`Self::note_stays`]).
    pub(crate) fn note_going(&self, fid: Fid) {
        if let Some(data) = self.opened(fid) {
            data.set_removed(true);
        }
        let forget = |key| self.cache.dirty_of(key).map_or_else(|| self.cache.forget(key), |_| Ok(()));
        if let Err(error) = self.key(fid).and_then(|key| forget(key).map_err(local)) {
            tracing::warn!(%fid, %error, "a file that is being removed stays in the cache");
        }
    }

    /// A file that was to be removed is not: what was written into it is stored after all.
    pub(crate) fn note_stays(self: &Arc<Self>, fid: Fid) {
        match self.of(&self.vnodes.get_or_add(fid)) {
            Ok(data) => {
                data.set_removed(false);
                let writer = data.change(|file| file.writer().user).unwrap_or(0);
                data.end_writing(User::of(writer));
            }
            Err(error) => {
                tracing::error!(%fid, %error, "what was written into a file that stays is not stored")
            }
        }
    }

    /// A file was removed by us: what is dirty of it goes with it.
    pub(crate) fn note_removed(&self, fid: Fid) {
        let opened = self.opened(fid).map_or(Ok(()), |data| {
            data.set_removed(true);
            data.change(|file| file.discard_dirty().map_err(local)).unwrap_or(Ok(()))
        });
        // Who has it open keeps it; the next start does not find it.
        let gone = self.key(fid).and_then(|key| self.cache.forget(key).map_err(local));
        if let Err(error) = opened.and(gone) {
            tracing::warn!(%fid, %error, "a removed file stays in the cache");
        }
    }

    /// Stores all that is dirty, as the client ends. What takes too long is for the caller to give up.
    pub async fn store_all(&self) {
        // What is left is in the log, and is for the next start.
        let _ = self.store_each(self.all_opened().into_iter().filter(|data| data.is_dirty()).collect()).await;
    }
}

/// Data that the last run has not stored.
impl Files {
    /// Stores it, in the background.
    pub fn store_left(self: &Arc<Self>) {
        let left = self.cache.dirty_files();
        if left.is_empty() {
            return;
        }
        tracing::info!(
            files = left.len(),
            "there are files that were written and not stored; they are stored now"
        );
        let queue = Arc::new(std::sync::Mutex::new(left));
        for _ in 0..RECOVERED_AT_ONCE {
            let (queue, me) = (Arc::clone(&queue), Arc::downgrade(self));
            self.calls.runtime.spawn(Box::pin(async move {
                loop {
                    let Some(file) = lock(&queue).pop() else { return };
                    let Some(files) = me.upgrade() else { return };
                    files.store_one_left(file, true).await;
                }
            }));
        }
    }

    /// Stores what there is of a cell that is not known, once it is.
    fn store_left_later(self: &Arc<Self>, file: Arc<CacheFile>) {
        let (me, runtime) = (Arc::downgrade(self), Arc::clone(&self.calls.runtime));
        self.calls.runtime.spawn(Box::pin(async move {
            runtime.sleep_until(runtime.now() + DNS_AGAIN).await;
            match me.upgrade() {
                Some(files) if !files.calls.closing.has_begun() => files.store_one_left(file, false).await,
                Some(_) | None => {}
            }
        }));
    }

    async fn store_one_left(self: &Arc<Self>, file: Arc<CacheFile>, is_first: bool) {
        let key = file.key();
        let Some(name) = self.cache.cell_name(key.cell) else { return };
        let cell = match self.calls.dns.cell_named(&name).await {
            Ok(cell) => cell.index,
            Err(error) => {
                if is_first {
                    tracing::warn!(cell = %name, %error, "a file of an unknown cell is not stored yet: see CellServDB and the DNS");
                }
                return self.store_left_later(file);
            }
        };
        let fid = Fid {
            cell,
            volume: VolumeId(key.volume),
            vnode: VnodeNumber(key.vnode),
            unique: Uniquifier(key.unique),
        };
        let Ok(data) = self.of(&self.vnodes.get_or_add(fid)) else { return };
        if data.is_removed() {
            // What becomes of it is the change's that removes it.
            return;
        }
        let user = User::of(file.writer().user);
        let outcome = match data.settle(user).await {
            Ok(()) => data.store(user, false).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%fid, %error, "written data are not stored yet; they are kept, and the store is tried again");
                data.retry(user);
            }
        }
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
    /// Stores in the background while the file is written on.
    pub(super) fn store_ahead(self: &Arc<Self>, user: User) {
        let Ok(files) = self.files() else { return };
        if files.is_held_back(self.vnode.fid) || self.is_storing_ahead.swap(true, Ordering::AcqRel) {
            return;
        }
        let data = Arc::clone(self);
        files.calls.runtime.spawn(Box::pin(async move {
            // An error is kept for close; the writer's next store meets it again.
            let outcome = data.store(user, false).await;
            data.is_storing_ahead.store(false, Ordering::Release);
            if let Err(error) = outcome {
                tracing::debug!(fid = %data.vnode.fid, %error, "storing while it is written");
            }
        }));
    }

    pub(super) fn no_token(&self, files: &Files) -> Error {
        Error::NoToken { cell: files.calls.cells.name_of(self.vnode.fid.cell) }
    }

    /// Stores what is dirty, as the user who wrote last. Returns when all that was dirty at the beginning is at the server. `user` is the
    /// user who wants it.
    ///
    /// # Errors
    ///
    /// The server's, the cache's; [`Error::NoToken`] when the writer has become somebody else since, or nobody.
    pub(crate) async fn store(self: &Arc<Self>, user: User, sync: bool) -> Result<(), Error> {
        let files = self.files()?;
        let _one = self.storing.lock().await;
        self.store_locked(&files, user, sync).await
    }

    /// The same with `storing` held.
    pub(super) async fn store_locked(
        self: &Arc<Self>,
        files: &Files,
        user: User,
        sync: bool,
    ) -> Result<(), Error> {
        if self.is_unsettled.load(Ordering::Acquire) {
            self.settle_locked(files, user).await?;
        }
        let Some(file) = self.current() else { return Ok(()) };
        if self.is_removed() {
            if !files.journal.removes(self.vnode.fid) {
                file.discard_dirty().map_err(local)?;
            }
            return Ok(());
        }
        let store = async {
            if file.is_promised() {
                self.check_base(files, &file, user).await?;
            }
            self.store_file(files, &file, sync).await
        };
        store.await.inspect_err(|error| self.note_failure(files, user, error))
    }

    /// One store of a file, with all its calls.
    async fn store_file(&self, files: &Files, file: &Arc<CacheFile>, sync: bool) -> Result<(), Error> {
        let Some(dirty) = file.begin_store() else { return Ok(()) };
        let _storing = Storing { file };
        let who = files.users.who_wrote(noted(&dirty.writer), self.vnode.fid.cell);
        let who = who.map_err(|NoToken| self.no_token(files))?;
        let (modified, was_promised) = (self.written_at(), file.is_promised());
        let of = |range: &Range<u64>, file_length, sync| StoreRange {
            pos: range.start,
            length: range.end - range.start,
            file_length,
            modified: Some(modified),
            sync,
            is_hasty: was_promised,
        };
        let mut is_alone = true;
        let mut length_there = dirty.server_length;
        let ranges = ranges_of(&dirty);
        let last = ranges.len().saturating_sub(1);
        let mut at_once = STORE_CALL_MIN;
        for (n, (range, file_length)) in ranges.into_iter().enumerate() {
            let mut at = range.start;
            loop {
                let call = at..range.end.min(at.saturating_add(at_once));
                at = call.end;
                let store = of(&call, file_length, sync && n == last && at == range.end);
                let began = files.now();
                let (bytes, status) =
                    (call.end - call.start, self.store_range(files, who, file, store).await?);
                at_once = call_bytes(bytes, files.now().since(began));
                is_alone &= file.note_stored(call, status.data_version.0, status.length).map_err(local)?;
                length_there = status.length;
                if at == range.end {
                    break;
                }
            }
        }
        files.note_not_aside(self.vnode.fid);
        if length_there < dirty.length {
            // Zeros at the end are stored by their length alone.
            let end = dirty.length..dirty.length;
            let status = self.store_range(files, who, file, of(&end, dirty.length, sync)).await?;
            is_alone &= file.note_stored(end, status.data_version.0, status.length).map_err(local)?;
        }
        // What is discarded meanwhile, as the file was removed here, has no version that the answer could be the next of.
        if !is_alone && !self.is_removed() {
            match was_promised {
                true => tracing::warn!(fid = %self.vnode.fid, version = dirty.version,
                    "others stored the file at the same time as what was closed here after this version: the later store counts"),
                false => tracing::debug!(fid = %self.vnode.fid, "others have changed the file too"),
            }
            files.invalidations.mention(self.vnode.fid, Change::Data);
        }
        Ok(())
    }

    async fn store_range(
        &self,
        files: &Files,
        who: IdentityIndex,
        file: &Arc<CacheFile>,
        store: StoreRange,
    ) -> Result<AfsFetchStatus, Error> {
        // What is made by a change that waits gets its first version with the answer: what is noted is of that one.
        files.vnodes.local_ids.at_server(self.vnode.fid).await?;
        // So that a crash leaves who can tell this store from others': see `settle`.
        let modified = store.modified.map_or(0, |modified| modified.0);
        file.note_sent(SentStore { length: store.file_length.max(store.pos + store.length), modified })
            .map_err(local)?;
        let _changing = self.vnode.changing.lock().await;
        let stored = files.streams.store(who, self.vnode.fid, store, &Source(file)).await;
        let stored = stored.map_err(|error| files.statuses.note_gone(self.vnode.fid, error))?;
        if stored.is_of_another_start {
            self.note_repeated(file, &stored.status)?;
        }
        Ok(stored.status)
    }

    /// A store has failed.
    fn note_failure(self: &Arc<Self>, files: &Files, user: User, error: &Error) {
        if self.may_pass(files, error) {
            self.retry(user);
            return;
        }
        if self.handles.load(Ordering::Acquire) == 0 {
            self.put_aside(files, error);
        }
    }

    /// True if a store that has failed may succeed later: when servers are back, or when the writer has a token again whose last one has
    /// ended. What was written is kept until then.
    fn may_pass(&self, files: &Files, error: &Error) -> bool {
        let (users, cell) = (&files.users, self.vnode.fid.cell);
        let writer = self.change(|file| file.writer()).unwrap_or_default();
        match error {
            // There may be another token by now; who has thrown it away waits for none.
            Error::NoToken { .. } => users.waits_for_login(noted(&writer), cell),
            _ => {
                let waits = || {
                    users.is_without_token(noted(&writer), cell)
                        && users.waits_for_login(noted(&writer), cell)
                };
                error.is_passing() || error.is_denied() && waits()
            }
        }
    }

    /// The last open file is closed, with something dirty: it is stored now, or put aside if it cannot be.
    pub(crate) fn end_writing(self: &Arc<Self>, user: User) {
        let Ok(files) = self.files() else { return };
        let data = Arc::clone(self);
        files.calls.runtime.spawn(Box::pin(async move {
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
        let Ok(files) = self.files() else { return };
        let runtime = Arc::clone(&files.calls.runtime);
        let data = Arc::clone(self);
        drop(files);
        let task_runtime = Arc::clone(&runtime);
        runtime.spawn(Box::pin(async move {
            let mut pause = RETRY_FIRST;
            loop {
                let Ok(files) = data.files() else { return };
                if files.calls.closing.has_begun() {
                    return;
                }
                let until = task_runtime.now() + pause;
                let back = files.calls.servers.back.notified();
                let waits = either(back, data.can_be_stored(&files.users));
                either(task_runtime.sleep_until(until), waits).await;
                pause = (pause * 2).min(RETRY_MAX);
                if files.journal.pause.is_on() {
                    continue;
                }
                let asked = data.retries_asked.load(Ordering::Acquire);
                let outcome = data.store(user, false).await;
                if outcome.is_err_and(|error| data.may_pass(&files, &error)) {
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
    async fn can_be_stored(&self, users: &Users) {
        let waits = || {
            let writer = self.change(|file| file.writer()).unwrap_or_default();
            users.is_without_token(noted(&writer), self.vnode.fid.cell)
        };
        if !waits() {
            return std::future::pending().await;
        }
        loop {
            let mut changed = std::pin::pin!(users.changed.notified());
            changed.as_mut().enable();
            if !waits() {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn put_aside(&self, files: &Files, error: &Error) {
        let Some(file) = self.current().filter(|file| file.is_dirty()) else { return };
        let fid = self.vnode.fid;
        // A store may learn from the server that the file is gone before the answer to our own removal of it is here.
        let is_removed = self.is_removed() || files.open_files.is_going(fid);
        if matches!(error, Error::Gone { .. }) && is_removed {
            return;
        }
        self.put_one_aside(files, &file, error);
        self.drop_current();
        files.invalidations.mention(fid, Change::Data);
    }

    pub(super) fn put_one_aside(&self, files: &Files, file: &Arc<CacheFile>, error: &Error) {
        let fid = self.vnode.fid;
        match files.cache.put_aside(file, &error.to_string()) {
            Ok(conflict) => {
                lock(&files.put_aside).insert(fid);
                tracing::error!(%fid, user = conflict.writer, kept = %conflict.data_name(), why = %error,
                    "written data could not be stored and were put aside in the cache's folder");
            }
            Err(failed) => {
                tracing::error!(%fid, %error, %failed, "written data could neither be stored nor put aside")
            }
        }
    }
}

/// The ranges of a store, each of one call or more, and the length that the file is to have then.
fn ranges_of(dirty: &Dirty) -> Vec<(Range<u64>, u64)> {
    let mut ranges = Vec::new();
    if let Some(cut) = dirty.cut_first {
        ranges.push((cut.min(dirty.length)..cut.min(dirty.length), cut.min(dirty.length)));
    }
    ranges.extend(dirty.ranges.iter().map(|range| (range.clone(), dirty.length)));
    if ranges.is_empty() {
        // It is but of another length, or may be.
        ranges.push((dirty.length..dirty.length, dirty.length));
    }
    ranges
}

/// The bytes of a call after one that had so many and took so long.
fn call_bytes(bytes: u64, took: Duration) -> u64 {
    let rate = bytes as f64 / took.as_secs_f64().max(1e-3);
    ((rate * STORE_CALL_TIME.as_secs_f64()) as u64).clamp(STORE_CALL_MIN, STORE_CALL_MAX)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges are meant, some of one")]
mod tests {
    use super::*;
    use afs_cache::Writer;

    fn ranges(
        server_length: u64,
        length: u64,
        cut_first: Option<u64>,
        dirty: &[Range<u64>],
    ) -> Vec<(Range<u64>, u64)> {
        let ranges = dirty.to_vec();
        ranges_of(&Dirty { version: 1, server_length, length, cut_first, ranges, writer: Writer::default() })
    }

    #[test]
    fn a_range_is_stored_with_the_length_that_the_file_is_to_have() {
        assert_eq!(ranges(100, 100, None, &[5..10, 20..30]), [(5..10, 100), (20..30, 100)]);
        // Shorter than before: the first call cuts it.
        assert_eq!(ranges(100, 50, None, &[5..10]), [(5..10, 50)]);
    }

    #[test]
    fn a_cut_alone_is_a_call_without_bytes() {
        assert_eq!(ranges(100, 50, None, &[]), [(50..50, 50)]);
        // A store that was not answered may have left it longer.
        assert_eq!(ranges(50, 50, None, &[]), [(50..50, 50)]);
    }

    #[test]
    fn a_file_that_was_cut_and_has_grown_again_is_cut_first() {
        assert_eq!(ranges(100, 60, Some(10), &[50..60]), [(10..10, 10), (50..60, 60)]);
    }

    #[test]
    fn a_long_store_pauses_every_few_seconds_and_breaks_cost_little_on_a_slow_way() {
        let second = Duration::from_secs(1);
        assert_eq!(call_bytes(STORE_CALL_MIN, second), 5 * STORE_CALL_MIN);
        assert_eq!(call_bytes(STORE_CALL_MIN, 20 * second), STORE_CALL_MIN);
        assert_eq!(call_bytes(STORE_CALL_MIN, Duration::ZERO), STORE_CALL_MAX);
        assert_eq!(call_bytes(1, second), STORE_CALL_MIN, "a short call says nothing of the way");
    }
}
