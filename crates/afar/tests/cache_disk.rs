//! A mount whose cache's disk is full, slow, or not there, with real programs.

use crate::mounted::{self, Cell, Process, can_mount, cell, is_root, needs, script, text_of};
use afs_lab::cpu::cpu;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[test]
fn a_cache_whose_disk_is_full_is_read_around_and_nothing_written_is_lost() {
    require!(can_mount());
    if !is_root() {
        return mounted::skip("it takes root to mount a small file system");
    }
    let cell = Cell::new("full");
    let Some(disk) = mounted::SmallDisk::new(cell.folder.join("small"), 40) else {
        return mounted::skip("no small file system can be mounted here");
    };
    let (one, here) = cell.mount("one");
    let mount = cell.folder.join("two");
    let mut command = mounted::afar(["mount"]);
    command.arg(&mount).arg("--config").arg(cell.folder.join("state/etc")).arg("--cache").arg(&disk.path);
    let log = cell.folder.join("log");
    command.stderr(File::create(&log).unwrap());
    let two = Process::start(command, Some(mount.clone()));
    let there = mount.join("afar.local/scratch");
    // More than there is room for.
    let text = text_of(1, 48 << 20);
    fs::write(here.join("large"), &text).unwrap();
    fs::write(here.join("small"), "small").unwrap();
    assert!(fs::read(there.join("large")).unwrap() == text, "more than there is room for");
    // No room at all, and nothing in the cache that could make room.
    let mut open = File::create(there.join("before")).unwrap();
    open.write_all(b"before").unwrap();
    let mut flush = mounted::afar(["fs", "flushall"]);
    flush.current_dir(&there);
    assert!(mounted::run(flush).status.success());
    let mut ballast = File::create(disk.path.join("ballast")).unwrap();
    let piece = vec![0; 64 << 10];
    while ballast.write_all(&piece).is_ok() {}
    assert!(fs::read(there.join("large")).unwrap() == text, "no room at all");
    // What is stored makes room for what comes, so this is taken; what cannot be is refused. Nothing that was taken is lost.
    match fs::write(there.join("new"), &text) {
        Ok(()) => {
            assert!(fs::read(here.join("new")).unwrap() == text, "what was written is not at the server")
        }
        Err(error) => assert_eq!(error.raw_os_error(), Some(28), "ENOSPC"),
    }
    drop(open);
    assert_eq!(fs::read(here.join("before")).unwrap(), b"before");
    drop(ballast);
    fs::remove_file(disk.path.join("ballast")).unwrap();
    // ext4 gives its blocks to nobody else before it has written its journal.
    File::open(&disk.path).unwrap().sync_all().unwrap();
    let text = text_of(2, 1 << 20);
    fs::write(there.join("after"), &text).unwrap();
    assert!(fs::read(here.join("after")).unwrap() == text);
    assert_eq!(fs::read(there.join("small")).unwrap(), b"small");
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("no space left") && said.contains(&disk.path.display().to_string()), "{said}");
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// A file system in a file of a mount: its reads wait while that mount is stopped. Lets it go on and unmounts when dropped.
struct SlowDisk<'a> {
    below: &'a Process,
    path: PathBuf,
}

impl<'a> SlowDisk<'a> {
    /// `None` where this machine has no loop devices.
    fn new(below: &'a Process, image: &Path, path: PathBuf) -> Option<Self> {
        File::create(image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(&path).unwrap();
        let run = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        (run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&path)))
        .then_some(Self { below, path })
    }
}

impl Drop for SlowDisk<'_> {
    fn drop(&mut self) {
        self.below.signal("CONT");
        drop(Command::new("umount").arg("-l").arg(&self.path).status());
    }
}

/// Has the kernel forget what it has of a file's data.
fn drop_pages(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn drop_pages_below(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { drop_pages_below(&path) } else { drop_pages(&path) }
    }
}

/// Reading from the disk waits in threads of its own, not in those that answer the kernel and the network.
#[test]
fn a_slow_read_of_the_caches_disk_stops_no_stat() {
    const FILES: usize = 6;
    require!(can_mount() && needs(&["mkfs.ext4"]));
    if !is_root() {
        return mounted::skip("it takes root to mount a file system");
    }
    let cell = Cell::new("slow");
    let (one, here) = cell.mount("one");
    let image = here.join("image");
    let Some(disk) = SlowDisk::new(&one, &image, cell.folder.join("disk")) else {
        return mounted::skip("no file can be mounted here");
    };
    let mount = cell.folder.join("two");
    let mut command = mounted::afar(["mount"]);
    command.arg(&mount).arg("--config").arg(cell.folder.join("state/etc"));
    command.arg("--cache").arg(disk.path.join("cache")).args(["--cache-size", "32M"]);
    let two = Process::start(command, Some(mount.clone()));
    let there = mount.join("afar.local/scratch");
    // Short enough for the kernel not to read them from the cache by itself.
    let name = |number: usize| format!("file-{number}");
    for number in 0..FILES {
        fs::write(here.join(name(number)), text_of(number as u64, 512 << 10)).unwrap();
        assert!(fs::read(there.join(name(number))).unwrap() == text_of(number as u64, 512 << 10));
        drop_pages(&there.join(name(number)));
    }
    assert_eq!(fs::read_dir(&there).unwrap().count(), FILES + 1);
    drop_pages_below(&disk.path.join("cache"));
    drop_pages(&image);
    one.signal("STOP");
    std::thread::scope(|scope| {
        let readers = (0..FILES).map(|number| {
            let path = there.join(name(number));
            scope.spawn(move || fs::read(path).unwrap() == text_of(number as u64, 512 << 10))
        });
        let readers: Vec<_> = readers.collect();
        std::thread::sleep(Duration::from_millis(500));
        let waiting = readers.iter().filter(|reader| !reader.is_finished()).count();
        let (sender, answers) = std::sync::mpsc::channel();
        let there = &there;
        scope.spawn(move || sender.send(fs::metadata(there.join("none")).is_err()));
        let answer = answers.recv_timeout(mounted::TIMEOUT);
        one.signal("CONT");
        assert_eq!(waiting, FILES, "the disk is not waited for");
        assert_eq!(answer, Ok(true), "nothing is answered while the disk is waited for");
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
    });
    assert!(two.stop().success());
    drop(disk);
    assert!(one.stop().success() && cell.servers.stop().success());
}

#[test]
fn a_mount_without_a_cache_on_the_disk_does_as_one_with_it() {
    require!(can_mount() && needs(&["python3"]));
    cell::at_once("memcache", |cell| {
        let (one, here) = cell.mount("one");
        let (two, there) = cell.mount_with("two", "state/etc", &["-memcache"]);
        // The same in both, in turns, and on a local disk; then all three are compared.
        let local = cell.folder.join("local");
        fs::create_dir(&local).unwrap();
        let work = "
        mkdir -p $1/sub; seq 100000 > $1/numbers; seq 10 >> $1/numbers; : > $1/empty
        head -c 5000000 /dev/zero | tr '\\0' x > $1/large; printf Y | dd of=$1/large bs=1 seek=3000000 conv=notrunc status=none
        cp $1/large $1/sub/copy; mv $1/sub/copy $1/sub/moved; ln -s ../numbers $1/sub/link
        truncate -s 4000000 $1/large; tar cf $1/all.tar --mtime=@0 --owner=0 --group=0 --mode=644 -C $1 numbers large sub
        python3 -c 'import mmap, sys; f = open(sys.argv[1], \"r+b\"); m = mmap.mmap(f.fileno(), 0); m[100:103] = b\"map\"; m.flush()' $1/numbers
        rm $1/empty; sort -n $1/numbers | tail -1; tar xOf $1/all.tar large | cmp - $1/large; (cd $1/sub; cat link | md5sum)";
        let mut said = Vec::new();
        for (folder, dir) in [(&there, "of-two"), (&here, "of-one"), (&local, "of-none")] {
            said.push(script(folder, &format!("set -- {dir}; {work}")));
        }
        assert!(said[0] == said[1] && said[1] == said[2], "{said:?}");
        for folder in [&here, &there] {
            for dir in ["of-one", "of-two"] {
                script(&local, &format!("diff -r {} of-none", folder.join(dir).display()));
            }
        }
        // What is changed elsewhere is seen.
        for round in 0..8u64 {
            let text = round.to_le_bytes().repeat(if round % 4 == 0 { 200_000 } else { 700 });
            let (from, to) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
            fs::write(from.join("turns"), &text).unwrap();
            assert!(fs::read(to.join("turns")).unwrap() == text, "round {round}");
        }
        assert!(!cell.cache("two").exists(), "nothing is on the disk");
        assert!(two.stop().success() && one.stop().success());
    });
}

/// A copy ended with ENOSPC when the file had filled the cache's disk, though its server had room; and then the client did not start.
#[test]
fn a_file_larger_than_the_caches_disk_is_written_and_the_client_starts_again() {
    let _cpu = cpu();
    require!(can_mount());
    let cell = Cell::new("small-disk");
    let Some(_disk) = mounted::SmallDisk::new(cell.cache("small"), 64) else {
        return mounted::skip("a tmpfs cannot be mounted here");
    };
    let (mount, place) = cell.mount("small");
    let piece: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    {
        let mut file = File::create(place.join("large")).unwrap();
        for _ in 0..150 {
            file.write_all(&piece).unwrap();
        }
        // What was there first is read while there is no room for more.
        let mut start = vec![0; piece.len()];
        File::open(place.join("large")).unwrap().read_exact(&mut start).unwrap();
        assert!(start == piece);
        file.sync_all().unwrap();
    }
    assert!(mount.stop().success());
    // Nothing but the cache's clean data is in the way of the next start.
    let (mount, place) = cell.mount("small");
    let all = fs::read(place.join("large")).unwrap();
    assert!(all.len() == 150 << 20 && all.chunks(1 << 20).all(|part| part == piece));
    fs::write(place.join("small"), b"written").unwrap();
    assert!(mount.stop().success());
    assert!(!cell.log("small").contains("ERROR"), "{}", cell.log("small"));
}
