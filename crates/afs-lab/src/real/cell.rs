//! A cell of `afar up`, whose servers can be killed and started again, and mounts of it in processes of their own. In virtual time,
//! `src/sim/cell.rs` has the same.

use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::address::own_address;
use super::afar::{self, CALLBACK_WAIT, wait};
use super::folder::Folder;
use super::mount;
use super::process::Process;
use crate::until;

/// The file in which the servers log.
const SERVERS_LOG: &str = "log-servers";

/// The cell.
pub struct Cell {
    /// The state of the cell, the mounts, and what goes with them.
    pub folder: Folder,
    /// The address of its servers.
    pub address: Ipv4Addr,
    /// Its servers.
    pub servers: Process,
    callback_wait: Option<u32>,
}

impl Cell {
    /// Starts the servers of a new cell; `name` says what it is for.
    pub fn new(name: &str) -> Self {
        Self::waiting(name, Some(CALLBACK_WAIT))
    }

    /// The same, where changes wait for so many seconds for a mount that does not answer, and no longer than for people if none are given.
    pub fn waiting(name: &str, callback_wait: Option<u32>) -> Self {
        let folder = Folder::new(name).showing(SERVERS_LOG);
        let address = own_address();
        let servers = servers(&folder, address, callback_wait);
        Self { folder, address, servers, callback_wait }
    }

    /// Mounts it; gives also the folder in that mount where anybody may write.
    pub fn mount(&self, name: &str) -> (Process, PathBuf) {
        self.mount_with(name, "state/etc", &[])
    }

    /// Mounts it as a folder of configuration says, with more options.
    ///
    /// # Panics
    ///
    /// If it is not mounted.
    pub fn mount_with(&self, name: &str, config: &str, more: &[&str]) -> (Process, PathBuf) {
        let (at, config) = (self.folder.join(name), self.folder.join(config));
        let mut command = afar::command([] as [&str; 0]);
        wait(&mut command, self.callback_wait);
        let more = [&["--log", "info"], more].concat();
        let mounted = mount::start(command, &at, &config, &self.cache(name), &self.log_file(name), &more);
        (mounted.unwrap_or_else(|problem| panic!("{problem}")), at.join("afar.local/scratch"))
    }

    /// A folder of configuration in which all users of the machine find the cell.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn public_config(&self) -> PathBuf {
        let folder = self.folder.join("public-etc");
        if !folder.exists() {
            fs::create_dir(&folder).expect("there is room");
            open(&folder);
            for name in ["ThisCell", "CellServDB"] {
                fs::copy(self.folder.join("state/etc").join(name), folder.join(name)).expect("there is room");
                open(&folder.join(name));
            }
        }
        folder
    }

    /// The folder of a mount's cache.
    pub fn cache(&self, name: &str) -> PathBuf {
        self.folder.join(format!("cache-{name}"))
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("log-{name}"))
    }

    /// The text that a mount has logged.
    ///
    /// # Panics
    ///
    /// If there was none of that name.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_file(name)).expect("it has a log")
    }

    /// Waits for a line of a mount's log with all of these in it.
    ///
    /// # Panics
    ///
    /// If none comes.
    pub fn logs(&self, name: &str, parts: &[&str]) {
        until!(
            self.log(name).lines().any(|line| parts.iter().all(|part| line.contains(part))),
            "no line with {parts:?} in:\n{}",
            self.log(name)
        );
    }

    /// The text that the servers and all mounts have logged.
    pub fn all_logs(&self) -> String {
        let paths = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_log = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"log-"))
        };
        paths.filter(is_log).map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
    }

    /// Kills the servers, and starts them again.
    pub fn restart(&mut self) {
        self.restart_after(|| ());
    }

    /// Kills the servers, and starts them again after something.
    pub fn restart_after(&mut self, wait: impl FnOnce()) {
        self.servers.kill();
        wait();
        self.servers = servers(&self.folder, self.address, self.callback_wait);
    }
}

/// Starts servers that say when a client does not answer them.
fn servers(folder: &Folder, address: Ipv4Addr, callback_wait: Option<u32>) -> Process {
    let log = OpenOptions::new().append(true).create(true).open(folder.join(SERVERS_LOG));
    let mut command =
        afar::up(folder, address, &["--no-mount", "--log", "warn,afs_fileserver::clients=info"]);
    command.stderr(log.expect("there is room"));
    wait(&mut command, callback_wait);
    Process::start(command, None)
}

/// Lets everybody into a folder.
///
/// # Panics
///
/// If it is not the test's.
pub fn open(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is the test's");
}
