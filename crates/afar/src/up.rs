//! `afar up`: a whole cell on this machine in the foreground: its servers and a mounted client in one process. The first
//! run makes the cell, and later runs use it again. What a cell has is in `up/cell.rs`, the state folder in `up/state.rs`.
//!
//! A user who can read the state folder has the cell's key, and can act as any user of the cell. From that key the client makes tickets
//! for the users of this machine that the state folder's file `users` names; the kernel says who asks. Nobody else can.

mod attached;
mod cell;
mod machines;
mod realm;
mod state;

use crate::hosts::is_public;
use crate::{arguments, callback_wait, hangup, metrics, mount_point, output, private, runtime};
use afs_config::{Cell, CellName, CellServDb, DbServer, ServerFolder};
use afs_server::audit::AuditLog;
use afs_server::config::Log;
use afs_server::{Config as ServerConfig, Server, log};
use afs_wire::ids::ViceId;
use attached::{Attached, hold};
use cell::{ADMINISTRATOR, CellMaker};
use clap::Parser;
use nix::unistd::User;
use realm::Realm;
use rustix::process::geteuid;
use rx::{Runtime, TokioRuntime};
use rx_security::KeySet;
use state::{Person, State};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The name of a cell that is given none.
const CELL: &str = "afar.local";

/// The memory of a cell if no option says otherwise: with the program itself, some 40 MiB, it stays below 300 MiB.
const MEMORY: &str = "256M";

/// The longest time that making a cell may take: a second or so where nothing is wrong.
const MAKING_MAX: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(
    name = "afar up",
    about = "Runs a whole cell on this machine in the foreground: its servers, and a client that mounts it"
)]
struct Cli {
    /// The state folder; the first run makes it
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where to mount the cell; by default /afs for root if that is free, otherwise ~/afs
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Runs only the servers and mounts nothing
    #[arg(long, conflicts_with = "mount")]
    no_mount: bool,
    /// The name of the cell that the first run makes [default: afar.local]
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// The address of the servers
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    bind: Ipv4Addr,
    /// Further addresses at which others reach the servers, such as that of a router that forwards their ports
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with = "machines")]
    public: Vec<Ipv4Addr>,
    /// Runs a Kerberos realm beside the cell, with Debian's KDC, to try kinit and aklog
    #[arg(long)]
    realm: bool,
    /// Runs N machines (1 to 7) as network namespaces that share their databases in an etcd; needs root
    #[arg(long, value_name = "N", conflicts_with_all = ["bind", "realm", "metrics"])]
    machines: Option<u8>,
    /// Maximum memory for the tables and caches of servers and client together, such as 1G
    #[arg(long, value_name = "SIZE", default_value = MEMORY)]
    memory: String,
    /// Address at which metrics can be fetched over HTTP, such as 127.0.0.1:9160
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// The filter for log messages, such as "info" or "warn,afs_reach=debug"
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
}

/// Runs the cell until SIGTERM, SIGINT, or its terminal is closed.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    private::begin();
    arguments::run("afar up", args, |cli: Cli| start(&cli))
}

/// The user who runs this, and their folders.
struct Runner {
    is_root: bool,
    /// The person whose user volume is made: the one behind sudo, if root is.
    person: Person,
    home: Option<PathBuf>,
    state_home: Option<PathBuf>,
}

impl Runner {
    fn find() -> Self {
        let uid = geteuid();
        let behind =
            std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok()).filter(|_| uid.is_root());
        let owner = behind.unwrap_or(uid.as_raw());
        let name = match owner {
            0 => ADMINISTRATOR.to_owned(),
            _ => user_name(owner).unwrap_or_else(|| format!("user{owner}")),
        };
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            is_root: uid.is_root(),
            person: Person { uid: owner, name },
            home: absolute("HOME"),
            state_home: absolute("XDG_STATE_HOME"),
        }
    }

    fn default_state(&self) -> Result<PathBuf, String> {
        if self.is_root {
            return Ok(PathBuf::from("/var/lib/afar"));
        }
        let state_home = self.state_home.clone().or_else(|| Some(self.home.as_ref()?.join(".local/state")));
        let folder = state_home.map(|folder| folder.join("afar"));
        folder.ok_or_else(|| "HOME is not set: say where to keep the cell with --state DIR".to_owned())
    }
}

/// The login name of a user of this machine, if the cell can have one of that name.
fn user_name(uid: u32) -> Option<String> {
    let name = User::from_uid(uid.into()).ok()??.name;
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    (is_plain && !name.is_empty() && name != ADMINISTRATOR).then(|| name.to_ascii_lowercase())
}

fn uid_of(name: &str) -> Option<u32> {
    User::from_name(name).ok()?.map(|user| user.uid.as_raw())
}

fn start(cli: &Cli) -> Result<(), String> {
    let runner = Runner::find();
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let state = match &cli.state {
        Some(path) => absolute(path)?,
        // A cell of machines is another one than that of this machine alone.
        None if cli.machines.is_some() => runner.default_state()?.with_extension("machines"),
        None => runner.default_state()?,
    };
    let mount = match &cli.mount {
        _ if cli.no_mount => None,
        Some(path) => Some(absolute(path)?),
        None => Some(mount_point::default_for(runner.is_root, runner.home.as_deref())?),
    };
    if let Some(path) = &mount {
        // What would keep it from being mounted is found out before anything is made.
        for note in mount_point::prepare(path)? {
            eprintln!("afar up: {note}");
        }
    }
    let state = State::open(&state)?;
    if let Some(count) = cli.machines {
        return machines::run(cli, count, &state, &runner, mount.as_deref());
    }
    let config = configuration(cli, &state)?;
    let audit = config.audit_file();
    let audit = AuditLog::open(&audit).map_err(|error| format!("{}: {error}", audit.display()))?;
    log::begin(&config.log, Some(audit), false)?;
    let runtime = runtime::start()?;
    let outcome = runtime.block_on(run_until_told(&config, &state, &runner, (mount.as_deref(), cli.realm)));
    // As in `afar mount`.
    runtime.shutdown_timeout(crate::mount::END_TIMEOUT);
    outcome
}

/// The servers' configuration: all of them, with everything in the state folder, whatever else this machine has.
fn configuration(cli: &Cli, state: &State) -> Result<ServerConfig, String> {
    let mut config = ServerConfig::default();
    let server = &mut config.server;
    state.path().clone_into(&mut server.state);
    server.partitions = vec![format!("a={}", state.path().join("vicepa").display())];
    server.bind = cli.bind;
    server.public.clone_from(&cli.public);
    if !cli.public.is_empty() && cli.bind.is_loopback() {
        return Err(
            "--public needs --bind with the address of this machine to which the ports are forwarded"
                .to_owned(),
        );
    }
    ADMINISTRATOR.clone_into(&mut server.administrator);
    server.cell = cli.cell.clone().unwrap_or_else(|| CELL.to_owned());
    // The client has the other half.
    server.memory_mib = u32::try_from(crate::mount::memory_bytes(&cli.memory)? >> 21).unwrap_or(u32::MAX);
    config.metrics.bind = cli.metrics;
    callback_wait::of_server(&mut config)?;
    config.log = Log { filter: cli.log.clone(), ..Log::default() };
    config.check().map_err(|error| error.to_string())?;
    if let Ok(folder) = ServerFolder::read(&config.config_dir()) {
        if cli.cell.as_ref().is_some_and(|cell| folder.cell.as_str() != cell) {
            return Err(format!(
                "the state folder {} has the cell {}: leave out --cell, or choose another folder with --state",
                state.path().display(),
                folder.cell
            ));
        }
        if !cli.bind.is_unspecified() {
            move_cell(state, &folder, cli.bind)?;
        }
    }
    Ok(config)
}

/// The cell's servers are at another address than the last time: who looks for them has to find them.
fn move_cell(state: &State, folder: &ServerFolder, to: Ipv4Addr) -> Result<(), String> {
    let own = folder.own();
    if own.servers.len() == 1 && own.servers[0].address == to {
        return Ok(());
    }
    let servers = vec![DbServer { address: to, name: None, is_clone: false }];
    let cell = Cell { servers, ..own.clone() };
    let etc = state.path().join("etc");
    for folder in [etc.clone(), etc.join("server")] {
        let file = folder.join("CellServDB");
        let mut cells = CellServDb::read(&file).map_err(|error| error.to_string())?;
        cells.cells.retain(|other| other.name != cell.name);
        cells.cells.insert(0, cell.clone());
        fs::write(&file, cells.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

async fn run_until_told(
    config: &ServerConfig,
    state: &State,
    runner: &Runner,
    (mount, wants_realm): (Option<&Path>, bool),
) -> Result<(), String> {
    let mut told = StopSignals::listen()?;
    let exporter = metrics::begin(config.metrics.bind);
    let server = Server::start(config).await.map_err(|error| in_words(&error.to_string()))?;
    let realm = if wants_realm {
        match begin_realm(config, state, runner, &server) {
            Ok(realm) => Some(realm),
            Err(error) => {
                stop(None, server).await;
                return Err(error);
            }
        }
    } else {
        None
    };
    let started = async {
        let prepared = prepare(config, state, runner, None).await?;
        attach(config, state, prepared, mount).await
    };
    let attached = tokio::select! {
        attached = started => attached,
        () = told.stop_is_told() => Err("stopped before it was ready".to_owned()),
    };
    let mut attached = match attached {
        Ok(attached) => attached,
        Err(error) => {
            stop(None, server).await;
            return Err(error);
        }
    };
    let publish = std::iter::once(server.publisher()).chain(attached.as_ref().map(Attached::publisher));
    if let Err(error) = metrics::serve(exporter, publish.collect(), server.pages()).await {
        stop(attached, server).await;
        return Err(error);
    }
    let cell = cell_of(config)?;
    // Nobody may be listening on stdout, which is no reason to stop.
    let _ = output::write(&ready(cell.as_str(), attached.as_ref().map(Attached::path), config));
    if let Some(realm) = &realm {
        let _ = output::write(&realm.note());
    }
    hold(attached.as_mut(), &mut told).await;
    stop(attached, server).await;
    Ok(())
}

/// Starts the realm, and has the servers take its key.
fn begin_realm(
    config: &ServerConfig,
    state: &State,
    runner: &Runner,
    server: &Server,
) -> Result<Realm, String> {
    let bind = config.server.bind;
    let mut users = vec![runner.person.name.as_str()];
    if runner.person.name != ADMINISTRATOR {
        users.push(ADMINISTRATOR);
    }
    let seed = TokioRuntime::current().seed().map_err(|error| error.to_string())?;
    let (cell, keys) = (cell_of(config)?, config.config_dir());
    let plan = realm::Plan {
        state: state.path(),
        keys: &keys,
        cell: cell.as_str(),
        address: if bind.is_unspecified() { Ipv4Addr::LOCALHOST } else { bind },
        users: &users,
        seed: zeroize::Zeroizing::new(seed),
    };
    let (realm, is_new) = Realm::start(&plan)?;
    if is_new {
        server.reload_keys();
    }
    Ok(realm)
}

/// The facts about the cell that the client needs.
struct Prepared {
    cell: CellName,
    keys: KeySet,
    people: Vec<(Person, ViceId)>,
}

/// True if strangers reach the servers.
fn is_on_the_internet(config: &ServerConfig) -> bool {
    // Nobody looks here which addresses all of this machine's are.
    config.server.bind.is_unspecified()
        || std::iter::once(&config.server.bind)
            .chain(&config.server.public)
            .any(|address| is_public(*address))
}

fn cell_of(config: &ServerConfig) -> Result<CellName, String> {
    Ok(ServerFolder::read(&config.config_dir()).map_err(|error| error.to_string())?.cell)
}

/// Makes what the cell lacks, and finds out who is who in it.
/// It calls from the address of the first server, unless it is told another.
async fn prepare(
    config: &ServerConfig,
    state: &State,
    runner: &Runner,
    from: Option<Ipv4Addr>,
) -> Result<Prepared, String> {
    let folder = ServerFolder::read(&config.config_dir()).map_err(|error| error.to_string())?;
    let keys = KeySet::load(&config.config_dir()).map_err(|error| error.to_string())?;
    let address = folder.own().servers.first().map_or(config.server.bind, |server| server.address);
    let seed = TokioRuntime::current().seed().map_err(|error| error.to_string())?;
    let maker = CellMaker::new(from.unwrap_or(address), address, folder.cell.as_str(), &keys, seed)?;
    let mut people = state.people(uid_of)?;
    let mut add = |person: &Person| {
        if people.iter().any(|known| known.uid == person.uid) {
            return Ok(());
        }
        people.push(person.clone());
        state.add_person(person)
    };
    // Root of this machine can read the cell's key, so a user of its own in the cell would not limit root.
    add(&Person { uid: 0, name: ADMINISTRATOR.to_owned() })?;
    add(&runner.person)?;
    let runners_name =
        people.iter().find(|person| person.uid == runner.person.uid).map(|person| person.name.clone());
    let runners_name = runners_name.expect("the user was added");
    let id = maker.user(&runners_name, runner.person.uid).await?;
    if !state.is_complete() {
        // This user has the cell's key and the cell's files, so they administer the cell.
        maker.administrator(id).await?;
        let owner = cell::Owner { name: &runners_name, id };
        let readers =
            if is_on_the_internet(config) { cell::Readers::Users } else { cell::Readers::Everybody };
        let made = tokio::time::timeout(MAKING_MAX, maker.make(&owner, readers)).await;
        made.map_err(|_| "cannot make the cell's volumes: its servers do not answer".to_owned())??;
        state.set_complete()?;
    }
    let mut known = Vec::new();
    for person in people {
        match maker.id_of(&person.name).await? {
            Some(id) => known.push((person, id)),
            None => eprintln!(
                "afar up: {} names the cell's user {} for user {} of this machine, but the cell has no such user: make it with \
                 'pts createuser'",
                state.path().join("users").display(),
                person.name,
                person.uid
            ),
        }
    }
    maker.finish().await;
    Ok(Prepared { cell: folder.cell, keys, people: known })
}

/// Mounts a client, if there is to be one.
async fn attach(
    config: &ServerConfig,
    state: &State,
    prepared: Prepared,
    mount: Option<&Path>,
) -> Result<Option<Attached>, String> {
    let Some(path) = mount else { return Ok(None) };
    let (config, state, path) = (config.clone(), state.path().to_owned(), path.to_owned());
    Attached::new(attached::Plan { config, state, prepared, path }).await.map(Some)
}

/// The signals that stop the process.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: hangup::Hangup,
}

impl StopSignals {
    fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: hangup::Hangup::listen()?,
        })
    }

    async fn stop_is_told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = self.hangup.told() => {}
        }
    }
}

/// Unmounts, stores what is not stored, and ends the servers.
async fn stop(attached: Option<Attached>, server: Server) {
    if let Some(mut attached) = attached {
        attached.detach().await;
    }
    if let Err(error) = tokio::task::spawn_blocking(move || server.stop()).await {
        eprintln!("afar up: cannot stop the servers: {error}");
    }
}

/// The line that others wait for, and what a newcomer may try.
fn ready(cell: &str, mount: Option<&Path>, config: &ServerConfig) -> String {
    let etc = config.config_dir();
    let vos = format!("afar vos listvldb -config {} -localauth", etc.display());
    let mut text = match mount {
        None => format!("ready cell={cell} mount=- scratch=-\n\nTry:\n  {vos}\n"),
        Some(mount) => {
            let root = mount.join(cell);
            let root = root.display();
            format!(
                "ready cell={cell} mount={} scratch={root}/scratch\n\
                 \n\
                 Try, in another terminal:\n\
                 \x20 ls -l {root}\n\
                 \x20 cp -r /usr/share/doc/base-files {root}/scratch/\n\
                 \x20 {vos}\n",
                mount.display()
            )
        }
    };
    if !config.server.bind.is_loopback() {
        let _ = writeln!(
            text,
            "  afar invite NAME --localauth --config {}    # lets another machine in",
            etc.display()
        );
    }
    if mount.is_none() {
        return text + "\nCtrl-C stops the servers.\n";
    }
    let who = if is_on_the_internet(config) { "All users of the cell" } else { "Everybody" };
    let _ = writeln!(
        text,
        "\n{who} may write to the folder scratch. Your own files go into the folder of your name in user."
    );
    text + "Ctrl-C stops the cell. Its files are kept for the next run.\n"
}

/// A failed start of the servers, with what to do about a port that is taken.
fn in_words(error: &str) -> String {
    if error.starts_with("the port of role") {
        return format!(
            "{error}\n(if another cell runs on this machine, choose another address, such as --bind 127.0.0.2; \
             'systemctl stop openafs-fileserver' stops OpenAFS's servers)"
        );
    }
    error.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_what_others_rely_on() {
        let config = ServerConfig::default();
        let text = ready("afar.local", Some(Path::new("/afs")), &config);
        assert!(
            text.starts_with("ready cell=afar.local mount=/afs scratch=/afs/afar.local/scratch\n"),
            "{text}"
        );
        assert!(ready("a", None, &config).starts_with("ready cell=a mount=- scratch=-\n"));
    }
}
