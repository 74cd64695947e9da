//! The file of the B-tree with a checksum for each block, so that a bit that flips on the disk is an error which names the place, before
//! the library that reads the file takes it for what was written (Volume format 1). The checksums are in a file of their own beside it,
//! and so is a copy of the file's header, which is the one that counts: a block of the file is written anew only after all that was
//! committed has let go of it, but its header is written in place, and has to change together with its checksum.

use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use crate::rows::lock;
use redb::StorageBackend;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

/// Bytes with a checksum: the smallest page of redb. All of its pages are whole blocks.
pub(super) const BLOCK: usize = 4096;
/// Bytes of redb's header, at the beginning of the first block; the rest of that block is not used.
const HEADER: usize = 320;
/// The first bytes of a copy of the header; the last digit is the format's version.
const MAGIC: &[u8; 8] = b"AFARSUM1";
/// The two copies of the header: a sector each, which a disk writes as a whole or not at all.
const COPIES: [usize; 2] = [0, 512];
/// Bytes of both.
const COPIES_END: usize = 1024;
/// The place of the checksums: four bytes for each block, 0 for one that was never written.
const SUMS_AT: usize = BLOCK;
/// Checksums that are written together.
const SUMS_AT_ONCE: usize = BLOCK / 4;
/// Bytes that are read at once when a file gets its checksums.
const PIECE: usize = 1 << 20;

/// A file whose blocks have checksums.
#[derive(Debug)]
pub struct CheckedFile {
    file: Arc<dyn DiskFile>,
    sums: Arc<dyn DiskFile>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    header: [u8; HEADER],
    /// The sums, by block.
    sums: Vec<u32>,
    /// Pieces of these, of [`SUMS_AT_ONCE`], that the file does not have yet.
    changed: BTreeSet<usize>,
}

/// The checksum of a block, which is none of another place's. Never 0.
fn sum_of(block: usize, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(block as u32);
    hasher.update(bytes);
    hasher.finalize().max(1)
}

fn copy_of(header: &[u8; HEADER]) -> Vec<u8> {
    let mut copy = [&MAGIC[..], header].concat();
    copy.extend_from_slice(&crc32fast::hash(&copy).to_be_bytes());
    copy
}

/// The header in one of its copies, if that is whole.
fn header_in(copy: &[u8]) -> Option<[u8; HEADER]> {
    let (bytes, sum) = copy.get(..MAGIC.len() + HEADER + 4)?.split_last_chunk()?;
    let header = bytes.strip_prefix(MAGIC)?;
    (*sum == crc32fast::hash(bytes).to_be_bytes()).then(|| header.try_into().expect("it is as long"))
}

impl CheckedFile {
    /// Opens a file with the file of its checksums beside it, whose name is for errors.
    ///
    /// # Errors
    ///
    /// The disk's; the file of checksums is damaged.
    pub fn open(file: Arc<dyn DiskFile>, sums: Arc<dyn DiskFile>, name: &str) -> Result<Self, StoreError> {
        let read = || {
            let mut bytes = vec![0; usize::try_from(sums.length()?).map_err(io::Error::other)?];
            let length = sums.read_at(0, &mut bytes)?;
            bytes.truncate(length);
            Ok(bytes)
        };
        let bytes = read().map_err(StoreError::io(format!("cannot read {name}")))?;
        let Some(header) = COPIES.iter().find_map(|&at| header_in(bytes.get(at..COPIES_END)?)) else {
            let why = "neither copy of the header is as it was written; remove this file, and the next start makes it anew, after it has \
                       checked all rows by the checksums that they have besides";
            return Err(StoreError::damaged(name, why));
        };
        let mut known = Vec::new();
        for sum in bytes.get(SUMS_AT..).unwrap_or_default().chunks_exact(4) {
            known.push(u32::from_be_bytes(sum.try_into().expect("four bytes")));
        }
        let blocks =
            file.length().map_err(StoreError::io(format!("cannot read {name}")))?.div_ceil(BLOCK as u64);
        known.resize(usize::try_from(blocks).unwrap_or(usize::MAX), 0);
        Ok(Self { file, sums, state: Mutex::new(State { header, sums: known, changed: BTreeSet::new() }) })
    }

    /// Makes the checksums of a file that is known to be whole, and that nobody changes meanwhile.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn make(disk: &dyn Disk, file: &dyn DiskFile, name: &str) -> Result<(), StoreError> {
        let new = format!("{name}.new");
        let make = || {
            let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
            let mut piece = vec![0; PIECE.min(length.next_multiple_of(BLOCK))];
            let mut out = vec![0; SUMS_AT];
            for at in (0..length).step_by(PIECE) {
                piece.fill(0);
                file.read_at(at as u64, &mut piece)?;
                if at == 0 {
                    let header: &[u8; HEADER] = piece.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
                    COPIES
                        .iter()
                        .for_each(|&at| out[at..][..copy_of(header).len()].copy_from_slice(&copy_of(header)));
                }
                let left = (length - at).div_ceil(BLOCK);
                for (i, block) in piece.chunks_exact(BLOCK).take(left).enumerate() {
                    let sum =
                        if block.iter().all(|&byte| byte == 0) { 0 } else { sum_of(at / BLOCK + i, block) };
                    out.extend_from_slice(&sum.to_be_bytes());
                }
            }
            let sums = disk.create(&new)?;
            sums.write_at(0, &out)?;
            sums.sync()?;
            disk.rename(&new, name)?;
            disk.sync_folder("")
        };
        make().map_err(StoreError::io(format!("cannot make {name}")))
    }

    /// The header of the file: the copy that counts.
    pub(super) fn header(&self) -> [u8; HEADER] {
        lock(&self.state).header
    }

    pub(super) fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    /// Reads whole blocks, whose checksums are right.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let block = block_of(offset, out.len())?;
        if self.file.read_at(offset, out)? < out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.check(block, out)
    }

    fn check(&self, first: usize, bytes: &[u8]) -> io::Result<()> {
        let state = lock(&self.state);
        for (block, bytes) in (first..).zip(bytes.chunks(BLOCK)) {
            let is_right = match state.sums.get(block) {
                Some(0) | None => bytes.iter().all(|&byte| byte == 0),
                Some(sum) => sum_of(block, bytes) == *sum,
            };
            if !is_right {
                let (from, to) = (block * BLOCK, (block + 1) * BLOCK);
                let why = format!(
                    "bytes {from} to {to} are not what was written there: the rows in them cannot be read"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        Ok(())
    }

    /// Writes checksums that were changed.
    fn flush(&self, state: &mut State) -> io::Result<()> {
        while let Some(&piece) = state.changed.first() {
            let from = piece * SUMS_AT_ONCE;
            let sums = state.sums.get(from..).unwrap_or_default().iter().take(SUMS_AT_ONCE);
            let bytes: Vec<u8> = sums.flat_map(|sum| sum.to_be_bytes()).collect();
            self.sums.write_at((SUMS_AT + 4 * from) as u64, &bytes)?;
            state.changed.remove(&piece);
        }
        Ok(())
    }
}

/// What redb reads and writes.
#[derive(Debug)]
pub struct CheckedBackend(pub Arc<CheckedFile>);

fn block_of(offset: u64, length: usize) -> io::Result<usize> {
    let is_whole = offset.is_multiple_of(BLOCK as u64) && length.is_multiple_of(BLOCK);
    if is_whole {
        usize::try_from(offset / BLOCK as u64).map_err(io::Error::other)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

impl StorageBackend for CheckedBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.file.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() <= HEADER {
            out.copy_from_slice(&lock(&self.0.state).header[..out.len()]);
            return Ok(());
        }
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = lock(&self.0.state);
        let blocks = usize::try_from(len.div_ceil(BLOCK as u64)).map_err(io::Error::other)?;
        // What is cut off, and there again later, is zeros.
        self.0.file.set_length(len)?;
        state.sums.resize(blocks, 0);
        state.changed.retain(|piece| piece * SUMS_AT_ONCE < blocks);
        self.0.sums.set_length((SUMS_AT + 4 * blocks) as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.flush(&mut lock(&self.0.state))?;
        self.0.file.sync()?;
        self.0.sums.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset == 0 && data.len() == HEADER {
            let mut state = lock(&self.0.state);
            // It may be what makes blocks count that were written before.
            self.0.flush(&mut state)?;
            state.header.copy_from_slice(data);
            let mut copies = vec![0; COPIES_END];
            COPIES.iter().for_each(|&at| {
                copies[at..][..copy_of(&state.header).len()].copy_from_slice(&copy_of(&state.header))
            });
            self.0.sums.write_at(0, &copies)?;
            return self.0.file.write_at(offset, data);
        }
        let first = block_of(offset, data.len())?;
        self.0.file.write_at(offset, data)?;
        let mut state = lock(&self.0.state);
        for (block, bytes) in (first..).zip(data.chunks(BLOCK)) {
            if let Some(sum) = state.sums.get_mut(block) {
                *sum = sum_of(block, bytes);
                state.changed.insert(block / SUMS_AT_ONCE);
            }
        }
        Ok(())
    }
}
