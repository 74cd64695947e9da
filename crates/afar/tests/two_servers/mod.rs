//! A cell of two servers with two partitions each, and what its database and its partitions say of volumes. The databases are on the first, or on
//! a third server.

use crate::mounted::{Machines, our_program, suite};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;

use afs_lab::caller::{Client, Credentials, FileServer};
use afs_wire::ids::{AfsFid, VolumeId};
use rx_security::{KeySet, Level};
use serde_json::Value;

pub(crate) use crate::mounted::words;

const CELL: &str = "two.test";

/// The server of the databases, if they have one of their own.
pub(crate) const DATABASES: usize = 2;

pub(crate) struct TwoServers {
    machines: Machines,
    client: Client,
    keys: KeySet,
}

impl TwoServers {
    /// The first server has the databases.
    pub(crate) fn new(name: &str) -> Self {
        Self::with_roles(name, &[&["file", "vol", "vl", "pt", "bos"], &["file", "vol", "bos"]])
    }

    /// The databases have a third server, [`DATABASES`].
    pub(crate) fn beside_databases(name: &str) -> Self {
        Self::with_roles(name, &[&["file", "vol"], &["file", "vol"], &["vl", "pt"]])
    }

    fn with_roles(name: &str, roles: &[&[&str]]) -> Self {
        let mut machines = Machines::new(name, roles.len());
        for (n, roles) in roles.iter().enumerate() {
            let folder = machines.states[n].display();
            let partitions = format!("partitions = [\"a={folder}/vicepa\", \"b={folder}/vicepb\"]\n");
            machines.configure(n, CELL, roles, if roles.contains(&"file") { &partitions } else { "" });
        }
        machines.start_all(roles.iter().position(|roles| roles.contains(&"vl")).unwrap());
        let keys = KeySet::load(&machines.states[0].join("etc/server")).unwrap();
        let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self { machines, client, keys }
    }

    /// A command of `vos`; `ONE` and `TWO` stand for the servers' addresses.
    pub(crate) fn vos(&self, line: &str) -> Command {
        let names = [("ONE", self.addresses[0]), ("TWO", self.addresses[1])];
        suite(&self.states[0], &format!("vos {line}"), &names, "-localauth")
    }

    /// A command in the cell.
    pub(crate) fn afar(&self, args: &[&str]) -> Command {
        let mut command = our_program();
        command.args(args).arg("-config").arg(self.states[0].path().join("etc/server"));
        command
    }

    pub(crate) fn state(&self, server: usize) -> &Path {
        self.states[server].path()
    }

    pub(crate) fn address(&self, server: usize) -> Ipv4Addr {
        self.addresses[server]
    }

    pub(crate) fn does(&self, line: &str) -> String {
        let output = self.vos(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn fails(&self, line: &str) -> String {
        let output = self.vos(line).output().unwrap();
        assert!(!output.status.success(), "{line}: {}", words(&output));
        words(&output)
    }

    pub(crate) fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.does(&format!("{line} --json"))).unwrap()
    }

    /// Makes a volume.
    pub(crate) fn create(&self, server: &str, name: &str) -> VolumeId {
        id(&self.json(&format!("create {server} a {name} -maxquota 0"))["rw_id"])
    }

    fn name(&self, text: &Value) -> &'static str {
        let text = text.as_str().unwrap();
        let n = self.addresses.iter().position(|address| address.to_string() == text).unwrap();
        ["ONE", "TWO"][n]
    }

    /// Which servers and partitions an entry names, with the kind of volume there.
    pub(crate) fn sites(&self, name: &str) -> Vec<String> {
        let entry = self.json(&format!("listvldb -name {name}"));
        let site = |site: &Value| {
            let partition = site["partition"].as_str().unwrap();
            format!("{} {partition} {}", self.name(&site["server"]), site["type"].as_str().unwrap())
        };
        entry[0]["sites"].as_array().unwrap().iter().map(site).collect()
    }

    pub(crate) fn files(&self, server: usize) -> FileServer {
        self.files_at(server, Level::Clear)
    }

    /// The same by calls that are protected so well.
    pub(crate) fn files_at(&self, server: usize, level: Level) -> FileServer {
        let who = Credentials::user("admin", CELL, &self.keys).unwrap().at(level);
        self.client.file_server(self.addresses[server], &who)
    }

    /// No entry is locked, and no server has a transaction.
    pub(crate) fn nobody_waits(&self, when: &str) {
        for entry in self.json("listvldb").as_array().unwrap() {
            assert_eq!(entry["locks"].as_array().map(Vec::len), Some(0), "{when}: {entry}");
        }
        for server in ["ONE", "TWO"] {
            assert_eq!(self.json(&format!("status {server}")), Value::Array(Vec::new()), "{when}");
        }
    }

    /// What the database says that there is, and what there is, in the same words. Both say it of what is served.
    pub(crate) fn agree(&self, when: &str) {
        let mut said = BTreeSet::new();
        self.nobody_waits(when);
        for entry in self.json("listvldb").as_array().unwrap() {
            for site in entry["sites"].as_array().unwrap() {
                let place = format!("{} {}", self.name(&site["server"]), site["partition"].as_str().unwrap());
                let is_read_write = site["type"] == "RW";
                if is_read_write && entry["rw_exists"] == true {
                    said.insert(format!("{place} {} online", entry["rw_id"]));
                }
                if is_read_write && entry["backup_exists"] == true {
                    said.insert(format!("{place} {} online", entry["backup_id"]));
                }
                if !is_read_write && entry["ro_exists"] == true && site["released"] == true {
                    said.insert(format!("{place} {} online", entry["ro_id"]));
                }
                assert_eq!(site["new_release"], false, "{when}: {entry}");
            }
        }
        let mut found = BTreeSet::new();
        for server in ["ONE", "TWO"] {
            for volume in self.json(&format!("listvol {server}"))["volumes"].as_array().unwrap() {
                let state = if volume["online"] == true { "online" } else { "offline" };
                let partition = volume["partition"].as_str().unwrap();
                found.insert(format!("{server} {partition} {} {state}", volume["id"]));
            }
        }
        assert_eq!(said, found, "{when}: the database, and the partitions");
    }

    /// Ends what nobody ends any more, as an administrator does after a `vos` was killed.
    pub(crate) fn end_transactions(&self) {
        ["ONE", "TWO"].into_iter().for_each(|server| self.end_transactions_of(server));
    }

    /// The same at one server.
    pub(crate) fn end_transactions_of(&self, server: &str) {
        for transaction in self.json(&format!("status {server}")).as_array().unwrap() {
            // A call whose other end has gone has a transaction until it has noticed that.
            for _ in 0..60 {
                let line = format!("endtrans {server} {}", transaction["transaction"]);
                let output = self.vos(&line).output().unwrap();
                if output.status.success() || words(&output).contains("No such file") {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
        }
    }

    /// Kills a server, has its partitions checked, and starts it again.
    pub(crate) fn restart(&mut self, server: usize) {
        self.kill(server);
        self.check_partitions(server, "after kill -9");
        self.start(server);
    }

    /// Stops all, and has their partitions checked.
    pub(crate) fn check(&mut self, when: &str) {
        for server in (0..self.servers.len()).rev() {
            self.stop(server);
            self.check_partitions(server, when);
        }
    }

    /// Stops the servers of files one after the other, and has their partitions checked, before they start again.
    pub(crate) fn check_and_go_on(&mut self, when: &str) {
        for server in [0, 1] {
            self.stop(server);
            self.check_partitions(server, when);
            self.start(server);
        }
    }

    fn check_partitions(&self, server: usize, when: &str) {
        for partition in ["vicepa", "vicepb"] {
            let folder = self.states[server].path().join(partition);
            if folder.exists() {
                let output = our_program().arg("fsck").arg(&folder).output().unwrap();
                assert!(output.status.success(), "{when}: {}", words(&output));
            }
        }
    }
}

impl Deref for TwoServers {
    type Target = Machines;

    fn deref(&self) -> &Machines {
        &self.machines
    }
}

impl DerefMut for TwoServers {
    fn deref_mut(&mut self) -> &mut Machines {
        &mut self.machines
    }
}

fn id(value: &Value) -> VolumeId {
    VolumeId(value.as_u64().unwrap().try_into().unwrap())
}

/// Files of several lengths in a new volume.
pub(crate) async fn fill(files: &FileServer, volume: VolumeId, lengths: &[usize]) -> Vec<(AfsFid, Vec<u8>)> {
    let mut written = Vec::new();
    for (n, length) in lengths.iter().enumerate() {
        let bytes: Vec<u8> = (0..*length).map(|at| (at * (n + 7) / 5) as u8).collect();
        let fid = files.create_file(AfsFid::root_of(volume), &format!("file{n}")).await.unwrap().fid;
        files.store(fid, 0, bytes.clone(), bytes.len() as u64).await.unwrap();
        written.push((fid, bytes));
    }
    written
}

/// The volume has these files.
pub(crate) async fn has(files: &FileServer, volume: VolumeId, written: &[(AfsFid, Vec<u8>)], when: &str) {
    for (fid, bytes) in written {
        let found = files.fetch(AfsFid { volume, ..*fid }, 0, 1 << 30).await;
        assert!(found.unwrap_or_else(|error| panic!("{when}: {error}")) == *bytes, "{when}: {fid}");
    }
}
