//! The B-tree below the log: redb on a file of our disk, whose blocks have checksums (`checked`).

use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use crate::rows::checked::{CheckedBackend, CheckedFile};
use crate::rows::copying;
use crate::rows::past_damage::Pages;
use crate::rows::range_cache::RangeCache;
use crate::rows::{Bytes, Key, Layer, Loss, Row, Seq};
use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, StorageBackend, StorageError,
    TableDefinition, TableError,
};
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub(super) const NAME: &str = "rows.redb";
/// The checksums of its blocks.
pub(super) const SUMS: &str = "rows.sums";
/// What to do about a file of which nothing can be read.
const ADVICE: &str = "; put back a copy of the whole folder, or begin with an empty one";
/// What was done about a file that redb does not open.
const COPIED: &str = "; no row is lost, and all of them were brought into a new file";
const NOT_COPIED: &str =
    "; what can be read of it is served, and only as many changes are taken as fit into memory";
/// The first bytes of redb's file, once it is a database: written last when it is made.
const MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";
pub(super) const ROWS_NAME: &str = "rows";
pub(super) const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new(ROWS_NAME);
const STATE_NAME: &str = "state";
pub(super) const STATE: TableDefinition<'static, &str, u64> = TableDefinition::new(STATE_NAME);
/// The last record of the log that the rows are from.
pub(super) const CHECKPOINT: &str = "checkpoint";
/// The version of the format (Volume format 1).
pub(super) const VERSION: &str = "version";
/// The version that a new file gets, and the oldest that we read. 1 has no checksums of blocks, and a log of its own format. Rows may be of
/// a higher one ([`super::Schema::version`]).
pub(super) const FORMAT: u64 = 2;

/// redb's rows.
#[derive(Debug)]
pub(crate) struct BTree {
    cache_bytes: usize,
    /// The highest version that the owner of the rows knows.
    newest: u64,
    db: RwLock<Opened>,
    /// True once redb has met damage, which it answers nothing behind: from then on rows are read without it (`past_damage`).
    has_damage: AtomicBool,
    /// What redb refused, if so, and what was done.
    refusal: Option<Loss>,
    /// True if it was tried to bring all rows into a new file, or cannot be.
    was_copied: AtomicBool,
    /// Held while rows are taken, and by those who read without redb. Comes before `db`.
    taking: RwLock<()>,
    range_cache: RangeCache,
    /// The lock on the folder goes with the disk: last, as redb writes when it is dropped.
    disk: Arc<dyn Disk>,
}

/// redb, as it is open: after an error of the disk it answers nothing, reads included, until it is opened again.
#[derive(Debug)]
struct Opened {
    /// The number of times that it was opened.
    times: u64,
    file: Arc<CheckedFile>,
    /// None while it cannot be opened.
    db: Option<Database>,
}

/// A file of a disk for redb, also of a disk that fails.
#[derive(Debug)]
pub struct Backend(pub Arc<dyn DiskFile>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.read_at(offset, out)? < out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_length(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

/// The reason of redb's refusal.
pub(super) enum Failure {
    /// It is to be opened again.
    Closed,
    Other(StoreError),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let other = |text: String| StoreError::io(NAME)(io::Error::other(text));
        match error.into() {
            redb::Error::PreviousIo => Self::Closed,
            redb::Error::Io(error) if is_damage(&error) => {
                Self::Other(StoreError::damaged(NAME, error.to_string()))
            }
            redb::Error::Io(error) => Self::Other(StoreError::io(NAME)(error)),
            redb::Error::Corrupted(why) => Self::Other(StoreError::damaged(NAME, why)),
            error => Self::Other(other(error.to_string())),
        }
    }
}

impl Failure {
    fn told(self) -> StoreError {
        match self {
            Self::Closed => StoreError::io(NAME)(io::Error::other("the disk failed before")),
            Self::Other(error) => error,
        }
    }
}

/// True if what is in a file is wrong, and not the disk that has it.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// True if the file was begun and never was a database: it has no magic, and there is no log, which is made after it.
fn is_half_made(disk: &dyn Disk, file: &dyn DiskFile) -> Result<bool, StoreError> {
    let look = || {
        let mut begin = [0; MAGIC.len()];
        file.read_at(0, &mut begin)?;
        Ok(begin != *MAGIC && !disk.list("")?.iter().any(|name| name.starts_with("log.")))
    };
    look().map_err(StoreError::io(format!("cannot read {NAME}")))
}

/// Refuses what is beside a log and no database: redb would make one of it.
fn check_begin(file: &dyn DiskFile) -> Result<(), StoreError> {
    let mut begin = [0; MAGIC.len()];
    file.read_at(0, &mut begin).map_err(StoreError::io(format!("cannot read {NAME}")))?;
    if begin == *MAGIC { Ok(()) } else { Err(damaged("it does not begin as it should".into())) }
}

fn damaged(why: String) -> StoreError {
    StoreError::damaged(NAME, format!("{why}{ADVICE}"))
}

/// Opens the file, or makes it where there is none.
fn open_file(disk: &Arc<dyn Disk>, cache_bytes: usize, newest: u64) -> Result<Arc<CheckedFile>, StoreError> {
    let make = || {
        // Of what is not there any more.
        match disk.remove(SUMS) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => disk.create(NAME),
        }
    };
    let found = match disk.open(NAME) {
        Ok(file) => (!is_half_made(&**disk, &*file)?).then_some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(StoreError::io(format!("cannot open {NAME}"))(error)),
    };
    let is_new = found.is_none();
    let file = found.map_or_else(make, Ok).map_err(StoreError::io(format!("cannot make {NAME}")))?;
    let opened = || disk.open(SUMS);
    let sums = match opened() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Beside checksums it is their copy of its first bytes that counts.
            if !is_new {
                check_begin(&*file)?;
            }
            convert(&file, cache_bytes, newest)?;
            CheckedFile::make(&**disk, &*file, SUMS)?;
            opened()
        }
        result => result,
    };
    let sums = sums.map_err(StoreError::io(format!("cannot open {SUMS}")))?;
    // redb would make a new database of it.
    if !is_new && matches!(file.length(), Ok(0)) {
        return Err(damaged("it is empty".into()));
    }
    Ok(Arc::new(CheckedFile::open(file, sums, SUMS)?))
}

impl BTree {
    /// Opens it, or makes it where there is none, also where a start ended while it was made. One of an earlier version is converted.
    pub(crate) fn open(disk: &Arc<dyn Disk>, cache_bytes: usize, newest: u64) -> Result<Self, StoreError> {
        copying::go_on(&**disk)?;
        let file = open_file(disk, cache_bytes, newest)?;
        let (db, refusal) =
            match open(CheckedBackend(file.clone()), cache_bytes, false).map_err(Failure::told) {
                Ok(db) => (Some(db), None),
                // What can be read of it is.
                Err(StoreError::Damaged { why, .. }) => (None, Some(why.trim_end_matches(ADVICE).to_owned())),
                Err(error) => return Err(error),
            };
        let mut btree = Self {
            cache_bytes,
            newest,
            refusal: None,
            has_damage: AtomicBool::new(db.is_none()),
            was_copied: AtomicBool::new(disk.is_scratch()),
            taking: RwLock::default(),
            db: RwLock::new(Opened { times: 1, file, db }),
            range_cache: RangeCache::default(),
            disk: disk.clone(),
        };
        match (btree.number(VERSION), &refusal) {
            // Without its notes nobody knows which rows of the log go before it.
            (Err(StoreError::Damaged { .. }), Some(why)) => return Err(damaged(why.clone())),
            (version, _) => check_version(version?, newest)?,
        }
        if let Some(why) = refusal {
            let done = if btree.renew()? { COPIED } else { NOT_COPIED };
            btree.refusal = Some(Loss { file: NAME.into(), why: format!("{why}{done}"), batches: 0 });
        }
        Ok(btree)
    }

    /// Brings all rows into a new file, if they can be read, and says if it has: redb cannot read its own notes in the old one. Nobody
    /// takes rows meanwhile.
    fn renew(&self) -> Result<bool, StoreError> {
        // Once: it may take as long as all else that is to be done.
        if self.was_copied.swap(true, Ordering::AcqRel) {
            return Ok(false);
        }
        let copied = {
            let opened = self.db.read().unwrap_or_else(PoisonError::into_inner);
            let numbers = || -> io::Result<_> {
                let pages = Pages::new(&opened.file)?;
                let number = |name, other| -> io::Result<(&str, u64)> {
                    Ok((name, number_in(&pages, name)?.unwrap_or(other)))
                };
                Ok([number(CHECKPOINT, 0)?, number(VERSION, FORMAT)?])
            };
            numbers()
                .map_err(Failure::from)
                .and_then(|numbers| copying::copy(&*self.disk, &opened.file, numbers, self.cache_bytes))
        };
        if copied.is_err() {
            return Ok(false);
        }
        let mut opened = self.db.write().unwrap_or_else(PoisonError::into_inner);
        let _ = close(opened.db.take());
        opened.times += 1;
        let mut put = || {
            copying::put_copy(&*self.disk)?;
            opened.file = open_file(&self.disk, self.cache_bytes, self.newest)?;
            let backend = CheckedBackend(opened.file.clone());
            opened.db = Some(open(backend, self.cache_bytes, false).map_err(Failure::told)?);
            Ok(())
        };
        // No damage that leaves the rest as it is: the old file may be no file of the folder any more, and must take nothing.
        put().map_err(|error: StoreError| StoreError::io(NAME)(io::Error::other(error.to_string())))?;
        self.has_damage.store(false, Ordering::Release);
        Ok(true)
    }

    /// What is to be told if redb could not open it.
    pub(crate) fn refusal(&self) -> Option<&Loss> {
        self.refusal.as_ref()
    }

    /// Reads with redb, and without it where that meets damage: it answers nothing more after that, and to open it again takes longer
    /// than all that is read in between.
    fn read<T>(
        &self,
        by_redb: impl Fn(&Database) -> Result<T, Failure>,
        alone: impl FnOnce(&Pages<'_>) -> io::Result<T>,
    ) -> Result<T, StoreError> {
        if !self.has_damage.load(Ordering::Acquire) {
            match self.with(by_redb) {
                Err(StoreError::Damaged { .. }) => self.has_damage.store(true, Ordering::Release),
                result => return result,
            }
        }
        let _none_are_taken = self.taking.read().unwrap_or_else(PoisonError::into_inner);
        let opened = self.db.read().unwrap_or_else(PoisonError::into_inner);
        Pages::new(&opened.file).and_then(|pages| alone(&pages)).map_err(|error| match is_damage(&error) {
            true => StoreError::damaged(NAME, error.to_string()),
            false => StoreError::io(NAME)(error),
        })
    }

    fn number(&self, name: &str) -> Result<Option<u64>, StoreError> {
        self.read(|db| number(db, name), |pages| number_in(pages, name))
    }

    /// Runs `act` with the database. An error of the disk that is over, such as that it was full, does not keep it closed: what
    /// was committed before is all there, and the rest is in the log.
    fn with<T>(&self, act: impl Fn(&Database) -> Result<T, Failure>) -> Result<T, StoreError> {
        let mut is_second = false;
        loop {
            let times = {
                let opened = self.db.read().unwrap_or_else(PoisonError::into_inner);
                match opened.db.as_ref().map(|db| whole(|| act(db))) {
                    None | Some(Err(Failure::Closed)) if !is_second => opened.times,
                    None => return Err(Failure::Closed.told()),
                    Some(result) => return result.map_err(Failure::told),
                }
            };
            self.open_again(times)?;
            is_second = true;
        }
    }

    /// Opens it again, unless somebody else has since it was open for the `times`th time.
    fn open_again(&self, times: u64) -> Result<(), StoreError> {
        let mut opened = self.db.write().unwrap_or_else(PoisonError::into_inner);
        if opened.times == times {
            // The old one ends first: two do not share a file.
            let old = opened.db.take();
            let _ = close(old);
            opened.times += 1;
            let backend = CheckedBackend(opened.file.clone());
            opened.db = Some(open(backend, self.cache_bytes, false).map_err(Failure::told)?);
        }
        Ok(())
    }

    /// The last record of the log whose rows are here.
    pub(crate) fn checkpoint(&self) -> Result<Seq, StoreError> {
        Ok(self.number(CHECKPOINT)?.unwrap_or(0))
    }

    /// The version of the format.
    pub(crate) fn version(&self) -> Result<u64, StoreError> {
        Ok(self.number(VERSION)?.unwrap_or(FORMAT))
    }

    /// Sets that; durable when it returns.
    pub(crate) fn set_version(&self, version: u64) -> Result<(), StoreError> {
        let _alone = self.taking.write().unwrap_or_else(PoisonError::into_inner);
        self.with(|db| {
            let tx = begin(db)?;
            tx.open_table(STATE)?.insert(VERSION, version)?;
            Ok(tx.commit()?)
        })
    }

    /// Takes rows up to a record of the log; durable when it returns.
    pub(crate) fn take(&self, rows: &Layer, upto: Seq) -> Result<(), StoreError> {
        let _alone = self.taking.write().unwrap_or_else(PoisonError::into_inner);
        let take = |db: &Database| {
            let tx = begin(db)?;
            {
                let mut table = tx.open_table(ROWS)?;
                for (key, value) in rows {
                    match value {
                        Some(value) => table.insert(&*key.0, &**value)?,
                        None => table.remove(&*key.0)?,
                    };
                }
                tx.open_table(STATE)?.insert(CHECKPOINT, upto)?;
            }
            Ok(tx.commit()?)
        };
        let mut taken = self.with(take);
        if matches!(taken, Err(StoreError::Damaged { .. })) && self.renew()? {
            taken = self.with(take);
        }
        // Until here who is answered from memory has these rows from the store's own, which it lets go of after this.
        self.range_cache.forget();
        taken
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.read(
            |db| {
                let table = db.begin_read()?.open_table(ROWS)?;
                Ok(table.get(&*key.0)?.map(|value| value.value().into()))
            },
            |pages| pages.row(pages.table(ROWS_NAME, None)?, &key.0),
        )
    }

    /// The first row from a key on.
    pub(crate) fn first(&self, from: &Key) -> Result<Option<Row>, StoreError> {
        let asked = match self.range_cache.first(from) {
            Ok(row) => return Ok(row),
            Err(asked) => asked,
        };
        let row = self.rows(from, None, 1)?.pop();
        self.range_cache.remember(asked, from, row.clone());
        Ok(row)
    }

    /// Returns at most `limit` rows from `from` on and before `end`.
    pub(crate) fn range(&self, from: &Key, end: &Key, limit: usize) -> Result<Vec<Row>, StoreError> {
        self.rows(from, Some(end), limit)
    }

    fn rows(&self, from: &Key, end: Option<&Key>, limit: usize) -> Result<Vec<Row>, StoreError> {
        let end = end.map(|end| &*end.0);
        self.read(
            |db| {
                let table = db.begin_read()?.open_table(ROWS)?;
                let end = end.map_or(Bound::Unbounded, Bound::Excluded);
                let rows = table.range::<&[u8]>((Bound::Included(&*from.0), end))?;
                rows.take(limit)
                    .map(|row| {
                        let (key, value) = row?;
                        Ok((Key(key.value().to_vec()), value.value().into()))
                    })
                    .collect()
            },
            |pages| pages.rows(pages.table(ROWS_NAME, None)?, &from.0, end, limit),
        )
    }
}

impl Drop for BTree {
    fn drop(&mut self) {
        let db = self.db.get_mut().unwrap_or_else(PoisonError::into_inner).db.take();
        let _ = close(db);
    }
}

/// Runs what calls redb, which panics over some of what it does not expect on a disk. Nothing of what it has begun is used after that.
pub(super) fn whole<T>(act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|_| Err(Failure::Other(damaged("it is damaged".into()))))
}

/// Closes it, if it is open: redb writes its last state then.
pub(super) fn close(db: Option<Database>) -> Result<(), Failure> {
    whole(|| {
        drop(db);
        Ok(())
    })
}

fn number_in(pages: &Pages<'_>, name: &str) -> io::Result<Option<u64>> {
    let value = pages.row(pages.table(STATE_NAME, Some(8))?, name.as_bytes())?;
    Ok(value.and_then(|value| Some(u64::from_le_bytes(*value.first_chunk()?))))
}

fn number(db: &Database, name: &str) -> Result<Option<u64>, Failure> {
    match db.begin_read()?.open_table(STATE) {
        Ok(table) => Ok(table.get(name)?.map(|n| n.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn check_version(found: Option<u64>, newest: u64) -> Result<(), StoreError> {
    match found {
        Some(found) if (FORMAT..=newest).contains(&found) => Ok(()),
        Some(other) => {
            let why = format!("has format {other}, and this program reads {newest}: use a newer one");
            Err(StoreError::damaged(NAME, why))
        }
        None => Err(damaged("it has no version".into())),
    }
}

/// Makes a new file one of our version, and so one of the version before, or one whose checksums are gone: after redb has checked all
/// of it. Programs that know of no checksums refuse it from then on.
fn convert(file: &Arc<dyn DiskFile>, cache_bytes: usize, newest: u64) -> Result<(), StoreError> {
    let db = open(Backend(file.clone()), cache_bytes, true).map_err(Failure::told)?;
    let version = whole(|| number(&db, VERSION)).map_err(Failure::told)?;
    if !matches!(version, None | Some(1)) {
        return check_version(version, newest);
    }
    let note = || {
        let tx = begin(&db)?;
        tx.open_table(STATE)?.insert(VERSION, FORMAT)?;
        tx.open_table(ROWS)?;
        Ok(tx.commit()?)
    };
    whole(note).and_then(|()| close(Some(db))).map_err(Failure::told)
}

/// Opens a file; `is_checked` if redb is to read and check all of it, which takes too long for each start.
pub(super) fn open(
    backend: impl StorageBackend,
    cache_bytes: usize,
    is_checked: bool,
) -> Result<Database, Failure> {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes).set_check_integrity_on_open(is_checked);
    whole(|| match builder.create_with_backend(backend) {
        Ok(db) => Ok(db),
        Err(DatabaseError::Storage(StorageError::Corrupted(why))) => Err(Failure::Other(damaged(why))),
        // No database at all, or less of one than its header speaks of.
        Err(DatabaseError::Storage(StorageError::Io(error))) if is_damage(&error) => {
            Err(Failure::Other(damaged(error.to_string())))
        }
        Err(error) => Err(error.into()),
    })
}

pub(super) fn begin(db: &Database) -> Result<redb::WriteTransaction, Failure> {
    let mut tx = db.begin_write()?;
    tx.set_durability(Durability::Immediate)?;
    // Else opening after a crash would read all of it.
    tx.set_quick_repair(true);
    Ok(tx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimulatedDisk;

    /// A file that redb 2.6.4 has written, 40 rows and a checkpoint, as hexadecimal digits and `COUNT*BYTE` for repeated bytes.
    const OLD: &str = include_str!("redb-2.6.4.rle");

    fn bytes_of(text: &str) -> Vec<u8> {
        let byte = |digits: &str| u8::from_str_radix(digits, 16).unwrap();
        let mut out = Vec::new();
        for line in text.lines() {
            match line.split_once('*') {
                Some((count, digits)) => {
                    out.resize(out.len() + count.parse::<usize>().unwrap(), byte(digits))
                }
                None => out.extend((0..line.len()).step_by(2).map(|at| byte(&line[at..at + 2]))),
            }
        }
        out
    }

    #[test]
    fn a_partition_of_the_release_before_is_opened_and_changed() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(64 << 20));
        disk.create(NAME).unwrap().write_at(0, &bytes_of(OLD)).unwrap();
        for upto in [7, 8] {
            let rows = BTree::open(&disk, 1 << 20, FORMAT).unwrap();
            assert_eq!(rows.checkpoint().unwrap(), upto);
            for n in 0..40 {
                assert_eq!(rows.get(&Key(vec![n])).unwrap().as_deref(), Some(&[n; 20][..]), "row {n}");
            }
            rows.take(&Layer::from([(Key(vec![100]), Some([1].as_slice().into()))]), upto + 1).unwrap();
        }
    }
}
