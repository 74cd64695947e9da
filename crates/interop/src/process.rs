//! Programs under test as processes that do not outlive their test: commands that end, and servers that say "ready PORT".

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use afs_lab::real::process::{self, Process};

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Its exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The time that it took.
    pub took: Duration,
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    running: process::Running,
    started: Instant,
}

/// Bytes as our peers in C read them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Starts a command.
///
/// # Errors
///
/// When it cannot be started.
pub fn start(command: &mut Command) -> Result<Running, String> {
    // Before it runs: on a busy machine it may be well under way when we go on, and what takes a known time at least would seem
    // to take less.
    let started = Instant::now();
    Ok(Running { running: process::Running::start(command.stdin(Stdio::null()))?, started })
}

/// Runs a command to its end.
///
/// # Errors
///
/// When it cannot be started or does not end in time.
pub fn run(command: &mut Command, patience: Duration) -> Result<Finished, String> {
    start(command)?.finish(patience)
}

impl Running {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// When it does not end in time; it is killed then.
    pub fn finish(self, patience: Duration) -> Result<Finished, String> {
        let output = self.running.finish(patience)?;
        let took = self.started.elapsed();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Finished { status: output.status.code(), stdout, stderr, took })
    }

    /// True if it still runs.
    pub fn is_running(&mut self) -> bool {
        self.running.process.is_running()
    }
}

/// A server that runs, and says "ready PORT" once it does. Its standard input is a pipe, at whose end it may end as well.
#[derive(Debug)]
pub struct Server {
    process: Process,
    port: u16,
}

impl Server {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub fn start(command: &mut Command) -> Result<Self, String> {
        let process = Process::saying(command.stdin(Stdio::piped()), "ready ")?;
        let port = process.ready["ready ".len()..].parse();
        let port =
            port.map_err(|_| format!("{} says {:?} instead of its port", process.name(), process.ready))?;
        Ok(Self { process, port })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it as its user would not: without a word to its clients.
    pub fn kill(self) {
        drop(self.process);
    }
}
