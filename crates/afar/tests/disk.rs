//! Real file systems that are full or cannot be written, under `afar server`: what callers are told, what the log says, and what is
//! served meanwhile and afterwards. Each test has a mount namespace with a small tmpfs in it, so that
//! nothing is left behind; where that is not allowed, they are skipped.

use std::fs::{self, File, OpenOptions};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::mounted::{Folder, ServerProcess, own_address, skip};
use afs_lab::caller::{Client, Credentials, FileServer};
use afs_lab::real::process::Process;
use afs_wire::abort::{self, VDISKFULL, VNOVNODE, VOFFLINE, VOVERQUOTA};
use afs_wire::errno::Errno;
use afs_wire::ids::{AfsFid, PartitionId, VolumeId};
use afs_wire::rxafs::{AfsStoreVolumeStatus, SetVolumeStatus, StoreVolumeMask};
use rx_security::KeySet;

const VOLUME: VolumeId = VolumeId(536_870_915);
const OTHER: VolumeId = VolumeId(536_870_918);
/// The size of the files that fill a partition; more than what is kept in the metadata.
const BYTES: usize = 500_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A mount namespace with a file system of its own at STATE/vicepa, and a server's configuration beside it.
struct Machine {
    state: Folder,
    address: Ipv4Addr,
    /// Keeps the namespace.
    holder: Process,
}

impl Machine {
    /// A machine with a tmpfs of so many MiB.
    fn new(name: &str, mib: u32) -> Option<Self> {
        Self::with(name, &format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\""))
    }

    /// A machine with what the script mounts at its `$0`, STATE/vicepa. `None` if this machine does not let us, which is noted as a skip.
    fn with(name: &str, mount: &str) -> Option<Self> {
        let state = Folder::new(name);
        let partition = state.path().join("vicepa");
        fs::create_dir_all(&partition).unwrap();
        let script = format!("{mount} && echo mounted && exec sleep 100000");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(&partition);
        let Ok(holder) = Process::saying(command.stdin(Stdio::null()), "mounted") else {
            return skip("this cannot be mounted here");
        };
        let address = own_address();
        let machine = Self { state, address, holder };
        let text = format!(
            "[server]\nstate = \"{state}\"\nbind = \"{address}\"\ncell = \"disk.test\"\npartitions = [\"a={state}/vicepa\"]\n\
             [volumes]\nreserve_mib = 1\nlog_mib = 1\n",
            state = machine.state.path().display(),
        );
        machine.state.write("server.toml", &text);
        Some(machine)
    }

    /// Something in the namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.pid().to_string(), "--mount", "--", program]);
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    fn afar(&self, args: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_afar")).args(args).output().unwrap()
    }

    /// Does it and expects that it can be done.
    fn shell(&self, script: &str) {
        let output = self.command("sh").args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn partition(&self) -> PathBuf {
        self.state.path().join("vicepa")
    }

    fn server_command(&self) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_afar"));
        let log = OpenOptions::new().create(true).append(true).open(self.log_file()).unwrap();
        command.args(["server", "--config"]).arg(self.state.path().join("server.toml")).stderr(log);
        command
    }

    fn server(&self) -> ServerProcess {
        ServerProcess::of(self.server_command(), self.address)
    }

    fn log_file(&self) -> PathBuf {
        self.state.path().join("log")
    }

    /// Waits for a line of the log with all of these in it.
    fn logs(&self, parts: &[&str]) {
        let log = || fs::read_to_string(self.log_file()).unwrap();
        let is_there = || log().lines().any(|line| parts.iter().all(|part| line.contains(part)));
        until!(is_there(), "no line with {parts:?} in:\n{}", log());
    }

    fn keys(&self) -> KeySet {
        KeySet::load(&self.state.path().join("etc/server")).unwrap()
    }

    /// A volume, of this quota, of which the administrator is the client that comes back.
    async fn volume(&self, client: &Client, volume: VolumeId, name: &str, quota_kib: i32) -> FileServer {
        let superuser = Credentials::superuser(&self.keys()).unwrap();
        client.volume_server(self.address, &superuser).create(PartitionId(0), name, volume).await.unwrap();
        let admin = Credentials::user("admin", "disk.test", &self.keys()).unwrap();
        let files = client.file_server(self.address, &admin);
        let status =
            AfsStoreVolumeStatus { mask: StoreVolumeMask::MAX_QUOTA, min_quota: 0, max_quota: quota_kib };
        let (name, offline_message, motd) = Default::default();
        files.rpc(&SetVolumeStatus { volume, status, name, offline_message, motd }).await.unwrap();
        files
    }

    /// True if `vos online` has succeeded.
    fn vos_online(&self, volume: VolumeId) -> bool {
        let config = self.state.path().join("etc/server").display().to_string();
        let (server, id) = (self.address.to_string(), volume.0.to_string());
        let args = ["vos", "online", &server, "a", &id, "-localauth", "-config", &config];
        let output = self.afar(&args);
        println!("vos online: {}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    }

    /// True if `pts` has succeeded.
    fn pts(&self, words: &[&str]) -> bool {
        let config = self.state.path().join("etc/server").display().to_string();
        let output = self.afar(&[&["pts"], words, &["-localauth", "-config", &config]].concat());
        println!("pts {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    }

    /// The partition is whole; the server must have stopped.
    fn is_whole(&self) {
        let output = self.afar(&["fsck", &self.partition().display().to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

fn client() -> Client {
    Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

/// Makes a file of these bytes: its fid, or the code of what was refused.
async fn put(files: &FileServer, volume: VolumeId, name: &str, bytes: Vec<u8>) -> Result<AfsFid, i32> {
    let code = |error: afs_lab::caller::Error| error.code().unwrap_or_else(|| panic!("{name}: {error}"));
    let fid = files.create_file(AfsFid::root_of(volume), name).await.map_err(code)?.fid;
    let length = bytes.len() as u64;
    files.store(fid, 0, bytes, length).await.map_err(code)?;
    Ok(fid)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_system_is_told_and_what_is_there_is_served() {
    let Some(machine) = Machine::new("full", 16) else { return };
    let server = machine.server();
    let client = client();
    let files = machine.volume(&client, VOLUME, "filled", 0).await;

    let mut kept = Vec::new();
    let code = loop {
        let name = format!("f{}", kept.len());
        match put(&files, VOLUME, &name, vec![kept.len() as u8; BYTES]).await {
            Ok(fid) => kept.push((name, fid)),
            Err(code) => break code,
        }
        assert!(kept.len() < 32, "16 MiB are never full");
    };
    assert_eq!(code, VDISKFULL.0);
    assert!(kept.len() > 10, "only {} files fit", kept.len());
    machine.logs(&["ERROR", "filled", "the partition is full"]);
    machine.logs(&["ERROR", "/vicepa", "the partition is full", "what is there is served"]);

    for (n, (name, fid)) in kept.iter().enumerate() {
        assert!(files.fetch(*fid, 0, BYTES as u64).await.unwrap() == vec![n as u8; BYTES], "{name}");
    }
    // With fewer, the log's segments may take so much of it that the partition is called full still.
    for (name, _) in kept.drain(..9) {
        files.remove_file(AfsFid::root_of(VOLUME), &name).await.unwrap();
    }
    // Their space comes back within seconds.
    let until = Instant::now() + TIMEOUT;
    let mut attempt = 0;
    while let Err(code) = put(&files, VOLUME, &format!("again{attempt}"), vec![9; BYTES]).await {
        assert_eq!(code, VDISKFULL.0);
        assert!(Instant::now() < until, "the space of removed files does not come back");
        attempt += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    machine.logs(&["/vicepa", "well again"]);
    assert!(server.stop().success());
    machine.is_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_quota_is_told_and_written_down_with_the_volumes_name_once_in_a_while() {
    const TRIES: usize = 20;
    let Some(machine) = Machine::new("quota", 64) else { return };
    let server = machine.server();
    let client = client();
    let files = machine.volume(&client, VOLUME, "limited", 100).await;
    machine.volume(&client, OTHER, "roomy", 0).await;
    let fits = put(&files, VOLUME, "fits", vec![1; 50_000]).await.unwrap();
    let begun = Instant::now();
    for attempt in 0..TRIES {
        let refused = put(&files, VOLUME, &format!("much{attempt}"), vec![7; BYTES]).await;
        assert_eq!(refused.unwrap_err(), VOVERQUOTA.0);
        put(&files, OTHER, &format!("much{attempt}"), vec![7; BYTES]).await.unwrap();
    }
    let took = begun.elapsed();
    machine.logs(&["WARN", "limited", "over its quota"]);
    let log = fs::read_to_string(machine.log_file()).unwrap();
    let about =
        |name| log.lines().filter(|line| line.contains("quota") && line.contains(name)).count() as u64;
    let lines = about("limited");
    // One at once, and at most one every ten seconds then.
    assert!(lines <= 1 + took.as_secs() / 10, "{lines} lines in {took:?}:\n{log}");
    assert_eq!(about("roomy"), 0, "{log}");
    assert!(files.fetch(fits, 0, BYTES as u64).await.unwrap() == vec![1; 50_000]);
    assert!(server.stop().success());
    machine.is_whole();
}

/// New files and segments of the log cannot be made, as when a file system was remounted for reading. What was told is on disk, so
/// what is there is served; how a partition goes offline whose log cannot be written, and comes back, is shown with disks
/// that fail on command too, in `afs_fileserver` and `afs_volserver`.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_became_read_only_serves_what_is_there_and_goes_on_when_it_can() {
    let Some(machine) = Machine::new("ro", 64) else { return };
    let server = machine.server();
    let client = client();
    let files = machine.volume(&client, VOLUME, "hurt", 0).await;
    let before = put(&files, VOLUME, "before", vec![1; BYTES]).await.unwrap();
    files.create_file(AfsFid::root_of(VOLUME), "removed").await.unwrap();
    let mut small = Vec::new();

    let partition = machine.partition().display().to_string();
    machine.shell(&format!("mount --bind {partition} {partition} && mount -o remount,bind,ro {partition}"));
    let eio = abort::from_errno(Errno(5), true).0;
    assert_eq!(put(&files, VOLUME, "large", vec![2; BYTES]).await.unwrap_err(), eio);
    machine.logs(&["ERROR", "hurt", "Read-only file system"]);
    // Small files are in the log, until that needs another segment.
    let code = loop {
        match put(&files, VOLUME, &format!("small{}", small.len()), vec![3; 10_000]).await {
            Ok(fid) => small.push(fid),
            Err(code) => break code,
        }
        assert!(small.len() < 2000, "the log never needs another segment");
    };
    assert_eq!(code, eio);
    assert!(files.fetch(before, 0, BYTES as u64).await.unwrap() == vec![1; BYTES], "it is online");

    // Somebody may still look at it.
    machine.shell(&format!("for n in $(seq 100); do umount {partition} && exit; sleep 0.1; done; exit 1"));
    put(&files, VOLUME, "after", vec![4; BYTES]).await.unwrap();
    files.remove_file(AfsFid::root_of(VOLUME), "removed").await.unwrap();
    for fid in &small {
        assert!(files.fetch(*fid, 0, 20_000).await.unwrap() == vec![3; 10_000], "{fid} was acknowledged");
    }
    // It does nothing here, and is what one tries.
    assert!(machine.vos_online(VOLUME));
    assert!(server.stop().success());
    machine.is_whole();
}

/// What ext4 does when it finds itself damaged: it takes no more writes, also not to files that are open.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_has_failed_takes_its_volumes_offline_and_they_are_back_after_the_repair() {
    let mount = "truncate -s 128M \"$0.img\" && mkfs.ext4 -q -F \"$0.img\" && mount -o loop,errors=remount-ro \"$0.img\" \"$0\"";
    let Some(machine) = Machine::with("ext4", mount) else { return };
    let server = machine.server();
    let client = client();
    let files = machine.volume(&client, VOLUME, "hurt", 0).await;
    let fid = put(&files, VOLUME, "before", vec![1; BYTES]).await.unwrap();
    // With the setting as it is, all of it is on the disk within a second, or what a disk that is busy needs for it.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let partition = machine.partition().display().to_string();
    machine.shell(&format!(
        "echo 1 > /sys/fs/ext4/$(basename $(findmnt -no SOURCE {partition}))/trigger_fs_error"
    ));

    let eio = abort::from_errno(Errno(5), true).0;
    let until = Instant::now() + TIMEOUT;
    let code = loop {
        match put(&files, VOLUME, "lost", vec![2; 100]).await {
            Err(code) if code != abort::from_errno(Errno(17), true).0 => break code,
            _ => assert!(Instant::now() < until, "the file system takes what it cannot"),
        }
    };
    assert!([eio, VOFFLINE.0].contains(&code), "{code}");
    machine.logs(&["ERROR", "/vicepa", "hurt", "offline", "vos online"]);
    let offline = files.fetch(fid, 0, 1).await.unwrap_err();
    assert_eq!(offline.code(), Some(VOFFLINE.0), "{offline}");
    assert!(!machine.vos_online(VOLUME), "it cannot be written still");

    // It cannot be brought to disk what is not there; the server ends all the same.
    server.stop();
    machine.shell(&format!("umount {partition}; e2fsck -p -f {partition}.img; [ $? -le 1 ] && mount -o loop {partition}.img {partition}"));
    let server = machine.server();
    assert!(files.fetch(fid, 0, BYTES as u64).await.unwrap() == vec![1; BYTES]);
    put(&files, VOLUME, "after", vec![4; BYTES]).await.unwrap();
    assert!(server.stop().success());
    machine.is_whole();
}

/// Storage that was promised and is not there: the file system has room, the device below it has none, so that what was written
/// fails when it is to get to the disk. The server goes on, and `vos online` brings the volume back when there is storage again.
/// What was told before the storage ran out is there, and with `is_always` all that was told; nothing is something else.
async fn storage_runs_out_and_comes_back(name: &str, is_always: bool) {
    const BEFORE: u8 = 5;
    // The file system's own blocks have their storage: otherwise it would be damaged itself, and what is left of it by chance.
    let mount = "mkdir \"$0.store\" && mount -t tmpfs -o size=64M tmpfs \"$0.store\" && truncate -s 512M \"$0.store/img\" \
                 && mkfs.ext4 -q -F -O ^has_journal -N 4096 -E lazy_itable_init=0,nodiscard \"$0.store/img\" \
                 && fallocate -l 24M \"$0.store/img\" && mount -o loop \"$0.store/img\" \"$0\"";
    let Some(machine) = Machine::with(name, mount) else { return };
    if is_always {
        let config = fs::read_to_string(machine.state.path().join("server.toml")).unwrap();
        machine.state.write("server.toml", format!("{config}sync = \"always\"\n"));
    }
    let server = machine.server();
    let client = client();
    let files = machine.volume(&client, VOLUME, "hurt", 0).await;
    let mut told = Vec::new();
    for byte in 0..BEFORE {
        told.push((put(&files, VOLUME, &format!("f{byte}"), vec![byte; BYTES]).await.unwrap(), byte));
    }
    if !is_always {
        // All of it is on the disk within a second, or what the disk needs for it.
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    let (partition, store) =
        (machine.partition().display().to_string(), format!("{}.store", machine.partition().display()));
    machine.shell(&format!("! dd if=/dev/zero of={store}/filler bs=64k 2> {store}.dd"));

    let until = Instant::now() + TIMEOUT;
    let code = loop {
        let byte = told.len() as u8;
        match put(&files, VOLUME, &format!("f{}", told.len()), vec![byte; BYTES]).await {
            Err(code) => break code,
            Ok(fid) => told.push((fid, byte)),
        }
        assert!(Instant::now() < until, "the disk takes what it cannot");
        // Slowly, so that what fails is the sync, and not the making of another segment of the log.
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let eio = abort::from_errno(Errno(5), true).0;
    assert!([eio, VOFFLINE.0].contains(&code), "{code}");
    machine.logs(&["ERROR", "/vicepa", "hurt", "offline", "vos online"]);
    let offline = files.fetch(told[0].0, 0, 1).await.unwrap_err();
    assert_eq!(offline.code(), Some(VOFFLINE.0), "{offline}");
    // Otherwise it is only tried when there is storage again, and is the first that hears of writes in the background that failed.
    if is_always {
        assert!(!machine.vos_online(VOLUME), "there is no storage still");
    }

    machine.shell(&format!("rm {store}/filler"));
    assert!(machine.vos_online(VOLUME), "there is storage again");
    let mut kept = Vec::new();
    for (n, (fid, byte)) in told.into_iter().enumerate() {
        match files.fetch(fid, 0, BYTES as u64).await {
            Ok(bytes) => {
                assert!(bytes == vec![byte; BYTES], "{fid} is something else");
                kept.push((fid, byte));
            }
            // In the last second before.
            Err(error) => {
                let may_be_gone = !is_always && n >= usize::from(BEFORE);
                assert!(may_be_gone && error.code() == Some(VNOVNODE.0), "{n}: {error}");
            }
        }
    }
    kept.push((put(&files, VOLUME, "after", vec![255; BYTES]).await.unwrap(), 255));
    assert!(server.stop().success());
    machine.is_whole();

    // From the disk, and not from what the kernel remembers.
    machine.shell(&format!(
        "umount {partition} && e2fsck -fn {store}/img >&2 && mount -o loop {store}/img {partition}"
    ));
    machine.is_whole();
    let server = machine.server();
    for (fid, byte) in kept {
        assert!(
            files.fetch(fid, 0, BYTES as u64).await.unwrap() == vec![byte; BYTES],
            "{fid} was not on the disk"
        );
    }
    assert!(server.stop().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_that_runs_out_below_takes_a_volume_offline_and_vos_online_brings_it_back() {
    storage_runs_out_and_comes_back("thin", false).await;
}

/// A server with `volumes.sync = "always"`, where the caller itself is told that its store did not get to the disk.
#[tokio::test(flavor = "multi_thread")]
async fn storage_that_runs_out_below_loses_nothing_that_was_told_where_all_is_synced() {
    storage_runs_out_and_comes_back("thin-always", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_opened_does_not_keep_others_from_being_served() {
    let Some(machine) = Machine::new("unwritable", 64) else { return };
    let partition = machine.partition().display().to_string();
    machine.shell(&format!("mount -o remount,ro {partition}"));
    let alone = machine.server_command().stdout(Stdio::null()).status().unwrap();
    assert!(!alone.success(), "there is nothing to serve");
    machine.logs(&["afar server: partition /vicepa", "cannot be opened", "Read-only file system"]);

    let config = fs::read_to_string(machine.state.path().join("server.toml")).unwrap();
    let both = format!("partitions = [\"b={}/vicepb\", \"a=", machine.state.path().display());
    machine.state.write("server.toml", config.replace("partitions = [\"a=", &both));
    File::create(machine.log_file()).unwrap();
    let server = machine.server();
    machine.logs(&["ERROR", "partition /vicepa", "cannot be opened", "Read-only file system"]);
    let superuser = Credentials::superuser(&machine.keys()).unwrap();
    let client = client();
    let volumes = client.volume_server(machine.address, &superuser);
    volumes.create(PartitionId(1), "elsewhere", VOLUME).await.unwrap();
    assert!(volumes.create(PartitionId(0), "here", OTHER).await.is_err());
    assert!(server.stop().success());
}

/// After a change that found no room, no other was made until the server was started again.
#[test]
fn databases_are_changed_again_when_a_full_disk_has_room() {
    let mount = "mount -t tmpfs tmpfs \"$0\" && mkdir -m 700 \"$0/../databases\" && \
                 mount -t tmpfs -o size=8m,mode=700 tmpfs \"$0/../databases\"";
    let Some(machine) = Machine::with("databases", mount) else { return };
    let server = machine.server();
    assert!(machine.pts(&["createuser", "first"]));
    let fill = machine.state.path().join("databases/fill");
    machine.shell(&format!("cat /dev/zero > '{}' || true", fill.display()));
    let refused = (0..200).find(|number| !machine.pts(&["createuser", &format!("user{number}")]));
    assert!(refused.is_some(), "the disk is not full");
    machine.logs(&["ERROR", "PTDB", "a change was not made", "No space left on device"]);
    assert!(machine.pts(&["examine", "first"]), "look-ups are answered");
    assert!(!machine.pts(&["createuser", "another"]));
    machine.shell(&format!("rm '{}'", fill.display()));
    until!(machine.pts(&["createuser", "after"]), "changes are not made again");
    machine.logs(&["databases/cell.redb", "opened anew"]);
    assert!(server.stop().success());
    let server = machine.server();
    assert!(["first", "after"].iter().all(|user| machine.pts(&["examine", user])));
    assert!(!machine.pts(&["examine", "another"]));
    assert!(server.stop().success());
}
