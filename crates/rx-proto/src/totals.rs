//! Totals over the endpoints of one port. A port may be served by several endpoints, each with the connections of some peers;
//! limits on memory hold for all of them, so each counts what it has in one place too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The totals of a port. Clones are the same ones; give them to all endpoints of the port.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub(crate) promised: Total,
    pub(crate) strangers: Total,
    pub(crate) connections: Total,
}

/// The amount of something that all have.
#[derive(Debug, Clone, Default)]
pub struct Total(Arc<AtomicU64>);

impl Total {
    /// The amount that all have.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds what one of them takes, if all then have no more than the limit. Returns whether it did.
    pub fn take(&self, more: u64, limit: u64) -> bool {
        let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= limit);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Takes away what one of them gives back.
    pub fn give_back(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }
}

/// One endpoint's part of a total. It goes with the endpoint.
#[derive(Debug, Default)]
pub(crate) struct Share {
    own: u64,
    total: Total,
}

impl Share {
    pub(crate) fn of(total: &Total) -> Self {
        Self { own: 0, total: total.clone() }
    }

    /// This endpoint's part.
    pub(crate) const fn own(&self) -> u64 {
        self.own
    }

    /// The amount that all have.
    pub(crate) fn all(&self) -> u64 {
        self.total.get()
    }

    pub(crate) fn add(&mut self, more: u64) {
        self.own += more;
        self.total.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn remove(&mut self, less: u64) {
        self.own -= less;
        self.total.give_back(less);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.total.give_back(self.own);
    }
}
