//! The configuration of a server: defaults, then what a BosConfig's `parm` lines say, then a TOML file, then the command
//! line. What a setting does is in `config/settings.rs`, the options of OpenAFS's servers in `config/parm.rs`.

mod parm;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

use afs_config::{BosConfig, ConfigError};
use afs_volume::Schedule;
use afs_wire::rights::Rights;
use serde::Deserialize;

use crate::memory::LEAST_MIB;

pub use parm::{Note, ParmError, Program};
pub use settings::{
    Audit, Databases, Encryption, FileService, General, KEYS, Key, Level, Log, LogFormat, Metrics, Ports,
    Query, Revocation, Role, Security, Sync, Transport, VolumeService, Volumes,
};
use settings::{
    AuditFile, DatabasesFile, FileServiceFile, GeneralFile, LogFile, MetricsFile, PortsFile, SecurityFile,
    TransportFile, VolumeServiceFile, VolumesFile,
};

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The settings of the process.
    pub server: General,
    /// UDP ports.
    pub ports: Ports,
    /// The transport.
    pub transport: Transport,
    /// The settings of who clients are.
    pub security: Security,
    /// The file service.
    pub file: FileService,
    /// Volumes on disk.
    pub volumes: Volumes,
    /// The volume service.
    pub vol: VolumeService,
    /// The databases.
    pub databases: Databases,
    /// The log.
    pub log: Log,
    /// The audit log.
    pub audit: Audit,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Notes to be logged about options that were accepted and do nothing.
    pub notes: Vec<Note>,
}

/// The contents of a TOML file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    server: GeneralFile,
    ports: PortsFile,
    transport: TransportFile,
    security: SecurityFile,
    file: FileServiceFile,
    volumes: VolumesFile,
    vol: VolumeServiceFile,
    databases: DatabasesFile,
    log: LogFile,
    audit: AuditFile,
    metrics: MetricsFile,
}

/// The reason why there is no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The TOML file cannot be read.
    #[error("cannot read the configuration {}: {why}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason, in the system's words.
        why: String,
    },
    /// It is not what it should be.
    #[error("{}: {}", .path.display(), .what.trim_end())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The place and the problem, in the words of the TOML parser.
        what: String,
    },
    /// A BosConfig is not what it should be.
    #[error("{0}")]
    BosConfig(ConfigError),
    /// An option of its `parm` lines cannot be honoured.
    #[error("{}, {error}", .path.display())]
    Parm {
        /// The file.
        path: PathBuf,
        /// The parameter's error.
        error: ParmError,
    },
    /// A setting makes no sense.
    #[error("{key}: {what}")]
    Setting {
        /// Section and key.
        key: &'static str,
        /// The problem with it, and what to do.
        what: String,
    },
}

impl Config {
    /// The defaults, with a TOML file over them, and between the two the BosConfig that it names.
    ///
    /// # Errors
    ///
    /// When one cannot be read, or something in it is not known.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = fs::read_to_string(path)
            .map_err(|error| LoadError::Unreadable { path: path.to_owned(), why: error.to_string() })?;
        Self::parse(&text, path)
    }

    /// The same from a text; `path` is for messages.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, LoadError> {
        let read = || {
            toml::from_str::<File>(text)
                .map_err(|error| LoadError::Toml { path: path.to_owned(), what: error.to_string() })
        };
        let mut peeked = General::default();
        read()?.server.apply(&mut peeked);
        let mut config = Self::default();
        if !peeked.bos_config.as_os_str().is_empty() {
            config.read_bos_config(&peeked.bos_config)?;
        }
        let file = read()?;
        file.server.apply(&mut config.server);
        file.ports.apply(&mut config.ports);
        file.transport.apply(&mut config.transport);
        file.security.apply(&mut config.security);
        file.file.apply(&mut config.file);
        file.volumes.apply(&mut config.volumes);
        file.vol.apply(&mut config.vol);
        file.databases.apply(&mut config.databases);
        file.log.apply(&mut config.log);
        file.audit.apply(&mut config.audit);
        file.metrics.apply(&mut config.metrics);
        config.check()?;
        Ok(config)
    }

    /// Honours the options of the servers that a BosConfig starts. Its roles become those of the file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or has an option that is not known or may not be ignored.
    pub fn read_bos_config(&mut self, path: &Path) -> Result<(), LoadError> {
        let bos = BosConfig::read(path).map_err(LoadError::BosConfig)?;
        self.server.bos_config = path.to_owned();
        let mut roles = vec![Role::Bos];
        for bnode in bos.bnodes.iter().filter(|bnode| bnode.is_enabled) {
            if let Some(note) = Note::of_bnode(bnode) {
                self.notes.push(note);
            }
            // Jobs are not run, whatever they would run.
            let commands = bnode.commands.iter().filter(|_| bnode.kind != "cron");
            for (program, command) in commands.filter_map(|c| Some((Program::parse(c.name())?, c))) {
                roles.extend(program.role());
                parm::apply(self, program, command)
                    .map_err(|error| LoadError::Parm { path: path.to_owned(), error })?;
            }
        }
        roles.sort_unstable();
        roles.dedup();
        self.server.roles = roles;
        Ok(())
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    ///
    /// Names the first that does not.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |key, what: &str| Err(LoadError::Setting { key, what: what.to_owned() });
        if self.server.roles.is_empty() {
            return wrong(
                "server.roles",
                "there is nothing to run: name at least one of file, vol, vl, pt, bos",
            );
        }
        if self.server.roles.contains(&Role::Vol) && !self.server.roles.contains(&Role::File) {
            return wrong(
                "server.roles",
                "the volume service shares the volumes with the file service: add \"file\"",
            );
        }
        if !self.server.state.is_absolute() {
            return wrong("server.state", "this must be an absolute path");
        }
        if afs_config::CellName::new(&self.server.cell).is_none() {
            return wrong(
                "server.cell",
                "this cannot be the name of a cell: use a domain name of at most 63 bytes",
            );
        }
        let is_nobodys = |address: &std::net::Ipv4Addr| address.is_unspecified() || address.is_multicast();
        if self.server.public.iter().any(is_nobodys) {
            return wrong("server.public", "these must be addresses at which a client can call");
        }
        if self.file.max_calls == 0 {
            return wrong("file.max_calls", "this must be at least 1");
        }
        if !(100..=3_600_000).contains(&self.file.callback_wait_ms) {
            return wrong("file.callback_wait_ms", "this must be 100 to 3600000");
        }
        if self.server.memory_mib < LEAST_MIB {
            return Err(LoadError::Setting {
                key: "server.memory_mib",
                what: format!("at least {LEAST_MIB} MiB are needed"),
            });
        }
        if self.transport.connections_of_host == 0 || self.transport.strangers_mib == 0 {
            return wrong(
                "transport.strangers_mib",
                "this and transport.connections_of_host must be at least 1, because every client begins as an anonymous caller",
            );
        }
        if !self.schedule().fits() {
            return wrong(
                "vol.hourly_snapshots",
                "this and the daily, weekly and monthly ones must be at most 2048 together",
            );
        }
        if self.volumes.log_mib == 0 {
            return wrong("volumes.log_mib", "at least 1 MiB is needed");
        }
        if parm::rights(&self.file.administrators_rights).is_none() {
            return wrong(
                "file.administrators_rights",
                "this must be letters of rlidwkaABCDEFGH, or none, read, write or all",
            );
        }
        let is_access = |text: &str| parm::access_bits(text).is_some();
        if !is_access(&self.databases.user_access) || !is_access(&self.databases.group_access) {
            return wrong(
                "databases.user_access",
                "this and databases.group_access must be five letters or hyphens, such as \"S-M--\"",
            );
        }
        self.check_etcd()?;
        if self.transport.max_packet_bytes != 0 && !(576..=16_384).contains(&self.transport.max_packet_bytes)
        {
            return wrong("transport.max_packet_bytes", "this must be 0, or 576 to 16384");
        }
        Ok(())
    }

    fn check_etcd(&self) -> Result<(), LoadError> {
        let wrong = |key, what: &str| Err(LoadError::Setting { key, what: what.to_owned() });
        let databases = &self.databases;
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        for (key, value) in
            [("databases.etcd_prefix", &databases.etcd_prefix), ("databases.etcd_user", &databases.etcd_user)]
        {
            if databases.etcd.is_empty() && !value.is_empty() {
                return wrong(key, "databases.etcd has no address, so the databases would be in a file");
            }
        }
        let is_secret = |url: &String| url.starts_with("https://");
        let count = databases.etcd.iter().filter(|url| is_secret(url)).count();
        if databases.etcd.iter().any(|url| !is_secret(url) && !url.starts_with("http://")) {
            return wrong("databases.etcd", "these must be addresses such as \"http://192.0.2.7:2379\"");
        }
        if count != 0 && count != databases.etcd.len() {
            return wrong("databases.etcd", "either all members have https://, or none");
        }
        if (count > 0) != is_set(&databases.etcd_ca) {
            return wrong(
                "databases.etcd_ca",
                "this is needed for members at https://, and must be empty for others",
            );
        }
        if is_set(&databases.etcd_certificate) != is_set(&databases.etcd_key) {
            return wrong("databases.etcd_key", "set both databases.etcd_certificate and this, or neither");
        }
        if count == 0 && is_set(&databases.etcd_certificate) {
            return wrong("databases.etcd_certificate", "this is only for members at https://");
        }
        if databases.etcd_user.is_empty() == is_set(&databases.etcd_password_file) {
            return wrong(
                "databases.etcd_password_file",
                "set both databases.etcd_user and this, or neither",
            );
        }
        Ok(())
    }

    /// The schedule by which snapshots are made of volumes that have none of their own.
    pub(crate) fn schedule(&self) -> Schedule {
        let vol = &self.vol;
        Schedule::of([vol.hourly_snapshots, vol.daily_snapshots, vol.weekly_snapshots, vol.monthly_snapshots])
    }

    /// The right to see and change users and groups, unless it is set for one: the bits for each.
    pub(crate) fn default_access(&self) -> (u8, u8) {
        let bits = |text: &str| parm::access_bits(text).expect("check() has seen it");
        (bits(&self.databases.user_access), bits(&self.databases.group_access))
    }

    /// The rights of administrators everywhere.
    pub(crate) fn administrators_rights(&self) -> Rights {
        parm::rights(&self.file.administrators_rights).expect("check() has seen it")
    }

    /// OpenAFS's configuration folder.
    pub fn config_dir(&self) -> PathBuf {
        or(&self.server.config_dir, || self.server.state.join("etc/server"))
    }

    /// The audit log's file.
    pub fn audit_file(&self) -> PathBuf {
        or(&self.audit.file, || self.server.state.join("audit.log"))
    }

    /// The path where NetInfo would be.
    pub fn net_info(&self) -> PathBuf {
        or(&self.server.net_info, || self.server.state.join("etc/NetInfo"))
    }

    /// The path where NetRestrict would be.
    pub fn net_restrict(&self) -> PathBuf {
        or(&self.server.net_restrict, || self.server.state.join("etc/NetRestrict"))
    }
}

fn or(path: &Path, default: impl FnOnce() -> PathBuf) -> PathBuf {
    if path.as_os_str().is_empty() { default() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, LoadError> {
        Config::parse(text, Path::new("F"))
    }

    #[test]
    fn a_file_replaces_what_it_names_and_nothing_else() {
        let config = parse(
            "[server]\nroles = [\"vl\", \"pt\"]\nbind = \"10.0.0.1\"\n[audit]\nfiles = true\n[metrics]\nbind = \"127.0.0.1:9160\"\n",
        )
        .unwrap();
        assert_eq!(config.server.roles, [Role::Vl, Role::Pt]);
        assert_eq!(config.server.bind.to_string(), "10.0.0.1");
        assert!(config.audit.files && config.audit.enabled);
        assert_eq!(config.metrics.bind.unwrap().port(), 9160);
        assert_eq!(config.file, FileService::default());
        assert_eq!(config.schedule(), Schedule::default());
        let scheduled = parse("[vol]\nhourly_snapshots = 24\nmonthly_snapshots = 12\n").unwrap();
        assert_eq!(scheduled.schedule().counts(), [24, 0, 0, 12]);
        assert_eq!(config.config_dir(), Path::new("/var/lib/afar/etc/server"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let check = |text: &str, parts: &[&str]| {
            let error = parse(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part} in: {error}");
            }
        };
        check("[server]\nstat = \"/x\"\n", &["F: ", "line 2", "`stat`", "`state`"]);
        check("[srever]\n", &["line 1", "`srever`", "`server`"]);
        check("[file]\nbusy_at = \"many\"\n", &["line 2", "string \"many\"", "u32"]);
        check("[volumes]\nsync = \"often\"\n", &["line 2", "`often`", "`always`"]);
        check("[server]\nroles = [\"vol\"]\n", &["server.roles", "add \"file\""]);
        check("[server]\nroles = []\n", &["server.roles", "at least one"]);
        check("[server]\nmemory_mib = 1\n", &["server.memory_mib", "at least 32 MiB"]);
        check("[file]\ncallback_wait_ms = 0\n", &["file.callback_wait_ms", "100 to 3600000"]);
        check("[transport]\nstrangers_mib = 0\n", &["transport.strangers_mib"]);
        check("[server]\nstate = \"x\"\n", &["server.state", "absolute"]);
        check("[server]\ncell = \"a b\"\n", &["server.cell"]);
        check(
            "[server]\nbos_config = \"/nowhere/BosConfig\"\n",
            &["/nowhere/BosConfig: there is no such file"],
        );
        let etcd = |more: &str| {
            format!("[databases]\netcd = [\"https://a:1\", \"https://b:1\"]\netcd_ca = \"/c\"\n{more}")
        };
        assert!(parse(&etcd("")).is_ok());
        check("[databases]\netcd = [\"a:1\"]\n", &["databases.etcd", "http://"]);
        check("[databases]\netcd = [\"http://a:1\", \"https://b:1\"]\n", &["databases.etcd", "or none"]);
        check("[databases]\netcd = [\"https://a:1\"]\n", &["databases.etcd_ca"]);
        check(&etcd("etcd_certificate = \"/c\"\n"), &["databases.etcd_key"]);
        check(&etcd("etcd_user = \"u\"\n"), &["databases.etcd_password_file"]);
        check(
            "[databases]\netcd = [\"http://a:1\"]\netcd_certificate = \"/c\"\netcd_key = \"/k\"\n",
            &["databases.etcd_certificate", "https://"],
        );
        check("[databases]\netcd_prefix = \"/afar/other/\"\n", &["databases.etcd_prefix", "in a file"]);
        check(
            "[databases]\netcd_user = \"u\"\netcd_password_file = \"/p\"\n",
            &["databases.etcd_user", "in a file"],
        );
        check(
            "[vol]\nhourly_snapshots = 2000\ndaily_snapshots = 49\n",
            &["vol.hourly_snapshots", "at most 2048 together"],
        );
        check("[file\n", &["line 1"]);
        let error = Config::load(Path::new("/nowhere/afar.toml")).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read the configuration /nowhere/afar.toml: No such file"),
            "{error}"
        );
    }

    #[test]
    fn every_key_is_in_the_administrators_guide_with_its_default() {
        let guide = include_str!("../../../docs/administration.md");
        let (_, guide) = guide.split_once("\n## Settings\n").expect("the guide has a section of settings");
        for key in KEYS {
            let name = format!("| `{}.{}` |", key.section, key.name);
            let rows: Vec<&str> = guide.lines().filter(|line| line.starts_with(&name)).collect();
            let [row] = rows[..] else { panic!("docs/administration.md has {} rows {name}", rows.len()) };
            assert!(
                row.contains(key.about),
                "docs/administration.md says of {name} something else than: {}",
                key.about
            );
            let default = row.split('|').nth(2).expect("it has three columns").trim();
            if default == "none" {
                assert_eq!(key.default, "None", "{name}");
                continue;
            }
            let default = if default == "all" { r#"["pt", "vl", "file", "vol", "bos"]"# } else { default };
            let text = format!("[{}]\n{} = {default}\n", key.section, key.name);
            assert_eq!(
                parse(&text).expect(&text),
                Config::default(),
                "the guide's default is another: {text}"
            );
        }
    }
}
