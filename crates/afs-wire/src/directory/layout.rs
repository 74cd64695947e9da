//! The layout of a directory's pages (File service notes 9), for code that reads or writes them in its own way.

use super::PAGE_SIZE;

/// Bytes of a slot.
pub const SLOT_SIZE: usize = 32;
/// Slots of a page.
pub const SLOTS: usize = PAGE_SIZE / SLOT_SIZE;
/// Slots of the first page that hold no entries: its header, the map of free slots, the hash table.
pub const FIRST_PAGE_RESERVED: usize = 13;
/// Slots of every other page that hold no entries: its header.
pub const PAGE_RESERVED: usize = 1;
/// The number of pages whose free slots the first page counts.
pub const MAPPED_PAGES: usize = 128;
/// Chains by hash.
pub const BUCKETS: usize = 128;
/// The tag that each page begins with, after two bytes.
pub const TAG: u16 = 1234;
/// Marks the first slot of an entry.
pub const FIRST_SLOT: u8 = 1;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 12;

/// Offset of the tag in a page.
pub const TAG_AT: usize = 2;
/// Offset of a count of free slots in a page, which readers do not believe.
pub const FREE_COUNT_AT: usize = 4;
/// Offset of the eight bytes with a bit for each slot in use, in a page.
pub const BITMAP_AT: usize = 5;
/// Offset of the number of pages in the first page.
pub const PAGE_COUNT_AT: usize = 0;
/// Offset of the map with a byte for each page, the number of its free slots, in the first page.
pub const FREE_MAP_AT: usize = 32;
/// Offset of the chains' first slots, two bytes each, in the first page.
pub const HASH_TABLE_AT: usize = FREE_MAP_AT + MAPPED_PAGES;
/// Offset of the next slot of the chain in an entry.
pub const NEXT_AT: usize = 2;
/// Offset of the vnode in an entry.
pub const VNODE_AT: usize = 4;
/// Offset of the uniquifier in an entry.
pub const UNIQUE_AT: usize = 8;

/// Slots that an entry with a name of so many bytes takes. The formula counts 16 bytes of the name into the first
/// slot, although 20 fit.
#[must_use]
pub const fn slots_for(name_len: usize) -> usize {
    1 + (name_len + 1 + 15) / SLOT_SIZE
}
