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
        /// The folder for everything that the server keeps: the databases, the list of callback promises, sysid, and by default the configuration folder and the first partition.
        state: PathBuf = "/var/lib/afar".into();
        /// A server's configuration folder in OpenAFS's format, with ThisCell, CellServDB, KeyFileExt, UserList and krb.conf. Empty: STATE/etc/server.
        config_dir: PathBuf = PathBuf::new();
        /// The address to listen on. With 0.0.0.0 the server listens on all addresses; NetInfo and NetRestrict decide which of them it tells to others.
        bind: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
        /// The name of the cell to make if the configuration folder does not exist yet.
        cell: String = "afar.local".to_owned();
        /// The administrator to make with that cell.
        administrator: String = "admin".to_owned();
        /// The partitions: folders named /vicepXX, or "XX=FOLDER" for other folders. Empty: all /vicepXX that are mounted or hold a file AlwaysAttach; if there are none, STATE/vicepa.
        partitions: Vec<String> = Vec::new();
        /// A BosConfig. Its options for fileserver, volserver, vlserver and ptserver apply where this file says nothing. Empty: none.
        bos_config: PathBuf = PathBuf::new();
        /// NetInfo: which addresses the server tells to others. Empty: STATE/etc/NetInfo, if it exists.
        net_info: PathBuf = PathBuf::new();
        /// NetRestrict: which addresses it does not tell. Empty: STATE/etc/NetRestrict, if it exists.
        net_restrict: PathBuf = PathBuf::new();
        /// The memory in MiB that the caches and tables of all these servers share; the section Memory says how. The program itself takes some 40 MiB besides.
        memory_mib: u32 = 1024;
    }

    /// UDP ports. With 0 the server takes a free port, which only tests can find.
    section Ports as PortsFile in "ports" {
        /// The file service's port.
        file: u16 = 7000;
        /// The volume service's port.
        vol: u16 = 7005;
        /// The volume location database's port.
        vl: u16 = 7003;
        /// The protection database's port.
        pt: u16 = 7002;
        /// The overseer's port.
        bos: u16 = 7007;
    }

    /// The transport.
    section Transport as TransportFile in "transport" {
        /// UDP receive buffer of each port, in bytes as the kernel counts them. 0: 32 MiB. Twice net.core.rmem_max is the most, except for 0 with CAP_NET_ADMIN, which forces 32 MiB.
        receive_buffer_bytes: u64 = 0;
        /// The largest packet to send, in bytes of UDP payload. 0: the server finds out what each path takes.
        max_packet_bytes: u32 = 0;
        /// Whether to listen only on the first address that is told to others, even if bind is 0.0.0.0 (OpenAFS's -rxbind).
        one_address: bool = false;
        /// How many connections a host may have without a user's name, on each port. Beyond it, the host's oldest connection without a call is forgotten.
        connections_of_host: u32 = 16_384;
        /// How many MiB of data all callers without a name together may leave waiting at the file service's port. A host may have as much as it leaves free, so half if it is alone; what is not kept, clients send again.
        strangers_mib: u32 = 64;
    }

    /// Who clients are, and who may administer.
    section Security as SecurityFile in "security" {
        /// The lowest security level that authenticated clients may use: "clear", "auth" or "crypt".
        min_level: Level = Level::Clear;
        /// Whether user.admin and user/admin may be the same user (OpenAFS's -allow-dotted-principals).
        allow_dotted_principals: bool = false;
        /// Whether the server starts if all of its keys are DES keys. Somebody who has seen a ticket finds such a key within hours and can then be any user.
        allow_only_des: bool = false;
        /// Kerberos realms whose users are users of the cell, besides those in krb.conf.
        realms: Vec<String> = Vec::new();
    }

    /// The file service.
    section FileService as FileServiceFile in "file" {
        /// How many calls the file service works on at once.
        max_calls: u32 = 1024;
        /// How many calls may wait for that, over all clients. Beyond it, the user or host with the most waiting calls is told to come later (VBUSY).
        busy_at: u32 = 4096;
        /// How many callback promises are kept in memory; each takes some 190 bytes. Beyond it, the machine whose clients hold the most loses all promises of its largest client, and that client is told.
        callbacks: u32 = 1_000_000;
        /// For how many seconds a user's or host's groups are remembered.
        groups_seconds: u32 = 300;
        /// Whether clients may change nothing through the file service (OpenAFS's -readonly). The volume service still changes volumes.
        read_only: bool = false;
        /// Whether members of system:administrators may change things even then (-admin-write).
        administrators_write: bool = false;
        /// What members of system:administrators may do in every directory (-implicit): letters of rlidwkaABCDEFGH, or none, read, write or all. They may always change access lists.
        administrators_rights: String = "la".to_owned();
        /// Whether access lists are accepted in the form of clients before 1.8.0 and 1.6.23. An attacker could make such a client send one (CVE-2018-7168; -cve-2018-7168-enforce accepts none).
        old_access_lists: bool = true;
    }

    /// Volumes on disk.
    section Volumes as VolumesFile in "volumes" {
        /// When a change survives a loss of power: "always" before it is acknowledged, "interval" within a second afterwards.
        sync: Sync = Sync::Interval;
        /// MiB of each partition's file system that stay free: with less, the partition is full. Removing files needs room too, two segments of the log.
        reserve_mib: u32 = 64;
        /// The size of a segment of each partition's log, in MiB. The log has two or three segments. The server keeps the same amount in memory, and reads up to twice as much when it starts after a crash.
        log_mib: u32 = 32;
    }

    /// The volume service.
    section VolumeService as VolumeServiceFile in "vol" {
        /// Who may list volumes: "anyuser" or "admin".
        restricted_query: Query = Query::Anyuser;
        /// After how many seconds a transaction that nobody uses is ended.
        idle_transaction_seconds: u32 = 600;
    }

    /// The databases.
    section Databases as DatabasesFile in "databases" {
        /// Who may list the volume location database: "anyuser" or "admin".
        restricted_query: Query = Query::Anyuser;
        /// Whether only administrators may change the protection database.
        restricted: bool = false;
        /// Whether the protection database tells anonymous callers nothing about who there is.
        restrict_anonymous: bool = false;
        /// How deep groups may be nested in groups; 0 forbids it.
        group_depth: u32 = 5;
        /// What others may see of a user, unless it is set for that user: five letters or hyphens, as pts shows them.
        user_access: String = "S----".to_owned();
        /// The same for groups.
        group_access: String = "S-M--".to_owned();
        /// Addresses of the cell's database servers, to use instead of those in CellServDB. Empty: CellServDB.
        servers: Vec<Ipv4Addr> = Vec::new();
        /// The members of the etcd that keeps the databases, such as "http://192.0.2.7:2379": for a cell with several database servers, the same on each. Empty: a file in STATE/databases.
        etcd: Vec<String> = Vec::new();
        /// What all keys in etcd begin with. Two cells in one etcd need different ones, neither of which begins with the other. Empty: /afar/ and the cell's name.
        etcd_prefix: String = String::new();
        /// For members at https://: the certificates, in PEM, of the authorities that have signed theirs.
        etcd_ca: PathBuf = PathBuf::new();
        /// The certificate, in PEM, by which etcd knows this server. Empty: none.
        etcd_certificate: PathBuf = PathBuf::new();
        /// The certificate's key, in PEM.
        etcd_key: PathBuf = PathBuf::new();
        /// The user that this server is in etcd. Empty: none.
        etcd_user: String = String::new();
        /// A file with that user's password.
        etcd_password_file: PathBuf = PathBuf::new();
        /// For how many seconds look-ups are answered from memory while etcd does not answer. Then, or at once with 0, clients are told to ask another server.
        memory_seconds: u32 = 3600;
    }

    /// The log, which goes to stderr (the journal).
    section Log as LogFile in "log" {
        /// What is logged, such as "info" or "info,afs_fileserver=debug". The levels are error, warn, info, debug and trace.
        filter: String = "info".to_owned();
        /// "text" or "json".
        format: LogFormat = LogFormat::Text;
    }

    /// The audit log: a line of JSON for each change, with who, what, from where, and the result.
    section Audit as AuditFile in "audit" {
        /// The audit log's file, which is opened again on SIGHUP. Empty: STATE/audit.log.
        file: PathBuf = PathBuf::new();
        /// Whether there is an audit log.
        enabled: bool = true;
        /// Whether it also has changes of files and directories, not only those of access lists, volumes and databases.
        files: bool = false;
    }

    /// Metrics for Prometheus.
    section Metrics as MetricsFile in "metrics" {
        /// Where Prometheus can fetch metrics over HTTP, such as "127.0.0.1:9160". Empty: nowhere.
        bind: Option<SocketAddr> = None;
        /// Whether the same port tells who does what, for `afar top` and browsers: this has the names of users, volumes and clients.
        activity: bool = true;
        /// Names under which a browser may show that, besides addresses, localhost and the machine's host name.
        names: Vec<String> = Vec::new();
    }
}
