//! Two mounts of one cell, round after round at random: what one writes and closes, an open in the other that begins afterwards sees,
//! with files held open and mapped, callbacks that come late or not at all, datagrams lost, and servers killed.
//!
//! A mount that cannot be told of a change goes on with what it was promised: it may see the version before, but a whole one, never one
//! older than it has seen, and for no longer than until the server has told it. (`crates/afs-client/tests/rounds.rs` has the same
//! without a kernel, in virtual time.) AFAR_ROUNDS says how many rounds (default 60), AFAR_SEED from which seed.

use crate::mounted::{self, Cell, Process, can_mount, is_root, needs, own_address, text_of};
use afs_lab::cpu::cpu;
use afs_lab::real::proxy::{Proxy, Weather};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Files that are written by turns: the first keep their length and may be mapped, the others are replaced at times (a file that another
/// mount has replaced is gone, and what is mapped of it with it).
const FILES: usize = 6;
const MAPPED: usize = 4;

/// Files that are held open at a time.
const HELD: usize = 20;

/// The kernel itself reads files from this length on, where it may.
const LARGE_BYTES: usize = 1 << 20;

/// A program that maps files and keeps them mapped.
struct Mapper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Mapper {
    fn new() -> Self {
        // A mapping shows the version that was mapped or a later one, and never parts of two: each is a number, again and again.
        let text = "
import mmap, sys
maps = []
def number(data):
    return int.from_bytes(data[:8], 'little') if data == data[:8] * (len(data) // 8) else -1
for line in sys.stdin:
    what, path = line.split()
    said = 'ok'
    if what == 'map':
        with open(path, 'rb') as f:
            m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        maps.append((path, m, number(m[:])))
        if m[:] != open(path, 'rb').read():
            said = 'another than is read'
        if len(maps) > 12:
            maps.pop(0)[1].close()
    else:
        new = number(open(path, 'rb').read())
        for of, m, old in maps:
            now = number(m[:])
            if of == path and not old <= now <= new:
                said = 'mapped was %d, now it is %d, and %d is read' % (old, now, new)
    print(said, flush=True)
";
        let mut child = Command::new("python3")
            .args(["-c", text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn ask(&mut self, what: &str, path: &Path) -> String {
        writeln!(self.input, "{what} {}", path.display()).unwrap();
        let mut said = String::new();
        self.output.read_line(&mut said).unwrap();
        said.trim().to_owned()
    }

    fn end(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        assert!(mounted::wait(&mut child).success());
    }
}

/// What goes wrong for some rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    Weather(Weather),
}

/// What a file has been.
#[derive(Default)]
struct History {
    now: u64,
    length: usize,
    /// The length of each version.
    lengths: HashMap<u64, usize>,
    /// The newest that each mount has seen.
    seen: [u64; 2],
}

struct Rounds {
    cell: Cell,
    proxy: Proxy,
    mounts: [(Process, PathBuf); 2],
    mappers: [Mapper; 2],
    random: StdRng,
    trouble: Trouble,
    /// The round in which the trouble ends.
    ends_at: u64,
    /// Callbacks were lost: the second mount may not have been told of what the first has written.
    is_behind: bool,
    files: Vec<History>,
    held: Vec<File>,
    kills: usize,
    old: usize,
    outages: usize,
}

impl Rounds {
    fn new(seed: u64) -> Self {
        let cell = Cell::waiting("rounds", Some(5));
        let proxy = Proxy::start(own_address(), cell.address, seed);
        let etc = cell.folder.join("etc");
        fs::create_dir(&etc).unwrap();
        fs::copy(cell.folder.join("state/etc/ThisCell"), etc.join("ThisCell")).unwrap();
        let cells = fs::read_to_string(cell.folder.join("state/etc/CellServDB")).unwrap();
        let cells = cells.replace(&cell.address.to_string(), &proxy.address.to_string());
        fs::write(etc.join("CellServDB"), cells).unwrap();
        let mounts = ["one", "two"].map(|name| cell.mount_with(name, "etc", &[]));
        Self {
            cell,
            proxy,
            mounts,
            mappers: [Mapper::new(), Mapper::new()],
            random: StdRng::seed_from_u64(seed),
            trouble: Trouble::None,
            ends_at: 0,
            is_behind: false,
            files: (0..FILES).map(|_| History::default()).collect(),
            held: Vec::new(),
            kills: 0,
            old: 0,
            outages: 0,
        }
    }

    fn path(&self, mount: usize, number: usize) -> PathBuf {
        self.mounts[mount].1.join(format!("m{number}"))
    }

    fn length(&mut self) -> usize {
        let length = match self.random.random_range(0..10) {
            0..5 => self.random.random_range(8..30_000),
            5..8 => self.random.random_range(30_000..LARGE_BYTES),
            _ => self.random.random_range(LARGE_BYTES + 8..3 * LARGE_BYTES),
        };
        length / 8 * 8
    }

    /// Trouble begins or ends.
    fn change_weather(&mut self, round: u64, rounds: u64) {
        if self.trouble != Trouble::None {
            if round >= self.ends_at {
                self.clear_up(round);
            }
            return;
        }
        let fair = Weather::default();
        let (weather, lasts) = match self.random.random_range(0..300) {
            // Each takes as long as a server waits until it tries again, so there are few; and one at least.
            0 => (Weather { callbacks_lost: true, ..fair }, 2..12),
            _ if self.outages == 0 && round > rounds / 2 => (Weather { callbacks_lost: true, ..fair }, 4..12),
            1..=5 => {
                let callbacks_late = Duration::from_millis(self.random.random_range(1..500));
                (Weather { callbacks_late, ..fair }, 1..4)
            }
            6..=8 => (Weather { lost_percent: 5, ..fair }, 2..6),
            _ => return,
        };
        self.ends_at = round + self.random.random_range(lasts);
        self.trouble = Trouble::Weather(weather);
        if weather.callbacks_lost {
            self.is_behind = true;
            self.outages += 1;
            // What the first mount is promised, so that it sees its change only once it is told.
            let promised = self.mounts[0].1.join("told");
            fs::write(&promised, b"before").unwrap();
            assert_eq!(fs::read(&promised).unwrap(), b"before");
        }
        self.proxy.set(weather);
    }

    fn clear_up(&mut self, round: u64) {
        self.trouble = Trouble::None;
        self.proxy.set(Weather::default());
        if !self.is_behind {
            return;
        }
        // The server tells what it could not tell before. It tries after one second, then two, four, eight: about as long after an
        // outage as that took.
        for number in 0..FILES {
            let text = text_of(self.files[number].now, self.files[number].length);
            let path = self.path(1, number);
            until!(
                text.is_empty() || fs::read(&path).unwrap_or_default() == text,
                "round {round}: mount 1 is not told of file {number}"
            );
            self.files[number].seen = [self.files[number].now; 2];
        }
        // Nor may the first have answered what it was asked: it is told of the second's changes again when it sees one of what it
        // was promised before.
        let told = self.mounts.each_ref().map(|(_, place)| place.join("told"));
        let text = round.to_string();
        fs::write(&told[1], &text).unwrap();
        until!(
            fs::read_to_string(&told[0]).unwrap_or_default() == text,
            "round {round}: mount 0 is not told"
        );
        self.is_behind = false;
    }

    fn round(&mut self, round: u64, rounds: u64) {
        self.change_weather(round, rounds);
        // Who may be behind does not write: in AFS the last to close counts.
        let from = if self.is_behind { 0 } else { self.random.random_range(0..2) };
        let number = self.random.random_range(0..FILES);
        let is_replaced = number >= MAPPED && self.random.random_bool(0.4);
        let is_new = self.files[number].length == 0 || is_replaced;
        let length = if is_new { self.length() } else { self.files[number].length };
        let (path, text) = (self.path(from, number), text_of(round, length));
        let is_fair = self.trouble == Trouble::None;
        let kills = match self.random.random_range(0..120) {
            0 if is_fair => [true, false],
            1 if is_fair => [false, true],
            _ => [false; 2],
        };
        let write = || match is_new {
            true => {
                let new = path.with_extension("new");
                fs::write(&new, &text).unwrap();
                fs::rename(&new, &path).unwrap();
            }
            false => OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&text, 0).unwrap(),
        };
        // In the midst of it, or between it and who reads it.
        if kills[0] {
            // By another process: what is open here to be written would be stored by the servers' process before it is one, and so never.
            let local = self.cell.folder.join("text");
            fs::write(&local, &text).unwrap();
            let text = match is_new {
                true => "cp \"$1\" \"$2.new\" && mv \"$2.new\" \"$2\"",
                false => "dd if=\"$1\" of=\"$2\" bs=64k conv=notrunc status=none",
            };
            let mut writer =
                Command::new("sh").args(["-c", text, "sh"]).arg(&local).arg(&path).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(self.random.random_range(0..30)));
            self.cell.restart();
            assert!(mounted::wait(&mut writer).success(), "round {round}");
        } else {
            write();
        }
        if kills[1] {
            self.cell.restart();
        }
        self.kills += kills.iter().filter(|kill| **kill).count();
        let file = &mut self.files[number];
        (file.now, file.length) = (round, length);
        file.lengths.insert(round, length);
        for reader in [1 - from, from] {
            self.read(round, (from, reader), number);
        }
        while self.held.len() > HELD {
            let at = self.random.random_range(0..self.held.len());
            self.held.swap_remove(at);
        }
    }

    fn read(&mut self, round: u64, (from, reader): (usize, usize), number: usize) {
        let path = self.path(reader, number);
        let told = format!("round {round}, mount {reader}, file {number}, {:?}", self.trouble);
        let seen = match fs::read(&path) {
            Ok(seen) => seen,
            // A file of which it has not been told.
            Err(error) if self.is_behind && reader == 1 && self.files[number].seen[1] == 0 => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{told}");
                return;
            }
            Err(error) => panic!("{told}: {error}"),
        };
        let history = &mut self.files[number];
        let version = u64::from_le_bytes(seen[..8].try_into().unwrap());
        let is_whole = history.lengths.get(&version).is_some_and(|length| seen == text_of(version, *length));
        assert!(is_whole, "{told}: {} bytes that are no version", seen.len());
        let may_be_old = self.is_behind && reader == 1;
        let is_good = version == history.now || (may_be_old && version >= history.seen[reader]);
        assert!(
            is_good,
            "{told}: version {version}, not {} of mount {from}; {} was seen",
            history.now, history.seen[reader]
        );
        self.old += usize::from(version != history.now);
        history.seen[reader] = version;
        if self.random.random_bool(0.3) {
            if number < MAPPED {
                assert_eq!(self.mappers[reader].ask("map", &path), "ok", "{told}");
            }
            self.held.push(File::open(&path).unwrap());
        }
        if self.random.random_bool(0.2) {
            assert_eq!(self.mappers[reader].ask("check", &path), "ok", "{told}");
        }
    }

    /// That large files really are read by the kernel: it does so while the mount's process is stopped.
    fn check_passthrough(&self) {
        let path = self.mounts[1].1.join("through");
        fs::write(self.mounts[0].1.join("through"), text_of(1, 2 * LARGE_BYTES)).unwrap();
        assert!(fs::read(&path).unwrap() == text_of(1, 2 * LARGE_BYTES));
        let file = File::open(&path).unwrap();
        let (done, is_done) = mpsc::channel();
        self.mounts[1].0.signal("STOP");
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 2 * LARGE_BYTES];
            file.read_exact_at(&mut bytes, 0).unwrap();
            done.send(bytes == text_of(1, 2 * LARGE_BYTES)).unwrap();
            file
        });
        let read = is_done.recv_timeout(mounted::TIMEOUT);
        self.mounts[1].0.signal("CONT");
        drop(reader.join().unwrap());
        assert_eq!(read, Ok(true), "the kernel does not read large files by itself");
    }
}

#[test]
fn an_open_sees_what_another_mount_closed_with_files_mapped_callbacks_lost_and_servers_killed() {
    let _cpu = cpu();
    require!(can_mount() && needs(&["python3"]));
    let (count, seed) = (mounted::number("AFAR_ROUNDS", 60), mounted::number("AFAR_SEED", 1));
    println!("{count} rounds, seed {seed}");
    let mut rounds = Rounds::new(seed);
    let has_passthrough = is_root() && mounted::can_pass_through();
    for name in ["one", "two"] {
        rounds.cell.logs(name, &["mounted", &format!("passthrough={has_passthrough}")]);
    }
    if has_passthrough {
        rounds.check_passthrough();
    }
    let begin = Instant::now();
    for round in 1..=count {
        rounds.round(round, count);
        if round % 500 == 0 {
            println!("{round} rounds after {:?}", begin.elapsed());
        }
    }
    rounds.clear_up(count);
    let Rounds { cell, proxy, mounts, mappers, held, kills, old, outages, .. } = rounds;
    let (lost, late) = proxy.callbacks();
    println!(
        "{count} rounds in {:?}: {kills} kills; {outages} times callbacks were lost ({lost} datagrams), after which {old} \
         opens saw the version before; {late} datagrams of callbacks were late",
        begin.elapsed()
    );
    assert!(count < 20 || (outages > 0 && lost > 0), "no callback was lost, so nothing was tried");
    drop(held);
    mappers.into_iter().for_each(Mapper::end);
    for (name, (mount, _)) in ["one", "two"].into_iter().zip(mounts) {
        assert!(!cell.log(name).contains("put aside"), "{}", cell.log(name));
        assert!(mount.stop().success());
    }
    assert!(cell.servers.stop().success());
}
