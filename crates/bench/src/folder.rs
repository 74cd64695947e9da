//! Folders that go with their guard, on the disk that has the build: partitions, caches, mount points and the files beside them
//! that they are compared with are all on the same one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;

/// A folder of this process alone. Dropped, it is removed with all that is in it, but for what is mounted there.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A new one; `name` says what it is for.
    pub(crate) fn new(name: &str) -> Result<Folder, Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench-cells");
        let path = root.join(format!("{}-{number}-{name}", std::process::id()));
        let failed = |e| Error::setup(format!("making {}: {e}", path.display()));
        fs::create_dir_all(&path).map_err(failed)?;
        Ok(Folder(path.canonicalize().map_err(failed)?))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A folder in it, made if it is not there.
    pub(crate) fn inner(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).map_err(|e| Error::setup(format!("making {}: {e}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A file system that is still mounted in it makes this fail at its mount point, and nothing in it is removed: its folder
        // is never entered while it is mounted, as the guard of a mount unmounts first.
        let _ = fs::remove_dir_all(&self.0);
    }
}
