//! Without the server: a client with write-behind shows what it knows, for days, to those whose rights it knows, and takes changes. When the
//! server is back, nothing counts that it has not said again.

use std::sync::Arc;
use std::time::Duration;

use crate::names_behind::{pause, write_new};
use crate::support::data::{READ, WRITE, read_all, with_folder};
use crate::support::laptop::Laptop;
use crate::support::moving::Mover;
use crate::support::{
    ALICE, BOB, CELL, Cell, NOBODY, ROOT_CELL, USER_VOLUME, cell_root, content, names, put,
};
use afs_client::users::Holder;
use afs_client::{Client, Config, Error, Fid, User, WriteBehind};
use afs_sim::Fate;
use afs_wire::Errno;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_security::{Identity, UnixTime, ticket};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const MINUTE: Duration = Duration::from_secs(60);

fn config(cell: &Cell, number: u8) -> Config {
    let folder = cell.folder(&format!("cache{number}"));
    Config { write_behind: Some(WriteBehind::Always), ..with_folder(cell, number, &folder) }
}

/// Reads as a program does that comes along.
async fn read(client: &Client, user: User, dir: Fid, name: &str) -> Result<String, Error> {
    let found = client.lookup(user, dir, name.as_bytes()).await?;
    let file = client.open(user, found.fid, READ).await?;
    Ok(String::from_utf8(read_all(&file).await).unwrap())
}

/// Has one client make a file with this text, and the other read it; the directory that it is in.
fn shared(world: &Cell, reader: &Client, maker: &Client, text: &'static str) -> Fid {
    let (reader, maker) = (reader.clone(), maker.clone());
    world.run(async move {
        let root = cell_root(&maker).await;
        write_new(&maker, root, "file", text).await;
        assert_eq!(read(&reader, NOBODY, cell_root(&reader).await, "file").await.unwrap(), text);
        root
    })
}

/// Returns once the client knows that its server is away.
async fn notice(client: &Client, dir: Fid) {
    // Of this name nothing is known.
    let _ = client.lookup(NOBODY, dir, b"unknown").await;
    pause(client, 60).await;
}

#[test]
fn what_was_read_is_there_without_the_server_for_as_long_as_is_set_and_then_no_more() {
    let world = Cell::new();
    let set = Config { offline_max: Duration::from_secs(DAY), ..config(&world, 1) };
    let (one, two) = (world.client_with(set), world.client(2));
    let fid = world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let root = cell_root(&two).await;
            let dir = two.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
            write_new(&two, dir, "read", "before").await;
            write_new(&two, dir, "other", "never read").await;
            let here = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            assert_eq!(names(&one, NOBODY, here).await, ["other", "read"]);
            assert_eq!(read(&one, NOBODY, here, "read").await.unwrap(), "before");
            dir
        }
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        for round in 0..3 {
            pause(&one, 7 * HOUR).await;
            let began = one.now();
            let dir = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            let found = names(&one, NOBODY, dir).await;
            assert_eq!(found.contains(&"made here".to_owned()), round > 0, "{found:?}");
            assert!(["other", "read"].iter().all(|name| found.contains(&(*name).to_owned())), "{found:?}");
            assert_eq!(read(&one, NOBODY, dir, "read").await.unwrap(), "before");
            assert!(one.now().since(began) < MINUTE, "it waits: {:?}", one.now().since(began));
            if round == 0 {
                write_new(&one, dir, "made here", "offline").await;
            }
        }
        pause(&one, 4 * HOUR).await;
        let error = read(&one, NOBODY, fid, "read").await.unwrap_err();
        assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
    });
    world.run_with(&two, |two| async move {
        let read = two.lookup(NOBODY, fid, b"read").await.unwrap().fid;
        put(&two, NOBODY, read, b"changed").await;
    });
    world.let_in();
    world.run(async move {
        pause(&one, 60).await;
        assert_eq!(read(&one, NOBODY, fid, "read").await.unwrap(), "changed");
        assert_eq!(read(&two, NOBODY, fid, "made here").await.unwrap(), "offline");
    });
}

/// The server is back, and others have changed what this client still shows: at the first look after that it is new.
#[test]
fn what_counted_without_the_server_does_not_count_when_it_is_back() {
    let world = Cell::new();
    let (one, two) = (world.client_with(config(&world, 1)), world.client(2));
    let root = shared(&world, &one, &two, "before");
    world.cut_off(&one);
    world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            pause(&one, 5 * HOUR).await;
            assert_eq!(read(&one, NOBODY, root, "file").await.unwrap(), "before");
            // Written without the server, on what others change meanwhile.
            let file = one.lookup(NOBODY, root, b"file").await.unwrap().fid;
            let open = one.open(NOBODY, file, WRITE).await.unwrap();
            open.write(0, Bytes::from_static(b"of one")).await.unwrap();
            open.close().await.unwrap();
            drop(open);
            put(&two, NOBODY, file, b"of two").await;
            two.remove(NOBODY, root, b"gone").await.unwrap_err();
        }
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(read(&one, NOBODY, root, "file").await.unwrap(), "of two");
        assert_eq!(read(&two, NOBODY, root, "file").await.unwrap(), "of two");
        assert_eq!(one.conflicts().len(), 1, "what was written here is kept");
    });
}

/// The token ends while the server is away: its owner goes on, nobody else comes in, and with the server it is over.
#[test]
fn a_token_that_ends_without_the_server_locks_its_user_out_only_when_the_server_is_back() {
    const CAROL: User = User::of(1003);
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let one = world.client_with(config(&world, 1));
    let keys = world.keys().clone();
    let root = world.run_with(&one, |one| async move { cell_root(&one).await });
    let dir = Fid::root_of(root.cell, USER_VOLUME);
    world.run_with(&one, |one| async move {
        let now = UnixTime::of(one.runtime().wall_clock());
        let times = (now, now.plus(Duration::from_secs(HOUR)));
        let who = Identity::parse("alice").unwrap();
        let token = ticket::for_user(&keys, &who, CELL, times, &mut StdRng::seed_from_u64(1)).unwrap();
        one.log_in(CAROL, CELL, Holder { name: "alice".to_owned(), id: None }, token, false).unwrap();
        let made = one.create_and_open(CAROL, (dir, b"file"), 0o644, WRITE, true).await.unwrap();
        made.1.write(0, Bytes::from_static(b"private")).await.unwrap();
        made.1.close().await.unwrap();
        drop(made);
        pause(&one, 60).await;
        assert_eq!(read(&one, CAROL, dir, "file").await.unwrap(), "private");
        assert_eq!(read(&one, BOB, dir, "file").await.unwrap_err().errno(), Errno::EACCES);
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        notice(&one, dir).await;
        pause(&one, 3 * HOUR).await;
        assert_eq!(read(&one, CAROL, dir, "file").await.unwrap(), "private", "a token that has ended");
        assert_eq!(read(&one, BOB, dir, "file").await.unwrap_err().errno(), Errno::EACCES, "another user");
        assert!(read(&one, NOBODY, dir, "file").await.is_err(), "somebody of whom nothing is known");
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(
            read(&one, CAROL, dir, "file").await.unwrap_err().errno(),
            Errno::EACCES,
            "with the server"
        );
        assert_eq!(
            content(&one, ALICE, one.lookup(ALICE, dir, b"file").await.unwrap().fid).await,
            b"private"
        );
    });
}

/// The server told what is left of the quota. Nobody else can say that there is no room.
#[test]
fn a_close_tells_that_the_quota_is_used_up_with_the_server_and_without() {
    let world = Cell::new();
    let one = world.client_with(config(&world, 1));
    let write = async |client: &Client, root: Fid, name: &str, kib: usize| {
        let made = client.create_and_open(NOBODY, (root, name.as_bytes()), 0o644, WRITE, true).await.unwrap();
        made.1.write(0, vec![7; kib << 10].into()).await.unwrap();
        made.1.close().await.map_err(|error| error.errno())
    };
    world.volume(0, ROOT_CELL).change_info(|info| info.max_quota_kib = 1000).unwrap();
    let root = world.run_with(&one, |one| async move {
        let root = cell_root(&one).await;
        names(&one, NOBODY, root).await;
        assert_eq!(write(&one, root, "first", 10).await, Ok(()));
        pause(&one, 11).await;
        assert_eq!(write(&one, root, "much", 2000).await, Err(Errno::EDQUOT), "the server's word");
        assert_eq!(write(&one, root, "little", 100).await, Ok(()));
        pause(&one, 11).await;
        assert_eq!(write(&one, root, "less", 10).await, Ok(()));
        pause(&one, 1).await;
        root
    });
    world.cut_off(&one);
    world.run(async move {
        notice(&one, root).await;
        let began = one.now();
        assert_eq!(write(&one, root, "without", 500).await, Ok(()));
        assert_eq!(write(&one, root, "too much", 500).await, Err(Errno::EDQUOT));
        assert_eq!(one.now(), began, "nobody is asked");
    });
}

/// It sleeps for a day, and wakes where there is no network.
#[test]
fn a_laptop_that_was_closed_for_a_day_goes_on_where_it_was() {
    let world = Cell::new();
    let two = world.client(2);
    let laptop = Laptop::new(&world, 1);
    let one = world.client_on(Arc::new(laptop.clone()), config(&world, 1));
    let root = shared(&world, &one, &two, "text");
    world.run({
        let (one, laptop) = (one.clone(), laptop.clone());
        async move {
            laptop.fall_asleep(Duration::from_secs(DAY));
            pause(&one, 1).await;
        }
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move {
        notice(&one, root).await;
        let began = one.now();
        assert_eq!(read(&one, NOBODY, cell_root(&one).await, "file").await.unwrap(), "text");
        write_new(&one, root, "in the train", "a letter").await;
        assert_eq!(read(&one, NOBODY, root, "in the train").await.unwrap(), "a letter");
        assert!(one.now().since(began) < MINUTE, "it waits: {:?}", one.now().since(began));
    });
    world.let_in();
    world.run(async move {
        pause(&one, 120).await;
        assert_eq!(read(&two, NOBODY, root, "in the train").await.unwrap(), "a letter");
    });
}

/// A client without write-behind shows nothing that no server promises.
#[test]
fn without_write_behind_nothing_counts_beyond_its_promise() {
    let world = Cell::new();
    let folder = world.folder("cache1");
    let plain = Config { patience: Duration::from_secs(30), ..with_folder(&world, 1, &folder) };
    let (one, two) = (world.client_with(plain), world.client(2));
    let root = shared(&world, &one, &two, "text");
    world.cut_off(&one);
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        assert!(read(&one, NOBODY, root, "file").await.is_err());
    });
}

/// The server that it was read from is away, and another one has a newer release.
#[test]
fn a_read_only_volume_is_shown_as_the_server_has_it_that_still_answers() {
    let world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    let mover = Arc::new(Mover::new(&world));
    let one = world.client_with(Config { patience: Duration::from_secs(30), ..config(&world, 1) });
    let two = world.client(2);
    let release = |text: &'static str| {
        let (two, mover) = (two.clone(), Arc::clone(&mover));
        world.run(async move {
            let root = cell_root(&two).await;
            let file = match two.lookup(NOBODY, root, b"file").await {
                Ok(found) => found.fid,
                Err(_) => two.create(NOBODY, root, b"file", 0o644).await.unwrap().fid,
            };
            put(&two, NOBODY, file, text.as_bytes()).await;
            mover.release("root.cell", ROOT_CELL, &[0, 1]).await;
        });
    };
    release("first");
    let own = one.address();
    let cut_off_from = |site: usize| {
        let away = world.sites[site].address;
        world.sim.set_network(move |_, from, to, _| match [(own, away), (away, own)].contains(&(from, to)) {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::ZERO),
        });
    };
    cut_off_from(0);
    let dir = world.run_with(&one, |one| async move {
        let found = one.lookup(NOBODY, one.root(), CELL.as_bytes()).await.unwrap();
        let dir = one.target(NOBODY, found.fid).await.unwrap();
        assert_eq!(read(&one, NOBODY, dir, "file").await.unwrap(), "first");
        dir
    });
    // By another volume of this server, the client learns that it is away now. Of the next release, the other one has nothing to tell it.
    world.make_volume(1, "user", USER_VOLUME);
    cut_off_from(1);
    world.run_with(&one, move |one| async move {
        one.status(NOBODY, Fid::root_of(dir.cell, USER_VOLUME)).await.unwrap_err();
        assert_eq!(read(&one, NOBODY, dir, "file").await.unwrap(), "first", "as long as it is promised");
    });
    release("second");
    world.run(async move {
        pause(&one, 5 * HOUR).await;
        assert_eq!(read(&one, NOBODY, dir, "file").await.unwrap(), "second");
    });
}
