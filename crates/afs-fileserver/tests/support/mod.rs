//! What the tests share: a file server with a volume, and clients that write down what they are told, in one process and in
//! virtual time.
pub(crate) mod client;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afs_fileserver::{Config, FileServer, Volumes};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{Partition, Volume};
use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, ViceId, VolumeId};
use afs_wire::rights::Rights;
use rx::Endpoint;
use rx_proto::security::Null;

use afs_lab::caller::named::NamedServer;
use afs_lab::real::folder::Folder;
use afs_lab::sim::people::People;
use afs_lab::sim::{self, bind, file_server_config, open_partition};
pub(crate) use afs_lab::sim::{make_volume, put_online, stamp};
use afs_sim::Sim;
use client::Client;

pub(crate) const VOLUME: VolumeId = VolumeId(0x2000_0009);
pub(crate) const ROOT: AfsFid = AfsFid::root_of(VOLUME);
pub(crate) const ALL: Rights = Rights(127);
pub(crate) const READ: Rights = Rights(9);

pub(crate) const USER: ViceId = ViceId(1001);
pub(crate) const OTHER: ViceId = ViceId(1002);
pub(crate) const ADMIN: ViceId = ViceId(1);

/// The time of day when a test begins.
pub(crate) const MORNING: u32 = 1_780_000_000;

/// The group of friends, `user:friends`.
pub(crate) const FRIENDS: ViceId = ViceId(-300);

/// There are users 2001 to 2019, whose names are as long as names may be; but the last of them has one with a blank.
pub(crate) fn numbered_name(id: ViceId) -> String {
    if id.0 == 2019 { "bob 7".to_owned() } else { format!("{:0>59}{}", "x", id.0) }
}

/// The users and the group of the tests.
pub(crate) fn people() -> People {
    let named =
        [("admin", ADMIN), ("user1", USER), ("user", USER), ("other", OTHER), ("user:friends", FRIENDS)];
    let numbered = (2001..2020).map(ViceId).map(|id| (numbered_name(id), id));
    let people = People::new(named.map(|(name, id)| (name.to_owned(), id)).into_iter().chain(numbered));
    people.add(OTHER, FRIENDS);
    people
}

/// A file server, the network and the disk it is on.
pub(crate) struct Cell {
    pub(crate) sim: Sim,
    pub(crate) server: FileServer,
    pub(crate) endpoint: Endpoint,
    pub(crate) partition: Partition,
    _folder: Folder,
    /// Where the list of promises is.
    pub(crate) state: SimulatedDisk,
    pub(crate) people: People,
    starts: u8,
}

impl Cell {
    /// A server with [`VOLUME`], in which everybody may do everything.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same with other settings.
    pub(crate) fn with(configure: impl FnOnce(&mut Config)) -> Self {
        Self::on(|folder| open_partition(folder, None), configure)
    }

    /// The same on a disk of the test's.
    pub(crate) fn on_disk(disk: &SimulatedDisk) -> Self {
        let config =
            afs_volume::Config { reserve_kib: 0, has_thread: false, ..afs_volume::Config::default() };
        Self::on(|folder| Partition::open_on(Arc::new(disk.clone()), folder, config).unwrap(), |_| {})
    }

    fn on(open: impl FnOnce(&Path) -> Partition, configure: impl FnOnce(&mut Config)) -> Self {
        let (sim, folder) = (Sim::new(Duration::from_millis(5)), Folder::new("fileserver"));
        let partition = open(&folder);
        make_volume(&partition, "scratch", VOLUME);
        let (people, state) = (people(), SimulatedDisk::new(1 << 20));
        let (server, endpoint) = start(&sim, &partition, &state, &people, configure);
        Self { sim, server, endpoint, partition, _folder: folder, state, people, starts: 1 }
    }

    /// The server ends and starts again; its volumes and files stay.
    pub(crate) fn restart(&mut self, configure: impl FnOnce(&mut Config)) {
        self.endpoint.shut_down();
        self.starts += 1;
        (self.server, self.endpoint) =
            start(&self.sim, &self.partition, &self.state, &self.people, configure);
    }

    /// The same, with what a power loss leaves of the list of promises.
    pub(crate) fn restart_after_power_loss(&mut self, seed: u64) {
        self.state = self.state.after_power_loss(seed);
        self.restart(|_| {});
    }

    /// A client at an address of its own, without a name.
    pub(crate) fn client(&self, number: u8) -> Client {
        Client::new(&self.sim, &self.endpoint, number, None)
    }

    /// A client whose user has this name.
    pub(crate) fn client_of(&self, number: u8, name: &str) -> Client {
        Client::new(&self.sim, &self.endpoint, number, Some(name.to_owned()))
    }

    pub(crate) fn volume(&self) -> Arc<Volume> {
        self.partition.volume(VOLUME).unwrap()
    }

    /// Sets what the root directory grants.
    pub(crate) fn grant(&self, entries: &[(ViceId, Rights)]) {
        sim::grant(&self.volume(), entries);
    }

    /// Runs a test's work to its end, in virtual time.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(work)
    }
}

fn start(
    sim: &Sim,
    partition: &Partition,
    state: &SimulatedDisk,
    people: &People,
    configure: impl FnOnce(&mut Config),
) -> (FileServer, Endpoint) {
    let address = SocketAddr::from(([10, 0, 0, 1], 7000));
    let endpoint = bind(sim, address);
    let mut config = file_server_config(sim, Uuid { time_low: 7000, ..Uuid::default() });
    config.promises = Some(Arc::new(state.clone()));
    configure(&mut config);
    let volumes: Arc<dyn Volumes> = Arc::new(vec![partition.clone()]);
    let server = FileServer::new(config, &endpoint, volumes, Arc::new(people.clone())).unwrap();
    endpoint.add_service(server.service(vec![Arc::new(Null), Arc::new(NamedServer)]));
    (server, endpoint)
}
