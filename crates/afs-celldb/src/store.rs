//! Where the cell's databases are kept: rows under byte keys, and transactions that hold only if what they were made
//! from still holds.
//!
//! [`memory`] is for tests, [`embedded`] for a cell whose databases are on one machine. A store that several machines
//! share (etcd) fits behind the same trait: its transactions are compared in the same way, and a database whose
//! transaction is refused reads everything anew and tries again. Such a store will also tell of the others' changes;
//! what it tells are rows, which is what an image takes (see [`crate::database`]).

pub mod embedded;
pub mod memory;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// What a store's methods return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Rows under byte keys, in the order of the keys.
pub trait CellStore: fmt::Debug + Send + Sync + 'static {
    /// The value of a row; `None` if there is none.
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// The next rows, at most `limit`, whose keys begin with `prefix` and come behind `after`, in their order. Fewer than
    /// `limit` are the last ones.
    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<Row>>;

    /// Makes all changes of a transaction or none. When it says [`Outcome::Committed`] they are durable: they survive the
    /// death of the process and a loss of power.
    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome>;
}

/// Changes that belong together, and what they rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Rows that must have these values (`None`: must not be there), else nothing is changed.
    pub expected: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Rows and their new values; `None` removes the row. Of two changes to a row the later one holds.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// What became of a transaction that the store could decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its changes are made.
    Committed,
    /// A row was not as expected, and nothing is changed.
    Conflict,
}

/// A store that did not do what it was asked. Whether a transaction was made is open then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// What was being done to what.
    pub doing: String,
    /// What came of it, and where it helps, what to do.
    pub reason: String,
}

impl StoreError {
    /// An error while doing something.
    pub fn new(doing: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { doing: doing.into(), reason: reason.to_string() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.reason)
    }
}

impl std::error::Error for StoreError {}
