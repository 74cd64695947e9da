//! Putting files aside: to where their writer finds them, and no program.

use super::Shared;
use crate::CacheError;
use crate::conflict::Conflict;
use crate::file::CacheFile;
use crate::records;
use afs_store::{Batch, lock};
use std::sync::Arc;

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
            writer: file.writer(),
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
        self.move_aside(&conflict)?;
        file.set_left(false);
        index.conflicts.insert(conflict.number, conflict.clone());
        Ok(conflict)
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
