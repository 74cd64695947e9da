//! What an administrator who looks at a file server is told: who does what, and which calls wait for whom.

use std::time::Duration;

use crate::support::client::mode;
use crate::support::{Cell, ROOT, VOLUME};
use afs_fileserver::activity::Wait;
use afs_wire::rxafs;
use afs_wire::status::AfsStoreStatus;
use rx::Runtime;

const MS: Duration = Duration::from_millis(1);

#[test]
fn calls_and_bytes_are_told_by_volume_user_and_client() {
    let cell = Cell::new();
    let (one, other) = (cell.client_of(1, "user"), cell.client(2));
    let server = cell.server.clone();
    cell.run(async move {
        let file = one.create(ROOT, "a").await.unwrap().fid;
        one.store(file, 0, &[7; 100_000], 100_000).await.unwrap();
        other.fetch(file, 0, 60_000).await.unwrap();
        other.fetch(file, 50_000, 60_000).await.unwrap();
        assert!(
            other
                .status(afs_wire::ids::AfsFid { unique: afs_wire::ids::Uniquifier(9), ..file })
                .await
                .is_err()
        );

        let report = server.activity(10);
        let total = report.total;
        assert_eq!((total.calls, total.failed), (5, 1));
        assert_eq!((total.stored_bytes, total.fetched_bytes), (100_000, 110_000));
        assert_eq!(report.volumes, [(VOLUME, total)], "all was in one volume");
        assert_eq!(server.volume_name(VOLUME).unwrap(), "scratch");
        let users: Vec<_> =
            report.users.iter().map(|(name, figures)| (name.as_str(), figures.calls)).collect();
        assert_eq!(users.len(), 2);
        assert!(users.contains(&("user", 2)) && users.contains(&("anonymous", 3)), "{users:?}");
        let fetched = |of| report.clients.iter().find(|(at, _)| *at == of).unwrap().1.fetched_bytes;
        assert_eq!((fetched(one.endpoint.local_addr()), fetched(other.endpoint.local_addr())), (0, 110_000));
        assert!(report.waiting.is_empty() && report.refused.is_empty());
    });
}

#[test]
fn a_writer_that_waits_for_a_client_that_does_not_answer_is_told_with_that_clients_address() {
    let cell = Cell::new();
    let (reader, writer) = (cell.client(1), cell.client_of(2, "user"));
    let (sim, server) = (cell.sim.clone(), cell.server.clone());
    cell.run(async move {
        reader.status(ROOT).await.unwrap();
        writer.status(ROOT).await.unwrap();
        reader.ears.be_silent(true);
        let (silent, from) = (reader.endpoint.local_addr(), writer.endpoint.local_addr());
        let look = async {
            sim.sleep_until(sim.now() + 500 * MS).await;
            server.activity(10)
        };
        let (created, report) = tokio::join!(writer.create(ROOT, "a"), look);
        created.unwrap();
        assert_eq!(report.waiting_count, 1);
        let told = &report.waiting[0];
        assert_eq!((told.call.wait, told.call.fid, told.call.client), (Wait::Callbacks, Some(ROOT), from));
        assert_eq!(told.call.user.as_deref(), Some("user"));
        assert_eq!((told.awaited.as_slice(), told.awaited_count), (&[silent][..], 1));
        assert!((400 * MS..500 * MS).contains(&told.waited), "{:?}", told.waited);
        assert_eq!(server.activity(10).waiting_count, 0);
    });
}

#[test]
fn a_change_that_waits_for_another_is_told_with_the_client_whose_change_comes_first() {
    let cell = Cell::new();
    let (slow, writer) = (cell.client(1), cell.client(2));
    let (sim, server) = (cell.sim.clone(), cell.server.clone());
    cell.run(async move {
        let fid = slow.create(ROOT, "a").await.unwrap().fid;
        writer.status(fid).await.unwrap();
        // It announces data and does not send them.
        let status = AfsStoreStatus::default();
        let args = rxafs::StoreData64 { fid, status, pos: 0, length: 1000, file_length: 1000 };
        let mut call = slow.peer.call().await.unwrap();
        call.send_request(&args).await.unwrap();
        call.flush().unwrap();
        sim.sleep_until(sim.now() + 100 * MS).await;
        let look = async {
            sim.sleep_until(sim.now() + 100 * MS).await;
            let report = server.activity(10);
            drop(call);
            report
        };
        let (stored, report) = tokio::join!(writer.store_status(fid, mode(0o600)), look);
        stored.unwrap();
        assert_eq!(report.waiting.len(), 1);
        assert_eq!((report.waiting[0].call.wait, report.waiting[0].call.fid), (Wait::Change, Some(fid)));
        assert_eq!(report.waiting[0].awaited, [slow.endpoint.local_addr()]);
    });
}

#[test]
fn a_client_that_is_refused_a_lock_or_a_busy_volume_is_told() {
    let cell = Cell::new();
    let (one, other) = (cell.client(1), cell.client(2));
    let (volume, server) = (cell.volume(), cell.server.clone());
    cell.run(async move {
        let fid = one.create(ROOT, "a").await.unwrap().fid;
        let lock = || rxafs::SetLock { fid, kind: rxafs::ViceLockType::WRITE };
        one.call(lock()).await.unwrap();
        other.call(lock()).await.unwrap_err();
        other.call(lock()).await.unwrap_err();
        volume.set_state(afs_volume::VolumeState::Busy);
        one.status(fid).await.unwrap_err();
        let refused = server.activity(10).refused;
        let told: Vec<_> = refused.iter().map(|r| (r.why, r.volume, r.client, r.count)).collect();
        let (one, other) = (one.endpoint.local_addr(), other.endpoint.local_addr());
        assert_eq!(told, [("volume busy", Some(VOLUME), one, 1), ("file locked", Some(VOLUME), other, 2)]);
    });
}
