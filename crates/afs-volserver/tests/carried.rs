//! Snapshots that come along with a volume to another server: as 'vos move' brings them, and what is left when it does not end.

use crate::support::dumps::{cookie, filled, stamp, store};
use crate::support::{A, Lab, RO, RW};
use afs_volume::{VnodeId, VolumeState};
use afs_wire::abort::{VNOVOL, VOLSERBAD_ACCESS};
use afs_wire::afsvol::{
    AttachFlags, DeleteVolume, SetFlags, SnapshotCarry, SnapshotCreate, SnapshotForward, SnapshotInfo,
    SnapshotList, SnapshotType, VolumeFlags,
};
use afs_wire::ids::{AfsTime, TransId, VolumeId};
use rxgen::Abort;

const ONE: VolumeId = VolumeId(536_870_930);
const TWO: VolumeId = VolumeId(536_870_931);
const NONE: VolumeId = VolumeId(0);

impl Lab {
    async fn known(&self) -> Vec<SnapshotInfo> {
        self.call(SnapshotList { volume: RW }).await.unwrap().snapshots.into_vec()
    }

    async fn makes(&self, new_vol: VolumeId) -> SnapshotInfo {
        let trans = self.begin(RW, AttachFlags::READ_ONLY).await;
        self.call(SnapshotCreate { trans, new_vol }).await.unwrap();
        self.end(trans).await;
        self.known().await.into_iter().find(|snapshot| snapshot.volid == new_vol).unwrap()
    }

    async fn sends(&self, volume: VolumeId, base: VolumeId, to: &Lab, dest_trans: TransId) {
        let from_trans = self.begin(volume, AttachFlags::READ_ONLY).await;
        let destination = to.destination();
        let order = SnapshotForward { from_trans, base, destination, dest_trans, cookie: cookie() };
        self.call(order).await.unwrap();
        self.end(from_trans).await;
    }
}

fn carry(trans: TransId, snapshot: &SnapshotInfo) -> SnapshotCarry {
    SnapshotCarry { trans, new_vol: snapshot.volid, made: snapshot.made, kind: snapshot.kind }
}

/// Another server has another clock, which says what a snapshot is made at only here.
async fn labs() -> (Lab, Lab) {
    let here = Lab::with(|config| {
        let time = std::sync::atomic::AtomicU32::new(1_700_000_000);
        config.clock =
            std::sync::Arc::new(move || AfsTime(time.fetch_add(10, std::sync::atomic::Ordering::Relaxed)));
    });
    filled(&here).await;
    (here, Lab::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_that_come_along_have_their_ids_times_and_contents() {
    let (here, there) = labs().await;
    let first = here.makes(ONE).await;
    // Long before the snapshot, as after a dump was restored over the volume.
    let volume = here.partitions.find(RW).unwrap().1;
    let directory = volume.lookup(VnodeId::ROOT, b"d").unwrap();
    store(&volume, volume.lookup(directory, b"long").unwrap(), b"new", 5);
    volume.remove_file(directory, b"short", stamp(5)).unwrap();
    let second = here.makes(TWO).await;
    store(&volume, volume.lookup(directory, b"empty").unwrap(), b"no more", 5);

    let target = there.begin_copy().await;
    here.sends(ONE, NONE, &there, target).await;
    let carried = async |snapshot: &SnapshotInfo| there.call(carry(target, snapshot)).await.unwrap().is_made;
    assert_eq!(carried(&first).await, 1);
    here.sends(TWO, ONE, &there, target).await;
    assert_eq!((carried(&second).await, carried(&second).await), (1, 0), "each of them once");
    here.sends(RW, TWO, &there, target).await;
    assert_eq!(there.known().await, [], "nobody is told of them before their volume is there");
    assert_ne!(there.state(ONE), VolumeState::Online);
    there.settle(target).await;
    assert_eq!(there.known().await, here.known().await);
    for id in [ONE, TWO, RW] {
        assert_eq!(there.state(id), VolumeState::Online);
        assert!(there.dumped(id).await.vnodes == here.dumped(id).await.vnodes, "{id}");
    }
    there.assert_whole("at the other server");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_snapshots_whose_volume_does_not_come() {
    let (here, there) = labs().await;
    let first = here.makes(ONE).await;
    let target = there.begin_copy().await;
    there.call(SnapshotCarry { new_vol: NONE, ..carry(target, &first) }).await.unwrap();
    here.sends(ONE, NONE, &there, target).await;
    there.call(carry(target, &first)).await.unwrap();
    let flags = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
    there.call(SetFlags { trans: target, flags }).await.unwrap();
    there.call(DeleteVolume { trans: target }).await.unwrap();
    there.end(target).await;
    let partition = there.partitions.get(A).unwrap();
    assert!(partition.volumes().is_empty());
    // What came is kept aside, and the next attempt goes on with it.
    assert_eq!(partition.halves(AfsTime(5)).unwrap().len(), 1);
    let target = there.begin_copy().await;
    here.sends(ONE, NONE, &there, target).await;
    there.call(carry(target, &first)).await.unwrap();
    here.sends(RW, ONE, &there, target).await;
    there.settle(target).await;
    assert_eq!(there.known().await, [first]);
    assert!(there.dumped(ONE).await.vnodes == here.dumped(ONE).await.vnodes);
    there.assert_whole("at the second attempt");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_superuser_has_snapshots_taken_over_and_only_with_a_volume_that_comes() {
    let (here, there) = labs().await;
    let first = here.makes(ONE).await;
    let target = there.begin_copy().await;
    for kind in [SnapshotType::REMOVED, SnapshotType::PUBLISHED, SnapshotType(9)] {
        there.fails(SnapshotCarry { kind, ..carry(target, &first) }, Abort(22)).await;
    }
    there.everybody.0.store(false, std::sync::atomic::Ordering::Relaxed);
    there.fails(carry(target, &first), VOLSERBAD_ACCESS).await;
    let trans = here.begin(RW, AttachFlags::READ_ONLY).await;
    here.fails(SnapshotCarry { new_vol: RO, ..carry(trans, &first) }, Abort(30)).await;
    let order = |base| SnapshotForward {
        from_trans: trans,
        base,
        destination: there.destination(),
        dest_trans: target,
        cookie: cookie(),
    };
    here.fails(order(RW), Abort(22)).await;
    here.fails(order(TWO), VNOVOL).await;
    assert_eq!(here.known().await, [first]);
}
