//! One bit of a store's files flips while nobody has it open: each row is right, or an error names the file, or what is lost was told
//! when the store was opened. AFAR_FLIPS sets another number of flips.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use afs_store::disk::{Disk, Flip, SimulatedDisk};
use afs_store::{Batch, Key, Options, Schema, Store, StoreError};

#[derive(Debug)]
struct Plain;

impl Schema for Plain {}

const OPTIONS: Options = Options { cache_bytes: 1 << 20, log_bytes: 64 << 10 };
/// Rows of the store. Most of them are in the B-tree, and some in the log if the process was killed.
const ROWS: u32 = 1500;

fn open(disk: &SimulatedDisk) -> Result<Store, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Store::open(disk, OPTIONS, &Plain)
}

fn key(n: u32) -> Key {
    Key([b"row", &n.to_be_bytes()[..]].concat())
}

fn value(n: u32) -> Vec<u8> {
    (0..100 + n % 200).map(|i| (n.wrapping_mul(31).wrapping_add(i * 7) % 251) as u8 + 1).collect()
}

fn add(store: &Store, n: u32) {
    let mut batch = Batch::default();
    batch.put(key(n), value(n));
    store.written(store.submit(batch).unwrap()).unwrap();
}

/// A store that was closed, and one whose process was killed.
fn make() -> [SimulatedDisk; 2] {
    let disk = SimulatedDisk::new(1 << 30);
    let store = open(&disk).unwrap();
    for n in 0..ROWS {
        // In an order that is not that of the keys, so that pages of the B-tree are split.
        add(&store, n * 7 % ROWS);
        if store.wants_checkpoint() {
            store.checkpoint().unwrap();
        }
    }
    let killed = disk.after_kill();
    store.close().unwrap();
    drop(store);
    [disk, killed]
}

/// What came of flips.
#[derive(Debug, Default)]
struct Seen {
    harmless: u32,
    refused: u32,
    lost: u32,
    unreadable: u32,
    /// Flips after which more than a tenth of all rows cannot be read, though the store is open.
    many: u32,
}

fn check(disk: &SimulatedDisk, flip: &Flip, seen: &mut Seen) {
    let store = match open(disk) {
        Ok(store) => store,
        Err(StoreError::Damaged { what, why }) => {
            assert!(what.starts_with("rows.") && !why.is_empty(), "{flip:?}: {what}: {why}");
            seen.refused += 1;
            return;
        }
        Err(error) => panic!("{flip:?}: {error:?}"),
    };
    let (mut missing, mut unreadable) = (0, 0);
    for n in 0..ROWS {
        match store.get(&key(n)) {
            Ok(Some(row)) => assert_eq!(*row, value(n), "{flip:?}: row {n}"),
            Ok(None) => missing += 1,
            Err(StoreError::Damaged { what, .. }) if what == "rows.redb" => unreadable += 1,
            Err(error) => panic!("{flip:?}: row {n}: {error:?}"),
        }
    }
    let lost: u64 = store.losses().iter().map(|loss| loss.batches).sum();
    assert!(missing <= lost, "{flip:?}: {missing} rows are missing, and {lost} changes are said to be");
    assert!(lost <= 1, "{flip:?}: {:?}", store.losses());
    let mut scanned = 0;
    match store.scan::<StoreError>(b"row", |_, _| {
        scanned += 1;
        Ok(())
    }) {
        Ok(()) => assert_eq!(scanned + missing, u64::from(ROWS), "{flip:?}"),
        Err(error) => {
            assert!(unreadable > 0 && matches!(error, StoreError::Damaged { .. }), "{flip:?}: {error:?}")
        }
    }
    match (lost, unreadable) {
        (0, 0) => seen.harmless += 1,
        (_, 0) => seen.lost += 1,
        _ => seen.unreadable += 1,
    }
    seen.many += u32::from(unreadable > ROWS / 10);
    // It goes on, and loses nothing more.
    for n in ROWS..ROWS + 20 {
        add(&store, n);
    }
    match store.close() {
        Ok(()) | Err(StoreError::Damaged { .. }) => {}
        Err(error) => panic!("{flip:?}: {error:?}"),
    }
    drop(store);
    let store = open(disk).unwrap();
    for n in ROWS..ROWS + 20 {
        match store.get(&key(n)) {
            Ok(row) => assert_eq!(row.as_deref(), Some(&value(n)[..]), "{flip:?}: row {n}"),
            Err(error) => assert!(unreadable > 0, "{flip:?}: row {n}: {error:?}"),
        }
    }
}

/// A flipped bit made rows vanish without a word, or the library of the B-tree panic.
#[test]
fn a_flipped_bit_gives_the_right_rows_or_an_error_that_names_the_file() {
    let flips = std::env::var("AFAR_FLIPS").map_or(100, |text| text.parse().expect("a number"));
    let disks = make();
    let (mut seen, mut used) = (Seen::default(), 0);
    for seed in 0..flips {
        let disk = disks[seed as usize % 2].after_kill();
        let flip = disk.flip_bit(seed, |_| true);
        used += u64::from(flip.was_used);
        let done = catch_unwind(AssertUnwindSafe(|| check(&disk, &flip, &mut seen)));
        assert!(done.is_ok(), "seed {seed}: {flip:?}");
    }
    println!("{flips} flips, {used} of bytes in use: {seen:?}");
    assert!(used * 2 > flips, "{used} of {flips} hit bytes in use");
    assert!(u64::from(seen.harmless) * 4 < flips * 3, "too many hit what nobody reads: {seen:?}");
    assert!(u64::from(seen.refused + seen.many) * 4 < flips, "the rest is to be served: {seen:?}");
}
