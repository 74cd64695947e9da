//! Programs that tests run, and that do not outlive them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::wait::PATIENCE;

/// The time between two looks whether a program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A program that runs. Dropped, it is killed, and what it has mounted is unmounted.
#[derive(Debug)]
pub struct Process {
    /// The child, for its input and its output.
    pub child: Child,
    /// The line that it printed when it was ready; empty for one that is not to say so.
    pub ready: String,
    name: String,
    mount: Option<PathBuf>,
    lines: Option<Mutex<mpsc::Receiver<String>>>,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self, String> {
        let name = described(command);
        let child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { child, ready: String::new(), name, mount: None, lines: None })
    }

    /// Starts a program.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn of(command: &mut Command) -> Self {
        Self::spawn(command).unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Starts one whose first line is to begin so, and waits for that line.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or says something else.
    pub fn saying(command: &mut Command, begin: &str) -> Result<Self, String> {
        let mut process = Self::spawn(command.stdout(Stdio::piped()))?;
        let stdout = process.child.stdout.take();
        let (tell, lines) = mpsc::channel();
        // To its end, as a program that says more must not wait for a reader.
        thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            lines.map_while(Result::ok).for_each(|line| drop(tell.send(line)));
        });
        process.ready = lines.recv_timeout(PATIENCE).unwrap_or_default();
        if !process.ready.starts_with(begin) {
            let ended = process.wait(Duration::from_secs(1));
            return Err(format!("{} does not start: {:?}, {ended:?}", process.name, process.ready));
        }
        process.lines = Some(Mutex::new(lines));
        Ok(process)
    }

    /// Starts a server or a client of ours, and waits until it says that it is ready. It mounts something there, if so.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(mut command: Command, mount: Option<PathBuf>) -> Self {
        let mut process = Self::saying(&mut command, "ready ").unwrap_or_else(|problem| panic!("{problem}"));
        process.mount = mount;
        process
    }

    /// The same process, which has mounted something there.
    #[must_use]
    pub fn mounting(mut self, mount: PathBuf) -> Self {
        self.mount = Some(mount);
        self
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The program's name and its arguments.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next line that a program prints that was waited for; empty if it prints no more.
    pub fn next_line(&self) -> String {
        let lines = self.lines.as_ref().map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner));
        lines.and_then(|lines| lines.recv_timeout(PATIENCE).ok()).unwrap_or_default()
    }

    /// Sends it a signal, as [`signal`] does.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Ends it as `kill -9` does; what it has mounted stays, dead.
    ///
    /// # Panics
    ///
    /// If it is no child any more.
    pub fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("a child");
    }

    /// True if it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for it to end by itself, for so long.
    ///
    /// # Panics
    ///
    /// If it is no child any more.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        wait(&mut self.child, patience).expect("a child")
    }

    /// Ends it as a service manager does.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait(PATIENCE).unwrap_or_else(|| panic!("{} does not end", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(mount) = &self.mount {
            unmount(mount);
        }
    }
}

/// Unmounts what is mounted there, if something is, though it may be in use.
fn unmount(mount: &Path) {
    let program = match rustix::process::geteuid().is_root() {
        true => ("umount", "-l"),
        false => ("fusermount3", "-uz"),
    };
    drop(Command::new(program.0).arg(program.1).arg(mount).stderr(Stdio::null()).status());
}

/// The program's name and its arguments.
fn described(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut all = vec![program.file_name().unwrap_or(program.as_os_str())];
    all.extend(command.get_args());
    all.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

/// Sends a signal from this process: a child would close the test's files as it begins, and a mount that is stopped hears of
/// each close.
///
/// # Panics
///
/// If there is no such process, or no such signal here.
pub fn signal(pid: u32, name: &str) {
    let signal = match name {
        "ALRM" => Signal::ALARM,
        "CHLD" => Signal::CHILD,
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        _ => panic!("no signal of these tests: {name}"),
    };
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
    kill_process(pid, signal).expect("it runs");
}

/// Waits for a program's end, for so long.
///
/// # Errors
///
/// The system's.
pub fn wait(child: &mut Child, patience: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(LOOK_EVERY);
    }
    // Who waits may have had no processor for longer than the program.
    child.try_wait()
}

/// Finds a program as the shell does.
pub fn find(program: &str) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH")?, program)
}

/// Finds a program in the folders of a path as `PATH` is one.
pub fn find_in(path: impl AsRef<OsStr>, program: &str) -> Option<PathBuf> {
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a program to its end: what it says is read while it runs, since a pipe has no room for all of that.
///
/// # Panics
///
/// If it cannot be run, or does not end within so long.
pub fn run(command: &mut Command, patience: Duration) -> Output {
    let running = Running::start(command).unwrap_or_else(|problem| panic!("{problem}"));
    running.finish(patience).unwrap_or_else(|problem| panic!("{problem}"))
}

/// A program that runs, and whose output is read meanwhile.
#[derive(Debug)]
pub struct Running {
    /// The program.
    pub process: Process,
    readers: [thread::JoinHandle<Vec<u8>>; 2],
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, String> {
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let readers = [reader(process.child.stdout.take()), reader(process.child.stderr.take())];
        Ok(Self { process, readers })
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// When it does not end in time; it is killed then.
    pub fn finish(mut self, patience: Duration) -> Result<Output, String> {
        let status = self.process.wait(patience);
        let status =
            status.ok_or_else(|| format!("{} does not end within {patience:?}", self.process.name))?;
        let [stdout, stderr] = self.readers.map(|reader| reader.join().unwrap_or_default());
        Ok(Output { status, stdout, stderr })
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read was not said; the status tells of the rest.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}
