//! Reading data: of a vnode as it was when it was opened. How data are laid out, and how they come to be, is left to the parent.

use super::open_chunk;
use crate::group;
use crate::keys::{Part, Snapshot};
use crate::pages::PAGE;
use crate::records::CHUNK;
use crate::records::{ChunkRecord, Layout, VnodeRecord};
use crate::shared::Pin;
use crate::{VnodeId, VnodeStatus, Volume, VolumeError};
use afs_store::{Bytes, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::disk::DiskFile;

/// The data of a vnode as they were when it was opened: what is stored or removed later does not change them.
/// Reading takes no lock and can go on for as long as a slow client needs; the space of what was removed meanwhile
/// comes back when the reader is dropped.
#[derive(Debug)]
pub struct Reader {
    volume: Arc<Volume>,
    record: VnodeRecord,
    source: Source,
    /// The beginning and the end of the part that was opened.
    start: u64,
    end: u64,
    _pin: Pin,
}

#[derive(Debug)]
enum Source {
    /// All of it, from position 0.
    Memory(Bytes),
    /// Pages of a directory.
    Pages(Vec<Bytes>),
    Chunks {
        chunks: BTreeMap<u32, (Snapshot, ChunkRecord)>,
        last: Mutex<Option<(u32, Arc<dyn DiskFile>)>>,
    },
}

impl Reader {
    /// The vnode's status when it was opened: what the data belong to.
    #[must_use]
    pub fn status(&self) -> &VnodeStatus {
        &self.record.status
    }

    /// True if [`Reader::read_at`] only copies what is in memory.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        !matches!(self.source, Source::Chunks { .. })
    }

    /// Fills `out` from a position in the file on; says how many bytes there were, which is fewer only at the end of
    /// what was opened. Holes read as zeros.
    ///
    /// # Errors
    ///
    /// The disk failed, or has less than it should.
    ///
    /// # Panics
    ///
    /// The position is before that from which on it was opened.
    pub fn read_at(&self, position: u64, out: &mut [u8]) -> Result<usize, VolumeError> {
        assert!(position >= self.start, "what is before was not opened");
        let wanted = self.end.saturating_sub(position).min(out.len() as u64);
        let out = &mut out[..usize::try_from(wanted).expect("at most out.len()")];
        let mut done = 0;
        while done < out.len() {
            let at = position + done as u64;
            match &self.source {
                Source::Memory(bytes) => {
                    let from = usize::try_from(at).expect("below the length");
                    out.copy_from_slice(&bytes[from..from + out.len()]);
                    return Ok(out.len());
                }
                Source::Pages(pages) => {
                    let (n, from) = ((at / PAGE as u64) as usize, (at % PAGE as u64) as usize);
                    let length = (PAGE - from).min(out.len() - done);
                    out[done..done + length].copy_from_slice(&pages[n][from..from + length]);
                    done += length;
                }
                Source::Chunks { .. } => {
                    let from = at % CHUNK;
                    let length = usize::try_from(CHUNK - from).expect("a chunk").min(out.len() - done);
                    self.read_chunk((at / CHUNK) as u32, from, &mut out[done..done + length])?;
                    done += length;
                }
            }
        }
        Ok(out.len())
    }

    fn read_chunk(&self, n: u32, from: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let Source::Chunks { chunks, last } = &self.source else { unreachable!("asked for by read_at") };
        let Some((snapshot, chunk)) = chunks.get(&n) else {
            out.fill(0);
            return Ok(());
        };
        let mut last = lock(last);
        let file = match &*last {
            Some((number, file)) if *number == n => file.clone(),
            _ => {
                let file = open_chunk(&self.volume, self.record.status.id, n, *snapshot, chunk.file)?;
                *last = Some((n, file.clone()));
                file
            }
        };
        drop(last);
        read_part(&*file, *chunk, from, out)
    }
}

/// Bytes of a chunk; zeros behind what it has.
pub(super) fn read_part(
    file: &dyn DiskFile,
    chunk: ChunkRecord,
    from: u64,
    out: &mut [u8],
) -> Result<(), VolumeError> {
    let there = u64::from(chunk.length).saturating_sub(from).min(out.len() as u64);
    let (data, zeros) = out.split_at_mut(usize::try_from(there).expect("at most out.len()"));
    let n = file.read_at(from, data).map_err(VolumeError::io("cannot read a file of data"))?;
    if n < data.len() {
        let why = format!("has {} bytes and should have {}", from + n as u64, chunk.length);
        return Err(VolumeError::damaged(format!("file {:x} of data", chunk.file.0), why));
    }
    zeros.fill(0);
    Ok(())
}

impl Volume {
    /// Opens a vnode of any kind for reading `length` bytes from `position` on, as far as it has them: costs time and
    /// memory by their number, so say `u64::MAX` only for small things.
    ///
    /// # Errors
    ///
    /// No such vnode; the disk failed.
    pub fn open(self: &Arc<Self>, id: VnodeId, position: u64, length: u64) -> Result<Reader, VolumeError> {
        self.open_now(id, position, length).map_err(|error| match self.check_whole() {
            // A clone whose rows go while they are read.
            Err(gone @ VolumeError::NoVolume(_)) => gone,
            _ => error,
        })
    }

    fn open_now(self: &Arc<Self>, id: VnodeId, position: u64, length: u64) -> Result<Reader, VolumeError> {
        let _fits_together = self.steady();
        let pin = self.shared.pin();
        let record = self.read_vnode(id)?;
        let end = record.status.length.min(position.saturating_add(length));
        let position = position.min(end);
        let missing =
            |what: &str| VolumeError::damaged(format!("vnode {} of volume {}", id.vnode, self.id), what);
        let source = match record.layout {
            Layout::Inline => {
                let bytes = self.part(id.vnode, Part::Inline)?.unwrap_or_default();
                if (bytes.len() as u64) < record.status.length {
                    return Err(missing("has fewer bytes than its length"));
                }
                Source::Memory(bytes)
            }
            Layout::Pages => {
                let pages = (0..record.status.length / PAGE as u64)
                    .map(|n| match self.part(id.vnode, Part::Page(n as u32))? {
                        Some(page) if page.len() == PAGE => Ok(page),
                        _ => Err(missing("lacks a page")),
                    })
                    .collect::<Result<_, _>>()?;
                Source::Pages(pages)
            }
            Layout::Chunks => {
                let range = (position / CHUNK) as u32..=(end.saturating_sub(1) / CHUNK) as u32;
                let chunks = if position < end {
                    group::chunks(&self.shared.store, self.group.id, id.vnode, self.view(), range)?
                } else {
                    Vec::new()
                };
                let chunks = chunks
                    .into_iter()
                    .filter_map(|(n, snapshot, chunk)| Some((n, (snapshot, chunk?))))
                    .collect();
                Source::Chunks { chunks, last: Mutex::new(None) }
            }
        };
        Ok(Reader { volume: self.clone(), record, source, start: position, end, _pin: pin })
    }
}
