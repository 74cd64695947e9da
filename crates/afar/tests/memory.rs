//! The memory of an `afar up` and of a mount: each cache stays within its share, and work that leaves nothing behind leaves no memory
//! behind either. AFAR_MEMORY_ROUNDS says how many rounds of work (default 6).

use crate::mounted::{Folder, Process, afar, can_mount, number, own_address, up};
use afs_lab::cpu::cpu;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a node is counted as; half of 64 MiB is the client's, of which 6 of 64 parts are for nodes.
const NODE_BYTES: u64 = 768;
const NODES_OF_64M: u64 = (32 << 20) / 64 * 6 / NODE_BYTES;

/// A process with an exporter.
struct Watched {
    process: Process,
    metrics: SocketAddr,
}

impl Watched {
    /// What it resides in, in bytes.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Gauges of memory, by their names and shares.
    fn gauges(&self) -> BTreeMap<String, u64> {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("afs_") && line.contains("memory"));
        let gauge = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse::<f64>().ok()? as u64))
        };
        lines.filter_map(gauge).collect()
    }

    fn gauge(&self, name: &str, share: &str) -> u64 {
        let gauges = self.gauges();
        let name = format!("{name}{{share=\"{share}\"}}");
        *gauges.get(&name).unwrap_or_else(|| panic!("no {name} in {gauges:?}"))
    }

    fn nodes(&self) -> u64 {
        self.gauge("afs_client_memory_bytes", "nodes") / NODE_BYTES
    }
}

/// `afar up` with so much memory, and where anybody may write in it.
fn watched_up(folder: &Folder, memory: &str) -> (Watched, PathBuf) {
    let address = own_address();
    let metrics = SocketAddr::from((address, 9160));
    let mount = folder.join("mnt");
    let mut command =
        up(folder, address, &["--memory", memory, "--metrics", &metrics.to_string(), "--mount"]);
    command.arg(&mount);
    let process = Process::start(command, Some(mount.clone()));
    (Watched { process, metrics }, mount.join("afar.local/scratch"))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    until!(is_so(), "{what}");
}

fn path_of(scratch: &Path, number: u64) -> PathBuf {
    scratch.join(format!("d{}/file-{number:06}", number / 500))
}

#[test]
fn the_kernel_knows_no_more_files_than_there_is_memory_for() {
    let _cpu = cpu();
    require!(can_mount());
    let folder = Folder::new("nodes");
    let (up, scratch) = watched_up(&folder, "64M");
    let limit = up.gauge("afs_client_memory_limit_bytes", "nodes") / NODE_BYTES;
    assert_eq!(limit, NODES_OF_64M);
    let count = limit * 3 / 2;
    // One that is open all the time, with what is not stored yet.
    let mut kept = File::create(scratch.join("kept")).unwrap();
    kept.write_all(b"begun, ").unwrap();
    let mut inodes = Vec::new();
    for number in 0..count {
        let path = path_of(&scratch, number);
        if number % 500 == 0 {
            fs::create_dir(path.parent().unwrap()).unwrap();
        }
        fs::write(&path, number.to_string()).unwrap();
        inodes.push(fs::metadata(&path).unwrap().ino());
    }
    wait_until("the kernel lets go of the first files", || up.nodes() <= limit);
    assert!(up.nodes() > limit / 2, "no more than it has to: {}", up.nodes());
    // Whoever comes back finds everything as it was.
    for number in (0..count).step_by(7) {
        let path = path_of(&scratch, number);
        assert_eq!(fs::metadata(&path).unwrap().ino(), inodes[number as usize], "{}", path.display());
        assert_eq!(fs::read_to_string(&path).unwrap(), number.to_string());
    }
    let mut listed = 0;
    for dir in 0..=(count - 1) / 500 {
        let entries = fs::read_dir(scratch.join(format!("d{dir}"))).unwrap();
        for entry in entries {
            entry.unwrap().metadata().unwrap();
            listed += 1;
        }
    }
    assert_eq!(listed, count);
    wait_until("the kernel lets go again", || up.nodes() <= limit);
    kept.write_all(b"and ended").unwrap();
    drop(kept);
    assert_eq!(fs::read_to_string(scratch.join("kept")).unwrap(), "begun, and ended");
    assert!(up.process.stop().success());
}
/// What is made in a round is removed in it.
fn round(here: &Path, there: &Path, number: u64) {
    const FILES: u64 = 400;
    let dir = format!("round-{number}");
    fs::create_dir(here.join(&dir)).unwrap();
    for file in 0..FILES {
        let name = format!("{dir}/file-{file}");
        fs::write(here.join(&name), name.as_bytes()).unwrap();
        if file % 40 == 0 {
            fs::create_dir(here.join(format!("{dir}/sub-{file}"))).unwrap();
            fs::hard_link(here.join(&name), here.join(format!("{name}-too"))).unwrap();
        }
    }
    let large = vec![number as u8; 4 << 20];
    fs::write(here.join(format!("{dir}/large")), &large).unwrap();
    // On a busy machine a mount may be late, and see a moment later what the other has done.
    wait_until("the other sees the folder", || there.join(&dir).exists());
    let mut read = 0;
    for entry in fs::read_dir(there.join(&dir)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            read += fs::read(path).unwrap().len();
        }
    }
    assert!(read > large.len());
    fs::rename(there.join(format!("{dir}/large")), there.join(format!("{dir}/larger"))).unwrap();
    wait_until("the folder is removed", || fs::remove_dir_all(here.join(&dir)).is_ok());
    wait_until("the other sees that it is gone", || !there.join(&dir).exists());
}

#[test]
fn work_that_leaves_nothing_behind_takes_no_more_memory_each_time() {
    let _cpu = cpu();
    require!(can_mount());
    let rounds = number("AFAR_MEMORY_ROUNDS", 6);
    let folder = Folder::new("rounds-of-memory");
    let (up, here) = watched_up(&folder, "64M");
    let metrics = SocketAddr::from((own_address(), 9161));
    let mount = folder.join("other");
    let mut command = afar(["mount"]);
    command
        .arg(&mount)
        .arg("--config")
        .arg(folder.join("state/etc"))
        .arg("--cache")
        .arg(folder.join("cache"));
    command.args(["--memory", "32M", "--metrics", &metrics.to_string()]);
    let other = Watched { process: Process::start(command, Some(mount.clone())), metrics };
    let there = mount.join("afar.local/scratch");
    let mut before = Vec::new();
    for number in 1..=rounds {
        round(&here, &there, number);
        // What caches and tables there are is there after the first rounds.
        if number == rounds / 2 {
            before = [&up, &other].map(|watched| (watched.gauges(), watched.resident())).into();
        }
    }
    let [(gauges, of_up), (_, of_other)] = <[_; 2]>::try_from(before).unwrap();
    // Who has removed files keeps nothing of them, here or at the server. Another client does until it needs the room: a callback says
    // that something has changed, not what.
    const FEW: u64 = 64 * NODE_BYTES;
    wait_until("what was removed takes no memory", || {
        up.gauges().iter().all(|(name, bytes)| name.contains("directories") || *bytes <= gauges[name] + FEW)
    });
    for watched in [&up, &other] {
        let gauges = watched.gauges();
        for (name, used) in gauges.iter().filter(|(name, _)| !name.contains("limit")) {
            let limit = gauges[&name.replace("_bytes", "_limit_bytes")];
            assert!(*used <= limit, "{name}: {used} of {limit}");
        }
    }
    // What grows does so each time; what a busy machine has at the same time does not.
    let (mut resident, mut is_steady) = ([of_up, of_other], [false; 2]);
    for span in 0..4 {
        for number in 0..span.min(1) * (rounds / 2) {
            round(&here, &there, 1000 * span + number);
        }
        let now = [&up, &other].map(Watched::resident);
        for (is_steady, (now, before)) in is_steady.iter_mut().zip(now.into_iter().zip(resident)) {
            println!("{} MiB, and {} MiB {} rounds later", before >> 20, now >> 20, rounds / 2);
            *is_steady |= now < before + (8 << 20);
            assert!(now < (64 + 60) << 20, "more than its memory and the program: {now}");
        }
        if is_steady == [true; 2] {
            break;
        }
        resident = now;
    }
    assert_eq!(is_steady, [true; 2], "it grows, to {resident:?} bytes");
    assert!(other.process.stop().success());
    assert!(up.process.stop().success());
}
