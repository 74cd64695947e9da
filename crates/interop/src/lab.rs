//! The programs under test, built once before all cases, and what is missing on this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_lab::real::process::find;
use linkem::Link;

use crate::cell::{self, Cell, Machine, Servers};
use crate::network::Kind;
use crate::process;
use crate::suite::Trouble;

/// A build may wait for another one, and take a few minutes by itself.
const BUILD_TIMEOUT: Duration = Duration::from_secs(900);

/// The tools of the tests. Each thing is there, or a reason why it is not.
pub struct Lab {
    root: PathBuf,
    afar: Result<PathBuf, String>,
    oafs_peer: Result<PathBuf, Trouble>,
    gss_peer: Result<PathBuf, Trouble>,
    rxdebug: Result<PathBuf, String>,
    links: Result<(), String>,
    shared_links: Mutex<Vec<(Kind, Arc<Link>)>>,
}

impl Lab {
    /// Builds and looks for it all.
    ///
    /// # Panics
    ///
    /// When this program is not where cargo puts tests.
    pub fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let exe = env::current_exe().expect("a test knows its own file");
        // target/PROFILE/deps/interop-...
        let profile = exe.ancestors().nth(2).expect("cargo puts tests two folders deep").to_path_buf();
        Self {
            afar: build_afar(&root, &profile),
            oafs_peer: build_peer(&root, &profile, "oafs-peer", ("rx/rx.h", "libopenafs-dev")),
            gss_peer: build_peer(&root, &profile, "gss-peer", ("gssapi/gssapi.h", "libkrb5-dev")),
            rxdebug: find("rxdebug")
                .ok_or_else(|| "there is no rxdebug here: Debian's openafs-client has it".to_owned()),
            links: linkem::available(),
            shared_links: Mutex::default(),
            root,
        }
    }

    /// Our program.
    ///
    /// # Errors
    ///
    /// When it could not be built.
    pub fn afar(&self) -> Result<Command, Trouble> {
        self.afar.as_ref().map(Command::new).map_err(|reason| Trouble::Failed(reason.clone()))
    }

    /// The stock peer.
    ///
    /// # Errors
    ///
    /// When it cannot be built here.
    pub fn oafs_peer(&self) -> Result<&Path, Trouble> {
        self.oafs_peer.as_deref().map_err(Clone::clone)
    }

    /// MIT Kerberos's GSS-API as a peer.
    ///
    /// # Errors
    ///
    /// When it cannot be built here.
    pub fn gss_peer(&self) -> Result<&Path, Trouble> {
        self.gss_peer.as_deref().map_err(Clone::clone)
    }

    /// Debian's rxdebug.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn rxdebug(&self) -> Result<Command, Trouble> {
        self.rxdebug.as_ref().map(Command::new).map_err(|reason| Trouble::Skipped(reason.clone()))
    }

    /// Checks that links between namespaces can be made.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn links(&self) -> Result<(), Trouble> {
        self.links.clone().map_err(Trouble::Skipped)
    }

    /// The links that cases share, made by the first that needs one.
    pub(crate) fn shared_links(&self) -> MutexGuard<'_, Vec<(Kind, Arc<Link>)>> {
        self.shared_links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cell of its own for the caller.
    ///
    /// # Errors
    ///
    /// When a cell cannot be started here, or this one does not come up.
    pub fn cell(&self, machine: &Machine) -> Result<Cell, Trouble> {
        cell::available().map_err(Trouble::Skipped)?;
        Ok(Cell::up(&self.root, machine)?)
    }

    /// The same with no servers yet.
    ///
    /// # Errors
    ///
    /// As [`Self::cell`].
    pub fn idle_cell(&self) -> Result<Cell, Trouble> {
        cell::available().map_err(Trouble::Skipped)?;
        Ok(Cell::up_idle(&self.root)?)
    }

    /// Our servers, for a machine of a cell.
    ///
    /// # Errors
    ///
    /// When `afar` could not be built.
    pub fn our_servers(&self) -> Result<Servers, Trouble> {
        self.afar.clone().map(Servers::Afar).map_err(Trouble::Failed)
    }

    /// A machine with these servers, for a comparison: ours keep nothing of removed volumes, so that volumes have the same numbers.
    pub fn compared(&self, servers: Servers) -> Machine {
        let flags = match servers {
            Servers::Stock => String::new(),
            Servers::Afar(_) => {
                format!("--config {}", self.root.join("interop/cell/like-openafs.toml").display())
            }
        };
        Machine { flags, ..Machine::new(servers) }
    }

    /// Checks that our program can be built with etcd.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn etcd_feature(&self) -> Result<(), Trouble> {
        match features(&self.root)?.contains("afar/etcd") {
            true => Ok(()),
            false => {
                Err(Trouble::Skipped("afar is built without etcd: there is no protoc that works".to_owned()))
            }
        }
    }

    /// The folder of this repository.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A file of this repository.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read(&self, path: &str) -> Result<String, Trouble> {
        let path = self.root.join(path);
        fs::read_to_string(&path)
            .map_err(|error| Trouble::Failed(format!("reading {}: {error}", path.display())))
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

/// A package's program is built with its own tests only, so cargo is asked for it, unless who runs the tests has built all:
/// for one package alone cargo builds half of the crates again, with other features.
fn build_afar(root: &Path, profile: &Path) -> Result<PathBuf, String> {
    let program = profile.join("afar");
    if env::var_os("AFAR_IS_BUILT").is_some() && program.exists() {
        return Ok(program);
    }
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["build", "--quiet", "--package", "afar", "--bin", "afar"]);
    command.args(features(root)?.split_whitespace());
    if profile.ends_with("release") {
        command.arg("--release");
    }
    if let Some(target) = profile.parent() {
        command.arg("--target-dir").arg(target);
    }
    build(&mut command, program)
}

/// The features that are built beside the default, as options of cargo.
fn features(root: &Path) -> Result<String, String> {
    Ok(process::run(&mut Command::new(root.join("scripts/features.sh")), BUILD_TIMEOUT)?.stdout)
}

/// Builds a peer of ours in C from its folder in `interop/`. It needs a header, which a package has.
fn build_peer(
    root: &Path,
    profile: &Path,
    name: &str,
    (header, package): (&str, &str),
) -> Result<PathBuf, Trouble> {
    let cannot = |why: &str| Trouble::Skipped(format!("{name} cannot be built: {why}"));
    for program in ["make", "gcc"] {
        find(program).ok_or_else(|| cannot(&format!("there is no {program}")))?;
    }
    if !Path::new("/usr/include").join(header).exists() {
        return Err(cannot(&format!("{package} is not installed")));
    }
    let out = profile.parent().unwrap_or(profile).join("interop");
    let mut command = Command::new("make");
    command.arg("-C").arg(root.join("interop").join(name)).arg(format!("OUT={}", out.display()));
    build(&mut command, out.join(name)).map_err(Trouble::Failed)
}

fn build(command: &mut Command, program: PathBuf) -> Result<PathBuf, String> {
    let built = process::run(command, BUILD_TIMEOUT)?;
    if built.status == Some(0) && program.exists() {
        return Ok(program);
    }
    let why: Vec<&str> = built.stderr.lines().filter(|line| line.contains("rror")).take(3).collect();
    Err(format!("cannot build {}: {}", program.display(), why.join("; ")))
}
