//! A partition that a program of format 2 has left is converted: it shows what it showed, and gives all of its space back.

use afs_store::{Options, Schema, Store, StoreError};
use afs_volume::disk::{Cut, Disk, SimulatedDisk};
use afs_volume::{
    Config, NewClone, NewVolume, Partition, SetStatus, Stamp, StoreRange, VnodeId, Volume, VolumeKind, fsck,
};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The files of a partition that a program of format 2 has left when it was killed, made by [`left_by_us`] there: `= NAME` before each, then
/// its bytes as hexadecimal digits, and `COUNT*BYTE` for repeated ones.
const LEFT: &str = include_str!("format-2.rle");

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);
/// The changes that the volume has had, those before `RO` was cloned, and those before the last checkpoint.
const STEPS: u32 = 60;
const CLONED: u32 = 20;
const CHECKPOINT: u32 = 55;
/// A snapshot that was removed before the checkpoint.
const REMOVED: VolumeId = VolumeId(111);
/// The first byte of the rows that a note has, and those of vnodes and of files that are to be removed.
const NOTE: u8 = 0x09;
const VNODE: u8 = 0x10;
const GARBAGE: u8 = 0x06;

fn config() -> Config {
    Config {
        reserve_kib: 0,
        cache_bytes: 1 << 20,
        log_bytes: 64 << 10,
        has_thread: false,
        ..Config::default()
    }
}

fn open(disk: &SimulatedDisk) -> Partition {
    Partition::open_on(Arc::new(disk.clone()), Path::new("test"), config()).unwrap()
}

fn stamp(now: u32) -> Stamp {
    Stamp { who: ViceId(7), now: AfsTime(now) }
}

fn finish(volume: &Volume) {
    volume.change_info(|info| (info.in_service, info.destroy_me) = (true, false)).unwrap();
}

fn settle(partition: &Partition) {
    for _ in 0..100 {
        if !partition.maintain().unwrap() {
            return;
        }
    }
    panic!("maintenance does not come to an end");
}

fn assert_whole(partition: &Partition, when: &str) {
    let report = fsck::check(partition).unwrap();
    assert!(report.is_clean(), "{when}: {:#?}", report.findings);
}

/// What a change does to a file.
enum Change {
    Remove,
    Write(usize),
}

/// The change of a step: the file's name, and what becomes of it.
fn change(step: u32) -> (String, Change) {
    let change = match step {
        step if step % 11 == 10 => Change::Remove,
        step if step % 5 == 4 => Change::Write(0),
        step => Change::Write(step as usize * 3001 % 30_000),
    };
    (format!("file {}", step * 7 % 12), change)
}

/// What the volume has after so many steps.
fn expected(steps: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut files = BTreeMap::new();
    for step in 0..steps {
        match change(step) {
            (name, Change::Remove) => _ = files.remove(name.as_bytes()),
            (name, Change::Write(length)) => _ = files.insert(name.into_bytes(), vec![step as u8; length]),
        }
    }
    files
}

fn found(volume: &Arc<Volume>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let names = volume.entries(VnodeId::ROOT).unwrap();
    let files = names.into_iter().filter(|(name, _)| !name.starts_with(b"."));
    let read = |id| {
        let reader = volume.open(id, 0, u64::MAX).unwrap();
        let mut data = vec![0; reader.status().length as usize];
        assert_eq!(reader.read_at(0, &mut data).unwrap(), data.len());
        data
    };
    files.map(|(name, id)| (name, read(id))).collect()
}

/// Runs steps, and makes a snapshot after each sixth.
fn fill(partition: &Partition, steps: Range<u32>) {
    let volume = partition.volume(RW).unwrap();
    let set = SetStatus::default();
    for step in steps {
        let (name, change) = change(step);
        let file = volume.lookup(VnodeId::ROOT, name.as_bytes()).ok();
        match change {
            Change::Remove => {
                let _ = volume.remove_file(VnodeId::ROOT, name.as_bytes(), stamp(step));
            }
            Change::Write(length) => {
                let file = file.unwrap_or_else(|| {
                    let made = volume.create_file(VnodeId::ROOT, name.as_bytes(), &set, stamp(step));
                    made.unwrap().vnode.id
                });
                let range = StoreRange { position: 0, length: length as u64, file_length: 0 };
                let mut store = volume.begin_store(file, range).unwrap();
                store.write(&vec![step as u8; length]).unwrap();
                store.commit(&set, stamp(step), false).unwrap();
            }
        }
        if step % 6 == 5 {
            partition.make_snapshot(RW, VolumeId(100 + step), step % 4 == 1, stamp(step)).unwrap();
        }
    }
}

/// What a program of today leaves when it does what `LEFT` is from.
fn left_by_us() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let new = NewVolume {
        id: RW,
        name: "v".into(),
        kind: VolumeKind::ReadWrite,
        parent: VolumeId(0),
        max_quota_kib: 0,
        with_root: true,
    };
    finish(&partition.create_volume(&new, stamp(0)).unwrap());
    fill(&partition, 0..CLONED);
    let clone = NewClone { id: RO, name: "v.readonly".into(), kind: VolumeKind::ReadOnly };
    finish(&partition.clone_volume(RW, &clone, stamp(CLONED)).unwrap());
    fill(&partition, CLONED..CHECKPOINT);
    partition.delete_volume(REMOVED).unwrap();
    settle(&partition);
    drop(partition);
    let partition = open(&disk);
    fill(&partition, CHECKPOINT..STEPS);
    partition.sync().unwrap();
    disk.after_kill()
}

/// A program that knows no notes, and one that does.
#[derive(Debug)]
struct Version(u64);

impl Schema for Version {
    fn version(&self) -> u64 {
        self.0
    }
}

fn open_store(disk: &SimulatedDisk, version: u64) -> Result<Store, StoreError> {
    let options = Options { cache_bytes: 1 << 20, log_bytes: 64 << 10 };
    Store::open(Arc::new(disk.clone()), options, &Version(version))
}

/// The rows of a partition that nobody has open, by the first byte of their keys.
fn kinds(disk: &SimulatedDisk) -> BTreeMap<u8, usize> {
    let mut kinds = BTreeMap::new();
    let count = |key: &afs_store::Key, _: &afs_store::Bytes| {
        *kinds.entry(key.0[0]).or_default() += 1;
        Ok::<(), StoreError>(())
    };
    open_store(&disk.after_kill(), 3).unwrap().scan(&[], count).unwrap();
    kinds
}

fn left() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1 << 30);
    let byte = |digits: &str| u8::from_str_radix(digits, 16).unwrap();
    for file in LEFT.split("= ").skip(1) {
        let (name, lines) = file.split_once('\n').unwrap();
        let mut bytes = Vec::new();
        for line in lines.lines() {
            match line.split_once('*') {
                Some((count, digits)) => {
                    bytes.resize(bytes.len() + count.parse::<usize>().unwrap(), byte(digits));
                }
                None => bytes.extend((0..line.len()).step_by(2).map(|at| byte(&line[at..at + 2]))),
            }
        }
        disk.create(name).unwrap().write_at(0, &bytes).unwrap();
    }
    disk.sync_all().unwrap();
    disk
}

/// All volumes show what they did when they were left; the one that can be changed, what it has after so many steps.
fn check(partition: &Partition, steps: u32, when: &str) {
    assert!(partition.volume(RW).is_ok(), "{when}");
    for volume in partition.volumes() {
        let steps = match volume.id() {
            RW => steps,
            RO => CLONED,
            VolumeId(id) => id - 100 + 1,
        };
        assert!(found(&volume) == expected(steps), "{when}: volume {}", volume.id());
    }
}

fn ids(partition: &Partition) -> Vec<u32> {
    partition.volumes().iter().map(|volume| volume.id().0).collect()
}

#[test]
fn a_partition_of_format_2_is_converted_while_it_is_served() {
    for is_changed_before in [false, true] {
        let disk = left();
        let mut partition = open(&disk);
        assert_eq!(ids(&partition), [1, 2, 105, 117, 123, 129, 135, 141, 147, 153, 159]);
        assert_eq!(ids(&partition), ids(&open(&left_by_us())));
        assert_eq!(kinds(&disk).get(&NOTE), None);
        check(&partition, STEPS, "at first");
        let steps = if is_changed_before { STEPS + 8 } else { STEPS };
        fill(&partition, STEPS..steps);
        settle(&partition);
        assert_whole(&partition, "converted");
        check(&partition, steps, "converted");
        let noted = kinds(&disk)[&NOTE];
        if !is_changed_before {
            let ours = left_by_us();
            settle(&open(&ours));
            // Some of ours are of what has gone early.
            let ours = kinds(&ours)[&NOTE];
            assert!(noted > 50 && noted <= ours, "{noted} notes, and {ours} by today's program");
        }
        for id in [117, 2, 159, 105, 129, 135] {
            drop(partition);
            partition = open(&disk);
            partition.delete_volume(VolumeId(id)).unwrap();
            settle(&partition);
            assert_whole(&partition, &format!("without {id}"));
            check(&partition, steps, &format!("without {id}"));
        }
        partition.volumes().iter().for_each(|volume| partition.delete_volume(volume.id()).unwrap());
        settle(&partition);
        drop(partition);
        let left = kinds(&disk);
        let still = [NOTE, VNODE, GARBAGE].map(|kind| left.contains_key(&kind));
        assert_eq!(still, [false; 3], "{left:?}");
        assert_eq!(fsck::check(&open(&disk)).unwrap().data_files, 0);
    }
}

#[test]
fn a_program_of_format_2_refuses_what_was_converted() {
    let disk = left();
    let older = open_store(&disk, 2).unwrap();
    assert_eq!(older.version().unwrap(), 2);
    drop(older);
    drop(open(&disk));
    let refused = open_store(&disk, 2).unwrap_err().to_string();
    assert!(refused.contains("has format 3, and this program reads 2: use a newer one"), "{refused}");
    // It is converted once.
    assert_eq!(open_store(&disk, 3).unwrap().version().unwrap(), 3);
}

/// The conversion waits for room, and all else goes on.
#[test]
fn a_partition_of_format_2_on_a_full_disk_is_served() {
    let disk = left();
    let (capacity, free) = disk.space().unwrap();
    // Room for a segment of the log, and nothing else.
    disk.set_capacity(capacity - free + config().log_bytes);
    let partition = open(&disk);
    check(&partition, STEPS, "without room");
    drop(partition);
    disk.set_capacity(1 << 30);
    let partition = open(&disk);
    settle(&partition);
    assert_whole(&partition, "with room");
    check(&partition, STEPS, "with room");
    drop(partition);
    assert_eq!(open_store(&disk, 3).unwrap().version().unwrap(), 3);
}

/// A start that is killed or loses power in the middle is made up for by the next one.
#[test]
fn a_conversion_that_is_cut_off_is_made_again() {
    let whole = left();
    let before = whole.operations();
    let partition = open(&whole);
    settle(&partition);
    let operations = whole.operations() - before;
    drop(partition);
    let noted = kinds(&whole)[&NOTE];
    assert!(operations > 10, "{operations}");
    for cut in 0..operations {
        let disk = left();
        disk.set_cut(Some(Cut::After(cut)));
        let opened: Arc<dyn Disk> = Arc::new(disk.clone());
        if let Ok(partition) = Partition::open_on(opened, Path::new("test"), config()) {
            while matches!(partition.maintain(), Ok(true)) {}
        }
        let disk = if cut % 2 == 0 { disk.after_kill() } else { disk.after_power_loss(cut) };
        let partition = open(&disk);
        let when = format!("cut {cut} of {operations}");
        settle(&partition);
        assert_whole(&partition, &when);
        check(&partition, STEPS, &when);
        drop(partition);
        assert_eq!(kinds(&disk)[&NOTE], noted, "{when}");
    }
}
