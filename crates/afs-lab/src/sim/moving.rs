//! Volume servers beside a cell's file servers, and what `vos move` and `vos release` ask of them, call by call (Volume
//! service notes 6 and 7). Between the steps time passes, so that clients meet each state of the volume.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use afs_fileserver::FileServer;
use afs_sim::Sim;
use afs_volserver::{Authority, Config, Connecting, Partitions, Peers, VolumeService, Watcher};
use afs_wire::afsvol::{
    AfsVol, AttachFlags, Clone as CloneVolume, CreateVolume, DeleteVolume, DestServer, EndTrans, Forward,
    GetStatus, ReClone, RestoreCookie, SetFlags, SetForwarding, TransCreate, VolumeFlags,
};
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, SecurityLevel, TransId, VolumeId, VolumeType};
use afs_wire::vl::{self, EntryFlags, NvldbEntry, ReleaseType, SiteFlags, Vl, VlName};
use rx::{BoxFuture, Connection, Endpoint, Runtime, WeakEndpoint};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::xdr::{CharVec, XdrString};
use rxgen::{Interface, Rpc};

use super::cell::{Cell, LOCATION, Site, socket};
use super::{bind, seconds};

const PARTITION: PartitionId = PartitionId(0);

/// All that a `ReplaceEntry` can release of a lock.
const ALL: ReleaseType = ReleaseType(7);

/// Volumes that are to be removed when nobody works on them any more.
const UNFINISHED: VolumeFlags = VolumeFlags(3);

struct Everybody;

impl Authority for Everybody {
    fn is_superuser(&self, _: &str) -> bool {
        true
    }
}

struct ClientsAreTold(FileServer);

impl Watcher for ClientsAreTold {
    fn volume_changed(&self, volume: VolumeId) -> BoxFuture {
        let server = self.0.clone();
        Box::pin(async move { server.volume_changed(volume).await })
    }
}

struct Anonymous(WeakEndpoint);

impl Peers for Anonymous {
    fn connect(&self, to: SocketAddr, _is_encrypted: bool, _least: SecurityLevel) -> Connecting<'_> {
        let endpoint = self.0.upgrade().ok_or_else(|| "it ends".to_owned());
        let service = ServiceId(AfsVol::SERVICE_ID);
        let connected = endpoint.map(|endpoint| endpoint.connect(to, service, Box::new(Null)));
        Box::pin(std::future::ready(connected))
    }
}

/// An administrator who moves volumes, with the volume servers.
pub struct Mover {
    sim: Sim,
    services: Vec<(VolumeService, Endpoint)>,
    caller: Endpoint,
    servers: Vec<Connection>,
    files: Vec<SocketAddr>,
    vldb: Connection,
    /// How long each state of a volume lasts.
    pub pause: Duration,
}

impl Mover {
    /// The volume servers of all sites whose file servers run.
    pub fn new(cell: &Cell) -> Self {
        let runtime = Arc::new(cell.sim.clone());
        let service = |(number, site): (usize, &Site)| {
            let endpoint = bind(&cell.sim, socket(1 + number as u8, 7005));
            let sim = cell.sim.clone();
            let config = Config::new(move || AfsTime(seconds(&sim)));
            let partitions = Partitions::new([(PARTITION, site.partition.clone())]);
            let watcher = Arc::new(ClientsAreTold(site.running.as_ref().expect("it runs").0.clone()));
            let peers = Arc::new(Anonymous(endpoint.downgrade()));
            let runtime = runtime.clone();
            let service =
                VolumeService::new(partitions, Arc::new(Everybody), watcher, peers, runtime, config);
            endpoint.add_service(service.config(vec![Arc::new(Null)]));
            (service, endpoint)
        };
        let services: Vec<_> = cell.sites.iter().enumerate().map(service).collect();
        let caller = bind(&cell.sim, socket(201, 7009));
        let volume = ServiceId(AfsVol::SERVICE_ID);
        let servers = services.iter().map(|(_, at)| caller.connect(at.local_addr(), volume, Box::new(Null)));
        Self {
            sim: cell.sim.clone(),
            servers: servers.collect(),
            files: cell.sites.iter().map(|site| site.address).collect(),
            vldb: caller.connect(
                SocketAddr::from((LOCATION, 7003)),
                ServiceId(Vl::SERVICE_ID),
                Box::new(Null),
            ),
            services,
            caller,
            pause: Duration::from_secs(1),
        }
    }

    /// Ends the volume servers, so that others can be at their ports.
    pub fn end(self) {
        for endpoint in self.services.iter().map(|(_, endpoint)| endpoint).chain([&self.caller]) {
            self.sim.cut_off(endpoint.local_addr());
            endpoint.shut_down();
        }
    }

    async fn pause(&self) {
        self.sim.sleep_until(self.sim.now() + self.pause).await;
    }

    async fn ask<R: Rpc + Sync>(&self, site: usize, args: R) -> R::Reply {
        self.servers[site].rpc(&args).await.unwrap_or_else(|error| panic!("{} at {site}: {error}", R::NAME))
    }

    async fn ask_vldb<R: Rpc + Sync>(&self, args: R) -> R::Reply {
        self.vldb.rpc(&args).await.unwrap_or_else(|error| panic!("{}: {error}", R::NAME))
    }

    async fn begin(&self, site: usize, volume: VolumeId, flags: AttachFlags) -> TransId {
        self.ask(site, TransCreate { volume, partition: PARTITION, flags }).await.trans
    }

    async fn settle(&self, site: usize, trans: TransId, flags: VolumeFlags) {
        self.ask(site, SetFlags { trans, flags }).await;
        self.ask(site, EndTrans { trans }).await;
    }

    async fn entry(&self, name: &str) -> NvldbEntry {
        self.ask_vldb(vl::GetEntryByNameN { name: VlName::new(name).unwrap() }).await.entry
    }

    fn host(&self, site: usize) -> HostAddr {
        match self.files[site].ip() {
            IpAddr::V4(ip) => HostAddr::from(ip),
            IpAddr::V6(_) => unreachable!("the cell has none"),
        }
    }

    fn destination(&self, site: usize) -> DestServer {
        DestServer { host: self.host(site), port: 7005, ssid: 1 }
    }

    /// Makes a volume that is to be filled.
    async fn create(
        &self,
        site: usize,
        name: &str,
        kind: VolumeType,
        parent: VolumeId,
        id: VolumeId,
    ) -> TransId {
        let name = XdrString::new(name).unwrap();
        let made = self.ask(site, CreateVolume { partition: PARTITION, name, kind, parent, volid: id }).await;
        self.ask(site, SetFlags { trans: made.trans, flags: UNFINISHED }).await;
        made.trans
    }

    async fn delete(&self, site: usize, volume: VolumeId) {
        let trans = self.begin(site, volume, AttachFlags::OFFLINE).await;
        self.ask(site, SetFlags { trans, flags: UNFINISHED }).await;
        self.ask(site, DeleteVolume { trans }).await;
        self.ask(site, EndTrans { trans }).await;
    }

    /// Moves a read-write volume from one site to another.
    pub async fn move_volume(&self, name: &str, id: VolumeId, from: usize, to: usize) {
        let kind = VolumeType::READ_WRITE;
        self.ask_vldb(vl::SetLock { volid: id, kind, operation: EntryFlags::OP_MOVE }).await;
        // A clone, which is sent while the volume is in use.
        let clone = VolumeId(id.0 + 5);
        let trans = self.begin(from, id, AttachFlags::BUSY).await;
        let new_name = XdrString::new("move-clone-temp").unwrap();
        let (purge_vol, new_type) = (VolumeId(0), VolumeType::READ_ONLY);
        self.ask(from, CloneVolume { trans, purge_vol, new_type, new_name, new_vol: clone }).await;
        self.ask(from, EndTrans { trans }).await;
        let trans = self.begin(from, clone, AttachFlags::OFFLINE).await;
        self.ask(from, SetFlags { trans, flags: UNFINISHED }).await;
        let made = self.ask(from, GetStatus { trans }).await.status.creation_date;
        let target = self.create(to, name, kind, id, id).await;
        let cookie =
            RestoreCookie { name: CharVec::from_text(name).unwrap(), kind, clone: VolumeId(0), parent: id };
        let forward = |from_trans, from_date| Forward {
            from_trans,
            from_date,
            destination: self.destination(to),
            dest_trans: target,
            cookie: cookie.clone(),
        };
        self.ask(from, forward(trans, AfsTime(0))).await;
        self.ask(from, EndTrans { trans }).await;
        self.pause().await;
        // What has changed since. Clients are told to wait: first VBUSY, then VOFFLINE.
        let source = self.begin(from, id, AttachFlags::BUSY).await;
        self.pause().await;
        self.ask(from, forward(source, AfsTime(made.0 - 2))).await;
        self.ask(from, SetFlags { trans: source, flags: VolumeFlags::OUT_OF_SERVICE }).await;
        self.pause().await;
        self.settle(to, target, VolumeFlags::NONE).await;
        let mut entry = self.entry(name).await;
        let place = entry.server_number.iter().position(|host| *host == self.host(from)).unwrap();
        entry.server_number[place] = self.host(to);
        self.ask_vldb(vl::ReplaceEntryN { volid: id, kind, entry, release: ReleaseType(0) }).await;
        // The old server says VNOVOL from now on.
        self.ask(from, SetForwarding { trans: source, new_site: self.host(to).0 as i32 }).await;
        self.pause().await;
        self.ask(from, DeleteVolume { trans: source }).await;
        self.ask(from, EndTrans { trans: source }).await;
        self.delete(from, clone).await;
        self.ask_vldb(vl::ReleaseLock { volid: id, kind, release: ALL }).await;
    }

    /// Releases a volume at the first site to the others, one after the other. The first time, the read-only volumes are made.
    pub async fn release(&self, name: &str, id: VolumeId, sites: &[usize]) {
        let kind = VolumeType::READ_WRITE;
        self.ask_vldb(vl::SetLock { volid: id, kind, operation: EntryFlags::OP_RELEASE }).await;
        let (clone, readonly) = (VolumeId(id.0 + 1), format!("{name}.readonly"));
        let is_first = !self.entry(name).await.flags.contains(EntryFlags::RO_EXISTS);
        let trans = self.begin(sites[0], id, AttachFlags::BUSY).await;
        if is_first {
            let new_name = XdrString::new(readonly.as_str()).unwrap();
            let (purge_vol, new_type) = (VolumeId(0), VolumeType::READ_ONLY);
            self.ask(sites[0], CloneVolume { trans, purge_vol, new_type, new_name, new_vol: clone }).await;
        } else {
            self.ask(sites[0], ReClone { trans, clone_id: clone }).await;
        }
        self.ask(sites[0], EndTrans { trans }).await;
        let trans = self.begin(sites[0], clone, AttachFlags::OFFLINE).await;
        self.settle(sites[0], trans, VolumeFlags::NONE).await;
        for &site in &sites[1..] {
            self.pause().await;
            let target = match is_first {
                true => self.create(site, &readonly, VolumeType::READ_ONLY, id, clone).await,
                false => self.begin(site, clone, AttachFlags::OFFLINE).await,
            };
            let from_trans = self.begin(sites[0], clone, AttachFlags::BUSY).await;
            let cookie = RestoreCookie {
                name: CharVec::from_text(&readonly).unwrap(),
                kind: VolumeType::READ_ONLY,
                clone: VolumeId(0),
                parent: id,
            };
            let (from_date, destination) = (AfsTime(0), self.destination(site));
            let forward = Forward { from_trans, from_date, destination, dest_trans: target, cookie };
            self.ask(sites[0], forward).await;
            self.ask(sites[0], EndTrans { trans: from_trans }).await;
            self.settle(site, target, VolumeFlags::NONE).await;
        }
        if is_first {
            let mut entry = self.entry(name).await;
            for (place, &site) in sites.iter().enumerate() {
                entry.server_number[1 + place] = self.host(site);
                entry.server_flags[1 + place] = SiteFlags::RO_VOL;
            }
            entry.n_servers = 1 + sites.len() as i32;
            entry.flags |= EntryFlags::RO_EXISTS;
            self.ask_vldb(vl::ReplaceEntryN { volid: id, kind, entry, release: ReleaseType(0) }).await;
        }
        self.ask_vldb(vl::ReleaseLock { volid: id, kind, release: ALL }).await;
    }
}
