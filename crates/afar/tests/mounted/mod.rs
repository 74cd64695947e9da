//! An `afar up` or `afar mount` for tests: on an address of its own in 127/8, in a folder that goes with the test.

pub(crate) mod cell;
pub(crate) mod realm;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub(crate) use afs_lab::real::address::own_address;
pub(crate) use afs_lab::real::afar::{
    command as afar, copy_to as copy_program, interruptible, program as our_program,
    server as server_command, suite, up, words,
};
pub(crate) use afs_lab::real::cell::{Cell, open};
pub(crate) use afs_lab::real::folder::Folder;
pub(crate) use afs_lab::real::machines::{Machines, Server as ServerProcess, run};
pub(crate) use afs_lab::real::process::{self, Process, signal};
pub(crate) use afs_lab::skipped::skip_this as skip;

/// How long something may take that takes a moment, on slow machines.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// True if file systems can be mounted here, which `afar doctor` tries; else the test is counted as skipped.
pub(crate) fn can_mount() -> bool {
    let fuse = doctor("fuse");
    if fuse["grade"] == "ok" {
        return true;
    }
    skip(fuse["text"].as_str().unwrap())
}

/// True if the kernel reads large cached files by itself in mounts of this user.
pub(crate) fn can_pass_through() -> bool {
    doctor("passthrough")["grade"] == "ok"
}

/// What `afar doctor` finds of something.
fn doctor(what: &str) -> serde_json::Value {
    let output = run(afar(["doctor", "-json", "-config", "/nonexistent"]));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["what"] == what).unwrap().clone()
}

/// True if a program is there; else the test is counted as skipped.
pub(crate) fn needs(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| process::find(program).is_none());
    missing.is_none_or(|program| skip(&format!("{program} is not installed")))
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// A number that the environment may give: how often, for how long, from which seed.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// How often a test does what shows a race only now and then: AFAR_TURNS (default 1) times as often.
pub(crate) fn turns(times: usize) -> usize {
    times * number("AFAR_TURNS", 1) as usize
}

/// What somebody looks at in a folder as `tests/rights.rs` and `tests/pags` fill it, each with a word of what it would have shown.
pub(crate) const LOOKS: [(&str, &str); 11] = [
    ("ls", "ls \"$1\""),
    ("find", "find \"$1\" -mindepth 1 2>/dev/null | grep ."),
    ("stat of a file", "stat -c %s \"$1/small\""),
    ("stat of a large file", "stat -c %s \"$1/large\""),
    ("stat of a directory", "stat -c %n \"$1/sub\""),
    ("ls of a directory below", "ls \"$1/sub\""),
    ("a link", "readlink \"$1/link\""),
    ("a file", "cat \"$1/small\""),
    ("a large file", "head -c 100 \"$1/large\""),
    ("the end of a large file", "tail -c 100 \"$1/large\""),
    ("a large file, mapped", "cmp -n 100 \"$1/large\" \"$1/large\" && echo same"),
];

/// A library that sets the clock of a program ahead by so many seconds, or back, in a folder. It takes gcc.
pub(crate) fn clock_that_is_ahead(folder: &Folder, seconds: i64) -> PathBuf {
    c_library("clock.c", &folder.join("clock.so"), &[&format!("-DAHEAD=({seconds})")])
}

/// Makes a program of one of the C files beside this, which anybody may run. It takes gcc.
pub(crate) fn c_program(source: &str, to: &Path, options: &[&str]) -> PathBuf {
    let mut compile = Command::new("gcc");
    compile.arg("-o").arg(to).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounted").join(source));
    compile.args(options);
    succeed(compile);
    open(to);
    to.to_owned()
}

/// The same for a library that is loaded before others.
pub(crate) fn c_library(source: &str, to: &Path, options: &[&str]) -> PathBuf {
    c_program(source, to, &[options, &["-shared", "-fPIC", "-ldl"]].concat())
}

/// Where root's client of a mount listens, as the kernel shows it.
pub(crate) fn socket_of(mount: &Path) -> PathBuf {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mount.display().to_string();
    let line = text.lines().find(|line| line.split(' ').nth(4) == Some(&*mount)).unwrap();
    line.split(' ').find_map(|field| field.strip_prefix("afs:")).unwrap().into()
}

/// Runs a command that has to succeed; says what it wrote.
pub(crate) fn succeed(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}: {}{said}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Takes the key for rxgk of a cell away that has its state there, so that all speak rxkad from now on.
pub(crate) fn forget_rxgk(folder: &Folder) {
    let mut command = afar(["key", "remove", "1", "-type", "rxgk", "-config"]);
    command.arg(folder.join("state/etc/server"));
    succeed(command);
}

/// Starts `afar up`, mounted in the folder's `mnt`.
pub(crate) fn start_up(folder: &Folder, address: Ipv4Addr) -> Process {
    let mount = folder.join("mnt");
    let mut command = up(folder, address, &["--mount"]);
    command.arg(&mount);
    Process::start(command, Some(mount))
}

/// Waits until a program of [`interruptible`] runs, and no longer `env`.
pub(crate) fn has_begun(child: &Child) {
    until!(
        !fs::read_to_string(format!("/proc/{}/comm", child.id())).is_ok_and(|name| name == "env\n"),
        "it does not begin"
    );
}

/// A file with a key of the cell's servers, as `kadmin` writes it.
pub(crate) fn keytab() -> Vec<u8> {
    let counted = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let entry = [
        &2_u16.to_be_bytes()[..],
        &counted(b"AFAR.LOCAL"),
        &counted(b"afs"),
        &counted(b"afar.local"),
        &1_u32.to_be_bytes(),
        &[0; 4],
        &[5],
        &18_u16.to_be_bytes(),
        &counted(&[7; 32]),
        &5_u32.to_be_bytes(),
    ]
    .concat();
    [&[5, 2][..], &(entry.len() as u32).to_be_bytes(), &entry].concat()
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    wait_for(child, TIMEOUT).expect("it does not end")
}

pub(crate) fn wait_for(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    process::wait(child, patience).unwrap()
}

/// Runs a script in a folder; it has to succeed. What it prints is given back.
pub(crate) fn script(folder: &Path, text: &str) -> String {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", text])
        .current_dir(folder)
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{}\n{said}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a script of interop/programs, in a folder of a mount and in a local one; it has to succeed.
pub(crate) fn program(name: &str, mounted: &Path, local: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/programs").join(name);
    let mut command = Command::new(script.with_extension("sh"));
    let output = command.arg(mounted).arg(local).stdin(Stdio::null()).output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let last: Vec<_> = said.lines().rev().take(60).collect();
    assert!(output.status.success(), "{name}: {}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// Maps a whole file to be read and written, if it is not empty.
pub(crate) fn map(file: &fs::File) -> Option<memmap2::MmapMut> {
    #[expect(unsafe_code, reason = "mapping a file is")]
    // SAFETY: the file is changed through this process's mounts alone while it is mapped, it is never cut while it is mapped, and
    // bytes have no invalid values.
    let map = || unsafe { memmap2::MmapMut::map_mut(file) };
    (file.metadata().ok()?.len() > 0).then(|| map().unwrap())
}

/// Maps a whole file to be read. It must not be empty.
pub(crate) fn map_to_read(file: &fs::File) -> memmap2::Mmap {
    #[expect(unsafe_code, reason = "mapping a file is")]
    // SAFETY: nobody changes the file while it is mapped, and bytes have no invalid values.
    unsafe { memmap2::Mmap::map(file) }.unwrap()
}

/// A small file system of its own, for as long as this is there.
pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
}

impl SmallDisk {
    /// `None` where this machine does not let us mount one.
    pub(crate) fn new(path: PathBuf, mib: u32) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let size = format!("size={mib}m");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).status();
        status.is_ok_and(|status| status.success()).then_some(Self { path })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.path).status());
    }
}

/// Bytes that are others in each round, and are the same when they are made again.
pub(crate) fn text_of(round: u64, length: usize) -> Vec<u8> {
    round.to_le_bytes().repeat(length / 8)
}
