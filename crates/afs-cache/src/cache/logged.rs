//! Data in the index's log. Where a program is promised that what it has closed outlasts a loss of power, and that is little, its data are in a row
//! beside the one with the promise: so the promise takes one sync, that of the log. Soon after, the keeper syncs the backing files, and these rows go.
//!
//! A start after a loss of power puts the data of such rows back into the backing files. What of them is still dirty, the other rows say. After the
//! death of a process the backing files have all that was written.
//!
//! There is one such row of a file at most, with all that was dirty of it at its last promise. What is written into it from then on
//! is in the backing file alone, which is synced before a row tells of it.

use super::Shared;
use crate::CacheError;
use crate::ranges::RangeSet;
use crate::records::{self, FileRow};
use afs_store::{Batch, Key, StoreError, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Data by their places in a file.
pub(crate) type Pieces = Vec<(u64, Vec<u8>)>;

/// The rows with data.
#[derive(Debug)]
pub(crate) struct Logged {
    /// Bytes in these rows, at most: they are in memory too. Beyond that, promises wait for the backing files.
    max_bytes: u64,
    /// True from the first promise on that may put its data there.
    is_used: AtomicBool,
    state: Mutex<State>,
    /// Held by who syncs the backing files.
    syncing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The rows by the numbers of their files: their own numbers and bytes.
    rows: BTreeMap<u64, (u64, u64)>,
    bytes: u64,
    last: u64,
    /// Names of files with data that no promise has synced.
    unsynced: BTreeSet<String>,
}

impl State {
    fn remove(&mut self, number: u64) -> Option<Key> {
        let (row, bytes) = self.rows.remove(&number)?;
        self.bytes -= bytes;
        Some(records::logged(number, row))
    }
}

impl Logged {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, is_used: false.into(), state: Mutex::default(), syncing: Mutex::default() }
    }

    /// True if data may be in the log by now.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// The next sync of backing files is to have this one too.
    pub(crate) fn note_unsynced(&self, name: String) {
        lock(&self.state).unsynced.insert(name);
    }

    /// Puts data of a file into a batch, in place of those that are there of it. Returns the row's number and its bytes; `None` if there is no room.
    pub(crate) fn put(&self, number: u64, pieces: Option<&Pieces>, batch: &mut Batch) -> Option<(u64, u64)> {
        let mut state = lock(&self.state);
        if let Some((row, _)) = state.rows.get(&number) {
            batch.delete(records::logged(number, *row));
        }
        let pieces = pieces?;
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if state.bytes + bytes > self.max_bytes {
            return None;
        }
        state.last += 1;
        records::put(batch, records::logged(number, state.last), records::data_row(pieces));
        Some((state.last, bytes))
    }

    /// The batch was committed: a file has this row now, or none. Its data are in the file with this name. True if there are many by now.
    pub(crate) fn note(&self, number: u64, row: Option<(u64, u64)>, name: String) -> bool {
        let mut state = lock(&self.state);
        state.remove(number);
        let Some((row, bytes)) = row else { return false };
        state.rows.insert(number, (row, bytes));
        state.bytes += bytes;
        state.unsynced.insert(name);
        state.bytes > self.max_bytes / 2
    }
}

impl Shared {
    /// Data may be in the log from now on, each with a sync. What was written before is synced by its own rows.
    pub(crate) fn begin_logging(&self) {
        self.logged.is_used.store(true, Ordering::Relaxed);
        self.store.expect_syncs();
    }

    /// Syncs the backing files whose data are in the log or were promised to nobody yet, and lets go of those in the log.
    pub(crate) fn sync_logged(&self) -> Result<(), CacheError> {
        let _one = lock(&self.logged.syncing);
        let (rows, files) = {
            let mut state = lock(&self.logged.state);
            (state.rows.clone(), std::mem::take(&mut state.unsynced))
        };
        if !files.is_empty() {
            self.store.sync_data(files).map_err(CacheError::store(&self.folder))?;
        }
        let mut batch = Batch::default();
        let mut state = lock(&self.logged.state);
        for (number, row) in rows {
            // A later one has data that may have been written since.
            if state.rows.get(&number) == Some(&row)
                && let Some(key) = state.remove(number)
            {
                batch.delete(key);
            }
        }
        drop(state);
        self.commit(batch)
    }

    /// Puts data that the log has of a file back into its backing file, as far as they are dirty still.
    pub(crate) fn put_back(&self, row: &FileRow, pieces: &Pieces) -> Result<(), CacheError> {
        let mut dirty = RangeSet::new();
        self.store
            .scan::<StoreError>(&records::dirty_of(row.number), |key, row| {
                dirty.extend(&records::dirty_row(key, row).map(|(_, range)| range).into_iter().collect());
                Ok(())
            })
            .map_err(CacheError::store(&self.folder))?;
        let in_slot = row.is_small.then(|| row.length.max(dirty.end()));
        let put = || {
            let file = match self.data.open(row.number, in_slot) {
                // Its name, or the slab's length, was not synced.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.data.create_apart(row.number)?
                }
                found => found?.0,
            };
            for (start, bytes) in pieces {
                for part in dirty.within(*start..start + bytes.len() as u64) {
                    let (from, to) = ((part.start - start) as usize, (part.end - start) as usize);
                    file.write_at(part.start, &bytes[from..to])?;
                }
            }
            Ok(())
        };
        put().map_err(|error| CacheError::io(&self.folder, "cannot put back what was written", error))
    }
}
