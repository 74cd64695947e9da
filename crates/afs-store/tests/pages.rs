//! What a store shows by the page, of rows on its disk, of such that have not reached it, and of both.

use std::sync::Arc;

use afs_store::disk::SimulatedDisk;
use afs_store::{Batch, Key, Options, Store, after};

use crate::common::Plain;

/// Most rows of a page: what is looked at of each place where rows are.
const PAGE_ROWS_MAX: usize = 3 * 256;

fn key(n: u32) -> Key {
    Key([b"row", &n.to_be_bytes()[..]].concat())
}

/// Changes all rows of these numbers in one batch.
fn change(store: &Store, numbers: impl Iterator<Item = u32>, value: Option<&[u8]>) {
    let mut batch = Batch::default();
    for n in numbers {
        match value {
            Some(value) => batch.put(key(n), value.to_vec()),
            None => batch.delete(key(n)),
        }
    }
    let seq = store.submit(batch).unwrap();
    store.written(seq).unwrap();
}

/// All rows with their values, by the page, and how many pages there were.
fn all(store: &Store) -> (Vec<(Key, Vec<u8>)>, usize) {
    let (mut rows, mut pages, mut from) = (Vec::new(), 0, Some(Key(b"row".to_vec())));
    while let Some(start) = from {
        let (page, next) = store.page(&start, b"row").unwrap();
        assert!(page.len() <= PAGE_ROWS_MAX, "{} rows", page.len());
        assert!(next.as_ref().is_none_or(|next| *next > start && *next < after(b"row")));
        assert!(page.iter().all(|(key, _)| *key >= start && next.as_ref().is_none_or(|next| key < next)));
        rows.extend(page.into_iter().map(|(key, value)| (key, value.to_vec())));
        (pages, from) = (pages + 1, next);
    }
    (rows, pages)
}

/// A page had all rows that had not reached the disk: going through many of them, some at a time, took their number squared.
#[test]
fn a_page_is_as_long_wherever_its_rows_are() {
    const ROWS: u32 = 5000;
    let disk = Arc::new(SimulatedDisk::new(1 << 30));
    let options = Options { cache_bytes: 1 << 20, log_bytes: 8 << 20 };
    let store = Store::open(disk, options, &Plain).unwrap();
    change(&store, [1].into_iter(), Some(b"other"));
    let mut batch = Batch::default();
    batch.put(Key(b"rox".to_vec()), b"behind".to_vec());
    store.written(store.submit(batch).unwrap()).unwrap();

    change(&store, 0..ROWS, Some(b"first"));
    let (rows, pages) = all(&store);
    assert_eq!(rows, (0..ROWS).map(|n| (key(n), b"first".to_vec())).collect::<Vec<_>>());
    assert!(pages >= ROWS as usize / PAGE_ROWS_MAX, "{pages} pages");

    store.checkpoint().unwrap();
    change(&store, (0..ROWS).filter(|n| n % 3 == 0), Some(b"second"));
    change(&store, (0..ROWS).filter(|n| n % 7 == 0), None);
    change(&store, ROWS..2 * ROWS, Some(b"behind"));
    let expected = |n: u32| match n {
        n if n >= ROWS => Some("behind"),
        n if n % 7 == 0 => None,
        n if n % 3 == 0 => Some("second"),
        _ => Some("first"),
    };
    let expected = (0..2 * ROWS).filter_map(|n| Some((key(n), expected(n)?.as_bytes().to_vec())));
    assert_eq!(all(&store).0, expected.collect::<Vec<_>>());
}
