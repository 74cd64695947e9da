//! Letting go: of files that are not wanted any more, and of those that there is no room for. And what a thread does now and then.

use super::{FILE_OVERHEAD, Index, KEEPER_INTERVAL, LOW_WATER_PERCENT, Shared};
use crate::file::CacheFile;
use crate::records;
use crate::{CacheError, FileKey};
use afs_store::{Batch, lock};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Files that are let go of while nobody else can look at the index.
const FORGOTTEN_AT_ONCE: usize = 64;

/// The files that may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// Those that nobody has pinned.
    NotPinned,
    /// The others too: there is nothing else left.
    All,
}

impl Index {
    /// True if a file goes last when the cache is full.
    fn is_pinned(&self, key: FileKey) -> bool {
        self.pinned.contains(&key) || self.pinned.contains(&key.of_volume())
    }
}

impl Shared {
    /// See [`Cache::set_pinned`](super::Cache::set_pinned).
    pub(crate) fn set_pinned(&self, keys: &[FileKey], is_pinned: bool) {
        let mut index = lock(&self.index);
        for key in keys {
            match is_pinned {
                true => index.pinned.insert(*key),
                false => index.pinned.remove(key),
            };
        }
    }

    /// Makes room as the disk is full: of files that nobody has open, else of those that are open. Says whether there is some now.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let target = used.saturating_sub(bytes.max(16 << 20));
        if self.evict(target, usize::MAX, Goes::NotPinned).is_ok_and(|gone| gone > 0) {
            return true;
        }
        let mut gone = 0;
        for file in self.opened() {
            gone += file.let_go_when_full().unwrap_or(0);
        }
        gone > 0 || self.evict(target, usize::MAX, Goes::All).is_ok_and(|gone| gone > 0)
    }

    pub(super) fn keep(self: Arc<Self>) {
        let mut has_failed = false;
        loop {
            {
                let ended = lock(&self.ended);
                if *ended {
                    return;
                }
                let waited = self.wake.wait_timeout(ended, KEEPER_INTERVAL);
                if *waited.unwrap_or_else(std::sync::PoisonError::into_inner).0 {
                    return;
                }
            }
            match self.maintain() {
                Ok(()) => has_failed = false,
                // Once, and not each second.
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(%error, "the cache");
                }
                Err(_) => {}
            }
        }
    }

    pub(super) fn maintain(&self) -> Result<(), CacheError> {
        let failed = CacheError::store(&self.folder);
        self.store.prepare().map_err(&failed)?;
        self.save_all()?;
        self.sync_logged()?;
        let gone = std::mem::take(&mut *lock(&self.gone));
        if self.store.wants_checkpoint() {
            self.store.checkpoint().map_err(&failed)?;
        } else if (self.looks.fetch_add(1, Ordering::Relaxed) + 1)
            .is_multiple_of(self.looks_per_sync.load(Ordering::Relaxed))
            && (self.has_changes.load(Ordering::Acquire)
                || !gone.is_empty()
                || !lock(&self.index).dirty.is_empty())
        {
            self.has_changes.store(false, Ordering::Release);
            self.store.sync_all().map_err(&failed)?;
        }
        gone.into_iter().try_for_each(|number| self.remove_backing(number))?;
        let limit = self.limit.load(Ordering::Relaxed);
        if self.used.load(Ordering::Relaxed) > limit {
            let target = limit / 100 * LOW_WATER_PERCENT;
            self.evict(target, usize::MAX, Goes::NotPinned)?;
            self.evict_open(target)?;
            self.evict(limit, usize::MAX, Goes::All)?;
        }
        if lock(&self.index).files.len() > self.max_files {
            self.evict(u64::MAX, self.max_files / 100 * LOW_WATER_PERCENT as usize, Goes::NotPinned)?;
            self.evict(u64::MAX, self.max_files, Goes::All)?;
        }
        Ok(())
    }

    pub(super) fn save_all(&self) -> Result<(), CacheError> {
        self.opened().iter().try_for_each(|file| file.save())
    }

    fn opened(&self) -> Vec<Arc<CacheFile>> {
        lock(&self.index).open.values().filter_map(Weak::upgrade).collect()
    }

    /// Lets files go of those that may, the least recently opened first, until so many bytes are in use by so many files. Says how many bytes went.
    fn evict(&self, target: u64, max_files: usize, goes: Goes) -> Result<u64, CacheError> {
        let used = self.used.load(Ordering::Relaxed);
        let mut files = lock(&self.index).files.len();
        if used <= target && files <= max_files {
            return Ok(0);
        }
        let recent = std::mem::take(&mut lock(&self.index).recent);
        drop(recent);
        let mut gone = Vec::new();
        let mut left = used;
        {
            let mut index = lock(&self.index);
            let may_go = |key: &FileKey| goes == Goes::All || !index.is_pinned(*key);
            let mut closed: Vec<(u64, FileKey)> = index
                .files
                .iter()
                .filter(|(key, entry)| {
                    entry.open.strong_count() == 0 && !index.dirty.contains_key(key) && may_go(key)
                })
                .map(|(key, entry)| (entry.used, *key))
                .collect();
            closed.sort_unstable();
            let mut batch = Batch::default();
            for (_, key) in closed {
                if left <= target && files <= max_files {
                    break;
                }
                files = files.saturating_sub(1);
                let entry = &index.files[&key];
                left = left.saturating_sub(entry.bytes + FILE_OVERHEAD);
                batch.delete(records::file(key));
                gone.push((key, entry.number, entry.bytes + FILE_OVERHEAD));
            }
            self.commit(batch)?;
            for (key, ..) in &gone {
                index.files.remove(key);
            }
        }
        for (_, number, bytes) in &gone {
            self.remove_backing(*number)?;
            self.shrink(*bytes);
        }
        Ok(gone.iter().map(|(.., bytes)| bytes).sum())
    }

    /// Makes room where all files are open: what was read of them, or was written and is stored, goes.
    pub(super) fn evict_open(&self, target: u64) -> Result<(), CacheError> {
        let limit = self.limit.load(Ordering::Relaxed);
        let opened = self.opened();
        let index = lock(&self.index);
        let order = |file: &Arc<CacheFile>| (index.is_pinned(file.key()), file.used(), file.id());
        let mut open: Vec<_> = opened.into_iter().map(|file| (order(&file), file)).collect();
        drop(index);
        open.sort_by_key(|(order, _)| *order);
        for (_, file) in open {
            if self.used.load(Ordering::Relaxed) <= target {
                break;
            }
            file.let_go(file.near(limit))?;
        }
        Ok(())
    }

    /// Lets go of the files for which `which` is true; it is asked with the index locked. Without `all`, files that are dirty or open stay,
    /// because what is written into a file that was let go of does not survive a restart.
    pub(super) fn forget(&self, which: impl Fn(FileKey) -> bool, all: bool) -> Result<(), CacheError> {
        if !all {
            let recent = std::mem::take(&mut lock(&self.index).recent);
            drop(recent);
        }
        let mut keys: Vec<_> = lock(&self.index).files.keys().copied().filter(|key| which(*key)).collect();
        keys.sort_unstable();
        for some in keys.chunks(FORGOTTEN_AT_ONCE) {
            let mut ended = Vec::new();
            let mut index = lock(&self.index);
            for key in some {
                let is_open = index.files.get(key).is_some_and(|entry| entry.open.strong_count() > 0);
                if all || !is_open && !index.dirty.contains_key(key) {
                    self.forget_one(&mut index, *key, &mut ended)?;
                }
            }
        }
        Ok(())
    }

    /// Takes a file out of the index; its backing file goes when nobody has it open.
    pub(super) fn forget_one(
        &self,
        index: &mut Index,
        key: FileKey,
        ended: &mut Vec<Arc<CacheFile>>,
    ) -> Result<(), CacheError> {
        let Some(entry) = index.files.get(&key) else { return Ok(()) };
        let open = entry.open.upgrade();
        let (number, bytes) = (entry.number, entry.bytes);
        let mut batch = Batch::default();
        batch.delete(records::file(key));
        let dirty = match &open {
            Some(file) => file.dirty_ranges(),
            None => Vec::new(),
        };
        for range in dirty {
            batch.delete(records::dirty(number, range.start));
        }
        if let Some(file) = &open {
            // Before the rows go, so that none comes after.
            file.set_forgotten();
        }
        self.commit(batch)?;
        index.files.remove(&key);
        ended.extend(index.dirty.remove(&key));
        if let Some(at) = index.recent.iter().position(|file| file.key() == key) {
            ended.extend(index.recent.remove(at));
        }
        match open {
            Some(file) => ended.push(file),
            None => {
                self.shrink(bytes + FILE_OVERHEAD);
                self.remove_backing(number)?;
            }
        }
        Ok(())
    }
}
