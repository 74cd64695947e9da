//! The names of a directory whose pages may be damaged. Which of them are right is for `tree`.

use crate::keys::Part;
use crate::pages::{PAGE, PAGES_MAX, empty_page};
use crate::records::VnodeRecord;
use crate::{VnodeId, Volume, VolumeError};
use afs_wire::directory::check::Fault;
use afs_wire::directory::layout::{TAG, TAG_AT};
use afs_wire::directory::{Directory, Entry, Slot};
use std::collections::BTreeMap;

/// A name, where it is, and what it stands for.
pub(super) struct Name {
    pub(super) slot: Slot,
    pub(super) name: Vec<u8>,
    pub(super) id: VnodeId,
}

/// The names that can be read.
pub(super) struct Names {
    /// The names, in the order of their places.
    pub(super) names: Vec<Name>,
    /// The pages that there are.
    pub(super) pages: u32,
    /// False if pages are missing or unreadable: names may be lost.
    pub(super) is_whole: bool,
    /// False if its maps, chains or numbers do not fit its names.
    pub(super) is_sound: bool,
}

/// Reads the names of a directory, as far as that is possible.
pub(super) fn read(volume: &Volume, record: &VnodeRecord) -> Result<Names, VolumeError> {
    let status = &record.status;
    let told = u32::try_from(status.length / PAGE as u64).unwrap_or(PAGES_MAX).min(PAGES_MAX);
    let (mut bytes, mut pages, mut is_whole) = (Vec::new(), 0, true);
    while pages < PAGES_MAX {
        let row = match volume.part(status.id.vnode, Part::Page(pages)) {
            Ok(row) => row.filter(|row| is_page(row)),
            Err(VolumeError::Damaged { .. }) => None,
            Err(error) => return Err(error),
        };
        match row {
            Some(row) => bytes.extend_from_slice(&row),
            None if pages < told.max(1) => {
                is_whole = false;
                bytes.extend(empty_page(1));
            }
            None => break,
        }
        pages += 1;
    }
    let counted = u32::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    if counted > pages {
        is_whole = false;
    }
    let mut is_sound = is_whole && counted == pages && status.length == u64::from(pages) * PAGE as u64;
    bytes[..2].copy_from_slice(&(pages as u16).to_be_bytes());
    let directory = Directory::parse(&bytes[..])
        .map_err(|error| VolumeError::damaged(format!("directory {}", status.id.vnode), error.to_string()))?;
    // What dots and twins mean is looked at with the names.
    is_sound &= directory
        .check()
        .iter()
        .all(|fault| matches!(fault, Fault::NoDot | Fault::NoDotDot | Fault::Duplicate(_)));
    let mut found: BTreeMap<Slot, Entry<'_>> = directory.entries().map(|entry| (entry.slot, entry)).collect();
    if !is_sound {
        found.extend(directory.chained().into_iter().map(|entry| (entry.slot, entry)));
    }
    let names = found.into_values().map(|Entry { slot, name, fid }| Name {
        slot,
        name: name.to_vec(),
        id: VnodeId { vnode: fid.vnode, unique: fid.unique },
    });
    Ok(Names { names: names.collect(), pages, is_whole, is_sound })
}

fn is_page(row: &[u8]) -> bool {
    row.len() == PAGE && row[TAG_AT..TAG_AT + 2] == TAG.to_be_bytes()
}
