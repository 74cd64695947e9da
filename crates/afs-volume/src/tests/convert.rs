//! Read-only volumes that become the read-write volume of their group: clones whose original was removed, and ones that came from elsewhere;
//! and ones that become clones of a volume that has come.

use super::{assert_whole, finish, new_clone, new_volume, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::{NewVolume, Partition, SetStatus, StoreRange, VnodeId, Volume, VolumeError, VolumeKind};
use afs_wire::ids::VolumeId;
use std::sync::Arc;

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);

fn store(volume: &Arc<Volume>, name: &str, bytes: &[u8]) {
    let found = volume.lookup(VnodeId::ROOT, name.as_bytes()).ok();
    let file = found.unwrap_or_else(|| {
        volume.create_file(VnodeId::ROOT, name.as_bytes(), &SetStatus::default(), stamp(3)).unwrap().vnode.id
    });
    let range = StoreRange { position: 0, length: bytes.len() as u64, file_length: bytes.len() as u64 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(bytes).unwrap();
    store.commit(&SetStatus::default(), stamp(5), false).unwrap();
}

fn load(volume: &Arc<Volume>, name: &str) -> Vec<u8> {
    let file = volume.lookup(VnodeId::ROOT, name.as_bytes()).unwrap();
    let mut data = vec![0; volume.status(file).unwrap().length as usize];
    volume.open(file, 0, u64::MAX).unwrap().read_at(0, &mut data).unwrap();
    data
}

/// A volume, released, changed and removed.
fn left_alone(partition: &Partition) {
    let original = volume(partition, RW.0);
    store(&original, "same", &[1; 30_000]);
    store(&original, "changed", &[2; 30_000]);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(4)).unwrap());
    store(&original, "changed", &[3; 50_000]);
    store(&original, "new", &[4; 50_000]);
    original.remove_file(VnodeId::ROOT, b"same", stamp(5)).unwrap();
    partition.delete_volume(RW).unwrap();
}

fn check(partition: &Partition) {
    let converted = partition.volume(RW).unwrap();
    assert!(matches!(partition.volume(RO), Err(VolumeError::NoVolume(RO))));
    let info = converted.header().info;
    assert_eq!((info.name.as_str(), info.kind, info.parent), ("v", VolumeKind::ReadWrite, RW));
    assert!(load(&converted, "same") == [1; 30_000] && load(&converted, "changed") == [2; 30_000]);
    assert!(converted.lookup(VnodeId::ROOT, b"new").is_err());
}

#[test]
fn a_clone_that_was_left_alone_becomes_what_it_shows_and_can_be_changed() {
    for is_swept in [false, true] {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        left_alone(&partition);
        if is_swept {
            settle(&partition);
        }
        let converted = partition.convert_to_read_write(RO, RW, "v").unwrap();
        check(&partition);
        store(&converted, "same", b"written");
        store(&converted, "later", &[5; 20_000]);
        finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(9)).unwrap());
        store(&converted, "later", b"written");
        settle(&partition);
        assert_whole(&partition, "after changes");
        drop((converted, partition));
        let partition = open(&disk.after_kill());
        let [converted, clone] = [RW, RO].map(|id| partition.volume(id).unwrap());
        assert!(load(&converted, "same") == b"written" && load(&converted, "later") == b"written");
        assert!(load(&clone, "later") == [5; 20_000] && load(&clone, "changed") == [2; 30_000]);
        assert_whole(&partition, "after a start");
    }
}

#[test]
fn a_conversion_is_there_after_a_kill() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    left_alone(&partition);
    partition.convert_to_read_write(RO, RW, "v").unwrap();
    let partition = open(&disk.after_kill());
    check(&partition);
    settle(&partition);
    check(&partition);
    assert_whole(&partition, "after a kill");
}

#[test]
fn a_read_only_volume_that_came_from_elsewhere_only_gets_another_id() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let new = NewVolume { kind: VolumeKind::ReadOnly, parent: RW, ..new_volume(RO.0) };
    let replica = partition.create_volume(&new, stamp(1)).unwrap();
    finish(&replica);
    store(&replica, "same", &[1; 30_000]);
    store(&replica, "changed", &[2; 30_000]);
    let converted = partition.convert_to_read_write(RO, RW, "v").unwrap();
    check(&partition);
    store(&converted, "more", b"more");
    assert!(matches!(replica.check_online(), Err(VolumeError::NoVolume(RO))));
    settle(&partition);
    assert_whole(&partition, "after it was converted");
}

#[test]
fn what_is_not_the_last_of_its_group_stays_as_it_is() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let original = volume(&partition, RW.0);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(4)).unwrap());
    store(&original, "new", b"new");
    let later = VolumeId(3);
    finish(&partition.clone_volume(RW, &new_clone(later.0), stamp(5)).unwrap());
    let exists = |id| matches!(partition.convert_to_read_write(RO, RW, "v"), Err(VolumeError::VolumeExists(is)) if is == id);
    assert!(exists(RW));
    partition.delete_volume(RW).unwrap();
    assert!(exists(later), "the backup volume would lose what it shows");
    let frozen = partition.volume(later).unwrap().freeze().unwrap();
    partition.delete_volume(later).unwrap();
    assert!(matches!(partition.convert_to_read_write(RO, RW, "v"), Err(VolumeError::Busy(RO))));
    drop(frozen);
    partition.convert_to_read_write(RO, RW, "v").unwrap();
    settle(&partition);
    assert_whole(&partition, "at the end");
}

/// A replica was there before its read-write volume, or that has been away.
#[test]
fn a_replica_becomes_a_clone_of_the_volume_that_has_come_beside_it() {
    for was_clone in [false, true] {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        if was_clone {
            left_alone(&partition);
        } else {
            let new = NewVolume { kind: VolumeKind::ReadOnly, parent: RW, ..new_volume(RO.0) };
            let replica = partition.create_volume(&new, stamp(1)).unwrap();
            finish(&replica);
            store(&replica, "same", &[1; 30_000]);
        }
        let original = volume(&partition, RW.0);
        store(&original, "same", &[6; 40_000]);
        let old = partition.volume(RO).unwrap();
        let clone = partition.reclone_volume(RW, RO, stamp(8)).unwrap();
        assert!(matches!(old.check_online(), Err(VolumeError::NoVolume(RO))));
        store(&original, "same", &[7; 10]);
        assert!(load(&clone, "same") == [6; 40_000]);
        assert!(matches!(partition.reclone_volume(RO, RW, stamp(8)), Err(VolumeError::ReadOnly(RW))));
        settle(&partition);
        assert_whole(&partition, "after a clone");
        drop((original, clone, old, partition));
        let partition = open(&disk.after_kill());
        let clone = partition.volume(RO).unwrap();
        assert!(load(&clone, "same") == [6; 40_000] && clone.header().info.in_service);
        settle(&partition);
        assert_whole(&partition, "after a start");
    }
}

/// The next release has to reach a replica that stayed when its read-write volume moved to another server.
#[test]
fn a_clone_that_was_left_alone_can_be_filled_and_is_as_it_was_if_that_fails() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    left_alone(&partition);
    drop(partition.begin_restore(RO).unwrap());
    let replica = partition.volume(RO).unwrap();
    assert!(load(&replica, "same") == [1; 30_000] && load(&replica, "changed") == [2; 30_000]);
    let mut restore = partition.begin_restore(RO).unwrap();
    for status in replica.vnodes(afs_wire::ids::VnodeNumber(0), 100).unwrap() {
        restore.unchanged(status.id.vnode).unwrap();
    }
    let info = restore.volume().header().info;
    let filled = restore.commit(info, 0).unwrap();
    assert!(load(&filled, "same") == [1; 30_000]);
    settle(&partition);
    assert_whole(&partition, "after it was filled");
    let original = VolumeId(5);
    volume(&partition, original.0);
    finish(&partition.clone_volume(original, &new_clone(6), stamp(9)).unwrap());
    assert!(matches!(partition.begin_restore(VolumeId(6)), Err(VolumeError::ReadOnly(VolumeId(6)))));
}
