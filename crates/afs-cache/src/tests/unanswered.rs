//! Stores that broke without an answer: the server has what it had before, or what was sent.

use super::start::key;
use super::{DISK, by, config, current, open};
use crate::{Cache, CacheFile, SentStore};
use afs_store::disk::SimulatedDisk;

/// Sends a file of so many bytes, and hears nothing.
fn send_unheard(file: &CacheFile, length: u64) {
    file.write(0, &vec![1; length as usize], &by(0)).unwrap();
    assert!(file.begin_store().is_some());
    file.note_sent(SentStore { length, modified: 1 }).unwrap();
    file.end_store();
}

#[test]
fn a_cut_to_the_length_last_heard_of_is_stored_as_the_server_may_have_more() {
    let disk = SimulatedDisk::new(DISK);
    let cache = open(&disk).unwrap();
    let file = current(&cache, key(1), 1, 0).unwrap();
    send_unheard(&file, 5000);
    file.truncate(0, &by(0)).unwrap();
    assert!(file.is_dirty());
    drop((file, cache));

    let cache = open(&disk).unwrap();
    let file = cache.held(key(1)).unwrap().unwrap();
    assert!(file.is_dirty(), "after a new start");
    let dirty = file.begin_store().unwrap();
    assert_eq!((dirty.length, dirty.ranges), (0, Vec::new()));
    file.note_stored(0..0, 2, 0).unwrap();
    file.end_store();
    assert!(!file.is_dirty());
}

#[test]
fn zeros_where_a_store_may_have_put_data_are_made_by_cutting_first() {
    let cache = Cache::in_memory(config()).unwrap();
    let file = current(&cache, key(1), 1, 0).unwrap();
    send_unheard(&file, 5000);
    file.truncate(100, &by(0)).unwrap();
    file.write(2000, &[2; 1000], &by(0)).unwrap();
    let dirty = file.begin_store().unwrap();
    assert_eq!((dirty.cut_first, dirty.ranges), (Some(100), vec![0..100, 2000..3000]));
}

#[test]
fn what_was_sent_and_not_heard_of_is_not_let_go() {
    let cache = Cache::in_memory(config()).unwrap();
    let file = current(&cache, key(1), 1, 0).unwrap();
    // Zeros, of which no range is dirty: their length was sent.
    file.truncate(5000, &by(0)).unwrap();
    assert!(file.begin_store().is_some());
    file.note_sent(SentStore { length: 5000, modified: 1 }).unwrap();
    file.end_store();
    assert!(file.is_dirty());
    assert_eq!(file.let_go(0..0).unwrap(), 0);
    let mut out = [1; 5000];
    assert_eq!(file.read_at(0, &mut out).unwrap().unwrap(), 5000);
    assert_eq!(out, [0; 5000]);
}
