//! Reading a file of the cache: what of it is here, and its bytes, by us or by the kernel. What puts bytes there and takes them away is
//! left to the parent.

use super::CacheFile;
use crate::CacheError;
use crate::backing::BackingFile;
use afs_store::{lock, read};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The outcome of a read that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtOnce {
    /// So many bytes, fewer than asked for only at the end.
    Read(usize),
    /// All of it is here, and the disk has to be waited for.
    OnDisk,
    /// A part of it is not here.
    Absent,
}

impl CacheFile {
    /// The parts of a range that are not here; none beyond the end.
    #[must_use]
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.is_complete() {
            return Vec::new();
        }
        let state = read(&self.state);
        state.present.missing(range.start..range.end.min(self.length()))
    }

    /// True if all of a range is here, as far as the file goes.
    #[must_use]
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.is_complete() || {
            let state = read(&self.state);
            let end = range.end.min(self.length());
            state.present.contains(&(range.start.min(end)..end))
        }
    }

    /// Reads from a position on, fewer bytes than asked for only at the end. `None` if not all of it is here.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn read_at(&self, position: u64, out: &mut [u8]) -> Option<Result<usize, CacheError>> {
        let result = self.read_by(position, out, BackingFile::read_at)?;
        Some(result.map_err(|error| self.failed("cannot read a file's data", error)))
    }

    /// The same, if the disk need not be waited for.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn read_at_once(&self, position: u64, out: &mut [u8]) -> Result<AtOnce, CacheError> {
        match self.read_by(position, out, BackingFile::read_at_once) {
            None => Ok(AtOnce::Absent),
            Some(Ok(n)) => Ok(AtOnce::Read(n)),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(AtOnce::OnDisk),
            Some(Err(error)) => Err(self.failed("cannot read a file's data", error)),
        }
    }

    fn read_by(
        &self,
        position: u64,
        out: &mut [u8],
        read_file: impl Fn(&BackingFile, u64, &mut [u8]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        loop {
            let losses = self.losses.load(Ordering::Acquire);
            let length = self.length();
            let n = usize::try_from(length.saturating_sub(position)).map_or(out.len(), |n| n.min(out.len()));
            if n == 0 {
                return Some(Ok(0));
            }
            let range = position..position + n as u64;
            if !self.is_complete() && !read(&self.state).present.contains(&range) {
                return None;
            }
            let result = read_file(&self.file, position, &mut out[..n]);
            if self.losses.load(Ordering::Acquire) != losses {
                continue;
            }
            self.position.store(range.end, Ordering::Relaxed);
            return Some(result);
        }
    }

    /// The backing file, if all of the data is in it, for the kernel to read from it: the same one for all who hold it. Nothing of the
    /// data is let go while somebody does.
    #[must_use]
    pub fn backing(&self) -> Option<Arc<File>> {
        let mut whole = lock(&self.whole);
        if !self.is_complete() || !read(&self.state).unconfirmed.is_empty() {
            return None;
        }
        if let Some(file) = whole.upgrade() {
            return Some(file);
        }
        let file = Arc::new(self.file.as_file()?.try_clone().ok()?);
        *whole = Arc::downgrade(&file);
        Some(file)
    }
}
