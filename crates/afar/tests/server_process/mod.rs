//! An `afar server` for tests: on an address of its own in 127/8, with a state folder that goes with the test.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::mounted::{interruptible, our_program};
pub(crate) use afs_lab::real::address::own_address;
pub(crate) use afs_lab::real::folder::Folder;
use afs_lab::real::process::{self, Process};

/// How long a server may take until it is ready, or until it has ended: far more than it needs, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    pub(crate) address: Ipv4Addr,
    process: Process,
}

/// A command of our suites, given as a line, that asks a server with this state and rights such as `-localauth`. Names such as `ONE`
/// stand for addresses. Ctrl-C ends it even where the tests run in the background of a script.
pub(crate) fn suite(state: &Path, line: &str, names: &[(&str, Ipv4Addr)], rights: &str) -> Command {
    let mut command = interruptible(env!("CARGO_BIN_EXE_afar"));
    for word in line.split_whitespace() {
        match names.iter().find(|(name, _)| *name == word) {
            Some((_, address)) => command.arg(address.to_string()),
            None => command.arg(word),
        };
    }
    command.args([rights, "-config"]).arg(state.join("etc/server"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a command has said, all of it.
pub(crate) fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The command, with its log at warnings.
pub(crate) fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = our_program();
    command.arg("server").args(args).env_remove("NOTIFY_SOCKET");
    command
}

impl ServerProcess {
    pub(crate) fn start(state: &Folder, more: &[&str]) -> Self {
        Self::start_at(state, own_address(), more)
    }

    pub(crate) fn start_at(state: &Folder, address: Ipv4Addr, more: &[&str]) -> Self {
        let mut command = command([OsStr::new("--state"), state.path().as_os_str()]);
        command.args(["--bind", &address.to_string()]).args(more);
        Self::of(command, address)
    }

    pub(crate) fn of(mut command: Command, address: Ipv4Addr) -> Self {
        command.stdin(Stdio::null());
        Self { address, process: Process::start(command, None) }
    }

    /// Ends it as a service manager does, and says what it came to.
    pub(crate) fn stop(self) -> ExitStatus {
        self.process.stop()
    }
}

impl Deref for ServerProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for ServerProcess {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Runs a server that is to end by itself.
pub(crate) fn run(mut command: Command) -> Output {
    process::run(command.stdin(Stdio::null()), TIMEOUT)
}
