//! A start without the server: a client with write-behind shows again what the last run knew, for as long as is set, to those whose rights it knew,
//! with what waits on top. When the server is back, nothing counts that it has not said again.

use std::sync::Arc;
use std::time::Duration;

use crate::names_behind::{on_disk, pause, tree, write_new};
use crate::offline_clock::Clock;
use crate::support::data::{READ, WRITE, with_folder};
use crate::support::{ALICE, BOB, CELL, Cell, NOBODY, ROOT_CELL, USER_VOLUME, cell_root, names, put};
use afs_client::users::Holder;
use afs_client::{Client, Config, Error, Fid, Setting, Status, User, WriteBehind};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::Errno;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use afs_wire::vl::SiteFlags;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::time::Instant;
use rx_security::{Identity, UnixTime, ticket};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const CAROL: User = User::of(1003);

/// How a run of the client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Unmounted,
    Killed,
    PowerLost,
}

/// A laptop's client, whose runs follow one another on one disk, each at an address of its own.
pub(crate) struct Laptop {
    pub(crate) world: Cell,
    disk: SimulatedDisk,
    number: u8,
    pub(crate) client: Client,
    setup: fn(Config) -> Config,
    /// Seconds by which the clock of the day is ahead.
    pub(crate) ahead: i64,
}

impl Laptop {
    pub(crate) fn with(world: Cell, setup: fn(Config) -> Config) -> Self {
        let disk = SimulatedDisk::new(256 << 20);
        let client = world.client_with(setup(on_disk(&world, 1, &disk)));
        Self { world, disk, number: 1, client, setup, ahead: 0 }
    }

    pub(crate) fn new(world: Cell) -> Self {
        Self::with(world, |config| config)
    }

    /// Nothing gets to the laptop or from it.
    pub(crate) fn go_away(&self) {
        let addresses: Vec<_> = (1..50).map(|number| self.world.config(number).bind).collect();
        self.world.sim.set_network(move |_, from, to, _| {
            match addresses.contains(&from) || addresses.contains(&to) {
                true => Fate::Lost,
                false => Fate::Arrives(Duration::ZERO),
            }
        });
    }

    /// It is back. What is left of earlier runs stays away.
    fn come_back(&self) {
        let ended: Vec<_> = (1..self.number).map(|number| self.world.config(number).bind).collect();
        self.world.sim.set_network(move |_, from, to, _| {
            match ended.contains(&from) || ended.contains(&to) {
                true => Fate::Lost,
                false => Fate::Arrives(Duration::ZERO),
            }
        });
    }

    pub(crate) fn run<T: Send + 'static, W: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Client) -> W,
    ) -> T {
        self.world.run_with(&self.client, work)
    }

    /// The run ends so, and the next one begins, wherever the laptop is.
    pub(crate) fn restart(&mut self, end: End) {
        if end == End::Unmounted {
            self.run(|client| async move { client.shut_down().await });
        }
        self.disk = match end {
            End::Unmounted | End::Killed => self.disk.after_kill(),
            End::PowerLost => self.disk.after_power_loss(7),
        };
        self.number += 1;
        let config = (self.setup)(on_disk(&self.world, self.number, &self.disk));
        let clock = Clock(self.world.sim.clone(), self.ahead);
        let next = self.world.client_on(Arc::new(clock), config);
        // It is not closed.
        std::mem::forget(std::mem::replace(&mut self.client, next));
    }
}

/// Reads as a program does that comes along.
pub(crate) async fn read(client: &Client, user: User, dir: Fid, name: &str) -> Result<String, Error> {
    let found = client.lookup(user, dir, name.as_bytes()).await?;
    let file = client.open(user, found.fid, READ).await?;
    let mut read = Vec::new();
    while let piece = file.read(read.len() as u64, 65_536).await?
        && !piece.is_empty()
    {
        read.extend_from_slice(&piece);
    }
    Ok(String::from_utf8(read).unwrap())
}

async fn status(client: &Client, dir: Fid, name: &str) -> Status {
    let found = client.lookup(NOBODY, dir, name.as_bytes()).await.unwrap();
    Status { valid_until: Instant::ORIGIN, fid: dir, ..found.status }
}

async fn overwrite(client: &Client, dir: Fid, name: &str, text: impl Into<Bytes>) {
    let fid = client.lookup(NOBODY, dir, name.as_bytes()).await.unwrap().fid;
    let file = client.open(NOBODY, fid, WRITE).await.unwrap();
    file.truncate(0).await.unwrap();
    file.write(0, text.into()).await.unwrap();
    file.close().await.unwrap();
}

/// A tree with all kinds of things, that the laptop has gone through.
fn with_tree(world: Cell) -> (Laptop, Vec<String>) {
    let two = world.client(60);
    world.run(async move {
        let root = cell_root(&two).await;
        let dir = two.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        write_new(&two, dir, "file", "text").await;
        two.symlink(NOBODY, dir, b"link", b"file").await.unwrap();
        two.make_mount(NOBODY, dir, b"user", "#user.").await.unwrap();
        let user = two.lookup(NOBODY, dir, b"user").await.unwrap().fid;
        write_new(&two, user, "inside", "of another volume").await;
        two.make_dir(NOBODY, root, b"unseen", 0o755).await.unwrap();
    });
    let laptop = Laptop::new(world);
    let seen = laptop.run(|one| async move {
        let root = cell_root(&one).await;
        let dir = one.lookup(NOBODY, root, b"dir").await.unwrap().fid;
        assert_eq!(names(&one, NOBODY, root).await, ["dir", "unseen"]);
        let seen = tree(&one, dir).await;
        pause(&one, 3).await;
        seen
    });
    assert_eq!(seen, ["/file=text", "/link->file", "/user/", "/user/inside=of another volume"]);
    (laptop, seen)
}

#[test]
fn a_client_that_starts_without_its_server_shows_what_it_knew() {
    for end in [End::Unmounted, End::Killed] {
        let (mut laptop, seen) = with_tree(Cell::new());
        let before = laptop.run(|one| async move {
            let dir = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            [
                status(&one, dir, "file").await,
                status(&one, dir, "user").await,
                status(&one, dir, "link").await,
            ]
        });
        laptop.go_away();
        for round in 0..2 {
            laptop.restart(end);
            let (seen, before) = (seen.clone(), before);
            laptop.run(move |one| async move {
                let what = format!("{end:?}, start {round}");
                let began = one.now();
                let root = cell_root(&one).await;
                assert_eq!(names(&one, NOBODY, root).await, ["dir", "unseen"], "{what}");
                assert!(
                    one.now().since(began) < Duration::from_secs(60),
                    "{what}: {:?}",
                    one.now().since(began)
                );
                let began = one.now();
                let dir = one.lookup(NOBODY, root, b"dir").await.unwrap().fid;
                assert_eq!(tree(&one, dir).await, seen, "{what}");
                let after = [
                    status(&one, dir, "file").await,
                    status(&one, dir, "user").await,
                    status(&one, dir, "link").await,
                ];
                assert_eq!(
                    after.map(|status| Status { fid: root, ..status }),
                    before.map(|status| Status { fid: root, ..status }),
                    "{what}"
                );
                assert!(
                    one.now().since(began) < Duration::from_secs(15),
                    "{what}: {:?}",
                    one.now().since(began)
                );
                let unseen = one.lookup(NOBODY, root, b"unseen").await.unwrap().fid;
                one.read_dir(NOBODY, unseen).await.unwrap_err();
                pause(&one, DAY).await;
                let began = one.now();
                assert_eq!(tree(&one, dir).await, seen, "{what}, a day later");
                assert_eq!(one.now(), began, "{what}: nobody is asked");
            });
        }
        laptop.come_back();
        laptop.run(move |one| async move {
            pause(&one, 60).await;
            let dir = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            assert_eq!(tree(&one, dir).await, seen);
        });
    }
}

/// What is set for one volume alone reaches it over the read-only volume above it.
#[test]
fn a_volume_with_write_behind_is_reached_over_a_read_only_one() {
    let world = Cell::new();
    let two = world.client(60);
    world.run(async move {
        let root = cell_root(&two).await;
        two.make_mount(NOBODY, root, b"user", "%user.").await.unwrap();
    });
    world.release(0, "root.cell", ROOT_CELL);
    world.set_entry("root.cell", ROOT_CELL, &[(0, SiteFlags::RW_VOL), (0, SiteFlags::RO_VOL)]);
    let mut laptop = Laptop::with(world, |config| Config { write_behind: None, ..config });
    async fn user(client: &Client) -> Result<Fid, Error> {
        let cell = client.lookup(NOBODY, client.root(), CELL.as_bytes()).await?.fid;
        Ok(client.lookup(NOBODY, cell, b"user").await?.fid)
    }
    laptop.run(|one| async move {
        let user = user(&one).await.unwrap();
        let real = one.target(NOBODY, user).await.unwrap();
        one.set_behind(real, true, Some(Setting::On(WriteBehind::Always))).await.unwrap();
        write_new(&one, user, "file", "text").await;
        names(&one, NOBODY, user).await;
        pause(&one, 5).await;
    });
    laptop.go_away();
    laptop.restart(End::Killed);
    laptop.run(|one| async move {
        let user = user(&one).await.unwrap();
        assert_eq!(read(&one, NOBODY, user, "file").await.unwrap(), "text");
        write_new(&one, user, "second", "made here").await;
        assert_eq!(names(&one, NOBODY, user).await, ["file", "second"]);
        pause(&one, 5).await;
    });
    laptop.restart(End::Killed);
    laptop.run(|one| async move {
        assert_eq!(read(&one, NOBODY, user(&one).await.unwrap(), "second").await.unwrap(), "made here");
    });
}

/// Gives a user a token that says so of itself.
fn log_in(laptop: &Laptop, user: User, name: &'static str) {
    let keys = laptop.world.keys().clone();
    laptop.run(move |one| async move {
        let now = UnixTime::of(one.runtime().wall_clock());
        let times = (now, now.plus(Duration::from_secs(HOUR)));
        let who = Identity::parse(name).unwrap();
        let token = ticket::for_user(&keys, &who, CELL, times, &mut StdRng::seed_from_u64(1)).unwrap();
        one.log_in(user, CELL, Holder { name: name.to_owned(), id: None }, token, false).unwrap();
    });
}

#[test]
fn only_those_see_it_after_a_start_who_could_before_and_are_the_same_users() {
    const DAVE: User = User::of(1004);
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let mut laptop = Laptop::new(world);
    // To the cell, she is Alice.
    log_in(&laptop, CAROL, "alice");
    let dir = laptop.run(|one| async move {
        let dir = Fid::root_of(cell_root(&one).await.cell, USER_VOLUME);
        write_new_as(&one, ALICE, dir, "file", "private").await;
        pause(&one, 5).await;
        for user in [ALICE, CAROL] {
            assert_eq!(read(&one, user, dir, "file").await.unwrap(), "private");
        }
        assert_eq!(read(&one, BOB, dir, "file").await.unwrap_err().errno(), Errno::EACCES);
        pause(&one, 3).await;
        dir
    });
    laptop.go_away();
    laptop.restart(End::Killed);
    laptop.run(move |one| async move {
        assert_eq!(read(&one, ALICE, dir, "file").await.unwrap(), "private");
        assert_eq!(read(&one, BOB, dir, "file").await.unwrap_err().errno(), Errno::EACCES);
        for (user, what) in [(NOBODY, "nobody"), (CAROL, "without her token"), (DAVE, "a stranger")] {
            assert!(read(&one, user, dir, "file").await.is_err(), "{what}");
            assert!(one.read_dir(user, dir).await.is_err(), "{what}");
        }
    });
    // A name alone says nothing: no server has seen this token.
    log_in(&laptop, DAVE, "alice");
    log_in(&laptop, CAROL, "alice");
    laptop.run(move |one| async move {
        assert!(read(&one, DAVE, dir, "file").await.is_err(), "another user who says to be her");
        assert_eq!(read(&one, CAROL, dir, "file").await.unwrap(), "private");
    });
}

async fn write_new_as(client: &Client, user: User, dir: Fid, name: &str, text: &'static str) {
    let made = client.create_and_open(user, (dir, name.as_bytes()), 0o640, WRITE, true).await.unwrap();
    made.1.write(0, Bytes::from_static(text.as_bytes())).await.unwrap();
    made.1.close().await.unwrap();
}

#[test]
fn what_was_changed_without_the_server_is_there_after_a_start_and_reaches_it_later() {
    for end in [End::Unmounted, End::Killed, End::PowerLost] {
        let (mut laptop, _) = with_tree(Cell::new());
        laptop.go_away();
        let (root, changed) = laptop.run(|one| async move {
            let root = cell_root(&one).await;
            let dir = one.lookup(NOBODY, root, b"dir").await.unwrap().fid;
            let made = one.make_dir(NOBODY, dir, b"made", 0o755).await.unwrap().fid;
            let below = one.make_dir(NOBODY, made, b"below", 0o755).await.unwrap().fid;
            write_new(&one, below, "new", "made here").await;
            write_new(&one, dir, "temporary", "renamed").await;
            one.rename(NOBODY, (dir, b"temporary"), (dir, b"final"), false).await.unwrap();
            let file = one.lookup(NOBODY, dir, b"file").await.unwrap().fid;
            let open = one.open(NOBODY, file, WRITE).await.unwrap();
            open.write(0, Bytes::from_static(b"TEXT and more")).await.unwrap();
            open.close().await.unwrap();
            drop(open);
            one.remove(NOBODY, dir, b"link").await.unwrap();
            pause(&one, 5).await;
            (root, tree(&one, dir).await)
        });
        let expected = [
            "/file=TEXT and more",
            "/final=renamed",
            "/made/",
            "/made/below/",
            "/made/below/new=made here",
            "/user/",
            "/user/inside=of another volume",
        ];
        assert_eq!(changed, expected);
        laptop.restart(end);
        laptop.run(move |one| async move {
            let dir = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            let mut found = Vec::new();
            for name in names(&one, NOBODY, dir).await {
                found.push(match read(&one, NOBODY, dir, &name).await {
                    Ok(text) => format!("/{name}={text}"),
                    Err(_) => format!("/{name}"),
                });
            }
            match end {
                // What was only read is to be fetched again.
                End::PowerLost => assert_eq!(found[1..], ["/final=renamed", "/made", "/user"]),
                End::Unmounted | End::Killed => {
                    assert_eq!(tree(&one, dir).await, changed, "{end:?}");
                }
            }
            let made = one.lookup(NOBODY, dir, b"made").await.unwrap().fid;
            let below = one.lookup(NOBODY, made, b"below").await.unwrap().fid;
            assert_eq!(read(&one, NOBODY, below, "new").await.unwrap(), "made here", "{end:?}");
            // It goes on.
            write_new(&one, below, "newer", "after the start").await;
            overwrite(&one, dir, "final", "once more").await;
            pause(&one, 5).await;
        });
        let two = laptop.world.client(61);
        laptop.come_back();
        laptop.run(move |one| async move {
            pause(&one, 180).await;
            assert_eq!((one.waiting().changes, one.dirty_bytes()), (0, 0), "{end:?}");
            let dir = two.lookup(NOBODY, root, b"dir").await.unwrap().fid;
            let mut expected: Vec<_> = expected.iter().map(|line| (*line).to_owned()).collect();
            expected[1] = "/final=once more".to_owned();
            expected.insert(5, "/made/below/newer=after the start".to_owned());
            assert_eq!(tree(&two, dir).await, expected, "{end:?}");
            let dir = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            assert_eq!(tree(&one, dir).await, expected, "{end:?}");
            assert!(one.conflicts().is_empty(), "{end:?}: {:?}", one.conflicts());
        });
    }
}

#[test]
fn what_others_have_changed_meanwhile_is_seen_at_the_first_look_with_the_server() {
    for is_back_before in [true, false] {
        let (mut laptop, _) = with_tree(Cell::new());
        let two = laptop.world.client(61);
        laptop.go_away();
        laptop.restart(End::Killed);
        laptop.run(move |one| async move {
            let root = cell_root(&one).await;
            let dir = two.lookup(NOBODY, root, b"dir").await.unwrap().fid;
            if !is_back_before {
                assert_eq!(read(&one, NOBODY, dir, "file").await.unwrap(), "text");
            }
            put(&two, NOBODY, two.lookup(NOBODY, dir, b"file").await.unwrap().fid, b"changed").await;
            two.remove(NOBODY, dir, b"link").await.unwrap();
            two.make_dir(NOBODY, dir, b"other", 0o755).await.unwrap();
        });
        if is_back_before {
            laptop.restart(End::Killed);
        }
        laptop.come_back();
        laptop.run(move |one| async move {
            if !is_back_before {
                pause(&one, 60).await;
            }
            let dir = one.lookup(NOBODY, cell_root(&one).await, b"dir").await.unwrap().fid;
            let found = tree(&one, dir).await;
            let expected = ["/file=changed", "/other/", "/user/", "/user/inside=of another volume"];
            assert_eq!(found, expected, "back before the first look: {is_back_before}");
        });
    }
}

/// What is known reaches the disk so late at most.
const KNOWN_AFTER: Duration = Duration::from_secs(5);

/// Others' changes come in while the laptop looks, and it makes some of its own; then the power goes.
#[test]
fn after_a_loss_of_power_a_start_without_the_server_shows_nothing_that_never_was() {
    let shown: usize = (0..12).map(|seed| usize::from(lose_power(seed))).sum();
    assert!(shown >= 8, "in {shown} of 12 cases anything is known");
}

/// Returns whether the directory is known after that.
fn lose_power(seed: u64) -> bool {
    let world = Cell::new();
    let two = world.client(60);
    let mut random = StdRng::seed_from_u64(seed);
    let mut laptop = Laptop::new(world);
    laptop.world.write(&two, "file", "text 0");
    laptop.run(|one| async move {
        tree(&one, cell_root(&one).await).await;
        pause(&one, 3).await;
    });
    laptop.disk.copy_after(random.random_range(1..200));
    let (other, mut work) = (two.clone(), StdRng::seed_from_u64(random.random()));
    let made = laptop.run(move |one| async move {
        let (root, theirs) = (cell_root(&one).await, cell_root(&other).await);
        let mut made = vec![one.now()];
        for round in 1..25 {
            let text = format!("text {round}");
            overwrite(&other, theirs, "file", text.clone()).await;
            write_new(&other, theirs, &format!("theirs {round}"), &text).await;
            write_new(&one, root, &format!("ours {round}"), &text).await;
            tree(&one, root).await;
            made.push(one.now());
            one.runtime().sleep_until(one.now() + Duration::from_millis(work.random_range(0..2000))).await;
        }
        made
    });
    laptop.go_away();
    laptop.disk = laptop.disk.copied().map_or_else(|| laptop.disk.clone(), |(disk, _)| disk);
    laptop.restart(End::PowerLost);
    let is_known = laptop.run(move |one| async move {
        let cell = one.lookup(NOBODY, one.root(), format!(".{CELL}").as_bytes()).await.unwrap();
        let Ok(root) = one.target(NOBODY, cell.fid).await else { return false };
        let Ok(listing) = one.read_dir(NOBODY, root).await else { return false };
        let entries = listing.entries_from(0).map(|entry| String::from_utf8(entry.name.to_vec()).unwrap());
        let found: Vec<_> = entries.filter(|name| !name.starts_with('.')).collect();
        let number = |name: &str| name.rsplit_once(' ').map(|(_, number)| number.parse::<usize>().unwrap());
        for name in &found {
            let Ok(text) = read(&one, NOBODY, root, name).await else { continue };
            match number(name) {
                Some(number) => assert_eq!(text, format!("text {number}"), "seed {seed}: {name}"),
                None => assert!(text.starts_with("text "), "seed {seed}: {name}: {text}"),
            }
        }
        let latest = found.iter().filter_map(|name| number(name)).max().unwrap_or(0);
        for round in (1..latest).filter(|round| made[*round] + KNOWN_AFTER < made[latest]) {
            for name in [format!("ours {round}"), format!("theirs {round}")] {
                assert!(found.contains(&name), "seed {seed}: {name} is missing in {found:?}");
            }
        }
        true
    });
    laptop.come_back();
    laptop.run(move |one| async move {
        pause(&one, 180).await;
        let there = tree(&two, cell_root(&two).await).await;
        assert_eq!(tree(&one, cell_root(&one).await).await, there, "seed {seed}");
    });
    is_known
}

#[test]
fn without_write_behind_a_start_without_the_server_shows_nothing() {
    let world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let plain = |world: &Cell, number, disk: &SimulatedDisk| Config {
        cache_disk: Some(Arc::new(disk.clone())),
        patience: Duration::from_secs(30),
        ..with_folder(world, number, &world.folder("cache"))
    };
    let one = world.client_with(plain(&world, 1, &disk));
    world.write(&one, "file", "text");
    world.run_with(&one, |one| async move {
        assert_eq!(read(&one, NOBODY, cell_root(&one).await, "file").await.unwrap(), "text");
        pause(&one, 5).await;
    });
    let disk = disk.after_kill();
    let away = world.config(2).bind;
    world.sim.set_network(move |_, from, to, _| match [from, to].contains(&away) {
        true => Fate::Lost,
        false => Fate::Arrives(Duration::ZERO),
    });
    std::mem::forget(one);
    let one = world.client_with(plain(&world, 2, &disk));
    world.run(async move {
        let cell = one.lookup(NOBODY, one.root(), CELL.as_bytes()).await.unwrap().fid;
        assert!(one.read_dir(NOBODY, cell).await.is_err());
    });
}
