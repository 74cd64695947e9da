//! The servers in one process: puts the roles together over their ports, in the order in which they need each other, and ends
//! them.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afs_admin::vldb::LocationDb;
use afs_admin::{DatabaseServers, Login};
use afs_celldb::ptdb::{Administrator, PtError, PtService, Ptdb, Rules};
use afs_celldb::store::CellStore;
use afs_celldb::ubik::VoteService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Clock, Database, rx_service, was_changed_by};
use afs_config::{AddressRules, BosConfig, CellName, ServerFolder};
use afs_fileserver::{FileServer, Locations, Protection, WallClock, Writers};
use afs_volserver::{Partitions, VolumeService, Watcher};
use afs_wire::bos::Bozo;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::pt::Pr;
use afs_wire::ubik::vote::Vote;
use afs_wire::vl::Vl as VlInterface;
use rx::{BoxFuture, Endpoint, EndpointConfig, Runtime, SocketOptions, TokioRuntime};
use rx_proto::security::{Null, ServerSecurity};
use rx_security::identity::LocalRealms;
use rx_security::ticket::NameRules;
use rx_security::{UnixTime, rxkad};
use zeroize::Zeroizing;

use crate::addresses;
use crate::authority::CellAuthority;
use crate::bozo::Overseer;
use crate::bozo::instances::{Instances, Served};
use crate::config::{Config, Level, Query, Role, Sync, Volumes};
use crate::databases;
use crate::exporter::Page;
use crate::first_start::{
    NewCell, Pending, administrator_is_made, make_configuration, make_folder, note_writer,
    pending_administrator,
};
use crate::health;
use crate::keys;
use crate::locations::{LocalLocations, RemoteLocations};
use crate::log::Recent;
use crate::memory::{GAUGES, Memory};
use crate::orders::Orders;
use crate::peers::{VolumePeers, cell_login};
use crate::protection::{LocalProtection, RemoteProtection};
use crate::registration::{Registration, Vl, register};
use crate::sysid;
use crate::top::{self, About};
use crate::vice;

/// Why a server does not start. Each says what to do.
#[derive(Debug)]
pub enum StartError {
    /// The state folder, or something in it, cannot be made or read.
    State(String),
    /// The configuration folder is not what it should be.
    Folder(String),
    /// A port cannot be had.
    Port {
        /// Whose.
        role: Role,
        /// Why, and what to do.
        error: io::Error,
    },
    /// No partition can be opened, or a setting of theirs is wrong.
    Partitions(String),
    /// A database cannot be read.
    Database(String),
    /// A setting makes no sense here.
    Setting {
        /// Section and key.
        key: &'static str,
        /// What is wrong with it, and what to do.
        what: String,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(what) | Self::Folder(what) | Self::Partitions(what) | Self::Database(what) => {
                f.write_str(what)
            }
            Self::Port { role, error } => write!(f, "the port of role '{}': {error}", role.name()),
            Self::Setting { key, what } => write!(f, "{key}: {what}"),
        }
    }
}

impl Error for StartError {}

/// A running server. Dropped, it ends without waiting for anything.
pub struct Server {
    endpoints: BTreeMap<Role, Endpoint>,
    partitions: Option<Partitions>,
    volume_service: Option<VolumeService>,
    keys: Arc<keys::Watched>,
    ptdb: Option<Arc<Database<Ptdb>>>,
    vldb: Option<Arc<Database<Vldb>>>,
    /// With the most promises and clients that it may have.
    file_server: Option<(FileServer, Memory)>,
    cell: String,
    /// Whether it is told who does what.
    tells_activity: bool,
    /// See `metrics.names`.
    shown_as: Arc<[String]>,
    started: rx_proto::time::Instant,
    runtime: Arc<dyn Runtime>,
    orders: Orders,
    /// What tasks look at to know that the server is there.
    _alive: Arc<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

/// What the roles share while they are put together.
struct Assembly<'a> {
    config: &'a Config,
    runtime: Arc<dyn Runtime>,
    folder: ServerFolder,
    authority: Arc<CellAuthority>,
    rxkad: rxkad::Server,
    /// The addresses to tell others.
    addresses: Vec<Ipv4Addr>,
    endpoints: BTreeMap<Role, Endpoint>,
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
                tracing::warn!(role = role.name(), "it is stopped, until 'bos start' starts it");
                endpoint.set_away(true);
            }
            assembly.endpoints.insert(*role, endpoint);
        }
        let (mut ptdb, mut vldb) = (None, None);
        if has(Role::Pt) || has(Role::Vl) {
            let store = databases::open_store(config, &assembly.folder.cell)?;
            if has(Role::Pt) {
                ptdb = Some(assembly.serve_pt(&store).await?);
            }
            if has(Role::Vl) {
                vldb = Some(assembly.serve_vl(&store).await?);
            }
        }
        let (alive, orders) = (Arc::new(()), Orders::default());
        let mut partitions = None;
        let mut volume_service = None;
        let mut file = None;
        if has(Role::File) {
            let (file_server, open) = assembly.serve_files(ptdb.clone(), vldb.clone(), &alive).await?;
            file = Some((file_server.clone(), Memory::new(config)));
            if has(Role::Vol) {
                volume_service = Some(assembly.serve_volumes(&open, file_server));
            }
            partitions = Some(open);
        }
        if let Some(instances) = instances {
            instances.serve(Served {
                endpoints: assembly.endpoints.iter().map(|(role, e)| (*role, e.downgrade())).collect(),
                volume_service: volume_service.clone(),
                partitions: partitions.clone(),
                runtime: Some(Arc::clone(&assembly.runtime)),
            });
            assembly.serve_bos(recent, &orders, instances);
        }
        let Assembly { endpoints, rxkad, folder, runtime, .. } = assembly;
        let (cell, started) = (folder.cell.to_string(), runtime.now());
        endpoints.values().for_each(|endpoint| endpoint.set_starting(false));
        let keys = Arc::new(keys::Watched::new(folder.path, config.security.allow_only_des, rxkad));
        runtime.spawn(Box::pin(keys::watch(Arc::downgrade(&keys), Arc::clone(&runtime))));
        Ok(Self {
            endpoints,
            partitions,
            volume_service,
            keys,
            ptdb,
            vldb,
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

    /// Where a role answers.
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

    /// What is to be done before metrics are shown.
    pub fn publisher(&self) -> Arc<dyn Fn() + Send + std::marker::Sync> {
        let endpoints: Vec<_> = self.endpoints.values().map(Endpoint::downgrade).collect();
        let file_server = self.file_server.clone();
        let (ptdb, vldb) = (self.ptdb.clone(), self.vldb.clone());
        GAUGES.describe();
        databases::describe_metrics();
        Arc::new(move || {
            ptdb.iter().for_each(|database| databases::publish(database));
            vldb.iter().for_each(|database| databases::publish(database));
            if let Some((file_server, memory)) = &file_server {
                memory.used(file_server.client_counts()).into_iter().for_each(|used| GAUGES.publish(used));
            }
            endpoints
                .iter()
                .filter_map(rx::WeakEndpoint::upgrade)
                .for_each(|endpoint| endpoint.publish_metrics());
        })
    }

    /// What administrators order the process to do. Whoever asks for this is to do it; otherwise orders are refused.
    pub fn orders(&self) -> Orders {
        self.orders.obey();
        self.orders.clone()
    }

    /// What is shown beside the metrics: who does what, unless the configuration keeps that to itself.
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
        for (id, partition) in self.partitions.iter().flat_map(Partitions::iter) {
            if let Err(error) = partition.sync() {
                tracing::error!(partition = %id, %error, "a partition could not be brought to disk");
            }
        }
    }
}

fn seconds() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u32::try_from(d.as_secs()).unwrap_or(u32::MAX))
}

impl<'a> Assembly<'a> {
    fn new(config: &'a Config, runtime: Arc<dyn Runtime>) -> Result<Self, StartError> {
        let state = &config.server.state;
        let in_state = |error: io::Error| {
            StartError::State(format!(
                "the state folder {} cannot be used: {error}; make it belong to the user that runs this, or give another \
                 with --state",
                state.display()
            ))
        };
        make_folder(state, 0o755).map_err(in_state)?;
        let rules = |path: PathBuf| {
            AddressRules::read(&path)
                .map_err(|error| StartError::Setting { key: "server.net_info", what: error.to_string() })
        };
        let (info, restrict) = (rules(config.net_info())?, rules(config.net_restrict())?);
        let interfaces = addresses::of_interfaces().map_err(in_state)?;
        let addresses =
            addresses::advertised(config.server.bind, &interfaces, info.as_ref(), restrict.as_ref());
        if addresses.is_empty() {
            let what =
                "NetInfo and NetRestrict leave none of this machine's addresses: correct them".to_owned();
            return Err(StartError::Setting { key: "server.net_info", what });
        }
        let chance = || runtime.seed().map_err(in_state);
        if config.server.config_dir.as_os_str().is_empty() {
            let name = CellName::new(&config.server.cell).expect("Config::check() has seen it");
            let servers =
                if config.databases.servers.is_empty() { &addresses[..1] } else { &config.databases.servers };
            let administrator = &config.server.administrator;
            let cell = NewCell { name, servers, administrator, key: Zeroizing::new(chance()?) };
            if make_configuration(&state.join("etc"), &cell).map_err(in_state)? {
                tracing::info!(cell = config.server.cell, administrator, "a new cell was made");
            }
        }
        let path = config.config_dir();
        let folder = ServerFolder::read(&path).map_err(|error| StartError::Folder(error.to_string()))?;
        if folder.has_no_auth {
            let file = path.join("NoAuth");
            return Err(StartError::Folder(format!(
                "{}: with this file everyone could administer the server; remove it, and use -localauth for repairs",
                file.display()
            )));
        }
        let keys = keys::load(&path, config.security.allow_only_des).map_err(StartError::Folder)?;
        let mut local = folder.realms.clone();
        local.realms.extend(config.security.realms.iter().cloned());
        let authority = Arc::new(CellAuthority::new(folder.cell.clone(), local.clone(), &path));
        let min_level = match config.security.min_level {
            Level::Clear => rx_security::Level::Clear,
            Level::Auth => rx_security::Level::Auth,
            Level::Crypt => rx_security::Level::Crypt,
        };
        let realms =
            LocalRealms::of_cell(folder.cell.as_str()).with_realms(&local.realms).without(&local.excluded);
        let names = NameRules { allow_dotted: config.security.allow_dotted_principals };
        let options = rxkad::ServerOptions { min_level, realms, names };
        let rxkad = rxkad::Server::new(keys, options, Arc::new(|| UnixTime(seconds())));
        let endpoints = BTreeMap::new();
        Ok(Self { config, runtime, folder, authority, rxkad, addresses, endpoints })
    }

    fn security(&self) -> Vec<Arc<dyn ServerSecurity>> {
        vec![Arc::new(Null), Arc::new(self.rxkad.clone())]
    }

    fn clock() -> Clock {
        Arc::new(seconds)
    }

    fn bind(&self, role: Role) -> Result<Endpoint, StartError> {
        let ports = &self.config.ports;
        let (port, name) = match role {
            Role::File => (ports.file, "fileserver"),
            Role::Vol => (ports.vol, "volserver"),
            Role::Vl => (ports.vl, "vlserver"),
            Role::Pt => (ports.pt, "ptserver"),
            Role::Bos => (ports.bos, "bosserver"),
        };
        let transport = &self.config.transport;
        let memory = Memory::new(self.config);
        let memory = if role == Role::File { memory.file_port } else { memory.other_port };
        let address = if transport.one_address { self.addresses[0] } else { self.config.server.bind };
        let mut socket = SocketOptions::default();
        if transport.receive_buffer_bytes > 0 {
            socket.receive_buffer_bytes = usize::try_from(transport.receive_buffer_bytes).ok();
        }
        // Volumes and databases are opened later, which takes a while: clients are to wait for them.
        let mut config = EndpointConfig { socket, is_starting: true, ..EndpointConfig::default() };
        config.queue_bytes = memory.packet_bytes;
        config.proto.max_connections = memory.connections;
        config.proto.max_connections_of_host = transport.connections_of_host as usize;
        config.proto.receive_budget = memory.received_bytes;
        config.proto.strangers_memory = memory.strangers_bytes;
        config.proto.version = format!("afar {} {name}", env!("CARGO_PKG_VERSION"));
        if transport.max_packet_bytes > 0 {
            config.proto.max_packet_len = transport.max_packet_bytes as usize;
        }
        Endpoint::bind_with(Arc::clone(&self.runtime), SocketAddr::from((address, port)), config)
            .map_err(|error| StartError::Port { role, error })
    }

    fn endpoint(&self, role: Role) -> &Endpoint {
        self.endpoints.get(&role).expect("its port is bound before a role is served")
    }

    fn login(&self) -> Result<Login, StartError> {
        cell_login(&self.rxkad, &self.runtime)
            .map_err(|error| StartError::Folder(format!("{}: {error}", self.folder.path.display())))
    }

    /// Where the cell's databases are.
    fn database_servers(&self) -> Result<Vec<Ipv4Addr>, StartError> {
        let configured = &self.config.databases.servers;
        let listed = || self.folder.own().servers.iter().map(|server| server.address).collect();
        let servers: Vec<_> = if configured.is_empty() { listed() } else { configured.clone() };
        if servers.is_empty() {
            let what = format!(
                "cell {} has no database servers in CellServDB: add them, or set this",
                self.folder.cell
            );
            return Err(StartError::Setting { key: "databases.servers", what });
        }
        Ok(servers)
    }

    /// Who may do what with the protection database.
    fn rules(&self) -> Rules {
        let databases = &self.config.databases;
        let (user_privacy, group_privacy) = self.config.default_access();
        Rules {
            is_restricted: databases.restricted,
            restricts_anonymous: databases.restrict_anonymous,
            supergroups: Some(databases.group_depth).filter(|depth| *depth > 0),
            user_privacy,
            group_privacy,
            ..Rules::default()
        }
    }

    fn chance(&self) -> Result<[u8; 32], StartError> {
        self.runtime.seed().map_err(|error| StartError::State(error.to_string()))
    }

    /// Refuses databases in etcd that are not what an earlier start of this server has made, which was cut off then: this start has made
    /// a cell with a key of its own, and they are those of a cell that was there.
    async fn must_be_own(&self, store: &Arc<dyn CellStore>, pending: &Pending) -> Result<(), StartError> {
        for writer in &pending.writers {
            let was = was_changed_by::<Ptdb>(&**store, *writer).await;
            if was.map_err(|error| StartError::Database(error.to_string()))? {
                tracing::info!("the first start was cut off when the databases were made: this one goes on");
                return Ok(());
            }
        }
        Err(StartError::Folder(format!(
            "the databases in etcd are in use by servers with another key than that in {}, which this start has made: remove that \
             folder, and copy it from a server of the cell; if there is none, remove the keys of the cell in etcd",
            self.folder.path.display()
        )))
    }

    async fn serve_pt(&self, store: &Arc<dyn CellStore>) -> Result<Arc<Database<Ptdb>>, StartError> {
        let in_folder = |error: io::Error| StartError::Folder(error.to_string());
        // A cell that was there before has its own administrators, or will be given them, as OpenAFS's is.
        let pending = pending_administrator(&self.folder.path).map_err(in_folder)?;
        let chance = self.chance()?;
        let database: Arc<Database<Ptdb>> = databases::open(store, self.config, chance).await?;
        let authority = Arc::clone(&self.authority);
        let service = Arc::new(PtService::new(Arc::clone(&database), authority, Self::clock(), self.rules()));
        if let Some(pending) =
            pending.as_ref().filter(|_| store.shared().is_some() && !database.read(Ptdb::is_empty))
        {
            self.must_be_own(store, pending).await?;
        }
        if database.read(Ptdb::is_empty) {
            if pending.is_some() && store.shared().is_some() {
                note_writer(&self.folder.path, databases::writer_of(chance)).map_err(in_folder)?;
            }
            let administrator =
                pending.as_ref().map(|pending| Administrator { name: pending.name.to_lowercase(), id: None });
            match (service.initialize(administrator.as_ref()).await, &pending) {
                (Ok(()), _) => {}
                // Another server of the cell has started at the same time.
                (Err(PtError::Exists), None) if !database.read(Ptdb::is_empty) => {}
                // Or what an earlier start of this one had sent has come only now.
                (Err(PtError::Exists), Some(pending)) if !database.read(Ptdb::is_empty) => {
                    self.must_be_own(store, pending).await?;
                }
                (Err(error), pending) => {
                    let name = pending.as_ref().map(|pending| &pending.name[..]).unwrap_or_default();
                    let what = format!("'{name}' cannot be made: {error}");
                    return Err(StartError::Setting { key: "server.administrator", what });
                }
            }
        }
        if pending.is_some() {
            administrator_is_made(&self.folder.path).map_err(in_folder)?;
        }
        let endpoint = self.endpoint(Role::Pt);
        endpoint.add_service(rx_service::<Vote, _>(self.vote(&database), self.security()));
        endpoint.add_service(rx_service::<Pr, _>(service, self.security()));
        Ok(database)
    }

    async fn serve_vl(&self, store: &Arc<dyn CellStore>) -> Result<Arc<Database<Vldb>>, StartError> {
        let database: Arc<Database<Vldb>> = databases::open(store, self.config, self.chance()?).await?;
        let restricted = match self.config.databases.restricted_query {
            Query::Anyuser => RestrictedQuery::AnyUser,
            Query::Admin => RestrictedQuery::Admin,
        };
        let authority = Arc::clone(&self.authority);
        let service = Arc::new(VlService::new(Arc::clone(&database), authority, Self::clock(), restricted));
        let endpoint = self.endpoint(Role::Vl);
        endpoint.add_service(rx_service::<Vote, _>(self.vote(&database), self.security()));
        endpoint.add_service(rx_service::<VlInterface, _>(service, self.security()));
        Ok(database)
    }

    fn vote<I: afs_celldb::database::Image>(&self, database: &Arc<Database<I>>) -> Arc<VoteService<I>> {
        Arc::new(VoteService::new(Arc::clone(database), self.addresses.clone(), Self::clock()))
    }

    async fn serve_files(
        &self,
        ptdb: Option<Arc<Database<Ptdb>>>,
        vldb: Option<Arc<Database<Vldb>>>,
        alive: &Arc<()>,
    ) -> Result<(FileServer, Partitions), StartError> {
        let config = self.config;
        let state = &config.server.state;
        let wanted = vice::wanted(&config.server.partitions, Path::new("/"), state);
        let wanted = wanted.map_err(|what| StartError::Setting { key: "server.partitions", what })?;
        let memory = Memory::new(config);
        let partitions = vice::open(&wanted, &volume_config(&config.volumes, &memory, wanted.len()))
            .map_err(StartError::Partitions)?;
        vice::remove_unfinished(&partitions);

        let endpoint = self.endpoint(Role::File);
        let login = self.login()?;
        let protection: Arc<dyn Protection> = match ptdb {
            Some(database) => {
                let authority = Arc::clone(&self.authority);
                Arc::new(LocalProtection { database, rules: self.rules(), authority })
            }
            None => {
                let servers = DatabaseServers::new::<Pr>(endpoint, &self.database_servers()?, &login);
                Arc::new(RemoteProtection { servers, authority: Arc::clone(&self.authority) })
            }
        };
        let (vl, locations): (Vl, Arc<dyn Locations>) = match vldb {
            Some(database) => (Vl::Local(Arc::clone(&database)), Arc::new(LocalLocations(database))),
            None => {
                let servers = self.database_servers()?;
                let locations = DatabaseServers::new::<VlInterface>(endpoint, &servers, &login);
                let vldb = LocationDb::new(endpoint, &servers, &login);
                (Vl::Remote(vldb), Arc::new(RemoteLocations(locations)))
            }
        };
        let path = state.join("sysid");
        let chance = self.runtime.seed().map_err(|error| StartError::State(error.to_string()))?;
        let uuid = sysid::load_or_make(&path, chance, &self.addresses)
            .map_err(|error| StartError::State(format!("{}: {error}", path.display())))?;
        let mut file = afs_fileserver::Config::new(uuid);
        file.max_calls = config.file.max_calls as usize;
        file.max_waiting = config.file.busy_at as usize;
        file.max_promises = memory.callbacks;
        file.hosts.hosts = memory.hosts;
        file.membership_life = Duration::from_secs(config.file.groups_seconds.into());
        file.writers = match (config.file.read_only, config.file.administrators_write) {
            (false, _) => Writers::Everybody,
            (true, true) => Writers::Administrators,
            (true, false) => Writers::Nobody,
        };
        file.implicit_rights = config.administrators_rights();
        file.takes_old_acls = config.file.old_access_lists;
        file.promises_file = Some(state.join("promises"));
        file.locations = Some(locations);
        file.clock = WallClock::system();
        let served = Arc::new(vice::Served(partitions.clone()));
        let file_server = FileServer::new(file, endpoint, served, protection)
            .map_err(|error| StartError::State(format!("{}: {error}", state.join("promises").display())))?;
        endpoint.add_service(file_server.service(self.security()));

        let registration = Registration { uuid, addresses: self.addresses.clone() };
        register(vl, registration, &self.runtime, Arc::downgrade(alive)).await;
        let runtime = Arc::clone(&self.runtime);
        self.runtime.spawn(Box::pin(health::watch(partitions.clone(), runtime, Arc::downgrade(alive))));
        Ok((file_server, partitions))
    }

    fn serve_volumes(&self, partitions: &Partitions, file_server: FileServer) -> VolumeService {
        let mut config = afs_volserver::Config::new(|| AfsTime(seconds()));
        config.is_restricted = self.config.vol.restricted_query == Query::Admin;
        config.idle_limit = Duration::from_secs(self.config.vol.idle_transaction_seconds.into());
        let authority = Arc::clone(&self.authority);
        let watcher = Arc::new(ClientsAreTold(file_server));
        let peers = Arc::new(VolumePeers {
            endpoint: self.endpoint(Role::Vol).downgrade(),
            rxkad: self.rxkad.clone(),
            runtime: Arc::clone(&self.runtime),
        });
        let runtime = Arc::clone(&self.runtime);
        let service = VolumeService::new(partitions.clone(), authority, watcher, peers, runtime, config);
        self.endpoint(Role::Vol).add_service(service.config(self.security()));
        service
    }

    /// The instances, of which those are stopped that were when the process last ran.
    fn instances(&self) -> Result<Arc<Instances>, StartError> {
        let file = self.config.server.state.join("stopped");
        let program = program().display().to_string();
        let instances =
            Instances::new(&self.config.server.roles, &program, file.clone(), || AfsTime(seconds()));
        let instances =
            instances.map_err(|error| StartError::State(format!("{}: {error}", file.display())))?;
        Ok(Arc::new(instances))
    }

    fn serve_bos(&self, recent: Recent, orders: &Orders, instances: Arc<Instances>) {
        let program = program();
        let path = &self.config.server.bos_config;
        // It was read before, where it counts.
        let bos_config = BosConfig::read(path).unwrap_or_default();
        let overseer = Overseer {
            authority: Arc::clone(&self.authority),
            cell: self.folder.own().clone(),
            cells: self.folder.path.join("CellServDB"),
            changes_cells: Arc::default(),
            recent,
            audit_file: self.config.audit_file(),
            orders: orders.clone(),
            keys: self.rxkad.keys(),
            instances,
            salvager: Arc::default(),
            program,
            bos_config,
        };
        self.endpoint(Role::Bos).add_service(rx_service::<Bozo, _>(Arc::new(overseer), self.security()));
    }
}

/// The program that runs.
fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("afar"))
}

fn volume_config(volumes: &Volumes, memory: &Memory, partitions: usize) -> afs_volume::Config {
    let defaults = afs_volume::Config::default();
    let sync = match volumes.sync {
        Sync::Always => afs_volume::SyncPolicy::Always,
        Sync::Interval => defaults.sync,
    };
    afs_volume::Config {
        sync,
        reserve_kib: u64::from(volumes.reserve_mib) << 10,
        log_bytes: memory.log_bytes(partitions),
        cache_bytes: memory.btree_bytes(partitions),
        ..defaults
    }
}

/// The file service, told of what the volume service does.
struct ClientsAreTold(FileServer);

impl Watcher for ClientsAreTold {
    fn volume_changed(&self, volume: VolumeId) -> BoxFuture {
        let file_server = self.0.clone();
        Box::pin(async move { file_server.volume_changed(volume).await })
    }
}
