//! Promises that what was written outlasts a loss of power: the backing file is synced before they count, or the data, if they are little, are in the
//! log with the promise ([`crate::cache::logged`]).

use super::CacheFile;
use crate::CacheError;
use crate::cache::logged::Pieces;
use afs_store::{Batch, lock, read, write};

/// Bytes of a file in the log at most.
const LOGGED_MAX: u64 = 64 << 10;
/// Ranges of a file in the log at most: each is read by itself.
const LOGGED_RANGES_MAX: usize = 64;

impl CacheFile {
    /// Promises that what is dirty outlasts a loss of power, from the cache's next sync on: the next start stores it then, as after the end
    /// of a process, and does not put it aside. It was written last at this time, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn promise(&self, written: u32) -> Result<(), CacheError> {
        self.promise_with(written, false)
    }

    /// The same, and the sync, for all whose promises wait for one. It waits for the disk. Little data go into the log, so that it costs one sync; up to two
    /// segments of the log have such data, and as much memory.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn promise_and_sync(&self, written: u32) -> Result<(), CacheError> {
        self.shared.begin_logging();
        self.promise_with(written, true)?;
        self.shared.sync()
    }

    fn promise_with(&self, written: u32, is_logged: bool) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        {
            let mut state = write(&self.state);
            if !state.is_storing && !self.wants_store(&state) {
                return Ok(());
            }
            state.is_promised = true;
            state.written = written;
            state.is_row_old = true;
        }
        let mut batch = Batch::default();
        let pieces = if is_logged { self.little_data()? } else { None };
        let row = self.shared.logged.put(self.number, pieces.as_ref(), &mut batch);
        if row.is_none() {
            // What was written over since the last sync is in no other batch.
            batch.files.push(self.data_name());
        }
        self.submit(batch)?;
        if self.shared.logged.note(self.number, row, self.data_name()) {
            self.shared.wake_keeper();
        }
        Ok(())
    }

    /// What is dirty, if it is little and the kernel does not change it meanwhile. With `changing` held.
    fn little_data(&self) -> Result<Option<Pieces>, CacheError> {
        let dirty = {
            let state = read(&self.state);
            if state.lends > 0 {
                return Ok(None);
            }
            let mut dirty = state.dirty.clone();
            dirty.extend(&state.storing);
            dirty
        };
        if dirty.total() > LOGGED_MAX || dirty.count() > LOGGED_RANGES_MAX {
            return Ok(None);
        }
        let mut pieces = Pieces::new();
        for range in dirty.iter() {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            self.read_for_store(range.start, &mut bytes)?;
            pieces.push((range.start, bytes));
        }
        Ok(Some(pieces))
    }
}
