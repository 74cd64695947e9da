//! Write-behind for names, where others, refusals and restarts come between a change and its server.

use std::time::Duration;

use crate::kept_tokens::Warnings;
use crate::names_behind::{behind, cut_off_at_root, listed_root, on_disk, pause, tree, write_new};
use crate::support::data::{READ, WRITE, open, read_all, with_folder};
use crate::support::{Cell, NOBODY, ROOT_CELL, USER_VOLUME, cell_root};
use afs_client::{Client, Config, Fid, SetStatus};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use bytes::Bytes;
use rx::Runtime;

/// The client on this disk is killed, and another one starts there.
fn restarted(cell: &Cell, number: u8, killed: Client, disk: &SimulatedDisk) -> (Client, SimulatedDisk) {
    let after = disk.after_kill();
    drop(killed);
    (cell.client_with(on_disk(cell, number, &after)), after)
}

async fn overwrite(client: &Client, fid: Fid, text: &'static str) {
    let file = client.open(NOBODY, fid, WRITE).await.unwrap();
    file.truncate(0).await.unwrap();
    file.write(0, Bytes::from_static(text.as_bytes())).await.unwrap();
    file.close().await.unwrap();
}

#[test]
fn a_file_is_not_replaced_after_a_restart_by_one_whose_data_were_put_aside_before() {
    let world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let one = world.client_with(on_disk(&world, 1, &disk));
    world.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::from_millis(5)));
    let root = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "text", "old").await;
        pause(&one, 5).await;
        root
    });
    world.volume(0, ROOT_CELL).change_info(|info| info.max_quota_kib = 10).unwrap();
    let fid = world.run_with(&one, |one| async move {
        write_new(&one, root, "temporary", &"new".repeat(10_000)).await;
        pause(&one, 5).await;
        assert_eq!(one.conflicts().len(), 1);
        one.lookup(NOBODY, root, b"temporary").await.unwrap().fid
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        // It waits for the server, and the rename for it.
        let set = SetStatus { mode: Some(0o600), ..SetStatus::default() };
        one.set_status(NOBODY, fid, set).await.unwrap();
        one.rename(NOBODY, (root, b"temporary"), (root, b"text"), false).await.unwrap()
    });
    let (two, _) = restarted(&world, 2, one, &disk);
    world.let_in();
    world.run(async move {
        assert_eq!(two.waiting().changes, 2);
        pause(&two, 120).await;
        // The data, and the change of the name.
        assert_eq!((two.conflicts().len(), two.waiting().changes), (2, 0));
        assert_eq!(tree(&two, cell_root(&two).await).await, ["/temporary=", "/text=old"]);
    });
}

#[test]
fn what_was_written_into_a_file_that_is_not_removed_after_all_is_stored() {
    for (is_replaced, is_killed) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("replaced: {is_replaced}, killed: {is_killed}");
        let world = Cell::new();
        let disk = SimulatedDisk::new(64 << 20);
        let one = world.client_with(on_disk(&world, 1, &disk));
        let (root, fid) = world.run_with(&one, |one| async move {
            let root = listed_root(&one).await;
            let fid = write_new(&one, root, "file", "first").await;
            write_new(&one, root, "other", "other").await;
            pause(&one, 5).await;
            (root, fid)
        });
        world.cut_off(&one);
        world.run_with(&one, |one| async move {
            overwrite(&one, fid, "second").await;
            match is_replaced {
                true => one.rename(NOBODY, (root, b"other"), (root, b"file"), false).await.unwrap(),
                false => one.remove(NOBODY, root, b"file").await.unwrap(),
            }
            // What is written is not stored meanwhile.
            pause(&one, 20).await;
        });
        let all_but_delete = Rights(Rights::ALL.0 & !Rights::DELETE.0);
        world.grant(0, ROOT_CELL, &[(ViceId::SYSTEM_ANYUSER, all_but_delete)]);
        let one = if is_killed { restarted(&world, 2, one, &disk).0 } else { one };
        let two = world.client(3);
        world.let_in();
        world.run(async move {
            pause(&one, 120).await;
            assert_eq!((one.waiting().changes, one.dirty_bytes()), (0, 0), "{what}");
            for client in [&one, &two] {
                let all = ["/file=second", "/other=other"];
                assert_eq!(tree(client, cell_root(client).await).await, all, "{what}");
            }
            let told: Vec<_> = one.conflicts().into_iter().map(|told| (told.length, told.why)).collect();
            let why = if is_replaced { "could not be renamed to \"file\"" } else { "could not be removed" };
            assert!(matches!(&told[..], [(0, told)] if told.contains(why)), "{what}: {told:?}");
            let fid = one.lookup(NOBODY, cell_root(&one).await, b"file").await.unwrap().fid;
            overwrite(&one, fid, "third").await;
            pause(&one, 5).await;
            assert_eq!(read_all(&open(&two, "file", READ).await).await, b"third", "{what}");
        });
    }
}

#[test]
fn a_server_that_is_away_holds_up_nothing_that_is_for_another() {
    let mut world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    world.make_volume(1, "user", USER_VOLUME);
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let (here, away, old) = world.run_with(&one, |one| async move {
        let here = listed_root(&one).await;
        let away = Fid::root_of(here.cell, USER_VOLUME);
        one.read_dir(NOBODY, away).await.unwrap();
        let mut old = Vec::new();
        for number in 0..30 {
            old.push(write_new(&one, away, &format!("old{number}"), "text").await);
        }
        pause(&one, 5).await;
        (here, away, old)
    });
    world.kill(1);
    world.run(async move {
        for number in 0..100 {
            one.make_dir(NOBODY, away, format!("dir{number}").as_bytes(), 0o755).await.unwrap();
        }
        for fid in old {
            overwrite(&one, fid, "later").await;
        }
        pause(&one, 1).await;
        write_new(&one, here, "file", "text").await;
        pause(&one, 2).await;
        assert_eq!(tree(&two, cell_root(&two).await).await, ["/file=text"]);
    });
}

/// After a start nobody knows whether what waits was made already.
#[test]
fn an_empty_file_that_others_have_made_is_not_taken_for_the_clients_own() {
    let world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let one = world.client_with(on_disk(&world, 1, &disk));
    let root = cut_off_at_root(&world, &one);
    world.run_with(&one, |one| async move { write_new(&one, root, "file", "ours").await });
    let two = world.client(3);
    let theirs = world.run_with(&two, |two| async move {
        pause(&two, 5).await;
        two.create(NOBODY, cell_root(&two).await, b"file", 0o640).await.unwrap().fid
    });
    let (one, _) = restarted(&world, 2, one, &disk);
    world.let_in();
    world.run(async move {
        pause(&one, 60).await;
        assert_eq!((one.waiting().changes, one.conflicts().len()), (0, 1));
        // They write into it, or remove it: it is theirs.
        assert_eq!(tree(&two, cell_root(&two).await).await, ["/file="]);
        assert_eq!(two.lookup(NOBODY, cell_root(&two).await, b"file").await.unwrap().fid, theirs);
    });
}

/// What was made in it waits for the directory, and is not tried itself.
#[test]
fn who_waits_for_what_cannot_be_sent_is_told_though_it_is_another_change_that_fails() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    let root = cut_off_at_root(&world, &one);
    world.run(async move {
        let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        let file = write_new(&one, dir, "file", "text").await;
        let began = one.now();
        let set = SetStatus { owner: Some(ViceId(1)), ..SetStatus::default() };
        let late = one.runtime().sleep_until(began + Duration::from_secs(1200));
        let set = std::pin::pin!(one.set_status(NOBODY, file, set));
        match futures_util::future::select(set, late).await {
            futures_util::future::Either::Left((outcome, _)) => drop(outcome.unwrap_err()),
            futures_util::future::Either::Right(_) => panic!("it waits for ever"),
        }
    });
}

/// A store and the removal of the same file cross.
#[test]
fn a_file_that_is_removed_while_it_is_stored_is_not_taken_for_one_that_others_have_stored() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    let root = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "file", "first").await;
        pause(&one, 5).await;
        root
    });
    let (began, own) = (world.sim.now(), one.address());
    // The answer to the store gets lost, and comes again after that to the removal.
    world.sim.set_network(move |now, _, to, _| {
        match to == own && now.since(began) < Duration::from_millis(8) {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::ZERO),
        }
    });
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    world.run(async move {
        let fid = one.lookup(NOBODY, root, b"file").await.unwrap().fid;
        overwrite(&one, fid, "second").await;
        one.runtime().sleep_until(one.now() + Duration::from_millis(10)).await;
        one.remove(NOBODY, root, b"file").await.unwrap();
        pause(&one, 60).await;
        assert_eq!((one.waiting().changes, one.dirty_bytes(), one.conflicts().len()), (0, 0, 0));
    });
    assert_eq!(warnings.count(), 0);
}

#[test]
fn a_name_that_others_have_made_and_removed_meanwhile_is_made() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let root = world.run_with(&one, |one| async move { listed_root(&one).await });
    let far = one.address();
    world.sim.set_network(move |_, from, to, _| match from == far || to == far {
        true => Fate::Arrives(Duration::from_secs(1)),
        false => Fate::Arrives(Duration::ZERO),
    });
    world.run(async move {
        let there = cell_root(&two).await;
        let theirs = async {
            write_new(&two, there, "file", "theirs").await;
            two.remove(NOBODY, there, b"file").await.unwrap();
        };
        let ours = async {
            // On its way to the server when the others' is there.
            one.runtime().sleep_until(one.now() + Duration::from_millis(500)).await;
            write_new(&one, root, "file", "ours").await;
        };
        futures_util::future::join(theirs, ours).await;
        pause(&one, 60).await;
        assert_eq!(tree(&two, there).await, ["/file=ours"]);
        assert_eq!((one.waiting().changes, one.conflicts().len()), (0, 0));
    });
}

#[test]
fn an_fsync_brings_what_an_earlier_run_has_left_to_the_server_also_without_write_behind() {
    let world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let one = world.client_with(on_disk(&world, 1, &disk));
    let root = cut_off_at_root(&world, &one);
    world.run_with(&one, |one| async move {
        // Each takes a round trip of its own.
        let mut dir = root;
        for _ in 0..20 {
            dir = one.make_dir(NOBODY, dir, b"d", 0o755).await.unwrap().fid;
        }
        write_new(&one, dir, "file", "closed").await;
    });
    let after = disk.after_kill();
    drop(one);
    let config = with_folder(&world, 2, &world.folder("cache2"));
    let two = world.client_with(Config { cache_disk: Some(std::sync::Arc::new(after)), ..config });
    let three = world.client(3);
    world.let_in();
    world.run_with(&two, |two| async move {
        let file = two.create_and_open(NOBODY, (cell_root(&two).await, b"new"), 0o644, WRITE, true).await;
        file.unwrap().1.fsync().await.unwrap();
    });
    world.cut_off(&two);
    world.run(async move {
        let mut all: Vec<_> = (1..=20).map(|depth| format!("{}/", "/d".repeat(depth))).collect();
        all.extend([format!("{}/file=closed", "/d".repeat(20)), "/new=".to_owned()]);
        all.sort();
        assert_eq!(tree(&three, cell_root(&three).await).await, all);
    });
}

#[test]
fn a_cell_that_is_over_keeps_no_client() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    let runtime = std::sync::Arc::downgrade(one.runtime());
    cut_off_at_root(&world, &one);
    drop(one);
    assert!(runtime.upgrade().is_some(), "its tasks have it");
    drop(world);
    assert!(runtime.upgrade().is_none());
}
