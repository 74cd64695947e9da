//! Rows that tests write and look for.

use std::sync::Arc;

use afs_store::disk::{Disk, SimulatedDisk};
use afs_store::{Batch, Key, Options, Schema, Store, StoreError};

/// Rows of which a store need not know anything.
#[derive(Debug)]
pub(crate) struct Plain;

impl Schema for Plain {}

pub(crate) const OPTIONS: Options = Options { cache_bytes: 1 << 20, log_bytes: 64 << 10 };

pub(crate) fn open(disk: &SimulatedDisk) -> Result<Store, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Store::open(disk, OPTIONS, &Plain)
}

pub(crate) fn key(n: u32) -> Key {
    Key([b"row", &n.to_be_bytes()[..]].concat())
}

/// Some 250 bytes, none of which is 0.
pub(crate) fn value(n: u32) -> Vec<u8> {
    (0..200 + n % 100).map(|i| (n.wrapping_mul(31).wrapping_add(i * 7) % 251) as u8 + 1).collect()
}

/// Adds rows, one a batch.
pub(crate) fn add(store: &Store, rows: impl IntoIterator<Item = u32>) {
    for n in rows {
        let mut batch = Batch::default();
        batch.put(key(n), value(n));
        store.written(store.submit(batch).unwrap()).unwrap();
    }
}

/// Flips one bit of a file.
pub(crate) fn flip(disk: &SimulatedDisk, name: &str, at: u64, bit: u8) {
    let file = disk.open(name).unwrap();
    let mut byte = [0];
    assert_eq!(file.read_at(at, &mut byte).unwrap(), 1);
    file.write_at(at, &[byte[0] ^ 1 << bit]).unwrap();
}
