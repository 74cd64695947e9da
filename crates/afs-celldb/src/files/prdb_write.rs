//! Writes a prdb.DB0 from which OpenAFS's ptserver starts (Database file notes 3 and 5).

use std::collections::HashMap;

use crate::ptdb::Entry;

use super::bytes::{Image, id_bucket, name_bucket};
use super::prdb::layout;
use super::{FileError, MAX_FILE_BYTES, PrdbContents, ubik};

/// Places in a file, at most.
const MAX_PLACES: usize =
    (MAX_FILE_BYTES as usize - ubik::HEADER_BYTES - 1024 - layout::HEADER_BYTES as usize)
        / layout::ENTRY_BYTES as usize;

/// The file of a PTDB, with `epoch` as its version: the time in seconds since 1970. Groups whose owner does not exist
/// have none in it.
///
/// # Errors
///
/// If there is more than such a file can have.
pub fn write_prdb(contents: &PrdbContents, epoch: u32) -> Result<Vec<u8>, FileError> {
    let entries = &contents.entries;
    let places = entries.iter().map(|entry| {
        let blocks =
            |ids: usize, first: u32| ids.saturating_sub(first as usize).div_ceil(layout::BLOCK_IDS as usize);
        1 + blocks(entry.list.len(), layout::LIST_IDS)
            + blocks(entry.supergroups.len(), layout::SUPERGROUP_IDS)
    });
    let places: usize = places.sum();
    if places > MAX_PLACES {
        return Err(FileError::TooMuch { what: "users, groups and parts of their lists", limit: MAX_PLACES });
    }
    let length = layout::HEADER_BYTES + places as u32 * layout::ENTRY_BYTES;
    let first_block = layout::HEADER_BYTES + entries.len() as u32 * layout::ENTRY_BYTES;
    let mut writer = Writer { image: Image::new(length as usize), next_block: first_block };
    let [users, groups, foreign] = contents.counts();
    let image = &mut writer.image;
    image.put_u32(layout::HEADER_SIZE, layout::HEADER_BYTES);
    image.put_u32(layout::EOF, length);
    image.put_i32(layout::MAX_GROUP, contents.max_group);
    image.put_i32(layout::MAX_USER, contents.max_user);
    for (at, count) in [(layout::USERS, users), (layout::GROUPS, groups), (layout::FOREIGN, foreign)] {
        image.put_u32(at, count as u32);
    }
    let addresses = || (layout::HEADER_BYTES..).step_by(layout::ENTRY_BYTES as usize);
    for (at, entry) in addresses().zip(entries) {
        writer.put_entry(at, entry)?;
    }
    let by_id: HashMap<i32, u32> = entries.iter().map(|entry| entry.id).zip(addresses()).collect();
    for (at, entry) in addresses().zip(entries).filter(|(_, entry)| entry.is_group()) {
        let owner = by_id.get(&entry.owner).copied();
        let head = owner.map_or(layout::ORPHANS, |owner| owner + layout::OWNED);
        writer.image.put_i32(at + layout::OWNER, if owner.is_some() { entry.owner } else { 0 });
        writer.image.link(head, at + layout::NEXT_OWNED, at);
    }
    Ok(ubik::file(&writer.image.into_bytes(), epoch))
}

struct Writer {
    image: Image,
    /// Where the next block that continues a list goes.
    next_block: u32,
}

impl Writer {
    fn put_entry(&mut self, at: u32, entry: &Entry) -> Result<(), FileError> {
        if entry.name.len() >= layout::NAME_FIELD {
            return Err(FileError::TooMuch { what: "characters in a name", limit: layout::NAME_FIELD - 1 });
        }
        let image = &mut self.image;
        image.put_u32(at + layout::FLAGS, entry.flags.0);
        for (field, number) in [
            (layout::ID, entry.id),
            (layout::CELL, entry.cell_group),
            (layout::OWNER, entry.owner),
            (layout::CREATOR, entry.creator),
            (layout::GROUP_QUOTA, entry.group_quota),
            (layout::USER_QUOTA, entry.user_quota),
        ] {
            image.put_i32(at + field, number);
        }
        for (field, number) in [
            (layout::CREATED, entry.created),
            (layout::ADDED, entry.added),
            (layout::REMOVED, entry.removed),
            (layout::CHANGED, entry.changed),
            (layout::COUNT, entry.list.len() as u32),
            (layout::SUPERGROUP_COUNT, entry.supergroups.len() as u32),
        ] {
            image.put_u32(at + field, number);
        }
        image.put(at + layout::NAME, &entry.name);
        image.link(layout::NAMES + 4 * name_bucket(&entry.name, 31), at + layout::NEXT_NAME, at);
        image.link(layout::IDS + 4 * id_bucket(entry.id as u32), at + layout::NEXT_ID, at);
        self.put_list(at, &entry.list, layout::LIST, layout::LIST_IDS, layout::NEXT);
        let supergroups = &entry.supergroups;
        self.put_list(at, supergroups, layout::SUPERGROUPS, layout::SUPERGROUP_IDS, layout::NEXT_SUPERGROUP);
        Ok(())
    }

    /// Writes a list: so many ids into the entry, the rest into blocks.
    fn put_list(&mut self, entry: u32, list: &[i32], first: u32, first_ids: u32, next: u32) {
        let (own, rest) = list.split_at(list.len().min(first_ids as usize));
        let put_ids = |image: &mut Image, at: u32, ids: &[i32]| {
            (0..).zip(ids).for_each(|(n, id)| image.put_i32(at + 4 * n, *id));
        };
        put_ids(&mut self.image, entry + first, own);
        let mut next_at = entry + next;
        for ids in rest.chunks(layout::BLOCK_IDS as usize) {
            let block = self.next_block;
            self.next_block += layout::ENTRY_BYTES;
            self.image.put_u32(next_at, block);
            let id = self.image.u32(entry + layout::ID);
            self.image.put_u32(block + layout::FLAGS, layout::IS_BLOCK);
            self.image.put_u32(block + layout::ID, id);
            put_ids(&mut self.image, block + layout::LIST, ids);
            next_at = block + layout::NEXT;
        }
    }
}
