//! Write-behind where it is set: for a directory and what is below it, for a volume, for as long as the cache's folder is there; and nowhere else.

use std::time::Duration;

use crate::names_behind::{behind, listed_root, pause, tree, write_new};
use crate::support::data::{READ, WRITE, read_all, with_folder};
use crate::support::{ALICE, Cell, NOBODY, ROOT_CELL, USER_VOLUME, cell_root, names};
use afs_client::{Client, Config, Error, Fid, Setting, User, WriteBehind};
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use bytes::Bytes;

const ALWAYS: Option<Setting> = Some(Setting::On(WriteBehind::Always));

/// A client without write-behind for the whole mount.
fn plain(cell: &Cell, number: u8) -> Config {
    let folder = cell.folder(&format!("cache{number}"));
    Config { patience: Duration::from_secs(30), ..with_folder(cell, number, &folder) }
}

async fn make_dir(client: &Client, dir: Fid, name: &str) -> Fid {
    let made = client.make_dir(NOBODY, dir, name.as_bytes(), 0o755).await.unwrap().fid;
    client.read_dir(NOBODY, made).await.unwrap();
    made
}

/// True if a file is made, written and closed in a directory without waiting for a server.
async fn is_at_once(client: &Client, user: User, dir: Fid, name: &str) -> bool {
    let began = client.now();
    let made = client.create_and_open(user, (dir, name.as_bytes()), 0o640, WRITE, true).await.unwrap();
    made.1.write(0, Bytes::from_static(b"text")).await.unwrap();
    made.1.close().await.unwrap();
    drop(made);
    let is_at_once = client.now() == began;
    // What is on its way to the server ends, so that the next one finds all of it settled.
    pause(client, 5).await;
    is_at_once
}

#[test]
fn what_is_set_for_a_directory_counts_for_what_is_below_it_and_for_nothing_else() {
    let world = Cell::new();
    let one = world.client_with(plain(&world, 1));
    world.run(async move {
        let root = listed_root(&one).await;
        let (on, beside) = (make_dir(&one, root, "on").await, make_dir(&one, root, "beside").await);
        let below = make_dir(&one, on, "below").await;
        let excluded = make_dir(&one, below, "excluded").await;
        let inside = make_dir(&one, excluded, "inside").await;
        assert!(!is_at_once(&one, NOBODY, on, "before").await);
        one.set_behind(on, false, ALWAYS).await.unwrap();
        one.set_behind(excluded, false, Some(Setting::Off)).await.unwrap();
        for (dir, expected, what) in [
            (on, true, "the directory itself"),
            (below, true, "below it"),
            (excluded, false, "one that is excluded"),
            (inside, false, "below that"),
            (beside, false, "beside it"),
            (root, false, "above it"),
        ] {
            assert_eq!(is_at_once(&one, NOBODY, dir, "file").await, expected, "{what}");
            let told = one.behind_of(NOBODY, dir).await.unwrap();
            assert_eq!(told.counts.is_some(), expected, "{what}");
        }
        one.set_behind(excluded, false, None).await.unwrap();
        assert!(is_at_once(&one, NOBODY, inside, "later").await, "it is excluded no more");
        one.set_behind(on, false, None).await.unwrap();
        assert!(!is_at_once(&one, NOBODY, below, "last").await, "nothing is set any more");
    });
}

/// What was made here has a number of the client's own as long as the client runs, and the server's after that.
#[test]
fn what_is_set_outlasts_the_client_also_for_a_directory_that_was_made_here() {
    let world = Cell::new();
    let one = world.client_with(plain(&world, 1));
    world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        let on = make_dir(&one, root, "on").await;
        one.set_behind(on, false, ALWAYS).await.unwrap();
        let began = one.now();
        let made = make_dir(&one, on, "made").await;
        assert_eq!(one.now(), began, "it is not made here");
        one.set_behind(made, false, Some(Setting::Off)).await.unwrap();
        assert!(!is_at_once(&one, NOBODY, made, "file").await);
        one.shut_down().await;
    });
    drop(one);
    let one = world.client_with(plain(&world, 1));
    world.run(async move {
        let root = listed_root(&one).await;
        let on = one.lookup(NOBODY, root, b"on").await.unwrap().fid;
        let made = one.lookup(NOBODY, on, b"made").await.unwrap().fid;
        assert_eq!(one.behind_of(NOBODY, made).await.unwrap().own, Some(Setting::Off));
        one.read_dir(NOBODY, made).await.unwrap();
        assert!(is_at_once(&one, NOBODY, on, "after").await);
        assert!(!is_at_once(&one, NOBODY, made, "after").await, "its own setting is gone");
    });
}

#[test]
fn what_is_set_for_a_volume_ends_at_its_mount_points() {
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let one = world.client_with(plain(&world, 1));
    world.run(async move {
        let root = listed_root(&one).await;
        let (below, other) = (make_dir(&one, root, "below").await, Fid::root_of(root.cell, USER_VOLUME));
        one.read_dir(ALICE, other).await.unwrap();
        one.set_behind(below, true, ALWAYS).await.unwrap();
        assert!(
            is_at_once(&one, NOBODY, root, "file").await && is_at_once(&one, NOBODY, below, "file").await
        );
        assert!(!is_at_once(&one, ALICE, other, "file").await, "another volume");
        one.set_behind(below, false, Some(Setting::Off)).await.unwrap();
        assert!(!is_at_once(&one, NOBODY, below, "excluded").await);
        assert!(is_at_once(&one, NOBODY, root, "still").await);
    });
}

#[test]
fn a_directory_can_be_excluded_where_the_mount_has_write_behind() {
    let world = Cell::new();
    let one = world.client_with(behind(&world, 1));
    world.run(async move {
        let root = listed_root(&one).await;
        let dir = make_dir(&one, root, "shared").await;
        one.set_behind(dir, false, Some(Setting::Off)).await.unwrap();
        assert!(is_at_once(&one, NOBODY, root, "file").await);
        assert!(!is_at_once(&one, NOBODY, dir, "file").await);
    });
}

#[test]
fn what_waits_when_it_is_switched_off_is_sent_in_order_before_what_comes_after() {
    let world = Cell::new();
    let (one, two) = (world.client_with(plain(&world, 1)), world.client(2));
    let on = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        let on = make_dir(&one, root, "on").await;
        one.set_behind(on, false, ALWAYS).await.unwrap();
        on
    });
    world.cut_off(&one);
    world.run_with(&one, move |one| async move {
        let dir = make_dir(&one, on, "dir").await;
        write_new(&one, dir, "first", "first").await;
        one.rename(NOBODY, (dir, b"first"), (on, b"second"), false).await.unwrap();
        one.set_behind(on, false, None).await.unwrap();
        assert!(one.waiting().changes > 0);
        let refused = one.make_dir(NOBODY, on, b"later", 0o755).await;
        assert!(refused.is_err(), "it is made without the server");
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(one.waiting().changes, 0);
        one.make_dir(NOBODY, on, b"later", 0o755).await.unwrap();
        assert_eq!(one.waiting().changes, 0, "it was made here");
        let at = two.lookup(NOBODY, cell_root(&two).await, b"on").await.unwrap().fid;
        assert_eq!(tree(&two, at).await, ["/dir/", "/later/", "/second=first"]);
    });
}

#[test]
fn without_the_server_what_was_read_is_there_in_volumes_with_write_behind_only() {
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let one = world.client_with(plain(&world, 1));
    let (on, file, other) = world.run_with(&one, |one| async move {
        let root = listed_root(&one).await;
        let on = make_dir(&one, root, "on").await;
        let file = write_new(&one, on, "file", "text").await;
        let dir = Fid::root_of(root.cell, USER_VOLUME);
        assert!(!is_at_once(&one, ALICE, dir, "other").await);
        let other = one.lookup(ALICE, dir, b"other").await.unwrap().fid;
        one.set_behind(on, false, ALWAYS).await.unwrap();
        assert_eq!(root.volume, ROOT_CELL);
        (on, file, other)
    });
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * 3600).await;
        let open = one.open(NOBODY, file, READ).await.unwrap();
        assert_eq!(read_all(&open).await, b"text");
        assert_eq!(names(&one, NOBODY, on).await, ["file"]);
        assert!(one.open(ALICE, other, READ).await.is_err(), "its volume has no write-behind");
    });
}

#[test]
fn a_client_without_a_cache_folder_refuses_it() {
    let world = Cell::new();
    let one = world.client(1);
    world.run(async move {
        let root = cell_root(&one).await;
        let refused = one.set_behind(root, false, ALWAYS).await;
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    });
}
