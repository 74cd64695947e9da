//! Two and three mounts of one cell, in which programs keep files open while others change them: random operations beside a model of
//! what is promised (docs/semantics.md).
//!
//! After an open, and after a lock was taken, all that a program can ask of a file is that of the newest version. Without a lock a file
//! that stays open may be older, but the length and the data that are read are those of one version, and no older one than a read has shown in that mount. Of
//! several mounts that rename one name at the same moment one succeeds. What `fs` makes and removes is seen everywhere.
//!
//! `random_files.rs` keeps files closed that another mount changes, and compares more operations with a local folder; `rounds.rs` has
//! mounts that cannot be told. AFAR_KEPT_OPEN_SECONDS says for how long (default 30), AFAR_SEED from which seed: a failure prints its
//! seed and what was done.

use crate::mounted::{self, Cell, afar, can_mount, run, socket_of};
use afs_lab::cpu::cpu;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::fs::{FlockOperation, OFlags, SeekFrom, fcntl_lock, flock, seek, sendfile};
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Operations of a run, from one seed.
const OPERATIONS: usize = 150;

/// What is done, unless AFAR_KEPT_OPEN_WITH names a part of it.
const WITH: &str = "files,shorten,rename,fs";

const FILES: usize = 3;

/// Handles that are open at a time.
const HANDLES: usize = 10;

/// A file that is open to be read may stay as it was opened from this length on: the kernel may read it by itself.
const LARGE_BYTES: usize = 1 << 20;

/// What is printed of a run that failed.
const TOLD: usize = 60;

/// What a file has been, and the version that a read has shown in each mount.
struct Shared {
    versions: Vec<Vec<u8>>,
    seen: Vec<usize>,
}

struct Handle {
    mount: usize,
    file: usize,
    open: File,
    is_writable: bool,
    /// The version that it was opened in, where it may stay that.
    stays: Option<usize>,
}

/// What a look at a file has found.
#[derive(PartialEq)]
enum Found {
    Whole(Vec<u8>),
    Part(usize, usize, Vec<u8>),
    Length(u64),
}

impl Found {
    fn is_of(&self, version: &[u8]) -> bool {
        match self {
            Self::Whole(bytes) => bytes == version,
            Self::Part(from, count, bytes) => {
                let end = version.len().min(from + count);
                bytes == &version[(*from).min(end)..end]
            }
            Self::Length(length) => *length == version.len() as u64,
        }
    }
}

impl Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "{} bytes in all", bytes.len()),
            Self::Part(from, count, bytes) => write!(f, "{} bytes of {count} at {from}", bytes.len()),
            Self::Length(length) => write!(f, "length {length}"),
        }
    }
}

/// How long a look may expect the file to be.
const LOOKED_AT: usize = 3 << 20;

struct Run<'a> {
    random: StdRng,
    mounts: &'a [(mounted::Process, PathBuf)],
    folder: String,
    files: Vec<Shared>,
    handles: Vec<Handle>,
    told: Vec<String>,
    made: usize,
    /// Where what `sendfile` and mappings bring is put.
    local: PathBuf,
    /// See [`WITH`].
    with: String,
}

impl Run<'_> {
    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].1.join(&self.folder).join(name)
    }

    fn story(&self) -> String {
        let from = self.told.len().saturating_sub(TOLD);
        format!("after\n{}", self.told[from..].join("\n"))
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.random.fill_bytes(&mut bytes);
        // Zeros are what a kernel puts where it has no data.
        bytes.iter_mut().for_each(|byte| *byte |= 1);
        bytes
    }

    fn length(&mut self) -> usize {
        match self.random.random_range(0..40) {
            0..24 => self.random.random_range(1..300),
            24..30 => 4096 * self.random.random_range(1..4),
            30..37 => self.random.random_range(1..20_000),
            37..39 => self.random.random_range(1..400_000),
            _ => self.random.random_range(LARGE_BYTES..2 * LARGE_BYTES),
        }
    }

    fn newest(&self, file: usize) -> &[u8] {
        self.files[file].versions.last().expect("it is made at the beginning")
    }

    /// One of the ways in which programs look at an open file.
    fn look(&mut self, at: usize, is_newest: bool) -> (&'static str, Found) {
        let newest = self.newest(self.handles[at].file).len();
        let (from, count) = (self.random.random_range(0..=newest + 100), self.random.random_range(1..9000));
        // Neither `sendfile` nor a page fault asks how long a file is.
        let way = self.random.random_range(0..if is_newest { 7 } else { 5 });
        let mut open = &self.handles[at].open;
        let pread = |from: usize, count: usize| {
            let mut bytes = vec![0; count];
            let mut done = 0;
            // As a program reads on.
            while done < count {
                match open.read_at(&mut bytes[done..], (from + done) as u64) {
                    Ok(0) => break,
                    Ok(more) => done += more,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => panic!("pread: {error}, {}", self.story()),
                }
            }
            bytes.truncate(done);
            bytes
        };
        match way {
            0 => ("pread", Found::Whole(pread(0, LOOKED_AT))),
            1 => ("pread of a part", Found::Part(from, count, pread(from, count))),
            2 => ("lseek to the end", Found::Length(open.seek(io::SeekFrom::End(0)).unwrap())),
            3 => ("fstat", Found::Length(open.metadata().unwrap().len())),
            4 => {
                let hole = match seek(open, SeekFrom::Hole(0)) {
                    Err(Errno::NXIO) => 0,
                    hole => hole.unwrap(),
                };
                ("lseek to the hole", Found::Length(hole))
            }
            5 => {
                let out = File::create(&self.local).unwrap();
                let mut at = 0;
                loop {
                    match sendfile(&out, open, Some(&mut at), LOOKED_AT) {
                        Ok(0) => break,
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => panic!("sendfile: {error}, {}", self.story()),
                    }
                }
                ("sendfile", Found::Whole(fs::read(&self.local).unwrap()))
            }
            _ => {
                let length = open.metadata().unwrap().len();
                let mut out = File::create(&self.local).unwrap();
                if length > 0 {
                    // By a system call, which says EFAULT where a program would get SIGBUS.
                    let map = mounted::map_to_read(open);
                    if let Err(error) = out.write_all(&map) {
                        panic!("{length} bytes mapped: {error}, {}", self.story());
                    }
                }
                ("a mapping", Found::Whole(fs::read(&self.local).unwrap()))
            }
        }
    }

    /// Looks at an open file. `is_newest`: it was just opened or locked.
    fn check(&mut self, at: usize, is_newest: bool) {
        let (what, found) = self.look(at, is_newest);
        let Handle { mount, file, stays, .. } = self.handles[at];
        let newest = self.files[file].versions.len() - 1;
        let seen = self.files[file].seen[mount];
        self.told.push(format!("{mount}: {what} of #{file} finds {found:?}, the newest is {newest}"));
        let from = match (is_newest, stays) {
            (_, Some(version)) => version,
            (true, None) => newest,
            (false, None) => seen,
        };
        let shown = (from..=newest).find(|version| found.is_of(&self.files[file].versions[*version]));
        let Some(shown) = shown else {
            if let Found::Whole(bytes) = &found {
                let newest = self.newest(file);
                let differs = (0..bytes.len().min(newest.len())).find(|at| bytes[*at] != newest[*at]);
                println!(
                    "the first byte that differs is {differs:?}; zeros: {:?}",
                    bytes.iter().position(|b| *b == 0)
                );
            }
            let lengths: Vec<_> = self.files[file].versions.iter().map(Vec::len).collect();
            panic!(
                "{what} of a file that {} finds {found:?}, which is no version from {from} on; their lengths: {lengths:?}, {}",
                if is_newest { "was just opened or locked" } else { "stays open" },
                self.story()
            );
        };
        if !matches!(found, Found::Length(_)) {
            self.files[file].seen[mount] = seen.max(shown);
        }
    }

    fn open(&mut self) -> usize {
        let (mount, file) =
            (self.random.random_range(0..self.mounts.len()), self.random.random_range(0..FILES));
        let is_writable = self.random.random_bool(0.6);
        let is_direct = self.random.random_bool(0.1);
        let mut how = OpenOptions::new();
        how.read(true).write(is_writable);
        if is_direct {
            how.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        self.told.push(format!("{mount}: opens #{file}, to write {is_writable}, direct {is_direct}"));
        let open = how.open(self.path(mount, &format!("f{file}"))).unwrap();
        let version = self.files[file].versions.len() - 1;
        let is_large = self.newest(file).len() >= LARGE_BYTES;
        self.handles.push(Handle { mount, file, open, is_writable, stays: is_large.then_some(version) });
        self.handles.len() - 1
    }

    /// Writes by a file that was just opened or locked, and has it stored.
    fn write(&mut self, at: usize) {
        let length = self.length();
        let bytes = self.bytes(length);
        let Handle { mount, file, .. } = self.handles[at];
        let mut new = self.newest(file).to_vec();
        let place = self.random.random_range(0..=new.len());
        let mut open = &self.handles[at].open;
        let what = match self.random.random_range(0..if self.does("shorten") { 4 } else { 3 }) {
            0 | 1 => {
                let end = open.seek(io::SeekFrom::End(0)).unwrap();
                assert_eq!(end, new.len() as u64, "the end to write at, {}", self.story());
                open.write_all(&bytes).unwrap();
                new.extend_from_slice(&bytes);
                "appends"
            }
            2 => {
                open.write_all_at(&bytes, place as u64).unwrap();
                new.resize(new.len().max(place + length), 0);
                new[place..place + length].copy_from_slice(&bytes);
                "writes"
            }
            _ => {
                // A counter, or a file of settings.
                open.set_len(length as u64).unwrap();
                open.write_all_at(&bytes, 0).unwrap();
                new = bytes;
                "rewrites"
            }
        };
        if new.len() > LOOKED_AT / 2 {
            open.set_len(100).unwrap();
            new.truncate(100);
        }
        self.told.push(format!("{mount}: {what} #{file}, {length} bytes, {} now", new.len()));
        self.files[file].versions.push(new);
    }

    /// What is written becomes a version when it is stored, and shows in this mount at once.
    fn note_stored(&mut self, mount: usize, file: usize) {
        self.files[file].seen[mount] = self.files[file].versions.len() - 1;
    }

    fn lock(&mut self, at: usize) {
        let (is_flock, is_writable) = (self.random.random_bool(0.5), self.handles[at].is_writable);
        let is_exclusive = is_writable && self.random.random_bool(0.8);
        let Handle { mount, file, stays, .. } = self.handles[at];
        let set = |open: &File, operation| match is_flock {
            true => flock(open, operation),
            false => fcntl_lock(open, operation),
        };
        let wanted = if is_exclusive { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        self.told.push(format!("{mount}: locks #{file}, flock {is_flock}, to write {is_exclusive}"));
        match set(&self.handles[at].open, wanted) {
            // It stays as it was opened, so it cannot be locked when it has changed.
            Err(Errno::STALE) if stays.is_some() => {
                self.handles.swap_remove(at);
                return;
            }
            locked => locked.unwrap_or_else(|error| panic!("lock: {error}, {}", self.story())),
        }
        // Else it would have been refused.
        self.handles[at].stays = None;
        for _ in 0..self.random.random_range(1..4) {
            self.check(at, true);
        }
        if is_exclusive {
            self.write(at);
            self.note_stored(mount, file);
            self.check(at, true);
        }
        self.handles[at].stays = stays.map(|_| self.files[file].versions.len() - 1);
        set(&self.handles[at].open, FlockOperation::Unlock).unwrap();
        self.told.push(format!("{mount}: unlocks #{file}"));
    }

    /// Opens a file, looks at it, perhaps writes, and keeps it open.
    fn open_and_look(&mut self) {
        let at = self.open();
        self.check(at, true);
        let Handle { mount, file, is_writable, .. } = self.handles[at];
        if is_writable && self.random.random_bool(0.7) {
            self.write(at);
            self.handles[at].open.sync_all().unwrap();
            self.note_stored(mount, file);
            self.check(at, true);
        }
        if self.random.random_bool(0.3) {
            self.told.push(format!("{mount}: closes #{file}"));
            self.handles.swap_remove(at);
        } else if self.handles.len() > HANDLES {
            let at = self.random.random_range(0..HANDLES);
            self.handles.swap_remove(at);
        }
    }

    /// Adds to a file without looking at it, and closes it.
    fn append(&mut self) {
        let (mount, file) =
            (self.random.random_range(0..self.mounts.len()), self.random.random_range(0..FILES));
        let length = self.random.random_range(1..200);
        let bytes = self.bytes(length);
        let mut open = OpenOptions::new().append(true).open(self.path(mount, &format!("f{file}"))).unwrap();
        open.write_all(&bytes).unwrap();
        drop(open);
        let new = [self.newest(file), &bytes].concat();
        self.told.push(format!("{mount}: appends to #{file}, {length} bytes, {} now", new.len()));
        self.files[file].versions.push(new);
        self.note_stored(mount, file);
    }

    /// All mounts rename one name at the same moment, as spools and maildirs give out their work.
    fn rename(&mut self) {
        self.made += 1;
        let (from, to) = (format!("q/{}", self.made), format!("d/{}", self.made));
        let maker = self.random.random_range(0..self.mounts.len());
        fs::write(self.path(maker, &from), b"work").unwrap();
        // They have found it there, and may know that the other is not there.
        for mount in 0..self.mounts.len() {
            assert!(self.path(mount, &from).exists(), "{from} is made, {}", self.story());
            if self.random.random_bool(0.3) {
                assert!(!self.path(mount, &to).exists(), "{to} is not made, {}", self.story());
            }
        }
        let together = Barrier::new(self.mounts.len());
        let paths: Vec<_> =
            (0..self.mounts.len()).map(|mount| (self.path(mount, &from), self.path(mount, &to))).collect();
        let renamed: Vec<_> = std::thread::scope(|scope| {
            let rename = |(from, to): &(PathBuf, PathBuf)| {
                together.wait();
                fs::rename(from, to).map_err(|error| error.kind())
            };
            let renaming: Vec<_> = paths.iter().map(|paths| scope.spawn(move || rename(paths))).collect();
            renaming.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        self.told.push(format!("all: rename {from} to {to}: {renamed:?}"));
        let winners = renamed.iter().filter(|renamed| renamed.is_ok()).count();
        assert_eq!(winners, 1, "renames of one name that succeed, {}", self.story());
        let others = renamed.iter().filter(|renamed| **renamed == Err(ErrorKind::NotFound)).count();
        assert_eq!(others, self.mounts.len() - 1, "{renamed:?}, {}", self.story());
        for mount in 0..self.mounts.len() {
            let is_there = [&from, &to].map(|name| self.path(mount, name).exists());
            assert_eq!(is_there, [false, true], "in mount {mount}, {}", self.story());
        }
        fs::remove_file(self.path(maker, &to)).unwrap();
    }

    /// `fs` makes and removes mount points past the kernel.
    fn make_by_fs(&mut self) {
        self.made += 1;
        let name = format!("m{}", self.made);
        let mount = self.random.random_range(0..self.mounts.len());
        let has_looked: Vec<_> = (0..self.mounts.len()).map(|_| self.random.random_bool(0.7)).collect();
        let is_there = |run: &Self, mount| fs::symlink_metadata(run.path(mount, &name)).is_ok();
        for (other, _) in has_looked.iter().enumerate().filter(|(_, looked)| **looked) {
            assert!(!is_there(self, other), "{}", self.story());
        }
        for (verb, more, expected) in [("mkmount", &["root.cell"][..], true), ("rmmount", &[], false)] {
            let path = self.path(mount, &name);
            let mut command = afar(["fs", verb]);
            command.arg(&path).args(more).env("AFAR_SOCKET", socket_of(root_of(&self.mounts[mount].1)));
            let output = run(command);
            self.told.push(format!("{mount}: fs {verb} {name}, looked for in {has_looked:?}"));
            assert!(output.status.success(), "{}, {}", String::from_utf8_lossy(&output.stderr), self.story());
            for other in 0..self.mounts.len() {
                assert_eq!(
                    is_there(self, other),
                    expected,
                    "{name} in mount {other} after {verb}, {}",
                    self.story()
                );
            }
        }
    }

    fn does(&self, what: &str) -> bool {
        self.with.split(',').any(|with| with == what)
    }

    fn step(&mut self) {
        let (count, what) = (self.handles.len(), self.random.random_range(0..100));
        let kind = match what {
            75..79 => "rename",
            79..81 => "fs",
            _ => "files",
        };
        if !self.does(kind) {
            return;
        }
        match what {
            0..35 if count > 0 => {
                let at = self.random.random_range(0..count);
                self.check(at, false);
            }
            35..60 if count > 0 => {
                let at = self.random.random_range(0..count);
                self.lock(at);
            }
            60..75 => self.append(),
            75..79 => self.rename(),
            79..81 => self.make_by_fs(),
            _ => self.open_and_look(),
        }
    }
}

/// Where the mount is in which a folder of the cell is.
fn root_of(scratch: &Path) -> &Path {
    scratch.ancestors().nth(2).expect("CELL/scratch in a mount")
}

/// One run, from a seed, in a folder of its own.
fn whole(seed: u64, mounts: &[(mounted::Process, PathBuf)], local: &Path) {
    let mut random = StdRng::seed_from_u64(seed);
    let count = random.random_range(2..=mounts.len());
    let folder = format!("seed{seed}");
    let files =
        (0..FILES).map(|_| Shared { versions: vec![b"begin".to_vec()], seen: vec![0; count] }).collect();
    let (handles, told, local) = (Vec::new(), Vec::new(), local.to_owned());
    let with = std::env::var("AFAR_KEPT_OPEN_WITH").unwrap_or_else(|_| WITH.to_owned());
    let mut run =
        Run { random, mounts: &mounts[..count], folder, files, handles, told, made: 0, local, with };
    for name in ["", "q", "d"] {
        fs::create_dir(run.path(0, name)).unwrap();
    }
    for file in 0..FILES {
        fs::write(run.path(0, &format!("f{file}")), b"begin").unwrap();
    }
    for _ in 0..OPERATIONS {
        run.step();
    }
    run.handles.clear();
    for (mount, file) in (0..count).flat_map(|mount| (0..FILES).map(move |file| (mount, file))) {
        let mut bytes = Vec::new();
        File::open(run.path(mount, &format!("f{file}"))).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == run.newest(file), "#{file} in mount {mount} at the end, {}", run.story());
    }
    fs::remove_dir_all(run.path(0, "")).unwrap();
}

#[test]
fn a_file_is_the_newest_when_it_was_opened_or_locked_and_never_goes_back_while_it_stays_open() {
    let _cpu = cpu();
    require!(can_mount());
    let lasts = Duration::from_secs(mounted::number("AFAR_KEPT_OPEN_SECONDS", 30));
    let first = mounted::number("AFAR_SEED", 1);
    let cell = Cell::new("kept-open");
    let kinds: [(&str, &[&str]); 3] = [("one", &[]), ("two", &["-no-passthrough"]), ("three", &[])];
    // Mount points take an administrator.
    let mounts = kinds.map(|(name, more)| {
        cell.mount_with(name, "state/etc", &[&["-localauth", "-as", "admin"], more].concat())
    });
    let local = cell.folder.join("local");
    let begin = Instant::now();
    let mut seed = first;
    while begin.elapsed() < lasts {
        println!("seed {seed}, after {:?}", begin.elapsed());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| whole(seed, &mounts, &local))) {
            println!("AFAR_SEED={seed}");
            resume_unwind(panic);
        }
        seed += 1;
    }
    println!("{} runs of {OPERATIONS} operations, seeds {first} to {}", seed - first, seed - 1);
    for (name, (mount, _)) in kinds.map(|(name, _)| name).into_iter().zip(mounts) {
        assert!(!cell.log(name).contains("put aside"), "{}", cell.log(name));
        assert!(mount.stop().success());
    }
    assert!(cell.servers.stop().success());
}
