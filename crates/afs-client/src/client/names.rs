//! The client's verbs on names: looking them up, listing directories, links and mount points, and changing names. What they
//! mean is left to `afs_view::names`.

use bytes::Bytes;

use super::Client;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_view::events::Change;
use afs_view::names::directory::Listing;
use afs_view::names::lookup::{Found, Made};

impl Client {
    /// Looks up a name in a directory, from memory; that there is no such name, too.
    pub fn cached_lookup(&self, user: User, dir: Fid, name: &[u8]) -> Option<Result<Found, Error>> {
        self.inner.names.known(user, dir, name)
    }

    /// True if an earlier name of something counts beside the one under which it was just found in `dir`, as far as is known. What is in
    /// a directory is in no other: so if its name is another directory's, that one has changed, and is asked for anew.
    pub fn is_name_beside(&self, user: User, earlier: (Fid, &[u8]), found: (Fid, Fid)) -> bool {
        self.inner.names.is_name_beside(user, earlier, found)
    }

    /// Looks up a name in a directory: crosses mount points, knows `.`, `..` and `@sys`.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`]; of a mount point those of finding its volume.
    pub async fn lookup(&self, user: User, dir: Fid, name: &[u8]) -> Result<Found, Error> {
        self.inner.names.look_up(user, dir, name).await
    }

    /// The names in a directory, from memory.
    pub fn cached_read_dir(&self, user: User, dir: Fid) -> Option<Result<Listing, Error>> {
        self.inner.directories.known_listing(user, dir)
    }

    /// The names in a directory.
    ///
    /// # Errors
    ///
    /// When the user may not list it.
    pub async fn read_dir(&self, user: User, dir: Fid) -> Result<Listing, Error> {
        self.inner.directories.list(user, dir).await
    }

    /// The target of a symbolic link, from memory.
    pub fn cached_readlink(&self, user: User, fid: Fid) -> Option<Result<Bytes, Error>> {
        self.inner.links.known_target(user, fid)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::NotALink`].
    pub async fn readlink(&self, user: User, fid: Fid) -> Result<Bytes, Error> {
        self.inner.links.target(user, fid).await
    }

    /// Resolves a fid: to the root directory of the volume that is mounted, if it is a mount point's; else itself.
    ///
    /// # Errors
    ///
    /// Those of finding a volume.
    pub async fn target(&self, user: User, fid: Fid) -> Result<Fid, Error> {
        self.inner.mount_points.real(user, fid).await
    }

    /// The fid by which the server knows something. What was made here and is not there yet is waited for.
    ///
    /// # Errors
    ///
    /// Those of making it there.
    pub async fn at_server(&self, fid: Fid) -> Result<Fid, Error> {
        self.inner.vnodes.local_ids.at_server(fid).await
    }

    /// The cell of a mount point's volume, the volume, and whether it is the read-write one in any case: what `fs lsmount` and `fs
    /// mkmount` speak of, as text.
    ///
    /// # Errors
    ///
    /// [`Error::NotALink`] for what is no mount point.
    pub async fn mount_text(&self, user: User, dir: Fid, name: &[u8]) -> Result<String, Error> {
        let inner = &self.inner;
        let dir = inner.mount_points.real(user, dir).await?;
        let fid = inner.names.entry(user, dir, name).await?;
        inner.mount_points.text(user, fid).await
    }

    /// Makes an empty file.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; the server's.
    pub async fn create(&self, user: User, dir: Fid, name: &[u8], mode: u32) -> Result<Made, Error> {
        self.inner.changes.create(user, dir, name, mode).await
    }

    /// Makes a directory, with its parent's access list.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub async fn make_dir(&self, user: User, dir: Fid, name: &[u8], mode: u32) -> Result<Made, Error> {
        self.inner.changes.make_dir(user, dir, name, mode).await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub async fn symlink(&self, user: User, dir: Fid, name: &[u8], target: &[u8]) -> Result<Made, Error> {
        self.inner.changes.symlink(user, dir, name, target).await
    }

    /// Makes a mount point with this text, such as `#root.cell.`, for a command; whether there is such a volume is not looked at. The
    /// kernel, which does not ask for it, is told.
    ///
    /// # Errors
    ///
    /// As [`Self::create`]; it takes the right to administer the directory.
    pub async fn make_mount(&self, user: User, dir: Fid, name: &[u8], text: &str) -> Result<Fid, Error> {
        let changes = self.inner.invalidations.changes(dir, Change::Names);
        let made = self.inner.changes.make_mount(user, dir, name, text);
        self.inner.invalidations.telling(&changes, made).await
    }

    /// Takes away a mount point for a command. The kernel, which does not ask for it, is told.
    ///
    /// # Errors
    ///
    /// [`Error::NotALink`] for what is no mount point; as [`Self::remove`].
    pub async fn remove_mount(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        self.mount_text(user, dir, name).await?;
        let changes = self.inner.invalidations.changes(dir, Change::Names);
        let removed = self.inner.changes.remove(user, dir, name);
        self.inner.invalidations.telling(&changes, removed).await
    }

    /// Gives a file one more name in its directory.
    ///
    /// # Errors
    ///
    /// As [`Self::create`], and [`Error::Apart`] for another directory.
    pub async fn link(&self, user: User, fid: Fid, dir: Fid, name: &[u8]) -> Result<Made, Error> {
        self.inner.changes.link(user, fid, dir, name).await
    }

    /// Takes away a name of a file or symbolic link, or a mount point.
    ///
    /// # Errors
    ///
    /// [`Error::IsADirectory`]; the server's.
    pub async fn remove(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        self.inner.changes.remove(user, dir, name).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotADirectory`]; the server's: ENOTEMPTY where there is something in it.
    pub async fn remove_dir(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        self.inner.changes.remove_dir(user, dir, name).await
    }

    /// Gives something another name, in the same volume. What has that name is replaced, unless `keep` says that there must
    /// be nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Apart`] between volumes; the server's.
    pub async fn rename(
        &self,
        user: User,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        keep: bool,
    ) -> Result<(), Error> {
        self.inner.changes.rename(user, from, to, keep).await
    }
}
