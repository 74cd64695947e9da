//! Tests of what the kernel writes to a backing file by itself, which nobody sees until it is asked for: a program that has
//! mapped a file to be written.

use super::start::key;
use super::{DISK, by, current, open};
use crate::records;
use crate::{Cache, CacheFile, SentStore};
use afs_store::disk::{Disk, DiskFile, SimulatedDisk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const OLD: &[u8] = b"0123456789";

/// A cache with a file of ten bytes, all of them here; and the file as the kernel has it.
fn lent(disk: &SimulatedDisk) -> (Cache, Arc<CacheFile>, Arc<dyn DiskFile>) {
    let cache = open(disk).unwrap();
    let file = current(&cache, key(2), 5, OLD.len() as u64).unwrap();
    file.fill(0, OLD).unwrap();
    file.confirm(0..OLD.len() as u64);
    file.lend(&by(1000)).unwrap();
    let kernel = disk.open(&records::backing_name(file.number())).unwrap();
    (cache, file, kernel)
}

fn content(file: &CacheFile) -> Vec<u8> {
    let mut out = vec![0; 100];
    let n = file.read_at(0, &mut out).expect("all of it is here").unwrap();
    out.truncate(n);
    out
}

/// Stores all that is dirty, as if to a server that answers with the next version. What was stored.
fn store(file: &CacheFile, server: &mut Vec<u8>) {
    let Some(dirty) = file.begin_store() else { return };
    let mut calls = Vec::new();
    calls.extend(dirty.cut_first.map(|cut| (cut..cut, cut)));
    calls.extend(dirty.ranges.iter().map(|range| (range.clone(), dirty.length)));
    calls.push((dirty.length..dirty.length, dirty.length));
    for (range, file_length) in calls {
        let mut data = vec![0; (range.end - range.start) as usize];
        file.note_sent(SentStore { length: file_length, modified: 1 }).unwrap();
        file.read_for_store(range.start, &mut data).unwrap();
        server.truncate(file_length as usize);
        server.resize(server.len().max(range.end as usize), 0);
        server[range.start as usize..range.end as usize].copy_from_slice(&data);
        assert!(file.note_stored(range, file.version() + 1, server.len() as u64).unwrap());
    }
    file.end_store();
}

#[test]
fn what_the_kernel_wrote_is_dirty_when_it_is_taken_back() {
    let (_cache, file, kernel) = lent(&SimulatedDisk::new(DISK));
    kernel.write_at(3, b"XY").unwrap();
    assert!(!file.is_dirty(), "nobody has seen it");
    file.take_back(true, true, &by(1000)).unwrap();
    assert!(file.is_dirty() && !file.is_lent());
    assert_eq!((content(&file), file.writer().user), (b"012XY56789".to_vec(), 1000));
    let mut server = OLD.to_vec();
    store(&file, &mut server);
    assert_eq!(server, b"012XY56789");
    assert!(!file.is_dirty());
}

#[test]
fn what_the_kernel_made_longer_or_shorter_is_seen_without_being_told() {
    for length in [4, 0, 25] {
        let (_cache, file, kernel) = lent(&SimulatedDisk::new(DISK));
        kernel.set_length(length).unwrap();
        file.take_back(false, true, &by(1000)).unwrap();
        let mut expected = OLD.to_vec();
        expected.resize(length as usize, 0);
        assert_eq!(content(&file), expected);
        let mut server = OLD.to_vec();
        store(&file, &mut server);
        assert_eq!(server, expected);
        assert!(!file.is_dirty());
    }
}

#[test]
fn what_was_lent_and_not_written_is_clean_and_goes_again() {
    let disk = SimulatedDisk::new(DISK);
    let (cache, file, _kernel) = lent(&disk);
    assert_eq!(cache.dirty_files().len(), 1, "it is kept as long as it may be written");
    file.take_back(false, true, &by(1000)).unwrap();
    assert!(!file.is_dirty());
    assert!(cache.dirty_files().is_empty());
    drop(file);
    let after = open(&disk.after_kill()).unwrap();
    assert!(after.dirty_files().is_empty());
}

#[test]
fn what_the_kernel_wrote_for_one_user_is_not_stored_as_another_who_wrote_meanwhile() {
    let (_cache, file, kernel) = lent(&SimulatedDisk::new(DISK));
    kernel.write_at(3, b"XY").unwrap();
    file.write(9, b"!", &by(1001)).unwrap();
    let mut server = OLD.to_vec();
    store(&file, &mut server);
    file.take_back(true, true, &by(1000)).unwrap();
    assert_eq!((content(&file), file.writer().user), (b"012XY5678!".to_vec(), 1000));
}

#[test]
fn it_is_lent_until_the_last_has_given_it_back() {
    let (cache, file, kernel) = lent(&SimulatedDisk::new(DISK));
    file.lend(&by(1001)).unwrap();
    file.take_back(false, true, &by(1000)).unwrap();
    assert!(file.is_lent());
    kernel.write_at(0, b"!").unwrap();
    assert_eq!(file.let_go(0..0).unwrap(), 0, "what the kernel may write is not taken away");
    file.take_back(true, true, &by(1000)).unwrap();
    assert!(!file.is_lent() && file.is_dirty());
    assert_eq!(cache.dirty_files().len(), 1);
}

#[test]
fn what_the_kernel_wrote_outlasts_the_death_of_the_process() {
    let disk = SimulatedDisk::new(DISK);
    let (cache, file, kernel) = lent(&disk);
    kernel.write_at(8, b"ABCD").unwrap();
    let after = open(&disk.after_kill()).unwrap();
    let found = after.dirty_of(key(2)).expect("nobody knows what was written, so all counts as written");
    assert_eq!(content(&found), b"01234567ABCD");
    assert_eq!((found.version(), found.writer().user), (5, 1000));
    let mut server = OLD.to_vec();
    store(&found, &mut server);
    assert_eq!(server, b"01234567ABCD");
    assert!(after.dirty_files().is_empty());
    std::mem::forget((cache, file));
}

/// A mapping whose file others changed used to be taken back into the new version. None of the new version's data were there,
/// so all of it was stored as zeros over what the others had written.
#[test]
fn what_was_lent_of_a_version_that_was_replaced_is_put_aside_and_the_new_one_stays() {
    let disk = SimulatedDisk::new(DISK);
    let (cache, file, kernel) = lent(&disk);
    let new = current(&cache, key(2), 6, 4).unwrap();
    new.write(0, b"mine", &by(7)).unwrap();
    kernel.write_at(0, b"mapped").unwrap();
    file.take_back(true, true, &by(1000)).unwrap();
    let conflict = cache.put_aside(&file, "others have changed it").unwrap();
    assert_eq!((conflict.version, conflict.length), (5, 10));
    let aside = disk.open(&conflict.data_name()).unwrap();
    let mut bytes = [0; 10];
    assert_eq!(aside.read_at(0, &mut bytes).unwrap(), 10);
    assert_eq!(&bytes, b"mapped6789");
    assert_eq!(content(&new), b"mine");
    let dirty: Vec<_> = cache.dirty_files().iter().map(|file| file.dirty_bytes()).collect();
    assert_eq!(dirty, [4]);
    drop(file);
    // And so after a death.
    let after = open(&disk.after_kill()).unwrap();
    assert_eq!(content(&after.dirty_of(key(2)).unwrap()), b"mine");
    assert_eq!(after.conflicts(), [conflict]);
    std::mem::forget((cache, new));
}

#[test]
fn between_our_writes_stores_and_deaths_what_the_kernel_writes_is_never_lost() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = SimulatedDisk::new(DISK);
        let (mut cache, mut file, mut kernel) = lent(&disk);
        let (mut here, mut server) = (OLD.to_vec(), OLD.to_vec());
        for step in 0..60 {
            let when = format!("seed {seed}, step {step}");
            let at = random.random_range(0..30u64);
            let byte = [random.random()];
            match random.random_range(0..9) {
                0..3 => {
                    // A mapping does not make a file longer.
                    if (at as usize) < here.len() {
                        kernel.write_at(at, &byte).unwrap();
                        here[at as usize] = byte[0];
                    }
                }
                3 => {
                    file.write(at, &byte, &by(7)).unwrap();
                    here.resize(here.len().max(at as usize + 1), 0);
                    here[at as usize] = byte[0];
                }
                4 => {
                    file.truncate(at, &by(7)).unwrap();
                    here.resize(at as usize, 0);
                }
                5 | 6 => {
                    file.take_back(true, false, &by(1000)).unwrap();
                    assert_eq!(content(&file), here, "{when}");
                }
                7 => {
                    file.take_back(true, false, &by(1000)).unwrap();
                    store(&file, &mut server);
                    assert_eq!(server, here, "{when}: at the server");
                    assert!(!file.is_dirty(), "{when}");
                }
                _ => {
                    disk = disk.after_kill();
                    let after = open(&disk).unwrap();
                    let found = after.held(key(2)).unwrap().expect("it may be dirty");
                    // Left for ever, as a process that was killed leaves them.
                    std::mem::forget((std::mem::replace(&mut cache, after), file));
                    file = found;
                    kernel = disk.open(&records::backing_name(file.number())).unwrap();
                    assert_eq!(content(&file), here, "{when}: after a death");
                    file.lend(&by(1000)).unwrap();
                }
            }
        }
        file.take_back(true, true, &by(1000)).unwrap();
        store(&file, &mut server);
        assert_eq!(server, here, "seed {seed}");
        drop(cache);
    }
}
