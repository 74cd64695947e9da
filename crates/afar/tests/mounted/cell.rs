//! The servers of a cell, which can be killed and started again, and mounts of it in processes of their own.

use super::{Folder, Process, SERVERS_LOG, afar, open, own_address, up};
use afs_lab::cpu::cpu;
use afs_lab::skipped::begun_anew;
use afs_lab::until;
use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

/// What a mount says when it has answered a server although its kernel had not forgotten yet, after a second.
const LATE: &str = "answered before the kernel's copies are gone";

/// What is logged when a machine had no processor for a mount in time: from then on the mount may show for a moment what was changed.
const LATENESS: [&str; 3] = [LATE, "a client did not answer", "the client was suspended"];

thread_local! {
    /// The folder of the cell with which this thread tries something.
    static TRIED: RefCell<Option<PathBuf>> = const { RefCell::new(None) };

    /// Whether a mount of it had been late when that failed.
    static WAS_LATE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Has each panic look for lateness before it goes up: the mounts are killed by that, and a killed mount does not answer either. A panic in
/// a thread that the test has started becomes one of the test's own thread, by `thread::scope` or `join`, while they still live.
fn look_at_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            if let Some(folder) = TRIED.take() {
                WAS_LATE.set(has_been_late(&folder, 0));
            }
        }));
    });
}

/// Does something with a cell of its own, and stops its servers. It is begun anew, three times in all, if it fails when a mount was late:
/// what fails otherwise fails at once.
pub(crate) fn at_once(name: &str, work: impl Fn(&mut Cell)) {
    let _cpu = cpu();
    look_at_panics();
    for round in 1..=3 {
        let mut cell = Cell::new(name);
        TRIED.set(Some(cell.folder.to_path_buf()));
        WAS_LATE.set(false);
        let tried = catch_unwind(AssertUnwindSafe(|| work(&mut cell)));
        TRIED.set(None);
        match tried {
            Ok(()) => {
                assert!(cell.servers.stop().success());
                return;
            }
            Err(_) if round < 3 && WAS_LATE.get() => {
                println!("{name}: a mount was late in try {round}");
                // Its thread has the test's name.
                let why = format!("a mount of the cell {name:?} was late");
                begun_anew(std::thread::current().name().unwrap_or(name), &why);
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// The same, and its mounts have to answer their servers in time.
pub(crate) fn answers_in_time(name: &str, work: impl Fn(&mut Cell)) {
    at_once(name, |cell| {
        work(cell);
        let logs = all_logs(&cell.folder);
        assert!(!logs.contains(LATE), "{logs}");
    });
}

/// What all mounts and the servers have logged of the cell in a folder. It is read while something panics, and what cannot be read is left
/// out.
fn all_logs(folder: &Path) -> String {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_log =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"log-"));
    let text = |path: PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    paths.filter(is_log).map(text).collect()
}

/// How often a mount of the cell in a folder was late, by what was logged.
fn lateness(folder: &Path) -> usize {
    let is_late = |line: &&str| LATENESS.iter().any(|text| line.contains(text));
    all_logs(folder).lines().filter(is_late).count()
}

/// Whether a mount was late more often than that. Who has been told of a change is told so before the server says of whom it was not.
fn has_been_late(folder: &Path, before: usize) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while lateness(folder) <= before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    lateness(folder) > before
}

/// The servers of a cell, which can be killed and started again, and mounts of it.
pub(crate) struct Cell {
    pub(crate) folder: Folder,
    pub(crate) address: Ipv4Addr,
    pub(crate) servers: Process,
}

impl Cell {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Folder::new(name).showing(SERVERS_LOG);
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
        self.folder.join(format!("cache-{name}"))
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("log-{name}"))
    }

    /// What a mount has logged.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_file(name)).unwrap()
    }

    /// How often a mount was late until now.
    pub(crate) fn lateness(&self) -> usize {
        lateness(&self.folder)
    }

    /// Whether a mount was late more often than that. Its mounts still have to be there: who is killed does not answer either.
    pub(crate) fn has_been_late(&self, before: usize) -> bool {
        has_been_late(&self.folder, before)
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
