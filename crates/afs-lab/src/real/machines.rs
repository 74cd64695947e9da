//! Machines of a cell, each with `afar server` at an address of its own and a state folder that goes with the test. In virtual time,
//! `src/sim/cell.rs` has the same.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};

use super::address::own_address;
use super::afar;
use super::folder::Folder;
use super::process::{self, Process};
use super::wait::PATIENCE;

/// A running server; killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    /// Its address.
    pub address: Ipv4Addr,
    process: Process,
}

impl Server {
    /// Starts one with a state folder.
    pub fn start(state: &Folder, more: &[&str]) -> Self {
        Self::start_at(state, own_address(), more)
    }

    /// The same at an address that is known already.
    pub fn start_at(state: &Folder, address: Ipv4Addr, more: &[&str]) -> Self {
        let mut command = afar::server([OsStr::new("--state"), state.path().as_os_str()]);
        command.args(["--bind", &address.to_string()]).args(more);
        Self::of(command, address)
    }

    /// The server that a command starts.
    pub fn of(command: Command, address: Ipv4Addr) -> Self {
        Self { address, process: Process::start(command, None) }
    }

    /// Ends it as a service manager does, and says what it came to.
    pub fn stop(self) -> ExitStatus {
        self.process.stop()
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Runs a server that is to end by itself.
pub fn run(mut command: Command) -> Output {
    process::run(&mut command, PATIENCE)
}

/// The machines.
#[derive(Debug)]
pub struct Machines {
    /// Their state folders, each with its `server.toml`.
    pub states: Vec<Folder>,
    /// Their addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// The servers that run.
    pub servers: Vec<Option<Server>>,
}

impl Machines {
    /// Machines on which nothing runs yet.
    pub fn new(name: &str, count: usize) -> Self {
        Self {
            states: (0..count).map(|_| Folder::new(name)).collect(),
            addresses: (0..count).map(|_| own_address()).collect(),
            servers: (0..count).map(|_| None).collect(),
        }
    }

    /// Writes a machine's `server.toml`: what all have, and more lines, of which the first are of its section `server`.
    pub fn configure(&self, machine: usize, cell: &str, roles: &[&str], more: &str) {
        let text = format!(
            "[server]\nstate = {:?}\nbind = \"{}\"\ncell = \"{cell}\"\nroles = {roles:?}\n{more}",
            self.states[machine].path(),
            self.addresses[machine]
        );
        self.states[machine].write("server.toml", text);
    }

    /// Starts all. The first of these makes the cell's key, and the others get it as administrators give it.
    pub fn start_all(&mut self, first: usize) {
        self.start(first);
        for machine in (0..self.states.len()).filter(|machine| *machine != first) {
            self.copy_keys(first, machine);
            self.start(machine);
        }
    }

    /// Gives a machine the configuration folder of another, with the cell's key.
    ///
    /// # Panics
    ///
    /// If it cannot be copied.
    pub fn copy_keys(&self, from: usize, to: usize) {
        let (from, to) = (self.states[from].join("etc/server"), self.states[to].inner("etc"));
        let copied = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.is_ok_and(|status| status.success()), "the keys cannot be copied");
    }

    /// The file of a machine's configuration.
    pub fn config(&self, machine: usize) -> PathBuf {
        self.states[machine].join("server.toml")
    }

    /// The command that starts a machine's server.
    pub fn command(&self, machine: usize, more: &[&str]) -> Command {
        let mut command = afar::server(["--config"]);
        command.arg(self.config(machine)).args(more);
        command
    }

    /// Starts a server that does not run.
    pub fn start(&mut self, machine: usize) {
        self.servers[machine] = Some(Server::of(self.command(machine, &[]), self.addresses[machine]));
    }

    /// Ends a server as `kill -9` does, if it runs.
    pub fn kill(&mut self, machine: usize) {
        if let Some(mut server) = self.servers[machine].take() {
            server.kill();
        }
    }

    /// Ends a server that runs as a service manager does.
    ///
    /// # Panics
    ///
    /// If it does not run, or does not end.
    pub fn stop(&mut self, machine: usize) -> ExitStatus {
        self.servers[machine].take().expect("it runs").stop()
    }

    /// The number of a server's process.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn pid(&self, machine: usize) -> u32 {
        self.servers[machine].as_ref().expect("it runs").pid()
    }
}
