//! The PTDB in memory: entries by place, id and name, and what each owns. Reads only.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use crate::database::Image;
use crate::record::BadRow;
use crate::slots::{Slot, Slots, parse_free};

use super::records::{Entry, Header};

/// The key of the header.
pub(crate) const HEADER_KEY: &[u8] = b"h";
/// What keys of entries begin with; the place follows, in four bytes.
const ENTRY_KEY: u8 = b'e';

/// Bytes before the first entry of a stock database file, and of an entry there: what makes a position from a place
/// (PTDB notes 10).
const FILE_HEADER_BYTES: i32 = 65_600;
const FILE_ENTRY_BYTES: i32 = 192;

/// The most places that there are: as many as positions, which are signed, can name.
pub(crate) const MAX_SLOTS: u32 = ((i32::MAX - FILE_HEADER_BYTES) / FILE_ENTRY_BYTES) as u32;

pub(crate) fn entry_key(slot: u32) -> Vec<u8> {
    let mut key = vec![ENTRY_KEY];
    key.extend(slot.to_be_bytes());
    key
}

/// The position that stands for a place: where stock servers have it in their file.
pub(crate) fn position_of(slot: u32) -> i32 {
    FILE_HEADER_BYTES + FILE_ENTRY_BYTES * slot as i32
}

/// The place that a position stands for.
pub(crate) fn slot_at(position: i32) -> Option<u32> {
    let offset = position.checked_sub(FILE_HEADER_BYTES).filter(|offset| offset % FILE_ENTRY_BYTES == 0)?;
    u32::try_from(offset / FILE_ENTRY_BYTES).ok()
}

/// The database.
#[derive(Debug)]
pub struct Ptdb {
    header: Header,
    slots: Slots<Entry>,
    by_id: HashMap<i32, u32>,
    by_name: HashMap<Vec<u8>, u32>,
    /// Groups by owner; those without one under 0.
    owned: BTreeMap<i32, BTreeSet<i32>>,
}

/// The source of entries: the database, or what a change has made of it so far.
pub(crate) trait View {
    fn by_id(&self, id: i32) -> Option<&Entry>;
    fn by_name(&self, name: &[u8]) -> Option<&Entry>;
}

/// A row of the database that was read.
#[derive(Debug)]
pub struct PtdbRow(Parsed);

#[derive(Debug)]
enum Parsed {
    /// `None` is a place that is not there, behind the last.
    Slot(u32, Option<Slot<Entry>>),
    Header(Header),
}

impl Image for Ptdb {
    type Parsed = PtdbRow;

    const PREFIX: &'static [u8] = b"ptdb/";
    const NAME: &'static str = "PTDB";

    fn empty() -> Self {
        Self {
            header: Header::default(),
            slots: Slots::new(),
            by_id: HashMap::new(),
            by_name: HashMap::new(),
            owned: BTreeMap::new(),
        }
    }

    fn parse_row(key: &[u8], value: Option<&[u8]>) -> Result<PtdbRow, BadRow> {
        let value = value.ok_or(BadRow("rows are never removed"))?;
        let row = match *key {
            [ENTRY_KEY, a, b, c, d] => {
                let slot = u32::from_be_bytes([a, b, c, d]);
                let content = match parse_free(value) {
                    Some(free) => free?,
                    None => Slot::Used(Entry::parse(value)?),
                };
                if slot >= MAX_SLOTS {
                    return Err(BadRow("its place is out of range"));
                }
                Parsed::Slot(slot, Some(content))
            }
            _ if key == HEADER_KEY => Parsed::Header(Header::parse(value)?),
            _ => return Err(BadRow("it is no row that this program knows")),
        };
        Ok(PtdbRow(row))
    }

    fn set_parsed(&mut self, PtdbRow(row): PtdbRow) -> Result<PtdbRow, BadRow> {
        Ok(PtdbRow(match row {
            Parsed::Slot(slot, content) => Parsed::Slot(slot, self.set_slot(slot, content)?),
            Parsed::Header(header) => Parsed::Header(std::mem::replace(&mut self.header, header)),
        }))
    }
}

impl Ptdb {
    fn set_slot(&mut self, slot: u32, content: Option<Slot<Entry>>) -> Result<Option<Slot<Entry>>, BadRow> {
        let old = self.slots.set(slot, content)?;
        if let Some(Slot::Used(old)) = &old {
            // Of rows that change together another one may have the id or the name by now.
            let other = self.by_id.get(&old.id).copied().filter(|other| *other != slot);
            if other.is_none() {
                self.by_id.remove(&old.id);
            }
            if self.by_name.get(&old.name) == Some(&slot) {
                self.by_name.remove(&old.name);
            }
            let other = other.and_then(|other| self.slots.get(other));
            if old.is_group()
                && other.is_none_or(|other| other.owner != old.owner)
                && let Some(owned) = self.owned.get_mut(&old.owner)
            {
                owned.remove(&old.id);
                if owned.is_empty() {
                    self.owned.remove(&old.owner);
                }
            }
        }
        if let Some(new) = self.slots.get(slot) {
            self.by_id.insert(new.id, slot);
            self.by_name.insert(new.name.clone(), slot);
            if new.is_group() {
                self.owned.entry(new.owner).or_default().insert(new.id);
            }
        }
        Ok(old)
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    pub(crate) fn slots(&self) -> &Slots<Entry> {
        &self.slots
    }

    /// The place of an entry.
    pub(crate) fn slot_of(&self, id: i32) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn slot_of_name(&self, name: &[u8]) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The groups that an entry owns, in the order of their ids; those that nobody does for 0.
    pub fn owned(&self, id: i32) -> impl Iterator<Item = i32> {
        self.owned_from(id, Bound::Unbounded)
    }

    /// Those of them from an id on.
    pub(super) fn owned_from(&self, id: i32, first: Bound<i32>) -> impl Iterator<Item = i32> {
        self.owned.get(&id).into_iter().flat_map(move |owned| owned.range((first, Bound::Unbounded))).copied()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True if there are none: the database has not been initialized.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The entry of an id.
    pub fn find_id(&self, id: i32) -> Option<&Entry> {
        self.slots.get(self.slot_of(id)?)
    }

    /// The entry of a name, which is in lower case.
    pub fn find_name(&self, name: &[u8]) -> Option<&Entry> {
        self.slots.get(self.slot_of_name(name)?)
    }
}

impl View for Ptdb {
    fn by_id(&self, id: i32) -> Option<&Entry> {
        self.find_id(id)
    }

    fn by_name(&self, name: &[u8]) -> Option<&Entry> {
        self.find_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_stands_for_its_place() {
        for slot in [0, 1, 999, MAX_SLOTS - 1] {
            assert_eq!(slot_at(position_of(slot)), Some(slot));
        }
        for position in [0, -1, i32::MIN, FILE_HEADER_BYTES - FILE_ENTRY_BYTES, FILE_HEADER_BYTES + 1] {
            assert_eq!(slot_at(position), None, "{position}");
        }
    }
}
