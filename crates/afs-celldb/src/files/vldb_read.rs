//! Reads a vldb.DB0 (Database file notes 2 and 4): walks through all places in it, and compares what it finds with the
//! chains of the hash tables, through which servers find entries.

use std::collections::HashMap;

use crate::vldb::{Entry, Server, ServerNumber, Site};

use super::bytes::{BUCKETS, Data, id_bucket, name_bucket};
use super::oddities::shown;
use super::vldb::layout::{self, EntryLayout};
use super::{FileError, Oddities, Oddity, VldbContents, ubik};

/// Servers in the table of the oldest version.
const OLD_SERVERS: u32 = 31;

/// VLDELETED, which nobody sets any more.
const DELETED: u32 = 2;

/// The number in a word of the table of servers that says that the server is in a block.
const IN_BLOCK: u32 = 0xff;

/// Where a version has its tables.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: u32,
    servers: u32,
    names: u32,
    entry: EntryLayout,
}

impl Version {
    fn of(data: Data<'_>) -> Result<Self, FileError> {
        let number = data.u32(layout::VERSION);
        let (servers, entry) = match number {
            1 => (OLD_SERVERS, EntryLayout::OLD),
            2 => (255, EntryLayout::OLD),
            3 | 4 => (255, EntryLayout::NEW),
            0 if data.u32(layout::HEADER_SIZE) == 0 => return Err(FileError::Empty),
            _ => return Err(FileError::Version { version: number }),
        };
        let this = Self { number, servers, names: layout::SERVERS + 4 * servers, entry };
        if data.u32(layout::HEADER_SIZE) != this.header_bytes() {
            return Err(FileError::Version { version: number });
        }
        if data.len() < this.header_bytes() as usize {
            return Err(FileError::Short { length: data.len() });
        }
        Ok(this)
    }

    /// The hash tables, as the buckets' address and what is hashed in them; that of names comes first.
    fn table(&self, table: u32) -> u32 {
        self.names + table * 4 * BUCKETS
    }

    /// Where the tables end.
    fn blocks(&self) -> u32 {
        self.table(4)
    }

    fn header_bytes(&self) -> u32 {
        // The first version knew nothing of blocks.
        if self.number == 1 { self.blocks() } else { self.blocks() + 4 }
    }
}

/// Reads a file, and what is odd in it. `log` is what the file .DBSYS1 beside it has, if there is one.
///
/// # Errors
///
/// If it is no such file, or of no known version.
pub fn read_vldb(file: &[u8], log: Option<&[u8]>) -> Result<(VldbContents, Oddities), FileError> {
    let bytes = ubik::database(file, log)?;
    let data = Data::new(&bytes);
    let version = Version::of(data)?;
    let mut reader =
        Reader { data, version, places: Vec::new(), free: Vec::new(), oddities: Oddities::default() };
    if version.entry.site_count == EntryLayout::OLD.site_count {
        reader.oddities.add(Oddity::OldLayout, || format!("version {}", version.number));
    }
    let servers = reader.servers();
    reader.walk();
    reader.check_free_list();
    let chains: Vec<Vec<u32>> = (0..4).map(|table| reader.chain_ranks(table)).collect();
    let entries = reader.entries(&servers, &chains);
    let max_volume_id = data.u32(layout::MAX_VOLUME_ID);
    Ok((VldbContents { max_volume_id, servers, entries }, reader.oddities))
}

struct Reader<'a> {
    data: Data<'a>,
    version: Version,
    /// Addresses of entries, and of free places, in their order.
    places: Vec<u32>,
    free: Vec<u32>,
    oddities: Oddities,
}

impl Reader<'_> {
    /// Finds all places: they follow each other without gaps.
    fn walk(&mut self) {
        let end = self.data.u32(layout::EOF);
        let present = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        if end > present {
            self.oddities.add(Oddity::CutShort, || format!("{} of {end} bytes are there", self.data.len()));
        }
        let end = end.min(present);
        let mut at = self.version.header_bytes();
        while at < end {
            let length = match self.data.u32(at + layout::FLAGS) {
                layout::IS_FREE => {
                    self.free.push(at);
                    layout::ENTRY_BYTES
                }
                layout::IS_BLOCK => layout::BLOCK_BYTES,
                _ => {
                    self.places.push(at);
                    layout::ENTRY_BYTES
                }
            };
            let Some(next) = at.checked_add(length) else { break };
            at = next;
        }
        // A piece of an entry is none.
        if at > end && self.places.last().is_some_and(|last| last + layout::ENTRY_BYTES > end) {
            self.places.pop();
            self.oddities.add(Oddity::CutShort, || "the last entry is not whole".to_owned());
        }
    }

    fn check_free_list(&mut self) {
        // Servers of version 2 wrote the list otherwise than they read it.
        if self.version.number < 3 {
            return;
        }
        let mut at = self.data.u32(layout::FREE);
        for _ in 0..=self.free.len() {
            if at == 0 {
                return;
            }
            if self.free.binary_search(&at).is_err() {
                break;
            }
            at = self.data.u32(at + self.version.entry.next_ids);
        }
        self.oddities.add(Oddity::BrokenFreeList, || format!("at {at}"));
    }

    fn id(&self, place: u32, table: u32) -> u32 {
        self.data.u32(place + 4 * (table - 1))
    }

    fn name(&self, place: u32) -> &[u8] {
        self.data.text(place + self.version.entry.name, layout::NAME_FIELD)
    }

    fn shown(&self, place: u32) -> String {
        format!("{} ({})", shown(self.name(place)), self.id(place, 1))
    }

    /// Follows the chains of a hash table (0: names, 1 to 3: ids). For each entry which one it is of its chain, from 1 on; 0
    /// if it is in none, or in one in which nobody looks for it.
    fn chain_ranks(&mut self, table: u32) -> Vec<u32> {
        let next = match table {
            0 => self.version.entry.next_name,
            _ => self.version.entry.next_ids + 4 * (table - 1),
        };
        let mut ranks = vec![0; self.places.len()];
        let mut seen = vec![false; self.places.len()];
        for bucket in 0..BUCKETS {
            let mut at = self.data.u32(self.version.table(table) + 4 * bucket);
            let mut rank = 0;
            while at != 0 {
                let index = match self.places.binary_search(&at) {
                    Ok(index) if !std::mem::replace(&mut seen[index], true) => index,
                    _ => {
                        let what = if table == 0 { "names" } else { "ids" };
                        self.oddities
                            .add(Oddity::BrokenChain, || format!("chain {bucket} of the {what}, at {at}"));
                        break;
                    }
                };
                let own = match table {
                    0 => name_bucket(self.name(at), 63),
                    _ => id_bucket(self.id(at, table)),
                };
                rank += 1;
                if own == bucket {
                    ranks[index] = rank;
                } else {
                    let entry = self.shown(at);
                    self.oddities.add(Oddity::WrongChain, || entry);
                }
                at = self.data.u32(at + next);
            }
        }
        ranks
    }

    /// The servers by number.
    fn servers(&mut self) -> Vec<Server> {
        let blocks = self.blocks();
        let mut taken: HashMap<u32, u32> = HashMap::new();
        let mut uuids = HashMap::new();
        let mut servers = Vec::with_capacity(255);
        for number in 0..255 {
            let word = match number {
                _ if number < self.version.servers => self.data.u32(layout::SERVERS + 4 * number),
                _ => 0,
            };
            let server = if word >> 24 != IN_BLOCK {
                if word == 0 { Server::NONE } else { Server::Address(word) }
            } else {
                let (block, slot) = (word >> 16 & 0xff, word & 0xffff);
                let block = blocks.get(block as usize).copied().filter(|address| *address != 0);
                let is_slot = (1..layout::SLOTS).contains(&slot);
                let at = block.filter(|_| is_slot).map(|block| block + slot * layout::SLOT_BYTES);
                let is_new = at.is_some_and(|at| *taken.entry(at).or_insert(number) == number);
                let server = at.filter(|_| is_new).and_then(|at| self.registered(at));
                server.unwrap_or_else(|| {
                    self.oddities.add(Oddity::DeadServer, || format!("number {number}, {word:#010x}"));
                    Server::NONE
                })
            };
            if let Server::Registered { uuid, .. } = &server
                && let Some(first) = uuids.insert(*uuid, number)
            {
                self.oddities.add(Oddity::DuplicateServer, || format!("numbers {first} and {number}"));
            }
            servers.push(server);
        }
        servers
    }

    /// Where the blocks of servers are; 0 for one that is not there.
    fn blocks(&self) -> Vec<u32> {
        let first = if self.version.number == 1 { 0 } else { self.data.u32(self.version.blocks()) };
        let is_block = |at: u32| {
            at >= self.version.header_bytes()
                && at.checked_add(layout::BLOCK_BYTES).is_some_and(|end| end as usize <= self.data.len())
                && self.data.u32(at + layout::FLAGS) == layout::IS_BLOCK
        };
        if !is_block(first) {
            return Vec::new();
        }
        let others = (1..layout::MAX_BLOCKS).map(|n| self.data.u32(first + layout::BLOCK_LIST + 4 * n));
        std::iter::once(first).chain(others).map(|at| if is_block(at) { at } else { 0 }).collect()
    }

    fn registered(&self, at: u32) -> Option<Server> {
        let uuid = self.data.bytes::<16>(at).filter(|uuid| *uuid != [0; 16])?;
        let uniquifier = self.data.u32(at + layout::UNIQUIFIER);
        let mut addresses = Vec::new();
        for n in 0..15 {
            let address = self.data.u32(at + layout::ADDRESSES + 4 * n);
            if address != 0 && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Some(Server::Registered { uuid, uniquifier, addresses, has_rxgk: false })
    }

    /// The entries, but for those that are none.
    fn entries(&mut self, servers: &[Server], chains: &[Vec<u32>]) -> Vec<Entry> {
        let duplicates = self.duplicate_ids(&chains[1]);
        let places = std::mem::take(&mut self.places);
        let mut entries = Vec::with_capacity(places.len());
        for (index, place) in places.iter().copied().enumerate() {
            let kept = [1, 2, 3].map(|table| self.id(place, table));
            let is_in = |table: usize| chains[table][index] > 0;
            if self.name(place).is_empty() || kept[0] == 0 {
                self.oddities.add(Oddity::Nameless, || format!("at {place}"));
                continue;
            }
            let shown = self.shown(place);
            if self.data.u32(place + layout::FLAGS) == DELETED {
                self.oddities.add(Oddity::Deleted, || shown);
                continue;
            }
            if (0..4).all(|table| !is_in(table)) {
                self.oddities.add(Oddity::Unreachable, || shown);
                continue;
            }
            if duplicates.binary_search(&(index as u32)).is_ok() {
                continue;
            }
            if !is_in(0) || (1..4).any(|table| kept[table - 1] != 0 && !is_in(table)) {
                self.oddities.add(Oddity::MissingFromChain, || shown.clone());
            }
            entries.push(self.entry(place, kept, servers, &shown));
        }
        self.note_duplicate_names(&entries);
        entries
    }

    /// Entries whose read-write volume another one has, which is earlier in the chain; in their order.
    fn duplicate_ids(&mut self, ranks: &[u32]) -> Vec<u32> {
        let rank = |index: u32| ranks[index as usize].wrapping_sub(1);
        let mut all: Vec<(u32, u32)> =
            (0..).zip(&self.places).map(|(index, place)| (self.id(*place, 1), index)).collect();
        all.retain(|(id, _)| *id != 0);
        // What look-ups find comes first: 0, which is in no chain, became the largest.
        all.sort_unstable_by_key(|(id, index)| (*id, rank(*index), *index));
        let mut others: Vec<u32> =
            all.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).collect();
        others.sort_unstable();
        for index in &others {
            let entry = self.shown(self.places[*index as usize]);
            self.oddities.add(Oddity::DuplicateId, || format!("{entry} is left out"));
        }
        others
    }

    fn note_duplicate_names(&mut self, entries: &[Entry]) {
        let mut names: Vec<&[u8]> = entries.iter().map(|entry| &entry.name[..]).collect();
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            self.oddities.add(Oddity::DuplicateName, || shown(pair[0]));
        }
    }

    fn entry(&mut self, place: u32, ids: [u32; 3], servers: &[Server], shown: &str) -> Entry {
        let data = self.data;
        let name = data.text(place + self.version.entry.name, layout::NAME_FIELD).to_vec();
        let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
        if !name.iter().all(is_usual) {
            self.oddities.add(Oddity::OddName, || shown.to_owned());
        }
        let EntryLayout { sites: at, site_count, .. } = self.version.entry;
        let byte =
            |column: u32, n: u32| data.bytes::<1>(place + at + column * site_count + n).map_or(0, |b| b[0]);
        let mut sites = Vec::new();
        for n in 0..site_count {
            let site = Site { server: ServerNumber(byte(0, n)), partition: byte(1, n), flags: byte(2, n) };
            if site.server.0 == layout::NO_SERVER {
                break;
            }
            match servers.get(usize::from(site.server.0)) {
                None | Some(Server::Free { .. }) => {
                    self.oddities.add(Oddity::DeadSite, || {
                        format!("{shown} at server number {}, partition {}", site.server.0, site.partition)
                    });
                }
                Some(_) => sites.push(site),
            }
        }
        if sites.is_empty() {
            self.oddities.add(Oddity::NoSite, || shown.to_owned());
        }
        Entry {
            name,
            ids,
            clone_id: data.u32(place + layout::CLONE),
            flags: data.u32(place + layout::FLAGS),
            lock_timestamp: data.u32(place + layout::LOCK_TIME),
            lock_afs_id: data.u32(place + layout::LOCK_ID),
            sites,
        }
    }
}
