//! The volume service over loopback: what `vos` does with a volume, call by call, and what is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::dumps::stamp;
use crate::support::{A, B, BACKUP, Lab, RO, RW, new_volume, text};
use afs_store::{Batch, Key, Options, Schema, Store};
use afs_volserver::Unchecked;
use afs_volume::disk::{Cut, SimulatedDisk};
use afs_volume::{Partition, SetStatus, Stamp, StoreRange, VnodeId, VolumeState};
use afs_wire::abort::{
    VBUSY, VNOVOL, VOFFLINE, VOLSERBAD_ACCESS, VOLSERBADNAME, VOLSERILLEGAL_PARTITION, VOLSERNO_OP,
    VOLSERVOLBUSY,
};
use afs_wire::afsvol::{
    AttachFlags, Clone, ConvertROtoRWvolume, CreateVolume, DeleteVolume, EndTrans, GetFlags, GetName,
    GetNthVolume, GetSize, GetStatus, ListOneVolume, ListPartitions, ListVolumes, Monitor, NukeVolume,
    PartitionInfo, PartitionInfo64, ReClone, SetFlags, SetIdsTypes, SetInfo, SplitVolume, TransCreate,
    UNCHANGED, VOK, VolintInfo, VolumeFlags, XListOneVolume, XListPartitions,
};
use afs_wire::ids::{AfsTime, PartitionId, TransId, ViceId, VolumeId, VolumeType};
use rx_proto::abort::AbortCode;
use rxgen::Abort;

/// Errno numbers, as stock servers send them.
const ENOENT: Abort = Abort(2);
const EIO: Abort = Abort(5);
const E2BIG: Abort = Abort(7);
const ENODEV: Abort = Abort(19);
const EINVAL: Abort = Abort(22);

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_as_vos_makes_it() {
    let lab = Lab::new();
    let made = lab.call(new_volume(RW, "user.x")).await.unwrap();
    assert_ne!(made.trans, TransId(0));
    assert!(matches!(lab.state(RW), VolumeState::Offline(_)), "until it is told otherwise");
    let busy = lab.one(RW).await;
    assert_eq!((busy.status, busy.name.text()), (VBUSY.0, &b""[..]), "somebody works on it");
    let info = VolintInfo { maxquota: 8000, ..unchanged(busy) };
    lab.call(SetInfo { trans: made.trans, info }).await.unwrap();
    lab.call(SetFlags { trans: made.trans, flags: VolumeFlags::NONE }).await.unwrap();
    assert_eq!(lab.end(made.trans).await, 0);
    assert_eq!(lab.state(RW), VolumeState::Online);
    assert_eq!(lab.told(), [RW], "somebody may have looked for it in vain");

    let info = lab.one(RW).await;
    assert_eq!((info.status, info.in_use, info.name.text()), (VOK, 1, &b"user.x"[..]));
    assert_eq!((info.maxquota, info.parent_id, info.filecount), (8000, RW, 0));
    assert_eq!(info.spare2, 0, "to make the root directory is no update");
    assert_eq!(info.creation_date, AfsTime(1_700_000_000));
    lab.fails(ListOneVolume { partition: A, volid: RO }, ENODEV).await;
    lab.fails(ListOneVolume { partition: B, volid: RW }, ENODEV).await;
    lab.fails(ListOneVolume { partition: PartitionId(7), volid: RW }, VOLSERILLEGAL_PARTITION).await;
}

/// All that `SetInfo` looks at left as it is.
fn unchanged(info: VolintInfo) -> VolintInfo {
    let date = AfsTime(UNCHANGED as u32);
    let (day_use, maxquota, spare2) = (UNCHANGED, UNCHANGED, UNCHANGED);
    VolintInfo { creation_date: date, update_date: date, day_use, maxquota, spare2, ..info }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_leaves_no_transaction() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    lab.fails(new_volume(VolumeId(0), "user.y"), E2BIG).await;
    lab.fails(new_volume(RW, "user.y"), EIO).await;
    lab.fails(new_volume(RO, ""), VOLSERBADNAME).await;
    lab.fails(new_volume(RO, &"x".repeat(32)), VOLSERBADNAME).await;
    lab.fails(CreateVolume { kind: VolumeType(3), ..new_volume(RO, "user.y") }, EINVAL).await;
    let elsewhere = CreateVolume { partition: B, parent: RW, ..new_volume(RO, "user.x.readonly") };
    lab.fails(elsewhere, EIO).await;
    lab.fails(TransCreate { volume: RO, partition: A, flags: AttachFlags::BUSY }, VNOVOL).await;
    lab.fails(TransCreate { volume: RW, partition: A, flags: AttachFlags::NONE }, EINVAL).await;
    assert_eq!(lab.service.transaction_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_has_a_volume_and_its_state_follows() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    lab.told();
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    assert_eq!(lab.state(RW), VolumeState::Busy);
    lab.fails(TransCreate { volume: RW, partition: A, flags: AttachFlags::OFFLINE }, VOLSERVOLBUSY).await;
    assert_eq!(lab.call(GetName { trans }).await.unwrap().name, text("user.x"));
    assert_eq!(lab.call(GetFlags { trans }).await.unwrap().flags, VolumeFlags::NONE);
    let status = lab.call(GetStatus { trans }).await.unwrap().status;
    assert_eq!((status.vol_id, status.kind, status.max_quota), (RW, VolumeType::READ_WRITE, 5000));
    let size = lab.call(GetSize { from_trans: trans, from_date: AfsTime(0) }).await.unwrap().size.dump_size;
    assert!((2048..5000).contains(&size), "a root directory and the headers: {size}");
    let monitor = lab.call(Monitor {}).await.unwrap().entries.into_vec();
    assert_eq!((monitor.len(), monitor[0].volid, monitor[0].last_proc_name.text()), (1, RW, &b"GetSize"[..]));
    assert_eq!(lab.end(trans).await, 0);
    assert_eq!((lab.state(RW), lab.told()), (VolumeState::Online, vec![]), "nothing has changed");
    lab.fails(EndTrans { trans }, ENOENT).await;

    let trans = lab.begin(RW, AttachFlags::OFFLINE).await;
    assert!(matches!(lab.state(RW), VolumeState::Offline(_)));
    lab.call(SetFlags { trans, flags: VolumeFlags::OUT_OF_SERVICE }).await.unwrap();
    lab.end(trans).await;
    assert!(matches!(lab.state(RW), VolumeState::Offline(_)), "vos offline");
    assert_eq!((lab.one(RW).await.in_use, lab.told()), (0, vec![RW]));
}

#[tokio::test(flavor = "multi_thread")]
async fn clones_are_made_renewed_and_replaced() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let clone = |new_vol, purge_vol, new_type, name: &str| Clone {
        trans,
        purge_vol,
        new_type,
        new_name: text(name),
        new_vol,
    };
    let none = VolumeId(0);
    let made = lab.call(clone(BACKUP, none, VolumeType::BACKUP, "user.x.backup")).await.unwrap();
    assert_eq!(made.new_vol, BACKUP);
    let header = |volume| lab.partitions.find(volume).unwrap().1.header();
    let (mine, clones) = (header(RW).info, header(BACKUP).info);
    assert_eq!((mine.backup, mine.backup_date), (BACKUP, clones.creation_date));
    assert_eq!(clones.backup, none, "the header was copied before that");
    assert_eq!((header(RW).file_count, header(BACKUP).file_count), (1, 1), "now the root is counted");
    assert!(matches!(lab.state(BACKUP), VolumeState::Offline(_)), "until vos brings it online");
    lab.call(clone(RO, none, VolumeType::READ_ONLY, "")).await.unwrap();
    assert_eq!(header(RO).info.name, "user.x.readonly");
    assert_eq!((header(RW).info.clone, header(RO).info.clone), (RO, RO));
    assert_eq!(header(RO).info.backup, BACKUP);
    lab.fails(clone(RO, none, VolumeType::READ_ONLY, ""), Abort(104)).await;
    lab.fails(clone(VolumeId(7), none, VolumeType::READ_WRITE, ""), EINVAL).await;

    lab.told();
    lab.call(ReClone { trans, clone_id: RO }).await.unwrap();
    assert_eq!(lab.told(), [RO], "those who look at the clone see something new");
    lab.fails(ReClone { trans, clone_id: RW }, EINVAL).await;
    lab.fails(ReClone { trans, clone_id: VolumeId(9) }, VNOVOL).await;
    let other = VolumeId(536_870_930);
    lab.call(clone(other, RO, VolumeType::READ_ONLY, "")).await.unwrap();
    assert!(lab.partitions.find(RO).is_err(), "the old one went");
    // Whatever went wrong last stays with the transaction until it ends.
    assert_eq!(lab.end(trans).await, VNOVOL.0);

    let trans = lab.begin(BACKUP, AttachFlags::OFFLINE).await;
    lab.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
    lab.end(trans).await;
    assert_eq!(lab.state(BACKUP), VolumeState::Online);
    let trans = lab.begin(BACKUP, AttachFlags::BUSY).await;
    assert_eq!(lab.state(BACKUP), VolumeState::Online, "a clone is served while it is read");
    lab.end(trans).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_volume_replaces_a_lost_one_and_can_be_written() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let name = text("user.x.readonly");
    let none = VolumeId(0);
    let clone =
        Clone { trans, purge_vol: none, new_type: VolumeType::READ_ONLY, new_name: name, new_vol: RO };
    lab.call(clone).await.unwrap();
    lab.end(trans).await;
    let trans = lab.begin(RO, AttachFlags::OFFLINE).await;
    lab.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
    lab.end(trans).await;
    let convert = |partition, volid| ConvertROtoRWvolume { partition, volid };
    lab.fails(convert(A, RO), Abort(18)).await;
    lab.fails(convert(A, RW), EINVAL).await;
    lab.fails(convert(B, RO), ENODEV).await;
    lab.fails(convert(PartitionId(7), RO), VOLSERILLEGAL_PARTITION).await;
    lab.call(NukeVolume { partition: A, volid: RW }).await.unwrap();
    let trans = lab.begin(RO, AttachFlags::BUSY).await;
    lab.fails(convert(A, RO), VOLSERVOLBUSY).await;
    lab.end(trans).await;

    lab.told();
    lab.call(convert(A, RO)).await.unwrap();
    assert_eq!(lab.told(), [RO, RW]);
    lab.fails(ListOneVolume { partition: A, volid: RO }, ENODEV).await;
    let info = lab.one(RW).await;
    assert_eq!((info.status, info.in_use, info.name.text()), (VOK, 1, &b"user.x"[..]));
    assert_eq!((info.kind, info.parent_id, info.clone_id), (VolumeType::READ_WRITE, RW, none));
    assert_eq!(lab.state(RW), VolumeState::Online);
    let volume = lab.partitions.find(RW).unwrap().1;
    volume.create_file(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(30)).unwrap();
    assert_eq!(lab.service.transaction_count(), 0);
}

/// A release that was broken off leaves one that its server removes when it starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_half_made_is_not_converted() {
    let lab = Lab::new();
    lab.create(RO, "user.x.readonly").await;
    let trans = lab.begin(RO, AttachFlags::OFFLINE).await;
    let (name, kind, none) = (text("user.x.readonly"), VolumeType::READ_ONLY, VolumeId(0));
    let order = SetIdsTypes { trans, name, kind, parent_id: RW, clone_id: none, backup_id: none };
    lab.call(order).await.unwrap();
    let half_made = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
    lab.call(SetFlags { trans, flags: half_made }).await.unwrap();
    lab.end(trans).await;
    let convert = || ConvertROtoRWvolume { partition: A, volid: RO };
    lab.fails(convert(), EINVAL).await;
    assert_eq!(lab.one(RO).await.kind, VolumeType::READ_ONLY);
    let trans = lab.begin(RO, AttachFlags::OFFLINE).await;
    lab.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
    lab.end(trans).await;
    lab.call(convert()).await.unwrap();
    assert_eq!(lab.state(RW), VolumeState::Online);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_renamed_removed_and_nuked() {
    let lab = Lab::new();
    for (volid, name) in [(RW, "user.x"), (RO, "user.y")] {
        lab.create(volid, name).await;
    }
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let (kind, none) = (VolumeType::READ_WRITE, VolumeId(0));
    let rename =
        SetIdsTypes { trans, name: text("user.z"), kind, parent_id: RW, clone_id: none, backup_id: BACKUP };
    lab.call(rename).await.unwrap();
    lab.end(trans).await;
    let info = lab.one(RW).await;
    assert_eq!((info.name.text(), info.backup_id), (&b"user.z"[..], BACKUP));

    lab.told();
    let trans = lab.begin(RW, AttachFlags::OFFLINE).await;
    lab.call(DeleteVolume { trans }).await.unwrap();
    lab.fails(GetName { trans }, ENOENT).await;
    assert_eq!(lab.told(), [RW]);
    lab.end(trans).await;
    lab.call(NukeVolume { partition: A, volid: RO }).await.unwrap();
    assert_eq!(lab.call(ListVolumes { partition: A, flags: 1 }).await.unwrap().entries.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn vos_online_opens_a_partition_again_when_its_disk_works_again() {
    let disk = SimulatedDisk::new(1 << 30);
    let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
    let only = disk.clone();
    let lab = Lab::on(
        |_| {},
        move |folder| {
            // The second partition is another disk.
            let disk = if folder.ends_with("0") { only.clone() } else { SimulatedDisk::new(1 << 30) };
            Partition::open_on(Arc::new(disk), folder, config.clone()).unwrap()
        },
    );
    lab.create(RW, "user.x").await;
    lab.create(RO, "user.y").await;
    // What a failed sync was to write would be lost.
    lab.partitions.get(A).unwrap().sync().unwrap();
    disk.set_cut(Some(Cut::ErrorsFrom(0)));
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let kind = VolumeType::READ_WRITE;
    let none = VolumeId(0);
    let rename =
        SetIdsTypes { trans, name: text("user.z"), kind, parent_id: RW, clone_id: none, backup_id: none };
    lab.fails(rename, EIO).await;
    assert_eq!(lab.end(trans).await, EIO.0);
    let is_offline = |volume| matches!(lab.state(volume), VolumeState::Offline(_));
    assert!(is_offline(RW) && is_offline(RO), "all volumes of the partition");
    assert_eq!(lab.one(RO).await.in_use, 0, "as 'vos examine' says");

    let trans = lab.begin(RW, AttachFlags::OFFLINE).await;
    lab.fails(SetFlags { trans, flags: VolumeFlags::NONE }, EIO).await;
    lab.end(trans).await;
    assert!(is_offline(RW), "the disk fails still");

    disk.set_cut(None);
    let trans = lab.begin(RW, AttachFlags::OFFLINE).await;
    lab.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
    lab.end(trans).await;
    assert_eq!([lab.state(RW), lab.state(RO)], [VolumeState::Online, VolumeState::Online]);
    assert_eq!(lab.one(RW).await.name.text(), b"user.x", "what was refused was not done");
}

/// Rows of which nothing is known.
#[derive(Debug)]
struct AnyRows;

impl Schema for AnyRows {
    fn version(&self) -> u64 {
        u64::MAX
    }
}

/// A stock server lists a volume that it cannot attach with its number alone; `vos zap -force` is what removes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_volume_is_listed_by_its_number_and_can_be_removed() {
    let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
    let on = |disk: &SimulatedDisk| {
        let disk = disk.clone();
        Lab::on(
            |_| {},
            |folder| {
                let disk = if folder.ends_with("0") { disk.clone() } else { SimulatedDisk::new(1 << 30) };
                Partition::open_on(Arc::new(disk), folder, config.clone()).unwrap()
            },
        )
    };
    let disk = SimulatedDisk::new(1 << 30);
    let lab = on(&disk);
    lab.create(RW, "user.x").await;
    lab.create(RO, "user.y").await;
    let disk = disk.after_kill();
    drop(lab);
    let options = Options { cache_bytes: 1 << 20, log_bytes: 1 << 20 };
    let store = Store::open(Arc::new(disk.clone()), options, &AnyRows).unwrap();
    let mut batch = Batch::default();
    // The row of a volume (Volume format 4).
    batch.put(Key([&[2][..], &RW.0.to_be_bytes()].concat()), vec![1, 2, 3]);
    store.submit(batch).unwrap();
    store.close().unwrap();
    drop(store);

    let lab = on(&disk);
    let found = lab.one(RW).await;
    assert_eq!((found.volid, found.status, found.name.text()), (RW, 0, &b""[..]));
    let listed = lab.call(ListVolumes { partition: A, flags: 1 }).await.unwrap().entries;
    let listed: Vec<_> = listed.iter().map(|entry| (entry.volid, entry.status)).collect();
    assert_eq!(listed, [(RW, 0), (RO, VOK)]);
    lab.fails(TransCreate { volume: RW, partition: A, flags: AttachFlags::OFFLINE }, VOFFLINE).await;
    assert_eq!(lab.state(RO), VolumeState::Online);
    lab.call(NukeVolume { partition: A, volid: RW }).await.unwrap();
    assert_eq!(lab.call(ListVolumes { partition: A, flags: 1 }).await.unwrap().entries.len(), 1);
    lab.create(RW, "user.x").await;
    assert_eq!(lab.one(RW).await.name.text(), b"user.x");
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_listed() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    let ids = lab.call(ListPartitions {}).await.unwrap().part_ids.part_ids;
    assert_eq!((ids[0], ids[1], ids[2]), (A, B, PartitionId(-1)));
    assert_eq!(lab.call(XListPartitions {}).await.unwrap().part_ids.into_vec(), [A, B]);
    for name in ["/vicepb", "vicepb", "b"] {
        let info = lab.call(PartitionInfo64 { name: text(name) }).await.unwrap().partition;
        assert_eq!(info.name.text(), b"/vicepb");
        assert!(0 < info.free && info.free <= info.total_usable);
        // What `vos partinfo` shows as the size.
        assert_eq!(info.min_free, info.total_usable);
        let info = lab.call(PartitionInfo { name: text(name) }).await.unwrap().partition;
        assert_eq!(info.name.text(), b"/vicepb");
        assert!(info.min_free > 0);
    }
    for name in ["c", "", "/vicep", "\u{fc}"] {
        lab.fails(PartitionInfo64 { name: text(name) }, VOLSERILLEGAL_PARTITION).await;
    }
    let bare = lab.call(ListVolumes { partition: A, flags: 0 }).await.unwrap().entries.into_vec();
    assert_eq!((bare[0].volid, bare[0].name.text()), (RW, &b""[..]));
    let extended = lab.call(XListOneVolume { partition: A, volid: RW }).await.unwrap().entries.into_vec();
    assert_eq!((extended[0].status, extended[0].name.text()), (VOK, &b"user.x"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_change_volumes() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(new_volume(RO, "user.y"), VOLSERBAD_ACCESS).await;
    lab.fails(TransCreate { volume: RW, partition: A, flags: AttachFlags::BUSY }, VOLSERBAD_ACCESS).await;
    lab.fails(SetFlags { trans, flags: VolumeFlags::DELETED }, VOLSERBAD_ACCESS).await;
    lab.fails(DeleteVolume { trans }, VOLSERBAD_ACCESS).await;
    lab.fails(NukeVolume { partition: A, volid: RW }, VOLSERBAD_ACCESS).await;
    lab.fails(ReClone { trans, clone_id: RO }, VOLSERBAD_ACCESS).await;
    lab.fails(ConvertROtoRWvolume { partition: A, volid: RO }, VOLSERBAD_ACCESS).await;
    lab.fails(EndTrans { trans }, VOLSERBAD_ACCESS).await;
    assert!(lab.call(Monitor {}).await.is_ok() && lab.call(XListPartitions {}).await.is_ok());

    let lab = Lab::with(|config| config.is_restricted = true);
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(Monitor {}, VOLSERBAD_ACCESS).await;
    lab.fails(ListVolumes { partition: A, flags: 1 }, VOLSERBAD_ACCESS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_served_is_refused_as_by_servers_without_it() {
    let lab = Lab::new();
    let split = SplitVolume { volid: RW, new_id: VolumeId(0), vnode: 1, verbose: 0 };
    assert_eq!(lab.stream(split).await.unwrap_err(), AbortCode(Abort::OPCODE.0));
    lab.fails(GetNthVolume { index: 0 }, VOLSERNO_OP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_nobody_uses_ends() {
    let first = Lab::new();
    first.create(RW, "user.x").await;
    let lab = first.beside(|config| config.idle_limit = Duration::from_secs(1));
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let ended = async {
        while lab.service.transaction_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    assert_eq!(lab.state(RW), VolumeState::Online);
    lab.fails(GetName { trans }, ENOENT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_leaves_the_volume_in_service_and_says_what_is_wrong() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    let report = lab.service.check(A, RW).await.unwrap();
    assert!(report.is_clean() && (report.volumes, report.vnodes) == (1, 1), "{report:?}");
    assert_eq!(lab.service.check(B, RW).await, Err(Unchecked::NoVolume));
    assert_eq!(lab.service.check(PartitionId(9), RW).await, Err(Unchecked::NoVolume));
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    assert_eq!(lab.service.check(A, RW).await, Err(Unchecked::Busy));
    assert_eq!(lab.state(RW), VolumeState::Busy, "whoever works on it goes on");
    lab.end(trans).await;

    let volume = lab.partitions.find(RW).unwrap().1;
    let (set, stamp) = (SetStatus::default(), Stamp { who: ViceId(1), now: AfsTime(1) });
    let file = volume.create_file(VnodeId::ROOT, b"f", &set, stamp).unwrap().vnode.id;
    let range = StoreRange { position: 0, length: 100_000, file_length: 100_000 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(&[1; 100_000]).unwrap();
    store.commit(&set, stamp, false).unwrap();
    let data = std::fs::read_dir(lab.partitions.get(A).unwrap().folder().join("data")).unwrap();
    for file in data.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap()) {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let report = lab.service.check(A, RW).await.unwrap();
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert!(report.findings[0].to_string().contains("is not there"), "{report:?}");
    assert_eq!((lab.state(RW), lab.service.transaction_count()), (VolumeState::Online, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_transactions_end_when_the_service_is_stopped() {
    let lab = Lab::new();
    lab.create(RW, "user.x").await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    lab.service.end_all().await;
    assert_eq!((lab.state(RW), lab.service.transaction_count()), (VolumeState::Online, 0));
    lab.fails(GetName { trans }, ENOENT).await;
}
