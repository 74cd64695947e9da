//! Access lists, as text: what `fs listacl` and `fs setacl` read and write (File service notes 10).

use std::sync::Arc;

use afs_wire::rights::Rights;
use afs_wire::rxafs::{AfsOpaque, FetchACL, OldStoreACL, StoreACL};
use bytes::Bytes;
use rxgen::{Abort, Rpc};

use crate::client::Client;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_view::events::Change;
use afs_view::vnodes::vnode::PendingChange;

impl Client {
    /// The access list that governs a vnode, as the server sends it but for the NUL at its end, and what of it the user has.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn access_list(&self, user: User, fid: Fid) -> Result<(Bytes, Rights), Error> {
        let inner = &self.inner;
        let real = inner.mount_points.real(user, fid).await?;
        if real.is_made_up() {
            return Err(Error::Unsupported { what: "an access list of the dynamic root" });
        }
        let who = inner.users.who(user, real.cell);
        let in_cell = inner.vnodes.local_ids.at_server(real).await?.in_cell();
        let answer = inner.calls.call(who, real, FetchACL { fid: in_cell }).await;
        let reply = answer.map_err(|error| inner.statuses.note_gone(real, error))?.reply;
        let mut text = reply.access_list.into_bytes();
        if let Some(end) = text.iter().position(|&byte| byte == 0) {
            text.truncate(end);
        }
        Ok((text.into(), reply.status.caller_access))
    }

    /// Sets the access list of a directory, from the text that servers take; the NUL at its end may be left out. What was changed in the directory
    /// before is at the server first.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_access_list(&self, user: User, fid: Fid, text: &[u8]) -> Result<(), Error> {
        let inner = &self.inner;
        let real = inner.mount_points.real(user, fid).await?;
        if real.is_made_up() {
            return Err(Error::ReadOnly { fid });
        }
        let mut text = text.to_vec();
        if text.last() != Some(&0) {
            text.push(0);
        }
        let length = text.len();
        let too_long = |_| Error::Invalid { what: format!("an access list of {length} bytes is too long") };
        let access_list = AfsOpaque::new(text).map_err(too_long)?;
        let who = inner.users.who(user, real.cell);
        let vnode = inner.vnodes.get_or_add(real);
        // It may take away what the changes before it need.
        let in_cell = inner.changes.at_server(real).await?;
        // Or what was closed. Of that, what cannot be stored now holds nobody up.
        let _ = inner.files.settle_volume(real).await;
        let set = async {
            let _changing = vnode.changing.lock().await;
            // Servers tell others, not us: all rights that are known here are off, also if nobody knows what came of it.
            let _pending = PendingChange::new([Arc::clone(&vnode)]);
            // The number that checks more is tried first (File service notes 1).
            let args = StoreACL { fid: in_cell, access_list: access_list.clone() };
            match inner.calls.try_call(who, real, args).await {
                Ok(_) => Ok(()),
                Err(failure) if failure.code() == Some(Abort::OPCODE) => {
                    let args = OldStoreACL { fid: in_cell, access_list };
                    inner.calls.call(who, real, args).await.map(|_| ())
                }
                Err(failure) => Err(failure.of(StoreACL::NAME, real)),
            }
        };
        inner.invalidations.telling(&inner.invalidations.changes(real, Change::Vnode), set).await
    }
}
