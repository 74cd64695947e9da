//! The cell, what its users and its administrator do in it, and what they must find. What goes wrong meanwhile is in
//! [`trouble`](super::trouble).

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_client::{Client, Error, Fid, OpenFile, OpenFlags, User};
use afs_sim::Sim;
use afs_volume::disk::SimulatedDisk;
use afs_volume::fsck;
use afs_wire::ids::ViceId;
use afs_wire::{pt, vl};
use bytes::Bytes;
use futures_util::future::join;
use rand::Rng;
use rand::rngs::StdRng;
use rx::{Connection, Runtime};
use rx_proto::time::Instant;
use rxgen::xdr::{CharVec, XdrArray, XdrString};

use super::log::{Event, Log, digest};
use super::trouble::{Aftermath, Doom, Weather};
use super::{FILES, LOST_MAX, SITES};
use crate::support::data::{READ, WRITE, read_all, try_read_all, with_folder};
use crate::support::moving::Mover;
use crate::support::{ALICE, BOB, CELL, NOBODY, SMALL_LOG, USER_VOLUME};
use afs_lab::sim::Cell as World;

/// The users who work at each client. A group that both are in, and nobody else, may change the names.
pub(crate) const USERS: [User; 2] = [ALICE, BOB];
/// See `rounds.rs`.
pub(crate) const TOLD_AFTER: Duration = Duration::from_secs(200);
/// How often something is tried that fails, and how long after another.
const ATTEMPTS: u32 = 300;
const TRY_EVERY: Duration = Duration::from_secs(5);
/// After so many attempts without any trouble a client whose cache has failed is started anew by its administrator.
const TIMEOUT: u32 = 3;
/// How long nothing must have been broken before a volume is moved.
const CALM: Duration = Duration::from_secs(5);

/// The reasons why data may be put aside: a client that lost power does not know what of its data is whole, nor that it was stored, and what a
/// server's disk does not take is lost. The program that wrote it was told so by the close, and wrote it again.
const KNOWN_LOSSES: [&str; 3] = ["lost power", "input or output failed", "the partition is full"];
/// The same where the cache's disk has failed: what it does not give back is lost, and it may not know what was stored.
const LOSSES_OF_CACHES: [&str; 2] = ["cannot read a file's data", "the file was changed by others meanwhile"];

/// What is attempted, maybe more than once.
type Attempt<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// What a file is in one of its versions.
fn contents(file: usize, version: usize, length: usize) -> Vec<u8> {
    let mut bytes = format!("file {file} version {version} length {length}\n").into_bytes();
    let mut state = (file * 1_000_003 + version) as u64;
    while bytes.len() < length {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length.max(40));
    bytes
}

/// A version of a file.
struct Version {
    length: usize,
    /// When its close was over.
    closed: Instant,
    /// The oldest that might be found before.
    oldest_before: usize,
    /// True if an attempt failed before the one that wrote it: of what that has left, a part may have been stored.
    was_interrupted: bool,
}

/// A file, and which versions of it a reader may find.
pub(crate) struct History {
    file: usize,
    pub(crate) volume: usize,
    versions: Vec<Version>,
    /// The oldest that may be found. More than one may be found after a power loss, until the next is written.
    oldest: usize,
}

impl History {
    pub(crate) fn new(file: usize, volume: usize) -> Self {
        Self { file, volume, versions: Vec::new(), oldest: 0 }
    }

    fn contents(&self, version: usize) -> Vec<u8> {
        contents(self.file, version, self.versions[version].length)
    }

    /// The newest version that this is.
    fn find(&self, read: &[u8]) -> Option<usize> {
        (0..self.versions.len()).rev().find(|version| read == self.contents(*version))
    }

    /// True if this is what an attempt has left that failed, and a power loss has uncovered.
    fn is_rest(&self, read: &[u8]) -> bool {
        let mut uncovered = self.oldest + 1..self.versions.len();
        uncovered
            .any(|version| self.versions[version].was_interrupted && self.contents(version).starts_with(read))
    }
}

pub(crate) struct Cell {
    pub(crate) sim: Sim,
    pub(crate) log: Log,
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) weather: Arc<Mutex<Weather>>,
    pub(crate) random: StdRng,
    pub(crate) clients: [Client; 2],
    pub(crate) caches: [SimulatedDisk; 2],
    pub(crate) doomed: [Option<Doom>; 2],
    pub(crate) aftermath: Arc<Mutex<Aftermath>>,
    pub(crate) files: Vec<History>,
    pub(crate) names: BTreeSet<String>,
    /// Where each of the volumes is.
    pub(crate) sites: [usize; SITES],
    /// The administrator's way to the databases: of locations, and of people.
    pub(crate) databases: [Connection; 2],
    /// The last id that was given to a volume, the users that were made, and how many were tried.
    pub(crate) last_id: u32,
    pub(crate) people: Vec<(String, ViceId)>,
    pub(crate) tried_people: u32,
    /// Attempts that have failed.
    pub(crate) interruptions: u32,
    /// The time until which clients may not know what happened at a server.
    pub(crate) is_behind_until: Instant,
    /// When the trouble of the moment ends, or the last one has.
    pub(crate) ends_at: Instant,
}

/// A client with its cache on a disk.
pub(crate) async fn client_on(world: &Arc<Mutex<World>>, number: usize, disk: &SimulatedDisk) -> Client {
    let (sim, config) = {
        let world = world.lock().unwrap();
        let folder = world.folder(&format!("cache-{number}"));
        let mut config = with_folder(&world, number as u8 + 1, &folder);
        config.cache_disk = Some(Arc::new(disk.clone()));
        (config.index_bytes, config.index_log_bytes) = (1 << 20, SMALL_LOG);
        // Nothing that belongs to the machine is in it.
        config.sysnames = vec!["amd64_linux26".to_owned()];
        (world.sim.clone(), config)
    };
    Client::start_with(Arc::new(sim), config).await.unwrap()
}

impl Cell {
    /// The directory in a volume that everything is in.
    pub(crate) async fn root(&self, client: usize, volume: usize) -> Result<Fid, Error> {
        let (client, user) = (&self.clients[client], USERS[client]);
        let found = client.lookup(user, client.root(), format!(".{CELL}").as_bytes()).await?;
        let root = client.target(user, found.fid).await?;
        if volume == 0 {
            return Ok(root);
        }
        let found = client.lookup(user, root, b"user").await?;
        client.target(user, found.fid).await
    }

    /// The directory of the names, which is in the first volume.
    async fn names_dir(&self, client: usize) -> Result<Fid, Error> {
        let root = self.root(client, 0).await?;
        Ok(self.clients[client].lookup(USERS[client], root, b"names").await?.fid)
    }

    pub(crate) fn note(&self, what: &str) {
        self.log.note(self.sim.now(), what);
    }

    /// Does something at a client until it works: what fails by a disk's error or an outage is done again by the program that meant it.
    async fn again<T>(
        &mut self,
        client: usize,
        what: &str,
        work: impl for<'a> Fn(&'a Self) -> Attempt<'a, T> + Send + Sync,
    ) -> T {
        let mut in_calm = 0;
        for _ in 0..ATTEMPTS {
            match work(self).await {
                Ok(done) => return done,
                Err(error) => self.note(&format!("{what}: {error}")),
            }
            self.interruptions += 1;
            self.bury(client).await;
            in_calm += u32::from(self.sim.now() >= self.ends_at);
            let is_suspect = self.aftermath.lock().unwrap().suspects[client];
            if is_suspect && in_calm >= TIMEOUT {
                self.restart_client(client, false).await;
            }
            self.sim.sleep_until(self.sim.now() + TRY_EVERY).await;
        }
        panic!("{what} still fails after {ATTEMPTS} attempts\n{}", self.log.end());
    }

    async fn open(&self, client: usize, file: usize, flags: OpenFlags) -> Result<OpenFile, Error> {
        let root = self.root(client, self.files[file].volume).await?;
        let name = format!("file{file}");
        let found = self.clients[client].lookup(USERS[client], root, name.as_bytes()).await?;
        self.clients[client].open(USERS[client], found.fid, flags).await
    }

    pub(crate) async fn rewrite(&mut self, client: usize, file: usize) {
        let version = self.files[file].versions.len();
        let longest = if self.random.random_bool(0.05) { 300_000 } else { 9_000 };
        let length = self.random.random_range(40..longest);
        let bytes = Bytes::from(contents(file, version, length));
        let interruptions = self.interruptions;
        self.again(client, "rewriting", move |cell| {
            let bytes = bytes.clone();
            Box::pin(async move {
                let open = cell.open(client, file, OpenFlags { truncate: true, ..WRITE }).await?;
                open.write(0, bytes).await?;
                open.flush().await
            })
        })
        .await;
        self.note(&format!("client {client} wrote file {file} version {version}"));
        self.catch_up();
        let (closed, was_interrupted) = (self.sim.now(), self.interruptions > interruptions);
        let history = &mut self.files[file];
        let oldest_before = history.oldest;
        history.versions.push(Version { length, closed, oldest_before, was_interrupted });
        // Until it is lost, which is known afterwards.
        history.oldest = version;
        self.log.count(Event::Rewrite);
    }

    /// Takes into account what the last troubles have left.
    fn catch_up(&mut self) {
        let mut aftermath = self.aftermath.lock().unwrap();
        for (site, since, until) in aftermath.lost.drain(..) {
            for history in self.files.iter_mut().filter(|history| self.sites[history.volume] == site) {
                let is_lost = |closed: Instant| (since..=until).contains(&closed);
                // What was found after an earlier loss may be older than what was closed last before it.
                let lost = history.versions.iter().filter(|version| is_lost(version.closed));
                if let Some(oldest) = lost.map(|version| version.oldest_before).min() {
                    history.oldest = history.oldest.min(oldest);
                }
            }
        }
        if let Some(until) = aftermath.is_behind_until.take() {
            self.is_behind_until = self.is_behind_until.max(until);
        }
    }

    pub(crate) async fn read(&mut self, client: usize, file: usize) {
        let read = self
            .again(client, "reading", move |cell| {
                Box::pin(async move { try_read_all(&cell.open(client, file, READ).await?).await })
            })
            .await;
        self.catch_up();
        let history = &self.files[file];
        let found = history.find(&read);
        self.note(&format!("client {client} read file {file}: {} bytes, version {found:?}", read.len()));
        let is_behind = self.sim.now() < self.is_behind_until;
        let is_allowed = match found {
            Some(found) => found >= history.oldest || is_behind,
            None => history.is_rest(&read),
        };
        assert!(
            is_allowed,
            "client {client} reads {} bytes of file {file} that are version {found:?}; {} is the oldest that may be, of {}\n{}",
            read.len(),
            history.oldest,
            history.versions.len(),
            self.log.end()
        );
        self.log.count(Event::Read);
    }

    /// A name comes or goes. File servers that cannot ask who a user is take nobody for one of the group.
    async fn name(&mut self, client: usize) {
        let name = format!("name{}", self.random.random_range(0..20));
        let what = "the directory of names";
        let dir = self.again(client, what, move |cell| Box::pin(cell.names_dir(client))).await;
        let one = &self.clients[client];
        let outcome = if self.names.contains(&name) {
            one.remove_dir(USERS[client], dir, name.as_bytes()).await
        } else {
            one.make_dir(USERS[client], dir, name.as_bytes(), 0o755).await.map(|_| ())
        };
        match &outcome {
            Ok(()) if !self.names.remove(&name) => drop(self.names.insert(name.clone())),
            Ok(()) => {}
            // A power loss took it back, or the answer was lost.
            Err(_) => self.learn_names(client).await,
        }
        self.note(&format!(
            "client {client} changed {name}: {:?}",
            outcome.map_err(|error| error.to_string())
        ));
        self.log.count(Event::ChangeOfNames);
    }

    async fn learn_names(&mut self, client: usize) {
        let listing = self
            .again(client, "listing", move |cell| {
                Box::pin(async move {
                    let dir = cell.names_dir(client).await?;
                    cell.clients[client].read_dir(USERS[client], dir).await
                })
            })
            .await;
        let names = listing.entries_from(0).map(|entry| String::from_utf8_lossy(entry.name).into_owned());
        self.names = names.filter(|name| name.starts_with("name")).collect();
    }

    /// Ends a client and starts it anew on what its disk has.
    pub(crate) async fn restart_client(&mut self, number: usize, loses_power: bool) {
        let old = &self.clients[number];
        self.sim.cut_off(old.address());
        let disk = &self.caches[number];
        let disk = if loses_power { disk.after_power_loss(self.random.random()) } else { disk.after_kill() };
        old.endpoint().shut_down();
        self.note(&format!("client {number} dies, loses power: {loses_power}"));
        self.aftermath.lock().unwrap().suspects[number] = false;
        self.caches[number] = disk;
        self.clients[number] = client_on(&self.world, number, &self.caches[number]).await;
    }

    /// The administrator takes an id for a volume, and makes a user. What is not answered may be done or not.
    async fn administer(&mut self) {
        let taken = self.databases[0].rpc(&vl::GetNewVolumeId { bump_count: 1 }).await;
        self.note(&format!("an id of a volume: {:?}", taken.as_ref().map_err(ToString::to_string)));
        if let Ok(reply) = taken {
            let id = reply.new_volid.0;
            assert!(id > self.last_id, "{id} is given again, after {}\n{}", self.last_id, self.log.end());
            self.last_id = id;
        }
        let name = format!("user{}", self.tried_people);
        self.tried_people += 1;
        let (wire, owner) = (XdrString::new(name.as_str()).unwrap(), ViceId(0));
        let made = self.databases[1].rpc(&pt::NewEntry { name: wire, flag: pt::PRUSER, owner }).await;
        self.note(&format!("{name}: {:?}", made.as_ref().map_err(ToString::to_string)));
        if let Ok(reply) = made {
            self.people.push((name, reply.id));
        }
        self.log.count(Event::ChangeOfDatabases);
    }

    /// The volume of users goes to the other server, by the volume servers, while clients go on.
    async fn move_volume(&mut self) {
        if self.sim.now() < self.ends_at + CALM {
            return;
        }
        let (from, to) = (self.sites[1], 1 - self.sites[1]);
        let mover = Mover::new(&self.world.lock().unwrap());
        let moving = mover.move_volume("user", USER_VOLUME, from, to);
        let work = async {
            for _ in 0..6 {
                let (client, file) = (self.random.random_range(0..2), self.random.random_range(0..FILES));
                if self.random.random_bool(0.5) {
                    self.rewrite(client, file).await;
                } else {
                    self.read(client, file).await;
                }
            }
        };
        join(moving, work).await;
        mover.end();
        self.sites[1] = to;
        self.note(&format!("the volume moved from server {from} to {to}"));
        // That it is there outlasts a power loss.
        self.sim.sleep_until(self.sim.now() + LOST_MAX).await;
        self.log.count(Event::Move);
    }

    pub(crate) async fn round(&mut self) {
        for client in 0..2 {
            self.bury(client).await;
        }
        self.trouble().await;
        let (client, file) = (self.random.random_range(0..2), self.random.random_range(0..FILES));
        if self.random.random_bool(0.04) {
            self.move_volume().await;
        }
        match self.random.random_range(0..11) {
            0..4 => self.rewrite(client, file).await,
            4..8 => self.read(client, file).await,
            8 => self.name(client).await,
            9 => self.administer().await,
            _ => {
                let pause = Duration::from_millis(self.random.random_range(1..20_000));
                self.sim.sleep_until(self.sim.now() + pause).await;
            }
        }
    }

    /// Nothing goes wrong any more: all agree, and nothing is damaged.
    pub(crate) async fn settle(&mut self) {
        self.sim.sleep_until(self.sim.now() + TOLD_AFTER + Duration::from_secs(60)).await;
        for client in 0..2 {
            self.bury(client).await;
        }
        for file in 0..FILES {
            let mut found = Vec::new();
            for client in 0..2 {
                self.read(client, file).await;
                let open = self.open(client, file, READ).await.unwrap();
                found.push(digest(&read_all(&open).await));
            }
            assert_eq!(found[0], found[1], "the clients agree on file {file}\n{}", self.log.end());
        }
        for client in 0..2 {
            self.learn_names(client).await;
            self.note(&format!("client {client} finds {:?}", self.names));
            let conflicts = self.clients[client].conflicts();
            let mut known = KNOWN_LOSSES.to_vec();
            if self.aftermath.lock().unwrap().failed_caches[client] {
                known.extend(LOSSES_OF_CACHES);
            }
            let is_known =
                conflicts.iter().all(|conflict| known.iter().any(|why| conflict.why.contains(why)));
            assert!(is_known, "client {client} could not store {conflicts:?}\n{}", self.log.end());
        }
        let dir = self.names_dir(0).await.unwrap();
        let outsider = self.clients[0].make_dir(NOBODY, dir, b"theirs", 0o755).await;
        assert!(outsider.is_err(), "only the group may\n{}", self.log.end());
        for people in self.people.chunks(64) {
            let names = people.iter().map(|(name, _)| CharVec::from_text(name).unwrap()).collect::<Vec<_>>();
            let asked = self.databases[1].rpc(&pt::NameToID { names: XdrArray::new(names).unwrap() }).await;
            let ids = people.iter().map(|(_, id)| *id).collect::<Vec<_>>();
            assert_eq!(asked.unwrap().ids.to_vec(), ids, "users that were made\n{}", self.log.end());
        }
        let world = self.world.lock().unwrap();
        for site in &world.sites {
            let report = fsck::check(&site.partition).unwrap();
            assert!(report.is_clean(), "{report:?}");
        }
    }
}
