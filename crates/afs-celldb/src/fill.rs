//! Puts the contents of a whole database into a store: a database that is moved in.
//!
//! They are too many rows for one transaction. So a mark is set first, with which no server opens the database, and the last
//! transaction takes it away. If this ends before that, it is done again from the beginning.
//!
//! Servers may run. The mark comes with another revision, on which no server's image rests: so from then on no server makes a change, before
//! a row is removed. They find the mark, answer look-ups from memory, and read the database anew when the mark is gone; until they have,
//! they refuse look-ups.
//!
//! The mark says how far this has got, and each transaction moves it on by one. A shared store may make a copy of a transaction
//! late, which a stalled machine had kept: it finds another mark, or none, and changes nothing.

use std::marker::PhantomData;
use std::time::Duration;

use crate::database::{FILLING, FRESH_FOR, Image, REVISION, Revision, Stamp, Version, key};
use crate::record::PutFields;
use crate::store::{CellStore, Outcome, Row, RowChange, StoreError, Transaction};

/// How much a transaction may have, and how long nobody may have changed the contents that are replaced.
#[derive(Clone, Copy, Debug)]
struct Limits {
    rows: usize,
    bytes: usize,
    quiet: Duration,
}

impl Limits {
    /// A few megabytes, and a wait for the disk behind each.
    const OWN: Self = Self { rows: 20_000, bytes: 16 << 20, quiet: Duration::ZERO };
    /// etcd takes requests of at most 1.5 MiB. Whoever replaces the databases of a cell that is in use should hear of it.
    const SHARED: Self = Self { rows: 1000, bytes: 512 << 10, quiet: Duration::from_secs(1) };
}

/// The treatment of a database that has contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays as it is, and this fails.
    Keep,
    /// They are removed.
    Replace,
}

/// The reason why a database was not filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// It has contents.
    #[error("the {database} has contents already")]
    NotEmpty {
        /// The database.
        database: &'static str,
    },
    /// Servers change it, and nothing was done.
    #[error("servers change the {database} just now, and nothing was replaced: stop them first")]
    InUse {
        /// The database.
        database: &'static str,
    },
    /// Somebody else filled it meanwhile.
    #[error("somebody else filled the {database} meanwhile: do it again")]
    Changed {
        /// The database.
        database: &'static str,
    },
    /// The store failed.
    #[error("the {database} is not whole: {source}")]
    Store {
        /// The database.
        database: &'static str,
        /// The store's error.
        source: StoreError,
    },
}

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

/// Makes a database of rows, whose keys are given without its prefix; says how many they were: [`begin`] and [`Filling::fill`].
///
/// # Errors
///
/// Those of both.
pub async fn fill<I: Image>(
    store: &dyn CellStore,
    rows: impl Iterator<Item = Row>,
    existing: Existing,
    now: u32,
    writer: u64,
) -> Result<u64, FillError> {
    begin::<I>(store, existing, now, writer).await?.fill(rows).await
}

/// Begins to fill a database: from then on no server changes it, and none opens it. Nothing is removed yet. `now` dates the
/// database, in seconds since 1970. `writer` is a number that no other process has that changes it: by chance. The caller has to be in a
/// tokio runtime if the store is shared.
///
/// # Errors
///
/// If it has contents that are to be kept; if a server changes what is to be replaced; if the store fails.
pub async fn begin<I: Image>(
    store: &dyn CellStore,
    existing: Existing,
    now: u32,
    writer: u64,
) -> Result<Filling<'_, I>, FillError> {
    let limits = if store.shared().is_some() { Limits::SHARED } else { Limits::OWN };
    begin_within(store, existing, now, writer, limits).await
}

async fn begin_within<I: Image>(
    store: &dyn CellStore,
    existing: Existing,
    now: u32,
    writer: u64,
    limits: Limits,
) -> Result<Filling<'_, I>, FillError> {
    if existing == Existing::Keep {
        check_empty::<I>(store).await?;
    }
    let failed = |source| FillError::Store { database: I::NAME, source };
    let revision = store.read(&key::<I>(REVISION)).await.map_err(failed)?;
    let mark = store.read(&key::<I>(FILLING)).await.map_err(failed)?;
    if revision.is_some() && mark.is_none() && !limits.quiet.is_zero() {
        tokio::time::sleep(limits.quiet).await;
    }
    let before = revision.as_deref().and_then(|row| Revision::from_row(row).ok()).unwrap_or_default();
    let mut filling = Filling {
        store,
        limits,
        now,
        before,
        key: key::<I>(FILLING),
        was_unfinished: mark.is_some(),
        mark,
        revision: (key::<I>(REVISION), revision),
        writer,
        step: 0,
        image: PhantomData,
    };
    // What is changed has another revision, which is what servers look at.
    let next = (filling.revision.0.clone(), before.next(now, filling.next_stamp()).to_row());
    match filling.commit(vec![next.clone()]).await {
        Err(FillError::Changed { database }) => return Err(FillError::InUse { database }),
        begun => begun?,
    }
    filling.revision = next;
    Ok(filling)
}

/// A database that is being filled.
#[derive(Debug)]
#[must_use = "no server opens the database until it is filled, or that is given up"]
pub struct Filling<'a, I> {
    store: &'a dyn CellStore,
    limits: Limits,
    now: u32,
    /// What was there.
    before: Revision,
    /// The key of the mark.
    key: Vec<u8>,
    /// True if somebody had begun to fill it before, and was cut off.
    was_unfinished: bool,
    /// The mark as it is.
    mark: Option<Vec<u8>>,
    /// The row of the revision as it is.
    revision: RowChange,
    writer: u64,
    /// Transactions that were begun.
    step: u64,
    image: PhantomData<fn() -> I>,
}

impl<I: Image> Filling<'_, I> {
    /// Removes what is there, and makes a database of rows, whose keys are given without its prefix; says how many they were.
    ///
    /// # Errors
    ///
    /// If the store fails, or somebody else fills the database too; then no server opens the database until it is filled again.
    pub async fn fill(mut self, rows: impl Iterator<Item = Row>) -> Result<u64, FillError> {
        let limits = self.limits;
        let failed = |source| FillError::Store { database: I::NAME, source };
        let mut after = None;
        loop {
            let page = self.store.scan(I::PREFIX, after.as_deref(), limits.rows, None).await;
            let old = page.map_err(failed)?.rows;
            let Some((last, _)) = old.last() else { break };
            after = Some(last.clone());
            let is_row = |key: &[u8]| key != self.key && key != self.revision.0;
            let removed: Vec<_> =
                old.into_iter().filter(|(key, _)| is_row(key)).map(|(key, _)| (key, None)).collect();
            if !removed.is_empty() {
                self.commit(removed).await?;
            }
        }
        let (mut count, mut bytes) = (0, 0);
        let mut changes = Vec::new();
        for (row, value) in rows {
            let row = key::<I>(&row);
            let length = row.len() + value.len();
            if changes.len() == limits.rows || bytes + length > limits.bytes && !changes.is_empty() {
                self.commit(std::mem::take(&mut changes)).await?;
                bytes = 0;
            }
            changes.push((row, Some(value)));
            (count, bytes) = (count + 1, bytes + length);
        }
        if !changes.is_empty() {
            self.commit(changes).await?;
        }
        // Later than whatever was there, for those who compare.
        let epoch = self.now.max(self.before.version.epoch.saturating_add(1));
        let stamp = self.next_stamp();
        self.finish(Revision { version: Version { epoch, counter: 1 }, stamp }).await?;
        Ok(count)
    }

    /// Leaves the database as it was: one that an earlier import has left unfinished stays so.
    ///
    /// # Errors
    ///
    /// As [`Self::fill`].
    pub async fn give_up(self) -> Result<(), FillError> {
        if self.was_unfinished {
            return Ok(());
        }
        // Not the one that was there: a transaction that rested on it may be on its way still, and its caller was told that it is not made.
        let stamp = self.next_stamp();
        let revision = self.before.next(self.now, stamp).next(self.now, stamp);
        self.finish(revision).await
    }

    /// What tells the next transaction from all others in a shared store.
    fn next_stamp(&self) -> Option<Stamp> {
        self.store.shared().map(|_| Stamp { writer: self.writer, sequence: self.step + 1 })
    }

    /// Makes changes, and moves the mark on.
    async fn commit(&mut self, mut changes: Vec<RowChange>) -> Result<(), FillError> {
        self.step += 1;
        let mut next = Vec::new();
        next.put_u64(self.writer);
        next.put_u64(self.step);
        changes.push((self.key.clone(), Some(next.clone())));
        self.make(changes, Some(self.key.clone())).await?;
        self.mark = Some(next);
        Ok(())
    }

    /// Takes the mark away. In a shared store the row of this process's last transaction tells whether that was done, as it does of
    /// those of servers.
    async fn finish(self, revision: Revision) -> Result<(), FillError> {
        let witness = revision.stamp.map(|stamp| (stamp.key(I::PREFIX), stamp.to_row(self.now)));
        let revision = (self.revision.0.clone(), revision.to_row());
        let mut changes = vec![revision, (self.key.clone(), None)];
        changes.extend(witness.clone().map(|(key, row)| (key, Some(row))));
        self.make(changes, witness.map(|(key, _)| key)).await?;
        if !self.limits.quiet.is_zero() {
            // As with each change: who looks after this is told has to see it.
            tokio::time::sleep(FRESH_FOR).await;
        }
        Ok(())
    }

    async fn make(&self, changes: Vec<RowChange>, witness: Option<Vec<u8>>) -> Result<(), FillError> {
        let expected = vec![self.revision.clone(), (self.key.clone(), self.mark.clone())];
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
    use crate::vldb::{VlError, Vldb};

    fn sample() -> VldbContents {
        read_vldb(include_bytes!("../tests/data/vldb.DB0"), None).unwrap().0
    }

    const FEW: Limits = Limits { rows: 3, bytes: 200, quiet: Duration::ZERO };

    async fn fill_few(
        store: &dyn CellStore,
        rows: impl Iterator<Item = Row>,
        existing: Existing,
        writer: u64,
    ) -> Result<u64, FillError> {
        begin_within::<Vldb>(store, existing, 1000, writer, FEW).await?.fill(rows).await
    }

    fn fill_sample(store: &MemoryStore, existing: Existing) -> Result<u64, FillError> {
        now(fill_few(store, sample().rows(), existing, 7))
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

    /// A store in which a server makes a change whenever somebody has looked for the mark.
    #[derive(Debug)]
    struct Busy {
        rows: Arc<MemoryStore>,
        database: Database<Vldb>,
    }

    impl CellStore for Busy {
        fn read<'a>(&'a self, row: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
            let value = self.rows.read(row);
            if row == key::<Vldb>(FILLING) {
                now(self.database.change(1, |vldb, rows| vldb.take_ids(1, rows))).unwrap();
            }
            value
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
            self.rows.commit(transaction)
        }
    }

    fn open(store: &Arc<MemoryStore>) -> Result<Database<Vldb>, OpenError> {
        now(Database::open(Arc::clone(store) as Arc<dyn CellStore>))
    }

    /// An import was cut off, and the next one did not begin, as a server changed the other database: the first one was taken for whole.
    #[test]
    fn what_an_import_has_left_half_filled_stays_so_when_the_next_one_gives_up() {
        let store = Arc::new(MemoryStore::new());
        fill_sample(&store, Existing::Keep).unwrap();
        drop(now(begin_within::<Vldb>(&*store, Existing::Replace, 1000, 8, FEW)).unwrap());
        now(now(begin_within::<Vldb>(&*store, Existing::Replace, 1000, 9, FEW)).unwrap().give_up()).unwrap();
        assert!(matches!(open(&store), Err(OpenError::Unfinished { .. })));
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
        let filled = now(fill_few(&store, sample().rows(), Existing::Keep, 7));
        assert_eq!(filled, Ok(1 + 4 + 7));
        assert_eq!(open(&store.rows).unwrap().read(VldbContents::of), sample());
        // Again, over rows that are removed first, and after a part was done by another one.
        let mark = (key::<Vldb>(FILLING), Some(b"of another".to_vec()));
        now(store.rows.commit(Transaction { changes: vec![mark], ..Transaction::default() })).unwrap();
        let again = now(fill_few(&store, sample().rows(), Existing::Replace, 8));
        assert_eq!(again, Ok(1 + 4 + 7));
        assert_eq!(open(&store.rows).unwrap().read(VldbContents::of), sample());
    }

    #[test]
    fn what_was_begun_and_given_up_has_changed_nothing_and_keeps_changes_out_meanwhile() {
        let store = Arc::new(MemoryStore::new());
        fill_sample(&store, Existing::Keep).unwrap();
        let take = |database: &Database<Vldb>| {
            now(database.change(1, |vldb, rows| vldb.take_ids(1, rows))).map_err(VlError::code)
        };
        let database = open(&store).unwrap();
        let first = take(&database).unwrap();
        let filling = now(begin::<Vldb>(&*store, Existing::Replace, 1000, 9)).unwrap();
        assert_eq!(take(&database), Err(VlError::Io.code()));
        assert_eq!(open(&store).unwrap_err(), OpenError::Unfinished { database: "VLDB" });
        now(filling.give_up()).unwrap();
        assert_eq!(take(&database), Ok(first + 1));
        assert_eq!(
            database.version(),
            Version { epoch: 1000, counter: 5 },
            "two changes, and the two of the filling"
        );
    }

    #[test]
    fn a_database_that_is_changed_meanwhile_is_left_alone() {
        let store = Arc::new(MemoryStore::new());
        fill_sample(&store, Existing::Keep).unwrap();
        let database = open(&store).unwrap();
        // Between the look at the revision and the mark.
        let busy = Busy { rows: Arc::clone(&store), database };
        let refused = now(fill::<Vldb>(&busy, std::iter::empty(), Existing::Replace, 1000, 9));
        assert_eq!(refused, Err(FillError::InUse { database: "VLDB" }));
        let Busy { database, .. } = busy;
        assert_eq!(database.read(VldbContents::of), open(&store).unwrap().read(VldbContents::of));
        assert_eq!(database.read(VldbContents::of).entries, sample().entries);
    }

    #[test]
    fn two_that_fill_a_database_at_once_are_not_taken_for_one() {
        let store = Copies::default();
        let mut other = false;
        let contents = sample();
        let rows = contents.rows().inspect(|_| {
            if !std::mem::replace(&mut other, true) {
                now(fill_few(&store, sample().rows(), Existing::Keep, 8)).unwrap();
            }
        });
        let first = now(fill_few(&store, rows, Existing::Keep, 7));
        assert_eq!(first, Err(FillError::Changed { database: "VLDB" }));
        assert_eq!(open(&store.rows).unwrap().read(VldbContents::of), sample());
    }
}
