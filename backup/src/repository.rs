//! The repository: how it is made and opened, and what stands between rustic and its storage. rustic saves a snapshot as soon as a backup has
//! ended, whatever it has passed over; here the snapshot is held back, so that it is saved once, when it is known whether it is whole.
//! The same place makes a lock of restic's of a snapshot: both have a time, a machine and a user by the same names, and rustic encrypts
//! nothing else for us.

use crate::progress::Bars;
use bytes::Bytes;
use rustic_backend::BackendOptions;
use rustic_core::jiff::Zoned;
use rustic_core::repofile::SnapshotFile;
use rustic_core::{
    BytesList, ConfigOptions, Credentials, ErrorKind, FileType, Id, IndexedFullStatus, KeyOptions,
    OpenStatus, ReadBackend, Repository, RepositoryBackends, RepositoryOptions, RusticError, RusticResult,
    SnapshotOptions, WriteBackend,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A repository whose snapshots can be read.
pub(crate) type Opened = Repository<OpenStatus>;

/// One whose data can be read too.
pub(crate) type Indexed = Repository<IndexedFullStatus>;

/// A snapshot with this tag lacks something.
pub(crate) const PARTIAL: &str = "partial";

/// The folder of restic's locks in a repository.
pub(crate) const LOCKS: &str = "locks";

/// The repository that is in a bucket of S3, whose name and server are among the settings.
const BUCKET: &str = "opendal:s3";

/// Where a repository is, and what opens it.
pub(crate) struct Place {
    /// A folder, or [`BUCKET`].
    pub(crate) repository: String,
    pub(crate) password_file: PathBuf,
    /// Settings of the storage, such as the name of a bucket.
    pub(crate) options: BTreeMap<String, String>,
    /// A folder that keeps what is read often of a repository far away.
    pub(crate) cache: Option<PathBuf>,
    /// The progress of what is done there.
    pub(crate) bars: Bars,
}

/// A repository that is open.
pub(crate) struct Store {
    pub(crate) opened: Opened,
    /// The same, before it was opened.
    unopened: Repository<()>,
    held: Arc<Held>,
}

impl Place {
    /// Makes a new repository.
    pub(crate) fn init(&self) -> Result<(), String> {
        let credentials = Credentials::password(self.password()?);
        let (repository, _) = self.reach(&self.bars)?;
        let made = repository.init(&credentials, &KeyOptions::default(), &ConfigOptions::default());
        made.map(drop).map_err(|error| error.display_log())
    }

    /// Opens it.
    pub(crate) fn open(&self) -> Result<Store, String> {
        self.open_by(&Credentials::password(self.password()?), &self.bars)
    }

    /// Opens it once more, so that two can be used at once: each holds back its own snapshots.
    pub(crate) fn open_again(&self, store: &Store, bars: &Bars) -> Result<Store, String> {
        self.open_by(&Credentials::Masterkey(store.opened.key()), bars)
    }

    fn open_by(&self, credentials: &Credentials, bars: &Bars) -> Result<Store, String> {
        let (repository, held) = self.reach(bars)?;
        let opened = repository.clone().open(credentials).map_err(|error| {
            format!("cannot open the repository {}: {}", self.repository, error.display_log())
        })?;
        Ok(Store { opened, unopened: repository, held })
    }

    /// The folder that it is in, if it is on this machine.
    pub(crate) fn folder(&self) -> Option<&Path> {
        let path = self.repository.strip_prefix("local:").unwrap_or(&self.repository);
        (!path.contains(':')).then(|| Path::new(path))
    }

    fn reach(&self, bars: &Bars) -> Result<(Repository<()>, Arc<Held>), String> {
        let storage = if self.repository == BUCKET {
            bucket(&self.options)?
        } else {
            let mut backend = BackendOptions::default();
            backend.repository = Some(self.repository.clone());
            backend.options.clone_from(&self.options);
            backend.to_backends().map_err(|error| error.display_log())?.repository()
        };
        let held = Arc::new(Held { storage, mode: Mutex::new(Mode::Passes), failed: Mutex::default() });
        let mut options = RepositoryOptions::default();
        options.no_cache = self.cache.is_none();
        options.cache_dir.clone_from(&self.cache);
        let backends = RepositoryBackends::new(Arc::clone(&held) as Arc<dyn WriteBackend>, None);
        let repository = Repository::new_with_progress(&options, &backends, bars.clone());
        Ok((repository.map_err(|error| error.display_log())?, held))
    }

    /// The first line of the password's file, which nobody else may read.
    fn password(&self) -> Result<String, String> {
        let path = self.password_file.display();
        let failed = |error| format!("{path}: {error}");
        let metadata = fs::metadata(&self.password_file).map_err(failed)?;
        if metadata.is_file() && metadata.mode() & 0o077 != 0 {
            return Err(format!("{path}: others may read the password: chmod 600 {path}"));
        }
        let text = fs::read_to_string(&self.password_file).map_err(failed)?;
        match text.lines().next() {
            Some(password) if !password.is_empty() => Ok(password.to_owned()),
            _ => Err(format!("{path}: its first line is to be the password, and is empty")),
        }
    }
}

#[cfg(feature = "remote")]
fn bucket(options: &BTreeMap<String, String>) -> Result<Arc<dyn WriteBackend>, String> {
    use crate::bucket::{Bucket, Patience};
    Ok(Arc::new(Bucket::open(options, &Patience::default())?))
}

#[cfg(not(feature = "remote"))]
fn bucket(_: &BTreeMap<String, String>) -> Result<Arc<dyn WriteBackend>, String> {
    Err("this afar-backup was built without S3: make backup builds one with it".to_owned())
}

impl Store {
    /// All snapshots, the oldest first.
    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotFile>, String> {
        let mut snapshots = self.opened.get_all_snapshots().map_err(|error| error.display_log())?;
        snapshots.sort();
        Ok(snapshots)
    }

    /// Reads the index, which finds data.
    pub(crate) fn indexed(&self) -> Result<Indexed, String> {
        // The key itself, as it takes a while to make it of the password.
        let opened = self.unopened.clone().open(&Credentials::Masterkey(self.opened.key()));
        opened.and_then(Repository::to_indexed).map_err(|error| error.display_log())
    }

    /// Runs a backup, and gives its snapshot without saving it.
    pub(crate) fn holding_back(
        &self,
        backup: impl FnOnce() -> RusticResult<SnapshotFile>,
    ) -> Result<SnapshotFile, String> {
        self.held.set(Mode::HoldsBack);
        self.held.take_failure();
        let made = backup();
        self.held.set(Mode::Passes);
        // Of what comes after that, rustic says that a channel was closed.
        match self.held.take_failure() {
            Some(why) => Err(why),
            None => made.map_err(|error| error.display_log()),
        }
    }

    /// Shows restic that the repository is used, which keeps restic from pruning it until the lock is dropped.
    pub(crate) fn show_restic(&self, folder: &Path, now: Zoned) -> Result<ResticLock, String> {
        let mut options = SnapshotOptions::default();
        // On a machine of this name, restic would look for the process.
        options.host = Some("afar-backup".to_owned());
        options.time = Some(now);
        let lock = options.to_snapshot().map_err(|error| error.display_log())?;
        let folder = folder.join(LOCKS);
        self.held.set(Mode::Locks(folder.clone()));
        let made = self.save(lock);
        let mode = self.held.set(Mode::Passes);
        made?;
        match mode {
            Mode::Locked(path) => Ok(ResticLock { path }),
            _ => Err(format!("{}: the lock was not made", folder.display())),
        }
    }

    /// Saves a snapshot.
    pub(crate) fn save(&self, snapshot: SnapshotFile) -> Result<(), String> {
        self.opened.save_snapshots(vec![snapshot]).map_err(|error| error.display_log())
    }
}

/// A lock of restic's.
pub(crate) struct ResticLock {
    path: PathBuf,
}

impl Drop for ResticLock {
    fn drop(&mut self) {
        // One that stays is told of by restic, and removed by restic unlock.
        let _ = fs::remove_file(&self.path);
    }
}

/// The storage, and what becomes of a snapshot that is saved.
#[derive(Debug)]
struct Held {
    storage: Arc<dyn WriteBackend>,
    mode: Mutex<Mode>,
    /// The reason why the first file could not be written of those that could not.
    failed: Mutex<Option<String>>,
}

#[derive(Debug)]
enum Mode {
    /// It is saved.
    Passes,
    /// It is not.
    HoldsBack,
    /// It is a lock in this folder.
    Locks(PathBuf),
    /// It was one, and is this file.
    Locked(PathBuf),
}

impl Held {
    fn set(&self, mode: Mode) -> Mode {
        mem::replace(&mut self.mode.lock().unwrap_or_else(PoisonError::into_inner), mode)
    }

    fn take_failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ReadBackend for Held {
    fn location(&self) -> String {
        self.storage.location()
    }

    fn list_with_size(&self, kind: FileType) -> RusticResult<Vec<(Id, u32)>> {
        self.storage.list_with_size(kind)
    }

    fn read_full(&self, kind: FileType, id: &Id) -> RusticResult<Bytes> {
        self.storage.read_full(kind, id)
    }

    fn read_partial(
        &self,
        kind: FileType,
        id: &Id,
        cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        self.storage.read_partial(kind, id, cacheable, offset, length)
    }

    fn warmup_path(&self, kind: FileType, id: &Id) -> String {
        self.storage.warmup_path(kind, id)
    }
}

impl WriteBackend for Held {
    fn create(&self) -> RusticResult<()> {
        self.storage.create()
    }

    fn write_bytes(&self, kind: FileType, id: &Id, cacheable: bool, content: BytesList) -> RusticResult<()> {
        if kind == FileType::Snapshot {
            let mode = &mut *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
            match mode {
                Mode::Passes | Mode::Locked(_) => {}
                Mode::HoldsBack => return Ok(()),
                Mode::Locks(folder) => {
                    *mode = Mode::Locked(write_lock(folder, id, content)?);
                    return Ok(());
                }
            }
        }
        self.storage.write_bytes(kind, id, cacheable, content).inspect_err(|error| {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| error.display_log());
        })
    }

    fn remove(&self, kind: FileType, id: &Id, cacheable: bool) -> RusticResult<()> {
        self.storage.remove(kind, id, cacheable)
    }
}

/// Writes a lock, as restic names it. It appears as a whole, and others may write theirs at the same time.
fn write_lock(folder: &Path, id: &Id, content: BytesList) -> RusticResult<PathBuf> {
    let write = || {
        let name = id.to_hex();
        let part = folder.with_extension(name.as_str());
        let mut bytes = Vec::new();
        content.reader().read_to_end(&mut bytes)?;
        fs::create_dir_all(folder)?;
        fs::write(&part, bytes)?;
        let path = folder.join(name.as_str());
        fs::rename(&part, &path).map(|()| path)
    };
    write().map_err(|error| {
        let text = format!("{}: {error}", folder.display());
        RusticError::new(ErrorKind::InputOutput, text)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// A place for a repository in a folder, with a password.
    pub(crate) fn place(folder: &Folder) -> Place {
        let password_file = folder.write("password", "secret\n");
        fs::set_permissions(&password_file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let repository = folder.join("repository").to_str().expect("it is text").to_owned();
        Place { repository, password_file, options: BTreeMap::new(), cache: None, bars: Bars::hidden() }
    }

    #[test]
    fn restic_does_not_prune_a_repository_that_is_used() {
        let folder = Folder::new("backup-lock");
        let place = place(&folder);
        place.init().expect("there is room");
        let store = place.open().expect("it was made");
        let prune = || {
            let mut command = Command::new("restic");
            command.args(["--no-cache", "--repo", &place.repository, "--password-file"]);
            command.arg(&place.password_file).arg("prune").output()
        };
        let Ok(first) = prune() else { return afs_lab::skipped::skip_this("restic is not installed") };
        assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
        let lock =
            store.show_restic(place.folder().expect("it is one"), Zoned::now()).expect("there is room");
        let refused = prune().expect("as above");
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && told.contains("already locked"), "{told}");
        drop(lock);
        let last = prune().expect("as above");
        assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
        assert!(store.snapshots().expect("it can be read").is_empty());
    }

    /// A lock was found by what was new in the folder, and all were written under one name: one run failed, or took away the other's.
    #[test]
    fn runs_that_begin_at_once_have_a_lock_each() {
        let folder = Folder::new("backup-locks");
        let place = place(&folder);
        place.init().expect("there is room");
        let stores = [(); 2].map(|()| place.open().expect("it was made"));
        let lock = |store: &Store| store.show_restic(place.folder().expect("it is one"), Zoned::now());
        for _ in 0..100 {
            let [first, second] = std::thread::scope(|scope| {
                let running = stores.each_ref().map(|store| scope.spawn(|| lock(store)));
                running.map(|run| run.join().expect("it does not panic").expect("there is room"))
            });
            assert_ne!(first.path, second.path);
            drop(first);
            assert!(second.path.is_file(), "it is not the other's");
        }
    }

    #[test]
    fn a_password_that_others_may_read_is_refused() {
        let folder = Folder::new("backup-password");
        let place = place(&folder);
        fs::set_permissions(&place.password_file, fs::Permissions::from_mode(0o640)).expect("it is ours");
        assert!(place.init().is_err_and(|why| why.contains("chmod 600")));
    }
}
