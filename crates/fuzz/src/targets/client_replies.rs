//! A client works in a cell whose servers' replies the input changes on their way. Whatever comes, it does not panic, gives each
//! operation a result within a bounded time, and serves others when the servers are sane again.
//!
//! The input is a list of changes of four bytes each: the kind, the place (two bytes) and a value. Every reply takes the next
//! change. A reply without a change comes as it is. The servers run in virtual time and are the same for all inputs of a thread;
//! the client is a new one each time.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use afs_celldb::caller::NoAuth;
use afs_celldb::store::CellStore;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Database, rx_service};
use afs_client::{Client, Error, Fid, OpenFlags, SetStatus, User};
use afs_config::{CellName, CellServDb};
use afs_fileserver::{FileServer, Volumes};
use afs_lab::real::folder::Folder;
use afs_volume::{Partition, SetStatus as VolumeStatus, Stamp, VnodeId, Volume};
use afs_wire::Uuid;
use afs_wire::ids::{AfsTime, HostAddr, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::Rxafs;
use afs_wire::vl::{self, SiteFlags};
use bytes::Bytes;
use rx::{Connection, Endpoint, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Interface};

use super::file_service::Nobody;
use crate::engine::Bound;
use crate::shape::Shape;
use afs_lab::sim::{bind, file_server_config, grant, make_volume};
use afs_sim::Sim;

/// The first input of a thread makes the servers, with the caches of their stores; each makes a client, with a cache of its own.
pub const BOUND: Bound = Bound { bytes_per_byte: 64, bytes: 192 << 20, time: Duration::from_secs(4) };

const CELL: &str = "fuzz.test";
const VOLUME: VolumeId = VolumeId(0x2000_0000);
const USER: User = User::of(65534);

/// Bytes of a request or reply that are passed on.
const MAX_BYTES: usize = 4 << 20;

/// The longest time that an operation may take, in virtual time: the client's patience, which some operations have several times.
const OPERATION_MAX: Duration = Duration::from_secs(3600);

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The rest of the input.
type Script = Arc<Mutex<std::vec::IntoIter<u8>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct World {
    sim: Sim,
    volume: Arc<Volume>,
    script: Script,
    /// The number of clients so far.
    clients: Cell<u32>,
    _server: FileServer,
    _endpoints: Vec<Endpoint>,
    _folder: Folder,
}

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    WORLD.with_borrow_mut(|slot| {
        // Taken out, so that after a panic the next input gets a new one.
        let world = slot.take().unwrap_or_else(World::new);
        let shape = world.run(input);
        *slot = Some(world);
        shape
    })
}

fn socket(net: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, net, 1], port))
}

fn stamp() -> Stamp {
    Stamp { who: ViceId::ANONYMOUS, now: AfsTime(1) }
}

impl World {
    fn new() -> Self {
        let folder = Folder::new("client");
        let partition = Partition::open(&folder, afs_volume::Config::default()).expect("there is room");
        let volume = make_volume(&partition, "root.cell", VOLUME);
        let sim = Sim::new(Duration::from_micros(100));
        let endpoint = bind(&sim, socket(1, 7000));
        let mut config = file_server_config(&sim, Uuid { time_low: 7, ..Uuid::default() });
        // The client is behind who passes calls on, where nobody answers.
        (config.introduction_wait, config.break_wait) = (Duration::from_millis(1), Duration::from_millis(1));
        let volumes: Arc<dyn Volumes> = Arc::new(vec![partition]);
        let server = FileServer::new(config, &endpoint, volumes, Arc::new(Nobody))
            .expect("it has no files of its own");
        endpoint.add_service(server.service(vec![Arc::new(Null)]));
        let location = bind(&sim, socket(1, 7003));
        let database = sim.block_on(async {
            let store: Arc<dyn CellStore> = Arc::new(MemoryStore::new());
            Arc::new(Database::<Vldb>::open(store).await.expect("it is empty"))
        });
        let seconds =
            || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as u32);
        let service = VlService::new(database, Arc::new(NoAuth), Arc::new(seconds), RestrictedQuery::AnyUser);
        location.add_service(rx_service::<vl::Vl, _>(Arc::new(service), vec![Arc::new(Null)]));
        let script = Script::default();
        let caller = bind(&sim, socket(2, 7000));
        fill_database(&sim, &caller);
        let file_door = pass_on(&sim, &caller, 7000, Rxafs::SERVICE_ID, &script);
        let location_door = pass_on(&sim, &caller, 7003, vl::Vl::SERVICE_ID, &script);
        let endpoints = vec![endpoint, location, caller, file_door, location_door];
        Self {
            sim,
            volume,
            script,
            clients: Cell::new(0),
            _server: server,
            _endpoints: endpoints,
            _folder: folder,
        }
    }

    fn run(&self, input: &[u8]) -> u64 {
        self.clean();
        let cell = CellName::new(CELL).expect("it is one");
        let text = format!(">{CELL} #\n10.0.0.1 #db\n");
        let cells = CellServDb::parse(&text, Path::new("CellServDB")).expect("it is one");
        let mut config = afs_client::Config::new(cell, cells);
        // What is left of the client before may still be at its address.
        let [_, _, high, low] = self.clients.replace(self.clients.get().wrapping_add(1)).to_be_bytes();
        config.bind = SocketAddr::from(([10, 1, high, low], 7001));
        config.patience = Duration::from_secs(20);
        *lock(&self.script) = Vec::from(input).into_iter();
        let (sim, script) = (self.sim.clone(), Arc::clone(&self.script));
        let shape = self.sim.block_on(async move {
            let client = Client::start_with(Arc::new(sim), config).await.expect("the port is free");
            let mut seen = Seen { client: client.clone(), shape: Shape::EMPTY };
            work(&mut seen).await;
            *lock(&script) = Vec::new().into_iter();
            let shape = seen.shape;
            client.shut_down().await;
            assert_eq!(client.endpoint().metrics().handler_panics, 0, "a handler has panicked");
            shape
        });
        shape.feature()
    }

    /// The volume as each input finds it.
    fn clean(&self) {
        let stamp = stamp();
        let (volume, set) = (&self.volume, VolumeStatus::default());
        for name in [&b"new"[..], b"moved", b"made", b"other"] {
            // Whichever of these the last input has left.
            let _ = volume.remove_file(VnodeId::ROOT, name, stamp);
            let _ = volume.remove_dir(VnodeId::ROOT, name, stamp);
        }
        if volume.lookup(VnodeId::ROOT, b"file").is_err() {
            volume.create_file(VnodeId::ROOT, b"file", &set, stamp).expect("there is room");
            volume.make_dir(VnodeId::ROOT, b"dir", &set, stamp).expect("there is room");
            volume.symlink(VnodeId::ROOT, b"link", b"dir", &set, stamp).expect("there is room");
        }
        grant(volume, &[(ViceId::SYSTEM_ANYUSER, Rights::ALL)]);
    }
}

/// The server that the database tells of is who passes calls on.
fn fill_database(sim: &Sim, caller: &Endpoint) {
    let address = std::net::Ipv4Addr::new(10, 0, 0, 1);
    let entry = afs_lab::sim::entry("root.cell", VOLUME, &[(address, SiteFlags::RW_VOL)]);
    let uuid = Uuid { time_low: 7, ..Uuid::default() };
    let addrs = XdrArray::new(vec![HostAddr::from(address)]).expect("it is one");
    let connection = caller.connect(socket(1, 7003), ServiceId(vl::Vl::SERVICE_ID), Box::new(Null));
    sim.block_on(async move {
        connection.rpc(&vl::RegisterAddrs { uuid, spare1: 0, addrs }).await.expect("it is empty");
        connection.rpc(&vl::CreateEntryN { entry }).await.expect("it is empty");
    });
}

/// A port to which the client's calls go: they are passed on to the server, and its replies back as the script has it.
fn pass_on(sim: &Sim, caller: &Endpoint, port: u16, service: u16, script: &Script) -> Endpoint {
    let endpoint = bind(sim, socket(0, port));
    let connection = caller.connect(socket(1, port), ServiceId(service), Box::new(Null));
    let script = Arc::clone(script);
    let service = Service {
        id: ServiceId(service),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig::new(service, move |call: ServerCall| {
        pass_one_on(call, connection.clone(), Arc::clone(&script))
    }));
    endpoint
}

async fn pass_one_on(mut call: ServerCall, connection: Connection, script: Script) -> Result<(), Abort> {
    let broken = |error: rx::CallError| Abort(error.code().0);
    let request = call.read_to_end(MAX_BYTES).await.map_err(broken)?;
    let answer = async {
        let mut onward = connection.call().await?;
        // A reply that begins early ends the request.
        let _ = onward.send(Bytes::from(request)).await;
        onward.finish()?;
        onward.read_to_end(MAX_BYTES).await
    };
    let reply = changed(answer.await.map_err(broken), &mut lock(&script))?;
    call.send(Bytes::from(reply)).await.map_err(broken)
}

/// Changes a reply.
fn changed(reply: Result<Vec<u8>, Abort>, script: &mut std::vec::IntoIter<u8>) -> Result<Vec<u8>, Abort> {
    let [Some(what), Some(high), Some(low), Some(value)] = std::array::from_fn(|_| script.next()) else {
        return reply;
    };
    let place = usize::from(u16::from_be_bytes([high, low]));
    let mut bytes = match (what % 10, reply) {
        // As it is, for the most part: else no operation would get far.
        (0..3, reply) => return reply,
        (3, _) => return Err(Abort(CODES[place % CODES.len()].wrapping_add(i32::from(value) / 64))),
        (_, Err(code)) => return Err(code),
        (_, Ok(bytes)) => bytes,
    };
    if bytes.is_empty() {
        return Ok(vec![value; place % 64]);
    }
    let at = place % bytes.len();
    // Words are where numbers, lengths and versions are.
    let word = at / 4 * 4..bytes.len().min(at / 4 * 4 + 4);
    match what % 10 {
        4 => bytes[at] ^= value,
        5 => bytes[word].fill(value),
        6 => bytes.truncate(at),
        7 => bytes.extend(vec![value; place % 4096]),
        8 => bytes[at..].fill(value),
        _ => drop(bytes.drain(word)),
    }
    Ok(bytes)
}

/// Codes that mean something to a client: VNOVNODE, VNOVOL, VMOVED, VBUSY, VOFFLINE, UNOQUORUM, an expired ticket, EIO, Rx's own.
const CODES: [i32; 12] = [102, 103, 111, 110, 106, 5377, 19_270_409, 5, -1, -3, -5, -450];

/// The client, and what came of its operations.
struct Seen {
    client: Client,
    shape: Shape,
}

impl Seen {
    /// Runs an operation, which has to end.
    async fn see<T>(&mut self, operation: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let began = self.client.now();
        let result = operation.await;
        let took = self.client.now().since(began);
        assert!(took < OPERATION_MAX, "an operation took {took:?}");
        match result {
            Ok(value) => {
                self.shape = self.shape.with(0);
                Some(value)
            }
            Err(error) => {
                // What is told has to be told.
                assert!(!error.to_string().is_empty());
                self.shape = self.shape.with(error.errno().0 as u64);
                None
            }
        }
    }
}

/// The work of a user in the cell.
async fn work(seen: &mut Seen) {
    const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false };
    const WRITE: OpenFlags = OpenFlags { read: true, write: true, truncate: false };
    let client = seen.client.clone();
    let name = format!(".{CELL}");
    let Some(root) = seen.see(client.lookup(USER, client.root(), name.as_bytes())).await else { return };
    let Some(root) = seen.see(client.target(USER, root.fid)).await else { return };
    if let Some(listing) = seen.see(client.read_dir(USER, root)).await {
        let fids: Vec<Fid> = listing.entries_from(0).map(|entry| entry.fid).take(200).collect();
        let known = client.statuses(USER, &fids).await.iter().filter(|status| status.is_ok()).count();
        seen.shape = seen.shape.with_count(fids.len()).with_count(known);
    }
    seen.see(client.volume_status(USER, root)).await;
    seen.see(client.access_list(USER, root)).await;
    if let Some(link) = seen.see(client.lookup(USER, root, b"link")).await {
        seen.see(client.readlink(USER, link.fid)).await;
    }
    if let Some(found) = seen.see(client.lookup(USER, root, b"file")).await
        && let Some(file) = seen.see(client.open(USER, found.fid, WRITE)).await
    {
        seen.see(file.write(10_000, Bytes::from(vec![7; 5000]))).await;
        seen.see(file.flush()).await;
        seen.see(file.truncate(12_000)).await;
        seen.see(file.fsync()).await;
        client.flush(USER, found.fid).await;
        seen.see(file.read(0, 20_000)).await;
        seen.see(client.set_status(USER, found.fid, SetStatus { mode: Some(0o640), ..SetStatus::default() }))
            .await;
    }
    seen.see(client.create(USER, root, b"new", 0o644)).await;
    seen.see(client.rename(USER, (root, &b"new"[..]), (root, &b"moved"[..]), false)).await;
    seen.see(client.make_dir(USER, root, b"made", 0o755)).await;
    seen.see(client.symlink(USER, root, b"other", b"target")).await;
    if let Some(found) = seen.see(client.lookup(USER, root, b"moved")).await
        && let Some(file) = seen.see(client.open(USER, found.fid, READ)).await
    {
        seen.see(file.read(0, 100_000)).await;
    }
    seen.see(client.remove(USER, root, b"moved")).await;
    seen.see(client.remove(USER, root, b"other")).await;
    seen.see(client.remove_dir(USER, root, b"made")).await;
    client.check_servers(None).await;
}
