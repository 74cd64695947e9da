//! The cell that a command is about, and the servers of its databases: from the files of OpenAFS's configuration folders,
//! or of a folder that `-config` names; and of a cell that is not in these, from the DNS.

use crate::calls::Caller;
use afs_config::{Cell, CellAliases, CellName, CellServDb, ConfigError, ThisCell};
use afs_dns::{NoAnswer, NotFound, Resolver, Service, SystemResolver, look_up};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

/// The time for which the DNS is waited for. A person waits for the command.
const DNS_TIMEOUT: Duration = Duration::from_secs(10);

/// The folder of the configuration of OpenAFS's client on Debian. The slash at the end is in messages too.
pub(crate) const CLIENT_FOLDER: &str = "/etc/openafs/";
/// The folder of its servers' configuration.
pub(crate) const SERVER_FOLDER: &str = "/etc/openafs/server";

/// A cell, as its folder describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellServers {
    /// The cell's full name.
    pub(crate) name: String,
    /// The servers of the database that was asked for.
    pub(crate) servers: Vec<SocketAddrV4>,
}

/// The reason why there is no cell.
#[derive(Debug)]
pub(crate) enum CellError {
    /// The folder is not there.
    NoFolder,
    /// A file of it cannot be read or understood.
    File(ConfigError),
    /// The folder does not have this cell, nor has the DNS, as far as it was asked. It may not have answered.
    Unknown { cell: String, silent: Option<NoAnswer> },
}

impl CellError {
    /// Says that the DNS did not answer, if that is so: then the cell may be there.
    pub(crate) fn explain(&self, program: &str) {
        if let Self::Unknown { cell, silent: Some(NoAnswer(why)) } = self {
            eprintln!("{program}: the DNS, which may know {cell}, does not answer: {why}");
        }
    }
}

impl CellServers {
    /// The cell of this name or alias, or that of the folder, with the servers of a database; one that the folder does not have is asked of the
    /// DNS.
    pub(crate) fn find_anywhere(
        folder: &Path,
        cell: Option<&str>,
        service: Service,
    ) -> Result<Self, CellError> {
        match Self::find(folder, cell, service) {
            Err(CellError::Unknown { cell, .. }) => Self::ask_dns(cell, service),
            found => found,
        }
    }

    /// The cell of exactly this name, as the DNS has it.
    pub(crate) fn ask_dns(cell: String, service: Service) -> Result<Self, CellError> {
        // Without a dot it is the beginning of a name, or an alias that is not there.
        let Some(name) = CellName::new(&cell).filter(|name| name.as_str().contains('.')) else {
            return Err(CellError::Unknown { cell, silent: None });
        };
        let silent = |error: &dyn std::fmt::Display| CellError::Unknown {
            cell: cell.clone(),
            silent: Some(NoAnswer(error.to_string())),
        };
        let asked = Caller::new().and_then(|caller| {
            let resolver = SystemResolver::new(caller.seed()?);
            let chance = StdRng::from_seed(caller.seed()?);
            Ok(caller.run(servers_of(&resolver, name.as_str(), service, chance)))
        });
        match asked.map_err(|error| silent(&error))? {
            Ok(servers) => Ok(Self { name: name.to_string(), servers }),
            Err(NotFound::Missing) => Err(CellError::Unknown { cell, silent: None }),
            Err(NotFound::Silent(why)) => Err(CellError::Unknown { cell, silent: Some(why) }),
        }
    }

    /// The cell of this name or alias, or that of the folder. The file knows no ports.
    fn find(folder: &Path, cell: Option<&str>, service: Service) -> Result<Self, CellError> {
        let failed = |error| if folder.exists() { CellError::File(error) } else { CellError::NoFolder };
        let known = CellServDb::read(&folder.join("CellServDB")).map_err(failed)?;
        let wanted = match cell {
            Some(cell) => cell.to_ascii_lowercase(),
            None => ThisCell::read(&folder.join("ThisCell")).map_err(failed)?.0.to_string(),
        };
        let aliases = match CellAliases::read(&folder.join("CellAlias")) {
            Err(error) if error.is_missing() => CellAliases::default(),
            other => other.map_err(failed)?,
        };
        let exact = known.cells.iter().find(|c| c.name.as_str() == wanted);
        let aliased = || {
            let alias = aliases.aliases.iter().find(|a| a.alias.eq_ignore_ascii_case(&wanted))?;
            known.cells.iter().find(|c| c.name == alias.cell)
        };
        let found: Option<&Cell> = exact.or_else(aliased).or_else(|| known.find(&wanted));
        match found {
            Some(cell) if !cell.servers.is_empty() => Ok(Self {
                name: cell.name.to_string(),
                servers: cell
                    .servers
                    .iter()
                    .map(|server| SocketAddrV4::new(server.address, service.usual_port()))
                    .collect(),
            }),
            Some(_) | None => Err(CellError::Unknown { cell: wanted, silent: None }),
        }
    }
}

async fn servers_of(
    resolver: &dyn Resolver,
    cell: &str,
    service: Service,
    mut chance: StdRng,
) -> Result<Vec<SocketAddrV4>, NotFound> {
    let mut below = |bound: u32| chance.random_range(0..bound.max(1));
    let asked = look_up(resolver, cell, (service, service.usual_port()), &mut below);
    match tokio::time::timeout(DNS_TIMEOUT, asked).await {
        Ok(found) => Ok(found?.servers.iter().map(|server| server.socket).collect()),
        Err(_) => Err(NotFound::Silent(NoAnswer(format!("no answer within {} s", DNS_TIMEOUT.as_secs())))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    const DB: &str = ">one.test #One\n10.0.0.1 #a\n10.0.0.2 #b\n>two.test\n10.0.0.3 #c\n>none.test\n";

    #[test]
    fn a_cell_is_found_by_name_alias_beginning_or_as_that_of_the_folder() {
        let files = [("CellServDB", DB), ("ThisCell", "two.test\n"), ("CellAlias", "one.test eins\n")];
        let folder = Folder::with("found", &files);
        let of = |cell| CellServers::find(&folder, cell, Service::Protection).unwrap();
        assert_eq!(of(None).name, "two.test");
        assert_eq!(
            of(Some("ONE.test")).servers,
            ["10.0.0.1:7002".parse().unwrap(), "10.0.0.2:7002".parse().unwrap()]
        );
        assert_eq!(of(Some("eins")).name, "one.test");
        assert_eq!(of(Some("o")).name, "one.test");
    }

    #[test]
    fn a_cell_without_servers_is_none() {
        let folder = Folder::with("none", &[("CellServDB", DB), ("ThisCell", "two.test\n")]);
        for cell in ["none.test", "three.test"] {
            let error = CellServers::find(&folder, Some(cell), Service::Location).unwrap_err();
            assert!(matches!(error, CellError::Unknown { cell: c, .. } if c == cell));
        }
        let error = CellServers::find(Path::new("/nonexistent"), None, Service::Location).unwrap_err();
        assert!(matches!(error, CellError::NoFolder));
        let folder =
            Folder::with("damaged", &[("CellServDB", "10.0.0.1 #of no cell\n"), ("ThisCell", "a\n")]);
        let error = CellServers::find(&folder, None, Service::Location).unwrap_err();
        assert!(matches!(error, CellError::File(_)));
    }
}
