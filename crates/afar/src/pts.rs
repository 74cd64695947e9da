//! `pts`, users and groups: the table of its verbs, and what they share, which is the way to the protection servers of a
//! cell. Each verb is in a file of its own; what is asked of the servers is in `afs_admin`.
//!
//! What is printed, errors included, and the exit status are those of OpenAFS 1.8.9's `pts`.

mod adduser;
mod chown;
mod creategroup;
mod createuser;
mod delete;
mod examine;
mod interactive;
mod listentries;
mod listmax;
mod listowned;
mod membership;
mod nameorid;
mod removeuser;
mod rename;
mod setfields;
mod setmax;
mod sleep;

use crate::calls::Caller;
use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::classic::{Command, Given, Opt};
use crate::codes::Code;
use crate::login::{self, LoginOptions};
use crate::printer::{Printer, complain};
use crate::suite::{Suite, Verb};
use afs_admin::ptdb::ProtectionDb;
use afs_admin::{Error, Login};
use afs_dns::Service;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The options of a verb, and behind them those that all verbs have.
macro_rules! options {
    ($( $option:expr ),* $(,)?) => { &[
        $( $option, )*
        Opt::single("cell", "cell name"),
        Opt::flag("noauth", "run unauthenticated"),
        Opt::flag("test", "").hidden(),
        Opt::flag("force", "Continue oper despite reasonable errors"),
        Opt::flag("localauth", "use local authentication"),
        Opt::flag("auth", "use user's authentication (default)"),
        Opt::flag("encrypt", "encrypt commands"),
        Opt::flag("clear", "do not encrypt").ours(),
        Opt::single("config", "config location"),
        Opt::flag("json", "write JSON").ours(),
    ] };
}

const NAME_OR_ID: Opt = Opt::list("nameorid", "user or group name or id").required();

/// A row of the table.
macro_rules! verb {
    ($module:ident $(or $alias:literal)*, $about:literal, $options:expr) => {
        Verb {
            command: Command { name: concat!("pts ", stringify!($module)), options: $options },
            about: $about,
            aliases: &[$( $alias ),*],
            run: |given| run(given, $module::run),
        }
    };
}

/// A row for a verb that reads commands line by line, or ends this.
macro_rules! lines {
    ($verb:ident $(or $alias:literal)*, $about:literal, $options:expr) => {
        Verb {
            command: Command { name: concat!("pts ", stringify!($verb)), options: $options },
            about: $about,
            aliases: &[$( $alias ),*],
            run: interactive::$verb,
        }
    };
}

static SUITE: Suite = Suite {
    name: "pts",
    misuse_status: |_| FAILURE,
    verbs: &[
        verb!(
            adduser,
            "add a user to a group",
            options![Opt::list("user", "user name").required(), Opt::list("group", "group name").required(),]
        ),
        verb!(
            chown,
            "change ownership of a group",
            options![
                Opt::single("name", "group name").required(),
                Opt::single("owner", "new owner").required(),
            ]
        ),
        verb!(creategroup or "cg", "create a new group", options![
            Opt::list("name", "group name").required(),
            Opt::single("owner", "owner of the group"),
            Opt::list("id", "id (negated) for the group"),
        ]),
        verb!(createuser or "cu", "create a new user", options![
            Opt::list("name", "user name").required(),
            Opt::list("id", "user id"),
        ]),
        verb!(delete, "delete a user or group from database", options![NAME_OR_ID]),
        verb!(examine or "check", "examine an entry", options![NAME_OR_ID]),
        lines!(interactive or "in", "enter interactive mode", options![]),
        verb!(
            listentries,
            "list users/groups in the protection database",
            options![Opt::flag("users", "list user entries"), Opt::flag("groups", "list group entries"),]
        ),
        verb!(listmax, "list max id", options![]),
        verb!(
            listowned,
            "list groups owned by an entry or zero id gets orphaned groups",
            options![NAME_OR_ID]
        ),
        verb!(membership or "groups", "list membership of a user or group", options![
            NAME_OR_ID,
            Opt::flag("supergroups", "show supergroups"),
            Opt::flag("expandgroups", "expand super and sub group membership"),
        ]),
        lines!(quit, "exit program", options![]),
        verb!(
            removeuser,
            "remove a user from a group",
            options![Opt::list("user", "user name").required(), Opt::list("group", "group name").required(),]
        ),
        verb!(rename or "chname", "rename user or group", options![
            Opt::single("oldname", "old name").required(),
            Opt::single("newname", "new name").required(),
        ]),
        verb!(
            setfields,
            "set fields for an entry",
            options![
                NAME_OR_ID,
                Opt::single("access", "set privacy flags"),
                Opt::single("groupquota", "set limit on group creation"),
            ]
        ),
        verb!(
            setmax,
            "set max id",
            options![Opt::single("group", "group max"), Opt::single("user", "user max"),]
        ),
        verb!(sleep, "pause for a bit", options![Opt::single("delay", "seconds").required()]),
        lines!(
            source,
            "read commands from file",
            options![Opt::single("file", "filename").required().path()]
        ),
    ],
};

/// The exit status for whatever goes wrong.
const FAILURE: u8 = 1;

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    SUITE.run(args)
}

/// It did not work, and the user was told why.
struct Failed;

/// What a verb has.
struct Pts {
    printer: Printer,
    caller: Caller,
    db: ProtectionDb,
    /// True if the servers know by whom they are called.
    is_authenticated: bool,
    /// `-force`: go on after errors.
    force: bool,
    json: bool,
}

impl Pts {
    /// Waits for the end of an operation on the database.
    fn wait<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Code> {
        self.caller.wait(operation)
    }

    /// Tells of a failure, in the form of all of them: the code in words, then what could not be done. The carriage return
    /// is there for terminals of another time, and in the output of OpenAFS's.
    fn complain(&self, code: Code, what: &str) {
        complain!(self.printer, "pts: {code} {what}\n\r");
    }

    /// Returns the end of an error message: '(ignored)' with `-force`.
    const fn ignored(&self) -> &'static str {
        if self.force { "(ignored)" } else { "" }
    }
}

fn run(given: &Given, verb: fn(&Pts, &Given) -> Result<(), Failed>) -> u8 {
    let pts = match open(given) {
        Ok(pts) => pts,
        Err(Failed) => return FAILURE,
    };
    let status = match verb(&pts, given) {
        Ok(()) => 0,
        Err(Failed) => FAILURE,
    };
    pts.printer.finish(status)
}

/// Finds the cell, and a way to its servers.
fn open(given: &Given) -> Result<Pts, Failed> {
    let folder = match given.word("config") {
        Some(folder) => folder,
        None if given.has("localauth") || given.has("test") => SERVER_FOLDER,
        None => CLIENT_FOLDER,
    };
    let cell = CellServers::find_anywhere(Path::new(folder), given.word("cell"), Service::Protection)
        .map_err(|error| {
            error.explain("pts");
            let code = match error {
                CellError::NoFolder => {
                    eprintln!("libprot: Could not open configuration directory: {folder}.");
                    Code::DEAD
                }
                CellError::File(error) => {
                    eprintln!("libprot: Could not open configuration directory: {folder}.\npts: {error}");
                    Code::DEAD
                }
                CellError::Unknown { cell, .. } => {
                    eprintln!("libprot: Could not locate cell {cell} in {folder}/CellServDB");
                    Code::ACFG_NOTFOUND
                }
            };
            eprint!("pts: {code} while initializing\n\r");
            Failed
        })?;
    let opened = Caller::new().and_then(|caller| Ok((caller.seed()?, caller)));
    let (seed, caller) = opened.map_err(|error| {
        eprintln!("pts: cannot open a socket: {error}");
        Failed
    })?;
    let login = log_in(given, Path::new(folder), &cell.name, seed)?;
    Ok(Pts {
        printer: Printer::new("pts").only_json(given.has("json")),
        db: ProtectionDb::new(caller.endpoint(), &cell.servers, &login),
        caller,
        is_authenticated: login.is_authenticated(),
        force: given.has("force"),
        json: given.has("json"),
    })
}

/// Logs in. With `-localauth`, calls are encrypted unless `-clear` is given, with or without `-encrypt`. If both `-localauth`
/// and `-encrypt` are given, OpenAFS's `pts` ignores `-localauth`.
fn log_in(given: &Given, folder: &Path, cell: &str, seed: [u8; 32]) -> Result<Login, Failed> {
    let (localauth, noauth) = (given.has("localauth"), given.has("noauth"));
    let encrypt = given.has("encrypt") && !localauth;
    let no_tokens = Code::ACFG_NO_SECURITY_CLASS;
    let options = LoginOptions { noauth: noauth && !localauth, localauth, clear: given.has("clear") };
    let missing = match login::log_in(options, folder, cell, seed) {
        Ok(login) if login.is_authenticated() || !encrypt => return Ok(login),
        Ok(_) => None,
        Err(missing) => Some(missing),
    };
    if let Some(missing) = &missing {
        missing.explain("pts");
    }
    if !localauth {
        eprint!("libprot: {no_tokens} (getting token)\n\r");
        if encrypt {
            eprint!("pts: {no_tokens} while initializing\n\r");
            return Err(Failed);
        }
    }
    eprintln!("libprot: Could not get afs tokens, running unauthenticated");
    Ok(Login::anonymous())
}
