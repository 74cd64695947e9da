//! Programs under test as processes that do not outlive their test: commands that end, and servers that say "ready PORT".

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest time that a server may take until it serves, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The time between two looks whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A process; killed when it is dropped.
#[derive(Debug)]
struct Guard {
    child: Child,
    name: String,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only for one that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guard {
    fn start(command: &mut Command) -> Result<Self, String> {
        let name = describe(command);
        let child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { child, name })
    }

    fn wait(&mut self, patience: Duration) -> Result<ExitStatus, String> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
                Ok(None) => return Err(format!("{} does not end within {patience:?}", self.name)),
                Err(error) => return Err(format!("cannot wait for {}: {error}", self.name)),
            }
        }
    }
}

/// The program's name and its arguments.
fn describe(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut all = vec![program.file_name().unwrap_or(program.as_os_str())];
    all.extend(command.get_args());
    all.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

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
    guard: Guard,
    started: Instant,
    readers: [JoinHandle<String>; 2],
}

/// Starts a command.
///
/// # Errors
///
/// When it cannot be started.
pub fn start(command: &mut Command) -> Result<Running, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Before it runs: on a busy machine it may be well under way when we go on, and what takes a known time at least would seem
    // to take less.
    let started = Instant::now();
    let mut guard = Guard::start(command)?;
    let readers = [reader(guard.child.stdout.take()), reader(guard.child.stderr.take())];
    Ok(Running { guard, started, readers })
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
    pub fn finish(mut self, patience: Duration) -> Result<Finished, String> {
        let status = self.guard.wait(patience)?;
        let took = self.started.elapsed();
        let [stdout, stderr] = self.readers.map(|reader| reader.join().unwrap_or_default());
        Ok(Finished { status: status.code(), stdout, stderr, took })
    }

    /// True if it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.guard.child.try_wait(), Ok(None))
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read was not said; the status tells of the rest.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A server that runs, and says "ready PORT" once it does. Its standard input is a pipe, at whose end it may end as well.
#[derive(Debug)]
pub struct Server {
    guard: Guard,
    port: u16,
    _stdin: Option<ChildStdin>,
}

impl Server {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub fn start(command: &mut Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = Guard::start(command)?;
        let stdin = guard.child.stdin.take();
        let (lines, said) = mpsc::channel();
        if let Some(stdout) = guard.child.stdout.take() {
            // To its end, as a server that says more must not wait for a reader. Nobody listens behind the first line.
            thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)));
            });
        }
        let first = said.recv_timeout(START_TIMEOUT).map_err(|_| format!("{} does not start", guard.name))?;
        let port = first.strip_prefix("ready ").and_then(|port| port.parse().ok());
        let port = port.ok_or_else(|| format!("{} says {first:?} instead of its port", guard.name))?;
        Ok(Self { guard, port, _stdin: stdin })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it as its user would not: without a word to its clients.
    pub fn kill(self) {
        drop(self.guard);
    }
}
