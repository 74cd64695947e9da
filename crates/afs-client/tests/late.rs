//! What a killed client had sent, and what comes to the server when its next start has done more: a server of ours carries out nothing of it.

use std::time::Duration;

use crate::names_behind::{on_disk, pause};
use crate::support::data::WRITE;
use crate::support::{ALICE, CELL, Cell, NOBODY, cell_root, content, names};
use afs_client::{Client, Config, Fid, User};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::Uuid;
use bytes::Bytes;

async fn root_for(client: &Client, user: User) -> Fid {
    let found = client.lookup(user, client.root(), format!(".{CELL}").as_bytes()).await.unwrap();
    let root = client.target(user, found.fid).await.unwrap();
    client.read_dir(user, root).await.unwrap();
    root
}

async fn write(client: &Client, user: User, text: &'static str) {
    let root = root_for(client, user).await;
    let (_, file) = client.create_and_open(user, (root, b"file"), 0o644, WRITE, false).await.unwrap();
    file.truncate(0).await.unwrap();
    file.write(0, Bytes::from_static(text.as_bytes())).await.unwrap();
    file.close().await.unwrap();
}

/// The client is at the same address again. What it had sent takes 20 s, also what it has sent again meanwhile.
fn comes_late(user: User, removes: bool) {
    let world = Cell::new();
    let config = |disk: &SimulatedDisk| Config {
        uuid: Some(Uuid { time_low: 1, ..Uuid::default() }),
        ..on_disk(&world, 1, disk)
    };
    let disk = SimulatedDisk::new(64 << 20);
    let (one, two) = (world.client_with(config(&disk)), world.client(2));
    world.run_with(&one, move |one| async move {
        write(&one, user, "first").await;
        pause(&one, 5).await;
    });
    let own = one.address();
    world.sim.set_network(move |_, from, _, _| {
        Fate::Arrives(if from == own { Duration::from_secs(20) } else { Duration::ZERO })
    });
    world.run_with(&one, move |one| async move {
        if removes {
            let root = root_for(&one, user).await;
            one.remove(user, root, b"file").await.unwrap();
        } else {
            write(&one, user, "old").await;
        }
        pause(&one, 3).await;
    });
    let after = disk.after_kill();
    world.sim.cut_off(own);
    one.endpoint().shut_down();
    std::mem::forget(one);
    world.let_in();
    let next = world.client_with(config(&after));
    assert_eq!(next.address(), own);
    let began = next.now();
    world.run(async move {
        pause(&next, 5).await;
        let text = || async {
            let root = cell_root(&two).await;
            match two.lookup(NOBODY, root, b"file").await {
                Ok(found) => String::from_utf8(content(&two, NOBODY, found.fid).await).unwrap(),
                Err(_) => "none".to_owned(),
            }
        };
        let expected = if removes { "none" } else { "old" };
        assert_eq!(text().await, expected, "the next start has done it");
        write(&next, user, "newer").await;
        pause(&next, 5).await;
        assert_eq!(
            (text().await.as_str(), next.now().since(began) < Duration::from_secs(16)),
            ("newer", true)
        );
        pause(&next, 60).await;
        assert_eq!(text().await, "newer", "what came late");
        assert_eq!(names(&two, NOBODY, cell_root(&two).await).await, ["file"]);
        assert!(next.conflicts().is_empty() && next.dirty_bytes() == 0);
    });
}

#[test]
fn what_a_killed_client_had_sent_does_not_undo_what_its_next_start_has_done() {
    for user in [ALICE, NOBODY] {
        comes_late(user, false);
        comes_late(user, true);
    }
}
