//! The services of a cell beside the file service (VL, PR, AFSVol, BOZO and VOTE) get a sequence of calls, by nobody, a user, an
//! administrator and the cell itself. Whatever comes, each call is answered or refused, no handler panics, and what a restart
//! would find of the databases is what they last said.
//!
//! The input: calls, each a byte with the service in its lowest three bits and the caller in the next two, a byte that picks the
//! procedure, a length of two bytes and so many bytes of arguments. The databases, the transactions and the volumes are new
//! for each input, so that ids in it mean something: [`RW`] and its clone, transactions from 1, and what `furnish` makes.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use afs_celldb::caller::{Authority, Caller, Identity};
use afs_celldb::ptdb::{Administrator, PtService, Ptdb, Rules};
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::store::{CellStore, Transaction};
use afs_celldb::ubik::VoteService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Clock, Database, rx_service};
use afs_volserver::{Connecting, Partitions, Peers, VolumeService, Watcher};
use afs_volume::{NewClone, Partition, VolumeKind};
use afs_wire::afsvol::AfsVol;
use afs_wire::bos::Bozo;
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, SecurityLevel, ViceId, VolumeId};
use afs_wire::pt::{self, Pr};
use afs_wire::ubik::vote::Vote;
use afs_wire::vl::{self, Vl};
use bytes::Bytes;
use rx::{BoxFuture, Connection, Endpoint};
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass, ServerSecurity};
use rxgen::xdr::{CharVec, Uuid, XdrArray, XdrString};
use rxgen::{Interface, Rpc, RpcInfo};

use super::file_service::bind;
use crate::engine::Bound;
use crate::shape::Shape;
use afs_lab::caller::named::{Named, NamedServer};
use afs_lab::real::folder::Folder;
use afs_lab::sim::{make_volume, put_online, stamp};
use afs_sim::Sim;

/// The first input of a thread makes the servers, with the caches of their stores.
pub const BOUND: Bound = Bound { bytes_per_byte: 64, bytes: 128 << 20, time: Duration::from_secs(4) };

/// The services, in the order of their numbers in inputs.
pub const SERVICES: [(u16, &[RpcInfo]); 5] = [
    (Vl::SERVICE_ID, Vl::RPCS),
    (Pr::SERVICE_ID, Pr::RPCS),
    (AfsVol::SERVICE_ID, AfsVol::RPCS),
    (Bozo::SERVICE_ID, Bozo::RPCS),
    (Vote::SERVICE_ID, Vote::RPCS),
];

/// The callers, likewise: the first without a name.
pub const CALLERS: [&str; 4] = ["", "afs", "admin", "alice"];

/// Most calls of an input: so that few inputs have a call of every procedure.
pub const MAX_CALLS: usize = 16;

/// The volume of a new world, on partition `A`; its read-only clone has the next id.
pub const RW: VolumeId = VolumeId(0x2000_0006);
const RO: VolumeId = VolumeId(RW.0 + 1);

const A: PartitionId = PartitionId(0);
const B: PartitionId = PartitionId(1);

/// The bytes of a reply that are read.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// The time of all that happens.
const NOW: u32 = 1_700_000_000;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
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

/// A call as inputs have it, for those who make some: of the service with this number in [`SERVICES`], by the caller with this
/// one in [`CALLERS`].
///
/// # Panics
/// There is no such service, or the arguments are too long for an input.
pub fn encode_call(service: usize, caller: usize, which: usize, arguments: &[u8]) -> Vec<u8> {
    assert!(service < SERVICES.len() && caller < CALLERS.len() && which < 256, "there is no such call");
    let length = u16::try_from(arguments.len()).expect("an input is short");
    let mut call = vec![(service | caller << 3) as u8, which as u8];
    call.extend(length.to_be_bytes());
    call.extend(arguments);
    call
}

struct World {
    sim: Sim,
    server: Endpoint,
    /// The connections of each caller, one for each service.
    connections: Vec<[Connection; SERVICES.len()]>,
    partitions: Partitions,
    /// Rows of databases with something in them.
    furnished: Transaction,
    /// True if volumes may not be as they were.
    has_changed: Cell<bool>,
    _client: Endpoint,
    _folder: Folder,
}

impl World {
    fn new() -> Self {
        let folder = Folder::new("admin");
        let open = |id: PartitionId| {
            let path = folder.join(id.0.to_string());
            std::fs::create_dir_all(&path).expect("there is room for a partition");
            let partition = Partition::open(&path, afs_volume::Config::default());
            (id, partition.expect("a new partition opens"))
        };
        let partitions = Partitions::new([open(A), open(B)]);
        let sim = Sim::new(Duration::from_micros(100));
        let (server, client) = (bind(&sim, 1), bind(&sim, 2));
        let connect = |name: &str, service: u16| {
            let security: Box<dyn SecurityClass> = match name {
                "" => Box::new(Null),
                name => Box::new(Named { name: Some(name.to_owned()) }),
            };
            client.connect(server.local_addr(), ServiceId(service), security)
        };
        let connections = CALLERS.map(|name| SERVICES.map(|(service, _)| connect(name, service))).into();
        let etc = folder.join("etc");
        std::fs::create_dir_all(&etc).expect("there is room for a configuration");
        std::fs::write(etc.join("UserList"), "admin\n").expect("there is room for a configuration");
        server.add_service(afs_server::fuzzing::overseer(&etc, security()));
        let furnished = furnish(&sim);
        let has_changed = Cell::new(true);
        let (_client, _folder) = (client, folder);
        Self { sim, server, connections, partitions, furnished, has_changed, _client, _folder }
    }

    fn run(&self, input: &[u8]) -> u64 {
        if self.has_changed.take() {
            self.make_volumes();
        }
        let store: Arc<dyn CellStore> = Arc::new(MemoryStore::new());
        let (copy, furnished) = (Arc::clone(&store), self.furnished.clone());
        let committed = self.sim.block_on(async move { copy.commit(furnished).await });
        committed.expect("it is in memory");
        self.serve_databases(&store);
        self.serve_volumes();
        let mut shape = Shape::EMPTY;
        let mut rest = input;
        for _ in 0..MAX_CALLS {
            let [who, which, high, low, tail @ ..] = rest else { break };
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
            let (service, caller) = (usize::from(who & 7) % SERVICES.len(), usize::from(who >> 3 & 3));
            let rpcs = SERVICES[service].1;
            let opcode = rpcs[usize::from(*which) % rpcs.len()].opcode;
            let request = [&opcode.to_be_bytes()[..], &tail[..length]].concat();
            let code = self.call(service, caller, request).map_or_else(|code| code, |_| 0);
            shape = shape.with(service as u64).with(opcode.into()).with(u64::from(code as u32));
            self.has_changed.set(self.has_changed.get() || SERVICES[service].0 == AfsVol::SERVICE_ID);
            rest = &tail[length..];
        }
        let before = self.tell_all();
        assert_eq!(self.server.metrics().handler_panics, 0, "a handler has panicked");
        self.serve_databases(&store);
        assert_eq!(self.tell_all(), before, "a restart finds other databases");
        shape.feature()
    }

    /// Serves what is in a store, as after a start.
    fn serve_databases(&self, store: &Arc<dyn CellStore>) {
        let (vldb, ptdb) = open_databases(&self.sim, store);
        let vl = VlService::new(Arc::clone(&vldb), Arc::new(Names), clock(), RestrictedQuery::AnyUser);
        let pt = PtService::new(ptdb, Arc::new(Names), clock(), rules());
        let vote = VoteService::new(vldb, vec![Ipv4Addr::new(10, 0, 0, 1)], clock());
        self.server.add_service(rx_service::<Vl, _>(Arc::new(vl), security()));
        self.server.add_service(rx_service::<Pr, _>(Arc::new(pt), security()));
        self.server.add_service(rx_service::<Vote, _>(Arc::new(vote), security()));
    }

    /// Serves the volumes, without any transaction yet.
    fn serve_volumes(&self) {
        let mut config = afs_volserver::Config::new(|| AfsTime(NOW));
        // The task that looks for idle transactions ends when it looks next: few are to wait for that.
        config.idle_limit = Duration::from_secs(1);
        let (names, runtime) = (Arc::new(Names), Arc::new(self.sim.clone()));
        let (watcher, peers) = (Arc::new(NobodyWatches), Arc::new(NobodyIsThere));
        let service = VolumeService::new(self.partitions.clone(), names, watcher, peers, runtime, config);
        self.server.add_service(service.config(security()));
    }

    /// Makes the volumes anew, and no others.
    fn make_volumes(&self) {
        for (_, partition) in self.partitions.iter() {
            for volume in partition.volumes() {
                partition.delete_volume(volume.id()).expect("a volume can be removed");
            }
        }
        let partition = self.partitions.get(A).expect("it is one of them");
        make_volume(partition, "fuzz", RW)
            .change_info(|info| info.max_quota_kib = 5000)
            .expect("it is there");
        let new = NewClone { id: RO, name: "fuzz.readonly".to_owned(), kind: VolumeKind::ReadOnly };
        put_online(&partition.clone_volume(RW, &new, stamp()).expect("there is none"));
    }

    /// Asks for all that the databases tell of volumes, servers, users and groups.
    fn tell_all(&self) -> Vec<Vec<u8>> {
        let everything = vl::VldbListByAttributes {
            mask: vl::ListMask(0),
            server: HostAddr(0),
            partition: PartitionId(0),
            spares3: 0,
            volumeid: VolumeId(0),
            flag: vl::EntryFlags(0),
        };
        let flags = pt::ListEntriesFlags::USERS | pt::ListEntriesFlags::GROUPS;
        [
            (0, rxgen::encode_request(&vl::ListAttributesN { attributes: everything })),
            (0, rxgen::encode_request(&vl::GetAddrs { handle: 0, spare2: 0 })),
            (1, rxgen::encode_request(&pt::ListEntries { flags, start_index: 0 })),
            (1, rxgen::encode_request(&pt::ListMax {})),
        ]
        .map(|(service, request)| self.call(service, 1, request).expect("the cell is told everything"))
        .into()
    }

    /// Makes a call: its reply, or the code of its abort.
    fn call(&self, service: usize, caller: usize, request: Vec<u8>) -> Result<Vec<u8>, i32> {
        call(&self.sim, &self.connections[caller][service], request)
    }
}

fn call(sim: &Sim, connection: &Connection, request: Vec<u8>) -> Result<Vec<u8>, i32> {
    let connection = connection.clone();
    sim.block_on(async move {
        let mut call = connection.call().await.expect("the server takes calls");
        let result = async {
            // A reply that begins early ends the request.
            let _ = call.send(Bytes::from(request)).await;
            call.finish()?;
            call.read_to_end(MAX_REPLY_BYTES).await
        };
        result.await.map_err(|error| error.code().0)
    })
}

fn security() -> Vec<Arc<dyn ServerSecurity>> {
    vec![Arc::new(Null), Arc::new(NamedServer)]
}

fn clock() -> Clock {
    Arc::new(|| NOW)
}

fn rules() -> Rules {
    Rules { supergroups: Rules::DEBIAN_SUPERGROUPS, ..Rules::default() }
}

type Databases = (Arc<Database<Vldb>>, Arc<Database<Ptdb>>);

fn open_databases(sim: &Sim, store: &Arc<dyn CellStore>) -> Databases {
    let store = Arc::clone(store);
    sim.block_on(async move {
        let vldb = Database::<Vldb>::open(Arc::clone(&store)).await.expect("what was stored can be read");
        let ptdb = Database::<Ptdb>::open(store).await.expect("what was stored can be read");
        (Arc::new(vldb), Arc::new(ptdb))
    })
}

/// The rows of databases with a server of two addresses, two volumes, some users and groups.
fn furnish(sim: &Sim) -> Transaction {
    let memory = Arc::new(MemoryStore::new());
    let store: Arc<dyn CellStore> = memory.clone();
    let (vldb, ptdb) = open_databases(sim, &store);
    let endpoint = bind(sim, 3);
    let pt = PtService::new(ptdb, Arc::new(Names), clock(), rules());
    let pt = sim.block_on(async move {
        let administrator = Administrator { name: "admin".into(), id: None };
        pt.initialize(Some(&administrator)).await.expect("it is empty");
        pt
    });
    let vl = VlService::new(vldb, Arc::new(Names), clock(), RestrictedQuery::AnyUser);
    endpoint.add_service(rx_service::<Vl, _>(Arc::new(vl), security()));
    endpoint.add_service(rx_service::<Pr, _>(Arc::new(pt), security()));
    let the_cell = || Box::new(Named { name: Some("afs".to_owned()) });
    let connections = [Vl::SERVICE_ID, Pr::SERVICE_ID]
        .map(|service| endpoint.connect(endpoint.local_addr(), ServiceId(service), the_cell()));
    let make = |service: usize, request| {
        call(sim, &connections[service], request).expect("it is new and correct");
    };
    let addrs = XdrArray::new(vec![HostAddr(0x0a00_0001), HostAddr(0x0a00_0009)]).expect("two fit");
    let uuid = Uuid { time_low: 7, ..Uuid::default() };
    make(0, rxgen::encode_request(&vl::RegisterAddrs { uuid, spare1: 0, addrs }));
    for (name, id) in [("root.cell", RW.0), ("user.alice", RW.0 + 3)] {
        make(0, rxgen::encode_request(&vl::CreateEntryN { entry: entry(name, VolumeId(id)) }));
    }
    for (name, flag, owner) in [
        ("alice", pt::PRUSER, 0),
        ("bob", pt::PRUSER, 0),
        ("alice:friends", pt::PRGRP, 2),
        ("staff", pt::PRGRP, 1),
    ] {
        let name = XdrString::new(name).expect("it is short");
        make(1, rxgen::encode_request(&pt::NewEntry { name, flag, owner: ViceId(owner) }));
    }
    for uid in [2, 3] {
        make(1, rxgen::encode_request(&pt::AddToGroup { uid: ViceId(uid), gid: ViceId(-206) }));
    }
    endpoint.shut_down();
    let changes = memory.rows().into_iter().map(|(key, value)| (key, Some(value))).collect();
    Transaction { changes, ..Transaction::default() }
}

/// An entry of the location database: a volume and its read-only clone at one place.
///
/// # Panics
/// The name is too long.
pub fn entry(name: &str, id: VolumeId) -> vl::NvldbEntry {
    let mut entry = vl::NvldbEntry {
        name: CharVec::from_text(name).expect("it is short"),
        n_servers: 2,
        server_number: [HostAddr(0); vl::NMAXNSERVERS],
        server_partition: [PartitionId(0); vl::NMAXNSERVERS],
        server_flags: [vl::SiteFlags(0); vl::NMAXNSERVERS],
        volume_id: [id, VolumeId(id.0 + 1), VolumeId(0)],
        clone_id: VolumeId(0),
        flags: vl::EntryFlags::RW_EXISTS,
        match_index: 0,
        spares: [0; 8],
    };
    entry.server_number[..2].fill(HostAddr(0x0a00_0001));
    entry.server_flags[0] = vl::SiteFlags::RW_VOL;
    entry.server_flags[1] = vl::SiteFlags::RO_VOL;
    entry
}

/// The number in [`SERVICES`] of an interface, and that of a procedure in it.
///
/// # Panics
/// It is none of them.
pub fn numbers_of<I: Interface, R: Rpc>() -> (usize, usize) {
    let service = SERVICES.iter().position(|(id, _)| *id == I::SERVICE_ID).expect("it is one of them");
    let which = I::RPCS.iter().position(|rpc| rpc.opcode == R::OPCODE).expect("it is one of the interface");
    (service, which)
}

/// Everybody is who he says; the cell and `admin` are superusers.
#[derive(Debug)]
struct Names;

impl Authority for Names {
    fn caller(&self, _peer: SocketAddr, security: &str) -> Caller {
        let identity = match security {
            "" => Identity::Anonymous,
            "afs" => Identity::Cell,
            name => Identity::Local(name.to_owned()),
        };
        Caller { identity, is_superuser: afs_volserver::Authority::is_superuser(self, security) }
    }

    fn is_local_realm(&self, realm: &str) -> bool {
        realm.eq_ignore_ascii_case("fuzz.test")
    }

    fn is_noauth(&self) -> bool {
        false
    }
}

impl afs_volserver::Authority for Names {
    fn is_superuser(&self, identity: &str) -> bool {
        matches!(identity, "afs" | "admin")
    }
}

/// No other server can be called.
struct NobodyIsThere;

impl Peers for NobodyIsThere {
    fn connect(&self, _to: SocketAddr, _is_encrypted: bool, _least: SecurityLevel) -> Connecting<'_> {
        Box::pin(std::future::ready(Err("nobody is there".to_owned())))
    }
}

struct NobodyWatches;

impl Watcher for NobodyWatches {
    fn volume_changed(&self, _volume: VolumeId) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }
}
