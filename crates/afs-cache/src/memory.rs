//! A disk in memory, for a client without a folder: files that have names only here, and go with the process.

use afs_store::disk::{Disk, DiskFile};
use afs_store::lock;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

/// Files of the system that are in memory (and may be swapped out).
#[derive(Debug, Default)]
pub struct MemoryDisk {
    files: Mutex<BTreeMap<String, Arc<File>>>,
}

impl MemoryDisk {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Disk for MemoryDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let files = lock(&self.files);
        let file = files.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(file.clone())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(File::from(memfd_create("afar cache", MemfdFlags::CLOEXEC)?));
        lock(&self.files).insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = lock(&self.files).remove(name);
        removed.map(drop).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = lock(&self.files);
        let file = files.remove(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let files = lock(&self.files);
        let below = files.keys().filter_map(|name| match folder {
            "" => Some(name.as_str()),
            _ => name.strip_prefix(folder)?.strip_prefix('/'),
        });
        let names: BTreeSet<_> = below.filter_map(|name| name.split('/').next()).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn sync_folder(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_files(&self, _names: &[String]) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        Ok((u64::MAX, u64::MAX))
    }

    fn boot(&self) -> io::Result<String> {
        Ok("memory".to_owned())
    }
}
