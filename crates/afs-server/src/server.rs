//! The servers in one process: starts the roles over their ports, in the order in which they need each other, and ends them. How each
//! role is put together is in `assembly`.

mod assembly;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use afs_celldb::Database;
use afs_celldb::devices::Devices;
use afs_celldb::ptdb::Ptdb;
use afs_celldb::vldb::Vldb;
use afs_fileserver::FileServer;
use afs_volserver::{Partitions, VolumeService};
use rx::{Endpoint, Runtime, TokioRuntime};

use crate::bozo::instances::Served;
use crate::config::{Config, Role};
use crate::databases;
use crate::exporter::Page;
use crate::keys;
use crate::log::Recent;
use crate::memory::{GAUGES, Memory};
use crate::orders::Orders;
use crate::top::{self, About};
use crate::vice;

use assembly::Assembly;

/// The reason why a server does not start. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The state folder, or something in it, cannot be made or read.
    #[error("{0}")]
    State(String),
    /// The configuration folder is not what it should be.
    #[error("{0}")]
    Folder(String),
    /// A port cannot be had.
    #[error("the port of role '{}': {error}", .role.name())]
    Port {
        /// The role.
        role: Role,
        /// The reason, and what to do.
        error: io::Error,
    },
    /// No partition can be opened, or a setting of theirs is wrong.
    #[error("{0}")]
    Partitions(String),
    /// A database cannot be read.
    #[error("{0}")]
    Database(String),
    /// A setting makes no sense here.
    #[error("{key}: {what}")]
    Setting {
        /// Section and key.
        key: &'static str,
        /// The problem with it, and what to do.
        what: String,
    },
}

/// A running server. Dropped, it ends without waiting for anything.
pub struct Server {
    endpoints: BTreeMap<Role, Endpoint>,
    partitions: Option<Partitions>,
    volume_service: Option<VolumeService>,
    keys: Arc<keys::Watched>,
    ptdb: Option<Arc<Database<Ptdb>>>,
    vldb: Option<Arc<Database<Vldb>>>,
    devices: Option<Arc<Database<Devices>>>,
    /// The file server, with the most promises and clients that it may have.
    file_server: Option<(FileServer, Memory)>,
    cell: String,
    /// True if it is told who does what.
    tells_activity: bool,
    /// See `metrics.names`.
    shown_as: Arc<[String]>,
    started: rx_proto::time::Instant,
    runtime: Arc<dyn Runtime>,
    orders: Orders,
    /// The value by whose existence tasks know that the server is there.
    _alive: Arc<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts what the configuration says, on the tokio runtime that the caller is in. Returns when all ports answer.
    ///
    /// # Errors
    ///
    /// Why it cannot, and what to do.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_logging(config, Recent::default()).await
    }

    /// The same, and administrators are told the last lines of the log.
    ///
    /// # Errors
    ///
    /// Likewise.
    pub async fn start_logging(config: &Config, recent: Recent) -> Result<Self, StartError> {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
        let mut assembly = Assembly::new(config, runtime)?;
        for note in &config.notes {
            tracing::info!(file = %config.server.bos_config.display(), "{note}");
        }
        // A port that is taken is found out before anything is opened or made.
        let mut roles = config.server.roles.clone();
        roles.sort_by_key(|role| Role::ALL.iter().position(|other| other == role));
        let has = |role: Role| config.server.roles.contains(&role);
        // Without an overseer nobody could start them.
        let instances = if has(Role::Bos) { Some(assembly.instances()?) } else { None };
        for role in &roles {
            let endpoint = assembly.bind(*role)?;
            if instances.as_ref().is_some_and(|instances| instances.is_stopped(*role)) {
                tracing::warn!(role = role.name(), "this role is stopped: 'bos start' starts it");
                endpoint.set_away(true);
            }
            assembly.endpoints.insert(*role, endpoint);
        }
        let (mut ptdb, mut vldb, mut devices) = (None, None, None);
        if databases::has_databases(config) {
            let store = databases::open_store(config, &assembly.folder.cell)?;
            databases::warn_if_not_shared(config)?;
            if has(Role::Pt) {
                ptdb = Some(assembly.serve_pt(&store).await?);
            }
            if has(Role::Vl) {
                vldb = Some(assembly.serve_vl(&store).await?);
                devices = Some(assembly.serve_join(&store).await?);
            }
        }
        assembly.refuse_revoked(devices.clone());
        let (alive, orders) = (Arc::new(()), Orders::default());
        let mut partitions = None;
        let mut volume_service = None;
        let mut file = None;
        if has(Role::File) {
            let (file_server, open) = assembly.serve_files(ptdb.clone(), vldb.clone(), &alive).await?;
            file = Some((file_server.clone(), Memory::new(config)));
            if has(Role::Vol) {
                volume_service = Some(assembly.serve_volumes(&open, file_server, vldb.clone())?);
            }
            partitions = Some(open);
        }
        if let Some(instances) = instances {
            instances.serve(Served {
                endpoints: assembly.endpoints.iter().map(|(role, e)| (*role, e.downgrade())).collect(),
                volume_service: volume_service.clone(),
                partitions: partitions.clone(),
                runtime: Arc::clone(&assembly.runtime),
            });
            assembly.serve_bos(recent, &orders, instances);
        }
        let Assembly { endpoints, classes, folder, runtime, .. } = assembly;
        let (cell, started) = (folder.cell.to_string(), runtime.now());
        endpoints.values().for_each(|endpoint| endpoint.set_starting(false));
        let keys = keys::Watched::new(folder.path, config.security.allow_only_des, classes, &runtime);
        runtime.spawn(Box::pin(keys::watch(Arc::downgrade(&keys), Arc::clone(&runtime))));
        Ok(Self {
            endpoints,
            partitions,
            volume_service,
            keys,
            ptdb,
            vldb,
            devices,
            file_server: file,
            cell,
            tells_activity: config.metrics.activity,
            shown_as: config.metrics.names.clone().into(),
            started,
            runtime,
            orders,
            _alive: alive,
        })
    }

    /// The address at which a role answers.
    pub fn address(&self, role: Role) -> Option<SocketAddr> {
        self.endpoints.get(&role).map(Endpoint::local_addr)
    }

    /// All roles, and where they answer.
    pub fn addresses(&self) -> impl Iterator<Item = (Role, SocketAddr)> {
        self.endpoints.iter().map(|(role, endpoint)| (*role, endpoint.local_addr()))
    }

    /// Reads the keys anew: connections that stand go on. They are also read when a file of theirs has changed, within a second.
    pub fn reload_keys(&self) {
        self.keys.reload();
    }

    /// Returns the function that is to be called before metrics are shown.
    pub fn publisher(&self) -> Arc<dyn Fn() + Send + std::marker::Sync> {
        let endpoints: Vec<_> = self.endpoints.values().map(Endpoint::downgrade).collect();
        let file_server = self.file_server.clone();
        let (ptdb, vldb, devices) = (self.ptdb.clone(), self.vldb.clone(), self.devices.clone());
        GAUGES.describe();
        databases::describe_metrics();
        Arc::new(move || {
            ptdb.iter().for_each(|database| databases::publish(database));
            vldb.iter().for_each(|database| databases::publish(database));
            devices.iter().for_each(|database| databases::publish(database));
            if let Some((file_server, memory)) = &file_server {
                memory.used(file_server.client_counts()).into_iter().for_each(|used| GAUGES.publish(used));
            }
            endpoints
                .iter()
                .filter_map(rx::WeakEndpoint::upgrade)
                .for_each(|endpoint| endpoint.publish_metrics());
        })
    }

    /// The orders of administrators to the process. The caller that asks for them is to carry them out; otherwise
    /// orders are refused.
    pub fn orders(&self) -> Orders {
        self.orders.obey();
        self.orders.clone()
    }

    /// Pages that are shown beside the metrics: who does what, unless the configuration keeps that to itself.
    pub fn pages(&self) -> Vec<Page> {
        if !self.tells_activity {
            return Vec::new();
        }
        top::pages(About {
            cell: self.cell.clone(),
            roles: self.endpoints.keys().copied().collect(),
            file_server: self.file_server.as_ref().map(|(file_server, _)| file_server.clone()),
            started: self.started,
            runtime: Arc::clone(&self.runtime),
            shown_as: Arc::clone(&self.shown_as),
        })
    }

    /// Ends the server: no new calls, those that run are aborted, and what was done is on disk when this returns.
    pub fn stop(self) {
        let transactions = self.volume_service.as_ref().map_or(0, VolumeService::transaction_count);
        if transactions > 0 {
            tracing::warn!(transactions, "volume operations are cut off");
        }
        for endpoint in self.endpoints.values() {
            endpoint.shut_down();
        }
        self.partitions.iter().for_each(vice::sync);
    }
}
