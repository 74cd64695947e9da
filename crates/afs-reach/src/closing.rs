//! That the client ends: its parts look here before they begin something new, or go on to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag that the client is ending. Clones are told at once.
#[derive(Debug, Clone, Default)]
pub struct Closing(Arc<AtomicBool>);

impl Closing {
    /// The client ends from here on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True if it is ending.
    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
