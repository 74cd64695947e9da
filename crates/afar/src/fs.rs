//! `fs`, files, volumes and servers as the client of this machine sees them: the table of its verbs, and what they share, which
//! is the way from a path to the client that serves it. Each verb is in a file of its own, or in that of its topic; what is
//! asked of the client is declared in `afs_wire::control`.
//!
//! What is printed, errors included, and the exit status are those of OpenAFS 1.8.9's `fs`. What has no meaning for a client
//! that is no kernel module is in the table too, and says so.

mod acl;
mod behind;
mod cache;
mod cells;
pub(crate) mod client;
pub(crate) mod errors;
mod explained;
mod files;
mod mount_points;
mod names;
mod pins;
pub(crate) mod place;
mod quota;
mod ranks;
mod restore;
mod servers;
mod snapshots;
mod volumes;
mod workstation;

use crate::classic::{Command, Given, Opt};
use crate::output;
use crate::printer::Printer;
use crate::suite::{Suite, Verb};
use afs_wire::control::{self, Place};
use client::Client;
use errors::Failure;
use place::{Found, Links, client_of};
use rxgen::Rpc;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of a verb that tells facts.
macro_rules! facts {
    ($( $option:expr ),* $(,)?) => { &[ $( $option, )* Opt::flag("json", "write JSON").ours() ] };
}

/// A row of the table.
macro_rules! verb {
    ($name:literal $(or $alias:literal)*, $about:literal, $options:expr, $run:path) => {
        Verb {
            command: Command { name: concat!("fs ", $name), options: $options },
            about: $about,
            aliases: &[$( $alias ),*],
            run: |given| run(given, $run),
        }
    };
}

const PATHS: Opt = Opt::list("path", "dir/file path").path();
const MOUNT_POINTS: Opt = Opt::list("dir", "directory").required().path();

static SUITE: Suite = Suite {
    name: "fs",
    misuse_status: |code| code,
    verbs: &[
        // ---- access lists
        verb!("cleanacl", "clean up access control list", &[PATHS], acl::clean),
        verb!("copyacl" or "ca", "copy access control list", &[
            Opt::single("fromdir", "source directory (or DFS file)").required().path(),
            Opt::list("todir", "destination directory (or DFS file)").required().path(),
            Opt::flag("clear", "first clear dest access list"),
            Opt::flag("id", "initial directory acl"),
            Opt::flag("if", "initial file acl"),
        ], acl::copy),
        verb!("getcalleraccess" or "gca", "list callers access", facts![PATHS], acl::show_caller_access),
        verb!("listacl" or "la", "list access control list", facts![
            PATHS,
            Opt::flag("id", "initial directory acl"),
            Opt::flag("if", "initial file acl"),
            Opt::flag("cmd", "output as 'fs setacl' command"),
        ], acl::list),
        verb!("setacl" or "sa", "set access control list", &[
            Opt::list("dir", "directory").required().path(),
            Opt::list("acl", "access list entries").required(),
            Opt::flag("clear", "clear access list"),
            Opt::flag("negative", "apply to negative rights"),
            Opt::flag("id", "initial directory acl (DFS only)"),
            Opt::flag("if", "initial file acl (DFS only)"),
        ], acl::set),
        // ---- volumes
        verb!("diskfree" or "df", "show server disk space usage", facts![
            PATHS,
            Opt::flag("human", "human-readable listing"),
        ], quota::show_space),
        verb!("examine" or "listvol" or "lv", "display file/volume status", facts![PATHS], volumes::examine),
        verb!("listquota" or "lq", "list volume quota", facts![
            PATHS,
            Opt::flag("human", "human-readable listing"),
        ], quota::list),
        verb!("quota", "show volume quota usage", facts![PATHS], quota::show),
        verb!("setquota" or "sq", "set volume quota", &[
            Opt::single("path", "dir/file path").path(),
            Opt::single("max", "max quota in kbytes").required(),
        ], volumes::set_quota),
        verb!("setvol" or "sv", "set volume status", &[
            PATHS,
            Opt::single("max", "disk space quota in 1K units"),
            Opt::single("offlinemsg", "offline message"),
        ], volumes::set),
        verb!("whereis", "list file's location", facts![PATHS], files::where_is),
        // ---- mount points
        verb!("flushmount", "flush mount symlink from cache", &[PATHS], mount_points::flush),
        verb!("lsmount", "list mount point", facts![MOUNT_POINTS], mount_points::list),
        verb!(
            "mkmount",
            "make mount point",
            &[
                Opt::single("dir", "directory").required().path(),
                Opt::single("vol", "volume name").required(),
                Opt::single("cell", "cell name"),
                Opt::flag("rw", "force r/w volume"),
                Opt::flag("fast", "don't check name with VLDB"),
            ],
            mount_points::make
        ),
        verb!("rmmount", "remove mount point", &[MOUNT_POINTS], mount_points::remove),
        // ---- what is kept
        verb!("checkvolumes" or "checkbackups", "check volumeID/name mappings", &[], cache::check_volumes),
        verb!(
            "flush",
            "flush file from cache",
            &[
                PATHS,
                Opt::flag(
                    "wait",
                    "first wait until the server has all that was changed in the path's volume"
                )
                .ours(),
            ],
            cache::flush
        ),
        verb!("flushall", "flush all data from the cache", &[], cache::flush_all),
        verb!("flushvolume", "flush all data in volume", &[PATHS], cache::flush_volume),
        verb!(
            "getcacheparms",
            "get cache usage info",
            facts![
                Opt::flag("files", "Show cach files used as well"),
                Opt::flag("excessive", "excessively verbose cache stats"),
            ],
            cache::show
        ),
        verb!(
            "pin",
            "keep files and directories in the cache",
            facts![
                PATHS,
                Opt::flag("remove", "keep the paths no longer: the user who has pinned them, or root").ours(),
                Opt::flag("list", "show what is pinned, and how much of it is here; so does no path").ours(),
            ],
            pins::pin
        ),
        // ---- snapshots
        verb!("snapshots", "list the versions of files that snapshots have", facts![PATHS], snapshots::list),
        verb!(
            "restore",
            "bring back a file or a tree from a snapshot",
            &[
                Opt::single("path", "dir/file path").required().path(),
                Opt::single("at", "the snapshot, by its time").ours(),
                Opt::flag("over", "replace what has changed since, in place of a copy beside it").ours(),
            ],
            restore::run
        ),
        verb!("whatwaits", "list what no server has yet", facts![], cache::show_waiting),
        verb!("setcachesize" or "cachesize", "set cache size", &[
            Opt::single("blocks", "size in 1K byte blocks (0 => reset)"),
            Opt::flag("reset", "reset size back to boot value"),
        ], cache::set_size),
        verb!("storebehind" or "sb", "store to server after file close", &[
            Opt::single("kbytes", "asynchrony for specified names"),
            Opt::list("files", "specific pathnames").path(),
            Opt::single("allfiles", "new default (KB)"),
            Opt::flag("verbose", "show status"),
            Opt::list("directory", "directories whose write-behind is shown, or set with -set").ours().path(),
            Opt::list("volume", "the same, for the whole volume that each path is in").ours().path(),
            Opt::single("set", "always, second, off, or inherit: what is set above counts").ours(),
            Opt::flag("pause", "send nothing of what waits for servers until -resume").ours(),
            Opt::flag("resume", "send it again").ours(),
            Opt::flag("json", "write JSON, with -directory or -volume").ours(),
        ], behind::store_behind),
        // ---- servers
        verb!(
            "checkservers",
            "check local cell's servers",
            facts![
                Opt::single("cell", "cell to check"),
                Opt::flag("all", "check all cells"),
                Opt::flag("fast", "just list, don't check"),
                Opt::single("interval", "seconds between probes"),
            ],
            servers::check
        ),
        verb!("getserverprefs" or "gp", "get server ranks", facts![
            Opt::single("file", "output to named file").path(),
            Opt::flag("numeric", "addresses only"),
            Opt::flag("vlservers", "VL servers"),
        ], ranks::show),
        verb!("setserverprefs" or "sp", "set server ranks", &[
            Opt::list("servers", "fileserver names and ranks"),
            Opt::list("vlservers", "VL server names and ranks"),
            Opt::single("file", "input from named file").path(),
            Opt::flag("stdin", "input from stdin"),
        ], ranks::set),
        // ---- cells
        verb!(
            "getcellstatus",
            "get cell status",
            facts![Opt::list("cell", "cell name").required(),],
            cells::show_status
        ),
        verb!("getfid", "get fid for file(s)", facts![PATHS], files::show_fid),
        verb!("listaliases", "list configured cell aliases", facts![], cells::list_aliases),
        verb!(
            "listcells",
            "list configured cells",
            facts![Opt::flag("numeric", "addresses only"),],
            cells::list
        ),
        verb!(
            "newalias",
            "configure new cell alias",
            &[
                Opt::single("alias", "alias name").required(),
                Opt::single("name", "real name of cell").required(),
            ],
            cells::add_alias
        ),
        verb!(
            "newcell",
            "configure new cell",
            &[
                Opt::single("name", "cell name").required(),
                Opt::list("servers", "primary servers").required(),
                Opt::single("linkedcell", "linked cell name"),
            ],
            cells::add
        ),
        verb!(
            "setcell",
            "set cell status",
            &[
                Opt::list("cell", "cell name").required(),
                Opt::flag("suid", "allow setuid programs"),
                Opt::flag("nosuid", "disallow setuid programs"),
            ],
            cells::set_status
        ),
        verb!("whichcell", "list file's cell", facts![PATHS], files::which_cell),
        verb!("wscell", "list workstation's cell", facts![], cells::show_own),
        // ---- this machine
        verb!("getclientaddrs" or "gc", "get client network interface addresses", facts![],
            workstation::show_addresses),
        verb!("getcrypt", "get cache manager encryption flag", facts![], workstation::show_crypt),
        verb!(
            "setcrypt",
            "set cache manager encryption flag",
            &[Opt::single("crypt", "on or off").required(),],
            workstation::set_crypt
        ),
        verb!(
            "sysname",
            "get/set sysname (i.e. @sys) value",
            facts![Opt::list("newsys", "new sysname"),],
            workstation::sysname
        ),
        // ---- what has no meaning here
        verb!(
            "bypassthreshold",
            "get/set cache bypass file size threshold",
            &[Opt::single("size", "file size"),],
            explained::bypass_threshold
        ),
        verb!(
            "discon",
            "disconnection mode",
            &[
                Opt::single("mode", "offline | online").required(),
                Opt::single("policy", "client | server"),
                Opt::flag("force", "Force reconnection, despite any synchronization issues."),
                Opt::single("uid", "Numeric UID of user whose tokens to use at reconnect."),
            ],
            explained::discon
        ),
        verb!(
            "exportafs",
            "enable/disable translators to AFS",
            &[
                Opt::single("type", "exporter name").required(),
                Opt::single("start", "start/stop translator (on | off)"),
                Opt::single("convert", "convert from afs to unix mode (on | off)"),
                Opt::single("uidcheck", "run on strict 'uid check' mode (on | off)"),
                Opt::single("submounts", "allow nfs mounts to subdirs of /afs/.. (on  | off)"),
                Opt::single("clipags", "enable use of client-assigned PAG's (on  | off)"),
                Opt::single("pagcb", "enable callbacks to get creds from new clients (on  | off)"),
            ],
            explained::export
        ),
        verb!(
            "messages",
            "control Cache Manager messages",
            &[Opt::single("show", "[user|console|all|none]"),],
            explained::messages
        ),
        verb!(
            "nukenfscreds",
            "nuke credentials for NFS client",
            &[Opt::single("addr", "host name or address").required(),],
            explained::nfs_credentials
        ),
        verb!(
            "precache",
            "set precache size",
            &[Opt::single("blocks", "size in 1K byte blocks (0 => disable)"),],
            explained::precache
        ),
        verb!("rxstatpeer", "Manage per peer RX statistics", &RX_STATISTICS, explained::rx_statistics),
        verb!("rxstatproc", "Manage per process RX statistics", &RX_STATISTICS, explained::rx_statistics),
        verb!(
            "setcbaddr",
            "configure callback connection address",
            &[Opt::single("addr", "host name or address"),],
            explained::callback_address
        ),
        verb!("setclientaddrs" or "sc", "set client network interface addresses", &[
            Opt::list("address", "client network interfaces"),
        ], explained::client_addresses),
        verb!(
            "uuid",
            "manage the UUID for the cache manager",
            &[Opt::flag("generate", "generate a new UUID").required(),],
            explained::uuid
        ),
    ],
};

static RX_STATISTICS: [Opt; 3] = [
    Opt::flag("enable", "Enable RX stats"),
    Opt::flag("disable", "Disable RX stats"),
    Opt::flag("clear", "Clear RX stats"),
];

/// The exit status for whatever goes wrong behind the command line.
const FAILURE: u8 = 1;

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    SUITE.run(args)
}

/// The things that a verb needs.
struct Fs {
    printer: Printer,
}

/// A path of the command line.
struct Target {
    path: PathBuf,
    /// As it is shown.
    shown: String,
}

/// The place that a path leads to, with the client that serves it.
struct Served {
    client: Client,
    place: Place,
}

fn run(given: &Given, verb: fn(&Fs, &Given) -> u8) -> u8 {
    let fs = Fs { printer: Printer::new("fs") };
    let status = verb(&fs, given);
    fs.printer.finish(status)
}

impl Target {
    fn new(path: &OsStr) -> Self {
        Self { path: path.into(), shown: output::text_of(path) }
    }

    /// The paths of an option.
    fn all(given: &Given, option: &str) -> Vec<Self> {
        given.values(option).iter().map(|path| Self::new(path)).collect()
    }

    /// The paths of `-path`, or the current folder where there are none.
    fn all_or_here(given: &Given) -> Vec<Self> {
        match Self::all(given, "path") {
            none if none.is_empty() => vec![Self::new(OsStr::new("."))],
            some => some,
        }
    }

    /// Finds the file.
    fn find(&self) -> Result<Found, Failure> {
        Found::at(&self.path, Links::Follow)
    }
}

impl Served {
    /// Finds the place that a path leads to.
    fn at(path: &Path, links: Links) -> Result<Self, Failure> {
        let place = Found::at(path, links)?.place()?;
        Ok(Self { client: client_of(path, links)?, place })
    }
}

impl Fs {
    /// The client of a command that is about no file.
    fn any_client(&self) -> Result<Client, Failure> {
        Client::any("fs")
    }

    /// Asks that client one thing.
    fn ask<R: Rpc>(&self, args: &R) -> Result<R::Reply, Failure> {
        self.any_client()?.call(args)
    }

    /// Says what went wrong, as all verbs do that say nothing of their own.
    fn complain(&self, failure: &Failure, file: Option<&str>) {
        self.printer.complain(&failure.line(file));
    }

    /// Runs `work` for one path after the other. It tells of a failure, and goes on with the others.
    fn each(&self, targets: &[Target], mut work: impl FnMut(&Target) -> Result<(), Failure>) -> u8 {
        let mut status = 0;
        for target in targets {
            if let Err(failure) = work(target) {
                self.complain(&failure, Some(&target.shown));
                status = FAILURE;
            }
        }
        status
    }

    /// The end of a verb that is about no file.
    fn done(&self, result: Result<(), Failure>) -> u8 {
        match result {
            Ok(()) => 0,
            Err(failure) => {
                self.complain(&failure, None);
                FAILURE
            }
        }
    }

    /// A cell by its name, the beginning of it or an alias; complains where there is none.
    fn find_cell(&self, client: &Client, name: &str) -> Result<control::KnownCell, u8> {
        let wanted = afs_wire::ids::Name::try_from(name).map_err(|_| Failure::Errno(errors::ENOENT));
        let found = wanted.and_then(|name| client.call(&control::FindCell { name }));
        match found {
            Ok(reply) => Ok(reply.cell),
            Err(Failure::Errno(errors::ENOENT)) => {
                let file = client.call(&control::About {}).map(|about| about.cell_serv_db.to_string());
                let file = file.unwrap_or_else(|_| "CellServDB".to_owned());
                self.printer.complain(&format!("fs: cell {name} not in {file}\n"));
                Err(FAILURE)
            }
            Err(failure) => {
                self.complain(&failure, None);
                Err(FAILURE)
            }
        }
    }
}
