//! Errors of the cache. Each error names the folder and what to do.

use afs_store::StoreError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The reason why something was not read from the cache or written to it.
#[derive(Debug, Clone)]
pub enum CacheError {
    /// The file system that the folder is on has no space left.
    Full {
        /// The cache's folder.
        folder: PathBuf,
    },
    /// Another process has the folder open.
    InUse {
        /// The cache's folder.
        folder: PathBuf,
    },
    /// The folder was written by a newer version of this program.
    Newer {
        /// The cache's folder.
        folder: PathBuf,
        /// The version of its format.
        found: String,
    },
    /// The folder has other things in it than a cache.
    Foreign {
        /// The cache's folder.
        folder: PathBuf,
    },
    /// The content of the folder contradicts itself.
    Damaged {
        /// The cache's folder.
        folder: PathBuf,
        /// The row that was read, and the problem with it.
        why: String,
    },
    /// The system refused something.
    Io {
        /// The cache's folder.
        folder: PathBuf,
        /// The operation.
        what: String,
        /// The system's error.
        error: Arc<io::Error>,
    },
}

impl CacheError {
    pub(crate) fn io(folder: &Path, what: impl Into<String>, error: io::Error) -> Self {
        let folder = folder.to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { folder },
            _ => Self::Io { folder, what: what.into(), error: Arc::new(error) },
        }
    }

    pub(crate) fn store(folder: &Path) -> impl Fn(StoreError) -> Self {
        move |error| {
            let folder = folder.to_owned();
            match error {
                StoreError::DiskFull => Self::Full { folder },
                StoreError::Damaged { what, why } => Self::Damaged { folder, why: format!("{what}: {why}") },
                StoreError::Io { what, error } => Self::Io { folder, what, error },
            }
        }
    }

    /// True if what is in the folder is not what was written there.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            // A file that ends before it should, or that begins as none of ours does.
            Self::Io { error, .. } => {
                matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
            }
            Self::Full { .. } | Self::InUse { .. } | Self::Newer { .. } | Self::Foreign { .. } => false,
        }
    }

    /// True if there was no space.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { folder } => {
                write!(f, "no space left for the cache in {}: make room, or give it less", folder.display())
            }
            Self::InUse { folder } => {
                write!(
                    f,
                    "another process uses the cache in {}: end it, or name another folder",
                    folder.display()
                )
            }
            Self::Newer { folder, found } => write!(
                f,
                "the cache in {} has format {found}, and this program knows {}: use a newer program, or another folder",
                folder.display(),
                crate::FORMAT
            ),
            Self::Foreign { folder } => write!(
                f,
                "{} has other files than those of a cache: name a folder that is empty or not there",
                folder.display()
            ),
            Self::Damaged { folder, why } => write!(
                f,
                "the cache in {} is damaged ({why}): remove the folder; what was written and not stored is lost with it",
                folder.display()
            ),
            Self::Io { folder, what, error } => {
                write!(f, "the cache in {}: {what}: {error}", folder.display())
            }
        }
    }
}

impl std::error::Error for CacheError {}
