//! What counts of a store after power losses, one or several in a row: all that was synced, and of the rest a beginning.

use std::sync::Arc;

use afs_store::disk::{Disk, SimulatedDisk};
use afs_store::{Batch, Key, Options, Store};

use crate::common::Plain;

fn open(disk: &SimulatedDisk) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Store::open(disk, Options { cache_bytes: 1 << 20, log_bytes: 64 << 10 }, &Plain).unwrap()
}

/// Adds a row whose number follows the last one.
fn add(store: &Store, n: u32) {
    let mut batch = Batch::default();
    batch.put(Key([b"row", &n.to_be_bytes()[..]].concat()), n.to_be_bytes());
    let seq = store.submit(batch).unwrap();
    store.written(seq).unwrap();
}

/// How many rows there are, which have to be the first ones.
fn count(store: &Store) -> u32 {
    let mut n = 0_u32;
    store
        .scan::<afs_store::StoreError>(b"row", |_, value| {
            assert_eq!(**value, n.to_be_bytes(), "a row is missing before this one");
            n += 1;
            Ok(())
        })
        .unwrap();
    n
}

/// A start after a power loss began its log right behind what the last mark covered, and with that the mark was void: a second
/// loss, before the new log had one, took what had been synced before the first.
#[test]
fn what_was_synced_outlasts_power_losses_in_a_row() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut disk = SimulatedDisk::new(1 << 30);
        let (mut rows, mut synced) = (0, 0);
        for run in 0..6 {
            let store = open(&disk);
            let found = count(&store);
            assert!(
                (synced..=rows).contains(&found),
                "seed {seed}, run {run}: {found} of {synced} to {rows} rows"
            );
            lost += u32::from(found < rows);
            (rows, synced) = (found, synced.min(found));
            // By turns: with a sync, then without one twice, of which one time has no row at all.
            let (before, after) = [(20, 5), (0, 5), (0, 0)][(run + seed as usize) % 3];
            for _ in 0..before {
                add(&store, rows);
                rows += 1;
            }
            if before > 0 {
                store.sync_all().unwrap();
                synced = rows;
            }
            for _ in 0..after {
                add(&store, rows);
                rows += 1;
            }
            disk = disk.after_power_loss(seed * 10 + run as u64);
        }
    }
    assert!(lost > 100, "only {lost} starts had lost rows that were not synced");
}
