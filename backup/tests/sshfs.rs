//! A repository in a folder of another machine, which sshfs mounts: OpenSSH's server gives it by SFTP.

use crate::backups::fill;
use crate::lab::{Lab, Place, contents, large};
use afs_lab::real::address::own_address;
use afs_lab::real::afar::words;
use afs_lab::real::folder::Folder;
use afs_lab::real::process::{Process, Running, find};
use afs_lab::real::wait::PATIENCE;
use afs_lab::until;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PORT: u16 = 2222;

/// The other machine's server, and the mount of its folder here.
struct Elsewhere {
    mount: Process,
    server: Process,
    address: Ipv4Addr,
    folder: Folder,
}

impl Elsewhere {
    /// `None` where there can be none.
    fn new(name: &str) -> Option<Self> {
        let missing = ["sshfs", "ssh", "ssh-keygen"].into_iter().find(|program| find(program).is_none());
        if let Some(program) = missing {
            return afs_lab::skipped::skip_this(&format!("there is no {program}"));
        }
        if !tools().join("usr/sbin/sshd").exists() {
            return afs_lab::skipped::skip_this("there is no ssh server: scripts/tools.sh fetches it");
        }
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return afs_lab::skipped::skip_this("a server and a mount need root and /dev/fuse");
        }
        let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name).showing("server.log");
        let address = own_address();
        let at = |name: &str| folder.join(name).display().to_string();
        for key in ["host-key", "user-key"] {
            let mut command = Command::new("ssh-keygen");
            let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(made.is_ok_and(|status| status.success()));
        }
        folder.inner("there");
        folder.inner("here");
        let users = "keeper:x:0:0::/:/bin/sh\nsshd:x:60099:60099::/run/sshd:/usr/sbin/nologin\n";
        let known = fs::read_to_string("/etc/passwd").expect("there are users");
        folder.write("passwd", format!("{known}{users}"));
        let settings = format!(
            "ListenAddress {address}\nPort {PORT}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
            at("host-key"),
            at("user-key.pub")
        );
        folder.write("sshd_config", &settings);
        let host = fs::read_to_string(folder.join("host-key.pub")).expect("it was made");
        folder.write("known_hosts", format!("[{address}]:{PORT} {host}"));
        let server = serve(&folder, address);
        let mount = mount(&folder, address);
        Some(Self { mount, server, address, folder })
    }

    /// The folder, as it is seen here.
    fn here(&self) -> PathBuf {
        self.folder.join("here/repository")
    }

    /// Ends the server and its connections.
    fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts it again, and mounts again, after the mount has gone.
    fn again(&mut self) {
        self.server = serve(&self.folder, self.address);
        // Unmounts first.
        let gone = Process::of(&mut Command::new("true"));
        drop(std::mem::replace(&mut self.mount, gone));
        self.mount = mount(&self.folder, self.address);
    }
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/openssh")
}

fn serve(folder: &Folder, address: Ipv4Addr) -> Process {
    // It wants a user and a folder of its own, which this machine may not have. Its connections end with it.
    const START: &str = "mount --bind \"$1/passwd\" /etc/passwd; mount -t tmpfs run /run; mkdir /run/sshd; exec \"$2\" -D -e -f \"$1/sshd_config\"";
    let tools = tools().canonicalize().expect("it is there");
    let log =
        fs::File::options().create(true).append(true).open(folder.join("server.log")).expect("there is room");
    let mut command = Command::new("unshare");
    command.args(["-m", "-p", "-f", "--kill-child", "sh", "-euc", START, "sh"]);
    command.arg(folder.path()).arg(tools.join("usr/sbin/sshd"));
    command.env("LD_LIBRARY_PATH", tools.join("usr/lib/x86_64-linux-gnu"));
    let mut process = Process::of(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
    until!(TcpStream::connect((address, PORT)).is_ok() || !process.is_running(), "sshd does not answer");
    assert!(process.is_running(), "sshd has ended");
    process
}

fn mount(folder: &Folder, address: Ipv4Addr) -> Process {
    let (at, here) = (|name: &str| folder.join(name).display().to_string(), folder.join("here"));
    let mut command = Command::new("sshfs");
    command.args(["-f", "-F", "/dev/null", "-p", &PORT.to_string(), "-o", "BatchMode=yes"]);
    for (name, file) in [("IdentityFile", "user-key"), ("UserKnownHostsFile", "known_hosts")] {
        command.args(["-o", &format!("{name}={}", at(file))]);
    }
    command.arg(format!("keeper@{address}:{}", at("there"))).arg(&here).stdin(Stdio::null());
    let device = || here.metadata().map_or(0, |meta| meta.dev());
    let before = device();
    let mut process = Process::of(&mut command).mounting(here.clone());
    until!(device() != before || !process.is_running(), "sshfs does not mount");
    assert!(process.is_running(), "sshfs has ended");
    process
}

#[test]
fn a_folder_behind_sshfs_has_what_another_has_and_survives_the_end_of_a_connection() {
    let Some(mut elsewhere) = Elsewhere::new("sshfs") else { return };
    let lab = Lab::at(Place::folder(elsewhere.here()), "backup-sshfs");
    let root = fill(&lab, "data");
    lab.backup(&["run", "data"]);
    let file = lab.file(root, "changes", b"first");
    lab.backup(&["run", "data"]);
    lab.backup(&["verify"]);
    let ours = contents(&lab.restored("data", "ours"));
    assert!(ours.len() > 30, "{:?}", ours.keys());
    assert_eq!(lab.backup(&["prune", "--keep-last", "1"]), "kept 1 backups and forgot 1\n");
    lab.restic(&["check", "--read-data"]);

    let large = large();
    lab.store(file, &large);
    let there = elsewhere.folder.join("there");
    let locks = || fs::read_dir(there.join("repository/locks")).into_iter().flatten().flatten();
    let run = Running::start(&mut lab.command(&["run", "data"])).expect("it is built");
    // Then it dumps the volume, and then it writes.
    until!(locks().count() > 0, "it does not begin");
    elsewhere.kill();
    let output = run.finish(PATIENCE).unwrap_or_else(|problem| panic!("{problem}"));
    let told = words(&output);
    assert!(!output.status.success() && told.contains("data: not backed up: "), "{told}");

    elsewhere.again();
    lab.backup(&["run", "data"]);
    lab.backup(&["verify"]);
    let restored = fs::read(lab.restored("data", "restored").join("data/changes")).expect("it was restored");
    assert!(restored == large);
    // That of the run that lost its connection.
    locks().for_each(|lock| fs::remove_file(lock.path()).expect("it is ours"));
    lab.restic(&["check", "--read-data"]);
}
