//! The check of the databases by `afar server --check`: whether the other database servers of the cell keep them where this one does,
//! and whether etcd answers. It starts and changes nothing.

mod sharing;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use afs_celldb::ptdb::Ptdb;
use afs_celldb::vldb::Vldb;
use afs_config::CellName;
use afs_server::Config;
use afs_server::config::Role;
use afs_server::databases::{self, StoreContent};
use rx::{Endpoint, EndpointConfig};

use sharing::{Failure, Sharing, compare};

/// The times within which another server must say what it is, at the first question and at the second.
const WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// The beginning of the version text of our servers.
const OURS: &str = "afar ";

/// A role of another database server that is a server of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    address: SocketAddrV4,
    role: Role,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, role {}", self.address.ip(), self.role.name())
    }
}

/// Checks that the cell's other database servers can be beside this one. Returns those that answered.
pub(super) fn others(config: &Config) -> Result<Vec<Other>, String> {
    let servers = databases::other_servers(config).map_err(|error| error.to_string())?;
    let roles = [(Role::Vl, config.ports.vl), (Role::Pt, config.ports.pt)];
    let roles = roles.into_iter().filter(|(role, _)| config.server.roles.contains(role));
    let mut others = Vec::new();
    for (role, port) in roles {
        for server in &servers {
            let other = Other { address: SocketAddrV4::new(*server, port), role };
            match crate::rxdebug::version_of(other.address.into(), &WAITS) {
                Ok(version) if version.starts_with(OURS) => others.push(other),
                Ok(version) => return Err(stock_server(other, &version)),
                Err(error) => println!(
                    "{other}: did not answer, so it is not known whether it is a server of afar: {error}"
                ),
            }
        }
    }
    if config.databases.etcd.is_empty() && !servers.is_empty() {
        let servers: Vec<String> = servers.iter().map(Ipv4Addr::to_string).collect();
        return Err(format!(
            "databases.etcd: CellServDB names other database servers ({}), but a file here keeps the databases, which they would not share: \
             set this on all of them, or take them out of CellServDB",
            servers.join(", ")
        ));
    }
    Ok(others)
}

fn stock_server(other: Other, version: &str) -> String {
    format!(
        "{other}: this is a server of OpenAFS ({}), which votes with others of its kind and keeps a database of its own, \
         so that both would give out the same ids: stop the database servers of OpenAFS in this cell first, or take vl and pt \
         out of server.roles",
        version.trim()
    )
}

/// Checks that etcd answers and takes changes, and has the databases of these servers too. Says if it has none.
pub(super) async fn etcd(config: &Config, others: &[Other]) -> Result<(), String> {
    let folder = afs_config::ServerFolder::read(&config.config_dir());
    let cell = folder.map_or_else(|_| CellName::new(&config.server.cell), |folder| Some(folder.cell));
    let cell = cell.ok_or("server.cell: this cannot be the name of a cell")?;
    if config.databases.etcd.is_empty() || !databases::has_databases(config) {
        return Ok(());
    }
    if databases::check_etcd(config, &cell).await.map_err(|error| error.to_string())? == StoreContent::Nothing
    {
        println!(
            "databases.etcd: there are no databases under {}: the server would begin with empty ones. If the cell has some, correct \
             databases.etcd or databases.etcd_prefix, or put them there with 'afar celldb copy' or 'afar import'",
            databases::etcd_prefix(config, &cell)
        );
    }
    if others.is_empty() {
        return Ok(());
    }
    let store = databases::open_store(config, &cell).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), EndpointConfig::default())
        .map_err(|error| format!("cannot open a socket: {error}"))?;
    for other in others {
        let sharing = match other.role {
            Role::Pt => compare::<Ptdb>(&store, &endpoint, other.address.into()).await,
            _ => compare::<Vldb>(&store, &endpoint, other.address.into()).await,
        };
        let found = match sharing {
            Ok(Sharing::Same) => continue,
            Ok(Sharing::InFile) => "keeps its databases in a file",
            Ok(Sharing::Elsewhere) => "keeps its databases elsewhere",
            Ok(Sharing::WithoutEtcd) => {
                println!("{other}: etcd does not answer it, so it is not known where it keeps its databases");
                continue;
            }
            Err(Failure::Server(error)) => {
                println!("{other}: did not say where it keeps its databases: {error}");
                continue;
            }
            Err(Failure::Store(error)) => return Err(format!("databases.etcd: {error}")),
        };
        return Err(format!(
            "{other}: this server {found}, not in the etcd that is named here under {}, so that both would give out the same ids: \
             set databases.etcd and databases.etcd_prefix to the same on all database servers",
            databases::etcd_prefix(config, &cell)
        ));
    }
    Ok(())
}
