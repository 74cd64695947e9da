//! The content of a prdb.DB0, as values, and its places in the file (Database file notes 3): to and from the database in
//! memory.

use crate::ptdb::{Entry, HEADER_KEY, Header, Ptdb, entry_key};
use crate::store::Row;

/// Places in the file that reader and writer share.
pub(super) mod layout {
    use super::super::bytes::BUCKETS;

    pub(in super::super) const VERSION: u32 = 0;
    pub(in super::super) const HEADER_SIZE: u32 = 4;
    pub(in super::super) const FREE: u32 = 8;
    pub(in super::super) const EOF: u32 = 12;
    pub(in super::super) const MAX_GROUP: u32 = 16;
    pub(in super::super) const MAX_USER: u32 = 20;
    pub(in super::super) const ORPHANS: u32 = 32;
    pub(in super::super) const USERS: u32 = 36;
    pub(in super::super) const GROUPS: u32 = 40;
    pub(in super::super) const FOREIGN: u32 = 44;
    pub(in super::super) const NAMES: u32 = 72;
    pub(in super::super) const IDS: u32 = NAMES + 4 * BUCKETS;
    pub(in super::super) const HEADER_BYTES: u32 = IDS + 4 * BUCKETS;

    /// The size of entries and of the blocks that continue their lists.
    pub(in super::super) const ENTRY_BYTES: u32 = 192;
    pub(in super::super) const FLAGS: u32 = 0;
    pub(in super::super) const ID: u32 = 4;
    pub(in super::super) const CELL: u32 = 8;
    /// The first block that continues the list; in a block, and in a free place, the next one.
    pub(in super::super) const NEXT: u32 = 12;
    pub(in super::super) const CREATED: u32 = 16;
    pub(in super::super) const ADDED: u32 = 20;
    pub(in super::super) const REMOVED: u32 = 24;
    pub(in super::super) const CHANGED: u32 = 28;
    pub(in super::super) const LIST: u32 = 36;
    pub(in super::super) const NEXT_ID: u32 = 76;
    pub(in super::super) const NEXT_NAME: u32 = 80;
    pub(in super::super) const OWNER: u32 = 84;
    pub(in super::super) const CREATOR: u32 = 88;
    pub(in super::super) const GROUP_QUOTA: u32 = 92;
    pub(in super::super) const USER_QUOTA: u32 = 96;
    pub(in super::super) const COUNT: u32 = 100;
    pub(in super::super) const SUPERGROUP_COUNT: u32 = 104;
    /// The first group that it owns, and the next one with the same owner.
    pub(in super::super) const OWNED: u32 = 108;
    pub(in super::super) const NEXT_OWNED: u32 = 112;
    pub(in super::super) const NEXT_SUPERGROUP: u32 = 116;
    pub(in super::super) const SUPERGROUPS: u32 = 120;
    pub(in super::super) const NAME: u32 = 128;

    /// Ids in an entry's list, in its list of supergroups, and in a block.
    pub(in super::super) const LIST_IDS: u32 = 10;
    pub(in super::super) const SUPERGROUP_IDS: u32 = 2;
    pub(in super::super) const BLOCK_IDS: u32 = 39;

    /// Kinds of places, by the lower flags.
    pub(in super::super) const IS_FREE: u32 = 1;
    pub(in super::super) const IS_GROUP: u32 = 2;
    pub(in super::super) const IS_BLOCK: u32 = 4;

    /// Longest name and the NUL behind it.
    pub(in super::super) const NAME_FIELD: usize = 64;
}

/// The content of a PTDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrdbContents {
    /// The last id that was given to a user, and to a group: near them the next ones are looked for.
    pub max_user: i32,
    /// See `max_user`.
    pub max_group: i32,
    /// Users and groups, in the order of the file, which is that of listings. A membership is with both.
    pub entries: Vec<Entry>,
}

impl PrdbContents {
    /// Takes the content of a database.
    pub fn of(ptdb: &Ptdb) -> Self {
        let Header { max_user, max_group, .. } = ptdb.header();
        let entries = ptdb.slots().from(0).map(|(_, entry)| entry.clone()).collect();
        Self { max_user, max_group, entries }
    }

    /// The numbers of users of the cell, of groups, and of users of other cells. The anonymous user is one.
    pub fn counts(&self) -> [usize; 3] {
        let groups = self.entries.iter().filter(|entry| entry.is_group()).count();
        let foreign = self.entries.iter().filter(|entry| !entry.is_group() && entry.is_foreign()).count();
        [self.entries.len() - groups - foreign, groups, foreign]
    }

    /// The rows of a database with this in it and nothing else.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        let header = Header { max_user: self.max_user, max_group: self.max_group, free: None };
        let entries = (0..).zip(&self.entries).map(|(slot, entry)| (entry_key(slot), entry.to_row()));
        std::iter::once((HEADER_KEY.to_vec(), header.to_row())).chain(entries)
    }
}
