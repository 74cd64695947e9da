//! Bytes: of files, of directories as their pages, of symbolic links as their targets. Short data are in a row, longer
//! ones in chunks, each in a file of its own. A byte that belongs to a version of a file is never written over: a
//! store writes new files, or behind the end of one, and the batch that ends it names them (Volume format 5).

mod reading;

use crate::group::{self, Edit};
use crate::keys::{FileId, Part, Snapshot, VnodeKey};
use crate::records::{self, ChunkRecord, Layout, VnodeRecord};
use crate::records::{CHUNK, INLINE_MAX};
use crate::vnode::MAX_FILE_BYTES;
use crate::{Kind, SetStatus, Stamp, VnodeId, VnodeStatus, Volume, VolumeError};
use afs_store::{Bytes, lock};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk::DiskFile;
pub use reading::Reader;
use reading::read_part;

/// Bytes copied at once.
const COPY: usize = 64 << 10;

fn chunk_name(volume: &Volume, id: VnodeId, n: u32, snapshot: Snapshot, file: FileId) -> String {
    let key = VnodeKey { group: volume.group.id, vnode: id.vnode, part: Part::Chunk(n), snapshot };
    records::file_name(file, &key, n)
}

fn open_chunk(
    volume: &Volume,
    id: VnodeId,
    n: u32,
    snapshot: Snapshot,
    file: FileId,
) -> Result<Arc<dyn DiskFile>, VolumeError> {
    let name = chunk_name(volume, id, n, snapshot, file);
    volume
        .shared
        .store
        .disk()
        .open(&name)
        .map_err(VolumeError::io(format!("cannot open {name} of volume {}", volume.id)))
}

/// The request of a StoreData (File service notes 6.2): the file is cut to `file_length` if it is longer,
/// then `length` bytes go to `position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRange {
    /// The place where the bytes go.
    pub position: u64,
    /// The number of bytes that will come.
    pub length: u64,
    /// The length that the file has for the client.
    pub file_length: u64,
}

/// A store into a file that is going on. Readers see nothing of it until [`Store::commit`]; dropped before, it leaves
/// nothing behind.
#[derive(Debug)]
pub struct Store {
    volume: Arc<Volume>,
    range: StoreRange,
    /// The file as it was when the store began.
    before: VnodeRecord,
    /// The length up to which the old data stay: the file is cut there first.
    base: u64,
    new_length: u64,
    written: u64,
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    /// The file as it will be.
    Inline(Vec<u8>),
    Chunks {
        /// The file's data in memory, or in chunks that this store touches.
        old: Old,
        done: Vec<NewChunk>,
        open: Option<OpenChunk>,
    },
}

#[derive(Debug)]
enum Old {
    Inline(Bytes),
    Chunks(BTreeMap<u32, (Snapshot, ChunkRecord)>),
}

/// A chunk that has been written.
#[derive(Debug)]
struct NewChunk {
    n: u32,
    record: ChunkRecord,
    /// The snapshot in its file's name.
    snapshot: Snapshot,
    /// True if the file is the old one, with more at its end.
    is_appended: bool,
}

/// A chunk that is being written.
#[derive(Debug)]
struct OpenChunk {
    new: NewChunk,
    file: Arc<dyn DiskFile>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Plan::Chunks { done, open, .. } = &mut self.plan {
            for new in done.drain(..).chain(open.take().map(|open| open.new)).filter(|new| !new.is_appended) {
                let name =
                    chunk_name(&self.volume, self.before.status.id, new.n, new.snapshot, new.record.file);
                self.volume.shared.give_up_file(new.record.file, name);
            }
        }
        lock(&self.volume.group.storing).remove(&self.before.status.id.vnode);
    }
}

impl Store {
    /// True if [`Store::write`] only keeps what it is given in memory: short files are written with their rows.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        matches!(self.plan, Plan::Inline(_))
    }

    /// Takes the next bytes. They go to the system as they come, so bring tens of kilobytes.
    ///
    /// # Errors
    ///
    /// More than were announced is [`VolumeError::TooBig`]; disk full; the disk failed.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), VolumeError> {
        if self.range.length - self.written < bytes.len() as u64 {
            return Err(VolumeError::TooBig);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = self.range.position + self.written;
            let room = usize::try_from(CHUNK - at % CHUNK).expect("a chunk");
            let (now, later) = rest.split_at(room.min(rest.len()));
            match &mut self.plan {
                Plan::Inline(file) => {
                    let from = usize::try_from(at).expect("short");
                    file[from..from + now.len()].copy_from_slice(now);
                }
                Plan::Chunks { .. } => self.write_chunk((at / CHUNK) as u32, at % CHUNK, now)?,
            }
            self.written += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Bytes of an old chunk that stay if nothing is written to it.
    fn old_length(&self, n: u32) -> u64 {
        let Plan::Chunks { old, .. } = &self.plan else { return 0 };
        let left = self.base.saturating_sub(u64::from(n) * CHUNK).min(CHUNK);
        match old {
            Old::Inline(bytes) => left.min(if n == 0 { bytes.len() as u64 } else { 0 }),
            Old::Chunks(chunks) => left.min(chunks.get(&n).map_or(0, |(_, chunk)| u64::from(chunk.length))),
        }
    }

    fn write_chunk(&mut self, n: u32, from: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let is_open = matches!(&self.plan, Plan::Chunks { open: Some(open), .. } if open.new.n == n);
        if !is_open {
            let current = lock(&self.volume.group.state).record.current;
            let open = self.open_chunk(n, from, current)?;
            let Plan::Chunks { open: slot, .. } = &mut self.plan else { unreachable!("asked for by write") };
            *slot = Some(open);
        }
        let Plan::Chunks { open: Some(open), .. } = &mut self.plan else { unreachable!("just opened") };
        let what = || format!("cannot write data of volume {}", self.volume.id);
        open.file.write_at(from, bytes).map_err(|error| VolumeError::io(what())(error))?;
        let end = from + bytes.len() as u64;
        open.new.record.length = open.new.record.length.max(u32::try_from(end).expect("a chunk"));
        if end == CHUNK || self.range.position + self.range.length == u64::from(n) * CHUNK + end {
            self.end_chunk(n, end)?;
        }
        Ok(())
    }

    /// Begins to write a chunk from a place on: a new file with what was before that place, or the old one if only
    /// its end grows.
    fn open_chunk(&self, n: u32, from: u64, current: Snapshot) -> Result<OpenChunk, VolumeError> {
        let Plan::Chunks { old, .. } = &self.plan else { unreachable!("asked for by write_chunk") };
        let old_length = self.old_length(n);
        let id = self.before.status.id;
        let io = || VolumeError::io(format!("cannot write data of volume {}", self.volume.id));
        if let Old::Chunks(chunks) = old
            && let Some(&(snapshot, record)) = chunks.get(&n)
            && snapshot == current
            && from >= old_length
            && u64::from(record.length) == old_length
        {
            let file = open_chunk(&self.volume, id, n, snapshot, record.file)?;
            // Behind the end may be what a store that was given up has left.
            zeros(&*file, old_length, from).map_err(io())?;
            return Ok(OpenChunk { new: NewChunk { n, record, snapshot, is_appended: true }, file });
        }
        let number = self.volume.shared.begin_file()?;
        let name = chunk_name(&self.volume, id, n, current, number);
        let file = self.volume.shared.store.disk().create(&name).map_err(|error| {
            self.volume.shared.end_file(number);
            io()(error)
        })?;
        let keep = from.min(old_length);
        let new = NewChunk {
            n,
            record: ChunkRecord { file: number, length: u32::try_from(from).expect("a chunk") },
            snapshot: current,
            is_appended: false,
        };
        let open = OpenChunk { new, file };
        self.copy_old(&open, 0, keep)?;
        zeros(&*open.file, keep, from).map_err(io())?;
        Ok(open)
    }

    /// Copies what was in a chunk to the same place of its new file.
    fn copy_old(&self, to: &OpenChunk, mut at: u64, end: u64) -> Result<(), VolumeError> {
        let Plan::Chunks { old, .. } = &self.plan else { return Ok(()) };
        let io = || VolumeError::io(format!("cannot write data of volume {}", self.volume.id));
        if at >= end {
            return Ok(());
        }
        match old {
            Old::Inline(bytes) => {
                let (from, end) = (usize::try_from(at).expect("short"), usize::try_from(end).expect("short"));
                to.file.write_at(at, &bytes[from..end]).map_err(io())?;
            }
            Old::Chunks(chunks) => {
                let (snapshot, record) = chunks[&to.new.n];
                let from = open_chunk(&self.volume, self.before.status.id, to.new.n, snapshot, record.file)?;
                let mut buffer = vec![0; COPY];
                while at < end {
                    let n = usize::try_from(end - at).map_or(COPY, |n| n.min(COPY));
                    read_part(&*from, record, at, &mut buffer[..n])?;
                    to.file.write_at(at, &buffer[..n]).map_err(io())?;
                    at += n as u64;
                }
            }
        }
        Ok(())
    }

    /// The bytes for a chunk have come up to `end`: what was behind them stays.
    fn end_chunk(&mut self, n: u32, end: u64) -> Result<(), VolumeError> {
        let old_length = self.old_length(n);
        let Plan::Chunks { open, .. } = &mut self.plan else { return Ok(()) };
        let Some(mut chunk) = open.take() else { return Ok(()) };
        let result = if end < old_length {
            chunk.new.record.length = u32::try_from(old_length).expect("a chunk");
            self.copy_old(&chunk, end, old_length)
        } else {
            Ok(())
        };
        let Plan::Chunks { done, .. } = &mut self.plan else { unreachable!("as above") };
        // Also if that failed: so it is removed with the others.
        done.push(chunk.new);
        result
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
    pub fn commit(mut self, set: &SetStatus, stamp: Stamp, fsync: bool) -> Result<VnodeStatus, VolumeError> {
        assert_eq!(self.written, self.range.length, "all bytes that were announced have to be written");
        let volume = self.volume.clone();
        let mut edit = Edit::begin(&volume, stamp)?;
        let id = self.before.status.id;
        let (snapshot, mut record) = edit.vnode(id)?;
        assert_eq!(
            (record.status.data_version, record.layout),
            (self.before.status.data_version, self.before.layout),
            "one store at a time"
        );
        let before = Some((snapshot, record.blocks_kib()));
        match std::mem::replace(&mut self.plan, Plan::Inline(Vec::new())) {
            Plan::Inline(file) => {
                if record.layout == Layout::Chunks {
                    self.cut_chunks(&mut edit, 0)?;
                }
                record.layout = Layout::Inline;
                if file.is_empty() { edit.take_inline(id.vnode)? } else { edit.put_inline(id.vnode, file)? }
            }
            plan @ Plan::Chunks { .. } => {
                self.plan = plan;
                self.put_chunks(&mut edit)?;
                record.layout = Layout::Chunks;
            }
        }
        record.status.length = self.new_length;
        edit.touch(&mut record)?;
        record.status.apply(set);
        edit.has_new_data();
        edit.put_vnode(&record, before);
        let seq = edit.submit()?;
        if let Plan::Chunks { done, .. } = &mut self.plan {
            // They have rows now, whatever becomes of the disk.
            done.drain(..).for_each(|new| volume.shared.end_file(new.record.file));
        }
        volume.shared.settle(seq)?;
        if fsync {
            volume.shared.store.sync(seq)?;
        }
        Ok(record.status)
    }

    /// The rows of what was written, and of what is cut off.
    fn put_chunks(&mut self, edit: &mut Edit<'_>) -> Result<(), VolumeError> {
        let id = self.before.status.id;
        if let Plan::Chunks { old: Old::Inline(bytes), done, .. } = &self.plan
            && !done.iter().any(|new| new.n == 0)
            && self.base > 0
        {
            // The short data that the file had become its first chunk.
            assert!(bytes.len() as u64 >= self.base, "inline data are as long as the file");
            let open = self.open_chunk(0, self.base, edit.current())?;
            let Plan::Chunks { done, .. } = &mut self.plan else { unreachable!("as above") };
            done.push(open.new);
        }
        if let Plan::Chunks { old: Old::Inline(_), .. } = &self.plan {
            edit.take_inline(id.vnode)?;
        }
        self.move_to_current(edit)?;
        self.cut_chunks(edit, self.base)?;
        let Plan::Chunks { done, .. } = &self.plan else { unreachable!("as above") };
        let (store, group) = (&self.volume.shared.store, self.volume.group.id);
        for new in done {
            // Short data may have been long before: then there is a row that says that there is no chunk.
            let before = group::part(store, group, id.vnode, Part::Chunk(new.n), Snapshot::NEWEST)?;
            let before =
                before.map(|(snapshot, row)| Ok::<_, VolumeError>((snapshot, ChunkRecord::decode(&row)?)));
            edit.put_chunk(id.vnode, new.n, new.record, before.transpose()?);
        }
        Ok(())
    }

    /// Copies files that carry an older snapshot in their names, if a clone was made meanwhile: a file that was
    /// appended to is the clone's, and names have to tell the row.
    fn move_to_current(&mut self, edit: &Edit<'_>) -> Result<(), VolumeError> {
        let current = edit.current();
        let Plan::Chunks { done, .. } = &mut self.plan else { return Ok(()) };
        let id = self.before.status.id;
        for new in done.iter_mut().filter(|new| new.snapshot != current) {
            let moved = copy_file(&self.volume, id, new, current)?;
            let old = std::mem::replace(new, moved);
            if !old.is_appended {
                let name = chunk_name(&self.volume, id, old.n, old.snapshot, old.record.file);
                self.volume.shared.give_up_file(old.record.file, name);
            }
        }
        Ok(())
    }

    /// Takes away what the file had from a length on, but for chunks that this store has written.
    fn cut_chunks(&mut self, edit: &mut Edit<'_>, length: u64) -> Result<(), VolumeError> {
        if length >= self.before.status.length || self.before.layout != Layout::Chunks {
            return Ok(());
        }
        let (id, group) = (self.before.status.id, self.volume.group.id);
        let first = (length / CHUNK) as u32;
        let found =
            group::chunks(&self.volume.shared.store, group, id.vnode, Snapshot::NEWEST, first..=u32::MAX)?;
        for (n, snapshot, chunk) in found {
            let (Some(old), false) = (chunk, self.has_written(n)) else { continue };
            let keep = length.saturating_sub(u64::from(n) * CHUNK);
            if keep == 0 {
                edit.take_chunk(id.vnode, n, (snapshot, chunk))?;
            } else if keep < u64::from(old.length) {
                // A file of its own, as what is cut off belongs to a version that a power loss may bring back, and
                // the next store would write over it.
                let keep = u32::try_from(keep).expect("less than a chunk has");
                let cut =
                    NewChunk { n, record: ChunkRecord { length: keep, ..old }, snapshot, is_appended: true };
                let copied = copy_file(&self.volume, id, &cut, edit.current())?;
                let Plan::Chunks { done, .. } = &mut self.plan else { unreachable!("something is kept") };
                done.push(copied);
            }
        }
        Ok(())
    }

    fn has_written(&self, n: u32) -> bool {
        matches!(&self.plan, Plan::Chunks { done, .. } if done.iter().any(|new| new.n == n))
    }
}

/// A file with the same bytes as a chunk, for the current snapshot.
fn copy_file(
    volume: &Volume,
    id: VnodeId,
    from: &NewChunk,
    current: Snapshot,
) -> Result<NewChunk, VolumeError> {
    let source = open_chunk(volume, id, from.n, from.snapshot, from.record.file)?;
    let number = volume.shared.begin_file()?;
    let name = chunk_name(volume, id, from.n, current, number);
    let copy = || -> Result<(), VolumeError> {
        let io = || VolumeError::io(format!("cannot write {name}"));
        let file = volume.shared.store.disk().create(&name).map_err(io())?;
        let (mut at, mut buffer) = (0, vec![0; COPY]);
        while at < from.record.length {
            let n = (from.record.length - at).min(COPY as u32);
            read_part(&*source, from.record, u64::from(at), &mut buffer[..n as usize])?;
            file.write_at(u64::from(at), &buffer[..n as usize]).map_err(io())?;
            at += n;
        }
        Ok(())
    };
    if let Err(error) = copy() {
        volume.shared.give_up_file(number, name);
        return Err(error);
    }
    let record = ChunkRecord { file: number, length: from.record.length };
    Ok(NewChunk { n: from.n, record, snapshot: current, is_appended: false })
}

fn zeros(file: &dyn DiskFile, mut from: u64, end: u64) -> std::io::Result<()> {
    // Written, not left out: the file may have had something there.
    let zeros = [0; 4096];
    while from < end {
        let n = (end - from).min(zeros.len() as u64);
        file.write_at(from, &zeros[..usize::try_from(n).expect("at most a page")])?;
        from += n;
    }
    Ok(())
}

impl Volume {
    /// Begins a store into a file. One at a time for each file.
    ///
    /// # Errors
    ///
    /// No such vnode, or no file; another store goes on; too long; read-only; over quota or disk full, as far as it
    /// can be told now.
    pub fn begin_store(self: &Arc<Self>, id: VnodeId, range: StoreRange) -> Result<Store, VolumeError> {
        if !self.is_writable() {
            return Err(VolumeError::ReadOnly(self.id));
        }
        let fits_together = self.steady();
        let before = self.read_vnode(id)?;
        match before.status.kind {
            Kind::File => {}
            Kind::Directory => return Err(VolumeError::IsDirectory(id.vnode)),
            Kind::Symlink => return Err(VolumeError::WrongKind(id.vnode)),
        }
        let end = range.position.checked_add(range.length).ok_or(VolumeError::TooBig)?;
        let base = before.status.length.min(range.file_length);
        let new_length = base.max(end);
        if new_length > MAX_FILE_BYTES {
            return Err(VolumeError::TooBig);
        }
        let more = records::blocks_kib(new_length).saturating_sub(before.blocks_kib());
        if more > 0 {
            self.check_quota(lock(&self.counters).used_kib + more)?;
        }
        self.shared.check_space(range.length / 1024)?;
        let plan = if new_length == 0 || before.layout == Layout::Inline && new_length <= INLINE_MAX {
            let mut file = match before.layout {
                Layout::Inline => self.part(id.vnode, Part::Inline)?.map(|b| b.to_vec()).unwrap_or_default(),
                _ => Vec::new(),
            };
            file.truncate(usize::try_from(base).expect("short"));
            file.resize(usize::try_from(new_length).expect("short"), 0);
            Plan::Inline(file)
        } else if before.layout == Layout::Inline {
            let bytes = self.part(id.vnode, Part::Inline)?.unwrap_or_default();
            Plan::Chunks { old: Old::Inline(bytes), done: Vec::new(), open: None }
        } else {
            let touched = (range.position / CHUNK) as u32..=(end.saturating_sub(1) / CHUNK) as u32;
            let chunks = if range.length > 0 {
                group::chunks(&self.shared.store, self.group.id, id.vnode, Snapshot::NEWEST, touched)?
            } else {
                Vec::new()
            };
            let chunks =
                chunks.into_iter().filter_map(|(n, snapshot, chunk)| Some((n, (snapshot, chunk?)))).collect();
            Plan::Chunks { old: Old::Chunks(chunks), done: Vec::new(), open: None }
        };
        if !lock(&self.group.storing).insert(id.vnode) {
            return Err(VolumeError::StoreInProgress(id.vnode));
        }
        drop(fits_together);
        Ok(Store { volume: self.clone(), range, before, base, new_length, written: 0, plan })
    }
}
