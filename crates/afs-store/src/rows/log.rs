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
const MAGIC: &[u8; 8] = b"AFARLOG2";
/// The same of the version before.
const OLD_MAGIC: &[u8; 8] = b"AFARLOG1";
/// The places of the two copies of a segment's header: a sector each, so that one of them is whole.
const COPIES: [usize; 2] = [0, 512];
/// Bytes of both.
pub(crate) const SEGMENT_HEADER: usize = 1024;
/// Bytes of a copy before its checksum: magic, number, first record, the boot's name, salt.
const COPY: usize = 8 + 8 + 8 + BOOT_MAX + 4;
/// Bytes of the header of the version before, which has no second copy and no salt.
const OLD_SEGMENT_HEADER: usize = 128;
/// Longest name of a boot; Linux's has 36 characters.
const BOOT_MAX: usize = 64;
/// Bytes that the system writes at once, or not at all, when a process is killed.
const PAGE: usize = 4096;
/// Bytes of a record's header: length of the payload, checksum, number, kind, and the bytes of the length combined by exclusive or.
const RECORD_HEADER: usize = 4 + 4 + 8 + 1 + 1;
/// Bytes that are looked at for the next record, when one cannot be read, for each byte of the segment: a bound on what bytes that look
/// like records can cost.
const LOOKS: usize = 8;

/// Written at once into a new segment.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// The form of a segment's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// That of the version before.
    Old,
    /// Ours. Checksums begin with the salt, a random number: nobody can store data that are taken for records when the one with these
    /// data is damaged.
    Salted(u32),
}

impl Format {
    fn record_header(self) -> usize {
        RECORD_HEADER - usize::from(self == Self::Old)
    }

    fn sum(self, bytes: &[u8]) -> u32 {
        let salt = if let Self::Salted(salt) = self { salt } else { 0 };
        let mut hasher = crc32fast::Hasher::new_with_initial(salt);
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// A segment's header.
#[derive(Debug)]
pub(crate) struct Header {
    /// The number of its first record.
    pub first: Seq,
    /// The start of the machine in which it was written.
    pub boot: String,
    pub format: Format,
    /// Its length.
    length: usize,
}

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
    /// Appends the record's bytes, for segments with this salt.
    pub fn encode(&self, seq: Seq, salt: u32, out: &mut Vec<u8>) {
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
        out[start + 17] = length.to_be_bytes().iter().fold(0, |all, byte| all ^ byte);
        let sum = Format::Salted(salt).sum(&out[start + 8..]);
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
    /// Makes a segment with its space and its name durable, and nothing in it; `is_written` with zeros.
    pub(crate) fn create(
        disk: &dyn Disk,
        number: u64,
        capacity: u64,
        is_written: bool,
    ) -> Result<Self, StoreError> {
        let name = format!("log.{number:016x}");
        let make = || {
            let file = disk.create(&name)?;
            file.reserve(capacity)?;
            if is_written {
                for at in (0..capacity).step_by(ZEROS.len()) {
                    file.write_at(at, &ZEROS[..ZEROS.len().min((capacity - at) as usize)])?;
                }
            }
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
    pub(crate) fn header(&self, first: Seq, boot: &str, salt: u32) -> Vec<u8> {
        assert!(boot.len() <= BOOT_MAX, "checked when it was read");
        let copy = Value::default().bytes(MAGIC).u64(self.number).u64(first).bytes(boot.as_bytes());
        let copy = copy.bytes(&[0; BOOT_MAX][boot.len()..]).u32(salt);
        let sum = crc32fast::hash(&copy.0);
        let copy = copy.u32(sum).0;
        let mut header = vec![0; SEGMENT_HEADER];
        COPIES.iter().for_each(|&at| header[at..][..copy.len()].copy_from_slice(&copy));
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
pub(crate) fn read_records(bytes: &[u8], header: &Header) -> Read {
    let mut read = Read { end: header.length.min(bytes.len()), ..Read::default() };
    let (mut next, mut looked, format) = (header.first, 0, header.format);
    loop {
        let rest = &bytes[read.end..];
        if let Some((found, after)) = parse_record(rest, next, format, &mut 0) {
            read.records.insert(next, found);
            next += 1;
            read.end = bytes.len() - after.len();
            continue;
        }
        let Some(last) = rest.iter().rposition(|&byte| byte != 0) else { return read };
        let bad = read.end..read.end + last + 1;
        let Some((skipped, seq)) = find_next(rest, next, format, &mut looked, bytes.len()) else {
            read.rest = Some(Rest { is_torn: is_torn(bytes, &bad, next, format), bytes: bad });
            return read;
        };
        read.holes.push(Hole { seqs: next..seq, bytes: bad.start..bad.start + skipped });
        (next, read.end) = (seq, bad.start + skipped);
    }
}

/// Where the records go on behind one that cannot be read, and with which.
fn find_next(bytes: &[u8], seq: Seq, format: Format, looked: &mut usize, all: usize) -> Option<(usize, Seq)> {
    let length = u32::from_be_bytes(*bytes.first_chunk()?);
    let at = format.record_header().checked_add(usize::try_from(length).ok()?)?;
    if let Some(behind) = bytes.get(at..)
        && parse_record(behind, seq + 1, format, &mut 0).is_some()
    {
        return Some((at, seq + 1));
    }
    if format == Format::Old {
        return None;
    }
    // Its length is not to be relied on.
    for at in 1..bytes.len() {
        let found = Seq::from_be_bytes(*bytes.get(at + 8..)?.first_chunk()?);
        let most = seq + 1 + (at / RECORD_HEADER) as Seq;
        if seq < found && found <= most && parse_record(&bytes[at..], found, format, looked).is_some() {
            return Some((at, found));
        }
        if *looked > LOOKS * all {
            return None;
        }
    }
    None
}

/// True if these bytes are the beginning of a record that a write, which was ended by a kill, has left: the system writes pages, and behind
/// the last one of these is nothing of it.
fn is_torn(bytes: &[u8], bad: &Range<usize>, seq: Seq, format: Format) -> bool {
    let end = bad.end.next_multiple_of(PAGE);
    let header = || {
        let length: &[u8; 4] = bytes.get(bad.start..)?.first_chunk()?;
        let found = Seq::from_be_bytes(*bytes.get(bad.start + 8..)?.first_chunk()?);
        let is_right = format == Format::Old
            || length.iter().fold(0, |all, byte| all ^ byte) == *bytes.get(bad.start + RECORD_HEADER - 1)?;
        let to = bad.start + format.record_header() + u32::from_be_bytes(*length) as usize;
        Some(found == seq && is_right && to > end)
    };
    bad.start + format.record_header() > end || header().unwrap_or(false)
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

/// The header in the first bytes of a segment with this number.
pub(crate) fn parse_header(bytes: &[u8], number: u64) -> Option<Header> {
    let ours = COPIES.iter().find_map(|&at| parse_copy(bytes.get(at..)?, MAGIC, number, COPY));
    ours.or_else(|| parse_copy(bytes, OLD_MAGIC, number, COPY - 4))
}

fn parse_copy(bytes: &[u8], magic: &[u8; 8], number: u64, length: usize) -> Option<Header> {
    let mut fields = Fields::new("a segment's header", bytes);
    let is_ours = fields.bytes(8).ok()? == magic && fields.u64().ok()? == number;
    let first = fields.u64().ok()?;
    let boot = String::from_utf8_lossy(fields.bytes(BOOT_MAX).ok()?).trim_end_matches('\0').to_owned();
    let (format, header) = match magic == MAGIC {
        true => (Format::Salted(fields.u32().ok()?), SEGMENT_HEADER),
        false => (Format::Old, OLD_SEGMENT_HEADER),
    };
    // Numbers begin at 1.
    let is_whole = fields.u32().ok()? == crc32fast::hash(&bytes[..length]) && first > 0;
    (is_ours && is_whole).then_some(Header { first, boot, format, length: header })
}

/// The record that must have this number, and what is behind it. Has `looked` at so many bytes for it.
fn parse_record<'a>(
    bytes: &'a [u8],
    seq: Seq,
    format: Format,
    looked: &mut usize,
) -> Option<(Found, &'a [u8])> {
    let mut fields = Fields::new("a record of the log", bytes);
    let length = usize::try_from(fields.u32().ok()?).ok()?;
    let sum = fields.u32().ok()?;
    if fields.u64().ok()? != seq {
        return None;
    }
    let kind = fields.u8().ok()?;
    let whole = bytes.get(8..format.record_header().checked_add(length)?)?;
    *looked += whole.len();
    if format.sum(whole) != sum {
        return None;
    }
    let (payload, rest) = bytes[format.record_header()..].split_at(length);
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

/// Reads bytes as a segment's records with salt 0, for fuzzing, and returns how many can be read.
pub fn count_records(bytes: &[u8]) -> u64 {
    let header = Header { first: 1, boot: String::new(), format: Format::Salted(0), length: 0 };
    read_records(bytes, &header).records.len() as u64
}
