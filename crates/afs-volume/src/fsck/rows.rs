//! Rows one after the other, also if some cannot be read: what is between them is told, and not looked at. A page of the store that is
//! damaged hides the rows that are next to each other there, some tens.

use super::AT_ONCE;
use super::links::Hidden;
use crate::keys::{self, Key, VnodeKey};
use crate::records::VnodeRecord;
use crate::{Volume, VolumeError};
use afs_store::{Bytes, Row, Store, StoreError, after};
use afs_wire::ids::VnodeNumber;

/// Rows, or vnodes, that are read one by one after some that cannot be read, before many are read at once again.
const ONE_BY_ONE: usize = 256;

/// A store, or what a test puts in its place.
trait Rows {
    fn page(&self, from: &Key, prefix: &[u8]) -> Result<(Vec<Row>, Option<Key>), StoreError>;
    fn first(&self, from: &Key, end: &Key) -> Result<Option<Row>, StoreError>;
}

impl Rows for Store {
    fn page(&self, from: &Key, prefix: &[u8]) -> Result<(Vec<Row>, Option<Key>), StoreError> {
        self.page(from, prefix)
    }

    fn first(&self, from: &Key, end: &Key) -> Result<Option<Row>, StoreError> {
        self.first(from, end)
    }
}

/// The damage that an error speaks of.
fn damage(error: VolumeError) -> Result<(String, String), VolumeError> {
    match error {
        VolumeError::Damaged { what, why } => Ok((what, why)),
        error => Err(error),
    }
}

/// A key by its table's first byte and the number in the eight bytes behind it.
fn numbered(table: u8, number: u64) -> Key {
    let mut key = vec![table];
    key.extend_from_slice(&number.to_be_bytes());
    Key(key)
}

/// A key behind those that cannot be read, from which on rows can be read again, or `end`. A few look-ups for each doubling of what is hidden.
fn next_readable(store: &impl Rows, from: &Key, end: &Key) -> Result<Key, VolumeError> {
    let is_readable = |key: &Key| match store.first(key, end) {
        Ok(_) => Ok(true),
        Err(error) => damage(error.into()).map(|_| false),
    };
    let Some((&table, number)) = from.0.split_first() else { return Ok(Key(vec![1])) };
    let mut bytes = [0; 8];
    number.iter().zip(&mut bytes).for_each(|(from, to)| *to = *from);
    let mut low = u64::from_be_bytes(bytes);
    let mut step = 1;
    let mut high = loop {
        let Some(high) = low.checked_add(step) else { return Ok(end.clone().min(after(&[table]))) };
        let key = numbered(table, high);
        if key >= *end {
            return Ok(end.clone());
        }
        if is_readable(&key)? {
            break high;
        }
        (low, step) = (high, step.saturating_mul(2));
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match is_readable(&numbered(table, middle))? {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok(numbered(table, high))
}

/// Shows each row that begins with `prefix`; `hidden` is told which cannot be read, and why.
pub(crate) fn each_row(
    store: &Store,
    prefix: &[u8],
    each: impl FnMut(&Key, &Bytes) -> Result<(), VolumeError>,
    hidden: impl FnMut(String, String),
) -> Result<(), VolumeError> {
    each_row_of(store, prefix, each, hidden)
}

fn each_row_of(
    store: &impl Rows,
    prefix: &[u8],
    mut each: impl FnMut(&Key, &Bytes) -> Result<(), VolumeError>,
    mut hidden: impl FnMut(String, String),
) -> Result<(), VolumeError> {
    let end = after(prefix);
    let mut from = Key(prefix.to_vec());
    'pages: loop {
        match store.page(&from, prefix) {
            Ok((rows, next)) => {
                rows.iter().try_for_each(|(key, row)| each(key, row))?;
                let Some(next) = next else { return Ok(()) };
                from = next;
                continue;
            }
            Err(error) => _ = damage(error.into())?,
        }
        for _ in 0..ONE_BY_ONE {
            let row: Option<Row> = match store.first(&from, &end) {
                Ok(row) => row,
                Err(error) => {
                    let (what, why) = damage(error.into())?;
                    let next = next_readable(store, &from, &end)?;
                    hidden(
                        format!("rows from {:02x?} to before {:02x?}", from.0, next.0),
                        format!("{what}: {why}"),
                    );
                    if next >= end {
                        return Ok(());
                    }
                    from = next;
                    continue 'pages;
                }
            };
            let Some((key, row)) = row else { return Ok(()) };
            each(&key, &row)?;
            from = key;
            from.0.push(0);
        }
    }
}

/// Looks at the records of all vnodes, in the order of their numbers; `hidden` is told of those whose rows cannot be read, and why.
pub(crate) fn each_record(
    volume: &Volume,
    mut look: impl FnMut(&VnodeRecord) -> Result<(), VolumeError>,
    mut hidden: impl FnMut(Hidden, String, String),
) -> Result<(), VolumeError> {
    let (store, group) = (&volume.shared.store, volume.group.id);
    let end = after(&keys::group_prefix(group));
    let mut from = VnodeNumber(0);
    loop {
        match volume.vnode_records(from, AT_ONCE) {
            Ok(found) => {
                let Some(last) = found.last() else { return Ok(()) };
                from = VnodeNumber(last.status.id.vnode.0 + 1);
                found.iter().try_for_each(&mut look)?;
                continue;
            }
            Err(error) => _ = damage(error)?,
        }
        for _ in 0..ONE_BY_ONE {
            let start = Key(keys::vnode_prefix(group, from));
            let number = match store.first(&start, &end) {
                Ok(None) => return Ok(()),
                // A key that is none belongs to nothing.
                Ok(Some((key, _))) => VnodeKey::parse(&key).map_or(from, |key| key.vnode),
                Err(error) => {
                    let (what, why) = damage(error.into())?;
                    let behind = next_readable(store, &start, &end)?;
                    let next = VnodeKey::after_vnodes(&behind, group);
                    hidden(Hidden { from, before: next }, what, why);
                    if behind >= end {
                        return Ok(());
                    }
                    from = next;
                    continue;
                }
            };
            match volume.group.vnode(store, number, volume.view()) {
                Ok(Some((_, record))) => look(&record)?,
                Ok(None) => {}
                Err(error) => {
                    let (what, why) = damage(error)?;
                    hidden(
                        Hidden { from: number, before: VnodeNumber(number.0.saturating_add(1)) },
                        what,
                        why,
                    );
                }
            }
            let Some(next) = number.0.checked_add(1) else { return Ok(()) };
            from = VnodeNumber(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{GroupId, Part, Snapshot};
    use std::collections::BTreeMap;
    use std::ops::Range;

    /// Rows of which some ranges of keys cannot be read.
    struct Damaged {
        rows: BTreeMap<Key, Bytes>,
        bad: Vec<Range<Key>>,
    }

    impl Rows for Damaged {
        fn page(&self, from: &Key, prefix: &[u8]) -> Result<(Vec<Row>, Option<Key>), StoreError> {
            let (mut rows, mut at) = (Vec::new(), from.clone());
            while rows.len() < 256 {
                let Some((key, row)) = self.first(&at, &after(prefix))? else { return Ok((rows, None)) };
                at = key.clone();
                at.0.push(0);
                rows.push((key, row));
            }
            Ok((rows, Some(at)))
        }

        fn first(&self, from: &Key, end: &Key) -> Result<Option<Row>, StoreError> {
            let found = self.rows.range(from..end).next();
            let upto = found.map_or(end, |(key, _)| key);
            match self
                .bad
                .iter()
                .any(|bad| bad.contains(from) || (from <= &bad.start && &bad.start <= upto && upto < end))
            {
                true => Err(StoreError::damaged("rows", "are damaged")),
                false => Ok(found.map(|(key, row)| (key.clone(), row.clone()))),
            }
        }
    }

    fn key(vnode: u32) -> Key {
        VnodeKey { group: GroupId(7), vnode: VnodeNumber(vnode), part: Part::Status, snapshot: Snapshot(1) }
            .key()
    }

    #[test]
    fn only_what_cannot_be_read_is_left_out() {
        let numbers = (1..2000).chain([1 << 20, 1 << 30, u32::MAX - 1]);
        let rows: BTreeMap<Key, Bytes> = numbers.map(|n| (key(n), Bytes::from([1].as_slice()))).collect();
        let table: [(&[(u32, u32)], usize); 6] = [
            (&[], 0),
            (&[(700, 740)], 40),
            (&[(1, 2)], 1),
            (&[(300, 310), (900, 1000)], 110),
            (&[(1990, (1 << 20) + 1)], 11),
            (&[(1 << 30, u32::MAX)], 2),
        ];
        for (bad, lost) in table {
            let all = rows.len();
            let begin = |vnode| match vnode {
                // As a page of the store, it has rows of other groups too.
                u32::MAX => Key(vec![0xff]),
                vnode => Key(keys::vnode_prefix(GroupId(7), VnodeNumber(vnode))),
            };
            let keys = bad.iter().map(|(from, before)| begin(*from)..begin(*before)).collect();
            let store = Damaged { rows: rows.clone(), bad: keys };
            let (mut seen, mut told) = (Vec::new(), 0);
            let look = |key: &Key, _: &Bytes| {
                seen.push(key.clone());
                Ok(())
            };
            each_row_of(&store, &keys::group_prefix(GroupId(7)), look, |_, _| told += 1).unwrap();
            assert!(seen.is_sorted(), "{bad:?}");
            assert_eq!((seen.len(), told), (all - lost, bad.len()), "{bad:?}");
        }
    }
}
