//! `aklog`: tokens for cells of AFS from the caller's Kerberos tickets. Options, what is printed and exit statuses are those of OpenAFS
//! 1.8.9's `aklog`; what is ours is said in the help.
//!
//! Which cell is meant is in `aklog/cells.rs`; which ticket, and what becomes of it, in `aklog/login.rs`, which `klog` uses too. What Linux's
//! own client gets is in `aklog/kafs.rs`.

pub(crate) mod cells;
mod kafs;
pub(crate) mod login;

use crate::classic::{Command, Given, Opt, Parsed};
use crate::fs::client::{Clients, Says};
use crate::fs::errors::{ENOENT, Failure};
use crate::fs::place::{Found, Links};
use crate::mount::device;
use crate::printer::{Printer, complain, say};
use crate::{output, private};
use afs_client::join::Device;
use afs_kerberos::Kerberos;
use cells::{KnownCell, Source};
use login::{Login, Refusal};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

/// The cells that a user wants tokens for besides that of the machine, one a line, in the home folder.
const CELLS_FILE: &str = ".xlog";

/// Exit statuses, as OpenAFS's.
pub(crate) mod status {
    /// The command line is not understood.
    pub(crate) const USAGE: u8 = 1;
    /// Some of several cells failed.
    pub(crate) const SOMETHING: u8 = 2;
    /// There is no such cell, or nothing is known of it.
    pub(crate) const CONFIGURATION: u8 = 3;
    /// Kerberos gives no ticket.
    pub(crate) const KERBEROS: u8 = 4;
    /// The client does not take the token.
    pub(crate) const TOKEN: u8 = 5;
    /// A path is in no cell.
    pub(crate) const PATH: u8 = 6;
    /// Anything else.
    pub(crate) const OTHER: u8 = 7;
}

static COMMAND: Command = Command {
    name: "aklog",
    options: &[
        Opt::list("cell", "cell or path").or("c").takes_all(),
        Opt::single("k", "Kerberos realm of the cell"),
        Opt::list("path", "path").or("p").path(),
        Opt::flag("d", "print each step"),
        Opt::flag("hosts", "list the servers that paths are on"),
        Opt::flag("zsubs", "list Zephyr subscriptions; does nothing"),
        Opt::flag("noauth", "get no tokens"),
        Opt::flag("noprdb", "do not ask the protection database"),
        Opt::flag("linked", "get tokens for a linked cell, too"),
        Opt::flag("force", "set the token even if the client has it already"),
        Opt::flag("setpag", "not supported; use pagsh for a new PAG"),
        Opt::flag("524", "convert tickets to Kerberos 4; not supported"),
        Opt::flag("insecure_des", "use weak encryption; not supported"),
        Opt::single("config", "folder with ThisCell and CellServDB").path(),
        Opt::single("keytab", "file with the cell's key, to make a ticket for -principal").path(),
        Opt::single("principal", "name in that ticket, with -keytab"),
        Opt::single("token-lifetime", "lifetime in hours, with -keytab; 0 is as long as possible"),
        Opt::flag("renew", "renew the Kerberos ticket first").ours(),
        Opt::flag("kafs", "set tokens for Linux's own AFS client, not for ours").ours(),
    ],
};

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    private::begin();
    let parsed = COMMAND.parse(args).and_then(|parsed| match parsed {
        Parsed::Run(given) => given.check_text().map(|()| Some(given)),
        Parsed::Help => Ok(None),
    });
    let given = match parsed {
        Ok(Some(given)) => given,
        Ok(None) => return output::print(&COMMAND.classic_help("aklog")),
        Err(misuse) => {
            eprintln!("{}\n{}", misuse.in_classic_words("aklog"), COMMAND.classic_usage("aklog").trim_end());
            return ExitCode::from(status::USAGE);
        }
    };
    let printer = Printer::new("aklog");
    let done = get_tokens(&given, &printer);
    ExitCode::from(printer.finish(done))
}

fn get_tokens(given: &Given, printer: &Printer) -> u8 {
    for option in ["524", "insecure_des"] {
        if given.has(option) {
            complain!(printer, "aklog: -{option} is not supported: weak encryption is not used here\n");
            return status::USAGE;
        }
    }
    if given.has("setpag") {
        complain!(printer, "aklog: -setpag is not supported: use 'pagsh' to start a shell with a new PAG\n");
    }
    let clients = Clients::find("aklog", Says::All);
    let source = Source { clients: Some(&clients), folder: given.value("config").map(PathBuf::from) };
    let (wanted, mut result) = wanted(given, &source, printer);
    if given.has("noauth") {
        return result;
    }
    let mut tickets = match Tickets::open(given, printer) {
        Ok(tickets) => tickets,
        Err(failed) => return failed,
    };
    let mut login = Login {
        printer,
        program: "aklog",
        clients: &clients,
        given_realm: given.word("k"),
        asks_database: !given.has("noprdb"),
        is_forced: given.has("force"),
        says_all: given.has("d"),
        is_for_linux: given.has("kafs"),
        set_cells: Vec::new(),
    };
    let several = wanted.len() > 1;
    for cell in wanted {
        let linked = cell.linked.clone().filter(|_| given.has("linked"));
        let outcome = tickets.log_in(&mut login, &cell).and_then(|()| match linked {
            Some(linked) => {
                let linked = source.find(Some(&linked)).map_err(|why| refused(printer, &why))?;
                tickets.log_in(&mut login, &linked)
            }
            None => Ok(()),
        });
        if let Err(Refusal(status)) = outcome {
            result = if several { status::SOMETHING } else { status };
        }
    }
    result
}

fn refused(printer: &Printer, why: &str) -> Refusal {
    complain!(printer, "aklog: {why}\n");
    Refusal(status::CONFIGURATION)
}

/// The cells that tokens are wanted for, none twice; and the status so far.
fn wanted(given: &Given, source: &Source<'_>, printer: &Printer) -> (Vec<KnownCell>, u8) {
    let (mut names, mut paths, mut result) = (Vec::new(), Vec::new(), 0);
    for word in given.words("cell") {
        match word {
            "." | ".." => paths.push(PathBuf::from(word)),
            word if word.contains('/') => paths.push(PathBuf::from(word)),
            word => names.push(Some(word.to_owned())),
        }
    }
    paths.extend(given.values("path").iter().map(PathBuf::from));
    if names.is_empty() && paths.is_empty() {
        names.push(None);
        names.extend(own_list().into_iter().map(Some));
    }
    for path in paths {
        let trouble = match cells_on(&path) {
            Ok((found, end)) => {
                names.extend(found.into_iter().map(Some));
                end
            }
            Err(failure) => Some(failure),
        };
        if let Some(failure) = trouble {
            complain!(printer, "aklog: {}: {failure}\n", path.display());
            result = status::PATH;
        }
    }
    let mut cells: Vec<KnownCell> = Vec::new();
    let unknown = if given.words("cell").len() > 1 { status::SOMETHING } else { status::CONFIGURATION };
    for name in names {
        match source.find(name.as_deref()) {
            Ok(cell) if cells.iter().any(|other| other.name == cell.name) => {}
            Ok(cell) => {
                if given.has("hosts") {
                    cell.servers.iter().for_each(|server| say!(printer, "host: {server}\n"));
                }
                cells.push(cell);
            }
            Err(why) => {
                complain!(printer, "aklog: {why}\n");
                result = unknown;
            }
        }
    }
    (cells, result)
}

/// The cells of the file `.xlog`.
fn own_list() -> Vec<String> {
    let Some(home) = std::env::var_os("HOME") else { return Vec::new() };
    let text = std::fs::read_to_string(Path::new(&home).join(CELLS_FILE)).unwrap_or_default();
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The cells of all folders and links on a path, at least one. Parts that are in no cell do not count. Also returns the error at the path's
/// end, if there is one that a token would not mend.
fn cells_on(path: &Path) -> Result<(Vec<String>, Option<Failure>), Failure> {
    let whole = std::path::absolute(path).map_err(|error| Failure::of_system(&error))?;
    let (mut so_far, mut cells) = (PathBuf::new(), Vec::new());
    let mut last = Ok(());
    for part in whole.components() {
        match part {
            Component::ParentDir => drop(so_far.pop()),
            part => so_far.push(part),
        }
        last = match Found::at(&so_far, Links::Follow) {
            Ok(found) if found.cell == afs_wire::control::DYNROOT || cells.contains(&found.cell) => Ok(()),
            Ok(found) => {
                cells.push(found.cell);
                Ok(())
            }
            Err(failure) => Err(failure),
        };
    }
    match last {
        Err(failure) if cells.is_empty() => Err(failure),
        Err(failure) => Ok((cells, Some(failure).filter(|failure| failure.errno() == Some(ENOENT)))),
        Ok(()) => Ok((cells, None)),
    }
}

/// The source of tickets.
enum Tickets {
    /// The caller's credential cache.
    Kerberos(Kerberos),
    /// The cell's own key, which makes them for anybody.
    Key(login::Impersonation),
    /// No tickets: the key of this machine, which has joined a cell.
    Device((PathBuf, Device)),
}

impl Tickets {
    fn open(given: &Given, printer: &Printer) -> Result<Self, u8> {
        if given.has("keytab") || given.has("principal") {
            let (Some(keytab), Some(principal)) = (given.value("keytab"), given.word("principal")) else {
                complain!(printer, "aklog: -keytab and -principal need each other\n");
                return Err(status::USAGE);
            };
            let made = login::Impersonation::new(Path::new(keytab), principal, given.word("token-lifetime"));
            return made.map(Self::Key).map_err(|why| {
                complain!(printer, "aklog: {why}\n");
                status::KERBEROS
            });
        }
        let folder = given.value("config").filter(|_| given.has("kafs"));
        let device =
            folder.map_or(Ok(None), |folder| device::of_folder(Path::new(folder))).map_err(|why| {
                complain!(printer, "aklog: {why}\n");
                status::CONFIGURATION
            })?;
        if let Some(device) = device {
            return Ok(Self::Device(device));
        }
        let kerberos = Kerberos::open().map_err(|error| {
            complain!(printer, "aklog: {error}\n");
            status::KERBEROS
        })?;
        if given.has("renew") {
            login::renew(&kerberos).map_err(|error| {
                login::complain_of(printer, "aklog", &error, "renewing the Kerberos ticket");
                status::KERBEROS
            })?;
        }
        Ok(Self::Kerberos(kerberos))
    }

    fn log_in(&mut self, login: &mut Login<'_>, cell: &KnownCell) -> Result<(), Refusal> {
        match self {
            Self::Kerberos(kerberos) => {
                let cache = kerberos.default_cache();
                login.log_in_by_cache(
                    cell,
                    kerberos,
                    &login.kerberos(cache, "getting your credential cache")?,
                )
            }
            Self::Key(key) => login.log_in_by_key(cell, key),
            Self::Device(device) => login.log_in_by_device(cell, device),
        }
    }
}
