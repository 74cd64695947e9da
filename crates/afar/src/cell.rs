//! Which cell a command is about, and the servers of its databases: from the files of OpenAFS's configuration folders, or
//! of a folder that `-config` names.

use afs_config::{Cell, CellAliases, CellServDb, ConfigError, ThisCell};
use std::net::Ipv4Addr;
use std::path::Path;

/// Where OpenAFS's client has its configuration on Debian. The slash at the end is in messages too.
pub(crate) const CLIENT_FOLDER: &str = "/etc/openafs/";
/// Where its servers have theirs.
pub(crate) const SERVER_FOLDER: &str = "/etc/openafs/server";

/// A cell, as its folder describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellServers {
    /// The cell's full name.
    pub(crate) name: String,
    /// The machines with its databases.
    pub(crate) servers: Vec<Ipv4Addr>,
}

/// Why there is no cell.
#[derive(Debug)]
pub(crate) enum CellError {
    /// The folder is not there.
    NoFolder,
    /// A file of it cannot be read or understood.
    File(ConfigError),
    /// The folder does not have this cell.
    Unknown { cell: String },
}

impl CellServers {
    /// The cell of this name or alias, or that of the folder.
    pub(crate) fn find(folder: &Path, cell: Option<&str>) -> Result<Self, CellError> {
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
                servers: cell.servers.iter().map(|server| server.address).collect(),
            }),
            Some(_) | None => Err(CellError::Unknown { cell: wanted }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("afar-cell-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            for (file, text) in files {
                fs::write(path.join(file), text).unwrap();
            }
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const DB: &str = ">one.test #One\n10.0.0.1 #a\n10.0.0.2 #b\n>two.test\n10.0.0.3 #c\n>none.test\n";

    #[test]
    fn a_cell_is_found_by_name_alias_beginning_or_as_that_of_the_folder() {
        let files = [("CellServDB", DB), ("ThisCell", "two.test\n"), ("CellAlias", "one.test eins\n")];
        let folder = Folder::new("found", &files);
        let of = |cell| CellServers::find(&folder.0, cell).unwrap();
        assert_eq!(of(None).name, "two.test");
        assert_eq!(of(Some("ONE.test")).servers, [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)]);
        assert_eq!(of(Some("eins")).name, "one.test");
        assert_eq!(of(Some("o")).name, "one.test");
    }

    #[test]
    fn a_cell_without_servers_is_none() {
        let folder = Folder::new("none", &[("CellServDB", DB), ("ThisCell", "two.test\n")]);
        for cell in ["none.test", "three.test"] {
            let error = CellServers::find(&folder.0, Some(cell)).unwrap_err();
            assert!(matches!(error, CellError::Unknown { cell: c } if c == cell));
        }
        let error = CellServers::find(Path::new("/nonexistent"), None).unwrap_err();
        assert!(matches!(error, CellError::NoFolder));
        let folder = Folder::new("damaged", &[("CellServDB", "10.0.0.1 #of no cell\n"), ("ThisCell", "a\n")]);
        let error = CellServers::find(&folder.0, None).unwrap_err();
        assert!(matches!(error, CellError::File(_)));
    }
}
