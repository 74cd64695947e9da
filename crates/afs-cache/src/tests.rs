//! The cache as a whole: against a model, through deaths of the process and losses of power at any step, and what a start says
//! of a folder that is none for it.

use crate::{Cache, CacheError, CacheFile, Config, FileKey, Held, SentStore, Writer};
use afs_store::disk::{Cut, SimulatedDisk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

mod damage;
mod lent;
mod limit;
mod process;
mod promised;
mod start;
mod unanswered;

const DISK: u64 = 64 << 20;
const FILES: u32 = 4;
/// Some of them do not fit into a slot, or outgrow it.
const LENGTH: u64 = 100_000;

fn config() -> Config {
    Config { log_bytes: 64 << 10, index_bytes: 1 << 20, has_keeper: false, ..Config::new(1 << 30) }
}

fn open(disk: &SimulatedDisk) -> Result<Cache, CacheError> {
    Cache::open_on(Arc::new(disk.clone()), Path::new("(simulated)"), config())
}

/// A local user who is somebody to the cell.
fn by(user: u32) -> Writer {
    Writer::new(user, format!("user{user}").into())
}

fn current(cache: &Cache, key: FileKey, version: u64, length: u64) -> Result<Arc<CacheFile>, CacheError> {
    match cache.file(key, version, length)? {
        Held::Current(file) => Ok(file),
        Held::Dirty(file) => panic!("{key:?}: {} is dirty", file.version()),
    }
}

/// The server's copy of a file, and the data that were written here on top.
#[derive(Debug, Clone, Default)]
struct Model {
    version: u64,
    server: Vec<u8>,
    here: Vec<u8>,
    dirty: Vec<bool>,
}

impl Model {
    fn is_dirty(&self) -> bool {
        self.here.len() != self.server.len()
            || self.dirty.iter().any(|&dirty| dirty)
            || self.here != self.server
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.here.len() < end {
            self.here.resize(end, 0);
            self.dirty.resize(end, false);
        }
        self.here[at..end].copy_from_slice(bytes);
        self.dirty[at..end].fill(true);
    }

    fn truncate(&mut self, length: usize) {
        self.here.resize(length, 0);
        self.dirty.resize(length, false);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Fill(u32, Range<u64>),
    Write(u32, u64, Vec<u8>),
    Truncate(u32, u64),
    /// As many calls of the store are answered, then it breaks.
    Store(u32, usize),
    Others(u32, Vec<u8>),
    LetGo(u32, Range<u64>),
    Reopen(u32),
    Maintain,
}

fn bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes[..]);
    bytes
}

fn step(random: &mut StdRng) -> Step {
    let file = random.random_range(0..FILES);
    let at = random.random_range(0..LENGTH);
    let length = random.random_range(1..9000);
    match random.random_range(0..20) {
        0..6 => Step::Fill(file, at..at + length),
        6..12 => Step::Write(file, at, bytes(random, length as usize)),
        12..14 => Step::Truncate(file, at),
        14..17 => Step::Store(file, random.random_range(0..4)),
        17 => Step::LetGo(file, at..at + length),
        18 if random.random_bool(0.3) => {
            let length = random.random_range(0..LENGTH) as usize;
            Step::Others(file, bytes(random, length))
        }
        18 => Step::Reopen(file),
        _ => Step::Maintain,
    }
}

struct World {
    cache: Cache,
    models: BTreeMap<u32, Model>,
    /// The files that an operation is changing, as they were before it: a look after a crash may find either state.
    before: BTreeMap<u32, Model>,
}

impl World {
    fn key(&self, file: u32) -> FileKey {
        FileKey {
            cell: self.cache.cell("cell").expect("it is there"),
            volume: 1,
            vnode: 2 * file + 2,
            unique: 1,
        }
    }

    fn new(disk: &SimulatedDisk, random: &mut StdRng) -> Result<Self, CacheError> {
        Self::with(open(disk)?, random)
    }

    fn with(cache: Cache, random: &mut StdRng) -> Result<Self, CacheError> {
        cache.cell("cell")?;
        let models: BTreeMap<_, _> = (0..FILES)
            .map(|file| {
                let length = random.random_range(0..LENGTH) as usize;
                let server = bytes(random, length);
                (file, Model { version: 1, here: server.clone(), dirty: vec![false; length], server })
            })
            .collect();
        Ok(Self { cache, before: models.clone(), models })
    }

    fn open(&self, file: u32) -> Result<Arc<CacheFile>, CacheError> {
        let model = &self.models[&file];
        if model.is_dirty()
            && let Some(held) = self.cache.held(self.key(file))?
        {
            return Ok(held);
        }
        current(&self.cache, self.key(file), model.version, model.server.len() as u64)
    }

    fn run(&mut self, step: &Step) -> Result<(), CacheError> {
        self.before = self.models.clone();
        match step {
            Step::Fill(n, range) => {
                let file = self.open(*n)?;
                let server = &self.models[n].server;
                let end = (range.end as usize).min(server.len());
                let start = (range.start as usize).min(end);
                file.fill(start as u64, &server[start..end])?;
                if range.end % 5 == 0 {
                    file.take_out(start as u64..end as u64);
                } else {
                    file.confirm(start as u64..end as u64);
                }
            }
            Step::Write(n, at, data) => {
                self.models.get_mut(n).expect("it is there").write(*at as usize, data);
                // The file as it was before.
                let model = self.before[n].clone();
                let file = if model.is_dirty() {
                    self.cache.held(self.key(*n))?.expect("it is dirty")
                } else {
                    current(&self.cache, self.key(*n), model.version, model.server.len() as u64)?
                };
                file.write(*at, data, &by(1000 + n))?;
            }
            Step::Truncate(n, length) => {
                let file = self.open(*n)?;
                self.models.get_mut(n).expect("it is there").truncate(*length as usize);
                file.truncate(*length, &by(7))?;
            }
            Step::Store(n, answered) => self.store(*n, *answered)?,
            Step::Others(n, data) => {
                let model = self.models.get_mut(n).expect("it is there");
                if !model.is_dirty() {
                    model.version += 1;
                    model.server.clone_from(data);
                    model.here.clone_from(data);
                    model.dirty = vec![false; data.len()];
                    self.open(*n)?;
                }
            }
            Step::LetGo(n, keep) => {
                self.open(*n)?.let_go(keep.clone())?;
            }
            Step::Reopen(n) => drop(self.open(*n)?),
            Step::Maintain => self.cache.maintain()?,
        }
        Ok(())
    }

    /// Stores as afs-client does, to a server that keeps the rules of StoreData (File service notes 6.2).
    fn store(&mut self, n: u32, answered: usize) -> Result<(), CacheError> {
        let file = self.open(n)?;
        let Some(dirty) = file.begin_store() else { return Ok(()) };
        let mut calls: Vec<(Range<u64>, u64)> = Vec::new();
        calls.extend(dirty.cut_first.map(|cut| (cut..cut, cut)));
        calls.extend(dirty.ranges.iter().map(|range| (range.clone(), dirty.length)));
        calls.push((dirty.length..dirty.length, dirty.length));
        let mut outcome = Ok(());
        for (range, file_length) in calls.into_iter().take(answered) {
            let mut data = vec![0; (range.end - range.start) as usize];
            outcome = file
                .note_sent(SentStore { length: file_length, modified: 1 })
                .and_then(|()| file.read_for_store(range.start, &mut data));
            if outcome.is_err() {
                break;
            }
            let model = self.models.get_mut(&n).expect("it is there");
            let base = model.server.len().min(file_length as usize);
            model.server.truncate(base);
            let end = base.max(range.end as usize);
            model.server.resize(end, 0);
            model.server[range.start as usize..range.end as usize].copy_from_slice(&data);
            model.version += 1;
            model.dirty[range.start as usize..range.end as usize].fill(false);
            outcome = file
                .note_stored(range, model.version, model.server.len() as u64)
                .map(|is_next| assert!(is_next, "nobody else stores"));
            if outcome.is_err() {
                break;
            }
        }
        file.end_store();
        outcome
    }

    /// Each byte that is here is what it has to be.
    fn check(&self, when: &str) {
        for (n, model) in &self.models {
            let file = self.open(*n).unwrap();
            assert_eq!(file.length(), model.here.len() as u64, "{when}: file {n}");
            assert_eq!(file.version(), model.version, "{when}: file {n}");
            let mut at = 0;
            while at < file.length() {
                let mut out = [0; 257];
                if let Some(result) = file.read_at(at, &mut out) {
                    let read = result.unwrap();
                    assert_eq!(
                        out[..read],
                        model.here[at as usize..at as usize + read],
                        "{when}: file {n} at {at}"
                    );
                }
                at += 257;
            }
            for range in file.dirty_ranges() {
                let dirty = &model.dirty[range.start as usize..range.end as usize];
                assert!(dirty.iter().all(|&dirty| dirty), "{when}: file {n}, {range:?} is not dirty");
            }
            let dirty = model.dirty.iter().filter(|&&dirty| dirty).count() as u64;
            assert_eq!(file.dirty_bytes(), dirty, "{when}: file {n}");
        }
    }

    /// The same after the process died in a step: which was done, or not.
    fn check_after_crash(&self, cache: &Cache, when: &str) {
        for (n, after) in &self.models {
            let before = &self.before[n];
            let key = self.key(*n);
            let Some(file) = cache.held(key).unwrap() else {
                assert!(!before.is_dirty() || !after.is_dirty(), "{when}: file {n} is lost");
                continue;
            };
            let dirty: crate::ranges::RangeSet = file.dirty_ranges().into_iter().collect();
            let version = file.version();
            // A store has several calls: whatever of them was noted.
            let server = if version == before.version { &before.server } else { &after.server };
            let must_be_dirty =
                |at: usize| before.dirty.get(at) == Some(&true) && after.dirty.get(at) == Some(&true);
            for at in 0..before.dirty.len().min(after.dirty.len()) {
                if must_be_dirty(at) {
                    assert!(
                        dirty.around(at as u64).is_some(),
                        "{when}: file {n}: byte {at} was acknowledged"
                    );
                }
            }
            let mut all = vec![0; file.length() as usize];
            let missing = file.missing(0..file.length());
            let mut from = 0;
            for gap in missing.iter().cloned().chain(Some(file.length()..file.length())) {
                assert_eq!(
                    dirty.within(gap.clone()).count(),
                    0,
                    "{when}: file {n}: {gap:?} is dirty and not there"
                );
                if from < gap.start {
                    let out = &mut all[from as usize..gap.start as usize];
                    assert_eq!(file.read_at(from, out).unwrap().unwrap(), out.len());
                }
                from = gap.end;
            }
            let missing: crate::ranges::RangeSet = missing.into_iter().collect();
            for at in (0..file.length()).filter(|&at| missing.around(at).is_none()) {
                let at = at as usize;
                let out = [all[at]];
                let may_be = [before.here.get(at), after.here.get(at), server.get(at)];
                let is_zero_between = at >= before.server.len().min(after.server.len());
                assert!(
                    may_be.contains(&Some(&out[0])) || (is_zero_between && out[0] == 0),
                    "{when}: file {n}: byte {at} is {:x} and not one of {may_be:x?}",
                    out[0]
                );
                if dirty.around(at as u64).is_none() && !file.is_dirty() && version == after.version {
                    assert_eq!(after.server.get(at), Some(&out[0]), "{when}: file {n}: byte {at} is clean");
                }
            }
        }
    }
}

#[test]
fn what_is_read_is_what_was_written_or_what_the_server_has() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(DISK);
        let mut world = World::new(&disk, &mut random).unwrap();
        for n in 0..120 {
            let step = step(&mut random);
            world.run(&step).unwrap();
            world.check(&format!("seed {seed}, step {n}, {step:.80?}"));
        }
        // An orderly end and a new start.
        let World { cache, models, .. } = world;
        drop(cache);
        let world = World { cache: open(&disk).unwrap(), before: models.clone(), models };
        world.check(&format!("seed {seed}, after a new start"));
    }
}

#[test]
fn what_was_acknowledged_survives_the_death_of_the_process_at_any_moment() {
    let mut deaths = 0;
    for seed in 0..80 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(DISK);
        let mut world = World::new(&disk, &mut random).unwrap();
        for _ in 0..random.random_range(0..40) {
            world.run(&step(&mut random)).unwrap();
        }
        disk.set_cut(Some(Cut::After(random.random_range(0..40))));
        let mut last = None;
        for _ in 0..60 {
            let step = step(&mut random);
            let has_failed = world.run(&step).is_err();
            last = Some(step);
            if has_failed {
                deaths += 1;
                break;
            }
        }
        let when = format!("seed {seed}, in {last:.80?}");
        let cache = open(&disk.after_kill()).unwrap_or_else(|error| panic!("{when}: {error}"));
        world.check_after_crash(&cache, &when);
        std::mem::forget(world);
    }
    assert!(deaths > 50, "only {deaths} of the runs died");
}

#[test]
fn a_loss_of_power_leaves_nothing_that_is_wrong() {
    let mut aside = 0;
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(DISK);
        let mut world = World::new(&disk, &mut random).unwrap();
        for _ in 0..random.random_range(1..60) {
            world.run(&step(&mut random)).unwrap();
        }
        // Long enough ago that it was synced.
        (0..20).for_each(|_| world.cache.maintain().unwrap());
        let after = disk.after_power_loss(seed);
        let cache = open(&after).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        aside += cache.conflicts().len();
        for n in 0..FILES {
            assert!(
                cache.held(world.key(n)).unwrap().is_none(),
                "seed {seed}: nobody knows whether file {n} is whole"
            );
        }
        // Where it was closed before, all is there.
        drop(std::mem::replace(&mut world.cache, cache));
        let world = World { cache: open(&disk.after_power_loss(seed)).unwrap(), ..world };
        world.check(&format!("seed {seed}, closed before"));
    }
    assert!(aside > 5, "only {aside} files were put aside");
}

#[test]
fn how_much_there_is_of_a_file_is_told_without_opening_it() {
    let disk = SimulatedDisk::new(DISK);
    let cache = open(&disk).unwrap();
    let key = FileKey { cell: cache.cell("one.test").unwrap(), volume: 1, vnode: 2, unique: 3 };
    assert_eq!(cache.present_bytes(key), 0);
    let file = current(&cache, key, 3, 1000).unwrap();
    file.fill(0, &[1; 400]).unwrap();
    drop(file);
    cache.maintain().unwrap();
    assert_eq!(cache.present_bytes(key), 400);
    drop(current(&cache, key, 4, 1000).unwrap());
    assert_eq!(cache.present_bytes(key), 0, "of another version nothing is there");
}
