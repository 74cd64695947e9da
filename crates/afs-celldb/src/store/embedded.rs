//! The store of a cell whose databases are on one machine: a file of `redb`, a B+tree with copy on write, so that a commit
//! that was cut off is not there at all. Each block of the file has a checksum, in a second file (see [`CheckedFile`]).
//!
//! Every commit is synced before it is reported: databases of a cell change a few times a minute, and what they give out
//! (ids of volumes and users) must not be given out again after a loss of power. A thread of its own waits for
//! the disk, so that calls which only look something up do not. In simulations, which have no threads, the caller waits.
//!
//! After an error `redb` makes no more changes until the file is opened anew, as at the start of the server: here that is done by whoever
//! reads or changes something a second later or more.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use afs_store::disk::{Disk, DiskFile, FolderDisk};
use afs_store::{Backend, CheckedBackend, CheckedFile};
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableHandle,
};
use rustix::fs::{Advice, FlockOperation, fadvise, flock};
use tokio::sync::oneshot;

use super::{CellStore, Outcome, Page, Position, Row, StoreError, StoreFuture, Transaction};

#[cfg(test)]
mod flips;
#[cfg(test)]
mod power;

/// All rows. The name is another one in each format, so that programs that know only earlier ones refuse the file.
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("cell 2");

/// The same in the format before, which has no checksums of blocks.
const OLD_ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("cell");

/// Transactions that may wait. Each database makes one at a time, so there are two at most.
const MAX_WAITING: usize = 16;

/// The file's mode: names and groups of all people are in it, also of those who keep theirs to themselves.
const MODE: u32 = 0o600;

/// Bytes of the file that are kept in memory. The databases are read from it once, when the server starts.
const CACHE_BYTES: usize = 8 << 20;

/// Rows in a file.
#[derive(Debug)]
pub struct EmbeddedStore {
    database: Arc<Reopening>,
    committer: Committer,
}

/// The pause between an error and the next attempt to open the file, which reads all of it.
const PAUSE: Duration = Duration::from_secs(1);

/// The database, which is closed after an error.
#[derive(Debug)]
struct Reopening {
    /// The database; after an error what it was and when, until somebody wants the database.
    open: RwLock<Result<Database, (Reason, Instant)>>,
    /// What is opened anew; `None` where it never is.
    file: Option<Place>,
}

/// Where a file is.
#[derive(Debug)]
struct Place {
    disk: Arc<dyn Disk>,
    /// Its name there.
    name: String,
    /// As people know it.
    path: PathBuf,
}

impl Reopening {
    /// Does something with the database.
    fn with<T>(&self, work: impl Fn(&Database) -> Result<T, Reason>) -> Result<T, Reason> {
        loop {
            let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
            let done = open.as_ref().ok().map(|database| whole(|| work(database)));
            drop(open);
            if let Some(done) = done {
                return done.inspect_err(|error| self.close(error));
            }
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            // Else somebody was faster.
            if let (Err((error, at)), Some(Place { disk, name, path })) = (&*open, &self.file) {
                if at.elapsed() < PAUSE {
                    return Err(error.clone());
                }
                *open = open_file(disk, name).map_err(|error| (error, Instant::now()));
                match &*open {
                    Ok(_) => {
                        tracing::info!(file = %path.display(), "the cell's databases are opened anew after an error")
                    }
                    Err((error, _)) => return Err(error.clone()),
                }
            }
        }
    }

    /// Something went wrong: it is opened anew before something else is done.
    fn close(&self, error: &Reason) {
        if self.file.is_some() {
            *self.open.write().unwrap_or_else(PoisonError::into_inner) = Err((error.clone(), Instant::now()));
        }
    }
}

/// The thread that commits, if there is one.
#[derive(Debug)]
enum Committer {
    /// A thread; both are `None` once the store is being dropped.
    Thread(Option<SyncSender<Commit>>, Option<JoinHandle<()>>),
    /// The thread that asks for the commit.
    Caller,
}

/// What `redb` says of an error, whose own type is large.
#[derive(Clone, Debug)]
struct Reason(String);

impl<E: Into<redb::Error>> From<E> for Reason {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

impl Reason {
    fn reading(self) -> StoreError {
        StoreError::new("reading the cell's databases", self.0)
    }

    fn changing(self) -> StoreError {
        StoreError::new("changing the cell's databases", self.0)
    }
}

type Commit = (Transaction, oneshot::Sender<Result<Outcome, StoreError>>);

impl EmbeddedStore {
    /// Opens a file, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// If that is not possible, or another process has it open.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let failed = |Reason(reason)| {
            StoreError::new(format!("opening the cell's databases in {}", file.display()), reason)
        };
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let disk = FolderDisk::among_others(folder).map_err(|error| failed(error.into()))?;
        Self::open_on(Arc::new(disk), &name, file).map_err(failed)
    }

    /// Opens a file of a disk, which is made if it is not there. Messages call it `path`.
    fn open_on(disk: Arc<dyn Disk>, name: &str, path: &Path) -> Result<Self, Reason> {
        if matches!(disk.open(name), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            make(&*disk, name)?;
        }
        let database = open_file(&disk, name)?;
        Self::on(database, Some(Place { disk, name: name.to_owned(), path: path.to_owned() }))
    }

    /// Makes the store over a database that has the table; `file` is what is opened anew after an error.
    fn on(database: Database, file: Option<Place>) -> Result<Self, Reason> {
        let open = RwLock::new(Ok(database));
        let database = Arc::new(Reopening { open, file });
        let (commits, waiting) = mpsc::sync_channel(MAX_WAITING);
        let theirs = Arc::clone(&database);
        let committer = thread::Builder::new()
            .name("celldb-commit".into())
            .spawn(move || commit_all(&theirs, &waiting))?;
        Ok(Self { database, committer: Committer::Thread(Some(commits), Some(committer)) })
    }

    /// Rows in what simulations have for a file, with no thread: whoever commits waits for it. If it is empty, the database is made.
    ///
    /// # Errors
    ///
    /// If it is damaged or cannot be read or written.
    pub fn over(backend: impl StorageBackend) -> Result<Self, StoreError> {
        let open = || {
            let is_new = backend.len()? == 0;
            let database = builder().create_with_backend(backend)?;
            if is_new {
                lay_out(&database)?;
            }
            let database = Reopening { open: RwLock::new(Ok(database)), file: None };
            Ok(Self { database: Arc::new(database), committer: Committer::Caller })
        };
        open().map_err(|Reason(reason)| StoreError::new("opening the cell's databases", reason))
    }

    fn read_now(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Reason> {
        self.database.with(|database| {
            let table = database.begin_read()?.open_table(ROWS)?;
            Ok(table.get(key)?.map(|value| value.value().to_vec()))
        })
    }

    fn scan_now(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Row>, Reason> {
        self.database.with(|database| {
            let table = database.begin_read()?.open_table(ROWS)?;
            let mut rows = Vec::new();
            for row in table.range(after.unwrap_or(prefix)..)? {
                let (key, value) = row?;
                if after == Some(key.value()) {
                    continue;
                }
                if rows.len() == limit || !key.value().starts_with(prefix) {
                    break;
                }
                rows.push((key.value().to_vec(), value.value().to_vec()));
            }
            Ok(rows)
        })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        let Committer::Thread(commits, thread) = &mut self.committer else { return };
        *commits = None;
        if let Some(thread) = thread.take() {
            // It ends with the channel; if it has panicked, its callers know.
            let _ = thread.join();
        }
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    // All of it is read at the start in any case. Without the check redb 4.6 panics over pages that are damaged.
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// The name of the file with the checksums of another one.
fn sums_of(name: &str) -> String {
    format!("{}.sums", name.strip_suffix(".redb").unwrap_or(name))
}

/// Opens a file that is there, and locks it. One of the format before is converted.
fn open_file(disk: &Arc<dyn Disk>, name: &str) -> Result<Database, Reason> {
    let file = disk.open(name)?;
    if let Some(file) = file.as_file() {
        match flock(file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Reason("another process has it open".into()));
            }
            result => result?,
        }
        file.set_permissions(Permissions::from_mode(MODE))?;
        // What a sync could not write counts as written from then on, for as long as it is in memory: it is to be read as it is on the
        // disk, or what is built upon it is lost with the power.
        fadvise(file, 0, None, Advice::DontNeed).map_err(io::Error::from)?;
    }
    // redb would make a database of an empty one, and what there was would be given out again.
    if file.length()? == 0 {
        return Err(restore("it is empty"));
    }
    let sums_name = sums_of(name);
    let sums = match disk.open(&sums_name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            convert(&file)?;
            CheckedFile::make(&**disk, &*file, &sums_name).map_err(|error| Reason(error.to_string()))?;
            disk.open(&sums_name)
        }
        result => result,
    }?;
    if let Some(sums) = sums.as_file() {
        fadvise(sums, 0, None, Advice::DontNeed).map_err(io::Error::from)?;
    }
    let file = CheckedFile::open(file, sums, &sums_name).map_err(|error| Reason(error.to_string()))?;
    open_whole(CheckedBackend(Arc::new(file)))
}

/// Opens what is read and checked as a whole.
fn open_whole(backend: impl StorageBackend) -> Result<Database, Reason> {
    whole(|| match builder().create_with_backend(backend) {
        Ok(database) => Ok(database),
        Err(DatabaseError::DatabaseAlreadyOpen) => Err(Reason("another process has it open".into())),
        // The disk may be well again later.
        Err(DatabaseError::Storage(StorageError::Io(error))) if !is_damage(&error) => {
            Err(Reason(error.to_string()))
        }
        Err(error) => Err(restore(&error.to_string())),
    })
}

fn restore(why: &str) -> Reason {
    Reason(format!("{why}: restore it from a copy, with the file of checksums beside it or without one"))
}

/// Runs what calls redb, which panics over some of what it does not expect on a disk.
fn whole<T>(act: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(restore("it is damaged")))
}

/// Makes a file of the format before, or one whose checksums are gone, one of ours, after all of it was checked.
fn convert(file: &Arc<dyn DiskFile>) -> Result<(), Reason> {
    let database = open_whole(Backend(file.clone()))?;
    whole(|| {
        let mut transaction = database.begin_write()?;
        transaction.set_two_phase_commit(true);
        let is_old = transaction.list_tables()?.any(|table| table.name() == OLD_ROWS.name());
        if is_old {
            transaction.rename_table(OLD_ROWS, ROWS)?;
        }
        Ok(transaction.commit()?)
    })
}

/// True if what is in the file is wrong, and not the disk that has it.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Makes a file without rows. It has its name when it is whole: a process that ends while the file is made must not leave one
/// that can never be opened.
fn make(disk: &dyn Disk, name: &str) -> Result<(), Reason> {
    let new = format!("{}.new", name.strip_suffix(".redb").unwrap_or(name));
    match disk.remove(&sums_of(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let database = builder().create_with_backend(Backend(disk.create(&new)?))?;
    lay_out(&database)?;
    drop(database);
    disk.rename(&new, name)?;
    Ok(disk.sync_folder("")?)
}

/// Makes the table, so that it is there for readers.
fn lay_out(database: &Database) -> Result<(), Reason> {
    let transaction = database.begin_write()?;
    transaction.open_table(ROWS)?;
    Ok(transaction.commit()?)
}

fn commit_all(database: &Reopening, waiting: &Receiver<Commit>) {
    while let Ok((transaction, answer)) = waiting.recv() {
        // Whoever does not wait for it any more reads the database again.
        let made = database.with(|database| commit_one(database, &transaction));
        let _ = answer.send(made.map_err(Reason::changing));
    }
}

fn commit_one(database: &Database, transaction: &Transaction) -> Result<Outcome, Reason> {
    // Durable on commit, which is what redb does unless it is told otherwise. In two phases, so that what is committed is found without
    // reading pages that may be half written.
    let mut write = database.begin_write()?;
    write.set_two_phase_commit(true);
    {
        let mut table = write.open_table(ROWS)?;
        for (key, expected) in &transaction.expected {
            let value = table.get(&key[..])?;
            if value.as_ref().map(|value| value.value()) != expected.as_deref() {
                return Ok(Outcome::Conflict);
            }
        }
        for (key, value) in &transaction.changes {
            match value {
                Some(value) => drop(table.insert(&key[..], &value[..])?),
                None => drop(table.remove(&key[..])?),
            }
        }
    }
    write.commit()?;
    Ok(Outcome::Committed)
}

impl CellStore for EmbeddedStore {
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
        let result = self.read_now(key).map_err(Reason::reading);
        Box::pin(std::future::ready(result))
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
        _at: Option<Position>,
    ) -> StoreFuture<'a, Page> {
        let result = self.scan_now(prefix, after, limit);
        let result = result.map(|rows| Page { rows, ..Page::default() }).map_err(Reason::reading);
        Box::pin(std::future::ready(result))
    }

    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome> {
        let gone = || {
            StoreError::new(
                "changing the cell's databases",
                "the thread that does it has ended; restart the server",
            )
        };
        Box::pin(async move {
            let Committer::Thread(commits, _) = &self.committer else {
                let made = self.database.with(|database| commit_one(database, &transaction));
                return made.map_err(Reason::changing);
            };
            let (answer, result) = oneshot::channel();
            let commits = commits.as_ref().ok_or_else(gone)?;
            // Never full, as long as each database makes one transaction at a time.
            commits.try_send((transaction, answer)).map_err(|_| gone())?;
            result.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_was_cut_short_or_damaged_is_named_and_so_is_what_to_do() {
        let folder = std::env::temp_dir().join(format!("afs-celldb-cut-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("cell.redb");
        drop(EmbeddedStore::open(&path).unwrap());
        let whole = fs::read(&path).unwrap();
        let (sums, sums_path) = (fs::read(folder.join("cell.sums")).unwrap(), folder.join("cell.sums"));
        let put = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::write(&sums_path, &sums).unwrap();
        };
        // A process that another test starts has the file open too, until it executes its program.
        let is_held = |error: &StoreError| error.to_string().contains("another process has it open");
        let open = || {
            for _ in 0..1000 {
                match EmbeddedStore::open(&path) {
                    Err(error) if is_held(&error) => thread::sleep(Duration::from_millis(5)),
                    opened => return opened,
                }
            }
            panic!("nobody lets go of it");
        };
        let lengths = [0, 1, 9, 31, 32, 64, 320, 4095, 4096, 4097, 8192, 40_000];
        for cut in lengths.into_iter().chain([1, 100, 4096, 30_000].map(|less| whole.len() - less)) {
            put(&whole[..cut]);
            let error = open().unwrap_err().to_string();
            assert!(
                error.contains("cell.redb") && error.contains("restore it from a copy"),
                "{cut}: {error}"
            );
            assert_eq!(fs::read(&path).unwrap(), &whole[..cut], "it is left as it is");
        }
        let mut damaged = 0;
        for at in (0..whole.len()).step_by(37) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            put(&bytes);
            // Where nothing is kept a bit does no harm.
            if let Err(error) = open() {
                damaged += 1;
                assert!(error.to_string().contains("restore it from a copy"), "{at}: {error}");
            }
        }
        assert!(damaged > 10, "{damaged}");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        put(&whole);
        drop(open().unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE, "it is closed to others");
        fs::remove_dir_all(folder).unwrap();
    }
}
