//! What snapshots may hold, in virtual time: which go when their volume's limit is reached or the disk is nearly full, which never do, and that a
//! warning comes before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::dumps::{filled, store};
use crate::support::{A, Lab, RO, RW};
use afs_volserver::{SnapshotSpace, snapshot_space};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{Partition, Schedule, SetStatus, VnodeId, Volume};
use afs_wire::abort::VOLSERBAD_ACCESS;
use afs_wire::afsvol::{
    AttachFlags, SnapshotCreate, SnapshotGetLimit, SnapshotList, SnapshotSetLimit, SnapshotType, reply,
};
use afs_wire::ids::{AfsTime, VolumeId};
use rxgen::Abort;

/// 2026-11-01T00:00:00Z, a Sunday.
const START: u32 = 1_793_491_200;
const HOUR: u32 = 3600;
const MANUAL: VolumeId = VolumeId(536_870_990);
const MIB: u64 = 1 << 20;

/// A server whose time is told to it, which makes a snapshot of each volume every hour.
async fn lab_on(disk: &SimulatedDisk) -> (Lab, Arc<AtomicU32>) {
    let time = Arc::new(AtomicU32::new(START));
    let clock = Arc::clone(&time);
    let config =
        afs_volume::Config { has_thread: false, log_bytes: 1 << 20, ..afs_volume::Config::default() };
    let lab = Lab::on(
        |config| {
            config.clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed)));
            config.schedule = Schedule::of([1000, 7, 0, 0]);
            config.undelete_limit = Duration::from_secs(7 * 24 * 3600);
        },
        |folder| {
            let disk = if folder.ends_with("0") { disk.clone() } else { SimulatedDisk::new(1 << 30) };
            Partition::open_on(Arc::new(disk), folder, config.clone()).unwrap()
        },
    );
    (lab, time)
}

/// A file of a volume, made if it is not there.
fn file(lab: &Lab, volume: VolumeId) -> (Arc<Volume>, VnodeId) {
    let volume = lab.partitions.find(volume).unwrap().1;
    let file = volume.lookup(VnodeId::ROOT, b"file").unwrap_or_else(|_| {
        let stamp = crate::support::dumps::stamp(1);
        volume.create_file(VnodeId::ROOT, b"file", &SetStatus::default(), stamp).unwrap().vnode.id
    });
    (volume, file)
}

/// Writes so many MiB into the file, which the last snapshot then holds, if it had as much before.
fn write(lab: &Lab, volume: VolumeId, mib: u64) {
    let (volume, file) = file(lab, volume);
    store(&volume, file, &vec![b'x'; (mib * MIB) as usize], 1);
}

/// Looks as often as it takes until nothing changes any more, and gives the space back.
async fn look(lab: &Lab) {
    let mut before = None;
    loop {
        lab.service.keep_schedules().await.unwrap();
        let partition = lab.partitions.get(A).unwrap();
        (0..3).for_each(|_| _ = partition.maintain().unwrap());
        let now = Some(partition.volumes().len());
        if now == before {
            return;
        }
        before = now;
    }
}

async fn manual(lab: &Lab, volume: VolumeId, new_vol: VolumeId) {
    let trans = lab.begin(volume, AttachFlags::READ_ONLY).await;
    lab.call(SnapshotCreate { trans, new_vol }).await.unwrap();
    lab.end(trans).await;
}

async fn of_kind(lab: &Lab, volume: VolumeId, kind: SnapshotType) -> BTreeSet<u32> {
    let mut found = lab.call(SnapshotList { volume }).await.unwrap().snapshots.into_vec();
    found.retain(|snapshot| snapshot.kind == kind);
    found.iter().map(|snapshot| snapshot.made.0).collect()
}

async fn hours(lab: &Lab, volume: VolumeId) -> Vec<u32> {
    let times = of_kind(lab, volume, SnapshotType::SCHEDULED).await;
    times.into_iter().map(|time| (time - START) / HOUR).collect()
}

async fn set_limit(lab: &Lab, volume: VolumeId, limit_kib: Option<u32>) {
    let trans = lab.begin(volume, AttachFlags::READ_ONLY).await;
    let is_own = i32::from(limit_kib.is_some());
    lab.call(SnapshotSetLimit { trans, is_own, limit_kib: limit_kib.unwrap_or(0) }).await.unwrap();
    assert_eq!(lab.end(trans).await, 0);
}

async fn limit(lab: &Lab) -> reply::SnapshotGetLimit {
    lab.call(SnapshotGetLimit { partition: A, volid: RW }).await.unwrap()
}

fn space(lab: &Lab) -> SnapshotSpace {
    snapshot_space(lab.partitions.get(A).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_its_limit_a_volume_loses_its_oldest_scheduled_snapshots_and_no_others() {
    let (lab, time) = lab_on(&SimulatedDisk::new(1 << 30)).await;
    lab.create(RW, "user.x").await;
    for hour in 0..30 {
        time.store(START + hour * HOUR, Ordering::Relaxed);
        write(&lab, RW, 1);
        look(&lab).await;
        if hour == 0 {
            time.fetch_add(60, Ordering::Relaxed);
            manual(&lab, RW, MANUAL).await;
        }
        if hour == 4 {
            assert_eq!(hours(&lab, RW).await, [0, 1, 2, 3, 4], "they hold four MiB");
            assert!((0, 1) == (space(&lab).over_bytes, space(&lab).near_limit), "{:?}", space(&lab));
        }
        let told = limit(&lab).await;
        assert!(told.held_kib <= 5000, "{told:?}");
        assert_eq!((told.is_own, told.limit_kib, told.is_counted), (0, 5000, 1), "the quota");
    }
    // Of the last hours as many as there is room for beside a manual one, and the first one of the day.
    assert_eq!(hours(&lab, RW).await, [24, 27, 28, 29]);
    assert_eq!(of_kind(&lab, RW, SnapshotType::MANUAL).await, BTreeSet::from([START + 60]));
    assert!((4 * MIB..5 * MIB).contains(&space(&lab).held_bytes), "{:?}", space(&lab));

    set_limit(&lab, RW, Some(0)).await;
    for hour in 30..36 {
        time.store(START + hour * HOUR, Ordering::Relaxed);
        write(&lab, RW, 1);
        look(&lab).await;
    }
    assert_eq!(hours(&lab, RW).await, [24, 27, 28, 29, 30, 31, 32, 33, 34, 35], "there is no limit");
    set_limit(&lab, RW, Some(6 * 1024)).await;
    look(&lab).await;
    assert_eq!(hours(&lab, RW).await, [24, 32, 33, 34, 35]);
    // Less than what has to stay.
    set_limit(&lab, RW, Some(1)).await;
    look(&lab).await;
    assert_eq!(hours(&lab, RW).await, [24, 35]);
    assert_eq!(of_kind(&lab, RW, SnapshotType::MANUAL).await, BTreeSet::from([START + 60]));
    assert!(space(&lab).over_bytes > MIB);
    set_limit(&lab, RW, None).await;
    assert_eq!((limit(&lab).await.is_own, space(&lab).over_bytes), (0, 0));
    lab.assert_whole("at the end");
}

/// As much as so many bytes less than are in use would leave a twentieth free.
fn short_by(lab: &Lab, disk: &SimulatedDisk, bytes: u64) {
    let space = lab.partitions.get(A).unwrap().space().unwrap();
    let used = (space.total_kib - space.free_kib) << 10;
    disk.set_capacity((used - bytes) / 19 * 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nearly_full_partition_gives_up_a_removed_volume_and_then_whose_snapshots_give_most_back() {
    let disk = SimulatedDisk::new(1 << 30);
    let (lab, time) = lab_on(&disk).await;
    let [much, little, removed] = [RW, RO, VolumeId(536_870_940)];
    for (volume, name) in [(much, "user.x"), (little, "user.y")] {
        lab.create(volume, name).await;
        set_limit(&lab, volume, Some(0)).await;
    }
    for hour in 0..8 {
        time.store(START + hour * HOUR, Ordering::Relaxed);
        write(&lab, much, 3);
        write(&lab, little, 1);
        look(&lab).await;
    }
    time.fetch_add(60, Ordering::Relaxed);
    manual(&lab, much, MANUAL).await;
    // It has had no snapshots, which would stay.
    lab.create(removed, "user.z").await;
    write(&lab, removed, 4);
    let trans = lab.begin(removed, AttachFlags::OFFLINE).await;
    lab.call(afs_wire::afsvol::DeleteVolume { trans }).await.unwrap();
    lab.end(trans).await;
    look(&lab).await;
    let left = async || of_kind(&lab, VolumeId(0), SnapshotType::REMOVED).await.len();
    assert_eq!((left().await, hours(&lab, much).await.len()), (1, 8), "there is room");

    short_by(&lab, &disk, MIB);
    look(&lab).await;
    assert_eq!((left().await, hours(&lab, much).await.len()), (0, 8), "the removed volume was enough");
    short_by(&lab, &disk, 5 * MIB);
    look(&lab).await;
    let stays = hours(&lab, much).await;
    assert!(stays.starts_with(&[0]) && stays.ends_with(&[5, 6, 7]) && stays.len() < 8, "{stays:?}");
    assert_eq!(hours(&lab, little).await.len(), 8, "the other volume's hold less");
    // What is never enough.
    short_by(&lab, &disk, 40 * MIB);
    look(&lab).await;
    let stays = [hours(&lab, much).await, hours(&lab, little).await];
    assert_eq!(stays, [[0, 7], [0, 7]], "the first one of the day, and the newest");
    assert_eq!(of_kind(&lab, much, SnapshotType::MANUAL).await.len(), 1);
    lab.assert_whole("when all is given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_set_a_limit_and_only_of_a_read_write_volume() {
    let (lab, _) = lab_on(&SimulatedDisk::new(1 << 30)).await;
    filled(&lab).await;
    manual(&lab, RW, MANUAL).await;
    let trans = lab.begin(MANUAL, AttachFlags::READ_ONLY).await;
    lab.fails(SnapshotSetLimit { trans, is_own: 1, limit_kib: 5 }, Abort(30)).await;
    lab.end(trans).await;
    let trans = lab.begin(RW, AttachFlags::READ_ONLY).await;
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(SnapshotSetLimit { trans, is_own: 1, limit_kib: 5 }, VOLSERBAD_ACCESS).await;
    let told = limit(&lab).await;
    assert_eq!((told.is_own, told.limit_kib, told.is_counted, told.held_kib), (0, 5000, 1, 0));
}
