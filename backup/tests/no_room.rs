//! Disks that are full, and servers that die.

use crate::lab::Lab;
use afs_lab::real::afar::words;
use afs_lab::real::process::{Process, Running};
use afs_lab::real::wait::PATIENCE;
use afs_wire::ids::AfsFid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Bytes that cannot be compressed.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = vec![0; length];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// A volume with room for them.
fn large_volume(lab: &Lab) -> AfsFid {
    let root = lab.volume("data");
    lab.vos("vos setfields data -maxquota 100000");
    root
}

/// A disk of its own in a folder, which only commands with it see.
struct Disk {
    at: PathBuf,
    holder: Process,
}

impl Disk {
    /// A tmpfs of so many MiB. `None` if there can be none here.
    fn new(at: &Path, mib: u32) -> Option<Self> {
        fs::create_dir_all(at).expect("there is room");
        let script =
            format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\" && echo mounted && exec sleep 100000");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(at);
        match Process::saying(command.stdin(Stdio::null()), "mounted") {
            Ok(holder) => Some(Self { at: at.to_owned(), holder }),
            Err(_) => afs_lab::skipped::skip_this("a tmpfs cannot be mounted here"),
        }
    }

    fn grow(&self, mib: u32) {
        let mut mount =
            self.with(Command::new("mount").args(["-o", &format!("remount,size={mib}m")]).arg(&self.at));
        assert!(mount.status().is_ok_and(|status| status.success()));
    }

    /// The same command, that sees the disk.
    fn with(&self, command: &Command) -> Command {
        let mut with = Command::new("nsenter");
        with.args(["--target", &self.holder.pid().to_string(), "--mount", "--"]);
        with.arg(command.get_program()).args(command.get_args());
        with
    }

    fn output(&self, command: &Command) -> Output {
        self.with(command).output().expect("it is there")
    }
}

#[test]
fn a_full_disk_fails_the_run_which_names_it_and_the_next_one_is_whole() {
    let lab = Lab::new("backup-full-disk");
    let Some(disk) = Disk::new(&lab.folder.join("disk"), 2) else { return };
    let root = large_volume(&lab);
    lab.file(root, "small", b"text");
    lab.backup(&["run", "data"]);
    let large = noise(3 << 20);
    lab.file(root, "large", &large);
    let volumes = lab.volumes();

    let spool = lab.command(&["run", "data", "--spool", disk.at.to_str().expect("it is text")]);
    for _ in 0..2 {
        let output = disk.output(&spool);
        let told = words(&output);
        assert!(!output.status.success() && told.contains("No space left"), "{told}");
        assert!(
            told.contains(&format!("data: not backed up: dumping it: the spool in {}", disk.at.display())),
            "{told}"
        );
        assert_eq!(lab.volumes(), volumes, "its clone is gone");
    }
    assert_eq!(lab.backups().len(), 1);

    // The repository is on the disk from here on.
    fs::rename(lab.repository(), lab.folder.join("aside")).expect("it is ours");
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(lab.folder.join("aside")).arg(disk.at.join("repository"));
    assert!(disk.output(&copy).status.success());
    std::os::unix::fs::symlink(disk.at.join("repository"), lab.repository()).expect("there is room");
    let run = lab.command(&["run", "data"]);
    let output = disk.output(&run);
    let told = words(&output);
    assert!(!output.status.success() && told.contains("No space left"), "{told}");
    assert!(
        told.contains(&format!("data: not backed up: the repository {}", lab.repository().display())),
        "{told}"
    );
    let listed = words(&disk.output(&lab.command(&["list"])));
    assert_eq!(listed.lines().count(), 1, "{listed}");

    disk.grow(64);
    let output = disk.output(&run);
    assert!(output.status.success(), "{}", words(&output));
    let to = lab.folder.join("restored");
    let restore = lab.command(&["restore", "data", "--to", to.to_str().expect("it is text")]);
    let output = disk.output(&restore);
    assert!(output.status.success(), "{}", words(&output));
    assert!(fs::read(to.join("data/large")).expect("it was restored") == large);
    let mut restic = Command::new("restic");
    restic.args(["--no-cache", "check", "--read-data", "--repo"]).arg(lab.repository());
    restic.arg("--password-file").arg(lab.folder.join("password"));
    if Command::new("restic").arg("version").output().is_ok() {
        let output = disk.output(&restic);
        assert!(output.status.success(), "{}", words(&output));
    }
    assert_eq!(lab.volumes(), volumes);
}

/// The length of the spool of a run, which has no name.
fn spooled(run: u32) -> u64 {
    let files = fs::read_dir(format!("/proc/{run}/fd")).into_iter().flatten().flatten();
    let is_spool =
        |path: &Path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().ends_with(" (deleted)"));
    let lengths = files.map(|file| file.path()).filter(|path| is_spool(path)).map(fs::metadata);
    lengths.filter_map(io::Result::ok).map(|meta| meta.len()).sum()
}

/// A server that sends nothing counts as dead after 45 s: the case is there where AFAR_KILLS is set, as in `make nightly`.
#[test]
fn a_server_that_dies_fails_the_run_and_the_next_one_is_whole() {
    if std::env::var_os("AFAR_KILLS").is_none() {
        return;
    }
    let mut lab = Lab::new("backup-server-dies");
    let root = large_volume(&lab);
    let large = noise(40 << 20);
    lab.file(root, "large", &large);
    let volumes = lab.volumes();
    let run = Running::start(&mut lab.command(&["run", "data"])).expect("it is built");
    afs_lab::until!(spooled(run.process.pid()) > 0, "it dumps nothing");
    // What is on its way is all that will come.
    run.process.signal("STOP");
    lab.cell.restart();
    run.process.signal("CONT");
    let ended = run.finish(PATIENCE).expect("it does not wait for ever");
    assert!(!ended.status.success(), "{}", words(&ended));
    assert_eq!(lab.backups(), [""; 0]);
    assert_eq!(lab.volumes(), volumes, "the clone went with the server");
    lab.backup(&["run", "data"]);
    lab.restic(&["check", "--read-data"]);
    let restored = lab.restored("data", "restored").join("data/large");
    assert!(fs::read(restored).expect("it was restored") == large);
    assert_eq!(lab.volumes(), volumes);
}
