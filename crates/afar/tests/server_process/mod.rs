//! An `afar server` for tests: on an address of its own in 127/8, with a state folder that goes with the test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) use afs_lab::real::address::own_address;
use afs_lab::real::process;

/// How long a server may take until it is ready, or until it has ended: far more than it needs, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder that is removed with it.
#[derive(Debug)]
pub(crate) struct StateFolder(PathBuf);

impl StateFolder {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("afar-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        // A test that failed has more to say than that its folder is still in use.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A running server; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    pub(crate) address: Ipv4Addr,
    /// What it printed when it was ready.
    pub(crate) ready: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// The command, with its log at warnings.
pub(crate) fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afar"));
    command.arg("server").args(args).env_remove("NOTIFY_SOCKET");
    command
}

impl ServerProcess {
    pub(crate) fn start(state: &StateFolder, more: &[&str]) -> Self {
        Self::start_at(state, own_address(), more)
    }

    pub(crate) fn start_at(state: &StateFolder, address: Ipv4Addr, more: &[&str]) -> Self {
        let mut command = command([OsStr::new("--state"), state.path().as_os_str()]);
        command.args(["--bind", &address.to_string()]).args(more);
        Self::of(command, address)
    }

    pub(crate) fn of(mut command: Command, address: Ipv4Addr) -> Self {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready "), "the server did not start: {ready:?}, {:?}", child.try_wait());
        Self { address, ready, child, stdout }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The next line that it prints.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Ends it as a service manager does, and says what it came to.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        wait(&mut self.child)
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    process::wait(child, TIMEOUT).unwrap().expect("the server does not end")
}

/// Runs a server that is to end by itself.
pub(crate) fn run(mut command: Command) -> Output {
    process::run(command.stdin(Stdio::null()), TIMEOUT)
}
