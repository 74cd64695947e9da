//! `afar server`: the servers of this machine in the foreground. The options are here; what runs is the library
//! `crates/afs-server`.

use crate::{arguments, runtime};
use afs_server::audit::AuditLog;
use afs_server::exporter::Exporter;
use afs_server::notify::ServiceManager;
use afs_server::orders::Order;
use afs_server::{Config, Role, Server, log};
use clap::Parser;
mod check;

use std::ffi::OsString;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The time between the answer to an order and its execution: within it, the answer reaches the caller even if its first packet is lost.
const ANSWER_TIME: Duration = Duration::from_millis(500);

#[derive(Parser)]
#[command(
    name = "afar server",
    about = "Runs this machine's servers: files, volumes, the cell's databases, and bos"
)]
struct Cli {
    /// The configuration, in TOML; docs/administration.md lists its settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder with everything that the server keeps; the first start makes it
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The roles to run: some of file, vol, vl, pt, bos, separated by commas; by default all
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = role)]
    roles: Option<Vec<Role>>,
    /// The address to listen on
    #[arg(long, value_name = "ADDR")]
    bind: Option<Ipv4Addr>,
    /// Name of the cell to make at the first start
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// A server's configuration folder in OpenAFS's format, which afar uses as it is
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// OpenAFS's BosConfig; afar runs the servers that this file lists, with their options
    #[arg(long, value_name = "FILE")]
    bos_config: Option<PathBuf>,
    /// Checks the configuration, the other database servers and etcd, and starts nothing
    #[arg(long)]
    check: bool,
}

fn role(name: &str) -> Result<Role, String> {
    Role::parse(name).ok_or_else(|| "a role is one of file, vol, vl, pt, bos".to_owned())
}

/// Runs the servers until SIGTERM or SIGINT.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    crate::private::begin();
    arguments::run("afar server", args, serve)
}

fn serve(cli: Cli) -> Result<(), String> {
    let config = configuration(&cli)?;
    if cli.check {
        config.notes.iter().for_each(|note| println!("{note}"));
    }
    let runtime = runtime::start()?;
    if cli.check {
        let others = check::others(&config)?;
        return runtime.block_on(check::etcd(&config, &others));
    }
    runtime.block_on(run_until_told(&config))
}

/// The settings of the file, and over them those of the command line.
fn configuration(cli: &Cli) -> Result<Config, String> {
    let mut config = match &cli.config {
        Some(path) => Config::load(path).map_err(|error| error.to_string())?,
        None => Config::default(),
    };
    if let Some(path) = &cli.bos_config {
        config.read_bos_config(path).map_err(|error| error.to_string())?;
    }
    let server = &mut config.server;
    let absolute =
        |path: &PathBuf| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    if let Some(state) = &cli.state {
        server.state = absolute(state)?;
    }
    if let Some(folder) = &cli.config_dir {
        server.config_dir = absolute(folder)?;
    }
    if let Some(roles) = &cli.roles {
        server.roles.clone_from(roles);
    }
    if let Some(bind) = cli.bind {
        server.bind = bind;
    }
    if let Some(cell) = &cli.cell {
        server.cell.clone_from(cell);
    }
    config.check().map_err(|error| error.to_string())?;
    if let Some(wanted) = &cli.cell {
        must_be_of(&config, wanted)?;
    }
    Ok(config)
}

/// Refuses a folder of another cell than the one that is to be made.
fn must_be_of(config: &Config, wanted: &str) -> Result<(), String> {
    let folder = config.config_dir();
    match std::fs::read_to_string(folder.join("ThisCell")) {
        Ok(text) if !text.trim().eq_ignore_ascii_case(wanted) => Err(format!(
            "{} has the cell {}, not {wanted}: leave out --cell, or give another folder with --state",
            folder.display(),
            text.trim()
        )),
        // A first start, or what reading it again will say.
        _ => Ok(()),
    }
}

async fn run_until_told(config: &Config) -> Result<(), String> {
    let audit = open_audit(config)?;
    let state = &config.server.state;
    crate::private::state_folder(state)
        .map_err(|error| format!("the state folder {} cannot be used: {error}", state.display()))?;
    let recent = log::begin(&config.log, audit.clone(), config.audit.files)?;
    let manager = ServiceManager::at(std::env::var_os("NOTIFY_SOCKET").as_deref())
        .map_err(|error| format!("NOTIFY_SOCKET cannot be used: {error}"))?;
    let mut signals = Signals::new().map_err(|error| format!("cannot wait for signals: {error}"))?;
    let exporter = Exporter::default();
    if config.metrics.bind.is_some() {
        exporter.install();
    }
    let server = Server::start_logging(config, recent).await.map_err(|error| error.to_string())?;
    if let Some(address) = config.metrics.bind {
        let listen = exporter.listen(address, server.publisher(), server.pages()).await;
        let (address, serve) = listen.map_err(|error| {
            format!("metrics.bind: the server cannot listen on {address}: {error}; choose another port")
        })?;
        tracing::info!(%address, "metrics can be fetched");
        tokio::spawn(serve);
    }
    let addresses: Vec<String> =
        server.addresses().map(|(role, address)| format!("{}={address}", role.name())).collect();
    let addresses = addresses.join(" ");
    tracing::info!(addresses, "ready");
    // Nobody may be listening on stdout, which is no reason to stop.
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {addresses}").and_then(|()| out.flush());
    manager.ready(&addresses);

    let orders = server.orders();
    let mut order = loop {
        let told = tokio::select! {
            told = signals.next() => told,
            mut order = orders.next() => {
                // Whoever gave the order is answered first.
                meanwhile(&mut order, async || signals.next().await, tokio::time::sleep(ANSWER_TIME)).await;
                break order;
            }
        };
        if told == Requested::Stop {
            break Order::Stop;
        }
        server.reload_keys();
        if let Some(Err(error)) = audit.as_ref().map(AuditLog::reopen) {
            tracing::error!(%error, "the audit log stays in the old file");
        }
    };
    tracing::info!(restarts = order == Order::Restart, "stopping");
    if order == Order::Stop {
        manager.stopping();
    }
    let stopping = tokio::task::spawn_blocking(move || server.stop());
    let stopped = meanwhile(&mut order, async || signals.next().await, stopping).await;
    stopped.map_err(|error| format!("stopping went wrong: {error}"))?;
    tracing::info!("stopped");
    match order {
        Order::Stop => Ok(()),
        Order::Restart => Err(again()),
    }
}

/// Waits for something that is done for an order. To be told to stop meanwhile, as by the service manager, turns a restart into a
/// stop.
async fn meanwhile<T>(
    order: &mut Order,
    mut told: impl AsyncFnMut() -> Requested,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            told = told() => if told == Requested::Stop {
                *order = Order::Stop;
            },
            done = &mut work => return done,
        }
    }
}

/// Starts this process anew, with the program as it is now. Only returns why that failed.
fn again() -> String {
    let program = match std::env::current_exe() {
        // So the kernel calls a program in whose place another was put, as a new version is.
        Ok(path) => match path.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
            Some(path) => PathBuf::from(path),
            None => path,
        },
        Err(error) => return format!("the program of this process is not found: {error}"),
    };
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
    format!("{} cannot be started again: {error}", program.display())
}

fn open_audit(config: &Config) -> Result<Option<AuditLog>, String> {
    if !config.audit.enabled {
        return Ok(None);
    }
    let file = config.audit_file();
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(|error| {
            format!("the folder {} of the audit log cannot be made: {error}", folder.display())
        })?;
    }
    let log = AuditLog::open(&file).map_err(|error| {
        format!("the audit log {} cannot be written: {error}; name another with audit.file", file.display())
    })?;
    Ok(Some(log))
}

/// The requests that signals bring.
#[derive(PartialEq, Eq)]
enum Requested {
    Stop,
    Reload,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Requested {
        tokio::select! {
            _ = self.terminate.recv() => Requested::Stop,
            _ = self.interrupt.recv() => Requested::Stop,
            _ = self.hangup.recv() => Requested::Reload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_restart_that_is_told_to_stop_stops() {
        for (told, ends_as) in [(Requested::Stop, Order::Stop), (Requested::Reload, Order::Restart)] {
            let mut order = Order::Restart;
            let mut signals = Some(told).into_iter();
            let next = async || match signals.next() {
                Some(told) => told,
                None => std::future::pending().await,
            };
            assert_eq!(meanwhile(&mut order, next, std::future::ready(7)).await, 7);
            assert_eq!(order, ends_as);
        }
    }
}
