//! A cell in this process, in real time: a location server and a file server at an address of the loopback interface, with a volume in memory in
//! which everybody may do everything, and clients, each of which serves a kernel of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afs_celldb::caller::NoAuth;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Database, rx_service};
use afs_client::{Client, Config};
use afs_config::{CellName, CellServDb};
use afs_fileserver::{Answer, FileServer, Membership, Protection};
use afs_fuse::{Options, Served};
use afs_lab::real::address::own_address;
use afs_volume::disk::SimulatedDisk;
use afs_volume::{NewVolume, Partition, Stamp, VnodeId, VolumeKind, VolumeState};
use afs_wire::Uuid;
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::vl::{self, EntryFlags, SiteFlags};
use fuse_dev::Device;
use rx::{Endpoint, EndpointConfig};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;
use rxgen::xdr::CharVec;
use tokio::runtime::{Builder, Runtime};

use crate::kernel::Kernel;

const CELL: &str = "one.test";
const ROOT_CELL: VolumeId = VolumeId(0x2000_0000);
const STAMP: Stamp = Stamp { who: ViceId(1), now: AfsTime(1_700_000_000) };

/// The cell. Its files are in the folder of its name in each mount.
pub(crate) struct Cell {
    // In this order: clients end before their servers, and all before the runtime.
    mounts: Vec<(Kernel, Served, Client)>,
    /// With a runtime of its own: its tasks hold its port.
    files: Option<(FileServer, Endpoint, Runtime)>,
    location: Endpoint,
    partition: Partition,
    /// Where the list of who holds promises is.
    promises: SimulatedDisk,
    address: Ipv4Addr,
    runtime: Runtime,
}

/// Nobody has a name.
struct Nobody;

impl Protection for Nobody {
    fn membership<'a>(&'a self, _: &'a str) -> Answer<'a, Membership> {
        Box::pin(async { Ok(Membership::anonymous()) })
    }

    fn host_groups(&self, _: std::net::IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        Box::pin(async move { Ok(vec![None; names.len()]) })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(ids.iter().map(ToString::to_string).collect()) })
    }

    fn is_superuser(&self, _: &str) -> bool {
        false
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl Cell {
    pub(crate) fn new() -> Self {
        let runtime = runtime();
        let _entered = runtime.enter();
        let address = own_address();
        let location =
            Endpoint::bind(SocketAddr::from((address, vl::Vl::PORT)), EndpointConfig::default()).unwrap();
        let vldb: Arc<Database<Vldb>> =
            Arc::new(runtime.block_on(Database::open(Arc::new(MemoryStore::new()))).unwrap());
        let vl = VlService::new(vldb, Arc::new(NoAuth), Arc::new(|| STAMP.now.0), RestrictedQuery::AnyUser);
        location.add_service(rx_service::<vl::Vl, _>(Arc::new(vl), vec![Arc::new(Null)]));
        let config = afs_volume::Config {
            has_thread: false,
            reserve_kib: 0,
            cache_bytes: 1 << 20,
            log_bytes: 256 << 10,
            ..Default::default()
        };
        let disk = Arc::new(SimulatedDisk::new(256 << 20));
        let partition = Partition::open_on(disk, Path::new("/nowhere"), config).unwrap();
        let new = NewVolume {
            id: ROOT_CELL,
            name: "root.cell".to_owned(),
            kind: VolumeKind::ReadWrite,
            parent: ROOT_CELL,
            max_quota_kib: 0,
            with_root: true,
        };
        let volume = partition.create_volume(&new, STAMP).unwrap();
        volume.change_info(|info| (info.in_service, info.destroy_me) = (true, false)).unwrap();
        volume.set_state(VolumeState::Online);
        let all = Acl { positive: vec![(ViceId::SYSTEM_ANYUSER, Rights::ALL)], negative: Vec::new() };
        volume.set_acl(VnodeId::ROOT, &all, STAMP).unwrap();
        drop(_entered);
        let mut cell = Self {
            mounts: Vec::new(),
            files: None,
            location,
            partition,
            promises: SimulatedDisk::new(1 << 20),
            address,
            runtime,
        };
        cell.start();
        cell.tell_location();
        cell
    }

    fn tell_location(&self) {
        let mut entry = vl::NvldbEntry {
            name: CharVec::from_text("root.cell").unwrap(),
            n_servers: 1,
            server_number: [HostAddr(0); vl::NMAXNSERVERS],
            server_partition: [PartitionId(0); vl::NMAXNSERVERS],
            server_flags: [SiteFlags(0); vl::NMAXNSERVERS],
            volume_id: [ROOT_CELL, VolumeId(ROOT_CELL.0 + 1), VolumeId(ROOT_CELL.0 + 2)],
            clone_id: VolumeId(0),
            flags: EntryFlags::RW_EXISTS,
            match_index: 0,
            spares: [0; 8],
        };
        entry.server_number[0] = HostAddr::from(self.address);
        entry.server_flags[0] = SiteFlags::RW_VOL;
        let to = SocketAddr::from((self.address, vl::Vl::PORT));
        let (_, files, _) = self.files.as_ref().unwrap();
        let connection = files.connect(to, ServiceId(vl::Vl::SERVICE_ID), Box::new(Null));
        self.runtime.block_on(connection.rpc(&vl::CreateEntryN { entry })).unwrap();
    }

    /// Starts the file server.
    pub(crate) fn start(&mut self) {
        let runtime = runtime();
        let entered = runtime.enter();
        let at = SocketAddr::from((self.address, afs_wire::rxafs::Rxafs::PORT));
        // The threads of one that has just ended may have the port still.
        let until = Instant::now() + Duration::from_secs(30);
        let endpoint = loop {
            match Endpoint::bind(at, EndpointConfig::default()) {
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                bound => break bound.unwrap(),
            }
        };
        let mut config = afs_fileserver::Config::new(Uuid { time_low: 7000, ..Uuid::default() });
        config.promises = Some(Arc::new(self.promises.clone()));
        let volumes = Arc::new(vec![self.partition.clone()]);
        let server = FileServer::new(config, &endpoint, volumes, Arc::new(Nobody)).unwrap();
        endpoint.add_service(server.service(vec![Arc::new(Null)]));
        drop(entered);
        self.files = Some((server, endpoint, runtime));
    }

    /// Ends the file server as a crash does: it says nothing to anybody.
    pub(crate) fn stop(&mut self) {
        let (server, endpoint, runtime) = self.files.take().expect("it runs");
        endpoint.shut_down();
        drop((server, endpoint));
        runtime.shutdown_timeout(Duration::from_secs(10));
    }

    /// A client of its own, and the kernel that it serves.
    pub(crate) fn mount(&mut self) -> Kernel {
        let _entered = self.runtime.enter();
        let name = CellName::new(CELL).unwrap();
        let text = format!(">{CELL} #\n{} #db\n", self.address);
        let mut config = Config::new(name, CellServDb::parse(&text, Path::new("CellServDB")).unwrap());
        config.bind = SocketAddr::from((own_address(), 7001));
        let client = self.runtime.block_on(Client::start(config)).unwrap();
        let (kernel, device) = Kernel::new();
        let options = Options { passthrough_min_bytes: None, ..Options::new(Path::new("/nowhere")) };
        let served = Served::start(&client, &options, Arc::new(Device::of(device))).unwrap();
        self.mounts.push((kernel.clone(), served, client));
        kernel
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        for (kernel, served, client) in self.mounts.drain(..) {
            kernel.end();
            drop(served);
            self.runtime.block_on(client.shut_down());
        }
        if self.files.is_some() {
            self.stop();
        }
        self.location.shut_down();
    }
}

/// The path of something in the cell.
pub(crate) fn at(name: &str) -> String {
    format!("{CELL}/{name}")
}
