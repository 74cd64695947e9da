//! The folders that the files are in: the servers' (`/etc/openafs/server`), and the client's (`/etc/openafs`).

use std::path::{Path, PathBuf};

use crate::cells::{Cell, CellAliases, CellName, CellServDb, ThisCell};
use crate::error::{ConfigError, Problem};
use crate::realms::RealmFiles;
use crate::users::UserList;

/// The content of a server's folder. The keys beside it are for the crate of the security classes to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFolder {
    /// The folder.
    pub path: PathBuf,
    /// `ThisCell`.
    pub cell: CellName,
    /// `CellServDB`. Only the cell's own entry counts.
    pub cells: CellServDb,
    /// `UserList`.
    pub users: UserList,
    /// `krb.conf` and `krb.excl`.
    pub realms: RealmFiles,
    /// True if there is a file `NoAuth`, which lets everyone administer an OpenAFS server.
    pub has_no_auth: bool,
}

impl ServerFolder {
    /// Reads `ThisCell` and `CellServDB`, which must be there, and `UserList`, `krb.conf` and `krb.excl`, which may.
    ///
    /// # Errors
    ///
    /// When one cannot be read, or the cell is not in `CellServDB`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let ThisCell(cell) = ThisCell::read(&path.join("ThisCell"))?;
        let cells = CellServDb::read(&path.join("CellServDB"))?;
        if !cells.cells.iter().any(|c| c.name == cell) {
            let problem = Problem::CellNotListed(cell.to_string());
            return Err(ConfigError::new(&path.join("CellServDB"), None, problem));
        }
        Ok(Self {
            path: path.to_owned(),
            cell,
            cells,
            users: UserList::read(&path.join("UserList"))?,
            realms: RealmFiles::read(path)?,
            has_no_auth: path.join("NoAuth").exists(),
        })
    }

    /// The cell's own entry.
    pub fn own(&self) -> &Cell {
        self.cells.cells.iter().find(|c| c.name == self.cell).expect("read() has checked it")
    }
}

/// The content of a client's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFolder {
    /// The folder.
    pub path: PathBuf,
    /// `ThisCell`.
    pub cell: CellName,
    /// `CellServDB`; cells that it has not may be found by DNS.
    pub cells: CellServDb,
    /// `CellAlias`.
    pub aliases: CellAliases,
}

impl ClientFolder {
    /// Reads `ThisCell`, which must be there, and `CellServDB` and `CellAlias`, which may.
    ///
    /// # Errors
    ///
    /// When one cannot be read.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let ThisCell(cell) = ThisCell::read(&path.join("ThisCell"))?;
        let cells = optional(CellServDb::read(&path.join("CellServDB")))?;
        let aliases = optional(CellAliases::read(&path.join("CellAlias")))?;
        Ok(Self { path: path.to_owned(), cell, cells, aliases })
    }
}

fn optional<T: Default>(read: Result<T, ConfigError>) -> Result<T, ConfigError> {
    match read {
        Err(error) if error.is_missing() => Ok(T::default()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use std::fs;

    #[test]
    fn a_servers_folder_needs_its_cell_and_where_it_is() {
        let files = [
            ("ThisCell", "lab.test\n"),
            ("CellServDB", ">lab.test #\n10.0.0.1 #a\n"),
            ("UserList", "admin\n"),
        ];
        let folder = Folder::with("server", &files);
        let read = ServerFolder::read(&folder).unwrap();
        assert_eq!(read.own().servers.len(), 1);
        assert!(read.users.contains("admin", None) && !read.has_no_auth);
        fs::write(folder.join("CellServDB"), ">other.test #\n").unwrap();
        let error = ServerFolder::read(&folder).unwrap_err().to_string();
        assert!(error.ends_with("CellServDB: cell lab.test, which ThisCell names, is not in it"), "{error}");
        fs::remove_file(folder.join("CellServDB")).unwrap();
        assert!(ServerFolder::read(&folder).unwrap_err().is_missing());
    }

    #[test]
    fn a_clients_folder_needs_its_cell_only() {
        let folder = Folder::with("client", &[("ThisCell", "lab.test\n")]);
        let read = ClientFolder::read(&folder).unwrap();
        assert_eq!((read.cell.as_str(), read.cells.cells.len()), ("lab.test", 0));
        fs::write(folder.join("CellAlias"), "lab.test .x\n").unwrap();
        assert_eq!(ClientFolder::read(&folder).unwrap_err().line, Some(1));
    }
}
