//! Every setting of the server, once: its key in the TOML file, type, default and meaning. From this table come the
//! structures, the reader, and the check that docs/administration.md names each of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

/// A setting, for documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The section that it stands in.
    pub section: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The type, as in the code.
    pub kind: &'static str,
    /// The default, as in the code.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// Declares the sections of the file.
macro_rules! settings {
    ($( $(#[doc = $section_doc:literal])* section $struct:ident as $overlay:ident in $section:literal {
        $( $(#[doc = $doc:literal])* $name:ident : $type:ty = $default:expr; )*
    } )*) => {
        $(
            $(#[doc = $section_doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $struct { $( $(#[doc = $doc])* pub $name: $type ),* }

            impl Default for $struct {
                fn default() -> Self {
                    Self { $( $name: $default ),* }
                }
            }

            /// What a file says of the section: only what it says.
            #[derive(Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub(super) struct $overlay { $( $name: Option<$type> ),* }

            impl $overlay {
                /// Replaces the settings that the file has.
                pub(super) fn apply(self, settings: &mut $struct) {
                    $( if let Some(value) = self.$name { settings.$name = value; } )*
                }
            }
        )*

        /// Every key of the file, in the order of the documentation.
        pub const KEYS: &[Key] = &[ $( $( Key {
            section: $section,
            name: stringify!($name),
            kind: stringify!($type),
            default: stringify!($default),
            about: concat!($($doc),*),
        } ),* ),* ];
    };
}

/// A service of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The file service, port 7000.
    File,
    /// The volume service, port 7005.
    Vol,
    /// The volume location database, port 7003.
    Vl,
    /// The protection database, port 7002.
    Pt,
    /// The overseer's port, 7007: says what runs.
    Bos,
}

impl Role {
    /// All roles, in the order in which they are started: what others need comes first.
    pub const ALL: [Self; 5] = [Self::Pt, Self::Vl, Self::File, Self::Vol, Self::Bos];

    /// Its name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Vol => "vol",
            Self::Vl => "vl",
            Self::Pt => "pt",
            Self::Bos => "bos",
        }
    }

    /// The role of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// How much protection a client that says who it is has to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Whatever it likes.
    Clear,
    /// Packets cannot be changed on their way.
    Auth,
    /// Nor read.
    Crypt,
}

/// When changes are made to survive a loss of power; the death of the process they always survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// Before each is acknowledged.
    Always,
    /// Within a second, in the background.
    Interval,
}

/// Who may ask what volumes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Query {
    /// Everyone.
    Anyuser,
    /// Superusers.
    Admin,
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

settings! {
    /// What the process is.
    section General as GeneralFile in "server" {
        /// What runs in this process: "file", "vol", "vl", "pt", "bos".
        roles: Vec<Role> = Role::ALL.to_vec();
        /// The folder with what the server keeps: databases, who holds callbacks, sysid, and unless said otherwise the configuration folder and the first partition.
        state: PathBuf = "/var/lib/afar".into();
        /// OpenAFS's configuration folder of a server: ThisCell, CellServDB, KeyFileExt, UserList, krb.conf. Empty: STATE/etc/server.
        config_dir: PathBuf = PathBuf::new();
        /// The address to listen on. 0.0.0.0 listens on all, and NetInfo and NetRestrict say which of them are told to others.
        bind: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
        /// The cell to make when the configuration folder is not there yet.
        cell: String = "afar.local".to_owned();
        /// The administrator to make with it.
        administrator: String = "admin".to_owned();
        /// Partitions: folders named /vicepXX, or "XX=FOLDER" for others. Empty: all /vicepXX that are mounted or hold a file AlwaysAttach, and if there are none STATE/vicepa.
        partitions: Vec<String> = Vec::new();
        /// The BosConfig whose options for fileserver, volserver, vlserver and ptserver count where this file does not say otherwise. Empty: none.
        bos_config: PathBuf = PathBuf::new();
        /// NetInfo: which addresses are told to others. Empty: STATE/etc/NetInfo, if it is there.
        net_info: PathBuf = PathBuf::new();
        /// NetRestrict: which are not. Empty: STATE/etc/NetRestrict, if it is there.
        net_restrict: PathBuf = PathBuf::new();
    }

    /// UDP ports. 0 takes a free one, which only tests can find.
    section Ports as PortsFile in "ports" {
        /// The file service's.
        file: u16 = 7000;
        /// The volume service's.
        vol: u16 = 7005;
        /// The volume location database's.
        vl: u16 = 7003;
        /// The protection database's.
        pt: u16 = 7002;
        /// The overseer's.
        bos: u16 = 7007;
    }

    /// The transport.
    section Transport as TransportFile in "transport" {
        /// UDP receive buffer of each port in bytes; 0 takes as much as is useful (16 MiB, forced with CAP_NET_ADMIN).
        receive_buffer_bytes: u64 = 0;
        /// The largest packet to send, in bytes of UDP payload; 0 finds out what the path takes.
        max_packet_bytes: u32 = 0;
        /// Whether to listen only on the first of the addresses that are told to others, though bind says 0.0.0.0 (OpenAFS's -rxbind).
        one_address: bool = false;
    }

    /// Who clients are, and who may administer.
    section Security as SecurityFile in "security" {
        /// The level that authenticated clients need at least: "clear", "auth" or "crypt".
        min_level: Level = Level::Clear;
        /// Whether user.admin and user/admin may be the same user (OpenAFS's -allow-dotted-principals).
        allow_dotted_principals: bool = false;
        /// Whether the server starts with DES keys alone: whoever has seen a ticket finds such a key within hours, and is then anybody.
        allow_only_des: bool = false;
        /// Kerberos realms whose users are the cell's, besides those in krb.conf.
        realms: Vec<String> = Vec::new();
    }

    /// The file service.
    section FileService as FileServiceFile in "file" {
        /// Calls that are worked on at once.
        max_calls: u32 = 1024;
        /// Calls that wait for that, over all clients; beyond it clients are told to come later (VBUSY), whoever waits with the most first.
        busy_at: u32 = 4096;
        /// Callback promises that are kept in memory, some 100 bytes each; beyond it the machine whose clients hold the most loses those of its largest client, which is told.
        callbacks: u32 = 1_000_000;
        /// How long a user's or host's groups are remembered, in seconds.
        groups_seconds: u32 = 300;
        /// Whether nothing may be changed through the file service (OpenAFS's -readonly); the volume service changes volumes all the same.
        read_only: bool = false;
        /// Whether members of system:administrators may change things even so (-admin-write).
        administrators_write: bool = false;
        /// What members of system:administrators may do in every directory: letters of rlidwkaABCDEFGH, or none, read, write or all (-implicit). Access lists they may change in any case.
        administrators_rights: String = "la".to_owned();
        /// Whether access lists are taken in the form of clients before 1.8.0 and 1.6.23 too, which others could make a client send (CVE-2018-7168; -cve-2018-7168-enforce takes none).
        old_access_lists: bool = true;
    }

    /// Volumes on disk.
    section Volumes as VolumesFile in "volumes" {
        /// When changes are made to survive a loss of power: "always" before they are acknowledged, "interval" within a second, in the background.
        sync: Sync = Sync::Interval;
        /// MiB of each partition's file system that are left free: with less, it is full. Removals need some room too, two segments of the log.
        reserve_mib: u32 = 64;
        /// MiB of a segment of each partition's log, of which there are two or three. As much is kept in memory; a start after a crash reads twice that.
        log_mib: u32 = 32;
    }

    /// The volume service.
    section VolumeService as VolumeServiceFile in "vol" {
        /// Who may list volumes: "anyuser" or "admin".
        restricted_query: Query = Query::Anyuser;
        /// A transaction that nobody has used for so long is ended, in seconds.
        idle_transaction_seconds: u32 = 600;
    }

    /// The databases.
    section Databases as DatabasesFile in "databases" {
        /// Who may list the volume location database: "anyuser" or "admin".
        restricted_query: Query = Query::Anyuser;
        /// Whether only administrators may change the protection database.
        restricted: bool = false;
        /// Whether callers without a name may not ask the protection database who there is.
        restrict_anonymous: bool = false;
        /// How deep groups may be in groups; 0 is not at all.
        group_depth: u32 = 5;
        /// What may be seen of users by whom, unless it is set for a user: five letters or hyphens, as pts shows them.
        user_access: String = "S----".to_owned();
        /// The same for groups.
        group_access: String = "S-M--".to_owned();
        /// Addresses of the cell's database servers, where CellServDB is not to say. Empty: CellServDB.
        servers: Vec<Ipv4Addr> = Vec::new();
    }

    /// The log, which goes to stderr (the journal).
    section Log as LogFile in "log" {
        /// What is logged, as in "info", or "info,afs_fileserver=debug": error, warn, info, debug, trace.
        filter: String = "info".to_owned();
        /// "text" or "json".
        format: LogFormat = LogFormat::Text;
    }

    /// The audit log: a line of JSON for each change, with who, what, from where, and what came of it.
    section Audit as AuditFile in "audit" {
        /// The file. It is opened again on SIGHUP. Empty: STATE/audit.log.
        file: PathBuf = PathBuf::new();
        /// Whether there is one.
        enabled: bool = true;
        /// Whether changes of files and directories are in it too, not only those of access lists, volumes and databases.
        files: bool = false;
    }

    /// Metrics for Prometheus.
    section Metrics as MetricsFile in "metrics" {
        /// Where they can be fetched by HTTP, as in "127.0.0.1:9160". Nothing: nowhere.
        bind: Option<SocketAddr> = None;
    }
}
