//! A cell: a location server, file servers with volumes, and clients.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_client::config::LocalUser;
use afs_client::{Client, Config, Fid, OpenFlags, User};
use afs_config::{CellName, CellServDb};
use afs_fileserver::remembered::{Holder, Remembered};
use afs_fileserver::{FileServer, Protection, Volumes};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{NewClone, Partition, Volume, VolumeKind};
use afs_wire::Uuid;
use afs_wire::ids::{HostAddr, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::vl::{self, SiteFlags};
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, Runtime, ServerCall};
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, ServerSecurity};
use rx_security::keys::{EncType, Key, KeyType};
use rx_security::rxgk::{Dialect, Form};
use rx_security::time::Clock;
use rx_security::{KeySet, Level, UnixTime, rxgk, rxkad};
use rxgen::serve::receive_opcode;
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Interface};

use afs_sim::{Fate, Sim};

use super::databases::{AsksPr, Databases};
use super::files;
use super::people::People;
use super::{bind, file_server_config, open_partition, put_online, seconds, stamp};
use crate::real::folder::Folder;
use crate::sim;

/// Its name.
pub const CELL: &str = "one.test";

/// `root.cell`, in which everybody may do everything.
pub const ROOT_CELL: VolumeId = VolumeId(0x2000_0000);
/// Its read-only volume.
pub const ROOT_CELL_RO: VolumeId = VolumeId(0x2000_0001);
/// `user`, another read-write volume, with no read-only one.
pub const USER_VOLUME: VolumeId = VolumeId(0x2000_0010);

/// Somebody without a ticket.
pub const NOBODY: User = User::of(65534);
/// A user with a ticket.
pub const ALICE: User = User::of(1001);
/// Another one.
pub const BOB: User = User::of(1002);

pub(super) const ALICE_ID: ViceId = ViceId(1001);
pub(super) const BOB_ID: ViceId = ViceId(1002);

/// The address of the database server.
pub const LOCATION: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);

/// The users, where no database has them.
fn users() -> People {
    People::new([("alice", ALICE_ID), ("bob", BOB_ID)])
}

/// A file server at an address of its own.
pub struct Site {
    /// The address.
    pub address: SocketAddr,
    /// Its only partition.
    pub partition: Partition,
    /// Where the partition is; a folder of the machine's if there is none.
    disk: Option<SimulatedDisk>,
    /// Where the list of promises is.
    state: SimulatedDisk,
    uuid: Uuid,
    pub(super) running: Option<(FileServer, Endpoint)>,
}

/// The security classes of servers with these keys: nobody, and users with tickets and tokens made from them.
pub(super) fn classes(
    sim: &Sim,
    keys: &KeySet,
    file_server: Option<(&FileServer, Uuid)>,
) -> Vec<Arc<dyn ServerSecurity>> {
    let sim = sim.clone();
    let clock: Clock = Arc::new(move || UnixTime(seconds(&sim)));
    let options = rxkad::ServerOptions::of_cell(CELL);
    let rxkad = rxkad::Server::new(keys.clone(), options, Arc::clone(&clock));
    let options = rxgk::ServerOptions::of_cell(CELL);
    let rxgk = rxgk::Server::new(Dialect::OURS, keys.clone(), options, clock, [3; 32]);
    let rxgk = file_server.map_or(rxgk.clone(), |(server, uuid)| {
        rxgk.of_file_server(uuid).telling_callbacks(server.callback_classes())
    });
    vec![Arc::new(Null), Arc::new(rxkad), Arc::new(rxgk)]
}

/// The cell.
pub struct Cell {
    /// The network and the time.
    pub sim: Sim,
    /// The file servers.
    pub sites: Vec<Site>,
    keys: KeySet,
    /// The database server.
    pub databases: Databases,
    setup: Endpoint,
    /// Dropped last: servers write when they end. None if there are simulated disks for everything.
    folder: Option<Folder>,
}

impl Drop for Cell {
    /// Ends the world: its tasks hold it and the clients, and each of these the disk of its cache.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.sim.end();
        }
    }
}

/// What the folders of a cell are in that has none of the machine's.
const NOWHERE: &str = "/nowhere";

/// The environment variable that has all cells be such with a key for rxgk.
const RXGK: &str = "AFAR_SIM_RXGK";

/// Bytes of the disk on which a file server has its list of promises.
pub const STATE_BYTES: u64 = 1 << 20;

pub(super) fn socket(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], port))
}

impl Default for Cell {
    fn default() -> Self {
        Self::new()
    }
}

impl Cell {
    /// A cell with one file server, which has `root.cell` and `user`, mounted at `user` in it.
    pub fn new() -> Self {
        let cell = Self::with_sites(1);
        cell.make_volume(0, "root.cell", ROOT_CELL);
        cell.make_volume(0, "user", USER_VOLUME);
        cell
    }

    /// A cell with so many file servers, and no volumes.
    pub fn with_sites(count: u8) -> Self {
        Self::with_disks(count, |_| None)
    }

    /// The same, with partitions on these disks.
    pub fn with_disks(count: u8, disk_of: impl Fn(u8) -> Option<SimulatedDisk>) -> Self {
        Self::with_all_disks(count, disk_of, None)
    }

    /// The same, with the databases on a disk too. The users are in them then, and file servers ask there who users are.
    pub fn with_all_disks(
        count: u8,
        disk_of: impl Fn(u8) -> Option<SimulatedDisk>,
        databases: Option<SimulatedDisk>,
    ) -> Self {
        Self::with_keys(count, disk_of, databases, std::env::var_os(RXGK).is_some())
    }

    /// A cell with so many file servers, whose users come by rxgk or by rxkad.
    pub fn with_rxgk(count: u8, has_rxgk: bool) -> Self {
        Self::with_keys(count, |_| None, None, has_rxgk)
    }

    fn with_keys(
        count: u8,
        disk_of: impl Fn(u8) -> Option<SimulatedDisk>,
        databases: Option<SimulatedDisk>,
        has_rxgk: bool,
    ) -> Self {
        let sim = Sim::new(Duration::from_millis(5));
        // Names of files are in messages, which are the same in each run of a cell that has only simulated disks.
        let folder = (0..count).any(|number| disk_of(number).is_none()).then(|| Folder::new("client"));
        let rxgk = has_rxgk.then(|| Key::rxgk(1, EncType::AES256, &[9; 32]));
        let rxkad = Key::rxkad_krb5(1, EncType::AES256, &[7; 32]);
        let keys = KeySet::of([rxkad].into_iter().chain(rxgk)).unwrap();
        let setup = bind(&sim, socket(200, 7001));
        let has_people = databases.is_some();
        let databases = Databases::new(&sim, databases, keys.clone());
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
        let mut cell = Self { sim, sites, keys, folder, databases, setup };
        for number in 0..count {
            cell.start(number.into());
            let site = &cell.sites[usize::from(number)];
            let IpAddr::V4(ip) = site.address.ip() else { unreachable!("made of IPv4 above") };
            let (uuid, addrs) = (site.uuid, XdrArray::new(vec![HostAddr::from(ip)]).unwrap());
            cell.ask_location(vl::RegisterAddrs { uuid, spare1: 0, addrs });
            if cell.keys.newest(KeyType::RXGK).is_some() {
                cell.set_rxgk(number.into(), true);
            }
        }
        cell
    }

    /// Has the VLDB say that a site has rxgk, or has not, as the site says it by rxgk.
    pub fn set_rxgk(&self, number: usize, has_rxgk: bool) {
        let site = &self.sites[number];
        let IpAddr::V4(ip) = site.address.ip() else { unreachable!("made of IPv4 above") };
        let (uuid, addrs) = (site.uuid, XdrArray::new(vec![HostAddr::from(ip)]).unwrap());
        let spare1 = if has_rxgk { vl::REGISTERS_RXGK } else { 0 };
        let form = Form { dialect: Dialect::OURS, kind: EncType::AES256, level: Level::Crypt };
        let token = rxgk::Token::of_superuser(&self.keys, form, &mut StdRng::seed_from_u64(1)).unwrap();
        let sim = self.sim.clone();
        let clock = Arc::new(move || UnixTime(seconds(&sim)));
        let security = rxgk::Client::factory(token, clock, [number as u8; 32])();
        let to = SocketAddr::from((LOCATION, 7003));
        let connection = self.setup.connect(to, ServiceId(vl::Vl::SERVICE_ID), security);
        let args = vl::RegisterAddrs { uuid, spare1, addrs };
        self.sim.block_on(async move { connection.rpc(&args).await }).unwrap();
    }

    /// Starts the file server of a site.
    pub fn start(&mut self, number: usize) {
        self.try_start(number).unwrap();
    }

    /// The same, where the disk of its list of promises may fail.
    pub fn try_start(&mut self, number: usize) -> std::io::Result<()> {
        let (sim, keys) = (self.sim.clone(), self.keys.clone());
        let site = &mut self.sites[number];
        let endpoint = bind(&sim, site.address);
        let mut config = file_server_config(&sim, site.uuid);
        config.promises = Some(Arc::new(site.state.clone()));
        let volumes: Arc<dyn Volumes> = Arc::new(vec![site.partition.clone()]);
        let people: Arc<dyn Protection> =
            if self.databases.has_people() { Arc::new(AsksPr::from(&endpoint)) } else { Arc::new(users()) };
        let server = match FileServer::new(config, &endpoint, volumes, people) {
            Ok(server) => server,
            Err(error) => {
                endpoint.shut_down();
                return Err(error);
            }
        };
        endpoint.add_service(server.service(classes(&sim, &keys, Some((&server, site.uuid)))));
        site.running = Some((server, endpoint));
        Ok(())
    }

    /// Has a site refuse a procedure from now on, as servers do that do not have it.
    pub fn refuse(&self, number: usize, procedure: u32) {
        let site = &self.sites[number];
        let (server, endpoint) = site.running.as_ref().expect("it was not killed");
        let known = Some((server, site.uuid));
        let mut config = server.service(classes(&self.sim, &self.keys, known));
        let answers = Arc::clone(&config.handler);
        config.handler = Arc::new(move |mut call: ServerCall| {
            let answers = Arc::clone(&answers);
            async move {
                let opcode = receive_opcode(&mut call).await?;
                if opcode == procedure {
                    return Err(Abort::OPCODE);
                }
                call.unread(Bytes::copy_from_slice(&opcode.to_be_bytes()));
                answers.handle(call).await
            }
        });
        endpoint.add_service(config);
    }

    /// Takes a site's port and serves nothing on it.
    pub fn bind_without_service(&self, number: usize) -> Endpoint {
        bind(&self.sim, self.sites[number].address)
    }

    /// An address that nobody knows, with the port of a file server.
    pub fn stranger(&self) -> Endpoint {
        bind(&self.sim, socket(66, 7000))
    }

    /// Ends the file server of a site as a crash does: it says nothing to anybody.
    pub fn kill(&mut self, number: usize) {
        let site = &mut self.sites[number];
        self.sim.cut_off(site.address);
        if let Some((server, endpoint)) = site.running.take() {
            endpoint.shut_down();
            drop(server);
        }
    }

    /// The process of a site is gone at once, or its machine if there is a seed: its disks are as they are found then. Says whether
    /// all who may hold promises are still in its list.
    pub fn crash(&mut self, number: usize, power_loss: Option<u64>) -> bool {
        self.kill(number);
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
    pub async fn tell_all(cell: &Mutex<Self>, number: usize) {
        let (server, volumes) = {
            let cell = cell.lock().unwrap();
            let site = &cell.sites[number];
            (site.running.as_ref().map(|(server, _)| server.clone()), site.partition.volumes())
        };
        let Some(server) = server else { return };
        for volume in volumes {
            server.volume_changed(volume.id()).await;
        }
    }

    /// The disk of a site that has one of its own.
    pub fn disk(&self, number: usize) -> &SimulatedDisk {
        self.sites[number].disk.as_ref().expect("a disk that can fail")
    }

    /// The disk on which a site has its list of promises.
    pub fn state_disk(&self, number: usize) -> &SimulatedDisk {
        &self.sites[number].state
    }

    /// The administrator's connection to a service of the database server.
    pub fn to_databases<I: Interface>(&self, port: u16) -> rx::Connection {
        self.setup.connect(SocketAddr::from((LOCATION, port)), ServiceId(I::SERVICE_ID), Box::new(Null))
    }

    fn ask_location<R: rxgen::Rpc + Sync + 'static>(&self, args: R) -> R::Reply {
        let to = SocketAddr::from((LOCATION, 7003));
        let connection = self.setup.connect(to, ServiceId(vl::Vl::SERVICE_ID), Box::new(Null));
        self.sim.block_on(async move { connection.rpc(&args).await }).unwrap()
    }

    /// Makes a volume at a site, whose root grants everything to everybody, and its entry.
    pub fn make_volume(&self, site: usize, name: &str, id: VolumeId) -> Arc<Volume> {
        let volume = sim::make_volume(&self.sites[site].partition, name, id);
        self.set_entry(name, id, &[(site, SiteFlags::RW_VOL)]);
        volume
    }

    /// Has the VLDB say that a volume is at these sites; ids of read-only volumes are the next, of backup ones that after it.
    pub fn set_entry(&self, name: &str, id: VolumeId, sites: &[(usize, SiteFlags)]) {
        let of_site = |&(site, flags): &(usize, SiteFlags)| match self.sites[site].address.ip() {
            IpAddr::V4(ip) => (ip, flags),
            IpAddr::V6(_) => unreachable!("made of IPv4 above"),
        };
        let entry = sim::entry(name, id, &sites.iter().map(of_site).collect::<Vec<_>>());
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
    pub fn release(&self, site: usize, name: &str, id: VolumeId) -> Arc<Volume> {
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
    pub fn back_up(&self, site: usize, name: &str, id: VolumeId) {
        let backup = VolumeId(id.0 + 2);
        let new = NewClone { id: backup, name: format!("{name}.backup"), kind: VolumeKind::Backup };
        put_online(&self.sites[site].partition.clone_volume(id, &new, stamp()).unwrap());
        self.set_entry(name, id, &[(site, SiteFlags::RW_VOL | SiteFlags::BACK_VOL)]);
    }

    /// Has the VLDB know nothing of a volume any more.
    pub fn remove_entry(&self, id: VolumeId) {
        let kind = afs_wire::ids::VolumeType::READ_WRITE;
        self.ask_location(vl::DeleteEntry { volid: id, kind });
    }

    /// Gives something another name as a client does that asks only what the protocol allows.
    pub fn rename_at_server(&self, site: usize, dir: Fid, from: &[u8], to: &[u8]) {
        let (old_dir, new_dir) = (dir.in_cell(), dir.in_cell());
        let name = |name| afs_wire::ids::Name::new(name).unwrap();
        let args = afs_wire::rxafs::Rename { old_dir, old_name: name(from), new_dir, new_name: name(to) };
        let service = ServiceId(afs_wire::rxafs::Rxafs::SERVICE_ID);
        let connection = self.setup.connect(self.sites[site].address, service, Box::new(Null));
        self.sim.block_on(async move { connection.rpc(&args).await }).unwrap();
    }

    /// A volume at a site.
    pub fn volume(&self, site: usize, id: VolumeId) -> Arc<Volume> {
        self.sites[site].partition.volume(id).unwrap()
    }

    /// Sets what the root directory of a volume grants.
    pub fn grant(&self, site: usize, id: VolumeId, entries: &[(ViceId, Rights)]) {
        sim::grant(&self.volume(site, id), entries);
    }

    /// How a client of the cell is set up, at an address of its own.
    pub fn config(&self, number: u8) -> Config {
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
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// A client of the cell.
    pub fn client(&self, number: u8) -> Client {
        self.client_with(self.config(number))
    }

    /// A client that is set up otherwise.
    pub fn client_with(&self, config: Config) -> Client {
        self.client_on(Arc::new(self.sim.clone()), config)
    }

    /// A client on a machine of its own.
    pub fn client_on(&self, runtime: Arc<dyn Runtime>, config: Config) -> Client {
        self.sim.block_on(async move { Client::start_with(runtime, config).await }).unwrap()
    }

    /// The path of a folder that goes with the cell.
    pub fn folder(&self, name: &str) -> PathBuf {
        in_folder(self.folder.as_ref(), name)
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let sim = self.sim.clone();
        self.run(async move { sim.sleep_until(sim.now() + time).await });
    }

    /// Parts a client from the network: nothing gets to it or from it, until it is let in again.
    pub fn cut_off(&self, client: &Client) {
        let away = client.address();
        self.sim.set_network(move |_, from, to, _| match [from, to].contains(&away) {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::ZERO),
        });
    }

    /// Lets all clients in again.
    pub fn let_in(&self) {
        self.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::ZERO));
    }

    /// Writes a text as all of a file in the root directory of the cell, which is made if it is not there, and closes it.
    pub fn write(&self, client: &Client, name: &'static str, text: &'static str) {
        let client = client.clone();
        self.run(async move {
            let root = cell_root(&client).await;
            let file = match client.lookup(NOBODY, root, name.as_bytes()).await {
                Ok(found) => {
                    let flags = OpenFlags { truncate: true, ..files::WRITE };
                    client.open(NOBODY, found.fid, flags).await.unwrap()
                }
                Err(_) => files::make(&client, name).await,
            };
            file.write(0, text.into()).await.unwrap();
            file.flush().await.unwrap();
        });
    }

    /// Opens a file in the root directory of the cell, and reads all of it.
    pub fn read(&self, client: &Client, name: &'static str) -> String {
        let client = client.clone();
        let bytes =
            self.run(async move { files::read_all(&files::open(&client, name, files::READ).await).await });
        String::from_utf8(bytes).expect("a text")
    }

    /// Runs a test's work to its end, in virtual time.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(work)
    }

    /// The same of work with a client, which the test goes on to use.
    pub fn run_with<T: Send + 'static, W: Future<Output = T> + Send + 'static>(
        &self,
        client: &Client,
        work: impl FnOnce(Client) -> W,
    ) -> T {
        self.run(work(client.clone()))
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

/// The read-write root directory of the cell, by its name in the dynamic root.
pub async fn cell_root(client: &Client) -> Fid {
    let found = client.lookup(NOBODY, client.root(), format!(".{CELL}").as_bytes()).await.unwrap();
    client.target(NOBODY, found.fid).await.unwrap()
}

/// The names in a directory, sorted, without the dots.
pub async fn names(client: &Client, user: User, dir: Fid) -> Vec<String> {
    let listing = client.read_dir(user, dir).await.unwrap();
    let names = listing.entries_from(0).map(|entry| String::from_utf8_lossy(entry.name).into_owned());
    let mut names: Vec<_> = names.filter(|name| name != "." && name != "..").collect();
    names.sort();
    names
}

/// All bytes of a file.
pub async fn content(client: &Client, user: User, fid: Fid) -> Vec<u8> {
    let mut fetch = client.fetch(user, fid, 0, 1 << 30).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = fetch.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    fetch.end().await.unwrap();
    bytes
}

/// Writes all of a file.
pub async fn put(client: &Client, user: User, fid: Fid, bytes: &'static [u8]) {
    use afs_client::streams::{InMemory, StoreRange};
    let length = bytes.len() as u64;
    let range =
        StoreRange { pos: 0, length, file_length: length, modified: None, sync: false, is_hasty: false };
    client.store(user, fid, range, &InMemory { pos: 0, bytes: bytes.into() }).await.unwrap();
}
