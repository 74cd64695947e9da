//! A volume service on two partitions, called over loopback.
pub(crate) mod dumps;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_lab::caller::named::{Named, NamedServer};
use afs_lab::real::folder::Folder;
use afs_volserver::{Authority, Config, Connecting, NewIds, Partitions, Peers, VolumeService, Watcher};
use afs_volume::{Partition, VolumeState};
use afs_wire::afsvol::{
    AfsVol, AttachFlags, CreateVolume, DestServer, EndTrans, GetLevel, ListOneVolume, MayLoseLevel, SetFlags,
    SetLevel, TransCreate, VolintInfo, VolumeFlags,
};
use afs_wire::ids::{AfsTime, PartitionId, SecurityLevel, TransId, VolumeId, VolumeType};
use rx::{BoxFuture, Connection, Endpoint, EndpointConfig, WeakEndpoint};
use rx_proto::abort::AbortCode;
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass};
use rxgen::serve::{MAX_ARGUMENT_BYTES, receive_opcode};
use rxgen::xdr::XdrString;
use rxgen::{Abort, Dispatch, Rpc};

/// What any single step may take on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) const A: PartitionId = PartitionId(0);
pub(crate) const B: PartitionId = PartitionId(1);
pub(crate) const RW: VolumeId = VolumeId(536_870_918);
pub(crate) const RO: VolumeId = VolumeId(536_870_919);
pub(crate) const BACKUP: VolumeId = VolumeId(536_870_920);

/// Everybody is a superuser, or nobody.
#[derive(Default)]
pub(crate) struct Everybody(pub(crate) AtomicBool);

impl Authority for Everybody {
    fn is_superuser(&self, _: &str) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Writes down what it is told.
#[derive(Default)]
pub(crate) struct Changed(pub(crate) Mutex<Vec<VolumeId>>);

impl Watcher for Changed {
    fn volume_changed(&self, volume: VolumeId) -> BoxFuture {
        self.0.lock().unwrap().push(volume);
        Box::pin(std::future::ready(()))
    }
}

/// Calls other servers as nobody, or as somebody with the protection that is wanted.
struct Anonymous {
    endpoint: WeakEndpoint,
    levels: Arc<Mutex<Vec<SecurityLevel>>>,
    has_vldb: Arc<AtomicBool>,
    next_id: AtomicU32,
}

fn security(level: SecurityLevel) -> Box<dyn SecurityClass> {
    match level {
        SecurityLevel::CLEAR => Box::new(Null),
        level => Box::new(Named { name: Some(format!("somebody!{}", level.word().unwrap())) }),
    }
}

/// The opcodes of the procedures that set and tell levels.
const OF_LEVELS: [u32; 3] = [SetLevel::OPCODE, GetLevel::OPCODE, MayLoseLevel::OPCODE];

impl Peers for Anonymous {
    fn connect(&self, to: SocketAddr, _is_encrypted: bool, least: SecurityLevel) -> Connecting<'_> {
        self.levels.lock().unwrap().push(least);
        let endpoint = self.endpoint.upgrade().ok_or_else(|| "it ends".to_owned());
        let connected = endpoint.map(|endpoint| endpoint.connect(to, ServiceId(4), security(least)));
        Box::pin(std::future::ready(connected))
    }

    fn new_volume_ids(&self, count: u32) -> NewIds<'_> {
        let ids = match self.has_vldb.load(Ordering::Relaxed) {
            true => Ok(VolumeId(self.next_id.fetch_add(count, Ordering::Relaxed))),
            false => Err("it does not answer".to_owned()),
        };
        Box::pin(std::future::ready(ids))
    }
}

pub(crate) struct Lab {
    pub(crate) connection: Connection,
    pub(crate) partitions: Partitions,
    pub(crate) service: VolumeService,
    pub(crate) everybody: Arc<Everybody>,
    pub(crate) told: Arc<Changed>,
    /// The level at which the server has called each other one.
    pub(crate) levels: Arc<Mutex<Vec<SecurityLevel>>>,
    /// True if the location database gives the server volume ids.
    pub(crate) has_vldb: Arc<AtomicBool>,
    client: Endpoint,
    _server: Endpoint,
    /// Dropped last: partitions write when they close.
    folder: Arc<Folder>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        // A call that is still under way when a test ends keeps the partition open, whose thread would make the folder anew.
        let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
        Self::on(change, |folder| Partition::open(folder, config.clone()).unwrap())
    }

    pub(crate) fn on(change: impl FnOnce(&mut Config), open: impl Fn(&Path) -> Partition) -> Self {
        let folder = Folder::new("volserver");
        let open = |id: PartitionId| {
            let path = folder.join(format!("{}", id.0));
            std::fs::create_dir_all(&path).unwrap();
            (id, open(&path))
        };
        let partitions = Partitions::new([open(A), open(B)]);
        Self::of(change, partitions, Arc::new(folder))
    }

    /// A further server of the same volumes, otherwise configured. What is made at the first one does not go by these limits.
    pub(crate) fn beside(&self, change: impl FnOnce(&mut Config)) -> Self {
        Self::of(change, self.partitions.clone(), Arc::clone(&self.folder))
    }

    fn of(change: impl FnOnce(&mut Config), partitions: Partitions, folder: Arc<Folder>) -> Self {
        let bind = || Endpoint::bind("127.0.0.1:0".parse().unwrap(), EndpointConfig::default()).unwrap();
        let (server, client) = (bind(), bind());
        let everybody = Arc::new(Everybody(AtomicBool::new(true)));
        let told = Arc::<Changed>::default();
        let mut config = Config::new(|| AfsTime(1_700_000_000));
        change(&mut config);
        let runtime = Arc::clone(server.runtime());
        let levels = Arc::<Mutex<Vec<SecurityLevel>>>::default();
        let has_vldb = Arc::new(AtomicBool::new(true));
        let peers = Arc::new(Anonymous {
            endpoint: server.downgrade(),
            levels: Arc::clone(&levels),
            has_vldb: Arc::clone(&has_vldb),
            next_id: AtomicU32::new(536_880_000),
        });
        let service =
            VolumeService::new(partitions.clone(), everybody.clone(), told.clone(), peers, runtime, config);
        server.add_service(service.config(vec![Arc::new(Null), Arc::new(NamedServer)]));
        let connection = client.connect(server.local_addr(), ServiceId(4), Box::new(Null));
        Self {
            connection,
            partitions,
            service,
            everybody,
            told,
            levels,
            has_vldb,
            client,
            _server: server,
            folder,
        }
    }

    /// A server of before levels, which has the same volumes and no connection yet. It lasts as long as its endpoint.
    pub(crate) fn without_levels(&self) -> Endpoint {
        let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap(), EndpointConfig::default()).unwrap();
        let service = self.service.clone();
        let mut config = service.config(vec![Arc::new(Null), Arc::new(NamedServer)]);
        config.handler = Arc::new(move |mut call: rx::ServerCall| {
            let service = service.clone();
            async move {
                let opcode = receive_opcode(&mut call).await?;
                if OF_LEVELS.contains(&opcode) {
                    return Err(Abort::OPCODE);
                }
                AfsVol::dispatch(&service, opcode, &mut call, MAX_ARGUMENT_BYTES).await
            }
        });
        endpoint.add_service(config);
        endpoint
    }

    /// A connection that is protected so well.
    pub(crate) fn at(&self, level: SecurityLevel) -> Connection {
        self.client.connect(self.connection.peer(), ServiceId(4), security(level))
    }

    /// As another server has it to send to.
    pub(crate) fn destination(&self) -> DestServer {
        destination(self.connection.peer())
    }

    pub(crate) async fn call<R: Rpc>(&self, args: R) -> Result<R::Reply, AbortCode> {
        let reply = tokio::time::timeout(TIMEOUT, self.connection.rpc(&args)).await;
        reply.expect("an answer in time").map_err(|error| error.code())
    }

    pub(crate) async fn fails<R: Rpc>(&self, args: R, code: Abort)
    where
        R::Reply: std::fmt::Debug,
    {
        assert_eq!(self.call(args).await.unwrap_err(), AbortCode(code.0), "{}", R::NAME);
    }

    pub(crate) async fn begin(&self, volume: VolumeId, flags: AttachFlags) -> TransId {
        self.call(TransCreate { volume, partition: A, flags }).await.unwrap().trans
    }

    pub(crate) async fn end(&self, trans: TransId) -> i32 {
        self.call(EndTrans { trans }).await.unwrap().rcode
    }

    /// What `vos create` does.
    pub(crate) async fn create(&self, volid: VolumeId, name: &str) {
        let made = self.call(new_volume(volid, name)).await.unwrap();
        assert_eq!(made.volid, volid);
        self.call(SetFlags { trans: made.trans, flags: VolumeFlags::NONE }).await.unwrap();
        assert_eq!(self.end(made.trans).await, 0);
    }

    pub(crate) async fn one(&self, volid: VolumeId) -> VolintInfo {
        self.call(ListOneVolume { partition: A, volid }).await.unwrap().entries.into_vec().remove(0)
    }

    pub(crate) fn state(&self, volume: VolumeId) -> VolumeState {
        self.partitions.find(volume).unwrap().1.state()
    }

    pub(crate) fn told(&self) -> Vec<VolumeId> {
        std::mem::take(&mut *self.told.0.lock().unwrap())
    }
}

pub(crate) fn destination(at: SocketAddr) -> DestServer {
    let std::net::IpAddr::V4(host) = at.ip() else { panic!("{at}") };
    DestServer { host: host.into(), port: at.port().into(), ssid: 1 }
}

pub(crate) fn text<const MAX: usize>(text: &str) -> XdrString<MAX> {
    XdrString::new(text).unwrap()
}

pub(crate) fn new_volume(volid: VolumeId, name: &str) -> CreateVolume {
    let parent = VolumeId(0);
    CreateVolume { partition: A, name: text(name), kind: VolumeType::READ_WRITE, parent, volid }
}
