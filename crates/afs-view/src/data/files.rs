//! The data of files: which version of them the cache has, and what all who have a file open share. `fetch` brings what
//! is missing of them, and `write_back` stores what was written.
//!
//! A [`CacheFile`] is of one version. [`FileData::current`] is the one that is read and written. If a status says that
//! there is another version, the next operation replaces it, but never while something in it is dirty: that is stored
//! first. A reader that has begun goes on with the old one.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use afs_cache::{Cache, CacheError, CacheFile, CellNumber, FileKey, Held};
use afs_wire::Errno;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::status::AfsFetchStatus;
use lru::LruCache;
use rx_proto::time::Instant;
use tokio::sync::Notify;

use crate::data::fetch::{Fetching, ServerPace};
use crate::data::fsync::Recorder;
use crate::data::known::Written;
use crate::data::open_files::OpenFiles;
use crate::data::room::Rooms;
use crate::data::streams::Streams;
use crate::data::write::{WriterGuard, noted};
use crate::data::write_behind::{Behind, Options};
use crate::events::Invalidations;
use crate::journal::Journal;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::status::unix_time;
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::{LocalData, Unstored, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::remote::Calls;
use afs_reach::users::Users;

/// The number of times that a file which others change all the time is looked at again, before its reader gets what there is.
const REFRESHES_MAX: u32 = 16;

/// The time between two looks after the cache where it has no thread for that.
const MAINTAIN_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The data of all files, and what it takes to fetch and to store them: the cache, the calls to servers, and those who keep copies.
#[derive(Debug)]
pub struct Files {
    /// The cache.
    pub cache: Cache,
    pub(super) calls: Arc<Calls>,
    pub(super) users: Arc<Users>,
    pub(super) vnodes: Arc<Vnodes>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) streams: Streams,
    pub(super) invalidations: Arc<Invalidations>,
    /// The files that are open, and those that are being removed.
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) behind: Behind,
    pub(super) rooms: Rooms,
    /// What is written of what is known, for the next run.
    pub(super) known: tokio::sync::Mutex<Written>,
    /// What was changed here of names.
    pub(super) journal: Arc<Journal>,
    /// Weak, as it has this.
    pub(super) recorder: Weak<dyn Recorder>,
    /// Files whose data were put aside since they were stored last.
    pub(crate) put_aside: Mutex<HashSet<Fid>>,
    open: Mutex<HashMap<Fid, Weak<FileData>>>,
    paces: Mutex<Paces>,
    /// The numbers that the cache has for cells.
    cells: Mutex<HashMap<CellIndex, CellNumber>>,
    /// The time when it was last said that the cache's disk is full.
    told_full: Mutex<Option<Instant>>,
}

/// The time between two messages that the cache's disk is full.
const TELL_FULL_EVERY: Duration = Duration::from_secs(600);

/// The pace at which each server is asked, and the server that a volume's data came from last.
#[derive(Debug)]
struct Paces {
    servers: HashMap<SocketAddr, Arc<ServerPace>>,
    volumes: LruCache<(CellIndex, VolumeId), SocketAddr>,
}

impl Default for Paces {
    fn default() -> Self {
        Self { servers: HashMap::new(), volumes: LruCache::new(VOLUMES_MAX) }
    }
}

/// Volumes whose server is remembered; beyond, the one not used for longest is forgotten, which costs it a call at the slow pace of a
/// stranger.
const VOLUMES_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Stands for a server that nobody has heard from.
const STRANGER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The data of a file that somebody has open, or that is not stored yet.
#[derive(Debug)]
pub struct FileData {
    pub(crate) vnode: Arc<Vnode>,
    key: FileKey,
    /// Weak, as a task that has only this does not keep the client's cache open.
    files: Weak<Files>,
    /// Written to when the file is replaced, while nobody changes what is in it; read-locked while it is changed.
    current: RwLock<Option<Arc<CacheFile>>>,
    /// Bytes have come, or will not come.
    pub(crate) arrived: Notify,
    pub(crate) fetching: Mutex<Fetching>,
    /// Held during a store.
    pub(crate) storing: tokio::sync::Mutex<()>,
    /// True if a task has the turn to write and holds `storing` meanwhile.
    pub(crate) has_turn: AtomicBool,
    /// The time when it was written here last, as programs are told and as the next store says.
    written_at: AtomicU32,
    /// The number of stores that have failed and that a task tries again, since that has begun; 0 if there is none.
    pub(crate) retries_asked: AtomicU32,
    /// A store while it is being written goes on, or is about to begin.
    pub(crate) is_storing_ahead: AtomicBool,
    /// It waits in the queue of what was closed.
    pub(super) is_behind: AtomicBool,
    /// True if the dirty data are from before the client began, so that the file's changes since are not known.
    pub(crate) is_unsettled: AtomicBool,
    /// It is no longer at the server, by our own doing. Programs that have it open go on with what is here.
    is_removed: AtomicBool,
    /// Open files.
    pub(crate) handles: AtomicUsize,
}

impl Files {
    /// Makes the table of files. Nobody has any open yet.
    pub(crate) fn new(
        cache: Cache,
        calls: Arc<Calls>,
        statuses: Arc<Statuses>,
        streams: Streams,
        open_files: Arc<OpenFiles>,
        (write_behind, journal): (Options, Arc<Journal>),
        recorder: Weak<dyn Recorder>,
    ) -> Self {
        Self {
            cache,
            users: Arc::clone(&calls.users),
            vnodes: Arc::clone(&statuses.vnodes),
            invalidations: Arc::clone(&statuses.invalidations),
            calls,
            statuses,
            streams,
            open_files,
            behind: Behind::new(write_behind),
            rooms: Rooms::default(),
            known: tokio::sync::Mutex::default(),
            journal,
            recorder,
            put_aside: Mutex::default(),
            open: Mutex::default(),
            paces: Mutex::default(),
            cells: Mutex::default(),
            told_full: Mutex::default(),
        }
    }

    /// Looks after the cache for as long as there is a client.
    pub async fn maintain(me: Weak<Self>) {
        while let Some(files) = me.upgrade().filter(|files| !files.calls.closing.has_begun()) {
            if let Err(error) = files.cache.maintain() {
                tracing::warn!(%error, "the cache cannot be kept within its limit");
            }
            let runtime = Arc::clone(&files.calls.runtime);
            drop(files);
            runtime.sleep_until(runtime.now() + MAINTAIN_EVERY).await;
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.calls.runtime.now()
    }

    /// Seconds since 1970, as times of files are told.
    pub(super) fn time(&self) -> AfsTime {
        unix_time(&*self.calls.runtime)
    }

    /// An error of the cache, as the client's. If it is that the disk is full, the log says so, now and then.
    pub(super) fn failed(&self, error: CacheError) -> Error {
        if error.is_full() {
            let now = self.now();
            let mut told = lock(&self.told_full);
            if told.is_none_or(|at| now.since(at) >= TELL_FULL_EVERY) {
                *told = Some(now);
                tracing::warn!(%error, "files are read around the cache, and nothing can be written");
            }
        }
        local(error)
    }

    fn cell(&self, cell: CellIndex) -> Result<CellNumber, Error> {
        if let Some(number) = lock(&self.cells).get(&cell) {
            return Ok(*number);
        }
        let number = self.cache.cell(&self.calls.cells.name_of(cell)).map_err(local)?;
        lock(&self.cells).insert(cell, number);
        Ok(number)
    }

    /// The cache's key of a file.
    pub(crate) fn key(&self, fid: Fid) -> Result<FileKey, Error> {
        let cell = self.cell(fid.cell)?;
        Ok(FileKey { cell, volume: fid.volume.0, vnode: fid.vnode.0, unique: fid.unique.0 })
    }

    /// The data of a file.
    pub(crate) fn of(self: &Arc<Self>, vnode: &Arc<Vnode>) -> Result<Arc<FileData>, Error> {
        let fid = vnode.fid;
        let mut open = lock(&self.open);
        if let Some(data) = open.get(&fid).and_then(Weak::upgrade) {
            if !Arc::ptr_eq(&data.vnode, vnode) {
                // It has left the table and come back.
                vnode.set_data(Arc::downgrade(&data) as Weak<dyn LocalData>);
            }
            return Ok(data);
        }
        let key = self.key(fid)?;
        // Nobody has it open: what is dirty of it was left by the last run, or by a store that did not succeed.
        let dirty = self.cache.dirty_of(key);
        let is_removed = dirty.is_some() && self.journal.removes(fid);
        let written_at = dirty.as_ref().and_then(|file| file.written()).unwrap_or(self.time().0);
        let data = Arc::new(FileData {
            vnode: Arc::clone(vnode),
            key,
            files: Arc::downgrade(self),
            is_unsettled: AtomicBool::new(dirty.is_some() && !vnode.is_here_only()),
            current: RwLock::new(dirty),
            arrived: Notify::new(),
            fetching: Mutex::default(),
            storing: tokio::sync::Mutex::default(),
            has_turn: AtomicBool::new(false),
            written_at: AtomicU32::new(written_at),
            retries_asked: AtomicU32::new(0),
            is_storing_ahead: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
            is_removed: AtomicBool::new(is_removed),
            handles: AtomicUsize::new(0),
        });
        open.insert(fid, Arc::downgrade(&data));
        vnode.set_data(Arc::downgrade(&data) as Weak<dyn LocalData>);
        Ok(data)
    }

    /// The data of a file that somebody has open, or that is not stored yet.
    pub fn opened(&self, fid: Fid) -> Option<Arc<FileData>> {
        lock(&self.open).get(&fid).and_then(Weak::upgrade)
    }

    /// The data of all files that somebody has open, or that are not stored yet.
    pub(crate) fn all_opened(&self) -> Vec<Arc<FileData>> {
        let mut all: Vec<_> = lock(&self.open).values().filter_map(Weak::upgrade).collect();
        all.sort_by_key(|data| data.vnode.fid);
        all
    }

    fn closed(&self, fid: Fid) {
        let mut open = lock(&self.open);
        if open.get(&fid).is_some_and(|data| data.strong_count() == 0) {
            open.remove(&fid);
        }
    }

    /// The pace at which the server of a volume is asked, as far as it is known which that is.
    pub(crate) fn pace_of(&self, fid: Fid) -> Arc<ServerPace> {
        let mut paces = lock(&self.paces);
        let server = paces.volumes.get(&(fid.cell, fid.volume)).copied().unwrap_or(STRANGER);
        Arc::clone(paces.servers.entry(server).or_default())
    }

    /// A volume's data come from this server. How it is asked.
    pub(crate) fn note_server(&self, fid: Fid, server: SocketAddr) -> Arc<ServerPace> {
        let mut paces = lock(&self.paces);
        paces.volumes.put((fid.cell, fid.volume), server);
        Arc::clone(paces.servers.entry(server).or_default())
    }

    /// Lets go of what the cache has of a file, unless something of it is dirty.
    pub fn flush(&self, fid: Fid) -> Result<(), Error> {
        if let Some(data) = self.opened(fid) {
            return data.let_go(&self.cache);
        }
        let key = self.key(fid)?;
        if self.cache.dirty_of(key).is_none() {
            self.cache.forget(key).map_err(local)?;
        }
        Ok(())
    }

    /// The same of all files of a volume. The cache itself keeps those that are open or dirty.
    pub fn flush_volume(&self, cell: CellIndex, volume: VolumeId) -> Result<(), Error> {
        let is_of_volume = |fid: Fid| (fid.cell, fid.volume) == (cell, volume);
        self.let_opened_go(|data| is_of_volume(data.vnode.fid))?;
        let number = self.cell(cell)?;
        let goes = |key: FileKey| key.cell == number && key.volume == volume.0;
        self.cache.forget_where(goes).map_err(local)
    }

    /// The same of all files.
    pub fn flush_all(&self) -> Result<(), Error> {
        self.let_opened_go(|_| true)?;
        self.cache.forget_where(|_| true).map_err(local)
    }

    fn let_opened_go(&self, goes: impl Fn(&FileData) -> bool) -> Result<(), Error> {
        let mut opened = self.all_opened().into_iter().filter(|data| goes(data));
        opened.try_for_each(|data| data.let_go(&self.cache))
    }

    /// See `Client::waiting_for_a_token`.
    pub fn waiting_for_a_token(&self, user: User) -> (u32, u64) {
        let waits = |file: &Arc<CacheFile>| {
            let writer = file.writer();
            let name = self.cache.cell_name(file.key().cell);
            let cell = name.and_then(|name| self.calls.cells.named(&name)).map(|cell| cell.index);
            let waits = |cell| {
                self.users.is_without_token(noted(&writer), cell)
                    && self.users.waits_for_login(noted(&writer), cell)
            };
            writer.user == user.uid && cell.is_some_and(waits)
        };
        let waiting = self.cache.dirty_files().into_iter().filter(waits);
        waiting.fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.dirty_bytes()))
    }
}

impl FileData {
    /// The copy that is read and written now, if it is known.
    pub(crate) fn current(&self) -> Option<Arc<CacheFile>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same for a change of the file: nobody replaces it meanwhile.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&Arc<CacheFile>) -> T) -> Option<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(change)
    }

    /// True if something of it is not at the server.
    pub(crate) fn is_dirty(&self) -> bool {
        self.change(|file| file.is_dirty()).unwrap_or(false)
    }

    /// The time when it was written here last.
    pub(crate) fn written_at(&self) -> AfsTime {
        AfsTime(self.written_at.load(Ordering::Acquire))
    }

    /// Notes that it is written now.
    pub(crate) fn note_written(&self, now: AfsTime) {
        self.written_at.store(now.0, Ordering::Release);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Notes that it is no longer at the server, or will not be, by our own doing; or that it is again.
    pub(crate) fn set_removed(&self, is_removed: bool) {
        self.is_removed.store(is_removed, Ordering::Release);
    }

    /// True if what the last run has left of it is to be compared with what the server has before anybody sees it. As long as the server is away,
    /// it is enough that it is based on what was known last: before it is stored, it is compared all the same.
    pub(super) fn is_unsettled(&self) -> bool {
        let is_based_on_known = || {
            let status = self.vnode.offline_status(self.files.upgrade()?.now())?;
            self.change(|file| file.version() == status.data_version.0)
        };
        self.is_unsettled.load(Ordering::Acquire) && is_based_on_known() != Some(true)
    }

    /// The code by which it is fetched and stored.
    ///
    /// # Errors
    ///
    /// [`Error::Closing`] when the client is gone.
    pub(super) fn files(&self) -> Result<Arc<Files>, Error> {
        self.files.upgrade().ok_or(Error::Closing)
    }

    /// The data as they are now at the server, or as they are dirty: asks for the status if it is not promised.
    ///
    /// # Errors
    ///
    /// Those of the status, of the cache; those of storing what is dirty of another version.
    pub(crate) async fn refresh(self: &Arc<Self>, user: User) -> Result<Arc<CacheFile>, Error> {
        self.refresh_in_turn(user, None).await
    }

    /// The same for one who may hold the turn to write, with which `storing` is held.
    ///
    /// # Errors
    ///
    /// As [`Self::refresh`].
    pub(super) async fn refresh_in_turn(
        self: &Arc<Self>,
        user: User,
        guard: Option<&WriterGuard<'_>>,
    ) -> Result<Arc<CacheFile>, Error> {
        let files = self.files()?;
        let fid = self.vnode.fid;
        for _ in 0..REFRESHES_MAX {
            if self.is_unsettled() {
                match guard {
                    Some(_) => self.settle_locked(&files, user).await?,
                    None => self.settle(user).await?,
                }
            }
            if self.is_removed()
                && let Some(file) = self.current()
            {
                return Ok(file);
            }
            let status = self.status(&files, user).await?;
            if let Some(file) = self.adopt(&files, &status)? {
                return Ok(file);
            }
            // Others have changed it, and so have we: ours goes on top, as the last to close has it in AFS.
            tracing::debug!(%fid, "changed here and elsewhere; stored first");
            match guard {
                Some(_) => self.store_locked(&files, user, false).await?,
                None => self.store(user, false).await?,
            }
        }
        Err(Error::Busy { rpc: "FetchStatus", fid, code: afs_wire::abort::VBUSY })
    }

    async fn status(&self, files: &Files, user: User) -> Result<AfsFetchStatus, Error> {
        let fid = self.vnode.fid;
        let who = files.users.who(user, fid.cell);
        if let Some(known) = self.vnode.known(files.now(), who) {
            return Ok(known.status);
        }
        files.statuses.own_status(user, fid, fid).await?;
        // It may have left the table and come back.
        files.vnodes.get_or_add(fid).last_status().ok_or(Error::Gone { fid })
    }

    /// Opens the version that a status tells of. `None`: something of another one is dirty.
    fn adopt(&self, files: &Files, status: &AfsFetchStatus) -> Result<Option<Arc<CacheFile>>, Error> {
        let version = status.data_version.0;
        if let Some(file) = self.current().filter(|file| file.version() == version) {
            return Ok(Some(file));
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*current
            && file.version() == version
        {
            return Ok(Some(Arc::clone(file)));
        }
        let held = files.cache.file(self.key, version, status.length);
        match held.map_err(|error| files.failed(error))? {
            Held::Current(file) => {
                *current = Some(Arc::clone(&file));
                Ok(Some(file))
            }
            Held::Dirty(file) => {
                *current = Some(file);
                Ok(None)
            }
        }
    }

    /// Opens the version that is promised now, or was last, so that what is here of it can be used at once. Asks nobody.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub(crate) fn adopt_known(&self, files: &Files, user: User) -> Result<(), Error> {
        if self.is_unsettled() {
            return Ok(());
        }
        let who = files.users.who(user, self.vnode.fid.cell);
        let known = self.vnode.known(files.now(), who).map(|known| known.status);
        match known.or_else(|| self.vnode.last_status()) {
            Some(status) => self.adopt(files, &status).map(drop),
            None => Ok(()),
        }
    }

    fn let_go(&self, cache: &Cache) -> Result<(), Error> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !self.is_removed() && !current.as_ref().is_some_and(|file| file.is_dirty() || file.is_lent()) {
            cache.forget(self.key).map_err(local)?;
            *current = None;
        }
        Ok(())
    }

    /// Lets go of it, as it was put aside or is gone at the server.
    pub(crate) fn drop_current(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// All of the data as a file for the kernel, if all are here: the same one as long as somebody has it.
    pub(crate) fn backing(&self) -> Option<Arc<File>> {
        self.current()?.backing()
    }

    /// The part of a range that there is.
    pub(crate) fn clip(file: &CacheFile, pos: u64, length: u64) -> Range<u64> {
        let end = pos.saturating_add(length).min(file.length());
        pos.min(end)..end
    }
}

impl LocalData for FileData {
    fn unstored(&self) -> Option<Unstored> {
        if self.is_unsettled() {
            return None;
        }
        let length = self.change(|file| file.is_dirty().then(|| file.length())).flatten()?;
        Some(Unstored { length, modified: self.written_at() })
    }
}

impl Drop for FileData {
    fn drop(&mut self) {
        if let Some(files) = self.files.upgrade() {
            files.closed(self.vnode.fid);
        }
        self.vnode.data_closed(self);
    }
}

/// Converts an error of the cache to the client's.
pub fn local(error: CacheError) -> Error {
    let errno = match &error {
        CacheError::Full { .. } => Errno::ENOSPC,
        CacheError::InUse { .. } => Errno::EBUSY,
        CacheError::Io { error, .. } => error.raw_os_error().map_or(Errno::EIO, Errno),
        CacheError::Newer { .. } | CacheError::Foreign { .. } | CacheError::Damaged { .. } => Errno::EIO,
    };
    Error::local(error.to_string(), io::Error::from_raw_os_error(errno.0))
}
