//! Data of files: what is written is read, here and elsewhere, whatever other clients and servers do.

use crate::support;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::{READ, WRITE, change, make, open, random_bytes, read_all, with_folder};
use crate::support::{ALICE, Cell, NOBODY, ROOT_CELL, cell_root, content};
use afs_client::{Client, Error, OpenFile, OpenFlags, SetStatus};
use afs_wire::Errno;
use afs_wire::ids::AfsTime;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::Runtime;

#[test]
fn what_is_written_is_read_here_at_once_and_elsewhere_after_the_close() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "file").await;
        file.write(0, Bytes::from_static(b"hello")).await.unwrap();
        file.write(5, Bytes::from_static(b" world")).await.unwrap();
        assert_eq!(read_all(&file).await, b"hello world");
        assert_eq!(one.status(NOBODY, file.fid()).await.unwrap().length, 11);
        let there = open(&two, "file", READ).await;
        assert_eq!(read_all(&there).await, b"", "it was not closed");
        file.flush().await.unwrap();
        assert_eq!(read_all(&open(&two, "file", READ).await).await, b"hello world");
        assert_eq!(read_all(&there).await, b"hello world", "also what was open before goes on with it");
        assert_eq!(one.dirty_bytes(), 0);
        // Nothing is fetched that was written here.
        let status = one.status(NOBODY, file.fid()).await.unwrap();
        assert_eq!((status.length, status.data_version.0), (11, 1));
        let mut out = [0; 20];
        assert_eq!(file.cached_read(0, &mut out).unwrap().unwrap(), 11);
    });
}

#[test]
fn who_opens_a_file_and_reads_nothing_takes_nothing_from_the_cache() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "file").await;
        file.write(0, Bytes::from_static(b"hello")).await.unwrap();
        file.flush().await.unwrap();
        let there = open(&two, "file", READ).await;
        assert_eq!(two.cache_usage().files, 0);
        assert_eq!(read_all(&there).await, b"hello");
        assert_eq!(two.cache_usage().files, 1);
        // What was read once is there for the next who opens it, at his first read.
        let mut out = [0; 20];
        assert_eq!(open(&two, "file", READ).await.cached_read(0, &mut out).unwrap().unwrap(), 5);
        assert_eq!(open(&two, "file", WRITE).await.cached_read(1, &mut out).unwrap().unwrap(), 4);
    });
}

#[test]
fn a_large_file_comes_whole_and_goes_while_it_is_written() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    let mut random = StdRng::seed_from_u64(1);
    let bytes = Bytes::from(random_bytes(&mut random, 40 << 20));
    world.run(async move {
        let file = make(&one, "large").await;
        for (n, piece) in bytes.chunks(1 << 20).enumerate() {
            file.write((n as u64) << 20, Bytes::copy_from_slice(piece)).await.unwrap();
            // Time for others.
            one.runtime().sleep_until(one.now() + Duration::from_millis(20)).await;
        }
        let there = two.lookup(NOBODY, cell_root(&two).await, b"large").await.unwrap();
        assert!(there.status.length >= 16 << 20, "{} bytes before the close", there.status.length);
        file.flush().await.unwrap();
        let there = open(&two, "large", READ).await;
        assert!(read_all(&there).await == bytes);
        let mut out = [0; 1000];
        assert_eq!(there.cached_read(39 << 20, &mut out).unwrap().unwrap(), 1000);
        assert_eq!(out[..], bytes[39 << 20..(39 << 20) + 1000]);
    });
}

#[test]
fn only_what_was_changed_is_stored() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "shared").await;
        file.write(0, Bytes::from(vec![b'.'; 300_000])).await.unwrap();
        file.flush().await.unwrap();
        // Both write into the same version, each his part, without having the rest.
        let (first, second) = (open(&one, "shared", WRITE).await, open(&two, "shared", WRITE).await);
        first.write(100, Bytes::from_static(b"one")).await.unwrap();
        second.write(200_000, Bytes::from_static(b"two")).await.unwrap();
        first.flush().await.unwrap();
        second.flush().await.unwrap();
        let mut expected = vec![b'.'; 300_000];
        expected[100..103].copy_from_slice(b"one");
        expected[200_000..200_003].copy_from_slice(b"two");
        assert!(content(&two, NOBODY, second.fid()).await == expected, "at the server");
        assert!(read_all(&open(&one, "shared", READ).await).await == expected, "at the first");
        assert!(read_all(&open(&two, "shared", READ).await).await == expected, "at the second");
    });
}

#[test]
fn a_file_cut_back_to_the_servers_length_is_short_here_too() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let length_at =
            async |client: &Client, file: &OpenFile| client.status(NOBODY, file.fid()).await.unwrap().length;
        let new = make(&one, "new").await;
        new.write(0, Bytes::from(vec![b'x'; 5000])).await.unwrap();
        assert_eq!(new.truncate(0).await.unwrap().length, 0, "as it is told who cuts it");
        assert_eq!(length_at(&one, &new).await, 0, "and who asks");
        new.flush().await.unwrap();
        assert_eq!((length_at(&one, &new).await, length_at(&two, &new).await), (0, 0));
        // A journal that is rolled back and written on.
        let log = make(&one, "log").await;
        log.write(0, Bytes::from(vec![b'a'; 100])).await.unwrap();
        log.flush().await.unwrap();
        log.write(100, Bytes::from(vec![b'B'; 50])).await.unwrap();
        let by_another = open(&one, "log", WRITE).await;
        assert_eq!(by_another.truncate(100).await.unwrap().length, 100);
        assert_eq!(length_at(&one, &log).await, 100);
        log.write(100, Bytes::from(vec![b'C'; 7])).await.unwrap();
        log.flush().await.unwrap();
        let expected = [vec![b'a'; 100], vec![b'C'; 7]].concat();
        assert_eq!(content(&two, NOBODY, log.fid()).await, expected);
        // Cut by its name.
        log.write(107, Bytes::from_static(b"more")).await.unwrap();
        let set = SetStatus { length: Some(107), ..SetStatus::default() };
        assert_eq!(one.set_status(NOBODY, log.fid(), set).await.unwrap().length, 107);
        assert_eq!((length_at(&one, &log).await, read_all(&log).await), (107, expected));
    });
}

#[test]
fn emptying_an_empty_file_or_cutting_nothing_off_changes_its_time() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        const OLD: AfsTime = AfsTime(1_000_000_000);
        let (stamp, both) = (make(&one, "stamp").await, [one.clone(), two]);
        let fid = stamp.fid();
        let make_old = async || {
            let set = SetStatus { modified: Some(OLD), ..SetStatus::default() };
            one.set_status(NOBODY, fid, set).await.unwrap();
        };
        let is_new = async |how: &str| {
            for client in &both {
                let modified = client.status(NOBODY, fid).await.unwrap().modified;
                assert!(modified > OLD, "{how}");
            }
        };
        make_old().await;
        drop(open(&one, "stamp", OpenFlags { truncate: true, ..WRITE }).await);
        is_new("opened to be emptied").await;
        stamp.write(0, Bytes::from_static(b"text")).await.unwrap();
        make_old().await;
        stamp.truncate(4).await.unwrap();
        is_new("cut to its own length").await;
        make_old().await;
        stamp.write(4, Bytes::from_static(b" and more")).await.unwrap();
        stamp.truncate(4).await.unwrap();
        is_new("what was written was cut off again").await;
        assert_eq!(read_all(&stamp).await, b"text");
    });
}

#[test]
fn an_append_goes_behind_what_others_have_closed() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        drop(make(&one, "log").await);
        // Open all the time, so that what each knew of the end is old by the next turn.
        let files = [open(&one, "log", WRITE).await, open(&two, "log", WRITE).await];
        let mut expected = Vec::new();
        for round in 0..10 {
            for (number, file) in files.iter().enumerate() {
                let line = format!("{number} in round {round}\n");
                let at = file.append(Bytes::from(line.clone())).await.unwrap();
                assert_eq!(at, expected.len() as u64);
                expected.extend_from_slice(line.as_bytes());
                // Its end is known as long as nobody else stores it.
                let more = file.cached_append(b"more\n").unwrap().unwrap();
                assert_eq!(more, expected.len() as u64);
                expected.extend_from_slice(b"more\n");
                file.flush().await.unwrap();
            }
        }
        assert_eq!(content(&two, NOBODY, files[0].fid()).await, expected);
    });
}

fn rounds(seed: u64, lose_every: u64) {
    let world = Cell::new();
    let clients = [world.client(1), world.client(2)];
    let sim = world.sim.clone();
    world.run(async move {
        let mut random = StdRng::seed_from_u64(seed);
        drop(make(&clients[0], "file").await);
        let held = [open(&clients[0], "file", READ).await, open(&clients[1], "file", READ).await];
        sim.lose_every(lose_every);
        let mut model: Vec<u8> = Vec::new();
        for round in 0..100 {
            let when = format!("seed {seed}, round {round}");
            let writer = random.random_range(0..2);
            let file = open(&clients[writer], "file", WRITE).await;
            let stored = model.len();
            for _ in 0..random.random_range(1..4) {
                change(&file, (&mut model, stored), &mut random).await;
                let status = clients[writer].status(NOBODY, file.fid()).await.unwrap();
                assert_eq!(status.length, model.len() as u64, "{when}: as its status says");
            }
            if random.random_bool(0.5) {
                assert!(read_all(&file).await == model, "{when}: the writer");
            }
            file.flush().await.unwrap();
            drop(file);
            let reader = random.random_range(0..2);
            if random.random_bool(0.7) {
                let read = read_all(&open(&clients[reader], "file", READ).await).await;
                assert_eq!(read.len(), model.len(), "{when}: client {reader}");
                assert!(read == model, "{when}: client {reader}");
            }
            assert!(read_all(&held[reader]).await == model, "{when}: client {reader}, open all the time");
        }
    });
}

#[test]
fn an_open_sees_what_was_closed_before_it() {
    for seed in 0..4 {
        rounds(seed, 0);
    }
}

#[test]
fn an_open_sees_what_was_closed_before_it_over_a_lossy_way() {
    for seed in 10..12 {
        rounds(seed, 31);
    }
}

#[test]
fn a_server_that_is_away_holds_a_close_up_and_nothing_is_lost() {
    let mut world = Cell::new();
    let client = world.client(1);
    let file = world.run({
        let client = client.clone();
        async move {
            let file = make(&client, "file").await;
            file.write(0, Bytes::from_static(b"text")).await.unwrap();
            Arc::new(file)
        }
    });
    world.kill(0);
    let closed = Arc::new(Mutex::new(None));
    {
        let (file, closed) = (Arc::clone(&file), Arc::clone(&closed));
        world.sim.spawn(Box::pin(async move {
            let outcome = file.flush().await;
            *closed.lock().unwrap() = Some(outcome);
        }));
    }
    let later = client.now() + Duration::from_secs(60);
    let wait = |until| {
        let client = client.clone();
        world.run(async move { client.runtime().sleep_until(until).await });
    };
    wait(later);
    assert!(closed.lock().unwrap().is_none());
    world.start(0);
    let client = client.clone();
    world.run({
        let client = client.clone();
        async move { client.runtime().sleep_until(later + Duration::from_secs(30)).await }
    });
    closed.lock().unwrap().take().expect("it goes on by itself").unwrap();
    let fid = file.fid();
    world.run(async move { assert_eq!(content(&client, NOBODY, fid).await, b"text") });
}

#[test]
fn what_cannot_be_stored_is_told_at_close_and_put_aside() {
    let world = Cell::new();
    let folder = world.folder("cache");
    let client = world.client_with(with_folder(&world, 1, &folder));
    let volume = world.volume(0, ROOT_CELL);
    world.run(async move {
        let file = make(&client, "file").await;
        volume.change_info(|info| info.max_quota_kib = 10).unwrap();
        file.write(0, Bytes::from(vec![b'a'; 100_000])).await.unwrap();
        let error = file.flush().await.unwrap_err();
        assert_eq!(error.errno(), Errno::EDQUOT, "{error}");
        assert!(client.dirty_bytes() > 0, "while it is open it may yet be stored");
        let (fid, root) = (file.fid(), cell_root(&client).await);
        drop(file);
        client.runtime().sleep_until(client.now() + Duration::from_secs(5)).await;
        let conflicts = client.conflicts();
        assert_eq!((conflicts.len(), client.dirty_bytes()), (1, 0));
        assert_eq!(std::fs::read(folder.join(conflicts[0].data_name())).unwrap(), vec![b'a'; 100_000]);
        assert_eq!(client.status(NOBODY, fid).await.unwrap().length, 0, "as the server has it");
        client.remove(NOBODY, root, b"file").await.unwrap();
    });
}

#[test]
fn a_file_that_is_changed_while_it_is_read_is_not_taken_for_another_version() {
    for seed in 0..6 {
        let world = Cell::new();
        let (one, two) = (world.client(1), world.client(2));
        world.run(async move {
            let mut random = StdRng::seed_from_u64(seed);
            let old = random_bytes(&mut random, 6 << 20);
            let new = random_bytes(&mut random, 6 << 20);
            let writer = make(&one, "file").await;
            writer.write(0, old.clone().into()).await.unwrap();
            writer.flush().await.unwrap();
            let reader = open(&two, "file", READ).await;
            let at = two.now() + Duration::from_millis(random.random_range(0..400));
            let (clock, all) = (one.clone(), Bytes::from(new.clone()));
            let done = Arc::new(tokio::sync::Notify::new());
            let told = Arc::clone(&done);
            one.runtime().spawn(Box::pin(async move {
                clock.runtime().sleep_until(at).await;
                writer.write(0, all).await.unwrap();
                writer.flush().await.unwrap();
                told.notify_one();
            }));
            assert_eq!(read_all(&reader).await.len(), old.len());
            done.notified().await;
            assert!(read_all(&open(&two, "file", READ).await).await == new, "seed {seed}: opened after");
            assert!(read_all(&reader).await == new, "seed {seed}: read again");
        });
    }
}

#[test]
fn cutting_and_growing_leaves_zeros() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "file").await;
        file.write(0, Bytes::from(vec![b'x'; 100_000])).await.unwrap();
        file.flush().await.unwrap();
        file.truncate(10).await.unwrap();
        file.truncate(50_000).await.unwrap();
        file.write(60_000, Bytes::from_static(b"end")).await.unwrap();
        file.flush().await.unwrap();
        let mut expected = vec![b'x'; 10];
        expected.resize(60_000, 0);
        expected.extend_from_slice(b"end");
        assert!(read_all(&open(&two, "file", READ).await).await == expected);
        // By name, with nothing open for writing.
        let length = |length| SetStatus { length: Some(length), ..SetStatus::default() };
        let status = two.set_status(NOBODY, file.fid(), length(5)).await.unwrap();
        assert_eq!(status.length, 5);
        assert_eq!(read_all(&file).await, b"xxxxx");
        two.set_status(NOBODY, file.fid(), length(1000)).await.unwrap();
        expected.truncate(5);
        expected.resize(1000, 0);
        assert!(read_all(&file).await == expected);
    });
}

#[test]
fn a_file_that_is_removed_while_it_is_open_is_read_and_written_on() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        let file = make(&one, "file").await;
        file.write(0, Bytes::from_static(b"text")).await.unwrap();
        one.remove(NOBODY, root, b"file").await.unwrap();
        assert!(two.lookup(NOBODY, cell_root(&two).await, b"file").await.is_err());
        file.write(4, Bytes::from_static(b" and more")).await.unwrap();
        assert_eq!(read_all(&file).await, b"text and more");
        file.flush().await.unwrap();
        drop(file);
        one.runtime().sleep_until(one.now() + Duration::from_secs(5)).await;
        assert!(support::names(&two, NOBODY, cell_root(&two).await).await.is_empty());
        assert_eq!(one.dirty_bytes(), 0);
    });
}

/// So that the kernel looks its name up again, where another file may be.
#[test]
fn a_file_that_another_client_removed_before_it_was_read_is_gone() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "file").await;
        file.write(0, Bytes::from_static(b"hello")).await.unwrap();
        file.flush().await.unwrap();
        let fid = file.fid();
        drop(file);
        let there = open(&two, "file", READ).await;
        let root = cell_root(&one).await;
        one.remove(NOBODY, root, b"file").await.unwrap();
        assert!(matches!(there.read(0, 5).await, Err(Error::Gone { fid: gone }) if gone == fid));
        assert!(matches!(two.status(NOBODY, fid).await, Err(Error::Gone { .. })));
    });
}

#[test]
fn a_time_and_a_mode_that_are_set_stay_when_the_file_is_closed() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let file = make(&client, "file").await;
        file.write(0, Bytes::from_static(b"text")).await.unwrap();
        let time = afs_wire::ids::AfsTime(1_000_000_000);
        let set = SetStatus { modified: Some(time), mode: Some(0o444), ..SetStatus::default() };
        client.set_status(NOBODY, file.fid(), set).await.unwrap();
        file.flush().await.unwrap();
        let status = client.status(NOBODY, file.fid()).await.unwrap();
        assert_eq!((status.modified, status.length), (time, 4));
    });
}

#[test]
fn who_may_not_read_is_told_at_open_though_the_data_are_here() {
    let world = Cell::new();
    let client = world.client(1);
    let file = world.run({
        let client = client.clone();
        async move {
            let file = make(&client, "file").await;
            file.write(0, Bytes::from_static(b"text")).await.unwrap();
            file.flush().await.unwrap();
            file
        }
    });
    world.grant(0, ROOT_CELL, &[(afs_wire::ids::ViceId::SYSTEM_ANYUSER, afs_wire::rights::Rights::LOOKUP)]);
    let fresh: Client = world.client(2);
    world.run(async move {
        let error = fresh.open(ALICE, file.fid(), READ).await.unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES, "{error}");
    });
}
