//! What goes wrong, one thing at a time: processes die, machines lose power, disks fail, and the network loses datagrams or parts the
//! machines. All chance is the cell's. What has broken is mended when it is over, as its administrator would.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use afs_sim::{Fate, Sim};
use afs_volume::disk::{Cut, Disk, SimulatedDisk};
use futures_util::future::join;
use rand::Rng;
use rx::Runtime;
use rx_proto::time::Instant;

use super::cell::{Cell, TOLD_AFTER};
use super::log::{Event, Fault, Log, Owner};
use super::{LOST_MAX, SITES};
use crate::support::LOCATION;
use afs_lab::sim::Cell as World;

/// How often a server that did not start is started again.
const START_EVERY: Duration = Duration::from_secs(1);

/// What the network does at present.
#[derive(Debug)]
pub(crate) struct Weather {
    pub(crate) random: u64,
    pub(crate) lost_percent: u64,
    /// Nothing goes between these.
    pub(crate) parted: Option<(SocketAddr, SocketAddr)>,
    /// The time until which it is so.
    pub(crate) until: Instant,
    /// Machines whose processes die with a disk: when it is dead, nothing that they send gets out.
    pub(crate) dying: Vec<Dying>,
}

/// A machine, its disk, and what that had refused before it was to die.
#[derive(Debug, Clone)]
pub(crate) struct Dying(IpAddr, SimulatedDisk, u64);

impl Dying {
    fn is_dead(&self) -> bool {
        self.1.refusals() > self.2
    }
}

impl Weather {
    pub(crate) fn fate(&mut self, now: Instant, from: SocketAddr, to: SocketAddr) -> Fate {
        if self.until <= now {
            (self.lost_percent, self.parted) = (0, None);
        }
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let is_parted = self.parted.is_some_and(|(a, b)| (a, b) == (from, to) || (b, a) == (from, to));
        let is_dead = self.dying.iter().any(|dying| dying.0 == from.ip() && dying.is_dead());
        if is_dead || is_parted || (self.random >> 33) % 100 < self.lost_percent {
            return Fate::Lost;
        }
        Fate::Arrives(Duration::from_micros((self.random >> 40) % 3000))
    }
}

/// What troubles have left, until the cell has taken it into account.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// Servers that may not have what was closed in this time.
    pub(crate) lost: Vec<(usize, Instant, Instant)>,
    /// The time until which clients may not know what happened at a server.
    pub(crate) is_behind_until: Option<Instant>,
    /// Clients whose cache has failed, since they were started or ever.
    pub(crate) suspects: [bool; 2],
    pub(crate) failed_caches: [bool; 2],
}

/// A client whose disk is, or soon will be, dead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doom {
    loses_power: bool,
    /// When it dies, if the disk is not dead before.
    at: Instant,
}

/// A disk that fails, and how.
struct Failing {
    disk: SimulatedDisk,
    fault: (Owner, Fault),
    cut: Option<Cut>,
    capacity: u64,
    refusals: u64,
}

impl Failing {
    fn begin(disk: SimulatedDisk, (owner, fault): (Owner, Fault), random: &mut impl Rng) -> Self {
        let (capacity, free) = disk.space().unwrap();
        // The list of promises is short, and seldom written.
        let (operations, room, place) = match owner {
            Owner::Promises => (random.random_range(0..2), random.random_range(0..200), 0),
            Owner::Partition | Owner::Databases | Owner::Cache => {
                (random.random_range(0..20), random.random_range(0..20_000), random.random_range(0..100_000))
            }
        };
        let cut = match fault {
            Fault::Cut => Some(Cut::After(operations)),
            Fault::OneError => Some(Cut::ErrorAt(operations)),
            Fault::Errors => Some(Cut::ErrorsFrom(operations)),
            Fault::Unreadable => Some(Cut::UnreadableFrom(place)),
            Fault::Full => {
                disk.set_capacity(capacity - free + room);
                None
            }
        };
        disk.set_cut(cut);
        let refusals = disk.refusals();
        Self { disk, fault: (owner, fault), cut, capacity, refusals }
    }

    /// The owner's process was killed, and goes on with this disk, which is the same one.
    fn goes_on(&mut self, disk: SimulatedDisk) {
        disk.set_cut(self.cut);
        self.disk = disk;
    }

    fn was_met(&self) -> bool {
        self.disk.refusals() > self.refusals
    }

    /// Ends the fault at a time, and says whether its owner has met it.
    async fn end_at(&self, until: Instant, scene: Scene) -> bool {
        scene.sim.sleep_until(until).await;
        let is_met = self.end(&scene.log);
        scene.note(&format!("the disk works again: {:?}, {is_met}", self.fault));
        is_met
    }

    /// The same now.
    fn end(&self, log: &Log) -> bool {
        self.disk.set_cut(None);
        self.disk.set_capacity(self.capacity);
        if self.was_met() {
            log.count(Event::Disk(self.fault.0, self.fault.1));
        }
        self.was_met()
    }
}

/// What the tasks of troubles have in common.
#[derive(Clone)]
struct Scene {
    sim: Sim,
    log: Log,
    world: Arc<Mutex<World>>,
    weather: Arc<Mutex<Weather>>,
    aftermath: Arc<Mutex<Aftermath>>,
}

impl Scene {
    /// A machine dies with its disks.
    fn dies_with(&self, machine: IpAddr, disks: &[Failing]) {
        let dying = disks.iter().map(|failing| Dying(machine, failing.disk.clone(), failing.refusals));
        self.weather.lock().unwrap().dying.extend(dying);
    }

    /// All that were to die have.
    fn ends_dying(&self) {
        self.weather.lock().unwrap().dying.clear();
    }

    fn note(&self, what: &str) {
        self.log.note(self.sim.now(), what);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Starts a server that is down, until it does.
    async fn start(
        &self,
        what: &str,
        mut start: impl FnMut(&mut World) -> Result<(), String>,
        until: Instant,
    ) {
        loop {
            let started = start(&mut self.world());
            let Err(error) = started else { break };
            self.note(&format!("{what} does not start: {error}"));
            assert!(
                self.sim.now() < until + START_EVERY,
                "{what} does not start: {error}\n{}",
                self.log.end()
            );
            self.sim.sleep_until(self.sim.now() + START_EVERY).await;
        }
        self.note(&format!("{what} is back"));
    }

    async fn start_site(&self, site: usize, until: Instant) {
        let start = |world: &mut World| world.try_start(site).map_err(|error| error.to_string());
        self.start(&format!("server {site}"), start, until).await;
    }

    async fn start_databases(&self, until: Instant) {
        let start = |world: &mut World| world.databases.try_start().map_err(|error| error.to_string());
        self.start("the server of databases", start, until).await;
    }

    /// The disk of a partition has failed and works again: an administrator has its volumes served, or starts the server again.
    async fn mend_partition(&self, site: usize, restarts: bool) {
        let partition = {
            let mut world = self.world();
            if restarts {
                world.crash(site, None);
            }
            world.sites[site].partition.clone()
        };
        if restarts {
            return self.start_site(site, self.sim.now()).await;
        }
        // As the volume server does it: Linux tells a failed write once more.
        partition.reopen().or_else(|_| partition.reopen()).unwrap();
        World::tell_all(&self.world, site).await;
        self.note(&format!("the volumes of server {site} are served again"));
    }
}

impl Cell {
    fn scene(&self) -> Scene {
        Scene {
            sim: self.sim.clone(),
            log: self.log.clone(),
            world: Arc::clone(&self.world),
            weather: Arc::clone(&self.weather),
            aftermath: Arc::clone(&self.aftermath),
        }
    }

    /// What goes wrong next.
    pub(crate) async fn trouble(&mut self) {
        let now = self.sim.now();
        if now < self.ends_at {
            return;
        }
        let (site, client) = (self.random.random_range(0..SITES), self.random.random_range(0..2));
        let lasts = Duration::from_millis(self.random.random_range(10..12_000));
        let faults = [Fault::OneError, Fault::Errors, Fault::Full, Fault::Unreadable];
        let fault = faults[self.random.random_range(0..faults.len())];
        match self.random.random_range(0..80) {
            0..2 => self.stop_server(site, true),
            2 => self.stop_server(site, false),
            3 => self.stop_databases(true),
            4 => self.stop_databases(false),
            5..7 => self.doom_client(client, true),
            7..9 => self.doom_client(client, false),
            9 => {
                let mut weather = self.weather.lock().unwrap();
                (weather.lost_percent, weather.until) = (5, now + lasts);
                self.ends_at = now + lasts;
                self.log.count(Event::Loss);
            }
            10 => {
                let ends = (self.clients[client].address(), self.world.lock().unwrap().sites[site].address);
                let mut weather = self.weather.lock().unwrap();
                (weather.parted, weather.until) = (Some(ends), now + lasts);
                self.ends_at = now + lasts;
                self.is_behind_until = self.is_behind_until.max(now + lasts + TOLD_AFTER);
                self.log.count(Event::Parting);
            }
            11..17 => self.fail_partition(site, fault, lasts),
            17..20 => self.fail_promises(site, fault, lasts),
            20..23 => self.fail_databases(fault, lasts),
            23..27 => self.fail_cache(client, fault, lasts),
            _ => {}
        }
    }

    /// The process of a file server dies in the midst of what it does, or its machine loses power. It is away for a while.
    fn stop_server(&mut self, site: usize, loses_power: bool) {
        let scene = self.scene();
        let now = self.sim.now();
        let power_loss = loses_power.then(|| self.random.random());
        let dies_at = now + Duration::from_millis(self.random.random_range(0..2000));
        let back_at = dies_at + Duration::from_millis(self.random.random_range(10..30_000));
        let disks = {
            let world = scene.world();
            [(world.disk(site).clone(), Owner::Partition), (world.state_disk(site).clone(), Owner::Promises)]
        };
        let disks = disks.map(|(disk, owner)| Failing::begin(disk, (owner, Fault::Cut), &mut self.random));
        scene.dies_with(scene.world().sites[site].address.ip(), &disks);
        self.ends_at = back_at + Duration::from_secs(1);
        self.sim.spawn(Box::pin(async move {
            scene.sim.sleep_until(dies_at).await;
            for disk in &disks {
                disk.end(&scene.log);
            }
            scene.ends_dying();
            let knows_all = scene.world().crash(site, power_loss);
            scene.note(&format!("server {site} dies, loses power: {loses_power}, knows all: {knows_all}"));
            assert!(loses_power || knows_all, "server {site} knows who holds promises\n{}", scene.log.end());
            scene.sim.sleep_until(back_at).await;
            {
                let mut aftermath = scene.aftermath.lock().unwrap();
                if loses_power {
                    aftermath.lost.push((site, now - LOST_MAX, back_at));
                }
                if !knows_all {
                    aftermath.is_behind_until = Some(back_at + TOLD_AFTER);
                }
            }
            scene.start_site(site, back_at).await;
            let event = if loses_power { Event::ServerLosesPower } else { Event::ServerKilled };
            scene.log.count(event);
        }));
    }

    /// The same of the databases.
    fn stop_databases(&mut self, loses_power: bool) {
        let scene = self.scene();
        let power_loss = loses_power.then(|| self.random.random());
        let dies_at = self.sim.now() + Duration::from_millis(self.random.random_range(0..20_000));
        let back_at = dies_at + Duration::from_millis(self.random.random_range(10..60_000));
        let disk = scene.world().databases.disk().clone();
        let disks = [Failing::begin(disk, (Owner::Databases, Fault::Cut), &mut self.random)];
        scene.dies_with(LOCATION.into(), &disks);
        self.ends_at = back_at + Duration::from_secs(1);
        self.sim.spawn(Box::pin(async move {
            scene.sim.sleep_until(dies_at).await;
            disks[0].end(&scene.log);
            scene.ends_dying();
            scene.world().databases.crash(power_loss);
            scene.note(&format!("the databases die, lose power: {loses_power}"));
            scene.sim.sleep_until(back_at).await;
            scene.start_databases(back_at).await;
            let event = if loses_power { Event::DatabasesLosePower } else { Event::DatabasesKilled };
            scene.log.count(event);
        }));
    }

    /// A client dies soon, in the midst of what it does with its disk.
    fn doom_client(&mut self, client: usize, loses_power: bool) {
        let at = self.sim.now() + Duration::from_millis(self.random.random_range(0..20_000));
        let disk = self.caches[client].clone();
        disk.set_cut(Some(Cut::After(self.random.random_range(0..60))));
        let dying = Dying(self.clients[client].address().ip(), disk.clone(), disk.refusals());
        self.weather.lock().unwrap().dying.push(dying);
        self.doomed[client] = Some(Doom { loses_power, at });
        self.ends_at = at;
    }

    /// A client whose disk is dead is killed, and starts anew on what the disk has.
    pub(crate) async fn bury(&mut self, client: usize) {
        let Some(doom) = self.doomed[client] else { return };
        let is_met = self.weather.lock().unwrap().dying.iter().any(Dying::is_dead);
        if is_met || self.sim.now() >= doom.at {
            self.doomed[client] = None;
            self.weather.lock().unwrap().dying.clear();
            if is_met {
                self.log.count(Event::Disk(Owner::Cache, Fault::Cut));
            }
            let event = if doom.loses_power { Event::ClientLosesPower } else { Event::ClientKilled };
            self.log.count(event);
            self.restart_client(client, doom.loses_power).await;
        }
    }

    fn fail_partition(&mut self, site: usize, fault: Fault, lasts: Duration) {
        let (scene, now, restarts) = (self.scene(), self.sim.now(), self.random.random_bool(0.5));
        let disk = scene.world().disk(site).clone();
        let boot = disk.boot().unwrap();
        let failing = Failing::begin(disk, (Owner::Partition, fault), &mut self.random);
        self.ends_at = now + lasts + Duration::from_secs(3);
        self.note(&format!("the partition of server {site} fails: {fault:?}"));
        self.sim.spawn(Box::pin(async move {
            failing.end_at(now + lasts, scene.clone()).await;
            let failure = scene.world().sites[site].partition.failure();
            // A failed sync loses what a power loss would have.
            if failing.disk.boot().unwrap() != boot {
                let lost = (site, now - LOST_MAX, scene.sim.now());
                scene.aftermath.lock().unwrap().lost.push(lost);
            }
            if let Some(failure) = failure {
                scene.note(&format!("the volumes of server {site} are offline: {failure}"));
                scene.mend_partition(site, restarts).await;
            }
        }));
    }

    /// The list of promises cannot be written or read, and mostly the server is killed meanwhile.
    fn fail_promises(&mut self, site: usize, fault: Fault, lasts: Duration) {
        let (scene, until) = (self.scene(), self.sim.now() + lasts);
        let dies = fault == Fault::Unreadable || self.random.random_bool(0.7);
        let dies_at = self.sim.now() + lasts.mul_f64(self.random.random_range(0.0..0.8));
        let disk = scene.world().state_disk(site).clone();
        let mut failing = Failing::begin(disk, (Owner::Promises, fault), &mut self.random);
        self.ends_at = until + Duration::from_secs(3);
        self.note(&format!("the list of promises of server {site} fails: {fault:?}, it dies: {dies}"));
        self.sim.spawn(Box::pin(async move {
            if !dies {
                failing.end_at(until, scene).await;
                return;
            }
            scene.sim.sleep_until(dies_at).await;
            let knows_all = scene.world().crash(site, None);
            assert!(knows_all, "server {site} knows who holds promises\n{}", scene.log.end());
            failing.goes_on(scene.world().state_disk(site).clone());
            scene.note(&format!("server {site} dies"));
            let start = scene.start_site(site, until);
            join(start, failing.end_at(until, scene.clone())).await;
        }));
    }

    /// The databases cannot be changed, or the server is killed and cannot read them. It is started anew when that is over.
    fn fail_databases(&mut self, fault: Fault, lasts: Duration) {
        let (scene, until) = (self.scene(), self.sim.now() + lasts);
        let disk = scene.world().databases.disk().clone();
        let mut failing = Failing::begin(disk, (Owner::Databases, fault), &mut self.random);
        self.ends_at = until + Duration::from_secs(3);
        self.note(&format!("the disk of the databases fails: {fault:?}"));
        self.sim.spawn(Box::pin(async move {
            if fault == Fault::Unreadable {
                scene.world().databases.crash(None);
                failing.goes_on(scene.world().databases.disk().clone());
                let start = scene.start_databases(until);
                join(start, failing.end_at(until, scene.clone())).await;
            } else if failing.end_at(until, scene.clone()).await {
                scene.world().databases.crash(None);
                scene.start_databases(until).await;
            }
        }));
    }

    fn fail_cache(&mut self, client: usize, fault: Fault, lasts: Duration) {
        let (scene, until) = (self.scene(), self.sim.now() + lasts);
        let disk = self.caches[client].clone();
        let failing = Failing::begin(disk, (Owner::Cache, fault), &mut self.random);
        self.ends_at = until + Duration::from_secs(3);
        self.note(&format!("the cache of client {client} fails: {fault:?}"));
        self.sim.spawn(Box::pin(async move {
            if failing.end_at(until, scene.clone()).await {
                let mut aftermath = scene.aftermath.lock().unwrap();
                (aftermath.suspects[client], aftermath.failed_caches[client]) = (true, true);
            }
        }));
    }
}
