//! Tests of what programs were promised to outlast a loss of power.

use super::{FILES, Step, World, config, open, step};
use crate::{Cache, CacheError, Config};
use afs_store::disk::{Cut, SimulatedDisk};
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
