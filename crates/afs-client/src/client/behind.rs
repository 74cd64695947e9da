//! The client's verbs on write-behind, for `fs storebehind`: where closes and changes of names do not wait for the server.

use super::Client;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_view::data::store_behind::{BehindOf, DEPTH_MAX, Setting};

impl Client {
    /// What is set for a directory, and what counts there.
    ///
    /// # Errors
    ///
    /// Those of finding the directories above it, where they are not known.
    pub async fn behind_of(&self, user: User, dir: Fid) -> Result<BehindOf, Error> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at.is_root() {
                break;
            }
            at = self.read_dir(user, at).await?.parent();
        }
        Ok(self.inner.files.behind_of(dir))
    }

    /// Sets write-behind for a directory and what is below it in its volume, or for the directory's volume; `None`: what is set above counts. It
    /// is kept over restarts of the client. What waits for a server goes on to be sent.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a client whose cache is in memory; too much is set; the cache's.
    pub async fn set_behind(&self, dir: Fid, is_volume: bool, setting: Option<Setting>) -> Result<(), Error> {
        if self.config().cache.is_none() {
            return Err(Error::Unsupported { what: "write-behind without a cache folder" });
        }
        self.inner.files.set_behind(dir, is_volume, setting).await
    }

    /// Has what was changed and closed with write-behind wait, until this is taken back or the client ends; or not any more. What a program cannot
    /// go on without still goes to the server, and all that waits with it.
    pub fn set_paused(&self, is_paused: bool) {
        self.inner.changes.replay.set_paused(is_paused);
    }

    /// Returns when all that was changed and closed in the volume of a vnode before is at the server.
    ///
    /// # Errors
    ///
    /// Something is not there yet, and is tried again.
    pub async fn settle_volume(&self, fid: Fid) -> Result<(), Error> {
        self.inner.files.settle_volume(fid).await
    }
}
