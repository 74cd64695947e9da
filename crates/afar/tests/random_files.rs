//! Random operations on files in two mounts of one cell, each done in a local folder too: results, lengths, contents and listings have
//! to be the same.
//!
//! Files are opened and opened again, written, appended to, mapped, truncated to lengths that they had before, renamed, linked and
//! removed, open or not. The mounts keep to what AFS promises: a file that one of them has written and not yet closed is left alone
//! by the other, and a file is changed only by a mount while the other has it closed. `rounds.rs` tries what goes wrong between two
//! mounts; fsx (`posix.rs`) has one file and one mount.
//!
//! AFAR_RANDOM_SECONDS says for how long (default 15), AFAR_SEED from which seed. Each seed is a run of its own in folders of its own, and
//! a failure prints its seed and what was done.

use crate::mounted::{self, Cell, can_mount, map, needs};
use afs_lab::cpu::cpu;
use memmap2::MmapMut;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Operations of a run, from one seed.
const OPERATIONS: usize = 300;

/// Handles that are open at a time.
const HANDLES: usize = 8;

/// Lengths that are remembered of a file, to be cut or extended to again.
const LENGTHS: usize = 6;

/// What is printed of a run that failed.
const TOLD: usize = 300;

const PAGE: u64 = 4096;

/// Ends a run whose file differs as a fault of the kernel's can have it.
struct MaybeTheKernels;

/// A file that is open in one mount and in the local folder.
struct Handle {
    /// How the story calls it.
    number: usize,
    mount: usize,
    /// The local file's inode number, by which files are told apart.
    inode: u64,
    ours: File,
    local: File,
    is_appending: bool,
    is_removed: bool,
    /// Mappings of both, which are kept while other things happen.
    maps: Option<(MmapMut, MmapMut)>,
}

struct Run {
    random: StdRng,
    /// The folder of this run in each mount.
    ours: [PathBuf; 2],
    local: PathBuf,
    handles: Vec<Handle>,
    /// Which mount has written a file since it was last stored.
    unstored: HashMap<u64, usize>,
    lengths: HashMap<u64, Vec<u64>>,
    /// Files that were changed by a mapping.
    mapped: HashSet<u64>,
    opened: usize,
    told: Vec<String>,
}

/// The kind of an error, by which two file systems are compared.
fn code<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().map(|error| error.raw_os_error().unwrap_or(-1))
}

impl Run {
    fn new(seed: u64, mounts: &[PathBuf; 2], local: &Path) -> Self {
        let name = format!("seed{seed}");
        let run = Self {
            random: StdRng::seed_from_u64(seed),
            ours: mounts.each_ref().map(|mount| mount.join(&name)),
            local: local.join(&name),
            handles: Vec::new(),
            unstored: HashMap::new(),
            lengths: HashMap::new(),
            mapped: HashSet::new(),
            opened: 0,
            told: Vec::new(),
        };
        for folder in ["", "d0", "d1"] {
            fs::create_dir(run.ours[0].join(folder)).unwrap();
            fs::create_dir(run.local.join(folder)).unwrap();
        }
        run
    }

    fn name(&mut self) -> String {
        let folder = ["", "d0/", "d1/"][self.random.random_range(0..3)];
        format!("{folder}f{}", self.random.random_range(0..4))
    }

    fn length(&mut self) -> u64 {
        match self.random.random_range(0..20) {
            0..2 => 0,
            2..12 => self.random.random_range(1..9000),
            12..18 => self.random.random_range(1..120_000),
            18 => self.random.random_range(1..400_000),
            _ => self.random.random_range(1..2_500_000),
        }
    }

    /// A length to cut or extend a file to: mostly one that it had before.
    fn cut(&mut self, inode: u64) -> u64 {
        let known = self.lengths.get(&inode).map_or(&[][..], Vec::as_slice);
        match known.len() {
            0 => self.length(),
            count if self.random.random_bool(0.7) => known[self.random.random_range(0..count)],
            _ => self.length(),
        }
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    fn tell(&mut self, text: String) {
        self.told.push(text);
    }

    /// What was done, for a failure.
    fn story(&self) -> String {
        let from = self.told.len().saturating_sub(TOLD);
        format!("after\n{}", self.told[from..].join("\n"))
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, ours: T, local: T) {
        assert!(ours == local, "{what}: {ours:?} in the mount, {local:?} locally, {}", self.story());
    }

    fn inode(&self, name: &str) -> Option<u64> {
        fs::symlink_metadata(self.local.join(name)).ok().map(|found| found.ino())
    }

    /// True if a mount may read a file: the other has not written what it has not stored.
    fn may_read(&self, mount: usize, inode: u64) -> bool {
        self.unstored.get(&inode).is_none_or(|by| *by == mount)
    }

    /// True if a mount may change a file: the other does not have it open.
    fn may_change(&self, mount: usize, inode: u64) -> bool {
        !self.handles.iter().any(|handle| handle.inode == inode && handle.mount != mount)
    }

    fn may_change_name(&self, mount: usize, name: &str) -> bool {
        self.inode(name).is_none_or(|inode| self.may_change(mount, inode))
    }

    fn remember(&mut self, inode: u64, length: u64) {
        let known = self.lengths.entry(inode).or_default();
        if !known.contains(&length) {
            known.push(length);
            if known.len() > LENGTHS {
                known.remove(0);
            }
        }
    }

    /// A number made anew for a file whose inode number was used before means another file.
    fn forget_if_gone(&mut self, inode: u64, links: u64) {
        if links <= 1 && !self.handles.iter().any(|handle| handle.inode == inode) {
            self.unstored.remove(&inode);
            self.lengths.remove(&inode);
            self.mapped.remove(&inode);
        }
    }

    fn open(&mut self, mount: usize) {
        let name = self.name();
        let mut how = OpenOptions::new();
        let (writes, appends) = (self.random.random_bool(0.8), self.random.random_bool(0.25));
        let (makes, empties) =
            (writes && self.random.random_bool(0.7), writes && !appends && self.random.random_bool(0.15));
        how.read(true).write(writes && !appends).append(writes && appends).create(makes).truncate(empties);
        if let Some(inode) = self.inode(&name) {
            let may = if writes { self.may_change(mount, inode) } else { self.may_read(mount, inode) };
            if !may || (!writes && !self.may_change(mount, inode)) {
                return;
            }
        }
        let number = self.opened;
        self.tell(format!("{mount}: open {name} as #{number} writes {writes} appends {appends} makes {makes} empties {empties}"));
        let ours = how.open(self.ours[mount].join(&name));
        let local = how.open(self.local.join(&name));
        self.same("open", code(&ours), code(&local));
        if let (Ok(ours), Ok(local)) = (ours, local) {
            let found = local.metadata().unwrap();
            let inode = found.ino();
            if empties {
                self.unstored.insert(inode, mount);
            }
            self.remember(inode, found.len());
            self.opened += 1;
            let (is_appending, is_removed) = (appends && writes, false);
            self.handles.push(Handle {
                number,
                mount,
                inode,
                ours,
                local,
                is_appending,
                is_removed,
                maps: None,
            });
            self.check_handle(self.handles.len() - 1);
        }
    }

    /// Marks a handle's file as written.
    fn wrote(&mut self, at: usize) {
        let Handle { mount, inode, .. } = self.handles[at];
        self.unstored.insert(inode, mount);
        let length = self.handles[at].local.metadata().unwrap().len();
        self.remember(inode, length);
    }

    fn write(&mut self, at: usize) {
        let length = self.length();
        let bytes = self.bytes(length);
        let end = self.handles[at].local.metadata().unwrap().len();
        let from = self.random.random_range(0..=end + 5000);
        let handle = &self.handles[at];
        let text = format!("{}: write #{} {length} at {from} of {end}", handle.mount, handle.number);
        let results = if handle.is_appending {
            let write = |mut file: &File| file.write_all(&bytes);
            (write(&handle.ours), write(&handle.local))
        } else {
            (handle.ours.write_all_at(&bytes, from), handle.local.write_all_at(&bytes, from))
        };
        self.tell(text);
        self.same("write", code(&results.0), code(&results.1));
        if results.0.is_ok() && length > 0 {
            self.wrote(at);
        }
    }

    fn cut_handle(&mut self, at: usize) {
        let to = self.cut(self.handles[at].inode);
        self.handles[at].maps = None;
        let handle = &self.handles[at];
        let text = format!("{}: ftruncate #{} {to}", handle.mount, handle.number);
        let results = (handle.ours.set_len(to), handle.local.set_len(to));
        self.tell(text);
        self.same("ftruncate", code(&results.0), code(&results.1));
        if results.0.is_ok() {
            self.wrote(at);
        }
    }

    fn cut_name(&mut self, mount: usize) {
        let name = self.name();
        let Some(inode) = self.inode(&name).filter(|inode| self.may_change(mount, *inode)) else { return };
        let to = self.cut(inode);
        self.unmap(inode);
        self.tell(format!("{mount}: truncate {name} {to}"));
        let cut = |path: PathBuf| nix::unistd::truncate(&path, i64::try_from(to).unwrap());
        let results = (cut(self.ours[mount].join(&name)), cut(self.local.join(&name)));
        self.same("truncate", results.0, results.1);
        self.remember(inode, to);
        // What a program has open to be written is stored when it is closed, whoever cut it.
        if self.handles.iter().any(|handle| handle.inode == inode) {
            self.unstored.insert(inode, mount);
        }
    }

    fn unmap(&mut self, inode: u64) {
        self.handles.iter_mut().filter(|handle| handle.inode == inode).for_each(|handle| handle.maps = None);
    }

    /// Room is made or taken away in the middle of a file, where the mount can do that.
    fn allocate(&mut self, at: usize) {
        let end = self.handles[at].local.metadata().unwrap().len();
        let flags = match self.random.random_range(0..3) {
            0 => FallocateFlags::empty(),
            1 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            _ => FallocateFlags::ZERO_RANGE,
        };
        let from = self.random.random_range(0..=end);
        let length = self.random.random_range(1..40_000);
        let handle = &self.handles[at];
        let text = format!("{}: fallocate #{} {flags:?} {from} {length}", handle.mount, handle.number);
        let ours = fallocate(&handle.ours, flags, from, length);
        if ours == Err(Errno::OPNOTSUPP) {
            return;
        }
        let local = fallocate(&handle.local, flags, from, length);
        self.tell(text);
        self.same("fallocate", ours, local);
        if ours.is_ok() {
            self.wrote(at);
        }
    }

    /// Writes into a mapping that is made now or was made before.
    fn map(&mut self, at: usize) {
        let end = usize::try_from(self.handles[at].local.metadata().unwrap().len()).unwrap();
        // A handle that only reads cannot be mapped to be written.
        let flags = fcntl_getfl(&self.handles[at].local).unwrap();
        if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) || end == 0 {
            return;
        }
        if self.handles[at].maps.is_none() {
            let Handle { ours, local, .. } = &self.handles[at];
            self.handles[at].maps = map(ours).zip(map(local));
        }
        let mapped = self.handles[at].maps.as_ref().map_or(0, |maps| maps.0.len().min(end));
        let from = self.random.random_range(0..mapped.max(1));
        let length = self.random.random_range(0..=(mapped - from).min(20_000));
        let bytes = self.bytes(length as u64);
        let is_flushed = self.random.random_bool(0.5);
        self.tell(format!(
            "{}: map #{} {length} at {from} flushed {is_flushed}",
            self.handles[at].mount, self.handles[at].number
        ));
        let Some(maps) = &mut self.handles[at].maps else { return };
        for map in [&mut maps.0, &mut maps.1] {
            map[from..from + length].copy_from_slice(&bytes);
            if is_flushed {
                map.flush().unwrap();
            }
        }
        if is_flushed {
            self.handles[at].maps = None;
        }
        self.mapped.insert(self.handles[at].inode);
        self.wrote(at);
    }

    fn close(&mut self, at: usize) {
        self.tell(format!("{}: close #{}", self.handles[at].mount, self.handles[at].number));
        let Handle { mount, inode, maps, .. } = self.handles.swap_remove(at);
        drop(maps);
        if !self.handles.iter().any(|handle| handle.inode == inode && handle.mount == mount) {
            self.unstored.remove(&inode);
        }
    }

    fn sync(&mut self, at: usize) {
        self.tell(format!("{}: fsync #{}", self.handles[at].mount, self.handles[at].number));
        self.handles[at].maps = None;
        let Handle { mount, inode, .. } = self.handles[at];
        self.unmap(inode);
        let results = (self.handles[at].ours.sync_all(), self.handles[at].local.sync_all());
        self.same("fsync", code(&results.0), code(&results.1));
        assert!(self.unstored.get(&inode).is_none_or(|by| *by == mount));
        self.unstored.remove(&inode);
    }

    fn remove(&mut self, mount: usize) {
        let name = self.name();
        if !self.may_change_name(mount, &name) {
            return;
        }
        let before = fs::symlink_metadata(self.local.join(&name)).ok();
        self.tell(format!("{mount}: unlink {name}"));
        let results =
            (fs::remove_file(self.ours[mount].join(&name)), fs::remove_file(self.local.join(&name)));
        self.same("unlink", code(&results.0), code(&results.1));
        if let Some(before) = before {
            self.lost_name(&before);
        }
    }

    /// A file has a name less.
    fn lost_name(&mut self, before: &fs::Metadata) {
        let inode = before.ino();
        if before.nlink() == 1 {
            let open = self.handles.iter_mut().filter(|handle| handle.inode == inode);
            open.for_each(|handle| handle.is_removed = true);
        }
        self.forget_if_gone(inode, before.nlink());
    }

    fn rename(&mut self, mount: usize) {
        let (from, to) = (self.name(), self.name());
        let found = |name: &str| fs::symlink_metadata(self.local.join(name)).ok();
        let (moved, replaced) = (found(&from), found(&to));
        let is_elsewhere =
            from.rsplit_once('/').map(|(folder, _)| folder) != to.rsplit_once('/').map(|(folder, _)| folder);
        // AFS keeps all names of a file in one folder.
        if is_elsewhere && moved.as_ref().is_some_and(|moved| moved.nlink() > 1) {
            return;
        }
        if !self.may_change_name(mount, &from) || !self.may_change_name(mount, &to) {
            return;
        }
        self.tell(format!("{mount}: rename {from} {to}"));
        let rename = |folder: &Path| fs::rename(folder.join(&from), folder.join(&to));
        let results = (rename(&self.ours[mount]), rename(&self.local));
        self.same("rename", code(&results.0), code(&results.1));
        let is_same = moved.map(|moved| moved.ino()) == replaced.as_ref().map(MetadataExt::ino);
        if let (Ok(()), Some(replaced), false) = (&results.0, replaced, is_same) {
            self.lost_name(&replaced);
        }
    }

    fn link(&mut self, mount: usize) {
        let from = self.name();
        let folder = from.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let to = format!("{folder}f{}", self.random.random_range(0..4));
        if !self.may_change_name(mount, &from) {
            return;
        }
        self.tell(format!("{mount}: link {from} {to}"));
        let link = |folder: &Path| fs::hard_link(folder.join(&from), folder.join(&to));
        let results = (link(&self.ours[mount]), link(&self.local));
        self.same("link", code(&results.0), code(&results.1));
    }

    /// An open file has the same length and the same data at some place.
    fn check_handle(&mut self, at: usize) {
        let Handle { number, ours, local, .. } = &self.handles[at];
        let lengths = (ours.metadata().map(|found| found.len()), local.metadata().map(|found| found.len()));
        self.same(
            &format!("fstat #{number}"),
            lengths.0.unwrap(),
            lengths.1.as_ref().map(|length| *length).unwrap(),
        );
        let from = self.random.random_range(0..=lengths.1.unwrap());
        let read = |file: &File| {
            let mut bytes = vec![0; 20_000];
            let mut done = 0;
            while done < bytes.len() {
                match file.read_at(&mut bytes[done..], from + done as u64).unwrap() {
                    0 => break,
                    count => done += count,
                }
            }
            bytes.truncate(done);
            bytes
        };
        let Handle { number, inode, ours, local, .. } = &self.handles[at];
        self.same_bytes(&format!("read #{number} at {from}"), *inode, from, &read(ours), &read(local));
    }

    fn same_bytes(&self, what: &str, inode: u64, from: u64, ours: &[u8], local: &[u8]) {
        let differs = ours.iter().zip(local).position(|(a, b)| a != b);
        let is_same = differs.is_none() && ours.len() == local.len();
        let (mine, other) = (ours.len(), local.len());
        if !is_same && self.may_be_the_kernels(inode, from, ours, local) {
            println!("{what}: zeros from {differs:?} on that may be the kernel's, {}", self.story());
            resume_unwind(Box::new(MaybeTheKernels));
        }
        assert!(is_same, "{what}: {mine} and {other} bytes, other from {differs:?} on, {}", self.story());
    }

    /// True if the file differs as Linux 6.18's FUSE alone can have it (limits.md): it was changed by a mapping, and has
    /// zeros between an end that it had and the end of that page.
    fn may_be_the_kernels(&self, inode: u64, from: u64, ours: &[u8], local: &[u8]) -> bool {
        let differ = || ours.iter().zip(local).enumerate().filter(|(_, (a, b))| a != b);
        let (Some((first, _)), Some((last, _))) = (differ().next(), differ().next_back()) else {
            return false;
        };
        let (begin, end) = (from + first as u64, from + last as u64);
        let had_an_end_there = |length: &u64| length / PAGE == begin / PAGE && *length <= begin;
        ours.len() == local.len()
            && self.mapped.contains(&inode)
            && end / PAGE == begin / PAGE
            && ours[first..=last].iter().all(|byte| *byte == 0)
            && self.lengths.get(&inode).is_some_and(|known| known.iter().any(had_an_end_there))
    }

    /// A name means the same file, or none.
    fn check_name(&self, mount: usize, name: &str) {
        if self.inode(name).is_some_and(|inode| !self.may_read(mount, inode)) {
            return;
        }
        let what = format!("mount {mount}, {name}");
        let found =
            |folder: &Path| fs::symlink_metadata(folder.join(name)).map(|found| (found.len(), found.nlink()));
        let (ours, local) = (found(&self.ours[mount]), found(&self.local));
        self.same(&format!("{what}, stat"), code(&ours), code(&local));
        if let (Ok(ours), Ok(local)) = (ours, local) {
            self.same(&format!("{what}, length and links"), ours, local);
            let read = |folder: &Path| fs::read(folder.join(name)).unwrap();
            let inode = self.inode(name).unwrap();
            self.same_bytes(&what, inode, 0, &read(&self.ours[mount]), &read(&self.local));
        }
    }

    /// Everything is the same in a mount.
    fn check_all(&self, mount: usize) {
        for folder in ["", "d0", "d1"] {
            let list = |root: &Path| {
                let names = fs::read_dir(root.join(folder)).unwrap();
                let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
                // What is removed while it is open keeps a name of the client's until it is closed.
                names.filter(|name| !name.starts_with(".__afs")).collect::<BTreeSet<_>>()
            };
            self.same(
                &format!("mount {mount}, names in {folder:?}"),
                list(&self.ours[mount]),
                list(&self.local),
            );
            for number in 0..4 {
                let name = format!("{folder}/f{number}");
                self.check_name(mount, name.trim_start_matches('/'));
            }
        }
    }

    fn step(&mut self) {
        let mount = self.random.random_range(0..2);
        let count = self.handles.len();
        if count > 0 && self.random.random_bool(0.7) {
            let at = self.random.random_range(0..count);
            match self.random.random_range(0..100) {
                0..30 => self.write(at),
                30..48 => self.cut_handle(at),
                48..58 => self.map(at),
                58..64 => self.allocate(at),
                64..70 => self.sync(at),
                _ => return self.close(at),
            }
            self.check_handle(at);
            return;
        }
        match self.random.random_range(0..100) {
            0..50 if count < HANDLES => self.open(mount),
            50..60 => self.cut_name(mount),
            60..70 => self.remove(mount),
            70..80 => self.rename(mount),
            80..85 => self.link(mount),
            85..97 => {
                let name = self.name();
                self.check_name(mount, &name);
            }
            _ => self.check_all(mount),
        }
    }

    fn whole(mut self) {
        for _ in 0..OPERATIONS {
            self.step();
        }
        while !self.handles.is_empty() {
            self.close(self.handles.len() - 1);
        }
        self.check_all(0);
        self.check_all(1);
    }
}

#[test]
fn random_operations_in_two_mounts_give_what_a_local_folder_gives() {
    let _cpu = cpu();
    require!(can_mount() && needs(&[]));
    let lasts = Duration::from_secs(mounted::number("AFAR_RANDOM_SECONDS", 15));
    let first = mounted::number("AFAR_SEED", 1);
    let cell = Cell::new("random");
    let [one, two] = ["one", "two"].map(|name| cell.mount(name));
    let local = cell.folder.join("local");
    fs::create_dir(&local).unwrap();
    let mounts = [one.1.clone(), two.1.clone()];
    let begin = Instant::now();
    let mut seed = first;
    let mut maybe_the_kernels = 0;
    let mut run = |seed: u64| {
        let run = Run::new(seed, &mounts, &local);
        match catch_unwind(AssertUnwindSafe(|| run.whole())) {
            Err(why) if why.is::<MaybeTheKernels>() => maybe_the_kernels += 1,
            Err(why) => resume_unwind(why),
            Ok(()) => {}
        }
        for folder in [&mounts[0], &local] {
            match fs::remove_dir_all(folder.join(format!("seed{seed}"))) {
                Err(error) if error.kind() != ErrorKind::NotFound => panic!("seed {seed}: {error}"),
                _ => {}
            }
        }
    };
    while begin.elapsed() < lasts {
        println!("seed {seed}, after {:?}", begin.elapsed());
        run(seed);
        seed += 1;
    }
    let runs = seed - first;
    assert!(maybe_the_kernels <= 1 + runs / 50, "{maybe_the_kernels} of {runs} runs: the kernel's are fewer");
    println!(
        "{runs} runs of {OPERATIONS} operations, seeds {first} to {}, {maybe_the_kernels} ended early",
        seed - 1
    );
    for (name, (mount, _)) in ["one", "two"].into_iter().zip([one, two]) {
        assert!(!cell.log(name).contains("put aside"), "{}", cell.log(name));
        assert!(mount.stop().success());
    }
    assert!(cell.servers.stop().success());
}
