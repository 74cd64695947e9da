//! Write-behind: a close that does not wait for the server. What was written is promised to outlast a loss of power of this machine, and is
//! stored soon, by [`super::write_back`], in a few tasks that share one queue.
//!
//! A close takes part if the file's version and the user's rights are known under a promise and the writer has a token; else it waits for the
//! server, as without. What others have stored since is never overwritten: before the store, the file's version at the server is asked for
//! where no promise tells it, and where it is another one, what was written here is put aside.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use afs_cache::CacheFile;
use afs_wire::ids::{AFSPATHMAX, AfsTime, Uniquifier, VnodeNumber};
use afs_wire::status::{AfsFetchStatus, FileType};
use futures_util::future::join_all;

use crate::data::files::{FileData, Files, local, lock};
use crate::data::fsync::{Fsync, Late};
use crate::data::open_file::OpenFile;
use crate::data::store_behind::Settings;
use crate::data::write::noted;
use crate::journal::{SENT_AT_ONCE, Senders};
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::location::Queue;

/// A store of so many bytes at most tells how long the server takes for one: longer ones take what the way does.
const SHORT_STORE: u64 = 64 << 10;

/// Bytes for which a file counts at most that is being stored, and those of all at a server: as many as 16 long ones.
const LONG_STORE: u64 = 256 << 10;
const UNDER_WAY_MAX: u64 = 16 * LONG_STORE;

/// Bytes of files that are compared, to know our own again after an attempt that was not answered.
const COMPARED_MAX: usize = 1 << 20;

/// The time from which on what a program has closed outlasts a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBehind {
    /// When `close` has returned.
    Always,
    /// Within two seconds after that. What a loss of power takes is the end of what was closed, and nothing in between.
    Second,
}

/// How a client with write-behind is set up.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// What counts where nothing else is set; `None`: a close waits for the server.
    pub mode: Option<WriteBehind>,
    /// The time for which what is known counts without its server, in volumes with write-behind.
    pub offline_max: Duration,
    /// What an `fsync` means with write-behind.
    pub fsync: Fsync,
}

/// The files that were closed and are to be stored.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(super) settings: Settings,
    pub(super) offline_max: Duration,
    pub(super) fsync: Fsync,
    pub(super) late: Mutex<Late>,
    closed: Mutex<Closed>,
}

#[derive(Debug, Default)]
struct Closed {
    servers: HashMap<Queue, OfServer>,
    /// The sum of the bytes that wait.
    bytes: u64,
}

/// The files that are to be stored at one server.
#[derive(Debug)]
struct OfServer {
    /// With the bytes that were dirty when they came.
    waiting: VecDeque<(Arc<FileData>, User, u64)>,
    senders: Senders,
    /// Bytes of those that are being stored, as far as they count.
    under_way: u64,
}

impl Default for OfServer {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), senders: Senders::new(SENT_AT_ONCE), under_way: 0 }
    }
}

impl Behind {
    pub(crate) fn new(options: Options) -> Self {
        let Options { mode, offline_max, fsync } = options;
        let (late, closed) = Default::default();
        Self { settings: Settings::new(mode), offline_max, fsync, late, closed }
    }
}

impl OpenFile {
    /// A program closes it: with write-behind, returns when what was written is safe here; else as [`Self::flush`]. So it is where the volume
    /// has no room for it as far as known.
    ///
    /// # Errors
    ///
    /// As [`Self::flush`]; the cache's; the server's for a quota that is used up, where it cannot be asked.
    pub async fn close(&self) -> Result<(), Error> {
        let dirty = self.data.is_dirty().then(|| self.files().behind_at(self.data.vnode.fid));
        match dirty.flatten() {
            Some(mode) if self.data.may_wait(self.files(), self.user()) => {
                if !self.files().has_room_there(&self.data, self.user()) {
                    return match self.data.vnode.is_offline(self.files().now()) {
                        true => Err(Files::no_room(self.data.vnode.fid)),
                        false => self.flush_after_syncs().await,
                    };
                }
                self.files().note_closed(&self.data);
                self.data.promise(mode).await?;
                self.files().store_behind(&self.data, self.user());
                Ok(())
            }
            _ => self.flush_after_syncs().await,
        }
    }
}

impl FileData {
    /// True if a close need not wait for the store of what was written.
    pub(super) fn may_wait(&self, files: &Files, user: User) -> bool {
        if self.is_unsettled() || self.is_removed() {
            return false;
        }
        let Some(file) = self.current() else { return false };
        let cell = self.vnode.fid.cell;
        let known = self.vnode.known(files.now(), files.users.who(user, cell));
        known.is_some_and(|known| known.status.data_version.0 == file.version())
            && files.users.who_wrote(noted(&file.writer()), cell).is_ok()
            && files.has_room_behind()
    }

    pub(super) async fn promise(&self, mode: WriteBehind) -> Result<(), Error> {
        let Some(file) = self.current() else { return Ok(()) };
        let written = self.written_at().0;
        let promised = match mode {
            WriteBehind::Always => rx::blocking::on_a_thread(move || file.promise_and_sync(written)).await,
            WriteBehind::Second => file.promise(written),
        };
        promised.map_err(local)
    }

    /// True if a program was told that what is dirty is safe here.
    pub(super) fn is_promised(&self) -> bool {
        self.change(|file| file.is_promised()).unwrap_or(false)
    }

    /// Finds out whether the server still has the version that was written on.
    ///
    /// # Errors
    ///
    /// Others have changed the file; those of asking for its status.
    pub(super) async fn check_base(
        &self,
        files: &Files,
        file: &Arc<CacheFile>,
        user: User,
    ) -> Result<(), Error> {
        let cell = self.vnode.fid.cell;
        let status = loop {
            let before = file.version();
            // After a store that was not answered the server may have been away, and could tell nothing.
            let promised = self.vnode.promised_status(files.now()).filter(|_| file.sent().is_none());
            let status = match promised {
                Some(status) => status,
                None => {
                    // The writer may know, whoever asks now.
                    let writer = files.users.who_wrote(noted(&file.writer()), cell);
                    let who = writer.unwrap_or_else(|_| files.users.who(user, cell));
                    files.statuses.try_to_fetch_status(who, &self.vnode).await?
                }
            };
            // It may have been made at the server meanwhile, which has given it another version.
            if file.version() == before {
                break status;
            }
        };
        if status.data_version.0 == file.version() || self.adopt_own(files, file, user, &status).await? {
            return Ok(());
        }
        let version = status.data_version.0;
        let what =
            format!("the file was changed by others meanwhile: it is of version {version} at the server");
        Err(Error::Invalid { what })
    }
}

impl Files {
    /// Bytes that were closed and wait to be stored.
    pub(super) fn bytes_behind(&self) -> u64 {
        lock(&self.behind.closed).bytes
    }

    /// True if the cache has room for more that waits. Where much waits already, closes and changes of names wait for the server.
    pub(crate) fn has_room_behind(&self) -> bool {
        self.bytes_behind() <= self.cache.usage().limit_bytes / 2
    }

    /// The time of the oldest data that were closed here and are not at the server.
    pub fn oldest_behind(&self) -> Option<AfsTime> {
        let behind = self.all_opened().into_iter().filter(|data| data.is_promised());
        behind.map(|data| data.written_at()).min()
    }

    /// The server has made a file that was made here, and told this status of it.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub(crate) fn note_made(self: &Arc<Self>, fid: Fid, status: &AfsFetchStatus) -> Result<(), Error> {
        let version = status.data_version.0;
        let adopt = |file: &Arc<CacheFile>| match file.version() == version {
            true => Ok(()),
            false => file.adopt(version, status.length).map_err(local),
        };
        // Also of what the last run has left, which nobody has open.
        self.of(&self.vnodes.get_or_add(fid))?.change(adopt).unwrap_or(Ok(()))
    }

    /// True if all that a file has at the server is here too, at the beginning of what was written here into the one that stands for it.
    ///
    /// # Errors
    ///
    /// Those of fetching it; the cache's.
    pub(crate) async fn has_all_of(
        self: &Arc<Self>,
        user: User,
        (made, real): (Fid, Fid),
        length: u64,
    ) -> Result<bool, Error> {
        let data = self.of(&self.vnodes.get_or_add(made))?;
        let Some(file) = data.current().filter(|file| file.length() >= length) else {
            return Ok(length == 0);
        };
        self.begins_with(user, &file, (real, length)).await
    }

    /// True if what is here begins with all that a file has at the server.
    ///
    /// # Errors
    ///
    /// Those of fetching it; the cache's.
    pub(super) async fn begins_with(
        &self,
        user: User,
        here: &CacheFile,
        (there, length): (Fid, u64),
    ) -> Result<bool, Error> {
        let mut fetch = self.streams.fetch(user, there, 0, length).await?;
        let (mut at, mut is_same) = (0, true);
        while let Some(piece) = fetch.next().await? {
            let mut bytes = vec![0; piece.len()];
            here.read_for_store(at, &mut bytes).map_err(local)?;
            at += piece.len() as u64;
            is_same &= bytes == piece;
        }
        fetch.end().await?;
        Ok(is_same && at == length)
    }

    /// True if two files have the same data at the server; of long ones that is not looked at.
    ///
    /// # Errors
    ///
    /// Those of fetching them.
    pub(crate) async fn are_same_there(&self, user: User, (one, other): (Fid, Fid)) -> Result<bool, Error> {
        if one.vnode.is_directory() || other.vnode.is_directory() {
            return Ok(false);
        }
        let one = self.streams.fetch_whole(user, one, COMPARED_MAX).await?.0;
        Ok(one.len() < COMPARED_MAX && self.streams.fetch_whole(user, other, COMPARED_MAX).await?.0 == one)
    }

    /// True if a symbolic link at the server has this target.
    ///
    /// # Errors
    ///
    /// Those of fetching it.
    pub(crate) async fn is_text(&self, user: User, real: Fid, target: &[u8]) -> Result<bool, Error> {
        Ok(self.streams.fetch_whole(user, real, AFSPATHMAX).await?.0 == target)
    }

    /// Puts aside what was written into a file that will not be made. False if nothing was written and nobody has it open.
    pub(crate) fn give_up(&self, fid: Fid, why: &Error) -> bool {
        if let Some(data) = self.opened(fid) {
            data.put_aside(self, why);
            return true;
        }
        let Some(file) = self.key(fid).ok().and_then(|key| self.cache.dirty_of(key)) else { return false };
        if let Err(error) = self.cache.put_aside(&file, &why.to_string()) {
            tracing::error!(%fid, %error, "written data could not be put aside");
        }
        true
    }

    /// Has a file stored soon.
    pub(super) fn store_behind(self: &Arc<Self>, data: &Arc<FileData>, user: User) {
        let fid = data.vnode.fid;
        let queue = self.calls.locations.queue_of(fid.cell, fid.volume);
        let mut closed = lock(&self.behind.closed);
        if data.is_behind.swap(true, Ordering::AcqRel) {
            return;
        }
        let bytes = data.change(|file| file.dirty_bytes()).unwrap_or(0);
        closed.bytes += bytes;
        closed.servers.entry(queue).or_default().waiting.push_back((Arc::clone(data), user, bytes));
        drop(closed);
        self.start_storing_at(queue);
    }

    /// Has what waits be stored at all servers.
    pub(crate) fn start_storing(self: &Arc<Self>) {
        let queues: Vec<_> = lock(&self.behind.closed).servers.keys().copied().collect();
        queues.into_iter().for_each(|queue| self.start_storing_at(queue));
    }

    fn start_storing_at(self: &Arc<Self>, queue: Queue) {
        if self.journal.pause.is_on() {
            return;
        }
        let mut closed = lock(&self.behind.closed);
        let Some(of_server) = closed.servers.get_mut(&queue) else { return };
        let more = of_server.senders.start(of_server.waiting.len());
        drop(closed);
        for _ in 0..more {
            self.calls.runtime.spawn(Box::pin(Self::store_while_there_are(Arc::downgrade(self), queue)));
        }
    }

    async fn store_while_there_are(me: Weak<Self>, queue: Queue) {
        while let Some(files) = me.upgrade() {
            let Some((data, user, bytes)) = files.next_behind(queue) else { return };
            let began = files.calls.runtime.now();
            let stored = match files.hold_back(&data, user) {
                true => None,
                false => Some(data.store(user, false).await),
            };
            files.note_took(queue, files.calls.runtime.now().since(began), bytes, stored.as_ref());
            if let Some(Err(error)) = stored {
                tracing::debug!(fid = %data.vnode.fid, %error, "storing what was closed");
            }
            files.start_storing_at(queue);
        }
    }

    /// A file of so many bytes was stored, or not, after this time; or was held back.
    fn note_took(&self, queue: Queue, took: Duration, bytes: u64, stored: Option<&Result<(), Error>>) {
        let mut closed = lock(&self.behind.closed);
        let Some(OfServer { senders, under_way, .. }) = closed.servers.get_mut(&queue) else { return };
        *under_way -= bytes.min(LONG_STORE);
        match stored {
            Some(Ok(())) if bytes <= SHORT_STORE => senders.window.note_answer(self.now(), took),
            Some(Err(Error::Busy { .. })) => senders.window.note_busy(),
            _ => {}
        }
    }

    /// The next file for a task with its bytes; the task ends if there is none, or if there are more tasks than may be.
    fn next_behind(&self, queue: Queue) -> Option<(Arc<FileData>, User, u64)> {
        let mut closed = lock(&self.behind.closed);
        let OfServer { waiting, senders, under_way } = closed.servers.get_mut(&queue)?;
        let has_room =
            waiting.front().is_some_and(|next| *under_way + next.2.min(LONG_STORE) <= UNDER_WAY_MAX);
        let next = match self.journal.pause.is_on() || !senders.may_go_on() || !has_room {
            true => None,
            false => waiting.pop_front(),
        };
        let Some((data, user, bytes)) = next else {
            senders.end_one();
            return None;
        };
        *under_way += bytes.min(LONG_STORE);
        closed.bytes -= bytes;
        data.is_behind.store(false, Ordering::Release);
        Some((data, user, bytes))
    }

    /// Returns when what was closed of a volume's files before is at the server, or put aside: an `fsync` is a barrier for its volume.
    ///
    /// # Errors
    ///
    /// Something is not there yet, and is tried again.
    pub(super) async fn store_closed(self: &Arc<Self>, fid: Fid) -> Result<(), Error> {
        // Also without write-behind: an earlier run may have had it.
        self.journal.settle_volume(fid.cell, fid.volume).await?;
        self.store_each(self.promised_in(fid)?).await
    }

    /// The same of what one user has closed. What cannot be stored of it, or not now, holds nobody up: its own store tells that.
    pub(crate) async fn try_to_store_promised(self: &Arc<Self>, fid: Fid, user: u32) {
        let Ok(mut files) = self.promised_in(fid) else { return };
        files.retain(|data| data.change(|file| file.writer().user == user).unwrap_or(false));
        let _ = self.store_each(files).await;
    }

    /// What was closed in the volume of a file, also in an earlier run.
    pub(super) fn promised_in(self: &Arc<Self>, fid: Fid) -> Result<Vec<Arc<FileData>>, Error> {
        let place = self.key(fid)?;
        let mut promised = self.cache.dirty_files();
        promised.retain(|file| {
            let key = file.key();
            (key.cell, key.volume) == (place.cell, place.volume) && file.is_promised()
        });
        let fids = promised.iter().map(|file| {
            let key = file.key();
            Fid { vnode: VnodeNumber(key.vnode), unique: Uniquifier(key.unique), ..fid }
        });
        // What is still to be made was made after what this is asked for.
        fids.filter(|fid| !self.vnodes.local_ids.is_to_be_made(*fid))
            .map(|fid| self.of(&self.vnodes.get_or_add(fid)))
            .collect()
    }

    /// A file is stored: what was put aside of it before concerns nobody who names it from now on.
    pub(super) fn note_not_aside(&self, fid: Fid) {
        if lock(&self.put_aside).remove(&fid)
            && let Err(error) =
                self.key(fid).and_then(|key| self.cache.forget_put_aside(&[key]).map_err(local))
        {
            tracing::warn!(%fid, %error, "that a file was put aside is not forgotten");
        }
    }

    /// True if a file was written after a time, as far as somebody has it open or it is not stored yet.
    pub(crate) fn is_written_after(&self, fid: Fid, time: u32) -> bool {
        self.opened(fid).is_some_and(|data| data.is_dirty() && data.written_at().0 > time)
    }

    /// Stores files, some at a time. What cannot be stored at all is put aside.
    ///
    /// # Errors
    ///
    /// The first one of a file that is still to be stored.
    pub(super) async fn store_each(&self, files: Vec<Arc<FileData>>) -> Result<(), Error> {
        let mut outcome = Ok(());
        for some in files.chunks(SENT_AT_ONCE) {
            let stores = some.iter().map(|data| async move {
                let user = User::of(data.change(|file| file.writer().user).unwrap_or(0));
                let stored = data.store(user, false).await;
                stored.or_else(|error| {
                    tracing::warn!(fid = %data.vnode.fid, %error, "written data are not stored");
                    if data.is_dirty() { Err(error) } else { Ok(()) }
                })
            });
            outcome = join_all(stores).await.into_iter().fold(outcome, Result::and);
        }
        outcome
    }

    /// Returns when what was closed of a file is at the server, or, of a directory or a symbolic link, of all files of the volume: before it
    /// gets another name, by which others would find less.
    ///
    /// # Errors
    ///
    /// Those of storing.
    pub(crate) async fn store_before_naming(self: &Arc<Self>, user: User, fid: Fid) -> Result<(), Error> {
        let status = self.vnodes.get(fid).and_then(|vnode| vnode.last_status());
        if status.is_none_or(|status| status.file_type != FileType::FILE) {
            self.store_closed(fid).await?;
        }
        self.store_promised_of(user, fid).await
    }

    /// Returns when what was closed of a file is at the server.
    ///
    /// # Errors
    ///
    /// Those of storing.
    pub(crate) async fn store_promised_of(&self, user: User, fid: Fid) -> Result<(), Error> {
        if let Some(data) = self.opened(fid).filter(|data| data.is_promised()) {
            data.store(user, false).await?;
        }
        match lock(&self.put_aside).contains(&fid) {
            false => Ok(()),
            true => {
                Err(Error::Invalid { what: "its data could not be stored and were put aside".to_owned() })
            }
        }
    }
}
