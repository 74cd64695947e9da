//! A process that is killed under load, again and again, on a real file system: what it said was done is there, opening
//! takes less than a second of CPU time in the median, and all fits together.

use afs_lab::real::folder::Folder;
use afs_volume::{Config, Partition, SyncPolicy, VnodeId, VolumeError, fsck};
use afs_wire::ids::VolumeId;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const VOLUME: VolumeId = VolumeId(536_870_912);
const THREADS: u32 = 4;
/// AFAR_KILLS sets another number.
const KILLS: u32 = 20;
/// Stands for the thread in what is said of snapshots, of which so many are kept.
const SNAPSHOTS: u32 = u32::MAX;
const KEPT: usize = 2;
/// Files that a thread makes between two kills at most; numbers are not used twice.
const NUMBERS_PER_ROUND: u32 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Made,
    Renamed,
    Removed,
}

/// The moment at which the load is killed.
#[derive(Debug, Clone, Copy)]
enum Killed {
    After(Duration),
    /// The end of the load by itself, once it has made so many files.
    AfterFiles(u32),
}

/// Runs the load until it is killed, and notes what it said.
fn run_and_kill(folder: &Folder, round: u32, killed: Killed, said: &mut BTreeMap<(u32, u32), Last>) {
    let files = match killed {
        Killed::After(_) => None,
        Killed::AfterFiles(files) => Some(files.to_string()),
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_afs-volume-load"))
        .arg(folder)
        .args([THREADS.to_string(), (round * NUMBERS_PER_ROUND).to_string()])
        .args(files)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready 0 0");
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<String>>());
    if let Killed::After(time) = killed {
        std::thread::sleep(time);
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
    for line in reader.join().unwrap() {
        let words: Vec<&str> = line.split(' ').collect();
        // The last line may be cut off.
        let [what, thread, n] = words[..] else { continue };
        let (Ok(thread), Ok(n)) = (thread.parse(), n.parse()) else { continue };
        let last = match what {
            "made" => Last::Made,
            "renamed" => Last::Renamed,
            "removed" => Last::Removed,
            other => panic!("{other}"),
        };
        said.insert((thread, n), last);
    }
}

/// The CPU time of this thread, which does all the work of a partition without a thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

fn check(partition: &Partition, said: &BTreeMap<(u32, u32), Last>, when: &str) {
    let volume = partition.volume(VOLUME).unwrap();
    let of_snapshots = said.range((SNAPSHOTS, 0)..);
    let there: Vec<u32> =
        partition.snapshots_of(VOLUME).iter().map(|snapshot| snapshot.id().0 - VOLUME.0).collect();
    assert!(there.len() <= KEPT + 1, "{when}: {there:?}");
    for ((_, n), _) in of_snapshots.clone().filter(|(_, last)| **last == Last::Removed) {
        assert!(!there.contains(n), "{when}: snapshot {n} is there again");
    }
    if let Some(((_, n), _)) = of_snapshots.last() {
        assert!(there.contains(n), "{when}: snapshot {n} is lost");
    }
    for (&(thread, n), last) in said.range(..(SNAPSHOTS, 0)) {
        let directory = volume.lookup(VnodeId::ROOT, format!("t{thread}").as_bytes()).unwrap();
        let (plain, renamed) = (n.to_string(), format!("r{n}"));
        let found = |name: &str| match volume.lookup(directory, name.as_bytes()) {
            Ok(id) => Some(id),
            Err(VolumeError::NoEntry) => None,
            Err(error) => panic!("{when}: {error}"),
        };
        // What came after the last line may have been done, and not been said.
        let file = match last {
            Last::Made => found(&plain).or_else(|| if n % 5 == 0 { found(&renamed) } else { None }),
            Last::Renamed => found(&renamed),
            Last::Removed => {
                assert_eq!(found(&plain), None, "{when}: file {n} of thread {thread} is there again");
                continue;
            }
        };
        let Some(file) = file else {
            assert!(*last == Last::Made && n % 7 == 0, "{when}: file {n} of thread {thread} is lost");
            continue;
        };
        let length = n as usize % 7 * 5000;
        let mut data = vec![0; length + 1];
        let reader = volume.open(file, 0, u64::MAX).unwrap();
        assert_eq!(reader.read_at(0, &mut data).unwrap(), length, "{when}: file {n} of thread {thread}");
        assert!(data[..length].iter().all(|&b| b == (n % 251) as u8), "{when}: file {n} of thread {thread}");
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let kills = std::env::var("AFAR_KILLS").map_or(KILLS, |text| text.parse().expect("a number"));
    let folder = Folder::new("kill");
    let mut starts = Vec::new();
    let (mut total, mut longest) = (0, Duration::ZERO);
    for round in 0..kills {
        // What earlier rounds left is checked by fsck, and not each time anew, byte by byte.
        let mut said = BTreeMap::new();
        // From "just begun" to "in the midst of a checkpoint": a segment of 1 MiB is full in some 100 ms.
        let time = Duration::from_millis(u64::from(round * 37 % 400));
        run_and_kill(&folder, round, Killed::After(time), &mut said);
        total += said.len();
        let (begun, cpu) = (Instant::now(), cpu_time());
        let partition = Partition::open(&folder, Config { has_thread: false, ..Config::default() }).unwrap();
        starts.push(cpu_time() - cpu);
        longest = longest.max(begun.elapsed());
        let when = format!("round {round}");
        check(&partition, &said, &when);
        let report = fsck::check(&partition).unwrap();
        assert!(report.is_clean(), "{when}: {:#?}", report.findings);
        // Sometimes the next kill comes before what snapshots have shown has gone.
        if round % 2 == 0 {
            while partition.maintain().unwrap() {}
            let report = fsck::check(&partition).unwrap();
            assert!(report.is_clean(), "{when}, swept: {:#?}", report.findings);
        }
    }
    starts.sort();
    println!(
        "{total} files and snapshots were acknowledged in {kills} rounds; the starts took {starts:?} of CPU time, and {longest:?} at most"
    );
    assert!(total > kills as usize, "the load did something");
    // Starts that read all of the store would take many times this. The clock's time is longer on a busy machine.
    assert!(starts[starts.len() / 2] < Duration::from_secs(1), "opening took {starts:?}");
    assert!(longest < Duration::from_secs(30), "opening took {longest:?}");
}

/// A server that was killed again and again, soon after each start, came back slower each time: each run left the space of two
/// segments of the log, and each start read all of it.
#[test]
fn the_log_does_not_grow_with_each_kill() {
    const LOG_BYTES: u64 = 1 << 20;
    let folder = Folder::new("short-runs");
    let mut said = BTreeMap::new();
    for round in 0..10 {
        run_and_kill(&folder, round, Killed::AfterFiles(20), &mut said);
    }
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let log = files.filter(|file| file.file_name().to_string_lossy().starts_with("log."));
    let lengths: Vec<u64> = log.map(|file| file.metadata().unwrap().len()).collect();
    println!("the log: {lengths:?}");
    // The last run's segment and the one that it has made in advance, and what there was in the others.
    assert!(lengths.iter().sum::<u64>() < 4 * LOG_BYTES, "{lengths:?}");
    Partition::open(&folder, Config { has_thread: false, ..Config::default() }).unwrap();
}

#[test]
fn a_partition_is_open_once() {
    let folder = Folder::new("lock");
    let config = Config { sync: SyncPolicy::Every(Duration::from_micros(100)), ..Config::default() };
    for round in 0..40 {
        let first = Partition::open(&folder, config.clone());
        let first =
            first.unwrap_or_else(|error| panic!("it is free when it was closed, round {round}: {error}"));
        let error = Partition::open(&folder, config.clone()).unwrap_err();
        assert!(matches!(error, VolumeError::Io { .. }), "{error}");
        // When its thread is at work, most of the time.
        std::thread::sleep(Duration::from_micros(100 * (round % 20)));
        drop(first);
    }
}

/// Bits that flip in the files of a server that was killed: nothing panics, and all is there or something is told. AFAR_FLIPS sets another
/// number of flips.
#[test]
fn a_bit_that_flips_after_a_kill_is_told_or_harmless() {
    let flips = std::env::var("AFAR_FLIPS").map_or(20, |text| text.parse().expect("a number"));
    let (folder, copy) = (Folder::new("flips"), Folder::new("flipped"));
    let mut said = BTreeMap::new();
    run_and_kill(&folder, 0, Killed::AfterFiles(300), &mut said);
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = names.filter(|path| path.is_file()).collect();
    files.sort();
    files.retain(|path| std::fs::read(path).unwrap().iter().any(|&byte| byte != 0));
    let (mut told, mut random) = (0, 1_u64);
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    for _ in 0..flips {
        std::fs::remove_dir_all(&copy).unwrap();
        let copied = Command::new("cp").arg("-a").args([&folder, &copy]).status().unwrap();
        assert!(copied.success());
        let file = copy.join(files[below(files.len())].file_name().unwrap());
        let mut bytes = std::fs::read(&file).unwrap();
        let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        let at = used[below(used.len())];
        bytes[at] ^= 1 << below(8);
        std::fs::write(&file, bytes).unwrap();
        let when = format!("byte {at} of {}", file.display());
        match Partition::open(&copy, Config { has_thread: false, ..Config::default() }) {
            Err(error) => {
                assert!(
                    matches!(error, VolumeError::Damaged { .. }) && error.to_string().contains("rows."),
                    "{when}: {error}"
                );
                told += 1;
            }
            Ok(partition) => match fsck::check(&partition) {
                Ok(report) if report.is_clean() => check(&partition, &said, &when),
                Ok(_) | Err(VolumeError::Damaged { .. }) => told += 1,
                Err(error) => panic!("{when}: {error}"),
            },
        }
    }
    println!("{flips} flips, {told} told");
    assert!(told * 4 > flips, "too many hit what nobody reads: {told} of {flips}");
}
