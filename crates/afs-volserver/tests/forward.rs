//! Volumes sent from one server to others over loopback: all that a client was ever told is done arrives, or the volume there is as it was.

use crate::support::dumps::{FULL, cookie, filled, read, stamp, store};
use crate::support::{A, B, BACKUP, Lab, RO, RW, text};
use afs_volume::{SetStatus, VnodeId, VolumeError, VolumeState};
use afs_wire::abort::{VOLSERBAD_ACCESS, VOLSERREAD_DUMPERROR};
use afs_wire::afsvol::{
    AttachFlags, Clone, CreateVolume, DeleteVolume, Dump, Forward, ForwardMultiple, Monitor, Replica,
    RestoreCookie, SetFlags, SetForwarding, TransCreate, VolumeFlags,
};
use afs_wire::ids::{AfsTime, TransId, VolumeId, VolumeType};
use rxgen::xdr::{CharVec, XdrArray};
use std::sync::atomic::Ordering;

fn forward(from_trans: TransId, from: u32, to: &Lab, dest_trans: TransId) -> Forward {
    let (from_date, destination) = (AfsTime(from), to.destination());
    Forward { from_trans, from_date, destination, dest_trans, cookie: cookie() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_sent_whole_and_then_what_changed() {
    let (here, there) = (Lab::new(), Lab::new());
    let volume = filled(&here).await;
    let target = there.begin_copy().await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, 0, &there, target)).await.unwrap();
    // How much has come is to be seen at both ends.
    let [sent, received] = [&here, &there].map(|lab| lab.call(Monitor {}));
    let sent = sent.await.unwrap().entries.into_vec().remove(0);
    let received = received.await.unwrap().entries.into_vec().remove(0);
    assert!(sent.call_valid == 1 && sent.transmit_next > 2000 && sent.read_next == 0, "{sent:?}");
    assert_eq!((received.read_next, received.transmit_next), (sent.transmit_next, 0));
    here.end(trans).await;
    let new = volume.create_file(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(30)).unwrap().vnode.id;
    store(&volume, new, b"new", 30);
    volume.remove_file(VnodeId::ROOT, b"link", stamp(30)).unwrap();
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, 25, &there, target)).await.unwrap();
    here.end(trans).await;
    there.settle(target).await;
    assert!(there.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
    there.assert_whole("at the end");
}

/// A volume that moves: what clients change behind what was sent would be lost.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_changes_between_the_last_sending_and_the_end_of_the_transaction() {
    let (here, there) = (Lab::new(), Lab::new());
    let volume = filled(&here).await;
    let file = volume.create_file(VnodeId::ROOT, b"f", &SetStatus::default(), stamp(20)).unwrap().vnode.id;
    let range = afs_volume::StoreRange { position: 0, length: 4, file_length: 4 };
    let mut begun = volume.begin_store(file, range).unwrap();
    begun.write(b"late").unwrap();
    let target = there.begin_copy().await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, 0, &there, target)).await.unwrap();
    assert_eq!(here.state(RW), VolumeState::Busy);
    // A store that was begun before is refused at its end.
    let late = begun.commit(&SetStatus::default(), stamp(21), false);
    assert!(matches!(late, Err(VolumeError::Busy(RW))), "{late:?}");
    let made = volume.create_file(VnodeId::ROOT, b"g", &SetStatus::default(), stamp(21));
    assert!(matches!(made, Err(VolumeError::Busy(RW))), "{made:?}");
    here.call(SetForwarding { trans, new_site: 0 }).await.unwrap();
    assert_eq!(here.state(RW), VolumeState::Moved);
    assert!(matches!(volume.check_online(), Err(VolumeError::Moved(RW))));
    there.settle(target).await;
    // It was not deleted: the move was given up.
    here.end(trans).await;
    assert_eq!(here.state(RW), VolumeState::Online);
    assert!(there.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_destination_that_fails_does_not_stop_the_others() {
    let (here, one, two) = (Lab::new(), Lab::new(), Lab::new());
    filled(&here).await;
    let targets = [(&one, one.begin_copy().await), (&two, TransId(77)), (&two, two.begin_copy().await)];
    let mut to: Vec<_> =
        targets.iter().map(|(lab, trans)| Replica { trans: *trans, server: lab.destination() }).collect();
    to[2].server.port = -1;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    let order = ForwardMultiple {
        from_trans: trans,
        from_date: FULL,
        destinations: XdrArray::new(to).unwrap(),
        spare: 0,
        cookie: cookie(),
    };
    let results = here.call(order).await.unwrap().results.into_vec();
    assert_eq!(results, [0, 2, 22]);
    here.end(trans).await;
    one.settle(targets[0].1).await;
    assert!(one.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_other_server_says_is_what_the_caller_is_told() {
    let (here, there) = (Lab::new(), Lab::new());
    filled(&here).await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.fails(forward(trans, 0, &there, TransId(77)), rxgen::Abort(2)).await;
    // An increment for a volume that has nothing to begin with.
    let target = there.begin_copy().await;
    here.fails(forward(trans, 1_000_000_000, &there, target), VOLSERREAD_DUMPERROR).await;
    there.everybody.0.store(false, Ordering::Relaxed);
    here.fails(forward(trans, 0, &there, target), VOLSERBAD_ACCESS).await;
    here.everybody.0.store(false, Ordering::Relaxed);
    here.fails(forward(trans, 0, &there, target), VOLSERBAD_ACCESS).await;
    here.fails(SetForwarding { trans, new_site: 0 }, VOLSERBAD_ACCESS).await;
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_find_one_volume_while_it_goes_to_another_partition_and_wait_at_its_end() {
    let lab = Lab::new();
    filled(&lab).await;
    let before = lab.dumped(RW).await;
    let clone = Clone {
        trans: lab.begin(RW, AttachFlags::BUSY).await,
        purge_vol: VolumeId(0),
        new_type: VolumeType::READ_ONLY,
        new_name: text(""),
        new_vol: RO,
    };
    let trans = clone.trans;
    lab.call(clone).await.unwrap();
    lab.end(trans).await;
    let kind = VolumeType::READ_WRITE;
    let target = CreateVolume { partition: B, name: text("user.x"), kind, parent: RW, volid: RW };
    let target = lab.call(target).await.unwrap().trans;
    let at = || lab.partitions.find(RW).unwrap().0;
    assert_eq!((at(), lab.state(RW)), (A, VolumeState::Online));
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    lab.call(forward(trans, 0, &lab, target)).await.unwrap();
    assert_eq!((at(), lab.state(RW)), (A, VolumeState::Busy));
    lab.call(SetFlags { trans, flags: VolumeFlags::OUT_OF_SERVICE }).await.unwrap();
    assert_eq!((at(), lab.state(RW)), (A, VolumeState::Busy), "nobody is told that it is offline");
    lab.settle(target).await;
    assert_eq!((at(), lab.state(RW)), (B, VolumeState::Online));
    lab.call(DeleteVolume { trans }).await.unwrap();
    lab.end(trans).await;
    assert_eq!((at(), lab.state(RW)), (B, VolumeState::Online));
    // What it has left there does not keep it from being cloned.
    let begin = |volume| TransCreate { volume, partition: B, flags: AttachFlags::BUSY };
    let trans = lab.call(begin(RW)).await.unwrap().trans;
    let stream = lab.stream(Dump { from_trans: trans, from_date: FULL }).await.unwrap();
    assert!(read(&stream).vnodes == before.vnodes);
    let clone = |id| Clone {
        trans,
        purge_vol: VolumeId(0),
        new_type: VolumeType::BACKUP,
        new_name: text(""),
        new_vol: id,
    };
    lab.call(clone(BACKUP)).await.unwrap();
    lab.fails(clone(RO), rxgen::Abort(18)).await;
    lab.end(trans).await;
    lab.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_replica_see_the_last_release_until_they_see_the_new_one() {
    let (here, there) = (Lab::new(), Lab::new());
    let volume = filled(&here).await;
    let kind = VolumeType::READ_ONLY;
    let name = || text("user.x.readonly");
    let order = CreateVolume { partition: A, name: name(), kind, parent: RW, volid: RO };
    let target = there.call(order).await.unwrap().trans;
    let cookie = RestoreCookie { name: CharVec::from_text("user.x.readonly").unwrap(), kind, ..cookie() };
    let send = async |from, target| {
        let trans = here.begin(RW, AttachFlags::BUSY).await;
        here.call(Forward { cookie: cookie.clone(), ..forward(trans, from, &there, target) }).await.unwrap();
        here.end(trans).await;
    };
    send(0, target).await;
    there.settle(target).await;
    assert_eq!(there.state(RO), VolumeState::Online);
    let new = volume.create_file(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(30)).unwrap().vnode.id;
    let target = there.begin(RO, AttachFlags::OFFLINE).await;
    let replica = || there.partitions.find(RO).unwrap().1;
    assert_eq!(there.state(RO), VolumeState::Online);
    assert!(replica().status(new).is_err());
    send(25, target).await;
    assert_eq!(there.state(RO), VolumeState::Online);
    assert!(replica().status(new).is_ok());
    // Offline for everybody by order.
    there.call(SetFlags { trans: target, flags: VolumeFlags::OUT_OF_SERVICE }).await.unwrap();
    there.end(target).await;
    assert!(matches!(there.state(RO), VolumeState::Offline(_)));
    there.assert_whole("at the end");
}
