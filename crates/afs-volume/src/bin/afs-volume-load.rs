//! A load to be killed: threads that make, write, rename and remove files in a volume, and say on stdout what was
//! acknowledged, a line each, before they go on. For `tests/kill.rs`.
//!
//!     afs-volume-load FOLDER THREADS FIRST [FILES]
//!
//! Each thread works in a directory of its own, `tN`. File `n` of a thread has `n % 7` times 5,000 bytes, all of them
//! `n % 251`; every fifth is renamed to `rN`, every seventh removed. Once so many FILES are made, the process kills itself.
//!
//! The first thread also makes a snapshot `n` after each sixteenth file, whose volume id is the volume's plus `n`, and removes all but the last
//! few. What it says of them has the number of no thread. A dump is open most of the time.
#![forbid(unsafe_code)]

use afs_volume::{
    Config, NewVolume, Partition, SetStatus, Stamp, StoreRange, SyncPolicy, Volume, VolumeError, VolumeKind,
};
use afs_volume::{VnodeId, VolumeState};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};
use rustix::process::{Signal, getpid, kill_process};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const VOLUME: VolumeId = VolumeId(536_870_912);
/// Stands for the thread in what is said of snapshots.
const SNAPSHOTS: u32 = u32::MAX;
/// Snapshots that are kept.
const KEPT: usize = 2;

fn stamp(n: u32) -> Stamp {
    Stamp { who: ViceId(1), now: AfsTime(n) }
}

fn say(what: &str, thread: u32, n: u32) {
    let mut out = std::io::stdout().lock();
    // A reader that is gone is the end, too.
    let _ = writeln!(out, "{what} {thread} {n}").and_then(|()| out.flush());
}

/// Makes a snapshot, and removes old ones.
fn keep_snapshots(partition: &Partition, n: u32) -> Result<(), VolumeError> {
    partition.make_snapshot(VOLUME, VolumeId(VOLUME.0 + n), true, stamp(n))?;
    say("made", SNAPSHOTS, n);
    for old in partition.snapshots_of(VOLUME).iter().rev().skip(KEPT) {
        partition.delete_volume(old.id())?;
        say("removed", SNAPSHOTS, old.id().0 - VOLUME.0);
    }
    Ok(())
}

/// `left` is how many files all threads make until the process kills itself.
fn work(
    partition: &Partition,
    volume: &Arc<Volume>,
    thread: u32,
    first: u32,
    left: &AtomicU32,
) -> Result<(), VolumeError> {
    let mut dump = None;
    let set = SetStatus::default();
    let name = format!("t{thread}").into_bytes();
    let directory = match volume.lookup(VnodeId::ROOT, &name) {
        Ok(directory) => directory,
        Err(_) => volume.make_dir(VnodeId::ROOT, &name, &set, stamp(first))?.vnode.id,
    };
    for n in first.. {
        let name = n.to_string().into_bytes();
        let file = volume.create_file(directory, &name, &set, stamp(n))?.vnode.id;
        let data = vec![(n % 251) as u8; n as usize % 7 * 5000];
        let range = StoreRange { position: 0, length: data.len() as u64, file_length: data.len() as u64 };
        let mut store = volume.begin_store(file, range)?;
        store.write(&data)?;
        store.commit(&set, stamp(n), false)?;
        say("made", thread, n);
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
        if n % 5 == 0 {
            volume.rename(directory, &name, directory, format!("r{n}").as_bytes(), stamp(n))?;
            say("renamed", thread, n);
        } else if n % 7 == 0 {
            volume.remove_file(directory, &name, stamp(n))?;
            say("removed", thread, n);
        }
        if thread == 0 && n % 16 == 9 {
            keep_snapshots(partition, n)?;
            if n % 3 == 0 {
                // The one before ends.
                dump.replace(volume.freeze()?);
            }
        }
    }
    Ok(())
}

fn run(folder: &Path, threads: u32, first: u32, files: u32) -> Result<(), VolumeError> {
    let config = Config {
        reserve_kib: 0,
        log_bytes: 1 << 20,
        // Often, so that it is killed while it sweeps too.
        sync: SyncPolicy::Every(Duration::from_millis(50)),
        ..Config::default()
    };
    let partition = Partition::open(folder, config)?;
    let volume = match partition.volume(VOLUME) {
        Ok(volume) => volume,
        Err(_) => {
            let new = NewVolume {
                id: VOLUME,
                name: "load".into(),
                kind: VolumeKind::ReadWrite,
                parent: VolumeId(0),
                max_quota_kib: 0,
                with_root: true,
            };
            let volume = partition.create_volume(&new, stamp(0))?;
            volume.change_info(|info| {
                info.destroy_me = false;
                info.in_service = true;
            })?;
            volume
        }
    };
    assert_eq!(volume.state(), VolumeState::Online);
    say("ready", 0, 0);
    let left = AtomicU32::new(files);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                (
                    t,
                    scope.spawn({
                        let (partition, volume, left) = (&partition, &volume, &left);
                        move || work(partition, volume, t, first, left)
                    }),
                )
            })
            .collect();
        workers.into_iter().try_for_each(|(_, worker)| worker.join().expect("no thread panics"))
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse().ok());
    let (Some(folder), Some(threads), Some(first)) = (args.get(1), number(2), number(3)) else {
        eprintln!("Usage: afs-volume-load FOLDER THREADS FIRST [FILES]");
        return ExitCode::from(2);
    };
    let files = number(4).unwrap_or(u32::MAX);
    match run(Path::new(folder), threads, first, files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("afs-volume-load: {error}");
            ExitCode::FAILURE
        }
    }
}
