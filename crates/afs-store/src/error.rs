//! Errors of a store: the disk is full, it fails, or what is on it contradicts itself.

use std::io;
use std::sync::Arc;

/// The reason why something was not read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// There is no space left. Nothing was done.
    #[error("the disk is full")]
    DiskFull,
    /// The content of the disk contradicts itself, or is of a newer version.
    #[error("{what}: {why}")]
    Damaged {
        /// The thing that was being read.
        what: String,
        /// The problem with it.
        why: String,
    },
    /// The disk failed. What a store has in memory and what is on disk may differ from then on.
    #[error("{what}: {error}")]
    Io {
        /// The operation, and the file.
        what: String,
        /// The system's error.
        error: Arc<io::Error>,
    },
}

impl StoreError {
    /// Makes an error of what the system said; `what` was being done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::Io { what, error: Arc::new(error) },
        }
    }

    /// An error about what was read.
    pub fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), why: why.into() }
    }
}
