//! Random operations of two kernels beside a model of what is promised: a file that was closed is what an open finds, a name that was made or removed
//! is there or not, a second name is the same file. The server is killed and started again in between. A client that callbacks do not reach shows
//! what was so since they were lost, each file whole, none older than it has shown, and in the end the newest, also where the server was killed
//! meanwhile.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afs_lab::until;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::cell::{Cell, at};
use crate::kernel::Kernel;

const NAMES: [&str; 8] = ["a", "b", "c", "d/a", "d/b", "e/a", "e/b", "e/c"];
const DIRECTORIES: [&str; 2] = ["d", "e"];

/// Operations of one run, and runs; `AFAR_REFERENCE_RUNS` has more.
const OPERATIONS: usize = 400;
const RUNS: u64 = 4;

/// Rounds in which callbacks are lost, of a run: some two seconds each, for which a server waits for a client. So of many runs few have them.
/// In every second one the server is killed.
const DEAF_ROUNDS: usize = 2;
const DEAF_SHARE: u64 = 100;
const DEAF_OPERATIONS: usize = 40;

/// The files by name; those with one number are one file.
#[derive(Default, Clone)]
struct Model {
    names: BTreeMap<&'static str, usize>,
    files: BTreeMap<usize, Vec<u8>>,
    last: usize,
}

impl Model {
    fn data(&self, name: &str) -> Result<Vec<u8>, i32> {
        self.names.get(name).map(|file| self.files[file].clone()).ok_or(libc::ENOENT)
    }

    /// The names that a directory shows.
    fn list(&self, dir: &str) -> Vec<String> {
        let inside = |name: &&'static str| match dir {
            "" => (!name.contains('/')).then(|| (*name).to_owned()),
            dir => name.strip_prefix(dir)?.strip_prefix('/').map(str::to_owned),
        };
        let mut names: Vec<_> = self.names.keys().filter_map(inside).collect();
        if dir.is_empty() {
            names.extend(DIRECTORIES.map(str::to_owned));
        }
        names.sort();
        names
    }

    /// True if a kernel shows all of this.
    fn is_seen_by(&self, kernel: &Kernel) -> bool {
        ["", "d", "e"].iter().all(|dir| kernel.list(&at(dir)) == Ok(self.list(dir)))
            && NAMES.iter().all(|name| kernel.read_all(&at(name)) == self.data(name))
    }

    fn file(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.last += 1;
        let number = *self.names.entry(name).or_insert(self.last);
        self.files.entry(number).or_default()
    }
}

struct Run {
    random: StdRng,
    model: Model,
    done: String,
}

impl Run {
    fn name(&mut self) -> &'static str {
        NAMES.choose(&mut self.random).expect("there are names")
    }

    fn data(&mut self) -> Vec<u8> {
        let length = *[0, 1, 100, 4096, 10_000, 70_000].choose(&mut self.random).expect("there are lengths");
        let byte = self.random.random_range(b'a'..=b'z');
        vec![byte; length]
    }

    /// One operation by one of the kernels, compared with the model.
    fn step(&mut self, number: usize, kernel: &Kernel) {
        let name = self.name();
        let path = at(name);
        let told = |done: &mut String, what: &str| {
            let _ = writeln!(done, "{number}: {what} {name}");
        };
        match self.random.random_range(0..10) {
            0 | 1 => {
                told(&mut self.done, "write anew");
                let data = self.data();
                kernel.write_all(&path, &data).unwrap_or_else(|errno| panic!("{errno}\n{}", self.done));
                *self.model.file(name) = data;
            }
            2 => {
                told(&mut self.done, "change");
                let data = self.data();
                let Ok(file) = kernel.open(&path, libc::O_RDWR) else {
                    return assert!(!self.model.names.contains_key(name), "{}", self.done);
                };
                let end = kernel.end_of(&file).expect("it is open");
                let pos = self.random.random_range(0..=end);
                kernel.write(&file, pos, &data).expect("it is open");
                kernel.close(file).expect("it is stored");
                let known = self.model.file(name);
                assert_eq!(known.len() as u64, end, "{}", self.done);
                let until = pos as usize + data.len();
                known.resize(known.len().max(until), 0);
                known[pos as usize..until].copy_from_slice(&data);
            }
            3 => {
                told(&mut self.done, "cut");
                let size = self.random.random_range(0..20_000);
                let cut = kernel.truncate(&path, size).map(|attributes| attributes.size);
                let right = self.model.names.contains_key(name).then_some(size).ok_or(libc::ENOENT);
                assert_eq!(cut, right, "{}", self.done);
                if cut.is_ok() {
                    self.model.file(name).resize(size as usize, 0);
                }
            }
            4 => {
                told(&mut self.done, "remove");
                let right = self.model.names.remove(name).map(drop).ok_or(libc::ENOENT);
                assert_eq!(kernel.unlink(&path), right, "{}", self.done);
            }
            5 => {
                let to = self.name();
                told(&mut self.done, &format!("rename to {to}:"));
                let renamed = kernel.rename(&path, &at(to), 0);
                let known = self.model.names.get(name).copied();
                assert_eq!(renamed, known.map(drop).ok_or(libc::ENOENT), "{}", self.done);
                // Two names of one file: nothing happens.
                if let Some(known) = known.filter(|known| self.model.names.get(to) != Some(known)) {
                    self.model.names.remove(name);
                    self.model.names.insert(to, known);
                }
            }
            6 => {
                told(&mut self.done, "look at");
                let size = kernel.stat(&path).map(|attributes| attributes.size);
                assert_eq!(size, self.model.data(name).map(|data| data.len() as u64), "{}", self.done);
            }
            7 => {
                told(&mut self.done, "list the directory of");
                let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
                assert_eq!(kernel.list(&at(dir)), Ok(self.model.list(dir)), "{}", self.done);
            }
            _ => {
                told(&mut self.done, "read");
                let (read, right) = (kernel.read_all(&path), self.model.data(name));
                assert!(
                    read == right,
                    "{:?} for {:?}\n{}",
                    read.map(|r| r.len()),
                    right.map(|r| r.len()),
                    self.done
                );
            }
        }
    }
}

/// What a client may show that callbacks do not reach: the states since then, and of each file the version that it has shown.
struct Past {
    states: Vec<Model>,
    shown: BTreeMap<usize, usize>,
    /// Looks that showed what was no longer so.
    old: usize,
}

impl Past {
    /// One look by a kernel that is not told of changes.
    fn look(&mut self, run: &mut Run, kernel: &Kernel) {
        let name = run.name();
        let last = self.states.last().expect("there is one");
        if run.random.random_range(0..4) == 0 {
            let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
            let listed = kernel.list(&at(dir)).unwrap_or_else(|errno| panic!("{errno}\n{}", run.done));
            let was = self.states.iter().any(|state| state.list(dir) == listed);
            self.old += usize::from(last.list(dir) != listed);
            return assert!(was, "{dir:?} never showed {listed:?}\n{}", run.done);
        }
        let read = kernel.read_all(&at(name));
        self.old += usize::from(read != last.data(name));
        match read {
            Ok(read) => {
                // The name may be an older one than the data: they are promised one by one.
                let files = self.states.iter().filter_map(|state| state.names.get(name));
                let version = |file: &usize| {
                    let shown = self.shown.get(file).copied().unwrap_or(0);
                    (shown..self.states.len())
                        .find(|&state| self.states[state].files.get(file) == Some(&read))
                };
                let seen = files.filter_map(|file| Some((*file, version(file)?))).min_by_key(|seen| seen.1);
                let (file, version) =
                    seen.unwrap_or_else(|| panic!("{name} never was {} bytes\n{}", read.len(), run.done));
                self.shown.insert(file, version);
            }
            Err(libc::ENOENT) => {
                let was = self.states.iter().any(|state| !state.names.contains_key(name));
                assert!(was, "{name} was there at all times\n{}", run.done);
            }
            Err(libc::ESTALE) => {
                let gone = |state: &Model| {
                    state.names.get(name).is_some_and(|old| last.names.values().all(|file| file != old))
                };
                assert!(self.states.iter().any(gone), "{name} is not gone\n{}", run.done);
            }
            Err(errno) => panic!("{name}: {errno}\n{}", run.done),
        }
    }
}

/// Seeds for one of so many of the runs, and for one at least.
fn seeds(share: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("AFAR_SEED").unwrap_or(1);
    first..first + (number("AFAR_REFERENCE_RUNS").unwrap_or(RUNS) / share).max(1)
}

impl Run {
    fn new(seed: u64, kernel: &Kernel) -> Self {
        for dir in DIRECTORIES {
            kernel.make_directory(&at(dir), 0o755).unwrap();
        }
        let done = format!("AFAR_SEED={seed}\n");
        Self { random: StdRng::seed_from_u64(seed), model: Model::default(), done }
    }

    fn kill_server(&mut self, cell: &mut Cell) {
        self.done.push_str("the server is killed and started again\n");
        cell.kill();
        cell.start();
    }
}

#[test]
fn two_kernels_agree_with_a_model() {
    for seed in seeds(1) {
        let mut cell = Cell::new();
        let kernels = [cell.mount(), cell.mount()];
        let mut run = Run::new(seed, &kernels[0]);
        for _ in 0..OPERATIONS {
            let number = run.random.random_range(0..2);
            if run.random.random_range(0..100) == 0 {
                run.kill_server(&mut cell);
            }
            run.step(number, &kernels[number]);
        }
    }
}

#[test]
fn a_kernel_whose_callbacks_are_lost_shows_whole_old_versions_and_then_the_newest() {
    for seed in seeds(DEAF_SHARE) {
        let mut cell = Cell::giving_up_after(Duration::from_millis(1900));
        let is_deaf = Arc::<AtomicBool>::default();
        let kernels = [cell.mount(), cell.mount_that_may_be_deaf(&is_deaf)];
        let mut run = Run::new(seed, &kernels[0]);
        let mut old = 0;
        for round in 0..DEAF_ROUNDS {
            for _ in 0..DEAF_OPERATIONS {
                run.step(0, &kernels[0]);
            }
            // A busy machine may be told late here.
            until!(run.model.is_seen_by(&kernels[1]), "the second kernel is never told\n{}", run.done);
            run.done.push_str("1 is not called back\n");
            is_deaf.store(true, Ordering::SeqCst);
            let mut past = Past { states: vec![run.model.clone()], shown: BTreeMap::new(), old: 0 };
            for operation in 0..DEAF_OPERATIONS {
                if round % 2 == 1 && operation == DEAF_OPERATIONS / 2 {
                    run.kill_server(&mut cell);
                }
                run.step(0, &kernels[0]);
                past.states.push(run.model.clone());
                past.look(&mut run, &kernels[1]);
            }
            old += past.old;
            run.done.push_str("1 is called back again\n");
            is_deaf.store(false, Ordering::SeqCst);
            until!(
                run.model.is_seen_by(&kernels[1]),
                "the second kernel never shows the newest\n{}",
                run.done
            );
        }
        assert!(old > 0, "no callback was missed\n{}", run.done);
    }
}
