//! Random operations of two kernels beside a model of what is promised: a file that was closed is what an open finds, a name that was made or removed
//! is there or not, a second name is the same file. The server is killed and started again in between.

use std::collections::BTreeMap;
use std::fmt::Write as _;

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

/// The files by name; those with one number are one file.
#[derive(Default)]
struct Model {
    names: BTreeMap<&'static str, usize>,
    files: BTreeMap<usize, Vec<u8>>,
    last: usize,
}

impl Model {
    fn data(&self, name: &str) -> Result<Vec<u8>, i32> {
        self.names.get(name).map(|file| self.files[file].clone()).ok_or(libc::ENOENT)
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
                let mut right: Vec<_> = self
                    .model
                    .names
                    .keys()
                    .filter_map(|name| match dir {
                        "" => (!name.contains('/')).then(|| (*name).to_owned()),
                        dir => name.strip_prefix(dir)?.strip_prefix('/').map(str::to_owned),
                    })
                    .collect();
                if dir.is_empty() {
                    right.extend(DIRECTORIES.map(str::to_owned));
                }
                right.sort();
                assert_eq!(kernel.list(&at(dir)), Ok(right), "{}", self.done);
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

#[test]
fn two_kernels_agree_with_a_model() {
    let runs = std::env::var("AFAR_REFERENCE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let first = std::env::var("AFAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in first..first + runs {
        let mut cell = Cell::new();
        let kernels = [cell.mount(), cell.mount()];
        let mut run = Run {
            random: StdRng::seed_from_u64(seed),
            model: Model::default(),
            done: format!("AFAR_SEED={seed}\n"),
        };
        for dir in DIRECTORIES {
            kernels[0].make_directory(&at(dir), 0o755).unwrap();
        }
        for _ in 0..OPERATIONS {
            let number = run.random.random_range(0..2);
            if run.random.random_range(0..100) == 0 {
                run.done.push_str("the server is killed and started again\n");
                cell.stop();
                cell.start();
            }
            run.step(number, &kernels[number]);
        }
    }
}
