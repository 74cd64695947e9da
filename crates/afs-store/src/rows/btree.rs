//! The B-tree below the log: redb on a file of our disk.

use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use crate::rows::range_cache::RangeCache;
use crate::rows::{Bytes, Key, Layer, Row, Seq};
use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, StorageBackend, StorageError,
    TableDefinition, TableError,
};
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

const NAME: &str = "rows.redb";
/// The first bytes of redb's file, once it is a database: written last when it is made.
const MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";
const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const STATE: TableDefinition<'static, &str, u64> = TableDefinition::new("state");
/// The last record of the log that the rows are from.
const CHECKPOINT: &str = "checkpoint";
/// The version of the format (Volume format 1).
const VERSION: &str = "version";
/// The version that we write, and the newest that we read.
const FORMAT: u64 = 1;

/// redb's rows.
#[derive(Debug)]
pub(crate) struct BTree {
    file: Arc<dyn DiskFile>,
    cache_bytes: usize,
    db: RwLock<Opened>,
    range_cache: RangeCache,
    /// The lock on the folder goes with the disk: last, as redb writes when it is dropped.
    _disk: Arc<dyn Disk>,
}

/// redb, as it is open: after an error of the disk it answers nothing, reads included, until it is opened again.
#[derive(Debug)]
struct Opened {
    /// The number of times that it was opened.
    times: u64,
    /// None while opening it again has failed.
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
enum Failure {
    /// It is to be opened again.
    Closed,
    Other(StoreError),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let other = |text: String| StoreError::io(NAME)(io::Error::other(text));
        match error.into() {
            redb::Error::PreviousIo => Self::Closed,
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

/// True if the file was begun and never was a database: it has no magic, and there is no log, which is made after it.
fn is_half_made(disk: &dyn Disk, file: &dyn DiskFile) -> Result<bool, StoreError> {
    let look = || {
        let mut begin = [0; MAGIC.len()];
        file.read_at(0, &mut begin)?;
        Ok(begin != *MAGIC && !disk.list("")?.iter().any(|name| name.starts_with("log.")))
    };
    look().map_err(StoreError::io(format!("cannot read {NAME}")))
}

/// Refuses an empty file beside a log: redb would make a database of it.
fn check_length(file: &dyn DiskFile) -> Result<(), StoreError> {
    match file.length().map_err(StoreError::io(format!("cannot read {NAME}")))? {
        0 => Err(damaged("it is empty".into())),
        _ => Ok(()),
    }
}

fn damaged(why: String) -> StoreError {
    StoreError::damaged(
        NAME,
        format!("{why}; put back a copy of the whole folder, or begin with an empty one"),
    )
}

impl BTree {
    /// Opens it, or makes it where there is none, also where a start ended while it was made.
    pub(crate) fn open(disk: &Arc<dyn Disk>, cache_bytes: usize) -> Result<Self, StoreError> {
        let file = match disk.open(NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(NAME),
            Ok(file) if is_half_made(&**disk, &*file)? => disk.create(NAME),
            Ok(file) => check_length(&*file).map(|()| Ok(file))?,
            Err(error) => Err(error),
        };
        let file = file.map_err(StoreError::io(format!("cannot open {NAME}")))?;
        let db = Some(open(file.clone(), cache_bytes).map_err(Failure::told)?);
        let this = Self {
            file,
            cache_bytes,
            db: RwLock::new(Opened { times: 1, db }),
            range_cache: RangeCache::default(),
            _disk: disk.clone(),
        };
        match this.number(VERSION)? {
            Some(FORMAT) => {}
            Some(other) => {
                let why = format!("has format {other}, and this program reads {FORMAT}: use a newer one");
                return Err(StoreError::damaged(NAME, why));
            }
            None => {
                this.with(|db| {
                    let tx = begin(db)?;
                    tx.open_table(STATE)?.insert(VERSION, FORMAT)?;
                    tx.open_table(ROWS)?;
                    Ok(tx.commit()?)
                })?;
                disk.sync_folder("").map_err(StoreError::io("cannot sync the folder"))?;
            }
        }
        Ok(this)
    }

    /// Runs `act` with the database. An error of the disk that is over, such as that it was full, does not keep it closed: what
    /// was committed before is all there, and the rest is in the log.
    fn with<T>(&self, act: impl Fn(&Database) -> Result<T, Failure>) -> Result<T, StoreError> {
        let mut is_second = false;
        loop {
            let times = {
                let opened = self.db.read().unwrap_or_else(PoisonError::into_inner);
                match opened.db.as_ref().map(&act) {
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
            opened.db = None;
            opened.times += 1;
            opened.db = Some(open(self.file.clone(), self.cache_bytes).map_err(Failure::told)?);
        }
        Ok(())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, StoreError> {
        self.with(|db| match db.begin_read()?.open_table(STATE) {
            Ok(table) => Ok(table.get(name)?.map(|n| n.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// The last record of the log whose rows are here.
    pub(crate) fn checkpoint(&self) -> Result<Seq, StoreError> {
        Ok(self.number(CHECKPOINT)?.unwrap_or(0))
    }

    /// Takes rows up to a record of the log; durable when it returns.
    pub(crate) fn take(&self, rows: &Layer, upto: Seq) -> Result<(), StoreError> {
        let taken = self.with(|db| {
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
        });
        // Until here who is answered from memory has these rows from the store's own, which it lets go of after this.
        self.range_cache.forget();
        taken
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.with(|db| {
            let table = db.begin_read()?.open_table(ROWS)?;
            Ok(table.get(&*key.0)?.map(|value| value.value().into()))
        })
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
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(&*end.0));
        self.with(|db| {
            let table = db.begin_read()?.open_table(ROWS)?;
            let rows = table.range::<&[u8]>((Bound::Included(&*from.0), end))?;
            rows.take(limit)
                .map(|row| {
                    let (key, value) = row?;
                    Ok((Key(key.value().to_vec()), value.value().into()))
                })
                .collect()
        })
    }
}

fn open(file: Arc<dyn DiskFile>, cache_bytes: usize) -> Result<Database, Failure> {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    // redb 4.6 checks all pages at opening if it is asked to, which is too slow for the rows of a partition. Without that it
    // panics over some damaged pages; nothing of what it has begun is used after one.
    match catch_unwind(AssertUnwindSafe(|| builder.create_with_backend(Backend(file)))) {
        Ok(Ok(db)) => Ok(db),
        Ok(Err(DatabaseError::Storage(StorageError::Corrupted(why)))) => Err(Failure::Other(damaged(why))),
        // No database at all, or less of one than its header speaks of.
        Ok(Err(DatabaseError::Storage(StorageError::Io(error))))
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            Err(Failure::Other(damaged(error.to_string())))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Failure::Other(damaged("it is damaged".into()))),
    }
}

fn begin(db: &Database) -> Result<redb::WriteTransaction, Failure> {
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
            let rows = BTree::open(&disk, 1 << 20).unwrap();
            assert_eq!(rows.checkpoint().unwrap(), upto);
            for n in 0..40 {
                assert_eq!(rows.get(&Key(vec![n])).unwrap().as_deref(), Some(&[n; 20][..]), "row {n}");
            }
            rows.take(&Layer::from([(Key(vec![100]), Some([1].as_slice().into()))]), upto + 1).unwrap();
        }
    }
}
