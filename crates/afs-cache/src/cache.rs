//! The cache: which files it has, how it opens them, what goes when there is too much, and what a start finds.

use crate::conflict::{self, Conflict};
use crate::file::CacheFile;
use crate::memory::MemoryDisk;
use crate::ranges::RangeSet;
use crate::records::{self, FileRow};
use crate::{CacheError, CellNumber, FORMAT, FileKey};
use afs_store::disk::{Disk, FolderDisk};
use afs_store::{Batch, Key, Options, Schema, Store, lock};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// The file that says what the folder is.
const VERSION: &str = "VERSION";
/// What it begins with; the number of the format follows.
const VERSION_TEXT: &str = "afar cache ";
/// Files that are kept open after their last use: a second open costs a microsecond then, not ten. Each is a file
/// descriptor.
const RECENT_FILES: usize = 256;
/// To how much of the limit files are let go when it is reached, in percent: so that it is not done for each file.
const LOW_WATER_PERCENT: u64 = 95;
/// What a file costs beside its data, in bytes, as far as the limit is concerned: a block of the file system, its
/// inode, its row.
const FILE_OVERHEAD: u64 = 4096 + 512;
/// How often the thread looks after it: rows that are older than this are lost to a kill, which costs fetching again.
const KEEPER_INTERVAL: Duration = Duration::from_secs(1);

/// In how many of these looks what is dirty is synced: what was written longer ago than that is at least put aside after a
/// loss of power, and not gone.
const LOOKS_PER_SYNC: u64 = 10;

/// How a cache is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most bytes of data. More is there only while files are open or dirty.
    pub limit_bytes: u64,
    /// Bytes of the index's B-tree that are kept in memory. Default 16 MiB.
    pub index_bytes: usize,
    /// Bytes of a segment of the index's log; two of them are there. Default 8 MiB.
    pub log_bytes: u64,
    /// Whether a thread looks after it; without, [`Cache::maintain`] is to be called. Default true.
    pub has_keeper: bool,
}

impl Config {
    /// The defaults, with this limit.
    #[must_use]
    pub const fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, index_bytes: 16 << 20, log_bytes: 8 << 20, has_keeper: true }
    }
}

/// How full a cache is.
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

/// What the cache has of a file.
#[derive(Debug)]
pub enum Held {
    /// The version that was asked for.
    Current(Arc<CacheFile>),
    /// Another one, with something that is to be stored first.
    Dirty(Arc<CacheFile>),
}

/// An open cache. Clones are the same; with the last it closes, and what a start needs is written.
#[derive(Debug, Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    keeper: Mutex<Option<thread::JoinHandle<()>>>,
}

/// What the files of a cache share.
#[derive(Debug)]
pub(crate) struct Shared {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    store: Store,
    index: Mutex<Index>,
    used: AtomicU64,
    limit: AtomicU64,
    /// How often it was looked after.
    looks: AtomicU64,
    /// Whether it has ended, and what the keeper waits for.
    ended: Mutex<bool>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Index {
    files: HashMap<FileKey, Entry>,
    /// Those with something to be stored.
    dirty: BTreeMap<FileKey, Arc<CacheFile>>,
    /// Those that were opened last.
    recent: VecDeque<Arc<CacheFile>>,
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
    /// Which opening that is.
    id: u64,
}

#[derive(Debug)]
struct Rows;

impl Schema for Rows {
    fn file_of(&self, key: &Key, row: &[u8]) -> Option<String> {
        records::dirty_row(key, row).map(|(number, _)| records::backing_name(number))
    }
}

impl Cache {
    /// Opens the cache in a folder, which is made if it is not there. Takes a lock on it.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written, is used by another process, is of a newer version, has other things in it,
    /// or is damaged; the disk is full.
    pub fn open(folder: &Path, config: Config) -> Result<Self, CacheError> {
        std::fs::create_dir_all(folder).map_err(|e| CacheError::io(folder, "cannot make the folder", e))?;
        check_version(folder)?;
        let disk = FolderDisk::open(folder).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => CacheError::InUse { folder: folder.to_owned() },
            _ => CacheError::io(folder, "cannot open the folder", error),
        })?;
        Self::open_on(Arc::new(disk), folder, config)
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
            disk,
            folder: folder.to_owned(),
            store,
            index: Mutex::default(),
            used: AtomicU64::new(0),
            limit: AtomicU64::new(config.limit_bytes),
            looks: AtomicU64::new(0),
            ended: Mutex::new(false),
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
        batch.put(records::cell(name), number.0.to_be_bytes());
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

    /// What the cache has of a file, whichever version that is.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn held(&self, key: FileKey) -> Result<Option<Arc<CacheFile>>, CacheError> {
        self.inner.shared.held(key)
    }

    /// Lets go of a file, dirty or not. Who has it open keeps it.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget(&self, key: FileKey) -> Result<(), CacheError> {
        self.inner.shared.forget(|found| found == key, true)
    }

    /// Lets go of files that are not dirty.
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

    /// What was put aside, the oldest first.
    #[must_use]
    pub fn conflicts(&self) -> Vec<Conflict> {
        lock(&self.inner.shared.index).conflicts.values().cloned().collect()
    }

    /// Forgets a conflict, and removes its files.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn remove_conflict(&self, conflict: &Conflict) -> Result<(), CacheError> {
        let shared = &self.inner.shared;
        let mut batch = Batch::default();
        batch.delete(records::conflict(conflict.number));
        shared.commit(batch)?;
        lock(&shared.index).conflicts.remove(&conflict.number);
        shared.remove(&conflict.data_name())?;
        shared.remove(&conflict.text_name())
    }

    /// How full it is.
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

    /// Sets the limit; what is over it goes soon.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.inner.shared.limit.store(limit_bytes, Ordering::Relaxed);
        self.inner.shared.wake.notify_all();
    }

    /// Does what the thread does now and then: writes rows, lets go of what is over the limit.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn maintain(&self) -> Result<(), CacheError> {
        self.inner.shared.maintain()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        *lock(&self.shared.ended) = true;
        self.shared.wake.notify_all();
        if let Some(keeper) = lock(&self.keeper).take() {
            let _ = keeper.join();
        }
        // What fails here is found at the next start, like the end of a process.
        if let Err(error) = self.shared.close() {
            tracing::warn!(%error, "the cache was not closed");
        }
    }
}

impl Shared {
    // ---- what files ask

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes rows; they outlast the process when this returns.
    pub(crate) fn commit(&self, batch: Batch) -> Result<(), CacheError> {
        if batch.rows.is_empty() {
            return Ok(());
        }
        let written = self.store.submit(batch).and_then(|seq| self.store.written(seq));
        written.map_err(CacheError::store(&self.folder))
    }

    /// So many bytes came.
    pub(crate) fn grow(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.limit.load(Ordering::Relaxed) && used - bytes <= self.limit.load(Ordering::Relaxed) {
            self.wake.notify_all();
        }
    }

    /// So many bytes went.
    pub(crate) fn shrink(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A file has something to be stored, or has no more.
    pub(crate) fn note_dirty(&self, key: FileKey, id: u64, is_dirty: bool) {
        let mut gone = None;
        let mut index = lock(&self.index);
        if is_dirty {
            let open = index.files.get(&key).filter(|entry| entry.id == id).and_then(|entry| entry.open.upgrade());
            if let Some(open) = open {
                gone = index.dirty.insert(key, open);
            }
        } else if index.dirty.get(&key).is_some_and(|file| file.id() == id) {
            gone = index.dirty.remove(&key);
        }
        drop(index);
        drop(gone);
    }

    /// Makes room as the disk is full. Says whether there is some now.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let target = used.saturating_sub(bytes.max(16 << 20));
        self.evict(target).is_ok_and(|gone| gone > 0)
    }

    /// Nobody has a file open any more.
    pub(crate) fn closed(&self, file: &CacheFile) {
        if file.is_forgotten() {
            self.shrink(file.present_bytes() + FILE_OVERHEAD);
            if !file.is_aside()
                && let Err(error) = self.remove(&records::backing_name(file.number()))
            {
                tracing::warn!(%error, "a file of the cache stays until the next start");
            }
            return;
        }
        let mut index = lock(&self.index);
        let Some(entry) = index.files.get_mut(&file.key()).filter(|entry| entry.id == file.id()) else { return };
        entry.bytes = file.present_bytes();
        // With the index locked: so that nobody opens it with the old row.
        if let Err(error) = file.save() {
            tracing::warn!(%error, "what is there of a file was not noted");
        }
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), CacheError> {
        match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CacheError::io(&self.folder, format!("cannot remove {name}"), error))
            }
            _ => Ok(()),
        }
    }

    // ---- opening

    fn file(self: &Arc<Self>, key: FileKey, version: u64, length: u64) -> Result<Held, CacheError> {
        // Dropped after the lock is: the end of a file takes it.
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        if let Some(file) = self.open_held(&mut index, key, &mut ended)? {
            if file.version() == version && file.server_length() == length {
                return Ok(Held::Current(file));
            }
            if file.is_dirty() {
                return Ok(Held::Dirty(file));
            }
            self.forget_one(&mut index, key, &mut ended)?;
            ended.push(file);
        }
        let number = index.next_number;
        index.next_number += 1;
        let name = records::backing_name(number);
        let make = || {
            let file = self.disk.create(&name)?;
            file.set_length(length)?;
            Ok(file)
        };
        let file = make().map_err(|error| {
            let _ = self.disk.remove(&name);
            CacheError::io(&self.folder, "cannot make a file", error)
        })?;
        index.tick += 1;
        let row = FileRow {
            number,
            version,
            server_length: length,
            length,
            truncated_to: u64::MAX,
            used: index.tick,
            ..FileRow::default()
        };
        let mut batch = Batch::default();
        batch.put(records::file(key), row.encode());
        self.commit(batch)?;
        self.grow(FILE_OVERHEAD);
        let file = self.enter(&mut index, key, file, row, RangeSet::new(), &mut ended);
        Ok(Held::Current(file))
    }

    fn held(self: &Arc<Self>, key: FileKey) -> Result<Option<Arc<CacheFile>>, CacheError> {
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        self.open_held(&mut index, key, &mut ended)
    }

    /// Opens what the index has.
    fn open_held(
        self: &Arc<Self>,
        index: &mut Index,
        key: FileKey,
        ended: &mut Vec<Arc<CacheFile>>,
    ) -> Result<Option<Arc<CacheFile>>, CacheError> {
        index.tick += 1;
        let tick = index.tick;
        let Some(entry) = index.files.get_mut(&key) else { return Ok(None) };
        entry.used = tick;
        let number = entry.number;
        if let Some(file) = entry.open.upgrade() {
            file.note_used(tick);
            return Ok(Some(file));
        }
        let loaded = self.load_file(key, number);
        match loaded? {
            Some((file, row, dirty)) => Ok(Some(self.enter(index, key, file, row, dirty, ended))),
            None => {
                self.forget_one(index, key, ended)?;
                Ok(None)
            }
        }
    }

    /// Makes a file known as open.
    fn enter(
        self: &Arc<Self>,
        index: &mut Index,
        key: FileKey,
        file: Arc<dyn afs_store::disk::DiskFile>,
        mut row: FileRow,
        dirty: RangeSet,
        ended: &mut Vec<Arc<CacheFile>>,
    ) -> Arc<CacheFile> {
        index.next_id += 1;
        row.used = index.tick;
        let id = index.next_id;
        let mut entry = Entry {
            number: row.number,
            bytes: row.present.total(),
            used: row.used,
            open: Weak::new(),
            id,
        };
        let length = row.length;
        let file = Arc::new(CacheFile::new(self.clone(), key, id, file, length, row, dirty));
        entry.open = Arc::downgrade(&file);
        index.files.insert(key, entry);
        index.recent.push_back(file.clone());
        if index.recent.len() > RECENT_FILES {
            ended.extend(index.recent.pop_front());
        }
        file
    }

    /// Reads what there is of a file: its backing file, its row, what is dirty. `None` if that is gone or makes no sense.
    fn load_file(
        &self,
        key: FileKey,
        number: u64,
    ) -> Result<Option<(Arc<dyn afs_store::disk::DiskFile>, FileRow, RangeSet)>, CacheError> {
        let failed = CacheError::store(&self.folder);
        let Some(row) = self.store.get(&records::file(key)).map_err(&failed)? else { return Ok(None) };
        let Ok(mut row) = FileRow::decode(&row) else { return Ok(None) };
        if row.number != number {
            return Ok(None);
        }
        let mut dirty = RangeSet::new();
        self.store.scan::<afs_store::StoreError>(&records::dirty_of(number), |key, row| {
            dirty.extend(&records::dirty_row(key, row).map(|(_, range)| range).into_iter().collect());
            Ok(())
        }).map_err(&failed)?;
        let open = || {
            let file = self.disk.open(&records::backing_name(number))?;
            let length = file.length()?;
            Ok((file, length))
        };
        let (file, on_disk) = match open() {
            Ok(found) => found,
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CacheError::io(&self.folder, "cannot open a file", error)),
        };
        if row.is_lent {
            // Nobody knows what the kernel has written.
            row.truncated_to = row.truncated_to.min(on_disk);
            row.length = on_disk;
            row.is_lent = false;
            dirty.insert(0..on_disk);
        }
        row.length = row.length.max(dirty.end());
        if on_disk != row.length {
            // A write that was not acknowledged, or a cut that was.
            let set = file.set_length(row.length);
            set.map_err(|error| CacheError::io(&self.folder, "cannot set a file's length", error))?;
        }
        row.present.remove(row.length..u64::MAX);
        row.present.extend(&dirty);
        // Behind what the server has there is only what was written here, and zeros.
        row.present.insert(row.server_length.min(row.truncated_to).min(row.length)..row.length);
        Ok(Some((file, row, dirty)))
    }

    // ---- letting go

    /// Takes a file out of the index; its backing file goes when nobody has it open.
    fn forget_one(
        &self,
        index: &mut Index,
        key: FileKey,
        ended: &mut Vec<Arc<CacheFile>>,
    ) -> Result<(), CacheError> {
        let Some(entry) = index.files.get(&key) else { return Ok(()) };
        let open = entry.open.upgrade();
        let (number, bytes) = (entry.number, entry.bytes);
        let mut batch = Batch::default();
        batch.delete(records::file(key));
        let dirty = match &open {
            Some(file) => file.dirty_ranges(),
            None => Vec::new(),
        };
        for range in dirty {
            batch.delete(records::dirty(number, range.start));
        }
        if let Some(file) = &open {
            // Before the rows go, so that none comes after.
            file.set_forgotten();
        }
        self.commit(batch)?;
        index.files.remove(&key);
        ended.extend(index.dirty.remove(&key));
        match open {
            Some(file) => ended.push(file),
            None => {
                self.shrink(bytes + FILE_OVERHEAD);
                self.remove(&records::backing_name(number))?;
            }
        }
        Ok(())
    }

    fn forget(&self, which: impl Fn(FileKey) -> bool, dirty_too: bool) -> Result<(), CacheError> {
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        let mut keys: Vec<_> = index.files.keys().copied().filter(|key| which(*key)).collect();
        keys.sort_unstable();
        for key in keys {
            if dirty_too || !index.dirty.contains_key(&key) {
                self.forget_one(&mut index, key, &mut ended)?;
            }
        }
        Ok(())
    }

    /// Lets files go until so many bytes are in use. Says how many went.
    fn evict(&self, target: u64) -> Result<u64, CacheError> {
        let used = self.used.load(Ordering::Relaxed);
        if used <= target {
            return Ok(0);
        }
        let recent = std::mem::take(&mut lock(&self.index).recent);
        drop(recent);
        let mut goes = Vec::new();
        let mut left = used;
        {
            let mut index = lock(&self.index);
            let mut closed: Vec<(u64, FileKey)> = index
                .files
                .iter()
                .filter(|(key, entry)| entry.open.strong_count() == 0 && !index.dirty.contains_key(key))
                .map(|(key, entry)| (entry.used, *key))
                .collect();
            closed.sort_unstable();
            let mut batch = Batch::default();
            for (_, key) in closed {
                if left <= target {
                    break;
                }
                let entry = &index.files[&key];
                left = left.saturating_sub(entry.bytes + FILE_OVERHEAD);
                batch.delete(records::file(key));
                goes.push((key, entry.number, entry.bytes + FILE_OVERHEAD));
            }
            self.commit(batch)?;
            for (key, ..) in &goes {
                index.files.remove(key);
            }
        }
        for (_, number, bytes) in &goes {
            self.remove(&records::backing_name(*number))?;
            self.shrink(*bytes);
        }
        Ok(goes.iter().map(|(.., bytes)| bytes).sum())
    }

    /// Where all files are open: what was read of them goes.
    fn evict_open(&self, target: u64) -> Result<(), CacheError> {
        let open: Vec<_> = {
            let index = lock(&self.index);
            let mut open: Vec<_> =
                index.files.values().filter_map(|e| e.open.upgrade().map(|file| (e.used, file))).collect();
            open.sort_by_key(|(used, file)| (*used, file.id()));
            open
        };
        for (_, file) in open {
            if self.used.load(Ordering::Relaxed) <= target {
                break;
            }
            file.let_go(file.near_reader())?;
        }
        Ok(())
    }

    fn put_aside(&self, file: &Arc<CacheFile>, why: &str) -> Result<Conflict, CacheError> {
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        let cell = index.cells.iter().find(|(_, number)| **number == file.key().cell);
        let conflict = Conflict {
            number: file.number(),
            cell: cell.map(|(name, _)| name.clone()).unwrap_or_default(),
            volume: file.key().volume,
            vnode: file.key().vnode,
            unique: file.key().unique,
            version: file.row().version,
            writer: file.writer(),
            length: file.length(),
            ranges: file.dirty_ranges(),
            why: why.to_owned(),
        };
        file.set_aside();
        let mut batch = Batch::default();
        batch.put(records::conflict(conflict.number), conflict.encode());
        batch.delete(records::file(file.key()));
        for range in &conflict.ranges {
            batch.delete(records::dirty(conflict.number, range.start));
        }
        self.commit(batch)?;
        if index.files.get(&file.key()).is_some_and(|entry| entry.number == file.number()) {
            index.files.remove(&file.key());
            ended.extend(index.dirty.remove(&file.key()));
        }
        self.move_aside(&conflict)?;
        index.conflicts.insert(conflict.number, conflict.clone());
        Ok(conflict)
    }

    /// Moves a conflict's data to where its writer finds them, and says there what they are. Does what is left of that.
    fn move_aside(&self, conflict: &Conflict) -> Result<(), CacheError> {
        let failed = |error| CacheError::io(&self.folder, "cannot put a file aside", error);
        match self.disk.rename(&records::backing_name(conflict.number), &conflict.data_name()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        if self.disk.open(&conflict.text_name()).is_err() {
            let file = self.disk.create(&conflict.text_name()).map_err(failed)?;
            file.write_at(0, conflict.text().as_bytes()).map_err(failed)?;
        }
        Ok(())
    }

    // ---- start and end

    /// Reads the index, and brings what a crash left in order.
    fn load(self: &Arc<Self>) -> Result<(), CacheError> {
        let failed = CacheError::store(&self.folder);
        let has_lost_power = self.store.is_other_boot && self.store.was_unclean;
        let mut index = Index::default();
        let mut rows: Vec<(FileKey, FileRow)> = Vec::new();
        let mut bad = Vec::new();
        self.store
            .scan::<afs_store::StoreError>(&records::cells(), |key, row| {
                if let (Some(name), Ok(number)) = (records::cell_of(key), <[u8; 4]>::try_from(&row[..])) {
                    index.cells.insert(name, CellNumber(u32::from_be_bytes(number)));
                }
                Ok(())
            })
            .map_err(&failed)?;
        self.store
            .scan::<afs_store::StoreError>(&records::files(), |key, row| {
                match (records::file_of(key), FileRow::decode(row)) {
                    (Some(found), Ok(row)) => rows.push((found, row)),
                    _ => bad.push(key.clone()),
                }
                Ok(())
            })
            .map_err(&failed)?;
        let mut dirty: BTreeSet<u64> = BTreeSet::new();
        let mut stray = Vec::new();
        let known: BTreeMap<u64, FileKey> = rows.iter().map(|(key, row)| (row.number, *key)).collect();
        self.store
            .scan::<afs_store::StoreError>(&records::all_dirty(), |key, row| {
                match records::dirty_row(key, row) {
                    Some((number, _)) if known.contains_key(&number) => {
                        dirty.insert(number);
                    }
                    _ => stray.push(key.clone()),
                }
                Ok(())
            })
            .map_err(&failed)?;
        self.store
            .scan::<afs_store::StoreError>(&records::conflicts(), |key, row| {
                match conflict::decode(key, row) {
                    Some(conflict) => drop(index.conflicts.insert(conflict.number, conflict)),
                    None => stray.push(key.clone()),
                }
                Ok(())
            })
            .map_err(&failed)?;
        let mut batch = Batch::default();
        for key in bad.into_iter().chain(stray) {
            tracing::warn!(key = ?key.0, "a row of the cache's index makes no sense and is dropped");
            batch.delete(key);
        }
        index.next_number = known.keys().chain(index.conflicts.keys()).max().map_or(1, |last| last + 1);
        let mut used = 0;
        let mut unsaved = Vec::new();
        for (key, row) in rows {
            let is_dirty = dirty.contains(&row.number)
                || row.is_lent
                || row.length != row.server_length
                || row.truncated_to < row.server_length;
            if has_lost_power && !is_dirty {
                // The row may be older than the data, or the data may not have reached the disk.
                batch.delete(records::file(key));
                continue;
            }
            index.tick = index.tick.max(row.used);
            used += row.present.total() + FILE_OVERHEAD;
            let entry = Entry {
                number: row.number,
                bytes: row.present.total(),
                used: row.used,
                open: Weak::new(),
                id: 0,
            };
            index.files.insert(key, entry);
            if is_dirty {
                unsaved.push(key);
            }
        }
        self.commit(batch)?;
        self.used.store(used, Ordering::Relaxed);
        let conflicts: Vec<Conflict> = index.conflicts.values().cloned().collect();
        if self.store.was_unclean {
            self.remove_orphans(&index)?;
        }
        *lock(&self.index) = index;
        for conflict in conflicts {
            self.move_aside(&conflict)?;
        }
        for key in unsaved {
            let Some(file) = self.held(key)? else {
                tracing::error!(?key, "what was written to a file and not stored is gone from the cache's folder");
                continue;
            };
            // What the row had of it was counted without the dirty ranges.
            let counted = lock(&self.index).files.get(&key).map_or(0, |entry| entry.bytes);
            self.grow(file.present_bytes().saturating_sub(counted));
            if has_lost_power {
                let why = "the machine lost power before it was stored: it may not be whole";
                let conflict = self.put_aside(&file, why)?;
                tracing::error!(file = %conflict.data_name(), %why, "a file was put aside");
            } else {
                self.note_dirty(key, file.id(), true);
                file.set_kept();
            }
        }
        Ok(())
    }

    /// Removes backing files that no row names: of what was made or let go when the process ended.
    fn remove_orphans(&self, index: &Index) -> Result<(), CacheError> {
        let failed = |error| CacheError::io(&self.folder, "cannot list the folder", error);
        let known: BTreeSet<u64> =
            index.files.values().map(|entry| entry.number).chain(index.conflicts.keys().copied()).collect();
        for folder in self.disk.list("data").map_err(failed)? {
            for name in self.disk.list(&format!("data/{folder}")).map_err(failed)? {
                if records::backing_number(&name).is_none_or(|number| !known.contains(&number)) {
                    self.remove(&format!("data/{folder}/{name}"))?;
                }
            }
        }
        Ok(())
    }

    fn keep(self: Arc<Self>) {
        let mut has_failed = false;
        loop {
            {
                let ended = lock(&self.ended);
                if *ended {
                    return;
                }
                let waited = self.wake.wait_timeout(ended, KEEPER_INTERVAL);
                if *waited.unwrap_or_else(std::sync::PoisonError::into_inner).0 {
                    return;
                }
            }
            match self.maintain() {
                Ok(()) => has_failed = false,
                // Once, and not each second.
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(%error, "the cache");
                }
                Err(_) => {}
            }
        }
    }

    fn maintain(&self) -> Result<(), CacheError> {
        let failed = CacheError::store(&self.folder);
        self.store.prepare().map_err(&failed)?;
        self.save_all()?;
        if self.store.wants_checkpoint() {
            self.store.checkpoint().map_err(&failed)?;
        } else if self.looks.fetch_add(1, Ordering::Relaxed) % LOOKS_PER_SYNC == LOOKS_PER_SYNC - 1
            && !lock(&self.index).dirty.is_empty()
        {
            self.store.sync_all().map_err(&failed)?;
        }
        let limit = self.limit.load(Ordering::Relaxed);
        if self.used.load(Ordering::Relaxed) > limit {
            let target = limit / 100 * LOW_WATER_PERCENT;
            self.evict(target)?;
            self.evict_open(target)?;
        }
        Ok(())
    }

    fn save_all(&self) -> Result<(), CacheError> {
        let open: Vec<_> = {
            let index = lock(&self.index);
            index.files.values().filter_map(|entry| entry.open.upgrade()).collect()
        };
        open.iter().try_for_each(|file| file.save())
    }

    fn close(&self) -> Result<(), CacheError> {
        let failed = CacheError::store(&self.folder);
        self.save_all()?;
        let recent = std::mem::take(&mut lock(&self.index).recent);
        drop(recent);
        // The order in which files were used, as the index knows it better than the rows.
        let used: Vec<_> = {
            let index = lock(&self.index);
            index.files.iter().map(|(key, entry)| (*key, entry.used)).collect()
        };
        let mut batch = Batch::default();
        for (key, used) in used {
            let row = self.store.get(&records::file(key)).map_err(&failed)?;
            if let Some(mut row) = row.and_then(|row| FileRow::decode(&row).ok())
                && row.used != used
            {
                row.used = used;
                batch.put(records::file(key), row.encode());
            }
        }
        self.commit(batch)?;
        // Data before the mark that says that all was closed.
        self.disk.sync_all().map_err(|error| CacheError::io(&self.folder, "cannot sync the folder", error))?;
        self.store.close().map_err(&failed)
    }
}

/// Says whether a folder is one for us: empty, or a cache of a version that we know. Writes the version into an empty one.
fn check_version(folder: &Path) -> Result<(), CacheError> {
    let failed = |what: &str, error| CacheError::io(folder, what, error);
    let path = folder.join(VERSION);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().strip_prefix(VERSION_TEXT.trim_end()).map(str::trim);
            match found.map(str::parse::<u32>) {
                Some(Ok(version)) if version <= FORMAT => Ok(()),
                Some(_) => {
                    Err(CacheError::Newer { folder: folder.to_owned(), found: found.unwrap_or_default().to_owned() })
                }
                None => Err(CacheError::Foreign { folder: folder.to_owned() }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // What others put into the folder of a cache (a socket, `lost+found`) is theirs; another's data are not to
            // be mixed with ours.
            let entries = std::fs::read_dir(folder).map_err(|e| failed("cannot list the folder", e))?;
            for entry in entries {
                let entry = entry.map_err(|e| failed("cannot list the folder", e))?;
                let name = entry.file_name();
                let is_ours = ["data", "conflicts", "rows.redb"].iter().any(|ours| name == *ours);
                if is_ours {
                    return Err(CacheError::Foreign { folder: folder.to_owned() });
                }
            }
            let temporary = folder.join("VERSION.new");
            let write = || {
                std::fs::write(&temporary, format!("{VERSION_TEXT}{FORMAT}\n"))?;
                std::fs::File::open(&temporary)?.sync_all()?;
                std::fs::rename(&temporary, &path)
            };
            write().map_err(|error| failed("cannot write its version", error))
        }
        Err(error) => Err(failed("cannot read its version", error)),
    }
}
