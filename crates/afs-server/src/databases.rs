//! The cell's databases: where a configuration keeps them, in a file or in etcd; which other machines serve them; and
//! how well this one keeps up with those, for the metrics.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use afs_celldb::database::Image;
use afs_celldb::ptdb::Ptdb;
use afs_celldb::store::embedded::EmbeddedStore;
use afs_celldb::store::{CellStore, check_changes};
use afs_celldb::vldb::Vldb;
use afs_celldb::{Database, Freshness, OpenError, Options, version_in};
use afs_config::CellName;
use tokio::time::{Instant, sleep};

use crate::addresses;
use crate::config::{Config, Role};
use crate::first_start::{close_folder, make_folder, pending_administrator};
use crate::server::StartError;

/// How long a start waits for etcd, which may be starting too after a power cut. Then systemd tries again.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

const AGE: (&str, &str) = (
    "afs_server_database_age_seconds",
    "Seconds since the server last knew that its copy in memory was current.",
);
const QUORUM: (&str, &str) =
    ("afs_server_database_quorum", "1 while etcd answers, so that changes can be made, otherwise 0.");
const FROM_MEMORY: (&str, &str) =
    ("afs_server_database_from_memory", "Look-ups that were answered while etcd did not answer.");
const CONFLICTS: (&str, &str) = (
    "afs_server_database_conflicts",
    "Changes that were retried because another server changed the database first.",
);
const RELOADS: (&str, &str) =
    ("afs_server_database_reloads", "Times that the whole database was read again from etcd.");

/// Opens the store that the configuration names: etcd, or a file in the state folder.
///
/// # Errors
///
/// If a setting makes no sense, or the file cannot be opened. An etcd that cannot be reached is no error yet.
pub fn open_store(config: &Config, cell: &CellName) -> Result<Arc<dyn CellStore>, StartError> {
    if !config.databases.etcd.is_empty() {
        return etcd(config, cell);
    }
    let folder = config.server.state.join("databases");
    make_folder(&folder, 0o700)
        .and_then(|()| close_folder(&folder))
        .map_err(|error| StartError::Database(error.to_string()))?;
    let store = EmbeddedStore::open(&folder.join("cell.redb"));
    Ok(Arc::new(store.map_err(|error| StartError::Database(error.to_string()))?))
}

/// The prefix of the cell's keys in etcd.
pub fn etcd_prefix(config: &Config, cell: &CellName) -> String {
    match &config.databases.etcd_prefix[..] {
        "" => format!("/afar/{cell}/"),
        prefix => prefix.to_owned(),
    }
}

#[cfg(not(feature = "etcd"))]
fn etcd(_: &Config, _: &CellName) -> Result<Arc<dyn CellStore>, StartError> {
    let what = "this program was built without etcd: take the Debian package, or build it with 'cargo build --release -p afar \
                --features etcd'";
    Err(StartError::Setting { key: "databases.etcd", what: what.to_owned() })
}

#[cfg(feature = "etcd")]
fn etcd(config: &Config, cell: &CellName) -> Result<Arc<dyn CellStore>, StartError> {
    use afs_celldb::store::etcd::{Config as Etcd, EtcdStore};

    let settings = config.databases.clone();
    // A setting that is wrong at the start is named; what becomes of its file later is told by the connection.
    credentials(&settings).map_err(|(key, what)| StartError::Setting { key, what })?;
    let endpoints = settings.etcd.clone();
    let credentials =
        Arc::new(move || credentials(&settings).map_err(|(key, what)| format!("{key}: {what}")));
    let store = EtcdStore::new(Etcd { endpoints, prefix: etcd_prefix(config, cell), credentials });
    Ok(Arc::new(
        store.map_err(|error| StartError::Setting { key: "databases.etcd", what: error.to_string() })?,
    ))
}

/// Reads the files with which the server and etcd tell each other who they are.
///
/// # Errors
///
/// The setting whose file cannot be read, and why.
#[cfg(feature = "etcd")]
fn credentials(
    settings: &crate::config::Databases,
) -> Result<afs_celldb::store::etcd::Credentials, (&'static str, String)> {
    use afs_celldb::store::etcd::{Credentials, Password, Tls};
    use std::path::Path;
    use zeroize::Zeroizing;

    let is_set = |path: &Path| !path.as_os_str().is_empty();
    let read = |key: &'static str, path: &Path| {
        let bytes = std::fs::read(path).map(Zeroizing::new);
        bytes.map_err(|error| (key, format!("{}: {error}", path.display())))
    };
    let mut credentials = Credentials::default();
    if settings.etcd.iter().any(|url| url.starts_with("https://")) {
        let mut tls =
            Tls { authorities: read("databases.etcd_ca", &settings.etcd_ca)?.to_vec(), identity: None };
        if is_set(&settings.etcd_certificate) {
            let certificate = read("databases.etcd_certificate", &settings.etcd_certificate)?.to_vec();
            tls.identity = Some((certificate, read("databases.etcd_key", &settings.etcd_key)?));
        }
        credentials.tls = Some(tls);
    }
    if !settings.etcd_user.is_empty() {
        let text = read("databases.etcd_password_file", &settings.etcd_password_file)?;
        let text = String::from_utf8_lossy(&text);
        let password = Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned());
        credentials.password = Some(Password { user: settings.etcd_user.clone(), password });
    }
    Ok(credentials)
}

/// The number by which a process is told from the others that change a database, by what it opened it with.
pub(crate) fn writer_of(chance: [u8; 32]) -> u64 {
    let (writer, _) = chance.split_first_chunk().expect("32 bytes are more than 8");
    u64::from_be_bytes(*writer)
}

/// Loads a database. `chance` tells this process from the others that change it.
///
/// # Errors
///
/// If it is damaged; if etcd does not answer for a minute, or somebody fills the database for as long.
pub(crate) async fn open<I: Image>(
    store: &Arc<dyn CellStore>,
    config: &Config,
    chance: [u8; 32],
) -> Result<Arc<Database<I>>, StartError> {
    let memory_limit = Duration::from_secs(config.databases.memory_seconds.into());
    let options = Options { writer: writer_of(chance), memory_limit };
    let begun = Instant::now();
    let mut told = None;
    loop {
        let error = match Database::open_with(Arc::clone(store), options).await {
            Ok(database) => return Ok(Arc::new(database)),
            Err(error) => error,
        };
        let may_come = store.shared().is_some()
            && matches!(error, OpenError::Store { .. } | OpenError::Unfinished { .. });
        if !may_come || begun.elapsed() > START_TIMEOUT {
            return Err(StartError::Database(error.to_string()));
        }
        if told.replace(std::mem::discriminant(&error)) != Some(std::mem::discriminant(&error)) {
            tracing::warn!(%error, "the start waits for the databases in etcd");
        }
        sleep(PAUSE).await;
    }
}

/// True if this machine serves a database, by a configuration. Only then the store is opened.
#[must_use]
pub fn has_databases(config: &Config) -> bool {
    [Role::Vl, Role::Pt].iter().any(|role| config.server.roles.contains(role))
}

/// The cell's other database servers, by a configuration whose folder is there. Empty if this machine serves no database.
///
/// # Errors
///
/// If the configuration folder or the addresses of this machine cannot be read.
pub fn other_servers(config: &Config) -> Result<Vec<Ipv4Addr>, StartError> {
    let folder = config.config_dir();
    if !has_databases(config) {
        return Ok(Vec::new());
    }
    let mut servers = config.databases.servers.clone();
    if servers.is_empty() && folder.join("ThisCell").exists() {
        let folder = afs_config::ServerFolder::read(&folder);
        let folder = folder.map_err(|error| StartError::Folder(error.to_string()))?;
        servers = folder.own().servers.iter().map(|server| server.address).collect();
    }
    let mut own = addresses::of_interfaces().map_err(|error| StartError::State(error.to_string()))?;
    match config.server.bind {
        Ipv4Addr::UNSPECIFIED => own.push(Ipv4Addr::LOCALHOST),
        bind => own = vec![bind],
    }
    servers.retain(|server| !own.contains(server));
    Ok(servers)
}

/// Warns if the databases are in a file though the cell has other database servers. It is no error: while a cell comes over from OpenAFS
/// its CellServDB may still name machines that have ended.
pub(crate) fn warn_if_not_shared(config: &Config) -> Result<(), StartError> {
    let servers = if config.databases.etcd.is_empty() { other_servers(config)? } else { Vec::new() };
    if !servers.is_empty() {
        tracing::warn!(
            ?servers,
            "CellServDB or databases.servers names other database servers, which do not share the databases in the file here: each would \
             give out the same ids again. Set databases.etcd on all of them, or take them out there"
        );
    }
    Ok(())
}

/// What the etcd of a configuration was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreContent {
    /// The databases of a cell.
    Cell,
    /// No databases, as before the first start of the cell's first server.
    NewCell,
    /// No databases, though this server has the key of a cell that was there before: they may be elsewhere.
    Nothing,
}

/// Checks whether the etcd of a configuration answers and takes changes now, and tells what it has.
///
/// # Errors
///
/// If etcd does not answer or refuses changes, or the configuration folder cannot be read.
pub async fn check_etcd(config: &Config, cell: &CellName) -> Result<StoreContent, StartError> {
    let failed =
        |error: &dyn fmt::Display| StartError::Setting { key: "databases.etcd", what: error.to_string() };
    let store = open_store(config, cell)?;
    let users = version_in::<Ptdb>(&*store).await.map_err(|error| failed(&error))?;
    let volumes = version_in::<Vldb>(&*store).await.map_err(|error| failed(&error))?;
    check_changes(&*store).await.map_err(|error| failed(&error))?;
    let folder = config.config_dir();
    let pending = pending_administrator(&folder).map_err(|error| StartError::Folder(error.to_string()))?;
    Ok(match users.epoch.max(volumes.epoch) {
        0 if pending.is_none() && folder.join("ThisCell").exists() => StoreContent::Nothing,
        0 => StoreContent::NewCell,
        _ => StoreContent::Cell,
    })
}

/// Tells what the metrics mean.
pub(crate) fn describe_metrics() {
    for (name, meaning) in [AGE, QUORUM, FROM_MEMORY, CONFLICTS, RELOADS] {
        metrics::describe_gauge!(name, meaning);
    }
}

/// Publishes how well a database keeps up; nothing of one in a file.
pub(crate) fn publish<I: Image>(database: &Database<I>) {
    let Some(freshness) = database.freshness() else { return };
    let Freshness { age, has_quorum, from_memory, conflicts, reloads, .. } = freshness;
    for ((name, _), value) in [
        (AGE, age.as_secs_f64()),
        (QUORUM, f64::from(u8::from(has_quorum))),
        (FROM_MEMORY, from_memory as f64),
        (CONFLICTS, conflicts as f64),
        (RELOADS, reloads as f64),
    ] {
        metrics::gauge!(name, "database" => I::NAME).set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_gauge() {
        let page = include_str!("../../../docs/seeing.md");
        for (name, meaning) in [AGE, QUORUM, FROM_MEMORY, CONFLICTS, RELOADS] {
            assert!(page.contains(&format!("| `{name}` |")) && page.contains(meaning), "{name}: {meaning}");
        }
    }

    #[test]
    fn each_cell_has_its_own_place_in_etcd() {
        let mut config = Config::default();
        let cell = |name| CellName::new(name).unwrap();
        assert_eq!(etcd_prefix(&config, &cell("a.example")), "/afar/a.example/");
        config.databases.etcd_prefix = "/x/".to_owned();
        assert_eq!(etcd_prefix(&config, &cell("a.example")), "/x/");
    }
}
