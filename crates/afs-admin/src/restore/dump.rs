//! A dump on its way to a server: it is checked piece by piece, so that one that is damaged or ends early is told with the place of the
//! fault, and never sent to its end. Where its bytes come from is the caller's. Of a volume that has come in part before, only the rest is given
//! out, as far as the dump agrees with what came.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;

use afs_dump::{Arrival, DumpError, Event, Reader, VnodeDigest, VnodeRecord};
use afs_wire::ids::{LocalFid, SecurityLevel, VnodeNumber};
use bytes::Bytes;

/// True if these are the last bytes of a dump.
pub fn ends_a_dump(last: [u8; 4]) -> bool {
    u32::from_be_bytes(last) == afs_dump::END_MARK
}

/// A dump from a source that gives it piece by piece, and an empty piece at its end.
#[derive(Debug)]
pub struct Dump<S> {
    source: S,
    /// The same dump once more, from its beginning.
    copy: Option<S>,
    reader: Reader,
    filter: Option<Filter>,
    /// The bytes that were read to learn what the dump is, and that have not been given out yet.
    ahead: VecDeque<Bytes>,
    is_incremental: bool,
    level: SecurityLevel,
    has_root: bool,
}

impl<S: FnMut() -> io::Result<Bytes>> Dump<S> {
    /// Reads so much that it is known what the dump has.
    ///
    /// # Errors
    ///
    /// The source's; or of the kind [`io::ErrorKind::InvalidData`] with the [`DumpError`], when the source gives no dump.
    pub fn begin(source: S) -> io::Result<Self> {
        let (reader, ahead) = (Reader::new(), VecDeque::new());
        let (is_incremental, level, has_root) = (false, SecurityLevel::CLEAR, false);
        let (copy, filter) = (None, None);
        let mut dump = Self { source, copy, reader, filter, ahead, is_incremental, level, has_root };
        let mut is_known = false;
        while !is_known {
            let piece = (dump.source)()?;
            is_known = dump.check(&piece)?;
            dump.ahead.push_back(piece);
        }
        Ok(dump)
    }

    /// The dump can be read twice: `copy` gives it from its beginning, too. Then nothing that came of the volume before is sent again. Otherwise it is
    /// compared on its way, and files of more than 16 MiB are sent again.
    #[must_use]
    pub fn with_copy(mut self, copy: S) -> Self {
        self.copy = Some(copy);
        self
    }

    /// Gives out only what has not come from now on, as far as the dump agrees with what came. A dump that can be read twice is compared first,
    /// until `goes_on` says no. Returns whether anything may be left out, and the file whose first bytes are left out, with their number.
    /// Expects that nothing was given out yet.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`], and those of `goes_on`.
    pub(super) fn leave_out(
        &mut self,
        arrived: &[Arrival],
        goes_on: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<Option<Option<(VnodeNumber, u64)>>> {
        let filter = match self.copy.take() {
            Some(copy) => Filter { agreed: agree(copy, arrived, goes_on)?, ..Filter::default() },
            None => {
                let whole = arrived.iter().filter(|arrival| arrival.bytes.is_none());
                Filter {
                    arrived: whole.map(|arrival| (arrival.vnode, *arrival)).collect(),
                    ..Filter::default()
                }
            }
        };
        let Agreed { whole, rest } = &filter.agreed;
        if whole.is_empty() && rest.is_none() && filter.arrived.is_empty() {
            return Ok(None);
        }
        let rest = *rest;
        self.filter = Some(filter);
        // What was read ahead goes through it like everything else.
        self.reader = Reader::new();
        let ahead = std::mem::take(&mut self.ahead);
        for piece in ahead {
            let mut out = Vec::new();
            self.pass(&piece, &mut out)?;
            if !out.is_empty() {
                self.ahead.push_back(out.into());
            }
        }
        Ok(Some(rest))
    }

    /// Checks a piece, and appends what is to be given out of it.
    fn pass(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Some(filter) = &mut self.filter else { return Ok(()) };
        if piece.is_empty() {
            return self.reader.finish().map_err(faulty);
        }
        filter.held.extend_from_slice(piece);
        let mut input = piece;
        loop {
            let (kind, record, length) = match self.reader.next(&mut input).map_err(faulty)? {
                None => return Ok(()),
                Some(Event::Vnode(record)) => (Passed::Vnode, Some(record.clone()), 0),
                Some(Event::Data(data)) => {
                    filter.compare(data);
                    (Passed::Data, None, data.len() as u64)
                }
                Some(Event::End) => (Passed::End, None, 0),
                Some(Event::Volume(_)) => (Passed::Volume, None, 0),
                Some(Event::Dump(_)) => continue,
            };
            let at = self.reader.offset();
            match (kind, record) {
                (Passed::Vnode, Some(record)) => filter.vnode(&record, self.reader.vnode_offset(), at, out),
                (Passed::Volume, _) => filter.section(self.reader.volume_offset(), out),
                (Passed::Data, _) => filter.data(at, length, out),
                (Passed::End | Passed::Vnode, _) => {
                    filter.section(at - END_BYTES, out);
                    filter.release(at, out);
                }
            }
        }
    }

    /// True if the dump has only what has changed since some time.
    pub const fn is_incremental(&self) -> bool {
        self.is_incremental
    }

    /// The level of its volume.
    pub const fn level(&self) -> SecurityLevel {
        self.level
    }

    /// Gives out the dump as that of a volume without a level. Expects that nothing was given out yet.
    pub(super) fn leave_out_level(&mut self) {
        let Some(Range { start, end }) = self.reader.level_range() else { return };
        // All of the volume's header was read ahead.
        let mut ahead: Vec<u8> = self.ahead.drain(..).flatten().collect();
        ahead.drain(start as usize..end as usize);
        self.ahead.push_back(ahead.into());
        self.level = SecurityLevel::CLEAR;
    }

    /// The number of bytes that were read.
    pub fn length(&self) -> u64 {
        self.reader.offset()
    }

    /// The next piece, and an empty one at the end of a whole dump. `goes_on` is asked before each read of the source: of what is left out,
    /// many are read for one that is given out.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`], and those of `goes_on`. No piece with a fault is given out.
    pub fn next_piece(&mut self, mut goes_on: impl FnMut() -> io::Result<()>) -> io::Result<Bytes> {
        if let Some(piece) = self.ahead.pop_front() {
            return Ok(piece);
        }
        if self.filter.is_none() {
            goes_on()?;
            let piece = (self.source)()?;
            self.check(&piece)?;
            return Ok(piece);
        }
        loop {
            goes_on()?;
            let piece = (self.source)()?;
            let mut out = Vec::new();
            self.pass(&piece, &mut out)?;
            if piece.is_empty() || !out.is_empty() {
                return Ok(out.into());
            }
        }
    }

    /// Reads all that is left.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`].
    pub fn check_rest(&mut self) -> io::Result<()> {
        while !self.next_piece(|| Ok(()))?.is_empty() {}
        Ok(())
    }

    /// Checks a piece. Says whether the end of the volume's header was in it.
    fn check(&mut self, piece: &[u8]) -> io::Result<bool> {
        if piece.is_empty() {
            self.reader.finish().map_err(faulty)?;
        }
        let (mut input, mut has_header) = (piece, false);
        while let Some(event) = self.reader.next(&mut input).map_err(faulty)? {
            match event {
                Event::Dump(header) => {
                    self.is_incremental = header.ranges.iter().any(|range| range.from.0 != 0);
                }
                Event::Volume(header) => {
                    has_header = true;
                    self.level = header.level;
                }
                Event::Vnode(record) => self.has_root |= record.fid.vnode == VnodeNumber::ROOT,
                Event::End if !self.has_root && !self.is_incremental => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, NO_ROOT));
                }
                Event::End | Event::Data(_) => {}
            }
        }
        Ok(has_header)
    }
}

/// A dump without the first directory is whole, and is no volume that anybody can use. OpenAFS makes one of it all the same.
const NO_ROOT: &str =
    "the dump has no root directory (vnode 1), so it is not that of a volume: dump the volume again";

/// Bytes of a file that are kept in memory until it is known whether they came before.
const HELD_MAX: u64 = 16 << 20;
/// Bytes of the end of a dump.
const END_BYTES: u64 = 5;
/// The tag that begins a vnode (Volume service notes 5.1).
const VNODE_TAG: u8 = 3;

/// The vnodes of a dump that came before.
#[derive(Debug, Default)]
struct Agreed {
    whole: HashSet<VnodeNumber>,
    rest: Option<(VnodeNumber, u64)>,
}

/// Reads a dump as far as what came before may be in it, and compares that.
fn agree(
    mut source: impl FnMut() -> io::Result<Bytes>,
    arrived: &[Arrival],
    mut goes_on: impl FnMut() -> io::Result<bool>,
) -> io::Result<Agreed> {
    let expected: HashMap<VnodeNumber, Arrival> = arrived.iter().map(|a| (a.vnode, *a)).collect();
    let (mut agreed, mut reader) = (Agreed::default(), Reader::new());
    let mut left = expected.len();
    let mut current: Option<Compared> = None;
    while (left > 0 || current.is_some()) && goes_on()? {
        let piece = source()?;
        if piece.is_empty() {
            break;
        }
        let mut input = &piece[..];
        while let Some(event) = reader.next(&mut input).map_err(faulty)? {
            match event {
                Event::Data(data) => {
                    if let Some(compared) = &mut current {
                        compared.add(data);
                    }
                }
                Event::Vnode(record) => {
                    current.take().into_iter().for_each(|compared| compared.end(&mut agreed));
                    let arrival = expected.get(&record.fid.vnode);
                    left -= usize::from(arrival.is_some());
                    current = arrival.and_then(|arrival| Compared::begin(record, *arrival));
                }
                Event::End => current.take().into_iter().for_each(|compared| compared.end(&mut agreed)),
                Event::Dump(_) | Event::Volume(_) => {}
            }
        }
        if current.as_ref().is_some_and(Compared::has_all) {
            current.take().into_iter().for_each(|compared| compared.end(&mut agreed));
        }
    }
    Ok(agreed)
}

/// A vnode of the dump that is being compared with what came.
#[derive(Debug)]
struct Compared {
    arrival: Arrival,
    digest: VnodeDigest,
    /// Bytes that are still to be compared.
    left: u64,
}

impl Compared {
    fn begin(record: &VnodeRecord, arrival: Arrival) -> Option<Self> {
        let length = record.attributes.as_ref()?.length.unwrap_or(0);
        let left = match arrival.bytes {
            None => length,
            // The last byte has not come.
            Some(bytes) if bytes < length => bytes,
            Some(_) => return None,
        };
        let digest = VnodeDigest::of(record).ok().flatten()?;
        Some(Self { arrival, digest, left })
    }

    fn add(&mut self, data: &[u8]) {
        let compared = &data[..data.len().min(usize::try_from(self.left).unwrap_or(usize::MAX))];
        self.digest.add(compared);
        self.left -= compared.len() as u64;
    }

    fn has_all(&self) -> bool {
        self.left == 0
    }

    fn agrees(self) -> bool {
        self.left == 0 && self.digest.end() == self.arrival.digest
    }

    fn end(self, agreed: &mut Agreed) {
        let Arrival { vnode, bytes, .. } = self.arrival;
        if !self.agrees() {
            return;
        }
        match bytes {
            None => _ = agreed.whole.insert(vnode),
            Some(bytes) => agreed.rest = Some((vnode, bytes)),
        }
    }
}

#[derive(Clone, Copy)]
enum Passed {
    Vnode,
    Volume,
    Data,
    End,
}

/// Leaves out of a dump what came before. Sections pass as they are, as far as it is known where they end.
#[derive(Debug, Default)]
struct Filter {
    agreed: Agreed,
    /// The vnodes that came, if they are compared on the way.
    arrived: HashMap<VnodeNumber, Arrival>,
    /// The vnode that is being compared: it is held until its end.
    compared: Option<(LocalFid, Compared)>,
    /// The bytes that were read, and not given out or left out yet; and their place in the dump.
    held: Vec<u8>,
    held_at: u64,
    /// True if the section that is being read is left out.
    drops: bool,
    /// Bytes of the next data that are left out.
    left_out: u64,
}

impl Filter {
    /// Gives out what is before a place, or leaves it out.
    fn release(&mut self, to: u64, out: &mut Vec<u8>) {
        let length =
            usize::try_from(to.saturating_sub(self.held_at)).unwrap_or(usize::MAX).min(self.held.len());
        if !self.drops {
            out.extend_from_slice(&self.held[..length]);
        }
        self.held.drain(..length);
        self.held_at += length as u64;
    }

    /// A section begins that passes.
    fn section(&mut self, at: u64, out: &mut Vec<u8>) {
        if let Some((fid, compared)) = self.compared.take()
            && compared.agrees()
        {
            self.name_alone(fid, out);
        }
        self.release(at, out);
        self.drops = false;
    }

    /// Gives out a vnode without its content, which is left out.
    fn name_alone(&mut self, fid: LocalFid, out: &mut Vec<u8>) {
        out.push(VNODE_TAG);
        out.extend_from_slice(&fid.vnode.0.to_be_bytes());
        out.extend_from_slice(&fid.unique.0.to_be_bytes());
        self.drops = true;
    }

    fn vnode(&mut self, record: &VnodeRecord, from: u64, at: u64, out: &mut Vec<u8>) {
        self.section(from, out);
        let fid = record.fid;
        let compared = self.arrived.get(&fid.vnode).and_then(|arrival| Compared::begin(record, *arrival));
        if let Some(compared) = compared.filter(|compared| compared.left <= HELD_MAX) {
            self.compared = Some((fid, compared));
        } else if record.attributes.is_some() && self.agreed.whole.contains(&fid.vnode) {
            self.name_alone(fid, out);
        } else if let Some((_, bytes)) = self.agreed.rest.filter(|(vnode, _)| *vnode == fid.vnode) {
            self.release(at, out);
            self.left_out = bytes;
        }
    }

    /// These data come next.
    fn compare(&mut self, data: &[u8]) {
        if let Some((_, compared)) = &mut self.compared {
            compared.add(data);
        }
    }

    fn data(&mut self, at: u64, length: u64, out: &mut Vec<u8>) {
        if self.compared.is_some() {
            return;
        }
        let left_out = self.left_out.min(length);
        if left_out > 0 {
            self.left_out -= left_out;
            self.drops = true;
            self.release(at - length + left_out, out);
            self.drops = false;
        }
        self.release(at, out);
    }
}

fn faulty(error: DumpError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
