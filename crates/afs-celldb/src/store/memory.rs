//! A store that is forgotten with the process: for tests and simulations.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{CellStore, Outcome, Page, Position, StoreError, StoreFuture, Transaction};

/// Rows in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    failure: Failure,
    /// Commits before the one that fails.
    whole: u32,
}

/// The failure of the commits to come, for tests of a store's users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// Nothing.
    #[default]
    None,
    /// The next commit fails, and its changes are not made.
    Lost,
    /// The next commit fails, though its changes are made: as when the answer is lost.
    Unanswered,
}

impl MemoryStore {
    /// No rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the next commit fail.
    pub fn fail_next(&self, failure: Failure) {
        self.fail_commit(0, failure);
    }

    /// Has a commit fail, after so many others.
    pub fn fail_commit(&self, whole: u32, failure: Failure) {
        let mut state = self.lock();
        (state.failure, state.whole) = (failure, whole);
    }

    /// All rows, for comparisons.
    pub fn rows(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.lock().rows.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic within leaves whole rows behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit_now(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let mut state = self.lock();
        let failure = match state.whole.checked_sub(1) {
            Some(left) => {
                state.whole = left;
                Failure::None
            }
            None => std::mem::take(&mut state.failure),
        };
        let failed = || Err(StoreError::new("committing to memory", "this was asked to fail, for a test"));
        if failure == Failure::Lost {
            return failed();
        }
        if !transaction.expected.iter().all(|(key, value)| state.rows.get(key) == value.as_ref()) {
            return Ok(Outcome::Conflict);
        }
        for (key, value) in transaction.changes {
            match value {
                Some(value) => drop(state.rows.insert(key, value)),
                None => drop(state.rows.remove(&key)),
            }
        }
        if failure == Failure::Unanswered { failed() } else { Ok(Outcome::Committed) }
    }
}

impl CellStore for MemoryStore {
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
        let value = self.lock().rows.get(key).cloned();
        Box::pin(std::future::ready(Ok(value)))
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
        _at: Option<Position>,
    ) -> StoreFuture<'a, Page> {
        let first = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let state = self.lock();
        let rows = state.rows.range::<[u8], _>((first, Bound::Unbounded));
        let rows = rows.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        let rows = rows.map(|(key, value)| (key.clone(), value.clone())).collect();
        Box::pin(std::future::ready(Ok(Page { rows, ..Page::default() })))
    }

    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome> {
        Box::pin(std::future::ready(self.commit_now(transaction)))
    }
}
