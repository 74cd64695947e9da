//! The client as its users have it: every operation, as one user, on fids. What they do is in the files beside.

use std::sync::Arc;

use afs_config::CellName;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::reply;
use bytes::Bytes;
use rx::Runtime;
use rx_proto::time::Instant;

use crate::config::Config;
use crate::directory::Listing;
use crate::error::Error;
use crate::events::Notices;
use crate::fid::{CellIndex, Fid, User};
use crate::open_file::{OpenFile, OpenFlags};
use crate::status::{SetStatus, Status};

/// A client of AFS. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// What all clones share.
#[derive(Debug)]
pub(crate) struct Inner {}

/// What a name was found to name. Of a mount point it is the mount point's own fid, with the status of what is mounted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Its fid.
    pub fid: Fid,
    /// Its status.
    pub status: Status,
}

/// What an operation that makes an entry has made.
pub type Made = Found;

/// Room in a volume and its partition, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The quota, or the partition's size where that is less or there is no quota.
    pub total_kib: u64,
    /// What may still be used of it.
    pub free_kib: u64,
}

/// How a file is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Alone.
    Write,
}

/// What is never waited for: answers from memory, for the threads that the kernel talks to. `None` means: ask the same of
/// the methods that wait.
impl Client {
    /// The status of a vnode.
    pub fn cached_status(&self, _user: User, _fid: Fid) -> Option<Result<Status, Error>> {
        None
    }

    /// What a name in a directory names; that there is no such name, too.
    pub fn cached_lookup(&self, _user: User, _dir: Fid, _name: &[u8]) -> Option<Result<Found, Error>> {
        None
    }

    /// The target of a symbolic link.
    pub fn cached_readlink(&self, _user: User, _fid: Fid) -> Option<Result<Bytes, Error>> {
        None
    }

    /// The time that [`Status::valid_until`] is told in.
    pub fn now(&self) -> Instant {
        Instant::ORIGIN
    }

    /// The root of it all: the dynamic root, or the root directory of the root volume.
    pub fn root(&self) -> Fid {
        Fid::root_of(CellIndex::DYNROOT, VolumeId(1))
    }

    /// The name of a cell.
    pub fn cell_name(&self, _cell: CellIndex) -> Option<CellName> {
        None
    }

    /// Changes from now on, for who keeps copies.
    pub fn notices(&self) -> Notices {
        unreachable!()
    }
}

/// Beginning and end.
impl Client {
    /// Starts a client: binds its port and answers servers on it. No server is asked anything yet.
    ///
    /// # Errors
    ///
    /// When no port can be had.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn start(config: Config) -> Result<Self, Error> {
        Self::start_with(Arc::new(rx::TokioRuntime::current()), config).await
    }

    /// The same on a runtime of the caller's choice.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn start_with(_runtime: Arc<dyn Runtime>, _config: Config) -> Result<Self, Error> {
        Err(Error::Closing)
    }

    /// Ends it: stores what is dirty as far as servers can be reached, gives back promises and locks, and frees the port. What
    /// is dirty and could not be stored stays in the cache. Operations under way fail with [`Error::Closing`].
    pub async fn shut_down(&self) {}
}

/// Names and status.
impl Client {
    /// What a name in a directory names: crosses mount points, knows `..` and `@sys`.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`]; of a mount point those of finding its volume.
    pub async fn lookup(&self, _user: User, dir: Fid, _name: &[u8]) -> Result<Found, Error> {
        Err(Error::Gone { fid: dir })
    }

    /// The status of a vnode.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when it was removed; when the user may not know.
    pub async fn status(&self, _user: User, fid: Fid) -> Result<Status, Error> {
        Err(Error::Gone { fid })
    }

    /// The status of many vnodes, in few calls: each with its own outcome, in the order of the fids.
    pub async fn statuses(&self, _user: User, fids: &[Fid]) -> Vec<Result<Status, Error>> {
        fids.iter().map(|&fid| Err(Error::Gone { fid })).collect()
    }

    /// The names in a directory.
    ///
    /// # Errors
    ///
    /// When the user may not list it.
    pub async fn read_dir(&self, _user: User, dir: Fid) -> Result<Listing, Error> {
        Err(Error::Gone { fid: dir })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::NotALink`].
    pub async fn readlink(&self, _user: User, fid: Fid) -> Result<Bytes, Error> {
        Err(Error::Gone { fid })
    }

    /// What a fid stands for: the root directory of the volume that is mounted, if it is a mount point's; else itself.
    ///
    /// # Errors
    ///
    /// Those of finding a volume.
    pub async fn target(&self, _user: User, fid: Fid) -> Result<Fid, Error> {
        Ok(fid)
    }

    /// Sets some of a status, the length among it.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_status(&self, _user: User, fid: Fid, _set: SetStatus) -> Result<Status, Error> {
        Err(Error::Gone { fid })
    }

    /// Room in the volume of a vnode.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn space(&self, _user: User, fid: Fid) -> Result<Space, Error> {
        Err(Error::Gone { fid })
    }
}

/// Changes of names.
impl Client {
    /// Makes an empty file.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; the server's.
    pub async fn create(&self, _user: User, dir: Fid, _name: &[u8], _mode: u32) -> Result<Made, Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Makes a directory, with its parent's access list.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub async fn make_dir(&self, _user: User, dir: Fid, _name: &[u8], _mode: u32) -> Result<Made, Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub async fn symlink(&self, _user: User, dir: Fid, _name: &[u8], _target: &[u8]) -> Result<Made, Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Gives a file one more name in its directory.
    ///
    /// # Errors
    ///
    /// As [`Self::create`], and [`Error::Apart`] for another directory.
    pub async fn link(&self, _user: User, _fid: Fid, dir: Fid, _name: &[u8]) -> Result<Made, Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Takes away a name of a file or symbolic link, or a mount point.
    ///
    /// # Errors
    ///
    /// [`Error::IsADirectory`]; the server's.
    pub async fn remove(&self, _user: User, dir: Fid, _name: &[u8]) -> Result<(), Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotADirectory`]; the server's: ENOTEMPTY where there is something in it.
    pub async fn remove_dir(&self, _user: User, dir: Fid, _name: &[u8]) -> Result<(), Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Gives something another name, in the same volume. What has that name is replaced, unless `keep` says that there must
    /// be nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Apart`] between volumes; the server's.
    pub async fn rename(
        &self,
        _user: User,
        _from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        _keep: bool,
    ) -> Result<(), Error> {
        Err(Error::Gone { fid: to.0 })
    }
}

/// Files.
impl Client {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When the user's rights do not allow it; what asking for the status brings.
    pub async fn open(&self, _user: User, fid: Fid, _flags: OpenFlags) -> Result<OpenFile, Error> {
        Err(Error::Gone { fid })
    }

    /// The same at once, if all that it takes is known.
    pub fn cached_open(&self, _user: User, _fid: Fid, _flags: OpenFlags) -> Option<Result<OpenFile, Error>> {
        None
    }

    /// Makes a file, or opens it where there is one already, unless `exclusive` says that there must be none.
    ///
    /// # Errors
    ///
    /// Those of [`Self::create`] and [`Self::open`].
    pub async fn create_and_open(
        &self,
        _user: User,
        (dir, _name): (Fid, &[u8]),
        _mode: u32,
        _flags: OpenFlags,
        _exclusive: bool,
    ) -> Result<(Made, OpenFile), Error> {
        Err(Error::Gone { fid: dir })
    }

    /// Locks a file for one holder (an open file of the kernel, a process: the caller's number), all of it. The server's lock
    /// is shared by all holders of this client, kept alive while one has it, and given back with the last.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], unless it is to be waited for.
    pub async fn lock(&self, _user: User, fid: Fid, _holder: u64, _kind: LockKind, _wait: bool) -> Result<(), Error> {
        Err(Error::Gone { fid })
    }

    /// Gives a holder's lock back.
    pub async fn unlock(&self, _fid: Fid, _holder: u64) {}
}

/// What `fs` asks.
impl Client {
    /// The access list that governs a vnode, as the server sends it, and what of it this user has.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn access_list(&self, _user: User, fid: Fid) -> Result<(Bytes, Rights), Error> {
        Err(Error::Gone { fid })
    }

    /// Sets the access list of a directory, from the text that servers take (with or without the NUL at its end).
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_access_list(&self, _user: User, fid: Fid, _text: &[u8]) -> Result<(), Error> {
        Err(Error::Gone { fid })
    }

    /// Quota, use and messages of the volume of a vnode.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn volume_status(&self, _user: User, fid: Fid) -> Result<reply::GetVolumeStatus, Error> {
        Err(Error::Gone { fid })
    }

    /// Forgets what is known of a vnode, and of its data, unless they are dirty.
    pub async fn flush(&self, _fid: Fid) {}

    /// The same of a whole volume.
    pub async fn flush_volume(&self, _cell: CellIndex, _volume: VolumeId) {}

    /// Seconds since 1970, as times of files are told.
    pub fn time(&self) -> AfsTime {
        AfsTime(0)
    }
}
