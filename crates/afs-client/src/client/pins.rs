//! The client's verbs on pins, for `fs pin`: which files and directories it keeps in its cache.

use afs_cache::FileKey;

use super::Client;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_view::pins::Told;

impl Client {
    /// Keeps a file, or a directory with what is below it in its volume, in the cache, over restarts too: it is fetched in the background, as this
    /// user. Without the server it counts beyond the server's promises.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a client whose cache is in memory; when the user may not read it; when too much is pinned; the cache's.
    pub async fn pin(&self, user: User, fid: Fid) -> Result<(), Error> {
        if self.config().cache.is_none() {
            return Err(Error::Unsupported { what: "pins without a cache folder" });
        }
        let real = self.inner.mount_points.real(user, fid).await?;
        self.inner.pins.pin(user, real).await
    }

    /// Takes a user's pin of a file or directory back; for the superuser those of all users.
    ///
    /// # Errors
    ///
    /// EPERM if only others have pinned it, ENODATA if nobody has; the cache's.
    pub async fn unpin(&self, uid: u32, fid: Fid) -> Result<(), Error> {
        let key: FileKey = self.inner.pins.key_of(fid).await?;
        self.inner.pins.unpin(uid, key).await
    }

    /// What a user has pinned, and what is here of it; for the superuser what all have.
    pub fn pins(&self, uid: u32) -> Vec<Told> {
        self.inner.pins.list(uid)
    }
}
