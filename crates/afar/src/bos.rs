//! `bos`, the overseer of a machine's servers: the table of the verbs there are, and the way to an overseer. Verbs about the same
//! thing share a file.
//!
//! What is printed, errors included, and the exit status are those of OpenAFS 1.8.9's `bos`.
//! That is why some complaints end with a carriage return. Only after a server has answered that it does not have a procedure, one more line
//! says what to use instead.

mod elsewhere;
mod files;
mod keys;
mod listhosts;
mod processes;
mod salvage;
mod settings;
mod status;
mod users;

use crate::calls::Caller;
use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::classic::{Command, Given, Opt};
use crate::codes::Code;
use crate::hosts;
use crate::login::{LoginOptions, log_in};
use crate::printer::{Printer, complain};
use crate::suite::{Suite, Verb};
use afs_admin::{Login, Offers};
use afs_dns::Service;
use afs_wire::bos::{Bozo, BozoString};
use rx::Connection;
use rxgen::{Interface, Rpc};
use std::cell::Cell;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of a verb, and behind them those that all verbs have.
macro_rules! options {
    ($( $option:expr ),* $(,)?) => { &[
        $( $option, )*
        Opt::single("cell", "cell name"),
        Opt::flag("noauth", "don't authenticate"),
        Opt::flag("localauth", "create tickets from KeyFile"),
        Opt::flag("clear", "do not encrypt").ours(),
        Opt::single("config", "configuration folder; with -localauth, the servers' one, with the keys").ours(),
        Opt::flag("json", "write JSON").ours(),
    ] };
}

/// A row of the table: verb, words about it, other names, what does it, and its options behind the server.
macro_rules! verb {
    ($name:literal $about:literal [$($alias:literal)*] $run:path, $($option:expr),*) => {
        Verb {
            command: Command {
                name: concat!("bos ", $name),
                options: options![Opt::single("server", "machine name").required(), $($option),*],
            },
            about: $about,
            aliases: &[$($alias),*],
            run: |given| run(given, $run),
        }
    };
}

static SUITE: Suite = Suite {
    name: "bos",
    misuse_status: |code| code,
    verbs: &[
        verb!("addhost" "add host to cell dbase" [] settings::addhost,
            Opt::list("host", "host name").required(),
            Opt::flag("clone", "vote doesn't count")),
        verb!("addkey" "add keys to key dbase (kvno 999 is bcrypt)" [] elsewhere::addkey,
            Opt::single("key", "key"),
            Opt::single("kvno", "key version number").required()),
        verb!("adduser" "add users to super-user list" [] users::add, Opt::list("user", "user names").required()),
        verb!("create" "create a new server instance" [] processes::create,
            Opt::single("instance", "server process name").required(),
            Opt::single("type", "server type").required(),
            Opt::list("cmd", "command lines").required(),
            Opt::single("notifier", "Notifier program")),
        verb!("delete" "delete a server instance" [] processes::delete,
            Opt::list("instance", "server process name").required()),
        verb!("exec" "execute shell command on server" [] files::exec,
            Opt::single("cmd", "command to execute").required()),
        verb!("getdate" "get dates for programs" [] files::getdate,
            Opt::list("file", "files to check").required(),
            Opt::single("dir", "destination dir")),
        verb!("getlog" "examine log file" [] files::getlog,
            Opt::single("file", "log file to examine").required()),
        verb!("getrestart" "get restart times" ["getr"] settings::getrestart,),
        verb!("getrestricted" "get restrict mode" [] settings::getrestricted,),
        verb!("install" "install program" [] elsewhere::install,
            Opt::list("file", "files to install").required(),
            Opt::single("dir", "destination dir")),
        verb!("listhosts" "get cell host list" ["getcell"] listhosts::run,),
        verb!("listkeys" "list keys" [] keys::list,
            Opt::flag("showkey", "show the actual key rather than the checksum")),
        verb!("listusers" "list super-users" [] users::list,),
        verb!("prune" "prune server files" [] files::prune,
            Opt::flag("bak", "delete .BAK files"),
            Opt::flag("old", "delete .OLD files"),
            Opt::flag("core", "delete core files"),
            Opt::flag("all", "delete all junk files")),
        verb!("removehost" "remove host from cell dbase" [] settings::removehost,
            Opt::list("host", "host name").required()),
        verb!("removekey" "remove keys from key dbase" [] keys::remove,
            Opt::list("kvno", "key version number").required()),
        verb!("removeuser" "remove users from super-user list" [] users::remove,
            Opt::list("user", "user names").required()),
        verb!("restart" "restart processes" [] processes::restart,
            Opt::list("instance", "instances"),
            Opt::flag("bosserver", "restart bosserver"),
            Opt::flag("all", "restart all processes")),
        verb!("salvage" "salvage partition or volumes" [] salvage::run,
            Opt::single("partition", "salvage partition"),
            Opt::single("volume", "salvage volume number or volume name"),
            Opt::single("file", "salvage log output file"),
            Opt::flag("all", "salvage whole server"),
            Opt::flag("showlog", "display salvage log"),
            Opt::single("parallel", "# of max parallel partition salvaging"),
            Opt::single("tmpdir", "directory to place tmp files"),
            Opt::single("orphans", "ignore | remove | attach"),
            Opt::flag("forceDAFS", "(DAFS) force salvage of demand attach fileserver"),
            Opt::flag("salvagedirs", "Force rebuild/salvage of all directories")),
        verb!("setauth" "set authentication required flag" [] settings::setauth,
            Opt::single("authrequired", "on or off: authentication required for admin requests").required()),
        verb!("setcellname" "set cell name" [] settings::setcellname, Opt::single("name", "cell name").required()),
        verb!("setrestart" "set restart times" ["setr"] settings::setrestart,
            Opt::single("time", "time to restart server").required(),
            Opt::flag("general", "set general restart time"),
            Opt::flag("newbinary", "set new binary restart time")),
        verb!("setrestricted" "set restrict mode" [] settings::setrestricted,
            Opt::single("mode", "mode to set").required()),
        verb!("shutdown" "shutdown all processes" [] processes::shutdown,
            Opt::list("instance", "instances"),
            Opt::flag("wait", "wait for process to stop")),
        verb!("start" "start running a server" [] processes::start,
            Opt::list("instance", "server process name").required()),
        verb!("startup" "start all processes" [] processes::startup, Opt::list("instance", "instances")),
        verb!("status" "show server instance status" [] status::run,
            Opt::list("instance", "server process name"),
            Opt::flag("long", "long status")),
        verb!("stop" "halt a server instance" [] processes::stop,
            Opt::list("instance", "server process name").required(),
            Opt::flag("wait", "wait for process to stop")),
        verb!("uninstall" "uninstall program" [] files::uninstall,
            Opt::list("file", "files to uninstall").required(),
            Opt::single("dir", "destination dir")),
    ],
};

/// The exit status where a verb cannot begin.
const FAILURE: u8 = 1;

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    SUITE.run(args)
}

/// The overseer that a verb is about, and what the verb needs to call it.
struct Bos {
    printer: Printer,
    caller: Caller,
    overseer: Connection,
    /// The identity that asks the databases: nobody on the way hears it where there is rxgk.
    asks: Login,
    json: bool,
    /// The folder of the cell's configuration.
    folder: PathBuf,
    /// The last procedure that the overseer said it does not have.
    missing: Cell<Option<&'static str>>,
}

impl Bos {
    fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Code> {
        let result = self.caller.call(&self.overseer, args);
        if matches!(result, Err(Code::NO_SUCH_PROCEDURE)) {
            self.missing.set(Some(R::NAME));
        }
        result
    }
}

/// Entries of lists asked for at most: a server whose list has no end must not hold us for ever.
const LIST_MAX: i32 = 1000;

/// Says that a list was not asked for to its end, if it is that long.
fn tell_if_cut(bos: &Bos, entries: usize) {
    if entries == LIST_MAX as usize {
        complain!(bos.printer, "bos: only the first {LIST_MAX} are shown\n");
    }
}

/// The exit status after a code: its last byte, as OpenAFS's `bos` returns the code itself.
fn status_of(code: Code) -> u8 {
    code.0 as u8
}

/// A code as all complaints have it.
fn words(code: Code) -> String {
    match code {
        Code::DEAD => "communications failure (-1)".to_owned(),
        Code(-3) => "communications timeout (-3)".to_owned(),
        code => code.message(),
    }
}

/// A name or other text for the overseer.
fn argument(text: &str) -> Result<BozoString, Code> {
    BozoString::try_from(text).map_err(|_| Code::E2BIG)
}

fn run(given: &Given, verb: fn(&Bos, &Given) -> u8) -> u8 {
    match open(given) {
        Ok(bos) => {
            let status = verb(&bos, given);
            if let Some(instead) = bos.missing.get().and_then(elsewhere::instead_of) {
                complain!(bos.printer, "bos: servers of afar do not do this: {instead}\n");
            }
            bos.printer.finish(status)
        }
        Err(complaint) => {
            eprintln!("bos: {complaint}");
            FAILURE
        }
    }
}

/// Finds the overseer, and a way to it.
fn open(given: &Given) -> Result<Bos, String> {
    let server = given.word("server").unwrap_or_default();
    let address = hosts::find(server).ok_or_else(|| format!("can't find address for host '{server}'"))?;
    let options = LoginOptions {
        noauth: given.has("noauth"),
        localauth: given.has("localauth"),
        clear: given.has("clear"),
    };
    let default = if options.localauth { SERVER_FOLDER } else { CLIENT_FOLDER };
    let folder = given.word("config").unwrap_or(default);
    let (mut cell, mut databases) = (String::new(), Vec::new());
    if !options.noauth {
        match CellServers::find_anywhere(Path::new(folder), given.word("cell"), Service::Location) {
            Ok(found) => (cell, databases) = (found.name, found.servers),
            Err(CellError::NoFolder) => return Err(format!("can't open cell database ({folder})")),
            Err(CellError::File(error)) => {
                return Err(format!("can't open cell database ({folder}): {error}"));
            }
            Err(unknown @ CellError::Unknown { .. }) => {
                unknown.explain("bos");
                return Err(format!("{} (configuring connection security)", Code::ACFG_NOTFOUND));
            }
        }
    }
    let opened = Caller::new().and_then(|caller| Ok((caller.seed()?, caller)));
    let (seed, caller) = opened.map_err(|error| format!("cannot open a socket: {error}"))?;
    let login = log_in(options, Path::new(folder), &cell, seed).unwrap_or_else(|missing| {
        missing.explain("bos");
        Login::anonymous()
    });
    if !login.is_authenticated() && !options.noauth {
        eprintln!("bos: running unauthenticated");
    }
    let offers = Offers::new(caller.endpoint(), &databases, &login);
    let shown = caller.run(offers.login_for(address)).map_err(|error| error.to_string())?;
    let overseer =
        caller.connect(SocketAddr::from((address, Bozo::PORT)), Bozo::SERVICE_ID, shown.security());
    let (printer, json) = (Printer::new("bos"), given.has("json"));
    Ok(Bos { printer, caller, overseer, asks: login, json, folder: folder.into(), missing: Cell::new(None) })
}
