//! What somebody has pinned is in the cache, and fresh, when the server goes away; and what is not pinned is not shown beyond its promise.

use std::sync::Arc;
use std::time::Duration;

use crate::names_behind::{pause, tree, write_new};
use crate::offline_start::{End, Laptop};
use crate::support::data::{READ, WRITE, random_bytes, read_all, with_folder};
use crate::support::{
    ALICE, BOB, CELL, Cell, NOBODY, ROOT_CELL, USER_VOLUME, cell_root, content, names, put,
};
use afs_client::pins::{Report, Told, Trouble};
use afs_client::users::Holder;
use afs_client::{Client, Config, Error, Fid, User};
use afs_store::disk::SimulatedDisk;
use afs_wire::Errno;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use afs_wire::vl::SiteFlags;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_security::{Identity, UnixTime, ticket};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const MINUTE: Duration = Duration::from_secs(60);

/// A client without write-behind, with its cache in a folder.
fn config(cell: &Cell, number: u8) -> Config {
    let folder = cell.folder(&format!("cache{number}"));
    Config { patience: Duration::from_secs(30), ..with_folder(cell, number, &folder) }
}

/// The same with a small cache, which is looked after in virtual time.
fn small(cell: &Cell, number: u8, limit_bytes: u64) -> Config {
    let mut config = config(cell, number);
    config.cache.as_mut().unwrap().limit_bytes = limit_bytes;
    config.cache_disk = Some(Arc::new(SimulatedDisk::new(256 << 20)));
    config
}

/// Goes by names from the client's root, as a program does that comes along.
async fn go(client: &Client, user: User, path: &str) -> Result<Fid, Error> {
    let mut at = client.root();
    for name in path.split('/') {
        at = client.lookup(user, at, name.as_bytes()).await?.fid;
    }
    client.target(user, at).await
}

async fn read(client: &Client, user: User, path: &str) -> Result<String, Error> {
    let file = client.open(user, go(client, user, path).await?, READ).await?;
    Ok(String::from_utf8(read_all(&file).await).unwrap())
}

fn only(client: &Client, uid: u32) -> Told {
    let [told] = &client.pins(uid)[..] else { panic!("{:?}", client.pins(uid)) };
    told.clone()
}

/// Waits until a user's only pin has been gone through, and all has been tried.
async fn settled(client: &Client, uid: u32) -> Report {
    for _ in 0..600 {
        let report = only(client, uid).report;
        let tried = report.files_here + report.no_room + report.no_rights + report.failed;
        if report.trouble == Trouble::None && tried >= report.files {
            return report;
        }
        pause(client, 1).await;
    }
    panic!("{:?}", only(client, uid));
}

/// Pins what is at a path, and waits until it is here.
async fn pin(client: &Client, user: User, path: &str) -> Fid {
    let fid = go(client, user, path).await.unwrap();
    client.pin(user, fid).await.unwrap();
    let report = settled(client, user.uid).await;
    assert!(report.complete.0 > 0, "{report:?}");
    assert_eq!(only(client, user.uid).path, path.as_bytes());
    fid
}

async fn make_dir(client: &Client, user: User, dir: Fid, name: &str) -> Fid {
    client.make_dir(user, dir, name.as_bytes(), 0o755).await.unwrap().fid
}

/// Makes `pinned` with something in it and below it, and `beside`.
async fn make_some(client: &Client) -> Fid {
    let root = cell_root(client).await;
    let work = make_dir(client, NOBODY, root, "pinned").await;
    let below = make_dir(client, NOBODY, work, "below").await;
    write_new(client, work, "file", "text").await;
    write_new(client, below, "deep", "deep text").await;
    write_new(client, below, "empty", "").await;
    client.symlink(NOBODY, work, b"link", b"below/deep").await.unwrap();
    let beside = make_dir(client, NOBODY, root, "beside").await;
    write_new(client, beside, "other", "of no pin").await;
    root
}

const SOME: [&str; 5] =
    ["/below/", "/below/deep=deep text", "/below/empty=", "/file=text", "/link->below/deep"];

#[test]
fn a_pinned_tree_is_there_without_the_server_also_what_was_never_opened_and_nothing_else_is() {
    let world = Cell::new();
    let set = Config { offline_max: Duration::from_secs(DAY), ..config(&world, 1) };
    let (one, two) = (world.client_with(set), world.client(2));
    world.run({
        let one = one.clone();
        async move {
            make_some(&two).await;
            pin(&one, NOBODY, ".one.test/pinned").await;
            // Of this all is known, too, when the server goes.
            assert_eq!(read(&one, NOBODY, ".one.test/beside/other").await.unwrap(), "of no pin");
        }
    });
    world.cut_off(&one);
    world.run(async move {
        for _ in 0..2 {
            pause(&one, 5 * HOUR).await;
            let began = one.now();
            let work = go(&one, NOBODY, ".one.test/pinned").await.unwrap();
            assert_eq!(tree(&one, work).await, SOME);
            assert!(one.now().since(began) < MINUTE, "it waits: {:?}", one.now().since(began));
            assert_eq!(only(&one, NOBODY.uid).report.trouble, Trouble::Away);
            let error = read(&one, NOBODY, ".one.test/beside/other").await.unwrap_err();
            assert_eq!(error.errno(), Errno::ETIMEDOUT, "beside it: {error}");
            // It is for reading only, and who tries otherwise takes nothing away.
            one.create(NOBODY, work, b"new", 0o644).await.unwrap_err();
            assert_eq!(names(&one, NOBODY, work).await, ["below", "file", "link"]);
        }
        pause(&one, 15 * HOUR).await;
        let error = read(&one, NOBODY, ".one.test/pinned/file").await.unwrap_err();
        assert_eq!(error.errno(), Errno::ETIMEDOUT, "after a day: {error}");
    });
}

#[test]
fn a_pinned_tree_is_there_after_a_start_without_the_server_and_nothing_else_is() {
    for end in [End::Unmounted, End::Killed] {
        let mut laptop = Laptop::with(Cell::new(), |config| Config { write_behind: None, ..config });
        let two = laptop.world.client(60);
        laptop.run(|one| async move {
            make_some(&two).await;
            pin(&one, NOBODY, ".one.test/pinned").await;
            assert_eq!(read(&one, NOBODY, ".one.test/beside/other").await.unwrap(), "of no pin");
            pause(&one, 5).await;
        });
        laptop.go_away();
        for round in 0..2 {
            laptop.restart(end);
            laptop.run(move |one| async move {
                pause(&one, 60).await;
                let work = go(&one, NOBODY, ".one.test/pinned").await.unwrap();
                assert_eq!(tree(&one, work).await, SOME, "{end:?}, start {round}");
                let error = read(&one, NOBODY, ".one.test/beside/other").await.unwrap_err();
                assert_eq!(error.errno(), Errno::ETIMEDOUT, "beside it: {error}");
                pause(&one, DAY).await;
                assert_eq!(tree(&one, work).await, SOME, "{end:?}, start {round}, a day later");
            });
        }
        // What is taken back is not shown by the next start.
        laptop.run(|one| async move {
            let work = go(&one, NOBODY, ".one.test/pinned").await.unwrap();
            one.unpin(NOBODY.uid, work).await.unwrap();
            pause(&one, 5).await;
        });
        laptop.restart(end);
        laptop.run(|one| async move {
            pause(&one, 60).await;
            go(&one, NOBODY, ".one.test/pinned/below").await.unwrap_err();
        });
    }
}

#[test]
fn what_others_change_in_a_pinned_tree_is_fetched_again_before_the_server_goes_away() {
    let world = Cell::new();
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let root = make_some(&two).await;
            pin(&one, NOBODY, ".one.test/pinned").await;
            // For longer than any promise lasts, no program asks, and there is a promise all the time.
            let file = go(&one, NOBODY, ".one.test/pinned/file").await.unwrap();
            for second in 0..5 * HOUR {
                pause(&one, 1).await;
                assert!(one.cached_status(NOBODY, file).is_some(), "it ended after {second} s");
            }
            let work = two.lookup(NOBODY, root, b"pinned").await.unwrap().fid;
            let file = two.lookup(NOBODY, work, b"file").await.unwrap().fid;
            put(&two, NOBODY, file, b"changed").await;
            let new = make_dir(&two, NOBODY, work, "new").await;
            write_new(&two, new, "first", "of two").await;
            two.remove(NOBODY, work, b"link").await.unwrap();
            pause(&one, 30).await;
        }
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        pause(&one, 5 * HOUR).await;
        let work = go(&one, NOBODY, ".one.test/pinned").await.unwrap();
        let expected = [
            "/below/",
            "/below/deep=deep text",
            "/below/empty=",
            "/file=changed",
            "/new/",
            "/new/first=of two",
        ];
        assert_eq!(tree(&one, work).await, expected);
    });
    // What is changed meanwhile shows when the server is back.
    world.run(async move {
        let root = cell_root(&two).await;
        let work = two.lookup(NOBODY, root, b"pinned").await.unwrap().fid;
        let file = two.lookup(NOBODY, work, b"file").await.unwrap().fid;
        put(&two, NOBODY, file, b"meanwhile").await;
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(read(&one, NOBODY, ".one.test/pinned/file").await.unwrap(), "meanwhile");
    });
}

/// Makes so many files of 100 kB in a directory, for anybody to read.
async fn make_files(client: &Client, dir: Fid, count: usize) {
    for number in 0..count {
        let name = format!("file{number}");
        let made = client.create_and_open(NOBODY, (dir, name.as_bytes()), 0o644, WRITE, true).await.unwrap();
        made.1.write(0, Bytes::from(vec![7; 100_000])).await.unwrap();
        made.1.close().await.unwrap();
    }
}

/// No call brings all of it.
#[test]
fn a_pinned_file_is_fetched_to_its_end_however_large_it_is() {
    let world = Cell::new();
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    let bytes = random_bytes(&mut StdRng::seed_from_u64(1), 9 << 20);
    world.run({
        let (one, bytes) = (one.clone(), bytes.clone());
        async move {
            let root = cell_root(&two).await;
            let made = two.create_and_open(NOBODY, (root, b"film"), 0o644, WRITE, true).await.unwrap();
            made.1.write(0, bytes.into()).await.unwrap();
            made.1.close().await.unwrap();
            pin(&one, NOBODY, ".one.test/film").await;
        }
    });
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        let film = go(&one, NOBODY, ".one.test/film").await.unwrap();
        assert!(read_all(&one.open(NOBODY, film, READ).await.unwrap()).await == bytes);
    });
}

#[test]
fn a_full_cache_keeps_what_is_pinned_and_lets_go_of_the_rest() {
    const LIMIT: u64 = 4 << 20;
    let world = Cell::new();
    let (one, two) = (world.client_with(small(&world, 1, LIMIT)), world.client(2));
    world.run({
        let one = one.clone();
        async move {
            let root = cell_root(&two).await;
            let (pinned, much) =
                (make_dir(&two, NOBODY, root, "pinned").await, make_dir(&two, NOBODY, root, "much").await);
            make_files(&two, pinned, 10).await;
            make_files(&two, much, 80).await;
            pin(&one, NOBODY, ".one.test/pinned").await;
            for number in 0..80 {
                let text = read(&one, NOBODY, &format!(".one.test/much/file{number}")).await.unwrap();
                assert_eq!(text.len(), 100_000);
            }
            pause(&one, 3).await;
            let usage = one.cache_usage();
            assert!(usage.bytes <= LIMIT && usage.files < 60, "{usage:?}");
        }
    });
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        for number in 0..10 {
            let text = read(&one, NOBODY, &format!(".one.test/pinned/file{number}")).await.unwrap();
            assert_eq!(text.len(), 100_000, "file{number}");
        }
    });
}

#[test]
fn a_full_table_of_vnodes_keeps_what_is_pinned_and_pins_do_not_fill_it() {
    const ENTRIES: usize = 1024;
    let world = Cell::new();
    let set = Config { status_entries: ENTRIES, ..config(&world, 1) };
    let (one, two) = (world.client_with(set), world.client(2));
    world.run({
        let one = one.clone();
        async move {
            let root = cell_root(&two).await;
            let (work, much) =
                (make_dir(&two, NOBODY, root, "pinned").await, make_dir(&two, NOBODY, root, "much").await);
            for number in 0..2000 {
                let dir = if number < 100 { work } else { much };
                two.create(NOBODY, dir, format!("file{number}").as_bytes(), 0o644).await.unwrap();
            }
            pin(&one, NOBODY, ".one.test/pinned").await;
            let much = go(&one, NOBODY, ".one.test/much").await.unwrap();
            let listing = one.read_dir(NOBODY, much).await.unwrap();
            let all: Vec<Fid> = listing.entries_from(0).skip(2).map(|entry| entry.fid).collect();
            assert!(one.statuses(NOBODY, &all).await.iter().all(Result::is_ok));
            assert!(one.vnode_count() < 2 * ENTRIES, "{}", one.vnode_count());
        }
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        pause(&one, 5 * HOUR).await;
        let work = go(&one, NOBODY, ".one.test/pinned").await.unwrap();
        assert_eq!(tree(&one, work).await.len(), 100);
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        let much = go(&one, NOBODY, ".one.test/much").await.unwrap();
        one.unpin(NOBODY.uid, go(&one, NOBODY, ".one.test/pinned").await.unwrap()).await.unwrap();
        one.pin(NOBODY, much).await.unwrap();
        let report = settled(&one, NOBODY.uid).await;
        assert!(report.files < 512 && report.files + report.no_room == 1900, "{report:?}");
    });
}

#[test]
fn a_tree_that_is_larger_than_the_room_says_what_does_not_fit_and_keeps_what_does() {
    let world = Cell::new();
    let (one, two) = (world.client_with(small(&world, 1, 2 << 20)), world.client(2));
    world.run(async move {
        let root = cell_root(&two).await;
        let large = make_dir(&two, NOBODY, root, "large").await;
        make_files(&two, large, 15).await;
        let fid = go(&one, NOBODY, ".one.test/large").await.unwrap();
        one.pin(NOBODY, fid).await.unwrap();
        for _ in 0..2 {
            let report = settled(&one, NOBODY.uid).await;
            assert_eq!((report.files, report.files_here, report.no_room), (15, 10, 5), "{report:?}");
            assert_eq!((report.bytes, report.bytes_here), (1_500_000, 1_000_000));
            assert!(report.complete.0 == 0 && !report.example.is_empty(), "{report:?}");
            // Nothing of it comes and goes.
            pause(&one, 700).await;
        }
        // Somebody makes room.
        one.set_cache_limit(8 << 20);
        pause(&one, 400).await;
        let report = settled(&one, NOBODY.uid).await;
        assert!(report.files_here == 15 && report.complete.0 > 0, "{report:?}");
    });
}

#[test]
fn a_pin_outlasts_the_client_and_is_brought_up_to_date_before_anybody_looks() {
    let world = Cell::new();
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    world.run({
        let two = two.clone();
        async move {
            make_some(&two).await;
            pin(&one, NOBODY, ".one.test/pinned").await;
            one.shut_down().await;
            let work = two.lookup(NOBODY, cell_root(&two).await, b"pinned").await.unwrap().fid;
            write_new(&two, work, "new", "of two").await;
        }
    });
    let one = world.client_with(config(&world, 1));
    world.run_with(&one, |one| async move {
        let report = settled(&one, NOBODY.uid).await;
        assert!(report.files == 4 && report.complete.0 > 0, "{report:?}");
    });
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        let work = go(&one, NOBODY, ".one.test/pinned").await.unwrap();
        assert_eq!(names(&one, NOBODY, work).await, ["below", "file", "link", "new"]);
        assert_eq!(read(&one, NOBODY, ".one.test/pinned/new").await.unwrap(), "of two");
    });
}

/// Makes `home`, a mount point of the users' volume, with `private` in it, and in that a mount point again.
async fn make_home(client: &Client) {
    let root = cell_root(client).await;
    client.make_mount(NOBODY, root, b"home", "%user.").await.unwrap();
    let home = Fid::root_of(root.cell, USER_VOLUME);
    let private = make_dir(client, ALICE, home, "private").await;
    let made = client.create_and_open(ALICE, (private, b"letter"), 0o644, WRITE, true).await.unwrap();
    made.1.write(0, Bytes::from_static(b"dear bob")).await.unwrap();
    made.1.close().await.unwrap();
    client.make_mount(ALICE, private, b"cell", "%root.cell.").await.unwrap();
    write_new(client, root, "public", "for all").await;
}

#[test]
fn a_user_whose_rights_are_not_known_sees_nothing_of_what_another_has_pinned() {
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL), (ViceId(1002), Rights::ALL)]);
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    let letter = world.run({
        let one = one.clone();
        async move {
            make_home(&two).await;
            pin(&one, ALICE, ".one.test/home/private").await;
            let report = only(&one, ALICE.uid).report;
            assert_eq!(
                (report.files, report.mount_points),
                (1, 1),
                "the mount point is not crossed: {report:?}"
            );
            assert!(one.pins(BOB.uid).is_empty(), "others' pins are not told");
            go(&one, ALICE, ".one.test/home/private/letter").await.unwrap()
        }
    });
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        assert_eq!(read(&one, ALICE, ".one.test/home/private/letter").await.unwrap(), "dear bob");
        for user in [BOB, NOBODY] {
            let error = read(&one, user, ".one.test/home/private/letter").await.unwrap_err();
            assert_eq!(error.errno(), Errno::ETIMEDOUT, "{user:?}: {error}");
            assert!(one.open(user, letter, READ).await.is_err(), "{user:?} knows the number");
        }
        assert!(
            read(&one, ALICE, ".one.test/public").await.is_err(),
            "a directory on the way, and not what is in it"
        );
    });
}

/// The cell as most see it: a read-only volume, with mount points of others in it.
#[test]
fn what_is_pinned_is_reached_through_a_read_only_volume() {
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    world.run(async move { make_home(&two).await });
    world.release(0, "root.cell", ROOT_CELL);
    world.set_entry("root.cell", ROOT_CELL, &[(0, SiteFlags::RW_VOL | SiteFlags::RO_VOL)]);
    world.run_with(&one, |one| async move {
        pin(&one, ALICE, "one.test/home/private").await;
    });
    world.cut_off(&one);
    world.run(async move {
        for _ in 0..3 {
            pause(&one, 5 * HOUR).await;
            let began = one.now();
            assert_eq!(read(&one, ALICE, "one.test/home/private/letter").await.unwrap(), "dear bob");
            assert!(one.now().since(began) < MINUTE, "it waits: {:?}", one.now().since(began));
        }
    });
}

#[test]
fn only_who_has_pinned_it_or_root_takes_a_pin_back_and_then_it_is_over() {
    let world = Cell::new();
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    let (work, file) = world.run({
        let one = one.clone();
        async move {
            make_some(&two).await;
            let work = pin(&one, NOBODY, ".one.test/pinned").await;
            let file = go(&one, NOBODY, ".one.test/pinned/file").await.unwrap();
            let errno = async |uid, fid| one.unpin(uid, fid).await.map_err(|error| error.errno());
            assert_eq!(errno(BOB.uid, work).await, Err(Errno::EPERM));
            assert_eq!(errno(NOBODY.uid, file).await, Err(Errno::ENODATA), "it is not pinned by itself");
            // Another pin of some of it holds that.
            one.pin(BOB, file).await.unwrap();
            settled(&one, BOB.uid).await;
            assert_eq!(one.pins(0).len(), 2, "root sees all");
            one.unpin(0, work).await.unwrap();
            assert_eq!((one.pins(NOBODY.uid).len(), one.pins(0).len()), (0, 1));
            (work, file)
        }
    });
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        assert_eq!(read_all(&one.open(BOB, file, READ).await.unwrap()).await, b"text");
        one.unpin(BOB.uid, file).await.unwrap();
        assert!(one.open(BOB, file, READ).await.is_err(), "it is not pinned any more");
        assert!(one.read_dir(NOBODY, work).await.is_err(), "nor is its directory");
    });
}

/// Nothing is fetched without it, and what is here is not let go.
#[test]
fn a_pin_waits_for_the_token_of_the_person_who_made_it() {
    const CAROL: User = User::of(1003);
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    let keys = world.keys().clone();
    let log_in = move |client: &Client| {
        let now = UnixTime::of(client.runtime().wall_clock());
        let times = (now, now.plus(Duration::from_secs(HOUR)));
        let who = Identity::parse("alice").unwrap();
        let token = ticket::for_user(&keys, &who, CELL, times, &mut StdRng::seed_from_u64(1)).unwrap();
        client.log_in(CAROL, CELL, Holder { name: "alice".to_owned(), id: None }, token, false).unwrap();
    };
    world.run({
        let (one, two, log_in) = (one.clone(), two.clone(), log_in.clone());
        async move {
            make_home(&two).await;
            log_in(&one);
            pin(&one, CAROL, ".one.test/home/private").await;
            pause(&one, 2 * HOUR).await;
            assert_eq!(only(&one, CAROL.uid).report.trouble, Trouble::NoToken);
            one.shut_down().await;
            let private = go(&two, ALICE, ".one.test/home/private").await.unwrap();
            let made = two.create_and_open(ALICE, (private, b"second"), 0o644, WRITE, true).await.unwrap();
            made.1.write(0, Bytes::from_static(b"more")).await.unwrap();
            made.1.close().await.unwrap();
        }
    });
    drop(one);
    let one = world.client_with(config(&world, 1));
    world.run_with(&one, |one| async move {
        pause(&one, 30).await;
        assert_eq!(only(&one, CAROL.uid).report.trouble, Trouble::NoToken);
        log_in(&one);
        pause(&one, 10).await;
        let report = settled(&one, CAROL.uid).await;
        assert!(report.files == 2 && report.complete.0 > 0, "{report:?}");
    });
    world.cut_off(&one);
    world.run(async move {
        // The token ends too.
        pause(&one, 5 * HOUR).await;
        assert_eq!(read(&one, CAROL, ".one.test/home/private/second").await.unwrap(), "more");
        assert_eq!(content_of(&two, ".one.test/home/private/second").await, b"more");
    });
}

async fn content_of(client: &Client, path: &str) -> Vec<u8> {
    content(client, ALICE, go(client, ALICE, path).await.unwrap()).await
}

#[test]
fn what_may_not_be_read_and_a_client_without_a_cache_folder_are_refused() {
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let (one, without) = (world.client_with(config(&world, 1)), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        let private = Fid::root_of(root.cell, USER_VOLUME);
        let refused = one.pin(BOB, private).await;
        assert!(matches!(refused, Err(Error::NoAccess { .. })), "{refused:?}");
        let refused = one.pin(NOBODY, one.root()).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        let refused = without.pin(NOBODY, cell_root(&without).await).await;
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        assert!(one.pins(0).is_empty());
    });
}

#[test]
fn no_user_takes_all_pins_and_root_may() {
    const ROOT: User = User::of(0);
    let world = Cell::new();
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    world.run(async move {
        let root = cell_root(&two).await;
        let mut fids = Vec::new();
        for number in 0..260 {
            fids.push(make_dir(&two, NOBODY, root, &number.to_string()).await);
        }
        // How many of them they can pin, from the first on.
        let pins = async |user| {
            for (count, &fid) in fids.iter().enumerate() {
                if let Err(error) = one.pin(user, fid).await {
                    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
                    return count;
                }
            }
            fids.len()
        };
        assert_eq!((pins(NOBODY).await, pins(BOB).await, pins(ROOT).await), (128, 64, 64));
        assert_eq!(pins(ALICE).await, 0, "now there is none left");
        one.pin(NOBODY, fids[0]).await.expect("it is pinned already");
        one.unpin(BOB.uid, fids[0]).await.unwrap();
        assert_eq!(pins(BOB).await, 0, "they have more than half of what others leave");
    });
}
