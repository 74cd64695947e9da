//! `afar up --machines N`: a cell of several machines, which are network namespaces of this one. Each has a member of an etcd, a server with all
//! roles, and a replica of the root volumes; the mounted client is outside of them. So what happens when a machine dies can be tried
//! by killing its processes.

use super::{CELL, Cli, Runner, StopSignals, attach, hold, prepare};
use crate::{output, private, runtime};
use afs_server::Config as ServerConfig;
use afs_server::config::Log;
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::state::State;

/// The bridge between the machines, and what the names of the namespaces begin with.
const NAME: &str = "afar-up";

/// The network of the machines; this machine's end is the last address.
const NETWORK: [u8; 3] = [10, 99, 77];
const HOST: u8 = 254;

/// An etcd has at most seven members, beyond which it only gets slower.
const MACHINES_MAX: u8 = 7;

/// Held while there are machines: their network has one name, whatever the state folder.
const LOCK: &str = "/run/afar-up-machines.lock";

/// Says that a state folder has a cell of machines: how many, and the cell's name.
const MARK: &str = "machines";

/// The time within which a machine's server must stop, and then its etcd.
const TIMEOUT: Duration = Duration::from_secs(20);

fn address(machine: u8) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, machine)
}

/// A machine's processes. Dropped, they end.
struct Machine {
    number: u8,
    folder: PathBuf,
    etcd: Child,
    server: Option<Child>,
}

/// The machines and their network. Dropped, all of it is gone but for the state folder.
struct Machines {
    all: Vec<Machine>,
    _lock: File,
}

/// Runs the cell until it is told to stop.
pub(super) fn run(
    cli: &Cli,
    count: u8,
    state: &State,
    runner: &Runner,
    mount: Option<&Path>,
) -> Result<(), String> {
    check(count, runner)?;
    let memory_mib = u32::try_from(crate::mount::memory_bytes(&cli.memory)? >> 20).unwrap_or(u32::MAX);
    // The client has as much as each of the servers.
    let part = (memory_mib / u32::from(count + 1)).max(32);
    let cell = claim(state.path(), count, cli.cell.as_deref())?;
    let (folder, log) = (state.path().to_owned(), cli.log.clone());
    let plan = Arc::new(Plan { state: folder, cell, count, memory_mib: part, log });
    let mut config = ServerConfig::default();
    state.path().clone_into(&mut config.server.state);
    config.server.bind = address(HOST);
    config.server.memory_mib = part;
    config.log = Log { filter: cli.log.clone(), ..Log::default() };
    afs_server::log::begin(&config.log, None, false)?;
    let runtime = runtime::start()?;
    runtime.block_on(async {
        let mut told = StopSignals::listen()?;
        let machines = start(&plan, &mut told).await?;
        let begun = async {
            let prepared = prepare(&config, state, runner, Some(address(HOST))).await?;
            tokio::task::block_in_place(|| replicate(&plan))?;
            let cell = prepared.cell.clone();
            Ok((cell, attach(&config, state, prepared, mount).await?))
        };
        let (cell, mut attached) = tokio::select! {
            begun = begun => begun,
            () = told.stop_is_told() => Err("stopped before it was ready".to_owned()),
        }?;
        // Nobody may be listening on stdout, which is no reason to stop.
        let _ = output::write(&ready(cell.as_str(), mount, &machines));
        hold(attached.as_mut(), &mut told).await;
        if let Some(mut attached) = attached {
            attached.detach().await;
        }
        Ok(())
    })
}

/// Starts the machines. If the process is told to stop meanwhile, it leaves nothing behind.
async fn start(plan: &Arc<Plan>, told: &mut StopSignals) -> Result<Machines, String> {
    let stops = Arc::new(AtomicBool::new(false));
    let mut starting = tokio::task::spawn_blocking({
        let (plan, stops) = (Arc::clone(plan), Arc::clone(&stops));
        move || Machines::start(&plan, &stops)
    });
    let started = tokio::select! {
        started = &mut starting => started,
        () = told.stop_is_told() => {
            stops.store(true, Ordering::Relaxed);
            // A server that is waited for ends, and with it the wait.
            remove_network();
            return match starting.await {
                Ok(Ok(_)) | Ok(Err(_)) => Err("stopped before it was ready".to_owned()),
                Err(error) => Err(error.to_string()),
            };
        }
    };
    started.map_err(|error| error.to_string())?
}

/// Takes a state folder for a cell of so many machines; says the cell's name. The folder's own keys are written, so one that has another cell is
/// left alone.
fn claim(state: &Path, count: u8, cell: Option<&str>) -> Result<String, String> {
    let (mark, shown) = (state.join(MARK), state.display());
    let failed = |error: std::io::Error| format!("{}: {error}", mark.display());
    match fs::read_to_string(&mark) {
        Ok(text) => {
            let known = text.trim().split_once(' ').unwrap_or_default();
            if known.0 != count.to_string() || cell.is_some_and(|cell| cell != known.1) {
                return Err(format!(
                    "the state folder {shown} has the cell {} of {} machines: give the same --machines and --cell, or choose another \
                     folder with --state",
                    known.1, known.0
                ));
            }
            Ok(known.1.to_owned())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if ["complete", "databases", "etc/server"].iter().any(|name| state.join(name).exists()) {
                return Err(format!(
                    "the state folder {shown} has a cell of this machine alone: choose another folder with --state"
                ));
            }
            let cell = cell.unwrap_or(CELL);
            fs::write(&mark, format!("{count} {cell}\n")).map_err(failed)?;
            Ok(cell.to_owned())
        }
        Err(error) => Err(failed(error)),
    }
}

fn check(count: u8, runner: &Runner) -> Result<(), String> {
    if !(1..=MACHINES_MAX).contains(&count) {
        return Err(format!("--machines takes a number from 1 to {MACHINES_MAX}"));
    }
    if !cfg!(feature = "etcd") {
        return Err("--machines needs an afar that was built with etcd: use the Debian package, or build it with 'cargo build \
                    --release -p afar --features etcd'"
            .to_owned());
    }
    if !runner.is_root {
        return Err("--machines makes network namespaces, and only root may do that: use sudo".to_owned());
    }
    let is_there = |program: &&str| {
        ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    match ["ip", "etcd"].iter().find(|program| !is_there(program)) {
        Some(program) => Err(format!(
            "the program {program} is missing: --machines needs Debian's packages iproute2 and etcd-server"
        )),
        None => Ok(()),
    }
}

struct Plan {
    state: PathBuf,
    cell: String,
    count: u8,
    memory_mib: u32,
    log: String,
}

impl Plan {
    fn folder(&self, machine: u8) -> PathBuf {
        self.state.join(format!("machine{machine}"))
    }

    /// A comma-separated list over all machines.
    fn list(&self, item: impl Fn(u8) -> String) -> String {
        (1..=self.count).map(item).collect::<Vec<_>>().join(",")
    }

    fn configuration(&self, machine: u8) -> String {
        let folder = self.folder(machine);
        let etcd = self.list(|other| format!("\"http://{}:2379\"", address(other)));
        let servers = self.list(|other| format!("\"{}\"", address(other)));
        format!(
            "[server]\nstate = {folder:?}\ncell = {:?}\nbind = \"{}\"\npartitions = [{:?}]\nmemory_mib = {}\n\
             [databases]\netcd = [{etcd}]\nservers = [{servers}]\n[log]\nfilter = {:?}\n[metrics]\nbind = \"{}:9160\"\n",
            self.cell,
            address(machine),
            format!("a={}", folder.join("vicepa").display()),
            self.memory_mib,
            self.log,
            address(machine),
        )
    }
}

impl Machines {
    fn start(plan: &Plan, stops: &AtomicBool) -> Result<Self, String> {
        let lock = File::create(LOCK).map_err(|error| format!("{LOCK}: {error}"))?;
        lock.try_lock().map_err(|_| {
            "another 'afar up --machines' runs on this machine and uses the same network: stop it first"
                .to_owned()
        })?;
        let go_on = || match stops.load(Ordering::Relaxed) {
            true => Err("stopped before it was ready".to_owned()),
            false => Ok(()),
        };
        remove_network();
        // From here on what was made is taken away again.
        let mut machines = Self { all: Vec::new(), _lock: lock };
        let bridge = format!("{}/24", address(HOST));
        ip(&["link", "add", NAME, "type", "bridge"])?;
        ip(&["addr", "add", &bridge, "dev", NAME])?;
        ip(&["link", "set", NAME, "up"])?;
        for number in 1..=plan.count {
            go_on()?;
            let (space, near) = (space(number), format!("{NAME}{number}"));
            let own = format!("{}/24", address(number));
            ip(&["netns", "add", &space])?;
            ip(&["link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
            ip(&["link", "set", &near, "master", NAME, "up"])?;
            ip(&["-n", &space, "addr", "add", &own, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            machines.all.push(Machine::start(plan, number)?);
        }
        for index in 0..machines.all.len() {
            go_on()?;
            if index > 0 {
                copy_keys(plan, &machines.all[index].folder.join("etc/server"))?;
            }
            machines.all[index].serve(plan)?;
            if index == 0 {
                let etc = plan.state.join("etc");
                copy_keys(plan, &etc.join("server"))?;
                let opened = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
                opened(&etc, 0o755).map_err(|error| format!("{}: {error}", etc.display()))?;
                for file in ["ThisCell", "CellServDB"] {
                    let (from, to) = (plan.folder(1).join("etc").join(file), etc.join(file));
                    let copied = fs::copy(from, &to).and_then(|_| opened(&to, 0o644));
                    copied.map_err(|error| format!("{}: {error}", to.display()))?;
                }
            }
        }
        Ok(machines)
    }
}

/// Gives a folder the key and the superusers of the first machine.
fn copy_keys(plan: &Plan, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    let from = plan.folder(1).join("etc/server");
    if let Some(above) = to.parent() {
        fs::create_dir_all(above).map_err(failed)?;
    }
    private::folder(to).map_err(failed)?;
    for file in ["ThisCell", "CellServDB", "KeyFileExt"] {
        fs::copy(from.join(file), to.join(file)).map_err(failed)?;
    }
    // Each machine keeps its own list, which `bos adduser` and `removeuser` change.
    let superusers = to.join("UserList");
    if !superusers.exists() {
        fs::copy(from.join("UserList"), &superusers).map_err(failed)?;
    }
    Ok(())
}

impl Machine {
    /// Starts the machine's etcd.
    fn start(plan: &Plan, number: u8) -> Result<Self, String> {
        let folder = plan.folder(number);
        private::folder(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let url = |machine, port: u16| format!("http://{}:{port}", address(machine));
        let cluster = plan.list(|other| format!("machine{other}={}", url(other, 2380)));
        let log = File::create(folder.join("etcd.log"))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut command = inside(number, Path::new("etcd"));
        command.args(["--name", &format!("machine{number}"), "--data-dir"]).arg(folder.join("etcd"));
        for (option, port) in [("client", 2379), ("peer", 2380)] {
            let url = url(number, port);
            let advertise =
                if port == 2379 { "--advertise-client-urls" } else { "--initial-advertise-peer-urls" };
            command.args([&format!("--listen-{option}-urls"), &url, advertise, &url]);
        }
        command.args(["--initial-cluster", &cluster, "--initial-cluster-state", "new"]);
        let etcd = command.stdout(Stdio::null()).stderr(log).spawn();
        let etcd = etcd.map_err(|error| format!("etcd cannot be started: {error}"))?;
        Ok(Self { number, folder, etcd, server: None })
    }

    /// Starts the machine's server, and waits until it is ready.
    fn serve(&mut self, plan: &Plan) -> Result<(), String> {
        let file = self.folder.join("server.toml");
        let written = fs::write(&file, plan.configuration(self.number));
        written.map_err(|error| format!("{}: {error}", file.display()))?;
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's own file: {error}"))?;
        let mut command = inside(self.number, &program);
        command.args(["server", "--config"]).arg(&file).stdout(Stdio::piped());
        let failed = |what: &dyn std::fmt::Display| {
            format!("the server of machine {} did not start: {what}", self.number)
        };
        let mut server = command.spawn().map_err(|error| failed(&error))?;
        let stdout = server.stdout.take();
        self.server = Some(server);
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout.ok_or_else(|| failed(&"its output cannot be read"))?);
        stdout.read_line(&mut line).map_err(|error| failed(&error))?;
        if !line.starts_with("ready ") {
            return Err(failed(&"its message above says why"));
        }
        // Nothing more comes; a closed pipe would not hurt it either.
        std::thread::spawn(move || drop(stdout.read_to_end(&mut Vec::new())));
        Ok(())
    }
}

/// A command in a machine. Its processes are not told what the terminal says to this one, as they have to outlive the client.
fn inside(machine: u8, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &space(machine)]).arg(program);
    command.stdin(Stdio::null()).env_remove("NOTIFY_SOCKET").process_group(0);
    command
}

fn space(machine: u8) -> String {
    format!("{NAME}-{machine}")
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), said.trim()))
}

/// Removes what is left of a cell of machines: its processes, if any, and the network.
fn remove_network() {
    for machine in 1..=MACHINES_MAX {
        let space = space(machine);
        let Ok(pids) = ip(&["netns", "pids", &space]) else { continue };
        for pid in pids.split_whitespace().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
        {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = ip(&["netns", "del", &space]);
        let _ = ip(&["link", "del", &format!("{NAME}{machine}")]);
    }
    let _ = ip(&["link", "del", NAME]);
}

impl Drop for Machines {
    fn drop(&mut self) {
        let tell = |child: &Child, signal| {
            if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let _ = kill_process(pid, signal);
            }
        };
        let servers = self.all.iter().filter_map(|machine| machine.server.as_ref());
        servers.for_each(|server| tell(server, Signal::TERM));
        let end = |child: &mut Child, until| {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        };
        let until = Instant::now() + TIMEOUT;
        self.all
            .iter_mut()
            .filter_map(|machine| machine.server.as_mut())
            .for_each(|server| end(server, until));
        self.all.iter().for_each(|machine| tell(&machine.etcd, Signal::TERM));
        let until = Instant::now() + TIMEOUT;
        self.all.iter_mut().for_each(|machine| end(&mut machine.etcd, until));
        remove_network();
    }
}

/// Puts the root volumes on all machines, once.
fn replicate(plan: &Plan) -> Result<(), String> {
    let mark = plan.state.join("replicated");
    if mark.exists() {
        return Ok(());
    }
    let program =
        std::env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let config = plan.state.join("etc/server");
    let vos = |arguments: &[&str]| {
        let output = Command::new(&program)
            .arg("vos")
            .args(arguments)
            .arg("-config")
            .arg(&config)
            .arg("-localauth")
            .output();
        let output = output.map_err(|error| format!("vos: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() || said.contains("already") {
            Ok(())
        } else {
            Err(format!("vos {}: {said}", arguments.join(" ")))
        }
    };
    for volume in ["root.afs", "root.cell"] {
        for machine in 1..=plan.count {
            vos(&["addsite", &address(machine).to_string(), "a", volume])?;
        }
        vos(&["release", volume])?;
    }
    fs::write(&mark, "").map_err(|error| format!("{}: {error}", mark.display()))
}

fn ready(cell: &str, mount: Option<&Path>, machines: &Machines) -> String {
    let path = mount.map_or_else(|| "-".to_owned(), |mount| mount.display().to_string());
    let mut text = format!("ready cell={cell} mount={path} machines={}\n\n", machines.all.len());
    for machine in &machines.all {
        let server = machine.server.as_ref().map_or(0, Child::id);
        text.push_str(&format!(
            "  machine {}  {}  server {}  etcd {}  {}\n",
            machine.number,
            address(machine.number),
            server,
            machine.etcd.id(),
            machine.folder.display()
        ));
    }
    let victim = machines.all.len().min(2);
    let look = mount.map_or_else(String::new, |_| format!("  ls -l {path}/{cell}\n"));
    text.push_str(&format!(
        "\nKill a machine, and see what still works:\n  kill -9 $(ip netns pids {NAME}-{victim})\n{look}Cut a machine off from the network:\n  \
         ip link set {NAME}{victim} down\nCtrl-C stops the cell. The next start runs all machines again.\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_with_another_cell_is_not_taken_for_machines() {
        let folder = std::env::temp_dir().join(format!("afar-machines-{}", std::process::id()));
        fs::create_dir_all(folder.join("etc/server")).unwrap();
        let refused = claim(&folder, 3, None).unwrap_err();
        assert!(refused.contains("has a cell of this machine alone"), "{refused}");
        fs::remove_dir_all(folder.join("etc")).unwrap();
        assert_eq!(claim(&folder, 3, Some("three.test")).unwrap(), "three.test");
        fs::create_dir_all(folder.join("etc/server")).unwrap();
        assert_eq!(claim(&folder, 3, None).unwrap(), "three.test", "its own is gone on with");
        for (count, cell) in [(5, None), (3, Some("other.test"))] {
            let refused = claim(&folder, count, cell).unwrap_err();
            assert!(refused.contains("has the cell three.test of 3 machines"), "{refused}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
