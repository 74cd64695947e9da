//! A mount that is killed while the kernel writes a file of it by itself, and one after files were closed with write-behind. What becomes of
//! other files that were written and not stored is in `crates/afs-client/tests/deaths.rs`.

use crate::mounted::{self, Cell, Process, can_mount, is_root, needs};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that has done something with files and keeps them open until it is dropped.
///
/// It is a program of Python that is given these files. (Not of the shell, which closes a copy of the file after each `>&3`: what
/// was written is stored then.)
fn holder(text: &str, files: &[PathBuf]) -> Process {
    let text = format!("import mmap, os, sys\n{text}\nprint('done', flush=True)\nsys.stdin.read()");
    let mut command = Command::new("python3");
    command.args(["-c", &text]).args(files).stdin(Stdio::piped());
    Process::saying(&mut command, "done").unwrap()
}

/// Waits until a mount shows this.
fn shows(path: &Path, bytes: &[u8], what: &str) {
    let length = || fs::read(path).map(|seen| seen.len());
    let is_seen = || fs::read(path).is_ok_and(|seen| seen == bytes);
    until!(is_seen(), "{what}: {} bytes are not there, but {:?}", bytes.len(), length());
}

#[test]
fn what_was_written_to_a_mapping_that_the_kernel_serves_outlasts_the_death_of_the_mount() {
    require!(can_mount() && needs(&["python3"]));
    if !is_root() || !mounted::can_pass_through() {
        return mounted::skip("the kernel reads no files by itself here");
    }
    let cell = Cell::new("mapping");
    let ((mut one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    let old = vec![7; 3 << 20];
    fs::write(here.join("mapped"), &old).unwrap();
    assert!(fs::read(there.join("mapped")).unwrap() == old);
    let holder = holder(
        "path = sys.argv[1]
reader = open(path, 'rb')
assert len(reader.read()) == 3 << 20
writer = open(path, 'r+b')
m = mmap.mmap(writer.fileno(), 0)
m[1000:1006] = b'mapped'
m[2000000:2000003] = b'end'",
        &[here.join("mapped")],
    );
    one.kill();
    assert!(fs::read(there.join("mapped")).unwrap() == old);
    drop(one);
    let (one, here) = cell.mount("one");
    let mut new = old;
    new[1000..1006].copy_from_slice(b"mapped");
    new[2_000_000..2_000_003].copy_from_slice(b"end");
    shows(&there.join("mapped"), &new, "a mapping");
    assert!(fs::read(here.join("mapped")).unwrap() == new);
    drop(holder);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// `close` returns while the server answers nothing at all, as it is stopped, and what was closed is there after the client was killed.
#[test]
fn what_was_closed_with_write_behind_is_stored_after_the_client_was_killed_when_the_server_is_back() {
    require!(can_mount());
    let cell = Cell::new("behind");
    for mode in ["always", "second"] {
        let options = ["--write-behind", mode];
        let (mut one, here) = cell.mount_with("one", "state/etc", &options);
        let (two, there) = cell.mount("two");
        let names = ["small", "large"].map(|name| format!("{mode}-{name}"));
        // Names are the server's still.
        let files = names.each_ref().map(|name| fs::File::create_new(here.join(name)).unwrap());
        let large = vec![7; 3 << 20];
        cell.servers.signal("STOP");
        for (mut file, bytes) in files.into_iter().zip([&b"small"[..], &large]) {
            file.write_all(bytes).unwrap();
            drop(file);
        }
        assert_eq!(fs::read(here.join(&names[0])).unwrap(), b"small", "{mode}: where it was written");
        one.kill();
        drop(one);
        cell.servers.signal("CONT");
        let (one, _) = cell.mount_with("one", "state/etc", &options);
        shows(&there.join(&names[0]), b"small", mode);
        shows(&there.join(&names[1]), &large, mode);
        assert_eq!(fs::read_dir(cell.cache("one").join("conflicts")).map_or(0, Iterator::count), 0, "{mode}");
        assert!(one.stop().success());
        assert!(two.stop().success());
    }
}
