//! Whether what was changed and closed here, with write-behind, is sent to servers now. Somebody on a slow link may have it wait (`fs storebehind
//! -pause`). What has to be at a server before a program can go on still goes there: while somebody waits for that, all is sent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Whether it is sent.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    is_set: AtomicBool,
    /// Those who wait for a server.
    passing: AtomicUsize,
    /// More may be sent than before.
    changed: Notify,
}

/// All is sent as long as this is there.
#[derive(Debug)]
pub(crate) struct Passing<'a>(&'a Pause);

impl Pause {
    /// True if nothing is to be sent now.
    pub(crate) fn is_on(&self) -> bool {
        self.is_set() && self.passing.load(Ordering::Acquire) == 0
    }

    /// True if somebody has it wait, whether or not somebody else passes.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Has it wait, or not. Returns whether it did before.
    pub(crate) fn set(&self, is_set: bool) -> bool {
        let was_set = self.is_set.swap(is_set, Ordering::AcqRel);
        self.changed.notify_waiters();
        was_set
    }

    /// Has it sent for as long as the caller waits for a server.
    pub(crate) fn pass(&self) -> Passing<'_> {
        if self.passing.fetch_add(1, Ordering::AcqRel) == 0 && self.is_set() {
            self.changed.notify_waiters();
        }
        Passing(self)
    }

    /// Waits until more may be sent than when this was called.
    pub(crate) fn changes(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.passing.fetch_sub(1, Ordering::AcqRel);
    }
}
