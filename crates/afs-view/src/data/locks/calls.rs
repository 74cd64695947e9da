//! The calls to file servers that locks are made of. When they are made is left to [`Locks`](super::Locks).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::rxafs::{ExtendLock, ReleaseLock, SetLock};
use futures_util::future::{Either, select};
use rx_proto::time::Instant;
use rxgen::Rpc;

use crate::data::locks::{Answer, LockKind, LockServer};
use crate::vnodes::attributes::Statuses;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::remote::Calls;

/// The time between two looks whether a server is away, while a program waits for a lock.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Asks the file servers of the files that are locked.
#[derive(Debug)]
pub struct LockCalls {
    /// The calls to servers.
    pub calls: Arc<Calls>,
    /// Told of files that are gone.
    pub statuses: Arc<Statuses>,
}

impl LockCalls {
    /// Returns when the server of a file is known to be away, in volumes with write-behind and for what is pinned: programs go on there without the
    /// server, and are not to wait for what they cannot have.
    async fn until_hopeless(&self, fid: Fid) {
        let volume = self.statuses.vnodes.volume(fid.cell, fid.volume);
        let is_pinned = || self.statuses.vnodes.get(fid).is_some_and(|vnode| vnode.is_pinned());
        while volume.offline_max().is_zero() && !is_pinned()
            || self.calls.locations.away_since(fid.cell, fid.volume).is_none()
        {
            self.calls.runtime.sleep_until(self.calls.runtime.now() + LOOK_EVERY).await;
        }
    }
}

impl LockServer for LockCalls {
    fn set(&self, user: User, fid: Fid, kind: LockKind) -> Answer<'_, Instant> {
        Box::pin(async move {
            let asks = async {
                let in_cell = self.statuses.vnodes.local_ids.at_server(fid).await?.in_cell();
                let who = self.calls.users.who(user, fid.cell);
                let call = SetLock { fid: in_cell, kind: kind.to_wire() };
                let answer = self.calls.try_call(who, fid, call).await;
                answer.map(|answer| answer.asked).map_err(|failure| {
                    match failure.code().and_then(abort::errno) {
                        Some(Errno::EAGAIN) => Error::Locked { fid },
                        _ => failure.of(SetLock::NAME, fid),
                    }
                })
            };
            match select(pin!(self.until_hopeless(fid)), pin!(asks)).await {
                Either::Left(_) => Err(Error::NoLock { fid }),
                Either::Right((answer, _)) => answer,
            }
        })
    }

    fn extend(&self, user: User, fid: Fid) -> Answer<'_, Instant> {
        Box::pin(async move {
            let in_cell = self.statuses.vnodes.local_ids.at_server(fid).await?.in_cell();
            let who = self.calls.users.who(user, fid.cell);
            let answer = self.calls.call(who, fid, ExtendLock { fid: in_cell }).await;
            answer.map(|answer| answer.asked).map_err(|error| self.statuses.note_gone(fid, error))
        })
    }

    fn release(&self, user: User, fid: Fid) -> Answer<'_, ()> {
        Box::pin(async move {
            let in_cell = self.statuses.vnodes.local_ids.at_server(fid).await?.in_cell();
            let who = self.calls.users.who(user, fid.cell);
            let answer = self.calls.call(who, fid, ReleaseLock { fid: in_cell }).await;
            answer.map(drop).map_err(|error| self.statuses.note_gone(fid, error))
        })
    }
}
