//! Write-behind as somebody at a terminal sets it and sees it: `fs storebehind` and `fs whatwaits`, and `afar conflicts`, with mounts of a cell.

use crate::mounted::{Cell, Process, can_mount, is_root, our_program, skip, socket_of};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Somebody without any rights.
const NOBODY: u32 = 65534;

/// A mount, with the folder in it where anybody may write.
struct Mounted {
    process: Process,
    here: PathBuf,
    socket: PathBuf,
}

impl Mounted {
    fn new(cell: &Cell, name: &str, more: &[&str]) -> Self {
        let (process, here) = cell.mount_with(name, "state/etc", more);
        let socket = socket_of(&cell.folder.join(name));
        Self { process, here, socket }
    }

    /// A command to this client, whatever others the machine has.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = our_program();
        command.args(words).env("AFAR_SOCKET", &self.socket);
        command
    }

    /// What a command prints that succeeds.
    fn said(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", output.stderr.escape_ascii());
        String::from_utf8(output.stdout).unwrap()
    }

    /// What one complains of that fails.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}: {}", output.stdout.escape_ascii());
        String::from_utf8(output.stderr).unwrap()
    }

    fn waiting(&self) -> serde_json::Value {
        serde_json::from_str(&self.said(&["fs", "whatwaits", "-json"])).unwrap()
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn write_behind_is_set_for_a_directory_and_stays_set_when_the_client_starts_anew() {
    require!(can_mount());
    if !is_root() {
        return skip("another user is to be refused");
    }
    let cell = Cell::new("storebehind");
    let one = Mounted::new(&cell, "one", &[]);
    let dir = one.here.join("work");
    let (work, inside) = (shown(&dir), shown(&dir.join("inside")));
    fs::create_dir_all(&inside).unwrap();
    let told = one.said(&["fs", "storebehind", "-directory", &work]);
    let off =
        "write-behind is off (set for the directory: inherit, for its volume: inherit, for the mount: off)\n";
    assert_eq!(told, format!("{work}: {off}"));
    let told = one.said(&["fs", "storebehind", "-directory", &work, "-set", "second"]);
    assert!(
        told.contains("O_EXCL, mkdir, link and rename there exclude programs of this machine only")
            && told.contains("a loss of power may lose"),
        "{told}"
    );
    let told = one.said(&["fs", "storebehind", "-directory", &inside, "-json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told[0]["counts"], &told[0]["directory"]), (&"second".into(), &"inherit".into()), "{told}");
    // What OpenAFS's options say is as it was.
    assert_eq!(one.said(&["fs", "storebehind", "-verbose"]), "Default store asynchrony is 0 kbytes.\n");
    let mut other = one.command(&["fs", "storebehind", "-directory", &work, "-set", "off"]);
    let other = other.uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(
        !other.status.success() && other.stderr.starts_with(b"fs: to set write-behind for "),
        "{other:?}"
    );
    let file = dir.join("file");
    fs::write(&file, b"text").unwrap();
    let told = one.refused(&["fs", "storebehind", "-directory", &shown(&file), "-set", "off"]);
    assert!(told.ends_with("is not a directory\n"), "{told}");
    assert!(one.refused(&["fs", "storebehind", "-set", "off"]).contains("-set needs"));
    assert!(one.process.stop().success());
    let one = Mounted::new(&cell, "one", &[]);
    let told = one.said(&["fs", "storebehind", "-directory", &inside]);
    assert!(told.starts_with(&format!("{inside}: write-behind is second ")), "{told}");
    let told = one.said(&["fs", "storebehind", "-directory", &work, "-set", "inherit"]);
    assert!(told.contains("write-behind is off in"), "{told}");
    assert!(one.process.stop().success() && cell.servers.stop().success());
}

#[test]
fn what_is_paused_waits_until_it_is_resumed_or_somebody_waits_for_it() {
    require!(can_mount());
    let cell = Cell::new("pause");
    let one = Mounted::new(&cell, "one", &["--write-behind", "always"]);
    let two = Mounted::new(&cell, "two", &[]);
    fs::read_dir(&one.here).unwrap().for_each(drop);
    one.said(&["fs", "storebehind", "-pause"]);
    fs::write(one.here.join("file"), b"text").unwrap();
    // A program that asks for safety gets it from this machine's disk.
    fs::File::open(one.here.join("file")).unwrap().sync_all().unwrap();
    let waiting = one.waiting();
    assert!(
        waiting["paused"] == true && waiting["files"] == 1 && waiting["changes"].as_u64() > Some(0),
        "{waiting}"
    );
    assert!(!two.here.join("file").exists());
    assert!(one.said(&["fs", "whatwaits"]).contains("Nothing is sent before 'fs storebehind -resume'"));
    let line =
        one.command(&["top", "--once", "--interval", "1", "127.0.0.1:1", "127.0.0.1:2"]).output().unwrap();
    assert!(String::from_utf8_lossy(&line.stdout).contains("wait for servers"), "{line:?}");
    one.said(&["fs", "flush", "-wait", &shown(&one.here)]);
    assert_eq!(fs::read(two.here.join("file")).unwrap(), b"text");
    fs::write(one.here.join("second"), b"more").unwrap();
    assert_eq!(one.waiting()["files"], 1, "it is paused still");
    one.said(&["fs", "storebehind", "-resume"]);
    until!(one.waiting()["files"] == 0 && one.waiting()["changes"] == 0, "{}", one.waiting());
    assert_eq!(fs::read(two.here.join("second")).unwrap(), b"more");
    assert!(one.process.stop().success() && two.process.stop().success() && cell.servers.stop().success());
}

#[test]
fn what_others_have_changed_meanwhile_is_listed_shown_restored_and_dropped() {
    require!(can_mount());
    let cell = Cell::new("conflicts");
    let one = Mounted::new(&cell, "one", &["--write-behind", "always"]);
    let two = Mounted::new(&cell, "two", &[]);
    assert_eq!(one.said(&["conflicts", "list"]), "Nothing was put aside.\n");
    fs::write(two.here.join("file"), b"first").unwrap();
    assert_eq!(fs::read(one.here.join("file")).unwrap(), b"first");
    one.said(&["fs", "storebehind", "-pause"]);
    fs::write(one.here.join("file"), b"of one").unwrap();
    fs::write(two.here.join("file"), b"of two").unwrap();
    one.said(&["fs", "storebehind", "-resume"]);
    until!(one.said(&["conflicts", "list"]) != "Nothing was put aside.\n", "{}", cell.log("one"));
    let listed = one.said(&["conflicts", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let [conflict] = &listed["conflicts"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!((&conflict["length"], &conflict["written"]), (&6.into(), &6.into()), "{conflict}");
    let number = conflict["number"].to_string();
    assert!(one.said(&["conflicts", "list"]).contains("the file was changed by others meanwhile"));
    let told = one.said(&["conflicts", "show", &number]);
    assert!(
        told.starts_with(&format!("Number:    {number}\n")) && told.contains("\nLength:    6 bytes\n"),
        "{told}"
    );
    if is_root() {
        let mut other = one.command(&["conflicts", "list"]);
        let other = other.uid(NOBODY).gid(NOBODY).output().unwrap();
        assert_eq!(other.stdout, b"Nothing was put aside.\n", "another user's: {other:?}");
    }
    let copy = cell.folder.join("copy");
    let told = one.said(&["conflicts", "restore", &number, &shown(&copy)]);
    assert_eq!(told, format!("6 bytes were copied to {}.\n", copy.display()));
    assert_eq!(fs::read(&copy).unwrap(), b"of one");
    let told = one.refused(&["conflicts", "restore", &number, &shown(&copy)]);
    assert!(told.contains("File exists"), "it is written over: {told}");
    let told = one.refused(&["conflicts", "show", "9999"]);
    assert!(told.contains("none of your files has the number 9999"), "{told}");
    assert_eq!(one.said(&["conflicts", "drop", &number]), format!("Number {number} was removed.\n"));
    assert_eq!(one.said(&["conflicts", "list"]), "Nothing was put aside.\n");
    for mount in [&one, &two] {
        assert_eq!(fs::read(mount.here.join("file")).unwrap(), b"of two");
    }
    assert!(one.process.stop().success() && two.process.stop().success() && cell.servers.stop().success());
}

#[test]
fn a_mount_that_starts_without_its_servers_shows_what_it_showed_and_takes_changes() {
    require!(can_mount());
    let mut cell = Cell::new("train");
    let always = ["--write-behind", "always"];
    let one = Mounted::new(&cell, "one", &always);
    let dir = one.here.join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), b"text").unwrap();
    std::os::unix::fs::symlink("file", dir.join("link")).unwrap();
    one.said(&["fs", "flush", "-wait", &shown(&dir)]);
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&dir), ["file", "link"]);
    assert_eq!(fs::read(dir.join("link")).unwrap(), b"text");
    assert!(one.process.stop().success());
    cell.servers.kill();
    let mut one = Mounted::new(&cell, "one", &always);
    assert_eq!(fs::read(dir.join("link")).unwrap(), b"text");
    assert_eq!(names(&dir), ["file", "link"]);
    fs::write(dir.join("new"), b"made without the servers").unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    one.process.kill();
    let one = Mounted::new(&cell, "one", &always);
    assert_eq!(fs::read(dir.join("new")).unwrap(), b"made without the servers");
    assert_eq!(names(&dir), ["file", "new"]);
    cell.restart();
    let two = Mounted::new(&cell, "two", &[]);
    let there = two.here.join("dir");
    until!(names(&there) == ["file", "new"], "{:?}: {}", names(&there), cell.log("one"));
    until!(fs::read(there.join("new")).unwrap() == b"made without the servers", "{}", cell.log("one"));
    assert!(one.process.stop().success() && two.process.stop().success() && cell.servers.stop().success());
}
