//! What is limited in a mount: a volume by its quota, which programs are told of; the cache by its size, also where there is none.

use crate::mounted;
use crate::mounted::cell::{self, Cell};
use crate::mounted::{Folder, can_mount, needs, own_address, script, skip};
use afs_lab::cpu::cpu;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A program in a folder; what it says and how it ends are looked at by who calls this.
fn program(folder: &Path, program: &str, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    let Output { status, stdout, stderr } =
        command.args(args).current_dir(folder).env("LC_ALL", "C").output().unwrap();
    (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn a_full_quota_is_told_by_close_and_fsync_and_what_was_stored_before_stays() {
    const NAME: &str = "a_full_quota_is_told_by_close_and_fsync_and_what_was_stored_before_stays";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
    let folder = Folder::new("quota");
    let process = mounted::start_up(&folder, own_address());
    let scratch = folder.join("mnt/afar.local/scratch");
    let set_quota = |kib: &str| {
        let mut command = mounted::afar(["fs", "setquota"]);
        command.arg(&scratch).args(["-max", kib]);
        let output = mounted::run(command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    set_quota("2048");
    let kept = vec![1; 1 << 20];
    fs::write(scratch.join("kept"), &kept).unwrap();
    let (is_ok, said) =
        program(&scratch, "dd", &["if=/dev/zero", "of=synced", "bs=64k", "count=64", "conv=fsync"]);
    assert!(!is_ok && said.contains("Disk quota exceeded"), "dd conv=fsync: {said}");
    let close = "
import errno, os
for step in ('fsync', 'close'):
    file = os.open('large', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    written = 0
    while written < 4 << 20:
        written += os.write(file, bytes(1 << 16))
    try:
        if step == 'fsync':
            os.fsync(file)
        else:
            os.close(file)
        print(step, 'succeeds')
    except OSError as error:
        print(step, errno.errorcode[error.errno])
    if step == 'fsync':
        try:
            os.close(file)
        except OSError:
            pass
";
    let (is_ok, said) = program(&scratch, "python3", &["-c", close]);
    assert!(is_ok && said == "fsync EDQUOT\nclose EDQUOT\n", "{said}");
    assert!(fs::read(scratch.join("kept")).unwrap() == kept);
    // With room there is nothing in the way any more, neither of these files nor of others.
    set_quota("20480");
    let text = vec![2; 4 << 20];
    for name in ["large", "synced", "other"] {
        fs::write(scratch.join(name), &text).unwrap();
        assert!(fs::read(scratch.join(name)).unwrap() == text, "{name}");
    }
    assert!(process.stop().success());
}

/// What a folder takes on the disk.
fn taken_kib(folder: &Path) -> u64 {
    let output = Command::new("du").arg("-sk").arg(folder).output().unwrap();
    // Files go while it counts them, of which it complains.
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_cache_takes_no_more_than_its_limit_whatever_is_read_and_written() {
    const NAME: &str = "a_cache_takes_no_more_than_its_limit_whatever_is_read_and_written";
    // Room is made once a second, so for a moment there may be more by what has come meanwhile.
    const LIMIT_KIB: u64 = 32 << 10;
    /// The index and its log, which do not count: the latter is two segments of 8 MiB from the beginning.
    const INDEX_KIB: u64 = 24 << 10;
    const FILES: u8 = 12;
    if !can_mount(NAME) {
        return;
    }
    cell::at_once("small-cache", |cell| {
        let (one, here) = cell.mount("one");
        let (two, there) = cell.mount_with("two", "state/etc", &["--cache-size", "32M"]);
        let length = |number: u8| if number == 5 { 48 << 20 } else { 6 << 20 };
        for number in 0..FILES {
            fs::write(here.join(format!("f{number}")), vec![number; length(number)]).unwrap();
        }
        let cache = cell.cache("two");
        let settles = |what: &str| {
            let until = Instant::now() + mounted::TIMEOUT;
            loop {
                let taken = taken_kib(&cache.join("data"));
                if taken <= LIMIT_KIB && taken_kib(&cache) <= LIMIT_KIB + INDEX_KIB {
                    return taken;
                }
                assert!(
                    Instant::now() < until,
                    "{what}: the data take {taken} KiB of {LIMIT_KIB}, all {}",
                    taken_kib(&cache)
                );
                std::thread::sleep(Duration::from_millis(200));
            }
        };
        let mut most = 0;
        for turn in 0..2 {
            for number in 0..FILES {
                let name = format!("f{number}");
                let seen = fs::read(there.join(&name)).unwrap();
                assert!(seen == vec![number; length(number)], "turn {turn}, {name}");
                most = most.max(taken_kib(&cache.join("data")));
                if number % 4 == 3 {
                    settles(&name);
                }
            }
        }
        for number in 0..FILES {
            fs::write(there.join(format!("w{number}")), vec![number; 6 << 20]).unwrap();
            most = most.max(taken_kib(&cache.join("data")));
        }
        let at_last = settles("after writing");
        for number in 0..FILES {
            let seen = fs::read(here.join(format!("w{number}"))).unwrap();
            assert!(seen == vec![number; 6 << 20], "w{number}");
        }
        println!("a cache of {LIMIT_KIB} KiB had {most} KiB of data for a moment, {at_last} KiB at last");
        assert!(at_last > LIMIT_KIB / 3, "there is little in the cache: {at_last} KiB");
        assert!(one.stop().success() && two.stop().success());
    });
}

#[test]
fn a_mount_without_a_cache_on_the_disk_does_as_one_with_it() {
    const NAME: &str = "a_mount_without_a_cache_on_the_disk_does_as_one_with_it";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
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
                let (with, none) = (folder.join(dir), local.join("of-none"));
                let (is_same, said) = program(
                    &local,
                    "diff",
                    &["-r", &with.display().to_string(), &none.display().to_string()],
                );
                assert!(is_same, "{dir} in {}: {said}", folder.display());
            }
        }
        // What is changed elsewhere is seen.
        for round in 0..40u64 {
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
    const NAME: &str = "a_file_larger_than_the_caches_disk_is_written_and_the_client_starts_again";
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("small-disk");
    let Some(_disk) = mounted::SmallDisk::new(cell.cache("small"), 64) else {
        return skip(NAME, "a tmpfs cannot be mounted here");
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
