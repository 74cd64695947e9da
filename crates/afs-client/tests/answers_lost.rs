//! Answers that are lost, with write-behind: the server has made a change, and the client never hears of it. It finds out, and nothing is made
//! twice, undone or taken for somebody else's.

use crate::names_behind::{listed_root, on_disk, pause, tree, write_new};
use crate::support::data::WRITE;
use crate::support::{Cell, NOBODY, cell_root};
use afs_client::{Client, Fid, Kind, SetStatus};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::ids::AfsTime;
use bytes::Bytes;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::time::Duration;

/// The changes, and the tree that each makes of [`BEFORE`].
const CHANGES: [(&str, &[&str]); 12] = [
    ("create", &["/dir/", "/file=text", "/new=", "/other=others"]),
    ("create and store", &["/dir/", "/file=text", "/new=written", "/other=others"]),
    ("mkdir", &["/dir/", "/file=text", "/new/", "/other=others"]),
    ("symlink", &["/dir/", "/file=text", "/new->target", "/other=others"]),
    ("link", &["/dir/", "/file=text", "/new=text", "/other=others"]),
    ("rename", &["/dir/", "/new=text", "/other=others"]),
    ("rename into", &["/dir/", "/dir/new=text", "/other=others"]),
    ("rename over", &["/dir/", "/other=text"]),
    ("remove", &["/dir/", "/other=others"]),
    ("rmdir", &["/file=text", "/other=others"]),
    ("setattr", BEFORE),
    ("store", &["/dir/", "/file=written", "/other=others"]),
];

const BEFORE: &[&str] = &["/dir/", "/file=text", "/other=others"];

/// What happens while nobody knows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    Nothing,
    ServerRestarts,
    ClientIsKilled,
    Both,
}

async fn make(client: &Client, root: Fid, dir: Fid, change: &str) {
    let fid = client.lookup(NOBODY, root, b"file").await.unwrap().fid;
    match change {
        "create" => drop(client.create(NOBODY, root, b"new", 0o644).await.unwrap()),
        "create and store" => {
            write_new(client, root, "new", "written").await;
        }
        "mkdir" => drop(client.make_dir(NOBODY, root, b"new", 0o755).await.unwrap()),
        "symlink" => drop(client.symlink(NOBODY, root, b"new", b"target").await.unwrap()),
        "link" => drop(client.link(NOBODY, fid, root, b"new").await.unwrap()),
        "rename" => client.rename(NOBODY, (root, b"file"), (root, b"new"), false).await.unwrap(),
        "rename into" => client.rename(NOBODY, (root, b"file"), (dir, b"new"), false).await.unwrap(),
        "rename over" => client.rename(NOBODY, (root, b"file"), (root, b"other"), false).await.unwrap(),
        "remove" => client.remove(NOBODY, root, b"file").await.unwrap(),
        "rmdir" => client.remove_dir(NOBODY, root, b"dir").await.unwrap(),
        "setattr" => {
            let set = SetStatus {
                mode: Some(0o604),
                modified: Some(AfsTime(1_000_000_000)),
                ..SetStatus::default()
            };
            client.set_status(NOBODY, fid, set).await.unwrap();
        }
        "store" => {
            let file = client.open(NOBODY, fid, WRITE).await.unwrap();
            file.truncate(0).await.unwrap();
            file.write(0, Bytes::from_static(b"written")).await.unwrap();
            file.close().await.unwrap();
        }
        _ => unreachable!("it is in the table"),
    }
}

/// Links and attributes of all files, by name.
async fn statuses(client: &Client, root: Fid, tree: &[&str]) -> Vec<(String, u32, u32, u64, AfsTime)> {
    let mut all = Vec::new();
    for path in tree {
        let path = path.trim_end_matches('/').split(['=', '-']).next().unwrap();
        let mut fid = root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            fid = client.lookup(NOBODY, fid, name.as_bytes()).await.unwrap().fid;
        }
        let status = client.status(NOBODY, fid).await.unwrap();
        let (length, modified) = match status.kind {
            Kind::Directory => (0, AfsTime(0)),
            _ => (status.length, status.modified),
        };
        all.push((path.to_owned(), status.links, status.mode, length, modified));
    }
    all
}

fn lose_the_answer(change: &'static str, expected: &'static [&'static str], then: Then) {
    let what = format!("{change}, then {then:?}");
    let mut world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let mut one = world.client_with(on_disk(&world, 1, &disk));
    let three = world.client(3);
    let (root, dir) = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "file", "text").await;
        write_new(&one, root, "other", "others").await;
        let dir = one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        pause(&one, 5).await;
        assert_eq!(tree(&one, root).await, BEFORE);
        (root, dir)
    });
    let own = one.address();
    // What it says gets there, and nothing comes back.
    world.sim.set_network(move |_, _, to, _| match to == own {
        true => Fate::Lost,
        false => Fate::Arrives(Duration::ZERO),
    });
    let (client, looker, told) = (one.clone(), three.clone(), what.clone());
    let there = world.run(async move {
        make(&client, root, dir, change).await;
        pause(&client, 3).await;
        let there = cell_root(&looker).await;
        // A store waits for the answer to what makes the file.
        let first = if change == "create and store" { CHANGES[0].1 } else { expected };
        assert_eq!(tree(&looker, there).await, first, "{told}: the server has made it");
        let there = if first == expected { Some(statuses(&looker, there, expected).await) } else { None };
        // The call ends, and maybe the next ones.
        pause(&client, 100).await;
        there
    });
    if matches!(then, Then::ServerRestarts | Then::Both) {
        world.kill(0);
        world.start(0);
    }
    if matches!(then, Then::ClientIsKilled | Then::Both) {
        let after = disk.after_kill();
        one = world.client_with(on_disk(&world, 2, &after));
    }
    world.let_in();
    world.run(async move {
        pause(&one, 300).await;
        assert_eq!((one.waiting().changes, one.dirty_bytes()), (0, 0), "{what}");
        assert!(one.conflicts().is_empty(), "{what}: {:?}", one.conflicts());
        for client in [&one, &three] {
            let root = cell_root(client).await;
            assert_eq!(tree(client, root).await, expected, "{what}");
            let now = statuses(client, root, expected).await;
            assert_eq!(there.as_ref().unwrap_or(&now), &now, "{what}: as the server had it at first");
        }
    });
}

#[test]
fn a_change_whose_answer_is_lost_is_made_once_and_is_nobody_elses() {
    for (change, expected) in CHANGES {
        for then in [Then::Nothing, Then::ServerRestarts, Then::ClientIsKilled, Then::Both] {
            lose_the_answer(change, expected, then);
        }
    }
}

/// The server asks the client who it is, which is killed and so does not answer. What it had asked for must not be done later, when its
/// next start may have done it, and more.
#[test]
fn what_a_client_has_asked_for_that_is_dead_is_not_done_later() {
    let mut world = Cell::new();
    world.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::from_millis(5)));
    let (one, two) = (world.client(1), world.client(2));
    let root = world.run_with(&one, |one| async move { listed_root(&one).await });
    world.kill(0);
    world.start(0);
    let (sim, own) = (world.sim.clone(), one.address());
    world.run(async move {
        let client = one.clone();
        let create = client.create(NOBODY, root, b"late", 0o644);
        // It has come there.
        let killed = one.runtime().sleep_until(one.now() + Duration::from_millis(7));
        assert!(matches!(select(pin!(create), killed).await, Either::Right(_)));
        sim.set_network(move |_, from, to, _| match from == own || to == own {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::from_millis(5)),
        });
        std::mem::forget(one);
        pause(&two, 60).await;
        assert_eq!(tree(&two, cell_root(&two).await).await, [""; 0]);
    });
}

/// A server that is started anew gets what the client sends again of its call, which the one before has carried out.
#[test]
fn what_a_server_had_made_before_it_was_started_anew_is_the_clients_own() {
    let mut world = Cell::new();
    let one = world.client_with(on_disk(&world, 1, &SimulatedDisk::new(64 << 20)));
    let two = world.client(2);
    let root = world.run_with(&one, |one| async move { listed_root(&one).await });
    let own = one.address();
    // What it says gets there, and nothing comes back.
    world.sim.set_network(move |_, _, to, _| match to == own {
        true => Fate::Lost,
        false => Fate::Arrives(Duration::ZERO),
    });
    world.run_with(&one, |one| async move {
        write_new(&one, root, "new", "written").await;
        one.runtime().sleep_until(one.now() + Duration::from_millis(10)).await;
    });
    world.kill(0);
    world.start(0);
    world.let_in();
    world.run(async move {
        pause(&one, 60).await;
        assert!(one.conflicts().is_empty(), "{:?}", one.conflicts());
        assert_eq!(tree(&two, cell_root(&two).await).await, ["/new=written"]);
    });
}
