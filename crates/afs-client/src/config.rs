//! The configuration of a client: a value, made by `afar mount` and `afar up` from files and options.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afs_cache::Disk;
use afs_config::{CellAliases, CellName, CellServDb, ClientFolder};
use afs_dns::Resolver;
use afs_view::data::fsync::Fsync;
use afs_view::data::write_behind::WriteBehind;
use afs_view::events::HANDLING_MAX;
use afs_view::vnodes::suspended::LAPSE;
use afs_wire::Uuid;
use rx_security::{KeySet, Level};

use crate::memory;

/// The UDP port on which stock cache managers are called back, and call from.
pub const CALLBACK_PORT: u16 = 7001;

/// Default of [`Config::offline_max`].
const OFFLINE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The configuration of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cell of this machine: whose root volume is mounted, and in which names without a cell are looked for.
    pub cell: CellName,
    /// The cells and their database servers.
    pub cells: CellServDb,
    /// The resolver that is asked for cells that are not among these (`-afsdb`). Default `None`: nobody.
    pub dns: Option<Arc<dyn Resolver>>,
    /// Short names of cells, shown in the dynamic root.
    pub aliases: CellAliases,
    /// The address and port to call from and to be called back on. Default 0.0.0.0:7001; where the port is taken, any free
    /// one, which servers find by the calls.
    pub bind: SocketAddr,
    /// Take another port where that of [`Self::bind`] is taken. Default true: only firewalls and `cmdebug` look for 7001.
    pub any_port: bool,
    /// The id of this client for servers, best kept over restarts. Default `None`: a new one.
    pub uuid: Option<Uuid>,
    /// Show the cells as directories of the root, made up here (`-dynroot`). Default true; without it the root is that of
    /// [`Self::root_volume`].
    pub dynroot: bool,
    /// The volume that is the root without [`Self::dynroot`]. Default `root.afs`.
    pub root_volume: String,
    /// True if a mount point of another cell's volume has a made-up status before anybody has been in it, so that its servers
    /// are not asked (`-fakestat`). Default true: else `ls -l` of the dynamic root asks each cell there is.
    pub fakestat: bool,
    /// True if listings of the root directories of volumes show `.snapshots`. Default false, so that no program that goes through a tree comes
    /// there; it can be entered by name in each directory.
    pub shows_snapshots: bool,
    /// The values of `@sys`, in the order in which it is tried. Default: one, of the machine, such as `amd64_linux26`.
    pub sysnames: Vec<String>,
    /// Local users and who they are to cells: see [`LocalUser`].
    pub users: Vec<LocalUser>,
    /// Keys of cells, for the users that are to have tickets made from them. A program with a cell's key can act as any user of the
    /// cell.
    pub keys: Vec<(CellName, KeySet)>,
    /// The protection of calls that are made with a ticket. Default crypt, as OpenAFS's client and kAFS have it.
    pub level: Level,
    /// The time for which an operation waits for servers that do not answer, but did before, and for those that are busy. Default 10
    /// minutes: a restart or a move of a volume is waited for. A program that waits can be interrupted. Servers that have never answered
    /// are waited for only until the call is given up.
    pub patience: Duration,
    /// With no packet from a server for so long in a call, it counts as down. Default 12 s, Rx's; below 6 s counts as 6 s.
    pub dead_after: Duration,
    /// A server that tells of a change waits for so long at most until the kernel has forgotten what it had. Default 1 s, as servers give
    /// up after two.
    pub handling_max: Duration,
    /// A client that did not run for so long has to ask servers again what has changed: they may have given up telling it. Default 3 s.
    pub lapse: Duration,
    /// Vnodes whose status is kept. This and the others down to [`Self::data_bytes`] are shares of one memory, whose default is
    /// [`memory::DEFAULT_BYTES`]: see [`Self::set_memory`].
    pub status_entries: usize,
    /// Bytes of directories that are kept.
    pub directory_bytes: usize,
    /// Files that the kernel may know; beyond it, those that it has asked about least of late are to be let go.
    pub kernel_nodes: usize,
    /// Files that may be in the cache, however small.
    pub cached_files: usize,
    /// Bytes of the cache's index that are kept in memory.
    pub index_bytes: usize,
    /// Bytes of a segment of that index's log. As much is in memory, and twice that while it goes into the index.
    pub index_log_bytes: u64,
    /// Bytes that windows for what is received may promise: see `receive_budget` of the transport.
    pub received_bytes: u64,
    /// Bytes of packets that have arrived and not been looked at; beyond it they are lost.
    pub packet_bytes: usize,
    /// Bytes of files' data that are kept without a cache folder.
    pub data_bytes: u64,
    /// A close returns when what was written is safe in the cache folder, and the server gets it soon after (docs/semantics.md). Default
    /// `None`: it waits for the server.
    pub write_behind: Option<WriteBehind>,
    /// What an `fsync` means in directories with write-behind. Default: it waits for the server, unless that has been away for 5 seconds.
    pub fsync: Fsync,
    /// The time for which a client answers from what it knows of volumes with write-behind, and of what is pinned, while a server is known to be
    /// away, beyond the end of the server's promises and of users' tokens. Default 7 days; zero: not at all.
    pub offline_max: Duration,
    /// The folder of the cache and its limit in bytes; without one, data are fetched whenever they are read.
    pub cache: Option<Cache>,
    /// Another disk than the folder's own for what is in [`Self::cache`], as simulations have; a task looks after the cache then, and no
    /// thread.
    pub cache_disk: Option<Arc<dyn Disk>>,
    /// The ports of servers. Default those of AFS.
    pub ports: Ports,
}

/// The place where file data are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The folder; each client has its own.
    pub folder: PathBuf,
    /// Most bytes of data.
    pub limit_bytes: u64,
}

/// A local user who has tickets made from a cell's key (see [`Config::keys`]), as if they had shown a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalUser {
    /// The user's number on this machine.
    pub uid: u32,
    /// The cell; it needs a key.
    pub cell: CellName,
    /// The user's name there, `name` or `name.instance`.
    pub name: String,
}

/// The UDP ports of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The file service.
    pub file: u16,
    /// The volume location service.
    pub location: u16,
    /// The protection service.
    pub protection: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { file: 7000, location: 7003, protection: 7002 }
    }
}

impl Config {
    /// The defaults, for these cells.
    pub fn new(cell: CellName, cells: CellServDb) -> Self {
        let mut this = Self {
            cell,
            cells,
            dns: None,
            aliases: CellAliases::default(),
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, CALLBACK_PORT)),
            any_port: true,
            uuid: None,
            dynroot: true,
            root_volume: "root.afs".to_owned(),
            fakestat: true,
            shows_snapshots: false,
            sysnames: vec![default_sysname().to_owned()],
            users: Vec::new(),
            keys: Vec::new(),
            level: Level::Crypt,
            patience: Duration::from_secs(600),
            dead_after: Duration::from_secs(12),
            handling_max: HANDLING_MAX,
            lapse: LAPSE,
            status_entries: 0,
            directory_bytes: 0,
            kernel_nodes: 0,
            cached_files: 0,
            index_bytes: 0,
            index_log_bytes: 0,
            received_bytes: 0,
            packet_bytes: 0,
            data_bytes: 0,
            write_behind: None,
            fsync: Fsync::default(),
            offline_max: OFFLINE_MAX,
            cache: None,
            cache_disk: None,
            ports: Ports::default(),
        };
        this.set_memory(memory::DEFAULT_BYTES);
        this
    }

    /// The defaults, for the cells of a folder of configuration.
    pub fn of_folder(folder: ClientFolder) -> Self {
        Self { aliases: folder.aliases, ..Self::new(folder.cell, folder.cells) }
    }
}

/// The default for `@sys`: OpenAFS's name for this kind of machine.
fn default_sysname() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64_linux26",
        "aarch64" => "arm64_linux26",
        "x86" => "i386_linux26",
        "powerpc64" => "ppc64le_linux26",
        "s390x" => "s390x_linux26",
        _ => "linux26",
    }
}
