//! Write-behind for names: what is made, renamed and removed here waits for no server, is seen here at once and by others soon and in order, and
//! outlasts what may happen to this machine.

use std::time::Duration;

use crate::support::data::{READ, WRITE, open, read_all, with_folder};
use crate::support::{Cell, NOBODY, ROOT_CELL, cell_root, names};
use afs_client::{Client, Config, Error, Fid, Kind, SetStatus, WriteBehind};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::Errno;
use afs_wire::ids::AfsTime;
use bytes::Bytes;

pub(crate) fn behind(cell: &Cell, number: u8) -> Config {
    let folder = cell.folder(&format!("cache{number}"));
    Config { write_behind: Some(WriteBehind::Always), ..with_folder(cell, number, &folder) }
}

/// The same on a disk that can lose its power.
pub(crate) fn on_disk(cell: &Cell, number: u8, disk: &SimulatedDisk) -> Config {
    Config { cache_disk: Some(std::sync::Arc::new(disk.clone())), ..behind(cell, number) }
}

pub(crate) async fn pause(client: &Client, seconds: u64) {
    client.runtime().sleep_until(client.now() + Duration::from_secs(seconds)).await;
}

/// The root of the volume, whose names are known.
pub(crate) async fn listed_root(client: &Client) -> Fid {
    let root = cell_root(client).await;
    client.read_dir(NOBODY, root).await.unwrap();
    root
}

/// The same, of a client that is cut off then.
pub(crate) fn cut_off_at_root(cell: &Cell, client: &Client) -> Fid {
    let root = cell.run_with(client, |client| async move { listed_root(&client).await });
    cell.cut_off(client);
    root
}

pub(crate) async fn write_new(client: &Client, dir: Fid, name: &str, text: &str) -> Fid {
    let made = client.create_and_open(NOBODY, (dir, name.as_bytes()), 0o640, WRITE, true).await.unwrap();
    made.1.write(0, Bytes::from(text.as_bytes().to_vec())).await.unwrap();
    made.1.close().await.unwrap();
    made.0.fid
}

/// All that is below a directory, by path, with its content; what is renamed by a crash of this client to a hidden name is left out.
pub(crate) async fn tree(client: &Client, dir: Fid) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![(String::new(), dir)];
    while let Some((path, dir)) = left.pop() {
        for name in names(client, NOBODY, dir).await {
            let entry = client.lookup(NOBODY, dir, name.as_bytes()).await.unwrap();
            let path = format!("{path}/{name}");
            match entry.status.kind {
                Kind::Directory => {
                    found.push(format!("{path}/"));
                    left.push((path, entry.fid));
                }
                Kind::File => {
                    let file = client.open(NOBODY, entry.fid, READ).await.unwrap();
                    let text = String::from_utf8(read_all(&file).await).unwrap();
                    found.push(format!("{path}={text}"));
                }
                Kind::Symlink => {
                    let target = client.readlink(NOBODY, entry.fid).await.unwrap();
                    found.push(format!("{path}->{}", String::from_utf8_lossy(&target)));
                }
            }
        }
    }
    found.sort();
    found
}

/// Makes a tree, with all kinds of changes.
async fn make_tree(client: &Client, root: Fid) {
    let dir = client.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
    let below = client.make_dir(NOBODY, dir, b"below", 0o755).await.unwrap().fid;
    for number in 0..20 {
        write_new(client, below, &format!("file{number}"), &format!("text{number}")).await;
    }
    client.symlink(NOBODY, dir, b"link", b"below/file3").await.unwrap();
    let temporary = write_new(client, dir, "temporary", "whole").await;
    client.rename(NOBODY, (dir, b"temporary"), (root, b"final"), false).await.unwrap();
    client.link(NOBODY, temporary, root, b"second").await.unwrap();
    client.remove(NOBODY, below, b"file7").await.unwrap();
    client.make_dir(NOBODY, dir, b"empty", 0o755).await.unwrap();
    client.remove_dir(NOBODY, dir, b"empty").await.unwrap();
    let set = SetStatus { mode: Some(0o600), modified: Some(AfsTime(1_000_000_000)), ..SetStatus::default() };
    client.set_status(NOBODY, temporary, set).await.unwrap();
}

fn expected() -> Vec<String> {
    let mut all: Vec<_> =
        (0..20).filter(|n| *n != 7).map(|n| format!("/dir/below/file{n}=text{n}")).collect();
    all.extend(
        ["/dir/", "/dir/below/", "/dir/link->below/file3", "/final=whole", "/second=whole"].map(String::from),
    );
    all.sort();
    all
}

#[test]
fn what_is_made_waits_for_no_server_and_is_seen_by_all() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    world.run(async move {
        let root = listed_root(&one).await;
        let began = one.now();
        make_tree(&one, root).await;
        assert_eq!(one.now(), began, "a round trip takes time");
        assert_eq!(tree(&one, root).await, expected(), "here, at once");
        let numbers = one.lookup(NOBODY, root, b"final").await.unwrap().fid;
        pause(&one, 5).await;
        assert_eq!(one.waiting().changes, 0);
        assert_eq!(tree(&two, cell_root(&two).await).await, expected(), "by others");
        assert_eq!(tree(&one, root).await, expected(), "and here still");
        let found = one.lookup(NOBODY, root, b"final").await.unwrap();
        assert_eq!(found.fid, numbers, "its number stays while the client runs");
        let theirs = two.lookup(NOBODY, cell_root(&two).await, b"final").await.unwrap();
        for status in [found.status, theirs.status] {
            assert_eq!((status.mode, status.modified, status.links), (0o600, AfsTime(1_000_000_000), 2));
        }
        assert!(one.conflicts().is_empty());
    });
}

#[test]
fn what_is_made_and_removed_at_once_is_never_sent() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let root = cut_off_at_root(&world, &one);
    world.run_with(&one, |one| async move {
        // Some are under way, and fail.
        for number in 0..64 {
            one.make_dir(NOBODY, root, format!("d{number}").as_bytes(), 0o755).await.unwrap();
        }
        pause(&one, 1).await;
        write_new(&one, root, "lock", "mine").await;
        one.remove(NOBODY, root, b"lock").await.unwrap();
        assert_eq!((one.waiting().changes, one.dirty_bytes()), (64, 0));
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(one.waiting().changes, 0);
        let root = cell_root(&two).await;
        assert_eq!(names(&two, NOBODY, root).await.len(), 64);
        let version = two.status(NOBODY, root).await.unwrap().data_version.0;
        let before = 1;
        assert!(version <= before + 64, "the directory was changed for nothing: {version}");
    });
}

#[test]
fn work_goes_on_while_the_server_is_away_and_is_there_when_it_is_back() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let root = cut_off_at_root(&world, &one);
    world.run_with(&one, |one| async move {
        make_tree(&one, root).await;
        pause(&one, 300).await;
        assert_eq!(tree(&one, root).await, expected());
        write_new(&one, root, "later", "text").await;
        let fid = one.lookup(NOBODY, root, b"later").await.unwrap().fid;
        let file = one.open(NOBODY, fid, WRITE).await.unwrap();
        file.fsync().await.unwrap();
        one.remove(NOBODY, root, b"later").await.unwrap();
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(one.waiting().changes, 0);
        assert_eq!(tree(&two, cell_root(&two).await).await, expected());
        assert_eq!(tree(&one, root).await, expected());
    });
}

#[test]
fn what_was_made_outlasts_a_loss_of_power() {
    for seed in 0..20 {
        let world = Cell::new();
        let disk = SimulatedDisk::new(64 << 20);
        let one = world.client_with(on_disk(&world, 1, &disk));
        let root = world.run_with(&one, |one| async move { listed_root(&one).await });
        if seed % 2 == 0 {
            world.cut_off(&one);
        }
        world.run_with(&one, |one| async move {
            make_tree(&one, root).await;
            // A close has all before it outlast the loss too.
            write_new(&one, root, "last", "closed").await;
            pause(&one, seed / 4).await;
        });
        let after = disk.after_power_loss(seed);
        world.cut_off(&one);
        std::mem::forget(one);
        let two = world.client_with(on_disk(&world, 2, &after));
        let three = world.client(3);
        world.run(async move {
            pause(&two, 60).await;
            assert_eq!((two.waiting().changes, two.dirty_bytes()), (0, 0), "seed {seed}");
            let mut all = expected();
            all.push("/last=closed".to_owned());
            all.sort();
            assert_eq!(tree(&three, cell_root(&three).await).await, all, "seed {seed}");
            assert!(two.conflicts().is_empty(), "seed {seed}: {:?}", two.conflicts());
        });
    }
}

#[test]
fn two_files_of_one_name_are_both_kept_and_two_directories_become_one() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let root = cut_off_at_root(&world, &one);
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            write_new(&one, root, "file", "ours").await;
            let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
            write_new(&one, dir, "a", "ours").await;
            let root = cell_root(&two).await;
            write_new(&two, root, "file", "theirs").await;
            let dir = two.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
            write_new(&two, dir, "b", "theirs").await;
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        let all = ["/dir/", "/dir/a=ours", "/dir/b=theirs", "/file=theirs"];
        assert_eq!(tree(&two, cell_root(&two).await).await, all);
        assert_eq!(tree(&one, root).await, all, "here too");
        let conflicts = one.conflicts();
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert!(conflicts[0].why.contains("\"file\""), "{}", conflicts[0].why);
    });
}

#[test]
fn names_that_others_have_made_meanwhile_stay_and_what_was_not_done_is_listed() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    let root = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "old", "ours").await;
        write_new(&one, root, "gone", "first").await;
        pause(&one, 5).await;
        root
    });
    world.cut_off(&one);
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            one.rename(NOBODY, (root, b"old"), (root, b"new"), false).await.unwrap();
            one.remove(NOBODY, root, b"gone").await.unwrap();
            one.symlink(NOBODY, root, b"link", b"our/target").await.unwrap();
            let root = cell_root(&two).await;
            write_new(&two, root, "new", "theirs").await;
            write_new(&two, root, "link", "theirs").await;
            two.remove(NOBODY, root, b"gone").await.unwrap();
            write_new(&two, root, "gone", "theirs").await;
            // It knows that the server is away.
            pause(&one, 20).await;
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        let all = ["/gone=theirs", "/link=theirs", "/new=theirs", "/old=ours"];
        assert_eq!(tree(&two, cell_root(&two).await).await, all);
        assert_eq!(tree(&one, root).await, all, "here too");
        let mut told: Vec<_> = one
            .conflicts()
            .into_iter()
            .map(|conflict| (one.read_conflict(&conflict, 0, 100).unwrap(), conflict.why))
            .collect();
        told.sort();
        let [(none, renamed), (target, link)] = &told[..] else { panic!("{told:?}") };
        assert!(none.is_empty() && renamed.contains("\"old\" could not be renamed to \"new\""), "{renamed}");
        assert!(target == b"our/target" && link.contains("\"link\" could not be made"), "{link}");
    });
}

#[test]
fn what_takes_the_server_waits_for_what_was_made_before() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    world.run(async move {
        let root = listed_root(&one).await;
        let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        let file = write_new(&one, dir, "file", "text").await;
        let told = one.at_server(file).await.unwrap();
        assert_ne!(told, file);
        one.access_list(NOBODY, dir).await.unwrap();
        one.fetch(NOBODY, file, 0, 4).await.unwrap().end().await.unwrap();
        let made = one.create_and_open(NOBODY, (root, b"file"), 0o644, WRITE, true).await.unwrap().1;
        made.fsync().await.unwrap();
        let error = one.create(NOBODY, root, b"file", 0o644).await.unwrap_err();
        assert!(matches!(error, Error::Exists { .. }));
        let error = one.remove_dir(NOBODY, root, b"dir").await.unwrap_err();
        assert_eq!(error.errno(), Errno::ENOTEMPTY);
        assert_eq!(read_all(&open(&one, "file", READ).await).await, b"");
    });
}

#[test]
fn an_access_list_takes_nothing_away_from_what_was_made_before_it_was_set() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    world.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::from_millis(5)));
    world.run(async move {
        let root = listed_root(&one).await;
        let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        // More than are sent at a time.
        for number in 0..200 {
            write_new(&one, dir, &format!("file{number}"), "text").await;
        }
        one.set_access_list(NOBODY, dir, b"1\n0\nsystem:anyuser\t9\n").await.unwrap();
        pause(&one, 10).await;
        let there = two.lookup(NOBODY, cell_root(&two).await, b"dir").await.unwrap().fid;
        assert_eq!((names(&two, NOBODY, there).await.len(), one.conflicts().len()), (200, 0));
    });
}

#[test]
fn what_takes_the_server_says_so_while_it_is_away() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    let root = cut_off_at_root(&world, &one);
    world.run(async move {
        let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        let began = one.now();
        let told = one.at_server(dir).await.unwrap_err();
        assert!(matches!(told, Error::Unreachable { .. }), "{told}");
        let told = one.set_access_list(NOBODY, dir, b"1\n0\nsystem:anyuser\t13\n").await.unwrap_err();
        assert!(matches!(told, Error::Unreachable { .. }), "{told}");
        assert!(one.now().since(began) < Duration::from_secs(200));
    });
}

/// What an editor does: it writes a new file beside the old one, and renames it over that.
#[test]
fn a_file_is_not_replaced_by_one_whose_data_could_not_be_stored() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    world.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::from_millis(5)));
    let root = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "text", "old").await;
        pause(&one, 5).await;
        root
    });
    world.volume(0, ROOT_CELL).change_info(|info| info.max_quota_kib = 10).unwrap();
    world.run(async move {
        let long = "new".repeat(10_000);
        write_new(&one, root, "temporary", &long).await;
        one.rename(NOBODY, (root, b"temporary"), (root, b"text"), false).await.unwrap();
        pause(&one, 60).await;
        assert_eq!(read_all(&open(&two, "text", READ).await).await, b"old");
        assert_eq!(read_all(&open(&one, "text", READ).await).await, b"old", "here too");
        // The data, and the change of the name.
        assert_eq!((one.conflicts().len(), one.waiting().changes), (2, 0));
    });
}

#[test]
fn what_others_make_is_seen_and_kept_while_much_is_made_in_the_same_directory() {
    let world = Cell::new();
    let (one, two) = (world.client_with(behind(&world, 1)), world.client(2));
    world.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::from_millis(5)));
    world.run(async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "name", "ours").await;
        pause(&one, 5).await;
        let there = cell_root(&two).await;
        for number in 0..30 {
            for part in 0..8 {
                write_new(&one, root, &format!("many{number}.{part}"), "").await;
            }
            if number == 10 {
                two.remove(NOBODY, there, b"name").await.unwrap();
                write_new(&two, there, "name", "theirs").await;
                write_new(&two, there, "other", "theirs").await;
            }
            if number == 20 {
                let seen = one.lookup(NOBODY, root, b"other").await;
                assert!(seen.is_ok(), "it is there for others for long: {seen:?}");
            }
            one.runtime().sleep_until(one.now() + Duration::from_millis(2)).await;
        }
        pause(&one, 10).await;
        let found = one.lookup(NOBODY, root, b"name").await.unwrap();
        assert_eq!(read_all(&one.open(NOBODY, found.fid, READ).await.unwrap()).await, b"theirs");
        assert_eq!((names(&two, NOBODY, there).await.len(), one.conflicts().len()), (242, 0));
    });
}
