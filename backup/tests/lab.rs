//! A cell, a repository, and the commands on them.

use afs_lab::caller::{Client, Credentials, FileServer};
use afs_lab::real::afar;
use afs_lab::real::cell::Cell;
use afs_lab::real::folder::Folder;
use afs_wire::ids::{AfsFid, AfsTime, VolumeId};
use afs_wire::rxafs::StoreStatus;
use afs_wire::status::{AfsStoreStatus, StoreMask};
use rx_security::KeySet;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::runtime::Runtime;

/// The name of cells of `afar up`.
const CELL: &str = "afar.local";

/// Where a repository is.
pub(crate) struct Place {
    /// As afar-backup names it.
    pub(crate) repository: OsString,
    /// What else it needs on the command line.
    pub(crate) arguments: Vec<String>,
    /// As restic names it.
    pub(crate) restic: OsString,
    /// What the environment has for both.
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Place {
    /// A folder.
    pub(crate) fn folder(path: PathBuf) -> Self {
        Self {
            repository: path.clone().into(),
            arguments: Vec::new(),
            restic: path.into(),
            environment: Vec::new(),
        }
    }
}

/// A cell and a repository.
pub(crate) struct Lab {
    pub(crate) cell: Cell,
    pub(crate) folder: Folder,
    pub(crate) place: Place,
    runtime: Runtime,
    client: Client,
    /// The file server, called as an administrator.
    pub(crate) files: FileServer,
}

impl Lab {
    pub(crate) fn new(name: &str) -> Self {
        link_afar();
        Self::of(Cell::new(name), name)
    }

    /// One with a repository that is elsewhere.
    #[cfg(feature = "remote")]
    pub(crate) fn at(place: Place, name: &str) -> Self {
        link_afar();
        Self::with(Cell::new(name), name, |_| place)
    }

    /// One of a cell that is there.
    pub(crate) fn of(cell: Cell, name: &str) -> Self {
        Self::with(cell, name, |folder| Place::folder(folder.join("repository")))
    }

    fn with(cell: Cell, name: &str, place: impl FnOnce(&Path) -> Place) -> Self {
        let keys = keys(&cell);
        let runtime = Runtime::new().expect("there are threads");
        let entered = runtime.enter();
        let client = Client::bind(SocketAddr::from((cell.address, 0))).expect("there is a port");
        let users = fs::read_to_string(cell.folder.join("state/etc/server/UserList")).expect("it has one");
        let user = users.split_whitespace().next().expect("it names somebody");
        let files =
            client.file_server(cell.address, &Credentials::user(user, CELL, &keys).expect("there is a key"));
        drop(entered);
        let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        fs::write(folder.join("password"), "secret\n").expect("there is room");
        fs::set_permissions(folder.join("password"), fs::Permissions::from_mode(0o600)).expect("it is ours");
        let place = place(&folder);
        let lab = Self { cell, folder, place, runtime, client, files };
        lab.backup(&["init"]);
        lab
    }

    /// The file server, called as another user.
    pub(crate) fn as_user(&self, name: &str) -> FileServer {
        let _entered = self.runtime.enter();
        let user = Credentials::user(name, CELL, &keys(&self.cell)).expect("there is a key");
        self.client.file_server(self.cell.address, &user)
    }

    pub(crate) fn try_run<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.runtime.block_on(work)
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = Result<T, afs_lab::caller::Error>>) -> T {
        self.runtime.block_on(work).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Makes a volume, and gives its root.
    pub(crate) fn volume(&self, name: &str) -> AfsFid {
        self.vos(&format!("vos create ONE a {name} -maxquota 0"));
        AfsFid::root_of(self.volume_id(name))
    }

    pub(crate) fn volume_id(&self, name: &str) -> VolumeId {
        let told = self.vos(&format!("vos examine {name} -format"));
        let id = told.lines().find_map(|line| line.strip_prefix("id")).map(str::trim);
        VolumeId(id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no id: {told}")))
    }

    /// The number of volumes on the server, with clones.
    pub(crate) fn volumes(&self) -> usize {
        let told = self.vos("vos listvol ONE -format");
        told.lines().filter(|line| line.starts_with("BEGIN_OF_ENTRY")).count()
    }

    /// A command of afar's suites, as the cell's superuser.
    pub(crate) fn vos(&self, line: &str) -> String {
        let state = self.cell.folder.join("state");
        let output = afar::suite(&state, line, &[("ONE", self.cell.address)], "-localauth").output();
        let output = output.expect("it is built");
        assert!(output.status.success(), "{line}: {}", afar::words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes a file.
    pub(crate) fn file(&self, folder: AfsFid, name: &str, bytes: &[u8]) -> AfsFid {
        let fid = self.run(self.files.create_file(folder, name)).fid;
        self.store(fid, bytes);
        fid
    }

    pub(crate) fn store(&self, fid: AfsFid, bytes: &[u8]) {
        self.run(self.files.store(fid, 0, bytes.to_vec(), bytes.len() as u64));
    }

    /// A command of afar-backup.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_afar-backup"));
        command.arg("--repo").arg(&self.place.repository);
        command.arg("--password-file").arg(self.folder.join("password"));
        command.args(&self.place.arguments);
        command.envs(self.place.environment.iter().map(|(name, value)| (name, value)));
        command.args(arguments);
        if matches!(arguments[0], "run" | "restore") {
            command.arg("--config").arg(self.cell.folder.join("state/etc/server"));
        }
        if arguments[0] == "run" && !arguments.contains(&"--spool") {
            command.arg("--spool").arg(&*self.folder);
        }
        command
    }

    /// A command that may fail.
    pub(crate) fn try_backup(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it is built")
    }

    /// A command that succeeds, and what it says.
    pub(crate) fn backup(&self, arguments: &[&str]) -> String {
        let output = self.try_backup(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", afar::words(&output));
        afar::words(&output)
    }

    /// The ids of all backups, the oldest first.
    pub(crate) fn backups(&self) -> Vec<String> {
        self.backup(&["list"])
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    }

    /// The repository's folder.
    pub(crate) fn repository(&self) -> PathBuf {
        PathBuf::from(&self.place.repository)
    }

    /// Restores a backup into a new folder.
    pub(crate) fn restored(&self, backup: &str, name: &str) -> PathBuf {
        let to = self.folder.join(name);
        self.backup(&["restore", backup, "--to", to.to_str().expect("it is text")]);
        to
    }

    /// A command of Debian's restic on the repository, which succeeds. `None` if it is not installed.
    pub(crate) fn restic(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("restic");
        command.arg("--no-cache").arg("--repo").arg(&self.place.restic).arg("--password-file");
        command.envs(self.place.environment.iter().map(|(name, value)| (name, value)));
        command.arg(self.folder.join("password")).args(arguments);
        let Ok(output) = command.output() else {
            afs_lab::skipped::skip_this::<()>("restic is not installed");
            return None;
        };
        assert!(output.status.success(), "restic {arguments:?}: {}", afar::words(&output));
        Some(afar::words(&output))
    }

    /// Makes a volume that was changed last in another year, of a dump of OpenAFS's.
    pub(crate) fn old_volume(&self, name: &str) -> AfsFid {
        let dump = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/afs-dump/tests/samples/demo.dump");
        self.vos(&format!("vos restore ONE a {name} {}", dump.display()));
        AfsFid::root_of(self.volume_id(name))
    }

    /// Sets the time of a file's last change, as a client does.
    pub(crate) fn set_time(&self, fid: AfsFid, seconds: u32) {
        let time = AfsTime(seconds);
        let status =
            AfsStoreStatus { mask: StoreMask::MOD_TIME, client_mod_time: time, ..AfsStoreStatus::default() };
        self.run(self.files.rpc(&StoreStatus { fid, status }));
    }
}

fn keys(cell: &Cell) -> KeySet {
    KeySet::load(&cell.folder.join("state/etc/server")).expect("it has keys")
}

/// 40 MiB that cannot be compressed: more than one file of a repository has.
#[cfg(feature = "remote")]
pub(crate) fn large() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..5 << 20).flat_map(|_| next()).collect()
}

/// The time of a server's clock.
pub(crate) fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32)
}

/// Waits for a second that nothing was changed in yet.
pub(crate) fn next_second() {
    let began = now();
    afs_lab::until!(now() > began, "the clock stands");
}

/// All below a folder: what it is, its mode, time, contents and access list.
pub(crate) fn contents(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("it is there") {
            let path = entry.expect("it can be read").path();
            let meta = path.symlink_metadata().expect("it is there");
            let what = if meta.is_symlink() {
                format!("link to {}", fs::read_link(&path).expect("it is one").display())
            } else {
                let mut acl = [0; 4096];
                let length = rustix::fs::getxattr(&path, "user.afs.acl", &mut acl).unwrap_or(0);
                let acl = String::from_utf8_lossy(&acl[..length]).into_owned();
                let (mode, owner) = (meta.mode() & 0o7777, (meta.uid(), meta.gid()));
                if meta.is_dir() {
                    folders.push(path.clone());
                    format!("folder {mode:o} of {owner:?} {acl:?}")
                } else {
                    let bytes = fs::read(&path).expect("it can be read");
                    format!("file {mode:o} of {owner:?} at {} {acl:?} {bytes:?}", meta.mtime())
                }
            };
            all.insert(path.strip_prefix(folder).expect("it is below").to_owned(), what);
        }
    }
    all
}

/// Puts afar's program, which the main workspace has built, where `afs_lab` looks for it, and says where that is.
pub(crate) fn link_afar() -> PathBuf {
    let place = Path::new(env!("CARGO_BIN_EXE_afar-backup")).with_file_name("afar");
    if place.exists() {
        return place;
    }
    // Of the same profile.
    let profile = place.parent().and_then(Path::file_name).expect("cargo has folders for profiles");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(profile).join("afar");
    assert!(built.exists(), "{} is not built: cargo build in the main workspace", built.display());
    // Another test may have been faster.
    let linked = symlink(&built, &place);
    assert!(linked.is_ok() || place.exists(), "{}: {linked:?}", place.display());
    place
}
