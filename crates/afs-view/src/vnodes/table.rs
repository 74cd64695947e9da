//! The table of vnodes: which are known, which of them go first, and the pages of directories that are kept within their limit. What is
//! known of one is left to `vnode`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_wire::ids::{LocalFid, VolumeId};
use afs_wire::status::{AfsCallBack, AfsFetchStatus};
use rx_proto::time::Instant;

use crate::vnodes::keeping::Keeping;
use crate::vnodes::local_ids::LocalIds;
use crate::vnodes::vnode::{Cause, Earlier, Pages, Sites, Snapshot, Vnode};
use afs_reach::fid::{CellIndex, Fid};
use afs_reach::table::Responder;
use afs_reach::users::IdentityIndex;
use afs_reach::volumes::{Volume, Volumes};

/// Parts of the table, each with a lock: enough that threads rarely meet.
const SHARDS: usize = 64;

/// A part of the table, and the order in which its vnodes came.
#[derive(Debug, Default)]
struct Shard {
    map: HashMap<Fid, Arc<Vnode>>,
    queue: VecDeque<Fid>,
}

/// The directories whose pages are kept, oldest first, and how many bytes these were when they came.
#[derive(Debug, Default)]
struct KeptPages {
    queue: VecDeque<Fid>,
    bytes: usize,
}

/// All vnodes that something is known of.
#[derive(Debug)]
pub struct Vnodes {
    shards: Vec<Mutex<Shard>>,
    /// The volumes that they are in.
    pub volumes: Arc<Volumes>,
    /// The numbers of those that were made here.
    pub local_ids: LocalIds,
    /// Those that have changed since they were kept for the next run.
    pub(crate) keeping: Arc<Keeping>,
    limit_per_shard: usize,
    /// Most bytes of pages.
    page_limit: usize,
    kept_pages: Mutex<KeptPages>,
}

impl Vnodes {
    /// Makes the table, for so many vnodes and bytes of pages. What is known of them counts without their server for at most `offline_max`.
    pub fn new(entries: usize, page_bytes: usize, offline_max: Duration) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            volumes: Arc::new(Volumes::new(offline_max)),
            local_ids: LocalIds::default(),
            keeping: Arc::new(Keeping::new(!offline_max.is_zero())),
            limit_per_shard: (entries / SHARDS).max(16),
            page_limit: page_bytes,
            kept_pages: Mutex::default(),
        }
    }

    fn shard(&self, fid: Fid) -> MutexGuard<'_, Shard> {
        // Vnode numbers of one volume go up by two; the multiplication spreads what is next to each other.
        let mixed = (fid.vnode.0 ^ fid.volume.0.rotate_left(16)).wrapping_mul(0x9e37_79b9);
        self.shards[(mixed >> 16) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a volume, and makes it if it is not known.
    pub(crate) fn volume(&self, cell: CellIndex, volume: VolumeId) -> Arc<Volume> {
        self.volumes.get_or_add(cell, volume)
    }

    /// A vnode that is in the table.
    pub fn get(&self, fid: Fid) -> Option<Arc<Vnode>> {
        let vnode = self.shard(fid).map.get(&fid).map(Arc::clone)?;
        vnode.is_used.store(true, Ordering::Relaxed);
        Some(vnode)
    }

    /// A vnode, put into the table if it is new. It stays there while the caller holds it.
    pub fn get_or_add(&self, fid: Fid) -> Arc<Vnode> {
        if let Some(vnode) = self.get(fid) {
            return vnode;
        }
        let volume = self.volume(fid.cell, fid.volume);
        let mut shard = self.shard(fid);
        if let Some(vnode) = shard.map.get(&fid) {
            return Arc::clone(vnode);
        }
        self.make_room(&mut shard);
        let vnode = Arc::new(Vnode::new(fid, volume, Arc::clone(&self.keeping)));
        shard.map.insert(fid, Arc::clone(&vnode));
        shard.queue.push_back(fid);
        vnode
    }

    /// Lets vnodes go that nobody has asked for lately. Those that somebody holds, as data do that are open or not stored, whose
    /// pages are kept, or that are pinned stay; so the limit may be passed.
    fn make_room(&self, shard: &mut Shard) {
        let mut looks = shard.queue.len().min(64);
        while shard.map.len() >= self.limit_per_shard && looks > 0 {
            looks -= 1;
            let Some(fid) = shard.queue.pop_front() else { break };
            let Some(vnode) = shard.map.get(&fid) else { continue };
            let is_held = Arc::strong_count(vnode) > 1;
            let is_used = vnode.is_used.swap(false, Ordering::Relaxed);
            let is_kept = vnode.is_pinned() || vnode.state().pages.is_some() || !vnode.can_be_forgotten();
            if is_held || is_used || is_kept {
                shard.queue.push_back(fid);
            } else {
                self.keeping.note_gone(vnode);
                shard.map.remove(&fid);
            }
        }
    }

    /// A vnode that is in the table, for who looks at all: it does not count as used.
    pub(crate) fn peek(&self, fid: Fid) -> Option<Arc<Vnode>> {
        self.shard(fid).map.get(&fid).map(Arc::clone)
    }

    /// Keeps what is known for the next run, from now on.
    pub(crate) fn begin_keeping(&self) {
        if self.keeping.begin() {
            self.keeping.put_back(self.all().iter().map(|vnode| vnode.fid));
        }
    }

    /// Takes over what was known of a vnode in an earlier run, which has this sum on the disk.
    pub(crate) fn restore(&self, fid: Fid, mut earlier: Earlier, sites: &Arc<Sites>, sum: u64) {
        let mut size = 0;
        earlier.directory = earlier.directory.map(|directory| {
            size = directory.bytes().len();
            self.as_shown(fid, Pages { directory, version: earlier.status.data_version }).directory
        });
        let vnode = self.get_or_add(fid);
        vnode.kept.set_sum(sum);
        if vnode.restore(earlier, sites) && size > 0 {
            self.note_pages(fid, size);
        }
    }

    /// Takes a vnode out that is no longer there.
    pub(crate) fn remove(&self, fid: Fid) {
        if let Some(vnode) = self.get(fid) {
            vnode.forget();
        }
        let mut shard = self.shard(fid);
        shard.map.remove(&fid);
        shard.queue.retain(|other| *other != fid);
    }

    /// A server breaks the promise for a vnode, or for a whole volume.
    pub fn note_break(&self, fid: Fid) {
        if fid.in_cell().is_whole_volume() {
            if let Some(volume) = self.volumes.get(fid.cell, fid.volume) {
                volume.note_break();
            }
            return;
        }
        match self.get(fid) {
            Some(vnode) => vnode.note_break(),
            None => {
                if let Some(volume) = self.volumes.get(fid.cell, fid.volume) {
                    volume.note_stray();
                }
            }
        }
    }

    /// Puts a vnode that a call has made into the table, with its status. What the promise is worth is told by the snapshot
    /// that was taken of its directory.
    pub(crate) fn note_made(
        &self,
        now: Instant,
        fid: Fid,
        (before, responder): (&Snapshot, &Responder),
        (who, dir): (IdentityIndex, LocalFid),
        (status, cause): (&AfsFetchStatus, Cause),
        callback: Option<&AfsCallBack>,
    ) -> Arc<Vnode> {
        let vnode = self.get_or_add(fid);
        let strays = vnode.volume.strays();
        let mut own = vnode.snapshot();
        own.volume_breaks = before.volume_breaks;
        // A promise for a number that nobody knew may have been broken already.
        let callback = callback.filter(|_| strays == before.strays);
        vnode.note_caused(now, (&own, responder), who, (status, cause), callback);
        vnode.set_parent(dir);
        vnode
    }

    /// The directory that a vnode is in.
    pub(crate) fn parent_of(&self, vnode: &Vnode) -> Option<Fid> {
        vnode.parent().map(|dir| self.local_ids.shown(vnode.fid.sibling(dir)))
    }

    /// Keeps pages of a directory that came from its server, within the limit for all of them. Returns them as they are shown: with what was
    /// changed here and is not at the server yet.
    pub(crate) fn keep_pages(&self, vnode: &Vnode, pages: Pages) -> Pages {
        let size = pages.directory.bytes().len();
        let pages = vnode.set_pages(self.as_shown(vnode.fid, pages));
        if let Some(dir) = pages.directory.lookup(b"..").filter(|_| !vnode.fid.is_root()) {
            vnode.set_parent(dir.fid);
        }
        self.note_pages(vnode.fid, size);
        pages
    }

    /// So many bytes of pages have come.
    fn note_pages(&self, fid: Fid, size: usize) {
        let mut kept = self.kept_pages.lock().unwrap_or_else(PoisonError::into_inner);
        kept.queue.push_back(fid);
        kept.bytes += size;
        if kept.bytes > self.page_limit {
            self.drop_pages(&mut kept, fid);
        }
    }

    /// The pages with our numbers of what was made here.
    fn as_shown(&self, dir: Fid, mut pages: Pages) -> Pages {
        if self.local_ids.shows_all_as_told() {
            return pages;
        }
        let shown = |fid: LocalFid| {
            let fid = dir.sibling(fid);
            Some(self.local_ids.shown(fid)).filter(|shown| *shown != fid)
        };
        let others =
            pages.directory.entries().filter_map(|entry| Some((entry.name.to_vec(), shown(entry.fid)?)));
        let others: Vec<_> = others.collect();
        for (name, fid) in others {
            Arc::make_mut(&mut pages.directory).replace(&name, fid.in_volume());
        }
        pages
    }

    /// Counts what is kept, which edits and drops have changed since, and lets the directories go that nobody has asked for
    /// lately and that are not pinned, down to nine tenths of the limit, so that this is not done at each directory.
    fn drop_pages(&self, kept: &mut KeptPages, newest: Fid) {
        let goal = self.page_limit / 10 * 9;
        let fids: HashSet<Fid> = kept.queue.iter().copied().collect();
        let size_of = |fid: Fid| {
            let vnode = self.shard(fid).map.get(&fid).map(Arc::clone)?;
            let size = vnode.state().pages.as_ref()?.directory.bytes().len();
            Some((vnode, size))
        };
        kept.bytes = fids.iter().filter_map(|&fid| size_of(fid)).map(|(_, size)| size).sum();
        let mut seen = HashSet::new();
        let mut looks = 2 * kept.queue.len();
        while kept.bytes > goal && looks > 0 {
            looks -= 1;
            let Some(fid) = kept.queue.pop_front() else { break };
            let Some((vnode, size)) = size_of(fid) else { continue };
            if fid == newest || vnode.is_pinned() || vnode.is_used.swap(false, Ordering::Relaxed) {
                // Once each: a directory that was fetched several times is in the queue as often.
                if seen.insert(fid) {
                    kept.queue.push_back(fid);
                }
                continue;
            }
            vnode.drop_pages();
            kept.bytes = kept.bytes.saturating_sub(size);
        }
    }

    /// Bytes of pages that are kept, as they were when they came.
    pub fn page_bytes(&self) -> usize {
        self.kept_pages.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// All vnodes, for debuggers and for what concerns a whole volume.
    pub fn all(&self) -> Vec<Arc<Vnode>> {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.flat_map(|shard| shard.map.values().map(Arc::clone).collect::<Vec<_>>()).collect()
    }

    /// The number of vnodes.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).map.len()).sum()
    }
}
