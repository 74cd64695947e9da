//! Files of the cache as they are opened and closed: what the index has of them, what their rows say.

use super::{Entry, FILE_OVERHEAD, Held, Index, RECENT_FILES, Shared};
use crate::backing::BackingFile;
use crate::file::CacheFile;
use crate::ranges::RangeSet;
use crate::records::{self, FileRow};
use crate::{CacheError, FileKey};
use afs_store::{Batch, StoreError, lock};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The part of a file that is on disk.
pub(super) struct Loaded {
    file: BackingFile,
    row: FileRow,
    dirty: RangeSet,
}

impl Shared {
    pub(super) fn file(
        self: &Arc<Self>,
        key: FileKey,
        version: u64,
        length: u64,
    ) -> Result<Held, CacheError> {
        // Dropped after the lock is: the end of a file takes it.
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        if let Some(file) = self.open_held(&mut index, key, &mut ended)? {
            if file.version() == version && file.server_length() == length {
                return Ok(Held::Current(file));
            }
            if file.is_dirty() {
                return Ok(Held::Dirty(file));
            }
            self.forget_one(&mut index, key, &mut ended)?;
            ended.push(file);
        }
        let number = index.next_number;
        index.next_number += 1;
        let make = || {
            let file = self.data.create(number)?;
            if length > 0 {
                file.set_length(length)?;
            }
            Ok(file)
        };
        let file = make().map_err(|error| {
            let _ = self.data.remove(number);
            CacheError::io(&self.folder, "cannot make a file", error)
        })?;
        index.tick += 1;
        let row = FileRow {
            number,
            version,
            server_length: length,
            length,
            truncated_to: u64::MAX,
            used: index.tick,
            ..FileRow::default()
        };
        self.grow(FILE_OVERHEAD);
        let file = self.enter(&mut index, key, Loaded { file, row, dirty: RangeSet::new() }, &mut ended);
        // Its row is written with the first that there is to say of it, or when it is closed: until then a backing file without
        // a row is all that a kill leaves, which a start removes.
        file.note_new();
        Ok(Held::Current(file))
    }

    pub(super) fn held(self: &Arc<Self>, key: FileKey) -> Result<Option<Arc<CacheFile>>, CacheError> {
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        self.open_held(&mut index, key, &mut ended)
    }

    /// Opens what the index has.
    pub(super) fn open_held(
        self: &Arc<Self>,
        index: &mut Index,
        key: FileKey,
        ended: &mut Vec<Arc<CacheFile>>,
    ) -> Result<Option<Arc<CacheFile>>, CacheError> {
        index.tick += 1;
        let tick = index.tick;
        let Some(entry) = index.files.get_mut(&key) else { return Ok(None) };
        entry.used = tick;
        let (number, counted) = (entry.number, entry.bytes);
        if let Some(file) = entry.open.upgrade() {
            file.note_used(tick);
            return Ok(Some(file));
        }
        let Some(loaded) = self.load_file(key, number)? else {
            self.forget_one(index, key, ended)?;
            return Ok(None);
        };
        let file = self.enter(index, key, loaded, ended);
        // The row had nothing of dirty ranges, and may have had others that are not there.
        let found = file.counted_bytes();
        self.grow(found.saturating_sub(counted));
        self.shrink(counted.saturating_sub(found));
        Ok(Some(file))
    }

    pub(super) fn rename(&self, from: FileKey, to: FileKey) -> Result<(), CacheError> {
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        let row = self.store.get(&records::file(from)).map_err(CacheError::store(&self.folder))?;
        let row = row.and_then(|row| records::file_row(&records::file(from), &row));
        let is_open = index.files.get(&from).is_none_or(|entry| entry.open.strong_count() > 0);
        let Some(row) = row.filter(|_| !is_open && !index.files.contains_key(&to)) else {
            return self.forget_one(&mut index, from, &mut ended);
        };
        let mut batch = Batch::default();
        batch.delete(records::file(from));
        records::put(&mut batch, records::file(to), row.encode());
        self.commit(batch)?;
        if let Some(entry) = index.files.remove(&from) {
            index.files.insert(to, entry);
        }
        Ok(())
    }

    /// Makes a file known as open.
    pub(super) fn enter(
        self: &Arc<Self>,
        index: &mut Index,
        key: FileKey,
        loaded: Loaded,
        ended: &mut Vec<Arc<CacheFile>>,
    ) -> Arc<CacheFile> {
        let Loaded { file, mut row, dirty } = loaded;
        index.next_id += 1;
        row.used = index.tick;
        let id = index.next_id;
        let mut entry =
            Entry { number: row.number, bytes: row.present.total(), used: row.used, open: Weak::new(), id };
        let length = row.length;
        let file = Arc::new(CacheFile::new(self.clone(), key, id, file, length, row, dirty));
        entry.open = Arc::downgrade(&file);
        index.open.insert(key, Weak::clone(&entry.open));
        index.files.insert(key, entry);
        index.recent.push_back(file.clone());
        if index.recent.len() > RECENT_FILES {
            ended.extend(index.recent.pop_front());
        }
        file
    }

    /// Reads what there is of a file: its backing file, its row, what is dirty. `None` if that is gone or makes no sense.
    pub(super) fn load_file(&self, key: FileKey, number: u64) -> Result<Option<Loaded>, CacheError> {
        let failed = CacheError::store(&self.folder);
        let row_key = records::file(key);
        let row = self.store.get(&row_key).map_err(&failed)?;
        let Some(mut row) = row.and_then(|row| records::file_row(&row_key, &row)) else { return Ok(None) };
        if row.number != number {
            return Ok(None);
        }
        let mut dirty = RangeSet::new();
        self.store
            .scan::<StoreError>(&records::dirty_of(number), |key, row| {
                dirty.extend(&records::dirty_row(key, row).map(|(_, range)| range).into_iter().collect());
                Ok(())
            })
            .map_err(&failed)?;
        let in_slot = row.is_small.then(|| row.length.max(dirty.end()));
        let (file, on_disk) = match self.data.open(number, in_slot) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CacheError::io(&self.folder, "cannot open a file", error)),
        };
        let logged = dirty.clone();
        let was_lent = row.is_lent;
        if was_lent {
            // Nobody knows what the kernel has written.
            row.truncated_to = row.truncated_to.min(on_disk);
            row.length = on_disk;
            row.is_lent = false;
            dirty.insert(0..on_disk);
        }
        row.length = row.length.max(dirty.end());
        if on_disk < row.length {
            // Files are made as long as rows say before these do: somebody has cut it. The row says so before it is as long again.
            row.present.remove(on_disk..u64::MAX);
            if !was_lent {
                let mut batch = Batch::default();
                records::put(&mut batch, row_key.clone(), row.encode());
                self.commit(batch)?;
            }
        }
        if on_disk != row.length {
            // A write that was not acknowledged, or a cut that was.
            let set = file.set_length(row.length);
            set.map_err(|error| CacheError::io(&self.folder, "cannot set a file's length", error))?;
        }
        row.present.remove(row.length..u64::MAX);
        row.present.extend(&dirty);
        // Behind what the server has there is only what was written here, and zeros.
        row.present.insert(row.server_length.min(row.truncated_to).min(row.length)..row.length);
        if was_lent {
            // From here on the rows say what is dirty, as of other files.
            let mut batch = Batch::default();
            for range in logged.iter() {
                batch.delete(records::dirty(number, range.start));
            }
            for range in dirty.iter() {
                records::put(&mut batch, records::dirty(number, range.start), range.end.to_be_bytes());
            }
            records::put(&mut batch, row_key, row.encode());
            self.commit(batch)?;
        }
        Ok(Some(Loaded { file, row, dirty }))
    }

    /// Notes that nobody has a file open any more.
    pub(crate) fn closed(&self, file: &CacheFile) {
        let mut index = lock(&self.index);
        if index.open.get(&file.key()).is_some_and(|open| open.strong_count() == 0) {
            index.open.remove(&file.key());
        }
        if file.is_forgotten() {
            drop(index);
            self.shrink(file.counted_bytes() + FILE_OVERHEAD);
            if file.is_left() {
                return;
            }
            if self.looks_per_sync.load(Ordering::Relaxed) == 1 && !self.is_closed.load(Ordering::Acquire) {
                lock(&self.gone).push(file.number());
            } else if let Err(error) = self.remove_backing(file.number()) {
                tracing::warn!(%error, "a file of the cache stays until the next start");
            }
            return;
        }
        let Some(entry) = index.files.get_mut(&file.key()).filter(|entry| entry.id == file.id()) else {
            return;
        };
        entry.bytes = file.counted_bytes();
        // What points to it keeps its memory, though nothing is in it any more.
        entry.open = Weak::new();
        // With the index locked: so that nobody opens it with the old row.
        if let Err(error) = file.save() {
            tracing::warn!(%error, "the row of a file in the cache was not written");
        }
    }

    /// A file has something to be stored, or has no more.
    pub(crate) fn note_dirty(&self, key: FileKey, id: u64, is_dirty: bool) {
        let mut gone = None;
        let mut index = lock(&self.index);
        if is_dirty {
            let open =
                index.files.get(&key).filter(|entry| entry.id == id).and_then(|entry| entry.open.upgrade());
            if let Some(open) = open {
                gone = index.dirty.insert(key, open);
            }
        } else if index.dirty.get(&key).is_some_and(|file| file.id() == id) {
            gone = index.dirty.remove(&key);
        }
        drop(index);
        drop(gone);
    }
}
