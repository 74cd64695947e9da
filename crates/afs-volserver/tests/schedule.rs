//! Snapshots by a schedule, in virtual time: which are made, which go, and that a schedule goes along with its volume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::dumps::{FULL, cookie, filled};
use crate::support::{A, Lab, RO, RW, text};
use afs_volserver::Config;
use afs_volume::Schedule;
use afs_wire::abort::VOLSERBAD_ACCESS;
use afs_wire::afsvol::{
    AttachFlags, Clone, Forward, SnapshotCreate, SnapshotGetSchedule, SnapshotInfo, SnapshotList,
    SnapshotSchedule, SnapshotSetSchedule, SnapshotType,
};
use afs_wire::ids::{AfsTime, VolumeId, VolumeType};
use rxgen::Abort;

/// 2026-11-01T00:00:00Z, a Sunday.
const START: u32 = 1_793_491_200;
const HOUR: u32 = 3600;
const DAY: u32 = 24 * HOUR;

const USUAL: SnapshotSchedule = SnapshotSchedule { hourly: 24, daily: 7, weekly: 4, monthly: 12 };
const NONE: SnapshotSchedule = SnapshotSchedule { hourly: 0, daily: 0, weekly: 0, monthly: 0 };

/// A server whose time is told to it, with a volume that has something in it.
async fn lab(change: impl FnOnce(&mut Config)) -> (Lab, Arc<AtomicU32>) {
    let time = Arc::new(AtomicU32::new(START));
    let clock = Arc::clone(&time);
    let lab = Lab::with(|config| {
        config.clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed)));
        change(config);
    });
    filled(&lab).await;
    (lab, time)
}

impl Lab {
    async fn set_schedule(&self, schedule: Option<SnapshotSchedule>) {
        let trans = self.begin(RW, AttachFlags::READ_ONLY).await;
        let (is_own, schedule) = (i32::from(schedule.is_some()), schedule.unwrap_or(NONE));
        self.call(SnapshotSetSchedule { trans, is_own, schedule }).await.unwrap();
        assert_eq!(self.end(trans).await, 0);
    }

    async fn schedule(&self) -> (i32, SnapshotSchedule) {
        let told = self.call(SnapshotGetSchedule { partition: A, volid: RW }).await.unwrap();
        (told.is_own, told.schedule)
    }

    async fn scheduled(&self) -> Vec<SnapshotInfo> {
        let found = self.call(SnapshotList { volume: RW }).await.unwrap().snapshots.into_vec();
        found.into_iter().filter(|snapshot| snapshot.kind == SnapshotType::SCHEDULED).collect()
    }

    async fn times(&self) -> BTreeSet<u32> {
        self.scheduled().await.iter().map(|snapshot| snapshot.made.0).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_month_of_the_usual_schedule_leaves_what_it_says_and_no_manual_one_goes() {
    let (lab, time) = lab(|_| {}).await;
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.times().await, BTreeSet::new(), "nobody has asked for any");
    lab.set_schedule(Some(USUAL)).await;
    assert_eq!(lab.schedule().await, (1, USUAL));
    let manual = VolumeId(536_870_990);
    for half_hour in 0..30 * 48 {
        time.store(START + half_hour * HOUR / 2, Ordering::Relaxed);
        lab.service.keep_schedules().await.unwrap();
        if half_hour == 1 {
            let trans = lab.begin(RW, AttachFlags::READ_ONLY).await;
            lab.call(SnapshotCreate { trans, new_vol: manual }).await.unwrap();
            lab.end(trans).await;
        }
    }
    let hours = (0..24).map(|n| START + 29 * DAY + n * HOUR);
    let days = (23..30).map(|n| START + n * DAY);
    // Mondays; and the month has but one first day.
    let weeks = [8, 15, 22, 29].map(|n| START + n * DAY);
    let expected: BTreeSet<u32> = hours.chain(days).chain(weeks).chain([START]).collect();
    assert_eq!(lab.times().await, expected);
    let ids: BTreeSet<VolumeId> = lab.scheduled().await.iter().map(|snapshot| snapshot.volid).collect();
    assert_eq!(ids.len(), expected.len(), "each has an id of its own");
    assert!(ids.iter().all(|id| id.0 >= 536_880_000), "from the location database");
    let all = lab.call(SnapshotList { volume: RW }).await.unwrap().snapshots.into_vec();
    assert!(all.iter().any(|snapshot| snapshot.volid == manual), "nobody has removed it");
    assert!(!lab.told().is_empty(), "clients are told of those that went");
    let partition = lab.partitions.get(A).unwrap();
    partition.maintain().unwrap();
    lab.assert_whole("after a month");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_waits_for_the_location_database_and_for_who_works_on_the_volume() {
    let (lab, time) = lab(|config| config.schedule = Schedule { hourly: 2, ..Schedule::default() }).await;
    assert_eq!(lab.schedule().await, (0, SnapshotSchedule { hourly: 2, ..NONE }), "the server's");
    lab.has_vldb.store(false, Ordering::Relaxed);
    let why = lab.service.keep_schedules().await.unwrap_err();
    assert!(why.contains("the location database gives no volume ids: it does not answer"), "{why}");
    assert_eq!(lab.times().await, BTreeSet::new());
    lab.has_vldb.store(true, Ordering::Relaxed);
    time.store(START + 60, Ordering::Relaxed);
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.times().await, BTreeSet::new(), "somebody dumps the volume");
    lab.end(trans).await;
    time.store(START + 120, Ordering::Relaxed);
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.times().await, BTreeSet::from([START + 120]), "late, and once");
    // The server was away for two days.
    time.store(START + 2 * DAY, Ordering::Relaxed);
    for _ in 0..3 {
        lab.service.keep_schedules().await.unwrap();
    }
    assert_eq!(lab.times().await, BTreeSet::from([START + 120, START + 2 * DAY]));
    // Nothing is made, and nothing goes, of a volume that is not to have any.
    lab.set_schedule(Some(NONE)).await;
    time.store(START + 9 * DAY, Ordering::Relaxed);
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.times().await.len(), 2);
    lab.set_schedule(None).await;
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.times().await.len(), 3, "the server's schedule again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_goes_along_with_its_volume_and_is_of_no_clone() {
    let (here, _) = lab(|_| {}).await;
    let there = Lab::new();
    here.set_schedule(Some(USUAL)).await;
    here.partitions.find(RW).unwrap().1.change_info(|info| info.snapshot_limit_kib = Some(7000)).unwrap();
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    let name = text("user.x.readonly");
    let (purge_vol, new_type) = (VolumeId(0), VolumeType::READ_ONLY);
    here.call(Clone { trans, purge_vol, new_type, new_name: name, new_vol: RO }).await.unwrap();
    let clone = here.partitions.find(RO).unwrap().1.header().info;
    assert_eq!((clone.schedule, clone.snapshot_limit_kib), (None, None));
    let size = here.call(afs_wire::afsvol::GetSize { from_trans: trans, from_date: FULL }).await.unwrap();
    let dump = here.stream(afs_wire::afsvol::Dump { from_trans: trans, from_date: FULL }).await.unwrap();
    assert_eq!(size.size.dump_size, dump.len() as u64, "GetSize counts it");
    let dest_trans = there.begin_copy().await;
    let destination = there.destination();
    let order = Forward { from_trans: trans, from_date: FULL, destination, dest_trans, cookie: cookie() };
    here.call(order).await.unwrap();
    here.end(trans).await;
    there.settle(dest_trans).await;
    assert_eq!(there.schedule().await, (1, USUAL));
    assert_eq!(there.partitions.find(RW).unwrap().1.header().info.snapshot_limit_kib, Some(7000));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_set_a_schedule_of_a_read_write_volume_and_none_too_long() {
    let (lab, _) = lab(|_| {}).await;
    let trans = lab.begin(RW, AttachFlags::READ_ONLY).await;
    for hourly in [2049, 65_535, 65_536, u32::MAX] {
        let schedule = SnapshotSchedule { hourly, ..NONE };
        lab.fails(SnapshotSetSchedule { trans, is_own: 1, schedule }, Abort(22)).await;
    }
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(SnapshotSetSchedule { trans, is_own: 1, schedule: USUAL }, VOLSERBAD_ACCESS).await;
    assert_eq!(lab.schedule().await, (0, NONE), "anybody may ask");
    lab.everybody.0.store(true, Ordering::Relaxed);
    lab.call(SnapshotCreate { trans, new_vol: RO }).await.unwrap();
    let trans = lab.begin(RO, AttachFlags::READ_ONLY).await;
    lab.fails(SnapshotSetSchedule { trans, is_own: 1, schedule: USUAL }, Abort(30)).await;
}
