//! Tests of damage that a broken disk, or somebody with an editor, does to the folder: the cache goes on with what is good, or
//! begins anew. It never fails to start, and never gives out what the server did not send. (But for the bytes in backing files: of
//! these there is no checksum, as the kernel reads and writes them by itself.)

use super::start::key;
use super::{by, bytes, config, current};
use crate::backing::SLOT;
use crate::{Cache, Config, FORMAT, Held};
use afs_lab::real::folder::Folder;
use afs_store::disk::SimulatedDisk;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LENGTH: usize = 20_000;
/// The length of files that have a file of the disk each.
const LARGE: usize = 100_000;
const FILES: u32 = 5;

/// Makes a folder with some files. One file is dirty. The cache is closed, or left as a killed process leaves it. Returns the
/// files' contents.
fn make(folder: &Path, random: &mut StdRng, length: usize, is_closed: bool) -> Vec<Vec<u8>> {
    let cache = Cache::open(folder, config()).unwrap();
    cache.cell("a.cell").unwrap();
    let contents: Vec<_> = (0..FILES).map(|_| bytes(random, length)).collect();
    for (n, content) in (0..).zip(&contents) {
        let file = current(&cache, key(n), 3, length as u64).unwrap();
        file.fill(0, &content[..length / 2]).unwrap();
        file.confirm(0..length as u64 / 2);
        if n == 0 {
            file.write(length as u64 - 1000, &content[length - 1000..], &by(7)).unwrap();
        }
    }
    cache.maintain().unwrap();
    match is_closed {
        true => drop(cache),
        false => {
            let copy = folder.with_extension("copy");
            copy_folder(folder, &copy);
            drop(cache);
            fs::remove_dir_all(folder).unwrap();
            fs::rename(copy, folder).unwrap();
        }
    }
    contents
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// Checks that everything in the cache is what was put in. Returns whether all of it is there.
fn check(folder: &Path, contents: &[Vec<u8>], when: &str) -> bool {
    let cache = Cache::open(folder, config()).unwrap_or_else(|error| panic!("{when}: {error}"));
    let mut has_all = true;
    for (n, content) in (0..).zip(contents) {
        let length = content.len();
        let file = match cache.file(key(n), 3, length as u64).unwrap() {
            Held::Current(file) | Held::Dirty(file) => file,
        };
        for at in (0..length).step_by(500) {
            let mut out = [0; 500];
            match file.read_at(at as u64, &mut out) {
                Some(read) => {
                    assert_eq!(out[..read.unwrap()], content[at..at + 500], "{when}: file {n} at {at}")
                }
                None => has_all &= at >= length / 2,
            }
        }
        has_all &= n != 0 || file.is_dirty();
    }
    has_all
}

/// The files of the index.
fn index_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|_| path.is_file()));
    files.sort();
    files
}

#[test]
fn bits_that_flip_in_the_index_cost_what_they_are_about_and_no_more() {
    let (mut whole, mut anew) = (0, 0);
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let folder = Folder::new("flips");
        let contents = make(&folder, &mut random, LENGTH, seed % 2 == 0);
        let files = index_files(&folder);
        let file = &files[random.random_range(0..files.len())];
        let mut all = fs::read(file).unwrap();
        // Where something is: most of a file is zeros.
        let used: Vec<_> = (0..all.len()).filter(|&at| all[at] != 0).collect();
        if used.is_empty() {
            continue;
        }
        // More of them in one file of the log leave nothing by which to tell what was in it.
        for _ in 0..random.random_range(1..4) {
            all[used[random.random_range(0..used.len())]] ^= 1 << random.random_range(0..8);
        }
        fs::write(file, all).unwrap();
        let has_all = check(&folder, &contents, &format!("seed {seed}, {}", file.display()));
        whole += usize::from(has_all);
        anew += usize::from(folder.join("damaged.1").exists());
    }
    println!("{whole} lost nothing, {anew} began anew");
    assert!(whole > 0 && whole < 30, "{whole} of 30 lost nothing");
}

/// The same of one bit, on a disk in memory, many times. AFAR_FLIPS sets another number of flips.
#[test]
fn a_flipped_bit_in_the_index_gives_no_wrong_data_and_what_was_written_is_there_or_the_damage_is_told() {
    let flips = std::env::var("AFAR_FLIPS").map_or(100, |text| text.parse().expect("a number"));
    let folder = Path::new("flips");
    let open = |disk: &SimulatedDisk| {
        let config = Config { has_keeper: false, log_bytes: 64 << 10, ..config() };
        Cache::open_on(Arc::new(disk.clone()), folder, config)
    };
    let disk = SimulatedDisk::new(1 << 30);
    let cache = open(&disk).unwrap();
    cache.cell("a.cell").unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let contents: Vec<_> = (0..200).map(|_| bytes(&mut random, 1000)).collect();
    for (n, content) in (0..).zip(&contents) {
        let file = current(&cache, key(n), 3, 1000).unwrap();
        file.fill(0, &content[..500]).unwrap();
        file.confirm(0..500);
        if n % 20 == 0 {
            file.write(500, &content[500..], &by(7)).unwrap();
        }
        drop(file);
        cache.maintain().unwrap();
    }
    let killed = disk.after_kill();
    drop(cache);
    let (mut used, mut told) = (0, 0);
    for seed in 0..flips {
        let disk = [&disk, &killed][seed as usize % 2].after_kill();
        let flip = disk.flip_bit(seed, |name| !name.starts_with("data/"));
        used += u64::from(flip.was_used);
        let cache = match open(&disk) {
            Ok(cache) => cache,
            Err(error) => {
                assert!(error.is_damage() && error.to_string().contains("rows."), "{flip:?}: {error}");
                told += 1;
                continue;
            }
        };
        let is_told = cache.is_damaged();
        told += u64::from(is_told);
        for (n, content) in (0..).zip(&contents) {
            let held = cache.held(key(n)).unwrap();
            let dirty = held.as_ref().is_some_and(|file| file.is_dirty());
            assert!(dirty == (n % 20 == 0) || is_told, "{flip:?}: file {n}");
            let Some(file) = held else { continue };
            let length = if dirty { 1000 } else { 500 };
            let mut out = vec![0; length];
            match file.read_at(0, &mut out) {
                Some(read) => assert_eq!(out[..read.unwrap()], content[..length], "{flip:?}: file {n}"),
                None => assert!(is_told, "{flip:?}: file {n} is gone"),
            }
        }
    }
    println!("{flips} flips, {used} of bytes in use, {told} told");
    assert!(used * 2 > flips, "{used} of {flips} hit bytes in use");
    assert!(told * 4 > flips, "too many hit what nobody reads: {told}");
}

#[test]
fn an_index_that_is_cut_off_or_garbage_is_put_aside_and_a_new_one_begun() {
    for length in [0, 9, 5000] {
        let mut random = StdRng::seed_from_u64(length);
        let folder = Folder::new("cut");
        let contents = make(&folder, &mut random, LENGTH, true);
        let file = folder.join("rows.redb");
        let all = fs::read(&file).unwrap();
        fs::write(&file, &all[..all.len().min(length as usize)]).unwrap();
        // The log may still have all of it.
        check(&folder, &contents, &format!("cut to {length}"));
        fs::remove_dir_all(&folder).unwrap();
        let contents = make(&folder, &mut random, LENGTH, true);
        fs::write(&file, bytes(&mut random, 1000 + length as usize)).unwrap();
        assert!(!check(&folder, &contents, &format!("{length} bytes of garbage")));
        // What was written may be found by hand.
        assert!(folder.join("damaged.1/data").exists());
        assert!(check_twice(&folder), "the new one is a cache like others");
    }
}

/// True if a cache keeps what it gets.
fn check_twice(folder: &Path) -> bool {
    let content = vec![7; 100];
    for _ in 0..2 {
        let cache = Cache::open(folder, config()).unwrap();
        let file = current(&cache, key(99), 1, 100).unwrap();
        let mut out = [0; 100];
        if let Some(read) = file.read_at(0, &mut out) {
            return read.unwrap() == 100 && out[..] == content;
        }
        file.fill(0, &content).unwrap();
        file.confirm(0..100);
    }
    false
}

#[test]
fn a_backing_file_that_is_gone_or_cut_is_fetched_again() {
    let mut random = StdRng::seed_from_u64(1);
    let folder = Folder::new("backing");
    let contents = make(&folder, &mut random, LARGE, true);
    let data = folder.join("data/0");
    let mut files: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| !path.ends_with("small"));
    files.sort();
    assert_eq!(files.len(), FILES as usize);
    fs::remove_file(&files[1]).unwrap();
    fs::OpenOptions::new().write(true).open(&files[2]).unwrap().set_len(3000).unwrap();
    // Longer: what is behind is nobody's.
    fs::OpenOptions::new().write(true).open(&files[3]).unwrap().set_len(1 << 20).unwrap();
    for _ in 0..2 {
        assert!(!check(&folder, &contents, "one is gone, one cut, one longer"));
    }
    let cache = Cache::open(&folder, config()).unwrap();
    assert_eq!(cache.dirty_files().len(), 1, "the others are as they were");
    assert!(!folder.join("damaged.1").exists());
}

#[test]
fn a_slab_that_is_gone_or_cut_is_fetched_again() {
    for left in [None, Some(0), Some(5000), Some(2 * SLOT + 3000)] {
        let folder = Folder::new("slab");
        let contents = make(&folder, &mut StdRng::seed_from_u64(1), LENGTH, true);
        let slab = folder.join("data/0/small");
        assert_eq!(fs::read_dir(folder.join("data/0")).unwrap().count(), 1, "all are in it");
        match left {
            None => fs::remove_file(&slab).unwrap(),
            Some(left) => fs::OpenOptions::new().write(true).open(&slab).unwrap().set_len(left).unwrap(),
        }
        for _ in 0..2 {
            assert!(!check(&folder, &contents, &format!("{left:?} is left")));
        }
        assert!(check_twice(&folder));
    }
}

#[test]
fn a_cache_without_slots_is_taken_over() {
    let folder = Folder::new("taken");
    // But for the number, one with large files only is as it was then.
    let contents = make(&folder, &mut StdRng::seed_from_u64(1), LARGE, true);
    fs::write(folder.join("VERSION"), "afar cache 2\n").unwrap();
    assert!(check(&folder, &contents, "taken over"));
    assert_eq!(fs::read_to_string(folder.join("VERSION")).unwrap(), format!("afar cache {FORMAT}\n"));
    assert!(!folder.join("damaged.1").exists());
}

#[test]
fn a_cache_of_an_older_version_is_put_aside() {
    let folder = Folder::new("older");
    let contents = make(&folder, &mut StdRng::seed_from_u64(1), LENGTH, true);
    fs::write(folder.join("VERSION"), "afar cache 1\n").unwrap();
    assert!(!check(&folder, &contents, "older"));
    assert!(folder.join("damaged.1/rows.redb").exists());
    assert!(check_twice(&folder));
}
