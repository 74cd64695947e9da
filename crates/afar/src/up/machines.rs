//! `afar up --machines N`: a cell of several machines, which are network namespaces of this one. Each has a member of an etcd, a server with all
//! roles, and a replica of the root volumes; the mounted client is outside of them. So what happens when a machine dies can be tried
//! by killing its processes.

use super::{CELL, Cli, Runner, Told, attach, detach, hold, prepare};
use crate::{output, private};
use afs_server::Config as ServerConfig;
use afs_server::config::Log;
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::state::State;

/// The bridge between the machines, and what the names of the namespaces begin with.
const NAME: &str = "afar-up";

/// The network of the machines; this machine's end is the last address.
const NETWORK: [u8; 3] = [10, 99, 77];
const HOST: u8 = 254;

/// An etcd has at most seven members, beyond which it only gets slower.
const MACHINES_MAX: u8 = 7;

/// How long a machine's server may take to stop.
const PATIENCE: Duration = Duration::from_secs(20);

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
struct Machines(Vec<Machine>);

/// Runs the cell until it is told to stop.
pub(super) fn run(
    cli: &Cli,
    count: u8,
    state: &State,
    runner: &Runner,
    mount: Option<&Path>,
) -> Result<(), String> {
    check(count, runner)?;
    let cell = cli.cell.as_deref().unwrap_or(CELL);
    let memory_mib = u32::try_from(crate::mount::memory_bytes(&cli.memory)? >> 20).unwrap_or(u32::MAX);
    // The client has as much as each of the servers.
    let part = (memory_mib / u32::from(count + 1)).max(32);
    let plan = Plan { state: state.path(), cell, count, memory_mib: part, log: &cli.log };
    let machines = Machines::start(&plan)?;
    let mut config = ServerConfig::default();
    state.path().clone_into(&mut config.server.state);
    config.server.bind = address(HOST);
    config.server.memory_mib = part;
    config.log = Log { filter: cli.log.clone(), ..Log::default() };
    afs_server::log::begin(&config.log, None, false)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no threads can be started: {error}"))?;
    runtime.block_on(async {
        let mut told = Told::listen()?;
        let begun = async {
            let prepared = prepare(&config, state, runner, Some(address(HOST))).await?;
            tokio::task::block_in_place(|| replicate(&plan))?;
            let attached = match mount {
                Some(path) => Some(attach(&config, state, &prepared, path).await?),
                None => None,
            };
            Ok((prepared.cell, attached))
        };
        let (cell, attached) = tokio::select! {
            begun = begun => begun,
            () = told.stop_is_told() => Err("stopped before it was ready".to_owned()),
        }?;
        // Nobody may be listening on stdout, which is no reason to stop.
        let _ = output::write(&ready(cell.as_str(), mount, &machines));
        hold(attached.as_ref(), &mut told).await;
        detach(attached).await;
        Ok(())
    })
}

fn check(count: u8, runner: &Runner) -> Result<(), String> {
    if !(1..=MACHINES_MAX).contains(&count) {
        return Err(format!("--machines: 1 to {MACHINES_MAX} are possible"));
    }
    if !cfg!(feature = "etcd") {
        return Err("--machines needs a program that was built with etcd: take the Debian package, or build it with 'cargo build \
                    --release -p afar --features etcd'"
            .to_owned());
    }
    if !runner.is_root {
        return Err("--machines makes network namespaces, which only root may: use sudo".to_owned());
    }
    let is_there = |program: &&str| {
        ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    match ["ip", "etcd"].iter().find(|program| !is_there(program)) {
        Some(program) => {
            Err(format!("there is no {program}: --machines needs Debian's iproute2 and etcd-server"))
        }
        None => Ok(()),
    }
}

struct Plan<'a> {
    state: &'a Path,
    cell: &'a str,
    count: u8,
    memory_mib: u32,
    log: &'a str,
}

impl Plan<'_> {
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
    fn start(plan: &Plan<'_>) -> Result<Self, String> {
        remove_network();
        // From here on what was made is taken away again.
        let mut machines = Self(Vec::new());
        let bridge = format!("{}/24", address(HOST));
        ip(&["link", "add", NAME, "type", "bridge"])?;
        ip(&["addr", "add", &bridge, "dev", NAME])?;
        ip(&["link", "set", NAME, "up"])?;
        for number in 1..=plan.count {
            let (space, near) = (space(number), format!("{NAME}{number}"));
            let own = format!("{}/24", address(number));
            ip(&["netns", "add", &space])?;
            ip(&["link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
            ip(&["link", "set", &near, "master", NAME, "up"])?;
            ip(&["-n", &space, "addr", "add", &own, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            machines.0.push(Machine::start(plan, number)?);
        }
        for index in 0..machines.0.len() {
            if index > 0 {
                copy_keys(plan, &machines.0[index].folder.join("etc/server"))?;
            }
            machines.0[index].serve(plan)?;
            if index == 0 {
                copy_keys(plan, &plan.state.join("etc/server"))?;
                for file in ["ThisCell", "CellServDB"] {
                    let (from, to) =
                        (plan.folder(1).join("etc").join(file), plan.state.join("etc").join(file));
                    fs::copy(from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
                }
            }
        }
        Ok(machines)
    }
}

/// Gives a folder the key and the superusers of the first machine.
fn copy_keys(plan: &Plan<'_>, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    let from = plan.folder(1).join("etc/server");
    if let Some(above) = to.parent() {
        fs::create_dir_all(above).map_err(failed)?;
    }
    private::folder(to).map_err(failed)?;
    for file in ["ThisCell", "CellServDB", "KeyFileExt", "UserList"] {
        fs::copy(from.join(file), to.join(file)).map_err(failed)?;
    }
    Ok(())
}

impl Machine {
    /// Starts the machine's etcd.
    fn start(plan: &Plan<'_>, number: u8) -> Result<Self, String> {
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
    fn serve(&mut self, plan: &Plan<'_>) -> Result<(), String> {
        let file = self.folder.join("server.toml");
        let written = fs::write(&file, plan.configuration(self.number));
        written.map_err(|error| format!("{}: {error}", file.display()))?;
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = inside(self.number, &program);
        command.args(["server", "--config"]).arg(&file).stdout(Stdio::piped());
        let failed = |what: &dyn std::fmt::Display| {
            format!("the server of machine {} does not start: {what}", self.number)
        };
        let mut server = command.spawn().map_err(|error| failed(&error))?;
        let stdout = server.stdout.take();
        self.server = Some(server);
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout.ok_or_else(|| failed(&"it has no output"))?);
        stdout.read_line(&mut line).map_err(|error| failed(&error))?;
        if !line.starts_with("ready ") {
            return Err(failed(&"see above"));
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
        let servers = self.0.iter().filter_map(|machine| machine.server.as_ref());
        servers.for_each(|server| tell(server, Signal::TERM));
        let until = Instant::now() + PATIENCE;
        for machine in &mut self.0 {
            if let Some(server) = &mut machine.server {
                while matches!(server.try_wait(), Ok(None)) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let _ = server.kill();
                let _ = server.wait();
            }
        }
        for machine in &mut self.0 {
            tell(&machine.etcd, Signal::TERM);
            let _ = machine.etcd.wait();
        }
        remove_network();
    }
}

/// Puts the root volumes on all machines, once.
fn replicate(plan: &Plan<'_>) -> Result<(), String> {
    let mark = plan.state.join("replicated");
    if mark.exists() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
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
    let mut text = format!("ready cell={cell} mount={path} machines={}\n\n", machines.0.len());
    for machine in &machines.0 {
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
    text.push_str(&format!(
        "\nKill a machine and look what still works:\n  kill -9 $(ip netns pids {})\n  ls -l {path}/{cell}\nCut one off:\n  ip link set {NAME}2 down\n\
         The next start has all of them again. Ctrl-C stops it.\n",
        space(2)
    ));
    text
}
