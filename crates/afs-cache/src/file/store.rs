//! Storing of a file's dirty data: what is to be stored, and what became of it. One store goes on at a time: what it has taken
//! counts as dirty until the server has answered, and what is written meanwhile is for the next one.

use super::{CacheFile, MIXED, NOT_CUT};
use crate::CacheError;
use crate::ranges::RangeSet;
use crate::records::{self, SentStore, Writer};
use afs_store::{Batch, lock, write};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The changes that are to be stored, in the order in which they are to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirty {
    /// The version that was written on.
    pub version: u64,
    /// The length that it had at the server when that last answered.
    pub server_length: u64,
    /// The length that the file is to have.
    pub length: u64,
    /// The length to which it is to be cut before anything is stored: what is between there and the end, and in no range
    /// below, must become zeros.
    pub cut_first: Option<u64>,
    /// The ranges that were written, from the lowest up.
    pub ranges: Vec<Range<u64>>,
    /// The writer, the last one.
    pub writer: Writer,
}

impl CacheFile {
    /// Takes what is dirty, to be stored; `None` if nothing is. One store goes on at a time, until
    /// [`Self::end_store`].
    ///
    /// # Panics
    ///
    /// If one goes on.
    pub fn begin_store(&self) -> Option<Dirty> {
        let mut state = write(&self.state);
        assert!(!state.is_storing, "one store at a time");
        if !self.wants_store(&state) {
            return None;
        }
        let length = self.length();
        let ranges = std::mem::take(&mut state.dirty);
        let cut = state.truncated_to;
        // A store that was not answered may have made it longer there.
        let most = state.sent.map_or(0, |sent| sent.length).max(state.server_length);
        let zeros = cut..most.min(length);
        let cut_first = (cut < most && !ranges.contains(&zeros)).then_some(cut);
        state.storing_truncated_to = std::mem::replace(&mut state.truncated_to, NOT_CUT);
        state.is_storing = true;
        let dirty = Dirty {
            version: self.version(),
            server_length: state.server_length,
            length,
            cut_first,
            ranges: ranges.iter().collect(),
            writer: state.writer.clone(),
        };
        state.storing = ranges;
        Some(dirty)
    }

    /// Reads for a store: what was cut away meanwhile reads as zeros.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn read_for_store(&self, position: u64, out: &mut [u8]) -> Result<(), CacheError> {
        let n = self
            .file
            .read_at(position, out)
            .map_err(|error| self.failed("cannot read a file's data", error))?;
        out[n..].fill(0);
        Ok(())
    }

    /// Notes what a call of a store does, before the call is sent, to know it again after a crash.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn note_sent(&self, sent: SentStore) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        {
            let mut state = write(&self.state);
            state.sent = Some(sent);
            state.written = sent.modified;
            state.is_row_old = true;
        }
        self.submit(Batch::default())
    }

    /// Notes the answer to a call of a store: this range is at the server, in this version, and the file has that length
    /// there. Returns whether the version is the next one: otherwise others have changed the file too, and it is to be opened
    /// anew when the store has ended.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn note_stored(
        &self,
        range: Range<u64>,
        version: u64,
        server_length: u64,
    ) -> Result<bool, CacheError> {
        let mut logged = lock(&self.changing);
        let is_next = self.version().checked_add(1) == Some(version);
        let mut batch = Batch::default();
        {
            let mut state = write(&self.state);
            state.sent = None;
            state.is_row_old = true;
            state.storing_truncated_to = NOT_CUT;
            state.server_length = server_length;
            state.storing.remove(range.clone());
            self.version.store(if is_next { version } else { MIXED }, Ordering::Release);
            state.is_promised &= self.wants_store(&state) || !state.storing.is_empty();
            // The rows become what is still dirty.
            for old in logged.touching(&range) {
                batch.delete(records::dirty(self.number, old.start));
                logged.remove(old.clone());
                for still in [&state.dirty, &state.storing] {
                    for part in still.within(old.clone()) {
                        logged.insert(part);
                    }
                }
                for part in logged.within(old) {
                    records::put(&mut batch, records::dirty(self.number, part.start), part.end.to_be_bytes());
                }
            }
        }
        self.submit(batch)?;
        Ok(is_next)
    }

    /// Takes the dirty data as written on this version, as it turned out: a store that was on its way when the process ended
    /// has led to it. Everything is still to be stored, as nobody knows how much of it was that store's.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn adopt(&self, version: u64, server_length: u64) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        {
            let mut state = write(&self.state);
            state.sent = None;
            state.server_length = server_length;
            state.is_row_old = true;
            self.version.store(version, Ordering::Release);
        }
        self.submit(Batch::default())
    }

    /// A store has ended, well or not: what was taken and not stored is dirty again.
    pub fn end_store(&self) {
        let _changing = lock(&self.changing);
        {
            let mut state = write(&self.state);
            let left = std::mem::take(&mut state.storing);
            state.dirty.extend(&left);
            let cut = std::mem::replace(&mut state.storing_truncated_to, NOT_CUT);
            state.truncated_to = state.truncated_to.min(cut);
            state.is_storing = false;
        }
        self.note_clean();
    }

    /// Lets go of what is dirty without storing it: the file is gone at the server.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn discard_dirty(&self) -> Result<(), CacheError> {
        let mut logged = lock(&self.changing);
        let mut batch = Batch::default();
        for range in logged.iter() {
            batch.delete(records::dirty(self.number, range.start));
        }
        *logged = RangeSet::new();
        {
            let mut state = write(&self.state);
            state.dirty = RangeSet::new();
            state.storing = RangeSet::new();
            state.truncated_to = NOT_CUT;
            state.server_length = self.length();
            state.sent = None;
            state.lends = 0;
            state.is_promised = false;
            state.is_row_old = true;
            self.version.store(MIXED, Ordering::Release);
        }
        self.submit(batch)?;
        self.note_clean();
        Ok(())
    }
}
