//! The parts of a client, and how they are put together: each gets those that it uses, and reaches no others. What a client does as a
//! whole is left to the parent.

use std::sync::{Arc, Mutex, Weak};

use afs_cache::Cache;
use afs_config::CellName;
use afs_wire::Uuid;
use rx::{Endpoint, Runtime};

use crate::closing::Closing;
use crate::config::Config;
use crate::data::fetch::prefetch::{Prefetch, Readings};
use crate::data::files::{Files, open_cache};
use crate::data::locks::Locks;
use crate::data::locks::calls::LockCalls;
use crate::data::open_files::OpenFiles;
use crate::error::Error;
use crate::events::Invalidations;
use crate::fid::User;
use crate::names::changes::Changes;
use crate::names::directory::Directories;
use crate::names::dynroot::DynamicRoot;
use crate::names::links::Links;
use crate::names::lookup::{Names, SysNames};
use crate::names::mount_point::{MountPoints, Mounts};
use crate::servers::cells::Cells;
use crate::servers::connections::Connections;
use crate::servers::dns::DnsCells;
use crate::servers::liveness::{Liveness, Probe};
use crate::servers::location::Locations;
use crate::servers::pags::Pags;
use crate::servers::remote::Calls;
use crate::servers::streams::Streams;
use crate::servers::table::Servers;
use crate::servers::users::Users;
use crate::servers::waiting::Waiting;
use crate::service::callbacks::{CallbackService, Promises};
use crate::vnodes::attributes::Statuses;
use crate::vnodes::single_flight::SingleFlight;
use crate::vnodes::status::unix_time;
use crate::vnodes::suspended::SuspendDetector;
use crate::vnodes::table::Vnodes;

/// The state that all clones share: the parts of a client. Each part has the parts that it uses.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) uuid: Uuid,
    pub(crate) users: Arc<Users>,
    pub(crate) pags: Pags,
    pub(crate) servers: Arc<Servers>,
    pub(crate) cells: Arc<Cells>,
    pub(crate) dns: Arc<DnsCells>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) locations: Arc<Locations>,
    /// The calls through which servers are asked.
    pub(crate) calls: Arc<Calls>,
    pub(crate) streams: Streams,
    pub(crate) vnodes: Arc<Vnodes>,
    pub(crate) suspended: Arc<SuspendDetector>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) mount_points: Arc<MountPoints>,
    pub(crate) links: Arc<Links>,
    pub(crate) directories: Arc<Directories>,
    pub(crate) names: Arc<Names>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) dynamic_root: Arc<DynamicRoot>,
    pub(crate) callbacks: Arc<CallbackService>,
    pub(crate) invalidations: Arc<Invalidations>,
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) files: Arc<Files>,
    pub(crate) prefetch: Arc<Prefetch>,
    pub(crate) locks: Arc<Locks>,
    /// Here, as the locks do not keep it.
    _lock_calls: Arc<LockCalls>,
    pub(crate) closing: Closing,
}

/// Makes the parts of a client and gives each those that it uses.
pub(super) fn assemble(
    runtime: Arc<dyn Runtime>,
    config: Config,
    endpoint: Endpoint,
    seed: [u8; 32],
) -> Result<Parts, Error> {
    let uuid = config.uuid.unwrap_or_else(|| Uuid::random(&seed));
    let users = Arc::new(Users::new(Arc::clone(&runtime), config.level));
    let servers = Arc::new(Servers::new(uuid.time_low.into()));
    let cells = Arc::new(Cells::new(&config.cells, config.ports, &servers));
    let (mounts, closing) = (Arc::<Mounts>::default(), Closing::default());
    let invalidations = Arc::new(Invalidations::new(Arc::clone(&runtime), Arc::clone(&mounts)));
    let dns = Arc::new(DnsCells::new(
        config.dns.clone(),
        seed,
        Arc::clone(&runtime),
        Arc::clone(&cells),
        Arc::clone(&servers),
        Arc::clone(&invalidations),
        closing.clone(),
    ));
    let connections = Arc::new(Connections::new(endpoint, Arc::clone(&users)));
    let probe: Arc<dyn Probe> = connections.clone();
    let liveness = Arc::new(Liveness::new(Arc::clone(&servers), probe, Arc::clone(&runtime)));
    let locations = Arc::new(Locations::new(Arc::clone(&runtime), Arc::clone(&servers), config.ports.file));
    let vnodes = Arc::new(Vnodes::new(config.status_entries, config.directory_bytes));
    let cache = open_cache(&config)?;
    log_local_users_in(&config, &cells, &users)?;
    // Calls tell the locks of volumes that have moved, which then are asked for by calls.
    let lock_calls = Arc::new_cyclic(|lock_calls: &Weak<LockCalls>| {
        let calls = Arc::new(Calls {
            runtime: Arc::clone(&runtime),
            patience: config.patience,
            dead_after: config.dead_after,
            users: Arc::clone(&users),
            servers: Arc::clone(&servers),
            cells: Arc::clone(&cells),
            dns: Arc::clone(&dns),
            locations: Arc::clone(&locations),
            connections: Arc::clone(&connections),
            liveness: Arc::clone(&liveness),
            vnodes: Arc::clone(&vnodes),
            mounts: Arc::clone(&mounts),
            locks: Arc::new(Locks::new(Arc::clone(&runtime), lock_calls.clone())),
            waiting: Waiting::default(),
            closing: closing.clone(),
        });
        let statuses = Arc::new(Statuses {
            vnodes: Arc::clone(&vnodes),
            users: Arc::clone(&users),
            calls: Arc::clone(&calls),
            single_flight: SingleFlight::default(),
            invalidations: Arc::clone(&invalidations),
        });
        LockCalls { calls, statuses }
    });
    let (calls, statuses) = (Arc::clone(&lock_calls.calls), Arc::clone(&lock_calls.statuses));
    let started = unix_time(&*runtime);
    let dynamic_root = DynamicRoot::new(Arc::clone(&cells), config.aliases.aliases.clone(), started);
    let dynamic_root = Arc::new(dynamic_root);
    let changes = names(
        &calls,
        &statuses,
        cache,
        &dynamic_root,
        config.fakestat,
        SysNames::new(config.sysnames.clone()),
    );
    let prefetch = Arc::new(Prefetch {
        readings: Readings::default(),
        runtime: Arc::clone(&runtime),
        users: Arc::clone(&users),
        vnodes: Arc::clone(&vnodes),
        statuses: Arc::clone(&statuses),
        mount_points: Arc::clone(&changes.mount_points),
        open_files: Arc::clone(&changes.open_files),
        files: Arc::clone(&changes.files),
    });
    let callbacks = Arc::new(CallbackService {
        uuid,
        promises: Promises {
            calls: Arc::clone(&calls),
            vnodes: Arc::clone(&vnodes),
            invalidations: Arc::clone(&invalidations),
        },
        open_files: Arc::clone(&changes.open_files),
        home: config.cell.clone(),
        status_entries: config.status_entries,
        cache_limit_bytes: config.cache.as_ref().map(|cache| cache.limit_bytes),
        walk: Mutex::default(),
    });
    let suspended = SuspendDetector::new(
        runtime.boot_time(),
        Arc::clone(&servers),
        Arc::clone(&invalidations),
        Arc::clone(&calls.locks),
    );
    Ok(Parts {
        uuid,
        users,
        pags: Pags::default(),
        servers,
        cells,
        dns,
        connections,
        liveness,
        locations,
        locks: Arc::clone(&calls.locks),
        calls,
        streams: changes.directories.streams.clone(),
        vnodes,
        suspended: Arc::new(suspended),
        statuses,
        mount_points: Arc::clone(&changes.mount_points),
        links: Arc::clone(&changes.links),
        directories: Arc::clone(&changes.directories),
        names: Arc::clone(&changes.names),
        open_files: Arc::clone(&changes.open_files),
        files: Arc::clone(&changes.files),
        changes,
        dynamic_root,
        callbacks,
        invalidations,
        prefetch,
        _lock_calls: lock_calls,
        closing,
        runtime,
        config,
    })
}

/// Makes the parts that look up and change names, and the part that holds the data of files. Returns the [`Changes`], whose fields are
/// these parts.
pub(crate) fn names(
    calls: &Arc<Calls>,
    statuses: &Arc<Statuses>,
    cache: Cache,
    dynamic_root: &Arc<DynamicRoot>,
    is_fakestat: bool,
    sysnames: SysNames,
) -> Arc<Changes> {
    let vnodes = &calls.vnodes;
    let streams = Streams::new(Arc::clone(statuses));
    let links = Arc::new(Links {
        vnodes: Arc::clone(vnodes),
        statuses: Arc::clone(statuses),
        streams: streams.clone(),
        dynamic_root: Arc::clone(dynamic_root),
    });
    let mount_points = Arc::new(MountPoints::new(
        Arc::clone(calls),
        Arc::clone(statuses),
        Arc::clone(&links),
        Arc::clone(dynamic_root),
        is_fakestat,
    ));
    // Hidden names go by changes of names, which ask which files are open.
    Arc::new_cyclic(|changes: &Weak<Changes>| {
        let open_files = Arc::new(OpenFiles::new(Arc::clone(&calls.runtime), changes.clone()));
        let files = Files::new(
            cache,
            Arc::clone(calls),
            Arc::clone(statuses),
            streams.clone(),
            Arc::clone(&open_files),
        );
        let directories = Arc::new(Directories {
            runtime: Arc::clone(&calls.runtime),
            users: Arc::clone(&calls.users),
            vnodes: Arc::clone(vnodes),
            statuses: Arc::clone(statuses),
            streams,
            dynamic_root: Arc::clone(dynamic_root),
            mount_points: Arc::clone(&mount_points),
            open_files: Arc::clone(&open_files),
        });
        let names = Arc::new(Names {
            directories: Arc::clone(&directories),
            mount_points: Arc::clone(&mount_points),
            dynamic_root: Arc::clone(dynamic_root),
            dns: Arc::clone(&calls.dns),
            vnodes: Arc::clone(vnodes),
            open_files: Arc::clone(&open_files),
            sysnames,
        });
        Changes {
            calls: Arc::clone(calls),
            vnodes: Arc::clone(vnodes),
            statuses: Arc::clone(statuses),
            names,
            directories,
            mount_points,
            links,
            open_files,
            files: Arc::new(files),
        }
    })
}

/// Gives the users of the configuration their tickets.
fn log_local_users_in(config: &Config, cells: &Cells, users: &Users) -> Result<(), Error> {
    for (name, keys) in &config.keys {
        let keys = Arc::new(keys.clone());
        for user in config.users.iter().filter(|user| user.cell == *name) {
            let cell = cells.find(name.as_str())?;
            let cell = (cell.index, name.as_str());
            users.log_in_by_key(User::of(user.uid), cell, &keys, &user.name)?;
        }
    }
    let has_key = |cell: &CellName| config.keys.iter().any(|(name, _)| name == cell);
    match config.users.iter().find(|user| !has_key(&user.cell)) {
        Some(user) => Err(Error::Invalid {
            what: format!(
                "cannot make a ticket for the local user {} as {}: there is no key of the cell {}",
                user.uid, user.name, user.cell
            ),
        }),
        None => Ok(()),
    }
}
