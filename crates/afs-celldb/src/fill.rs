//! Puts the contents of a whole database into a store: a database that is moved in.
//!
//! They are too many rows for one transaction. So a mark is set first, with which no server opens the database, and the last
//! transaction takes it away. If this ends before that, it is done again from the beginning.
//!
//! The mark says how far this has got, and each transaction moves it on by one. A shared store may make a copy of a transaction
//! late, which a stalled machine had kept: it finds another mark, or none, and changes nothing.

use std::fmt;

use crate::database::{FILLING, Image, REVISION, Revision, Stamp, Version, key};
use crate::record::PutFields;
use crate::store::{CellStore, Outcome, Row, RowChange, StoreError, Transaction};

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

/// Sees whether a database may be filled whose contents are to be kept: there are none, or those of a filling that was cut off.
///
/// # Errors
///
/// If it has contents, or the store fails.
pub async fn check_empty<I: Image>(store: &dyn CellStore) -> Result<(), FillError> {
    let failed = |source| FillError::Store { database: I::NAME, source };
    let has_contents = store.read(&key::<I>(REVISION)).await.map_err(failed)?.is_some();
    let is_begun = store.read(&key::<I>(FILLING)).await.map_err(failed)?.is_some();
    if has_contents && !is_begun { Err(FillError::NotEmpty { database: I::NAME }) } else { Ok(()) }
}

/// Makes a database of rows, whose keys are given without its prefix; says how many they were. `now` dates it, in seconds
/// since 1970. `writer` is a number that no other process has that changes the database: by chance. No server may have
/// the database open.
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
    writer: u64,
) -> Result<u64, FillError> {
    let limits = if store.shared().is_some() { Limits::SHARED } else { Limits::OWN };
    fill_within::<I>(store, rows, existing, now, writer, limits).await
}

async fn fill_within<I: Image>(
    store: &dyn CellStore,
    rows: impl Iterator<Item = Row>,
    existing: Existing,
    now: u32,
    writer: u64,
    limits: Limits,
) -> Result<u64, FillError> {
    if existing == Existing::Keep {
        check_empty::<I>(store).await?;
    }
    let failed = |source| FillError::Store { database: I::NAME, source };
    let revision = store.read(&key::<I>(REVISION)).await.map_err(failed)?;
    let mark = store.read(&key::<I>(FILLING)).await.map_err(failed)?;
    let before = revision.as_deref().and_then(|row| Revision::from_row(row).ok()).unwrap_or_default();
    // What servers write meanwhile, which do not know of the mark, must not be lost without a word.
    let unchanged = (key::<I>(REVISION), revision);
    let mut filling = Filling { store, key: key::<I>(FILLING), mark, unchanged, writer, step: 0 };
    filling.commit::<I>(Vec::new()).await?;
    let mut after = None;
    loop {
        let page = store.scan(I::PREFIX, after.as_deref(), limits.rows, None).await.map_err(failed)?;
        let old = page.rows;
        let Some((last, _)) = old.last() else { break };
        after = Some(last.clone());
        let is_row = |key: &[u8]| key != filling.key && key != filling.unchanged.0;
        let removed: Vec<_> =
            old.into_iter().filter(|(key, _)| is_row(key)).map(|(key, _)| (key, None)).collect();
        if !removed.is_empty() {
            filling.commit::<I>(removed).await?;
        }
    }
    let (mut count, mut bytes) = (0, 0);
    let mut changes = Vec::new();
    for (row, value) in rows {
        let row = key::<I>(&row);
        let length = row.len() + value.len();
        if changes.len() == limits.rows || bytes + length > limits.bytes && !changes.is_empty() {
            filling.commit::<I>(std::mem::take(&mut changes)).await?;
            bytes = 0;
        }
        changes.push((row, Some(value)));
        (count, bytes) = (count + 1, bytes + length);
    }
    if !changes.is_empty() {
        filling.commit::<I>(changes).await?;
    }
    // Later than whatever was there, for those who compare.
    let version = Version { epoch: now.max(before.version.epoch.saturating_add(1)), counter: 1 };
    filling.finish::<I>(version, now).await?;
    Ok(count)
}

/// A database that is being filled.
struct Filling<'a> {
    store: &'a dyn CellStore,
    /// The key of the mark.
    key: Vec<u8>,
    /// The mark as it is.
    mark: Option<Vec<u8>>,
    /// The row of the revision, until the end.
    unchanged: RowChange,
    writer: u64,
    /// Transactions that were begun.
    step: u64,
}

impl Filling<'_> {
    /// Makes changes, and moves the mark on.
    async fn commit<I: Image>(&mut self, mut changes: Vec<RowChange>) -> Result<(), FillError> {
        self.step += 1;
        let mut next = Vec::new();
        next.put_u64(self.writer);
        next.put_u64(self.step);
        changes.push((self.key.clone(), Some(next.clone())));
        self.make::<I>(changes, Some(self.key.clone())).await?;
        self.mark = Some(next);
        Ok(())
    }

    /// Takes the mark away. In a shared store the row of this process's last transaction tells whether that was done, as it does of
    /// those of servers.
    async fn finish<I: Image>(mut self, version: Version, now: u32) -> Result<(), FillError> {
        self.step += 1;
        let stamp = self.store.shared().map(|_| Stamp { writer: self.writer, sequence: self.step });
        let witness = stamp.map(|stamp| (stamp.key(I::PREFIX), stamp.to_row(now)));
        let revision = (self.unchanged.0.clone(), Revision { version, stamp }.to_row());
        let mut changes = vec![revision, (self.key.clone(), None)];
        changes.extend(witness.clone().map(|(key, row)| (key, Some(row))));
        self.make::<I>(changes, witness.map(|(key, _)| key)).await
    }

    async fn make<I: Image>(
        &self,
        changes: Vec<RowChange>,
        witness: Option<Vec<u8>>,
    ) -> Result<(), FillError> {
        let expected = vec![self.unchanged.clone(), (self.key.clone(), self.mark.clone())];
        let made = self.store.commit(Transaction { expected, changes, witness }).await;
        match made.map_err(|source| FillError::Store { database: I::NAME, source })? {
            Outcome::Committed => Ok(()),
            Outcome::Conflict => Err(FillError::Changed { database: I::NAME }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::database::{Database, OpenError};
    use crate::files::{VldbContents, read_vldb};
    use crate::store::memory::{Failure, MemoryStore};
    use crate::store::{Changes, Page, Position, SharedStore, StoreFuture};
    use crate::testing::now;
    use crate::vldb::Vldb;

    fn sample() -> VldbContents {
        read_vldb(include_bytes!("../tests/data/vldb.DB0"), None).unwrap().0
    }

    const FEW: Limits = Limits { rows: 3, bytes: 200 };

    fn fill_sample(store: &MemoryStore, existing: Existing) -> Result<u64, FillError> {
        now(fill_within::<Vldb>(store, sample().rows(), existing, 1000, 7, FEW))
    }

    /// A store of several machines, each of which gets a copy of each transaction: a second one at once, whose answer is the one that
    /// counts, and those of all earlier ones again and again, the oldest last.
    #[derive(Debug, Default)]
    struct Copies {
        rows: Arc<MemoryStore>,
        earlier: Mutex<Vec<Transaction>>,
    }

    impl Copies {
        async fn make(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
            self.rows.commit(transaction.clone()).await?;
            let mut answer = self.rows.commit(transaction.clone()).await?;
            if let Some(witness) = &transaction.witness {
                let value = transaction.changes.iter().find(|(key, _)| key == witness).unwrap().1.clone();
                if self.rows.read(witness).await? == value {
                    answer = Outcome::Committed;
                }
            }
            let mut earlier = self.earlier.lock().unwrap();
            earlier.push(transaction);
            for copy in earlier.iter().rev() {
                let _ = now(self.rows.commit(copy.clone()));
            }
            Ok(answer)
        }
    }

    impl CellStore for Copies {
        fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
            self.rows.read(key)
        }

        fn scan<'a>(
            &'a self,
            prefix: &'a [u8],
            after: Option<&'a [u8]>,
            limit: usize,
            at: Option<Position>,
        ) -> StoreFuture<'a, Page> {
            self.rows.scan(prefix, after, limit, at)
        }

        fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome> {
            Box::pin(self.make(transaction))
        }

        fn shared(&self) -> Option<&dyn SharedStore> {
            Some(self)
        }
    }

    impl SharedStore for Copies {
        fn watch<'a>(&'a self, _: &'a [u8], _: Position) -> StoreFuture<'a, Box<dyn Changes>> {
            Box::pin(std::future::ready(Err(StoreError::new("watching", "nobody does"))))
        }

        fn machines(&self) -> usize {
            2
        }
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
        now(fill::<Vldb>(&*store, less.rows(), Existing::Replace, 5, 8)).unwrap();
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

    #[test]
    fn copies_of_transactions_that_arrive_late_change_nothing() {
        let store = Copies::default();
        let filled = now(fill_within::<Vldb>(&store, sample().rows(), Existing::Keep, 1000, 7, FEW));
        assert_eq!(filled, Ok(1 + 4 + 7));
        assert_eq!(open(&store.rows).unwrap().read(VldbContents::of), sample());
        // Again, over rows that are removed first, and after a part was done by another one.
        let mark = (key::<Vldb>(FILLING), Some(b"of another".to_vec()));
        now(store.rows.commit(Transaction { changes: vec![mark], ..Transaction::default() })).unwrap();
        let again = now(fill_within::<Vldb>(&store, sample().rows(), Existing::Replace, 1000, 8, FEW));
        assert_eq!(again, Ok(1 + 4 + 7));
        assert_eq!(open(&store.rows).unwrap().read(VldbContents::of), sample());
    }

    #[test]
    fn two_that_fill_a_database_at_once_are_not_taken_for_one() {
        let store = Copies::default();
        let mut other = false;
        let contents = sample();
        let rows = contents.rows().inspect(|_| {
            if !std::mem::replace(&mut other, true) {
                now(fill_within::<Vldb>(&store, sample().rows(), Existing::Keep, 1000, 8, FEW)).unwrap();
            }
        });
        let first = now(fill_within::<Vldb>(&store, rows, Existing::Keep, 1000, 7, FEW));
        assert_eq!(first, Err(FillError::Changed { database: "VLDB" }));
        assert_eq!(open(&store.rows).unwrap().read(VldbContents::of), sample());
    }
}
