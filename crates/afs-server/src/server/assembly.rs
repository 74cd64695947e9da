//! Puts the roles of a server together: the port of each, what it opens or asks, and the service that it then offers. In which order
//! they start, and how they end, is left to the parent.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use afs_admin::devices::DeviceDb;
use afs_admin::vldb::LocationDb;
use afs_admin::{DatabaseServers, Login};
use afs_celldb::devices::{Devices, JoinService, Randomness, Surroundings};
use afs_celldb::ptdb::{Administrator, PtError, PtService, Ptdb, Rules};
use afs_celldb::store::CellStore;
use afs_celldb::tokens::TokenService;
use afs_celldb::ubik::VoteService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Clock, Database, rx_service, was_changed_by};
use afs_config::{AddressRules, BosConfig, CellName, ServerFolder};
use afs_fileserver::remembered::NAME as PROMISES;
use afs_fileserver::{FileServer, Locations, Protection, WallClock, Writers};
use afs_join::Limits;
use afs_volserver::{Partitions, VolumeService, Watcher};
use afs_volume::disk::FolderDisk;
use afs_wire::bos::Bozo;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::join::Join;
use afs_wire::pt::Pr;
use afs_wire::rxgk::Rxgk;
use afs_wire::ubik::vote::Vote;
use afs_wire::vl::Vl as VlInterface;
use rx::{BoxFuture, Endpoint, EndpointConfig, Runtime, SocketOptions};
use rx_proto::security::ServerSecurity;
use rx_security::identity::LocalRealms;
use rx_security::ticket::NameRules;
use rx_security::{UnixTime, rxkad};
use zeroize::Zeroizing;

use crate::addresses;
use crate::authority::CellAuthority;
use crate::bozo::Overseer;
use crate::bozo::instances::Instances;
use crate::classes::Classes;
use crate::config::{Config, Level, Query, Role, Sync, Volumes};
use crate::databases;
use crate::first_start::{
    NewCell, Pending, administrator_is_made, make_configuration, make_folder, note_writer,
    pending_administrator,
};
use crate::health;
use crate::join::token_maker;
use crate::keys;
use crate::locations::{LocalLocations, RemoteLocations};
use crate::log::Recent;
use crate::memory::Memory;
use crate::orders::Orders;
use crate::peers::{VolumePeers, cell_login};
use crate::protection::{LocalProtection, RemoteProtection};
use crate::registration::{Registration, Vl, register};
use crate::revocations::{Revocations, Source};
use crate::sysid;
use crate::vice;

use super::StartError;

/// The state that the roles share while they are put together.
pub(super) struct Assembly<'a> {
    pub(super) config: &'a Config,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) folder: ServerFolder,
    pub(super) authority: Arc<CellAuthority>,
    pub(super) classes: Classes,
    /// The addresses to tell others.
    pub(super) addresses: Vec<Ipv4Addr>,
    pub(super) endpoints: BTreeMap<Role, Endpoint>,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(config: &'a Config, runtime: Arc<dyn Runtime>) -> Result<Self, StartError> {
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
        let (bind, public) = (config.server.bind, &config.server.public);
        let addresses = addresses::advertised(bind, public, &interfaces, info.as_ref(), restrict.as_ref());
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
            let cell = NewCell {
                name,
                servers,
                administrator,
                key: Zeroizing::new(chance()?),
                rxgk_key: Zeroizing::new(chance()?),
            };
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
        let level = |level| match level {
            Level::Clear => rx_security::Level::Clear,
            Level::Auth => rx_security::Level::Auth,
            Level::Crypt => rx_security::Level::Crypt,
        };
        let [min_level, rxgk_min_level] =
            [config.security.min_level, config.security.rxgk_min_level].map(level);
        let realms =
            LocalRealms::of_cell(folder.cell.as_str()).with_realms(&local.realms).without(&local.excluded);
        let names = NameRules { allow_dotted: config.security.allow_dotted_principals };
        let options = rxkad::ServerOptions { min_level, realms, names };
        let clock = Arc::new(|| UnixTime(seconds()));
        let classes = Classes::new(keys, options, rxgk_min_level, clock, chance()?);
        let endpoints = BTreeMap::new();
        Ok(Self { config, runtime, folder, authority, classes, addresses, endpoints })
    }

    fn security(&self) -> Vec<Arc<dyn ServerSecurity>> {
        self.classes.offered()
    }

    fn clock() -> Clock {
        Arc::new(seconds)
    }

    pub(super) fn bind(&self, role: Role) -> Result<Endpoint, StartError> {
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

    /// Makes logins with the newest key there is then: an older one may have been removed.
    fn logins(&self) -> Result<impl Fn() -> Login + Clone + Send + std::marker::Sync + use<>, StartError> {
        let first = cell_login(&self.classes, &self.runtime, rx_security::Level::Crypt)
            .map_err(|error| StartError::Folder(format!("{}: {error}", self.folder.path.display())))?;
        let (classes, runtime) = (self.classes.clone(), Arc::clone(&self.runtime));
        Ok(move || {
            cell_login(&classes, &runtime, rx_security::Level::Crypt).unwrap_or_else(|_| first.clone())
        })
    }

    /// The addresses of the cell's databases.
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

    /// The rules of who may do what with the protection database.
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

    pub(super) async fn serve_pt(
        &self,
        store: &Arc<dyn CellStore>,
    ) -> Result<Arc<Database<Ptdb>>, StartError> {
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
                (Ok(()), Some(_)) => {}
                (Ok(()), None) => tracing::warn!(
                    "the protection database was empty and has the system's groups now: if the cell had users, stop the server, and \
                     import its databases or correct where they are (databases.etcd and databases.etcd_prefix, or server.state)"
                ),
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

    pub(super) async fn serve_vl(
        &self,
        store: &Arc<dyn CellStore>,
    ) -> Result<Arc<Database<Vldb>>, StartError> {
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
        let (classes, runtime) = (self.classes.clone(), Arc::clone(&self.runtime));
        let (keys, clock) = (Arc::new(move || classes.keys()), Arc::new(|| UnixTime(seconds())));
        let tokens = Arc::new(TokenService::new(Arc::clone(&database), keys, clock, runtime));
        endpoint.add_service(rx_service::<Rxgk, _>(tokens, self.security()));
        Ok(database)
    }

    /// Serves invitations and devices, on the port of the volume location database.
    pub(super) async fn serve_join(
        &self,
        store: &Arc<dyn CellStore>,
    ) -> Result<Arc<Database<Devices>>, StartError> {
        let database: Arc<Database<Devices>> = databases::open(store, self.config, self.chance()?).await?;
        let (classes, cell, runtime) =
            (self.classes.clone(), self.folder.cell.to_string(), Arc::clone(&self.runtime));
        let randomness: Randomness = Arc::new(move || runtime.seed());
        let tokens = token_maker(move || classes.keys(), cell.clone(), Arc::clone(&randomness));
        let (begun, runtime) = (self.runtime.now(), Arc::clone(&self.runtime));
        let authority = Arc::clone(&self.authority);
        let of = Surroundings {
            cell,
            authority,
            clock: Self::clock(),
            uptime: Arc::new(move || runtime.now().since(begun)),
            randomness,
            tokens,
        };
        let service = JoinService::new(Arc::clone(&database), of, Limits::default());
        let service = service.map_err(|error| StartError::State(error.to_string()))?;
        self.endpoint(Role::Vl).add_service(rx_service::<Join, _>(Arc::new(service), self.security()));
        Ok(database)
    }

    /// Refuses devices that were revoked, from here on for as long as the server runs.
    pub(super) fn refuse_revoked(&self, devices: Option<Arc<Database<Devices>>>) {
        let source = match devices {
            Some(database) => Source::Local(database),
            None => match (self.endpoints.values().next(), self.database_servers(), self.logins()) {
                (Some(endpoint), Ok(servers), Ok(logins)) => {
                    Source::Remote(DeviceDb::with_logins(endpoint, &servers, logins))
                }
                // Without anybody to ask, or a key, it cannot know of a device that it is good.
                _ => return self.classes.refuse_devices(|_| true),
            },
        };
        let revocations = Revocations::new(source, self.config.security.revocation, &self.runtime);
        self.classes.refuse_devices(move |device| revocations.refuses(device));
    }

    fn vote<I: afs_celldb::database::Image>(&self, database: &Arc<Database<I>>) -> Arc<VoteService<I>> {
        Arc::new(VoteService::new(Arc::clone(database), self.addresses.clone(), Self::clock()))
    }

    pub(super) async fn serve_files(
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
        let login = self.logins()?;
        let protection: Arc<dyn Protection> = match ptdb {
            Some(database) => {
                let authority = Arc::clone(&self.authority);
                Arc::new(LocalProtection { database, rules: self.rules(), authority })
            }
            None => {
                let servers =
                    DatabaseServers::with_logins::<Pr>(endpoint, &self.database_servers()?, login.clone());
                Arc::new(RemoteProtection { servers, authority: Arc::clone(&self.authority) })
            }
        };
        let (vl, locations): (Vl, Arc<dyn Locations>) = match vldb {
            Some(database) => (Vl::Local(Arc::clone(&database)), Arc::new(LocalLocations(database))),
            None => {
                let servers = self.database_servers()?;
                let locations =
                    DatabaseServers::with_logins::<VlInterface>(endpoint, &servers, login.clone());
                let vldb =
                    LocationDb::at(DatabaseServers::with_logins::<VlInterface>(endpoint, &servers, login));
                (Vl::Remote(vldb), Arc::new(RemoteLocations(locations)))
            }
        };
        let path = state.join("sysid");
        let uuid = sysid::load_or_make(&path, self.chance()?, &self.addresses)
            .map_err(|error| StartError::State(format!("{}: {error}", path.display())))?;
        let mut file = afs_fileserver::Config::new(uuid);
        file.max_calls = config.file.max_calls as usize;
        file.max_waiting = config.file.busy_at as usize;
        file.max_promises = memory.callbacks;
        file.hosts.hosts = memory.hosts;
        file.break_wait = Duration::from_millis(config.file.callback_wait_ms.into());
        file.membership_life = Duration::from_secs(config.file.groups_seconds.into());
        file.writers = match (config.file.read_only, config.file.administrators_write) {
            (false, _) => Writers::Everybody,
            (true, true) => Writers::Administrators,
            (true, false) => Writers::Nobody,
        };
        file.implicit_rights = config.administrators_rights();
        file.takes_old_acls = config.file.old_access_lists;
        let failed = |error| StartError::State(format!("{}: {error}", state.join(PROMISES).display()));
        file.promises = Some(Arc::new(FolderDisk::among_others(state).map_err(failed)?));
        file.locations = Some(locations);
        file.clock = WallClock::system();
        let served = Arc::new(vice::Served(partitions.clone()));
        let file_server = FileServer::new(file, endpoint, served, protection).map_err(failed)?;
        endpoint.add_service(file_server.service(self.classes.offered_by(&file_server, uuid)));

        let classes = self.classes.clone();
        let registration = Registration { uuid, addresses: self.addresses.clone(), classes };
        register(vl, registration, &self.runtime, Arc::downgrade(alive)).await;
        let runtime = Arc::clone(&self.runtime);
        self.runtime.spawn(Box::pin(health::watch(partitions.clone(), runtime, Arc::downgrade(alive))));
        Ok((file_server, partitions))
    }

    pub(super) fn serve_volumes(
        &self,
        partitions: &Partitions,
        file_server: FileServer,
        vldb: Option<Arc<Database<Vldb>>>,
    ) -> Result<VolumeService, StartError> {
        let mut config = afs_volserver::Config::new(|| AfsTime(seconds()));
        config.is_restricted = self.config.vol.restricted_query == Query::Admin;
        config.idle_limit = Duration::from_secs(self.config.vol.idle_transaction_seconds.into());
        config.schedule = self.config.schedule();
        config.undelete_limit = Duration::from_secs(u64::from(self.config.vol.undelete_days) * 86_400);
        let authority = Arc::clone(&self.authority);
        let watcher = Arc::new(ClientsAreTold(file_server));
        let peers = Arc::new(VolumePeers {
            endpoint: self.endpoint(Role::Vol).downgrade(),
            locations: match vldb {
                Some(database) => crate::peers::Locations::Local(database),
                None => crate::peers::Locations::Remote(self.database_servers()?),
            },
            classes: self.classes.clone(),
            runtime: Arc::clone(&self.runtime),
            encryption: self.config.vol.encryption,
        });
        let runtime = Arc::clone(&self.runtime);
        let service = VolumeService::new(partitions.clone(), authority, watcher, peers, runtime, config);
        self.endpoint(Role::Vol).add_service(service.config(self.security()));
        Ok(service)
    }

    /// Makes the instances. Those that were stopped when the process last ran are stopped again.
    pub(super) fn instances(&self) -> Result<Arc<Instances>, StartError> {
        let file = self.config.server.state.join("stopped");
        let program = program().display().to_string();
        let instances =
            Instances::new(&self.config.server.roles, &program, file.clone(), || AfsTime(seconds()));
        let instances =
            instances.map_err(|error| StartError::State(format!("{}: {error}", file.display())))?;
        Ok(Arc::new(instances))
    }

    pub(super) fn serve_bos(&self, recent: Recent, orders: &Orders, instances: Arc<Instances>) {
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
            classes: self.classes.clone(),
            instances,
            salvager: Arc::default(),
            program,
            bos_config,
        };
        self.endpoint(Role::Bos).add_service(rx_service::<Bozo, _>(Arc::new(overseer), self.security()));
    }
}

fn seconds() -> u32 {
    UnixTime::of(SystemTime::now()).0
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
