//! Mounts whose servers are stopped or silent, with real programs: what is read is right, and a signal ends who waits. That reads and writes
//! go on when servers are back is in `crates/afs-client/tests/outages.rs`.

use crate::mounted::{self, Cell, can_mount, needs, text_of, wait_for};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a signal may take to end a program that waits for a silent server, which is given up after 12 seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Has a program wait in the mount, and ends it by Ctrl-C.
fn interrupt(mut child: Child, what: &str) {
    mounted::has_begun(&child);
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "{what} does not wait");
    let begin = Instant::now();
    mounted::signal(child.id(), "INT");
    assert!(wait_for(&mut child, ENDS_WITHIN).is_some(), "{what} does not end");
    println!("{what} ended in {:?}", begin.elapsed());
}

#[test]
fn a_signal_ends_a_read_and_a_close_that_wait_and_nothing_is_lost() {
    require!(can_mount());
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
    until!(
        fs::metadata(there.join("written")).map_or(0, |metadata| metadata.len()) >= 5,
        "nothing is written"
    );
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
    until!(fs::read(here.join("written")).unwrap_or_default() == b"text\n", "what was written is not stored");
    assert!(fs::read(there.join("large")).unwrap() == text);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// While the server stood still its time to wait for a client passed, with the answer before its door: it took the client for one that does
/// not answer, and told it of nothing before it acknowledged others' changes.
#[test]
fn a_server_that_stood_still_waits_for_its_clients_before_it_acknowledges_changes() {
    require!(can_mount());
    const GIVES_UP: u32 = 5;
    let cell = Cell::waiting("stood-still", Some(GIVES_UP));
    let ((one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    for name in ["first", "second"] {
        fs::write(there.join(name), "old").unwrap();
        assert_eq!(fs::read_to_string(here.join(name)).unwrap(), "old");
    }
    // Longer than it waits for a break, and longer than it takes a silent peer for dead.
    let stand_still = |seconds: u64| {
        let new = format!("new after {seconds} s");
        let begin = Instant::now();
        one.signal("STOP");
        let waited = std::thread::scope(|scope| {
            scope.spawn(|| fs::write(there.join("first"), &new).unwrap());
            // The server waits for the first mount.
            std::thread::sleep(Duration::from_millis(500));
            cell.servers.signal("STOP");
            let waited = begin.elapsed();
            one.signal("CONT");
            std::thread::sleep(Duration::from_secs(seconds));
            cell.servers.signal("CONT");
            waited
        });
        fs::write(there.join("second"), &new).unwrap();
        let seen = ["second", "first"].map(|name| fs::read_to_string(here.join(name)).unwrap());
        // On a busy machine the server may have given up before it was stopped: then there is nothing to be seen.
        let has_given_up = waited >= Duration::from_secs(GIVES_UP.into());
        assert!(has_given_up || seen.iter().all(|seen| *seen == new), "{seen:?}, not {new}");
        // Who is known not to answer is not waited for: the next round begins when this one was heard of.
        until!(
            ["first", "second"].iter().all(|name| fs::read_to_string(here.join(name)).unwrap() == new),
            "it is never told of {new}"
        );
    };
    for seconds in [7, 15] {
        stand_still(seconds);
    }
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// Something of Python that says what it does before it does it.
fn python(text: &str, file: &Path, stdin: Stdio) -> Child {
    let mut command = mounted::interruptible("python3");
    command.args(["-c", &format!("import fcntl, os, signal, sys\npath = sys.argv[1]\n{text}")]).arg(file);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn ctrl_c_ends_fsync_readdir_stat_and_rename_that_wait_for_a_server() {
    require!(can_mount() && needs(&["python3"]));
    let cell = Cell::new("signals");
    let ((one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    for dir in ["listed", "emptied"] {
        fs::create_dir(here.join(dir)).unwrap();
        fs::write(here.join(dir).join("file"), "text").unwrap();
    }
    for name in ["named", "synced"] {
        fs::write(here.join(name), "text").unwrap();
    }
    // All is known in the other mount but what is asked for.
    fs::read_dir(&there).unwrap().for_each(|entry| drop(entry.unwrap()));
    fs::metadata(there.join("listed")).unwrap();
    for name in ["named", "synced"] {
        assert_eq!(fs::read(there.join(name)).unwrap(), b"text");
    }
    let syncing = python(
        "file = os.open(path, os.O_WRONLY)
os.write(file, b'more')
os.kill(os.getpid(), signal.SIGSTOP)
os.fsync(file)",
        &there.join("synced"),
        Stdio::null(),
    );
    let stopped = format!("/proc/{}/stat", syncing.id());
    until!(fs::read_to_string(&stopped).unwrap().contains(") T "), "nothing is written");
    cell.servers.signal("STOP");
    mounted::signal(syncing.id(), "CONT");
    interrupt(syncing, "fsync");
    let run = |program: &str, args: &[&str]| {
        let mut command = mounted::interruptible(program);
        command.args(args).current_dir(&there).stdin(Stdio::null()).stdout(Stdio::null());
        interrupt(command.stderr(Stdio::null()).spawn().unwrap(), &format!("{program} {args:?}"));
    };
    run("ls", &["-f", "listed"]);
    run("stat", &["listed/file"]);
    run("mv", &["named", "renamed"]);
    cell.servers.signal("CONT");
    // All goes on.
    assert_eq!(fs::read_dir(there.join("listed")).unwrap().count(), 1);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// A process that begins to execute another program closes the files that are not for that one, and waits for the mount to take what was written. Meanwhile
/// the kernel lets nobody read most of what `/proc` tells of the process: the mount waited for that, with all its threads, for ever.
#[test]
fn programs_that_begin_while_files_are_open_do_not_stop_the_mount() {
    require!(can_mount() && needs(&["python3"]));
    let cell = Cell::new("beginning");
    let (mount, here) = cell.mount("one");
    // More than the mount has threads.
    let mut starting = python(
        "file = os.open(path, os.O_WRONLY | os.O_CREAT)
os.write(file, b'text')
print('written', flush=True)
sys.stdin.readline()
begun = [os.fork() or os.execvp('true', ['true']) for _ in range(2 * os.cpu_count() + 4)]
sys.exit(any(os.waitpid(child, 0)[1] for child in begun))",
        &here.join("written"),
        Stdio::piped(),
    );
    let mut said = [0; 8];
    starting.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    cell.servers.signal("STOP");
    drop(starting.stdin.take());
    // All of them close the file, and the mount has looked at them.
    std::thread::sleep(Duration::from_secs(1));
    cell.servers.signal("CONT");
    assert!(mounted::wait(&mut starting).success());
    assert_eq!(fs::read(here.join("written")).unwrap(), b"text");
    assert!(mount.stop().success() && cell.servers.stop().success());
}

/// The kernel has the mount's process wait for what it has locked for a program, and a server that is silent has the answer.
#[test]
fn a_mount_that_is_killed_while_it_tells_the_kernel_of_a_change_is_gone_and_its_programs_too() {
    require!(can_mount());
    // The page of a file that is read, and the directory into which a file is moved.
    for (program, flushed) in
        [("tail -c 4096 \"$1/large\"", "large"), ("mv \"$1/small\" \"$1/into/small\"", "into")]
    {
        let cell = Cell::new("killed-in-notice");
        let ((one, here), (mut two, there)) = (cell.mount("one"), cell.mount("two"));
        fs::write(here.join("large"), text_of(1, 64 << 20)).unwrap();
        fs::write(here.join("small"), "text").unwrap();
        fs::create_dir(here.join("into")).unwrap();
        fs::write(here.join("into/known"), "text").unwrap();
        let mut begin = [0; 4096];
        File::open(there.join("large")).unwrap().read_exact_at(&mut begin, 0).unwrap();
        for name in ["small", "into/known"] {
            fs::metadata(there.join(name)).unwrap();
        }
        cell.servers.signal("STOP");
        let mut command = Command::new("sh");
        command.args(["-c", program, "sh"]).arg(&there).stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = command.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let mut flush = mounted::afar(["fs", "flush"]);
        flush.arg(there.join(flushed)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut flush = flush.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        assert!(program.try_wait().unwrap().is_none(), "it waits for the server");
        two.signal("KILL");
        let is_gone = two.wait(Duration::from_secs(20)).is_some();
        if !is_gone {
            abort_connection(&there);
        }
        assert!(is_gone, "the process cannot be killed: {flushed}");
        assert!(!mounted::wait(&mut program).success(), "an error, not half a file");
        mounted::wait(&mut flush);
        cell.servers.signal("CONT");
        assert!(one.stop().success() && cell.servers.stop().success());
    }
}

/// Has the kernel give up a mount, which nothing else ends.
fn abort_connection(path: &Path) {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_its = |line: &&str| line.split(' ').nth(4).is_some_and(|mount| path.starts_with(mount));
    let line = text.lines().rfind(is_its).unwrap();
    let number = line.split(' ').nth(2).unwrap().rsplit(':').next().unwrap();
    let script = "mount -t fusectl none \"$1\"; echo 1 > \"$1/$2/abort\"";
    let place = std::env::temp_dir().join(format!("afar-fusectl-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&place).arg(number);
    drop(command.status());
    drop(fs::remove_dir(&place));
}

/// As after a laptop was closed: the servers could not tell it what changed, and it asks before it answers.
#[test]
fn a_mount_that_was_stopped_reads_what_was_written_meanwhile() {
    require!(can_mount());
    let cell = Cell::waiting("woken", None);
    let ((_one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    let read = || fs::read_to_string(there.join("file")).unwrap();
    fs::write(here.join("file"), "before").unwrap();
    assert_eq!(read(), "before");
    fs::write(here.join("named"), "before").unwrap();
    assert_eq!(fs::read_to_string(there.join("named")).unwrap(), "before");
    two.signal("STOP");
    fs::write(here.join("file"), "new").unwrap();
    fs::rename(here.join("file"), here.join("named")).unwrap();
    fs::write(here.join("file"), "new").unwrap();
    // Longer than the servers try to reach it.
    std::thread::sleep(Duration::from_secs(6));
    two.signal("CONT");
    assert_eq!(read(), "new");
    // They give up, and what they said waits to be read.
    two.signal("STOP");
    fs::write(here.join("file"), "newer").unwrap();
    two.signal("CONT");
    until!(read() == "newer", "what was written while it was stopped is not read");
    // The kernel finds by a name what it found before until it has been told to forget it.
    until!(fs::read_to_string(there.join("named")).unwrap() == "new", "the name stays");
}

/// The kernel lets a program that reads through the page cache wait until there are the data, or it is killed. Signals that it handles
/// are told of afterwards (docs/semantics.md).
#[test]
fn a_program_that_handles_ctrl_c_in_a_read_gets_its_data_and_one_that_is_killed_ends() {
    require!(can_mount() && needs(&["python3"]));
    let cell = Cell::new("handled");
    let ((one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    fs::write(here.join("large"), text_of(1, 64 << 20)).unwrap();
    let mut begin = [0; 4096];
    File::open(there.join("large")).unwrap().read_exact_at(&mut begin, 0).unwrap();
    cell.servers.signal("STOP");
    let reading = "
signal.signal(signal.SIGINT, lambda *_: print('handled', flush=True))
print('ready', flush=True)
file = os.open(path, os.O_RDONLY)
data = os.pread(file, 4096, (64 << 20) - 4096)
print(data == (1).to_bytes(8, 'little') * 512, flush=True)";
    let mut children = [0, 1].map(|_| python(reading, &there.join("large"), Stdio::null()));
    for child in &mut children {
        child.stdout.as_mut().unwrap().read_exact(&mut [0; "ready\n".len()]).unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    for child in &mut children {
        mounted::signal(child.id(), "INT");
    }
    let let_go = wait_for(&mut children[0], Duration::from_secs(2)).is_some();
    println!("a program that handles Ctrl-C is let go before there are data: {let_go}");
    let [mut reader, mut killed] = children;
    killed.kill().unwrap();
    assert!(wait_for(&mut killed, ENDS_WITHIN).is_some(), "SIGKILL ends it");
    cell.servers.signal("CONT");
    assert!(mounted::wait(&mut reader).success());
    let mut said = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let mut said: Vec<_> = said.lines().collect();
    said.sort_unstable();
    assert_eq!(said, ["True", "handled"]);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}
