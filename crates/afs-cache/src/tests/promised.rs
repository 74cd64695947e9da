//! Tests of what programs were promised to outlast a loss of power.

use super::{FILES, Step, World, by, config, current, open, step};
use crate::{Cache, CacheError, Config, FileKey};
use afs_store::disk::{Cut, Disk, SimulatedDisk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

/// The file that a step is about.
fn file_of(step: &Step) -> Option<u32> {
    match step {
        Step::Fill(n, _)
        | Step::Write(n, ..)
        | Step::Truncate(n, _)
        | Step::Store(n, _)
        | Step::Others(n, _)
        | Step::LetGo(n, _)
        | Step::Reopen(n) => Some(*n),
        Step::Maintain => None,
    }
}

/// Makes promises about half of the files, goes on with the others until the power is lost, and looks at what there is then. Returns the
/// number of files that were promised. `promise` has a file and the cache.
fn lose_power(
    seed: u64,
    config: Config,
    promise: impl Fn(&crate::CacheFile, &Cache) -> Result<(), CacheError>,
) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let disk = SimulatedDisk::new(super::DISK);
    let cache = Cache::open_on(Arc::new(disk.clone()), Path::new("(simulated)"), config).unwrap();
    let mut world = World::with(cache, &mut random).unwrap();
    for _ in 0..random.random_range(1..60) {
        world.run(&step(&mut random)).unwrap();
    }
    let promised: Vec<u32> = (0..FILES / 2).filter(|n| world.models[n].is_dirty()).collect();
    for n in &promised {
        let file = world.cache.held(world.key(*n)).unwrap().expect("it is dirty");
        promise(&file, &world.cache).unwrap();
    }
    disk.set_cut(Some(Cut::After(random.random_range(0..100))));
    for _ in 0..60 {
        let step = step(&mut random);
        if file_of(&step).is_some_and(|n| n < FILES / 2) {
            continue;
        }
        if world.run(&step).is_err() {
            break;
        }
    }
    let after = disk.after_power_loss(seed);
    let models = world.models.iter().filter(|(n, _)| promised.contains(n));
    let models: std::collections::BTreeMap<_, _> = models.map(|(n, model)| (*n, model.clone())).collect();
    let found = World { cache: open(&after).unwrap(), before: models.clone(), models };
    for n in &promised {
        let file = found.cache.held(found.key(*n)).unwrap();
        assert!(file.is_some_and(|file| file.is_dirty()), "seed {seed}: file {n} is to be stored");
    }
    found.check(&format!("seed {seed}"));
    std::mem::forget(world);
    promised.len()
}

#[test]
fn what_was_promised_and_synced_outlasts_a_loss_of_power_at_any_moment() {
    let promised: usize =
        (0..100).map(|seed| lose_power(seed, config(), |file, _| file.promise_and_sync(7))).sum();
    assert!(promised > 50, "only {promised} files were promised");
}

/// A cache as with write-behind, whose promises put little data into the log, and a file of 8 KB that was written into it.
fn with_little(disk: &SimulatedDisk, log_bytes: u64) -> (Cache, Vec<Arc<crate::CacheFile>>) {
    let config = Config { syncs_each_second: true, log_bytes, ..config() };
    let cache = Cache::open_on(Arc::new(disk.clone()), Path::new("(simulated)"), config).unwrap();
    let cell = cache.cell("cell").unwrap();
    let file = |n: u32| {
        let key = FileKey { cell, volume: 1, vnode: 2 * n + 2, unique: 1 };
        let file = current(&cache, key, 1, 0).unwrap();
        file.write(0, &[n as u8 + 1; 8192], &by(7)).unwrap();
        file
    };
    // Data may be in the log from the first promise on.
    file(100).promise_and_sync(7).unwrap();
    let files = (0..100).map(file).collect();
    cache.maintain().unwrap();
    (cache, files)
}

#[test]
fn a_promise_of_little_data_costs_one_sync() {
    let disk = SimulatedDisk::new(super::DISK);
    let (cache, files) = with_little(&disk, 2 << 20);
    for file in &files {
        // Over what is dirty, and behind it.
        file.write(1000, &[9; 8000], &by(7)).unwrap();
        let before = disk.syncs();
        file.promise_and_sync(7).unwrap();
        assert_eq!(disk.syncs() - before, 1);
    }
    files[0].write(0, &[9; 100_000], &by(7)).unwrap();
    let before = disk.syncs();
    files[0].promise_and_sync(7).unwrap();
    assert!(disk.syncs() - before > 1, "the data are not in the log");
    // They are not kept there.
    (0..20).for_each(|_| cache.maintain().unwrap());
    let before = disk.operations();
    (0..20).for_each(|_| cache.maintain().unwrap());
    assert_eq!(disk.operations(), before, "there is nothing left to be done");
}

#[test]
fn the_log_has_only_so_much_of_promised_data_and_all_of_them_outlast_a_loss_of_power() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(super::DISK);
        let (cache, files) = with_little(&disk, 64 << 10);
        files.iter().for_each(|file| file.promise_and_sync(7).unwrap());
        let log = disk.list("").unwrap().into_iter().filter(|name| name.starts_with("log."));
        let bytes: u64 = log.map(|name| disk.open(&name).unwrap().length().unwrap()).sum();
        assert!((128 << 10..400 << 10).contains(&bytes), "all of them have 800 KiB, the log {bytes} bytes");
        let found = open(&disk.after_power_loss(seed)).unwrap();
        for (n, file) in files.iter().enumerate() {
            let held = found.held(file.key()).unwrap().filter(|held| held.is_dirty());
            let mut out = vec![0; 9000];
            let read = held.expect("it was promised").read_at(0, &mut out).unwrap().unwrap();
            assert!(out[..read] == [n as u8 + 1; 8192], "seed {seed}: file {n}");
        }
        std::mem::forget((cache, files));
    }
}

#[test]
fn what_the_log_has_no_more_is_on_the_disk() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(super::DISK);
        let (cache, files) = with_little(&disk, 1 << 20);
        for file in &files {
            file.write(1000, b"promised", &by(7)).unwrap();
            file.promise_and_sync(7).unwrap();
        }
        (0..20).for_each(|_| cache.maintain().unwrap());
        let found = open(&disk.after_power_loss(seed)).unwrap();
        for (n, file) in files.iter().enumerate() {
            let held = found.held(file.key()).unwrap().filter(|held| held.is_dirty());
            let mut out = [0; 8];
            held.expect("it was promised").read_at(1000, &mut out).unwrap().unwrap();
            assert_eq!(&out, b"promised", "seed {seed}: file {n}");
        }
        std::mem::forget((cache, files));
    }
}

/// The row that says so is not synced yet: after a loss of power the file is there, and promised.
#[test]
fn the_data_of_a_file_that_is_let_go_of_stay_until_the_disk_has_that_it_is_gone() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(super::DISK);
        let (cache, mut files) = with_little(&disk, 1 << 20);
        let key = files[0].key();
        files[0].promise_and_sync(7).unwrap();
        (0..2).for_each(|_| cache.maintain().unwrap());
        cache.forget(key).unwrap();
        drop(files.remove(0));
        disk.sync_files(&["data/0/small".to_owned()]).unwrap();
        let found = open(&disk.after_power_loss(seed)).unwrap();
        if let Some(held) = found.held(key).unwrap() {
            let mut out = vec![0; 8192];
            held.read_at(0, &mut out).unwrap().unwrap();
            assert!(out == [1; 8192], "seed {seed}");
        }
        cache.maintain().unwrap();
        std::mem::forget((cache, files));
    }
}

#[test]
fn what_was_put_back_after_a_loss_of_power_is_there_after_the_next_one() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(super::DISK);
        let (cache, files) = with_little(&disk, 1 << 20);
        files[0].write(100, b"promised", &by(7)).unwrap();
        files[0].promise_and_sync(7).unwrap();
        let first = disk.after_power_loss(seed);
        // The start is cut off, too.
        first.set_cut(Some(Cut::After(seed * 2)));
        let second = open(&first);
        let found = open(&first.after_power_loss(seed + 1)).unwrap();
        let held = found.held(files[0].key()).unwrap().filter(|held| held.is_dirty());
        let mut out = [0; 8];
        held.expect("it was promised").read_at(100, &mut out).unwrap().unwrap();
        assert_eq!(&out, b"promised", "seed {seed}");
        std::mem::forget((cache, files, second));
    }
}

#[test]
fn what_was_promised_within_a_second_outlasts_a_loss_of_power_after_it() {
    let config = Config { syncs_each_second: true, ..config() };
    let promise = |file: &crate::CacheFile, cache: &Cache| file.promise(7).and_then(|()| cache.maintain());
    let promised: usize = (0..40).map(|seed| lose_power(seed, config.clone(), promise)).sum();
    assert!(promised > 20, "only {promised} files were promised");
}

#[test]
fn what_was_stored_is_promised_no_longer() {
    let disk = SimulatedDisk::new(super::DISK);
    let mut random = StdRng::seed_from_u64(1);
    let mut world = World::new(&disk, &mut random).unwrap();
    world.run(&Step::Write(0, 0, b"first".to_vec())).unwrap();
    world.open(0).unwrap().promise_and_sync(7).unwrap();
    world.run(&Step::Store(0, 9)).unwrap();
    // Of this one nobody was told that it lasts.
    world.run(&Step::Write(0, 0, b"later".to_vec())).unwrap();
    (0..20).for_each(|_| world.cache.maintain().unwrap());
    let cache = open(&disk.after_power_loss(1)).unwrap();
    assert_eq!((cache.conflicts().len(), cache.dirty_files().len()), (1, 0));
}
