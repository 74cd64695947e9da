//! The servers of a cell, which can be killed and started again, and mounts of it in processes of their own.

use super::{Folder, Process, SERVERS_LOG, TIMEOUT, afar, open, own_address, up};
use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a mount says when it has answered a server although its kernel had not forgotten yet, after a second.
const LATE: &str = "answered before the kernel's copies are gone";

/// What is logged when a machine had no processor for a mount in time: from then on the mount may show for a moment what was changed.
const LATENESS: [&str; 3] = [LATE, "a client did not answer", "the client was suspended"];

/// Does something with a cell of its own, and stops its servers. It is begun anew, three times in all, if it fails when a mount was late:
/// what fails otherwise fails at once.
pub(crate) fn at_once(name: &str, work: impl Fn(&mut Cell)) {
    for round in 1..=3 {
        let mut cell = Cell::new(name);
        match catch_unwind(AssertUnwindSafe(|| work(&mut cell))) {
            Ok(()) => {
                assert!(cell.servers.stop().success());
                return;
            }
            Err(_) if round < 3 && cell.has_been_late(0) => {
                println!("{name}: a mount was late in try {round}");
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// The same, and its mounts have to answer their servers in time.
pub(crate) fn answers_in_time(name: &str, work: impl Fn(&mut Cell)) {
    at_once(name, |cell| {
        work(cell);
        assert!(!cell.all_logs().contains(LATE), "{}", cell.all_logs());
    });
}

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
        let servers = servers(&folder, address);
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

    /// What all mounts and the servers have logged.
    fn all_logs(&self) -> String {
        let paths = fs::read_dir(self.folder.join(".")).unwrap().map(|entry| entry.unwrap().path());
        let is_log = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"log-"))
        };
        let text = |path: PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        paths.filter(is_log).map(text).collect()
    }

    /// How often a mount was late, by what was logged.
    pub(crate) fn lateness(&self) -> usize {
        let is_late = |line: &&str| LATENESS.iter().any(|text| line.contains(text));
        self.all_logs().lines().filter(is_late).count()
    }

    /// Whether a mount was late more often than that. Who has been told of a change is told so before the server says of whom it was not.
    pub(crate) fn has_been_late(&self, before: usize) -> bool {
        let until = Instant::now() + Duration::from_secs(5);
        while self.lateness() <= before && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
        }
        self.lateness() > before
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
        self.kill_servers_while(|| ());
    }

    /// Kills the servers, and starts them again after something.
    pub(crate) fn kill_servers_while(&mut self, wait: impl FnOnce()) {
        self.servers.kill();
        wait();
        self.servers = servers(&self.folder, self.address);
    }
}

/// Starts servers that say when a client does not answer them.
fn servers(folder: &Folder, address: Ipv4Addr) -> Process {
    let log = OpenOptions::new().append(true).create(true).open(folder.join(SERVERS_LOG)).unwrap();
    let mut command = up(folder, address, &["--no-mount", "--log", "warn,afs_fileserver::clients=info"]);
    command.stderr(log);
    Process::start(command, None)
}
