//! Answers that are lost, with write-behind: the server has made a change, and the client never hears of it. It finds out, and nothing is made
//! twice, undone or taken for somebody else's.

use crate::names_behind::{listed_root, on_disk, pause, tree, write_new};
use crate::support::data::WRITE;
use crate::support::{ALICE, BOB, CELL, Cell, NOBODY, cell_root, content};
use afs_client::{Client, Fid, Kind, OpenFile, SetStatus, User};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::ids::AfsTime;
use afs_wire::rxafs::StoreACL;
use bytes::Bytes;
use futures_util::future::{Either, select};
use rx_proto::packet::PacketType;
use rxgen::Rpc;
use std::pin::pin;
use std::sync::{Arc, Mutex};
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

async fn make(client: &Client, user: User, dir: Fid, change: &str) {
    let root = root_for(client, user).await;
    let fid = client.lookup(user, root, b"file").await.unwrap().fid;
    match change {
        "create" => drop(client.create(user, root, b"new", 0o644).await.unwrap()),
        "create and store" => write(&make_for(client, user, "new").await, "written").await,
        "mkdir" => drop(client.make_dir(user, root, b"new", 0o755).await.unwrap()),
        "symlink" => drop(client.symlink(user, root, b"new", b"target").await.unwrap()),
        "link" => drop(client.link(user, fid, root, b"new").await.unwrap()),
        "rename" => client.rename(user, (root, b"file"), (root, b"new"), false).await.unwrap(),
        "rename into" => client.rename(user, (root, b"file"), (dir, b"new"), false).await.unwrap(),
        "rename over" => client.rename(user, (root, b"file"), (root, b"other"), false).await.unwrap(),
        "remove" => client.remove(user, root, b"file").await.unwrap(),
        "rmdir" => client.remove_dir(user, root, b"dir").await.unwrap(),
        "setattr" => {
            let set = SetStatus {
                mode: Some(0o604),
                modified: Some(AfsTime(1_000_000_000)),
                ..SetStatus::default()
            };
            client.set_status(user, fid, set).await.unwrap();
        }
        "store" => {
            let file = open_for(client, user, "file").await;
            file.truncate(0).await.unwrap();
            write(&file, "written").await;
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

fn lose_the_answer(user: User, change: &'static str, expected: &'static [&'static str], then: Then) {
    let what = format!("{change} of {user:?}, then {then:?}");
    let mut world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let mut one = world.client_with(on_disk(&world, 1, &disk));
    let three = world.client(3);
    let dir = world.run_with(&one, move |one| async move {
        write(&make_for(&one, user, "file").await, "text").await;
        write(&make_for(&one, user, "other").await, "others").await;
        let root = root_for(&one, user).await;
        let dir = one.make_dir(user, root, b"dir", 0o755).await.unwrap().fid;
        pause(&one, 5).await;
        assert_eq!(tree(&one, root).await, BEFORE);
        dir
    });
    let own = one.address();
    // What it says gets there, and nothing comes back.
    world.sim.set_network(move |_, _, to, _| match to == own {
        true => Fate::Lost,
        false => Fate::Arrives(Duration::ZERO),
    });
    let (client, looker, told) = (one.clone(), three.clone(), what.clone());
    let there = world.run(async move {
        make(&client, user, dir, change).await;
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
    for user in [NOBODY, ALICE] {
        for (change, expected) in CHANGES {
            for then in [Then::Nothing, Then::ServerRestarts, Then::ClientIsKilled, Then::Both] {
                lose_the_answer(user, change, expected, then);
            }
        }
    }
}

/// What was written into the file that is gone is not put aside, though there is another one of its name.
#[test]
fn a_removal_whose_answer_is_lost_is_done_though_others_use_the_name_again() {
    let world = Cell::new();
    let one = world.client_with(on_disk(&world, 1, &SimulatedDisk::new(64 << 20)));
    let two = world.client(2);
    let root = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        write_new(&one, root, "file", "text").await;
        pause(&one, 5).await;
        root
    });
    let own = one.address();
    world.sim.set_network(move |_, _, to, _| match to == own {
        true => Fate::Lost,
        false => Fate::Arrives(Duration::ZERO),
    });
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let file = one.lookup(NOBODY, root, b"file").await.unwrap().fid;
            let file = one.open(NOBODY, file, WRITE).await.unwrap();
            file.write(0, Bytes::from_static(b"more text")).await.unwrap();
            file.close().await.unwrap();
            drop(file);
            one.remove(NOBODY, root, b"file").await.unwrap();
            pause(&one, 3).await;
            let there = cell_root(&two).await;
            assert_eq!(tree(&two, there).await, [""; 0], "the server has removed it");
            write_new(&two, there, "file", "theirs").await;
            pause(&one, 60).await;
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!((one.waiting().changes, one.dirty_bytes()), (0, 0));
        assert!(one.conflicts().is_empty(), "{:?}", one.conflicts());
        for client in [&one, &two] {
            assert_eq!(tree(client, cell_root(client).await).await, ["/file=theirs"]);
        }
    });
}

fn lose_the_answer_to_a_list(user: User, knows_both: bool, restarts: bool) {
    const LIST: &[u8] = b"1\n0\nsystem:anyuser\t123\n";
    let what = format!("{user:?}, the server knows both calls: {knows_both}, restarts: {restarts}");
    let mut world = Cell::new();
    if !knows_both {
        world.refuse(0, StoreACL::OPCODE);
    }
    let (one, two) = (world.client(1), world.client(2));
    let dir = world.run_with(&one, move |one| async move {
        let root = root_for(&one, user).await;
        one.make_dir(user, root, b"dir", 0o755).await.unwrap().fid
    });
    let (own, mut is_deaf) = (one.address(), knows_both);
    world.sim.set_network(move |_, _, to, datagram| {
        if to != own {
            return Fate::Arrives(Duration::ZERO);
        }
        // That it has no such procedure arrives.
        let was_deaf = is_deaf;
        is_deaf |= PacketType(datagram[20]) == PacketType::ABORT;
        if was_deaf { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
    });
    let told = Arc::new(Mutex::new(None));
    let (client, noted) = (one.clone(), Arc::clone(&told));
    one.runtime().spawn(Box::pin(async move {
        let set = client.set_access_list(user, dir, LIST).await;
        *noted.lock().unwrap() = Some(set);
    }));
    world.run({
        let (one, two, what) = (one.clone(), two.clone(), what.clone());
        async move {
            pause(&one, 100).await;
            assert_eq!(two.access_list(NOBODY, dir).await.unwrap().0, LIST, "{what}: the server has it");
        }
    });
    assert!(told.lock().unwrap().is_none(), "{what}: nobody has told the program");
    if restarts {
        world.kill(0);
        world.start(0);
    }
    world.let_in();
    world.run(async move {
        pause(&one, 100).await;
        assert!(matches!(*told.lock().unwrap(), Some(Ok(()))), "{what}: {:?}", told.lock().unwrap());
        assert_eq!(two.access_list(NOBODY, dir).await.unwrap().0, LIST, "{what}");
    });
}

/// The program waits for the server, and the list is sent until there is an answer: it is the same list each time. A server of OpenAFS's gets it
/// by the second of two calls.
#[test]
fn an_access_list_whose_answer_is_lost_is_set_as_the_program_is_told() {
    for user in [NOBODY, ALICE] {
        for knows_both in [true, false] {
            for restarts in [false, true] {
                lose_the_answer_to_a_list(user, knows_both, restarts);
            }
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

/// As [`cell_root`], by what a user knows.
async fn root_for(client: &Client, user: User) -> Fid {
    let found = client.lookup(user, client.root(), format!(".{CELL}").as_bytes()).await.unwrap();
    client.target(user, found.fid).await.unwrap()
}

/// Makes a file for a user, and opens it.
async fn make_for(client: &Client, user: User, name: &str) -> OpenFile {
    let root = root_for(client, user).await;
    client.read_dir(user, root).await.unwrap();
    client.create_and_open(user, (root, name.as_bytes()), 0o644, WRITE, true).await.unwrap().1
}

async fn open_for(client: &Client, user: User, name: &str) -> OpenFile {
    let root = root_for(client, user).await;
    let fid = client.lookup(user, root, name.as_bytes()).await.unwrap().fid;
    client.open(user, fid, WRITE).await.unwrap()
}

async fn write(file: &OpenFile, text: &'static str) {
    file.write(0, Bytes::from_static(text.as_bytes())).await.unwrap();
    file.close().await.unwrap();
}

/// Two clients with write-behind, of which the first has stored for Alice, and is cut off then: what it sends gets nowhere, but it does not know.
fn with_two() -> (Cell, Client, Client) {
    let world = Cell::new();
    let [one, two] =
        [1, 2].map(|number| world.client_with(on_disk(&world, number, &SimulatedDisk::new(64 << 20))));
    world.run_with(&one, |one| async move {
        write(&make_for(&one, ALICE, "before").await, "text").await;
        pause(&one, 5).await;
    });
    world.cut_off(&one);
    (world, one, two)
}

/// What is under a name, and what two clients have put aside.
async fn kept(clients: [&Client; 2], name: &str) -> Vec<String> {
    let root = cell_root(clients[1]).await;
    let fid = clients[1].lookup(NOBODY, root, name.as_bytes()).await.unwrap().fid;
    let mut all = vec![content(clients[1], NOBODY, fid).await];
    for client in clients {
        assert_eq!((client.waiting().changes, client.dirty_bytes()), (0, 0));
        let aside = client.conflicts().into_iter();
        all.extend(aside.map(|conflict| client.read_conflict(&conflict, 0, 100).unwrap()));
    }
    all.into_iter().map(|bytes| String::from_utf8(bytes).unwrap()).collect()
}

async fn modified(client: &Client, user: User, name: &str) -> AfsTime {
    let root = root_for(client, user).await;
    client.lookup(user, root, name.as_bytes()).await.unwrap().status.modified
}

/// Two make a file of one name in one second, with the same mode, and one of them waits for an answer that it will not get. By its owner it is
/// known as another user's, though it is empty; as the same user's on another machine by what is in it.
#[test]
fn of_two_files_of_one_name_and_one_second_both_are_kept() {
    for (user, has_stored) in [(BOB, false), (BOB, true), (ALICE, true)] {
        let (world, one, two) = with_two();
        let theirs = world.run({
            let (one, two) = (one.clone(), two.clone());
            async move {
                let ours = make_for(&one, ALICE, "new").await;
                let theirs = make_for(&two, user, "new").await;
                assert_eq!(modified(&one, ALICE, "new").await, modified(&two, user, "new").await);
                write(&ours, "ours").await;
                if has_stored {
                    write(&theirs, "theirs").await;
                }
                // The call ends.
                pause(&one, 60).await;
                theirs
            }
        });
        world.let_in();
        world.run(async move {
            pause(&one, 120).await;
            if !has_stored {
                write(&theirs, "theirs").await;
                pause(&two, 60).await;
            }
            assert_eq!(kept([&one, &two], "new").await, ["theirs", "ours"], "{user:?}, {has_stored}");
        });
    }
}

/// The same user's, on two machines, while there is nothing in either: nobody can tell them apart, so a program that has the one open goes on with
/// the other.
#[test]
fn two_empty_files_that_one_user_makes_by_one_name_in_one_second_count_as_one() {
    let (world, one, two) = with_two();
    let ours = world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let ours = make_for(&one, ALICE, "new").await;
            drop(make_for(&two, ALICE, "new").await);
            assert_eq!(modified(&one, ALICE, "new").await, modified(&two, ALICE, "new").await);
            // The call ends.
            pause(&one, 60).await;
            ours
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(kept([&one, &two], "new").await, [""]);
        write(&ours, "of both").await;
        pause(&one, 60).await;
        assert_eq!(kept([&one, &two], "new").await, ["of both"], "nothing is put aside");
    });
}

/// As many bytes in the same second: only the author tells them apart.
#[test]
fn what_another_user_stores_in_the_same_second_is_not_taken_for_our_own() {
    let (world, one, two) = with_two();
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let theirs = open_for(&two, BOB, "before").await;
            write(&open_for(&one, ALICE, "before").await, "OURS").await;
            write(&theirs, "BOBS").await;
            assert_eq!(modified(&one, ALICE, "before").await, modified(&two, BOB, "before").await);
            pause(&one, 60).await;
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(kept([&one, &two], "before").await, ["BOBS", "OURS"]);
    });
}

/// The client is killed then, so that it does not know either which number it has at the server.
#[test]
fn a_store_that_two_starts_of_a_server_carry_out_is_our_own_at_the_next_start_too() {
    for (user, text) in [(NOBODY, "again"), (ALICE, "again")] {
        let mut world = Cell::new();
        let disk = SimulatedDisk::new(64 << 20);
        let (one, two) = (world.client_with(on_disk(&world, 1, &disk)), world.client(2));
        let file = world.run_with(&one, move |one| async move {
            let file = make_for(&one, user, "file").await;
            write(&file, "first").await;
            pause(&one, 5).await;
            file
        });
        let own = one.address();
        world.sim.set_network(move |_, _, to, _| match to == own {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::ZERO),
        });
        let version = |client: &Client| {
            let client = client.clone();
            async move {
                let root = cell_root(&client).await;
                client.lookup(NOBODY, root, b"file").await.unwrap().status.data_version.0
            }
        };
        let before = world.run(version(&two));
        world.run_with(&one, move |one| async move {
            write(&file, text).await;
            pause(&one, 1).await;
        });
        assert_eq!(world.run(version(&two)), before + 1, "the first start has stored it");
        world.kill(0);
        world.start(0);
        // What the server asks the client arrives at once, and its answers late.
        world.sim.set_network(move |_, _, to, _| {
            Fate::Arrives(if to == own { Duration::from_millis(20) } else { Duration::ZERO })
        });
        let now = world.run({
            let two = two.clone();
            async move {
                loop {
                    two.runtime().sleep_until(two.now() + Duration::from_millis(1)).await;
                    let now = version(&two).await;
                    if now > before + 1 {
                        break now;
                    }
                }
            }
        });
        assert_eq!(now, before + 2, "and the second one");
        world.cut_off(&one);
        let after = disk.after_kill();
        std::mem::forget(one);
        let next = world.client_with(on_disk(&world, 3, &after));
        world.run(async move {
            pause(&next, 60).await;
            assert_eq!(kept([&next, &two], "file").await, [text]);
        });
    }
}
