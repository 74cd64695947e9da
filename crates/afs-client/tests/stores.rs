//! Stores that are interrupted, whose server dies between, or whose data nobody vouches for: nothing is lost, and nothing lands in a
//! version of somebody else's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::data::{READ, WRITE, change, make, open, random_bytes, read_all, with_folder};
use crate::support::{Cell, NOBODY, ROOT_CELL, content};
use afs_client::SetStatus;
use afs_volume::disk::SimulatedDisk;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[test]
fn what_was_synced_is_there_after_its_server_has_lost_power() {
    for seed in 0..8 {
        let mut world = Cell::with_disks(1, |_| Some(SimulatedDisk::new(1 << 30)));
        world.make_volume(0, "root.cell", ROOT_CELL);
        let client = world.client(1);
        world.run(async move {
            let file = make(&client, "file").await;
            file.write(0, Bytes::from_static(b"text")).await.unwrap();
            file.fsync().await.unwrap();
        });
        world.crash(0, Some(seed));
        world.start(0);
        assert_eq!(world.read(&world.client(2), "file"), "text", "seed {seed}");
    }
}

#[test]
fn a_close_that_is_interrupted_is_stored_in_the_background() {
    for wait in [0, 1, 6, 11, 16, 25] {
        let world = Cell::new();
        let (one, two) = (world.client(1), world.client(2));
        world.run(async move {
            let file = make(&one, "file").await;
            file.write(0, Bytes::from(vec![b'a'; 300_000])).await.unwrap();
            file.write(500_000, Bytes::from(vec![b'b'; 300_000])).await.unwrap();
            let at = one.now() + Duration::from_millis(wait);
            {
                let mut flush = std::pin::pin!(file.flush());
                let mut timer = one.runtime().sleep_until(at);
                std::future::poll_fn(|cx| match flush.as_mut().poll(cx) {
                    std::task::Poll::Ready(outcome) => {
                        outcome.unwrap();
                        std::task::Poll::Ready(())
                    }
                    std::task::Poll::Pending => timer.as_mut().poll(cx),
                })
                .await;
            }
            let fid = file.fid();
            drop(file);
            one.runtime().sleep_until(one.now() + Duration::from_secs(10)).await;
            assert_eq!(one.dirty_bytes(), 0, "interrupted after {wait} ms");
            let mut expected = vec![b'a'; 300_000];
            expected.resize(500_000, 0);
            expected.resize(800_000, b'b');
            assert!(content(&two, NOBODY, fid).await == expected, "interrupted after {wait} ms");
            assert!(
                read_all(&open(&one, "file", READ).await).await == expected,
                "interrupted after {wait} ms"
            );
        });
    }
}

#[test]
fn a_server_that_dies_between_costs_no_promise() {
    for seed in 0..3 {
        let mut world = Cell::new();
        let clients = [world.client(1), world.client(2)];
        let mut random = StdRng::seed_from_u64(seed);
        let mut model = Vec::new();
        for round in 0..40 {
            let (both, before, own) = (clients.clone(), std::mem::take(&mut model), random.random());
            model = world.run(async move {
                let (mut random, mut model) = (StdRng::seed_from_u64(own), before);
                if round == 0 {
                    drop(make(&both[0], "file").await);
                }
                let file = open(&both[random.random_range(0..2)], "file", WRITE).await;
                let stored = model.len();
                change(&file, (&mut model, stored), &mut random).await;
                file.flush().await.unwrap();
                for (number, client) in both.iter().enumerate() {
                    let read = read_all(&open(client, "file", READ).await).await;
                    assert!(read == model, "seed {seed}, round {round}, client {number}");
                }
                model
            });
            if random.random_bool(0.3) {
                world.kill(0);
                world.start(0);
            }
        }
    }
}

/// What the client itself stores is nobody else's change, whichever way it was written: nothing is fetched again, and nobody who
/// keeps copies is told of it.
#[test]
fn what_a_fresh_client_writes_counts_as_nobody_elses() {
    let world = Cell::new();
    let client = world.client(1);
    let mut notices = client.notices(afs_client::Audience::Anybody);
    world.run({
        let client = client.clone();
        async move {
            let mut random = StdRng::seed_from_u64(1);
            for (number, length) in [10, 300_000, 40 << 20].into_iter().enumerate() {
                let file = make(&client, &format!("file{number}")).await;
                let bytes = random_bytes(&mut random, length);
                for (n, piece) in bytes.chunks(1 << 20).enumerate() {
                    file.write((n as u64) << 20, Bytes::copy_from_slice(piece)).await.unwrap();
                    client.runtime().sleep_until(client.now() + Duration::from_millis(2)).await;
                }
                file.flush().await.unwrap();
                let time = Some(afs_wire::ids::AfsTime(1_000_000_000));
                let set = SetStatus { modified: time, mode: Some(0o600), ..SetStatus::default() };
                client.set_status(NOBODY, file.fid(), set).await.unwrap();
                file.write(5, Bytes::from_static(b"!")).await.unwrap();
                file.truncate(7).await.unwrap();
                file.truncate(9000).await.unwrap();
                file.flush().await.unwrap();
                let mut expected = bytes[..7].to_vec();
                expected[5] = b'!';
                expected.resize(9000, 0);
                let mut out = vec![0; 10_000];
                let read = file.cached_read(0, &mut out).expect("nothing of it has gone").unwrap();
                assert!(out[..read] == expected, "file {number}");
            }
            client.shut_down().await;
        }
    });
    let mut told = Vec::new();
    world.run(async move {
        while let Some(notice) = notices.next().await {
            told.push(notice.changed);
        }
        told.retain(|changed| !changed.fid.vnode.is_directory());
        assert!(told.is_empty(), "{told:?}");
    });
}

/// What was written to a mapping was taken for a part of the version that others had made meanwhile, and of which nothing was
/// here: all of that was stored as zeros.
#[test]
fn what_was_written_to_a_mapping_never_lands_in_a_version_of_others() {
    use std::os::unix::fs::FileExt;
    let world = Cell::new();
    let one = world.client(1);
    let folder = world.folder("cache");
    let two = world.client_with(with_folder(&world, 2, &folder));
    world.run(async move {
        let file = make(&one, "file").await;
        file.write(0, Bytes::from(vec![b'a'; 100_000])).await.unwrap();
        file.flush().await.unwrap();
        // As it should be: the mapping's pages are stored at the close.
        let mapped = open(&two, "file", WRITE).await;
        assert!(read_all(&mapped).await == vec![b'a'; 100_000]);
        mapped.lend().unwrap();
        let backing = mapped.backing().expect("all of it is here");
        backing.write_all_at(b"mapped", 50_000).unwrap();
        mapped.note_lent(true, false).unwrap();
        mapped.flush().await.unwrap();
        let mut expected = vec![b'a'; 100_000];
        expected[50_000..50_006].copy_from_slice(b"mapped");
        assert!(read_all(&open(&one, "file", READ).await).await == expected);
        // Others change it while it is mapped.
        file.write(0, Bytes::from(vec![b'b'; 100_000])).await.unwrap();
        file.flush().await.unwrap();
        backing.write_all_at(b"late", 10).unwrap();
        assert!(read_all(&open(&two, "file", READ).await).await == vec![b'b'; 100_000]);
        mapped.note_lent(true, true).unwrap();
        mapped.flush().await.unwrap();
        drop(mapped);
        two.runtime().sleep_until(two.now() + Duration::from_secs(30)).await;
        assert!(content(&one, NOBODY, file.fid()).await == vec![b'b'; 100_000], "theirs is what there is");
        let conflicts = two.conflicts();
        assert_eq!((conflicts.len(), two.dirty_bytes()), (1, 0));
        expected[10..14].copy_from_slice(b"late");
        assert!(std::fs::read(folder.join(conflicts[0].data_name())).unwrap() == expected);
    });
}

/// `fstat` told a length of before, if it asked in the moment in which what was written became the server's.
#[test]
fn a_file_that_is_stored_just_now_has_its_new_length_and_no_older_one() {
    let world = Cell::new();
    let one = world.client(1);
    world.run(async move {
        let file = make(&one, "file").await;
        let (is_over, client, fid) = (Arc::new(AtomicBool::new(false)), one.clone(), file.fid());
        let over = Arc::clone(&is_over);
        let looking = std::thread::spawn(move || {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let Some(Ok(status)) = client.cached_status(NOBODY, fid) else { continue };
                assert!(status.length >= seen, "{} after {seen}", status.length);
                seen = status.length;
            }
            seen
        });
        let mut length = 0;
        while length < 3000 && !looking.is_finished() {
            length += 1;
            file.truncate(length).await.unwrap();
            file.flush().await.unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(looking.join().unwrap() <= length);
    });
}
