//! The level of a volume: it outlives a crash, its clones have it, and programs that do not know it cannot take it for one without.

use super::{config, finish, new_clone, open, stamp, volume};
use crate::disk::{ScratchDisk, SimulatedDisk};
use crate::records::VolumeRecord;
use crate::{NewClone, NewVolume, Partition, Schedule, VolumeError, VolumeKind, keys, repair};
use afs_wire::ids::{SecurityLevel, VolumeId};
use std::path::Path;
use std::sync::Arc;

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);
const BACKUP: VolumeId = VolumeId(3);

const CLEAR: SecurityLevel = SecurityLevel::CLEAR;
const AUTH: SecurityLevel = SecurityLevel::AUTH;
const CRYPT: SecurityLevel = SecurityLevel::CRYPT;

fn levels<const N: usize>(partition: &Partition, ids: [VolumeId; N]) -> [SecurityLevel; N] {
    ids.map(|id| partition.volume(id).unwrap().level())
}

#[test]
fn a_volume_keeps_its_level_over_a_kill_and_a_conversion() {
    for level in [AUTH, CRYPT] {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        volume(&partition, RW.0);
        partition.set_level(RW, level).unwrap();
        drop(partition);
        let disk = disk.after_kill();
        let partition = open(&disk);
        assert_eq!(levels(&partition, [RW]), [level]);
        finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(4)).unwrap());
        partition.delete_volume(RW).unwrap();
        partition.convert_to_read_write(RO, RW, "v").unwrap();
        assert_eq!(levels(&partition, [RW]), [level]);
        partition.set_level(RW, CLEAR).unwrap();
        drop(partition);
        assert_eq!(levels(&open(&disk.after_kill()), [RW]), [CLEAR]);
    }
}

#[test]
fn a_backup_is_served_at_no_lower_level_than_its_volume_was() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    volume(&partition, RW.0);
    let backup = NewClone { kind: VolumeKind::Backup, ..new_clone(BACKUP.0) };
    finish(&partition.clone_volume(RW, &backup, stamp(4)).unwrap());
    assert_eq!(levels(&partition, [RW, BACKUP]), [CLEAR, CLEAR]);
    // A higher level counts for it at once, a lower one when it is made anew.
    partition.set_level(RW, CRYPT).unwrap();
    finish(&partition.clone_volume(RW, &new_clone(RO.0), stamp(5)).unwrap());
    partition.set_level(RW, AUTH).unwrap();
    drop(partition);
    let partition = open(&disk.after_kill());
    assert_eq!(levels(&partition, [RW, RO, BACKUP]), [AUTH, CRYPT, CRYPT]);
    partition.reclone_volume(RW, BACKUP, stamp(6)).unwrap();
    assert_eq!(levels(&partition, [RW, RO, BACKUP]), [AUTH, CRYPT, AUTH]);
    assert!(matches!(partition.set_level(RO, CLEAR), Err(VolumeError::ReadOnly(RO))));
    // Other volumes are nothing to it.
    volume(&partition, 9);
    partition.set_level(RW, CRYPT).unwrap();
    assert_eq!(levels(&partition, [RW, RO, BACKUP, VolumeId(9)]), [CRYPT, CRYPT, CRYPT, CLEAR]);
    let other = NewVolume { kind: VolumeKind::ReadOnly, parent: RW, ..super::new_volume(10) };
    partition.create_volume(&other, stamp(7)).unwrap();
    assert!(matches!(partition.set_level(VolumeId(10), CRYPT), Err(VolumeError::ReadOnly(_))));
    // A replica that came otherwise, before the volume was moved here.
    partition.set_level(RW, CRYPT).unwrap();
    assert_eq!(levels(&partition, [VolumeId(10), VolumeId(9)]), [CRYPT, CLEAR]);
}

#[test]
fn a_volume_whose_header_is_lost_is_saved_at_the_highest_level_that_another_one_has() {
    for (other, expected) in [(CLEAR, AUTH), (CRYPT, CRYPT)] {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        for (id, level) in [(RW, CRYPT), (VolumeId(8), AUTH), (VolumeId(9), other)] {
            volume(&partition, id.0);
            partition.set_level(id, level).unwrap();
        }
        let mut batch = afs_store::Batch::default();
        batch.put(keys::volume(RW), vec![1, 2]);
        partition.shared().store.submit(batch).unwrap();
        drop(partition);
        let scratch = Arc::new(ScratchDisk::over(Arc::new(disk)));
        let saved = repair::salvage(&(scratch as _), Path::new("test"), &config(), "1", stamp(9)).unwrap();
        assert_eq!(saved.volume.level(), expected);
    }
}

#[test]
fn only_what_is_protected_as_well_as_the_volume_wants_may_be_told() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let volume = volume(&partition, RW.0);
    for least in [CLEAR, AUTH, CRYPT] {
        partition.set_level(RW, least).unwrap();
        for level in [CLEAR, AUTH, CRYPT] {
            assert_eq!(volume.check_level(level).is_ok(), level >= least, "{level:?} at {least:?}");
        }
    }
    let refused = volume.check_level(AUTH).unwrap_err().to_string();
    assert!(refused.contains("volume 1 is served at level crypt and above"), "{refused}");
}

/// A program of before levels reads a 1 behind the fields, or nothing, and refuses everything else.
#[test]
fn the_row_of_a_volume_without_a_level_is_what_it_was_and_another_one_is_longer() {
    let partition = open(&SimulatedDisk::new(1 << 30));
    let record = volume(&partition, RW.0).record();
    let fields = record.encode();
    for (is_restoring, level, tail) in [
        (false, CLEAR, &[][..]),
        (true, CLEAR, &[1]),
        (false, AUTH, &[2]),
        (false, CRYPT, &[3]),
        (true, AUTH, &[1, 2]),
        (true, CRYPT, &[1, 3]),
    ] {
        let mut record = VolumeRecord { is_restoring, ..record.clone() };
        record.info.level = level;
        let row = record.encode();
        assert_eq!(row, [&fields[..], tail].concat());
        assert_eq!(VolumeRecord::decode(&row).unwrap(), record);
    }
    for schedule in [[0; 4], [24, 7, 4, 12], [u16::MAX, 0, 1, 256]] {
        let mut record = record.clone();
        (record.info.level, record.info.schedule) = (CRYPT, Some(Schedule::of(schedule)));
        let row = record.encode();
        assert_eq!(row.len(), fields.len() + 1 + 1 + 8);
        assert_eq!(VolumeRecord::decode(&row).unwrap(), record);
        assert!(VolumeRecord::decode(&row[..row.len() - 1]).is_err());
        record.info.snapshot_limit_kib = Some(0x1234_5678);
        let row = record.encode();
        assert!(row.ends_with(&[5, 0x12, 0x34, 0x56, 0x78]), "{row:?}");
        assert_eq!(VolumeRecord::decode(&row).unwrap(), record);
        assert!(VolumeRecord::decode(&row[..row.len() - 1]).is_err());
    }
    let mut limited = record;
    limited.info.snapshot_limit_kib = Some(0);
    assert_eq!(limited.encode(), [&fields[..], &[5, 0, 0, 0, 0]].concat());
    assert_eq!(VolumeRecord::decode(&limited.encode()).unwrap(), limited);
    for tail in [
        &[0][..],
        &[4],
        &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[5, 0, 0, 0, 0, 4],
        &[1, 1],
        &[2, 1],
        &[3, 3],
        &[1, 2, 0],
    ] {
        assert!(VolumeRecord::decode(&[&fields[..], tail].concat()).is_err(), "{tail:?}");
    }
}
