//! One bit of a store's files flips while nobody has it open: each row is right, or an error names the file, or what is lost was told
//! when the store was opened. AFAR_FLIPS sets another number of flips.

use std::panic::{AssertUnwindSafe, catch_unwind};

use afs_store::StoreError;
use afs_store::disk::{Cut, Disk, Flip, SimulatedDisk};

use crate::common::{add, flip, key, open, value};

/// Rows of the store. Most of them are in the B-tree, and some in the log if the process was killed.
const ROWS: u32 = 1500;

/// A store that was closed, and one whose process was killed.
fn make() -> [SimulatedDisk; 2] {
    let disk = SimulatedDisk::new(1 << 30);
    let store = open(&disk).unwrap();
    for n in 0..ROWS {
        // In an order that is not that of the keys, so that pages of the B-tree are split.
        add(&store, [n * 7 % ROWS]);
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
    /// All rows were brought into a new B-tree.
    copied: u32,
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
        // What was done is told.
        (0, 0) => match store.losses() {
            [] => seen.harmless += 1,
            losses => {
                assert!(losses.iter().all(|loss| loss.file == "rows.redb"), "{flip:?}: {losses:?}");
                seen.copied += 1;
            }
        },
        (_, 0) => seen.lost += 1,
        _ => seen.unreadable += 1,
    }
    seen.many += u32::from(unreadable > ROWS / 10);
    // It goes on, and loses nothing more.
    add(&store, ROWS..ROWS + 20);
    match store.close() {
        Ok(()) => {}
        Err(error) if unreadable == 0 => panic!("{flip:?}: {error:?}"),
        Err(StoreError::Damaged { .. }) => {}
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

/// Where redb has notes of its own, one flipped bit made it open nothing, and all rows were lost.
#[test]
fn a_damaged_page_costs_only_the_rows_in_it_and_below_it() {
    for disk in make() {
        let mut seen = Seen::default();
        let file = disk.open("rows.redb").unwrap();
        let pages = file.length().unwrap() as usize / 4096;
        for page in 0..pages {
            let disk = disk.after_kill();
            // A byte of the page's count of entries.
            flip(&disk, "rows.redb", page as u64 * 4096 + 2, 0);
            let flip = Flip { file: "rows.redb".into(), at: page * 4096 + 2, was_used: true };
            check(&disk, &flip, &mut seen);
        }
        println!("{pages} pages: {seen:?}");
        // The root of the tables, and the table that says which rows of the log are in the B-tree.
        assert!(seen.refused <= 2, "{seen:?}");
        // The root of the rows, and what is right below it, as there are so few.
        assert!(seen.many <= 3 && seen.copied > 3 && seen.unreadable > 100, "{seen:?}");
    }
}

/// The copy that is made of all rows where redb opens nothing is there as a whole, or is made again.
#[test]
fn a_power_loss_while_rows_are_copied_loses_none_of_them() {
    let [damaged, _] = make();
    let pages = damaged.open("rows.redb").unwrap().length().unwrap() / 4096;
    let is_copied = |disk: &SimulatedDisk| open(disk).is_ok_and(|store| !store.losses().is_empty());
    let page = (1..pages).rev().find(|page| {
        let disk = damaged.after_kill();
        flip(&disk, "rows.redb", page * 4096 + 2, 0);
        is_copied(&disk)
    });
    flip(&damaged, "rows.redb", page.unwrap() * 4096 + 2, 0);
    let whole = damaged.after_kill();
    let before = whole.operations();
    drop(open(&whole).unwrap());
    let operations = whole.operations() - before;
    for cut in (0..operations).step_by(operations.div_ceil(60) as usize) {
        let disk = damaged.after_kill();
        disk.set_cut(Some(Cut::After(cut)));
        drop(open(&disk));
        let store = open(&disk.after_power_loss(cut)).unwrap();
        for n in 0..ROWS {
            assert_eq!(store.get(&key(n)).unwrap().as_deref(), Some(&value(n)[..]), "cut {cut}: row {n}");
        }
    }
}
