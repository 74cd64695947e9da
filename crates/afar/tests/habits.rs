//! What programs are used to from local file systems, and lean on without looking: in a mounted cell, each in the words of a short program.

use crate::mounted;
use crate::mounted::cell::{self, Cell};
use crate::mounted::{can_mount, needs, script};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_wait_for_a_lock_ends_with_the_programs_alarm() {
    const NAME: &str = "a_wait_for_a_lock_ends_with_the_programs_alarm";
    if !can_mount(NAME) || !needs(NAME, &["flock", "python3"]) {
        return;
    }
    let cell = Cell::new("alarm");
    let (_mount, place) = cell.mount("one");
    let held = File::create(place.join("l")).unwrap();
    held.lock().unwrap();
    let began = Instant::now();
    let status = Command::new("flock").args(["-w", "1"]).arg(place.join("l")).arg("true").status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // A handler that asks for it has the kernel wait on: the lock is had in the end.
    let waiting = "
import fcntl, signal, sys
def tick(*_): raise InterruptedError
if sys.argv[2] == 'ends': signal.signal(signal.SIGALRM, tick)
else:
    signal.signal(signal.SIGALRM, lambda *_: print('tick', flush=True))
    signal.siginterrupt(signal.SIGALRM, False)
file = open(sys.argv[1], 'r+')
try:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
    print('has it')
except InterruptedError:
    print('ended')
";
    let holder = "
import fcntl, sys
file = open(sys.argv[1], 'r+')
fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
print('held', flush=True)
sys.stdin.read()
";
    let python = |program: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", program]).arg(place.join("l")).stdout(Stdio::piped());
        command
    };
    let mut holder = python(holder).stdin(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert_eq!(line, "held\n");
    let ended = python(waiting).arg("ends").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "ended\n");
    let goes_on = python(waiting).arg("goes on").spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(holder.stdin.take());
    let output = goes_on.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.lines().any(|line| line == "has it"), "{said}");
    assert!(holder.wait().unwrap().success());
}

/// The server holds the lock for another mount: the client asks it again and again, in a call that no signal of the program reaches.
#[test]
fn a_wait_for_a_lock_of_another_mount_ends_with_the_programs_signal() {
    const NAME: &str = "a_wait_for_a_lock_of_another_mount_ends_with_the_programs_signal";
    if !can_mount(NAME) || !needs(NAME, &["flock", "timeout"]) {
        return;
    }
    let cell = Cell::new("alarms");
    let ((_one, here), (_two, there)) = (cell.mount("one"), cell.mount("two"));
    let held = File::create(here.join("l")).unwrap();
    held.lock().unwrap();
    for signal in ["ALRM", "INT", "TERM", "KILL"] {
        let began = Instant::now();
        // Whoever runs the tests in the background ignores Ctrl-C, and so do their children.
        let mut waiting = Command::new("env");
        let waiting = waiting.args(["--default-signal=INT", "flock"]).arg(there.join("l")).arg("true");
        let mut waiting = waiting.spawn().unwrap();
        mounted::has_begun(&waiting);
        std::thread::sleep(Duration::from_millis(500));
        assert!(waiting.try_wait().unwrap().is_none(), "it waits");
        mounted::signal(waiting.id(), signal);
        let ended = mounted::wait_for(&mut waiting, Duration::from_secs(30));
        assert!(ended.is_some(), "SIG{signal} does not end it within {:?}", began.elapsed());
    }
    drop(held);
    let had = Command::new("flock").args(["-w", "60"]).arg(there.join("l")).arg("true").status().unwrap();
    assert!(had.success(), "it is free again");
}

#[test]
fn numbers_of_files_are_those_of_listings_and_fit_into_a_floating_point_number() {
    const NAME: &str = "numbers_of_files_are_those_of_listings_and_fit_into_a_floating_point_number";
    if !can_mount(NAME) || !needs(NAME, &["ls"]) {
        return;
    }
    let cell = Cell::new("numbers");
    let (_mount, place) = cell.mount("one");
    for name in ["a", "b", "c"] {
        fs::write(place.join(name), name).unwrap();
    }
    fs::create_dir(place.join("d")).unwrap();
    for entry in fs::read_dir(&place).unwrap() {
        let entry = entry.unwrap();
        let stat = fs::symlink_metadata(entry.path()).unwrap().ino();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), stat, "{entry:?}");
        assert!(stat < 1 << 53, "{entry:?}");
    }
    // The root of the cell's volume has the vnode number that the scratch volume's has.
    let roots = [place.parent().unwrap(), &place].map(|path| fs::metadata(path).unwrap().ino());
    assert_ne!(roots[0] as u32, roots[1] as u32);
}

#[test]
fn a_directory_that_is_read_again_from_its_beginning_shows_what_was_made_since() {
    const NAME: &str = "a_directory_that_is_read_again_from_its_beginning_shows_what_was_made_since";
    if !can_mount(NAME) || !needs(NAME, &["perl"]) {
        return;
    }
    let cell = Cell::new("rewound");
    let (_mount, place) = cell.mount("one");
    let said = script(
        &place,
        r#"perl -e 'mkdir "r"; opendir D, "r"; open F, ">r/1"; close F; rewinddir D; print sort(grep !/^\./, readdir D), "\n";
            open F, ">r/2"; close F; rewinddir D; print sort(grep !/^\./, readdir D), "\n";
            unlink "r/1"; rewinddir D; print sort(grep !/^\./, readdir D), "\n"'"#,
    );
    assert_eq!(said, "1\n12\n2\n");
}

#[test]
fn the_folder_of_cells_has_room_for_who_looks() {
    const NAME: &str = "the_folder_of_cells_has_room_for_who_looks";
    if !can_mount(NAME) || !needs(NAME, &["df"]) {
        return;
    }
    let cell = Cell::new("df");
    let (_mount, place) = cell.mount("one");
    let root = place.parent().unwrap().parent().unwrap();
    let said = script(root, "df -P . | awk 'NR == 2 { print $2, $4 }'");
    assert_eq!(said, "2147483647 2147483647\n");
}

#[test]
fn an_open_directory_that_was_removed_or_replaced_has_no_links() {
    const NAME: &str = "an_open_directory_that_was_removed_or_replaced_has_no_links";
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("gone");
    let (_mount, place) = cell.mount("one");
    for name in ["removed", "replaced"] {
        let path = place.join(name);
        fs::create_dir(&path).unwrap();
        let open = File::open(&path).unwrap();
        let before = open.metadata().unwrap();
        if name == "removed" {
            fs::remove_dir(&path).unwrap();
        } else {
            fs::create_dir(place.join("new")).unwrap();
            fs::rename(place.join("new"), &path).unwrap();
            assert_ne!(fs::metadata(&path).unwrap().ino(), before.ino());
        }
        let after = open.metadata().unwrap();
        assert_eq!((after.nlink(), after.ino(), after.is_dir()), (0, before.ino(), true), "{name}");
    }
}

#[test]
fn a_directory_moves_to_another_folder_without_waiting_for_the_kernel() {
    const NAME: &str = "a_directory_moves_to_another_folder_without_waiting_for_the_kernel";
    if !can_mount(NAME) {
        return;
    }
    cell::answers_in_time("moved", |cell| {
        let (_mount, place) = cell.mount("one");
        for round in 0..3 {
            let (from, to) = (place.join(format!("g{round}/d")), place.join(format!("h{round}/d")));
            fs::create_dir_all(from.join("s")).unwrap();
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            // One that fails leaves what the kernel knows.
            assert_eq!(fs::remove_dir(&from).err().and_then(|error| error.raw_os_error()), Some(39));
            fs::rename(&from, &to).unwrap();
            assert!(to.join("s").is_dir() && !from.exists());
        }
    });
}

/// The kernel goes on using a name whose removal was refused, so it has to hear what others do to it.
#[test]
fn what_was_refused_to_be_removed_or_made_here_is_seen_to_be_changed_elsewhere() {
    const NAME: &str = "what_was_refused_to_be_removed_or_made_here_is_seen_to_be_changed_elsewhere";
    if !can_mount(NAME) {
        return;
    }
    cell::at_once("refused", |cell| {
        let (_one, here) = cell.mount("one");
        let (_two, there) = cell.mount("two");
        fs::create_dir_all(here.join("d/s")).unwrap();
        assert!(fs::remove_dir(here.join("d")).is_err());
        fs::remove_dir(there.join("d/s")).unwrap();
        fs::remove_dir(there.join("d")).unwrap();
        assert!(!here.join("d").exists());
        // A link to what is in another folder is refused after the kernel has learned that there is no such name.
        fs::create_dir(here.join("e")).unwrap();
        fs::write(here.join("e/file"), "").unwrap();
        assert!(!here.join("made").exists());
        assert_eq!(
            fs::hard_link(here.join("e/file"), here.join("made")).err().unwrap().raw_os_error(),
            Some(18)
        );
        fs::write(there.join("made"), "there").unwrap();
        assert_eq!(fs::read_to_string(here.join("made")).unwrap(), "there");
    });
}

#[test]
fn a_large_hole_is_punched_at_once_or_refused() {
    const NAME: &str = "a_large_hole_is_punched_at_once_or_refused";
    if !can_mount(NAME) || !needs(NAME, &["fallocate"]) {
        return;
    }
    let cell = Cell::new("hole");
    let (_mount, place) = cell.mount("one");
    let path = place.join("s");
    fs::write(&path, "some data at the start").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    let punch = |args: &[&str]| {
        let status =
            Command::new("fallocate").arg("-p").args(args).arg(&path).stderr(Stdio::null()).status().unwrap();
        status.success()
    };
    assert!(!punch(&["-o", "5", "-l", "900M"]), "in the middle");
    assert!(punch(&["-o", "5", "-l", "4"]));
    assert!(punch(&["-o", "12", "-l", "1G"]), "to the end");
    assert_eq!(file.metadata().unwrap().len(), 1 << 30);
    let mut start = [1; 30];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(&path).unwrap(), &mut start, 0).unwrap();
    assert_eq!(&start, b"some \0\0\0\0 at\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    drop(file);
    // The server does not go on with what it had there.
    let (_mount, there) = cell.mount("two");
    let mut elsewhere = [1; 30];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(there.join("s")).unwrap(), &mut elsewhere, 0)
        .unwrap();
    assert_eq!(elsewhere, start);
    let taken = script(&cell.folder.join("."), "du -sm cache-one | cut -f 1");
    assert!(taken.trim().parse::<u64>().unwrap() < 200, "{taken} MiB");
}

/// POSIX has it so: any close of a descriptor of the file ends the program's locks on it, also of those that only read.
#[test]
fn a_lock_for_reading_ends_when_the_program_closes_any_descriptor_of_the_file() {
    const NAME: &str = "a_lock_for_reading_ends_when_the_program_closes_any_descriptor_of_the_file";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
    let cell = Cell::new("closed");
    let (_mount, place) = cell.mount("one");
    fs::write(place.join("l"), "").unwrap();
    let program = "
import fcntl, os, subprocess, sys
path = sys.argv[1]
other = '''
import fcntl, os, sys
try: fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError: print('held')
else: print('free')
'''
def tell():
    subprocess.run([sys.executable, '-c', other, path])
a, b = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
fcntl.lockf(a, fcntl.LOCK_SH)
tell()
os.close(b)
tell()
fcntl.lockf(a, fcntl.LOCK_SH)
tell()
os.close(os.dup(a))
tell()
";
    let output = Command::new("python3").args(["-c", program]).arg(place.join("l")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "held\nfree\nheld\nfree\n", "{output:?}");
}

/// As procmail and `lockfile` do in a maildir.
#[test]
fn removing_a_file_that_is_locked_writes_no_warning() {
    const NAME: &str = "removing_a_file_that_is_locked_writes_no_warning";
    if !can_mount(NAME) {
        return;
    }
    cell::at_once("locked", |cell| {
        let (mount, place) = cell.mount("one");
        let file = File::create(place.join("l")).unwrap();
        file.lock().unwrap();
        fs::remove_file(place.join("l")).unwrap();
        drop(file);
        assert!(!place.join("l").exists());
        // The lock is given back after the close. A mount that is so late that it ends before that says so.
        std::thread::sleep(Duration::from_millis(500));
        assert!(mount.stop().success());
        let log = cell.log("one");
        let is_warning = |line: &&str| line.contains("WARN") && !line.contains("the client is ending");
        assert_eq!(log.lines().find(is_warning), None, "{log}");
    });
}

/// Nothing to read is not the same as a file with nothing in it.
#[test]
fn afsio_write_whose_input_is_closed_fails_and_leaves_the_file() {
    const NAME: &str = "afsio_write_whose_input_is_closed_fails_and_leaves_the_file";
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("input");
    let (_mount, place) = cell.mount("one");
    fs::write(place.join("kept"), "kept").unwrap();
    let command = "exec \"$0\" afsio write -file /afs/afar.local/scratch/kept -config \"$1\" -force <&-";
    let mut shell = Command::new("sh");
    shell.args(["-c", command, env!("CARGO_BIN_EXE_afar")]).arg(cell.folder.join("state/etc"));
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot read the standard input"), "{output:?}");
    assert_eq!(fs::read_to_string(place.join("kept")).unwrap(), "kept");
}
