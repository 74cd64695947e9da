//! The B-tree below the log: redb on a file of our disk.

use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use crate::rows::{Bytes, Key, Layer, Seq};
use redb::{Builder, Database, Durability, StorageBackend, TableDefinition, TableError};
use std::io;
use std::sync::Arc;

const NAME: &str = "rows.redb";
/// What it is called until there is something in it: redb does not open a file that it was killed over making.
const NEW: &str = "rows.redb.new";
const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const STATE: TableDefinition<'static, &str, u64> = TableDefinition::new("state");
/// The last record of the log that the rows are from.
const CHECKPOINT: &str = "checkpoint";
/// The version of the format (Volume format 1).
const VERSION: &str = "version";
/// What we write, and the newest that we read.
const FORMAT: u64 = 1;

/// redb's rows.
#[derive(Debug)]
pub(crate) struct BTree {
    db: Database,
}

/// A file for redb.
#[derive(Debug)]
struct Backend(Arc<dyn DiskFile>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; len];
        if self.0.read_at(offset, &mut out)? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_length(len)
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

fn failed(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Io(error) => StoreError::io(NAME)(error),
        redb::Error::Corrupted(why) => StoreError::damaged(NAME, why),
        other => StoreError::Io { what: NAME.into(), error: Arc::new(io::Error::other(other.to_string())) },
    }
}

impl BTree {
    /// Opens it, or makes it where there is none.
    pub(crate) fn open(disk: &dyn Disk, cache_bytes: usize) -> Result<Self, StoreError> {
        let file = match disk.open(NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::make(disk, cache_bytes)?;
                disk.open(NAME)
            }
            result => result,
        };
        let this = Self::of(file.map_err(StoreError::io(format!("cannot open {NAME}")))?, cache_bytes)?;
        match this.number(VERSION)? {
            Some(FORMAT) => Ok(this),
            other => {
                let other = other.unwrap_or(0);
                let why = format!("has format {other}, and this program reads {FORMAT}: use a newer one");
                Err(StoreError::damaged(NAME, why))
            }
        }
    }

    /// Makes it, so that it is there with its version or not at all.
    fn make(disk: &dyn Disk, cache_bytes: usize) -> Result<(), StoreError> {
        let file = disk.create(NEW).map_err(StoreError::io(format!("cannot make {NAME}")))?;
        let this = Self::of(file, cache_bytes)?;
        let tx = this.begin()?;
        tx.open_table(STATE).map_err(failed)?.insert(VERSION, FORMAT).map_err(failed)?;
        tx.open_table(ROWS).map_err(failed)?;
        tx.commit().map_err(failed)?;
        drop(this);
        disk.rename(NEW, NAME).map_err(StoreError::io(format!("cannot make {NAME}")))?;
        disk.sync_folder("").map_err(StoreError::io("cannot sync the folder"))
    }

    fn of(file: Arc<dyn DiskFile>, cache_bytes: usize) -> Result<Self, StoreError> {
        let db = Builder::new()
            .set_cache_size(cache_bytes)
            .create_with_file_format_v3(true)
            .create_with_backend(Backend(file))
            .map_err(failed)?;
        Ok(Self { db })
    }

    fn begin(&self) -> Result<redb::WriteTransaction, StoreError> {
        let mut tx = self.db.begin_write().map_err(failed)?;
        tx.set_durability(Durability::Immediate);
        // Else opening after a crash would read all of it.
        tx.set_quick_repair(true);
        Ok(tx)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, StoreError> {
        let tx = self.db.begin_read().map_err(failed)?;
        match tx.open_table(STATE) {
            Ok(table) => Ok(table.get(name).map_err(failed)?.map(|n| n.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The last record of the log whose rows are here.
    pub(crate) fn checkpoint(&self) -> Result<Seq, StoreError> {
        Ok(self.number(CHECKPOINT)?.unwrap_or(0))
    }

    /// Takes rows up to a record of the log; durable when it returns.
    pub(crate) fn take(&self, rows: &Layer, upto: Seq) -> Result<(), StoreError> {
        let tx = self.begin()?;
        {
            let mut table = tx.open_table(ROWS).map_err(failed)?;
            for (key, value) in rows {
                match value {
                    Some(value) => table.insert(&*key.0, &**value).map_err(failed)?,
                    None => table.remove(&*key.0).map_err(failed)?,
                };
            }
            tx.open_table(STATE).map_err(failed)?.insert(CHECKPOINT, upto).map_err(failed)?;
        }
        tx.commit().map_err(failed)
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(ROWS).map_err(failed)?;
        Ok(table.get(&*key.0).map_err(failed)?.map(|value| value.value().into()))
    }

    /// At most `limit` rows from `from` on and before `end`.
    pub(crate) fn range(&self, from: &Key, end: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>, StoreError> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(ROWS).map_err(failed)?;
        let rows = table.range::<&[u8]>(&*from.0..&*end.0).map_err(failed)?;
        rows.take(limit)
            .map(|row| {
                let (key, value) = row.map_err(failed)?;
                Ok((Key(key.value().to_vec()), value.value().into()))
            })
            .collect()
    }
}
