//! A file server with a volume gets a sequence of calls, whose arguments, data and order the input has. Whatever comes, it
//! answers each call or refuses it, no handler panics, and it is as ready for the next one as before.
//!
//! The input: calls, each a byte that picks the procedure and, by its highest bit, whether nobody calls or an administrator, a
//! byte that picks the vnode which the first fid is made to name (as it is from 8 on), a length of two bytes and so many bytes
//! of arguments and data. The server runs in virtual time and is the same
//! for all inputs of a thread: its volume has what the inputs before have left of it, but for a few vnodes that are made
//! again.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use afs_fileserver::{Answer, FileServer, Membership, Protection, Volumes};
use afs_volume::{Partition, SetStatus, Stamp, VnodeId, Volume};
use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, AfsTime, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, Rxafs};
use bytes::Bytes;
use rx::{Connection, Endpoint};
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass};
use rxgen::Interface;

use crate::engine::Bound;
use crate::shape::Shape;
use afs_lab::caller::named::{Named, NamedServer};
use afs_lab::real::folder::Folder;
use afs_lab::sim;
use afs_sim::Sim;

/// The first input of a thread makes a server, with the caches of its store.
pub const BOUND: Bound = Bound { bytes_per_byte: 64, bytes: 128 << 20, time: Duration::from_secs(1) };

const VOLUME: VolumeId = VolumeId(0x2000_0009);
const ROOT: AfsFid = AfsFid::root_of(VOLUME);

/// Most KiB in the volume: what inputs have stored is all read again and again.
const QUOTA_KIB: u32 = 2048;

/// The bit of a procedure's byte that says who calls.
const BY_ADMINISTRATOR: u8 = 0x80;

/// The name of the administrator.
const ADMINISTRATOR: &str = "admin";

/// Most calls of an input.
const MAX_CALLS: usize = 12;

/// The bytes of a reply that are read.
const MAX_REPLY_BYTES: usize = 64 << 10;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

struct World {
    sim: Sim,
    endpoint: Endpoint,
    /// Nobody's, and the administrator's.
    connections: [Connection; 2],
    volume: Arc<Volume>,
    _client: Endpoint,
    _server: FileServer,
    _folder: Folder,
}

/// An endpoint in virtual time, of the machine of this number.
pub(super) fn bind(sim: &Sim, machine: u8) -> Endpoint {
    sim::bind(sim, SocketAddr::from(([10, 0, 0, machine], 7000)))
}

/// Everybody is nobody, but for the administrator.
pub(super) struct Nobody;

impl Protection for Nobody {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        let mut membership = Membership::anonymous();
        if self.is_superuser(identity) {
            let groups =
                [ViceId::SYSTEM_ANYUSER, ViceId::SYSTEM_AUTHUSER, ViceId::SYSTEM_ADMINISTRATORS, ViceId(1)];
            membership = Membership { id: ViceId(1), groups: groups.to_vec() };
        }
        Box::pin(async { Ok(membership) })
    }

    fn host_groups(&self, _host: IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        let id = |name: &String| name.parse().ok().map(ViceId).or(Some(ViceId::SYSTEM_ANYUSER));
        Box::pin(async move { Ok(names.iter().map(id).collect()) })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(ids.iter().map(ViceId::to_string).collect()) })
    }

    fn is_superuser(&self, identity: &str) -> bool {
        identity == ADMINISTRATOR
    }
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

impl World {
    fn new() -> Self {
        let folder = Folder::new("server");
        let partition =
            Partition::open(&folder, afs_volume::Config::default()).expect("a new partition opens");
        let volume = sim::make_volume(&partition, "fuzz", VOLUME);
        let sim = Sim::new(Duration::from_micros(100));
        let (endpoint, client) = (bind(&sim, 1), bind(&sim, 2));
        let mut config = sim::file_server_config(&sim, Uuid::default());
        // The client answers nothing, and is not waited for.
        (config.introduction_wait, config.break_wait) = (Duration::from_millis(1), Duration::from_millis(1));
        let volumes: Arc<dyn Volumes> = Arc::new(vec![partition]);
        let server = FileServer::new(config, &endpoint, volumes, Arc::new(Nobody))
            .expect("it has no files of its own");
        endpoint.add_service(server.service(vec![Arc::new(Null), Arc::new(NamedServer)]));
        let service = ServiceId(Rxafs::SERVICE_ID);
        let named = Named { name: Some(ADMINISTRATOR.to_owned()) };
        let security: [Box<dyn SecurityClass>; 2] = [Box::new(Null), Box::new(named)];
        let connections = security.map(|security| client.connect(endpoint.local_addr(), service, security));
        Self { sim, endpoint, connections, volume, _client: client, _server: server, _folder: folder }
    }

    /// Vnodes of each kind, made again where the inputs before have removed them.
    fn vnodes(&self) -> [AfsFid; 8] {
        let stamp = Stamp { who: ViceId::ANONYMOUS, now: AfsTime(1) };
        let named = |name: &[u8], kind: u8| {
            let (volume, set) = (&self.volume, SetStatus::default());
            let id = volume.lookup(VnodeId::ROOT, name).ok().or_else(|| {
                let made = match kind {
                    0 => volume.create_file(VnodeId::ROOT, name, &set, stamp),
                    1 => volume.make_dir(VnodeId::ROOT, name, &set, stamp),
                    _ => volume.symlink(VnodeId::ROOT, name, b"target", &set, stamp),
                };
                made.ok().map(|made| made.vnode.id)
            });
            let id = id.unwrap_or(VnodeId::ROOT);
            AfsFid { volume: VOLUME, vnode: id.vnode, unique: id.unique }
        };
        let nothing = AfsFid { volume: VOLUME, ..AfsFid::default() };
        let elsewhere = AfsFid::root_of(VolumeId(1));
        let (file, dir, link) = (named(b"file", 0), named(b"dir", 1), named(b"link", 2));
        [ROOT, file, dir, link, named(b"other", 0), named(b"sub", 1), nothing, elsewhere]
    }

    fn run(&self, input: &[u8]) -> u64 {
        let vnodes = self.vnodes();
        sim::grant(&self.volume, &[(ViceId::SYSTEM_ANYUSER, Rights::ALL)]);
        // Administrators have given it another quota, and taken it out of service.
        self.volume.change_info(|info| info.max_quota_kib = QUOTA_KIB).expect("it is there");
        sim::put_online(&self.volume);
        let mut shape = Shape::EMPTY;
        let mut rest = input;
        for _ in 0..MAX_CALLS {
            let [which, fid, high, low, tail @ ..] = rest else { break };
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
            let (opcode, request) = request(*which, vnodes.get(usize::from(*fid)), &tail[..length]);
            let caller = usize::from(which & BY_ADMINISTRATOR != 0);
            let code = self.call(caller, request);
            shape = shape.with(caller as u64).with(opcode.into()).with(u64::from(code as u32));
            rest = &tail[length..];
        }
        assert_eq!(self.call(0, request_of(rxafs::GetTime {})), 0, "the server answers");
        assert_eq!(self.endpoint.metrics().handler_panics, 0, "a handler has panicked");
        shape.feature()
    }

    /// Makes a call: 0, or the code of its abort.
    fn call(&self, caller: usize, request: Vec<u8>) -> i32 {
        let connection = self.connections[caller].clone();
        self.sim.block_on(async move {
            let mut call = connection.call().await.expect("the server takes calls");
            let result = async {
                // A reply that begins early ends the request.
                let _ = call.send(Bytes::from(request)).await;
                call.finish()?;
                call.read_to_end(MAX_REPLY_BYTES).await
            };
            result.await.map_or_else(|error| error.code().0, |_| 0)
        })
    }
}

/// A request of a procedure, whose first fid is this one.
fn request(which: u8, fid: Option<&AfsFid>, arguments: &[u8]) -> (u32, Vec<u8>) {
    let rpc = &Rxafs::RPCS[usize::from(which & !BY_ADMINISTRATOR) % Rxafs::RPCS.len()];
    let mut request = rpc.opcode.to_be_bytes().to_vec();
    request.extend(arguments);
    if let (Some(fid), Some(place)) = (fid, request.get_mut(4..16)) {
        place.copy_from_slice(&rxgen::xdr::to_bytes(fid));
    }
    (rpc.opcode, request)
}

fn request_of<R: rxgen::Rpc>(args: R) -> Vec<u8> {
    rxgen::encode_request(&args)
}
