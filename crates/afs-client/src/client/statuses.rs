//! The client's verbs on the status of vnodes: from memory, asked for, one or many, and setting it. What of it counts is left to
//! `afs_view::vnodes`.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::Client;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_view::vnodes::status::{SetStatus, Status};

/// Statuses of one request that are asked for on their own at once: those of mount points. Each of them takes some calls.
const STATUSES_AT_ONCE: usize = 32;

impl Client {
    /// The status of a vnode, from memory.
    pub fn cached_status(&self, user: User, fid: Fid) -> Option<Result<Status, Error>> {
        self.inner.mount_points.known_status(user, fid)
    }

    /// The status of a vnode; of a mount point, that of what is mounted.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when it was removed; when the user may not know; of a mount point those of finding its volume.
    pub async fn status(&self, user: User, fid: Fid) -> Result<Status, Error> {
        self.inner.mount_points.status(user, fid).await
    }

    /// The status of many vnodes, in few calls: each with its own outcome, in the order of the fids.
    pub async fn statuses(&self, user: User, fids: &[Fid]) -> Vec<Result<Status, Error>> {
        let mut outcomes: Vec<_> = fids.iter().map(|&fid| self.cached_status(user, fid)).collect();
        let mut unknown: Vec<Fid> = fids
            .iter()
            .zip(&outcomes)
            .filter(|(fid, outcome)| {
                outcome.is_none() && !fid.is_made_up() && !self.inner.statuses.is_known(user, **fid)
            })
            .map(|(fid, _)| *fid)
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        let mut refused = HashMap::new();
        for fids in unknown.chunk_by(|a, b| (a.cell, a.volume) == (b.cell, b.volume)) {
            let who = self.inner.users.who(user, fids[0].cell);
            refused.extend(self.inner.statuses.fetch_statuses(who, fids).await);
        }
        // Most are in memory by now; mount points go their own way, several at once.
        let left: Vec<_> = (0..fids.len())
            .filter(|&place| outcomes[place].is_none() && !refused.contains_key(&fids[place]))
            .collect();
        for some in left.chunks(STATUSES_AT_ONCE) {
            let asked = some.iter().map(|&place| self.status(user, fids[place]));
            for (&place, outcome) in some.iter().zip(join_all(asked).await) {
                outcomes[place] = Some(outcome);
            }
        }
        let told = outcomes.into_iter().zip(fids);
        told.map(|(outcome, fid)| match (outcome, refused.get(fid)) {
            (Some(outcome), _) => outcome,
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(Error::Gone { fid: *fid }),
        })
        .collect()
    }

    /// Sets some of a status, the length among it.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_status(&self, user: User, fid: Fid, set: SetStatus) -> Result<Status, Error> {
        let inner = &self.inner;
        let real = inner.mount_points.real(user, fid).await?;
        if real.is_made_up() {
            return Err(Error::ReadOnly { fid });
        }
        if inner.changes.set_here(user, real, set).await? {
            return self.status(user, fid).await;
        }
        let vnode = inner.vnodes.get_or_add(real);
        match set.length {
            Some(length) => inner.files.set_length(user, real, length).await?,
            // What was written goes before what is said of the file: a store afterwards would change that again.
            None => inner.files.store_dirty(user, real).await?,
        }
        inner.statuses.store_status(user, &vnode, set).await?;
        self.status(user, fid).await
    }

    /// Has to be called before something is answered from memory: if the client was suspended until now, promises that were made before
    /// are not believed any longer.
    pub fn notice_suspension(&self) {
        let inner = &self.inner;
        inner.suspended.notice(inner.runtime.boot_time(), inner.mount_points.root());
    }

    /// True if operations wait for servers that do not answer, and none for one that says that it is busy.
    pub fn waits_in_vain(&self) -> bool {
        self.inner.calls.waiting.is_in_vain()
    }
}
