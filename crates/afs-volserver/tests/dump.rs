//! Dumps over loopback: what is in them, and that nobody waits for them.

use crate::support;
use std::sync::atomic::Ordering;

use crate::support::dumps::{FULL, Read, filled, read, stamp, store};
use crate::support::{BACKUP, Lab, RW, TIMEOUT};
use afs_dump::VnodeKind;
use afs_volume::{SetStatus, VnodeId, VolumeState};
use afs_wire::abort::VOLSERBAD_ACCESS;
use afs_wire::afsvol::{AttachFlags, Dump, DumpFlags, DumpV2, GetSize};
use afs_wire::ids::{AfsTime, TransId, VnodeNumber, VolumeId, VolumeType};
use rx_proto::abort::AbortCode;

/// Which vnodes are there with all that they have.
fn whole(stream: &[u8]) -> Vec<u32> {
    let all = read(stream).vnodes;
    assert_eq!(all.len(), 6, "each is named");
    all.values()
        .filter(|(record, _)| record.attributes.is_some())
        .map(|(record, _)| record.fid.vnode.0)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_dump_has_everything() {
    let lab = Lab::new();
    let volume = filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let stream = lab.stream(Dump { from_trans: trans, from_date: FULL }).await.unwrap();
    let Read { kind, ids, vnodes } = read(&stream);
    assert_eq!((kind, ids), (VolumeType::READ_WRITE, [RW, RW]));
    assert_eq!(vnodes.keys().map(|vnode| vnode.0).collect::<Vec<_>>(), [1, 2, 3, 4, 6, 8]);
    for (number, (record, data)) in &vnodes {
        let id = VnodeId { vnode: *number, unique: record.fid.unique };
        let (status, acl) = volume.status_and_acl(id).unwrap();
        let dumped = record.attributes.as_ref().unwrap();
        assert_eq!(
            (dumped.mode, dumped.owner, dumped.group, dumped.author, dumped.length),
            (status.mode, status.owner, status.group, status.author, Some(status.length))
        );
        assert_eq!(
            (dumped.client_mod_time, dumped.server_mod_time, u32::from(dumped.link_count)),
            (status.client_mod_time, status.server_mod_time, status.link_count)
        );
        assert_eq!(dumped.acl, (dumped.kind == VnodeKind::Directory).then_some(acl));
        let mut stored = vec![0; status.length as usize];
        volume.open(id, 0, u64::MAX).unwrap().read_at(0, &mut stored).unwrap();
        assert!(*data == stored, "vnode {number}");
    }
    let size = lab.call(GetSize { from_trans: trans, from_date: FULL }).await.unwrap().size.dump_size;
    assert_eq!(size, stream.len() as u64, "GetSize tells it before");
    assert_eq!(lab.end(trans).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incremental_dump_has_what_changed_and_names_the_rest() {
    let lab = Lab::new();
    filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let dump = |from| lab.stream(Dump { from_trans: trans, from_date: AfsTime(from) });
    // The root directory and "d" are 1 and 3; "long" 2, "short" 4, "empty" 6, the link 8.
    assert_eq!(whole(&dump(11).await.unwrap()), [1, 3, 4, 6]);
    assert_eq!(whole(&dump(20).await.unwrap()), [1, 3, 4, 6], "what changed at that time is there");
    assert_eq!(whole(&dump(21).await.unwrap()), [1, 3], "all directories");
    assert_eq!(whole(&dump(u32::MAX).await.unwrap()).len(), 6, "before 1970 is everything");
    let v2 = |from, flags| lab.stream(DumpV2 { from_trans: trans, from_date: AfsTime(from), flags });
    assert_eq!(whole(&v2(21, DumpFlags::OMIT_DIRS).await.unwrap()), []);
    assert_eq!(whole(&v2(20, DumpFlags::OMIT_DIRS).await.unwrap()), [3, 4, 6]);
    assert_eq!(whole(&v2(21, DumpFlags::NONE).await.unwrap()), [1, 3]);
    lab.end(trans).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_go_on_while_a_dump_is_read() {
    let lab = Lab::new();
    let volume = filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    assert_eq!(lab.state(RW), VolumeState::Busy);
    let mut call = lab.connection.call().await.unwrap();
    call.send_request(&Dump { from_trans: trans, from_date: FULL }).await.unwrap();
    call.finish().unwrap();
    let mut stream = call.recv().await.unwrap().unwrap().to_vec();
    assert_eq!(lab.state(RW), VolumeState::Online);
    let long =
        VnodeId { vnode: VnodeNumber(2), unique: volume.vnodes(VnodeNumber(2), 1).unwrap()[0].id.unique };
    store(&volume, long, &vec![b'x'; 4 << 20], 30);
    volume.create_file(VnodeId::ROOT, b"later", &SetStatus::default(), stamp(30)).unwrap();
    stream.extend(call.read_to_end(1 << 30).await.unwrap());
    let vnodes = read(&stream).vnodes;
    assert_eq!(vnodes.len(), 6);
    assert!(vnodes[&VnodeNumber(2)].1 == vec![b'l'; 3 << 20], "as it was when the dump began");
    lab.end(trans).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_the_transaction_to_be_ended() {
    let lab = Lab::new();
    filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let mut call = lab.connection.call().await.unwrap();
    call.send_request(&Dump { from_trans: trans, from_date: FULL }).await.unwrap();
    call.finish().unwrap();
    call.recv().await.unwrap();
    drop(call);
    // The server hears of it some time.
    let is_over = async {
        while lab.call(GetSize { from_trans: trans, from_date: FULL }).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, is_over).await.expect("the call ends in time");
    lab.end(trans).await;
    assert_eq!(lab.state(RW), VolumeState::Online);
    assert_eq!(lab.service.transaction_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_dump_and_only_in_a_transaction() {
    let lab = Lab::new();
    filled(&lab).await;
    let unknown = lab.stream(Dump { from_trans: TransId(77), from_date: FULL }).await;
    assert_eq!(unknown, Err(AbortCode(2)));
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    lab.everybody.0.store(false, Ordering::Relaxed);
    let refused = lab.stream(Dump { from_trans: trans, from_date: FULL }).await;
    assert_eq!(refused, Err(AbortCode(VOLSERBAD_ACCESS.0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_volume_is_dumped_under_its_own_id() {
    let lab = Lab::new();
    filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let clone = afs_wire::afsvol::Clone {
        trans,
        purge_vol: VolumeId(0),
        new_type: VolumeType::BACKUP,
        new_name: support::text("user.x.backup"),
        new_vol: BACKUP,
    };
    lab.call(clone).await.unwrap();
    lab.end(trans).await;
    let trans = lab.begin(BACKUP, AttachFlags::OFFLINE).await;
    let stream = lab.stream(Dump { from_trans: trans, from_date: FULL }).await.unwrap();
    let Read { kind, ids, vnodes } = read(&stream);
    assert_eq!((kind, ids, vnodes.len()), (VolumeType::BACKUP, [BACKUP, BACKUP], 6));
    assert!(matches!(lab.state(BACKUP), VolumeState::Offline(_)), "who asked for that keeps it");
    lab.end(trans).await;
}
