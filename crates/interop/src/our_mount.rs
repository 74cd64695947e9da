//! Our client as the mount of a cell, `afar mount`, where clients are in the cell's network; and the scripts of interop/programs, which do
//! in a mount what programs do. What the cell is, is left to `cell`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use afs_lab::real::folder::Folder;
use afs_lab::real::mount;
use afs_lab::real::process::Process;

use crate::cell::Cell;
use crate::process;

/// `afar mount`; dropped, it is unmounted and its cache is gone.
#[derive(Debug)]
pub struct OurMount {
    // Before the folder in which it is mounted.
    process: Process,
    folder: Folder,
}

impl OurMount {
    /// Mounts a cell from where its clients are. `afar` is our program, `options` are more of `afar mount`.
    ///
    /// # Errors
    ///
    /// When it is not mounted, with what it said.
    pub fn start(cell: &Cell, afar: &Command, options: &[&str]) -> Result<Self, String> {
        Self::start_on(Folder::new("mount"), cell, afar, options)
    }

    /// The same with what another one has left ([`Self::kill`]).
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_on(folder: Folder, cell: &Cell, afar: &Command, options: &[&str]) -> Result<Self, String> {
        let (at, cache, config) =
            (folder.inner("mnt"), folder.inner("cache"), cell.folder("srv").join("etc"));
        let command = cell.clients()?.command(afar.get_program());
        let process = mount::start(command, &at, &config, &cache, &folder.join("log"), options)?;
        Ok(Self { process, folder })
    }

    /// The mount point; a folder in it for each cell.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// The control socket of its client, for a command that is to have no other one: `aklog` gives its tokens to all clients of a cell, and
    /// the cells of all cases have one name.
    ///
    /// # Errors
    ///
    /// When it is not mounted.
    pub fn socket(&self) -> Result<String, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let at = format!(" {} ", self.path().display());
        let line = mounts.lines().find(|line| line.contains(&at));
        let source = line.and_then(|line| line.split(" - fuse.afar afs:").nth(1)?.split(' ').next());
        Ok(source.ok_or_else(|| format!("{} is not mounted", self.path().display()))?.to_owned())
    }

    /// Data that it has put aside.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn conflicts(&self) -> std::io::Result<Vec<Vec<u8>>> {
        let folder = self.folder.join("cache/conflicts");
        let mut data = Vec::new();
        if !folder.exists() {
            return Ok(data);
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "txt") {
                data.push(fs::read(path)?);
            }
        }
        Ok(data)
    }

    /// Kills its client as `kill -9` does, and unmounts it. Returns the folder with its cache.
    pub fn kill(mut self) -> Folder {
        self.process.kill();
        self.folder
    }

    /// The text that it has logged.
    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Unmounts it in order.
    ///
    /// # Errors
    ///
    /// When it ends with a failure.
    pub fn stop(self) -> Result<(), String> {
        let said = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        match self.process.stop() {
            status if status.success() => Ok(()),
            status => Err(format!("afar mount ended with {status}: {}", said())),
        }
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
