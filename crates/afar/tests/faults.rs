//! Mounts whose servers are killed, stopped or silent, with real programs: what is read is right, and a signal ends who waits.

mod mounted;

use mounted::{Folder, Process, can_mount, is_root, needs, own_address, wait_for};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The servers of a cell, which can be killed and started again, and mounts of it.
struct Cell {
    folder: Folder,
    address: Ipv4Addr,
    servers: Process,
}

impl Cell {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let address = own_address();
        let servers = Process::start(mounted::up(&folder, address, &["--no-mount"]), None);
        Self { folder, address, servers }
    }

    /// Mounts it. Where anybody may write in that mount.
    fn mount(&self, name: &str) -> (Process, PathBuf) {
        let mount = self.folder.join(name);
        let mut command = mounted::afar(["mount"]);
        command
            .arg(&mount)
            .arg("--config")
            .arg(self.folder.join("state/etc"))
            .arg("--cache")
            .arg(self.folder.join(&format!("cache-{name}")));
        (Process::start(command, Some(mount.clone())), mount.join("afar.local/scratch"))
    }

    fn kill_servers(&mut self) {
        self.servers.kill();
        self.servers = Process::start(mounted::up(&self.folder, self.address, &["--no-mount"]), None);
    }
}

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

fn text_of(round: u64, length: usize) -> Vec<u8> {
    round.to_le_bytes().repeat(length / 8)
}

#[test]
fn an_open_sees_what_another_mount_closed_with_files_mapped_and_servers_killed() {
    const NAME: &str = "an_open_sees_what_another_mount_closed_with_files_mapped_and_servers_killed";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
    let mut cell = Cell::new("rounds");
    let ((one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    let mut mappers = [Mapper::new(), Mapper::new()];
    let places = [&here, &there];
    // The large ones are read by the kernel itself, where it may.
    let lengths = [2 << 20, 1_500_000, 100_000, 5000];
    let mut held = Vec::new();
    for round in 0..300u64 {
        let from = (round / 3 % 2) as usize;
        let number = (round % 4) as usize;
        let name = format!("m{number}");
        let text = text_of(round, lengths[number]);
        {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(places[from].join(&name))
                .unwrap();
            file.write_all_at(&text, 0).unwrap();
        }
        if round % 100 == 50 {
            cell.kill_servers();
        }
        for reader in [1 - from, from] {
            let path = places[reader].join(&name);
            let seen = fs::read(&path).unwrap();
            assert!(seen == text, "round {round}, mount {reader}: {} bytes of {}", seen.len(), text.len());
            if round % 3 == 0 {
                assert_eq!(mappers[reader].ask("map", &path), "ok", "round {round}, mount {reader}");
                held.push(File::open(&path).unwrap());
            }
            if round % 5 == 0 {
                assert_eq!(mappers[reader].ask("check", &path), "ok", "round {round}, mount {reader}");
            }
        }
        if held.len() > 20 {
            held.drain(..5);
        }
    }
    drop(held);
    mappers.into_iter().for_each(Mapper::end);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// Has a program wait in the mount, and ends it by Ctrl-C.
fn interrupt(mut child: Child, what: &str) {
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "{what} does not wait");
    let begin = Instant::now();
    mounted::signal(child.id(), "INT");
    assert!(wait_for(&mut child, Duration::from_secs(2)).is_some(), "{what} does not end");
    println!("{what} ended in {:?}", begin.elapsed());
}

#[test]
fn a_signal_ends_a_read_and_a_close_that_wait_and_nothing_is_lost() {
    const NAME: &str = "a_signal_ends_a_read_and_a_close_that_wait_and_nothing_is_lost";
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("silence");
    let ((one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    let text = text_of(1, 64 << 20);
    fs::write(here.join("large"), &text).unwrap();
    // Known, and its end not fetched.
    let mut begin = [0; 4096];
    File::open(there.join("large")).unwrap().read_exact_at(&mut begin, 0).unwrap();
    assert!(begin[..] == text[..4096]);
    let mut writer = mounted::interruptible("sh")
        .args(["-c", "exec cat > \"$1\"", "sh"])
        .arg(there.join("written"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(b"text\n").unwrap();
    let until = Instant::now() + mounted::PATIENCE;
    while fs::metadata(there.join("written")).map_or(0, |metadata| metadata.len()) < 5 {
        assert!(Instant::now() < until, "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    cell.servers.signal("STOP");
    // (Not `dd`, which handles the signal: a read through the page cache is ended by what ends the process, and by nothing else.)
    let reader = mounted::interruptible("tail")
        .args(["-c", "4096"])
        .arg(there.join("large"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    interrupt(reader, "a read");
    // At the end of its input it closes the file.
    drop(input);
    interrupt(writer, "a close");
    cell.servers.signal("CONT");
    // What the close did not wait for is stored.
    let until = Instant::now() + mounted::PATIENCE;
    while fs::read(here.join("written")).unwrap_or_default() != b"text\n" {
        assert!(Instant::now() < until, "what was written is not stored");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(fs::read(there.join("large")).unwrap() == text);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// A small file system of its own, for as long as this is there.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, mib: u32) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let size = format!("size={mib}m");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).status();
        status.is_ok_and(|status| status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_cache_whose_disk_is_full_is_read_around_and_nothing_written_is_lost() {
    const NAME: &str = "a_cache_whose_disk_is_full_is_read_around_and_nothing_written_is_lost";
    if !can_mount(NAME) {
        return;
    }
    if !is_root() {
        return mounted::skip(NAME, "it takes root to mount a small file system");
    }
    let cell = Cell::new("full");
    let Some(disk) = SmallDisk::new(cell.folder.join("small"), 40) else {
        return mounted::skip(NAME, "no small file system can be mounted here");
    };
    let (one, here) = cell.mount("one");
    let mount = cell.folder.join("two");
    let mut command = mounted::afar(["mount"]);
    command.arg(&mount).arg("--config").arg(cell.folder.join("state/etc")).arg("--cache").arg(&disk.0);
    let log = cell.folder.join("log");
    command.stderr(File::create(&log).unwrap());
    let two = Process::start(command, Some(mount.clone()));
    let there = mount.join("afar.local/scratch");
    // More than there is room for.
    let text = text_of(1, 48 << 20);
    fs::write(here.join("large"), &text).unwrap();
    fs::write(here.join("small"), "small").unwrap();
    assert!(fs::read(there.join("large")).unwrap() == text, "more than there is room for");
    // No room at all.
    let mut open = File::create(there.join("before")).unwrap();
    open.write_all(b"before").unwrap();
    let mut ballast = File::create(disk.0.join("ballast")).unwrap();
    let piece = vec![0; 64 << 10];
    while ballast.write_all(&piece).is_ok() {}
    assert!(fs::read(there.join("large")).unwrap() == text, "no room at all");
    // What cannot be taken is refused, and what was taken is stored.
    let refused = fs::write(there.join("new"), &text);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(28), "ENOSPC");
    drop(open);
    assert_eq!(fs::read(here.join("before")).unwrap(), b"before");
    drop(ballast);
    fs::remove_file(disk.0.join("ballast")).unwrap();
    let text = text_of(2, 1 << 20);
    fs::write(there.join("after"), &text).unwrap();
    assert!(fs::read(here.join("after")).unwrap() == text);
    assert_eq!(fs::read(there.join("small")).unwrap(), b"small");
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("no space left") && said.contains(&disk.0.display().to_string()), "{said}");
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}
