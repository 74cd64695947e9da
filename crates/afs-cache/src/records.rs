//! The rows of the cache's index: what they say, as bytes, and their keys. Reading is total; a row that cannot be read
//! costs the file that it is about, not the cache.
//!
//! | key | row |
//! | --- | --- |
//! | 1, name of a cell | the number that stands for it in keys |
//! | 2, [`FileKey`] | [`FileRow`] |
//! | 3, number of a cached file, start | end of a range that is dirty |
//! | 4, number of a cached file | [`crate::Conflict`], as text |
//! | 5, number of a change | [`crate::Change`] |
//! | 6, [`FileKey`] of what was made here | [`crate::RealId`] |
//! | 7, [`FileKey`] of what was put aside and not stored since | nothing |
//! | 8, [`FileKey`] of a directory, or with zeros behind the volume | what is set for it, see `settings` |
//! | 9, number of a cached file, number of the row | data of what is dirty of it ([`crate::cache::logged`]) |
//! | 10, [`FileKey`], number of a local user | [`crate::Pin`] |
//! | 11, [`FileKey`], or with zeros behind the volume | what was known of it, see `known` |
//!
//! Each row ends with a checksum of its key and of what is before: a row that a disk has changed must not pass for one that says
//! which bytes are whose.

use crate::ranges::RangeSet;
use crate::{CellNumber, FileKey};
use afs_store::codec::{Fields, Value};
use afs_store::{Batch, Key, StoreError};
use std::ops::Range;
use std::sync::Arc;

/// The first byte of each kind of key.
mod table {
    pub(super) const CELL: u8 = 1;
    pub(super) const FILE: u8 = 2;
    pub(super) const DIRTY: u8 = 3;
    pub(super) const CONFLICT: u8 = 4;
    pub(super) const CHANGE: u8 = 5;
    pub(super) const REAL_ID: u8 = 6;
    pub(super) const ASIDE: u8 = 7;
    pub(super) const SETTING: u8 = 8;
    pub(super) const LOGGED: u8 = 9;
    pub(super) const PIN: u8 = 10;
    pub(super) const KNOWN: u8 = 11;
}

/// Ranges of what is there that a row has at most: the longest count, as what is not in the row is only fetched again
/// after a restart.
const RANGES_MAX: usize = 128;

/// The flags of a file's row.
const LENT: u8 = 1;
const SMALL: u8 = 2;
/// There is a name of the writer's at the end.
const HOLDER: u8 = 4;
const PROMISED: u8 = 8;

/// The longest that a file can be, as positions in files are told to the system.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// A store that was sent and not answered yet, to know it again after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentStore {
    /// The length that the file has after it.
    pub length: u64,
    /// The modification time that it sets, in seconds since 1970.
    pub modified: u32,
}

/// The user who has written into a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writer {
    /// The local user.
    pub user: u32,
    /// The user's identity in the cell then, by a name that the caller chooses; empty for an anonymous user. `None`: a cache of format
    /// 3 and older did not note it.
    pub holder: Option<Arc<str>>,
}

impl Writer {
    /// A local user who is somebody to the cell, or anonymous if the name is empty.
    #[must_use]
    pub fn new(user: u32, holder: Arc<str>) -> Self {
        Self { user, holder: Some(holder) }
    }
}

/// True if a file of this length, which was cut as short as that in between, may be another than the server has it by its length alone.
/// If a store was not answered, the server has either of two lengths.
pub(crate) fn is_other_there(
    server_length: u64,
    sent: Option<SentStore>,
    length: u64,
    truncated_to: u64,
) -> bool {
    let lengths = [Some(server_length), sent.map(|sent| sent.length)];
    lengths.into_iter().flatten().any(|there| there != length || truncated_to < there)
}

/// The facts that are remembered of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FileRow {
    /// The file's number, which names its slot or backing file.
    pub(crate) number: u64,
    /// The version of the data that the server has.
    pub(crate) version: u64,
    /// The length there.
    pub(crate) server_length: u64,
    /// The length here; more, if a dirty range ends behind.
    pub(crate) length: u64,
    /// The shortest length in between, since the last store.
    pub(crate) truncated_to: u64,
    /// The user who has written into it last.
    pub(crate) writer: Writer,
    /// True if the kernel could write to the backing file without our seeing it.
    pub(crate) is_lent: bool,
    /// True if a program was told that what is dirty outlasts a loss of power.
    pub(crate) is_promised: bool,
    /// True if it was in a slot when this was written, and may still be.
    pub(crate) is_small: bool,
    /// The time when it was opened last, by the cache's own count.
    pub(crate) used: u64,
    /// The store that is on its way to the server.
    pub(crate) sent: Option<SentStore>,
    /// The time of the last write as far as it is known, else 0. While a store is on its way, the time that this sets.
    pub(crate) written: u32,
    /// The ranges that are there, dirty or not.
    pub(crate) present: RangeSet,
}

impl FileRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut ranges: Vec<Range<u64>> = self.present.iter().collect();
        if ranges.len() > RANGES_MAX {
            ranges.sort_by_key(|r| std::cmp::Reverse(r.end - r.start));
            ranges.truncate(RANGES_MAX);
            ranges.sort_by_key(|r| r.start);
        }
        let sent = self.sent.unwrap_or(SentStore { length: 0, modified: self.written });
        let holder = self.writer.holder.as_deref();
        let flags = [
            (self.is_lent, LENT),
            (self.is_small, SMALL),
            (holder.is_some(), HOLDER),
            (self.is_promised, PROMISED),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        let mut value = Value::default()
            .u64(self.number)
            .u64(self.version)
            .u64(self.server_length)
            .u64(self.length)
            .u64(self.truncated_to)
            .u32(self.writer.user)
            .u8(flags)
            .u64(self.used)
            .u8(u8::from(self.sent.is_some()))
            .u64(sent.length)
            .u32(sent.modified)
            .u32(u32::try_from(ranges.len()).expect("there are few"));
        for range in ranges {
            value = value.u64(range.start).u64(range.end);
        }
        if let Some(holder) = holder {
            value = value.string(holder);
        }
        value.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut f = Fields::new("a file's row", bytes);
        let mut row = Self {
            number: f.u64()?,
            version: f.u64()?,
            server_length: f.u64()?,
            length: f.u64()?,
            truncated_to: f.u64()?,
            writer: Writer { user: f.u32()?, holder: None },
            ..Self::default()
        };
        let flags = f.u8()?;
        (row.is_lent, row.is_small) = (flags & LENT != 0, flags & SMALL != 0);
        row.is_promised = flags & PROMISED != 0;
        row.used = f.u64()?;
        if row.length > LENGTH_MAX || row.server_length > LENGTH_MAX {
            return Err(f.bad("is longer than a file can be"));
        }
        let is_sent = f.u8()? != 0;
        let sent = SentStore { length: f.u64()?, modified: f.u32()? };
        row.sent = is_sent.then_some(sent);
        row.written = sent.modified;
        for _ in 0..f.u32()? {
            let (start, end) = (f.u64()?, f.u64()?);
            if start >= end || end > LENGTH_MAX {
                return Err(f.bad("has a range that is none"));
            }
            row.present.insert(start..end);
        }
        if flags & HOLDER != 0 {
            row.writer.holder = Some(f.string()?.into());
        }
        f.end()?;
        Ok(row)
    }
}

/// Bytes of a row's checksum.
const SUM: usize = 4;

fn sum_of(key: &Key, value: &[u8]) -> [u8; SUM] {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&key.0);
    sum.update(value);
    sum.finalize().to_be_bytes()
}

/// Puts a row.
pub(crate) fn put(batch: &mut Batch, key: Key, value: impl Into<Vec<u8>>) {
    let row = sealed(&key, value);
    batch.put(key, row);
}

/// Decodes a file's row; `None` if it makes no sense.
pub(crate) fn file_row(key: &Key, row: &[u8]) -> Option<FileRow> {
    FileRow::decode(unsealed(key, row)?).ok()
}

/// A row, with its checksum.
fn sealed(key: &Key, value: impl Into<Vec<u8>>) -> Vec<u8> {
    let mut row = value.into();
    let sum = sum_of(key, &row);
    row.extend_from_slice(&sum);
    row
}

/// The content of a row, if it is as it was written.
pub(crate) fn unsealed<'a>(key: &Key, row: &'a [u8]) -> Option<&'a [u8]> {
    let (value, sum) = row.split_at_checked(row.len().checked_sub(SUM)?)?;
    (sum == sum_of(key, value)).then_some(value)
}

/// The key of a cell's number.
pub(crate) fn cell(name: &str) -> Key {
    let mut key = vec![table::CELL];
    key.extend_from_slice(name.as_bytes());
    Key(key)
}

/// The prefix of all keys of cells.
pub(crate) fn cells() -> Vec<u8> {
    vec![table::CELL]
}

/// The name of a cell, from the key of its row.
pub(crate) fn cell_of(key: &Key) -> Option<String> {
    String::from_utf8(key.0.get(1..)?.to_vec()).ok()
}

/// The key of a file's row.
pub(crate) fn file(key: FileKey) -> Key {
    of_file(table::FILE, key)
}

/// The key of the real numbers of something that was made here.
pub(crate) fn real_id(key: FileKey) -> Key {
    of_file(table::REAL_ID, key)
}

/// The prefix of the keys of all real numbers.
pub(crate) fn real_ids() -> Vec<u8> {
    vec![table::REAL_ID]
}

/// The key that says of a file that something of it was put aside.
pub(crate) fn aside(key: FileKey) -> Key {
    of_file(table::ASIDE, key)
}

/// The prefix of these keys.
pub(crate) fn all_aside() -> Vec<u8> {
    vec![table::ASIDE]
}

/// The key of what is set for a directory or a volume.
pub(crate) fn setting(key: FileKey) -> Key {
    of_file(table::SETTING, key)
}

/// The prefix of these keys.
pub(crate) fn settings() -> Vec<u8> {
    vec![table::SETTING]
}

/// The key of what a local user has pinned.
pub(crate) fn pin(key: FileKey, user: u32) -> Key {
    let mut pin = of_file(table::PIN, key);
    pin.0.extend_from_slice(&user.to_be_bytes());
    pin
}

/// The prefix of these keys.
pub(crate) fn pins() -> Vec<u8> {
    vec![table::PIN]
}

/// The file and the local user of such a key.
pub(crate) fn pin_of(key: &Key) -> Option<(FileKey, u32)> {
    let (file, user) = key.0.split_last_chunk()?;
    Some((file_of(&Key(file.to_vec()))?, u32::from_be_bytes(*user)))
}

/// The key of what was known of a vnode or a volume.
pub(crate) fn known(key: FileKey) -> Key {
    of_file(table::KNOWN, key)
}

/// The prefix of these keys: of those of a volume, or of all.
pub(crate) fn all_known(volume: Option<(CellNumber, u32)>) -> Vec<u8> {
    let mut prefix = vec![table::KNOWN];
    if let Some((cell, volume)) = volume {
        prefix.extend_from_slice(&cell.0.to_be_bytes());
        prefix.extend_from_slice(&volume.to_be_bytes());
    }
    prefix
}

fn of_file(table: u8, key: FileKey) -> Key {
    let mut bytes = vec![table];
    for number in [key.cell.0, key.volume, key.vnode, key.unique] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    Key(bytes)
}

/// The prefix of all keys of files.
pub(crate) fn files() -> Vec<u8> {
    vec![table::FILE]
}

/// The file of a row's key.
pub(crate) fn file_of(key: &Key) -> Option<FileKey> {
    let mut f = Fields::new("a file's key", key.0.get(1..)?);
    let key = FileKey {
        cell: CellNumber(f.u32().ok()?),
        volume: f.u32().ok()?,
        vnode: f.u32().ok()?,
        unique: f.u32().ok()?,
    };
    f.end().ok()?;
    Some(key)
}

/// The key of the end of a dirty range.
pub(crate) fn dirty(number: u64, start: u64) -> Key {
    let mut key = dirty_of(number);
    key.extend_from_slice(&start.to_be_bytes());
    Key(key)
}

/// The prefix of the keys of a file's dirty ranges.
pub(crate) fn dirty_of(number: u64) -> Vec<u8> {
    let mut key = vec![table::DIRTY];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The prefix of the keys of all dirty ranges.
pub(crate) fn all_dirty() -> Vec<u8> {
    vec![table::DIRTY]
}

/// The number of the cached file and the range of a dirty row.
pub(crate) fn dirty_row(key: &Key, row: &[u8]) -> Option<(u64, Range<u64>)> {
    if key.0.first() != Some(&table::DIRTY) {
        return None;
    }
    let row = unsealed(key, row)?;
    let mut f = Fields::new("a dirty range's key", key.0.get(1..)?);
    let (number, start) = (f.u64().ok()?, f.u64().ok()?);
    f.end().ok()?;
    let mut f = Fields::new("a dirty range", row);
    let end = f.u64().ok()?;
    (start < end && end <= LENGTH_MAX).then_some((number, start..end))
}

/// The key of a row with data of a cached file.
pub(crate) fn logged(number: u64, row: u64) -> Key {
    let mut key = vec![table::LOGGED];
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(&row.to_be_bytes());
    Key(key)
}

/// The prefix of the keys of all rows with data.
pub(crate) fn all_logged() -> Vec<u8> {
    vec![table::LOGGED]
}

/// The number of the cached file that the key of a dirty row, or of one with data, is of.
pub(crate) fn file_number(key: &Key) -> Option<u64> {
    Some(u64::from_be_bytes(*key.0.get(1..)?.first_chunk()?))
}

/// Data of a file by their places, as a row has them.
pub(crate) fn data_row(pieces: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut value = Value::default();
    for (start, bytes) in pieces {
        let length = u32::try_from(bytes.len()).expect("they are few");
        value = value.u64(*start).u32(length).bytes(bytes);
    }
    value.0
}

/// The same the other way round; `None` if it makes no sense.
pub(crate) fn pieces(key: &Key, row: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    decode_pieces(unsealed(key, row)?)
}

/// The same without the row's checksum.
pub(crate) fn decode_pieces(bytes: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut f = Fields::new("a row with data", bytes);
    let mut pieces = Vec::new();
    while !f.is_empty() {
        let (start, length) = (f.u64().ok()?, f.u32().ok()?);
        let bytes = f.bytes(length as usize).ok()?.to_vec();
        start.checked_add(u64::from(length)).filter(|end| *end <= LENGTH_MAX)?;
        pieces.push((start, bytes));
    }
    Some(pieces)
}

/// The key of a conflict.
pub(crate) fn conflict(number: u64) -> Key {
    numbered(table::CONFLICT, number)
}

/// The key of a change.
pub(crate) fn change(number: u64) -> Key {
    numbered(table::CHANGE, number)
}

/// The prefix of all keys of changes.
pub(crate) fn changes() -> Vec<u8> {
    vec![table::CHANGE]
}

fn numbered(table: u8, number: u64) -> Key {
    let mut key = vec![table];
    key.extend_from_slice(&number.to_be_bytes());
    Key(key)
}

/// The number in the key of a conflict or a change.
pub(crate) fn number_of(key: &Key) -> Option<u64> {
    Some(u64::from_be_bytes(key.0.get(1..)?.try_into().ok()?))
}

/// The prefix of the keys of all conflicts.
pub(crate) fn conflicts() -> Vec<u8> {
    vec![table::CONFLICT]
}

/// Backing files in a folder, and slots in a slab: file systems are slow with more, and with many folders.
pub(crate) const IN_FOLDER: u64 = 1024;

/// The name of a backing file below the cache's folder.
pub(crate) fn backing_name(number: u64) -> String {
    format!("data/{:x}/{:x}", number / IN_FOLDER, number)
}

/// The name of the slab with the small ones among the files of a folder.
pub(crate) fn slab_name(index: u64) -> String {
    format!("data/{index:x}/{SLAB}")
}

/// It without its folder.
pub(crate) const SLAB: &str = "small";

/// The number of a backing file, from its name without its folder.
pub(crate) fn backing_number(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_cut_off_is_an_error() {
        let row = FileRow {
            number: 7,
            version: 9,
            server_length: 1 << 40,
            length: 1 << 39,
            truncated_to: 5,
            writer: Writer::new(1000, "alice".into()),
            is_lent: true,
            is_promised: true,
            is_small: true,
            used: 3,
            sent: Some(SentStore { length: 4, modified: 1_700_000_000 }),
            written: 1_700_000_000,
            present: [0..5, 7..1 << 40].into_iter().collect(),
        };
        // An older format does not say who the writer was to the cell.
        let older = FileRow { writer: Writer { holder: None, ..row.writer.clone() }, ..row.clone() };
        assert_eq!(FileRow::decode(&older.encode()).unwrap(), older);
        let unsent = FileRow { sent: None, ..row.clone() };
        assert_eq!(FileRow::decode(&unsent.encode()).unwrap(), unsent);
        let bytes = row.encode();
        assert_eq!(FileRow::decode(&bytes).unwrap(), row);
        for length in 0..bytes.len() {
            assert!(FileRow::decode(&bytes[..length]).is_err(), "cut off at {length}");
        }
    }

    #[test]
    fn of_very_many_ranges_a_row_keeps_the_longest() {
        let present = (0..1000u64).map(|n| n * 1000..n * 1000 + 1 + n % 500).collect();
        let row = FileRow { present, ..FileRow::default() };
        let read = FileRow::decode(&row.encode()).unwrap();
        assert_eq!(read.present.count(), RANGES_MAX);
        assert!(read.present.iter().all(|r| r.end - r.start > 400), "{:?}", read.present);
    }

    #[test]
    fn keys_say_what_they_are_of() {
        let key = FileKey { cell: CellNumber(1), volume: 2, vnode: 3, unique: 4 };
        assert_eq!(file_of(&file(key)), Some(key));
        let row = sealed(&dirty(5, 6), 7u64.to_be_bytes());
        assert_eq!(dirty_row(&dirty(5, 6), &row), Some((5, 6..7)));
        assert_eq!(dirty_row(&dirty(4, 6), &row), None, "it is another's");
        let data = vec![(7, b"text".to_vec()), (100, Vec::new())];
        let row = sealed(&logged(5, 6), data_row(&data));
        assert_eq!(pieces(&logged(5, 6), &row), Some(data));
        assert_eq!(pieces(&logged(5, 7), &row), None, "it is another's");
        assert_eq!(file_number(&logged(5, 6)), Some(5));
        assert_eq!(cell_of(&cell("afar.local")), Some("afar.local".to_owned()));
        assert_eq!(backing_number(backing_name(0x1234).rsplit('/').next().unwrap()), Some(0x1234));
    }
}
