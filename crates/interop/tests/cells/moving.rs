//! A volume that Debian's `vos` moves back and forth between two servers, while programs work in it through our mount and
//! through `afsd.fuse`: they meet no error, and nothing that they wrote is lost.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use afar_interop::cell::{self, ADDRESS, CELL_NAME, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::suite::{Case, Trouble, Verdict};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::fuse;
use crate::scene::{for_both, told};

/// Moves: there and back five times.
const MOVES: usize = 10;

/// Files of a program; behind that it writes them anew, so that a move does not take ever longer.
const FILES: usize = 40;

/// How long programs work between two moves.
const BETWEEN: Duration = Duration::from_millis(500);

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    for_both(lab, "moving/under_programs_loses_nothing", under_programs).collect()
}

/// A program that writes and reads files in a folder until it is told to end. What it has written, it remembers.
struct Program {
    name: &'static str,
    folder: PathBuf,
    random: StdRng,
    rounds: usize,
    files: Vec<(PathBuf, Vec<u8>)>,
    /// A file that stays open, and all that it should have.
    log: File,
    logged: Vec<u8>,
}

impl Program {
    fn new(name: &'static str, folder: PathBuf) -> io::Result<Self> {
        fs::create_dir(&folder)?;
        let log = File::options().read(true).write(true).create_new(true).open(folder.join("log"))?;
        let random = StdRng::seed_from_u64(name.len() as u64);
        Ok(Self { name, folder, random, rounds: 0, files: Vec::new(), log, logged: Vec::new() })
    }

    /// One round of work.
    fn step(&mut self) -> Result<(), String> {
        self.rounds += 1;
        let is_new = self.files.len() < FILES;
        let number = if is_new { self.files.len() } else { self.random.random_range(0..FILES) };
        let path = self.folder.join(format!("file {number}"));
        let mut bytes = vec![0; self.random.random_range(0..200_000)];
        self.random.fill_bytes(&mut bytes);
        let doing = |what: &str| format!("{}: {what} {}", self.name, path.display());
        fs::write(&path, &bytes).map_err(|error| format!("{}: {error}", doing("writing")))?;
        let line = format!("file {number} has {} bytes\n", bytes.len());
        self.log.write_all(line.as_bytes()).map_err(|error| format!("{}: the log: {error}", self.name))?;
        self.logged.extend_from_slice(line.as_bytes());
        if self.rounds.is_multiple_of(5) {
            self.log.sync_all().map_err(|error| format!("{}: syncing: {error}", self.name))?;
        }
        if is_new {
            self.files.push((path, bytes));
        } else {
            self.files[number].1 = bytes;
        }
        let (path, bytes) = &self.files[self.random.random_range(0..self.files.len())];
        check(path, bytes).map_err(|error| format!("{}: {error}", self.name))?;
        let mut here = Vec::new();
        let read = self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_end(&mut here));
        read.map_err(|error| format!("{}: reading the log: {error}", self.name))?;
        if here != self.logged {
            return Err(format!("{}: the log has other bytes", self.name));
        }
        let listed =
            fs::read_dir(&self.folder).map_err(|error| format!("{}: listing: {error}", self.name))?;
        let count = listed.filter_map(Result::ok).filter(|entry| entry.file_name() != "log").count();
        if count != self.files.len() {
            return Err(format!("{}: {count} files instead of {}", self.name, self.files.len()));
        }
        Ok(())
    }

    /// Works until it is told to end, and tells what it has written. afsd.fuse stores a file when it is closed, and not before.
    fn run(mut self, has_ended: &AtomicBool) -> Result<Work, String> {
        while !has_ended.load(Ordering::Acquire) {
            self.step()?;
            thread::sleep(Duration::from_millis(20));
        }
        self.log.sync_all().map_err(|error| format!("{}: the end: {error}", self.name))?;
        Ok(Work { name: self.name, rounds: self.rounds, files: self.files, logged: self.logged })
    }
}

/// What a program has written.
struct Work {
    name: &'static str,
    rounds: usize,
    files: Vec<(PathBuf, Vec<u8>)>,
    logged: Vec<u8>,
}

fn check(path: &Path, bytes: &[u8]) -> Result<(), String> {
    match fs::read(path) {
        Ok(read) if read == bytes => Ok(()),
        Ok(read) => Err(format!("{} has other bytes, {} of {}", path.display(), read.len(), bytes.len())),
        Err(error) => Err(format!("reading {}: {error}", path.display())),
    }
}

fn under_programs(lab: &Lab, servers: &Servers) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = fuse::scene(lab, servers)?;
    let other: Ipv4Addr = scene.cell.join(3, &Machine::new(lab.our_servers()?))?;
    let ours = OurMount::start(&scene.cell, &lab.afar()?, &[])?;
    let stock = scene.cell.mount("one")?;
    let scratch = |mount: &Path| mount.join(CELL_NAME).join("scratch");
    let (our_scratch, stock_scratch) = (scratch(&ours.path()), scratch(stock.path()));
    let has_ended = AtomicBool::new(false);
    let programs = thread::scope(|scope| {
        let work = |name, folder: PathBuf| {
            let program = Program::new(name, folder).map_err(told("a folder in the mount"))?;
            Ok::<_, Trouble>(scope.spawn(|| {
                let done = program.run(&has_ended);
                if done.is_err() {
                    has_ended.store(true, Ordering::Release);
                }
                done
            }))
        };
        let running =
            [work("ours", our_scratch.join("ours")), work("afsd.fuse", stock_scratch.join("stock"))];
        let mut moved = Ok(String::new());
        for number in 0..MOVES {
            thread::sleep(BETWEEN);
            if has_ended.load(Ordering::Acquire) || moved.is_err() {
                break;
            }
            let (from, to) = if number % 2 == 0 { (ADDRESS, other) } else { (other, ADDRESS) };
            moved = scene.cell.expect(&format!("vos move scratch {from} a {to} a -localauth"));
        }
        has_ended.store(true, Ordering::Release);
        let mut programs = Vec::new();
        for running in running {
            let done = running?.join().map_err(|_| "a program panicked".to_owned())?;
            programs.push(done.map_err(|error| format!("{error}\nthe client: {}", ours.said()))?);
        }
        moved?;
        Ok::<_, Trouble>(programs)
    })?;
    for program in &programs {
        println!("{} has written {} times", program.name, program.rounds);
        if program.rounds < MOVES {
            return Err(format!("{} has written {} times only", program.name, program.rounds).into());
        }
    }
    // Each client finds what the other has written.
    for (program, folder) in programs.iter().zip([stock_scratch.join("ours"), our_scratch.join("stock")]) {
        for (path, bytes) in &program.files {
            let name = path.file_name().unwrap_or_default();
            check(&folder.join(name), bytes)?;
        }
        check(&folder.join("log"), &program.logged)?;
    }
    Ok(ours.stop()?)
}
