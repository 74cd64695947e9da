//! Restores over loopback: a volume has what the dump says, or what it had.

use std::sync::Arc;

use crate::support::dumps::{filled, read, stamp, store};
use crate::support::{A, Lab, RW, TIMEOUT, text};
use afs_dump::{Event, Reader};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{Partition, SetStatus, VnodeId, Volume, VolumeState};
use afs_wire::abort::{VOLSERBADNAME, VOLSERREAD_DUMPERROR};
use afs_wire::afsvol::{
    AttachFlags, ConvertROtoRWvolume, CreateVolume, Dump, GetStatus, Monitor, Restore, RestoreCookie,
    RestoreFlags, SetFlags, SetIdsTypes, VolumeFlags,
};
use afs_wire::ids::{AfsTime, LocalFid, TransId, VnodeNumber, VolumeId, VolumeType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::abort::AbortCode;
use rxgen::xdr::CharVec;

const NEW: VolumeId = VolumeId(536_870_940);
const BROKEN: AbortCode = AbortCode(VOLSERREAD_DUMPERROR.0);

fn order(trans: TransId, name: &str) -> Restore {
    let cookie = RestoreCookie {
        name: CharVec::from_text(name).unwrap(),
        kind: VolumeType::READ_WRITE,
        clone: VolumeId(0),
        parent: NEW,
    };
    Restore { trans, flags: RestoreFlags::INCREMENTAL, cookie }
}

impl Lab {
    /// What `vos restore` does first: a volume without a root directory.
    async fn begin_new(&self) -> TransId {
        let kind = VolumeType::READ_WRITE;
        let order = CreateVolume { partition: A, name: text("user.new"), kind, parent: NEW, volid: NEW };
        self.call(order).await.unwrap().trans
    }

    async fn restore(&self, trans: TransId, stream: &[u8]) -> Result<(), AbortCode> {
        let mut call = self.connection.call().await.unwrap();
        call.send_request(&order(trans, "user.new")).await.unwrap();
        // The server may end the call before it has all.
        let _ = call.write_all(stream).await;
        call.reply::<Restore>().await.map(drop).map_err(|error| error.code())
    }

    /// Waits until some of what is sent to a transaction has been read.
    async fn wait_until_read(&self, trans: TransId) {
        let is_read = async {
            loop {
                let seen = self.call(Monitor {}).await.unwrap().entries.into_vec();
                if seen.iter().any(|seen| seen.tid == trans && seen.read_next > 0) {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, is_read).await.expect("something is read in time");
    }

    fn volume(&self, id: VolumeId) -> Arc<Volume> {
        self.partitions.find(id).unwrap().1
    }
}

/// A dump from its first vnode on.
fn vnodes(stream: &[u8]) -> &[u8] {
    let (mut reader, mut begin) = (Reader::new(), 0);
    for (at, byte) in stream.iter().enumerate() {
        let byte = [*byte];
        let mut input = &byte[..];
        while let Some(event) = reader.next(&mut input).unwrap() {
            match event {
                // Told by the tag of what follows.
                Event::Volume(_) => begin = at,
                Event::Vnode(_) => return &stream[begin..],
                _ => {}
            }
        }
    }
    panic!("no vnodes")
}

/// Where each vnode of a dump begins, and its end.
fn bounds(stream: &[u8]) -> Vec<usize> {
    let begin = |fid: LocalFid| {
        let header = [&[3_u8][..], &fid.vnode.0.to_be_bytes(), &fid.unique.0.to_be_bytes()].concat();
        stream.windows(header.len()).position(|window| window == header).unwrap()
    };
    let end = stream.len() - 5;
    let vnodes = read(stream).vnodes.into_values();
    let mut bounds: Vec<_> = vnodes.map(|(record, _)| begin(record.fid)).chain([end]).collect();
    bounds.sort_unstable();
    bounds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_volume_is_dumped_as_the_same() {
    let lab = Lab::new();
    filled(&lab).await;
    let original = lab.dump(RW).await;
    let trans = lab.begin_new().await;
    assert_eq!(lab.restore(trans, &original).await, Ok(()));
    let status = lab.call(GetStatus { trans }).await.unwrap().status;
    assert_eq!((status.vol_id, status.parent_id, status.max_quota), (NEW, NEW, 5000));
    lab.told();
    lab.settle(trans).await;
    assert_eq!((lab.state(NEW), lab.told()), (VolumeState::Online, vec![NEW]));
    assert!(vnodes(&lab.dump(NEW).await) == vnodes(&original));
    assert_eq!(lab.volume(NEW).header().used_kib, lab.volume(RW).header().used_kib);
    lab.assert_whole("after it was restored");
    // It can be used like another.
    let file =
        lab.volume(NEW).create_file(VnodeId::ROOT, b"later", &SetStatus::default(), stamp(40)).unwrap();
    store(&lab.volume(NEW), file.vnode.id, b"later", 41);
    lab.assert_whole("after it was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn dumps_of_openafs_are_restored_and_dumped_as_the_same() {
    for sample in [
        &include_bytes!("../../afs-dump/tests/samples/demo.dump")[..],
        include_bytes!("../../afs-dump/tests/samples/empty.dump"),
        include_bytes!("../../afs-dump/tests/samples/readonly.dump"),
    ] {
        let lab = Lab::new();
        let trans = lab.begin_new().await;
        assert_eq!(lab.restore(trans, sample).await, Ok(()));
        lab.settle(trans).await;
        assert!(vnodes(&lab.dump(NEW).await) == vnodes(sample));
        lab.assert_whole("a dump of OpenAFS");
        let (mut reader, mut input) = (Reader::new(), sample);
        let header = lab.volume(NEW).header();
        while let Some(event) = reader.next(&mut input).unwrap() {
            let Event::Volume(volume) = event else { continue };
            let info = &header.info;
            assert_eq!(
                (info.creation_date, info.access_date, info.update_date, info.backup_date),
                (volume.creation_date, volume.access_date, volume.update_date, volume.backup_date)
            );
            assert_eq!((info.owner, info.max_quota_kib), (volume.owner, volume.max_quota_kib));
            assert_eq!((header.next_unique, header.used_kib), (volume.next_unique, volume.used_kib.into()));
            assert_eq!((header.vnode_count, &info.name[..]), (volume.file_count, "user.new"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incremental_dump_brings_a_volume_up_to_date() {
    let lab = Lab::new();
    let source = filled(&lab).await;
    let trans = lab.begin_new().await;
    assert_eq!(lab.restore(trans, &lab.dump(RW).await).await, Ok(()));
    lab.settle(trans).await;
    // A file changes, one goes, one comes.
    let long = read(&lab.dump(RW).await).vnodes[&VnodeNumber(2)].0.fid;
    store(&source, VnodeId { vnode: long.vnode, unique: long.unique }, b"not long", 50);
    let directory = source.lookup(VnodeId::ROOT, b"d").unwrap();
    source.remove_file(directory, b"short", stamp(51)).unwrap();
    source.create_file(directory, b"new", &SetStatus::default(), stamp(52)).unwrap();

    let from = lab.begin(RW, AttachFlags::BUSY).await;
    let increment = lab.stream(Dump { from_trans: from, from_date: AfsTime(50) }).await.unwrap();
    lab.end(from).await;
    assert!(increment.len() < 10_000);
    let trans = lab.begin(NEW, AttachFlags::OFFLINE).await;
    assert_eq!(lab.restore(trans, &increment).await, Ok(()));
    lab.settle(trans).await;
    assert!(vnodes(&lab.dump(NEW).await) == vnodes(&lab.dump(RW).await));
    lab.assert_whole("after both");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_dump_leaves_the_volume_as_it_was() {
    let seed = 4;
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let lab = Lab::new();
    filled(&lab).await;
    let good = lab.dump(RW).await;
    let trans = lab.begin_new().await;
    assert_eq!(lab.restore(trans, &good).await, Ok(()));
    lab.settle(trans).await;
    let before = lab.dump(NEW).await;
    let bounds = bounds(&good);
    for round in 0..30 {
        let mut bad = good.clone();
        match round % 6 {
            0 => bad.truncate(rng.random_range(0..5000)),
            1 => bad.truncate(rng.random_range(0..bad.len())),
            2 => bad.push(0),
            // All of its files are whole, and some are missing.
            5 => bad.truncate(bounds[bounds.len() - 1 - round / 6]),
            3 => {
                let end = bad.len();
                // A vnode that was there before.
                bad.splice(end - 5..end - 5, *b"\x03\0\0\0\x02\0\0\0\x03");
            }
            _ => {
                let at = bad.windows(4).position(|window| window[2..] == [0x04, 0xd2]).unwrap();
                bad[at + 2] = 7;
            }
        }
        let trans = lab.begin(NEW, AttachFlags::OFFLINE).await;
        assert_eq!(lab.restore(trans, &bad).await, Err(BROKEN), "round {round}");
        assert_eq!(lab.end(trans).await, BROKEN.0, "EndTrans says it again");
        assert_eq!(lab.state(NEW), VolumeState::Online);
        assert!(lab.dump(NEW).await == before, "round {round}");
    }
    lab.assert_whole("after all of them");
    assert_eq!(lab.service.transaction_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_in_the_middle_leaves_the_volume_as_it_was() {
    let lab = Lab::new();
    filled(&lab).await;
    let good = lab.dump(RW).await;
    let trans = lab.begin_new().await;
    let mut call = lab.connection.call().await.unwrap();
    call.send_request(&order(trans, "user.new")).await.unwrap();
    call.write_all(&good[..good.len() / 2]).await.unwrap();
    lab.wait_until_read(trans).await;
    drop(call);
    // While the call is on its way to its end the transaction is in use.
    let is_over = async {
        while lab.call(GetStatus { trans }).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, is_over).await.expect("the call ends in time");
    assert_eq!(lab.volume(NEW).header().vnode_count, 0);
    assert_eq!(lab.restore(trans, &good).await, Ok(()));
    lab.settle(trans).await;
    assert!(vnodes(&lab.dump(NEW).await) == vnodes(&good));
    lab.assert_whole("after the second try");
}

/// A server that sends a volume may be gone without a word, and then its data do not come.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_transaction_breaks_off_a_restore_that_waits_for_its_sender() {
    let lab = Lab::new();
    filled(&lab).await;
    let good = lab.dump(RW).await;
    let trans = lab.begin_new().await;
    let mut call = lab.connection.call().await.unwrap();
    call.send_request(&order(trans, "user.new")).await.unwrap();
    call.write_all(&good[..good.len() / 2]).await.unwrap();
    lab.wait_until_read(trans).await;
    lab.end(trans).await;
    assert_eq!(lab.volume(NEW).header().vnode_count, 0);
    assert_eq!(call.reply::<Restore>().await.map(drop).unwrap_err().code(), AbortCode(-1));
    let trans = lab.begin(NEW, AttachFlags::OFFLINE).await;
    assert_eq!(lab.restore(trans, &good).await, Ok(()));
    lab.settle(trans).await;
    lab.assert_whole("after another one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_under_no_name_is_refused() {
    let lab = Lab::new();
    let trans = lab.begin_new().await;
    let refused = lab.call(order(trans, "")).await.map(drop);
    assert_eq!(refused, Err(AbortCode(VOLSERBADNAME.0)));
}

/// A lab whose first partition is on this disk, which is synced by nobody from time to time.
fn on_disk(disk: &SimulatedDisk) -> Lab {
    let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
    let open = |folder: &std::path::Path| {
        let disk = if folder.ends_with("0") { disk.clone() } else { SimulatedDisk::new(1 << 30) };
        Partition::open_on(Arc::new(disk), folder, config.clone()).unwrap()
    };
    Lab::on(|_| {}, open)
}

/// `vos move` removes the source after that answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_restored_is_whole_after_a_power_loss() {
    let disk = SimulatedDisk::new(1 << 30);
    let lab = on_disk(&disk);
    filled(&lab).await;
    let original = lab.dump(RW).await;
    let trans = lab.begin_new().await;
    let half_made = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
    lab.call(SetFlags { trans, flags: half_made }).await.unwrap();
    assert_eq!(lab.restore(trans, &original).await, Ok(()));
    lab.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
    assert_eq!(lab.end(trans).await, 0);
    for seed in 0..3 {
        let again = on_disk(&disk.after_power_loss(seed));
        assert_eq!(again.state(NEW), VolumeState::Online, "seed {seed}");
        // A start after a power loss raises data versions.
        let contents = |stream: &[u8]| {
            let vnodes = read(stream).vnodes.into_values();
            vnodes.map(|(record, data)| (record.fid, data)).collect::<Vec<_>>()
        };
        assert!(contents(&again.dump(NEW).await) == contents(&original), "seed {seed}");
        again.assert_whole(&format!("seed {seed}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_converted_is_so_after_a_power_loss() {
    let disk = SimulatedDisk::new(1 << 30);
    let lab = on_disk(&disk);
    lab.create(NEW, "user.new.readonly").await;
    let trans = lab.begin(NEW, AttachFlags::OFFLINE).await;
    let (kind, none) = (VolumeType::READ_ONLY, VolumeId(0));
    let name = text("user.new.readonly");
    let order = SetIdsTypes { trans, name, kind, parent_id: RW, clone_id: none, backup_id: none };
    lab.call(order).await.unwrap();
    lab.end(trans).await;
    lab.partitions.get(A).unwrap().sync().unwrap();
    lab.call(ConvertROtoRWvolume { partition: A, volid: NEW }).await.unwrap();
    for seed in 0..3 {
        let again = on_disk(&disk.after_power_loss(seed));
        assert!(again.partitions.find(RW).is_ok(), "seed {seed}");
    }
}
