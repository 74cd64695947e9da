//! A cell in one process and in virtual time: a location server, file servers with volumes, and clients. What takes minutes of
//! waiting takes none.
pub(crate) mod data;
pub(crate) mod databases;
pub(crate) mod laptop;
pub(crate) mod moving;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use afs_client::config::LocalUser;
use afs_client::{Client, Config, Fid, User};
use afs_config::{CellName, CellServDb};
use afs_fileserver::remembered::{Holder, Remembered};
use afs_fileserver::{Answer, FileServer, Membership, Protection, Volumes, WallClock};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{NewClone, NewVolume, Partition, Stamp, VnodeId, Volume, VolumeKind, VolumeState};
use afs_wire::Uuid;
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::vl::{self, EntryFlags, SiteFlags};
use rx::{Endpoint, EndpointConfig, Runtime};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_security::keys::{EncType, Key};
use rx_security::{KeySet, UnixTime, rxkad};
use rxgen::Interface;
use rxgen::xdr::{CharVec, XdrArray};

use afs_lab::real::folder::Folder;
use afs_sim::Sim;

use databases::{AsksPr, Databases};

pub(crate) const CELL: &str = "one.test";

/// `root.cell`, in which everybody may do everything.
pub(crate) const ROOT_CELL: VolumeId = VolumeId(0x2000_0000);
/// Its read-only volume.
pub(crate) const ROOT_CELL_RO: VolumeId = VolumeId(0x2000_0001);
/// `user`, another read-write volume, with no read-only one.
pub(crate) const USER_VOLUME: VolumeId = VolumeId(0x2000_0010);

/// The users: who calls without a ticket, and two who have one.
pub(crate) const NOBODY: User = User::of(65534);
pub(crate) const ALICE: User = User::of(1001);
pub(crate) const BOB: User = User::of(1002);

const ALICE_ID: ViceId = ViceId(1001);
const BOB_ID: ViceId = ViceId(1002);

/// Bytes of a segment of a log on a simulated disk.
pub(crate) const SMALL_LOG: u64 = 256 << 10;

pub(crate) const LOCATION: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);

/// The protection database of the tests.
struct People;

impl Protection for People {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async move {
            let id = match identity {
                "alice" => ALICE_ID,
                "bob" => BOB_ID,
                _ => return Ok(Membership::anonymous()),
            };
            Ok(Membership { id, groups: vec![id, ViceId::SYSTEM_ANYUSER, ViceId::SYSTEM_AUTHUSER] })
        })
    }

    fn host_groups(&self, _host: IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        let id = |name: &String| match name.as_str() {
            "alice" => Some(ALICE_ID),
            "bob" => Some(BOB_ID),
            "system:anyuser" => Some(ViceId::SYSTEM_ANYUSER),
            "system:authuser" => Some(ViceId::SYSTEM_AUTHUSER),
            _ => None,
        };
        Box::pin(async move { Ok(names.iter().map(id).collect()) })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        let name = |id: &ViceId| match *id {
            ALICE_ID => "alice".to_owned(),
            BOB_ID => "bob".to_owned(),
            ViceId::SYSTEM_ANYUSER => "system:anyuser".to_owned(),
            ViceId::SYSTEM_AUTHUSER => "system:authuser".to_owned(),
            other => other.to_string(),
        };
        Box::pin(async move { Ok(ids.iter().map(name).collect()) })
    }

    fn is_superuser(&self, _: &str) -> bool {
        false
    }
}

/// A file server at an address of its own.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) partition: Partition,
    /// Where the partition is; a folder of the machine's if there is none.
    disk: Option<SimulatedDisk>,
    /// Where the list of promises is.
    state: SimulatedDisk,
    uuid: Uuid,
    running: Option<(FileServer, Endpoint)>,
}

/// The cell.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) sites: Vec<Site>,
    keys: KeySet,
    pub(crate) databases: Databases,
    setup: Endpoint,
    /// Dropped last: servers write when they end. None if there are simulated disks for everything.
    folder: Option<Folder>,
}

/// What the folders of a world are in that has none of the machine's.
const NOWHERE: &str = "/nowhere";

/// Bytes of the disk on which a file server has its list of promises.
pub(crate) const STATE_BYTES: u64 = 1 << 20;

fn options() -> EndpointConfig {
    // What would happen every second for ever hides that nothing else is going to.
    EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() }
}

/// The user who sets a cell up, and the time.
pub(crate) fn stamp() -> Stamp {
    Stamp { who: ViceId(1), now: AfsTime(seconds(&Sim::new(Duration::ZERO))) }
}

fn seconds(sim: &Sim) -> u32 {
    UnixTime::of(sim.wall_clock()).0
}

fn open_partition(folder: &Path, disk: Option<&SimulatedDisk>) -> Partition {
    let Some(disk) = disk else {
        // What is still under way in virtual time when a test ends keeps the partition open, whose thread would make the folder anew.
        let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
        return Partition::open(folder, config).unwrap();
    };
    // Small, so that there are checkpoints within a test, and as a simulated disk is copied at each sync.
    let config = afs_volume::Config {
        reserve_kib: 0,
        cache_bytes: 1 << 20,
        log_bytes: SMALL_LOG,
        has_thread: false,
        ..afs_volume::Config::default()
    };
    Partition::open_on(Arc::new(disk.clone()), folder, config).unwrap()
}

fn socket(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], port))
}

impl World {
    /// A cell with one file server, which has `root.cell` and `user`, mounted at `user` in it.
    pub(crate) fn new() -> Self {
        let world = Self::with_sites(1);
        world.make_volume(0, "root.cell", ROOT_CELL);
        world.make_volume(0, "user", USER_VOLUME);
        world
    }

    /// A cell with so many file servers, and no volumes.
    pub(crate) fn with_sites(count: u8) -> Self {
        Self::with_disks(count, |_| None)
    }

    /// The same, with partitions on these disks.
    pub(crate) fn with_disks(count: u8, disk_of: impl Fn(u8) -> Option<SimulatedDisk>) -> Self {
        Self::with_all_disks(count, disk_of, None)
    }

    /// The same, with the databases on a disk too. The users are in them then, and file servers ask there who users are.
    pub(crate) fn with_all_disks(
        count: u8,
        disk_of: impl Fn(u8) -> Option<SimulatedDisk>,
        databases: Option<SimulatedDisk>,
    ) -> Self {
        let sim = Sim::new(Duration::from_millis(5));
        // Names of files are in messages, which are the same in each run of a world that has only simulated disks.
        let folder = (0..count).any(|number| disk_of(number).is_none()).then(|| Folder::new("client"));
        let keys = KeySet::of([Key::rxkad_krb5(1, EncType::AES256, &[7; 32])]).unwrap();
        let bind = |address| Endpoint::bind_with(Arc::new(sim.clone()), address, options()).unwrap();
        let setup = bind(socket(200, 7001));
        let has_people = databases.is_some();
        let databases = Databases::new(&sim, databases);
        if has_people {
            databases.make_people(&setup);
        }
        let sites = (0..count)
            .map(|number| {
                let path = in_folder(folder.as_ref(), &format!("vicep{}", char::from(b'a' + number)));
                let disk = disk_of(number);
                if disk.is_none() {
                    std::fs::create_dir_all(&path).unwrap();
                }
                let partition = open_partition(&path, disk.as_ref());
                let uuid = Uuid { time_low: 7000 + u32::from(number), ..Uuid::default() };
                let (address, state) = (socket(1 + number, 7000), SimulatedDisk::new(STATE_BYTES));
                Site { address, partition, disk, state, uuid, running: None }
            })
            .collect();
        let mut world = Self { sim, sites, keys, folder, databases, setup };
        for number in 0..count {
            world.start(number.into());
            let site = &world.sites[usize::from(number)];
            let IpAddr::V4(ip) = site.address.ip() else { unreachable!("made of IPv4 above") };
            let (uuid, addrs) = (site.uuid, XdrArray::new(vec![HostAddr::from(ip)]).unwrap());
            world.ask_location(vl::RegisterAddrs { uuid, spare1: 0, addrs });
        }
        world
    }

    /// Starts the file server of a site.
    pub(crate) fn start(&mut self, number: usize) {
        self.try_start(number).unwrap();
    }

    /// The same, where the disk of its list of promises may fail.
    pub(crate) fn try_start(&mut self, number: usize) -> std::io::Result<()> {
        let (sim, keys) = (self.sim.clone(), self.keys.clone());
        let site = &mut self.sites[number];
        let endpoint = Endpoint::bind_with(Arc::new(sim.clone()), site.address, options()).unwrap();
        let mut config = afs_fileserver::Config::new(site.uuid);
        config.promises = Some(Arc::new(site.state.clone()));
        let clock = sim.clone();
        config.clock =
            WallClock::new(move || clock.wall_clock().duration_since(SystemTime::UNIX_EPOCH).unwrap());
        let volumes: Arc<dyn Volumes> = Arc::new(vec![site.partition.clone()]);
        let people: Arc<dyn Protection> =
            if self.databases.has_people() { Arc::new(AsksPr::from(&endpoint)) } else { Arc::new(People) };
        let server = match FileServer::new(config, &endpoint, volumes, people) {
            Ok(server) => server,
            Err(error) => {
                endpoint.shut_down();
                return Err(error);
            }
        };
        let options = rxkad::ServerOptions::of_cell(CELL);
        let rxkad = rxkad::Server::new(keys, options, Arc::new(move || UnixTime(seconds(&sim))));
        endpoint.add_service(server.service(vec![Arc::new(Null), Arc::new(rxkad)]));
        site.running = Some((server, endpoint));
        Ok(())
    }

    /// Takes a site's port and serves nothing on it.
    pub(crate) fn bind_without_service(&self, number: usize) -> Endpoint {
        let runtime = Arc::new(self.sim.clone());
        Endpoint::bind_with(runtime, self.sites[number].address, options()).unwrap()
    }

    /// An address that nobody knows, with the port of a file server.
    pub(crate) fn stranger(&self) -> Endpoint {
        Endpoint::bind_with(Arc::new(self.sim.clone()), socket(66, 7000), options()).unwrap()
    }

    /// Ends the file server of a site as a crash does: it says nothing to anybody.
    pub(crate) fn stop(&mut self, number: usize) {
        let site = &mut self.sites[number];
        self.sim.cut_off(site.address);
        if let Some((server, endpoint)) = site.running.take() {
            endpoint.shut_down();
            drop(server);
        }
    }

    /// The process of a site is gone at once, or its machine if there is a seed: its disks are as they are found then. Says whether
    /// all who may hold promises are still in its list.
    pub(crate) fn kill(&mut self, number: usize, power_loss: Option<u64>) -> bool {
        self.stop(number);
        let site = &mut self.sites[number];
        let found = |disk: &SimulatedDisk, salt: u64| match power_loss {
            Some(seed) => disk.after_power_loss(seed ^ salt),
            None => disk.after_kill(),
        };
        let disk = found(site.disk.as_ref().expect("a disk that can fail"), 0);
        let before = holders(&site.state.after_kill());
        site.state = found(&site.state, 1);
        site.partition = open_partition(site.partition.folder(), Some(&disk));
        site.disk = Some(disk);
        before.is_subset(&holders(&site.state))
    }

    /// Has everybody who holds promises for the volumes of a site ask again.
    pub(crate) async fn tell_all(world: &Mutex<Self>, number: usize) {
        let (server, volumes) = {
            let world = world.lock().unwrap();
            let site = &world.sites[number];
            (site.running.as_ref().map(|(server, _)| server.clone()), site.partition.volumes())
        };
        let Some(server) = server else { return };
        for volume in volumes {
            server.volume_changed(volume.id()).await;
        }
    }

    /// The disk of a site that has one of its own.
    pub(crate) fn disk(&self, number: usize) -> &SimulatedDisk {
        self.sites[number].disk.as_ref().expect("a disk that can fail")
    }

    /// The disk on which a site has its list of promises.
    pub(crate) fn state_disk(&self, number: usize) -> &SimulatedDisk {
        &self.sites[number].state
    }

    /// The administrator's connection to a service of the database server.
    pub(crate) fn to_databases<I: Interface>(&self, port: u16) -> rx::Connection {
        self.setup.connect(SocketAddr::from((LOCATION, port)), ServiceId(I::SERVICE_ID), Box::new(Null))
    }

    fn ask_location<R: rxgen::Rpc + Sync + 'static>(&self, args: R) -> R::Reply {
        let to = SocketAddr::from((LOCATION, 7003));
        let connection = self.setup.connect(to, ServiceId(vl::Vl::SERVICE_ID), Box::new(Null));
        self.sim.block_on(async move { connection.rpc(&args).await }).unwrap()
    }

    /// Makes a volume at a site, whose root grants everything to everybody, and its entry.
    pub(crate) fn make_volume(&self, site: usize, name: &str, id: VolumeId) -> Arc<Volume> {
        let new = NewVolume {
            id,
            name: name.to_owned(),
            kind: VolumeKind::ReadWrite,
            parent: id,
            max_quota_kib: 0,
            with_root: true,
        };
        let volume = self.sites[site].partition.create_volume(&new, stamp()).unwrap();
        put_online(&volume);
        self.grant(site, id, &[(ViceId::SYSTEM_ANYUSER, Rights::ALL)]);
        self.set_entry(name, id, &[(site, SiteFlags::RW_VOL)]);
        volume
    }

    /// Has the VLDB say that a volume is at these sites; ids of read-only volumes are the next, of backup ones that after it.
    pub(crate) fn set_entry(&self, name: &str, id: VolumeId, sites: &[(usize, SiteFlags)]) {
        let mut entry = vl::NvldbEntry {
            name: CharVec::from_text(name).unwrap(),
            n_servers: sites.len() as i32,
            server_number: [HostAddr(0); vl::NMAXNSERVERS],
            server_partition: [PartitionId(0); vl::NMAXNSERVERS],
            server_flags: [SiteFlags(0); vl::NMAXNSERVERS],
            volume_id: [id, VolumeId(id.0 + 1), VolumeId(id.0 + 2)],
            clone_id: VolumeId(0),
            flags: EntryFlags::NONE,
            match_index: 0,
            spares: [0; 8],
        };
        for (place, &(site, flags)) in sites.iter().enumerate() {
            let IpAddr::V4(ip) = self.sites[site].address.ip() else { unreachable!("made of IPv4 above") };
            entry.server_number[place] = HostAddr::from(ip);
            entry.server_partition[place] = PartitionId(0);
            entry.server_flags[place] = flags;
            if flags.contains(SiteFlags::RW_VOL) {
                entry.flags |= EntryFlags::RW_EXISTS;
            }
            if flags.contains(SiteFlags::RO_VOL) {
                entry.flags |= EntryFlags::RO_EXISTS;
            }
            if flags.contains(SiteFlags::BACK_VOL) {
                entry.flags |= EntryFlags::BACK_EXISTS;
            }
        }
        let to = SocketAddr::from((LOCATION, 7003));
        let connection = self.setup.connect(to, ServiceId(vl::Vl::SERVICE_ID), Box::new(Null));
        self.sim
            .block_on(async move {
                let kind = afs_wire::ids::VolumeType::READ_WRITE;
                let _ = connection.rpc(&vl::DeleteEntry { volid: id, kind }).await;
                connection.rpc(&vl::CreateEntryN { entry }).await
            })
            .unwrap();
    }

    /// Makes the read-only volume of a volume at its site, or releases it anew.
    pub(crate) fn release(&self, site: usize, name: &str, id: VolumeId) -> Arc<Volume> {
        let partition = &self.sites[site].partition;
        let clone = VolumeId(id.0 + 1);
        let volume = if partition.volume(clone).is_ok() {
            partition.reclone_volume(id, clone, stamp()).unwrap()
        } else {
            let new = NewClone { id: clone, name: format!("{name}.readonly"), kind: VolumeKind::ReadOnly };
            partition.clone_volume(id, &new, stamp()).unwrap()
        };
        put_online(&volume);
        volume
    }

    /// Makes the backup volume of a volume at its site, and tells the VLDB.
    pub(crate) fn back_up(&self, site: usize, name: &str, id: VolumeId) {
        let backup = VolumeId(id.0 + 2);
        let new = NewClone { id: backup, name: format!("{name}.backup"), kind: VolumeKind::Backup };
        put_online(&self.sites[site].partition.clone_volume(id, &new, stamp()).unwrap());
        self.set_entry(name, id, &[(site, SiteFlags::RW_VOL | SiteFlags::BACK_VOL)]);
    }

    /// Has the VLDB know nothing of a volume any more.
    pub(crate) fn remove_entry(&self, id: VolumeId) {
        let kind = afs_wire::ids::VolumeType::READ_WRITE;
        self.ask_location(vl::DeleteEntry { volid: id, kind });
    }

    /// Gives something another name as a client does that asks only what the protocol allows.
    pub(crate) fn rename_at_server(&self, site: usize, dir: Fid, from: &[u8], to: &[u8]) {
        let (old_dir, new_dir) = (dir.in_cell(), dir.in_cell());
        let name = |name| afs_wire::ids::Name::new(name).unwrap();
        let args = afs_wire::rxafs::Rename { old_dir, old_name: name(from), new_dir, new_name: name(to) };
        let service = ServiceId(afs_wire::rxafs::Rxafs::SERVICE_ID);
        let connection = self.setup.connect(self.sites[site].address, service, Box::new(Null));
        self.sim.block_on(async move { connection.rpc(&args).await }).unwrap();
    }

    pub(crate) fn volume(&self, site: usize, id: VolumeId) -> Arc<Volume> {
        self.sites[site].partition.volume(id).unwrap()
    }

    /// Sets what the root directory of a volume grants.
    pub(crate) fn grant(&self, site: usize, id: VolumeId, entries: &[(ViceId, Rights)]) {
        let list = Acl { positive: entries.to_vec(), negative: Vec::new() };
        self.volume(site, id).set_acl(VnodeId::ROOT, &list, stamp()).unwrap();
    }

    /// How a client of the cell is set up, at an address of its own.
    pub(crate) fn config(&self, number: u8) -> Config {
        let cell = CellName::new(CELL).unwrap();
        let text = format!(">{CELL} #\n{LOCATION} #db\n>two.test #\n10.0.9.9 #nobody\n");
        let cells = CellServDb::parse(&text, Path::new("CellServDB")).unwrap();
        let mut config = Config::new(cell.clone(), cells);
        config.bind = socket(100 + number, 7001);
        config.users = [(ALICE, "alice"), (BOB, "bob")]
            .map(|(user, name)| LocalUser { uid: user.uid, cell: cell.clone(), name: name.to_owned() })
            .to_vec();
        config.keys = vec![(cell, self.keys.clone())];
        config
    }

    /// The keys that the servers have.
    pub(crate) fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// A client of the cell.
    pub(crate) fn client(&self, number: u8) -> Client {
        self.client_with(self.config(number))
    }

    /// A client that is set up otherwise.
    pub(crate) fn client_with(&self, config: Config) -> Client {
        self.client_on(Arc::new(self.sim.clone()), config)
    }

    /// A client on a machine of its own.
    pub(crate) fn client_on(&self, runtime: Arc<dyn Runtime>, config: Config) -> Client {
        self.sim.block_on(async move { Client::start_with(runtime, config).await }).unwrap()
    }

    /// The path of a folder that goes with the world.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        in_folder(self.folder.as_ref(), name)
    }

    /// Runs a test's work to its end, in virtual time.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(work)
    }
}

fn in_folder(folder: Option<&Folder>, name: &str) -> PathBuf {
    folder.map_or(Path::new(NOWHERE), |folder| folder.path()).join(name)
}

/// The holders in a list of promises, each with a volume.
fn holders(state: &SimulatedDisk) -> BTreeSet<(Holder, VolumeId)> {
    let (_, held) = Remembered::open(Arc::new(state.clone())).unwrap();
    let pairs = held
        .into_iter()
        .flat_map(|(holder, volumes)| volumes.into_iter().map(move |volume| (holder.clone(), volume)));
    pairs.collect()
}

fn put_online(volume: &Volume) {
    volume
        .change_info(|info| {
            info.in_service = true;
            info.destroy_me = false;
        })
        .unwrap();
    volume.set_state(VolumeState::Online);
}

/// The read-write root directory of the cell, by its name in the dynamic root.
pub(crate) async fn cell_root(client: &Client) -> Fid {
    let found = client.lookup(NOBODY, client.root(), format!(".{CELL}").as_bytes()).await.unwrap();
    client.target(NOBODY, found.fid).await.unwrap()
}

/// The names in a directory, sorted, without the dots.
pub(crate) async fn names(client: &Client, user: User, dir: Fid) -> Vec<String> {
    let listing = client.read_dir(user, dir).await.unwrap();
    let names = listing.entries_from(0).map(|entry| String::from_utf8_lossy(entry.name).into_owned());
    let mut names: Vec<_> = names.filter(|name| name != "." && name != "..").collect();
    names.sort();
    names
}

/// All bytes of a file.
pub(crate) async fn content(client: &Client, user: User, fid: Fid) -> Vec<u8> {
    let mut fetch = client.fetch(user, fid, 0, 1 << 30).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = fetch.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    fetch.end().await.unwrap();
    bytes
}

/// Writes all of a file.
pub(crate) async fn put(client: &Client, user: User, fid: Fid, bytes: &'static [u8]) {
    use afs_client::remote::{InMemory, StoreRange};
    let length = bytes.len() as u64;
    let range = StoreRange { pos: 0, length, file_length: length, modified: None, sync: false };
    client.store(user, fid, range, &InMemory { pos: 0, bytes: bytes.into() }).await.unwrap();
}
