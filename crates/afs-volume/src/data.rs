//! Bytes: of files, of directories as their pages, of symbolic links as their targets.

use crate::{SetStatus, Stamp, VnodeId, VnodeStatus, Volume, VolumeError};

/// The data of a vnode as they were when it was opened: what is stored or removed later does not change them.
/// Reading takes no lock and can go on for as long as a slow client needs.
#[derive(Debug)]
pub struct Reader {}

#[expect(clippy::unused_self, unused_variables, reason = "signatures first")]
impl Reader {
    /// The vnode's status when it was opened: what the data belong to.
    #[must_use]
    pub fn status(&self) -> &VnodeStatus {
        unreachable!("signatures first")
    }

    /// Fills `out` from a position in the file on; says how many bytes there were, which is fewer only at the end of
    /// what was opened. Holes read as zeros.
    ///
    /// # Errors
    ///
    /// The disk failed, or has less than it should.
    pub fn read_at(&self, position: u64, out: &mut [u8]) -> Result<usize, VolumeError> {
        Ok(0)
    }
}

/// What a StoreData asks for (File service notes 6.2): the file is cut to `file_length` if it is longer, then
/// `length` bytes go to `position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRange {
    /// Where the bytes go.
    pub position: u64,
    /// How many will come.
    pub length: u64,
    /// The length that the file has for the client.
    pub file_length: u64,
}

/// A store into a file that is going on. Readers see nothing of it until [`Store::commit`]; dropped before, it leaves
/// nothing behind.
#[derive(Debug)]
pub struct Store {}

#[expect(clippy::unused_self, unused_variables, clippy::needless_pass_by_value, reason = "signatures first")]
impl Store {
    /// Takes the next bytes.
    ///
    /// # Errors
    ///
    /// More than were announced is [`VolumeError::TooBig`]; disk full; the disk failed.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Makes it the file's contents: one more data version, the new length, the status to be set with it. If `fsync`,
    /// also forces it onto the disk first.
    ///
    /// # Errors
    ///
    /// The file is gone meanwhile; over quota; disk full; the disk failed.
    ///
    /// # Panics
    ///
    /// Fewer bytes came than were announced: then drop it instead.
    pub fn commit(self, set: &SetStatus, stamp: Stamp, fsync: bool) -> Result<VnodeStatus, VolumeError> {
        Err(VolumeError::DiskFull)
    }
}

#[expect(clippy::unused_self, unused_variables, reason = "signatures first")]
impl Volume {
    /// Opens a vnode of any kind for reading `length` bytes from `position` on, as far as it has them: costs time and
    /// memory by their number, so say `u64::MAX` only for small things.
    ///
    /// # Errors
    ///
    /// No such vnode; the disk failed.
    pub fn open(&self, id: VnodeId, position: u64, length: u64) -> Result<Reader, VolumeError> {
        Err(VolumeError::NoVnode(id.vnode))
    }

    /// Begins a store into a file. One at a time for each file.
    ///
    /// # Errors
    ///
    /// No such vnode, or no file; another store goes on; too long; read-only; over quota or disk full, as far as it
    /// can be told now.
    pub fn begin_store(&self, id: VnodeId, range: StoreRange) -> Result<Store, VolumeError> {
        Err(VolumeError::NoVnode(id.vnode))
    }
}
