//! `fsync` without the server: with write-behind it returns when this machine has everything on its disk, once the server is known to be away, and
//! later the server gets what was before it before what came after.

use std::time::Duration;

use crate::names_behind::{behind, cut_off_at_root, listed_root, on_disk, pause, write_new};
use crate::support::data::{READ, WRITE, make, read_all, with_folder};
use crate::support::{Cell, NOBODY, cell_root, content};
use afs_client::{Client, Config, Fid, Fsync, LockKind, OpenFile};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::Errno;
use bytes::Bytes;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

async fn write_and_sync(file: &OpenFile, text: &'static str) -> Result<(), Errno> {
    file.write(0, Bytes::from_static(text.as_bytes())).await.unwrap();
    file.fsync().await.map_err(|error| error.errno())
}

/// Returns once the client has known for a while that its server is away.
async fn notice(client: &Client, dir: Fid) {
    write_new(client, dir, "notice", "").await;
    pause(client, 60).await;
}

#[test]
fn an_fsync_waits_for_the_server_while_it_answers() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let fid = world.run_with(&one, |one| async move {
        listed_root(&one).await;
        let file = make(&one, "file").await;
        write_and_sync(&file, "synced").await.unwrap();
        file.fid()
    });
    world.cut_off(&one);
    world.run(async move {
        let found = two.lookup(NOBODY, cell_root(&two).await, b"file").await.unwrap().fid;
        assert_eq!(content(&two, NOBODY, found).await, b"synced", "{fid}");
    });
}

#[test]
fn an_fsync_that_meets_a_silent_server_returns_when_it_has_been_away_for_a_while() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    cut_off_at_root(&world, &one);
    world.run(async move {
        let file = make(&one, "file").await;
        let began = one.now();
        write_and_sync(&file, "synced here").await.unwrap();
        let took = one.now().since(began);
        assert!(took > Duration::from_secs(5) && took < HALF_A_MINUTE, "{took:?}");
        let began = one.now();
        write_and_sync(&file, "once more").await.unwrap();
        assert_eq!(one.now(), began, "it is known now");
        assert!(one.waiting().files == 1 && one.waiting().changes > 1, "{:?}", one.waiting());
    });
}

#[test]
fn what_was_synced_without_the_server_outlasts_a_loss_of_power_and_is_stored_later() {
    for seed in 0..5 {
        let world = Cell::new();
        let disk = SimulatedDisk::new(64 << 20);
        let (one, two) = (world.client_with(on_disk(&world, 1, &disk)), world.client(2));
        let root = cut_off_at_root(&world, &one);
        world.run_with(&one, move |one| async move {
            notice(&one, root).await;
            let file = make(&one, "file").await;
            write_and_sync(&file, "synced here").await.unwrap();
            // Not closed, and not synced.
            file.write(0, Bytes::from_static(b"SYNCED")).await.unwrap();
        });
        let after = disk.after_power_loss(seed);
        let again = world.client_with(on_disk(&world, 3, &after));
        std::mem::forget(one);
        world.run(async move {
            pause(&again, 120).await;
            assert_eq!((again.waiting().changes, again.dirty_bytes()), (0, 0), "seed {seed}");
            let found = two.lookup(NOBODY, cell_root(&two).await, b"file").await.unwrap().fid;
            let text = String::from_utf8(content(&two, NOBODY, found).await).unwrap();
            assert_eq!(text.to_lowercase(), "synced here", "seed {seed}");
        });
    }
}

#[test]
fn an_fsync_without_the_server_fails_where_it_is_to_mean_the_server() {
    let world = Cell::new();
    let folder = world.folder("cache2");
    let patience = Duration::from_secs(20);
    let configs = [
        Config { fsync: Fsync::Server, patience, ..behind(&world, 1) },
        // No write-behind.
        Config { patience, ..with_folder(&world, 2, &folder) },
    ];
    for config in configs {
        world.let_in();
        let one = world.client_with(config);
        let file = world.run_with(&one, |one| async move {
            listed_root(&one).await;
            let number = one.address().port();
            make(&one, &format!("file{number}-{}", one.address().ip())).await
        });
        world.cut_off(&one);
        world.run(async move {
            assert_eq!(write_and_sync(&file, "text").await, Err(Errno::ETIMEDOUT));
        });
    }
}

/// What is written into a file before: one of them takes longer to be stored than all that comes after.
fn before(number: usize) -> Bytes {
    if number == 1 { vec![7; 4 << 20].into() } else { Bytes::from_static(b"before") }
}

/// The one who looks is nearer to the server, and looks all the time.
#[test]
fn what_came_after_an_fsync_without_the_server_is_never_there_without_what_was_before_it() {
    const BEFORE: usize = 40;
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let (root, files, late) = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        let mut files = Vec::new();
        for number in 0..BEFORE {
            files.push(make(&one, &format!("file{number}")).await);
        }
        // Made before all, so that nothing but its data says when it was written.
        let late = make(&one, "0-late").await;
        pause(&one, 10).await;
        (root, files, late)
    });
    world.cut_off(&one);
    let fids = world.run_with(&one, move |one| async move {
        notice(&one, root).await;
        for (number, file) in files.iter().enumerate() {
            file.write(0, before(number)).await.unwrap();
            file.close().await.unwrap();
        }
        write_and_sync(&files[0], "before").await.unwrap();
        late.write(0, Bytes::from_static(b"after")).await.unwrap();
        late.close().await.unwrap();
        write_new(&one, root, "new", "new").await;
        assert!(one.waiting().changes >= 2);
        files.iter().chain([&late]).map(OpenFile::fid).collect::<Vec<_>>()
    });
    let far = one.address();
    world.sim.set_network(move |_, from, to, _| {
        Fate::Arrives(Duration::from_millis(if from == far || to == far { 5 } else { 0 }))
    });
    world.run(async move {
        let root = cell_root(&two).await;
        let mut real = Vec::new();
        for number in 0..BEFORE {
            real.push(two.lookup(NOBODY, root, format!("file{number}").as_bytes()).await.unwrap().fid);
        }
        let late = two.lookup(NOBODY, root, b"0-late").await.unwrap().fid;
        let mut seen = 0;
        for _ in 0..200_000 {
            pause_a_little(&two).await;
            let has_data = content(&two, NOBODY, late).await == b"after";
            let has_name = two.lookup(NOBODY, root, b"new").await.is_ok();
            if !has_data && !has_name {
                continue;
            }
            for (number, fid) in real.iter().enumerate() {
                let text = content(&two, NOBODY, *fid).await;
                assert!(
                    text == before(number),
                    "file {number} has {} bytes: data {has_data}, name {has_name}, {}",
                    text.len(),
                    fids[number]
                );
            }
            seen += 1;
            if has_data && has_name {
                break;
            }
        }
        assert!(seen > 0, "it is never there");
        pause(&one, 120).await;
        assert_eq!((one.waiting().changes, one.dirty_bytes()), (0, 0));
        let file = two.open(NOBODY, two.lookup(NOBODY, root, b"new").await.unwrap().fid, READ).await.unwrap();
        assert_eq!(read_all(&file).await, b"new");
    });
}

async fn pause_a_little(client: &Client) {
    client.runtime().sleep_until(client.now() + Duration::from_millis(1)).await;
}

#[test]
fn a_lock_that_others_must_respect_fails_at_once_without_the_server() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    let fid = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        let fid = write_new(&one, root, "file", "text").await;
        pause(&one, 10).await;
        fid
    });
    world.cut_off(&one);
    world.run_with(&one, move |one| async move {
        // Nobody knows yet that it is away.
        let began = one.now();
        let refused = one.lock(NOBODY, fid, 1, LockKind::Write, true).await.unwrap_err();
        let took = one.now().since(began);
        assert!(refused.errno() == Errno::ENOLCK && took < HALF_A_MINUTE, "{refused} after {took:?}");
        let began = one.now();
        let refused = one.lock(NOBODY, fid, 1, LockKind::Write, true).await.unwrap_err();
        assert_eq!((refused.errno(), one.now()), (Errno::ENOLCK, began), "{refused}");
        let file = one.open(NOBODY, fid, WRITE).await.unwrap();
        pause(&one, 10).await;
        assert_eq!(write_and_sync(&file, "edit").await, Ok(()), "an editor goes on without a lock");
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        one.lock(NOBODY, fid, 1, LockKind::Write, true).await.unwrap();
    });
}
