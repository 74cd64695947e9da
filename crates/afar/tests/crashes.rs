//! Mounts that are killed while programs have files open in them that they have written: what was written is stored when the mount
//! is started again, or kept aside and told of if somebody else has changed the file meanwhile.

use crate::mounted;
use crate::mounted::cell::Cell;
use crate::mounted::{Process, can_mount, is_root, needs};
use afs_lab::until;
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

/// What was put aside in the folder of a cache: the data, and the texts beside them.
fn put_aside(cache: &Path) -> (Vec<Vec<u8>>, Vec<String>) {
    let (mut data, mut texts) = (Vec::new(), Vec::new());
    let Ok(entries) = fs::read_dir(cache.join("conflicts")) else { return (data, texts) };
    let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    for path in paths {
        let bytes = fs::read(&path).unwrap();
        match bytes.starts_with(b"What user ") {
            true => texts.push(String::from_utf8_lossy(&bytes).into_owned()),
            false => data.push(bytes),
        }
    }
    (data, texts)
}

#[test]
fn what_was_written_to_open_files_of_a_killed_mount_is_stored_when_it_starts_again() {
    const NAME: &str = "what_was_written_to_open_files_of_a_killed_mount_is_stored_when_it_starts_again";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
    let cell = Cell::new("dirty");
    let ((mut one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    fs::write(here.join("longer"), "before, ").unwrap();
    let old = vec![7; 3 << 20];
    fs::write(here.join("large"), &old).unwrap();
    assert!(fs::read(there.join("large")).unwrap() == old);
    let files = ["longer", "new", "large", "cut"].map(|name| here.join(name));
    fs::write(&files[3], "to be cut").unwrap();
    let holder = holder(
        "flags = [os.O_APPEND, os.O_CREAT, 0, os.O_TRUNC]
files = [os.open(path, os.O_WRONLY | flag) for path, flag in zip(sys.argv[1:], flags)]
for file, text in zip(files, [b'after', b'x', bytes(100000), b'cut']):
    assert os.write(file, text) == len(text)",
        &files,
    );
    one.kill();
    // Nothing of it has gone anywhere.
    assert_eq!(fs::read(there.join("longer")).unwrap(), b"before, ");
    assert!(fs::read(there.join("large")).unwrap() == old);
    drop(one);
    let (one, here) = cell.mount("one");
    let mut new = old;
    new[..100_000].fill(0);
    let all = [("longer", &b"before, after"[..]), ("new", b"x"), ("large", &new), ("cut", b"cut")];
    for (name, bytes) in all {
        shows(&there.join(name), bytes, name);
        assert!(fs::read(here.join(name)).unwrap() == bytes, "{name} where it was written");
    }
    assert_eq!(put_aside(&cell.cache("one")), (Vec::new(), Vec::new()));
    drop(holder);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

#[test]
fn what_was_written_to_a_mapping_that_the_kernel_serves_outlasts_the_death_of_the_mount() {
    const NAME: &str = "what_was_written_to_a_mapping_that_the_kernel_serves_outlasts_the_death_of_the_mount";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
    if !is_root() || !mounted::can_pass_through() {
        return mounted::skip(NAME, "the kernel reads no files by itself here");
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

#[test]
fn what_a_killed_mount_had_not_stored_is_kept_aside_if_somebody_else_has_changed_the_file() {
    const NAME: &str =
        "what_a_killed_mount_had_not_stored_is_kept_aside_if_somebody_else_has_changed_the_file";
    if !can_mount(NAME) || !needs(NAME, &["python3"]) {
        return;
    }
    let cell = Cell::new("conflict");
    let ((mut one, here), (two, there)) = (cell.mount("one"), cell.mount("two"));
    fs::write(here.join("both"), "before, ").unwrap();
    fs::write(here.join("removed"), "before").unwrap();
    let files = [here.join("both"), here.join("removed")];
    let holder = holder(
        "both = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(both, b'mine')
removed = os.open(sys.argv[2], os.O_RDWR)
os.write(removed, b'mine, too')",
        &files,
    );
    one.kill();
    fs::write(there.join("both"), "of somebody else").unwrap();
    fs::remove_file(there.join("removed")).unwrap();
    drop(one);
    let (one, here) = cell.mount("one");
    cell.logs("one", &["ERROR", "put aside"]);
    let kept = || put_aside(&cell.cache("one"));
    // The text beside the data comes last.
    until!(kept().1.len() >= 2, "only this is kept: {:?}\n{}", kept(), cell.log("one"));
    let (mut data, texts) = kept();
    data.sort();
    assert_eq!(data, [b"before, mine".to_vec(), b"mine, too".to_vec()], "{texts:?}");
    assert_eq!(texts.len(), 2, "each has a text beside it: {texts:?}");
    // Nobody sees anything else than what the other has stored.
    for place in [&here, &there] {
        assert_eq!(fs::read(place.join("both")).unwrap(), b"of somebody else");
        assert!(fs::metadata(place.join("removed")).is_err(), "what was removed does not come back");
    }
    // It can be written again, as if nothing had been.
    fs::write(here.join("both"), "again").unwrap();
    assert_eq!(fs::read(there.join("both")).unwrap(), b"again");
    drop(holder);
    assert!(one.stop().success() && two.stop().success() && cell.servers.stop().success());
}

/// `close` returns while the server answers nothing at all, as it is stopped, and what was closed is there after the client was killed.
#[test]
fn what_was_closed_with_write_behind_is_stored_after_the_client_was_killed_when_the_server_is_back() {
    const NAME: &str =
        "what_was_closed_with_write_behind_is_stored_after_the_client_was_killed_when_the_server_is_back";
    if !can_mount(NAME) {
        return;
    }
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
        assert_eq!(put_aside(&cell.cache("one")), (Vec::new(), Vec::new()));
        assert!(one.stop().success());
        assert!(two.stop().success());
    }
}
