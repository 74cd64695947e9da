//! The log: segments of a fixed size, whose space is there before they are used, with one record after the other. Says
//! which records count after a crash (Volume format 3).

use crate::StoreError;
use crate::codec::{Fields, Value};
use crate::disk::{Disk, DiskFile};
use crate::rows::{Bytes, Key, Schema, Seq};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The first bytes of a segment; the last digit is the format's version.
const MAGIC: &[u8; 8] = b"AFARLOG1";
/// Bytes of a segment's header: magic, number, first record, the boot's name in 64 bytes, checksum; the rest is 0.
const SEGMENT_HEADER: usize = 128;
/// Longest name of a boot; Linux's has 36 characters.
const BOOT_MAX: usize = 64;
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

/// The content of a log after a start.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Rows that the B-tree does not have, to be put in this order.
    pub rows: Vec<Vec<(Key, Option<Bytes>)>>,
    /// Reservations among what does not count.
    pub reservations: BTreeMap<Key, Bytes>,
    /// The last record that counts.
    pub last: Seq,
    /// For the next segment.
    pub next_number: u64,
    /// Segments that may go after the next checkpoint.
    pub old: Vec<String>,
    /// The ends of those segments among them that were only used up to there.
    pub ends: Vec<(String, u64)>,
    /// Segments in which nothing is.
    pub unused: Vec<String>,
    /// True if the store was closed.
    pub is_clean: bool,
    /// True if the machine was started anew since.
    pub is_other_boot: bool,
}

/// A record that was read.
#[derive(Debug)]
enum Found {
    Rows(Vec<(Key, Option<Bytes>)>),
    Mark { upto: Seq, is_last: bool },
}

/// Reads the log; `checkpoint` is the last record that the B-tree has.
pub(crate) fn recover(
    disk: &dyn Disk,
    checkpoint: Seq,
    schema: &dyn Schema,
) -> Result<Recovered, StoreError> {
    let boot_now = boot(disk)?;
    let listed = disk.list("").map_err(StoreError::io("cannot list the folder"))?;
    let mut segments: Vec<(u64, String)> = listed
        .into_iter()
        .filter_map(|name| Some((u64::from_str_radix(name.strip_prefix("log.")?, 16).ok()?, name)))
        .collect();
    segments.sort();
    let mut out = Recovered { last: checkpoint, is_clean: segments.is_empty(), ..Recovered::default() };
    let mut records: BTreeMap<Seq, Found> = BTreeMap::new();
    let (mut newest_boot, mut durable) = (None, checkpoint);
    for (number, name) in segments {
        out.next_number = number + 1;
        // A segment without a header was made in advance and not used, or its first sector was lost with all else.
        let Some((first, boot)) = parse_header(&read_up_to(disk, &name, SEGMENT_HEADER)?, number) else {
            out.unused.push(name);
            continue;
        };
        out.old.push(name.clone());
        // What the checkpoint covers may be missing, as it is removed, and what is removed may be back.
        let expected = records.last_key_value().map_or(0, |(seq, _)| seq + 1).max(checkpoint + 1);
        if first > expected {
            // Before it something is missing that was not synced; then this was not either. What a later run has written, in place
            // of what is missing, is behind it.
            continue;
        }
        // A run that began here took what was from this number on for void.
        let void = records.split_off(&first);
        // Its marks are void as records, but what they cover has reached the disk: the next start goes by that too, as far as this
        // run has not put others in its place.
        durable = durable.max(marks(&void).max().unwrap_or(0)).min(first - 1).max(checkpoint);
        note_reservations(schema, &mut out.reservations, void);
        newest_boot = Some(boot);
        let bytes = read_up_to(disk, &name, usize::MAX)?;
        let mut next = first;
        let mut rest = bytes.get(SEGMENT_HEADER..).unwrap_or_default();
        while let Some((found, after)) = parse_record(rest, next) {
            records.insert(next, found);
            next += 1;
            rest = after;
        }
        if !rest.is_empty() {
            out.ends.push((name, (bytes.len() - rest.len()) as u64));
        }
    }
    let durable = marks(&records).max().unwrap_or(0).max(durable);
    out.is_other_boot = newest_boot.is_some_and(|boot| boot != boot_now);
    if out.is_other_boot {
        // The machine was started anew: whatever is not covered by a mark may name data that never reached the disk.
        let is_last = matches!(records.last_key_value(), Some((_, Found::Mark { is_last: true, .. })));
        let void = if is_last { BTreeMap::new() } else { records.split_off(&(durable + 1)) };
        note_reservations(schema, &mut out.reservations, void);
    }
    if let Some((seq, found)) = records.last_key_value() {
        out.last = out.last.max(*seq);
        out.is_clean = matches!(found, Found::Mark { is_last: true, .. });
    }
    out.rows = records
        .split_off(&(checkpoint + 1))
        .into_values()
        .filter_map(|found| match found {
            Found::Rows(rows) => Some(rows),
            Found::Mark { .. } => None,
        })
        .collect();
    Ok(out)
}

/// The last record that each mark covers.
fn marks(records: &BTreeMap<Seq, Found>) -> impl Iterator<Item = Seq> {
    records.values().filter_map(|found| match found {
        Found::Mark { upto, .. } => Some(*upto),
        Found::Rows(_) => None,
    })
}

fn note_reservations(
    schema: &dyn Schema,
    reservations: &mut BTreeMap<Key, Bytes>,
    void: BTreeMap<Seq, Found>,
) {
    for found in void.into_values() {
        let Found::Rows(rows) = found else { continue };
        for (key, value) in rows.into_iter().filter(|(key, _)| schema.is_reservation(key)) {
            let Some(value) = value else { continue };
            let larger = schema.larger_reservation(reservations.get(&key).map(|v| &**v), &value);
            reservations.insert(key, larger.into());
        }
    }
}

/// Reads the beginning of a file: so many bytes, or all that there are.
fn read_up_to(disk: &dyn Disk, name: &str, most: usize) -> Result<Vec<u8>, StoreError> {
    let read = || {
        let file = disk.open(name)?;
        let mut bytes = vec![0; usize::try_from(file.length()?).map_err(std::io::Error::other)?.min(most)];
        let n = file.read_at(0, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    };
    read().map_err(StoreError::io(format!("cannot read {name}")))
}

fn parse_header(bytes: &[u8], number: u64) -> Option<(Seq, String)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimulatedDisk;

    #[derive(Debug)]
    struct Plain;

    impl Schema for Plain {}

    /// The things that a run has written into its segment, in order: the value of a row, or the record up to which a mark
    /// covers it.
    enum Written {
        Row(&'static str),
        Mark(Seq),
    }

    fn write(disk: &SimulatedDisk, number: u64, first: Seq, boot: &str, records: &[Written]) {
        let segment = Segment::create(disk, number, 4096).unwrap();
        let mut bytes = segment.header(first, boot);
        for (seq, written) in (first..).zip(records) {
            let value = |value: &str| Some(Bytes::from(value.as_bytes()));
            let rows = |text| BTreeMap::from([(Key(b"row".to_vec()), value(text))]);
            match written {
                Written::Row(text) => Record::Rows(&rows(text)).encode(seq, &mut bytes),
                Written::Mark(upto) => Record::Mark { upto: *upto, is_last: false }.encode(seq, &mut bytes),
            }
        }
        segment.file.write_at(0, &bytes).unwrap();
    }

    /// Starts of an earlier version did not go by marks that were void as records, and could so begin below what an even
    /// earlier start had begun with. What a mark covered is then of a run that is void, and not what has its numbers now.
    #[test]
    fn a_mark_covers_nothing_that_a_later_run_wrote_in_place_of_what_it_covered() {
        use Written::{Mark, Row};
        let table: [(Seq, &[Written], &[&str]); 3] = [
            // Nothing of the last run was synced: of the first one the rows below it count.
            (3, &[Row("c3"), Row("c4")], &["a1", "a2"]),
            (3, &[Row("c3"), Mark(3), Row("c5")], &["a1", "a2", "c3"]),
            // One that began right behind the mark lets it count.
            (5, &[Row("c5")], &["a1", "a2", "a3", "a4"]),
        ];
        for (first, last, expected) in table {
            let disk = SimulatedDisk::new(1 << 20);
            write(&disk, 1, 1, "first", &[Row("a1"), Row("a2"), Row("a3"), Row("a4"), Mark(4)]);
            write(&disk, 2, 5, "second", &[Row("b5")]);
            write(&disk, 3, first, "third", last);
            let found = recover(&disk, 0, &Plain).unwrap();
            assert!(found.is_other_boot);
            let rows = found.rows.into_iter().flatten();
            let values: Vec<_> =
                rows.map(|(_, value)| String::from_utf8(value.unwrap().to_vec()).unwrap()).collect();
            assert_eq!(values, expected, "a last run from {first} on");
        }
    }
}
