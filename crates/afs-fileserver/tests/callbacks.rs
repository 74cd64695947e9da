//! Who is told of what, in which order, and how long a writer waits for it.

use crate::support;
use std::time::Duration;

use crate::support::client::{Client, Heard, Kind, mode};
use crate::support::{Cell, ROOT, VOLUME};
use afs_wire::ids::AfsFid;
use afs_wire::rxafs;
use afs_wire::status::CallBackType;
use rx::Runtime;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_new_client_is_asked_who_it_is_and_told_to_forget_before_its_first_call_is_answered() {
    let cell = Cell::new();
    let client = cell.client(1);
    cell.run(async move {
        let reply = client.status(ROOT).await.unwrap();
        assert_eq!(client.heard(), [Heard::Asked, Heard::Reset]);
        assert_eq!(reply.callback.kind, CallBackType::SHARED);
        client.status(ROOT).await.unwrap();
        assert_eq!(client.heard(), [], "once is enough");
    });
}

#[test]
fn a_client_without_uuid_is_served_too() {
    let cell = Cell::new();
    let client = Client::of_kind(&cell.sim, &cell.endpoint, 1, Kind { is_old: true, ..Kind::default() });
    let writer = cell.client(2);
    cell.run(async move {
        let reply = client.status(ROOT).await.unwrap();
        assert_eq!(reply.callback.kind, CallBackType::SHARED);
        writer.create(ROOT, "a").await.unwrap();
        assert_eq!(client.breaks(), [ROOT]);
    });
}

/// File service notes 7.2: each operation of one client, and what another, which has looked at everything, is told; and what
/// the first is told itself.
#[test]
fn every_operation_tells_those_it_should_in_the_order_of_stock_servers() {
    let cell = Cell::new();
    let (reader, writer) = (cell.client(1), cell.client(2));
    let sim = cell.sim.clone();
    cell.run(async move {
        let w = &writer;
        let file = w.create(ROOT, "file").await.unwrap().fid;
        let victim = w.create(ROOT, "victim").await.unwrap().fid;
        let second = w.create(ROOT, "second").await.unwrap().fid;
        let dir = w.make_dir(ROOT, "dir").await.unwrap().fid;
        let sub = w.make_dir(ROOT, "sub").await.unwrap().fid;
        let all = [ROOT, file, victim, second, dir, sub];
        w.breaks();
        // Both have looked at everything before each operation.
        let look = || async {
            for fid in all {
                for client in [&reader, w] {
                    let _ = client.status(fid).await;
                }
            }
            reader.heard();
            w.heard();
        };
        let check = |what: &str, to_reader: &[AfsFid], to_writer: &[AfsFid]| {
            assert_eq!(reader.breaks(), to_reader, "{what}: to the reader");
            assert_eq!(w.breaks(), to_writer, "{what}: to the writer");
        };
        look().await;
        w.store(file, 0, b"data", 4).await.unwrap();
        check("StoreData", &[file], &[]);
        look().await;
        w.store_status(file, mode(0o600)).await.unwrap();
        check("StoreStatus", &[file], &[]);
        look().await;
        w.create(ROOT, "new").await.unwrap();
        check("CreateFile", &[ROOT], &[]);
        look().await;
        w.make_dir(ROOT, "newdir").await.unwrap();
        check("MakeDir", &[ROOT], &[]);
        look().await;
        w.symlink(ROOT, "newlink", "target").await.unwrap();
        check("Symlink", &[ROOT], &[]);
        look().await;
        w.link(ROOT, "hard", file).await.unwrap();
        check("Link", &[ROOT, file], &[]);
        look().await;
        w.remove(ROOT, "hard").await.unwrap();
        check("RemoveFile, a link remains", &[file, ROOT], &[file]);
        look().await;
        w.remove(ROOT, "new").await.unwrap();
        check("RemoveFile of the last link", &[ROOT], &[]);
        look().await;
        w.remove_dir(ROOT, "newdir").await.unwrap();
        check("RemoveDir", &[ROOT], &[]);
        look().await;
        w.rename((ROOT, "file"), (ROOT, "renamed")).await.unwrap();
        check("Rename in a directory", &[ROOT], &[]);
        look().await;
        w.rename((ROOT, "renamed"), (dir, "moved")).await.unwrap();
        check("Rename to another directory", &[dir, ROOT], &[]);
        look().await;
        w.rename((ROOT, "second"), (ROOT, "victim")).await.unwrap();
        check("Rename over a file", &[ROOT], &[]);
        look().await;
        w.rename((ROOT, "sub"), (dir, "sub")).await.unwrap();
        check("Rename of a directory", &[dir, ROOT, sub], &[sub]);
        look().await;
        w.set_acl(dir, "1\n0\nsystem:anyuser 127\n").await.unwrap();
        check("StoreACL", &[dir], &[]);
        look().await;
        let lock = || w.call(rxafs::SetLock { fid: file, kind: rxafs::ViceLockType::READ });
        // These are not waited for.
        let release = || async {
            w.call(rxafs::ReleaseLock { fid: file }).await.unwrap();
            sim.sleep_until(sim.now() + 100 * MS).await;
        };
        lock().await.unwrap();
        lock().await.unwrap();
        check("SetLock", &[], &[]);
        release().await;
        check("ReleaseLock, a lock remains", &[], &[]);
        release().await;
        check("ReleaseLock of the last lock", &[file], &[]);
        look().await;
        release().await;
        check("ReleaseLock without a lock", &[], &[]);
    });
}

#[test]
fn a_rename_over_one_of_two_links_tells_of_the_file_that_is_left() {
    let cell = Cell::new();
    let (reader, writer) = (cell.client(1), cell.client(2));
    cell.run(async move {
        writer.create(ROOT, "a").await.unwrap();
        let left = writer.create(ROOT, "b").await.unwrap().fid;
        writer.link(ROOT, "b2", left).await.unwrap();
        for client in [&reader, &writer] {
            client.status(left).await.unwrap();
            client.heard();
        }
        writer.rename((ROOT, "a"), (ROOT, "b")).await.unwrap();
        assert_eq!(reader.breaks(), [left]);
        assert_eq!(writer.breaks(), [left]);
    });
}

#[test]
fn who_gave_up_a_promise_is_not_told() {
    let cell = Cell::new();
    let (one, other, writer) = (cell.client(1), cell.client(2), cell.client(3));
    let server = cell.server.clone();
    cell.run(async move {
        for client in [&one, &other] {
            client.status(ROOT).await.unwrap();
            client.heard();
        }
        let fids = rxafs::AfsCbFids::new(vec![ROOT]).unwrap();
        let args = rxafs::GiveUpCallBacks { fids: fids.clone(), callbacks: rxafs::AfsCbs::default() };
        one.call(args).await.unwrap();
        other.call(rxafs::GiveUpAllCallBacks {}).await.unwrap();
        writer.create(ROOT, "a").await.unwrap();
        assert_eq!((one.breaks(), other.breaks()), (vec![], vec![]));
        assert_eq!(server.client_counts().1, 1, "the writer's, for what it made");
        other.status(ROOT).await.unwrap();
        assert_eq!(other.heard(), [Heard::Asked, Heard::Reset], "it had said farewell");
    });
}

/// Machines that were cloned with the folder of their cache, and clients whose UUIDs are all zeros: each was taken for a client that had
/// moved, so the notices went to the one that had called last, and the others kept old content.
#[test]
fn clients_with_the_same_uuid_are_each_told_of_the_others_changes() {
    for uuid in [0, 77] {
        let cell = Cell::new();
        let kind = Kind { uuid: Some(uuid), ..Kind::default() };
        let clients: Vec<Client> =
            (1..4).map(|n| Client::of_kind(&cell.sim, &cell.endpoint, n, kind.clone())).collect();
        let sim = cell.sim.clone();
        cell.run(async move {
            let file = clients[0].create(ROOT, "a").await.unwrap().fid;
            for client in &clients {
                client.status(file).await.unwrap();
            }
            let start = sim.now();
            for round in 0..9 {
                let (writer, others) = (round % 3, (1..3).map(|n| (round + n) % 3));
                for client in &clients {
                    let reply = client.status(file).await.unwrap();
                    assert_eq!(reply.callback.kind, CallBackType::SHARED);
                    client.heard();
                }
                clients[writer].store(file, 0, &[round as u8], 1).await.unwrap();
                assert_eq!(clients[writer].breaks(), []);
                for other in others {
                    assert_eq!(clients[other].breaks(), [file], "of UUID {uuid} in round {round}");
                }
            }
            let took = sim.now().since(start);
            assert!(took < Duration::from_secs(1), "{took:?}");
        });
    }
}

/// Anybody may ask a client for its UUID.
#[test]
fn somebody_with_the_uuid_of_another_cannot_make_the_server_forget_that_one() {
    let cell = Cell::new();
    let kind = Kind { uuid: Some(1), ..Kind::default() };
    let (victim, writer) = (cell.client(1), cell.client(2));
    let thief = Client::of_kind(&cell.sim, &cell.endpoint, 3, kind);
    let sim = cell.sim.clone();
    cell.run(async move {
        let file = writer.create(ROOT, "a").await.unwrap().fid;
        victim.status(file).await.unwrap();
        victim.heard();
        thief.status(ROOT).await.unwrap();
        let fids = rxafs::AfsCbFids::new(vec![file]).unwrap();
        thief.call(rxafs::GiveUpCallBacks { fids, callbacks: rxafs::AfsCbs::default() }).await.unwrap();
        thief.call(rxafs::GiveUpAllCallBacks {}).await.unwrap();
        thief.heard();
        writer.store(file, 0, b"x", 1).await.unwrap();
        assert_eq!(victim.heard(), [Heard::Probe, Heard::Break(vec![file])]);
        // Nor by coming while the victim cannot be reached: it is told when it is back.
        victim.status(file).await.unwrap();
        victim.heard();
        victim.ears.be_silent(true);
        thief.status(ROOT).await.unwrap();
        writer.store(file, 0, b"y", 1).await.unwrap();
        victim.ears.be_silent(false);
        sim.sleep_until(sim.now() + Duration::from_secs(10)).await;
        assert_eq!(victim.breaks(), [file]);
        assert_eq!(thief.breaks(), []);
    });
}

#[test]
fn a_volume_operation_tells_all_who_have_something_of_it() {
    let cell = Cell::new();
    let (one, other) = (cell.client(1), cell.client(2));
    let server = cell.server.clone();
    cell.run(async move {
        let file = one.create(ROOT, "a").await.unwrap().fid;
        other.status(file).await.unwrap();
        other.status(ROOT).await.unwrap();
        server.volume_changed(VOLUME).await;
        for client in [&one, &other] {
            assert_eq!(client.breaks(), [AfsFid::whole_volume(VOLUME)]);
        }
        assert_eq!(server.client_counts().1, 0);
    });
}

/// Thirty clients that looked at a directory and vanished without a word: OpenAFS 1.8.9 let the next writer wait 35 s.
#[test]
fn thirty_clients_that_vanished_hold_up_a_writer_for_at_most_two_seconds() {
    let cell = Cell::new();
    let gone: Vec<Client> = (10..40).map(|number| cell.client(number)).collect();
    let (present, writer) = (cell.client(1), cell.client(2));
    let (sim, server) = (cell.sim.clone(), cell.server.clone());
    cell.run(async move {
        for client in gone.iter().chain([&present, &writer]) {
            client.status(ROOT).await.unwrap();
        }
        for client in &gone {
            sim.cut_off(client.endpoint.local_addr());
        }
        assert_eq!(server.client_counts(), (32, 32));
        present.heard();
        let start = sim.now();
        writer.create(ROOT, "a").await.unwrap();
        let took = sim.now().since(start);
        assert!(took <= 2000 * MS, "{took:?}");
        assert_eq!(present.breaks(), [ROOT], "who is there has been told");
        // Those who vanished are known to be gone: nobody waits for them again.
        let start = sim.now();
        writer.create(ROOT, "b").await.unwrap();
        let took = sim.now().since(start);
        assert!(took <= 100 * MS, "{took:?}");
    });
}

/// An operation that tells of several things waits no longer in all than one that tells of one.
#[test]
fn a_move_waits_for_vanished_clients_once() {
    let cell = Cell::new();
    let (gone, writer) = (cell.client(1), cell.client(2));
    let sim = cell.sim.clone();
    cell.run(async move {
        let dir = writer.make_dir(ROOT, "dir").await.unwrap().fid;
        let sub = writer.make_dir(ROOT, "sub").await.unwrap().fid;
        for fid in [ROOT, dir, sub] {
            gone.status(fid).await.unwrap();
        }
        sim.cut_off(gone.endpoint.local_addr());
        let start = sim.now();
        writer.rename((ROOT, "sub"), (dir, "sub")).await.unwrap();
        let took = sim.now().since(start);
        assert!((1900 * MS..2000 * MS).contains(&took), "{took:?}");
    });
}

/// A client whose port answers nothing but that goes on calling: it is served, without promises, and told as soon as it
/// can be.
#[test]
fn a_client_that_did_not_answer_is_told_when_it_calls_again() {
    let cell = Cell::new();
    let (client, writer) = (cell.client(1), cell.client(2));
    let sim = cell.sim.clone();
    cell.run(async move {
        client.status(ROOT).await.unwrap();
        client.ears.be_silent(true);
        let start = sim.now();
        writer.create(ROOT, "a").await.unwrap();
        let took = sim.now().since(start);
        assert!((1900 * MS..2000 * MS).contains(&took), "{took:?}");
        client.ears.be_silent(false);
        client.heard();
        let reply = client.status(ROOT).await.unwrap();
        assert_eq!(reply.callback.kind, CallBackType::DROPPED, "it is not known to be well yet");
        sim.sleep_until(sim.now() + Duration::from_secs(16)).await;
        let reply = client.status(ROOT).await.unwrap();
        assert_eq!(client.breaks(), [ROOT]);
        assert_eq!(reply.callback.kind, CallBackType::SHARED);
    });
}

#[test]
fn a_read_only_volume_has_one_promise_and_so_has_a_snapshot() {
    let cell = Cell::new();
    let (client, server) = (cell.client(1), cell.server.clone());
    let partition = cell.partition.clone();
    cell.run(async move {
        let file = client.create(ROOT, "a").await.unwrap().fid;
        client.call(rxafs::GiveUpAllCallBacks {}).await.unwrap();
        let [id, snapshot] = [1, 2].map(|n| afs_wire::ids::VolumeId(VOLUME.0 + n));
        let new = afs_volume::NewClone {
            id,
            name: "scratch.readonly".to_owned(),
            kind: afs_volume::VolumeKind::ReadOnly,
        };
        support::put_online(&partition.clone_volume(VOLUME, &new, support::stamp()).unwrap());
        partition.make_snapshot(VOLUME, snapshot, false, support::stamp()).unwrap();
        for id in [id, snapshot] {
            for fid in [ROOT, file] {
                let reply = client.status(AfsFid { volume: id, ..fid }).await.unwrap();
                assert!((7200..7400).contains(&reply.callback.expiration_seconds), "{:?}", reply.callback);
            }
            assert_eq!(server.client_counts().1, 1);
            let read_only = AfsFid { volume: id, ..ROOT };
            assert_eq!(client.create(read_only, "b").await.unwrap_err(), 49_733_405);
            client.heard();
            server.volume_changed(id).await;
            assert_eq!(client.breaks(), [AfsFid::whole_volume(id)]);
        }
    });
}

/// A reader that begins while a file is written: whatever it gets, it is told of the change unless it has got it.
#[test]
fn no_change_is_missed_by_a_reader_that_comes_at_the_same_time() {
    for offset in 0..30 {
        let cell = Cell::new();
        let (reader, writer) = (cell.client(1), cell.client(2));
        let sim = cell.sim.clone();
        cell.run(async move {
            let file = writer.create(ROOT, "a").await.unwrap().fid;
            reader.status(ROOT).await.unwrap();
            reader.heard();
            let (done, finished) = tokio::sync::oneshot::channel();
            let clock = sim.clone();
            sim.spawn(Box::pin(async move {
                clock.sleep_until(clock.now() + offset * MS).await;
                let reply = reader.status(file).await.unwrap();
                clock.sleep_until(clock.now() + 1000 * MS).await;
                let _ = done.send((reply, reader.breaks()));
            }));
            let status = writer.store(file, 0, b"new", 3).await.unwrap();
            let (reply, breaks) = finished.await.unwrap();
            let is_new = reply.status.data_version == status.data_version;
            assert!(is_new || breaks.contains(&file), "after {offset} ms: {reply:?}, {breaks:?}");
        });
    }
}
