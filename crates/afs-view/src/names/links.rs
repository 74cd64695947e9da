//! The texts of symbolic links and mount points. `mount_point` knows what a mount point's text means, `data::streams` how it is fetched.

use std::sync::Arc;

use afs_wire::ids::AFSPATHMAX;
use bytes::Bytes;

use crate::data::streams::Streams;
use crate::names::dynroot::DynamicRoot;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::status::Kind;
use crate::vnodes::table::Vnodes;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};

/// The texts of links: the table of vnodes that keeps them, and where those come from that it does not have.
#[derive(Debug)]
pub struct Links {
    pub(crate) vnodes: Arc<Vnodes>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) streams: Streams,
    /// Its links are made up.
    pub(crate) dynamic_root: Arc<DynamicRoot>,
}

impl Links {
    /// The text of a symbolic link or mount point. The caller has seen that the user may know its status.
    pub(crate) async fn text(&self, user: User, fid: Fid) -> Result<Bytes, Error> {
        let vnode = self.vnodes.get_or_add(fid);
        if let Some(text) = vnode.link() {
            return Ok(text);
        }
        let whole = self.streams.fetch_whole(user, fid, AFSPATHMAX).await;
        let (text, _) = whole.map_err(|error| self.statuses.note_gone(fid, error))?;
        let text = Bytes::from(text);
        vnode.set_link(text.clone());
        Ok(text)
    }

    /// See `Client::cached_readlink`.
    pub fn known_target(&self, user: User, fid: Fid) -> Option<Result<Bytes, Error>> {
        if let Some(target) = self.dynamic_root.link_target(fid).filter(|_| fid.is_made_up()) {
            return Some(Ok(target));
        }
        match self.statuses.known_status(user, fid, fid)? {
            Ok(status) if status.kind != Kind::Symlink => Some(Err(Error::NotALink { fid })),
            Ok(_) => self.vnodes.get(fid)?.link().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// See `Client::readlink`.
    pub async fn target(&self, user: User, fid: Fid) -> Result<Bytes, Error> {
        if let Some(known) = self.known_target(user, fid) {
            return known;
        }
        if fid.is_made_up() || self.statuses.own_status(user, fid, fid).await?.kind != Kind::Symlink {
            return Err(Error::NotALink { fid });
        }
        self.text(user, fid).await
    }
}
