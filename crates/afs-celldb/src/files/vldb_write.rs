//! Writes a vldb.DB0 from which OpenAFS's vlserver starts (Database file notes 2 and 5).

use crate::vldb::{Entry, Server};

use super::bytes::{Image, id_bucket, name_bucket};
use super::vldb::layout::{self, EntryLayout};
use super::{FileError, MAX_FILE_BYTES, VldbContents, ubik};

/// Servers that have registered, at most: all that the blocks have places for.
const MAX_REGISTERED: usize = (layout::MAX_BLOCKS * (layout::SLOTS - 1)) as usize;

/// The versions that are written: with blocks of servers and without.
const WITH_BLOCKS: u32 = 4;
const WITHOUT_BLOCKS: u32 = 3;

/// VLF_RWEXISTS.
const READ_WRITE_EXISTS: u32 = 0x1000;

/// The id from which on a new database has its volumes.
const FIRST_ID: u32 = 0x2000_0000;

/// The file of a VLDB, with `epoch` as its version: the time in seconds since 1970.
///
/// # Errors
///
/// If there is more than such a file can have.
pub fn write_vldb(contents: &VldbContents, epoch: u32) -> Result<Vec<u8>, FileError> {
    // The number of a server behind these would be another one's in a site, or that of none.
    if contents.servers.len() > layout::SERVER_COUNT as usize {
        return Err(FileError::TooMuch { what: "servers", limit: layout::SERVER_COUNT as usize });
    }
    let is_registered = |server: &&Server| matches!(server, Server::Registered { .. });
    let registered = contents.servers.iter().filter(is_registered).count();
    if registered > MAX_REGISTERED {
        return Err(FileError::TooMuch { what: "registered servers", limit: MAX_REGISTERED });
    }
    let blocks = registered.div_ceil(layout::SLOTS as usize - 1) as u32;
    let first_entry = layout::HEADER_BYTES + blocks * layout::BLOCK_BYTES;
    let most = (MAX_FILE_BYTES as usize - ubik::HEADER_BYTES - 1024 - first_entry as usize)
        / layout::ENTRY_BYTES as usize;
    if contents.entries.len() > most {
        return Err(FileError::TooMuch { what: "volumes", limit: most });
    }
    let length = first_entry + contents.entries.len() as u32 * layout::ENTRY_BYTES;
    let mut image = Image::new(length as usize);
    image.put_u32(layout::VERSION, if blocks > 0 { WITH_BLOCKS } else { WITHOUT_BLOCKS });
    image.put_u32(layout::HEADER_SIZE, layout::HEADER_BYTES);
    image.put_u32(layout::EOF, length);
    let next_id = if contents.max_volume_id == 0 { FIRST_ID } else { contents.max_volume_id };
    image.put_u32(layout::MAX_VOLUME_ID, next_id);
    put_servers(&mut image, &contents.servers, blocks);
    let places = (first_entry..).step_by(layout::ENTRY_BYTES as usize);
    for (place, entry) in places.zip(&contents.entries) {
        put_entry(&mut image, place, entry)?;
    }
    Ok(ubik::file(&image.into_bytes(), epoch))
}

fn put_servers(image: &mut Image, servers: &[Server], blocks: u32) {
    let block_at = |block: u32| layout::HEADER_BYTES + block * layout::BLOCK_BYTES;
    for block in 0..blocks {
        image.put_u32(block_at(block) + layout::FLAGS, layout::IS_BLOCK);
        image.put_u32(block_at(0) + layout::BLOCK_LIST + 4 * block, block_at(block));
    }
    if blocks > 0 {
        image.put_u32(layout::BLOCKS, block_at(0));
    }
    let mut registered = 0;
    for (number, server) in (0..layout::SERVER_COUNT).zip(servers) {
        let word = match server {
            Server::Free { .. } => 0,
            Server::Address(address) => *address,
            Server::Registered { uuid, uniquifier, addresses, has_rxgk: _ } => {
                let (block, slot) = (registered / (layout::SLOTS - 1), registered % (layout::SLOTS - 1) + 1);
                registered += 1;
                let at = block_at(block) + slot * layout::SLOT_BYTES;
                image.put(at, uuid);
                image.put_u32(at + layout::UNIQUIFIER, *uniquifier);
                for (n, address) in (0..15).zip(addresses) {
                    image.put_u32(at + layout::ADDRESSES + 4 * n, *address);
                }
                0xff00_0000 | block << 16 | slot
            }
        };
        image.put_u32(layout::SERVERS + 4 * number, word);
    }
}

fn put_entry(image: &mut Image, place: u32, entry: &Entry) -> Result<(), FileError> {
    let EntryLayout { next_ids, next_name, name, sites, site_count } = EntryLayout::NEW;
    if entry.name.len() >= layout::NAME_FIELD {
        return Err(FileError::TooMuch { what: "characters in a name", limit: layout::NAME_FIELD - 1 });
    }
    if entry.sites.len() > site_count as usize {
        return Err(FileError::TooMuch { what: "sites of a volume", limit: site_count as usize });
    }
    for (table, id) in (0..).zip(entry.ids) {
        image.put_u32(place + 4 * table, id);
        if id != 0 {
            let bucket = layout::IDS + 4 * (table * super::bytes::BUCKETS + id_bucket(id));
            image.link(bucket, place + next_ids + 4 * table, place);
        }
    }
    image.link(layout::NAMES + 4 * name_bucket(&entry.name, 63), place + next_name, place);
    // Flags that are a free place's, or a block's, would make it one.
    let is_other = matches!(entry.flags, layout::IS_FREE | layout::IS_BLOCK);
    image
        .put_u32(place + layout::FLAGS, if is_other { entry.flags | READ_WRITE_EXISTS } else { entry.flags });
    image.put_u32(place + layout::LOCK_ID, entry.lock_afs_id);
    image.put_u32(place + layout::LOCK_TIME, entry.lock_timestamp);
    image.put_u32(place + layout::CLONE, entry.clone_id);
    image.put(place + name, &entry.name);
    for n in 0..site_count {
        let site = entry.sites.get(n as usize);
        let bytes = site.map_or([layout::NO_SERVER; 3], |site| [site.server.0, site.partition, site.flags]);
        for (column, byte) in (0..).zip(bytes) {
            image.put(place + sites + column * site_count + n, &[byte]);
        }
    }
    Ok(())
}
