//! A file of the cache: the data of one version, as far as they are here, and what was written on top.
//!
//! Three things are locked apart: what is there (`state`, for microseconds, never over an I/O), who changes the data
//! (`changing`, over the writing of one piece), and nothing for a reader's `pread`. A reader that has seen its range present
//! finds it changed only by what takes data away; that is counted (`losses`), and he looks again.

use crate::ranges::RangeSet;
use crate::records::{self, FileRow, SentStore};
use crate::cache::Shared;
use crate::{CacheError, FileKey};
use afs_store::disk::DiskFile;
use afs_store::{Batch, lock, read, write};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// The version of data that no server has: of a file that got mixed with others' changes.
const MIXED: u64 = u64::MAX;
/// As [`State::truncated_to`]: it was not cut.
const NOT_CUT: u64 = u64::MAX;
/// How far behind a reader data stay, if there is no room for all: what the kernel may read a second time.
const NEAR_BEHIND: u64 = 1 << 20;
/// And ahead of him: what may have been fetched for him.
const NEAR_AHEAD: u64 = 128 << 20;
/// Dirty ranges of a file at most; beyond, the two that are nearest become one if what is between them is there. A
/// store is a call for each.
const DIRTY_RANGES_MAX: usize = 4096;

/// A file of the cache. See the crate.
#[derive(Debug)]
pub struct CacheFile {
    shared: Arc<Shared>,
    key: FileKey,
    number: u64,
    /// Which opening of the file this is, for the index.
    id: u64,
    file: Arc<dyn DiskFile>,
    length: AtomicU64,
    version: AtomicU64,
    /// Whether all is here: then nothing needs to be looked at.
    is_complete: AtomicBool,
    /// How often data were taken away.
    losses: AtomicU64,
    /// Whether the index knows nothing of it any more: the backing file goes with this.
    is_forgotten: AtomicBool,
    /// Whether the backing file is among the conflicts, and stays.
    is_aside: AtomicBool,
    /// Whether the index keeps it, as it is dirty.
    is_kept: AtomicBool,
    /// Up to where it was read last.
    position: AtomicU64,
    state: RwLock<State>,
    /// Held by who changes data. The dirty ranges that the index has.
    changing: Mutex<RangeSet>,
}

#[derive(Debug)]
struct State {
    server_length: u64,
    truncated_to: u64,
    writer: u32,
    is_lent: bool,
    used: u64,
    sent: Option<SentStore>,
    present: RangeSet,
    /// What is present, and not known yet to be of this version: no row tells of it.
    unconfirmed: RangeSet,
    dirty: RangeSet,
    /// What a store that goes on has taken.
    storing: RangeSet,
    /// How short the file was when that began.
    storing_truncated_to: u64,
    is_storing: bool,
    /// Whether the row in the index says less.
    is_row_old: bool,
}

/// What is to be stored, in the order in which it is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirty {
    /// The version that was written on.
    pub version: u64,
    /// The length that it has at the server.
    pub server_length: u64,
    /// The length that the file is to have.
    pub length: u64,
    /// The length to which it is to be cut before anything is stored: what is between there and the end, and in no range
    /// below, must become zeros.
    pub cut_first: Option<u64>,
    /// What was written, from the lowest up.
    pub ranges: Vec<Range<u64>>,
    /// Whose writes they are, the last one's.
    pub writer: u32,
}

impl CacheFile {
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: FileKey,
        id: u64,
        file: Arc<dyn DiskFile>,
        length: u64,
        row: FileRow,
        dirty: RangeSet,
    ) -> Self {
        let logged = dirty.clone();
        let state = State {
            server_length: row.server_length,
            truncated_to: row.truncated_to,
            writer: row.writer,
            is_lent: row.is_lent,
            used: row.used,
            sent: row.sent,
            present: row.present,
            unconfirmed: RangeSet::new(),
            dirty,
            storing: RangeSet::new(),
            storing_truncated_to: NOT_CUT,
            is_storing: false,
            is_row_old: false,
        };
        let this = Self {
            shared,
            key,
            number: row.number,
            id,
            file,
            length: AtomicU64::new(length),
            version: AtomicU64::new(row.version),
            is_complete: AtomicBool::new(false),
            losses: AtomicU64::new(0),
            is_forgotten: AtomicBool::new(false),
            is_aside: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            position: AtomicU64::new(0),
            state: RwLock::new(state),
            changing: Mutex::new(logged),
        };
        this.note_presence(&read(&this.state));
        this
    }

    // ---- facts

    /// The file.
    #[must_use]
    pub const fn key(&self) -> FileKey {
        self.key
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// The version of the server's data that this is, what is dirty aside.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// How long it is for who reads it here.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// How long it is at the server.
    #[must_use]
    pub fn server_length(&self) -> u64 {
        read(&self.state).server_length
    }

    /// Whether all of it is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Whether there is something to be stored, or being stored.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let state = read(&self.state);
        state.is_storing || self.wants_store(&state)
    }

    /// How many bytes were written and are not at the server.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let state = read(&self.state);
        state.dirty.total() + state.storing.total()
    }

    /// Who has written last.
    #[must_use]
    pub fn writer(&self) -> u32 {
        read(&self.state).writer
    }

    /// The store that was on its way when the process ended.
    #[must_use]
    pub fn sent(&self) -> Option<SentStore> {
        read(&self.state).sent
    }

    /// How many bytes are here.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        read(&self.state).present.total()
    }

    /// The parts of a range that are not here; none beyond the end.
    #[must_use]
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.is_complete() {
            return Vec::new();
        }
        let state = read(&self.state);
        state.present.missing(range.start..range.end.min(self.length()))
    }

    /// Whether all of a range is here, as far as the file goes.
    #[must_use]
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.is_complete() || {
            let state = read(&self.state);
            let end = range.end.min(self.length());
            state.present.contains(&(range.start.min(end)..end))
        }
    }

    /// The modification time of the backing file, in seconds since 1970: when it was last written to, or filled.
    #[must_use]
    pub fn touched(&self) -> Option<u32> {
        use std::os::unix::fs::MetadataExt;
        let metadata = self.file.as_file()?.metadata().ok()?;
        u32::try_from(metadata.mtime()).ok()
    }

    // ---- reading

    /// Reads from a position on, fewer bytes than asked for only at the end. `None` if not all of it is here.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn read_at(&self, position: u64, out: &mut [u8]) -> Option<Result<usize, CacheError>> {
        loop {
            let losses = self.losses.load(Ordering::Acquire);
            let length = self.length();
            let n = usize::try_from(length.saturating_sub(position)).map_or(out.len(), |n| n.min(out.len()));
            if n == 0 {
                return Some(Ok(0));
            }
            let range = position..position + n as u64;
            if !self.is_complete() && !read(&self.state).present.contains(&range) {
                return None;
            }
            let result = self.file.read_at(position, &mut out[..n]);
            if self.losses.load(Ordering::Acquire) != losses {
                continue;
            }
            self.position.store(range.end, Ordering::Relaxed);
            return Some(match result {
                Ok(n) => Ok(n),
                Err(error) => Err(self.failed("cannot read a file's data", error)),
            });
        }
    }

    /// The backing file, if all of the data is in it, for the kernel to read from it. Who holds it keeps this too: data
    /// that it may still read are then not taken away.
    #[must_use]
    pub fn backing(&self) -> Option<&File> {
        let is_whole = self.is_complete() && read(&self.state).unconfirmed.is_empty();
        if is_whole { self.file.as_file() } else { None }
    }

    /// Puts in what came from the server, where nothing is yet. What is beyond the end is left out. Servers tell the version
    /// of data after them: until [`Self::confirm`], what came is read here, and not counted on after a restart.
    ///
    /// # Errors
    ///
    /// The disk is full, or fails. What came before is there.
    pub fn fill(&self, position: u64, bytes: &[u8]) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        let end = (position + bytes.len() as u64).min(self.length());
        if position >= end {
            return Ok(());
        }
        let missing = read(&self.state).present.missing(position..end);
        for part in missing {
            let of = |at: u64| usize::try_from(at - position).expect("within the bytes");
            let piece = &bytes[of(part.start)..of(part.end)];
            self.put(part.start, piece)?;
            let mut state = write(&self.state);
            self.shared.grow(state.present.insert(part.clone()));
            state.unconfirmed.insert(part);
            self.note_presence(&state);
        }
        Ok(())
    }

    /// What was filled and not confirmed.
    #[must_use]
    pub fn unconfirmed(&self) -> RangeSet {
        read(&self.state).unconfirmed.clone()
    }

    /// What was filled of a range is of this version.
    pub fn confirm(&self, range: Range<u64>) {
        let mut state = write(&self.state);
        state.unconfirmed.remove(range);
        state.is_row_old = true;
    }

    /// What was filled of a range is of another version: takes it out again.
    pub fn take_out(&self, range: Range<u64>) {
        let _changing = lock(&self.changing);
        let mut state = write(&self.state);
        let parts: Vec<_> = state.unconfirmed.within(range.clone()).collect();
        for part in parts {
            let mut goes: RangeSet = [part.clone()].into_iter().collect();
            for kept in [&state.dirty, &state.storing] {
                for range in kept.within(part.clone()) {
                    goes.remove(range);
                }
            }
            for range in goes.iter() {
                self.shared.shrink(state.present.remove(range));
            }
        }
        state.unconfirmed.remove(range);
        self.note_presence(&state);
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets go of clean data outside of a range, as there is no room for all. Nothing is let go that the kernel may
    /// read by itself. Says how many bytes went.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn let_go(&self, keep: Range<u64>) -> Result<u64, CacheError> {
        let _changing = lock(&self.changing);
        let parts = {
            let mut state = write(&self.state);
            if state.is_lent || self.is_complete() {
                return Ok(0);
            }
            let mut parts = state.present.clone();
            for kept in [&state.dirty, &state.storing] {
                for range in kept.iter() {
                    parts.remove(range);
                }
            }
            parts.remove(keep);
            // What the server does not have is not there to be fetched again.
            parts.remove(state.server_length.min(state.truncated_to).min(state.storing_truncated_to)..u64::MAX);
            for range in parts.iter() {
                state.unconfirmed.remove(range.clone());
                self.shared.shrink(state.present.remove(range));
            }
            state.is_row_old = true;
            parts
        };
        if parts.is_empty() {
            return Ok(0);
        }
        // The row first: it must not promise what is no longer there.
        self.save()?;
        self.losses.fetch_add(1, Ordering::AcqRel);
        for range in parts.iter() {
            self.file
                .punch(range.start, range.end - range.start)
                .map_err(|error| self.failed("cannot give space back", error))?;
        }
        Ok(parts.total())
    }

    // ---- writing

    /// Writes at a position. It outlasts the process when this returns.
    ///
    /// # Errors
    ///
    /// The disk is full, or fails. Some of it may have been written.
    pub fn write(&self, position: u64, bytes: &[u8], writer: u32) -> Result<(), CacheError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let range = position..position + bytes.len() as u64;
        let mut logged = lock(&self.changing);
        let was_dirty = self.is_dirty();
        let length = self.length();
        {
            let mut state = write(&self.state);
            state.is_row_old |= state.writer != writer || !was_dirty;
            state.writer = writer;
        }
        // Clean bytes that are written over count as dirty before they are; others after they are: what is logged is
        // never about bytes that nobody has, and what is there and clean is never anything but the server's.
        let over: Vec<_> = {
            let state = read(&self.state);
            let new = logged.missing(range.clone());
            new.into_iter().flat_map(|new| state.present.within(new).collect::<Vec<_>>()).collect()
        };
        for part in &over {
            self.log(&mut logged, part.clone())?;
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
            self.shared.grow(state.present.insert(length.min(range.start)..range.end));
            state.dirty.insert(range.clone());
            state.unconfirmed.remove(range.clone());
            self.length.fetch_max(range.end, Ordering::AcqRel);
            self.merge_dirty(&mut state);
            self.note_presence(&state);
        }
        self.keep_dirty();
        self.log(&mut logged, range)
    }

    /// Cuts the file, or adds zeros.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn truncate(&self, length: u64, writer: u32) -> Result<(), CacheError> {
        let mut logged = lock(&self.changing);
        let old = self.length();
        if length == old {
            return Ok(());
        }
        {
            let mut state = write(&self.state);
            state.writer = writer;
            state.is_row_old = true;
            if length < old {
                state.truncated_to = state.truncated_to.min(length);
                self.shared.shrink(state.present.remove(length..u64::MAX));
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
                    batch.put(records::dirty(self.number, cut.start), length.to_be_bytes());
                }
            }
            logged.remove(length..u64::MAX);
            self.submit(batch)?;
        }
        self.file.set_length(length).map_err(|error| self.failed("cannot cut a file", error))?;
        {
            let mut state = write(&self.state);
            if length > old {
                self.shared.grow(state.present.insert(old..length));
                self.length.store(length, Ordering::Release);
            }
            self.note_presence(&state);
        }
        self.keep_dirty();
        self.note_clean();
        self.submit(Batch::default())
    }

    /// From now on the kernel may write to the backing file without our seeing it, until [`Self::take_back`].
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn lend(&self, writer: u32) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        {
            let mut state = write(&self.state);
            state.writer = writer;
            state.is_lent = true;
            state.is_row_old = true;
        }
        self.keep_dirty();
        self.submit(Batch::default())
    }

    /// Takes notice of what the kernel may have written since it was lent: everything counts as dirty if so. With
    /// `is_over`, it is no longer lent.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn take_back(&self, has_changed: bool, is_over: bool) -> Result<(), CacheError> {
        let mut logged = lock(&self.changing);
        let length = self.file.length().map_err(|error| self.failed("cannot ask for a length", error))?;
        let old = self.length();
        {
            let mut state = write(&self.state);
            state.is_row_old = true;
            if has_changed || length != old {
                if length < old {
                    state.truncated_to = state.truncated_to.min(length);
                    self.shared.shrink(state.present.remove(length..u64::MAX));
                    state.dirty.remove(length..u64::MAX);
                    state.storing.remove(length..u64::MAX);
                }
                self.length.store(length, Ordering::Release);
                self.losses.fetch_add(1, Ordering::AcqRel);
                self.shared.grow(state.present.insert(0..length));
                state.dirty.insert(0..length);
                self.note_presence(&state);
            }
            if is_over {
                state.is_lent = false;
            }
        }
        self.keep_dirty();
        if has_changed || length != old {
            logged.remove(length..u64::MAX);
            self.log(&mut logged, 0..length)?;
        }
        self.submit(Batch::default())?;
        self.note_clean();
        Ok(())
    }

    // ---- storing

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
        let zeros = cut..state.server_length.min(length);
        let cut_first = (cut < state.server_length && !ranges.contains(&zeros)).then_some(cut);
        state.storing_truncated_to = std::mem::replace(&mut state.truncated_to, NOT_CUT);
        state.is_storing = true;
        let dirty = Dirty {
            version: self.version(),
            server_length: state.server_length,
            length,
            cut_first,
            ranges: ranges.iter().collect(),
            writer: state.writer,
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

    /// Before a call of a store is sent: notes what it does, to be known again after a crash.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn note_sent(&self, sent: SentStore) -> Result<(), CacheError> {
        let _changing = lock(&self.changing);
        {
            let mut state = write(&self.state);
            state.sent = Some(sent);
            state.is_row_old = true;
        }
        self.submit(Batch::default())
    }

    /// After a call of a store was answered: this range is at the server, in this version, and the file has that length
    /// there. Says whether the version is the next one: otherwise others have changed the file too, and it is to be
    /// opened anew when the store has ended.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn note_stored(&self, range: Range<u64>, version: u64, server_length: u64) -> Result<bool, CacheError> {
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
                    batch.put(records::dirty(self.number, part.start), part.end.to_be_bytes());
                }
            }
        }
        self.submit(batch)?;
        Ok(is_next)
    }

    /// What is dirty was written on this version, as it turned out: a store that was on its way when the process ended has led
    /// to it. Everything is still to be stored, as nobody knows how much of it was that store's.
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
            state.is_lent = false;
            state.is_row_old = true;
            self.version.store(MIXED, Ordering::Release);
        }
        self.submit(batch)?;
        self.note_clean();
        Ok(())
    }

    // ---- what the cache asks

    /// What its row says.
    pub(crate) fn row(&self) -> FileRow {
        self.row_of(&read(&self.state))
    }

    fn row_of(&self, state: &State) -> FileRow {
        let mut present = state.present.clone();
        for range in state.unconfirmed.iter() {
            present.remove(range);
        }
        FileRow {
            number: self.number,
            version: self.version(),
            server_length: state.server_length,
            length: self.length(),
            truncated_to: state.truncated_to.min(state.storing_truncated_to),
            writer: state.writer,
            is_lent: state.is_lent,
            used: state.used,
            sent: state.sent,
            present,
        }
    }

    /// The dirty ranges, those that are being stored among them.
    pub(crate) fn dirty_ranges(&self) -> Vec<Range<u64>> {
        let state = read(&self.state);
        let mut all = state.dirty.clone();
        all.extend(&state.storing);
        all.iter().collect()
    }

    /// Notes that it was opened again.
    pub(crate) fn note_used(&self, used: u64) {
        // Its row need not be written for that: the order after a restart is good enough without.
        write(&self.state).used = used;
    }

    /// The index keeps it already.
    pub(crate) fn set_kept(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    /// Writes the row, if it says less than is so.
    pub(crate) fn save(&self) -> Result<(), CacheError> {
        let mut state = write(&self.state);
        if !state.is_row_old || self.is_forgotten() {
            return Ok(());
        }
        state.is_row_old = false;
        let row = self.row_of(&state);
        drop(state);
        let mut batch = Batch::default();
        batch.put(records::file(self.key), row.encode());
        self.shared.commit(batch)
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Acquire)
    }

    /// The index lets it go.
    pub(crate) fn set_forgotten(&self) {
        self.is_forgotten.store(true, Ordering::Release);
    }

    /// The backing file was moved to the conflicts.
    pub(crate) fn set_aside(&self) {
        self.is_aside.store(true, Ordering::Release);
        self.set_forgotten();
    }

    pub(crate) fn is_aside(&self) -> bool {
        self.is_aside.load(Ordering::Acquire)
    }

    // ---- within

    fn wants_store(&self, state: &State) -> bool {
        !state.dirty.is_empty() || self.length() != state.server_length || state.truncated_to < state.server_length
    }

    fn note_presence(&self, state: &State) {
        self.is_complete.store(state.present.contains(&(0..self.length())), Ordering::Release);
    }

    /// Among very many ranges, those that are near each other become one: stores are calls.
    fn merge_dirty(&self, state: &mut State) {
        while state.dirty.count() > DIRTY_RANGES_MAX {
            let ranges: Vec<_> = state.dirty.iter().collect();
            let gaps = ranges.windows(2).map(|pair| pair[0].end..pair[1].start);
            let Some(gap) = gaps.filter(|gap| state.present.contains(gap)).min_by_key(|gap| gap.end - gap.start)
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

    /// Puts a dirty range into the index.
    fn log(&self, logged: &mut RangeSet, range: Range<u64>) -> Result<(), CacheError> {
        if logged.contains(&range) && !read(&self.state).is_row_old {
            return Ok(());
        }
        let mut batch = Batch::default();
        for old in logged.touching(&range) {
            batch.delete(records::dirty(self.number, old.start));
        }
        logged.insert(range.clone());
        if let Some(whole) = logged.around(range.start) {
            batch.put(records::dirty(self.number, whole.start), whole.end.to_be_bytes());
        }
        batch.files.push(records::backing_name(self.number));
        self.submit(batch)
    }

    /// Commits rows, with the file's own if that is old.
    fn submit(&self, mut batch: Batch) -> Result<(), CacheError> {
        if self.is_forgotten() {
            return Ok(());
        }
        let row = {
            let mut state = write(&self.state);
            std::mem::take(&mut state.is_row_old).then(|| self.row_of(&state))
        };
        if let Some(row) = row {
            batch.put(records::file(self.key), row.encode());
        }
        self.shared.commit(batch)
    }

    /// The index keeps it as long as it is dirty. With `changing` held.
    fn keep_dirty(&self) {
        if !self.is_kept.swap(true, Ordering::AcqRel) && !self.is_forgotten() {
            self.shared.note_dirty(self.key, self.id, true);
        }
    }

    /// The same the other way round. With `changing` held, as above, so that none comes between.
    fn note_clean(&self) {
        if !self.is_dirty() && !read(&self.state).is_lent && self.is_kept.swap(false, Ordering::AcqRel) {
            self.shared.note_dirty(self.key, self.id, false);
        }
    }

    /// Writes to the backing file; where the disk is full, makes room first.
    fn put(&self, position: u64, bytes: &[u8]) -> Result<(), CacheError> {
        let first = self.file.write_at(position, bytes);
        let error = match first {
            Ok(()) => return Ok(()),
            Err(error) => self.failed("cannot write a file's data", error),
        };
        if !error.is_full() || !self.shared.make_room(bytes.len() as u64) {
            return Err(error);
        }
        let again = self.file.write_at(position, bytes);
        again.map_err(|error| self.failed("cannot write a file's data", error))
    }

    /// What is near the reader is not to be let go.
    pub(crate) fn near_reader(&self) -> Range<u64> {
        let at = self.position.load(Ordering::Relaxed);
        at.saturating_sub(NEAR_BEHIND)..at.saturating_add(NEAR_AHEAD)
    }

    fn failed(&self, what: &str, error: std::io::Error) -> CacheError {
        CacheError::io(self.shared.folder(), what, error)
    }
}

impl Drop for CacheFile {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        shared.closed(self);
    }
}
