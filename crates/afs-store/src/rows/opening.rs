//! Opening a store: what it has to know of its owner's rows, what counts of what earlier runs have left, and the segment of the log that this
//! run begins with. How the log is read is left to `log`.

use super::btree::{BTree, FORMAT};
use super::log::{self, Segment};
use super::recovery;
use super::{Batch, Key, Layer, Layers, Options, Queue, Store, Writer, lock, size_of};
use crate::StoreError;
use crate::disk::Disk;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

/// The facts that a store has to know of its owner's rows.
pub trait Schema: fmt::Debug + Send + Sync {
    /// The highest version of the format that the owner knows, at least 2. A store of a higher one is refused. New stores are of version 2,
    /// until [`Store::set_version`].
    fn version(&self) -> u64 {
        FORMAT
    }

    /// True if a row is a reservation: numbers up to which may be given out, that count even where the batch they came
    /// in does not.
    fn is_reservation(&self, _key: &Key) -> bool {
        false
    }

    /// Returns one reservation that covers both.
    fn larger_reservation(&self, _a: Option<&[u8]>, b: &[u8]) -> Vec<u8> {
        b.to_vec()
    }

    /// The files in which the data may be that a row speaks of, which must be synced before the row counts after a power loss.
    fn files_of(&self, _key: &Key, _row: &[u8]) -> Vec<String> {
        Vec::new()
    }
}

/// Bytes of a first segment for which there is room on a disk that others have filled, tried in this order.
const SMALL_SEGMENTS: [u64; 2] = [1 << 20, 64 << 10];

/// The segment that a start begins with: a smaller one where the disk is so full that there is no room for one of the usual
/// size. What is there can be read then, and removed.
fn first_segment(disk: &dyn Disk, number: u64, log_bytes: u64) -> Result<Segment, StoreError> {
    let smaller = SMALL_SEGMENTS.iter().copied().filter(|&bytes| bytes < log_bytes);
    let mut result = Segment::create(disk, number, log_bytes, false);
    for bytes in smaller {
        if !matches!(result, Err(StoreError::DiskFull)) {
            break;
        }
        result = Segment::create(disk, number, bytes, false);
    }
    result
}

/// Removes segments that earlier runs have not used, and cuts the unused ends of others. Segments that cannot be removed stay in `unused`. A
/// process that is killed soon after each start leaves two segments each time, and the next start would read them to the end. Failures and
/// power losses do no harm here, because nothing in these parts counts. If the disk has room, this run's segment is durable before. If it
/// has none, a removed segment has no header, and a cut one has nothing behind its end.
fn trim(disk: &dyn Disk, unused: &mut Vec<String>, ends: &[(String, u64)]) {
    unused.retain(|name| disk.remove(name).is_err());
    for (name, end) in ends {
        let _ = disk.open(name).and_then(|file| file.set_length(*end));
    }
}

impl Store {
    /// Opens what is there, with all that counts of the log; or makes an empty one.
    ///
    /// # Errors
    ///
    /// The disk fails or is full; what is there is damaged, or of a newer version.
    pub fn open(disk: Arc<dyn Disk>, options: Options, schema: &dyn Schema) -> Result<Self, StoreError> {
        let Options { cache_bytes, log_bytes } = options;
        let btree = BTree::open(&disk, cache_bytes, schema.version())?;
        let mut recovered = recovery::recover(&*disk, btree.checkpoint()?, schema)?;
        recovered.losses.extend(btree.refusal().cloned());
        let boot = log::boot(&*disk)?;
        let mut active = Layer::new();
        for rows in recovered.rows {
            active.extend(rows);
        }
        // The next mark will cover what the last run did not come to sync: its log now, the files it names then.
        disk.sync_files(&recovered.old).map_err(|error| {
            disk.distrust();
            StoreError::io("cannot sync the log")(error)
        })?;
        let rows = active.iter().filter_map(|(key, row)| Some((key, row.as_deref()?)));
        let files = rows.flat_map(|(key, row)| schema.files_of(key, row)).collect();
        let bytes = size_of(&active);
        let mut current = first_segment(&*disk, recovered.next_number, log_bytes);
        if matches!(current, Err(StoreError::DiskFull)) {
            // Not a block is left: what the last run had in advance has its own.
            trim(&*disk, &mut recovered.unused, &recovered.ends);
            current = first_segment(&*disk, recovered.next_number, log_bytes);
        }
        let current = Arc::new(current?);
        let salt = RandomState::new().build_hasher().finish() as u32;
        let header = current.header(recovered.last + 1, &boot, salt);
        let queue = Queue {
            last: recovered.last,
            end: header.len() as u64,
            pending: vec![(current.clone(), 0, header)],
            current,
            spare: None,
            next_number: recovered.next_number + 1,
            files,
            retired: Vec::new(),
        };
        let store = Self {
            disk,
            btree: RwLock::new(Some(btree)),
            layers: RwLock::new(Layers { active, frozen: Arc::default(), bytes }),
            queue: Mutex::new(queue),
            writer: Mutex::new(Writer { last: recovered.last, unsynced: Vec::new() }),
            written: AtomicU64::new(recovered.last),
            synced: Mutex::default(),
            old: Mutex::new(recovered.old),
            failed: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            damaged: recovered.damaged,
            losses: recovered.losses,
            boot,
            salt,
            log_bytes,
            writes_segments: AtomicBool::new(false),
            was_unclean: !recovered.is_clean,
            is_other_boot: recovered.is_other_boot,
        };
        // Reservations of what did not count otherwise come first into the new log, whose first number makes what
        // has it in the old one void.
        let mut batch = Batch::default();
        for (key, value) in recovered.reservations {
            let found = store.get(&key)?;
            batch.put(key, schema.larger_reservation(found.as_deref(), &value));
        }
        store.submit(batch)?;
        store.sync_log()?;
        trim(&*store.disk, &mut recovered.unused, &recovered.ends);
        lock(&store.old).append(&mut recovered.unused);
        Ok(store)
    }

    /// The version of the format (Volume format 1).
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn version(&self) -> Result<u64, StoreError> {
        self.with_btree(BTree::version)
    }

    /// Says that the rows are of a version from now on, so that programs that do not know it refuse the store. What makes them so has to be
    /// synced before.
    ///
    /// # Errors
    ///
    /// The disk's. If it is full, or a part of the B-tree is damaged, the version stays as it was.
    pub fn set_version(&self, version: u64) -> Result<(), StoreError> {
        match self.with_btree(|btree| btree.set_version(version)) {
            Err(error @ (StoreError::DiskFull | StoreError::Damaged { .. })) => Err(error),
            Err(error) => Err(self.fail_sync(error)),
            Ok(()) => Ok(()),
        }
    }
}
