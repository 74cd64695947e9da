//! The client's verbs on the data of files: opening them, fetching and storing around the cache, locks, and the use of the cache. How
//! it is done is left to `afs_view::data`.

use afs_cache::{Conflict, Usage};
use afs_wire::rights::Rights;
use afs_wire::rxafs::ReleaseLock;
use afs_wire::status::AfsFetchStatus;

use super::Client;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_view::data::files::local;
use afs_view::data::locks::LockKind;
use afs_view::data::open_file::{OpenFile, OpenFlags};
use afs_view::data::streams::{Fetch, StoreRange, StoreSource};
use afs_view::names::lookup::Made;

/// Opening files.
impl Client {
    fn opened(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let inner = &self.inner;
        OpenFile::new(&inner.prefetch, inner.clone(), user, fid, flags)
    }

    /// Opens a file at once, if all that it takes is known.
    pub fn cached_open(&self, user: User, fid: Fid, flags: OpenFlags) -> Option<Result<OpenFile, Error>> {
        if flags.truncate {
            return None;
        }
        if flags.write
            && self.inner.files.opened(fid).is_some_and(|data| data.has_in_the_way(&self.inner.users, user))
        {
            return None;
        }
        let may = self.cached_status(user, fid)?.and_then(|status| flags.check(&status));
        match may.and_then(|()| self.opened(user, fid, flags)) {
            // The server may know better, and what is gone may have a successor: see below.
            Err(Error::NoAccess { .. } | Error::Gone { .. }) => None,
            opened => Some(opened),
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When the user's rights do not allow it; what asking for the status brings; [`Error::Gone`] also when the file is losing its
    /// last name just now: [`Self::lookup`] of the name then tells what has become of it, and that can be opened for a second.
    pub async fn open(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let opened = self.open_now(user, fid, flags).await;
        if let Err(Error::Gone { fid: gone }) = opened
            && gone == fid
        {
            self.inner.open_files.hold_successor(user, fid);
        }
        opened
    }

    async fn open_now(&self, user: User, fid: Fid, flags: OpenFlags) -> Result<OpenFile, Error> {
        let status = self.status(user, fid).await?;
        match flags.check(&status) {
            // In a drop box, an owner may read what he has put there; who the owner is the server knows.
            Err(Error::NoAccess { needed: Rights::READ, .. }) if status.rights.contains(Rights::INSERT) => {
                self.fetch(user, fid, 0, 0).await?.end().await?;
                OpenFlags { read: false, ..flags }.check(&status)?;
            }
            checked => checked?,
        }
        if flags.write
            && let Some(data) = self.inner.files.opened(fid)
        {
            drop(data.make_way(user).await?);
        }
        let file = self.opened(user, fid, flags)?;
        if flags.truncate {
            file.truncate(0).await?;
        }
        Ok(file)
    }

    /// Makes a file, or opens it where there is one already, unless `exclusive` says that there must be none.
    ///
    /// # Errors
    ///
    /// Those of [`Self::create`] and [`Self::open`].
    pub async fn create_and_open(
        &self,
        user: User,
        (dir, name): (Fid, &[u8]),
        mode: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Made, OpenFile), Error> {
        match self.create(user, dir, name, mode).await {
            // Who has made a file may write it, whatever its mode says.
            Ok(made) => Ok((made, self.opened(user, made.fid, flags)?)),
            Err(Error::Exists { .. }) if !exclusive => {
                let found = self.lookup(user, dir, name).await?;
                let file = self.open(user, found.fid, flags).await?;
                Ok((found, file))
            }
            Err(error) => Err(error),
        }
    }
}

/// The data of files without the cache. `fid` is a file's, a directory's or a link's own; nothing is crossed.
impl Client {
    /// Begins to fetch bytes of a vnode's data.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried.
    pub async fn fetch(&self, user: User, fid: Fid, pos: u64, length: u64) -> Result<Fetch, Error> {
        self.inner.streams.fetch(user, fid, pos, length).await
    }

    /// Stores bytes of a file. The status that it has led to is noted for everybody.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried; the source's.
    pub async fn store<S: StoreSource>(
        &self,
        user: User,
        fid: Fid,
        range: StoreRange,
        source: &S,
    ) -> Result<AfsFetchStatus, Error> {
        let who = self.inner.users.who(user, fid.cell);
        Ok(self.inner.streams.store(who, fid, range, source).await?.status)
    }
}

/// Locks.
impl Client {
    /// Locks a file for one holder (an open file of the kernel, a process: the caller's number), all of it. The server's lock
    /// is shared by all holders of this client, kept alive while one has it, and given back with the last.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], unless it is to be waited for; the server's.
    pub async fn lock(
        &self,
        user: User,
        fid: Fid,
        holder: u64,
        kind: LockKind,
        wait: bool,
    ) -> Result<(), Error> {
        self.inner.locks.lock(user, fid, holder, kind, wait).await
    }

    /// Asks the server for its lock of a file, once, and leaves it there: no holder here is known of, nothing prolongs it, and the end of
    /// this client does not give it back. It ends by itself after five minutes. For tools that lock and go away.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`]; the server's.
    pub async fn lock_at_server(&self, user: User, fid: Fid, kind: LockKind) -> Result<(), Error> {
        self.inner.locks.lock_at_server(user, fid, kind).await
    }

    /// Gives the server's lock of a file back, even if another client has it: servers do not tell holders apart.
    ///
    /// # Errors
    ///
    /// The server's, also where there is no lock.
    pub async fn unlock_at_server(&self, user: User, fid: Fid) -> Result<(), Error> {
        let who = self.inner.users.who(user, fid.cell);
        let in_cell = self.inner.vnodes.local_ids.at_server(fid).await?.in_cell();
        self.inner.calls.call(who, fid, ReleaseLock { fid: in_cell }).await.map(drop)
    }

    /// Ends a holder's lock at once. When the future is done, other clients can have the lock, if nobody here holds it.
    pub fn unlock(&self, fid: Fid, holder: u64) -> impl Future<Output = ()> + Send + use<> {
        self.inner.locks.unlock(fid, holder)
    }
}

/// The cache, for `fs`.
impl Client {
    /// The use of the cache.
    pub fn cache_usage(&self) -> Usage {
        self.inner.files.cache.usage()
    }

    /// Bytes that were written and that no server has yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.inner.files.cache.dirty_files().iter().map(|file| file.dirty_bytes()).sum()
    }

    /// The data that a user has written, in whichever PAG, and that wait for another token of the same person's: files, and
    /// bytes in them.
    pub fn waiting_for_a_token(&self, user: User) -> (u32, u64) {
        self.inner.files.waiting_for_a_token(user)
    }

    /// Sets how much the cache may have; what is over it goes soon.
    pub fn set_cache_limit(&self, bytes: u64) {
        self.inner.files.cache.set_limit(bytes);
    }

    /// Lists data that were written and could not be stored, and are kept in the cache's folder.
    pub fn conflicts(&self) -> Vec<Conflict> {
        self.inner.files.cache.conflicts()
    }

    /// Reads at most so many bytes of such data; none at their end. It waits for the disk.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub fn read_conflict(&self, conflict: &Conflict, position: u64, length: usize) -> Result<Vec<u8>, Error> {
        self.inner.files.cache.read_conflict(conflict, position, length).map_err(local)
    }

    /// Removes such data. It waits for the disk.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub fn remove_conflict(&self, conflict: &Conflict) -> Result<(), Error> {
        self.inner.files.cache.remove_conflict(conflict).map_err(local)
    }
}
