//! Files of a store that are damaged: what can be read of them is there, and what cannot is told.

use std::collections::BTreeMap;

use afs_store::disk::{Disk, SimulatedDisk};
use afs_store::{Batch, Store, StoreError};

use crate::common::{add, flip, key, open, value};

/// Rows of a store to be damaged: some 250 bytes each, so that the log has several segments.
const ROWS: u32 = 600;

/// The rows that are there, each of which has to be right.
fn rows(store: &Store) -> BTreeMap<u32, ()> {
    let mut found = BTreeMap::new();
    store
        .scan::<StoreError>(b"row", |key, row| {
            let n = u32::from_be_bytes(key.0[3..].try_into().unwrap());
            assert_eq!(**row, value(n), "row {n}");
            found.insert(n, ());
            Ok(())
        })
        .unwrap();
    found
}

/// The segments of the log, and how many bytes of each are used.
fn segments(disk: &SimulatedDisk) -> Vec<(String, u64)> {
    let mut names = disk.list("").unwrap();
    names.retain(|name| name.starts_with("log."));
    names.sort();
    let used = |name: &String| {
        let file = disk.open(name).unwrap();
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
    };
    names.into_iter().map(|name| (name.clone(), used(&name))).filter(|(_, used)| *used > 0).collect()
}

/// One byte of the log took all that was written behind it, in later segments too, and nobody was told.
#[test]
fn a_damaged_byte_in_the_log_costs_the_change_that_it_is_in_and_is_told() {
    let disk = SimulatedDisk::new(1 << 30);
    let store = open(&disk).unwrap();
    add(&store, 0..ROWS);
    let killed = disk.after_kill();
    drop(store);
    let segments = segments(&killed);
    assert!(segments.len() > 2, "{segments:?}");
    for (name, used) in &segments {
        for percent in [20, 50, 81, 95] {
            let disk = killed.after_kill();
            let at = 1024 + (used - 1024) * percent / 100;
            flip(&disk, name, at, 3);
            for again in [false, true] {
                let store = open(&disk).unwrap();
                let losses = store.losses();
                assert!(losses.iter().any(|loss| loss.file == *name), "{name} at {at}: {losses:?}");
                let lost: u64 = losses.iter().map(|loss| loss.batches).sum();
                let found = rows(&store).len() as u64;
                assert!(
                    lost <= 2 && found + lost >= u64::from(ROWS),
                    "{name} at {at}: {found} rows, {losses:?}"
                );
                // Killed before it has brought anything into the B-tree: the next start finds the same.
                if again {
                    store.close().unwrap();
                }
            }
            assert!(disk.open(&format!("damaged.{name}")).is_ok(), "{name} is kept");
            let store = open(&disk).unwrap();
            assert!(rows(&store).len() >= ROWS as usize - 2);
            let told: Vec<_> = store.losses().iter().map(|loss| (loss.file.clone(), loss.batches)).collect();
            assert_eq!(told, [(format!("damaged.{name}"), 0)]);
            add(&store, ROWS..ROWS + 1);
            store.close().unwrap();
        }
    }
}

/// The same of a segment that is cut, or not there any more.
#[test]
fn a_log_that_is_cut_or_has_a_gap_is_told_and_all_else_is_there() {
    let disk = SimulatedDisk::new(1 << 30);
    let store = open(&disk).unwrap();
    add(&store, 0..ROWS);
    let killed = disk.after_kill();
    drop(store);
    let segments = segments(&killed);
    let (newest, _) = segments.last().unwrap();
    for (name, used) in &segments {
        for percent in [0, 50, 99] {
            let disk = killed.after_kill();
            match percent {
                0 if name == newest => continue,
                0 => disk.remove(name).unwrap(),
                _ => disk.open(name).unwrap().set_length(used * percent / 100).unwrap(),
            }
            let store = open(&disk).unwrap();
            let lost: u64 = store.losses().iter().map(|loss| loss.batches).sum();
            let (first, last) = (segments[0].0 == *name, name == newest);
            let found = rows(&store);
            // What was at the end of the newest may never have been there, as far as anybody can tell.
            if !last {
                assert!(lost > 0, "{name}, {percent} %");
                assert_eq!(
                    found.len() as u64 + lost,
                    u64::from(ROWS),
                    "{name}, {percent} %: {:?}",
                    store.losses()
                );
                assert!(found.contains_key(&(ROWS - 1)));
            }
            assert!(first && percent == 0 || found.contains_key(&0), "{name}, {percent} %");
        }
    }
}

/// A process that is killed while it writes leaves pages of what it wrote: nobody was told that this is there.
#[test]
fn a_record_that_a_kill_has_cut_off_is_no_damage() {
    let disk = SimulatedDisk::new(1 << 30);
    let store = open(&disk).unwrap();
    add(&store, 0..10);
    let mut batch = Batch::default();
    batch.put(key(10), vec![7; 20_000]);
    store.written(store.submit(batch).unwrap()).unwrap();
    let (name, used) = segments(&disk).pop().unwrap();
    for pages in 1..=used / 4096 {
        let disk = disk.after_kill();
        let file = disk.open(&name).unwrap();
        let length = file.length().unwrap();
        file.set_length(pages * 4096).unwrap();
        file.set_length(length).unwrap();
        let store = open(&disk).unwrap();
        assert_eq!((store.losses(), rows(&store).len()), (&[][..], 10), "{pages} pages");
    }
}
