//! An open file: what a handle of the kernel stands for. How its data are read and written is in `read` and `write_back`.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

use crate::client::Client;
use crate::error::Error;
use crate::fid::{Fid, User};
use crate::status::Status;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// To be emptied first.
    pub truncate: bool,
}

/// An open file. It is let go when it is dropped; what was written and not flushed is stored nevertheless, in the background.
#[derive(Debug)]
pub struct OpenFile {
    client: Client,
    user: User,
    fid: Fid,
    flags: OpenFlags,
}

impl OpenFile {
    /// The file.
    pub fn fid(&self) -> Fid {
        self.fid
    }

    /// Who has opened it: whose rights count until it is closed.
    pub fn user(&self) -> User {
        self.user
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Puts bytes at a position into `out`, if they are here: how many, fewer than wanted only at the file's end. `None`: ask
    /// [`Self::read`]. Never blocks for the network.
    pub fn cached_read(&self, _pos: u64, _out: &mut [u8]) -> Option<Result<usize, Error>> {
        None
    }

    /// Bytes at a position, fewer than wanted only at the file's end.
    ///
    /// # Errors
    ///
    /// The server's, the cache's.
    pub async fn read(&self, _pos: u64, _length: usize) -> Result<Bytes, Error> {
        Err(Error::Gone { fid: self.fid })
    }

    /// Writes bytes at a position, all of them. They are in the file for all readers of this client when this returns, and
    /// at the server when [`Self::flush`] has.
    ///
    /// # Errors
    ///
    /// The cache's; an error of an earlier store.
    pub async fn write(&self, _pos: u64, _bytes: Bytes) -> Result<(), Error> {
        Err(Error::Gone { fid: self.fid })
    }

    /// Cuts or extends the file.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub async fn truncate(&self, _length: u64) -> Result<Status, Error> {
        Err(Error::Gone { fid: self.fid })
    }

    /// Stores what was written, as at a close: others see it when this returns.
    ///
    /// # Errors
    ///
    /// Those of storing, of every store since the last flush.
    pub async fn flush(&self) -> Result<(), Error> {
        Err(Error::Gone { fid: self.fid })
    }

    /// The same, and the server has it on its disk.
    ///
    /// # Errors
    ///
    /// As [`Self::flush`].
    pub async fn fsync(&self) -> Result<(), Error> {
        Err(Error::Gone { fid: self.fid })
    }

    /// The file of the cache that has all of the data, open for reading and writing, if there is one: for passthrough. Always
    /// the same for the same data as long as one open file of them is there.
    pub fn backing(&self) -> Option<Arc<File>> {
        None
    }
}
