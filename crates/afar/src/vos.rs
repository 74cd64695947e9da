//! `vos`, the volumes of a cell: the table of its verbs, and what they share, which is the way to the servers of the volume
//! location database and to volume servers. Each verb is in a file of its own; what is asked of the servers is in `vldb` and
//! `volser`.
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
mod status;
mod sync;
mod syncserv;
mod syncvldb;
mod transfer;
mod unlock;
mod unlockvldb;
mod vldb;
mod volser;
mod words;
mod zap;

use crate::calls::Caller;
use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::classic::{Command, Given, Opt};
use crate::codes::Code;
use crate::hosts;
use crate::login::{Wish, log_in};
use crate::printer::{Printer, complain};
use crate::suite::{Suite, Verb};
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Error, Login};
use afs_wire::ids::PartitionId;
use jiff::tz::TimeZone;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;

/// The options of a verb, and behind them those that all verbs have.
macro_rules! options {
    ($( $option:expr ),* $(,)?) => { &[
        $( $option, )*
        Opt::single("cell", "cell name").or("c"),
        Opt::flag("noauth", "don't authenticate"),
        Opt::flag("localauth", "use server tickets"),
        Opt::flag("verbose", "verbose"),
        Opt::flag("encrypt", "encrypt commands"),
        Opt::flag("clear", "do not encrypt").ours(),
        Opt::flag("noresolve", "don't resolve addresses"),
        Opt::single("config", "config location"),
        Opt::flag("json", "write JSON").ours(),
    ] };
}

const SERVER: Opt = Opt::single("server", "machine name");
const PARTITION: Opt = Opt::single("partition", "partition name");
const ID: Opt = Opt::single("id", "volume name or ID");
const FROM_SERVER: Opt = Opt::single("fromserver", "machine name on source");
const FROM_PARTITION: Opt = Opt::single("frompartition", "partition name on source");
const TO_SERVER: Opt = Opt::single("toserver", "machine name on destination");
const TO_PARTITION: Opt = Opt::single("topartition", "partition name on destination");
const DRY_RUN: Opt = Opt::flag("dryrun", "list what would be done, don't do it");

/// A row of the table.
macro_rules! verb {
    ($module:ident $(or $alias:literal)*, $about:literal, $options:expr) => {
        Verb {
            command: Command { name: concat!("vos ", stringify!($module)), options: $options },
            about: $about,
            aliases: &[$( $alias ),*],
            run: |given| run(given, $module::run),
        }
    };
    // A verb whose name a module cannot have.
    ($name:literal in $module:ident, $about:literal, $options:expr) => {
        Verb {
            command: Command { name: concat!("vos ", $name), options: $options },
            about: $about,
            aliases: &[],
            run: |given| run(given, $module::run),
        }
    };
}

static SUITE: Suite = Suite {
    name: "vos",
    misuse_status: |_| Stop::RETURNED.0,
    verbs: &[
        verb!(
            addsite,
            "add a replication site",
            options![
                Opt::single("server", "machine name for new site").required(),
                Opt::single("partition", "partition name for new site").required(),
                ID.required(),
                Opt::single("roid", "volume name or ID for RO"),
                Opt::flag("valid", "publish as an up-to-date site in VLDB"),
            ]
        ),
        verb!(backup, "make backup of a volume", options![ID.required()]),
        verb!(
            backupsys,
            "en masse backups",
            options![
                Opt::list("prefix", "common prefix on volume(s)"),
                SERVER,
                PARTITION,
                Opt::flag("exclude", "exclude common prefix volumes"),
                Opt::list("xprefix", "negative prefix on volume(s)"),
                DRY_RUN,
            ]
        ),
        verb!(
            changeaddr,
            "change the IP address of a file server",
            options![
                Opt::single("oldaddr", "original IP address").required(),
                Opt::single("newaddr", "new IP address"),
                Opt::flag("remove", "remove the IP address from the VLDB"),
                Opt::flag("force", "allow multi-homed server entry change (not recommended)"),
            ]
        ),
        verb!(
            changeloc,
            "change an RW volume's location in the VLDB",
            options![
                Opt::single("server", "machine name for new location").required(),
                Opt::single("partition", "partition name for new location").required(),
                ID.required(),
            ]
        ),
        verb!(
            clone,
            "make clone of a volume",
            options![
                ID.required(),
                Opt::single("server", "server"),
                Opt::single("partition", "partition"),
                Opt::single("toname", "volume name on destination"),
                Opt::single("toid", "volume ID on destination"),
                Opt::flag("offline", "leave clone volume offline"),
                Opt::flag("readonly", "make clone volume read-only, not readwrite"),
                Opt::flag("readwrite", "make clone volume readwrite, not read-only"),
            ]
        ),
        verb!(
            "convertROtoRW" in convert_ro_to_rw,
            "convert a RO volume into a RW volume (after loss of old RW volume)",
            options![
                SERVER.required(),
                PARTITION.required(),
                ID.required(),
                Opt::flag("force", "don't ask"),
                Opt::flag("keep-ro", "leave a RO volume at the site too").ours(),
            ]
        ),
        verb!(
            copy,
            "copy a volume",
            options![
                Opt::single("id", "volume name or ID on source").required(),
                FROM_SERVER.required(),
                FROM_PARTITION.required(),
                Opt::single("toname", "volume name on destination").required(),
                TO_SERVER.required(),
                TO_PARTITION.required(),
                Opt::flag("offline", "leave new volume offline"),
                Opt::flag("readonly", "make new volume read-only"),
                Opt::flag("live", "copy live volume without cloning"),
            ]
        ),
        verb!(
            create,
            "create a new volume",
            options![
                SERVER.required(),
                PARTITION.required(),
                Opt::single("name", "volume name").required(),
                Opt::single("maxquota", "initial quota (KB)"),
                Opt::single("id", "volume ID"),
                Opt::single("roid", "readonly volume ID"),
            ]
        ),
        verb!(
            delentry,
            "delete VLDB entry for a volume",
            options![
                Opt::list("id", "volume name or ID"),
                Opt::single("prefix", "prefix of the volume whose VLDB entry is to be deleted"),
                SERVER,
                PARTITION,
                Opt::flag("noexecute", "").hidden(),
                DRY_RUN,
            ]
        ),
        verb!(
            dump,
            "dump a volume",
            options![
                ID.required(),
                Opt::single("time", "dump from time"),
                Opt::single("file", "dump file"),
                Opt::single("server", "server"),
                Opt::single("partition", "partition"),
                Opt::flag("clone", "dump a clone of the volume"),
                Opt::flag("omitdirs", "omit unchanged directories from an incremental dump"),
            ]
        ),
        verb!(
            endtrans,
            "end a volserver transaction",
            options![SERVER.required(), Opt::single("transaction", "transaction ID").required(),]
        ),
        verb!(examine or "e" or "volinfo", "everything about the volume", options![
            ID.required(),
            Opt::flag("extended", "list extended volume fields"),
            Opt::flag("format", "machine readable format"),
        ]),
        verb!(
            listaddrs,
            "list the IP address of all file servers registered in the VLDB",
            options![
                Opt::single("uuid", "uuid of server"),
                Opt::single("host", "address of host"),
                Opt::flag("printuuid", "print uuid of hosts"),
            ]
        ),
        verb!(listpart, "list partitions", options![SERVER.required()]),
        verb!(
            listvldb,
            "list volumes in the VLDB",
            options![
                Opt::single("name", "volume name or ID"),
                SERVER,
                PARTITION,
                Opt::flag("locked", "locked volumes only"),
                Opt::flag("quiet", "generate minimal information"),
                Opt::flag("nosort", "do not alphabetically sort the volume names"),
            ]
        ),
        verb!(
            listvol,
            "list volumes on server (bypass VLDB)",
            options![
                SERVER.required(),
                PARTITION,
                Opt::flag("fast", "minimal listing"),
                Opt::flag("long", "list all normal volume fields"),
                Opt::flag("quiet", "generate minimal information"),
                Opt::flag("extended", "list extended volume fields"),
                Opt::flag("format", "machine readable format"),
                Opt::flag("half", "list volumes whose transfer was interrupted instead").ours(),
            ]
        ),
        verb!(lock, "lock VLDB entry for a volume", options![ID.required()]),
        verb!(
            "move" in relocate,
            "move a volume",
            options![
                ID.required(),
                FROM_SERVER.required(),
                FROM_PARTITION.required(),
                TO_SERVER.required(),
                TO_PARTITION.required(),
                Opt::flag("live", "copy live volume without cloning"),
            ]
        ),
        verb!(
            offline,
            "force the volume status to offline",
            options![
                Opt::single("server", "server name").required(),
                PARTITION.required(),
                ID.required(),
                Opt::single("sleep", "seconds to sleep"),
                Opt::flag("busy", "busy volume"),
            ]
        ),
        verb!(
            online,
            "force the volume status to online",
            options![Opt::single("server", "server name").required(), PARTITION.required(), ID.required(),]
        ),
        verb!(
            partinfo,
            "list partition information",
            options![SERVER.required(), PARTITION, Opt::flag("summary", "print storage summary"),]
        ),
        verb!(
            release,
            "release a volume",
            options![
                ID.required(),
                Opt::flag("force", "force a complete release and full dumps").or("f"),
                Opt::flag("force-reclone", "force a reclone and complete release with incremental dumps"),
            ]
        ),
        verb!(
            remaddrs,
            "remove the list of IP addresses for a given UUID in the VLDB",
            options![Opt::single("uuid", "uuid of server").required()]
        ),
        verb!(remove, "delete a volume", options![SERVER, PARTITION, ID.required()]),
        verb!(
            remsite,
            "remove a replication site",
            options![SERVER.required(), PARTITION.required(), ID.required(),]
        ),
        verb!(
            rename,
            "rename a volume",
            options![
                Opt::single("oldname", "old volume name ").required(),
                Opt::single("newname", "new volume name ").required(),
            ]
        ),
        verb!(
            restore,
            "restore a volume",
            options![
                SERVER.required(),
                PARTITION.required(),
                Opt::single("name", "name of volume to be restored").required(),
                Opt::single("file", "dump file"),
                Opt::single("id", "volume ID"),
                Opt::single("overwrite", "abort | full | incremental"),
                Opt::flag("offline", "leave restored volume offline"),
                Opt::flag("readonly", "make restored volume read-only"),
                Opt::single("creation", "dump | keep | new"),
                Opt::single("lastupdate", "dump | keep | new"),
                Opt::flag("nodelete", "do not delete old site when restoring to a new site"),
            ]
        ),
        verb!(
            setaddrs,
            "set the list of IP addresses for a given UUID in the VLDB",
            options![
                Opt::single("uuid", "uuid of server").required(),
                Opt::list("host", "address of host").required(),
            ]
        ),
        verb!(
            setfields,
            "change volume info fields",
            options![
                ID.required(),
                Opt::single("maxquota", "quota (KB)"),
                Opt::flag("clearuse", "clear dayUse"),
                Opt::flag("clearVolUpCounter", "clear volUpdateCounter"),
            ]
        ),
        verb!(
            shadow,
            "make or update a shadow volume",
            options![
                Opt::single("id", "volume name or ID on source").required(),
                FROM_SERVER.required(),
                FROM_PARTITION.required(),
                TO_SERVER.required(),
                TO_PARTITION.required(),
                Opt::single("toname", "volume name on destination"),
                Opt::single("toid", "volume ID on destination"),
                Opt::flag("offline", "leave shadow volume offline"),
                Opt::flag("readonly", "make shadow volume read-only"),
                Opt::flag("live", "copy live volume without cloning"),
                Opt::flag("incremental", "do incremental update if target exists"),
            ]
        ),
        verb!(
            size,
            "obtain various sizes of the volume.",
            options![
                ID.required(),
                PARTITION,
                SERVER,
                Opt::flag("dump", "Obtain the size of the dump"),
                Opt::single("time", "dump from time"),
            ]
        ),
        verb!(status, "report on volser status", options![SERVER.required()]),
        verb!(syncserv, "synchronize server with VLDB", options![SERVER.required(), PARTITION, DRY_RUN]),
        verb!(
            syncvldb,
            "synchronize VLDB with server",
            options![SERVER, PARTITION, Opt::single("volume", "volume name or ID"), DRY_RUN,]
        ),
        verb!(unlock, "release lock on VLDB entry for a volume", options![ID.required()]),
        verb!(unlockvldb, "unlock all the locked entries in the VLDB", options![SERVER, PARTITION]),
        verb!(
            zap,
            "delete the volume, don't bother with VLDB",
            options![
                SERVER.required(),
                PARTITION.required(),
                Opt::single("id", "volume ID").required(),
                Opt::flag("force", "force deletion of bad volumes"),
                Opt::flag("backup", "also delete backup volume if one is found"),
            ]
        ),
    ],
};

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    SUITE.run(args)
}

/// The end of a verb that did not work, with its exit status. The user was told why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stop(u8);

impl Stop {
    /// What most failures end with in OpenAFS's.
    const RETURNED: Self = Self(255);
    /// What others end with.
    const EXITED: Self = Self(1);
    /// What some verbs end with when their options do not go together.
    const MISUSED: Self = Self(254);
}

/// How a verb ends.
type Done = Result<(), Stop>;

/// What a verb has.
struct Vos {
    printer: Printer,
    caller: Caller,
    vldb: LocationDb,
    volumes: VolumeServers,
    login: Login,
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
    let wish =
        Wish { noauth: given.has("noauth"), localauth: given.has("localauth"), clear: given.has("clear") };
    let default = if wish.localauth { SERVER_FOLDER } else { CLIENT_FOLDER };
    let folder = given.word("config").unwrap_or(default);
    let cell = CellServers::find_anywhere(Path::new(folder), given.word("cell")).map_err(|error| {
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
    })?;
    let opened = Caller::new().and_then(|caller| Ok((caller.seed()?, caller)));
    let (seed, caller) = opened.map_err(|error| {
        eprintln!("vos: cannot open a socket: {error}");
        Stop::EXITED
    })?;
    let login = log_in(wish, Path::new(folder), &cell.name, seed).unwrap_or_else(|missing| {
        missing.explain("vos");
        eprintln!("vos: Could not get afs tokens, running unauthenticated.");
        Login::anonymous()
    });
    Ok(Vos {
        printer: Printer::new("vos").only_json(given.has("json")),
        vldb: LocationDb::new(caller.endpoint(), &cell.servers, &login),
        volumes: VolumeServers::new(caller.endpoint(), &login),
        login,
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

    /// Whether the user has pressed Ctrl-C. Before the first call of this function, Ctrl-C ends the program. Afterwards the verb ends in order.
    fn cancel(&self) -> &Cancel {
        self.cancel.get_or_init(|| self.caller.cancelled_by_interrupt("vos"))
    }

    /// Whether the verb may begin something that it must not leave half done, such as a change of an entry under a lock. Complains if not.
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
