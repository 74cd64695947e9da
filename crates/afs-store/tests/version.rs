//! Stores of a version that their owner does not know.

use std::sync::Arc;

use afs_store::disk::{Disk, SimulatedDisk};
use afs_store::{Schema, Store};

use crate::common::{OPTIONS, add, flip, key, open, value};

/// The owner of a later release.
#[derive(Debug)]
struct Later;

impl Schema for Later {
    fn version(&self) -> u64 {
        3
    }
}

fn open_later(disk: &SimulatedDisk) -> Store {
    Store::open(Arc::new(disk.clone()), OPTIONS, &Later).unwrap()
}

fn assert_is_of_the_later(disk: &SimulatedDisk, when: &str) {
    let refused = open(disk).unwrap_err().to_string();
    assert!(refused.contains("format 3, and this program reads 2: use a newer one"), "{when}: {refused}");
    let store = open_later(disk);
    assert_eq!(store.version().unwrap(), 3, "{when}");
    for n in 0..300 {
        assert_eq!(store.get(&key(n)).unwrap().as_deref(), Some(&value(n)[..]), "{when}: row {n}");
    }
}

#[test]
fn a_store_of_a_later_version_is_refused_by_a_program_that_does_not_know_it() {
    let disk = SimulatedDisk::new(1 << 30);
    let store = open(&disk).unwrap();
    add(&store, 0..200);
    store.close().unwrap();
    drop(store);
    let store = open_later(&disk);
    assert_eq!(store.version().unwrap(), 2, "until its owner says that it is another one");
    drop(store);
    drop(open(&disk).unwrap());
    let store = open_later(&disk);
    add(&store, 200..300);
    store.sync(store.last()).unwrap();
    store.set_version(3).unwrap();
    drop(store);
    assert_is_of_the_later(&disk.after_power_loss(1), "after a power loss");
    let store = open_later(&disk);
    store.close().unwrap();
    drop(store);
    let without_sums = disk.after_kill();
    without_sums.remove("rows.sums").unwrap();
    assert_is_of_the_later(&without_sums, "without checksums");
    // Where redb opens nothing, all rows are copied into a new file.
    let pages = disk.open("rows.redb").unwrap().length().unwrap() / 4096;
    let copied = (1..pages).rev().find_map(|page| {
        let disk = disk.after_kill();
        flip(&disk, "rows.redb", page * 4096 + 2, 0);
        let store = Store::open(Arc::new(disk.clone()), OPTIONS, &Later).ok()?;
        (!store.losses().is_empty()).then_some(disk)
    });
    assert_is_of_the_later(&copied.unwrap(), "copied");
}
