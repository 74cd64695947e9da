//! The procedures of the file service, from a client's end: what is stored comes back, what is not allowed is refused, and with
//! which code.

use crate::support;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{Client, Kind, mod_time, mode, text};
use crate::support::{Cell, MORNING, ROOT, USER, VOLUME};
use afs_fileserver::Locations;
use afs_wire::abort::VL_NOENT;
use afs_wire::ids::{AfsFid, HostAddr, Name, PartitionId, Uniquifier, VnodeNumber, VolumeId};
use afs_wire::rxafs::{self, AfsCbFids, Message, StoreVolumeMask, ViceLockType};
use afs_wire::status::{AfsStoreStatus, CallBackType, FileType, StoreMask};
use afs_wire::vl::{EntryFlags, SiteFlags, VL_MAXNAMELEN, VldbEntry};
use bytes::Bytes;
use rx::Runtime;
use rxgen::Abort;
use rxgen::xdr::{CharVec, XdrString};

const ACCESS: i32 = 49_733_388;
const INVALID: i32 = 49_733_397;
const NOT_OWNER: i32 = 49_733_376;
const EXISTS: i32 = 49_733_392;
const READ_ONLY: i32 = 49_733_405;
const TOO_BIG: i32 = 49_733_402;

fn fids(fids: &[AfsFid]) -> AfsCbFids {
    AfsCbFids::new(fids.to_vec()).unwrap()
}

#[test]
fn what_was_stored_is_fetched() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let file = client.create(ROOT, "file").await.unwrap();
        assert_eq!((file.status.length, file.status.data_version.0), (0, 0));
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 3) as u8).collect();
        let status = client.store(file.fid, 0, &data, data.len() as u64).await.unwrap();
        assert_eq!((status.length, status.data_version.0), (3_000_000, 1));
        let (all, reply) = client.fetch(file.fid, 0, 1 << 40).await.unwrap();
        assert!(all == data);
        assert_eq!(reply.status, status);
        assert_eq!(reply.callback.kind, CallBackType::SHARED);
        for (pos, length) in
            [(0, 0), (1, 5), (262_143, 2), (999_999, 1_000_001), (2_999_999, 10), (3_000_000, 1)]
        {
            let (part, _) = client.fetch(file.fid, pos as i64, length as i64).await.unwrap();
            let end = data.len().min(pos + length);
            assert!(part == data[pos..end], "{length} bytes from {pos}");
        }
        let (nothing, _) = client.fetch(file.fid, i64::MAX, i64::MAX).await.unwrap();
        assert_eq!(nothing, []);
        for (pos, length) in [(-1, 5), (5, -1), (i64::MIN, i64::MIN)] {
            assert_eq!(client.fetch(file.fid, pos, length).await.unwrap_err(), TOO_BIG);
        }
    });
}

/// File service notes 14: position, length, file length in turn, and the sizes that a stock server made of them.
#[test]
fn a_file_is_cut_and_grows_by_the_length_that_the_client_gives() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let fid = client.create(ROOT, "file").await.unwrap().fid;
        let mut model: Vec<u8> = Vec::new();
        let stores: &[(u64, usize, u64, usize)] = &[
            (0, 10, 10, 10),
            (5, 0, 5, 5),
            (100, 3, 103, 103),
            (0, 3, 50, 50),
            (0, 0, 200, 50),
            (300, 0, 300, 300),
            (10, 5, 0, 15),
            (1_000_000, 1, 1_000_001, 1_000_001),
            (0, 0, 0, 0),
        ];
        for (version, (pos, length, file_length, size)) in (1u64..).zip(stores) {
            let data = vec![version as u8; *length];
            let status = client.store(fid, *pos, &data, *file_length).await.unwrap();
            model.truncate(usize::try_from(*file_length).unwrap());
            model.resize(model.len().max(*pos as usize + length), 0);
            model[*pos as usize..][..*length].copy_from_slice(&data);
            assert_eq!((status.length, status.data_version.0), (*size as u64, version));
            assert!(client.fetch(fid, 0, i64::MAX).await.unwrap().0 == model, "store {version}");
        }
    });
}

#[test]
fn data_of_directories_and_links_are_pages_and_targets() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let link = client.symlink(ROOT, "link", "some/target").await.unwrap();
        assert_eq!((link.status.file_type, link.status.length), (FileType::SYMLINK, 11));
        assert_eq!(client.fetch(link.fid, 0, 100).await.unwrap().0, b"some/target");
        let (pages, reply) = client.fetch(ROOT, 0, i64::MAX).await.unwrap();
        assert_eq!(pages.len(), 2048);
        assert_eq!(reply.status.length, 2048);
        assert_eq!(pages[2..4], [0x04, 0xd2], "the tag of a page");
        assert!(pages.windows(5).any(|bytes| bytes == b"link\0"));
        let old = client.call(rxafs::FetchStatus { fid: link.fid }).await.unwrap();
        assert_eq!(old.status.parent_vnode, ROOT.vnode);
        for fid in [link.fid, ROOT] {
            assert_eq!(client.store(fid, 0, b"x", 1).await.unwrap_err(), 49_733_396);
        }
    });
}

#[test]
fn the_forms_of_32_bits_move_the_same_data() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let fid = client.create(ROOT, "file").await.unwrap().fid;
        let mut call = client.connection().call().await.unwrap();
        let status = AfsStoreStatus::default();
        let args = rxafs::StoreData { fid, status, pos: 0, length: 9, file_length: 9 };
        call.send_request(&args).await.unwrap();
        call.write_all(b"nine byte").await.unwrap();
        let reply = call.reply::<rxafs::StoreData>().await.unwrap();
        assert_eq!(reply.status.length, 9);
        let mut call = client.connection().call().await.unwrap();
        call.send_request(&rxafs::FetchData { fid, pos: 5, length: 100 }).await.unwrap();
        call.finish().unwrap();
        let mut data = [0; 8];
        call.read_exact(&mut data).await.unwrap();
        assert_eq!(data, *b"\0\0\0\x04byte");
        assert_eq!(call.reply::<rxafs::FetchData>().await.unwrap().status, reply.status);
    });
}

#[test]
fn a_store_that_ends_early_or_is_given_up_changes_nothing() {
    let cell = Cell::new();
    let client = cell.client(1);
    let sim = cell.sim.clone();
    cell.run(async move {
        let fid = client.create(ROOT, "file").await.unwrap().fid;
        client.store(fid, 0, b"before", 6).await.unwrap();
        let args = || rxafs::StoreData64 {
            fid,
            status: AfsStoreStatus::default(),
            pos: 0,
            length: 600_000,
            file_length: 600_000,
        };
        let mut call = client.connection().call().await.unwrap();
        call.send_request(&args()).await.unwrap();
        call.write_all(&[7; 300_000]).await.unwrap();
        assert_eq!(call.reply::<rxafs::StoreData64>().await.unwrap_err().code().0, -31);
        let mut call = client.connection().call().await.unwrap();
        call.send_request(&args()).await.unwrap();
        call.write_all(&[7; 300_000]).await.unwrap();
        call.flush().unwrap();
        sim.sleep_until(sim.now() + std::time::Duration::from_secs(1)).await;
        drop(call);
        let (data, reply) = client.fetch(fid, 0, 100).await.unwrap();
        assert_eq!((&data[..], reply.status.data_version.0), (&b"before"[..], 1));
        // Another store finds the file free.
        client.store(fid, 0, b"after", 5).await.unwrap();
    });
}

/// A client whose path broke kept pinging and sent no more of its store: for as long as it did nobody could change the file.
#[test]
fn a_store_that_stalls_gives_way_to_a_truncate_by_another() {
    let cell = Cell::new();
    let (stalled, other) = (cell.client(1), cell.client(2));
    let sim = cell.sim.clone();
    cell.run(async move {
        let fid = other.create(ROOT, "file").await.unwrap().fid;
        other.store(fid, 0, b"before", 6).await.unwrap();
        let length = 5_000_000;
        let status = AfsStoreStatus::default();
        let args = rxafs::StoreData64 { fid, status, pos: 0, length, file_length: length };
        let connection = stalled.connection();
        let mut call = connection.call().await.unwrap();
        call.send_request(&args).await.unwrap();
        call.send(Bytes::from(vec![1; 100_000])).await.unwrap();
        call.flush().unwrap();
        // Nobody waits: it may take its time.
        sim.sleep_until(sim.now() + Duration::from_secs(30)).await;
        call.send(Bytes::from(vec![1; 100_000])).await.unwrap();
        call.flush().unwrap();
        sim.sleep_until(sim.now() + Duration::from_secs(1)).await;
        let start = sim.now();
        other.store(fid, 2, b"", 2).await.unwrap();
        let waited = sim.now().since(start);
        assert!(waited < Duration::from_secs(11), "{waited:?}");
        assert_eq!(call.recv().await.unwrap_err().code().0, 110);
        assert_eq!(other.fetch(fid, 0, i64::MAX).await.unwrap().0, b"be");
    });
}

#[test]
fn two_stores_into_a_file_are_made_one_after_the_other() {
    let cell = Cell::new();
    let (one, other) = (cell.client(1), cell.client(2));
    let sim = cell.sim.clone();
    cell.run(async move {
        let fid = one.create(ROOT, "file").await.unwrap().fid;
        let (done, finished) = tokio::sync::oneshot::channel();
        sim.spawn(Box::pin(async move {
            let status = other.store(fid, 0, &[2; 700_000], 700_000).await.unwrap();
            let _ = done.send((other, status));
        }));
        let mine = one.store(fid, 0, &[1; 700_000], 700_000).await.unwrap();
        let (_other, theirs) = finished.await.unwrap();
        assert_eq!(mine.data_version.0 + theirs.data_version.0, 3);
        let (data, _) = one.fetch(fid, 0, i64::MAX).await.unwrap();
        assert_eq!(data.len(), 700_000);
        assert!(data.iter().all(|byte| *byte == data[0]), "no mixture");
    });
}

#[test]
fn a_reader_gets_the_file_as_it_was_when_it_asked() {
    let cell = Cell::new();
    let (reader, writer) = (cell.client(1), cell.client(2));
    let sim = cell.sim.clone();
    cell.run(async move {
        let fid = writer.create(ROOT, "file").await.unwrap().fid;
        writer.store(fid, 0, &[1; 2_000_000], 2_000_000).await.unwrap();
        let mut call = reader.connection().call().await.unwrap();
        call.send_request(&rxafs::FetchData64 { fid, pos: 0, length: i64::MAX }).await.unwrap();
        call.finish().unwrap();
        let mut prefix = [0; 8];
        call.read_exact(&mut prefix).await.unwrap();
        writer.store(fid, 0, &[2; 1000], 1000).await.unwrap();
        sim.sleep_until(sim.now() + std::time::Duration::from_secs(1)).await;
        let mut data = vec![0; 2_000_000];
        call.read_exact(&mut data).await.unwrap();
        assert!(data.iter().all(|byte| *byte == 1));
        let reply = call.reply::<rxafs::FetchData64>().await.unwrap();
        assert_eq!((reply.status.length, reply.status.data_version.0), (2_000_000, 1));
    });
}

#[test]
fn a_quota_is_kept_and_told() {
    let cell = Cell::new();
    let (client, admin) = (cell.client(1), cell.client_of(2, "admin"));
    cell.run(async move {
        let mut status =
            rxafs::AfsStoreVolumeStatus { mask: StoreVolumeMask::MAX_QUOTA, min_quota: 0, max_quota: 100 };
        let set = |status| rxafs::SetVolumeStatus {
            volume: VOLUME,
            status,
            name: text(""),
            offline_message: Message::try_from("").unwrap(),
            motd: Message::try_from("hello").unwrap(),
        };
        assert_eq!(client.call(set(status)).await.unwrap_err(), ACCESS);
        admin.call(set(status)).await.unwrap();
        let fid = client.create(ROOT, "file").await.unwrap().fid;
        assert_eq!(client.store(fid, 0, &[1; 200_000], 200_000).await.unwrap_err(), 109);
        client.store(fid, 0, &[1; 50_000], 50_000).await.unwrap();
        assert_eq!(client.store(fid, 50_000, &[1; 80_000], 130_000).await.unwrap_err(), 109);
        let told = client.call(rxafs::GetVolumeStatus { volume: VOLUME }).await.unwrap();
        assert_eq!(
            (told.status.max_quota, &told.name[..], &told.motd[..]),
            (100, &b"scratch"[..], &b"hello"[..])
        );
        assert!((49..60).contains(&told.status.blocks_in_use), "{:?}", told.status);
        status.max_quota = -1;
        assert_eq!(admin.call(set(status)).await.unwrap_err(), INVALID);
        status.max_quota = 0;
        admin.call(set(status)).await.unwrap();
        client.store(fid, 0, &[1; 200_000], 200_000).await.unwrap();
    });
}

#[test]
fn fids_of_nothing_are_refused_as_by_a_stock_server() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let fid = |volume, vnode, unique| AfsFid {
            volume: VolumeId(volume),
            vnode: VnodeNumber(vnode),
            unique: Uniquifier(unique),
        };
        for (fid, code) in [
            (fid(1, 1, 1), 103),
            (fid(VOLUME.0, 3, 1), 102),
            (fid(VOLUME.0, 2, 1), 102),
            (fid(VOLUME.0, 1, 2), 102),
            (fid(VOLUME.0, 0, 1), INVALID),
            (fid(0, 1, 1), INVALID),
            (fid(u32::MAX, u32::MAX, u32::MAX), 103),
        ] {
            assert_eq!(client.status(fid).await.unwrap_err(), code, "{fid}");
            assert_eq!(client.fetch(fid, 0, 10).await.unwrap_err(), code, "{fid}");
            assert_eq!(client.create(fid, "x").await.unwrap_err(), code, "{fid}");
            assert_eq!(client.call(rxafs::FetchACL { fid }).await.unwrap_err(), code, "{fid}");
            assert_eq!(client.store(fid, 0, b"x", 1).await.unwrap_err(), code, "{fid}");
        }
        let file = client.create(ROOT, "file").await.unwrap().fid;
        assert_eq!(client.create(file, "x").await.unwrap_err(), 49_733_395);
        assert_eq!(client.set_acl(file, "0\n0\n").await.unwrap_err(), 49_733_395);
    });
}

#[test]
fn bulk_status_fails_as_a_whole_and_inline_each_for_itself() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let file = client.create(ROOT, "file").await.unwrap().fid;
        let bad = AfsFid { unique: Uniquifier(99), ..file };
        let zero = AfsFid { vnode: VnodeNumber(0), ..file };
        let good = client.call(rxafs::BulkStatus { fids: fids(&[ROOT, file]) }).await.unwrap();
        assert_eq!((good.statuses.len(), good.callbacks.len()), (2, 2));
        assert_eq!(good.statuses[1].file_type, FileType::FILE);
        let life = good.callbacks[1].expiration_seconds;
        assert!((1800..2000).contains(&life), "{life}: shorter than for one alone");
        let failed = client.call(rxafs::BulkStatus { fids: fids(&[ROOT, bad]) }).await;
        assert_eq!(failed.unwrap_err(), 102);
        let args = rxafs::InlineBulkStatus { fids: fids(&[ROOT, bad, zero, file]) };
        let reply = client.call(args).await.unwrap();
        let codes: Vec<i32> = reply.statuses.iter().map(|status| status.error_code).collect();
        assert_eq!(codes, [0, 102, INVALID, 0]);
        assert_eq!(reply.statuses[1].file_type, FileType::INVALID);
        assert_eq!(reply.callbacks[1].kind, CallBackType::NONE);
        assert_eq!(reply.statuses[3], client.status(file).await.unwrap().status);
        let many = client.call(rxafs::InlineBulkStatus { fids: fids(&[ROOT; 50]) }).await.unwrap();
        assert_eq!(many.statuses.len(), 50);
        let none = client.call(rxafs::InlineBulkStatus { fids: fids(&[]) }).await.unwrap();
        assert_eq!(none.statuses.len(), 0);
    });
}

#[test]
fn status_is_set_without_a_new_version_of_the_data() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let made = client.create(ROOT, "file").await.unwrap();
        assert!(made.status.client_mod_time.0 >= MORNING);
        let status = client.store_status(made.fid, mod_time(12_345)).await.unwrap();
        assert_eq!((status.client_mod_time.0, status.data_version), (12_345, made.status.data_version));
        assert!(status.server_mod_time.0 >= MORNING);
        let set = mod_time(777);
        let status = client.store_with(made.fid, set, 0, b"data", 4).await.unwrap();
        assert_eq!((status.client_mod_time.0, status.data_version.0), (777, 1));
        let fsync = AfsStoreStatus { mask: StoreMask::FSYNC, ..AfsStoreStatus::default() };
        let status = client.store_with(made.fid, fsync, 0, b"more", 4).await.unwrap();
        assert!(status.client_mod_time.0 >= MORNING, "a store without a time is now");
    });
}

#[test]
fn locks_end_by_themselves() {
    let cell = Cell::new();
    let client = cell.client(1);
    let sim = cell.sim.clone();
    cell.run(async move {
        let fid = client.create(ROOT, "file").await.unwrap().fid;
        let lock = |kind| rxafs::SetLock { fid, kind };
        let count = || async { client.status(fid).await.unwrap().status.lock_count };
        client.call(lock(ViceLockType::WRITE)).await.unwrap();
        assert_eq!(count().await, -1);
        assert_eq!(client.call(lock(ViceLockType::READ)).await.unwrap_err(), 49_733_386);
        sim.sleep_until(sim.now() + std::time::Duration::from_secs(301)).await;
        assert_eq!(count().await, 0);
        assert_eq!(client.call(rxafs::ExtendLock { fid }).await.unwrap_err(), INVALID);
        let sync = afs_wire::status::AfsVolSync::default();
        client.call(rxafs::OldSetLock { fid, kind: ViceLockType::READ, sync }).await.unwrap();
        client.call(rxafs::OldExtendLock { fid, sync }).await.unwrap();
        assert_eq!(count().await, 1);
        client.call(rxafs::OldReleaseLock { fid, sync }).await.unwrap();
        assert_eq!(count().await, 0);
        client.call(lock(ViceLockType::READ)).await.unwrap();
        client.remove(ROOT, "file").await.unwrap();
        assert_eq!(client.call(rxafs::ReleaseLock { fid }).await.unwrap_err(), 102);
    });
}

/// A volume location database with one entry.
#[derive(Debug)]
struct OneEntry;

impl Locations for OneEntry {
    fn entry<'a>(
        &'a self,
        name: &'a Name,
    ) -> Pin<Box<dyn Future<Output = Result<VldbEntry, Abort>> + Send + 'a>> {
        let servers = [173_539_329, 173_539_330, 0, 0, 0, 0, 0, 0].map(HostAddr);
        let entry = VldbEntry {
            name: CharVec([0; VL_MAXNAMELEN]),
            spares3: 0,
            n_servers: 2,
            server_number: servers,
            server_partition: [PartitionId(0); 8],
            server_flags: [SiteFlags(0); 8],
            volume_id: [9, 10, 11].map(VolumeId),
            clone_id: VolumeId(0),
            // The backup has an id, and is not there.
            flags: EntryFlags::RO_EXISTS,
        };
        Box::pin(async move { if **name == *b"known" { Ok(entry) } else { Err(VL_NOENT) } })
    }
}

/// As a stock server: the answer of the volume location database, with its code as it is.
#[test]
fn where_a_volume_is_the_location_database_says() {
    let cell = Cell::with(|config| config.locations = Some(Arc::new(OneEntry)));
    let client = cell.client(1);
    cell.run(async move {
        let info = client.call(rxafs::GetVolumeInfo { name: text("known") }).await.unwrap().info;
        assert_eq!((info.vid, info.kind, info.server_count), (VolumeId(9), 0, 2));
        assert_eq!(info.types, [9, 10, 0, 0, 0xabcd_9999].map(VolumeId));
        assert_eq!(info.servers, [173_539_329, 173_539_330, 0, 0, 0, 0, 0, 0].map(HostAddr));
        assert_eq!(client.call(rxafs::GetVolumeInfo { name: text("unknown") }).await.unwrap_err(), 363_524);
    });
    let without = Cell::new();
    let client = without.client(1);
    without.run(async move {
        assert_eq!(client.call(rxafs::GetVolumeInfo { name: text("known") }).await.unwrap_err(), 103);
    });
}

/// Codes of the calls that a stock server does not serve, some of which it does not translate.
#[test]
fn what_is_not_served_is_refused_as_by_a_stock_server() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let (dir, name) = (ROOT, text("a"));
        assert_eq!(client.call(rxafs::Lookup { dir, name: name.clone() }).await.unwrap_err(), 22);
        assert_eq!(client.call(rxafs::GetRootVolume {}).await.unwrap_err(), 122);
        let token = rxafs::AfsOpaque::default();
        assert_eq!(client.call(rxafs::CheckToken { vice_id: USER, token }).await.unwrap_err(), 130);
        assert_eq!(client.call(rxafs::NGetVolumeInfo { name: name.clone() }).await.unwrap_err(), 103);
        let (contents, status) = (XdrString::new("target").unwrap(), AfsStoreStatus::default());
        assert_eq!(client.call(rxafs::DFSSymlink { dir, name, contents, status }).await.unwrap_err(), 22);
        let inputs = rxafs::FsCmdInputs {
            command: 1,
            fid: ROOT,
            int64s: [0; 3],
            int32s: [0; 200],
            chars: CharVec([0; 256]),
        };
        assert_eq!(client.call(rxafs::FsCmd { fid: ROOT, inputs }).await.unwrap_err(), 22);
        assert_eq!(
            client.call(rxafs::CallBackRxConnAddr { addr: HostAddr(0) }).await.unwrap_err(),
            NOT_OWNER
        );
        for (request, code) in [
            (&99u32.to_be_bytes()[..], -455),
            (&[0, 0], -454),
            (&132u32.to_be_bytes(), -453),
            (&[0, 0, 0, 132, 0, 0, 0, 1], -453),
        ] {
            let mut call = client.connection().call().await.unwrap();
            call.write_all(request).await.unwrap();
            call.finish().unwrap();
            assert_eq!(call.read_to_end(100).await.unwrap_err().code().0, code, "{request:?}");
        }
    });
}

#[test]
fn the_server_says_what_it_can_and_how_it_does() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        assert_eq!(client.call(rxafs::GetCapabilities {}).await.unwrap().capabilities[..], [7]);
        let time = client.call(rxafs::GetTime {}).await.unwrap();
        assert!((MORNING..MORNING + 60).contains(&time.seconds));
        let fid = client.create(ROOT, "file").await.unwrap().fid;
        client.store(fid, 0, &[1; 5000], 5000).await.unwrap();
        client.fetch(fid, 0, 4000).await.unwrap();
        let figures = client.call(rxafs::GetStatistics64 { version: 16 }).await.unwrap().statistics;
        assert_eq!(figures.len(), 16);
        assert_eq!((figures[5], figures[6], figures[9], figures[10]), (1, 4000, 1, 5000));
        assert_eq!((figures[13], figures[14]), (1, 1), "one client");
        for version in [-1, 0, 5, i32::MAX] {
            let figures = client.call(rxafs::GetStatistics64 { version }).await.unwrap().statistics;
            assert_eq!(figures.len(), version.clamp(0, 16) as usize);
        }
        let old = client.call(rxafs::GetStatistics {}).await.unwrap().statistics;
        assert_eq!((old.fetched_bytes, old.stored_bytes, old.work_stations), (4000, 5000, 1));
        assert!(old.disks[0].total_blocks > 0);
        assert_eq!(client.call(rxafs::XStatsVersion {}).await.unwrap().version, 2);
        for (collection, words) in [(0, 0), (1, 98), (2, 666), (3, 16), (9, 0)] {
            let args = rxafs::GetXStats { client_version: 2, collection };
            let reply = client.call(args).await.unwrap();
            assert_eq!((reply.server_version, reply.data.len()), (2, words), "collection {collection}");
        }
    });
}

#[test]
fn a_client_without_the_capability_gets_plain_error_numbers() {
    let cell = Cell::new();
    let kind = Kind { without_capabilities: true, ..Kind::default() };
    let client = Client::of_kind(&cell.sim, &cell.endpoint, 1, kind);
    cell.run(async move {
        assert_eq!(client.remove(ROOT, "none").await.unwrap_err(), 2);
        client.create(ROOT, "a").await.unwrap();
        assert_eq!(client.create(ROOT, "a").await.unwrap_err(), 17);
    });
}

#[test]
fn volumes_that_are_offline_busy_or_read_only_say_so() {
    let cell = Cell::new();
    let client = cell.client(1);
    let volume = cell.volume();
    cell.run(async move {
        use afs_volume::VolumeState::{Busy, Offline, Online};
        for (state, code) in [(Busy, 110), (Offline("for repair".to_owned()), 106)] {
            volume.set_state(state);
            assert_eq!(client.status(ROOT).await.unwrap_err(), code);
            assert_eq!(client.create(ROOT, "a").await.unwrap_err(), code);
        }
        volume.set_state(Online);
        client.status(ROOT).await.unwrap();
    });
}

#[test]
fn a_clone_can_be_read_and_not_changed() {
    let cell = Cell::new();
    let client = cell.client(1);
    let partition = cell.partition.clone();
    cell.run(async move {
        let file = client.create(ROOT, "file").await.unwrap().fid;
        client.store(file, 0, b"old", 3).await.unwrap();
        let id = VolumeId(VOLUME.0 + 2);
        let new = afs_volume::NewClone {
            id,
            name: "scratch.backup".to_owned(),
            kind: afs_volume::VolumeKind::Backup,
        };
        support::put_online(&partition.clone_volume(VOLUME, &new, support::stamp()).unwrap());
        client.store(file, 0, b"new", 3).await.unwrap();
        let there = |fid| AfsFid { volume: id, ..fid };
        assert_eq!(client.fetch(there(file), 0, 9).await.unwrap().0, b"old");
        assert_eq!(client.fetch(file, 0, 9).await.unwrap().0, b"new");
        let (root, file) = (there(ROOT), there(file));
        assert_eq!(client.store(file, 0, b"x", 1).await.unwrap_err(), READ_ONLY);
        assert_eq!(client.create(root, "x").await.unwrap_err(), READ_ONLY);
        assert_eq!(client.remove(root, "file").await.unwrap_err(), READ_ONLY);
        assert_eq!(client.store_status(file, mode(0o600)).await.unwrap_err(), READ_ONLY);
        assert_eq!(client.set_acl(root, "0\n0\n").await.unwrap_err(), READ_ONLY);
        let lock = |kind| rxafs::SetLock { fid: file, kind };
        client.call(lock(ViceLockType::READ)).await.unwrap();
        assert_eq!(client.call(lock(ViceLockType::WRITE)).await.unwrap_err(), READ_ONLY);
        assert_eq!(client.rename((ROOT, "file"), (root, "file")).await.unwrap_err(), 49_733_393);
        let status = client.call(rxafs::GetVolumeStatus { volume: id }).await.unwrap().status;
        assert_eq!(status.kind, rxafs::VolumeStatusType::READ_ONLY);
    });
}

#[test]
fn names_that_cannot_be_are_refused() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let long = "n".repeat(256);
        for (name, code) in
            [("", INVALID), ("a/b", INVALID), ("x@sys", INVALID), (".", EXISTS), ("..", EXISTS)]
        {
            assert_eq!(client.create(ROOT, name).await.unwrap_err(), code, "{name:?}");
            assert_eq!(client.make_dir(ROOT, name).await.unwrap_err(), code, "{name:?}");
            assert_eq!(client.symlink(ROOT, name, "t").await.unwrap_err(), code, "{name:?}");
        }
        client.create(ROOT, &long).await.unwrap();
        client.remove(ROOT, &long).await.unwrap();
    });
}
