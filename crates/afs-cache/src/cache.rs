//! The cache: which files it has, how it opens them, what goes when there is too much, and what a start finds.

use crate::backing::BackingFiles;
use crate::conflict::Conflict;
use crate::file::CacheFile;
use crate::memory::MemoryDisk;
use crate::records;
use crate::{CacheError, CellNumber, FileKey};
use afs_store::disk::{Disk, FolderDisk};
use afs_store::{Batch, Key, Options, Schema, Store, StoreError, lock};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::Duration;

mod aside;
mod eviction;
pub(crate) mod logged;
mod opening;
mod start;

use logged::Logged;

/// The file that says what the folder is.
const VERSION: &str = "VERSION";
/// The beginning of that file; the number of the format follows.
const VERSION_TEXT: &str = "afar cache ";
/// Files that are kept open after their last use: a second open costs a microsecond then, not ten. Each is a file
/// descriptor.
const RECENT_FILES: usize = 256;
/// The part of the limit, in percent, down to which files are removed when it is reached: so that it is not done for each file.
const LOW_WATER_PERCENT: u64 = 95;
/// The bytes that a file takes beside its data, as far as the limit is concerned: a block of the file system, its inode, its row.
const FILE_OVERHEAD: u64 = 4096 + 512;
/// The time between two looks of the thread: rows that are older than this are lost to a kill, which costs fetching again.
const KEEPER_INTERVAL: Duration = Duration::from_secs(1);

/// The number of looks after which dirty data are synced: data that were written longer ago than that are at least put aside after a
/// loss of power, and not gone.
const LOOKS_PER_SYNC: u64 = 10;

/// The configuration of a cache.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most bytes of data. More is there only while files are open or dirty.
    pub limit_bytes: u64,
    /// Most files, as each takes some 100 bytes of memory. More are there only while they are open or dirty. Default 1,000,000.
    pub max_files: usize,
    /// Bytes of the index's B-tree that are kept in memory. Default 16 MiB.
    pub index_bytes: usize,
    /// Bytes of a segment of the index's log; two of them are there. Default 8 MiB.
    pub log_bytes: u64,
    /// True if each look of the keeper, one a second, syncs what is dirty, and not each tenth. Default false.
    pub syncs_each_second: bool,
    /// True if a thread looks after it; without, [`Cache::maintain`] is to be called. Default true.
    pub has_keeper: bool,
}

impl Config {
    /// The defaults, with this limit.
    #[must_use]
    pub const fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            max_files: 1_000_000,
            index_bytes: 16 << 20,
            log_bytes: 8 << 20,
            syncs_each_second: false,
            has_keeper: true,
        }
    }
}

/// The use of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use, by the cache's own count.
    pub bytes: u64,
    /// Most bytes.
    pub limit_bytes: u64,
    /// Files.
    pub files: usize,
    /// Files with something that is not stored.
    pub dirty_files: usize,
    /// Files that were put aside.
    pub conflicts: usize,
}

/// The copy that the cache has of a file.
#[derive(Debug)]
pub enum Held {
    /// The version that was asked for.
    Current(Arc<CacheFile>),
    /// Another one, with something that is to be stored first.
    Dirty(Arc<CacheFile>),
}

/// An open cache. Clones are the same; with [`Cache::close`] or the last of them it closes, and what a start needs is written.
#[derive(Debug, Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    keeper: Mutex<Option<thread::JoinHandle<()>>>,
}

/// The state that the files of a cache share.
#[derive(Debug)]
pub(crate) struct Shared {
    disk: Arc<dyn Disk>,
    data: BackingFiles,
    folder: PathBuf,
    store: Store,
    pub(crate) logged: Logged,
    index: Mutex<Index>,
    used: AtomicU64,
    limit: AtomicU64,
    max_files: usize,
    looks_per_sync: AtomicU64,
    /// The number of looks so far.
    looks: AtomicU64,
    /// True if changes were kept or ended since the keeper has synced.
    has_changes: AtomicBool,
    /// With write-behind, the numbers of files that were let go of. Their data go when the disk has that their rows are gone: else, a loss of power
    /// would leave a promise and no data.
    gone: Mutex<Vec<u64>>,
    /// True if the cache has ended; and the condition that the keeper waits for.
    ended: Mutex<bool>,
    wake: Condvar,
    /// True if the index says that nothing follows.
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Index {
    files: HashMap<FileKey, Entry>,
    /// Those that somebody has open.
    open: BTreeMap<FileKey, Weak<CacheFile>>,
    /// Those with something to be stored.
    dirty: BTreeMap<FileKey, Arc<CacheFile>>,
    /// Those that were opened last.
    recent: VecDeque<Arc<CacheFile>>,
    /// Those that go last when there is no room, in whichever version; of a whole volume its key.
    pinned: HashSet<FileKey>,
    cells: BTreeMap<String, CellNumber>,
    conflicts: BTreeMap<u64, Conflict>,
    next_number: u64,
    next_id: u64,
    /// Counts openings.
    tick: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    bytes: u64,
    used: u64,
    open: Weak<CacheFile>,
    /// The number of that opening.
    id: u64,
}

#[derive(Debug)]
struct Rows;

impl Schema for Rows {
    fn files_of(&self, key: &Key, row: &[u8]) -> Vec<String> {
        let Some((number, _)) = records::dirty_row(key, row) else { return Vec::new() };
        vec![records::backing_name(number), records::slab_name(number / records::IN_FOLDER)]
    }
}

impl Cache {
    /// Opens the cache in a folder, which is made if it is not there. Takes a lock on it. What is damaged is put aside, in a folder
    /// below that the log names, and a new cache is begun.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written, is used by another process, is of a newer version or has other things in it; the
    /// disk is full.
    pub fn open(folder: &Path, config: Config) -> Result<Self, CacheError> {
        std::fs::create_dir_all(folder).map_err(|e| CacheError::io(folder, "cannot make the folder", e))?;
        start::keep_no_times_of_access(folder);
        let version = start::check_version(folder)?;
        let disk = FolderDisk::open(folder).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => CacheError::InUse { folder: folder.to_owned() },
            _ => CacheError::io(folder, "cannot open the folder", error),
        })?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        if version < crate::READS_FROM {
            let aside = start::put_all_aside(folder)?;
            tracing::warn!(folder = %folder.display(), version, aside = %aside.display(),
                "the cache was of an older version and was put aside; a new one is begun");
        }
        if version < crate::FORMAT {
            start::write_version(folder)?;
        }
        // What reads the index has not been made for what a broken disk may give it.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_on(disk.clone(), folder, config.clone())));
        let why = match opened {
            Ok(Err(error)) if error.is_damage() => error.to_string(),
            Ok(opened) => return opened,
            Err(_) => "its index cannot be read".to_owned(),
        };
        let aside = start::put_all_aside(folder)?;
        tracing::error!(folder = %folder.display(), %why, aside = %aside.display(),
            "the cache was damaged and was put aside; a new one is begun. What was written and not stored may be there");
        Self::open_on(disk, folder, config)
    }

    /// Makes a cache in memory, which ends with the process.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn in_memory(config: Config) -> Result<Self, CacheError> {
        Self::open_on(Arc::new(MemoryDisk::new()), Path::new("(memory)"), config)
    }

    /// Opens a cache on a disk; `folder` is its name only.
    ///
    /// # Errors
    ///
    /// As [`Cache::open`].
    pub fn open_on(disk: Arc<dyn Disk>, folder: &Path, config: Config) -> Result<Self, CacheError> {
        let options = Options { cache_bytes: config.index_bytes, log_bytes: config.log_bytes };
        let store = Store::open(disk.clone(), options, &Rows).map_err(CacheError::store(folder))?;
        let shared = Arc::new(Shared {
            data: BackingFiles::new(disk.clone()),
            disk,
            folder: folder.to_owned(),
            store,
            logged: Logged::new(2 * config.log_bytes),
            index: Mutex::default(),
            used: AtomicU64::new(0),
            limit: AtomicU64::new(config.limit_bytes),
            max_files: config.max_files.max(1),
            looks_per_sync: AtomicU64::new(if config.syncs_each_second { 1 } else { LOOKS_PER_SYNC }),
            looks: AtomicU64::new(0),
            has_changes: AtomicBool::new(false),
            gone: Mutex::default(),
            ended: Mutex::new(false),
            is_closed: AtomicBool::new(false),
            wake: Condvar::new(),
        });
        shared.load()?;
        let keeper = if config.has_keeper {
            let shared = shared.clone();
            let thread = thread::Builder::new().name("cache".into()).spawn(move || shared.keep());
            Some(thread.map_err(|error| CacheError::io(folder, "cannot start a thread", error))?)
        } else {
            None
        };
        Ok(Self { inner: Arc::new(Inner { shared, keeper: Mutex::new(keeper) }) })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.inner.shared.folder
    }

    /// The number of a cell, which stays the same as long as the folder is there.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn cell(&self, name: &str) -> Result<CellNumber, CacheError> {
        let shared = &self.inner.shared;
        let mut index = lock(&shared.index);
        if let Some(&number) = index.cells.get(name) {
            return Ok(number);
        }
        let number = CellNumber(index.cells.values().map(|cell| cell.0 + 1).max().unwrap_or(1));
        let mut batch = Batch::default();
        records::put(&mut batch, records::cell(name), number.0.to_be_bytes());
        shared.commit(batch)?;
        index.cells.insert(name.to_owned(), number);
        Ok(number)
    }

    /// The name of a cell.
    #[must_use]
    pub fn cell_name(&self, cell: CellNumber) -> Option<String> {
        let index = lock(&self.inner.shared.index);
        index.cells.iter().find(|(_, number)| **number == cell).map(|(name, _)| name.clone())
    }

    /// Opens a version of a file, with the length that it has at the server; what the cache had of another version goes,
    /// unless something of it is to be stored.
    ///
    /// # Errors
    ///
    /// The disk is full, or fails.
    pub fn file(&self, key: FileKey, version: u64, length: u64) -> Result<Held, CacheError> {
        self.inner.shared.file(key, version, length)
    }

    /// Returns the cache's copy of a file, whichever version that is.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn held(&self, key: FileKey) -> Result<Option<Arc<CacheFile>>, CacheError> {
        self.inner.shared.held(key)
    }

    /// Bytes that the cache has of a file, whichever version that is. Looks into memory only.
    #[must_use]
    pub fn present_bytes(&self, key: FileKey) -> u64 {
        let found =
            lock(&self.inner.shared.index).files.get(&key).map(|entry| (entry.bytes, entry.open.upgrade()));
        // An open file is let go of without the lock, which the end of one takes.
        match found {
            Some((_, Some(file))) => file.counted_bytes(),
            Some((bytes, None)) => bytes,
            None => 0,
        }
    }

    /// Lets go of a file, dirty or not. Who has it open keeps it.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget(&self, key: FileKey) -> Result<(), CacheError> {
        self.inner.shared.forget(|found| found == key, true)
    }

    /// Gives a file, which nobody has open, another key: by that one it is known from now on. If there is one of that key already, the file is let go.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn rename(&self, from: FileKey, to: FileKey) -> Result<(), CacheError> {
        self.inner.shared.rename(from, to)
    }

    /// Lets go of files that are neither dirty nor open.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget_where(&self, which: impl Fn(FileKey) -> bool) -> Result<(), CacheError> {
        self.inner.shared.forget(which, false)
    }

    /// A file, if something of it is to be stored.
    #[must_use]
    pub fn dirty_of(&self, key: FileKey) -> Option<Arc<CacheFile>> {
        lock(&self.inner.shared.index).dirty.get(&key).cloned()
    }

    /// The files with something that is to be stored: after a start those that the last run left, and where it was killed.
    #[must_use]
    pub fn dirty_files(&self) -> Vec<Arc<CacheFile>> {
        lock(&self.inner.shared.index).dirty.values().cloned().collect()
    }

    /// Puts what was written into a file aside, where no program sees it any more but its writer finds it: in the folder
    /// `conflicts`. The file is let go.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn put_aside(&self, file: &Arc<CacheFile>, why: &str) -> Result<Conflict, CacheError> {
        self.inner.shared.put_aside(file, why)
    }

    /// Keeps what is left of a change that will never be made, where [`Self::put_aside`] keeps data: whose it was, what it was about and why it was
    /// given up, and these data, which may be none.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn keep_given_up(
        &self,
        key: FileKey,
        writer: u32,
        why: &str,
        data: &[u8],
    ) -> Result<Conflict, CacheError> {
        self.inner.shared.keep_given_up(key, writer, why, data)
    }

    /// Lists what was put aside, first the file that came into the cache first.
    #[must_use]
    pub fn conflicts(&self) -> Vec<Conflict> {
        lock(&self.inner.shared.index).conflicts.values().cloned().collect()
    }

    /// Reads at most so many bytes of what was put aside; none at its end.
    ///
    /// # Errors
    ///
    /// The disk's; somebody has taken the file away.
    pub fn read_conflict(
        &self,
        conflict: &Conflict,
        position: u64,
        length: usize,
    ) -> Result<Vec<u8>, CacheError> {
        self.inner.shared.read_conflict(conflict, position, length)
    }

    /// Forgets a conflict, and removes its files.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn remove_conflict(&self, conflict: &Conflict) -> Result<(), CacheError> {
        self.inner.shared.remove_conflict(conflict)
    }

    /// The use of the cache.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let shared = &self.inner.shared;
        let index = lock(&shared.index);
        Usage {
            bytes: shared.used.load(Ordering::Relaxed),
            limit_bytes: shared.limit.load(Ordering::Relaxed),
            files: index.files.len(),
            dirty_files: index.dirty.len(),
            conflicts: index.conflicts.len(),
        }
    }

    /// True if changes to the index were lost, as its log was damaged, or rows were dropped.
    #[cfg(test)]
    pub(crate) fn is_damaged(&self) -> bool {
        !self.inner.shared.store.losses().is_empty()
    }

    /// Sets the limit; what is over it goes soon.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.inner.shared.limit.store(limit_bytes, Ordering::Relaxed);
        self.inner.shared.wake.notify_all();
    }

    /// Has what is dirty synced once a second from now on: see [`Config::syncs_each_second`].
    pub fn sync_each_second(&self) {
        self.inner.shared.looks_per_sync.store(1, Ordering::Relaxed);
    }

    /// Does the thread's work: writes rows, and removes files beyond the limit.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn maintain(&self) -> Result<(), CacheError> {
        self.inner.shared.maintain()
    }

    /// Writes what a start needs, and that the cache ended in order. Nothing is written any more after that: what is written into a file
    /// is an error. For a process that ends, in which others may have the cache for a moment more.
    ///
    /// # Errors
    ///
    /// The disk's: the next start finds what the end of a process leaves.
    pub fn close(&self) -> Result<(), CacheError> {
        self.inner.close()
    }
}

impl Inner {
    fn close(&self) -> Result<(), CacheError> {
        if std::mem::replace(&mut *lock(&self.shared.ended), true) {
            return Ok(());
        }
        self.shared.wake.notify_all();
        if let Some(keeper) = lock(&self.keeper).take() {
            let _ = keeper.join();
        }
        self.shared.close()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the cache was not closed");
        }
        // Of what was opened after it was closed.
        self.shared.let_go();
    }
}

impl Shared {
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes rows; they outlast the process when this returns.
    pub(crate) fn commit(&self, batch: Batch) -> Result<(), CacheError> {
        if batch.rows.is_empty() {
            return Ok(());
        }
        self.check_open()?;
        let written = self.store.submit(batch).and_then(|seq| self.store.written(seq));
        written.map_err(CacheError::store(&self.folder))
    }

    /// The same for rows of changes, which the keeper is to sync though no file is dirty.
    pub(crate) fn commit_changes(&self, batch: Batch) -> Result<(), CacheError> {
        self.commit(batch)?;
        self.has_changes.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns when all rows that are committed, and the data that they are about, outlast a loss of power. Those who wait at a time share
    /// a sync.
    pub(crate) fn sync(&self) -> Result<(), CacheError> {
        self.store.sync(self.store.last()).map_err(CacheError::store(&self.folder))
    }

    /// Reads the rows whose keys begin so. One that `read` finds no sense in is dropped.
    pub(crate) fn scan_or_drop(
        &self,
        prefix: &[u8],
        mut read: impl FnMut(&Key, &[u8]) -> Option<()>,
    ) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        self.store
            .scan::<StoreError>(prefix, |key, row| {
                if read(key, row).is_none() {
                    tracing::warn!(key = ?key.0, "a row of the cache's index makes no sense and is dropped");
                    batch.delete(key.clone());
                }
                Ok(())
            })
            .map_err(CacheError::store(&self.folder))?;
        self.commit(batch)
    }

    /// An error once it was closed.
    pub(crate) fn check_open(&self) -> Result<(), CacheError> {
        if self.is_closed.load(Ordering::Acquire) {
            let closed = io::Error::other("the cache was closed");
            return Err(CacheError::io(&self.folder, "cannot be changed", closed));
        }
        Ok(())
    }

    /// Has the keeper look now.
    pub(crate) fn wake_keeper(&self) {
        self.wake.notify_all();
    }

    /// Counts so many bytes that came.
    pub(crate) fn grow(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.limit.load(Ordering::Relaxed) && used - bytes <= self.limit.load(Ordering::Relaxed) {
            self.wake.notify_all();
        }
    }

    /// Counts so many bytes that went.
    pub(crate) fn shrink(&self, bytes: u64) {
        // What is counted twice in a race is small; what would wrap would empty the cache.
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Removes a backing file, which nobody has open.
    pub(crate) fn remove_backing(&self, number: u64) -> Result<(), CacheError> {
        let removed = self.data.remove(number);
        removed.map_err(|error| {
            CacheError::io(&self.folder, format!("cannot remove {}", records::backing_name(number)), error)
        })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), CacheError> {
        match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CacheError::io(&self.folder, format!("cannot remove {name}"), error))
            }
            _ => Ok(()),
        }
    }
}
