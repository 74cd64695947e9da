//! Stopping an operation in an orderly way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// The wish that an operation stops. It is looked at between steps: what would be left half done is undone first, and the
/// operation fails with [`Error::Cancelled`]. A clone is the same wish.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Has the operation stop as soon as it can.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it may go on.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] if it is to stop.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
