//! What a removed volume leaves for some days, which volumes leave nothing, and how one comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::dumps::filled;
use crate::support::{A, B, BACKUP, Lab, RO, RW, text};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{Partition, Schedule, VolumeState};
use afs_wire::abort::{VNOVOL, VOLSERBAD_ACCESS, VVOLEXISTS};
use afs_wire::afsvol::{
    AttachFlags, Clone, ConvertROtoRWvolume, CreateVolume, DeleteVolume, NukeVolume, SetFlags, SetForwarding,
    SnapshotCreate, SnapshotInfo, SnapshotList, SnapshotRemove, SnapshotType, SnapshotUndelete, TransCreate,
    VolumeFlags,
};
use afs_wire::ids::{AfsTime, TransId, VolumeId, VolumeType};
use rxgen::Abort;

const START: u32 = 1_700_000_000;
const DAY: u32 = 24 * 3600;
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// A server whose time is told to it, with a volume that has something in it.
async fn lab() -> (Lab, Arc<AtomicU32>) {
    lab_on(&SimulatedDisk::new(1 << 30)).await
}

/// The same with this disk as the first partition.
async fn lab_on(disk: &SimulatedDisk) -> (Lab, Arc<AtomicU32>) {
    let time = Arc::new(AtomicU32::new(START));
    let clock = Arc::clone(&time);
    let config =
        afs_volume::Config { has_thread: false, log_bytes: 1 << 20, ..afs_volume::Config::default() };
    let lab = Lab::on(
        |config| {
            config.clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed)));
            config.undelete_limit = WEEK;
        },
        |folder| {
            let disk = if folder.ends_with("0") { disk.clone() } else { SimulatedDisk::new(1 << 30) };
            Partition::open_on(Arc::new(disk), folder, config.clone()).unwrap()
        },
    );
    filled(&lab).await;
    (lab, time)
}

impl Lab {
    /// What `vos remove` does, ours and OpenAFS's.
    async fn removes(&self, volume: VolumeId) {
        let trans = self.begin(volume, AttachFlags::OFFLINE).await;
        self.mark(trans).await;
        self.call(DeleteVolume { trans }).await.unwrap();
        self.end(trans).await;
    }

    async fn mark(&self, trans: TransId) {
        let flags = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
        self.call(SetFlags { trans, flags }).await.unwrap();
    }

    async fn left(&self) -> Vec<SnapshotInfo> {
        let found = self.call(SnapshotList { volume: VolumeId(0) }).await.unwrap().snapshots.into_vec();
        found.into_iter().filter(|snapshot| snapshot.kind == SnapshotType::REMOVED).collect()
    }

    async fn clones(&self, new_vol: VolumeId, new_type: VolumeType) {
        let trans = self.begin(RW, AttachFlags::BUSY).await;
        let purge_vol = VolumeId(0);
        self.call(Clone { trans, purge_vol, new_type, new_name: text(""), new_vol }).await.unwrap();
        self.end(trans).await;
        let trans = self.begin(new_vol, AttachFlags::OFFLINE).await;
        self.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
        self.end(trans).await;
    }
}

fn undelete(left: &SnapshotInfo, new_vol: VolumeId, name: &str) -> SnapshotUndelete {
    SnapshotUndelete { partition: left.partition, volid: left.volid, new_vol, name: text(name) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_volume_is_kept_for_a_week_and_comes_back_as_it_was() {
    let (lab, time) = lab().await;
    let volume = lab.partitions.find(RW).unwrap().1;
    let schedule = Some(Schedule::of([24, 0, 0, 0]));
    volume.change_info(|info| info.schedule = schedule).unwrap();
    let before = lab.dumped(RW).await;
    lab.told();
    lab.removes(RW).await;
    assert!(lab.told().contains(&RW), "its clients are told");
    lab.fails(TransCreate { volume: RW, partition: A, flags: AttachFlags::BUSY }, VNOVOL).await;
    let left = lab.left().await;
    let shown: Vec<_> =
        left.iter().map(|left| (left.parent, left.made.0, left.until.0, left.partition)).collect();
    assert_eq!(shown, [(RW, START, START + 7 * DAY, A)]);
    assert!(left[0].name.to_vec() == b"user.x" && left[0].volid.0 >= 536_880_000, "the id is the database's");
    assert!(lab.dumped(left[0].volid).await.vnodes == before.vnodes);

    time.store(START + 7 * DAY - 1, Ordering::Relaxed);
    lab.service.keep_schedules().await.unwrap();
    lab.call(undelete(&left[0], RW, "user.x")).await.unwrap();
    assert_eq!((lab.left().await, lab.state(RW)), (vec![], VolumeState::Online));
    assert!(lab.dumped(RW).await.vnodes == before.vnodes);
    let info = lab.partitions.find(RW).unwrap().1.header().info;
    assert_eq!((info.name.as_str(), info.schedule, info.parent), ("user.x", schedule, RW));
    lab.assert_whole("back again");

    lab.removes(RW).await;
    assert_eq!(lab.left().await.len(), 1);
    time.fetch_add(7 * DAY, Ordering::Relaxed);
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.left().await, [], "its time is over");
    lab.partitions.get(A).unwrap().maintain().unwrap();
    lab.assert_whole("gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_no_whole_volume_or_has_moved_leaves_nothing() {
    let (lab, _) = lab().await;
    lab.clones(RO, VolumeType::READ_ONLY).await;
    lab.clones(BACKUP, VolumeType::BACKUP).await;
    for clone in [RO, BACKUP] {
        lab.removes(clone).await;
    }
    // One whose maker has changed their mind, in the same transaction and in another.
    for is_other in [false, true] {
        let made = lab.call(crate::support::new_volume(RO, "new")).await.unwrap();
        let mut trans = made.trans;
        if is_other {
            lab.end(trans).await;
            trans = lab.begin(RO, AttachFlags::OFFLINE).await;
        }
        lab.mark(trans).await;
        lab.call(DeleteVolume { trans }).await.unwrap();
        lab.end(trans).await;
    }
    let trans = lab.call(crate::support::new_volume(RO, "new")).await.unwrap().trans;
    lab.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
    lab.call(DeleteVolume { trans }).await.unwrap();
    lab.end(trans).await;
    // One that is at another server by now; a move that was interrupted removes it as 'vos remove' does.
    for marks in [false, true] {
        lab.create(RO, "moved").await;
        let trans = lab.begin(RO, AttachFlags::OFFLINE).await;
        if marks {
            lab.mark(trans).await;
        }
        lab.call(SetForwarding { trans, new_site: 1 }).await.unwrap();
        lab.call(DeleteVolume { trans }).await.unwrap();
        lab.end(trans).await;
    }
    // One that is on another partition by now.
    let filling = |partition, volid| CreateVolume {
        partition,
        name: text("moved"),
        kind: VolumeType::READ_WRITE,
        parent: volid,
        volid,
    };
    lab.create(RO, "moved").await;
    let there = lab.call(filling(B, RO)).await.unwrap().trans;
    lab.removes(RO).await;
    lab.call(DeleteVolume { trans: there }).await.unwrap();
    lab.end(there).await;
    lab.create(RO, "zapped").await;
    lab.call(NukeVolume { partition: A, volid: RO }).await.unwrap();
    assert_eq!(lab.left().await, []);
    // With 0 days there is no way back.
    let without = lab.beside(|config| config.undelete_limit = Duration::ZERO);
    without.removes(RW).await;
    assert_eq!(lab.left().await, []);
    lab.assert_whole("after all that");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_stays_while_there_is_no_id_for_what_it_leaves() {
    let (lab, _) = lab().await;
    lab.has_vldb.store(false, Ordering::Relaxed);
    let trans = lab.begin(RW, AttachFlags::OFFLINE).await;
    lab.fails(DeleteVolume { trans }, Abort(107)).await;
    lab.end(trans).await;
    assert_eq!((lab.left().await, lab.state(RW)), (vec![], VolumeState::Online));
    lab.call(NukeVolume { partition: A, volid: RW }).await.unwrap();
    assert_eq!(lab.left().await, [], "that is for good");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_superuser_brings_a_volume_back_and_not_over_another() {
    let (lab, time) = lab().await;
    let trans = lab.begin(RW, AttachFlags::READ_ONLY).await;
    lab.call(SnapshotCreate { trans, new_vol: BACKUP }).await.unwrap();
    lab.end(trans).await;
    time.fetch_add(1, Ordering::Relaxed);
    lab.removes(RW).await;
    let left = lab.left().await.remove(0);
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(undelete(&left, RW, "user.x"), VOLSERBAD_ACCESS).await;
    lab.everybody.0.store(true, Ordering::Relaxed);
    let manual = SnapshotInfo { volid: BACKUP, ..left.clone() };
    lab.fails(undelete(&manual, RW, "user.x"), Abort(22)).await;
    lab.fails(undelete(&left, VolumeId(0), "user.x"), Abort(22)).await;
    lab.create(RW, "user.x").await;
    lab.fails(undelete(&left, RW, "user.x"), VVOLEXISTS).await;
    lab.call(undelete(&left, RO, "user.old")).await.unwrap();
    assert_eq!([RW, RO].map(|id| lab.state(id)), [VolumeState::Online, VolumeState::Online]);
    lab.fails(undelete(&left, VolumeId(7), "user.x"), VNOVOL).await;
    // Who knows that the volume is not wanted any more need not wait.
    lab.removes(RO).await;
    let left = lab.left().await.remove(0);
    lab.call(SnapshotRemove { partition: A, volid: left.volid }).await.unwrap();
    assert_eq!(lab.left().await, []);
    lab.assert_whole("after all that");
}

/// As OpenAFS's 'vos zap' and 'vos convertROtoRW' do one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_the_place_of_a_removed_volume() {
    let (lab, time) = lab().await;
    lab.clones(RO, VolumeType::READ_ONLY).await;
    let released = lab.dumped(RO).await;
    time.fetch_add(1, Ordering::Relaxed);
    let trans = lab.begin(RW, AttachFlags::READ_ONLY).await;
    lab.call(SnapshotCreate { trans, new_vol: BACKUP }).await.unwrap();
    lab.end(trans).await;
    lab.removes(RW).await;
    let convert = || ConvertROtoRWvolume { partition: A, volid: RO };
    lab.fails(convert(), Abort(18)).await;
    assert_eq!(lab.left().await.len(), 1, "the manual snapshot is in the way, so nothing goes");
    lab.call(SnapshotRemove { partition: A, volid: BACKUP }).await.unwrap();
    lab.call(convert()).await.unwrap();
    assert!(lab.dumped(RW).await.vnodes == released.vnodes);
    assert_eq!(lab.left().await, []);
    lab.assert_whole("converted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_nearly_full_gives_up_the_oldest_removed_volume_first() {
    let disk = SimulatedDisk::new(1 << 30);
    let (lab, time) = lab_on(&disk).await;
    lab.create(RO, "user.y").await;
    lab.removes(RW).await;
    time.fetch_add(60, Ordering::Relaxed);
    lab.removes(RO).await;
    lab.service.keep_schedules().await.unwrap();
    assert_eq!(lab.left().await.len(), 2, "there is room");
    // 64 MiB of it are kept free whatever comes.
    disk.set_capacity(68 << 20);
    for expected in [vec![RO], vec![]] {
        // The next one waits for the space of the one before.
        (0..2).for_each(|_| _ = lab.partitions.get(A).unwrap().maintain().unwrap());
        lab.service.keep_schedules().await.unwrap();
        assert_eq!(lab.left().await.iter().map(|left| left.parent).collect::<Vec<_>>(), expected);
    }
    lab.assert_whole("when all is given up");
}
