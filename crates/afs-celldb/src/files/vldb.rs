//! The content of a vldb.DB0, as values, and its places in the file (Database file notes 2): to and from the database in
//! memory.

use crate::store::Row;
use crate::vldb::{Entry, HEADER_KEY, Header, Server, ServerNumber, Vldb, entry_key, server_key};

/// Places in the file that reader and writer share; all of them in versions 3 and 4.
pub(super) mod layout {
    use super::super::bytes::BUCKETS;

    pub(in super::super) const VERSION: u32 = 0;
    pub(in super::super) const HEADER_SIZE: u32 = 4;
    pub(in super::super) const FREE: u32 = 8;
    pub(in super::super) const EOF: u32 = 12;
    pub(in super::super) const MAX_VOLUME_ID: u32 = 24;
    /// The table of servers, a word for each.
    pub(in super::super) const SERVERS: u32 = 40;
    /// Words in it.
    pub(in super::super) const SERVER_COUNT: u32 = 255;
    /// The hash tables: of names, and of ids by type. Behind them is the address of the first block of servers.
    pub(in super::super) const NAMES: u32 = SERVERS + 4 * SERVER_COUNT;
    pub(in super::super) const IDS: u32 = NAMES + 4 * BUCKETS;
    pub(in super::super) const BLOCKS: u32 = IDS + 3 * 4 * BUCKETS;
    pub(in super::super) const HEADER_BYTES: u32 = BLOCKS + 4;

    pub(in super::super) const ENTRY_BYTES: u32 = 148;
    /// In an entry: flags, time of the lock, the clone's id, the next entries in the chains of ids.
    pub(in super::super) const FLAGS: u32 = 12;
    pub(in super::super) const LOCK_ID: u32 = 16;
    pub(in super::super) const LOCK_TIME: u32 = 20;
    pub(in super::super) const CLONE: u32 = 24;

    /// The flags of a place without an entry, and of a block of servers.
    pub(in super::super) const IS_FREE: u32 = 1;
    pub(in super::super) const IS_BLOCK: u32 = 8;

    pub(in super::super) const BLOCK_BYTES: u32 = 8192;
    pub(in super::super) const MAX_BLOCKS: u32 = 4;
    /// In a block: a place is so long; that of the block itself is the first. It has the addresses of all blocks.
    pub(in super::super) const SLOT_BYTES: u32 = 128;
    pub(in super::super) const SLOTS: u32 = BLOCK_BYTES / SLOT_BYTES;
    pub(in super::super) const BLOCK_LIST: u32 = 16;
    /// In the place of a server: behind its UUID.
    pub(in super::super) const UNIQUIFIER: u32 = 16;
    pub(in super::super) const ADDRESSES: u32 = 20;

    /// The number that says that an entry has no further sites.
    pub(in super::super) const NO_SERVER: u8 = 255;

    /// The places in an entry of fields that were elsewhere before.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) struct EntryLayout {
        pub(in super::super) next_ids: u32,
        pub(in super::super) next_name: u32,
        pub(in super::super) name: u32,
        /// Numbers of servers; behind them as many of partitions, and as many flags.
        pub(in super::super) sites: u32,
        pub(in super::super) site_count: u32,
    }

    impl EntryLayout {
        pub(in super::super) const NEW: Self =
            Self { next_ids: 28, next_name: 40, name: 44, sites: 109, site_count: 13 };
        pub(in super::super) const OLD: Self =
            Self { next_ids: 32, next_name: 44, name: 56, sites: 122, site_count: 8 };
    }

    /// Longest name and the NUL behind it.
    pub(in super::super) const NAME_FIELD: usize = 65;
}

/// The content of a VLDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VldbContents {
    /// Near which the next id is looked for.
    pub max_volume_id: u32,
    /// The servers by number, from 0 on.
    pub servers: Vec<Server>,
    /// The volumes, in the order of the file, which is that of listings.
    pub entries: Vec<Entry>,
}

impl VldbContents {
    /// Takes the content of a database.
    pub fn of(vldb: &Vldb) -> Self {
        Self {
            max_volume_id: vldb.header().max_volume_id,
            servers: vldb.servers().to_vec(),
            entries: vldb.slots().from(0).map(|(_, row)| row.to_entry()).collect(),
        }
    }

    /// The number of servers.
    pub fn server_count(&self) -> usize {
        self.servers.iter().filter(|server| !matches!(server, Server::Free { .. })).count()
    }

    /// The rows of a database with this in it and nothing else.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        let allocs = self.entries.len() as u32;
        let header = Header { max_volume_id: self.max_volume_id, free: None, allocs, frees: 0 };
        let header = (HEADER_KEY.to_vec(), header.to_row());
        let servers = (0..=u8::MAX).zip(&self.servers);
        let servers = servers.filter(|(_, server)| !matches!(server, Server::Free { uniquifier: 0 }));
        let servers = servers.map(|(number, server)| (server_key(ServerNumber(number)), server.to_row()));
        let entries = (0..).zip(&self.entries).map(|(slot, entry)| (entry_key(slot), entry.to_row()));
        std::iter::once(header).chain(servers).chain(entries)
    }
}
