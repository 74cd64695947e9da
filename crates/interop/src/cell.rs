//! A whole cell as a guard: OpenAFS's servers, or ours, in namespaces that nothing else sees (interop/cell), with stock
//! clients that mount it. All goes when the guard does, also when a test fails. What is asked of a cell is left to others.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linkem::Namespace;

use crate::process::{self, Finished};
use crate::suite::Trouble;

/// The beginning of our cells' names; then the process id of the program that has the cell, and a number.
const NAME_PREFIX: &str = "interop-";

/// The beginning of the folders in which the scripts keep what belongs to a cell.
const STATE_PREFIX: &str = "/run/afar-cell-";

/// The longest time that a cell, or a machine of it, may take to come up: a few seconds, and 30 more where a file server misses its
/// first look at the databases.
const UP_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest time that it may take to go.
const DOWN_TIMEOUT: Duration = Duration::from_secs(150);

/// The longest time that a client which has crashed may take to end, and the time between two looks.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The longest time of a command that is run in a cell. The tools give a silent server some 60 s.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(150);

/// The setting of a machine without servers.
const IDLE: &str = "with=none";

/// The name of every cell that is made here.
pub const CELL_NAME: &str = "interop.test";

/// The address of the machine that has all servers.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// The address of clients.
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);

/// The makers of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// Debian's OpenAFS.
    Stock,
    /// Ours: the program `afar`.
    Afar(PathBuf),
}

/// The properties that a machine of a cell is to have.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The makers of its servers.
    pub servers: Servers,
    /// Options of `dafileserver` or of `afar server`.
    pub flags: String,
    /// The folder of its only partition, which must exist; one that goes with the cell if there is none.
    pub partition: Option<PathBuf>,
}

impl Machine {
    /// One with default options.
    pub fn new(servers: Servers) -> Self {
        Self { servers, flags: String::new(), partition: None }
    }

    fn settings(&self) -> Vec<String> {
        let with = match &self.servers {
            Servers::Stock => "stock".to_owned(),
            Servers::Afar(program) => program.display().to_string(),
        };
        let mut settings = vec![format!("with={with}"), format!("flags={}", self.flags)];
        settings.extend(self.partition.as_ref().map(|folder| format!("vice={}", folder.display())));
        settings
    }
}

/// A cell; dropped, it goes, with every process in it and all mounts.
#[derive(Debug)]
pub struct Cell {
    scripts: PathBuf,
    name: String,
}

/// Tells why there cannot be a cell on this machine, if so.
///
/// # Errors
///
/// What is missing.
pub fn available() -> Result<(), String> {
    linkem::available()?;
    let programs =
        ["/usr/lib/openafs/dafileserver", "/usr/lib/openafs/vlserver", "/usr/sbin/asetkey", "/usr/bin/vos"];
    match programs.iter().find(|program| !Path::new(program).exists()) {
        None => Ok(()),
        Some(program) => Err(format!(
            "there is no {program}: a cell needs Debian's openafs-fileserver, openafs-dbserver, openafs-krb5 and openafs-client"
        )),
    }
}

/// Tells why a cell cannot be mounted by Debian's client on this machine, if so.
///
/// # Errors
///
/// What is missing.
pub fn can_mount() -> Result<(), String> {
    if !Path::new("/usr/sbin/afsd.fuse").exists() {
        return Err("there is no afsd.fuse: Debian's openafs-fuse has it".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Err("there is no /dev/fuse".to_owned());
    }
    Ok(())
}

impl Cell {
    /// Starts a cell whose machine `srv` has all servers. `root` is the folder of this repository. Cells whose program was
    /// killed are removed first.
    ///
    /// # Errors
    ///
    /// When it does not come up, with what the servers said last.
    pub fn up(root: &Path, machine: &Machine) -> Result<Self, String> {
        Self::up_with(root, machine.settings())
    }

    /// The same with no servers: `srv` has the configuration and the key.
    ///
    /// # Errors
    ///
    /// As [`Self::up`].
    pub fn up_idle(root: &Path) -> Result<Self, String> {
        Self::up_with(root, vec![IDLE.to_owned()])
    }

    fn up_with(root: &Path, settings: Vec<String>) -> Result<Self, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let scripts = root.join("interop/cell");
        remove_stale(&scripts);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let cell = Self { scripts, name: format!("{NAME_PREFIX}{}-{number}", std::process::id()) };
        cell.script("cell-up.sh", settings, UP_TIMEOUT)?;
        Ok(cell)
    }

    /// Adds a file server: `number` is 3 to 9, the end of its address, and `fs3` to `fs9` its machine.
    ///
    /// # Errors
    ///
    /// When it does not register with the cell, with what it said last.
    pub fn join(&self, number: u8, machine: &Machine) -> Result<Ipv4Addr, String> {
        self.join_with(number, machine.settings())
    }

    /// The same for a machine with no servers. It has the configuration and the key that `srv` has now.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn join_idle(&self, number: u8) -> Result<Ipv4Addr, String> {
        self.join_with(number, vec![IDLE.to_owned()])
    }

    /// Does the same for a machine with database servers only. The configuration of `srv` must name it already.
    ///
    /// # Errors
    ///
    /// When they do not start. They may not serve yet.
    pub fn join_databases(&self, number: u8, machine: &Machine) -> Result<Ipv4Addr, String> {
        self.join_with(number, [machine.settings(), vec!["roles=databases".to_owned()]].concat())
    }

    fn join_with(&self, number: u8, settings: Vec<String>) -> Result<Ipv4Addr, String> {
        let words = [vec![format!("fs{number}")], settings].concat();
        self.script("cell-join.sh", words, UP_TIMEOUT)?;
        Ok(Ipv4Addr::new(10, 88, 0, number))
    }

    /// Its name among the cells that are up, which those of its namespaces begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs where the servers of the machine `srv` are, with their configuration and key.
    pub fn command(&self, words: &[&str]) -> Command {
        self.command_at("srv", words)
    }

    /// A command that runs where those of another machine are: what `cell-run.sh` does, without a shell, since tests run thousands.
    pub fn command_at(&self, machine: &str, words: &[&str]) -> Command {
        let Some(init) = self.init(machine) else {
            // It says what is wrong.
            let mut command = Command::new(self.scripts.join("cell-run.sh"));
            command.arg(format!("{}@{machine}", self.name)).args(words);
            return command;
        };
        let mut command = Command::new("nsenter");
        command.args(["--target", &init, "--mount", "--uts", "--net", "--pid", "--root", "--wd", "--"]);
        command.args(words).env("AFAR_SOCKET", "");
        command
    }

    /// The first process of a machine, if it runs.
    fn init(&self, machine: &str) -> Option<String> {
        let pid = fs::read_to_string(self.folder(machine).join("init.pid")).ok()?.trim().to_owned();
        let network = |path: String| fs::metadata(path).ok().map(|network| network.ino());
        let runs = network(format!("/proc/{pid}/ns/net"))?
            == network(format!("/run/netns/{}-{machine}", self.name))?;
        runs.then_some(pid)
    }

    /// Runs a command as [`Self::command`] does, to its end.
    ///
    /// # Errors
    ///
    /// When it cannot be started or does not end.
    pub fn run(&self, words: &[&str]) -> Result<Finished, String> {
        process::run(&mut self.command(words), COMMAND_TIMEOUT)
    }

    /// Runs a command, given as a line of words, that has to succeed, and gives what it printed.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn expect(&self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let finished = self.run(&words)?;
        match finished.status {
            Some(0) => Ok(finished.stdout),
            _ => Err(format!("{line}: {}", said(&finished))),
        }
    }

    /// Mounts it with Debian's afsd.fuse, on a machine that has clients only.
    ///
    /// # Errors
    ///
    /// When it is not mounted. It crashes now and then, at its start too: the case is skipped then.
    pub fn mount(&self, client: &str) -> Result<Mount<'_>, Trouble> {
        let said = self.script("client-up.sh", vec![client.to_owned()], UP_TIMEOUT);
        let said = said.map_err(|problem| match problem.contains("afsd.fuse does not mount") {
            true => Trouble::Skipped(problem),
            false => Trouble::Failed(problem),
        })?;
        let path = said.lines().find_map(|line| line.strip_prefix("ready "));
        let path = path.ok_or_else(|| format!("client-up.sh says {said:?} instead of a folder"))?;
        Ok(Mount { cell: self, client: client.to_owned(), path: PathBuf::from(path) })
    }

    /// Stops the file server of the machine `srv` in order (ours with all its roles), or starts it again.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub fn set_serving(&self, serves: bool) -> Result<(), String> {
        let word = if serves { "start" } else { "stop" };
        self.script("cell-server.sh", vec![word.to_owned()], DOWN_TIMEOUT).map(drop)
    }

    /// The network that clients have, with the address [`CLIENT_ADDRESS`].
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn clients(&self) -> Result<Namespace, String> {
        Namespace::open(&format!("{}-cli", self.name)).map_err(|error| error.to_string())
    }

    /// The network of the machine `srv`: a client there reaches its servers through the loopback interface.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn servers(&self) -> Result<Namespace, String> {
        Namespace::open(&format!("{}-srv", self.name)).map_err(|error| error.to_string())
    }

    /// The folder of a machine's own files: `etc`, `lib`, `log`, `vicepa`.
    pub fn folder(&self, machine: &str) -> PathBuf {
        Path::new(&format!("{STATE_PREFIX}{}", self.name)).join(machine)
    }

    /// The file with the cell's key.
    pub fn key_file(&self) -> PathBuf {
        self.folder("srv").join("etc/server/KeyFileExt")
    }

    /// The processes of a machine that run this program, by their ids out here.
    pub fn processes(&self, machine: &str, program: &str) -> Vec<u32> {
        let init = fs::read_to_string(self.folder(machine).join("init.pid")).unwrap_or_default();
        let mut found = Vec::new();
        let mut unseen: Vec<u32> = init.trim().parse().into_iter().collect();
        while let Some(pid) = unseen.pop() {
            let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
            if read("comm").trim_end() == program {
                found.push(pid);
            }
            let children = read(&format!("task/{pid}/children"));
            unseen.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        found.sort_unstable();
        found
    }

    fn script(&self, script: &str, words: Vec<String>, patience: Duration) -> Result<String, String> {
        let mut command = Command::new(self.scripts.join(script));
        let finished = process::run(command.arg(&self.name).args(words), patience)?;
        match finished.status {
            Some(0) => Ok(finished.stdout),
            _ => Err(format!("{script}: {}", said(&finished))),
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        take_down(&self.scripts, &self.name);
    }
}

/// A cell as Debian's client shows it; dropped, it is unmounted and its cache is gone.
#[derive(Debug)]
pub struct Mount<'a> {
    cell: &'a Cell,
    client: String,
    path: PathBuf,
}

impl Mount<'_> {
    /// The root of `root.afs`. It exists for this process only by way of the client's, and no longer than that.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same for [`Self::command`], where everybody may look it up: through `/proc` only root gets there.
    pub fn inside(&self) -> PathBuf {
        self.split().1
    }

    /// Does something in it; tells if that fails as the client has crashed (SIGSEGV), which Debian's does now and then.
    ///
    /// # Errors
    ///
    /// Those of what is done.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        work().map_err(|trouble| match trouble {
            Trouble::Failed(why) if self.has_ended() => {
                Trouble::Skipped(format!("afsd.fuse has crashed: {why}"))
            }
            trouble => trouble,
        })
    }

    /// True if the client has ended, though nobody has unmounted it, or ends within some seconds: its mount goes before the process.
    fn has_ended(&self) -> bool {
        let program = Path::new("/proc").join(self.split().0).join("exe");
        let until = Instant::now() + END_TIMEOUT;
        while fs::read_link(&program).is_ok() && Instant::now() < until {
            thread::sleep(LOOK_EVERY);
        }
        fs::read_link(&program).is_err()
    }

    /// Kills the client, so that nothing waits in its mount any more.
    ///
    /// # Errors
    ///
    /// When it has ended already.
    pub fn kill(&self) -> Result<(), String> {
        let (process, _) = self.split();
        let pid = process.to_str().and_then(|pid| pid.parse().ok());
        let pid = pid
            .filter(|_| Path::new("/proc").join(&process).exists())
            .ok_or("afsd.fuse has ended already")?;
        afs_lab::real::process::signal(pid, "KILL");
        Ok(())
    }

    /// A command that sees the mount where the client has it.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.split().0).args(["--mount", "--"]).arg(program);
        command
    }

    /// The client's process, and the mount point as it sees it: the path leads through the root directory of that process, as procfs
    /// has it.
    fn split(&self) -> (PathBuf, PathBuf) {
        let mut parts = self.path.components().skip(2);
        let process = parts.next().map(|part| PathBuf::from(part.as_os_str())).unwrap_or_default();
        (process, Path::new("/").join(parts.skip(1).collect::<PathBuf>()))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if let Err(problem) = self.cell.script("client-down.sh", vec![self.client.clone()], DOWN_TIMEOUT) {
            eprintln!("the client {} could not be stopped: {problem}", self.client);
        }
    }
}

/// Cells of programs that were killed; their names hold their processes' ids.
fn remove_stale(scripts: &Path) {
    let Ok(entries) = fs::read_dir("/run") else { return };
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = file.strip_prefix("afar-cell-") else { continue };
        let owner = name.strip_prefix(NAME_PREFIX).map(|rest| rest.split('-').next().unwrap_or(rest));
        if owner.is_some_and(|id| id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists()) {
            take_down(scripts, name);
        }
    }
}

fn take_down(scripts: &Path, name: &str) {
    let down = process::run(Command::new(scripts.join("cell-down.sh")).arg(name), DOWN_TIMEOUT);
    if !matches!(&down, Ok(finished) if finished.status == Some(0)) {
        eprintln!("the cell {name} could not be removed: {down:?}");
    }
}

/// Describes how a command failed.
fn said(finished: &Finished) -> String {
    let status = finished.status.map_or("ended by a signal".to_owned(), |status| format!("status {status}"));
    let text = [finished.stdout.trim(), finished.stderr.trim()].join("\n");
    format!("{status}: {}", text.trim())
}
