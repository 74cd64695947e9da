//! The log: segments of a fixed size, whose space is there before they are used, with one record after the other (Volume format 3).
//! Which records count after a crash is left to `recovery`.

use crate::StoreError;
use crate::codec::{Fields, Value};
use crate::disk::{Disk, DiskFile};
use crate::rows::{Bytes, Key, Seq};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The first bytes of a segment; the last digit is the format's version.
const MAGIC: &[u8; 8] = b"AFARLOG1";
/// Bytes of a segment's header: magic, number, first record, the boot's name in 64 bytes, checksum; the rest is 0.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Longest name of a boot; Linux's has 36 characters.
const BOOT_MAX: usize = 64;
/// Bytes that the system writes at once, or not at all, when a process is killed.
const PAGE: usize = 4096;
/// Bytes of a record's header: length of the rest, checksum, number, kind.
const RECORD_HEADER: usize = 4 + 4 + 8 + 1;

/// Something in the log.
#[derive(Debug)]
pub enum Record<'a> {
    /// Rows to be put or deleted.
    Rows(&'a BTreeMap<Key, Option<Bytes>>),
    /// Everything up to a number is durable, with the files that it names.
    Mark {
        /// The number.
        upto: Seq,
        /// True if nothing follows, as the store was closed.
        is_last: bool,
    },
}

impl Record<'_> {
    /// Appends the record's bytes.
    pub fn encode(&self, seq: Seq, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; RECORD_HEADER]);
        let kind = match self {
            Self::Rows(rows) => {
                for (key, value) in *rows {
                    out.push(u8::from(value.is_some()));
                    out.extend_from_slice(&u32::try_from(key.0.len()).expect("keys are short").to_be_bytes());
                    out.extend_from_slice(&key.0);
                    if let Some(value) = value {
                        let length = u32::try_from(value.len()).expect("values are kilobytes");
                        out.extend_from_slice(&length.to_be_bytes());
                        out.extend_from_slice(value);
                    }
                }
                1
            }
            Self::Mark { upto, is_last } => {
                out.extend_from_slice(&upto.to_be_bytes());
                out.push(u8::from(*is_last));
                2
            }
        };
        let length = u32::try_from(out.len() - start - RECORD_HEADER).expect("a batch has less than 4 GiB");
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        out[start + 8..start + 16].copy_from_slice(&seq.to_be_bytes());
        out[start + 16] = kind;
        let sum = crc32fast::hash(&out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A file of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub name: String,
    pub number: u64,
    pub file: Arc<dyn DiskFile>,
    pub capacity: u64,
}

impl Segment {
    /// Makes a segment with its space and its name durable, and nothing in it.
    pub(crate) fn create(disk: &dyn Disk, number: u64, capacity: u64) -> Result<Self, StoreError> {
        let name = format!("log.{number:016x}");
        let make = || {
            let file = disk.create(&name)?;
            file.reserve(capacity)?;
            file.sync()?;
            disk.sync_folder("")?;
            Ok(file)
        };
        match make() {
            Ok(file) => Ok(Self { name, number, file, capacity }),
            Err(error) => {
                // What was begun would only take space; if it cannot be removed it is found empty at the next start.
                let _ = disk.remove(&name);
                Err(StoreError::io(format!("cannot make {name}"))(error))
            }
        }
    }

    /// The header with which a segment begins when it is put to use.
    pub(crate) fn header(&self, first: Seq, boot: &str) -> Vec<u8> {
        assert!(boot.len() <= BOOT_MAX, "checked when it was read");
        let mut header = Value::default().bytes(MAGIC).u64(self.number).u64(first).bytes(boot.as_bytes()).0;
        header.resize(8 + 8 + 8 + BOOT_MAX, 0);
        let sum = crc32fast::hash(&header);
        header.extend_from_slice(&sum.to_be_bytes());
        header.resize(SEGMENT_HEADER, 0);
        header
    }
}

/// The name of this start of the machine, as segments have it.
pub(crate) fn boot(disk: &dyn Disk) -> Result<String, StoreError> {
    let mut boot = disk.boot().map_err(StoreError::io("cannot read the boot's id"))?;
    boot.truncate(BOOT_MAX);
    Ok(boot)
}

/// A record that was read.
#[derive(Debug)]
pub(crate) enum Found {
    Rows(Vec<(Key, Option<Bytes>)>),
    Mark { upto: Seq, is_last: bool },
}

impl Found {
    pub(crate) fn into_rows(self) -> Option<Vec<(Key, Option<Bytes>)>> {
        match self {
            Self::Rows(rows) => Some(rows),
            Self::Mark { .. } => None,
        }
    }
}

/// The last record that each mark covers.
pub(crate) fn marks<'a>(records: impl Iterator<Item = (&'a Seq, &'a Found)>) -> impl Iterator<Item = Seq> {
    records.filter_map(|(_, found)| match found {
        Found::Mark { upto, .. } => Some(*upto),
        Found::Rows(_) => None,
    })
}

/// Records that cannot be read, with readable ones behind them.
#[derive(Debug)]
pub(crate) struct Hole {
    pub seqs: Range<Seq>,
    pub bytes: Range<usize>,
}

/// Bytes behind the last record that can be read.
#[derive(Debug)]
pub(crate) struct Rest {
    pub bytes: Range<usize>,
    /// True if this is what is left of a record when the process was killed while it wrote it.
    pub is_torn: bool,
}

/// The records of a segment.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub records: BTreeMap<Seq, Found>,
    pub holes: Vec<Hole>,
    /// The place behind the last record.
    pub end: usize,
    /// What is there, unless it is zeros.
    pub rest: Option<Rest>,
}

/// Takes a segment apart.
pub(crate) fn read_records(bytes: &[u8], first: Seq) -> Read {
    let mut read = Read { end: SEGMENT_HEADER.min(bytes.len()), ..Read::default() };
    let mut next = first;
    loop {
        let rest = &bytes[read.end..];
        if let Some((found, after)) = parse_record(rest, next) {
            read.records.insert(next, found);
            next += 1;
            read.end = bytes.len() - after.len();
            continue;
        }
        let Some(last) = rest.iter().rposition(|&byte| byte != 0) else { return read };
        let bad = read.end..read.end + last + 1;
        let Some((skipped, seq)) = find_next(rest, next) else {
            read.rest = Some(Rest { is_torn: is_torn(bytes, &bad, next), bytes: bad });
            return read;
        };
        read.holes.push(Hole { seqs: next..seq, bytes: bad.start..bad.start + skipped });
        (next, read.end) = (seq, bad.start + skipped);
    }
}

/// Where the records go on behind one that cannot be read, and with which. By the length that it says it has: what is in it may look like
/// records, as users put it there.
fn find_next(bytes: &[u8], seq: Seq) -> Option<(usize, Seq)> {
    let length = u32::from_be_bytes(*bytes.first_chunk()?);
    let at = RECORD_HEADER.checked_add(usize::try_from(length).ok()?)?;
    parse_record(bytes.get(at..)?, seq + 1)?;
    Some((at, seq + 1))
}

/// True if these bytes are the beginning of a record that a write, which was ended by a kill, has left: the system writes pages, and behind
/// the last one of these is nothing of it.
fn is_torn(bytes: &[u8], bad: &Range<usize>, seq: Seq) -> bool {
    let end = bad.end.next_multiple_of(PAGE);
    let header = || {
        let mut fields = Fields::new("a record of the log", bytes.get(bad.start..)?);
        let length = usize::try_from(fields.u32().ok()?).ok()?;
        fields.u32().ok()?;
        Some((fields.u64().ok()?, bad.start + RECORD_HEADER + length))
    };
    bad.start + RECORD_HEADER > end || header().is_some_and(|(found, to)| found == seq && to > end)
}

/// Reads the beginning of a file: so many bytes, or all that there are.
pub(crate) fn read_up_to(disk: &dyn Disk, name: &str, most: usize) -> Result<Vec<u8>, StoreError> {
    let read = || {
        let file = disk.open(name)?;
        let mut bytes = vec![0; usize::try_from(file.length()?).map_err(std::io::Error::other)?.min(most)];
        let n = file.read_at(0, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    };
    read().map_err(StoreError::io(format!("cannot read {name}")))
}

pub(crate) fn parse_header(bytes: &[u8], number: u64) -> Option<(Seq, String)> {
    let mut fields = Fields::new("a segment's header", bytes.get(..SEGMENT_HEADER)?);
    let is_ours = fields.bytes(8).ok()? == MAGIC && fields.u64().ok()? == number;
    let first = fields.u64().ok()?;
    let boot = fields.bytes(BOOT_MAX).ok()?;
    let sum = fields.u32().ok()?;
    let boot = String::from_utf8_lossy(boot).trim_end_matches('\0').to_owned();
    // Numbers begin at 1.
    (is_ours && first > 0 && sum == crc32fast::hash(&bytes[..8 + 8 + 8 + BOOT_MAX])).then_some((first, boot))
}

/// The record that must have this number, and what is behind it.
fn parse_record(bytes: &[u8], seq: Seq) -> Option<(Found, &[u8])> {
    let mut fields = Fields::new("a record of the log", bytes);
    let length = usize::try_from(fields.u32().ok()?).ok()?;
    let sum = fields.u32().ok()?;
    if fields.u64().ok()? != seq {
        return None;
    }
    let kind = fields.u8().ok()?;
    let payload = fields.bytes(length).ok()?;
    if crc32fast::hash(bytes.get(8..RECORD_HEADER + length)?) != sum {
        return None;
    }
    let rest = fields.rest();
    let mut fields = Fields::new("a record of the log", payload);
    let found = match kind {
        1 => Found::Rows(parse_rows(payload)?),
        2 => Found::Mark { upto: fields.u64().ok()?, is_last: fields.u8().ok()? != 0 },
        _ => return None,
    };
    Some((found, rest))
}

fn parse_rows(payload: &[u8]) -> Option<Vec<(Key, Option<Bytes>)>> {
    let mut rows = Vec::new();
    let mut rest = payload;
    while !rest.is_empty() {
        let mut fields = Fields::new("a record of the log", rest);
        let is_put = fields.u8().ok()? != 0;
        let length = fields.u32().ok()? as usize;
        let key = Key(fields.bytes(length).ok()?.to_vec());
        let value = if is_put {
            let length = fields.u32().ok()? as usize;
            Some(Bytes::from(fields.bytes(length).ok()?))
        } else {
            None
        };
        rows.push((key, value));
        rest = fields.rest();
    }
    Some(rows)
}

/// Reads bytes as a segment's records, for fuzzing, and returns how many there are.
pub fn count_records(bytes: &[u8]) -> u64 {
    let (mut next, mut rest) = (1, bytes);
    while let Some((_, after)) = parse_record(rest, next) {
        next += 1;
        rest = after;
    }
    next - 1
}
