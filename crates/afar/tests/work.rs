//! What programs do in a mounted cell: the same as on a local file system, as far as AFS can (docs/semantics.md).

use crate::mounted::{self, Folder, Process, can_mount, needs, own_address, script, turns, wait_for};
use afs_lab::cpu::cpu;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A mounted cell, and a folder in it that anybody may write.
struct Cell {
    folder: Folder,
    scratch: PathBuf,
    process: Process,
}

impl Cell {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let process = mounted::start_up(&folder, own_address());
        let scratch = folder.join("mnt/afar.local/scratch");
        Self { folder, scratch, process }
    }

    fn end(self) {
        assert!(self.process.stop().success());
    }
}

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn files_directories_and_links_are_as_elsewhere() {
    require!(can_mount());
    let cell = Cell::new("basics");
    let dir = &cell.scratch;
    // Contents.
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("a")).unwrap();
    file.write_all(b"hello, world").unwrap();
    file.write_all_at(b"W", 7).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello, World");
    file.set_len(5).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    file.write_all_at(b"!", 9).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(dir.join("a")).unwrap(), b"hello\0\0\0\0!");
    OpenOptions::new().append(true).open(dir.join("a")).unwrap().write_all(b"+").unwrap();
    assert_eq!(fs::metadata(dir.join("a")).unwrap().len(), 11);
    // Names.
    fs::create_dir(dir.join("d")).unwrap();
    fs::rename(dir.join("a"), dir.join("d/b")).unwrap();
    assert_eq!(errno(fs::metadata(dir.join("a"))), Some(2));
    fs::hard_link(dir.join("d/b"), dir.join("d/c")).unwrap();
    let (b, c) = (fs::metadata(dir.join("d/b")).unwrap(), fs::metadata(dir.join("d/c")).unwrap());
    assert_eq!((b.ino(), b.nlink(), c.nlink()), (c.ino(), 2, 2));
    assert_eq!(
        errno(fs::hard_link(dir.join("d/b"), dir.join("b"))),
        Some(18),
        "links stay in their directory"
    );
    symlink("d/b", dir.join("link")).unwrap();
    assert_eq!(fs::read_link(dir.join("link")).unwrap(), PathBuf::from("d/b"));
    assert_eq!(fs::read(dir.join("link")).unwrap().len(), 11);
    assert_eq!(errno(fs::remove_dir(dir.join("d"))), Some(39), "it is not empty");
    fs::remove_file(dir.join("d/b")).unwrap();
    assert_eq!(fs::metadata(dir.join("d/c")).unwrap().nlink(), 1);
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["d", "link"]);
    fs::remove_dir_all(dir.join("d")).unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    // Attributes.
    let file = File::create(dir.join("t")).unwrap();
    let then = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(then).unwrap();
    fs::set_permissions(dir.join("t"), fs::Permissions::from_mode(0o640)).unwrap();
    let metadata = fs::metadata(dir.join("t")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (0o640, then));
    // What there is not.
    let made = Command::new("mkfifo").arg(dir.join("pipe")).stderr(Stdio::null()).status().unwrap();
    assert!(!made.success());
    cell.end();
}

/// Scripts of interop/programs in a mount of `afar up`, where root is an administrator. `crates/interop` has the same in a cell of
/// OpenAFS's servers.
fn programs(scripts: &[&str], programs: &[&str]) {
    require!(can_mount() && needs(programs));
    let cell = Cell::new("programs");
    let local = cell.folder.join("local");
    fs::create_dir(&local).unwrap();
    for script in scripts {
        mounted::program(script, &cell.scratch, &local);
    }
    cell.end();
}

#[test]
fn git_and_git_annex_do_as_on_a_local_disk() {
    let _cpu = cpu();
    programs(&["git", "annex"], &["git", "git-annex"]);
}

#[test]
fn a_build_mappings_and_renames_over_open_files_do_as_on_a_local_disk() {
    let _cpu = cpu();
    programs(&["build", "mapped", "renamed"], &["make", "gcc"]);
}

#[test]
fn tar_rsync_and_sqlite_do_as_on_a_local_disk() {
    let _cpu = cpu();
    programs(&["tar", "rsync", "sqlite"], &["tar", "rsync", "sqlite3"]);
}

#[test]
fn a_file_of_a_gibibyte_is_as_on_a_local_disk() {
    let _cpu = cpu();
    programs(&["large"], &["gcc"]);
}

#[test]
fn many_at_once_do_not_disturb_each_other() {
    let _cpu = cpu();
    require!(can_mount());
    let cell = Cell::new("many");
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let dir = cell.scratch.join(format!("{}", number % 4));
            std::thread::spawn(move || {
                // Others may have made it.
                drop(fs::create_dir(&dir));
                for step in 0..60 {
                    let (file, other) =
                        (dir.join(format!("{number}.{step}")), dir.join(format!("{number}.new")));
                    let text = format!("{number} {step}").repeat(step * 50);
                    fs::write(&other, &text).unwrap();
                    fs::rename(&other, &file).unwrap();
                    assert_eq!(fs::read_to_string(&file).unwrap(), text);
                    if step % 3 == 0 {
                        fs::remove_file(&file).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let left: usize = (0..4).map(|n| fs::read_dir(cell.scratch.join(n.to_string())).unwrap().count()).sum();
    assert_eq!(left, 8 * 40);
    cell.end();
}

#[test]
fn locks_keep_others_out() {
    require!(can_mount() && needs(&["flock", "python3"]));
    let cell = Cell::new("locks");
    script(
        &cell.scratch,
        "touch l
         flock -x l -c 'flock -n -s l true && exit 1 || true'
         flock -s l -c 'flock -n -s l true'
         flock -s l -c 'flock -n -x l true && exit 1 || true'
         (flock -x l -c 'sleep 1') & sleep 0.3; flock -x l true; wait",
    );
    let python = "
import fcntl, os, sys
f = open('l', 'r+')
fcntl.lockf(f, fcntl.LOCK_EX, 10, 100)
pid = os.fork()
if pid == 0:
    g = open('l', 'r+')
    fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 110)
    try:
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 109)
        os._exit(1)
    except OSError as e:
        os._exit(0 if e.errno == 11 else 2)
assert os.waitpid(pid, 0)[1] == 0
f.close()
g = open('l', 'r+')
fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
";
    let status = Command::new("python3").args(["-c", python]).current_dir(&cell.scratch).status().unwrap();
    assert!(status.success());
    cell.end();
}

#[test]
fn a_signal_ends_a_call_that_waits_and_other_signals_do_not() {
    require!(can_mount());
    let folder = Folder::new("signals");
    let address = own_address();
    // The servers by themselves, so that they can be stopped.
    let servers = Process::start(mounted::up(&folder, address, &["--no-mount"]), None);
    let mount = folder.join("mnt");
    let mut command = mounted::afar(["mount"]);
    command
        .arg(&mount)
        .arg("--config")
        .arg(folder.join("state/etc"))
        .arg("--cache")
        .arg(folder.join("cache"));
    let client = Process::start(command, Some(mount.clone()));
    let file = mount.join("afar.local/scratch");
    assert!(fs::metadata(&file).is_ok());
    servers.signal("STOP");
    for (signal, ends) in [("INT", true), ("KILL", true), ("CHLD", false)] {
        let mut child = mounted::interruptible("touch")
            .arg(file.join(format!("new-{signal}")))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        mounted::has_begun(&child);
        std::thread::sleep(Duration::from_millis(500));
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        mounted::signal(child.id(), signal);
        // A silent server is given up after 12 seconds.
        let patience = Duration::from_secs(if ends { 8 } else { 2 });
        let ended = wait_for(&mut child, patience).is_some();
        assert_eq!(ended, ends, "SIG{signal}");
        if !ends {
            // After a signal that means nothing, one that does.
            mounted::signal(child.id(), "TERM");
            assert!(wait_for(&mut child, Duration::from_secs(8)).is_some());
        }
    }
    servers.signal("CONT");
    assert!(client.stop().success());
    assert!(servers.stop().success());
}

/// Writes files in one of two mounts and reads them in the other, in turns.
fn write_and_see(here: &Path, there: &Path, rounds: usize) {
    let mut held = Vec::new();
    for round in 0..rounds as u32 {
        let (from, to) = if round % 2 == 0 { (here, there) } else { (there, here) };
        let name = format!("f{}", round % 5);
        // Large ones are read by the kernel itself.
        let length = if round % 7 == 0 { 3 << 20 } else { 1000 + round as usize };
        let text: Vec<u8> =
            (0..length).map(|at| (at as u32).wrapping_mul(round + 1).to_be_bytes()[3]).collect();
        match round % 3 {
            0 => fs::write(from.join(&name), &text).unwrap(),
            1 => {
                fs::write(from.join("new"), &text).unwrap();
                fs::rename(from.join("new"), from.join(&name)).unwrap();
            }
            _ => {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(from.join(&name))
                    .unwrap();
                file.write_all_at(&text, 0).unwrap();
                file.set_len(text.len() as u64).unwrap();
            }
        }
        let seen = fs::read(to.join(&name)).unwrap();
        assert!(seen == text, "round {round}: {} bytes, not {}", seen.len(), text.len());
        assert_eq!(fs::metadata(to.join(&name)).unwrap().len(), text.len() as u64, "round {round}");
        // Files stay open, so that what is read by passthrough has to be replaced.
        held.push(File::open(to.join(&name)).unwrap());
        if held.len() > 20 {
            held.remove(0);
        }
    }
}

#[test]
fn what_one_mount_writes_an_open_in_another_sees() {
    require!(can_mount());
    mounted::cell::at_once("two", |cell| {
        let ((one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
        write_and_see(&here, &there, turns(60));
        assert!(one.stop().success() && two.stop().success());
    });
    // The mount of `afar up` is one process with the servers.
    let cell = Cell::new("up-and-two");
    let mount = cell.folder.join("second");
    let mut command = mounted::afar(["mount"]);
    command.arg(&mount).arg("--config").arg(cell.folder.join("state/etc"));
    command.arg("--cache").arg(cell.folder.join("cache2"));
    let second = Process::start(command, Some(mount.clone()));
    write_and_see(&cell.scratch, &mount.join("afar.local/scratch"), turns(20));
    assert!(second.stop().success());
    cell.end();
}

/// The data of the mapping came to the server when the file was gone already. They were put aside, with an error each, for nobody.
#[test]
fn a_file_that_was_mapped_and_removed_leaves_nothing_behind() {
    require!(can_mount());
    let cell = mounted::Cell::new("mapped");
    let (mount, place) = cell.mount("one");
    let path = place.join("file");
    for _ in 0..200 {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        let mut map = mounted::map(&file).unwrap();
        drop(file);
        map[10] = b'A';
        drop(map);
        fs::remove_file(&path).unwrap();
    }
    assert!(mount.stop().success());
    let log = cell.log("one");
    assert!(!log.contains("ERROR") && !log.contains("put aside"), "{log}");
}

/// git notes a file's times before it closes it, and tar before and after it reads. Another ctime is another change to them: "Your local
/// changes to the following files would be overwritten by merge", "file changed as we read it".
#[test]
fn a_file_does_not_change_when_it_is_stored_in_a_later_second() {
    require!(can_mount());
    let cell = Cell::new("stored");
    let path = cell.scratch.join("file");
    fs::write(&path, b"0123456789").unwrap();
    let times = |known: &fs::Metadata| (known.mtime(), known.ctime());
    for change in ["cut", "written", "dated"] {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        match change {
            "cut" => file.set_len(5).unwrap(),
            change => file.write_all_at(change.as_bytes(), 0).unwrap(),
        }
        if change == "dated" {
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
        }
        let open = file.metadata().unwrap();
        // AFS's times are whole seconds: the server sees the change in another one.
        std::thread::sleep(Duration::from_millis(1100));
        drop(file);
        let closed = fs::metadata(&path).unwrap();
        fs::read(&path).unwrap();
        let read = fs::metadata(&path).unwrap();
        assert_eq!((times(&closed), times(&read)), (times(&open), times(&open)), "{change}");
    }
    let before = fs::metadata(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(fs::metadata(&path).unwrap().ctime() > before.ctime(), "another change is one");
    cell.end();
}
