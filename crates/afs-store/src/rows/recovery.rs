//! What counts of a log after a start (Volume format 3), and what of it cannot be read though somebody was told that it is
//! there. How a segment is taken apart is left to `log`.

use super::log::{self, Found, Hole};
use super::{Bytes, Key, Schema, Seq};
use crate::StoreError;
use crate::disk::Disk;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// The beginning of the name of a file that was damaged and is kept; its old name follows.
pub(crate) const ASIDE: &str = "damaged.";

/// Changes that were acknowledged and cannot be read any more, as a file is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Loss {
    /// The file.
    pub file: String,
    /// The place in it, and what is lost.
    pub why: String,
    /// The number of batches that are lost, at most; 0 if an earlier start has lost them.
    pub batches: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.why)
    }
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
    /// Segments among the old ones that are damaged, and are to be kept under another name.
    pub damaged: BTreeSet<String>,
    /// What is lost with them, and what earlier starts have lost.
    pub losses: Vec<Loss>,
    /// True if the store was closed.
    pub is_clean: bool,
    /// True if the machine was started anew since.
    pub is_other_boot: bool,
}

/// Records that are not where they should be.
#[derive(Debug)]
struct Missing {
    seqs: Range<Seq>,
    file: String,
    /// Where they were; `None` if all of the file is meant, or the file is not there.
    bytes: Option<Range<usize>>,
}

impl Missing {
    fn told(&self) -> Loss {
        let batches = self.seqs.end - self.seqs.start;
        let place = match &self.bytes {
            Some(bytes) => format!("bytes {} to {} cannot be read", bytes.start, bytes.end),
            None => "cannot be read".to_owned(),
        };
        let (first, last) = (self.seqs.start, self.seqs.end - 1);
        let why =
            format!("{place}: lost are at most {batches} changes that were acknowledged, {first} to {last}");
        Loss { file: self.file.clone(), why, batches }
    }
}

/// What was read of the log so far.
#[derive(Debug)]
struct Reading {
    checkpoint: Seq,
    records: BTreeMap<Seq, Found>,
    missing: Vec<Missing>,
    /// The record up to which all was synced, by the marks of runs whose records are void.
    durable: Seq,
    /// Where what is missing next was, if a file is known to be damaged there.
    suspect: Option<(String, Option<Range<usize>>)>,
    /// True if that is what a process was writing when it was killed, should nothing come behind it.
    is_torn: bool,
}

impl Reading {
    fn expected(&self) -> Seq {
        self.records.last_key_value().map_or(0, |(seq, _)| seq + 1).max(self.checkpoint + 1)
    }

    /// The first record that is missing.
    fn first_missing(&self) -> Seq {
        self.missing.iter().map(|missing| missing.seqs.start).min().unwrap_or(Seq::MAX)
    }

    /// The last record that is covered by a mark that comes before anything is missing.
    fn marked(&self, records: &BTreeMap<Seq, Found>) -> Seq {
        log::marks(records.range(..self.first_missing())).max().unwrap_or(0)
    }

    fn miss(&mut self, seqs: Range<Seq>, file: &str, bytes: Option<Range<usize>>) {
        // What the checkpoint covers may be missing, as it is removed, and what is removed may be back.
        let seqs = seqs.start.max(self.checkpoint + 1)..seqs.end;
        if !seqs.is_empty() {
            self.missing.push(Missing { seqs, file: file.to_owned(), bytes });
        }
    }

    /// A run began with this number: it took what was from there on for void. Returns that.
    fn begin(&mut self, first: Seq, name: &str) -> BTreeMap<Seq, Found> {
        let void = self.records.split_off(&first);
        // Its marks are void as records, but what they cover has reached the disk: the next start goes by that too, as far as this
        // run has not put others in its place.
        self.durable = self.durable.max(self.marked(&void)).min(first - 1).max(self.checkpoint);
        for missing in &mut self.missing {
            missing.seqs.end = missing.seqs.end.min(first);
        }
        self.missing.retain(|missing| !missing.seqs.is_empty());
        let known = self.missing.iter().map(|missing| missing.seqs.end).max().unwrap_or(0);
        let (file, bytes) = self.suspect.take().unwrap_or_else(|| (format!("the log before {name}"), None));
        self.miss(self.expected().max(known)..first, &file, bytes);
        void
    }
}

/// Reads the log; `checkpoint` is the last record that the B-tree has.
pub(crate) fn recover(
    disk: &dyn Disk,
    checkpoint: Seq,
    schema: &dyn Schema,
) -> Result<Recovered, StoreError> {
    let boot_now = log::boot(disk)?;
    let listed = disk.list("").map_err(StoreError::io("cannot list the folder"))?;
    let mut segments: Vec<(u64, String)> = listed
        .iter()
        .filter_map(|name| Some((u64::from_str_radix(name.strip_prefix("log.")?, 16).ok()?, name.clone())))
        .collect();
    segments.sort();
    let mut out = Recovered { last: checkpoint, is_clean: segments.is_empty(), ..Recovered::default() };
    let (records, missing) = (BTreeMap::new(), Vec::new());
    let mut reading =
        Reading { checkpoint, records, missing, durable: checkpoint, suspect: None, is_torn: false };
    let mut newest_boot = None;
    for (number, name) in segments {
        out.next_number = number + 1;
        let begin = log::read_up_to(disk, &name, log::SEGMENT_HEADER)?;
        let Some(header) = log::parse_header(&begin, number) else {
            // A segment without a header was made in advance and not used, or its first sector was lost with all else.
            if begin.iter().all(|&byte| byte == 0) {
                out.unused.push(name);
            } else {
                (reading.suspect, reading.is_torn) = (Some((name.clone(), None)), false);
                out.old.push(name);
            }
            continue;
        };
        out.old.push(name.clone());
        let void = reading.begin(header.first, &name);
        note_reservations(schema, &mut out.reservations, void);
        newest_boot = Some(header.boot.clone());
        let bytes = log::read_up_to(disk, &name, usize::MAX)?;
        let read = log::read_records(&bytes, &header);
        for Hole { seqs, bytes } in read.holes {
            reading.miss(seqs, &name, Some(bytes));
        }
        reading.records.extend(read.records);
        // Behind the end may be what a process was writing when it was killed, or what a loss of power has left.
        reading.is_torn = read.rest.as_ref().is_some_and(|rest| rest.is_torn);
        reading.suspect = read.rest.map(|rest| (name.clone(), Some(rest.bytes)));
        if read.end < bytes.len() {
            out.ends.push((name, read.end as u64));
        }
    }
    out.is_other_boot = newest_boot.is_some_and(|boot| boot != boot_now);
    let is_closed = matches!(reading.records.last_key_value(), Some((_, Found::Mark { is_last: true, .. })));
    let mut durable = reading.marked(&reading.records).max(reading.durable);
    if out.is_other_boot && !is_closed {
        // A mark is written when the sync before it has ended: what the last but one covers is on the disk, though a mark itself may
        // have got there before what it covers.
        let behind: Vec<Seq> =
            log::marks(reading.records.range(reading.first_missing().min(Seq::MAX - 1)..)).collect();
        durable = durable.max(behind.len().checked_sub(2).map_or(0, |at| behind[at]));
        // The machine was started anew: whatever is not covered by a mark may name data that never reached the disk.
        let void = reading.records.split_off(&(durable + 1));
        note_reservations(schema, &mut out.reservations, void);
        for missing in &mut reading.missing {
            missing.seqs.end = missing.seqs.end.min(durable + 1);
        }
        reading.missing.retain(|missing| !missing.seqs.is_empty());
    } else if let Some((file, bytes)) = reading.suspect.take() {
        let next = reading.expected();
        if !is_closed && !reading.is_torn {
            // Its number is not used again, so that the next start finds the same.
            out.last = next;
            reading.miss(next..next + 1, &file, bytes);
        }
    }
    if let Some((seq, found)) = reading.records.last_key_value() {
        out.last = out.last.max(*seq);
        out.is_clean = matches!(found, Found::Mark { is_last: true, .. }) && reading.missing.is_empty();
    }
    let behind = reading.records.split_off(&(checkpoint + 1)).into_values();
    out.rows = behind.filter_map(Found::into_rows).collect();
    out.losses = reading.missing.iter().map(Missing::told).collect();
    out.damaged = reading.missing.into_iter().map(|missing| missing.file).collect();
    out.ends.retain(|(name, _)| !out.damaged.contains(name));
    out.losses.extend(listed.into_iter().filter(|name| name.starts_with(ASIDE)).filter_map(put_aside));
    Ok(out)
}

/// What is to be told of a file that an earlier start has kept.
fn put_aside(file: String) -> Option<Loss> {
    file.strip_prefix(ASIDE)?.starts_with("log.").then(|| {
        let why = "was put aside by an earlier start, as acknowledged changes in it could not be read: run 'afar fsck' if this is a partition, then remove the file";
        Loss { file, why: why.into(), batches: 0 }
    })
}

fn note_reservations(
    schema: &dyn Schema,
    reservations: &mut BTreeMap<Key, Bytes>,
    void: BTreeMap<Seq, Found>,
) {
    for rows in void.into_values().filter_map(Found::into_rows) {
        for (key, value) in rows.into_iter().filter(|(key, _)| schema.is_reservation(key)) {
            let Some(value) = value else { continue };
            let larger = schema.larger_reservation(reservations.get(&key).map(|v| &**v), &value);
            reservations.insert(key, larger.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::{Record, Segment};
    use super::*;
    use crate::disk::SimulatedDisk;

    #[derive(Debug)]
    struct Plain;

    impl Schema for Plain {}

    const SALT: u32 = 5;

    /// The things that a run has written into its segment, in order: the value of a row, or the record up to which a mark
    /// covers it.
    enum Written {
        Row(&'static str),
        Mark(Seq),
    }

    fn write(disk: &SimulatedDisk, number: u64, first: Seq, boot: &str, records: &[Written]) {
        let segment = Segment::create(disk, number, 4096, false).unwrap();
        let mut bytes = segment.header(first, boot, SALT);
        for (seq, written) in (first..).zip(records) {
            let value = |value: &str| Some(Bytes::from(value.as_bytes()));
            let rows = |text| BTreeMap::from([(Key(b"row".to_vec()), value(text))]);
            match written {
                Written::Row(text) => Record::Rows(&rows(text)).encode(seq, SALT, &mut bytes),
                Written::Mark(upto) => {
                    Record::Mark { upto: *upto, is_last: false }.encode(seq, SALT, &mut bytes)
                }
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

    /// What a simulated disk says first.
    const BOOT: &str = "0.0";

    /// A segment as the version before wrote it.
    fn write_old(disk: &SimulatedDisk, number: u64, first: Seq, values: &[&str]) -> Vec<u64> {
        let mut bytes = [b"AFARLOG1", &number.to_be_bytes()[..], &first.to_be_bytes(), &[0; 64]].concat();
        bytes[24..24 + BOOT.len()].copy_from_slice(BOOT.as_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
        bytes.resize(128, 0);
        let mut places = Vec::new();
        for (seq, value) in (first..).zip(values) {
            places.push(bytes.len() as u64);
            let length = value.len() as u32;
            let payload = [&[1, 0, 0, 0, 3][..], b"row", &length.to_be_bytes(), value.as_bytes()].concat();
            let rest = [&seq.to_be_bytes()[..], &[1], &payload].concat();
            bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&rest).to_be_bytes());
            bytes.extend_from_slice(&rest);
        }
        bytes.resize(4096, 0);
        disk.create(&format!("log.{number:016x}")).unwrap().write_at(0, &bytes).unwrap();
        places
    }

    fn values(found: Recovered) -> Vec<String> {
        let rows = found.rows.into_iter().flatten();
        rows.map(|(_, value)| String::from_utf8(value.unwrap().to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_log_of_the_version_before_is_read_and_a_new_one_goes_on_from_it() {
        let disk = SimulatedDisk::new(1 << 20);
        write_old(&disk, 1, 1, &["a1", "a2"]);
        write_old(&disk, 2, 3, &["b3", "b4"]);
        write(&disk, 3, 5, BOOT, &[Written::Row("c5")]);
        let found = recover(&disk, 0, &Plain).unwrap();
        assert_eq!((found.losses.len(), found.last), (0, 5));
        assert_eq!(values(found), ["a1", "a2", "b3", "b4", "c5"]);
    }

    /// What users store may look like records. Those of the version before have no salt, so only a length leads behind a damaged one.
    #[test]
    fn bytes_in_a_damaged_record_are_taken_for_no_record() {
        let forged = SimulatedDisk::new(1 << 20);
        let at = write_old(&forged, 1, 2, &["evil"])[0];
        let mut record = vec![0; 17 + 16];
        forged.open("log.0000000000000001").unwrap().read_at(at, &mut record).unwrap();
        // All of it is ASCII but for what has the highest bit, which this has not.
        let stored: String = record.iter().map(|&byte| char::from(byte & 0x7f)).collect();
        let disk = SimulatedDisk::new(1 << 20);
        let place = write_old(&disk, 1, 1, &[&stored])[0];
        let file = disk.open("log.0000000000000001").unwrap();
        file.write_at(place + 17 + 12, &record).unwrap();
        file.write_at(place, &[0, 0, 0, 7]).unwrap();
        let found = recover(&disk, 0, &Plain).unwrap();
        assert_eq!(found.losses.len(), 1, "{:?}", found.losses);
        assert_eq!(values(found), [""; 0]);
    }
}
