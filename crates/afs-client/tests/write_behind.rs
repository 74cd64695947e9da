//! Write-behind: a close that does not wait for the server loses nothing, neither here nor of others', and shows nobody less than before.

use std::sync::Arc;
use std::time::Duration;

use crate::support::data::{READ, WRITE, make, open, read_all, with_folder};
use crate::support::{Cell, NOBODY, cell_root, content};
use afs_client::{Client, Config, OpenFile, Setting, WriteBehind};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use bytes::Bytes;

fn behind(cell: &Cell, number: u8, mode: WriteBehind) -> Config {
    let folder = cell.folder(&format!("cache{number}"));
    Config { write_behind: Some(mode), ..with_folder(cell, number, &folder) }
}

/// The same on a disk that can lose its power.
fn on_disk(cell: &Cell, number: u8, mode: WriteBehind, disk: &SimulatedDisk) -> Config {
    Config { cache_disk: Some(Arc::new(disk.clone())), ..behind(cell, number, mode) }
}

async fn write_and_close(file: &OpenFile, text: &'static str) {
    file.write(0, Bytes::from_static(text.as_bytes())).await.unwrap();
    file.close().await.unwrap();
}

async fn pause(client: &Client, time: Duration) {
    client.runtime().sleep_until(client.now() + time).await;
}

#[test]
fn a_close_waits_for_no_server_and_others_see_the_data_within_a_second() {
    for mode in [WriteBehind::Always, WriteBehind::Second] {
        let world = Cell::new();
        let (one, two) = (world.client_with(behind(&world, 1, mode)), world.client(2));
        world.run(async move {
            let mut fids = Vec::new();
            for number in 0..100 {
                let file = make(&one, &format!("file{number}")).await;
                file.write(0, Bytes::from(vec![number; 8192])).await.unwrap();
                let began = one.now();
                file.close().await.unwrap();
                assert_eq!(one.now(), began, "{mode:?}: a round trip takes time");
                fids.push(file.fid());
            }
            pause(&one, Duration::from_secs(1)).await;
            assert_eq!(one.dirty_bytes(), 0);
            for (number, fid) in fids.into_iter().enumerate() {
                assert!(content(&two, NOBODY, fid).await == vec![number as u8; 8192]);
            }
        });
    }
}

#[test]
fn a_new_name_never_shows_less_than_the_file_had_when_it_was_made() {
    for kind in ["renamed", "linked", "in a renamed directory"] {
        let world = Cell::new();
        let (one, two) = (world.client_with(behind(&world, 1, WriteBehind::Always)), world.client(2));
        // The one who looks is nearer.
        let far = one.address();
        world.sim.set_network(move |_, from, to, _| {
            let is_far = from == far || to == far;
            Fate::Arrives(Duration::from_millis(if is_far { 5 } else { 0 }))
        });
        world.run(async move {
            let root = cell_root(&one).await;
            let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
            let place = if kind == "in a renamed directory" { dir } else { root };
            one.read_dir(NOBODY, root).await.unwrap();
            one.read_dir(NOBODY, place).await.unwrap();
            let file = one.create_and_open(NOBODY, (place, b"new"), 0o644, WRITE, true).await.unwrap().1;
            // Some at a time are stored: these keep the file waiting.
            let mut before = Vec::new();
            for number in 0..100 {
                before.push(make(&one, &format!("before{number}")).await);
            }
            for file in &before {
                write_and_close(file, "before").await;
            }
            write_and_close(&file, "whole").await;
            match kind {
                "renamed" => one.rename(NOBODY, (root, b"new"), (root, b"name"), false).await.unwrap(),
                "linked" => drop(one.link(NOBODY, file.fid(), root, b"name").await.unwrap()),
                _ => one.rename(NOBODY, (root, b"dir"), (root, b"name"), false).await.unwrap(),
            }
            let mut looks = 0;
            loop {
                pause(&one, Duration::from_millis(1)).await;
                let root = cell_root(&two).await;
                let Ok(found) = two.lookup(NOBODY, root, b"name").await else {
                    looks += 1;
                    assert!(looks < 10_000, "{kind}: it never has its name");
                    continue;
                };
                let file = match kind {
                    "in a renamed directory" => two.lookup(NOBODY, found.fid, b"new").await.unwrap().fid,
                    _ => found.fid,
                };
                assert_eq!(content(&two, NOBODY, file).await, b"whole", "{kind}");
                break;
            }
        });
    }
}

#[test]
fn an_fsync_brings_all_that_was_closed_before_to_the_server() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1, WriteBehind::Always)), world.client(2));
    world.run_with(&one, |one| async move {
        // New names are made here, too.
        let root = cell_root(&one).await;
        one.read_dir(NOBODY, root).await.unwrap();
        let mut files = Vec::new();
        for number in 0..40 {
            files.push(make(&one, &format!("file{number}")).await);
        }
        for file in &files {
            write_and_close(file, "closed").await;
        }
        let last = make(&one, "last").await;
        last.write(0, Bytes::from_static(b"synced")).await.unwrap();
        last.fsync().await.unwrap();
    });
    world.cut_off(&one);
    world.run(async move {
        for number in 0..40 {
            assert_eq!(read_all(&open(&two, &format!("file{number}"), READ).await).await, b"closed");
        }
        assert_eq!(read_all(&open(&two, "last", READ).await).await, b"synced");
    });
}

#[test]
fn what_others_stored_before_is_kept_and_what_was_closed_here_too() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1, WriteBehind::Always)), world.client(2));
    let fid = world.run_with(&one, |one| async move {
        let file = make(&one, "file").await;
        file.write(0, Bytes::from_static(b"first")).await.unwrap();
        file.flush().await.unwrap();
        file.fid()
    });
    world.cut_off(&one);
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let mine = one.open(NOBODY, fid, WRITE).await.unwrap();
            write_and_close(&mine, "mine").await;
            drop(mine);
            let theirs = two.open(NOBODY, fid, WRITE).await.unwrap();
            write_and_close(&theirs, "yours now").await;
            // It knows that the server is away.
            pause(&one, Duration::from_secs(20)).await;
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, Duration::from_secs(120)).await;
        assert_eq!(content(&two, NOBODY, fid).await, b"yours now");
        assert_eq!(content(&one, NOBODY, fid).await, b"yours now");
        let conflicts = one.conflicts();
        assert_eq!((conflicts.len(), one.dirty_bytes()), (1, 0), "{conflicts:?}");
    });
}

#[test]
fn what_was_closed_while_the_server_was_away_is_there_when_it_is_back() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1, WriteBehind::Always)), world.client(2));
    let fid = world.run_with(&one, |one| async move {
        let file = make(&one, "file").await;
        file.fid()
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        let file = one.open(NOBODY, fid, WRITE).await.unwrap();
        write_and_close(&file, "written on the way").await;
        drop(file);
        let again = one.open(NOBODY, fid, READ).await.unwrap();
        assert_eq!(read_all(&again).await, b"written on the way");
        let again = one.open(NOBODY, fid, WRITE).await.unwrap();
        again.fsync().await.unwrap();
        pause(&one, Duration::from_secs(60)).await;
    });
    world.let_in();
    world.run(async move {
        pause(&one, Duration::from_secs(120)).await;
        assert_eq!(content(&two, NOBODY, fid).await, b"written on the way");
        assert!(one.conflicts().is_empty());
    });
}

/// What becomes of files that were closed while the server was away, when the machine loses its power some time after the last one.
fn after_a_loss_of_power(mode: WriteBehind, seed: u64, wait: Duration) -> Vec<Vec<u8>> {
    let world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let one = world.client_with(on_disk(&world, 1, mode, &disk));
    let files = world.run_with(&one, |one| async move {
        let mut files = Vec::new();
        for number in 0..10 {
            files.push(make(&one, &format!("file{number}")).await);
        }
        files
    });
    world.cut_off(&one);
    let fids = world.run_with(&one, |one| async move {
        let mut fids = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            file.write(0, Bytes::from(vec![number as u8 + 1; 5000 * (number + 1) * (number + 1)]))
                .await
                .unwrap();
            file.close().await.unwrap();
            fids.push(file.fid());
        }
        pause(&one, wait).await;
        fids
    });
    let after = disk.after_power_loss(seed);
    let two = world.client_with(on_disk(&world, 2, mode, &after));
    std::mem::forget(one);
    let three = world.client(3);
    world.run(async move {
        pause(&two, Duration::from_secs(30)).await;
        assert_eq!(two.dirty_bytes(), 0);
        let mut all = Vec::new();
        for fid in fids {
            all.push(content(&three, NOBODY, fid).await);
        }
        all
    })
}

#[test]
fn what_was_closed_outlasts_a_loss_of_power() {
    for seed in 0..20 {
        let (mode, wait) = match seed % 2 {
            0 => (WriteBehind::Always, Duration::ZERO),
            _ => (WriteBehind::Second, Duration::from_secs(3)),
        };
        for (number, found) in after_a_loss_of_power(mode, seed, wait).into_iter().enumerate() {
            let written = vec![number as u8 + 1; 5000 * (number + 1) * (number + 1)];
            assert!(found == written, "seed {seed}, {mode:?}: file {number} has {} bytes", found.len());
        }
    }
}

#[test]
fn a_close_of_a_small_file_waits_for_one_sync() {
    // For the whole mount, and where it is set in a mount without.
    for write_behind in [Some(WriteBehind::Always), None] {
        let world = Cell::new();
        let disk = SimulatedDisk::new(64 << 20);
        let config = Config { write_behind, ..on_disk(&world, 1, WriteBehind::Always, &disk) };
        let one = world.client_with(config);
        world.run(async move {
            let root = cell_root(&one).await;
            one.read_dir(NOBODY, root).await.unwrap();
            if write_behind.is_none() {
                one.set_behind(root, false, Some(Setting::On(WriteBehind::Always))).await.unwrap();
            }
            let syncs_of_a_close = async |name: &str, bytes| {
                let file = make(&one, name).await;
                file.write(0, Bytes::from(vec![1; bytes])).await.unwrap();
                let before = disk.syncs();
                file.close().await.unwrap();
                disk.syncs() - before
            };
            // Data are in the log from the first such close on, and this one's were written before.
            syncs_of_a_close("first", 8192).await;
            for number in 0..20 {
                let name = format!("file{number}");
                assert_eq!(syncs_of_a_close(&name, 8192).await, 1, "{write_behind:?}: {name}");
            }
            assert!(syncs_of_a_close("large", 100_000).await > 1, "the data are in the cache's file alone");
        });
    }
}

#[test]
fn write_behind_is_refused_without_a_folder_that_outlasts_the_client() {
    let world = Cell::new();
    let config = Config { write_behind: Some(WriteBehind::Always), ..world.config(1) };
    let runtime = Arc::new(world.sim.clone());
    let error = world.run(async move { Client::start_with(runtime, config).await }).unwrap_err();
    assert!(error.to_string().contains("needs a cache folder"), "{error}");
}
