//! Changes that are made together: those that come while a transaction is under way wait for it, and the next one has all of
//! them. Each is planned on what the ones before it in the transaction have made of the image, and fails alone if its plan
//! refuses; the image has none of it before the store does.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::{self, Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep};

use super::following::{Doubt, FRESH_FOR, Following, refusal};
use super::mirror::Mirror;
use super::{ChangeError, Image, MAX_CONFLICTS, REVISION, Revision, Rows, key};
use crate::store::{Outcome, StoreError, Transaction};

/// Changes of one transaction. Look-ups wait while they are planned, some microseconds each.
const MAX_CHANGES: usize = 256;

/// Bytes of the rows of a transaction with several changes: a third of what etcd takes (`--max-request-bytes`, 1.5 MiB). A
/// larger change is made alone.
const MAX_BYTES: usize = 512 << 10;

/// How long a transaction is waited for while the store is silent: a new leader is there by then. Whoever waits longer learns no more, as it
/// may have been made or not.
const UNDECIDED: Duration = Duration::from_secs(5);

/// The state of the task that makes transactions.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// True if the image may lack a change that the store has. Set before each commit, so that it stands if the change
    /// is broken off.
    is_in_doubt: bool,
    /// Transactions that were begun.
    sequence: u64,
}

/// The group commit of a database: it makes the changes that wait, together in one transaction.
#[derive(Debug)]
pub(super) struct GroupCommit<I> {
    mirror: Arc<Mirror<I>>,
    /// Changes that are to be made.
    waiting: Waiting<I>,
    /// Held by the one who makes transactions of them.
    pub(super) turn: Arc<Mutex<()>>,
    /// Held while a transaction is made, and while the database is read anew.
    writer: Arc<Mutex<Writer>>,
    /// For a store that others change too.
    following: Option<Arc<Following>>,
}

impl<I: Image> GroupCommit<I> {
    pub(super) fn new(
        mirror: Arc<Mirror<I>>,
        writer: Arc<Mutex<Writer>>,
        following: Option<Arc<Following>>,
    ) -> Self {
        Self { mirror, waiting: Waiting::default(), turn: Arc::default(), writer, following }
    }

    /// Makes a change, in one transaction with others that wait; see [`super::Database::change`].
    pub(super) async fn change<R, E>(
        self: &Arc<Self>,
        now: u32,
        plan: impl FnMut(&I, &mut Rows) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<ChangeError> + Send + 'static,
    {
        if let Some(following) = &self.following {
            following.can_change().await?;
        }
        let (answer, mut told) = oneshot::channel();
        self.waiting.push(Box::new(Planned::new(now, plan, answer)));
        let told = loop {
            tokio::select! {
                biased;
                told = &mut told => break told,
                turn = Arc::clone(&self.turn).lock_owned() => {
                    let work = Arc::clone(self).make_waiting(turn);
                    if self.following.is_some() {
                        // Others' changes are in it, which must not end with this one's caller.
                        let _ = tokio::spawn(work).await;
                    } else {
                        work.await;
                    }
                }
            }
        };
        // The sender is gone if the task that makes the change was aborted.
        let broken =
            |_| ChangeError::Store(StoreError::new("changing the cell's databases", "it was broken off"));
        let (result, until) = told.map_err(broken)?;
        if let Some(until) = until {
            // By then no server takes for current what lacks the change.
            tokio::time::sleep_until(until).await;
        }
        result
    }

    /// Makes changes that wait, as many as go into one transaction, and tells their callers.
    async fn make_waiting(self: Arc<Self>, _turn: OwnedMutexGuard<()>) {
        for _ in 0..MAX_CONFLICTS {
            if let Some(following) = &self.following
                && let Err(error) = following.can_change().await
            {
                // None should wait for the same again.
                return self.waiting.refuse_all(&error);
            }
            let mut writer = self.writer.lock().await;
            if writer.is_in_doubt && self.following.is_none() {
                if let Err(error) = self.mirror.reload(&writer).await {
                    return self.waiting.refuse_all(&ChangeError::Reload(error));
                }
                writer.is_in_doubt = false;
            }
            let Batch { changes, rows, from } = self.plan_waiting();
            let Some(now) = changes.first().map(|change| change.now()) else { return };
            writer.is_in_doubt = true;
            writer.sequence += 1;
            let stamp = self.following.as_ref().map(|following| following.stamp(writer.sequence));
            let to = from.next(now, stamp);
            let made = match self.decide(transaction::<I>(&rows, from, to, now)).await {
                Ok(Outcome::Committed) => {
                    let committed = Instant::now();
                    let taken = self.mirror.take(&rows.0, from, to).expect("rows are made as they are read");
                    if taken && let Some(following) = &self.following {
                        following.moved(&self.mirror);
                    }
                    writer.is_in_doubt = false;
                    Ok(self.following.is_some().then(|| committed + FRESH_FOR))
                }
                Ok(Outcome::Conflict) => {
                    drop(writer);
                    self.waiting.push_back_in_front(changes);
                    // Without others the database is read again, as the writer is in doubt.
                    if let Some(following) = &self.following {
                        following.wait_for_others(from).await;
                    }
                    continue;
                }
                Err(error) => Err(ChangeError::from(error)),
            };
            return changes.into_iter().for_each(|change| change.tell(made.clone()));
        }
        self.waiting.refuse_all(&ChangeError::Contended);
    }

    /// Sends a transaction, and waits until it is known what became of it. If the store falls silent, the changes behind it are refused at
    /// once.
    async fn decide(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let commit = self.mirror.store.commit(transaction);
        let Some(following) = &self.following else { return commit.await };
        tokio::select! {
            biased;
            outcome = commit => outcome,
            () = following.silence(UNDECIDED) => {
                let why = format!("etcd has not answered for {UNDECIDED:?}; the change may have been made, or may yet be");
                Err(StoreError::new("changing the cell's databases", why))
            }
            never = self.refuse_in_silence(following) => match never {},
        }
    }

    /// Refuses changes that wait whenever the store is silent.
    async fn refuse_in_silence(&self, following: &Following) -> Infallible {
        loop {
            following.silence(Duration::ZERO).await;
            self.waiting.refuse_all(&refusal(Doubt::Silent));
            sleep(FRESH_FOR).await;
        }
    }

    /// Plans changes that wait. Those that come before all that change rows, and change none, are told at once; none is left
    /// if all are such.
    fn plan_waiting(&self) -> Batch<I> {
        let mut trial = self.mirror.try_out();
        let mut batch = Batch { changes: Vec::new(), rows: Rows::default(), from: trial.revision() };
        let mut bytes = 0;
        while batch.changes.len() < MAX_CHANGES
            && let Some(mut change) = self.waiting.pop()
        {
            if !change.is_wanted() {
                continue;
            }
            trial.take(&batch.rows.0);
            let rows = change.plan(trial.image());
            bytes += bytes_of(&rows);
            if batch.rows.0.is_empty() && rows.0.is_empty() {
                change.tell(Ok(None));
                continue;
            }
            if !batch.rows.0.is_empty() && bytes > MAX_BYTES {
                self.waiting.push_back_in_front(vec![change]);
                break;
            }
            batch.rows.0.extend(rows.0);
            batch.changes.push(change);
        }
        batch
    }
}

/// When a change may be told of, if it has to be waited for; or why it was not made.
type Made = Result<Option<Instant>, ChangeError>;

/// What the caller of a change is told, and when it may be told on.
type Answer<R, E> = (Result<R, E>, Option<Instant>);

/// A change that is to be made.
trait Change<I>: Send {
    /// When it was asked for, in seconds since 1970.
    fn now(&self) -> u32;

    /// True if its caller still waits.
    fn is_wanted(&self) -> bool;

    /// Looks at the image and says which rows change: none if the plan refuses.
    fn plan(&mut self, image: &I) -> Rows;

    /// Tells the caller what its last plan returned, or why nothing came of it.
    fn tell(self: Box<Self>, made: Made);
}

/// A change with its plan.
struct Planned<F, R, E> {
    now: u32,
    plan: F,
    result: Option<Result<R, E>>,
    answer: oneshot::Sender<Answer<R, E>>,
}

impl<F, R, E> Planned<F, R, E> {
    fn new(now: u32, plan: F, answer: oneshot::Sender<Answer<R, E>>) -> Self {
        Self { now, plan, result: None, answer }
    }
}

impl<I, F, R, E> Change<I> for Planned<F, R, E>
where
    F: FnMut(&I, &mut Rows) -> Result<R, E> + Send,
    R: Send,
    E: From<ChangeError> + Send,
{
    fn now(&self) -> u32 {
        self.now
    }

    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn plan(&mut self, image: &I) -> Rows {
        let mut rows = Rows::default();
        let result = (self.plan)(image, &mut rows);
        let rows = if result.is_ok() { rows } else { Rows::default() };
        self.result = Some(result);
        rows
    }

    fn tell(self: Box<Self>, made: Made) {
        let answer = match (made, self.result) {
            (Ok(until), Some(result)) => (result, until),
            (Ok(_), None) => unreachable!("it was planned before it was made"),
            (Err(error), _) => (Err(error.into()), None),
        };
        // If nobody waits any more, nobody has to know.
        let _ = self.answer.send(answer);
    }
}

/// Changes that are to be made, in the order in which they came.
struct Waiting<I>(sync::Mutex<VecDeque<Box<dyn Change<I>>>>);

impl<I> Default for Waiting<I> {
    fn default() -> Self {
        Self(sync::Mutex::default())
    }
}

impl<I> fmt::Debug for Waiting<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.lock().len()).finish()
    }
}

impl<I> Waiting<I> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Box<dyn Change<I>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, change: Box<dyn Change<I>>) {
        self.lock().push_back(change);
    }

    fn push_back_in_front(&self, changes: Vec<Box<dyn Change<I>>>) {
        let mut waiting = self.lock();
        changes.into_iter().rev().for_each(|change| waiting.push_front(change));
    }

    fn pop(&self) -> Option<Box<dyn Change<I>>> {
        self.lock().pop_front()
    }

    fn refuse_all(&self, error: &ChangeError) {
        let all = std::mem::take(&mut *self.lock());
        all.into_iter().for_each(|change| change.tell(Err(error.clone())));
    }
}

/// Changes that go into one transaction.
struct Batch<I> {
    changes: Vec<Box<dyn Change<I>>>,
    rows: Rows,
    from: Revision,
}

fn bytes_of(rows: &Rows) -> usize {
    rows.0.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum()
}

fn transaction<I: Image>(rows: &Rows, from: Revision, to: Revision, now: u32) -> Transaction {
    let changes = rows.0.iter().map(|(row, value)| (key::<I>(row), value.clone()));
    let revision = (key::<I>(REVISION), to.to_row());
    let witness = to.stamp.map(|stamp| (stamp.key(I::PREFIX), stamp.to_row(now)));
    Transaction {
        expected: vec![(key::<I>(REVISION), from.to_row())],
        witness: witness.as_ref().map(|(key, _)| key.clone()),
        changes: changes.chain([revision]).chain(witness.map(|(key, row)| (key, Some(row)))).collect(),
    }
}
