//! Snapshots: what they show whatever becomes of their volume, and what cannot be done to them.

use super::reference::{assert_same, choose, expect, new_tree, read_tree, run};
use super::{assert_whole, finish, new_clone, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::records::VolumeRecord;
use crate::{
    Partition, SNAPSHOTS_MAX, SetStatus, SnapshotKind, StoreRange, VnodeId, VolumeError, VolumeKind,
};
use afs_wire::ids::{SecurityLevel, VolumeId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);

fn ids_of(partition: &Partition, volume: VolumeId) -> Vec<u32> {
    partition.snapshots_of(volume).iter().map(|snapshot| snapshot.id().0).collect()
}

#[test]
fn hundreds_of_snapshots_show_what_the_volume_was_also_after_a_kill_and_without_the_volume() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let writable = volume(&partition, RW.0);
    let mut rng = StdRng::seed_from_u64(48);
    let mut tree = new_tree();
    let mut trees = BTreeMap::new();
    for step in 0..300 {
        let operation = choose(&mut rng, &tree);
        let result = run(&writable, &operation, step);
        let _ = expect(&mut tree, &operation, result.unwrap_or(None));
        let snapshot =
            partition.make_snapshot(RW, VolumeId(1000 + step), step % 3 == 0, stamp(step)).unwrap();
        let info = snapshot.header().info;
        assert_eq!((info.name.as_str(), info.creation_date, info.parent), ("v1", stamp(step).now, RW));
        let kind = if step % 3 == 0 { SnapshotKind::Scheduled } else { SnapshotKind::Manual };
        assert_eq!(info.kind, VolumeKind::Snapshot(kind));
        snapshot.check_online().unwrap();
        trees.insert(1000 + step, tree.clone());
    }
    let disk = disk.after_kill();
    let partition = open(&disk);
    assert_eq!(ids_of(&partition, RW), trees.keys().copied().collect::<Vec<_>>());
    // Two of three go, and then the volume.
    for id in trees.keys().copied().filter(|id| id % 3 != 0).collect::<Vec<_>>() {
        partition.delete_volume(VolumeId(id)).unwrap();
        trees.remove(&id);
    }
    partition.delete_volume(RW).unwrap();
    settle(&partition);
    assert_whole(&partition, "without the volume");
    drop(partition);
    let partition = open(&disk.after_kill());
    for (id, tree) in &trees {
        let snapshot = partition.volume(VolumeId(*id)).unwrap();
        snapshot.check_online().unwrap();
        assert_same(&read_tree(&snapshot), tree, &format!("snapshot {id}"));
    }
    assert_eq!(ids_of(&partition, RW), trees.keys().copied().collect::<Vec<_>>());
    for id in trees.keys() {
        partition.delete_volume(VolumeId(*id)).unwrap();
    }
    settle(&partition);
    assert_eq!(crate::fsck::check(&partition).unwrap().data_files, 0, "all space came back");
}

#[test]
fn a_second_snapshot_of_one_second_is_refused() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    volume(&partition, RW.0);
    volume(&partition, 7);
    let make = |of, id, now| partition.make_snapshot(of, VolumeId(id), false, stamp(now)).map(drop);
    make(RW, 10, 5).unwrap();
    assert!(matches!(make(RW, 11, 5), Err(VolumeError::VolumeExists(VolumeId(10)))));
    assert!(matches!(make(RW, 10, 6), Err(VolumeError::VolumeExists(VolumeId(10)))));
    make(VolumeId(7), 12, 5).unwrap();
    make(RW, 13, 4).unwrap();
    assert_eq!(ids_of(&partition, RW), [13, 10], "by their times");
    assert_eq!(ids_of(&partition, VolumeId(7)), [12]);
}

#[test]
fn a_volume_has_no_more_snapshots_than_there_may_be() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    volume(&partition, RW.0);
    let most = SNAPSHOTS_MAX as u32;
    for n in 0..most {
        partition.make_snapshot(RW, VolumeId(10 + n), false, stamp(n)).unwrap();
    }
    let one_more = |id| partition.make_snapshot(RW, VolumeId(id), false, stamp(most)).map(drop);
    assert!(matches!(one_more(10 + most), Err(VolumeError::TooMany)));
    partition.delete_volume(VolumeId(10)).unwrap();
    one_more(10 + most).unwrap();
}

#[test]
fn only_a_whole_read_write_volume_gets_snapshots_and_they_stay_what_they_are() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let writable = volume(&partition, RW.0);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(2)).unwrap());
    let make = |of, id| partition.make_snapshot(of, VolumeId(id), false, stamp(id)).map(drop);
    make(RW, 10).unwrap();
    for of in [RO, VolumeId(10)] {
        assert!(matches!(make(of, 11), Err(VolumeError::ReadOnly(_))));
    }
    assert!(matches!(make(VolumeId(99), 11), Err(VolumeError::NoVolume(_))));
    assert!(matches!(partition.reclone_volume(RW, VolumeId(10), stamp(3)), Err(VolumeError::ReadOnly(_))));
    assert!(partition.begin_restore(VolumeId(10)).is_err());
    writable.change_info(|info| info.destroy_me = true).unwrap();
    assert!(matches!(make(RW, 11), Err(VolumeError::Busy(RW))));
    finish(&writable);
    // The volume's own header knows nothing of them, and a higher level counts for them at once.
    let info = writable.header().info;
    assert_eq!((info.clone, info.backup), (RO, VolumeId(0)));
    partition.set_level(RW, SecurityLevel::CRYPT).unwrap();
    assert_eq!(partition.volume(VolumeId(10)).unwrap().level(), SecurityLevel::CRYPT);
}

/// What had said that the file has no chunks was never removed.
#[test]
fn a_file_that_grows_again_after_it_was_cut_leaves_nothing_behind() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let volume = volume(&partition, RW.0);
    let file = volume.create_file(VnodeId::ROOT, b"f", &SetStatus::default(), stamp(1)).unwrap().vnode.id;
    let store = |length: u64| {
        let range = StoreRange { position: 0, length, file_length: 0 };
        let mut store = volume.begin_store(file, range).unwrap();
        store.write(&vec![1; length as usize]).unwrap();
        store.commit(&SetStatus::default(), stamp(1), false).unwrap();
    };
    for (n, length) in [(10, 20_000), (11, 0), (12, 20_000), (13, 100), (14, 9_000)] {
        store(length);
        partition.make_snapshot(RW, VolumeId(n), false, stamp(n)).unwrap();
        if n == 11 {
            partition.delete_volume(VolumeId(n)).unwrap();
        }
        settle(&partition);
        assert_whole(&partition, &format!("at {n}"));
    }
    for n in [13, 12, 10, 14] {
        partition.delete_volume(VolumeId(n)).unwrap();
        settle(&partition);
        assert_whole(&partition, &format!("without {n}"));
    }
}

/// The newest that is written is the last snapshot's, so an older replica cannot take the volume's place.
#[test]
fn a_replica_with_a_later_snapshot_is_not_filled_in_place() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    volume(&partition, RW.0);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(2)).unwrap());
    partition.make_snapshot(RW, VolumeId(10), false, stamp(3)).unwrap();
    partition.delete_volume(RW).unwrap();
    assert!(matches!(partition.begin_restore(RO), Err(VolumeError::ReadOnly(RO))));
    partition.delete_volume(VolumeId(10)).unwrap();
    assert!(partition.begin_restore(RO).is_ok());
}

/// A program of before snapshots knows the kinds 0, 1 and 2, and refuses every other row.
#[test]
fn the_row_of_a_snapshot_has_a_kind_that_older_programs_refuse() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    volume(&partition, RW.0);
    for (id, is_scheduled, kind) in [(10, false, 3), (11, true, 4)] {
        let record = partition.make_snapshot(RW, VolumeId(id), is_scheduled, stamp(id)).unwrap().record();
        let row = record.encode();
        // Behind the group, the snapshot, and the name with its length.
        assert_eq!(row[4 + 4 + 2 + "v1".len()], kind);
        assert_eq!(VolumeRecord::decode(&row).unwrap(), record);
    }
}
