//! A new file for the B-tree, with all rows of one whose rows can be read, while redb cannot read its own notes in it: it would open it
//! never again, or take no more rows.

use super::btree::{Backend, Failure, begin, close, open, whole};
use super::btree::{NAME, ROWS, ROWS_NAME, STATE, SUMS};
use super::checked::CheckedFile;
use super::past_damage::Pages;
use super::{Key, Row};
use crate::StoreError;
use crate::disk::Disk;
use std::io;

/// A copy of the rows that is made, and one that is whole.
const BEGUN: &str = "rows.redb.begun";
const NEW: &str = "rows.redb.new";
/// Rows that are copied together: some megabytes.
const ROWS_AT_ONCE: usize = 1024;

/// Copies all rows, and the numbers that redb has besides, into a new file, which is whole if it has its name.
///
/// # Errors
///
/// Some of them cannot be read, or there is no space. Nothing has changed then.
pub(super) fn copy(
    disk: &dyn Disk,
    file: &CheckedFile,
    numbers: [(&str, u64); 2],
    cache_bytes: usize,
) -> Result<(), Failure> {
    let copy = || {
        let db = open(Backend(disk.create(BEGUN)?), cache_bytes, false)?;
        let put = |rows: &[Row], numbers: &[(&str, u64)]| {
            let tx = begin(&db)?;
            {
                let mut table = tx.open_table(ROWS)?;
                for (key, value) in rows {
                    table.insert(&*key.0, &**value)?;
                }
                let mut state = tx.open_table(STATE)?;
                for (name, number) in numbers {
                    state.insert(name, number)?;
                }
            }
            Ok(tx.commit()?)
        };
        let pages = Pages::new(file)?;
        let table = pages.table(ROWS_NAME, None)?;
        let mut from = Key(Vec::new());
        loop {
            let rows = pages.rows(table, &from.0, None, ROWS_AT_ONCE)?;
            let Some((last, _)) = rows.last() else { break };
            from = last.clone();
            from.0.push(0);
            whole(|| put(&rows, &[]))?;
        }
        whole(|| put(&[], &numbers))?;
        close(Some(db))?;
        disk.rename(BEGUN, NEW)?;
        Ok(disk.sync_folder("")?)
    };
    copy().inspect_err(|_: &Failure| _ = disk.remove(BEGUN))
}

/// Puts the copy in the place of the damaged file, whose checksums go before. If that ends early, the next start goes on.
pub(super) fn put_copy(disk: &dyn Disk) -> Result<(), StoreError> {
    let put = || {
        match disk.remove(SUMS) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => disk.sync_folder("")?,
        }
        disk.rename(NEW, NAME)?;
        disk.sync_folder("")
    };
    put().map_err(StoreError::io(format!("cannot put {NEW} in the place of {NAME}")))
}

/// Goes on where a process has ended while it put a copy in the place of a damaged file. A copy that it had not begun to put there goes: the
/// file may take rows that the copy has not.
pub(super) fn go_on(disk: &dyn Disk) -> Result<(), StoreError> {
    let has = |name| match disk.open(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        result => result.map(|_| true).map_err(StoreError::io(format!("cannot open {name}"))),
    };
    match (has(NEW)?, has(SUMS)?) {
        (true, false) => put_copy(disk),
        (true, true) => disk.remove(NEW).map_err(StoreError::io(format!("cannot remove {NEW}"))),
        (false, _) => Ok(()),
    }
}
