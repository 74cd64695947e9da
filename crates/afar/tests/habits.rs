//! What programs are used to from local file systems, and lean on without looking: signals while they wait, and locks of the real kernel's. More
//! habits are in `crates/afs-fuse/tests`.

use crate::mounted::{self, Cell, can_mount, cell, needs};
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_wait_for_a_lock_ends_with_the_programs_alarm() {
    require!(can_mount() && needs(&["flock", "python3"]));
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
    require!(can_mount() && needs(&["flock", "timeout"]));
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
fn a_directory_moves_to_another_folder_without_waiting_for_the_kernel() {
    require!(can_mount());
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

/// As procmail and `lockfile` do in a maildir.
#[test]
fn removing_a_file_that_is_locked_writes_no_warning() {
    require!(can_mount());
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
    require!(can_mount());
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
