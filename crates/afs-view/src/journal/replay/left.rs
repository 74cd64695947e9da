//! What the last run of the client has left in its cache: it is taken over at the start, or once its cell is known, and sent like what is changed
//! from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use afs_cache::{CellNumber, Change, FileKey, NewKind, RealId, What};
use afs_wire::ids::{AfsTime, LocalFid, Uniquifier, VnodeNumber, VolumeId};

use super::{Replay, new_status};
use crate::data::files::{local, lock};
use crate::data::store_behind::DNS_AGAIN;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};

/// What the last run has left.
#[derive(Debug)]
struct Left {
    changes: Vec<(u64, Change<FileKey>)>,
    real: Vec<(FileKey, RealId)>,
    /// Files whose data were put aside.
    aside: Vec<FileKey>,
}

impl Left {
    /// The cells of the changes: how many there are, and the time of the oldest.
    fn cells(&self) -> BTreeMap<CellNumber, (usize, u32)> {
        let mut cells = BTreeMap::new();
        for (_, change) in &self.changes {
            let key = used_by(change).first().map(|key| key.cell);
            let Some(cell) = key else { continue };
            cells.entry(cell).or_insert((0, change.time)).0 += 1;
        }
        cells
    }
}

/// The vnodes that a change is about.
fn used_by(change: &Change<FileKey>) -> Vec<FileKey> {
    let mut used = Vec::new();
    // Told otherwise, they are all seen.
    let _ = change.clone().map(|key| {
        used.push(key);
        Some(key)
    });
    used
}

impl Replay {
    /// Takes over what the last run has left, and has it sent.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub async fn load(self: &Arc<Self>) -> Result<(), Error> {
        let cache = &self.files.cache;
        let left = Left {
            changes: cache.changes().map_err(local)?,
            real: cache.real_ids().map_err(local)?,
            aside: cache.put_aside_files().map_err(local)?,
        };
        if let Some((last, _)) = left.changes.last() {
            self.journal.note_number(*last);
            tracing::info!(
                changes = left.changes.len(),
                "there are changes of names that are not at servers; they are made there now"
            );
        }
        // Numbers are given once, also those of cells that are not known now.
        let changed = left.changes.iter().flat_map(|(_, change)| used_by(change));
        let dirty = cache.dirty_files().into_iter().map(|file| file.key());
        for key in changed.chain(left.real.iter().map(|(key, _)| *key)).chain(dirty) {
            self.vnodes.local_ids.note_given(VnodeNumber(key.vnode), Uniquifier(key.unique));
        }
        let later = self.take_over(left).await?;
        if !later.changes.is_empty() {
            let names: Vec<_> = later.cells().keys().filter_map(|cell| cache.cell_name(*cell)).collect();
            lock(&self.journal.state).unknown = later.cells();
            tracing::warn!(cells = ?names, "changes wait that were made in cells that are not known now: see CellServDB and the DNS");
            self.take_over_later(later);
        }
        self.start();
        Ok(())
    }

    /// Takes over what is left in cells that were not known at the start, once they are.
    fn take_over_later(self: &Arc<Self>, mut later: Left) {
        let (me, runtime) = (Arc::downgrade(self), Arc::clone(&self.calls.runtime));
        self.calls.runtime.spawn(Box::pin(async move {
            while !later.changes.is_empty() {
                runtime.sleep_until(runtime.now() + DNS_AGAIN).await;
                let Some(replay) = me.upgrade().filter(|replay| !replay.calls.closing.has_begun()) else {
                    return;
                };
                later = match replay.take_over(later).await {
                    Ok(later) => later,
                    Err(error) => {
                        tracing::error!(%error, "changes that were left wait until the next start");
                        return;
                    }
                };
                lock(&replay.journal.state).unknown = later.cells();
                replay.start();
            }
        }));
    }

    /// True if changes wait in a cell that were not taken over yet: until then, nothing is made here that comes after them.
    pub(crate) fn is_behind(&self, fid: Fid) -> bool {
        let unknown = lock(&self.journal.state).unknown.clone();
        !unknown.is_empty() && self.files.key(fid).is_ok_and(|key| unknown.contains_key(&key.cell))
    }

    /// Takes over what is left in cells that are known. Returns the rest.
    async fn take_over(self: &Arc<Self>, left: Left) -> Result<Left, Error> {
        let cache = &self.files.cache;
        let used: BTreeSet<_> = left.changes.iter().flat_map(|(_, change)| used_by(change)).collect();
        let mut cells = BTreeMap::new();
        for key in used.iter().chain(left.real.iter().map(|(key, _)| key)).chain(&left.aside) {
            if let (false, Some(name)) = (cells.contains_key(&key.cell), cache.cell_name(key.cell)) {
                cells.insert(key.cell, self.calls.dns.cell_named(&name).await.ok().map(|cell| cell.index));
            }
        }
        let fid_of = |key: FileKey| {
            let (vnode, unique) = (VnodeNumber(key.vnode), Uniquifier(key.unique));
            Some(Fid { cell: (*cells.get(&key.cell)?)?, volume: VolumeId(key.volume), vnode, unique })
        };
        let mut later = Left { changes: Vec::new(), real: Vec::new(), aside: Vec::new() };
        let mut unused = Vec::new();
        for (key, real) in left.real {
            match fid_of(key) {
                Some(fid) if used.contains(&key) || cache.dirty_of(key).is_some() => {
                    let real = LocalFid { vnode: VnodeNumber(real.vnode), unique: Uniquifier(real.unique) };
                    self.vnodes.local_ids.restore(fid, Some(real));
                }
                // It is known by the server's number from now on.
                Some(_) => {
                    cache
                        .rename(key, FileKey { vnode: real.vnode, unique: real.unique, ..key })
                        .map_err(local)?;
                    unused.push(key);
                }
                None => later.real.push((key, real)),
            }
        }
        cache.forget_real_ids(&unused).map_err(local)?;
        let mut concern_none = Vec::new();
        for key in left.aside {
            match fid_of(key) {
                Some(fid) if used.contains(&key) => drop(lock(&self.files.put_aside).insert(fid)),
                Some(_) => concern_none.push(key),
                None => later.aside.push(key),
            }
        }
        cache.forget_put_aside(&concern_none).map_err(local)?;
        for (number, kept) in left.changes {
            let user = User::of(kept.writer.user);
            let Some(change) = kept.clone().map(fid_of) else {
                later.changes.push((number, kept));
                continue;
            };
            if let What::Make { made, place, kind, mode, modified } = &change.what {
                self.vnodes.local_ids.restore(*made, None);
                let status = new_status(place.dir, kind, *mode, AfsTime(*modified), Some(change.writer.user));
                let vnode = self.vnodes.get_or_add(*made);
                vnode.set_made_here(&status, place.dir.in_volume(), None);
                if let NewKind::Symlink(target) = kind {
                    vnode.set_link(target.clone().into());
                }
            }
            // Of a cell that was not known at first, programs may have seen what its server has.
            self.show_anew(&change, |_| {});
            self.show(number, &change);
            self.journal.add(number, change, user, true);
        }
        Ok(later)
    }
}
