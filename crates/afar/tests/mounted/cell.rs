//! The servers of a cell, which can be killed and started again, and mounts of it in processes of their own.

use super::{CALLBACK_WAIT, Folder, Process, SERVERS_LOG, afar, open, own_address, up};
use afs_lab::cpu::cpu;
use afs_lab::until;
use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a mount says when it has answered a server although its kernel had not forgotten yet, after all that time.
const LATE: &str = "answered before the kernel's copies are gone";

/// Does something with a cell of its own that keeps a processor busy, and stops its servers.
pub(crate) fn at_once(name: &str, work: impl FnOnce(&mut Cell)) {
    let _cpu = cpu();
    let mut cell = Cell::new(name);
    work(&mut cell);
    assert!(cell.servers.stop().success());
}

/// The same, and no mount waits in vain for its kernel before it answers a server.
pub(crate) fn answers_in_time(name: &str, work: impl FnOnce(&mut Cell)) {
    at_once(name, |cell| {
        work(cell);
        let logs = all_logs(&cell.folder);
        assert!(!logs.contains(LATE), "{logs}");
    });
}

/// What all mounts and the servers have logged of the cell in a folder.
fn all_logs(folder: &Path) -> String {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_log =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"log-"));
    let text = |path: PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    paths.filter(is_log).map(text).collect()
}

/// The servers of a cell, which can be killed and started again, and mounts of it.
pub(crate) struct Cell {
    pub(crate) folder: Folder,
    pub(crate) address: Ipv4Addr,
    pub(crate) servers: Process,
    callback_wait: Option<u32>,
}

impl Cell {
    pub(crate) fn new(name: &str) -> Self {
        Self::waiting(name, Some(CALLBACK_WAIT))
    }

    /// A cell in which changes wait for so many seconds for a mount that does not answer, and no longer than for people if none are given.
    pub(crate) fn waiting(name: &str, callback_wait: Option<u32>) -> Self {
        let folder = Folder::new(name).showing(SERVERS_LOG);
        let address = own_address();
        let servers = servers(&folder, address, callback_wait);
        Self { folder, address, servers, callback_wait }
    }

    /// Mounts it. Where anybody may write in that mount.
    pub(crate) fn mount(&self, name: &str) -> (Process, PathBuf) {
        self.mount_with(name, "state/etc", &[])
    }

    /// Mounts it as a folder of configuration says, with more options. What it logs is added to what it has logged before.
    pub(crate) fn mount_with(&self, name: &str, config: &str, more: &[&str]) -> (Process, PathBuf) {
        let mount = self.folder.join(name);
        let log = OpenOptions::new().append(true).create(true).open(self.log_file(name)).unwrap();
        let mut command = afar(["mount"]);
        command.arg(&mount).arg("--config").arg(self.folder.join(config));
        command.arg("--cache").arg(self.cache(name)).args(["--log", "info"]).args(more).stderr(log);
        wait(&mut command, self.callback_wait);
        (Process::start(command, Some(mount.clone())), mount.join("afar.local/scratch"))
    }

    /// A folder of configuration in which all users of the machine find the cell.
    pub(crate) fn public_config(&self) -> PathBuf {
        let folder = self.folder.join("public-etc");
        if !folder.exists() {
            fs::create_dir(&folder).unwrap();
            open(&folder);
            for name in ["ThisCell", "CellServDB"] {
                fs::copy(self.folder.join("state/etc").join(name), folder.join(name)).unwrap();
                open(&folder.join(name));
            }
        }
        folder
    }

    /// The folder of a mount's cache.
    pub(crate) fn cache(&self, name: &str) -> PathBuf {
        self.folder.join(format!("cache-{name}"))
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("log-{name}"))
    }

    /// What a mount has logged.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_file(name)).unwrap()
    }

    /// Waits for a line of a mount's log with all of these in it.
    pub(crate) fn logs(&self, name: &str, parts: &[&str]) {
        until!(
            self.log(name).lines().any(|line| parts.iter().all(|part| line.contains(part))),
            "no line with {parts:?} in:\n{}",
            self.log(name)
        );
    }

    pub(crate) fn kill_servers(&mut self) {
        self.kill_servers_while(|| ());
    }

    /// Kills the servers, and starts them again after something.
    pub(crate) fn kill_servers_while(&mut self, wait: impl FnOnce()) {
        self.servers.kill();
        wait();
        self.servers = servers(&self.folder, self.address, self.callback_wait);
    }
}

/// Starts servers that say when a client does not answer them.
fn servers(folder: &Folder, address: Ipv4Addr, callback_wait: Option<u32>) -> Process {
    let log = OpenOptions::new().append(true).create(true).open(folder.join(SERVERS_LOG)).unwrap();
    let mut command = up(folder, address, &["--no-mount", "--log", "warn,afs_fileserver::clients=info"]);
    command.stderr(log);
    wait(&mut command, callback_wait);
    Process::start(command, None)
}

fn wait(command: &mut Command, callback_wait: Option<u32>) {
    match callback_wait {
        Some(seconds) => command.env("AFAR_CALLBACK_WAIT", seconds.to_string()),
        None => command.env_remove("AFAR_CALLBACK_WAIT"),
    };
}
