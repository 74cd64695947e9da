//! Which vnodes have changed since they were last kept for the next run of the client. What is kept of them: `vnode/earlier.rs`; who keeps it:
//! `data/known.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::vnodes::vnode::Vnode;
use afs_reach::fid::Fid;

/// What is to be kept. As long as write-behind is on nowhere, nothing is.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    is_on: AtomicBool,
    queue: Mutex<Vec<Fid>>,
    /// Told when there is something to be kept, where there was nothing.
    pub(crate) wake: Notify,
}

/// What there is of a vnode on the disk.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    is_queued: AtomicBool,
    /// Tells the row that was written last from others; 0 if there is none.
    sum: AtomicU64,
}

impl Keeping {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on: AtomicBool::new(is_on), ..Self::default() }
    }

    /// True if what is known is kept.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Keeps what is known from now on. Returns whether it did not before.
    pub(super) fn begin(&self) -> bool {
        !self.is_on.swap(true, Ordering::AcqRel)
    }

    /// A vnode has changed.
    pub(super) fn note(&self, vnode: &Vnode) {
        if self.is_on() && !vnode.kept.is_queued.swap(true, Ordering::AcqRel) {
            self.put_back([vnode.fid]);
        }
    }

    /// A vnode leaves the table.
    pub(super) fn note_gone(&self, vnode: &Vnode) {
        if vnode.kept.sum() != 0 {
            self.put_back([vnode.fid]);
        }
    }

    /// These are looked at later.
    pub(crate) fn put_back(&self, fids: impl IntoIterator<Item = Fid>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = queue.is_empty();
        queue.extend(fids);
        if was_empty && !queue.is_empty() {
            self.wake.notify_one();
        }
    }

    /// All that have changed, or left the table.
    pub(crate) fn take(&self) -> Vec<Fid> {
        std::mem::take(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Kept {
    /// It is looked at now: what changes from here on is noted again.
    pub(crate) fn begin(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// The sum of the row that is there; 0 if there is none.
    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Ordering::Acquire)
    }

    /// A row with this sum is there; with 0, none.
    pub(crate) fn set_sum(&self, sum: u64) {
        self.sum.store(sum, Ordering::Release);
    }
}
