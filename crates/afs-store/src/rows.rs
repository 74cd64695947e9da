//! The rows: a log, what is new since the last checkpoint in memory, the rest in a B-tree (redb). A
//! batch of rows is there as a whole or not at all; it outlasts the process when it was written to the log, a power
//! loss when a *mark* behind it was synced, before which the files that it names were synced too (Volume format 3).
//!
//! Opening a store is in `opening`, reading in `reading`; here is how rows get into it and onto the disk.
//!
//! Knows nothing of what the rows mean, but for one kind: reservations ([`Schema::is_reservation`]), which
//! only grow and count from the moment at which the log was synced.

mod btree;
mod checked;
mod copying;
pub mod log;
mod opening;
mod past_damage;
mod range_cache;
mod reading;
mod recovery;

use crate::StoreError;
use crate::disk::{Disk, folder_of};
use btree::BTree;
pub use btree::Backend;
pub use checked::{CheckedBackend, CheckedFile};
use log::{Record, Segment};
pub use opening::Schema;
use recovery::ASIDE;
pub use recovery::Loss;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A row's key; keys are ordered by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub Vec<u8>);

/// The first key that does not begin like this. No key may begin with the byte 255.
#[must_use]
pub fn after(prefix: &[u8]) -> Key {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return Key(end);
        }
        end.pop();
    }
    // Of nothing: no key begins so.
    Key(vec![0xff])
}

/// The options with which a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the B-tree that are kept in memory.
    pub cache_bytes: usize,
    /// Bytes of a segment of the log, and of rows in memory at which a checkpoint is due. Segments are there with their
    /// space before they are used; two of them at least are.
    pub log_bytes: u64,
}

/// A row's value; cheap to hand on.
pub type Bytes = Arc<[u8]>;
/// A key and its value.
pub type Row = (Key, Bytes);
/// Rows to be put (or deleted), by key.
pub type Layer = BTreeMap<Key, Option<Bytes>>;

/// Counts the batches of a store, for ever.
pub type Seq = u64;

/// Bytes that a segment of the log must have left beyond a batch, for the marks of syncs: each has 26.
const ROOM_FOR_MARKS: u64 = 4096;
/// Segments that earlier runs have left, at which a checkpoint is due though they have few rows: each is a file to be read at the
/// next start.
const MAX_OLD_SEGMENTS: usize = 8;
/// Rows in memory, in segments, at which a store whose B-tree takes no more has failed.
const MAX_LAYERS: u64 = 8;

/// Rows to be put or deleted at once, and files that they name.
#[derive(Debug, Default)]
pub struct Batch {
    /// The rows.
    pub rows: Layer,
    /// Names of files with data that must be synced before this counts after a power loss.
    pub files: Vec<String>,
}

impl Batch {
    /// Adds a row to be put.
    pub fn put(&mut self, key: Key, value: impl Into<Bytes>) {
        self.rows.insert(key, Some(value.into()));
    }

    /// Adds a row to be deleted.
    pub fn delete(&mut self, key: Key) {
        self.rows.insert(key, None);
    }
}

/// An open store; see the crate.
#[derive(Debug)]
pub struct Store {
    disk: Arc<dyn Disk>,
    /// Gone after [`Store::shut`].
    btree: RwLock<Option<BTree>>,
    layers: RwLock<Layers>,
    queue: Mutex<Queue>,
    writer: Mutex<Writer>,
    /// The last batch that the writer has written, for those who need not wait.
    written: AtomicU64,
    /// Held by the thread that syncs.
    synced: Mutex<Synced>,
    /// Held by the thread that makes a checkpoint: the segments that are older than the one in use.
    old: Mutex<Vec<String>>,
    failed: Mutex<Option<StoreError>>,
    has_failed: AtomicBool,
    /// Segments among the old ones that are damaged: kept under another name when what can be read of them is in the B-tree.
    damaged: BTreeSet<String>,
    losses: Vec<Loss>,
    boot: String,
    /// What the checksums of this run's records begin with.
    salt: u32,
    log_bytes: u64,
    /// True if new segments are written before they are used ([`Store::expect_syncs`]).
    writes_segments: AtomicBool,
    /// True if the last run did not close the store.
    pub was_unclean: bool,
    /// True if the machine was started anew since the last run: what was not synced may be lost.
    pub is_other_boot: bool,
}

/// The rows that the B-tree does not have yet.
#[derive(Debug, Default)]
struct Layers {
    active: Layer,
    /// The layer that is on its way into the B-tree.
    frozen: Arc<Layer>,
    bytes: u64,
}

/// Batches that are visible and not yet written, and where they will be.
#[derive(Debug)]
struct Queue {
    last: Seq,
    /// Pieces of segments, in order.
    pending: Vec<(Arc<Segment>, u64, Vec<u8>)>,
    current: Arc<Segment>,
    /// The place of the next record in it.
    end: u64,
    /// The next segment, made in advance so that a full disk is known before a batch is taken.
    spare: Option<Arc<Segment>>,
    next_number: u64,
    /// Files that batches since the last sync name.
    files: BTreeSet<String>,
    /// Segments that were full.
    retired: Vec<String>,
}

impl Queue {
    /// The number of a new segment, used up even if it cannot be made: a number is never that of two files.
    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

/// The state of the writing.
#[derive(Debug)]
struct Writer {
    last: Seq,
    /// Segments with something in them that was not synced.
    unsynced: Vec<Arc<Segment>>,
}

#[derive(Debug, Default)]
struct Synced {
    /// Everything up to here outlasts a power loss.
    upto: Seq,
    /// The record that says so.
    mark: Seq,
    is_closed: bool,
}

impl Synced {
    fn covers(&self, last: Seq) -> bool {
        last <= self.upto || last == self.mark
    }
}

/// Locks. A poisoned lock means that a thread panicked over an assertion; what it held is replaced as a whole or not at all.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`lock`].
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// See [`lock`].
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The name of this start of the machine, another one after each power loss (see [`Disk::boot`]).
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// The disk below.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// What was acknowledged and could not be read any more when the store was opened, or at an earlier start. All else is there.
    #[must_use]
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// The reason why nothing can be written any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<StoreError> {
        if self.has_failed.load(Ordering::Acquire) { lock(&self.failed).clone() } else { None }
    }

    /// Notes that what is in memory and what is on disk may differ from now on.
    pub fn fail(&self, error: StoreError) -> StoreError {
        let error = match error {
            // Of what was taken, as by thin storage that has run out: not that nothing was done, and space alone does not mend it.
            StoreError::DiskFull => StoreError::Io {
                what: "cannot bring to the disk what was written".into(),
                error: Arc::new(std::io::ErrorKind::StorageFull.into()),
            },
            error => error,
        };
        lock(&self.failed).get_or_insert_with(|| error.clone());
        self.has_failed.store(true, Ordering::Release);
        error
    }

    /// The same after a sync that failed: what it was to bring to the disk does not count when the store is opened again, but for
    /// what a mark covers (Volume format 8).
    pub fn fail_sync(&self, error: StoreError) -> StoreError {
        self.disk.distrust();
        self.fail(error)
    }

    /// Segments of the log that are made from now on are written with zeros first. A sync of a record takes less time there: the file system
    /// need not note that the space has been written to. For a store that is synced after each batch.
    pub fn expect_syncs(&self) {
        self.writes_segments.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), StoreError> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Makes a batch visible and gives it its place in the order of all. It counts when [`Store::written`] has
    /// returned for its number.
    ///
    /// # Errors
    ///
    /// No room for the log (nothing was done then), or an earlier failure.
    pub fn submit(&self, batch: Batch) -> Result<Seq, StoreError> {
        self.check()?;
        let mut queue = lock(&self.queue);
        if batch.rows.is_empty() {
            return Ok(queue.last);
        }
        let seq = queue.last + 1;
        let mut record = Vec::new();
        Record::Rows(&batch.rows).encode(seq, self.salt, &mut record);
        self.place(&mut queue, seq, record)?;
        queue.files.extend(batch.files);
        let mut layers = write(&self.layers);
        layers.bytes += size_of(&batch.rows);
        layers.active.extend(batch.rows);
        Ok(seq)
    }

    /// Gives a record its place in the log. Marks find room even where batches do not.
    fn place(&self, queue: &mut Queue, seq: Seq, record: Vec<u8>) -> Result<(), StoreError> {
        let length = record.len() as u64;
        let is_mark = length < 64;
        let needed = queue.end + length + if is_mark { 0 } else { ROOM_FOR_MARKS };
        if needed > queue.current.capacity {
            let least = length + 2 * ROOM_FOR_MARKS;
            let spare = match queue.spare.take() {
                Some(spare) if spare.capacity >= least => spare,
                // Larger than a segment; the one that was made in advance stays empty and goes with the old ones.
                other => {
                    queue.retired.extend(other.map(|spare| spare.name.clone()));
                    self.make_segment(queue.take_number(), least.max(self.log_bytes))?
                }
            };
            let header = spare.header(seq, &self.boot, self.salt);
            queue.end = header.len() as u64;
            queue.pending.push((spare.clone(), 0, header));
            let full = std::mem::replace(&mut queue.current, spare);
            queue.retired.push(full.name.clone());
        }
        let at = queue.end;
        match queue.pending.last_mut() {
            Some((segment, from, bytes))
                if Arc::ptr_eq(segment, &queue.current) && *from + bytes.len() as u64 == at =>
            {
                bytes.extend_from_slice(&record);
            }
            _ => queue.pending.push((queue.current.clone(), at, record)),
        }
        queue.end += length;
        queue.last = seq;
        Ok(())
    }

    fn make_segment(&self, number: u64, capacity: u64) -> Result<Arc<Segment>, StoreError> {
        let is_written = self.writes_segments.load(Ordering::Relaxed);
        Ok(Arc::new(Segment::create(&*self.disk, number, capacity, is_written)?))
    }

    /// Returns when a batch outlasts the process.
    ///
    /// # Errors
    ///
    /// The log could not be written: the store has failed.
    pub fn written(&self, seq: Seq) -> Result<(), StoreError> {
        if self.written.load(Ordering::Acquire) >= seq {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        if writer.last >= seq { Ok(()) } else { self.write_pending(&mut writer) }
    }

    /// Writes for all that wait behind the first caller.
    fn write_pending(&self, writer: &mut Writer) -> Result<(), StoreError> {
        self.check()?;
        let (pending, last) = {
            let mut queue = lock(&self.queue);
            (std::mem::take(&mut queue.pending), queue.last)
        };
        for (segment, at, bytes) in pending {
            if !writer.unsynced.last().is_some_and(|s| Arc::ptr_eq(s, &segment)) {
                writer.unsynced.push(segment.clone());
            }
            let result = segment.file.write_at(at, &bytes);
            result.map_err(|error| {
                self.fail(StoreError::io(format!("cannot write {}", segment.name))(error))
            })?;
        }
        writer.last = last;
        self.written.store(last, Ordering::Release);
        Ok(())
    }

    /// Forces the log onto the disk, without the files that it names: what reservations need.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn sync_log(&self) -> Result<(), StoreError> {
        let segments = {
            let mut writer = lock(&self.writer);
            self.write_pending(&mut writer)?;
            writer.unsynced.clone()
        };
        for segment in &segments {
            let result = segment.file.sync();
            result.map_err(|error| {
                self.fail_sync(StoreError::io(format!("cannot sync {}", segment.name))(error))
            })?;
        }
        // The last one may have been written to meanwhile; those before it not.
        let mut writer = lock(&self.writer);
        let keep = segments.last().map(|s| s.number);
        writer.unsynced.retain(|s| keep.is_none_or(|keep| s.number >= keep));
        Ok(())
    }

    /// Returns when a batch outlasts a power loss.
    ///
    /// # Errors
    ///
    /// The disk failed, or has no room for what is outstanding: the store has failed.
    pub fn sync(&self, seq: Seq) -> Result<(), StoreError> {
        self.sync_and_mark(seq, false)
    }

    fn sync_and_mark(&self, seq: Seq, is_last: bool) -> Result<(), StoreError> {
        let mut synced = lock(&self.synced);
        if synced.covers(seq) && !is_last || synced.is_closed {
            return Ok(());
        }
        self.check()?;
        let (upto, files) = {
            let mut queue = lock(&self.queue);
            (queue.last, std::mem::take(&mut queue.files))
        };
        self.sync_data(files)?;
        let mark = {
            let mut queue = lock(&self.queue);
            let seq = queue.last + 1;
            let mut record = Vec::new();
            Record::Mark { upto, is_last }.encode(seq, self.salt, &mut record);
            self.place(&mut queue, seq, record).map_err(|error| self.fail(error))?;
            seq
        };
        self.sync_log()?;
        *synced = Synced { upto, mark, is_closed: is_last };
        Ok(())
    }

    /// Syncs files with data, and that they have their names: of rows that count without that. What batches name is synced before they count.
    ///
    /// # Errors
    ///
    /// The disk's: the store has failed.
    pub fn sync_data(&self, files: BTreeSet<String>) -> Result<(), StoreError> {
        self.check()?;
        self.sync_files(files).map_err(|error| self.fail_sync(error))
    }

    fn sync_files(&self, files: BTreeSet<String>) -> Result<(), StoreError> {
        let mut folders: BTreeSet<&str> = BTreeSet::new();
        for name in &files {
            // A folder may be new, and so those above it.
            let mut folder = folder_of(name);
            while folders.insert(folder) && !folder.is_empty() {
                folder = folder_of(folder);
            }
        }
        let names: Vec<String> = files.iter().cloned().collect();
        self.disk.sync_files(&names).map_err(StoreError::io("cannot sync files of data"))?;
        for folder in folders {
            self.disk
                .sync_folder(folder)
                .map_err(StoreError::io(format!("cannot sync the folder '{folder}'")))?;
        }
        Ok(())
    }

    /// The last batch that outlasts a power loss, as do all before it.
    #[must_use]
    pub fn synced(&self) -> Seq {
        lock(&self.synced).upto
    }

    /// The number of the last batch.
    #[must_use]
    pub fn last(&self) -> Seq {
        lock(&self.queue).last
    }

    /// True if it is time for a checkpoint: the rows in memory have as many bytes as a segment, or the log has many files.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        // Whoever holds the lock is making one.
        let has_many = || self.old.try_lock().is_ok_and(|old| old.len() > MAX_OLD_SEGMENTS);
        read(&self.layers).bytes > self.log_bytes || has_many()
    }

    /// Moves rows from memory into the B-tree, and lets go of the log that has them. Others go on meanwhile.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        let mut old = lock(&self.old);
        let upto = {
            // Queue before layers, as in submit: so the rows are those up to this number, exactly.
            let mut queue = lock(&self.queue);
            let mut layers = write(&self.layers);
            if layers.frozen.is_empty() {
                layers.frozen = Arc::new(std::mem::take(&mut layers.active));
                layers.bytes = 0;
            } else {
                // An earlier attempt failed for lack of space: all of it together.
                let newer = std::mem::take(&mut layers.active);
                Arc::make_mut(&mut layers.frozen).extend(newer);
                layers.bytes = 0;
            }
            old.append(&mut queue.retired);
            queue.last
        };
        self.sync(upto)?;
        let frozen = read(&self.layers).frozen.clone();
        match self.with_btree(|btree| btree.take(&frozen, upto)) {
            Ok(()) => {}
            // The rows stay in memory and in the log, until there is space.
            Err(StoreError::DiskFull) => return Err(StoreError::DiskFull),
            // So they do where a part of the B-tree is damaged: what does not need that part is served, for as long as memory is bounded.
            Err(error @ StoreError::Damaged { .. }) if size_of(&frozen) < MAX_LAYERS * self.log_bytes => {
                return Err(error);
            }
            Err(error) => return Err(self.fail_sync(error)),
        }
        write(&self.layers).frozen = Arc::default();
        let mut result = Ok(());
        // One that stays has nothing that counts any more, and goes with the next checkpoint.
        let let_go = |name: &String| match self.damaged.contains(name) {
            true => self.disk.rename(name, &format!("{ASIDE}{name}")),
            false => self.disk.remove(name),
        };
        old.retain(|name| match let_go(name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                result = Err(StoreError::io(format!("cannot remove {name}"))(error));
                true
            }
            _ => false,
        });
        result
    }

    /// Lets go of the files, as another store is going to be opened on them. Only after a failure, whose error is what
    /// everything answers from now on.
    pub fn shut(&self) {
        let _ = self.fail(StoreError::Io {
            what: "this store".into(),
            error: Arc::new(std::io::Error::other("it was opened again since")),
        });
        // Whoever is writing comes to an end first.
        let (_checkpoint, _synced, _writer) = (lock(&self.old), lock(&self.synced), lock(&self.writer));
        *write(&self.btree) = None;
    }

    fn with_btree<T>(&self, f: impl FnOnce(&BTree) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match &*read(&self.btree) {
            Some(btree) => f(btree),
            None => Err(self.failure().expect("it was shut because it had failed")),
        }
    }

    /// Syncs if there is something to sync; says whether there was.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn sync_all(&self) -> Result<bool, StoreError> {
        let last = self.last();
        // The last mark is a record too, and needs no sync of its own.
        if lock(&self.synced).covers(last) {
            return Ok(false);
        }
        self.sync(last)?;
        Ok(true)
    }

    /// Makes the next segment of the log in advance, if there is none.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn prepare(&self) -> Result<(), StoreError> {
        let number = {
            let mut queue = lock(&self.queue);
            if queue.spare.is_some() {
                return Ok(());
            }
            queue.take_number()
        };
        // Nobody waits for the disk meanwhile.
        let made = self.make_segment(number, self.log_bytes)?;
        let mut queue = lock(&self.queue);
        // A batch may have needed one sooner, which comes later by its number: then this one stays empty, and goes with the old ones.
        if queue.spare.is_none() && queue.current.number < number {
            queue.spare = Some(made);
        } else {
            queue.retired.push(made.name.clone());
        }
        Ok(())
    }

    /// Makes a checkpoint and notes that nothing follows.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn close(&self) -> Result<(), StoreError> {
        self.checkpoint()?;
        self.sync_and_mark(self.last(), true)
    }
}

fn size_of(rows: &Layer) -> u64 {
    rows.iter().map(|(key, value)| (key.0.len() + value.as_ref().map_or(0, |v| v.len())) as u64).sum()
}
