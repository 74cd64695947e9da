//! The parts of a client, and how they are put together: each gets those that it uses, and reaches no others. What a client does as a
//! whole is left to the parent.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use afs_cache::Cache;
use afs_config::CellName;
use afs_wire::Uuid;
use rx::{Endpoint, Runtime};

use crate::client::callbacks::{CallbackService, Promises};
use crate::config::Config;
use afs_reach::cells::Cells;
use afs_reach::closing::Closing;
use afs_reach::connections::Connections;
use afs_reach::dns::DnsCells;
use afs_reach::error::Error;
use afs_reach::fid::User;
use afs_reach::liveness::Liveness;
use afs_reach::location::Locations;
use afs_reach::pags::Pags;
use afs_reach::remote::Calls;
use afs_reach::table::Servers;
use afs_reach::users::Users;
use afs_view::data::fetch::prefetch::{Prefetch, Readings};
use afs_view::data::files::{Files, local};
use afs_view::data::locks::Locks;
use afs_view::data::locks::calls::LockCalls;
use afs_view::data::open_files::OpenFiles;
use afs_view::data::streams::Streams;
use afs_view::data::write_behind;
use afs_view::dependents::Dependents;
use afs_view::events::Invalidations;
use afs_view::names::changes::{self, Changes};
use afs_view::names::directory::Directories;
use afs_view::names::dynroot::DynamicRoot;
use afs_view::names::links::Links;
use afs_view::names::lookup::{Names, SysNames};
use afs_view::names::mount_point::MountPoints;
use afs_view::pins::{Limits, Pins};
use afs_view::vnodes::attributes::Statuses;
use afs_view::vnodes::single_flight::SingleFlight;
use afs_view::vnodes::status::unix_time;
use afs_view::vnodes::suspended::SuspendDetector;
use afs_view::vnodes::table::Vnodes;

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
    pub(crate) pins: Arc<Pins>,
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
    let invalidations = Invalidations::new(Arc::clone(&runtime), Arc::default());
    let invalidations = Arc::new(invalidations.handling_within(config.handling_max));
    let offline_max = config.write_behind.map_or(Duration::ZERO, |_| config.offline_max);
    let vnodes = Arc::new(Vnodes::new(config.status_entries, config.directory_bytes, offline_max));
    let cache = open_cache(&config)?;
    let reach = afs_reach::config::Config {
        runtime: Arc::clone(&runtime),
        endpoint,
        uuid,
        seed,
        cells: &config.cells,
        dns: config.dns.clone(),
        location_port: config.ports.location,
        file_port: config.ports.file,
        level: config.level,
        patience: config.patience,
        dead_after: config.dead_after,
    };
    // Calls tell the locks of volumes that have moved, which then are asked for by calls.
    let mut locks = None;
    let lock_calls = Arc::new_cyclic(|lock_calls: &Weak<LockCalls>| {
        let locks = locks.insert(Arc::new(Locks::new(Arc::clone(&runtime), lock_calls.clone())));
        let dependents = Dependents {
            vnodes: Arc::clone(&vnodes),
            locks: Arc::clone(locks),
            invalidations: Arc::clone(&invalidations),
        };
        let calls = Arc::new(Calls::new(reach, Arc::clone(&vnodes.volumes), Arc::new(dependents)));
        let statuses = Arc::new(Statuses {
            vnodes: Arc::clone(&vnodes),
            users: Arc::clone(&calls.users),
            calls: Arc::clone(&calls),
            single_flight: SingleFlight::default(),
            invalidations: Arc::clone(&invalidations),
        });
        LockCalls { calls, statuses }
    });
    let locks = locks.expect("made with the calls");
    let (calls, statuses) = (Arc::clone(&lock_calls.calls), Arc::clone(&lock_calls.statuses));
    log_local_users_in(&config, &calls.cells, &calls.users)?;
    let started = unix_time(&*runtime);
    let dynamic_root = DynamicRoot::new(Arc::clone(&calls.cells), config.aliases.aliases.clone(), started);
    let dynamic_root = Arc::new(dynamic_root);
    let changes = Changes::new(
        &calls,
        &statuses,
        cache,
        &dynamic_root,
        changes::Options {
            is_fakestat: config.fakestat,
            shows_snapshots: config.shows_snapshots,
            sysnames: SysNames::new(config.sysnames.clone()),
        },
        write_behind::Options {
            mode: config.write_behind,
            offline_max: config.offline_max,
            fsync: config.fsync,
        },
    );
    let prefetch = Arc::new(Prefetch {
        readings: Readings::default(),
        runtime: Arc::clone(&runtime),
        users: Arc::clone(&calls.users),
        vnodes: Arc::clone(&vnodes),
        statuses: Arc::clone(&statuses),
        open_files: Arc::clone(&changes.open_files),
        files: Arc::clone(&changes.files),
    });
    let pins = Pins::new(
        &changes,
        Limits {
            vnodes: config.status_entries,
            page_bytes: config.directory_bytes,
            offline_max: config.offline_max,
        },
    );
    let callbacks = Arc::new(CallbackService {
        uuid,
        promises: Promises {
            calls: Arc::clone(&calls),
            vnodes: Arc::clone(&vnodes),
            locks: Arc::clone(&locks),
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
        Arc::clone(&calls.servers),
        Arc::clone(&invalidations),
        Arc::clone(&locks),
    )
    .after(config.lapse);
    Ok(Parts {
        uuid,
        users: Arc::clone(&calls.users),
        pags: Pags::default(),
        servers: Arc::clone(&calls.servers),
        cells: Arc::clone(&calls.cells),
        dns: Arc::clone(&calls.dns),
        connections: Arc::clone(&calls.connections),
        liveness: Arc::clone(&calls.liveness),
        locations: Arc::clone(&calls.locations),
        closing: calls.closing.clone(),
        locks,
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
        pins: Arc::new(pins),
        _lock_calls: lock_calls,
        runtime,
        config,
    })
}

/// Opens the cache.
///
/// # Errors
///
/// The cache's, which say what to do.
fn open_cache(config: &Config) -> Result<Cache, Error> {
    let with = |limit_bytes| afs_cache::Config {
        max_files: config.cached_files,
        index_bytes: config.index_bytes,
        log_bytes: config.index_log_bytes,
        has_keeper: config.cache_disk.is_none(),
        syncs_each_second: config.write_behind.is_some(),
        ..afs_cache::Config::new(limit_bytes)
    };
    if let (Some(_), None) = (config.write_behind, &config.cache) {
        let what = "write-behind needs a cache folder, where what is not stored yet outlasts the client";
        return Err(Error::Invalid { what: what.to_owned() });
    }
    let cache = match (&config.cache, &config.cache_disk) {
        (Some(cache), Some(disk)) => Cache::open_on(Arc::clone(disk), &cache.folder, with(cache.limit_bytes)),
        (Some(cache), None) => Cache::open(&cache.folder, with(cache.limit_bytes)),
        // What is read again at once, and what is not stored yet.
        (None, _) => Cache::in_memory(with(config.data_bytes)),
    };
    cache.map_err(local)
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
