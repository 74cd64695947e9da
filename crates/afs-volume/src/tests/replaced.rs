//! What a snapshot costs when it goes: a sweep looks at what it frees and at little else, whatever the volume has and whoever reads it
//! meanwhile, and leaves no row behind.

use super::held::assert_counted;
use super::restore::{Tree, change, get, restore, tree};
use super::{assert_whole, config, finish, new_clone, open, settle, stamp, volume};
use crate::disk::{Disk, SimulatedDisk};
use crate::group::sweep;
use crate::keys::{Replaced, Snapshot, VnodeKey};
use crate::{Frozen, Partition, SetStatus, StoreRange, VnodeId, Volume, VolumeError, repair};
use afs_store::{Batch, lock};
use afs_wire::ids::{VnodeNumber, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const RW: VolumeId = VolumeId(1);
/// Snapshots that a schedule keeps.
const KEPT: u32 = 24;

/// The rows of vnodes on a partition, and the notes of what was replaced.
pub(super) fn rows(partition: &Partition) -> (usize, usize) {
    let (mut vnodes, mut notes) = (0, 0);
    let scanned = partition.shared().store.scan::<VolumeError>(&[], |key, _| {
        vnodes += usize::from(VnodeKey::parse(key).is_some());
        notes += usize::from(Replaced::parse(key).is_some());
        Ok(())
    });
    scanned.unwrap();
    (vnodes, notes)
}

/// Sweeps, and says how many rows of vnodes went, and how many rows were looked at.
fn swept(partition: &Partition, of: VolumeId) -> (usize, u64) {
    let group = partition.volume(of).unwrap().group.clone();
    assert!(lock(&group.state).is_to_be_swept());
    let (before, _) = rows(partition);
    let looked_at = sweep(&partition.shared(), &group, &|| false).unwrap();
    (before - rows(partition).0, looked_at)
}

fn store(volume: &Arc<Volume>, file: VnodeId, length: u64, n: u8) {
    let range = StoreRange { position: 0, length, file_length: 0 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(&vec![n; length as usize]).unwrap();
    store.commit(&SetStatus::default(), stamp(2), false).unwrap();
}

/// 1,000 files and 120 snapshots, between which three files are written each time, and each file in one of them.
fn with_snapshots(partition: &Partition) -> (Arc<Volume>, Vec<VnodeId>) {
    let volume = volume(partition, RW.0);
    let make = |n: u32| {
        let (name, set) = (format!("{n}"), SetStatus::default());
        volume.create_file(VnodeId::ROOT, name.as_bytes(), &set, stamp(1)).unwrap().vnode.id
    };
    let files: Vec<VnodeId> = (0..1000).map(make).collect();
    for n in 0..120 {
        partition.make_snapshot(RW, VolumeId(1000 + n), true, stamp(n)).unwrap();
        (0..3).for_each(|file| store(&volume, files[file], 20_000, n as u8));
        (0..5).for_each(|file| store(&volume, files[100 + 5 * n as usize + file], 100, n as u8));
        if n % 10 == 7 {
            volume.remove_file(VnodeId::ROOT, format!("{}", 99 - n / 10).as_bytes(), stamp(n)).unwrap();
        }
    }
    settle(partition);
    (volume, files)
}

#[test]
fn to_remove_a_snapshot_costs_what_it_frees_and_not_what_the_volume_has() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let (volume, _) = with_snapshots(&partition);
    let _dump = volume.freeze().unwrap();
    let (all, notes) = rows(&partition);
    println!("{all} rows of vnodes, {notes} notes");
    // In the middle, the oldest, the newest; then those that are left behind one that went before, and the last one of ten in a row.
    let singly = [1060, 1000, 1119, 1061, 1059, 1080, 1081, 1082, 1083, 1084, 1085, 1086, 1087, 1088, 1089];
    for id in singly {
        partition.delete_volume(VolumeId(id)).unwrap();
        let (freed, looked_at) = swept(&partition, RW);
        // The status of eight files, or status and data of three, at least.
        assert!(freed >= 8, "{id}: {freed} rows");
        assert!(looked_at <= 5 * freed as u64 + 20, "{id}: {looked_at} rows looked at for {freed}");
    }
    // Of many at once, what is between two that stay is looked at once.
    (1010..1050).for_each(|id| partition.delete_volume(VolumeId(id)).unwrap());
    let (freed, looked_at) = swept(&partition, RW);
    assert!(freed >= 12 * 40 && looked_at <= 5 * freed as u64 + 20, "{looked_at} rows for {freed}");
    assert_whole(&partition, "without fifty-five");
}

#[test]
fn what_a_dump_alone_has_read_is_all_that_is_looked_at_when_it_ends() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let (volume, files) = with_snapshots(&partition);
    store(&volume, files[50], 20_000, 1);
    let dump = volume.freeze().unwrap();
    store(&volume, files[50], 20_000, 2);
    drop(dump);
    let (freed, looked_at) = swept(&partition, RW);
    assert!((1..10).contains(&freed) && looked_at <= 5 * freed as u64, "{looked_at} rows for {freed}");
    assert_whole(&partition, "after the dump");
    assert!(!lock(&volume.group.state).is_to_be_swept());
    // A dump of a volume that nobody changes leaves nothing to be done.
    drop(volume.freeze().unwrap());
    let (freed, looked_at) = swept(&partition, RW);
    assert!(freed == 0 && looked_at <= 1, "{looked_at} rows for {freed}");
}

/// A dump of a large volume goes on for hours, in which hundreds of snapshots come and go.
#[test]
fn nothing_piles_up_while_a_dump_goes_on() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, RW.0);
    let make = |name: &[u8]| {
        volume.create_file(VnodeId::ROOT, name, &SetStatus::default(), stamp(1)).unwrap().vnode.id
    };
    let [long, short] = [make(b"long"), make(b"short")];
    store(&volume, long, 20_000, b'a');
    let dump = volume.freeze().unwrap();
    let mut most = (0, 0, 0);
    for n in 0..400 {
        store(&volume, long, 20_000, n as u8);
        store(&volume, short, 100, n as u8);
        partition.make_snapshot(RW, VolumeId(100 + n), true, stamp(n)).unwrap();
        if n >= KEPT {
            partition.delete_volume(VolumeId(100 + n - KEPT)).unwrap();
        }
        settle(&partition);
        let (vnodes, notes) = rows(&partition);
        let files = crate::fsck::check(&partition).unwrap().data_files;
        most = (most.0.max(vnodes), most.1.max(notes), most.2.max(files));
        let state = lock(&volume.group.state);
        assert!(state.gone.is_empty() && state.views.len() <= KEPT as usize + 1, "{:?}", state.gone);
    }
    // In each snapshot the status of two files, three chunks, and a row of data: in one more for the volume, and one for the dump. And the
    // root directory.
    let versions = KEPT as usize + 2;
    assert!(most.0 <= 6 * versions + 10 && most.1 <= most.0 && most.2 <= 3 * versions as u64, "{most:?}");
    // Also when all else goes, the volume too.
    (0..KEPT).for_each(|n| partition.delete_volume(VolumeId(100 + 399 - n)).unwrap());
    partition.delete_volume(RW).unwrap();
    settle(&partition);
    assert_eq!(super::reference::read_all(&dump, long), vec![b'a'; 20_000]);
    assert_eq!(crate::fsck::check(&partition).unwrap().data_files, 3);
    let killed = disk.after_kill();
    drop(dump);
    settle(&partition);
    assert_eq!(rows(&partition), (0, 0));
    drop((volume, partition));
    let partition = open(&killed);
    settle(&partition);
    assert_whole(&partition, "killed while it was dumped");
    assert_eq!(rows(&partition), (0, 0));
}

#[test]
fn a_repair_makes_missing_notes_and_removes_those_of_nothing() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, RW.0);
    let file = volume.create_file(VnodeId::ROOT, b"f", &SetStatus::default(), stamp(1)).unwrap().vnode.id;
    store(&volume, file, 20_000, 1);
    partition.make_snapshot(RW, VolumeId(10), false, stamp(1)).unwrap();
    store(&volume, file, 20_000, 2);
    settle(&partition);
    let (_, notes) = rows(&partition);
    let mut batch = Batch::default();
    let damage = partition.shared().store.scan::<VolumeError>(&[], |key, _| {
        if let Some(note) = Replaced::parse(key) {
            batch.delete(key.clone());
            let version = VnodeKey { snapshot: note.at, vnode: VnodeNumber(98), ..note.version };
            batch.put(Replaced { at: Snapshot(note.at.0 + 1), version }.key(), vec![]);
        }
        Ok(())
    });
    damage.unwrap();
    partition.shared().store.submit(batch).unwrap();
    drop((volume, partition));
    let opened: Arc<dyn Disk> = Arc::new(disk.clone());
    let repaired = repair::repair(&opened, Path::new("test"), &config(), None, stamp(3)).unwrap();
    let said: Vec<String> = repaired.repairs.iter().map(ToString::to_string).collect();
    let expected =
        format!("volume group 1: notes that {notes} rows were replaced, and removes {notes} such notes");
    assert_eq!(said, [expected]);
    assert!(repaired.left.is_clean(), "{:?}", repaired.left.findings);
    assert_eq!(rows(&open(&disk)).1, notes);
}

/// A restore brings a file under a number that a removed file had, and is not as long. What the removed one had behind that was shown again when
/// the snapshot went that had the file cut.
#[test]
fn a_restored_file_never_shows_what_another_of_its_number_had() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let volume = volume(&partition, RW.0);
    let file = volume.create_file(VnodeId::ROOT, b"f", &SetStatus::default(), stamp(1)).unwrap().vnode.id;
    store(&volume, file, 9_000, b'a');
    let wanted = tree(&volume);
    store(&volume, file, 20_000, b'b');
    partition.make_snapshot(RW, VolumeId(10), false, stamp(10)).unwrap();
    store(&volume, file, 0, 0);
    partition.make_snapshot(RW, VolumeId(11), false, stamp(11)).unwrap();
    volume.remove_file(VnodeId::ROOT, b"f", stamp(2)).unwrap();
    partition.make_snapshot(RW, VolumeId(12), false, stamp(12)).unwrap();
    let volume = restore(&partition, RW, &wanted, &Tree::new()).unwrap();
    settle(&partition);
    partition.delete_volume(VolumeId(11)).unwrap();
    settle(&partition);
    assert_whole(&partition, "without the snapshot that has it cut");
    let range = StoreRange { position: 20_000, length: 1, file_length: u64::MAX };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(b"c").unwrap();
    store.commit(&SetStatus::default(), stamp(20), false).unwrap();
    let expected = [&[b'a'; 9_000][..], &[0; 11_000], b"c"].concat();
    assert!(super::reference::read_all(&volume, file) == expected);
    let before = get(&partition, 10);
    assert!(super::reference::read_all(&before, file) == [b'b'; 20_000]);
}

/// Snapshots, restores over their volume, dumps and removals in any order.
fn history(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut disk = SimulatedDisk::new(1 << 30);
    let mut partition = open(&disk);
    volume(&partition, RW.0);
    let mut trees: BTreeMap<u32, Tree> = BTreeMap::new();
    let mut dumps: Vec<(Frozen, Tree)> = Vec::new();
    let mut next = 10;
    for step in 0..250 {
        let when = format!("seed {seed}, step {step}");
        let writable = get(&partition, RW.0);
        match rng.random_range(0..40) {
            0..4 if trees.len() < 12 => {
                partition.make_snapshot(RW, VolumeId(next), true, stamp(next)).unwrap();
                trees.insert(next, tree(&writable));
                next += 1;
            }
            4 => {
                let clone = VolumeId(next);
                finish(&partition.clone_volume(RW, &new_clone(clone.0), stamp(next)).unwrap());
                trees.insert(next, tree(&writable));
                next += 1;
            }
            5..8 if !trees.is_empty() => {
                let id = *trees.keys().nth(rng.random_range(0..trees.len())).unwrap();
                partition.delete_volume(VolumeId(id)).unwrap();
                trees.remove(&id);
            }
            8 if !trees.is_empty() => {
                let wanted = &trees[trees.keys().nth(rng.random_range(0..trees.len())).unwrap()];
                let base = if rng.random() { tree(&writable) } else { Tree::new() };
                restore(&partition, RW, wanted, &base).unwrap();
            }
            9 if dumps.len() < 3 => dumps.push((writable.freeze().unwrap(), tree(&writable))),
            10..12 if !dumps.is_empty() => {
                let (dump, before) = dumps.swap_remove(rng.random_range(0..dumps.len()));
                assert!(tree(&dump) == before, "{when}: a dump");
            }
            12 | 13 => drop(partition.maintain().unwrap()),
            14 => {
                settle(&partition);
                assert_whole(&partition, &when);
                assert_counted(&partition, RW, &when);
            }
            15 if rng.random() => {
                dumps.clear();
                drop(writable);
                disk = disk.after_kill();
                partition = open(&disk);
                assert_whole(&partition, &when);
            }
            _ => change(&writable, &mut rng, step),
        }
    }
    let when = format!("seed {seed}, at the end");
    dumps.into_iter().for_each(|(dump, before)| assert!(tree(&dump) == before, "{when}"));
    settle(&partition);
    assert_whole(&partition, &when);
    assert_counted(&partition, RW, &when);
    trees.iter().for_each(|(id, before)| assert!(tree(&get(&partition, *id)) == *before, "{when}: {id}"));
    trees.keys().for_each(|id| partition.delete_volume(VolumeId(*id)).unwrap());
    settle(&partition);
    assert_whole(&partition, &when);
    assert_eq!(rows(&partition).1, 0, "{when}: notes without snapshots");
    partition.delete_volume(RW).unwrap();
    settle(&partition);
    assert_eq!((rows(&partition), crate::fsck::check(&partition).unwrap().data_files), ((0, 0), 0), "{when}");
}

#[test]
fn snapshots_show_what_they_did_whatever_is_restored_dumped_and_removed_beside() {
    (0..40).for_each(history);
}
