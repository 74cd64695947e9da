//! The calls to file servers that locks are made of. When they are made is left to [`Locks`](super::Locks).

use std::sync::Arc;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::rxafs::{ExtendLock, ReleaseLock, SetLock};
use rx_proto::time::Instant;
use rxgen::Rpc;

use crate::data::locks::{Answer, LockKind, LockServer};
use crate::vnodes::attributes::Statuses;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::remote::Calls;

/// Asks the file servers of the files that are locked.
#[derive(Debug)]
pub struct LockCalls {
    /// The calls to servers.
    pub calls: Arc<Calls>,
    /// Told of files that are gone.
    pub statuses: Arc<Statuses>,
}

impl LockServer for LockCalls {
    fn set(&self, user: User, fid: Fid, kind: LockKind) -> Answer<'_, Instant> {
        Box::pin(async move {
            let in_cell = self.statuses.vnodes.local_ids.at_server(fid).await?.in_cell();
            let who = self.calls.users.who(user, fid.cell);
            let asked = self.calls.try_call(who, fid, SetLock { fid: in_cell, kind: kind.to_wire() }).await;
            asked.map(|answer| answer.asked).map_err(|failure| match failure.code().and_then(abort::errno) {
                Some(Errno::EAGAIN) => Error::Locked { fid },
                _ => failure.of(SetLock::NAME, fid),
            })
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
