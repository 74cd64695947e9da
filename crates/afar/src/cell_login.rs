//! The cell that a command of our own administers, and as whom: options that several such commands share.

use crate::calls::Caller;
use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::login::{self, LoginOptions};
use afs_admin::Login;
use afs_dns::Service;
use clap::Args;
use rx_security::KeySet;
use std::path::PathBuf;

/// The options.
#[derive(Args)]
pub(crate) struct CellOptions {
    /// The cell, by default that of this machine
    #[arg(long)]
    cell: Option<String>,
    /// Acts as the cell's superuser, with the cell's key in the servers' configuration folder
    #[arg(long)]
    localauth: bool,
    /// The configuration folder, by default /etc/openafs, and with --localauth /etc/openafs/server
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

/// A way to the servers of a cell.
pub(crate) struct CellLogin {
    pub(crate) caller: Caller,
    /// The cell, with its volume location servers.
    pub(crate) cell: CellServers,
    pub(crate) login: Login,
}

impl CellOptions {
    /// The identity with which file servers are called: to them the cell's own superuser is nobody, so the first user of the UserList is taken,
    /// as by a mount with `--localauth`.
    ///
    /// # Errors
    ///
    /// When there is no such user, or no key.
    pub(crate) fn at_file_servers(&self, opened: &CellLogin) -> Result<Login, String> {
        if !self.localauth {
            return Ok(opened.login.clone());
        }
        let folder = self.folder();
        let name = login::first_superuser(&folder)?;
        let keys = KeySet::load(&folder).map_err(|error| error.to_string())?;
        let seed = opened.caller.seed().map_err(|error| format!("there are no random bytes: {error}"))?;
        login::user_by_key(&keys, &name, &opened.cell.name, seed)
    }

    fn folder(&self) -> PathBuf {
        let default = if self.localauth { SERVER_FOLDER } else { CLIENT_FOLDER };
        self.config.clone().unwrap_or_else(|| PathBuf::from(default))
    }

    /// Finds the cell, and logs in.
    ///
    /// # Errors
    ///
    /// When there is no such cell, or nobody to be there: nothing that these commands do may be done anonymously.
    pub(crate) fn open(&self, program: &str) -> Result<CellLogin, String> {
        let folder = self.folder();
        let cell = CellServers::find_anywhere(&folder, self.cell.as_deref(), Service::Location);
        let cell = cell.map_err(|error| {
            error.explain(program);
            match error {
                CellError::NoFolder => {
                    format!(
                        "there is no folder {}: name the configuration's with --config DIR",
                        folder.display()
                    )
                }
                CellError::File(error) => error.to_string(),
                CellError::Unknown { cell, .. } => {
                    format!("{}/CellServDB has no servers of the cell {cell}", folder.display())
                }
            }
        })?;
        let caller = Caller::new().map_err(|error| format!("cannot open a socket: {error}"))?;
        let seed = caller.seed().map_err(|error| format!("there are no random bytes: {error}"))?;
        let options = LoginOptions { noauth: false, localauth: self.localauth, clear: false };
        let login =
            login::log_in(options, &folder, &cell.name, seed).map_err(|why| match self.localauth {
                true => format!("{why}: {} has no key of the cell that you may read", folder.display()),
                false => {
                    format!("{why} for {}: get one, or use --localauth on a server of the cell", cell.name)
                }
            })?;
        Ok(CellLogin { caller, cell, login })
    }
}
