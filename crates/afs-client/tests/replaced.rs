//! A file that is replaced or removed here while a program opens it. The kernel looks a name up, opens what it found, and if that is gone by then,
//! does both once more, and no third time: on a local disk no program learns that a file was replaced.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::names_behind::{behind, listed_root, write_new};
use crate::support::data::{READ, read_all};
use crate::support::{ALICE, Cell, NOBODY, cell_root, names, put};
use afs_client::{Client, Error, Fid, OpenFile};
use afs_sim::Fate;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::time::Instant;

/// Makes a file of this name, with a text.
async fn make(client: &Client, root: Fid, name: &str, text: &'static str) -> Fid {
    let fid = client.create(NOBODY, root, name.as_bytes(), 0o644).await.unwrap().fid;
    put(client, NOBODY, fid, text.as_bytes()).await;
    fid
}

async fn replace(client: &Client, root: Fid, by: &str) {
    client.rename(NOBODY, (root, by.as_bytes()), (root, b"name"), false).await.unwrap();
}

async fn pause(client: &Client, millis: u64) {
    client.runtime().sleep_until(client.now() + Duration::from_millis(millis)).await;
}

/// Opens what has the name as the kernel does: in two attempts, with a while between the look-up and the open, in which others may run.
async fn open(client: &Client, root: Fid, mut wait: impl FnMut() -> u64) -> Result<OpenFile, Error> {
    for _ in 0..2 {
        let found = client.lookup(NOBODY, root, b"name").await?;
        pause(client, wait()).await;
        match client.open(NOBODY, found.fid, READ).await {
            Err(Error::Gone { .. }) => {}
            opened => return opened,
        }
    }
    panic!("there was no file in both attempts");
}

/// `cat name` said "Stale file handle" now and then, while `mv next name` went on.
#[test]
fn a_name_that_is_given_to_one_file_after_the_other_can_always_be_opened() {
    for seed in 0..6 {
        let world = Cell::new();
        let client = world.client(1);
        world.run(async move {
            let root = cell_root(&client).await;
            make(&client, root, "name", "text").await;
            let (told, mut ended) = tokio::sync::watch::channel(0);
            for reader in 0..2 {
                let (client, told) = (client.clone(), told.clone());
                let mut random = StdRng::seed_from_u64(seed * 10 + reader);
                client.clone().runtime().spawn(Box::pin(async move {
                    for _ in 0..100 {
                        let file = open(&client, root, || random.random_range(0..20)).await.unwrap();
                        pause(&client, random.random_range(0..10)).await;
                        assert_eq!(client.status(NOBODY, file.fid()).await.unwrap().length, 4);
                        assert_eq!(file.read(0, 100).await.unwrap(), "text");
                        file.note_closing();
                        drop(file);
                        pause(&client, random.random_range(0..10)).await;
                    }
                    told.send_modify(|count| *count += 1);
                }));
            }
            while *ended.borrow_and_update() < 2 {
                make(&client, root, "next", "text").await;
                replace(&client, root, "next").await;
            }
        });
    }
}

/// The server said that the file was gone before its answer to the rename was here: then nobody knew which file to hold.
#[test]
fn who_learns_that_a_file_is_gone_before_the_rename_is_answered_opens_the_next_one() {
    let world = Cell::new();
    let client = world.client(1);
    let (own, slow_until) = (client.address(), Arc::new(Mutex::new(Instant::ORIGIN)));
    let slow = Arc::clone(&slow_until);
    world.sim.set_network(move |now, _, to, _| {
        let is_slow = to == own && now < *slow.lock().unwrap();
        Fate::Arrives(if is_slow { Duration::from_millis(200) } else { Duration::ZERO })
    });
    world.run(async move {
        let root = listed_root(&client).await;
        let old = make(&client, root, "name", "old").await;
        let next = make(&client, root, "next", "next").await;
        make(&client, root, "last", "last").await;
        // The server gets it after 5 ms.
        *slow_until.lock().unwrap() = client.now() + Duration::from_millis(8);
        let renaming = client.clone();
        let (told, ended) = tokio::sync::oneshot::channel();
        client.runtime().spawn(Box::pin(async move {
            replace(&renaming, root, "next").await;
            told.send(()).unwrap();
        }));
        pause(&client, 6).await;
        // Whose rights are not known, so that the server is asked.
        assert!(matches!(client.open(ALICE, old, READ).await, Err(Error::Gone { .. })));
        ended.await.unwrap();
        assert_eq!(client.lookup(ALICE, root, b"name").await.unwrap().fid, next);
        replace(&client, root, "last").await;
        let file = client.open(ALICE, next, READ).await.expect("the second attempt is the last");
        assert_eq!(read_all(&file).await, b"next");
    });
}

/// Its hidden name was being removed just then: `cat` said "Stale file handle" in the midst of the file.
#[test]
fn a_replaced_file_is_read_to_its_end_by_who_opens_it_when_the_last_other_program_closes_it() {
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&client).await;
        let old = make(&client, root, "name", "old text").await;
        make(&client, root, "next", "next").await;
        let first = client.open(NOBODY, old, READ).await.unwrap();
        replace(&client, root, "next").await;
        client.status(NOBODY, old).await.unwrap();
        drop(first);
        let second = client.open(NOBODY, old, READ).await.unwrap();
        pause(&client, 100).await;
        assert_eq!(client.status(NOBODY, old).await.unwrap().length, 8);
        assert_eq!(read_all(&second).await, b"old text");
        drop(second);
        pause(&client, 100).await;
        assert_eq!(names(&other, NOBODY, cell_root(&other).await).await, ["name"], "and then it goes");
    });
}

/// With write-behind the server still had it, and lost it in the midst of a read.
#[test]
fn with_write_behind_a_file_that_was_replaced_is_not_opened_though_the_server_has_it_still() {
    let world = Cell::new();
    let (client, other) = (world.client_with(behind(&world, 1)), world.client(2));
    world.run(async move {
        let root = listed_root(&client).await;
        let old = write_new(&client, root, "name", "old").await;
        let next = write_new(&client, root, "next", "next").await;
        write_new(&client, root, "last", "last").await;
        pause(&client, 5000).await;
        client.set_paused(true);
        replace(&client, root, "next").await;
        assert!(matches!(client.open(NOBODY, old, READ).await, Err(Error::Gone { .. })));
        assert_eq!(client.lookup(NOBODY, root, b"name").await.unwrap().fid, next);
        replace(&client, root, "last").await;
        let file = client.open(NOBODY, next, READ).await.expect("the second attempt is the last");
        client.set_paused(false);
        pause(&client, 5000).await;
        assert_eq!(read_all(&file).await, b"next");
        drop(file);
        pause(&client, 5000).await;
        assert_eq!(names(&other, NOBODY, cell_root(&other).await).await, ["name"]);
    });
}
