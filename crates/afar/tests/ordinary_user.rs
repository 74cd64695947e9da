//! Tests of `afar up` and `afar mount` for a user without any privilege, who mounts through Debian's `fusermount3`: everything works, only
//! this user can reach it, and it ends. Other tests look at what a crash leaves, and at the messages when it cannot start.

use crate::mounted::{self, Folder, Process, TIMEOUT, can_mount, is_root, needs, own_address, run};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The user nobody, whom every system has; `fusermount3` wants one that has a name.
const NOBODY: u32 = 65534;

/// A user with a home folder, and our program where the user can reach it.
struct Somebody {
    home: Folder,
    program: PathBuf,
}

impl Somebody {
    /// `None`, told as skipped, where there can be none.
    fn new() -> Option<Self> {
        if !can_mount() || !needs(&["setpriv", "fusermount3"]) {
            return None;
        }
        if !is_root() {
            return mounted::skip("it takes root to be another user");
        }
        // Debian's udev makes it so; where there is no udev, scripts/packages.sh does.
        if fs::metadata("/dev/fuse").is_ok_and(|device| device.permissions().mode() & 0o006 != 0o006) {
            return mounted::skip("/dev/fuse is not for everybody");
        }
        let home = Folder::new("ordinary");
        fs::set_permissions(home.join("."), fs::Permissions::from_mode(0o755)).unwrap();
        chown(home.join("."), Some(NOBODY), Some(NOBODY)).unwrap();
        let program = home.join("afar");
        mounted::copy_program(&program);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Some(Self { home, program })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// A program as the user, in the user's home folder.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
        command.arg(program).current_dir(self.at(".")).env("HOME", self.at(".").canonicalize().unwrap());
        for name in ["XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "NOTIFY_SOCKET", "SUDO_UID"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    fn afar(&self, words: &[&str]) -> Command {
        let mut command = self.command(&self.program);
        command.args(words);
        command
    }

    /// `afar up` without options, except for an address of this test's own, because tests run beside each other.
    fn up(&self, address: &str) -> Process {
        Process::start(self.afar(&["up", "--bind", address]), Some(self.at("afs")))
    }

    /// A shell as the user; it has to succeed.
    fn shell(&self, text: &str) -> String {
        let output = self.command("bash").args(["-euo", "pipefail", "-c", text]).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// What a command says that must fail: not one part of these may be missing.
fn refused(command: Command, parts: &[&str]) {
    let Output { status, stdout, stderr } = run(command);
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && stdout.is_empty(), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} in: {said}");
    }
}

fn is_mounted(path: &Path) -> bool {
    let path = path.parent().unwrap().canonicalize().unwrap().join(path.file_name().unwrap());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn a_cell_of_ones_own_in_the_home_folder() {
    let Some(user) = Somebody::new() else { return };
    let address = own_address().to_string();
    let process = user.up(&address);
    assert!(process.ready.contains("/afs scratch="), "{}", process.ready);
    // The user is an administrator of the cell, and owns their files.
    user.shell(
        "cd afs/afar.local
         mkdir scratch/dir; echo text > scratch/dir/file; cat scratch/dir/file
         cp /bin/ls scratch/ls; cmp /bin/ls scratch/ls; scratch/ls -l scratch > /dev/null
         [ \"$(stat -c %u scratch/dir/file)\" = 65534 ]
         mkdir user/nobody/private; echo own > user/nobody/private/file
         mv scratch/dir/file scratch/dir/other; rm -r scratch/dir
         ~/afar fs whichcell scratch | grep \"'afar.local'\" > /dev/null
         ~/afar fs listacl user/nobody | grep 'nobody rlidwka' > /dev/null
         ~/afar fs examine scratch > /dev/null
         ~/afar tokens | grep afar.local > /dev/null",
    );
    assert!(user.at(".local/state/afar/etc/ThisCell").exists(), "what belongs to it is in the home folder");
    // Others do not get in, root neither.
    let error = fs::read_dir(user.at("afs")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(process.stop().success());
    assert!(!is_mounted(&user.at("afs")), "it is unmounted");
    assert_eq!(user.shell("ls -A afs"), "");

    let process = user.up(&address);
    assert_eq!(
        user.shell("cat afs/afar.local/user/nobody/private/file"),
        "own\n",
        "it is there the next time"
    );
    // As many do it who know FUSE.
    user.shell("fusermount3 -u afs");
    let mut process = process;
    assert!(process.wait(TIMEOUT).is_some_and(|status| status.success()), "unmounting it ends it");
}

#[test]
fn what_a_kill_has_left_is_removed_and_nothing_is_lost() {
    let Some(user) = Somebody::new() else { return };
    let address = own_address().to_string();
    let mut process = user.up(&address);
    user.shell("echo kept > afs/afar.local/scratch/file");
    process.kill();
    assert!(is_mounted(&user.at("afs")), "a dead mount");
    let next = user.up(&address);
    assert_eq!(user.shell("cat afs/afar.local/scratch/file"), "kept\n");
    assert!(next.stop().success());
    assert!(!is_mounted(&user.at("afs")));
    drop(process);
}

#[test]
fn the_client_alone() {
    let Some(user) = Somebody::new() else { return };
    let address = own_address().to_string();
    let servers = Process::start(user.afar(&["up", "--no-mount", "--bind", &address]), None);
    let mount = |words: &[&str]| {
        user.afar(&[&["mount", "cells", "--config", ".local/state/afar/etc"], words].concat())
    };
    let client = Process::start(mount(&[]), Some(user.at("cells")));
    assert!(client.ready.starts_with("ready cell=afar.local mount="), "{}", client.ready);
    user.shell("echo text > cells/afar.local/scratch/file; cat cells/afar.local/scratch/file");
    assert!(user.at(".cache/afar").exists(), "the cache is in the home folder");
    assert_eq!(user.shell("ls cells/afar.local/user/nobody | wc -l"), "0\n");
    refused(mount(&[]), &["cells", "already", "choose another mount point"]);
    refused(
        user.afar(&["mount", "second", "--config", ".local/state/afar/etc"]),
        &["another process uses the cache", ".cache/afar"],
    );
    assert!(client.stop().success());
    // With the key of their own cell, the user is a user of the cell.
    let client = Process::start(mount(&["--localauth", "--as", "nobody"]), Some(user.at("cells")));
    user.shell(
        "echo own > cells/afar.local/user/nobody/file
         [ \"$(stat -c %u cells/afar.local/user/nobody/file)\" = 65534 ]
         ~/afar fs listacl cells/afar.local/user/nobody > /dev/null",
    );
    assert!(client.stop().success());
    refused(mount(&["--localauth", "--as", "stranger"]), &["no user stranger", "--as"]);
    refused(mount(&["--as", "nobody"]), &["--localauth"]);
    assert!(servers.stop().success());
}

#[test]
fn what_keeps_it_from_starting_is_said_with_what_to_do() {
    let Some(user) = Somebody::new() else { return };
    let address = own_address();
    let bind = address.to_string();
    let up = |words: &[&str]| user.afar(&[&["up", "--bind", &bind], words].concat());
    // A port that is taken.
    let taken = UdpSocket::bind((address, 7000)).unwrap();
    refused(up(&[]), &["role 'file'", "--bind 127.0.0.2"]);
    drop(taken);
    assert!(!is_mounted(&user.at("afs")));
    // Folders of others.
    refused(up(&["--state", "/boot/afar-state"]), &["/boot/afar-state", "Permission denied", "--state"]);
    refused(up(&["--mount", "/boot/afs"]), &["/boot/afs", "Permission denied"]);
    fs::create_dir(user.at("roots")).unwrap();
    refused(up(&["--mount", "roots"]), &["fusermount3", "roots", "write access"]);
    // No fusermount3, no FUSE, and a /dev/fuse that the user may not open.
    let mut without_helper = up(&[]);
    without_helper.env("PATH", "/nonexistent");
    let setpriv =
        ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    refused(with_program(&without_helper, setpriv), &["fusermount3", "package fuse3"]);
    let hidden = |change: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-euc"]);
        command.arg(format!("{change}; exec \"$@\"")).arg("bash");
        let inside = up(&[]);
        command.arg(inside.get_program()).args(inside.get_args()).current_dir(user.at("."));
        command.env("HOME", user.at(".").canonicalize().unwrap());
        command
    };
    let no_fuse = "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3";
    refused(hidden(no_fuse), &["FUSE", "modprobe fuse"]);
    let forbidden = format!("{no_fuse}; mknod -m 600 /dev/fuse c 10 229");
    refused(hidden(&forbidden), &["/dev/fuse", "Permission denied", "chmod 666"]);
    // A state folder of a newer version.
    fs::write(user.at(".local/state/afar/version"), "99\n").unwrap();
    refused(up(&[]), &["a newer afar (version 99", "--state"]);
    assert!(!is_mounted(&user.at("afs")));
}

/// The same command by the full path of its program.
fn with_program(command: &Command, program: &str) -> Command {
    let mut same = Command::new(program);
    same.args(command.get_args()).stdin(Stdio::null());
    if let Some(folder) = command.get_current_dir() {
        same.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => same.env(name, value),
            None => same.env_remove(name),
        };
    }
    same
}

#[test]
fn doctor_tells_an_ordinary_user_what_he_has() {
    let Some(user) = Somebody::new() else { return };
    let output = run(user.afar(&["doctor", "-json", "-bind", &own_address().to_string()]));
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = |what: &str| {
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("{what} in {text}")).clone()
    };
    assert_eq!(of("fuse")["grade"], "ok", "{text}");
    assert_eq!(of("passthrough")["grade"], "poor", "{text}");
    assert_eq!(of("sharing")["grade"], "ok", "{text}");
    assert!(of("mount point")["text"].as_str().unwrap().contains("/afs"), "{text}");
}
