//! Snapshots: who sees them, who may make and remove them, and what stays of them when their volume goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::dumps::{FULL, cookie, filled, stamp, store};
use crate::support::{A, B, Lab, RO, RW, text};
use afs_volume::{VnodeId, VolumeState};
use afs_wire::abort::{VNOVOL, VOLSERBAD_ACCESS, VOLSERBADOP, VVOLEXISTS};
use afs_wire::afsvol::{
    AttachFlags, Clone, ConvertROtoRWvolume, CreateVolume, DeleteVolume, GetStatus, ListOneVolume,
    ListVolumes, NukeVolume, ReClone, Restore, RestoreFlags, SetDate, SetFlags, SetIdsTypes, SnapshotCreate,
    SnapshotInfo, SnapshotList, SnapshotPublish, SnapshotRemove, SnapshotType, VolumeFlags, XListVolumes,
};
use afs_wire::ids::{AfsTime, VolumeId, VolumeType};
use rx_proto::abort::AbortCode;
use rxgen::Abort;

const ONE: VolumeId = VolumeId(536_870_930);
const TWO: VolumeId = VolumeId(536_870_931);

const START: u32 = 1_700_000_000;

/// A server whose time is told to it, with a volume that has something in it.
async fn lab() -> (Lab, Arc<AtomicU32>) {
    let time = Arc::new(AtomicU32::new(START));
    let clock = Arc::clone(&time);
    let lab = Lab::with(|config| config.clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed))));
    filled(&lab).await;
    (lab, time)
}

impl Lab {
    async fn snapshot(&self, new_vol: VolumeId) -> Result<AfsTime, AbortCode> {
        let trans = self.begin(RW, AttachFlags::READ_ONLY).await;
        assert_eq!(self.state(RW), VolumeState::Online, "clients do not notice");
        let made = self.call(SnapshotCreate { trans, new_vol }).await;
        self.end(trans).await;
        made.map(|reply| reply.made)
    }

    async fn snapshots(&self, volume: VolumeId) -> Vec<SnapshotInfo> {
        self.call(SnapshotList { volume }).await.unwrap().snapshots.into_vec()
    }

    async fn ids(&self) -> Vec<VolumeId> {
        self.snapshots(RW).await.into_iter().map(|snapshot| snapshot.volid).collect()
    }

    async fn remove_volume(&self, volume: VolumeId) {
        let trans = self.begin(volume, AttachFlags::OFFLINE).await;
        self.call(DeleteVolume { trans }).await.unwrap();
        self.end(trans).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_listed_by_those_alone_who_ask_for_snapshots() {
    let (lab, time) = lab().await;
    assert_eq!(lab.snapshot(ONE).await.unwrap(), AfsTime(START));
    time.fetch_add(3600, Ordering::Relaxed);
    lab.snapshot(TWO).await.unwrap();
    let found = lab.snapshots(RW).await;
    let made: Vec<_> = found.iter().map(|s| (s.volid, s.made.0, s.kind, s.partition)).collect();
    assert_eq!(made, [(ONE, START, SnapshotType::MANUAL, A), (TWO, START + 3600, SnapshotType::MANUAL, A)]);
    assert!(found.iter().all(|s| s.parent == RW && s.name.to_vec() == b"user.x" && s.used_kib > 3000));
    assert_eq!(lab.snapshots(VolumeId(0)).await, found);
    assert_eq!(lab.snapshots(RO).await, []);
    for flags in [0, 1] {
        let listed = lab.call(ListVolumes { partition: A, flags }).await.unwrap().entries.into_vec();
        assert_eq!(listed.iter().map(|volume| volume.volid).collect::<Vec<_>>(), [RW]);
        let listed = lab.call(XListVolumes { partition: A, flags }).await.unwrap().entries.into_vec();
        assert_eq!(listed.iter().map(|volume| volume.volid).collect::<Vec<_>>(), [RW]);
    }
    // A caller who knows the id is told of a clone.
    let one = lab.one(ONE).await;
    assert_eq!((one.kind, one.parent_id, one.creation_date.0), (VolumeType::BACKUP, RW, START));
    let rw = lab.one(RW).await;
    assert_eq!((rw.clone_id, rw.backup_id), (VolumeId(0), VolumeId(0)), "nothing in its volume names it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_dumped_with_what_the_volume_was() {
    let (lab, time) = lab().await;
    let before = lab.dumped(RW).await;
    lab.snapshot(ONE).await.unwrap();
    let volume = lab.partitions.find(RW).unwrap().1;
    let directory = volume.lookup(VnodeId::ROOT, b"d").unwrap();
    store(&volume, volume.lookup(directory, b"long").unwrap(), b"new", 30);
    volume.remove_file(directory, b"short", stamp(31)).unwrap();
    time.fetch_add(1, Ordering::Relaxed);
    lab.snapshot(TWO).await.unwrap();
    assert!(lab.dumped(ONE).await.vnodes == before.vnodes);
    assert!(lab.dumped(TWO).await.vnodes == lab.dumped(RW).await.vnodes);
    lab.assert_whole("with snapshots");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_snapshot_in_a_second_and_a_taken_id_are_refused() {
    let (lab, time) = lab().await;
    lab.snapshot(ONE).await.unwrap();
    assert_eq!(lab.snapshot(TWO).await.unwrap_err(), AbortCode(VVOLEXISTS.0));
    time.fetch_add(1, Ordering::Relaxed);
    assert_eq!(lab.snapshot(ONE).await.unwrap_err(), AbortCode(VVOLEXISTS.0));
    assert_eq!(lab.snapshot(VolumeId(0)).await.unwrap_err(), AbortCode(22));
    assert_eq!(lab.ids().await, [ONE]);
    let trans = lab.begin(ONE, AttachFlags::READ_ONLY).await;
    lab.fails(SnapshotCreate { trans, new_vol: TWO }, Abort(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_make_and_remove_snapshots() {
    let (lab, _) = lab().await;
    lab.snapshot(ONE).await.unwrap();
    let trans = lab.begin(RW, AttachFlags::READ_ONLY).await;
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(SnapshotCreate { trans, new_vol: TWO }, VOLSERBAD_ACCESS).await;
    lab.fails(SnapshotRemove { partition: A, volid: ONE }, VOLSERBAD_ACCESS).await;
    assert_eq!(lab.ids().await, [ONE], "anybody may ask");
    let restricted = lab.beside(|config| config.is_restricted = true);
    restricted.everybody.0.store(false, Ordering::Relaxed);
    restricted.fails(SnapshotList { volume: RW }, VOLSERBAD_ACCESS).await;
    lab.everybody.0.store(true, Ordering::Relaxed);
    lab.end(trans).await;
    lab.told();
    lab.call(SnapshotRemove { partition: A, volid: ONE }).await.unwrap();
    assert_eq!(lab.told(), [ONE], "clients that have it are told");
    lab.fails(SnapshotRemove { partition: A, volid: ONE }, VNOVOL).await;
    lab.fails(SnapshotRemove { partition: A, volid: RW }, Abort(22)).await;
    lab.fails(ListOneVolume { partition: A, volid: ONE }, Abort(19)).await;
}

/// `vos remove`, `vos zap` and whatever else OpenAFS's tools do to a volume that they can name.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_removes_or_changes_a_snapshot_who_does_not_know_what_it_is() {
    let (lab, _) = lab().await;
    lab.snapshot(ONE).await.unwrap();
    let trans = lab.begin(ONE, AttachFlags::OFFLINE).await;
    let half_made = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
    lab.fails(SetFlags { trans, flags: half_made }, VOLSERBADOP).await;
    lab.fails(DeleteVolume { trans }, VOLSERBADOP).await;
    lab.fails(SetDate { trans, new_date: AfsTime(5) }, VOLSERBADOP).await;
    let (kind, none) = (VolumeType::READ_WRITE, VolumeId(0));
    let identity =
        SetIdsTypes { trans, name: text("other"), kind, parent_id: ONE, clone_id: none, backup_id: none };
    lab.fails(identity, VOLSERBADOP).await;
    lab.end(trans).await;
    lab.fails(NukeVolume { partition: A, volid: ONE }, VOLSERBADOP).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let purging =
        Clone { trans, purge_vol: ONE, new_type: VolumeType::BACKUP, new_name: text(""), new_vol: TWO };
    lab.fails(purging, VOLSERBADOP).await;
    lab.fails(ReClone { trans, clone_id: ONE }, Abort(30)).await;
    lab.end(trans).await;
    lab.fails(ConvertROtoRWvolume { partition: A, volid: ONE }, Abort(22)).await;
    let trans = lab.begin(ONE, AttachFlags::OFFLINE).await;
    let mut call = lab.connection.call().await.unwrap();
    let order = Restore { trans, flags: RestoreFlags::NONE, cookie: cookie() };
    call.send_request(&order).await.unwrap();
    assert!(call.reply::<Restore>().await.is_err());
    lab.end(trans).await;
    assert_eq!((lab.ids().await, lab.state(ONE)), (vec![ONE], VolumeState::Online));
    lab.assert_whole("after all that");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snapshots_of_a_removed_volume_stay_and_are_no_obstacle() {
    let (lab, time) = lab().await;
    lab.snapshot(ONE).await.unwrap();
    let dump = lab.dump(ONE).await;
    for how in ["removed", "zapped"] {
        match how {
            "removed" => lab.remove_volume(RW).await,
            _ => _ = lab.call(NukeVolume { partition: A, volid: RW }).await.unwrap(),
        }
        assert_eq!((lab.ids().await, lab.state(ONE)), (vec![ONE], VolumeState::Online), "{how}");
        assert!(lab.dump(ONE).await == dump, "{how}");
        // The volume comes back from a dump, and its new snapshots are listed with the old ones.
        let target = lab.begin_copy().await;
        let mut call = lab.connection.call().await.unwrap();
        let order = Restore { trans: target, flags: RestoreFlags::NONE, cookie: cookie() };
        call.send_request(&order).await.unwrap();
        call.write_all(&dump).await.unwrap();
        call.reply::<Restore>().await.unwrap();
        lab.settle(target).await;
    }
    time.fetch_add(1, Ordering::Relaxed);
    lab.snapshot(TWO).await.unwrap();
    assert_eq!(lab.ids().await, [ONE, TWO]);
    // It moved to another partition, where a replica of it can be made.
    lab.remove_volume(RW).await;
    let replica = |partition| CreateVolume {
        partition,
        name: text("user.x.readonly"),
        kind: VolumeType::READ_ONLY,
        parent: RW,
        volid: RO,
    };
    lab.call(replica(B)).await.unwrap();
    lab.assert_whole("after all that");
    let from_trans = lab.begin(TWO, AttachFlags::READ_ONLY).await;
    let order = afs_wire::afsvol::Dump { from_trans, from_date: FULL };
    assert!(!lab.stream(order).await.unwrap().is_empty());
}

/// It has an entry of its own in the location database, so all tools have to find what that says.
#[tokio::test(flavor = "multi_thread")]
async fn a_published_snapshot_is_listed_as_the_volume_of_its_entry_and_nobody_changes_it() {
    let (lab, _) = lab().await;
    lab.snapshot(ONE).await.unwrap();
    let publish =
        |is_published, name| SnapshotPublish { partition: A, volid: ONE, is_published, name: text(name) };
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(publish(1, "then"), VOLSERBAD_ACCESS).await;
    lab.everybody.0.store(true, Ordering::Relaxed);
    let of_volume = SnapshotPublish { partition: A, volid: RW, is_published: 1, name: text("then") };
    lab.fails(of_volume, Abort(22)).await;
    lab.told();
    lab.call(publish(1, "then")).await.unwrap();
    assert_eq!(lab.told(), [ONE], "other rights count in it now");
    let found = lab.snapshots(RW).await;
    assert_eq!((found[0].kind, found[0].name.to_vec()), (SnapshotType::PUBLISHED, b"then".to_vec()));
    let listed = lab.call(ListVolumes { partition: A, flags: 1 }).await.unwrap().entries.into_vec();
    let seen = |volume: &afs_wire::afsvol::VolintInfo| (volume.volid, volume.kind, volume.parent_id);
    assert_eq!(
        listed.iter().map(seen).collect::<Vec<_>>(),
        [RW, ONE].map(|id| (id, VolumeType::READ_WRITE, id))
    );
    assert_eq!(lab.one(ONE).await.name.text(), b"then");
    let trans = lab.begin(ONE, AttachFlags::BUSY).await;
    let status = lab.call(GetStatus { trans }).await.unwrap().status;
    assert_eq!((status.kind, status.parent_id), (VolumeType::READ_WRITE, ONE));
    // As 'vos backup', 'vos release', 'vos move' and 'vos remove' begin.
    let clone = Clone {
        trans,
        purge_vol: VolumeId(0),
        new_type: VolumeType::BACKUP,
        new_name: text(""),
        new_vol: TWO,
    };
    lab.fails(clone, VOLSERBADOP).await;
    lab.fails(DeleteVolume { trans }, VOLSERBADOP).await;
    lab.end(trans).await;
    lab.fails(SnapshotRemove { partition: A, volid: ONE }, VOLSERBADOP).await;
    lab.call(publish(0, "user.x")).await.unwrap();
    let found = lab.snapshots(RW).await;
    assert_eq!((found[0].kind, found[0].name.to_vec()), (SnapshotType::MANUAL, b"user.x".to_vec()));
    let listed = lab.call(ListVolumes { partition: A, flags: 1 }).await.unwrap().entries.into_vec();
    assert_eq!(listed.len(), 1, "nobody who does not ask for snapshots is told of it any more");
    lab.call(SnapshotRemove { partition: A, volid: ONE }).await.unwrap();
    lab.assert_whole("at the end");
}
