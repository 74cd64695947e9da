//! Tests of what goes when there is too much, and of a full disk.

use super::start::key;
use super::{DISK, by, config, current, open};
use crate::backing::SLOT;
use crate::{Cache, CacheError, CacheFile, Config};
use afs_lab::real::folder::Folder;
use afs_store::disk::{Cut, Disk, SimulatedDisk};
use std::sync::Arc;

fn fill(cache: &Cache, vnode: u32, length: u64) {
    let file = current(cache, key(vnode), 1, length).unwrap();
    file.fill(0, &vec![vnode as u8; length as usize]).unwrap();
    file.confirm(0..length);
}

#[test]
fn over_the_limit_those_go_that_were_opened_least_recently() {
    let cache = Cache::in_memory(Config { limit_bytes: 10 << 20, ..config() }).unwrap();
    for n in 1..=9 {
        fill(&cache, n, 1 << 20);
    }
    cache.maintain().unwrap();
    assert_eq!(cache.usage().files, 9);
    drop(cache.held(key(1)).unwrap());
    fill(&cache, 10, 1 << 20);
    fill(&cache, 11, 1 << 20);
    cache.maintain().unwrap();
    let usage = cache.usage();
    assert!(usage.bytes <= usage.limit_bytes, "{usage:?}");
    assert!(cache.held(key(1)).unwrap().is_some(), "it was opened again");
    assert!(cache.held(key(2)).unwrap().is_none(), "it was opened longest ago");
    assert!(cache.held(key(11)).unwrap().is_some());
}

#[test]
fn however_small_files_are_there_are_no_more_than_the_table_has_room_for() {
    let cache = Cache::in_memory(Config { max_files: 200, ..config() }).unwrap();
    for n in 1..=300 {
        fill(&cache, n, 1);
        if n == 200 {
            cache.maintain().unwrap();
            assert_eq!(cache.usage().files, 200);
        }
    }
    drop(cache.held(key(1)).unwrap());
    cache.maintain().unwrap();
    let files = cache.usage().files;
    assert!((150..=200).contains(&files), "{files}");
    assert!(cache.held(key(1)).unwrap().is_some(), "it was opened again");
    assert!(cache.held(key(2)).unwrap().is_none(), "it was opened longest ago");
    assert!(cache.held(key(300)).unwrap().is_some());
}

#[test]
fn what_is_dirty_or_open_stays() {
    let cache = Cache::in_memory(Config { limit_bytes: 2 << 20, ..config() }).unwrap();
    let file = current(&cache, key(1), 1, 0).unwrap();
    file.write(0, &vec![1; 3 << 20], &by(0)).unwrap();
    drop(file);
    let opened = current(&cache, key(2), 1, 1 << 20).unwrap();
    opened.fill(0, &vec![2; 1 << 20]).unwrap();
    fill(&cache, 3, 1 << 20);
    cache.maintain().unwrap();
    assert_eq!(cache.usage().files, 2);
    let mut out = vec![0; 1 << 20];
    assert_eq!(opened.read_at(0, &mut out).unwrap().unwrap(), 1 << 20);
    let dirty = cache.held(key(1)).unwrap().unwrap();
    assert_eq!((dirty.dirty_bytes(), dirty.present_bytes()), (3 << 20, 3 << 20));
}

#[test]
fn a_file_larger_than_the_cache_is_read_through_it() {
    let cache = Cache::in_memory(Config { limit_bytes: 150 << 20, ..config() }).unwrap();
    let length = 1 << 30;
    let file = current(&cache, key(1), 1, length).unwrap();
    let piece = vec![3; 1 << 20];
    let mut out = vec![0; 1 << 20];
    let mut most = 0;
    for n in 0..600u64 {
        file.fill(n << 20, &piece).unwrap();
        file.confirm(n << 20..(n + 1) << 20);
        assert_eq!(file.read_at(n << 20, &mut out).unwrap().unwrap(), 1 << 20);
        if n % 10 == 0 {
            cache.maintain().unwrap();
        }
        most = most.max(cache.usage().bytes);
    }
    assert!(most < 170 << 20, "{most}");
    assert!(file.read_at(0, &mut out).is_none(), "what was read long ago is gone");
}

#[test]
fn a_full_disk_is_an_error_that_names_the_folder_and_room_is_made_first() {
    // One of them for the slots of small files, whose holes take space here.
    let disk = SimulatedDisk::new(6 << 20);
    let cache = open(&disk).unwrap();
    fill(&cache, 1, 2 << 20);
    fill(&cache, 2, 2 << 20);
    // No room for this one, but for that of the others.
    let file = current(&cache, key(3), 1, 0).unwrap();
    file.write(0, &vec![1; 3 << 20], &by(0)).unwrap();
    assert!(cache.held(key(1)).unwrap().is_none());
    // Nothing more can go.
    let error = file.write(3 << 20, &vec![1; 6 << 20], &by(0)).unwrap_err();
    assert!(matches!(error, CacheError::Full { .. }) && error.to_string().contains("(simulated)"), "{error}");
    let mut out = vec![0; 3 << 20];
    assert_eq!(file.read_at(0, &mut out).unwrap().unwrap(), 3 << 20);
    disk.set_capacity(DISK);
    file.write(3 << 20, &vec![1; 6 << 20], &by(0)).unwrap();
}

#[test]
fn what_cannot_be_put_aside_on_a_full_disk_is_not_lost() {
    let lengths = [4, SLOT as usize + 1];
    for (length, is_tried_again) in lengths.into_iter().flat_map(|length| [(length, false), (length, true)]) {
        let when = format!("{length} bytes, tried again: {is_tried_again}");
        let disk = SimulatedDisk::new(DISK);
        let cache = open(&disk).unwrap();
        let file = current(&cache, key(1), 1, 0).unwrap();
        file.write(0, &vec![7; length], &by(1000)).unwrap();
        disk.set_capacity(0);
        let error = cache.put_aside(&file, "others have changed it").unwrap_err();
        assert!(matches!(error, CacheError::Full { .. }), "{error}");
        disk.set_capacity(DISK);
        if is_tried_again {
            cache.put_aside(&file, "others have changed it").unwrap();
        }
        drop(file);
        let after = disk.after_kill();
        let conflicts = open(&after).unwrap().conflicts();
        let mut bytes = vec![0; 2 * length];
        let n = after.open(&conflicts[0].data_name()).unwrap().read_at(0, &mut bytes).unwrap();
        assert!(conflicts.len() == 1 && bytes[..n] == vec![7; length], "{when}: {n} bytes");
        let text = after.open(&conflicts[0].text_name()).unwrap();
        assert!(text.length().unwrap() > 20, "{when}");
    }
}

#[test]
fn whatever_fails_when_a_file_is_put_aside_what_was_written_is_dirty_or_aside() {
    for (length, at) in (0..12).flat_map(|at| [(4, at), (SLOT as usize + 1, at)]) {
        let disk = SimulatedDisk::new(DISK);
        let cache = open(&disk).unwrap();
        let file = current(&cache, key(1), 1, 0).unwrap();
        file.write(0, &vec![7; length], &by(1000)).unwrap();
        disk.set_cut(Some(Cut::ErrorAt(at)));
        let outcome = cache.put_aside(&file, "others have changed it");
        disk.set_cut(None);
        drop(file);
        drop(cache);
        let after = disk;
        let found = open(&after).unwrap();
        let mut bytes = vec![0; 2 * length];
        let n = match (found.conflicts().first(), found.dirty_of(key(1))) {
            (Some(conflict), None) => {
                after.open(&conflict.data_name()).unwrap().read_at(0, &mut bytes).unwrap()
            }
            (None, Some(dirty)) => dirty.read_at(0, &mut bytes).unwrap().unwrap(),
            other => panic!("{length} bytes, failure {at} ({outcome:?}): {other:?}"),
        };
        assert!(bytes[..n] == vec![7; length], "{length} bytes, failure {at} ({outcome:?}): {n}");
    }
}

#[test]
fn what_takes_no_space_does_not_count_and_all_else_does_after_a_start_too() {
    let disk = SimulatedDisk::new(DISK);
    let cache = open(&disk).unwrap();
    let before = cache.usage().bytes;
    let file = current(&cache, key(1), 1, 0).unwrap();
    file.truncate(30 << 20, &by(0)).unwrap();
    let sparse = cache.usage().bytes - before;
    assert!(sparse < 100_000, "{sparse}");
    file.write(20 << 20, &vec![1; 1 << 20], &by(0)).unwrap();
    file.write(20 << 20, &vec![2; 2 << 20], &by(0)).unwrap();
    assert_eq!(cache.usage().bytes - before, sparse + (2 << 20));
    file.truncate(21 << 20, &by(0)).unwrap();
    assert_eq!(cache.usage().bytes - before, sparse + (1 << 20));
    fill(&cache, 2, 3 << 20);
    drop(file);
    let bytes = cache.usage().bytes;
    let killed = open(&disk.after_kill()).unwrap();
    // What was zeros and nothing else is not told apart any more.
    assert!(killed.usage().bytes >= bytes, "{} of {bytes}", killed.usage().bytes);
    cache.forget(key(1)).unwrap();
    cache.forget(key(2)).unwrap();
    assert_eq!(cache.usage().bytes, before);
}

/// Data of a program that had opened its file before the cache was emptied, and wrote afterwards, were gone with
/// the process.
#[test]
fn a_file_that_is_open_is_not_let_go_of_with_all_others() {
    let disk = SimulatedDisk::new(DISK);
    let cache = open(&disk).unwrap();
    let before = cache.usage().bytes;
    fill(&cache, 1, 1 << 20);
    let file = current(&cache, key(2), 1, 0).unwrap();
    cache.forget_where(|_| true).unwrap();
    assert!(cache.usage().bytes < before + (1 << 20), "what nobody has open is gone");
    file.write(0, b"text", &by(0)).unwrap();
    assert_eq!(cache.dirty_files().len(), 1);
    assert_eq!(open(&disk.after_kill()).unwrap().dirty_files().len(), 1);
}

/// Stores a file as a server does that answers with the next version.
fn store_all(file: &CacheFile) {
    let dirty = file.begin_store().unwrap();
    for range in dirty.ranges {
        assert!(file.note_stored(range, file.version() + 1, dirty.length).unwrap());
    }
    file.end_store();
}

/// A large file that was copied into a mount did not fit on the cache's disk, though nearly all of it was stored.
#[test]
fn a_file_that_is_larger_than_the_caches_disk_can_be_written() {
    const PIECE: u64 = 1 << 20;
    let cache = Cache::in_memory(Config { limit_bytes: 8 * PIECE, ..config() }).unwrap();
    let file = current(&cache, key(1), 1, 0).unwrap();
    for n in 0..32 {
        file.write(n * PIECE, &vec![n as u8; PIECE as usize], &by(0)).unwrap();
        if n % 4 == 3 {
            store_all(&file);
            cache.maintain().unwrap();
        }
        assert!(cache.usage().bytes <= 12 * PIECE, "{n}: {:?}", cache.usage());
    }
    assert_eq!(file.length(), 32 * PIECE);
    let mut byte = [0];
    assert!(file.read_at(0, &mut byte).is_none(), "what was stored long ago is to be fetched again");
}

#[test]
fn what_the_kernel_reads_by_itself_is_not_let_go() {
    let folder = Folder::new("held");
    let cache = Cache::open(&folder, config()).unwrap();
    fill(&cache, 1, 4 << 20);
    let file = cache.held(key(1)).unwrap().unwrap();
    let kernel = file.backing().unwrap();
    assert!(Arc::ptr_eq(&kernel, &file.backing().unwrap()));
    assert_eq!(file.let_go(0..0).unwrap(), 0);
    drop(kernel);
    assert_eq!(file.let_go(0..0).unwrap(), 4 << 20);
    assert!(file.backing().is_none(), "not all of it is here");
}

/// A program that tried again and again to write to a full volume filled the client's disk with what was put aside.
#[test]
fn what_is_put_aside_stays_within_a_part_of_the_limit() {
    const PIECE: usize = 1 << 20;
    let disk = SimulatedDisk::new(DISK);
    let limit_bytes = 40 * PIECE as u64;
    let open = |disk: &SimulatedDisk| {
        Cache::open_on(Arc::new(disk.clone()), "(simulated)".as_ref(), Config { limit_bytes, ..config() })
            .unwrap()
    };
    let cache = open(&disk);
    for n in 1..=30u32 {
        let file = current(&cache, key(n), 1, 0).unwrap();
        file.write(0, &vec![n as u8; PIECE], &by(1000)).unwrap();
        let conflict = cache.put_aside(&file, "the volume is full").unwrap();
        drop(file);
        assert!(disk.open(&conflict.data_name()).is_ok(), "{n}");
    }
    let left = cache.conflicts();
    assert_eq!(left.len(), 10);
    assert_eq!(left.last().unwrap().vnode, 30, "the newest stay");
    assert_eq!(cache.usage().bytes, 10 * PIECE as u64, "they count as the cache's");
    assert_eq!(disk.list("conflicts").unwrap().len(), 20);
    drop(cache);
    assert_eq!(open(&disk).usage().bytes, 10 * PIECE as u64);
}
