//! What becomes of data when the client dies with them: its folder is what the next one starts from.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::{READ, WRITE, make, read_all, with_folder};
use crate::support::{Cell, NOBODY, content};
use bytes::Bytes;

/// The folder as it is at a moment, which is how kill -9 leaves it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn what_a_killed_client_wrote_is_stored_at_the_next_start() {
    let world = Cell::new();
    let (before, after) = (world.folder("before"), world.folder("after"));
    let one = world.client_with(with_folder(&world, 1, &before));
    let fids = world.run({
        let one = one.clone();
        async move {
            let kept = make(&one, "kept").await;
            kept.write(0, Bytes::from(vec![b'a'; 100_000])).await.unwrap();
            kept.flush().await.unwrap();
            kept.write(50_000, Bytes::from_static(b"not stored yet")).await.unwrap();
            let new = make(&one, "new").await;
            new.write(7, Bytes::from_static(b"new")).await.unwrap();
            let fids = (kept.fid(), new.fid());
            // The process dies: nothing is closed.
            std::mem::forget((kept, new));
            fids
        }
    });
    copy(&before, &after);
    world.sim.cut_off(one.address());
    std::mem::forget(one);
    let two = world.client_with(with_folder(&world, 2, &after));
    let three = world.client(3);
    world.run(async move {
        two.runtime().sleep_until(two.now() + Duration::from_secs(30)).await;
        assert_eq!((two.dirty_bytes(), two.conflicts().len()), (0, 0));
        let mut expected = vec![b'a'; 100_000];
        expected[50_000..50_014].copy_from_slice(b"not stored yet");
        assert!(content(&three, NOBODY, fids.0).await == expected);
        assert_eq!(content(&three, NOBODY, fids.1).await, b"\0\0\0\0\0\0\0new");
    });
}

#[test]
fn what_a_killed_client_wrote_and_others_changed_since_is_put_aside() {
    let world = Cell::new();
    let (before, after) = (world.folder("before"), world.folder("after"));
    let one = world.client_with(with_folder(&world, 1, &before));
    let other = world.client(3);
    let fid = world.run({
        let one = one.clone();
        async move {
            let file = make(&one, "file").await;
            file.write(0, Bytes::from_static(b"first")).await.unwrap();
            file.flush().await.unwrap();
            file.write(0, Bytes::from_static(b"mine!")).await.unwrap();
            let fid = file.fid();
            std::mem::forget(file);
            fid
        }
    });
    copy(&before, &after);
    world.sim.cut_off(one.address());
    std::mem::forget(one);
    world.run({
        let other = other.clone();
        async move {
            let file = other.open(NOBODY, fid, WRITE).await.unwrap();
            file.write(0, Bytes::from_static(b"yours")).await.unwrap();
            file.flush().await.unwrap();
        }
    });
    let two = world.client_with(with_folder(&world, 2, &after));
    world.run(async move {
        // Whoever opens it sees the server's.
        let file = two.open(NOBODY, fid, READ).await.unwrap();
        assert_eq!(read_all(&file).await, b"yours");
        two.runtime().sleep_until(two.now() + Duration::from_secs(30)).await;
        let conflicts = two.conflicts();
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert_eq!(std::fs::read(after.join(conflicts[0].data_name())).unwrap(), b"mine!");
        assert_eq!(content(&other, NOBODY, fid).await, b"yours");
    });
}

#[test]
fn a_store_that_the_client_died_in_is_known_again() {
    let world = Cell::new();
    let (before, after) = (world.folder("before"), world.folder("after"));
    let one = world.client_with(with_folder(&world, 1, &before));
    let was_copied = Arc::new(Mutex::new(false));
    let fid = world.run({
        let (one, was_copied) = (one.clone(), Arc::clone(&was_copied));
        let (before, after) = (before.clone(), after.clone());
        async move {
            let file = make(&one, "file").await;
            file.write(0, Bytes::from_static(b"text")).await.unwrap();
            // The server has it after 5 ms; its answer is here after 10.
            let clock = one.clone();
            one.runtime().spawn(Box::pin(async move {
                clock.runtime().sleep_until(clock.now() + Duration::from_millis(7)).await;
                copy(&before, &after);
                *was_copied.lock().unwrap() = true;
            }));
            file.flush().await.unwrap();
            file.fid()
        }
    });
    assert!(*was_copied.lock().unwrap(), "before the answer");
    world.sim.cut_off(one.address());
    std::mem::forget(one);
    let two = world.client_with(with_folder(&world, 2, &after));
    world.run(async move {
        assert!(two.dirty_bytes() > 0, "the answer was not noted");
        two.runtime().sleep_until(two.now() + Duration::from_secs(30)).await;
        assert_eq!((two.dirty_bytes(), two.conflicts().len()), (0, 0));
        assert_eq!(content(&two, NOBODY, fid).await, b"text");
    });
}

/// A task that still has the client when its process ends kept it from closing the cache: after a reboot all of it was fetched anew.
#[test]
fn what_a_client_cached_that_ended_in_order_outlives_a_reboot() {
    let world = Cell::new();
    let folder = world.folder("cache");
    let one = world.client_with(with_folder(&world, 1, &folder));
    world.run({
        let one = one.clone();
        async move {
            let file = make(&one, "file").await;
            file.write(0, Bytes::from(vec![b'a'; 100_000])).await.unwrap();
            file.flush().await.unwrap();
            drop(file);
            one.shut_down().await;
        }
    });
    let after = world.folder("after");
    copy(&folder, &after);
    // What was there before a failed sync counts as what was there before a reboot; this says that one has failed.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(after.join("failed"), format!("{} 1\n", boot.trim())).unwrap();
    let two = world.client_with(with_folder(&world, 2, &after));
    assert!(two.cache_usage().bytes > 100_000, "{:?}", two.cache_usage());
    drop(one);
}
