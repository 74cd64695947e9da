//! The number of operations that wait for servers, and whether these are away or busy. Callers who hold a lock
//! meanwhile ask, because they must not hold it for as long as the client is patient. `afs_failover` decides who
//! waits, and until when.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The reason why a server is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It does not answer.
    Away,
    /// It answers that it cannot yet.
    Busy,
}

/// The operations that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    away: AtomicUsize,
    busy: AtomicUsize,
}

/// An operation that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waits<'a>(&'a AtomicUsize);

impl Waiting {
    /// An operation begins to wait.
    pub(crate) fn begin(&self, why: Why) -> Waits<'_> {
        let count = match why {
            Why::Away => &self.away,
            Why::Busy => &self.busy,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Waits(count)
    }

    /// True if operations wait for servers that do not answer, and none for one that says that it is busy.
    pub fn is_in_vain(&self) -> bool {
        self.away.load(Ordering::Relaxed) > 0 && self.busy.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
