//! What snapshots hold, as it is counted: as much as comes back without them, and the same after a kill.

use super::{assert_whole, finish, new_clone, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::group::{Versions, replaced};
use crate::keys::{self, Part, Snapshot, VnodeKey};
use crate::records::ChunkRecord;
use crate::{Partition, SetStatus, StoreRange, VnodeId, Volume, VolumeError};
use afs_store::lock;
use afs_wire::ids::{VnodeNumber, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);

/// Checks that what is counted of each view of a volume's group is what the rows of its vnodes say. All has been swept.
pub(super) fn assert_counted(partition: &Partition, of: VolumeId, when: &str) {
    let group = partition.volume(of).unwrap().group.clone();
    let state = lock(&group.state);
    if state.views.is_empty() {
        return;
    }
    let mut vnodes: BTreeMap<VnodeNumber, Versions> = BTreeMap::new();
    let mut bytes: BTreeMap<(VnodeNumber, Part, Snapshot), u64> = BTreeMap::new();
    let store = &partition.shared().store;
    let scanned = store.scan::<VolumeError>(&keys::group_prefix(group.id), |key, row| {
        let Some(VnodeKey { vnode, part, snapshot, .. }) = VnodeKey::parse(key) else { return Ok(()) };
        let size = match part {
            Part::Chunk(_) => ChunkRecord::decode(row)?.map_or(0, |chunk| chunk.length.into()),
            _ => row.len() as u64,
        };
        bytes.insert((vnode, part, snapshot), size);
        vnodes.entry(vnode).or_default().entry(part).or_default().push((snapshot, row.clone()));
        Ok(())
    });
    scanned.unwrap();
    let mut expected: BTreeMap<Snapshot, u64> = state.views.keys().map(|view| (*view, 0)).collect();
    for (vnode, rows) in &vnodes {
        for (at, part, snapshot) in replaced(rows, &[]) {
            let view = state.views.range(..at).next_back().map_or(Snapshot::NOTHING, |(view, _)| *view);
            *expected.entry(view).or_default() += bytes[&(*vnode, part, snapshot)];
        }
    }
    for (view, bytes) in expected {
        assert_eq!(state.held_by(view), Some(bytes), "{when}: {view:?}");
    }
}

fn make(volume: &Arc<Volume>, name: &str) -> VnodeId {
    volume.create_file(VnodeId::ROOT, name.as_bytes(), &SetStatus::default(), stamp(1)).unwrap().vnode.id
}

fn store(volume: &Arc<Volume>, file: VnodeId, length: u64) {
    let range = StoreRange { position: 0, length, file_length: 0 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(&vec![7; length as usize]).unwrap();
    store.commit(&SetStatus::default(), stamp(2), false).unwrap();
}

fn snapshot(partition: &Partition, id: u32) {
    partition.make_snapshot(RW, VolumeId(id), true, stamp(id)).unwrap();
}

fn held(partition: &Partition, id: u32) -> u64 {
    partition.volume(VolumeId(id)).unwrap().held_bytes().unwrap()
}

#[test]
fn a_snapshot_holds_what_was_changed_after_it_and_all_older_ones_go_with_it() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let writable = volume(&partition, RW.0);
    let [old, often, gone] = ["old", "often", "gone"].map(|name| make(&writable, name));
    [old, often, gone].iter().for_each(|file| store(&writable, *file, 100_000));
    snapshot(&partition, 10);
    assert_eq!((held(&partition, 10), writable.held_bytes()), (0, None), "all of it is still in the volume");
    store(&writable, often, 100_000);
    // What is replaced again, and no snapshot has seen, is not held.
    (0..5).for_each(|_| store(&writable, often, 90_000));
    snapshot(&partition, 11);
    store(&writable, often, 80_000);
    writable.remove_file(VnodeId::ROOT, b"gone", stamp(3)).unwrap();
    let near = |bytes: u64, expected: u64| (expected..expected + 10_000).contains(&bytes);
    assert!(near(held(&partition, 10), 100_000), "{}", held(&partition, 10));
    // What it has of 'often', and 'gone', which the older one has too.
    assert!(near(held(&partition, 11), 190_000), "{}", held(&partition, 11));
    settle(&partition);
    assert_counted(&partition, RW, "two snapshots");
    let before = [10, 11].map(|id| held(&partition, id));

    let partition = open(&disk.after_kill());
    assert_eq!(partition.volume(VolumeId(10)).unwrap().held_bytes(), None, "nobody has counted");
    settle(&partition);
    assert_eq!([10, 11].map(|id| held(&partition, id)), before);
    // Without the newer one, the older one holds the file that both have had.
    partition.delete_volume(VolumeId(11)).unwrap();
    assert!(partition.gives_space_back() && partition.volume(RW).unwrap().gives_space_back());
    settle(&partition);
    assert!(!partition.gives_space_back());
    assert!(near(held(&partition, 10), 200_000), "{}", held(&partition, 10));
    assert_counted(&partition, RW, "one snapshot");
    partition.delete_volume(VolumeId(10)).unwrap();
    settle(&partition);
    assert_whole(&partition, "no snapshots");
}

#[test]
fn a_later_clone_holds_what_it_has_and_the_last_one_of_a_removed_volume_holds_it_all() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let writable = volume(&partition, RW.0);
    let file = make(&writable, "file");
    store(&writable, file, 100_000);
    snapshot(&partition, 10);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(11)).unwrap());
    store(&writable, file, 50_000);
    settle(&partition);
    assert_eq!(held(&partition, 10), 0, "without it nothing comes back");
    assert!(held(&partition, RO.0) >= 100_000);
    partition.delete_volume(RO).unwrap();
    settle(&partition);
    assert!((100_000..110_000).contains(&held(&partition, 10)));
    assert_counted(&partition, RW, "without the clone");
    snapshot(&partition, 12);
    partition.delete_volume(RW).unwrap();
    settle(&partition);
    assert!((50_000..60_000).contains(&held(&partition, 12)), "{}", held(&partition, 12));
    assert_whole(&partition, "without the volume");
}
