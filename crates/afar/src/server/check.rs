//! What `afar server --check` finds out about the databases: whether the other database servers of the cell keep them where this one does,
//! and whether etcd answers. It starts and changes nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use afs_config::CellName;
use afs_server::config::Role;
use afs_server::{Config, databases};

/// How long another server may take to say what it is, and is asked again.
const WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// How the version text of our servers begins.
const OURS: &str = "afar ";

/// Whether the cell's other database servers can be beside this one.
pub(super) fn databases(config: &Config) -> Result<(), String> {
    let others = databases::other_servers(config).map_err(|error| error.to_string())?;
    if others.is_empty() {
        return Ok(());
    }
    let roles = [(Role::Vl, config.ports.vl), (Role::Pt, config.ports.pt)];
    let roles = roles.into_iter().filter(|(role, _)| config.server.roles.contains(role));
    for (role, port) in roles {
        for other in &others {
            match crate::rxdebug::version_of(SocketAddr::from((*other, port)), &WAITS) {
                Ok(version) if version.starts_with(OURS) => {}
                Ok(version) => return Err(stock_server(*other, role, &version)),
                Err(error) => println!(
                    "{other}, role {}: did not answer, so it is not known whether it is a server of afar: {error}",
                    role.name()
                ),
            }
        }
    }
    if config.databases.etcd.is_empty() {
        let others: Vec<String> = others.iter().map(Ipv4Addr::to_string).collect();
        return Err(format!(
            "databases.etcd: CellServDB names other database servers ({}), but a file here keeps the databases, which they would not share: \
             set this on all of them, or take them out of CellServDB",
            others.join(", ")
        ));
    }
    Ok(())
}

fn stock_server(address: Ipv4Addr, role: Role, version: &str) -> String {
    format!(
        "{address}, role {}: this is a server of OpenAFS ({}), which votes with others of its kind and keeps a database of its own, \
         so that both would give out the same ids: stop the database servers of OpenAFS in this cell first, or take vl and pt \
         out of server.roles",
        role.name(),
        version.trim()
    )
}

/// Whether etcd answers.
pub(super) async fn etcd(config: &Config) -> Result<(), String> {
    let folder = afs_config::ServerFolder::read(&config.config_dir());
    let cell = folder.map_or_else(|_| CellName::new(&config.server.cell), |folder| Some(folder.cell));
    let cell = cell.ok_or("server.cell: this cannot be the name of a cell")?;
    databases::check_store(config, &cell).await.map_err(|error| error.to_string())
}
