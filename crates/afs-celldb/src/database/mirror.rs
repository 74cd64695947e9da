//! An image in memory of the rows that a store has. It changes only to what the store has: it takes the rows of a
//! transaction that was made, or is read anew. What a [`Trial`] does to it is taken back.

use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use super::batch::Writer;
use super::{FILLING, Image, OpenError, REVISION, Revision, Version, key};
use crate::record::BadRow;
use crate::store::{CellStore, Position, Row, RowChange};

/// Rows that are read from the store at a time when a database is loaded: some hundred kilobytes.
pub(super) const LOAD_ROWS: usize = 4096;

/// An image with its revision, and the store that it is of.
#[derive(Debug)]
pub(super) struct Mirror<I> {
    current: RwLock<Current<I>>,
    pub(super) store: Arc<dyn CellStore>,
}

#[derive(Debug)]
struct Current<I> {
    image: I,
    revision: Revision,
}

impl<I: Image> Mirror<I> {
    /// Loads what the store has, at the moment that is returned.
    pub(super) async fn load(store: Arc<dyn CellStore>) -> Result<(Self, Position), OpenError> {
        let (current, position) = load(&*store).await?;
        Ok((Self { current: RwLock::new(current), store }, position))
    }

    /// Looks at the image.
    pub(super) fn read<R>(&self, look: impl FnOnce(&I) -> R) -> R {
        look(&self.current.read().unwrap_or_else(PoisonError::into_inner).image)
    }

    pub(super) fn revision(&self) -> Revision {
        self.current.read().unwrap_or_else(PoisonError::into_inner).revision
    }

    fn write(&self) -> RwLockWriteGuard<'_, Current<I>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the rows of a transaction into the image, unless it has them or later ones already; whether it took them.
    pub(super) fn take(&self, rows: &[RowChange], from: Revision, to: Revision) -> Result<bool, BadRow> {
        // All are read before one is taken: look-ups may go on with the image if one cannot be.
        let parsed: Result<Vec<_>, _> =
            rows.iter().map(|(key, value)| I::parse_row(key, value.as_deref())).collect();
        let parsed = parsed?;
        let mut current = self.write();
        if current.revision != from {
            return Ok(false);
        }
        parsed.into_iter().try_for_each(|row| current.image.set_parsed(row).map(drop))?;
        current.revision = to;
        Ok(true)
    }

    /// Reads everything anew, as it is at the moment that is returned. The writer is locked, so that no transaction is made meanwhile.
    pub(super) async fn reload(&self, _writer: &Writer) -> Result<Position, OpenError> {
        let (current, position) = load(&*self.store).await?;
        *self.write() = current;
        Ok(position)
    }

    /// Begins a trial. Look-ups wait until it ends.
    pub(super) fn try_out(&self) -> Trial<'_, I> {
        Trial { current: self.write(), before: Vec::new() }
    }
}

/// An image on which changes are tried that are not made yet. What they did to it is taken back in the end.
pub(super) struct Trial<'a, I: Image> {
    current: RwLockWriteGuard<'a, Current<I>>,
    before: Vec<I::Parsed>,
}

impl<I: Image> Trial<'_, I> {
    pub(super) fn image(&self) -> &I {
        &self.current.image
    }

    /// The revision that the image is of, without the trial.
    pub(super) fn revision(&self) -> Revision {
        self.current.revision
    }

    /// Takes all of these rows; the first of them are those that it has taken before.
    pub(super) fn take(&mut self, rows: &[RowChange]) {
        for (key, value) in &rows[self.before.len()..] {
            let row = I::parse_row(key, value.as_deref()).expect("rows are made as they are read");
            self.before.push(self.current.image.set_parsed(row).expect("rows are made to fit"));
        }
    }
}

impl<I: Image> Drop for Trial<'_, I> {
    fn drop(&mut self) {
        while let Some(row) = self.before.pop() {
            self.current.image.set_parsed(row).expect("it was there before");
        }
    }
}

async fn load<I: Image>(store: &dyn CellStore) -> Result<(Current<I>, Position), OpenError> {
    load_and_see::<I>(store, |_, _| {}).await
}

/// All rows of a database as they are at one moment, by their keys without the database's prefix, in their order; not that of its
/// revision. They are read as a server reads them.
///
/// # Errors
///
/// If the store or its contents are damaged.
pub async fn rows_of<I: Image>(store: &dyn CellStore) -> Result<Vec<Row>, OpenError> {
    let mut rows = Vec::new();
    load_and_see::<I>(store, |key, value| rows.push((key.to_vec(), value.to_vec()))).await?;
    Ok(rows)
}

/// The version of a database in a store, for which its rows are not read.
///
/// # Errors
///
/// If the store does not answer, or what it has is damaged.
pub async fn version_in<I: Image>(store: &dyn CellStore) -> Result<Version, OpenError> {
    let failed = |source| OpenError::Store { database: I::NAME, source };
    let Some(row) = store.read(&key::<I>(REVISION)).await.map_err(failed)? else {
        return Ok(Version::default());
    };
    let damaged = |source| OpenError::Row { database: I::NAME, key: REVISION.to_vec(), source };
    Revision::from_row(&row).map(|revision| revision.version).map_err(damaged)
}

async fn load_and_see<I: Image>(
    store: &dyn CellStore,
    mut see: impl FnMut(&[u8], &[u8]),
) -> Result<(Current<I>, Position), OpenError> {
    let mut current = Current { image: I::empty(), revision: Revision::default() };
    let failed = |source| OpenError::Store { database: I::NAME, source };
    let (mut after, mut at): (Option<Vec<u8>>, _) = (None, None);
    loop {
        let page = store.scan(I::PREFIX, after.as_deref(), LOAD_ROWS, at).await.map_err(failed)?;
        for (key, value) in &page.rows {
            let row = &key[I::PREFIX.len()..];
            let taken = match row {
                FILLING => return Err(OpenError::Unfinished { database: I::NAME }),
                REVISION => Revision::from_row(value).map(|revision| current.revision = revision),
                _ => {
                    see(row, value);
                    current.image.set_row(row, Some(value))
                }
            };
            taken.map_err(|source| OpenError::Row { database: I::NAME, key: row.to_vec(), source })?;
        }
        if page.rows.len() < LOAD_ROWS {
            return Ok((current, page.position));
        }
        at = Some(page.position);
        after = page.rows.into_iter().next_back().map(|(key, _)| key);
    }
}
