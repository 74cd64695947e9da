//! Tools that the tests of this crate share: a future that is ready, changes that wait for each other, a store that
//! remembers transactions, and numbers from a seed.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::database::{ChangeError, Database, Image, Rows};
use crate::store::memory::MemoryStore;
use crate::store::{CellStore, Outcome, Page, Position, RowChange, StoreFuture, Transaction};

/// Returns the result of a future that does not wait, as none does over the memory store.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

/// A change that is to be made.
pub(crate) type Plan<I, R, E> = Box<dyn FnMut(&I, &mut Rows) -> Result<R, E> + Send>;

/// Makes changes none of which is begun before all of them wait, over a store that never waits.
pub(crate) fn together<I, R, E>(database: &Database<I>, plans: Vec<Plan<I, R, E>>) -> Vec<Result<R, E>>
where
    I: Image,
    R: Send + 'static,
    E: From<ChangeError> + Send + 'static,
{
    let turn = now(database.turn().lock_owned());
    let mut changes: Vec<_> = plans.into_iter().map(|plan| Box::pin(database.change(1000, plan))).collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(changes.iter_mut().all(|change| change.as_mut().poll(&mut context).is_pending()));
    drop(turn);
    changes.into_iter().map(now).collect()
}

/// A store that tells of its transactions as a shared one does: of two changes to a row it has the later one, where the first was.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    store: MemoryStore,
    told: Mutex<Vec<RowChange>>,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns what was changed since this was asked last.
    pub(crate) fn changed(&self) -> Vec<RowChange> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

impl CellStore for Recorder {
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.store.read(key)
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
        at: Option<Position>,
    ) -> StoreFuture<'a, Page> {
        self.store.scan(prefix, after, limit, at)
    }

    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome> {
        let mut told = self.told.lock().unwrap();
        let begin = told.len();
        for (key, value) in &transaction.changes {
            match told[begin..].iter_mut().find(|(earlier, _)| earlier == key) {
                Some((_, earlier)) => earlier.clone_from(value),
                None => told.push((key.clone(), value.clone())),
            }
        }
        self.store.commit(transaction)
    }
}

/// Xorshift: the same numbers from the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(0x2545_f491_4f6c_dd1d_u64.wrapping_mul(seed) | 1)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) as u32) % limit
    }
}
