//! `vos`, the volumes of a cell: what its verbs share, which is the way to the servers of the volume location database and to
//! volume servers. The verbs are listed in `verbs`, and each is in a file of its own; what is asked of the servers is in `vldb`
//! and `volser`.
//!
//! What is printed, errors included, and the exit status are those of OpenAFS 1.8.9's `vos`. Beyond it, servers at loopback
//! addresses are allowed.

mod addsite;
mod backup;
mod backupsys;
mod changeaddr;
mod changeloc;
mod clone;
mod convert_ro_to_rw;
mod copy;
mod create;
mod delentry;
mod dump;
mod endtrans;
mod examine;
mod listaddrs;
mod listpart;
mod listvldb;
mod listvol;
mod lock;
mod offline;
mod online;
mod partinfo;
mod progress;
mod publish;
mod release;
mod relocate;
mod remaddrs;
mod remove;
mod remsite;
mod rename;
mod restore;
mod setaddrs;
mod setfields;
mod shadow;
mod show_entry;
mod show_volume;
mod show_volume_extended;
mod size;
mod snapshot;
mod snapshot_limit;
mod status;
mod sync;
mod syncserv;
mod syncvldb;
mod transfer;
mod undelete;
mod unlock;
mod unlockvldb;
mod verbs;
mod vldb;
mod volser;
mod words;
mod zap;

use crate::calls::Caller;
use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::classic::Given;
use crate::codes::Code;
use crate::hosts;
use crate::login::{LoginOptions, log_in};
use crate::printer::{Printer, complain};
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Error, Login, Offers};
use afs_dns::Service;
use afs_wire::ids::PartitionId;
use jiff::tz::TimeZone;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    verbs::SUITE.run(args)
}

/// The end of a verb that did not work, with its exit status. The user was told why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stop(u8);

impl Stop {
    /// The exit status of most failures in OpenAFS's `vos`.
    const RETURNED: Self = Self(255);
    /// The exit status of other failures.
    const EXITED: Self = Self(1);
    /// The exit status of some verbs when their options do not go together.
    const MISUSED: Self = Self(254);
}

/// The end of a verb.
type Done = Result<(), Stop>;

/// The things that a verb needs.
struct Vos {
    printer: Printer,
    caller: Caller,
    vldb: LocationDb,
    volumes: Arc<VolumeServers>,
    /// Ctrl-C, as soon as there is something to undo.
    cancel: OnceCell<Cancel>,
    /// Names of machines that were looked up.
    names: RefCell<BTreeMap<Ipv4Addr, String>>,
    zone: TimeZone,
    verbose: bool,
    noresolve: bool,
    json: bool,
}

fn run(given: &Given, verb: fn(&Vos, &Given) -> Done) -> u8 {
    let vos = match open(given) {
        Ok(vos) => vos,
        Err(Stop(status)) => return status,
    };
    let status = match verb(&vos, given) {
        Ok(()) => 0,
        Err(Stop(status)) => status,
    };
    vos.printer.finish(status)
}

/// Finds the cell, and a way to its servers.
fn open(given: &Given) -> Result<Vos, Stop> {
    let options = LoginOptions {
        noauth: given.has("noauth"),
        localauth: given.has("localauth"),
        clear: given.has("clear"),
    };
    let default = if options.localauth { SERVER_FOLDER } else { CLIENT_FOLDER };
    let folder = given.word("config").unwrap_or(default);
    let cell = CellServers::find_anywhere(Path::new(folder), given.word("cell"), Service::Location).map_err(
        |error| {
            error.explain("vos");
            let code = match error {
                CellError::NoFolder => {
                    eprintln!("vos: Could not process files in configuration directory ({folder}).");
                    Code::EIO
                }
                CellError::File(error) => {
                    eprintln!(
                        "vos: Could not process files in configuration directory ({folder}).\nvos: {error}"
                    );
                    Code::EIO
                }
                CellError::Unknown { cell, .. } => {
                    eprintln!("vos: can't find cell {cell}'s hosts in {folder}/CellServDB");
                    Code::ACFG_NOTFOUND
                }
            };
            eprintln!("could not initialize VLDB library (code={}) ", code.0);
            Stop::EXITED
        },
    )?;
    let opened = Caller::new().and_then(|caller| Ok((caller.seed()?, caller)));
    let (seed, caller) = opened.map_err(|error| {
        eprintln!("vos: cannot open a socket: {error}");
        Stop::EXITED
    })?;
    let login = log_in(options, Path::new(folder), &cell.name, seed).unwrap_or_else(|missing| {
        missing.explain("vos");
        eprintln!("vos: Could not get afs tokens, running unauthenticated.");
        Login::anonymous()
    });
    Ok(Vos {
        printer: Printer::new("vos").only_json(given.has("json")),
        vldb: LocationDb::new(caller.endpoint(), &cell.servers, &login),
        volumes: Arc::new(VolumeServers::new(
            caller.endpoint(),
            Offers::new(caller.endpoint(), &cell.servers, &login),
        )),
        caller,
        cancel: OnceCell::new(),
        names: RefCell::default(),
        zone: TimeZone::system(),
        verbose: given.has("verbose"),
        noresolve: given.has("noresolve"),
        json: given.has("json"),
    })
}

impl Vos {
    /// Waits for the end of an operation.
    fn wait<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Code> {
        self.caller.wait(operation)
    }

    // ---- Ctrl-C

    /// Tells whether the user has pressed Ctrl-C. Before the first call of this function, Ctrl-C ends the program. Afterwards the verb ends
    /// in order.
    fn cancel(&self) -> &Cancel {
        self.cancel.get_or_init(|| self.caller.cancelled_by_interrupt("vos"))
    }

    /// Checks that the verb may begin something that it must not leave half done, such as a change of an entry under a lock. Complains if
    /// it may not.
    fn may_begin(&self) -> Result<(), Code> {
        self.cancel().check().map_err(|error| {
            complain!(self.printer, "vos: {error}\n");
            Code(error.code().0)
        })
    }

    // ---- what is said

    /// Says something if `-verbose` is given, at once.
    fn tell(&self, text: &str) {
        if self.verbose && !self.json {
            self.printer.say(text);
            self.printer.flush();
        }
    }

    /// Asks the user, who has to say yes.
    fn ask(&self, question: &str) -> Done {
        self.printer.complain(&format!("{question} [y|n] (n)\n"));
        let mut answer = String::new();
        match io::stdin().read_line(&mut answer).ok().and(answer.chars().next()) {
            Some('y' | 'Y') => Ok(()),
            _ => {
                complain!(self.printer, "aborted.\n");
                Err(Stop::RETURNED)
            }
        }
    }

    /// The name of a machine, unless `-noresolve` is given.
    fn host(&self, address: Ipv4Addr) -> String {
        if self.noresolve { address.to_string() } else { self.resolved(address) }
    }

    /// The name of a machine, where OpenAFS's shows it whatever is given.
    fn resolved(&self, address: Ipv4Addr) -> String {
        self.names.borrow_mut().entry(address).or_insert_with(|| hosts::name_of(address)).clone()
    }

    // ---- what options name

    /// The machine that an option names; `what` is what complaints call it.
    fn server(&self, name: &str, what: &str, stop: Stop) -> Result<Ipv4Addr, Stop> {
        hosts::find_server(name).ok_or_else(|| {
            complain!(self.printer, "vos: {what} '{name}' not found in host table\n");
            stop
        })
    }

    /// The partition that an option names.
    fn partition(&self, name: &str, stop: Stop) -> Result<PartitionId, Stop> {
        PartitionId::parse(name).ok_or_else(|| {
            complain!(self.printer, "vos: could not interpret partition name '{name}'\n");
            stop
        })
    }

    /// Makes sure that a server has a partition, which was named so.
    fn check_partition(&self, server: Ipv4Addr, partition: PartitionId, name: &str, stop: Stop) -> Done {
        match self.partitions(server) {
            Ok(all) if all.contains(&partition) => return Ok(()),
            Ok(_) => complain!(self.printer, "vos : partition {name} does not exist on the server\n"),
            Err(code) => self.print_error(code),
        }
        Err(stop)
    }
}
