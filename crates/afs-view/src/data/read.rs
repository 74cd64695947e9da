//! Reads an open file: from the cache at once if the data are there and promised, else after fetching them.

use std::ops::Range;
use std::sync::Arc;

use afs_cache::{AtOnce, CacheFile};
use afs_wire::ids::DataVersion;
use bytes::{Bytes, BytesMut};

use crate::data::fetch::{FetchOutcome, WHOLE_BYTES};
use crate::data::files::{FileData, local, lock};
use crate::data::open_file::OpenFile;
use afs_reach::error::Error;
use afs_reach::remote::Breaks;

/// The number of times that a read begins anew when the file is changed at the server while it is fetched.
const ATTEMPTS_MAX: u32 = 32;

/// The data that were read: their version, and how long the file is in it, with what was written here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOf {
    /// The version at the server.
    pub version: DataVersion,
    /// Bytes.
    pub length: u64,
}

impl DataOf {
    fn file(file: &CacheFile) -> Self {
        Self { version: DataVersion(file.version()), length: file.length() }
    }
}

impl OpenFile {
    /// Puts bytes at a position into `out`, if they are here: how many, fewer than wanted only at the file's end. `None`: ask
    /// [`Self::read`]. Never blocks for the network.
    pub fn cached_read(&self, pos: u64, out: &mut [u8]) -> Option<Result<usize, Error>> {
        self.cached_read_of(pos, out).map(|read| read.map(|(count, _)| count))
    }

    /// The same, and says what was read.
    pub fn cached_read_of(&self, pos: u64, out: &mut [u8]) -> Option<Result<(usize, DataOf), Error>> {
        let file = match self.current_file() {
            Ok(file) => file?,
            Err(error) => return Some(Err(error)),
        };
        let result = file.read_at(pos, out)?;
        if !self.data.may_be_told(&file, pos, out.len() as u64) {
            return None;
        }
        self.note_hit(&file, pos, out.len() as u64);
        Some(result.map(|count| (count, DataOf::file(&file))).map_err(local))
    }

    /// The same, and the disk is not waited for either. Says what was read, if anything was.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub fn cached_read_at_once(&self, pos: u64, out: &mut [u8]) -> Result<(AtOnce, Option<DataOf>), Error> {
        let Some(file) = self.current_file()? else { return Ok((AtOnce::Absent, None)) };
        let result = file.read_at_once(pos, out).map_err(local)?;
        if matches!(result, AtOnce::Read(_)) {
            if !self.data.may_be_told(&file, pos, out.len() as u64) {
                return Ok((AtOnce::Absent, None));
            }
            self.note_hit(&file, pos, out.len() as u64);
        }
        Ok((result, Some(DataOf::file(&file))))
    }

    /// The cached file, if it may be read without asking the server.
    fn current_file(&self) -> Result<Option<Arc<CacheFile>>, Error> {
        if self.data.current().is_none() {
            // The first read.
            self.data.adopt_known(self.files(), self.user())?;
        }
        Ok(self.data.current().filter(|file| self.is_current(file)))
    }

    /// A read was answered from the cache: it may be time to bring what is read next.
    fn note_hit(&self, file: &Arc<CacheFile>, pos: u64, length: u64) {
        if !file.is_complete() {
            let more = lock(&self.readahead).note_hit(pos, length, self.ahead_max());
            if let Some(more) = more {
                let end = pos.saturating_add(length);
                self.data.fetch_ahead(self.files(), self.user(), file, end..end.saturating_add(more));
            }
        }
    }

    /// True if the open copy is what the server has, as far as is promised.
    pub(crate) fn has_current(&self) -> bool {
        self.data.current().is_some_and(|file| self.is_current(&file))
    }

    /// True if the copy may be read without asking the server: it is what the server has by its promise, or it is
    /// dirty.
    pub(crate) fn is_current(&self, file: &CacheFile) -> bool {
        if self.data.is_unsettled() {
            return false;
        }
        if self.data.is_removed() {
            return true;
        }
        let files = self.files();
        let who = files.users.who(self.user(), self.fid().cell);
        match self.data.vnode.known(files.now(), who) {
            Some(known) => known.status.data_version.0 == file.version() || file.is_dirty(),
            None => false,
        }
    }

    fn ahead_max(&self) -> u64 {
        let files = self.files();
        let pace = files.pace_of(self.fid());
        let most = lock(&pace.pace).ahead_max();
        // Not so far that what is read next has to go to make room for it.
        most.min(files.cache.usage().limit_bytes / 4)
    }

    /// Bytes at a position, fewer than wanted only at the file's end.
    ///
    /// # Errors
    ///
    /// The server's, the cache's.
    pub async fn read(&self, pos: u64, length: usize) -> Result<Bytes, Error> {
        Ok(self.read_of(pos, length).await?.0)
    }

    /// The same, and says what was read.
    ///
    /// # Errors
    ///
    /// The server's, the cache's.
    pub async fn read_of(&self, pos: u64, length: usize) -> Result<(Bytes, DataOf), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let file = self.data.refresh(self.user()).await?;
            let range = FileData::clip(&file, pos, length as u64);
            let mut out = BytesMut::zeroed(
                usize::try_from(range.end - range.start).expect("at most what was asked for"),
            );
            let result = file.read_at(range.start, &mut out);
            if let Some(result) = result.filter(|_| self.data.may_be_told(&file, pos, length as u64)) {
                let n = result.map_err(local)?;
                out.truncate(n);
                return Ok((out.freeze(), DataOf::file(&file)));
            }
            if file.server_length() <= WHOLE_BYTES {
                self.prefetch.note_waited(self.user(), &self.data.vnode);
            }
            let most = self.ahead_max();
            let ahead = lock(&self.readahead).note(range.start, range.end - range.start, most);
            match self.data.bring(self.user(), &file, range.clone(), ahead).await {
                Ok(FetchOutcome::Here) => {}
                // What is dirty of a version that the server has no longer is stored first, by the next look.
                Ok(FetchOutcome::Stale) if file.is_dirty() => self.data.store(self.user(), false).await?,
                Ok(FetchOutcome::Stale) => self.data.vnode.note_break(),
                Err(error) if error.is_full_here() => {
                    // Without the cache nothing can be laid over what comes.
                    if file.is_dirty() {
                        self.data.store(self.user(), false).await?;
                    } else if let Some(bytes) = self.read_around(&file, range).await? {
                        return Ok((bytes, DataOf::file(&file)));
                    } else {
                        self.data.vnode.note_break();
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy { rpc: "FetchData64", fid: self.fid(), code: afs_wire::abort::VBUSY })
    }

    /// Reads from the server and puts nothing into the cache, as there is no room in it. `None`: the server has another version.
    async fn read_around(&self, file: &CacheFile, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        let (files, fid) = (self.files(), self.fid());
        let length = range.end - range.start;
        let mut breaks = Breaks::default();
        loop {
            let mut fetch = files.streams.fetch(self.user(), fid, range.start, length).await?;
            let once = async {
                let mut bytes = BytesMut::new();
                while let Some(piece) = fetch.next().await? {
                    bytes.extend_from_slice(&piece);
                }
                Ok::<_, Error>((bytes, fetch.end().await?))
            };
            let (bytes, status) = match once.await {
                Ok(whole) => whole,
                Err(error) => {
                    breaks.wait(&files.calls, error).await?;
                    continue;
                }
            };
            if status.data_version.0 != file.version() {
                return Ok(None);
            }
            if bytes.len() as u64 == length {
                return Ok(Some(bytes.freeze()));
            }
            let what = format!("fetching {length} bytes of {fid} at {}", range.start);
            return Err(Error::BadReply { what, problem: format!("{} came", bytes.len()) });
        }
    }
}
