//! Tests of the whole crate, on a disk in memory that can die, with chunks of 8 KiB so that there are many.

mod carried;
mod convert;
mod crash;
mod damage;
mod faults;
mod flips;
mod frozen;
mod half;
mod held;
mod killed;
mod level;
mod model;
mod reference;
mod removed;
mod repair;
mod replaced;
mod restore;
mod rests;
mod scene;
mod snapshots;

use crate::disk::{Disk, SimulatedDisk};
use crate::fsck;
use crate::{Config, NewClone, NewVolume, Partition, Stamp, SyncPolicy, Volume, VolumeKind};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Small enough that there are checkpoints, and new segments, within a test.
fn config() -> Config {
    Config {
        sync: SyncPolicy::Every(Duration::from_secs(1)),
        reserve_kib: 0,
        cache_bytes: 1 << 20,
        log_bytes: 64 << 10,
        has_thread: false,
    }
}

fn open(disk: &SimulatedDisk) -> Partition {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Partition::open_on(disk, Path::new("test"), config()).unwrap()
}

fn stamp(now: u32) -> Stamp {
    Stamp { who: ViceId(7), now: AfsTime(now) }
}

fn new_volume(id: u32) -> NewVolume {
    NewVolume {
        id: VolumeId(id),
        name: format!("v{id}"),
        kind: VolumeKind::ReadWrite,
        parent: VolumeId(0),
        max_quota_kib: 0,
        with_root: true,
    }
}

fn new_clone(id: u32) -> NewClone {
    NewClone { id: VolumeId(id), name: format!("c{id}"), kind: VolumeKind::ReadOnly }
}

/// Says that a volume is whole, so that it is there after a start.
fn finish(volume: &Volume) {
    volume
        .change_info(|info| {
            info.in_service = true;
            info.destroy_me = false;
        })
        .unwrap();
}

fn volume(partition: &Partition, id: u32) -> Arc<Volume> {
    let volume = partition.create_volume(&new_volume(id), stamp(1)).unwrap();
    finish(&volume);
    volume
}

/// Maintenance until there is nothing to do.
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
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{when}: {findings:#?}");
}
