//! What the tests share: a file server with a volume, and clients that write down what they are told, in one process and in
//! virtual time.
pub(crate) mod client;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afs_fileserver::{Answer, Config, FileServer, Membership, Protection, Volumes, WallClock};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{NewVolume, Partition, Stamp, VnodeId, Volume, VolumeKind, VolumeState};
use afs_wire::Uuid;
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsFid, AfsTime, ViceId, VolumeId};
use afs_wire::rights::Rights;
use rx::{Endpoint, EndpointConfig, Runtime};
use rx_proto::security::Null;

use afs_lab::caller::named::NamedServer;
use afs_lab::real::folder::Folder;
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
pub(crate) const MORNING: u32 = 1_795_190_000;

/// The protection database of the tests.
#[derive(Clone, Default)]
pub(crate) struct People {
    /// Whether `user` has been put into `user:friends`.
    pub(crate) user_is_friend: Arc<AtomicBool>,
    /// Whether all hosts have.
    pub(crate) hosts_are_friends: Arc<AtomicBool>,
}

/// The group of friends, `user:friends`.
pub(crate) const FRIENDS: ViceId = ViceId(-300);

/// Names and ids; `admin` administers.
const NAMES: &[(&str, ViceId)] = &[
    ("admin", ADMIN),
    ("user1", USER),
    ("user", USER),
    ("other", OTHER),
    ("system:anyuser", ViceId::SYSTEM_ANYUSER),
    ("system:authuser", ViceId::SYSTEM_AUTHUSER),
    ("system:administrators", ViceId::SYSTEM_ADMINISTRATORS),
    ("user:friends", FRIENDS),
];

/// There are users 2001 to 2019, whose names are as long as names may be; but the last of them has one with a blank.
pub(crate) fn numbered_name(id: ViceId) -> String {
    if id.0 == 2019 { "bob 7".to_owned() } else { format!("{:0>59}{}", "x", id.0) }
}

impl Protection for People {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async move {
            let Some((name, id)) = NAMES.iter().find(|(name, _)| *name == identity) else {
                return Ok(Membership::anonymous());
            };
            let mut groups = vec![*id, ViceId::SYSTEM_ANYUSER, ViceId::SYSTEM_AUTHUSER];
            if *name == "admin" {
                groups.push(ViceId::SYSTEM_ADMINISTRATORS);
            }
            if *name == "other" || *name == "user" && self.user_is_friend.load(Ordering::Relaxed) {
                groups.push(FRIENDS);
            }
            Ok(Membership { id: *id, groups })
        })
    }

    fn host_groups(&self, _host: IpAddr) -> Answer<'_, Vec<ViceId>> {
        let are_friends = self.hosts_are_friends.load(Ordering::Relaxed);
        Box::pin(async move { Ok(are_friends.then_some(FRIENDS).into_iter().collect()) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        let numbered = |name: &String| (2001..2020).map(ViceId).find(|id| numbered_name(*id) == *name);
        let id = move |name: &String| {
            NAMES.iter().find(|(known, _)| known == name).map(|(_, id)| *id).or_else(|| numbered(name))
        };
        Box::pin(async move { Ok(names.iter().map(id).collect()) })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        let name = |id: &ViceId| {
            let found = NAMES.iter().find(|(_, known)| known == id);
            match found {
                Some((name, _)) => (*name).to_owned(),
                None if (2001..2020).contains(&id.0) => numbered_name(*id),
                None => id.to_string(),
            }
        };
        Box::pin(async move { Ok(ids.iter().map(name).collect()) })
    }

    fn is_superuser(&self, identity: &str) -> bool {
        identity == "admin"
    }
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
        // What is still under way in virtual time when a test ends keeps the partition open, whose thread would make the folder anew.
        let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
        Self::on(|folder| Partition::open(folder, config).unwrap(), configure)
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
        make_volume(&partition, VOLUME, "scratch");
        let (people, state) = (People::default(), SimulatedDisk::new(1 << 20));
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
        let list = Acl { positive: entries.to_vec(), negative: Vec::new() };
        self.volume().set_acl(VnodeId::ROOT, &list, stamp()).unwrap();
    }

    /// Runs a test's work to its end, in virtual time.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(work)
    }
}

pub(crate) fn stamp() -> Stamp {
    Stamp { who: ADMIN, now: AfsTime(MORNING) }
}

/// Makes a volume, online, whose root grants everything to everybody.
pub(crate) fn make_volume(partition: &Partition, id: VolumeId, name: &str) -> Arc<Volume> {
    let new = NewVolume {
        id,
        name: name.to_owned(),
        kind: VolumeKind::ReadWrite,
        parent: id,
        max_quota_kib: 0,
        with_root: true,
    };
    let volume = partition.create_volume(&new, stamp()).unwrap();
    put_online(&volume);
    let list = Acl { positive: vec![(ViceId::SYSTEM_ANYUSER, ALL)], negative: Vec::new() };
    volume.set_acl(VnodeId::ROOT, &list, stamp()).unwrap();
    volume
}

pub(crate) fn put_online(volume: &Volume) {
    volume
        .change_info(|info| {
            info.in_service = true;
            info.destroy_me = false;
        })
        .unwrap();
    volume.set_state(VolumeState::Online);
}

fn start(
    sim: &Sim,
    partition: &Partition,
    state: &SimulatedDisk,
    people: &People,
    configure: impl FnOnce(&mut Config),
) -> (FileServer, Endpoint) {
    let address = SocketAddr::from(([10, 0, 0, 1], 7000));
    // What would happen every second for ever hides that nothing else is going to.
    let options = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
    let endpoint = Endpoint::bind_with(Arc::new(sim.clone()), address, options).unwrap();
    let mut config = Config::new(Uuid { time_low: 7000, ..Uuid::default() });
    let clock = sim.clone();
    config.clock = WallClock::new(move || {
        Duration::from_secs(MORNING.into()) + Duration::from_nanos(clock.now().as_nanos())
    });
    config.promises = Some(Arc::new(state.clone()));
    configure(&mut config);
    let volumes: Arc<dyn Volumes> = Arc::new(vec![partition.clone()]);
    let server = FileServer::new(config, &endpoint, volumes, Arc::new(people.clone())).unwrap();
    endpoint.add_service(server.service(vec![Arc::new(Null), Arc::new(NamedServer)]));
    (server, endpoint)
}
