//! Puts the contents of a whole database into a store: a database that is moved in.
//!
//! They are too many rows for one transaction. So a mark is set first, with which no server opens the database, and the last
//! transaction takes it away. If this ends before that, it is done again from the beginning.

use std::fmt;

use crate::database::{FILLING, Image, REVISION, Revision, Version, key};
use crate::store::{CellStore, Outcome, Row, StoreError, Transaction};

/// How much a transaction may have.
#[derive(Clone, Copy, Debug)]
struct Limits {
    rows: usize,
    bytes: usize,
}

impl Limits {
    /// A few megabytes, and a wait for the disk behind each.
    const OWN: Self = Self { rows: 20_000, bytes: 16 << 20 };
    /// etcd takes requests of at most 1.5 MiB.
    const SHARED: Self = Self { rows: 1000, bytes: 512 << 10 };
}

/// What is done with a database that has contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays as it is, and this fails.
    Keep,
    /// They are removed.
    Replace,
}

/// Why a database was not filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillError {
    /// It has contents.
    NotEmpty {
        /// Which database.
        database: &'static str,
    },
    /// Somebody else changed it meanwhile.
    Changed {
        /// Which database.
        database: &'static str,
    },
    /// The store failed.
    Store {
        /// Which database.
        database: &'static str,
        /// How.
        source: StoreError,
    },
}

impl fmt::Display for FillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty { database } => write!(f, "the {database} has contents already"),
            Self::Changed { database } => {
                write!(
                    f,
                    "somebody else changed the {database} meanwhile: stop the servers first, then do it again"
                )
            }
            Self::Store { database, source } => write!(f, "the {database} is not whole: {source}"),
        }
    }
}

impl std::error::Error for FillError {}

/// Makes a database of rows, whose keys are given without its prefix; says how many they were. `now` dates it, in seconds
/// since 1970. No server may have the database open.
///
/// # Errors
///
/// If it has contents that are to be kept; if the store fails, and then no server opens the database until this was
/// done again.
pub async fn fill<I: Image>(
    store: &dyn CellStore,
    rows: impl Iterator<Item = Row>,
    existing: Existing,
    now: u32,
) -> Result<u64, FillError> {
    let limits = if store.shared().is_some() { Limits::SHARED } else { Limits::OWN };
    fill_within::<I>(store, rows, existing, now, limits).await
}

async fn fill_within<I: Image>(
    store: &dyn CellStore,
    rows: impl Iterator<Item = Row>,
    existing: Existing,
    now: u32,
    limits: Limits,
) -> Result<u64, FillError> {
    let failed = |source| FillError::Store { database: I::NAME, source };
    let mark = key::<I>(FILLING);
    let revision = store.read(&key::<I>(REVISION)).await.map_err(failed)?;
    let is_begun = store.read(&mark).await.map_err(failed)?.is_some();
    if revision.is_some() && !is_begun && existing == Existing::Keep {
        return Err(FillError::NotEmpty { database: I::NAME });
    }
    let before = revision.as_deref().and_then(|row| Revision::from_row(row).ok()).unwrap_or_default();
    let commit = async |expected: Vec<(Vec<u8>, Option<Vec<u8>>)>, changes| match store
        .commit(Transaction { expected, changes, witness: None })
        .await
        .map_err(failed)?
    {
        Outcome::Committed => Ok(()),
        Outcome::Conflict => Err(FillError::Changed { database: I::NAME }),
    };
    let unchanged = (key::<I>(REVISION), revision);
    commit(vec![unchanged.clone()], vec![(mark.clone(), Some(Vec::new()))]).await?;
    // What servers write meanwhile, which do not know of the mark, must not be lost without a word.
    let expected = || vec![unchanged.clone()];
    let mut after = None;
    loop {
        let page = store.scan(I::PREFIX, after.as_deref(), limits.rows, None).await.map_err(failed)?;
        let old = page.rows;
        let Some((last, _)) = old.last() else { break };
        after = Some(last.clone());
        let is_row = |key: &[u8]| key != mark && key != unchanged.0;
        let removed: Vec<_> =
            old.into_iter().filter(|(key, _)| is_row(key)).map(|(key, _)| (key, None)).collect();
        if !removed.is_empty() {
            commit(expected(), removed).await?;
        }
    }
    let (mut count, mut bytes) = (0, 0);
    let mut changes = Vec::new();
    for (row, value) in rows {
        let row = key::<I>(&row);
        let length = row.len() + value.len();
        if changes.len() == limits.rows || bytes + length > limits.bytes && !changes.is_empty() {
            commit(expected(), std::mem::take(&mut changes)).await?;
            bytes = 0;
        }
        changes.push((row, Some(value)));
        (count, bytes) = (count + 1, bytes + length);
    }
    if !changes.is_empty() {
        commit(expected(), changes).await?;
    }
    // Later than whatever was there, for those who compare.
    let version = Version { epoch: now.max(before.version.epoch.saturating_add(1)), counter: 1 };
    commit(expected(), vec![(unchanged.0.clone(), Revision::of(version).to_row()), (mark, None)]).await?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::database::{Database, OpenError};
    use crate::files::{VldbContents, read_vldb};
    use crate::store::memory::{Failure, MemoryStore};
    use crate::testing::now;
    use crate::vldb::Vldb;

    fn sample() -> VldbContents {
        read_vldb(include_bytes!("../tests/data/vldb.DB0"), None).unwrap().0
    }

    fn fill_sample(store: &MemoryStore, existing: Existing) -> Result<u64, FillError> {
        now(fill_within::<Vldb>(store, sample().rows(), existing, 1000, Limits { rows: 3, bytes: 200 }))
    }

    fn open(store: &Arc<MemoryStore>) -> Result<Database<Vldb>, OpenError> {
        now(Database::open(Arc::clone(store) as Arc<dyn CellStore>))
    }

    #[test]
    fn a_database_that_was_filled_has_what_the_file_has() {
        let store = Arc::new(MemoryStore::new());
        assert_eq!(fill_sample(&store, Existing::Keep), Ok(1 + 4 + 7));
        let database = open(&store).unwrap();
        assert_eq!(database.read(VldbContents::of), sample());
        assert_eq!(database.version(), Version { epoch: 1000, counter: 1 });
    }

    #[test]
    fn contents_are_kept_or_replaced_as_a_whole() {
        let store = Arc::new(MemoryStore::new());
        fill_sample(&store, Existing::Keep).unwrap();
        assert_eq!(fill_sample(&store, Existing::Keep), Err(FillError::NotEmpty { database: "VLDB" }));
        let less = VldbContents { entries: vec![], ..sample() };
        now(fill::<Vldb>(&*store, less.rows(), Existing::Replace, 5)).unwrap();
        let database = open(&store).unwrap();
        assert_eq!(database.read(VldbContents::of), less);
        assert_eq!(database.version().epoch, 1001, "it is later than what was there");
    }

    #[test]
    fn a_database_that_was_filled_in_part_is_not_opened_until_it_is_filled_again() {
        let store = Arc::new(MemoryStore::new());
        for lost in 1..6 {
            store.fail_commit(lost, Failure::Lost);
            assert!(matches!(fill_sample(&store, Existing::Keep), Err(FillError::Store { .. })), "{lost}");
            assert_eq!(open(&store).unwrap_err(), OpenError::Unfinished { database: "VLDB" }, "{lost}");
        }
        fill_sample(&store, Existing::Keep).unwrap();
        assert_eq!(open(&store).unwrap().read(VldbContents::of), sample());
    }
}
