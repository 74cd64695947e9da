//! A cell in this process, in real time: a location server and a file server at an address of the loopback interface, with a volume in memory in
//! which everybody may do everything, and clients, each of which serves a kernel of its own.
//!
//! Not in virtual time, because the file system waits in threads, and `afs_sim::Sim` lets time pass when its one thread has nothing to do: it
//! cannot see that these wait for nothing but time, or are about to go on. They are
//!
//! | thread | waits for | where |
//! | --- | --- | --- |
//! | `fuse-0` and more | a request | `fuse-dev`: `serve` in `session.rs` reads the device |
//! | `fuse-notices` | a change | `afs-fuse`: `serve` in `notices.rs` |
//! | it, and threads that tell of names and lengths | the answer to a request that holds a lock of the kernel | `KernelLocks::wait`, in `notices.rs`, `old_names.rs`, `newest.rs`, `kernel_length.rs`, `node_limit.rs` |
//! | it | threads that tell of data | `data_invalidations.rs` |
//! | the test | an answer | `kernel.rs` polls the socket |
//!
//! Each of them would have to become a task before `tokio::time` in `afs-fuse` could become the client's runtime.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afs_celldb::caller::NoAuth;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Database, rx_service};
use afs_client::config::Cache;
use afs_client::{Client, Config, WriteBehind};
use afs_config::{CellName, CellServDb};
use afs_fileserver::FileServer;
use afs_fuse::{Options, Served};
use afs_lab::real::address::own_address;
use afs_lab::real::relay::{Relay, Way};
use afs_lab::sim::{self, people::People};
use afs_volume::disk::SimulatedDisk;
use afs_volume::{Partition, Stamp};
use afs_wire::Uuid;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::vl::{self, SiteFlags};
use fuse_dev::Device;
use rx::{Endpoint, EndpointConfig};
use rx_proto::ids::ServiceId;
use rx_proto::packet::Header;
use rx_proto::security::Null;
use rxgen::Interface;
use tokio::runtime::{Builder, Runtime};

use crate::kernel::Kernel;

const CELL: &str = "one.test";
const ROOT_CELL: VolumeId = VolumeId(0x2000_0000);

/// The cell. Its files are in the folder of its name in each mount.
pub(crate) struct Cell {
    // In this order: clients end before their servers, and all before the runtime.
    mounts: Vec<(Kernel, Served, Client)>,
    relays: Vec<Relay>,
    /// The file server, with a runtime of its own: its tasks hold its port.
    files: Option<(FileServer, Endpoint, Runtime)>,
    locations: Vec<Endpoint>,
    partition: Partition,
    /// Where the list of who holds promises is.
    promises: SimulatedDisk,
    address: Ipv4Addr,
    /// How long a change waits for clients, and clients for their kernel.
    patience: Duration,
    runtime: Runtime,
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl Cell {
    /// A cell in which changes wait for clients for longer than a busy machine stands still.
    pub(crate) fn new() -> Self {
        Self::giving_up_after(Duration::from_secs(60))
    }

    /// The same, whose server gives up a client after a time.
    pub(crate) fn giving_up_after(patience: Duration) -> Self {
        let runtime = runtime();
        let entered = runtime.enter();
        let partition = sim::open_partition(Path::new("/nowhere"), Some(&SimulatedDisk::new(256 << 20)));
        sim::make_volume(&partition, "root.cell", ROOT_CELL);
        drop(entered);
        let mut cell = Self {
            mounts: Vec::new(),
            relays: Vec::new(),
            files: None,
            locations: Vec::new(),
            partition,
            promises: SimulatedDisk::new(1 << 20),
            address: own_address(),
            patience,
            runtime,
        };
        cell.start();
        cell.locate(cell.address);
        cell
    }

    /// Starts a location server at an address, which says that the file server is there too.
    fn locate(&mut self, address: Ipv4Addr) {
        let _entered = self.runtime.enter();
        let to = SocketAddr::from((address, vl::Vl::PORT));
        let location = Endpoint::bind(to, EndpointConfig::default()).unwrap();
        let vldb: Arc<Database<Vldb>> =
            Arc::new(self.runtime.block_on(Database::open(Arc::new(MemoryStore::new()))).unwrap());
        let vl = VlService::new(vldb, Arc::new(NoAuth), Arc::new(|| 1_700_000_000), RestrictedQuery::AnyUser);
        location.add_service(rx_service::<vl::Vl, _>(Arc::new(vl), vec![Arc::new(Null)]));
        self.locations.push(location);
        let entry = sim::entry("root.cell", ROOT_CELL, &[(address, SiteFlags::RW_VOL)]);
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
        config.break_wait = self.patience;
        config.promises = Some(Arc::new(self.promises.clone()));
        let volumes = Arc::new(vec![self.partition.clone()]);
        let server = FileServer::new(config, &endpoint, volumes, Arc::new(People::default())).unwrap();
        endpoint.add_service(server.service(vec![Arc::new(Null)]));
        drop(entered);
        self.files = Some((server, endpoint, runtime));
    }

    /// Ends the file server as a crash does: it says nothing to anybody.
    pub(crate) fn kill(&mut self) {
        let (server, endpoint, runtime) = self.files.take().expect("it runs");
        endpoint.shut_down();
        drop((server, endpoint));
        runtime.shutdown_timeout(Duration::from_secs(10));
    }

    /// Limits what may be stored in the cell, in KiB.
    pub(crate) fn set_quota(&self, kib: u32) {
        self.partition.volume(ROOT_CELL).unwrap().change_info(|info| info.max_quota_kib = kib).unwrap();
    }

    /// Makes the snapshot `2026-11-28T030000Z` of the cell.
    pub(crate) fn make_snapshot(&self) {
        let (id, stamp) = (VolumeId(ROOT_CELL.0 + 9), Stamp { now: AfsTime(1_795_834_800), ..sim::stamp() });
        self.partition.make_snapshot(ROOT_CELL, id, false, stamp).unwrap();
    }

    /// A client of its own, and the kernel that it serves.
    pub(crate) fn mount(&mut self) -> Kernel {
        self.mount_by(self.address, |_| {})
    }

    /// The same with write-behind. Who waits for the server gives up after some seconds.
    pub(crate) fn mount_with_write_behind(&mut self) -> Kernel {
        self.mount_by(self.address, |config| {
            config.write_behind = Some(WriteBehind::Always);
            config.cache = Some(Cache { folder: "/nowhere".into(), limit_bytes: 64 << 20 });
            config.cache_disk = Some(Arc::new(SimulatedDisk::new(256 << 20)));
            config.patience = Duration::from_secs(5);
        })
    }

    /// The same, with a client that hears answers, but not the server's own calls while `is_deaf` is set: callbacks are lost.
    pub(crate) fn mount_that_may_be_deaf(&mut self, is_deaf: &Arc<AtomicBool>) -> Kernel {
        let (front, is_deaf) = (own_address(), Arc::clone(is_deaf));
        let fate = move |way, _, datagram: &mut [u8]| {
            let is_call = Header::parse(datagram).is_ok_and(|header| header.is_from_client());
            let is_lost = way == Way::ToClient && is_call && is_deaf.load(Ordering::SeqCst);
            (!is_lost).then_some(Duration::ZERO)
        };
        let port = afs_wire::rxafs::Rxafs::PORT;
        let relay = Relay::start((front, port).into(), (self.address, port).into(), Arc::new(fate)).unwrap();
        self.relays.push(relay);
        self.locate(front);
        self.mount_by(front, |_| {})
    }

    /// A client that asks for locations at an address, and whose configuration is changed.
    fn mount_by(&mut self, location: Ipv4Addr, change: impl FnOnce(&mut Config)) -> Kernel {
        let _entered = self.runtime.enter();
        let name = CellName::new(CELL).unwrap();
        let text = format!(">{CELL} #\n{location} #db\n");
        let mut config = Config::new(name, CellServDb::parse(&text, Path::new("CellServDB")).unwrap());
        config.bind = SocketAddr::from((own_address(), 7001));
        config.handling_max = self.patience;
        config.lapse = self.patience;
        change(&mut config);
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
            self.kill();
        }
        self.locations.iter().for_each(Endpoint::shut_down);
    }
}

/// The path of something in the cell.
pub(crate) fn at(name: &str) -> String {
    format!("{CELL}/{name}")
}
