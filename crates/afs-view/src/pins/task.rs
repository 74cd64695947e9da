//! When a pin is looked at: at intervals, soon after others have changed something of it, and when a server or a token has come back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};
use rx::Runtime;

use super::{Pinned, Pins};
use crate::data::files::lock;
use crate::data::store_behind::DNS_AGAIN;
use crate::events::{Audience, Change, Changed};
use afs_reach::fid::Fid;
use afs_reach::wait::{either, within};

/// The time between two looks at a pin. What programs of this machine make in it is pinned within this time; so is what was changed while no promise
/// held. To look at 100,000 files takes about 0.3 s of a processor (estimated).
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(300);

/// The pause before a pin is looked at in which something has changed: who changes something often goes on to.
const SETTLE: Duration = Duration::from_secs(2);

/// So many vnodes of a pin make this pause a second longer: what goes on changing costs no more of a processor the larger it is.
const VNODES_PER_SECOND: u64 = 5000;

/// So do so many bytes that were fetched last: somebody who writes on in a large file does not have it fetched over and over.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// Looks after a pin for as long as it is one.
pub(super) async fn run(pins: Weak<Pins>, pinned: Arc<Pinned>, runtime: Arc<dyn Runtime>) {
    let alive = || pins.upgrade().filter(|pins| !pins.calls.closing.has_begun() && !pinned.is_removed());
    while let Some(pins) = alive() {
        let is_known = pins.find(&pinned).await;
        let fetched = if is_known { pins.look_at(&pinned).await } else { 0 };
        drop(pins);
        let pause = if is_known { LOOK_EVERY } else { DNS_AGAIN };
        if within(&runtime, pause, pinned.wake.notified()).await.is_some() && !pinned.is_removed() {
            let vnodes = lock(&pinned.state).used.vnodes;
            let more = Duration::from_secs(vnodes / VNODES_PER_SECOND + fetched / BYTES_PER_SECOND);
            runtime.sleep_until(runtime.now() + (SETTLE + more).min(LOOK_EVERY)).await;
        }
    }
}

impl Pins {
    /// Finds the cell of a pin that an earlier client has kept. True if it is known.
    async fn find(&self, pinned: &Pinned) -> bool {
        if pinned.fid.get().is_some() {
            return true;
        }
        let key = pinned.pin.key;
        let Some(name) = self.files.cache.cell_name(key.cell) else { return false };
        let Ok(cell) = self.calls.dns.cell_named(&name).await else { return false };
        let fid = Fid {
            cell: cell.index,
            volume: VolumeId(key.volume),
            vnode: VnodeNumber(key.vnode),
            unique: Uniquifier(key.unique),
        };
        pinned.fid.get_or_init(|| self.vnodes.local_ids.shown(fid));
        true
    }

    /// Has pins looked at when something has happened, from now on.
    pub(super) fn listen(self: &Arc<Self>) {
        if self.is_listening.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut notices = self.invalidations.subscribe(Audience::Anybody);
        let me = Arc::downgrade(self);
        self.calls.runtime.spawn(Box::pin(async move {
            while let Some(notice) = notices.next().await {
                let Some(pins) = me.upgrade() else { return };
                pins.wake(|pinned| is_about(pinned, notice.changed));
            }
        }));
        // Not the calls themselves: who has these keeps the client's port.
        let (users, servers) = (Arc::clone(&self.users), Arc::clone(&self.calls.servers));
        let (me, closing) = (Arc::downgrade(self), self.calls.closing.clone());
        self.calls.runtime.spawn(Box::pin(async move {
            while !closing.has_begun() {
                either(users.changed.notified(), servers.back.notified()).await;
                let Some(pins) = me.upgrade() else { return };
                pins.wake(|_| true);
            }
        }));
    }

    fn wake(&self, which: impl Fn(&Pinned) -> bool) {
        let all: Vec<_> = lock(&self.all).values().map(Arc::clone).collect();
        all.iter().filter(|pinned| which(pinned)).for_each(|pinned| pinned.wake.notify_one());
    }
}

/// True if a change is about what is held for a pin.
fn is_about(pinned: &Pinned, Changed { fid, change }: Changed) -> bool {
    match change {
        Change::Everything => true,
        Change::Identity => false,
        Change::Volume => {
            let is_of_volume = |held: &Fid| (held.cell, held.volume) == (fid.cell, fid.volume);
            pinned.fid.get().is_some_and(is_of_volume) || lock(&pinned.state).held.iter().any(is_of_volume)
        }
        Change::Vnode | Change::Status | Change::Data | Change::Version(_) | Change::Names => {
            lock(&pinned.state).held.contains(&fid)
        }
    }
}
