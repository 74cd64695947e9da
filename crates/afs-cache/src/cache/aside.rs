//! Putting files aside: to where their writer finds them, and no program. What is there counts as the cache's, and has a limit of its own.

use super::{Index, Shared};
use crate::conflict::Conflict;
use crate::file::CacheFile;
use crate::records;
use crate::{CacheError, FileKey};
use afs_store::{Batch, lock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files that were put aside may take the cache's limit divided by this. Beyond that those go that came into the cache first, but
/// never the one that was put aside last: a program that tries again and again to write to a full volume must not fill the disk.
const ASIDE_PART: u64 = 4;

/// So many are kept at most: those without data take room too.
const ASIDE_MAX: usize = 10_000;

impl Shared {
    pub(super) fn put_aside(&self, file: &Arc<CacheFile>, why: &str) -> Result<Conflict, CacheError> {
        let mut ended = Vec::new();
        let mut index = lock(&self.index);
        let cell = index.cells.iter().find(|(_, number)| **number == file.key().cell);
        let conflict = Conflict {
            number: file.number(),
            cell: cell.map(|(name, _)| name.clone()).unwrap_or_default(),
            volume: file.key().volume,
            vnode: file.key().vnode,
            unique: file.key().unique,
            version: file.row().version,
            writer: file.writer().user,
            length: file.length(),
            ranges: file.dirty_ranges(),
            why: why.to_owned(),
        };
        if !file.is_left() {
            // What an earlier one with this number has left would pass for this one's.
            self.remove(&conflict.text_name())?;
            self.remove(&conflict.data_name())?;
        }
        file.set_left(true);
        file.set_forgotten();
        let mut batch = Batch::default();
        records::put(&mut batch, records::conflict(conflict.number), conflict.encode());
        records::put(&mut batch, records::aside(file.key()), []);
        // It may have been replaced by another version, whose row is not to go.
        let is_known = index.files.get(&file.key()).is_some_and(|entry| entry.number == file.number());
        if is_known {
            batch.delete(records::file(file.key()));
        }
        for range in &conflict.ranges {
            batch.delete(records::dirty(conflict.number, range.start));
        }
        self.commit(batch)?;
        if is_known {
            index.files.remove(&file.key());
            ended.extend(index.dirty.remove(&file.key()));
        }
        if let Some(at) = index.recent.iter().position(|recent| Arc::ptr_eq(recent, file)) {
            ended.extend(index.recent.remove(at));
        }
        self.move_aside(&conflict)?;
        file.set_left(false);
        let beyond = self.add_conflict(&mut index, &conflict);
        drop(index);
        self.remove_beyond(&beyond)?;
        Ok(conflict)
    }

    /// As [`crate::Cache::keep_given_up`].
    pub(super) fn keep_given_up(
        &self,
        key: FileKey,
        writer: u32,
        why: &str,
        data: &[u8],
    ) -> Result<Conflict, CacheError> {
        let mut index = lock(&self.index);
        let number = index.next_number;
        index.next_number += 1;
        let cell = index.cells.iter().find(|(_, number)| **number == key.cell);
        let length = data.len() as u64;
        let conflict = Conflict {
            number,
            cell: cell.map(|(name, _)| name.clone()).unwrap_or_default(),
            volume: key.volume,
            vnode: key.vnode,
            unique: key.unique,
            version: 0,
            writer,
            length,
            ranges: (length > 0).then_some(0..length).into_iter().collect(),
            why: why.to_owned(),
        };
        let failed = |error| CacheError::io(&self.folder, "cannot keep what was given up", error);
        // What an earlier one with this number has left would pass for this one's.
        self.remove(&conflict.text_name())?;
        self.remove(&conflict.data_name())?;
        let file = self.disk.create(&conflict.data_name()).map_err(failed)?;
        file.write_at(0, data).map_err(failed)?;
        let mut batch = Batch::default();
        records::put(&mut batch, records::conflict(number), conflict.encode());
        self.commit(batch)?;
        self.move_aside(&conflict)?;
        let beyond = self.add_conflict(&mut index, &conflict);
        drop(index);
        self.remove_beyond(&beyond)?;
        Ok(conflict)
    }

    /// Adds one to the list. Returns those that are beyond the limits then.
    fn add_conflict(&self, index: &mut Index, conflict: &Conflict) -> Vec<Conflict> {
        index.conflicts.insert(conflict.number, conflict.clone());
        self.grow(conflict.written());
        self.beyond_limit(&index.conflicts, conflict.number)
    }

    fn remove_beyond(&self, beyond: &[Conflict]) -> Result<(), CacheError> {
        for old in beyond {
            tracing::warn!(file = %old.data_name(), "a file that was put aside is removed to make room for newer ones");
            self.remove_conflict(old)?;
        }
        Ok(())
    }

    /// The conflicts beyond the limit, the lowest numbers first.
    fn beyond_limit(&self, all: &BTreeMap<u64, Conflict>, newest: u64) -> Vec<Conflict> {
        let limit = self.limit.load(Ordering::Relaxed) / ASIDE_PART;
        let mut total: u64 = all.values().map(Conflict::written).sum();
        let mut beyond = Vec::new();
        for old in all.values().filter(|old| old.number != newest) {
            if total <= limit && all.len() - beyond.len() <= ASIDE_MAX {
                break;
            }
            total -= old.written();
            beyond.push(old.clone());
        }
        beyond
    }

    /// As [`crate::Cache::remove_conflict`].
    pub(super) fn remove_conflict(&self, conflict: &Conflict) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        batch.delete(records::conflict(conflict.number));
        self.commit(batch)?;
        if lock(&self.index).conflicts.remove(&conflict.number).is_some() {
            self.shrink(conflict.written());
        }
        self.remove(&conflict.data_name())?;
        self.remove(&conflict.text_name())
    }

    /// As [`crate::Cache::read_conflict`].
    pub(super) fn read_conflict(
        &self,
        conflict: &Conflict,
        position: u64,
        length: usize,
    ) -> Result<Vec<u8>, CacheError> {
        let left = conflict.length.saturating_sub(position);
        let mut bytes = vec![0; length.min(usize::try_from(left).unwrap_or(length))];
        let read = self.disk.open(&conflict.data_name()).and_then(|file| file.read_at(position, &mut bytes));
        let read = read.map_err(|error| {
            CacheError::io(&self.folder, format!("cannot read {}", conflict.data_name()), error)
        })?;
        // Behind its end are zeros.
        bytes[read..].fill(0);
        Ok(bytes)
    }

    /// Moves a conflict's data to where its writer finds them, and says there what they are. Does what is left of that.
    pub(super) fn move_aside(&self, conflict: &Conflict) -> Result<(), CacheError> {
        let failed = |error| CacheError::io(&self.folder, "cannot put a file aside", error);
        if self.disk.open(&conflict.text_name()).is_ok() {
            return Ok(()); // The text comes last: if the data are not there, somebody has taken them.
        }
        self.data.move_away(conflict.number, &conflict.data_name(), conflict.length).map_err(failed)?;
        let file = self.disk.create(&conflict.text_name()).map_err(failed)?;
        file.write_at(0, conflict.text().as_bytes()).map_err(|error| {
            let _ = self.disk.remove(&conflict.text_name()); // It is to be whole or not there.
            failed(error)
        })
    }
}
