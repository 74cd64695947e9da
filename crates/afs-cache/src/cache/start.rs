//! The start, which brings what a crash left in order, and the end; and whether a folder is one for us.

use super::{Entry, FILE_OVERHEAD, Index, Shared, VERSION, VERSION_TEXT};
use crate::conflict::{self, Conflict};
use crate::ranges::RangeSet;
use crate::records::{self, FileRow};
use crate::{CacheError, CellNumber, FORMAT, FileKey};
use afs_store::{Batch, StoreError, lock};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Has the file system not note when files of the folder are read, where it can: nobody asks, each note is a write to the disk,
/// and even to find that none is due takes 6 % of a read of 4 KiB that the kernel makes by itself.
pub(super) fn keep_no_times_of_access(folder: &Path) {
    let set = || -> io::Result<()> {
        let folder = File::open(folder)?;
        let flags = ioctl_getflags(&folder)?;
        // What is made in it has the flag too.
        Ok(ioctl_setflags(&folder, flags | IFlags::NOATIME)?)
    };
    if let Err(error) = set() {
        tracing::debug!(folder = %folder.display(), %error, "the file system notes when files of the cache are read");
    }
}

impl Shared {
    /// Reads the index, and brings what a crash left in order.
    pub(super) fn load(self: &Arc<Self>) -> Result<(), CacheError> {
        let failed = CacheError::store(&self.folder);
        let has_lost_power = self.store.is_other_boot && self.store.was_unclean;
        let losses = self.store.losses().iter().filter(|loss| loss.batches > 0);
        for loss in losses.clone() {
            tracing::error!(folder = %self.folder.display(), %loss, "the cache's index is damaged: all files are fetched again, and \
                what was written and not stored is put aside, as far as the index still knows of it");
        }
        let has_lost_changes = losses.count() > 0;
        let is_in_doubt = has_lost_power || has_lost_changes;
        let mut index = Index::default();
        let mut rows: Vec<(FileKey, FileRow)> = Vec::new();
        let mut bad = Vec::new();
        self.store
            .scan::<StoreError>(&records::cells(), |key, row| {
                let number = records::unsealed(key, row).and_then(|row| <[u8; 4]>::try_from(row).ok());
                match (records::cell_of(key), number) {
                    (Some(name), Some(number)) => {
                        index.cells.insert(name, CellNumber(u32::from_be_bytes(number)));
                    }
                    _ => bad.push(key.clone()),
                }
                Ok(())
            })
            .map_err(&failed)?;
        self.store
            .scan::<StoreError>(&records::files(), |key, row| {
                match (records::file_of(key), records::file_row(key, row)) {
                    (Some(found), Some(row)) => rows.push((found, row)),
                    _ => bad.push(key.clone()),
                }
                Ok(())
            })
            .map_err(&failed)?;
        let mut dirty: BTreeSet<u64> = BTreeSet::new();
        let mut stray = Vec::new();
        let mut suspect = BTreeSet::new();
        let known: BTreeMap<u64, FileKey> = rows.iter().map(|(key, row)| (row.number, *key)).collect();
        self.store
            .scan::<StoreError>(&records::all_dirty(), |key, row| {
                match records::dirty_row(key, row) {
                    Some((number, _)) if known.contains_key(&number) => {
                        dirty.insert(number);
                    }
                    Some(_) => stray.push(key.clone()),
                    None => {
                        suspect.extend(records::file_number(key));
                        stray.push(key.clone());
                    }
                }
                Ok(())
            })
            .map_err(&failed)?;
        let mut logged = BTreeMap::new();
        let mut with_data = Vec::new();
        self.store
            .scan::<StoreError>(&records::all_logged(), |key, row| {
                with_data.push(key.clone());
                if let Some(number) = records::file_number(key).filter(|_| has_lost_power) {
                    match records::pieces(key, row) {
                        Some(pieces) => _ = logged.insert(number, pieces),
                        None => _ = suspect.insert(number),
                    }
                }
                Ok(())
            })
            .map_err(&failed)?;
        self.store
            .scan::<StoreError>(&records::conflicts(), |key, row| {
                match records::unsealed(key, row).and_then(|row| conflict::decode(key, row)) {
                    Some(conflict) => drop(index.conflicts.insert(conflict.number, conflict)),
                    None => stray.push(key.clone()),
                }
                Ok(())
            })
            .map_err(&failed)?;
        let mut batch = Batch::default();
        for key in bad.into_iter().chain(stray) {
            tracing::warn!(key = ?key.0, "a row of the cache's index makes no sense and is dropped");
            batch.delete(key);
        }
        index.next_number = known.keys().chain(index.conflicts.keys()).max().map_or(1, |last| last + 1);
        let mut used = 0u64;
        let mut unsaved = Vec::new();
        let mut promised = BTreeSet::new();
        let mut put_back = Vec::new();
        for (key, mut row) in rows {
            let is_dirty = dirty.contains(&row.number)
                || suspect.contains(&row.number)
                || row.is_lent
                || records::is_other_there(row.server_length, row.sent, row.length, row.truncated_to);
            if is_in_doubt && !is_dirty {
                // The row may be older than the data, or the data may not have reached the disk.
                batch.delete(records::file(key));
                continue;
            }
            if row.is_promised
                && let Some(pieces) = logged.remove(&row.number)
            {
                put_back.push((row.clone(), pieces));
            }
            if has_lost_power && !has_lost_changes && row.is_promised && !suspect.contains(&row.number) {
                // The dirty ranges were synced when it was promised, and count. What else there is, or the kernel wrote, may not have been.
                row.present = RangeSet::new();
                row.is_lent = false;
                records::put(&mut batch, records::file(key), row.encode());
                promised.insert(key);
            }
            index.tick = index.tick.max(row.used);
            used = used.saturating_add(row.present.total() + FILE_OVERHEAD);
            let entry = Entry {
                number: row.number,
                bytes: row.present.total(),
                used: row.used,
                open: Weak::new(),
                id: 0,
            };
            index.files.insert(key, entry);
            if is_dirty {
                unsaved.push(key);
            }
        }
        let aside: u64 = index.conflicts.values().map(Conflict::written).fold(0, u64::saturating_add);
        self.used.store(used.saturating_add(aside), Ordering::Relaxed);
        let conflicts: Vec<Conflict> = index.conflicts.values().cloned().collect();
        if self.store.was_unclean {
            self.remove_orphans(&index)?;
        }
        let begun = self.data.begin(backed(&index), index.next_number, self.store.was_unclean);
        index.next_number =
            begun.map_err(|error| CacheError::io(&self.folder, "cannot look through the data", error))?;
        *lock(&self.index) = index;
        // Before any row is written: another start must know that power was lost, and that the backing files have not all yet.
        for (row, pieces) in &put_back {
            self.put_back(row, pieces)?;
        }
        let numbers = with_data.iter().filter_map(records::file_number);
        let files = numbers.flat_map(|number| {
            [records::backing_name(number), records::slab_name(number / records::IN_FOLDER)]
        });
        self.store.sync_data(files.collect()).map_err(&failed)?;
        with_data.into_iter().for_each(|key| batch.delete(key));
        self.commit(batch)?;
        for conflict in conflicts {
            self.move_aside(&conflict)?;
            self.remove_backing(conflict.number)?;
        }
        for key in unsaved {
            let Some(file) = self.held(key)? else {
                tracing::error!(
                    ?key,
                    "data that were written and not stored are missing in the cache's folder"
                );
                continue;
            };
            let why = if promised.contains(&key) {
                None
            } else if has_lost_power {
                Some("the machine lost power before it was stored: it may not be whole")
            } else if has_lost_changes || suspect.contains(&file.number()) {
                Some("the cache's index was damaged: nobody knows which parts were written")
            } else {
                None
            };
            if let Some(why) = why {
                let conflict = self.put_aside(&file, why)?;
                tracing::error!(file = %conflict.data_name(), %why, "a file was put aside");
            } else {
                self.note_dirty(key, file.id(), true);
                file.set_kept();
            }
        }
        match has_lost_changes {
            // What could be read of a damaged log is brought to where the damage is not.
            true => match self.store.checkpoint() {
                Ok(()) | Err(StoreError::DiskFull) => Ok(()),
                Err(error) => Err(failed(error)),
            },
            false => Ok(()),
        }
    }

    /// Removes backing files that no row names: of what was made or let go when the process ended.
    pub(super) fn remove_orphans(&self, index: &Index) -> Result<(), CacheError> {
        let failed = |error| CacheError::io(&self.folder, "cannot list the folder", error);
        let known: BTreeSet<u64> = backed(index).collect();
        for folder in self.disk.list("data").map_err(failed)? {
            for name in self.disk.list(&format!("data/{folder}")).map_err(failed)? {
                let is_known = records::backing_number(&name).is_some_and(|number| known.contains(&number));
                if !is_known && name != records::SLAB {
                    self.remove(&format!("data/{folder}/{name}"))?;
                }
            }
        }
        Ok(())
    }

    /// Lets go of the files that the index keeps, which keep this: without an end to that the folder would stay locked.
    pub(super) fn let_go(&self) {
        let kept = {
            let mut index = lock(&self.index);
            (std::mem::take(&mut index.recent), std::mem::take(&mut index.dirty))
        };
        drop(kept);
    }

    pub(super) fn close(&self) -> Result<(), CacheError> {
        let closed = self.close_index();
        // Not before: what is not known as dirty may be let go for room.
        self.let_go();
        closed
    }

    fn close_index(&self) -> Result<(), CacheError> {
        let failed = CacheError::store(&self.folder);
        self.save_all()?;
        self.sync_logged()?;
        // The order in which files were used, as the index knows it better than the rows.
        let used: Vec<_> = {
            let index = lock(&self.index);
            index.files.iter().map(|(key, entry)| (*key, entry.used)).collect()
        };
        let mut batch = Batch::default();
        for (key, used) in used {
            let row_key = records::file(key);
            let row = self.store.get(&row_key).map_err(&failed)?;
            if let Some(mut row) = row.and_then(|row| records::file_row(&row_key, &row))
                && row.used != used
            {
                row.used = used;
                records::put(&mut batch, row_key, row.encode());
            }
        }
        self.commit(batch)?;
        // Data before the mark that says that all was closed.
        self.disk
            .sync_all()
            .map_err(|error| CacheError::io(&self.folder, "cannot sync the folder", error))?;
        self.is_closed.store(true, Ordering::Release);
        self.store.close().map_err(&failed)?;
        std::mem::take(&mut *lock(&self.gone)).into_iter().try_for_each(|number| self.remove_backing(number))
    }
}

/// The numbers of the backing files that are to be there: those of conflicts may not have been moved yet.
fn backed(index: &Index) -> impl Iterator<Item = u64> {
    index.files.values().map(|entry| entry.number).chain(index.conflicts.keys().copied())
}

/// Puts what there is of a cache aside, in a folder of its own below, so that a new one can be begun: what was written and not
/// stored may be among it. Which folder that is.
pub(super) fn put_all_aside(folder: &Path) -> Result<PathBuf, CacheError> {
    let failed = |error| CacheError::io(folder, "cannot put a damaged cache aside", error);
    let mut names = (1..).map(|number: u32| folder.join(format!("{DAMAGED}{number}")));
    let aside = names.find(|name| !name.exists()).expect("there are not so many");
    std::fs::create_dir(&aside).map_err(failed)?;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if OURS.contains(&&*text) || text.starts_with("log.") {
            std::fs::rename(entry.path(), aside.join(&name)).map_err(failed)?;
        }
    }
    Ok(aside)
}

/// The files in the folder of a cache, beside the version and the log.
const OURS: [&str; 4] = ["data", "conflicts", "rows.redb", "rows.sums"];
/// The name for a damaged cache; a number follows.
const DAMAGED: &str = "damaged.";

/// Says whether a folder is one for us: empty, or a cache of a version that we know. Writes the version into an empty one. Which
/// version it is.
pub(super) fn check_version(folder: &Path) -> Result<u32, CacheError> {
    let failed = |what: &str, error| CacheError::io(folder, what, error);
    let path = folder.join(VERSION);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().strip_prefix(VERSION_TEXT.trim_end()).map(str::trim);
            match found.map(str::parse::<u32>) {
                Some(Ok(version)) if version <= FORMAT => Ok(version),
                Some(_) => Err(CacheError::Newer {
                    folder: folder.to_owned(),
                    found: found.unwrap_or_default().to_owned(),
                }),
                None => Err(CacheError::Foreign { folder: folder.to_owned() }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // What others put into the folder of a cache (a socket, `lost+found`) is theirs; another's data are not to
            // be mixed with ours.
            let entries = std::fs::read_dir(folder).map_err(|e| failed("cannot list the folder", e))?;
            for entry in entries {
                let entry = entry.map_err(|e| failed("cannot list the folder", e))?;
                let name = entry.file_name();
                let is_ours = OURS.iter().any(|ours| name == *ours);
                if is_ours {
                    return Err(CacheError::Foreign { folder: folder.to_owned() });
                }
            }
            write_version(folder)?;
            Ok(FORMAT)
        }
        Err(error) => Err(failed("cannot read its version", error)),
    }
}

/// Writes the version that we write.
pub(super) fn write_version(folder: &Path) -> Result<(), CacheError> {
    let temporary = folder.join("VERSION.new");
    let write = || {
        std::fs::write(&temporary, format!("{VERSION_TEXT}{FORMAT}\n"))?;
        std::fs::File::open(&temporary)?.sync_all()?;
        std::fs::rename(&temporary, folder.join(VERSION))
    };
    write().map_err(|error| CacheError::io(folder, "cannot write its version", error))
}
