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
//! **Appends.** The kernel appends where it believes the end to be. The client knows better (`OpenFile::append`), but
//! then the kernel has put the bytes into a wrong place of its pages, and has to forget them. So an open to append is
//! refused once if the kernel believes a wrong length: it then looks the name up again, and is told the right one.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rx_proto::time::Instant;

use crate::file_system::FileSystem;
use crate::nodes::{Forget, Node};
use crate::notices;

/// The least in which the kernel keeps data.
const PAGE: u64 = 4096;

/// Ranges of a file that are remembered because the kernel has pages of them without data. Of more the oldest are forgotten: a reader
/// of such a page may get an error where the file is cut elsewhere in that moment.
const EMPTY_MAX: usize = 16;

/// The time that the kernel may need to note a notice that is being sent. Nobody waits until all of them are sent: a notice itself waits
/// for the pages of a READ that is not answered.
const NOTE_LOOKS: u32 = 5;
const NOTE_LOOK: Duration = Duration::from_millis(1);

/// The time that a reader's thread may need, in the kernel, to note a short answer.
const SHORTEN_TIME: Duration = Duration::from_millis(1);

/// A file that others have changed twice within this time is read past the kernel's pages.
const FREQUENT: Duration = Duration::from_secs(10);

/// The time that a READ may be on its way here: it may have been sent before a notice that has ended since.
const READ_TIME: Duration = Duration::from_millis(5);

/// The length that the kernel takes a file to have, by what it was told.
#[derive(Debug, Default)]
pub(crate) struct KernelLength {
    length: AtomicU64,
    /// The number of times that it was told attributes.
    times: AtomicU64,
}

impl KernelLength {
    /// Notes that the kernel is told attributes, with this length.
    pub(crate) fn note(&self, length: u64) {
        self.length.store(length, Ordering::Release);
        self.times.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the kernel finds out by itself that the file ends here.
    pub(crate) fn note_end(&self, end: u64) {
        self.length.store(end, Ordering::Release);
    }

    /// Notes that the kernel has written up to here.
    pub(crate) fn note_written(&self, end: u64) {
        self.length.fetch_max(end, Ordering::AcqRel);
    }

    /// The length that it takes the file to have.
    pub(crate) fn get(&self) -> u64 {
        self.length.load(Ordering::Acquire)
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
        Asked {
            notices,
            times: node.kernel_length.times.load(Ordering::Acquire),
            is_notice_near,
            is_waited_for,
        }
    }

    /// True if the kernel may be answered so many bytes to a READ of a range. Called inside the gate, so that no notice is sent before
    /// the answer is.
    pub(crate) fn agrees(&self, node: &Node, asked: Asked, range: &Range<u64>, count: usize) -> bool {
        let end = range.start + count as u64;
        if end >= range.end || end >= node.kernel_length.get() {
            return true;
        }
        let was_told = self.announced.load(Ordering::Acquire) != asked.notices
            || node.kernel_length.times.load(Ordering::Acquire) != asked.times;
        if was_told || asked.is_notice_near {
            if !asked.is_waited_for {
                node.state().empty.add(range);
                return false;
            }
            if count == 0 {
                return false;
            }
        }
        node.kernel_length.note_end(end);
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

    /// Has the kernel forget what it has of a node, in the background: a thread that answers the kernel must not wait
    /// for its locks.
    pub(crate) fn forget_soon(self: &Arc<Self>, forget: Forget) {
        let fs = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            // Nobody is told that a notice is near while it waits for others.
            fs.in_flight.locks.wait(&forget);
            let _announced = fs.announce();
            fs.let_short_answers_be_noted();
            notices::send_at_once(&fs.notifier, &forget);
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
    }

    #[test]
    fn the_length_that_the_kernel_believes_is_followed() {
        let length = KernelLength::default();
        length.note(100);
        length.note_written(50);
        assert_eq!(length.get(), 100);
        length.note_written(150);
        assert_eq!(length.get(), 150);
        length.note_end(20);
        assert_eq!((length.get(), length.times.load(Ordering::Relaxed)), (20, 1));
    }
}
