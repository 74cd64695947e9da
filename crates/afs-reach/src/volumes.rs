//! The volumes that the client has been in, and what is known of each as a whole: whether it is read-only, which releases its servers
//! have, whether any of them answers, and how often its promises were broken. Where a volume is, is left to `location`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use afs_wire::ids::VolumeId;
use afs_wire::status::AfsVolSync;
use rx_proto::time::Instant;

use crate::fid::CellIndex;
use crate::releases::{ReleaseSeen, Releases};
use crate::table::PROBE_MAX;

/// The time for which the promises of a read-only volume count beyond their end before its servers are asked anew whether they answer: as
/// long as the pause between two probes, which find it out.
pub const AWAY_FOR: Duration = PROBE_MAX;

/// All volumes that something is known of. They stay: there are as many as somebody has been in, of some hundred bytes each.
#[derive(Debug, Default)]
pub struct Volumes {
    all: RwLock<HashMap<(CellIndex, VolumeId), Arc<Volume>>>,
    offline_max: Duration,
}

impl Volumes {
    /// Makes the table. What is known of a volume counts without its server for at most `offline_max`, unless that is set for it.
    pub fn new(offline_max: Duration) -> Self {
        Self { all: RwLock::default(), offline_max }
    }

    /// Returns a volume, and makes it if it is not known.
    pub fn get_or_add(&self, cell: CellIndex, volume: VolumeId) -> Arc<Volume> {
        self.get(cell, volume).unwrap_or_else(|| {
            let mut volumes = self.all.write().unwrap_or_else(PoisonError::into_inner);
            let new = || {
                let new = Volume::default();
                new.set_offline_max(self.offline_max);
                Arc::new(new)
            };
            Arc::clone(volumes.entry((cell, volume)).or_insert_with(new))
        })
    }

    /// Returns a volume, if it is known.
    pub fn get(&self, cell: CellIndex, volume: VolumeId) -> Option<Arc<Volume>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(&(cell, volume)).map(Arc::clone)
    }

    /// Volumes that something is known of.
    pub fn ids(&self) -> Vec<(CellIndex, VolumeId)> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

/// The facts that are known of a volume as a whole.
#[derive(Debug, Default)]
pub struct Volume {
    /// The number of times that all promises for it were broken.
    breaks: AtomicU64,
    /// The number of broken promises for vnodes that nothing was known of.
    strays: AtomicU64,
    /// The releases of a read-only volume that its servers have.
    releases: Mutex<Releases>,
    /// The time until which promises of a read-only volume count beyond their end, because none of its servers answers: in nanoseconds of
    /// the client's time.
    away_until: AtomicU64,
    /// True if it is a read-only or backup volume.
    is_read_only: AtomicBool,
    /// The time for which what is known of it counts without its server, in nanoseconds; none by default.
    offline_max: AtomicU64,
    /// The number of vnodes of it that are pinned.
    pinned: AtomicU32,
}

impl Volume {
    /// Notes that all promises are broken.
    pub fn note_break(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of times that all promises for it were broken.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// A promise was broken for a vnode of it that nothing is known of.
    pub fn note_stray(&self) {
        self.strays.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of broken promises for vnodes that nothing was known of.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Acquire)
    }

    /// The time for which what was promised of it counts beyond its end while the server that promised it is known to be away.
    pub fn offline_max(&self) -> Duration {
        Duration::from_nanos(self.offline_max.load(Ordering::Relaxed))
    }

    /// Sets that time.
    pub fn set_offline_max(&self, max: Duration) {
        self.offline_max.store(u64::try_from(max.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// One vnode of it more is pinned, or one less.
    pub fn note_pinned(&self, is: bool) {
        match is {
            true => self.pinned.fetch_add(1, Ordering::Relaxed),
            false => self.pinned.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// True if something of it is pinned.
    pub fn has_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) > 0
    }

    /// True if it is a read-only or backup volume, as far as known.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Notes whether it is a read-only or backup volume.
    pub fn set_read_only(&self, is: bool) {
        self.is_read_only.store(is, Ordering::Relaxed);
    }

    /// A reply tells when a read-only volume was made. Another release than before ends what was promised of the old one.
    pub fn note_release(
        &self,
        now: Instant,
        server: u32,
        sync: &AfsVolSync,
        can_ask: impl Fn(u32) -> bool,
    ) -> ReleaseSeen {
        if !self.is_read_only() {
            return ReleaseSeen::Same;
        }
        let told = self.releases().note(now, server, sync.creation, can_ask);
        if told == ReleaseSeen::Another {
            self.note_break();
        }
        told
    }

    /// True if a server has an older release than the one that is used, as far as known.
    pub(crate) fn is_behind(&self, now: Instant, server: u32) -> bool {
        self.releases().is_behind(now, server)
    }

    /// A server could not read its copy in a call that began at `began`. Returns whether to ask again, so that another server may answer:
    /// the volume is read-only, and the trouble was not known before the call began.
    pub fn note_trouble(&self, now: Instant, server: u32, began: Instant) -> bool {
        self.is_read_only() && self.releases().note_trouble(now, server, began)
    }

    /// True if a server could not read its copy not long ago.
    pub(crate) fn is_troubled(&self, now: Instant, server: u32) -> bool {
        self.releases().is_troubled(now, server)
    }

    fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None of its servers answers. What was promised of it, and has run out since or was promised by a server that has started anew,
    /// counts for a while.
    pub fn note_away(&self, now: Instant) {
        self.away_until.store((now + AWAY_FOR).as_nanos(), Ordering::Release);
    }

    /// True if it is known that none of its servers answers.
    pub fn is_away(&self, now: Instant) -> bool {
        now < Instant::from_nanos(self.away_until.load(Ordering::Acquire))
    }
}
