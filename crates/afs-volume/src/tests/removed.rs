//! What a removed volume leaves: a snapshot until a date, of which it is made again.

use super::reference::{Tree, assert_same, choose, expect, new_tree, read_tree, run};
use super::{assert_whole, finish, new_clone, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::{Partition, Schedule, SnapshotKind, Volume, VolumeError, VolumeKind, VolumeState};
use afs_wire::ids::{AfsTime, SecurityLevel, VolumeId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);
const LEFT: VolumeId = VolumeId(20);
const UNTIL: AfsTime = AfsTime(1000);

fn leave(partition: &Partition, id: VolumeId) {
    partition.remove_leaving(RW, id, UNTIL, stamp(500)).unwrap();
}

#[test]
fn a_removed_volume_comes_back_as_it_was_and_can_be_changed() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let writable = volume(&partition, RW.0);
    let mut rng = StdRng::seed_from_u64(481);
    let mut tree = new_tree();
    let mut change = |writable: &Arc<Volume>, tree: &mut Tree, from: u32| {
        for step in from..from + 150 {
            let operation = choose(&mut rng, tree);
            let result = run(writable, &operation, step);
            let _ = expect(tree, &operation, result.unwrap_or(None));
        }
    };
    change(&writable, &mut tree, 0);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(200)).unwrap());
    partition.make_snapshot(RW, VolumeId(10), false, stamp(201)).unwrap();
    let earlier = tree.clone();
    change(&writable, &mut tree, 202);
    let schedule = Schedule::of([1, 2, 3, 4]);
    writable.change_info(|info| (info.max_quota_kib, info.schedule) = (1 << 20, Some(schedule))).unwrap();
    partition.set_level(RW, SecurityLevel::AUTH).unwrap();
    let before = writable.header();
    // As vos does before it removes one.
    writable.change_info(|info| (info.in_service, info.destroy_me) = (false, true)).unwrap();
    leave(&partition, LEFT);
    assert!(matches!(partition.volume(RW), Err(VolumeError::NoVolume(RW))));
    assert!(matches!(writable.check_online(), Err(VolumeError::NoVolume(RW))));

    let partition = open(&disk.after_kill());
    settle(&partition);
    assert_whole(&partition, "removed");
    let left = partition.volume(LEFT).unwrap();
    let info = left.header().info;
    assert_eq!(info.kind, VolumeKind::Snapshot(SnapshotKind::Removed));
    assert_eq!((info.parent, info.creation_date, info.expiration_date), (RW, AfsTime(500), UNTIL));
    assert_eq!((left.state(), left.is_writable()), (VolumeState::Online, false));
    assert_same(&read_tree(&left), &tree, "what is left");

    // Also while somebody dumps it.
    let dumped = left.freeze().unwrap();
    let writable = partition.bring_back(LEFT, RW, "again").unwrap();
    assert!(matches!(partition.volume(LEFT), Err(VolumeError::NoVolume(LEFT))));
    let after = writable.header();
    assert_eq!((after.used_kib, after.vnode_count), (before.used_kib, before.vnode_count));
    let info = after.info;
    assert_eq!((info.name.as_str(), info.kind, info.parent), ("again", VolumeKind::ReadWrite, RW));
    assert_eq!((info.clone, info.schedule, info.level), (RO, Some(schedule), SecurityLevel::AUTH));
    assert_eq!((info.max_quota_kib, info.expiration_date), (1 << 20, AfsTime(0)));
    assert_eq!(info.update_counter, before.info.update_counter);
    assert_same(&read_tree(&writable), &tree, "brought back");
    let then = tree.clone();
    change(&writable, &mut tree, 600);
    settle(&partition);
    assert_same(&read_tree(&dumped), &then, "the dump");
    drop(dumped);
    settle(&partition);
    assert_same(&read_tree(&writable), &tree, "changed again");
    for id in [RO, VolumeId(10)] {
        assert_same(&read_tree(&partition.volume(id).unwrap()), &earlier, "older clones");
    }
    assert_whole(&partition, "brought back");
}

/// A kill at any moment leaves the volume, or the snapshot of it, and never both or none.
#[test]
fn a_volume_is_there_or_what_it_leaves_whenever_the_server_dies() {
    let (mut removed, mut brought) = (0, 0);
    for at in 0.. {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        volume(&partition, RW.0);
        partition.sync().unwrap();
        disk.copy_after(at);
        leave(&partition, LEFT);
        partition.bring_back(LEFT, RW, "v").unwrap();
        partition.sync().unwrap();
        let Some((copy, _)) = disk.copied() else { break };
        for disk in [copy.after_kill(), copy.after_power_loss(at)] {
            let partition = open(&disk);
            let found: Vec<VolumeId> = partition.volumes().iter().map(|volume| volume.id()).collect();
            assert!([vec![RW], vec![LEFT]].contains(&found), "after {at}: {found:?}");
            removed += u32::from(found == [LEFT]);
            brought += u32::from(found == [RW] && partition.volume(RW).unwrap().name() == "v");
            assert_whole(&partition, "after a kill");
        }
    }
    assert!(removed > 0 && brought > 0, "{removed} {brought}");
}

#[test]
fn only_what_a_removed_volume_has_left_comes_back_and_only_where_nothing_is() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    volume(&partition, RW.0);
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(2)).unwrap());
    partition.make_snapshot(RW, VolumeId(10), false, stamp(500)).unwrap();
    for of in [RO, VolumeId(10)] {
        let refused = partition.remove_leaving(of, LEFT, UNTIL, stamp(500));
        assert!(matches!(refused, Err(VolumeError::ReadOnly(_))));
        assert!(matches!(partition.bring_back(of, VolumeId(30), "v"), Err(VolumeError::ReadOnly(_))));
    }
    let refused = partition.remove_leaving(RW, RO, UNTIL, stamp(500));
    assert!(matches!(refused, Err(VolumeError::VolumeExists(RO))));
    leave(&partition, LEFT);
    let made = partition.volume(LEFT).unwrap().header().info.creation_date;
    assert_eq!(made, AfsTime(501), "there was a snapshot of the second of the removal");
    assert_eq!(partition.later_than(RO).unwrap().len(), 2);
    volume(&partition, RW.0);
    assert!(matches!(partition.bring_back(LEFT, RW, "v"), Err(VolumeError::VolumeExists(RW))));
    assert!(matches!(partition.bring_back(LEFT, VolumeId(30), ""), Err(VolumeError::BadName)));
    let other = partition.bring_back(LEFT, VolumeId(30), "v").unwrap();
    let info = other.header().info;
    assert_eq!((info.parent, info.clone), (VolumeId(30), VolumeId(0)), "the replica is the other's");
    assert_whole(&partition, "beside a volume that was made meanwhile");
}
