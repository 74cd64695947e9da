//! Puts a file server together.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use afs_volume::{Partition, Space, Volume, VolumeError};
use afs_wire::ids::VolumeId;
use afs_wire::rights::Rights;
use afs_wire::rxafs::Rxafs;
use rx::{Endpoint, Procedures, Runtime, ServiceConfig, WeakEndpoint};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::ServerSecurity;
use rxgen::Interface;

use crate::access::Writers;
use crate::activity::{Activity, Report, Wait};
use crate::alarms::Alarms;
use crate::clients::{Clients, MakeClass};
use crate::config::{Config, WallClock};
use crate::failure::Failure;
use crate::file_service;
use crate::file_service::data::Buffers;
use crate::locations::Locations;
use crate::locks::Locks;
use crate::protection::{Memberships, Protection};
use crate::statistics::Statistics;
use crate::vnode_locks::VnodeLocks;
use crate::work::{self, FastPath, Inline};

/// The volumes of a file server.
pub trait Volumes: Send + Sync + 'static {
    /// A volume of this server, online or not.
    ///
    /// # Errors
    ///
    /// It is not here; or it is, and its rows are damaged ([`VolumeError::Offline`]).
    fn volume(&self, id: VolumeId) -> Result<Arc<Volume>, VolumeError>;

    /// The snapshots of a volume that are here.
    fn snapshots_of(&self, id: VolumeId) -> Vec<VolumeId>;

    /// The space of the partition that a volume is on.
    ///
    /// # Errors
    ///
    /// It is not here, or the file system does not say.
    fn space_of(&self, id: VolumeId) -> Result<Space, VolumeError>;

    /// The partitions, by name, and their space.
    fn partitions(&self) -> Vec<(String, Space)>;
}

impl Volumes for Vec<Partition> {
    fn volume(&self, id: VolumeId) -> Result<Arc<Volume>, VolumeError> {
        // One that is here and cannot be served is not elsewhere.
        let mut found = self.iter().map(|partition| partition.volume(id));
        let found = found.find(|found| !matches!(found, Err(VolumeError::NoVolume(_))));
        found.unwrap_or(Err(VolumeError::NoVolume(id)))
    }

    fn snapshots_of(&self, id: VolumeId) -> Vec<VolumeId> {
        self.iter().flat_map(|partition| partition.snapshots_of(id)).map(|snapshot| snapshot.id()).collect()
    }

    fn space_of(&self, id: VolumeId) -> Result<Space, VolumeError> {
        let partition = self.iter().find(|partition| partition.volume(id).is_ok());
        partition.ok_or(VolumeError::NoVolume(id))?.space()
    }

    fn partitions(&self) -> Vec<(String, Space)> {
        let name = |partition: &Partition| partition.folder().display().to_string();
        self.iter().filter_map(|partition| Some((name(partition), partition.space().ok()?))).collect()
    }
}

/// A file server. Clones are the same one.
#[derive(Clone)]
pub struct FileServer {
    inner: Arc<Parts>,
}

/// The parts of a server, which the handlers of all calls share.
pub(crate) struct Parts {
    pub(crate) endpoint: WeakEndpoint,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) clock: WallClock,
    pub(crate) volumes: Arc<dyn Volumes>,
    pub(crate) memberships: Memberships,
    pub(crate) locations: Option<Arc<dyn Locations>>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) locks: Mutex<Locks>,
    pub(crate) vnode_locks: Arc<VnodeLocks>,
    pub(crate) statistics: Statistics,
    pub(crate) activity: Activity,
    pub(crate) alarms: Alarms,
    pub(crate) procedures: Procedures,
    pub(crate) buffers: Buffers,
    pub(crate) inline: Inline,
    /// For calls that are answered on the thread that brings them.
    pub(crate) inline_starts: FastPath,
    pub(crate) writers: Writers,
    pub(crate) implicit_rights: Rights,
    pub(crate) takes_old_acls: bool,
    max_calls: usize,
    max_waiting: usize,
}

impl FileServer {
    /// A server of these volumes, whose clients are called back from `endpoint`. It answers nothing before its
    /// [`service`](Self::service) is added there, and does not keep the endpoint alive.
    ///
    /// # Errors
    ///
    /// The list in [`Config::promises`] cannot be read.
    pub fn new(
        config: Config,
        endpoint: &Endpoint,
        volumes: Arc<dyn Volumes>,
        protection: Arc<dyn Protection>,
    ) -> io::Result<Self> {
        let runtime = Arc::clone(endpoint.runtime());
        let clients = Arc::new(Clients::new(&config, endpoint.downgrade(), Arc::clone(&runtime))?);
        runtime.spawn(Box::pin(Arc::clone(&clients).run()));
        let inner = Parts {
            endpoint: endpoint.downgrade(),
            runtime,
            volumes,
            memberships: Memberships::new(protection, config.membership_life),
            locations: config.locations,
            clients,
            locks: Mutex::default(),
            vnode_locks: Arc::default(),
            statistics: Statistics::new(config.clock.now()),
            activity: Activity::default(),
            alarms: Alarms::default(),
            procedures: Procedures::of::<Rxafs>(),
            buffers: Buffers::default(),
            inline: Inline::default(),
            inline_starts: FastPath::default(),
            writers: config.writers,
            implicit_rights: config.implicit_rights,
            takes_old_acls: config.takes_old_acls,
            max_calls: config.max_calls,
            max_waiting: config.max_waiting,
            clock: config.clock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Told of a client by its address, and of the class by which it wants to be called back.
    pub fn callback_classes(&self) -> impl Fn(SocketAddr, MakeClass) + Send + Sync + 'static {
        let clients = Arc::clone(&self.inner.clients);
        move |client, class| clients.call_back_by(client, class)
    }

    /// The service to be added to the endpoint, for clients of these security classes. Others, as the one without security, are
    /// anonymous.
    pub fn service(&self, security: Vec<Arc<dyn ServerSecurity>>) -> ServiceConfig {
        let service = Service {
            id: ServiceId(Rxafs::SERVICE_ID),
            security,
            // As stock servers have it: who cannot be reached gets nothing (File service notes 7.4).
            check_reach: true,
            upgrades_to: None,
            limits: CallLimits::default(),
        };
        let inner = Arc::clone(&self.inner);
        let mut config = ServiceConfig::new(service, move |call| {
            let server = Arc::clone(&inner);
            async move {
                let answer = pin!(file_service::answer(Arc::clone(&server), call));
                work::begun_inline(&*server.runtime, &server.inline_starts, answer).await
            }
        });
        config.answers_at_once = true;
        config.max_calls = self.inner.max_calls;
        config.max_waiting = self.inner.max_waiting;
        config.busy_code = AbortCode(Failure::BUSY.abort(false).0);
        config.panic_code = AbortCode(Failure::IO.abort(false).0);
        config
    }

    /// A volume operation has changed the volume as a whole, or taken it away: ends all promises for it and tells their holders.
    /// Returns when they have answered, or after [`Config::break_wait`].
    pub async fn volume_changed(&self, volume: VolumeId) {
        let clients = &self.inner.clients;
        clients.volume_changed(volume, clients.break_deadline()).await;
    }

    /// Reports who does what, and which calls wait for whom: at most so many rows of each kind.
    pub fn activity(&self, most: usize) -> Report {
        let inner = &self.inner;
        inner.activity.report(inner.runtime.now(), most, |call| match (call.wait, call.fid) {
            (Wait::Introduction, _) => vec![call.client],
            (Wait::Change, Some(fid)) => inner.vnode_locks.holder(fid).into_iter().collect(),
            (Wait::Callbacks, Some(fid)) => inner.clients.being_told(fid),
            (Wait::Groups | Wait::Change | Wait::Callbacks, _) => Vec::new(),
        })
    }

    /// The name of a volume, if it is here.
    pub fn volume_name(&self, id: VolumeId) -> Option<String> {
        Some(self.inner.volumes.volume(id).ok()?.name())
    }

    /// The number of clients that are known, and of the promises that they hold.
    pub fn client_counts(&self) -> (usize, usize) {
        let counts = self.inner.clients.counts();
        (counts.hosts, counts.promises)
    }
}
