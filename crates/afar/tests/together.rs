//! Two mounts of one cell whose users change the same directories at the same time: what one has done the other sees, and neither
//! waits for the other's kernel, which holds a directory's lock until a change of it is answered. What takes no lock and no race of the real
//! kernel's is in `crates/afs-fuse/tests/together.rs`.

use crate::mounted::{self, Cell, can_mount, cell, turns};
use afs_lab::until;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Makes, replaces, moves and removes in a directory where another does the same.
fn change(shared: &Path, name: &str, rounds: usize) {
    for round in 0..rounds {
        let path = shared.join(format!("{name}-{round}"));
        let new = shared.join(format!("{name}-new"));
        fs::write(&path, b"first").unwrap();
        fs::write(&new, name).unwrap();
        fs::rename(&new, &path).unwrap();
        fs::set_permissions(shared, Permissions::from_mode(0o755 | (round as u32 % 2))).unwrap();
        let folder = shared.join(format!("{name}-folder"));
        fs::create_dir(&folder).unwrap();
        fs::hard_link(&path, shared.join(format!("{name}-linked"))).unwrap();
        fs::remove_file(shared.join(format!("{name}-linked"))).unwrap();
        fs::rename(&folder, shared.join(format!("{name}-moved"))).unwrap();
        fs::remove_dir(shared.join(format!("{name}-moved"))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name.as_bytes());
    }
}

#[test]
fn two_mounts_change_one_directory_and_neither_waits_for_the_others_kernel() {
    require!(can_mount());
    let rounds = turns(15);
    cell::answers_in_time("together", |cell| {
        let mounts = ["one", "two"].map(|name| cell.mount(name));
        fs::create_dir(mounts[0].1.join("shared")).unwrap();
        let shared = mounts.each_ref().map(|(_, place)| place.join("shared"));
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for (shared, name) in shared.iter().zip(["one", "two"]) {
                let both = &both;
                scope.spawn(move || {
                    both.wait();
                    // Whatever comes of it, the other goes on.
                    let changed = std::panic::catch_unwind(|| change(shared, name, rounds));
                    both.wait();
                    assert!(changed.is_ok(), "{name} could not change what is shared");
                    // What the other had done when it was done. What was removed before the kernel had let go of it is there under a
                    // hidden name until then.
                    let names = || -> BTreeSet<_> {
                        let names = fs::read_dir(shared).unwrap().map(|entry| entry.unwrap().file_name());
                        names.map(|name| name.into_string().unwrap()).collect()
                    };
                    let expected = ["one", "two"].map(|name| (0..rounds).map(move |r| format!("{name}-{r}")));
                    let expected: BTreeSet<_> = expected.into_iter().flatten().collect();
                    until!(names() == expected, "{:?}", names());
                    for file in expected {
                        assert_eq!(fs::read_to_string(shared.join(&file)).unwrap(), file[..3]);
                    }
                });
            }
        });
    });
}

/// The server tells of a file that has lost a name also the client that has taken it away.
#[test]
fn a_file_that_is_open_is_replaced_without_waiting_for_the_kernel() {
    require!(can_mount());
    cell::answers_in_time("replaced", |cell| {
        let (_mount, place) = cell.mount("one");
        // Small ones the kernel has in its page cache; large ones it reads from the mount's cache where it can.
        for (name, length) in [("small", 4096), ("large", 2 << 20)] {
            let path = place.join(name);
            fs::write(&path, vec![1; length]).unwrap();
            let mut open = File::open(&path).unwrap();
            for round in 2..6 {
                let new = place.join("new");
                fs::write(&new, vec![round; length]).unwrap();
                fs::rename(&new, &path).unwrap();
                let mut before = Vec::new();
                std::io::Read::read_to_end(&mut open, &mut before).unwrap();
                assert!(before == vec![round - 1; length], "{name}, round {round}");
                open = File::open(&path).unwrap();
            }
        }
    });
}

type FindEnd = fn(&File) -> u64;

/// The ways in which programs find out where a file ends.
const WAYS: [(&str, FindEnd); 5] = [
    ("pread", |file| file.read_at(&mut [0; 1000], 0).unwrap() as u64),
    ("lseek", |mut file| file.seek(SeekFrom::End(0)).unwrap()),
    ("lseek to the hole", |file| rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(0)).unwrap()),
    ("fstat", |file| file.metadata().unwrap().len()),
    ("sendfile", |file| {
        let out = File::create("/dev/null").unwrap();
        rustix::fs::sendfile(out, file, Some(&mut 0), 1000).unwrap() as u64
    }),
];

/// The locks that hold against all clients.
type SetLock = fn(&File, FlockOperation) -> rustix::io::Result<()>;
const LOCKS: [(&str, SetLock); 2] =
    [("flock", |file, lock| flock(file, lock)), ("fcntl", |file, lock| fcntl_lock(file, lock))];

/// A program that had a file open, or opened it just then, found the end where it had been before another client made the file longer, and
/// what it wrote there overwrote what the other had stored.
#[test]
fn a_file_ends_where_another_mount_has_ended_it_for_who_opens_or_locks_it_then() {
    require!(can_mount());
    cell::at_once("ends", |cell| {
        let mounts = ["one", "two"].map(|name| cell.mount(name));
        let [mine, others] = mounts.each_ref().map(|(_, place)| place.join("file"));
        let open = || OpenOptions::new().read(true).write(true).open(&mine).unwrap();
        fs::write(&mine, b"begin").unwrap();
        let kept = open();
        for round in 0..turns(4) {
            for (way, end_of) in WAYS {
                for lock in ["none, but opened anew", "flock", "fcntl"] {
                    // Now longer, now shorter.
                    let length = if round % 4 == 3 { 9 } else { 9 + 16 * (round + 1) };
                    kept.read_at(&mut [0; 1000], 0).unwrap();
                    fs::write(&others, vec![b'x'; length]).unwrap();
                    let end = match lock {
                        "flock" => {
                            flock(&kept, FlockOperation::LockExclusive).unwrap();
                            end_of(&kept)
                        }
                        "fcntl" => {
                            fcntl_lock(&kept, FlockOperation::LockExclusive).unwrap();
                            end_of(&kept)
                        }
                        _ => end_of(&open()),
                    };
                    assert_eq!(end, length as u64, "{way}, lock {lock}, round {round}");
                    for (_, set) in LOCKS {
                        set(&kept, FlockOperation::Unlock).unwrap();
                    }
                }
            }
        }
    });
}

/// As programs do that keep a mailbox, a ledger or a counter open: they lock it, look at it, write, and unlock it.
#[test]
fn what_two_mounts_write_under_a_lock_into_a_file_that_both_keep_open_is_all_there() {
    const EACH: usize = 15;
    require!(can_mount());
    for (name, lock) in LOCKS {
        cell::at_once(name, |cell| {
            let mounts = ["one", "two"].map(|name| cell.mount(name));
            for file in ["lines", "counter"] {
                fs::write(mounts[0].1.join(file), b"").unwrap();
            }
            let mut kept = mounts.each_ref().map(|(_, place)| {
                ["lines", "counter"]
                    .map(|name| OpenOptions::new().read(true).write(true).open(place.join(name)).unwrap())
            });
            for round in 0..EACH {
                for (number, [lines, counter]) in kept.iter_mut().enumerate() {
                    for file in [&*lines, counter] {
                        lock(file, FlockOperation::LockExclusive).unwrap();
                    }
                    lines.seek(SeekFrom::End(0)).unwrap();
                    lines.write_all(format!("{number} says {round}\n").as_bytes()).unwrap();
                    let mut text = [0; 20];
                    let length = counter.read_at(&mut text, 0).unwrap();
                    let count: usize = str::from_utf8(&text[..length]).unwrap().parse().unwrap_or(0);
                    counter.write_all_at((count + 1).to_string().as_bytes(), 0).unwrap();
                    for file in [&*lines, counter] {
                        lock(file, FlockOperation::Unlock).unwrap();
                    }
                }
            }
            let text = fs::read_to_string(mounts[0].1.join("lines")).unwrap();
            let said = |number, round| text.lines().any(|line| line == format!("{number} says {round}"));
            assert!((0..2).all(|number| (0..EACH).all(|round| said(number, round))), "{text}");
            assert_eq!(text.lines().count(), 2 * EACH, "{text}");
            assert_eq!(fs::read_to_string(mounts[1].1.join("counter")).unwrap(), (2 * EACH).to_string());
        });
    }
}

/// A reader gets the file or nothing of it, never zeros in its place: the kernel makes those of an answer that is shorter than the length
/// that it was told.
#[test]
fn who_reads_a_file_that_another_mount_rewrites_gets_no_zeros() {
    require!(can_mount());
    let cell = Cell::new("rewritten");
    let mounts = ["one", "two"].map(|name| cell.mount(name));
    let [read_in, written_in] = mounts.each_ref().map(|(_, place)| place);
    // The kernel may read the longest by itself.
    for length in [4096, 20_000, 300_000, 1_500_000] {
        let name = length.to_string();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // As a shell does: it opens the file for the program that writes, and closes its own descriptor.
                    let mut file = File::create(written_in.join(&name)).unwrap();
                    file.sync_all().unwrap();
                    file.write_all(&vec![b'x'; length]).unwrap();
                    drop(file);
                    if length > 1 << 20 {
                        // Else there is never enough time to read all of it.
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            });
            let until = Instant::now() + Duration::from_secs(turns(1) as u64);
            let mut whole = 0;
            // On a busy machine it takes longer until one comes between two writes.
            while Instant::now() < until || (whole == 0 && Instant::now() < until + mounted::TIMEOUT) {
                // Before it is made there is nothing to be read.
                let Ok(mut file) = File::open(read_in.join(&name)) else { continue };
                // Their errors end the other thread too.
                let bytes = file.metadata().and_then(|_| {
                    let mut bytes = Vec::new();
                    file.read_to_end(&mut bytes).map(|_| bytes)
                });
                let zeros = bytes.as_ref().map(|bytes| bytes.iter().filter(|byte| **byte == 0).count());
                if !matches!(zeros, Ok(0)) {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert_eq!(zeros.unwrap(), 0, "of {length} bytes");
                whole += usize::from(bytes.unwrap().len() == length);
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(whole > 0, "of {length} bytes none was read whole");
        });
    }
}

/// Each of the two finds that the other was faster, again and again: that what it wants to remove is not there is no fault to it.
#[test]
fn a_tree_that_two_mounts_remove_at_the_same_time_is_gone_and_neither_fails() {
    require!(can_mount());
    cell::at_once("removed", |cell| {
        let mounts = ["one", "two"].map(|name| cell.mount(name));
        let tree = mounts[0].1.join("tree");
        for dir in 0..30 {
            let dir = tree.join(format!("dir{dir}")).join("inner");
            fs::create_dir_all(&dir).unwrap();
            for file in 0..5 {
                fs::write(dir.join(format!("file{file}")), b"text").unwrap();
            }
        }
        let removing = mounts.each_ref().map(|(_, place)| {
            let mut command = std::process::Command::new("rm");
            command.arg("-rf").arg(place.join("tree")).stderr(std::process::Stdio::piped()).spawn().unwrap()
        });
        for removing in removing {
            let output = removing.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert!(!tree.exists());
    });
}

/// A mail program takes a message by renaming it; whoever was told yes has it. Linux does not ask the file system for a rename of which
/// both names are one inode to it, and so said yes to the second.
#[test]
fn a_name_that_two_mounts_rename_to_one_new_name_is_renamed_by_one_of_them() {
    require!(can_mount());
    let names = turns(15);
    cell::at_once("renamed", |cell| {
        let mounts = ["one", "two"].map(|name| cell.mount(name));
        let places = mounts.each_ref().map(|(_, place)| place.as_path());
        for dir in ["new", "cur"] {
            fs::create_dir(places[0].join(dir)).unwrap();
        }
        let to = |dir: &'static str| move |number: usize| format!("{dir}/{number}");
        let across: [&(dyn Fn(usize) -> String + Sync); 2] = [&to("new"), &to("cur")];
        let within: [&(dyn Fn(usize) -> String + Sync); 2] =
            [&to("new"), &|number| format!("new/{number}.S")];
        for (what, [from, to], is_directory, is_open) in [
            ("files", across, false, false),
            ("files in their directory", within, false, false),
            ("open files", across, false, true),
            ("open files in their directory", within, false, true),
            ("directories", across, true, false),
            ("directories in their directory", within, true, false),
        ] {
            for number in 0..names {
                let path = places[0].join(from(number));
                if is_directory { fs::create_dir(path) } else { fs::write(path, b"text") }.unwrap();
            }
            let open = |place: &Path| match is_open {
                true => (0..names).map(|number| File::open(place.join(from(number))).unwrap()).collect(),
                false => Vec::new(),
            };
            let kept: Vec<File> = places.into_iter().flat_map(open).collect();
            let both = Barrier::new(2);
            let rename = |place: &Path| -> Vec<bool> {
                let renamed = (0..names).map(|number| {
                    // As programs do that look what there is.
                    assert!(place.join(from(number)).exists());
                    both.wait();
                    let renamed = fs::rename(place.join(from(number)), place.join(to(number)));
                    both.wait();
                    match renamed {
                        Ok(()) => true,
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{what}: {error}");
                            false
                        }
                    }
                });
                renamed.collect()
            };
            let renamed = std::thread::scope(|scope| {
                let threads = places.map(|place| scope.spawn(move || rename(place)));
                threads.map(|thread| thread.join().unwrap())
            });
            let winners = (0..names).map(|number| renamed.iter().filter(|renamed| renamed[number]).count());
            assert_eq!(winners.collect::<Vec<_>>(), vec![1; names], "of {what}: told yes for each");
            drop(kept);
            for number in 0..names {
                for place in places {
                    let found = fs::metadata(place.join(to(number)));
                    assert!(found.is_ok(), "{what}: {number} in {}: {found:?}", place.display());
                }
                let path = places[1].join(to(number));
                if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
            }
        }
    });
}

/// Two names of one file are one inode still, in a mount that has looked them up before another has made, moved and removed names of it.
#[test]
fn the_names_of_a_file_stay_one_inode_while_another_mount_moves_them() {
    require!(can_mount());
    cell::at_once("linked", |cell| {
        let mounts = ["one", "two"].map(|name| cell.mount(name));
        let [mine, others] = mounts.each_ref().map(|(_, place)| place.as_path());
        fs::write(others.join("a"), b"text").unwrap();
        fs::hard_link(others.join("a"), others.join("b")).unwrap();
        for round in 0..20 {
            let file = File::open(mine.join("a")).unwrap();
            let inode = |name: &str| fs::metadata(mine.join(name)).unwrap().ino();
            assert_eq!(inode("a"), inode("b"));
            // One file to the kernel: nothing is done, and both names stay.
            fs::rename(mine.join("a"), mine.join("b")).unwrap();
            fs::rename(others.join("b"), others.join("c")).unwrap();
            assert_eq!(inode("a"), inode("c"), "round {round}");
            assert!(!mine.join("b").exists());
            assert_eq!(file.metadata().unwrap().ino(), inode("c"));
            fs::rename(others.join("c"), others.join("b")).unwrap();
        }
    });
}

/// The kernel asks about a name that it has and may not use without the directory's lock, and notes the answer when its thread has a
/// processor again: perhaps after a notice that was sent later.
#[test]
fn a_name_that_was_just_found_is_not_found_when_another_mount_has_removed_it() {
    require!(can_mount());
    cell::at_once("found", |cell| {
        let mounts = ["one", "two"].map(|name| cell.mount(name));
        let [mine, others] = mounts.each_ref().map(|(_, place)| place.join("name"));
        let beside = mounts[1].1.join("beside");
        for round in 0..turns(150) {
            fs::write(&others, b"").unwrap();
            // The directory changes, and the name stays: the kernel may have it, or have to ask again.
            for _ in 0..2 {
                assert!(mine.exists(), "round {round}: it was made");
                fs::write(&beside, b"").unwrap();
                assert!(mine.exists(), "round {round}: another was made");
                fs::remove_file(&beside).unwrap();
                assert!(mine.exists(), "round {round}: another was removed");
            }
            fs::remove_file(&others).unwrap();
            assert!(!mine.exists(), "round {round}: it was removed");
        }
    });
}

/// A program that asks while a name is removed may be told either. One that asks afterwards may not.
#[test]
fn a_name_that_is_being_looked_up_while_another_mount_removes_it_is_soon_gone() {
    const TIMEOUT: Duration = Duration::from_secs(20);
    require!(can_mount());
    let cell = Cell::new("asked");
    let mounts = ["one", "two"].map(|name| cell.mount(name));
    let [mine, others] = mounts.each_ref().map(|(_, place)| place.join("name"));
    let beside = mounts[1].1.join("beside");
    for round in 0..turns(100) {
        fs::write(&others, b"").unwrap();
        let is_removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_removed.load(Ordering::Relaxed) {
                        // Either is right.
                        let _ = mine.exists();
                    }
                });
            }
            // The kernel has the name, and asks about it again.
            fs::write(&beside, b"").unwrap();
            fs::remove_file(&others).unwrap();
            is_removed.store(true, Ordering::Relaxed);
        });
        let until = Instant::now() + TIMEOUT;
        while mine.exists() {
            assert!(Instant::now() < until, "round {round}: the name stays");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
