//! The facts of a cell for `aklog` and `klog`: by the client that is to have the token, or by a folder of
//! configuration.

use crate::cell::{CLIENT_FOLDER, CellError, CellServers};
use crate::fs::client::{Client, Clients};
use crate::fs::errors::Failure;
use crate::hosts;
use afs_config::CellServDb;
use afs_dns::Service;
use afs_wire::control;
use afs_wire::ids::Name;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownCell {
    /// Its full name.
    pub(crate) name: String,
    /// The machines with its databases.
    pub(crate) servers: Vec<Ipv4Addr>,
    /// The servers of the protection database.
    pub(crate) protection: Vec<SocketAddrV4>,
    /// The name of the first of these, if the configuration tells it.
    host: Option<String>,
    /// The cell whose tokens are wanted with those of this one.
    pub(crate) linked: Option<String>,
    /// The place among the clients of the one that has told of it.
    pub(crate) told_by: usize,
}

impl KnownCell {
    /// The name of the first database server: as the configuration tells it, else as the DNS does.
    pub(crate) fn host(&self) -> Option<String> {
        let address = self.servers.first()?;
        let found = || Some(hosts::name_of(*address)).filter(|name| *name != address.to_string());
        self.host.clone().or_else(found)
    }

    /// Adds what only the file says of it.
    fn with_file(mut self, file: &Path) -> Self {
        let known = CellServDb::read(file).unwrap_or_default();
        if let Some(cell) = known.cells.iter().find(|cell| cell.name.as_str() == self.name) {
            self.host = cell.servers.first().and_then(|server| server.name.clone());
            self.linked = cell.linked.as_ref().map(ToString::to_string);
        }
        self
    }
}

/// The place where cells are looked up.
pub(crate) struct Source<'a> {
    /// The clients that are mounted.
    pub(crate) clients: Option<&'a Clients>,
    /// A folder that is to be read instead.
    pub(crate) folder: Option<PathBuf>,
}

impl Source<'_> {
    /// A cell by its name, alias or the beginning of it, of the first client that knows it; without a name, the first client's own.
    ///
    /// # Errors
    ///
    /// Why there is none, in words.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<KnownCell, String> {
        match (self.clients.map(Clients::all), &self.folder) {
            (Some([first, others @ ..]), None) => of_client(first, name).or_else(|why| {
                let other =
                    |(place, client)| Some(KnownCell { told_by: 1 + place, ..of_client(client, name).ok()? });
                others.iter().enumerate().filter(|_| name.is_some()).find_map(other).ok_or(why)
            }),
            (_, folder) => of_folder(folder.as_deref().unwrap_or(Path::new(CLIENT_FOLDER)), name),
        }
    }
}

fn unknown(name: &str) -> String {
    format!("Can't get information about cell {name}.")
}

fn of_client(client: &Client, name: Option<&str>) -> Result<KnownCell, String> {
    let own = || client.call(&control::GetOwnCell {}).map(|reply| reply.name);
    let wanted = match name {
        Some(name) => Name::try_from(name).map_err(|_| unknown(name))?,
        None => own().map_err(|failure| failure.to_string())?,
    };
    let asked = wanted.to_string();
    let found = client.call(&control::FindCell { name: wanted }).map_err(|failure| match failure {
        Failure::Errno(_) => unknown(&asked),
        failure => failure.to_string(),
    })?;
    let (name, servers) = (found.cell.name.to_string(), found.cell.servers.iter().map(|server| server.ip()));
    let servers: Vec<Ipv4Addr> = servers.collect();
    let file = client.call(&control::About {}).map(|about| about.cell_serv_db.to_string()).ok();
    let is_in_file = file.as_ref().is_some_and(|file| {
        let known = CellServDb::read(Path::new(file)).unwrap_or_default();
        known.cells.iter().any(|cell| cell.name.as_str() == name)
    });
    // The client knows the location servers. Where the DNS told it these, it tells the others.
    let found = if is_in_file { None } else { CellServers::ask_dns(name.clone(), Service::Protection).ok() };
    let protection = found.map_or_else(|| at_usual_port(&servers), |found| found.servers);
    let cell = KnownCell { name, servers, protection, host: None, linked: None, told_by: 0 };
    Ok(match file {
        Some(file) => cell.with_file(Path::new(&file)),
        None => cell,
    })
}

fn at_usual_port(machines: &[Ipv4Addr]) -> Vec<SocketAddrV4> {
    let port = Service::Protection.usual_port();
    machines.iter().map(|machine| SocketAddrV4::new(*machine, port)).collect()
}

fn of_folder(folder: &Path, name: Option<&str>) -> Result<KnownCell, String> {
    let found =
        CellServers::find_anywhere(folder, name, Service::Protection).map_err(|error| match error {
            CellError::NoFolder => format!("Can't open the configuration directory {}.", folder.display()),
            CellError::File(error) => error.to_string(),
            CellError::Unknown { cell, silent: None } => unknown(&cell),
            CellError::Unknown { cell, silent: Some(why) } => {
                format!("{} The DNS, which may know it, does not answer: {why}", unknown(&cell))
            }
        })?;
    let servers = found.servers.iter().map(|server| *server.ip()).collect();
    let cell = KnownCell {
        name: found.name,
        servers,
        protection: found.servers,
        host: None,
        linked: None,
        told_by: 0,
    };
    Ok(cell.with_file(&folder.join("CellServDB")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use std::fs;

    #[test]
    fn a_folder_tells_the_first_servers_name_and_the_linked_cell() {
        let folder = Folder::new("aklog-cells");
        let text = ">one.test two.test #One\n10.0.0.1 #db1.one.test\n10.0.0.2 #db2\n>two.test #\n10.0.0.3\n";
        fs::write(folder.join("CellServDB"), text).unwrap();
        fs::write(folder.join("ThisCell"), "one.test\n").unwrap();
        let source = Source { clients: None, folder: Some(folder.to_path_buf()) };
        let cell = source.find(None).unwrap();
        assert_eq!((cell.name.as_str(), cell.host().as_deref()), ("one.test", Some("db1.one.test")));
        assert_eq!(cell.linked.as_deref(), Some("two.test"));
        assert_eq!(source.find(Some("three")).unwrap_err(), unknown("three"));
    }
}
