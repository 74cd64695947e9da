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

            /// The keys of the section that a file sets.
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
    /// The overseer, port 7007: says what runs.
    Bos,
}

impl Role {
    /// All roles, in the order in which the server starts them: a role comes after those that it needs.
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

/// The least protection that an authenticated client must use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Any.
    Clear,
    /// Packets cannot be changed.
    Auth,
    /// Packets can be neither changed nor read.
    Crypt,
}

/// The time from which a change survives a power loss. It always survives the death of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// Before each is acknowledged.
    Always,
    /// Within a second, in the background.
    Interval,
}

/// The callers who may list volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Query {
    /// Everyone.
    Anyuser,
    /// Superusers.
    Admin,
}

/// What becomes of devices' tokens when it is not known which devices were revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Revocation {
    /// They are refused.
    Strict,
    /// They are taken.
    Lenient,
}

/// When volumes are encrypted on their way to another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// In all cases.
    Always,
    /// They are encrypted if the caller who orders it encrypts.
    Inherit,
    /// Never.
    Never,
}

/// The form of the log.
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
        /// The roles that run in this process: "file", "vol", "vl", "pt", "bos".
        roles: Vec<Role> = Role::ALL.to_vec();
        /// The folder for everything that the server keeps: the databases, the list of callback promises, sysid, and by default the configuration folder and the first partition.
        state: PathBuf = "/var/lib/afar".into();
        /// A server's configuration folder in OpenAFS's format, with ThisCell, CellServDB, KeyFileExt, UserList and krb.conf. Empty: STATE/etc/server.
        config_dir: PathBuf = PathBuf::new();
        /// The address to listen on. With 0.0.0.0 the server listens on all addresses; NetInfo and NetRestrict decide which of them it tells to others.
        bind: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
        /// Further addresses at which others reach this server, such as that of a router that forwards its ports. The server tells them to others, as the last ones.
        public: Vec<Ipv4Addr> = Vec::new();
        /// The name of the new cell that the server makes if the configuration folder does not exist yet.
        cell: String = "afar.local".to_owned();
        /// The name of the first administrator of that new cell.
        administrator: String = "admin".to_owned();
        /// The partitions: folders named /vicepXX, or "XX=FOLDER" for other folders. Empty: all /vicepXX that are mounted or hold a file AlwaysAttach; if there are none, STATE/vicepa.
        partitions: Vec<String> = Vec::new();
        /// An OpenAFS BosConfig. Its options for fileserver, volserver, vlserver and ptserver apply to keys that server.toml does not set. Empty: none.
        bos_config: PathBuf = PathBuf::new();
        /// A NetInfo file, which lists the addresses that the server tells to others. Empty: STATE/etc/NetInfo, if it exists.
        net_info: PathBuf = PathBuf::new();
        /// A NetRestrict file, which lists the addresses that the server does not tell. Empty: STATE/etc/NetRestrict, if it exists.
        net_restrict: PathBuf = PathBuf::new();
        /// The memory in MiB that the caches and tables of all these servers share. The section Memory says how they share it. The program itself takes about 40 MiB more.
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
        /// UDP receive buffer of each port, in bytes as the kernel counts them. 0: 32 MiB. The kernel grants at most twice net.core.rmem_max, except if this is 0 and the server has CAP_NET_ADMIN: then it grants 32 MiB in any case.
        receive_buffer_bytes: u64 = 0;
        /// The largest packet to send, in bytes of UDP payload. 0: the server finds out the largest size for each path.
        max_packet_bytes: u32 = 0;
        /// Whether to listen only on the first address that is told to others, even if bind is 0.0.0.0 (OpenAFS's -rxbind).
        one_address: bool = false;
        /// How many anonymous connections a host may have on each port. Beyond this, the server drops the host's oldest idle one.
        connections_of_host: u32 = 16_384;
        /// How many MiB of waiting data the file service's port keeps for all anonymous callers together. One host may have at most as much as is still free, so one host alone gets at most half. Clients send again what the server drops.
        strangers_mib: u32 = 128;
    }

    /// The identities of clients, and the users who may administer.
    section Security as SecurityFile in "security" {
        /// The lowest security level that an authenticated client may use: "clear", "auth" or "crypt".
        min_level: Level = Level::Clear;
        /// The same for clients that come with rxgk. The level is in their tokens: a client cannot choose a lower one.
        rxgk_min_level: Level = Level::Crypt;
        /// What becomes of devices' tokens when this server has not heard for ten minutes which devices were revoked: "strict" refuses them, "lenient" takes them.
        revocation: Revocation = Revocation::Strict;
        /// Whether user.admin and user/admin may be the same user (OpenAFS's -allow-dotted-principals).
        allow_dotted_principals: bool = false;
        /// Whether the server starts if all of its keys are DES keys. An attacker who has seen one ticket can find such a key within hours, and can then act as any user.
        allow_only_des: bool = false;
        /// Kerberos realms whose users are users of the cell, besides those in krb.conf.
        realms: Vec<String> = Vec::new();
    }

    /// The file service.
    section FileService as FileServiceFile in "file" {
        /// How many calls the file service works on at once.
        max_calls: u32 = 1024;
        /// How many calls may wait until the file service works on them, over all clients. Beyond this, the user or host with the most waiting calls gets VBUSY (try again later).
        busy_at: u32 = 4096;
        /// How many callback promises the server keeps in memory; each takes about 190 bytes. Beyond this, the server breaks all promises of one client, and tells that client. It chooses the machine whose clients hold the most promises, and of these the client with the most.
        callbacks: u32 = 1_000_000;
        /// For how many seconds the server remembers which groups a user or host is in.
        groups_seconds: u32 = 300;
        /// For how many milliseconds a change waits until clients have been told of it. A client that does not answer in this time is told later. With more, a client that vanished holds up the next change for longer; with less, slow clients show the old version for a moment. 100 to 3600000. Clients of afar count on about two seconds.
        callback_wait_ms: u32 = 1900;
        /// Whether the file service refuses all changes by clients (OpenAFS's -readonly). The volume service still changes volumes.
        read_only: bool = false;
        /// Whether members of system:administrators may change things even if file.read_only is true (OpenAFS's -admin-write).
        administrators_write: bool = false;
        /// What members of system:administrators may do in every directory (OpenAFS's -implicit): letters of rlidwkaABCDEFGH, or none, read, write or all. They may always change access lists.
        administrators_rights: String = "la".to_owned();
        /// Whether the server accepts access lists in the form that clients before 1.8.0 and 1.6.23 send. An attacker can make such a client send a list that its user did not want (CVE-2018-7168). OpenAFS's -cve-2018-7168-enforce turns this off.
        old_access_lists: bool = true;
    }

    /// Volumes on disk.
    section Volumes as VolumesFile in "volumes" {
        /// When a change is safe against a power loss: "always" means before it is acknowledged, "interval" within a second afterwards.
        sync: Sync = Sync::Interval;
        /// How many MiB of each partition's file system stay free. With less, the partition is full. This room is also needed to remove files: two segments of the log.
        reserve_mib: u32 = 64;
        /// The size of a segment of each partition's log, in MiB. The log has two or three segments. The server keeps the same amount in memory, and reads up to twice as much when it starts after a crash.
        log_mib: u32 = 32;
    }

    /// The volume service.
    section VolumeService as VolumeServiceFile in "vol" {
        /// The users who may list volumes: "anyuser" or "admin".
        restricted_query: Query = Query::Anyuser;
        /// After how many idle seconds the server ends a transaction.
        idle_transaction_seconds: u32 = 600;
        /// Whether volumes that this server sends to others are encrypted on their way: "always", "never", or "inherit", which means if vos encrypts its own calls. Receiving encrypted data costs OpenAFS's servers much time.
        encryption: Encryption = Encryption::Always;
        /// How many hourly snapshots the server keeps of each volume that has no schedule of its own: the first one of each of the last so many hours. The four numbers together are at most 2048. With all four 0 it makes and removes none.
        hourly_snapshots: u16 = 0;
        /// The same of days, in UTC.
        daily_snapshots: u16 = 0;
        /// The same of weeks, which begin on Mondays.
        weekly_snapshots: u16 = 0;
        /// The same of months.
        monthly_snapshots: u16 = 0;
        /// For how many days the server keeps what a removed volume was, so that `vos undelete` can bring it back. With 0 a removed volume is gone at once.
        undelete_days: u16 = 7;
    }

    /// The databases.
    section Databases as DatabasesFile in "databases" {
        /// The users who may list the volume location database: "anyuser" or "admin".
        restricted_query: Query = Query::Anyuser;
        /// Whether only administrators may change the protection database.
        restricted: bool = false;
        /// Whether the protection database hides the cell's users and groups from anonymous callers.
        restrict_anonymous: bool = false;
        /// How many levels deep groups may be nested in groups; 0 forbids it.
        group_depth: u32 = 5;
        /// What others may see of a user whose own flags are not set: five letters or hyphens, as pts shows them.
        user_access: String = "S----".to_owned();
        /// What others may see of a group whose own flags are not set, in the same form.
        group_access: String = "S-M--".to_owned();
        /// Addresses of the cell's database servers, to use instead of those in CellServDB. Empty: CellServDB.
        servers: Vec<Ipv4Addr> = Vec::new();
        /// The addresses of the etcd members that keep the databases, such as "http://192.0.2.7:2379". A cell with several database servers needs this, with the same value on each. Empty: a file in STATE/databases.
        etcd: Vec<String> = Vec::new();
        /// The prefix of all keys in etcd. Two cells in one etcd need different prefixes, and neither may begin with the other. Empty: /afar/ and the cell's name.
        etcd_prefix: String = String::new();
        /// A PEM file with the certificates of the authorities that signed the etcd members' certificates, for members at https://.
        etcd_ca: PathBuf = PathBuf::new();
        /// A PEM file with the certificate by which etcd knows this server. Empty: none.
        etcd_certificate: PathBuf = PathBuf::new();
        /// A PEM file with the key of that certificate.
        etcd_key: PathBuf = PathBuf::new();
        /// The user name with which the server logs in to etcd. Empty: none.
        etcd_user: String = String::new();
        /// A file with that user's password.
        etcd_password_file: PathBuf = PathBuf::new();
        /// For how many seconds the server answers look-ups from memory while etcd does not answer. After that, it tells clients to ask another server. With 0 it does so at once.
        memory_seconds: u32 = 3600;
    }

    /// The log, which goes to stderr (the journal).
    section Log as LogFile in "log" {
        /// The filter for log messages, such as "info" or "info,afs_fileserver=debug". The levels are error, warn, info, debug and trace.
        filter: String = "info".to_owned();
        /// "text" or "json".
        format: LogFormat = LogFormat::Text;
    }

    /// The audit log: a line of JSON for each change, with who, what, from where, and the result.
    section Audit as AuditFile in "audit" {
        /// The audit log's file. The server opens it again on SIGHUP. Empty: STATE/audit.log.
        file: PathBuf = PathBuf::new();
        /// Whether the server keeps an audit log.
        enabled: bool = true;
        /// Whether the audit log also has changes of files and directories, not only those of access lists, volumes and databases.
        files: bool = false;
    }

    /// Metrics for Prometheus.
    section Metrics as MetricsFile in "metrics" {
        /// The address at which Prometheus can fetch metrics over HTTP, such as "127.0.0.1:9160". Without this key, the server serves no metrics.
        bind: Option<SocketAddr> = None;
        /// Whether metrics.bind also serves current activity, for `afar top` and browsers. It contains the names of users, volumes and clients.
        activity: bool = true;
        /// Further host names that a browser may use in the address of that page, besides localhost, the machine's host name, and IP addresses.
        names: Vec<String> = Vec::new();
    }
}
