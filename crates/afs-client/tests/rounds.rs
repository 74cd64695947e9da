//! Two clients of one cell, for thousands of rounds: what one writes and closes, an open in the other that begins afterwards sees,
//! whatever becomes of callbacks, servers and the network meanwhile.
//!
//! A client that cannot be told of a change goes on with what it was promised: it may see the version before, but a whole one,
//! never one older than it has seen, and for no longer than until the server has told it.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::Cell;
use crate::support::data::{READ, WRITE, make, open, random_bytes, read_all, with_folder};
use afs_client::{Client, OpenFile};
use afs_sim::{Fate, Sim};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::Runtime;
use rx_proto::time::Instant;

/// Files that are written by turns.
const FILES: usize = 3;

/// Files that are held open at a time: some as programs have them, some as the kernel has those that it reads by itself.
const HELD: usize = 8;

/// For how long after an outage a client may not have been told of what it missed: clients ask servers that they have not
/// called for three minutes whether they are there, and hear it with that.
const TOLD_AFTER: Duration = Duration::from_secs(200);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Nothing.
    None,
    /// What servers say to clients of their own accord comes late, by less than a server waits for it.
    LateCallbacks,
    /// It does not come at all, for seconds or minutes.
    LostCallbacks,
    /// The server is killed, in the middle of what goes on, and started again.
    Deaths,
    /// A client and the server do not hear each other, for seconds or minutes.
    Partitions,
    /// One datagram in twenty is lost.
    Loss,
}

/// What the network is to do.
#[derive(Debug, Default)]
struct Weather {
    random: u64,
    callbacks_late: Duration,
    callbacks_lost: bool,
    lost_percent: u64,
    /// Nothing goes to this address, nor from it.
    is_away: Option<SocketAddr>,
    /// The time until which this is so; without, for good.
    until: Option<Instant>,
}

impl Weather {
    fn fate(&mut self, now: Instant, from: SocketAddr, to: SocketAddr, datagram: &[u8]) -> Fate {
        if self.until.is_some_and(|until| until <= now) {
            return Fate::Arrives(Duration::ZERO);
        }
        if self.is_away.is_some_and(|away| away == from || away == to) {
            return Fate::Lost;
        }
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        if (self.random >> 33) % 100 < self.lost_percent {
            return Fate::Lost;
        }
        // A call that a file server has begun: the side that has is in the header's flags (Rx notes 2).
        let is_of_client = datagram.get(21).is_some_and(|flags| flags & 1 != 0);
        let is_callback = (from.port() == 7000 && is_of_client) || (to.port() == 7000 && !is_of_client);
        match is_callback {
            true if self.callbacks_lost => Fate::Lost,
            true => Fate::Arrives(self.callbacks_late),
            false => Fate::Arrives(Duration::ZERO),
        }
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// What a file has been.
#[derive(Default)]
struct History {
    now: Vec<u8>,
    /// All that it was after a close, and which that was last.
    versions: HashMap<u64, usize>,
    count: usize,
    /// The newest that each client has seen.
    seen: [usize; 2],
}

impl History {
    fn closed(&mut self, writer: usize) {
        self.count += 1;
        self.versions.insert(hash_of(&self.now), self.count);
        self.seen[writer] = self.count;
    }
}

/// An open file, or the file of the cache that the kernel reads by itself.
enum Held {
    Open(usize, OpenFile),
    Lent(Arc<File>),
}

struct Rounds {
    sim: Sim,
    world: Arc<Mutex<Cell>>,
    weather: Arc<Mutex<Weather>>,
    clients: [Client; 2],
    random: StdRng,
    trouble: Trouble,
    /// The time until which the trouble goes on, and whom it is about.
    ends_at: Option<Instant>,
    /// The time until which a client may not have been told.
    is_behind_until: [Instant; 2],
    files: Vec<History>,
    held: Vec<(usize, Held)>,
}

impl Rounds {
    fn new(seed: u64, trouble: Trouble) -> Self {
        let world = Cell::new();
        let clients = [1, 2].map(|number| {
            let folder = world.folder(&format!("cache-{number}"));
            world.client_with(with_folder(&world, number, &folder))
        });
        let weather = Arc::new(Mutex::new(Weather { random: seed, ..Weather::default() }));
        let network = Arc::clone(&weather);
        world.sim.set_network(move |now, from, to, datagram| {
            network.lock().unwrap().fate(now, from, to, datagram)
        });
        let now = world.sim.now();
        Self {
            sim: world.sim.clone(),
            world: Arc::new(Mutex::new(world)),
            weather,
            clients,
            random: StdRng::seed_from_u64(seed),
            trouble,
            ends_at: None,
            is_behind_until: [now; 2],
            files: (0..FILES).map(|_| History::default()).collect(),
            held: Vec::new(),
        }
    }

    /// Trouble begins or ends.
    fn trouble(&mut self) {
        let now = self.sim.now();
        if self.ends_at.is_some_and(|at| now < at) {
            return;
        }
        let mut weather = self.weather.lock().unwrap();
        *weather = Weather { random: weather.random, ..Weather::default() };
        self.ends_at = None;
        let is_chosen = self.random.random_bool(0.2);
        // Mostly seconds, sometimes minutes.
        let lasts = Duration::from_millis(self.random.random_range(10..5000))
            * if self.random.random_bool(0.1) { 60 } else { 1 };
        // Somebody always knows all.
        let mut whom = self.random.random_range(0..2);
        if now < self.is_behind_until[1 - whom] {
            whom = 1 - whom;
        }
        match self.trouble {
            Trouble::None => {}
            Trouble::Loss => weather.lost_percent = 5,
            Trouble::LateCallbacks => {
                weather.callbacks_late = Duration::from_millis(self.random.random_range(0..800));
            }
            Trouble::LostCallbacks if is_chosen => {
                (weather.callbacks_lost, weather.until) = (true, Some(now + lasts));
                self.ends_at = weather.until;
                self.is_behind_until = [now + lasts + TOLD_AFTER; 2];
            }
            Trouble::Partitions if is_chosen => {
                (weather.is_away, weather.until) = (Some(self.clients[whom].address()), Some(now + lasts));
                self.ends_at = weather.until;
                self.is_behind_until[whom] = now + lasts + TOLD_AFTER;
            }
            Trouble::Deaths if is_chosen => {
                let dies_at = now + Duration::from_millis(self.random.random_range(0..60));
                // Longer than a client takes to see that it is away, at times.
                let back_at = dies_at + lasts.min(Duration::from_secs(40));
                self.ends_at = Some(back_at + Duration::from_secs(1));
                let (sim, world) = (self.sim.clone(), Arc::clone(&self.world));
                self.sim.spawn(Box::pin(async move {
                    sim.sleep_until(dies_at).await;
                    world.lock().unwrap().kill(0);
                    sim.sleep_until(back_at).await;
                    world.lock().unwrap().start(0);
                }));
            }
            Trouble::LostCallbacks | Trouble::Partitions | Trouble::Deaths => {}
        }
    }

    /// A client whose calls arrive, and that knows what there is.
    fn writer(&mut self) -> usize {
        let now = self.sim.now();
        let up_to_date: Vec<_> = (0..2).filter(|&client| self.is_behind_until[client] <= now).collect();
        match up_to_date.len() {
            // Neither was told by the other, so it is one that writes.
            0 => 0,
            n => up_to_date[self.random.random_range(0..n)],
        }
    }

    /// What a client reads has to be a version that it may see.
    fn check(&mut self, client: usize, file: usize, read: &[u8], when: &str) {
        let history = &mut self.files[file];
        if read == history.now {
            history.seen[client] = history.count;
            return;
        }
        let is_behind = self.sim.now() < self.is_behind_until[client];
        let version = history.versions.get(&hash_of(read)).copied();
        let told = format!(
            "{when}: client {client} reads {} bytes of file {file}, which has {}; version {version:?} of {}, {} seen",
            read.len(),
            history.now.len(),
            history.count,
            history.seen[client]
        );
        assert!(is_behind && version.is_some_and(|version| version >= history.seen[client]), "{told}");
        history.seen[client] = version.unwrap_or(0);
    }

    async fn change(&mut self, file: &OpenFile, number: usize) {
        let is_large = self.random.random_bool(0.02);
        let at = self.random.random_range(0..if is_large { 600_000 } else { 20_000 });
        let model = &mut self.files[number].now;
        if self.random.random_bool(0.2) {
            file.truncate(at as u64).await.unwrap();
            model.resize(at, 0);
            return;
        }
        let length = self.random.random_range(1..5000);
        let bytes = random_bytes(&mut self.random, length);
        if model.len() < at + length {
            model.resize(at + length, 0);
        }
        model[at..at + length].copy_from_slice(&bytes);
        file.write(at as u64, bytes.into()).await.unwrap();
    }

    async fn round(&mut self, when: &str) {
        self.trouble();
        let (writer, number) = (self.writer(), self.random.random_range(0..FILES));
        let name = format!("file{number}");
        let file = open(&self.clients[writer], &name, WRITE).await;
        for _ in 0..self.random.random_range(1..4) {
            self.change(&file, number).await;
        }
        if self.random.random_bool(0.3) {
            let read = read_all(&file).await;
            assert!(read == self.files[number].now, "{when}: client {writer} reads what it writes");
        }
        file.flush().await.unwrap();
        drop(file);
        self.files[number].closed(writer);
        let reader = self.random.random_range(0..2);
        if self.random.random_bool(0.7) {
            let file = open(&self.clients[reader], &name, READ).await;
            let read = read_all(&file).await;
            self.check(reader, number, &read, when);
            self.hold(reader, number, file);
        }
        if !self.held.is_empty() && self.random.random_bool(0.3) {
            let at = self.random.random_range(0..self.held.len());
            self.look_at(at, when).await;
        }
        // So that what was promised runs out at times, and clients have nothing to do.
        if self.random.random_bool(0.05) {
            let pause = Duration::from_secs(self.random.random_range(1..300));
            self.sim.sleep_until(self.sim.now() + pause).await;
        }
    }

    fn hold(&mut self, client: usize, number: usize, file: OpenFile) {
        if self.random.random_bool(0.7) {
            return;
        }
        let held = match self.random.random_bool(0.5) {
            true => file.backing().map(Held::Lent),
            false => Some(Held::Open(client, file)),
        };
        self.held.extend(held.map(|held| (number, held)));
        if self.held.len() > HELD {
            let goes = self.random.random_range(0..self.held.len());
            self.held.swap_remove(goes);
        }
    }

    async fn look_at(&mut self, at: usize, when: &str) {
        let number = self.held[at].0;
        let (client, read) = match &self.held[at].1 {
            Held::Open(client, file) => (*client, read_all(file).await),
            Held::Lent(file) => {
                let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
                file.read_exact_at(&mut bytes, 0).unwrap();
                // The version that was opened, or what this client has written on it: never parts of others.
                let is_one = self.files[number].versions.contains_key(&hash_of(&bytes));
                assert!(is_one, "{when}: file {number} as the kernel has it is no version of it");
                return;
            }
        };
        self.check(client, number, &read, when);
    }
}

fn rounds(seed: u64, count: usize, trouble: Trouble) {
    let mut rounds = Rounds::new(seed, trouble);
    let sim = rounds.sim.clone();
    let began = (std::time::Instant::now(), sim.now());
    sim.block_on(async move {
        for number in 0..FILES {
            let name = format!("file{number}");
            drop(make(&rounds.clients[0], &name).await);
            rounds.files[number].closed(0);
            // Both have heard of the server: one that never answered is not waited for.
            drop(open(&rounds.clients[1], &name, READ).await);
        }
        for round in 0..count {
            rounds.round(&format!("{trouble:?}, seed {seed}, round {round}")).await;
        }
        // What is still to be started is.
        rounds.sim.sleep_until(rounds.sim.now() + Duration::from_secs(60)).await;
        assert!(rounds.clients.iter().all(|client| client.conflicts().is_empty()));
    });
    println!("{count} rounds: {:?}, {:?} of virtual time", began.0.elapsed(), sim.now().since(began.1));
}

#[test]
fn an_open_sees_what_was_closed_before_it() {
    (0..2).for_each(|seed| rounds(seed, 1000, Trouble::None));
}

#[test]
fn an_open_sees_what_was_closed_before_it_though_callbacks_come_late() {
    (10..12).for_each(|seed| rounds(seed, 1000, Trouble::LateCallbacks));
}

#[test]
fn an_open_sees_whole_versions_when_callbacks_are_lost_and_the_newest_soon_after() {
    (20..22).for_each(|seed| rounds(seed, 1000, Trouble::LostCallbacks));
}

#[test]
fn an_open_sees_what_was_closed_before_it_though_the_server_was_killed_in_between() {
    (30..32).for_each(|seed| rounds(seed, 1000, Trouble::Deaths));
}

#[test]
fn an_open_sees_whole_versions_when_the_network_is_cut_and_the_newest_soon_after() {
    (40..42).for_each(|seed| rounds(seed, 500, Trouble::Partitions));
}

#[test]
fn an_open_sees_what_was_closed_before_it_over_a_link_that_loses() {
    (50..52).for_each(|seed| rounds(seed, 500, Trouble::Loss));
}
