//! The VLDB in memory: entries by place, name and id, servers by number. Reads only; what changes is in `change.rs`.

use crate::database::Image;
use crate::record::BadRow;
use crate::slots::{Slot, Slots, parse_free};

use super::index::{Index, name_tag};
use super::records::{EntryRow, Header, MAX_SERVERS, Server, ServerNumber, VolumeType};

/// The key of the header.
pub(crate) const HEADER_KEY: &[u8] = b"h";
/// What keys of entries begin with; the place follows, in four bytes.
const ENTRY_KEY: u8 = b'e';
/// What keys of servers begin with; the number follows, in one byte.
const SERVER_KEY: u8 = b's';

/// Bytes before the first entry of a stock database file, and of an entry there: what makes an index of a listing from a
/// place (VLDB notes 13).
pub(crate) const FILE_HEADER_BYTES: i32 = 132_120;
pub(crate) const FILE_ENTRY_BYTES: i32 = 148;

/// The most places that there are: as many as the indexes of listings, which are signed, can name.
pub(crate) const MAX_SLOTS: u32 = ((i32::MAX - FILE_HEADER_BYTES) / FILE_ENTRY_BYTES) as u32;

pub(crate) fn entry_key(slot: u32) -> Vec<u8> {
    let mut key = vec![ENTRY_KEY];
    key.extend(slot.to_be_bytes());
    key
}

pub(crate) fn server_key(number: ServerNumber) -> Vec<u8> {
    vec![SERVER_KEY, number.0]
}

/// The database.
#[derive(Debug)]
pub struct Vldb {
    header: Header,
    slots: Slots<EntryRow>,
    by_id: [Index; 3],
    by_name: Index,
    servers: Vec<Server>,
}

/// An entry that was found, and the place that it has.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub(crate) slot: u32,
    pub(crate) row: &'a EntryRow,
}

/// A row of the database that was read.
#[derive(Debug)]
pub struct VldbRow(Parsed);

#[derive(Debug)]
enum Parsed {
    /// `None` is a place that is not there, behind the last.
    Slot(u32, Option<Slot<EntryRow>>),
    Server(usize, Server),
    Header(Header),
}

impl Image for Vldb {
    type Parsed = VldbRow;

    const PREFIX: &'static [u8] = b"vldb/";
    const NAME: &'static str = "VLDB";

    fn empty() -> Self {
        Self {
            header: Header::NEW,
            slots: Slots::new(),
            by_id: Default::default(),
            by_name: Index::default(),
            servers: vec![Server::NONE; MAX_SERVERS],
        }
    }

    fn parse_row(key: &[u8], value: Option<&[u8]>) -> Result<VldbRow, BadRow> {
        let value = value.ok_or(BadRow("rows are never removed"))?;
        let row = match *key {
            [ENTRY_KEY, a, b, c, d] => {
                let slot = u32::from_be_bytes([a, b, c, d]);
                let content = match parse_free(value) {
                    Some(free) => free?,
                    None => Slot::Used(EntryRow::parse(value)?),
                };
                if slot >= MAX_SLOTS {
                    return Err(BadRow("its place is out of range"));
                }
                Parsed::Slot(slot, Some(content))
            }
            [SERVER_KEY, number] if usize::from(number) < MAX_SERVERS => {
                Parsed::Server(usize::from(number), Server::parse(value)?)
            }
            _ if key == HEADER_KEY => Parsed::Header(Header::parse(value)?),
            _ => return Err(BadRow("it is no row that this program knows")),
        };
        Ok(VldbRow(row))
    }

    fn set_parsed(&mut self, VldbRow(row): VldbRow) -> Result<VldbRow, BadRow> {
        Ok(VldbRow(match row {
            Parsed::Slot(slot, content) => Parsed::Slot(slot, self.set_slot(slot, content)?),
            Parsed::Server(number, server) => {
                Parsed::Server(number, std::mem::replace(&mut self.servers[number], server))
            }
            Parsed::Header(header) => Parsed::Header(std::mem::replace(&mut self.header, header)),
        }))
    }
}

impl Vldb {
    fn set_slot(
        &mut self,
        slot: u32,
        content: Option<Slot<EntryRow>>,
    ) -> Result<Option<Slot<EntryRow>>, BadRow> {
        let old = self.slots.set(slot, content)?;
        if let Some(Slot::Used(old)) = &old {
            for volume_type in VolumeType::ALL {
                if is_indexed(old, volume_type) {
                    self.by_id[volume_type as usize].remove(old.id(volume_type), slot);
                }
            }
            self.by_name.remove(name_tag(old.name()), slot);
        }
        if let Some(new) = self.slots.get(slot) {
            for volume_type in VolumeType::ALL {
                if is_indexed(new, volume_type) {
                    self.by_id[volume_type as usize].insert(new.id(volume_type), slot);
                }
            }
            self.by_name.insert(name_tag(new.name()), slot);
        }
        Ok(old)
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    pub(crate) fn slots(&self) -> &Slots<EntryRow> {
        &self.slots
    }

    /// The servers, by number.
    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns a server by its number.
    pub(crate) fn server(&self, number: ServerNumber) -> &Server {
        self.servers.get(usize::from(number.0)).unwrap_or(&Server::NONE)
    }

    /// The entry of a volume's id; `None` as type looks for any, the read-write ones first.
    pub fn find_id(&self, id: u32, volume_type: Option<VolumeType>) -> Option<Found<'_>> {
        let types = match &volume_type {
            Some(one) => std::slice::from_ref(one),
            None => &VolumeType::ALL,
        };
        let slot = types.iter().find_map(|one| self.by_id[*one as usize].find(id, |_| true))?;
        Some(Found { slot, row: self.slots.get(slot)? })
    }

    /// The entry of a name, which may end with `.readonly` or `.backup` (VLDB notes 13).
    pub fn find_name(&self, name: &[u8]) -> Option<Found<'_>> {
        self.find_whole_name(without_suffix(name))
    }

    /// The entry of exactly this name.
    pub(crate) fn find_whole_name(&self, name: &[u8]) -> Option<Found<'_>> {
        let is_it = |slot| self.slots.get(slot).is_some_and(|row| row.name() == name);
        let slot = self.by_name.find(name_tag(name), is_it)?;
        Some(Found { slot, row: self.slots.get(slot)? })
    }

    /// The server that has an address. The lowest number, if several do.
    pub(crate) fn find_address(&self, address: u32) -> Option<ServerNumber> {
        self.servers.iter().position(|server| server.has_address(address)).map(|n| ServerNumber(n as u8))
    }

    /// The number of entries, and of the volumes of each type among them.
    pub fn counts(&self) -> (usize, [usize; 3]) {
        (self.by_name.len(), [0, 1, 2].map(|index| self.by_id[index].len()))
    }

    /// The first of so many ids that no volume has and that were never given out, or `None` if there are none left.
    pub(crate) fn next_ids(&self, count: u32) -> Option<u32> {
        let from = self.header.max_volume_id;
        // In most cases the next ones are free, and not all volumes have to be looked at.
        if (from..from.checked_add(count)?).all(|id| self.find_id(id, None).is_none()) {
            return Some(from);
        }
        let mut used: Vec<u32> = self.by_id.iter().flat_map(Index::tags).filter(|id| *id >= from).collect();
        used.sort_unstable();
        let mut first = from;
        for id in used {
            if id.wrapping_sub(first) >= count && id >= first {
                break;
            }
            first = id.checked_add(1)?;
        }
        first.checked_add(count).map(|_| first)
    }
}

/// True if an entry can be found by its id of this type: 0 is no id, but stock servers take it for that of a read-write
/// volume.
fn is_indexed(row: &EntryRow, volume_type: VolumeType) -> bool {
    row.id(volume_type) != 0 || volume_type == VolumeType::ReadWrite
}

/// A name without its suffix; a name that is nothing else is left alone.
fn without_suffix(name: &[u8]) -> &[u8] {
    let stripped = [&b".backup"[..], b".readonly"].iter().find_map(|suffix| name.strip_suffix(*suffix));
    match stripped {
        Some(stripped) if !stripped.is_empty() => stripped,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_with_the_suffixes_of_their_volumes() {
        for (name, stripped) in [
            ("root", "root"),
            ("root.backup", "root"),
            ("root.readonly", "root"),
            ("root.readonly.backup", "root.readonly"),
            (".backup", ".backup"),
            (".readonly", ".readonly"),
            ("a.backup", "a"),
            ("rootbackup", "rootbackup"),
        ] {
            assert_eq!(without_suffix(name.as_bytes()), stripped.as_bytes(), "{name}");
        }
    }

    #[test]
    fn rows_that_are_none_are_refused() {
        let mut vldb = Vldb::empty();
        for (key, value) in [
            (&b"x"[..], &b""[..]),
            (b"e", b""),
            (b"e\0\0\0\x01", &[0, 0, 0, 0, 0]),
            (b"e\0\0\0\0", &[9]),
            (b"s\xff", &Server::NONE.to_row()),
            (b"h", &[1, 0]),
        ] {
            assert!(vldb.set_row(key, Some(value)).is_err(), "{key:?} {value:?}");
        }
        assert!(vldb.set_row(b"h", None).is_err());
    }
}
