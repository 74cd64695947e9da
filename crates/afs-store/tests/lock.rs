//! When the folder of a store is free for another process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use afs_store::disk::{Disk, DiskFile, SimulatedDisk};
use afs_store::{Batch, Key, Options, Store};

use crate::common::Plain;

/// What happened to a disk that is locked until its last owner lets go of it, as a folder is.
#[derive(Debug, Default)]
struct Seen {
    is_free: AtomicBool,
    changes: AtomicU64,
    changes_when_free: AtomicU64,
}

impl Seen {
    fn change(&self) {
        let count = if self.is_free.load(Ordering::SeqCst) { &self.changes_when_free } else { &self.changes };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct Locked(SimulatedDisk, Arc<Seen>);

impl Drop for Locked {
    fn drop(&mut self) {
        self.1.is_free.store(true, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct File(Arc<dyn DiskFile>, Arc<Seen>);

impl Disk for Locked {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(File(self.0.open(name)?, self.1.clone())))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(File(self.0.create(name)?, self.1.clone())))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.0.list(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.0.sync_folder(folder)
    }

    fn sync_files(&self, names: &[String]) -> io::Result<()> {
        self.0.sync_files(names)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        self.0.space()
    }

    fn boot(&self) -> io::Result<String> {
        self.0.boot()
    }
}

impl DiskFile for File {
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(position, out)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.change();
        self.0.write_at(position, bytes)
    }

    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.1.change();
        self.0.set_length(length)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        self.0.reserve(length)
    }

    fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        self.0.punch(position, length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A mount right after an unmount took the folder while the B-tree of the one before was still being closed, read a file that
/// changed, and threw the cache away as damaged.
#[test]
fn the_folder_is_free_for_others_only_after_the_last_write() {
    let seen = Arc::new(Seen::default());
    let disk = Arc::new(Locked(SimulatedDisk::new(1 << 30), seen.clone()));
    let options = Options { cache_bytes: 1 << 20, log_bytes: 64 << 10 };
    let store = Store::open(disk, options, &Plain).unwrap();
    let mut batch = Batch::default();
    batch.put(Key(b"row".to_vec()), b"value".to_vec());
    store.written(store.submit(batch).unwrap()).unwrap();
    store.close().unwrap();
    let before = seen.changes.load(Ordering::SeqCst);
    drop(store);
    assert!(seen.is_free.load(Ordering::SeqCst));
    assert_eq!(
        seen.changes_when_free.load(Ordering::SeqCst),
        0,
        "changes to files when others may have them"
    );
    assert!(seen.changes.load(Ordering::SeqCst) > before, "closing the B-tree changes its file");
}
