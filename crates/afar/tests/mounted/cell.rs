//! The servers of a cell, which can be killed and started again, and mounts of it in processes of their own.

use super::{Folder, Process, TIMEOUT, afar, open, own_address, up};
use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The servers of a cell, which can be killed and started again, and mounts of it.
pub(crate) struct Cell {
    pub(crate) folder: Folder,
    pub(crate) address: Ipv4Addr,
    pub(crate) servers: Process,
}

impl Cell {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let address = own_address();
        let servers = Process::start(up(&folder, address, &["--no-mount"]), None);
        Self { folder, address, servers }
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
        self.folder.join(&format!("cache-{name}"))
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(&format!("log-{name}"))
    }

    /// What a mount has logged.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_file(name)).unwrap()
    }

    /// Waits for a line of a mount's log with all of these in it.
    pub(crate) fn logs(&self, name: &str, parts: &[&str]) {
        let until = Instant::now() + TIMEOUT;
        while !self.log(name).lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            assert!(Instant::now() < until, "no line with {parts:?} in:\n{}", self.log(name));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn kill_servers(&mut self) {
        self.kill_servers_for(Duration::ZERO);
    }

    /// Kills the servers, and starts them again after a time.
    pub(crate) fn kill_servers_for(&mut self, pause: Duration) {
        self.servers.kill();
        std::thread::sleep(pause);
        self.servers = Process::start(up(&self.folder, self.address, &["--no-mount"]), None);
    }
}
