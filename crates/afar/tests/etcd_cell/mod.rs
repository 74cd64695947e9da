//! A cell of several database servers over an etcd, all of them processes on loopback, for tests.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod faults;
mod ways;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use afs_testclient::Credentials;
use afs_testclient::etcd::{Etcd, available, skip};
use afs_wire::ids::{HostAddr, PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, NMAXNSERVERS, NvldbEntry, SiteFlags};
use rx_security::KeySet;
use rxgen::xdr::CharVec;

use ways::Way;

use crate::server_process::{ServerProcess, StateFolder, own_address};

/// Whether there can be an etcd here. If not, the test is counted as skipped.
pub(crate) fn is_here(test: &str) -> bool {
    match available() {
        Ok(()) => true,
        Err(reason) => {
            skip(test, &reason);
            false
        }
    }
}

/// What the VLDB is told of a new read-write volume, on a server that nobody asks.
pub(crate) fn volume_entry(name: &str, id: VolumeId) -> NvldbEntry {
    let sites: [u32; NMAXNSERVERS] = std::array::from_fn(|index| if index == 0 { 0x0a01_0101 } else { 0 });
    NvldbEntry {
        name: CharVec::from_text(name).unwrap(),
        n_servers: 1,
        server_number: sites.map(HostAddr),
        server_partition: [PartitionId(0); NMAXNSERVERS],
        server_flags: [SiteFlags(4); NMAXNSERVERS],
        volume_id: [id, VolumeId(0), VolumeId(0)],
        clone_id: VolumeId(0),
        flags: EntryFlags(0x1000),
        match_index: 0,
        spares: [0; 8],
    }
}

/// The cell.
#[derive(Debug)]
pub(crate) struct EtcdCell {
    pub(crate) etcd: Etcd,
    pub(crate) addresses: Vec<Ipv4Addr>,
    pub(crate) states: Vec<StateFolder>,
    pub(crate) servers: Vec<Option<ServerProcess>>,
    /// The ways of each server to each member, if they can be cut.
    ways: Vec<Vec<Way>>,
    name: &'static str,
    /// More lines of the section `databases`.
    more: &'static str,
}

impl EtcdCell {
    /// So many database servers over so many members of an etcd.
    pub(crate) fn start(name: &'static str, members: usize, servers: usize, more: &'static str) -> Self {
        Self::start_over(Etcd::start(name, members), Vec::new(), name, servers, more)
    }

    /// The same with ways between servers and members that can be cut.
    pub(crate) fn start_with_ways(
        name: &'static str,
        members: usize,
        servers: usize,
        more: &'static str,
    ) -> Self {
        let etcd = Etcd::start(name, members);
        let ways = || (0..members).map(|member| Way::to(etcd.port(member))).collect();
        let ways = (0..servers).map(|_| ways()).collect();
        Self::start_over(etcd, ways, name, servers, more)
    }

    /// The same over members with a network each, which can be cut from each other.
    pub(crate) fn start_apart(
        name: &'static str,
        members: usize,
        servers: usize,
        more: &'static str,
    ) -> Result<Self, String> {
        Ok(Self::start_over(Etcd::start_apart(name, members)?, Vec::new(), name, servers, more))
    }

    fn start_over(
        etcd: Etcd,
        ways: Vec<Vec<Way>>,
        name: &'static str,
        servers: usize,
        more: &'static str,
    ) -> Self {
        let mut cell = Self {
            etcd,
            addresses: (0..servers).map(|_| own_address()).collect(),
            states: (0..servers).map(|_| StateFolder::new(name)).collect(),
            servers: (0..servers).map(|_| None).collect(),
            ways,
            name,
            more,
        };
        for server in 0..servers {
            cell.configure(server);
            if server > 0 {
                cell.copy_keys(server);
            }
            cell.restart(server);
        }
        cell
    }

    /// The file of a server's configuration.
    pub(crate) fn config(&self, server: usize) -> PathBuf {
        self.states[server].path().join("server.toml")
    }

    fn configure(&self, server: usize) {
        let list =
            |items: Vec<String>| items.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", ");
        let text = format!(
            "[server]\nroles = [\"vl\", \"pt\", \"bos\"]\ncell = \"{}.test\"\nstate = {:?}\nbind = \"{}\"\n\
             [databases]\netcd = [{}]\nservers = [{}]\n{}\n[log]\nfilter = \"warn\"\n[metrics]\nbind = \"{}:9160\"\n",
            self.name,
            self.states[server].path(),
            self.addresses[server],
            list(match self.ways.get(server) {
                Some(ways) => ways.iter().map(Way::address).collect(),
                None => self.etcd.endpoints(),
            }),
            list(self.addresses.iter().map(Ipv4Addr::to_string).collect()),
            self.more,
            self.addresses[server],
        );
        self.states[server].write("server.toml", &text);
    }

    /// Gives a server the configuration folder of the first, as an administrator does.
    pub(crate) fn copy_keys(&self, server: usize) {
        let to = self.states[server].path().join("etc");
        std::fs::create_dir_all(&to).unwrap();
        let from = self.states[0].path().join("etc/server");
        assert!(Command::new("cp").arg("-rp").args([from, to]).status().unwrap().success());
    }

    /// Starts a server that does not run.
    pub(crate) fn restart(&mut self, server: usize) {
        let command = self.command(server, &[]);
        self.servers[server] = Some(ServerProcess::of(command, self.addresses[server]));
    }

    /// The command that starts a server.
    pub(crate) fn command(&self, server: usize, more: &[&str]) -> Command {
        let mut command = crate::server_process::command(["--config"]);
        command.arg(self.config(server)).args(more);
        command
    }

    /// Who may change everything.
    pub(crate) fn superuser(&self) -> Credentials {
        Credentials::superuser(&KeySet::load(&self.states[0].path().join("etc/server")).unwrap()).unwrap()
    }
}
