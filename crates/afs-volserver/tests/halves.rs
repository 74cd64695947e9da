//! Volumes whose sending breaks off: what came is kept unseen, the next sending goes on from there, and what nobody wants goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::dumps::{FULL, cookie, filled, read, stamp, store};
use crate::support::{A, Lab, RO, RW, TIMEOUT, text};
use afs_dump::{Arrival, END_MARK};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{Partition, SetStatus, VnodeId, Volume, VolumeError, VolumeState};
use afs_wire::abort::{VNOVOL, VOLSERBAD_ACCESS};
use afs_wire::afsvol::{
    ArrivedFlags, AttachFlags, CreateVolume, DeleteVolume, Dump, Forward, ForwardMultiple, GetArrived,
    HalfVolume, ListHalves, Monitor, NukeVolume, PACKET_BYTES, Replica, Restore, RestoreCookie, RestoreFlags,
    RestoreRest,
};
use afs_wire::ids::{AfsTime, TransId, VnodeNumber, VolumeId, VolumeType};
use rxgen::xdr::{CharVec, XdrArray};

/// Bytes of the file that is longer than all others.
const LONG: usize = 20 << 20;

impl Lab {
    /// Sends the beginning of a dump, and vanishes; then what is half-made is removed, as `vos` does it.
    async fn get_half(&self, dump: &[u8]) {
        let trans = self.begin_copy().await;
        self.send_half(trans, cookie(), dump).await;
        self.delete(trans).await;
        self.end(trans).await;
        self.fails(DeleteVolume { trans }, rxgen::Abort(2)).await;
    }

    /// Sends the beginning of a dump, and vanishes.
    async fn send_half(&self, trans: TransId, cookie: RestoreCookie, dump: &[u8]) {
        let mut call = self.connection.call().await.unwrap();
        let order = Restore { trans, flags: RestoreFlags::NONE, cookie };
        call.send_request(&order).await.unwrap();
        for piece in dump.chunks(1 << 20) {
            call.send(piece.to_vec().into()).await.unwrap();
        }
        // Until all is there, as far as anybody can see.
        loop {
            let seen = self.call(Monitor {}).await.unwrap().entries.into_vec();
            let got = seen.iter().find(|seen| seen.tid == trans).map_or(0, |seen| seen.read_next);
            if (got as u64 + 200) * PACKET_BYTES > dump.len() as u64 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if dump.ends_with(&END_MARK.to_be_bytes()) {
            call.reply::<Restore>().await.unwrap();
        } else {
            drop(call);
        }
    }

    /// Removes a transaction's volume, once the call that has filled it has ended.
    async fn delete(&self, trans: TransId) {
        let deleted = async {
            while self.call(DeleteVolume { trans }).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, deleted).await.expect("it does not stay busy");
    }

    async fn halves(&self) -> Vec<HalfVolume> {
        self.call(ListHalves { partition: A }).await.unwrap().halves.into_vec()
    }

    /// How much a transaction has sent, in bytes, to within a packet.
    async fn sent(&self, trans: TransId) -> u64 {
        let seen = self.call(Monitor {}).await.unwrap().entries.into_vec();
        seen.iter().find(|seen| seen.tid == trans).unwrap().transmit_next as u64 * PACKET_BYTES
    }

    /// How much has come for a transaction, in bytes, to within a packet.
    async fn received(&self, trans: TransId) -> u64 {
        let seen = self.call(Monitor {}).await.unwrap().entries.into_vec();
        seen.iter().find(|seen| seen.tid == trans).unwrap().read_next as u64 * PACKET_BYTES
    }

    fn is_there(&self) -> bool {
        !matches!(self.partitions.find(RW), Err(VolumeError::NoVolume(_)))
    }
}

fn forward(from_trans: TransId, to: &Lab, dest_trans: TransId) -> Forward {
    let destination = to.destination();
    Forward { from_trans, from_date: FULL, destination, dest_trans, cookie: cookie() }
}

/// A volume with small files and one that is longer than all of them.
async fn large(lab: &Lab) -> (Arc<Volume>, VnodeId) {
    let volume = filled(lab).await;
    volume.change_info(|info| info.max_quota_kib = 0).unwrap();
    let mut last = None;
    for n in 0..50 {
        let made =
            volume.create_file(VnodeId::ROOT, format!("f{n}").as_bytes(), &SetStatus::default(), stamp(20));
        let file = made.unwrap().vnode.id;
        store(&volume, file, &vec![n; 30_000], 20);
        last = Some(file);
    }
    let long =
        volume.create_file(VnodeId::ROOT, b"longer", &SetStatus::default(), stamp(20)).unwrap().vnode.id;
    let bytes: Vec<u8> = (0..LONG).map(|n| (n >> 8) as u8).collect();
    store(&volume, long, &bytes, 20);
    (volume, last.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_before_the_sending_broke_off_is_not_sent_again() {
    let (here, there) = (Lab::new(), Lab::new());
    large(&here).await;
    let dump = here.dump(RW).await;
    // Most of the long file has come, which is the last one.
    there.get_half(&dump[..dump.len() - (5 << 20)]).await;
    assert!(!there.is_there(), "a part of a volume is nothing that anybody sees");
    let [half] = &there.halves().await[..] else { panic!() };
    assert_eq!(
        (half.volume, half.name.clone().into_bytes(), half.since),
        (RW, b"user.x".to_vec(), AfsTime(1_700_000_000))
    );
    there.assert_whole("at the end");
    let target = there.begin_copy().await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, &there, target)).await.unwrap();
    let sent = here.sent(trans).await;
    assert!((5 << 20..8 << 20).contains(&sent), "{sent} bytes of {}", dump.len());
    here.end(trans).await;
    there.settle(target).await;
    assert!(there.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
    assert_eq!(there.halves().await, []);
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_changed_since_is_sent_again_and_what_was_removed_goes() {
    let (here, there) = (Lab::new(), Lab::new());
    let (volume, file) = large(&here).await;
    let dump = here.dump(RW).await;
    there.get_half(&dump[..dump.len() - (5 << 20)]).await;
    store(&volume, file, b"something else", 30);
    volume.remove_file(VnodeId::ROOT, b"f7", stamp(30)).unwrap();
    volume.remove_file(VnodeId::ROOT, b"longer", stamp(30)).unwrap();
    volume.make_dir(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(30)).unwrap();
    let target = there.begin_copy().await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, &there, target)).await.unwrap();
    assert!(here.sent(trans).await < 100_000);
    here.end(trans).await;
    there.settle(target).await;
    assert!(there.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sending_that_breaks_off_again_and_again_comes_to_its_end() {
    let (here, there) = (Lab::new(), Lab::new());
    large(&here).await;
    let dump = here.dump(RW).await;
    there.get_half(&dump[..1 << 20]).await;
    for _ in 0..3 {
        let target = there.begin_copy().await;
        let trans = here.begin(RW, AttachFlags::BUSY).await;
        let mut call = here.connection.call().await.unwrap();
        call.send_request(&forward(trans, &there, target)).await.unwrap();
        call.finish().unwrap();
        // What was sent may still be on its way, and is lost with the call; so is up to 1 MiB of what has come.
        while there.received(target).await < 3 << 20 {
            if tokio::time::timeout(Duration::from_millis(1), call.recv()).await.is_ok() {
                // It was faster.
                break;
            }
        }
        drop(call);
        here.end(trans).await;
        there.delete(target).await;
        there.end(target).await;
        there.assert_whole("at the end");
    }
    let target = there.begin_copy().await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, &there, target)).await.unwrap();
    assert!(here.sent(trans).await < dump.len() as u64 - (4 << 20));
    here.end(trans).await;
    there.settle(target).await;
    assert!(there.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_came_whole_and_was_never_online_is_not_sent_again() {
    let (here, there) = (Lab::new(), Lab::new());
    large(&here).await;
    there.get_half(&here.dump(RW).await).await;
    assert!(!there.is_there());
    let target = there.begin_copy().await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    here.call(forward(trans, &there, target)).await.unwrap();
    assert!(here.sent(trans).await < 10_000);
    here.end(trans).await;
    there.settle(target).await;
    assert!(there.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_has_a_part_gets_the_rest_while_a_new_one_gets_everything() {
    let (here, one, two) = (Lab::new(), Lab::new(), Lab::new());
    large(&here).await;
    let dump = here.dump(RW).await;
    two.get_half(&dump[..dump.len() - (5 << 20)]).await;
    let targets = [(&one, one.begin_copy().await), (&two, two.begin_copy().await)];
    let to =
        targets.iter().map(|(lab, trans)| Replica { trans: *trans, server: lab.destination() }).collect();
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    let order = ForwardMultiple {
        from_trans: trans,
        from_date: FULL,
        destinations: XdrArray::new(to).unwrap(),
        spare: 0,
        cookie: cookie(),
    };
    assert_eq!(here.call(order).await.unwrap().results.into_vec(), [0, 0]);
    let sent = here.sent(trans).await;
    assert!(sent < dump.len() as u64 + (8 << 20), "{sent}");
    here.end(trans).await;
    for (lab, target) in targets {
        lab.settle(target).await;
        assert!(lab.dumped(RW).await.vnodes == here.dumped(RW).await.vnodes);
        lab.assert_whole("at the end");
    }
}

/// A replica at `there` of a volume of `here`, online; then the volume is changed. What it has then that the replica has not, from this date on.
async fn replicated(here: &Lab, there: &Lab) -> (Arc<Volume>, AfsTime) {
    let (volume, _) = large(here).await;
    let (name, kind) = (text("user.x.readonly"), VolumeType::READ_ONLY);
    let order = CreateVolume { partition: A, name, kind, parent: RW, volid: RO };
    let target = there.call(order).await.unwrap().trans;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    let order = Forward { cookie: replica_cookie(), ..forward(trans, there, target) };
    here.call(order).await.unwrap();
    here.end(trans).await;
    there.settle(target).await;
    for n in 0..50 {
        let name = format!("new{n}");
        let made = volume.create_file(VnodeId::ROOT, name.as_bytes(), &SetStatus::default(), stamp(60));
        store(&volume, made.unwrap().vnode.id, &vec![n; 400_000], 60);
    }
    (volume, AfsTime(50))
}

fn replica_cookie() -> RestoreCookie {
    let name = CharVec::from_text("user.x.readonly").unwrap();
    RestoreCookie { name, kind: VolumeType::READ_ONLY, clone: VolumeId(0), parent: RW }
}

/// What a volume's readers see, by vnode.
fn shown(lab: &Lab, id: VolumeId) -> Vec<afs_volume::VnodeStatus> {
    lab.partitions.find(id).unwrap().1.vnodes(VnodeNumber(0), 10_000).unwrap()
}

/// Sends a replica what has changed. How many bytes that were.
async fn release(here: &Lab, there: &Lab, since: AfsTime) -> u64 {
    let target = there.begin(RO, AttachFlags::OFFLINE).await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    let to = vec![Replica { trans: target, server: there.destination() }];
    let order = ForwardMultiple {
        from_trans: trans,
        from_date: since,
        destinations: XdrArray::new(to).unwrap(),
        spare: 0,
        cookie: replica_cookie(),
    };
    assert_eq!(here.call(order).await.unwrap().results.into_vec(), [0]);
    let sent = here.sent(trans).await;
    here.end(trans).await;
    there.settle(target).await;
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_of_a_release_to_a_replica_is_not_sent_again_and_its_readers_do_not_see_it() {
    let (here, there) = (Lab::new(), Lab::new());
    let (volume, since) = replicated(&here, &there).await;
    let before = shown(&there, RO);
    let from = here.begin(RW, AttachFlags::BUSY).await;
    let changes = here.stream(Dump { from_trans: from, from_date: since }).await.unwrap();
    here.end(from).await;
    assert!((20_000_000..25_000_000).contains(&changes.len()), "{}", changes.len());
    let target = there.begin(RO, AttachFlags::OFFLINE).await;
    there.send_half(target, replica_cookie(), &changes[..changes.len() - 4_000_000]).await;
    there.end(target).await;
    assert!(shown(&there, RO) == before, "readers have the last release");
    assert_eq!(there.state(RO), VolumeState::Online);
    there.assert_whole("at the end");
    let [half] = &there.halves().await[..] else { panic!() };
    assert_eq!((half.volume, half.kind, half.parent), (RO, VolumeType::READ_ONLY, RW));
    // Of those that came, one is another one by now, one is as if it had not changed since the last release, and one is gone.
    let files = volume.vnodes(VnodeNumber(0), 10_000).unwrap();
    let mut came = files.iter().filter(|file| file.length == 400_000);
    store(&volume, came.next().unwrap().id, &[7; 300], 70);
    store(&volume, came.next().unwrap().id, &[8; 300], 20);
    volume.remove_file(VnodeId::ROOT, b"new2", stamp(70)).unwrap();
    let sent = release(&here, &there, since).await;
    assert!((4_000_000..6_000_000).contains(&sent), "{sent} bytes were sent");
    assert!(shown(&there, RO) == shown(&here, RW));
    assert_eq!(there.halves().await, []);
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_goes_on_with_is_removed_after_its_time() {
    let here = Lab::new();
    large(&here).await;
    let now = Arc::new(AtomicU32::new(1_700_000_000));
    let clock = Arc::clone(&now);
    let first = Lab::new();
    let dump = here.dump(RW).await;
    first.get_half(&dump[..10 << 20]).await;
    // So often it is looked for. Only behind the transactions of above, which are not to end by this on a busy machine.
    let there = first.beside(|config| {
        config.clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed)));
        config.idle_limit = Duration::from_secs(1);
    });
    now.fetch_add(24 * 3600 - 1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(there.halves().await.len(), 1);
    now.fetch_add(1, Ordering::Relaxed);
    while !there.halves().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_goes_by_order_and_when_the_volume_is_made_otherwise() {
    let (here, there) = (Lab::new(), Lab::new());
    large(&here).await;
    let dump = here.dump(RW).await;
    let half = &dump[..10 << 20];
    there.get_half(half).await;
    there.call(NukeVolume { partition: A, volid: RW }).await.unwrap();
    assert_eq!(there.halves().await, []);
    there.fails(NukeVolume { partition: A, volid: RW }, VNOVOL).await;
    // Everything is sent by somebody who does not know of it.
    there.get_half(half).await;
    let trans = there.begin_copy().await;
    let mut call = there.connection.call().await.unwrap();
    let order = Restore { trans, flags: RestoreFlags::NONE, cookie: cookie() };
    call.send_request(&order).await.unwrap();
    call.send(dump.clone().into()).await.unwrap();
    call.reply::<Restore>().await.unwrap();
    assert_eq!(there.halves().await.len(), 1);
    there.settle(trans).await;
    assert_eq!(there.halves().await, []);
    assert!(there.dumped(RW).await.vnodes == read(&dump).vnodes);
    there.assert_whole("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_is_told_with_or_without_its_data_and_to_superusers_alone() {
    let (here, there) = (Lab::new(), Lab::new());
    large(&here).await;
    let dump = here.dump(RW).await;
    there.get_half(&dump[..dump.len() - (5 << 20)]).await;
    let trans = there.begin_copy().await;
    let told = async |flags| {
        let stream = there.stream(GetArrived { trans, flags }).await.unwrap();
        let arrivals = stream.as_chunks::<{ Arrival::BYTES }>().0.iter().map(Arrival::from_bytes);
        arrivals.collect::<Vec<_>>()
    };
    let (bare, with_data) = (told(ArrivedFlags::NONE).await, told(ArrivedFlags::WITH_DATA).await);
    let vnodes = |arrivals: &[Arrival]| arrivals.iter().map(|a| (a.vnode, a.bytes)).collect::<Vec<_>>();
    assert_eq!(vnodes(&bare), vnodes(&with_data));
    let partial = bare.last().unwrap().bytes.unwrap();
    assert!((14 << 20..=15 << 20).contains(&partial), "{partial}");
    let alike = bare.iter().zip(&with_data).filter(|(a, b)| a.digest == b.digest);
    assert_eq!(alike.count(), 1, "one file is empty");
    there.everybody.0.store(false, Ordering::Relaxed);
    let refused = there.stream(GetArrived { trans, flags: ArrivedFlags::NONE }).await.unwrap_err();
    assert_eq!(refused.0, VOLSERBAD_ACCESS.0);
    let mut call = there.connection.call().await.unwrap();
    let order = RestoreRest { trans, cookie: cookie(), vnode: VnodeNumber(0), bytes: 0 };
    call.send_request(&order).await.unwrap();
    assert_eq!(call.reply::<RestoreRest>().await.unwrap_err().code().0, VOLSERBAD_ACCESS.0);
}

/// A volume for which nothing came, and one that is online, have nothing to go on with.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_which_nothing_came_cannot_be_gone_on_with() {
    let lab = Lab::new();
    let trans = lab.begin_copy().await;
    assert_eq!(lab.stream(GetArrived { trans, flags: ArrivedFlags::NONE }).await.unwrap(), []);
    let mut call = lab.connection.call().await.unwrap();
    let order = RestoreRest { trans, cookie: cookie(), vnode: VnodeNumber(0), bytes: 0 };
    call.send_request(&order).await.unwrap();
    assert_eq!(call.reply::<RestoreRest>().await.unwrap_err().code().0, VNOVOL.0);
    lab.delete(trans).await;
    lab.end(trans).await;
    assert_eq!(lab.halves().await, []);
    lab.assert_whole("at the end");
}

/// Its users could not write in it, also when there was room again, until the server was started anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_restore_could_not_be_undone_on_a_full_disk_is_writable_once_there_is_room() {
    let disk = SimulatedDisk::new(1 << 30);
    let config =
        afs_volume::Config { has_thread: false, log_bytes: 1 << 20, ..afs_volume::Config::default() };
    let only = disk.clone();
    let lab = Lab::on(
        |_| {},
        move |folder| {
            let disk = if folder.ends_with("0") { only.clone() } else { SimulatedDisk::new(1 << 30) };
            Partition::open_on(Arc::new(disk), folder, config.clone()).unwrap()
        },
    );
    lab.create(RW, "user.x").await;
    lab.create(RO, "user.y").await;
    // So often it is tried. Only behind the transactions of above, which are not to end by this on a busy machine.
    let lab = lab.beside(|config| config.idle_limit = Duration::from_secs(1));
    let write = |name: &str| {
        let volume = lab.partitions.find(RW).unwrap().1;
        volume.create_file(VnodeId::ROOT, name.as_bytes(), &SetStatus::default(), stamp(20)).map(drop)
    };
    write("before").unwrap();
    let partition = lab.partitions.get(A).unwrap();
    let restore = partition.begin_restore(RW).unwrap();
    disk.set_capacity(0);
    let other = partition.volume(RO).unwrap();
    while other.change_info(|info| info.update_counter += 1).is_ok() {}
    drop(restore);
    // It is tried in vain meanwhile.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(matches!(write("full"), Err(VolumeError::ReadOnly(RW))));
    disk.set_capacity(1 << 30);
    let is_writable = async {
        while write("after").is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, is_writable).await.expect("it can be written in time");
    assert_eq!(lab.state(RW), VolumeState::Online);
    lab.assert_whole("at the end");
}
