//! The writes of a restore: data into files of their own, a chunk each, and rows in batches, which name the files soon after they were
//! written.

use super::{BATCH_BYTES, CHUNKS_AT_ONCE, OpenChunk, Restore, key};
use crate::VolumeError;
use crate::keys::{self, Part};
use crate::records::CHUNK;
use crate::records::{self, ChunkRecord, Layout};
use afs_wire::ids::VnodeNumber;

impl Restore {
    /// The next bytes of the last vnode.
    ///
    /// # Errors
    ///
    /// More than were announced is [`VolumeError::TooBig`]; disk full; the disk failed.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), VolumeError> {
        let Some(open) = &mut self.open else { return Err(VolumeError::TooBig) };
        open.received += bytes.len() as u64;
        if open.received > open.record.status.length {
            return Err(VolumeError::TooBig);
        }
        if open.record.layout != Layout::Chunks {
            // At most a directory's pages, or what is kept in a row.
            open.bytes.extend_from_slice(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            let at = self.open_chunk()?;
            let Some(open) = &mut self.open else { return Ok(()) };
            let Some(chunk) = &mut open.chunk else { return Ok(()) };
            let (now, later) = bytes.split_at(bytes.len().min((CHUNK - at) as usize));
            let written = chunk.disk.write_at(at, now);
            written.map_err(VolumeError::io(format!("cannot write data of volume {}", self.volume.id)))?;
            chunk.length += now.len() as u32;
            bytes = later;
            if u64::from(chunk.length) == CHUNK {
                self.end_chunk()?;
            }
        }
        Ok(())
    }

    /// Makes sure that a chunk is open; says how many bytes it has.
    fn open_chunk(&mut self) -> Result<u64, VolumeError> {
        let Some(open) = &mut self.open else { return Err(VolumeError::TooBig) };
        if let Some(chunk) = &open.chunk {
            return Ok(chunk.length.into());
        }
        self.shared.check_space(CHUNK / 1024)?;
        let file = self.shared.begin_file()?;
        let key =
            key(self.volume.group.id, open.record.status.id.vnode, Part::Chunk(open.chunks), self.target);
        let name = records::file_name(file, &key, open.chunks);
        match self.shared.store.disk().create(&name) {
            Ok(disk) => open.chunk = Some(OpenChunk { file, name, disk, length: 0 }),
            Err(error) => {
                self.shared.end_file(file);
                return Err(VolumeError::io(format!("cannot write data of volume {}", self.volume.id))(
                    error,
                ));
            }
        }
        Ok(0)
    }

    pub(super) fn end_chunk(&mut self) -> Result<(), VolumeError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some(chunk) = open.chunk.take() else { return Ok(()) };
        // Else the disk would rest while all of it comes, and then be waited for.
        chunk.disk.begin_sync();
        let (vnode, n) = (open.record.status.id.vnode, open.chunks);
        open.chunks += 1;
        self.files.push(chunk.file);
        self.batch.files.push(chunk.name);
        let record = ChunkRecord { file: chunk.file, length: chunk.length };
        self.put(vnode, Part::Chunk(n), record.encode())?;
        if self.files.len() >= CHUNKS_AT_ONCE { self.flush() } else { Ok(()) }
    }

    /// Writes a row of the snapshot that nobody shows.
    pub(super) fn put(&mut self, vnode: VnodeNumber, part: Part, value: Vec<u8>) -> Result<(), VolumeError> {
        self.batch_bytes += value.len() + 64;
        self.batch.put(key(self.volume.group.id, vnode, part, self.target).key(), value);
        if self.batch_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    pub(super) fn flush(&mut self) -> Result<(), VolumeError> {
        let mut batch = std::mem::take(&mut self.batch);
        self.has_directories = false;
        if let Some(open) = self.open.as_ref().filter(|open| open.chunks > 0) {
            batch.put(keys::partial(self.volume.group.id), records::encode_partial(&open.record));
        }
        let kib = std::mem::take(&mut self.batch_bytes) as u64 / 1024;
        if batch.rows.is_empty() {
            return Ok(());
        }
        let store = &self.shared.store;
        let result = self.shared.check_space(kib).and_then(|()| Ok(store.submit(batch)?));
        let seq = match result {
            Ok(seq) => seq,
            Err(error) => {
                // They have no row, so the next start removes them.
                self.files.clear();
                return Err(error);
            }
        };
        self.files.drain(..).for_each(|file| self.shared.end_file(file));
        // The disk sets the pace: what is not written yet is in memory.
        store.written(seq)?;
        if store.wants_checkpoint() {
            store.checkpoint()?;
            store.prepare()?;
        }
        Ok(())
    }
}
