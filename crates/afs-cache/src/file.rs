//! A file of the cache: the data of one version, as far as they are here, and what was written on top.
//!
//! Three things are locked apart: what is there (`state`, for microseconds, never over an I/O), changes of the data
//! (`changing`, over the writing of one piece), and nothing for a reader's `pread`. A reader that has seen its range
//! present finds it changed only by what takes data away; that is counted (`losses`), and the reader looks again.

use crate::backing::BackingFile;
use crate::cache::Shared;
use crate::ranges::RangeSet;
use crate::records::{self, FileRow, SentStore, Writer};
use crate::{CacheError, FileKey};
use afs_store::{Batch, lock, read, write};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

/// The version of data that no server has: of a file that got mixed with others' changes.
const MIXED: u64 = u64::MAX;
/// As [`State::truncated_to`]: it was not cut.
const NOT_CUT: u64 = u64::MAX;
/// The distance behind a reader within which data stay, if there is no room for all: the kernel may read them a second time.
const NEAR_BEHIND: u64 = 1 << 20;
/// The same ahead of it: what may have been fetched for it.
const NEAR_AHEAD: u64 = 128 << 20;
/// The distance ahead of a reader within which data stay on a full disk: a piece that is being fetched needs room now.
const NEAR_AHEAD_WHEN_FULL: u64 = 1 << 20;
/// The same where the limit is small: what one or two calls fetch.
const NEAR_AHEAD_LEAST: u64 = 8 << 20;
/// As [`CacheFile::position`]: it was written, and never read.
const NOT_READ: u64 = u64::MAX;
/// In pieces of so many bytes the kernel is to have a file's data in its memory: it reads from such pieces half as fast again
/// as from those that arrive (18.5 against 12.5 GB/s), and gives them to mappings twice as fast.
pub const EXTENT: u64 = 1 << 20;
static ZEROS: [u8; EXTENT as usize] = [0; EXTENT as usize];
/// Shorter ones are not worth a write of their own.
const SHORT_EXTENT: u64 = 64 << 10;

mod promise;
mod reading;
mod store;
mod write;

pub use reading::AtOnce;
pub use store::Dirty;

/// A file of the cache. See the crate.
#[derive(Debug)]
pub struct CacheFile {
    shared: Arc<Shared>,
    key: FileKey,
    number: u64,
    /// The number of this opening of the file, for the index.
    id: u64,
    file: BackingFile,
    length: AtomicU64,
    version: AtomicU64,
    /// True if all is here: then nothing needs to be looked at.
    is_complete: AtomicBool,
    /// The number of times that data were taken away.
    losses: AtomicU64,
    /// True if the index knows nothing of it any more: the backing file goes with this.
    is_forgotten: AtomicBool,
    /// True if the backing file is being put aside, and not moved yet: if that fails, it stays until the next start.
    is_left: AtomicBool,
    /// True if the index keeps it, as it is dirty.
    is_kept: AtomicBool,
    /// The end of the last read, or [`NOT_READ`]. A file that was opened counts as one that will be read from its beginning.
    position: AtomicU64,
    /// The backing file as the kernel has it. As long as somebody holds it, nothing is let go.
    whole: Mutex<Weak<File>>,
    state: RwLock<State>,
    /// Held by who changes data. The dirty ranges that the index has.
    changing: Mutex<RangeSet>,
}

#[derive(Debug)]
struct State {
    server_length: u64,
    truncated_to: u64,
    writer: Writer,
    /// The number of those who have lent it to the kernel, which may write to it meanwhile.
    lends: u32,
    /// A program was told that what is dirty outlasts a loss of power.
    is_promised: bool,
    used: u64,
    sent: Option<SentStore>,
    written: u32,
    present: RangeSet,
    /// Ranges that are present and take no space: they were never written, and are zeros.
    zeros: RangeSet,
    /// Ranges that are present, and may not be of this version: no row tells of them.
    unconfirmed: RangeSet,
    dirty: RangeSet,
    /// The ranges that a running store has taken.
    storing: RangeSet,
    /// The length to which the file had been cut when that store began.
    storing_truncated_to: u64,
    is_storing: bool,
    /// True if the row in the index says less.
    is_row_old: bool,
}

impl CacheFile {
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: FileKey,
        id: u64,
        file: BackingFile,
        length: u64,
        row: FileRow,
        dirty: RangeSet,
    ) -> Self {
        let logged = dirty.clone();
        let state = State {
            server_length: row.server_length,
            truncated_to: row.truncated_to,
            writer: row.writer,
            lends: u32::from(row.is_lent),
            is_promised: row.is_promised,
            used: row.used,
            sent: row.sent,
            written: row.written,
            present: row.present,
            zeros: RangeSet::new(),
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
            is_left: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            position: AtomicU64::new(0),
            whole: Mutex::default(),
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

    /// The length for a reader here.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// The length at the server.
    #[must_use]
    pub fn server_length(&self) -> u64 {
        read(&self.state).server_length
    }

    /// True if all of it is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// True if there is something to be stored, or being stored.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let state = read(&self.state);
        state.is_storing || self.wants_store(&state)
    }

    /// True if the kernel may write to it without our seeing it.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        read(&self.state).lends > 0
    }

    /// True if a program was told that what is dirty outlasts a loss of power ([`Self::promise`]).
    #[must_use]
    pub fn is_promised(&self) -> bool {
        read(&self.state).is_promised
    }

    /// The number of bytes that were written and are not at the server.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let state = read(&self.state);
        state.dirty.total() + state.storing.total()
    }

    /// The user who has written last.
    #[must_use]
    pub fn writer(&self) -> Writer {
        read(&self.state).writer.clone()
    }

    /// The user who has written last, if something is to be stored and it was somebody else.
    #[must_use]
    pub fn is_dirty_of_another(&self, writer: &Writer) -> Option<Writer> {
        let state = read(&self.state);
        let is_anothers = state.writer != *writer && (state.is_storing || self.wants_store(&state));
        is_anothers.then(|| state.writer.clone())
    }

    /// The store that was on its way when the process ended.
    #[must_use]
    pub fn sent(&self) -> Option<SentStore> {
        read(&self.state).sent
    }

    /// The time of the last write, in seconds since 1970, as far as a promise or a store has noted it.
    #[must_use]
    pub fn written(&self) -> Option<u32> {
        Some(read(&self.state).written).filter(|written| *written > 0)
    }

    /// The number of bytes that are here.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        read(&self.state).present.total()
    }

    /// The number of them that take space.
    pub(crate) fn counted_bytes(&self) -> u64 {
        let state = read(&self.state);
        state.present.total() - state.zeros.total()
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

    /// Prepares for data from `position` to `end`; the next `bytes` of them will be filled in at once. The first write to each
    /// place decides how long the pieces are in which the kernel keeps a file in its memory. So this writes zeros where a whole
    /// extent will come in small parts. It does not if the disk is full or fails; filling in then returns the error.
    pub fn lay_out(&self, position: u64, bytes: u64, end: u64) {
        let filled = position + bytes;
        let first = position.next_multiple_of(EXTENT);
        if first >= filled {
            return;
        }
        let _changing = lock(&self.changing);
        for start in (first..filled).step_by(EXTENT as usize) {
            let extent = start..(start + EXTENT).min(self.length());
            let is_worth_it = extent.end > filled && extent.end <= end && extent.end >= start + SHORT_EXTENT;
            if is_worth_it && read(&self.state).present.missing(extent.clone()) == [extent.clone()] {
                let _ = self.file.write_at(start, &ZEROS[..(extent.end - start) as usize]);
            }
        }
    }

    /// The ranges that were filled and not confirmed.
    #[must_use]
    pub fn unconfirmed(&self) -> RangeSet {
        read(&self.state).unconfirmed.clone()
    }

    /// Counts what is taken away of it: while it is the same, what was here still is.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Confirms that what was filled of a range is of this version.
    pub fn confirm(&self, range: Range<u64>) {
        let mut state = write(&self.state);
        state.unconfirmed.remove(range);
        state.is_row_old = true;
    }

    /// Takes what was filled of a range out again, as it is of another version.
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
                self.take_away(&mut state, range);
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
        self.let_go_held(&[keep])
    }

    /// As [`Self::let_go`] on a disk that is full, unless the data are being changed.
    pub(crate) fn let_go_when_full(&self) -> Result<u64, CacheError> {
        match self.changing.try_lock() {
            Ok(_changing) => self.let_go_held(&[self.near_reader(NEAR_AHEAD_WHEN_FULL)]),
            Err(_) => Ok(0),
        }
    }

    /// As [`Self::let_go`], with `changing` held.
    fn let_go_held(&self, keep: &[Range<u64>]) -> Result<u64, CacheError> {
        let parts = {
            let whole = lock(&self.whole);
            let mut state = write(&self.state);
            if state.lends > 0 || whole.strong_count() > 0 {
                return Ok(0);
            }
            let mut parts = state.present.clone();
            for kept in [&state.dirty, &state.storing] {
                for range in kept.iter() {
                    parts.remove(range);
                }
            }
            for range in keep {
                parts.remove(range.clone());
            }
            // What the server does not have is not there to be fetched again.
            parts.remove(
                state.server_length.min(state.truncated_to).min(state.storing_truncated_to)..u64::MAX,
            );
            for range in parts.iter() {
                state.unconfirmed.remove(range.clone());
                self.take_away(&mut state, range);
            }
            if parts.is_empty() {
                return Ok(0);
            }
            state.is_row_old = true;
            self.note_presence(&state);
            parts
        };
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

    // ---- what the cache asks

    /// The content of its row.
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
            writer: state.writer.clone(),
            is_lent: state.lends > 0,
            is_promised: state.is_promised,
            is_small: self.file.is_small(),
            used: state.used,
            sent: state.sent,
            written: state.written,
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

    /// The time when it was opened last, by the cache's own count.
    pub(crate) fn used(&self) -> u64 {
        read(&self.state).used
    }

    /// Notes that it was opened again.
    pub(crate) fn note_used(&self, used: u64) {
        // Its row need not be written for that: the order after a restart is good enough without.
        write(&self.state).used = used;
    }

    /// The index has no row of it yet.
    pub(crate) fn note_new(&self) {
        write(&self.state).is_row_old = true;
    }

    /// Removes a range from what is present.
    fn take_away(&self, state: &mut State, range: Range<u64>) {
        let gone = state.present.remove(range.clone());
        self.shared.shrink(gone.saturating_sub(state.zeros.remove(range)));
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
        records::put(&mut batch, records::file(self.key), row.encode());
        self.shared.commit(batch).inspect_err(|_| write(&self.state).is_row_old = true)
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Acquire)
    }

    /// The index lets it go.
    pub(crate) fn set_forgotten(&self) {
        self.is_forgotten.store(true, Ordering::Release);
    }

    /// Sets whether the backing file stays when this is closed.
    pub(crate) fn set_left(&self, is_left: bool) {
        self.is_left.store(is_left, Ordering::Release);
    }

    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    // ---- within

    /// The name of the file in which the data are.
    fn data_name(&self) -> String {
        match self.file.is_small() {
            true => records::slab_name(self.number / records::IN_FOLDER),
            false => records::backing_name(self.number),
        }
    }

    fn wants_store(&self, state: &State) -> bool {
        !state.dirty.is_empty()
            || records::is_other_there(state.server_length, state.sent, self.length(), state.truncated_to)
    }

    fn note_presence(&self, state: &State) {
        self.is_complete.store(state.present.contains(&(0..self.length())), Ordering::Release);
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
        let Some(row) = row else { return self.shared.commit(batch) };
        records::put(&mut batch, records::file(self.key), row.encode());
        self.shared.commit(batch).inspect_err(|_| write(&self.state).is_row_old = true)
    }

    /// Notes that it is written: unless somebody has read it, nothing of it has to stay near.
    fn note_written(&self) {
        let _ = self.position.compare_exchange(0, NOT_READ, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The range around the reader, if there is one, that must stay: up to so many bytes ahead of it.
    fn near_reader(&self, ahead: u64) -> Range<u64> {
        match self.position.load(Ordering::Relaxed) {
            NOT_READ => 0..0,
            at => at.saturating_sub(NEAR_BEHIND)..at.saturating_add(ahead),
        }
    }

    /// The range that is not to be let go where the cache has more than its limit, so many bytes.
    pub(crate) fn near(&self, limit: u64) -> Range<u64> {
        self.near_reader(NEAR_AHEAD.min((limit / 2).max(NEAR_AHEAD_LEAST)))
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
