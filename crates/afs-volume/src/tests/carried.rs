//! Snapshots that come along with a volume: what they show, and that nobody sees them before the volume is whole.

use super::{assert_whole, new_volume, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::{SetStatus, SnapshotKind, VnodeId, VolumeError, VolumeKind, VolumeState};
use afs_wire::ids::{AfsTime, VolumeId};

const RW: VolumeId = VolumeId(1);

#[test]
fn carried_snapshots_are_there_with_their_volume_or_not_at_all() {
    for is_whole in [false, true] {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let filled = partition.create_volume(&new_volume(RW.0), stamp(1)).unwrap();
        // Instead of a restore.
        filled.set_state(VolumeState::Online);
        for n in 0..3 {
            let name = format!("file {n}");
            filled.create_file(VnodeId::ROOT, name.as_bytes(), &SetStatus::default(), stamp(n)).unwrap();
            let kind = if n == 0 { SnapshotKind::Manual } else { SnapshotKind::Scheduled };
            let made = partition.carry_snapshot(RW, VolumeId(10 + n), kind, AfsTime(100 + n)).unwrap();
            assert!(made.check_online().is_err(), "nobody sees it");
        }
        let again =
            |id, made| partition.carry_snapshot(RW, VolumeId(id), SnapshotKind::Manual, AfsTime(made));
        assert!(matches!(again(12, 200), Err(VolumeError::VolumeExists(_))));
        assert!(matches!(again(20, 101), Err(VolumeError::VolumeExists(_))));
        if is_whole {
            super::finish(&filled);
            partition.keep_carried(RW).unwrap();
            assert!(matches!(again(20, 200), Err(VolumeError::ReadOnly(RW))), "it is in use");
            let manual = partition.make_snapshot(RW, VolumeId(30), false, stamp(300)).unwrap();
            partition.remove_carried(RW).unwrap();
            manual.check_online().unwrap();
        }
        let partition = open(&disk.after_kill());
        settle(&partition);
        assert_whole(&partition, "after a kill");
        let found = partition.snapshots_of(RW);
        if !is_whole {
            assert!(found.is_empty() && matches!(partition.volume(RW), Err(VolumeError::NoVolume(RW))));
            continue;
        }
        let seen: Vec<_> = found.iter().map(|s| (s.id().0, s.header().info.creation_date.0)).collect();
        assert_eq!(seen, [(10, 100), (11, 101), (12, 102), (30, 300)]);
        let kinds: Vec<_> = found.iter().map(|snapshot| snapshot.header().info.kind).collect();
        assert_eq!(kinds[..2], [SnapshotKind::Manual, SnapshotKind::Scheduled].map(VolumeKind::Snapshot));
        for (n, snapshot) in found.iter().take(3).enumerate() {
            snapshot.check_online().unwrap();
            let has = |n: usize| snapshot.lookup(VnodeId::ROOT, format!("file {n}").as_bytes()).is_ok();
            assert_eq!([0, 1, 2].map(has), [0, 1, 2].map(|file| file <= n), "{n}");
        }
    }
}

#[test]
fn a_volume_that_is_given_up_takes_its_carried_snapshots_with_it() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    volume(&partition, 7);
    partition.create_volume(&new_volume(RW.0), stamp(1)).unwrap();
    partition.carry_snapshot(RW, VolumeId(10), SnapshotKind::Manual, AfsTime(5)).unwrap();
    let of_whole = partition.carry_snapshot(VolumeId(7), VolumeId(11), SnapshotKind::Manual, AfsTime(5));
    assert!(matches!(of_whole, Err(VolumeError::ReadOnly(_))));
    partition.remove_carried(RW).unwrap();
    assert!(partition.snapshots_of(RW).is_empty());
    partition.delete_volume(RW).unwrap();
    settle(&partition);
    assert_whole(&partition, "given up");
}
