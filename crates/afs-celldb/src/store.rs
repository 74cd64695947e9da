//! The store of the cell's databases: rows under byte keys, and transactions that hold only if what they were made
//! from still holds.
//!
//! [`memory`] is for tests, [`embedded`] for a cell whose databases are on one machine, `etcd` (if it is built in) for one
//! whose databases are on several. A store that several machines share also tells of the others' changes
//! ([`SharedStore`]); what it tells are rows, which is what an image takes (see [`crate::database`]).

pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// The future that a store's methods return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// A key and its new value; `None` removes the row.
pub type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// A moment in the history of a store: how far it had been changed. 0 in a store that nobody shares, which is only ever read as
/// it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// Some rows of a prefix, and the moment that they are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows, in the order of their keys.
    pub rows: Vec<Row>,
    /// The position at which they were so.
    pub position: Position,
}

/// Rows under byte keys, in the order of the keys.
pub trait CellStore: fmt::Debug + Send + Sync + 'static {
    /// The value of a row; `None` if there is none. Sees all that was committed before it was asked for.
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// The next rows, at most `limit`, whose keys begin with `prefix` and come behind `after`, in their order. Fewer than
    /// `limit` are the last ones. `at` gives rows as they were then, for the pages behind the first; the error is
    /// [`Known::Forgotten`] if a shared store does not have that moment.
    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
        at: Option<Position>,
    ) -> StoreFuture<'a, Page>;

    /// Makes all changes of a transaction or none. When it says [`Outcome::Committed`] they are durable: they survive the
    /// death of the process and a loss of power.
    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome>;

    /// The same store as one that others change too; `None` if nobody else does.
    fn shared(&self) -> Option<&dyn SharedStore> {
        None
    }
}

/// Finds out whether a store takes changes now, with one that it must not make: it rests on a row that is not there.
///
/// # Errors
///
/// If the store cannot be reached, has no quorum or no room, or its user may not change it.
pub async fn check_changes(store: &dyn CellStore) -> Result<(), StoreError> {
    let (key, value) = (b"check".to_vec(), b"nothing has this value".to_vec());
    let expected = vec![(key.clone(), Some(value.clone()))];
    store.commit(Transaction { expected, changes: vec![(key, Some(value))], witness: None }).await.map(drop)
}

/// A store that several machines change.
pub trait SharedStore: CellStore {
    /// Tells of all changes of rows behind a moment whose keys begin with `prefix`. Each call may get them from another machine of the
    /// store, so that a caller that hears too little may call again.
    fn watch<'a>(&'a self, prefix: &'a [u8], after: Position) -> StoreFuture<'a, Box<dyn Changes>>;

    /// The number of machines that the store is on, as far as it was told.
    fn machines(&self) -> usize;
}

/// The changes that a store tells of, in their order.
pub trait Changes: Send {
    /// The next ones. After an error there are no more.
    fn next(&mut self) -> StoreFuture<'_, Changed>;
}

/// Transactions that were made, in the order in which they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The rows of each, with the values that they have since; `None` if a row is gone.
    pub transactions: Vec<Vec<RowChange>>,
    /// All changes up to this moment were told.
    pub position: Position,
}

/// Changes that belong together, and what they rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Rows that must have these values (`None`: must not be there), else nothing is changed.
    pub expected: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Rows and their new values; `None` removes the row. Of two changes to a row the later one holds.
    pub changes: Vec<RowChange>,
    /// The key of one of the changes that tells whether this transaction was made: no other gives the row this value, and none that
    /// follows changes the row before the outcome is known. With it a shared store sends the transaction again when the
    /// answer is lost, and finds out what became of it.
    pub witness: Option<Vec<u8>>,
}

/// The outcome of a transaction that the store could decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its changes are made.
    Committed,
    /// A row was not as expected, and nothing is changed.
    Conflict,
}

/// The outcome of a transaction as far as it is known after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing was changed, nor will it be: the store cannot be reached, or has no quorum.
    NotDone,
    /// Nothing: the transaction may have been made, or may yet be.
    Nothing,
    /// The store does not have the moment that was asked for: it is not kept any more, or is of a history that was replaced. Read
    /// everything anew.
    Forgotten,
}

/// A store that did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {reason}")]
pub struct StoreError {
    /// The operation, and its object.
    pub doing: String,
    /// The problem, and where it helps, what to do.
    pub reason: String,
    /// The outcome of the transaction, as far as it is known.
    pub known: Known,
}

impl StoreError {
    /// An error while doing something, after which it is open whether a transaction was made.
    pub fn new(doing: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { doing: doing.into(), reason: reason.to_string(), known: Known::Nothing }
    }

    /// The same error, with what is known.
    pub fn with(self, known: Known) -> Self {
        Self { known, ..self }
    }
}
