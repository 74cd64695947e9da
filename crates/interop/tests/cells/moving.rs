//! A volume that Debian's `vos` moves back and forth between OpenAFS's server and ours, while programs work in it through our mount and
//! through `afsd.fuse`: they meet no error, and nothing that they wrote is lost. A volume that it releases to both, while a program reads
//! it, and one of them is stopped; and one that it releases from our server to OpenAFS's under readers. The simulated cell has the same with
//! our servers alone. AFAR_MOVES says how many moves; releases under readers and stops are half as many.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use afar_interop::cell::{self, ADDRESS, CELL_NAME, Machine, Mount, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::fuse;
use crate::scene::{Scene, told};

/// Moves, unless AFAR_MOVES says otherwise. If a program has written less often by then, they go on, up to four times as many.
const MOVES: usize = 4;

/// Files of a program; behind that it writes them anew, so that a move does not take ever longer.
const FILES: usize = 40;

/// How long programs work between two moves.
const BETWEEN: Duration = Duration::from_millis(500);

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab) -> Verdict;
    let checks: [(&str, Check); 3] = [
        ("under_programs_loses_nothing", under_programs),
        ("a_reader_of_replicas_gets_one_release_from_whichever_server_runs", replicas),
        ("readers_never_see_half_of_a_release_from_our_server", releases),
    ];
    let case = |(name, check): (&str, Check)| {
        let lab = Arc::clone(lab);
        Case::new(format!("moving/{name}/stock"), Weight::Busy, move || check(&lab))
    };
    checks.into_iter().map(case).collect()
}

fn moves() -> usize {
    std::env::var("AFAR_MOVES").map_or(MOVES, |text| text.parse().expect("a number"))
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
    fn run(mut self, has_ended: &AtomicBool, written: &AtomicUsize) -> Result<Work, String> {
        let mut longest = Duration::ZERO;
        while !has_ended.load(Ordering::Acquire) {
            let begun = Instant::now();
            self.step()?;
            written.store(self.rounds, Ordering::Release);
            longest = longest.max(begun.elapsed());
            thread::sleep(Duration::from_millis(20));
        }
        self.log.sync_all().map_err(|error| format!("{}: the end: {error}", self.name))?;
        let Self { name, rounds, files, logged, .. } = self;
        Ok(Work { name, rounds, longest, files, logged })
    }
}

/// The program that works through OpenAFS's client, and the time within which that client stores a file whose close has returned already.
pub(crate) const STOCK: &str = "afsd.fuse";
const STORED_WITHIN: Duration = Duration::from_secs(30);

/// What a program has written.
pub(crate) struct Work {
    name: &'static str,
    rounds: usize,
    longest: Duration,
    files: Vec<(PathBuf, Vec<u8>)>,
    logged: Vec<u8>,
}

impl Work {
    /// Whether all of it is there in a folder, as another client shows it.
    pub(crate) fn check_at(&self, folder: &Path) -> Verdict {
        for (path, bytes) in &self.files {
            check(&folder.join(path.file_name().unwrap_or_default()), bytes)?;
        }
        let (log, until) = (folder.join("log"), Instant::now() + STORED_WITHIN);
        loop {
            match check(&log, &self.logged) {
                Err(_) if self.name == STOCK && Instant::now() < until => {
                    thread::sleep(Duration::from_millis(50))
                }
                checked => return Ok(checked?),
            }
        }
    }
}

fn check(path: &Path, bytes: &[u8]) -> Result<(), String> {
    match fs::read(path) {
        Ok(read) if read == bytes => Ok(()),
        Ok(read) => Err(format!("{} has other bytes, {} of {}", path.display(), read.len(), bytes.len())),
        Err(error) => Err(format!("reading {}: {error}", path.display())),
    }
}

fn under_programs(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = fuse::scene(lab, &Servers::Stock)?;
    let least = moves();
    let other: Ipv4Addr = scene.cell.join(3, &Machine::new(lab.our_servers()?))?;
    let ours = OurMount::start(&scene.cell, &lab.afar()?, &[])?;
    let stock = scene.cell.mount("one")?;
    let scratch = |mount: &Path| mount.join(CELL_NAME).join("scratch");
    let (our_scratch, stock_scratch) = (scratch(&ours.path()), scratch(stock.path()));
    let programs = [("ours", our_scratch.join("ours")), (STOCK, stock_scratch.join("stock"))];
    let work = || {
        while_programs_work(programs, least, |progress| {
            for number in 0..4 * least {
                thread::sleep(BETWEEN);
                if progress().is_none_or(|written| number >= least && written >= least) {
                    break;
                }
                let (from, to) = if number % 2 == 0 { (ADDRESS, other) } else { (other, ADDRESS) };
                scene.cell.expect(&format!("vos move scratch {from} a {to} a -localauth"))?;
            }
            Ok(())
        })
    };
    let work = || unless_forced_offline(&scene, &stock, work);
    stock.within(|| {
        let programs = work().map_err(|trouble| match trouble {
            Trouble::Failed(why) => Trouble::Failed(format!("{why}\nthe client: {}", ours.said())),
            trouble => trouble,
        })?;
        // Each client finds what the other has written.
        for (program, folder) in programs.iter().zip([stock_scratch.join("ours"), our_scratch.join("stock")])
        {
            program.check_at(&folder)?;
        }
        Ok(())
    })?;
    Ok(ours.stop()?)
}

/// Does something; skips if OpenAFS's file server gives up a volume meanwhile. On a busy machine it finds, each time when clients come to a volume
/// that was just moved to it or cloned, that this has to be salvaged, though its salvager finds nothing, and after 16 times leaves it offline for
/// good. It is its own doing: it does the same when the volume is moved between two servers of OpenAFS's. Its client waits for such a volume, so
/// it is killed, also where all moves are through.
fn unless_forced_offline<T>(
    scene: &Scene,
    stock: &Mount<'_>,
    work: impl FnOnce() -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let path = scene.cell.folder("srv").join("log/FileLog");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            loop {
                let log = fs::read_to_string(&path).unwrap_or_default();
                if let Some(line) = log.lines().find(|line| line.contains("salvaged too many times")) {
                    println!("OpenAFS's file server: {line}");
                    for name in ["FileLog", "VolserLog", "SalsrvLog"] {
                        let log = fs::read_to_string(path.with_file_name(name)).unwrap_or_default();
                        let last = log.lines().count().saturating_sub(60);
                        log.lines().skip(last).for_each(|line| println!("{name}: {line}"));
                    }
                    let killed = stock.kill();
                    return Some(killed.map_or_else(|problem| problem, |()| line.to_owned()));
                }
                if is_over.load(Ordering::Acquire) {
                    return None;
                }
                thread::sleep(BETWEEN);
            }
        });
        let done = work();
        is_over.store(true, Ordering::Release);
        match watch.join() {
            Ok(None) => done,
            Ok(Some(line)) => Err(Trouble::Skipped(format!("OpenAFS's file server: {line}"))),
            Err(_) => Err("the watch of FileLog panicked".to_owned().into()),
        }
    })
}

/// Has programs, each with a folder that it makes, write and read files while something is done, which can ask how often each of them has written
/// at least, and hears nothing once one has failed. Gives what they have written, in so many rounds at least.
pub(crate) fn while_programs_work<const N: usize>(
    programs: [(&'static str, PathBuf); N],
    rounds: usize,
    doing: impl FnOnce(&dyn Fn() -> Option<usize>) -> Verdict,
) -> Result<Vec<Work>, Trouble> {
    let programs = programs.map(|(name, folder)| Program::new(name, folder));
    let programs =
        programs.into_iter().collect::<io::Result<Vec<_>>>().map_err(told("a folder in the mount"))?;
    let has_ended = AtomicBool::new(false);
    let written = [const { AtomicUsize::new(0) }; N];
    let works = thread::scope(|scope| {
        let work = |(program, written)| {
            let (program, written): (Program, &AtomicUsize) = (program, written);
            let has_ended = &has_ended;
            scope.spawn(move || {
                let done = program.run(has_ended, written);
                if done.is_err() {
                    has_ended.store(true, Ordering::Release);
                }
                done
            })
        };
        let running: Vec<_> = programs.into_iter().zip(&written).map(work).collect();
        let least = || written.iter().map(|written| written.load(Ordering::Acquire)).min();
        let done = doing(&|| least().filter(|_| !has_ended.load(Ordering::Acquire)));
        has_ended.store(true, Ordering::Release);
        let mut works = Vec::new();
        for running in running {
            works.push(running.join().map_err(|_| "a program panicked".to_owned())??);
        }
        done?;
        Ok::<_, Trouble>(works)
    })?;
    for Work { name, rounds: written, longest, .. } in &works {
        println!("{name} has written {written} times; the longest round took {longest:?}");
        if *written < rounds {
            return Err(format!("{name} has written {written} times only").into());
        }
    }
    Ok(works)
}

/// Bytes of a released file: more than is read ahead of a program.
const RELEASED: usize = 48 << 20;

/// What a program reads at a time.
const PIECE: usize = 1 << 20;

/// How long a read may take whose server is stopped, which goes on at the other server: a bound against hanging. That it takes less than two
/// seconds is shown in virtual time (`afs_client_tests replicas::a_read_goes_on_at_another_server`); with a load of 20 on two cores the
/// client itself stood still for 3.8 s, and found servers silent that were not stopped: 3 to 14 s.
const LONGEST: Duration = Duration::from_secs(30);

/// The processes of a machine that serve files; stopped until this is dropped.
struct Stopped(Vec<u32>);

impl Stopped {
    fn new(scene: &Scene, machine: &str, program: &str) -> Result<Self, Trouble> {
        let stopped = Self(scene.cell.processes(machine, program));
        if stopped.0.is_empty() {
            return Err(format!("{machine} has no {program}").into());
        }
        stopped.signal("STOP");
        Ok(stopped)
    }

    fn signal(&self, signal: &str) {
        for pid in &self.0 {
            let done = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
            assert!(done.is_ok_and(|status| status.success()), "kill -s {signal} {pid}");
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal("CONT");
    }
}

/// What a file of a release consists of.
fn released(release: u8) -> Vec<u8> {
    (0..RELEASED / 4).flat_map(|word| (word as u32 ^ u32::from(release) << 24).to_be_bytes()).collect()
}

fn replicas(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = fuse::scene(lab, &Servers::Stock)?;
    let address: Ipv4Addr = scene.cell.join(3, &Machine::new(lab.our_servers()?))?;
    let mount =
        OurMount::start(&scene.cell, &lab.afar()?, &["--localauth", "--cache-size", "64M", "--log", "info"])?;
    let there = mount.path().join(CELL_NAME);
    let file = there.join("scratch/file");
    let vos = |line: &str| scene.cell.expect(&format!("vos {line} -localauth"));
    fs::write(&file, released(1)).map_err(told("writing a file"))?;
    vos(&format!("addsite {ADDRESS} a scratch"))?;
    vos(&format!("addsite {address} a scratch"))?;
    vos("release scratch")?;
    let fs = |words: &[&str]| {
        let mut command = Command::new(lab.afar()?.get_program());
        let done = command.arg("fs").args(words).current_dir(&there).output().map_err(told("fs"))?;
        match done.status.success() {
            true => Ok::<_, Trouble>(()),
            false => Err(format!("fs {words:?}: {}", String::from_utf8_lossy(&done.stderr)).into()),
        }
    };
    fs(&["mkmount", "scratch/replica", "scratch.readonly"])?;
    let replica = there.join("scratch/replica/file");
    let machines = [("srv", ADDRESS, "dafileserver"), ("fs3", address, "afar")].into_iter().cycle();
    for (number, (machine, preferred, program)) in machines.take(moves() / 2).enumerate() {
        for at in [ADDRESS, address] {
            let rank = if at == preferred { "1" } else { "20000" };
            fs(&["setserverprefs", &at.to_string(), rank])?;
        }
        let release = number as u8 + 1;
        let expected = released(release);
        let mut reader = File::open(&replica).map_err(told("opening a replica's file"))?;
        let (mut at, mut stopped, mut longest) = (0, None, Duration::ZERO);
        let mut piece = vec![0; PIECE];
        while at < RELEASED {
            if at == 20 * PIECE {
                stopped = Some(Stopped::new(&scene, machine, program)?);
            }
            let begin = Instant::now();
            reader.read_exact(&mut piece).map_err(told("reading a replica's file"))?;
            longest = longest.max(begin.elapsed());
            if piece != expected[at..at + PIECE] {
                return Err(format!("release {release} has other bytes at {at}").into());
            }
            at += PIECE;
        }
        println!("with {machine} stopped, the longest read took {longest:?}");
        if longest > LONGEST {
            let said = mount.said();
            return Err(format!("with {machine} stopped, a read took {longest:?}\nthe client: {said}").into());
        }
        drop(stopped);
        fs::write(&file, released(release + 1)).map_err(told("writing a file"))?;
        vos("release scratch")?;
    }
    Ok(mount.stop()?)
}

/// Files of a release that each are fetched at once.
const SMALL_FILES: usize = 8;

/// A reader's pause after a file: two of them without one leave other programs no processor.
const BETWEEN_READS: Duration = Duration::from_millis(1);

/// How long a reader may take to see the last one.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// A volume of our server `fs3` is released to OpenAFS's too, and changed before each release, while programs read it
/// through two mounts of ours, each of which prefers another server: each file that they read is of one release in all of its bytes.
fn releases(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = fuse::scene(lab, &Servers::Stock)?;
    let last = u8::try_from(1 + moves() / 2).unwrap_or(u8::MAX);
    let address: Ipv4Addr = scene.cell.join(3, &Machine::new(lab.our_servers()?))?;
    let writer = OurMount::start(&scene.cell, &lab.afar()?, &["--localauth", "--log", "info"])?;
    let there = writer.path().join(CELL_NAME).join("scratch");
    let vos = |line: &str| scene.cell.expect(&format!("vos {line} -localauth"));
    vos(&format!("move scratch {ADDRESS} a {address} a"))?;
    vos(&format!("addsite {address} a scratch"))?;
    vos(&format!("addsite {ADDRESS} a scratch"))?;
    let file = |n: usize| format!("file{n}");
    let write = |release: u8| {
        (0..SMALL_FILES).try_for_each(|n| {
            fs::write(there.join(file(n)), vec![release; 200_000 + n]).map_err(told("writing a file"))
        })
    };
    write(1)?;
    vos("release scratch")?;
    let run_fs = |mount: &OurMount, words: &[&str]| {
        let mut command = Command::new(lab.afar()?.get_program());
        let folder = mount.path().join(CELL_NAME);
        let done = command.arg("fs").args(words).current_dir(folder).output().map_err(told("fs"))?;
        match done.status.success() {
            true => Ok::<_, Trouble>(()),
            false => Err(format!("fs {words:?}: {}", String::from_utf8_lossy(&done.stderr)).into()),
        }
    };
    run_fs(&writer, &["mkmount", "scratch/replica", "scratch.readonly"])?;
    let mounts = [ADDRESS, address].map(|preferred| {
        let mount = OurMount::start(&scene.cell, &lab.afar()?, &["--log", "info"])?;
        for at in [ADDRESS, address] {
            let rank = if at == preferred { "1" } else { "20000" };
            run_fs(&mount, &["setserverprefs", &at.to_string(), rank])?;
        }
        Ok::<_, Trouble>(mount)
    });
    let mounts = mounts.into_iter().collect::<Result<Vec<_>, Trouble>>()?;
    let has_ended = AtomicBool::new(false);
    let newest = [const { AtomicU8::new(0) }; 2];
    let read = |mount: &OurMount, newest: &AtomicU8| -> Result<usize, String> {
        let folder = mount.path().join(CELL_NAME).join("scratch/replica");
        let mut count = 0;
        while !has_ended.load(Ordering::Acquire) {
            for n in 0..SMALL_FILES {
                let bytes = fs::read(folder.join(file(n))).map_err(|error| format!("reading: {error}"))?;
                let release = bytes.first().copied().unwrap_or(0);
                if bytes != vec![release; 200_000 + n] {
                    return Err(format!("file{n} has {} bytes of several releases", bytes.len()));
                }
                count += 1;
                newest.fetch_max(release, Ordering::Release);
                thread::sleep(BETWEEN_READS);
            }
        }
        Ok(count)
    };
    let seen = thread::scope(|scope| {
        let start = |(mount, newest)| scope.spawn(move || read(mount, newest));
        let readers: Vec<_> = mounts.iter().zip(&newest).map(start).collect();
        let mut released = Ok(());
        for release in 2..=last {
            thread::sleep(BETWEEN);
            released = write(release).and_then(|()| vos("release scratch").map(drop).map_err(Trouble::from));
            if released.is_err() {
                break;
            }
        }
        let until = Instant::now() + SEEN_WITHIN;
        let waits = |(newest, reader): (&AtomicU8, &thread::ScopedJoinHandle<'_, _>)| {
            newest.load(Ordering::Acquire) < last && !reader.is_finished()
        };
        while released.is_ok() && newest.iter().zip(&readers).any(waits) && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        has_ended.store(true, Ordering::Release);
        let seen: Result<Vec<_>, _> = readers
            .into_iter()
            .map(|reader| reader.join().map_err(|_| "a reader panicked".to_owned())?)
            .collect();
        released?;
        Ok::<_, Trouble>(seen?)
    })?;
    for ((mount, count), newest) in mounts.iter().zip(seen).zip(newest) {
        let newest = newest.into_inner();
        println!("a reader has read {count} files, and the releases up to {newest}");
        if newest < last {
            return Err(format!("a reader has seen no release after {newest}: {}", mount.said()).into());
        }
    }
    for mount in mounts {
        mount.stop()?;
    }
    Ok(writer.stop()?)
}
