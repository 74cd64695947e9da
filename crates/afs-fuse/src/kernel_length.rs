//! The length of a file as the kernel was told it, so that what it is answered later agrees with that: it knows the length only
//! from attributes, and these come with other answers than data do.
//!
//! **Reads.** If an answer to a READ leaves a part of its pages empty, the kernel fills that part with zeros. It takes
//! a short answer for the file's end, but only if it has heard nothing of the file since it asked, neither attributes
//! nor a notice. Else it goes on to believe the length that it was told last, and a reader gets zeros up to there. So
//! such an answer is not given: the READ fails when the notices in flight have reached the kernel. That READ was sent
//! ahead of the reader, as the first one for a page always is. So the kernel asks once more for the reader, by what it
//! knows then. If the kernel may have heard of yet another change by then, that READ is answered if it has data. If it has
//! none, as where the file was emptied, it fails too, and so does the reader. The errno is EINTR: programs read again after
//! that, and a program that has the file mapped gets SIGBUS, as of any file that is cut. If a file is changed again and
//! again, this may happen too late. A program that opens such a file to read it reads past the kernel's pages, where an
//! answer is as long as it is.
//!
//! If the file has become longer since the kernel was told its length, a reader would get new data that are cut at the
//! old end. So the kernel is told of the new end first (`newest`). That may take the page which the READ itself is
//! about: then the READ fails as well if it was sent ahead of the reader, and the kernel asks once more.
//!
//! **Appends.** The kernel appends where it believes the end to be. The client knows better (`OpenFile::append`), but
//! then the kernel has put the bytes into a wrong place of its pages, and has to forget them. That the kernel believes
//! the right length when a file is open is seen to in `newest`.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{self, Duration};

use afs_client::DataOf;
use rx_proto::time::Instant;

use crate::file_system::FileSystem;
use crate::handles::FileHandle;
use crate::newest::Told;
use crate::nodes::{Forget, Node};
use crate::notices::{self, NOTING};

/// The least in which the kernel keeps data.
const PAGE: u64 = 4096;

/// Ranges of a file that are remembered because the kernel has pages of them without data. Of more the oldest are forgotten: a reader
/// of such a page may get an error where the file is cut elsewhere in that moment.
const EMPTY_MAX: usize = 16;

/// The time that the kernel may need to note a notice that is being sent. Nobody waits until all of them are sent: a notice itself waits
/// for the pages of a READ that is not answered.
const NOTE_LOOKS: u32 = 5;
const NOTE_LOOK: Duration = Duration::from_millis(1);

/// The looks while a reader itself waits.
const WAITED_FOR_LOOKS: u32 = 50;

/// The time that a reader's thread may need, in the kernel, to note a short answer.
const SHORTEN_TIME: Duration = Duration::from_millis(1);

/// A file that others have changed twice within this time is read past the kernel's pages.
const FREQUENT: Duration = Duration::from_secs(10);

/// The time that a READ may be on its way here: it may have been sent before a notice that has ended since.
const READ_TIME: Duration = Duration::from_millis(5);

/// The length that the kernel takes a file to have, by what it was told.
#[derive(Debug, Default)]
pub(crate) struct KernelLength(Mutex<Belief>);

#[derive(Debug, Default)]
struct Belief {
    length: u64,
    /// The shortest that it may take it to have as well, because it may have thrown away what told it of this length.
    or_else: Option<u64>,
    /// The time when it was last told of another length than before, and that one.
    changed: Option<(time::Instant, u64)>,
    /// The number of times that it was told of it.
    times: u64,
}

impl Belief {
    /// Notes whether it may have the length from before the last change as well.
    fn doubt(&mut self, is_in_doubt: bool) {
        let before = self.changed.filter(|_| is_in_doubt).map(|(_, before)| before);
        self.or_else = before.map(|before| self.or_else.map_or(before, |other| other.min(before)));
    }
}

impl KernelLength {
    fn lock(&self) -> MutexGuard<'_, Belief> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel is told attributes, with this length. Unless that `is_sure`, it may throw them away.
    pub(crate) fn note(&self, length: u64, is_sure: bool) {
        let mut belief = self.lock();
        belief.times += 1;
        if belief.times == 1 {
            // Of these it makes the file.
            belief.length = length;
        } else if belief.length != length {
            belief.changed = Some((time::Instant::now(), belief.length));
            belief.doubt(!is_sure);
            belief.length = length;
        } else if is_sure {
            belief.or_else = None;
        }
    }

    /// Notes that a notice about the file is to be sent: attributes that were answered a moment ago may come after it.
    pub(crate) fn note_notice(&self) {
        let mut belief = self.lock();
        if belief.changed.is_some_and(|(at, _)| at.elapsed() < NOTING) {
            belief.doubt(true);
        }
    }

    /// Notes that the kernel finds out by itself that the file ends here, if it has not been told of its length since it asked. It does not
    /// believe other short answers then, to what it has asked before.
    fn note_end(&self, end: u64, asked_times: Option<u64>) -> bool {
        let mut belief = self.lock();
        if asked_times.is_some_and(|times| times != belief.times) {
            return false;
        }
        belief.length = end;
        belief.times += 1;
        true
    }

    /// Notes that the kernel has written up to here.
    pub(crate) fn note_written(&self, end: u64) {
        let mut belief = self.lock();
        belief.length = belief.length.max(end);
    }

    /// Notes that data were put into the kernel's pages up to here.
    pub(crate) fn note_put(&self, end: u64) {
        let mut belief = self.lock();
        belief.times += 1;
        if end >= belief.length {
            belief.length = end;
            (belief.or_else, belief.changed) = (None, None);
        }
    }

    /// The length that it takes the file to have.
    pub(crate) fn get(&self) -> u64 {
        self.lock().length
    }

    fn times(&self) -> u64 {
        self.lock().times
    }

    /// True if it surely takes the file to have this length.
    pub(crate) fn is(&self, length: u64) -> bool {
        let belief = self.lock();
        belief.length == length && belief.or_else.is_none()
    }

    /// True if it surely takes the file to be so long, or longer.
    pub(crate) fn is_at_least(&self, length: u64) -> bool {
        let belief = self.lock();
        belief.length >= length && belief.or_else.is_none_or(|other| other >= length)
    }
}

/// The kernel's knowledge when a READ came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    notices: u64,
    times: u64,
    /// A notice was under way, or had just ended: whether the kernel had it when it asked is not known.
    is_notice_near: bool,
    /// A reader waits for this READ itself, as the page was asked for ahead of it and did not come: an error is the reader's.
    is_waited_for: bool,
}

/// The times when others have changed a file last, and before that.
#[derive(Debug, Default)]
pub(crate) struct Changes([Option<Instant>; 2]);

impl Changes {
    /// Notes that others have changed it.
    pub(crate) fn note(&mut self, now: Instant) {
        self.0 = [Some(now), self.0[0]];
    }

    /// Notes a change after which the kernel's pages are not to be trusted for a while, as if there had been two.
    pub(crate) fn note_frequent(&mut self, now: Instant) {
        self.0 = [Some(now); 2];
    }

    /// The last time.
    fn last(&self) -> Option<Instant> {
        self.0[0]
    }

    /// True if they do so again and again.
    pub(crate) fn are_frequent(&self, now: Instant) -> bool {
        self.0[1].is_some_and(|at| now.since(at) < FREQUENT)
    }
}

/// Ranges of pages that the kernel has without data: a reader waits for a READ of one of these pages. The newest last.
#[derive(Debug, Default)]
pub(crate) struct EmptyPages(Vec<Range<u64>>);

impl EmptyPages {
    fn add(&mut self, range: &Range<u64>) {
        let range = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
        self.0.retain(|known| known.start < range.start || range.end < known.end);
        if self.0.len() >= EMPTY_MAX {
            self.0.remove(0);
        }
        self.0.push(range);
    }

    /// Notes a write. If it ends within a page, the kernel does not know the rest of that page.
    pub(crate) fn note_written(&mut self, range: &Range<u64>) {
        if !range.end.is_multiple_of(PAGE) {
            self.add(&(range.end / PAGE * PAGE..range.end));
        }
    }

    /// True if this is one of these pages.
    fn has(&self, page: &Range<u64>) -> bool {
        page.end - page.start <= PAGE
            && self.0.iter().any(|empty| empty.start <= page.start && page.end <= empty.end)
    }

    /// The kernel has forgotten all pages.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A notice that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct AnnouncedNotice<'a>(&'a FileSystem);

impl Drop for AnnouncedNotice<'_> {
    fn drop(&mut self) {
        *self.0.noticed.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.0.client.now());
        self.0.notices_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl FileSystem {
    /// A notice is about to be sent. Waits until the answers that are being sent are with the kernel; what was found out before is not
    /// fresh from here on.
    pub(crate) fn announce(&self) -> AnnouncedNotice<'_> {
        self.notices_in_flight.fetch_add(1, Ordering::AcqRel);
        let notice = AnnouncedNotice(self);
        self.announced.fetch_add(1, Ordering::AcqRel);
        self.close_gate();
        notice
    }

    /// Data are about to be forgotten: waits until readers have noted, in the kernel, that a file is shorter than it believed.
    pub(crate) fn let_short_answers_be_noted(&self) {
        let shortened = *self.shortened.lock().unwrap_or_else(PoisonError::into_inner);
        let is_noted = shortened.is_none_or(|at| self.client.now().since(at) >= SHORTEN_TIME);
        if !is_noted {
            std::thread::sleep(SHORTEN_TIME);
        }
    }

    /// A READ has come.
    pub(crate) fn asked(&self, node: &Node, range: &Range<u64>) -> Asked {
        // In this order: one that begins meanwhile is seen here or there.
        let notices = self.announced.load(Ordering::Acquire);
        let is_notice_near = self.notices_in_flight.load(Ordering::Acquire) > 0 || {
            let noticed = *self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
            noticed.is_some_and(|at| self.client.now().since(at) < READ_TIME)
        };
        let is_waited_for = node.state().empty.has(range);
        Asked { notices, times: node.kernel_length.times(), is_notice_near, is_waited_for }
    }

    /// True if data that are to be read are of a file that is longer than the kernel believes, and the reader may not have asked for its
    /// length since: of these data the kernel gives it those up to the old end. Who asks for them later asks for the length before.
    pub(crate) fn is_outgrown(&self, node: &Node, range: &Range<u64>, of: DataOf) -> bool {
        let end = node.kernel_length.get();
        if of.length <= end || range.end < end {
            return false;
        }
        let state = node.state();
        let was_changed = state.changes.last().is_some_and(|at| self.client.now().since(at) < NOTING);
        was_changed || self.pending.any() || !state.forgets.are_done()
    }

    /// Has the kernel take a file for as long as what was read of it is. Returns when it does, or soon: by then it does, but may wait for
    /// the page of this very READ to say so.
    pub(crate) async fn lengthen_soon(
        self: &Arc<Self>,
        open: &Arc<FileHandle>,
        asked: Asked,
        range: &Range<u64>,
        of: DataOf,
    ) {
        let (fs, of_file) = (Arc::clone(self), Arc::clone(open));
        self.runtime.spawn(async move { fs.lengthen(&of_file.node, &of_file.file).await });
        let looks = if asked.is_waited_for { WAITED_FOR_LOOKS } else { NOTE_LOOKS };
        for _ in 0..looks {
            if !self.is_outgrown(&open.node, range, of) {
                break;
            }
            tokio::time::sleep(NOTE_LOOK).await;
        }
    }

    /// True if the kernel may be answered so many bytes to a READ of a range. Called inside the gate, so that no notice is sent before
    /// the answer is.
    pub(crate) fn agrees(
        &self,
        node: &Node,
        asked: Asked,
        range: &Range<u64>,
        (count, of): (usize, Option<DataOf>),
    ) -> bool {
        let end = range.start + count as u64;
        if let Some(of) = of {
            node.state().told.note(of.version);
            if !asked.is_waited_for && self.is_outgrown(node, range, of) {
                node.state().empty.add(range);
                return false;
            }
        }
        let believed = node.kernel_length.get();
        if end < range.end && !asked.is_waited_for && of.is_some_and(|of| end > of.length) {
            // All of it is behind the end, which the kernel would take to be where it has asked. It asks where the end is next.
            node.state().empty.add(range);
            return false;
        }
        if end >= range.end || end >= believed {
            return true;
        }
        let was_told = asked.is_notice_near || self.announced.load(Ordering::Acquire) != asked.notices;
        if was_told || !node.kernel_length.note_end(end, Some(asked.times)) {
            if !asked.is_waited_for {
                node.state().empty.add(range);
                return false;
            }
            if count == 0 {
                return false;
            }
            node.kernel_length.note_end(end, None);
        }
        *self.shortened.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.client.now());
        true
    }

    /// Fails a READ in a way that has the kernel, or the reader, ask once more, when the kernel has noted the notices that are under way.
    pub(crate) fn ask_again(self: &Arc<Self>, fail: Box<dyn FnOnce() + Send>) {
        let fs = Arc::clone(self);
        self.runtime.spawn(async move {
            for _ in 0..NOTE_LOOKS {
                if fs.notices_in_flight.load(Ordering::Acquire) == 0 {
                    break;
                }
                tokio::time::sleep(NOTE_LOOK).await;
            }
            // Else who asks again would be back before that is sure.
            tokio::time::sleep(READ_TIME).await;
            fail();
        });
    }

    /// Has the kernel forget the data that it has of a node, in the background: a thread that answers the kernel must not
    /// wait for its locks.
    pub(crate) fn forget_soon(self: &Arc<Self>, node: &Arc<Node>) {
        node.kernel_length.note_notice();
        {
            let mut state = node.state();
            state.told = Told::Nothing;
            state.forgets.begin();
        }
        let (fs, node) = (Arc::clone(self), Arc::clone(node));
        self.runtime.spawn_blocking(move || {
            let forget = Forget::Data(node.id);
            // Nobody is told that a notice is near while it waits for others.
            fs.in_flight.locks.wait(&forget);
            let _announced = fs.announce();
            fs.let_short_answers_be_noted();
            let number = node.state().forgets.last();
            notices::send_at_once(&fs.notifier, &forget);
            fs.note_forgotten(&node, number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_without_data_are_known_in_whole_pages_the_newest_longest() {
        let mut empty = EmptyPages::default();
        empty.note_written(&(0..8192));
        assert!(!empty.has(&(4096..8192)), "whole pages were written");
        empty.note_written(&(0..5000));
        assert!(empty.has(&(4096..8192)) && !empty.has(&(0..4096)));
        empty.add(&(0..10_000));
        assert!(empty.has(&(8192..12288)));
        assert!(!empty.has(&(0..8192)), "readers wait for one page, more is asked for ahead of them");
        for n in 10..10 + EMPTY_MAX as u64 {
            empty.add(&(n * PAGE..(n + 1) * PAGE));
        }
        assert!(!empty.has(&(4096..8192)) && empty.has(&(10 * PAGE..11 * PAGE)));
        empty.clear();
        assert!(!empty.has(&(10 * PAGE..11 * PAGE)));
    }

    #[test]
    fn a_file_that_others_change_twice_within_seconds_is_changed_frequently() {
        let (start, mut changes) = (Instant::ORIGIN + Duration::from_secs(100), Changes::default());
        changes.note(start);
        assert!(!changes.are_frequent(start), "once");
        changes.note(start + Duration::from_secs(1));
        assert!(changes.are_frequent(start + Duration::from_secs(2)));
        assert!(!changes.are_frequent(start + FREQUENT), "it is over");
        changes.note_frequent(start + FREQUENT);
        assert!(changes.are_frequent(start + FREQUENT), "a release");
    }

    #[test]
    fn the_length_that_the_kernel_believes_is_followed() {
        let length = KernelLength::default();
        length.note(100, true);
        length.note_written(50);
        assert_eq!(length.get(), 100);
        length.note_written(150);
        assert_eq!(length.get(), 150);
        assert!(
            length.note_end(20, Some(length.times())) && !length.note_end(10, Some(1)),
            "it believes one"
        );
        assert_eq!((length.get(), length.times()), (20, 2));
    }

    /// A file that another client had made longer was read to its old end, and what was written there then overwrote what was stored: the
    /// kernel had thrown the answer with the new length away.
    #[test]
    fn a_length_that_the_kernel_may_have_thrown_away_is_in_doubt() {
        let length = KernelLength::default();
        length.note(9, false);
        assert!(length.is(9), "the kernel had no other");
        length.note(9, false);
        assert!(length.is(9), "it makes no difference whether it took that");
        length.note_notice();
        assert!(length.is(9));
        length.note(18, false);
        assert!(!length.is(18) && !length.is_at_least(18));
        length.note(18, true);
        assert!(length.is(18) && length.is_at_least(18) && !length.is_at_least(19));
        length.note_notice();
        assert!(!length.is(18), "the notice may have come before the answer");
        length.note_put(18);
        assert!(length.is(18), "what is put cannot be thrown away");
        length.note(10, true);
        length.note_notice();
        assert!(!length.is(10) && length.is_at_least(10), "it may have the longer one");
        length.note(5, false);
        length.note(30, false);
        assert!(length.is_at_least(5) && !length.is_at_least(6));
    }
}
