//! Our client as the mount of a cell, `afar mount`, where clients are in the cell's network; and the scripts of interop/programs, which do
//! in a mount what programs do. What the cell is, is left to `cell`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::cell::Cell;
use crate::process;

/// The longest time that a mount may take to come up, or to go with all that is not stored.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The time between two looks whether it has gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// `afar mount`; dropped, it is unmounted and its cache is gone.
#[derive(Debug)]
pub struct OurMount {
    folder: PathBuf,
    child: Child,
}

impl OurMount {
    /// Mounts a cell from where its clients are. `afar` is our program, `options` are more of `afar mount`.
    ///
    /// # Errors
    ///
    /// When it is not mounted, with what it said.
    pub fn start(cell: &Cell, afar: &Command, options: &[&str]) -> Result<Self, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("afar-mount-{}-{number}", std::process::id()));
        let at = |name: &str| folder.join(name);
        for name in ["mnt", "cache"] {
            fs::create_dir_all(at(name)).map_err(|error| format!("{}: {error}", at(name).display()))?;
        }
        let network = cell.clients()?;
        let mut command = network.command(afar.get_program());
        command.arg("mount").arg(at("mnt")).arg("--config").arg(cell.folder("srv").join("etc"));
        command.arg("--cache").arg(at("cache")).args(options);
        let log = fs::File::create(at("log")).map_err(|error| format!("{}: {error}", at("log").display()))?;
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = command.spawn().map_err(|error| format!("afar mount cannot be started: {error}"))?;
        let mut mount = Self { folder, child };
        let stdout = mount.child.stdout.take();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let lines = stdout.map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok));
            // Nobody listens behind the first line.
            lines.into_iter().flatten().for_each(|line| drop(tell.send(line)));
        });
        match told.recv_timeout(TIMEOUT) {
            Ok(line) if line.starts_with("ready ") => Ok(mount),
            _ => Err(format!("afar mount is not ready: {}", mount.said())),
        }
    }

    /// The mount point; a folder in it for each cell.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// The text that it has logged.
    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Unmounts it in order.
    ///
    /// # Errors
    ///
    /// When it does not end, or ends with a failure.
    pub fn stop(mut self) -> Result<(), String> {
        self.end()?;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            status => Err(format!("afar mount ended with {status:?}: {}", self.said())),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        let pid = self.child.id().to_string();
        process::run(Command::new("kill").args(["-s", "TERM", &pid]), TIMEOUT)?;
        let until = Instant::now() + TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                return Err(format!("afar mount does not end: {}", self.said()));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for OurMount {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.end().is_err() {
            // What hangs is ended by force, and what is mounted goes with the last who uses it.
            drop(self.child.kill());
            drop(self.child.wait());
        }
        drop(process::run(Command::new("umount").arg("-lq").arg(self.path()), TIMEOUT));
        drop(process::run(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&self.folder), TIMEOUT));
    }
}

/// Runs a script of interop/programs in a folder of a mount and in one of the local disk. `root` is the folder of this repository.
///
/// # Errors
///
/// When something is not the same, with what the script says.
pub fn work(
    root: &Path,
    script: &str,
    mounted: &Path,
    local: &Path,
    settings: &[(&str, &str)],
    patience: Duration,
) -> Result<String, String> {
    let mut command = Command::new(root.join("interop/programs").join(script).with_extension("sh"));
    command.arg(mounted).arg(local).envs(settings.iter().copied());
    let done = process::run(&mut command, patience)?;
    match done.status {
        Some(0) => Ok(done.stdout),
        status => {
            let said = [done.stdout, done.stderr].concat();
            let last: Vec<&str> = said.lines().rev().take(40).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            Err(format!("{script} ended with {status:?} after {:?}:\n{}", done.took, last.join("\n")))
        }
    }
}
