//! Files in the folders of data that no row names. They may have what somebody misses, so they are put apart and not removed.

use super::{Ledger, undo};
use crate::VolumeError;
use crate::keys;
use crate::records::{self, ChunkRecord};
use crate::shared::Shared;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The folder for them.
const APART: &str = "orphans";

/// Moves them to a folder of their own.
pub(super) fn put_apart(shared: &Arc<Shared>, ledger: &mut Ledger<'_>) -> Result<(), VolumeError> {
    let disk = shared.store.disk();
    let list = |folder: &str| disk.list(folder).map_err(VolumeError::io(format!("cannot list {folder}")));
    let mut folders = BTreeSet::new();
    for number in list("data")? {
        let folder = format!("data/{number}");
        for name in list(&folder)? {
            let is_ours = match records::parse_file_name(&name) {
                None => false,
                Some((file, key)) => {
                    // What cannot be read may name it.
                    let is_named = match shared.store.get(&key.key()) {
                        Ok(row) => row.is_some_and(|row| {
                            ChunkRecord::decode(&row)
                                .map_or(true, |chunk| chunk.is_some_and(|chunk| chunk.file == file))
                        }),
                        Err(_) => true,
                    };
                    let is_garbage = shared.store.get(&keys::garbage(file)).map_or(true, |row| row.is_some());
                    is_named || is_garbage || shared.is_begun(file)
                }
            };
            if is_ours {
                continue;
            }
            let (from, to) = (format!("{folder}/{name}"), format!("{APART}/{number}.{name}"));
            if let Some(undo) = &mut ledger.undo {
                undo::keep_move(*undo, &from, &to)?;
            }
            disk.rename(&from, &to).map_err(VolumeError::io(format!("cannot move {from} to {to}")))?;
            ledger.say(None, from, format!("moves it to {to}: no row names it"));
            folders.insert(folder.clone());
        }
    }
    if !folders.is_empty() {
        folders.extend([APART.to_owned(), String::new()]);
    }
    folders.iter().try_for_each(|folder| {
        disk.sync_folder(folder).map_err(VolumeError::io(format!("cannot sync the folder {folder}")))
    })
}
