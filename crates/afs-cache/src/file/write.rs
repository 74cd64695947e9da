//! Changing a file of the cache: writes, cuts, and what the kernel writes by itself.

use super::{CacheFile, NEAR_AHEAD_WHEN_FULL, State};
use crate::CacheError;
use crate::ranges::RangeSet;
use crate::records::{self, Writer};
use afs_store::{Batch, lock, read, write};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Dirty ranges of a file at most; beyond, the two that are nearest become one if what is between them is there. A
/// store is a call for each.
const DIRTY_RANGES_MAX: usize = 4096;

impl State {
    fn set_writer(&mut self, writer: &Writer) {
        if self.writer != *writer {
            self.writer.clone_from(writer);
            self.is_row_old = true;
        }
    }
}

impl CacheFile {
    /// Writes at a position. It outlasts the process when this returns.
    ///
    /// # Errors
    ///
    /// The disk is full, or fails. Some of it may have been written.
    pub fn write(&self, position: u64, bytes: &[u8], writer: &Writer) -> Result<(), CacheError> {
        self.write_locked(&mut lock(&self.changing), position, bytes, writer)
    }

    /// The same at the end, wherever that is; says where that was.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn append(&self, bytes: &[u8], writer: &Writer) -> Result<u64, CacheError> {
        let mut logged = lock(&self.changing);
        let position = self.length();
        self.write_locked(&mut logged, position, bytes, writer)?;
        Ok(position)
    }

    fn write_locked(
        &self,
        logged: &mut RangeSet,
        position: u64,
        bytes: &[u8],
        writer: &Writer,
    ) -> Result<(), CacheError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.shared.check_open()?;
        let range = position..position + bytes.len() as u64;
        self.note_written();
        let was_dirty = self.is_dirty();
        let length = self.length();
        {
            let mut state = write(&self.state);
            state.is_row_old |= !was_dirty;
            state.set_writer(writer);
        }
        // Clean bytes that are written over count as dirty before they are; others after they are: what is logged is
        // never about bytes that nobody has, and what is there and clean is never anything but the server's.
        let over: Vec<_> = {
            let state = read(&self.state);
            let new = logged.missing(range.clone());
            new.into_iter().flat_map(|new| state.present.within(new).collect::<Vec<_>>()).collect()
        };
        // What was cut off may still be there, where this leaves a gap.
        let has_gap = length < range.start;
        for part in &over {
            self.log(logged, part.clone(), false)?;
        }
        if let Err(error) = self.put(position, bytes) {
            let mut state = write(&self.state);
            for part in over {
                state.dirty.insert(part);
            }
            drop(state);
            self.keep_dirty();
            return Err(error);
        }
        {
            let mut state = write(&self.state);
            // What was left out between the old end and here is zeros.
            if length < range.start {
                state.present.insert(length..range.start);
                state.zeros.insert(length..range.start);
            }
            let written = state.present.insert(range.clone()) + state.zeros.remove(range.clone());
            self.shared.grow(written);
            state.dirty.insert(range.clone());
            state.unconfirmed.remove(range.clone());
            self.length.fetch_max(range.end, Ordering::AcqRel);
            self.merge_dirty(&mut state);
            self.note_presence(&state);
        }
        self.keep_dirty();
        self.log(logged, range, has_gap)
    }

    /// Cuts the file, or adds zeros.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn truncate(&self, length: u64, writer: &Writer) -> Result<(), CacheError> {
        let mut logged = lock(&self.changing);
        let old = self.length();
        if length == old {
            return Ok(());
        }
        self.shared.check_open()?;
        {
            let mut state = write(&self.state);
            state.set_writer(writer);
            state.is_row_old = true;
            if length < old {
                state.truncated_to = state.truncated_to.min(length);
                self.take_away(&mut state, length..u64::MAX);
                state.dirty.remove(length..u64::MAX);
                state.storing.remove(length..u64::MAX);
                state.unconfirmed.remove(length..u64::MAX);
            }
        }
        if length < old {
            self.length.store(length, Ordering::Release);
            self.losses.fetch_add(1, Ordering::AcqRel);
            self.keep_dirty();
            // The rows first: they must not speak of bytes that are gone.
            let mut batch = Batch::default();
            for cut in logged.touching(&(length..u64::MAX)) {
                if cut.start >= length {
                    batch.delete(records::dirty(self.number, cut.start));
                } else {
                    records::put(&mut batch, records::dirty(self.number, cut.start), length.to_be_bytes());
                }
            }
            logged.remove(length..u64::MAX);
            self.submit(batch)?;
        }
        self.file.set_length(length).map_err(|error| self.failed("cannot cut a file", error))?;
        {
            let mut state = write(&self.state);
            if length > old {
                state.present.insert(old..length);
                state.zeros.insert(old..length);
                self.length.store(length, Ordering::Release);
            }
            self.note_presence(&state);
        }
        self.keep_dirty();
        self.note_clean();
        let mut batch = Batch::default();
        // If it has outgrown its slot just now, what was dirty there is to be synced where it is now.
        batch.files.extend((length > old).then(|| self.data_name()));
        self.submit(batch)
    }

    /// Lets the kernel write to the backing file without our seeing it, until [`Self::take_back`] has said as often as this that it is
    /// over.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn lend(&self, writer: &Writer) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        self.file.set_apart().map_err(|error| self.failed("cannot make a file", error))?;
        {
            let mut state = write(&self.state);
            state.set_writer(writer);
            state.lends += 1;
            state.is_row_old = true;
        }
        self.keep_dirty();
        self.submit(Batch::default())
    }

    /// Takes notice of what the kernel may have written for `writer` since it was lent to them. If it may, everything counts as dirty, and
    /// as the writer's, even if others have written meanwhile. With `is_over`, one of those who have lent it does so no more.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn take_back(&self, has_changed: bool, is_over: bool, writer: &Writer) -> Result<(), CacheError> {
        let mut logged = lock(&self.changing);
        let length = self.file.length().map_err(|error| self.failed("cannot ask for a length", error))?;
        let old = self.length();
        {
            let mut state = write(&self.state);
            state.is_row_old = true;
            if has_changed || length != old {
                state.set_writer(writer);
                if length < old {
                    state.truncated_to = state.truncated_to.min(length);
                    self.take_away(&mut state, length..u64::MAX);
                    state.dirty.remove(length..u64::MAX);
                    state.storing.remove(length..u64::MAX);
                }
                self.length.store(length, Ordering::Release);
                self.losses.fetch_add(1, Ordering::AcqRel);
                let grown = state.present.insert(0..length) + state.zeros.remove(0..length);
                self.shared.grow(grown);
                state.dirty.insert(0..length);
                self.note_presence(&state);
            }
            if is_over {
                state.lends = state.lends.saturating_sub(1);
            }
        }
        self.keep_dirty();
        if has_changed || length != old {
            logged.remove(length..u64::MAX);
            self.log(&mut logged, 0..length, true)?;
        }
        self.submit(Batch::default())?;
        self.note_clean();
        Ok(())
    }

    /// Among very many ranges, those that are near each other become one: stores are calls.
    fn merge_dirty(&self, state: &mut State) {
        while state.dirty.count() > DIRTY_RANGES_MAX {
            let ranges: Vec<_> = state.dirty.iter().collect();
            let gaps = ranges.windows(2).map(|pair| pair[0].end..pair[1].start);
            let Some(gap) =
                gaps.filter(|gap| state.present.contains(gap)).min_by_key(|gap| gap.end - gap.start)
            else {
                return;
            };
            // Some at once, so that this is seldom.
            let least = (gap.end - gap.start) * 2;
            for pair in ranges.windows(2) {
                let gap = pair[0].end..pair[1].start;
                if gap.end - gap.start <= least && state.present.contains(&gap) {
                    state.dirty.insert(gap);
                }
            }
        }
    }

    /// Puts a dirty range into the index. If the data of what was promised may be in the log, only some rows need the backing file to be synced before
    /// they count after a loss of power, as `needs_sync` says: else a promise that comes first sees to that.
    fn log(&self, logged: &mut RangeSet, range: Range<u64>, needs_sync: bool) -> Result<(), CacheError> {
        if logged.contains(&range) && !read(&self.state).is_row_old {
            return Ok(());
        }
        let mut batch = Batch::default();
        for old in logged.touching(&range) {
            batch.delete(records::dirty(self.number, old.start));
        }
        let new: Vec<_> = logged.missing(range.clone()).into_iter().collect();
        logged.insert(range.clone());
        if let Some(whole) = logged.around(range.start) {
            records::put(&mut batch, records::dirty(self.number, whole.start), whole.end.to_be_bytes());
        }
        match self.shared.logged.is_used() && !needs_sync && !self.is_promised() {
            true => self.shared.logged.note_unsynced(self.data_name()),
            false => batch.files.push(self.data_name()),
        }
        // What is not in the index has to be put there by the next write.
        self.submit(batch).inspect_err(|_| {
            for part in new {
                logged.remove(part);
            }
        })
    }

    /// The index keeps it as long as it is dirty. With `changing` held.
    fn keep_dirty(&self) {
        if !self.is_kept.swap(true, Ordering::AcqRel) && !self.is_forgotten() {
            self.shared.note_dirty(self.key, self.id, true);
        }
    }

    /// The same the other way round. With `changing` held, as above, so that none comes between.
    pub(super) fn note_clean(&self) {
        if !self.is_dirty() && !self.is_lent() && self.is_kept.swap(false, Ordering::AcqRel) {
            self.shared.note_dirty(self.key, self.id, false);
        }
    }

    /// Writes to the backing file; where the disk is full, makes room first. With `changing` held.
    pub(super) fn put(&self, position: u64, bytes: &[u8]) -> Result<(), CacheError> {
        let range = position..position + bytes.len() as u64;
        let first = self.file.write_at(position, bytes);
        let error = match first {
            Ok(()) => return Ok(()),
            Err(error) => self.failed("cannot write a file's data", error),
        };
        if !error.is_full() || !(self.shared.make_room(bytes.len() as u64) || self.make_room_in(range)) {
            return Err(error);
        }
        let again = self.file.write_at(position, bytes);
        again.map_err(|error| self.failed("cannot write a file's data", error))
    }

    /// Lets go of what is stored or was read of this file, but for a range that is being written: where one large file is copied, there is
    /// nothing else. Says whether something went.
    fn make_room_in(&self, range: Range<u64>) -> bool {
        let keep = [self.near_reader(NEAR_AHEAD_WHEN_FULL), range];
        self.let_go_held(&keep).is_ok_and(|gone| gone > 0)
    }
}
