//! `bos`, the overseer of a machine's servers: the table of the verbs there are, and the way to an overseer. Each verb is in
//! a file of its own.
//!
//! What is printed, errors included, and the exit status are those of OpenAFS 1.8.9's `bos`.

mod listhosts;
mod status;

use crate::calls::Caller;
use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::classic::{Command, Given, Opt};
use crate::codes::Code;
use crate::hosts;
use crate::login::{NoToken, Wish, log_in};
use crate::printer::Printer;
use crate::suite::{Suite, Verb};
use afs_admin::Login;
use afs_wire::bos::{Bozo, BozoString};
use rx::Connection;
use rxgen::{Interface, Rpc};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

/// The options of a verb, and behind them those that all verbs have.
macro_rules! options {
    ($( $option:expr ),* $(,)?) => { &[
        $( $option, )*
        Opt::single("cell", "cell name"),
        Opt::flag("noauth", "don't authenticate"),
        Opt::flag("localauth", "create tickets from KeyFile"),
        Opt::flag("clear", "do not encrypt").ours(),
        Opt::single("config", "config location").ours(),
        Opt::flag("json", "write JSON").ours(),
    ] };
}

static SUITE: Suite = Suite {
    name: "bos",
    misuse_status: |code| code,
    verbs: &[
        Verb {
            command: Command {
                name: "bos listhosts",
                options: options![Opt::single("server", "machine name").required()],
            },
            about: "get cell host list",
            aliases: &["getcell"],
            run: |given| run(given, listhosts::run),
        },
        Verb {
            command: Command {
                name: "bos status",
                options: options![
                    Opt::single("server", "machine name").required(),
                    Opt::list("instance", "server process name"),
                    Opt::flag("long", "long status"),
                ],
            },
            about: "show server instance status",
            aliases: &[],
            run: |given| run(given, status::run),
        },
    ],
};

/// The exit status where a verb cannot begin.
const FAILURE: u8 = 1;

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    SUITE.run(args)
}

/// What a verb has: the overseer it is about.
struct Bos {
    printer: Printer,
    caller: Caller,
    overseer: Connection,
    json: bool,
}

impl Bos {
    fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Code> {
        self.caller.call(&self.overseer, args)
    }
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
    let wish =
        Wish { noauth: given.has("noauth"), localauth: given.has("localauth"), clear: given.has("clear") };
    let default = if wish.localauth { SERVER_FOLDER } else { CLIENT_FOLDER };
    let folder = given.word("config").unwrap_or(default);
    if !wish.noauth {
        match CellServers::find(Path::new(folder), given.word("cell")) {
            Ok(_) => {}
            Err(CellError::NoFolder) => return Err(format!("can't open cell database ({folder})")),
            Err(CellError::File(error)) => {
                return Err(format!("can't open cell database ({folder}): {error}"));
            }
            Err(CellError::Unknown { .. }) => {
                return Err(format!("{} (configuring connection security)", Code::ACFG_NOTFOUND));
            }
        }
    }
    let opened = Caller::new().and_then(|caller| Ok((caller.seed()?, caller)));
    let (seed, caller) = opened.map_err(|error| format!("cannot open a socket: {error}"))?;
    let login = log_in(wish, Path::new(folder), seed).unwrap_or_else(|NoToken| Login::anonymous());
    if !login.is_authenticated() && !wish.noauth {
        eprintln!("bos: running unauthenticated");
    }
    let overseer =
        caller.connect(SocketAddr::from((address, Bozo::PORT)), Bozo::SERVICE_ID, login.security());
    Ok(Bos { printer: Printer::new("bos"), caller, overseer, json: given.has("json") })
}
