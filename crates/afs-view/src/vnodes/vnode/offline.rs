//! What counts of a vnode beyond its promise while its server is known to be away: in volumes with write-behind, and of what somebody has pinned
//! ([`crate::pins`]). What a server has broken never does.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rx_proto::time::Instant;

use super::{ACCESS_MAX, Promise, State, Vnode};
use afs_reach::users::IdentityIndex;

impl Vnode {
    /// Has it stay in the table, and count without its server for so long, as it is pinned; without a time, not any more.
    pub(crate) fn set_pinned(&self, counts_for: Option<Duration>) {
        // It is pinned also where nothing counts without servers.
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let before = self.pinned_for.swap(counts_for.map_or(0, nanos), Ordering::Relaxed);
        if (before > 0) != counts_for.is_some() {
            self.volume.note_pinned(counts_for.is_some());
            // It is kept for the next run of the client.
            self.keeping.note(self);
        }
    }

    /// True if it is pinned, or on the way to what is.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned_for.load(Ordering::Relaxed) > 0
    }

    /// The time for which what was promised of it counts beyond its end while the server that promised it is known to be away.
    pub(super) fn offline_max(&self) -> Duration {
        self.volume.offline_max().max(Duration::from_nanos(self.pinned_for.load(Ordering::Relaxed)))
    }

    fn is_cut_off_from(&self, promise: &Promise, now: Instant) -> bool {
        let is_away = |since: Instant| now.since(since) < self.offline_max();
        let down_since = match &promise.sites {
            Some(sites) => sites.away_since(now),
            None => promise.server.down_since(),
        };
        down_since.is_some_and(is_away) && self.volume.breaks() == promise.volume_breaks
    }

    /// True if the server is known to be away, so that what it has promised last counts on, however that ended: but not what it has broken. Of a
    /// read-only volume another server may have a newer release, so all have to be away.
    fn counts_offline(&self, promise: &Promise, now: Instant) -> bool {
        let are_all_away =
            || !self.volume.is_read_only() || promise.sites.is_some() || self.volume.is_away(now);
        self.is_cut_off_from(promise, now) && are_all_away()
    }

    pub(super) fn offline_until(&self, state: &State, now: Instant) -> Option<Instant> {
        state.good_until(now, |promise| self.counts_offline(promise, now))
    }

    /// True if what is known of it counts once its server is known to be away, so that nobody need wait for the server.
    pub(crate) fn may_count_offline(&self) -> bool {
        let is_unbroken = |promise: &Promise| promise.volume_breaks == self.volume.breaks();
        !self.offline_max().is_zero() && self.state().promise.as_ref().is_some_and(is_unbroken)
    }

    /// True if its server is away, and what is known of it counts all the same.
    pub(crate) fn is_offline(&self, now: Instant) -> bool {
        self.offline_until(&self.state(), now).is_some()
    }

    /// True if the server that has told of it last is away, and it is one that may count without. Of a read-only volume another one may answer.
    pub(crate) fn is_cut_off(&self, now: Instant) -> bool {
        self.state().promise.as_ref().is_some_and(|promise| self.is_cut_off_from(promise, now))
    }

    /// Forgets what an identity may do: servers have to be asked again. What they were asked before does not count.
    pub fn forget_rights(&self, who: IdentityIndex) {
        let mut state = self.state();
        state.forgets += 1;
        let Some(at) = state.access.iter().position(|(theirs, _)| *theirs == who) else { return };
        let ended = state.access.remove(at);
        if !self.offline_max().is_zero() {
            state.ended_access.retain(|(theirs, _)| *theirs != who);
            state.ended_access.insert(0, ended);
            state.ended_access.truncate(ACCESS_MAX);
        }
    }
}
