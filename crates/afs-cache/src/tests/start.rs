//! Tests of what a start says of a folder.

use super::{by, config, current, open};
use crate::backing::SLOT;
use crate::{Cache, CacheError, CellNumber, FORMAT, FileKey};
use afs_lab::real::folder::Folder;
use afs_lab::skipped::skip;
use afs_store::disk::SimulatedDisk;
use rustix::fs::{IFlags, ioctl_getflags};
use std::fs;

pub(super) fn key(vnode: u32) -> FileKey {
    FileKey { cell: CellNumber(1), volume: 7, vnode, unique: 3 }
}

#[test]
fn a_folder_is_made_used_and_found_again() {
    let folder = Folder::new("again");
    let cache = Cache::open(&folder.join("deep/down"), config()).unwrap();
    let cell = cache.cell("a.cell").unwrap();
    let file = current(&cache, key(2), 5, 10).unwrap();
    file.fill(0, b"0123456789").unwrap();
    file.confirm(0..10);
    drop(file);
    drop(cache);
    let cache = Cache::open(&folder.join("deep/down"), config()).unwrap();
    assert_eq!(cache.cell("a.cell").unwrap(), cell);
    assert_eq!(cache.cell_name(cell).as_deref(), Some("a.cell"));
    let file = current(&cache, key(2), 5, 10).unwrap();
    let mut out = [0; 20];
    assert_eq!(file.read_at(2, &mut out).unwrap().unwrap(), 8);
    assert_eq!(&out[..8], b"23456789");
}

/// A client's process ends while others still have its cache: then nobody closed it, and after a reboot all of it was fetched anew.
#[test]
fn what_is_closed_in_order_outlives_a_reboot_though_somebody_still_has_it() {
    let disk = SimulatedDisk::new(8 << 20);
    let cache = open(&disk).unwrap();
    let somebody = cache.clone();
    let file = current(&cache, key(2), 5, 10).unwrap();
    file.fill(0, b"0123456789").unwrap();
    file.confirm(0..10);
    cache.close().unwrap();
    cache.close().unwrap();
    let after = disk.after_power_loss(1);
    let reopened = open(&after).unwrap();
    let found = current(&reopened, key(2), 5, 10).unwrap();
    assert_eq!(found.read_at(0, &mut [0; 10]).expect("it is there").unwrap(), 10);
    // What is closed stays so.
    let error = somebody.cell("another.cell").unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    for _ in 0..3 {
        file.write(0, b"X", &by(1)).unwrap_err();
        let mut out = [0; 10];
        file.read_at(0, &mut out).expect("it is there").unwrap();
        assert_eq!(&out, b"0123456789", "what is clean is the server's");
    }
    drop((file, cache, somebody));
    assert!(
        current(&open(&disk.after_power_loss(2)).unwrap(), key(2), 5, 10)
            .unwrap()
            .read_at(0, &mut [0])
            .is_some()
    );
}

#[test]
fn another_version_replaces_the_first_and_who_has_that_open_reads_on() {
    let cache = Cache::in_memory(config()).unwrap();
    let old = current(&cache, key(2), 5, 3).unwrap();
    old.fill(0, b"old").unwrap();
    old.confirm(0..3);
    let new = current(&cache, key(2), 6, 3).unwrap();
    let mut out = [0; 3];
    assert!(new.read_at(0, &mut out).is_none(), "nothing of it was fetched");
    new.fill(0, b"new").unwrap();
    assert_eq!(old.read_at(0, &mut out).unwrap().unwrap(), 3);
    assert_eq!(&out, b"old");
    assert_eq!(new.read_at(0, &mut out).unwrap().unwrap(), 3);
    assert_eq!(&out, b"new");
}

#[test]
fn a_folder_of_a_newer_version_is_refused_and_left_alone() {
    let folder = Folder::new("newer");
    drop(Cache::open(&folder, config()).unwrap());
    let text = format!("afar cache {}\n", FORMAT + 1);
    fs::write(folder.join("VERSION"), &text).unwrap();
    let error = Cache::open(&folder, config()).unwrap_err();
    assert!(matches!(error, CacheError::Newer { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains(folder.to_str().unwrap()) && said.contains("newer program"), "{said}");
    assert_eq!(fs::read_to_string(folder.join("VERSION")).unwrap(), text);
}

#[test]
fn a_folder_with_anothers_files_is_refused() {
    let folder = Folder::new("foreign");
    fs::create_dir_all(folder.join("data")).unwrap();
    fs::write(folder.join("data/precious"), b"!").unwrap();
    let error = Cache::open(&folder, config()).unwrap_err();
    assert!(matches!(error, CacheError::Foreign { .. }), "{error}");
    assert_eq!(fs::read(folder.join("data/precious")).unwrap(), b"!");
}

#[test]
fn a_folder_is_used_by_one_process_at_a_time() {
    let folder = Folder::new("locked");
    let _cache = Cache::open(&folder, config()).unwrap();
    let error = Cache::open(&folder, config()).unwrap_err();
    assert!(matches!(error, CacheError::InUse { .. }), "{error}");
}

#[test]
fn what_was_put_aside_is_found_with_a_text_and_no_longer_in_the_way() {
    let folder = Folder::new("aside");
    let cache = Cache::open(&folder, config()).unwrap();
    let cell = cache.cell("a.cell").unwrap();
    let key = FileKey { cell, volume: 7, vnode: 2, unique: 3 };
    let file = current(&cache, key, 5, 3).unwrap();
    file.write(3, b"mine", &by(1000)).unwrap();
    let conflict = cache.put_aside(&file, "the file was changed by others").unwrap();
    drop(file);
    let data = fs::read(folder.join(conflict.data_name())).unwrap();
    assert_eq!(data, b"\0\0\0mine");
    let text = fs::read_to_string(folder.join(conflict.text_name())).unwrap();
    assert!(text.contains("user 1000") && text.contains("a.cell") && text.contains("3 to 7"), "{text}");
    assert!(cache.held(key).unwrap().is_none());
    drop(cache);
    let cache = Cache::open(&folder, config()).unwrap();
    assert_eq!(cache.conflicts(), vec![conflict.clone()]);
    assert!(cache.dirty_files().is_empty());
    drop(cache);
    fs::remove_file(folder.join(conflict.data_name())).unwrap();
    let cache = Cache::open(&folder, config()).unwrap();
    assert!(!folder.join(conflict.data_name()).exists(), "it was taken away, and nothing comes in its place");
    cache.remove_conflict(&conflict).unwrap();
    assert!(fs::read_dir(folder.join("conflicts")).unwrap().next().is_none());
}

#[test]
fn what_was_given_up_is_listed_with_its_reason_and_what_there_was_of_it() {
    let folder = Folder::new("given-up");
    let cache = Cache::open(&folder, config()).unwrap();
    let cell = cache.cell("a.cell").unwrap();
    let key = FileKey { cell, volume: 7, vnode: 2, unique: 3 };
    let link = cache.keep_given_up(key, 1000, "\"link\" could not be made", b"our/target").unwrap();
    let name = cache.keep_given_up(key, 1000, "\"a\" could not be renamed", b"").unwrap();
    let text = fs::read_to_string(folder.join(link.text_name())).unwrap();
    assert!(text.contains("user 1000") && text.contains("\"link\"") && text.contains("0 to 10"), "{text}");
    drop(cache);
    let cache = Cache::open(&folder, config()).unwrap();
    assert_eq!(cache.conflicts(), [link.clone(), name.clone()]);
    assert_eq!(cache.read_conflict(&link, 0, 100).unwrap(), b"our/target");
    assert_eq!(cache.read_conflict(&name, 0, 100).unwrap(), b"");
    // The next file has another number.
    let file = current(&cache, key, 5, 0).unwrap();
    file.write(0, b"mine", &by(1000)).unwrap();
    let conflict = cache.put_aside(&file, "the file was changed by others").unwrap();
    assert!(conflict.number > name.number);
    for conflict in [link, name, conflict] {
        cache.remove_conflict(&conflict).unwrap();
    }
    assert!(fs::read_dir(folder.join("conflicts")).unwrap().next().is_none());
}

#[test]
fn what_an_earlier_conflict_has_left_does_not_pass_for_a_later_ones() {
    for length in [4, 2 * SLOT as usize] {
        let mut names = None;
        for round in ["learns the names", "finds them taken"] {
            let folder = Folder::new("taken");
            let cache = Cache::open(&folder, config()).unwrap();
            let file = current(&cache, key(2), 5, 0).unwrap();
            file.write(0, &vec![b'x'; length], &by(1000)).unwrap();
            if let Some((data, text)) = &names {
                fs::create_dir_all(folder.join("conflicts")).unwrap();
                fs::write(folder.join(data), "an earlier one's").unwrap();
                fs::write(folder.join(text), "an earlier one's").unwrap();
            }
            let conflict = cache.put_aside(&file, "the file was changed by others").unwrap();
            drop(file);
            let data = fs::read(folder.join(conflict.data_name())).unwrap();
            assert_eq!((data.len(), data.first()), (length, Some(&b'x')), "{round}");
            let text = fs::read_to_string(folder.join(conflict.text_name())).unwrap();
            assert!(text.contains("user 1000"), "{round}: {text}");
            names = Some((conflict.data_name(), conflict.text_name()));
        }
    }
}

/// Zeros are written where data are to come, so that the kernel has them in long pieces: they are nobody's data.
#[test]
fn what_is_laid_out_is_not_there_and_what_is_there_stays() {
    const MIB: u64 = 1 << 20;
    let cache = Cache::in_memory(config()).unwrap();
    let length = 3 * MIB + 100_000;
    let file = current(&cache, key(2), 5, length).unwrap();
    file.write(MIB + 5, b"mine", &by(1000)).unwrap();
    for start in [0, 100, MIB - 10, MIB, 2 * MIB, 3 * MIB] {
        file.lay_out(start, 20, length);
        assert!(!file.has(&(start..start + 1)));
    }
    file.lay_out(2 * MIB, 20, 2 * MIB + 100);
    assert_eq!(file.present_bytes(), 4);
    let mut expected: Vec<u8> = (0..length).map(|i| (i % 251) as u8 + 1).collect();
    for (i, piece) in expected.chunks(100_000).enumerate() {
        file.lay_out(i as u64 * 100_000, piece.len() as u64, length);
        file.fill(i as u64 * 100_000, piece).unwrap();
    }
    expected[MIB as usize + 5..][..4].copy_from_slice(b"mine");
    let mut out = vec![0; length as usize];
    assert_eq!(file.read_at(0, &mut out).unwrap().unwrap() as u64, length);
    assert!(out == expected);
}

#[test]
fn files_have_no_times_of_access() {
    if let Err(error) = ioctl_getflags(fs::File::open(std::env::temp_dir()).unwrap()) {
        return skip("files_have_no_times_of_access", &format!("the file system has no such flag: {error}"));
    }
    let folder = Folder::new("times");
    let cache = Cache::open(&folder, config()).unwrap();
    let length = SLOT + 1;
    let file = current(&cache, key(2), 5, length).unwrap();
    file.fill(0, &vec![1; length as usize]).unwrap();
    file.confirm(0..length);
    assert!(ioctl_getflags(&*file.backing().unwrap()).unwrap().contains(IFlags::NOATIME));
}

#[test]
fn a_file_that_gets_another_key_is_there_by_that_one_after_the_next_start_too() {
    let folder = Folder::new("renamed");
    let cache = Cache::open(&folder, config()).unwrap();
    for (vnode, text) in [(2, b"one"), (4, b"two")] {
        let file = current(&cache, key(vnode), 5, 3).unwrap();
        file.fill(0, text).unwrap();
        file.confirm(0..3);
    }
    drop(cache);
    let cache = Cache::open(&folder, config()).unwrap();
    cache.rename(key(2), key(6)).unwrap();
    cache.rename(key(6), key(4)).unwrap();
    assert!(cache.held(key(2)).unwrap().is_none() && cache.held(key(6)).unwrap().is_none());
    cache.rename(key(4), key(8)).unwrap();
    drop(cache);
    let cache = Cache::open(&folder, config()).unwrap();
    let mut out = [0; 3];
    assert_eq!(cache.held(key(8)).unwrap().unwrap().read_at(0, &mut out).unwrap().unwrap(), 3);
    assert_eq!((&out, cache.usage().files), (b"two", 1), "the one that was there stays");
}
